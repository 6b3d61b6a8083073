/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules of ops over axes: reductions, running sums, selections, the softmax family and losses.
 * See grad.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c.
 */
#include "base/fail.h"
#include "graph/grad.h"

/* The attributes of an ExpandLike that undoes reduction n. */
static uint32_t like_attrs(const tn_node *n, tn_attr *attrs)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < n->n_attrs; i++)
		attrs[count++] = n->attrs[i];
	if (n->op == TN_OP_REDUCE_MEAN)
		attrs[count++] = tn_attr_int(TN_ATTR_MEAN, 1);
	return count;
}

/* `small`, a tensor as the reduction's output, as large as its input. */
static tern_status expanded(tn_grad *cx, const tn_node *n, uint32_t small, uint32_t *large)
{
	tn_attr attrs[3];
	uint32_t count = like_attrs(n, attrs);

	return tn_grad_node(cx, n, TN_OP_EXPAND_LIKE, (uint32_t[]){small, n->in[0]}, 2, attrs, count, large);
}

static tern_status two(tn_grad *cx, const tn_node *n, tn_op op, uint32_t a, uint32_t b, uint32_t *out)
{
	return tn_grad_node(cx, n, op, (uint32_t[]){a, b}, 2, NULL, 0, out);
}

/* Sum, Mean */
tern_status tn_grad_rule_reduce(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[3];
	uint32_t count = like_attrs(n, attrs);

	return tn_grad_emit(cx, n, 0, TN_OP_EXPAND_LIKE, (uint32_t[]){dout[0], n->in[0]}, 2, attrs, count);
}

/* Max, Min: shared evenly by the elements that are the extreme. */
tern_status tn_grad_rule_reduce_extreme(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t y, mask, one, zero, hits, count, d;

	TN_TRY(tn_grad_constant(cx, n, 1.0f, &one));
	TN_TRY(tn_grad_constant(cx, n, 0.0f, &zero));
	TN_TRY(expanded(cx, n, n->out[0], &y));
	TN_TRY(two(cx, n, TN_OP_EQUAL, n->in[0], y, &mask));
	TN_TRY(tn_grad_node(cx, n, TN_OP_WHERE, (uint32_t[]){mask, one, zero}, 3, NULL, 0, &hits));
	TN_TRY(tn_grad_node(cx, n, TN_OP_REDUCE_SUM, &hits, 1, n->attrs, n->n_attrs, &count));
	TN_TRY(two(cx, n, TN_OP_DIV, dout[0], count, &d));
	TN_TRY(expanded(cx, n, d, &d));
	return tn_grad_emit(cx, n, 0, TN_OP_MUL, (uint32_t[]){hits, d}, 2, NULL, 0);
}

tern_status tn_grad_rule_reduce_l1(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t d;

	TN_TRY(expanded(cx, n, dout[0], &d));
	return tn_grad_emit(cx, n, 0, TN_OP_ABS_GRAD, (uint32_t[]){d, n->in[0]}, 2, NULL, 0);
}

/* dX = X dY / Y, and 0 where Y is 0 */
tern_status tn_grad_rule_reduce_l2(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t zero, is_zero, d;

	TN_TRY(tn_grad_constant(cx, n, 0.0f, &zero));
	TN_TRY(two(cx, n, TN_OP_EQUAL, n->out[0], zero, &is_zero));
	TN_TRY(two(cx, n, TN_OP_DIV, dout[0], n->out[0], &d));
	TN_TRY(tn_grad_node(cx, n, TN_OP_WHERE, (uint32_t[]){is_zero, zero, d}, 3, NULL, 0, &d));
	TN_TRY(expanded(cx, n, d, &d));
	return tn_grad_emit(cx, n, 0, TN_OP_MUL, (uint32_t[]){n->in[0], d}, 2, NULL, 0);
}

/* Y = log(S): dX = dY / exp(Y) */
tern_status tn_grad_rule_reduce_log_sum(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[3];
	uint32_t sum, d, count = like_attrs(n, attrs);

	TN_TRY(tn_grad_node(cx, n, TN_OP_EXP, &n->out[0], 1, NULL, 0, &sum));
	TN_TRY(two(cx, n, TN_OP_DIV, dout[0], sum, &d));
	return tn_grad_emit(cx, n, 0, TN_OP_EXPAND_LIKE, (uint32_t[]){d, n->in[0]}, 2, attrs, count);
}

/* dX = dY exp(X - Y) */
tern_status tn_grad_rule_reduce_log_sum_exp(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t y, d;

	TN_TRY(expanded(cx, n, n->out[0], &y));
	TN_TRY(two(cx, n, TN_OP_SUB, n->in[0], y, &y));
	TN_TRY(tn_grad_node(cx, n, TN_OP_EXP, (uint32_t[]){y}, 1, NULL, 0, &y));
	TN_TRY(expanded(cx, n, dout[0], &d));
	return tn_grad_emit(cx, n, 0, TN_OP_MUL, (uint32_t[]){d, y}, 2, NULL, 0);
}

