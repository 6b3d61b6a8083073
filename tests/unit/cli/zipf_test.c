/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of cli/zipf.h and cli/histogram.h against what is summed and sorted by hand.
 */
#include "../../../cli/zipf.h"

#include <math.h>
#include <stdlib.h>

#include "../../../cli/histogram.h"
#include "cmocka_all.h"

#define DRAWS 400000

/* How often each rank comes, against the law: within six deviations. */
static void follows(uint64_t n, double s)
{
	uint64_t *seen = test_calloc(n, sizeof(*seen));
	rng r = rng_make(7, n);
	double sum = 0;
	zipf z;

	zipf_init(&z, n, s);
	for (uint64_t i = 0; i < DRAWS; i++) {
		uint64_t rank = zipf_draw(&z, &r);

		assert_true(rank < n);
		seen[rank]++;
	}
	for (uint64_t k = 1; k <= n; k++)
		sum += pow((double)k, -s);
	for (uint64_t k = 1; k <= n; k++) {
		double expected = DRAWS * pow((double)k, -s) / sum;

		if (fabs((double)seen[k - 1] - expected) > 6 * sqrt(expected) + 2)
			fail_msg("n %lu s %g: rank %lu came %lu times, not %.1f", (unsigned long)n, s,
				 (unsigned long)k, (unsigned long)seen[k - 1], expected);
	}
	test_free(seen);
}

static void ranks_follow_the_law(void **state)
{
	static const double exponents[] = {0, 0.5, 0.99, 1, 1.000000001, 1.5, 3};

	(void)state;
	for (unsigned i = 0; i < sizeof(exponents) / sizeof(exponents[0]); i++) {
		follows(1, exponents[i]);
		follows(2, exponents[i]);
		follows(1000, exponents[i]);
	}
}

static void large_vocabularies_need_no_table(void **state)
{
	rng r = rng_make(1, 2);
	uint64_t high = 0;
	zipf z;

	(void)state;
	zipf_init(&z, 1ull << 40, 1.05);
	for (int i = 0; i < 100000; i++) {
		uint64_t rank = zipf_draw(&z, &r);

		assert_true(rank < 1ull << 40);
		high += rank > 1ull << 30;
	}
	assert_true(high > 100);
}

static void normals_have_their_moments(void **state)
{
	rng r = rng_make(3, 4);
	double sum = 0, squares = 0;

	(void)state;
	for (int i = 0; i < DRAWS; i++) {
		double x = rng_normal(&r);

		sum += x;
		squares += x * x;
	}
	assert_true(fabs(sum / DRAWS) < 0.01);
	assert_true(fabs(squares / DRAWS - 1) < 0.01);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void quantiles_match_sorted_times(void **state)
{
	static const double q[] = {0, 0.001, 0.5, 0.9, 0.99, 0.999, 1};
	uint64_t *times = test_malloc(DRAWS * sizeof(*times));
	histogram *h = test_calloc(2, sizeof(*h));
	rng r = rng_make(5, 6);

	(void)state;
	assert_true(isnan(histogram_quantile(h, 0.5)));
	for (int i = 0; i < DRAWS; i++) {
		times[i] = rng_u64(&r) >> (20 + rng_below(&r, 44)); /* of every magnitude */
		histogram_add(&h[i % 2], times[i]);
	}
	histogram_merge(&h[0], &h[1]);
	qsort(times, DRAWS, sizeof(*times), by_value);
	for (unsigned i = 0; i < sizeof(q) / sizeof(q[0]); i++) {
		uint64_t rank = (uint64_t)ceil(q[i] * DRAWS);
		double exact = (double)times[rank ? rank - 1 : 0], got = histogram_quantile(h, q[i]);

		if (exact < 0x1p41)
			assert_true(got >= exact && got <= exact * (1 + 1.0 / 64));
	}
	assert_int_equal(h->max, times[DRAWS - 1]);
	assert_int_equal(h->count, DRAWS);
	test_free(times);
	test_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_follow_the_law),
		cmocka_unit_test(large_vocabularies_need_no_table),
		cmocka_unit_test(normals_have_their_moments),
		cmocka_unit_test(quantiles_match_sorted_times),
	};

	return RUN(tests);
}
