# SPDX-License-Identifier: Apache-2.0
"""Links to other nodes, and channels on them: ordered messages, one-sided puts and gets."""
from __future__ import annotations

import itertools
import queue
from typing import Any, Callable, Optional, TYPE_CHECKING

from . import _buffers
from ._handle import Handle
from ._lib import const, ffi, lib, c_string, nanoseconds, text
from ._ops import SLICE_NS, Operation, callback_scope, run
from ._types import Memory
from .context import Key
from .errors import InvalidError, check, error, raise_class

if TYPE_CHECKING:
    from .context import Context

_listeners = {}
_channels = {}
_numbers = itertools.count(1)
_DEFAULT_MESSAGE = 1 << 20


class Link(Handle):
    """The way to another node. Channels share it."""
    _what = 'the link'

    def __init__(self, context: Context, pointer: Any) -> None:
        self._context, self._core, self._ptr = context, context.core, pointer
        context.add_part(self)

    @classmethod
    def _connect(cls, context, address, timeout, transports, retry):
        keep = c_string(transports)
        params = ffi.new('tern_connect_params *', {'timeout_ns': nanoseconds(timeout), 'transports': keep,
                                                   'retry': int(retry)})
        out, target = ffi.new('tern_link **'), c_string(address)
        check(lib.tern_link_connect(context.core.ptr, target, params, out))
        link = cls(context, out[0])
        try:
            while True:
                status = lib.tern_link_wait(out[0], SLICE_NS)
                if status != lib.TERN_E_DEADLINE:
                    break
                if lib.tern_link_get_state(out[0]) != lib.TERN_LINK_CONNECTING:
                    status = lib.tern_link_wait(out[0], SLICE_NS)  # how it ended, in between or at its own deadline
                    break
            check(status)
        except BaseException:
            link.close()
            raise
        return link

    @property
    def up(self) -> bool:
        """Does it work?"""
        return self._ptr is not None and lib.tern_link_get_state(self._ptr) == lib.TERN_LINK_UP

    @property
    def transport(self) -> str:
        """What carries it now: 'shm', 'tcp', 'verbs'."""
        return text(lib.tern_link_transport(self._alive()))

    @property
    def peer(self) -> str:
        """The name of the node at its other end."""
        return text(lib.tern_link_peer_name(self._alive()))

    def open(self, service: str, message_max: int = _DEFAULT_MESSAGE) -> Channel:
        """A Channel to a service that the peer listens for."""
        channel = Channel(self._context, message_max)
        out, name = ffi.new('tern_channel **'), c_string(service)
        status = lib.tern_channel_open(self._alive(), name, channel._params(), out)
        if status != lib.TERN_OK:
            channel._forget()
            raise error(status)
        channel._start(out[0], self)
        return channel

    def close(self) -> None:
        """The peer is told; operations in flight end in TERN_E_FLUSHED."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if not self._core.closed:
                lib.tern_link_release(pointer)

    def __del__(self):
        if getattr(self, '_ptr', None) is not None:
            self.close()


class Channel(Handle):
    """An ordered stream of whole messages, each delivered once; and one-sided access to the peer's memory.

    The functions without `start_` wait. A slow receiver holds up its sender, and nobody else.
    """
    _what = 'the channel'

    def __init__(self, context: Context, message_max: int) -> None:
        self._context, self._core, self._ptr = context, context.core, None
        self._max = message_max
        self._buffer = None
        self._notes = queue.SimpleQueue()
        self._number = next(_numbers)
        self._status = lib.TERN_OK
        _channels[self._number] = self

    def _params(self, into=None):
        params = ffi.new('tern_channel_params *') if into is None else into
        params.on_notify, params.on_closed = _on_notify, _on_closed
        params.arg = ffi.cast('void *', self._number)
        params.message_bytes_max = self._max
        return params

    def _start(self, pointer, link=None):
        self._ptr, self._link = pointer, link  # a link that nobody holds would close
        self._context.add_part(self)

    def _forget(self):
        _channels.pop(self._number, None)

    def _cancel(self, op):
        return lib.tern_cancel(self._ptr, op) if self._ptr is not None else lib.TERN_E_NOT_FOUND

    def _run(self, submit, timeout, flags=0):
        return run(self._core, submit, self._cancel, timeout, flags)

    # ---- messages ----

    def send(self, data: Memory, timeout: Optional[float] = None, delivered: bool = False) -> None:
        """Send one message; returns when `data` may be changed, or with delivered=True when the peer has it."""
        channel = self._alive()
        pointer, size, keep = _buffers.view(data, False, 'send')
        self._run(lambda op: lib.tern_send(channel, pointer, size, op), timeout,
                  const['TERN_OP_REMOTE'] if delivered else 0)
        del keep

    def start_send(self, data: Memory, timeout: Optional[float] = None, delivered: bool = False) -> Operation:
        """The same as an Operation. `data` must stay as it is until it completes."""
        channel = self._alive()
        pointer, size, keep = _buffers.view(data, False, 'send')
        return Operation(self._core, lambda op: lib.tern_send(channel, pointer, size, op), self._cancel, (keep, data),
                         timeout=timeout, flags=const['TERN_OP_REMOTE'] if delivered else 0)

    def receive(self, timeout: Optional[float] = None) -> bytes:
        """The next message as bytes."""
        if self._buffer is None:
            self._buffer = ffi.new('char[]', self._max)
        size = self.receive_into(ffi.buffer(self._buffer, self._max), timeout)
        return ffi.buffer(self._buffer, size)[:]

    def receive_into(self, buffer: Memory, timeout: Optional[float] = None) -> int:
        """The next message into `buffer`; its length. TERN_E_TRUNCATED if it is longer."""
        channel = self._alive()
        pointer, size, keep = _buffers.view(buffer, True, 'receive')
        length = self._run(lambda op: lib.tern_recv(channel, pointer, size, op), timeout)
        del keep
        return length

    def start_receive_into(self, buffer: Memory, timeout: Optional[float] = None) -> Operation:
        """The same as an Operation; its result is the length."""
        channel = self._alive()
        pointer, size, keep = _buffers.view(buffer, True, 'receive')
        return Operation(self._core, lambda op: lib.tern_recv(channel, pointer, size, op), self._cancel,
                         (keep, buffer), timeout=timeout)

    # ---- one-sided ----

    def put(self, source: Memory, key: Key, offset: int = 0, notify: Optional[int] = None,
            timeout: Optional[float] = None) -> None:
        """Write `source` into the peer's memory. notify: a number (24 bits) that the peer gets with it."""
        self._run(self._put(source, key, offset, notify), timeout)

    def start_put(self, source: Memory, key: Key, offset: int = 0, notify: Optional[int] = None,
                  timeout: Optional[float] = None) -> Operation:
        """The same as an Operation."""
        submit = self._put(source, key, offset, notify)
        return Operation(self._core, submit, self._cancel, (submit, source, key), timeout=timeout)

    def _put(self, source, key, offset, notify):
        channel = self._alive()
        pointer, size, keep = _buffers.view(source, False, 'put')
        raw = _key(key)
        if notify is None:
            return lambda op, keep=keep: lib.tern_put(channel, pointer, size, raw, offset, op)
        if not 0 <= notify < 1 << const['TERN_NOTIFY_BITS']:
            raise InvalidError(lib.TERN_E_INVALID, f'notify is a number below 2^24, not {notify}')
        return lambda op, keep=keep: lib.tern_put_notify(channel, pointer, size, raw, offset, notify, op)

    def get(self, target: Memory, key: Key, offset: int = 0, timeout: Optional[float] = None) -> None:
        """Read as many bytes of the peer's memory as `target` has."""
        self._run(self._get(target, key, offset), timeout)

    def start_get(self, target: Memory, key: Key, offset: int = 0, timeout: Optional[float] = None) -> Operation:
        """The same as an Operation."""
        submit = self._get(target, key, offset)
        return Operation(self._core, submit, self._cancel, (submit, target, key), timeout=timeout)

    def _get(self, target, key, offset):
        channel = self._alive()
        pointer, size, keep = _buffers.view(target, True, 'get')
        raw = _key(key)
        return lambda op, keep=keep: lib.tern_get(channel, pointer, size, raw, offset, op)

    def notified(self, timeout: Optional[float] = None) -> int:
        """The next notification of the peer's puts: (number, bytes put). Its data is visible."""
        self._alive()
        left = None if timeout is None else timeout
        while True:
            try:
                note = self._notes.get(timeout=0.05 if left is None else max(0.0, min(0.05, left)))
            except queue.Empty:
                if left is not None:
                    left -= 0.05
                    if left <= 0:
                        raise error(lib.TERN_E_DEADLINE, 'no notification came in time') from None
                continue
            if note is None:
                self._notes.put(None)
                raise raise_class(self._status)(self._status, 'the channel ended')
            return note

    @property
    def closed(self) -> bool:
        """Did the peer or its link end it?"""
        return self._ptr is None or self._status != lib.TERN_OK

    def close(self) -> None:
        """The peer is told."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if not self._core.closed:
                lib.tern_channel_close(pointer)
        self._forget()


def _key(key):
    return key.pointer if isinstance(key, Key) else Key(key).pointer


class Listener:
    """Channels that peers open to a service of this node: accept() them, or have on_open(channel) called for each.

    on_open runs in the thread that drives the context and must not wait. What it raises refuses the channel.
    """

    def __init__(self, context: Context, service: str, on_open: Optional[Callable[[Channel], None]] = None,
                 message_max: int = _DEFAULT_MESSAGE) -> None:
        self._context, self._core = context, context.core
        self._on_open, self._max = on_open, message_max
        self._queue = queue.SimpleQueue()
        self._number = next(_numbers)
        _listeners[self._number] = self
        name = c_string(service)
        status = lib.tern_ctx_listen(self._core.ptr, name, _on_open, ffi.cast('void *', self._number))
        if status != lib.TERN_OK:
            del _listeners[self._number]
            raise error(status)
        context.add_part(self)
        context.listeners = getattr(context, 'listeners', []) + [self]  # as long as the context

    def accept(self, timeout: Optional[float] = None) -> Channel:
        """The next channel; TimeoutError."""
        left = timeout
        while True:
            try:
                return self._queue.get(timeout=0.05 if left is None else max(0.0, min(0.05, left)))
            except queue.Empty:
                self._context.core  # pylint: disable=pointless-statement
                if left is not None:
                    left -= 0.05
                    if left <= 0:
                        raise error(lib.TERN_E_DEADLINE, 'no channel was opened in time') from None

    def close(self) -> None:
        """A service is offered as long as its context; this forgets who accepts."""
        _listeners.pop(self._number, None)

    def _opened(self, pointer, params):
        channel = Channel(self._context, self._max)
        channel._params(params)
        channel._start(pointer)
        try:
            if self._on_open:
                self._on_open(channel)
            else:
                self._queue.put(channel)
        except BaseException:
            channel._ptr = None  # refused: it is not ours to close
            channel._forget()
            raise


@ffi.callback('tern_status(tern_channel *, tern_channel_params *, void *)', error=lib.TERN_E_REMOTE)
def _on_open(pointer, params, arg):
    listener = _listeners.get(int(ffi.cast('uintptr_t', arg)))
    if listener is None:
        return lib.TERN_E_NOT_FOUND
    with callback_scope():
        listener._opened(pointer, params)  # pylint: disable=protected-access
    return lib.TERN_OK


@ffi.callback('tern_notify_fn')
def _on_notify(_channel, value, size, arg):
    channel = _channels.get(int(ffi.cast('uintptr_t', arg)))
    if channel is not None:
        channel._notes.put((value, size))  # pylint: disable=protected-access


@ffi.callback('tern_channel_fn')
def _on_closed(_channel, status, arg):
    channel = _channels.get(int(ffi.cast('uintptr_t', arg)))
    if channel is not None:
        channel._status = status  # pylint: disable=protected-access
        channel._notes.put(None)
