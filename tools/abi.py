#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary interface: what programs that were built against the headers rely on, held against what was written down.

Usage: abi.py CC [--update]       (from anywhere; CC compiles a small program that says sizes and numbers)

tests/abi/<header>.abi has a line per function (types, node of the version map), structure (size), member (type, place)
and constant; tests/abi/version has the version and the number in libtern.so.N that they are of.

While that version is unreleased (CHANGELOG.md says "Unreleased (0.1.0)") new things may come, and a change has only to be
written down (--update). Afterwards what is new needs a higher minor version, and what changed or went needs another
TERN_SOVERSION (CMakeLists.txt). Exit status: 0 as written down, 1 not (with what to do), 77 no 64-bit machine.
Tests: tests/tools/test_capi.py.
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import capi  # noqa: E402
import tidy  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, 'tests/abi')
HEAD = '# SPDX-License-Identifier: Apache-2.0\n# Written by tools/abi.py --update (./dev abi --update).\n'


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as file:
        return file.read()


def signature(declaration):
    """Types alone: names of parameters are nobody's interface."""
    found = re.match(r'(.*?)\b\w+\((.*)\);$', declaration)
    parameters = []
    for parameter in capi.split(found.group(2), ','):
        parameter = re.sub(r'\(\*\w+\)', '(*)', parameter)
        named = re.match(r'(.*[\s*])\w+((?:\[\w*\])*)$', parameter)
        if named and named.group(1).strip() not in ('const', 'struct', 'enum') and '(' not in parameter:
            parameter = (named.group(1).strip() + named.group(2)).strip()
        parameters.append(parameter)
    return f'{found.group(1).strip()} ({", ".join(parameters)})'


def nodes():
    """Function -> node of the version maps."""
    found = {}
    for path in tidy.MAPS:
        for node, body in re.findall(r'(\w[\w.]*)\s*\{(.*?)\}', re.sub(r'#[^\n]*', '', read(path)), flags=re.S):
            found.update({name: node for name in re.findall(r'(\w+)\s*;', body.split('local:')[0])})
    return found


def statuses(header):
    return re.findall(r'X\((TERN_\w+),', ''.join(d.text for d in header.all('macro') if d.name == 'TERN_STATUS_MAP'))


def questions(header):
    """(key, format, expression, words after the number) of what only a compiler knows."""
    for d in header.all('struct'):
        yield f'struct {d.name}', '%zu', f'sizeof({d.name})', ' bytes'
        for before, name, after in capi.members(d):
            size = f' + %zu: {before} {after}'.replace('%zu', '').replace(' + :', ':').rstrip()
            yield f'struct {d.name} {name}', '%zu', f'offsetof({d.name}, {name})', size.replace('%', '%%')
    for d in header.all('enum'):
        names = [name for _, name, _ in capi.members(d)] or (statuses(header) if 'STATUS_MAP' in d.text else [])
        for name in names:
            yield f'enum {d.name} {name}', '%lld', f'(long long){name}', ''
    for d in header.all('macro'):
        if re.match(r'#define \w+[ \t]+[^"\s]', d.text) and 'VERSION' not in d.name and 'STATUS_MAP' not in d.name:
            yield f'constant {d.name}', '%lld', f'(long long)({d.name})', ''


def asked(cc, header):
    """The answers, by a program that is compiled and run."""
    rows = list(questions(header))
    if not rows:
        return {}
    lines = [f'\tprintf("{key} = {fmt}{after}\\n", {expression});' for key, fmt, expression, after in rows]
    source = ('#include <stddef.h>\n#include <stdio.h>\n#include <tern/%s.h>\nint main(void)\n{\n'
              '\tif (sizeof(void *) != 8)\n\t\treturn 77;\n%s\n\treturn 0;\n}\n' % (header.name, '\n'.join(lines)))
    with tempfile.TemporaryDirectory(prefix='tern-test-abi-') as folder:
        program = os.path.join(folder, 'ask')
        done = subprocess.run([cc, '-x', 'c', f'-I{ROOT}/include', '-o', program, '-'], input=source, text=True,
                              capture_output=True, check=False)
        if done.returncode:
            sys.exit(f'abi: {header.name}.h: {done.stderr}')
        done = subprocess.run([program], text=True, capture_output=True, check=False)
        if done.returncode == 77:
            print('abi: skipped: no 64-bit machine')
            sys.exit(77)
    return dict(line.split(' = ', 1) for line in done.stdout.splitlines())


