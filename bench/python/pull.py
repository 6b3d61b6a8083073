#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a pull of rows: the same pulls of one table through one context, from Python and from C (pull.c), in
turns; the server is a process of its own. Medians of all pulls, and of the differences of rounds.

Usage: pull.py PACKAGE_FOLDER LIBTERN TERN_COMMAND [--rows N] [--dim N] [--rounds N] [--pulls N] [--json]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('package')
    parser.add_argument('library')
    parser.add_argument('command')
    parser.add_argument('--rows', type=int, default=1024)
    parser.add_argument('--dim', type=int, default=64)
    parser.add_argument('--rounds', type=int, default=30)
    parser.add_argument('--pulls', type=int, default=100)
    parser.add_argument('--json', action='store_true')
    return parser.parse_args()


def compiled(folder, library):
    """pull.c as a shared object."""
    out = os.path.join(folder, 'pull.so')
    subprocess.run(['cc', '-O2', '-shared', '-fPIC', '-o', out, os.path.join(HERE, 'pull.c'),
                    f'-I{HERE}/../../include', os.path.realpath(library)], check=True)
    return out


def measure(args, address, folder):
    import cffi  # pylint: disable=import-outside-toplevel
    import numpy  # pylint: disable=import-outside-toplevel
    import tern  # pylint: disable=import-outside-toplevel
    ffi = cffi.FFI()
    ffi.cdef('int pulls(void *, void *, const uint64_t *, uint64_t, void *, uint64_t *, int);')
    native = ffi.dlopen(compiled(folder, args.library))
    with tern.Context('bench') as ctx:
        table = ctx.tables(address).create(tern.Schema('t', dim=args.dim))
        keys = numpy.arange(args.rows, dtype='uint64') * 7919
        rows = ctx.zeros((args.rows, args.dim))
        table.push(keys, rows + 1)
        handles = [ffi.cast('void *', int(tern._lib.ffi.cast('uintptr_t', pointer)))  # pylint: disable=protected-access
                   for pointer in (ctx.core.ptr, table._alive())]
        took = ffi.new('uint64_t[]', args.pulls)

        def from_c():
            status = native.pulls(*handles, ffi.cast('uint64_t *', keys.ctypes.data), args.rows,
                                  ffi.cast('void *', rows.ctypes.data), took, args.pulls)
            assert status == 0, status
            return list(took)

        def from_python():
            times = []
            for _ in range(args.pulls):
                start = time.perf_counter_ns()
                table.pull(keys, rows)
                times.append(time.perf_counter_ns() - start)
            return times
        from_c(), from_python()  # pages, caches
        return [(from_c(), from_python()) for _ in range(args.rounds)]


def main():
    args = arguments()
    os.environ['LIBTERN_PATH'] = args.library
    sys.path.insert(0, args.package)
    with tempfile.TemporaryDirectory(prefix='tern-bench-') as folder:
        server = subprocess.Popen([args.command, 'server', '--listen', '127.0.0.1:0'], stdout=subprocess.PIPE, text=True)
        try:
            rounds = measure(args, server.stdout.readline().strip(), folder)
        finally:
            server.terminate()
            server.wait()
    c, python = ([value / 1e3 for pair in rounds for value in pair[i]] for i in range(2))
    more = sorted((statistics.median(p) - statistics.median(c)) / 1e3 for c, p in rounds)
    row = {'rows': args.rows, 'dim': args.dim, 'c_us': round(statistics.median(c), 2),
           'python_us': round(statistics.median(python), 2), 'more_us': round(statistics.median(more), 2),
           'more_us_least': round(more[0], 2), 'more_us_most': round(more[-1], 2)}
    print(json.dumps(row) if args.json else
          f"pull of {args.rows} x {args.dim}: C {row['c_us']} us, Python {row['python_us']} us; {row['more_us']} us more "
          f"(rounds: {row['more_us_least']} to {row['more_us_most']})")


if __name__ == '__main__':
    main()
