#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line: help, mistakes, and bad input, each with one clear line and a non-zero status."""
import gzip
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from common import DataCase, TERN, environment, make_dataset, tern, write_idx


class Help(unittest.TestCase):
    def test_version_and_help(self):
        self.assertRegex(tern("--version", check=0)[1], r"^tern \d+\.\d+\.\d+\n$")
        self.assertIn("usage: tern COMMAND", tern("--help", check=0)[1])
        for command in ("train", "perf", "info", "demo"):
            out = tern(command, "--help", check=0)[1]
            self.assertIn(f"usage: tern {command}", out)

    def test_mistyped(self):
        self.assertIn("did you mean 'train'?", tern("trian", check=2)[2])
        self.assertIn("did you mean --workers?", tern("train", "--worker", 2, check=2)[2])
        self.assertIn("one of mlp|fcn5", tern("train", "--model", "resnet", check=2)[2])
        self.assertIn("needs a value", tern("train", "--steps", check=2)[2])
        self.assertIn("--steps", tern("train", "--steps", "many", check=2)[2])
        self.assertIn("unexpected argument", tern("info", "everything", check=2)[2])
        self.assertIn("exclude each other", tern("train", "--steps", 1, "--epochs", 1, check=2)[2])

    def test_one_line_each(self):
        for args in (("train", "--bogus"), ("perf", "--op", "fly"), ("perf", "--sizes", "0")):
            err = tern(*args, check=2)[2]
            self.assertEqual(err.count("\n"), 1, err)


class Numbers(unittest.TestCase):
    def test_ranges_in_the_units_of_the_option(self):
        self.assertIn("0 is too small, at least 1ms", tern("train", "--timeout", 0, check=2)[2])
        self.assertIn("0 is out of range, 1 to", tern("train", "--workers", 0, check=2)[2])


class Output(DataCase):
    """What cannot be written is a failure."""

    def to(self, redirection, *args):
        command = " ".join(["exec", '"$@"', redirection])
        done = subprocess.run(["sh", "-c", command, "sh", TERN, *args], capture_output=True, text=True, timeout=60,
                              env=environment(), stdin=subprocess.DEVNULL, check=False)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_full(self):
        job = ["train", "--quiet", "--json", "--no-eval", "--steps", "2", "--data", self.data]
        for args in (job, ["info"], ["--help"], ["train", "--help"], ["--version"]):
            self.assertIn("cannot write to standard output: No space left", self.to("> /dev/full", *args))

    def test_closed(self):
        job = ["train", "--quiet", "--json", "--no-eval", "--steps", "2", "--data", self.data]
        for args in (job, ["info"]):
            self.assertIn("cannot write to standard output", self.to(">&-", *args))
        self.to(">&- 2>&- <&-", *job)

    def test_losses_on_a_full_disk(self):
        job = ["train", "--quiet", "--json", "--no-eval", "--steps", 3, "--data", self.data]
        status, out, err = tern(*job, "--losses", "/dev/full")
        self.assertEqual(status, 1)
        self.assertIn("cannot write --losses /dev/full: No space left", err)
        self.assertEqual(json.loads(out)["steps"], 3)  # the result is not lost with them
        status, out, err = tern(*job, "--losses", f"{self.data}/no/such/folder")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("cannot write --losses", err)


class Info(unittest.TestCase):
    def test_text(self):
        out = tern("info", check=0)[1]
        for word in ("providers", "shm", "tcp", "memlock", "huge_pages_free", "descriptors"):
            self.assertIn(word, out)

    def test_config_shows_the_source(self):
        out = json.loads(tern("info", "--config", "--json", env=environment(TERN_RPC_TIMEOUT="7s"), check=0)[1])
        rows = {row["name"]: row for row in out["options"]}
        self.assertEqual(rows["rpc.timeout"]["source"], "environment")
        self.assertGreater(len(rows), 10)
        self.assertTrue(all(row["help"] for row in out["options"]))

    def test_memory(self):
        _, out, _ = tern("info", "--memory", "--json", check=0)
        memory = json.loads(out)["memory"]
        self.assertIn(memory["pages"], ("huge", "thp", "4k"))
        self.assertTrue(memory["huge_pages"] and memory["transparent"] and memory["numa_nodes"])
        self.assertEqual(memory["extents"], memory["extents_huge"] + memory["extents_thp"] + memory["extents_4k"])
        self.assertGreaterEqual(memory["extents"], 1)
        self.assertGreaterEqual(memory["committed_bytes"], 2 << 20)
        self.assertEqual(memory["budget"], 0)
        self.assertIsInstance(memory["devices"], dict)
        _, text, _ = tern("info", "--memory", check=0, env=environment(TERN_MEM_LIMIT="64MiB"))
        self.assertRegex(text, r"budget +64 MiB")
        self.assertIn(f"pages              {memory['pages']}", text)

    def test_memory_beyond_its_budget(self):
        status, _, err = tern("info", "--memory", env=environment(TERN_MEM_LIMIT="1MiB"))
        self.assertEqual(status, 1)
        self.assertIn("budget", err)

    def test_bad_option_value(self):
        status, _, err = tern("info", "--config", env=environment(TERN_RPC_TIMEOUT="soon"))
        self.assertNotEqual(status, 0)
        self.assertIn("rpc.timeout", err.replace("TERN_RPC_TIMEOUT", "rpc.timeout"))


