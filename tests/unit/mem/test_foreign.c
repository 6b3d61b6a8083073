/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign memory that is registered: all devices or none, who comes later, limits in words, use and keys keep it,
 * look-up against a naive table, forked children. Names say which report a case answers.
 */
#include <linux/capability.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mem/foreign.h"
#include "mem_test.h"

#define PAGES(n) ((n)*4096ull)

static uint8_t *pages(uint64_t n)
{
	void *at = mmap(NULL, PAGES(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

/* A pool whose devices may pin what they like, whatever this machine allows. */
static tern_mem *pool(void)
{
	tern_mem *mem = make_pool(0);

	mem->regions->pin_limit = UINT64_MAX;
	return mem;
}

static tern_region *reg(tern_mem *mem, void *ptr, uint64_t bytes, uint32_t access)
{
	tern_region *region = NULL;
	tern_status status = tern_mem_register(mem, ptr, bytes, access, &region);

	if (status != TERN_OK)
		print_error("%s: %s\n", tern_status_name(status), tern_detail());
	assert_int_equal(status, TERN_OK);
	assert_non_null(region);
	return region;
}

#define assert_text(part)                                                     \
	do {                                                                  \
		if (!strstr(tern_detail(), part))                             \
			fail_msg("\"%s\" lacks \"%s\"", tern_detail(), part); \
	} while (0)

static void test_register(void **state)
{
	fake_device devs[2] = {{.tag = 100}, {.tag = 5000}};
	tern_mem *mem = pool();
	uint8_t *at = pages(4);
	tern_region *region;
	const tn_extent *ext;
	uint32_t slots[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_mem_attach(mem, &fake_registrar, &devs[i], &slots[i]), TERN_OK);
	assert_null(tn_mem_local_of(mem, at, 1));
	region = reg(mem, at, PAGES(4), TERN_ACCESS_READ);
	assert_int_equal(devs[0].live, 1);
	assert_int_equal(devs[1].live, 1);
	assert_int_equal(stats_of(mem).registrations, 2);
	assert_int_equal(stats_of(mem).regions, 1);
	assert_int_equal(stats_of(mem).region_bytes, PAGES(4));
	ext = tn_mem_local_of(mem, at + 5, PAGES(4) - 5);
	assert_non_null(ext);
	assert_ptr_equal(ext, tn_region_extent(region));
	assert_ptr_equal(ext, tn_mem_extent(mem, ext->index));
	assert_true(ext->index & TN_MEM_REGION);
	assert_int_equal(ext->fd, -1);
	assert_int_equal(ext->lkey[slots[1]], 5000 + ext->index);
	assert_true(tn_mem_known_to_all(mem, ext));
	assert_null(tn_mem_local_of(mem, at + 5, PAGES(4)));
	assert_null(tn_mem_local_of(mem, at + PAGES(4), 0));
	assert_null(tn_mem_extent_of(mem, at));
	tn_mem_check(mem);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	assert_null(tn_mem_local_of(mem, at, 1));
	assert_int_equal(devs[0].live + devs[1].live, 0);
	assert_int_equal(tern_mem_unregister(region), TERN_E_INVALID);
	assert_int_equal(tern_mem_unregister(NULL), TERN_OK);
	tn_mem_check(mem);
	for (int i = 0; i < 2; i++)
		tn_mem_detach(mem, slots[i]);
	tn_mem_destroy(mem);
	munmap(at, PAGES(4));
}

static void test_refused(void **state)
{
	tern_mem *mem = pool();
	uint8_t *at = pages(8), *own = get(mem, 100, 0, 3);
	tern_region *region, *other;

	(void)state;
	assert_int_equal(tern_mem_register(mem, NULL, 10, 0, &region), TERN_E_INVALID);
	assert_int_equal(tern_mem_register(mem, at, 0, 0, &region), TERN_E_INVALID);
	assert_int_equal(tern_mem_register(mem, at, UINT64_MAX, 0, &region), TERN_E_INVALID);
	assert_int_equal(tern_mem_register(mem, at, 10, 4, &region), TERN_E_INVALID);
	assert_int_equal(tern_mem_register(mem, own, 100, 0, &region), TERN_E_INVALID);
	assert_null(region);
	/* what peers reach is whole pages */
	assert_int_equal(tern_mem_register(mem, at + 64, PAGES(1), TERN_ACCESS_READ, &region),
			 TERN_E_INVALID);
	assert_text("aligned_alloc");
	assert_int_equal(tern_mem_register(mem, at, 100, TERN_ACCESS_WRITE, &region), TERN_E_INVALID);
	region = reg(mem, at + 3, 100, TERN_ACCESS_NONE);
	assert_int_equal(tern_mem_register(mem, at, PAGES(1), 0, &other), TERN_E_EXISTS);
	assert_int_equal(tern_mem_register(mem, at + 102, 1, 0, &other), TERN_E_EXISTS);
	other = reg(mem, at + 103, 1, 0);
	assert_int_equal(tern_mem_unregister(other), TERN_OK);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	tn_mem_destroy(mem);
	munmap(at, PAGES(8));
}

/* Mooncake#1754: one device refuses, and later it says "not registered". */
static void test_all_devices_or_none(void **state)
{
	fake_device devs[4] = {{.tag = 1}, {.tag = 2}, {.tag = 3}, {.tag = 4}};
	tern_mem *mem = pool();
	uint8_t *at = pages(3);
	tern_region *region, *kept;
	uint32_t slots[4];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(tn_mem_attach(mem, &fake_registrar, &devs[i], &slots[i]), TERN_OK);
	kept = reg(mem, at, PAGES(1), 0);
	for (int i = 0; i < 3; i++) {
		devs[i].refuse_at = 1;
		assert_int_equal(tern_mem_register(mem, at + PAGES(1), PAGES(1), 0, &region), TERN_E_NOMEM);
		assert_null(region);
		assert_int_equal(devs[0].live + devs[1].live + devs[2].live, 3);
		assert_null(tn_mem_local_of(mem, at + PAGES(1), 1));
		tn_mem_check(mem);
	}
	region = reg(mem, at + PAGES(1), PAGES(2), 0);
	/* a device that comes later takes all regions, or is not attached */
	devs[3].refuse_at = 2;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &devs[3], &slots[3]), TERN_E_NOMEM);
	assert_int_equal(devs[3].live, 0);
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &devs[3], &slots[3]), TERN_OK);
	assert_int_equal(devs[3].live, 2);
	assert_int_equal(tn_region_extent(kept)->lkey[slots[3]], 4 + tn_region_extent(kept)->index);
	assert_int_equal(stats_of(mem).registrations, 8);
	for (int i = 0; i < 4; i++) {
		tn_mem_detach(mem, slots[i]);
		assert_int_equal(devs[i].live, 0);
	}
	assert_int_equal(tern_mem_unregister(kept), TERN_OK);
	tn_mem_destroy(mem); /* with a region left: it ends with the pool */
	munmap(at, PAGES(3));
}

