/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets a program up: which nodes run, with which shapes, on which memory, by which kernels, in which chains.
 * Everything that allocates happens here, before the first step.
 *
 * Thread story: see exec.h. Tests: tests/unit/graph/exec_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/exec_int.h"

/* ---- which nodes run ---- */

static bool writes_variable(const tern_graph *g, const tn_node *n)
{
	return (tn_op_flags(n->op) & TN_OPF_INPLACE) &&
	       g->nodes[g->tensors[tn_graph_root(g, n->in[0])].node].op == TN_OP_VARIABLE;
}

/* Marks what a tensor needs. Returns false if a variable is written on the way. */
static bool mark_needed(const tern_graph *g, uint32_t tensor, bool *needed)
{
	bool pure = true;

	memset(needed, 0, g->n_nodes * sizeof(*needed));
	needed[g->tensors[tensor].node] = true;
	/* Numbers are a topological order of data edges; a control edge may point backwards, so until stable. */
	for (bool changed = true; changed;) {
		changed = false;
		for (uint32_t i = g->n_nodes; i-- > 0;) {
			const tn_node *n = &g->nodes[i];

			if (!needed[i])
				continue;
			pure &= !writes_variable(g, n);
			for (uint32_t k = 0; k < n->n_in + n->n_ctrl; k++) {
				uint32_t from =
					k < n->n_in ? g->tensors[n->in[k]].node : n->ctrl[k - n->n_in];

				changed |= !needed[from] && from > i;
				needed[from] = true;
			}
		}
	}
	return pure;
}

/* What EVAL receives must be there already: a variable, which is held since TRAIN. */
static tern_status check_held(const tn_exec *e, uint32_t node)
{
	const tn_edge *edge;

	if (!(tn_op_flags(e->graph->nodes[node].op) & TN_OPF_RECV))
		return TERN_OK;
	edge = &e->plan->edges[tn_node_int(&e->graph->nodes[node], TN_ATTR_EDGE, 0)];
	if (tn_node_int(&e->plan->devices[edge->src].graph->nodes[edge->send_node], TN_ATTR_PROLOGUE, 0))
		return TERN_OK;
	return tn_fail(TERN_E_UNSUPPORTED,
		       "%s: evaluation needs '%s' from %s in each step: a model on several devices is "
		       "evaluated by its "
		       "training steps alone; make the executor without eval_batch",
		       e->graph->name, edge->name, e->plan->devices[edge->src].name);
}

static tern_status choose_nodes(const tn_exec *e, exec_prog *p)
{
	const tern_graph *g = e->graph;
	bool *needed = calloc(g->n_nodes + 1, sizeof(*needed));

	if (!needed)
		return tn_fail(TERN_E_NOMEM, "no memory for a program of %s", g->name);
	for (uint32_t i = 0; i < g->n_ports && p->id == TN_PROG_EVAL; i++) {
		if (g->ports[i].is_input || !mark_needed(g, g->ports[i].tensor, needed))
			continue;
		for (uint32_t k = 0; k < g->n_nodes; k++)
			p->nodes[k].active |= needed[k];
	}
	free(needed);
	for (uint32_t k = 0; k < g->n_nodes; k++) {
		p->nodes[k].active |= p->id == TN_PROG_TRAIN;
		if (tn_op_flags(g->nodes[k].op) & TN_OPF_SOURCE)
			p->nodes[k].active = false;
		p->n_active += p->nodes[k].active;
		if (p->id == TN_PROG_EVAL && p->nodes[k].active)
			TN_TRY(check_held(e, k));
	}
	return TERN_OK;
}

/* ---- shapes and memory ---- */

static void count_readers(const tn_exec *e, exec_prog *p)
{
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		const tn_node *n = &e->graph->nodes[i];

		for (uint32_t k = 0; k < n->n_in && p->nodes[i].active; k++)
			p->tensors[p->tensors[n->in[k]].root].readers++;
	}
	for (uint32_t i = 0; i < e->graph->n_ports; i++) {
		exec_tensor *root = &p->tensors[p->tensors[e->graph->ports[i].tensor].root];
		const tn_node *n =
			&e->graph->nodes[e->graph->tensors[p->tensors[e->graph->ports[i].tensor].root].node];

		root->pinned |= !e->graph->ports[i].is_input;
		for (uint32_t k = 0; k < n->n_in && root->pinned && tn_op_flags(n->op) & TN_OPF_JOIN; k++)
			p->tensors[n->in[k]].pinned = true;
	}
}

