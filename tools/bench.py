#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tern beside its peers and beside the physical limit: runs the programs of bench/peers in turn, says what came out.

Usage: tools/bench.py BUILD [--full] [--rounds N] [--ms N] [--idle S] [--out DIR] [--report] [--smoke] [GROUP...]

Groups: shm-spin shm-block tcp-spin tcp-block (all without an argument). In a group each kind of work is done by everybody, a
few milliseconds each, in turn, so many rounds; before and after each turn the cache-line probe says where the two cores are.
A figure is the median of its rounds. A ratio is taken within a round, between two turns whose probes agree, and is the median
of the rounds' own ratios with the interval that holds the true one with 95 % (fewer than six rounds: the extremes).

OUT (build/bench) gets GROUP.jsonl, a line for each turn. --report makes docs/PERFORMANCE.md and docs/performance/ out of what
lies there; tables stand between "<!-- bench NAME -->" and "<!-- end -->". --smoke: ten operations of each, to see that they work.
"""
import argparse
import json
import os
import select
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_report  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, '..'))
PATIENCE_S = 30
LIMITS = {'copy': 'copy', 'call': 'bare ring'}  # asked of bench-peer-limit: what its rows are called
RING_BYTES = 128
K, M = 1 << 10, 1 << 20

# name: (program, arguments). Names are those of the tables.
PEERS = {
    'tern shm': ('tern', '--transport shm --default'), 'tern shm, no spin': ('tern', '--transport shm'),
    'tern tcp': ('tern', '--transport tcp --default'), 'tern tcp, no spin': ('tern', '--transport tcp'),
    'unix socket': ('raw', '--transport unix'), 'tcp socket': ('raw', '--transport tcp'),
    'UCX posix': ('ucx', '--transport posix'), 'UCX sysv': ('ucx', '--transport sysv'), 'UCX tcp': ('ucx', '--transport tcp'),
    'libfabric shm': ('fabric', '--transport shm'), 'libfabric tcp': ('fabric', '--transport tcp'),
    'ZeroMQ ipc': ('zmq', '--transport ipc'), 'ZeroMQ tcp': ('zmq', '--transport tcp'),
    'NNG ipc': ('nng', '--transport ipc'), 'NNG tcp': ('nng', '--transport tcp'),
    'gRPC unix': ('grpc-plain', '--transport unix'), 'gRPC tcp': ('grpc-plain', '--transport tcp'),
    'gRPC generic unix': ('grpc-generic', '--transport unix'), 'gRPC generic tcp': ('grpc-generic', '--transport tcp'),
    'gloo tcp': ('gloo', '--transport tcp'),
}
# Large buffers that are freed and allocated for each message cost fresh pages; with these thresholds they do not.
TUNABLES = 'glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483648'

GROUPS = {
    'shm-spin': ('tern shm', 'UCX posix', 'UCX sysv', 'libfabric shm', 'unix socket', 'ZeroMQ ipc'),
    'shm-block': ('tern shm', 'tern shm, no spin', 'unix socket', 'ZeroMQ ipc', 'NNG ipc', 'gRPC unix', 'gRPC generic unix'),
    'tcp-spin': ('tern tcp', 'UCX tcp', 'libfabric tcp', 'tcp socket', 'ZeroMQ tcp'),
    'tcp-block': ('tern tcp', 'tern tcp, no spin', 'tcp socket', 'ZeroMQ tcp', 'NNG tcp', 'gRPC tcp', 'gRPC generic tcp',
                  'gloo tcp'),
}

QUICK = ([('put', s, 1) for s in (8, 4 * K, 64 * K, M, 64 * M)] + [('put', s, 8) for s in (64, 4 * K, M, 64 * M)]
         + [('get', s, 1) for s in (8, 4 * K, 64 * K, M, 64 * M)] + [('get', s, 8) for s in (64, M)]
         + [('call', 64, 1), ('call', 4 * K, 1), ('call', 64, 8), ('stream', 64, 8), ('stream', 64 * K, 8)]
         + [('fetch', k, 1) for k in (16, 128, 1024, 8192)] + [('push', k, 1) for k in (16, 1024)])
SIZES = [8, 64, 512, 4 * K, 32 * K, 256 * K, M, 4 * M, 16 * M, 64 * M, 256 * M]
FULL = ([('put', s, d) for d in (1, 8) for s in SIZES] + [('get', s, d) for d in (1, 8) for s in SIZES]
        + [('call', s, d) for d in (1, 8) for s in (8, 64, 512, 4 * K)] + [('call', s, 1) for s in (64 * K, M)]
        + [('stream', s, d) for d in (1, 8) for s in (8, 64, 4 * K, 64 * K)]
        + [('fetch', k, 1) for k in (16, 64, 128, 512, 1024, 4096, 8192)] + [('push', k, 1) for k in (16, 128, 1024, 8192)])
SMOKE = [('put', 8, 1), ('put', 4 * K, 8), ('get', 4 * K, 1), ('call', 64, 1), ('call', 64, 8), ('stream', 64, 8)]


def say(text):
    print(text, file=sys.stderr, flush=True)


IDLE_PEERS = {'shm-block': 'tern shm', 'tcp-block': 'tern tcp'}


class Program:
    """A program of bench/peers: commands in, one line of JSON each out. A dead one answers with its reason for ever."""

    def __init__(self, build, name, mode, size, more=()):
        program, arguments = PEERS.get(name, ('limit', ''))
        self.name = name
        self.reason = None
        self.process = None
        self.buffer = b''
        command = [os.path.join(build, 'bench/peers', f'bench-peer-{program}')]
        if program == 'gloo':
            command = ['/usr/bin/python3', '-B', os.path.join(ROOT, 'bench/peers/gloo.py')]
        elif not os.path.exists(command[0]):
            self.reason = 'not built: its package is not there'
            return
        command += arguments.split() + ['--bytes', str(size)]
        if mode == 'spin':
            command.append('--spin')
        command += more
        environment = {**os.environ, 'GLIBC_TUNABLES': TUNABLES, 'UCX_WARN_UNUSED_ENV_VARS': 'n', 'FI_LOG_LEVEL': 'error',
                       'TERN_LOG_LEVEL': 'error'}
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                        start_new_session=True)
        answer = self.read()
        if 'ready' not in answer:
            self.end(answer.get('error', 'it did not begin'))

    def read(self):
        deadline = time.monotonic() + PATIENCE_S
        while b'\n' not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return {'error': f'no answer within {PATIENCE_S} s'}
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return {'error': 'it ended without a word'}
            self.buffer += data
        line, self.buffer = self.buffer.split(b'\n', 1)
        try:
            return json.loads(line)
        except ValueError:
            return {'error': f'it said {line[:80]!r}'}

    def ask(self, op, size, depth, ms):
        if self.reason:
            return {'error': self.reason}
        try:
            self.process.stdin.write(f'{op} {size} {depth} {ms}\n'.encode())
            self.process.stdin.flush()
        except OSError:
            pass  # its last words, if any, are still to be read
        answer = self.read()
        if 'error' in answer and (self.process.poll() is not None or answer['error'].startswith(('no answer', 'it '))):
            self.end(answer['error'])
        return answer

    def cpu_ns(self):
        """Of both sides, all threads."""
        pids, total = [str(self.process.pid)], 0
        with open(f'/proc/{pids[0]}/task/{pids[0]}/children', encoding='ascii') as f:
            pids += f.read().split()
        for pid in pids:
            for task in os.listdir(f'/proc/{pid}/task'):
                with open(f'/proc/{pid}/task/{task}/schedstat', encoding='ascii') as f:
                    total += int(f.read().split()[0])
        return total

    def end(self, reason='ended'):
        self.reason = reason
        if self.process is None:
            return
        self.process.stdin.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its server goes with it (PR_SET_PDEATHSIG)
            self.process.wait()
        self.process.stdout.close()
        self.process = None


def limits_of(op, size, depth, name):
    """What the limit's program is asked for beside this work, if anything."""
    if op in ('put', 'get') and size >= 64:
        return 'copy'
    return 'call' if op == 'call' and depth == 1 and size <= RING_BYTES and 'shm' in name else None


