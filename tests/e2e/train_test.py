#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole jobs: every transport and way of communication computes the same, and moves what it says."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from common import (DataCase, FASHION, SANITIZED, TERN, alive, children_of, end, environment, free_port, listening_ports,
                    tern, wait_for_children, write_idx)

MODES = [(t, c) for t in ("shm", "tcp") for c in ("zerocopy", "copy", "rpc")]
# Built where gRPC's C++ library is installed.
GRPC = os.path.exists(os.path.join(os.path.dirname(TERN), "..", "libtern-xfer-grpc.so"))


def losses(path):
    with open(path, encoding="ascii") as file:
        return [line.split()[1] for line in file]


class Train(DataCase):
    def with_losses(self, *args, env=None):
        with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
            result = self.train("--losses", file.name, "--no-eval", *args, env=env)
            return result, losses(file.name)

    def test_all_modes_compute_the_same_bits(self):
        reference = None
        for transport, comm in MODES:
            with self.subTest(transport=transport, comm=comm):
                result, got = self.with_losses("--sync", "--steps", 12, "--batch", 32, "--transport", transport,
                                               "--comm", comm)
                self.assertEqual(result["transport"], transport)
                self.assertEqual(len(got), 12)
                reference = reference or got
                self.assertEqual(got, reference)
        for way in ("plain", "tuned") if GRPC else ():
            with self.subTest(grpc=way):
                result, got = self.with_losses("--sync", "--steps", 12, "--batch", 32, "--comm", "grpc",
                                               env=environment(TERN_GRAPH_GRPC_WAY=way))
                self.assertEqual(result["writes"], 0)
                self.assertEqual(got, reference)

    def test_threads_of_the_scheduler_change_no_bits(self):
        job = ("--model", "convnet_small", "--sync", "--steps", 6, "--batch", 8)
        reference = self.with_losses(*job)[1]
        self.assertEqual(self.with_losses(*job, env=environment(TERN_GRAPH_THREADS="3"))[1], reference)
        out, err = self.train(*job, check=2, env=environment(TERN_GRAPH_THREADS="0"))
        self.assertIn("TERN_GRAPH_THREADS", out + err)

    def test_the_switch_needs_no_other_command(self):
        job = ("--sync", "--steps", 6, "--transport", "shm", "--no-eval")
        for value, comm, writes in ((None, "zerocopy", True), ("0", "rpc", False), ("1", "zerocopy", True)):
            with self.subTest(TERN_RDMA_OPT=value):
                result = self.train(*job, env=environment(TERN_RDMA_OPT=value) if value else None)
                self.assertEqual(result["options"]["comm"], comm)
                self.assertEqual(result["writes"] > 0, writes)
        self.assertEqual(self.train(*job, "--comm", "copy", env=environment(TERN_RDMA_OPT="1"))["copies"], 0)

    def test_order_alone_moves_no_bytes(self):
        result = self.train("--sync", "--steps", 6, "--no-eval", "--comm", "none")
        self.assertEqual((result["steps"], result["bytes"], result["copies"], result["writes"]), (6, 0, 0, 0))

    def test_a_model_with_rows_of_its_own(self):
        """Random rows for models that no data set is made for: every way computes the same bits."""
        job = ("--model", "gru_small", "--data", "synthetic", "--batch", 4, "--steps", 3, "--sync")
        reference = None
        for comm in ("zerocopy", "copy", "rpc", *(["grpc"] if GRPC else [])):
            _, got = self.with_losses(*job, "--comm", comm)
            reference = reference or got
            self.assertEqual(got, reference, comm)
        out, err = self.train("--model", "alexnet", "--steps", 1, check=2)
        self.assertRegex(out + err, "alexnet takes 150528: --data synthetic")

    def test_a_step_is_part_of_the_whole(self):
        result = self.train("--sync", "--steps", 9, "--no-eval")
        self.assertGreater(result["step_seconds"], 0)
        self.assertLessEqual(result["step_seconds"] * 4, result["seconds"])  # of 8 steps half take the median or more
        self.assertGreater(result["cpu_seconds"], 0)

    def test_two_workers_with_half_the_batch(self):
        """The gradient of 2 workers x B/2 is that of one process with B, within float tolerance."""
        _, one = self.with_losses("--servers", 0, "--workers", 1, "--steps", 10, "--batch", 64, "--sync")
        _, two = self.with_losses("--servers", 2, "--workers", 2, "--steps", 10, "--batch", 32, "--sync")
        for a, b in zip(one, two):
            a, b = float.fromhex(a), float.fromhex(b)
            self.assertAlmostEqual(a, b, delta=1e-4 * max(1.0, abs(a)))

    def test_learns(self):
        for sync in ([], ["--sync"]):
            result = self.train("--epochs", 8, "--batch", 20, *sync)
            self.assertGreater(result["accuracy"], 0.9)
            self.assertLess(result["loss"], 1.0)
            self.assertEqual(result["steps"], 8 * (1200 // 40))

    def test_stale_synchronous(self):
        """A bound on how far ahead workers are: it learns as well, and is another job than one without."""
        result = self.train("--epochs", 8, "--batch", 20, "--consistency", "ssp", "--staleness", 1)
        self.assertGreater(result["accuracy"], 0.9)
        self.assertEqual(result["steps"], 8 * (1200 // 40))

    def test_zero_copy_copies_nothing(self):
        result = self.train("--steps", 10, "--sync", "--transport", "shm", "--comm", "zerocopy", "--no-eval")
        self.assertEqual(result["copies"], 0)  # by the transfer
        self.assertEqual(result["staging_copies"], 0)  # by the link, out of memory it does not know
        # 6 variables, the largest in two parts, to and from each of 2 workers in each step
        self.assertEqual(result["writes"], 10 * 7 * 2 * 2)
        self.assertEqual(result["bytes"], 10 * 2 * 2 * 4 * result["parameters"])
        staged = self.train("--steps", 10, "--sync", "--transport", "shm", "--comm", "copy", "--no-eval")
        self.assertGreaterEqual(staged["copies"], 2 * 10 * 7 * 2 * 2)

    def test_a_curve_is_losses_with_times(self):
        with tempfile.NamedTemporaryFile(prefix="tern-test-") as file:
            result, got = self.with_losses("--steps", 9, "--sync", "--curve", file.name)
            with open(file.name, encoding="ascii") as lines:
                rows = [line.split("\t") for line in lines]
        self.assertEqual([int(row[0]) for row in rows], list(range(9)))
        for row, loss in zip(rows, got):
            self.assertAlmostEqual(float(row[2]), float.fromhex(loss), delta=1e-7 * float(row[2]))
        times = [float(row[1]) for row in rows]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[0], 0)
        self.assertLess(times[-1], result["seconds"] + 0.5)
        self.assertIn("cannot write --curve", self.train("--steps", 2, "--no-eval", "--curve", "/nonexistent/x", check=1)[1])

    def test_json_has_what_it_promises(self):
        result = self.train("--steps", 3)
        for key in ("loss", "accuracy", "steps", "steps_per_s", "bytes", "copies", "comm_seconds", "options"):
            self.assertIn(key, result)
        self.assertEqual(result["options"]["workers"], 2)

    def test_no_comm(self):
        result = self.train("--steps", 3, "--no-comm", "--no-eval")
        self.assertEqual(result["bytes"], 0)

    def test_more_processes(self):
        result = self.train("--servers", 3, "--workers", 4, "--steps", 6, "--batch", 16, "--sync", "--no-eval")
        self.assertEqual(result["steps"], 6)

    def test_many_workers_at_one_server(self):
        """The server's receive slots are shared by all its peers."""
        for transport in ("shm", "tcp"):
            result = self.train("--servers", 1, "--workers", 14, "--steps", 2, "--batch", 4, "--no-eval",
                                "--transport", transport)
            self.assertEqual(result["steps"], 2)

    def test_by_hand_over_a_cluster_list(self):
        """The same program as single processes with --role, as on several hosts."""
        ports = [free_port() for _ in range(2)]
        cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
        common = ["--cluster", cluster, "--steps", "5", "--batch", "32", "--data", self.data]
        parts = []
        for role, index in (("worker", 0), ("server", 0), ("worker", 1), ("server", 1)):
            parts.append(subprocess.Popen([TERN, "train", "--role", role, "--index", str(index), *common],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                          env=environment()))
            self.addCleanup(end, parts[-1])
        for part in parts:
            out, _ = part.communicate(timeout=90)
            self.assertEqual(part.returncode, 0, out)


class Joining(DataCase):
    """Who may take part in a job."""

    def test_a_stray_is_refused_and_the_job_goes_on(self):
        """A launched job has a secret of its own: another process cannot take a worker's place."""
        job = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", "--quiet", "--no-eval"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(end, job)
        parts = wait_for_children(job, 4)
        self.assertEqual(len(parts), 4)
        for pid in parts.values():
            with open(f"/proc/{pid}/environ", "rb") as file:
                secrets = [w for w in file.read().split(b"\0") if w.startswith(b"TERN_CTX_SECRET=")]
            self.assertEqual([len(w) for w in secrets], [len("TERN_CTX_SECRET=") + 64])
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                self.assertNotIn(secrets[0].split(b"=")[1], file.read())
        # the control port is among those that a server listens on
        ports = [listening_ports(parts[f"server{i}"]) for i in range(2)]
        with open(f"/proc/{parts['worker0']}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        cluster = words[words.index(b"--cluster") + 1].decode()
        for address, open_ports in zip(cluster.split(","), ports):
            self.assertIn(int(address.split(":")[1]), open_ports)
        for secret in ({}, {"TERN_CTX_SECRET": "a guess"}):
            with self.subTest(secret=secret):
                status, _, err = tern("train", "--role", "worker", "--index", 0, "--cluster", cluster, "--data", self.data,
                                      "--steps", 1000000, "--no-eval", "--timeout", 20, env=environment(**secret))
                self.assertEqual(status, 1, err)
                self.assertIn("secret", err)
                time.sleep(0.5)
                self.assertIsNone(job.poll(), "the stray ended the job")
                self.assertEqual(children_of(job.pid), parts)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 130, err)

    def test_own_secret_stays(self):
        self.train("--steps", 2, "--no-eval", env=environment(TERN_CTX_SECRET="of my own"))

    def refused(self, server, worker):
        cluster = f"127.0.0.1:{free_port()}"
        common = ["--servers", "1", "--workers", "1", "--cluster", cluster, "--data", self.data, "--index", "0"]
        process = subprocess.Popen([TERN, "train", "--role", "server", *common, *server], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=environment())
        try:
            started = time.monotonic()
            status, _, err = tern("train", "--role", "worker", *common, *worker, "--timeout", 50)
            took = time.monotonic() - started
        finally:
            end(process)
        self.assertEqual(status, 1, err)
        self.assertIn("another job: same options everywhere", err)
        self.assertLess(took, 40, "the worker waited for its deadline")

    def test_other_options_are_another_job(self):
        same = ["--steps", "4"]
        for server, worker in ((["--seed", "1"], ["--seed", "2"]), (["--lr", "0.1"], ["--lr", "0.2"]),
                               (["--batch", "16"], ["--batch", "32"]), (["--comm", "copy"], []), (["--sync"], []),
                               (["--momentum", "0.5"], [])):
            with self.subTest(server=server, worker=worker):
                self.refused(same + server, same + worker)

    def test_other_steps_are_another_job(self):
        self.refused(["--steps", "4"], ["--steps", "5"])

    def test_data_of_another_shape(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            for name in ("train", "t10k"):
                write_idx(f"{folder}/{name}-images-idx3-ubyte.gz", (100, 4, 4), bytes(1600))
                write_idx(f"{folder}/{name}-labels-idx1-ubyte.gz", (100,), bytes(range(10)) * 10)
            tern("train", "--data", folder, "--steps", 1, "--batch", 8, check=0)
            tern("train", "--data", folder, "--steps", 1, "--batch", 8, "--servers", 0, "--workers", 1, check=0)
            err = tern("train", "--data", folder, "--steps", 1, "--batch", 8, "--classes", 11, check=2)[2]
            self.assertIn("16 numbers in 10 classes", err)

    def test_hidden_layers(self):
        result = self.train("--hidden", "20,8", "--steps", 2, "--no-eval")
        self.assertEqual(result["parameters"], 784 * 20 + 20 + 20 * 8 + 8 + 8 * 10 + 10)
        self.assertEqual(result["options"]["hidden"], "20,8")
        for bad in ("", "0", "8,", ",8", "-1", "8 9", "1,2,3,4,5,6,7,8,9"):
            with self.subTest(hidden=bad):
                self.assertIn("--hidden", tern("train", "--data", self.data, f"--hidden={bad}", check=2)[2])


class Ending(DataCase):
    def start(self, *args):
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", *args],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(end, process)
        self.assertEqual(len(wait_for_children(process, 4)), 4)
        time.sleep(1)
        return process, children_of(process.pid)

    def test_ctrl_c_ends_all(self):
        process, parts = self.start()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertIn("stopped by signal 2", err)
        self.assertFalse([name for name, pid in parts.items() if alive(pid)])

    def test_the_dead_is_named(self):
        process, parts = self.start()
        os.kill(parts["server1"], signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("server1", err)
        self.assertIn("killed by signal 9", err)
        self.assertFalse([name for name, pid in parts.items() if alive(pid)])

    def test_a_failed_start_says_why(self):
        """The program's file is gone by the time that the launcher starts it again."""
        with tempfile.TemporaryDirectory(prefix="tern-test-") as folder:
            copy = shutil.copy(TERN, f"{folder}/tern")
            script = 'exec 9<"$1"; rm "$1"; shift; exec /proc/self/fd/9 "$@"'
            done = subprocess.run(["sh", "-c", script, "sh", copy, "train", "--data", self.data, "--steps", "2", "--quiet"],
                                  capture_output=True, text=True, timeout=60, env=environment(), check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("exited with status 127: cannot run", done.stderr)
        self.assertIn("No such file or directory", done.stderr)

    def test_children_are_ignored_by_the_parent(self):
        """SIGCHLD ignored, as some service managers leave it: ends are noticed all the same."""
        script = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        done = subprocess.run([sys.executable, "-c", script, TERN, "train", "--data", self.data, "--steps", "2", "--quiet"],
                              capture_output=True, text=True, timeout=60, env=environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_launcher_killed(self):
        process, parts = self.start()
        process.kill()
        process.communicate(timeout=10)
        deadline = time.monotonic() + 15
        while any(alive(pid) for pid in parts.values()):
            self.assertLess(time.monotonic(), deadline, parts)
            time.sleep(0.1)


@unittest.skipUnless(os.path.isdir(FASHION), "the package dataset-fashion-mnist is not installed")
@unittest.skipIf(SANITIZED, "too slow under sanitizers")
class FashionMnist(unittest.TestCase):
    def test_accuracy(self):
        import json
        out = json.loads(tern("train", "--data", FASHION, "--epochs", 4, "--sync", "--quiet", "--json", timeout=200, check=0)[1])
        self.assertGreaterEqual(out["accuracy"], 0.87)


if __name__ == "__main__":
    unittest.main(verbosity=2)
