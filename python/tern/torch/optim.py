# SPDX-License-Identifier: Apache-2.0
"""An optimiser whose parameters live in parameter servers: workers push gradients, servers apply them, workers pull.

    tables = ctx.tables(['10.0.0.1:7000'])
    optimizer = tern.torch.ServerOptimizer(model.named_parameters(), tables, f'worker {rank}', workers=4,
                                           rule=tern.Optimizer('adam', lr=1e-3), staleness=2)
    for batch in data:
        optimizer.zero_grad()
        loss(model(batch)).backward()
        optimizer.step()
    optimizer.close()

Workers need no rank and no process group, may come and go, and wait for nobody but as `staleness` says:

    None   asynchronous: a gradient is applied when it comes
    s      stale synchronous: a worker is at most s steps ahead of the slowest (Ho et al., 2013)
    0      bulk synchronous: gradients of a step are summed by the servers and applied once when all have ended it, so that
           it is what one process with the workers' mean gradient does. Not with servers that have backups

Each parameter is a dense table `NAME.PARAMETER`, in rows of 256 elements; its values come from the first worker. Parameters are
moved into registered memory, so that pulls land in them without a copy.
"""
from __future__ import annotations

import random
import time
from typing import Any, Callable, Optional, TYPE_CHECKING

import torch

from . import empty
from .._lib import lib
from ..errors import DeadlineError, InvalidError, NotFoundError, Status, TernError
from ..table import Init, Optimizer, Schema

if TYPE_CHECKING:
    from ..table import Tables

__all__ = ['ServerOptimizer']
ROW = 256


class _Remote:
    """A parameter and its table."""

    def __init__(self, tables, name, parameter, rule):
        if parameter.dtype != torch.float32:
            raise InvalidError(lib.TERN_E_INVALID, f'{name} is {parameter.dtype}: parameters in servers are float32')
        count = max(parameter.numel(), 1)
        self.dim = min(ROW, count)
        self.rows = -(-count // self.dim)
        self.parameter = parameter
        self.schema = Schema(name, dim=self.dim, kind='dense', rows=self.rows, optimizer=rule)
        self.keys = torch.arange(self.rows)
        context = tables.context
        self.values = empty(context, (self.rows, self.dim))
        self.gradient = empty(context, (self.rows, self.dim))
        self.gradient.zero_()
        self.values.zero_()
        flat = self.values.view(-1)[:parameter.numel()]
        flat.copy_(parameter.detach().reshape(-1))
        parameter.data = flat.view(parameter.shape)
        self.table = None

    def take_gradient(self, scale):
        """The gradient, scaled, into memory that servers reach; False if there is none."""
        if self.parameter.grad is None:
            return False
        if self.parameter.grad.is_sparse:
            raise InvalidError(lib.TERN_E_INVALID, f'{self.schema.name} has sparse gradients: '
                               'use tern.torch.Embedding, whose rows live in a sparse table')
        torch.mul(self.parameter.grad.reshape(-1), scale, out=self.gradient.view(-1)[:self.parameter.numel()])
        return True


class ServerOptimizer(torch.optim.Optimizer):
    """See the module. params: a model's named_parameters().  member: a name of this worker, unique in the job.  workers: how
    many there are; gradients count 1/workers each (as a mean does).  rule: the servers' optimiser.  name: of the job.  timeout: of a
    pull or push; for how long others are waited for the tables' own timeout says."""

    def __init__(self, params: Any, tables: Tables, member: str, workers: int = 1, rule: Optional[Optimizer] = None,
                 staleness: Optional[int] = None, name: str = 'model', timeout: Optional[float] = None) -> None:
        named = list(params)
        if not named or not all(isinstance(row, tuple) for row in named):
            raise InvalidError(lib.TERN_E_INVALID, 'params are the named_parameters() of a model: tables are named after them')
        super().__init__([parameter for _, parameter in named], {})
        self.timeout, self.scale, self.steps = timeout, 1.0 / workers, 0
        self._rule = rule or Optimizer('sgd', lr=0.01)
        self._remotes = [_Remote(tables, f'{name}.{label}', parameter, self._rule)
                         for label, parameter in named if parameter.requires_grad]
        self._tables = tables
        self._claim_values(name)
        self._group = tables.join(name, member, staleness, summed=staleness == 0)
        self._summed = staleness == 0
        self.steps = self._group.first
        try:
            self._group.begin(self.steps, timeout)
            self.pull()
        except BaseException:
            self._group.leave()
            raise

    def _claim_values(self, name):
        """The first worker's values are everybody's. First is whose seed the table `NAME.first` has; `NAME.ready` says that
        its values are there."""
        own = Schema(f'{name}.first', dim=1, kind='dense', rows=1, init=Init('zeros', 0.0, random.getrandbits(62)))
        try:
            self._tables.create(own)
            first = True
        except TernError as failure:
            if failure.status != Status.E_EXISTS:
                raise
            first = False
        for remote in self._remotes:
            remote.table = self._tables.create(remote.schema)
            if first:
                remote.table.push(remote.keys, remote.values, mode='assign', timeout=self.timeout)
        ready = Schema(f'{name}.ready', dim=1, kind='dense', rows=1)
        if first:
            self._tables.create(ready)
        else:
            self._await(ready)

    def _await(self, ready):
        end = time.monotonic() + (self.timeout or 60)
        while True:
            try:
                self._tables.describe(ready.name)
                return
            except NotFoundError:
                if time.monotonic() > end:
                    raise DeadlineError(Status.E_DEADLINE, 'the first worker has not brought the values of the parameters: it '
                                        f'died, or is slow; drop table {ready.name[:-6]}.first to begin anew') from None
            time.sleep(0.01)

    def pull(self) -> None:
        """The servers' values into the parameters."""
        for pull in [remote.table.start_pull(remote.keys, remote.values, timeout=self.timeout) for remote in self._remotes]:
            pull.wait()

    def _push(self, remotes):
        if self._summed:
            for remote in remotes:
                self._group.push(remote.table, remote.keys, remote.gradient, step=self.steps, timeout=self.timeout)
            return
        pushes = [remote.table.start_push(remote.keys, remote.gradient, step=self.steps, timeout=self.timeout)
                  for remote in remotes]
        for push in pushes:
            push.wait()

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Push gradients, wait for others as far as `staleness` says, pull. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._push([remote for remote in self._remotes if remote.take_gradient(self.scale)])
        self._group.end(self.steps)
        self.steps += 1
        self._group.begin(self.steps, self.timeout)
        self.pull()
        return loss

    def close(self) -> None:
        """Nobody waits for this worker any more. The values stay in the servers. Idempotent."""
        self._group.leave()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
