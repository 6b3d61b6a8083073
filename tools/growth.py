#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What pulls and pushes cost as tables, batches, rows, clients and servers grow: runs `tern bench ps` along each axis, and
brings docs/PS-COST.md and docs/ps-cost/ up to date.

Usage: tools/growth.py TERN [--duration TIME] [--rounds N] [--out DIR] [--smoke] [AXIS...]

Tables stand in docs/PS-COST.md between "<!-- growth AXIS -->" and "<!-- end -->"; every figure of an axis is in
docs/ps-cost/AXIS.tsv; plots are drawn by gnuplot. Points whose tables don't fit the memory that is free are left out. All axes
take some 10 minutes on two cores that do nothing else: axes may be measured one at a time. --smoke: the first points of each axis, briefly, to see that it works.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, '..')

BASE = {'keys': 1000000, 'dim': 64, 'batch': 256, 'reads': 50, 'clients': 1, 'servers': 1}
# axis: (what differs from BASE, option, values, lines: name -> options)
AXES = {
    'keys': ({'dim': 8}, 'keys', (10**4, 10**5, 10**6, 5 * 10**6, 2 * 10**7), {'uniform': {'skew': 0}, 'zipf': {}}),
    'batch': ({}, 'batch', (1, 4, 16, 64, 256, 1024, 4096, 16384), {'shm': {'transport': 'shm'}, 'tcp': {'transport': 'tcp'}}),
    'dim': ({'keys': 100000}, 'dim', (8, 16, 32, 64, 128, 256, 512, 1024), {'f32': {}, 'bf16': {'dtype': 'bf16'}}),
    'clients': ({}, 'clients', (1, 2, 4, 8, 16, 32, 64), {'shm': {'transport': 'shm'}, 'tcp': {'transport': 'tcp'}}),
    'servers': ({'clients': 4}, 'servers', (1, 2, 3, 4), {'shm': {'transport': 'shm'}, 'tcp': {'transport': 'tcp'}}),
}
TITLES = {'keys': 'keys of the table', 'batch': 'keys of an operation', 'dim': 'elements of a row', 'clients': 'clients',
          'servers': 'servers'}
COLUMNS = ('pull_mean_us', 'pull_p50_us', 'pull_p99_us', 'pull_p999_us', 'push_mean_us', 'push_p50_us', 'push_p99_us',
           'push_p999_us', 'keys_per_s', 'client_cpu_s_per_mkeys', 'server_cpu_s_per_mkeys', 'bytes_per_key')


def say(text):
    print(text, file=sys.stderr, flush=True)


def measure(tern, options, duration):
    words = [tern, 'bench', 'ps', '--json', '--quiet', '--duration', duration, '--warmup', '100ms']
    for name, value in options.items():
        words += [f'--{name}', str(value)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f'growth: failed: {" ".join(words)}')
    result = json.loads(done.stdout)
    flat = {f'{kind}_{name}': value for kind in ('pull', 'push') for name, value in result[kind].items()}
    flat.update({name: result[name] for name in COLUMNS if name in result})
    flat['bytes_per_key'] = result['bytes'] / result['rows']
    return [flat[name] for name in COLUMNS]


def fits(options):
    """Rows with their Adagrad state, and half as much again, in the memory that is free."""
    wanted = options['keys'] * (options['dim'] * 4 * 2 + 48) * 3 // 2
    with open('/proc/meminfo', encoding='utf-8') as file:
        free = int(re.search(r'^MemAvailable: *(\d+)', file.read(), re.M)[1]) << 10
    if wanted > free:
        say(f'growth: {options["keys"]:,} keys are left out: {wanted >> 20:,} MiB wanted, {free >> 20:,} MiB are free')
    return wanted <= free


def median(figures):
    return None if figures[0] is None else statistics.median(figures)


def run_axis(tern, axis, duration, rounds, smoke):
    """[(line, value, figures)]: medians. Rounds go through all points, so that what the host does to one it does to all."""
    differs, option, values, lines = AXES[axis]
    points = {}
    for turn in range(rounds):
        say(f'  {axis}: round {turn + 1} of {rounds}')
        for line, more in lines.items():
            for value in values[:2] if smoke else values:
                options = {**BASE, **differs, **more, option: value}
                if smoke:
                    options['keys'] = min(options['keys'], 1000)
                if not fits(options):
                    continue
                points.setdefault((line, value), []).append(measure(tern, options, duration))
    return [(line, value, [median(column) for column in zip(*runs)]) for (line, value), runs in points.items()]


