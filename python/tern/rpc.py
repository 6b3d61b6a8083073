# SPDX-License-Identifier: Apache-2.0
"""Remote calls: small arguments and answers inline, bulk one-sided into memory that the caller names."""
from __future__ import annotations

import itertools
from typing import Any, Callable, Optional, Sequence, TYPE_CHECKING, Union

from . import _buffers
from ._handle import Handle
from ._lib import const, ffi, lib, c_string, nanoseconds
from ._ops import Operation, callback_scope, run
from ._types import Memory
from .errors import TernError, check, closed, error

if TYPE_CHECKING:
    import concurrent.futures
    from .context import Context

CLASSES = {'normal': lib.TERN_RPC_NORMAL, 'latency': lib.TERN_RPC_LATENCY, 'bulk': lib.TERN_RPC_BULK}

_served = {}
_numbers = itertools.count(1)


class Request:
    """One call at the server. A handler returns the answer, or keeps the request and calls reply() later, once."""

    def __init__(self, pointer: Any, core: Any, args: Memory) -> None:
        self._ptr, self._core = pointer, core
        self.args = args
        self._replied = False
        self.kept = False

    def _alive(self):
        if self._replied:
            raise closed('the request')
        return self._ptr

    @property
    def canceled(self) -> bool:
        """Nobody waits for the answer any more."""
        return bool(lib.tern_rpc_request_canceled(self._alive()))

    @property
    def time_left(self) -> float:
        """Seconds until the caller's deadline."""
        return lib.tern_rpc_request_time_left(self._alive()) / 1e9

    def sink_bytes(self, i: int = 0) -> int:
        """Bytes of the caller's sink number i; 0 past the last one."""
        sink = lib.tern_rpc_request_sink(self._alive(), i)
        return int(sink.bytes) if sink else 0

    def put(self, data: Memory, sink: int = 0, offset: int = 0) -> Operation:
        """Write `data` into the caller's memory. The answer waits for it. Gives an Operation."""
        pointer, size, keep = _buffers.view(data, False, 'put')
        request = self._alive()
        return Operation(self._core,
                         lambda op: lib.tern_rpc_request_put(request, sink, offset, pointer, size, op),
                         lambda op: lib.TERN_E_NOT_FOUND, (keep, data))

    def keep(self) -> Request:
        """The handler's return value is not the answer: reply() comes later, from any thread."""
        self.kept = True
        return self

    def reply(self, data: Union[None, str, Memory] = b'', status: int = 0) -> None:
        """Answer the call; with a status other than 0 data is a text for the caller."""
        pointer, self._ptr = self._alive(), None
        self._replied = True
        if isinstance(data, str):
            data = data.encode()
        raw, size, keep = _buffers.view(b'' if data is None else data, False, 'answer')
        lib.tern_rpc_reply(pointer, int(status), raw, size)
        del keep


class Served:
    """A method that is served until close().

    handler(request) runs in the thread that drives the context, one at a time, and must not block or wait; with an
    `executor` (concurrent.futures) it runs there and may. What it returns (bytes, a buffer, None) is the answer; what it
    raises is the caller's error: a TernError's status and detail, anything else as TERN_E_REMOTE with its text.
    """

    def __init__(self, context: Context, method: int, handler: Callable[[Request], Any],
                 executor: Optional[concurrent.futures.Executor] = None) -> None:
        self._core = context.core
        self._method, self._handler, self._executor = method, handler, executor
        self._number = next(_numbers)
        _served[self._number] = self
        status = lib.tern_rpc_serve(self._core.ptr, method, _on_call, ffi.cast('void *', self._number))
        if status != lib.TERN_OK:
            del _served[self._number]
            raise error(status)
        self._open = True
        context.add_part(self)

    def _run(self, request):
        try:
            answer = self._handler(request)
            if not request.kept:
                request.reply(answer)
        except TernError as failure:
            self._fail(request, failure.status, failure.detail)
        except Exception as failure:  # pylint: disable=broad-except
            self._fail(request, lib.TERN_E_REMOTE, f'{type(failure).__name__}: {failure}')

    @staticmethod
    def _fail(request, status, detail):
        if not request._replied:  # pylint: disable=protected-access
            request.reply(detail, status)

    def _call(self, pointer, args):
        request = Request(pointer, self._core, args)
        if self._executor is None:
            self._run(request)
            return
        try:
            self._executor.submit(self._run, request)
        except RuntimeError as failure:  # it was shut down
            self._fail(request, lib.TERN_E_REMOTE, str(failure))

    def close(self) -> None:
        """Stop serving; waits for a handler that runs."""
        if self._open:
            self._open = False
            if not self._core.closed:
                lib.tern_rpc_unserve(self._core.ptr, self._method)
            _served.pop(self._number, None)


