# SPDX-License-Identifier: Apache-2.0
"""`tern server --http`: all routes, what is refused, and a real Prometheus that scrapes it."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from common import TERN, environment, tern

SAMPLE = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"(,[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*")*\})? '
                    r'[-+0-9.eEnaif]+$')


class HttpTest(unittest.TestCase):
    def setUp(self):
        self.server = subprocess.Popen([TERN, "server", "--http", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(self.end)
        facts = json.loads(self.server.stdout.readline())
        self.address, self.http = facts["address"], facts["http"]

    def end(self):
        self.server.send_signal(signal.SIGTERM)
        _, err = self.server.communicate(timeout=30)
        self.assertEqual(self.server.returncode, 0, err)

    def get(self, path, **headers):
        request = urllib.request.Request(f"http://{self.http}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def samples(self):
        status, kind, text = self.get("/metrics")
        self.assertEqual(status, 200)
        self.assertIn("version=0.0.4", kind)
        out, seen, before = {}, set(), None
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            self.assertRegex(line, SAMPLE)
            name = re.split(r"[{ ]", line)[0]
            if name != before:
                self.assertNotIn(name, seen, "rows of a name stand together")
                seen.add(name)
                before = name
            out[line.rsplit(" ", 1)[0]] = float(line.rsplit(" ", 1)[1])
        return out

    def test_routes(self):
        tern("table", "create", "users", "--server", self.address, "--dim", 4, check=0)
        samples = self.samples()
        self.assertIn('tern_memory_bytes{kind="committed"}', samples)
        self.assertIn("tern_link_ops", samples)
        for path, words in (("/healthz", "ok"), ("/readyz", "ready"), ("/", "<title>tern</title>"), ("/state", "counters")):
            status, _, text = self.get(path)
            self.assertEqual(status, 200)
            self.assertIn(words, text)
        status = json.loads(self.get("/status.json")[2])
        self.assertEqual(status["address"], self.address)
        self.assertIn("committed_bytes", status["memory"])
        self.assertGreater(status["counters"]["link.ops"] + status["counters"]["link.messages_rx"], 0)

    def test_links(self):
        client = subprocess.Popen([TERN, "bench", "ps", "--servers", self.address, "--duration", "20", "--quiet"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
        try:
            for _ in range(200):
                links = json.loads(self.get("/status.json")[2])["links"]
                if any(link["state"] == "up" and link["operations"] + link["messages_received"] > 0 for link in links):
                    break
                time.sleep(0.1)
            else:
                self.fail(f"no link at work: {links}")
            rows = [row for row in self.samples() if row.startswith("tern_peer_up{")]
            self.assertTrue(rows and 'transport="' in rows[0], rows)
            self.assertIn("lane 0", self.get("/state")[2])
        finally:
            client.kill()
            client.wait()

    def test_refusals(self):
        self.assertEqual(self.get("/nothing")[0], 404)
        self.assertEqual(self.get("/", Host="evil.example:80")[0], 403)
        self.assertEqual(self.get("/", Host="localhost")[0], 200)
        request = urllib.request.Request(f"http://{self.http}/metrics", data=b"x", method="POST")
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        self.assertEqual(caught.exception.code, 405)
        caught.exception.close()
        host, port = self.http.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as raw:  # nonsense ends its own connection
            raw.sendall(b"\0\1\2\3" * 100 + b"\r\n\r\n")
        self.assertEqual(self.get("/healthz")[0], 200)
        _, _, err = tern("server", "--http", "0.0.0.0:0", check=1)
        self.assertIn("beyond loopback", err)
        _, _, err = tern("server", "--http", "somewhere", check=1)
        self.assertIn("HOST:PORT", err)
        _, _, err = tern("server", "--http", self.http, check=1)
        self.assertIn("EADDRINUSE", err)

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
    def test_prometheus(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            own = f"127.0.0.1:{probe.getsockname()[1]}"
        with tempfile.TemporaryDirectory(prefix="tern-test-prometheus-") as folder:
            conf = os.path.join(folder, "p.yml")
            with open(conf, "w", encoding="utf-8") as f:
                json.dump({"global": {"scrape_interval": "1s"},
                           "scrape_configs": [{"job_name": "tern", "static_configs": [{"targets": [self.http]}]}]}, f)
            prometheus = subprocess.Popen(["prometheus", f"--config.file={conf}", f"--storage.tsdb.path={folder}/data",
                                           f"--web.listen-address={own}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                          text=True)
            try:
                found = self.query(prometheus, own, "tern_build_info")
                self.assertEqual((found[0]["value"][1], found[0]["metric"]["instance"]), ("1", self.http))
                self.assertEqual(self.query(prometheus, own, "up{job='tern'}")[0]["value"][1], "1")
            finally:
                prometheus.terminate()
                prometheus.communicate(timeout=30)

    def query(self, prometheus, own, text):
        url = f"http://{own}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        for _ in range(300):
            if prometheus.poll() is not None:
                self.fail(prometheus.stderr.read())
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    found = json.load(answer)["data"]["result"]
                if found:
                    return found
            except OSError:
                pass
            time.sleep(0.2)
        self.fail(f"prometheus has no {text}")
        return None


if __name__ == "__main__":
    unittest.main()
