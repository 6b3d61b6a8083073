/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/slots.h: handles go stale, junk finds nothing, the oldest slot is reused first. eRPC#41: a
 * session that was made again crashed; handles carry generations.
 */
#include "base/slots.h"

#include "base/check.h"
#include "base/rand.h"
#include "cmocka_all.h"

#define CAPACITY 37

static void random_operations_match_the_oracle(void **state)
{
	uint64_t handles[CAPACITY], stale[CAPACITY * 4] = {0}, handle;
	unsigned live = 0, n_stale = 0;
	tn_rand rand = {11};
	tn_slots slots;

	(void)state;
	assert_ok(tn_slots_init(&slots, CAPACITY, sizeof(uint64_t)));
	for (int step = 0; step < 20000; step++) {
		if (tn_rand_below(&rand, 2)) {
			uint64_t *object = tn_slots_alloc(&slots, &handle);

			assert_int_equal(object != NULL, live < CAPACITY);
			if (!object)
				continue;
			assert_int_equal(*object, 0);
			assert_int_not_equal(handle, 0);
			assert_int_equal(tn_slots_handle(&slots, object), handle);
			*object = handle;
			handles[live++] = handle;
		} else if (live) {
			unsigned i = (unsigned)tn_rand_below(&rand, live);

			assert_true(tn_slots_free(&slots, handles[i]));
			assert_false(tn_slots_free(&slots, handles[i]));
			stale[n_stale++ % TN_COUNT_OF(stale)] = handles[i];
			handles[i] = handles[--live];
		}
		if (step % 100)
			continue;
		tn_slots_check(&slots);
		for (unsigned i = 0; i < live; i++)
			assert_int_equal(*(uint64_t *)tn_slots_get(&slots, handles[i]), handles[i]);
		for (unsigned i = 0; i < TN_COUNT_OF(stale); i++)
			assert_null(tn_slots_get(&slots, stale[i]));
	}
	tn_slots_fini(&slots);
}

static void junk_finds_nothing(void **state)
{
	tn_rand rand = {13};
	tn_slots slots;
	uint64_t handle;

	(void)state;
	assert_ok(tn_slots_init(&slots, 4, 64));
	assert_non_null(tn_slots_alloc(&slots, &handle));
	assert_null(tn_slots_get(&slots, 0));
	assert_null(tn_slots_get(&slots, UINT64_MAX));
	for (int i = 0; i < 1000; i++) {
		uint64_t junk = tn_rand_next(&rand);

		if (junk != handle)
			assert_null(tn_slots_get(&slots, junk));
	}
	assert_int_equal((uintptr_t)tn_slots_get(&slots, handle) % 64, 0);
	tn_slots_fini(&slots);
}

static void the_oldest_free_slot_comes_first(void **state)
{
	uint64_t a, b, c;
	tn_slots slots;

	(void)state;
	assert_ok(tn_slots_init(&slots, 3, 8));
	tn_slots_alloc(&slots, &a);
	tn_slots_alloc(&slots, &b);
	tn_slots_free(&slots, b);
	tn_slots_free(&slots, a);
	tn_slots_alloc(&slots, &c);
	assert_int_equal(tn_handle_index(c), 2);
	tn_slots_alloc(&slots, &c);
	assert_int_equal(tn_handle_index(c), tn_handle_index(b));
	assert_int_equal(tn_handle_generation(c), tn_handle_generation(b) + 2);
	tn_slots_fini(&slots);
}

static void iteration_sees_each_live_slot(void **state)
{
	uint64_t handle, handles[4];
	uint32_t cursor = 0, seen = 0;
	tn_slots slots;

	(void)state;
	assert_ok(tn_slots_init(&slots, 4, 8));
	for (int i = 0; i < 4; i++)
		tn_slots_alloc(&slots, &handles[i]);
	tn_slots_free(&slots, handles[1]);
	while (tn_slots_next(&slots, &cursor, &handle)) {
		seen |= 1u << tn_handle_index(handle);
		tn_slots_free(&slots, handle);
	}
	assert_int_equal(seen, 1 | 4 | 8);
	assert_int_equal(slots.live, 0);
	tn_slots_check(&slots);
	tn_slots_fini(&slots);
	assert_status(tn_slots_init(&slots, 0, 8), TERN_E_INVALID);
	assert_status(tn_slots_init(&slots, 8, 0), TERN_E_INVALID);
	assert_status(tn_slots_init(&slots, 1u << 31, UINT64_MAX / 2), TERN_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations_match_the_oracle),
		cmocka_unit_test(junk_finds_nothing),
		cmocka_unit_test(the_oldest_free_slot_comes_first),
		cmocka_unit_test(iteration_sees_each_live_slot),
	};

	return RUN(tests);
}
