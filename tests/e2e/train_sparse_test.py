#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeddings as rows of tables (`tern train --sparse`): the losses of the dense way, fewer bytes, and the same ends."""
import json
import os
import random
import signal
import subprocess
import tempfile
import unittest

from common import TERN, alive, end, environment, free_port, tern, wait_for_children

WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps".split()
PAIRS = ("one eins", "two zwei", "three drei", "four vier", "five fuenf")


class Sparse(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tern-test-")
        cls.folder = cls.temporary.name
        rng = random.Random(3)
        with open(f"{cls.folder}/text", "w", encoding="ascii") as file:
            for _ in range(1000):
                file.write(" ".join(rng.choice(WORDS) for _ in range(12)) + "\n")
        with open(f"{cls.folder}/pairs", "w", encoding="ascii") as file:
            for _ in range(600):
                words = [rng.choice(PAIRS).split() for _ in range(rng.choice((2, 4, 7)))]
                file.write("\t".join(" ".join(column) for column in zip(*words)) + "\n")
        cls.charlm = ("--model", "charlm", "--text", f"{cls.folder}/text", "--length", 12, "--batch", 4, "--steps", 6)
        cls.seq2seq = ("--model", "seq2seq", "--text", f"{cls.folder}/pairs", "--vocabulary", 40, "--length", 10, "--batch", 4,
                       "--steps", 6)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def with_losses(self, *args):
        with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
            result = json.loads(tern("train", "--quiet", "--json", "--losses", file.name, *args, check=0)[1])
            with open(file.name, encoding="ascii") as lines:
                return result, [float.fromhex(line.split()[1]) for line in lines]

    def both(self, *args):
        dense, a = self.with_losses("--no-eval", *args)
        sparse, b = self.with_losses("--no-eval", "--sparse", *args)
        self.assertEqual(len(a), 6)
        self.assertLess(a[-1], a[0])
        for x, y in zip(a, b):
            # sums in another order; Adagrad divides by roots of small squares (Debian 13: 3.6e-5)
            self.assertAlmostEqual(x, y, delta=2e-4 * abs(x))
        return dense, sparse

    def test_as_the_dense_way(self):
        """Rows that are not named do not change with these optimisers, so it is the same training."""
        for args in (("--optimizer", "sgd", "--lr", 0.5, "--servers", 2, "--workers", 2, "--transport", "shm"),
                     ("--optimizer", "adagrad", "--lr", 0.05, "--servers", 2, "--workers", 2, "--transport", "tcp"),
                     ("--optimizer", "adagrad", "--lr", 0.05, "--servers", 3, "--workers", 3, "--comm", "rpc"),
                     ("--optimizer", "sgd", "--lr", 0.5, "--servers", 1, "--workers", 2, "--model-parallel", 2)):
            with self.subTest(args=args):
                self.both("--sync", *args, *self.charlm)

    def test_two_tables_and_lengths_that_differ(self):
        self.both("--sync", "--optimizer", "adagrad", "--lr", 0.05, *self.seq2seq)

    def test_a_worker_alone_needs_no_group(self):
        self.both("--workers", 1, "--optimizer", "sgd", "--lr", 0.5, *self.charlm)

    def test_moves_rows_only(self):
        """What the plan says at most, and each row once, whatever often the batch names it."""
        job = ("--sync", "--optimizer", "sgd", "--servers", 2, "--workers", 2)
        dense, sparse = self.both(*job, "--lr", 0.5, *self.charlm)
        plan = json.loads(tern("graph", "plan", "charlm", "--servers", 2, "--workers", 2, "--sparse", "--dims", "batch=4",
                               "--json", check=0)[1])
        self.assertEqual([(t["name"], t["rows"], t["dim"], t["servers"]) for t in plan["tables"]],
                         [("embedding/table", 256, 64, 2)])
        self.assertEqual([u["device"] for u in plan["tables"][0]["users"]], ["worker0", "worker1"])
        self.assertFalse([e for e in plan["edges"] if "embedding" in e["name"]])
        rows = sparse["bytes"] - 6 * plan["bytes_per_step"]  # with keys; pulled rows are not sent by a worker
        self.assertGreater(rows, 0)
        self.assertLess(rows, 6 * 2 * (4 * 12) * (16 + 4 * 64))
        self.assertEqual(dense["bytes"] - 6 * plan["bytes_per_step"], 6 * 2 * 2 * 256 * 64 * 4)

    def test_asynchronous(self):
        for more in ((), ("--consistency", "ssp", "--staleness", 1)):
            result, losses = self.with_losses("--sparse", "--optimizer", "adagrad", *more, *self.charlm)
            self.assertLess(losses[-1], losses[0])
            self.assertGreater(result["accuracy"], 0)  # evaluated with rows that are pulled

    def test_without_communication(self):
        result, _ = self.with_losses("--sparse", "--no-comm", "--no-eval", "--optimizer", "sgd", *self.charlm)
        self.assertEqual(result["bytes"], 0)

    def test_by_hand_over_a_cluster_list(self):
        _, reference = self.with_losses("--sync", "--sparse", "--no-eval", "--optimizer", "sgd", *self.charlm)
        cluster = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        parts = {}
        for name in ("worker1", "server0", "worker0", "server1"):
            more = ["--losses", f"{self.folder}/{name}"] if name[0] == "w" else []
            args = ["train", "--role", name[:6], "--index", name[6], "--cluster", cluster, "--sync", "--sparse", "--no-eval",
                    "--optimizer", "sgd", *more, *self.charlm]
            parts[name] = subprocess.Popen([TERN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           env=environment())
            self.addCleanup(parts[name].stdout.close)
            self.addCleanup(end, parts[name])
        for name, part in parts.items():
            out, _ = part.communicate(timeout=90)
            self.assertEqual(part.returncode, 0, f"{name}: {out}")
        got = []
        for name in ("worker0", "worker1"):
            with open(f"{self.folder}/{name}", encoding="ascii") as lines:
                got.append([float.fromhex(line.split()[1]) for line in lines])
        self.assertEqual([sum(pair) / 2 for pair in zip(*got)], reference)

    def test_the_dead_are_named(self):
        for name, sync in (("worker1", ["--sync"]), ("server0", [])):
            with self.subTest(name=name):
                args = [TERN, "train", "--sparse", "--quiet", "--optimizer", "sgd", *sync, *self.charlm[:-1], 1000000]
                process = subprocess.Popen([*map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           env=environment())
                self.addCleanup(process.stdout.close)
                self.addCleanup(process.stderr.close)
                self.addCleanup(end, process)
                parts = wait_for_children(process, 4)
                self.assertEqual(len(parts), 4)
                os.kill(parts[name], signal.SIGKILL)
                _, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1)
                self.assertIn(f"{name} (pid", err)
                self.assertFalse([n for n, pid in parts.items() if alive(pid)])

    def test_mistakes(self):
        for args in (("--servers", 0, "--workers", 1), ("--save", f"{self.folder}/save"), ("--resume", self.folder)):
            with self.subTest(args=args):
                self.assertIn("--sparse needs servers", tern("train", "--sparse", *args, *self.charlm, check=2)[2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
