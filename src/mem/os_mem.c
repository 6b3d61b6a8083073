/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the system calls behind registered memory: see os_mem.h. Must not take locks; the one switch is for tools.
 *
 *   reservation   PROT_NONE, MAP_NORESERVE: address space only
 *   extent        memfd -> size -> mapped over the reservation -> populated, with huge pages if there are -> sealed
 *
 * A memfd is not limited by the size of /dev/shm and has no name that could be left behind.
 * Threads: any. Tests: tests/unit/mem/test_faults.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/memfd.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/options.h"
#include "base/os.h"
#include "mem/os_mem.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* A signal ends fallocate and undoes the call's own part: pieces keep what was done. */
#define POPULATE_PIECE (32ull << 20)

static bool lazy;

void tn_os_mem_lazy(bool on)
{
	lazy = on;
}

/* Play a scheduled failure of a call that returns -1. */
static bool fault(const char *name, int err)
{
	if (TN_LIKELY(atomic_load_explicit(&tn_fault_armed, memory_order_relaxed) == 0) ||
	    !tn_fault_hit(name))
		return false;
	errno = err;
	return true;
}

static void *map_reserved(void *at, uint64_t bytes, int fixed)
{
	return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

tern_status tn_os_mem_reserve(uint64_t bytes, uint64_t min_bytes, void **base, uint64_t *got)
{
	const uint64_t unit = TN_MEM_EXTENT_BYTES_MIN;

	TN_ASSERT(bytes % unit == 0 && min_bytes % unit == 0 && min_bytes > 0 && bytes >= min_bytes);
	for (uint64_t want = bytes; want >= min_bytes; want = want / 2 / unit * unit) {
		/* One unit more, so that an aligned start is inside; the rest is cut off. */
		uint8_t *raw = MAP_FAILED;
		uint64_t skip;

		if (!fault("mem.reserve.map", ENOMEM))
			raw = map_reserved(NULL, want + unit, 0);
		if (raw == MAP_FAILED)
			continue;
		skip = (unit - (uintptr_t)raw % unit) % unit;
		if (skip)
			munmap(raw, skip);
		munmap(raw + skip + want, unit - skip);
		*base = raw + skip;
		*got = want;
		return TERN_OK;
	}
	return tn_fail_errno(TERN_E_NOMEM, "mmap",
			     "%" PRIu64 " bytes of address space could not be reserved: check ulimit -v and "
			     "vm.overcommit_memory, or lower TERN_MEM_RESERVE",
			     min_bytes);
}

void tn_os_mem_unreserve(void *base, uint64_t bytes)
{
	if (munmap(base, bytes) != 0)
		TN_LOG(ERROR, MEM, "munmap of a reservation: %s", strerror(errno));
}

/* One memfd of the size; -1 with errno. */
static int make_memfd(uint64_t bytes, unsigned flags)
{
	int fd = -1;
	int err;

	if (!fault("mem.extent.memfd", EMFILE))
		fd = memfd_create("tern", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (fd < 0)
		return -1;
	if (!fault("mem.extent.truncate", ENOMEM) && ftruncate(fd, (off_t)bytes) == 0)
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

static int allocate_pages(int fd, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		uint64_t piece = TN_MIN(bytes - at, POPULATE_PIECE);

		if (fault("mem.extent.commit", ENOSPC))
			return -1;
		if (lazy || fallocate(fd, 0, (off_t)at, (off_t)piece) == 0)
			at += piece;
		else if (errno != EINTR)
			return -1;
	}
	return 0;
}

/* Fill page tables off the data path. Best effort: the pages exist already, unless `must`. */
static int populate(void *at, uint64_t bytes, bool must)
{
	uint8_t *base = at;

	for (uint64_t done = 0; done < bytes && !lazy;) {
		uint64_t piece = TN_MIN(bytes - done, POPULATE_PIECE);

		if (must && fault("mem.extent.populate", ENOMEM))
			return -1;
		if (madvise(base + done, piece, MADV_POPULATE_WRITE) == 0)
			done += piece;
		else if (errno != EINTR && errno != EAGAIN)
			return must ? -1 : 0;
	}
	return 0;
}

static void prefer_node(void *at, uint64_t bytes, int node)
{
	int err = tn_os_numa_prefer(at, bytes, node);

	if (err)
		TN_LOG_LIMITED(WARN, MEM, 1, "mbind to node %d: %s: pages come from anywhere", node,
			       strerror(err));
}

/*
 * Huge pages on request, from Linux 6.1 on, whatever the system grants to shared memory by itself: each made from one small page,
 * in a tenth of the time that small ones take. False: it can't be done, or not for all of them (memory is in pieces).
 */
static bool collapse(void *at, uint64_t bytes, int fd)
{
	if (lazy || fault("mem.extent.collapse", EINVAL))
		return false;
	for (uint64_t done = 0; done < bytes; done += TN_MEM_EXTENT_BYTES_MIN)
		if (fallocate(fd, 0, (off_t)done, 4096) != 0)
			return false;
	return madvise(at, bytes, MADV_COLLAPSE) == 0;
}

/*
 * Map, populate, seal. With THP (*pages: wanted; what came of it) the pages must be born by a fault in the advised mapping,
 * because fallocate knows no mapping and makes small ones; where the kernel is too old to populate, small ones it is.
 */
static int back_range(void *at, uint64_t bytes, int fd, bool huge, tn_page_kind *pages, int node)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (fault("mem.extent.map", ENOMEM) ||
	    mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return -1;
	if (node >= 0)
		prefer_node(at, bytes, node);
	if (*pages == TN_PAGE_THP && madvise(at, bytes, MADV_HUGEPAGE) == 0 &&
	    populate(at, bytes, true) != 0 && errno != EINVAL)
		return -1;
	if (*pages == TN_PAGE_4K && huge && collapse(at, bytes, fd))
		*pages = TN_PAGE_THP;
	if (allocate_pages(fd, bytes) != 0)
		return -1;
	populate(at, bytes, false);
	if (fault("mem.extent.seal", EPERM) || fcntl(fd, F_ADD_SEALS, seals) != 0)
		return -1;
	return 0;
}

static int try_commit(void *at, uint64_t bytes, unsigned flags, bool huge, tn_page_kind *pages, int node)
{
	int fd = make_memfd(bytes, flags);
	int err;

	if (fd < 0)
		return -1;
	if (back_range(at, bytes, fd, huge, pages, node) == 0)
		return fd;
	err = errno;
	if (map_reserved(at, bytes, MAP_FIXED) == MAP_FAILED)
		TN_LOG(ERROR, MEM, "mmap over a failed extent: %s", strerror(errno));
	close(fd);
	errno = err;
	return -1;
}

static bool thp_possible(const char *choice)
{
	return strcmp(choice, "always") == 0 || strcmp(choice, "within_size") == 0 ||
	       strcmp(choice, "advise") == 0 || strcmp(choice, "force") == 0;
}

static tern_status commit_failed(uint64_t bytes, const tn_os_limits *limits)
{
	char want[32], have[32];
	int err = errno;

	tn_format_bytes(bytes, want, sizeof(want));
	tn_format_bytes(limits->memory_bytes_available, have, sizeof(have));
	errno = err;
	if (err == EMFILE || err == ENFILE)
		return tn_fail_errno(TERN_E_LIMIT, "memfd_create",
				     "descriptors are used up (ulimit -n is %" PRIu64 "): raise it",
				     limits->files);
	if (err == ENOMEM || err == ENOSPC || err == EFAULT)
		return tn_fail_errno(TERN_E_NOMEM, "memfd extent",
				     "%s wanted, %s available on this host: free memory, raise the cgroup's "
				     "memory.max or lower the batch or table sizes",
				     want, have);
	return tn_fail_errno(TERN_E_OS, "memfd extent", "%s wanted", want);
}

tern_status tn_os_mem_commit(void *at, uint64_t bytes, tn_huge_mode mode, int node, int *fd,
			     tn_page_kind *pages)
{
	tn_os_limits limits;

	TN_ASSERT(bytes > 0 && bytes % TN_MEM_EXTENT_BYTES_MIN == 0);
	*fd = -1;
	tn_os_limits_get(&limits);
	if (mode != TN_HUGE_NEVER && limits.huge_pages_free >= bytes / TN_MEM_EXTENT_BYTES_MIN) {
		*pages = TN_PAGE_HUGE;
		*fd = try_commit(at, bytes, MFD_HUGETLB | MFD_HUGE_2MB, false, pages, node);
		if (*fd >= 0)
			return TERN_OK;
	}
	if (mode == TN_HUGE_ONLY)
		return tn_fail(TERN_E_NOMEM,
			       "%" PRIu64 " huge pages of 2 MiB wanted, %" PRIu64 " of %" PRIu64
			       " free: raise vm.nr_hugepages, or use TERN_MEM_HOST",
			       (uint64_t)(bytes / TN_MEM_EXTENT_BYTES_MIN), limits.huge_pages_free,
			       limits.huge_pages);
	/* Ask before the kernel does: past this line it would rather kill than refuse. */
	if (limits.memory_bytes_available && bytes > limits.memory_bytes_available) {
		errno = ENOMEM;
		return commit_failed(bytes, &limits);
	}
	*pages = thp_possible(limits.shmem_thp) ? TN_PAGE_THP : TN_PAGE_4K;
	*fd = try_commit(at, bytes, 0, mode != TN_HUGE_NEVER, pages, node);
	if (*fd < 0)
		return commit_failed(bytes, &limits);
	return TERN_OK;
}

void tn_os_mem_decommit(void *at, uint64_t bytes, int *fd)
{
	if (map_reserved(at, bytes, MAP_FIXED) == MAP_FAILED)
		TN_LOG(ERROR, MEM, "mmap over a released extent: %s", strerror(errno));
	tn_os_close(fd);
}

void tn_os_mem_unshare(void *at, uint64_t bytes, int fd)
{
	/* In a child between fork and exec: no log, no lock. If it fails the child loses the range rather
	   than writing into the parent's. */
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) ==
	    MAP_FAILED)
		map_reserved(at, bytes, MAP_FIXED);
}

