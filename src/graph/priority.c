/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When each edge's tensor is needed: what the executor orders sends and receives by. The smaller the earlier.
 *
 *   in the same step   activations and their gradients between stages: the place of the first op that reads it, before
 *                      all others, because somebody computes nothing until they come
 *   by the next step   variables: the place of the first op that reads it, in the order of the forward pass; gradients: the
 *                      first need of the variables that are sent on because of them
 *
 * Backward passes make gradients in the opposite order of the need, so those of the first layers come last and go first.
 * A pure function of the plan. Tests: tests/unit/graph/plan_test.c, exec_crew_test.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "graph/deps.h"
#include "graph/plan.h"

#define NEXT_STEP 0x80000000u

typedef struct prioritiser {
	tern_plan *plan;
	tn_deps *deps;   /* per device */
	uint32_t *stack; /* of the device with the most nodes */
	uint32_t *seen;  /* per node: the search that was there last */
	uint32_t search;
} prioritiser;

static bool at_start(const tern_plan *plan, const tn_edge *e)
{
	return tn_node_int(&plan->devices[e->src].graph->nodes[e->send_node], TN_ATTR_PROLOGUE, 0) != 0;
}

/* The place of the first op that reads what comes; joins and views only say where it is. */
static uint32_t first_use(prioritiser *x, const tn_edge *e)
{
	const tn_device *d = &x->plan->devices[e->dst];
	const tn_deps *deps = &x->deps[e->dst];
	uint32_t n = 0, first = NEXT_STEP - 1;

	x->search++;
	x->stack[n++] = e->recv_node;
	while (n > 0) {
		uint32_t node = x->stack[--n];

		for (uint32_t k = deps->first[node]; k < deps->first[node + 1]; k++) {
			uint32_t next = deps->next[k];

			if (x->seen[next] == x->search)
				continue;
			x->seen[next] = x->search;
			if (tn_op_flags(d->graph->nodes[next].op) & (TN_OPF_JOIN | TN_OPF_VIEW))
				x->stack[n++] = next;
			else if (d->position[next] < first)
				first = d->position[next];
		}
	}
	return first;
}

/* The least need of variables that are sent because the edge's tensor has come; TN_NONE: of none. */
static uint32_t leads_to(prioritiser *x, const tn_edge *e)
{
	const tern_graph *g = x->plan->devices[e->dst].graph;
	const tn_deps *deps = &x->deps[e->dst];
	uint32_t n = 0, least = TN_NONE;

	x->search++;
	x->stack[n++] = e->recv_node;
	while (n > 0) {
		uint32_t node = x->stack[--n];

		for (uint32_t k = deps->first[node]; k < deps->first[node + 1]; k++) {
			uint32_t next = deps->next[k];

			if (x->seen[next] == x->search)
				continue;
			x->seen[next] = x->search;
			x->stack[n++] = next;
			if (tn_node_int(&g->nodes[next], TN_ATTR_PROLOGUE, 0)) {
				const tn_edge *sent =
					&x->plan->edges[tn_node_int(&g->nodes[next], TN_ATTR_EDGE, 0)];

				least = sent->need < least ? sent->need : least;
			}
		}
	}
	return least;
}

static void give_needs(prioritiser *x)
{
	for (uint32_t i = 0; i < x->plan->n_edges; i++) {
		tn_edge *e = &x->plan->edges[i];

		e->need = first_use(x, e);
		if (at_start(x->plan, e))
			e->need |= NEXT_STEP;
	}
	for (uint32_t i = 0; i < x->plan->n_edges; i++) {
		tn_edge *e = &x->plan->edges[i];
		uint32_t need = at_start(x->plan, e) ? TN_NONE : leads_to(x, e);

		if (need != TN_NONE)
			e->need = need;
	}
}

tern_status tn_priorities(tern_plan *plan)
{
	prioritiser x = {.plan = plan};
	tern_status st = TERN_OK;
	uint32_t most = 0;

	for (uint32_t d = 0; d < plan->n_devices; d++)
		most = plan->devices[d].graph->n_nodes > most ? plan->devices[d].graph->n_nodes : most;
	x.deps = calloc(plan->n_devices + 1, sizeof(*x.deps));
	x.stack = calloc(most + 1, sizeof(*x.stack));
	x.seen = calloc(most + 1, sizeof(*x.seen));
	if (!x.deps || !x.stack || !x.seen)
		st = tn_fail(TERN_E_NOMEM, "no memory to order %u edges", plan->n_edges);
	for (uint32_t d = 0; d < plan->n_devices && st == TERN_OK; d++)
		st = tn_deps_make(plan->devices[d].graph, &x.deps[d]);
	if (st == TERN_OK)
		give_needs(&x);
	for (uint32_t d = 0; d < plan->n_devices && x.deps; d++)
		tn_deps_free(&x.deps[d]);
	free(x.deps);
	free(x.stack);
	free(x.seen);
	return st;
}
