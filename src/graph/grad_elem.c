/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules of ops that take one element to one, and of sums of equal shapes. See grad.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c.
 */
#include "base/check.h"
#include "base/fail.h"
#include "graph/grad.h"

/* "Relu" and "ReluGrad" are two rows of the op table; the pairs are found by this one. */
static tn_op grad_op(tn_op op)
{
	static const tn_op pairs[][2] = {
		{TN_OP_ABS, TN_OP_ABS_GRAD},
		{TN_OP_EXP, TN_OP_EXP_GRAD},
		{TN_OP_LOG, TN_OP_LOG_GRAD},
		{TN_OP_SQRT, TN_OP_SQRT_GRAD},
		{TN_OP_RECIPROCAL, TN_OP_RECIPROCAL_GRAD},
		{TN_OP_SIGMOID, TN_OP_SIGMOID_GRAD},
		{TN_OP_TANH, TN_OP_TANH_GRAD},
		{TN_OP_ERF, TN_OP_ERF_GRAD},
		{TN_OP_SOFTPLUS, TN_OP_SOFTPLUS_GRAD},
		{TN_OP_SOFTSIGN, TN_OP_SOFTSIGN_GRAD},
		{TN_OP_ELU, TN_OP_ELU_GRAD},
		{TN_OP_SELU, TN_OP_SELU_GRAD},
		{TN_OP_CELU, TN_OP_CELU_GRAD},
		{TN_OP_LEAKY_RELU, TN_OP_LEAKY_RELU_GRAD},
		{TN_OP_THRESHOLDED_RELU, TN_OP_THRESHOLDED_RELU_GRAD},
		{TN_OP_HARD_SIGMOID, TN_OP_HARD_SIGMOID_GRAD},
		{TN_OP_HARD_SWISH, TN_OP_HARD_SWISH_GRAD},
		{TN_OP_GELU, TN_OP_GELU_GRAD},
		{TN_OP_SHRINK, TN_OP_SHRINK_GRAD},
		{TN_OP_CLIP_VALUES, TN_OP_CLIP_VALUES_GRAD},
		{TN_OP_SIN, TN_OP_SIN_GRAD},
		{TN_OP_COS, TN_OP_COS_GRAD},
		{TN_OP_TAN, TN_OP_TAN_GRAD},
		{TN_OP_ASIN, TN_OP_ASIN_GRAD},
		{TN_OP_ACOS, TN_OP_ACOS_GRAD},
		{TN_OP_ATAN, TN_OP_ATAN_GRAD},
		{TN_OP_SINH, TN_OP_SINH_GRAD},
		{TN_OP_COSH, TN_OP_COSH_GRAD},
		{TN_OP_ASINH, TN_OP_ASINH_GRAD},
		{TN_OP_ACOSH, TN_OP_ACOSH_GRAD},
		{TN_OP_ATANH, TN_OP_ATANH_GRAD},
	};
	size_t i = 0;

	while (pairs[i][0] != op) {
		i++;
		TN_ASSERT(i < sizeof(pairs) / sizeof(pairs[0]));
	}
	return pairs[i][1];
}

tern_status tn_grad_rule_unary_in(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, grad_op(n->op), (uint32_t[]){dout[0], n->in[0]}, 2, n->attrs,
			    n->n_attrs);
}

tern_status tn_grad_rule_unary_out(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, grad_op(n->op), (uint32_t[]){dout[0], n->out[0]}, 2, n->attrs,
			    n->n_attrs);
}

tern_status tn_grad_rule_relu(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_RELU_GRAD, (uint32_t[]){dout[0], n->out[0]}, 2, NULL, 0);
}

/* Steps: the gradient is zero where it exists, so there is nothing to give. */
tern_status tn_grad_rule_flat(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	(void)cx;
	(void)n;
	(void)dout;
	return TERN_OK;
}

/* All inputs have the output's shape. */
tern_status tn_grad_rule_add(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < n->n_in && st == TERN_OK; i++)
		st = tn_grad_give(cx, n, i, dout[0]);
	return st;
}

tern_status tn_grad_rule_scale(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_SCALE, dout, 1, n->attrs, n->n_attrs);
}

tern_status tn_grad_rule_neg(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_NEG, dout, 1, NULL, 0);
}

/* Only f32 has gradients, so this is a Cast from f32 to f32. */
tern_status tn_grad_rule_cast(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_give(cx, n, 0, dout[0]);
}

tern_status tn_grad_rule_dropout(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr ratio = tn_attr_float(TN_ATTR_RATIO, tn_node_float(n, TN_ATTR_RATIO, 0.5));

	return tn_grad_emit(cx, n, 0, TN_OP_DROPOUT_GRAD, (uint32_t[]){dout[0], n->out[1]}, 2, &ratio, 1);
}

tern_status tn_grad_rule_bias_add(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t rank = tn_grad_input(cx, n, 0)->shape.rank;
	tn_attr axes = {.key = TN_ATTR_AXES};

	TN_TRY(tn_grad_give(cx, n, 0, dout[0]));
	if (rank == 1) /* nothing to reduce over */
		return tn_grad_give(cx, n, 1, dout[0]);
	axes.u.ints.n = rank - 1;
	for (uint32_t i = 0; i + 1 < rank; i++)
		axes.u.ints.v[i] = i;
	return tn_grad_emit(cx, n, 1, TN_OP_REDUCE_SUM, dout, 1, &axes, 1);
}
