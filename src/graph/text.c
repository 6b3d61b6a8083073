/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph as text: one line per node, in order, everything that decides what it computes. The same graph
 * gives the same text, so golden files can pin it.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c and the golden plans.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/ir.h"

static void add_tensor(tn_str *text, const tern_graph *graph, uint32_t tensor)
{
	const tn_tensor *t = &graph->tensors[tensor];
	char shape[TN_SHAPE_TEXT_MAX];

	tn_str_addf(text, "%s:%s%s", t->name, tern_dtype_name(t->dtype),
		    tn_shape_text(graph, &t->shape, shape, sizeof(shape)));
}

static void add_ints(tn_str *text, const tern_graph *graph, const tn_attr *a)
{
	tern_shape shape = {.rank = a->u.ints.n};
	char buf[TN_SHAPE_TEXT_MAX];

	if (a->key == TN_ATTR_SHAPE) {
		memcpy(shape.dims, a->u.ints.v, sizeof(shape.dims));
		tn_str_addf(text, "%s", tn_shape_text(graph, &shape, buf, sizeof(buf)));
		return;
	}
	tn_str_addf(text, "[");
	for (uint32_t i = 0; i < a->u.ints.n; i++)
		tn_str_addf(text, "%s%lld", i ? "," : "", (long long)a->u.ints.v[i]);
	tn_str_addf(text, "]");
}

static void add_floats(tn_str *text, const tn_attr *a)
{
	tn_str_addf(text, "[");
	for (uint32_t i = 0; i < a->u.floats.n; i++)
		tn_str_addf(text, "%s%.9g", i ? "," : "", a->u.floats.v[i]);
	tn_str_addf(text, "]");
}

static void add_attr(tn_str *text, const tern_graph *graph, const tn_attr *a)
{
	static const char types[TN_ATTR_COUNT] = {
#define TN_ATTR_TYPE(key, name, type) [TN_ATTR_##key] = TERN_ATTR_##type,
		TN_ATTR_MAP(TN_ATTR_TYPE)
#undef TN_ATTR_TYPE
	};

	tn_str_addf(text, " %s=", tn_attr_names[a->key]);
	if (types[a->key] == TERN_ATTR_INT)
		tn_str_addf(text, "%lld", (long long)a->u.i);
	else if (types[a->key] == TERN_ATTR_FLOAT)
		tn_str_addf(text, "%.9g", a->u.f);
	else if (types[a->key] == TERN_ATTR_INTS)
		add_ints(text, graph, a);
	else
		add_floats(text, a);
}

static const char *const init_names[] = {"zeros",          "constant",   "uniform",
					 "xavier_uniform", "he_uniform", "data"};

void tn_graph_node_text(tn_str *text, const tern_graph *graph, uint32_t node)
{
	const tn_node *n = &graph->nodes[node];

	tn_str_addf(text, "%s %s (", tn_op_table[n->op].name, n->name);
	for (uint32_t i = 0; i < n->n_in; i++)
		tn_str_addf(text, "%s%s", i ? ", " : "", graph->tensors[n->in[i]].name);
	tn_str_addf(text, ")");
	for (uint32_t i = 0; i < n->n_out; i++) {
		tn_str_addf(text, "%s", i ? ", " : " -> ");
		add_tensor(text, graph, n->out[i]);
	}
	for (uint32_t i = 0; i < n->n_attrs; i++)
		add_attr(text, graph, &n->attrs[i]);
	if (n->op == TN_OP_VARIABLE)
		tn_str_addf(text, " init=%s", init_names[n->init.kind]);
	for (uint32_t i = 0; i < n->n_ctrl; i++)
		tn_str_addf(text, "%s%s", i ? ", " : " after ", graph->nodes[n->ctrl[i]].name);
	if (n->device != TN_DEVICE_NONE)
		tn_str_addf(text, " @%d", n->device);
	tn_str_addf(text, "\n");
}

char *tern_graph_text(const tern_graph *graph)
{
	tn_str text;

	tn_str_init(&text);
	tn_str_addf(&text, "graph %s\n", graph->name);
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		tn_str_addf(&text, "  ");
		tn_graph_node_text(&text, graph, i);
	}
	for (uint32_t i = 0; i < graph->n_ports; i++) {
		const tn_port *p = &graph->ports[i];

		tn_str_addf(&text, "  %s %s = ", p->is_input ? "input" : "output", p->name);
		add_tensor(&text, graph, p->tensor);
		tn_str_addf(&text, "\n");
	}
	return tn_str_take(&text);
}

void tern_graph_text_free(char *text)
{
	free(text);
}
