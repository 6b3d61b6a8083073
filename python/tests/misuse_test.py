# SPDX-License-Identifier: Apache-2.0
"""What people do wrong: each gives a clear exception, and the process, the peer and the next call are as before."""
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref

import numpy as np

import tern
from common import Pair


class MisuseTest(Pair):
    def setUp(self):
        super().setUp()
        self.table = self.tables().create(tern.Schema('t', dim=4))

    def wrong(self, kind, words, function, *args, **kwargs):
        with self.assertRaises(kind) as caught:
            function(*args, **kwargs)
        self.assertIn(words, str(caught.exception))

    def test_shapes_and_types(self):
        table, push = self.table, self.table.push
        self.wrong(ValueError, '(2, 4)', push, [1, 2], np.zeros((2, 3), 'float32'))
        self.wrong(ValueError, 'no dtype', push, [1], np.zeros((1, 4), 'complex64'))
        self.wrong(ValueError, 'contiguous', push, [1, 2], np.zeros((2, 8), 'float32')[:, ::2])
        self.wrong(ValueError, 'integers', table.pull, np.zeros(2, 'float32'))
        self.wrong(ValueError, '(1, 4)', table.pull, [1], np.zeros((4, 4), 'float32'))
        self.wrong(ValueError, 'no policy', table.pull, [1], unknown='guess')
        self.wrong(ValueError, 'no mode', push, [1], np.zeros((1, 4), 'float32'), mode='subtract')
        frozen = np.zeros((1, 4), 'float32')
        frozen.flags.writeable = False
        self.wrong(ValueError, 'read-only', table.pull, [1], frozen)
        self.wrong(ValueError, 'to be bf16', table.pull, [1], np.zeros((1, 4), 'float32'), dtype='bf16')
        self.wrong(TypeError, 'rows: expected', table.pull, [1], 'rows')
        self.wrong(ValueError, 'dim', self.create, tern.Schema('u', dim=9999))
        self.assertEqual(table.pull([1]).shape, (1, 4))

    def create(self, schema):
        return self.ctx.tables(self.serve.address).create(schema)

    def test_use_after_close(self):
        tables = self.ctx.tables(self.serve.address)
        table = tables.open('t')
        tables.close()
        tables.close()
        self.wrong(tern.ClosedError, 'closed', table.pull, [1])
        link = self.ctx.connect(self.serve.address)
        link.close()
        self.wrong(tern.ClosedError, 'closed', link.open, 'x')
        array = self.ctx.array(np.ones(1000, 'float32'))
        self.ctx.close()
        self.wrong(tern.ClosedError, 'closed', self.ctx.empty, 3)
        self.wrong(tern.ClosedError, 'closed', self.table.pull, [1])
        array += 1  # an array outlives its context
        self.assertEqual(array.sum(), 2000)

    def test_memory_goes_with_the_last_reference(self):
        """A context is no part of a cycle once it is closed: nothing waits for the collector."""
        gc.disable()
        self.addCleanup(gc.enable)
        serve, work = tern.Context('serve'), tern.Context('work')
        serve.table_server()
        table = work.tables(serve.address).create(tern.Schema('t', dim=4))
        self.assertEqual(table.pull([1]).shape, (1, 4))
        work.close()
        serve.close()
        cores = weakref.ref(serve._core), weakref.ref(work._core)  # pylint: disable=protected-access
        del serve, work, table
        self.assertEqual([core() for core in cores], [None, None])

    def test_server_goes_away(self):
        self.serve.close()
        self.wrong(tern.TernError, '', self.table.pull, [1], timeout=0.5)

    def test_fork(self):
        array = self.ctx.array(np.arange(4.0))
        report, words = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.in_the_child(array, words)
            finally:  # not by exit: a memory checker would look for what the parent owns
                os.execv('/bin/true', ['true'])
        os.close(words)
        with os.fdopen(report) as file:
            said = file.read()
        os.waitpid(pid, 0)
        self.assertIn('parent', said)
        self.assertIn('own context: 0.0 well', said)
        self.assertEqual(array[0], 0)
        self.assertEqual(self.table.pull([1]).shape, (1, 4))

    def in_the_child(self, array, words):
        array[0] = 9  # a private copy
        try:
            self.table.pull([1])
        except tern.ClosedError as error:
            os.write(words, str(error).encode())
        with tern.Context('child') as own:
            os.write(words, f' own context: {own.zeros(5).sum()}'.encode())
        self.ctx.close()
        del array
        gc.collect()
        os.write(words, b' well')

    def test_signal_in_a_wait(self):
        # a shell's background job ignores SIGINT, and Python leaves it so
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        kept = []
        self.serve.serve(4, lambda request: kept.append(request.keep()))
        caller = self.ctx.rpc(self.serve.address)
        main = threading.get_ident()
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        start = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            caller.call(4, b'', timeout=60)
        self.assertLess(time.monotonic() - start, 30)
        for request in kept:
            request.reply(b'')
        self.assertEqual(self.table.pull([1]).shape, (1, 4))

    def test_wait_in_a_callback(self):
        seen = []

        def handler(_request):
            try:
                self.table.pull([1])
            except tern.UsageError as error:
                seen.append(str(error))
            return b'ok'
        self.ctx.serve(9, handler)
        caller = self.serve.rpc(self.ctx.address)
        self.assertEqual(caller.call(9, timeout=60), b'ok')
        self.assertIn('must not wait', seen[0])

    def test_exception_in_a_callback(self):
        def refuse(_channel):
            raise RuntimeError('not today')
        self.serve.listen('refused', refuse)
        channel = self.ctx.connect(self.serve.address).open('refused')
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        stderr, sys.stderr = sys.stderr, open(os.devnull, 'w', encoding='utf-8')
        try:
            with self.assertRaises(tern.TernError):
                channel.receive(60)
        finally:
            sys.stderr.close()
            sys.stderr, sys.unraisablehook = stderr, hook

    def test_reply_twice(self):
        errors, tried = [], threading.Event()

        def handler(request):
            request.reply(b'one')
            try:
                request.reply(b'two')
            except tern.ClosedError as error:
                errors.append(error)
            request.kept = True
            tried.set()
        self.serve.serve(6, handler)
        self.assertEqual(self.ctx.rpc(self.serve.address).call(6, timeout=60), b'one')
        self.assertTrue(tried.wait(60))
        self.assertEqual(len(errors), 1)

    def program(self, text, **env):
        # -c looks into the working folder first
        return subprocess.run([sys.executable, '-c', text], capture_output=True, text=True, timeout=300, check=False, cwd='/',
                              env=dict(os.environ, **env))

    def test_exit_without_closing(self):
        done = self.program('import tern, numpy as np\n'
                            's = tern.Context(); s.table_server(); c = tern.Context()\n'
                            't = c.tables(s.address).create(tern.Schema("t", dim=4))\n'
                            'a = t.pull(range(100)); ops = [t.start_pull(range(1000)) for _ in range(5)]\n'
                            'print(a.shape)\n')
        self.assertEqual((done.returncode, done.stdout), (0, '(100, 4)\n'), done.stderr)

    def test_wrong_library(self):
        done = self.program('import tern', LIBTERN_PATH='/nonexistent/libtern.so')
        self.assertIn('ImportError', done.stderr)
        self.assertIn('LIBTERN_PATH', done.stderr)

    def test_two_versions_installed(self):
        """The package of another minor version than the library that is found."""
        with tempfile.TemporaryDirectory(prefix='tern-test-') as folder:
            package = os.path.join(folder, 'tern')
            shutil.copytree(os.path.dirname(tern.__file__), package, ignore=shutil.ignore_patterns('__pycache__'))
            with open(os.path.join(package, '_headers.py'), 'r+', encoding='utf-8') as file:
                said = file.read()
                other = said.replace(f"'TERN_VERSION_STRING': '{tern.__version__}'", "'TERN_VERSION_STRING': '0.77.0'")
                self.assertNotEqual(said, other)
                file.seek(0)
                file.write(other)
            done = self.program('import tern', PYTHONPATH=folder)
        self.assertIn('ImportError', done.stderr)
        self.assertIn('this package is of tern 0.77.0', done.stderr)
        self.assertIn(f'is of tern {tern.__version__}: two versions are installed', done.stderr)


if __name__ == '__main__':
    unittest.main()
