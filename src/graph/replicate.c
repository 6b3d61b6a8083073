/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a model to one placed graph of the whole job. Servers hold the variables, whole or in parts, and the
 * optimiser's slots and run Apply; each worker has a copy of the model with its gradients, on one device or
 * split over stages (pipeline.c).
 *
 * Without a server the one worker has variables and Apply itself, each on the stage that uses it. What an
 * update is made of: optimise.c. ApplyEma nodes of the model become updates too: of what all workers yield, at
 * the variable's server.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c, part_test.c, stage_test.c.
 */
#include "graph/replicate.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"

/* ---- the model with its gradients ---- */

/* What ApplyEma nodes of the model write is no subject of the optimiser. */
static void find_averages(tn_replica *r)
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
static tern_status add_gradients(tn_replica *r, uint32_t loss)
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

static tern_status differentiate(tn_replica *r, const tern_graph *model)
{
	uint32_t loss = tn_graph_port(model, "loss", false);

	TN_TRY(tn_graph_clone(model, &r->model));
	r->n_forward = model->n_nodes;
	r->var = calloc(model->n_nodes + 1, sizeof(*r->var));
	r->grad = calloc(model->n_nodes + 1, sizeof(*r->grad));
	r->ema = calloc(model->n_nodes + 1, sizeof(*r->ema));
	if (!r->var || !r->grad || !r->ema)
		return tn_fail(TERN_E_NOMEM, "no memory for the gradients of '%s'", model->name);
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		if (model->nodes[i].op == TN_OP_VARIABLE)
			r->var[r->n_vars++] = model->nodes[i].out[0];
	}
	if (loss == TN_NONE) {
		return tn_fail(TERN_E_INVALID,
			       "graph '%s' has no output port 'loss': name it with tern_graph_output",
			       model->name);
	}
	if (r->n_vars == 0)
		return tn_fail(TERN_E_INVALID, "graph '%s' has no variables to train", model->name);
	TN_TRY(tn_stages(r->model, r->params, r->stages));
	find_averages(r);
	TN_TRY(add_gradients(r, loss));
	return tn_sparse(r);
}

/* ---- variables ---- */

/* Devices that fetch a variable: the stages with a node that reads it, once per worker. */
static uint32_t count_readers(const tn_replica *r, uint32_t tensor)
{
	uint32_t n = 0;

	for (uint32_t s = 0; s < r->stages; s++) {
		bool reads = false;

		for (uint32_t i = 0; i < r->model->n_nodes && !reads; i++) {
			const tn_node *node = &r->model->nodes[i];

			for (uint32_t k = 0; k < node->n_in && (uint32_t)node->device == s; k++)
				reads |= node->in[k] == tensor && node->op != TN_OP_APPLY_EMA;
		}
		n += reads;
	}
	return n * r->params->workers;
}

static tern_status split_variables(tn_replica *r)
{
	r->vars = calloc(r->n_vars + 1, sizeof(*r->vars));
	if (!r->vars)
		return tn_fail(TERN_E_NOMEM, "no memory for %u variables", r->n_vars);
	for (uint32_t v = 0; v < r->n_vars; v++) {
		r->vars[v].shape = r->model->tensors[r->var[v]].shape;
		r->vars[v].readers = count_readers(r, r->var[v]);
	}
	TN_TRY(tn_shard(r->vars, r->n_vars, r->params, &r->parts, &r->n_parts));
	r->part_var = calloc(r->n_parts, sizeof(*r->part_var));
	r->worker_grad = calloc((size_t)r->n_vars * r->params->workers, sizeof(*r->worker_grad));
	if (!r->part_var || !r->worker_grad)
		return tn_fail(TERN_E_NOMEM, "no memory to place '%s'", r->model->name);
	for (uint32_t p = 0; p < r->n_parts; p++) {
		if (r->parts[p].server == TN_NONE)
			r->parts[p].server =
				(uint32_t)r->model
					->nodes[r->model->tensors[r->var[r->parts[p].variable]].node]
					.device;
	}
	return TERN_OK;
}

