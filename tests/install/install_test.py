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

PROGRAM = '''
#include <stdio.h>
#include <string.h>
#include <tern/ctx.h>
#include <tern/mem.h>
int main(void)
{
	tern_provider_info info;
	puts(tern_version());
	/* the composition is whole: providers register, statuses have names */
	if (strcmp(tern_version(), TERN_VERSION_STRING) || tern_provider_probe(0, &info) != TERN_OK)
		return 1;
	return strcmp(tern_status_name(TERN_E_BOUNDS), "TERN_E_BOUNDS") != 0;
}
'''
PROJECT = '''
cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES C)
find_package(tern 0.1 REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE tern::tern)
'''


def run(*args, **kwargs):
    result = subprocess.run(args, capture_output=True, text=True, check=False, **kwargs)
    if result.returncode:
        sys.exit(f'{" ".join(args)}\n{result.stdout}{result.stderr}')
    return result.stdout


def main():
    build, cmake, cc = sys.argv[1:]
    folder = tempfile.mkdtemp(prefix='tern-test-install-')
    try:
        prefix = os.path.join(folder, 'prefix')
        run(cmake, '--install', build, '--prefix', prefix)
        pc = glob.glob(os.path.join(prefix, 'lib*/**/tern.pc'), recursive=True)[0]
        libdir = os.path.dirname(os.path.dirname(pc))
        soname = os.path.join(libdir, 'libtern.so.1')
        assert os.path.islink(soname), f'{soname} is missing'
        leaked = [h for h in glob.glob(os.path.join(prefix, 'include/**/*'), recursive=True)
                  if os.path.isfile(h) and os.path.dirname(h) != os.path.join(prefix, 'include/tern')]
        assert not leaked, leaked
        package = os.path.join(prefix, 'lib/python3/dist-packages/tern')
        for name in ('_headers.py', '_site/sitecustomize.py', 'torch/distributed.py'):
            assert os.path.isfile(os.path.join(package, name)), f'{name} of the Python package is missing'
        said = run(os.path.join(prefix, 'bin/tern'), 'run', '--nproc', '1', 'printenv', 'PYTHONPATH',
                   env=dict(os.environ, LD_LIBRARY_PATH=libdir))
        assert os.path.realpath(said.split(':')[0]) == os.path.realpath(f'{package}/_site'), said
        suite = os.path.join(prefix, 'libexec/tern/tern-conformance')
        assert 'write_sizes' in run(suite, '--list').split(), f'{suite} lists no cases'
        with open(os.path.join(folder, 'program.c'), 'w', encoding='utf-8') as f:
            f.write(PROGRAM)
        env = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(pc), LD_LIBRARY_PATH=libdir)
        # the file names the prefix of configuring; this one lies elsewhere
        flags = run('pkg-config', f'--define-variable=prefix={prefix}', '--cflags', '--libs', 'tern', env=env).split()
        run(cc, '-o', 'by-pkg-config', 'program.c', *flags, cwd=folder, env=env)
        version = run('./by-pkg-config', cwd=folder, env=env)
        with open(os.path.join(folder, 'CMakeLists.txt'), 'w', encoding='utf-8') as f:
            f.write(PROJECT)
        run(cmake, '-S', folder, '-B', os.path.join(folder, 'b'), f'-DCMAKE_PREFIX_PATH={prefix}',
            f'-DCMAKE_C_COMPILER={cc}')
        run(cmake, '--build', os.path.join(folder, 'b'))
        assert run('./b/program', cwd=folder) == version
    finally:
        shutil.rmtree(folder)


if __name__ == '__main__':
    main()
