/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/ring.h: order, wrap-around, fullness.
 */
#include "base/ring.h"

#include "base/rand.h"
#include "cmocka_all.h"

static void first_in_first_out_over_many_wraps(void **state)
{
	tn_rand rand = {5};
	uint64_t in = 0, out = 0, got;
	tn_ring ring;

	(void)state;
	assert_ok(tn_ring_init(&ring, 5, sizeof(uint64_t)));
	assert_int_equal(tn_ring_room(&ring), 8);
	for (int step = 0; step < 10000; step++) {
		if (tn_rand_below(&rand, 2)) {
			bool room = tn_ring_room(&ring) > 0;

			assert_int_equal(tn_ring_put(&ring, &in), room);
			in += room;
		} else {
			bool any = !tn_ring_empty(&ring);

			assert_int_equal(tn_ring_take(&ring, &got), any);
			if (any)
				assert_int_equal(got, out++);
		}
		assert_int_equal(tn_ring_count(&ring), in - out);
		for (uint64_t i = 0; i < in - out; i++)
			assert_int_equal(*(uint64_t *)tn_ring_at(&ring, i), out + i);
	}
	tn_ring_fini(&ring);
}

static void in_place_forms(void **state)
{
	tn_ring ring;
	int *place;

	(void)state;
	assert_ok(tn_ring_init(&ring, 2, sizeof(int)));
	assert_null(tn_ring_front(&ring));
	place = tn_ring_push(&ring);
	*place = 4;
	assert_non_null(tn_ring_push(&ring));
	assert_null(tn_ring_push(&ring));
	assert_int_equal(*(int *)tn_ring_front(&ring), 4);
	tn_ring_pop(&ring);
	assert_int_equal(tn_ring_count(&ring), 1);
	tn_ring_fini(&ring);
	tn_ring_fini(&ring);
}

static void nonsense_is_refused(void **state)
{
	tn_ring ring;

	(void)state;
	assert_status(tn_ring_init(&ring, 0, 8), TERN_E_INVALID);
	assert_status(tn_ring_init(&ring, 8, 0), TERN_E_INVALID);
	assert_status(tn_ring_init(&ring, UINT64_MAX, 8), TERN_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_in_first_out_over_many_wraps),
		cmocka_unit_test(in_place_forms),
		cmocka_unit_test(nonsense_is_refused),
	};

	return RUN(tests);
}
