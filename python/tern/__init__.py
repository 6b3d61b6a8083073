# SPDX-License-Identifier: Apache-2.0
"""tern moves tensors and parameters between the machines of a deep-learning job at the speed of memory and wire.

    import tern
    with tern.Context('worker 0') as ctx:
        tables = ctx.tables(['10.0.0.1:7000'])
        users = tables.create(tern.Schema('users', dim=64, optimizer=tern.Optimizer('adagrad', lr=0.1)))
        rows = users.pull([17, 4711])          # a numpy array in registered memory
        users.push([17, 4711], gradients)

Modules: `context` (memory, links), `channel` (messages, one-sided puts and gets), `rpc`, `table` (the parameter
server), `checkpoint`, `torch` (layers whose rows live in tables; imported on demand). Failures are `TernError`s.
"""
from ._lib import __version__
from ._ops import Operation
from .channel import Channel, Link, Listener
from .checkpoint import Checkpoint, checkpoints
from .coll import Communicator
from .context import Context, Key, options, providers
from .errors import *  # pylint: disable=wildcard-import
from .errors import __all__ as _errors
from .rpc import Caller, Request, Served
from .table import Group, Init, Optimizer, Schema, Server, Table, Tables

__all__ = ['Context', 'Key', 'Link', 'Channel', 'Listener', 'Communicator', 'Caller', 'Request', 'Served', 'Server', 'Tables', 'Table',
           'Schema', 'Optimizer', 'Init', 'Group', 'Checkpoint', 'checkpoints', 'Operation', 'options', 'providers',
           '__version__'] + _errors
