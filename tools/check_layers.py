#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the tree to its layers: who may include whom, and which calls belong behind which door.

Usage: tools/check_layers.py [ROOT]     prints "file:line: what is wrong", exits 1 if anything is.

The rules are the tables below; the linker holds the order as well (one library target per layer), and this
check sees what the linker can't: headers, system calls, and rules inside a layer.
Tests: tests/tools/test_check_layers.py plants a violation of each rule.
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import csource  # noqa: E402

# Whose headers a layer may include beside its own.
ALLOWED = {
    'base': set(),
    'mem': {'base'},
    'transport': {'base', 'mem'},
    'link': {'base'},
    'channel': {'base', 'mem', 'transport', 'link'},
    'rpc': {'base', 'mem', 'channel'},
    'tensor': {'base', 'mem', 'channel', 'rpc'},
    'coll': {'base', 'mem', 'channel', 'rpc', 'tensor'},
    'cluster': {'base', 'mem', 'channel', 'rpc', 'tensor'},
    'store': {'base', 'mem', 'channel', 'rpc', 'tensor'},
    'ps': {'base', 'mem', 'channel', 'rpc', 'tensor', 'coll', 'cluster', 'store'},
    'graph': {'base', 'mem', 'channel', 'rpc', 'tensor', 'coll', 'cluster', 'store'},
    'runtime': {'base', 'mem', 'transport', 'link', 'channel', 'rpc', 'tensor', 'coll', 'cluster', 'store', 'ps',
                'graph'},
    'http': {'base', 'mem', 'channel'},
}

# link is sans-IO: base headers and system headers that it may see.
LINK_BASE = {'check.h', 'counters.h', 'crc32c.h', 'crypto.h', 'fail.h', 'fault.h', 'hist.h', 'limits.h', 'list.h',
             'log.h', 'map.h', 'mutant.h', 'rand.h', 'ring.h', 'slots.h', 'time.h', 'timer.h', 'wirebuf.h'}
LINK_SYSTEM = {'inttypes.h', 'limits.h', 'stdarg.h', 'stdbool.h', 'stddef.h', 'stdint.h', 'stdio.h', 'stdlib.h',
               'string.h'}
LINK_PUBLIC = {'tern/status.h', 'tern/types.h', 'tern/channel.h'}
# Functions of link that may allocate or free: the ends of an object's life.
LINK_ALLOC = re.compile(r'_(init|create|fini|destroy|free)$')

# System headers of include/tern: what C17 and C++17 share.
PUBLIC_SYSTEM = {'stddef.h', 'stdint.h', 'stdbool.h'}

# The simulator: its clock and network stand on base; the rest of it may see every layer, but no device's.
SIM_LOW = re.compile(r'^sim/(event|net\w*|alloc)\.[ch]$')
SIM_DOORS = ('OS time is read',)

# The tensor layer uses rpc for set-up only.
TENSOR_SETUP = re.compile(r'^(setup|state|publish)\w*\.[ch]$')

# (what, pattern of a call, files that may, where it holds)
DOORS = [
    ('the environment is read by base/options.c alone', r'\b(getenv|secure_getenv|setenv|putenv|environ)\b',
     r'^src/base/options\.c$'),
    ('OS time is read by base/clock.c alone',
     r'\b(clock_gettime|clock_nanosleep|gettimeofday|nanosleep|usleep|timespec_get|sleep|time|clock)\s*\(',
     r'^src/base/clock\.c$'),
    ("mappings are made by mem's OS file and shm's segment file alone",
     r'\b(mmap|mmap64|munmap|mremap|memfd_create|shm_open|shmget|shmat)\s*\(',
     r'^src/(mem/os\w*|transport/shm/(segment|map)\w*)\.c$'),
    ('the library never ends the process: errors are values',
     r'\b(abort|exit|_exit|_Exit|quick_exit|assert|err|errx)\s*\(', r'^$'),
    ('only base/check.c traps', r'\b(__builtin_trap)\s*\(', r'^src/base/check\.c$'),
    ('libcrypto is called by base/crypto.c alone', r'(#)\s*include\s*<openssl/', r'^src/base/crypto\.c$'),
    ('verbs headers belong to the verbs provider', r'(#)\s*include\s*<infiniband/', r'^src/transport/verbs/'),
    ('oneDNN belongs to the graph layer', r'#\s*include\s*<(oneapi/)?dnnl', r'^src/graph/'),
]
MEMBER_BEFORE = re.compile(r'(\.|->)\s*$')


