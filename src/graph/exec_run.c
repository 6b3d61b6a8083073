/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler. One loop takes nodes from a queue; a node either is done or goes to the tail.
 *
 *            arm chain                     take                       kernel, send or receive done
 *   (idle) ------------> waiting/queued ---------> running ----------------------------------> done
 *                             ^                       | not there, no slot, buffer in flight      |
 *                             +------- tail of queue -+                                           |
 *   (idle) <--- chain.left == 0 <-----------------------------------------------------------------+
 *
 * After a whole round without progress, the transfer's wait(). No allocation, no lock, no system call but
 * the clock and what the transfer does.
 *
 * Thread story: see exec.h. Tests: tests/unit/graph/exec_test.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec_int.h"

/* ---- the queue ---- */

static void push_back(exec_prog *p, uint32_t node)
{
	TN_ASSERT(p->queue_len <= p->queue_mask);
	p->queue[(p->queue_head + p->queue_len++) & p->queue_mask] = node;
}

static void push_front(exec_prog *p, uint32_t node)
{
	TN_ASSERT(p->queue_len <= p->queue_mask);
	p->queue_head = (p->queue_head - 1) & p->queue_mask;
	p->queue[p->queue_head] = node;
	p->queue_len++;
}

static uint32_t pop_front(exec_prog *p)
{
	uint32_t node = p->queue[p->queue_head];

	TN_ASSERT(p->queue_len > 0);
	p->queue_head = (p->queue_head + 1) & p->queue_mask;
	p->queue_len--;
	return node;
}

/* Sends first: the earlier they start, the more of them hides behind compute. */
static void push_ready(const tn_exec *e, exec_prog *p, uint32_t node)
{
	if (tn_op_flags(e->graph->nodes[node].op) & TN_OPF_SEND)
		push_front(p, node);
	else
		push_back(p, node);
}

/* ---- chains ---- */

static void arm_chain(tn_exec *e, exec_prog *p, exec_chain *c)
{
	c->left = c->n;
	for (uint32_t i = c->first; i < c->first + c->n; i++) {
		uint32_t node = p->chain_nodes[i];

		p->nodes[node].pending = p->nodes[node].pending_init;
		p->nodes[node].posted = false;
		if (tn_op_flags(e->graph->nodes[node].op) & (TN_OPF_RECV | TN_OPF_JOIN)) {
			exec_tensor *t = &p->tensors[e->graph->nodes[node].out[0]];

			t->left = t->readers;
		}
	}
	for (uint32_t i = c->first; i < c->first + c->n; i++) {
		if (p->nodes[p->chain_nodes[i]].pending == 0)
			push_ready(e, p, p->chain_nodes[i]);
	}
}

void tn_exec_open_steps(tn_exec *e, exec_prog *p, uint64_t n)
{
	TN_ASSERT(p->open_chains == 0 && n > 0);
	for (uint32_t i = 0; i < p->n_chains; i++) {
		p->chains[i].target = p->chains[i].step + n;
		p->open_chains++;
		arm_chain(e, p, &p->chains[i]);
	}
}

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

static tern_status test_send(tn_exec *e, exec_end *end)
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

/* TERN_OK if no send reads the root's memory any more. */
static tern_status test_root(tn_exec *e, uint32_t root)
{
	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];

		if (end->is_send && end->posted && end->root == root)
			TN_TRY(test_send(e, end));
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
static bool too_far_ahead(const tn_exec *e, const exec_prog *p, uint32_t node, uint64_t step)
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

static tern_status run_send(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	exec_end *end = &e->ends[e->end_of[node]];
	exec_tensor *root = &p->tensors[end->root];
	tn_op source = e->graph->nodes[e->graph->tensors[end->root].node].op;
	uint64_t t0;
	tern_status st;

	TN_ASSERT(end->is_send && p->id == TN_PROG_TRAIN);
	if (end->posted)
		TN_TRY(test_send(e, end));
	if (p->nodes[node].posted) /* it was waiting for just that */
		return TERN_OK;
	if (p->chains[p->nodes[node].chain].left > 0 && too_far_ahead(e, p, node, step))
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
	return p->nodes[node].posted ? test_send(e, end) : TERN_OK;
}

static tern_status release(tn_exec *e, exec_end *end)
{
	uint64_t t0 = tn_now();

	TN_ASSERT(end->held != NULL);
	end->held = NULL;
	end->consumed = false;
	return comm_done(e, end, 0, t0, e->xfer->ops->recv_release(end->end));
}

