# SPDX-License-Identifier: Apache-2.0
"""What a process does where verbs cannot be used, on this host as it is and without libibverbs: mode auto goes on
over shm or tcp, required fails with the remedy, off says nothing. With a device that cannot be used, see
tests/vm/fallback_guest.sh, which needs one to take away.

Taking libibverbs away needs a mount namespace: as root, or where users may make one.
"""
import json
import os
import shutil
import subprocess
import unittest

from common import TERN, environment, tern

# A file system over the library's folder with a hole in it, seen by that command alone.
HIDE = '''
hole=$1; shift
at=$(mktemp -d) && mount -t tmpfs none "$at" && mkdir "$at/up" "$at/work" || exit 125
mknod "$at/up/$(basename "$hole")" c 0 0 || exit 125
mount -t overlay none -o "lowerdir=$(dirname "$hole"),upperdir=$at/up,workdir=$at/work" "$(dirname "$hole")" || exit 125
umount -l "$at"; rmdir "$at"
exec "$@"
'''


def find_library():
    out = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    paths = [line.split()[-1] for line in out.splitlines() if "libibverbs.so.1 " in line]
    return paths[0] if paths else None


LIBRARY = find_library() if os.path.exists("/sbin/ldconfig") else None
DEVICES = os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband")


def can_hide():
    """Why the library cannot be taken away here, "" if it can (or there is none)."""
    if not LIBRARY:
        return ""
    if not shutil.which("unshare"):
        return "no unshare(1)"
    done = subprocess.run(["unshare", "-m", "sh", "-c", HIDE, "sh", LIBRARY, "sh", "-c", f"! test -e {LIBRARY}"],
                          capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no mount namespace: {done.stderr.strip()[:100]}"


WHY_NOT = can_hide()


def hidden(*args, env):
    """Run tern where there is no libibverbs; (status, stdout, stderr)."""
    words = [TERN, *args]
    if LIBRARY:
        words = ["unshare", "-m", "sh", "-c", HIDE, "sh", LIBRARY, *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env, stdin=subprocess.DEVNULL,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def mentions(err):
    return [line for line in err.splitlines() if "verbs" in line]


class Modes(unittest.TestCase):
    """Each mode with one context: tern info --memory opens one as jobs do."""

    def context(self, mode, level="warn"):
        return tern("info", "--memory", env=environment(TERN_VERBS_MODE=mode, TERN_LOG_LEVEL=level))

    @unittest.skipIf(DEVICES, "this host has an RDMA device")
    def test_auto_without_a_device(self):
        # no device, nothing to warn of; who asks is told
        status, _, err = self.context("auto")
        self.assertEqual((status, err), (0, ""))
        status, _, err = self.context("auto", "info")
        self.assertEqual(status, 0)
        self.assertEqual(len(mentions(err)), 1, err)
        self.assertIn("going on without it", err)

    @unittest.skipIf(DEVICES, "this host has an RDMA device")
    def test_required_without_a_device(self):
        status, out, err = self.context("required")
        self.assertEqual(status, 1, out)
        self.assertIn("required by verbs.mode", err)
        self.assertRegex(err, "ib_uverbs|no RDMA devices|install libibverbs1")
        self.assertEqual(len(err.splitlines()), 1, err)

    @unittest.skipIf(DEVICES, "this host has an RDMA device")
    def test_a_job_that_requires_verbs(self):
        env = environment(TERN_VERBS_MODE="required")
        status, _, err = tern("perf", "--op", "put", "--sizes", 8, "--rounds", 1, "--round-time", "0.01", env=env)
        self.assertEqual(status, 1)
        self.assertIn("required by verbs.mode", err)

    def test_off(self):
        status, _, err = self.context("off", "info")
        self.assertEqual(status, 0)
        self.assertEqual([line for line in mentions(err) if "off" not in line], [], err)
        _, out, _ = tern("info", "--json", check=0, env=environment(TERN_VERBS_MODE="off"))
        verbs = [p for p in json.loads(out)["providers"] if p["name"] == "verbs"]
        for p in verbs:
            self.assertFalse(p["usable"])
            self.assertIn("verbs.mode", p["reason"])

    def test_no_such_mode(self):
        status, _, err = self.context("always")
        self.assertEqual(status, 1)
        self.assertIn("auto|off|required", err)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class NoLibrary(unittest.TestCase):
    def test_auto(self):
        status, _, err = hidden("info", "--memory", env=environment(TERN_LOG_LEVEL="info"))
        self.assertEqual(status, 0, err)
        said = mentions(err)
        self.assertEqual(len(said), 1, err)
        self.assertIn("install libibverbs1", said[0])
        self.assertIn("going on without it", said[0])

    def test_required(self):
        status, _, err = hidden("info", "--memory", env=environment(TERN_VERBS_MODE="required"))
        self.assertEqual(status, 1)
        self.assertIn("required by verbs.mode", err)
        self.assertIn("install libibverbs1", err)

    def test_a_job(self):
        status, out, err = hidden("perf", "--op", "put,send", "--sizes", "8", "--rounds", "1", "--round-time", "0.01",
                                  "--json", env=environment())
        self.assertEqual(status, 0, err)
        self.assertEqual(json.loads(out)["transport"], "shm")

    def test_doctor(self):
        status, out, _ = hidden("doctor", "--json", "--no-self-test", env=environment())
        found = {f["check"]: f for f in json.loads(out)["findings"]}
        self.assertEqual(found["libibverbs"]["verdict"], "fail" if DEVICES else "warn")
        self.assertIn("ibverbs-providers", found["libibverbs"]["change"])
        self.assertEqual(status, 1 if DEVICES else 0)
        status, _, _ = hidden("doctor", "--no-self-test", env=environment(TERN_VERBS_MODE="required"))
        self.assertEqual(status, 1)


class HugePages(unittest.TestCase):
    """Those that the host has, few or none: registered memory says what it got, and goes on."""

    def test_auto_and_required(self):
        with open("/proc/meminfo", encoding="ascii") as file:
            pages = {line.split(":")[0]: int(line.split()[1]) for line in file if line.startswith("HugePages_")}
        env = environment(TERN_LOG_LEVEL="warn", TERN_MEM_EXTENT_MIN="64MiB")
        status, out, err = tern("info", "--memory", "--json", env=env)
        self.assertEqual(status, 0, err)
        memory = json.loads(out)["memory"]
        if pages["HugePages_Free"] < 32:
            self.assertNotEqual(memory["pages"], "huge")
            # the way of asking for nothing else says what is missing
            self.assertIn("raise vm.nr_hugepages", memory["huge_pages"])
            warnings = [line for line in err.splitlines() if "huge pages" in line]
            self.assertEqual(len(warnings), 1 if pages["HugePages_Total"] else 0, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