class Checker:
    def __init__(self, root):
        self.root = root
        self.problems = []

    def bad(self, path, line, text):
        self.problems.append(f'{path}:{line}: {text}')

    def files(self, top):
        for folder, dirs, names in os.walk(os.path.join(self.root, top)):
            dirs[:] = sorted(d for d in dirs if not d.startswith('.') and d != '__pycache__')
            for name in sorted(names):
                if name.endswith(('.c', '.h', '.cc', '.cpp', '.hpp')):
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    def read(self, path):
        with open(os.path.join(self.root, path), encoding='utf-8', errors='replace') as f:
            return f.read()

    def target(self, path, name):
        """The path in the tree that a quoted include means; includes are relative to src/ or to the file."""
        near = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if os.path.exists(os.path.join(self.root, near)):
            return near
        return os.path.normpath(os.path.join('src', name))

    def check_public(self, path):
        for line, kind, name in csource.includes(self.read(path)):
            if kind == 'quote':
                self.bad(path, line, f'a public header includes "{name}": use <tern/...>')
            elif not name.startswith('tern/') and name not in PUBLIC_SYSTEM:
                self.bad(path, line, f'a public header includes <{name}>')

    def check_outside(self, path):
        """cli, python, end-to-end benches: only <tern/...> and their own files."""
        own = path.split('/')[0]
        for line, kind, name in csource.includes(self.read(path)):
            if kind == 'angle':
                if name.startswith('infiniband/'):
                    self.bad(path, line, f'<{name}>: verbs headers belong to the verbs provider')
                continue
            near = os.path.normpath(os.path.join(os.path.dirname(path), name))
            top = os.path.normpath(os.path.join(own, name))
            if near.startswith('src/') or not (near.startswith(own + '/') and self.exists(near) or self.exists(top)):
                self.bad(path, line, f'"{name}": {own} may include only <tern/...> and its own files')

    def check_sim(self, path):
        text = self.read(path)
        for line, kind, name in csource.includes(text):
            near = self.target(path, name)
            target = near if self.exists(near) else os.path.normpath(name)
            parts = target.split('/')
            if kind == 'angle':
                continue
            if not (parts[0] == 'sim' or parts[0] == 'src' and parts[1] in ALLOWED) or not self.exists(target):
                self.bad(path, line, f'"{name}": sim may include layers and its own files')
            elif SIM_LOW.match(path) and not (SIM_LOW.match(target) or target.startswith('src/base/')):
                self.bad(path, line, f'"{name}": the clock and the network of sim stand on base alone')
            elif target.startswith('src/transport/') and len(parts) > 3:
                self.bad(path, line, f'"{name}" is private to the provider {parts[2]}')
        self.check_doors(path, text, SIM_DOORS)

    def exists(self, path):
        return os.path.exists(os.path.join(self.root, path))

    def check_source(self, path):
        parts = path.split('/')
        layer = parts[1] if len(parts) > 2 else None
        if layer not in ALLOWED:
            self.bad(path, 1, f"'{parts[1]}' is no layer (tools/check_layers.py lists them)")
            return
        text = self.read(path)
        for line, kind, name in csource.includes(text):
            if kind == 'angle':
                self.check_system(path, layer, line, name)
            else:
                self.check_quoted(path, layer, line, self.target(path, name))
        self.check_doors(path, text)
        if layer == 'link':
            self.check_link(path, text)

    def check_system(self, path, layer, line, name):
        if layer == 'link' and name not in LINK_SYSTEM and name not in LINK_PUBLIC:
            self.bad(path, line, f'link is sans-IO: <{name}> is not for it')
        if layer == 'tensor' and name == 'tern/rpc.h':
            self.check_tensor_rpc(path, line)
        if layer == 'graph' and re.match(r'tern/ps\w*\.h$', name):
            self.bad(path, line, f'graph may not use ps (<{name}>): it has store.h, which the runtime binds')
        if layer == 'ps' and name in ('tern/graph.h', 'tern/session.h'):
            self.bad(path, line, f'ps may not use graph (<{name}>)')

    def check_tensor_rpc(self, path, line):
        if not TENSOR_SETUP.match(os.path.basename(path)):
            self.bad(path, line, 'the tensor data path may not use rpc: only its set-up (setup*.c, state.c) may')

    def check_quoted(self, path, layer, line, target):
        parts = target.split('/')
        if parts[0] != 'src' or len(parts) < 3:
            self.bad(path, line, f'"{target}" lies outside of src')
            return
        other = parts[1]
        if other != layer and other not in ALLOWED[layer]:
            self.bad(path, line, f'{layer} may not use {other} ("{target}")')
        if layer == 'link' and other == 'base' and parts[2] not in LINK_BASE:
            self.bad(path, line, f'link is sans-IO: base/{parts[2]} is not for it')
        if layer == 'tensor' and other == 'rpc':
            self.check_tensor_rpc(path, line)
        if other == 'transport' and len(parts) > 3:
            mine = path.split('/')
            if layer != 'transport':
                self.bad(path, line, f'"{target}" is private to the provider {parts[2]}')
            elif len(mine) < 4:
                self.bad(path, line, f'"{target}": the registry knows providers by name alone')
            elif mine[2] != parts[2]:
                self.bad(path, line, f'the provider {mine[2]} may not use the provider {parts[2]}')

    def check_doors(self, path, text, which=None):
        clean = csource.blank(text)
        own = {name for name, _, _ in csource.functions(text)}  # a provider's shm_open is not libc's
        for why, pattern, allowed in DOORS:
            if re.match(allowed, path) or which and not why.startswith(which):
                continue
            for m in re.finditer(pattern, clean if '#' not in pattern else csource.blank_comments(text)):
                if MEMBER_BEFORE.search(clean[max(0, m.start() - 16):m.start()]) or m.group(1) in own:
                    continue
                self.bad(path, csource.line_of(clean, m.start()), f'{m.group(0).strip(" (")}: {why}')

    def check_link(self, path, text):
        clean = csource.blank(text)
        funcs = csource.functions(text)
        for m in re.finditer(r'\b(malloc|calloc|realloc|aligned_alloc|strdup|free)\s*\(', clean):
            line = csource.line_of(clean, m.start())
            name = csource.function_at(funcs, line)
            if not name or not LINK_ALLOC.search(name):
                self.bad(path, line, f'{m.group(1)} in {name}: link allocates in *_init, *_create alone')

    def run(self):
        for path in self.files('include'):
            self.check_public(path)
        for path in self.files('src'):
            self.check_source(path)
        for path in self.files('sim'):
            self.check_sim(path)
        for top in ('cli', 'python', 'bench'):
            for path in self.files(top):
                if not path.startswith(('bench/graph/', 'bench/micro/', 'bench/ps/', 'bench/peers/table.c')):
                    self.check_outside(path)
        return self.problems


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
    problems = Checker(root).run()
    for problem in problems:
        print(problem)
    print(f'check_layers: {len(problems)} violation(s)' if problems else 'check_layers: ok')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
