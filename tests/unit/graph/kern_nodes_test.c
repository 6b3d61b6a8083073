/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of ops that go element by element and along axes against the twin in double precision: random
 * shapes of rank 0 to 8, empty ones too, all types, and numbers at the ends of their range.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "cmocka_all.h"
#include "graph/infer.h"
#include "graph/kern_math.h"
#include "node_bench.h"

static ref_rand rnd = {7};

/* Types that a set has, one after the other. */
static bool next_type(uint32_t set, tern_dtype *t)
{
	for (uint32_t d = *t + 1; d < 32; d++) {
		if (set >> d & 1) {
			*t = (tern_dtype)d;
			return true;
		}
	}
	return false;
}

#define EACH_TYPE(t, set) for (tern_dtype t = (tern_dtype)0; next_type(set, &t);)
#define WIDE_REAL         (TN_T(F32) | TN_T(F64))

static double tolerance_of(tern_dtype t)
{
	return t == TERN_F64    ? 1e-12
	       : t == TERN_F16  ? 2e-3
	       : t == TERN_BF16 ? 2e-2
	       : t == TERN_F32  ? 4e-6
				: 0;
}

static tn_attr ints(tn_attr_key key, const int64_t *v, uint32_t n)
{
	tn_attr a = {.key = key, .u.ints.n = n};

	memcpy(a.u.ints.v, v, n * sizeof(*v));
	return a;
}

/* ---- unary ---- */

typedef struct unary_case {
	tn_op op;
	double lo, hi;
	bool whole; /* for whole numbers too */
} unary_case;

static const unary_case unary_cases[] = {
	{TN_OP_RELU, -2, 2, true},
	{TN_OP_NEG, -9, 9, true},
	{TN_OP_ABS, -9, 9, true},
	{TN_OP_SIGN, -2, 2, true},
	{TN_OP_EXP, -20, 20, false},
	{TN_OP_LOG, 0.01, 50, false},
	{TN_OP_SQRT, 0, 50, false},
	{TN_OP_RECIPROCAL, 0.1, 9, false},
	{TN_OP_SIGMOID, -30, 30, false},
	{TN_OP_TANH, -12, 12, false},
	{TN_OP_ERF, -4, 4, false},
	{TN_OP_FLOOR, -5, 5, false},
	{TN_OP_CEIL, -5, 5, false},
	{TN_OP_ROUND, -5, 5, false},
	{TN_OP_SOFTPLUS, -20, 20, false},
	{TN_OP_SOFTSIGN, -9, 9, false},
	{TN_OP_ELU, -9, 9, false},
	{TN_OP_SELU, -9, 9, false},
	{TN_OP_CELU, -9, 9, false},
	{TN_OP_LEAKY_RELU, -9, 9, false},
	{TN_OP_THRESHOLDED_RELU, -3, 3, false},
	{TN_OP_HARD_SIGMOID, -9, 9, false},
	{TN_OP_HARD_SWISH, -9, 9, false},
	{TN_OP_GELU, -5, 5, false},
	{TN_OP_SHRINK, -2, 2, false},
	{TN_OP_CLIP_VALUES, -9, 9, true},
	{TN_OP_SIN, -9, 9, false},
	{TN_OP_COS, -9, 9, false},
	{TN_OP_TAN, -1.4, 1.4, false},
	{TN_OP_ASIN, -1, 1, false},
	{TN_OP_ACOS, -1, 1, false},
	{TN_OP_ATAN, -9, 9, false},
	{TN_OP_SINH, -5, 5, false},
	{TN_OP_COSH, -5, 5, false},
	{TN_OP_ASINH, -9, 9, false},
	{TN_OP_ACOSH, 1, 9, false},
	{TN_OP_ATANH, -0.9, 0.9, false},
	{TN_OP_IS_NAN, -1, 1, false},
	{TN_OP_IS_INF, -1, 1, false},
};

static bool is_step(tn_op op)
{
	return op == TN_OP_FLOOR || op == TN_OP_CEIL || op == TN_OP_ROUND || op == TN_OP_SIGN;
}

