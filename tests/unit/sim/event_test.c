/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of sim/event.h: order, ties, cancellation, against a plain list.
 */
#include "sim/event.h"

#include "base/rand.h"
#include "cmocka_all.h"

#define EVENTS 4000

static sim_events events;
static uint64_t seen[EVENTS];
static unsigned seen_count;

static void note(void *arg, uint64_t value)
{
	(void)arg;
	assert_true(seen_count < EVENTS);
	seen[seen_count++] = value;
}

static int setup(void **state)
{
	(void)state;
	sim_events_init(&events);
	seen_count = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	sim_events_fini(&events);
	return 0;
}

static void taken_by_time_and_then_in_order(void **state)
{
	(void)state;
	sim_at(&events, 20, note, NULL, 3);
	sim_at(&events, 10, note, NULL, 1);
	sim_at(&events, 20, note, NULL, 4);
	sim_at(&events, 10, note, NULL, 2);
	assert_int_equal(sim_next(&events), 10);
	while (sim_step(&events, UINT64_MAX))
		;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(seen[i], i + 1);
	assert_int_equal(events.now, 20);
	assert_int_equal(sim_next(&events), UINT64_MAX);
}

static void a_past_time_is_now(void **state)
{
	(void)state;
	assert_false(sim_step(&events, 100));
	assert_int_equal(events.now, 100);
	sim_at(&events, 50, note, NULL, 7);
	assert_int_equal(sim_next(&events), 100);
	assert_false(sim_step(&events, 99));
	assert_true(sim_step(&events, 100));
	assert_int_equal(events.now, 100);
}

static void until_stops_before_what_is_later(void **state)
{
	(void)state;
	sim_at(&events, 11, note, NULL, 0);
	assert_false(sim_step(&events, 10));
	assert_int_equal(events.now, 10);
	assert_int_equal(seen_count, 0);
	assert_true(sim_step(&events, 11));
}

static sim_event_id other;

static void cancel_other(void *arg, uint64_t value)
{
	note(arg, value);
	assert_true(sim_cancel(&events, other));
}

static void canceled_ones_never_happen(void **state)
{
	sim_event_id id;

	(void)state;
	id = sim_at(&events, 5, note, NULL, 1);
	assert_true(sim_cancel(&events, id));
	assert_false(sim_cancel(&events, id));
	assert_false(sim_cancel(&events, 0));
	/* Even of the same time; and the row's next user is another event. */
	sim_at(&events, 5, cancel_other, NULL, 2);
	other = sim_at(&events, 5, note, NULL, 3);
	while (sim_step(&events, UINT64_MAX))
		;
	assert_int_equal(seen_count, 1);
	sim_at(&events, 6, note, NULL, 4);
	assert_false(sim_cancel(&events, id));
	assert_false(sim_cancel(&events, other));
	assert_int_equal(sim_live(&events), 1);
}

/* Random times and cancellations; the oracle is a list that is scanned for the least (time, number). */
static void like_a_plain_list(void **state)
{
	static uint64_t at[EVENTS];
	static sim_event_id id[EVENTS];
	static bool pending[EVENTS];
	tn_rand rand = {.state = 7};
	unsigned made = 0;

	(void)state;
	while (made < EVENTS || sim_live(&events)) {
		uint64_t what = tn_rand_below(&rand, 100);
		unsigned least = EVENTS, before = seen_count;

		if (made < EVENTS && what < 55) {
			at[made] = events.now + tn_rand_below(&rand, 50);
			id[made] = sim_at(&events, at[made], note, NULL, made);
			pending[made++] = true;
		} else if (made > 0 && what < 80) {
			unsigned i = (unsigned)tn_rand_below(&rand, made);

			assert_int_equal(sim_cancel(&events, id[i]), pending[i]);
			pending[i] = false;
		} else {
			for (unsigned i = 0; i < made; i++)
				if (pending[i] && (least == EVENTS || at[i] < at[least]))
					least = i;
			assert_int_equal(sim_step(&events, UINT64_MAX), least != EVENTS);
			if (least == EVENTS)
				continue;
			assert_int_equal(seen_count, before + 1);
			assert_int_equal(seen[before], least);
			pending[least] = false;
		}
		if (what == 0)
			sim_events_check(&events);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(taken_by_time_and_then_in_order, setup, teardown),
		cmocka_unit_test_setup_teardown(a_past_time_is_now, setup, teardown),
		cmocka_unit_test_setup_teardown(until_stops_before_what_is_later, setup, teardown),
		cmocka_unit_test_setup_teardown(canceled_ones_never_happen, setup, teardown),
		cmocka_unit_test_setup_teardown(like_a_plain_list, setup, teardown),
	};

	return RUN(tests);
}
