/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th call to the outside fails, n = 1, 2, ...: an error in words, nothing leaked or half done. */
#include "base/fault.h"
#include "mem_test.h"

/* A life with growth, two classes, a device and keys; every step may fail. Returns the failures it saw. */
static int live_once(tn_mem_debug debug)
{
	fake_device dev = {0};
	int failures = 0;
	tn_mem_params params = {
		.reserve_bytes = 1 * GiB, .huge_pages = true, .cache_bytes = MiB, .numa = 1, .debug = debug};
	tern_mem *mem = NULL;
	uint32_t slot = 0;
	bool attached;
	void *ptr[4];
	tern_key key;

	if (tn_mem_create(&params, &mem) != TERN_OK) {
		assert_null(mem);
		assert_string_not_equal(tern_detail(), "");
		return 1;
	}
	attached = tn_mem_attach(mem, &fake_registrar, &dev, &slot) == TERN_OK;
	assert_true(attached);
	for (uint32_t i = 0; i < 4; i++) {
		tern_status status =
			tern_mem_alloc(mem, i % 2 ? 3 * MiB : 100, 0, i < 2 ? 0 : 3, TERN_MEM_HOST, &ptr[i]);

		if (status != TERN_OK) {
			failures++;
			assert_null(ptr[i]);
			assert_string_not_equal(tern_detail(), "");
			assert_true(status == TERN_E_NOMEM || status == TERN_E_LIMIT || status == TERN_E_OS);
			/* The next try, without a fault, succeeds. */
			if (i == 3)
				ptr[i] = get(mem, 3 * MiB, 0, 3);
		}
		tn_mem_check(mem);
		assert_int_equal(dev.live, (int)stats_of(mem).extents);
	}
	if (tern_mem_export(mem, ptr[3], 100, 3, &key) != TERN_OK) {
		failures++;
		assert_int_equal(stats_of(mem).keys, 0);
		assert_int_equal(tern_mem_export(mem, ptr[3], 100, 3, &key), TERN_OK);
	}
	for (int i = 0; i < 4; i++)
		tern_mem_free(mem, ptr[i]);
	assert_int_equal(stats_of(mem).blocks, 0);
	assert_int_equal(stats_of(mem).keys, 0);
	tn_mem_check(mem);
	tn_mem_detach(mem, slot);
	assert_int_equal(dev.live, 0);
	tn_mem_destroy(mem);
	return failures;
}

static void sweep(tn_mem_debug debug)
{
	int fds = count_fds(), maps = count_memfd_maps();
	uint64_t n = 0, failures = 0;

	for (;;) {
		bool fired;

		tn_fault_clear();
		assert_int_equal(tn_fault_set("*", ++n, 1), TERN_OK);
		failures += live_once(debug) > 0;
		fired = tn_fault_fired("*") > 0;
		tn_fault_clear();
		assert_int_equal(count_fds(), fds);
		assert_int_equal(count_memfd_maps(), maps);
		if (!fired)
			break;
		assert_true(n < 1000);
	}
	assert_true(n > 15);
	assert_true(failures > 10);
}

static void nth_call_fails(void **state)
{
	(void)state;
	sweep(TN_DEBUG_OFF);
}

static void nth_call_fails_in_debug_mode(void **state)
{
	(void)state;
	sweep(TN_DEBUG_FULL);
}

/* A larger extent than asked for is refused: the plain need still gets through. */
static void falls_back_to_what_is_needed(void **state)
{
	tern_mem *mem = make_pool(0);
	uint64_t before;

	(void)state;
	get(mem, 80 * MiB, 0, 0);
	before = stats_of(mem).committed_bytes;
	assert_int_equal(tn_fault_set("mem.extent.commit", 1, 1), TERN_OK);
	get(mem, 100, 0, 0);
	assert_int_equal(tn_fault_fired("mem.extent.commit"), 1);
	tn_fault_clear();
	assert_int_equal(stats_of(mem).committed_bytes, before + 2 * MiB);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nth_call_fails),
		cmocka_unit_test(nth_call_fails_in_debug_mode),
		cmocka_unit_test(falls_back_to_what_is_needed),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