static void unaries(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(unary_cases) / sizeof(unary_cases[0]); i++) {
		const unary_case *c = &unary_cases[i];

		EACH_TYPE(t, c->whole ? TN_T_NUM : WIDE_REAL)
		{
			tn_attr clip[2] = {tn_attr_float(TN_ATTR_MIN, -1.5), tn_attr_float(TN_ATTR_MAX, 4.5)};
			tern_shape s = node_shape(&rnd, 0, 8, 5);
			bool is_clip = c->op == TN_OP_CLIP_VALUES,
			     is_unsigned = t == TERN_U8 || t == TERN_U64;
			node_bench b;

			if (t == TERN_F16 || t == TERN_BF16 || (is_unsigned && c->op == TN_OP_NEG))
				continue;
			if (is_clip &&
			    !(TN_T_REAL >> t & 1)) /* whole bounds for whole numbers: the twin has them */
				clip[0].u.f = -1, clip[1].u.f = 4;
			node_open(&b, &rnd);
			node_input(&b, t, &s, is_unsigned && c->lo < 0 ? 0 : c->lo, c->hi);
			assert_ok(node_add(&b, c->op, clip, is_clip ? 2 : 0));
			node_check(&b, is_step(c->op) ? 0 : tolerance_of(t));
		}
	}
}

static void gelu_by_tanh(void **state)
{
	tn_attr mode = tn_attr_int(TN_ATTR_MODE, 1);
	tern_shape s = {.rank = 1, .dims = {1000}};

	(void)state;
	EACH_TYPE(t, WIDE_REAL)
	{
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, t, &s, -6, 6);
		assert_ok(node_add(&b, TN_OP_GELU, &mode, 1));
		node_check(&b, tolerance_of(t));
	}
}

/* The vector functions at every scale: relative error, the ends of the range, what is not a number. */
static void vector_functions(void **state)
{
	double worst[4] = {0};

	(void)state;
	for (int64_t i = -1040000; i <= 890000; i++) {
		float x = (float)i * 1e-4f;
		double e = exp((double)x), t = tanh((double)x), s = 1 / (1 + exp(-(double)x));

		if (e > (double)FLT_MIN && e < (double)FLT_MAX)
			worst[0] = fmax(worst[0], fabs((double)tn_expf(x) - e) / e);
		worst[3] = fmax(worst[3], fabs((double)tn_erff(x) - erf((double)x)) /
						  fmax(fabs(erf((double)x)), 1e-30));
		worst[1] = fmax(worst[1], fabs((double)tn_tanhf(x) - t) / fmax(fabs(t), 1e-30));
		if (s > (double)FLT_MIN)
			worst[2] = fmax(worst[2], fabs((double)tn_sigmoidf(x) - s) / s);
	}
	for (uint32_t i = 0; i < 4; i++) {
		if (!(worst[i] < 4e-7))
			fail_msg("function %u: relative error %g", i, worst[i]);
	}
	assert_true(tn_expf(1000.0f) == INFINITY && tn_expf(INFINITY) == INFINITY && tn_expf(0.0f) == 1.0f);
	assert_true(tn_expf(-1000.0f) == 0.0f && tn_expf(-INFINITY) == 0.0f && isnan(tn_expf(NAN)));
	assert_true(tn_expf(-100.0f) > 0.0f); /* denormal */
	assert_true(tn_tanhf(INFINITY) == 1.0f && tn_tanhf(-INFINITY) == -1.0f && isnan(tn_tanhf(NAN)));
	assert_true(tn_erff(INFINITY) == 1.0f && tn_erff(-INFINITY) == -1.0f && isnan(tn_erff(NAN)));
	assert_true(tn_sigmoidf(INFINITY) == 1.0f && tn_sigmoidf(-INFINITY) == 0.0f &&
		    isnan(tn_sigmoidf(NAN)));
}

