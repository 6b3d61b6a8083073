#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a compiler does not see, as a test with a ratchet.

Usage: tools/tidy.py [--root DIR] [--library libtern.so ...] [--ratchet]

Prints "file:line: what is wrong", exits 1 if anything is. tools/tidy_allow.txt lists what broke a rule when
the rule came; an entry may only shrink or go (--ratchet rewrites it to what is still needed). With --library,
the exported symbols of the built libraries must be those of the version maps.
Tests: tests/tools/test_tidy.py plants a violation of each rule.
"""
import argparse
import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import csource  # noqa: E402

FUNCTION_LINES = 70
FILE_LINES_WARN = 800
FILE_LINES_MAX = 1200
README_LINES = 40
TOPS = ('.ci', 'bench', 'cli', 'cmake', 'debian', 'dev', 'docs', 'fuzz', 'include', 'python', 'sim', 'src', 'tests', 'tools',
        'CMakeLists.txt', 'CMakePresets.json', 'README.md', 'CHANGELOG.md')
C_FILES = ('.c', '.h', '.cpp', '.hpp')
SPDX_FILES = C_FILES + ('.py', '.sh', '.cmake', 'CMakeLists.txt', '.map')
TEXT_FILES = SPDX_FILES + ('.md', '.json', '.txt', '.1', '.in', 'dev', 'run')
SPDX = 'SPDX-License-Identifier: Apache-2.0'
MARKS = re.compile(r'\b(TO' r'DO|FIX' r'ME|X' r'XX)\b')
MACHINE = re.compile(r'(?<![\w.])/(work|root|home/\w+)/|(?<![\w.])/tmp/(build-|bash|BRIEF)')
STATE = re.compile(r'(?:->|\.)state\s*=(?!=)')
STATE_WRITER = re.compile(r'(set_state|_init|_reset|_new|_create|_open)$')

# Version maps and the installed headers that each exports.
MAPS = {'src/tern-graph.map': ('graph.h', 'session.h'), 'src/tern-http.map': ('http.h',), 'src/tern.map': None}
SONAMES = {'libtern-graph': 'src/tern-graph.map', 'libtern-http': 'src/tern-http.map', 'libtern': 'src/tern.map'}


def public_functions(text):
    """Names of the functions that a header declares (typedefs and macros are not among them)."""
    clean = csource.blank(text)
    clean = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', '', clean, flags=re.M)
    clean = clean.replace('extern "C" {', '')
    names = []
    for statement in re.split(r'[;{}]', clean):
        statement = ' '.join(statement.split())
        m = re.match(r'(?!typedef|struct \w+$|enum|static)[\w\s*]*?\b(tern_\w+) ?\(', statement)
        if m and not statement.startswith('typedef'):
            names.append(m.group(1))
    return names


def map_symbols(text):
    """Public names of a version map: those of its nodes except TERN_PRIVATE."""
    text = re.sub(r'#[^\n]*', '', text)
    names = []
    for node, body in re.findall(r'(\w[\w.]*)\s*\{(.*?)\}', text, flags=re.S):
        if not node.startswith('TERN_PRIVATE'):
            names += [n for n in re.findall(r'([\w*]+)\s*;', body.split('local:')[0]) if n != '*']
    return names


def read_or_none(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding='utf-8') as f:
        return f.read()


class Tidy:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.warnings = []
        self.allow = {}  # (rule, path, name) -> number
        self.used = {}
        self.load_allow()

    def load_allow(self):
        path = os.path.join(self.root, 'tools/tidy_allow.txt')
        if not os.path.exists(path):
            return
        with open(path, encoding='utf-8') as f:
            for line in f:
                words = line.split('#')[0].split()
                if words:
                    rule, name, number = words
                    self.allow[(rule, name)] = int(number)

    def bad(self, path, line, text):
        self.problems.append(f'{path}:{line}: {text}')

    def counted(self, rule, name, number, limit, path, line, text):
        """A rule with a ratchet: `number` must be at most the limit or what the allow list says."""
        if number <= limit:
            return
        self.used[(rule, name)] = number
        if number > self.allow.get((rule, name), 0):
            self.bad(path, line, text)

    def files(self):
        for top in TOPS:
            full = os.path.join(self.root, top)
            if os.path.isfile(full):
                yield top
            for folder, dirs, names in os.walk(full):
                dirs[:] = sorted(d for d in dirs if d not in ('__pycache__', 'node_modules', 'corpus', 'golden'))
                for name in sorted(names):
                    if name.endswith(TEXT_FILES):
                        yield os.path.relpath(os.path.join(folder, name), self.root)

    def check_text(self, path, text):
        lines = text.split('\n')
        if text and not text.endswith('\n'):
            self.bad(path, len(lines), 'no newline at the end')
        for i, line in enumerate(lines, 1):
            if line.rstrip() != line:
                self.bad(path, i, 'space at the end of the line')
            m = MARKS.search(line)
            if m:
                self.bad(path, i, f'{m.group(0)}: do it, or file an issue')
            if MACHINE.search(line):
                self.bad(path, i, 'a path of one machine')
        if path.endswith(SPDX_FILES) and SPDX not in '\n'.join(lines[:3]):
            self.bad(path, 1, f'the file does not start with {SPDX}')
        if len(lines) > FILE_LINES_WARN and path.endswith(C_FILES + ('.py',)):
            self.warnings.append(f'{path}: {len(lines)} lines; aim at 150 to 400')
            self.counted('file', path, len(lines), FILE_LINES_MAX, path, 1,
                         f'{len(lines)} lines; the limit is {FILE_LINES_MAX}: split it')

    def check_c(self, path, text):
        # Tests may say it in one line.
        start = r'/\*(\n \*)? \S' if path.startswith('tests/') else r'/\*\n \* \S'
        if not re.match(r'/\* ' + SPDX + r' \*/\n' + start, text):
            self.bad(path, 1, 'after the SPDX line comes a comment: what the file owns, must not do, threads, tests')
        for i, line in enumerate(csource.blank(text).split('\n'), 1):
            if re.match(r' {2,}[^\s\\]', line):
                self.bad(path, i, 'indented by spaces; use tabs')
        funcs = csource.functions(text)
        for name, first, last in funcs:
            self.counted('function', f'{path}:{name}', last - first + 1, FUNCTION_LINES, path, first,
                         f'{name} has {last - first + 1} lines; the limit is {FUNCTION_LINES}')
        if path.startswith(('src/', 'cli/')):
            self.check_named_tests(path, text)
        if path.startswith('src/'):
            self.check_states(path, text, funcs)

    def check_named_tests(self, path, text):
        """The tests that the comment at the top names exist. A bare name lies where the one before it does."""
        head = text.split('\n', 1)[-1].split('*/', 1)[0]
        if 'Tests:' not in head:
            return
        folder = 'tests/unit/' + path.split('/')[1]
        for name in re.findall(r'[\w./*-]+', head.split('Tests:', 1)[1]):
            name = name.rstrip('.')
            is_file = name.endswith(('.c', '.py'))
            if name.startswith(('tests/', 'fuzz/')):
                folder = os.path.dirname(name) if is_file else name
            elif is_file and '/' not in name:
                name = os.path.join(folder, name)
            else:
                continue
            if not glob.glob(os.path.join(self.root, name)):
                self.bad(path, 1, f'names the test {name}, which does not exist')

    def check_states(self, path, text, funcs):
        """One function alone writes an object's state; it asserts the predecessor and logs the change."""
        clean = csource.blank(text)
        stray = []
        for m in STATE.finditer(clean):
            line = csource.line_of(clean, m.start())
            name = csource.function_at(funcs, line)
            if name and not STATE_WRITER.search(name):
                stray.append((line, name))
        if stray:
            line, name = stray[-1]
            self.counted('state', path, len(stray), 0, path, line,
                         f'{name} writes a state: only a *_set_state function may ({len(stray)} in this file)')

    def check_readmes(self):
        src = os.path.join(self.root, 'src')
        for layer in sorted(os.listdir(src)) if os.path.isdir(src) else []:
            folder = os.path.join(src, layer)
            if not os.path.isdir(folder) or not os.path.exists(os.path.join(folder, 'CMakeLists.txt')):
                continue
            readme = os.path.join(folder, 'README.md')
            if not os.path.exists(readme):
                self.bad(f'src/{layer}', 1, 'no README.md: what it owns, must not do, its threads, its tests')
                continue
            with open(readme, encoding='utf-8') as f:
                n = f.read().count('\n')
            if n > README_LINES:
                self.bad(f'src/{layer}/README.md', README_LINES, f'{n} lines; a guide has at most {README_LINES}')

    def check_reports(self):
        """Tests that tests/FIELD-BUGS.md names for a report exist and are run."""
        path = 'tests/FIELD-BUGS.md'
        full = os.path.join(self.root, path)
        if not os.path.exists(full):
            return
        with open(full, encoding='utf-8') as f:
            lines = f.read().split('\n')
        for i, line in enumerate(lines, 1):
            cells = line.strip('|').split('|')
            if not line.startswith('|') or cells[0].strip() in ('report', '---'):
                continue
            named = re.findall(r'`([^`]+)`', cells[-1])
            source, tests = None, 0
            for name in named:
                if '/' in name:
                    source = read_or_none(os.path.join(self.root, name))
                    if source is None:
                        self.bad(path, i, f'names {name}, which does not exist')
                elif source is not None:
                    tests += 1
                    if not re.search(rf'(?:cmocka_unit_test\w*|CASE)\(\s*{name}\b|def {name}\(', source):
                        self.bad(path, i, f'names {name}, which is not run there')
            if not tests:
                self.bad(path, i, f'{cells[0].strip()} has no test')

    def header_names(self, wanted):
        folder = os.path.join(self.root, 'include/tern')
        special = {h for headers in MAPS.values() if headers for h in headers}
        names = {}
        for header in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if header in wanted if wanted else header not in special:
                with open(os.path.join(folder, header), encoding='utf-8') as f:
                    for name in public_functions(f.read()):
                        names[name] = f'include/tern/{header}'
        return names

    def check_maps(self):
        for path, headers in MAPS.items():
            full = os.path.join(self.root, path)
            if not os.path.exists(full):
                continue
            with open(full, encoding='utf-8') as f:
                listed = map_symbols(f.read())
            declared = self.header_names(headers)
            for name in sorted(set(declared) - set(listed)):
                self.bad(path, 1, f'{name} of {declared[name]} is missing')
            for name in sorted(set(listed) - set(declared)):
                self.bad(path, 1, f'{name} is in no installed header')
            if listed != sorted(set(listed)):
                self.bad(path, 1, 'names are not sorted, or one is twice')

    def check_library(self, library):
        base = os.path.basename(library).split('.so')[0]
        path = SONAMES.get(base)
        if not path:
            self.bad(library, 1, 'a library without a version map')
            return
        with open(os.path.join(self.root, path), encoding='utf-8') as f:
            listed = set(map_symbols(f.read()))
        out = subprocess.run(['nm', '-D', '--defined-only', library], capture_output=True, text=True, check=True)
        exported = set()
        for line in out.stdout.split('\n'):
            words = line.split()
            if len(words) == 3 and words[1] not in 'A':
                exported.add(words[2].split('@')[0])
        for name in sorted(listed - exported):
            self.bad(path, 1, f'{name} is declared and listed, but {base} does not have it')
        for name in sorted(exported - listed):
            if not name.startswith('tn_'):
                self.bad(path, 1, f'{base} exports {name}, which is not listed')

    def check_allow(self):
        for key, number in sorted(self.allow.items()):
            if self.used.get(key, 0) < number:
                self.bad('tools/tidy_allow.txt', 1, f'{key[0]} {key[1]} {number}: now {self.used.get(key, 0)} is '
                         'enough; run tools/tidy.py --ratchet')

    def ratchet(self):
        """Lower the allow list to what is needed. It never grows by this."""
        kept = {k: min(n, self.used[k]) for k, n in self.allow.items() if k in self.used}
        with open(os.path.join(self.root, 'tools/tidy_allow.txt'), 'w', encoding='utf-8') as f:
            f.write('# What broke a rule of tools/tidy.py when the rule came: rule, name, number. Only shrinks.\n')
            for (rule, name), number in sorted(kept.items()):
                f.write(f'{rule} {name} {number}\n')
        self.allow = kept

    def run(self, libraries=(), ratchet=False):
        for path in self.files():
            with open(os.path.join(self.root, path), encoding='utf-8', errors='replace') as f:
                text = f.read()
            self.check_text(path, text)
            if path.endswith(C_FILES):
                self.check_c(path, text)
        self.check_readmes()
        self.check_maps()
        self.check_reports()
        for library in libraries:
            self.check_library(library)
        if ratchet:
            self.ratchet()
        self.check_allow()
        return self.problems


def main():
    parser = argparse.ArgumentParser(description='house rules as a test')
    parser.add_argument('--root', default=os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
    parser.add_argument('--library', action='append', default=[], help='also check the exported symbols')
    parser.add_argument('--ratchet', action='store_true', help='lower tools/tidy_allow.txt to what is needed')
    args = parser.parse_args()
    tidy = Tidy(args.root)
    problems = tidy.run(args.library, args.ratchet)
    for line in tidy.warnings:
        print(f'note: {line}')
    for problem in problems:
        print(problem)
    print(f'tidy: {len(problems)} violation(s)' if problems else 'tidy: ok')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
