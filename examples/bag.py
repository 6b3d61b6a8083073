# SPDX-License-Identifier: Apache-2.0
"""A click model whose embedding rows live in a parameter server, not in this process.

    python3 bag.py HOST:PORT
"""
import sys

import torch
from torch import nn

import tern
import tern.torch

with tern.Context('worker') as ctx:
    table = ctx.tables(sys.argv[1]).create(
        tern.Schema('clicks', dim=16, optimizer=tern.Optimizer('adagrad', lr=0.1), init=tern.Init('normal', 0.1)))
    torch.manual_seed(1)
    bags = tern.torch.EmbeddingBag(table, mode='sum')       # as nn.EmbeddingBag, but without num_embeddings
    top = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adagrad(top.parameters(), lr=0.1)  # rows are updated by the server as they are pushed
    for step in range(200):
        ids = torch.randint(0, 2**40, (64, 3)) % 1009 * 2**30   # 1009 ids, far apart
        label = ((ids // 2**30).sum(1) % 2).float()[:, None]
        loss = nn.functional.binary_cross_entropy_with_logits(top(bags(ids)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print('loss', round(loss.item(), 3), 'rows', table.stats()['rows'])
