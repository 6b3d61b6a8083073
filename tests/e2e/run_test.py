# SPDX-License-Identifier: Apache-2.0
"""`tern run`: ranks on this host, ranks of an engine, what they are told, and their ends."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from common import TERN, environment, tern

SAY = "import os; print(*(os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT')))"
ENGINES = re.compile(r"^(SLURM|OMPI|PMI|MPI|RANK|WORLD|LOCAL_RANK|MASTER|JOB_COMP|TORCHELASTIC)")


def clean(**more):
    env = {k: v for k, v in environment().items() if not ENGINES.match(k)}
    env.update(more)
    return env


class RunTest(unittest.TestCase):
    def show(self, **env):
        return json.loads(tern("run", "--show", "--json", env=clean(**env), check=0)[1])

    def test_ranks_here(self):
        _, out, _ = tern("run", "--nproc", 3, "--", sys.executable, "-c", SAY, env=clean(), check=0)
        rows = sorted(out.splitlines())
        self.assertEqual(len(rows), 3)
        ports = set()
        for i, row in enumerate(rows):
            words = row.split()
            self.assertEqual(words[:5], [f"[{i}]", str(i), "3", str(i), "127.0.0.1"])
            ports.add(words[5])
        self.assertEqual(len(ports), 1)
        self.assertEqual(tern("run", "echo", "alone", env=clean(), check=0)[1], "alone\n")

    def test_store_without_libuv(self):
        say = [sys.executable, "-c", "import os; print(os.environ['USE_LIBUV'])"]
        self.assertEqual(tern("run", "--", *say, env=clean(RANK="0", WORLD_SIZE="1", MASTER_ADDR="h"), check=0)[1], "0\n")
        self.assertEqual(tern("run", "--nproc", 1, "--", *say, env=clean(USE_LIBUV="1"), check=0)[1].split()[-1], "1")

    def test_one_fails(self):
        program = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(60)"
        start = time.monotonic()
        _, _, err = tern("run", "--nproc", 3, sys.executable, "-c", program, env=clean(), check=7)
        self.assertIn("rank 1 exited with status 7", err)
        self.assertLess(time.monotonic() - start, 30)
        program = "import os, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), 9)\ntime.sleep(60)"
        _, _, err = tern("run", "--nproc", 2, sys.executable, "-c", program, env=clean(), check=137)
        self.assertIn("rank 0 was killed by signal 9", err)

    def test_ctrl_c(self):
        run = subprocess.Popen([TERN, "run", "--nproc", "2", sys.executable, "-uc",
                                "import time\nprint('here')\ntime.sleep(60)"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=clean())
        try:
            self.assertIn("here", run.stdout.readline())
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=30)
        finally:
            run.kill()
        self.assertEqual(run.returncode, 130)
        self.assertIn("ending 2 ranks", err)

    def test_engines(self):
        slurm = self.show(SLURM_PROCID="5", SLURM_NTASKS="8", SLURM_LOCALID="1", SLURM_STEP_NUM_NODES="4",
                          SLURM_STEP_NODELIST="gpu[03-07,11]", SLURM_JOB_ID="77", SLURM_STEP_ID="0")
        self.assertEqual((slurm["engine"], slurm["rank"], slurm["size"], slurm["local_rank"], slurm["master"]),
                         ("slurm", 5, 8, 1, "gpu03"))
        other = self.show(SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_STEP_NUM_NODES="4", SLURM_STEP_NODELIST="gpu[03-07,11]",
                          SLURM_JOB_ID="77", SLURM_STEP_ID="0")
        self.assertEqual(other["port"], slurm["port"])
        alone = self.show(SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_STEP_NUM_NODES="1", SLURM_STEP_NODELIST="n9",
                          SLURM_JOB_ID="78")
        self.assertEqual(alone["master"], "127.0.0.1")
        for nodes, first in (("n1", "n1"), ("n1,n2", "n1"), ("a[1-2]-ib,b", "a1-ib"), ("r[9]", "r9")):
            found = self.show(SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_STEP_NUM_NODES="2", SLURM_STEP_NODELIST=nodes)
            self.assertEqual(found["master"], first)
        mpi = self.show(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="1",
                        OMPI_COMM_WORLD_LOCAL_SIZE="2", PMIX_NAMESPACE="prte-1")
        self.assertEqual((mpi["engine"], mpi["rank"], mpi["master"]), ("openmpi", 1, "127.0.0.1"))
        torchrun = self.show(RANK="2", WORLD_SIZE="4", LOCAL_RANK="0", MASTER_ADDR="h", MASTER_PORT="1234",
                             TORCHELASTIC_RUN_ID="x")
        self.assertEqual((torchrun["engine"], torchrun["master"], torchrun["port"]), ("torchrun", "h", 1234))
        kube = self.show(JOB_COMPLETION_INDEX="3", WORLD_SIZE="4", MASTER_ADDR="job-0.job")
        self.assertEqual((kube["engine"], kube["rank"], kube["size"], kube["master"]), ("kubernetes", 3, 4, "job-0.job"))

    def test_what_lacks(self):
        _, _, err = tern("run", "true", env=clean(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4",
                                                  OMPI_COMM_WORLD_LOCAL_SIZE="2"), check=2)
        self.assertIn("-x MASTER_ADDR", err)
        _, _, err = tern("run", "true", env=clean(RANK="4", WORLD_SIZE="4"), check=2)
        self.assertIn("rank 4 of 4", err)
        _, _, err = tern("run", "--nproc", 2, env=clean(), check=2)
        self.assertIn("which command", err)
        _, _, err = tern("run", "--nporc", "2", "true", env=clean(), check=2)
        self.assertIn("--nproc", err)
        self.assertEqual(tern("run", "/no/such/program", env=clean())[0], 127)

    @unittest.skipUnless(shutil.which("mpirun"), "openmpi-bin is not installed")
    def test_open_mpi(self):
        with tempfile.TemporaryDirectory(prefix="tern-test-mpi-") as folder:  # mpirun mixes what ranks print
            say = f"import os, sys; sys.stdout = open('{folder}/' + os.environ['RANK'], 'w'); {SAY}"
            done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", TERN, "run", sys.executable,
                                   "-c", say], capture_output=True, text=True, timeout=60, check=False,
                                  env=clean(OMPI_MCA_btl="self,vader", OMPI_MCA_plm_rsh_agent="false"))
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = []
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    rows.append(f.read().split())
        self.assertEqual([row[:4] for row in rows], [[str(i), "3", str(i), "127.0.0.1"] for i in range(3)])
        self.assertEqual(len({row[4] for row in rows}), 1)

    def test_torch(self):
        python = next((p for p in ("/usr/bin/python3", sys.executable)
                       if subprocess.run([p, "-c", "import torch, cffi, numpy"], capture_output=True, check=False).returncode == 0),
                      None)
        if python is None:
            self.skipTest("python3-torch is not installed")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/tests/ddp_script.py")
        _, out, _ = tern("run", "--nproc", 2, python, script, "--steps", 3, env=clean(OMP_NUM_THREADS="1"), check=0)
        self.assertIn("[0] backend tern", out)
        # (gloo of a PyTorch without libuv, that of Debian 13, has to be told so)
        _, out, _ = tern("run", "--nproc", 2, "--keep-backend", python, script, "--steps", 3,
                         env=clean(OMP_NUM_THREADS="1", USE_LIBUV="0"), check=0)
        self.assertIn("[0] backend gloo", out)


if __name__ == "__main__":
    unittest.main()
