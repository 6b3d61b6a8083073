/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reverse-mode autodiff. Walks the nodes backwards from the loss; each op has a rule that, given the
 * gradients of its outputs, appends nodes that compute the gradients of its inputs. Where a tensor is read
 * several times its partial gradients are added with AddN, in the order of the readers from last to first,
 * which is fixed by the graph and so gives the same bits every time.
 *
 * Only what lies on a path from a wanted tensor to the loss gets a gradient.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c checks every rule by finite differences.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/ir.h"

typedef struct grad_ctx {
	tern_graph *g;
	bool *needs;      /* per tensor of the forward graph: does a wanted tensor lie below? */
	uint32_t **parts; /* per tensor: partial gradients so far */
	uint32_t *n_parts;
	uint32_t n_forward; /* tensors of the forward graph; newer ones have no entry in the arrays */
} grad_ctx;

/* A rule adds partial gradients with give(). `node` is a copy: the graph's array may move. */
typedef tern_status (*grad_fn)(grad_ctx *cx, const tn_node *node, const uint32_t *dout);

static tern_status give(grad_ctx *cx, uint32_t tensor, uint32_t grad)
{
	uint32_t *bigger;

	TN_ASSERT(tensor < cx->n_forward);
	TN_ASSERT(tn_shape_equal(&cx->g->tensors[tensor].shape, &cx->g->tensors[grad].shape));
	bigger = realloc(cx->parts[tensor], (cx->n_parts[tensor] + 1) * sizeof(*bigger));
	if (!bigger)
		return tn_fail(TERN_E_NOMEM, "no memory for gradients");
	cx->parts[tensor] = bigger;
	bigger[cx->n_parts[tensor]++] = grad;
	return TERN_OK;
}

/* "grad/fc1/w", "grad/fc1/w.sum"; with a number when the graph has that name already. */
static void name_gradient(const tern_graph *g, const char *base, const char *suffix, char *name, size_t size)
{
	snprintf(name, size, "grad/%s%s", base, suffix);
	for (uint32_t i = 1; tn_graph_find(g, name) != TN_NONE; i++)
		snprintf(name, size, "grad/%s%s.%u", base, suffix, i);
}

/*
 * Append `op` and give its output to input number `input` of `node`. Named after the tensor that it is the
 * gradient of.
 */
static tern_status emit(grad_ctx *cx, const tn_node *node, uint32_t input, tn_op op, const uint32_t *in,
			uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs)
{
	const char *base = cx->g->tensors[node->in[input]].name;
	uint32_t grad;
	char name[2 * TN_NAME_MAX];
	tern_status st;

	if (!cx->needs[node->in[input]])
		return TERN_OK;
	name_gradient(cx->g, base, "", name, sizeof(name));
	st = tn_graph_add1(cx->g, op, name, in, n_in, attrs, n_attrs, node->device, &grad);
	return st == TERN_OK ? give(cx, node->in[input], grad) : st;
}

/* ---- rules ---- */

/* d(op(A) op(B)): the four cases keep the operands in place and move the transposes into attributes. */
static tern_status grad_matmul(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
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
	tern_status st =
		emit(cx, n, 1, TN_OP_MATMUL, tb ? (uint32_t[]){d, a} : (uint32_t[]){a, d}, 2, for_b, 2);

	if (st != TERN_OK)
		return st;
	return emit(cx, n, 0, TN_OP_MATMUL, ta ? (uint32_t[]){b, d} : (uint32_t[]){d, b}, 2, for_a, 2);
}

static tern_status grad_bias_add(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t rank = cx->g->tensors[n->in[0]].shape.rank;
	tn_attr axes = {.key = TN_ATTR_AXES};
	tern_status st = cx->needs[n->in[0]] ? give(cx, n->in[0], dout[0]) : TERN_OK;

	if (st != TERN_OK)
		return st;
	if (rank == 1) /* nothing to reduce over */
		return cx->needs[n->in[1]] ? give(cx, n->in[1], dout[0]) : TERN_OK;
	axes.u.ints.n = rank - 1;
	for (uint32_t i = 0; i + 1 < rank; i++)
		axes.u.ints.v[i] = i;
	return emit(cx, n, 1, TN_OP_REDUCE_SUM, dout, 1, &axes, 1);
}

static tern_status grad_relu(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	return emit(cx, n, 0, TN_OP_RELU_GRAD, (uint32_t[]){dout[0], n->out[0]}, 2, NULL, 0);
}

static tern_status grad_softmax(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	return emit(cx, n, 0, TN_OP_SOFTMAX_GRAD, (uint32_t[]){dout[0], n->out[0]}, 2, NULL, 0);
}

