# SPDX-License-Identifier: Apache-2.0
"""tools/capi.py reads what headers are made of; tools/abi.py tells changes that break programs from those that don't."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '../../tools')]
import abi  # noqa: E402
import capi  # noqa: E402

TEXT = '''/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it is.
 */
#ifndef TERN_X_H
#define TERN_X_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- part ---- */

/* Of both. */
#define TERN_X_A 1u /* one */
#define TERN_X_B (TERN_X_A | \\
		  2u)

typedef enum tern_x_kind { TERN_X_ONE = 1, TERN_X_TWO } tern_x_kind;

/* A row; with a comma, and a ; in a comment. */
typedef struct tern_x {
	const char *name, *other; /* why: { */
	uint32_t pair[2];
	int (*fn)(int a, void *arg);
} tern_x;
typedef struct tern_y tern_y;

/* Opens.
   More. */
int tern_x_open(const char *name,
		tern_y **y);
int tern_x_close(tern_y *y); /* trails */

void tern_x_bare(void);

#ifdef __cplusplus
}
#endif

#endif
'''


class Headers(unittest.TestCase):
    def setUp(self):
        self.header = capi.Header('x', TEXT)

    def test_groups(self):
        self.assertEqual(self.header.intro, 'What it is.')
        found = [(g.comment.split('.')[0], g.section, [(d.kind, d.name) for d in g.declarations])
                 for g in self.header.groups]
        self.assertEqual(found, [
            ('Of both', 'part', [('macro', 'TERN_X_A'), ('macro', 'TERN_X_B')]),
            ('', 'part', [('enum', 'tern_x_kind')]),
            ('A row; with a comma, and a ; in a comment', 'part', [('struct', 'tern_x'), ('type', 'tern_y')]),
            ('Opens', 'part', [('function', 'tern_x_open'), ('function', 'tern_x_close')]),
            ('', 'part', [('function', 'tern_x_bare')])])

    def test_members(self):
        kinds = {d.name: d for d in self.header.all('struct', 'enum')}
        self.assertEqual(capi.members(kinds['tern_x_kind']), [('', 'TERN_X_ONE', ''), ('', 'TERN_X_TWO', '')])
        self.assertEqual(capi.members(kinds['tern_x']), [
            ('const char *', 'name', ''), ('const char *', 'other', ''), ('uint32_t', 'pair', '[2]'),
            ('int (*', 'fn', ')(int a, void *arg)')])

    def test_comments_stay_with_what_they_trail(self):
        self.assertTrue(self.header.all('function')[1].text.endswith('/* trails */'))


class Interface(unittest.TestCase):
    OLD = {'function tern_a': 'int (void) TERN_0.1', 'struct tern_s': '16', 'enum tern_k TERN_K': '1'}

    def judged(self, new, **kwargs):
        return abi.judge(self.OLD, new, **{'released': True, 'old_version': (0, 1, 0), 'new_version': (0, 1, 0),
                                           'old_so': 1, 'new_so': 1, **kwargs})

    def test_the_same(self):
        self.assertEqual(self.judged(dict(self.OLD)), (None, False))

    def test_what_changed_or_went_needs_another_number(self):
        for new in ({**self.OLD, 'struct tern_s': '24'}, {'struct tern_s': '16', 'enum tern_k TERN_K': '1'}):
            why, stale = self.judged(new)
            self.assertIn('TERN_SOVERSION', why)
            self.assertTrue(stale)
            self.assertIsNone(self.judged(new, new_so=2, new_version=(0, 2, 0))[0])
            self.assertIsNone(self.judged(new, released=False)[0])

    def test_what_came_needs_another_minor_version(self):
        new = {**self.OLD, 'function tern_b': 'int (void) TERN_0.2'}
        self.assertIn('minor', self.judged(new)[0])
        self.assertEqual(self.judged(new, new_version=(0, 2, 0)), (None, True))
        self.assertEqual(self.judged(new, released=False), (None, False))  # until it is written down

    def test_parameters_lose_their_names(self):
        declaration = [d for d in capi.Header('x', TEXT).all('function') if d.name == 'tern_x_open'][0]
        self.assertEqual(abi.signature(declaration.bare()), 'int (const char *, tern_y **)')


if __name__ == '__main__':
    unittest.main()