/* A later device refuses a region: extents go back as well. */
static void test_attach_rolls_extents_back(void **state)
{
	fake_device dev = {.tag = 1};
	tern_mem *mem = pool();
	uint8_t *at = pages(1);
	tern_region *region;
	uint32_t slot;

	(void)state;
	tern_mem_free(mem, get(mem, 100, 0, 0));
	tern_mem_free(mem, get(mem, 100, 0, 3));
	region = reg(mem, at, PAGES(1), 0);
	dev.refuse_at = (int)stats_of(mem).extents + 1;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_E_NOMEM);
	assert_int_equal(dev.live, 0);
	assert_int_equal(stats_of(mem).registrations, 0);
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	assert_int_equal(dev.live, (int)stats_of(mem).extents + 1);
	tn_mem_detach(mem, slot);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	tn_mem_destroy(mem);
	munmap(at, PAGES(1));
}

/* Mooncake#1382: 80 GiB on two NICs. */
static void test_preflight_names_limit_wanted_have_remedy(void **state)
{
	fake_device devs[2] = {{.tag = 1}, {.tag = 2}};
	tern_mem *mem = pool();
	uint8_t *at = pages(16);
	tern_region *region;
	uint32_t slots[2];

	(void)state;
	assert_int_equal(tn_pin_preflight(UINT64_MAX, UINT64_MAX, UINT64_MAX, 4), TERN_OK);
	assert_int_equal(tn_pin_preflight(0, 0, 1ull << 50, 0), TERN_OK);
	assert_int_equal(tn_pin_preflight(100, 60, 20, 2), TERN_OK);
	assert_int_equal(tn_pin_preflight(100, 61, 20, 2), TERN_E_LIMIT);
	assert_int_equal(tn_pin_preflight(100, 0, UINT64_MAX / 2, 3), TERN_E_LIMIT);
	assert_int_equal(tn_pin_preflight(8 * MiB, 2 * MiB, 80 * GiB, 2), TERN_E_LIMIT);
	assert_text("80");
	assert_text("2 devices");
	assert_text("2 MiB");
	assert_text("RLIMIT_MEMLOCK");
	assert_text("8 MiB");
	assert_text("ulimit -l");

	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_mem_attach(mem, &fake_registrar, &devs[i], &slots[i]), TERN_OK);
	mem->regions->pin_limit = PAGES(16);
	assert_int_equal(tern_mem_register(mem, at, PAGES(9), 0, &region), TERN_E_LIMIT);
	assert_int_equal(devs[0].total, 0);
	region = reg(mem, at, PAGES(6), 0);
	assert_int_equal(tern_mem_register(mem, at + PAGES(6), PAGES(3), 0, &region), TERN_E_LIMIT);
	reg(mem, at + PAGES(6), PAGES(2), 0);
	for (int i = 0; i < 2; i++)
		tn_mem_detach(mem, slots[i]);
	tn_mem_destroy(mem);
	munmap(at, PAGES(16));
}