def current(cc):
    """header -> key -> what programs rely on."""
    where, found = nodes(), {}
    for header in capi.load(os.path.join(ROOT, 'include')):
        rows = {f'function {d.name}': f'{signature(d.bare())} {where.get(d.name)}' for d in header.all('function')}
        rows.update({f'callback {d.name}': re.sub(r'\s+', ' ', d.bare()) for d in header.all('callback')})
        rows.update(asked(cc, header))
        found[header.name] = rows
    return found


def stored():
    found = {}
    for name in sorted(os.listdir(FOLDER)) if os.path.isdir(FOLDER) else []:
        if name.endswith('.abi'):
            rows = [line for line in read(FOLDER, name).splitlines() if line and not line.startswith('#')]
            found[name[:-4]] = dict(row.split(' = ', 1) for row in rows)
    return found


def versions():
    text = read('CMakeLists.txt')
    version = re.search(r'project\(tern VERSION ([\d.]+)', text).group(1)
    return tuple(map(int, version.split('.'))), int(re.search(r'set\(TERN_SOVERSION (\d+)\)', text).group(1))


def stored_versions():
    found = re.search(r'^version ([\d.]+) soversion (\d+)$', read(FOLDER, 'version'), re.M)
    return tuple(map(int, found.group(1).split('.'))), int(found.group(2))


def is_released(version):
    return not re.search(rf'^## Unreleased \({".".join(map(str, version))}\)', read('CHANGELOG.md'), re.M)


def judge(old, new, released, old_version, new_version, old_so, new_so):
    """(what is missing to allow this, or None; whether what is written down is out of date)."""
    broken = sorted(k for k in old if new.get(k) != old[k])
    came = sorted(set(new) - set(old))
    if broken and released and new_so == old_so:
        return f'{broken[0]} changed or went: TERN_SOVERSION {old_so} of CMakeLists.txt has to count up', True
    if came and released and new_version[:2] <= old_version[:2]:
        return f'{came[0]} is new: it needs a higher minor version than {".".join(map(str, old_version))}', True
    return None, bool(broken or came and released)


def differences(old, new):
    for key in sorted(set(old) | set(new)):
        if old.get(key) != new.get(key):
            if key in old:
                yield f'- {key} = {old[key]}'
            if key in new:
                yield f'+ {key} = {new[key]}'


def update(now):
    os.makedirs(FOLDER, exist_ok=True)
    for name in stored().keys() - now.keys():
        os.remove(os.path.join(FOLDER, f'{name}.abi'))
    version, so = versions()
    texts = {f'{name}.abi': ''.join(f'{k} = {v}\n' for k, v in rows.items()) for name, rows in now.items()}
    texts['version'] = f'version {".".join(map(str, version))} soversion {so}\n'
    for name, text in texts.items():
        with open(os.path.join(FOLDER, name), 'w', encoding='utf-8') as file:
            file.write(HEAD + text)
    print(f'abi: {sum(map(len, now.values()))} lines written to tests/abi')


def flat(headers):
    return {key: value for rows in headers.values() for key, value in rows.items()}


def main():
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ['--update']):
        sys.exit(__doc__)
    now = current(sys.argv[1])
    if not os.path.isdir(FOLDER):
        return update(now)
    (old_version, old_so), (new_version, new_so) = stored_versions(), versions()
    old, new = flat(stored()), flat(now)
    why, stale = judge(old, new, is_released(old_version), old_version, new_version, old_so, new_so)
    if '--update' in sys.argv and not why:
        return update(now)
    if not why and not stale:
        print(f'abi: {len(new)} lines as written down' + (f', {len(new) - len(old)} new' if len(new) > len(old) else ''))
        return 0
    print('\n'.join(list(differences(old, new))[:40]))
    print(f'abi: {why}' if why else 'abi: the binary interface changed. If that is meant:  ./dev abi --update')
    return 1


if __name__ == '__main__':
    sys.exit(main())
