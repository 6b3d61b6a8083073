/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism: from a model to one placed graph of the whole job. Servers hold the variables and the
 * optimiser's slots and run Apply; each worker has a copy of the model with its gradients.
 *
 * Without a server the one worker has variables and Apply itself. What an update is made of: optimise.c.
 * ApplyEma nodes of the model become updates too: of what all workers yield, at the variable's server.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/plan.h"

typedef struct replica {
	const tern_plan_params *params;
	tern_graph *model; /* with gradients */
	tern_graph *placed;
	uint32_t n_vars;
	uint32_t *var;         /* tensor in model, per variable */
	uint32_t *grad;        /* tensor in model, per variable: its gradient, or what ApplyEma averages */
	float *ema;            /* per variable: momentum of its ApplyEma; below 0: it is trained */
	uint32_t *server;      /* device, per variable */
	uint32_t *placed_var;  /* tensor in placed, per variable */
	uint32_t *placed_grad; /* tensor in placed, per (worker, variable) */
	uint32_t *tensor_map;  /* model -> placed, of the worker that is being copied */
	uint32_t *node_map;
} replica;

static uint32_t worker_device(const replica *r, uint32_t worker)
{
	return r->params->servers + worker;
}

/* ---- the model with its gradients ---- */

/* What ApplyEma nodes of the model write is no subject of the optimiser. */
static void find_averages(replica *r)
{
	for (uint32_t v = 0; v < r->n_vars; v++)
		r->ema[v] = -1.0f;
	for (uint32_t i = 0; i < r->model->n_nodes; i++) {
		const tn_node *n = &r->model->nodes[i];

		for (uint32_t v = 0; v < r->n_vars && n->op == TN_OP_APPLY_EMA; v++) {
			if (r->var[v] != n->in[0])
				continue;
			r->ema[v] = (float)tn_node_float(n, TN_ATTR_MOMENTUM, 0.0);
			r->grad[v] = n->in[1];
		}
	}
}

/* Gradients of the variables that are trained. */
static tern_status add_gradients(replica *r, uint32_t loss)
{
	uint32_t *wrt = calloc(2 * (size_t)r->n_vars, sizeof(*wrt)), *grads = wrt + r->n_vars, n = 0;
	tern_status st;

	if (!wrt)
		return tn_fail(TERN_E_NOMEM, "no memory for the gradients of '%s'", r->model->name);
	for (uint32_t v = 0; v < r->n_vars; v++) {
		if (r->ema[v] < 0.0f)
			wrt[n++] = r->var[v];
	}
	st = tern_graph_gradients(r->model, loss, wrt, n, grads);
	for (uint32_t v = r->n_vars; v-- > 0 && st == TERN_OK;) {
		if (r->ema[v] < 0.0f)
			r->grad[v] = grads[--n];
	}
	free(wrt);
	return st;
}

static tern_status differentiate(replica *r, const tern_graph *model)
{
	uint32_t loss;
	tern_status st = tn_graph_clone(model, &r->model);

	if (st != TERN_OK)
		return st;
	r->var = calloc(model->n_nodes + 1, sizeof(*r->var));
	r->grad = calloc(model->n_nodes + 1, sizeof(*r->grad));
	r->ema = calloc(model->n_nodes + 1, sizeof(*r->ema));
	if (!r->var || !r->grad || !r->ema)
		return tn_fail(TERN_E_NOMEM, "no memory for the gradients of '%s'", model->name);
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		if (model->nodes[i].op == TN_OP_VARIABLE)
			r->var[r->n_vars++] = model->nodes[i].out[0];
	}
	loss = tn_graph_port(model, "loss", false);
	if (loss == TN_NONE) {
		return tn_fail(TERN_E_INVALID,
			       "graph '%s' has no output port 'loss': name it with tern_graph_output",
			       model->name);
	}
	if (r->n_vars == 0)
		return tn_fail(TERN_E_INVALID, "graph '%s' has no variables to train", model->name);
	find_averages(r);
	return add_gradients(r, loss);
}

/* ---- variables ---- */

static tern_status place_variable(replica *r, uint32_t v)
{
	const tn_tensor *t = &r->model->tensors[r->var[v]];
	const tn_node *from = &r->model->nodes[t->node];
	tn_node_spec spec = {.op = TN_OP_VARIABLE,
			     .name = from->name,
			     .device = (int32_t)r->server[v],
			     .dtype = t->dtype,
			     .shape = &t->shape,
			     .init = &from->init,
			     .values = from->data};
	uint32_t node;
	tern_status st = tn_graph_add(r->placed, &spec, &node);

	if (st == TERN_OK)
		r->placed_var[v] = r->placed->nodes[node].out[0];
	return st;
}

/* ---- workers ---- */

