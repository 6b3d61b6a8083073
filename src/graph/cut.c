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
#include "graph/deps.h"
#include "graph/plan.h"

typedef struct cutter {
	const tern_graph *placed;
	tern_plan *plan;
	uint32_t *home;      /* per placed tensor: its number in the graph of its own device */
	uint32_t *home_node; /* per placed node: the same */
	uint32_t *local;     /* per placed tensor: its number in the device that is being made, or TN_NONE */
	uint32_t *of_edge;   /* per edge: the placed tensor, or TN_NONE for a control edge */
	uint32_t *before;    /* per edge: the placed node that a control edge starts at, or TN_NONE */
	uint32_t *position;  /* per placed node: its place in a topological order of all edges */
} cutter;

static uint32_t device_of(const cutter *c, uint32_t tensor)
{
	return (uint32_t)c->placed->nodes[c->placed->tensors[tensor].node].device;
}

static tern_status grow_edges(cutter *c)
{
	tern_plan *p = c->plan;
	uint32_t cap = p->cap_edges ? p->cap_edges * 2 : 32;
	tn_edge *edges = realloc(p->edges, cap * sizeof(*edges));
	uint32_t *more;

	if (edges)
		p->edges = edges;
	more = edges ? realloc(c->of_edge, cap * sizeof(*more)) : NULL;
	if (more)
		c->of_edge = more;
	more = more ? realloc(c->before, cap * sizeof(*more)) : NULL;
	if (!more)
		return tn_fail(TERN_E_NOMEM, "no memory for %u edges", cap);
	c->before = more;
	p->cap_edges = cap;
	return TERN_OK;
}

static tern_status add_edge(cutter *c, const tn_edge *edge, uint32_t tensor, uint32_t before)
{
	tern_plan *p = c->plan;

	if (p->n_edges == p->cap_edges)
		TN_TRY(grow_edges(c));
	p->edges[p->n_edges] = *edge;
	p->edges[p->n_edges].copy_reason = "";
	p->edges[p->n_edges].name = strdup(edge->name);
	if (!p->edges[p->n_edges].name)
		return tn_fail(TERN_E_NOMEM, "no memory for an edge");
	c->of_edge[p->n_edges] = tensor;
	c->before[p->n_edges++] = before;
	return TERN_OK;
}

/* A Recv for the edge that is made next. */
static tern_status add_recv(cutter *c, const tn_edge *edge, uint32_t *node)
{
	tn_attr attr = tn_attr_int(TN_ATTR_EDGE, c->plan->n_edges);
	tn_node_spec spec = {.op = TN_OP_RECV,
			     .name = edge->name,
			     .attrs = &attr,
			     .n_attrs = 1,
			     .device = (int32_t)edge->dst,
			     .dtype = edge->dtype,
			     .shape = &edge->shape};

	return tn_graph_add(c->plan->devices[edge->dst].graph, &spec, node);
}

/* The Recv of a tensor that another device makes. */
static tern_status receive(cutter *c, uint32_t tensor, uint32_t device)
{
	const tn_tensor *t = &c->placed->tensors[tensor];
	tn_edge edge = {.name = t->name,
			.src = device_of(c, tensor),
			.dst = device,
			.dtype = t->dtype,
			.shape = t->shape};

	TN_TRY(add_recv(c, &edge, &edge.recv_node));
	TN_TRY(add_edge(c, &edge, tensor, TN_NONE));
	c->local[tensor] = c->plan->devices[device].graph->nodes[edge.recv_node].out[0];
	return TERN_OK;
}

