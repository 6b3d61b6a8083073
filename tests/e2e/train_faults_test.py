#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults at random steps of a training job: a process is killed, stands still, or is cut off from the network. The job ends
or goes on as --on-failure says, within the bound, and names whose fault it was; what is resumed, and what goes on with a new
server, comes to the same bits as a job that nobody disturbed. A cut that is shorter than the bound costs time and nothing else.

The whole test lives in a network of its own, where routing rules drop what goes to and from the ports of one process.

TERN_TEST_FAULTS: so many faults (6), TERN_TEST_SEED: of which seed (another one each time). Many: ./dev faults 100.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from common import DataCase, SANITIZED, TERN, end, enter, environment, wait_for_children

FAULTS = int(os.environ.get("TERN_TEST_FAULTS", "6"))
SEED = int(os.environ.get("TERN_TEST_SEED") or random.randrange(1 << 32))
KEEPALIVE_MS = 500 * (2 if SANITIZED else 1)  # below what the launcher waits for more witnesses
# Five keepalives unanswered and one before the first, the witnesses' time to agree, the others' to end; and a busy machine.
BOUND_S = 6 * KEEPALIVE_MS / 1000 + 1.5 + 3 + 15
SERVERS, WORKERS, EVERY = 2, 2, 20
PARTS = [f"server{i}" for i in range(SERVERS)] + [f"worker{i}" for i in range(WORKERS)]


def ports_of(pid):
    """Local ports of all its TCP sockets."""
    inodes, ports = set(), set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
        for row in list(file)[1:]:
            words = row.split()
            if f"socket:[{words[9]}]" in inodes:
                ports.add(int(words[1].split(":")[1], 16))
    return sorted(ports)


class Cut:
    """Packets to and from these ports vanish, as long as it lasts."""

    def __init__(self, ports):
        # tcp as a number: names are of /etc/protocols, which a small machine lacks
        self.rules = [f"pref 10 ipproto 6 {side} {port} blackhole" for port in ports for side in ("sport", "dport")]
        self.run("add")

    def run(self, what):
        subprocess.run(["ip", "-batch", "-"], input="".join(f"rule {what} {rule}\n" for rule in self.rules), text=True, check=True)

    def heal(self):
        if self.rules:
            self.run("del")
        self.rules = []