static void tests_of_floats(void **state)
{
	static const float x[6] = {NAN, INFINITY, -INFINITY, 0, -1, FLT_MAX};
	static const uint8_t nan[6] = {1, 0, 0, 0, 0, 0};
	static const uint8_t inf[4][6] = {{0}, {0, 1, 0}, {0, 0, 1}, {0, 1, 1}};
	tern_shape s = {.rank = 1, .dims = {6}};

	(void)state;
	for (int64_t detect = 0; detect < 5; detect++) {
		tn_attr a = tn_attr_int(TN_ATTR_DETECT, detect);
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, 0, 1);
		memcpy(b.data[0], x, sizeof(x));
		assert_ok(node_add(&b, detect < 4 ? TN_OP_IS_INF : TN_OP_IS_NAN, &a, detect < 4));
		assert_ok(node_run(&b));
		assert_memory_equal(b.out[0], detect < 4 ? inf[detect] : nan, 6);
		node_close(&b);
	}
}

/* ---- binary ---- */

/* A shape that broadcasts to s: dims made 1, leading dims dropped. */
static tern_shape narrowed(const tern_shape *s)
{
	uint32_t drop = node_below(&rnd, s->rank + 1) / 2;
	tern_shape r = {.rank = s->rank - drop};

	for (uint32_t d = 0; d < r.rank; d++)
		r.dims[d] = node_below(&rnd, 3) ? s->dims[drop + d] : 1;
	return r;
}

static void binaries(void **state)
{
	static const struct {
		tn_op op;
		uint32_t types;
		double lo, hi; /* of the second operand */
	} cases[] = {
		{TN_OP_ADD, TN_T_NUM, -9, 9},
		{TN_OP_SUB, TN_T_NUM, -9, 9},
		{TN_OP_MUL, TN_T_NUM, -9, 9},
		{TN_OP_DIV, TN_T_NUM, 1, 9},
		{TN_OP_MINIMUM, TN_T_NUM, -9, 9},
		{TN_OP_MAXIMUM, TN_T_NUM, -9, 9},
		{TN_OP_MOD, TN_T_WHOLE, 1, 9},
		{TN_OP_MOD, TN_T_WHOLE, -9, 0},
		{TN_OP_POW, WIDE_REAL, -2, 2},
		{TN_OP_POW, TN_T(I32) | TN_T(I64), 0, 5},
		{TN_OP_PRELU, WIDE_REAL | TN_T(I32), -2, 2},
		{TN_OP_AND, TN_T(BOOL), 0, 2},
		{TN_OP_OR, TN_T(BOOL), 0, 2},
		{TN_OP_XOR, TN_T(BOOL), 0, 2},
		{TN_OP_BIT_SHIFT, TN_T(U64), 0, 9},
		{TN_OP_EQUAL, TN_T_ANY, -2, 2},
		{TN_OP_LESS, TN_T_NUM, -3, 3},
		{TN_OP_LESS_OR_EQUAL, TN_T_NUM, -3, 3},
		{TN_OP_GREATER, TN_T_NUM, -3, 3},
		{TN_OP_GREATER_OR_EQUAL, TN_T_NUM, -3, 3},
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		EACH_TYPE(t, cases[i].types)
		{
			bool is_unsigned = t == TERN_U8 || t == TERN_U64 || t == TERN_BOOL;

			if (t == TERN_F16 || t == TERN_BF16 || (is_unsigned && cases[i].hi == 0))
				continue;
			for (uint32_t round = 0; round < 12; round++) {
				tern_shape s = node_shape(&rnd, 0, 8, 5),
					   p = round && cases[i].op != TN_OP_PRELU ? narrowed(&s) : s;
				tern_shape q = round == 1 ? p : narrowed(&s);
				double lo = is_unsigned && cases[i].lo < 0 ? 0 : cases[i].lo;
				node_bench b;

				node_open(&b, &rnd);
				/* a - b of unsigned numbers stays above 0, a^b is defined */
				node_input(&b, t, &p,
					   is_unsigned                ? t == TERN_BOOL ? 0 : 10
					   : cases[i].op == TN_OP_POW ? 0.1
								      : -5,
					   t == TERN_BOOL ? 2 : 12);
				node_input(&b, t, &q, lo, t == TERN_BOOL ? 2 : cases[i].hi);
				assert_ok(node_add(&b, cases[i].op, NULL, 0));
				node_check(&b, tolerance_of(t));
			}
		}
	}
}

