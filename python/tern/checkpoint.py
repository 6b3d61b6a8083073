# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: which there are, what is in them, whether they are whole. Needs no context and no server.

The files are in the safetensors format: the package `safetensors` reads them too.
"""
from __future__ import annotations

import os
from typing import Any, Callable, Optional

from ._lib import const, ffi, lib, c_string
from ._types import Path
from .errors import check, closed, error
from .table import schema_of


def checkpoints(folder: Path) -> Any:
    """Sequence numbers of the checkpoints below a folder, lowest first."""
    out = []

    @ffi.callback('int(uint64_t, void *)')
    def one(sequence, _arg):
        out.append(sequence)
        return 0
    path = c_string(os.fspath(folder))
    check(lib.tern_checkpoint_list(path, one, ffi.NULL))
    return out


class Checkpoint:
    """One checkpoint; sequence None: the last one."""

    def __init__(self, folder: Path, sequence: Optional[int] = None) -> None:
        path, out = c_string(os.fspath(folder)), ffi.new('tern_checkpoint **')
        check(lib.tern_checkpoint_open(path, const['TERN_CHECKPOINT_LAST'] if sequence is None else sequence, out))
        self._ptr = out[0]

    def _alive(self):
        if self._ptr is None:
            raise closed('the checkpoint')
        return self._ptr

    @property
    def info(self) -> Any:
        """{'sequence':, 'base': None or a number, 'bytes':, 'files':, 'tables':}"""
        info = ffi.new('tern_checkpoint_info *')
        lib.tern_checkpoint_get(self._alive(), info)
        out = {field: getattr(info, field) for field, _ in ffi.typeof('tern_checkpoint_info').fields}
        if out['base'] == const['TERN_CHECKPOINT_LAST']:
            out['base'] = None
        return out

    def tables(self) -> Any:
        """[(schema, rows, bytes)]"""
        out, info = [], ffi.new('tern_checkpoint_table_info *')
        while True:
            status = lib.tern_checkpoint_table(self._alive(), len(out), info)
            if status == lib.TERN_E_NOT_FOUND:
                return out
            check(status)
            out.append((schema_of(info.schema), int(info.rows), int(info.bytes)))

    def verify(self, progress: Optional[Callable[[int, int], Any]] = None) -> None:
        """Read all of it and compare checksums; progress(bytes, total) may return True to end it."""
        failure = []

        @ffi.callback('int(uint64_t, uint64_t, void *)', error=1)
        def step(done, total, _arg):
            try:
                return int(bool(progress(done, total))) if progress else 0
            except BaseException as raised:  # pylint: disable=broad-except
                failure.append(raised)
                return 1
        status = lib.tern_checkpoint_verify(self._alive(), step, ffi.NULL)
        if failure:
            raise failure[0]
        if status != lib.TERN_OK:
            raise error(status)

    def close(self) -> None:
        """Idempotent."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            lib.tern_checkpoint_close(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, '_ptr', None) is not None:
            self.close()
