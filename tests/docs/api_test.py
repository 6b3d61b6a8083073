#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual pages and the reference against headers and version maps: everything public is described, and can be read.

Usage: api_test.py ROOT MAN_FOLDER [TERN]   MAN_FOLDER has man1 and man3 as they are installed
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, MAN = sys.argv[1:3]
TERN = sys.argv[3] if len(sys.argv) > 3 and os.access(sys.argv[3], os.X_OK) else None
sys.path.insert(0, os.path.join(ROOT, 'tools'))
import apidocs  # noqa: E402
import capi  # noqa: E402
import tidy  # noqa: E402

HEADERS = capi.load(os.path.join(ROOT, 'include'))


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def exported():
    return {name for path in tidy.MAPS for name in tidy.map_symbols(read(os.path.join(ROOT, path)))}


def said(*command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **kwargs)
    return done.stdout + done.stderr


class Functions(unittest.TestCase):
    def test_each_has_a_comment(self):
        self.assertEqual([d.name for h in HEADERS for g in h.groups if not g.comment for d in g.of('function')], [])

    def test_each_has_a_page(self):
        pages = {os.path.basename(path)[:-2] for path in glob.glob(f'{MAN}/man3/*.3')}
        self.assertGreater(len(exported()), 100)
        self.assertEqual(exported() - pages, set())
        # and no page is of something else
        inline = {d.name for h in HEADERS for d in h.all('inline')}
        self.assertEqual(pages - exported() - inline - {f'tern_{h.name}.h' for h in HEADERS}, set())

    def test_a_page_says_what_the_header_says(self):
        text = read(f'{MAN}/man3/tern_mem_alloc.3').replace('\\-', '-').replace('\\fB', '').replace('\\fR', '')
        for words in ('tern_mem_alloc(tern_mem *mem, uint64_t bytes', 'power of two up to 2 MiB', 'TERN_E_BUDGET',
                      '#include <tern/mem.h>', 'TERN_MEM_HUGE', '-ltern'):
            self.assertIn(words, text)
        self.assertIn('libtern-graph', read(f'{MAN}/man3/tern_graph_node.3').replace('\\-', '-'))


class Pages(unittest.TestCase):
    def files(self):
        found = sorted(glob.glob(f'{MAN}/man[13]/*'))
        self.assertGreater(len(found), 100)
        return [os.path.relpath(path, MAN) for path in found]

    @unittest.skipUnless(TERN, 'the command was not built')
    def test_each_command_has_one(self):
        commands = set(re.findall(r'^  ([a-z]+) +\S', said(TERN, '--help').split('--help')[0], re.M))
        self.assertGreater(len(commands), 8)
        self.assertEqual({f'man1/tern-{c}.1' for c in commands} - set(self.files()), set())

    @unittest.skipUnless(shutil.which('lexgrog'), 'lexgrog (man-db) is not installed')
    def test_whatis_reads_them(self):
        out = said('lexgrog', *self.files(), cwd=MAN)
        wrong = [line for line in out.splitlines() if not re.fullmatch(r'man[13]/\S+: "tern[\w.-]* - \S.{3,}"', line)]
        self.assertEqual(wrong, [])

    @unittest.skipUnless(shutil.which('mandoc'), 'mandoc is not installed')
    def test_mandoc_reads_them(self):
        own = [name for name in self.files() if not read(os.path.join(MAN, name)).startswith('.so ')]
        self.assertEqual(said('mandoc', '-Tlint', '-Wwarning', *[n for n in own if n.startswith('man3')], cwd=MAN), '')

    @unittest.skipUnless(shutil.which('groff'), 'groff is not installed')
    def test_groff_reads_them(self):
        own = [name for name in self.files() if not read(os.path.join(MAN, name)).startswith('.so ')]
        self.assertEqual(said('groff', '-man', '-Tutf8', '-ww', '-z', *own, cwd=MAN), '')


class Reference(unittest.TestCase):
    def test_links_lead_somewhere(self):
        with tempfile.TemporaryDirectory(prefix='tern-test-api-') as folder:
            made = apidocs.Reference(HEADERS, '1')
            pages = {f'{h.name}.html': made.header(h) for h in HEADERS}
            apidocs.write(folder, {'index.html': made.index(), **pages})
            anchors = {f'{name}#{a}' for name, text in pages.items() for a in re.findall(r'id="(\w+)"', text)}
            for name in os.listdir(folder):
                for link in re.findall(r'href="([^"]+)"', read(os.path.join(folder, name))):
                    link = f'{name}{link}' if link.startswith('#') else link
                    self.assertTrue(link in anchors or os.path.exists(os.path.join(folder, link)), f'{name}: {link}')
            self.assertEqual({f for f in exported() if f'id="{f}"' not in ''.join(pages.values())}, set())


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
