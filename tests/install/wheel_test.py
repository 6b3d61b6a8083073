#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wheel and source distribution of the Python package: built, installed into environments of their own, used there.

Usage: wheel_test.py STAGED_FOLDER [--keep FOLDER]

STAGED_FOLDER is build/<preset>/python. LIBTERN_PATH names the library. --keep: what was built goes there. Run by the Python
that has cffi and numpy. Exit status 77: without the modules build, setuptools, wheel or venv, with the reason.
"""
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def run(*args, **kwargs):
    result = subprocess.run(args, capture_output=True, text=True, check=False, **kwargs)
    if result.returncode:
        sys.exit(f'{" ".join(args)}\n{result.stdout}{result.stderr}')
    return result.stdout


def build(staged, folder):
    """(wheel, source distribution), made from a copy."""
    source, out = os.path.join(folder, 'source'), os.path.join(folder, 'dist')
    shutil.copytree(staged, source, ignore=shutil.ignore_patterns('CMakeFiles', 'build', 'dist', '*.egg-info', '__pycache__'))
    run(sys.executable, '-m', 'build', '--no-isolation', '--outdir', out, source)
    return glob.glob(f'{out}/*.whl')[0], glob.glob(f'{out}/*.tar.gz')[0]


def look_inside(wheel, staged):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {os.path.relpath(path, staged) for path in glob.glob(f'{staged}/tern/**/*.py', recursive=True)}
    assert modules <= names, f'missing: {modules - names}'
    assert wheel.endswith('-py3-none-any.whl'), wheel
    assert not [name for name in names if name.endswith(('.so', '.c', '.h'))], names


def use(package, folder, *options):
    """In an environment of its own, which sees cffi and numpy of the system, without an index and a compiler."""
    place = os.path.join(folder, 'environment')
    run(sys.executable, '-m', 'venv', '--system-site-packages', place)
    python = os.path.join(place, 'bin/python3')
    env = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    env.update(CC='/bin/false', PIP_NO_INDEX='1', PIP_DISABLE_PIP_VERSION_CHECK='1')
    run(python, '-m', 'pip', 'install', '--quiet', *options, package, env=env)
    where = run(python, '-c', 'import tern; print(tern.__file__)', cwd=folder, env=env)
    assert os.path.realpath(where.strip()).startswith(os.path.realpath(place)), where
    said = run(python, os.path.join(HERE, 'consumer/transfer.py'), cwd=folder, env=env)
    assert said.startswith('transferred with '), said
    shutil.rmtree(place)


def main():
    staged = sys.argv[1]
    missing = [name for name in ('build', 'setuptools', 'wheel', 'venv', 'ensurepip', 'pip') if not importlib.util.find_spec(name)]
    if missing:
        print(f'skipped: {sys.executable} lacks {", ".join(missing)} (apt-get install python3-build python3-venv)')
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix='tern-test-wheel-')
    try:
        wheel, source = build(staged, folder)
        look_inside(wheel, staged)
        use(wheel, folder)
        use(source, folder, '--no-build-isolation')
        if '--keep' in sys.argv:
            kept = sys.argv[sys.argv.index('--keep') + 1]
            os.makedirs(kept, exist_ok=True)
            for path in (wheel, source):
                shutil.copy(path, kept)
                print(os.path.join(kept, os.path.basename(path)))
    finally:
        shutil.rmtree(folder)


if __name__ == '__main__':
    main()
