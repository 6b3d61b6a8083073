# SPDX-License-Identifier: Apache-2.0
"""What objects that stand for something of the C library have in common: they are used while they are open, closed once."""
from __future__ import annotations

from .errors import closed


class Handle:
    """`_ptr` is None once it is closed; `_context` is the Context that it was made with."""
    _what = 'the handle'
    _ptr = None

    def _alive(self):
        """The C pointer; raises if this, or its context, is closed or of another process."""
        if self._ptr is None:
            raise closed(self._what)
        self._context.core  # pylint: disable=pointless-statement
        return self._ptr

    def close(self) -> None:
        """Every kind says what this does."""
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
