#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/graph/convergence.py makes of its jobs: the check of bits, running means, table, plots. No times are taken."""
import importlib.util
import math
import os
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '../..'))
sys.path.insert(0, os.path.join(ROOT, 'bench/graph'))
SPEC = importlib.util.spec_from_file_location('convergence', os.path.join(ROOT, 'bench/graph/convergence.py'))
convergence = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(convergence)

HEAD = {'kind': 'head', 'cpus': 2, 'cpu': 'X', 'kernel': '6', 'memory': 24 << 30, 'time': '2026-01-01 00:00'}


def job(model, way, step_s, losses=None, steps=300):
    losses = losses or [3.0 * 0.99**i for i in range(steps)]
    return {'kind': 'job', 'model': model, 'way': way, 'losses': [loss.hex() for loss in losses], 'accuracy': 0.5, 'perplexity': 9.0,
            'curve': [((i + 1) * step_s, loss) for i, loss in enumerate(losses)], 'seconds': step_s * len(losses), 'parameters': 1,
            'transport': 'shm', 'waits': 'block'}


ROWS = [HEAD] + [job(model, way, s) for model in ('convnet', 'charlm') for way, s in (('zerocopy', .1), ('grpc plain', .2))]


class Convergence(unittest.TestCase):
    def test_bits_are_compared(self):
        self.assertTrue(all(map(convergence.same_bits, convergence.jobs_of(ROWS).values())))
        other = ROWS + [job('charlm', 'grpc tuned', .1, [3.0, math.nextafter(3.0, 4)])]
        self.assertFalse(convergence.same_bits(convergence.jobs_of(other)['charlm']))
        self.assertIn('**no**', convergence.table(other))

    def test_the_latest_job_counts(self):
        found = convergence.jobs_of(ROWS + [job('convnet', 'zerocopy', .3)])
        self.assertAlmostEqual(found['convnet']['zerocopy']['seconds'], 90)
        self.assertEqual(list(found), ['convnet', 'charlm'])

    def test_running_means(self):
        flat = convergence.smooth([(i, 2.0) for i in range(1000)], False)
        self.assertLessEqual(len(flat), convergence.POINTS + 1)
        self.assertTrue(all(abs(value - 2) < 1e-9 for _, _, value in flat))
        self.assertEqual(flat[-1][0], 1000)
        self.assertAlmostEqual(convergence.smooth([(1, 2.0)], True)[0][2], math.exp(2))
        falling = [value for _, _, value in convergence.smooth(ROWS[1]['curve'], False)]
        self.assertEqual(falling, sorted(falling, reverse=True))

    def test_table(self):
        text = convergence.table(ROWS)
        self.assertIn('| convnet | zero-copy shm | 300 | 100 | 30.0 | 2 |', text)
        self.assertIn('50.00 % | yes |', text)
        self.assertIn('| 9.00 | yes |', text)

    def test_figures(self):
        with tempfile.TemporaryDirectory(prefix='tern-test-') as out:
            name = convergence.figure('charlm', convergence.jobs_of(ROWS)['charlm'], out)
            with open(f'{out}/convergence-charlm.tsv', encoding='utf-8') as file:
                lines = file.read().splitlines()
            self.assertEqual(lines[0].split('\t')[-1], 'perplexity')
            self.assertTrue(lines[1].startswith('zero-copy_shm\t1\t0.100\t20.0855'))
            if name:  # gnuplot is here
                with open(f'{out}/{name}.svg', encoding='utf-8') as file:
                    svg = file.read()
                self.assertIn('gRPC plain', svg)
                self.assertIn('</svg>', svg)


if __name__ == '__main__':
    unittest.main()
