# SPDX-License-Identifier: Apache-2.0
"""The context: one node of a job, with its memory, its listener and its links.

    core      the C context. It is freed when the Context was closed and no array of its memory is left
    Context   what programs hold; closing it ends everything that was made with it, latest first

A closed context does no more traffic, but arrays that came from it stay valid for as long as the program has them:
their memory goes with the last of them.
"""
from __future__ import annotations

import atexit
import math
import os
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TYPE_CHECKING

from . import _buffers, watch
from ._lib import const, ffi, lib, c_string, text
from ._ops import in_callback
from ._types import Addresses, Dtype, Memory, Shape
from .errors import InvalidError, check, closed, error

if TYPE_CHECKING:
    import concurrent.futures
    from .channel import Channel, Link, Listener
    from .rpc import Caller, Request, Served
    from .table import Server, Tables

try:
    import numpy
except ImportError:  # arrays are plain buffers then
    numpy = None

_ACCESS = {'': 0, 'r': const['TERN_ACCESS_READ'], 'w': const['TERN_ACCESS_WRITE'],
           'rw': const['TERN_ACCESS_READ'] | const['TERN_ACCESS_WRITE']}
_contexts = weakref.WeakSet()


def access_bits(access: str) -> int:
    """'r', 'w', 'rw' or '': what peers may do with memory."""
    try:
        return _ACCESS[access]
    except (KeyError, TypeError):
        raise InvalidError(lib.TERN_E_INVALID, f"access is '', 'r', 'w' or 'rw' (what peers may do), not {access!r}") \
            from None


class Core:
    """The C context. Blocks of memory hold it."""

    def __init__(self, pointer):
        self.ptr = pointer
        self.mem = lib.tern_ctx_mem(pointer)
        self.closed = False
        self.pid = os.getpid()

    def close(self):
        """End everything but the memory."""
        if not self.closed:
            self.closed = True
            if self.pid == os.getpid():
                lib.tern_ctx_close(self.ptr)

    def __del__(self):
        if self.closed and self.pid == os.getpid():
            lib.tern_ctx_destroy(self.ptr)


class Key:
    """A remote key: 64 bytes that name a range of one node's memory. Send `bytes(key)` to a peer by any means."""

    __slots__ = ('_key',)

    def __init__(self, raw: bytes) -> None:
        raw = bytes(raw)
        if len(raw) != 64:
            raise InvalidError(lib.TERN_E_INVALID, f'a key has 64 bytes, not {len(raw)}')
        self._key = ffi.new('tern_key *')
        ffi.memmove(self._key, raw, 64)

    def __bytes__(self):
        return bytes(ffi.buffer(self._key))

    def __len__(self):
        return int(lib.tern_key_length(self._key))

    def __eq__(self, other):
        return isinstance(other, Key) and bytes(self) == bytes(other)

    def __hash__(self):
        return hash(bytes(self))

    @property
    def pointer(self) -> Any:
        """The C key."""
        return self._key


