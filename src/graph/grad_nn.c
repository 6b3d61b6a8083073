/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules of layers: convolutions, pools, norms, recurrent layers.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/nn_grad_test.c, by finite differences.
 */
#include "base/check.h"
#include "base/fail.h"
#include "graph/grad.h"
#include "graph/kern_nn.h"

#define ATTRS_MAX 16u

static const tern_shape *shape_of(const tn_grad *cx, uint32_t tensor)
{
	return &cx->g->tensors[tensor].shape;
}

/* The attributes of the node, and one more. */
static uint32_t with(const tn_node *n, tn_attr attrs[ATTRS_MAX], tn_attr more)
{
	uint32_t k = 0;

	TN_ASSERT(n->n_attrs < ATTRS_MAX);
	for (uint32_t i = 0; i < n->n_attrs; i++)
		attrs[k++] = n->attrs[i];
	attrs[k++] = more;
	return k;
}

/* Outputs of one node, in order, are gradients of the inputs that `to` names. */
static tern_status give_all(tn_grad *cx, const tn_node *n, tn_op op, const uint32_t *in, uint32_t n_in,
			    const tn_attr *attrs, uint32_t n_attrs, const uint32_t *to, uint32_t n_to)
{
	uint32_t outs[TN_OUTS_MAX];
	bool any = false;

	for (uint32_t i = 0; i < n_to; i++)
		any |= tn_grad_wanted(cx, n, to[i]);
	if (!any)
		return TERN_OK;
	TN_TRY(tn_grad_node(cx, n, op, in, n_in, attrs, n_attrs, outs));
	for (uint32_t i = 0; i < n_to; i++)
		TN_TRY(tn_grad_give(cx, n, to[i], outs[i]));
	return TERN_OK;
}

/* ---- convolution ---- */

/* An attribute that the node has but a convolution does not. */
static uint32_t without(tn_attr *attrs, uint32_t n, tn_attr_key key)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (attrs[i].key != key)
			attrs[k++] = attrs[i];
	}
	return k;
}

tern_status tn_grad_rule_conv(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t x = n->in[0], w = n->in[1], d = dout[0], k;
	tn_attr attrs[ATTRS_MAX];

	if (n->n_in > 2)
		TN_TRY(tn_grad_emit(cx, n, 2, TN_OP_CONV_GRAD_BIAS, &d, 1, NULL, 0));
	k = with(n, attrs, tn_attr_shape(TN_ATTR_SHAPE, shape_of(cx, w)));
	TN_TRY(tn_grad_emit(cx, n, 1, TN_OP_CONV_GRAD_WEIGHT, (uint32_t[]){d, x}, 2, attrs, k));
	attrs[k - 1] = tn_attr_shape(TN_ATTR_SHAPE, shape_of(cx, x));
	return tn_grad_emit(cx, n, 0, TN_OP_CONV_GRAD_DATA, (uint32_t[]){d, w}, 2, attrs, k);
}

/* Its forward pass is the gradient of a convolution, so its gradients are a convolution and X as dY. */
tern_status tn_grad_rule_conv_transpose(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t x = n->in[0], w = n->in[1], d = dout[0], k;
	tn_attr attrs[ATTRS_MAX];

	if (n->n_in > 2)
		TN_TRY(tn_grad_emit(cx, n, 2, TN_OP_CONV_GRAD_BIAS, &d, 1, NULL, 0));
	k = without(attrs, with(n, attrs, tn_attr_shape(TN_ATTR_SHAPE, shape_of(cx, w))),
		    TN_ATTR_OUTPUT_PADDING);
	TN_TRY(tn_grad_emit(cx, n, 1, TN_OP_CONV_GRAD_WEIGHT, (uint32_t[]){x, d}, 2, attrs, k));
	return tn_grad_emit(cx, n, 0, TN_OP_CONV, (uint32_t[]){d, w}, 2, attrs, k - 1);
}

/* ConvGradData as a forward op, as in a second derivative. */
tern_status tn_grad_rule_conv_grad_data(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t y = n->in[0], w = n->in[1], d = dout[0], k;
	tn_attr attrs[ATTRS_MAX];

	k = without(attrs, with(n, attrs, tn_attr_shape(TN_ATTR_SHAPE, shape_of(cx, w))), TN_ATTR_SHAPE);
	TN_TRY(tn_grad_emit(cx, n, 0, TN_OP_CONV, (uint32_t[]){d, w}, 2, attrs, k));
	attrs[k++] = tn_attr_shape(TN_ATTR_SHAPE, shape_of(cx, w));
	return tn_grad_emit(cx, n, 1, TN_OP_CONV_GRAD_WEIGHT, (uint32_t[]){y, d}, 2, attrs, k);
}

/* ---- pools ---- */

tern_status tn_grad_rule_max_pool(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[ATTRS_MAX];
	uint32_t k = with(n, attrs, (tn_attr){.key = TN_ATTR_STORAGE_ORDER});

	k = without(attrs, k, TN_ATTR_STORAGE_ORDER);
	return tn_grad_emit(cx, n, 0, TN_OP_MAX_POOL_GRAD, (uint32_t[]){dout[0], n->in[0]}, 2, attrs, k);
}

