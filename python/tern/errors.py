# SPDX-License-Identifier: Apache-2.0
"""Status codes and exceptions.

Every failure of the library is a `TernError`. Its class says what to give up (the operation, the path, the peer, a
device of this host, or one's own mistake), and where Python has an exception of that meaning it is one of those too:
a passed deadline is a `TimeoutError`, an unknown table a `LookupError`, a bad argument a `ValueError`.
"""
from __future__ import annotations

import enum

from ._lib import lib, text

Status = enum.IntEnum('Status', {name[len('TERN_'):]: getattr(lib, name) for name in dir(lib)
                                 if name == 'TERN_OK' or name in ('TERN_AGAIN', 'TERN_BUSY')
                                 or name.startswith('TERN_E_')})
Status.__doc__ = 'Status codes of the library, without their prefix: Status.E_BOUNDS.'


class TernError(Exception):
    """A call or an operation failed. `status` is the code, `detail` names cause, limit and remedy."""

    def __init__(self, status: int, detail: str = '') -> None:
        try:
            self.status = Status(status)
        except ValueError:
            self.status = Status.E_INTERNAL
        self.detail = detail
        summary = text(lib.tern_status_text(int(self.status)))
        super().__init__(f'{detail or summary} [{text(lib.tern_status_name(int(self.status)))}]')

    def __reduce__(self):
        return raise_class(self.status), (int(self.status), self.detail)


class OperationError(TernError):
    """This operation failed; everything else goes on."""


class PathError(TernError):
    """The way to the peer failed."""


class PeerError(TernError):
    """The peer is lost."""


class DeviceError(TernError):
    """A device or a resource of this host failed or is used up."""


class UsageError(TernError):
    """A mistake of the program: never worth a retry."""


class DeadlineError(OperationError, TimeoutError):
    """The deadline passed."""


class CanceledError(OperationError):
    """Cancelled by the program."""


class NotFoundError(OperationError, LookupError):
    """No such table, service, checkpoint, key."""

    __str__ = Exception.__str__


class ShapeError(OperationError, ValueError):
    """Shapes or types do not match."""


class OutOfMemoryError(DeviceError, MemoryError):
    """Memory or its budget is used up."""


class InvalidError(UsageError, ValueError):
    """An argument that can't be."""


class ClosedError(UsageError):
    """The object was closed, or belongs to the process that this one was forked from."""


_RADIUS = {lib.TERN_RADIUS_OP: OperationError, lib.TERN_RADIUS_PATH: PathError, lib.TERN_RADIUS_PEER: PeerError,
           lib.TERN_RADIUS_DEVICE: DeviceError}
_SPECIAL = {lib.TERN_E_DEADLINE: DeadlineError, lib.TERN_E_CANCELED: CanceledError,
            lib.TERN_E_NOT_FOUND: NotFoundError, lib.TERN_E_SHAPE: ShapeError, lib.TERN_E_NOMEM: OutOfMemoryError,
            lib.TERN_E_BUDGET: OutOfMemoryError, lib.TERN_E_INVALID: InvalidError, lib.TERN_E_OPTION: InvalidError,
            lib.TERN_E_FORKED: ClosedError}


def raise_class(status):
    """The class of exceptions for a status."""
    return _SPECIAL.get(int(status)) or _RADIUS.get(lib.tern_status_radius(int(status)), UsageError)


def error(status, detail=None):
    """An exception for a status; detail None: what the library says in this thread."""
    return raise_class(status)(status, text(lib.tern_detail()) if detail is None else detail)


def check(status):
    """Raise unless the status is TERN_OK."""
    if status != lib.TERN_OK:
        raise error(status)


def closed(what):
    """An exception for the use of something closed."""
    return ClosedError(lib.TERN_E_STATE, f'{what} is closed')


__all__ = ['Status', 'TernError', 'OperationError', 'PathError', 'PeerError', 'DeviceError', 'UsageError',
           'DeadlineError', 'CanceledError', 'NotFoundError', 'ShapeError', 'OutOfMemoryError', 'InvalidError',
           'ClosedError']

