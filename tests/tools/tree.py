# SPDX-License-Identifier: Apache-2.0
"""A small tree in a temporary folder, for tests that plant violations in it."""
import os
import shutil
import tempfile

HEAD = '/* SPDX-License-Identifier: Apache-2.0 */\n/*\n * Owns nothing.\n */\n'


class Tree:
    def __init__(self):
        self.root = tempfile.mkdtemp(prefix='tern-test-tree-')

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as f:
            f.write(text)

    def source(self, path, text):
        self.write(path, HEAD + text)

    def remove(self):
        shutil.rmtree(self.root)
