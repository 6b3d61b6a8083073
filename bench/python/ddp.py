#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exposed communication time of a DDP step, tern beside gloo: the step's time minus that of the same step without
communication (design: docs/PERFORMANCE.md), for two processes, rounds interleaved, medians.

Usage: ddp.py PACKAGE_FOLDER LIBTERN [--rounds N] [--model small|convnet] [--data templates|fashion-mnist] [--width W ...]
              [--batch N] [--json]

--model convnet: the convolutional net of PyTorch's MNIST example (1.2 M parameters); small: nets of each --width.
The losses of the last round are compared as well: the same within 1e-4.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../python/tests/ddp_script.py')


def run(args, env):
    """One run of two ranks: (milliseconds per step, losses)."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, SCRIPT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',
                                       MASTER_PORT=str(port), OMP_NUM_THREADS='1', **env)) for rank in range(2)]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit('\n'.join(outputs))
    said = {line.split()[0]: line.split()[1:] for line in outputs[0].splitlines() if line.strip()}
    return float(said['step'][0]), [float(loss) for loss in said['losses']]


def worst(first, second):
    """The largest relative difference."""
    return max(abs(a - b) / abs(b) for a, b in zip(first, second))


def measure(name, common, rounds, tern):
    """A row: medians of interleaved rounds."""
    times, losses = {'stub': [], 'gloo': [], 'tern': []}, {}
    for _ in range(rounds):
        for kind, more, env in (('stub', ['--stub'], {}), ('gloo', [], {}), ('tern', [], tern)):
            took, losses[kind] = run(common + more, env)
            times[kind].append(took)
    middle = {kind: statistics.median(values) for kind, values in times.items()}
    exposed = {kind: middle[kind] - middle['stub'] for kind in ('gloo', 'tern')}
    paired = [(t - s) / (g - s) for s, g, t in zip(times['stub'], times['gloo'], times['tern']) if g > s]
    return {'net': name, **{f'{kind}_ms': round(value, 3) for kind, value in middle.items()},
            'exposed_gloo_ms': round(exposed['gloo'], 3), 'exposed_tern_ms': round(exposed['tern'], 3),
            'ratio': round(exposed['tern'] / exposed['gloo'], 3) if exposed['gloo'] > 0 else None,
            'ratio_of_rounds': [round(value, 3) for value in sorted(paired)],
            'spread_ms': {kind: round(max(values) - min(values), 2) for kind, values in times.items()},
            'losses': [losses['tern'][0], losses['tern'][-1]], 'losses_differ': worst(losses['tern'], losses['gloo'])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('package')
    parser.add_argument('library')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=30)
    parser.add_argument('--batch', type=int, default=16, help='of one rank')
    parser.add_argument('--model', choices=('small', 'convnet'), default='small')
    parser.add_argument('--data', choices=('templates', 'fashion-mnist'), default='templates')
    parser.add_argument('--width', type=int, nargs='*', default=[8, 32, 64])
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    tern = {'TERN_RDMA_OPT': '1', 'LIBTERN_PATH': args.library,
            'PYTHONPATH': os.pathsep.join([os.path.join(args.package, 'tern/_site'), args.package])}
    common = ['--steps', str(args.steps), '--batch', str(args.batch), '--data', args.data, '--model', args.model]
    nets = [('convnet', [])] if args.model == 'convnet' else [(f'width {w}', ['--width', str(w)]) for w in args.width]
    for name, more in nets:
        row = measure(name, common + more, args.rounds, tern)
        print(json.dumps(row) if args.json else
              f"{name}: stub {row['stub_ms']:.2f}, gloo {row['gloo_ms']:.2f}, tern {row['tern_ms']:.2f} ms per step; exposed "
              f"{row['exposed_gloo_ms']:.2f} and {row['exposed_tern_ms']:.2f} ms: tern/gloo {row['ratio']} (rounds: "
              f"{row['ratio_of_rounds']}); losses {row['losses'][0]:.4f} to {row['losses'][1]:.4f}, "
              f"at most {row['losses_differ']:.1e} apart", flush=True)
        if row['losses_differ'] > 1e-4:
            sys.exit('the losses are not the same')


if __name__ == '__main__':
    main()
