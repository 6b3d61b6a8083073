/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the walk of reverse-mode autodiff (grad.c) and the gradient rules (grad_*.c).
 *
 * A rule gets a node and the gradients of its outputs (TN_NONE for an output that has none) and appends nodes
 * that compute the gradients of its inputs; it hands them over with tn_grad_give or tn_grad_emit, at most
 * once per input. `node` is a copy, since the graph's arrays may move. Inputs whose gradient nobody wants are
 * passed over by both. A gradient has the shape of its tensor.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c has a case for each row of TN_GRAD_MAP, by
 * finite differences.
 */
#ifndef TN_GRAPH_GRAD_H
#define TN_GRAPH_GRAD_H

#include "graph/ir.h"

typedef struct tn_grad {
	tern_graph *g;
	bool *needs;      /* per tensor of the forward graph: does a wanted tensor lie below? */
	uint32_t **parts; /* per tensor: partial gradients so far */
	uint32_t *n_parts;
	uint32_t n_forward; /* tensors of the forward graph; newer ones have no entry in the arrays */
} tn_grad;

typedef tern_status (*tn_grad_fn)(tn_grad *cx, const tn_node *node, const uint32_t *dout);

/* X(OP, rule): the rule is tn_grad_rule_RULE. An op without a row has no gradient. */
/* clang-format off */
#define TN_GRAD_MAP(X) \
	/* grad_nn.c */ \
	X(CONV, conv) \
	X(CONV_TRANSPOSE, conv_transpose) \
	X(CONV_GRAD_DATA, conv_grad_data) \
	X(MAX_POOL, max_pool) \
	X(GLOBAL_MAX_POOL, max_pool) \
	X(AVERAGE_POOL, average_pool) \
	X(GLOBAL_AVERAGE_POOL, global_average_pool) \
	X(BATCH_NORM_TRAIN, batch_norm_train) \
	X(INSTANCE_NORM, instance_norm) \
	X(LAYER_NORM, layer_norm) \
	X(LRN, lrn) \
	X(LSTM, recurrent) \
	X(GRU, recurrent) \
	X(RNN, recurrent) \
	/* grad_elem.c */ \
	X(IDENTITY, add) \
	X(RELU, relu) \
	X(SCALE, scale) \
	X(NEG, neg) \
	X(ABS, unary_in) \
	X(SIGN, flat) \
	X(EXP, unary_out) \
	X(LOG, unary_in) \
	X(SQRT, unary_out) \
	X(RECIPROCAL, unary_out) \
	X(SIGMOID, unary_out) \
	X(TANH, unary_out) \
	X(ERF, unary_in) \
	X(FLOOR, flat) \
	X(CEIL, flat) \
	X(ROUND, flat) \
	X(SOFTPLUS, unary_in) \
	X(SOFTSIGN, unary_in) \
	X(ELU, unary_in) \
	X(SELU, unary_in) \
	X(CELU, unary_in) \
	X(LEAKY_RELU, unary_in) \
	X(THRESHOLDED_RELU, unary_in) \
	X(HARD_SIGMOID, unary_in) \
	X(HARD_SWISH, unary_in) \
	X(GELU, unary_in) \
	X(SHRINK, unary_in) \
	X(CLIP_VALUES, unary_in) \
	X(SIN, unary_in) \
	X(COS, unary_in) \
	X(TAN, unary_out) \
	X(ASIN, unary_in) \
	X(ACOS, unary_in) \
	X(ATAN, unary_in) \
	X(SINH, unary_in) \
	X(COSH, unary_in) \
	X(ASINH, unary_in) \
	X(ACOSH, unary_in) \
	X(ATANH, unary_in) \
	X(CAST, cast) \
	X(DROPOUT, dropout) \
	X(BIAS_ADD, bias_add) \
	X(ADD_N, add) \
	/* grad_binary.c */ \
	X(ADD, sum) \
	X(SUB, sub) \
	X(MUL, mul) \
	X(DIV, div) \
	X(POW, pow) \
	X(MINIMUM, extreme) \
	X(MAXIMUM, extreme) \
	X(PRELU, prelu) \
	X(WHERE, where) \
	X(MATMUL, matmul) \
	/* grad_reduce.c */ \
	X(REDUCE_SUM, reduce) \
	X(REDUCE_MEAN, reduce) \
	X(REDUCE_MAX, reduce_extreme) \
	X(REDUCE_MIN, reduce_extreme) \
	X(REDUCE_L1, reduce_l1) \
	X(REDUCE_L2, reduce_l2) \
	X(REDUCE_LOG_SUM, reduce_log_sum) \
	X(REDUCE_LOG_SUM_EXP, reduce_log_sum_exp) \
	X(REDUCE_SUM_SQUARE, reduce_sum_square) \
	X(EXPAND_LIKE, expand_like) \
	X(SUM_TO, sum_to) \
	X(CUM_SUM, cum_sum) \
	X(TOP_K, top_k) \
	X(SOFTMAX, softmax) \
	X(LOG_SOFTMAX, softmax) \
	X(HARDMAX, flat) \
	X(SOFTMAX_XENT, label_loss) \
	X(NLL, label_loss) \
	X(MSE, pair_loss) \
	X(SIGMOID_XENT, pair_loss) \
	/* grad_move.c */ \
	X(RESHAPE, reshape) \
	X(TRANSPOSE, transpose) \
	X(SLICE, slice) \
	X(SLICE_GRAD, slice_grad) \
	X(CONCAT, concat) \
	X(EXPAND, expand) \
	X(PAD, pad) \
	X(TILE, tile) \
	X(DEPTH_TO_SPACE, depth_to_space) \
	X(SPACE_TO_DEPTH, space_to_depth) \
	X(TRILU, trilu) \
	X(REVERSE_SEQUENCE, reverse_sequence) \
	X(GATHER, gather) \
	X(GATHER_GRAD, gather_grad) \
	X(GATHER_ELEMENTS, gather_elements) \
	X(GATHER_ND, gather_nd) \
	X(SCATTER_ELEMENTS, scatter) \
	X(SCATTER_ND, scatter)
