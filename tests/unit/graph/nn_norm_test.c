/* SPDX-License-Identifier: Apache-2.0 */
/* Norms: batch, instance, layer, response, against the double-precision twin: nn_case.h says how. */
#include "nn_case.h"

static void batch_norms(void **state)
{
	static const tern_shape shapes[] = {{4, {4, 3, 5, 6}},  {4, {2, 16, 8, 8}},   {4, {3, 17, 3, 3}},
					    {3, {4, 5, 11}},    {5, {2, 3, 2, 3, 4}}, {2, {9, 7}},
					    {4, {1, 64, 1, 1}}, {4, {2, 32, 35, 35}}};

	(void)state;
	for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		tern_shape x = shapes[i], v = S(x.dims[1]);
		op_case c = {.op = TN_OP_BATCH_NORM, .n_in = 5, .in = {x, v, v, v, v}, .positive = 5};

		c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_EPSILON, 1e-3);
		nn_check(&c);
		c.op = TN_OP_BATCH_NORM_GRAD;
		c.in[1] = x;
		nn_check(&c);
		c.op = TN_OP_BATCH_NORM_TRAIN;
		c.n_in = 3;
		c.in[1] = v;
		nn_check(&c);
		c.n_in = 5;
		nn_check(&c);
		c.n_in = 4;
		nn_refused(&c, "together or not at all");
	}
}

static void instance_and_layer_norms(void **state)
{
	static const tern_shape shapes[] = {{4, {2, 3, 5, 6}}, {3, {4, 5, 33}}, {5, {2, 3, 2, 3, 4}}};

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		tern_shape x = shapes[i], v = S(x.dims[1]);
		op_case c = {.op = TN_OP_INSTANCE_NORM, .n_in = 3, .in = {x, v, v}};

		nn_check(&c);
		c = (op_case){.op = TN_OP_INSTANCE_NORM_GRAD, .n_in = 3, .in = {x, x, v}};
		nn_check(&c);
		for (int64_t axis = 0; axis < (int64_t)x.rank; axis++) {
			tern_shape inner = {.rank = x.rank - (uint32_t)axis}, outer = x;

			for (uint32_t d = (uint32_t)axis; d < x.rank; d++) {
				inner.dims[d - axis] = x.dims[d];
				outer.dims[d] = 1;
			}
			c = (op_case){.op = TN_OP_LAYER_NORM, .n_in = 3, .in = {x, inner, inner}};
			nn_attr_int(&c, TN_ATTR_AXIS, axis % 2 ? axis : axis - (int64_t)x.rank);
			nn_check(&c);
			c = (op_case){.op = TN_OP_LAYER_NORM_GRAD,
				      .n_in = 5,
				      .in = {x, x, inner, outer, outer},
				      .positive = 5};
			nn_attr_int(&c, TN_ATTR_AXIS, axis);
			nn_check(&c);
		}
	}
}

static void response_norms(void **state)
{
	static const tern_shape shapes[] = {
		{4, {2, 16, 5, 6}}, {3, {1, 5, 7}}, {4, {1, 3, 4, 4}}, {2, {3, 9}}};

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		for (int64_t size = 1; size < 7; size++) {
			op_case c = {.op = TN_OP_LRN, .n_in = 1, .in = {shapes[i]}};

			nn_attr_int(&c, TN_ATTR_SIZE, size);
			c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_ALPHA, 0.3);
			c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_BETA, 0.6);
			c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_BIAS, 1.5);
			nn_check(&c);
			c.op = TN_OP_LRN_GRAD;
			c.n_in = 2;
			c.in[1] = c.in[0];
			nn_check(&c);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batch_norms),
		cmocka_unit_test(instance_and_layer_norms),
		cmocka_unit_test(response_norms),
	};

	return RUN(tests);
}
