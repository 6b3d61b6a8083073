/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/map.h: against a plain array, under growth, removal and collisions.
 */
#include "base/map.h"

#include "base/rand.h"
#include "cmocka_all.h"

#define KEYS 512

/* The oracle: present[i] and value[i] of key_of(i). */
static bool present[KEYS];
static uint64_t value[KEYS];

static uint64_t key_of(uint64_t i)
{
	if (i == 0)
		return 0;
	if (i == 1)
		return UINT64_MAX;
	return i % 2 ? i : i << 40;
}

static void compare(const tn_map *map)
{
	tn_map_entry entry;
	uint64_t cursor = 0, seen = 0, expected = 0;

	tn_map_check(map);
	for (uint64_t i = 0; i < KEYS; i++) {
		uint64_t *got = tn_map_find(map, key_of(i));

		assert_int_equal(got != NULL, present[i]);
		if (got)
			assert_int_equal(*got, value[i]);
		expected += present[i];
	}
	while (tn_map_next(map, &cursor, &entry))
		seen++;
	assert_int_equal(seen, expected);
	assert_int_equal(map->count, expected);
}

static void random_operations_match_the_oracle(void **state)
{
	tn_rand rand = {3};
	tn_map map;

	(void)state;
	assert_ok(tn_map_init(&map, 0, false, 99));
	for (int step = 0; step < 40000; step++) {
		uint64_t i = tn_rand_below(&rand, KEYS), gone = 0;
		/* phases that mostly fill and that mostly empty */
		bool put = tn_rand_below(&rand, 10) < (step / 5000 % 2 ? 3 : 7);

		if (put) {
			value[i] = tn_rand_next(&rand);
			present[i] = true;
			assert_int_equal(tn_map_put(&map, key_of(i), value[i]), TERN_OK);
		} else {
			assert_int_equal(tn_map_remove(&map, key_of(i), &gone), present[i]);
			if (present[i])
				assert_int_equal(gone, value[i]);
			present[i] = false;
		}
		if (step % 500 == 0)
			compare(&map);
	}
	compare(&map);
	tn_map_fini(&map);
}

static void a_fixed_map_refuses_when_full(void **state)
{
	tn_map map;

	(void)state;
	assert_ok(tn_map_init(&map, 20, true, 0));
	for (uint64_t i = 0; i < 20; i++)
		assert_ok(tn_map_put(&map, i, i));
	assert_int_equal(tn_map_put(&map, 20, 0), TERN_E_LIMIT);
	assert_ok(tn_map_put(&map, 19, 7));
	assert_int_equal(*tn_map_find(&map, 19), 7);
	assert_true(tn_map_remove(&map, 0, NULL));
	assert_ok(tn_map_put(&map, 20, 0));
	tn_map_check(&map);
	tn_map_fini(&map);
}

static void an_empty_map_has_nothing(void **state)
{
	tn_map map = {0};
	uint64_t cursor = 0;
	tn_map_entry entry;

	(void)state;
	assert_null(tn_map_find(&map, 0));
	assert_null(tn_map_ptr(&map, 5));
	assert_false(tn_map_remove(&map, 0, NULL));
	assert_false(tn_map_next(&map, &cursor, &entry));
	tn_map_fini(&map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations_match_the_oracle),
		cmocka_unit_test(a_fixed_map_refuses_when_full),
		cmocka_unit_test(an_empty_map_has_nothing),
	};

	return RUN(tests);
}
