#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a random process at a random moment: the others end, the dead is named, nothing is left behind.

TERN_KILLS in the environment says how often (default 40; the full run is 200).
"""
import os
import random
import signal
import subprocess
import time
import unittest

from common import DataCase, TERN, alive, children_of, end, environment

KILLS = int(os.environ.get("TERN_TEST_KILLS", "40"))
# Published bound: a dead process is noticed at once, the launcher waits 0.3 s for the verdict and gives the
# others 3 s before it kills them.
BOUND_S = 12


def leftovers():
    kept = set(os.listdir("/dev/shm"))
    return kept | {name for name in os.listdir("/tmp") if name.startswith("tern") and not name.startswith("tern-test-")}


class Kill(DataCase):
    def one(self, rng, transport, comm):
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", "--quiet", "--batch", "16",
                                    "--transport", transport, "--comm", comm],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        try:
            time.sleep(rng.uniform(0.02, 1.2))
            parts = children_of(process.pid)
            if not parts:
                time.sleep(0.3)
                parts = children_of(process.pid)
            name = rng.choice(sorted(parts))
            os.kill(parts[name], signal.SIGKILL)
            started = time.monotonic()
            _, err = process.communicate(timeout=BOUND_S + 20)
            took = time.monotonic() - started
            self.assertLess(took, BOUND_S, err)
            self.assertEqual(process.returncode, 1, err)
            self.assertIn(name, err)
            self.assertIn("killed by signal 9", err)
            for pid in list(parts.values()) + list(children_of(process.pid).values()):
                self.assertFalse(alive(pid), err)
        finally:
            end(process)

    def test_random_kills(self):
        rng = random.Random(os.environ.get("TERN_TEST_SEED", "20"))
        before = leftovers()
        for i in range(KILLS):
            transport = rng.choice(("shm", "tcp"))
            comm = rng.choice(("zerocopy", "zerocopy", "copy", "rpc"))
            with self.subTest(kill=i, transport=transport, comm=comm):
                self.one(rng, transport, comm)
        self.assertEqual(leftovers() - before, set())

    def test_stopped_process_is_named(self):
        """SIGSTOP of a server: its peers notice within the keepalive bound and say who it is."""
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", "--quiet"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment(TERN_LINK_KEEPALIVE="500ms"))
        try:
            deadline = time.monotonic() + 30
            while len(children_of(process.pid)) < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(1.5)
            parts = children_of(process.pid)
            os.kill(parts["server0"], signal.SIGSTOP)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1)
            self.assertIn("server0", err)
            self.assertFalse([n for n, pid in parts.items() if alive(pid)])
        finally:
            end(process)


if __name__ == "__main__":
    unittest.main(verbosity=2)