class BadInput(DataCase):
    def refused(self, *args, words, **kw):
        status, _, err = tern("train", "--quiet", *args, **kw)
        self.assertNotEqual(status, 0, err)
        for word in words:
            self.assertIn(word, err)
        lines = [line for line in err.splitlines() if line.strip()]
        self.assertLessEqual(len(lines), 2, err)

    def test_no_data_set(self):
        self.refused("--data", "/nonexistent", words=["no data set", "dataset-fashion-mnist", "--data DIR"])

    def damaged(self, damage):
        folder = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, folder)
        make_dataset(folder, 300, 100)
        damage(f"{folder}/train-images-idx3-ubyte.gz")
        return folder

    def test_truncated_gzip(self):
        def cut(path):
            with open(path, "r+b") as file:
                file.truncate(os.path.getsize(path) // 2)
        self.refused("--data", self.damaged(cut), words=["train-images", "install the data set again"])

    def test_truncated_content(self):
        def short(path):
            write_idx(path, (300, 28, 28), b"x" * 1000)
        self.refused("--data", self.damaged(short), words=["truncated"])

    def test_corrupt_gzip(self):
        def flip(path):
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                file.write(bytes(64))
        self.refused("--data", self.damaged(flip), words=["corrupt"])

    def test_wrong_magic(self):
        def other(path):
            write_idx(path, (300, 28, 28), bytes(300 * 784), magic=0xD03)
        self.refused("--data", self.damaged(other), words=["wrong magic"])

    def test_labels_of_another_set(self):
        folder = self.damaged(lambda path: None)
        with gzip.open(f"{folder}/train-labels-idx1-ubyte.gz", "wb") as file:
            file.write(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3, 4, 5]))
        self.refused("--data", folder, words=["5 labels for 300 images"])

    def test_more_servers_than_variables(self):
        """Those that get nothing take part all the same."""
        _, out, _ = tern("train", "--data", self.data, "--servers", 7, "--workers", 1, "--steps", 2, "--batch", 8, "--quiet", "--json",
                         check=0)
        self.assertEqual(json.loads(out)["steps"], 2)

    def test_batch_larger_than_the_data(self):
        self.refused("--data", self.data, "--batch", 5000, words=["batch larger than the data", "--batch"])

    def test_cluster_mistakes(self):
        self.refused("--role", "worker", words=["--cluster"])
        self.refused("--role", "worker", "--cluster", "/nonexistent/file", words=["neither host:port"])
        self.refused("--role", "worker", "--cluster", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
                     words=["names 3 addresses", "2 servers"])
        self.refused("--role", "server", "--index", 5, "--cluster", "127.0.0.1:1,127.0.0.1:2", words=["--index 5"])

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused("--role", "server", "--servers", 1, "--cluster", f"127.0.0.1:{port}", "--steps", 1,
                         words=["in use", str(port)])

    def test_beyond_loopback_needs_a_secret(self):
        self.refused("--role", "server", "--servers", 1, "--cluster", "0.0.0.0:0", "--steps", 1,
                     words=["TERN_CTX_SECRET", "TERN_E_INSECURE"])

    def test_server_that_never_comes(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.refused("--role", "worker", "--servers", 1, "--workers", 1, "--cluster", f"127.0.0.1:{port}",
                     "--steps", 1, "--timeout", "1.5", "--data", self.data, words=["server0", str(port)])


if __name__ == "__main__":
    assert os.access(TERN, os.X_OK), TERN
    unittest.main(verbosity=2)
