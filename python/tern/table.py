# SPDX-License-Identifier: Apache-2.0
"""The parameter server: tables of rows by key, spread over servers.

    server = ctx.table_server()                        in a process that serves
    tables = ctx.tables(['host:port'])                 in those that train or infer
    users = tables.create(Schema('users', dim=64, optimizer=Optimizer('adagrad', lr=0.1)))
    rows = users.pull(keys)                            a numpy array; or pull(keys, out=array or tensor)
    users.push(keys, gradients)

Rows move without a copy between the servers and arrays of the context (`ctx.empty`, or a torch tensor made of one by
`torch.from_numpy`); other memory works and costs a copy.
"""
from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Optional, Tuple, TYPE_CHECKING

from . import _buffers
from ._handle import Handle
from ._lib import const, ffi, lib, c_string, nanoseconds, text
from ._ops import Operation, run
from ._types import Addresses, Dtype, Keys, Memory, Path
from .context import numpy
from .errors import InvalidError, ShapeError, check, closed

if TYPE_CHECKING:
    from .context import Context

UNKNOWN = {'create': lib.TERN_UNKNOWN_CREATE, 'zero': lib.TERN_UNKNOWN_ZERO, 'default': lib.TERN_UNKNOWN_DEFAULT,
           'error': lib.TERN_UNKNOWN_ERROR}
MODES = {'gradient': lib.TERN_PUSH_GRADIENT, 'assign': lib.TERN_PUSH_ASSIGN, 'add': lib.TERN_PUSH_ADD}
KINDS = {'sparse': lib.TERN_TABLE_SPARSE, 'dense': lib.TERN_TABLE_DENSE}
OPTIMIZERS = {name: getattr(lib, f'TERN_OPT_{name.upper()}')
              for name in ('none', 'sgd', 'momentum', 'adagrad', 'adam', 'adamw', 'ftrl', 'rmsprop')}
STARTS = {name: getattr(lib, f'TERN_ROW_{name.upper()}') for name in ('zeros', 'constant', 'uniform', 'normal')}
NONFINITE = {name: getattr(lib, f'TERN_NONFINITE_{name.upper()}') for name in ('drop', 'clip', 'fail')}
POOLS = {'sum': lib.TERN_POOL_SUM, 'mean': lib.TERN_POOL_MEAN}
SAVES = {name: getattr(lib, f'TERN_PS_SAVE_{name.upper()}') for name in ('alone', 'base', 'delta', 'auto')}
EVICTION = {name: getattr(lib, f'TERN_EVICT_{name.upper()}') for name in ('none', 'lru', 'lfu')}


def _number(table, name, what):
    try:
        return table[name]
    except (KeyError, TypeError):
        raise InvalidError(lib.TERN_E_INVALID, f'no {what} {name!r}: there are {", ".join(table)}') from None


def _name(table, number):
    return next(name for name, value in table.items() if value == number)


class Optimizer:
    """An optimiser's kind and figures: Optimizer('adam', lr=0.001, beta2=0.99). What is not given is the usual value."""

    FIELDS = ('lr', 'momentum', 'beta1', 'beta2', 'rho', 'epsilon', 'weight_decay', 'l1', 'l2', 'lr_power',
              'initial_accumulator')

    def __init__(self, kind: str = 'none', lr: float = 0.01, **figures: float) -> None:
        self.kind = kind
        params = ffi.new('tern_optimizer_params *')
        lib.tern_optimizer_init(params, _number(OPTIMIZERS, kind, 'optimiser'), lr)
        for field, value in figures.items():
            if field not in self.FIELDS:
                raise TypeError(f'an optimiser has no {field!r}: there are {", ".join(self.FIELDS)}')
            setattr(params, field, value)
        self.params = params

    def __getattr__(self, field):
        if field in Optimizer.FIELDS:
            return getattr(self.params, field)
        raise AttributeError(field)

    def __repr__(self):
        return f'Optimizer({self.kind!r}, lr={self.params.lr:g})'

    def __eq__(self, other):
        return isinstance(other, Optimizer) and bytes(ffi.buffer(self.params)) == bytes(ffi.buffer(other.params))


