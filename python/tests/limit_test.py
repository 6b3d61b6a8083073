# SPDX-License-Identifier: Apache-2.0
"""Tables larger than what a worker may have: it trains in a cgroup whose limit is below the size of the tables, and gets the
losses of nn.EmbeddingBag without a limit."""
import os
import re
import signal
import subprocess
import sys
import unittest

try:
    import limit_script
except ImportError as missing:
    raise unittest.SkipTest(f'it needs PyTorch: {missing}') from None

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 480 << 20  # Python and PyTorch alone take some 200 MiB
TABLES = limit_script.ROWS * limit_script.DIM * 4 * limit_script.TABLES


class Cgroup:
    """A group of processes below this one's own, with a limit of memory; v1 or v2."""

    def __init__(self, limit):
        with open('/proc/self/cgroup', encoding='ascii') as f:
            rows = dict((row[1], row[2]) for row in (line.strip().split(':', 2) for line in f))
        v1 = next((path for names, path in rows.items() if 'memory' in names.split(',')), None)
        if v1 is not None:
            base, name = '/sys/fs/cgroup/memory' + v1, 'memory.limit_in_bytes'
        else:
            base, name = '/sys/fs/cgroup' + rows[''], 'memory.max'
        self.path = os.path.join(base, f'tern-test-{os.getpid()}')
        os.mkdir(self.path)
        try:
            with open(os.path.join(self.path, name), 'w', encoding='ascii') as f:
                f.write(str(limit))
            swap = os.path.join(self.path, 'memory.memsw.limit_in_bytes' if v1 is not None else 'memory.swap.max')
            if os.path.exists(swap):
                with open(swap, 'w', encoding='ascii') as f:
                    f.write(str(limit) if v1 is not None else '0')
        except OSError:
            self.end()
            raise

    def run(self, *args):
        """A command inside."""
        def enter():
            with open(os.path.join(self.path, 'cgroup.procs'), 'w', encoding='ascii') as f:
                f.write(str(os.getpid()))
        return subprocess.run(args, preexec_fn=enter, capture_output=True, text=True, timeout=200, check=False)

    def end(self):
        os.rmdir(self.path)


class LimitTest(unittest.TestCase):
    def setUp(self):
        try:
            self.group = Cgroup(LIMIT)
        except (OSError, KeyError) as failure:
            self.skipTest(f'no cgroup can be made here: {failure}')
        self.addCleanup(self.group.end)
        self.server = subprocess.Popen([os.environ['TERN'], 'server'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.stop)
        self.address = self.server.stdout.readline().strip()

    def stop(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.communicate(timeout=60)

    def script(self, kind, run=None):
        args = sys.executable, '-B', os.path.join(HERE, 'limit_script.py'), kind, self.address
        done = run(*args) if run else subprocess.run(args, capture_output=True, text=True, timeout=200, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return [float(loss) for loss in done.stdout.split()]

    def test_training(self):
        self.assertGreater(TABLES, LIMIT)
        big = self.group.run(sys.executable, '-c', f'print(len(bytearray(b"x" * {TABLES})))')
        self.assertNotEqual(big.returncode, 0, 'the limit is none')
        self.script('fill')
        stats = subprocess.run([os.environ['TERN'], 'table', 'stats', '--server', self.address, 'bag0'], capture_output=True,
                               text=True, check=True).stdout
        self.assertRegex(stats, re.compile(rf'\b{limit_script.ROWS}\b'))
        local = self.script('local')  # first: training changes the tables
        remote = self.script('tern', self.group.run)
        self.assertEqual(len(remote), limit_script.STEPS)
        for a, b in zip(remote, local):
            self.assertAlmostEqual(a, b, delta=1e-4 + 1e-3 * abs(b))
        self.assertLess(sum(remote[-5:]) / 5, 0.6 * remote[0])


if __name__ == '__main__':
    unittest.main()
