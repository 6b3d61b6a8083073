/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model parallelism: which stage of a worker computes which node. Nodes that the model's author placed stay; the
 * others go where a minimum cut puts them (mincut.c), with
 *
 *   weight of a node   its multiplications, or elements read and written where it has none; the way back costs
 *                      in proportion
 *   bytes of an edge   the tensor's, twice if a gradient comes back
 *
 * Symbolic dims have the sizes of the plan's params, else SIZE_GUESS. Fed tensors, constants and variables are
 * on the first stage that reads them; a stage that reads a fed tensor gets a feed of its own later.
 *
 * Thread story: pure. Tests: tests/unit/graph/stage_test.c.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/mincut.h"
#include "graph/plan.h"

#define SIZE_GUESS 32u
#define WEIGHT_MAX (UINT64_C(1) << 56)

static tern_status check_devices(const tern_graph *model, uint32_t stages)
{
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		const tn_node *n = &model->nodes[i];

		if (n->device != TN_DEVICE_NONE && (n->device < 0 || (uint32_t)n->device >= stages)) {
			return tn_fail(TERN_E_INVALID,
				       "node '%s' is placed on device %d, but a worker has %u: plan with "
				       "more stages",
				       n->name, n->device, stages);
		}
	}
	return TERN_OK;
}

/* ---- costs ---- */

static uint64_t size_of(const tern_graph *g, const tern_plan_params *params, uint64_t dim)
{
	uint64_t size;

	if (!tn_dim_symbolic(dim))
		return dim;
	for (uint32_t i = 0; i < TERN_PLAN_DIMS_MAX && params->dims[i].name; i++) {
		if (tn_symbol_size(g->symbols[tn_dim_symbol(dim)], params->dims[i].name, params->dims[i].size,
				   &size))
			return size;
	}
	return SIZE_GUESS;
}

static uint64_t product(const tern_graph *g, const tern_plan_params *params, const tern_shape *shape,
			uint32_t first, uint32_t last)
{
	uint64_t n = 1;

	for (uint32_t i = first; i < last && i < shape->rank; i++) {
		if (__builtin_mul_overflow(n, size_of(g, params, shape->dims[i]), &n) || n > WEIGHT_MAX)
			return WEIGHT_MAX;
	}
	return n;
}

static uint64_t elements(const tern_graph *g, const tern_plan_params *params, uint32_t tensor)
{
	return product(g, params, &g->tensors[tensor].shape, 0, TERN_RANK_MAX);
}

static uint64_t weigh(const tern_graph *g, const tern_plan_params *params, const tn_node *n)
{
	uint64_t sum = 1, deep = 1;
	const tern_shape *w;

	if (tn_op_flags(n->op) & TN_OPF_VIEW)
		return 0;
	for (uint32_t k = 0; k < n->n_in; k++)
		sum += elements(g, params, n->in[k]);
	for (uint32_t k = 0; k < n->n_out; k++)
		sum += elements(g, params, n->out[k]);
	if (n->n_in < 2)
		return TN_MIN(sum, WEIGHT_MAX);
	w = &g->tensors[n->in[1]].shape;
	if (n->op == TN_OP_MATMUL && w->rank >= 2)
		deep = size_of(g, params, w->dims[w->rank - (tn_node_int(n, TN_ATTR_TRANS_B, 0) ? 1 : 2)]);
	else if (n->op == TN_OP_CONV)
		deep = product(g, params, w, 1, TERN_RANK_MAX);
	else if (n->op == TN_OP_LSTM || n->op == TN_OP_GRU || n->op == TN_OP_RNN)
		deep = product(g, params, w, 1, TERN_RANK_MAX);
	if (deep > 1 &&
	    (__builtin_mul_overflow(deep, elements(g, params, n->out[0]), &deep) || deep > WEIGHT_MAX))
		deep = WEIGHT_MAX;
	return TN_MIN(sum + deep, WEIGHT_MAX);
}

/* ---- the cut ---- */

typedef struct placement {
	tern_graph *g;
	const tern_plan_params *params;
	uint32_t *vertex; /* per node, or TN_NONE */
	bool *trained;    /* per tensor: a variable lies below, so a gradient comes back */
	uint64_t *weight;
	int32_t *fixed;
	uint32_t *part;
	tn_cut_edge *edges;
} placement;

static bool is_vertex(const tn_node *n)
{
	return !(tn_op_flags(n->op) & TN_OPF_SOURCE) && n->op != TN_OP_APPLY_EMA;
}

