#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what docs/tutorials say, as it stands, against an installed build.

Usage: tutorial_test.py BUILD_FOLDER CMAKE NAME     (NAME of docs/tutorials/NAME.md, or "examples")
       tutorial_test.py --installed [NAME]          with what the system has, as tests/install/chroot_test.py does

    ```c NAME, ```python NAME    a file; the same as examples/NAME
    ```sh                        commands; all of a tutorial run in one shell
    ```sh on ADDRESS             in a network of that host, made for the test
    ```text                      what the commands before it print, in that order; "..." stands for anything
"""
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FENCE = re.compile(r'^```(\w+)(?: ([^\n]+))?\n(.*?)^```$', re.M | re.S)
MARK = '=== block'
INSIDE = 'TERN_TEST_INSIDE'


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def write(path, text):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def install(build, cmake, folder):
    """The environment of a user who has tern installed."""
    prefix = os.path.join(folder, 'prefix')
    done = subprocess.run([cmake, '--install', build, '--prefix', prefix], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    pc = glob.glob(os.path.join(prefix, 'lib*/**/tern.pc'), recursive=True)[0]
    libraries = os.path.dirname(os.path.dirname(pc))
    tools = os.path.join(folder, 'tools')
    os.makedirs(tools)
    # the file names the prefix of configuring; this one lies elsewhere
    write(os.path.join(tools, 'pkg-config'), f'#!/bin/sh\nexec {shutil.which("pkg-config")} --define-variable=prefix={prefix} "$@"\n')
    python = '/usr/bin/python3' if os.path.exists('/usr/bin/python3') else sys.executable
    write(os.path.join(tools, 'python3'), f'#!/bin/sh\nexec {python} -B "$@"\n')
    for name in ('pkg-config', 'python3'):
        os.chmod(os.path.join(tools, name), 0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith('TERN_')}
    return dict(clean, PATH=f'{tools}:{prefix}/bin:/usr/sbin:/sbin:{os.environ["PATH"]}', PKG_CONFIG_PATH=os.path.dirname(pc),
                LD_LIBRARY_PATH=libraries, PYTHONPATH=os.path.join(prefix, 'lib/python3/dist-packages'))


def installed():
    """The environment of somebody who has the packages."""
    return {key: value for key, value in os.environ.items() if not key.startswith('TERN_')}


class Hosts:
    """Two hosts, each a network namespace of its own with a cable between them; they end with this process."""

    def __init__(self, addresses):
        self.processes, self.enter = [], {}
        for address in addresses:
            process = subprocess.Popen(['unshare', '--net', 'sh', '-c', 'echo there; read line'], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
            process.stdout.readline()
            self.processes.append(process)
            self.enter[address] = ['nsenter', '--net', f'--target={process.pid}']
        first, second = (process.pid for process in self.processes)
        self.ip(addresses[0], 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', str(second))
        del first
        for address in addresses:
            self.ip(address, 'link', 'set', 'lo', 'up')
            self.ip(address, 'addr', 'add', f'{address}/24', 'dev', 'eth0')
            self.ip(address, 'link', 'set', 'eth0', 'up')

    def ip(self, address, *args):
        subprocess.run([*self.enter[address], 'ip', *args], check=True)

    def end(self):
        for process in self.processes:
            process.communicate()


def enter_networks():
    """Root of a user namespace, where networks may be made."""
    if os.environ.get(INSIDE):
        return
    probe = subprocess.run(['unshare', '--user', '--map-root-user', '--net', 'true'], capture_output=True, text=True, check=False)
    if probe.returncode or not shutil.which('nsenter'):
        print(f'skipped: no networks of one\'s own here ({probe.stderr.strip()})')
        sys.exit(77)
    os.execve(shutil.which('unshare'), ['unshare', '--user', '--map-root-user', '--net', sys.executable, '-B', *sys.argv],
              dict(os.environ, **{INSIDE: '1'}))


def run(script, where, folder, env):
    """One shell: (it, its output). What it left in the background is still there: kill_group(it)."""
    log = os.path.join(folder, '.log')
    with open(log, 'w', encoding='utf-8') as out:  # no pipe: who stays in the background would hold it
        process = subprocess.Popen([*where, 'bash', '-euo', 'pipefail', '-c', script], cwd=folder, env=env, stdout=out,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(timeout=400)
        except subprocess.TimeoutExpired:
            kill_group(process)
            sys.exit(f'it hangs:\n{script}\n---\n{read(log)}')
    if process.returncode:
        kill_group(process)
        sys.exit(f'status {process.returncode} of\n{script}\n---\n{read(log)}')
    return process, read(log)


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def expect(out, text, script):
    """Each line of text in the output, in order."""
    lines, at = out.splitlines(), 0
    for wanted in text.strip().splitlines():
        pattern = re.compile('.*'.join(re.escape(part) for part in wanted.split('...')))
        while at < len(lines) and not pattern.fullmatch(lines[at]):
            at += 1
        if at == len(lines):
            sys.exit(f'after\n{script}\nthere is no line\n  {wanted}\nin its place in\n{out}')
        at += 1


def blocks_of(name):
    """[(kind, words, text)]"""
    found = [(kind, words, body) for kind, words, body in FENCE.findall(read(os.path.join(ROOT, f'docs/tutorials/{name}.md')))]
    assert any(kind == 'sh' for kind, _, _ in found), f'{name} has no commands'
    return found


def tutorial(name, folder, env):
    blocks = blocks_of(name)
    addresses = sorted({words[3:] for kind, words, _ in blocks if kind == 'sh' and words.startswith('on ')})
    hosts = Hosts(addresses) if addresses else None
    scripts, shells = [], []  # of the shell that all blocks without a host share: (script, expected)
    for kind, words, body in blocks:
        if kind in ('c', 'python'):
            if body != read(os.path.join(ROOT, 'examples', words)):
                sys.exit(f'{words} in {name}.md is not examples/{words}')
            write(os.path.join(folder, words), body)
        elif kind == 'sh' and hosts:
            where = hosts.enter[words[3:]] if words else []
            process, out = run(body, where, folder, env)
            shells.append(process)
            scripts.append((body, out))
        elif kind == 'sh':
            scripts.append([body, None])
        elif kind == 'text' and hosts:
            expect(scripts[-1][1], body, scripts[-1][0])
        elif kind == 'text':
            scripts[-1][1] = body
    if hosts:
        for process in shells:
            kill_group(process)
        hosts.end()
        return
    script = ''.join(f'echo "{MARK} {i}"\n{body}\n' for i, (body, _) in enumerate(scripts))
    process, out = run(script, [], folder, env)
    kill_group(process)
    parts = re.split(f'^{MARK} \\d+\n', out, flags=re.M)[1:]
    for (body, wanted), part in zip(scripts, parts):
        expect(part, wanted or '', body)


def examples(folder, env):
    """Those that no tutorial runs; and every example is run by something."""
    shown = {words for path in glob.glob(os.path.join(ROOT, 'docs/tutorials/*.md'))
             for kind, words, _ in FENCE.findall(read(path)) if kind in ('c', 'python')}
    every = {name for name in os.listdir(os.path.join(ROOT, 'examples')) if not name.startswith('.')}
    assert every - shown == {'all_reduce.c'}, every - shown
    shutil.copy(os.path.join(ROOT, 'examples/all_reduce.c'), folder)
    script = '''
cc -O2 -Wall -Wextra -Werror -o all_reduce all_reduce.c $(pkg-config --cflags --libs tern)
port=$((20000 + $$ % 10000))
ranks=127.0.0.1:$port,127.0.0.1:$((port + 1)),127.0.0.1:$((port + 2))
./all_reduce $ranks 2 & two=$!
./all_reduce $ranks 1 & one=$!
./all_reduce $ranks 0
wait $two
wait $one
'''
    process, out = run(script, [], folder, env)
    kill_group(process)
    assert sorted(out.splitlines()) == [f'rank {r} of 3: every element is 6' for r in range(3)], out


def one(name, environment):
    """environment(folder): that of a user."""
    folder = tempfile.mkdtemp(prefix='tern-test-tutorial-')
    try:
        env = environment(folder)
        work = os.path.join(folder, 'work')
        os.makedirs(work)
        if name == 'examples':
            examples(work, env)
        else:
            tutorial(name, work, env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    if sys.argv[1:] == ['--installed']:
        names = [os.path.basename(path)[:-3] for path in glob.glob(os.path.join(ROOT, 'docs/tutorials/*.md'))]
        for name in ['examples', *sorted(name for name in names if name != 'README')]:
            print(f'{name}: ', end='', flush=True)
            status = subprocess.run([sys.executable, '-B', *sys.argv, name], check=False).returncode
            if status:
                sys.exit(f'{name}: status {status}')
        return
    place, name = sys.argv[1:-1], sys.argv[-1]
    if name != 'examples' and any(words.startswith('on ') for kind, words, _ in blocks_of(name) if kind == 'sh'):
        enter_networks()
    one(name, lambda folder: installed() if place == ['--installed'] else install(*place, folder))
    print('ok')


if __name__ == '__main__':
    main()
