/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One element to one. Each op is a loop per type; f16 and bf16 go through f32 by blocks. Exp, Tanh, Sigmoid,
 * Erf and what is made of them use the vector functions of kern_math.h in f32, the rest the C library.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include <math.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/half.h"
#include "graph/kern_math.h"
#include "graph/kern_walk.h"

/* The attributes of the op, with its defaults. */
typedef struct unary_args {
	double a, b;
} unary_args;

typedef void (*unary_fn)(void *out, const void *in, uint64_t n, const unary_args *args);

typedef struct unary_kern {
	tn_kern base;
	uint64_t n;
	unary_fn fn;
	unary_args args;
	tern_dtype in, out;
} unary_kern;

#define LOOP(name, T, R, expr)                                                          \
	static void name(void *out, const void *in, uint64_t n, const unary_args *args) \
	{                                                                               \
		const T *from = in;                                                     \
		R *to = out;                                                            \
		T a = (T)args->a, b = (T)args->b;                                       \
                                                                                        \
		(void)a;                                                                \
		(void)b;                                                                \
		TN_IVDEP                                                                \
		for (uint64_t i = 0; i < n; i++) {                                      \
			T x = from[i];                                                  \
			to[i] = (R)(expr);                                              \
		}                                                                       \
	}

/* The same in f32 and f64; M(f) is the function of the type. */
#define REAL(name, expr32, expr64)             \
	LOOP(name##_f32, float, float, expr32) \
	LOOP(name##_f64, double, double, expr64)

REAL(relu, x > 0.0f ? x : 0.0f, x > 0.0 ? x : 0.0)
REAL(neg, -x, -x)
REAL(abs, fabsf(x), fabs(x))
REAL(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x, x > 0 ? 1.0 : x < 0 ? -1.0 : x)
REAL(exp, tn_expf(x), exp(x))
REAL(log, logf(x), log(x))
REAL(sqrt, sqrtf(x), sqrt(x))
REAL(reciprocal, 1.0f / x, 1.0 / x)
REAL(sigmoid, tn_sigmoidf(x), x < 0 ? exp(x) / (1.0 + exp(x)) : 1.0 / (1.0 + exp(-x)))
REAL(tanh, tn_tanhf(x), tanh(x))
REAL(erf, tn_erff(x), erf(x))
REAL(floor, floorf(x), floor(x))
REAL(ceil, ceilf(x), ceil(x))
REAL(round, rintf(x), rint(x)) /* halves to even, in the mode that threads start with */
REAL(softplus, (x > 0 ? x : 0.0f) + log1pf(tn_expf(-fabsf(x))), (x > 0 ? x : 0.0) + log1p(exp(-fabs(x))))
REAL(softsign, x / (1.0f + fabsf(x)), x / (1.0 + fabs(x)))
REAL(elu, x < 0 ? a * expm1f(x) : x, x < 0 ? a * expm1(x) : x)
REAL(selu, x > 0 ? b * x : b * (a * expm1f(x)), x > 0 ? b * x : b * (a * expm1(x)))
REAL(celu, x < 0 ? a * expm1f(x / a) : x, x < 0 ? a * expm1(x / a) : x)
REAL(leaky_relu, x < 0 ? a * x : x, x < 0 ? a * x : x)
REAL(thresholded_relu, x > a ? x : 0.0f, x > a ? x : 0.0)
REAL(gelu, 0.5f * x * (1.0f + tn_erff(x * 0.707106781f)), 0.5 * x * (1.0 + erf(x * 0.70710678118654752)))
/* clang-format off */
REAL(gelu_tanh, 0.5f * x * (1.0f + tn_tanhf(0.797884561f * (x + 0.044715f * x * x * x))),
	0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))))
#define UNIT(x) ((x) < 0 ? 0 : (x) > 1 ? 1 : (x))
REAL(hard_sigmoid, UNIT(a * x + b), UNIT(a * x + b))
REAL(hard_swish, x * UNIT(x / 6.0f + 0.5f), x * UNIT(x / 6.0 + 0.5))
REAL(shrink, x < -a ? x + b : x > a ? x - b : 0.0f, x < -a ? x + b : x > a ? x - b : 0.0)
REAL(clip, x < a ? a : x > b ? b : x, x < a ? a : x > b ? b : x)
/* clang-format on */
REAL(sin, sinf(x), sin(x))
REAL(cos, cosf(x), cos(x))
REAL(tan, tanf(x), tan(x))
REAL(asin, asinf(x), asin(x))
REAL(acos, acosf(x), acos(x))
REAL(atan, atanf(x), atan(x))
REAL(sinh, sinhf(x), sinh(x))
REAL(cosh, coshf(x), cosh(x))
REAL(asinh, asinhf(x), asinh(x))
REAL(acosh, acoshf(x), acosh(x))
REAL(atanh, atanhf(x), atanh(x))

