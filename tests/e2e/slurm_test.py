# SPDX-License-Identifier: Apache-2.0
"""`tern run` below a real Slurm: slurmctld and slurmd of this test, on loopback, with a DDP job of two tasks."""
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from common import TERN, environment

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
SAY = ("import os; print(*(os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT', "
       "'TERN_RDMA_OPT')))")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@unittest.skipUnless(all(shutil.which(p) for p in ("slurmctld", "slurmd", "srun")), "Slurm is not installed")
@unittest.skipUnless(os.geteuid() == 0, "slurmd starts tasks as root alone")
class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tern-test-slurm-")
        cls.daemons = []
        try:
            for name in ("state", "spool"):
                os.mkdir(os.path.join(cls.folder, name))
            ctld, slurmd = free_ports(2)
            conf = os.path.join(cls.folder, "slurm.conf")
            with open(conf, "w", encoding="utf-8") as f:
                f.write(CONF.format(host=socket.gethostname().split(".")[0], ctld=ctld, slurmd=slurmd, folder=cls.folder,
                                    user=getpass.getuser(), cpus=os.cpu_count()))
            cls.env = environment(SLURM_CONF=conf, OMP_NUM_THREADS="1")
            for daemon in ("slurmctld", "slurmd"):
                log = open(os.path.join(cls.folder, daemon + ".log"), "w", encoding="utf-8")
                cls.daemons.append((subprocess.Popen([daemon, "-D"], env=cls.env, stdout=log, stderr=log), log))
            cls.await_node()
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def await_node(cls):
        for _ in range(150):
            state = subprocess.run(["sinfo", "-h", "-o", "%t"], env=cls.env, capture_output=True, text=True, check=False).stdout
            if state.strip() == "idle":
                return
            time.sleep(0.2)
        logs = ""
        for _, log in cls.daemons:
            with open(log.name, encoding="utf-8", errors="replace") as f:
                logs += f.read()[-2000:]
        raise AssertionError(f"Slurm's node did not come up: {state}\n{logs}")

    @classmethod
    def tearDownClass(cls):
        for daemon, log in reversed(cls.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            log.close()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def srun(self, *command):
        done = subprocess.run(["srun", "-n", "2", "--overcommit", *command], env=self.env, capture_output=True, text=True,
                              timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_ranks(self):
        rows = sorted(line.split() for line in self.srun(TERN, "run", sys.executable, "-c", SAY).splitlines())
        self.assertEqual([row[:4] + row[5:] for row in rows], [[str(i), "2", str(i), "127.0.0.1", "1"] for i in range(2)])
        self.assertEqual(rows[0][4], rows[1][4])

    def test_ddp(self):
        python = "/usr/bin/python3"
        if subprocess.run([python, "-c", "import torch, cffi, numpy"], capture_output=True, check=False).returncode:
            self.skipTest("python3-torch is not installed")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/tests/ddp_script.py")
        self.assertIn("backend tern", self.srun(TERN, "run", python, script, "--steps", "3"))


if __name__ == "__main__":
    unittest.main()
