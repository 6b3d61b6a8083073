#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern train --trace` and `--profile`: what a job did is all there, of every process; the straggler is named."""
import collections
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from common import DataCase, TERN, end, environment, tern, wait_for_children

STEPS = 7


class Trace(DataCase):
    def traced(self, *args):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            path = os.path.join(folder, "trace.json")
            self.train("--sync", "--steps", STEPS, "--no-eval", "--trace", path, *args)
            self.assertEqual(os.listdir(folder), ["trace.json"])  # no parts are left
            with open(path, encoding="utf-8") as file:
                return json.load(file)

    def test_all_of_a_job(self):
        events = self.traced("--servers", 2, "--workers", 2)
        names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
        self.assertEqual(sorted(names.values()), ["server0", "server1", "worker0", "worker1"])
        for pid, name in names.items():
            mine = [e for e in events if e["pid"] == pid and e["ph"] == "X"]
            self.assertEqual({e["cat"] for e in mine} - {"wait"}, {"compute", "transfer"}, name)
            kernels = collections.Counter(e["name"] for e in mine if e["cat"] == "compute")
            # Each once a step; workers take the last weights by one evaluation more.
            self.assertLessEqual(set(kernels.values()), {STEPS, STEPS + 1}, name)
            # One thread: nothing begins before what came before has ended.
            mine.sort(key=lambda e: e["ts"])
            for a, b in zip(mine, mine[1:]):
                self.assertLessEqual(a["ts"] + a["dur"], b["ts"] + 0.01)
            begun = [e["id"] for e in events if e["pid"] == pid and e["ph"] == "b"]
            ended = [e["id"] for e in events if e["pid"] == pid and e["ph"] == "e"]
            self.assertEqual(sorted(begun), sorted(ended))
            self.assertGreater(len(begun), STEPS)

    def test_alone(self):
        events = self.traced("--servers", 0, "--workers", 1)
        self.assertEqual({e["cat"] for e in events if e["ph"] == "X"}, {"compute"})

    def test_a_file_that_cannot_be_written(self):
        out, err = self.train("--steps", 1, "--no-eval", "--trace", "/nowhere/trace", check=1)
        self.assertIn("/nowhere/trace", out + err)

    def test_profile(self):
        _, out, err = tern("train", "--data", self.data, "--quiet", "--no-eval", "--sync", "--steps", STEPS, "--profile",
                           check=0)
        for name in ("server0", "server1", "worker0", "worker1"):
            self.assertRegex(err, rf"{name}: per step: [0-9.]+ ms computing")
        self.assertRegex(err, rf"worker0: .*MatMul +{STEPS} ")
        self.assertIn("servers waited longest for worker", out)


class Straggler(DataCase):
    def test_is_named(self):
        """A worker that stands still for a while: the servers waited for that one."""
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="tern-test-"))
        job = subprocess.Popen([TERN, "train", "--data", self.data, "--quiet", "--json", "--no-eval", "--sync", "--servers", "1",
                                "--workers", "3", "--steps", "3000", "--batch", "8", "--save", folder, "--save-every", "100"],
                               env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            workers = wait_for_children(job, 4)
            while job.poll() is None and not os.listdir(folder):  # the first step waits until all are there: nobody's fault
                time.sleep(0.005)
            os.kill(workers["worker1"], signal.SIGSTOP)
            time.sleep(4)  # far longer than what a busy host does to the others
            os.kill(workers["worker1"], signal.SIGCONT)
            out, _ = job.communicate(timeout=100)
            self.assertEqual(job.returncode, 0)
            self.assertEqual(json.loads(out)["straggler"]["name"], "worker1")
        finally:
            end(job)


if __name__ == "__main__":
    unittest.main()