static tern_status copy_node(replica *r, uint32_t worker, uint32_t i)
{
	const tn_node *from = &r->model->nodes[i];
	const tn_tensor *out = from->n_out ? &r->model->tensors[from->out[0]] : NULL;
	uint32_t *in = malloc((from->n_in + 1) * sizeof(*in));
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = from->op,
			     .name = name,
			     .in = in,
			     .n_in = from->n_in,
			     .attrs = from->attrs,
			     .n_attrs = from->n_attrs,
			     .device = (int32_t)worker_device(r, worker),
			     .dtype = out ? out->dtype : TERN_F32,
			     .shape = out ? &out->shape : NULL,
			     .data = from->data};
	tern_status st;

	if (!in)
		return tn_fail(TERN_E_NOMEM, "no memory for node '%s'", from->name);
	for (uint32_t k = 0; k < from->n_in; k++)
		in[k] = r->tensor_map[from->in[k]];
	if (r->params->servers)
		snprintf(name, sizeof(name), "worker%u/%s", worker, from->name);
	else
		snprintf(name, sizeof(name), "%s", from->name);
	st = tn_graph_add(r->placed, &spec, &r->node_map[i]);
	for (uint32_t k = 0; k < from->n_out && st == TERN_OK; k++)
		r->tensor_map[from->out[k]] = r->placed->nodes[r->node_map[i]].out[k];
	free(in);
	return st;
}

/* Variables and what writes them are not the workers'. */
static bool is_copied(const tn_node *node)
{
	return node->op != TN_OP_VARIABLE && node->op != TN_OP_APPLY_EMA;
}

static tern_status copy_worker(replica *r, uint32_t worker)
{
	tern_status st = TERN_OK;

	for (uint32_t v = 0; v < r->n_vars; v++) {
		r->tensor_map[r->var[v]] = r->placed_var[v];
		r->node_map[r->model->tensors[r->var[v]].node] = r->placed->tensors[r->placed_var[v]].node;
	}
	for (uint32_t i = 0; i < r->model->n_nodes && st == TERN_OK; i++) {
		if (is_copied(&r->model->nodes[i]))
			st = copy_node(r, worker, i);
	}
	for (uint32_t i = 0; i < r->model->n_nodes && st == TERN_OK; i++) {
		const tn_node *n = &r->model->nodes[i];

		for (uint32_t k = 0; k < n->n_ctrl && is_copied(n) && st == TERN_OK; k++)
			st = tn_graph_add_control(r->placed, r->node_map[n->ctrl[k]], r->node_map[i]);
	}
	for (uint32_t i = 0; i < r->model->n_ports && st == TERN_OK; i++) {
		const tn_port *p = &r->model->ports[i];

		st = tn_graph_add_port(r->placed, p->name, r->tensor_map[p->tensor], p->is_input);
	}
	for (uint32_t v = 0; v < r->n_vars; v++)
		r->placed_grad[worker * r->n_vars + v] = r->tensor_map[r->grad[v]];
	return st;
}

/* ---- all of it ---- */

static tern_status build(replica *r, const tern_graph *model)
{
	tern_status st = differentiate(r, model);

	if (st != TERN_OK)
		return st;
	r->server = calloc(r->n_vars, sizeof(*r->server));
	r->placed_var = calloc(r->n_vars, sizeof(*r->placed_var));
	r->placed_grad = calloc((size_t)r->n_vars * r->params->workers, sizeof(*r->placed_grad));
	r->tensor_map = calloc(r->model->n_tensors, sizeof(*r->tensor_map));
	r->node_map = calloc(r->model->n_nodes, sizeof(*r->node_map));
	if (!r->server || !r->placed_var || !r->placed_grad || !r->tensor_map || !r->node_map)
		return tn_fail(TERN_E_NOMEM, "no memory to place '%s'", model->name);
	if (r->params->servers)
		st = tn_shard(model, r->params->servers, r->server);
	if (st == TERN_OK)
		st = tern_graph_create(model->name, &r->placed);
	if (st == TERN_OK)
		st = tn_graph_copy_symbols(r->placed, r->model);
	for (uint32_t v = 0; v < r->n_vars && st == TERN_OK; v++)
		st = place_variable(r, v);
	for (uint32_t w = 0; w < r->params->workers && st == TERN_OK; w++)
		st = copy_worker(r, w);
	if (st != TERN_OK)
		return st;
	return tn_optimise(&(tn_update){.placed = r->placed,
					.params = r->params,
					.n_vars = r->n_vars,
					.var = r->placed_var,
					.device = r->server,
					.ema = r->ema,
					.grad = r->placed_grad});
}

tern_status tn_replicate(const tern_graph *model, const tern_plan_params *params, tern_graph **placed)
{
	replica r = {.params = params};
	tern_status st;

	TN_ASSERT(params->workers >= 1 && params->workers <= TERN_PLAN_WORKERS_MAX);
	TN_ASSERT(params->servers > 0 || params->workers == 1);
	st = build(&r, model);
	tern_graph_destroy(r.model);
	free(r.var);
	free(r.grad);
	free(r.ema);
	free(r.server);
	free(r.placed_var);
	free(r.placed_grad);
	free(r.tensor_map);
	free(r.node_map);
	if (st == TERN_OK)
		*placed = r.placed;
	else
		tern_graph_destroy(r.placed);
	return st;
}