tern_status tn_os_mem_table(uint64_t bytes, void **rows, int *fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	void *map = MAP_FAILED;
	tern_status status;

	*fd = make_memfd(bytes, 0);
	if (*fd < 0)
		return tn_fail_errno(TERN_E_OS, "memfd_create", "key table of %" PRIu64 " bytes", bytes);
	if (allocate_pages(*fd, bytes) == 0 && !fault("mem.table.map", ENOMEM))
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (map == MAP_FAILED) {
		status = tn_fail_errno(TERN_E_NOMEM, "key table", "%" PRIu64 " bytes", bytes);
		tn_os_close(fd);
		return status;
	}
	/* This mapping stays writable, new ones cannot be. Kernels before 5.1 lack the seal: peers of the
	   same user then could scribble over keys, as they could over the memory itself. */
	if (fcntl(*fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) != 0)
		TN_LOG(INFO, MEM, "F_SEAL_FUTURE_WRITE: %s: peers could map the key table writable",
		       strerror(errno));
	if (fault("mem.table.seal", EPERM) || fcntl(*fd, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) {
		status = tn_fail_errno(TERN_E_OS, "fcntl(F_ADD_SEALS)", "key table");
		munmap(map, bytes);
		tn_os_close(fd);
		return status;
	}
	*rows = map;
	return TERN_OK;
}

void tn_os_mem_table_free(void *rows, uint64_t bytes, int *fd)
{
	if (rows)
		munmap(rows, bytes);
	tn_os_close(fd);
}

bool tn_os_mem_may_lock(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &head, data) != 0)
		return false;
	return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

