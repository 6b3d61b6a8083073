#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern demo` on a small set: it goes through to its end and its table says what the modes promise."""
import re
import unittest

from common import DataCase, SANITIZED, tern

ROW = re.compile(r"^  (no communication|(?:zerocopy|copy|rpc) over (?:shm|tcp)) +([\d.]+) +([\d.]+)x +([\d.]+) +(\d+) +"
                 r"([\d.]+) +(-|[\d.]+)$", re.M)


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(row.split()[1]) * 1024 for row in file if row.startswith("MemAvailable"))


@unittest.skipIf(SANITIZED, "too slow and too large under sanitizers")
@unittest.skipIf(available_bytes() < 6 << 30, "needs 6 GiB of free memory")
class Demo(DataCase):
    def test_one_step_of_each(self):
        out = tern("demo", "--quiet", "--epochs", 1, "--steps", 1, "--data", self.data, timeout=280, check=0)[1]
        rows = {row[0]: row for row in ROW.findall(out)}
        self.assertEqual(len(rows), 7, out)
        self.assertIn("test accuracy", out)
        self.assertIn("Next:", out)
        for name, row in rows.items():
            moved, copies = float(row[3]), int(row[4])
            self.assertGreater(float(row[1]), 0, name)
            self.assertEqual(moved > 0, name != "no communication", name)
            self.assertEqual(copies > 0, name.startswith(("copy", "rpc")), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
