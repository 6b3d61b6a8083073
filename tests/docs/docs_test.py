#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents against what they speak of: links lead somewhere, the man page knows every option of the command.

Usage: docs_test.py ROOT [TERN]   (without the command its options are not compared)
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

ROOT = sys.argv[1]
TERN = sys.argv[2] if len(sys.argv) > 2 and os.access(sys.argv[2], os.X_OK) else None
MAN = os.path.join(ROOT, 'docs/man/tern.1')
LINK = re.compile(r'\]\(([^)#\s]+)')
OPTION = re.compile(r'^  (--[a-z0-9-]+)', re.M)
CODE = re.compile(r'^```.*?^```', re.M | re.S)


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def documents():
    found = glob.glob(f'{ROOT}/*.md')
    for folder in ('docs', 'src'):
        found += glob.glob(f'{ROOT}/{folder}/**/*.md', recursive=True)
    return found


class Links(unittest.TestCase):
    def test_lead_somewhere(self):
        broken = []
        for path in documents():
            for target in LINK.findall(CODE.sub('', read(path))):
                if '://' not in target and not os.path.exists(os.path.join(os.path.dirname(path), target)):
                    broken.append(f'{os.path.relpath(path, ROOT)}: {target}')
        self.assertEqual(broken, [])
        self.assertGreater(len(documents()), 10)

    def test_decisions_are_listed(self):
        folder = os.path.join(ROOT, 'docs/adr')
        files = {name for name in os.listdir(folder) if re.match(r'\d{4}-', name)}
        self.assertEqual(files, set(LINK.findall(read(os.path.join(folder, 'README.md')))))


class GraphOps(unittest.TestCase):
    """docs/GRAPH-OPS.md against the op table and the table of gradients."""

    def setUp(self):
        text = read(os.path.join(ROOT, 'src/graph/ops.h'))
        self.names = dict(re.findall(r'\tX\((\w+), "(\w+)", (?:INT|FLOAT)S?\)', text))
        groups = {name: re.findall(r'TN_A\((\w+)\)', body)
                  for name, body in re.findall(r'#define (TN_\w+_ATTRS)(.*?)\n(?!\t)', text, re.S)}
        self.ops = {}
        table = text.split('#define TN_OP_MAP(X)', 1)[1].split('typedef enum tn_op {', 1)[0]
        for op, name, rest in re.findall(r'^\tX\((\w+), "(\w+)", ([^\n]*?)\)(?: /\*[^\n]*)?(?: \\)?$', table, re.M):
            columns = rest.split(', ')
            sets = []
            for column in columns[4:6]:
                for group, keys in groups.items():
                    column = column.replace(group, ' '.join(f'TN_A({key})' for key in keys))
                sets.append({self.names[key] for key in re.findall(r'TN_A\((\w+)\)', column)})
            if 'TN_OPF_INTERNAL' not in columns[3]:
                self.ops[name] = (op, *sets)
        self.gradients = set(re.findall(r'\tX\((\w+), \w+\)', read(os.path.join(ROOT, 'src/graph/grad.h'))))
        self.rows = [[cell.strip() for cell in line.strip('|').split('|')]
                     for line in read(os.path.join(ROOT, 'docs/GRAPH-OPS.md')).split('\n')
                     if line.startswith('| ') and not line.startswith('| op |')]

    def test_each_op_has_one_row(self):
        self.assertGreater(len(self.ops), 100)
        self.assertEqual(sorted(row[0] for row in self.rows), sorted(self.ops))

    def test_attributes_and_gradients_are_those_of_the_code(self):
        for name, _, _, attributes, _, gradient in self.rows:
            op, allowed, required = self.ops[name]
            self.assertEqual(set(re.findall(r'`(\w+)`', attributes)), allowed, name)
            self.assertEqual(set(re.findall(r'`(\w+)` required', attributes)), required, name)
            self.assertEqual(gradient, 'yes' if op in self.gradients else 'no', name)


class Onnx(unittest.TestCase):
    def test_every_op_is_listed(self):
        rows = re.findall(r'^\t(?:OP|MOVES)\("(\w+)"', read(os.path.join(ROOT, 'src/graph/onnx/table.c')), re.M)
        text = read(os.path.join(ROOT, 'docs/ONNX.md')).split('\n## Ops\n', 1)[1].split('\nNot imported', 1)[0]
        self.assertEqual(re.findall(r'`(\w+)`', text), rows)
        self.assertGreater(len(rows), 100)


