/* SPDX-License-Identifier: Apache-2.0 */
/* Products over batches of matrices, against the double-precision twin: nn_case.h says how. */
#include "nn_case.h"

static void batched_products(void **state)
{
	static const struct {
		tern_shape a, b; /* batch dims */
	} cases[] = {
		{{1, {3}}, {1, {3}}},          {{2, {2, 3}}, {2, {2, 3}}}, {{1, {4}}, {0, {0}}},
		{{0, {0}}, {1, {4}}},          {{2, {2, 3}}, {1, {3}}},    {{2, {2, 1}}, {2, {1, 3}}},
		{{3, {2, 1, 3}}, {2, {4, 1}}}, {{2, {1, 1}}, {2, {1, 1}}}, {{1, {0}}, {1, {0}}},
		{{3, {2, 3, 2}}, {2, {3, 2}}}, {{2, {2, 3}}, {2, {2, 1}}},
	};

	(void)state;
	for (uint32_t i = 0; i < 4 * sizeof(cases) / sizeof(cases[0]); i++) {
		tern_shape a = cases[i / 4].a, b = cases[i / 4].b;
		uint32_t ta = i & 1, tb = i >> 1 & 1;
		op_case c = {.op = TN_OP_MATMUL, .n_in = 2};

		a.dims[a.rank++] = ta ? 5 : 4;
		a.dims[a.rank++] = ta ? 4 : 5;
		b.dims[b.rank++] = tb ? 6 : 5;
		b.dims[b.rank++] = tb ? 5 : 6;
		c.in[0] = a;
		c.in[1] = b;
		nn_attr_int(&c, TN_ATTR_TRANS_A, ta);
		nn_attr_int(&c, TN_ATTR_TRANS_B, tb);
		nn_check(&c);
	}
}

static void products_of_vectors(void **state)
{
	static const tern_shape cases[][2] = {{{1, {5}}, {1, {5}}},
					      {{1, {5}}, {2, {5, 6}}},
					      {{2, {4, 5}}, {1, {5}}},
					      {{1, {5}}, {3, {3, 5, 6}}},
					      {{4, {2, 3, 4, 5}}, {1, {5}}}};

	(void)state;
	for (uint32_t i = 0; i < 5; i++) {
		op_case c = {.op = TN_OP_MATMUL, .n_in = 2, .in = {cases[i][0], cases[i][1]}};

		nn_check(&c);
	}
}

static void products_refused(void **state)
{
	op_case c = {.op = TN_OP_MATMUL, .n_in = 2, .in = {S(3, 5, 4), S(5, 6)}};

	(void)state;
	nn_refused(&c, "inner dims");
	c.in[0] = S(2, 4, 5);
	c.in[1] = S(3, 5, 6);
	nn_refused(&c, "do not broadcast");
	c.in[1] = S(5);
	nn_attr_int(&c, TN_ATTR_TRANS_B, 1);
	nn_refused(&c, "without a transpose");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batched_products),
		cmocka_unit_test(products_of_vectors),
		cmocka_unit_test(products_refused),
	};

	return RUN(tests);
}
