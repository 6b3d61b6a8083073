/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/counters.h: names and values match, from several threads too.
 */
#include "base/counters.h"

#include <pthread.h>
#include <string.h>

#include "cmocka_all.h"

#define TEST_COUNTERS(X) X(reads) X(writes) X(bytes_max)
TN_COUNTERS_STRUCT(test_counters, TEST_COUNTERS)
TN_COUNTERS_NAMES(test_counter_names, TEST_COUNTERS)

static test_counters counters;

static void collect(const char *name, uint64_t value, void *arg)
{
	uint64_t *seen = arg;

	if (strcmp(name, "unit.reads") == 0)
		seen[0] = value;
	else if (strcmp(name, "unit.writes") == 0)
		seen[1] = value;
	else if (strcmp(name, "unit.bytes_max") == 0)
		seen[2] = value;
	else
		fail_msg("unexpected counter %s", name);
}

static void each_counter_has_its_name(void **state)
{
	uint64_t seen[3] = {0};

	(void)state;
	tn_count(&counters.reads, 3);
	tn_count_own(&counters.writes, 4);
	tn_count_max(&counters.bytes_max, 9);
	tn_count_max(&counters.bytes_max, 2);
	tn_counters_each(test_counter_names, &counters, "unit", collect, seen);
	assert_int_equal(seen[0], 3);
	assert_int_equal(seen[1], 4);
	assert_int_equal(seen[2], 9);
	tn_count_set(&counters.reads, 0);
	assert_int_equal(tn_counter_read(&counters.reads), 0);
}

static void *add_many(void *arg)
{
	(void)arg;
	for (int i = 0; i < 50000; i++)
		tn_count(&counters.reads, 1);
	return NULL;
}

static void no_count_is_lost_between_threads(void **state)
{
	pthread_t threads[4];

	(void)state;
	tn_count_set(&counters.reads, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, add_many, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(tn_counter_read(&counters.reads), 200000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_counter_has_its_name),
		cmocka_unit_test(no_count_is_lost_between_threads),
	};

	return RUN(tests);
}
