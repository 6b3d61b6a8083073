/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of store/clock.h. BytePS: a round counted pushes, not senders; byteps#142: asynchronous mode computed something
 * else. Uneven last batches and members that leave must not hang those who stay.
 */
#include "store/clock.h"

#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"

#define WORKERS 7

static void begins(tn_clocks *clocks, tn_clock_waiter *waiter, uint64_t id, uint64_t step, tern_status status)
{
	memset(waiter, 0, sizeof(*waiter));
	assert_status(tn_clocks_begin(clocks, waiter, id, step), status);
}

static void bulk_synchronous_steps_wait_for_all(void **state)
{
	tn_clock_waiter a, b;
	tn_clocks clocks;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, 0, 0, 1));
	assert_ok(tn_clocks_join(&clocks, 1, "worker 1", NULL));
	assert_ok(tn_clocks_join(&clocks, 2, "worker 2", NULL));
	begins(&clocks, &a, 1, 0, TERN_OK);
	assert_ok(tn_clocks_advance(&clocks, 1, 1));
	begins(&clocks, &a, 1, 1, TERN_BUSY);
	/* The same member again does not stand in for the other one. */
	assert_ok(tn_clocks_advance(&clocks, 1, 1));
	assert_null(tn_clocks_ready(&clocks));
	assert_ok(tn_clocks_advance(&clocks, 2, 1));
	assert_ptr_equal(tn_clocks_ready(&clocks), &a);
	assert_int_equal(a.status, TERN_OK);
	assert_null(tn_clocks_ready(&clocks));
	begins(&clocks, &b, 2, 1, TERN_OK);
	tn_clocks_fini(&clocks);
}

static void staleness_bounds_the_lead(void **state)
{
	tn_clock_waiter waiter;
	tn_clocks clocks;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, 3, 0, 1));
	assert_ok(tn_clocks_join(&clocks, 0, "fast", NULL));
	assert_ok(tn_clocks_join(&clocks, UINT64_MAX, "slow", NULL));
	assert_ok(tn_clocks_advance(&clocks, 0, 4));
	begins(&clocks, &waiter, 0, 3, TERN_OK);
	begins(&clocks, &waiter, 0, 4, TERN_BUSY);
	assert_ok(tn_clocks_advance(&clocks, UINT64_MAX, 1));
	assert_ptr_equal(tn_clocks_ready(&clocks), &waiter);
	tn_clocks_fini(&clocks);
}

static void asynchronous_never_waits(void **state)
{
	tn_clock_waiter waiter;
	tn_clocks clocks;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, TN_CLOCK_ASYNC, 0, 1));
	assert_ok(tn_clocks_join(&clocks, 1, "a", NULL));
	assert_ok(tn_clocks_join(&clocks, 2, "b", NULL));
	assert_ok(tn_clocks_advance(&clocks, 1, UINT64_MAX));
	begins(&clocks, &waiter, 1, UINT64_MAX, TERN_OK);
	tn_clocks_fini(&clocks);
}

static void leaving_frees_those_who_wait_and_ends_own_waits(void **state)
{
	tn_clock_waiter a, b;
	uint64_t clock;
	tn_clocks clocks;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, 0, 5, 1));
	for (uint64_t id = 1; id <= 3; id++)
		assert_ok(tn_clocks_join(&clocks, id, "w", &clock));
	assert_int_equal(clock, 5);
	assert_ok(tn_clocks_advance(&clocks, 1, 6));
	assert_ok(tn_clocks_advance(&clocks, 2, 6));
	begins(&clocks, &a, 1, 6, TERN_BUSY);
	begins(&clocks, &b, 2, 6, TERN_BUSY);
	assert_true(tn_clocks_leave(&clocks, 2));
	assert_ptr_equal(tn_clocks_ready(&clocks), &b);
	assert_int_equal(b.status, TERN_E_CANCELED);
	assert_null(tn_clocks_ready(&clocks));
	/* The last batches are uneven: 3 has none. */
	assert_true(tn_clocks_leave(&clocks, 3));
	assert_false(tn_clocks_leave(&clocks, 3));
	assert_ptr_equal(tn_clocks_ready(&clocks), &a);
	assert_int_equal(a.status, TERN_OK);
	assert_status(tn_clocks_advance(&clocks, 3, 9), TERN_E_NOT_FOUND);
	/* Who joins starts where the others are; who connects again goes on where it was. */
	assert_ok(tn_clocks_join(&clocks, 4, "late", &clock));
	assert_int_equal(clock, 6);
	assert_ok(tn_clocks_advance(&clocks, 4, 9));
	assert_ok(tn_clocks_join(&clocks, 4, "late", &clock));
	assert_int_equal(clock, 9);
	tn_clocks_fini(&clocks);
}

