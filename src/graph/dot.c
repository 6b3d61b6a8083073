/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph as a drawing for Graphviz: a box per node that computes, an ellipse per source, an edge per tensor
 * with its type and shape, the device of a placed node in its label. The same graph gives the same text.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/onnx_test.c.
 */
#include <stdlib.h>

#include "graph/ir.h"

/* In a quoted string of the DOT language; control characters are left out. */
static void add_quoted(tn_str *text, const char *s)
{
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			tn_str_addf(text, "\\%c", *s);
		else if ((unsigned char)*s >= ' ')
			tn_str_addn(text, s, 1);
	}
}

static const char *style_of(const tn_node *n)
{
	switch (n->op) {
	case TN_OP_PLACEHOLDER:
		return "shape=ellipse, fillcolor=\"#d8e8f8\"";
	case TN_OP_VARIABLE:
		return "shape=ellipse, fillcolor=\"#d8f0d8\"";
	case TN_OP_CONSTANT:
		return "shape=ellipse, fillcolor=\"#eeeeee\"";
	default:
		return tn_op_flags(n->op) & (TN_OPF_SEND | TN_OPF_RECV) ? "shape=cds, fillcolor=\"#f8d8d8\""
									: "shape=box, fillcolor=\"#fff8e0\"";
	}
}

static void add_node(tn_str *text, const tern_graph *g, uint32_t i)
{
	const tn_node *n = &g->nodes[i];

	tn_str_addf(text, "\tn%u [label=\"%s\\n", i, tn_op_table[n->op].name);
	add_quoted(text, n->name);
	if (n->device != TN_DEVICE_NONE)
		tn_str_addf(text, "\\n@%d", n->device);
	tn_str_addf(text, "\", %s];\n", style_of(n));
}

static void add_edges(tn_str *text, const tern_graph *g, uint32_t i)
{
	const tn_node *n = &g->nodes[i];
	char shape[TN_SHAPE_TEXT_MAX];

	for (uint32_t k = 0; k < n->n_in; k++) {
		const tn_tensor *t = &g->tensors[n->in[k]];

		tn_str_addf(text, "\tn%u -> n%u [label=\"%s", t->node, i, tern_dtype_name(t->dtype));
		add_quoted(text, tn_shape_text(g, &t->shape, shape, sizeof(shape)));
		tn_str_addf(text, "\"];\n");
	}
	for (uint32_t k = 0; k < n->n_ctrl; k++)
		tn_str_addf(text, "\tn%u -> n%u [style=dashed];\n", n->ctrl[k], i);
}

static void add_ports(tn_str *text, const tern_graph *g)
{
	for (uint32_t i = 0; i < g->n_ports; i++) {
		uint32_t node = g->tensors[g->ports[i].tensor].node;

		if (g->ports[i].is_input)
			continue;
		tn_str_addf(text, "\tp%u [label=\"", i);
		add_quoted(text, g->ports[i].name);
		tn_str_addf(text, "\", shape=ellipse, fillcolor=\"#d8e8f8\"];\n\tn%u -> p%u;\n", node, i);
	}
}

char *tern_graph_dot(const tern_graph *graph)
{
	tn_str text;

	tn_str_init(&text);
	tn_str_addf(&text, "digraph \"");
	add_quoted(&text, graph->name);
	tn_str_addf(&text,
		    "\" {\n\trankdir=TB;\n\tnode [fontname=\"sans-serif\", fontsize=10, style=filled];\n"
		    "\tedge [fontname=\"sans-serif\", fontsize=8];\n");
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		add_node(&text, graph, i);
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		add_edges(&text, graph, i);
	add_ports(&text, graph);
	tn_str_addf(&text, "}\n");
	return tn_str_take(&text);
}