class ManPage(unittest.TestCase):
    def section(self, title):
        """The plain text of one section, and of what follows it up to the next."""
        text = read(MAN).replace('\\-', '-').replace('\\~', ' ')
        self.assertIn(f'\n.SH {title}\n', text)
        return text.split(f'\n.SH {title}\n', 1)[1].split('\n.SH ', 1)[0]

    def defined(self, command):
        """The options that have a paragraph of their own."""
        heads = re.findall(r'^\.(?:TP|TQ)\n(.*)$', self.section(f'TERN {command.upper()}'), re.M)
        return {name for head in heads for name in re.findall(r'--[a-z][a-z0-9-]*', head)}

    def help_of(self, *command):
        """The help of a command, with those of its subcommands."""
        out = subprocess.run([TERN, *command, '--help'], capture_output=True, text=True, timeout=20, check=True,
                             stdin=subprocess.DEVNULL).stdout
        subcommands = re.findall(r'^  ([a-z]+) ', out, re.M) if 'SUBCOMMAND' in out else []
        return out + ''.join(self.help_of(*command, name) for name in subcommands)

    @unittest.skipUnless(TERN, 'the command was not built')
    def test_every_option(self):
        for command in ('train', 'perf', 'table', 'bench', 'graph', 'info', 'doctor', 'demo'):
            options = set(OPTION.findall(self.help_of(command))) - {'--help'}
            self.assertGreater(len(options), 1)
            self.assertEqual(self.defined(command), options, command)

    @unittest.skipUnless(TERN, 'the command was not built')
    def test_commands_in_documents(self):
        """Each `tern ...` of a block of code names a command that there is, and options that it has."""
        helps, wrong, seen = {}, [], 0
        for path in documents() + glob.glob(f'{ROOT}/python/*.md') + glob.glob(f'{ROOT}/deploy/**/*.md', recursive=True):
            for line in '\n'.join(CODE.findall(read(path))).split('\n'):
                found = re.match(r'(?:\$ )?tern ([a-z]+)(?: ([a-z]+)\b)?(.*)', line)
                if not found:
                    continue
                command, more, rest = found.groups()
                out = helps.get((command, more)) or helps.setdefault((command, more), self.help_or_none(command, more))
                options = re.findall(r'(?<=[ \[|])--[a-z][a-z-]*', re.split(r' -- |\s{2,}|#', f' {rest.strip()}', maxsplit=1)[0])
                seen += 1
                wrong += [f'{os.path.relpath(path, ROOT)}: {line.strip()}: no {word}' for word in options if f'{word}' not in out]
        self.assertEqual(wrong, [])
        self.assertGreater(seen, 20)

    def help_or_none(self, command, more):
        """The help of a command, and of the subcommand if the word after it is one."""
        for words in ([command, more], [command]):
            done = subprocess.run([TERN, *filter(None, words), '--help'], capture_output=True, text=True, timeout=60,
                                  check=False, stdin=subprocess.DEVNULL)
            if done.returncode == 0:
                return done.stdout + (self.help_of(command) if len(words) == 1 else '')
        self.fail(f'there is no command tern {command}: {done.stderr}')
        return ''

    @unittest.skipUnless(TERN, 'the command was not built')
    def test_variables(self):
        out = subprocess.run([TERN, 'info', '--config'], capture_output=True, text=True, timeout=20, check=True,
                             stdin=subprocess.DEVNULL).stdout
        known = set(re.findall(r'^  (TERN_[A-Z0-9_]+)', out, re.M))
        named = set(re.findall(r'TERN_[A-Z0-9]+(?:_[A-Z0-9]+)*', self.section('ENVIRONMENT')))
        self.assertLessEqual(named - {'TERN_'}, known)
        self.assertGreater(len(named), 3)

    @unittest.skipUnless(shutil.which('groff'), 'groff is not installed')
    def test_renders(self):
        done = subprocess.run(['groff', '-man', '-Tutf8', '-ww', '-z', MAN], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ''))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
