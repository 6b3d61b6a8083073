/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the system calls about NUMA nodes: see os_mem.h. Without libnuma: four calls are all that is needed, and a
 * kernel without NUMA answers them with an error, which means one node.
 *
 * Must not decide which node (extent.c does). Threads: any. Tests: tests/unit/mem/test_numa.c.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"
#include "mem/os_mem.h"

#define NODES_MAX 64 /* what a mask of one word holds; the kernel wants to hear one more */

/* The kernel insists on a mask as large as its own (up to 1,024 nodes); nodes past 63 are not told apart. */
#define MASK_WORDS 16

uint64_t tn_os_numa_nodes(void)
{
	unsigned long mask[MASK_WORDS] = {0};

	if (TN_FAULT("mem.numa.nodes") ||
	    syscall(SYS_get_mempolicy, NULL, mask, sizeof(mask) * 8, NULL, MPOL_F_MEMS_ALLOWED) != 0 ||
	    !mask[0])
		return 1;
	return mask[0];
}

int tn_os_numa_here(void)
{
	unsigned cpu, node;

	if (syscall(SYS_getcpu, &cpu, &node, NULL) != 0)
		return -1;
	return (int)node;
}

int tn_os_numa_prefer(void *at, uint64_t bytes, int node)
{
	unsigned long mask;

	if (node < 0 || node >= NODES_MAX)
		return EINVAL;
	if (TN_FAULT("mem.numa.bind"))
		return EPERM;
	mask = 1ul << node;
	if (syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, &mask, NODES_MAX + 1, 0) == 0 || errno == ENOSYS)
		return 0;
	return errno;
}

int tn_os_numa_of(const void *at)
{
	int node = -1;

	if (syscall(SYS_get_mempolicy, &node, NULL, 0, at, MPOL_F_NODE | MPOL_F_ADDR) != 0)
		return -1;
	return node;
}
