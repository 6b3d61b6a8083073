#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of bench/peers do a few operations each, and one that can't says why. No times."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../tools'))
import bench  # noqa: E402

BUILD = os.environ['PEERS_BUILD']
# What is always built, in both ways of waiting. The others: ./dev bench --smoke.
ALWAYS = (('tern shm', 'spin'), ('tern shm', 'block'), ('tern tcp', 'spin'), ('tern tcp', 'block'), ('unix socket', 'block'),
          ('tcp socket', 'spin'))


class Peers(unittest.TestCase):
    def ask(self, program, op, size, depth):
        answer = program.ask(op, size, depth, 1)
        self.assertNotIn('error', answer, f'{program.name}: {answer}')
        self.assertEqual((answer['op'], answer['size'], answer['depth']), (op, size, depth))
        self.assertGreater(answer['mean_us'], 0)
        self.assertGreater(answer['count'], 0)
        return answer

    def test_do_the_work(self):
        for name, mode in ALWAYS:
            program = bench.Program(BUILD, name, mode, bench.M)
            self.addCleanup(program.end)
            self.assertIsNone(program.reason)
            for op, size, depth in bench.SMOKE:
                answer = self.ask(program, op, size, depth)
                self.assertEqual('p50_us' in answer, depth == 1)

    def test_limits(self):
        program = bench.Program(BUILD, 'limit', 'block', bench.M)
        self.addCleanup(program.end)
        self.ask(program, 'line', 8, 1)
        self.ask(program, 'copy', 4096, 1)

    def test_what_cannot_be_done_is_said(self):
        program = bench.Program(BUILD, 'tcp socket', 'block', bench.M)
        self.addCleanup(program.end)
        for words, reason in ((('put', 8 << 20, 1), 'larger than --bytes'), (('fly', 8, 1), 'no such work'),
                              (('fetch', 16, 8), 'more than one at a time')):
            self.assertIn(reason, program.ask(*words, 1)['error'])
        self.assertIn('error', bench.Program('/nowhere', 'tcp socket', 'block', bench.M).ask('put', 8, 1, 1))
        self.ask(program, 'put', 8, 1)  # it goes on

    def test_a_server_that_dies_ends_its_rows_alone(self):
        program = bench.Program(BUILD, 'unix socket', 'block', bench.M)
        self.addCleanup(program.end)
        child = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(program.process.pid)], stdout=subprocess.PIPE, text=True,
                               check=True).stdout.split()
        os.kill(int(child[0]), 9)
        self.assertIn('error', program.ask('put', 8, 1, 1))
        self.assertIn('error', program.ask('put', 8, 1, 1))


if __name__ == '__main__':
    unittest.main()