static void mods_of_floats(void **state)
{
	tern_shape s = {.rank = 1, .dims = {200}};

	(void)state;
	for (int64_t c = 0; c < 2; c++) {
		tn_attr a = tn_attr_int(TN_ATTR_FMOD, c);
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F64, &s, -9, 9);
		node_input(&b, TERN_F64, &s, 1, 5);
		assert_ok(node_add(&b, TN_OP_MOD, &a, 1));
		node_check(&b, 1e-12);
	}
}

/* 16-bit floats are computed in f32 and rounded once. */
static void halves(void **state)
{
	static const tn_op ops[] = {TN_OP_ADD, TN_OP_MUL, TN_OP_MAXIMUM, TN_OP_DIV};
	tern_shape s = {.rank = 2, .dims = {3, 300}}, row = {.rank = 1, .dims = {300}};

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		tern_dtype t = i % 2 ? TERN_F16 : TERN_BF16;
		const uint16_t *x, *y, *z;
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, t, &s, -3, 3);
		node_input(&b, t, &row, 1, 3);
		assert_ok(node_add(&b, ops[i / 2], NULL, 0));
		assert_ok(node_run(&b));
		x = b.data[0];
		y = b.data[1];
		z = b.out[0];
		for (uint32_t k = 0; k < 900; k++) {
			float p = (float)node_get(t, x, k), q = (float)node_get(t, y, k % 300);
			float want = ops[i / 2] == TN_OP_ADD   ? p + q
				     : ops[i / 2] == TN_OP_MUL ? p * q
				     : ops[i / 2] == TN_OP_DIV ? p / q
				     : p > q                   ? p
							       : q;

			assert_int_equal(z[k],
					 t == TERN_F16 ? tn_f16_from_f32(want) : tn_bf16_from_f32(want));
		}
		node_close(&b);
	}
}

static void whole_numbers_at_their_ends(void **state)
{
	tern_shape s = {.rank = 1, .dims = {2}};
	node_bench b;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		static const tn_op ops[4] = {TN_OP_DIV, TN_OP_MOD, TN_OP_ADD, TN_OP_MUL};
		static const int32_t want[4] = {INT32_MIN, 0, INT32_MAX, INT32_MIN};

		node_open(&b, &rnd);
		node_input(&b, TERN_I32, &s, 0, 1);
		node_input(&b, TERN_I32, &s, 0, 1);
		for (uint32_t k = 0; k < 2; k++) {
			((int32_t *)b.data[0])[k] = INT32_MIN;
			((int32_t *)b.data[1])[k] = -1;
		}
		assert_ok(node_add(&b, ops[i], NULL, 0));
		assert_ok(node_run(&b));
		assert_int_equal(((int32_t *)b.out[0])[1], want[i]);
		((int32_t *)b.data[1])[1] = 0;
		if (i < 2)
			assert_status(node_run(&b), TERN_E_INVALID);
		node_close(&b);
	}
}

/* The result has the base's type. */
static void powers_of_two_types(void **state)
{
	tern_shape s = {.rank = 1, .dims = {50}};

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		tern_dtype base = i % 2 ? TERN_F32 : TERN_I64, other = i / 2 ? TERN_I32 : TERN_F64;
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, base, &s, 1, 6);
		node_input(&b, other, &s, 0, 4);
		for (uint32_t k = 0; k < 50; k++) /* whole exponents: the twin does not truncate */
			node_put(other, b.data[1], k, k % 4);
		assert_ok(node_add(&b, TN_OP_POW, NULL, 0));
		node_check(&b, 1e-6);
	}
}

static void wheres(void **state)
{
	(void)state;
	EACH_TYPE(t, TN_T_ANY)
	{
		for (uint32_t round = 0; round < 10; round++) {
			tern_shape s = node_shape(&rnd, 0, 8, 5), c = narrowed(&s), x = narrowed(&s);
			tern_shape y = round % 2 ? narrowed(&s) : s;
			node_bench b;

			if (t == TERN_F16 || t == TERN_BF16)
				continue;
			node_open(&b, &rnd);
			node_input(&b, TERN_BOOL, &c, 0, 2);
			node_input(&b, t, &x, 0, t == TERN_BOOL ? 2 : 99);
			node_input(&b, t, &y, 0, t == TERN_BOOL ? 2 : 99);
			assert_ok(node_add(&b, TN_OP_WHERE, NULL, 0));
			node_check(&b, 0);
		}
	}
}

