/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans as objects: runs the passes in order, owns the result, answers questions about it.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c.
 */
#include "graph/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

#define SERVERS_MAX 4096u
#define MICRO_MAX   1024u

static tern_status check_params(const tern_plan_params *p)
{
	if (p->workers == 0 || p->workers > TERN_PLAN_WORKERS_MAX)
		return tn_fail(TERN_E_INVALID, "%u workers: use 1 to %u", p->workers, TERN_PLAN_WORKERS_MAX);
	if (p->servers > SERVERS_MAX)
		return tn_fail(TERN_E_INVALID, "%u servers: use 0 to %u", p->servers, SERVERS_MAX);
	if (p->servers == 0 && p->workers != 1) {
		return tn_fail(TERN_E_INVALID,
			       "%u workers without a server: use at least 1 server, or 1 worker alone",
			       p->workers);
	}
	if (p->comm > TERN_COMM_NONE)
		return tn_fail(TERN_E_INVALID, "comm: %d is no mode", (int)p->comm);
	if (p->stages > TERN_DEVICES_MAX || p->micro_batches > MICRO_MAX)
		return tn_fail(TERN_E_INVALID, "%u stages and %u micro-batches: use at most %u and %u",
			       p->stages, p->micro_batches, TERN_DEVICES_MAX, MICRO_MAX);
	if (p->stale && p->sync)
		return tn_fail(TERN_E_INVALID, "stale %u: a bound for asynchronous training; sync is 1",
			       p->stale);
	return tn_optimizer_check(&p->optimizer);
}

static tern_status alloc_plan(const char *model, uint32_t n_devices, tern_plan **plan)
{
	tern_plan *p = calloc(1, sizeof(*p));

	if (p) {
		p->model = strdup(model);
		p->devices = calloc(n_devices, sizeof(*p->devices));
		p->n_devices = n_devices;
	}
	if (!p || !p->model || !p->devices) {
		if (p) {
			free(p->model);
			free(p->devices);
		}
		free(p);
		return tn_fail(TERN_E_NOMEM, "no memory for a plan of %u devices", n_devices);
	}
	*plan = p;
	return TERN_OK;
}

/* "server1", "worker0", "worker0/stage1". */
static tern_status name_device(tern_plan *p, uint32_t d, tern_role role, const char *prefix, uint32_t index,
			       uint32_t stage)
{
	char name[64];

	if (stage == TN_NONE)
		snprintf(name, sizeof(name), "%s%u", prefix, index);
	else
		snprintf(name, sizeof(name), "%s%u/stage%u", prefix, index, stage);
	p->devices[d].role = role;
	p->devices[d].index = index;
	p->devices[d].stage = stage == TN_NONE ? 0 : stage;
	p->devices[d].name = strdup(name);
	return p->devices[d].name ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a device");
}

/* The passes that do not know what the job is. */
static tern_status run_passes(const tern_graph *placed, tern_plan *p)
{
	tern_graph *ordered;
	tern_status st;

	TN_TRY(tn_graph_clone(placed, &ordered));
	st = tn_hazards(ordered);
	if (st == TERN_OK)
		st = tn_cut(ordered, p);
	tern_graph_destroy(ordered);
	if (st == TERN_OK)
		st = tn_analyse(p);
	if (st == TERN_OK)
		tn_rewrite(p);
	for (uint32_t d = 0; d < p->n_devices && st == TERN_OK; d++)
		st = tn_lifetimes(p, &p->devices[d]);
	if (st == TERN_OK)
		st = tn_priorities(p);
	for (uint32_t d = 0; d < p->n_devices && st == TERN_OK; d++)
		st = tern_graph_check(p->devices[d].graph);
	return st;
}

static tern_status make_plan(const tern_graph *graph, const tern_plan_params *params,
			     const tern_graph *placed, tern_plan **plan)
{
	uint32_t stages = TN_MAX(params->stages, 1), n = params->servers + params->workers * stages;
	tern_graph_info info;
	tern_plan *p = NULL;
	tern_status st = alloc_plan(graph->name, n, &p);

	if (st != TERN_OK)
		return st;
	tern_graph_info_get(graph, &info);
	p->params = *params;
	p->parameters = info.parameters;
	p->parameter_bytes = info.parameter_bytes;
	for (uint32_t d = 0; d < n && st == TERN_OK; d++) {
		uint32_t worker = (d - params->servers) / stages, stage = (d - params->servers) % stages;

		if (d < params->servers)
			st = name_device(p, d, TERN_ROLE_SERVER, "server", d, TN_NONE);
		else
			st = name_device(p, d, params->servers ? TERN_ROLE_WORKER : TERN_ROLE_LOCAL,
					 params->servers || stages > 1 ? "worker" : "local", worker,
					 stages > 1 ? stage : TN_NONE);
	}
	if (st == TERN_OK)
		st = run_passes(placed, p);
	if (st == TERN_OK)
		*plan = p;
	else
		tern_plan_destroy(p);
	return st;
}

/* The stages that the graph's nodes name, if the caller names none. */
static uint32_t count_stages(const tern_graph *graph, const tern_plan_params *params)
{
	uint32_t n = TN_MAX(params->stages, 1);

	for (uint32_t i = 0; i < graph->n_nodes && params->stages == 0; i++)
		n = TN_MAX(n, (uint32_t)(graph->nodes[i].device + 1));
	return n;
}

