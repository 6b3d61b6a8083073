/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/clock.h: the monotonic clock, the manual one and arithmetic with deadlines.
 */
#include "base/clock.h"

#include "cmocka_all.h"

static void monotonic_never_goes_back(void **state)
{
	uint64_t before = tn_now();

	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint64_t now = tn_clock_now(&tn_clock_monotonic);

		assert_true(now >= before);
		before = now;
	}
}

static void sleep_is_not_shorter_than_asked(void **state)
{
	uint64_t start = tn_now();

	(void)state;
	tn_sleep_ns(2 * TN_NS_PER_MS);
	assert_true(tn_now() - start >= 2 * TN_NS_PER_MS);
	tn_sleep_until(0);
	tn_sleep_ns(0);
}

static void manual_moves_only_when_moved(void **state)
{
	tn_manual_clock manual;

	(void)state;
	tn_manual_clock_init(&manual, 100);
	assert_int_equal(tn_clock_now(&manual.clock), 100);
	tn_manual_clock_advance(&manual, 5);
	assert_int_equal(tn_clock_now(&manual.clock), 105);
}

static void deadlines_saturate(void **state)
{
	(void)state;
	assert_true(tn_deadline(5, 0) == TN_TIME_NEVER);
	assert_true(tn_deadline(5, 7) == 12);
	assert_true(tn_deadline(5, UINT64_MAX - 5) == TN_TIME_NEVER);
	assert_true(tn_deadline(5, UINT64_MAX) == TN_TIME_NEVER);
	assert_true(tn_time_left(10, 4) == 0);
	assert_true(tn_time_left(4, 10) == 6);
}

static void poll_timeouts_round_up(void **state)
{
	(void)state;
	assert_int_equal(tn_poll_timeout_ms(0, TN_TIME_NEVER), -1);
	assert_int_equal(tn_poll_timeout_ms(10, 5), 0);
	assert_int_equal(tn_poll_timeout_ms(0, 1), 1);
	assert_int_equal(tn_poll_timeout_ms(0, TN_NS_PER_MS), 1);
	assert_int_equal(tn_poll_timeout_ms(0, TN_NS_PER_MS + 1), 2);
	assert_int_equal(tn_poll_timeout_ms(0, TN_TIME_NEVER - 1), INT32_MAX);
}

static void cpu_time_grows_with_work(void **state)
{
	uint64_t thread = tn_cpu_thread_ns(), process = tn_cpu_process_ns();
	volatile uint64_t x = 0;

	(void)state;
	for (int i = 0; i < 1000000; i++)
		x += (uint64_t)i;
	assert_true(x > 0);
	assert_true(tn_cpu_thread_ns() > thread);
	assert_true(tn_cpu_process_ns() > process);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(monotonic_never_goes_back),
		cmocka_unit_test(sleep_is_not_shorter_than_asked),
		cmocka_unit_test(manual_moves_only_when_moved),
		cmocka_unit_test(deadlines_saturate),
		cmocka_unit_test(poll_timeouts_round_up),
		cmocka_unit_test(cpu_time_grows_with_work),
	};

	return RUN(tests);
}
