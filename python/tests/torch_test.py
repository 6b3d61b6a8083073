# SPDX-License-Identifier: Apache-2.0
"""Layers and the optimiser of tern.torch against PyTorch's own."""
import threading
import unittest

try:
    import torch
except ImportError:
    torch = None

import tern
from common import Pair


@unittest.skipUnless(torch, 'python3-torch is not installed')
class TorchTest(Pair):
    def layer(self, kind, overlap=False, dim=8, **options):
        """A layer over a table, and the values that its rows begin with."""
        import tern.torch
        schema = tern.Schema('rows', dim=dim, optimizer=tern.Optimizer('sgd', lr=0.1), init=tern.Init('normal', 0.1, 5))
        table = self.tables().create(schema)
        return getattr(tern.torch, kind)(table, overlap=overlap, **options)

    def train(self, layer, own, batches, call):
        """Losses of both over the same batches are the same."""
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        target = torch.ones(layer.embedding_dim)
        for batch in batches:
            optimizer.zero_grad()
            losses = [((call(one, batch) - target) ** 2).mean() for one in (layer, own)]
            for loss in losses:
                loss.backward()
            optimizer.step()
            torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
        layer.flush()
        self.assertLess(losses[0].item(), 1.0)

    def test_embedding(self):
        for overlap in (False, True):
            self.serve, self.ctx = tern.Context('s'), tern.Context('c')
            layer = self.layer('Embedding', overlap)
            own = torch.nn.Embedding(30, 8)
            own.weight.data.copy_(torch.from_numpy(layer.table.pull(range(30))))
            generator = torch.Generator().manual_seed(1)
            batches = [torch.randint(30, (6, 5), generator=generator) for _ in range(20)]
            self.train(layer, own, batches, lambda one, batch: one(batch))
            self.ctx.close()
            self.serve.close()

    def test_bag(self):
        for mode in ('sum', 'mean'):
            self.serve, self.ctx = tern.Context('s'), tern.Context('c')
            layer = self.layer('EmbeddingBag', mode=mode)
            own = torch.nn.EmbeddingBag(30, 8, mode=mode)
            own.weight.data.copy_(torch.from_numpy(layer.table.pull(range(30))))
            generator = torch.Generator().manual_seed(2)
            batches = [torch.randint(30, (17,), generator=generator) for _ in range(20)]
            offsets = torch.tensor([0, 3, 3, 10])
            self.train(layer, own, batches, lambda one, batch: one(batch, offsets))
            self.ctx.close()
            self.serve.close()

    def test_workers_of_a_data_loader(self):
        """They are forked while the context has links and threads; the layer goes on with what they bring."""
        class Ids(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, i):
                return torch.tensor([i % 10, 10 + i % 7])
        layer = self.layer('EmbeddingBag')
        for _ in range(2):
            loader = torch.utils.data.DataLoader(Ids(), batch_size=8, num_workers=2, multiprocessing_context='fork')
            seen = 0
            for ids in loader:
                layer(ids).sum().backward()
                seen += len(ids)
            self.assertEqual(seen, 64)
        layer.flush()
        self.assertEqual(layer.table.stats()['rows'], 17)

    def test_dlpack(self):
        array = self.ctx.zeros((3, 2))
        tensor = torch.from_dlpack(array)
        tensor += 2
        self.assertEqual(array.sum(), 12)
        self.ctx.close()
        del array
        self.assertEqual(tensor.sum(), 12)

    def test_prefetch_and_eval(self):
        layer = self.layer('Embedding')
        ids = torch.tensor([3, 4, 3])
        layer.prefetch(ids)
        rows = layer(ids)
        self.assertTrue(rows.requires_grad)
        layer.eval()
        with torch.no_grad():
            torch.testing.assert_close(layer(ids), rows.detach())
            layer(torch.tensor([100]))
        self.assertEqual(layer.table.stats()['rows'], 2)  # evaluating creates no rows

    def run_workers(self, staleness, workers=2, rule=None, steps=40, name='job', bias=0.7):
        """Linear regression on workers of their own context each: (weights of worker 0 by step, last loss)."""
        import tern.torch
        data = torch.Generator().manual_seed(3)
        x = torch.randn(steps, workers * 8, 5, generator=data)
        truth = torch.tensor([1.0, -2.0, 3.0, 0.5, 0.0])
        y = x @ truth + bias
        failures, histories, losses = [], {}, {}

        def work(rank):
            try:
                with tern.Context(f'{name} {rank}') as ctx:
                    model = torch.nn.Linear(5, 1, bias=bias != 0)
                    torch.nn.init.constant_(model.weight, 0.1 * (rank + 1))  # all begin with the first one's
                    optimizer = tern.torch.ServerOptimizer(model.named_parameters(), ctx.tables(self.serve.address),
                                                           f'worker {rank}', workers=workers, staleness=staleness, name=name,
                                                           rule=rule or tern.Optimizer('sgd', lr=0.1), timeout=30)
                    with optimizer:
                        start.wait()
                        histories[rank] = [model.weight.detach().clone()]
                        for step in range(steps):
                            mine = slice(rank * 8, rank * 8 + 8)
                            optimizer.zero_grad()
                            loss = ((model(x[step, mine]).squeeze(1) - y[step, mine]) ** 2).mean()
                            loss.backward()
                            optimizer.step()
                            histories[rank].append(model.weight.detach().clone())
                        losses[rank] = loss.item()
            except Exception as failure:  # pylint: disable=broad-except
                failures.append(failure)
                start.abort()
        start = threading.Barrier(workers)
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertEqual(failures, [])
        return x, y, histories, losses

    def test_server_optimizer_in_step(self):
        """Bulk synchronous is one process with the mean gradient, whatever the rule."""
        self.tables()
        for name, rule, own_rule in (('sgd', tern.Optimizer('sgd', lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
                                     ('adam', tern.Optimizer('adam', lr=0.05), lambda p: torch.optim.Adam(p, lr=0.05))):
            x, y, histories, _ = self.run_workers(0, rule=rule, name=name, bias=0)
            own = torch.nn.Linear(5, 1, bias=False)
            own.weight.data.copy_(histories[0][0])
            self.assertTrue(torch.equal(histories[0][0], histories[1][0]), 'both begin with the same values')
            optimizer = own_rule(own.parameters())
            for step, (batch, wanted) in enumerate(zip(x, y)):
                optimizer.zero_grad()
                ((own(batch).squeeze(1) - wanted) ** 2).mean().backward()
                optimizer.step()
                torch.testing.assert_close(own.weight.detach(), histories[0][step + 1], rtol=1e-4, atol=1e-4)
                self.assertTrue(torch.equal(histories[0][step + 1], histories[1][step + 1]), f'{name}, step {step}')

    def test_server_optimizer_ahead(self):
        """Asynchronous and stale synchronous workers arrive as well, with other rules too."""
        self.tables()
        for name, staleness, rule in (('stale', 2, tern.Optimizer('sgd', lr=0.1)), ('free', None, tern.Optimizer('adam', lr=0.1)),
                                      ('three', 1, tern.Optimizer('momentum', lr=0.02))):
            _, _, histories, losses = self.run_workers(staleness, 3, rule, 150, name)
            self.assertLess(max(losses.values()), 0.05, name)
            truth = torch.tensor([[1.0, -2.0, 3.0, 0.5, 0.0]])
            torch.testing.assert_close(histories[0][-1], truth, rtol=0.15, atol=0.15)

    def test_server_optimizer_misuse(self):
        import tern.torch
        self.tables().close()
        tables = self.ctx.tables(self.serve.address, timeout=0.5)
        model = torch.nn.Linear(2, 2)
        with self.assertRaisesRegex(ValueError, 'named_parameters'):
            tern.torch.ServerOptimizer(model.parameters(), tables, 'a')
        with self.assertRaisesRegex(ValueError, 'float32'):
            tern.torch.ServerOptimizer(torch.nn.Linear(2, 2).double().named_parameters(), tables, 'a')
        optimizer = tern.torch.ServerOptimizer(model.named_parameters(), tables, 'a', staleness=0, name='m')
        late = tern.torch.ServerOptimizer(torch.nn.Linear(2, 2).named_parameters(), tables, 'b', staleness=0, name='m')
        model(torch.ones(1, 2)).sum().backward()
        with self.assertRaisesRegex(TimeoutError, 'b'):  # who is missing
            optimizer.step()
        late.close()
        optimizer.close()
        optimizer.close()

    def test_misuse(self):
        layer = self.layer('Embedding')
        table = layer.table
        with self.assertRaisesRegex(ValueError, 'int64'):
            table.pull(torch.tensor([1.0]))
        with self.assertRaisesRegex(ValueError, 'contiguous'):
            table.push(torch.tensor([1, 2]), torch.zeros(8, 2).T)
        with self.assertRaisesRegex(ValueError, 'requires grad'):
            table.pull(torch.tensor([1]), torch.zeros(1, 8, requires_grad=True))


if __name__ == '__main__':
    unittest.main()
