/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serial evaluator: see eval.h. Everything that allocates happens in tn_eval_create.
 *
 * Thread story: see eval.h. Tests: tests/unit/graph/eval_test.c.
 */
#include "graph/eval.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/deps.h"

#define ALIGN       64u
#define STEP_BEFORE 0u /* made before the first node: placeholders; nodes are steps 1, 2, ... */

typedef struct eval_tensor {
	tern_shape shape;
	uint64_t bytes;
	uint32_t root;
	/* of roots */
	uint32_t first, last; /* steps */
	bool live;            /* has memory in the arena */
	uint64_t offset;
	void *data;
	void *own; /* of a variable whose bytes were the graph's: freed at the end */
} eval_tensor;

typedef struct eval_node {
	tn_kern *kern; /* NULL: a view */
	void **in, **out;
} eval_node;

struct tn_eval {
	const tern_graph *graph;
	tn_kern_ctx *kern;
	eval_tensor *tensors;
	bool *wanted; /* per node */
	uint32_t *order;
	uint32_t n_order;
	eval_node *nodes; /* in order */
	void **pointers;
	uint64_t n_pointers;
	char *arena;
	uint64_t arena_bytes, without_reuse;
	void *scratch;
	uint64_t runs;
	bool inference;
};

/* ---- which nodes, in which order ---- */

static tern_status want(tn_eval *e, const tn_eval_params *p)
{
	const tern_graph *g = e->graph;

	/* what averages statistics of batches has none where nothing is normalised by a batch */
	for (uint32_t i = 0; i < g->n_nodes; i++)
		e->wanted[i] = p->all && !(p->inference && g->nodes[i].op == TN_OP_APPLY_EMA);
	for (uint32_t i = 0; i < p->n_outs; i++) {
		TN_ASSERT(p->outs[i] < g->n_tensors);
		e->wanted[g->tensors[p->outs[i]].node] = true;
	}
	for (bool changed = true; changed;) {
		changed = false;
		for (uint32_t i = g->n_nodes; i-- > 0;) {
			const tn_node *n = &g->nodes[i];

			for (uint32_t k = 0; k < n->n_in && e->wanted[i]; k++)
				e->wanted[g->tensors[n->in[k]].node] = true;
			for (uint32_t k = 0; k < n->n_ctrl && e->wanted[i]; k++) {
				changed |= !e->wanted[n->ctrl[k]] && n->ctrl[k] > i;
				e->wanted[n->ctrl[k]] = true;
			}
		}
	}
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		if (e->wanted[i] && tn_op_flags(g->nodes[i].op) & (TN_OPF_SEND | TN_OPF_RECV))
			return tn_fail(TERN_E_INVALID,
				       "'%s' moves data between devices: only a plan can be run",
				       g->nodes[i].name);
	}
	return TERN_OK;
}

/* Node numbers are an order of the data edges; control edges may point backwards, so nodes wait for theirs. */
static tern_status put_in_order(tn_eval *e)
{
	const tern_graph *g = e->graph;
	bool *done = calloc(g->n_nodes + 1, sizeof(*done));
	uint32_t before;

	if (!done)
		return tn_fail(TERN_E_NOMEM, "no memory for the order of %u nodes", g->n_nodes);
	do {
		before = e->n_order;
		for (uint32_t i = 0; i < g->n_nodes; i++) {
			const tn_node *n = &g->nodes[i];
			bool ready = e->wanted[i] && !done[i];

			for (uint32_t k = 0; k < n->n_in && ready; k++)
				ready = done[g->tensors[n->in[k]].node];
			for (uint32_t k = 0; k < n->n_ctrl && ready; k++)
				ready = done[n->ctrl[k]];
			if (!ready)
				continue;
			done[i] = true;
			e->order[e->n_order++] = i;
		}
	} while (e->n_order > before);
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		if (e->wanted[i] && !done[i]) {
			free(done);
			return tn_fail(TERN_E_INVALID, "node '%s' waits for itself through control edges",
				       g->nodes[i].name);
		}
	}
	free(done);
	return TERN_OK;
}

/* ---- sizes and live ranges ---- */

static tern_status bind_tensor(tn_eval *e, uint32_t i, const uint64_t *sizes)
{
	const tern_graph *g = e->graph;
	const tn_tensor *from = &g->tensors[i];
	eval_tensor *t = &e->tensors[i];

	t->shape = from->shape;
	for (uint32_t d = 0; d < t->shape.rank; d++) {
		uint32_t s = tn_dim_symbol(t->shape.dims[d]);

		if (!tn_dim_symbolic(t->shape.dims[d]))
			continue;
		if (!sizes || sizes[s] == UINT64_MAX)
			return tn_fail(TERN_E_INVALID, "dim %u of '%s' is '%s', whose size is not given", d,
				       from->name, g->symbols[s]);
		t->shape.dims[d] = sizes[s];
	}
	t->root = tn_graph_root(g, i);
	t->first = UINT32_MAX;
	return tn_shape_bytes(&t->shape, from->dtype, &t->bytes);
}

