# SPDX-License-Identifier: Apache-2.0
"""What callers pass for memory: numpy arrays, torch tensors, anything with the buffer protocol or DLPack.

`view()` is the one door: it gives a pointer, a length and what has to stay alive meanwhile, or says in words why the
object can't be used as it is. Nothing is copied here.
"""
from ._lib import ffi, lib
from .errors import InvalidError, ShapeError

DTYPES = {'f32': lib.TERN_F32, 'f64': lib.TERN_F64, 'f16': lib.TERN_F16, 'bf16': lib.TERN_BF16, 'i8': lib.TERN_I8,
          'u8': lib.TERN_U8, 'i32': lib.TERN_I32, 'i64': lib.TERN_I64, 'u64': lib.TERN_U64}
NAMES = {number: name for name, number in DTYPES.items()}
BYTES = {number: int(lib.tern_dtype_bytes(number)) for number in NAMES}
_ALIASES = {'float32': 'f32', 'float64': 'f64', 'float16': 'f16', 'bfloat16': 'bf16', 'int8': 'i8', 'uint8': 'u8',
            'int32': 'i32', 'int64': 'i64', 'uint64': 'u64', 'float': 'f32', 'double': 'f64', 'half': 'f16'}
# numpy has no bfloat16: its bits travel as uint16.
NUMPY = {'f32': 'float32', 'f64': 'float64', 'f16': 'float16', 'bf16': 'uint16', 'i8': 'int8', 'u8': 'uint8',
         'i32': 'int32', 'i64': 'int64', 'u64': 'uint64'}


def dtype(value):
    """A dtype by any of its names (also numpy's and torch's objects) as the library's number."""
    number = _CACHE.get(value)
    if number is None:
        name = str(getattr(value, 'name', None) or getattr(value, '__name__', None) or value)
        name = name.rsplit('.', 1)[-1]
        number = DTYPES.get(_ALIASES.get(name, name))
        if number is None:
            raise InvalidError(lib.TERN_E_INVALID, f'no dtype {value!r}: there are {", ".join(DTYPES)}')
        _CACHE[value] = number
    return number


_CACHE = dict(DTYPES)


def is_torch(value):
    """Is it a torch tensor? Without importing torch."""
    return type(value).__module__.split('.', 1)[0] == 'torch' and hasattr(value, 'data_ptr')


def view(value, writable, what):
    """(char pointer, bytes, what to keep alive) of contiguous memory."""
    if is_torch(value):
        if not value.is_contiguous():
            raise ShapeError(lib.TERN_E_SHAPE, f'{what}: the tensor is not contiguous; use .contiguous()')
        if value.requires_grad and writable:
            raise InvalidError(lib.TERN_E_INVALID, f'{what}: the tensor requires grad and would be written to behind '
                               'autograd\'s back; use .detach()')
        return ffi.cast('char *', value.data_ptr()), value.numel() * value.element_size(), value
    try:
        raw = ffi.from_buffer(value, require_writable=writable)
    except TypeError:
        if hasattr(value, '__dlpack__'):
            return _dlpack(value, what)
        raise TypeError(f'{what}: expected an array, a tensor or a buffer, not {type(value).__name__}') from None
    except (BufferError, ValueError) as error:
        reason = str(error)
        hint = 'it is read-only' if 'read' in reason and 'only' in reason else 'it is not contiguous: copy it first'
        raise ShapeError(lib.TERN_E_SHAPE, f'{what}: {hint} ({reason})') from None
    return raw, len(raw), raw


def _dlpack(value, what):
    """The same of what other libraries export (JAX, CuPy's pinned arrays, ...). DLPack knows no read-only memory."""
    import numpy  # pylint: disable=import-outside-toplevel
    try:
        array = numpy.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InvalidError(lib.TERN_E_INVALID, f'{what}: the array can\'t be seen from the CPU by DLPack ({error})') from None
    if not array.flags.c_contiguous:
        raise ShapeError(lib.TERN_E_SHAPE, f'{what}: it is not contiguous: copy it first')
    raw = ffi.from_buffer(array)
    return raw, len(raw), raw


def element(value, what):
    """The dtype number of an array's or tensor's elements."""
    kind = getattr(value, 'dtype', None)
    if kind is None:
        raise TypeError(f'{what}: expected an array or a tensor, not {type(value).__name__}')
    return dtype(kind)


def shape(value):
    """Shape of an array or tensor as a tuple."""
    return tuple(getattr(value, 'shape', ()))
