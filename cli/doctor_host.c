/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of `tern doctor` that looks at what the host allows: limits, pages, cgroup, CPU, GPU. What does not
 * apply to this host is left out. Threads: main. Tests: tests/e2e/doctor_test.py.
 */
#include "doctor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <tern/mem.h>

#include "host.h"

#define MEMLOCK_LEAST (64ull << 20) /* below: hardly the buffers of a few links */
#define FILES_LEAST   4096
#define MAPS_LEAST    65530
#define CAP_IPC_LOCK  14
#define MEMLOCK_CHANGE                                                                                   \
	"ulimit -l unlimited (limits.d: * - memlock unlimited; systemd: LimitMEMLOCK=infinity; docker: " \
	"--ulimit "                                                                                      \
	"memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK)"

static bool has_ipc_lock(void)
{
	char text[32];

	return host_keyed(text, sizeof(text), "/proc/self/status", "CapEff") &&
	       (strtoull(text, NULL, 16) >> CAP_IPC_LOCK & 1);
}

/* A described host says its limits in /proc/self/limits, as this one does. */
static bool limit_get(const char *key, int which, uint64_t *soft, uint64_t *hard)
{
	char text[128], low[32], high[32];
	struct rlimit r;

	if (host_is_real()) {
		if (getrlimit((__rlimit_resource_t)which, &r) != 0)
			return false;
		*soft = r.rlim_cur == RLIM_INFINITY ? HOST_NO_LIMIT : r.rlim_cur;
		*hard = r.rlim_max == RLIM_INFINITY ? HOST_NO_LIMIT : r.rlim_max;
		return true;
	}
	if (!host_keyed(text, sizeof(text), "/proc/self/limits", key) ||
	    sscanf(text, "%31s %31s", low, high) != 2)
		return false;
	*soft = strcmp(low, "unlimited") == 0 ? HOST_NO_LIMIT : strtoull(low, NULL, 10);
	*hard = strcmp(high, "unlimited") == 0 ? HOST_NO_LIMIT : strtoull(high, NULL, 10);
	return true;
}

static void check_memlock(doctor *d)
{
	char low[32], high[32];
	uint64_t soft, hard;

	if (!limit_get("Max locked memory", RLIMIT_MEMLOCK, &soft, &hard))
		return;
	host_size(soft, low, sizeof(low));
	host_size(hard, high, sizeof(high));
	if (soft == HOST_NO_LIMIT)
		doctor_say(d, VERDICT_OK, "memlock", NULL, "unlimited");
	else if (!d->device)
		doctor_say(d, VERDICT_OK, "memlock", NULL,
			   "%s (hard limit %s); counts only with an RDMA device", low, high);
	else if (has_ipc_lock())
		doctor_say(d, VERDICT_OK, "memlock", NULL,
			   "%s, which does not bind this process (CAP_IPC_LOCK); it binds others", low);
	else
		doctor_say(d, soft < MEMLOCK_LEAST ? VERDICT_FAIL : VERDICT_WARN, "memlock", MEMLOCK_CHANGE,
			   "%s (hard limit %s): devices register no more than that", low, high);
}

static void check_limits(doctor *d)
{
	uint64_t soft, hard, maps;

	if (limit_get("Max open files", RLIMIT_NOFILE, &soft, &hard))
		doctor_say(
			d, soft < FILES_LEAST && hard < FILES_LEAST ? VERDICT_WARN : VERDICT_OK,
			"descriptors",
			soft < FILES_LEAST && hard < FILES_LEAST
				? "ulimit -n 65536 (limits.d: * - nofile 65536; systemd: LimitNOFILE=65536)"
				: NULL,
			"%llu (hard limit %llu); one per extent, link and lane", (unsigned long long)soft,
			(unsigned long long)hard);
	if (host_u64(&maps, "/proc/sys/vm/max_map_count"))
		doctor_say(d, maps < MAPS_LEAST ? VERDICT_WARN : VERDICT_OK, "max_map_count",
			   maps < MAPS_LEAST ? "sysctl vm.max_map_count=65530" : NULL, "%llu; one per extent",
			   (unsigned long long)maps);
}

/* From Linux 6.1 on, MADV_COLLAPSE makes huge pages of a memfd whatever shmem_enabled says, but for "deny". */
static bool pages_on_request(void)
{
	unsigned major = 0, minor = 0;
	char release[96];

	return host_read(release, sizeof(release), "/proc/sys/kernel/osrelease") &&
	       sscanf(release, "%u.%u", &major, &minor) == 2 && (major > 6 || (major == 6 && minor >= 1));
}

