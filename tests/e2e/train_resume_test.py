#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of `tern train`: a job that is resumed goes on bit by bit as it would have, also after kill -9."""
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from common import DataCase, TERN, end, environment, wait_for_children

JOB = ("--sync", "--no-eval", "--batch", 16, "--seed", 7)


def files(folder):
    """{file: bytes} of a step."""
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


class Resume(DataCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def losses(self, name):
        with open(self.path(name), encoding="ascii") as file:
            return file.read().splitlines()

    def check(self, *job):
        """20 steps are 10, and 10 more by other processes."""
        self.train(*JOB, *job, "--steps", 20, "--save", self.path("whole"), "--save-every", 10, "--losses",
                   self.path("whole.txt"))
        self.assertEqual(sorted(os.listdir(self.path("whole"))), ["step-0000000010", "step-0000000020"])
        shutil.copytree(self.path("whole", "step-0000000010"), self.path("half", "step-0000000010"))
        result = self.train(*JOB, *job, "--steps", 20, "--resume", self.path("half"), "--save", self.path("again"),
                            "--losses", self.path("again.txt"))
        self.assertEqual(result["steps"], 10)
        self.assertEqual(self.losses("again.txt"), self.losses("whole.txt")[10:])
        self.assertEqual(os.listdir(self.path("again")), ["step-0000000020"])
        self.assertEqual(files(self.path("again", "step-0000000020")), files(self.path("whole", "step-0000000020")))

    def test_servers(self):
        self.check("--servers", 2, "--workers", 2)

    def test_alone(self):
        self.check("--servers", 0, "--workers", 1)

    def test_by_calls(self):
        self.check("--servers", 1, "--workers", 3, "--comm", "rpc", "--momentum", 0)

    def test_old_ones_go(self):
        self.train(*JOB, "--steps", 12, "--save", self.path("s"), "--save-every", 2)
        self.assertEqual(sorted(os.listdir(self.path("s"))), [f"step-{n:010}" for n in (8, 10, 12)])

    def test_kill_at_any_step(self):
        steps = 4000
        job = (*JOB, "--servers", 2, "--workers", 2, "--steps", steps)
        self.train(*job, "--save", self.path("whole"))
        command = [TERN, "train", "--data", self.data, "--quiet", *map(str, job), "--save", self.path("k"),
                   "--save-every", "20"]
        dice = random.Random()
        for victim in ("worker1", "server0"):
            process = subprocess.Popen([*command, *(["--resume", self.path("k")] if os.path.exists(self.path("k")) else [])],
                                       env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                children = wait_for_children(process, 4)
                while process.poll() is None and not self.complete():
                    time.sleep(0.01)
                time.sleep(dice.random() * 0.3)
                if process.poll() is None:
                    os.kill(children[victim], signal.SIGKILL)
                _, err = process.communicate(timeout=60)
                if process.returncode:
                    self.assertIn(victim, err)
            finally:
                end(process)
            if not process.returncode:  # it was quicker than we
                return
        self.train(*job, "--resume", self.path("k"), "--save", self.path("again"))
        last = f"step-{steps:010}"
        self.assertEqual(files(self.path("again", last)), files(self.path("whole", last)))

    def complete(self):
        """Is there a checkpoint of both servers?"""
        for folder, _, names in os.walk(self.path("k")):
            if len([name for name in names if not name.startswith(".")]) == 2:
                return folder
        return None

    def test_what_does_not_fit(self):
        out, err = self.train(*JOB, "--steps", 4, "--resume", self.path("none"), check=2)
        self.assertIn("No such file", err)
        self.train(*JOB, "--steps", 4, "--servers", 2, "--save", self.path("s"))
        for job, words in ((("--servers", 3), "3 servers"), (("--servers", 2, "--steps", 4), "give more"),
                           (("--servers", 2, "--hidden", "5"), "fc1")):
            with self.subTest(job=job):
                out, err = self.train(*JOB, "--steps", 8, *job, "--resume", self.path("s"), check=None)
                self.assertRegex(out + err, words)
        victim = self.path("s", "step-0000000004", "server1.safetensors")
        with open(victim, "r+b") as file:
            file.truncate(os.path.getsize(victim) - 5)
        out, err = self.train(*JOB, "--steps", 8, "--resume", self.path("s"), check=1)
        self.assertIn("server1", err)
        self.assertTrue(re.search("corrupt|CORRUPT", err), err)

    def test_other_programs_read_it(self):
        try:
            from safetensors.numpy import load_file  # pylint: disable=import-outside-toplevel
        except ImportError:
            load_file = None
        self.train(*JOB, "--steps", 3, "--servers", 1, "--save", self.path("s"))
        path = self.path("s", "step-0000000003", "server0.safetensors")
        with open(path, "rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little")).decode()
        self.assertIn('"fc1/w"', header)
        self.assertIn('"steps":"3"', header.replace(" ", ""))
        if load_file:
            self.assertIn("fc1/w", load_file(path))


if __name__ == "__main__":
    unittest.main()
