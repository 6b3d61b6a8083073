/* SPDX-License-Identifier: Apache-2.0 */
/* Extents: growth, exposure classes, look-up, registration all-or-nothing, budget, limits of the system. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "mem_test.h"

static void grow_geometrically(void **state)
{
	tern_mem *mem = make_pool(0);
	tern_mem_stats stats;

	(void)state;
	for (uint64_t total = 0; total < 300 * MiB; total += 64 << 10)
		get(mem, 64 << 10, 0, 3);
	stats = stats_of(mem);
	assert_true(stats.extents <= 30);
	assert_true(stats.committed_bytes <= 300 * MiB * 5 / 4 + 2 * MiB);
	assert_int_equal(stats.extents, stats.extents_huge + stats.extents_thp + stats.extents_4k);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
	assert_int_equal(count_memfd_maps(), 0);
}

static void classes_never_share_an_extent(void **state)
{
	tern_mem *mem = make_pool(0);

	(void)state;
	for (uint32_t access = 0; access < 4; access++) {
		void *ptr = get(mem, 100, 0, access);
		const tn_extent *ext = tn_mem_extent_of(mem, ptr);

		assert_non_null(ext);
		assert_int_equal(ext->access, access);
		assert_ptr_equal(tn_mem_extent(mem, ext->index), ext);
	}
	assert_int_equal(stats_of(mem).extents, 4);
	tn_mem_destroy(mem);
}

static void look_up(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *ptr = get(mem, 10 * MiB, 0, 1);
	const tn_extent *ext = tn_mem_extent_of(mem, ptr);
	int local;

	(void)state;
	assert_non_null(ext);
	assert_ptr_equal(ext->base, ptr);
	assert_int_equal(ext->bytes, 10 * MiB);
	assert_ptr_equal(tn_mem_extent_of(mem, ptr + 10 * MiB - 1), ext);
	assert_null(tn_mem_extent_of(mem, ptr + 10 * MiB));
	assert_null(tn_mem_extent_of(mem, ptr - 1));
	assert_null(tn_mem_extent_of(mem, &local));
	assert_null(tn_mem_extent_of(mem, NULL));
	assert_null(tn_mem_extent(mem, 1));
	assert_null(tn_mem_extent(mem, TN_MEM_EXTENTS_MAX));
	assert_null(tn_mem_extent(mem, UINT32_MAX));
	tn_mem_destroy(mem);
}

/* A peer can map an extent, but nobody can change its size. */
static void sealed_and_shared(void **state)
{
	tern_mem *mem = make_pool(0);
	uint32_t *ptr = get(mem, 64, 0, 3);
	const tn_extent *ext = tn_mem_extent_of(mem, ptr);
	struct stat st;
	uint8_t *peer;

	(void)state;
	assert_int_equal(fcntl(ext->fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(ftruncate(ext->fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fstat(ext->fd, &st), 0);
	assert_int_equal(st.st_size, ext->bytes);
	assert_true((uint64_t)st.st_blocks * 512 >= ext->bytes); /* all there: no SIGBUS can come */
	peer = mmap(NULL, ext->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ext->fd, 0);
	assert_ptr_not_equal(peer, MAP_FAILED);
	*(uint32_t *)(peer + ((uint8_t *)ptr - (uint8_t *)ext->base)) = 77;
	assert_int_equal(*ptr, 77);
	munmap(peer, ext->bytes);
	tn_mem_destroy(mem);
}

static void devices_see_every_extent(void **state)
{
	fake_device a = {.tag = 1000}, b = {.tag = 2000};
	tern_mem *mem = make_pool(0);
	uint32_t slot_a, slot_b;
	uint8_t *p = get(mem, 100, 0, 3), *q;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &a, &slot_a), TERN_OK);
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &b, &slot_b), TERN_OK);
	assert_int_not_equal(slot_a, slot_b);
	q = get(mem, 20 * MiB, 0, 1);
	assert_int_equal(a.live, 2);
	assert_int_equal(b.live, 2);
	assert_int_equal(stats_of(mem).registrations, 4);
	assert_int_equal(tn_mem_extent_of(mem, p)->lkey[slot_a], 1000);
	assert_int_equal(tn_mem_extent_of(mem, q)->rkey[slot_b], 2000 + 0x10000 + 1);
	for (int i = 0; i < 1000; i++) /* registrations are O(extents), not O(blocks) */
		get(mem, 1000, 0, 3);
	assert_int_equal(a.total, 2);
	tn_mem_detach(mem, slot_a);
	assert_int_equal(a.live, 0);
	assert_int_equal(tn_mem_extent_of(mem, p)->lkey[slot_a], 0);
	assert_int_equal(stats_of(mem).registrations, 2);
	tn_mem_detach(mem, slot_b);
	assert_int_equal(b.live, 0);
	tn_mem_destroy(mem);
}

