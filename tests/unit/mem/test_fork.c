/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child: reads what it inherited, cannot reach the parent's memory, handles are inert. */
#include <sys/wait.h>
#include <unistd.h>

#include "mem_test.h"

/* Runs in the child; returns the number of the expectation that failed. */
static int child(tern_mem *mem, uint8_t *small, uint8_t *large)
{
	tern_mem_stats stats;
	tern_mem *own = NULL;
	tern_key key;
	void *ptr;

	if (small[0] != 1 || large[9 * MiB] != 2)
		return 1;
	memset(small, 0xee, 100);
	memset(large, 0xee, 10 * MiB);
	if (small[5] != 0xee || large[5] != 0xee)
		return 2;
	if (tern_mem_alloc(mem, 100, 0, 3, TERN_MEM_HOST, &ptr) != TERN_E_FORKED || ptr)
		return 3;
	if (tern_mem_export(mem, small, 10, 1, &key) != TERN_E_FORKED)
		return 4;
	tern_mem_free(mem, small);
	tern_mem_free(mem, large);
	if (tern_mem_usable(mem, small) != 0)
		return 5;
	tern_mem_stats_get(mem, &stats);
	if (stats.blocks != 0)
		return 6;
	tn_mem_destroy(mem);
	if (small[5] != 0xee)
		return 7;
	/* A pool of its own works. */
	if (tn_mem_create(&(tn_mem_params){.reserve_bytes = GiB}, &own) != TERN_OK)
		return 8;
	if (tern_mem_alloc(own, 100, 0, 3, TERN_MEM_HOST, &ptr) != TERN_OK)
		return 9;
	tern_mem_free(own, ptr);
	tn_mem_destroy(own);
	return 0;
}

static void child_is_inert(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *small = get(mem, 100, 0, 3), *large = get(mem, 10 * MiB, 0, 1);
	pid_t pid;

	(void)state;
	memset(small, 1, 100);
	memset(large, 2, 10 * MiB);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(child(mem, small, large));
	child_ends_well(pid);
	for (int i = 0; i < 100; i++)
		assert_int_equal(small[i], 1);
	for (uint64_t i = 0; i < 10 * MiB; i += 4096)
		assert_int_equal(large[i], 2);
	assert_int_equal(stats_of(mem).blocks, 2);
	tern_mem_free(mem, small);
	tern_mem_free(mem, large);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void destroyed_pools_are_forgotten(void **state)
{
	tern_mem *mem = make_pool(0), *kept = make_pool(0);
	uint8_t *ptr = get(kept, 100, 0, 3);
	int status;
	pid_t pid;

	(void)state;
	get(mem, 100, 0, 3);
	tn_mem_destroy(mem);
	*ptr = 5;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		*ptr = 6;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(*ptr, 5);
	tn_mem_destroy(kept);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(child_is_inert),
		cmocka_unit_test(destroyed_pools_are_forgotten),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
