/* SPDX-License-Identifier: Apache-2.0 */
/* tern_arena_*: malloc's semantics, frees without a handle, errno, and what happens in a forked child. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rand.h"
#include "mem_test.h"

static void like_malloc(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *p, *q;

	(void)state;
	errno = 7;
	p = tern_arena_malloc(mem, 3, 100);
	assert_int_equal((uintptr_t)p % 64, 0);
	assert_true(tern_arena_usable(p) >= 100);
	memset(p, 1, 100);
	p = tern_arena_realloc(mem, 3, p, 5000);
	for (int i = 0; i < 100; i++)
		assert_int_equal(p[i], 1);
	q = tern_arena_realloc(mem, 3, p, 4500); /* fits where it is */
	assert_ptr_equal(p, q);
	p = tern_arena_realloc(mem, 3, p, 10); /* would waste most of it */
	assert_true(tern_arena_usable(p) <= 128);
	assert_int_equal(p[9], 1);
	p = tern_arena_realloc(mem, 1, p, 10); /* another class: moves */
	assert_int_equal(tn_mem_extent_of(mem, p)->access, 1);
	assert_int_equal(p[9], 1);
	tern_arena_free(p);
	p = tern_arena_realloc(mem, 3, NULL, 0);
	q = tern_arena_malloc(mem, 3, 0);
	assert_non_null(p);
	assert_ptr_not_equal(p, q);
	tern_arena_free(p);
	tern_arena_free(q);
	p = tern_arena_aligned(mem, 0, 8192, 100000);
	assert_int_equal((uintptr_t)p % 8192, 0);
	memset(p, 0xff, 100000);
	tern_arena_free(p);
	p = tern_arena_calloc(mem, 0, 1000, 100);
	for (int i = 0; i < 100000; i++)
		assert_int_equal(p[i], 0);
	tern_arena_free(p);
	tern_arena_free(NULL);
	assert_int_equal(errno, 7);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void errors(void **state)
{
	tern_mem *mem = make_pool(4 * MiB);
	int local;
	uint8_t *p, *big;

	(void)state;
	errno = 0;
	assert_null(tern_arena_malloc(mem, 3, 64 * MiB));
	assert_int_equal(errno, ENOMEM);
	assert_non_null(strstr(tern_detail(), "TERN_MEM_LIMIT"));
	errno = 0;
	assert_null(tern_arena_malloc(mem, 3, SIZE_MAX));
	assert_int_equal(errno, ENOMEM);
	errno = 0;
	assert_null(tern_arena_calloc(mem, 3, SIZE_MAX / 2, 3));
	assert_int_equal(errno, ENOMEM);
	errno = 0;
	assert_null(tern_arena_aligned(mem, 3, 48, 100));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(tern_arena_malloc(mem, 77, 100));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(tern_arena_malloc(NULL, 3, 100));
	assert_int_equal(errno, EINVAL);
	p = tern_arena_malloc(mem, 3, 100);
	memset(p, 9, 100);
	assert_null(tern_arena_realloc(mem, 3, p, 64 * MiB)); /* the old block stays */
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(p[99], 9);
	assert_null(tern_arena_realloc(mem, 3, &local, 100));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(tern_arena_usable(&local), 0);
	tern_arena_free(&local); /* refused */
	tern_arena_free(p);
	tern_arena_free(p); /* twice */
	assert_int_equal(tn_counter_read(&mem->refused_frees), 1);
	big = tern_arena_malloc(mem, 3, MiB);
	assert_non_null(big);
	tern_arena_free(big);
	tn_mem_destroy(mem);
	tern_arena_free(big); /* its context is gone: refused, not followed */
}

static void finds_the_pool_by_address(void **state)
{
	enum { POOLS = 8 };
	tern_mem *mem[POOLS];
	void *ptr[POOLS][50];
	tn_rand rand = {.state = 5};

	(void)state;
	for (int i = 0; i < POOLS; i++)
		mem[i] = make_pool(0);
	tn_mem_destroy(mem[2]);
	mem[2] = make_pool(0);
	for (int k = 0; k < 50; k++) {
		for (int i = 0; i < POOLS; i++)
			ptr[i][k] = tern_arena_malloc(mem[i], 3, tn_rand_below(&rand, 100000));
	}
	for (int k = 0; k < 50; k++) {
		for (int i = 0; i < POOLS; i++) {
			assert_ptr_equal(tn_pools_of(ptr[i][k]), mem[i]);
			tern_arena_free(ptr[i][k]);
		}
	}
	for (int i = 0; i < POOLS; i++) {
		assert_int_equal(stats_of(mem[i]).blocks, 0);
		tn_mem_destroy(mem[i]);
	}
}

/* Runs in the child; returns the number of the expectation that failed. */
static int child(tern_mem *mem, uint8_t *small, uint8_t *large)
{
	uint8_t *p = tern_arena_malloc(mem, 3, 1000), *q;
	int local;

	if (!p || tn_pools_of(p) || (uintptr_t)p % 64 || tern_arena_usable(p) < 1000)
		return 1;
	memset(p, 4, 1000);
	p = tern_arena_realloc(mem, 3, p, 100000);
	if (!p || p[999] != 4)
		return 2;
	tern_arena_free(p);
	if (tern_arena_usable(small) < 100 || tern_arena_usable(large) < 3 * MiB)
		return 3;
	q = tern_arena_realloc(mem, 3, small, 200); /* a copy of what was inherited */
	if (!q || q == small || q[99] != 1 || small[99] != 1)
		return 4;
	tern_arena_free(small);
	tern_arena_free(large);
	if (small[0] != 1 || large[0] != 2)
		return 5;
	tern_arena_free(q);
	tern_arena_free(&local); /* refused in the child too */
	p = tern_arena_calloc(mem, 3, 10, 10);
	if (!p || p[99])
		return 6;
	tern_arena_free(p);
	return 0;
}

static void in_a_forked_child(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *small = tern_arena_malloc(mem, 3, 100), *large = tern_arena_malloc(mem, 3, 3 * MiB);
	pid_t pid;

	(void)state;
	memset(small, 1, 100);
	memset(large, 2, 3 * MiB);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(child(mem, small, large));
	child_ends_well(pid);
	tern_arena_free(small);
	tern_arena_free(large);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(like_malloc),
		cmocka_unit_test(errors),
		cmocka_unit_test(finds_the_pool_by_address),
		cmocka_unit_test(in_a_forked_child),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
