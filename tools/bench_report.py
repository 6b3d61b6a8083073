# SPDX-License-Identifier: Apache-2.0
"""What tools/bench.py measured, for people: medians, ratios with intervals, tables, figures, which targets hold."""
import json
import os
import shutil
import statistics
import subprocess

NEAR = 1.5  # probes that differ by more are of cores that moved
K, M = 1 << 10, 1 << 20


def load(path):
    with open(path, encoding='utf-8') as f:
        lines = [json.loads(line) for line in f]
    return {'head': lines[0], 'rows': lines[1:]}


def sign_rank(n):
    """The median of n values lies between the k-th smallest and the k-th largest with 95 %; 0: too few."""
    outside, term, k = 0.0, 0.5 ** n, 0
    while k < n // 2 and 2 * (outside + term) <= 0.05:
        outside += term
        term = term * (n - k) / (k + 1)
        k += 1
    return k


def spread(values):
    values = sorted(values)
    k = max(sign_rank(len(values)), 1) - 1
    return statistics.median(values), values[k], values[-1 - k]


def works(data):
    seen = []
    for row in data['rows']:
        work = (row['op'], row['size'], row['depth'])
        if work not in seen:
            seen.append(work)
    return seen


def cell(data, work, peer):
    """Rounds of one peer at one work: {round: row}; and the reason if it has none."""
    rows = [row for row in data['rows'] if (row['op'], row['size'], row['depth']) == work and row['peer'] == peer]
    good = {row['round']: row for row in rows if 'error' not in row}
    reason = next((row['error'] for row in rows if 'error' in row), None)
    return good, reason


def peers(data):
    seen = []
    for row in data['rows']:
        if row['peer'] not in seen and row['peer'] not in ('copy', 'bare ring'):
            seen.append(row['peer'])
    return sorted(seen, key=lambda name: (not name.startswith('tern'), 'no spin' in name))


def value(row, key):
    return row.get(key, row['mean_us']) if key == 'p50_us' else row[key]


def median_of(good, key):
    return statistics.median(value(row, key) for row in good.values()) if good else None


def probe(row):
    pair = [p for p in (row.get('line_before_us'), row.get('line_after_us')) if p]
    return pair if len(pair) == 2 else None


def same_place(a, b):
    """Did the cores stand equally far apart during both turns?"""
    pa, pb = probe(a), probe(b)
    return bool(pa and pb) and max(pa + pb) <= NEAR * min(pa + pb)


def ratio(data, work, one, other, key='p50_us'):
    """one to other: (median, low, high, rounds with equal probes), or None."""
    a, _ = cell(data, work, one)
    b, _ = cell(data, work, other)
    both = [r for r in a if r in b and value(b[r], key) > 0]
    placed = [r for r in both if same_place(a[r], b[r])]
    if not placed:
        return None
    return spread([value(a[r], key) / value(b[r], key) for r in placed]) + (len(placed),)


def best(data, work, names, key='p50_us'):
    found = [(median_of(cell(data, work, name)[0], key), name) for name in names if cell(data, work, name)[0]]
    return min(found)[1] if found else None


# ---- text ----

def size_text(op, size):
    if op in ('fetch', 'push'):
        return f'{size:,} keys'
    for unit, name in ((M, 'MiB'), (K, 'KiB')):
        if size >= unit and size % unit == 0:
            return f'{size // unit} {name}'
    return f'{size} B'


def number(v):
    if v is None:
        return '-'
    digits = 3 if v < 1 else 2 if v < 10 else 1 if v < 100 else 0
    return f'{v:,.{digits}f}'


def ratio_text(r):
    if r is None:
        return '-'
    digits = 2 if r[0] >= 0.095 else 3
    return f'{r[0]:.{digits}f} ({r[1]:.{digits}f} to {r[2]:.{digits}f})'


def work_text(work):
    op, size, depth = work
    return f'{op} {size_text(op, size)}' + (f', {depth} in flight' if depth > 1 else '')


def table_rows(data, key):
    names = peers(data)
    tern = names[0]
    out = []
    for work in works(data):
        rival = best(data, work, [n for n in names if not n.startswith('tern')], key)
        r = ratio(data, work, tern, rival, key) if rival else None
        cells = [number(median_of(cell(data, work, n)[0], key)) for n in names]
        out.append([work_text(work)] + cells + [rival or '-', ratio_text(r) if rival else '-'])
    return names, out


