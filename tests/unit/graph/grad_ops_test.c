/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every op that has a gradient, rules and kernels together: the gradient nodes as the executor runs them
 * against difference quotients of the op itself, run by the same executor. The loss weighs every element of
 * the output differently. Differences are of fourth order, (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h, and
 * summed in double precision, so that f32 kernels give about four digits. Inputs are equally spaced values in
 * mixed order: no two are equal, and kinks lie between them.
 *
 * A row of TN_GRAD_MAP without a case here fails the test, unless its case is elsewhere.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "graph/exec.h"
#include "graph/grad.h"

#define OPERANDS_MAX 4
#define ELEMENTS_MAX 64
#define H            0x1p-7

typedef struct operand {
	tern_dtype dtype;
	tern_shape shape;
	double lo, hi;       /* f32: it has a gradient */
	const int64_t *ints; /* others: a constant */
	bool fixed;          /* f32 without a gradient */
} operand;

typedef struct grad_case {
	tn_op op;
	uint32_t n_in;
	operand in[OPERANDS_MAX];
	uint32_t n_attrs;
	const tn_attr *attrs;
} grad_case;

#define DIMS(...)                                                                                     \
	{                                                                                             \
		.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = { __VA_ARGS__ } \
	}
#define REAL(lo_, hi_, ...)                                                             \
	{                                                                               \
		.dtype = TERN_F32, .shape = DIMS(__VA_ARGS__), .lo = (lo_), .hi = (hi_) \
	}
#define SCALAR(lo_, hi_)                                    \
	{                                                   \
		.dtype = TERN_F32, .lo = (lo_), .hi = (hi_) \
	}
#define FIXED(lo_, hi_, ...)                                                                           \
	{                                                                                              \
		.dtype = TERN_F32, .shape = DIMS(__VA_ARGS__), .lo = (lo_), .hi = (hi_), .fixed = true \
	}
#define INTS(list, ...)                                                       \
	{                                                                     \
		.dtype = TERN_I64, .shape = DIMS(__VA_ARGS__), .ints = (list) \
	}
#define LABELS(list, ...)                                                     \
	{                                                                     \
		.dtype = TERN_I32, .shape = DIMS(__VA_ARGS__), .ints = (list) \
	}
#define BOOLS(list, ...)                                                       \
	{                                                                      \
		.dtype = TERN_BOOL, .shape = DIMS(__VA_ARGS__), .ints = (list) \
	}
#define INT(k, v)                              \
	{                                      \
		.key = TN_ATTR_##k, .u.i = (v) \
	}
#define NUM(k, v)                              \
	{                                      \
		.key = TN_ATTR_##k, .u.f = (v) \
	}
#define LIST(k, ...)                                                             \
	{                                                                        \
		.key = TN_ATTR_##k, .u.ints = {                                  \
			.n = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
			.v = {__VA_ARGS__}                                       \
		}                                                                \
	}
#define ATTRS(...)                                                                                \
	.n_attrs = sizeof((tn_attr[]){__VA_ARGS__}) / sizeof(tn_attr), .attrs = (const tn_attr[]) \
	{                                                                                         \
		__VA_ARGS__                                                                       \
	}
#define UNARY(op, lo, hi)                                    \
	{                                                    \
		TN_OP_##op, 1, {REAL(lo, hi, 3, 4)}, 0, NULL \
	}
#define UNARY_A(op, lo, hi, ...)                                        \
	{                                                               \
		TN_OP_##op, 1, {REAL(lo, hi, 3, 4)}, ATTRS(__VA_ARGS__) \
	}

static const int64_t labels4[] = {2, 0, 1, 2}, labels6[] = {2, -1, 1, 0, -1, 2};
static const int64_t rows3[] = {1, 0, 1}, lengths2[] = {2, 3};
static const int64_t elements[] = {1, 0, 2, 2, 1, 0}, unique_elements[] = {1, 0, 2, 0, 1, 2};
static const int64_t points[] = {1, 0, 0, 2, 1, 0}, unique_points[] = {1, 0, 0, 2, 1, 1};
static const int64_t mask12[] = {1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0}, mask4[] = {1, 0, 1, 0};

