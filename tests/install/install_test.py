#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a build into a temporary folder and uses it as a stranger would.

Usage: install_test.py BUILD_FOLDER CMAKE CC
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def run(*args, **kwargs):
    result = subprocess.run(args, capture_output=True, text=True, check=False, **kwargs)
    if result.returncode:
        sys.exit(f'{" ".join(args)}\n{result.stdout}{result.stderr}')
    return result.stdout


def look_around(prefix, libdir):
    assert os.path.islink(os.path.join(libdir, 'libtern.so.1')), 'libtern.so.1 is missing'
    leaked = [h for h in glob.glob(os.path.join(prefix, 'include/**/*'), recursive=True)
              if os.path.isfile(h) and os.path.dirname(h) != os.path.join(prefix, 'include/tern')]
    assert not leaked, leaked
    for page in ('man1/tern.1', 'man1/tern-train.1', 'man3/tern_put.3'):
        assert os.path.isfile(os.path.join(prefix, 'share/man', page)), f'{page} is missing'
    package = os.path.join(prefix, 'lib/python3/dist-packages/tern')
    for name in ('_headers.py', '_site/sitecustomize.py', 'torch/distributed.py'):
        assert os.path.isfile(os.path.join(package, name)), f'{name} of the Python package is missing'
    said = run(os.path.join(prefix, 'bin/tern'), 'run', '--nproc', '1', 'printenv', 'PYTHONPATH',
               env=dict(os.environ, LD_LIBRARY_PATH=libdir))
    assert os.path.realpath(said.split(':')[0]) == os.path.realpath(f'{package}/_site'), said
    suite = os.path.join(prefix, 'libexec/tern/tern-conformance')
    assert 'write_sizes' in run(suite, '--list').split(), f'{suite} lists no cases'


def by_pkg_config(folder, prefix, libdir, cc):
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(libdir, 'pkgconfig'), LD_LIBRARY_PATH=libdir)
    for program, packages in (('transfer', ['tern']), ('parts', ['tern-graph', 'tern-http'])):
        if not all(os.path.exists(os.path.join(libdir, 'pkgconfig', f'{p}.pc')) for p in packages):
            continue
        # the file names the prefix of configuring; this one lies elsewhere
        flags = run('pkg-config', f'--define-variable=prefix={prefix}', '--cflags', '--libs', *packages, env=env).split()
        run(cc, '-o', program, os.path.join(HERE, 'consumer', f'{program}.c'), *flags, cwd=folder, env=env)
        said = run(f'./{program}', cwd=folder, env=env)
        assert 'transferred over shm' in said or '235146 parameters' in said, said


def by_cmake(folder, prefix, cmake, cc):
    build = os.path.join(folder, 'b')
    run(cmake, '-S', os.path.join(HERE, 'consumer'), '-B', build, f'-DCMAKE_PREFIX_PATH={prefix}',
        f'-DCMAKE_C_COMPILER={cc}')
    run(cmake, '--build', build)
    assert 'transferred over tcp' in run('./b/transfer', 'tcp', cwd=folder)


def main():
    build, cmake, cc = sys.argv[1:]
    folder = tempfile.mkdtemp(prefix='tern-test-install-')
    try:
        prefix = os.path.join(folder, 'prefix')
        run(cmake, '--install', build, '--prefix', prefix)
        pc = glob.glob(os.path.join(prefix, 'lib*/**/tern.pc'), recursive=True)[0]
        libdir = os.path.dirname(os.path.dirname(pc))
        look_around(prefix, libdir)
        by_pkg_config(folder, prefix, libdir, cc)
        by_cmake(folder, prefix, cmake, cc)
    finally:
        shutil.rmtree(folder)


if __name__ == '__main__':
    main()