@ffi.callback('tern_rpc_handler')
def _on_call(request, args, size, arg):
    served = _served.get(int(ffi.cast('uintptr_t', arg)))
    with callback_scope():
        if served is None:
            text_ = b'the method is not served any more'
            lib.tern_rpc_reply(request, lib.TERN_E_NO_METHOD, text_, len(text_))
        else:
            served._call(request, ffi.buffer(args, size)[:] if size else b'')  # pylint: disable=protected-access


class Caller(Handle):
    """A client of one server: 'host:port'. Calls wait for the link within their deadlines."""
    _what = 'the caller'

    def __init__(self, context: Context, address: str, timeout: Optional[float] = None,
                 transports: Optional[str] = None) -> None:
        self._context, self._core = context, context.core
        keep = c_string(transports)
        params = ffi.new('tern_connect_params *', {'timeout_ns': nanoseconds(timeout), 'transports': keep})
        out = ffi.new('tern_rpc **')
        target = c_string(address)
        check(lib.tern_rpc_connect(self._core.ptr, target, params, out))
        self._ptr = out[0]
        context.add_part(self)

    def _prepare(self, method, args, sinks, answer_max, service_class, idempotent):
        raw, size, keep = _buffers.view(args.encode() if isinstance(args, str) else args, False, 'arguments')
        answer = ffi.new('char[]', answer_max) if answer_max else ffi.NULL
        rows = ffi.new('tern_rpc_sink[]', len(sinks))
        keys = []
        for row, sink in zip(rows, sinks):
            key = self._context.export(sink, 'w')
            keys.append(key)
            row.key = key.pointer[0]
            row.bytes = len(key)
        params = ffi.new('tern_rpc_call_params *', {
            'method': method, 'args': raw, 'args_bytes': size, 'sinks': rows, 'sink_count': len(sinks),
            'answer': answer, 'answer_capacity': answer_max, 'service_class': CLASSES[service_class],
            'flags': const['TERN_RPC_IDEMPOTENT'] if idempotent else 0})
        return params, answer, keys, (keep, rows, sinks, answer, params)

    def call(self, method: int, args: Memory = b'', *, sinks: Sequence[Memory] = (), answer_max: int = 65536,
             timeout: Optional[float] = None, service_class: str = 'normal', idempotent: bool = False) -> bytes:
        """Call and wait: the answer's bytes. sinks: arrays of this context that the server may write into."""
        rpc = self._alive()
        params, answer, keys, keep = self._prepare(method, args, sinks, answer_max, service_class, idempotent)
        try:
            size = run(self._core, lambda op: lib.tern_rpc_call(rpc, params, op),
                       lambda op: lib.tern_rpc_cancel(rpc, op), timeout)
        finally:
            for key in keys:
                lib.tern_mem_revoke(self._core.mem, key.pointer)
            del keep
        return ffi.buffer(answer, size)[:] if size else b''

    def start(self, method: int, args: Memory = b'', *, sinks: Sequence[Memory] = (), answer_max: int = 65536,
              timeout: Optional[float] = None, service_class: str = 'normal', idempotent: bool = False) -> Operation:
        """The same as an Operation: await it, or wait() for it."""
        rpc, core = self._alive(), self._core
        params, answer, keys, keep = self._prepare(method, args, sinks, answer_max, service_class, idempotent)

        def revoke():
            for key in keys:
                lib.tern_mem_revoke(core.mem, key.pointer)
        return Operation(core, lambda op: lib.tern_rpc_call(rpc, params, op),
                         lambda op: lib.tern_rpc_cancel(rpc, op), keep,
                         lambda size: ffi.buffer(answer, size)[:] if size else b'', timeout, after=revoke)

    def close(self) -> None:
        """Calls in flight end in TERN_E_FLUSHED."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if not self._core.closed:
                lib.tern_rpc_close(pointer)

    def __del__(self):
        if getattr(self, '_ptr', None) is not None:
            self.close()