static void mark_trained(placement *p)
{
	for (uint32_t i = 0; i < p->g->n_nodes; i++) {
		const tn_node *n = &p->g->nodes[i];
		bool trained = n->op == TN_OP_VARIABLE;

		for (uint32_t k = 0; k < n->n_in; k++)
			trained |= p->trained[n->in[k]];
		for (uint32_t k = 0; k < n->n_out; k++)
			p->trained[n->out[k]] = trained && p->g->tensors[n->out[k]].dtype == TERN_F32;
	}
}

static void make_problem(placement *p, tn_cut_problem *problem)
{
	uint32_t n = 0, e = 0;

	for (uint32_t i = 0; i < p->g->n_nodes; i++) {
		const tn_node *node = &p->g->nodes[i];

		p->vertex[i] = TN_NONE;
		if (!is_vertex(node))
			continue;
		p->vertex[i] = n;
		p->weight[n] = weigh(p->g, p->params, node);
		p->fixed[n++] = node->device;
		for (uint32_t k = 0; k < node->n_in; k++) {
			const tn_tensor *t = &p->g->tensors[node->in[k]];
			uint64_t bytes = elements(p->g, p->params, node->in[k]) * tern_dtype_bytes(t->dtype);

			if (p->vertex[t->node] != TN_NONE)
				p->edges[e++] = (tn_cut_edge){.from = p->vertex[t->node],
							      .to = p->vertex[i],
							      .bytes = bytes << p->trained[node->in[k]]};
		}
	}
	*problem = (tn_cut_problem){
		.n = n, .weight = p->weight, .fixed = p->fixed, .n_edges = e, .edges = p->edges};
}

/* Sources that nobody placed: the first stage that reads them. Averages are where their values are made. */
static void place_rest(tern_graph *g, uint32_t stages)
{
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		tn_node *n = &g->nodes[i];
		uint32_t first = stages;

		if (n->device != TN_DEVICE_NONE)
			continue;
		if (n->op == TN_OP_APPLY_EMA) {
			n->device = g->nodes[g->tensors[n->in[1]].node].device;
			continue;
		}
		for (uint32_t k = i + 1; k < g->n_nodes; k++) {
			for (uint32_t j = 0; j < g->nodes[k].n_in; j++) {
				if (g->nodes[k].in[j] == n->out[0] && g->nodes[k].device != TN_DEVICE_NONE)
					first = TN_MIN(first, (uint32_t)g->nodes[k].device);
			}
		}
		n->device = first < stages ? (int32_t)first : 0;
	}
}

static tern_status cut_model(placement *p, uint32_t stages)
{
	uint32_t n_edges = 0;
	tn_cut_problem problem;

	for (uint32_t i = 0; i < p->g->n_nodes; i++)
		n_edges += p->g->nodes[i].n_in;
	p->vertex = calloc(p->g->n_nodes + 1, sizeof(*p->vertex));
	p->trained = calloc(p->g->n_tensors + 1, sizeof(*p->trained));
	p->weight = calloc(p->g->n_nodes + 1, sizeof(*p->weight));
	p->fixed = calloc(p->g->n_nodes + 1, sizeof(*p->fixed));
	p->part = calloc(p->g->n_nodes + 1, sizeof(*p->part));
	p->edges = calloc(n_edges + 1, sizeof(*p->edges));
	if (!p->vertex || !p->trained || !p->weight || !p->fixed || !p->part || !p->edges)
		return tn_fail(TERN_E_NOMEM, "no memory to place '%s'", p->g->name);
	mark_trained(p);
	make_problem(p, &problem);
	problem.parts = stages;
	TN_TRY(tn_mincut(&problem, p->part));
	for (uint32_t i = 0; i < p->g->n_nodes; i++) {
		if (p->vertex[i] != TN_NONE)
			p->g->nodes[i].device = (int32_t)p->part[p->vertex[i]];
	}
	return TERN_OK;
}

tern_status tn_stages(tern_graph *model, const tern_plan_params *params, uint32_t stages)
{
	placement p = {.g = model, .params = params};
	tern_status st = check_devices(model, stages);

	if (st == TERN_OK && stages > 1)
		st = cut_model(&p, stages);
	for (uint32_t i = 0; i < model->n_nodes && stages == 1; i++)
		model->nodes[i].device = 0;
	free(p.vertex);
	free(p.trained);
	free(p.weight);
	free(p.fixed);
	free(p.part);
	free(p.edges);
	if (st == TERN_OK)
		place_rest(model, stages);
	return st;
}
