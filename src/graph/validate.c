/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole-graph check: what building guarantees piece by piece, checked again in one go after passes have
 * rewritten a graph, plus what can only be seen as a whole (control cycles, placement, ports).
 *
 * Thread story: reads the graph only. Tests: tests/unit/graph/ir_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/deps.h"
#include "graph/ir.h"

static tern_status check_node(const tern_graph *g, uint32_t i)
{
	const tn_node *n = &g->nodes[i];
	tn_infer x = {.graph = g, .node = n};
	tern_status st;

	for (uint32_t k = 0; k < n->n_in; k++) {
		if (n->in[k] >= g->n_tensors || g->tensors[n->in[k]].node >= i) {
			return tn_fail(TERN_E_INVALID, "node '%s': input %u is not made by an earlier node",
				       n->name, k);
		}
	}
	for (uint32_t k = 0; k < n->n_ctrl; k++) {
		if (n->ctrl[k] >= g->n_nodes)
			return tn_fail(TERN_E_INVALID, "node '%s': control edge from no node", n->name);
	}
	if (n->n_out && tn_op_table[n->op].in_max == 0) {
		x.dtype[0] = g->tensors[n->out[0]].dtype;
		x.shape[0] = g->tensors[n->out[0]].shape;
	}
	st = tn_infer_node(&x);
	for (uint32_t k = 0; k < n->n_out && st == TERN_OK; k++) {
		const tn_tensor *t = &g->tensors[n->out[k]];

		if (t->node != i || t->output != k || t->dtype != x.dtype[k] ||
		    !tn_shape_equal(&t->shape, &x.shape[k])) {
			return tn_fail(TERN_E_SHAPE, "node '%s': output %u does not have the inferred shape",
				       n->name, k);
		}
	}
	return st;
}

tern_status tn_deps_make(const tern_graph *g, tn_deps *d)
{
	uint32_t edges = 0, *fill;

	for (uint32_t i = 0; i < g->n_nodes; i++)
		edges += g->nodes[i].n_in + g->nodes[i].n_ctrl;
	*d = (tn_deps){.n_nodes = g->n_nodes};
	d->first = calloc(g->n_nodes + 2, sizeof(*d->first));
	d->next = calloc(edges + 1, sizeof(*d->next));
	d->pending = calloc(g->n_nodes + 1, sizeof(*d->pending));
	if (!d->first || !d->next || !d->pending) {
		tn_deps_free(d);
		return tn_fail(TERN_E_NOMEM, "no memory for the dependencies of %u nodes", g->n_nodes);
	}
	/* Count into first[from + 2], sum up, then use first[from + 1] as the place to fill: it ends up right. */
	fill = d->first + 1;
	for (uint32_t pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < g->n_nodes; i++) {
			const tn_node *n = &g->nodes[i];

			for (uint32_t k = 0; k < n->n_in + n->n_ctrl; k++) {
				uint32_t from =
					k < n->n_in ? g->tensors[n->in[k]].node : n->ctrl[k - n->n_in];

				if (pass == 0 && from + 2 <= g->n_nodes)
					d->first[from + 2]++;
				else if (pass == 1)
					d->next[fill[from]++] = i;
			}
			if (pass == 1)
				d->pending[i] = n->n_in + n->n_ctrl;
		}
		for (uint32_t i = 2; i <= g->n_nodes && pass == 0; i++)
			d->first[i] += d->first[i - 1];
	}
	return TERN_OK;
}

void tn_deps_free(tn_deps *deps)
{
	free(deps->first);
	free(deps->next);
	free(deps->pending);
	*deps = (tn_deps){0};
}

tern_status tn_deps_acyclic(const tern_graph *g, const tn_deps *d)
{
	uint32_t *pending = malloc((g->n_nodes + 1) * sizeof(*pending));
	uint32_t *order = malloc((g->n_nodes + 1) * sizeof(*order));
	uint32_t head = 0, tail = 0;
	tern_status st = TERN_OK;

	if (!pending || !order) {
		free(pending);
		free(order);
		return tn_fail(TERN_E_NOMEM, "no memory to order %u nodes", g->n_nodes);
	}
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		pending[i] = d->pending[i];
		if (pending[i] == 0)
			order[tail++] = i;
	}
	for (; head < tail; head++) {
		for (uint32_t k = d->first[order[head]]; k < d->first[order[head] + 1]; k++) {
			if (--pending[d->next[k]] == 0)
				order[tail++] = d->next[k];
		}
	}
	for (uint32_t i = 0; i < g->n_nodes && tail < g->n_nodes && st == TERN_OK; i++) {
		if (pending[i])
			st = tn_fail(TERN_E_INVALID,
				     "node '%s' waits for itself: its control edges form a cycle",
				     g->nodes[i].name);
	}
	free(pending);
	free(order);
	return st;
}

tern_status tern_graph_check(const tern_graph *graph)
{
	tn_deps deps;
	tern_status st = TERN_OK;

	if (!graph)
		return tn_fail(TERN_E_INVALID, "graph must not be NULL");
	for (uint32_t i = 0; i < graph->n_nodes && st == TERN_OK; i++)
		st = check_node(graph, i);
	for (uint32_t i = 0; i < graph->n_ports && st == TERN_OK; i++) {
		if (graph->ports[i].tensor >= graph->n_tensors)
			st = tn_fail(TERN_E_INVALID, "port '%s' names no tensor", graph->ports[i].name);
	}
	if (st == TERN_OK)
		st = tn_deps_make(graph, &deps);
	if (st != TERN_OK)
		return st;
	st = tn_deps_acyclic(graph, &deps);
	tn_deps_free(&deps);
	return st;
}
