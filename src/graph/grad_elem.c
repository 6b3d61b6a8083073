/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules. See grad.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c.
 */
#include "base/fail.h"
#include "graph/grad.h"

/* d(op(A) op(B)): the four cases keep the operands in place and move the transposes into attributes. */
tern_status tn_grad_rule_matmul(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	int64_t ta = tn_node_int(n, TN_ATTR_TRANS_A, 0), tb = tn_node_int(n, TN_ATTR_TRANS_B, 0);
	uint32_t a = n->in[0], b = n->in[1], d = dout[0];
	tn_attr for_a[2] = {tn_attr_int(TN_ATTR_TRANS_A, ta ? tb : 0),
			    tn_attr_int(TN_ATTR_TRANS_B, ta ? 1 : !tb)};
	tn_attr for_b[2] = {tn_attr_int(TN_ATTR_TRANS_A, tb ? 1 : !ta),
			    tn_attr_int(TN_ATTR_TRANS_B, tb ? ta : 0)};
	/*
	 * dA = dC op(B)^T, or its transpose op(B) dC^T;  dB = op(A)^T dC, or its transpose dC^T op(A).
	 * B first: it is the weights as a rule, whose gradient has a way to go.
	 */
	tern_status st = tn_grad_emit(cx, n, 1, TN_OP_MATMUL, tb ? (uint32_t[]){d, a} : (uint32_t[]){a, d}, 2,
				      for_b, 2);

	if (st != TERN_OK)
		return st;
	return tn_grad_emit(cx, n, 0, TN_OP_MATMUL, ta ? (uint32_t[]){b, d} : (uint32_t[]){d, b}, 2, for_a,
			    2);
}

tern_status tn_grad_rule_bias_add(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t rank = cx->g->tensors[n->in[0]].shape.rank;
	tn_attr axes = {.key = TN_ATTR_AXES};
	tern_status st = tn_grad_give(cx, n, 0, dout[0]);

	if (st != TERN_OK)
		return st;
	if (rank == 1) /* nothing to reduce over */
		return tn_grad_give(cx, n, 1, dout[0]);
	axes.u.ints.n = rank - 1;
	for (uint32_t i = 0; i + 1 < rank; i++)
		axes.u.ints.v[i] = i;
	return tn_grad_emit(cx, n, 1, TN_OP_REDUCE_SUM, dout, 1, &axes, 1);
}

tern_status tn_grad_rule_relu(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_RELU_GRAD, (uint32_t[]){dout[0], n->out[0]}, 2, NULL, 0);
}

tern_status tn_grad_rule_softmax(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_SOFTMAX_GRAD, (uint32_t[]){dout[0], n->out[0]}, 2, NULL, 0);
}

tern_status tn_grad_rule_softmax_xent(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	if (dout[0] == TN_NONE || dout[2] != TN_NONE) {
		return tn_fail(TERN_E_INVALID,
			       "SoftmaxCrossEntropy '%s': only its loss has a gradient; use Softmax for "
			       "probabilities",
			       n->name);
	}
	return tn_grad_emit(cx, n, 0, TN_OP_SOFTMAX_XENT_GRAD, (uint32_t[]){dout[0], n->out[2], n->in[1]}, 3,
			    NULL, 0);
}

tern_status tn_grad_rule_reduce(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[3];
	uint32_t n_attrs = 0;

	for (uint32_t i = 0; i < n->n_attrs; i++)
		attrs[n_attrs++] = n->attrs[i];
	if (n->op == TN_OP_REDUCE_MEAN)
		attrs[n_attrs++] = tn_attr_int(TN_ATTR_MEAN, 1);
	return tn_grad_emit(cx, n, 0, TN_OP_EXPAND_LIKE, (uint32_t[]){dout[0], n->in[0]}, 2, attrs, n_attrs);
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

tern_status tn_grad_rule_add(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < n->n_in && st == TERN_OK; i++)
		st = tn_grad_give(cx, n, i, dout[0]);
	return st;
}

tern_status tn_grad_rule_mul(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tern_status st = tn_grad_emit(cx, n, 0, TN_OP_MUL, (uint32_t[]){dout[0], n->in[1]}, 2, NULL, 0);

	return st == TERN_OK ? tn_grad_emit(cx, n, 1, TN_OP_MUL, (uint32_t[]){dout[0], n->in[0]}, 2, NULL, 0)
			     : st;
}

tern_status tn_grad_rule_scale(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_SCALE, dout, 1, n->attrs, n->n_attrs);
}

tern_status tn_grad_rule_reshape(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	const tern_shape *in = &cx->g->tensors[n->in[0]].shape;
	tn_attr a = {.key = TN_ATTR_SHAPE};

	a.u.ints.n = in->rank;
	for (uint32_t i = 0; i < in->rank; i++)
		a.u.ints.v[i] = (int64_t)in->dims[i];
	return tn_grad_emit(cx, n, 0, TN_OP_RESHAPE, dout, 1, &a, 1);
}
