/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that the transfer does: sends, receives, joins; slots that go back after their last reader; memory that must not
 * be written while a send reads it.
 *
 * Threads: the executor's (the captain). Tests: tests/unit/graph/exec_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec_int.h"

/* ---- transfers ---- */

/* Measures the transfer's functions; the text of a failure says where it happened. */
static tern_status comm_done(tn_exec *e, const exec_end *end, uint64_t step, uint64_t t0, tern_status st)
{
	uint64_t t1 = tn_now();

	e->stats.comm_ns += t1 - t0;
	if (st == TERN_OK)
		tn_exec_trace_add(&e->trace, TN_EVENT_COMM, end->node, step, t0, t1);
	if (st != TERN_OK && st != TERN_AGAIN) {
		tn_detail_prefix("%s: tensor '%s' %s %s", e->graph->name, end->edge->name,
				 end->is_send ? "to" : "from",
				 e->plan->devices[end->is_send ? end->edge->dst : end->edge->src].name);
	}
	return st;
}

tern_status tn_exec_test_send(tn_exec *e, exec_end *end)
{
	exec_tensor *roots = e->progs[TN_PROG_TRAIN].tensors;
	uint64_t t0 = tn_now();
	tern_status st = comm_done(e, end, end->posted_step, t0, e->xfer->ops->send_test(end->end));

	if (st == TERN_OK) {
		TN_ASSERT(roots[end->root].posted > 0);
		end->posted = false;
		tn_exec_trace_add(&e->trace, TN_EVENT_FLIGHT, end->node, end->posted_step, end->posted_ns,
				  t0);
		roots[end->root].posted--;
	}
	return st;
}

/*
 * Looks at every send that is posted. One that failed is seen here: its memory may be written again only after a tensor
 * that its receiver, which lacks this one, will never send. *some: at least one is over.
 */
tern_status tn_exec_test_posted(tn_exec *e, bool *some)
{
	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];
		tern_status st = end->is_send && end->posted ? tn_exec_test_send(e, end) : TERN_AGAIN;

		if (st != TERN_OK && st != TERN_AGAIN)
			return st;
		*some |= st == TERN_OK;
	}
	return TERN_OK;
}

/* TERN_OK if no send reads the root's memory any more. */
static tern_status test_root(tn_exec *e, uint32_t root)
{
	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];

		if (end->is_send && end->posted && end->root == root)
			TN_TRY(tn_exec_test_send(e, end));
	}
	TN_ASSERT(e->progs[TN_PROG_TRAIN].tensors[root].posted == 0);
	return TERN_OK;
}

static tern_status post(tn_exec *e, exec_prog *p, exec_end *end, uint64_t step)
{
	uint32_t tensor = e->graph->nodes[end->node].in[0];
	const exec_tensor *t = &p->tensors[tensor];

	if (end->edge->is_static)
		return e->xfer->ops->send_post(end->end, tn_exec_data(p, tensor), end->edge->bytes, step);
	return e->xfer->ops->send_shaped(end->end, tn_exec_data(p, tensor), t->bytes, &t->shape, step);
}

/*
 * Stale synchronous (Ho et al. 2013): a worker gets the variable for its step t = `step` + 1 only when the
 * gradients of everybody's steps up to t - 1 - stale are applied.
 */
bool tn_exec_too_far_ahead(const tn_exec *e, const exec_prog *p, uint32_t node, uint64_t step)
{
	const tn_node *n = &e->graph->nodes[node];
	uint64_t stale = (uint64_t)tn_node_int(n, TN_ATTR_STALE, 0);
	uint32_t own = e->graph->tensors[n->in[0]].node;

	if (!stale || !(tn_op_flags(e->graph->nodes[own].op) & TN_OPF_INPLACE))
		return false;
	for (uint32_t w = p->nodes[own].next_writer; w != own; w = p->nodes[w].next_writer) {
		if (p->nodes[w].runs + stale < step + 1)
			return true;
	}
	return false;
}

tern_status tn_exec_send(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	exec_end *end = &e->ends[e->end_of[node]];
	exec_tensor *root = &p->tensors[end->root];
	tn_op source = e->graph->nodes[e->graph->tensors[end->root].node].op;
	uint64_t t0;
	tern_status st;

	TN_ASSERT(end->is_send && p->id == TN_PROG_TRAIN);
	if (end->posted)
		TN_TRY(tn_exec_test_send(e, end));
	if (p->nodes[node].posted) /* it was waiting for just that */
		return TERN_OK;
	if (root->busy)
		return TERN_AGAIN;
	if (p->chains[p->nodes[node].chain].left > 0 && tn_exec_too_far_ahead(e, p, node, step))
		return TERN_AGAIN;
	t0 = tn_now();
	st = comm_done(e, end, step, t0, post(e, p, end, step));
	if (st != TERN_OK)
		return st;
	end->posted = true;
	end->posted_ns = t0;
	end->posted_step = step;
	root->posted++;
	/* Memory that is not the executor's goes back at the end of the step: the send is done when it is free. */
	p->nodes[node].posted =
		source == TN_OP_PLACEHOLDER || (tn_op_flags(source) & (TN_OPF_RECV | TN_OPF_JOIN));
	return p->nodes[node].posted ? tn_exec_test_send(e, end) : TERN_OK;
}