static tern_status grad_softmax_xent(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	if (dout[0] == TN_NONE || dout[2] != TN_NONE) {
		return tn_fail(TERN_E_INVALID,
			       "SoftmaxCrossEntropy '%s': only its loss has a gradient; use Softmax for "
			       "probabilities",
			       n->name);
	}
	return emit(cx, n, 0, TN_OP_SOFTMAX_XENT_GRAD, (uint32_t[]){dout[0], n->out[2], n->in[1]}, 3, NULL,
		    0);
}

static tern_status grad_reduce(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[3];
	uint32_t n_attrs = 0;

	for (uint32_t i = 0; i < n->n_attrs; i++)
		attrs[n_attrs++] = n->attrs[i];
	if (n->op == TN_OP_REDUCE_MEAN)
		attrs[n_attrs++] = tn_attr_int(TN_ATTR_MEAN, 1);
	return emit(cx, n, 0, TN_OP_EXPAND_LIKE, (uint32_t[]){dout[0], n->in[0]}, 2, attrs, n_attrs);
}

static tern_status grad_expand_like(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	tn_op op = tn_node_int(n, TN_ATTR_MEAN, 0) ? TN_OP_REDUCE_MEAN : TN_OP_REDUCE_SUM;
	tn_attr attrs[2];
	uint32_t n_attrs = 0;

	for (uint32_t i = 0; i < n->n_attrs; i++) {
		if (n->attrs[i].key != TN_ATTR_MEAN)
			attrs[n_attrs++] = n->attrs[i];
	}
	/* `like` gives only its shape: no gradient. */
	return emit(cx, n, 0, op, dout, 1, attrs, n_attrs);
}

static tern_status grad_add(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < n->n_in && st == TERN_OK; i++) {
		if (cx->needs[n->in[i]])
			st = give(cx, n->in[i], dout[0]);
	}
	return st;
}

static tern_status grad_mul(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	tern_status st = emit(cx, n, 0, TN_OP_MUL, (uint32_t[]){dout[0], n->in[1]}, 2, NULL, 0);

	return st == TERN_OK ? emit(cx, n, 1, TN_OP_MUL, (uint32_t[]){dout[0], n->in[0]}, 2, NULL, 0) : st;
}

static tern_status grad_scale(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	return emit(cx, n, 0, TN_OP_SCALE, dout, 1, n->attrs, n->n_attrs);
}

static tern_status grad_reshape(grad_ctx *cx, const tn_node *n, const uint32_t *dout)
{
	const tern_shape *in = &cx->g->tensors[n->in[0]].shape;
	tn_attr a = {.key = TN_ATTR_SHAPE};

	a.u.ints.n = in->rank;
	for (uint32_t i = 0; i < in->rank; i++)
		a.u.ints.v[i] = (int64_t)in->dims[i];
	return emit(cx, n, 0, TN_OP_RESHAPE, dout, 1, &a, 1);
}

/* An op without a rule stops the gradient with an error. Sources need none: the walk ends there. */
static const grad_fn grad_table[TN_OP_COUNT] = {
	[TN_OP_MATMUL] = grad_matmul,
	[TN_OP_BIAS_ADD] = grad_bias_add,
	[TN_OP_RELU] = grad_relu,
	[TN_OP_SOFTMAX] = grad_softmax,
	[TN_OP_SOFTMAX_XENT] = grad_softmax_xent,
	[TN_OP_REDUCE_SUM] = grad_reduce,
	[TN_OP_REDUCE_MEAN] = grad_reduce,
	[TN_OP_EXPAND_LIKE] = grad_expand_like,
	[TN_OP_ADD] = grad_add,
	[TN_OP_ADD_N] = grad_add,
	[TN_OP_MUL] = grad_mul,
	[TN_OP_SCALE] = grad_scale,
	[TN_OP_IDENTITY] = grad_add,
	[TN_OP_RESHAPE] = grad_reshape,
};

/* ---- the walk ---- */

/* The gradient of a tensor: its only part, or the sum of its parts. TN_NONE if it has none. */
static tern_status total(grad_ctx *cx, uint32_t tensor, int32_t device, uint32_t *grad)
{
	char name[2 * TN_NAME_MAX];
	tern_status st;

	*grad = TN_NONE;
	if (cx->n_parts[tensor] == 0)
		return TERN_OK;
	if (cx->n_parts[tensor] > 1) {
		name_gradient(cx->g, cx->g->tensors[tensor].name, ".sum", name, sizeof(name));
		st = tn_graph_add1(cx->g, TN_OP_ADD_N, name, cx->parts[tensor], cx->n_parts[tensor], NULL, 0,
				   device, &cx->parts[tensor][0]);
		if (st != TERN_OK)
			return st;
		cx->n_parts[tensor] = 1;
	}
	*grad = cx->parts[tensor][0];
	return TERN_OK;
}

