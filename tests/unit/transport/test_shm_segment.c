/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: seals, what is refused from a peer, read-only passing, and the layout of a lane's segment.
 * Threads: the main thread alone.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "cmocka_all.h"
#include "transport/shm/segment.h"

static void test_sealed(void **state)
{
	void *base, *again;
	uint64_t bytes;
	tn_shm_seg_id id;
	int fd;

	(void)state;
	assert_ok(tn_shm_seg_create("test", 10000, false, &fd, &base));
	assert_int_not_equal(ftruncate(fd, 4096), 0);
	assert_int_not_equal(ftruncate(fd, 1 << 20), 0);
	assert_ok(tn_shm_seg_check(fd, 10000, &bytes, &id));
	assert_true(bytes >= 10000 && bytes % 4096 == 0 && id.ino != 0);
	assert_ok(tn_shm_seg_map(fd, bytes, TN_SHM_RW, &again));
	memset(base, 0x5a, bytes);
	assert_memory_equal(base, again, bytes);
	tn_shm_seg_unmap(again, bytes);
	tn_shm_seg_unmap(base, bytes);
	tn_os_close(&fd);
}

static void test_peers_read_only(void **state)
{
	void *base, *again;
	int fd, ro;

	(void)state;
	assert_ok(tn_shm_seg_create("test", 4096, true, &fd, &base));
	assert_ok(tn_shm_seg_read_only(fd, &ro));
	assert_status(tn_shm_seg_map(ro, 4096, TN_SHM_RW, &again), TERN_E_OS);
	assert_ok(tn_shm_seg_map(ro, 4096, TN_SHM_RO, &again));
	assert_int_not_equal(mprotect(again, 4096, PROT_READ | PROT_WRITE), 0);
	*(volatile uint8_t *)base = 7; /* the owner still writes */
	assert_int_equal(*(volatile uint8_t *)again, 7);
	tn_shm_seg_unmap(again, 4096);
	tn_shm_seg_unmap(base, 4096);
	tn_os_close(&ro);
	tn_os_close(&fd);
}

