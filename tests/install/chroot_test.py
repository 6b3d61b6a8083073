#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: built on a fresh Debian, installed on another that has nothing of it, used there, removed again.

Usage: chroot_test.py [--here | --built] [--twice] [--lintian] [--tutorials] [--wheels FOLDER] [SUITE...]  (bookworm, trixie)

--here: built on this machine, for its own release (what CI does: a minute or two less).
--built: those that the last run left are used.
--twice: built again elsewhere, and compared byte by byte.
--tutorials: the commands of docs/tutorials and the examples, as written, with the installed packages.
--lintian: nothing that it could say up to "info" is left unsaid (debian/*.lintian-overrides).
--wheels: wheel and source distribution from there are used as well, without a compiler.

Exit status 77: chroots are impossible here (no root, no debootstrap, no network), with the reason.
"""
import argparse
import filecmp
import glob
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# What strangers' machines have: a Python; a compiler, and the data set of `tern train`.
PYTHON = 'python3-venv python3-cffi python3-numpy python3-setuptools python3-wheel'
STRANGER = 'gcc libc6-dev cmake make pkg-config dataset-fashion-mnist'
# And who follows the tutorials.
READER = f'{STRANGER} python3-torch python3-cffi python3-numpy iproute2'


def run(*args):
    """Output goes through; 77 is passed on."""
    status = subprocess.run(args, cwd=ROOT, check=False).returncode
    if status:
        sys.stdout.flush()
        sys.exit(77 if status == 77 else f'chroot_test: {" ".join(args)}: status {status}')


def chroot(suite, packages, *command, folder, binds=()):
    seen = [word for bind in (f'{folder}:/packages', f'{HERE}:/install', *binds) for word in ('--bind', bind)]
    run('tools/chroot', '--with', packages, *seen, suite, *command)


def build(suite, folder, here=False):
    print(f'== {suite}: building the packages', flush=True)
    run('tools/package', *(() if here else ('--in', suite)), folder)
    found = {os.path.basename(path).split('_')[0] for path in glob.glob(f'{folder}/*.deb')}
    wanted = {'libtern1', 'libtern-graph1', 'libtern-http1', 'libtern-dev', 'tern', 'python3-tern'}
    if not wanted <= found:
        sys.exit(f'chroot_test: no package {wanted - found}')


def same_again(suite, folder):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder), prefix='again-') as other:
        build(suite, other)
        differ = [path for path in sorted(glob.glob(f'{folder}/*.deb'))
                  if not filecmp.cmp(path, os.path.join(other, os.path.basename(path)), shallow=False)]
    if differ:
        sys.exit(f'chroot_test: built twice, and not the same: {differ}')
    print(f'== {suite}: built twice, the same bytes', flush=True)


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__.split('\n\n')[1][7:])
    parser.add_argument('suites', nargs='*')
    parser.add_argument('--here', action='store_true')
    for name in ('built', 'twice', 'lintian', 'tutorials'):
        parser.add_argument(f'--{name}', action='store_true')
    parser.add_argument('--wheels')
    args = parser.parse_args()
    if args.here:
        with open('/etc/os-release', encoding='utf-8') as file:
            args.suites = re.findall(r'^VERSION_CODENAME=(\w+)$', file.read(), re.M)
    if not args.suites:
        parser.error('which release?')
    return args


def lint(suite, folder):
    print(f'== {suite}: lintian', flush=True)
    chroot(suite, 'lintian', 'sh', '-c', 'lintian --allow-root -I --fail-on error,warning,info '
           '--tag-display-limit 0 --info /packages/*.changes', folder=folder)


def follow_tutorials(suite, folder):
    print(f'== {suite}: tutorials and examples', flush=True)
    chroot(suite, READER, '/install/use_tutorials', '/packages', '/source', folder=folder,
           binds=[f'{ROOT}/{part}:/source/{part}' for part in ('docs', 'examples', 'tests/docs')])


def use_wheels(suite, folder, wheels):
    print(f'== {suite}: the wheel', flush=True)
    chroot(suite, PYTHON, '/install/use_wheel', '/packages', '/wheels', '/install/consumer', folder=folder,
           binds=[f'{os.path.realpath(wheels)}:/wheels'])


def main():
    args = arguments()
    for suite in args.suites:
        folder = os.path.join(ROOT, 'build/packages', suite)
        run('tools/chroot', '--prepare', suite)
        if not args.built:
            build(suite, folder, args.here)
        if args.twice:
            same_again(suite, folder)
        if args.lintian:
            lint(suite, folder)
        print(f'== {suite}: installing and using them', flush=True)
        chroot(suite, STRANGER, '/install/use_packages', '/packages', '/install/consumer', folder=folder)
        if args.tutorials:
            follow_tutorials(suite, folder)
        if args.wheels:
            use_wheels(suite, folder, args.wheels)


if __name__ == '__main__':
    main()