static tern_status poll(tn_exec *e, exec_end *end, uint64_t step)
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

static tern_status run_recv(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	exec_end *end = &e->ends[e->end_of[node]];

	TN_ASSERT(!end->is_send);
	if (end->held && end->consumed) /* kept only for an output port of the step before */
		TN_TRY(release(e, end));
	if (!end->held)
		TN_TRY(poll(e, end, step));
	TN_TRY(check_shape(e, p, end));
	p->tensors[e->graph->nodes[node].out[0]].data = (void *)(uintptr_t)end->held; /* never written */
	return TERN_OK;
}

static tern_status was_read(tn_exec *e, exec_prog *p, uint32_t tensor);

/* The parts lie in one memory, that of the transfer's whole: nothing to do but to say where. */
static tern_status run_join(tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	char *at = tn_exec_data(p, n->in[0]);

	p->tensors[n->out[0]].data = at;
	for (uint32_t k = 0; k < n->n_in; k++) {
		TN_ASSERT((char *)tn_exec_data(p, n->in[k]) == at);
		at += p->tensors[n->in[k]].bytes;
	}
	return TERN_OK;
}

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
	return release(e, end);
}

static tern_status was_read(tn_exec *e, exec_prog *p, uint32_t tensor)
{
	uint32_t root = p->tensors[tensor].root;

	if (!(tn_op_flags(e->graph->nodes[e->graph->tensors[root].node].op) & (TN_OPF_RECV | TN_OPF_JOIN)))
		return TERN_OK;
	TN_ASSERT(p->tensors[root].left > 0);
	return --p->tensors[root].left == 0 ? last_read(e, p, root) : TERN_OK;
}

/* ---- compute ---- */

/* Memory that the node writes must not be under way to a peer. */
static tern_status writable(tn_exec *e, exec_prog *p, const tn_node *n)
{
	if (p->id != TN_PROG_TRAIN)
		return TERN_OK;
	for (uint32_t k = 0; k < n->n_out; k++) {
		uint32_t root = p->tensors[n->out[k]].root;

		if (p->tensors[root].posted)
			TN_TRY(test_root(e, root));
	}
	for (uint32_t k = 1; k < n->n_in && tn_node_writes_input(n, k); k++) {
		uint32_t root = p->tensors[n->in[k]].root;

		if (p->tensors[root].posted)
			TN_TRY(test_root(e, root));
	}
	return TERN_OK;
}

static void fill_pointers(const tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	exec_node *x = &p->nodes[node];

	for (uint32_t k = 0; k < n->n_in; k++) {
		x->in[k] = tn_exec_data(p, n->in[k]);
		TN_ASSERT(x->in[k] != NULL);
	}
	for (uint32_t k = 0; k < n->n_out; k++)
		x->out[k] = tn_exec_data(p, n->out[k]);
}

static tern_status run_kernel(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	exec_node *x = &p->nodes[node];
	tn_kern_io io = {.in = x->in, .out = x->out, .scratch = e->scratch, .step = step};
	uint64_t t0, t1;
	tern_status st;

	TN_TRY(writable(e, p, &e->graph->nodes[node]));
	fill_pointers(e, p, node);
	t0 = tn_now();
	st = x->kern->run(x->kern, &io);
	x->runs++;
	t1 = tn_now();
	e->stats.compute_ns += t1 - t0;
	tn_exec_trace_add(&e->trace, TN_EVENT_COMPUTE, node, step, t0, t1);
	return st;
}

/* ---- nodes ---- */

/* TERN_OK: done. TERN_AGAIN: to the tail. */
static tern_status run_node(tn_exec *e, exec_prog *p, uint32_t node)
{
	uint32_t flags = tn_op_flags(e->graph->nodes[node].op);
	uint64_t step = p->chains[p->nodes[node].chain].step;

	if (flags & TN_OPF_SEND)
		return run_send(e, p, node, step);
	if (flags & TN_OPF_RECV)
		return run_recv(e, p, node, step);
	if (flags & TN_OPF_VIEW)
		return TERN_OK;
	if (flags & TN_OPF_JOIN)
		return run_join(e, p, node);
	if (flags & TN_OPF_STORE) {
		TN_TRY(writable(e, p, &e->graph->nodes[node]));
		return tn_exec_rows_run(e, p, node, step);
	}
	return run_kernel(e, p, node, step);
}