/* Where the tensor is: the root, and how far from its beginning. Inputs have smaller numbers. */
static tern_status bind_memory(const tn_exec *e, exec_prog *p, uint32_t i)
{
	const tn_node *n = &e->graph->nodes[e->graph->tensors[i].node];
	exec_tensor *t = &p->tensors[i];

	t->root = tn_graph_root(e->graph, i);
	t->data = e->fixed[i];
	if (t->root == i)
		return TERN_OK;
	t->offset = p->tensors[n->in[0]].offset;
	if (n->op == TN_OP_PART)
		t->offset += tn_part_offset(n, &p->tensors[n->in[0]].shape, e->graph->tensors[i].dtype);
	else if (t->bytes != p->tensors[n->in[0]].bytes) /* symbols whose sizes do not belong together */
		return tn_fail(TERN_E_SHAPE,
			       "%s: '%s' would see %" PRIu64 " bytes of '%s', which has %" PRIu64,
			       e->graph->name, n->name, t->bytes, e->graph->tensors[n->in[0]].name,
			       p->tensors[n->in[0]].bytes);
	return TERN_OK;
}

static tern_status bind_tensors(const tn_exec *e, exec_prog *p)
{
	for (uint32_t i = 0; i < e->graph->n_tensors; i++) {
		exec_tensor *t = &p->tensors[i];

		TN_TRY(tn_exec_bind_shape(e, p->sizes, &e->graph->tensors[i], &t->shape));
		TN_TRY(tn_shape_bytes(&t->shape, e->graph->tensors[i].dtype, &t->bytes));
		TN_TRY(bind_memory(e, p, i));
	}
	count_readers(e, p);
	return TERN_OK;
}

/* Outputs of active nodes that are memory of their own. */
static tern_status alloc_outputs(tn_exec *e, exec_prog *p)
{
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		const tn_node *n = &e->graph->nodes[i];

		if (!p->nodes[i].active || tn_op_flags(n->op) & (TN_OPF_RECV | TN_OPF_JOIN))
			continue;
		for (uint32_t k = 0; k < n->n_out; k++) {
			exec_tensor *t = &p->tensors[n->out[k]];

			if (t->root == n->out[k])
				TN_TRY(tn_exec_room(e, p->id, t->root, t->bytes));
		}
	}
	tn_exec_refresh(e, p); /* only now have the buffers that are shared their size */
	return TERN_OK;
}

/* ---- kernels ---- */

static void fill_operands(const tn_exec *e, const exec_prog *p, const uint32_t *tensors, uint32_t n,
			  tn_operand *operands)
{
	for (uint32_t k = 0; k < n; k++) {
		operands[k] = (tn_operand){.dtype = e->graph->tensors[tensors[k]].dtype,
					   .shape = p->tensors[tensors[k]].shape};
	}
}

static tern_status make_kernel(tn_exec *e, exec_prog *p, uint32_t i)
{
	const tn_node *n = &e->graph->nodes[i];
	tn_operand *in, out[TN_OUTS_MAX];
	tn_kern_desc desc;
	tern_status st;

	if (!p->nodes[i].active ||
	    tn_op_flags(n->op) & (TN_OPF_VIEW | TN_OPF_SEND | TN_OPF_RECV | TN_OPF_JOIN))
		return TERN_OK;
	if (tn_op_flags(n->op) & TN_OPF_STORE)
		return tn_exec_rows_make(e, p, i);
	in = calloc(n->n_in + 1, sizeof(*in));
	if (!in)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", n->name);
	fill_operands(e, p, n->in, n->n_in, in);
	fill_operands(e, p, n->out, n->n_out, out);
	desc = (tn_kern_desc){.node = n, .in = in, .out = out, .inference = p->id == TN_PROG_EVAL};
	st = tn_kern_create(e->kern, &desc, &p->nodes[i].kern);
	free(in);
	if (st == TERN_OK)
		e->scratch_bytes = TN_MAX(e->scratch_bytes, p->nodes[i].kern->scratch_bytes);
	return st;
}

