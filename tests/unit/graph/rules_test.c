/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules where a dim is symbolic, and numbers of files that make no sense: what is refused, with which
 * words, and what kernels do with the rest.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/infer.h"
#include "node_bench.h"

static tern_graph *g;
static uint64_t batch;
static uint32_t x; /* f32[batch,4] */
static uint32_t count;
static ref_rand rnd = {3};

static int setup(void **state)
{
	(void)state;
	assert_ok(tern_graph_create("rules", &g));
	assert_ok(tern_graph_symbol(g, "batch", &batch));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &(tern_shape){.rank = 2, .dims = {batch, 4}}, &x));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_ok(tern_graph_check(g));
	tern_graph_destroy(g);
	return 0;
}

static tn_attr list(tn_attr_key key, uint32_t n, int64_t a, int64_t b, int64_t c, int64_t d)
{
	return (tn_attr){.key = key, .u.ints = {n, {a, b, c, d}}};
}

static tern_status add(tn_op op, uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs, tern_shape *out)
{
	uint32_t in[2] = {x, x}, tensor;
	char name[16];
	tern_status st;

	snprintf(name, sizeof(name), "n%u", count++);
	st = tn_graph_add1(g, op, name, in, n_in, attrs, n_attrs, TN_DEVICE_NONE, &tensor);
	if (st == TERN_OK)
		*out = g->tensors[tensor].shape;
	return st;
}

static void slices_of_symbolic_dims(void **state)
{
	static const struct {
		int64_t start, end, step;
		int64_t want; /* elements; -1: the symbol; -2: refused */
	} cases[] = {
		{0, INT64_MAX, 1, -1}, {-1, INT64_MIN, -1, -1}, {0, 3, 1, 3},   {1, 6, 2, 3},
		{-1, INT64_MAX, 1, 1}, {-3, -1, 1, 2},          {5, 2, -1, 3},  {2, INT64_MIN, -1, 3},
		{0, -1, 1, -2},        {1, INT64_MAX, 1, -2},   {-1, 3, 1, -2}, {0, INT64_MAX, 2, -2},
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tn_attr attrs[3] = {list(TN_ATTR_STARTS, 1, cases[i].start, 0, 0, 0),
				    list(TN_ATTR_ENDS, 1, cases[i].end, 0, 0, 0),
				    list(TN_ATTR_STEPS, 1, cases[i].step, 0, 0, 0)};
		tern_shape out;
		tern_status st = add(TN_OP_SLICE, 1, attrs, 3, &out);

		if (cases[i].want == -2) {
			assert_status(st, TERN_E_SHAPE);
			assert_non_null(strstr(tern_detail(), "not known"));
			continue;
		}
		assert_ok(st);
		assert_int_equal(out.dims[0], cases[i].want == -1 ? batch : (uint64_t)cases[i].want);
		assert_int_equal(out.dims[1], 4);
	}
}

/* What a rule could not know, the kernel checks when the sizes are there. */
static void kernels_check_what_rules_cannot(void **state)
{
	tn_attr slice[2] = {list(TN_ATTR_STARTS, 1, 0, 0, 0, 0), list(TN_ATTR_ENDS, 1, 3, 0, 0, 0)};
	char name[] = "node";
	tn_node nodes[2] = {
		{.op = TN_OP_SLICE, .name = name, .n_in = 1, .n_out = 1, .attrs = slice, .n_attrs = 2},
		{.op = TN_OP_ARG_MAX, .name = name, .n_in = 1, .n_out = 1}};
	tn_operand in[2] = {{TERN_F32, {.rank = 2, .dims = {2, 4}}}, {TERN_F32, {.rank = 2, .dims = {0, 4}}}};
	tn_operand out[2] = {{TERN_F32, {.rank = 2, .dims = {3, 4}}},
			     {TERN_I64, {.rank = 2, .dims = {1, 4}}}};
	tn_kern_ctx *ctx;

	(void)state;
	assert_ok(tn_kern_ctx_create(TN_BACKEND_PLAIN, 1, &ctx));
	for (uint32_t i = 0; i < 2; i++) {
		tn_kern_desc desc = {.node = &nodes[i], .in = &in[i], .out = &out[i]};
		tn_kern *kern;

		assert_status(tn_kern_create(ctx, &desc, &kern), TERN_E_SHAPE);
	}
	tn_kern_ctx_destroy(ctx);
}

