/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Analyse and rewrite. For each edge: is its shape known before the first step (static) or not, how many
 * bytes it moves per step, in whose memory the sent tensor lies once views and in-place ops are followed,
 * and so which copies are left. Then Send/Recv become the pair that moves the tensor without a copy, where the
 * plan wants that and the sender's memory can be registered:
 *
 *   static    RdmaSend/RdmaRecv: one write into the receiver's slot, and a notification
 *   dynamic   RdmaSendDynamic/RdmaRecvDynamic: a small write of the tensor's metadata (dims, address, key,
 *             generation), a one-sided read by the receiver, an acknowledgement that frees the source
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

/* ---- the tracker ---- */

/*
 * Follows the sent tensor to where its memory is allocated, through views, parts, in-place ops and what is
 * forwarded. The site of an edge is what an executor allocates in registered memory.
 */
static tern_status track(const tern_plan *plan, tn_edge *e)
{
	const tern_graph *g = plan->devices[e->src].graph;
	uint32_t tensor = g->nodes[e->send_node].in[0];
	const tn_node *n = &g->nodes[g->tensors[tensor].node];
	tn_str text;

	tn_str_init(&text);
	while (g->tensors[tensor].output == 0 && tn_op_flags(n->op) & (TN_OPF_VIEW | TN_OPF_INPLACE)) {
		tn_str_addf(&text, "%s of ", tn_op_table[n->op].name);
		tensor = n->in[0];
		n = &g->nodes[g->tensors[tensor].node];
	}
	e->site_tensor = tensor;
	if (tn_op_flags(n->op) & (TN_OPF_RECV | TN_OPF_JOIN))
		tn_str_addf(&text, "receive slot '%s'", g->tensors[tensor].name);
	else
		tn_str_addf(&text, "%s '%s'", tn_op_table[n->op].name, g->tensors[tensor].name);
	e->site = tn_str_take(&text);
	return e->site ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for the plan");
}

/* Why the sender's memory cannot be registered; NULL if it can. Slots that are forwarded from are. */
static const char *unregistered(const tern_plan *plan, const tn_edge *e)
{
	const tern_graph *g = plan->devices[e->src].graph;

	if (g->nodes[g->tensors[e->site_tensor].node].op == TN_OP_PLACEHOLDER)
		return "the caller feeds this tensor from memory of its own: staged at the sender";
	return NULL;
}

static void analyse_copies(const tern_plan *plan, tn_edge *e)
{
	const char *why = unregistered(plan, e);

	switch (plan->params.comm) {
	case TERN_COMM_COPY:
		e->copies = 2;
		e->copy_reason =
			"mode copy: staged through a registered buffer at the sender and at the receiver";
		break;
	case TERN_COMM_RPC:
		e->copies = 2;
		e->copy_reason = "mode rpc: serialised into a message and out of it";
		break;
	case TERN_COMM_GRPC:
		e->copies = 2;
		e->copy_reason = "mode grpc: serialised into a message and out of it";
		break;
	case TERN_COMM_ZEROCOPY:
		e->copies = why != NULL;
		e->copy_reason = why ? why : "";
		break;
	case TERN_COMM_NONE: /* nothing moves */
		break;
	}
}

tern_status tn_analyse(tern_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		TN_TRY(analyse_shape(plan, &plan->edges[i]));
		TN_TRY(track(plan, &plan->edges[i]));
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
		if (unregistered(plan, e))
			continue;
		send->op = e->is_static ? TN_OP_RDMA_SEND : TN_OP_RDMA_SEND_DYNAMIC;
		recv->op = e->is_static ? TN_OP_RDMA_RECV : TN_OP_RDMA_RECV_DYNAMIC;
		e->one_sided = true;
	}
}

const char *tn_edge_ops(const tn_edge *e)
{
	if (!e->one_sided)
		return "Send/Recv";
	return e->is_static ? "RdmaSend/RdmaRecv" : "RdmaSendDynamic/RdmaRecvDynamic";
}
