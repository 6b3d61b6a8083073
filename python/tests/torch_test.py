# SPDX-License-Identifier: Apache-2.0
"""Layers of tern.torch against PyTorch's own."""
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