class Context:
    """One node of a job.

    name: of this node, for texts and logs; unique in the job.  listen: 'host:port' (port 0: any), '' not at all, None
    127.0.0.1:0.  transports: in order of preference, 'shm,tcp'.  secret: shared by the job; needed to listen beyond
    this host.  options: {'link.window_bytes': 1 << 20}; they win over the environment.  mem_limit: bytes of
    registered memory.

    Use it in a `with` statement, or close() it. Any thread.
    """

    def __init__(self, name: Optional[str] = None, *, listen: Optional[str] = None, transports: Optional[str] = None,
                 secret: Optional[str] = None, job: Optional[str] = None, options: Optional[Mapping[str, Any]] = None,
                 mem_limit: int = 0, insecure: bool = False) -> None:
        strings = {'name': name, 'listen': listen, 'transports': transports, 'secret': secret, 'job': job}
        keep = {field: c_string(value) for field, value in strings.items()}
        rows = [c_string(f'{key}={_option(value)}') for key, value in (options or {}).items()]
        table = ffi.new('char *[]', rows + [ffi.NULL])
        params = ffi.new('tern_ctx_params *', keep)
        params.options = ffi.cast('const char *const *', table)
        params.mem_limit_bytes = mem_limit
        params.flags = const['TERN_CTX_INSECURE'] if insecure else 0
        out = ffi.new('tern_ctx **')
        check(lib.tern_ctx_create(params, out))
        self._core = Core(out[0])
        self._parts = []
        self._lock = threading.Lock()
        _contexts.add(self)

    # ---- life ----

    def close(self) -> None:
        """End servers, clients, channels and links that were made with it, latest first, then itself. Idempotent."""
        if self._core.closed:
            return
        if in_callback():
            raise error(lib.TERN_E_STATE, 'a callback can\'t close a context: it runs in it')
        with self._lock:
            parts, self._parts = self._parts, []
        for part in reversed(parts):
            part = part()
            if part is not None:
                part.close()
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        core = getattr(self, '_core', None)
        if core is None or core.closed:
            return
        if in_callback():  # collected in the middle of a callback of its own: another thread has to end it
            threading.Thread(target=self.close, daemon=True).start()
        else:
            self.close()

    def __repr__(self):
        return f'<tern.Context {"closed" if self._core.closed else text(lib.tern_ctx_address(self._core.ptr))!r}>'

    @property
    def core(self) -> Core:
        """The C context, for the package's own use; raises if this one is closed or of another process."""
        core = self._core
        if core.closed:
            raise closed('the context')
        if core.pid != os.getpid():
            raise error(lib.TERN_E_FORKED, 'the context belongs to the parent process: make a context of your own '
                        'here (arrays of the parent can be read and written: they are a private copy)')
        return core

    def add_part(self, part: Any) -> None:
        """Have `part` closed with this context."""
        with self._lock:
            self._parts = [p for p in self._parts if p() is not None]
            self._parts.append(weakref.ref(part))

    # ---- facts ----

    @property
    def address(self) -> str:
        """'host:port' where it listens, or ''."""
        return text(lib.tern_ctx_address(self.core.ptr))

    def counters(self) -> Dict[str, int]:
        """{'shm.copy_bytes': 4096, ...}"""
        out = {}

        @ffi.callback('tern_counter_fn')
        def one(name, value, _arg):
            out[text(name)] = value
        lib.tern_ctx_counters(self.core.ptr, one, ffi.NULL)
        return out

    def memory_stats(self) -> Dict[str, int]:
        """Figures of the registered memory by name: bytes, blocks, keys, registrations."""
        stats = ffi.new('tern_mem_stats *')
        lib.tern_mem_stats_get(self.core.mem, stats)
        return {field: getattr(stats, field) for field, _ in ffi.typeof('tern_mem_stats').fields}

    # ---- what it is doing: see the module watch ----

    def record(self, spans: int = 0) -> None:
        """Record how long operations take from now on, and keep the latest `spans` of them (0: 4096)."""
        check(lib.tern_ctx_record(self.core.ptr, spans))

    def latencies(self) -> Dict[str, watch.Latency]:
        """{'ps.pull': Latency(count, mean, p50, p99, p999, max), ...} in seconds, since record()."""
        return watch.latencies(self.core.ptr)

    def waits(self) -> List[watch.Wait]:
        """[Wait(what, whom, since, count)]: who this context waits for, and members of groups that wait at it."""
        return watch.waits(self.core.ptr)

    def report(self) -> str:
        """Links, memory, waits, latencies and counters in words, to be pasted into a report."""
        return watch.report(self.core.ptr)

    def http(self, listen: str = '127.0.0.1:0', insecure: bool = False) -> watch.Endpoint:
        """An Endpoint of this context for browsers, Prometheus and `tern top`: see the module watch. It records from
        then on. Beyond loopback anybody could read it: that needs insecure=True."""
        return watch.Endpoint(self, listen, insecure)

    # ---- memory ----

    def buffer(self, size: int, access: str = 'rw') -> Any:
        """`size` bytes of registered memory that supports the buffer protocol; freed with the last reference to it."""
        core = self.core
        out = ffi.new('void **')
        check(lib.tern_mem_alloc(core.mem, size, 0, access_bits(access), lib.TERN_MEM_HOST, out))

        def free(pointer, core=core):
            lib.tern_mem_free(core.mem, pointer)
        block = ffi.gc(ffi.cast('char *', out[0]), free, size)
        return ffi.buffer(block, size)

    def empty(self, shape: Shape, dtype: Dtype = 'f32', access: str = 'rw') -> numpy.ndarray:
        """A numpy array in registered memory, not initialised. `torch.from_numpy` makes it a tensor without a copy.
        bf16 comes as uint16: numpy has no such type."""
        if numpy is None:
            raise ImportError('arrays need numpy (python3-numpy); Context.buffer() works without')
        kind = numpy.dtype(_buffers.NUMPY[_buffers.NAMES[_buffers.dtype(dtype)]])
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(dim < 0 for dim in shape):
            raise InvalidError(lib.TERN_E_INVALID, f'a shape has no negative dims: {shape}')
        count = math.prod(shape)
        return numpy.frombuffer(self.buffer(max(count * kind.itemsize, 1), access), kind, count).reshape(shape)

    def zeros(self, shape: Shape, dtype: Dtype = 'f32', access: str = 'rw') -> numpy.ndarray:
        """The same, zeroed."""
        array = self.empty(shape, dtype, access)
        array.fill(0)
        return array

    def array(self, values: Any, dtype: Dtype = None, access: str = 'rw') -> numpy.ndarray:
        """A copy of `values` in registered memory."""
        values = numpy.asarray(values)
        out = self.empty(values.shape, dtype or values.dtype, access)
        out[...] = values
        return out

    def export(self, array: Memory, access: str = 'rw') -> Key:
        """A Key to the memory of an array that came from this context: what a peer needs to read or write it."""
        pointer, size, keep = _buffers.view(array, 'w' in access, 'export')
        key = Key(bytes(64))
        check(lib.tern_mem_export(self.core.mem, pointer, size, access_bits(access), key.pointer))
        del keep
        return key

    def revoke(self, key: Key) -> None:
        """Later uses of the key fail at the peer; accesses that are under way have ended when it returns."""
        check(lib.tern_mem_revoke(self.core.mem, key.pointer))

    # ---- everything else that is made with it: see the modules of these classes ----

    def connect(self, address: str, timeout: Optional[float] = None, transports: Optional[str] = None,
                retry: bool = False) -> Link:
        """A Link to 'host:port'; waits until it is up. retry: a peer that is not there yet is waited for."""
        from .channel import Link
        return Link._connect(self, address, timeout, transports, retry)

    def listen(self, service: str, on_open: Optional[Callable[[Channel], None]] = None) -> Listener:
        """A Listener: channels that peers open to that name. on_open(channel) is called for each, or accept() them."""
        from .channel import Listener
        return Listener(self, service, on_open)

    def rpc(self, address: str, timeout: Optional[float] = None, transports: Optional[str] = None) -> Caller:
        """A Caller of methods of the node at 'host:port'. It dials again when the link is lost."""
        from .rpc import Caller
        return Caller(self, address, timeout, transports)

    def serve(self, method: int, handler: Callable[[Request], Any],
              executor: Optional[concurrent.futures.Executor] = None) -> Served:
        """Serve calls of a method: handler(request) gives the answer. See rpc.Served."""
        from .rpc import Served
        return Served(self, method, handler, executor)

    def table_server(self, **params: Any) -> Server:
        """A parameter server in this process: see table.Server."""
        from .table import Server
        return Server(self, **params)

    def tables(self, servers: Addresses, timeout: Optional[float] = None, transports: Optional[str] = None) -> Tables:
        """The tables of the parameter servers at these addresses: see table.Tables."""
        from .table import Tables
        return Tables(self, servers, timeout, transports)


def _option(value):
    return {True: '1', False: '0'}.get(value, str(value)) if isinstance(value, bool) else str(value)


def providers() -> List[Tuple[str, bool, str]]:
    """[(name, usable, reason)] of the transports of this host."""
    out, info = [], ffi.new('tern_provider_info *')
    while lib.tern_provider_probe(len(out), info) != lib.TERN_E_NOT_FOUND:
        out.append((text(info.name), bool(info.usable), text(info.reason)))
    return out


def options() -> Dict[str, Tuple[str, str, str, str]]:
    """{name: (value, default, source, help)} of all options as a new context would see them."""
    out, info, i = {}, ffi.new('tern_option_info *'), 0
    while lib.tern_option_get(i, info) != lib.TERN_E_NOT_FOUND:
        out[text(info.name)] = (text(info.value), text(info.dflt), text(info.source), text(info.help))
        i += 1
    return out


def _at_exit():
    for context in list(_contexts):
        if context._core.pid == os.getpid():  # pylint: disable=protected-access
            try:
                context.close()
            except Exception:  # pylint: disable=broad-except
                pass  # the interpreter ends; others have to be closed all the same


atexit.register(_at_exit)
