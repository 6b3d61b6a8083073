/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/hist.h: percentiles against a sorted array.
 */
#include "base/hist.h"

#include <stdlib.h>

#include "base/rand.h"
#include "cmocka_all.h"

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void assert_near(uint64_t got, uint64_t want)
{
	uint64_t off = got > want ? got - want : want - got;

	if (off > want / 64 + (want >= 64))
		fail_msg("got %llu, want %llu", (unsigned long long)got, (unsigned long long)want);
}

static tn_hist hist, other;

static void percentiles_match_a_sorted_array(void **state)
{
	static uint64_t values[20000];
	static const double at[] = {0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
	tn_rand rand = {7};

	(void)state;
	for (unsigned shift = 0; shift < 64; shift += 9) {
		size_t n = 20000;

		tn_hist_init(&hist);
		for (size_t i = 0; i < n; i++) {
			values[i] = tn_rand_next(&rand) >> shift >> tn_rand_below(&rand, 20) % (64 - shift);
			tn_hist_add(&hist, values[i]);
		}
		qsort(values, n, sizeof(values[0]), compare);
		for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
			size_t rank = (size_t)(at[i] * (double)n + 0.999999);

			assert_near(tn_hist_at(&hist, at[i]), values[rank ? rank - 1 : 0]);
		}
		assert_true(hist.min == values[0] && hist.max == values[n - 1]);
		assert_true(tn_hist_at(&hist, 1) <= hist.max);
	}
}

static void extremes_are_counted(void **state)
{
	(void)state;
	tn_hist_init(&hist);
	assert_int_equal(tn_hist_at(&hist, 0.5), 0);
	assert_true(tn_hist_mean(&hist) == 0);
	tn_hist_add(&hist, 0);
	tn_hist_add(&hist, UINT64_MAX);
	assert_true(tn_hist_at(&hist, 0.5) == 0);
	assert_near(tn_hist_at(&hist, 1), UINT64_MAX);
}

static void merge_equals_adding_all(void **state)
{
	static tn_hist whole;
	tn_rand rand = {9};

	(void)state;
	tn_hist_init(&hist);
	tn_hist_init(&other);
	tn_hist_init(&whole);
	for (int i = 0; i < 1000; i++) {
		uint64_t value = tn_rand_below(&rand, 1000000);

		tn_hist_add(i % 3 ? &hist : &other, value);
		tn_hist_add(&whole, value);
	}
	tn_hist_merge(&hist, &other);
	assert_memory_equal(&hist, &whole, sizeof(hist));
	assert_true(tn_hist_mean(&whole) > 450000 && tn_hist_mean(&whole) < 550000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(percentiles_match_a_sorted_array),
		cmocka_unit_test(extremes_are_counted),
		cmocka_unit_test(merge_equals_adding_all),
	};

	return RUN(tests);
}