/* clang-format off */
static const grad_case cases[] = {
	UNARY(IDENTITY, -1, 1),
	UNARY(RELU, -1, 1),
	UNARY_A(SCALE, -1, 1, NUM(SCALE, -0.7)),
	UNARY(NEG, -1, 1),
	UNARY(ABS, -1, 1),
	UNARY(EXP, -1, 1),
	UNARY(LOG, 0.5, 2),
	UNARY(SQRT, 0.5, 2),
	UNARY(RECIPROCAL, 0.8, 2),
	UNARY(SIGMOID, -3, 3),
	UNARY(TANH, -2, 2),
	UNARY(ERF, -2, 2),
	UNARY(SOFTPLUS, -3, 3),
	UNARY(SOFTSIGN, -2, 2),
	UNARY(ELU, -2, 2),
	UNARY_A(ELU, -2, 2, NUM(ALPHA, 0.7)),
	UNARY(SELU, -2, 2),
	UNARY_A(SELU, -2, 2, NUM(ALPHA, 1.5), NUM(GAMMA, 0.8)),
	UNARY(CELU, -2, 2),
	UNARY_A(CELU, -2, 2, NUM(ALPHA, 0.6)),
	UNARY(LEAKY_RELU, -1, 1),
	UNARY_A(LEAKY_RELU, -1, 1, NUM(ALPHA, 0.3)),
	UNARY_A(THRESHOLDED_RELU, -1, 1, NUM(ALPHA, 0.333)),
	UNARY(HARD_SIGMOID, -4, 4),
	UNARY_A(HARD_SIGMOID, -4, 4, NUM(ALPHA, 0.3), NUM(BETA, 0.45)),
	UNARY(HARD_SWISH, -5, 5),
	UNARY(GELU, -2, 2),
	UNARY_A(GELU, -2, 2, INT(MODE, 1)),
	UNARY_A(SHRINK, -1, 1, NUM(ALPHA, 0.333), NUM(BIAS, 0.1)),
	UNARY_A(CLIP_VALUES, -1, 1, NUM(MIN, -0.333), NUM(MAX, 0.333)),
	UNARY_A(CLIP_VALUES, -1, 1, NUM(MAX, 0.333)),
	UNARY(SIN, -2, 2),
	UNARY(COS, -2, 2),
	UNARY(TAN, -1, 1),
	UNARY(ASIN, -0.8, 0.8),
	UNARY(ACOS, -0.8, 0.8),
	UNARY(ATAN, -2, 2),
	UNARY(SINH, -2, 2),
	UNARY(COSH, -2, 2),
	UNARY(ASINH, -2, 2),
	UNARY(ACOSH, 1.5, 3),
	UNARY(ATANH, -0.8, 0.8),
	UNARY_A(CAST, -1, 1, INT(TO, TERN_F32)),
	{TN_OP_BIAS_ADD, 2, {REAL(-1, 1, 2, 3, 4), REAL(-1, 1, 4)}, 0, NULL},
	{TN_OP_BIAS_ADD, 2, {REAL(-1, 1, 4), REAL(-1, 1, 4)}, 0, NULL},
	{TN_OP_ADD_N, 3, {REAL(-1, 1, 3, 2), REAL(-1, 1, 3, 2), REAL(-1, 1, 3, 2)}, 0, NULL},
	/* broadcasting: either way, both ways, scalars, dims of 1 inside */
	{TN_OP_ADD, 2, {REAL(-1, 1, 3, 4), REAL(-1, 1, 4)}, 0, NULL},
	{TN_OP_ADD, 2, {REAL(-1, 1, 3, 1), REAL(-1, 1, 2, 1, 4)}, 0, NULL},
	{TN_OP_SUB, 2, {SCALAR(-1, 1), REAL(-1, 1, 3, 4)}, 0, NULL},
	{TN_OP_SUB, 2, {REAL(-1, 1, 2, 3), REAL(-1, 1, 2, 3)}, 0, NULL},
	{TN_OP_MUL, 2, {REAL(-1, 1, 3, 4), REAL(-1, 1, 3, 1)}, 0, NULL},
	{TN_OP_MUL, 2, {REAL(-1, 1, 2, 1, 2), REAL(-1, 1, 3, 1)}, 0, NULL},
	{TN_OP_DIV, 2, {REAL(-1, 1, 3, 4), REAL(0.8, 2, 4)}, 0, NULL},
	{TN_OP_DIV, 2, {SCALAR(-1, 1), REAL(0.8, 2, 2, 3)}, 0, NULL},
	{TN_OP_POW, 2, {REAL(0.6, 1.6, 2, 3), REAL(-2, 2, 3)}, 0, NULL},
	{TN_OP_POW, 2, {REAL(-1, 1, 2, 4), FIXED(2, 2, 1)}, 0, NULL},
	{TN_OP_MINIMUM, 2, {REAL(-1, 1, 3, 4), REAL(-0.97, 1.03, 4)}, 0, NULL},
	{TN_OP_MAXIMUM, 2, {REAL(-1, 1, 4), REAL(-0.97, 1.03, 3, 4)}, 0, NULL},
	{TN_OP_PRELU, 2, {REAL(-1, 1, 3, 4), REAL(0.1, 0.5, 4)}, 0, NULL},
	{TN_OP_PRELU, 2, {REAL(-1, 1, 3, 4), REAL(0.1, 0.5, 3, 1)}, 0, NULL},
	{TN_OP_WHERE, 3, {BOOLS(mask12, 3, 4), REAL(-1, 1, 3, 4), REAL(-1, 1, 4)}, 0, NULL},
	{TN_OP_WHERE, 3, {BOOLS(mask4, 4), REAL(-1, 1, 3, 1), SCALAR(-1, 1)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 3, 4), REAL(-1, 1, 4, 2)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 4, 3), REAL(-1, 1, 4, 2)}, ATTRS(INT(TRANS_A, 1))},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 3, 4), REAL(-1, 1, 2, 4)}, ATTRS(INT(TRANS_B, 1))},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 4, 3), REAL(-1, 1, 2, 4)}, ATTRS(INT(TRANS_A, 1), INT(TRANS_B, 1))},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 3, 4), REAL(-1, 1, 4, 2)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 3, 4), REAL(-1, 1, 2, 4)}, ATTRS(INT(TRANS_B, 1))},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 4, 3), REAL(-1, 1, 4, 2)}, ATTRS(INT(TRANS_A, 1))},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 2, 3), REAL(-1, 1, 2, 3, 2)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 1, 2, 3), REAL(-1, 1, 2, 2, 3)}, ATTRS(INT(TRANS_B, 1))},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 3), REAL(-1, 1, 2, 3, 2)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 3), REAL(-1, 1, 3, 2)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 3), REAL(-1, 1, 3)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 3), REAL(-1, 1, 3)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 2, 2, 3), REAL(-1, 1, 3)}, 0, NULL},
	{TN_OP_MATMUL, 2, {REAL(-1, 1, 3), REAL(-1, 1, 2, 3, 2)}, 0, NULL},
	{TN_OP_REDUCE_SUM, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 0, 2))},
	{TN_OP_REDUCE_MEAN, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 1), INT(KEEP_DIMS, 1))},
	{TN_OP_REDUCE_MAX, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 1))},
	{TN_OP_REDUCE_MAX, 1, {REAL(-1, 1, 3, 4)}, 0, NULL},
	{TN_OP_REDUCE_MIN, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 0, 2), INT(KEEP_DIMS, 1))},
	{TN_OP_REDUCE_L1, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 1))},
	{TN_OP_REDUCE_L2, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 1))},
	{TN_OP_REDUCE_LOG_SUM, 1, {REAL(0.5, 2, 2, 3, 2)}, ATTRS(LIST(AXES, 1))},
	{TN_OP_REDUCE_LOG_SUM_EXP, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 1, 2), INT(KEEP_DIMS, 1))},
	{TN_OP_REDUCE_SUM_SQUARE, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 0))},
	{TN_OP_EXPAND_LIKE, 2, {REAL(-1, 1, 2, 2), FIXED(-1, 1, 2, 3, 2)}, ATTRS(LIST(AXES, 1), INT(MEAN, 1))},
	{TN_OP_EXPAND_LIKE, 2, {REAL(-1, 1, 2, 1), FIXED(-1, 1, 2, 3)}, ATTRS(LIST(AXES, 1), INT(KEEP_DIMS, 1))},
	{TN_OP_SUM_TO, 1, {REAL(-1, 1, 2, 3, 4)}, ATTRS(LIST(SHAPE, 3, 1))},
	{TN_OP_CUM_SUM, 1, {REAL(-1, 1, 3, 4)}, ATTRS(INT(AXIS, 1))},
	{TN_OP_CUM_SUM, 1, {REAL(-1, 1, 3, 4)}, ATTRS(INT(AXIS, 0), INT(EXCLUSIVE, 1), INT(REVERSE, 1))},
	{TN_OP_TOP_K, 1, {REAL(-1, 1, 3, 4)}, ATTRS(INT(K, 2), INT(AXIS, 1))},
	{TN_OP_TOP_K, 1, {REAL(-1, 1, 3, 4)}, ATTRS(INT(K, 2), INT(AXIS, 0), INT(LARGEST, 0))},
	{TN_OP_SOFTMAX, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(INT(AXIS, 1))},
	{TN_OP_SOFTMAX, 1, {REAL(-1, 1, 3, 4)}, 0, NULL},
	{TN_OP_LOG_SOFTMAX, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(INT(AXIS, 1))},
	{TN_OP_LOG_SOFTMAX, 1, {REAL(-1, 1, 3, 4)}, ATTRS(INT(AXIS, -1))},
	{TN_OP_SOFTMAX_XENT, 2, {REAL(-1, 1, 4, 3), LABELS(labels4, 4)}, 0, NULL},
	{TN_OP_SOFTMAX_XENT, 2, {REAL(-1, 1, 2, 3, 3), LABELS(labels6, 2, 3)}, ATTRS(INT(IGNORE_INDEX, -1))},
	{TN_OP_NLL, 2, {REAL(-2, -1, 4, 3), LABELS(labels4, 4)}, 0, NULL},
	{TN_OP_NLL, 2, {REAL(-2, -1, 2, 3, 3), INTS(labels6, 2, 3)}, ATTRS(INT(IGNORE_INDEX, -1))},
	{TN_OP_MSE, 2, {REAL(-1, 1, 3, 4), REAL(-1, 1, 3, 4)}, 0, NULL},
	{TN_OP_SIGMOID_XENT, 2, {REAL(-2, 2, 3, 4), REAL(0.1, 0.9, 3, 4)}, 0, NULL},
	{TN_OP_RESHAPE, 1, {REAL(-1, 1, 3, 4)}, ATTRS(LIST(SHAPE, 2, 6))},
	{TN_OP_TRANSPOSE, 1, {REAL(-1, 1, 2, 3, 4)}, ATTRS(LIST(PERM, 1, 2, 0))},
	{TN_OP_TRANSPOSE, 1, {REAL(-1, 1, 2, 3, 4)}, 0, NULL},
	{TN_OP_SLICE, 1, {REAL(-1, 1, 4, 5)}, ATTRS(LIST(STARTS, 1, -1), LIST(ENDS, 3, -6), LIST(AXES, 0, 1), LIST(STEPS, 1, -2))},
	{TN_OP_SLICE_GRAD, 1, {REAL(-1, 1, 2, 5)}, ATTRS(LIST(SHAPE, 4, 5), LIST(STARTS, 1), LIST(ENDS, 3))},
	{TN_OP_CONCAT, 3, {REAL(-1, 1, 2, 1, 2), REAL(-1, 1, 2, 3, 2), REAL(-1, 1, 2, 2, 2)}, ATTRS(INT(AXIS, -2))},
	{TN_OP_CONCAT, 1, {REAL(-1, 1, 2, 3)}, ATTRS(INT(AXIS, 0))},
	{TN_OP_EXPAND, 1, {REAL(-1, 1, 3, 1)}, ATTRS(LIST(SHAPE, 2, 3, 4))},
	{TN_OP_PAD, 1, {REAL(-1, 1, 3, 4)}, ATTRS(LIST(PADS, 1, 0, 2, 3), NUM(VALUE, 0.5))},
	{TN_OP_PAD, 1, {REAL(-1, 1, 3, 4)}, ATTRS(LIST(PADS, -1, 2, 1, -1))},
	{TN_OP_TILE, 1, {REAL(-1, 1, 2, 3, 2)}, ATTRS(LIST(REPEATS, 2, 1, 3))},
	{TN_OP_TILE, 1, {REAL(-1, 1, 2, 3)}, ATTRS(LIST(REPEATS, 1, 1))},
	{TN_OP_DEPTH_TO_SPACE, 1, {REAL(-1, 1, 1, 8, 2, 3)}, ATTRS(INT(BLOCK_SIZE, 2))},
	{TN_OP_DEPTH_TO_SPACE, 1, {REAL(-1, 1, 1, 8, 2, 3)}, ATTRS(INT(BLOCK_SIZE, 2), INT(MODE, TN_DEPTH_CRD))},
	{TN_OP_SPACE_TO_DEPTH, 1, {REAL(-1, 1, 1, 2, 4, 6)}, ATTRS(INT(BLOCK_SIZE, 2))},
	{TN_OP_TRILU, 1, {REAL(-1, 1, 4, 4)}, ATTRS(INT(UPPER, 1), INT(K, 1))},
	{TN_OP_TRILU, 1, {REAL(-1, 1, 3, 4)}, ATTRS(INT(UPPER, 0))},
	{TN_OP_REVERSE_SEQUENCE, 2, {REAL(-1, 1, 3, 2, 2), INTS(lengths2, 2)}, 0, NULL},
	{TN_OP_GATHER, 2, {REAL(-1, 1, 3, 4), INTS(rows3, 3)}, 0, NULL},
	{TN_OP_GATHER, 2, {REAL(-1, 1, 4, 3), LABELS(elements, 2, 3)}, ATTRS(INT(AXIS, -1))},
	{TN_OP_GATHER_GRAD, 2, {REAL(-1, 1, 3, 4), INTS(rows3, 3)}, ATTRS(LIST(SHAPE, 3, 4))},
	{TN_OP_GATHER_ELEMENTS, 2, {REAL(-1, 1, 2, 3), INTS(elements, 2, 3)}, ATTRS(INT(AXIS, 1))},
	{TN_OP_GATHER_ND, 2, {REAL(-1, 1, 2, 3, 2), INTS(points, 3, 2)}, 0, NULL},
	{TN_OP_SCATTER_ELEMENTS, 3, {REAL(-1, 1, 2, 3), INTS(unique_elements, 2, 3), REAL(-1, 1, 2, 3)}, ATTRS(INT(AXIS, 1))},
	{TN_OP_SCATTER_ELEMENTS, 3, {REAL(-1, 1, 2, 3), INTS(elements, 2, 3), REAL(-1, 1, 2, 3)}, ATTRS(INT(AXIS, 1), INT(REDUCTION, TN_SCATTER_ADD))},
	{TN_OP_SCATTER_ND, 3, {REAL(-1, 1, 2, 3, 2), INTS(unique_points, 3, 2), REAL(-1, 1, 3, 2)}, 0, NULL},
	{TN_OP_SCATTER_ND, 3, {REAL(-1, 1, 2, 3, 2), INTS(points, 3, 2), REAL(-1, 1, 3, 2)}, ATTRS(INT(REDUCTION, TN_SCATTER_ADD))},
};
/* clang-format on */

