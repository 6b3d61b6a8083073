# SPDX-License-Identifier: Apache-2.0
"""A script of somebody else: a table's rows, and an array that is put into another context's memory."""
import numpy as np

import tern

with tern.Context('there') as there, tern.Context('here') as here:
    listener = there.listen('arrays')
    channel = here.connect(there.address).open('arrays')
    other = listener.accept(timeout=10)
    target = there.empty(1000, np.float32)
    target[:] = 0
    channel.put(here.array(np.arange(1000, dtype=np.float32)), there.export(target), notify=3, timeout=10)
    assert other.notified(timeout=10)[0] == 3
    assert (target == np.arange(1000)).all()

    there.table_server()
    tables = here.tables(there.address)
    users = tables.create(tern.Schema('users', dim=4, optimizer=tern.Optimizer('sgd', lr=1.0)))
    users.push([17], np.full((1, 4), -2, np.float32))
    assert (users.pull([17]) == 2).all()
print('transferred with', tern.__version__)
