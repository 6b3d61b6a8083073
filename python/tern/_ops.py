# SPDX-License-Identifier: Apache-2.0
"""Operations in flight.

    run(core, submit)     submit, wait in this thread, raise or return the length: the short way, no callback
    Operation             a handle to one in flight: wait(), done(), cancel(), await

An operation's buffers belong to the library until it completes, so an Operation stays in `_flight` until then,
together with all that it keeps alive, whether or not the program still has the handle. Waiting is done in slices, so
that Python's signal handlers (Ctrl-C) run; an interrupted operation is cancelled and seen to its end first.
"""
from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any, Callable, Optional

from ._lib import ffi, lib, nanoseconds, text
from .errors import closed, error

SLICE_NS = 50_000_000
_AGAIN_NS = 1_000_000

_flight = {}
_numbers = itertools.count(1)
_local = threading.local()


def in_callback():
    """Does this thread run a callback of the library now? Then nothing may wait."""
    return getattr(_local, 'depth', 0) > 0


class callback_scope:
    """Marks the thread as one that runs a callback."""

    def __enter__(self):
        _local.depth = getattr(_local, 'depth', 0) + 1

    def __exit__(self, *_):
        _local.depth -= 1
        return False


def _may_wait():
    if in_callback():
        raise error(lib.TERN_E_STATE, 'a callback must not wait: start the operation, and let its completion come')


def _submit(core, submit, op, deadline):
    """Submit, again while the library says so."""
    while True:
        seen = lib.tern_ctx_events(core.ptr)
        status = submit(op)
        if status != lib.TERN_AGAIN:
            if status != lib.TERN_OK:
                raise error(status)
            return
        _may_wait()
        if deadline is not None and time.monotonic() >= deadline:
            raise error(lib.TERN_E_DEADLINE, 'the deadline passed before the operation was accepted')
        lib.tern_ctx_wait_past(core.ptr, seen, _AGAIN_NS)
        if core.closed:
            raise closed('the context')


def _spare():
    spare = getattr(_local, 'spare', None)
    if spare is None:
        spare = _local.spare = []
    return spare.pop() if spare else ffi.new('tern_op *')


def run(core, submit, cancel, timeout=None, flags=0):
    """Run one operation to its end in this thread. `submit(op)`, `cancel(op)`: calls of the library. Gives the length."""
    if getattr(_local, 'depth', 0):
        _may_wait()
    op = _spare()
    op.timeout_ns = nanoseconds(timeout)
    op.flags = flags
    _submit(core, submit, op, None if timeout is None else time.monotonic() + timeout)
    try:
        while True:
            status = lib.tern_op_wait(core.ptr, op, SLICE_NS)
            if status != lib.TERN_E_DEADLINE:
                break
            status = lib.tern_op_test(op)  # the waiting ended, or the operation: at its own deadline, or in between
            if status != lib.TERN_AGAIN:
                break
    except BaseException:
        cancel(op)
        while lib.tern_op_test(op) == lib.TERN_AGAIN:  # the buffers are not ours before that
            lib.tern_op_wait(core.ptr, op, SLICE_NS)
        raise
    length = op.length
    _local.spare.append(op)
    if status != lib.TERN_OK:
        raise error(status)
    return length


class Operation:
    """One operation in flight. Await it, or wait(); its result is what the call's description says."""

    def __init__(self, core: Any, submit: Callable[[Any], int], cancel: Callable[[Any], int], keep: Any = (),
                 result: Optional[Callable[[int], Any]] = None, timeout: Optional[float] = None, flags: int = 0,
                 after: Optional[Callable[[], Any]] = None) -> None:
        self._core, self._cancel, self._keep, self._make = core, cancel, keep, result
        self._after = after  # runs once it is over, however
        self._lock = threading.Lock()
        self._lock.acquire()  # pylint: disable=consider-using-with
        self._done, self._error, self._value = False, None, None
        self._waiters = []
        self._number = next(_numbers)
        self._op = ffi.new('tern_op *')
        lib.tern_op_init(self._op, _on_done, ffi.cast('void *', self._number))
        self._op.timeout_ns = nanoseconds(timeout)
        self._op.flags = flags
        _flight[self._number] = self
        try:
            _submit(core, submit, self._op, None if timeout is None else time.monotonic() + timeout)
        except BaseException:
            _flight.pop(self._number, None)
            if after:
                after()
            raise

    def _finish(self):
        op = self._op
        if op.status != lib.TERN_OK:
            self._error = error(op.status, text(lib.tern_detail()))
        else:
            try:
                self._value = self._make(op.length) if self._make else op.length
            except Exception as failure:  # pylint: disable=broad-except
                self._error = failure
        if self._after:
            self._after()
        self._keep = self._make = self._after = None
        self._done = True
        waiters, self._waiters = self._waiters, []
        self._lock.release()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(self._tell, future)
            except RuntimeError:
                pass  # that loop is closed: nobody waits there

    def _tell(self, future):
        if not future.done():
            if self._error:
                future.set_exception(self._error)
            else:
                future.set_result(self._value)

    def done(self) -> bool:
        """Has it completed?"""
        return self._done

    def result(self) -> Any:
        """Its result; raises if it failed, or is still in flight."""
        if not self._done:
            raise error(lib.TERN_E_STATE, 'the operation is still in flight: wait() or await it')
        if self._error:
            raise self._error
        return self._value

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait for it, at most so many seconds (then TimeoutError, and it goes on), and give its result."""
        if not self._done:
            _may_wait()
        end = None if timeout is None else time.monotonic() + timeout
        while not self._done:
            left = SLICE_NS if end is None else min(SLICE_NS, int((end - time.monotonic()) * 1e9))
            if left <= 0:
                raise TimeoutError('the operation is still in flight')
            if lib.tern_op_wait(self._core.ptr, self._op, left) != lib.TERN_E_DEADLINE:
                self._lock.acquire()  # its callback may still run in another thread
                self._lock.release()
        return self.result()

    def cancel(self) -> bool:
        """Ask for its end; it still completes, soon. False: too late."""
        return not self._done and self._cancel(self._op) == lib.TERN_OK

    def __await__(self):
        if not self._done:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiters.append((loop, future))
            if self._done:  # it completed in between: perhaps nobody looked at the list any more
                self._tell(future)
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


@ffi.callback('void(tern_op *, void *)')
def _on_done(_op, arg):
    operation = _flight.pop(int(ffi.cast('uintptr_t', arg)), None)
    if operation is not None:
        with callback_scope():
            operation._finish()  # pylint: disable=protected-access
