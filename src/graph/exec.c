/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of an executor: ends, memory, variables; feeds, fetches, statistics. The scheduler is in exec_run.c.
 *
 * Thread story: see exec.h. Tests: tests/unit/graph/exec_test.c.
 */
#include "graph/exec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec_int.h"

/* ---- memory ---- */

tern_status tn_exec_alloc(tn_exec *e, uint64_t bytes, bool registered, void **ptr)
{
	uint64_t rounded = (TN_MAX(bytes, 1) + TN_CACHE_LINE - 1) / TN_CACHE_LINE * TN_CACHE_LINE;

	*ptr = NULL;
	if (registered) {
		TN_TRY(e->xfer->ops->alloc(e->xfer, rounded, ptr));
		e->registered_bytes += rounded;
	} else {
		*ptr = aligned_alloc(TN_CACHE_LINE, rounded);
		if (!*ptr)
			return tn_fail(TERN_E_NOMEM, "no memory for a tensor of %" PRIu64 " bytes", bytes);
		memset(*ptr, 0, rounded);
		e->plain_bytes += rounded;
	}
	e->owned[e->n_owned] = *ptr;
	e->owned_by_xfer[e->n_owned++] = registered;
	return TERN_OK;
}

tern_status tn_exec_grow(tn_exec *e, uint32_t index, uint64_t old_bytes, uint64_t bytes)
{
	bool registered = e->owned_by_xfer[index];
	uint32_t n_owned = e->n_owned;
	void *old = e->owned[index], *bigger = NULL;
	tern_status st;

	e->n_owned = index; /* in the old one's place */
	st = tn_exec_alloc(e, bytes, registered, &bigger);
	e->n_owned = n_owned;
	if (st != TERN_OK) {
		e->owned[index] = old;
		return st;
	}
	if (registered) {
		e->xfer->ops->free(e->xfer, old);
		e->registered_bytes -= TN_MAX(old_bytes, 1);
	} else {
		free(old);
		e->plain_bytes -= TN_MAX(old_bytes, 1);
	}
	return TERN_OK;
}

/* Variables and constants: one memory for all programs. */
static tern_status make_fixed(tn_exec *e)
{
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		const tn_node *n = &e->graph->nodes[i];
		const tn_tensor *t = n->n_out ? &e->graph->tensors[n->out[0]] : NULL;
		uint64_t bytes = 0;

		if (n->op != TN_OP_VARIABLE && n->op != TN_OP_CONSTANT)
			continue;
		TN_TRY(tn_shape_bytes(&t->shape, t->dtype, &bytes));
		TN_TRY(tn_exec_alloc(e, bytes, e->registered[n->out[0]], &e->fixed[n->out[0]]));
		if (n->op == TN_OP_VARIABLE)
			tn_variable_fill(n, &t->shape, e->fixed[n->out[0]]);
		else if (bytes)
			memcpy(e->fixed[n->out[0]], n->data, bytes);
	}
	return TERN_OK;
}

/* ---- ends ---- */

static tern_status open_end(tn_exec *e, uint32_t edge_id, bool is_send)
{
	const tn_edge *edge = &e->plan->edges[edge_id];
	uint32_t peer = is_send ? edge->dst : edge->src;
	tn_edge_desc desc = {.id = edge_id,
			     .name = edge->name,
			     .dtype = edge->dtype,
			     .shape = edge->shape,
			     .bytes = edge->bytes,
			     .peer = peer,
			     .peer_name = e->plan->devices[peer].name,
			     .one_sided = edge->one_sided,
			     .dynamic = !edge->is_static,
			     .whole = edge->whole,
			     .whole_bytes = edge->whole_bytes,
			     .whole_offset = edge->whole_offset};
	exec_end *end = &e->ends[e->n_ends];
	uint32_t node = is_send ? edge->send_node : edge->recv_node;

	if (!edge->is_static && (!e->xfer->ops->send_shaped || edge->whole_bytes)) {
		return tn_fail(TERN_E_UNSUPPORTED,
			       "edge '%s' from %s to %s is dynamic (%s), which transfers by %s are not",
			       edge->name, e->plan->devices[edge->src].name, e->plan->devices[edge->dst].name,
			       edge->reason, e->xfer->ops->name);
	}
	*end = (exec_end){.edge = edge, .node = node, .is_send = is_send};
	if (is_send) {
		end->root = tn_graph_root(e->graph, e->graph->nodes[node].in[0]);
		e->registered[end->root] |= edge->one_sided || !edge->is_static;
		TN_TRY(e->xfer->ops->send_open(e->xfer, &desc, &end->end));
	} else {
		TN_TRY(e->xfer->ops->recv_open(e->xfer, &desc, &end->end));
		e->learns |= !edge->is_static;
	}
	e->end_of[node] = e->n_ends++;
	return TERN_OK;
}