bool tn_os_mem_asymmetric;

static void barrier_register(void)
{
#ifndef TN_MEM_SYMMETRIC
	tn_os_mem_asymmetric = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
	if (!tn_os_mem_asymmetric)
		TN_LOG(INFO, MEM, "membarrier: %s: caches use fences", strerror(errno));
#endif
}

void tn_os_mem_barrier_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, barrier_register);
}

void tn_os_mem_barrier(void)
{
#ifndef TN_MEM_SYMMETRIC
	/* It can't fail once registered; the registration is the address space's, a forked child's too. */
	if (tn_os_mem_asymmetric)
		syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* ---- of this process alone ---- */

#define HUGE (2ull << 20)

static uint64_t whole_pages(uint64_t bytes)
{
	uint64_t page = bytes >= HUGE ? HUGE : 4096;

	return (bytes + page - 1) & ~(page - 1);
}

void *tn_os_mem_private(uint64_t bytes, uint64_t align)
{
	uint64_t size = whole_pages(bytes), more = align > 4096 ? align : 0, skip;
	uint8_t *raw = MAP_FAILED;

	if (!fault("mem.private.map", ENOMEM))
		raw = mmap(NULL, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (raw == MAP_FAILED)
		return NULL;
	skip = more ? -(uintptr_t)raw & (align - 1) : 0;
	if (skip)
		munmap(raw, skip);
	if (more > skip)
		munmap(raw + skip + size, more - skip);
	if (size >= HUGE)
		(void)madvise(raw + skip, size, MADV_NOHUGEPAGE);
	return raw + skip;
}

void tn_os_mem_private_free(void *at, uint64_t bytes)
{
	munmap(at, whole_pages(bytes));
}

void tn_os_mem_private_huge(void *at, uint64_t bytes)
{
	(void)madvise(at, whole_pages(bytes), MADV_HUGEPAGE); /* slower without, no more */
}

void tn_os_mem_private_filled(void *at, uint64_t bytes)
{
	uint64_t whole = (bytes + HUGE / 16) / HUGE * HUGE;

	if (whole && madvise(at, whole, MADV_HUGEPAGE) == 0)
		(void)madvise(at, whole, MADV_COLLAPSE);
}