static void refused_registration_rolls_back(void **state)
{
	fake_device a = {0}, b = {0};
	tern_mem *mem = make_pool(0);
	uint32_t slot_a, slot_b;
	int maps, fds;
	void *ptr;

	(void)state;
	for (uint32_t access = 0; access < 4; access++)
		get(mem, 100, 0, access);
	for (int n = 1; n <= 4; n++) {
		a = (fake_device){.refuse_at = n};
		assert_int_equal(tn_mem_attach(mem, &fake_registrar, &a, &slot_a), TERN_E_NOMEM);
		assert_int_equal(a.live, 0);
		assert_int_equal(a.total, n - 1);
		assert_int_equal(stats_of(mem).registrations, 0);
	}
	a = b = (fake_device){0};
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &a, &slot_a), TERN_OK);
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &b, &slot_b), TERN_OK);
	maps = count_memfd_maps();
	fds = count_fds();
	b.refuse_at = 1; /* the second device refuses the new extent: the first gives it back */
	assert_int_equal(tern_mem_alloc(mem, 30 * MiB, 0, 0, TERN_MEM_HOST, &ptr), TERN_E_NOMEM);
	assert_int_equal(count_memfd_maps(), maps);
	assert_int_equal(count_fds(), fds);
	assert_int_equal(a.live, 4);
	assert_int_equal(b.live, 4);
	assert_int_equal(stats_of(mem).extents, 4);
	tn_mem_check(mem);
	get(mem, 30 * MiB, 0, 0);
	assert_int_equal(a.live, 5);
	tn_mem_detach(mem, slot_a);
	tn_mem_detach(mem, slot_b);
	tn_mem_destroy(mem);
}

static void too_many_devices(void **state)
{
	fake_device dev[TN_MEM_DEVICES_MAX + 1] = {0};
	tern_mem *mem = make_pool(0);
	uint32_t slot;

	(void)state;
	for (int i = 0; i < TN_MEM_DEVICES_MAX; i++)
		assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev[i], &slot), TERN_OK);
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev[TN_MEM_DEVICES_MAX], &slot), TERN_E_LIMIT);
	for (uint32_t i = 0; i < TN_MEM_DEVICES_MAX; i++)
		tn_mem_detach(mem, i);
	tn_mem_destroy(mem);
}

static void budget(void **state)
{
	tern_mem *mem = make_pool(9 * MiB); /* not a multiple: 8 can be used */
	void *a = get(mem, 4 * MiB, 0, 0), *b = get(mem, 3 * MiB, 0, 3), *c;

	(void)state;
	assert_int_equal(tern_mem_alloc(mem, 2 * MiB, 0, 1, TERN_MEM_HOST, &c), TERN_E_BUDGET);
	assert_non_null(strstr(tern_detail(), "2 MiB wanted"));
	assert_non_null(strstr(tern_detail(), "8 MiB of the budget of 9 MiB"));
	assert_non_null(strstr(tern_detail(), "TERN_MEM_LIMIT"));
	tern_mem_free(mem, a);
	/* The empty extent of another class goes back. */
	c = get(mem, 4 * MiB, 0, 1);
	assert_true(stats_of(mem).committed_bytes <= 9 * MiB);
	tn_mem_check(mem);
	assert_int_equal(tern_mem_alloc(mem, 16 * MiB, 0, 1, TERN_MEM_HOST, &a), TERN_E_BUDGET);
	tern_mem_free(mem, b);
	tern_mem_free(mem, c);
	tn_mem_destroy(mem);
}

