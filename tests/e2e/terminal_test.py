#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job on a terminal: Ctrl-C at any moment ends all of it and leaves the cursor on a line of its own."""
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from common import DataCase, TERN, alive, children_of, environment, wait_for_children

CTRL_C = b"\x03"


class Terminal(DataCase):
    def setUp(self):
        self.running = set()
        try:
            for end in os.openpty():
                os.close(end)
        except OSError as error:
            self.skipTest(f"no pseudo-terminals here ({error}): is /dev/pts mounted?")

    def start(self, *args):
        """The command as the foreground process of a new terminal."""
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.execve(TERN, [TERN, "train", "--data", self.data, "--steps", "1000000", "--no-eval", *args], environment())
        self.shown = b""
        self.running.add(pid)
        self.addCleanup(self.finish, pid, self.terminal)
        return pid

    def finish(self, pid, terminal):
        if pid in self.running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)

    def read(self, seconds):
        """What is shown within that time; False at the end of the terminal's last process."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                return True
            try:
                got = os.read(self.terminal, 65536)
            except OSError:
                return False
            if not got:
                return False
            self.shown += got
        return True

    def read_until(self, words, seconds=60):
        deadline = time.monotonic() + seconds
        while words not in self.shown:
            self.assertLess(time.monotonic(), deadline, self.shown)
            self.assertTrue(self.read(0.1), self.shown)

    def children(self, pid, count):
        deadline = time.monotonic() + 60
        while len(children_of(pid)) < count:
            self.assertLess(time.monotonic(), deadline)
            self.read(0.02)
        return children_of(pid)

    def check_end(self, pid, parts, status):
        deadline = time.monotonic() + 40
        while self.read(0.1):
            self.assertLess(time.monotonic(), deadline, self.shown)
        _, wait_status = os.waitpid(pid, 0)
        self.running.discard(pid)
        self.assertEqual(os.waitstatus_to_exitcode(wait_status), status, self.shown)
        self.assertTrue(self.shown.endswith(b"\r\n"), self.shown[-200:])
        # the last words have a line of their own: no bar in front of them
        last = self.shown.rstrip().rsplit(b"\n", 1)[-1].rsplit(b"\x1b[K", 1)[-1]
        self.assertTrue(last.startswith(b"tern train: stopped by signal"), self.shown[-300:])
        self.assertFalse([n for n, p in parts.items() if alive(p)], self.shown)

    def test_ctrl_c_while_training(self):
        pid = self.start()
        self.read_until(b"images/s")
        parts = children_of(pid)
        os.write(self.terminal, CTRL_C)
        self.check_end(pid, parts, 130)
        self.assertNotIn(b"killed", self.shown)

    def test_ctrl_c_while_starting(self):
        for count in (1, 2, 3, 4):
            with self.subTest(processes=count):
                pid = self.start()
                self.children(pid, count)
                os.write(self.terminal, CTRL_C)
                self.check_end(pid, children_of(pid), 130)

    def test_twice_kills_at_once(self):
        """A stopped process cannot end by itself: the second Ctrl-C does not wait for it."""
        pid = self.start()
        self.read_until(b"images/s")
        parts = children_of(pid)
        os.kill(parts["server0"], signal.SIGSTOP)
        os.write(self.terminal, CTRL_C)
        self.read(0.3)
        os.write(self.terminal, CTRL_C)
        self.check_end(pid, parts, 130)
        self.assertIn(b"killed", self.shown)

    def test_terminated(self):
        pid = self.start()
        self.read_until(b"images/s")
        parts = children_of(pid)
        os.kill(pid, signal.SIGTERM)
        self.check_end(pid, parts, 143)
        self.assertNotIn(b"killed", self.shown)

    def test_hung_up(self):
        """The terminal goes away: so does the job."""
        process = subprocess.Popen([TERN, "train", "--data", self.data, "--steps", "1000000", "--quiet"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
        parts = wait_for_children(process, 4)
        process.send_signal(signal.SIGHUP)
        process.wait(20)
        deadline = time.monotonic() + 20
        while [n for n, p in parts.items() if alive(p)]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


if __name__ == "__main__":
    unittest.main(verbosity=2)
