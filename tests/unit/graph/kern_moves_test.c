/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of ops that move elements, by dims or by indices, against the twin: random shapes of rank 0 to 8,
 * empty ones too, elements of every size; indices out of range; resizes against the definition.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/infer.h"
#include "node_bench.h"

static ref_rand rnd = {11};

static const tern_dtype sizes[] = {TERN_F32, TERN_U8, TERN_I64, TERN_F32};

static tern_dtype any_type(uint32_t round)
{
	return sizes[round % 4];
}

static void push(tn_attr *a, int64_t v)
{
	a->u.ints.v[a->u.ints.n++] = v;
}

static int64_t between(int64_t lo, int64_t hi)
{
	return lo + node_below(&rnd, (uint32_t)(hi - lo + 1));
}

/* One input of a shape, one op, all elements equal to the twin's. */
static void check_one(tn_op op, tern_dtype t, const tern_shape *s, const tn_attr *attrs, uint32_t n_attrs)
{
	node_bench b;

	node_open(&b, &rnd);
	node_input(&b, t, s, 0, 200);
	assert_ok(node_add(&b, op, attrs, n_attrs));
	node_check(&b, 0);
}

static void transposes(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 200; round++) {
		tern_shape s = node_shape(&rnd, 0, 8, 5);
		tn_attr perm = {.key = TN_ATTR_PERM};

		if (round >= 150) { /* large enough for tiles */
			s = (tern_shape){.rank = 1 + node_below(&rnd, 4)};
			for (uint32_t d = 0; d < s.rank; d++)
				s.dims[d] =
					d + 2 >= s.rank ? 1 + node_below(&rnd, 50) : 1 + node_below(&rnd, 20);
		}
		for (uint32_t d = 0; d < s.rank; d++)
			push(&perm, d);
		for (uint32_t d = s.rank; d-- > 1;) {
			uint32_t k = node_below(&rnd, d + 1);
			int64_t v = perm.u.ints.v[d];

			perm.u.ints.v[d] = perm.u.ints.v[k];
			perm.u.ints.v[k] = v;
		}
		if (node_elements(&s) < 40000)
			check_one(TN_OP_TRANSPOSE, any_type(round), &s, &perm, round % 5 ? 1 : 0);
	}
}

static uint32_t random_slice(const tern_shape *s, tn_attr *attrs)
{
	attrs[0] = (tn_attr){.key = TN_ATTR_STARTS};
	attrs[1] = (tn_attr){.key = TN_ATTR_ENDS};
	attrs[2] = (tn_attr){.key = TN_ATTR_AXES};
	attrs[3] = (tn_attr){.key = TN_ATTR_STEPS};
	for (uint32_t d = 0; d < s->rank; d++) {
		int64_t dim = (int64_t)s->dims[d], step = between(-3, 3);

		if (node_below(&rnd, 3) == 0)
			continue;
		push(&attrs[0], between(-dim - 2, dim + 2));
		push(&attrs[1], node_below(&rnd, 4) == 0 ? step < 0 ? INT64_MIN : INT64_MAX
							 : between(-dim - 2, dim + 2));
		push(&attrs[2], node_below(&rnd, 2) ? d : (int64_t)d - s->rank);
		push(&attrs[3], step == 0 ? 1 : step);
	}
	return 4;
}

static void slices(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 300; round++) {
		tern_shape s = node_shape(&rnd, 0, 8, 6);
		tn_attr attrs[5];

		check_one(TN_OP_SLICE, any_type(round), &s, attrs, random_slice(&s, attrs));
	}
}

static void gradients_of_slices(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 150; round++) {
		tern_shape s = node_shape(&rnd, 0, 8, 6), part;
		tn_attr attrs[5];
		uint32_t n = random_slice(&s, attrs);
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, 0, 1);
		assert_ok(node_add(&b, TN_OP_SLICE, attrs, n));
		part = b.graph->tensors[b.node->out[0]].shape;
		node_close(&b);
		attrs[n] = (tn_attr){.key = TN_ATTR_SHAPE};
		for (uint32_t d = 0; d < s.rank; d++)
			push(&attrs[n], (int64_t)s.dims[d]);
		check_one(TN_OP_SLICE_GRAD, TERN_F32, &part, attrs, n + 1);
	}
}

