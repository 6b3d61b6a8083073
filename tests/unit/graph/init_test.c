/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values: pinned numbers (they decide every loss of every run, on every machine), bounds, and that
 * seed and name matter.
 */
#include <math.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/ir.h"

static const tern_shape shape = {.rank = 2, .dims = {6, 10}};

static void values_are_pinned(void **state)
{
	tern_init unit = {.kind = TERN_INIT_UNIFORM, .value = 1.0f, .seed = 42};
	float a[60];

	(void)state;
	tn_init_fill(&unit, "fc1/w", &shape, a);
	assert_true(a[0] == -225391 * 0x1p-23f);
	assert_true(a[59] == -4582372 * 0x1p-23f);
}

static void bounds_and_spread(void **state)
{
	static const tern_shape big = {.rank = 2, .dims = {300, 200}};
	static float a[60000];
	tern_init he = {.kind = TERN_INIT_HE_UNIFORM, .seed = 1},
		  xavier = {.kind = TERN_INIT_XAVIER_UNIFORM, .seed = 1};
	double bound[2] = {sqrt(6.0 / 300), sqrt(6.0 / 500)};

	(void)state;
	for (int k = 0; k < 2; k++) {
		double sum = 0, squares = 0, max = 0;

		tn_init_fill(k ? &xavier : &he, "w", &big, a);
		for (int i = 0; i < 60000; i++) {
			sum += a[i];
			squares += (double)a[i] * a[i];
			max = fmax(max, fabs(a[i]));
		}
		assert_true(max <= bound[k] && max > bound[k] * 0.999);
		assert_true(fabs(sum / 60000) < bound[k] * 0.01);
		assert_true(fabs(squares / 60000 / (bound[k] * bound[k] / 3) - 1) < 0.02);
	}
}

static void seed_and_name_matter(void **state)
{
	tern_init one = {.kind = TERN_INIT_UNIFORM, .value = 1.0f, .seed = 1}, two = one;
	float a[60], b[60];

	(void)state;
	two.seed = 2;
	tn_init_fill(&one, "w", &shape, a);
	tn_init_fill(&one, "w", &shape, b);
	assert_memory_equal(a, b, sizeof(a));
	tn_init_fill(&two, "w", &shape, b);
	assert_memory_not_equal(a, b, sizeof(a));
	tn_init_fill(&one, "v", &shape, b);
	assert_memory_not_equal(a, b, sizeof(a));
}

static void constants(void **state)
{
	tern_init zeros = {.kind = TERN_INIT_ZEROS, .value = 7},
		  c = {.kind = TERN_INIT_CONSTANT, .value = 0.5f};
	float a[60];

	(void)state;
	tn_init_fill(&zeros, "w", &shape, a);
	assert_true(a[0] == 0.0f && a[59] == 0.0f);
	tn_init_fill(&c, "w", &shape, a);
	assert_true(a[0] == 0.5f && a[59] == 0.5f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_pinned),
		cmocka_unit_test(bounds_and_spread),
		cmocka_unit_test(seed_and_name_matter),
		cmocka_unit_test(constants),
	};

	return RUN(tests);
}