tern_status tn_exec_release(tn_exec *e, exec_end *end)
{
	uint64_t t0 = tn_now();

	TN_ASSERT(end->held != NULL);
	end->held = NULL;
	end->consumed = false;
	return comm_done(e, end, 0, t0, e->xfer->ops->recv_release(end->end));
}

tern_status tn_exec_poll(tn_exec *e, exec_end *end, uint64_t step)
{
	uint64_t t0 = tn_now();

	TN_TRY(comm_done(e, end, step, t0,
			 end->edge->is_static
				 ? e->xfer->ops->recv_poll(end->end, &end->held)
				 : e->xfer->ops->poll_shaped(end->end, &end->held, &end->shape)));
	TN_ASSERT(end->held != NULL);
	return TERN_OK;
}

/* A dynamic tensor must have the sizes that this step was bound to. */
static tern_status check_shape(const tn_exec *e, const exec_prog *p, const exec_end *end)
{
	const tern_shape *bound = &p->tensors[e->graph->nodes[end->node].out[0]].shape;

	if (end->edge->is_static ||
	    (end->shape.rank == bound->rank &&
	     memcmp(end->shape.dims, bound->dims, bound->rank * sizeof(*bound->dims)) == 0))
		return TERN_OK;
	return tn_fail(TERN_E_SHAPE, "%s: '%s' from %s has other sizes than the step", e->graph->name,
		       end->edge->name, e->plan->devices[end->edge->src].name);
}

tern_status tn_exec_recv(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	exec_end *end = &e->ends[e->end_of[node]];

	TN_ASSERT(!end->is_send);
	if (end->held && end->consumed) /* kept only for an output port of the step before */
		TN_TRY(tn_exec_release(e, end));
	if (!end->held)
		TN_TRY(tn_exec_poll(e, end, step));
	TN_TRY(check_shape(e, p, end));
	p->tensors[e->graph->nodes[node].out[0]].data = (void *)(uintptr_t)end->held; /* never written */
	return TERN_OK;
}

/* The parts lie in one memory, that of the transfer's whole: nothing to do but to say where. */
void tn_exec_join(tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	char *at = tn_exec_data(p, n->in[0]);

	p->tensors[n->out[0]].data = at;
	for (uint32_t k = 0; k < n->n_in; k++) {
		TN_ASSERT((char *)tn_exec_data(p, n->in[k]) == at);
		at += p->tensors[n->in[k]].bytes;
	}
}

static tern_status was_read(tn_exec *e, exec_prog *p, uint32_t tensor);

/* A received or joined tensor has lost its last reader of this step. */
static tern_status last_read(tn_exec *e, exec_prog *p, uint32_t root)
{
	const tn_node *n = &e->graph->nodes[e->graph->tensors[root].node];
	exec_end *end;

	for (uint32_t k = 0; k < n->n_in; k++) /* a join: its parts were read as well */
		TN_TRY(was_read(e, p, n->in[k]));
	if (n->n_in > 0)
		return TERN_OK;
	end = &e->ends[e->end_of[e->graph->tensors[root].node]];
	if (p->id == TN_PROG_EVAL)
		return TERN_OK;
	if (p->tensors[root].pinned) {
		end->consumed = true;
		return TERN_OK;
	}
	return tn_exec_release(e, end);
}

static tern_status was_read(tn_exec *e, exec_prog *p, uint32_t tensor)
{
	uint32_t root = p->tensors[tensor].root;

	if (!(tn_op_flags(e->graph->nodes[e->graph->tensors[root].node].op) & (TN_OPF_RECV | TN_OPF_JOIN)))
		return TERN_OK;
	TN_ASSERT(p->tensors[root].left > 0);
	return --p->tensors[root].left == 0 ? last_read(e, p, root) : TERN_OK;
}

tern_status tn_exec_was_read(tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];

	for (uint32_t k = 0; k < n->n_in && !(tn_op_flags(n->op) & TN_OPF_JOIN); k++)
		TN_TRY(was_read(e, p, n->in[k]));
	if ((tn_op_flags(n->op) & (TN_OPF_RECV | TN_OPF_JOIN)) && p->tensors[n->out[0]].readers == 0)
		return last_read(e, p, n->out[0]);
	return TERN_OK;
}

/* ---- memory that is written ---- */

/* The roots that a node writes: those of its outputs, and of the inputs that it writes as well. */
static uint32_t written(const exec_prog *p, const tn_node *n, uint32_t k)
{
	if (k < n->n_out)
		return p->tensors[n->out[k]].root;
	k -= n->n_out;
	return k < n->n_in && tn_node_writes_input(n, k) ? p->tensors[n->in[k]].root : TN_NONE;
}

tern_status tn_exec_writable(tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	uint32_t root;

	for (uint32_t k = 0; (root = written(p, n, k)) != TN_NONE; k++) {
		if (p->tensors[root].busy)
			return TERN_AGAIN;
		if (p->id == TN_PROG_TRAIN && p->tensors[root].posted)
			TN_TRY(test_root(e, root));
	}
	return TERN_OK;
}

void tn_exec_mark_busy(tn_exec *e, exec_prog *p, uint32_t node, bool busy)
{
	const tn_node *n = &e->graph->nodes[node];
	uint32_t root;

	for (uint32_t k = 0; (root = written(p, n, k)) != TN_NONE; k++)
		p->tensors[root].busy = busy;
}
