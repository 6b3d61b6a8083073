/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes that change from step to step. A program is made for each combination of sizes when it is first met, and kept: a
 * size that was there before costs no allocation. Programs of one kind share their buffers, which are as large as the
 * largest of them needs.
 *
 *   variants[id][i]   programs that are not current; the current one is progs[id]
 *   room[id][t]       memory of root t in all of them, owned[room.owned]
 *
 * A device whose sizes come with what it receives takes them from the first tensor of a step whose shape is not known
 * before (a dynamic edge): it holds the tensor, and then binds. Sizes of what it is fed it was told: it does not wait for
 * those, and could not, where the tensor is a gradient of what it has not computed yet.
 *
 * Threads: the executor's. Tests: tests/unit/graph/exec_bind_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/exec_int.h"

/* ---- sizes ---- */

tern_status tn_exec_bind_shape(const tn_exec *e, const uint64_t *sizes, const tn_tensor *t, tern_shape *bound)
{
	const tern_graph *g = e->graph;

	*bound = t->shape;
	for (uint32_t i = 0; i < bound->rank; i++) {
		bool known = false;

		if (!tn_dim_symbolic(bound->dims[i]))
			continue;
		for (uint32_t d = 0; d < e->n_dims && !known; d++)
			known = sizes[d] && tn_symbol_size(g->symbols[tn_dim_symbol(t->shape.dims[i])],
							   e->dims[d], sizes[d], &bound->dims[i]);
		if (!known)
			return tn_fail(TERN_E_INVALID,
				       "%s: dim %u of '%s' is the symbol '%s', which has no size", g->name, i,
				       t->name, g->symbols[tn_dim_symbol(t->shape.dims[i])]);
	}
	return TERN_OK;
}

static tern_status add_dim(tn_exec *e, const char *name, uint64_t train, uint64_t eval)
{
	uint32_t d = 0;

	while (d < e->n_dims && strcmp(e->dims[d], name) != 0)
		d++;
	if (d == e->n_dims) {
		if (d == TN_EXEC_DIMS)
			return tn_fail(TERN_E_LIMIT, "%s: more than %d symbols with sizes", e->graph->name,
				       TN_EXEC_DIMS);
		e->dims[e->n_dims++] = name;
	}
	if (train)
		e->progs[TN_PROG_TRAIN].sizes[d] = train;
	if (eval)
		e->progs[TN_PROG_EVAL].sizes[d] = eval;
	return TERN_OK;
}

tern_status tn_exec_dims(tn_exec *e)
{
	for (uint32_t i = 0; i < TERN_PLAN_DIMS_MAX && e->plan->params.dims[i].name; i++)
		TN_TRY(add_dim(e, e->plan->params.dims[i].name, e->plan->params.dims[i].size,
			       e->plan->params.dims[i].size));
	return add_dim(e, "batch", e->params.batch, e->params.eval_batch);
}

/* ---- memory ---- */

/* Tensors that share a buffer have one room, that of the first of them. */
static exec_room *room_of(const tn_exec *e, tn_prog_id id, uint32_t tensor)
{
	const tn_device *d = &e->plan->devices[e->device];

	return &e->room[id][tn_exec_shared(e, tensor) ? d->first_in[d->buffer[tensor]] : tensor];
}

tern_status tn_exec_room(tn_exec *e, tn_prog_id id, uint32_t tensor, uint64_t bytes)
{
	exec_room *room = room_of(e, id, tensor);
	void *ptr;

	TN_ASSERT(!tn_exec_shared(e, tensor) || !e->registered[tensor]);
	if (!room->bytes) {
		room->owned = e->n_owned;
		TN_TRY(tn_exec_alloc(e, bytes, e->registered[tensor], &ptr));
		room->bytes = TN_MAX(bytes, 1);
	} else if (room->bytes < bytes) {
		TN_TRY(tn_exec_grow(e, room->owned, room->bytes, bytes));
		room->bytes = bytes;
	}
	return TERN_OK;
}

/* The programs that are kept look at memory that may have moved. */
void tn_exec_refresh(const tn_exec *e, exec_prog *p)
{
	for (uint32_t t = 0; t < e->graph->n_tensors; t++) {
		const exec_room *room = room_of(e, p->id, t);

		if (room->bytes && p->tensors[t].root == t)
			p->tensors[t].data = e->owned[room->owned];
	}
}

