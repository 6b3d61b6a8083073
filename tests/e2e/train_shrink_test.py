#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern train --on-failure shrink`: the job goes on without a process that died or fell silent, and says which it was."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from common import DataCase, TERN, end, environment, wait_for_children

STEPS = 3000


class Shrink(DataCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def start(self, *args, env=None):
        return subprocess.Popen([TERN, "train", "--data", self.data, "--quiet", "--json", "--no-eval", "--sync", "--batch", "16",
                                 "--steps", str(STEPS), "--servers", "2", "--losses", self.path("losses.txt"), *args],
                                env=env or environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_checkpoint(self, job):
        while job.poll() is None:
            for folder, _, names in os.walk(self.path("save")):
                if len([n for n in names if not n.startswith(".")]) == 2:
                    return folder
            time.sleep(0.005)
        return None

    def disturb(self, victim, sig, *args, env=None):
        """One signal for one process after the first checkpoint; returns the job's result and what it said."""
        job = self.start("--save", self.path("save"), "--save-every", "50", "--on-failure", "shrink", *args, env=env)
        try:
            children = wait_for_children(job, 4)
            self.assertIsNotNone(self.wait_for_checkpoint(job), "it was over before it could be disturbed")
            os.kill(children[victim], sig)
            out, err = job.communicate(timeout=100)
            self.assertEqual(job.returncode, 0, err)
        finally:
            end(job)
        self.assertIn(victim, err)
        self.assertIn("going on from step", err)
        result = json.loads(out)
        self.assertEqual(result["failures"], 1)
        with open(self.path("losses.txt"), encoding="ascii") as file:
            self.assertEqual([int(line.split()[0]) for line in file], list(range(STEPS)))
        return result, err

    def test_a_worker_dies(self):
        _, err = self.disturb("worker1", signal.SIGKILL, "--workers", "2")
        self.assertIn("with 1 worker", err)
        self.assertIn("killed by signal 9", err)

    def test_a_worker_is_silent(self):
        _, err = self.disturb("worker0", signal.SIGSTOP, "--workers", "2", env=environment(TERN_LINK_KEEPALIVE="300ms"))
        self.assertIn("with 1 worker", err)

    def test_a_server_dies(self):
        """Another one takes its place from the checkpoint: the job ends as if nothing had been."""
        last = f"step-{STEPS:010}"
        whole = self.start("--workers", "2", "--save", self.path("whole"))
        _, err = whole.communicate(timeout=100)
        self.assertEqual(whole.returncode, 0, err)
        with open(self.path("losses.txt"), encoding="ascii") as file:
            losses = file.read()
        _, err = self.disturb("server1", signal.SIGKILL, "--workers", "2")
        self.assertIn("with 2 workers", err)
        with open(self.path("losses.txt"), encoding="ascii") as file:
            self.assertEqual(file.read(), losses)
        for name in ("server0.safetensors", "server1.safetensors"):
            with open(self.path("whole", last, name), "rb") as a, open(self.path("save", last, name), "rb") as b:
                self.assertEqual(a.read(), b.read())

    def test_the_last_worker_dies(self):
        job = self.start("--workers", "1", "--on-failure", "shrink")
        try:
            children = wait_for_children(job, 3)
            os.kill(children["worker0"], signal.SIGKILL)
            _, err = job.communicate(timeout=60)
        finally:
            end(job)
        self.assertEqual(job.returncode, 1)
        self.assertIn("worker0", err)
        self.assertNotIn("going on", err)


if __name__ == "__main__":
    unittest.main()
