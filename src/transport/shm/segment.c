/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns mmap, memfd_create and seals of the provider, membarrier too (fence.h).
 *
 * Must not know lanes or peers. Threads: any. Tests: tests/unit/transport/test_shm_segment.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/os.h"
#include "transport/shm/fence.h"
#include "transport/shm/segment.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE      4096ull
#define HUGE_PAGE (2ull << 20)

static uint64_t page_up(uint64_t bytes)
{
	uint64_t page = tn_os_page_bytes();

	return (bytes + page - 1) & ~(page - 1);
}

static bool power_of_two(uint32_t v)
{
	return v != 0 && (v & (v - 1)) == 0;
}

bool tn_shm_sizes_valid(uint32_t slots, uint32_t buf_bytes)
{
	return power_of_two(slots) && slots >= TN_SHM_SLOTS_MIN && slots <= TN_SHM_SLOTS_MAX &&
	       power_of_two(buf_bytes) && buf_bytes >= TN_SHM_BUF_MIN && buf_bytes <= TN_SHM_BUF_MAX;
}

/* Offsets in 4 KiB pages whatever the page size: both sides have to agree. */
static uint64_t ret_bytes(uint32_t slots)
{
	return (slots * sizeof(uint16_t) + TN_SHM_LINE - 1) & ~(uint64_t)(TN_SHM_LINE - 1);
}

static uint64_t cells_offset(uint32_t slots)
{
	return PAGE + ((2 * ret_bytes(slots) + PAGE - 1) & ~(PAGE - 1));
}

static uint64_t cells_bytes(uint32_t slots)
{
	/* Twice the slots: consumption is published by quarters, and a credit must always find a cell. */
	return 2ull * slots * TN_SHM_CELL_BYTES;
}

static uint64_t bufs_offset(uint32_t slots)
{
	return cells_offset(slots) + ((2 * cells_bytes(slots) + PAGE - 1) & ~(PAGE - 1));
}

uint64_t tn_shm_lane_bytes(uint32_t slots, uint32_t buf_bytes)
{
	return page_up(bufs_offset(slots) + 2ull * slots * buf_bytes);
}

void tn_shm_lane_ring(void *base, uint32_t slots, uint32_t buf_bytes, int direction, tn_shm_ring *ring)
{
	uint8_t *at = base;
	uint64_t d = (uint64_t)direction;

	TN_ASSERT(tn_shm_sizes_valid(slots, buf_bytes) && d < 2);
	_Static_assert(sizeof(tn_shm_head) + 2 * sizeof(tn_shm_ctl) <= PAGE,
		       "head and control words in one page");
	ring->ctl = (tn_shm_ctl *)(void *)(at + sizeof(tn_shm_head) + d * sizeof(tn_shm_ctl));
	ring->ret = (_Atomic uint16_t *)(void *)(at + PAGE + d * ret_bytes(slots));
	ring->cells = (tn_shm_cell *)(void *)(at + cells_offset(slots) + d * cells_bytes(slots));
	ring->buf_base = at + bufs_offset(slots) + d * slots * buf_bytes;
	ring->cell_count = 2 * slots;
	ring->cell_shift = (uint32_t)__builtin_ctz(2 * slots);
	ring->buf_count = slots;
	ring->buf_bytes = buf_bytes;
}

static tern_status map_failed(uint64_t bytes)
{
	if (errno == ENOMEM)
		return tn_fail_errno(TERN_E_LIMIT, "mmap",
				     "%" PRIu64
				     " bytes of shared memory: out of address space or of mappings "
				     "(vm.max_map_count, RLIMIT_AS)",
				     bytes);
	return tn_fail_errno(TERN_E_OS, "mmap", "%" PRIu64 " bytes of shared memory", bytes);
}

static int create_memfd(const char *name)
{
	int fd;

	if (TN_FAULT("shm.memfd.create")) {
		errno = EMFILE;
		return -1;
	}
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd;
}

static tern_status seal(int fd, bool peers_read_only)
{
	/* Before 5.1 there is no FUTURE_WRITE: such peers get a descriptor opened read-only. */
	if (peers_read_only && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL)
		return tn_fail_errno(TERN_E_OS, "F_ADD_SEALS", "shared memory can't be sealed");
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		return tn_fail_errno(TERN_E_OS, "F_ADD_SEALS", "shared memory can't be sealed");
	return TERN_OK;
}

