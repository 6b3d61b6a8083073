/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/fault.h: schedules fire at the hit they name, and nothing fires without one.
 */
#include "base/fault.h"

#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/ring.h"
#include "base/slots.h"
#include "cmocka_all.h"

static int setup(void **state)
{
	(void)state;
	tn_fault_clear();
	return 0;
}

static void nothing_fires_without_a_schedule(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++)
		assert_false(TN_FAULT("unit.a"));
	assert_int_equal(tn_fault_hits("unit.a"), 0);
}

static void the_nth_hit_fires_count_times(void **state)
{
	(void)state;
	assert_ok(tn_fault_set("unit.a", 3, 2));
	for (int hit = 1; hit <= 10; hit++) {
		assert_int_equal(TN_FAULT("unit.a"), hit == 3 || hit == 4);
		assert_false(TN_FAULT("unit.b"));
	}
	assert_int_equal(tn_fault_hits("unit.a"), 10);
	assert_int_equal(tn_fault_fired("unit.a"), 2);
	assert_ok(tn_fault_set("unit.a", 1, UINT64_MAX));
	for (int hit = 0; hit < 5; hit++)
		assert_true(TN_FAULT("unit.a"));
}

static void the_star_counts_all_points(void **state)
{
	(void)state;
	assert_ok(tn_fault_set("*", 2, 1));
	assert_false(TN_FAULT("unit.a"));
	assert_true(TN_FAULT("unit.b"));
	assert_false(TN_FAULT("unit.a"));
}

static void random_is_reproducible(void **state)
{
	unsigned fired[2] = {0, 0};

	(void)state;
	for (int run = 0; run < 2; run++) {
		tn_fault_clear();
		assert_ok(tn_fault_set_random("unit.a", 0.1, 42));
		for (int i = 0; i < 10000; i++)
			fired[run] = fired[run] * 31 + TN_FAULT("unit.a");
		assert_in_range(tn_fault_fired("unit.a"), 800, 1200);
	}
	assert_int_equal(fired[0], fired[1]);
}

static void specs_are_parsed(void **state)
{
	static const char *const bad[] = {
		"a", "a:", "a:x", "a:1:x", "a:p=", "a:p=2", "a:0", ":1", "a:p=0.5x"};

	(void)state;
	assert_ok(tn_fault_apply(""));
	assert_ok(tn_fault_apply("unit.a:2,unit.b:1:3,unit.c:p=1:7"));
	assert_false(TN_FAULT("unit.a"));
	assert_true(TN_FAULT("unit.a"));
	assert_true(TN_FAULT("unit.b"));
	assert_true(TN_FAULT("unit.c"));
	for (size_t i = 0; i < TN_COUNT_OF(bad); i++)
		assert_status(tn_fault_apply(bad[i]), TERN_E_OPTION);
}

static void the_table_is_bounded(void **state)
{
	char name[16];

	(void)state;
	for (int i = 0; i < TN_FAULTS_MAX; i++) {
		snprintf(name, sizeof(name), "p%d", i);
		assert_ok(tn_fault_set(name, 1, 1));
	}
	assert_status(tn_fault_set("one-more", 1, 1), TERN_E_LIMIT);
	assert_ok(tn_fault_set("p0", 1, 1));
}

/* Fail allocation n = 1, 2, ... of a piece of work until it succeeds: nothing may leak or be half made. */
static void containers_survive_each_failure(void **state)
{
	tern_status status = TERN_E_NOMEM;
	uint64_t n;

	(void)state;
	for (n = 1; status != TERN_OK && n < 100; n++) {
		tn_ring ring = {0};
		tn_slots slots = {0};
		tn_map map = {0};

		tn_fault_clear();
		assert_ok(tn_fault_set("*", n, 1));
		status = tn_ring_init(&ring, 4, 8);
		if (status == TERN_OK)
			status = tn_slots_init(&slots, 4, 8);
		if (status == TERN_OK)
			status = tn_map_init(&map, 4, false, 0);
		for (uint64_t key = 0; status == TERN_OK && key < 100; key++)
			status = tn_map_put(&map, key, key);
		if (map.count)
			tn_map_check(&map);
		assert_true(status == TERN_OK || status == TERN_E_NOMEM);
		tn_ring_fini(&ring);
		tn_slots_fini(&slots);
		tn_map_fini(&map);
	}
	assert_in_range(n, 5, 99);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(nothing_fires_without_a_schedule, setup),
		cmocka_unit_test_setup(the_nth_hit_fires_count_times, setup),
		cmocka_unit_test_setup(the_star_counts_all_points, setup),
		cmocka_unit_test_setup(random_is_reproducible, setup),
		cmocka_unit_test_setup(specs_are_parsed, setup),
		cmocka_unit_test_setup(the_table_is_bounded, setup),
		cmocka_unit_test_setup(containers_survive_each_failure, setup),
	};

	return RUN(tests);
}
