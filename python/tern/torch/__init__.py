# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch whose rows live in tables of parameter servers.

    bag = tern.torch.EmbeddingBag(tables.open('users'), mode='sum')
    loss = model(bag(ids, offsets)).sum()
    loss.backward()            # pushes the rows' gradients; the servers' optimiser applies them

A table may be larger than the memory of any worker: a batch pulls the rows that it names and nothing else. They are
no parameters of the module, so the program's optimiser does not see them, and DDP does not reduce them.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from typing import Any, Optional, TYPE_CHECKING

from .. import _buffers
from .._lib import lib
from .._types import Shape
from ..errors import InvalidError

if TYPE_CHECKING:
    from ..context import Context
    from ..table import Table

__all__ = ['Embedding', 'EmbeddingBag', 'ServerOptimizer']


def empty(context: Context, shape: Shape, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in registered memory of a context."""
    tensor = torch.from_numpy(context.empty(tuple(shape), _buffers.NAMES[_buffers.dtype(dtype)]))
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor


class _Rows(torch.nn.Module):
    """Pulls the rows of a batch, once each, and pushes their gradients."""

    def __init__(self, table: Table, lr_scale: float = 1.0, overlap: bool = False, timeout: Optional[float] = None) -> None:
        super().__init__()
        if table.schema.dtype not in ('f32', 'bf16', 'f16'):
            raise InvalidError(lib.TERN_E_INVALID, f'rows of dtype {table.schema.dtype} have no gradients')
        self.table, self.lr_scale, self.overlap, self.timeout = table, lr_scale, overlap, timeout
        self.step = 0
        self._ahead = {}
        self._pushes = []

    @property
    def embedding_dim(self) -> int:
        """Columns of the table."""
        return self.table.schema.dim

    def prefetch(self, input: torch.Tensor) -> None:  # pylint: disable=redefined-builtin
        """Start pulling the rows of a later batch. They are as of now: pushes that come in between are not in them."""
        keys, inverse = torch.unique(input.reshape(-1), return_inverse=True)
        self._ahead[id(input)] = (input, keys, inverse, self.table.start_pull(keys, self._room(len(keys)),
                                                                              unknown=self._unknown(), step=self.step,
                                                                              timeout=self.timeout))

    def flush(self) -> None:
        """Wait until pushes that overlap with other work are applied; raises what went wrong with them."""
        pushes, self._pushes = self._pushes, []
        for push in pushes:
            push.wait()

    def _unknown(self):
        return 'create' if self.training else 'default'

    def _room(self, count):
        return empty(self.table.context, (count, self.table.schema.dim))

    def _pull(self, input):  # pylint: disable=redefined-builtin
        """(rows, index into them) of a batch of keys."""
        ahead = self._ahead.pop(id(input), None)
        self.flush()
        if ahead:
            _, keys, inverse, operation = ahead
            rows = operation.wait()
        else:
            keys, inverse = torch.unique(input.reshape(-1), return_inverse=True)
            rows = self.table.pull(keys, self._room(len(keys)), unknown=self._unknown(), step=self.step,
                                   timeout=self.timeout)
        if self.training and torch.is_grad_enabled():
            rows.requires_grad_()
            step = self.step
            rows.register_hook(lambda gradient: self._push(keys, gradient, step))
        return rows, inverse

    def _push(self, keys, gradient, step):
        staged = empty(self.table.context, gradient.shape)
        staged.copy_(gradient)
        if self.overlap:
            self._pushes.append(self.table.start_push(keys, staged, lr_scale=self.lr_scale, step=step,
                                                      timeout=self.timeout))
        else:
            self.table.push(keys, staged, lr_scale=self.lr_scale, step=step, timeout=self.timeout)


class Embedding(_Rows):
    """As torch.nn.Embedding: ids of any shape in, a row for each out. overlap=True lets backward() return before
    gradients are applied; the next forward(), or flush(), waits for them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # pylint: disable=redefined-builtin
        """Rows of the ids."""
        rows, inverse = self._pull(input)
        return F.embedding(inverse.reshape(input.shape), rows)


class EmbeddingBag(_Rows):
    """As torch.nn.EmbeddingBag: sums, means or maxima over bags of ids. input: bags x length, or one dimension with
    `offsets` of the bags in it; per_sample_weights for mode 'sum'."""

    def __init__(self, table: Table, mode: str = 'mean', include_last_offset: bool = False, **options: Any) -> None:
        super().__init__(table, **options)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, input: torch.Tensor, offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:  # pylint: disable=redefined-builtin
        """One row for each bag."""
        rows, inverse = self._pull(input)
        return F.embedding_bag(inverse.reshape(input.shape), rows, offsets, mode=self.mode,
                               per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset)


from .optim import ServerOptimizer  # noqa: E402  pylint: disable=wrong-import-position
