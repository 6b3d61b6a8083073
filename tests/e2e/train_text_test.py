#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of sequences in `tern train`: texts and parallel texts, perplexity, lengths that differ from step to step."""
import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest

from common import TERN, end, environment, free_port, tern

CATALOGUES = [f"/usr/share/locale/de/LC_MESSAGES/{name}.mo" for name in ("gnupg2", "libc")]
NUMBERS = ("one eins", "two zwei", "three drei", "four vier", "five fuenf", "six sechs", "seven sieben", "eight acht")


def write_text(path, seed=3):
    """Sentences of a small grammar, whose bytes and words are easy to foresee."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(1500):
            file.write(f"the {rng.choice(['king', 'queen'])} said {rng.choice(['yes', 'no'])}.\n")


def write_pairs(path, lengths, count=1200, seed=5):
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(count):
            words = [rng.choice(NUMBERS).split() for _ in range(rng.choice(lengths))]
            file.write("\t".join(" ".join(column) for column in zip(*words)) + "\n")


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tern-test-")
        folder = cls.temporary.name
        cls.text, cls.pairs, cls.even = f"{folder}/text", f"{folder}/pairs", f"{folder}/even"
        write_text(cls.text)
        write_pairs(cls.pairs, (2, 3, 4, 5, 6, 7, 8))
        write_pairs(cls.even, (4,))
        cls.charlm = ("--model", "charlm", "--text", cls.text, "--length", 12, "--batch", 4)
        cls.seq2seq = ("--model", "seq2seq", "--text", cls.pairs, "--vocabulary", 40, "--length", 12, "--batch", 4)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def train(self, *args, **kw):
        return json.loads(tern("train", "--quiet", "--json", *args, check=0, **kw)[1])

    def losses(self, *args):
        with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
            self.train("--no-eval", "--sync", "--losses", file.name, *args)
            with open(file.name, encoding="ascii") as lines:
                return [line.split()[1] for line in lines]

    def test_learns_a_text(self):
        # Of 13 bytes of a sentence two are open: about 2 bits, so the best is 2 ** (2 / 20)
        for args in ((), ("--unit", "word", "--vocabulary", 20)):
            result = self.train(*self.charlm, "--sync", "--steps", 150, "--lr", 0.01, *args)
            self.assertLess(result["perplexity"], 2.2)
            self.assertLess(result["train_perplexity"], 2.2)
            self.assertGreater(result["accuracy"], 0.6)

    def test_learns_pairs(self):
        result = self.train(*self.seq2seq, "--steps", 250, "--sync", "--lr", 0.004)
        self.assertLess(result["perplexity"], 4)
        self.assertLess(result["train_perplexity"], 4)

    def test_the_number_of_workers_does_not_matter(self):
        even = ("--model", "seq2seq", "--text", self.even, "--vocabulary", 40, "--length", 8)
        for job in (self.charlm, ("--model", "transformer", *self.charlm[2:]), even):
            one = self.losses(*job, "--steps", 12, "--servers", 0, "--workers", 1, "--batch", 8)
            two = self.losses(*job, "--steps", 12, "--workers", 2, "--batch", 4)
            for a, b in zip(one, two):
                a, b = float.fromhex(a), float.fromhex(b)
                self.assertAlmostEqual(a, b, delta=1e-3 * max(1.0, abs(a)))

    def test_every_way_computes_the_same_bits(self):
        for job in (self.charlm, self.seq2seq):
            reference = None
            for comm in ("zerocopy", "copy", "rpc"):
                got = self.losses(*job, "--steps", 12, "--comm", comm)
                reference = reference or got
                self.assertEqual(got, reference, comm)
                self.assertEqual(len(got), 12)

    def test_sentences_of_all_lengths_move_nothing_but_parameters(self):
        result = self.train(*self.seq2seq, "--steps", 10, "--sync", "--no-eval", "--transport", "shm")
        self.assertEqual(result["copies"], 0)
        self.assertEqual(result["bytes"], 10 * 2 * 2 * 4 * result["parameters"])

    def test_resumed_bit_by_bit(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            whole = self.losses(*self.seq2seq, "--steps", 16, "--save", folder, "--save-every", 10)
            shutil.rmtree(f"{folder}/step-0000000016")
            self.assertEqual(self.losses(*self.seq2seq, "--steps", 16, "--resume", folder), whole[10:])

    def test_by_hand(self):
        """Servers have no text: what they must know are numbers."""
        cluster = f"127.0.0.1:{free_port()}"
        same = ["--model", "seq2seq", "--vocabulary", "40", "--length", "12", "--cluster", cluster, "--servers", "1", "--workers", "1",
                "--steps", "4", "--batch", "4", "--sync"]
        server = subprocess.Popen([TERN, "train", "--role", "server", *same], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(end, server)
        _, out, _ = tern("train", "--role", "worker", *same, "--text", self.pairs, check=0)
        self.assertRegex(out, r"perplexity [0-9.]+, of its share of what was held out [0-9.]+")
        self.assertEqual(server.wait(60), 0, server.stderr.read())
        server.stderr.close()

    def test_bad_data(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            for name, data in (("empty", b""), ("latin", b"gr\xfcn\tgreen\n" * 9), ("cut", b"a\tb\n" * 999 + b"a"),
                               ("short.mo", b"\xde\x12\x04\x95\0\0\0\0"), ("one", b"a\tb\n")):
                with open(f"{folder}/{name}", "wb") as file:
                    file.write(data)
                err = tern("train", "--model", "seq2seq", "--text", f"{folder}/{name}", check=2)[2]
                self.assertIn(name, err)
                self.assertEqual(len(err.splitlines()), 1, err)
            err = tern("train", "--model", "charlm", "--text", f"{folder}/empty", check=2)[2]
            self.assertIn("too short", err)
        for args, words in ((("charlm", "--data", "synthetic"), "--data is for images"), (("mlp", "--text", "x"), "for models of texts"),
                            (("charlm", "--vocabulary", 9), "bytes are 256"), (("seq2seq", "--unit", "word"), "--unit"),
                            (("seq2seq", "--vocabulary", 4), "from 5"), (("charlm", "--text", "/nonexistent"), "No such file"),
                            (("seq2seq", "--text", "/nonexistent"), "No such file")):
            self.assertIn(words, tern("train", "--model", *args, check=2)[2])

    def test_what_to_install(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as empty:
            err = tern("train", "--model", "charlm", env=environment(PATH=empty), check=2)[2]
            self.assertIn("install Debian's bible-kjv and bible-kjv-text", err)
        if not all(map(os.path.exists, CATALOGUES)):
            err = tern("train", "--model", "seq2seq", check=2)[2]
            self.assertIn("install Debian's gnupg-l10n and libc-l10n", err)

    @unittest.skipUnless(shutil.which("bible"), "Debian's bible-kjv is not installed")
    def test_the_bible(self):
        result = self.train("--model", "charlm", "--batch", 4, "--length", 16, "--steps", 60, "--servers", 0, "--workers", 1,
                            "--no-eval", "--lr", 0.005)
        self.assertLess(result["loss"], 3.3)

    @unittest.skipUnless(all(map(os.path.exists, CATALOGUES)), "gnupg-l10n and libc-l10n are not installed")
    def test_the_catalogues(self):
        result = self.train("--model", "seq2seq", "--vocabulary", 1000, "--length", 16, "--batch", 8, "--steps", 12, "--sync")
        self.assertLess(result["perplexity"], 1000)
        self.assertGreater(result["perplexity"], 10)


if __name__ == "__main__":
    unittest.main()
