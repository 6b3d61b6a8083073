# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: a server and a client in one process, a clean end."""
import unittest

import tern


class Pair(unittest.TestCase):
    """Two contexts of one process, joined by shared memory (or what `transports` says)."""
    transports = None

    def setUp(self):
        self.serve = tern.Context('serve', transports=self.transports)
        self.addCleanup(self.serve.close)
        self.ctx = tern.Context('work', transports=self.transports)
        self.addCleanup(self.ctx.close)

    def tables(self, **params):
        """A client of a fresh server."""
        self.serve.table_server(**params)
        return self.ctx.tables(self.serve.address)
