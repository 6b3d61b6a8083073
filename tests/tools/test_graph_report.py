#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/graph makes of the runs of graphs: targets, tables, and which runs are left to do. No times are taken."""
import importlib.util
import json
import os
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '../..'))


def load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


report = load_module('report', 'bench/graph/report.py')
run = load_module('graph_run', 'bench/graph/run.py')

HEAD = {'kind': 'head', 'cpus': 2, 'cpu': 'X', 'kernel': '6', 'memory': 24 << 30, 'time': '2026-01-01 00:00'}


def moved(way, mib, ms, bare=0.9, memcpy=0.5):
    return {'kind': 'moving', 'way': way, 'MiB': mib, 'ms': ms, 'bare_ms': bare, 'memcpy_ms': memcpy, 'sender_cpu_ms': 1,
            'receiver_cpu_ms': 1, 'waits': 'block'}


def trained(model, workers, way, seconds, turn=0):
    return {'kind': 'run', 'model': model, 'workers': workers, 'way': way, 'round': turn, 'step_seconds': seconds, 'cpu_seconds': 1.0,
            'rows': 8, 'loss': 1.0, 'waits': 'block'}


class Report(unittest.TestCase):
    def test_targets_take_the_worst_row(self):
        rows = [HEAD, moved('zerocopy shm', 1, 1.0), moved('zerocopy shm', 4, 1.0, bare=0.8), moved('grpc plain', 1, 2.0),
                moved('grpc plain', 4, 11.0), moved('grpc tuned', 4, 2.9)]
        found = {name: (value, where) for name, _, value, where in report.targets(rows)}
        self.assertEqual(found['one tensor from 4 MiB: gRPC plain to zero-copy shm'], (11.0, '4 MiB'))
        self.assertEqual(found['one tensor from 4 MiB: gRPC tuned to zero-copy shm'], (2.9, '4 MiB'))
        self.assertEqual(found['zero-copy shm to the bare copy between two processes'], (0.8, '4 MiB'))
        self.assertIn('| no | 2.9 |', report.targets_table(rows))
        self.assertIn('not measured', report.targets_table(rows))

    def test_exposed_time_and_who_is_slower(self):
        rows = [HEAD]
        for way, seconds in (('none', 1.0), ('zerocopy', 1.1), ('copy', 1.05), ('grpc plain', 2.0)):
            rows.append(trained('vgg16', 2, way, seconds))
        rows.append({'kind': 'left_out', 'model': 'vgg16', 'workers': 2, 'way': 'rpc', 'round': 0, 'reason': 'too big'})
        found = {name: (value, where) for name, _, value, where in report.targets(rows)}
        self.assertAlmostEqual(found['exposed time of FCN-5, AlexNet, VGG-16: gRPC plain to zero-copy'][0], 10.0)
        value, where = found['steps: best other way to zero-copy']
        self.assertAlmostEqual(value, 1.05 / 1.1)
        self.assertIn('copy shm', where)
        self.assertIn('left out: too big', report.training_table(rows))

    def test_who_is_slower_is_told_within_rounds(self):
        # The medians say that copies win (6 to 7), each round but one that they lose.
        rows = [HEAD] + [trained('gru', 2, 'zerocopy', s, n) for n, s in enumerate((4.0, 7.0, 8.0))]
        rows += [trained('gru', 2, 'copy', s, n) for n, s in enumerate((5.0, 8.0, 6.0))]
        found = {name: value for name, _, value, _ in report.targets(rows)}
        self.assertAlmostEqual(found['steps: best other way to zero-copy'], 8 / 7)

    def test_medians_of_rounds(self):
        rows = [HEAD] + [trained('lstm', 1, 'zerocopy', s, turn) for turn, s in enumerate((3.0, 1.0, 2.0))]
        self.assertEqual(report.training_of(rows)[0][2]['zerocopy']['step_seconds'], 2.0)


class Resume(unittest.TestCase):
    def bench(self, folder, rows):
        path = os.path.join(folder, 'rows.jsonl')
        with open(path, 'w', encoding='utf-8') as file:
            file.writelines(json.dumps(row) + '\n' for row in rows)
        return run.Bench(run.parse(['build', '--resume', path, '--json', '--only-models', 'lstm', '--workers', '1', '--rounds', '2']))

    def test_what_is_there_is_not_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = self.bench(folder, [HEAD, trained('lstm', 1, 'none', 0.5), trained('lstm', 1, 'zerocopy', 0.6, 1)])
            todo = []
            bench.parameters = lambda model: 1000
            bench.one = lambda model, workers, way, turn, parameters: todo.append((way[0], turn))
            bench.training()
        self.assertNotIn(('none', 0), todo)
        self.assertNotIn(('zerocopy', 1), todo)
        self.assertEqual(len(todo), 2 * len(run.WAYS) - 2)

    def test_steps_follow_the_time(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = self.bench(folder, [HEAD, trained('lstm', 1, 'none', 1.0)])
            self.assertEqual(bench.steps('lstm', 1, run.WAYS[1], 1000), 1 + 3)
            self.assertEqual(bench.steps('lstm', 2, run.WAYS[1], 1000), 3)  # nothing known yet
            self.assertEqual(bench.steps('lstm', 1, run.WAYS[4], 10**9), 1 + 1)  # one at least

    def test_what_does_not_fit_is_left_out_with_the_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = self.bench(folder, [HEAD])
            bench.one('vgg16', 4, run.WAYS[3], 0, 10**13)
            self.assertIn('MiB are free', bench.rows[-1]['reason'])
            self.assertEqual(report.load(bench.path)[-1], bench.rows[-1])


if __name__ == '__main__':
    unittest.main()
