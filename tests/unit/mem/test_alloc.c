/* SPDX-License-Identifier: Apache-2.0 */
/* tern_mem_alloc, free, usable: sizes, alignments, arguments, reuse, wild pointers. */
#include "mem_test.h"

static void sizes_and_alignments(void **state)
{
	static const uint64_t aligns[] = {0, 1, 64, 128, 4096, 8192, 1u << 16, 2 * MiB};
	tern_mem *mem = make_pool(0);

	(void)state;
	for (unsigned a = 0; a < TN_COUNT_OF(aligns); a++) {
		for (uint64_t bytes = 0; bytes < 3 * MiB; bytes = bytes * 2 + bytes / 3 + 1) {
			uint64_t align = aligns[a] ? aligns[a] : 64;
			uint8_t *ptr = get(mem, bytes, aligns[a], TERN_ACCESS_WRITE);

			assert_int_equal((uintptr_t)ptr % TN_MAX(align, 64), 0);
			assert_true(tern_mem_usable(mem, ptr) >= bytes);
			assert_int_equal(tern_mem_usable(mem, ptr + 1), 0);
			if (bytes)
				ptr[0] = ptr[bytes - 1] = 0x5a;
			tern_mem_free(mem, ptr);
			assert_int_equal(tern_mem_usable(mem, ptr), 0);
			tn_mem_check(mem);
		}
	}
	assert_int_equal(stats_of(mem).blocks, 0);
	assert_int_equal(stats_of(mem).used_bytes, 0);
	tn_mem_destroy(mem);
}

static void classes_are_tight(void **state)
{
	(void)state;
	for (uint64_t bytes = 1; bytes <= TN_SMALL_MAX; bytes++) {
		for (uint64_t align = 64; align <= TN_PAGE_BYTES; align *= 4) {
			const tn_class *class = tn_class_for(bytes, align);

			assert_non_null(class);
			assert_true(class->bytes >= bytes && class->bytes % align == 0);
			if (align == 64) /* at most a quarter, or the step of 64 */
				assert_true(class->bytes - bytes <= TN_MAX(bytes / 4, 63));
		}
	}
	assert_null(tn_class_for(TN_SMALL_MAX + 1, 64));
	assert_null(tn_class_for(64, 2 * TN_PAGE_BYTES));
}

static void zero_bytes_are_unique(void **state)
{
	tern_mem *mem = make_pool(0);
	void *a = get(mem, 0, 0, 0), *b = get(mem, 0, 0, 0);

	(void)state;
	assert_non_null(a);
	assert_ptr_not_equal(a, b);
	tern_mem_free(mem, a);
	tern_mem_free(mem, b);
	tern_mem_free(mem, NULL);
	tn_mem_destroy(mem);
}

static void bad_arguments(void **state)
{
	tern_mem *mem = make_pool(0);
	void *ptr = &ptr;

	(void)state;
	assert_int_equal(tern_mem_alloc(mem, 64, 3, 0, TERN_MEM_HOST, &ptr), TERN_E_INVALID);
	assert_null(ptr);
	assert_int_equal(tern_mem_alloc(mem, 64, 4 * MiB, 0, TERN_MEM_HOST, &ptr), TERN_E_INVALID);
	assert_int_equal(tern_mem_alloc(mem, 64, 0, 4, TERN_MEM_HOST, &ptr), TERN_E_INVALID);
	assert_int_equal(tern_mem_alloc(mem, 64, 0, 0, (tern_mem_kind)9, &ptr), TERN_E_INVALID);
	assert_int_equal(tern_mem_alloc(mem, 64, 0, 0, TERN_MEM_DEVICE, &ptr), TERN_E_UNSUPPORTED);
	assert_int_equal(tern_mem_alloc(mem, 64, 0, 0, TERN_MEM_HOST, NULL), TERN_E_INVALID);
	assert_int_equal(tern_mem_alloc(NULL, 64, 0, 0, TERN_MEM_HOST, &ptr), TERN_E_INVALID);
	assert_int_equal(tern_mem_alloc(mem, UINT64_MAX, 0, 0, TERN_MEM_HOST, &ptr), TERN_E_NOMEM);
	assert_int_equal(tern_mem_alloc(mem, UINT64_MAX / 2, 4096, 3, TERN_MEM_HOST, &ptr), TERN_E_NOMEM);
	assert_int_equal(tern_mem_alloc(mem, 5 * GiB, 0, 0, TERN_MEM_HOST, &ptr), TERN_E_NOMEM);
	assert_non_null(strstr(tern_detail(), "TERN_MEM_RESERVE"));
	assert_null(ptr);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void wild_frees_are_refused(void **state)
{
	tern_mem *mem = make_pool(0);
	tern_mem *other = make_pool(0);
	uint8_t *small = get(mem, 100, 0, 0), *neighbour = get(mem, 100, 0, 0);
	uint8_t *large = get(mem, 100000, 0, 0), *foreign = get(other, 100, 0, 0);
	int local = 0;
	void *wild[] = {
		&local,        small + 1,       small + 64,      large + 1, large + 4096,
		large + 99999, (void *)(~0ull), (void *)4096ull, foreign,   (uint8_t *)mem->base + 3 * GiB};
	tern_mem_stats before = stats_of(mem);

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(wild); i++) {
		tern_mem_free(mem, wild[i]);
		assert_int_equal(tn_counter_read(&mem->refused_frees), i + 1);
		assert_non_null(strstr(tern_detail(), "nothing was freed"));
		tn_mem_check(mem);
	}
	assert_int_equal(stats_of(mem).blocks, before.blocks);
	assert_int_equal(stats_of(mem).used_bytes, before.used_bytes);
	tern_mem_free(mem, small);
	tern_mem_free(mem, small);
	tern_mem_free(mem, large);
	tern_mem_free(mem, large);
	assert_int_equal(tn_counter_read(&mem->refused_frees), TN_COUNT_OF(wild) + 2);
	tern_mem_free(mem, neighbour);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_check(mem);
	tern_mem_free(other, foreign);
	tn_mem_destroy(other);
	tn_mem_destroy(mem);
}

