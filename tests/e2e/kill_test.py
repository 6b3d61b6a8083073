#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a random process at a random moment: the others end, the dead is named, nothing is left behind.

TERN_TEST_KILLS in the environment says how often (default 200; 25 under sanitizers).
"""
import os
import random
import signal
import subprocess
import time
import unittest

from common import DataCase, SANITIZED, TERN, alive, children_of, end, environment, wait_for_children

KILLS = int(os.environ.get("TERN_TEST_KILLS", "25" if SANITIZED else "200"))
# Published bound: a dead process is noticed at once, the launcher waits 0.3 s for the verdict and gives the
# others 3 s before it kills them.
BOUND_S = 12


def names():
    """Files that a job could leave: by name, since memory of memfd_create has none."""
    found = set()
    for folder in ("/dev/shm", "/tmp", "/run/user/%d" % os.getuid()):
        try:
            found |= {f"{folder}/{name}" for name in os.listdir(folder)
                      if name.startswith("tern") and not name.startswith("tern-test-")}
        except OSError:
            continue
    return found


def leftovers(before, started):
    """Those made since then. Whatever else runs on the host leaves its own."""
    found = []
    for path in sorted(names() - before):
        try:
            if os.stat(path).st_uid == os.getuid() and os.stat(path).st_ctime >= started:
                found.append(path)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


class Kill(DataCase):
    def one(self, rng, transport, comm):
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", "--quiet", "--batch", "16",
                                    "--transport", transport, "--comm", comm],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        parts = {}
        try:
            time.sleep(rng.uniform(0.02, 1.2))
            parts = wait_for_children(process, 1)
            self.assertTrue(parts, "the launcher started nothing")
            name = rng.choice(sorted(parts) + ["launcher"])
            if name == "launcher":
                self.kill_launcher(process)
            else:
                self.kill_part(process, name, parts)
        finally:
            end(process)

    def kill_part(self, process, name, parts):
        os.kill(parts[name], signal.SIGKILL)
        started = time.monotonic()
        _, err = process.communicate(timeout=BOUND_S + 20)
        self.assertLess(time.monotonic() - started, BOUND_S, err)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn(name, err)
        self.assertIn("killed by signal 9", err)
        self.assertFalse([n for n, pid in parts.items() if alive(pid)], err)

    def kill_launcher(self, process):
        """Nobody is left to name it; the processes end by themselves."""
        process.send_signal(signal.SIGSTOP)  # so that the list is complete
        parts = children_of(process.pid)
        process.kill()
        started = time.monotonic()
        process.communicate(timeout=BOUND_S + 20)  # their ends of its pipes are closed too
        while [n for n, pid in parts.items() if alive(pid)]:
            self.assertLess(time.monotonic() - started, BOUND_S, parts)
            time.sleep(0.02)

    def test_random_kills(self):
        rng = random.Random(os.environ.get("TERN_TEST_SEED", "20"))
        before, started = names(), time.time() - 1
        for i in range(KILLS):
            transport = rng.choice(("shm", "tcp"))
            comm = rng.choice(("zerocopy", "zerocopy", "copy", "rpc"))
            with self.subTest(kill=i, transport=transport, comm=comm):
                self.one(rng, transport, comm)
        self.assertEqual(leftovers(before, started), [])

    def test_stopped_process_is_named(self):
        """SIGSTOP of a server: its peers notice within the keepalive bound and say who it is."""
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", "--quiet"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment(TERN_LINK_KEEPALIVE="500ms"))
        try:
            self.assertEqual(len(wait_for_children(process, 4)), 4)
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
