#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Optimisers and the clipping of gradients in `tern train`: each learns, and the number of workers doesn't matter."""
import tempfile
import unittest

from common import DataCase, tern

WAYS = {
    "sgd": ("--optimizer", "sgd", "--lr", 0.1),
    "no momentum": ("--momentum", 0, "--lr", 0.1),
    "momentum": ("--optimizer", "momentum", "--momentum", 0.8),
    "adagrad": ("--optimizer", "adagrad", "--epsilon", 1e-9),
    "adam": ("--optimizer", "adam", "--beta1", 0.8, "--beta2", 0.99, "--epsilon", 1e-7, "--weight-decay", 1e-3),
    "rmsprop": ("--optimizer", "rmsprop", "--rho", 0.95),
    "rmsprop with momentum": ("--optimizer", "rmsprop", "--momentum", 0.5, "--lr", 5e-4),
    "norm": ("--clip-norm", 0.5),
    "value": ("--clip-value", 0.01, "--optimizer", "adam"),
}


class Optimizers(DataCase):
    def losses(self, *args):
        with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
            self.train("--losses", file.name, "--no-eval", "--sync", "--steps", 40, *args)
            with open(file.name, encoding="ascii") as lines:
                return [float.fromhex(line.split()[1]) for line in lines]

    def test_each_learns_with_one_worker_and_with_two(self):
        curves = {}
        for name, args in WAYS.items():
            with self.subTest(name):
                one = self.losses("--servers", 0, "--workers", 1, "--batch", 64, *args)
                two = self.losses("--workers", 2, "--batch", 32, *args)
                # Updates that divide by roots of small numbers make more of a rounding than SGD does.
                for a, b in zip(one, two):
                    self.assertAlmostEqual(a, b, delta=2e-3 * max(1.0, abs(a)))
                self.assertLess(sum(two[-5:]) / 5, 0.6 * two[0])
                curves[name] = two
        self.assertEqual(curves["sgd"], curves["no momentum"])
        other = {tuple(curve) for name, curve in curves.items() if name != "no momentum"}
        self.assertEqual(len(other), len(WAYS) - 1, "two ways came to the same")

    def test_a_norm_that_is_never_reached_changes_nothing(self):
        self.assertEqual(self.losses("--clip-norm", 1e6), self.losses())
        self.assertEqual(self.losses("--clip-value", 1e6), self.losses())

    def test_without_waiting(self):
        for args in (("--optimizer", "adam"), ("--clip-norm", 1)):
            result = self.train("--epochs", 8, "--batch", 20, *args)
            self.assertGreater(result["accuracy"], 0.9)

    def test_json_says_which(self):
        self.assertEqual(self.train("--steps", 1, "--no-eval", "--momentum", 0)["options"]["optimizer"], "sgd")
        self.assertEqual(self.train("--steps", 1, "--no-eval")["options"]["optimizer"], "momentum")

    def test_goes_on_from_a_checkpoint(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
                job = ("--data", self.data, "--quiet", "--no-eval", "--sync", "--batch", 32, "--optimizer", "adam", "--losses",
                       file.name)
                tern("train", *job, "--steps", 12, check=0)
                with open(file.name, encoding="ascii") as lines:
                    whole = list(lines)
                # lr_t depends on the whole number of steps: a job of 12 that is stopped after its first checkpoint
                tern("train", *job, "--steps", 12, "--save", folder, "--save-every", 6, check=0)
                tern("train", *job, "--steps", 12, "--resume", f"{folder}", check=2)  # all 12 are done
                tern("train", *job, "--steps", 18, "--resume", folder, check=0)
                with open(file.name, encoding="ascii") as lines:
                    self.assertEqual(len(list(lines)), 6)
                self.assertEqual(len(whole), 12)
                status, _, err = tern("train", *job, "--optimizer", "rmsprop", "--steps", 18, "--resume", folder)
                self.assertNotEqual(status, 0)
                self.assertIn("safetensors", err)

    def test_what_makes_no_sense_is_refused(self):
        for args, words in ((("--optimizer", "adam", "--momentum", 0.5), "--momentum is not for --optimizer adam"),
                            (("--optimizer", "sgd", "--momentum", 0.5), "--momentum is not for --optimizer sgd"),
                            (("--rho", 0.5), "--rho is not for --optimizer momentum"),
                            (("--clip-norm", 1, "--clip-value", 1), "exclude each other"),
                            (("--optimizer", "adam", "--beta1", 1), "--beta1 1: must be between 0 and 1"),
                            (("--momentum", 1), "from 0 to below 1"), (("--momentum", "nan"), "from 0 to below 1"),
                            (("--clip-norm", 0), "above 0"), (("--clip-value", "inf"), "above 0"),
                            (("--weight-decay", -1), "0 or more"), (("--optimizer", "adamw"), "adam")):
            with self.subTest(args=args):
                self.assertIn(words, tern("train", "--data", self.data, *args, check=2)[2])


if __name__ == "__main__":
    unittest.main()