/* What was freed is used again: no growth in a steady state, whatever the order. */
static void steady_state_does_not_grow(void **state)
{
	static const uint64_t sizes[] = {64, 1000, 4096, 40000, MiB, 3 * MiB + 12345};
	tern_mem *mem = make_pool(0);
	void *ptr[TN_COUNT_OF(sizes) * 4];
	uint64_t committed = 0;

	(void)state;
	for (int round = 0; round < 200; round++) {
		for (unsigned i = 0; i < TN_COUNT_OF(ptr); i++)
			ptr[i] = get(mem, sizes[(i + (unsigned)round) % TN_COUNT_OF(sizes)], 0, 3);
		for (unsigned i = 0; i < TN_COUNT_OF(ptr); i++)
			tern_mem_free(mem, ptr[(i * 7) % TN_COUNT_OF(ptr)]);
		if (round == 1)
			committed = stats_of(mem).committed_bytes;
	}
	assert_int_equal(stats_of(mem).committed_bytes, committed);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void large_block_is_reused_exactly(void **state)
{
	tern_mem *mem = make_pool(0);

	(void)state;
	for (int i = 0; i < 20; i++)
		tern_mem_free(mem, get(mem, 50 * MiB + 12345, 4096, 3));
	assert_int_equal(stats_of(mem).extents, 1);
	assert_int_equal(stats_of(mem).committed_bytes, 52 * MiB);
	tn_mem_destroy(mem);
}

/* The common path's tables and its division say what the plain ones do, for each size and each place in a slab. */
static void short_cuts_agree(void **state)
{
	(void)state;
	for (uint64_t bytes = 1; bytes <= TN_SMALL_MAX; bytes++)
		assert_int_equal(tn_mark_by_line[(bytes - 1) / 64],
				 TN_MARK_CACHED + 4 * tn_class_of_bytes(bytes));
	for (uint32_t i = 0; i < TN_CLASSES; i++) {
		const tn_class *class = &tn_classes[i];
		uint64_t slab = (uint64_t) class->pages << TN_PAGE_SHIFT, wrong = 0;

		assert_int_equal((uint64_t) class->objects * class->bytes, slab);
		assert_int_equal(__builtin_popcountll(class->full), class->objects);
		for (uint64_t offset = 0; offset < slab; offset++) {
			wrong += tn_class_object(class, offset) != offset / class->bytes;
		}
		assert_int_equal(wrong, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_and_alignments),          cmocka_unit_test(classes_are_tight),
		cmocka_unit_test(zero_bytes_are_unique),         cmocka_unit_test(bad_arguments),
		cmocka_unit_test(wild_frees_are_refused),        cmocka_unit_test(steady_state_does_not_grow),
		cmocka_unit_test(large_block_is_reused_exactly), cmocka_unit_test(short_cuts_agree),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