/* Ops whose case is not in the table, and where it is. */
/* clang-format off */
static const struct {
	tn_op op;
	const char *where;
} elsewhere[] = {
	{TN_OP_SIGN, "flat_ops"},
	{TN_OP_FLOOR, "flat_ops"},
	{TN_OP_CEIL, "flat_ops"},
	{TN_OP_ROUND, "flat_ops"},
	{TN_OP_HARDMAX, "flat_ops"},
	{TN_OP_DROPOUT, "dropout"},
	{TN_OP_CONV, "nn_grad_test.c"},
	{TN_OP_CONV_TRANSPOSE, "nn_grad_test.c"},
	{TN_OP_CONV_GRAD_DATA, "nn_grad_test.c"},
	{TN_OP_MAX_POOL, "nn_grad_test.c"},
	{TN_OP_GLOBAL_MAX_POOL, "nn_grad_test.c"},
	{TN_OP_AVERAGE_POOL, "nn_grad_test.c"},
	{TN_OP_GLOBAL_AVERAGE_POOL, "nn_grad_test.c"},
	{TN_OP_BATCH_NORM_TRAIN, "nn_grad_test.c"},
	{TN_OP_INSTANCE_NORM, "nn_grad_test.c"},
	{TN_OP_LAYER_NORM, "nn_grad_test.c"},
	{TN_OP_LRN, "nn_grad_test.c"},
	{TN_OP_LSTM, "nn_grad_test.c"},
	{TN_OP_GRU, "nn_grad_test.c"},
	{TN_OP_RNN, "nn_grad_test.c"},
};
/* clang-format on */