/* The limit of a process without CAP_IPC_LOCK is what the system says. */
static int limited_child(uint8_t *at)
{
	struct rlimit limit = {PAGES(4), PAGES(4)};
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
	fake_device dev = {.tag = 1};
	tern_region *region;
	tern_mem *mem;
	uint32_t slot;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || syscall(SYS_capset, &head, data) != 0)
		return 1;
	mem = make_pool(0);
	if (mem->regions->pin_limit != PAGES(4))
		return 2;
	if (tn_mem_attach(mem, &fake_registrar, &dev, &slot) != TERN_OK)
		return 3;
	if (tern_mem_register(mem, at, PAGES(5), 0, &region) != TERN_E_LIMIT ||
	    !strstr(tern_detail(), "RLIMIT_MEMLOCK"))
		return 4;
	if (tern_mem_register(mem, at, PAGES(4), 0, &region) != TERN_OK)
		return 5;
	tn_mem_detach(mem, slot);
	tn_mem_destroy(mem);
	return 0;
}

static void test_limit_of_the_system(void **state)
{
	uint8_t *at = pages(5);
	pid_t pid;

	(void)state;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(limited_child(at));
	child_ends_well(pid);
	munmap(at, PAGES(5));
}

static void test_in_use(void **state)
{
	fake_device dev = {.tag = 1};
	tern_mem *mem = pool();
	uint8_t *at = pages(2);
	tern_region *region, *used;
	tern_key key, other;
	uint32_t slot;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	region = reg(mem, at, PAGES(2), TERN_ACCESS_READ);
	assert_null(tn_region_use(mem, at, PAGES(2) + 1));
	used = tn_region_use(mem, at + 100, 8);
	assert_ptr_equal(used, region);
	assert_int_equal(tern_mem_unregister(region), TERN_E_IN_USE);
	assert_text("1 request");
	assert_int_equal(dev.live, 1);
	tn_region_unuse(used);

	assert_int_equal(tern_mem_export(mem, at, 100, TERN_ACCESS_WRITE, &key), TERN_E_ACCESS);
	assert_int_equal(tern_mem_export(mem, at, PAGES(2) + 1, TERN_ACCESS_READ, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, at + 10, 100, TERN_ACCESS_READ, &key), TERN_OK);
	assert_int_equal(tern_mem_export(mem, at, PAGES(2), TERN_ACCESS_READ, &other), TERN_OK);
	assert_int_equal(tern_mem_unregister(region), TERN_E_IN_USE);
	assert_text("revoke");
	assert_int_equal(tern_mem_revoke(mem, &key), TERN_OK);
	assert_int_equal(tern_mem_unregister(region), TERN_E_IN_USE);
	assert_int_equal(tern_mem_revoke(mem, &other), TERN_OK);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	assert_int_equal(dev.live, 0);
	tn_mem_detach(mem, slot);
	tn_mem_destroy(mem);
	munmap(at, PAGES(2));
}

