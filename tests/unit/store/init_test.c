/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values: a function of seed, name, key and column alone; the distributions are those that they say. */
#include "cmocka_all.h"

#include <math.h>
#include <string.h>

#include "store/init.h"

static void the_same_row_every_time(void **state)
{
	tern_row_init init = {TERN_ROW_UNIFORM, 0.5f, 9};
	uint64_t seed = tn_init_seed(init.seed, "a");
	float x[64], y[64];

	(void)state;
	tn_init_row(x, 64, &init, seed, 77);
	tn_init_row(y, 64, &init, tn_init_seed(9, "a"), 77);
	assert_memory_equal(x, y, sizeof(x));
	/* A shorter row is the start of a longer one. */
	tn_init_row(y, 10, &init, seed, 77);
	assert_memory_equal(x, y, 10 * sizeof(float));
	/* Everything counts. */
	tn_init_row(y, 64, &init, seed, 78);
	assert_memory_not_equal(x, y, sizeof(x));
	tn_init_row(y, 64, &init, tn_init_seed(10, "a"), 77);
	assert_memory_not_equal(x, y, sizeof(x));
	tn_init_row(y, 64, &init, tn_init_seed(9, "b"), 77);
	assert_memory_not_equal(x, y, sizeof(x));
}

/* The bits are part of the contract: rows are created anew on other servers. */
static void bits_do_not_change(void **state)
{
	tern_row_init uniform = {TERN_ROW_UNIFORM, 1, 1}, normal = {TERN_ROW_NORMAL, 1, 1};
	float u[2], n[2];

	(void)state;
	tn_init_row(u, 2, &uniform, tn_init_seed(1, "golden"), 0);
	tn_init_row(n, 2, &normal, tn_init_seed(1, "golden"), UINT64_MAX);
	assert_true(u[0] == -0x1.70d3cp-5f && u[1] == 0x1.7963p-5f);
	assert_true(n[0] == -0x1.6ed004p+0f && n[1] == -0x1.2dd7dap-4f);
}

static void uniform_and_normal_are_what_they_say(void **state)
{
	enum { KEYS = 20000, DIM = 8 };
	uint64_t below[2][9] = {{0}};
	double sum[2] = {0}, squares[2] = {0};
	float row[DIM];

	(void)state;
	for (int kind = 0; kind < 2; kind++) {
		tern_row_init init = {kind ? TERN_ROW_NORMAL : TERN_ROW_UNIFORM, 2, 3};

		for (uint64_t key = 0; key < KEYS; key++) {
			tn_init_row(row, DIM, &init, 42, key);
			for (int d = 0; d < DIM; d++) {
				double x = (double)row[d] / 2;
				double p = kind ? erfc(-x / sqrt(2)) / 2 : (x + 1) / 2;

				assert_true(kind || (x >= -1 && x < 1));
				sum[kind] += x;
				squares[kind] += x * x;
				for (int q = 0; q < 9; q++)
					below[kind][q] += p < (q + 1) / 10.0;
			}
		}
		/* Five standard deviations of the estimates. */
		assert_true(fabs(sum[kind] / (KEYS * DIM)) < 5 / sqrt(KEYS * DIM));
		assert_true(fabs(squares[kind] / (KEYS * DIM) - (kind ? 1 : 1.0 / 3)) < 0.02);
		for (int q = 0; q < 9; q++)
			assert_true(fabs((double)below[kind][q] / (KEYS * DIM) - (q + 1) / 10.0) < 0.007);
	}
}

static void quantiles_are_inverse(void **state)
{
	(void)state;
	for (double p = 1e-12; p < 1; p = p < 0.001 ? p * 1.7 : p + 0.0007) {
		double x = tn_normal_quantile(p), back = erfc(-x / sqrt(2)) / 2;

		assert_true(fabs(back - p) <= 2e-8 * p + 1e-9 * (1 - p) * p * 100);
	}
	assert_true(tn_normal_quantile(0.5) == 0);
}

static void zeros_and_constants(void **state)
{
	tern_row_init init = {TERN_ROW_CONSTANT, -3, 0};
	float row[5];

	(void)state;
	tn_init_row(row, 5, &init, 1, 2);
	for (int i = 0; i < 5; i++)
		assert_true(row[i] == -3);
	init.kind = TERN_ROW_ZEROS;
	tn_init_row(row, 5, &init, 1, 2);
	for (int i = 0; i < 5; i++)
		assert_true(row[i] == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_same_row_every_time),
		cmocka_unit_test(bits_do_not_change),
		cmocka_unit_test(uniform_and_normal_are_what_they_say),
		cmocka_unit_test(quantiles_are_inverse),
		cmocka_unit_test(zeros_and_constants),
	};

	return RUN(tests);
}
