# SPDX-License-Identifier: Apache-2.0
"""The backend `tern` of torch.distributed: init_process_group('tern'), DDP, send and receive, all collectives on the CPU.

    import tern.torch.distributed          # registers the backend
    torch.distributed.init_process_group('tern')

or, with nothing to change in a script that says 'gloo': TERN_RDMA_OPT=1, and the folder `tern/_site` first on PYTHONPATH.

Operations run in the order in which they were asked for, in one thread per group, so that they overlap with backward; each
gives a Work with a future. Ranks meet through the store of torch.distributed.
"""
from __future__ import annotations

import atexit
import os
import queue
import socket
import threading
import uuid
import weakref

import torch
import torch.distributed as dist

from .. import Context
from .._lib import lib
from ..coll import Communicator

__all__ = ['ProcessGroupTern', 'context', 'register']

_context = None
_lock = threading.Lock()
_groups = weakref.WeakSet()
_OPS = ('SUM', 'AVG', 'PRODUCT', 'MIN', 'MAX')
_NAMES = {'SUM': 'sum', 'AVG': 'avg', 'PRODUCT': 'prod', 'MIN': 'min', 'MAX': 'max'}


def _own_host():
    """Where other ranks reach this one: on the way to the master."""
    master = os.environ.get('MASTER_ADDR', '127.0.0.1')
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # sends nothing
        return probe.getsockname()[0]


def context() -> Context:
    """The context that all groups of this process share."""
    global _context  # pylint: disable=global-statement
    with _lock:
        if _context is None or _context._core.closed:  # pylint: disable=protected-access
            host = _own_host()
            _context = Context(f'rank {os.environ.get("RANK", "?")} ({os.getpid()} on {socket.gethostname()})',
                               listen=f'{host}:0')
        return _context


def _op_name(op):
    text = str(getattr(op, 'op', op)).rsplit('.', 1)[-1]
    if text not in _OPS:
        raise ValueError(f'the backend tern has no reduction {text}: there are {", ".join(_OPS)}')
    return _NAMES[text]


def _raw(tensor):
    """What the library reads and writes: contiguous, of a dtype that it has."""
    if tensor.device.type != 'cpu':
        raise ValueError(f'the backend tern moves tensors of the CPU, this one is on {tensor.device}')
    if tensor.is_sparse:
        raise ValueError('the backend tern moves dense tensors: use tern.torch.EmbeddingBag for sparse rows')
    tensor = tensor.detach()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


