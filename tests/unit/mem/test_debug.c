/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug mode: overruns, writes after free, double and foreign frees, leaks, each an ERROR line with call sites.
 * Threads: the log's sink is called by the main thread alone.
 */
#include <pthread.h>

#include "mem_test.h"

static struct {
	char text[64][1024];
	int n;
} lines;

static void sink(tn_log_level level, const char *line, size_t bytes, void *arg)
{
	(void)arg;
	(void)level;
	if (lines.n < 64)
		snprintf(lines.text[lines.n++], sizeof(lines.text[0]), "%.*s", (int)bytes, line);
}

static int lines_with(const char *what)
{
	int n = 0;

	for (int i = 0; i < lines.n; i++)
		n += strstr(lines.text[i], what) != NULL;
	return n;
}

static tern_mem *debug_pool(tn_mem_debug debug)
{
	tn_mem_params params;
	tern_mem *mem = NULL;

	tn_mem_params_load(&params, NULL);
	params.reserve_bytes = GiB;
	params.debug = debug;
	lines.n = 0;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	return mem;
}

static void quiet_when_all_is_well(void **state)
{
	static const uint64_t sizes[] = {0, 1, 63, 64, 100, 4096, 32768, 40000, 3 * MiB};
	(void)state;
	for (int mode = TN_DEBUG_CANARY; mode <= TN_DEBUG_FULL; mode++) {
		tern_mem *mem = debug_pool(mode);

		for (int round = 0; round < 3; round++) {
			for (unsigned i = 0; i < TN_COUNT_OF(sizes); i++) {
				uint8_t *p = get(mem, sizes[i], 0, 3);

				assert_int_equal(tern_mem_usable(mem, p), sizes[i]);
				memset(p, 0x11, sizes[i]);
				tn_mem_check(mem);
				tern_mem_free(mem, p);
				tn_mem_check(mem);
			}
		}
		tn_mem_destroy(mem);
		assert_int_equal(lines.n, 0);
	}
}

static void overrun(void **state)
{
	static const uint64_t sizes[] = {1, 64, 100, 40000};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(sizes); i++) {
		tern_mem *mem = debug_pool(TN_DEBUG_CANARY);
		uint8_t *p = get(mem, sizes[i], 0, 3), *q = get(mem, sizes[i], 0, 3);

		p[sizes[i]] = 1;
		tern_mem_free(mem, p);
		assert_int_equal(stats_of(mem).damage, 1);
		assert_int_equal(lines_with("written past its end"), 1);
		assert_int_equal(lines_with("allocated by"), 1);
		q[sizes[i] + 15] = 1;
		tn_mem_check(mem); /* found without a free too, once */
		tn_mem_check(mem);
		assert_int_equal(stats_of(mem).damage, 2);
		tern_mem_free(mem, q);
		assert_int_equal(stats_of(mem).damage, 2);
		tn_mem_destroy(mem);
	}
}

static void write_after_free(void **state)
{
	tern_mem *mem = debug_pool(TN_DEBUG_FULL);
	uint8_t *p = get(mem, 100, 0, 3);

	(void)state;
	assert_int_equal(p[0], 0xa5);
	tern_mem_free(mem, p);
	assert_int_equal(p[0], 0xdf);
	p[50] = 7;
	tn_mem_check(mem);
	assert_int_equal(lines_with("written after it was freed at offset 50"), 1);
	assert_int_equal(lines_with("freed by"), 1);
	for (int i = 0; i < 64; i++) /* its next owner's allocation finds it as well */
		get(mem, 100, 0, 3);
	assert_int_equal(stats_of(mem).damage, 2);
	tn_mem_destroy(mem);
}

static void double_and_foreign_frees(void **state)
{
	tern_mem *mem = debug_pool(TN_DEBUG_CANARY);
	uint8_t *p = get(mem, 100, 0, 3);
	int local;

	(void)state;
	tern_mem_free(mem, p);
	tern_mem_free(mem, p);
	assert_int_equal(lines_with("freed before by"), 1);
	assert_int_equal(lines_with("refused: called by"), 1);
	tern_mem_free(mem, &local);
	assert_int_equal(lines_with("refused: called by"), 2);
	assert_int_equal(stats_of(mem).refused_frees, 2);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_destroy(mem);
}

__attribute__((noinline)) static void *leak_here(tern_mem *mem)
{
	void *ptr = NULL;

	assert_int_equal(tern_mem_alloc(mem, 1000, 0, 3, TERN_MEM_HOST, &ptr), TERN_OK);
	return ptr;
}

static void leaks(void **state)
{
	tern_mem *mem = debug_pool(TN_DEBUG_CANARY);
	volatile int many = 12; /* one call site: the loop stays one */

	(void)state;
	for (int i = 0; i < many; i++)
		leak_here(mem);
	get(mem, 5000, 0, 0);
	tn_mem_destroy(mem);
	assert_int_equal(lines_with("leak:"), 2);
	assert_int_equal(lines_with("leak: 12 blocks"), 1);
	assert_int_equal(lines_with("leak: 1 blocks"), 1);
	assert_int_equal(lines_with("test-mem-debug"), 2); /* call sites name the program */
}

/* A key ends where the canary begins: a peer has no right to it. */
static void keys_end_before_the_canary(void **state)
{
	tern_mem *mem = debug_pool(TN_DEBUG_CANARY);
	uint8_t *p = get(mem, 100, 0, 3);
	tern_key key;

	(void)state;
	assert_int_equal(tern_mem_export(mem, p, 100, 3, &key), TERN_OK);
	assert_int_equal(tern_mem_export(mem, p, 101, 3, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, p + 101, 0, 3, &key), TERN_OK);
	tern_mem_free(mem, p);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
	assert_int_equal(lines.n, 0);
}

/* Extents that go back take what is watched in them along. */
static void watched_memory_may_go(void **state)
{
	tn_mem_params params = {.reserve_bytes = GiB, .limit_bytes = 4 * MiB, .debug = TN_DEBUG_FULL};
	tern_mem *mem;
	void *p;

	(void)state;
	lines.n = 0;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	p = get(mem, MiB, 0, 1);
	get(mem, 100, 0, 2);
	tern_mem_free(mem, p);
	get(mem, MiB, 0, 3); /* the budget makes the first extent go */
	tn_mem_check(mem);
	assert_int_equal(stats_of(mem).shrinks, 1);
	assert_int_equal(stats_of(mem).damage, 0);
	tn_mem_destroy(mem);
}

static int collect(void **state)
{
	(void)state;
	tn_log_set_sink(sink, NULL);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quiet_when_all_is_well),
		cmocka_unit_test(overrun),
		cmocka_unit_test(write_after_free),
		cmocka_unit_test(double_and_foreign_frees),
		cmocka_unit_test(leaks),
		cmocka_unit_test(keys_end_before_the_canary),
		cmocka_unit_test(watched_memory_may_go),
	};

	return cmocka_run_group_tests(tests, collect, NULL);
}
