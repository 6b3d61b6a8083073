#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern server --join` and `tern cluster`: servers that join, are killed, drained and ended, as a person does it."""
import json
import os
import re
import select
import signal
import subprocess
import time
import unittest

from common import TERN, environment, tern

FAST = {'TERN_CLUSTER_LEASE': '1s', 'TERN_CLUSTER_MARGIN': '300ms', 'TERN_CLUSTER_BALANCE': '500ms'}
SLOTS = 4096


class Server:
    """One `tern server`, killed when the test ends if it runs still."""

    def __init__(self, test, *args):
        self.process = subprocess.Popen([TERN, 'server', *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        stdin=subprocess.DEVNULL, text=True, env={**environment(), **FAST})
        test.addCleanup(self.kill)
        select.select([self.process.stdout], [], [], 30)
        self.address = re.search(r'127\.0\.0\.1:\d+', self.process.stdout.readline()).group()

    def kill(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=60)

    def end(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        self.process.communicate(timeout=90)
        return self.process.returncode


class Cluster(unittest.TestCase):
    def cluster(self, *args, status=0):
        rc, out, err = tern('cluster', *args)
        self.assertEqual(rc, status, err)
        return out if status == 0 else err

    def status(self, at):
        report = json.loads(self.cluster('status', '--server', at, '--json'))
        return report, {s['address']: s for s in report['servers'] if s['state'] in ('up', 'draining')}

    def until(self, at, what, condition):
        end = time.monotonic() + 90
        while time.monotonic() < end:
            report, alive = self.status(at)
            if condition(report, alive):
                return alive
            time.sleep(0.1)
        self.fail(f'{what}: {report}')

    def whole(self, at, servers):
        """All slots are served by so many servers, each with a backup, about as many at each."""
        return self.until(at, f'{servers} servers', lambda report, alive: (
            report['served'] == SLOTS and len(alive) == servers and
            all(s['alone'] == 0 and s['leaving'] == 0 and s['primaries'] > SLOTS / servers * 0.7
                for s in alive.values())))

    def test_servers_come_and_go(self):
        lead = Server(self, '--join', 'self', '--replicas', '2')
        second = Server(self, '--join', lead.address)
        third = Server(self, '--join', lead.address)
        self.whole(lead.address, 3)
        rc, _, err = tern('table', 'create', 'users', '--dim', '8', '--rows', '5000', '--server', second.address)
        self.assertEqual(rc, 0, err)
        third.kill()
        self.whole(second.address, 2)
        fourth = Server(self, '--join', lead.address, '--drain', '60')
        self.whole(lead.address, 3)
        self.cluster('drain', second.address, '--server', lead.address, '--wait')
        _, alive = self.status(lead.address)
        self.assertEqual(alive[second.address]['primaries'] + alive[second.address]['backups'], 0)
        self.assertEqual(second.end(signal.SIGINT), 0)
        self.whole(lead.address, 2)
        self.assertEqual(fourth.end(), 0)  # it gives its slots away first
        report, alive = self.status(lead.address)
        self.assertEqual((report['served'], list(alive)), (SLOTS, [lead.address]))
        self.assertIn('up', self.cluster('status', '--server', lead.address))

    def test_refusals_say_why(self):
        lead = Server(self, '--join', 'self')
        at = ('--server', lead.address)
        self.assertIn('the last one', self.cluster('drain', lead.address, *at, status=1))
        self.assertIn('is not dead', self.cluster('give-up', lead.address, *at, status=1))
        self.assertIn('no server at 127.0.0.1:1', self.cluster('drain', '127.0.0.1:1', *at, status=1))
        self.assertIn('Say its address', self.cluster('drain', *at, status=2))
        self.assertIn("did you mean 'status'", self.cluster('statis', *at, status=2))
        alone = Server(self)
        self.assertIn('fixed list', self.cluster('status', '--server', alone.address, status=1))


if __name__ == '__main__':
    unittest.main(verbosity=2)
