/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a placed graph into one graph per device. Every input that is made on another device becomes a Recv,
 * once per (tensor, device), and an edge of the plan; then each edge gets its Send, at the end of the graph
 * of its source.
 *
 * A variable that an Apply op writes is sent after it (and once before the first step): see plan.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/plan.h"

typedef struct cutter {
	const tern_graph *placed;
	tern_plan *plan;
	uint32_t *home;      /* per placed tensor: its number in the graph of its own device */
	uint32_t *home_node; /* per placed node: the same */
	uint32_t *local;     /* per placed tensor: its number in the device that is being made, or TN_NONE */
	uint32_t *of_edge;   /* per edge: the placed tensor */
} cutter;

static uint32_t device_of(const cutter *c, uint32_t tensor)
{
	return (uint32_t)c->placed->nodes[c->placed->tensors[tensor].node].device;
}

static tern_status add_edge(cutter *c, uint32_t tensor, uint32_t dst)
{
	const tn_tensor *t = &c->placed->tensors[tensor];
	tern_plan *p = c->plan;

	if (p->n_edges == p->cap_edges) {
		uint32_t cap = p->cap_edges ? p->cap_edges * 2 : 32;
		tn_edge *edges = realloc(p->edges, cap * sizeof(*edges));
		uint32_t *of_edge;

		if (!edges)
			return tn_fail(TERN_E_NOMEM, "no memory for %u edges", cap);
		p->edges = edges;
		of_edge = realloc(c->of_edge, cap * sizeof(*of_edge));
		if (!of_edge)
			return tn_fail(TERN_E_NOMEM, "no memory for %u edges", cap);
		c->of_edge = of_edge;
		p->cap_edges = cap;
	}
	p->edges[p->n_edges] = (tn_edge){.name = strdup(t->name),
					 .src = device_of(c, tensor),
					 .dst = dst,
					 .dtype = t->dtype,
					 .shape = t->shape,
					 .copy_reason = ""};
	if (!p->edges[p->n_edges].name)
		return tn_fail(TERN_E_NOMEM, "no memory for an edge");
	c->of_edge[p->n_edges++] = tensor;
	return TERN_OK;
}

/* The Recv of a tensor that another device makes. */
static tern_status receive(cutter *c, uint32_t tensor, uint32_t device)
{
	const tn_tensor *t = &c->placed->tensors[tensor];
	tn_attr edge = tn_attr_int(TN_ATTR_EDGE, c->plan->n_edges);
	tn_node_spec spec = {.op = TN_OP_RECV,
			     .name = t->name,
			     .attrs = &edge,
			     .n_attrs = 1,
			     .device = (int32_t)device,
			     .dtype = t->dtype,
			     .shape = &t->shape};
	uint32_t node;
	tern_status st = add_edge(c, tensor, device);

	if (st == TERN_OK)
		st = tn_graph_add(c->plan->devices[device].graph, &spec, &node);
	if (st != TERN_OK)
		return st;
	c->plan->edges[c->plan->n_edges - 1].recv_node = node;
	c->local[tensor] = c->plan->devices[device].graph->nodes[node].out[0];
	return TERN_OK;
}

static tern_status take_node(cutter *c, uint32_t i, uint32_t device)
{
	const tn_node *from = &c->placed->nodes[i];
	const tn_tensor *out = from->n_out ? &c->placed->tensors[from->out[0]] : NULL;
	tern_graph *g = c->plan->devices[device].graph;
	uint32_t *in = malloc((from->n_in + 1) * sizeof(*in));
	tn_node_spec spec = {.op = from->op,
			     .name = from->name,
			     .in = in,
			     .n_in = from->n_in,
			     .attrs = from->attrs,
			     .n_attrs = from->n_attrs,
			     .device = from->device,
			     .dtype = out ? out->dtype : TERN_F32,
			     .shape = out ? &out->shape : NULL,
			     .init = &from->init,
			     .values = from->data};
	tern_status st = in ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for node '%s'", from->name);

	for (uint32_t k = 0; k < from->n_in && st == TERN_OK; k++) {
		if (c->local[from->in[k]] == TN_NONE)
			st = receive(c, from->in[k], device);
		if (st == TERN_OK)
			in[k] = c->local[from->in[k]];
	}
	if (st == TERN_OK)
		st = tn_graph_add(g, &spec, &c->home_node[i]);
	for (uint32_t k = 0; k < from->n_out && st == TERN_OK; k++) {
		c->local[from->out[k]] = g->nodes[c->home_node[i]].out[k];
		c->home[from->out[k]] = c->local[from->out[k]];
	}
	free(in);
	return st;
}

static tern_status make_device(cutter *c, uint32_t device)
{
	tn_device *d = &c->plan->devices[device];
	tern_status st = tern_graph_create(d->name, &d->graph);

	if (st == TERN_OK)
		st = tn_graph_copy_symbols(d->graph, c->placed);
	for (uint32_t i = 0; i < c->placed->n_tensors; i++)
		c->local[i] = TN_NONE;
	for (uint32_t i = 0; i < c->placed->n_nodes && st == TERN_OK; i++) {
		if ((uint32_t)c->placed->nodes[i].device == device)
			st = take_node(c, i, device);
	}
	return st;
}

static tern_status take_controls(cutter *c)
{
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < c->placed->n_nodes; i++) {
		const tn_node *n = &c->placed->nodes[i];

		for (uint32_t k = 0; k < n->n_ctrl && st == TERN_OK; k++) {
			const tn_node *before = &c->placed->nodes[n->ctrl[k]];

			if (before->device != n->device) {
				return tn_fail(TERN_E_UNSUPPORTED,
					       "control edge from '%s' on %s to '%s' on %s: only data "
					       "crosses devices",
					       before->name, c->plan->devices[before->device].name, n->name,
					       c->plan->devices[n->device].name);
			}
			st = tn_graph_add_control(c->plan->devices[n->device].graph, c->home_node[n->ctrl[k]],
						  c->home_node[i]);
		}
	}
	return st;
}

