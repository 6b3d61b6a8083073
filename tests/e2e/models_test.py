#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs on parameter tables: every consistency comes to what one process on plain arrays comes to.

The texts are made here; with Debian's bible-kjv a short run on the real one as well, and with TERN_FULL=1 a whole one.
And servers with backups, one of which is killed in the middle of a job.
"""
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest

from cluster_test import SLOTS, Server
from common import SANITIZED, TERN, environment, tern

MODES = ("async", "bsp", "ssp")


def train(*args, check=0, timeout=600):
    status, out, err = tern("train", "--quiet", "--json", *args, check=check, timeout=timeout)
    return json.loads(out) if status == 0 else err


def topics_text(path, topics=12, words=12, sentences=2500, seed=3):
    """Sentences of one topic each; words 2i and 2i+1 of a topic always stand side by side."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(sentences):
            topic = rng.randrange(topics)
            line = []
            for _ in range(6):
                pair = rng.randrange(words // 2)
                line += [name(topic, 2 * pair), name(topic, 2 * pair + 1), f"the{'' if rng.random() < .5 else 'n'}"]
            file.write(" ".join(line) + "\n")


def name(topic, word):
    return "".join(chr(ord("a") + d) for d in (topic, word)) + "word"


class Agreement(unittest.TestCase):
    """Losses of all modes against the oracle's, and who is near whom."""

    def agree(self, *args, tolerance=0.01, rank=10, pairs=None):
        args += ("--pairs", pairs) if pairs else ()
        for mode in MODES:
            with self.subTest(consistency=mode):
                oracle = train(*args, "--servers", 0, "--consistency", mode)
                self.assertTrue(oracle["oracle"])
                self.near(oracle, rank)
                got = train(*args, "--servers", 2, "--consistency", mode)
                self.assertFalse(got["oracle"])
                self.assertEqual((got["pairs_trained"], got["steps"]), (oracle["pairs_trained"], oracle["steps"]))
                self.assertLess(abs(got["loss"] / oracle["loss"] - 1), tolerance, (got["loss"], oracle["loss"]))
                self.near(got, rank)
        return oracle

    def near(self, result, rank):
        self.assertGreater(len(result["pairs"]), 4)
        for pair in result["pairs"]:
            self.assertTrue(0 < pair["rank"] <= rank, pair)


class MadeText(Agreement):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tern-test-models-")
        self.addCleanup(folder.cleanup)
        self.text = os.path.join(folder.name, "text")
        topics_text(self.text)
        self.args = ("--model", "word2vec", "--text", self.text, "--dim", 16, "--workers", 3, "--batch", 100)

    def test_modes_agree_with_the_oracle(self):
        # the ten others of its topic, and it, may be nearer: nobody else
        pairs = ",".join(f"{name(t, 0)}~{name(t, 1)}" for t in range(6))
        oracle = self.agree(*self.args, "--epochs", 4, pairs=pairs, rank=11)
        # it has learnt: far below what six coins cost
        self.assertLess(oracle["loss"], 0.8 * 6 * 0.6931)
        self.assertEqual(oracle["words"], 12 * 12 + 2)

    def test_the_oracle_is_the_same_every_time(self):
        first, second = (train(*self.args, "--servers", 0, "--steps", 20) for _ in range(2))
        self.assertEqual(first["loss"], second["loss"])

    def test_losses_fall(self):
        path = self.text + ".losses"
        train(*self.args, "--losses", path)
        with open(path, encoding="ascii") as file:
            losses = [float.fromhex(line.split()[1]) for line in file]
        tenth = len(losses) // 10
        self.assertLess(sum(losses[-tenth:]), 0.8 * sum(losses[:tenth]))

    def test_mistakes_are_answered_in_words(self):
        self.assertIn("No such file", train("--model", "word2vec", "--text", self.text + "x", check=1))
        self.assertIn("two words", train(*self.args, "--min-count", 10 ** 6, check=1))
        self.assertIn("--cluster", train(*self.args, "--role", "worker", "--index", 0, check=2))


class Clicks(unittest.TestCase):
    """The generated logs have a law; what is learnt comes nearer to it."""
    ARGS = ("--model", "dlrm", "--workers", 3, "--vocabulary", 1000, "--samples", 60000, "--batch", 100)

    def test_modes_agree_with_the_oracle_and_auc_rises(self):
        untrained = train(*self.ARGS, "--servers", 1, "--steps", 1)
        for mode in MODES:
            with self.subTest(consistency=mode):
                oracle = train(*self.ARGS, "--servers", 0, "--consistency", mode)
                got = train(*self.ARGS, "--servers", 2, "--consistency", mode)
                self.assertEqual(got["samples_trained"], 60000)
                self.assertLess(abs(got["loss"] / oracle["loss"] - 1), 0.02, (got["loss"], oracle["loss"]))
                self.assertLess(abs(got["auc"] - oracle["auc"]), 0.02)
                self.assertGreater(got["auc"], untrained["auc"] + 0.05)
                self.assertGreater(got["auc"], 0.72)
                self.assertLess(got["auc"], got["best_auc"])

    def test_mistakes_are_answered_in_words(self):
        self.assertIn("at most 256", train("--model", "dlrm", "--dim", 500, check=1))


class Backups(unittest.TestCase):
    """Three servers, each slot at two of them; one is killed with -9 while four workers train. The job goes on, and no step is
    lost or summed twice: where that can be told, in BSP, the loss has the bits of a job that nobody disturbed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tern-test-models-")
        self.addCleanup(folder.cleanup)
        self.text = os.path.join(folder.name, "text")
        topics_text(self.text)

    def until(self, what, condition):
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)

    def cluster(self):
        servers = [Server(self, "--join", "self", "--replicas", "2", "--first", "3")]
        servers += [Server(self, "--join", servers[0].address) for _ in range(2)]
        self.until("slots with backups", lambda: self.backed_up(servers[0].address))
        return servers

    def backed_up(self, at):
        report = json.loads(tern("cluster", "status", "--server", at, "--json", check=0)[1])
        return report["served"] == SLOTS and all(s["alone"] == 0 for s in report["servers"])

    def pushed(self, at, table):
        """Gradients that servers have applied; 0 while there is no such table, or a server does not answer."""
        rc, out, _ = tern("table", "stats", table, "--server", at, "--json")
        return json.loads(out)["pushed"] if rc == 0 else 0

    def job(self, table, args, after=None):
        """What the job says, and how many gradients were applied in the end. after: so many, and a server is killed."""
        servers = self.cluster()
        at = servers[0].address
        with subprocess.Popen([TERN, "train", "--quiet", "--json", "--workers", "4", "--cluster",
                               ",".join(s.address for s in servers), *map(str, args)], text=True, env=environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            if after:
                self.until("gradients", lambda: self.pushed(at, table) >= after)
                servers[1].kill()
                self.assertIsNone(process.poll(), "it was over before a server was killed")
            out, err = process.communicate(timeout=400)
        self.assertEqual(process.returncode, 0, err)
        if after:  # each worker says once that a server is away, however often it is dialed
            self.assertNotIn("refused the connection:", err)
            self.assertLessEqual(err.count("does not answer"), 4, err)
        pushed = self.pushed(at, table)
        for server in servers:
            server.kill()
        return json.loads(out), pushed

    def test_a_server_dies_and_no_step_is_lost(self):
        word2vec = ("word2vec/input", ("--model", "word2vec", "--text", self.text, "--dim", 16, "--batch", 100, "--epochs", 6))
        dlrm = ("dlrm/embeddings", ("--model", "dlrm", "--vocabulary", 1000, "--samples", 60000, "--batch", 50))
        for (table, args), modes in ((word2vec, ("bsp", "ssp")), (dlrm, ("bsp", "async"))):
            still, total = self.job(table, (*args, "--consistency", "bsp"))
            for mode in modes:
                with self.subTest(model=args[1], consistency=mode):
                    got, _ = self.job(table, (*args, "--consistency", mode), total // 4)
                    self.assertEqual(got["steps"], still["steps"])
                    if mode == "bsp":
                        self.assertEqual(got["loss"], still["loss"])
                    self.assertLess(abs(got["loss"] / still["loss"] - 1), 0.03, (got["loss"], still["loss"]))


@unittest.skipUnless(shutil.which("bible"), "Debian's bible-kjv is not installed")
class Bible(Agreement):
    ARGS = ("--model", "word2vec", "--workers", 2)

    @unittest.skipIf(SANITIZED, "takes too long under sanitizers")
    def test_short(self):
        self.agree(*self.ARGS, "--dim", 32, "--epochs", 2, "--lr", 0.1, rank=40,
                   pairs="moses~aaron,gold~silver,peter~john,abraham~isaac,israel~judah")

    @unittest.skipUnless(os.environ.get("TERN_FULL"), "TERN_FULL=1 runs it")
    def test_full(self):
        for seed in (1, 2, 3):
            self.agree(*self.ARGS, "--seed", seed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
