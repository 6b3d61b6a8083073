# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: running the command, and a small data set made on the spot.

Every process that a test starts is ended by it; files live in a temporary directory of the test.
"""
import gzip
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

TERN = os.environ["TERN"]
INSIDE = "TERN_TEST_INSIDE"
SANITIZED = os.environ.get("TERN_SANITIZED", "")
FASHION = "/usr/share/datasets/fashion-mnist"


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TERN_")}
    env.update(more)
    return env


def tern(*args, timeout=400, env=None, check=None):
    """Run the command to its end; returns (status, stdout, stderr)."""
    done = subprocess.run([TERN, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          env=env or environment(), stdin=subprocess.DEVNULL, check=False)
    if check is not None and done.returncode != check:
        raise AssertionError(f"tern {' '.join(map(str, args))}: status {done.returncode}, not {check}\n"
                             f"stdout: {done.stdout}\nstderr: {done.stderr}")
    return done.returncode, done.stdout, done.stderr


RESUME_BOUND_MS = 10000  # option link.recover: a link that takes longer ends


def resume_times(err):
    """How long links stood after lanes had broken, in ms: what the log says."""
    return sorted(float(ms) for ms in re.findall(r"the lanes are rebuilt, after ([0-9.]+) ms", err))


def resume_line(what, times):
    def at(fraction):
        return times[min(int(len(times) * fraction), len(times) - 1)]

    return (f"{what}: {len(times)} resumed: p50 {at(.5):.2f} ms, p90 {at(.9):.2f}, p99 {at(.99):.2f}, max {times[-1]:.2f}; "
            f"bound {RESUME_BOUND_MS}")


def enter(probe, lacks):
    """Become root of a user namespace with an empty network, once; that ends with the process. probe: a shell command that
    says whether what the test needs works there; without it the test is skipped with the words `lacks`."""
    if INSIDE in os.environ:
        return
    os.environ["PATH"] = "/usr/sbin:/sbin:" + os.environ["PATH"]
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    tried = subprocess.run([*alone, "sh", "-c", probe], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        print(f"skipped: {lacks} ({tried.stderr.strip()})")
        sys.exit(77)
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*alone, sys.executable, "-B", *sys.argv])


def write_idx(path, dims, data, magic=None, compress=True):
    head = struct.pack(">I", 0x800 | len(dims) if magic is None else magic)
    head += b"".join(struct.pack(">I", d) for d in dims)
    with (gzip.open(path, "wb", compresslevel=1) if compress else open(path, "wb")) as file:
        file.write(head + data)


def make_dataset(folder, train=1200, test=200, seed=7):
    """Ten classes of noisy 28x28 patterns: easy to learn, quick to load."""
    rng = random.Random(seed)
    patterns = [bytes(rng.choice((0, 200)) for _ in range(784)) for _ in range(10)]
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(rng.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            noise = rng.randbytes(784)
            images += bytes(p ^ (n & 63) for p, n in zip(patterns[label], noise))
        write_idx(f"{folder}/{name}-images-idx3-ubyte.gz", (count, 28, 28), bytes(images))
        write_idx(f"{folder}/{name}-labels-idx1-ubyte.gz", (count,), labels)


def children_of(pid):
    """Processes of a launcher: {name of the role: pid}; "worker1/stage2" above the first stage."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            if parent != pid:
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if b"--role" in words:
                role = words[words.index(b"--role") + 1].decode()
                index = words[words.index(b"--index") + 1].decode()
                stage = "/stage" + words[words.index(b"--stage") + 1].decode() if b"--stage" in words else ""
                found[role + index + stage] = int(entry)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            continue
    return found


def wait_for_children(process, count, seconds=60):
    """Until a launcher has started so many processes; returns what there is by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        found = children_of(process.pid)
        if len(found) >= count:
            return found
        time.sleep(0.05)
    return children_of(process.pid)


def listening_ports(pid):
    """Ports of 127.0.0.1 on which a process accepts connections, in ascending order."""
    sockets = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    ports = []
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
        for row in list(file)[1:]:
            words = row.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                ports.append(int(words[1].split(":")[1], 16))
    return sorted(ports)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class DataCase(unittest.TestCase):
    """A test case with a small data set in self.data."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tern-test-")
        cls.data = cls.temporary.name
        make_dataset(cls.data)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def train(self, *args, check=0, **kw):
        status, out, err = tern("train", "--data", self.data, "--quiet", "--json", *args, check=check, **kw)
        return json.loads(out) if status == 0 else (out, err)


def end(process):
    """End a process that a test started, whatever it is doing."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
