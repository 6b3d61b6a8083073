/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler. The captain (the caller's thread) tries the nodes that wait for the transfer, in the order in which what they
 * move is needed, gives out ops, and runs ops like every other member of the crew (crew.h).
 *
 *            arm chain             all inputs there              queue of a member            finished
 *   (idle) ------------> pending ---------------------> ready -----------------> running -----------------> done
 *                                  sends, receives, joins |  ^
 *                                  and guarded ops:       v  | not there, no slot, memory in flight
 *                                  `fresh`, then `waiting` by need
 *
 *   rank     sends and receives have the need of their edge (priority.c): what the next forward pass needs first goes first.
 *            A chain has the first need of what it sends, so a server applies first what is needed first
 *   guarded  ops that write memory that is sent, or that has several writers: given out one by one per member, so that the
 *            first in rank is the next one when a member is free; other ops go to the queue of the member that made them ready
 *
 * A receive whose tensor is not there and a send without a slot wait without holding up anybody; when there is nothing to run,
 * the transfer's wait(), behind a look at all sends that are posted. No allocation, no lock; no system call but the clock, waking helpers that sleep, and what the transfer
 * does.
 *
 * Thread story: see exec.h; what helpers may touch: exec_int.h. Tests: tests/unit/graph/exec_test.c, exec_crew_test.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec_int.h"

/* ---- ready ---- */

/* All that the node needs is there. */
static void ready(tn_exec *e, exec_prog *p, uint32_t member, uint32_t node)
{
	exec_node *x = &p->nodes[node];

	if (!x->comm && !x->guarded) {
		tn_crew_push(e->crew, member, node);
	} else if (member == 0) {
		p->fresh[p->n_fresh++] = node;
	} else {
		x->post = EXEC_READY;
		tn_crew_post(e->crew, node);
	}
}

/* Those that waited for the node alone are ready. */
static void wake_dependents(tn_exec *e, exec_prog *p, uint32_t member, uint32_t node)
{
	for (uint32_t k = e->deps.first[node]; k < e->deps.first[node + 1]; k++) {
		uint32_t next = e->deps.next[k];

		if (p->nodes[next].active &&
		    atomic_fetch_sub_explicit(&p->nodes[next].pending, 1, memory_order_acq_rel) == 1)
			ready(e, p, member, next);
	}
}

static uint64_t key_of(const tn_exec *e, exec_prog *p, uint32_t node)
{
	if (p->nodes[node].comm && e->end_of[node] != TN_NONE)
		return (uint64_t)e->ends[e->end_of[node]].edge->need << 32 | node;
	return (uint64_t)p->chains[p->nodes[node].chain].rank << 32 | p->ready++;
}

static void sort_fresh(const tn_exec *e, exec_prog *p)
{
	for (uint32_t i = 0; i < p->n_fresh; i++) {
		exec_wait w = {.key = key_of(e, p, p->fresh[i]), .node = p->fresh[i]};
		uint32_t at = p->n_waiting++;

		for (; at > 0 && p->waiting[at - 1].key > w.key; at--)
			p->waiting[at] = p->waiting[at - 1];
		p->waiting[at] = w;
	}
	p->n_fresh = 0;
}

/* ---- chains ---- */

static void arm_chain(tn_exec *e, exec_prog *p, exec_chain *c)
{
	c->left = c->n;
	for (uint32_t i = c->first; i < c->first + c->n; i++) {
		exec_node *x = &p->nodes[p->chain_nodes[i]];
		const tn_node *n = &e->graph->nodes[p->chain_nodes[i]];

		atomic_store_explicit(&x->pending, x->pending_init, memory_order_relaxed);
		x->posted = false;
		if (tn_op_flags(n->op) & (TN_OPF_RECV | TN_OPF_JOIN))
			p->tensors[n->out[0]].left = p->tensors[n->out[0]].readers;
	}
	for (uint32_t i = c->first; i < c->first + c->n; i++) {
		if (p->nodes[p->chain_nodes[i]].pending_init == 0)
			ready(e, p, 0, p->chain_nodes[i]);
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

/* The captain's part of the end of a node, and of its chain's step. */
static tern_status settle(tn_exec *e, exec_prog *p, uint32_t node)
{
	exec_node *x = &p->nodes[node];
	exec_chain *c = &p->chains[x->chain];

	e->trace.nodes[node].runs += p->id == TN_PROG_TRAIN;
	if (x->kern) {
		e->stats.compute_ns += x->end_ns - x->start_ns;
		tn_exec_trace_kernel(&e->trace, node, c->step, x->start_ns, x->end_ns, x->member);
		x->runs++;
	}
	if (x->guarded) {
		tn_exec_mark_busy(e, p, node, false);
		p->out--;
	}
	TN_TRY(tn_exec_was_read(e, p, node));
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

/* Of a node that the captain has done. */
static tern_status finish(tn_exec *e, exec_prog *p, uint32_t node)
{
	wake_dependents(e, p, 0, node);
	return settle(e, p, node);
}

/* ---- compute ---- */

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

static tern_status run_kernel(tn_exec *e, exec_prog *p, uint32_t member, uint32_t node)
{
	exec_node *x = &p->nodes[node];
	tn_kern_io io = {.in = x->in,
			 .out = x->out,
			 .scratch = (char *)e->scratch + member * e->scratch_room,
			 .step = p->chains[x->chain].step};
	tern_status st;

	if (!x->kern) /* a view */
		return TERN_OK;
	fill_pointers(e, p, node);
	x->member = member;
	x->start_ns = tn_now();
	st = x->kern->run(x->kern, &io);
	x->end_ns = tn_now();
	return st;
}

void tn_exec_run_task(void *arg, uint32_t member, uint32_t node)
{
	tn_exec *e = arg;
	exec_prog *p = e->running;
	tern_status st = run_kernel(e, p, member, node);

	if (st == TERN_OK) {
		wake_dependents(e, p, member, node);
	} else if (!atomic_exchange(&e->failed, true)) { /* the text is this thread's */
		e->failure = st;
		snprintf(e->failure_text, sizeof(e->failure_text), "%s", tern_detail());
	}
	p->nodes[node].post = st == TERN_OK ? EXEC_DONE : EXEC_FAILED;
	tn_crew_post(e->crew, node); /* from here on the node is the captain's */
}

/* ---- the captain ---- */

/* What helpers have posted. */
static tern_status collect(tn_exec *e, exec_prog *p, bool *progress)
{
	uint32_t node = tn_crew_collect(e->crew);
	tern_status st = TERN_OK;

	while (node != TN_CREW_NONE) {
		uint32_t next = tn_crew_next(e->crew, node);

		*progress = true;
		if (p->nodes[node].post == EXEC_READY)
			p->fresh[p->n_fresh++] = node;
		else if (p->nodes[node].post == EXEC_DONE && st == TERN_OK)
			st = settle(e, p, node);
		else if (p->nodes[node].post == EXEC_FAILED)
			st = tn_fail(e->failure, "%s", e->failure_text);
		node = next;
	}
	return st;
}

/* TERN_AGAIN: not now. */
static tern_status try_node(tn_exec *e, exec_prog *p, uint32_t node)
{
	uint32_t flags = tn_op_flags(e->graph->nodes[node].op);
	uint64_t step = p->chains[p->nodes[node].chain].step;

	if (flags & TN_OPF_SEND) {
		TN_TRY(tn_exec_send(e, p, node, step));
	} else if (flags & TN_OPF_RECV) {
		TN_TRY(tn_exec_recv(e, p, node, step));
	} else if (flags & TN_OPF_JOIN) {
		tn_exec_join(e, p, node);
	} else if (flags & TN_OPF_STORE) {
		TN_TRY(tn_exec_writable(e, p, node));
		TN_TRY(tn_exec_rows_run(e, p, node, step));
	} else {
		if (p->out >= e->params.threads)
			return TERN_AGAIN;
		TN_TRY(tn_exec_writable(e, p, node));
		tn_exec_mark_busy(e, p, node, true);
		p->out++;
		tn_crew_push(e->crew, 0, node);
		return TERN_OK;
	}
	return finish(e, p, node);
}

/* All that waits, in order; what becomes ready meanwhile as well. */
static tern_status try_waiting(tn_exec *e, exec_prog *p, bool *progress)
{
	do {
		uint32_t kept = 0, i = 0;
		tern_status st = TERN_OK;

		sort_fresh(e, p);
		for (; i < p->n_waiting && (st == TERN_OK || st == TERN_AGAIN); i++) {
			exec_wait w = p->waiting[i];

			st = try_node(e, p, w.node);
			if (st == TERN_AGAIN)
				p->waiting[kept++] = w;
			else
				*progress = true;
		}
		p->n_waiting = kept; /* of an executor that is broken now, if it failed */
		if (st != TERN_OK && st != TERN_AGAIN)
			return st;
	} while (p->n_fresh);
	return TERN_OK;
}

/* ---- waiting ---- */

/* Whose tensors, or whose slots, are waited for: each of them once. */
static void blame(tn_exec *e, const exec_prog *p, uint64_t ns)
{
	uint64_t seen[(TERN_PLAN_WORKERS_MAX * 2 + 63) / 64] = {0};

	for (uint32_t i = 0; i < p->n_waiting; i++) {
		uint32_t node = p->waiting[i].node, peer;
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

/* What the time since t0 was spent on: nothing. */
static void waited(tn_exec *e, const exec_prog *p, uint64_t t0)
{
	uint64_t t1 = tn_now();

	e->stats.wait_ns += t1 - t0;
	e->stats.waits++;
	if (p && p->n_waiting) {
		uint32_t node = p->waiting[0].node;

		blame(e, p, t1 - t0);
		tn_exec_trace_add(&e->trace, TN_EVENT_WAIT, node, p->chains[p->nodes[node].chain].step, t0,
				  t1);
	}
}

static tern_status wait_some(tn_exec *e, const exec_prog *p, uint64_t deadline_ns)
{
	bool some = false;
	uint64_t t0;
	tern_status st;

	TN_TRY(tn_exec_test_posted(e, &some));
	if (some) /* who waits for its memory can go on */
		return TERN_OK;
	t0 = tn_now();
	st = e->xfer->ops->wait(e->xfer, e->params.spin ? 0 : deadline_ns);
	waited(e, p, t0);
	if (st != TERN_OK) {
		tn_detail_prefix("%s", e->graph->name);
		return st;
	}
	return tn_now() >= deadline_ns ? TERN_E_DEADLINE : TERN_OK;
}

/* Nothing to run: until the transfer or a helper has something. */
static tern_status wait_any(tn_exec *e, const exec_prog *p, uint64_t deadline_ns)
{
	tern_status st = TERN_OK;
	uint64_t t0 = tn_now();

	for (uint32_t i = 0; i < p->n_waiting; i++) {
		if (!p->nodes[p->waiting[i].node].comm && p->out)
			continue; /* waits for one that is given out */
		if (tn_crew_will_wait(e->crew))
			st = wait_some(e, p, deadline_ns);
		tn_crew_waited(e->crew);
		return st;
	}
	TN_ASSERT(e->params.threads > 1);
	tn_crew_sleep(e->crew, deadline_ns);
	waited(e, p, t0);
	return tn_now() >= deadline_ns ? TERN_E_DEADLINE : TERN_OK;
}

/* What a step that does not go on waits for: the first waiting node by name, and how many others. */
static tern_status late(const tn_exec *e, const exec_prog *p)
{
	uint32_t node = p->n_waiting ? p->waiting[0].node : 0;
	const tn_node *n = &e->graph->nodes[node];
	unsigned long long step = p->chains[p->nodes[node].chain].step;
	const exec_end *end = e->end_of[node] != TN_NONE ? &e->ends[e->end_of[node]] : NULL;

	if (!p->n_waiting)
		return tn_fail(TERN_E_DEADLINE, "%s: kernels are still running", e->graph->name);
	if (tn_op_flags(n->op) & TN_OPF_STORE)
		return tn_fail(TERN_E_DEADLINE, "%s, step %llu: '%s' waits for rows of its table",
			       e->graph->name, step, n->name);
	if (!end) {
		return tn_fail(TERN_E_DEADLINE, "%s, step %llu: '%s' waits for its buffer to be sent",
			       e->graph->name, step, n->name);
	}
	if (end->is_send && tn_exec_too_far_ahead(e, p, node, step)) {
		return tn_fail(TERN_E_DEADLINE,
			       "%s, step %llu: '%s' for %s waits for workers that are too far behind",
			       e->graph->name, step, end->edge->name, e->plan->devices[end->edge->dst].name);
	}
	return tn_fail(
		TERN_E_DEADLINE, "%s, step %llu: waiting %s '%s' %s %s, and for %u more", e->graph->name,
		step, end->is_send ? "for a slot for" : "for", end->edge->name, end->is_send ? "at" : "from",
		e->plan->devices[end->is_send ? end->edge->dst : end->edge->src].name, p->n_waiting - 1);
}

static bool canceled(tn_exec *e)
{
	/* A plain load first: the flag is written only to interrupt. */
	return atomic_load_explicit(&e->cancel, memory_order_acquire) &&
	       atomic_exchange_explicit(&e->cancel, false, memory_order_acq_rel);
}

/* ---- the loop ---- */

static tern_status run_nodes(tn_exec *e, exec_prog *p, uint64_t deadline_ns)
{
	while (p->open_chains > 0) {
		bool progress = false;
		tern_status st;
		uint32_t node;

		if (canceled(e))
			return tn_fail(TERN_E_CANCELED, "%s: interrupted", e->graph->name);
		TN_TRY(collect(e, p, &progress));
		TN_TRY(try_waiting(e, p, &progress));
		node = tn_crew_take(e->crew, 0);
		if (node != TN_CREW_NONE) {
			TN_TRY(run_kernel(e, p, 0, node));
			TN_TRY(finish(e, p, node));
		} else if (!progress) {
			st = wait_any(e, p, deadline_ns);
			if (st == TERN_E_DEADLINE)
				return late(e, p);
			TN_TRY(st);
		}
	}
	return TERN_OK;
}

/* What was given out and is not run yet comes back: another program may be next. */
static void lay_aside(tn_exec *e, exec_prog *p)
{
	uint32_t node;

	while ((node = tn_crew_take(e->crew, 0)) != TN_CREW_NONE)
		p->laid[p->n_laid++] = node;
}

tern_status tn_exec_run_prog(tn_exec *e, exec_prog *p, uint64_t deadline_ns)
{
	int token = tn_kern_enter(e->kern);
	bool progress = false;
	tern_status st;

	e->running = p;
	while (p->n_laid)
		tn_crew_push(e->crew, 0, p->laid[--p->n_laid]);
	tn_crew_open(e->crew);
	st = run_nodes(e, p, deadline_ns);
	tn_crew_close(e->crew);
	if (st == TERN_E_DEADLINE || st == TERN_E_CANCELED) {
		tern_status late = collect(e, p, &progress);

		lay_aside(e, p);
		if (late == TERN_OK && p->open_chains == 0) { /* what was still running was the last of it */
			if (st == TERN_E_CANCELED)
				atomic_store_explicit(&e->cancel, true, memory_order_release);
			st = TERN_OK;
		}
		st = late == TERN_OK ? st : late;
	}
	e->broken |= st != TERN_OK && st != TERN_E_DEADLINE && st != TERN_E_CANCELED;
	tn_kern_leave(e->kern, token);
	return st;
}

/* ---- before the first step and after the last ---- */

/* The send before the first step whose need is the next behind *key; NULL: that was the last. */
static exec_end *next_start(const tn_exec *e, uint64_t *key)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < e->n_ends; i++) {
		const exec_end *end = &e->ends[i];
		uint64_t at = (uint64_t)end->edge->need << 32 | (i + 1);

		if (end->is_send && at > *key && at < least &&
		    tn_node_int(&e->graph->nodes[end->node], TN_ATTR_PROLOGUE, 0))
			least = at;
	}
	*key = least;
	return least == UINT64_MAX ? NULL : &e->ends[(uint32_t)least - 1];
}

tern_status tn_exec_prologue(tn_exec *e, uint64_t deadline_ns)
{
	exec_prog *p = &e->progs[TN_PROG_TRAIN];
	uint64_t key = 0;
	exec_end *end;

	while ((end = next_start(e, &key))) {
		tern_status st;

		while ((st = tn_exec_send(e, p, end->node, 0)) == TERN_AGAIN) {
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

		while (end->is_send && end->posted && (st = tn_exec_test_send(e, end)) == TERN_AGAIN) {
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
		TN_TRY(tn_exec_release(e, end));
	while (!end->held && (st = tn_exec_poll(e, end, 0)) == TERN_AGAIN) {
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