static tern_status open_ends(tn_exec *e)
{
	for (uint32_t i = 0; i < e->graph->n_nodes; i++)
		e->end_of[i] = TN_NONE;
	for (uint32_t i = 0; i < e->plan->n_edges; i++) {
		if (e->plan->edges[i].src == e->device)
			TN_TRY(open_end(e, i, true));
		else if (e->plan->edges[i].dst == e->device)
			TN_TRY(open_end(e, i, false));
	}
	return TERN_OK;
}

/* ---- life ---- */

static tern_status alloc_tables(tn_exec *e)
{
	uint32_t n_tensors = e->graph->n_tensors + 1, n_nodes = e->graph->n_nodes + 1;
	uint32_t n_allocs = 2 * n_tensors + 1; /* every root in both programs, and the scratchpads */

	e->ends = calloc(e->plan->n_edges + 1, sizeof(*e->ends));
	e->end_of = calloc(n_nodes, sizeof(*e->end_of));
	e->fixed = calloc(n_tensors, sizeof(*e->fixed));
	e->registered = calloc(n_tensors, sizeof(*e->registered));
	for (unsigned id = 0; id < TN_PROG_COUNT; id++) {
		e->room[id] = calloc(n_tensors, sizeof(*e->room[id]));
		e->variants[id] = calloc(TN_EXEC_VARIANTS, sizeof(*e->variants[id]));
		if (!e->room[id] || !e->variants[id])
			return tn_fail(TERN_E_NOMEM, "no memory for the executor of %s", e->graph->name);
	}
	e->owned = calloc(n_allocs, sizeof(*e->owned));
	e->owned_by_xfer = calloc(n_allocs, sizeof(*e->owned_by_xfer));
	if (!e->ends || !e->end_of || !e->fixed || !e->registered || !e->owned || !e->owned_by_xfer)
		return tn_fail(TERN_E_NOMEM, "no memory for the executor of %s", e->graph->name);
	return TERN_OK;
}

/* A plan that was made for other sizes has slots of another size. */
static tern_status check_ends(const tn_exec *e)
{
	for (uint32_t i = 0; i < e->n_ends; i++) {
		const exec_end *end = &e->ends[i];
		const tn_node *n = &e->graph->nodes[end->node];
		uint32_t tensor = end->is_send ? n->in[0] : n->out[0];
		uint64_t bytes = e->progs[TN_PROG_TRAIN].tensors[tensor].bytes;

		if (end->edge->is_static && bytes != end->edge->bytes) {
			return tn_fail(TERN_E_INVALID,
				       "%s: '%s' has %" PRIu64 " bytes with a batch of %" PRIu64
				       ", but the plan was "
				       "made for %" PRIu64,
				       e->graph->name, end->edge->name, bytes, e->params.batch,
				       end->edge->bytes);
		}
	}
	return TERN_OK;
}

/* ---- what the crew asks for ---- */

static void enter_kernels(void *arg)
{
	tn_kern_enter(((tn_exec *)arg)->kern);
}

static void wake_captain(void *arg)
{
	tn_xfer *xfer = ((tn_exec *)arg)->xfer;

	xfer->ops->wake(xfer);
}

static tern_status set_up(tn_exec *e)
{
	TN_TRY(alloc_tables(e));
	TN_TRY(tn_exec_trace_init(&e->trace, e->params.trace_events, e->graph->n_nodes, e->plan->n_devices));
	TN_TRY(tn_deps_make(e->graph, &e->deps));
	TN_TRY(tn_kern_ctx_create(e->params.backend, e->params.kernel_threads, &e->kern));
	TN_TRY(open_ends(e));
	TN_TRY(make_fixed(e));
	e->pushes_per_step = tn_exec_rows_pushes(e);
	e->progs[TN_PROG_EVAL].id = TN_PROG_EVAL;
	TN_TRY(tn_exec_dims(e));
	TN_TRY(tn_exec_prog_make(e, &e->progs[TN_PROG_TRAIN]));
	TN_TRY(check_ends(e));
	if (e->params.eval_batch)
		TN_TRY(tn_exec_prog_make(e, &e->progs[TN_PROG_EVAL]));
	e->scratch_owned = e->n_owned;
	e->scratch_room = (e->scratch_bytes + TN_CACHE_LINE - 1) / TN_CACHE_LINE * TN_CACHE_LINE;
	TN_TRY(tn_exec_alloc(e, e->scratch_room * e->params.threads, false, &e->scratch));
	return tn_crew_create(&(tn_crew_params){.members = e->params.threads,
						.tasks = e->graph->n_nodes,
						.run = tn_exec_run_task,
						.begin = enter_kernels,
						.wake = wake_captain,
						.arg = e},
			      &e->crew);
}