tern_status tn_shm_seg_create(const char *name, uint64_t bytes, bool peers_read_only, int *fd, void **base)
{
	tern_status status;

	*base = NULL;
	*fd = create_memfd(name);
	if (*fd < 0)
		return tn_fail_errno(TERN_E_OS, "memfd_create",
				     "shm needs memfds: descriptors may be used up (ulimit -n), or a sandbox "
				     "forbids it");
	bytes = page_up(bytes);
	if (ftruncate(*fd, (off_t)bytes) != 0) {
		status =
			tn_fail_errno(TERN_E_NOMEM, "ftruncate", "%" PRIu64 " bytes of shared memory", bytes);
		goto fail;
	}
	status = tn_shm_seg_map(*fd, bytes, TN_SHM_RW, base);
	if (status != TERN_OK)
		goto fail;
	status = seal(*fd, peers_read_only);
	if (status == TERN_OK)
		return TERN_OK;
	tn_shm_seg_unmap(*base, bytes);
	*base = NULL;
fail:
	tn_os_close(fd);
	return status;
}

tern_status tn_shm_seg_check(int fd, uint64_t min_bytes, uint64_t *bytes, tn_shm_seg_id *id)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	/* Only memfds have seals: a file of FUSE or a disk could stall or fault us at every access. */
	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
		return tn_fail(TERN_E_PROTOCOL,
			       "the peer passed memory that is not a memfd sealed against shrinking");
	if (fstat(fd, &st) != 0 || st.st_size < 0)
		return tn_fail_errno(TERN_E_PROTOCOL, "fstat", "of memory that the peer passed");
	if ((uint64_t)st.st_size < min_bytes)
		return tn_fail(TERN_E_PROTOCOL,
			       "the peer passed %" PRIu64 " bytes of memory and said %" PRIu64,
			       (uint64_t)st.st_size, min_bytes);
	*bytes = (uint64_t)st.st_size;
	*id = (tn_shm_seg_id){.dev = st.st_dev, .ino = st.st_ino};
	return TERN_OK;
}

/* What may have huge pages lies where they can be mapped whole. */
static void *map_aligned(int fd, uint64_t bytes, int prot)
{
	uint64_t room = bytes + HUGE_PAGE;
	uint8_t *all, *at;
	void *map;

	if (bytes % HUGE_PAGE != 0)
		return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return MAP_FAILED;
	at = all + (HUGE_PAGE - (uintptr_t)all % HUGE_PAGE) % HUGE_PAGE;
	map = mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (map == MAP_FAILED) {
		(void)munmap(all, room);
		return MAP_FAILED;
	}
	if (at > all)
		(void)munmap(all, (size_t)(at - all));
	if (all + room > at + bytes)
		(void)munmap(at + bytes, (size_t)(all + room - (at + bytes)));
	return map;
}

tern_status tn_shm_seg_map(int fd, uint64_t bytes, tn_shm_prot prot, void **base)
{
	int flags = prot == TN_SHM_RW ? PROT_READ | PROT_WRITE : PROT_READ;

	*base = NULL;
	if (TN_FAULT("shm.segment.map")) {
		errno = ENOMEM;
		return map_failed(bytes);
	}
	*base = map_aligned(fd, bytes, flags);
	if (*base == MAP_FAILED) {
		*base = NULL;
		return map_failed(bytes);
	}
	/* Where the kernel grants huge pages to shared memory the owner has asked for them; so do we. */
	(void)madvise(*base, bytes, MADV_HUGEPAGE);
	/* A forked child has no use for it. */
	(void)madvise(*base, bytes, MADV_DONTFORK);
	return TERN_OK;
}

void tn_shm_seg_unmap(void *base, uint64_t bytes)
{
	if (base)
		(void)munmap(base, bytes);
}

void tn_shm_seg_populate(void *base, uint64_t bytes, bool fresh)
{
	/* A page of a shared mapping that a read maps is writable at once where the mapping is. */
	(void)madvise(base, bytes, fresh ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

tern_status tn_shm_seg_read_only(int fd, int *ro_fd)
{
	char path[40];
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals >= 0 && (seals & F_SEAL_FUTURE_WRITE) != 0) {
		*ro_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	} else {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		*ro_fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	if (*ro_fd < 0)
		return tn_fail_errno(TERN_E_OS, "open", "memory to be passed read-only (is /proc mounted?)");
	return TERN_OK;
}

bool tn_shm_membarrier_register(void)
{
	if (TN_FAULT("shm.membarrier.register"))
		return false;
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void tn_shm_fence_heavy(void)
{
	tn_shm_fence_full();
	(void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	tn_shm_fence_full();
}