@dataclasses.dataclass
class Init:
    """What a row is when it comes into being: 'zeros', 'constant', 'uniform' in [-value, value), 'normal'."""
    kind: str = 'zeros'
    value: float = 0.0
    seed: int = 0


@dataclasses.dataclass
class Schema:
    """What a table is. Sizes in bytes, `budget` per server; see the C header <tern/ps.h> for the meaning of each."""
    name: str
    dim: int
    kind: str = 'sparse'
    dtype: str = 'f32'
    rows: int = 0
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    init: Init = dataclasses.field(default_factory=Init)
    nonfinite: str = 'drop'
    eviction: str = 'none'
    budget: int = 0
    ttl_steps: int = 0
    admit_after: int = 0
    meta: bool = True
    one_sided: bool = False

    def pointer(self) -> Any:
        """The C schema."""
        raw = self.name.encode()
        if len(raw) >= const['TERN_TABLE_NAME_MAX']:
            raise InvalidError(lib.TERN_E_INVALID, f'a table\'s name has at most 63 bytes: {self.name!r}')
        try:
            out = ffi.new('tern_table_schema *', {
                'name': raw, 'kind': _number(KINDS, self.kind, 'kind of table'), 'dtype': _buffers.dtype(self.dtype),
                'dim': self.dim, 'rows': self.rows,
                'flags': (0 if self.meta else const['TERN_TABLE_NO_META']) |
                         (const['TERN_TABLE_ONE_SIDED'] if self.one_sided else 0),
                'init': {'kind': _number(STARTS, self.init.kind, 'initial value'), 'value': self.init.value,
                         'seed': self.init.seed},
                'nonfinite': _number(NONFINITE, self.nonfinite, 'policy'),
                'eviction': _number(EVICTION, self.eviction, 'eviction'),
                'budget_bytes': self.budget, 'ttl_steps': self.ttl_steps, 'admit_after': self.admit_after})
        except OverflowError as failure:
            raise InvalidError(lib.TERN_E_INVALID, f'table {self.name!r}: {failure}') from None
        out.optimizer = self.optimizer.params[0]
        return out


def schema_of(raw):
    """A Schema from the C one."""
    optimizer = Optimizer.__new__(Optimizer)
    optimizer.kind = _name(OPTIMIZERS, raw.optimizer.kind)
    optimizer.params = ffi.new('tern_optimizer_params *', raw.optimizer)
    return Schema(text(raw.name), raw.dim, _name(KINDS, raw.kind), _buffers.NAMES[raw.dtype or lib.TERN_F32],
                  raw.rows, optimizer, Init(_name(STARTS, raw.init.kind), raw.init.value, raw.init.seed),
                  _name(NONFINITE, raw.nonfinite), _name(EVICTION, raw.eviction), raw.budget_bytes, raw.ttl_steps,
                  raw.admit_after, not raw.flags & const['TERN_TABLE_NO_META'],
                  bool(raw.flags & const['TERN_TABLE_ONE_SIDED']))


def _addresses(servers):
    if isinstance(servers, str):
        servers = servers.split(',')
    strings = [c_string(address) for address in servers]
    table = ffi.new('char *[]', strings)
    return ffi.cast('const char *const *', table), len(strings), (strings, table)


