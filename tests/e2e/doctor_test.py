# SPDX-License-Identifier: Apache-2.0
"""`tern doctor`: on this host as it is, and on hosts that are described by a folder (--sysroot), since nobody here
has their NICs: each trouble is found, named, and comes with what to change; reports tell nobody's name or address.
"""
import getpass
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import unittest

from common import TERN, environment, tern

# A host with one healthy dual-port NIC, its second port without a cable.
IB = "/sys/class/infiniband/mlx5_0"
HEALTHY = {
    "/sys/class/infiniband_verbs/abi_version": "6",
    "/sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
    "/dev/infiniband/uverbs0": "",
    f"{IB}/fw_ver": "20.31.1014",
    f"{IB}/board_id": "MT_0000000224",
    f"{IB}/node_guid": "0c42:a103:0055:1234",
    f"{IB}/device/current_link_speed": "16.0 GT/s PCIe",
    f"{IB}/device/max_link_speed": "16.0 GT/s PCIe",
    f"{IB}/device/current_link_width": "16",
    f"{IB}/device/max_link_width": "16",
    f"{IB}/device/numa_node": "0",
    f"{IB}/device/iommu_group/type": "identity",
    f"{IB}/ports/1/state": "4: ACTIVE",
    f"{IB}/ports/1/phys_state": "5: LinkUp",
    f"{IB}/ports/1/rate": "100 Gb/sec (4X EDR)",
    f"{IB}/ports/1/link_layer": "Ethernet",
    f"{IB}/ports/1/gid_attrs/ndevs/0": "ens1",
    f"{IB}/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a01:0203",
    f"{IB}/ports/1/hw_counters/out_of_sequence": "0",
    f"{IB}/ports/1/hw_counters/np_cnp_sent": "0",
    f"{IB}/ports/2/state": "1: DOWN",
    f"{IB}/ports/2/phys_state": "3: Disabled",
    f"{IB}/ports/2/link_layer": "Ethernet",
    "/sys/class/net/ens1/mtu": "9000",
    "/sys/class/net/ens1/statistics/rx_crc_errors": "0",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "/sys/module/ib_core/parameters/netns_mode": "Y",
    "/sys/fs/cgroup/memory.max": "max",
    "/proc/sys/vm/max_map_count": "65530",
    "/proc/meminfo": "MemAvailable:   64000000 kB\nHugePages_Total:    1024\nHugePages_Free:     1024",
    "/proc/self/cgroup": "0::/",
    "/proc/self/status": "CapEff:\t0000000000000000\nMems_allowed_list:\t0-1",
    "/proc/self/limits": "Max locked memory         unlimited            unlimited            bytes\n"
                         "Max open files            65536                1048576              files",
}
FACTS = {
    "library": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0",
    "devices": "1",
    "mlx5_0": "opens",
    "mlx5_0.port1.state": "ACTIVE",
    "mlx5_0.port1.active_mtu": "4096",
    "mlx5_0.port1.max_mtu": "4096",
    "mlx5_0.port1.gid.0": "fe80::e42:a1ff:fe55:1234 RoCEv1, not used: RoCEv1 is not routed",
    "mlx5_0.port1.gid.3": "::ffff:10.1.2.3 RoCEv2, usable: RoCEv2, IPv4",
    "mlx5_0.port1.gid_choice": "3 RoCEv2, IPv4",
}