def table_markdown(data, key):
    names, rows = table_rows(data, key)
    head = ['work'] + names + ['best peer', 'tern to it']
    lines = ['| ' + ' | '.join(head) + ' |', '|---|' + '---:|' * len(names) + '---|---:|']
    return '\n'.join(lines + ['| ' + ' | '.join(row) + ' |' for row in rows])


def table_text(data):
    names, rows = table_rows(data, 'p50_us')
    head = ['us', *names, 'best peer', 'tern to it']
    widths = [max(len(row[i]) for row in [head] + rows) for i in range(len(head))]
    text = [f'{data["head"]["group"]}: medians of {data["head"]["rounds"]} rounds, us an operation']
    for row in [head] + rows:
        text.append('  '.join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))
    return '\n'.join(text + [t for t in (idle_text(data), noise_text(data)) if t])


def idle_text(data):
    idle = data['head'].get('idle')
    return (f'{idle["peer"]} without work, a server and a linked client with keepalives, {idle["seconds"]:.0f} s: '
            f'{idle["percent"]:.3f} % of a core' if idle else '')


def noise_text(data):
    lines = [p for row in data['rows'] for p in (probe(row) or [])]
    steal = sum(row.get('steal_ms', 0) for row in data['rows'])
    total = max(1, len(data['rows']))
    if not lines:
        return 'no probe'
    lines.sort()
    return (f'cache line one way: {lines[0]:.3f} to {lines[-1]:.3f} us, median {statistics.median(lines):.3f} (of {len(lines)} '
            f'probes); the host took {steal} ms of CPU in {total} turns')


# ---- targets ----

TARGETS = [
    # name, group, ops, sizes, depths, against (None: the best of all others), key, at most (ratio of tern to it)
    ('put, get 8 B to 4 KiB no slower than UCX posix', 'shm-spin', ('put', 'get'), (8, 4 * K), (1,), 'UCX posix', 'p50_us', 1.0),
    ('put, get from 1 MiB: 1.1 x UCX', 'shm-spin', ('put', 'get'), (M, 256 * M), (1, 8), 'UCX posix', 'p50_us', 1 / 1.1),
    ('put, get from 1 MiB: 1.3 x libfabric', 'shm-spin', ('put', 'get'), (M, 256 * M), (1, 8), 'libfabric shm', 'p50_us', 1 / 1.3),
    ('put, get from 1 MiB: 0.95 of a copy', 'shm-spin', ('put', 'get'), (M, 256 * M), (1, 8), 'copy', 'p50_us', 1 / 0.95),
    ('call 64 B: 0.6 x UCX active messages', 'shm-spin', ('call',), (64, 64), (1,), 'UCX posix', 'p50_us', 0.6),
    ('tcp call 64 B, spinning: plain socket', 'tcp-spin', ('call',), (64, 64), (1,), 'tcp socket', 'p50_us', 1.0),
    ('tcp call 64 B, blocking: plain socket', 'tcp-block', ('call',), (64, 64), (1,), 'tcp socket', 'p50_us', 1.0),
    ('tcp streams: 0.95 of a socket, spinning', 'tcp-spin', ('put',), (M, 256 * M), (8,), 'tcp socket', 'mean_us', 1 / 0.95),
    ('tcp streams: 0.95 of a socket, blocking', 'tcp-block', ('put',), (M, 256 * M), (8,), 'tcp socket', 'mean_us', 1 / 0.95),
    ('tcp: no slower than UCX', 'tcp-spin', None, (8, 256 * M), (1, 8), 'UCX tcp', 'p50_us', 1.0),
    ('tcp: no slower than libfabric', 'tcp-spin', None, (8, 256 * M), (1, 8), 'libfabric tcp', 'p50_us', 1.0),
    ('tcp: no slower than ZeroMQ', 'tcp-block', None, (8, 256 * M), (1, 8), 'ZeroMQ tcp', 'p50_us', 1.0),
    ('tcp: no slower than NNG', 'tcp-block', None, (8, 256 * M), (1, 8), 'NNG tcp', 'p50_us', 1.0),
    ('tcp: 3 x gRPC', 'tcp-block', None, (8, 256 * M), (1, 8), 'gRPC tcp', 'p50_us', 1 / 3),
    ('CPU, shm, blocking', 'shm-block', None, (8, 256 * M), (1, 8), None, 'cpu_us', 1.0),
    ('CPU, tcp, blocking', 'tcp-block', None, (8, 256 * M), (1, 8), None, 'cpu_us', 1.0),
]


IDLE_PERCENT = 1.0