static void live_range(tn_eval *e)
{
	for (uint32_t s = 0; s < e->n_order; s++) {
		const tn_node *n = &e->graph->nodes[e->order[s]];
		uint32_t step = tn_op_flags(n->op) & TN_OPF_SOURCE ? STEP_BEFORE : s + 1;

		for (uint32_t k = 0; k < n->n_out; k++) {
			eval_tensor *root = &e->tensors[e->tensors[n->out[k]].root];

			root->first = TN_MIN(root->first, step);
			root->last = TN_MAX(root->last, step);
		}
		for (uint32_t k = 0; k < n->n_in; k++) {
			eval_tensor *root = &e->tensors[e->tensors[n->in[k]].root];

			root->last = TN_MAX(root->last, step);
		}
	}
}

/* Variables that a node writes need memory of their own; the others and constants are the graph's. */
static void mark_written(tn_eval *e)
{
	for (uint32_t s = 0; s < e->n_order; s++) {
		const tn_node *n = &e->graph->nodes[e->order[s]];

		for (uint32_t k = 0; k < n->n_in; k++) {
			if (tn_node_writes_input(n, k))
				e->tensors[e->tensors[n->in[k]].root].live = true;
		}
	}
	for (uint32_t s = 0; s < e->n_order; s++) {
		const tn_node *n = &e->graph->nodes[e->order[s]];

		for (uint32_t k = 0; k < n->n_out; k++) {
			eval_tensor *t = &e->tensors[n->out[k]];

			if (t->root != n->out[k])
				continue;
			t->live |= !n->data;
			if (!t->live)
				t->data = n->data;
			/* what the caller fills, and what keeps its value, is never reused */
			if (n->op == TN_OP_PLACEHOLDER || n->op == TN_OP_VARIABLE)
				t->last = UINT32_MAX;
		}
	}
}

/* ---- memory ---- */

static int larger_first(const void *a, const void *b, void *arg)
{
	const eval_tensor *tensors = arg;
	uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;

	if (tensors[i].bytes != tensors[k].bytes)
		return tensors[i].bytes > tensors[k].bytes ? -1 : 1;
	return i < k ? -1 : 1;
}

static int lower_first(const void *a, const void *b, void *arg)
{
	const eval_tensor *tensors = arg;
	uint64_t x = tensors[*(const uint32_t *)a].offset, y = tensors[*(const uint32_t *)b].offset;

	return x < y ? -1 : x > y;
}

static uint64_t place_bytes(const eval_tensor *t)
{
	return (TN_MAX(t->bytes, 1) + ALIGN - 1) / ALIGN * ALIGN;
}

/* The lowest gap among those placed[0..n) that live at the same time; near is room for n. */
static uint64_t find_gap(const tn_eval *e, const eval_tensor *t, const uint32_t *placed, uint32_t n,
			 uint32_t *near)
{
	uint32_t n_near = 0;
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		const eval_tensor *o = &e->tensors[placed[i]];

		if (o->first <= t->last && t->first <= o->last)
			near[n_near++] = placed[i];
	}
	qsort_r(near, n_near, sizeof(*near), lower_first, e->tensors);
	for (uint32_t i = 0; i < n_near; i++) {
		const eval_tensor *o = &e->tensors[near[i]];

		if (o->offset >= at + place_bytes(t))
			break;
		at = TN_MAX(at, o->offset + place_bytes(o));
	}
	return at;
}

/* The largest first, each as low as it can lie. */
static tern_status place_all(tn_eval *e)
{
	uint32_t n = 0, *list = calloc(e->graph->n_tensors + 1, sizeof(*list));
	uint32_t *near = calloc(e->graph->n_tensors + 1, sizeof(*near));

	if (!list || !near) {
		free(list);
		free(near);
		return tn_fail(TERN_E_NOMEM, "no memory to place %u tensors", e->graph->n_tensors);
	}
	for (uint32_t i = 0; i < e->graph->n_tensors; i++) {
		if (e->tensors[i].live && e->tensors[i].first != UINT32_MAX)
			list[n++] = i;
	}
	qsort_r(list, n, sizeof(*list), larger_first, e->tensors);
	for (uint32_t i = 0; i < n; i++) {
		eval_tensor *t = &e->tensors[list[i]];

		t->offset = find_gap(e, t, list, i, near);
		e->arena_bytes = TN_MAX(e->arena_bytes, t->offset + place_bytes(t));
		e->without_reuse += place_bytes(t);
	}
	free(list);
	free(near);
	return TERN_OK;
}