class Described(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, self.root)

    def describe(self, files, facts):
        for path, text in files.items():
            full = self.root + path
            os.makedirs(os.path.dirname(full), exist_ok=True)
            mode = "wb" if isinstance(text, bytes) else "w"
            with open(full, mode) as file:
                file.write(text if isinstance(text, bytes) else text + "\n")
        with open(f"{self.root}/facts", "w", encoding="ascii") as file:
            file.writelines(f"{key} {value}\n" for key, value in facts.items())

    def examine(self, more=None, facts=None, without=(), env=None):
        """Findings of the healthy host with these changes: {check: (verdict, found, change)}, status."""
        files = {k: v for k, v in {**HEALTHY, **(more or {})}.items() if not any(k.startswith(w) for w in without)}
        self.describe(files, FACTS if facts is None else facts)
        status, out, _ = tern("doctor", "--json", "--sysroot", self.root, env=env)
        findings = json.loads(out)["findings"]
        self.assertEqual(status, 1 if any(f["verdict"] == "fail" for f in findings) else 0)
        found = {}
        for f in findings:
            self.assertEqual(f["change"] is None, f["verdict"] == "ok", f)
            # of two lines of one name the worse is kept
            if f["check"] not in found or f["verdict"] == "fail":
                found[f["check"]] = (f["verdict"], f["found"], f["change"] or "")
        return found

    def expect(self, findings, check, verdict, found, change=""):
        self.assertIn(check, findings)
        got = findings[check]
        self.assertEqual(got[0], verdict, got)
        self.assertIn(found, got[1])
        self.assertIn(change, got[2])

    def test_healthy(self):
        f = self.examine()
        bad = {k: v for k, v in f.items() if v[0] != "ok" and k != "port.mlx5_0/2"}
        self.assertEqual(bad, {})
        self.expect(f, "libibverbs", "ok", "1.14.44.0")
        self.expect(f, "ib_uverbs", "ok", "ABI 6")
        self.expect(f, "device.mlx5_0", "ok", "firmware 20.31.1014")
        self.expect(f, "permission.mlx5_0", "ok", "uverbs0")
        self.expect(f, "port.mlx5_0/1", "ok", "interface ens1")
        self.expect(f, "port.mlx5_0/2", "warn", "DOWN", "cable")
        self.expect(f, "mtu.mlx5_0/1", "ok", "4096, ens1 has 9000")
        self.expect(f, "gid.mlx5_0/1", "ok", "GID 3: ::ffff:10.1.2.3 RoCEv2")
        self.expect(f, "gid.mlx5_0/1", "ok", "of 2 entries 1 usable")
        self.expect(f, "counters.mlx5_0/1", "ok", "no losses")
        self.expect(f, "memlock", "ok", "unlimited")
        self.expect(f, "huge_pages", "ok", "1024 free")

    def test_nothing_there(self):
        f = self.examine(facts={"error": "libibverbs.so.1: cannot open shared object file"},
                         without=("/sys/class/infiniband", "/dev"))
        self.expect(f, "libibverbs", "warn", "cannot open", "ibverbs-providers")
        self.expect(f, "ib_uverbs", "warn", "no verbs", "modprobe ib_uverbs")
        self.expect(f, "devices", "warn", "no RDMA device", "driver")
        self.assertNotIn("fail", [v[0] for v in f.values()])

    def test_not_permitted(self):
        f = self.examine(facts={**FACTS, "mlx5_0": "cannot be opened: Permission denied"})
        self.expect(f, "permission.mlx5_0", "fail", "Permission denied")
        f = Described.examine(self._fresh(), without=("/dev/infiniband",))
        self.expect(f, "permission.mlx5_0", "fail", "is not there", "--device")
        f = Described.examine(self._fresh(), without=("/sys/class/infiniband_verbs/uverbs0",))
        self.expect(f, "permission.mlx5_0", "fail", "no uverbs", "modprobe ib_uverbs")

    def _fresh(self):
        """An empty folder for another host."""
        shutil.rmtree(self.root)
        os.makedirs(self.root)
        return self

    def test_ports(self):
        f = self.examine({f"{IB}/ports/1/state": "1: DOWN", f"{IB}/ports/1/phys_state": "2: Polling"})
        self.expect(f, "port.mlx5_0/1", "warn", "DOWN (2: Polling)", "cable")
        self.expect(f, "device.mlx5_0", "fail", "no port is ACTIVE", "ports up")
        f = self.examine({f"{IB}/ports/1/state": "2: INIT", f"{IB}/ports/1/link_layer": "InfiniBand"})
        self.expect(f, "port.mlx5_0/1", "warn", "INIT", "subnet manager")

    def test_mtu_and_gid(self):
        f = self.examine({"/sys/class/net/ens1/mtu": "1500"},
                         {**FACTS, "mlx5_0.port1.active_mtu": "1024", "mlx5_0.port1.gid_choice": "-1 no entry"})
        self.expect(f, "mtu.mlx5_0/1", "warn", "1024 of 4096, ens1 has 1500", "4200")
        self.expect(f, "gid.mlx5_0/1", "warn", "none of 2", "ip addr add")

    def test_counters(self):
        f = self.examine({f"{IB}/ports/1/hw_counters/out_of_sequence": "17",
                          f"{IB}/ports/1/hw_counters/np_cnp_sent": "5",
                          "/sys/class/net/ens1/statistics/rx_crc_errors": "3",
                          "/sys/class/net/ens1/ecn/roce_np/enable/3": "0"})
        self.expect(f, "counters.mlx5_0/1", "warn", "out_of_sequence 17", "PFC")
        self.expect(f, "counters.mlx5_0/1", "warn", "np_cnp_sent 5")
        self.expect(f, "interface.ens1", "warn", "rx_crc_errors 3", "cable")
        self.expect(f, "ecn.ens1", "warn", "off", "roce_np")
        f = self.examine({f"{IB}/ports/1/hw_counters/np_cnp_sent": "5",
                          "/sys/class/net/ens1/ecn/roce_np/enable/3": "1",
                          "/sys/class/net/ens1/ecn/roce_rp/enable/3": "1"})
        self.expect(f, "counters.mlx5_0/1", "ok", "np_cnp_sent 5 (told senders to slow down)")
        self.expect(f, "ecn.ens1", "ok", "priorities 3")

    def test_pci_numa_iommu(self):
        config = bytearray(256)
        config[0x34] = 0x60
        config[0x60:0x70] = bytes([0x10, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x29, 0, 0, 0, 0, 0, 0])
        f = self.examine({f"{IB}/device/current_link_width": "8", f"{IB}/device/numa_node": "3",
                          f"{IB}/device/iommu_group/type": "DMA-FQ", f"{IB}/device/config": bytes(config)})
        self.expect(f, "pci.mlx5_0", "warn", "x8", "slot")
        self.expect(f, "numa.mlx5_0", "warn", "node 3", "numactl")
        self.expect(f, "iommu.mlx5_0", "warn", "DMA-FQ", "iommu=pt")
        self.expect(f, "pci_order.mlx5_0", "ok", "relaxed ordering allowed, payload up to 512 bytes, reads up to 512")

    def test_a_config_space_that_loops(self):
        config = bytearray(256)
        config[0x34] = 0x60
        config[0x61] = 0x60
        f = self.examine({f"{IB}/device/config": bytes(config)})
        self.assertNotIn("pci_order.mlx5_0", f)

    def test_limits(self):
        tight = "Max locked memory  65536  65536  bytes\nMax open files  1024  1024  files"
        f = self.examine({"/proc/self/limits": tight, "/proc/sys/vm/max_map_count": "1000",
                          "/proc/meminfo": "HugePages_Total: 0\nHugePages_Free: 0",
                          "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always advise [never]",
                          "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
                          "/sys/fs/cgroup/memory.max": "2147483648",
                          "/sys/fs/cgroup/memory.current": "2000000000"})
        self.expect(f, "memlock", "fail", "64 KiB", "LimitMEMLOCK=infinity")
        self.expect(f, "descriptors", "warn", "1024", "LimitNOFILE")
        self.expect(f, "max_map_count", "warn", "1000", "sysctl")
        self.expect(f, "huge_pages", "warn", "0 free of 0", "vm.nr_hugepages")
        self.expect(f, "thp_of_memfd", "warn", "never", "echo advise")
        self.expect(f, "cpu_governor", "warn", "powersave", "cpupower")
        self.expect(f, "cgroup_memory", "warn", "of 2 GiB used", "raise the memory")
        # a process that may lock what it wants is not bound
        f = self.examine({"/proc/self/limits": tight, "/proc/self/status": "CapEff:\t0000000000004000\nMems_allowed_list:\t0"})
        self.expect(f, "memlock", "ok", "CAP_IPC_LOCK")

    def test_huge_pages_that_are_made_on_request(self):
        path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
        for release, mode, verdict in (("6.1.0-18-amd64", "always advise [never] deny", "ok"),
                                       ("5.10.0-28-amd64", "always advise [never] deny", "warn"),
                                       ("6.1.0-18-amd64", "always advise never [deny]", "warn")):
            f = self.examine({path: mode, "/proc/sys/kernel/osrelease": release})
            self.expect(f, "thp_of_memfd", verdict, "on request" if verdict == "ok" else mode.split("[")[1].split("]")[0],
                        "" if verdict == "ok" else "echo advise")

    def test_gpu(self):
        nvidia = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54"}
        f = self.examine(nvidia)
        self.expect(f, "gpu_direct", "warn", "staged", "open NVIDIA kernel modules")
        f = self.examine(nvidia, {**FACTS, "gpu.dma_buf": "yes"})
        self.expect(f, "gpu_direct", "ok", "dma-bufs")

    def test_required(self):
        _, out, _ = tern("info", "--config", "--json", check=0)
        if "verbs.mode" not in [o["name"] for o in json.loads(out)["options"]]:
            self.skipTest("this build has no option verbs.mode")
        f = self.examine(facts={"error": "no library"}, without=("/sys/class/infiniband", "/dev"),
                         env=environment(TERN_VERBS_MODE="required"))
        for check in ("libibverbs", "ib_uverbs", "devices"):
            self.assertEqual(f[check][0], "fail", check)

    def test_report_tells_no_names(self):
        host, user = socket.gethostname(), getpass.getuser()
        self.describe({**HEALTHY, f"{IB}/node_desc": f"seen from {host} over 02:00:5e:10:00:ff"}, FACTS)
        path = f"{self.root}/report.txt"
        status, _, err = tern("doctor", "--sysroot", self.root, "--report", path, "--cases", "write_sizes",
                              "--conformance", "/bin/true")
        self.assertEqual(status, 0, err)
        self.assertIn("read it before you send it", err)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for word in ("== findings", "== facts of verbs", "== conformance shm", "== perf tcp", "fw_ver = 20.31.1014",
                     "libibverbs.so.1.14.44.0", "::ffff:10.1.x.x", "fe80::x", "0c42:x", "02:00:5e:x"):
            self.assertIn(word, text)
        for word in ("10.1.2.3", "0a01:0203", "0055:1234", "fe55:1234", "10:00:ff"):
            self.assertNotIn(word, text)
        if len(host) > 2:
            self.assertNotRegex(text, rf"\b{re.escape(host)}\b")
        if user != "root" and len(user) > 2:
            self.assertNotRegex(text, rf"\b{re.escape(user)}\b")