tern_status tn_exec_create(const tern_plan *plan, uint32_t device, tn_xfer *xfer,
			   const tn_exec_params *params, tn_exec **exec)
{
	tn_exec *e;
	tern_status st;

	if (!plan || !xfer || !params || !exec || device >= plan->n_devices)
		return tn_fail(TERN_E_INVALID,
			       "an executor needs plan, transfer, params and a device of the plan");
	e = calloc(1, sizeof(*e));
	if (!e)
		return tn_fail(TERN_E_NOMEM, "no memory for an executor");
	e->plan = plan;
	e->device = device;
	e->graph = plan->devices[device].graph;
	e->xfer = xfer;
	e->params = *params;
	if (e->params.kernel_threads == 0)
		e->params.kernel_threads = 1;
	if (e->params.threads == 0)
		e->params.threads = 1;
	st = set_up(e);
	if (st != TERN_OK) {
		tn_exec_destroy(e);
		return st;
	}
	*exec = e;
	return TERN_OK;
}

void tn_exec_destroy(tn_exec *e)
{
	if (!e)
		return;
	tn_crew_destroy(e->crew);
	for (uint32_t i = 0; i < TN_PROG_COUNT; i++)
		tn_exec_prog_free(&e->progs[i], e->graph->n_nodes);
	tn_exec_variants_free(e);
	for (uint32_t i = 0; i < e->n_owned; i++) {
		if (e->owned_by_xfer[i])
			e->xfer->ops->free(e->xfer, e->owned[i]);
		else
			free(e->owned[i]);
	}
	tn_kern_ctx_destroy(e->kern);
	tn_deps_free(&e->deps);
	tn_exec_trace_fini(&e->trace);
	free(e->ends);
	free(e->end_of);
	free(e->fixed);
	free(e->registered);
	free(e->owned);
	free(e->owned_by_xfer);
	free(e);
}

tern_status tn_exec_start(tn_exec *e, uint64_t deadline_ns)
{
	tern_status st;
	uint64_t t0;

	if (e->started)
		return tn_fail(TERN_E_STATE, "%s: started already", e->graph->name);
	TN_TRY(e->xfer->ops->start(e->xfer, deadline_ns));
	e->started = true;
	t0 = tn_now();
	st = tn_exec_prologue(e, deadline_ns);
	e->stats.run_ns += tn_now() - t0;
	return st;
}

/* ---- ports ---- */

static tern_status find_port(tn_exec *e, tn_prog_id id, const char *port, bool is_input, exec_tensor **tensor,
			     uint32_t *number)
{
	*number = tn_graph_port(e->graph, port, is_input);
	if (*number == TN_NONE || (unsigned)id >= TN_PROG_COUNT || !e->progs[id].exists) {
		return tn_fail(TERN_E_NOT_FOUND, "%s has no %s port '%s'%s", e->graph->name,
			       is_input ? "input" : "output", port,
			       id == TN_PROG_EVAL && !e->progs[TN_PROG_EVAL].exists
				       ? ": made without eval_batch"
				       : "");
	}
	*tensor = &e->progs[id].tensors[*number];
	return TERN_OK;
}

tern_status tn_exec_feed(tn_exec *e, tn_prog_id id, const char *port, const void *data, uint64_t bytes)
{
	exec_tensor *t = NULL;
	uint32_t number;
	char shape[TN_SHAPE_TEXT_MAX];

	TN_TRY(find_port(e, id, port, true, &t, &number));
	if (!data || bytes != t->bytes) {
		return tn_fail(TERN_E_SHAPE, "%s: port '%s' takes %s%s, %" PRIu64 " bytes, not %" PRIu64,
			       e->graph->name, port, tern_dtype_name(e->graph->tensors[number].dtype),
			       tn_shape_text(NULL, &t->shape, shape, sizeof(shape)), t->bytes,
			       data ? bytes : 0);
	}
	t->data = (void *)(uintptr_t)data; /* kernels read inputs through the same array as variables */
	return TERN_OK;
}

tern_status tn_exec_fetch(tn_exec *e, tn_prog_id id, const char *port, tn_fetched *fetched)
{
	exec_tensor *t = NULL;
	uint32_t number;

	TN_TRY(find_port(e, id, port, false, &t, &number));
	*fetched = (tn_fetched){.data = tn_exec_data(&e->progs[id], number),
				.dtype = e->graph->tensors[number].dtype,
				.shape = t->shape,
				.bytes = t->bytes};
	if (!fetched->data)
		return tn_fail(TERN_E_STATE, "%s: port '%s' has no value before the first step",
			       e->graph->name, port);
	return TERN_OK;
}

