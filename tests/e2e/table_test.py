#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern server` and `tern table` as a person uses them: make a table, save it, look into the checkpoint, lose the server,
restore on another number of servers.
"""
import glob
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

from common import TERN, environment, tern


class Server:
    """One `tern server`, ended when the test does."""

    def __init__(self, test, name, *args):
        self.process = subprocess.Popen([TERN, 'server', '--name', name, *args], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment())
        test.addCleanup(self.end)
        select.select([self.process.stdout], [], [], 30)
        self.address = re.search(r'127\.0\.0\.1:\d+', self.process.stdout.readline()).group()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='tern-test-table-')
        self.addCleanup(folder.cleanup)
        self.dir = os.path.join(folder.name, 'ck')

    def table(self, *args, status=0):
        rc, out, err = tern('table', *args)
        self.assertEqual(rc, status, err)
        return out if status == 0 else err

    def make(self):
        server = Server(self, 'one')
        at = ('--server', server.address)
        self.table('create', 'users', *at, '--dim', '16', '--optimizer', 'adagrad')
        self.table('create', 'names/of.ads', *at, '--dim', '4', '--rows', '1000')
        return server, at

    def test_saves_come_back_on_other_servers(self):
        server, at = self.make()
        first = json.loads(self.table('export', self.dir, *at, '--json'))
        self.assertEqual((first['sequence'], first['rows']), (1, 1000))
        self.assertIn('checkpoint 2 saved: 1000 rows', self.table('export', self.dir, *at, '--keep', '1'))
        self.assertEqual([os.path.basename(p) for p in glob.glob(self.dir + '/*')], [f'ckpt-{2:020}'])
        inside = json.loads(self.table('inspect', self.dir, '--json'))
        self.assertEqual({t['name']: t['rows'] for t in inside['tables']}, {'users': 0, 'names/of.ads': 1000})
        self.assertIn('is whole', self.table('verify', self.dir))
        self.assertIn('"names/of.ads"', self.table('import', self.dir, *at, status=1))
        self.assertEqual(server.end(), 0)
        other = Server(self, 'two')
        self.assertIn('checkpoint 2 restored: 1000 rows', self.table('import', self.dir, '--server', other.address))
        self.assertEqual(json.loads(self.table('stats', 'names/of.ads', '--server', other.address, '--json'))['rows'],
                         1000)

    def test_deltas_follow_a_base(self):
        server, at = self.make()
        self.assertIn('holds no checkpoint', self.table('export', self.dir, *at, '--kind', 'delta', status=1))
        first = json.loads(self.table('export', self.dir, *at, '--kind', 'auto', '--json'))
        self.assertEqual((first['base'], first['rows']), (None, 1000))
        second = json.loads(self.table('export', self.dir, *at, '--kind', 'auto', '--json'))
        self.assertEqual((second['base'], second['rows'], second['gone']), (1, 0, 0))
        self.assertIn('a delta to 2', self.table('export', self.dir, *at, '--kind', 'delta', '--keep', '1'))
        self.assertEqual(len(glob.glob(self.dir + '/*')), 3)
        self.assertIn('checkpoint 3 (a delta to 2, number 2 of its chain)', self.table('inspect', self.dir))
        self.assertIn('so is all that it goes on from', self.table('verify', self.dir))
        self.assertEqual(server.end(), 0)
        other = Server(self, 'two')
        self.table('import', self.dir, '--server', other.address)
        self.assertEqual(json.loads(self.table('stats', 'names/of.ads', '--server', other.address, '--json'))['rows'],
                         1000)
        os.rename(f'{self.dir}/ckpt-{2:020}', f'{self.dir}/gone')
        self.assertIn('is a delta to checkpoint 2, which is not there', self.table('verify', self.dir, status=1))
        self.assertIn('alone, base, delta or auto', self.table('export', self.dir, *at, '--kind', 'x', status=2))

    def version(self, at):
        return json.loads(self.table('version', *at, '--json'))[0]

    def until(self, at, version):
        end = time.monotonic() + 60
        while self.version(at)['version'] != version:
            self.assertLess(time.monotonic(), end, self.version(at))
            time.sleep(0.05)

    def test_followers_serve_what_training_saved(self):
        _, at = self.make()
        self.table('export', self.dir, *at, '--kind', 'auto', '--step', '10')
        follower = Server(self, 'replica', '--follow', self.dir)
        to = ('--server', follower.address)
        self.until(to, 1)
        self.assertEqual(json.loads(self.table('stats', 'names/of.ads', *to, '--json'))['rows'], 1000)
        self.table('drop', 'users', *at)
        self.table('export', self.dir, *at, '--kind', 'auto', '--step', '25')
        self.until(to, 2)
        self.assertNotIn('users', self.table('list', *to))
        self.assertIn('version 1', self.table('version', *to, '--to', '1'))
        self.assertIn('users', self.table('list', *to))
        self.assertIn('1 behind the newest, 2', self.table('version', *to))
        self.assertEqual(self.version(to)['behind_steps'], 15)
        self.assertIn('read only', self.table('drop', 'users', *to, status=1))
        self.assertIn('ckpt-', self.table('version', *to, '--to', '9', status=1))
        self.table('version', *to, '--to', 'last')
        self.assertIn('follower replica has', self.table('inspect', self.dir))
        self.assertIn('does not follow', self.table('version', *at, status=1))
        self.assertEqual(follower.end(), 0)

    def test_cold_rows_have_a_directory(self):
        tier = tempfile.TemporaryDirectory(prefix='tern-tier-')
        self.addCleanup(tier.cleanup)
        server = Server(self, 'one', '--tier', tier.name)
        at = ('--server', server.address)
        rc, _, err = tern('table', 'create', 'users', *at, '--dim', '16', '--budget', '1MiB', '--eviction', 'lru')
        if 'RocksDB' in err or 'without cold tiers' in err:
            self.skipTest(err)
        self.assertEqual(rc, 0, err)
        self.assertEqual(len(glob.glob(tier.name + '/tern-tier.0.[0-9]*')), 1)
        self.assertEqual(json.loads(self.table('stats', 'users', *at, '--json'))['cold_rows'], 0)
        self.assertEqual(server.end(), 0)
        self.assertEqual(glob.glob(tier.name + '/tern-tier.0.[0-9]*'), [])

    def test_damage_is_named_and_restores_nothing(self):
        _, at = self.make()
        self.table('export', self.dir, *at)
        path = glob.glob(self.dir + '/*/names+of.ads.*')[0]
        with open(path, 'r+b') as file:
            file.seek(-9, os.SEEK_END)
            file.write(b'x')
        self.assertIn(os.path.basename(path), self.table('verify', self.dir, status=1))
        self.table('drop', 'names/of.ads', *at)
        self.table('drop', 'users', *at)
        self.assertIn(os.path.basename(path), self.table('import', self.dir, *at, status=1))
        self.assertEqual(self.table('list', *at), '')

    def test_hot_slots(self):
        _, at = self.make()
        self.assertEqual(json.loads(self.table('stats', 'users', *at, '--hot', '3', '--json'))['hot'], [])
        self.assertIn('--hot', self.table('stats', 'users', *at, '--hot', '5000', status=2))

    def test_mistakes_are_answered_in_words(self):
        self.assertIn("did you mean 'export'", self.table('exprot', status=2))
        self.assertIn('which directory', self.table('export', '--server', '127.0.0.1:1', status=2))
        self.assertIn('no such directory', self.table('export', 'no/such', '--server', '127.0.0.1:1', status=2))
        self.assertIn('which servers', self.table('export', '/tmp', status=2))
        self.assertIn('holds no checkpoint', self.table('verify', os.path.dirname(self.dir), status=1))


if __name__ == '__main__':
    unittest.main(verbosity=2)