static tern_status place_part(tn_replica *r, uint32_t p)
{
	const tn_part *part = &r->parts[p];
	const tn_tensor *t = &r->model->tensors[r->var[part->variable]];
	const tn_node *from = &r->model->nodes[t->node];
	tern_shape shape = t->shape;
	uint32_t axis = tn_part_axis(&t->shape);
	tn_attr attrs[4] = {tn_attr_int(TN_ATTR_PART, part->part), tn_attr_int(TN_ATTR_PARTS, part->parts)};
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_VARIABLE,
			     .name = name,
			     .attrs = attrs,
			     .n_attrs = part->parts > 1 ? 3 + (axis > 0) : 0,
			     .device = (int32_t)part->server,
			     .dtype = t->dtype,
			     .shape = &shape,
			     .init = &from->init,
			     .values = from->data};
	uint32_t node;

	snprintf(name, sizeof(name), "%s", from->name);
	if (part->parts > 1) {
		snprintf(name, sizeof(name), "%s/part%u", from->name, part->part);
		attrs[2] = tn_attr_int(TN_ATTR_ROWS, (int64_t)shape.dims[axis]);
		attrs[3] = tn_attr_int(TN_ATTR_AXIS, axis);
		shape.dims[axis] = tn_part_begin(t->shape.dims[axis], part->part + 1, part->parts) -
				   tn_part_begin(t->shape.dims[axis], part->part, part->parts);
	}
	TN_TRY(tn_graph_add(r->placed, &spec, &node));
	r->part_var[p] = r->placed->nodes[node].out[0];
	return TERN_OK;
}

/* ---- updates ---- */

/* A worker's gradient of a part: rows of that of the variable, as a view on the worker. */
static tern_status part_gradient(const tn_replica *r, uint32_t worker, uint32_t p, uint32_t *grad)
{
	const tn_part *part = &r->parts[p];
	uint32_t whole = r->worker_grad[worker * r->n_vars + part->variable];
	const tn_tensor *t = &r->placed->tensors[whole];
	tn_attr attrs[2] = {tn_attr_int(TN_ATTR_PART, part->part), tn_attr_int(TN_ATTR_PARTS, part->parts)};
	char name[3 * TN_NAME_MAX];

	*grad = whole;
	if (part->parts == 1)
		return TERN_OK;
	snprintf(name, sizeof(name), "%s/part%u", t->name, part->part);
	return tn_graph_add1(r->placed, TN_OP_PART, name, &whole, 1, attrs, 2,
			     r->placed->nodes[t->node].device, grad);
}

static tern_status update_parts(const tn_replica *r, uint32_t *device, uint32_t *grad, float *ema)
{
	for (uint32_t p = 0; p < r->n_parts; p++) {
		device[p] = r->parts[p].server;
		ema[p] = r->ema[r->parts[p].variable];
		for (uint32_t w = 0; w < r->params->workers; w++)
			TN_TRY(part_gradient(r, w, p, &grad[w * r->n_parts + p]));
	}
	return tn_optimise(&(tn_update){.placed = r->placed,
					.params = r->params,
					.stages = r->stages,
					.micro = r->micro,
					.n_vars = r->n_parts,
					.var = r->part_var,
					.device = device,
					.ema = ema,
					.grad = grad});
}

static tern_status add_updates(const tn_replica *r)
{
	uint32_t *device = calloc(r->n_parts, sizeof(*device));
	uint32_t *grad = calloc((size_t)r->n_parts * r->params->workers, sizeof(*grad));
	float *ema = calloc(r->n_parts, sizeof(*ema));
	tern_status st;

	if (device && grad && ema)
		st = update_parts(r, device, grad, ema);
	else
		st = tn_fail(TERN_E_NOMEM, "no memory for the updates of '%s'", r->model->name);
	free(device);
	free(grad);
	free(ema);
	return st;
}

/* ---- all of it ---- */

static tern_status build(tn_replica *r, const tern_graph *model)
{
	TN_TRY(differentiate(r, model));
	TN_TRY(split_variables(r));
	TN_TRY(tern_graph_create(model->name, &r->placed));
	TN_TRY(tn_graph_copy_symbols(r->placed, r->model));
	for (uint32_t p = 0; p < r->n_parts; p++)
		TN_TRY(place_part(r, p));
	for (uint32_t w = 0; w < r->params->workers; w++)
		TN_TRY(tn_replicate_worker(r, w));
	return add_updates(r);
}

tern_status tn_replicate(const tern_graph *model, const tern_plan_params *params, tern_graph **placed,
			 tern_graph **tables)
{
	tn_replica r = {.params = params,
			.stages = TN_MAX(params->stages, 1),
			.micro = TN_MAX(params->micro_batches, 1)};
	tern_status st;

	TN_ASSERT(params->workers >= 1 && params->workers <= TERN_PLAN_WORKERS_MAX);
	TN_ASSERT(params->servers > 0 || params->workers == 1);
	st = build(&r, model);
	tern_graph_destroy(r.model);
	free(r.var);
	free(r.grad);
	free(r.ema);
	free(r.vars);
	free(r.parts);
	free(r.part_var);
	free(r.worker_grad);
	if (st == TERN_OK) {
		*placed = r.placed;
		*tables = r.tables;
		return TERN_OK;
	}
	tern_graph_destroy(r.placed);
	tern_graph_destroy(r.tables);
	return st;
}