static void shapes_that_do_not_broadcast_are_refused(void **state)
{
	tern_shape s = {.rank = 2, .dims = {2, 3}}, q = {.rank = 1, .dims = {2}};
	node_bench b;

	(void)state;
	node_open(&b, &rnd);
	node_input(&b, TERN_F32, &s, 0, 1);
	node_input(&b, TERN_F32, &q, 0, 1);
	assert_status(node_add(&b, TN_OP_ADD, NULL, 0), TERN_E_SHAPE);
	assert_non_null(strstr(tern_detail(), "broadcast"));
	node_close(&b);
}

/* ---- reductions ---- */

static double reduce_tolerance(tern_dtype t)
{
	return t == TERN_F32 ? 2e-5 : tolerance_of(t);
}

static void reductions(void **state)
{
	(void)state;
	for (tn_op op = TN_OP_REDUCE_SUM; op <= TN_OP_REDUCE_SUM_SQUARE; op++) {
		bool logs = op == TN_OP_REDUCE_LOG_SUM || op == TN_OP_REDUCE_LOG_SUM_EXP;

		EACH_TYPE(t, logs ? WIDE_REAL : WIDE_REAL | TN_T_WHOLE)
		{
			for (uint32_t round = 0; round < 10; round++) {
				tern_shape s = round == 9 ? (tern_shape){.rank = 2, .dims = {3, 200}}
							  : node_shape(&rnd, 0, 8, 5);
				tn_attr attrs[2] = {tn_attr_int(TN_ATTR_KEEP_DIMS, round % 2),
						    {.key = TN_ATTR_AXES}};
				bool is_small = t == TERN_I8 || t == TERN_U8;
				node_bench b;

				if (node_elements(&s) == 0 && !(TN_T_REAL >> t & 1))
					continue; /* of nothing, whole numbers have no maximum to compare */
				for (uint32_t d = 0; d < s.rank; d++) {
					if (node_below(&rnd, 2) && attrs[1].u.ints.n < (is_small ? 1 : 8))
						attrs[1].u.ints.v[attrs[1].u.ints.n++] =
							(int64_t)d - (round % 3 ? 0 : s.rank);
				}
				if (is_small &&
				    (attrs[1].u.ints.n == 0 || op == TN_OP_REDUCE_PROD || round == 9))
					continue; /* would wrap */
				node_open(&b, &rnd);
				node_input(&b, t, &s, logs || t == TERN_U8 || t == TERN_U64 ? 0.5 : -2, 2);
				assert_ok(node_add(&b, op, attrs, 2));
				node_check(&b, reduce_tolerance(t));
			}
		}
	}
}

static void sums_undo_broadcasts(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 60; round++) {
		tern_shape s = node_shape(&rnd, 0, 8, 6), small = narrowed(&s);
		tn_attr shape = {.key = TN_ATTR_SHAPE, .u.ints.n = small.rank};
		node_bench b;

		for (uint32_t d = 0; d < small.rank; d++)
			shape.u.ints.v[d] = (int64_t)small.dims[d];
		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, -1, 1);
		assert_ok(node_add(&b, TN_OP_SUM_TO, &shape, 1));
		node_check(&b, 2e-5);
	}
}

static void log_of_large_exponents(void **state)
{
	tern_shape s = {.rank = 2, .dims = {2, 3}};
	tn_attr axes = ints(TN_ATTR_AXES, (int64_t[]){1}, 1);
	node_bench b;
	float *x, *y;

	(void)state;
	node_open(&b, &rnd);
	node_input(&b, TERN_F32, &s, 0, 1);
	x = b.data[0];
	for (uint32_t i = 0; i < 3; i++) {
		x[i] = 1000.0f;
		x[3 + i] = -INFINITY;
	}
	assert_ok(node_add(&b, TN_OP_REDUCE_LOG_SUM_EXP, &axes, 1));
	assert_ok(node_run(&b));
	y = b.out[0];
	assert_true(fabsf(y[0] - 1001.0986f) < 1e-3f);
	assert_true(y[1] == -INFINITY);
	node_close(&b);
}