/* A slab that is kept for reuse does not hold its extent; a key that was handed out does. */
static void what_goes_back_under_pressure(void **state)
{
	tern_mem *mem = make_pool(4 * MiB);
	void *a = get(mem, 100, 0, 1), *b = get(mem, 100, 0, 3), *c;
	uint32_t index = tn_mem_extent_of(mem, a)->index;
	const void *old = a;
	tern_key key;

	(void)state;
	tern_mem_free(mem, a);
	c = get(mem, 100, 0, 0);
	assert_null(tn_mem_extent_of(mem, old) && tn_mem_extent_of(mem, old)->access == 1 ? old : NULL);
	assert_null(tn_mem_extent(mem, index));
	assert_int_equal(tn_mem_extent_of(mem, c)->index % TN_MEM_EXTENTS_MAX, index);
	assert_int_not_equal(tn_mem_extent_of(mem, c)->index, index);
	assert_int_equal(tern_mem_export(mem, b, 100, TERN_ACCESS_READ, &key), TERN_OK);
	tern_mem_free(mem, b);
	assert_int_equal(tern_mem_alloc(mem, 100, 0, 2, TERN_MEM_HOST, &a), TERN_E_BUDGET);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void short_of_descriptors(void **state)
{
	struct rlimit before, few;
	tern_mem *mem = make_pool(0);
	tern_status status;
	void *ptr;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = 3;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	status = tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_HOST, &ptr);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(status, TERN_E_LIMIT);
	assert_non_null(strstr(tern_detail(), "ulimit -n"));
	get(mem, 100, 0, 0);
	tn_mem_destroy(mem);
}

#ifndef TN_SANITIZED
static void short_of_address_space(void **state)
{
	struct rlimit before, few;
	tn_mem_params params = {.reserve_bytes = 64 * GiB};
	tern_mem *mem;
	tern_status status;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	few = before;
	few.rlim_cur = 10 * GiB;
	assert_int_equal(setrlimit(RLIMIT_AS, &few), 0);
	status = tn_mem_create(&params, &mem);
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
	assert_int_equal(status, TERN_OK);
	assert_int_equal(mem->reserved, 8 * GiB);
	tn_mem_destroy(mem);
}
#endif

/* More than the host has: refused before the kernel would have to kill somebody. */
static void short_of_memory(void **state)
{
	tn_mem_params params = {.reserve_bytes = 4096 * GiB};
	tn_os_limits limits;
	tern_mem *mem;
	void *ptr;

	(void)state;
	tn_os_limits_get(&limits);
	if (tn_mem_create(&params, &mem) != TERN_OK || mem->reserved <= limits.memory_bytes)
		skip();
	assert_int_equal(tern_mem_alloc(mem, limits.memory_bytes, 0, 0, TERN_MEM_HOST, &ptr), TERN_E_NOMEM);
	assert_non_null(strstr(tern_detail(), "available"));
	assert_int_equal(stats_of(mem).committed_bytes, 0);
	tn_mem_destroy(mem);
}

