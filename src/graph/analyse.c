/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Analyse and rewrite. For each edge: is its shape known before the first step (static) or not, how many
 * bytes it moves per step, in whose memory the sent tensor lies once views and in-place ops are followed,
 * and so which copies are left. Then Send/Recv of static edges become RdmaSend/RdmaRecv where the plan wants
 * zero-copy and the sender's memory can be registered.
 *
 * No copy without a reason: an edge either has 0 copies or a text that says why.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c and the golden plans.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/plan.h"

static const char reason_static[] = "every dim is known before the first step";
static const char reason_bound[] =
	"every dim is known before the first step: the job gives symbols their sizes";

bool tn_plan_dim(const tern_plan *plan, const char *symbol, uint64_t *size, bool *varies)
{
	for (uint32_t i = 0; i < TERN_PLAN_DIMS_MAX && plan->params.dims[i].name; i++) {
		*varies = plan->params.dims[i].varies != 0;
		if (tn_symbol_size(symbol, plan->params.dims[i].name, plan->params.dims[i].size, size))
			return true;
	}
	return false;
}

/* Static: every dim is a number or has a size that is known and stays. Binds what is known. */
static tern_status analyse_shape(const tern_plan *plan, tn_edge *e)
{
	const tern_graph *g = plan->devices[e->src].graph;
	tern_shape bound = e->shape;
	bool known = true, symbolic = false;
	tn_str text;

	tn_str_init(&text);
	e->is_static = true;
	for (uint32_t i = 0; i < e->shape.rank; i++) {
		const char *symbol;
		bool varies = true, sized;

		if (!tn_dim_symbolic(e->shape.dims[i]))
			continue;
		symbol = g->symbols[tn_dim_symbol(e->shape.dims[i])];
		sized = tn_plan_dim(plan, symbol, &bound.dims[i], &varies);
		known &= sized;
		symbolic = true;
		if ((!sized || varies) && e->is_static)
			tn_str_addf(&text,
				    sized ? "dim %u (%s) differs from step to step"
					  : "dim %u (%s) is known only when a step runs",
				    i, symbol);
		e->is_static &= sized && !varies;
	}
	if (e->is_static)
		tn_str_add(&text, symbolic ? reason_bound : reason_static);
	e->reason = tn_str_take(&text);
	if (!e->reason)
		return tn_fail(TERN_E_NOMEM, "no memory for the plan");
	if (e->is_static)
		e->shape = bound;
	return known ? tn_shape_bytes(&bound, e->dtype, &e->bytes) : TERN_OK;
}

/* Why the sender's memory cannot be registered; NULL if it can. */
static const char *unregistered(const tern_plan *plan, const tn_edge *e)
{
	const tern_graph *g = plan->devices[e->src].graph;
	uint32_t root = tn_graph_root(g, g->nodes[e->send_node].in[0]);
	tn_op op = g->nodes[g->tensors[root].node].op;

	if (op == TN_OP_PLACEHOLDER)
		return "the caller feeds this tensor from memory of its own: staged at the sender";
	return NULL;
}

static void analyse_copies(const tern_plan *plan, tn_edge *e)
{
	const char *why = unregistered(plan, e);

	if (plan->params.comm == TERN_COMM_COPY) {
		e->copies = 2;
		e->copy_reason =
			"mode copy: staged through a registered buffer at the sender and at the receiver";
	} else if (plan->params.comm == TERN_COMM_RPC) {
		e->copies = 2;
		e->copy_reason = "mode rpc: serialised into a message and out of it";
	} else if (plan->params.comm == TERN_COMM_GRPC) {
		e->copies = 2;
		e->copy_reason = "mode grpc: serialised into a message and out of it";
	} else if (plan->params.comm == TERN_COMM_NONE) {
		e->copies = 0; /* nothing moves */
	} else if (!e->is_static) {
		e->copies = 0; /* the receiver reads one-sided from the sender's memory */
	} else if (why) {
		e->copies = 1;
		e->copy_reason = why;
	}
}

tern_status tn_analyse(tern_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		tern_status st = analyse_shape(plan, &plan->edges[i]);

		if (st != TERN_OK)
			return st;
		analyse_copies(plan, &plan->edges[i]);
	}
	return TERN_OK;
}

void tn_rewrite(tern_plan *plan)
{
	if (plan->params.comm != TERN_COMM_ZEROCOPY && plan->params.comm != TERN_COMM_NONE)
		return;
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		tn_edge *e = &plan->edges[i];
		tn_node *send = &plan->devices[e->src].graph->nodes[e->send_node];
		tn_node *recv = &plan->devices[e->dst].graph->nodes[e->recv_node];

		TN_ASSERT(send->op == TN_OP_SEND && recv->op == TN_OP_RECV);
		if (!e->is_static || unregistered(plan, e))
			continue;
		send->op = TN_OP_RDMA_SEND;
		recv->op = TN_OP_RDMA_RECV;
		e->one_sided = true;
	}
}