static void the_missing_are_named(void **state)
{
	char text[64], name[32];
	tn_clocks clocks;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, 1, 0, 1));
	for (uint64_t id = 0; id < 20; id++) {
		snprintf(name, sizeof(name), "worker %d", (int)id);
		assert_ok(tn_clocks_join(&clocks, id, name, NULL));
		assert_ok(tn_clocks_advance(&clocks, id, id < 4 ? id : 9));
	}
	assert_int_equal(tn_clocks_missing(&clocks, 1, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	assert_int_equal(tn_clocks_missing(&clocks, 3, text, sizeof(text)), 2);
	assert_string_equal(text, "worker 0 (step 0), worker 1 (step 1)");
	assert_int_equal(tn_clocks_missing(&clocks, 5, text, sizeof(text)), 4);
	assert_string_equal(text, "worker 0 (step 0), worker 1 (step 1) and 2 more");
	tn_clocks_fini(&clocks);
}

/* ---- against an oracle that looks at everything each time ---- */

typedef struct oracle {
	bool in[WORKERS], waits[WORKERS];
	uint64_t clock[WORKERS], step[WORKERS], frontier, staleness;
} oracle;

static void oracle_frontier(oracle *o)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < WORKERS; i++)
		if (o->in[i] && o->clock[i] < least)
			least = o->clock[i];
	if (least != UINT64_MAX)
		o->frontier = least;
}

static void compare(tn_clocks *clocks, oracle *o, tn_clock_waiter *waiters)
{
	tn_clock_waiter *waiter;

	oracle_frontier(o);
	assert_int_equal(clocks->frontier, o->frontier);
	while ((waiter = tn_clocks_ready(clocks)) != NULL) {
		long i = waiter - waiters;

		assert_true(o->waits[i]);
		o->waits[i] = false;
		if (o->in[i])
			assert_true(o->step[i] <= o->frontier + o->staleness);
		assert_int_equal(waiter->status, o->in[i] ? TERN_OK : TERN_E_CANCELED);
	}
	for (int i = 0; i < WORKERS; i++)
		assert_true(!o->waits[i] || (o->in[i] && o->step[i] > o->frontier + o->staleness));
	tn_clocks_check(clocks);
}

static void step_of(tn_clocks *clocks, oracle *o, tn_clock_waiter *waiters, tn_rand *rand)
{
	uint64_t i = tn_rand_below(rand, WORKERS), clock;

	switch (tn_rand_below(rand, 8)) {
	case 0:
		assert_int_equal(tn_clocks_leave(clocks, i), o->in[i]);
		o->in[i] = false;
		break;
	case 1:
	case 2:
		assert_ok(tn_clocks_join(clocks, i, "w", &clock));
		if (!o->in[i])
			o->clock[i] = o->frontier;
		o->in[i] = true;
		assert_int_equal(clock, o->clock[i]);
		break;
	case 3:
	case 4:
	case 5:
		clock = o->clock[i] + tn_rand_below(rand, 4) - 1;
		assert_status(tn_clocks_advance(clocks, i, clock == UINT64_MAX ? 0 : clock),
			      o->in[i] ? TERN_OK : TERN_E_NOT_FOUND);
		if (o->in[i] && clock != UINT64_MAX && clock > o->clock[i])
			o->clock[i] = clock;
		break;
	case 6:
		tn_clocks_forget(clocks, &waiters[i]);
		o->waits[i] = false;
		break;
	default:
		if (o->waits[i] || !o->in[i])
			break;
		o->step[i] = o->frontier + tn_rand_below(rand, 6);
		begins(clocks, &waiters[i], i, o->step[i],
		       o->step[i] > o->frontier + o->staleness ? TERN_BUSY : TERN_OK);
		o->waits[i] = o->step[i] > o->frontier + o->staleness;
	}
	compare(clocks, o, waiters);
}

static void random_steps_match_the_oracle(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++) {
		tn_clock_waiter waiters[WORKERS] = {0};
		tn_rand rand = {seed};
		oracle o = {.staleness = seed % 4};
		tn_clocks clocks;

		assert_ok(tn_clocks_init(&clocks, o.staleness, 0, seed));
		for (int n = 0; n < 300; n++)
			step_of(&clocks, &o, waiters, &rand);
		for (int i = 0; i < WORKERS; i++)
			tn_clocks_forget(&clocks, &waiters[i]);
		tn_clocks_fini(&clocks);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bulk_synchronous_steps_wait_for_all),
		cmocka_unit_test(staleness_bounds_the_lead),
		cmocka_unit_test(asynchronous_never_waits),
		cmocka_unit_test(leaving_frees_those_who_wait_and_ends_own_waits),
		cmocka_unit_test(the_missing_are_named),
		cmocka_unit_test(random_steps_match_the_oracle),
	};

	return RUN(tests);
}
