#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/bench_report.py, tools/budget.py and bench/compare make of figures. No times are taken."""
import importlib.machinery
import importlib.util
import os
import sys
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '../..'))
sys.path.insert(0, os.path.join(ROOT, 'tools'))
import bench_report  # noqa: E402
import budget  # noqa: E402


def load_script(path):
    loader = importlib.machinery.SourceFileLoader('compare', path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('compare', loader))
    loader.exec_module(module)
    return module


def turn(peer, number, us, line=0.06, after=None):
    return {'peer': peer, 'op': 'put', 'size': 8, 'depth': 1, 'round': number, 'p50_us': us, 'mean_us': us, 'cpu_us': us,
            'line_before_us': line, 'line_after_us': after or line}


WORK = ('put', 8, 1)


class Spread(unittest.TestCase):
    def test_ranks_are_those_of_the_sign_test(self):
        # 2 x P(all of n on one side) = 2^(1-n): 5 values are too few for 95 %, 6 allow the extremes; 9 the second ones
        self.assertEqual([bench_report.sign_rank(n) for n in (1, 5, 6, 8, 9, 12, 15)], [0, 0, 1, 1, 2, 3, 4])

    def test_interval(self):
        self.assertEqual(bench_report.spread([5, 1, 3]), (3, 1, 5))
        self.assertEqual(bench_report.spread(list(range(1, 10))), (5, 2, 8))


class Ratios(unittest.TestCase):
    def test_are_taken_within_rounds(self):
        rows = [turn('tern', 0, 1), turn('a', 0, 2), turn('tern', 1, 30), turn('a', 1, 40), turn('tern', 2, 5), turn('a', 2, 5)]
        self.assertEqual(bench_report.ratio({'rows': rows}, WORK, 'tern', 'a'), (0.75, 0.5, 1.0, 3))

    def test_not_where_the_cores_moved(self):
        rows = [turn('tern', 0, 1), turn('a', 0, 2), turn('tern', 1, 9, 0.3), turn('a', 1, 3), turn('tern', 2, 9, 0.06, 0.3),
                turn('a', 2, 3)]
        self.assertEqual(bench_report.ratio({'rows': rows}, WORK, 'tern', 'a')[3], 1)
        self.assertIsNone(bench_report.ratio({'rows': rows[2:]}, WORK, 'tern', 'a'))

    def test_targets(self):
        data = {'head': {'group': 'shm-spin'}, 'rows': [turn('tern shm', n, 1.5) for n in range(3)]
                + [turn('UCX posix', n, 1.0) for n in range(3)]}
        target = ('t', 'shm-spin', ('put',), (8, 4096), (1,), 'UCX posix', 'p50_us', 1.0)
        self.assertEqual(bench_report.judge(data, target)[:2], (0, 1))
        self.assertEqual(bench_report.judge(data, target[:7] + (1.5,))[:2], (1, 1))
        self.assertEqual(bench_report.judge(data, ('t', 'shm-spin', ('get',)) + target[3:])[1], 0)

    def test_what_misses_stands_beside_a_plain_socket(self):
        rows = [turn(peer, i, us) for i in range(5)
                for peer, us in (('tern tcp', 10), ('tcp socket', 8), ('ZeroMQ tcp', 11), ('gRPC tcp', 18))]
        data = {'tcp-block': {'head': {'idle': {'peer': 'tern tcp', 'seconds': 20, 'percent': 0.02}}, 'rows': rows}}
        lines = bench_report.missed_markdown(data).split('\n')[2:]
        self.assertEqual(lines, ['| tcp: 3 x gRPC | put 8 B | 10.0 | 6.00 | 8.00 | less than a socket takes |',
                                 '| CPU, tcp, blocking | put 8 B, tcp socket | 10.0 | 8.00 | 8.00 |  |'])
        self.assertIn('| tcp-block: idle below 1 % of a core | | **yes** | 0.020 % |', bench_report.targets_markdown(data))

    def test_a_call_that_misses_stands_beside_a_bare_ring(self):
        rows = [{**turn(peer, i, us), 'op': 'call', 'size': 64} for i in range(5)
                for peer, us in (('tern shm', 10), ('UCX posix', 10), ('bare ring', 7))]
        lines = bench_report.missed_markdown({'shm-spin': {'head': {}, 'rows': rows}}).split('\n')[2:]
        self.assertEqual(lines, ['| call 64 B: 0.6 x UCX active messages | call 64 B | 10.0 | 6.00 | 7.00 | less than a ring takes |'])
        self.assertEqual(bench_report.peers({'rows': rows}), ['tern shm', 'UCX posix'])

    def test_what_a_copy_is_all_of_stands_beside_the_copy(self):
        rows = [{**turn(peer, i, us), 'size': 1 << 20} for i in range(5)
                for peer, us in (('tern shm', 21.4), ('UCX posix', 21.9), ('copy', 21))]
        lines = bench_report.missed_markdown({'shm-spin': {'head': {}, 'rows': rows}}).split('\n')[2:]
        self.assertEqual(lines, ['| put, get from 1 MiB: 1.1 x UCX | put 1 MiB | 21.4 | 19.9 | 21.0 | less than a copy takes |'])

    def test_a_small_put_that_misses_stands_beside_a_cache_line(self):
        rows = [turn(peer, i, us) for i in range(5) for peer, us in (('tern shm', 0.08), ('UCX posix', 0.06))]
        lines = bench_report.missed_markdown({'shm-spin': {'head': {}, 'rows': rows}}).split('\n')[2:]
        self.assertEqual(len(lines), 1)
        self.assertTrue(lines[0].startswith('| put, get 8 B to 4 KiB no slower than UCX posix | put 8 B | 0.080 | 0.060 | 0.'))

    def test_reasons_stand_for_figures(self):
        data = {'head': {'group': 'shm-spin', 'rounds': 1}, 'rows': [turn('tern shm', 0, 1.5),
                {'peer': 'x', 'op': 'put', 'size': 8, 'depth': 1, 'round': 0, 'error': 'it is not there'}]}
        self.assertIn('| put 8 B | 1.50 | - |', bench_report.table_markdown(data, 'p50_us'))


