#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX's own test cases of single nodes, as the package python3-onnx generates them, through `tern graph test`.

Usage: node_test.py TERN [-v] [--keep DIR]

Every case is run. One fails this test if an op that tern imports computes something else; what tern does not
import is counted and named with -v. At least AT_LEAST cases must pass: that number may only rise.
"""
import argparse
import collections
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings('ignore')

# Cases that pass, by ONNX's release: newer ones write most of theirs in opsets that tern does not import (Debian 12 has
# 1.12, Debian 13 1.17).
AT_LEAST = {(1, 12): 778, (1, 17): 468}


def at_least():
    import onnx
    release = tuple(int(part) for part in onnx.__version__.split('.')[:2])
    return max((count for known, count in AT_LEAST.items() if known == release), default=400)


# Cases that fail, each with the reason. May only shrink.
KNOWN = {}


def collect():
    import numpy
    # the generator of this release speaks to an older NumPy
    for name, kind in (('float', float), ('bool', bool), ('int', int), ('object', object)):
        if name not in numpy.__dict__:
            setattr(numpy, name, kind)
    from onnx.backend.test.case import node
    cases = list(node.collect_testcases(None) if node.collect_testcases.__code__.co_argcount
                 else node.collect_testcases())
    seen = collections.Counter()
    named = []
    for case in cases:  # some names are there twice
        seen[case.name] += 1
        named.append(case if seen[case.name] == 1 else dataclasses.replace(case, name=f'{case.name}~{seen[case.name]}'))
    return named


def write_arrays(folder, what, arrays, infos):
    import numpy
    from onnx import numpy_helper
    for i, (array, info) in enumerate(zip(arrays, infos)):
        if isinstance(array, (list, tuple, dict)) or array is None:
            continue  # sequences and optionals: such models are not imported
        with open(os.path.join(folder, f'{what}_{i}.pb'), 'wb') as file:
            if not hasattr(array, 'SerializeToString'):  # newer suites have messages where NumPy lacks the type
                array = numpy_helper.from_array(numpy.asarray(array), info.name)
            file.write(array.SerializeToString())


def write_case(root, case):
    folder = os.path.join(root, case.name)
    os.makedirs(folder)
    with open(os.path.join(folder, 'model.onnx'), 'wb') as file:
        file.write(case.model.SerializeToString())
    for i, (inputs, outputs) in enumerate(case.data_sets):
        data = os.path.join(folder, f'test_data_set_{i}')
        os.makedirs(data)
        write_arrays(data, 'input', inputs, case.model.graph.input)
        write_arrays(data, 'output', outputs, case.model.graph.output)


def run(tern, root):
    done = subprocess.run([tern, 'graph', 'test', root, '--json'], capture_output=True, text=True, check=False,
                          timeout=600, stdin=subprocess.DEVNULL)
    results = {}
    for line in done.stdout.splitlines():
        result = json.loads(line)
        results[result['case']] = (result['outcome'], result['detail'])
    if done.returncode not in (0, 1) or done.stderr:
        print(f'tern ended with {done.returncode}: {done.stderr}')
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('tern')
    parser.add_argument('-v', action='store_true', help='name every case')
    parser.add_argument('--keep', help='write the cases to this folder and leave them there')
    args = parser.parse_args()
    try:
        cases = collect()
    except ImportError as error:
        print(f'skipped: {error}')
        return 77
    with tempfile.TemporaryDirectory(prefix='tern-test-onnx-') as folder:
        root = args.keep or folder
        for case in cases:
            write_case(root, case)
        results = run(args.tern, root)
    counts = collections.Counter(results.get(case.name, ('lost', ''))[0] for case in cases)
    bad = []
    for case in sorted(cases, key=lambda c: c.name):
        outcome, detail = results.get(case.name, ('lost', 'tern said nothing about it'))
        expected = case.name in KNOWN
        if outcome in ('failed', 'lost') and not expected:
            bad.append(f'{case.name}: {detail}')
        if expected and outcome == 'passed':
            bad.append(f'{case.name}: passes: take it off the list of known failures')
        if args.v:
            print(f'{outcome:11} {case.name}{": " + detail if detail else ""}')
    print(f'{len(cases)} cases: {counts["passed"]} passed, {counts["failed"]} failed, '
          f'{counts["unsupported"]} with ops, types or modes that tern does not import, {counts["lost"]} lost')
    if not args.v:
        print('passed: ' + ' '.join(name.removeprefix('test_') for name, (outcome, _) in sorted(results.items())
                                    if outcome == 'passed'))
    for line in bad:
        print(f'FAILED {line}')
    if counts['passed'] < at_least():
        print(f'FAILED only {counts["passed"]} cases pass; {at_least()} did before')
        return 1
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
