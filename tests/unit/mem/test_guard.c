/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks whose keys were revoked while a guard says that accesses are under way. The guard is a fake.
 * Threads: the main thread alone.
 */
#include "mem/cache.h"
#include "mem_test.h"

typedef struct fake {
	uint64_t marks;  /* next ticket */
	uint64_t passed; /* tickets up to here have passed */
	bool busy;
} fake;

static uint64_t fake_mark(void *dev)
{
	fake *f = dev;

	return f->busy ? ++f->marks : 0;
}

static bool fake_passed(void *dev, uint64_t ticket)
{
	return ticket <= ((fake *)dev)->passed;
}

static const tn_guard guard = {.mark = fake_mark, .passed = fake_passed};

static void *exported(tern_mem *mem, uint64_t bytes)
{
	tern_key key;
	void *ptr;

	assert_int_equal(tern_mem_alloc(mem, bytes, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr), TERN_OK);
	assert_int_equal(tern_mem_export(mem, ptr, bytes, TERN_ACCESS_WRITE, &key), TERN_OK);
	return ptr;
}

static uint64_t blocks(tern_mem *mem)
{
	tern_mem_stats stats;

	tern_mem_stats_get(mem, &stats);
	tn_mem_check(mem);
	return stats.blocks;
}

static void test_park(void **state)
{
	tern_mem *mem;
	fake one = {0}, two = {0};
	void *a, *b, *c;

	(void)state;
	assert_int_equal(tn_mem_create(NULL, &mem), TERN_OK);
	assert_int_equal(tn_mem_guard_add(mem, &guard, &one), TERN_OK);
	assert_int_equal(tn_mem_guard_add(mem, &guard, &two), TERN_OK);
	for (uint64_t bytes = 100; bytes <= 100000; bytes *= 1000) { /* slab, run */
		one = two = (fake){0};
		a = exported(mem, bytes);
		b = exported(mem, bytes);
		tern_mem_free(mem, a); /* nothing under way */
		assert_int_equal(blocks(mem), 1);
		one.busy = two.busy = true;
		tern_mem_free(mem, b);
		assert_int_equal(blocks(mem), 1);
		assert_true(tn_cache_get(mem)->stolen & TN_CLOSED_PARKED);
		tern_mem_free(mem, b); /* twice: refused */
		assert_int_equal(blocks(mem), 1);
		one.passed = 100; /* one of two */
		tern_mem_free(mem, NULL);
		a = exported(mem, bytes);
		tern_mem_free(mem, a);
		assert_int_equal(blocks(mem), 2);
		two.passed = 100;
		two.busy = false;
		assert_int_equal(tern_mem_alloc(mem, 64, 0, 0, TERN_MEM_HOST, &c), TERN_OK);
		tern_mem_free(mem, c); /* a free looks at what waits */
		assert_int_equal(blocks(mem), 0);
		assert_false(tn_cache_get(mem)->stolen & TN_CLOSED_PARKED);
	}
	tn_mem_guard_remove(mem, &one);
	tn_mem_guard_remove(mem, &two);
	tn_mem_destroy(mem);
}

static void test_revoke(void **state)
{
	tern_mem *mem;
	fake f = {.busy = true, .passed = 1};
	tern_key key;
	void *ptr;

	(void)state;
	assert_int_equal(tn_mem_create(NULL, &mem), TERN_OK);
	assert_int_equal(tn_mem_guard_add(mem, &guard, &f), TERN_OK);
	assert_int_equal(tern_mem_alloc(mem, 100, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr), TERN_OK);
	assert_int_equal(tern_mem_export(mem, ptr, 100, TERN_ACCESS_WRITE, &key), TERN_OK);
	assert_int_equal(tern_mem_revoke(mem, &key), TERN_OK); /* passed by the time it is asked */
	assert_int_equal(tern_mem_export(mem, ptr, 100, TERN_ACCESS_WRITE, &key), TERN_OK);
	assert_int_equal(tern_mem_revoke(mem, &key), TERN_E_INDETERMINATE);
	assert_int_equal(tern_mem_revoke(mem, &key), TERN_E_STALE_KEY);
	tern_mem_free(mem, ptr);
	assert_int_equal(blocks(mem), 1);
	tn_mem_guard_remove(mem, &f); /* nobody can say any more: never reused */
	assert_int_equal(tern_mem_alloc(mem, 100, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr), TERN_OK);
	tern_mem_free(mem, ptr);
	assert_int_equal(blocks(mem), 1);
	tn_mem_destroy(mem);
}

static void test_limit(void **state)
{
	tern_mem *mem;
	fake f[TN_MEM_GUARDS_MAX + 1] = {{0}};

	(void)state;
	assert_int_equal(tn_mem_create(NULL, &mem), TERN_OK);
	for (int i = 0; i < TN_MEM_GUARDS_MAX; i++)
		assert_int_equal(tn_mem_guard_add(mem, &guard, &f[i]), TERN_OK);
	assert_int_equal(tn_mem_guard_add(mem, &guard, &f[TN_MEM_GUARDS_MAX]), TERN_E_LIMIT);
	tn_mem_guard_remove(mem, &f[3]);
	assert_int_equal(tn_mem_guard_add(mem, &guard, &f[TN_MEM_GUARDS_MAX]), TERN_OK);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_park),
		cmocka_unit_test(test_revoke),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
