# SPDX-License-Identifier: Apache-2.0
"""Contexts, memory, channels and calls from Python."""
import asyncio
import concurrent.futures
import gc
import inspect
import pickle
import threading
import time
import unittest
import urllib.request
from unittest import mock

import numpy as np

import tern
from common import Pair


class Late:
    """The library, but that the first waits say that their time is over."""

    def __init__(self):
        self.late = 1

    def __getattr__(self, name):
        function = getattr(tern._lib.lib, name)
        return (lambda *args: self.wait(function, args)) if name in ('tern_op_wait', 'tern_link_wait') else function

    def wait(self, function, args):
        status = function(*args)
        self.late -= 1
        return status if self.late < 0 else tern._lib.lib.TERN_E_DEADLINE


class ContextTest(Pair):
    def test_facts(self):
        self.assertRegex(self.ctx.address, r'^127\.0\.0\.1:\d+$')
        self.assertIn('mem.extents', self.ctx.counters())
        self.assertIn('link.window_bytes', tern.options())
        self.assertTrue(any(name == 'shm' for name, _, _ in tern.providers()))
        with tern.Context(options={'link.window_bytes': 1 << 20}) as other:
            self.assertNotEqual(other.address, self.ctx.address)

    def test_watch(self):
        self.assertEqual(self.ctx.latencies(), {})
        self.ctx.record()
        held = []
        served = self.serve.serve(9, lambda request: held.append(request.keep()))
        with self.ctx.rpc(self.serve.address) as caller:
            call = caller.start(9, b'')
            while not held:
                time.sleep(0.001)
            wait, = self.ctx.waits()
            self.assertEqual((wait.what, wait.whom, wait.count), ('a call of method 0x9', self.serve.address, 1))
            self.assertIn(f'a call of method 0x9 at {self.serve.address}', self.ctx.report())
            held[0].reply(b'done')
            call.wait(10)
            self.assertEqual(self.ctx.waits(), [])
            latency = self.ctx.latencies()['rpc.call']
            self.assertEqual(latency.count, 1)
            self.assertTrue(0 < latency.p50 <= latency.max < 10)
        served.close()

    def test_http(self):
        with self.ctx.http() as endpoint:
            with urllib.request.urlopen(f'http://{endpoint.address}/metrics', timeout=10) as answer:
                self.assertIn(b'tern_build_info', answer.read())
        with self.assertRaises(tern.TernError):
            self.ctx.http('0.0.0.0:0')
        left_open = self.ctx.http()  # closed with its context
        self.assertTrue(left_open.address)

    def test_memory(self):
        blocks = self.ctx.memory_stats()['blocks']
        array = self.ctx.array(np.arange(10, dtype='float64'))
        view = array[5:]
        self.assertEqual(self.ctx.memory_stats()['blocks'], blocks + 1)
        del array
        gc.collect()
        self.assertEqual(view.sum(), 35)
        del view
        gc.collect()
        self.assertEqual(self.ctx.memory_stats()['blocks'], blocks)
        self.assertEqual(self.ctx.empty((0, 4)).shape, (0, 4))
        self.assertEqual(self.ctx.zeros((), 'i64')[()], 0)
        with self.assertRaises(MemoryError):
            tern.Context(mem_limit=1 << 22).empty(1 << 28)

    def test_type_hints(self):
        """Everything public says what it takes and gives."""
        for kind in [value for name, value in vars(tern).items() if name in tern.__all__ and inspect.isclass(value)]:
            if issubclass(kind, (BaseException, tern.Status)):
                continue
            for name, function in inspect.getmembers(kind, inspect.isfunction):
                if name.startswith('_') or function.__module__.split('.')[0] != 'tern':
                    continue
                with self.subTest(function.__qualname__):
                    parameters = inspect.signature(function).parameters.values()
                    self.assertEqual([p.name for p in parameters if p.name != 'self' and p.annotation is p.empty], [])
                    self.assertIn('return', function.__annotations__)

    def test_messages(self):
        listener = self.serve.listen('letters')
        link = self.ctx.connect(self.serve.address)
        self.assertTrue(link.up)
        self.assertEqual(link.peer, 'serve')
        with link.open('letters') as channel:
            other = listener.accept(10)
            for size in (0, 1, 1000, 1 << 19):
                channel.send(b'x' * size)
                self.assertEqual(other.receive(10), b'x' * size)
            operation = other.start_receive_into(bytearray(10))
            channel.send(np.arange(3, dtype='uint8'), delivered=True)
            self.assertEqual(operation.wait(10), 3)
        with self.assertRaises(tern.TernError):
            other.receive(10)
        link.close()

    def test_slow_waiter(self):
        """The slice of a wait is over, and before its thread goes on, so is what was waited for."""
        self.serve.serve(3, lambda _: b'well')
        with mock.patch.object(tern._ops, 'lib', Late()), mock.patch.object(tern.channel, 'lib', Late()):
            self.assertEqual(self.ctx.rpc(self.serve.address).call(3, timeout=60), b'well')
            self.assertTrue(self.ctx.connect(self.serve.address).up)

    def test_one_sided(self):
        listener = self.serve.listen('data')
        channel = self.ctx.connect(self.serve.address).open('data')
        other = listener.accept(10)
        target = self.serve.zeros(100, 'i32')
        key = tern.Key(bytes(self.serve.export(target)))
        self.assertEqual(len(key), 400)
        source = self.ctx.array(np.arange(50, dtype='int32'))
        channel.put(source, key, offset=200, notify=77)
        self.assertEqual(other.notified(10), (77, 200))
        self.assertEqual(target[50:].tolist(), list(range(50)))
        back = self.ctx.empty(50, 'i32')
        channel.get(back, key, 200)
        self.assertTrue((back == source).all())
        with self.assertRaises(tern.OperationError) as caught:
            channel.put(source, key, offset=300)
        self.assertEqual(caught.exception.status, tern.Status.E_BOUNDS)
        self.serve.revoke(key)
        with self.assertRaises(tern.OperationError):
            channel.get(back, key)

    def test_calls(self):
        def handler(request):
            if request.args == b'sink':
                request.put(np.full(8, 3, 'uint8'))
                return b'there'
            if request.args == b'no':
                raise KeyError('nothing here')
            if request.args == b'later':
                threading.Timer(0.05, request.keep().reply, (b'late',)).start()
                return None
            return request.args.upper()
        self.serve.serve(5, handler)
        with self.ctx.rpc(self.serve.address) as caller:
            self.assertEqual(caller.call(5, b'abc'), b'ABC')
            self.assertEqual(caller.call(5, b'later'), b'late')
            target = self.ctx.zeros(8, 'u8')
            self.assertEqual(caller.call(5, b'sink', sinks=[target]), b'there')
            self.assertTrue((target == 3).all())
            with self.assertRaises(tern.OperationError) as caught:
                caller.call(5, b'no')
            self.assertIn('nothing here', str(caught.exception))

            async def many():
                return await asyncio.gather(*(caller.start(5, b'x%d' % i) for i in range(50)))
            self.assertEqual(asyncio.run(many()), [b'X%d' % i for i in range(50)])

    def test_executor(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            inner = self.ctx
            inner.serve(2, lambda request: request.args * 2)
            back = self.serve.rpc(inner.address)
            served = self.serve.serve(1, lambda request: back.call(2, request.args), pool)  # it waits: allowed there
            with self.ctx.rpc(self.serve.address) as caller:
                self.assertEqual(caller.call(1, b'ab', timeout=10), b'abab')
            served.close()

    def test_errors(self):
        error = tern.TernError(tern.Status.E_BOUNDS, 'a detail')
        again = pickle.loads(pickle.dumps(tern.OperationError(tern.Status.E_BOUNDS, 'a detail')))
        self.assertEqual(str(again), str(error))
        with self.assertRaises(tern.PathError):
            tern.Context().connect('127.0.0.1:1', timeout=5)
        with self.assertRaises(ValueError):
            tern.Context(options={'link.no_such': 1})
        with self.assertRaises(TypeError):
            tern.Context(name=7)


if __name__ == '__main__':
    unittest.main()