def judged(data, target):
    """For each work that the target is about: work, ratio, rival."""
    _, _, ops, span, depths, against, key, _ = target
    names = peers(data)
    for work in works(data):
        op, size, depth = work
        if (ops and op not in ops) or depth not in depths or (op not in ('fetch', 'push') and not span[0] <= size <= span[1]):
            continue
        rival = against or best(data, work, [n for n in names if not n.startswith('tern')], key)
        r = ratio(data, work, names[0], rival, key) if rival else None
        if r is not None:
            yield work, r, rival


def holds(r, target):
    return r[0] <= target[7] * 1.0005


def judge(data, target):
    """(works that hold, works in all, the worst: ratio and work)"""
    held, total, worst = 0, 0, None
    for work, r, rival in judged(data, target):
        total += 1
        held += holds(r, target)
        if worst is None or r[0] > worst[0][0]:
            worst = (r, work, rival)
    return held, total, worst


def targets_markdown(all_data):
    lines = ['| target | of tern to it at most | holds | worst | where |', '|---|---:|---|---:|---|']
    for target in TARGETS:
        data = all_data.get(target[1])
        held, total, worst = judge(data, target) if data else (0, 0, None)
        if not total:
            lines.append(f'| {target[0]} | {target[7]:.2f} | not measured | | |')
            continue
        verdict = '**yes**' if held == total else f'{held} of {total}'
        lines.append(f'| {target[0]} | {target[7]:.2f} | {verdict} | {ratio_text(worst[0])} | {work_text(worst[1])}'
                     + (f', {worst[2]}' if target[5] is None else '') + ' |')
    for group, data in all_data.items():
        idle = data['head'].get('idle')
        if idle:
            verdict = '**yes**' if idle['percent'] < IDLE_PERCENT else 'no'
            lines.append(f'| {group}: idle below {IDLE_PERCENT:.0f} % of a core | | {verdict} | {idle["percent"]:.3f} % | '
                         f'{idle["seconds"]:.0f} s, both sides |')
    return '\n'.join(lines)


def floor_of(data, work, group, key):
    """What the machine takes for it alone, in the same run, and its name: of what goes over tcp a plain socket."""
    if group.startswith('tcp'):
        return median_of(cell(data, work, 'tcp socket')[0], key), 'a socket'
    if work[0] == 'put' and work[1] <= 8:
        lines = [p for row in cell(data, work, peers(data)[0])[0].values() for p in (probe(row) or [])]
        return statistics.median(lines) if lines else None, 'a cache line'
    name = 'bare ring' if work[0] == 'call' else 'copy'
    return median_of(cell(data, work, name)[0], key), f'a {name.split()[-1]}'


def missed_markdown(all_data):
    """Each work that misses its bound and has a limit of the same run."""
    lines = ['| target | work | tern, us | bound, us | machine alone, us | |', '|---|---|---:|---:|---:|---|']
    for target in TARGETS:
        data, key, most = all_data.get(target[1]), target[6], target[7]
        if data is None or target[1] == 'shm-block':
            continue
        for work, r, rival in judged(data, target):
            tern, bound = (median_of(cell(data, work, n)[0], key) for n in (peers(data)[0], rival))
            limit, floor = floor_of(data, work, target[1], key)
            if holds(r, target) or (limit is None and target[1] == 'shm-spin'):
                continue
            bound *= most
            beyond = limit is not None and rival not in ('tcp socket', 'copy') and bound < limit
            lines.append(f'| {target[0]} | {work_text(work)}' + (f', {rival}' if target[5] is None else '')
                         + f' | {number(tern)} | {number(bound)} | {number(limit)} | {f"less than {floor} takes" if beyond else ""} |')
    return '\n'.join(lines)


# ---- figures ----

def plot(script, out):
    if not shutil.which('gnuplot'):
        return False
    done = subprocess.run(['gnuplot'], input=script, text=True, check=False, cwd=out)
    return done.returncode == 0