/* Keys are checked to the byte; a key of a region that went is stale for the next one in its place too. */
static void test_keys(void **state)
{
	tern_mem *mem = pool();
	uint8_t *at = pages(2);
	tern_region *region = reg(mem, at, PAGES(2), 3);
	const tn_extent *ext;
	tern_key wire;
	uint32_t index;
	uint64_t offset;
	tn_key key;

	(void)state;
	assert_int_equal(tern_mem_export(mem, at + 10, 100, TERN_ACCESS_READ, &wire), TERN_OK);
	assert_int_equal(tern_key_length(&wire), 100);
	assert_true(tn_key_decode(&wire, &key));
	assert_int_equal(key.address, (uintptr_t)at + 10);
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 90, 10, TERN_ACCESS_READ, &index, &offset),
			 TERN_OK);
	ext = tn_mem_extent(mem, index);
	assert_non_null(ext);
	assert_ptr_equal((uint8_t *)ext->base + offset, at + 100);
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 91, 10, TERN_ACCESS_READ, &index, &offset),
			 TERN_E_BOUNDS);
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 0, 10, TERN_ACCESS_WRITE, &index, &offset),
			 TERN_E_ACCESS);
	assert_int_equal(tern_mem_revoke(mem, &wire), TERN_OK);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	region = reg(mem, at, PAGES(2), 3);
	assert_null(tn_mem_extent(mem, index));
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 0, 10, TERN_ACCESS_READ, &index, &offset),
			 TERN_E_STALE_KEY);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	tn_mem_destroy(mem);
	munmap(at, PAGES(2));
}

/* UCX#6264: everything that grows has a cap. */
static void test_cap(void **state)
{
	static tern_region *regions[TN_MEM_REGIONS_MAX];
	tern_mem *mem = pool();
	uint8_t *at = pages(8), *more;
	tern_region *one;

	(void)state;
	for (uint32_t i = 0; i < TN_MEM_REGIONS_MAX; i++)
		regions[i] = reg(mem, at + i * 8, 8, 0);
	assert_int_equal(tern_mem_register(mem, at + TN_MEM_REGIONS_MAX * 8 - 8, 8, 0, &one), TERN_E_EXISTS);
	more = pages(1);
	assert_int_equal(tern_mem_register(mem, more, 8, 0, &one), TERN_E_LIMIT);
	tn_mem_check(mem);
	for (uint32_t i = 0; i < TN_MEM_REGIONS_MAX; i++)
		assert_int_equal(tern_mem_unregister(regions[i]), TERN_OK);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
	munmap(at, PAGES(8));
	munmap(more, PAGES(1));
}

/* Random coming and going; each look-up as a table of bytes would answer it. */
static void test_model(void **state)
{
	enum { BYTES = 512, ROUNDS = 20000 };
	tern_region *owner[BYTES] = {NULL};
	tern_mem *mem = pool();
	uint8_t *at = pages(1);
	uint64_t random = 42;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t from, n;
		bool free = true;
		tern_region *region;

		random = random * 6364136223846793005ull + 1442695040888963407ull;
		from = (uint32_t)(random >> 33) % BYTES;
		n = 1 + (uint32_t)(random >> 50) % 20;
		n = from + n > BYTES ? BYTES - from : n;
		for (uint32_t i = from; i < from + n; i++)
			free = free && !owner[i];
		if (owner[from] && (random >> 20) % 2) {
			region = owner[from];
			assert_int_equal(tern_mem_unregister(region), TERN_OK);
			for (uint32_t i = 0; i < BYTES; i++)
				owner[i] = owner[i] == region ? NULL : owner[i];
		} else {
			assert_int_equal(tern_mem_register(mem, at + from, n, 0, &region),
					 free ? TERN_OK : TERN_E_EXISTS);
			for (uint32_t i = from; free && i < from + n; i++)
				owner[i] = region;
		}
		from = (uint32_t)(random >> 10) % BYTES;
		assert_ptr_equal(tn_region_find(mem, at + from), owner[from]);
		if (round % 100 == 0)
			tn_mem_check(mem);
	}
	tn_mem_destroy(mem);
	munmap(at, PAGES(1));
}