static tern_status take_ports(cutter *c)
{
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < c->placed->n_ports && st == TERN_OK; i++) {
		const tn_port *p = &c->placed->ports[i];
		tern_graph *g = c->plan->devices[device_of(c, p->tensor)].graph;

		st = tn_graph_add_port(g, p->name, c->home[p->tensor], p->is_input);
	}
	return st;
}

/* What is sent for a variable: the output of the Apply op whose result device dst wants, if there is one. */
static uint32_t after_apply(const cutter *c, uint32_t tensor, uint32_t dst)
{
	uint32_t found = TN_NONE;

	for (uint32_t i = 0; i < c->placed->n_nodes; i++) {
		const tn_node *n = &c->placed->nodes[i];
		int64_t for_device;

		if (!(tn_op_flags(n->op) & TN_OPF_INPLACE) || n->in[0] != tensor)
			continue;
		for_device = tn_node_int(n, TN_ATTR_FOR_DEVICE, -1);
		if (for_device == (int64_t)dst)
			return n->out[0];
		if (for_device < 0)
			found = n->out[0];
	}
	return found;
}

static tern_status send(cutter *c, uint32_t edge)
{
	tn_edge *e = &c->plan->edges[edge];
	uint32_t tensor = c->of_edge[edge], applied = after_apply(c, tensor, e->dst);
	tn_attr attrs[2] = {tn_attr_int(TN_ATTR_EDGE, edge), tn_attr_int(TN_ATTR_PROLOGUE, 1)};
	char name[3 * TN_NAME_MAX];
	uint32_t in = c->home[applied != TN_NONE ? applied : tensor];
	tn_node_spec spec = {.op = TN_OP_SEND,
			     .name = name,
			     .in = &in,
			     .n_in = 1,
			     .attrs = attrs,
			     .n_attrs = applied != TN_NONE ? 2 : 1,
			     .device = (int32_t)e->src};

	snprintf(name, sizeof(name), "send/%s/%s", e->name, c->plan->devices[e->dst].name);
	return tn_graph_add(c->plan->devices[e->src].graph, &spec, &e->send_node);
}

static tern_status check_placement(const tern_graph *placed, const tern_plan *plan)
{
	for (uint32_t i = 0; i < placed->n_nodes; i++) {
		if (placed->nodes[i].device < 0 || (uint32_t)placed->nodes[i].device >= plan->n_devices) {
			return tn_fail(TERN_E_INVALID, "node '%s' is placed on device %d, of 0..%u",
				       placed->nodes[i].name, placed->nodes[i].device, plan->n_devices - 1);
		}
	}
	return TERN_OK;
}

tern_status tn_cut(const tern_graph *placed, tern_plan *plan)
{
	cutter c = {.placed = placed, .plan = plan};
	tern_status st = check_placement(placed, plan);

	if (st != TERN_OK)
		return st;
	c.home = calloc(placed->n_tensors + 1, sizeof(*c.home));
	c.home_node = calloc(placed->n_nodes + 1, sizeof(*c.home_node));
	c.local = calloc(placed->n_tensors + 1, sizeof(*c.local));
	if (!c.home || !c.home_node || !c.local)
		st = tn_fail(TERN_E_NOMEM, "no memory to cut a graph of %u nodes", placed->n_nodes);
	for (uint32_t d = 0; d < plan->n_devices && st == TERN_OK; d++)
		st = make_device(&c, d);
	if (st == TERN_OK)
		st = take_controls(&c);
	if (st == TERN_OK)
		st = take_ports(&c);
	for (uint32_t e = 0; e < plan->n_edges && st == TERN_OK; e++)
		st = send(&c, e);
	for (uint32_t d = 0; d < plan->n_devices && st == TERN_OK; d++)
		st = tn_hazards(plan->devices[d].graph);
	free(c.home);
	free(c.home_node);
	free(c.local);
	free(c.of_edge);
	return st;
}

/* The tensor that `tensor` is a view of, stopping at in-place ops: the same value, not just the same memory. */
static uint32_t viewed(const tern_graph *g, uint32_t tensor)
{
	while (tn_op_flags(g->nodes[g->tensors[tensor].node].op) & TN_OPF_VIEW)
		tensor = g->nodes[g->tensors[tensor].node].in[0];
	return tensor;
}

/*
 * Readers of a variable's old value run before its writers. Writers among each other are ordered by data or
 * not at all (asynchronous training); what reads a writer's output is ordered by data.
 */
tern_status tn_hazards(tern_graph *graph)
{
	tern_status st = TERN_OK;

	for (uint32_t w = 0; w < graph->n_nodes; w++) {
		for (uint32_t k = 0; k < graph->nodes[w].n_in && tn_node_writes_input(&graph->nodes[w], k);
		     k++) {
			uint32_t written = viewed(graph, graph->nodes[w].in[k]);

			for (uint32_t i = 0; i < graph->n_nodes && st == TERN_OK; i++) {
				bool reads = false;

				if (tn_op_flags(graph->nodes[i].op) & (TN_OPF_INPLACE | TN_OPF_VIEW))
					continue;
				for (uint32_t j = 0; j < graph->nodes[i].n_in; j++)
					reads |= viewed(graph, graph->nodes[i].in[j]) == written;
				if (reads)
					st = tn_graph_add_control(graph, i, w);
			}
		}
	}
	return st;
}