# ---- files ----

def write_tsv(path, rows):
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\t'.join(('line', 'value') + COLUMNS) + '\n')
        for line, value, figures in rows:
            file.write('\t'.join([line, str(value)] + ['' if f is None else f'{f:.6g}' for f in figures]) + '\n')


def plot(folder, axis, rows, what, columns, label):
    """Columns over the axis, both logarithmic, a curve for each line and column."""
    if not shutil.which('gnuplot'):
        say('growth: no gnuplot: plots are left as they are')
        return
    blocks, parts = '', []
    for line in dict.fromkeys(r[0] for r in rows):
        for column in columns:
            name = f'b{len(parts)}'
            points = ''.join(f'{value}\t{figures[COLUMNS.index(column)]}\n' for at, value, figures in rows if at == line)
            blocks += f'${name} << END\n{points}END\n'
            title = re.sub('_us$|_s_per_mkeys$|keys_per_s', '', column).replace('_', ' ')
            parts.append(f'${name} using 1:2 with linespoints pt 7 ps 0.5 title "{line} {title}"')
    subprocess.run(['gnuplot'], text=True, check=True, input=f'''set terminal svg size 720,360 font "sans,12" background "white" noenhanced
set output "{folder}/{axis}_{what}.svg"
set key outside right top
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set logscale xy
set format x "%.0s%c"
set xlabel "{TITLES[axis]}"
set ylabel "{label}"
{blocks}plot ''' + ', '.join(parts) + '\n')


def number(x):
    return '' if x is None else f'{x:.3g}' if x < 100 else f'{x:,.0f}'


def table(axis, rows):
    text = [f'| | {TITLES[axis]} | pull p50, us | p99 | push p50, us | p99 | M keys/s | client CPU, s per M keys | server CPU | bytes per key |',
            '|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|']
    for line, value, figures in rows:
        f = dict(zip(COLUMNS, figures))
        cells = [line, f'{value:,}', number(f['pull_p50_us']), number(f['pull_p99_us']), number(f['push_p50_us']),
                 number(f['push_p99_us']), number(f['keys_per_s'] / 1e6), number(f['client_cpu_s_per_mkeys']),
                 number(f['server_cpu_s_per_mkeys']), number(f['bytes_per_key'])]
        text.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(text)


def write_table(path, axis, rows):
    with open(path, encoding='utf-8') as file:
        text = file.read()
    pattern = rf'(<!-- growth {axis} -->\n).*?(<!-- end -->)'
    new, n = re.subn(pattern, lambda m: m[1] + table(axis, rows) + '\n' + m[2], text, flags=re.S)
    if n != 1:
        sys.exit(f'growth: {path} has no place for the table of {axis}')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(new)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tern')
    parser.add_argument('--duration', default='300ms')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--out', help='a folder instead of docs/: no document is changed')
    parser.add_argument('--smoke', action='store_true')
    parser.add_argument('axes', nargs='*', metavar='AXIS', help=', '.join(AXES))
    args = parser.parse_intermixed_args()
    unknown = set(args.axes) - set(AXES)
    if unknown:
        parser.error(f'no axis {", ".join(sorted(unknown))}: there are {", ".join(AXES)}')
    folder = args.out or os.path.join(ROOT, 'docs/ps-cost')
    os.makedirs(folder, exist_ok=True)
    for axis in args.axes or AXES:
        rows = run_axis(args.tern, axis, '50ms' if args.smoke else args.duration, 1 if args.smoke else args.rounds, args.smoke)
        write_tsv(f'{folder}/{axis}.tsv', rows)
        plot(folder, axis, rows, 'latency', ('pull_p50_us', 'pull_p99_us', 'push_p50_us'), 'us')
        plot(folder, axis, rows, 'rate', ('keys_per_s',), 'keys per second')
        plot(folder, axis, rows, 'cpu', ('client_cpu_s_per_mkeys', 'server_cpu_s_per_mkeys'), 'CPU s per million keys')
        if not args.out:
            write_table(os.path.join(ROOT, 'docs/PS-COST.md'), axis, rows)


if __name__ == '__main__':
    main()
