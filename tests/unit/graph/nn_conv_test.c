/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions, forward, backward and transposed, against the double-precision twin: nn_case.h says how. */
#include "nn_case.h"

static const nn_window convs[] = {
	/* nd  n  c   m   g   in            k          stride     dil        pads */
	{1, 2, 3, 5, 1, {11}, {3}, {1}, {1}, {1, 1}},
	{1, 1, 4, 6, 2, {16}, {5}, {2}, {1}, {2, 1}},
	{1, 3, 2, 2, 1, {9}, {2}, {1}, {3}, {0, 3}},
	{2, 1, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
	{2, 2, 3, 16, 1, {13, 12}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
	{2, 2, 16, 32, 1, {8, 8}, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
	{2, 1, 16, 16, 1, {9, 7}, {1, 7}, {1, 1}, {1, 1}, {0, 3, 0, 3}},
	{2, 2, 17, 19, 1, {10, 11}, {3, 2}, {2, 3}, {1, 1}, {1, 0, 0, 1}},
	{2, 1, 3, 24, 1, {23, 23}, {11, 11}, {4, 4}, {1, 1}, {2, 2, 2, 2}},
	{2, 2, 8, 8, 8, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
	{2, 1, 6, 9, 3, {8, 9}, {3, 3}, {1, 2}, {2, 1}, {2, 1, 2, 1}},
	{2, 1, 32, 32, 2, {6, 6}, {3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}},
	{2, 1, 4, 4, 1, {6, 6}, {3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
	{3, 1, 2, 3, 1, {5, 6, 7}, {3, 2, 3}, {1, 1, 2}, {1, 1, 1}, {1, 0, 1, 1, 1, 1}},
	{3, 2, 4, 4, 2, {4, 4, 4}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
	{2, 1, 3, 4, 1, {4, 4}, {1, 1}, {1, 1}, {1, 1}, {2, 0, 1, 3}},
	{2, 1, 3, 4, 1, {4, 4}, {2, 2}, {2, 3}, {1, 1}, {3, 4, 3, 2}},
	{2, 0, 3, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
};

static void conv_dims(const nn_window *v, tern_shape *x, tern_shape *w, tern_shape *y)
{
	*x = (tern_shape){.rank = 2 + v->nd, .dims = {v->n, v->c}};
	*w = (tern_shape){.rank = 2 + v->nd, .dims = {v->m, v->c / v->g}};
	*y = (tern_shape){.rank = 2 + v->nd, .dims = {v->n, v->m}};
	for (uint32_t d = 0; d < v->nd; d++) {
		x->dims[2 + d] = v->in[d];
		w->dims[2 + d] = v->k[d];
		y->dims[2 + d] =
			(v->in[d] + v->pads[d] + v->pads[v->nd + d] - ((v->k[d] - 1) * v->dil[d] + 1)) /
				v->stride[d] +
			1;
	}
}

static void convolutions(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++) {
		const nn_window *v = &convs[i];
		tern_shape x, w, y;

		conv_dims(v, &x, &w, &y);
		for (uint32_t bias = 0; bias < 2; bias++) {
			op_case c = {.op = TN_OP_CONV, .n_in = 2 + bias, .in = {x, w, S(v->m)}};

			nn_window_attrs(&c, v);
			nn_attr_int(&c, TN_ATTR_GROUP, (int64_t)v->g);
			nn_check(&c);
		}
	}
}

static void convolution_gradients(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++) {
		const nn_window *v = &convs[i];
		tern_shape x, w, y;
		op_case data, weight, bias;

		conv_dims(v, &x, &w, &y);
		data = (op_case){.op = TN_OP_CONV_GRAD_DATA, .n_in = 2, .in = {y, w}};
		weight = (op_case){.op = TN_OP_CONV_GRAD_WEIGHT, .n_in = 2, .in = {y, x}};
		bias = (op_case){.op = TN_OP_CONV_GRAD_BIAS, .n_in = 1, .in = {y}};
		nn_window_attrs(&data, v);
		nn_window_attrs(&weight, v);
		nn_attr_int(&data, TN_ATTR_GROUP, (int64_t)v->g);
		nn_attr_int(&weight, TN_ATTR_GROUP, (int64_t)v->g);
		nn_attr_shape(&data, &x);
		nn_attr_shape(&weight, &w);
		nn_check(&data);
		nn_check(&weight);
		nn_check(&bias);
	}
}

/* The same windows the other way round: x of one is y of the other. */
static void transposed_convolutions(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++) {
		const nn_window *v = &convs[i];
		int64_t more[3] = {0};
		tern_shape x, w, y;

		conv_dims(v, &x, &w, &y);
		for (uint32_t d = 0; d < v->nd; d++)
			more[d] = (int64_t)(v->in[d] + v->pads[d] + v->pads[v->nd + d] -
					    ((v->k[d] - 1) * v->dil[d] + 1)) %
				  v->stride[d];
		for (uint32_t bias = 0; bias < 2; bias++) {
			op_case c = {.op = TN_OP_CONV_TRANSPOSE, .n_in = 2 + bias, .in = {y, w, S(v->c)}};
			nn_made m;

			nn_window_attrs(&c, v);
			nn_attr_int(&c, TN_ATTR_GROUP, (int64_t)v->g);
			nn_attr_ints(&c, TN_ATTR_OUTPUT_PADDING, v->nd, more);
			assert_ok(nn_build(&c, &m));
			assert_true(tn_shape_equal(&m.graph->tensors[m.node->out[0]].shape, &x));
			nn_close(&c, &m);
			nn_check(&c);
		}
	}
}

static void convolutions_refused(void **state)
{
	op_case c = {.op = TN_OP_CONV, .n_in = 2, .in = {S(1, 4, 5, 5), S(4, 3, 3, 3)}};

	(void)state;
	nn_refused(&c, "channels");
	c.in[1] = S(4, 4, 6, 3);
	nn_refused(&c, "does not fit into dim 2");
	c.in[1] = S(4, 4, 3);
	nn_refused(&c, "do not fit a window over 2 dims");
	c.in[1] = S(4, 4, 3, 3);
	nn_attr_ints(&c, TN_ATTR_STRIDES, 2, (int64_t[]){1, 0});
	nn_refused(&c, "below 1");
	c.n_attrs = 0;
	nn_attr_ints(&c, TN_ATTR_PADS, 2, (int64_t[]){1, 1});
	nn_refused(&c, "2 values, not 4");
	c.n_attrs = 0;
	nn_attr_int(&c, TN_ATTR_GROUP, 3);
	nn_refused(&c, "group 3");
	c.n_attrs = 0;
	c.n_in = 3;
	c.in[2] = S(5);
	nn_refused(&c, "should be [4]");
	c = (op_case){.op = TN_OP_CONV_TRANSPOSE, .n_in = 2, .in = {S(1, 4, UINT64_C(1) << 46), S(4, 4, 3)}};
	nn_attr_ints(&c, TN_ATTR_STRIDES, 1, (int64_t[]){INT32_MAX});
	nn_refused(&c, "no output");
	c = (op_case){.op = TN_OP_CONV, .n_in = 2, .in = {S(1, 4), S(4, 4)}};
	nn_refused(&c, "needs (N,C,...)");
	c = (op_case){.op = TN_OP_CONV_GRAD_DATA, .n_in = 2, .in = {S(1, 4, 4, 4), S(4, 4, 3, 3)}};
	nn_attr_shape(&c, &S(1, 4, 5, 5));
	nn_refused(&c, "should be [1,4,3,3]");
}

/* A symbolic batch is fine; a symbolic length only under windows that keep it. */
static void symbolic_dims(void **state)
{
	tern_graph *g;
	tern_value x, w, y[1];
	uint64_t batch, t;
	tern_attr pads = {.name = "pads", .type = TERN_ATTR_INTS, .n_ints = 2, .ints = {1, 1}};
	tern_value_info info;

	(void)state;
	assert_ok(tern_graph_create("g", &g));
	assert_ok(tern_graph_symbol(g, "batch", &batch));
	assert_ok(tern_graph_symbol(g, "time", &t));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &S(batch, 3, t), &x));
	assert_ok(tern_graph_placeholder(g, "w", TERN_F32, &S(4, 3, 3), &w));
	assert_ok(tern_graph_node(g, "Conv", "keeps", (tern_value[]){x, w}, 2, &pads, 1, y, 1));
	assert_ok(tern_graph_value(g, y[0], &info));
	assert_true(tn_shape_equal(&info.shape, &S(batch, 4, t)));
	assert_status(tern_graph_node(g, "Conv", "shortens", (tern_value[]){x, w}, 2, NULL, 0, y, 1),
		      TERN_E_SHAPE);
	assert_non_null(strstr(tern_detail(), "symbolic"));
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(convolutions),
		cmocka_unit_test(convolution_gradients),
		cmocka_unit_test(transposed_convolutions),
		cmocka_unit_test(convolutions_refused),
		cmocka_unit_test(symbolic_dims),
	};

	return RUN(tests);
}