/* Gives back what was read, wakes who waited, ends the chain's step. */
static tern_status node_done(tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	exec_chain *c = &p->chains[p->nodes[node].chain];

	e->trace.nodes[node].runs += p->id == TN_PROG_TRAIN;
	for (uint32_t k = 0; k < n->n_in && !(tn_op_flags(n->op) & TN_OPF_JOIN); k++)
		TN_TRY(was_read(e, p, n->in[k]));
	if ((tn_op_flags(n->op) & (TN_OPF_RECV | TN_OPF_JOIN)) && p->tensors[n->out[0]].readers == 0)
		TN_TRY(last_read(e, p, n->out[0]));
	for (uint32_t k = e->deps.first[node]; k < e->deps.first[node + 1]; k++) {
		uint32_t next = e->deps.next[k];

		if (p->nodes[next].active && --p->nodes[next].pending == 0)
			push_ready(e, p, next);
	}
	TN_ASSERT(c->left > 0);
	if (--c->left > 0)
		return TERN_OK;
	c->step++;
	if (p->id == TN_PROG_TRAIN && c == p->chains)
		e->stats.steps++;
	if (c->step < c->target)
		arm_chain(e, p, c);
	else
		p->open_chains--;
	return TERN_OK;
}

/* ---- waiting ---- */

/* Whose tensors, or whose slots, the queue waits for: each of them once. */
static void blame(tn_exec *e, const exec_prog *p, uint64_t ns)
{
	uint64_t seen[(TERN_PLAN_WORKERS_MAX * 2 + 63) / 64] = {0};

	for (uint32_t i = 0; i < p->queue_len; i++) {
		uint32_t node = p->queue[(p->queue_head + i) & p->queue_mask], peer;
		const exec_end *end = e->end_of[node] != TN_NONE ? &e->ends[e->end_of[node]] : NULL;

		if (!end)
			continue;
		peer = end->is_send ? end->edge->dst : end->edge->src;
		if (peer / 64 >= TN_COUNT_OF(seen) || seen[peer / 64] >> peer % 64 & 1)
			continue;
		seen[peer / 64] |= 1ull << peer % 64;
		e->trace.waited_ns[peer] += ns;
	}
}

static tern_status wait_some(tn_exec *e, const exec_prog *p, uint64_t deadline_ns)
{
	uint64_t t0 = tn_now(), t1;
	tern_status st = e->xfer->ops->wait(e->xfer, e->params.spin ? 0 : deadline_ns);

	t1 = tn_now();
	e->stats.wait_ns += t1 - t0;
	e->stats.waits++;
	if (p && p->queue_len) {
		uint32_t node = p->queue[p->queue_head];

		blame(e, p, t1 - t0);
		tn_exec_trace_add(&e->trace, TN_EVENT_WAIT, node, p->chains[p->nodes[node].chain].step, t0,
				  t1);
	}
	if (st != TERN_OK) {
		tn_detail_prefix("%s", e->graph->name);
		return st;
	}
	return t1 >= deadline_ns ? TERN_E_DEADLINE : TERN_OK;
}

/* What a step that does not go on waits for: the first queued node by name, and how many others. */
static tern_status late(const tn_exec *e, const exec_prog *p)
{
	uint32_t node = p->queue[p->queue_head];
	const tn_node *n = &e->graph->nodes[node];
	unsigned long long step = p->chains[p->nodes[node].chain].step;
	const exec_end *end = e->end_of[node] != TN_NONE ? &e->ends[e->end_of[node]] : NULL;

	if (tn_op_flags(n->op) & TN_OPF_STORE)
		return tn_fail(TERN_E_DEADLINE, "%s, step %llu: '%s' waits for rows of its table",
			       e->graph->name, step, n->name);
	if (!end) {
		return tn_fail(TERN_E_DEADLINE, "%s, step %llu: '%s' waits for its buffer to be sent",
			       e->graph->name, step, n->name);
	}
	if (end->is_send && too_far_ahead(e, p, node, step)) {
		return tn_fail(TERN_E_DEADLINE,
			       "%s, step %llu: '%s' for %s waits for workers that are too far behind",
			       e->graph->name, step, end->edge->name, e->plan->devices[end->edge->dst].name);
	}
	return tn_fail(
		TERN_E_DEADLINE, "%s, step %llu: waiting %s '%s' %s %s, and for %u more", e->graph->name,
		step, end->is_send ? "for a slot for" : "for", end->edge->name, end->is_send ? "at" : "from",
		e->plan->devices[end->is_send ? end->edge->dst : end->edge->src].name, p->queue_len - 1);
}