static void symbolic_dims_are_not_added_or_stretched(void **state)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, 0), pads = list(TN_ATTR_PADS, 4, 1, 0, 0, 0);
	tn_attr repeats = list(TN_ATTR_REPEATS, 2, 2, 1, 0, 0),
		k[2] = {tn_attr_int(TN_ATTR_K, 1), tn_attr_int(TN_ATTR_AXIS, 0)};
	tern_shape out;

	(void)state;
	assert_status(add(TN_OP_CONCAT, 2, &axis, 1, &out), TERN_E_SHAPE);
	assert_status(add(TN_OP_PAD, 1, &pads, 1, &out), TERN_E_SHAPE);
	assert_status(add(TN_OP_TILE, 1, &repeats, 1, &out), TERN_E_SHAPE);
	assert_status(add(TN_OP_TOP_K, 1, k, 2, &out), TERN_E_SHAPE);
	axis.u.i = 1;
	assert_ok(add(TN_OP_CONCAT, 2, &axis, 1, &out));
	assert_true(out.dims[0] == batch && out.dims[1] == 8);
	repeats = list(TN_ATTR_REPEATS, 2, 1, 3, 0, 0);
	assert_ok(add(TN_OP_TILE, 1, &repeats, 1, &out));
	assert_true(out.dims[0] == batch && out.dims[1] == 12);
}

static void symbolic_dims_broadcast_and_reshape(void **state)
{
	tn_attr shape = list(TN_ATTR_SHAPE, 3, 2, (int64_t)batch, 4, 0);
	tern_shape out;

	(void)state;
	assert_ok(add(TN_OP_EXPAND, 1, &shape, 1, &out));
	assert_true(out.rank == 3 && out.dims[1] == batch);
	shape = list(TN_ATTR_SHAPE, 3, 2, (int64_t)batch, 2, 0);
	assert_ok(add(TN_OP_RESHAPE, 1, &shape, 1, &out));
	assert_true(out.rank == 3 && out.dims[1] == batch);
	shape.u.ints.v[1] = (int64_t)(batch - 1); /* a symbol that nobody made */
	assert_status(add(TN_OP_RESHAPE, 1, &shape, 1, &out), TERN_E_SHAPE);
	shape.u.ints.v[1] = -100;
	assert_status(add(TN_OP_RESHAPE, 1, &shape, 1, &out), TERN_E_SHAPE);
}

static void results_that_are_too_large_are_refused(void **state)
{
	tn_attr shape = list(TN_ATTR_SHAPE, 4, 1 << 20, 1 << 20, 1 << 20, 4);
	tern_shape s = {.rank = 2, .dims = {4, 4}};
	tn_attr repeats = list(TN_ATTR_REPEATS, 2, INT64_MAX, 2, 0, 0),
		pads = list(TN_ATTR_PADS, 4, INT64_MIN, 0, 0, INT64_MAX);
	node_bench b;

	(void)state;
	node_open(&b, &rnd);
	node_input(&b, TERN_F32, &s, 0, 1);
	assert_status(node_add(&b, TN_OP_EXPAND, &shape, 1), TERN_E_SHAPE);
	shape.u.ints.v[3] = 1;
	assert_status(node_add(&b, TN_OP_TILE, &repeats, 1), TERN_E_SHAPE);
	assert_status(node_add(&b, TN_OP_PAD, &pads, 1), TERN_E_SHAPE);
	node_close(&b);
}

/* Regions that are no numbers, steps that are far too long: some result, within the input. */
static void nonsense_stays_inside(void **state)
{
	static const double roi[4] = {NAN, -INFINITY, 1e308, INFINITY};
	tern_shape s = {.rank = 1, .dims = {5}};

	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		tn_attr attrs[4] = {list(TN_ATTR_SHAPE, 1, 7, 0, 0, 0),
				    tn_attr_int(TN_ATTR_MODE, i / 4),
				    tn_attr_int(TN_ATTR_COORDS, TN_COORDS_CROP_AND_RESIZE),
				    {.key = TN_ATTR_ROI, .u.floats = {2, {roi[i % 4], -roi[i % 4]}}}};
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, 0, 1);
		assert_ok(node_add(&b, TN_OP_RESIZE, attrs, 4));
		assert_ok(node_run(&b));
		node_close(&b);
	}
	for (uint32_t i = 0; i < 2; i++) {
		tn_attr attrs[3] = {list(TN_ATTR_STARTS, 1, i ? -1 : 0, 0, 0, 0),
				    list(TN_ATTR_ENDS, 1, i ? INT64_MIN : INT64_MAX, 0, 0, 0),
				    list(TN_ATTR_STEPS, 1, i ? INT64_MIN : INT64_MAX, 0, 0, 0)};
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_I64, &s, 0, 9);
		assert_ok(node_add(&b, TN_OP_SLICE, attrs, 3));
		assert_ok(node_run(&b));
		assert_int_equal(((int64_t *)b.out[0])[0], ((int64_t *)b.data[0])[i ? 4 : 0]);
		node_close(&b);
	}
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(slices_of_symbolic_dims),
		T(kernels_check_what_rules_cannot),
		T(symbolic_dims_are_not_added_or_stretched),
		T(symbolic_dims_broadcast_and_reshape),
		T(results_that_are_too_large_are_refused),
		T(nonsense_stays_inside),
	};

	return RUN(tests);
}