static void huge_pages_or_words(void **state)
{
	tern_mem *mem = make_pool(0);
	tn_os_limits limits;
	void *ptr;

	(void)state;
	tn_os_limits_get(&limits);
	if (limits.huge_pages_free == 0) {
		assert_int_equal(tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_HUGE, &ptr), TERN_E_NOMEM);
		assert_non_null(strstr(tern_detail(), "vm.nr_hugepages"));
	} else {
		assert_int_equal(tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_HUGE, &ptr), TERN_OK);
		assert_int_equal(tn_mem_extent_of(mem, ptr)->pages, TN_PAGE_HUGE);
	}
	tn_mem_destroy(mem);
}

/* Does the kernel make huge pages on request? */
static bool collapses(void)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);
	uint8_t *map = mmap(NULL, 4 * MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *at = map + (2 * MiB - (uintptr_t)map % (2 * MiB));
	bool done;

	assert_true(fd >= 0 && map != MAP_FAILED && ftruncate(fd, 2 * MiB) == 0);
	assert_ptr_equal(mmap(at, 2 * MiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), at);
	at[0] = 1;
	done = madvise(at, 2 * MiB, 25 /* MADV_COLLAPSE */) == 0;
	munmap(map, 4 * MiB);
	close(fd);
	return done;
}

/* Whatever shared memory gets by itself. What can't be had, or is not wanted, is small pages. */
static void huge_pages_on_request(void **state)
{
	tn_mem_params params;
	tern_mem_stats stats;
	tn_os_limits limits;
	tern_mem *mem;
	uint8_t *ptr;

	(void)state;
	if (!collapses())
		skip();
	mem = make_pool(0);
	ptr = get(mem, 8 * MiB, 0, 3);
	for (uint64_t i = 0; i < 8 * MiB; i++)
		assert_int_equal(ptr[i], 0);
	memset(ptr, 1, 8 * MiB);
	stats = stats_of(mem);
	assert_int_equal(stats.extents_thp + stats.extents_huge, stats.extents);
	assert_int_equal(tn_fault_set("mem.extent.collapse", 1, 1), TERN_OK);
	memset(get(mem, 64 * MiB, 0, 3), 1, 64 * MiB);
	tn_fault_clear();
	tn_mem_check(mem);
	tn_mem_destroy(mem);

	tn_mem_params_load(&params, NULL);
	params.huge_pages = false;
	params.reserve_bytes = 4 * GiB;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	memset(get(mem, 8 * MiB, 0, 3), 1, 8 * MiB);
	assert_int_equal(stats_of(mem).extents_huge, 0);
	tn_os_limits_get(&limits);
	if (strcmp(limits.shmem_thp, "never") == 0)
		assert_int_equal(stats_of(mem).extents_thp, 0);
	tn_mem_destroy(mem);
}

static void counters_have_names(const char *name, uint64_t value, void *arg)
{
	if (strcmp(name, "mem.extents") == 0)
		*(uint64_t *)arg = value;
	assert_int_equal(strncmp(name, "mem.", 4), 0);
}

static void counters(void **state)
{
	tern_mem *mem = make_pool(0);
	uint64_t extents = 0;

	(void)state;
	get(mem, 100, 0, 0);
	tn_mem_count_staged(mem, 3);
	tn_mem_counters(mem, counters_have_names, &extents);
	assert_int_equal(extents, 1);
	assert_int_equal(stats_of(mem).staging_copies, 3);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grow_geometrically),
		cmocka_unit_test(classes_never_share_an_extent),
		cmocka_unit_test(look_up),
		cmocka_unit_test(sealed_and_shared),
		cmocka_unit_test(devices_see_every_extent),
		cmocka_unit_test(refused_registration_rolls_back),
		cmocka_unit_test(too_many_devices),
		cmocka_unit_test(budget),
		cmocka_unit_test(what_goes_back_under_pressure),
		cmocka_unit_test(short_of_descriptors),
#ifndef TN_SANITIZED
		cmocka_unit_test(short_of_address_space),
#endif
		cmocka_unit_test(short_of_memory),
		cmocka_unit_test(huge_pages_or_words),
		cmocka_unit_test(huge_pages_on_request),
		cmocka_unit_test(counters),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
