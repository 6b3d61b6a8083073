#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the package under a memory checker: no invalid access, no leak that comes from the binding or the library.

Usage: memory_test.py valgrind|asan TEST...     (TEST: misuse, table, ...; asan: LIBTERN_PATH was built with it)

CPython and numpy keep what they like until the end: a leak counts if libtern or cffi is among those who asked for the
memory. Anything else that the checker says counts. Exit status 77: there is no such checker here, with the reason.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = re.compile(r'libtern|_cffi_backend')
# Names of dicts and modules are interned, and CPython 3.13 never gives those back.
NAMES = re.compile(r'malloc .*\n( *\? \(: \S*/python3[.\d]*\)\n)*'
                   r' *(PyModule_Add\w+|PyDict_SetItemString) ')
# The interpreter lets go of the libraries at its end, and the checker reports after it: whose code it was must still be known.
START = """import ctypes, glob, os, runpy, sys
for path in glob.glob(os.path.join(os.path.dirname(os.environ['LIBTERN_PATH']), 'libtern*.so')):
    ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_NODELETE)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.getcwd())
runpy.run_path(sys.argv[0], run_name='__main__')
"""
# Receive slots are touched by the checker, all of them; and spinning helps nobody there.
SMALL = {'TERN_TCP_RECV_SLOTS': '256', 'TERN_CTX_SPIN_NS': '0', 'PYTHONMALLOC': 'malloc', 'OPENBLAS_NUM_THREADS': '1'}


def skip(reason):
    print(f'skipped: {reason}')
    sys.exit(77)


def run(command, **env):
    done = subprocess.run(command, env=dict(os.environ, **SMALL, **env), cwd=HERE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f'{" ".join(command)}: status {done.returncode}\n{done.stdout}')


def valgrind(command, folder):
    """[(kind, who is in it, words)]"""
    if not shutil.which('valgrind'):
        skip('there is no valgrind (apt-get install valgrind)')
    run(['valgrind', '--quiet', '--leak-check=full', '--show-leak-kinds=definite', '--error-limit=no', '--num-callers=30',
         '--fair-sched=try', '--xml=yes', f'--xml-file={folder}/log.%p', *command])
    for path in glob.glob(f'{folder}/log.*'):
        with open(path, encoding='utf-8') as file:
            text = file.read()
        # a child that was killed didn't come to the end
        text = text if '</valgrindoutput>' in text else text + '</valgrindoutput>'
        for error in xml.etree.ElementTree.fromstring(text).iter('error'):
            frames = [f'{frame.findtext("fn", "?")} ({frame.findtext("file", "")}:{frame.findtext("line", "")} '
                      f'{frame.findtext("obj", "")})' for frame in error.iter('frame')]
            what = error.findtext('what') or error.findtext('xwhat/text')
            yield error.findtext('kind').startswith('Leak_'), '\n    '.join([what, *frames])


def asan(command, folder):
    """The same. A program that the test starts has the checker as well."""
    compiler = os.environ.get('CC', 'cc')
    runtimes = [subprocess.run([compiler, f'-print-file-name={name}.so'], capture_output=True, text=True,
                               check=True).stdout.strip() for name in ('libasan', 'libubsan')]
    if not all(os.path.isabs(path) for path in runtimes):
        skip(f'{compiler} has no runtime of the address sanitizer')
    run(command, LD_PRELOAD=' '.join(runtimes), UBSAN_OPTIONS='print_stacktrace=1:halt_on_error=1',
        ASAN_OPTIONS=f'detect_leaks=1:exitcode=0:log_path={folder}/log:stack_trace_format="    #%n %f %S (%m)"')
    for path in glob.glob(f'{folder}/log.*'):
        with open(path, encoding='utf-8') as file:
            text = file.read()
        leaks, _, _ = text.partition('SUMMARY:')
        for block in re.split(r'\n\n+', leaks):
            if re.match(r'(Direct|Indirect) leak', block):
                yield True, block
            elif re.search(r'ERROR: AddressSanitizer|runtime error', block):
                yield False, text


def check(name, checker):
    """(findings that count, how many others)"""
    folder = tempfile.mkdtemp(prefix='tern-test-memory-')
    try:
        found = list(checker([sys.executable, '-B', '-c', START, f'{HERE}/{name}_test.py'], folder))
    finally:
        shutil.rmtree(folder)
    bad = [words for is_leak, words in found if not is_leak or (OURS.search(words) and not NAMES.search(words))]
    return bad, len(found) - len(bad)


def main():
    checker = {'valgrind': valgrind, 'asan': asan}[sys.argv[1]]
    if not any('tern_checkpoint_open' in words for words in check('planted', checker)[0]):
        sys.exit('a leak that was planted (planted_test.py) is not found')
    for name in sys.argv[2:]:
        bad, others = check(name, checker)
        if bad:
            sys.exit(f'{name}: {len(bad)} findings\n' + '\n\n'.join(bad[:20]))
        print(f'{name}: no invalid access, no leak of tern or cffi; {others} of others', flush=True)


if __name__ == '__main__':
    main()
