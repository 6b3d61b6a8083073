#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bash completion offers exactly what the command's help lists.

Usage: completion_test.py TERN_BASH [TERN]   (without the command only the completion's own rules are tested)
"""
import os
import re
import subprocess
import sys
import unittest

SCRIPT = sys.argv[1]
TERN = sys.argv[2] if len(sys.argv) > 2 and os.access(sys.argv[2], os.X_OK) else None

ASK = '''
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_tern
printf '%s\\n' "${COMPREPLY[@]}"
'''
MODELS = {'mlp', 'fcn5', 'convnet', 'convnet_small', 'convnet_bn', 'lstm_small', 'gru_small', 'alexnet', 'vgg16', 'inception_v3', 'lstm',
          'gru', 'charlm', 'transformer', 'seq2seq', 'word2vec', 'dlrm'}
OPTION = re.compile(r'^  (--[a-z0-9-]+)(?: (\S+))?(?:  |$)', re.M)
CHOICES = re.compile(r'[a-z0-9]+(\|[a-z0-9]+)+')


def offered(*words):
    """What completion offers for the last of the words."""
    done = subprocess.run(['bash', '--norc', '-c', ASK, 'bash', SCRIPT, *words], capture_output=True, text=True,
                          timeout=20, check=True)
    if done.stderr:
        raise AssertionError(done.stderr)
    return set(done.stdout.split())


def help_of(*command):
    return subprocess.run([TERN, *command, '--help'], capture_output=True, text=True, timeout=20, check=True,
                          stdin=subprocess.DEVNULL).stdout


class Rules(unittest.TestCase):
    def test_values_stand_behind_their_options(self):
        self.assertEqual(offered('tern', 'train', '--model', ''), MODELS)
        self.assertEqual(offered('tern', 'train', '--model', 'f'), {'fcn5'})
        self.assertEqual(offered('tern', 'train', '--model', '='), MODELS)
        self.assertEqual(offered('tern', 'train', '--model', '=', 'm'), {'mlp'})

    def test_numbers_get_no_offers(self):
        self.assertEqual(offered('tern', 'train', '--steps', ''), set())

    def test_flags_are_followed_by_options(self):
        self.assertIn('--comm', offered('tern', 'train', '--sync', ''))

    def test_lists_grow(self):
        self.assertEqual(offered('tern', 'perf', '--op', ''), {'put', 'notify', 'get', 'send', 'call'})
        self.assertEqual(offered('tern', 'perf', '--op', 'put,c'), {'put,call'})
        self.assertEqual(offered('tern', 'perf', '--op', 'put,call,'), {'put,call,notify', 'put,call,get', 'put,call,send'})

    def test_files(self):
        here = os.path.dirname(os.path.abspath(__file__)) + '/'
        self.assertIn(here + 'completion_test.py', offered('tern', 'train', '--losses', here))
        self.assertNotIn(here + 'completion_test.py', offered('tern', 'train', '--data', here))


@unittest.skipUnless(TERN, 'the command was not built')
class Help(unittest.TestCase):
    def commands(self):
        names = re.findall(r'^  ([a-z]+) ', help_of(), re.M)
        self.assertGreaterEqual(len(names), 4)
        return names

    def test_commands(self):
        self.assertEqual(offered('tern', ''), {*self.commands(), '--help', '--version'})

    def lines(self):
        """Everything that takes options: (command,) and (command, subcommand)."""
        for command in self.commands():
            text = help_of(command)
            subcommands = re.findall(r'^  ([a-z]+) ', text, re.M) if 'SUBCOMMAND' in text else []
            if subcommands:
                self.assertEqual(offered('tern', command, ''), {*subcommands, '--help'}, command)
            yield from ((command, name) for name in subcommands)
            if not subcommands:
                yield (command,)

    def test_options(self):
        for line in self.lines():
            listed = dict(OPTION.findall(help_of(*line)))
            self.assertIn('--help', listed)
            self.assertEqual(offered('tern', *line, '--'), set(listed), line)

    def test_values(self):
        for line in self.lines():
            command = ' '.join(line)
            options = OPTION.findall(help_of(*line))
            every = {name for name, _ in options}
            for name, meta in options:
                got = offered('tern', *line, name, '')
                if CHOICES.fullmatch(meta):
                    self.assertEqual(got, set(meta.split('|')), f'{command} {name}')
                elif meta:
                    self.assertFalse(got & every, f'{command} {name} takes a value: no options behind it')
                else:
                    self.assertEqual(got, every, f'{command} {name} is a flag: options behind it')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
