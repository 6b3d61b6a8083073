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
#include "graph/grad.h"

static tern_status add_part(tn_grad *cx, uint32_t tensor, uint32_t grad)
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

tern_status tn_grad_give(tn_grad *cx, const tn_node *node, uint32_t input, uint32_t grad)
{
	return tn_grad_wanted(cx, node, input) ? add_part(cx, node->in[input], grad) : TERN_OK;
}

/* "grad/fc1/w", "grad/fc1/w.sum"; with a number when the graph has that name already. */
static void name_gradient(const tern_graph *g, const char *base, const char *suffix, char *name, size_t size)
{
	snprintf(name, size, "grad/%s%s", base, suffix);
	for (uint32_t i = 1; tn_graph_find(g, name) != TN_NONE; i++)
		snprintf(name, size, "grad/%s%s.%u", base, suffix, i);
}

/* Named after the tensor that it is the gradient of. */
tern_status tn_grad_emit(tn_grad *cx, const tn_node *node, uint32_t input, tn_op op, const uint32_t *in,
			 uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs)
{
	uint32_t grad;
	char name[2 * TN_NAME_MAX];
	tern_status st;

	if (!tn_grad_wanted(cx, node, input))
		return TERN_OK;
	name_gradient(cx->g, tn_grad_input(cx, node, input)->name, "", name, sizeof(name));
	st = tn_graph_add1(cx->g, op, name, in, n_in, attrs, n_attrs, node->device, &grad);
	return st == TERN_OK ? add_part(cx, node->in[input], grad) : st;
}

tern_status tn_grad_node(tn_grad *cx, const tn_node *node, tn_op op, const uint32_t *in, uint32_t n_in,
			 const tn_attr *attrs, uint32_t n_attrs, uint32_t *outs)
{
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = op,
			     .name = name,
			     .in = in,
			     .n_in = n_in,
			     .attrs = attrs,
			     .n_attrs = n_attrs,
			     .device = node->device};
	uint32_t added;

	name_gradient(cx->g, node->name, ".by", name, sizeof(name));
	TN_TRY(tn_graph_add(cx->g, &spec, &added));
	for (uint32_t i = 0; i < cx->g->nodes[added].n_out; i++)
		outs[i] = cx->g->nodes[added].out[i];
	return TERN_OK;
}

tern_status tn_grad_constant(tn_grad *cx, const tn_node *node, float value, uint32_t *tensor)
{
	tern_shape scalar = {0};
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_CONSTANT,
			     .name = name,
			     .dtype = TERN_F32,
			     .shape = &scalar,
			     .data = &value,
			     .device = node->device};
	uint32_t added;

	name_gradient(cx->g, node->name, ".const", name, sizeof(name));
	TN_TRY(tn_graph_add(cx->g, &spec, &added));
	*tensor = cx->g->nodes[added].out[0];
	return TERN_OK;
}

tern_status tn_grad_zeros(tn_grad *cx, const tn_node *node, const tern_shape *shape, uint32_t *tensor)
{
	tn_attr a = tn_attr_shape(TN_ATTR_SHAPE, shape);

	TN_TRY(tn_grad_constant(cx, node, 0.0f, tensor));
	return tn_grad_node(cx, node, TN_OP_EXPAND, (uint32_t[]){*tensor}, 1, &a, 1, tensor);
}

tern_status tn_grad_give_sum(tn_grad *cx, const tn_node *node, uint32_t input, uint32_t grad)
{
	const tern_shape *want = &tn_grad_input(cx, node, input)->shape;
	tn_attr a = tn_attr_shape(TN_ATTR_SHAPE, want);

	if (tn_shape_equal(want, &cx->g->tensors[grad].shape))
		return tn_grad_give(cx, node, input, grad);
	return tn_grad_emit(cx, node, input, TN_OP_SUM_TO, &grad, 1, &a, 1);
}

tern_status tn_grad_emit_sum(tn_grad *cx, const tn_node *node, uint32_t input, tn_op op, const uint32_t *in,
			     uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs)
{
	uint32_t outs[TN_OUTS_MAX];

	if (!tn_grad_wanted(cx, node, input))
		return TERN_OK;
	TN_TRY(tn_grad_node(cx, node, op, in, n_in, attrs, n_attrs, outs));
	return tn_grad_give_sum(cx, node, input, outs[0]);
}

static const tn_grad_fn grad_table[TN_OP_COUNT] = {
#define TN_GRAD_ENTRY(op, rule) [TN_OP_##op] = tn_grad_rule_##rule,
	TN_GRAD_MAP(TN_GRAD_ENTRY)
#undef TN_GRAD_ENTRY
};

/* ---- the walk ---- */

/* The gradient of a tensor: its only part, or the sum of its parts. TN_NONE if it has none. */
static tern_status total(tn_grad *cx, uint32_t tensor, int32_t device, uint32_t *grad)
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

static tern_status backward_node(tn_grad *cx, uint32_t i)
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

static void mark_needs(tn_grad *cx, const tern_value *wrt, uint32_t n_wrt)
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

static tern_status walk(tn_grad *cx, tern_value loss, const tern_value *wrt, uint32_t n_wrt,
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
		st = add_part(cx, loss, cx->g->nodes[seed].out[0]);
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
	tn_grad cx = {.g = graph};
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