static tern_status make_kernels(tn_exec *e, exec_prog *p)
{
	uint32_t n = 0, at = 0;

	for (uint32_t i = 0; i < e->graph->n_nodes; i++)
		n += e->graph->nodes[i].n_in + e->graph->nodes[i].n_out;
	p->pointers = calloc(n + 1, sizeof(*p->pointers));
	if (!p->pointers)
		return tn_fail(TERN_E_NOMEM, "no memory for %u operands", n);
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		p->nodes[i].in = p->pointers + at;
		at += e->graph->nodes[i].n_in;
		p->nodes[i].out = p->pointers + at;
		at += e->graph->nodes[i].n_out;
		TN_TRY(make_kernel(e, p, i));
	}
	return TERN_OK;
}

/* ---- chains ---- */

static uint32_t find_set(uint32_t *set, uint32_t i)
{
	while (set[i] != i) {
		set[i] = set[set[i]];
		i = set[i];
	}
	return i;
}

/* Active nodes joined by edges get the same representative, the lowest number among them. */
static void join_nodes(const tn_exec *e, exec_prog *p, uint32_t *set)
{
	for (uint32_t i = 0; i < e->graph->n_nodes; i++)
		set[i] = i;
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		if (!p->nodes[i].active)
			continue;
		for (uint32_t k = e->deps.first[i]; k < e->deps.first[i + 1]; k++) {
			uint32_t a = find_set(set, i), b;

			if (!p->nodes[e->deps.next[k]].active)
				continue;
			p->nodes[e->deps.next[k]].pending_init++;
			b = find_set(set, e->deps.next[k]);
			set[TN_MAX(a, b)] = TN_MIN(a, b);
		}
	}
}

static tern_status make_chains(const tn_exec *e, exec_prog *p)
{
	uint32_t n = e->graph->n_nodes, at = 0;
	uint32_t *set = calloc(n + 1, sizeof(*set));

	p->chains = calloc(n + 1, sizeof(*p->chains));
	p->chain_nodes = calloc(n + 1, sizeof(*p->chain_nodes));
	if (!set || !p->chains || !p->chain_nodes) {
		free(set);
		return tn_fail(TERN_E_NOMEM, "no memory for the chains of %s", e->graph->name);
	}
	join_nodes(e, p, set);
	for (uint32_t i = 0; i < n; i++) {
		if (!p->nodes[i].active)
			continue;
		if (find_set(set, i) == i)
			p->nodes[i].chain = p->n_chains++;
		else
			p->nodes[i].chain = p->nodes[find_set(set, i)].chain;
		p->chains[p->nodes[i].chain].n++;
	}
	for (uint32_t c = 0; c < p->n_chains; c++) {
		p->chains[c].first = at;
		at += p->chains[c].n;
		p->chains[c].n = 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		exec_chain *c = &p->chains[p->nodes[i].chain];

		if (p->nodes[i].active)
			p->chain_nodes[c->first + c->n++] = i;
	}
	TN_ASSERT(at == p->n_active);
	free(set);
	return TERN_OK;
}

/* Ops that write the same variable, in a ring: who is how far, for stale synchronous training. */
static tern_status link_writers(const tn_exec *e, exec_prog *p)
{
	uint32_t *last = malloc((e->graph->n_tensors + 1) * sizeof(*last));

	if (!last)
		return tn_fail(TERN_E_NOMEM, "no memory for the writers of %s", e->graph->name);
	memset(last, 0xff, (e->graph->n_tensors + 1) * sizeof(*last));
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		const tn_node *n = &e->graph->nodes[i];
		uint32_t root;

		if (!(tn_op_flags(n->op) & TN_OPF_INPLACE))
			continue;
		root = p->tensors[n->in[0]].root;
		p->nodes[i].next_writer = i;
		if (last[root] != TN_NONE) {
			p->nodes[i].next_writer = p->nodes[last[root]].next_writer;
			p->nodes[last[root]].next_writer = i;
		}
		last[root] = i;
	}
	free(last);
	return TERN_OK;
}