/* clang-format on */

#define TN_GRAD_DECLARE(op, rule) \
	tern_status tn_grad_rule_##rule(tn_grad *cx, const tn_node *node, const uint32_t *dout);
TN_GRAD_MAP(TN_GRAD_DECLARE)
#undef TN_GRAD_DECLARE

static inline bool tn_grad_wanted(const tn_grad *cx, const tn_node *node, uint32_t input)
{
	return cx->needs[node->in[input]];
}

static inline const tn_tensor *tn_grad_input(const tn_grad *cx, const tn_node *node, uint32_t input)
{
	return &cx->g->tensors[node->in[input]];
}

/* `grad` is (part of) the gradient of input number `input`. */
tern_status tn_grad_give(tn_grad *cx, const tn_node *node, uint32_t input, uint32_t grad);
/* Append a node and give its output 0 to an input. Nothing is appended if nobody wants that gradient. */
tern_status tn_grad_emit(tn_grad *cx, const tn_node *node, uint32_t input, tn_op op, const uint32_t *in,
			 uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs);
/* Append a node on the way to a gradient; outs gets all of its outputs. It is named after `node`. */
tern_status tn_grad_node(tn_grad *cx, const tn_node *node, tn_op op, const uint32_t *in, uint32_t n_in,
			 const tn_attr *attrs, uint32_t n_attrs, uint32_t *outs);

/* ---- small things that many rules want ---- */

static inline tn_attr tn_attr_shape(tn_attr_key key, const tern_shape *shape)
{
	tn_attr a = {.key = key};

	a.u.ints.n = shape->rank;
	for (uint32_t i = 0; i < shape->rank; i++)
		a.u.ints.v[i] = (int64_t)shape->dims[i];
	return a;
}

/* A scalar constant. */
tern_status tn_grad_constant(tn_grad *cx, const tn_node *node, float value, uint32_t *tensor);
/* Zeros of a shape. */
tern_status tn_grad_zeros(tn_grad *cx, const tn_node *node, const tern_shape *shape, uint32_t *tensor);
/* Give `grad` to an input, summed to the input's shape where that was broadcast. */
tern_status tn_grad_give_sum(tn_grad *cx, const tn_node *node, uint32_t input, uint32_t grad);
/* op(in...), given to an input in the same way. */
tern_status tn_grad_emit_sum(tn_grad *cx, const tn_node *node, uint32_t input, tn_op op, const uint32_t *in,
			     uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs);

#endif
