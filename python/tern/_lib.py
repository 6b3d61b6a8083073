# SPDX-License-Identifier: Apache-2.0
"""The C library as Python sees it: loading it, checking that it is the right one, strings and times.

Everything above speaks to C through `ffi` and `lib` of this module; nothing else loads anything. Declarations come
from the headers (`_headers.py` is made from them when tern is built).
"""
import os

import cffi

from . import _headers

ffi = cffi.FFI()
ffi.cdef(_headers.DECLARATIONS)
const = _headers.CONSTANTS

NAME = 'libtern.so.1'
NEVER = 0  # in C: no deadline


def sibling(name):
    """Where another library of this libtern is: beside the one that LIBTERN_PATH names."""
    path = os.environ.get('LIBTERN_PATH')
    return os.path.join(os.path.dirname(path), name) if path else name


def _load():
    path = os.environ.get('LIBTERN_PATH') or NAME
    try:
        library = ffi.dlopen(path)
    except OSError as error:
        raise ImportError(f'{path} can\'t be loaded ({error}): install the package libtern1, or name the library in '
                          'the environment variable LIBTERN_PATH') from None
    version = ffi.string(library.tern_version()).decode()
    wanted = const['TERN_VERSION_STRING']
    if version.split('.')[:2] != wanted.split('.')[:2]:
        raise ImportError(f'this package is of tern {wanted}, but {path} is of tern {version}: two versions are '
                          'installed; install one of both, or name the right library in LIBTERN_PATH')
    return library


lib = _load()
__version__ = const['TERN_VERSION_STRING']


def text(pointer):
    """A C string as str; '' for NULL."""
    return ffi.string(pointer).decode('utf-8', 'replace') if pointer else ''


def c_string(value):
    """bytes with a NUL, to be kept alive by the caller; NULL for None."""
    if value is None:
        return ffi.NULL
    if not isinstance(value, str):
        raise TypeError(f'expected str, not {type(value).__name__}')
    if '\0' in value:
        raise ValueError('a string with a NUL in it')
    return ffi.new('char[]', value.encode())


def nanoseconds(seconds):
    """A time-out in seconds (None: the default, which C spells 0) as nanoseconds."""
    if seconds is None:
        return 0
    if seconds != seconds or seconds < 0:
        raise ValueError(f'a time-out is a number of seconds from 0 on, not {seconds!r}')
    return max(1, min(int(seconds * 1e9), 2**63))