/* ---- along an axis ---- */

static void axes(void **state)
{
	static const struct {
		tn_op op;
		uint32_t n_in, types;
		tn_attr_key flag[2];
	} cases[] = {
		{TN_OP_SOFTMAX, 1, WIDE_REAL, {0}},
		{TN_OP_LOG_SOFTMAX, 1, WIDE_REAL, {0}},
		{TN_OP_HARDMAX, 1, WIDE_REAL, {0}},
		{TN_OP_SOFTMAX_GRAD, 2, TN_T(F32), {0}},
		{TN_OP_LOG_SOFTMAX_GRAD, 2, TN_T(F32), {0}},
		{TN_OP_CUM_SUM, 1, WIDE_REAL | TN_T(I32) | TN_T(I64), {TN_ATTR_EXCLUSIVE, TN_ATTR_REVERSE}},
		{TN_OP_ARG_MAX, 1, WIDE_REAL | TN_T_WHOLE, {TN_ATTR_LAST, TN_ATTR_KEEP_DIMS}},
		{TN_OP_ARG_MIN, 1, WIDE_REAL | TN_T_WHOLE, {TN_ATTR_LAST, TN_ATTR_KEEP_DIMS}},
		{TN_OP_TOP_K, 1, WIDE_REAL | TN_T_WHOLE, {TN_ATTR_LARGEST}},
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		EACH_TYPE(t, cases[i].types)
		{
			for (uint32_t round = 0; round < 16; round++) {
				tern_shape s = node_shape(&rnd, 1, round == 0 ? 8 : 4, round < 8 ? 5 : 20);
				uint32_t axis = node_below(&rnd, s.rank);
				tn_attr attrs[4] = {
					tn_attr_int(TN_ATTR_AXIS, (int64_t)axis - (round % 3 ? 0 : s.rank))};
				uint32_t n = 1;
				node_bench b;

				if (s.dims[axis] == 0 || node_elements(&s) > 20000)
					continue;
				for (uint32_t f = 0; f < 2 && cases[i].flag[f]; f++)
					attrs[n++] = tn_attr_int(cases[i].flag[f], round >> f & 1);
				if (cases[i].op == TN_OP_TOP_K)
					attrs[n++] = tn_attr_int(
						TN_ATTR_K,
						(int64_t)node_below(&rnd, (uint32_t)s.dims[axis] + 1));
				node_open(&b, &rnd);
				for (uint32_t k = 0; k < cases[i].n_in; k++)
					node_input(&b, t, &s, t == TERN_U8 || t == TERN_U64 ? 0 : -4, 4);
				assert_ok(node_add(&b, cases[i].op, attrs, n));
				node_check(&b, reduce_tolerance(t));
			}
		}
	}
}

static void softmax_does_not_overflow(void **state)
{
	tern_shape s = {.rank = 3, .dims = {2, 4, 3}};

	(void)state;
	for (int64_t axis = 0; axis < 3; axis++) {
		tn_attr a = tn_attr_int(TN_ATTR_AXIS, axis);
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F32, &s, -2000, 2000);
		assert_ok(node_add(&b, TN_OP_SOFTMAX, &a, 1));
		node_check(&b, 1e-5);
	}
}

/* ---- Cast, Dropout ---- */

static double rounded(tern_dtype t, double x)
{
	uint8_t element[8];

	node_put(t, element, 0, x);
	return node_get(t, element, 0);
}

