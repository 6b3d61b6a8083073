# SPDX-License-Identifier: Apache-2.0
"""Tables from Python, against plain numpy."""
import asyncio
import tempfile
import threading
import unittest

import numpy as np

import tern
from common import Pair


class TableTest(Pair):
    def test_pull_push(self):
        table = self.tables().create(tern.Schema('t', dim=3, optimizer=tern.Optimizer('sgd', lr=0.5)))
        keys = np.array([0, 2**64 - 1, 5, 5], 'uint64')
        self.assertTrue((table.pull(keys) == 0).all())
        self.assertEqual(table.push(keys, np.arange(12, dtype='float32').reshape(4, 3)), 3)  # distinct keys
        rows = table.pull(keys)
        self.assertTrue((rows[0] == [-0.0, -0.5, -1.0]).all())
        self.assertTrue((rows[2] == rows[3]).all())
        self.assertTrue((rows[2] == -0.5 * (np.array([6, 7, 8]) + np.array([9, 10, 11]))).all())
        self.assertEqual(table.stats()['rows'], 3)
        self.assertEqual(table.erase([5]), 1)
        rows, found = table.pull([5, 0], unknown='zero', found=True)
        self.assertEqual(found.tolist(), [False, True])

    def test_dlpack(self):
        """Arrays of the context go out, arrays of other libraries come in, without a copy."""
        class Foreign:
            """All that such an array has in common with numpy's."""

            def __init__(self, array):
                self.array, self.shape, self.dtype = array, array.shape, array.dtype

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()
        table = self.tables().create(tern.Schema('t', dim=3))
        keys, rows = np.arange(4, dtype='int64'), np.arange(12, dtype='float32').reshape(4, 3)
        table.push(Foreign(keys), Foreign(rows), mode='assign')
        out = np.zeros((4, 3), 'float32')
        table.pull(keys, Foreign(out))
        self.assertTrue((out == rows).all())
        with self.assertRaisesRegex(ValueError, 'contiguous'):
            table.push(keys[:2], Foreign(np.zeros((2, 6), 'float32')[:, ::2]), mode='assign')
        mine = self.ctx.zeros((2, 3))
        theirs = np.from_dlpack(mine)
        mine[1] = 5
        self.assertEqual(theirs.sum(), 15)
        self.assertEqual(theirs.ctypes.data, mine.ctypes.data)

    def test_oracle(self):
        """Adagrad over random batches is what numpy computes."""
        table = self.tables().create(tern.Schema('t', dim=8, optimizer=tern.Optimizer('adagrad', lr=0.1, epsilon=1e-10,
                                                                                      initial_accumulator=0.1)))
        random = np.random.default_rng(1)
        weights, sums = np.zeros((50, 8), 'float32'), np.full((50, 8), 0.1, 'float32')
        for _ in range(40):
            keys = random.choice(50, 20, replace=False)
            gradients = random.normal(size=(20, 8)).astype('float32')
            table.push(keys, gradients)
            sums[keys] += gradients * gradients
            weights[keys] -= 0.1 * gradients / (np.sqrt(sums[keys]) + 1e-10)
        np.testing.assert_allclose(table.pull(np.arange(50)), weights, rtol=1e-5, atol=1e-6)

    def test_into_own_memory(self):
        table = self.tables().create(tern.Schema('t', dim=4, init=tern.Init('uniform', 1.0, 9)))
        first = table.pull([1, 2, 3])
        out = np.empty((3, 4), 'float32')
        self.assertIs(table.pull([1, 2, 3], out), out)
        self.assertTrue((out == first).all())
        half = table.pull([1, 2, 3], dtype='f16')
        np.testing.assert_allclose(half.astype('float32'), first, atol=1e-3)

    def test_schema_comes_back(self):
        tables = self.tables()
        schema = tern.Schema('a/b', dim=2, dtype='bf16', optimizer=tern.Optimizer('adam', lr=0.01, beta2=0.99),
                             init=tern.Init('normal', 0.5, 7), nonfinite='clip', eviction='lru', budget=1 << 24,
                             ttl_steps=9, admit_after=2)
        tables.create(schema)
        self.assertEqual(tables.describe('a/b'), schema)
        self.assertEqual([s.name for s in tables.list()], ['a/b'])
        with self.assertRaises(tern.OperationError):
            tables.create(tern.Schema('a/b', dim=3))
        tables.drop('a/b')
        with self.assertRaises(LookupError):
            tables.open('a/b')

    def test_asyncio(self):
        table = self.tables().create(tern.Schema('t', dim=4, optimizer=tern.Optimizer('none')))

        async def work():
            await asyncio.gather(*(table.start_push([k], np.full((1, 4), k, 'float32')) for k in range(20)))
            pulls = [table.start_pull([k]) for k in range(20)]
            return [float((await pull)[0, 0]) for pull in pulls]
        self.assertEqual(asyncio.run(work()), [float(k) for k in range(20)])

    def test_operation(self):
        table = self.tables().create(tern.Schema('t', dim=4))
        operation = table.start_pull([1])
        self.assertEqual(operation.wait(10).shape, (1, 4))
        self.assertTrue(operation.done())
        self.assertFalse(operation.cancel())
        for _ in range(100):  # nobody keeps the handle: the operation completes all the same
            table.start_push([1], np.ones((1, 4), 'float32'))
        table.pull([1])

    def test_groups(self):
        tables = self.tables()
        with tables.join('job', 'worker 0') as one, tables.join('job', 'worker 1') as two:
            one.begin(0)
            two.begin(0)
            one.end(0)
            with self.assertRaises(TimeoutError) as caught:
                one.begin(1, timeout=0.1)
            self.assertIn('worker 1', str(caught.exception))
            two.end(0)
            one.begin(1)

    def test_save_restore(self):
        tables = self.tables()
        table = tables.create(tern.Schema('t', dim=4, init=tern.Init('normal', 1.0)))
        before = table.pull(np.arange(100)).copy()
        with tempfile.TemporaryDirectory(prefix='tern-test-python-') as folder:
            self.assertEqual(tables.save(folder)['rows'], 100)
            self.assertEqual(len(tern.checkpoints(folder)), 1)
            with tern.Checkpoint(folder) as checkpoint:
                checkpoint.verify()
                self.assertEqual([(s.name, rows) for s, rows, _ in checkpoint.tables()], [('t', 100)])
                with self.assertRaises(ZeroDivisionError):
                    checkpoint.verify(lambda done, total: 1 // 0)
            tables.drop('t')
            tables.restore(folder)
            after = tables.open('t').pull(np.arange(100), unknown='error')
        self.assertTrue((before == after).all())


    def test_bags_and_travel(self):
        table = self.tables().create(tern.Schema('t', dim=8, init=tern.Init('normal', 1.0, 2)))
        rows = table.pull(np.arange(20)).copy()
        bags = table.pull_bags([1, 2, 2, 3, 9], [0, 3, 3, 5])
        np.testing.assert_allclose(bags, [rows[1] + rows[2] + rows[2], rows[0] * 0, rows[3] + rows[9]], rtol=1e-6)
        mean = table.pull_bags([1, 2], [0, 2], 'mean')
        np.testing.assert_allclose(mean[0], (rows[1] + rows[2]) / 2, rtol=1e-6)
        small = table.pull(np.arange(20), travel='int8')
        self.assertLessEqual(np.abs(small - rows).max(), np.abs(rows).max() / 250)
        with self.assertRaises(ValueError):
            table.pull_bags([1, 2], [0, 3])

    def test_one_sided(self):
        table = self.tables().create(tern.Schema('t', dim=8, init=tern.Init('normal', 1.0, 2), one_sided=True))
        rows = table.pull(np.arange(50)).copy()
        self.assertTrue((table.pull(np.arange(50), one_sided=True, unknown='zero') == rows).all())

    def test_deltas_and_followers(self):
        tables = self.tables()
        table = tables.create(tern.Schema('t', dim=4, optimizer=tern.Optimizer('sgd', lr=1.0), meta=False))
        with tempfile.TemporaryDirectory(prefix='tern-test-python-') as folder, tern.Context('follower', transports=self.transports) as other:
            table.push([1, 2], np.ones((2, 4), 'float32'))
            first = tables.save(folder, kind='auto')['sequence']
            server = other.table_server()
            server.follow(folder)
            copy = self.ctx.tables(other.address)
            self.assertTrue((copy.open('t').pull([1, 2], unknown='error') == -1).all())
            table.push([2, 3], np.ones((2, 4), 'float32'))
            last = tables.save(folder, kind='auto')['sequence']
            copy.follow_to(last)
            self.assertEqual(copy.open('t').pull([1, 2, 3], unknown='error')[:, 0].tolist(), [-1, -2, -1])
            copy.follow_to(first)
            self.assertEqual(copy.open('t').pull([1, 2, 3], unknown='zero')[:, 0].tolist(), [-1, -1, 0])
            self.assertEqual(copy.followed()['sequence'], first)
            with self.assertRaises(tern.TernError):
                copy.open('t').push([1], np.ones((1, 4), 'float32'))
            copy.close()

    def test_summed_group(self):
        tables = self.tables()
        table = tables.create(tern.Schema('t', dim=2, optimizer=tern.Optimizer('sgd', lr=1.0)))
        with tables.join('sum', 'a', summed=True) as one, tables.join('sum', 'b', summed=True) as two:
            for group, value in ((one, 1.0), (two, 2.0)):
                group.begin(0)
                group.push(table, [7], np.full((1, 2), value, 'float32'), step=0)
            ending = threading.Thread(target=one.end, args=(0,))  # waits for all
            ending.start()
            two.end(0)
            ending.join()
            self.assertEqual(table.pull([7]).tolist(), [[-3.0, -3.0]])


class TcpTableTest(TableTest):
    transports = 'tcp'


if __name__ == '__main__':
    unittest.main()
