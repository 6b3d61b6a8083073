#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern graph plan`: what it prints of a job, as text and as JSON, and what it refuses."""
import json
import unittest

from common import tern


def plan(*args):
    return json.loads(tern('graph', 'plan', *args, '--json', check=0)[1])


class GraphPlan(unittest.TestCase):
    def test_the_six_models_travel_without_copies(self):
        parameters = {'fcn5': 53600266, 'alexnet': 46247882, 'vgg16': 134301514, 'inception_v3': 24353332,
                      'lstm': 9417704, 'gru': 7319528}
        for model, count in parameters.items():
            with self.subTest(model):
                p = plan(model, '--servers', 2, '--workers', 2)
                self.assertEqual(p['parameters'], count)
                self.assertTrue(all(edge['static'] and edge['copies'] == 0 for edge in p['edges']))
                self.assertTrue(all(edge['op'] == 'RdmaSend/RdmaRecv' for edge in p['edges']))
                self.assertEqual(p['bytes_per_step'] % 4, 0)
                self.assertGreaterEqual(p['bytes_per_step'], 2 * 2 * p['parameter_bytes'])
                loads = [d['variable_bytes'] for d in p['devices'] if d['role'] == 'server']
                self.assertGreaterEqual(sum(loads), p['parameter_bytes'])  # and moving averages
                self.assertLess(max(loads), 0.6 * sum(loads))
                worker = next(d for d in p['devices'] if d['role'] == 'worker')
                self.assertLess(worker['buffer_bytes'], worker['shared_bytes'])

    def test_parts_are_received_in_place(self):
        parts = [e for e in plan('fcn5', '--servers', 2)['edges'] if e.get('into') == 'worker0/fc2/w']
        self.assertEqual([e['into_offset'] for e in parts], [0, 4096 * 4096 * 2])

    def test_model_parallel(self):
        p = plan('vgg16', '--model-parallel', 3, '--micro-batches', 4, '--dims', 'batch=32', '--workers', 2)
        self.assertEqual([d['stage'] for d in p['devices'] if d['role'] == 'worker'], [0, 1, 2] * 2)
        self.assertTrue(all(e['static'] for e in p['edges']))
        self.assertTrue(any('Accumulate' in e['site'] for e in p['edges']))

    def test_sizes_that_vary_are_dynamic(self):
        p = plan('mlp', '--servers', 0, '--model-parallel', 2, '--dims', 'batch=~32')
        crossing = [e for e in p['edges'] if not e['static']]
        self.assertTrue(crossing)
        for edge in crossing:
            self.assertIn('differs from step to step', edge['reason'])
            self.assertEqual((edge['op'], edge['copies']), ('RdmaSendDynamic/RdmaRecvDynamic', 0))
            self.assertGreater(edge['bytes'], 0)

    def test_text(self):
        out = tern('graph', 'plan', 'mlp', '--comm', 'copy', check=0)[1]
        self.assertIn('plan mlp: 1 servers, 1 workers, sync, comm copy', out)
        self.assertIn('copies 2: mode copy', out)
        self.assertNotIn('\ngraph ', out)
        self.assertIn('\ngraph server0', tern('graph', 'plan', 'mlp', '--nodes', check=0)[1])

    def test_refusals(self):
        for args, status, words in (
                (('mlp', '--stale', 2), 1, 'sync is 1'),
                (('mlp', '--servers', 0, '--workers', 2), 1, 'without a server'),
                (('mlp', '--dims', 'batch=x'), 2, 'no size'),
                (('nosuch',), 1, 'no model'),
                ((), 2, 'which model')):
            with self.subTest(args):
                self.assertIn(words, tern('graph', 'plan', *args, check=status)[2])


if __name__ == '__main__':
    unittest.main(verbosity=2)