/* ---- one case ---- */

typedef struct subject {
	const grad_case *c;
	tern_graph *g;
	tern_value in[OPERANDS_MAX], y, grads[OPERANDS_MAX];
	float data[OPERANDS_MAX][ELEMENTS_MAX];
	uint64_t n[OPERANDS_MAX];
	tern_value wrt[OPERANDS_MAX];
	uint32_t which[OPERANDS_MAX], n_wrt;
	float weights[512];
	uint64_t n_out;
	tern_plan *plan;
	tn_exec *exec;
	tn_xfer *xfer;
} subject;

static uint64_t elements_of(const tern_shape *s)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < s->rank; i++)
		n *= s->dims[i];
	return n;
}

/* Equally spaced, in an order that no op follows. */
static void spread(const operand *o, float *data, uint64_t n, uint64_t turn)
{
	uint64_t step = 7;

	while (n % step == 0)
		step += 2;
	for (uint64_t i = 0; i < n; i++) {
		double at = ((double)((i * step + turn) % n) + 0.5) / (double)n;

		data[i] = (float)(o->lo + (o->hi - o->lo) * at);
	}
}

static void add_constant(subject *s, uint32_t i, const char *name)
{
	const operand *o = &s->c->in[i];
	uint8_t bytes[ELEMENTS_MAX];
	int32_t words[ELEMENTS_MAX];
	const void *data = o->ints;

	for (uint64_t k = 0; k < s->n[i]; k++) {
		bytes[k] = (uint8_t)o->ints[k];
		words[k] = (int32_t)o->ints[k];
	}
	data = o->dtype == TERN_BOOL  ? (const void *)bytes
	       : o->dtype == TERN_I32 ? (const void *)words
				      : data;
	assert_ok(tern_graph_constant(s->g, name, o->dtype, &o->shape, data, &s->in[i]));
}

