#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exposed communication time of a DDP step, tern beside gloo: the step's time minus that of the same step without
communication (design: docs/PERFORMANCE.md), for two processes, rounds interleaved, medians.

Usage: ddp.py PACKAGE_FOLDER LIBTERN [--rounds N] [--width W ...] [--json]
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../python/tests/ddp_script.py')


def step_ms(args, env):
    """One run of two ranks: milliseconds per step."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, SCRIPT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',
                                       MASTER_PORT=str(port), OMP_NUM_THREADS='1', **env)) for rank in range(2)]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit('\n'.join(outputs))
    return float(next(line for line in outputs[0].splitlines() if line.startswith('step')).split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('package')
    parser.add_argument('library')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=30)
    parser.add_argument('--width', type=int, nargs='*', default=[8, 32, 64])
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    tern = {'TERN_RDMA_OPT': '1', 'LIBTERN_PATH': args.library,
            'PYTHONPATH': os.pathsep.join([os.path.join(args.package, 'tern/_site'), args.package])}
    for width in args.width:
        common = ['--width', str(width), '--steps', str(args.steps)]
        times = {'stub': [], 'gloo': [], 'tern': []}
        for _ in range(args.rounds):
            times['stub'].append(step_ms(common + ['--stub'], {}))
            times['gloo'].append(step_ms(common, {}))
            times['tern'].append(step_ms(common, tern))
        middle = {name: statistics.median(values) for name, values in times.items()}
        exposed = {name: middle[name] - middle['stub'] for name in ('gloo', 'tern')}
        row = {'width': width, **{f'{name}_ms': round(value, 3) for name, value in middle.items()},
               'exposed_gloo_ms': round(exposed['gloo'], 3), 'exposed_tern_ms': round(exposed['tern'], 3),
               'ratio': round(exposed['tern'] / exposed['gloo'], 3) if exposed['gloo'] > 0 else None,
               'spread_ms': {name: round(max(values) - min(values), 2) for name, values in times.items()}}
        print(json.dumps(row) if args.json else
              f"width {width}: stub {middle['stub']:.2f}, gloo {middle['gloo']:.2f}, tern {middle['tern']:.2f} ms per step; exposed "
              f"{exposed['gloo']:.2f} and {exposed['tern']:.2f} ms: tern/gloo {row['ratio']}", flush=True)


if __name__ == '__main__':
    main()
