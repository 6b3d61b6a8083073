#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job over two hosts, each a network namespace of its own with a cable between them: servers on b, workers on a.

The same job on one host over shared memory is the reference: the same bits. tests/vm/train_two_hosts.py does this
with real machines and verbs.
"""
import json
import os
import random
import re
import subprocess
import tempfile
import time
import unittest

from common import TERN, end, enter, environment, tern, write_idx

A, B = "10.77.1.1", "10.77.1.2"
FEATURES, CLASSES = 64, 4


def ip(*args, inside=()):
    subprocess.run([*inside, "ip", *args], check=True)


def make_dataset(folder):
    """Four classes of patterns of 8x8."""
    for name, count in (("train", 256), ("t10k", 40)):
        labels = bytes(i * 7 % CLASSES for i in range(count))
        images = b"".join(bytes((label * 61 + p * p + i) % 251 for p in range(FEATURES)) for i, label in enumerate(labels))
        write_idx(f"{folder}/{name}-images-idx3-ubyte.gz", (count, 8, 8), images)
        write_idx(f"{folder}/{name}-labels-idx1-ubyte.gz", (count,), labels)


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tern-test-")
        cls.folder = cls.temporary.name
        make_dataset(cls.folder)
        # host b's namespace lives as long as this process, which ends with its standard input
        cls.b = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; read line"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        cls.b.stdout.readline()
        cls.on_b = ["nsenter", "--net", f"--target={cls.b.pid}"]
        ip("link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", str(cls.b.pid))
        for device, address, inside in (("va", A, []), ("vb", B, cls.on_b)):
            ip("link", "set", "lo", "up", inside=inside)
            ip("addr", "add", f"{address}/24", "dev", device, inside=inside)
            ip("link", "set", device, "up", inside=inside)

    @classmethod
    def tearDownClass(cls):
        cls.b.communicate()
        cls.temporary.cleanup()

    port = 7000

    def cluster(self, servers):
        Hosts.port += servers
        return ",".join(f"{B}:{Hosts.port - i}" for i in range(servers))

    def start(self, role, index, cluster, *args, env=None, where=None):
        if where is None:
            where = self.on_b if role == "server" else []
        servers = cluster.count(",") + 1
        process = subprocess.Popen([*where, TERN, "train", "--role", role, "--index", str(index), "--cluster", cluster,
                                    "--servers", str(servers), *map(str, args)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=env or environment(TERN_CTX_SECRET="of this test"))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(end, process)
        return process

    def finish(self, process, status=0):
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, err)
        return out, err

    def losses(self, name):
        with open(f"{self.folder}/{name}", encoding="ascii") as file:
            return [float.fromhex(line.split()[1]) for line in file]

    COMMON = ("--workers", 2, "--hidden", "32,8", "--steps", 7, "--batch", 16, "--sync")
    GEOMETRY = ("--features", FEATURES, "--classes", CLASSES)

    def test_same_bits_as_on_one_host(self):
        for comm in ("zerocopy", "copy", "rpc"):
            with self.subTest(comm=comm):
                tern("train", "--data", self.folder, *self.COMMON, "--transport", "shm", "--quiet", "--losses",
                     f"{self.folder}/one", check=0)
                cluster = self.cluster(2)
                both = (*self.COMMON, "--transport", "tcp", "--comm", comm, "--json")
                parts = [self.start("worker", i, cluster, *both, "--data", self.folder, "--losses", f"{self.folder}/w{i}")
                         for i in range(2)]
                parts += [self.start("server", i, cluster, *both, *self.GEOMETRY) for i in range(2)]
                results = [json.loads(self.finish(part)[0]) for part in parts]
                mean = [sum(pair) / 2 for pair in zip(self.losses("w0"), self.losses("w1"))]
                self.assertEqual(mean, self.losses("one"))
                self.assertEqual([r["name"] for r in results], ["worker0", "worker1", "server0", "server1"])
                for r in results:
                    self.assertEqual(r["transport"], "tcp")
                    self.assertEqual(r["steps"], 7)
                    # 6 variables, 7 steps, 2 workers, over all servers and all workers
                    if comm == "zerocopy":
                        self.assertEqual(r["writes"], r["tensors_sent"])
                        self.assertEqual(r["copies"], 0)
                        self.assertEqual(r["staging_copies"], 0)
                for role in ("worker", "server"):
                    self.assertEqual(sum(r["tensors_sent"] for r in results if r["name"].startswith(role)), 6 * 7 * 2)
                self.assertGreater(results[0]["accuracy"], 0)
                self.assertIsNone(results[2]["loss"])
                self.assertGreater(results[2]["counters"]["tcp.rx_bytes"], 0)

    def test_a_model_over_both(self):
        """Stage 0 on a, stage 1 and the server on b: the same bits as on one host."""
        split = ("--workers", 1, *self.COMMON[2:], "--model-parallel", 2, "--micro-batches", 4)
        tern("train", "--data", self.folder, *split, "--servers", 1, "--transport", "shm", "--quiet", "--losses",
             f"{self.folder}/one", check=0)
        cluster = self.cluster(1) + f",{A}:{Hosts.port}"
        both = (*split, "--servers", 1, "--transport", "tcp", "--json")
        ends = [self.start("server", 0, cluster, *both, *self.GEOMETRY)]
        for stage, where in ((0, []), (1, self.on_b)):
            ends.append(self.start("worker", 0, cluster, *both, "--data", self.folder, "--stage", stage, "--losses",
                                   f"{self.folder}/s{stage}", where=where))
        results = [json.loads(self.finish(part)[0]) for part in ends]
        self.assertEqual([r["name"] for r in results], ["server0", "worker0/stage0", "worker0/stage1"])
        self.assertEqual(self.losses("s1"), self.losses("one"))
        self.assertEqual(sum(r["copies"] + r["staging_copies"] for r in results), 0)

    def test_beyond_loopback_needs_a_secret_or_the_word(self):
        cluster = self.cluster(1)
        _, err = self.finish(self.start("server", 0, cluster, *self.COMMON, env=environment()), 1)
        self.assertIn("TERN_CTX_SECRET", err)
        both = ("--workers", 1, *self.COMMON[2:], "--insecure")
        server = self.start("server", 0, cluster, *both, *self.GEOMETRY, env=environment())
        worker = self.start("worker", 0, cluster, *both, "--data", self.folder, env=environment())
        self.finish(worker)
        self.finish(server)

    def test_other_sizes_are_refused(self):
        cluster = self.cluster(1)
        server = self.start("server", 0, cluster, "--workers", 1, *self.COMMON[2:])
        worker = self.start("worker", 0, cluster, "--workers", 1, *self.COMMON[2:], "--data", self.folder)
        _, err = self.finish(worker, 1)
        self.assertIn("another job: same options everywhere", err)
        self.assertIn("64 features, 4 classes", err)
        self.assertIsNone(server.poll())
        end(server)
        self.assertIn("784 features in 10 classes", server.stderr.read())
        _, err = self.finish(self.start("worker", 0, cluster, "--workers", 1, *self.COMMON[2:], "--data", self.folder,
                                        "--features", 100), 1)
        self.assertIn("64 numbers in 4 classes", err)

    def test_who_is_missing_is_named(self):
        cluster = self.cluster(2)
        server = self.start("server", 0, cluster, "--workers", 1, *self.COMMON[2:], *self.GEOMETRY, "--timeout", 3)
        worker = self.start("worker", 0, cluster, "--workers", 1, *self.COMMON[2:], "--data", self.folder, "--timeout", 2)
        _, err = self.finish(worker, 1)
        self.assertRegex(err, rf"server1 .*at {re.escape(cluster.split(',')[1])}")  # refused, or no answer in time
        self.finish(server, 1)

    def test_losses_that_cannot_be_written(self):
        cluster = self.cluster(1)
        worker = self.start("worker", 0, cluster, "--workers", 1, *self.COMMON[2:], "--data", self.folder, "--losses",
                            f"{self.folder}/no/such")
        self.assertIn("cannot write --losses", self.finish(worker, 1)[1])
        server = self.start("server", 0, cluster, "--workers", 1, *self.COMMON[2:], "--losses", f"{self.folder}/x")
        self.assertIn("servers see no loss", self.finish(server, 2)[1])

    def test_a_dead_host_is_named(self):
        cluster = self.cluster(1)
        both = ("--workers", 1, "--hidden", "32,8", "--steps", 100000000, "--batch", 16)
        server = self.start("server", 0, cluster, *both, *self.GEOMETRY)
        worker = self.start("worker", 0, cluster, *both, "--data", self.folder, "--losses", f"{self.folder}/w0")
        deadline = time.monotonic() + 30
        while not (os.path.exists(f"{self.folder}/w0") and os.path.getsize(f"{self.folder}/w0")):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(worker.poll(), worker.stderr.read() if worker.poll() is not None else "")
            time.sleep(0.05)
        server.kill()
        self.assertIn("server0", self.finish(worker, 1)[1])
        server.wait()

    def wait_for_losses(self, process, name):
        deadline = time.monotonic() + 60
        while not (os.path.exists(name) and os.path.getsize(name)):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else "")
            time.sleep(0.02)

    def test_a_cut_cable_is_noticed_at_both_ends(self):
        """Within the bound (5 keepalives), at a random step; each end says whom it lost."""
        cluster = self.cluster(1)
        both = ("--workers", 1, "--hidden", "32,8", "--steps", 100000000, "--batch", 16)
        env = environment(TERN_CTX_SECRET="of this test", TERN_LINK_KEEPALIVE="300ms")
        server = self.start("server", 0, cluster, *both, *self.GEOMETRY, env=env)
        worker = self.start("worker", 0, cluster, *both, "--data", self.folder, "--losses", f"{self.folder}/c0", env=env)
        self.wait_for_losses(worker, f"{self.folder}/c0")
        time.sleep(random.random() * 0.2)
        ip("link", "set", "va", "down")
        self.addCleanup(ip, "link", "set", "va", "up")
        began = time.monotonic()
        _, said = self.finish(worker, 1)
        self.assertIn("server0", said)
        self.assertIn("nothing heard for 5 keepalive intervals", said)
        self.assertIn("worker0", self.finish(server, 1)[1])
        self.assertLess(time.monotonic() - began, 6 * 0.3 + 15)  # and a busy machine

    def while_cable_is_out(self, job):
        """Runs a job; how often the cable was out meanwhile."""
        cluster = self.cluster(2)
        both = (*job, "--transport", "tcp")
        env = environment(TERN_CTX_SECRET="of this test", TERN_LINK_KEEPALIVE="3s")
        parts = [self.start("worker", i, cluster, *both, "--data", self.folder, "--losses", f"{self.folder}/m{i}", env=env)
                 for i in range(2)]
        parts += [self.start("server", i, cluster, *both, *self.GEOMETRY, env=env) for i in range(2)]
        cuts = 0
        self.wait_for_losses(parts[0], f"{self.folder}/m0")
        while parts[0].poll() is None and cuts < 5:
            ip("link", "set", "va", "down")
            time.sleep(random.uniform(0.05, 0.5))
            ip("link", "set", "va", "up")
            cuts += parts[0].poll() is None
            time.sleep(random.uniform(0.05, 0.5))
        for part in parts:
            self.finish(part)
        return cuts

    def test_a_cable_that_is_out_for_a_moment(self):
        """Again and again, each time for less than the bound: it costs time, and not a bit of the losses."""
        steps, cuts = 2000, 0
        while cuts < 2:  # quick machines: more steps
            steps *= 2
            self.assertLess(steps, 1000000)
            job = ("--workers", 2, "--hidden", "32,8", "--steps", steps, "--batch", 16, "--sync", "--no-eval")
            for i in range(2):
                if os.path.exists(f"{self.folder}/m{i}"):
                    os.remove(f"{self.folder}/m{i}")
            cuts = self.while_cable_is_out(job)
        tern("train", "--data", self.folder, *job, "--transport", "shm", "--quiet", "--losses", f"{self.folder}/whole", check=0)
        mean = [sum(pair) / 2 for pair in zip(self.losses("m0"), self.losses("m1"))]
        self.assertEqual(mean, self.losses("whole"))
        print(f"{cuts} times in {steps} steps: the same bits")


if __name__ == "__main__":
    enter("ip link add x type veth peer y && command -v nsenter", "no networks of one's own here")
    unittest.main(verbosity=2)