static tern_status alloc_arena(tn_eval *e)
{
	e->arena = aligned_alloc(ALIGN, TN_MAX(e->arena_bytes, ALIGN));
	if (!e->arena)
		return tn_fail(TERN_E_NOMEM, "no memory for the %" PRIu64 " bytes of the tensors of '%s'",
			       e->arena_bytes, e->graph->name);
	memset(e->arena, 0, TN_MAX(e->arena_bytes, ALIGN));
	for (uint32_t i = 0; i < e->graph->n_tensors; i++) {
		eval_tensor *t = &e->tensors[i];

		if (t->live && t->first != UINT32_MAX)
			t->data = e->arena + t->offset;
	}
	for (uint32_t s = 0; s < e->n_order; s++) {
		const tn_node *n = &e->graph->nodes[e->order[s]];
		eval_tensor *t = n->n_out ? &e->tensors[n->out[0]] : NULL;

		if (n->op == TN_OP_VARIABLE && t->live)
			tn_init_fill(&n->init, n->name, &t->shape, t->data);
	}
	return TERN_OK;
}

/* ---- kernels ---- */

/* In inference a BatchNormTrain leaves statistics of the batch alone: nobody may want them. */
static tern_status check_statistics(const tn_eval *e, const tn_eval_params *p, const tn_node *n)
{
	const tern_graph *g = e->graph;
	bool read = false;

	if (!e->inference || n->op != TN_OP_BATCH_NORM_TRAIN || n->n_in != 5)
		return TERN_OK;
	for (uint32_t k = 1; k < n->n_out; k++) {
		for (uint32_t i = 0; i < p->n_outs; i++)
			read |= tn_graph_root(g, p->outs[i]) == n->out[k];
		for (uint32_t s = 0; s < e->n_order; s++) {
			const tn_node *reader = &g->nodes[e->order[s]];

			for (uint32_t i = 0; i < reader->n_in; i++)
				read |= reader->in[i] == n->out[k];
		}
	}
	return read ? tn_fail(TERN_E_INVALID,
			      "'%s' normalises by running statistics here, and those of the batch are asked "
			      "for: "
			      "run it as in training",
			      n->name)
		    : TERN_OK;
}

static void fill_operands(const tn_eval *e, const uint32_t *tensors, uint32_t n, tn_operand *operands)
{
	for (uint32_t k = 0; k < n; k++)
		operands[k] = (tn_operand){.dtype = e->graph->tensors[tensors[k]].dtype,
					   .shape = e->tensors[tensors[k]].shape};
}

static tern_status make_kernel(tn_eval *e, const tn_node *n, tn_kern **kern)
{
	tn_operand *in = calloc(n->n_in + 1, sizeof(*in)), out[TN_OUTS_MAX];
	tn_kern_desc desc = {.node = n, .in = in, .out = out, .inference = e->inference};
	tern_status st;

	if (!in)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", n->name);
	fill_operands(e, n->in, n->n_in, in);
	fill_operands(e, n->out, n->n_out, out);
	st = tn_kern_create(e->kern, &desc, kern);
	free(in);
	return st;
}

static tern_status make_kernels(tn_eval *e)
{
	uint64_t n = 0, at = 0, scratch = 0;

	for (uint32_t s = 0; s < e->n_order; s++)
		n += e->graph->nodes[e->order[s]].n_in + e->graph->nodes[e->order[s]].n_out;
	e->pointers = calloc(n + 1, sizeof(*e->pointers));
	e->n_pointers = n;
	if (!e->pointers)
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " operands", n);
	for (uint32_t s = 0; s < e->n_order; s++) {
		const tn_node *node = &e->graph->nodes[e->order[s]];
		eval_node *run = &e->nodes[s];

		run->in = e->pointers + at;
		run->out = run->in + node->n_in;
		at += node->n_in + node->n_out;
		for (uint32_t k = 0; k < node->n_in; k++)
			run->in[k] = e->tensors[e->tensors[node->in[k]].root].data;
		for (uint32_t k = 0; k < node->n_out; k++)
			run->out[k] = e->tensors[e->tensors[node->out[k]].root].data;
		if (tn_op_flags(node->op) & (TN_OPF_SOURCE | TN_OPF_VIEW))
			continue;
		TN_TRY(make_kernel(e, node, &run->kern));
		scratch = TN_MAX(scratch, run->kern->scratch_bytes);
	}
	e->scratch = aligned_alloc(ALIGN, (scratch + ALIGN) / ALIGN * ALIGN);
	if (!e->scratch)
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " bytes of scratch", scratch);
	return TERN_OK;
}

/* ---- life ---- */