static void add_operand(subject *s, uint32_t i)
{
	const operand *o = &s->c->in[i];
	char name[16];

	snprintf(name, sizeof(name), "x%u", i);
	s->n[i] = elements_of(&o->shape);
	assert_true(s->n[i] <= ELEMENTS_MAX);
	if (o->dtype != TERN_F32) {
		add_constant(s, i, name);
		return;
	}
	spread(o, s->data[i], s->n[i], i);
	assert_ok(tern_graph_placeholder(s->g, name, TERN_F32, &o->shape, &s->in[i]));
	assert_ok(tern_graph_input(s->g, name, s->in[i]));
	if (!o->fixed) {
		s->which[s->n_wrt] = i;
		s->wrt[s->n_wrt++] = s->in[i];
	}
}

/* loss = sum(y * weights), no weight like another */
static tern_value add_loss(subject *s)
{
	tern_shape shape = s->g->tensors[s->y].shape;
	tern_value w, product, loss;

	s->n_out = elements_of(&shape);
	assert_true(s->n_out <= 512);
	for (uint64_t k = 0; k < s->n_out; k++)
		s->weights[k] = 0.5f + (float)((k * 13) % 17) * 0.0625f;
	assert_ok(tern_graph_constant(s->g, "weights", TERN_F32, &shape, s->weights, &w));
	assert_ok(tern_graph_node(s->g, "Mul", "product", (tern_value[]){s->y, w}, 2, NULL, 0, &product, 1));
	assert_ok(tern_graph_node(s->g, "ReduceSum", "loss", &product, 1, NULL, 0, &loss, 1));
	return loss;
}