static void casts(void **state)
{
	tern_shape s = {.rank = 1, .dims = {1300}};

	(void)state;
	EACH_TYPE(from, TN_T_ANY)
	{
		EACH_TYPE(to, TN_T_ANY)
		{
			tn_attr a = tn_attr_int(TN_ATTR_TO, to);
			bool real = TN_T_REAL >> to & 1, positive = to == TERN_U8 || to == TERN_U64;
			node_bench b;

			node_open(&b, &rnd);
			node_input(&b, from, &s, (TN_T_REAL | TN_T(I8)) >> from & 1 && !positive ? -100 : 0,
				   from == TERN_BOOL ? 2 : 100);
			assert_ok(node_add(&b, TN_OP_CAST, &a, 1));
			assert_ok(node_run(&b));
			for (uint64_t i = 0; i < 1300; i++) {
				double x = node_get(from, b.data[0], i);
				double want = to == TERN_BOOL ? x != 0 : real ? rounded(to, x) : trunc(x);

				if (node_get(to, b.out[0], i) != want)
					fail_msg("%s to %s: %g gives %g", tern_dtype_name(from),
						 tern_dtype_name(to), x, node_get(to, b.out[0], i));
			}
			node_close(&b);
		}
	}
}

static void casts_at_the_ends(void **state)
{
	static const double x[8] = {1e30, -1e30, NAN, INFINITY, -INFINITY, 3e9, -0.9, 255.9};
	static const int32_t want_i32[8] = {INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MIN, INT32_MAX, 0, 255};
	static const uint8_t want_u8[8] = {255, 0, 0, 255, 0, 255, 0, 255};
	tern_shape s = {.rank = 1, .dims = {8}};

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		tn_attr a = tn_attr_int(TN_ATTR_TO, i ? TERN_U8 : TERN_I32);
		node_bench b;

		node_open(&b, &rnd);
		node_input(&b, TERN_F64, &s, 0, 1);
		memcpy(b.data[0], x, sizeof(x));
		assert_ok(node_add(&b, TN_OP_CAST, &a, 1));
		assert_ok(node_run(&b));
		assert_memory_equal(b.out[0], i ? (const void *)want_u8 : want_i32, i ? 8 : 32);
		node_close(&b);
	}
}

static void dropout_keeps_its_share(void **state)
{
	tern_shape s = {.rank = 1, .dims = {100000}};
	tn_attr attrs[2] = {tn_attr_float(TN_ATTR_RATIO, 0.3), tn_attr_int(TN_ATTR_SEED, 5)};
	uint64_t kept = 0;
	uint8_t *first = malloc(100000);
	node_bench b;

	(void)state;
	node_open(&b, &rnd);
	node_input(&b, TERN_F32, &s, 1, 2);
	assert_ok(node_add(&b, TN_OP_DROPOUT, attrs, 2));
	assert_ok(node_run(&b));
	for (uint32_t i = 0; i < 100000; i++) {
		uint8_t keep = ((uint8_t *)b.out[1])[i];
		float x = ((float *)b.data[0])[i], y = ((float *)b.out[0])[i];

		kept += keep;
		assert_true(keep ? fabsf(y - x / 0.7f) < 1e-5f : y == 0.0f);
	}
	assert_true(kept > 69000 && kept < 71000);
	memcpy(first, b.out[1], 100000);
	assert_ok(node_run(&b));
	assert_memory_equal(first, b.out[1], 100000);
	node_close(&b);
	free(first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unaries),
		cmocka_unit_test(gelu_by_tanh),
		cmocka_unit_test(vector_functions),
		cmocka_unit_test(tests_of_floats),
		cmocka_unit_test(binaries),
		cmocka_unit_test(mods_of_floats),
		cmocka_unit_test(halves),
		cmocka_unit_test(whole_numbers_at_their_ends),
		cmocka_unit_test(powers_of_two_types),
		cmocka_unit_test(wheres),
		cmocka_unit_test(shapes_that_do_not_broadcast_are_refused),
		cmocka_unit_test(reductions),
		cmocka_unit_test(sums_undo_broadcasts),
		cmocka_unit_test(log_of_large_exponents),
		cmocka_unit_test(axes),
		cmocka_unit_test(softmax_does_not_overflow),
		cmocka_unit_test(casts),
		cmocka_unit_test(casts_at_the_ends),
		cmocka_unit_test(dropout_keeps_its_share),
	};

	return RUN(tests);
}
