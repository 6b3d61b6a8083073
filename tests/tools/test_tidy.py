# SPDX-License-Identifier: Apache-2.0
"""Plants a violation of each rule of tools/tidy.py and sees it found; and the ratchet turns one way only."""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '../../tools')]
import tidy  # noqa: E402
from tree import HEAD, Tree  # noqa: E402


def function(name, lines):
    return f'void {name}(void)\n{{\n' + '\tx();\n' * (lines - 3) + '}\n'


class TidyRules(unittest.TestCase):
    def setUp(self):
        self.tree = Tree()
        self.addCleanup(self.tree.remove)
        t = self.tree
        t.source('include/tern/mem.h', '/* tern_not(1) */\nint tern_a(int x);\nconst char *tern_b(void);\n'
                 'typedef int (*tern_fn)(int);\nstruct tern_s {\n\tint (*tern_m)(int);\n};\n')
        t.source('include/tern/graph.h', 'int tern_g(void);\n')
        spdx = '# SPDX-License-Identifier: Apache-2.0\n'
        t.write('src/tern.map', spdx + 'TERN_0.1 {\nglobal:\n\ttern_a;\n\ttern_b;\nlocal:\n\t*;\n};\n\n'
                'TERN_PRIVATE_0.1.0 {\nglobal:\n\ttn_*;\n};\n')
        t.write('src/tern-graph.map', spdx + 'TERN_GRAPH_0.1 {\nglobal:\n\ttern_g;\nlocal:\n\t*;\n};\n')
        t.write('src/base/README.md', '# base\n')
        t.write('src/base/CMakeLists.txt', spdx)
        t.source('src/base/good.c', function('good', 70))

    def found(self, **kwargs):
        return tidy.Tidy(self.tree.root).run(**kwargs)

    def one(self, words, **kwargs):
        found = self.found(**kwargs)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.found(), [])

    def test_spdx(self):
        self.tree.write('tools/x.py', 'pass\n')
        self.one('does not start with')

    def test_header_comment(self):
        self.tree.write('src/base/bad.c', '/* SPDX-License-Identifier: Apache-2.0 */\nint x;\n')
        self.one('comes a comment')

    def test_long_function(self):
        self.tree.source('src/base/bad.c', function('bad', 71))
        self.one('bad has 71 lines')

    def test_long_file(self):
        self.tree.source('src/base/bad.c', '\tx;\n' * 1300)
        self.one('split it')

    def test_marks(self):
        self.tree.source('src/base/bad.c', '/* TO' 'DO: later */\n')
        self.one('file an issue')

    def test_machine_paths(self):
        self.tree.write('docs/x.md', 'see /work' '/main\n')
        self.one('a path of one machine')

    def test_spaces(self):
        self.tree.source('src/base/bad.c', 'void f(void)\n{\n    x();\n}\n')
        self.one('use tabs')

    def test_space_at_the_end(self):
        self.tree.source('src/base/bad.c', 'int x; \n')
        self.one('end of the line')

    def test_newline_at_the_end(self):
        self.tree.source('src/base/bad.c', 'int x;')
        self.one('no newline')

    def test_named_tests_exist(self):
        head = '/* SPDX-License-Identifier: Apache-2.0 */\n/*\n * Owns nothing.\n * Tests: '
        self.tree.source('tests/unit/base/a_test.c', '')
        self.tree.source('tests/unit/base/b_test.c', '')
        for named in ('tests/unit/base/a_test.c, b_test.c.', 'a_test.c', 'tests/unit/base/*_test.c', 'tests/unit/base, all.'):
            self.tree.write('src/base/x.c', f'{head}{named}\n */\n')
            self.assertEqual(self.found(), [], named)
        for named, missing in (('tests/unit/base/a_test.c, c_test.c.', 'tests/unit/base/c_test.c'), ('tests/no', 'tests/no'),
                               ('c_test.c', 'tests/unit/base/c_test.c'), ('fuzz/x.c', 'fuzz/x.c')):
            self.tree.write('src/base/x.c', f'{head}{named}\n */\n')
            self.one(f'names the test {missing}')

    def test_reports_have_tests_that_are_run(self):
        self.tree.source('tests/unit/ps/t_test.c', 'static void torn(void **state) {}\nCASE(whole),\n'
                         'cmocka_unit_test_setup_teardown(kept, a, b),\n')
        head = '# Reports\n\n| report | wrong | tests |\n|---|---|---|\n'
        row = '| x#1 | y | {} |\n'
        self.tree.write('tests/FIELD-BUGS.md', head + row.format('`tests/unit/ps/t_test.c` `whole`, `kept`'))
        self.assertEqual(self.found(), [])
        for tests, words in (('`tests/unit/ps/t_test.c` `torn`', 'names torn, which is not run'),
                             ('`tests/unit/ps/t_test.c` `whole`, `tests/unit/ps/u_test.c`', 'which does not exist'),
                             ('`tests/unit/ps/t_test.c`', 'x#1 has no test'), ('', 'x#1 has no test')):
            self.tree.write('tests/FIELD-BUGS.md', head + row.format(tests))
            self.one(words)

    def test_states_have_one_writer(self):
        good = ('void conn_set_state(void)\n{\n\tc->state = 1;\n}\n\nint f(void)\n{\n\treturn c->state == 1;\n}\n')
        self.tree.source('src/base/conn.c', good)
        self.assertEqual(self.found(), [])
        self.tree.source('src/base/conn.c', good + '\nvoid step(void)\n{\n\tc->state = 2;\n}\n')
        self.one('step writes a state')

    def test_a_layer_has_a_guide(self):
        os.remove(os.path.join(self.tree.root, 'src/base/README.md'))
        self.one('no README.md')

    def test_a_guide_is_short(self):
        self.tree.write('src/base/README.md', '# base\n' + 'x\n' * 40)
        self.one('at most 40')

    def test_a_function_missing_in_the_map(self):
        self.tree.source('include/tern/mem.h', 'int tern_a(int x);\nint tern_b(void);\nint tern_c(void);\n')
        self.one('tern_c of include/tern/mem.h is missing')

    def test_a_name_that_no_header_has(self):
        self.tree.source('include/tern/mem.h', 'int tern_a(int x);\n')
        self.one('tern_b is in no installed header')

    def test_exports_of_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, 'libtern.so')
            source = os.path.join(folder, 'x.c')
            for text, words in (('int tern_a, tern_b, tn_x;', None), ('int tern_a;', 'does not have it'),
                                ('int tern_a, tern_b, stray;', 'exports stray')):
                with open(source, 'w', encoding='utf-8') as f:
                    f.write(text)
                subprocess.run(['cc', '-shared', '-o', library, source], check=True)
                if words:
                    self.one(words, libraries=[library])
                else:
                    self.assertEqual(self.found(libraries=[library]), [])

    def test_the_ratchet(self):
        self.tree.source('src/base/bad.c', function('bad', 90))
        self.tree.write('tools/tidy_allow.txt', 'function src/base/bad.c:bad 95\nfunction src/base/gone.c:f 80\n')
        found = self.found()
        self.assertEqual(len(found), 2, found)  # both entries allow more than is needed
        self.assertTrue(all('ratchet' in line for line in found), found)
        self.assertEqual(self.found(ratchet=True), [])
        self.assertEqual(self.found(), [])
        self.tree.source('src/base/bad.c', function('bad', 91))
        self.one('bad has 91 lines')
        self.found(ratchet=True)
        self.one('bad has 91 lines')

    def test_the_head_used_here_is_accepted(self):
        self.assertTrue(HEAD.startswith('/* SPDX'))


if __name__ == '__main__':
    unittest.main()
