#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern bench ps` as a person uses it: what it counts is what the tables say; Ctrl-C ends all of it."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from common import TERN, end, environment, tern

SMALL = ("--keys", 5000, "--dim", 8, "--batch", 64, "--duration", "0.4s", "--warmup", "0.1s")


def bench(*args, check=0):
    status, out, err = tern("bench", "ps", "--quiet", *SMALL, *args, check=check)
    return json.loads(out) if status == 0 and "--json" in args else out + err


def members(pid):
    """Processes whose parent is pid."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                words = file.read().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[1]) == pid and words[0] != "Z":
            found.append(int(entry))
    return found


class Counts(unittest.TestCase):
    """The rows say how many keys were pushed, whoever waits for whom."""

    def check(self, *args, reads=50):
        r = bench("--json", "--check", "--reads", reads, *args)
        self.assertTrue(r["checked"])
        self.assertEqual(r["rows"], 5000)
        counts = r["pull"]["count"] + r["push"]["count"]
        self.assertEqual(r["keys"], 64 * counts)
        self.assertGreaterEqual(r["pushed"], 64 * r["push"]["count"])
        self.assertGreater(r["pushed"], 0)
        for what in ("pull", "push"):
            times = r[what]
            if times["count"]:
                self.assertLessEqual(times["p50_us"], times["p99_us"])
                self.assertLessEqual(times["p99_us"], times["p999_us"])
                self.assertLessEqual(times["p999_us"], times["max_us"])
        return r

    def test_one_client_of_one_server(self):
        r = self.check()
        self.assertGreater(r["client_cpu_s_per_mkeys"], 0)
        self.assertGreater(r["server_cpu_s_per_mkeys"], 0)

    def test_threads_of_clients_at_servers(self):
        for consistency in ("async", "bsp", "ssp"):
            for transport in ("shm", "tcp"):
                with self.subTest(consistency=consistency, transport=transport):
                    r = self.check("--servers", 3, "--clients", 2, "--threads", 2, "--consistency", consistency,
                                   "--transport", transport)
                    self.assertEqual(r["options"]["servers"], 3)

    def test_uniform_keys_and_pulls_alone(self):
        r = bench("--json", "--skew", 0, "--reads", 100, "--optimizer", "adam", "--dtype", "bf16")
        self.assertEqual((r["push"]["count"], r["pushed"], r["push"]["p99_us"]), (0, 0, None))
        self.assertGreater(r["pull"]["count"], 0)

    def test_running_servers(self):
        server = subprocess.Popen([TERN, "server"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                                  env=environment())
        self.addCleanup(server.stdout.close)
        self.addCleanup(end, server)
        address = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline()).group()
        r = self.check("--servers", address, "--clients", 2)
        self.assertFalse(r["options"]["local"])
        self.assertIsNone(r["server_cpu_s_per_mkeys"])
        # the table is gone, the server is not
        self.assertEqual(tern("table", "list", "--server", address, check=0)[1], "")

    def test_text(self):
        out = bench("--check")
        self.assertRegex(out, r"pull +\d+")
        self.assertIn("the rows say what was pushed", out)

    def test_mistakes_are_answered_in_words(self):
        self.assertIn("did you mean 'ps'", tern("bench", "pss", check=2)[2])
        self.assertIn("give a number", bench("--servers", "none", check=2))
        self.assertIn("from 0 to 100", bench("--reads", "101", check=2))
        self.assertIn("f32", bench("--check", "--optimizer", "adam", check=2))


class Growth(unittest.TestCase):
    """The tool that docs/PS-COST.md is made with still finds in the command's output what it needs."""

    def test_smoke(self):
        tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/growth.py")
        with tempfile.TemporaryDirectory(prefix="tern-test-growth-") as folder:
            done = subprocess.run([sys.executable, "-B", tool, TERN, "--smoke", "--out", folder, "keys", "servers"],
                                  capture_output=True, text=True, timeout=100, env=environment(), check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(folder, "servers.tsv"), encoding="ascii") as file:
                rows = [line.rstrip("\n").split("\t") for line in file]
        self.assertEqual([row[:2] for row in rows[1:]], [["shm", "1"], ["shm", "2"], ["tcp", "1"], ["tcp", "2"]])
        self.assertTrue(all(float(cell) > 0 for row in rows[1:] for cell in row[2:]))


class Ends(unittest.TestCase):
    def start(self, *args):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.execve(TERN, [TERN, "bench", "ps", "--duration", "600s", "--keys", "5000", *args], environment())
        self.addCleanup(os.close, self.terminal)
        self.shown = b""
        return pid

    def read_until(self, words):
        deadline = time.monotonic() + 60
        while words not in self.shown:
            self.assertLess(time.monotonic(), deadline, self.shown)
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.terminal, 65536)
                except OSError:
                    break

    def test_ctrl_c(self):
        pid = self.start("--clients", "2", "--servers", "2")
        self.read_until(b"M keys/s")
        parts = members(pid)
        self.assertEqual(len(parts), 4)
        os.write(self.terminal, b"\x03")
        self.read_until(b"all 4 processes have ended\r\n")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 130, self.shown)
        self.assertFalse([p for p in parts if os.path.exists(f"/proc/{p}")])

    def test_a_server_that_dies_is_named(self):
        pid = self.start()
        self.read_until(b"M keys/s")
        os.kill(min(members(pid)), signal.SIGKILL)
        self.read_until(b"server 0")
        self.read_until(b"killed by signal 9")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 1, self.shown)

    def test_the_command_is_killed(self):
        pid = self.start("--clients", "2")
        self.read_until(b"M keys/s")
        parts = members(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        deadline = time.monotonic() + 30
        while any(os.path.exists(f"/proc/{p}") for p in parts):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


if __name__ == "__main__":
    unittest.main(verbosity=2)