static tern_status make_lists(exec_prog *p)
{
	p->waiting = calloc(p->n_active + 1, sizeof(*p->waiting));
	p->fresh = calloc(p->n_active + 1, sizeof(*p->fresh));
	p->laid = calloc(p->n_active + 1, sizeof(*p->laid));
	return p->waiting && p->fresh && p->laid
		       ? TERN_OK
		       : tn_fail(TERN_E_NOMEM, "no memory for lists of %u nodes", p->n_active);
}

/* Whether a send may read the memory while the node writes it, or somebody else may write it. */
static bool guarded(const tn_exec *e, const exec_prog *p, const bool *sent, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	bool found = false;

	for (uint32_t k = 0; k < n->n_out; k++)
		found |= sent[p->tensors[n->out[k]].root];
	if (tn_op_flags(n->op) & TN_OPF_INPLACE)
		found |= e->graph->nodes[e->graph->tensors[p->tensors[n->in[0]].root].node].op ==
			 TN_OP_VARIABLE;
	for (uint32_t k = 0; k < n->n_in && tn_node_writes_input(n, k); k++)
		found = true; /* variables */
	return found;
}

/* What the scheduler asks of each node at every step. */
static tern_status classify(const tn_exec *e, exec_prog *p)
{
	bool *sent = calloc(e->graph->n_tensors + 1, sizeof(*sent));

	if (!sent)
		return tn_fail(TERN_E_NOMEM, "no memory for a program of %s", e->graph->name);
	for (uint32_t i = 0; i < e->n_ends; i++) {
		if (e->ends[i].is_send)
			sent[e->ends[i].root] = true;
	}
	for (uint32_t c = 0; c < p->n_chains; c++)
		p->chains[c].rank = TN_NONE;
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		exec_node *x = &p->nodes[i];
		uint32_t *rank = &p->chains[x->chain].rank;

		if (!x->active)
			continue;
		x->comm = (tn_op_flags(e->graph->nodes[i].op) &
			   (TN_OPF_SEND | TN_OPF_RECV | TN_OPF_JOIN | TN_OPF_STORE)) != 0;
		x->guarded = x->kern && guarded(e, p, sent, i);
		if (x->comm && e->end_of[i] != TN_NONE && e->ends[e->end_of[i]].is_send)
			*rank = TN_MIN(*rank, e->ends[e->end_of[i]].edge->need);
	}
	free(sent);
	return TERN_OK;
}

tern_status tn_exec_prog_make(tn_exec *e, exec_prog *p)
{
	p->tensors = calloc(e->graph->n_tensors + 1, sizeof(*p->tensors));
	p->nodes = calloc(e->graph->n_nodes + 1, sizeof(*p->nodes));
	if (!p->tensors || !p->nodes)
		return tn_fail(TERN_E_NOMEM, "no memory for a program of %s", e->graph->name);
	TN_TRY(choose_nodes(e, p));
	TN_TRY(bind_tensors(e, p));
	TN_TRY(alloc_outputs(e, p));
	TN_TRY(make_kernels(e, p));
	TN_TRY(make_chains(e, p));
	TN_TRY(make_lists(p));
	TN_TRY(classify(e, p));
	TN_TRY(link_writers(e, p));
	p->exists = true;
	return TERN_OK;
}

void tn_exec_prog_free(exec_prog *p, uint32_t n_nodes)
{
	for (uint32_t i = 0; i < n_nodes && p->nodes; i++) {
		tn_kern_destroy(p->nodes[i].kern);
		tn_exec_rows_free(p->nodes[i].rows);
	}
	free(p->tensors);
	free(p->nodes);
	free(p->chains);
	free(p->chain_nodes);
	free(p->waiting);
	free(p->fresh);
	free(p->laid);
	free(p->pointers);
	*p = (exec_prog){0};
}