class Documents(unittest.TestCase):
    def test_a_table_is_replaced_between_its_marks(self):
        text = 'a\n<!-- bench x -->\nold\n<!-- end -->\nb\n<!-- bench y -->\n<!-- end -->\n'
        new = bench_report.replace(text, 'x', 'new')
        self.assertEqual(new, text.replace('old', 'new'))
        self.assertEqual(bench_report.replace(new, 'x', 'new'), new)
        self.assertEqual(bench_report.replace(text, 'z', 'new'), text)


class Budget(unittest.TestCase):
    def test_more_than_the_tolerance_fails(self):
        self.assertFalse(budget.judge('c', 102, 100)[0])
        self.assertTrue(budget.judge('c', 104, 100)[0])
        self.assertIn('can follow', budget.judge('c', 90, 100)[1])
        self.assertTrue(budget.judge('c', None, 100)[0])
        self.assertEqual(budget.judge('c', 100, None), (False, 'not compared'))

    def test_the_file_is_read_back(self):
        found = budget.read_budget()
        self.assertGreater(len(found), 10)
        for case, row in found.items():
            self.assertTrue(row and all(value > 0 for value in row.values()), case)


class Compare(unittest.TestCase):
    def test_verdicts(self):
        verdict = load_script(os.path.join(ROOT, 'bench/compare')).verdict
        self.assertEqual(verdict(0.8, 0.9), 'faster')
        self.assertEqual(verdict(1.1, 1.2), 'SLOWER')
        self.assertEqual(verdict(0.9, 1.1), 'no difference found')
        self.assertEqual(verdict(0.5, 0.6, False), 'too few rounds')


if __name__ == '__main__':
    unittest.main()