/* detect: 1 positive, 2 negative */
#define INF_TEST(x) (((int)a & 1 && (x) > 0) || ((int)a & 2 && (x) < 0)) && isinf(x)
LOOP(is_nan_f32, float, uint8_t, x != x)
LOOP(is_nan_f64, double, uint8_t, x != x)
LOOP(is_inf_f32, float, uint8_t, INF_TEST(x))
LOOP(is_inf_f64, double, uint8_t, INF_TEST(x))
LOOP(not_bool, uint8_t, uint8_t, x == 0)

/* Whole numbers wrap; U is the unsigned type. */
#define WHOLE(s, T, U)                                                            \
	LOOP(relu_##s, T, T, x < 1 ? 0 : x)                                       \
	LOOP(neg_##s, T, T, (U)0 - (U)x)                                          \
	LOOP(abs_##s, T, T, x < 1 ? (T)((U)0 - (U)x) : x)                         \
	LOOP(sign_##s, T, T, (x > 0) - (x < 1 && x != 0))                         \
	LOOP(shrink_##s, T, T, SATURATED(T, shrink_whole((double)x, args), (T)0)) \
	CLIP(clip_##s, T)

static inline double shrink_whole(double x, const unary_args *args)
{
	return x < -args->a ? x + args->b : x > args->a ? x - args->b : 0.0;
}

#define MOST(T)  ((T)-1 < 1 ? (T) ~((uint64_t)1 << (8 * sizeof(T) - 1)) : (T)-1)
#define LEAST(T) ((T)-1 < 1 ? (T)((uint64_t)1 << (8 * sizeof(T) - 1)) : (T)0)
/* A double as a whole number; beyond the range, its ends. What is not a number is `none`. */
#define SATURATED(T, v, none) \
	((v) <= (double)LEAST(T) ? LEAST(T) : (v) >= (double)MOST(T) ? MOST(T) : (v) == (v) ? (T)(v) : (none))

/* Bounds as doubles are exact to 2^53. */
#define CLIP(name, T)                                                                       \
	static void name(void *out, const void *in, uint64_t n, const unary_args *args)     \
	{                                                                                   \
		const T *from = in;                                                         \
		double a = ceil(args->a), b = floor(args->b);                               \
		T *to = out, lo = SATURATED(T, a, LEAST(T)), hi = SATURATED(T, b, MOST(T)); \
                                                                                            \
		TN_IVDEP                                                                    \
		for (uint64_t i = 0; i < n; i++) {                                          \
			T x = from[i] < lo ? lo : from[i];                                  \
			to[i] = x > hi ? hi : x;                                            \
		}                                                                           \
	}
WHOLE(i8, int8_t, uint8_t)
WHOLE(u8, uint8_t, uint8_t)
WHOLE(i32, int32_t, uint32_t)
WHOLE(i64, int64_t, uint64_t)
WHOLE(u64, uint64_t, uint64_t)

/* ---- which loop ---- */

typedef struct unary_row {
	unary_fn f32, f64, i8, u8, i32, i64, u64;
} unary_row;

#define REAL_ROW(op, stem) [TN_OP_##op] = {.f32 = stem##_f32, .f64 = stem##_f64}
#define WHOLE_ROW(op, stem) \
	[TN_OP_##op] = {stem##_f32, stem##_f64, stem##_i8, stem##_u8, stem##_i32, stem##_i64, stem##_u64}

static const unary_row rows[TN_OP_COUNT] = {
	WHOLE_ROW(RELU, relu),
	WHOLE_ROW(NEG, neg),
	WHOLE_ROW(ABS, abs),
	WHOLE_ROW(SIGN, sign),
	WHOLE_ROW(SHRINK, shrink),
	WHOLE_ROW(CLIP_VALUES, clip),
	REAL_ROW(EXP, exp),
	REAL_ROW(LOG, log),
	REAL_ROW(SQRT, sqrt),
	REAL_ROW(RECIPROCAL, reciprocal),
	REAL_ROW(SIGMOID, sigmoid),
	REAL_ROW(TANH, tanh),
	REAL_ROW(ERF, erf),
	REAL_ROW(FLOOR, floor),
	REAL_ROW(CEIL, ceil),
	REAL_ROW(ROUND, round),
	REAL_ROW(SOFTPLUS, softplus),
	REAL_ROW(SOFTSIGN, softsign),
	REAL_ROW(ELU, elu),
	REAL_ROW(SELU, selu),
	REAL_ROW(CELU, celu),
	REAL_ROW(LEAKY_RELU, leaky_relu),
	REAL_ROW(THRESHOLDED_RELU, thresholded_relu),
	REAL_ROW(HARD_SIGMOID, hard_sigmoid),
	REAL_ROW(HARD_SWISH, hard_swish),
	REAL_ROW(GELU, gelu),
	REAL_ROW(SIN, sin),
	REAL_ROW(COS, cos),
	REAL_ROW(TAN, tan),
	REAL_ROW(ASIN, asin),
	REAL_ROW(ACOS, acos),
	REAL_ROW(ATAN, atan),
	REAL_ROW(SINH, sinh),
	REAL_ROW(COSH, cosh),
	REAL_ROW(ASINH, asinh),
	REAL_ROW(ACOSH, acosh),
	REAL_ROW(ATANH, atanh),
	REAL_ROW(IS_NAN, is_nan),
	REAL_ROW(IS_INF, is_inf),
};

static unary_fn loop_of(const tn_node *node, tern_dtype t)
{
	const unary_row *r = &rows[node->op];

	if (node->op == TN_OP_NOT)
		return not_bool;
	if (node->op == TN_OP_GELU && tn_node_int(node, TN_ATTR_MODE, 0) != 0)
		return t == TERN_F64 ? gelu_tanh_f64 : gelu_tanh_f32;
	switch (t) {
	case TERN_F32:
	case TERN_F16:
	case TERN_BF16:
		return r->f32;
	case TERN_F64:
		return r->f64;
	case TERN_I8:
		return r->i8;
	case TERN_U8:
		return r->u8;
	case TERN_I32:
		return r->i32;
	case TERN_I64:
		return r->i64;
	case TERN_U64:
		return r->u64;
	default:
		return NULL;
	}
}

/* What ONNX says an attribute is when it is not given. */
static unary_args args_of(const tn_node *node)
{
	static const struct {
		tn_op op;
		tn_attr_key a, b;
		double a_else, b_else;
	} table[] = {
		{TN_OP_ELU, TN_ATTR_ALPHA, TN_ATTR_ALPHA, 1.0, 1.0},
		{TN_OP_SELU, TN_ATTR_ALPHA, TN_ATTR_GAMMA, 1.67326319217681884765625,
		 1.05070102214813232421875},
		{TN_OP_CELU, TN_ATTR_ALPHA, TN_ATTR_ALPHA, 1.0, 1.0},
		{TN_OP_LEAKY_RELU, TN_ATTR_ALPHA, TN_ATTR_ALPHA, 0.01, 0.01},
		{TN_OP_THRESHOLDED_RELU, TN_ATTR_ALPHA, TN_ATTR_ALPHA, 1.0, 1.0},
		{TN_OP_HARD_SIGMOID, TN_ATTR_ALPHA, TN_ATTR_BETA, 0.2, 0.5},
		{TN_OP_SHRINK, TN_ATTR_ALPHA, TN_ATTR_BIAS, 0.5, 0.0},
		{TN_OP_CLIP_VALUES, TN_ATTR_MIN, TN_ATTR_MAX, -INFINITY, INFINITY},
	};

	for (uint32_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (table[i].op == node->op)
			return (unary_args){tn_node_float(node, table[i].a, table[i].a_else),
					    tn_node_float(node, table[i].b, table[i].b_else)};
	}
	return (unary_args){(double)tn_node_int(node, TN_ATTR_DETECT, 3), 0};
}

/* ---- running ---- */

static tern_status run_unary(tn_kern *kern, const tn_kern_io *io)
{
	const unary_kern *k = (const unary_kern *)kern;

	k->fn(io->out[0], io->in[0], k->n, &k->args);
	return TERN_OK;
}

#define BLOCK 256u

static tern_status run_half(tn_kern *kern, const tn_kern_io *io)
{
	const unary_kern *k = (const unary_kern *)kern;
	const uint16_t *from = io->in[0];
	float x[BLOCK], y[BLOCK];
	bool f16 = k->in == TERN_F16;

	for (uint64_t at = 0; at < k->n; at += BLOCK) {
		uint64_t m = k->n - at < BLOCK ? k->n - at : BLOCK;

		for (uint64_t i = 0; i < m; i++)
			x[i] = f16 ? tn_f16_to_f32(from[at + i]) : tn_bf16_to_f32(from[at + i]);
		if (k->out == TERN_BOOL) {
			k->fn((uint8_t *)io->out[0] + at, x, m, &k->args);
			continue;
		}
		k->fn(y, x, m, &k->args);
		for (uint64_t i = 0; i < m; i++)
			((uint16_t *)io->out[0])[at + i] =
				f16 ? tn_f16_from_f32(y[i]) : tn_bf16_from_f32(y[i]);
	}
	return TERN_OK;
}

static void unary_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_unary_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	tern_dtype t = desc->in[0].dtype;
	unary_fn fn = loop_of(desc->node, t);
	unary_kern *k;

	(void)ctx;
	if (!fn)
		return tn_kern_unsupported(desc);
	k = calloc(1, sizeof(*k));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = t == TERN_F16 || t == TERN_BF16 ? run_half : run_unary,
			    .destroy = unary_destroy};
	k->fn = fn;
	k->n = tn_operand_elements(&desc->in[0]);
	k->args = args_of(desc->node);
	k->in = t;
	k->out = desc->out[0].dtype;
	*made = &k->base;
	return TERN_OK;
}
