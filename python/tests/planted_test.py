# SPDX-License-Identifier: Apache-2.0
"""A leak, made on purpose: memory_test.py has to find it, or its silence means nothing. Not a test of its own."""
import tempfile
import unittest

import tern
from tern._lib import const, ffi, lib


class PlantedTest(unittest.TestCase):
    def test_open_and_forget(self):
        with tempfile.TemporaryDirectory(prefix='tern-test-') as folder, tern.Context('planted') as ctx:
            ctx.table_server()
            tables = ctx.tables(ctx.address)
            tables.create(tern.Schema('t', dim=4)).push([1], [[1, 2, 3, 4]])
            tables.save(folder)
            for _ in range(5):
                out = ffi.new('tern_checkpoint **')
                self.assertEqual(lib.tern_checkpoint_open(folder.encode(), const['TERN_CHECKPOINT_LAST'], out), lib.TERN_OK)


if __name__ == '__main__':
    unittest.main()