class _Work(dist._Work):  # pylint: disable=protected-access
    """One operation in the group's queue."""

    def __init__(self, run, result):
        super().__init__()
        self._run_it, self._result = run, result
        self._future = torch.futures.Future()
        self._ended = threading.Event()
        self._failure = None

    def execute(self):
        """In the group's thread."""
        try:
            self._run_it()
        except Exception as failure:  # pylint: disable=broad-except
            self._failure = failure
        self._run_it = None
        if self._failure is not None:
            self._future.set_exception(self._failure)
        else:
            self._future.set_result(self._result)
        self._ended.set()  # last: who waits may end the process

    def is_completed(self):
        """Is it over?"""
        return self._ended.is_set()

    def is_success(self):
        """Is it over, and well?"""
        return self._ended.is_set() and self._failure is None

    def exception(self):
        """What went wrong."""
        return self._failure

    def wait(self, timeout=None):
        """Wait for it; raises what went wrong."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        if not self._ended.wait(seconds):
            raise TimeoutError('the operation is still under way')
        if self._failure is not None:
            raise self._failure
        return True

    def result(self):
        """Its tensors."""
        return self._result

    def get_future(self):
        """A future of its tensors."""
        return self._future

    def source_rank(self):
        """Of a receive: unknown here."""
        return -1

    def synchronize(self):
        """As wait."""
        self.wait()


class ProcessGroupTern(dist.ProcessGroup):
    """Ranks of one group. Made by torch.distributed."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._rank_, self._size_ = rank, size
        own = context()
        if rank == 0:
            store.set('tern/name', uuid.uuid4().hex)
        store.set(f'tern/address/{rank}', own.address)
        name = store.get('tern/name').decode()
        addresses = [store.get(f'tern/address/{i}').decode() for i in range(size)]
        self._comm = Communicator(own, name, rank, size, addresses, timeout=timeout.total_seconds())
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f'tern {name[:8]}', daemon=True)
        self._thread.start()
        _groups.add(self)

    def _serve(self):
        lib.tern_thread_brisk()  # backward() has the cores meanwhile
        while True:
            work = self._queue.get()
            if work is None:
                return
            work.execute()

    def _start(self, run, result):
        work = _Work(run, result)
        self._queue.put(work)
        return work

    def rank(self):
        """Of this process in the group."""
        return self._rank_

    def size(self):
        """Ranks in all."""
        return self._size_

    def name(self):
        """Of the backend."""
        return 'tern'

    getBackendName = name

    def close(self, patience=None):
        """End the group's thread, after what is in its queue, and its communicator."""
        self._queue.put(None)
        self._thread.join(patience)
        if not self._thread.is_alive():
            self._comm.close()

    # ---- reductions ----

    def allreduce(self, tensors, opts=None):
        """In place, each tensor."""
        op = _op_name(opts.reduceOp) if opts is not None else 'sum'
        raws = [_raw(tensor) for tensor in tensors]

        def run():
            for raw in raws:
                dense = raw.contiguous()
                self._comm.all_reduce(dense, op)
                if dense is not raw:
                    raw.copy_(dense)
        return self._start(run, tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        """The same."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors, opts):
        """At the root, in place."""
        op, raw = _op_name(opts.reduceOp), _raw(tensors[0])

        def run():
            dense = raw.contiguous()
            self._comm.reduce_to(dense, opts.rootRank, op)
            if dense is not raw:
                raw.copy_(dense)
        return self._start(run, tensors)

    def reduce_scatter(self, outputs, inputs, opts=None):
        """Each output is the reduction of this rank's entry of a list."""
        op = _op_name(opts.reduceOp) if opts is not None else 'sum'

        def run():
            for out, parts in zip(outputs, inputs):
                self._scatter_one(_raw(out), torch.cat([_raw(part).reshape(-1) for part in parts]), op)
        return self._start(run, outputs)

    def _reduce_scatter_base(self, output, input, opts=None):  # pylint: disable=redefined-builtin
        op = _op_name(opts.reduceOp) if opts is not None else 'sum'
        return self._start(lambda: self._scatter_one(_raw(output), _raw(input).contiguous(), op), [output])

    def _scatter_one(self, out, source, op):
        dense = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
        self._comm.reduce_scatter(dense, source, op)
        if dense is not out:
            out.copy_(dense)

    # ---- moves ----

    def broadcast(self, tensors, opts):
        """Of the root's tensor."""
        raw = _raw(tensors[0])

        def run():
            dense = raw.contiguous()
            self._comm.broadcast(dense, opts.rootRank)
            if dense is not raw:
                raw.copy_(dense)
        return self._start(run, tensors)

    def allgather(self, outputs, inputs, opts=None):
        """Lists of all ranks' tensors."""
        del opts

        def run():
            for parts, tensor in zip(outputs, inputs):
                source = _raw(tensor).contiguous()
                gathered = torch.empty((self._size_, *source.shape), dtype=source.dtype)
                self._comm.all_gather(gathered, source)
                for part, got in zip(parts, gathered):
                    _raw(part).copy_(got)
        return self._start(run, outputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """outputs[rank][i] = rank's inputs[i]."""
        return self.allgather([list(parts) for parts in zip(*outputs)], inputs, opts)

    def _allgather_base(self, output, input, opts=None):  # pylint: disable=redefined-builtin
        del opts
        return self._start(lambda: self._comm.all_gather(_raw(output), _raw(input).contiguous()), [output])

    def alltoall(self, outputs, inputs, opts=None):
        """A tensor to each rank and one from each; shapes may differ from rank to rank."""
        del opts

        def run():
            _raw(outputs[self._rank_]).copy_(_raw(inputs[self._rank_]))
            for step in range(1, self._size_):
                to, source = (self._rank_ + step) % self._size_, (self._rank_ - step) % self._size_
                self._swap(_raw(inputs[to]).contiguous(), to, _raw(outputs[source]), source)
        return self._start(run, outputs)

    def alltoall_base(self, output, input, output_splits, input_splits, opts=None):  # pylint: disable=redefined-builtin
        """Blocks of rows to and from each rank."""
        if not output_splits and not input_splits:
            return self._start(lambda: self._comm.all_to_all(_raw(output), _raw(input).contiguous()), [output])
        cut_out = list(output.split(output_splits or [output.shape[0] // self._size_] * self._size_))
        cut_in = list(input.split(input_splits or [input.shape[0] // self._size_] * self._size_))
        return self.alltoall(cut_out, cut_in, opts)

    def _swap(self, data, to, out, source):
        """Send and receive; the lower rank of a pair begins, so that large messages don't wait for each other."""
        dense = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
        send_first = self._rank_ < to if to == source else self._rank_ % 2 == 0
        for step in (('send', 'recv') if send_first else ('recv', 'send')):
            if step == 'send':
                self._comm.send(data, to)
            else:
                self._comm.recv(dense, source)
        if dense is not out:
            out.copy_(dense)

    def gather(self, outputs, inputs, opts):
        """At the root, a list of all ranks' tensors."""
        source = _raw(inputs[0])

        def run():
            if self._rank_ != opts.rootRank:
                self._comm.send(source.contiguous(), opts.rootRank)
                return
            for i, part in enumerate(outputs[0]):
                self._receive(part, i, source)
        return self._start(run, outputs)

    def _receive(self, part, peer, own):
        raw = _raw(part)
        if peer == self._rank_:
            raw.copy_(own)
            return
        dense = torch.empty_like(raw, memory_format=torch.contiguous_format)
        self._comm.recv(dense, peer)
        raw.copy_(dense)

    def scatter(self, outputs, inputs, opts):
        """Each rank gets its entry of the root's list."""
        def run():
            if self._rank_ != opts.rootRank:
                self._receive(outputs[0], opts.rootRank, None)
                return
            for i, part in enumerate(inputs[0]):
                if i == self._rank_:
                    _raw(outputs[0]).copy_(_raw(part))
                else:
                    self._comm.send(_raw(part).contiguous(), i)
        return self._start(run, outputs)

    def barrier(self, opts=None):
        """All ranks."""
        del opts
        return self._start(self._comm.barrier, [])

    def send(self, tensors, peer, tag=0):
        """One message."""
        source = self._tagged(tensors, tag)
        return self._start(lambda: self._comm.send(source.contiguous(), peer), tensors)

    def recv(self, tensors, peer, tag=0):
        """One message."""
        target = self._tagged(tensors, tag)
        return self._start(lambda: self._receive(target, peer, None), tensors)

    @staticmethod
    def _tagged(tensors, tag):
        if tag:
            raise ValueError(f'the backend tern delivers messages between two ranks in order and has no tags ({tag})')
        return _raw(tensors[0])


def _create(store, rank, size, timeout):
    return ProcessGroupTern(store, rank, size, timeout)


def register() -> None:
    """Make 'tern' known to torch.distributed. Idempotent."""
    if hasattr(dist.Backend, 'TERN'):
        return
    try:
        dist.Backend.register_backend('tern', _create, devices=['cpu'])
    except TypeError:  # PyTorch 1
        dist.Backend.register_backend('tern', _create)
    _look_at_store()


def _look_at_store():
    """A PyTorch that was built without libuv (that of Debian 13) asks its own store for it all the same, and fails."""
    if 'USE_LIBUV' in os.environ:
        return
    try:
        dist.TCPStore('127.0.0.1', 0, 1, True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as failure:
        if 'libuv' in str(failure):
            os.environ['USE_LIBUV'] = '0'
    except TypeError:  # PyTorch 1 has nothing to choose from
        pass


@atexit.register
def _end_groups():
    """The interpreter must not end below a thread that is inside of torch."""
    for group in list(_groups):
        group.close(patience=5)


register()
