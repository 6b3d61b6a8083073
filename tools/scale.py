#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the experiments of sim/scale.rows and brings docs/SCALE.md and docs/scale/ up to date.

Usage: tools/scale.py TERN-SIM-SCALE [GROUP...]

Tables stand in docs/SCALE.md between "<!-- scale GROUP COLUMN... -->" and "<!-- end -->"; all columns of a group are in
docs/scale/GROUP.tsv; plots are drawn by gnuplot. Everything is virtual time: the same build prints the same numbers.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, '..')
DOC = os.path.join(ROOT, 'docs/SCALE.md')
OUT = os.path.join(ROOT, 'docs/scale')

# Column names of the tables, for people.
TITLES = {
    'name': 'run', 'hosts': 'hosts', 'qps': 'QPs of the receiver', 'links': 'links', 'link_B': 'bytes of a link at work', 'idle_B': 'in use of an idle link, bytes',
    'channel_B': 'bytes of a channel', 'node_MiB': 'memory of a node, MiB', 'ms': 'time, ms', 'goodput_pct': 'goodput, %',
    'queue_peak_KiB': 'peak queue, KiB', 'buffer_peak_KiB': 'peak buffer, KiB', 'pauses': 'PFC pauses',
    'pause_ms': 'paused, ms', 'drops': 'drops', 'resent': 'sent again', 'rnr': 'RNR', 'push_p50_us': 'push P50, us',
    'push_p99_us': 'push P99, us', 'push_max_us': 'push max, us', 'fetch_p50_us': 'fetch P50, us',
    'fetch_p99_us': 'fetch P99, us', 'message_p50_us': 'message P50, us', 'message_p99_us': 'message P99, us',
    'messages': 'messages', 'pushes': 'pushes', 'fetches': 'fetches', 'marks': 'ECN marks', 'slots_peak': 'slots in use at most',
}
GROUP_NAMES = {}


def rows():
    """[(group, name, words)] in the order of the file."""
    found, common = [], {}
    with open(os.path.join(ROOT, 'sim/scale.rows'), encoding='utf-8') as f:
        for line in f:
            line = line.split('#')[0].strip()
            if '@' in line:
                group, words = (part.strip() for part in line.split('@'))
                common[group] = words.split()
            elif line:
                group, name, words = (part.strip() for part in line.split('|'))
                found.append((group, name, common.get(group, []) + words.split()))
    return found


def run(binary, name, words, samples):
    command = [binary, '--header', 'name=' + name] + words
    if samples:
        command[1:1] = ['--samples', samples]
    print('  ' + name, file=sys.stderr, flush=True)
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        sys.exit(f'scale: "{name}" failed: {" ".join(command)}')
    head, line = result.stdout.rstrip('\n').split('\n')
    return head.split('\t'), line.split('\t')


def run_group(binary, group, experiments, scratch):
    """Writes the group's table of all columns; returns the files of its samples by name."""
    samples, lines, head = {}, [], None
    print(group, file=sys.stderr)
    for number, (name, words) in enumerate(experiments):
        path = None
        if any(w.startswith('sample_ns=') for w in words):
            path = samples[name] = os.path.join(scratch, f'{group}.{number}')
        head, line = run(binary, name, words, path)
        lines.append('\t'.join(line))
    with open(os.path.join(OUT, group + '.tsv'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(['\t'.join(head)] + lines) + '\n')
    return samples


def read_group(group):
    with open(os.path.join(OUT, group + '.tsv'), encoding='utf-8') as f:
        head, *lines = [line.rstrip('\n').split('\t') for line in f]
    return [dict(zip(head, line)) for line in lines]


def number(text):
    """Three digits or more, thousands apart."""
    try:
        value = float(text)
    except ValueError:
        return text
    if '.' not in text or value >= 1000:
        return f'{value:,.0f}'
    return text


def table(group, columns):
    lines = ['| ' + ' | '.join(TITLES.get(c, c) for c in columns) + ' |',
             '|' + '|'.join('---' if c == 'name' else '--:' for c in columns) + '|']
    for row in read_group(group):
        lines.append('| ' + ' | '.join(number(row[c]) for c in columns) + ' |')
    return '\n'.join(lines)


def write_tables():
    with open(DOC, encoding='utf-8') as f:
        text = f.read()

    def fill(match):
        group, *columns = match.group(1).split()
        return f'<!-- scale {match.group(1)} -->\n{table(group, ["name"] + columns)}\n<!-- end -->'

    text = re.sub(r'<!-- scale ([^>]*?) -->\n.*?<!-- end -->', fill, text, flags=re.S)
    with open(DOC, 'w', encoding='utf-8') as f:
        f.write(text)


def gnuplot(script):
    if not shutil.which('gnuplot'):
        print('scale: no gnuplot: plots are left as they are', file=sys.stderr)
        return
    subprocess.run(['gnuplot'], input=script, text=True, check=True)


STYLE = '''set terminal svg size 720,360 font "sans,12" background "white" noenhanced
set key outside right top
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
'''


def plot_queue(group, samples):
    """The receiver's queue over time."""
    parts = [f'"{path}" using ($1/1000):(($2/1024)+1) with lines lw 1.5 title "{name}"'
             for name, path in samples.items()]
    gnuplot(STYLE + f'set output "{OUT}/{group}_queue.svg"\nset logscale y\nset xlabel "ms"\n'
            'set ylabel "queue at the receiver, KiB"\nset yrange [1:100000]\nplot ' + ', '.join(parts) + '\n')


def plot_latency(group):
    """P50 and P99 of the fetches, a pair of bars for each line."""
    data = '\n'.join(f'"{r["name"]}"\t{r["fetch_p50_us"]}\t{r["fetch_p99_us"]}' for r in read_group(group))
    gnuplot(STYLE + f'''set output "{OUT}/{group}_fetch.svg"
set style data histograms
set style fill solid 0.8 noborder
set logscale y
set yrange [1:*]
set ylabel "fetch of 64 B, us"
set xtics rotate by -20
set bmargin 7
$data << END
{data}
END
plot $data using 2:xtic(1) title "P50", "" using 3 title "P99"
''')


def plot_growth(group, column, label):
    """A column over the number of senders, a line for each name."""
    lines = {}
    for row in read_group(group):
        lines.setdefault(row['name'], []).append((int(row['hosts']) - 1, float(row[column])))
    blocks = ''.join(f'$b{i} << END\n' + ''.join(f'{x}\t{y}\n' for x, y in points) + 'END\n'
                     for i, points in enumerate(lines.values()))
    parts = [f'$b{i} using 1:($2+0.001) with linespoints pt 7 ps 0.5 title "{name}"' for i, name in enumerate(lines)]
    gnuplot(STYLE + f'set output "{OUT}/{group}_{column}.svg"\nset logscale xy\nset xlabel "senders"\n'
            f'set ylabel "{label}"\n{blocks}plot ' + ', '.join(parts) + '\n')


def main():
    binary, only = sys.argv[1], sys.argv[2:]
    groups = {}
    for group, name, words in rows():
        groups.setdefault(group, []).append((name, words))
    os.makedirs(OUT, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for group, experiments in groups.items():
            if only and group not in only:
                continue
            samples = run_group(binary, group, experiments, scratch)
            if samples:
                plot_queue(group, samples)
            if group in ('incast256', 'all64'):
                plot_latency(group)
            if group == 'growth':
                plot_growth(group, 'queue_peak_KiB', 'peak queue at the receiver, KiB')
                plot_growth(group, 'fetch_p99_us', 'P99 of a fetch of 64 B, us')
    write_tables()


if __name__ == '__main__':
    main()