def run_turns(programs, limit, work, rounds, ms, out):
    """All rounds of one work. Limits of copies and of calls are turns of their own."""
    op, size, depth = work
    reasons = {}

    def line():
        return limit.ask('line', 8, 1, 3).get('p50_us')

    for turn in range(rounds):
        order = programs if turn % 2 == 0 else programs[::-1]
        before = line()
        for program in order:
            if program.name in reasons:
                continue
            answer = program.ask(op, size, depth, ms)
            after = line()
            row = {**answer, 'peer': program.name, 'op': op, 'size': size, 'depth': depth, 'round': turn, 'line_before_us': before,
                   'line_after_us': after}
            if 'error' in answer:
                reasons[program.name] = answer['error']
            out.write(json.dumps(row) + '\n')
            before = after
        what = limits_of(op, size, depth, programs[0].name)
        if what:
            answer = limit.ask(what, size, 1, ms)
            out.write(json.dumps({**answer, 'peer': LIMITS[what], 'op': op, 'size': size, 'depth': depth, 'round': turn,
                                  'line_before_us': before, 'line_after_us': line()}) + '\n')
    return reasons


def machine():
    model, kernel = 'unknown processor', os.uname().release
    with open('/proc/cpuinfo', encoding='utf-8') as f:
        for text in f:
            if text.startswith('model name'):
                model = text.split(':', 1)[1].strip()
                break
    return {'cpu': model, 'cpus': os.cpu_count(), 'kernel': kernel.split('-')[0], 'time': time.strftime('%Y-%m-%d %H:%M')}


