#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the installed headers into what the Python package reads with cffi.

Usage: pydefs.py CC INCLUDE_FOLDER OUTPUT.py

The package works without a compiler and without headers at its user's, so they are boiled down to declarations and
constants here, when tern is built. Everything comes from the headers alone: nothing is written twice.
"""
import os
import re
import subprocess
import sys
import tempfile

HEADERS = ('ctx', 'watch', 'http', 'mem', 'channel', 'rpc', 'tensor', 'coll', 'ps', 'ps_group', 'ps_save', 'ps_follow', 'checkpoint')
# Standard headers bring declarations that cffi has built in.
STANDARD = ('stddef.h', 'stdint.h', 'stdbool.h')


def preprocess(cc, include):
    with tempfile.TemporaryDirectory(prefix='tern-test-pydefs-') as folder:
        for name in STANDARD:
            with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
                f.write('')
        source = ''.join(f'#include <tern/{name}.h>\n' for name in HEADERS)
        done = subprocess.run([cc, '-E', '-P', '-nostdinc', f'-I{folder}', f'-I{include}', '-D__attribute__(x)=',
                               '-x', 'c', '-'], input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f'{cc}: {done.stderr}')
    return done.stdout


def without_bodies(text):
    """static inline functions are the compiler's matter."""
    out = ''
    while True:
        found = re.search(r'static\s+inline\b[^;{]*\{', text)
        if not found:
            return out + text
        out += text[:found.start()]
        depth, i = 1, found.end()
        while depth:
            depth += {'{': 1, '}': -1}.get(text[i], 0)
            i += 1
        text = text[i:]


def evaluate(text, known):
    """The value of a constant expression of integers or a string, else None."""
    if re.fullmatch(r'"[^"\\]*"', text):
        return text[1:-1]
    text = text.replace('UINT64_MAX', str(2**64 - 1)).replace('UINT32_MAX', str(2**32 - 1))
    text = re.sub(r'\b(0x[0-9a-fA-F]+|\d+)(?:ull|ul|u|ll|l)\b', r'\1', text, flags=re.I)
    text = re.sub(r'\b[A-Z_][A-Z0-9_]*\b', lambda m: str(known.get(m.group(), m.group())), text)
    if not re.fullmatch(r'[0-9a-fA-Fx\s()+*|<>&-]+', text):
        return None
    try:
        return eval(text, {'__builtins__': {}})  # pylint: disable=eval-used
    except SyntaxError:
        return None


def constants(include):
    known = {}
    for name in HEADERS + ('types', 'status'):
        with open(os.path.join(include, 'tern', f'{name}.h'), encoding='utf-8') as f:
            for line in f.read().replace('\\\n', ' ').splitlines():
                found = re.match(r'#define\s+(TERN_[A-Z0-9_]+)\s+(.*?)\s*(?:/\*.*)?$', line)
                value = evaluate(found.group(2), known) if found else None
                if value is not None:
                    known[found.group(1)] = value
    return known


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    cc, include, output = sys.argv[1:]
    declarations = without_bodies(preprocess(cc, include))
    declarations = re.sub(r'\n\s*\n+', '\n', declarations).strip()
    values = constants(include)
    text = ['# SPDX-License-Identifier: Apache-2.0', '"""Made from the headers by tools/pydefs.py: do not edit."""',
            f'DECLARATIONS = """\\\n{declarations}\n"""', 'CONSTANTS = {']
    text += [f'    {name!r}: {value!r},' for name, value in sorted(values.items())] + ['}', '']
    with open(output, 'w', encoding='utf-8') as f:
        f.write('\n'.join(text))


if __name__ == '__main__':
    main()