static bool canceled(tn_exec *e)
{
	/* A plain load first: the flag is written only to interrupt. */
	return atomic_load_explicit(&e->cancel, memory_order_acquire) &&
	       atomic_exchange_explicit(&e->cancel, false, memory_order_acq_rel);
}

static tern_status run_queue(tn_exec *e, exec_prog *p, uint64_t deadline_ns)
{
	uint32_t stalled = 0;

	while (p->open_chains > 0) {
		uint32_t node;
		tern_status st;

		if (canceled(e))
			return tn_fail(TERN_E_CANCELED, "%s: interrupted", e->graph->name);
		if (stalled >= p->queue_len && p->queue_len > 0) {
			st = wait_some(e, p, deadline_ns);
			if (st == TERN_E_DEADLINE)
				return late(e, p);
			if (st != TERN_OK) {
				e->broken = true;
				return st;
			}
			stalled = 0;
		}
		node = pop_front(p);
		st = run_node(e, p, node);
		if (st == TERN_AGAIN) {
			push_back(p, node);
			stalled++;
			continue;
		}
		if (st == TERN_OK)
			st = node_done(e, p, node);
		if (st != TERN_OK) {
			e->broken = true;
			return st;
		}
		stalled = 0;
	}
	return TERN_OK;
}

tern_status tn_exec_run_prog(tn_exec *e, exec_prog *p, uint64_t deadline_ns)
{
	int token = tn_kern_enter(e->kern);
	tern_status st = run_queue(e, p, deadline_ns);

	tn_kern_leave(e->kern, token);
	return st;
}

/* ---- before the first step and after the last ---- */

tern_status tn_exec_prologue(tn_exec *e, uint64_t deadline_ns)
{
	exec_prog *p = &e->progs[TN_PROG_TRAIN];

	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];
		tern_status st;

		if (!end->is_send || !tn_node_int(&e->graph->nodes[end->node], TN_ATTR_PROLOGUE, 0))
			continue;
		while ((st = run_send(e, p, end->node, 0)) == TERN_AGAIN) {
			if (canceled(e))
				return tn_fail(TERN_E_CANCELED, "%s: interrupted", e->graph->name);
			st = wait_some(e, NULL, deadline_ns);
			if (st == TERN_E_DEADLINE)
				return tn_fail(st, "%s: waiting for a slot for '%s' at %s", e->graph->name,
					       end->edge->name, e->plan->devices[end->edge->dst].name);
			if (st != TERN_OK)
				break;
		}
		if (st != TERN_OK) {
			e->broken = true;
			return st;
		}
	}
	return TERN_OK;
}

tern_status tn_exec_wait_posted(tn_exec *e, uint64_t deadline_ns)
{
	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];
		tern_status st = TERN_OK;

		while (end->is_send && end->posted && (st = test_send(e, end)) == TERN_AGAIN) {
			if (canceled(e))
				return tn_fail(TERN_E_CANCELED, "%s: interrupted", e->graph->name);
			st = wait_some(e, NULL, deadline_ns);
			if (st == TERN_E_DEADLINE)
				return tn_fail(st, "%s: '%s' is still on its way to %s", e->graph->name,
					       end->edge->name, e->plan->devices[end->edge->dst].name);
			if (st != TERN_OK)
				break;
		}
		if (st != TERN_OK) {
			e->broken = true;
			return st;
		}
	}
	return TERN_OK;
}

tern_status tn_exec_hold(tn_exec *e, exec_end *end, uint64_t deadline_ns)
{
	tern_status st = TERN_OK;

	if (end->held && end->consumed)
		TN_TRY(release(e, end));
	while (!end->held && (st = poll(e, end, 0)) == TERN_AGAIN) {
		if (canceled(e))
			return tn_fail(TERN_E_CANCELED, "%s: interrupted", e->graph->name);
		st = wait_some(e, NULL, deadline_ns);
		if (st == TERN_E_DEADLINE)
			return tn_fail(st, "%s: waiting for '%s' from %s", e->graph->name, end->edge->name,
				       e->plan->devices[end->edge->src].name);
		if (st != TERN_OK)
			break;
	}
	e->broken |= st != TERN_OK;
	return st;
}