/* ---- threads ---- */

typedef struct racers {
	tern_mem *mem;
	uint8_t *at;
	_Atomic bool stop;
	_Atomic uint64_t found;
} racers;

static void *look_up(void *arg)
{
	racers *r = arg;

	while (!atomic_load(&r->stop)) {
		for (uint32_t i = 0; i < 16; i++) {
			tern_region *region = tn_region_use(r->mem, r->at + PAGES(i) + 7, 9);

			if (!region)
				continue;
			/* in use: it is the right one and its fields hold still */
			TN_ASSERT(tn_region_extent(region)->base == r->at + PAGES(i));
			TN_ASSERT(tn_region_extent(region)->reg[0] != NULL);
			tn_region_unuse(region);
			atomic_fetch_add(&r->found, 1);
		}
	}
	return NULL;
}

static void test_look_up_beside_change(void **state)
{
	fake_device dev = {.tag = 1};
	racers r = {.mem = pool(), .at = pages(16)};
	tern_region *regions[16] = {NULL};
	uint64_t went = 0, kept = 0;
	pthread_t threads[2];
	uint32_t slot;

	(void)state;
	assert_int_equal(tn_mem_attach(r.mem, &fake_registrar, &dev, &slot), TERN_OK);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, look_up, &r), 0);
	for (uint32_t n = 0; n < 30000 || atomic_load(&r.found) == 0; n++) {
		uint32_t i = (n * 7) % 16;

		if (!regions[i]) {
			regions[i] = reg(r.mem, r.at + PAGES(i), PAGES(1), 0);
		} else if (tern_mem_unregister(regions[i]) == TERN_OK) {
			regions[i] = NULL;
			went++;
		} else {
			kept++;
		}
	}
	atomic_store(&r.stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_true(went > 0);
	print_message("%llu went, %llu were in use, %llu uses\n", (unsigned long long)went,
		      (unsigned long long)kept, (unsigned long long)r.found);
	tn_mem_check(r.mem);
	tn_mem_detach(r.mem, slot);
	assert_int_equal(dev.live, 0);
	tn_mem_destroy(r.mem);
	munmap(r.at, PAGES(16));
}

/* ---- fork ---- */

static int child(tern_mem *mem, tern_region *region, uint8_t *at)
{
	tern_region *own = NULL;
	tern_key key;

	if (at[5] != 17)
		return 1;
	at[5] = 18; /* the child's own copy */
	if (tern_mem_unregister(region) != TERN_E_FORKED)
		return 2;
	if (tern_mem_register(mem, at + PAGES(1), PAGES(1), 0, &own) != TERN_E_FORKED || own)
		return 3;
	if (tern_mem_export(mem, at, 10, TERN_ACCESS_READ, &key) != TERN_E_FORKED)
		return 4;
	tn_mem_destroy(mem);
	return 0;
}

/* rdma-core PR#1222, byteps#54, gloo#340: fork after registration breaks the child or the parent. */
static void test_fork_after_registration(void **state)
{
	fake_device dev = {.tag = 1};
	tern_mem *mem = pool();
	uint8_t *at = pages(2);
	tern_region *region;
	uint32_t slot;
	pid_t pid;

	(void)state;
	at[5] = 17;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	region = reg(mem, at, PAGES(1), TERN_ACCESS_READ);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(child(mem, region, at));
	child_ends_well(pid);
	assert_int_equal(at[5], 17);
	assert_int_equal(dev.live, 1);
	assert_ptr_equal(tn_region_find(mem, at), region);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	tn_mem_detach(mem, slot);
	tn_mem_destroy(mem);
	munmap(at, PAGES(2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_register),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_all_devices_or_none),
		cmocka_unit_test(test_attach_rolls_extents_back),
		cmocka_unit_test(test_preflight_names_limit_wanted_have_remedy),
		cmocka_unit_test(test_limit_of_the_system),
		cmocka_unit_test(test_in_use),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_cap),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_look_up_beside_change),
		cmocka_unit_test(test_fork_after_registration),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