/* A constant of another device: the same bytes are here as well, which costs nothing per step. */
static tern_status take_constant(cutter *c, uint32_t tensor, uint32_t device)
{
	const tn_tensor *t = &c->placed->tensors[tensor];
	const tn_node *from = &c->placed->nodes[t->node];
	tn_node_spec spec = {.op = from->op,
			     .name = from->name,
			     .device = (int32_t)device,
			     .dtype = t->dtype,
			     .shape = &t->shape,
			     .values = from->data};
	uint32_t node;

	TN_TRY(tn_graph_add(c->plan->devices[device].graph, &spec, &node));
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
		if (c->local[from->in[k]] == TN_NONE &&
		    c->placed->nodes[c->placed->tensors[from->in[k]].node].op == TN_OP_CONSTANT)
			st = take_constant(c, from->in[k], device);
		else if (c->local[from->in[k]] == TN_NONE)
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

/*
 * A control edge from another device is an empty tensor that is sent when `before` is done, once per node and
 * destination. Gives the Recv.
 */
static tern_status receive_control(cutter *c, uint32_t before, uint32_t device, uint32_t *recv)
{
	const tn_node *n = &c->placed->nodes[before];
	char name[2 * TN_NAME_MAX];
	tn_edge edge = {.name = name,
			.src = (uint32_t)n->device,
			.dst = device,
			.dtype = TERN_U8,
			.shape = {.rank = 1, .dims = {0}}};

	for (uint32_t e = 0; e < c->plan->n_edges; e++) {
		if (c->before[e] == before && c->plan->edges[e].dst == device) {
			*recv = c->plan->edges[e].recv_node;
			return TERN_OK;
		}
	}
	snprintf(name, sizeof(name), "done/%s", n->name);
	TN_TRY(add_recv(c, &edge, &edge.recv_node));
	*recv = edge.recv_node;
	return add_edge(c, &edge, TN_NONE, before);
}

static tern_status take_controls(cutter *c)
{
	for (uint32_t i = 0; i < c->placed->n_nodes; i++) {
		const tn_node *n = &c->placed->nodes[i];
		tern_graph *g = c->plan->devices[n->device].graph;

		for (uint32_t k = 0; k < n->n_ctrl; k++) {
			const tn_node *before = &c->placed->nodes[n->ctrl[k]];
			uint32_t node = c->home_node[n->ctrl[k]];

			if (tn_op_flags(before->op) & TN_OPF_SOURCE && before->device != n->device)
				continue; /* there before everything */
			if (before->device != n->device)
				TN_TRY(receive_control(c, n->ctrl[k], (uint32_t)n->device, &node));
			TN_TRY(tn_graph_add_control(g, node, c->home_node[i]));
		}
	}
	return TERN_OK;
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
	uint32_t found = TN_NONE, stages = TN_MAX(c->plan->params.stages, 1);

	if (c->placed->nodes[c->placed->tensors[tensor].node].op != TN_OP_VARIABLE)
		return TN_NONE;
	for (uint32_t i = 0; i < c->placed->n_nodes; i++) {
		const tn_node *n = &c->placed->nodes[i];
		int64_t for_device;

		if (!(tn_op_flags(n->op) & TN_OPF_INPLACE) || n->in[0] != tensor)
			continue;
		for_device = tn_node_int(n, TN_ATTR_FOR_DEVICE, -1);
		/* the worker's first device: all of its devices want the same value */
		if (for_device >= 0 && dst >= (uint64_t)for_device && dst < (uint64_t)for_device + stages)
			return n->out[0];
		if (for_device < 0)
			found = n->out[0];
	}
	return found;
}

/* The empty tensor that a control edge carries: one for all that start at the node. */
static tern_status add_token(cutter *c, uint32_t edge, uint32_t *tensor)
{
	const tn_edge *e = &c->plan->edges[edge];
	tern_graph *g = c->plan->devices[e->src].graph;
	uint8_t none = 0;
	tn_node_spec spec = {.op = TN_OP_CONSTANT,
			     .name = e->name,
			     .device = (int32_t)e->src,
			     .dtype = e->dtype,
			     .shape = &e->shape,
			     .data = &none};
	uint32_t node = tn_graph_find(g, e->name);

	if (node == TN_NONE)
		TN_TRY(tn_graph_add(g, &spec, &node));
	*tensor = g->nodes[node].out[0];
	return TERN_OK;
}

static tern_status send(cutter *c, uint32_t edge)
{
	tn_edge *e = &c->plan->edges[edge];
	tern_graph *g = c->plan->devices[e->src].graph;
	uint32_t tensor = c->of_edge[edge], applied = TN_NONE, in;
	tn_attr attrs[3] = {tn_attr_int(TN_ATTR_EDGE, edge), tn_attr_int(TN_ATTR_PROLOGUE, 1),
			    tn_attr_int(TN_ATTR_STALE, c->plan->params.stale)};
	char name[3 * TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_SEND,
			     .name = name,
			     .in = &in,
			     .n_in = 1,
			     .attrs = attrs,
			     .n_attrs = 1,
			     .device = (int32_t)e->src};

	if (tensor == TN_NONE) {
		TN_TRY(add_token(c, edge, &in));
	} else {
		applied = after_apply(c, tensor, e->dst);
		in = c->home[applied != TN_NONE ? applied : tensor];
		if (applied != TN_NONE)
			spec.n_attrs = c->plan->params.stale ? 3 : 2;
	}
	snprintf(name, sizeof(name), "send/%s/%s", e->name, c->plan->devices[e->dst].name);
	TN_TRY(tn_graph_add(g, &spec, &e->send_node));
	return tensor == TN_NONE ? tn_graph_add_control(g, c->home_node[c->before[edge]], e->send_node)
				 : TERN_OK;
}

/* Parts that are all received can be received where they belong: the Join is a view then. */
static tern_status receive_joined(tern_plan *plan, tn_device *d)
{
	for (uint32_t i = 0; i < d->graph->n_nodes; i++) {
		tn_node *n = &d->graph->nodes[i];
		uint64_t whole = 0, bytes, at = 0;
		bool received = n->op == TN_OP_JOIN;

		for (uint32_t k = 0; k < n->n_in && received; k++) {
			const tn_tensor *t = &d->graph->tensors[n->in[k]];
			uint32_t node = t->node;

			received = d->graph->nodes[node].op == TN_OP_RECV && !tn_shape_symbolic(&t->shape) &&
				   plan->edges[tn_node_int(&d->graph->nodes[node], TN_ATTR_EDGE, 0)]
						   .whole_bytes == 0;
			for (uint32_t o = 0; o < k && received; o++)
				received = n->in[o] != n->in[k];
		}
		if (!received)
			continue;
		TN_TRY(tn_shape_bytes(&d->graph->tensors[n->out[0]].shape, d->graph->tensors[n->out[0]].dtype,
				      &whole));
		for (uint32_t k = 0; k < n->n_in && whole; k++) {
			const tn_tensor *t = &d->graph->tensors[n->in[k]];
			tn_edge *e = &plan->edges[tn_node_int(&d->graph->nodes[t->node], TN_ATTR_EDGE, 0)];

			TN_TRY(tn_shape_bytes(&t->shape, t->dtype, &bytes));
			e->whole = i;
			e->whole_bytes = whole;
			e->whole_offset = at;
			at += bytes;
		}
		TN_ASSERT(at == whole);
		n->op = whole ? TN_OP_JOIN_RECV : n->op;
	}
	return TERN_OK;
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

/* Lowest number first among the nodes that wait for none (Kahn 1962), on a heap. */
static void heap_push(uint32_t *heap, uint32_t *n, uint32_t node)
{
	uint32_t i = (*n)++;

	for (; i > 0 && heap[(i - 1) / 2] > node; i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = node;
}

static uint32_t heap_pop(uint32_t *heap, uint32_t *n)
{
	uint32_t top = heap[0], last = heap[--*n], i = 0;

	for (uint32_t k = 1; k < *n; k = 2 * i + 1) {
		k += k + 1 < *n && heap[k + 1] < heap[k];
		if (heap[k] >= last)
			break;
		heap[i] = heap[k];
		i = k;
	}
	heap[i] = last;
	return top;
}

static tern_status order_nodes(cutter *c)
{
	uint32_t n = 0, at = 0, *heap = calloc(c->placed->n_nodes + 1, sizeof(*heap));
	tn_deps deps = {0};
	tern_status st =
		heap ? tn_deps_make(c->placed, &deps) : tn_fail(TERN_E_NOMEM, "no memory to order nodes");

	if (st == TERN_OK)
		st = tn_deps_acyclic(c->placed, &deps);
	for (uint32_t i = 0; i < c->placed->n_nodes && st == TERN_OK; i++) {
		if (deps.pending[i] == 0)
			heap_push(heap, &n, i);
	}
	while (n > 0 && st == TERN_OK) {
		uint32_t node = heap_pop(heap, &n);

		c->position[node] = at++;
		for (uint32_t k = deps.first[node]; k < deps.first[node + 1]; k++) {
			if (--deps.pending[deps.next[k]] == 0)
				heap_push(heap, &n, deps.next[k]);
		}
	}
	free(heap);
	tn_deps_free(&deps);
	return st;
}

/* Nodes of a device in the order of the whole; a Send or Recv comes with the node that makes its tensor. */
static tern_status give_positions(const cutter *c)
{
	for (uint32_t d = 0; d < c->plan->n_devices; d++) {
		tn_device *dev = &c->plan->devices[d];

		dev->position = calloc(dev->graph->n_nodes + 1, sizeof(*dev->position));
		if (!dev->position)
			return tn_fail(TERN_E_NOMEM, "no memory for the order of %s", dev->name);
	}
	for (uint32_t i = 0; i < c->placed->n_nodes; i++)
		c->plan->devices[c->placed->nodes[i].device].position[c->home_node[i]] = c->position[i];
	for (uint32_t i = 0; i < c->plan->n_edges; i++) {
		const tn_edge *e = &c->plan->edges[i];
		const tern_graph *src = c->plan->devices[e->src].graph;
		uint32_t from = c->of_edge[i] == TN_NONE ? c->home_node[c->before[i]]
							 : src->tensors[src->nodes[e->send_node].in[0]].node;

		c->plan->devices[e->src].position[e->send_node] = c->plan->devices[e->src].position[from];
		c->plan->devices[e->dst].position[e->recv_node] =
			c->position[c->of_edge[i] == TN_NONE ? c->before[i]
							     : c->placed->tensors[c->of_edge[i]].node];
	}
	return TERN_OK;
}

/* placed has its own hazards already, so that they are part of the order. */
tern_status tn_cut(const tern_graph *placed, tern_plan *plan)
{
	cutter c = {.placed = placed, .plan = plan};
	tern_status st = check_placement(placed, plan);

	if (st != TERN_OK)
		return st;
	c.home = calloc(placed->n_tensors + 1, sizeof(*c.home));
	c.home_node = calloc(placed->n_nodes + 1, sizeof(*c.home_node));
	c.local = calloc(placed->n_tensors + 1, sizeof(*c.local));
	c.position = calloc(placed->n_nodes + 1, sizeof(*c.position));
	if (!c.home || !c.home_node || !c.local || !c.position)
		st = tn_fail(TERN_E_NOMEM, "no memory to cut a graph of %u nodes", placed->n_nodes);
	if (st == TERN_OK)
		st = order_nodes(&c);
	for (uint32_t d = 0; d < plan->n_devices && st == TERN_OK; d++)
		st = make_device(&c, d);
	if (st == TERN_OK)
		st = take_controls(&c);
	if (st == TERN_OK)
		st = take_ports(&c);
	for (uint32_t e = 0; e < plan->n_edges && st == TERN_OK; e++)
		st = send(&c, e);
	for (uint32_t d = 0; d < plan->n_devices && st == TERN_OK; d++)
		st = receive_joined(plan, &plan->devices[d]);
	for (uint32_t d = 0; d < plan->n_devices && st == TERN_OK; d++)
		st = tn_hazards(plan->devices[d].graph);
	if (st == TERN_OK)
		st = give_positions(&c);
	free(c.position);
	free(c.home);
	free(c.home_node);
	free(c.local);
	free(c.of_edge);
	free(c.before);
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

				if (tn_op_flags(graph->nodes[i].op) & (TN_OPF_INPLACE | TN_OPF_VIEW) ||
				    graph->nodes[i].device != graph->nodes[w].device)
					continue; /* another device reads what it was sent */
				for (uint32_t j = 0; j < graph->nodes[i].n_in; j++)
					reads |= viewed(graph, graph->nodes[i].in[j]) == written;
				if (reads)
					st = tn_graph_add_control(graph, i, w);
			}
		}
	}
	return st;
}
