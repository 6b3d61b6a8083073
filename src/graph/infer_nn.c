/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of layers: products of matrices, convolutions, pools, norms, recurrent layers.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c.
 */
#include "base/fail.h"
#include "graph/infer.h"

tern_status tn_infer_matmul(tn_infer *x)
{
	const tern_shape *a = &tn_infer_in(x, 0)->shape, *b = &tn_infer_in(x, 1)->shape;
	bool ta = tn_node_int(x->node, TN_ATTR_TRANS_A, 0) != 0;
	bool tb = tn_node_int(x->node, TN_ATTR_TRANS_B, 0) != 0;
	char ta_text[TN_TENSOR_TEXT_MAX], tb_text[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want_f32(x, 0, 2);

	if (st != TERN_OK)
		return st;
	tn_tensor_text(x, 0, ta_text, sizeof(ta_text));
	tn_tensor_text(x, 1, tb_text, sizeof(tb_text));
	if (a->rank != 2 || b->rank != 2)
		return tn_misfit(x, "needs two matrices, not %s and %s", ta_text, tb_text);
	if (a->dims[ta ? 0 : 1] != b->dims[tb ? 1 : 0]) {
		return tn_misfit(x, "inner dims of %s%s and %s%s differ", ta_text, ta ? " (transposed)" : "",
				 tb_text, tb ? " (transposed)" : "");
	}
	x->dtype[0] = TERN_F32;
	x->shape[0] = (tern_shape){.rank = 2, .dims = {a->dims[ta ? 1 : 0], b->dims[tb ? 0 : 1]}};
	return TERN_OK;
}

/* Layers whose rule is not there yet. */
static tern_status no_rule(const tn_infer *x)
{
	return tn_fail(TERN_E_UNSUPPORTED, "%s '%s': this layer is not there yet",
		       tn_op_table[x->node->op].name, x->node->name);
}

tern_status tn_infer_conv(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_conv_grad_data(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_conv_grad_weight(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_conv_grad_bias(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_conv_transpose(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_max_pool(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_max_pool_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_average_pool(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_average_pool_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_global_pool(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_batch_norm(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_batch_norm_train(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_batch_norm_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_lrn(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_lrn_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_instance_norm(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_layer_norm(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_layer_norm_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_lstm(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_lstm_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_gru(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_gru_grad(tn_infer *x)
{
	return no_rule(x);
}

tern_status tn_infer_rnn(tn_infer *x)
{
	return no_rule(x);
}
