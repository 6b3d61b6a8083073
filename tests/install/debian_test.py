#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""debian/ against the tree: what it says a second time is the same. Builds nothing (chroot_test.py does)."""
import glob
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as file:
        return file.read()


def field(text, name):
    return re.search(rf'^{name}:(.*(?:\n[ \t].*)*)', text, re.M).group(1)


class Debian(unittest.TestCase):
    def setUp(self):
        self.control = read('debian/control')
        self.packages = re.findall(r'^Package: (\S+)', self.control, re.M)
        self.cmake = read('CMakeLists.txt')

    def test_builds_with_what_dev_builds_with(self):
        needed = re.search(r'^PACKAGES_BUILD="([^"]*)"', read('dev'), re.M).group(1)
        names = {word.split(':')[0] for word in needed.split()} - {'build-essential'}
        stated = {re.split(r'[ (:]', item.strip())[0] for item in field(self.control, 'Build-Depends').split(',')}
        self.assertEqual(names - stated, set())
        self.assertGreater(len(names), 8)

    def test_version(self):
        version = re.search(r'project\(tern VERSION ([\d.]+)', self.cmake).group(1)
        self.assertEqual(re.match(r'tern \(([^)]*)\)', read('debian/changelog')).group(1), version)
        self.assertEqual(re.search(r'^version = "(.*)"', read('python/pyproject.toml'), re.M).group(1), version)

    def test_names_of_libraries(self):
        number = re.search(r'set\(TERN_SOVERSION (\d+)\)', self.cmake).group(1)
        libraries = [name for name in self.packages if re.fullmatch(r'lib.*\d', name)]
        self.assertEqual({re.sub(r'\d+$', '', name) for name in libraries}, {'libtern', 'libtern-graph', 'libtern-http'})
        for name in libraries:
            self.assertTrue(name.endswith(number), name)
        self.assertIn(f"'libtern.so.{number}'", read('python/tern/_lib.py'))

    def test_symbols_name_the_nodes_of_the_maps(self):
        maps = {os.path.basename(path)[:-4]: set(re.findall(r'^(\w[\w.]*) \{', read(path), re.M))
                for path in glob.glob(f'{ROOT}/src/*.map')}
        for library, nodes in maps.items():
            number = next(name for name in self.packages if re.fullmatch(rf'lib{library}\d+', name))
            text = read('debian', f'{number}.symbols')
            self.assertEqual(set(re.findall(r'\(symver\)(\S+)', text)), nodes, number)

    def test_each_package_has_its_files(self):
        for name in self.packages:
            self.assertTrue(os.path.exists(os.path.join(ROOT, f'debian/{name}.install')), name)


if __name__ == '__main__':
    unittest.main(verbosity=2)
