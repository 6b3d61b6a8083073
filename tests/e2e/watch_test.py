# SPDX-License-Identifier: Apache-2.0
"""`tern top`, `tern status`, `tern trace`, the report at a signal, and the page in a real browser, over servers at work."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from common import TERN, environment, tern


class Server:
    def __init__(self, name):
        self.process = subprocess.Popen([TERN, "server", "--http", "127.0.0.1:0", "--name", name, "--json"],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        facts = json.loads(self.process.stdout.readline())
        self.address, self.http = facts["address"], facts["http"]

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


class WatchTest(unittest.TestCase):
    """One server under load for all tests: each only looks."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("shop")
        tern("table", "create", "users", "--server", cls.server.address, "--dim", 4, check=0)
        cls.load = subprocess.Popen([TERN, "bench", "ps", "--servers", cls.server.address, "--duration", "300", "--quiet"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
        for _ in range(300):
            if "rpc.serve" in tern("top", "--count", 1, "--interval", "0.1", cls.server.http, check=0)[1]:
                break
            time.sleep(0.1)

    @classmethod
    def tearDownClass(cls):
        cls.load.terminate()
        cls.load.wait()
        code, err = cls.server.end()
        assert code == 0, err

    def test_top(self):
        _, out, _ = tern("top", "--count", 2, "--interval", "0.3", self.server.http, check=0)
        self.assertEqual(out.count("tern top - "), 2)
        self.assertNotIn("\033", out)
        process = [line for line in out.splitlines() if line.startswith("shop ") and "M" in line]
        self.assertTrue(process, out)
        serve = [line.split() for line in out.splitlines() if " rpc.serve " in line][-1]
        self.assertGreater(float(serve[2].rstrip("kM")), 0, out)
        self.assertRegex(serve[3], r"^[\d.]+[um]?s$")
        self.assertNotEqual(serve[3], "0.0us")
        self.assertRegex(out, r"shop +\S+ 127\.0\.0\.1:\d+ +shm +up")

    def test_status(self):
        _, out, _ = tern("status", self.server.http, check=0)
        self.assertIn(f"shop at {self.server.address}", out)
        self.assertIn("over shm: up", out)
        self.assertIn("waits for nobody", out)
        rows = json.loads(tern("status", "--json", self.server.http, check=0)[1])
        self.assertEqual((rows[0]["name"], rows[0]["address"], rows[0]["waits"]), ("shop", self.server.address, []))
        _, out, _ = tern("status", "--state", self.server.http, check=0)
        for words in ("memory: ", "what waits", "latencies", "rpc.serve: ", "counters that are not 0", "lane 0"):
            self.assertIn(words, out)

    def test_nobody_there(self):
        _, out, _ = tern("status", "127.0.0.1:1", self.server.http, check=1)
        self.assertIn("does a process run there with --http?", out)
        self.assertIn("127.0.0.1:1 does not answer: look there first", out)
        self.assertIn("shop at", out)
        _, out, _ = tern("top", "--count", 1, "--interval", "0.1", "127.0.0.1:1", check=1)
        self.assertIn("does a process run there", out)
        _, _, err = tern("status", "no such host:1", check=1)
        _, _, err = tern("trace", "--seconds", "0.2", "--output", "/nonexistent/t.json", self.server.http, check=1)
        self.assertIn("/nonexistent/t.json", err)
        _, _, err = tern("trace", "--secnds", 1, check=2)
        self.assertIn("--seconds", err)

    def test_trace(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-watch-") as folder:
            path = os.path.join(folder, "t.json")
            for seconds in (1, 4, 16):  # a busy host does little in a second
                _, _, err = tern("trace", "--seconds", seconds, "--output", path, self.server.http, check=0)
                self.assertIn("1 processes", err)
                with open(path, encoding="utf-8") as f:
                    events = json.load(f)["traceEvents"]
                if sum(e["ph"] == "X" for e in events) > 10:
                    break
        names = [e for e in events if e["ph"] == "M"]
        self.assertEqual([e["args"]["name"] for e in names], ["shop"])
        spans = [e for e in events if e["ph"] == "X"]
        self.assertGreater(len(spans), 10)
        self.assertEqual({e["pid"] for e in spans}, {self.server.process.pid})
        self.assertIn("rpc.serve", {e["name"] for e in spans})
        numbers = [e["args"]["number"] for e in spans]
        self.assertEqual(numbers, sorted(set(numbers)), "each span once")
        self.assertTrue(all(abs(e["ts"] / 1e6 - time.time()) < 60 and e["dur"] >= 0 for e in spans))

    def test_trace_ends_at_a_signal(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-watch-") as folder:
            path = os.path.join(folder, "t.json")
            process = subprocess.Popen([TERN, "trace", "--seconds", "100", "--output", path, "--quiet", self.server.http],
                                       env=environment())
            time.sleep(0.7)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=30), 0)
            with open(path, encoding="utf-8") as f:
                self.assertGreater(len(json.load(f)["traceEvents"]), 1)

    @unittest.skipUnless(shutil.which("chromium"), "chromium is not installed")
    def test_page(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-watch-") as folder:
            picture = os.path.join(folder, "page.png")
            browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                       "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}/profile",
                       "--window-size=1200,1400", "--virtual-time-budget=4000"]
            done = subprocess.run(browser + ["--dump-dom", f"http://{self.server.http}/"], capture_output=True, text=True,
                                  timeout=120, check=False)
            page = done.stdout
            self.assertIn(">live<", page, done.stderr)
            for words in ("rpc.serve", ">users<", ">shm<", ">up<", "Tables, the share of this server", "link.messages_rx",
                          "bench-"):
                self.assertIn(words, page)
            self.assertGreater(len(re.findall("<rect ", page)), 10, "bars of the distribution")
            done = subprocess.run(browser + [f"--screenshot={picture}", f"http://{self.server.http}/"], capture_output=True,
                                  text=True, timeout=120, check=False)
            with open(picture, "rb") as f:
                data = f.read()
            self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
            self.assertEqual(struct.unpack(">II", data[16:24]), (1200, 1400))
            self.assertGreater(len(data), 20000, "an empty page is smaller")
            if os.environ.get("TERN_TEST_KEEP"):
                shutil.copy(picture, os.environ["TERN_TEST_KEEP"])


class SignalTest(unittest.TestCase):
    def test_report_at_a_signal(self):
        server = Server("reporter")
        server.process.send_signal(signal.SIGUSR2)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGUSR2)
        time.sleep(0.3)
        code, err = server.end()
        self.assertEqual(code, 0, err)
        self.assertEqual(err.count(f", reporter at {server.address}"), 2, err)
        self.assertEqual(err.count("counters that are not 0"), 2)

    def test_asking_does_not_end_a_server_that_ends(self):
        server = Server("leaver")
        server.process.send_signal(signal.SIGTERM)
        while "ending" not in server.process.stderr.readline():
            pass
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGUSR2)
        _, err = server.process.communicate(timeout=30)
        self.assertEqual(server.process.returncode, 0, err)


if __name__ == "__main__":
    unittest.main()