class Server(Handle):
    """A server of tables in this process, until close(). servers: the addresses of all of them in order, index: of
    this one; without them it is alone. Or join: '' (others join this one), 'host:port', 'etcd:http://...'; replicas and
    first count at the one that others join. budget: bytes of all its tables; workers: threads for long batches; tier: a
    folder for rows that budgets have no room for."""

    def __init__(self, context: Context, servers: Optional[Addresses] = None, index: int = 0, map_version: int = 0,
                 budget: int = 0, workers: int = 0, join: Optional[str] = None, replicas: int = 0, first: int = 0,
                 tier: Optional[Path] = None) -> None:
        self._core = context.core
        table, count, keep = _addresses(servers) if servers else (ffi.NULL, 0, None)
        params = ffi.new('tern_ps_server_params *')
        params.servers, params.count, params.index, params.map_version = table, count, index, map_version
        params.budget_bytes, params.workers = budget, workers
        words = c_string(join), c_string(None if tier is None else str(tier))
        params.join, params.tier_dir = words
        params.replicas, params.first = replicas, first
        out = ffi.new('tern_ps_server **')
        check(lib.tern_ps_server_open(self._core.ptr, params, out))
        self._ptr, self._keep, self._context = out[0], keep, context
        context.add_part(self)
        context.table_servers = getattr(context, 'table_servers', []) + [self]  # serves while its context is there

    def follow(self, folder: Path, name: Optional[str] = None, sequence: int = 0, in_place: bool = False) -> None:
        """Serve the checkpoints of a folder, read only, and each that comes; or stay at one of them."""
        if self._ptr is None:
            raise closed('the server')
        words = c_string(os.path.abspath(folder)), c_string(name)
        params = ffi.new('tern_ps_follow_params *')
        params.dir, params.name = words
        params.sequence, params.flags = sequence, const['TERN_PS_FOLLOW_IN_PLACE'] if in_place else 0
        check(lib.tern_ps_server_follow(self._ptr, params))

    def close(self) -> None:
        """Stop serving and free all tables."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if not self._core.closed:
                lib.tern_ps_server_close(pointer)
            # Its context keeps it: with the way back gone the address space goes with the last reference, not when a
            # collector comes by.
            self._context = self._keep = None


class Tables(Handle):
    """A client of all servers of a job. Any thread."""

    def __init__(self, context: Context, servers: Addresses, timeout: Optional[float] = None,
                 transports: Optional[str] = None) -> None:
        self._context, self._core = context, context.core
        table, count, keep = _addresses(servers)
        names = c_string(transports)
        params = ffi.new('tern_ps_params *')
        params.servers, params.count = table, count
        params.timeout_ns, params.transports = nanoseconds(timeout), names
        out = ffi.new('tern_ps **')
        check(lib.tern_ps_open(self._core.ptr, params, out))
        del keep
        self._ptr = out[0]
        context.add_part(self)

    @property
    def context(self) -> Context:
        """The Context it was made with."""
        return self._context

    def alive(self) -> Any:
        """The C client; raises if it is closed."""
        if self._ptr is None:
            raise closed('the client of tables')
        self._context.core  # pylint: disable=pointless-statement
        return self._ptr

    def servers(self) -> Tuple[int, int]:
        """(number of servers, version of the map)"""
        version = ffi.new('uint64_t *')
        return int(lib.tern_ps_servers(self.alive(), version)), int(version[0])

    def create(self, schema: Schema) -> Table:
        """A Table; one of the same schema that is there already is success."""
        out = ffi.new('tern_table **')
        check(lib.tern_table_create(self.alive(), schema.pointer(), out))
        return Table(self, out[0])

    def open(self, name: str, schema: Optional[Schema] = None) -> Table:
        """A Table that is there; a schema that is given must be its."""
        out, raw = ffi.new('tern_table **'), c_string(name)
        check(lib.tern_table_open(self.alive(), raw, schema.pointer() if schema else ffi.NULL, out))
        return Table(self, out[0])

    def drop(self, name: str) -> None:
        """Its rows are gone."""
        raw = c_string(name)
        check(lib.tern_table_drop(self.alive(), raw))

    def describe(self, name: str) -> Schema:
        """The Schema of a table."""
        raw, out = c_string(name), ffi.new('tern_table_schema *')
        check(lib.tern_table_describe(self.alive(), raw, out))
        return schema_of(out)

    def list(self) -> List[Schema]:
        """Schemas of all tables, by name."""
        out = []

        @ffi.callback('void(const tern_table_schema *, void *)')
        def one(schema, _arg):
            out.append(schema_of(schema))
        check(lib.tern_table_list(self.alive(), one, ffi.NULL))
        return out

    def stats(self, name: str) -> Dict[str, Any]:
        """Figures of a table, summed over the servers."""
        raw, out = c_string(name), ffi.new('tern_table_stats *')
        check(lib.tern_table_get_stats(self.alive(), raw, out))
        return {field: getattr(out, field) for field, kind in ffi.typeof('tern_table_stats').fields
                if kind.type.kind == 'primitive'}

    def save(self, folder: Path, sequence: int = 0, keep: int = 0, bytes_per_second: int = 0,
             timeout: Optional[float] = None, kind: str = 'alone', step: int = 0, deltas_max: int = 0) -> Dict[str, Any]:
        """Save all tables as one cut while training goes on; figures of the save. keep: so many checkpoints stay.
        kind: 'alone', 'base', 'delta' (what changed since the last one), 'auto' (a base after `deltas_max` deltas)."""
        path, out = c_string(os.path.abspath(folder)), ffi.new('tern_ps_save_result *')
        params = ffi.new('tern_ps_save_params *')
        params.dir, params.sequence, params.keep = path, sequence, keep
        params.kind, params.step, params.deltas_max = _number(SAVES, kind, 'kind of save'), step, deltas_max
        params.bytes_per_second, params.timeout_ns = bytes_per_second, nanoseconds(timeout)
        check(lib.tern_ps_save(self.alive(), params, out))
        return {field: getattr(out, field) for field, _ in ffi.typeof('tern_ps_save_result').fields}

    def restore(self, folder: Path, sequence: Optional[int] = None, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Make and fill the tables of a checkpoint (None: the last one)."""
        path, out = c_string(os.path.abspath(folder)), ffi.new('tern_ps_save_result *')
        number = const['TERN_CHECKPOINT_LAST'] if sequence is None else sequence
        check(lib.tern_ps_restore(self.alive(), path, number, nanoseconds(timeout), out))
        return {field: getattr(out, field) for field, _ in ffi.typeof('tern_ps_save_result').fields}

    def followed(self, server: int = 0) -> Dict[str, Any]:
        """What a server that follows checkpoints serves, and how far it is behind."""
        stats = ffi.new('tern_ps_follow_stats *')
        check(lib.tern_ps_followed(self.alive(), server, stats))
        out = {field: getattr(stats, field) for field, kind in ffi.typeof('tern_ps_follow_stats').fields
               if kind.type.kind == 'primitive'}
        out['error'] = text(stats.error)
        return out

    def follow_to(self, sequence: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """All servers go to a version and stay there, an earlier one too; None: they follow the last one again."""
        number = const['TERN_PS_FOLLOW_LAST'] if sequence is None else sequence
        check(lib.tern_ps_follow_to(self.alive(), number, nanoseconds(timeout)))

    def join(self, group: str, member: str, staleness: Optional[int] = 0, summed: bool = False) -> Group:
        """Become a member of a group of workers. staleness: 0 bulk synchronous, s stale synchronous, None asynchronous.
        summed: what members push with Group.push in a step is summed and applied once."""
        return Group(self, group, member, staleness, summed)

    def close(self) -> None:
        """Operations in flight end in TERN_E_FLUSHED; its tables are closed with it."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if not self._core.closed:
                lib.tern_ps_close(pointer)

    def __del__(self):
        if getattr(self, '_ptr', None) is not None:
            self.close()


class Table:
    """One table. pull and push wait; start_pull and start_push give an Operation (prefetch, asyncio). Any thread."""

    def __init__(self, tables: Tables, pointer: Any) -> None:
        self._tables, self._ptr = tables, pointer
        self._core = tables.context.core
        self.schema = schema_of(lib.tern_table_get_schema(pointer))

    def _alive(self):
        if self._ptr is None:
            raise closed('the table')
        self._tables.alive()
        return self._ptr

    @property
    def context(self) -> Context:
        """The Context of its client."""
        return self._tables.context

    @property
    def name(self) -> str:
        """Its name."""
        return self.schema.name

    def _cancel(self, op):
        return lib.tern_table_cancel(self._ptr, op)

    def _pull(self, keys, out, dtype, unknown, found, step, travel, one_sided):
        keys, raw_keys, count = _keys(keys)
        if out is None:
            out = self._tables.context.empty((count, self.schema.dim), dtype or self.schema.dtype)
        kind = _row_dtype(out, dtype)
        pointer = _rows(out, count, self.schema.dim, kind, True)
        params = ffi.new('tern_table_pull_params *')
        params.keys, params.count, params.rows = raw_keys, count, pointer
        params.dtype, params.step = kind, step
        params.travel = _buffers.dtype(travel) if travel else 0
        params.flags = const['TERN_PULL_ONE_SIDED'] if one_sided else 0
        params.unknown = UNKNOWN[unknown] if unknown in UNKNOWN else _number(UNKNOWN, unknown, 'policy')
        mask = None
        if found:
            mask = numpy.zeros(count, 'bool')
            params.found = ffi.from_buffer('uint8_t[]', mask)
        return params, (out if mask is None else (out, mask)), (keys, raw_keys, pointer, params, out, mask)

    def pull(self, keys: Keys, out: Optional[Memory] = None, *, dtype: Dtype = None, unknown: str = 'create',
             found: bool = False, step: int = 0, timeout: Optional[float] = None, travel: Dtype = None,
             one_sided: bool = False) -> Any:
        """Rows of `keys`, in their order: an array of len(keys) x dim, or `out` filled. Repeated keys are allowed.

        unknown: what keys without a row get: 'create', 'zero', 'default' (the initial value), 'error'.
        found=True gives (rows, mask).  dtype: of the rows ('bf16' halves the bytes).  travel: how they travel, 'i8' with a
        scale per row takes a quarter.  one_sided: read them where they lie, of a table made for that, on the same host; keys
        without a row are not created then.
        """
        table = self._alive()
        params, result, keep = self._pull(keys, out, dtype, unknown, found, step, travel, one_sided)
        run(self._core, lambda op: lib.tern_table_pull(table, params, op), self._cancel, timeout)
        del keep
        return result

    def start_pull(self, keys: Keys, out: Optional[Memory] = None, *, dtype: Dtype = None, unknown: str = 'create',
                   found: bool = False, step: int = 0, timeout: Optional[float] = None, travel: Dtype = None,
                   one_sided: bool = False) -> Operation:
        """The same as an Operation: the rows of the next batch while this one is worked on."""
        table = self._alive()
        params, result, keep = self._pull(keys, out, dtype, unknown, found, step, travel, one_sided)
        return Operation(self._core, lambda op: lib.tern_table_pull(table, params, op), self._cancel, keep,
                         lambda _: result, timeout)

    def pull_bags(self, keys: Keys, offsets: Keys, pool: str = 'sum', out: Optional[Memory] = None, *,
                  unknown: str = 'zero', step: int = 0, timeout: Optional[float] = None, travel: Dtype = None) -> Memory:
        """One row for each bag, the sum or mean of its keys' rows, which the servers make. Bag b has keys offsets[b] up to
        offsets[b + 1]; offsets ends with len(keys)."""
        table = self._alive()
        params, rows, keep = self._bags(keys, offsets, out)
        params.pool = _number(POOLS, pool, 'pooling')
        params.unknown, params.step = _number(UNKNOWN, unknown, 'policy'), step
        params.travel = _buffers.dtype(travel) if travel else 0
        run(self._core, lambda op: lib.tern_table_pull(table, params, op), self._cancel, timeout)
        del keep
        return rows

    def _bags(self, keys, offsets, out):
        keys, raw_keys, count = _keys(keys)
        ends, raw_ends, bags = _keys(offsets)
        if bags < 1:
            raise ShapeError(lib.TERN_E_SHAPE, 'offsets of bags end with the number of keys')
        if out is None:
            out = self._tables.context.empty((bags - 1, self.schema.dim), self.schema.dtype)
        kind = _row_dtype(out, None)
        params = ffi.new('tern_table_pull_params *')
        params.keys, params.count, params.rows = raw_keys, count, _rows(out, bags - 1, self.schema.dim, kind, True)
        params.offsets, params.bags, params.dtype = raw_ends, bags - 1, kind
        return params, out, (keys, raw_keys, ends, raw_ends)

    def _push(self, keys, rows, mode, lr_scale, step):
        keys, raw_keys, count = _keys(keys)
        if numpy is not None and not hasattr(rows, 'dtype'):
            rows = numpy.asarray(rows, 'float32').reshape(count, -1)
        kind = _row_dtype(rows, None)
        pointer = _rows(rows, count, self.schema.dim, kind, False)
        params = ffi.new('tern_table_push_params *')
        params.keys, params.count, params.rows = raw_keys, count, pointer
        params.dtype, params.lr_scale, params.step = kind, lr_scale, step
        params.mode = _number(MODES, mode, 'mode of a push')
        return params, (keys, raw_keys, pointer, params, rows)

    def push(self, keys: Keys, rows: Memory, *, mode: str = 'gradient', lr_scale: float = 1.0, step: int = 0,
             timeout: Optional[float] = None) -> int:
        """Apply gradients; of repeated keys the sum. It returns when they are applied, once. How many keys were.

        mode 'assign' stores values, 'add' adds past the optimiser. lr_scale: times the optimiser's learning rate.
        """
        table = self._alive()
        params, keep = self._push(keys, rows, mode, lr_scale, step)
        count = run(self._core, lambda op: lib.tern_table_push(table, params, op), self._cancel, timeout)
        del keep
        return count

    def start_push(self, keys: Keys, rows: Memory, *, mode: str = 'gradient', lr_scale: float = 1.0, step: int = 0,
                   timeout: Optional[float] = None) -> Operation:
        """The same as an Operation. keys and rows must stay as they are until it completes."""
        table = self._alive()
        params, keep = self._push(keys, rows, mode, lr_scale, step)
        return Operation(self._core, lambda op: lib.tern_table_push(table, params, op), self._cancel, keep,
                         timeout=timeout)

    def erase(self, keys: Keys, timeout: Optional[float] = None) -> int:
        """How many rows are gone."""
        table = self._alive()
        keys, raw, count = _keys(keys)
        return run(self._core, lambda op: lib.tern_table_erase(table, raw, count, op), self._cancel, timeout)

    def stats(self) -> Dict[str, Any]:
        """Figures, summed over the servers."""
        return self._tables.stats(self.name)

    def close(self) -> None:
        """The handle alone; no operation of it may be in flight."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if self._tables._ptr is not None and not self._core.closed:  # pylint: disable=protected-access
                lib.tern_table_close(pointer)


def _keys(keys):
    """(what to keep alive, uint64_t pointer, count): 64-bit integers; others are converted, with a copy."""
    if _buffers.is_torch(keys):
        if str(keys.dtype) != 'torch.int64':
            raise ShapeError(lib.TERN_E_SHAPE, f'keys are int64, not {keys.dtype}')
        pointer, size, keep = _buffers.view(keys, False, 'keys')
        return keep, ffi.cast('uint64_t *', pointer), size // 8
    if not isinstance(keys, numpy.ndarray) and hasattr(keys, '__dlpack__'):
        keys = numpy.from_dlpack(keys)
    kind = getattr(keys, 'dtype', None)
    if kind is None or kind.str not in ('<u8', '<i8') or not keys.flags.c_contiguous:
        if kind is not None and kind.kind not in 'iu':
            raise ShapeError(lib.TERN_E_SHAPE, f'keys are integers, not {kind}')
        keys = numpy.ascontiguousarray(numpy.asarray(keys, None if kind is not None else 'uint64'))
        keys = keys.astype('int64').view('uint64') if keys.dtype.kind == 'i' else keys.astype('uint64')
    return keys, ffi.from_buffer('uint64_t[]', keys), keys.size


def _row_dtype(rows, wanted):
    try:
        kind = _NUMPY_DTYPES.get(rows.dtype)
    except AttributeError:
        raise TypeError(f'rows: expected an array or a tensor, not {type(rows).__name__}') from None
    if kind is None:
        kind = lib.TERN_BF16 if str(rows.dtype) == 'uint16' else _buffers.dtype(rows.dtype)
        _NUMPY_DTYPES[rows.dtype] = kind
    if wanted is not None and _buffers.dtype(wanted) != kind:
        raise ShapeError(lib.TERN_E_SHAPE, f'rows are to be {wanted}, but the array has {rows.dtype}')
    return kind


_NUMPY_DTYPES = {}


def _rows(rows, count, dim, kind, writable):
    shape = tuple(rows.shape)
    if shape != (count, dim) and not (count == 1 and shape == (dim,)):
        raise ShapeError(lib.TERN_E_SHAPE, f'{count} keys of a table with {dim} columns need rows of shape '
                         f'({count}, {dim}), not {shape}')
    pointer, size, _ = _buffers.view(rows, writable, 'rows')
    if size != count * dim * _buffers.BYTES[kind]:
        raise ShapeError(lib.TERN_E_SHAPE, f'rows have {size} bytes, not {count * dim * _buffers.BYTES[kind]}')
    return pointer


class Group:
    """Membership in a group of workers; leave() or a `with` statement ends it.

        with tables.join('job', f'worker {rank}', staleness=0) as group:
            for step in range(group.first, steps):
                group.begin(step)
                ...
                group.end(step)
    """

    def __init__(self, tables: Tables, name: str, member: str, staleness: Optional[int], summed: bool = False) -> None:
        self._tables = tables
        first, out = ffi.new('uint64_t *'), ffi.new('tern_ps_group **')
        group, who = c_string(name), c_string(member)
        params = ffi.new('tern_ps_group_params *')
        params.name, params.member = group, who
        params.staleness = const['TERN_PS_ASYNCHRONOUS'] if staleness is None else staleness
        params.flags = const['TERN_PS_GROUP_SUM'] if summed else 0
        check(lib.tern_ps_group_join(tables.alive(), params, first, out))
        self._ptr, self.first = out[0], int(first[0])
        tables.context.add_part(self)

    def _alive(self):
        if self._ptr is None:
            raise closed('the membership')
        self._tables.alive()
        return self._ptr

    def begin(self, step: int, timeout: Optional[float] = None) -> None:
        """Wait until the step may begin. TimeoutError names who is missing."""
        check(lib.tern_ps_group_begin(self._alive(), step, nanoseconds(timeout)))

    def push(self, table: Table, keys: Keys, rows: Memory, *, mode: str = 'gradient', lr_scale: float = 1.0, step: int = 0,
             timeout: Optional[float] = None) -> None:
        """In a summed group: this member's part of the step, applied with the others' when the step ends."""
        params, keep = table._push(keys, rows, mode, lr_scale, step)  # pylint: disable=protected-access
        check(lib.tern_ps_group_push(self._alive(), table._alive(), params, nanoseconds(timeout)))
        del keep

    def end(self, step: int) -> None:
        """This member's pushes of the step are done."""
        check(lib.tern_ps_group_end(self._alive(), step))

    def barrier(self, name: str, timeout: Optional[float] = None) -> None:
        """Wait for all members."""
        raw = c_string(name)
        check(lib.tern_ps_group_barrier(self._alive(), raw, nanoseconds(timeout)))

    def remove(self, member: str) -> None:
        """Remove a member that died."""
        raw = c_string(member)
        check(lib.tern_ps_group_remove(self._alive(), raw))

    def leave(self) -> None:
        """Nobody waits for this member any more."""
        if self._ptr is not None:
            pointer, self._ptr = self._ptr, None
            if self._tables._ptr is not None:  # pylint: disable=protected-access
                lib.tern_ps_group_leave(pointer)

    close = leave

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