class Here(unittest.TestCase):
    """This host as it is: whatever it has, shm and tcp work."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tern-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def findings(self, *args, status=None, **kw):
        got, out, err = tern("doctor", "--json", *args, **kw)
        said = json.loads(out)
        verdicts = [f["verdict"] for f in said["findings"]]
        for verdict in ("ok", "warn", "fail"):
            self.assertEqual(said[verdict], verdicts.count(verdict))
        self.assertEqual(got, 1 if said["fail"] else 0, out + err)
        if status is not None:
            self.assertEqual(got, status, out + err)
        return {f["check"]: f for f in said["findings"]}

    def test_self_test(self):
        f = self.findings()
        for provider in ("shm", "tcp"):
            self.assertEqual(f[f"provider.{provider}"]["verdict"], "ok")
            self.assertEqual(f[f"self_test.{provider}"]["verdict"], "ok")
            self.assertIn("checksums right", f[f"self_test.{provider}"]["found"])
        self.assertNotIn("self_test.loop", f)

    def test_text(self):
        _, out, err = tern("doctor", "--no-self-test")
        self.assertEqual(err, "")
        lines = out.splitlines()
        for line in lines[:-1]:
            self.assertRegex(line, r"^(ok|warn|fail) +\S+ +\S")
            self.assertEqual("; change: " in line, not line.startswith("ok"), line)
        self.assertRegex(lines[-1], r"^\d+ ok, \d+ warnings, \d+ failed$")
        self.assertNotIn("self_test", out)

    def test_a_self_test_that_fails(self):
        f = self.findings(status=1, env=environment(TERN_MEM_LIMIT="1MiB"))
        for provider in ("shm", "tcp"):
            self.assertEqual(f[f"self_test.{provider}"]["verdict"], "fail")
            self.assertIn("TERN_MEM_LIMIT", f[f"self_test.{provider}"]["found"])

    def test_peer(self):
        f = self.findings("--no-self-test", "--peer", "127.0.0.1")
        self.assertIn("127.0.0.1 on lo", f["peer"]["found"])
        f = self.findings("--no-self-test", "--peer", "no.such.host.invalid", status=1)
        self.assertEqual(f["peer"]["verdict"], "fail")

    def test_usage(self):
        status, _, err = tern("doctor", "--reprot", "x")
        self.assertEqual(status, 2)
        self.assertIn("--report", err)

    def suite(self, text):
        path = f"{self.folder}/suite"
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, stat.S_IRWXU)
        return path

    def report(self, *args):
        path = f"{self.folder}/report.txt"
        f = self.findings("--no-self-test", "--report", path, *args)
        with open(path, encoding="utf-8") as file:
            return f, file.read()

    def test_conformance_that_fails(self):
        f, text = self.report("--conformance", self.suite(
            'echo "1..2"; echo "ok 1 - $1/one"; echo "not ok 2 - $1/two"; exit 1'))
        self.assertEqual(f["conformance.shm"]["verdict"], "fail")
        self.assertIn("1 cases passed, 1 failed", f["conformance.shm"]["found"])
        self.assertIn("not ok 2 - tcp/two", text)

    def test_conformance_that_dies(self):
        f, _ = self.report("--conformance", self.suite("kill -9 $$"))
        self.assertEqual(f["conformance.shm"]["verdict"], "fail")
        self.assertIn("ended early", f["conformance.shm"]["found"])

    def test_the_real_suite(self):
        suite = os.path.join(os.path.dirname(TERN), "../tests/conformance/conformance")
        if not os.access(suite, os.X_OK):
            self.skipTest("the conformance suite was not built")
        f, text = self.report("--cases", "write_imm")
        for provider in ("shm", "tcp"):
            self.assertEqual(f[f"conformance.{provider}"]["verdict"], "ok", f[f"conformance.{provider}"])
            self.assertIn(f"ok 1 - {provider}/write_imm_sizes", text)
            self.assertRegex(text, rf"== perf {provider}\ntransport {provider}")

    def test_secrets_stay(self):
        path = f"{self.folder}/report.txt"
        tern("doctor", "--no-self-test", "--report", path, "--conformance", "/bin/true",
             env=environment(TERN_CTX_SECRET="very-hidden-word", TERN_MEM_LIMIT="64MiB"))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertNotIn("very-hidden-word", text)
        self.assertIn("mem.limit = ", text)

    def test_no_place_for_the_report(self):
        status, out, err = tern("doctor", "--no-self-test", "--conformance", "/bin/true", "--report",
                                f"{self.folder}/none/report.txt")
        self.assertEqual(status, 1)
        self.assertIn("cannot write", err)
        self.assertIn(" ok, ", out)

    def test_suite_dies_with_the_doctor(self):
        mark = f"{self.folder}/pid"
        suite = self.suite(f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60")
        with subprocess.Popen([TERN, "doctor", "--no-self-test", "--report", f"{self.folder}/r", "--conformance",
                               suite], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=environment()) as doctor:
            while not os.path.exists(mark) and doctor.poll() is None:
                pass
            with open(mark, encoding="ascii") as file:
                pid = int(file.read())
            doctor.kill()
            doctor.wait()
        while os.path.exists(f"/proc/{pid}"):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        break
            except (FileNotFoundError, ProcessLookupError):  # gone before it was read
                break


if __name__ == "__main__":
    unittest.main(verbosity=2)
