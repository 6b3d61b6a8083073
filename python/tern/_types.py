# SPDX-License-Identifier: Apache-2.0
"""Names for type hints: what the package takes and gives."""
import os
from typing import Any, Sequence, Union

# numpy arrays, torch tensors, bytes, memoryviews and whatever else has the buffer protocol or DLPack. No type of its own:
# neither numpy nor torch is needed to import this, and `_buffers.view` says what is wrong with an object.
Memory = Any
# 64-bit integers: a list, a range, a numpy array, a torch tensor of int64
Keys = Any
Dtype = Any  # 'f32', numpy.float32, torch.bfloat16, None where there is a default
Shape = Union[int, Sequence[int]]
Addresses = Union[str, Sequence[str]]  # 'host:port', several with commas or as a list
Path = Union[str, 'os.PathLike[str]']