static void concats(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 100; round++) {
		tern_shape s = node_shape(&rnd, 1, 8, 5);
		uint32_t axis = node_below(&rnd, s.rank), n = 1 + node_below(&rnd, 5);
		tn_attr a = tn_attr_int(TN_ATTR_AXIS, (int64_t)axis - (round % 2 ? 0 : s.rank));
		node_bench b;

		node_open(&b, &rnd);
		for (uint32_t i = 0; i < n; i++) {
			s.dims[axis] = node_below(&rnd, 5);
			node_input(&b, any_type(round), &s, 0, 99);
		}
		assert_ok(node_add(&b, TN_OP_CONCAT, &a, 1));
		node_check(&b, 0);
	}
}

static void expands_and_tiles(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 120; round++) {
		tern_shape s = node_shape(&rnd, 0, 8, 3);
		uint32_t lead = node_below(&rnd, 9 - s.rank);
		tn_attr shape = {.key = TN_ATTR_SHAPE}, repeats = {.key = TN_ATTR_REPEATS};

		for (uint32_t d = 0; d < lead; d++)
			push(&shape, between(1, 2));
		for (uint32_t d = 0; d < s.rank; d++) {
			push(&shape, s.dims[d] == 1        ? between(0, 4)
				     : node_below(&rnd, 2) ? 1
							   : (int64_t)s.dims[d]);
			push(&repeats, between(0, 2) ? between(1, 2) : between(0, 3));
		}
		check_one(TN_OP_EXPAND, any_type(round), &s, &shape, 1);
		check_one(TN_OP_TILE, any_type(round), &s, &repeats, 1);
	}
}

static void pads(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 200; round++) {
		tern_shape s = node_shape(&rnd, 0, 8, 4);
		int64_t mode = round % 3;
		tn_attr attrs[3] = {{.key = TN_ATTR_PADS},
				    tn_attr_int(TN_ATTR_MODE, mode),
				    tn_attr_float(TN_ATTR_VALUE, 7)};

		for (uint32_t k = 0; k < 2 * s.rank; k++) {
			int64_t dim = (int64_t)s.dims[k % s.rank],
				most = mode == TN_PAD_REFLECT ? dim - 1 : 2;

			push(&attrs[0],
			     node_below(&rnd, 2) || dim == 0
				     ? 0
				     : between(dim > 2 && mode == 0 ? -1 : 0, most < 2 ? most : 2));
		}
		check_one(TN_OP_PAD, any_type(round), &s, attrs, 3);
	}
}

static void blocks_and_triangles(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 60; round++) {
		uint64_t k = 1 + round % 3, c = 1 + node_below(&rnd, 3), h = 1 + node_below(&rnd, 4);
		tern_shape deep = {.rank = 4,
				   .dims = {1 + node_below(&rnd, 2), c * k * k, h, 1 + node_below(&rnd, 4)}};
		tern_shape wide = {
			.rank = 4,
			.dims = {1 + node_below(&rnd, 2), c, h * k, k * (1 + node_below(&rnd, 4))}};
		tern_shape s = node_shape(&rnd, 2, 6, 6);
		tn_attr size[2] = {tn_attr_int(TN_ATTR_BLOCK_SIZE, (int64_t)k),
				   tn_attr_int(TN_ATTR_MODE, round % 2)};
		tn_attr tri[2] = {tn_attr_int(TN_ATTR_UPPER, round % 2),
				  tn_attr_int(TN_ATTR_K, between(-8, 8))};

		check_one(TN_OP_DEPTH_TO_SPACE, any_type(round), &deep, size, 2);
		check_one(TN_OP_SPACE_TO_DEPTH, any_type(round), &wide, size, 1);
		check_one(TN_OP_TRILU, any_type(round), &s, tri, 2);
	}
}