tern_status tern_plan_create(const tern_graph *graph, const tern_plan_params *asked, tern_plan **plan)
{
	tern_plan_params own;
	const tern_plan_params *params = &own;
	tern_graph *placed, *tables = NULL;
	tern_status st;

	if (!graph || !asked || !plan)
		return tn_fail(TERN_E_INVALID, "graph, params and plan must not be NULL");
	own = *asked;
	own.stages = count_stages(graph, asked);
	own.micro_batches = TN_MAX(asked->micro_batches, 1);
	st = check_params(params);
	if (st == TERN_OK)
		st = tern_comm_switched(&own.comm);
	if (st == TERN_OK)
		st = tern_graph_check(graph);
	if (st == TERN_OK)
		st = tn_replicate(graph, params, &placed, &tables);
	if (st != TERN_OK)
		return st;
	st = make_plan(graph, params, placed, plan);
	tern_graph_destroy(placed);
	if (st == TERN_OK)
		(*plan)->tables = tables;
	else
		tern_graph_destroy(tables);
	return st;
}

tern_status tn_plan_placed(const tern_graph *placed, uint32_t n_devices, tern_comm comm, tern_plan **plan)
{
	tern_graph_info info;
	tern_plan *p = NULL;
	tern_status st;

	TN_ASSERT(n_devices > 0);
	st = alloc_plan(placed->name, n_devices, &p);
	if (st != TERN_OK)
		return st;
	tern_graph_info_get(placed, &info);
	p->params.comm = comm;
	p->parameters = info.parameters;
	p->parameter_bytes = info.parameter_bytes;
	for (uint32_t d = 0; d < n_devices && st == TERN_OK; d++)
		st = name_device(p, d, TERN_ROLE_LOCAL, "device", d, TN_NONE);
	if (st == TERN_OK)
		st = run_passes(placed, p);
	if (st == TERN_OK)
		*plan = p;
	else
		tern_plan_destroy(p);
	return st;
}

void tern_plan_destroy(tern_plan *plan)
{
	if (!plan)
		return;
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		tern_graph_destroy(plan->devices[i].graph);
		free(plan->devices[i].name);
		free(plan->devices[i].position);
		free(plan->devices[i].buffer);
		free(plan->devices[i].first_in);
	}
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		free(plan->edges[i].name);
		free(plan->edges[i].reason);
		free(plan->edges[i].site);
	}
	tern_graph_destroy(plan->tables);
	free(plan->devices);
	free(plan->edges);
	free(plan->model);
	free(plan);
}

uint32_t tern_plan_devices(const tern_plan *plan)
{
	return plan->n_devices;
}

uint32_t tern_plan_edges(const tern_plan *plan)
{
	return plan->n_edges;
}

/* Whether a Variable is an optimiser's slot, not one of the model's. */
static bool is_slot(const tern_graph *g, uint32_t tensor)
{
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		for (uint32_t k = 1; k < tn_apply_slots(&g->nodes[i]); k++) {
			if (g->nodes[i].in[k] == tensor)
				return true;
		}
	}
	return false;
}

tern_status tern_plan_device(const tern_plan *plan, uint32_t device, tern_device_info *info)
{
	const tn_device *d;

	if (!plan || device >= plan->n_devices)
		return tn_fail(TERN_E_NOT_FOUND, "the plan has no device number %u", device);
	d = &plan->devices[device];
	*info = (tern_device_info){.name = d->name,
				   .role = d->role,
				   .index = d->index,
				   .stage = d->stage,
				   .nodes = d->graph->n_nodes};
	for (uint32_t i = 0; i < d->graph->n_nodes; i++) {
		const tn_node *n = &d->graph->nodes[i];
		uint64_t bytes = 0;

		if (n->op != TN_OP_VARIABLE || is_slot(d->graph, n->out[0]))
			continue;
		TN_TRY(tn_shape_bytes(&d->graph->tensors[n->out[0]].shape, d->graph->tensors[n->out[0]].dtype,
				      &bytes));
		info->variables++;
		info->variable_bytes += bytes;
	}
	info->buffers = d->n_buffers;
	info->buffer_bytes = d->buffer_bytes;
	info->shared = d->shared;
	info->shared_bytes = d->shared_bytes;
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		const tn_edge *e = &plan->edges[i];

		info->edges_out += e->src == device;
		info->bytes_out += e->src == device ? e->bytes : 0;
		info->edges_in += e->dst == device;
		info->bytes_in += e->dst == device ? e->bytes : 0;
	}
	return TERN_OK;
}

tern_status tern_plan_edge(const tern_plan *plan, uint32_t edge, tern_edge_info *info)
{
	const tn_edge *e;

	if (!plan || edge >= plan->n_edges)
		return tn_fail(TERN_E_NOT_FOUND, "the plan has no edge number %u", edge);
	e = &plan->edges[edge];
	*info = (tern_edge_info){.name = e->name,
				 .src = e->src,
				 .dst = e->dst,
				 .dtype = e->dtype,
				 .shape = e->shape,
				 .bytes = e->bytes,
				 .is_static = e->is_static,
				 .reason = e->reason,
				 .op = tn_edge_ops(e),
				 .site = e->site,
				 .copies = e->copies,
				 .copy_reason = e->copy_reason};
	return TERN_OK;
}

tern_status tern_plan_find(const tern_plan *plan, tern_role role, uint32_t index, uint32_t *device)
{
	if (!plan || !device)
		return tn_fail(TERN_E_INVALID, "plan and device must not be NULL");
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		if (plan->devices[i].role == role && plan->devices[i].index == index) {
			*device = i;
			return TERN_OK;
		}
	}
	return tn_fail(TERN_E_NOT_FOUND, "no %s number %u: the plan has %u servers and %u workers",
		       role == TERN_ROLE_SERVER   ? "server"
		       : role == TERN_ROLE_WORKER ? "worker"
						  : "local device",
		       index, plan->params.servers, plan->params.workers);
}