static void check_thp(doctor *d)
{
	static const char path[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
	bool never, none;
	char mode[32];

	if (!host_chosen(mode, sizeof(mode), path))
		return;
	never = strcmp(mode, "never") == 0;
	none = strcmp(mode, "deny") == 0 || (never && !pages_on_request());
	doctor_say(d, none ? VERDICT_WARN : VERDICT_OK, "thp_of_memfd",
		   none ? "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled" : NULL,
		   "shmem_enabled is %s%s", mode,
		   never && !none ? ": this kernel makes them on request" : "");
}

static void check_pages(doctor *d)
{
	char total[32], left[32];
	bool none;

	if (host_keyed(total, sizeof(total), "/proc/meminfo", "HugePages_Total") &&
	    host_keyed(left, sizeof(left), "/proc/meminfo", "HugePages_Free")) {
		none = strtoull(left, NULL, 10) == 0;
		doctor_say(
			d, none ? VERDICT_WARN : VERDICT_OK, "huge_pages",
			none ? "sysctl vm.nr_hugepages=N for N x 2 MiB of tensors (registration and TLB get "
			       "cheaper); without, smaller pages are used"
			     : NULL,
			"%s free of %s", left, total);
	}
	check_thp(d);
}

static void check_memory(doctor *d)
{
	char text[32], text2[32], available[64];
	uint64_t limit, used;

	if (host_cgroup_memory(&limit, &used))
		doctor_say(d, used + (1ull << 30) > limit ? VERDICT_WARN : VERDICT_OK, "cgroup_memory",
			   used + (1ull << 30) > limit ? "raise the memory of the container or service: "
							 "registered memory counts in full"
						       : NULL,
			   "%s of %s used", host_size(used, text, sizeof(text)),
			   host_size(limit, text2, sizeof(text2)));
	if (host_keyed(available, sizeof(available), "/proc/meminfo", "MemAvailable"))
		doctor_say(d, VERDICT_OK, "memory", NULL, "%s available",
			   host_size(strtoull(available, NULL, 10) * 1024, text, sizeof(text)));
	doctor_say(d, VERDICT_OK, "dev_shm", NULL, "not used: segments are nameless (memfd)");
}

static void check_cpu(doctor *d)
{
	char governor[32];
	bool slow;

	if (!host_read(governor, sizeof(governor), "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
		return;
	slow = strcmp(governor, "performance") != 0;
	doctor_say(d, slow ? VERDICT_WARN : VERDICT_OK, "cpu_governor",
		   slow ? "cpupower frequency-set -g performance, for steady latency" : NULL, "%s", governor);
}

static void check_container(doctor *d)
{
	bool docker = host_exists("/.dockerenv"), podman = host_exists("/run/.containerenv");

	if (docker || podman)
		doctor_say(d, VERDICT_OK, "container", NULL,
			   "%s; for RDMA it needs --device /dev/infiniband, --ulimit memlock=-1 and the "
			   "NIC's network "
			   "namespace",
			   docker ? "docker" : "podman");
}

/* GPU memory reaches a NIC as a dma-buf, or is staged. A described host says it in a fact. */
static void check_gpu(doctor *d)
{
	const char *said = doctor_fact_get(d, "gpu.dma_buf");
	tern_gpu_info gpu = {.dma_buf = said && strcmp(said, "yes") == 0};
	char version[256];

	if (!host_keyed(version, sizeof(version), "/proc/driver/nvidia/version", "NVRM version"))
		return;
	doctor_say(d, VERDICT_OK, "gpu_driver", NULL, "%s", version);
	if (!d->device || (host_is_real() && tern_gpu_probe(0, &gpu) != TERN_OK))
		return;
	if (gpu.dma_buf)
		doctor_say(d, VERDICT_OK, "gpu_direct", NULL, "NICs can be given GPU memory as dma-bufs");
	else
		doctor_say(d, VERDICT_WARN, "gpu_direct",
			   "the open NVIDIA kernel modules and Linux 5.12 or later give dma-bufs (tern does "
			   "not use "
			   "nvidia_peermem)",
			   "transfers of GPU memory are staged through host memory%s%s",
			   gpu.reason[0] ? ": " : "", gpu.reason);
}

void doctor_host(doctor *d)
{
	check_memlock(d);
	check_limits(d);
	check_pages(d);
	check_memory(d);
	check_cpu(d);
	check_container(d);
	check_gpu(d);
}