/* An extent that the owner keeps writable: the descriptor for the peer is opened read-only. */
static void test_reopened_read_only(void **state)
{
	void *base, *again;
	int fd, ro;

	(void)state;
	assert_ok(tn_shm_seg_create("test", 4096, false, &fd, &base));
	assert_ok(tn_shm_seg_read_only(fd, &ro));
	assert_int_equal(fcntl(ro, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_status(tn_shm_seg_map(ro, 4096, TN_SHM_RW, &again), TERN_E_OS);
	assert_ok(tn_shm_seg_map(ro, 4096, TN_SHM_RO, &again));
	assert_int_not_equal(mprotect(again, 4096, PROT_READ | PROT_WRITE), 0);
	tn_shm_seg_unmap(again, 4096);
	tn_shm_seg_unmap(base, 4096);
	tn_os_close(&ro);
	tn_os_close(&fd);
}

static void test_foreign_memory(void **state)
{
	uint64_t bytes;
	tn_shm_seg_id id;
	int fd, fds[2];

	(void)state;
	fd = memfd_create("unsealed", MFD_ALLOW_SEALING);
	assert_true(fd >= 0 && ftruncate(fd, 8192) == 0);
	assert_status(tn_shm_seg_check(fd, 4096, &bytes, &id), TERN_E_PROTOCOL);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	assert_status(tn_shm_seg_check(fd, 4096, &bytes, &id), TERN_E_PROTOCOL);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_ok(tn_shm_seg_check(fd, 8192, &bytes, &id));
	assert_status(tn_shm_seg_check(fd, 8193, &bytes, &id), TERN_E_PROTOCOL);
	close(fd);
	assert_int_equal(pipe(fds), 0);
	assert_status(tn_shm_seg_check(fds[0], 1, &bytes, &id), TERN_E_PROTOCOL);
	close(fds[0]);
	close(fds[1]);
	fd = open("/proc/self/exe", O_RDONLY);
	assert_true(fd >= 0);
	assert_status(tn_shm_seg_check(fd, 1, &bytes, &id), TERN_E_PROTOCOL);
	close(fd);
	assert_status(tn_shm_seg_check(-1, 1, &bytes, &id), TERN_E_PROTOCOL);
}

static void test_sizes(void **state)
{
	(void)state;
	assert_true(tn_shm_sizes_valid(256, 16384));
	assert_true(tn_shm_sizes_valid(TN_SHM_SLOTS_MIN, TN_SHM_BUF_MIN));
	assert_true(tn_shm_sizes_valid(TN_SHM_SLOTS_MAX, TN_SHM_BUF_MAX));
	assert_false(tn_shm_sizes_valid(0, 16384));
	assert_false(tn_shm_sizes_valid(255, 16384));
	assert_false(tn_shm_sizes_valid(TN_SHM_SLOTS_MAX * 2, 16384));
	assert_false(tn_shm_sizes_valid(1u << 31, 16384));
	assert_false(tn_shm_sizes_valid(256, 0));
	assert_false(tn_shm_sizes_valid(256, 16383));
	assert_false(tn_shm_sizes_valid(256, 1u << 31));
	assert_false(tn_shm_sizes_valid(256, TN_SHM_BUF_MAX * 2));
}

typedef struct span {
	uint64_t from, to;
} span;

/* No part of a segment touches another, and all lie inside, for every size that is allowed. */
static void test_layout(void **state)
{
	(void)state;
	for (uint32_t slots = TN_SHM_SLOTS_MIN; slots <= TN_SHM_SLOTS_MAX; slots *= 2) {
		for (uint32_t buf = TN_SHM_BUF_MIN; buf <= TN_SHM_BUF_MAX; buf *= 4) {
			uint64_t bytes = tn_shm_lane_bytes(slots, buf);
			uint8_t *base = (uint8_t *)4096; /* never touched: only arithmetic */
			span spans[9] = {{0, sizeof(tn_shm_head)}};
			unsigned n = 1;

			for (int d = 0; d < 2; d++) {
				tn_shm_ring r;

				tn_shm_lane_ring(base, slots, buf, d, &r);
				assert_int_equal(r.cell_count, 1u << r.cell_shift);
				assert_int_equal(r.cell_count, 2 * slots);
				assert_int_equal((uintptr_t)r.ctl % TN_SHM_LINE, 0);
				assert_int_equal((uintptr_t)r.cells % TN_SHM_LINE, 0);
				assert_int_equal((uintptr_t)r.buf_base % 64, 0);
				spans[n].from = (uint64_t)((uint8_t *)r.ctl - base);
				spans[n].to = spans[n].from + sizeof(*r.ctl);
				n++;
				spans[n].from = (uint64_t)((uint8_t *)r.ret - base);
				spans[n].to = spans[n].from + slots * sizeof(uint16_t);
				n++;
				spans[n].from = (uint64_t)((uint8_t *)r.cells - base);
				spans[n].to = spans[n].from + (uint64_t)r.cell_count * TN_SHM_CELL_BYTES;
				n++;
				spans[n].from = (uint64_t)(r.buf_base - base);
				spans[n].to = spans[n].from + (uint64_t)slots * buf;
				n++;
			}
			assert_int_equal(n, 9);
			for (unsigned i = 0; i < n; i++) {
				assert_true(spans[i].to <= bytes);
				for (unsigned k = i + 1; k < n; k++)
					assert_true(spans[i].to <= spans[k].from ||
						    spans[k].to <= spans[i].from);
			}
		}
	}
}

static void test_faults(void **state)
{
	void *base;
	int fd;

	(void)state;
	assert_ok(tn_fault_set("shm.memfd.create", 1, 1));
	assert_status(tn_shm_seg_create("test", 4096, false, &fd, &base), TERN_E_OS);
	assert_true(fd == -1 && !base);
	tn_fault_clear();
	assert_ok(tn_fault_set("shm.segment.map", 1, 1));
	assert_status(tn_shm_seg_create("test", 4096, false, &fd, &base), TERN_E_LIMIT);
	assert_true(fd == -1 && !base);
	tn_fault_clear();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sealed),
		cmocka_unit_test(test_peers_read_only),
		cmocka_unit_test(test_reopened_read_only),
		cmocka_unit_test(test_foreign_memory),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_faults),
	};

	return RUN(tests);
}
