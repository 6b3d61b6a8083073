#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of one operation of each hot path, counted by callgrind, against bench/budget.txt: a ratchet.

Usage: tools/budget.py BUILD [--update] [--json] [--count N] [CASE...]

A count may exceed its budget by TOLERANCE; beyond that it fails. One that fell by more than that is said, so that the budget
can follow (--update). Counts depend on the compiler and on the C library that its distribution has (copies are its functions):
each compiler has a column of its own, which holds for the Debian release that it is the default of. Where there is no column
for a compiler nothing is compared, which is said and ends with 77, as where valgrind lacks: a check that did not happen is none.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
BUDGET = os.path.join(ROOT, 'bench/budget.txt')
TOLERANCE = 0.03
COUNT = 500
HEAD = '''# Instructions of one operation, both ends together (callgrind; release build; tools/budget.py BUILD --update).
# case, then a column for each compiler
'''


def compiler(build):
    """"gcc-12": of a build folder."""
    with open(os.path.join(build, 'CMakeCache.txt'), encoding='utf-8') as f:
        path = re.search(r'^CMAKE_C_COMPILER:\w+=(.*)$', f.read(), re.M).group(1)
    text = subprocess.run([path, '--version'], stdout=subprocess.PIPE, text=True, check=True).stdout
    major = re.search(r'(\d+)\.\d+\.\d+', text).group(1)
    return ('clang-' if 'clang' in text else 'gcc-') + major


def count(program, case, number, library=None):
    """Instructions of one operation."""
    environment = {**os.environ, 'TERN_LOG_LEVEL': 'error'}
    if library:
        environment['LD_LIBRARY_PATH'] = library
    command = ['valgrind', '--tool=callgrind', '--callgrind-out-file=/dev/null', '--toggle-collect=budget_measured', program,
               case, str(number)]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, env=environment,
                              timeout=300)
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r'Collected : (\d+)', done.stderr)
    if done.returncode or not found:
        print(f'budget: {case}: {done.stderr[-400:]}', file=sys.stderr)
        return None
    return int(found.group(1)) / number


def read_budget():
    """{case: {compiler: instructions}}"""
    found, names = {}, []
    if not os.path.exists(BUDGET):
        return found
    with open(BUDGET, encoding='utf-8') as f:
        for line in f:
            words = line.split('#')[0].split()
            if words[:1] == ['case']:
                names = words[1:]
            elif words:
                found[words[0]] = {n: int(w) for n, w in zip(names, words[1:]) if w != '-'}
    return found


def write_budget(budget):
    names = sorted({name for row in budget.values() for name in row})
    wide = max(len(case) for case in budget)
    with open(BUDGET, 'w', encoding='utf-8') as f:
        f.write(HEAD)
        f.write('case'.ljust(wide) + ''.join(name.rjust(10) for name in names) + '\n')
        for case, row in budget.items():
            f.write(case.ljust(wide) + ''.join(str(row.get(name, '-')).rjust(10) for name in names) + '\n')


def judge(case, now, budget):
    """(failed, text)"""
    if now is None:
        return True, 'did not run'
    if budget is None:
        return False, 'not compared'
    change = now / budget - 1
    text = f'{change * 100:+.1f} %'
    if change > TOLERANCE:
        return True, f'{text}: over the budget'
    if change < -TOLERANCE:
        return False, f'{text}: the budget can follow (--update)'
    return False, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build')
    parser.add_argument('cases', nargs='*', metavar='CASE')
    parser.add_argument('--update', action='store_true')
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--count', type=int, default=COUNT)
    options = parser.parse_intermixed_args()
    program = os.path.join(options.build, 'bench/budget/bench-budget')
    if not shutil.which('valgrind'):
        print('budget: valgrind is not installed: nothing counted')
        return 77
    names = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    unknown = [case for case in options.cases if case not in names]
    if unknown:
        parser.error(f'there is no case {unknown[0]!r}: {" ".join(names)}')
    names = options.cases or names
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        now = dict(zip(names, pool.map(lambda case: count(program, case, options.count), names)))
    if options.json:
        print(json.dumps(now))
        return 1 if None in now.values() else 0
    budget, by = read_budget(), compiler(options.build)
    known = any(by in row for row in budget.values())
    failed = 0
    for case in names:
        bad, text = judge(case, now[case], budget.get(case, {}).get(by))
        failed += bad
        print(f'{case:16} {by:8} {"-" if now[case] is None else round(now[case]):>8}  {text}')
    if options.update and None not in now.values():
        for case in names:
            budget.setdefault(case, {})[by] = round(now[case])
        write_budget(budget)
        print(f'wrote {os.path.relpath(BUDGET, ROOT)}')
        return 0
    if not known:
        print(f'budget: {os.path.relpath(BUDGET, ROOT)} has no column for {by}: counted, and compared with nothing '
              '(--update makes the column)')
    return 1 if failed else 0 if known else 77


if __name__ == '__main__':
    sys.exit(main())