tern_status tn_exec_variable(tn_exec *e, const char *name, tn_fetched *fetched)
{
	uint32_t node = tn_graph_find(e->graph, name);
	const tn_tensor *t;

	if (node == TN_NONE || e->graph->nodes[node].op != TN_OP_VARIABLE)
		return tn_fail(TERN_E_NOT_FOUND, "%s holds no variable '%s'", e->graph->name, name);
	t = &e->graph->tensors[e->graph->nodes[node].out[0]];
	*fetched = (tn_fetched){
		.data = e->fixed[e->graph->nodes[node].out[0]], .dtype = t->dtype, .shape = t->shape};
	return tn_shape_bytes(&t->shape, t->dtype, &fetched->bytes);
}

/* ---- steps ---- */

/* Before a step begins, so that a forgotten feed leaves the executor usable. */
static tern_status check_fed(const tn_exec *e, const exec_prog *p)
{
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		const tn_node *n = &e->graph->nodes[i];

		if (n->op == TN_OP_PLACEHOLDER && p->tensors[n->out[0]].readers &&
		    !p->tensors[n->out[0]].data)
			return tn_fail(TERN_E_STATE, "%s: '%s' was not fed: tn_exec_feed its port",
				       e->graph->name, n->name);
	}
	return TERN_OK;
}

static tern_status run_more(tn_exec *e, exec_prog *prog, uint64_t n, uint64_t deadline_ns)
{
	uint64_t t0 = tn_now();
	tern_status st;

	if (e->broken || !e->started)
		return tn_fail(TERN_E_STATE, "%s: %s", e->graph->name,
			       e->broken ? "an earlier step failed" : "tn_exec_start comes first");
	if (!prog->exists)
		return tn_fail(TERN_E_STATE, "%s: made without eval_batch", e->graph->name);
	if (prog->open_chains == 0) {
		if (e->learns)
			TN_TRY(tn_exec_bind_received(e, prog->id, deadline_ns));
		TN_TRY(check_fed(e, prog));
		tn_exec_open_steps(e, prog, n);
	}
	st = tn_exec_run_prog(e, prog, deadline_ns);
	e->stats.run_ns += tn_now() - t0;
	return st;
}

tern_status tn_exec_step(tn_exec *e, tn_prog_id id, uint64_t deadline_ns)
{
	TN_ASSERT((unsigned)id < TN_PROG_COUNT);
	return run_more(e, &e->progs[id], 1, deadline_ns);
}

tern_status tn_exec_run(tn_exec *e, uint64_t n, uint64_t deadline_ns)
{
	if (!e->learns)
		return n ? run_more(e, &e->progs[TN_PROG_TRAIN], n, deadline_ns) : TERN_OK;
	/* Sizes may differ from step to step. An interruption leaves the steps that are left to the caller. */
	for (; n > 0; n--)
		TN_TRY(run_more(e, &e->progs[TN_PROG_TRAIN], 1, deadline_ns));
	return TERN_OK;
}

tern_status tn_exec_take_last(tn_exec *e, uint64_t deadline_ns)
{
	if (e->broken || !e->started)
		return tn_fail(TERN_E_STATE, "%s: not running", e->graph->name);
	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];
		const tern_graph *src = e->plan->devices[end->edge->src].graph;

		if (!end->is_send && tn_node_int(&src->nodes[end->edge->send_node], TN_ATTR_PROLOGUE, 0))
			TN_TRY(tn_exec_hold(e, end, deadline_ns));
	}
	return TERN_OK;
}

tern_status tn_exec_drain(tn_exec *e, uint64_t deadline_ns)
{
	uint64_t t0 = tn_now();
	tern_status st;

	if (e->broken || !e->started)
		return tn_fail(TERN_E_STATE, "%s: not running", e->graph->name);
	st = tn_exec_wait_posted(e, deadline_ns);
	e->stats.run_ns += tn_now() - t0;
	return st;
}

void tn_exec_cancel(tn_exec *e)
{
	atomic_store_explicit(&e->cancel, true, memory_order_release);
	e->xfer->ops->wake(e->xfer);
	tn_crew_wake(e->crew);
}

void tn_exec_stats_get(tn_exec *e, tn_exec_stats *stats, bool reset)
{
	*stats = e->stats;
	e->xfer->ops->counters(e->xfer, &stats->xfer);
	if (reset)
		e->stats = (tn_exec_stats){0};
}

const tn_exec_trace *tn_exec_trace_get(const tn_exec *e)
{
	return &e->trace;
}

const tern_graph *tn_exec_graph(const tn_exec *e)
{
	return e->graph;
}

void tn_exec_memory(const tn_exec *e, uint64_t *plain_bytes, uint64_t *registered_bytes)
{
	*plain_bytes = e->plain_bytes;
	*registered_bytes = e->registered_bytes;
}
