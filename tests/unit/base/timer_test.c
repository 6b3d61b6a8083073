/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/timer.h: expiry order against a plain array.
 */
#include "base/timer.h"

#include "base/rand.h"
#include "cmocka_all.h"

#define TIMERS 200

static tn_timer timers[TIMERS];
static uint64_t due[TIMERS]; /* the oracle: 0 = not running */

static uint64_t earliest(void)
{
	uint64_t first = UINT64_MAX;

	for (int i = 0; i < TIMERS; i++)
		if (due[i] && due[i] < first)
			first = due[i];
	return first;
}

static void random_operations_match_the_oracle(void **state)
{
	tn_timers set = {0};
	tn_rand rand = {17};
	uint64_t now = 1;

	(void)state;
	for (int step = 0; step < 50000; step++) {
		unsigned i = (unsigned)tn_rand_below(&rand, TIMERS);
		tn_timer *fired;

		switch (tn_rand_below(&rand, 4)) {
		case 0:
		case 1:
			due[i] = now + tn_rand_below(&rand, 500);
			tn_timer_set(&set, &timers[i], due[i]);
			break;
		case 2:
			tn_timer_cancel(&set, &timers[i]);
			due[i] = 0;
			break;
		default:
			now += tn_rand_below(&rand, 100);
			while ((fired = tn_timer_expire(&set, now))) {
				assert_int_equal(fired->at_ns, earliest());
				assert_true(fired->at_ns <= now);
				assert_int_equal(due[fired - timers], fired->at_ns);
				assert_false(fired->armed);
				due[fired - timers] = 0;
			}
			assert_true(earliest() > now);
		}
		assert_true(tn_timer_next(&set) == earliest());
		if (step % 100 == 0)
			tn_timers_check(&set);
	}
}

static void a_callback_may_start_its_timer_again(void **state)
{
	tn_timers set = {0};
	tn_timer timer = {0};

	(void)state;
	assert_null(tn_timer_expire(&set, UINT64_MAX));
	tn_timer_set(&set, &timer, 10);
	tn_timer_set(&set, &timer, 10);
	assert_int_equal(set.count, 1);
	assert_null(tn_timer_expire(&set, 9));
	assert_ptr_equal(tn_timer_expire(&set, 10), &timer);
	tn_timer_set(&set, &timer, 20);
	assert_ptr_equal(tn_timer_expire(&set, 100), &timer);
	tn_timer_cancel(&set, &timer);
	assert_true(tn_timer_next(&set) == UINT64_MAX);
}

static void a_long_chain_needs_no_stack(void **state)
{
	static tn_timer many[200000];
	tn_timers set = {0};
	uint64_t before = 0;

	(void)state;
	/* falling times build one long path of first children */
	for (size_t i = 0; i < 200000; i++)
		tn_timer_set(&set, &many[i], 200000 - i);
	tn_timers_check(&set);
	for (size_t i = 0; i < 200000; i++) {
		tn_timer *fired = tn_timer_expire(&set, UINT64_MAX);

		assert_true(fired->at_ns > before);
		before = fired->at_ns;
	}
	assert_int_equal(set.count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations_match_the_oracle),
		cmocka_unit_test(a_callback_may_start_its_timer_again),
		cmocka_unit_test(a_long_chain_needs_no_stack),
	};

	return RUN(tests);
}