static void reversed_sequences(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 40; round++) {
		tern_shape s = node_shape(&rnd, 2, 4, 5);
		tn_attr attrs[2] = {tn_attr_int(TN_ATTR_BATCH_AXIS, round % 2),
				    tn_attr_int(TN_ATTR_TIME_AXIS, 1 - round % 2)};
		tern_shape lengths = {.rank = 1, .dims = {s.dims[round % 2]}};
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, any_type(round), &s, 0, 99);
		node_input(&b, round % 3 ? TERN_I64 : TERN_I32, &lengths, 0,
			   (double)s.dims[1 - round % 2] + 1);
		assert_ok(node_add(&b, TN_OP_REVERSE_SEQUENCE, attrs, 2));
		node_check(&b, 0);
	}
}

/* ---- by indices ---- */

static void gathers(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 120; round++) {
		tern_shape s = node_shape(&rnd, 1, 5, 5), index = node_shape(&rnd, 0, 3, 4), out;
		uint32_t axis = node_below(&rnd, s.rank);
		tn_attr attrs[2] = {tn_attr_int(TN_ATTR_AXIS, (int64_t)axis - (round % 2 ? 0 : s.rank)),
				    {.key = TN_ATTR_SHAPE}};
		double dim = (double)s.dims[axis];
		node_bench b;

		if (dim == 0)
			continue;
		node_open(&b, &rnd);
		node_input(&b, any_type(round), &s, 0, 99);
		node_input(&b, round % 3 ? TERN_I64 : TERN_I32, &index, -dim, dim);
		assert_ok(node_add(&b, TN_OP_GATHER, attrs, 1));
		out = b.graph->tensors[b.node->out[0]].shape;
		node_check(&b, 0);
		for (uint32_t d = 0; d < s.rank; d++)
			push(&attrs[1], (int64_t)s.dims[d]);
		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &out, -1, 1);
		node_input(&b, round % 3 ? TERN_I64 : TERN_I32, &index, -dim, dim);
		assert_ok(node_add(&b, TN_OP_GATHER_GRAD, attrs, 2));
		node_check(&b, 1e-5);
	}
}

static void elements(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 120; round++) {
		tern_shape s = node_shape(&rnd, 1, 5, 5), index = s;
		uint32_t axis = node_below(&rnd, s.rank);
		int64_t how = round % 4 == 0 ? TN_SCATTER_NONE : between(0, 4);
		tn_attr attrs[2] = {tn_attr_int(TN_ATTR_AXIS, axis), tn_attr_int(TN_ATTR_REDUCTION, how)};
		tern_dtype t = round % 4 ? TERN_I64 : any_type(round / 4);
		double dim = (double)s.dims[axis];
		node_bench b;

		for (uint32_t d = 0; d < s.rank; d++)
			index.dims[d] = d == axis   ? 1 + node_below(&rnd, 6)
					: s.dims[d] ? 1 + node_below(&rnd, (uint32_t)s.dims[d])
						    : 0;
		if (dim == 0)
			continue;
		for (uint32_t scatter = 0; scatter < 2; scatter++) {
			node_open(&b, &rnd);
			node_input(&b, t, &s, 0, 9);
			node_input(&b, round % 3 ? TERN_I64 : TERN_I32, &index, -dim, dim);
			if (scatter)
				node_input(&b, t, &index, 0, 9);
			assert_ok(node_add(&b, scatter ? TN_OP_SCATTER_ELEMENTS : TN_OP_GATHER_ELEMENTS,
					   attrs, 1 + scatter));
			node_check(&b, 0);
		}
	}
}

static void tuples(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 120; round++) {
		tern_shape s = node_shape(&rnd, 2, 5, 4), index = {.rank = 0}, update;
		uint32_t batch = node_below(&rnd, 2), lead = 1 + node_below(&rnd, 2);
		uint32_t k = 1 + node_below(&rnd, s.rank - batch);
		tn_attr a[1] = {tn_attr_int(TN_ATTR_BATCH_DIMS, batch)};
		node_bench b;

		if (node_elements(&s) == 0)
			continue;
		for (uint32_t d = 0; d < batch + lead; d++)
			index.dims[index.rank++] = d < batch ? s.dims[d] : 1 + node_below(&rnd, 3);
		index.dims[index.rank++] = k;
		node_open(&b, &rnd);
		node_input(&b, any_type(round), &s, 0, 99);
		node_input(&b, round % 3 ? TERN_I64 : TERN_I32, &index, -1, 1); /* -1 and 0 fit every dim */
		assert_ok(node_add(&b, TN_OP_GATHER_ND, a, 1));
		update = b.graph->tensors[b.node->out[0]].shape;
		node_check(&b, 0);
		if (batch)
			continue;
		a[0] = tn_attr_int(TN_ATTR_REDUCTION, between(0, 4));
		node_open(&b, &rnd);
		node_input(&b, TERN_I64, &s, 0, 9);
		node_input(&b, TERN_I64, &index, -1, 1);
		node_input(&b, TERN_I64, &update, 0, 9);
		assert_ok(node_add(&b, TN_OP_SCATTER_ND, a, 1));
		node_check(&b, 0);
	}
}

