/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of channel/spin.h: when threads spin, for how long, and when they let it be.
 */
#include "channel/spin.h"

#include "cmocka_all.h"

#define SPIN    20000u
#define KEEN    (TN_SPIN_TIMES * SPIN)
#define BRIEF   60000u  /* two wake-ups on one core */
#define DISTANT 100000u /* two of cores that sleep: more than a keen spin */
#define LONG    1000000u

/* A wait that slept behind the spin that it was due. */
static void sleep_for(tn_spin *spin, uint64_t idle)
{
	tn_spin_slept(spin, SPIN, true, idle);
}

/* Two ends that wake each other take longer than a keen spin: they try all the same, and stay keen if that was right. */
static void ends_that_wake_each_other_find_out(void **state)
{
	tn_spin spin = {0};

	(void)state;
	assert_int_equal(tn_spin_budget(&spin, SPIN), SPIN);
	sleep_for(&spin, DISTANT);
	assert_int_equal(tn_spin_budget(&spin, SPIN), SPIN);
	sleep_for(&spin, DISTANT);
	assert_int_equal(tn_spin_budget(&spin, SPIN), KEEN);
	for (int i = 0; i < 100; i++) {
		tn_spin_caught(&spin);
		assert_int_equal(tn_spin_budget(&spin, SPIN), KEEN);
	}
	sleep_for(&spin, LONG);
	assert_int_equal(tn_spin_budget(&spin, SPIN), SPIN);
}

/* A keen spin in vain ends it until it is earned again. */
static void one_in_vain_ends_keenness(void **state)
{
	tn_spin spin = {0};

	(void)state;
	sleep_for(&spin, BRIEF);
	sleep_for(&spin, BRIEF);
	assert_true(tn_spin_keen(&spin));
	sleep_for(&spin, DISTANT);
	assert_false(tn_spin_keen(&spin));
	sleep_for(&spin, BRIEF);
	assert_false(tn_spin_keen(&spin));
	sleep_for(&spin, BRIEF);
	assert_true(tn_spin_keen(&spin));
}

/* On one core a spin keeps the other end from running: hardly any is left, whatever the time; and it is found out when that ends. */
static void spins_in_vain_come_to_rest(void **state)
{
	tn_spin spin = {0};
	unsigned spun = 0, last = 0, gap = 0;

	(void)state;
	for (unsigned i = 0; i < 10000; i++) {
		if (tn_spin_budget(&spin, SPIN)) {
			spun++;
			gap = i - last;
			last = i;
		}
		sleep_for(&spin, BRIEF);
	}
	assert_in_range(spun, 20, 64);
	assert_int_equal(gap, 257);
	while (!tn_spin_budget(&spin, SPIN))
		sleep_for(&spin, BRIEF);
	tn_spin_caught(&spin);
	for (unsigned i = 0; i < TN_SPIN_VAIN; i++) {
		assert_true(tn_spin_budget(&spin, SPIN) > 0);
		sleep_for(&spin, BRIEF);
	}
}

/* Long waits are spun for as before: who is told to spin does, and nothing is learned. */
static void long_waits_spin_as_told(void **state)
{
	tn_spin spin = {0};

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		assert_int_equal(tn_spin_budget(&spin, SPIN), SPIN);
		sleep_for(&spin, LONG);
	}
}

/* Without end, nothing overflows; a thread that is told not to spin never does. */
static void the_ends_of_the_scale(void **state)
{
	tn_spin spin = {0};

	(void)state;
	assert_int_equal(tn_spin_times(UINT64_MAX, TN_SPIN_SHORT_TIMES), TN_SPIN_SHORT_TIMES * TN_NS_PER_SEC);
	for (unsigned i = 0; i < 1000; i++) {
		assert_int_equal(tn_spin_budget(&spin, 0), 0);
		tn_spin_slept(&spin, 0, true, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_that_wake_each_other_find_out),
		cmocka_unit_test(one_in_vain_ends_keenness),
		cmocka_unit_test(spins_in_vain_come_to_rest),
		cmocka_unit_test(long_waits_spin_as_told),
		cmocka_unit_test(the_ends_of_the_scale),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