static void open_subject(subject *s, const grad_case *c)
{
	tn_node_spec spec = {.op = c->op,
			     .name = "op",
			     .in = s->in,
			     .n_in = c->n_in,
			     .attrs = c->attrs,
			     .n_attrs = c->n_attrs};
	uint32_t node;

	*s = (subject){.c = c};
	assert_ok(tern_graph_create(tn_op_table[c->op].name, &s->g));
	for (uint32_t i = 0; i < c->n_in; i++)
		add_operand(s, i);
	assert_ok(tn_graph_add(s->g, &spec, &node));
	s->y = s->g->nodes[node].out[0];
	assert_ok(tern_graph_gradients(s->g, add_loss(s), s->wrt, s->n_wrt, s->grads));
	assert_ok(tern_graph_output(s->g, "y", s->y));
	for (uint32_t i = 0; i < s->n_wrt; i++) {
		char port[16];

		snprintf(port, sizeof(port), "g%u", i);
		assert_ok(tern_graph_output(s->g, port, s->grads[i]));
	}
	for (uint32_t i = 0; i < s->g->n_nodes; i++)
		s->g->nodes[i].device = 0;
	assert_ok(tn_plan_placed(s->g, 1, TERN_COMM_ZEROCOPY, &s->plan));
	assert_ok(tn_stub_open(NULL, NULL, &s->xfer));
	assert_ok(tn_exec_create(s->plan, 0, s->xfer, &(tn_exec_params){0}, &s->exec));
	assert_ok(tn_exec_start(s->exec, TN_TIME_NEVER));
	for (uint32_t i = 0; i < c->n_in; i++) {
		char port[16];

		snprintf(port, sizeof(port), "x%u", i);
		if (c->in[i].dtype == TERN_F32)
			assert_ok(tn_exec_feed(s->exec, TN_PROG_TRAIN, port, s->data[i], s->n[i] * 4));
	}
}

