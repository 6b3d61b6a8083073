#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trained model in use: `tern graph run --weights` with a checkpoint of `tern train` says what the job's own evaluation
said. The model has batch normalisation: rows are judged by the running statistics of training, one by one as in a batch."""
import gzip
import math
import os
import shutil
import struct
import tempfile
import unittest

from common import DataCase, tern


def read_idx(path):
    with gzip.open(path, "rb") as file:
        data = file.read()
    rank = data[3]
    dims = struct.unpack(f">{rank}I", data[4:4 + 4 * rank])
    return dims, data[4 + 4 * rank:]


def write_npy(path, code, shape, body):
    head = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + body)


def read_floats(path):
    with open(path, "rb") as file:
        data = file.read()
    at = 10 + struct.unpack("<H", data[8:10])[0]
    return struct.unpack(f"<{(len(data) - at) // 4}f", data[at:])


class Weights(DataCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def held_out(self):
        """Rows of the test set as the workers feed them, and their labels."""
        _, pixels = read_idx(f"{self.data}/train-images-idx3-ubyte.gz")
        mean = sum(pixels) / len(pixels)
        variance = sum(p * p for p in pixels) / len(pixels) - mean * mean
        (count, *_), pixels = read_idx(f"{self.data}/t10k-images-idx3-ubyte.gz")
        rows = [[(p - mean) / math.sqrt(variance) for p in pixels[i * 784:(i + 1) * 784]] for i in range(count)]
        return rows, list(read_idx(f"{self.data}/t10k-labels-idx1-ubyte.gz")[1])

    def run_model(self, model, weights, rows, labels, check=0):
        shape = (784,) if model == "mlp" else (1, 28, 28)
        write_npy(self.path("images.npy"), "<f4", (len(rows), *shape),
                  b"".join(struct.pack("<784f", *row) for row in rows))
        write_npy(self.path("labels.npy"), "<i4", (len(rows),), struct.pack(f"<{len(rows)}i", *labels))
        status, out, err = tern("graph", "run", model, "--inputs",
                                f"images={self.path('images.npy')},labels={self.path('labels.npy')}",
                                "--weights", weights, "--output", self.path("out"), check=check)
        if status:
            return out + err
        probs = read_floats(self.path("out", "probs.npy"))
        return [probs[i * 10:(i + 1) * 10] for i in range(len(rows))]

    def test_as_the_job_said(self):
        rows, labels = self.held_out()
        job = ("--model", "convnet_bn", "--sync", "--steps", 40, "--batch", 20, "--save-every", 20)
        for servers, workers in ((2, 2), (0, 1)):
            name = self.path(f"by{servers}")
            result = self.train(*job, "--servers", servers, "--workers", workers, "--save", name)
            probs = self.run_model("convnet_bn", os.path.join(name, "step-0000000040"), rows, labels)
            right = sum(max(range(10), key=row.__getitem__) == label for row, label in zip(probs, labels))
            self.assertAlmostEqual(right / len(rows), result["accuracy"], delta=0.5 / len(rows))
            self.assertGreater(result["accuracy"], 0.5)
            # a batch of others, and none: statistics of a batch would give other numbers
            few = self.run_model("convnet_bn", os.path.join(name, "step-0000000040"), rows[7:10], labels[7:10])
            alone = self.run_model("convnet_bn", os.path.join(name, "step-0000000040"), rows[7:8], labels[7:8])
            for row in (few[0], alone[0]):
                for a, b in zip(row, probs[7]):
                    self.assertAlmostEqual(a, b, delta=1e-5)
            earlier = self.run_model("convnet_bn", os.path.join(name, "step-0000000020"), rows[7:8], labels[7:8])
            self.assertNotEqual(earlier, alone)

    def test_parts_are_put_together(self):
        """A variable in parts on several servers; one server's file is the beginning of it."""
        rows, labels = self.held_out()
        result = self.train("--model", "mlp", "--sync", "--steps", 30, "--batch", 20, "--servers", 3, "--save", self.path("s"))
        step = self.path("s", "step-0000000030")
        probs = self.run_model("mlp", step, rows, labels)
        right = sum(max(range(10), key=row.__getitem__) == label for row, label in zip(probs, labels))
        self.assertAlmostEqual(right / len(rows), result["accuracy"], delta=0.5 / len(rows))
        os.remove(os.path.join(step, "server1.safetensors"))
        self.assertRegex(self.run_model("mlp", step, rows[:1], labels[:1], check=1), "is a server's file missing|does not hold")

    def test_what_does_not_fit(self):
        rows, labels = self.held_out()
        self.train("--model", "mlp", "--sync", "--steps", 2, "--batch", 20, "--servers", 1, "--save", self.path("s"))
        step = self.path("s", "step-0000000002")
        for weights, words in ((step, "does not hold 'conv1/w'"), (self.path("none"), "No such file"),
                               (self.path("s"), "give the folder of a step"),
                               (os.path.join(step, "server0.safetensors"), "does not hold")):
            with self.subTest(weights=weights):
                self.assertIn(words, self.run_model("convnet_bn", weights, rows[:1], labels[:1], check=1))


if __name__ == "__main__":
    unittest.main()