void tn_exec_sharing(const tn_exec *e, uint64_t *shared_bytes, uint64_t *unshared_bytes)
{
	const exec_prog *p = &e->progs[TN_PROG_TRAIN];
	const tn_device *d = &e->plan->devices[e->device];

	*shared_bytes = *unshared_bytes = 0;
	for (uint32_t t = 0; t < e->graph->n_tensors; t++)
		*unshared_bytes += tn_exec_shared(e, t) ? p->tensors[t].bytes : 0;
	for (uint32_t b = 0; b < d->n_buffers; b++)
		*shared_bytes += e->room[TN_PROG_TRAIN][d->first_in[b]].bytes;
}

/* ---- programs ---- */

static exec_prog *find_variant(tn_exec *e, tn_prog_id id, const uint64_t *sizes)
{
	for (uint32_t i = 0; i < e->n_variants[id]; i++)
		if (memcmp(e->variants[id][i].sizes, sizes, sizeof(e->variants[id][i].sizes)) == 0)
			return &e->variants[id][i];
	return NULL;
}

/* What goes from one program of a kind to the next: how far chains are, and what is still on its way. */
static void hand_over(const tn_exec *e, const exec_prog *from, exec_prog *to)
{
	TN_ASSERT(from->n_chains == to->n_chains && from->open_chains == 0);
	for (uint32_t i = 0; i < to->n_chains; i++) {
		to->chains[i].step = from->chains[i].step;
		to->chains[i].target = from->chains[i].target;
	}
	for (uint32_t i = 0; i < e->graph->n_nodes; i++)
		to->nodes[i].runs = from->nodes[i].runs;
	for (uint32_t t = 0; t < e->graph->n_tensors; t++)
		to->tensors[t].posted = from->tensors[t].posted;
}

static void swap(tn_exec *e, exec_prog *kept)
{
	exec_prog *current = &e->progs[kept->id], old = *current;

	hand_over(e, current, kept);
	*current = *kept;
	*kept = old;
	tn_exec_refresh(e, current);
}

/* A place for the current program beside those that are kept; the oldest goes where there is none. */
static exec_prog *new_place(tn_exec *e, tn_prog_id id)
{
	if (e->n_variants[id] == TN_EXEC_VARIANTS) {
		tn_exec_prog_free(&e->variants[id][0], e->graph->n_nodes);
		memmove(&e->variants[id][0], &e->variants[id][1],
			(TN_EXEC_VARIANTS - 1) * sizeof(e->variants[id][0]));
		e->n_variants[id]--;
	}
	return &e->variants[id][e->n_variants[id]];
}

static tern_status make_variant(tn_exec *e, tn_prog_id id, const uint64_t *sizes, uint64_t deadline_ns)
{
	exec_prog *place = new_place(e, id);
	tern_status st;

	if (id == TN_PROG_TRAIN) /* buffers may have to move */
		TN_TRY(tn_exec_wait_posted(e, deadline_ns));
	*place = (exec_prog){.id = id};
	memcpy(place->sizes, sizes, sizeof(place->sizes));
	st = tn_exec_prog_make(e, place);
	if (st == TERN_OK && e->scratch_bytes > e->scratch_room) {
		uint64_t room = (e->scratch_bytes + TN_CACHE_LINE - 1) / TN_CACHE_LINE * TN_CACHE_LINE;

		st = tn_exec_grow(e, e->scratch_owned, e->scratch_room * e->params.threads,
				  room * e->params.threads);
		e->scratch = e->owned[e->scratch_owned];
		e->scratch_room = st == TERN_OK ? room : e->scratch_room;
	}
	if (st != TERN_OK) {
		tn_exec_prog_free(place, e->graph->n_nodes);
		tn_exec_refresh(e, &e->progs[id]);
		return st;
	}
	e->n_variants[id]++;
	swap(e, place);
	return TERN_OK;
}

static tern_status rebind(tn_exec *e, tn_prog_id id, const uint64_t *sizes, uint64_t deadline_ns)
{
	exec_prog *kept;

	if (memcmp(e->progs[id].sizes, sizes, sizeof(e->progs[id].sizes)) == 0)
		return TERN_OK;
	kept = find_variant(e, id, sizes);
	if (kept)
		swap(e, kept);
	else
		TN_TRY(make_variant(e, id, sizes, deadline_ns));
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) { /* what was fed had another shape */
		const tn_node *n = &e->graph->nodes[i];

		if (n->op == TN_OP_PLACEHOLDER && tn_shape_symbolic(&e->graph->tensors[n->out[0]].shape))
			e->progs[id].tensors[n->out[0]].data = NULL;
	}
	return TERN_OK;
}

