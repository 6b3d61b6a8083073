# SPDX-License-Identifier: Apache-2.0
"""Collectives: operations of all ranks of a communicator, in the same order, with the same shapes."""
from __future__ import annotations

from typing import Optional, Sequence, TYPE_CHECKING

from . import _buffers
from ._handle import Handle
from ._lib import ffi, lib, c_string, nanoseconds
from ._ops import in_callback
from ._types import Memory
from .errors import InvalidError, ShapeError, check, closed, error

if TYPE_CHECKING:
    from .context import Context

REDUCTIONS = {'sum': lib.TERN_SUM, 'prod': lib.TERN_PROD, 'min': lib.TERN_MIN, 'max': lib.TERN_MAX,
              'avg': lib.TERN_AVG}


def _reduction(name):
    try:
        return REDUCTIONS[name]
    except (KeyError, TypeError):
        raise InvalidError(lib.TERN_E_INVALID, f'no reduction {name!r}: there are {", ".join(REDUCTIONS)}') from None


class Communicator(Handle):
    """Ranks that work together. name: new in the context's life, the same at all ranks. addresses: of all ranks'
    contexts ('host:port'). hosts: a word for the host of each (default: the host part of addresses).

    Arrays are contiguous, of numpy or torch, any memory; that of a Context is sent without a copy. Operations block, and let
    other threads of the interpreter run meanwhile. One thread at a time. After a failure it is of no more use.
    """

    def __init__(self, context: Context, name: str, rank: int, size: int, addresses: Optional[Sequence[str]] = None,
                 hosts: Optional[Sequence[str]] = None, timeout: Optional[float] = None) -> None:
        self._context, self._core = context, context.core
        strings = [c_string(text) for text in (addresses or []) + (hosts or [])]
        if addresses is not None and len(addresses) != size or hosts is not None and len(hosts) != size:
            raise InvalidError(lib.TERN_E_INVALID, f'a communicator of {size} ranks needs as many addresses (and hosts)')
        first = ffi.new('char *[]', strings[:size]) if addresses else ffi.NULL
        second = ffi.new('char *[]', strings[-size:]) if hosts else ffi.NULL
        label = c_string(name)
        params = ffi.new('tern_comm_params *')
        params.name, params.rank, params.size, params.timeout_ns = label, rank, size, nanoseconds(timeout)
        params.addresses = ffi.cast('const char *const *', first)
        params.hosts = ffi.cast('const char *const *', second)
        out = ffi.new('tern_communicator **')
        check(lib.tern_comm_create(self._core.ptr, params, out))
        self._ptr, self.rank, self.size = out[0], rank, size
        context.add_part(self)

    def _alive(self):
        if self._ptr is None:
            raise closed('the communicator')
        if in_callback():
            raise error(lib.TERN_E_STATE, 'a callback must not wait for other ranks')
        self._context.core  # pylint: disable=pointless-statement
        return self._ptr

    def all_reduce(self, array: Memory, op: str = 'sum', out: Optional[Memory] = None) -> Memory:
        """Reduce over all ranks, in place, or from `array` into `out`."""
        out = array if out is None else out
        source, size, keep = _buffers.view(array, False, 'all_reduce')
        target, room, held = _buffers.view(out, True, 'all_reduce')
        kind = _same(array, out, size, room)
        check(lib.tern_all_reduce(self._alive(), source, target, size // _buffers.BYTES[kind], kind, _reduction(op)))
        del keep, held
        return out

    def reduce_to(self, array: Memory, root: int = 0, op: str = 'sum') -> Memory:
        """Reduce over all ranks, in place at the root; elsewhere the array stays as it is."""
        target, size, keep = _buffers.view(array, self.rank == root, 'reduce_to')
        kind = _buffers.element(array, 'reduce_to')
        check(lib.tern_reduce_to(self._alive(), target, target, size // _buffers.BYTES[kind], kind, _reduction(op), root))
        del keep
        return array

    def reduce_scatter(self, out: Memory, array: Memory, op: str = 'sum') -> Memory:
        """out gets the reduction of this rank's block of `array`, which has `size` times its elements."""
        source, size, keep = _buffers.view(array, False, 'reduce_scatter')
        target, room, held = _buffers.view(out, True, 'reduce_scatter')
        kind = _same(array, out, size, room * self.size)
        check(lib.tern_reduce_scatter(self._alive(), source, target, room // _buffers.BYTES[kind], kind, _reduction(op)))
        del keep, held
        return out

    def all_gather(self, out: Memory, array: Memory) -> Memory:
        """out gets the arrays of all ranks, one after the other."""
        source, size, keep = _buffers.view(array, False, 'all_gather')
        target, room, held = _buffers.view(out, True, 'all_gather')
        _fits(size * self.size, room)
        check(lib.tern_all_gather(self._alive(), source, target, size))
        del keep, held
        return out

    def all_to_all(self, out: Memory, array: Memory) -> Memory:
        """Block r of `array` goes to rank r; out has a block from each."""
        source, size, keep = _buffers.view(array, False, 'all_to_all')
        target, room, held = _buffers.view(out, True, 'all_to_all')
        _fits(size, room)
        if size % self.size:
            raise ShapeError(lib.TERN_E_SHAPE, f'{size} bytes can\'t be cut into {self.size} equal blocks')
        check(lib.tern_all_to_all(self._alive(), source, target, size // self.size))
        del keep, held
        return out

    def broadcast(self, array: Memory, root: int = 0) -> Memory:
        """The root's array is everybody's."""
        target, size, keep = _buffers.view(array, self.rank != root, 'broadcast')
        check(lib.tern_broadcast(self._alive(), target, size, root))
        del keep
        return array

    def barrier(self) -> None:
        """Wait for all ranks."""
        check(lib.tern_barrier(self._alive()))

    def send(self, array: Memory, peer: int) -> None:
        """A message to one rank, of a size that it knows."""
        source, size, keep = _buffers.view(array, False, 'send')
        check(lib.tern_comm_send(self._alive(), peer, source, size))
        del keep

    def recv(self, array: Memory, peer: int) -> Memory:
        """A message from one rank."""
        target, size, keep = _buffers.view(array, True, 'recv')
        check(lib.tern_comm_recv(self._alive(), peer, target, size))
        del keep
        return array

    def close(self) -> None:
        """Peers that wait for this rank are told."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if not self._core.closed:
                lib.tern_comm_destroy(pointer)


def _fits(size, room):
    if size != room:
        raise ShapeError(lib.TERN_E_SHAPE, f'{size} bytes go into an array of {room} bytes')


def _same(array, out, size, room):
    kind = _buffers.element(array, 'array')
    if _buffers.element(out, 'out') != kind:
        raise ShapeError(lib.TERN_E_SHAPE, f'a reduction of {array.dtype} into {out.dtype}')
    _fits(size, room)
    return kind
