#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a link costs as what hangs on it grows: channels, threads, processes, bytes of a tensor. Tables of docs/PERFORMANCE.md.

Usage: tools/bench_growth.py BUILD [--ms N] [--rounds N] [--smoke] [AXIS...]

Axes: channels threads processes tensors. Each is a table between "<!-- bench growth-AXIS -->" and "<!-- end -->". Those of
tables of the parameter server are `./dev growth`'s. --smoke: the first two points, briefly, and nothing is written.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench  # noqa: E402
import bench_report  # noqa: E402

ROOT = bench.ROOT
CHANNELS = (1, 10, 100, 1000, 10000)
THREADS = (1, 2, 4, 8, 16, 32)
PROCESSES = (2, 4, 8, 16)
TENSORS = tuple(1 << n for n in range(10, 29, 3))
TRANSPORTS = ('shm', 'tcp')


def ask(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f'bench_growth: failed: {" ".join(str(word) for word in words)}')
    return json.loads(done.stdout.strip().split('\n')[0])


def link(build, options, transport, channels, threads):
    found = ask(os.path.join(build, 'bench/link/bench-link'), '--case', 'channels', '--op', 'send', '--json', '--transport', transport,
                '--channels', channels, '--threads', threads, '--rounds', options.rounds, '--ms', options.ms)
    return found, found['rows'][0]


def over_links(build, options, points, shape):
    """A row for each point: messages a second, CPU time of one, memory of a channel, lanes; over shm and tcp."""
    rows = []
    for point in points:
        row = [f'{point:,}']
        for transport in TRANSPORTS:
            found, load = link(build, options, transport, *shape(point))
            last = found['rows'][-1]
            row += [f'{load["all channels all threads /s"] / 1e3:,.0f}', f'{load["cpu of all channels all threads ns/op"]:,.0f}',
                    f'{last["lanes (queue pairs) at the end"]:.0f}', f'{found.get("rows per channel, peer B", 0):,.0f}']
        rows.append(row)
        bench.say(f'  {" | ".join(row)}')
    return rows


HEAD = [f'{t}, {what}' for t in TRANSPORTS for what in ('k messages/s', 'CPU ns', 'lanes', 'bytes a channel')]


def channels(build, options, points):
    return ['channels', *HEAD], over_links(build, options, points, lambda n: (n, 1))


def threads(build, options, points):
    return ['threads, a channel each', *HEAD], over_links(build, options, points, lambda n: (n, n))


def processes(build, options, points):
    """One of them serves a table, the others pull and push 256 keys at a time."""
    rows = []
    for point in points:
        row = [f'{point}']
        for transport in TRANSPORTS:
            runs = [ask(os.path.join(build, 'cli/tern'), 'bench', 'ps', '--json', '--quiet', '--clients', point - 1, '--keys', 100000,
                        '--duration', f'{options.ms * 2}ms', '--warmup', '100ms', '--transport', transport, '--batch', 256)
                    for _ in range(options.rounds)]
            row += [f'{statistics.median(run["keys_per_s"] for run in runs) / 1e6:.2f}',
                    f'{statistics.median(run["pull"]["p50_us"] for run in runs):,.1f}',
                    f'{statistics.median((run["client_cpu_s_per_mkeys"] or 0) + (run["server_cpu_s_per_mkeys"] or 0) for run in runs):.3f}']
        rows.append(row)
        bench.say(f'  {" | ".join(row)}')
    return ['processes', 'shm, M keys/s', 'pull P50 us', 'CPU s/M keys', 'tcp, M keys/s', 'pull P50 us', 'CPU s/M keys'], rows


def tensors(build, options, points):
    """A get of so many bytes, and what it costs in CPU time of both sides; blocking."""
    both = {t: bench.Program(build, f'tern {t}', 'block', max(points)) for t in TRANSPORTS}
    rows = []
    for point in points:
        row = [bench_report.size_text('get', point)]
        for program in both.values():
            got = [program.ask('get', point, 1, options.ms // 4) for _ in range(options.rounds)]
            row += [bench_report.number(statistics.median(g['p50_us'] for g in got)),
                    f'{statistics.median(g["bytes_per_s"] for g in got) / 1e9:.2f}',
                    bench_report.number(statistics.median(g['cpu_us'] for g in got))]
        rows.append(row)
        bench.say(f'  {" | ".join(row)}')
    for program in both.values():
        program.end()
    return ['get', 'shm, P50 us', 'GB/s', 'CPU us', 'tcp, P50 us', 'GB/s', 'CPU us'], rows


AXES = {'channels': (channels, CHANNELS), 'threads': (threads, THREADS), 'processes': (processes, PROCESSES),
        'tensors': (tensors, TENSORS)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build')
    parser.add_argument('axes', nargs='*', metavar='AXIS')
    parser.add_argument('--ms', type=int, default=200)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--smoke', action='store_true')
    options = parser.parse_intermixed_args()
    path = os.path.join(ROOT, 'docs/PERFORMANCE.md')
    for axis in options.axes or AXES:
        if axis not in AXES:
            parser.error(f'there is no axis {axis!r}: {" ".join(AXES)}')
        measure, points = AXES[axis]
        bench.say(axis)
        head, rows = measure(options.build, options, points[:2] if options.smoke else points)
        lines = ['| ' + ' | '.join(head) + ' |', '|---|' + '---:|' * (len(head) - 1)]
        lines += ['| ' + ' | '.join(row) + ' |' for row in rows]
        if options.smoke:
            continue
        with open(path, encoding='utf-8') as f:
            text = f.read()
        with open(path, 'w', encoding='utf-8') as f:
            f.write(bench_report.replace(text, f'growth-{axis}', '\n'.join(lines)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