static void close_subject(subject *s)
{
	tn_exec_destroy(s->exec);
	s->xfer->ops->close(s->xfer);
	tern_plan_destroy(s->plan);
	tern_graph_destroy(s->g);
}

static double loss_at(subject *s, uint32_t input, uint64_t element, double step)
{
	float was = s->data[input][element];
	const float *y;
	double loss = 0;
	tn_fetched f;

	s->data[input][element] = (float)((double)was + step);
	assert_ok(tn_exec_step(s->exec, TN_PROG_TRAIN, TN_TIME_NEVER));
	assert_ok(tn_exec_fetch(s->exec, TN_PROG_TRAIN, "y", &f));
	y = f.data;
	for (uint64_t k = 0; k < s->n_out; k++)
		loss += (double)y[k] * (double)s->weights[k];
	s->data[input][element] = was;
	return loss;
}

static void check_input(subject *s, uint32_t i, size_t number)
{
	uint32_t input = s->which[i];
	float got[ELEMENTS_MAX];
	tn_fetched f;
	char port[16];

	snprintf(port, sizeof(port), "g%u", i);
	loss_at(s, input, 0, 0);
	assert_ok(tn_exec_fetch(s->exec, TN_PROG_TRAIN, port, &f));
	assert_int_equal(f.bytes, s->n[input] * 4);
	memcpy(got, f.data, f.bytes);
	for (uint64_t k = 0; k < s->n[input]; k++) {
		double far = loss_at(s, input, k, 2 * H) - loss_at(s, input, k, -2 * H);
		double near = loss_at(s, input, k, H) - loss_at(s, input, k, -H);
		double want = (8 * near - far) / (12 * H);

		if (!(fabs(want - (double)got[k]) < 5e-4 * (1 + fabs(want))))
			fail_msg("%s (case %u), input %u, element %u: %.7g, difference quotient %.7g",
				 tn_op_table[s->c->op].name, (unsigned)number, input, (unsigned)k,
				 (double)got[k], want);
	}
}

static void quotients(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		subject s;

		open_subject(&s, &cases[i]);
		for (uint32_t k = 0; k < s.n_wrt; k++)
			check_input(&s, k, i);
		close_subject(&s);
	}
}

/* ---- no op without a case ---- */

static bool has_case(tn_op op)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (cases[i].op == op)
			return true;
	}
	for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++) {
		if (elsewhere[i].op == op)
			return true;
	}
	return false;
}

