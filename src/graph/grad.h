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
	X(MATMUL, matmul) \
	X(BIAS_ADD, bias_add) \
	X(RELU, relu) \
	X(SOFTMAX, softmax) \
	X(SOFTMAX_XENT, softmax_xent) \
	X(REDUCE_SUM, reduce) \
	X(REDUCE_MEAN, reduce) \
	X(EXPAND_LIKE, expand_like) \
	X(ADD, add) \
	X(ADD_N, add) \
	X(MUL, mul) \
	X(SCALE, scale) \
	X(IDENTITY, add) \
	X(RESHAPE, reshape)
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

#endif
