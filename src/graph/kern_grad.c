/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that only gradients need: the derivative of each unary op times dY, from the op's input or output,
 * whichever makes it short; and the product of all rows of two tensors.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/grad_test.c (finite differences of the twin, and the executor against it).
 */
#include <math.h>
#include <stdlib.h>

#include "base/fail.h"
#include "graph/kern.h"

/* ---- unary ---- */

typedef struct unary_grad {
	tn_kern base;
	uint64_t n;
	float a, b; /* what the op's attributes are */
} unary_grad;

static float sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

static float gelu_erf(float x)
{
	return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
}

static float gelu_tanh(float x)
{
	float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));

	return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

/* X(OP, derivative in v (the op's input or output), a and b) */
/* clang-format off */
#define UNARY_MAP(X) \
	X(ABS, v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f) \
	X(EXP, v) \
	X(LOG, 1.0f / v) \
	X(SQRT, 0.5f / v) \
	X(RECIPROCAL, -(v * v)) \
	X(SIGMOID, v * (1.0f - v)) \
	X(TANH, 1.0f - v * v) \
	X(ERF, 1.1283792f * expf(-(v * v))) \
	X(SOFTPLUS, sigmoid(v)) \
	X(SOFTSIGN, 1.0f / ((1.0f + fabsf(v)) * (1.0f + fabsf(v)))) \
	X(ELU, v > 0.0f ? 1.0f : a * expf(v)) \
	X(SELU, v > 0.0f ? b : b * a * expf(v)) \
	X(CELU, v > 0.0f ? 1.0f : expf(v / a)) \
	X(LEAKY_RELU, v < 0.0f ? a : 1.0f) \
	X(THRESHOLDED_RELU, v > a ? 1.0f : 0.0f) \
	X(HARD_SIGMOID, a * v + b > 0.0f && a * v + b < 1.0f ? a : 0.0f) \
	X(HARD_SWISH, v <= -3.0f ? 0.0f : v >= 3.0f ? 1.0f : v * 0.33333334f + 0.5f) \
	X(GELU, a != 0.0f ? gelu_tanh(v) : gelu_erf(v)) \
	X(SHRINK, v < -a || v > a ? 1.0f : 0.0f) \
	X(CLIP_VALUES, v >= a && v <= b ? 1.0f : 0.0f) \
	X(SIN, cosf(v)) \
	X(COS, -sinf(v)) \
	X(TAN, 1.0f + v * v) \
	X(ASIN, 1.0f / sqrtf(1.0f - v * v)) \
	X(ACOS, -1.0f / sqrtf(1.0f - v * v)) \
	X(ATAN, 1.0f / (1.0f + v * v)) \
	X(SINH, coshf(v)) \
	X(COSH, sinhf(v)) \
	X(ASINH, 1.0f / sqrtf(v * v + 1.0f)) \
	X(ACOSH, 1.0f / sqrtf(v * v - 1.0f)) \
	X(ATANH, 1.0f / (1.0f - v * v))
/* clang-format on */

#define UNARY_RUN(op, derivative)                                              \
	static tern_status run_##op(tn_kern *kern, const tn_kern_io *io)       \
	{                                                                      \
		const unary_grad *k = (const unary_grad *)kern;                \
		const float *restrict dy = io->in[0], *restrict x = io->in[1]; \
		float *restrict dx = io->out[0], a = k->a, b = k->b;           \
                                                                               \
		(void)a;                                                       \
		(void)b;                                                       \
		for (uint64_t i = 0; i < k->n; i++) {                          \
			float v = x[i];                                        \
                                                                               \
			dx[i] = dy[i] * (derivative);                          \
		}                                                              \
		return TERN_OK;                                                \
	}
UNARY_MAP(UNARY_RUN)
#undef UNARY_RUN

typedef tern_status (*run_fn)(tn_kern *kern, const tn_kern_io *io);

static const run_fn unary_table[TN_OP_COUNT] = {
#define UNARY_ENTRY(op, derivative) [TN_OP_##op##_GRAD] = run_##op,
	UNARY_MAP(UNARY_ENTRY)
#undef UNARY_ENTRY
};

/* The defaults are ONNX's, as for the ops themselves. */
static void unary_params(const tn_node *n, float *a, float *b)
{
	double alpha = 1.0, beta = 0.0;

	switch (n->op) {
	case TN_OP_SELU_GRAD:
		alpha = tn_node_float(n, TN_ATTR_ALPHA, 1.67326319217681884765625);
		beta = tn_node_float(n, TN_ATTR_GAMMA, 1.05070102214813232421875);
		break;
	case TN_OP_LEAKY_RELU_GRAD:
		alpha = tn_node_float(n, TN_ATTR_ALPHA, 0.01);
		break;
	case TN_OP_HARD_SIGMOID_GRAD:
		alpha = tn_node_float(n, TN_ATTR_ALPHA, 0.2);
		beta = tn_node_float(n, TN_ATTR_BETA, 0.5);
		break;
	case TN_OP_SHRINK_GRAD:
		alpha = tn_node_float(n, TN_ATTR_ALPHA, 0.5);
		break;
	case TN_OP_GELU_GRAD:
		alpha = (double)tn_node_int(n, TN_ATTR_MODE, 0);
		break;
	case TN_OP_CLIP_VALUES_GRAD:
		alpha = tn_node_float(n, TN_ATTR_MIN, (double)-INFINITY);
		beta = tn_node_float(n, TN_ATTR_MAX, (double)INFINITY);
		break;
	default:
		alpha = tn_node_float(n, TN_ATTR_ALPHA, 1.0);
		break;
	}
	*a = (float)alpha;
	*b = (float)beta;
}

static void grad_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_unary_grad_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	unary_grad *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = unary_table[desc->node->op], .destroy = grad_destroy};
	k->n = tn_dims_product(desc->in[0].shape.dims, desc->in[0].shape.rank);
	unary_params(desc->node, &k->a, &k->b);
	*made = &k->base;
	return TERN_OK;
}

/* ---- MatMulRows: a MatMul of two matrices that have all the rows ---- */

static const tn_attr rows_attr = {.key = TN_ATTR_TRANS_A, .u.i = 1};
static uint32_t rows_tensors[3];
static const tn_node rows_node = {.op = TN_OP_MATMUL,
				  .name = (char[]){"MatMulRows"},
				  .n_in = 2,
				  .n_out = 1,
				  .n_attrs = 1,
				  .in = rows_tensors,
				  .attrs = (tn_attr *)&rows_attr};

static tn_operand as_matrix(const tn_operand *from)
{
	const tern_shape *s = &from->shape;

	return (tn_operand){
		.dtype = from->dtype,
		.shape = {.rank = 2, .dims = {tn_dims_product(s->dims, s->rank - 1), s->dims[s->rank - 1]}}};
}

tern_status tn_kern_matmul_rows_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	tn_operand in[2] = {as_matrix(&desc->in[0]), as_matrix(&desc->in[1])};
	tn_kern_desc matmul = {.node = &rows_node, .in = in, .out = desc->out};

	return tn_kern_create(ctx, &matmul, made);
}
