# SPDX-License-Identifier: Apache-2.0
"""A click model of the shape of DLRM: dense features, three bags of ids, a top network. Prints its losses.

    limit_script.py tern HOST:PORT        rows in tables of a parameter server
    limit_script.py local HOST:PORT       rows in nn.EmbeddingBag, which begin as those of the tables
"""
import sys

import torch
from torch import nn

import tern
import tern.torch

ROWS, DIM, TABLES, STEPS, BATCH, LR = 200_000, 256, 3, 30, 64, 0.2


class Model(nn.Module):
    """Bottom network, bags, top network."""

    def __init__(self, bags):
        super().__init__()
        torch.manual_seed(5)
        self.bags = nn.ModuleList(bags)
        self.bottom = nn.Sequential(nn.Linear(13, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM * (TABLES + 1), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, ids):
        """Click or not, as a logit."""
        return self.top(torch.cat([self.bottom(dense)] + [bag(i) for bag, i in zip(self.bags, ids)], 1))


def batches():
    generator = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        ids = [torch.randint(ROWS, (BATCH, 4), generator=generator) for _ in range(TABLES)]
        dense = torch.randn(BATCH, 13, generator=generator)
        yield dense, ids, (dense.sum(1, keepdim=True) > 0).float()


def open_tables(tables):
    return [tables.create(tern.Schema(f'bag{i}', dim=DIM, optimizer=tern.Optimizer('sgd', lr=LR),
                                      init=tern.Init('uniform', 0.05, i))) for i in range(TABLES)]


def main():
    torch.set_num_threads(1)
    kind, address = sys.argv[1:]
    with tern.Context(f'{kind} worker') as ctx:
        tables = open_tables(ctx.tables(address))
        if kind == 'fill':  # every row is there before anybody trains
            for table in tables:
                for first in range(0, ROWS, 10_000):
                    table.pull(range(first, first + 10_000))
            return
        if kind == 'tern':
            model = Model([tern.torch.EmbeddingBag(table, mode='sum') for table in tables])
        else:
            bags = [nn.EmbeddingBag(ROWS, DIM, mode='sum', sparse=True) for _ in tables]
            for bag, table in zip(bags, tables):
                for first in range(0, ROWS, 10_000):
                    bag.weight.data[first:first + 10_000] = torch.from_numpy(table.pull(range(first, first + 10_000)))
            model = Model(bags)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for dense, ids, label in batches():
            loss = nn.functional.binary_cross_entropy_with_logits(model(dense, ids), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f'{loss.item():.6f}')


if __name__ == '__main__':
    main()
