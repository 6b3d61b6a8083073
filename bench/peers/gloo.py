#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gloo, through the distribution's PyTorch: torch.distributed send and recv of CPU tensors, over tcp. Answers the same
commands as the programs of bench/peers (harness.h); what a call costs here includes Python's part of it.

Usage: bench/peers/gloo.py --transport tcp [--bytes N]. Processes: a client and its server, pinned to a core each.
"""
import argparse
import ctypes
import json
import os
import signal
import sys
import time

WARM = 16


def pin(n):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[n % len(cpus)]})


def sizes(op, size, depth):
    """(bytes of a request, of an answer; 0 = none but at the end)"""
    if op == 'get':
        return 16, size
    if op == 'stream' or (op == 'put' and depth > 1):
        return size, 0
    return size, size


class Side:
    def __init__(self, torch, dist, rank, most):
        self.dist = dist
        self.other = 1 - rank
        self.buffer = torch.ones(most, dtype=torch.uint8)
        self.into = torch.zeros(most, dtype=torch.uint8)

    def send(self, size):
        self.dist.send(self.buffer[:size], self.other)

    def recv(self, size):
        self.dist.recv(self.into[:size], self.other)


def serve(side, torch):
    work = torch.zeros(3, dtype=torch.int64)
    while True:
        side.dist.recv(work, side.other)
        request, answer, count = work.tolist()
        for _ in range(count):
            side.recv(request)
            if answer:
                side.send(answer)
        if not answer:
            side.send(8)


def run(side, torch, request, answer, depth, count):
    """Seconds at the end of each operation; the last one is that of all."""
    side.dist.send(torch.tensor([request, answer, count], dtype=torch.int64), side.other)
    marks = [time.monotonic()]
    sent = 0
    for done in range(count):
        while sent < count and (answer == 0 or sent - done < depth):
            side.send(request)
            sent += 1
        if answer:
            side.recv(answer)
            marks.append(time.monotonic())
    if not answer:
        side.recv(8)
        marks.append(time.monotonic())
    return marks


def cpu_s(pid):
    with open(f'/proc/{pid}/stat', encoding='utf-8') as f:
        words = f.read().rsplit(')', 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf('SC_CLK_TCK')


def measure(side, torch, server, op, size, depth, ms):
    request, answer = sizes(op, size, depth)
    warm = WARM if size < 1 << 20 else depth + 1
    marks = run(side, torch, request, answer, depth, warm)
    count = max(3 * depth, int(ms * 1e-3 / ((marks[-1] - marks[0]) / warm)))
    before = time.process_time(), cpu_s(server)
    marks = run(side, torch, request, answer, depth, count)
    client, other = time.process_time() - before[0], cpu_s(server) - before[1]
    half = 2 if op == 'put' and depth == 1 else 1
    mean = (marks[-1] - marks[0]) / count / half
    result = {'op': op, 'size': size, 'depth': depth, 'count': count, 'mean_us': mean * 1e6, 'bytes_per_s': size / mean,
              'cpu_us': (client + other) / count / half * 1e6, 'cpu_client_us': client / count / half * 1e6,
              'cpu_server_us': other / count / half * 1e6}
    if depth == 1 and answer:
        took = sorted((b - a) / half * 1e6 for a, b in zip(marks, marks[1:]))
        result.update(p50_us=took[len(took) // 2], p99_us=took[int((len(took) - 1) * 0.99 + 0.5)])
    return result


def command(side, torch, server, line):
    op, size, depth, ms = line.split()
    if op not in ('put', 'get', 'call', 'stream'):
        return {'error': 'no tables here'}
    if int(size) > len(side.buffer):
        return {'error': 'larger than --bytes'}
    if int(depth) > 1 and sizes(op, int(size), int(depth))[1]:
        return {'error': 'a send waits for its receiver: one at a time'}
    return measure(side, torch, server, op, int(size), int(depth), int(ms))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--transport', choices=['tcp'], default='tcp')
    parser.add_argument('--bytes', type=int, default=1 << 20)
    parser.add_argument('--spin', action='store_true')
    options = parser.parse_args()
    if options.spin:
        print(json.dumps({'error': 'blocks: without --spin alone'}), flush=True)
        return 1
    at, to = os.pipe()
    server = os.fork()  # before there are threads
    rank = 0 if server else 1
    try:
        import torch  # pylint: disable=import-outside-toplevel
        import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    except ImportError:
        if rank == 0:
            print(json.dumps({'error': 'not built: its package is not there'}), flush=True)
        return 1
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    torch.set_num_threads(1)
    if rank == 1:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        store = dist.TCPStore('127.0.0.1', int(os.read(at, 16)), 2, False)
    else:
        store = dist.TCPStore('127.0.0.1', 0, 2, True, wait_for_workers=False)
        os.write(to, str(store.port).encode())
    pin(rank)
    dist.init_process_group('gloo', store=store, rank=rank, world_size=2)
    side = Side(torch, dist, rank, options.bytes)
    if rank == 1:
        serve(side, torch)
    print(json.dumps({'ready': 'gloo'}), flush=True)
    for line in sys.stdin:
        print(json.dumps(command(side, torch, server, line)), flush=True)
    os.kill(server, signal.SIGKILL)
    os._exit(0)


if __name__ == '__main__':
    sys.exit(main())