class Faults(DataCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run(["ip", "-batch", "-"], check=True, text=True,
                       # what leads to this host comes after the rules, not before
                       input="link set lo up\nrule add pref 1000 lookup local\nrule del pref 0\n")
        print(f"seed {SEED}")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.undisturbed = {}

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def job(self, name, steps, *args):
        return [TERN, "train", "--data", self.data, "--quiet", "--json", "--no-eval", "--sync", "--batch", "16", "--seed", "3",
                "--servers", str(SERVERS), "--workers", str(WORKERS), "--transport", "tcp", "--steps", str(steps),
                "--save", self.path(name), "--losses", self.path(f"{name}.txt"), *args]

    def start(self, *args, keepalive=KEEPALIVE_MS):
        return subprocess.Popen(self.job(*args), env=environment(TERN_LINK_KEEPALIVE=f"{keepalive}ms"), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, *args):
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=200)
        finally:
            end(process)
        self.assertEqual(process.returncode, 0, err)
        return json.loads(out)

    def losses(self, name):
        with open(self.path(f"{name}.txt"), encoding="ascii") as file:
            return file.read().splitlines()

    def last(self, name, steps):
        """The variables at the end."""
        found = {}
        folder = self.path(name, f"step-{steps:010}")
        for file in sorted(os.listdir(folder)):
            with open(os.path.join(folder, file), "rb") as content:
                found[file] = content.read()
        return found

    def reference(self, steps, comm):
        """Losses and last variables of the job that nobody disturbs. The way tensors go makes no difference to them."""
        name = f"whole-{steps}"
        if name not in self.undisturbed:
            self.finish(name, steps, "--comm", comm)
            self.undisturbed[name] = self.losses(name), self.last(name, steps)
        return self.undisturbed[name]

    def saved(self, name):
        """The newest step of which all servers have a checkpoint."""
        steps = [0]
        for folder, _, files in os.walk(self.path(name)):
            match = re.search(r"step-(\d+)$", folder)
            if match and len([f for f in files if not f.startswith(".")]) == SERVERS:
                steps.append(int(match.group(1)))
        return max(steps)

    def wait_for_step(self, process, name, step):
        while process.poll() is None and self.saved(name) < step:
            time.sleep(0.005)
        return process.poll() is None

    # ---- faults that are there to stay ----

    def inflict(self, kind, pid):
        """Returns what takes it back, for the jobs after this one: they may be given the same ports."""
        if kind == "cut":
            return Cut(ports_of(pid)).heal
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        return lambda: None

    def disturbed(self, dice, kind, victim, steps, name, *args):
        """Returns (status, standard output, standard error), or None: it was quicker than we."""
        process, over = self.start(name, steps, "--save-every", str(EVERY), *args), lambda: None
        try:
            parts = wait_for_children(process, SERVERS + WORKERS)
            if not self.wait_for_step(process, name, dice.randrange(EVERY, steps // 2, EVERY)):
                return None
            time.sleep(dice.random() * 0.05)
            began = time.monotonic()
            over = self.inflict(kind, parts[victim])
            if "shrink" in args:  # how long is seen by when it goes on
                line = ""
                while "going on" not in line and process.poll() is None:
                    line = process.stderr.readline()
                    self.said += line
                took = time.monotonic() - began
                over()  # that process is gone; its ports are anybody's
            out, err = process.communicate(timeout=200)
            if "shrink" not in args:
                took = time.monotonic() - began
        finally:
            end(process)
            over()
        self.said += err
        if process.returncode == 0 and "going on" not in self.said:
            return None
        self.assertLess(took, BOUND_S, self.said)
        return process.returncode, out

    def judge_name(self, kind, victim):
        """The launcher's own line names the victim, and first."""
        lines = [line for line in self.said.splitlines() if line.startswith("tern train: ")]
        self.assertTrue(lines, self.said)
        why = "was killed by signal 9" if kind == "kill" else r"is lost to [12] of its 2 peers"
        self.assertRegex(lines[0], rf"^tern train: {victim} \(pid \d+\) {why}", self.said)

    def judge_stop(self, name, steps, comm, status):
        self.assertEqual(status, 1, self.said)
        at = self.saved(name)
        result = self.finish(f"{name}-on", steps, "--comm", comm, "--resume", self.path(name))
        self.assertEqual(result["steps"], steps - at)
        losses, variables = self.reference(steps, comm)
        self.assertEqual(self.losses(f"{name}-on"), losses[at:])
        self.assertEqual(self.last(f"{name}-on", steps), variables)

    def judge_shrink(self, name, steps, comm, victim, status, out):
        self.assertEqual(status, 0, self.said)
        self.assertEqual(json.loads(out)["failures"], 1, self.said)
        losses, variables = self.reference(steps, comm)
        match = re.search(r"going on from step (\d+) with (\d) worker", self.said)
        self.assertEqual(int(match.group(2)), WORKERS - (victim[0] == "w"), self.said)
        got = self.losses(name)
        self.assertEqual([int(line.split()[0]) for line in got], list(range(steps)))
        if victim[0] == "s":  # another one took its place
            self.assertEqual(got, losses)
            self.assertEqual(self.last(name, steps), variables)
        else:
            at = max(int(match.group(1)) - 1, 0)  # the loss of the step that made the checkpoint may have died with its worker
            self.assertEqual(got[:at], losses[:at])

    def one(self, number, dice, kind, mode):
        steps, comm, victim = 500, dice.choice(("zerocopy", "zerocopy", "copy", "rpc")), dice.choice(PARTS)
        for attempt in range(6):  # quick machines: more steps
            self.said, name = "", f"fault{number}-{attempt}"
            what = self.disturbed(dice, kind, victim, steps, name, "--comm", comm, "--on-failure", mode)
            if what:
                break
            steps *= 2
        self.assertIsNotNone(what, "it was always over before it could be disturbed")
        print(f"{kind} of {victim} after step {self.saved(name) if mode == 'stop' else '?'} of {steps}, {comm}, {mode}", flush=True)
        self.judge_name(kind, victim)
        if mode == "stop":
            self.judge_stop(name, steps, comm, what[0])
        else:
            self.judge_shrink(name, steps, comm, victim, *what)
        shutil.rmtree(self.path(name), ignore_errors=True)

    def test_at_random_steps(self):
        kinds = [(kind, mode) for kind in ("cut", "stop", "kill") for mode in ("stop", "shrink")]
        for i in range(FAULTS):
            kind, mode = kinds[i % len(kinds)]
            with self.subTest(seed=SEED, fault=i, kind=kind, mode=mode):
                self.one(i, random.Random(f"{SEED} {i}"), kind, mode)

    # ---- faults that pass ----

    def test_short_cuts_cost_time_only(self):
        """Several in one job, of one process or another, each much shorter than the bound."""
        dice = random.Random(f"{SEED} short")
        bound_s = 10  # so that a machine that stands still does not make a short cut a long one
        for comm in ("zerocopy", "rpc"):
            steps, cuts = 500, 0
            while cuts < 2:  # quick machines: more steps
                cuts, steps = 0, steps * 2
                name = f"short-{comm}-{steps}"  # what another job saved says nothing about this one
                process = self.start(name, steps, "--comm", comm, "--save-every", str(EVERY), keepalive=bound_s * 200)
                try:
                    parts = wait_for_children(process, SERVERS + WORKERS)
                    while self.wait_for_step(process, name, dice.randrange(EVERY, steps // 2, EVERY)) and cuts < 4:
                        try:
                            cut = Cut(ports_of(parts[dice.choice(PARTS)]))
                        except FileNotFoundError:  # the job is over
                            break
                        time.sleep(dice.uniform(0.05, 0.6))
                        cut.heal()
                        cuts += process.poll() is None
                        time.sleep(dice.random() * 0.3)
                    out, err = process.communicate(timeout=200)
                finally:
                    end(process)
                self.assertEqual(process.returncode, 0, err)
                self.assertLess(steps, 100000, "it was always over before it could be disturbed")
            self.assertEqual(json.loads(out)["failures"], 0)
            losses, variables = self.reference(steps, comm)
            self.assertEqual(self.losses(name), losses)
            self.assertEqual(self.last(name, steps), variables)
            print(f"{cuts} short cuts in {steps} steps by {comm}: the same bits")


if __name__ == "__main__":
    enter("ip rule add pref 10 ipproto 6 dport 1 blackhole", "no network with rules of its own here")
    unittest.main(verbosity=2)
