# SPDX-License-Identifier: Apache-2.0
"""What a context is doing: how long operations take, who waits for whom, and the same over HTTP.

    ctx.record()                    from now on
    ctx.latencies()                 {'rpc.call': Latency(count=..., p99=...), ...}
    ctx.waits()                     [Wait(what='calls of method 0x70730001', whom='10.0.0.1:7000', since=1.2, count=3)]
    print(ctx.report())             all of that and the links in words, for a report
    ctx.http('127.0.0.1:9400')      for `tern top`, `tern status`, `tern trace`, Prometheus and browsers

To have the report of a process that hangs: `signal.signal(signal.SIGUSR2, lambda *_: print(ctx.report(), file=sys.stderr))`.
"""
from __future__ import annotations

import os
from typing import NamedTuple, TYPE_CHECKING

from ._handle import Handle
from ._lib import c_string, const, ffi, lib, sibling, text
from .errors import check

if TYPE_CHECKING:
    from .context import Context

HTTP = 'libtern-http.so.1'


class Latency(NamedTuple):
    """Of one kind of operations, in seconds, since recording began."""
    count: int
    mean: float
    p50: float
    p99: float
    p999: float
    max: float


class Wait(NamedTuple):
    """Something that waits: what, for whom ('' where `what` says it), for how many seconds, how many like it."""
    what: str
    whom: str
    since: float
    count: int


def latencies(pointer):
    """Of a C context."""
    out = {}

    @ffi.callback('void(const tern_latency *, void *)')
    def one(row, _arg):
        out[text(row.kind)] = Latency(row.count, row.sum_ns / row.count * 1e-9, row.p50_ns * 1e-9, row.p99_ns * 1e-9,
                                      row.p999_ns * 1e-9, row.max_ns * 1e-9)
    lib.tern_ctx_latencies(pointer, one, ffi.NULL)
    return out


def waits(pointer):
    """Of a C context."""
    out = []

    @ffi.callback('void(const tern_wait *, void *)')
    def one(row, _arg):
        out.append(Wait(text(row.what), text(row.whom), row.since_ns * 1e-9, row.count))
    lib.tern_ctx_waits(pointer, one, ffi.NULL)
    return out


def report(pointer):
    """Of a C context."""
    lines = []

    @ffi.callback('void(const char *, void *)')
    def one(line, _arg):
        lines.append(text(line))
    lib.tern_ctx_report(pointer, one, ffi.NULL)
    return '\n'.join(lines) + '\n'


class Endpoint(Handle):
    """A context over HTTP, until it is closed: `address` is where. Made by Context.http()."""
    _what = 'the endpoint'

    def __init__(self, context: Context, listen: str, insecure: bool) -> None:
        self._context = context
        core = context.core
        try:
            self._http = ffi.dlopen(sibling(HTTP))
        except OSError as failure:
            raise ImportError(f'{HTTP} can\'t be loaded ({failure}): install the package that has it') from None
        where = c_string(listen)
        params = ffi.new('tern_http_params *', {'listen': where})
        params.flags = const['TERN_HTTP_INSECURE'] if insecure else 0
        out = ffi.new('tern_http **')
        check(self._http.tern_http_start(core.ptr, params, out))
        self._ptr = out[0]
        context.add_part(self)

    @property
    def address(self) -> str:
        """'host:port'."""
        return text(self._http.tern_http_address(self._alive()))

    def close(self) -> None:
        """Nobody looks any more. Idempotent."""
        pointer, self._ptr = self._ptr, None
        if pointer is not None and self._context._core.pid == os.getpid():  # pylint: disable=protected-access
            self._http.tern_http_stop(pointer)

    def __del__(self):
        if self._ptr is not None:
            self.close()
