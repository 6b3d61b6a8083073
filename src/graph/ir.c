/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph as a data structure: nodes, tensors, names, ports, attributes. Owns all memory of a graph. It
 * does not know what an op computes: that is in infer.c, grad.c and kern*.c.
 *
 * A node is built completely, checked and inferred before it becomes part of the graph, so that a failed
 * call leaves the graph as it was.
 *
 * Thread story: see ir.h. Tests: tests/unit/graph/ir_test.c.
 */
#include "graph/ir.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

const tn_op_info tn_op_table[TN_OP_COUNT] = {
#define TN_OP_ROW(op, name, lo, hi, outs, flags, attrs, required, rule, kern) \
	[TN_OP_##op] = {name, lo, hi, outs, flags, attrs, required},
	TN_OP_MAP(TN_OP_ROW)
#undef TN_OP_ROW
};

const char *const tn_attr_names[TN_ATTR_COUNT] = {
#define TN_ATTR_NAME(key, name, type) [TN_ATTR_##key] = name,
	TN_ATTR_MAP(TN_ATTR_NAME)
#undef TN_ATTR_NAME
};

_Static_assert(TN_ATTR_COUNT <= 8 * sizeof(tn_attr_mask), "attributes of an op are a mask");

/* ---- memory ---- */

static tern_status grow(void *array, uint32_t *cap, uint32_t need, size_t size)
{
	void **p = array;
	uint32_t n = *cap ? *cap : 16;
	void *bigger;

	if (need <= *cap)
		return TERN_OK;
	while (n < need)
		n *= 2;
	bigger = realloc(*p, (size_t)n * size);
	if (!bigger)
		return tn_fail(TERN_E_NOMEM, "no memory for %u graph entries", n);
	*p = bigger;
	*cap = n;
	return TERN_OK;
}

/* A copy of n * size bytes; never NULL for n == 0, so that NULL means failure. */
static void *copy_of(const void *from, size_t n, size_t size)
{
	size_t bytes = n * size;
	void *to = malloc(bytes > 0 ? bytes : 1);

	if (to && bytes > 0)
		memcpy(to, from, bytes);
	return to;
}

static void node_free(tn_node *node)
{
	free(node->name);
	free(node->in);
	free(node->ctrl);
	free(node->attrs);
	tn_values_unref(node->data);
}

tern_status tern_graph_create(const char *name, tern_graph **graph)
{
	tern_graph *g = calloc(1, sizeof(*g));

	if (!g || !(g->name = strdup(name ? name : ""))) {
		free(g);
		return tn_fail(TERN_E_NOMEM, "no memory for a graph");
	}
	g->scope = TN_DEVICE_NONE;
	*graph = g;
	return TERN_OK;
}

void tern_graph_destroy(tern_graph *graph)
{
	if (!graph)
		return;
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		node_free(&graph->nodes[i]);
	for (uint32_t i = 0; i < graph->n_tensors; i++)
		free(graph->tensors[i].name);
	for (uint32_t i = 0; i < graph->n_ports; i++)
		free(graph->ports[i].name);
	for (uint32_t i = 0; i < graph->n_symbols; i++)
		free(graph->symbols[i]);
	free(graph->nodes);
	free(graph->tensors);
	free(graph->ports);
	free(graph->names);
	free(graph->name);
	free(graph);
}

/* ---- names ---- */

static uint32_t hash_name(const char *s)
{
	uint32_t h = 2166136261u;

	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 16777619u;
	return h;
}

static void names_put(tern_graph *g, uint32_t node)
{
	uint32_t i = hash_name(g->nodes[node].name) & (g->cap_names - 1);

	while (g->names[i])
		i = (i + 1) & (g->cap_names - 1);
	g->names[i] = node + 1;
}

/* Room for one more name at a load of at most one half. */
static tern_status names_reserve(tern_graph *g)
{
	uint32_t cap = g->cap_names ? g->cap_names * 2 : 64;
	uint32_t *bigger;

	if ((g->n_nodes + 1) * 2 <= g->cap_names)
		return TERN_OK;
	bigger = calloc(cap, sizeof(*bigger));
	if (!bigger)
		return tn_fail(TERN_E_NOMEM, "no memory for %u graph names", cap);
	free(g->names);
	g->names = bigger;
	g->cap_names = cap;
	for (uint32_t i = 0; i < g->n_nodes; i++)
		names_put(g, i);
	return TERN_OK;
}

uint32_t tn_graph_find(const tern_graph *graph, const char *node_name)
{
	if (!graph->cap_names)
		return TN_NONE;
	for (uint32_t i = hash_name(node_name) & (graph->cap_names - 1); graph->names[i];
	     i = (i + 1) & (graph->cap_names - 1)) {
		if (strcmp(graph->nodes[graph->names[i] - 1].name, node_name) == 0)
			return graph->names[i] - 1;
	}
	return TN_NONE;
}

uint32_t tn_graph_symbol_find(const tern_graph *graph, const char *name)
{
	for (uint32_t i = 0; i < graph->n_symbols; i++) {
		if (strcmp(graph->symbols[i], name) == 0)
			return i;
	}
	return TN_NONE;
}

tern_status tern_graph_symbol(tern_graph *graph, const char *name, uint64_t *dim)
{
	uint32_t i = tn_graph_symbol_find(graph, name);

	if (i == TN_NONE) {
		if (graph->n_symbols == TN_SYMBOLS_MAX) {
			return tn_fail(TERN_E_LIMIT, "symbolic dim '%s': a graph has at most %u", name,
				       TN_SYMBOLS_MAX);
		}
		i = graph->n_symbols;
		graph->symbols[i] = strdup(name);
		if (!graph->symbols[i])
			return tn_fail(TERN_E_NOMEM, "no memory for a symbol");
		graph->n_symbols++;
	}
	*dim = UINT64_MAX - i;
	return TERN_OK;
}

tern_status tn_graph_copy_symbols(tern_graph *to, const tern_graph *from)
{
	uint64_t dim;

	TN_ASSERT(to->n_symbols == 0);
	for (uint32_t i = 0; i < from->n_symbols; i++) {
		tern_status st = tern_graph_symbol(to, from->symbols[i], &dim);

		if (st != TERN_OK)
			return st;
	}
	return TERN_OK;
}

/* ---- nodes ---- */

static tern_status check_spec(const tern_graph *g, const tn_node_spec *s)
{
	const tn_op_info *op = &tn_op_table[s->op];
	tn_attr_mask have = 0;

	if (!s->name || !*s->name || strlen(s->name) >= TN_NAME_MAX) {
		return tn_fail(TERN_E_INVALID, "a %s node needs a name of 1 to %u bytes", op->name,
			       TN_NAME_MAX - 1);
	}
	if (tn_graph_find(g, s->name) != TN_NONE)
		return tn_fail(TERN_E_EXISTS, "%s '%s': the graph has a node of that name", op->name,
			       s->name);
	if (s->n_in < op->in_min || s->n_in > op->in_max) {
		return tn_fail(TERN_E_INVALID, "%s '%s': takes %u to %u inputs, not %u", op->name, s->name,
			       op->in_min, op->in_max, s->n_in);
	}
	for (uint32_t i = 0; i < s->n_in; i++) {
		if (s->in[i] >= g->n_tensors) {
			return tn_fail(TERN_E_INVALID, "%s '%s': input %u is no tensor of this graph",
				       op->name, s->name, i);
		}
	}
	for (uint32_t i = 0; i < s->n_attrs; i++) {
		if (!(op->attrs >> s->attrs[i].key & 1)) {
			return tn_fail(TERN_E_INVALID, "%s '%s': has no attribute '%s'", op->name, s->name,
				       tn_attr_names[s->attrs[i].key]);
		}
		have |= (tn_attr_mask)1 << s->attrs[i].key;
	}
	for (uint32_t i = 0; i < TN_ATTR_COUNT; i++) {
		if ((op->required & ~have) >> i & 1) {
			return tn_fail(TERN_E_INVALID, "%s '%s': attribute '%s' is missing", op->name,
				       s->name, tn_attr_names[i]);
		}
	}
	return TERN_OK;
}

/* The values of a Constant, or of a Variable that starts with data. */
static tern_status take_values(const tn_node_spec *s, tn_node *node)
{
	const void *from = s->init && s->init->kind == TERN_INIT_DATA ? s->init->data : s->data;
	uint64_t bytes = 0;

	if (s->values || !from) {
		node->data = tn_values_ref(s->values);
	} else {
		TN_TRY(tn_shape_bytes(s->shape, s->dtype, &bytes));
		node->data = tn_values_new(from, bytes);
		if (!node->data)
			return tn_fail(TERN_E_NOMEM, "no memory for the %" PRIu64 " bytes of '%s'", bytes,
				       s->name);
	}
	if (node->init.kind == TERN_INIT_DATA)
		node->init.data = node->data;
	return TERN_OK;
}

/* Copy the spec into a node that owns its memory. */
static tern_status make_node(const tn_node_spec *s, tn_node *node)
{
	tern_status st;

	*node = (tn_node){.op = s->op, .device = s->device, .n_in = s->n_in, .n_attrs = s->n_attrs};
	node->n_out = tn_op_table[s->op].outs;
	if (s->init)
		node->init = *s->init;
	st = take_values(s, node);
	node->name = strdup(s->name);
	node->in = copy_of(s->in, s->n_in, sizeof(*s->in));
	node->attrs = copy_of(s->attrs, s->n_attrs, sizeof(*s->attrs));
	if (st == TERN_OK && (!node->name || !node->in || !node->attrs))
		st = tn_fail(TERN_E_NOMEM, "no memory for node '%s'", s->name);
	if (st != TERN_OK)
		node_free(node);
	return st;
}

/* Names of the outputs: that of the node, then "name:1", "name:2". All or nothing. */
static tern_status name_outputs(const tn_node *node, char **names)
{
	for (uint32_t i = 0; i < node->n_out; i++) {
		char buf[TN_NAME_MAX + 8];

		snprintf(buf, sizeof(buf), i ? "%s:%u" : "%s", node->name, i);
		names[i] = strdup(buf);
		if (!names[i]) {
			while (i-- > 0)
				free(names[i]);
			return tn_fail(TERN_E_NOMEM, "no memory for tensor '%s'", buf);
		}
	}
	return TERN_OK;
}

/* The checked and inferred node becomes part of the graph. Cannot fail halfway. */
static tern_status commit(tern_graph *g, tn_node *node, const tn_infer *x)
{
	char *names[TN_OUTS_MAX] = {0};
	tern_status st = names_reserve(g);

	if (st == TERN_OK)
		st = grow(&g->nodes, &g->cap_nodes, g->n_nodes + 1, sizeof(*g->nodes));
	if (st == TERN_OK)
		st = grow(&g->tensors, &g->cap_tensors, g->n_tensors + node->n_out, sizeof(*g->tensors));
	if (st == TERN_OK)
		st = name_outputs(node, names);
	if (st != TERN_OK)
		return st;
	for (uint32_t i = 0; i < node->n_out; i++) {
		node->out[i] = g->n_tensors;
		g->tensors[g->n_tensors++] = (tn_tensor){.name = names[i],
							 .dtype = x->dtype[i],
							 .shape = x->shape[i],
							 .node = g->n_nodes,
							 .output = i};
	}
	g->nodes[g->n_nodes] = *node;
	names_put(g, g->n_nodes);
	g->n_nodes++;
	return TERN_OK;
}

tern_status tn_graph_add(tern_graph *graph, const tn_node_spec *spec, uint32_t *node_out)
{
	tn_node node;
	tn_infer x = {.graph = graph, .node = &node};
	tern_status st = check_spec(graph, spec);

	if (st == TERN_OK)
		st = make_node(spec, &node);
	if (st != TERN_OK)
		return st;
	if (tn_op_table[spec->op].in_max == 0) {
		x.dtype[0] = spec->dtype;
		x.shape[0] = *spec->shape;
	}
	st = tn_infer_node(&x);
	if (st == TERN_OK)
		st = commit(graph, &node, &x);
	if (st != TERN_OK)
		node_free(&node);
	else if (node_out)
		*node_out = graph->n_nodes - 1;
	return st;
}

tern_status tn_graph_add1(tern_graph *graph, tn_op op, const char *name, const uint32_t *in, uint32_t n_in,
			  const tn_attr *attrs, uint32_t n_attrs, int32_t device, uint32_t *tensor)
{
	tn_node_spec spec = {.op = op,
			     .name = name,
			     .in = in,
			     .n_in = n_in,
			     .attrs = attrs,
			     .n_attrs = n_attrs,
			     .device = device};
	uint32_t node;
	tern_status st = tn_graph_add(graph, &spec, &node);

	if (st == TERN_OK && tensor)
		*tensor = graph->nodes[node].out[0];
	return st;
}

tern_status tn_graph_add_control(tern_graph *graph, uint32_t earlier, uint32_t later)
{
	tn_node *node;
	uint32_t *bigger;

	if (earlier >= graph->n_nodes || later >= graph->n_nodes || earlier == later)
		return tn_fail(TERN_E_INVALID, "a control edge needs two different nodes of the graph");
	node = &graph->nodes[later];
	for (uint32_t i = 0; i < node->n_ctrl; i++) {
		if (node->ctrl[i] == earlier)
			return TERN_OK;
	}
	bigger = realloc(node->ctrl, (node->n_ctrl + 1) * sizeof(*bigger));
	if (!bigger)
		return tn_fail(TERN_E_NOMEM, "no memory for a control edge of '%s'", node->name);
	node->ctrl = bigger;
	node->ctrl[node->n_ctrl++] = earlier;
	return TERN_OK;
}

/* ---- ports and attributes ---- */

uint32_t tn_graph_port(const tern_graph *graph, const char *name, bool is_input)
{
	for (uint32_t i = 0; i < graph->n_ports; i++) {
		if (graph->ports[i].is_input == is_input && strcmp(graph->ports[i].name, name) == 0)
			return graph->ports[i].tensor;
	}
	return TN_NONE;
}

tern_status tn_graph_add_port(tern_graph *graph, const char *name, uint32_t tensor, bool is_input)
{
	tern_status st;
	char *copy;

	if (tensor >= graph->n_tensors)
		return tn_fail(TERN_E_INVALID, "port '%s': no such tensor", name);
	if (is_input && graph->nodes[graph->tensors[tensor].node].op != TN_OP_PLACEHOLDER) {
		return tn_fail(TERN_E_INVALID, "input port '%s': '%s' is no Placeholder", name,
			       graph->tensors[tensor].name);
	}
	st = grow(&graph->ports, &graph->cap_ports, graph->n_ports + 1, sizeof(*graph->ports));
	if (st != TERN_OK)
		return st;
	copy = strdup(name);
	if (!copy)
		return tn_fail(TERN_E_NOMEM, "no memory for port '%s'", name);
	graph->ports[graph->n_ports++] = (tn_port){.name = copy, .tensor = tensor, .is_input = is_input};
	return TERN_OK;
}

const tn_attr *tn_node_attr(const tn_node *node, tn_attr_key key)
{
	for (uint32_t i = 0; i < node->n_attrs; i++) {
		if (node->attrs[i].key == key)
			return &node->attrs[i];
	}
	return NULL;
}

int64_t tn_node_int(const tn_node *node, tn_attr_key key, int64_t dflt)
{
	const tn_attr *a = tn_node_attr(node, key);

	return a ? a->u.i : dflt;
}

double tn_node_float(const tn_node *node, tn_attr_key key, double dflt)
{
	const tn_attr *a = tn_node_attr(node, key);

	return a ? a->u.f : dflt;
}

uint32_t tn_apply_slots(const tn_node *node)
{
	switch (node->op) {
	case TN_OP_APPLY_SGD:
	case TN_OP_APPLY_EMA:
	case TN_OP_ACCUMULATE:
		return 1;
	case TN_OP_APPLY_MOMENTUM:
	case TN_OP_APPLY_ADAGRAD:
		return 2;
	case TN_OP_APPLY_RMSPROP:
		return tn_node_attr(node, TN_ATTR_MOMENTUM) ? 3 : 2;
	case TN_OP_APPLY_ADAM:
		return 4;
	default:
		return 0;
	}
}

uint32_t tn_graph_root(const tern_graph *graph, uint32_t tensor)
{
	for (;;) {
		const tn_tensor *t = &graph->tensors[tensor];
		const tn_node *node = &graph->nodes[t->node];

		if (t->output != 0 || !(tn_op_flags(node->op) & (TN_OPF_VIEW | TN_OPF_INPLACE)))
			return tensor;
		tensor = node->in[0];
	}
}

/* ---- copies ---- */

static tern_status clone_into(tern_graph *to, const tern_graph *from)
{
	tern_status st = tn_graph_copy_symbols(to, from);

	for (uint32_t i = 0; i < from->n_nodes && st == TERN_OK; i++) {
		const tn_node *n = &from->nodes[i];
		const tn_tensor *out = n->n_out ? &from->tensors[n->out[0]] : NULL;
		tn_node_spec spec = {.op = n->op,
				     .name = n->name,
				     .in = n->in,
				     .n_in = n->n_in,
				     .attrs = n->attrs,
				     .n_attrs = n->n_attrs,
				     .device = n->device,
				     .dtype = out ? out->dtype : TERN_F32,
				     .shape = out ? &out->shape : NULL,
				     .init = &n->init,
				     .values = n->data};

		st = tn_graph_add(to, &spec, NULL);
	}
	for (uint32_t i = 0; i < from->n_nodes && st == TERN_OK; i++) {
		for (uint32_t k = 0; k < from->nodes[i].n_ctrl && st == TERN_OK; k++)
			st = tn_graph_add_control(to, from->nodes[i].ctrl[k], i);
	}
	for (uint32_t i = 0; i < from->n_ports && st == TERN_OK; i++)
		st = tn_graph_add_port(to, from->ports[i].name, from->ports[i].tensor,
				       from->ports[i].is_input);
	return st;
}

tern_status tn_graph_clone(const tern_graph *graph, tern_graph **copy)
{
	tern_graph *g = NULL;
	tern_status st = tern_graph_create(graph->name, &g);

	if (st != TERN_OK)
		return st;
	st = clone_into(g, graph);
	if (st != TERN_OK) {
		tern_graph_destroy(g);
		return st;
	}
	*copy = g;
	return TERN_OK;
}
