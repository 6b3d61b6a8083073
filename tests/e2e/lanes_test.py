#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lanes are killed at random moments under a training job: the losses are those of a job whose lanes hold, bit for bit,
so nothing was lost, nothing came twice, and no tensor was read before it had arrived.

TERN_TEST_BREAKS: at least so many kills for each transport (300).
"""
import os
import unittest

from common import RESUME_BOUND_MS, DataCase, environment, resume_line, resume_times, tern

BREAKS = int(os.environ.get("TERN_TEST_BREAKS", "300"))
WAYS = ["zerocopy", "copy", "rpc"]


class Lanes(DataCase):
    def job(self, name, transport, comm, env):
        losses = f"{self.data}/{name}"
        _, _, err = tern("train", "--data", self.data, "--sync", "--steps", 12, "--batch", 16, "--hidden", "32,16",
                         "--transport", transport, "--comm", comm, "--losses", losses, "--quiet", "--json",
                         check=0, env=env)
        with open(losses, encoding="ascii") as file:
            return file.read(), err

    def broken(self, transport):
        right = {comm: self.job("right", transport, comm, environment())[0] for comm in WAYS}
        breaks = seed = 0
        times = []
        while breaks < BREAKS:
            comm = WAYS[seed % len(WAYS)]
            seed += 1
            self.assertLess(seed, 20 * BREAKS, "the lanes hardly ever break")
            env = environment(TERN_BASE_FAULT=f"channel.lane.break:p=0.02:{seed}")
            losses, err = self.job("broken", transport, comm, env)
            self.assertEqual(losses, right[comm], f"{comm}, seed {seed}:\n{err[-3000:]}")
            breaks += sum("rebuilding the lanes: lane" in line for line in err.splitlines())
            times += resume_times(err)
        times.sort()
        print(resume_line(transport, times))
        self.assertLessEqual(times[-1], RESUME_BOUND_MS)
        print(f"{transport}: {breaks} lanes killed in {seed} jobs, the same bits")

    def test_shm(self):
        self.broken("shm")

    def test_tcp(self):
        self.broken("tcp")


if __name__ == "__main__":
    unittest.main()