def figure(data, op, depth, key, out, title):
    """Peers over sizes: a line each."""
    group = data['head']['group']
    name = f'{group}-{op}' + (f'-{depth}' if depth > 1 else '')
    names = peers(data)
    at = [w for w in works(data) if w[0] == op and w[2] == depth]
    if len(at) < 3:
        return None
    rows = []
    for work in at:
        rows.append([str(work[1])] + [str(median_of(cell(data, work, n)[0], key) or 'NaN') for n in names])
    with open(os.path.join(out, name + '.tsv'), 'w', encoding='utf-8') as f:
        f.write('\t'.join(['size'] + [n.replace(' ', '_') for n in names]) + '\n')
        f.writelines('\t'.join(row) + '\n' for row in rows)
    lines = ', '.join(f'"{name}.tsv" using 1:{i + 2} with linespoints lw {2.5 if i == 0 else 1.2} title "{n}"'
                      for i, n in enumerate(names))
    unit = 'keys' if op in ('fetch', 'push') else 'bytes'
    script = (f'set terminal svg size 760,420 font "sans-serif,12" background "white"\nset output "{name}.svg"\n'
              f'set logscale xy\nset format x "10^{{%L}}"\nset xlabel "{unit}"\nset ylabel "us"\nset title "{title}"\n'
              f'set key outside right\nset grid\nset datafile missing "NaN"\nplot {lines}\n')
    return name + '.svg' if plot(script, out) else None


def figures(all_data, out):
    made = []
    for group, data in all_data.items():
        mode = group.replace('-', ', ')
        for op, depth, words in (('put', 1, 'put, one way'), ('put', 8, 'puts, 8 in flight'), ('get', 1, 'get'),
                                 ('fetch', 1, 'fetch of rows of 64 f32')):
            name = figure(data, op, depth, 'p50_us' if depth == 1 else 'mean_us', out, f'{words} ({mode})')
            if name:
                made.append((group, words, name))
    return made


# ---- documents ----

def replace(text, name, body):
    begin, end = f'<!-- bench {name} -->', '<!-- end -->'
    at = text.find(begin)
    if at < 0:
        return text
    stop = text.index(end, at)
    return text[:at + len(begin)] + '\n' + body + '\n' + text[stop:]


def summary_markdown(all_data):
    """For the README: a few works, each beside the best peer."""
    picks = [('shm-spin', ('put', 8, 1)), ('shm-spin', ('call', 64, 1)), ('shm-spin', ('put', 64 * M, 8)),
             ('tcp-block', ('call', 64, 1)), ('tcp-block', ('fetch', 1024, 1)), ('tcp-block', ('put', 64 * M, 8)),
             ('shm-block', ('fetch', 1024, 1))]
    lines = ['| work | over | tern, us | best peer | us | gRPC, us |', '|---|---|---:|---|---:|---:|']
    for group, work in picks:
        data = all_data.get(group)
        if data is None or work not in works(data):
            continue
        key = 'p50_us' if work[2] == 1 else 'mean_us'
        names = peers(data)
        rival = best(data, work, [n for n in names if not n.startswith('tern')], key)
        grpc = next((n for n in names if n.startswith('gRPC') and 'generic' not in n), None)
        lines.append(f'| {work_text(work)} | {group.replace("-", ", ")} | {number(median_of(cell(data, work, names[0])[0], key))} '
                     f'| {rival} | {number(median_of(cell(data, work, rival)[0], key))} '
                     f'| {number(median_of(cell(data, work, grpc)[0], key)) if grpc else "-"} |')
    return '\n'.join(lines)


def group_markdown(data):
    head = data['head']
    text = [f'{head["cpus"]} cores of {head["cpu"]}, Linux {head["kernel"]}, {head["time"]}, {head["rounds"]} rounds of '
            f'{head["ms"]} ms; {noise_text(data)}.' + (f' {idle_text(data)}.' if idle_text(data) else ''), '', 'Time of an operation, us (depth 1: P50):', '',
            table_markdown(data, 'p50_us')]
    if head['group'].endswith('block'):
        text += ['', 'CPU time of both sides, us an operation:', '', table_markdown(data, 'cpu_us')]
    return '\n'.join(text)


def write(root, results, groups):
    all_data = {}
    for group in groups:
        path = os.path.join(results, f'{group}.jsonl')
        if os.path.exists(path):
            all_data[group] = load(path)
    if not all_data:
        print(f'bench: nothing was measured: {results}/*.jsonl')
        return 1
    out = os.path.join(root, 'docs/performance')
    os.makedirs(out, exist_ok=True)
    made = figures(all_data, out)
    images = '\n'.join(f'![{words}, {group}](performance/{name})' for group, words, name in made)
    bodies = {'targets': targets_markdown(all_data), 'missed': missed_markdown(all_data), 'figures': images, 'summary': summary_markdown(all_data),
              **{group: group_markdown(data) for group, data in all_data.items()}}
    for name in ('docs/PERFORMANCE.md', 'README.md'):
        path = os.path.join(root, name)
        with open(path, encoding='utf-8') as f:
            text = f.read()
        for key, body in bodies.items():
            text = replace(text, key, body)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
    print(targets_markdown(all_data))
    return 0

