#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern perf` measures what it says and prints it in both forms. Times are not judged."""
import glob
import json
import shutil
import unittest

from common import tern


class Perf(unittest.TestCase):
    def rows(self, *args):
        out = json.loads(tern("perf", "--json", "--rounds", 1, "--round-time", "20ms", *args, check=0)[1])
        return out, {(row["op"], row["bytes"]): row for row in out["rows"]}

    def test_every_operation(self):
        for transport in ("shm", "tcp"):
            for mode in ("--spin", "--block"):
                with self.subTest(transport=transport, mode=mode):
                    out, rows = self.rows("--transport", transport, mode, "--sizes", "8,4K,1M")
                    self.assertEqual(out["transport"], transport)
                    self.assertEqual(out["mode"], mode[2:])
                    for op in ("put", "get", "send", "call"):
                        for size in (8, 4096, 1 << 20):
                            row = rows[op, size]
                            self.assertGreater(row["p50_us"], 0)
                            self.assertLessEqual(row["p50_us"], row["p99_us"])
                            self.assertGreater(row["limit_us"], 0)
                    self.assertGreater(rows["put", 1 << 20]["bandwidth_ratio"], 0)
                    self.assertGreater(out["cache_line_before_us"], 0)

    def test_notify(self):
        for transport in ("shm", "tcp"):
            for mode in ("--spin", "--block"):
                with self.subTest(transport=transport, mode=mode):
                    _, rows = self.rows("--transport", transport, mode, "--op", "notify", "--sizes", "8,64K")
                    self.assertGreater(rows["notify", 8]["p50_us"], 0)
                    self.assertGreater(rows["notify", 65536]["bandwidth_ratio"], 0)

    def test_interval_holds_the_median(self):
        out = json.loads(tern("perf", "--json", "--rounds", 6, "--round-time", "5ms", "--op", "get", "--sizes", "8",
                              "--transport", "shm", check=0)[1])
        row = out["rows"][0]
        self.assertLessEqual(row["latency_ratio_low"], row["latency_ratio"])
        self.assertLessEqual(row["latency_ratio"], row["latency_ratio_high"])

    def test_threads_share_lanes_and_registrations(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                out = json.loads(tern("perf", "--json", "--transport", transport, "--round-time", "20ms",
                                      "--threads", 32, check=0)[1])
                rows = out["threads"]
                self.assertEqual([row["threads"] for row in rows], [1, 2, 4, 8, 16, 32])
                self.assertGreater(rows[0]["lanes"], 0)
                self.assertEqual(len({row["lanes"] for row in rows}), 1, rows)
                # The allocator may have grown by an extent ahead of need meanwhile.
                for key in ("registrations", "extents"):
                    self.assertLessEqual(rows[-1][key], rows[0][key] + 1, rows)

    def test_table(self):
        out = tern("perf", "--op", "put,call", "--sizes", "8", "--rounds", 1, "--round-time", "10ms", check=0)[1]
        self.assertIn("limit", out)
        self.assertIn("put", out)


def active_device():
    for state in glob.glob("/sys/class/infiniband/*/ports/1/state"):
        with open(state, encoding="ascii") as file:
            if "ACTIVE" in file.read():
                return True
    return False


@unittest.skipUnless(active_device(), "no RDMA device: tests/vm runs this over Soft-RoCE")
class Verbs(unittest.TestCase):
    def run_perf(self, *args):
        return json.loads(tern("perf", "--json", "--transport", "verbs", "--round-time", "100ms", *args, check=0)[1])

    def test_queue_pairs_and_registrations_do_not_grow_with_threads(self):
        out = self.run_perf("--threads", 32)
        self.assertEqual(out["transport"], "verbs")
        self.assertEqual([row["threads"] for row in out["threads"]], [1, 2, 4, 8, 16, 32])
        rows = out["threads"]
        self.assertEqual({row["lanes"] for row in rows}, {rows[0]["lanes"]})
        # One registration per extent; the allocator may have grown by one ahead of need meanwhile.
        for row in rows:
            self.assertEqual(row["registrations"], row["extents"], out)
        self.assertLessEqual(rows[-1]["registrations"], rows[0]["registrations"] + 1, out)

    def test_rows_stand_beside_perftest(self):
        out = self.run_perf("--spin", "--rounds", 1, "--op", "put,notify,get", "--sizes", "8,64K")
        self.assertEqual(len(out["rows"]), 6)
        limits = {(row["op"], row["bytes"]): row["limit_us"] for row in out["rows"]}
        for (op, size), limit in limits.items():
            if shutil.which("ib_write_lat"):
                self.assertGreater(limit, 0, (op, size))
            else:
                self.assertIsNone(limit)
                self.assertIn("install perftest", out["no_limit"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