tern_status tn_grad_rule_reduce_sum_square(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr twice = tn_attr_float(TN_ATTR_SCALE, 2.0);
	uint32_t d;

	TN_TRY(tn_grad_node(cx, n, TN_OP_SCALE, dout, 1, &twice, 1, &d));
	TN_TRY(expanded(cx, n, d, &d));
	return tn_grad_emit(cx, n, 0, TN_OP_MUL, (uint32_t[]){n->in[0], d}, 2, NULL, 0);
}

tern_status tn_grad_rule_expand_like(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_op op = tn_node_int(n, TN_ATTR_MEAN, 0) ? TN_OP_REDUCE_MEAN : TN_OP_REDUCE_SUM;
	tn_attr attrs[2];
	uint32_t n_attrs = 0;

	for (uint32_t i = 0; i < n->n_attrs; i++) {
		if (n->attrs[i].key != TN_ATTR_MEAN)
			attrs[n_attrs++] = n->attrs[i];
	}
	/* `like` gives only its shape: no gradient. */
	return tn_grad_emit(cx, n, 0, op, dout, 1, attrs, n_attrs);
}

tern_status tn_grad_rule_sum_to(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr a = tn_attr_shape(TN_ATTR_SHAPE, &tn_grad_input(cx, n, 0)->shape);

	return tn_grad_emit(cx, n, 0, TN_OP_EXPAND, dout, 1, &a, 1);
}

/* ---- along an axis ---- */

tern_status tn_grad_rule_cum_sum(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[3] = {tn_attr_int(TN_ATTR_AXIS, tn_node_int(n, TN_ATTR_AXIS, 0)),
			    tn_attr_int(TN_ATTR_EXCLUSIVE, tn_node_int(n, TN_ATTR_EXCLUSIVE, 0)),
			    tn_attr_int(TN_ATTR_REVERSE, !tn_node_int(n, TN_ATTR_REVERSE, 0))};

	return tn_grad_emit(cx, n, 0, TN_OP_CUM_SUM, dout, 1, attrs, 3);
}

/* Each value back to where it came from. */
tern_status tn_grad_rule_top_k(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tern_shape shape = tn_grad_input(cx, n, 0)->shape;
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, tn_node_int(n, TN_ATTR_AXIS, -1));
	uint32_t zeros;

	TN_TRY(tn_grad_zeros(cx, n, &shape, &zeros));
	return tn_grad_emit(cx, n, 0, TN_OP_SCATTER_ELEMENTS, (uint32_t[]){zeros, n->out[1], dout[0]}, 3,
			    &axis, 1);
}

tern_status tn_grad_rule_softmax(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_op op = n->op == TN_OP_SOFTMAX ? TN_OP_SOFTMAX_GRAD : TN_OP_LOG_SOFTMAX_GRAD;

	return tn_grad_emit(cx, n, 0, op, (uint32_t[]){dout[0], n->out[0]}, 2, n->attrs, n->n_attrs);
}

/* ---- losses ---- */

tern_status tn_grad_rule_label_loss(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	if (n->op == TN_OP_NLL)
		return tn_grad_emit(cx, n, 0, TN_OP_NLL_GRAD, (uint32_t[]){dout[0], n->in[0], n->in[1]}, 3,
				    n->attrs, n->n_attrs);
	if (dout[0] == TN_NONE || dout[2] != TN_NONE) {
		return tn_fail(TERN_E_INVALID,
			       "SoftmaxCrossEntropy '%s': only its loss has a gradient; use Softmax for "
			       "probabilities",
			       n->name);
	}
	return tn_grad_emit(cx, n, 0, TN_OP_SOFTMAX_XENT_GRAD, (uint32_t[]){dout[0], n->out[2], n->in[1]}, 3,
			    n->attrs, n->n_attrs);
}

/* dT of the mean squared error is -dX; dT of the cross-entropy is -dloss X / n. */
tern_status tn_grad_rule_pair_loss(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	bool mse = n->op == TN_OP_MSE;
	tn_attr mean = tn_attr_int(TN_ATTR_MEAN, 1);
	uint32_t d, x[3] = {dout[0], n->in[0], n->in[1]}, y[3] = {dout[0], n->in[1], n->in[0]};

	TN_TRY(tn_grad_emit(cx, n, 0, mse ? TN_OP_MSE_GRAD : TN_OP_SIGMOID_XENT_GRAD, x, 3, NULL, 0));
	if (mse)
		return tn_grad_emit(cx, n, 1, TN_OP_MSE_GRAD, y, 3, NULL, 0);
	if (!tn_grad_wanted(cx, n, 1))
		return TERN_OK;
	TN_TRY(tn_grad_node(cx, n, TN_OP_EXPAND_LIKE, (uint32_t[]){dout[0], n->in[0]}, 2, &mean, 1, &d));
	TN_TRY(tn_grad_node(cx, n, TN_OP_MUL, (uint32_t[]){d, n->in[0]}, 2, NULL, 0, &d));
	return tn_grad_emit(cx, n, 1, TN_OP_NEG, &d, 1, NULL, 0);
}