static tern_status set_up(tn_eval *e, const tn_eval_params *p)
{
	const tern_graph *g = e->graph;

	e->tensors = calloc(g->n_tensors + 1, sizeof(*e->tensors));
	e->wanted = calloc(g->n_nodes + 1, sizeof(*e->wanted));
	e->order = calloc(g->n_nodes + 1, sizeof(*e->order));
	e->nodes = calloc(g->n_nodes + 1, sizeof(*e->nodes));
	if (!e->tensors || !e->wanted || !e->order || !e->nodes)
		return tn_fail(TERN_E_NOMEM, "no memory to evaluate %u nodes", g->n_nodes);
	TN_TRY(tn_kern_ctx_create(p->backend, p->threads, &e->kern));
	TN_TRY(want(e, p));
	TN_TRY(put_in_order(e));
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		if (e->wanted[g->tensors[i].node])
			TN_TRY(bind_tensor(e, i, p->sizes));
	}
	for (uint32_t s = 0; s < e->n_order; s++)
		TN_TRY(check_statistics(e, p, &g->nodes[e->order[s]]));
	live_range(e);
	mark_written(e);
	for (uint32_t i = 0; i < p->n_outs; i++)
		e->tensors[e->tensors[p->outs[i]].root].last = UINT32_MAX;
	TN_TRY(place_all(e));
	TN_TRY(alloc_arena(e));
	return make_kernels(e);
}

tern_status tn_eval_create(const tern_graph *graph, const tn_eval_params *params, tn_eval **eval)
{
	tn_eval *e = calloc(1, sizeof(*e));
	tern_status st;

	if (!e)
		return tn_fail(TERN_E_NOMEM, "no memory for an evaluator");
	e->graph = graph;
	e->inference = params->inference;
	st = set_up(e, params);
	if (st != TERN_OK) {
		tn_eval_destroy(e);
		return st;
	}
	*eval = e;
	return TERN_OK;
}

void tn_eval_destroy(tn_eval *eval)
{
	if (!eval)
		return;
	for (uint32_t s = 0; s < eval->n_order && eval->nodes; s++)
		tn_kern_destroy(eval->nodes[s].kern);
	tn_kern_ctx_destroy(eval->kern);
	for (uint32_t i = 0; i < eval->graph->n_tensors && eval->tensors; i++)
		free(eval->tensors[i].own);
	free(eval->tensors);
	free(eval->wanted);
	free(eval->order);
	free(eval->nodes);
	free(eval->pointers);
	free(eval->arena);
	free(eval->scratch);
	free(eval);
}

tern_status tn_eval_run(tn_eval *eval)
{
	int token = tn_kern_enter(eval->kern);
	tern_status st = TERN_OK;

	for (uint32_t s = 0; s < eval->n_order && st == TERN_OK; s++) {
		const eval_node *n = &eval->nodes[s];
		tn_kern_io io = {.in = n->in, .out = n->out, .scratch = eval->scratch, .step = eval->runs};

		if (n->kern)
			st = n->kern->run(n->kern, &io);
	}
	tn_kern_leave(eval->kern, token);
	eval->runs++;
	return st;
}

void *tn_eval_data(tn_eval *eval, uint32_t tensor)
{
	const eval_tensor *t = &eval->tensors[tensor], *root = &eval->tensors[t->root];

	if (!eval->wanted[eval->graph->tensors[tensor].node] || (root->live && root->last != UINT32_MAX))
		return NULL;
	return root->data;
}

tern_status tn_eval_own(tn_eval *eval, uint32_t variable, void **data)
{
	eval_tensor *t = &eval->tensors[variable];
	const void *shared = t->data;

	TN_ASSERT(eval->graph->nodes[eval->graph->tensors[variable].node].op == TN_OP_VARIABLE);
	*data = t->data;
	if (t->live || t->own)
		return TERN_OK;
	t->own = aligned_alloc(ALIGN, place_bytes(t));
	if (!t->own)
		return tn_fail(TERN_E_NOMEM, "no memory for '%s' (%" PRIu64 " bytes)",
			       eval->graph->tensors[variable].name, t->bytes);
	*data = t->data = t->own;
	for (uint64_t i = 0; i < eval->n_pointers; i++)
		if (eval->pointers[i] == shared)
			eval->pointers[i] = t->own;
	return TERN_OK;
}

const tern_shape *tn_eval_shape(const tn_eval *eval, uint32_t tensor)
{
	return &eval->tensors[tensor].shape;
}

uint64_t tn_eval_bytes(const tn_eval *eval, uint32_t tensor)
{
	return eval->tensors[tensor].bytes;
}

void tn_eval_memory(const tn_eval *eval, uint64_t *bytes, uint64_t *without_reuse)
{
	*bytes = eval->arena_bytes;
	*without_reuse = eval->without_reuse;
}