static void one_hots(void **state)
{
	static const tern_dtype in[] = {TERN_I32, TERN_I64, TERN_U8, TERN_F32};

	(void)state;
	for (uint32_t round = 0; round < 60; round++) {
		tern_shape s = node_shape(&rnd, 0, 4, 4);
		tn_attr attrs[5] = {tn_attr_int(TN_ATTR_DEPTH, 5),
				    tn_attr_int(TN_ATTR_AXIS, between(-1, s.rank)),
				    tn_attr_float(TN_ATTR_ON_VALUE, 3), tn_attr_float(TN_ATTR_OFF_VALUE, 2),
				    tn_attr_int(TN_ATTR_TO, round % 2 ? TERN_F32 : TERN_I32)};
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, in[round % 4], &s, round % 4 == 2 ? 0 : -7, 7); /* some are nowhere */
		assert_ok(node_add(&b, TN_OP_ONE_HOT, attrs, 5));
		node_check(&b, 0);
	}
}

static void indices_out_of_range_are_refused(void **state)
{
	static const struct {
		tn_op op;
		uint32_t n_in;
	} cases[] = {{TN_OP_GATHER, 2},
		     {TN_OP_GATHER_ELEMENTS, 2},
		     {TN_OP_GATHER_ND, 2},
		     {TN_OP_SCATTER_ELEMENTS, 3},
		     {TN_OP_SCATTER_ND, 3}};
	static const int64_t bad[] = {3, -4, INT64_MAX, INT64_MIN};
	tern_shape s = {.rank = 1, .dims = {3}}, tuple = {.rank = 2, .dims = {3, 1}};

	(void)state;
	for (uint32_t i = 0; i < 20; i++) {
		tn_op op = cases[i % 5].op;
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, 0, 1);
		node_input(&b, TERN_I64, op == TN_OP_GATHER_ND || op == TN_OP_SCATTER_ND ? &tuple : &s, 0, 3);
		if (cases[i % 5].n_in == 3)
			node_input(&b, TERN_F32, &s, 0, 1);
		assert_ok(node_add(&b, op, NULL, 0));
		((int64_t *)b.data[1])[2] = bad[i / 5];
		assert_status(node_run(&b), TERN_E_INVALID);
		assert_non_null(strstr(tern_detail(), "out of range"));
		node_close(&b);
	}
}

/* ---- Resize: each output by the definition, over all corners at once ---- */

static double place(int64_t coords, double o, double in, double out)
{
	double scale = out / in;

	switch (coords) {
	case TN_COORDS_ASYMMETRIC:
		return o / scale;
	case TN_COORDS_ALIGN_CORNERS:
		return out == 1 ? 0 : o * (in - 1) / (out - 1);
	case TN_COORDS_PYTORCH_HALF_PIXEL:
		return out > 1 ? (o + 0.5) / scale - 0.5 : 0;
	default:
		return (o + 0.5) / scale - 0.5;
	}
}

static double weight(int64_t mode, double distance)
{
	double d = fabs(distance), a = -0.75;

	if (mode == TN_RESIZE_LINEAR)
		return d < 1 ? 1 - d : 0;
	if (d <= 1)
		return (a + 2) * d * d * d - (a + 3) * d * d + 1;
	return d < 2 ? a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a : 0;
}