tern_status tn_exec_bind(tn_exec *e, tn_prog_id id, const char *symbol, uint64_t size, uint64_t deadline_ns)
{
	exec_prog *p = (unsigned)id < TN_PROG_COUNT ? &e->progs[id] : NULL;
	uint64_t sizes[TN_EXEC_DIMS];
	uint32_t d = 0;

	if (!p || !p->exists || e->broken || p->open_chains)
		return tn_fail(TERN_E_STATE, "%s: sizes are bound between steps", e->graph->name);
	while (d < e->n_dims && strcmp(e->dims[d], symbol) != 0)
		d++;
	if (d == e->n_dims || size == 0)
		return tn_fail(TERN_E_NOT_FOUND, "%s: '%s' is no symbol with a size, or the size is 0",
			       e->graph->name, symbol);
	memcpy(sizes, p->sizes, sizeof(sizes));
	sizes[d] = size;
	return rebind(e, id, sizes, deadline_ns);
}

/* ---- sizes that come with tensors ---- */

/* What a received shape says of the symbols in the edge's. */
static tern_status learn(const tn_exec *e, const exec_end *end, uint64_t *sizes)
{
	const tn_tensor *t = &e->graph->tensors[e->graph->nodes[end->node].out[0]];

	for (uint32_t i = 0; i < t->shape.rank; i++) {
		uint64_t got = end->shape.dims[i], unit;
		bool known = !tn_dim_symbolic(t->shape.dims[i]) && t->shape.dims[i] == got;

		for (uint32_t d = 0; d < e->n_dims && !known && tn_dim_symbolic(t->shape.dims[i]); d++) {
			const char *symbol = e->graph->symbols[tn_dim_symbol(t->shape.dims[i])];

			/* "name" or "name/n": the size of which this is that share */
			for (uint64_t n = 1; n <= TN_EXEC_PARTS && !known; n++) {
				if (!tn_symbol_size(symbol, e->dims[d], got * n, &unit) || unit != got)
					continue;
				sizes[d] = got * n;
				known = true;
			}
		}
		if (!known)
			return tn_fail(TERN_E_SHAPE, "%s: dim %u of '%s' from %s is %" PRIu64, e->graph->name,
				       i, end->edge->name, e->plan->devices[end->edge->src].name, got);
	}
	return TERN_OK;
}

/* "steps" and "steps/4" are of one size. */
static bool same_size(const char *a, const char *b)
{
	size_t n = strcspn(a, "/");

	return n == strcspn(b, "/") && memcmp(a, b, n) == 0;
}

/* Is a symbolic dim one of a tensor that is fed here? */
static bool is_fed(const tern_graph *g, uint64_t dim)
{
	const char *symbol = g->symbols[tn_dim_symbol(dim)];

	for (uint32_t i = 0; i < g->n_nodes; i++) {
		const tern_shape *s;

		if (g->nodes[i].op != TN_OP_PLACEHOLDER)
			continue;
		s = &g->tensors[g->nodes[i].out[0]].shape;
		for (uint32_t k = 0; k < s->rank; k++)
			if (tn_dim_symbolic(s->dims[k]) &&
			    same_size(symbol, g->symbols[tn_dim_symbol(s->dims[k])]))
				return true;
	}
	return false;
}

static bool brings_size(const tn_exec *e, const exec_end *end)
{
	const tern_shape *s = &e->graph->tensors[e->graph->nodes[end->node].out[0]].shape;

	for (uint32_t k = 0; k < s->rank; k++)
		if (tn_dim_symbolic(s->dims[k]) && !is_fed(e->graph, s->dims[k]))
			return true;
	return false;
}

/* The first tensor of a step that brings a size which nobody told: what is computed first is received first. */
static exec_end *bringer(const tn_exec *e, tn_prog_id id)
{
	exec_end *first = NULL;

	for (uint32_t i = 0; i < e->n_ends; i++) {
		exec_end *end = &e->ends[i];

		if (!end->is_send && !end->edge->is_static && e->progs[id].nodes[end->node].active &&
		    (!first || end->node < first->node) && brings_size(e, end))
			first = end;
	}
	return first;
}

tern_status tn_exec_bind_received(tn_exec *e, tn_prog_id id, uint64_t deadline_ns)
{
	exec_end *end = bringer(e, id);
	uint64_t sizes[TN_EXEC_DIMS];

	if (!end)
		return TERN_OK;
	memcpy(sizes, e->progs[id].sizes, sizeof(sizes));
	TN_TRY(tn_exec_hold(e, end, deadline_ns));
	TN_TRY(learn(e, end, sizes));
	return rebind(e, id, sizes, deadline_ns);
}

void tn_exec_variants_free(tn_exec *e)
{
	for (unsigned id = 0; id < TN_PROG_COUNT; id++) {
		for (uint32_t i = 0; i < e->n_variants[id]; i++)
			tn_exec_prog_free(&e->variants[id][i], e->graph->n_nodes);
		free(e->variants[id]);
		free(e->room[id]);
	}
}