tern_status tn_grad_rule_average_pool(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[ATTRS_MAX];
	uint32_t k = with(n, attrs, tn_attr_shape(TN_ATTR_SHAPE, shape_of(cx, n->in[0])));

	return tn_grad_emit(cx, n, 0, TN_OP_AVERAGE_POOL_GRAD, dout, 1, attrs, k);
}

tern_status tn_grad_rule_global_average_pool(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[3] = {
		{.key = TN_ATTR_AXES}, tn_attr_int(TN_ATTR_KEEP_DIMS, 1), tn_attr_int(TN_ATTR_MEAN, 1)};

	for (uint32_t i = 2; i < shape_of(cx, n->in[0])->rank; i++)
		attrs[0].u.ints.v[attrs[0].u.ints.n++] = i;
	return tn_grad_emit(cx, n, 0, TN_OP_EXPAND_LIKE, (uint32_t[]){dout[0], n->in[0]}, 2, attrs, 3);
}

/* ---- norms ---- */

static tern_status only_first(const tn_node *n, const uint32_t *dout)
{
	bool others = false;

	for (uint32_t i = 1; i < n->n_out; i++)
		others |= dout[i] != TN_NONE;
	if (dout[0] != TN_NONE && !others)
		return TERN_OK;
	return tn_fail(TERN_E_INVALID, "%s '%s': only its first output has a gradient",
		       tn_op_table[n->op].name, n->name);
}

static const uint32_t first_three[3] = {0, 1, 2};

/* (X, scale, B) -> Y, mean, variance or 1 / deviation: BatchNormTrain and LayerNorm */
static tern_status norm(tn_grad *cx, const tn_node *n, const uint32_t *dout, tn_op op)
{
	TN_TRY(only_first(n, dout));
	return give_all(cx, n, op, (uint32_t[]){dout[0], n->in[0], n->in[1], n->out[1], n->out[2]}, 5,
			n->attrs, n->n_attrs, first_three, 3);
}

tern_status tn_grad_rule_batch_norm_train(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return norm(cx, n, dout, TN_OP_BATCH_NORM_GRAD);
}

tern_status tn_grad_rule_layer_norm(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return norm(cx, n, dout, TN_OP_LAYER_NORM_GRAD);
}

tern_status tn_grad_rule_instance_norm(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return give_all(cx, n, TN_OP_INSTANCE_NORM_GRAD, (uint32_t[]){dout[0], n->in[0], n->in[1]}, 3,
			n->attrs, n->n_attrs, first_three, 3);
}

tern_status tn_grad_rule_lrn(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_LRN_GRAD, (uint32_t[]){dout[0], n->in[0]}, 2, n->attrs,
			    n->n_attrs);
}

/* ---- recurrent ---- */

/* The forward node's inputs, Y [, workspace], and those gradients of Y, Y_h, Y_c that there are. */
tern_status tn_grad_rule_recurrent(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	static const uint32_t to[6] = {0, 1, 2, 3, 4, 5};
	bool lstm = n->op == TN_OP_LSTM;
	uint32_t states = lstm ? 2 : 1, kept = n->op == TN_OP_RNN ? 0 : 1, k = 0, in[16];
	int64_t given = n->n_in > 4 ? TN_GIVEN_STATE : 0;
	tn_op op = lstm ? TN_OP_LSTM_GRAD : n->op == TN_OP_GRU ? TN_OP_GRU_GRAD : TN_OP_RNN_GRAD;
	tn_attr attrs[ATTRS_MAX];

	if (n->n_in > 4 + states)
		return tn_fail(TERN_E_INVALID, "LSTM '%s': one with peepholes has no gradient", n->name);
	if (kept && dout[1 + states] != TN_NONE)
		return tn_fail(TERN_E_INVALID, "%s '%s': its workspace has no gradient",
			       tn_op_table[n->op].name, n->name);
	for (uint32_t i = 4; i < n->n_in; i++) {
		if (tn_grad_wanted(cx, n, i) &&
		    !tn_shape_equal(shape_of(cx, n->in[i]), shape_of(cx, n->out[1])))
			return tn_fail(TERN_E_INVALID,
				       "%s '%s': an initial state for the whole batch has no "
				       "gradient",
				       tn_op_table[n->op].name, n->name);
	}
	for (uint32_t i = 0; i < n->n_in; i++)
		in[k++] = n->in[i];
	in[k++] = n->out[0];
	if (kept)
		in[k++] = n->out[1 + states];
	for (uint32_t i = 0; i <= states; i++) {
		if (dout[i] == TN_NONE)
			continue;
		in[k++] = dout[i];
		given |= TN_GIVEN_DY << i;
	}
	return give_all(cx, n, op, in, k, attrs, with(n, attrs, tn_attr_int(TN_ATTR_GIVEN, given)), to,
			n->n_in);
}
