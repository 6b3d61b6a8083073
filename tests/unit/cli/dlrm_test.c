/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of cli/models/dlrm.h, against finite differences, and of cli/models/clicks.h.
 */
#include "../../../cli/models/dlrm.h"

#include <math.h>
#include <string.h>

#include "cmocka_all.h"

static double loss_of(const dlrm_net *net, const float *dense, const float *rows, const click *s)
{
	double loss = 0;

	(void)dlrm_sample(net, dense, rows, s, &loss, NULL, NULL);
	return loss;
}

/* The slope of the loss along one number, of both sides; where a relu bends between them it is not what is asked for. */
static bool slope(const dlrm_net *net, float *dense, float *rows, const click *s, float *number, double *out)
{
	const float step = 2e-3f, was = *number;
	double here = loss_of(net, dense, rows, s), above, below;

	*number = was + step;
	above = loss_of(net, dense, rows, s);
	*number = was - step;
	below = loss_of(net, dense, rows, s);
	*number = was;
	*out = (above - below) / (2 * (double)step);
	return fabs((above - here) - (here - below)) < 4e-3 * (double)step + 1e-6;
}

static void gradients_match_finite_differences(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 6; seed++) {
		dlrm_net net = dlrm_shape(seed % 2 ? 5 : 16);
		uint64_t n = net.parameters, m = (uint64_t)CLICKS_FIELDS * net.dim, checked = 0;
		float *all = test_calloc(2 * (n + m), sizeof(*all));
		float *dense = all, *rows = all + n, *dd = rows + m, *dr = dd + n;
		rng r = rng_make(seed, 1);
		double loss = 0;
		clicks logs;
		click s;

		clicks_init(&logs, seed, 100, 1);
		clicks_sample(&logs, seed, &s);
		for (uint64_t i = 0; i < n + m; i++)
			all[i] = 0.3f * (float)rng_normal(&r);
		(void)dlrm_sample(&net, dense, rows, &s, &loss, dd, dr);
		assert_true(fabs(loss - loss_of(&net, dense, rows, &s)) < 1e-12);
		for (uint64_t i = 0; i < n + m; i++) {
			double numeric;

			if (!slope(&net, dense, rows, &s, &all[i], &numeric))
				continue;
			checked++;
			if (fabs(numeric - (double)dd[i]) > 2e-3 * (1 + fabs(numeric)))
				fail_msg("seed %d, number %d: %g, by differences %g", (int)seed, (int)i,
					 (double)dd[i], numeric);
		}
		assert_true(checked > (n + m) / 2);
		test_free(all);
	}
}

static void samples_are_what_seed_and_number_say(void **state)
{
	clicks a, b;
	click x, y;

	(void)state;
	clicks_init(&a, 1, 50, 1.1);
	clicks_init(&b, 1, 50, 1.1);
	clicks_sample(&a, 77, &x);
	clicks_sample(&a, 78, &y);
	assert_memory_not_equal(&x, &y, sizeof(x));
	clicks_sample(&b, 77, &y);
	assert_memory_equal(x.number, y.number, sizeof(x.number));
	assert_memory_equal(x.category, y.category, sizeof(x.category));
	assert_true(x.label == y.label && x.probability == y.probability);
	for (int i = 0; i < CLICKS_FIELDS; i++)
		for (int j = 0; j < i; j++)
			assert_true(x.category[i] != x.category[j]);
}

/* Labels come as often as the law says. */
static void the_law_is_kept(void **state)
{
	double expected = 0, seen = 0, variance = 0;
	clicks c;

	(void)state;
	clicks_init(&c, 5, 1000, 1.1);
	for (uint64_t i = 0; i < 20000; i++) {
		click s;

		clicks_sample(&c, i, &s);
		expected += (double)s.probability;
		variance += (double)s.probability * (1 - (double)s.probability);
		seen += (double)s.label;
	}
	assert_true(fabs(seen - expected) < 5 * sqrt(variance));
	assert_true(seen > 2000 && seen < 18000);
}

static void auc_counts_pairs(void **state)
{
	rng r = rng_make(3, 3);

	(void)state;
	for (int round = 0; round < 200; round++) {
		uint64_t n = 1 + rng_below(&r, 60);
		float score[64], label[64];
		double better = 0, pairs = 0, got;

		for (uint64_t i = 0; i < n; i++) {
			score[i] = (float)rng_below(&r, 10);
			label[i] = (float)rng_below(&r, 2);
		}
		for (uint64_t i = 0; i < n; i++) {
			for (uint64_t j = 0; j < n; j++) {
				if (label[i] <= label[j])
					continue;
				pairs++;
				better += score[i] > score[j] ? 1 : score[i] == score[j] ? 0.5 : 0;
			}
		}
		got = clicks_auc(score, label, n);
		assert_true(pairs > 0 ? fabs(got - better / pairs) < 1e-9 : isnan(got));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradients_match_finite_differences),
		cmocka_unit_test(samples_are_what_seed_and_number_say),
		cmocka_unit_test(the_law_is_kept),
		cmocka_unit_test(auc_counts_pairs),
	};

	return RUN(tests);
}