static void every_rule_has_a_case(void **state)
{
	static const tn_op differentiable[] = {
#define ENTRY(op, rule) TN_OP_##op,
		TN_GRAD_MAP(ENTRY)
#undef ENTRY
	};

	(void)state;
	for (size_t i = 0; i < sizeof(differentiable) / sizeof(differentiable[0]); i++) {
		if (!has_case(differentiable[i]))
			fail_msg("%s has a gradient rule and no case", tn_op_table[differentiable[i]].name);
	}
}

/* ---- special ones ---- */

/* Steps give nothing: x + step(x) has the gradient of x, and step(x) alone none at all. */
static void flat_ops(void **state)
{
	static const char *const ops[] = {"Sign", "Floor", "Ceil", "Round", "Hardmax"};
	tern_shape shape = {.rank = 1, .dims = {4}};

	(void)state;
	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		tern_value x, step, sum, loss, alone, grad;
		uint32_t before;
		tern_graph *g;

		assert_ok(tern_graph_create("flat", &g));
		assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &x));
		assert_ok(tern_graph_node(g, ops[i], "step", &x, 1, NULL, 0, &step, 1));
		assert_ok(tern_graph_node(g, "Add", "sum", (tern_value[]){x, step}, 2, NULL, 0, &sum, 1));
		assert_ok(tern_graph_node(g, "ReduceSum", "loss", &sum, 1, NULL, 0, &loss, 1));
		assert_ok(tern_graph_node(g, "ReduceSum", "alone", &step, 1, NULL, 0, &alone, 1));
		assert_ok(tern_graph_gradients(g, loss, &x, 1, &grad));
		before = g->n_nodes;
		assert_int_equal(g->nodes[g->tensors[grad].node].op, TN_OP_EXPAND_LIKE);
		assert_status(tern_graph_gradients(g, alone, &x, 1, &grad), TERN_E_INVALID);
		assert_true(g->n_nodes > before);
		tern_graph_destroy(g);
	}
}

/* The mask changes with every step, so there is no quotient: what went through is scaled the same way back. */
static void dropout(void **state)
{
	static const tn_attr ratio = NUM(RATIO, 0.25);
	static const grad_case c = {TN_OP_DROPOUT, 1, {REAL(0.5, 2, 8, 8)}, 1, &ratio};
	uint32_t kept = 0;
	subject s;

	(void)state;
	open_subject(&s, &c);
	for (int step = 0; step < 20; step++) {
		tn_fetched y, g;

		assert_ok(tn_exec_step(s.exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		assert_ok(tn_exec_fetch(s.exec, TN_PROG_TRAIN, "y", &y));
		assert_ok(tn_exec_fetch(s.exec, TN_PROG_TRAIN, "g0", &g));
		for (uint64_t k = 0; k < 64; k++) {
			float went = ((const float *)y.data)[k] / s.data[0][k];

			assert_float_equal(((const float *)g.data)[k], went * s.weights[k], 1e-6);
			kept += went != 0.0f;
		}
	}
	assert_in_range(kept, 20 * 64 * 6 / 10, 20 * 64 * 9 / 10);
	close_subject(&s);
}

static void refused(void **state)
{
	static const tn_attr edge[2] = {LIST(PADS, 1, 1), INT(MODE, TN_PAD_EDGE)};
	tern_shape shape = {.rank = 1, .dims = {4}};
	tern_value x, y, loss, grad;
	tern_graph *g;

	(void)state;
	assert_ok(tern_graph_create("refused", &g));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &x));
	assert_ok(tn_graph_add1(g, TN_OP_PAD, "pad", &x, 1, edge, 2, TN_DEVICE_NONE, &y));
	assert_ok(tern_graph_node(g, "ReduceSum", "loss", &y, 1, NULL, 0, &loss, 1));
	assert_status(tern_graph_gradients(g, loss, &x, 1, &grad), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "Pad 'pad'"));
	assert_ok(tern_graph_node(g, "ReduceProd", "prod", &x, 1, NULL, 0, &loss, 1));
	assert_status(tern_graph_gradients(g, loss, &x, 1, &grad), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "no gradient"));
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quotients), cmocka_unit_test(every_rule_has_a_case),
		cmocka_unit_test(flat_ops),  cmocka_unit_test(dropout),
		cmocka_unit_test(refused),
	};

	return RUN(tests);
}
