#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models over several processes: stages compute what one process does, move what the plan says, and end together."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from common import DataCase, TERN, alive, children_of, end, environment, free_port, tern, wait_for_children

JOB = ("--sync", "--steps", 6, "--lr", 0.01, "--momentum", 0.5)


def losses(path):
    with open(path, encoding="ascii") as file:
        return [float.fromhex(line.split()[1]) for line in file]


class Stages(DataCase):
    def with_losses(self, *args):
        with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
            result = self.train("--losses", file.name, "--no-eval", *args)
            return result, losses(file.name)

    def close(self, got, reference):
        self.assertEqual(len(got), len(reference))
        for a, b in zip(got, reference):
            self.assertAlmostEqual(a, b, delta=1e-4 * max(1.0, abs(b)))

    def test_one_worker_alone(self):
        """Without servers each stage has the variables that it uses."""
        alone = (*JOB, "--servers", 0, "--workers", 1)
        _, reference = self.with_losses(*alone)
        for stages, transport in ((2, "shm"), (3, "tcp")):
            with self.subTest(stages=stages):
                result, got = self.with_losses(*alone, "--model-parallel", stages, "--transport", transport)
                self.assertEqual(got, reference)
                self.assertEqual(result["transport"], transport)
                self.assertEqual(result["options"]["model_parallel"], stages)
                self.assertIsNone(result["accuracy"])
        _, got = self.with_losses(*alone, "--model-parallel", 2, "--micro-batches", 4)
        self.close(got, reference)

    def test_with_data_parallelism(self):
        """Stages of two workers: the bits of workers in one piece; every way to move tensors gives the same bits."""
        both = (*JOB, "--servers", 2, "--workers", 2, "--batch", 32)
        _, reference = self.with_losses(*both)
        _, got = self.with_losses(*both, "--model-parallel", 2)
        self.assertEqual(got, reference)
        pieces = None
        for comm in ("zerocopy", "copy", "rpc"):
            with self.subTest(comm=comm):
                _, got = self.with_losses(*both, "--model-parallel", 2, "--micro-batches", 4, "--comm", comm)
                self.close(got, reference)
                pieces = pieces or got
                self.assertEqual(got, pieces)

    def test_a_convolutional_net(self):
        job = (*JOB[:1], "--model", "convnet_small", "--steps", 3, "--servers", 1, "--workers", 1, "--batch", 16)
        _, reference = self.with_losses(*job)
        _, got = self.with_losses(*job, "--model-parallel", 2)
        self.assertEqual(got, reference)

    def test_asynchronous(self):
        result = self.train("--steps", 6, "--model-parallel", 2, "--consistency", "ssp", "--staleness", 1)
        self.assertEqual(result["steps"], 6)

    def test_moves_what_the_plan_says(self):
        split = ("--servers", 2, "--workers", 2, "--model-parallel", 2, "--micro-batches", 2)
        plan = json.loads(tern("graph", "plan", "mlp", *split, "--dims", "batch=32", "--json", check=0)[1])
        names = [d["name"] for d in plan["devices"]]
        self.assertEqual(names, ["server0", "server1", "worker0/stage0", "worker0/stage1", "worker1/stage0", "worker1/stage1"])
        between = [e for e in plan["edges"] if "stage0" in e["src"] and "stage1" in e["dst"]]
        back = [e for e in plan["edges"] if "stage1" in e["src"] and "stage0" in e["dst"]]
        self.assertEqual(len(between), 2 * 2)  # an activation per worker and piece
        self.assertEqual(len(back), 2 * 2)     # and its gradient
        for edge in plan["edges"]:
            self.assertTrue(edge["static"], edge)
            self.assertEqual(edge["copies"], 0, edge)
        result = self.train(*JOB, *split, "--batch", 32, "--transport", "shm")
        self.assertEqual(result["bytes"], 6 * sum(e["bytes"] for e in plan["edges"]))
        self.assertEqual(result["writes"], 6 * len(plan["edges"]))
        self.assertEqual((result["copies"], result["staging_copies"]), (0, 0))

    def test_what_a_stage_costs_alone(self):
        result = self.train(*JOB, "--model-parallel", 2, "--no-comm")
        self.assertEqual((result["steps"], result["bytes"]), (6, 0))

    def test_trace(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            self.train(*JOB, "--model-parallel", 2, "--trace", f"{folder}/t.json")
            self.assertEqual(os.listdir(folder), ["t.json"])
            with open(f"{folder}/t.json", encoding="utf-8") as file:
                self.assertGreater(len(json.load(file)), 6)

    def test_resumed_bit_by_bit(self):
        job = (*JOB[:1], *JOB[3:], "--servers", 0, "--workers", 1, "--model-parallel", 2, "--micro-batches", 2)
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            # lr is constant only if both runs have the same steps: the second run does the last 3 of 6
            _, whole = self.with_losses(*job, "--steps", 6, "--save", folder, "--save-every", 3)
            os.unlink(f"{folder}/step-0000000006/worker0.stage1.safetensors")
            _, rest = self.with_losses(*job, "--steps", 6, "--resume", folder)
            self.assertEqual(rest, whole[3:])

    def test_by_hand_over_a_cluster_list(self):
        """As on several hosts: servers, then stage 0 of each worker, then stage 1; the last stage dials only."""
        _, reference = self.with_losses(*JOB, "--servers", 1, "--workers", 2, "--model-parallel", 3)
        cluster = ",".join(f"127.0.0.1:{free_port()}" for _ in range(1 + 2 + 2))
        common = ["--cluster", cluster, *JOB, "--servers", 1, "--workers", 2, "--model-parallel", 3, "--data", self.data]
        parts = {}
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            for who in ("worker0.2", "worker1.1", "worker0.0", "server0", "worker1.0", "worker0.1", "worker1.2"):
                stage = ["--stage", who[-1]] if "." in who else []
                more = ["--losses", f"{folder}/{who}", "--json"] if "." in who else []
                args = ["--role", who[:6], "--index", who[6], *stage, *more, *common]
                parts[who] = subprocess.Popen([TERN, "train", *map(str, args)], stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True, env=environment())
                self.addCleanup(parts[who].stdout.close)
                self.addCleanup(parts[who].stderr.close)
                self.addCleanup(end, parts[who])
            for who, part in parts.items():
                _, err = part.communicate(timeout=90)
                self.assertEqual(part.returncode, 0, f"{who}: {err}")
            mean = [sum(pair) / 2 for pair in zip(losses(f"{folder}/worker0.2"), losses(f"{folder}/worker1.2"))]
        self.assertEqual(mean, reference)

    def test_mistakes(self):
        for args, words in ((("--micro-batches", 7), "equal pieces"),
                            (("--servers", 200, "--workers", 200, "--model-parallel", 2), "at most 512 processes"),
                            (("--stage", 1), "--stage goes with --role worker"),
                            (("--role", "worker", "--index", 0, "--cluster", "127.0.0.1:1,127.0.0.1:2", "--model-parallel", 2,
                              "--stage", 2), "a worker has 2"),
                            (("--role", "worker", "--index", 0, "--cluster", "127.0.0.1:1,127.0.0.1:2", "--model-parallel", 2),
                             "the job has 4")):
            with self.subTest(args=args):
                self.assertIn(words, tern("train", "--data", self.data, *args, check=2)[2])


class Ending(DataCase):
    def start(self, *args):
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--quiet", "--workers", "2", "--model-parallel", "2",
                                    *map(str, args)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(end, process)
        parts = wait_for_children(process, 6)
        self.assertEqual(sorted(parts), ["server0", "server1", "worker0", "worker0/stage1", "worker1", "worker1/stage1"])
        return process, parts

    def test_the_dead_is_named(self):
        process, parts = self.start("--steps", 100000000, "--micro-batches", 4)
        os.kill(parts["worker1/stage1"], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("worker1/stage1 (pid", err)
        self.assertIn("killed by signal 9", err)
        self.assertFalse([name for name, pid in parts.items() if alive(pid)])

    def test_the_silent_is_named(self):
        """A stage that does not move is lost to its neighbours within the bound of any link."""
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            process, parts = self.start("--steps", 100000000, "--save", folder, "--save-every", 20)
            deadline = time.monotonic() + 60
            while not os.listdir(folder):  # it trains
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            os.kill(parts["worker0/stage1"], signal.SIGSTOP)
            _, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 1)
        self.assertIn("worker0/stage1 (pid", err)
        self.assertFalse([name for name, pid in parts.items() if alive(pid)])

    def test_goes_on_without_a_worker(self):
        """A worker is gone with any of its stages."""
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            process, parts = self.start("--sync", "--steps", 600, "--on-failure", "shrink", "--save", folder,
                                        "--save-every", 50, "--json")
            os.kill(parts["worker1"], signal.SIGKILL)
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("with 1 worker", err)
            self.assertEqual(json.loads(out)["failures"], 1)

    def test_ctrl_c_ends_all(self):
        process, parts = self.start("--steps", 100000000)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertFalse([name for name, pid in parts.items() if alive(pid)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