def idle(build, group, seconds):
    """CPU of a server and a linked client that have nothing to do, with the keepalives that everybody has; % of a core."""
    name = IDLE_PEERS.get(group)
    if not name or seconds <= 0:
        return {}
    program = Program(build, name, 'block', M, ['--keepalive'])
    if program.reason or 'error' in program.ask('call', 64, 1, 5):
        return {}
    time.sleep(0.5)
    before, start = program.cpu_ns(), time.monotonic()
    time.sleep(seconds)
    percent = (program.cpu_ns() - before) / (time.monotonic() - start) / 1e7
    program.end()
    return {'idle': {'peer': name, 'seconds': seconds, 'percent': percent}}


def run_group(build, group, works, options):
    mode = group.split('-')[1]
    most = max([size for op, size, _ in works if op not in ('fetch', 'push')] + [M]
               + [8 + size * 264 for op, size, _ in works if op in ('fetch', 'push')])
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, f'{group}.jsonl')
    limit = Program(build, 'limit', 'block', most)
    programs = [Program(build, name, mode, most) for name in GROUPS[group]
                if not options.peer or name.startswith('tern') or name in options.peer]
    with open(path + '.new', 'w', encoding='utf-8') as out:
        out.write(json.dumps({'group': group, 'rounds': options.rounds, 'ms': options.ms, **machine(),
                              **idle(build, group, options.idle)}) + '\n')
        for work in works:
            reasons = run_turns(programs, limit, work, options.rounds, options.ms, out)
            say(f'  {group}: {work[0]} {work[1]} x{work[2]}'
                + ''.join(f'; {name}: {why}' for name, why in reasons.items() if not options.quiet))
    for program in programs + [limit]:
        program.end()
    os.replace(path + '.new', path)
    return path


def smoke(build, options):
    """Each program answers, or says why not. A reason that is not 'can't do that' fails."""
    failed = []
    for group in options.groups or GROUPS:
        for name in GROUPS[group]:
            program = Program(build, name, group.split('-')[1], M)
            for op, size, depth in SMOKE:
                answer = program.ask(op, size, depth, 1)
                if program.reason and not program.reason.startswith('not built'):
                    failed.append(f'{group} {name}: {program.reason}')
                if program.reason:
                    break
                if 'error' not in answer and not answer['mean_us'] > 0:
                    failed.append(f'{group} {name}: {answer}')
            print(f'{group:10} {name:20} {program.reason or "ok"}')
            program.end()
    for text in failed:
        print(f'failed: {text}')
    return 1 if failed else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build')
    parser.add_argument('groups', nargs='*', metavar='GROUP')
    parser.add_argument('--full', action='store_true')
    parser.add_argument('--smoke', action='store_true')
    parser.add_argument('--report', action='store_true')
    parser.add_argument('--quiet', action='store_true')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--ms', type=int, default=30)
    parser.add_argument('--idle', type=float, default=20, help='seconds of the measurement without work')
    parser.add_argument('--out', default=os.path.join(ROOT, 'build/bench'))
    parser.add_argument('--op', action='append', help='only this kind of work (several times)')
    parser.add_argument('--peer', action='append', help='only this peer beside tern (several times)')
    options = parser.parse_intermixed_args()
    for group in options.groups:
        if group not in GROUPS:
            parser.error(f'there is no group {group!r}: {" ".join(GROUPS)}')
    return options


def main():
    options = parse()
    if options.smoke:
        return smoke(options.build, options)
    if options.report:
        return bench_report.write(ROOT, options.out, list(GROUPS))
    works = [work for work in (FULL if options.full else QUICK) if not options.op or work[0] in options.op]
    for group in options.groups or GROUPS:
        say(f'{group}: {len(works)} kinds of work, {options.rounds} rounds')
        path = run_group(options.build, group, works, options)
        print(bench_report.table_text(bench_report.load(path)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
