/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism: from a model to one placed graph of the whole job. Servers hold the variables and the
 * optimiser's slots and run Apply; each worker has a copy of the model with its gradients.
 *
 *   sync    one Apply per variable on the gradients of all workers, added in worker order, times 1/W
 *   async   one Apply per variable and worker, each on that worker's gradient alone
 *   local   no server: the one worker has variables and Apply itself
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
	uint32_t *grad;        /* tensor in model, per variable */
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

static tern_status differentiate(replica *r, const tern_graph *model)
{
	uint32_t loss;
	tern_status st = tn_graph_clone(model, &r->model);

	if (st != TERN_OK)
		return st;
	r->var = calloc(model->n_nodes + 1, sizeof(*r->var));
	r->grad = calloc(model->n_nodes + 1, sizeof(*r->grad));
	if (!r->var || !r->grad)
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
	return tern_graph_gradients(r->model, loss, r->var, r->n_vars, r->grad);
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

static tern_status copy_worker(replica *r, uint32_t worker)
{
	tern_status st = TERN_OK;

	for (uint32_t v = 0; v < r->n_vars; v++) {
		r->tensor_map[r->var[v]] = r->placed_var[v];
		r->node_map[r->model->tensors[r->var[v]].node] = r->placed->tensors[r->placed_var[v]].node;
	}
	for (uint32_t i = 0; i < r->model->n_nodes && st == TERN_OK; i++) {
		if (r->model->nodes[i].op != TN_OP_VARIABLE)
			st = copy_node(r, worker, i);
	}
	for (uint32_t i = 0; i < r->model->n_nodes && st == TERN_OK; i++) {
		const tn_node *n = &r->model->nodes[i];

		for (uint32_t k = 0; k < n->n_ctrl && st == TERN_OK; k++)
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

/* ---- optimiser ---- */

static tern_status add_slot(replica *r, uint32_t v, const char *what, uint32_t *tensor)
{
	const tn_tensor *t = &r->placed->tensors[r->placed_var[v]];
	tern_init zeros = {.kind = TERN_INIT_ZEROS};
	tern_shape shape = t->shape;
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_VARIABLE,
			     .name = name,
			     .device = (int32_t)r->server[v],
			     .dtype = t->dtype,
			     .shape = &shape,
			     .init = &zeros};
	uint32_t node;
	tern_status st;

	snprintf(name, sizeof(name), "%s/%s", t->name, what);
	st = tn_graph_add(r->placed, &spec, &node);
	if (st == TERN_OK)
		*tensor = r->placed->nodes[node].out[0];
	return st;
}

/* One Apply on the gradients of workers first .. first + n - 1. in[0..slots-1] are set. */
static tern_status add_apply(replica *r, uint32_t v, uint32_t *in, uint32_t slots, uint32_t first, uint32_t n,
			     bool one)
{
	const tern_optimizer *o = &r->params->optimizer;
	bool momentum = o->kind == TERN_OPTIMIZER_MOMENTUM;
	tn_attr attrs[8];
	uint32_t n_attrs = 0;
	char name[2 * TN_NAME_MAX];

	attrs[n_attrs++] = tn_attr_float(TN_ATTR_LR, (double)o->lr);
	if (o->lr_steps) {
		attrs[n_attrs++] = tn_attr_float(TN_ATTR_LR_END, (double)o->lr_end);
		attrs[n_attrs++] = tn_attr_int(TN_ATTR_LR_STEPS, (int64_t)o->lr_steps);
	}
	if (momentum)
		attrs[n_attrs++] = tn_attr_float(TN_ATTR_MOMENTUM, (double)o->momentum);
	if (o->weight_decay != 0.0f)
		attrs[n_attrs++] = tn_attr_float(TN_ATTR_WEIGHT_DECAY, (double)o->weight_decay);
	if (n > 1)
		attrs[n_attrs++] = tn_attr_float(TN_ATTR_GRAD_SCALE, 1.0 / n);
	if (one)
		attrs[n_attrs++] = tn_attr_int(TN_ATTR_FOR_DEVICE, worker_device(r, first));
	for (uint32_t w = 0; w < n; w++)
		in[slots + w] = r->placed_grad[(first + w) * r->n_vars + v];
	if (one)
		snprintf(name, sizeof(name), "%s/apply%u", r->placed->tensors[r->placed_var[v]].name, first);
	else
		snprintf(name, sizeof(name), "%s/apply", r->placed->tensors[r->placed_var[v]].name);
	return tn_graph_add1(r->placed, momentum ? TN_OP_APPLY_MOMENTUM : TN_OP_APPLY_SGD, name, in,
			     slots + n, attrs, n_attrs, (int32_t)r->server[v], NULL);
}

static tern_status optimise(replica *r, uint32_t v)
{
	bool momentum = r->params->optimizer.kind == TERN_OPTIMIZER_MOMENTUM;
	bool async = r->params->servers && !r->params->sync;
	uint32_t in[2 + TERN_PLAN_WORKERS_MAX], slots = 1;
	tern_status st = TERN_OK;

	in[0] = r->placed_var[v];
	if (momentum)
		st = add_slot(r, v, "momentum", &in[slots++]);
	if (st == TERN_OK && !async)
		st = add_apply(r, v, in, slots, 0, r->params->workers, false);
	for (uint32_t w = 0; w < r->params->workers && async && st == TERN_OK; w++)
		st = add_apply(r, v, in, slots, w, 1, true);
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
	for (uint32_t v = 0; v < r->n_vars && st == TERN_OK; v++)
		st = optimise(r, v);
	return st;
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