/* (H, W) -> one element: a sum over all inputs, the edges repeated beyond. */
static double resized(const float *x, const tern_shape *in, const tern_shape *out, int64_t mode,
		      int64_t coords, uint64_t i, uint64_t j)
{
	double h = (double)in->dims[0], w = (double)in->dims[1], sum = 0;
	double y0 = place(coords, (double)i, h, (double)out->dims[0]),
	       x0 = place(coords, (double)j, w, (double)out->dims[1]);

	for (double p = floor(y0) - 3; p <= floor(y0) + 4; p++) {
		for (double q = floor(x0) - 3; q <= floor(x0) + 4; q++) {
			uint64_t r = (uint64_t)fmax(0, fmin(h - 1, p)), c = (uint64_t)fmax(0, fmin(w - 1, q));

			sum += weight(mode, p - y0) * weight(mode, q - x0) * (double)x[r * in->dims[1] + c];
		}
	}
	return sum;
}

static void resizes(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 80; round++) {
		tern_shape s = {.rank = 2, .dims = {1 + node_below(&rnd, 9), 1 + node_below(&rnd, 9)}};
		tern_shape to = {.rank = 2, .dims = {1 + node_below(&rnd, 12), 1 + node_below(&rnd, 12)}};
		int64_t mode = TN_RESIZE_LINEAR + round % 2, coords = between(0, 3);
		tn_attr attrs[3] = {{.key = TN_ATTR_SHAPE},
				    tn_attr_int(TN_ATTR_MODE, mode),
				    tn_attr_int(TN_ATTR_COORDS, coords)};
		node_bench b;

		push(&attrs[0], (int64_t)to.dims[0]);
		push(&attrs[0], (int64_t)to.dims[1]);
		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, -5, 5);
		assert_ok(node_add(&b, TN_OP_RESIZE, attrs, 3));
		assert_ok(node_run(&b));
		for (uint64_t i = 0; i < node_elements(&to); i++) {
			double want =
				resized(b.data[0], &s, &to, mode, coords, i / to.dims[1], i % to.dims[1]);

			assert_true(fabs((double)((float *)b.out[0])[i] - want) < 1e-5 * (1 + fabs(want)));
		}
		node_close(&b);
	}
}

static void resizes_to_the_nearest(void **state)
{
	tern_shape s = {.rank = 1, .dims = {3}};
	uint8_t got[6];

	(void)state;
	for (int64_t mode = 0; mode < 4; mode++) {
		tn_attr attrs[2] = {{.key = TN_ATTR_SHAPE}, tn_attr_int(TN_ATTR_NEAREST, mode)};
		node_bench b;

		push(&attrs[0], 6);
		node_open(&b, &rnd);
		node_input(&b, TERN_U8, &s, 0, 1);
		for (uint8_t i = 0; i < 3; i++)
			((uint8_t *)b.data[0])[i] = i;
		assert_ok(node_add(&b, TN_OP_RESIZE, attrs, 2));
		assert_ok(node_run(&b));
		memcpy(got, b.out[0], 6); /* places: -0.25 0.25 0.75 1.25 1.75 2.25 */
		for (uint32_t i = 0; i < 6; i++) {
			double x = ((double)i + 0.5) / 2 - 0.5;
			double n = mode == TN_NEAREST_FLOOR  ? floor(x)
				   : mode == TN_NEAREST_CEIL ? ceil(x)
							     : round(x);

			assert_int_equal(got[i], (int)fmax(0, fmin(2, n)));
		}
		node_close(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(transposes),
		cmocka_unit_test(slices),
		cmocka_unit_test(gradients_of_slices),
		cmocka_unit_test(concats),
		cmocka_unit_test(expands_and_tiles),
		cmocka_unit_test(pads),
		cmocka_unit_test(blocks_and_triangles),
		cmocka_unit_test(reversed_sequences),
		cmocka_unit_test(gathers),
		cmocka_unit_test(elements),
		cmocka_unit_test(tuples),
		cmocka_unit_test(one_hots),
		cmocka_unit_test(indices_out_of_range_are_refused),
		cmocka_unit_test(resizes),
		cmocka_unit_test(resizes_to_the_nearest),
	};

	return RUN(tests);
}
