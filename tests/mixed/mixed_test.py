#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two versions of the wire in one job: real processes, each with a libtern.so of another version, in both directions.

Usage: mixed_test.py FOLDER   with libtern.so.1 below before/, after/ and far/ (CMakeLists.txt says what they are);
TERN names the command, whose own library is `now`.
"""
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '../e2e'))
from common import TERN, end, environment, write_idx  # noqa: E402

FOLDER = sys.argv.pop(1)
BENCH = ('--clients', '1', '--keys', '300', '--dim', '8', '--batch', '16', '--reads', '50', '--duration', '200ms', '--warmup',
         '0', '--check', '--quiet')
PAIRS = [('now', 'before'), ('before', 'now'), ('now', 'after'), ('after', 'now'), ('before', 'after'), ('after', 'before')]


def of(version):
    """The environment of a process of that version, which logs what it negotiated."""
    env = environment(TERN_LOG_LEVEL='info')
    if version != 'now':
        env['LD_LIBRARY_PATH'] = os.path.join(FOLDER, version)
    return env


class Mixed(unittest.TestCase):
    def start(self, version, *args):
        process = subprocess.Popen([TERN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=of(version))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(end, process)
        return process

    def load(self, server, client, *args):
        """A client pulls from and pushes to a server: (status, its stdout, its stderr)."""
        serving = self.start(server, 'server', '--listen', '127.0.0.1:0')
        address = serving.stdout.readline().strip()
        done = subprocess.run([TERN, 'bench', 'ps', '--servers', address, *BENCH, *args], capture_output=True, text=True,
                              timeout=60, env=of(client), check=False)
        end(serving)
        return done.returncode, done.stdout, done.stderr

    def negotiated(self, err):
        found = re.findall(r'up over (\w+), \d+ lanes, wire version (\d+), features (0x[0-9a-f]+|0) ', err)
        self.assertTrue(found, err)
        return {(transport, int(version), int(features, 16)) for transport, version, features in found}

    def test_each_is_what_it_says(self):
        """Two of the same: each uses its own version and all its features."""
        versions = {}
        for name in ('now', 'before'):
            status, out, err = self.load(name, name)
            self.assertEqual(status, 0, out + err)
            (versions[name],) = {(version, features) for _, version, features in self.negotiated(err)}
        self.assertEqual(versions['before'], (versions['now'][0], 0))
        self.assertGreater(versions['now'][1], 0)

    def test_tables(self):
        """What was pushed is in the rows, whichever side dials; no feature is used that one of both lacks."""
        for server, client in PAIRS:
            for transport in ('auto', 'tcp'):
                with self.subTest(server=server, client=client, transport=transport):
                    status, out, err = self.load(server, client, '--transport', transport)
                    self.assertEqual(status, 0, out + err)
                    self.assertIn('the rows say what was pushed', out)
                    for used, version, features in self.negotiated(err):
                        self.assertEqual(version, 1)
                        self.assertEqual(features & 0x110000, 0)
                        if 'before' in (server, client):
                            self.assertEqual(features, 0)
                        # shm of another version is no shm: the link falls back
                        self.assertEqual(used, 'tcp' if transport == 'tcp' or 'after' in (server, client) else 'shm')

    def test_tensors(self):
        """A training job whose server and workers have different versions has the losses of one that has not."""
        with tempfile.TemporaryDirectory(prefix='tern-test-') as folder:
            for name, count in (('train', 128), ('t10k', 16)):
                write_idx(f'{folder}/{name}-images-idx3-ubyte.gz', (count, 8, 8), bytes(i * 31 % 251 for i in range(count * 64)))
                write_idx(f'{folder}/{name}-labels-idx1-ubyte.gz', (count,), bytes(i % 4 for i in range(count)))
            losses = {pair: self.train(folder, *pair) for pair in [('now', 'now'), *PAIRS[:4]]}
        self.assertEqual(len(losses[('now', 'now')]), 5)
        self.assertEqual(len({tuple(rows) for rows in losses.values()}), 1, losses)

    def train(self, folder, server, worker):
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            cluster = f'127.0.0.1:{probe.getsockname()[1]}'
        common = ('--index', '0', '--cluster', cluster, '--servers', '1', '--workers', '1', '--hidden', '16', '--steps', '5',
                  '--batch', '16', '--sync', '--json')
        parts = [self.start(server, 'train', '--role', 'server', *common, '--features', '64', '--classes', '4'),
                 self.start(worker, 'train', '--role', 'worker', *common, '--data', folder, '--losses', f'{folder}/losses')]
        for part in parts:
            _, err = part.communicate(timeout=60)
            self.assertEqual(part.returncode, 0, err)
        with open(f'{folder}/losses', encoding='ascii') as file:
            return file.read().splitlines()

    def test_too_far_apart(self):
        """Versions that do not meet are refused in words that name both ranges; the server goes on."""
        for server, client in (('now', 'far'), ('far', 'now')):
            with self.subTest(server=server, client=client):
                status, out, err = self.load(server, client)
                self.assertNotEqual(status, 0, out)
                self.assertRegex(err, 'speaks wire version (1 to 1, its peer 2 to 3|2 to 3, its peer 1 to 1): upgrade')


if __name__ == '__main__':
    unittest.main(verbosity=2)
