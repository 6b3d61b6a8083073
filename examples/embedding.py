# SPDX-License-Identifier: Apache-2.0
"""Train a few embeddings in a parameter server and save them.

    python3 embedding.py HOST:PORT FOLDER
"""
import sys

import numpy as np

import tern

address, folder = sys.argv[1:3]
with tern.Context('trainer') as ctx:
    tables = ctx.tables(address)
    items = tables.create(tern.Schema('items', dim=8, optimizer=tern.Optimizer('sgd', lr=0.5),
                                      init=tern.Init('zeros')))
    wanted = np.arange(1, 5, dtype='float32')[:, None] * np.ones((1, 8), 'float32')
    keys = [17, 4711, 2**40, 99]         # any 64-bit numbers: there is no vocabulary
    for step in range(20):
        rows = items.pull(keys)          # keys that are new come into being
        items.push(keys, rows - wanted)  # the gradient of |rows - wanted|^2 / 2; applied once, whatever happens
    print('error', round(float(np.abs(items.pull(keys) - wanted).max()), 4))
    tables.save(folder)                  # one consistent cut of all tables