static tern_status backward_node(grad_ctx *cx, uint32_t i)
{
	tn_node node = cx->g->nodes[i];
	uint32_t dout[TN_OUTS_MAX];
	bool any = false, wanted = false;

	for (uint32_t k = 0; k < node.n_in; k++)
		wanted |= cx->needs[node.in[k]];
	if (!wanted)
		return TERN_OK;
	for (uint32_t k = 0; k < node.n_out; k++) {
		tern_status st = total(cx, node.out[k], node.device, &dout[k]);

		if (st != TERN_OK)
			return st;
		any |= dout[k] != TN_NONE;
	}
	if (!any)
		return TERN_OK;
	if (!grad_table[node.op]) {
		return tn_fail(TERN_E_INVALID, "%s '%s': this op has no gradient", tn_op_table[node.op].name,
			       node.name);
	}
	return grad_table[node.op](cx, &node, dout);
}

static void mark_needs(grad_ctx *cx, const tern_value *wrt, uint32_t n_wrt)
{
	for (uint32_t i = 0; i < n_wrt; i++)
		cx->needs[wrt[i]] = true;
	for (uint32_t i = 0; i < cx->g->n_nodes; i++) {
		const tn_node *n = &cx->g->nodes[i];
		bool below = false;

		for (uint32_t k = 0; k < n->n_in; k++)
			below |= cx->needs[n->in[k]];
		for (uint32_t k = 0; k < n->n_out && below; k++)
			cx->needs[n->out[k]] = cx->g->tensors[n->out[k]].dtype == TERN_F32;
	}
}

static tern_status walk(grad_ctx *cx, tern_value loss, const tern_value *wrt, uint32_t n_wrt,
			tern_value *grads)
{
	uint32_t last = cx->g->tensors[loss].node, seed;
	int32_t device = cx->g->nodes[last].device;
	tern_shape scalar = {0};
	float one = 1.0f;
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_CONSTANT,
			     .name = name,
			     .dtype = TERN_F32,
			     .shape = &scalar,
			     .data = &one,
			     .device = device};
	tern_status st;

	name_gradient(cx->g, cx->g->tensors[loss].name, "", name, sizeof(name));
	st = tn_graph_add(cx->g, &spec, &seed);
	if (st == TERN_OK)
		st = give(cx, loss, cx->g->nodes[seed].out[0]);
	for (uint32_t i = last + 1; i-- > 0 && st == TERN_OK;)
		st = backward_node(cx, i);
	for (uint32_t i = 0; i < n_wrt && st == TERN_OK; i++) {
		st = total(cx, wrt[i], cx->g->nodes[cx->g->tensors[wrt[i]].node].device, &grads[i]);
		if (st == TERN_OK && grads[i] == TN_NONE) {
			st = tn_fail(TERN_E_INVALID, "'%s' does not depend on '%s': it has no gradient",
				     cx->g->tensors[loss].name, cx->g->tensors[wrt[i]].name);
		}
	}
	return st;
}

static tern_status check_args(const tern_graph *graph, tern_value loss, const tern_value *wrt, uint32_t n_wrt,
			      const tern_value *grads)
{
	if (!graph || loss >= graph->n_tensors || (n_wrt && (!wrt || !grads)))
		return tn_fail(TERN_E_INVALID, "gradients need a graph, a loss in it, and arrays");
	if (graph->tensors[loss].shape.rank != 0 || graph->tensors[loss].dtype != TERN_F32)
		return tn_fail(TERN_E_SHAPE, "the loss '%s' must be a scalar f32", graph->tensors[loss].name);
	for (uint32_t i = 0; i < n_wrt; i++) {
		if (wrt[i] >= graph->n_tensors || graph->tensors[wrt[i]].dtype != TERN_F32)
			return tn_fail(TERN_E_INVALID, "wrt[%u] is no f32 tensor of the graph", i);
	}
	return TERN_OK;
}

tern_status tern_graph_gradients(tern_graph *graph, tern_value loss, const tern_value *wrt, uint32_t n_wrt,
				 tern_value *grads)
{
	grad_ctx cx = {.g = graph};
	tern_status st = check_args(graph, loss, wrt, n_wrt, grads);

	if (st != TERN_OK)
		return st;
	cx.n_forward = graph->n_tensors;
	cx.needs = calloc(cx.n_forward, sizeof(*cx.needs));
	cx.parts = calloc(cx.n_forward, sizeof(*cx.parts));
	cx.n_parts = calloc(cx.n_forward, sizeof(*cx.n_parts));
	if (cx.needs && cx.parts && cx.n_parts) {
		mark_needs(&cx, wrt, n_wrt);
		st = walk(&cx, loss, wrt, n_wrt, grads);
	} else {
		st = tn_fail(TERN_E_NOMEM, "no memory for the gradients of %u tensors", cx.n_forward);
	}
	for (uint32_t i = 0; i < cx.n_forward && cx.parts; i++)
		free(cx.parts[i]);
	free(cx.parts);
	free(cx.n_parts);
	free(cx.needs);
	return st;
}
