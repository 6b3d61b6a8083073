/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public way to build a graph: translates names into numbers, hides internal ops, and checks what the
 * caller hands in. Nothing here knows an op beyond the op table.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/ir_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "graph/ir.h"

static const char attr_types[TN_ATTR_COUNT] = {
#define TN_ATTR_TYPE(key, name, type) [TN_ATTR_##key] = TERN_ATTR_##type,
	TN_ATTR_MAP(TN_ATTR_TYPE)
#undef TN_ATTR_TYPE
};

static tern_status source(tern_graph *graph, tn_node_spec *spec, tern_value *value)
{
	uint32_t node;
	tern_status st;

	if (!graph || !spec->shape || !value)
		return tn_fail(TERN_E_INVALID, "graph, shape and value must not be NULL");
	spec->device = graph->scope;
	st = tn_graph_add(graph, spec, &node);
	if (st == TERN_OK)
		*value = graph->nodes[node].out[0];
	return st;
}

tern_status tern_graph_placeholder(tern_graph *graph, const char *name, tern_dtype dtype,
				   const tern_shape *shape, tern_value *value)
{
	tn_node_spec spec = {.op = TN_OP_PLACEHOLDER, .name = name, .dtype = dtype, .shape = shape};

	return source(graph, &spec, value);
}

tern_status tern_graph_variable(tern_graph *graph, const char *name, tern_dtype dtype,
				const tern_shape *shape, const tern_init *init, tern_value *value)
{
	tn_node_spec spec = {
		.op = TN_OP_VARIABLE, .name = name, .dtype = dtype, .shape = shape, .init = init};

	if (!init || init->kind > TERN_INIT_DATA || (init->kind == TERN_INIT_DATA && !init->data))
		return tn_fail(TERN_E_INVALID, "Variable '%s': needs an initialiser", name ? name : "");
	if (!shape || shape->rank > TERN_RANK_MAX || tn_shape_symbolic(shape))
		return tn_fail(TERN_E_SHAPE, "Variable '%s': needs a shape without symbolic dims",
			       name ? name : "");
	return source(graph, &spec, value);
}

tern_status tern_graph_constant(tern_graph *graph, const char *name, tern_dtype dtype,
				const tern_shape *shape, const void *data, tern_value *value)
{
	tn_node_spec spec = {
		.op = TN_OP_CONSTANT, .name = name, .dtype = dtype, .shape = shape, .data = data};

	if (!data)
		return tn_fail(TERN_E_INVALID, "Constant '%s': needs data", name ? name : "");
	if (!shape || shape->rank > TERN_RANK_MAX || tn_shape_symbolic(shape))
		return tn_fail(TERN_E_SHAPE, "Constant '%s': needs a shape without symbolic dims",
			       name ? name : "");
	return source(graph, &spec, value);
}

static tern_status find_op(const char *name, tn_op *op)
{
	for (uint32_t i = 0; i < TN_OP_COUNT; i++) {
		if (strcmp(tn_op_table[i].name, name) == 0 && !(tn_op_table[i].flags & TN_OPF_INTERNAL)) {
			*op = (tn_op)i;
			return TERN_OK;
		}
	}
	return tn_fail(TERN_E_NOT_FOUND, "there is no op '%s'; docs/GRAPH-OPS.md lists them", name);
}

static tern_status convert_attr(const char *node, const tern_attr *from, tn_attr *to)
{
	for (uint32_t i = 0; i < TN_ATTR_COUNT; i++) {
		if (strcmp(tn_attr_names[i], from->name) != 0)
			continue;
		if (from->type != (tern_attr_type)attr_types[i] || from->n_ints > TERN_ATTR_INTS_MAX ||
		    from->n_floats > TERN_ATTR_INTS_MAX)
			break;
		*to = (tn_attr){.key = (tn_attr_key)i};
		if (from->type == TERN_ATTR_INT) {
			to->u.i = from->i;
		} else if (from->type == TERN_ATTR_FLOAT) {
			to->u.f = from->f;
		} else if (from->type == TERN_ATTR_INTS) {
			to->u.ints.n = from->n_ints;
			memcpy(to->u.ints.v, from->ints, sizeof(to->u.ints.v));
		} else {
			to->u.floats.n = from->n_floats;
			memcpy(to->u.floats.v, from->floats, sizeof(to->u.floats.v));
		}
		return TERN_OK;
	}
	return tn_fail(TERN_E_INVALID, "node '%s': attribute '%s' is unknown or of another type", node,
		       from->name);
}

tern_status tern_graph_node(tern_graph *graph, const char *op, const char *name, const tern_value *inputs,
			    uint32_t n_inputs, const tern_attr *attrs, uint32_t n_attrs, tern_value *outputs,
			    uint32_t n_outputs)
{
	tn_attr converted[TN_ATTR_COUNT];
	tn_node_spec spec = {
		.name = name, .in = inputs, .n_in = n_inputs, .attrs = converted, .n_attrs = n_attrs};
	uint32_t node;
	tern_status st;

	if (!graph || !op || !name || (n_inputs && !inputs) || (n_attrs && !attrs))
		return tn_fail(TERN_E_INVALID, "graph, op, name, inputs and attrs must not be NULL");
	spec.device = graph->scope;
	st = find_op(op, &spec.op);
	if (st == TERN_OK && n_attrs > TN_ATTR_COUNT)
		st = tn_fail(TERN_E_INVALID, "%s '%s': too many attributes", op, name);
	for (uint32_t i = 0; i < n_attrs && st == TERN_OK; i++)
		st = convert_attr(name, &attrs[i], &converted[i]);
	if (st == TERN_OK && n_outputs > tn_op_table[spec.op].outs) {
		st = tn_fail(TERN_E_INVALID, "%s '%s': has %u outputs, not %u", op, name,
			     tn_op_table[spec.op].outs, n_outputs);
	}
	if (st == TERN_OK)
		st = tn_graph_add(graph, &spec, &node);
	for (uint32_t i = 0; i < n_outputs && st == TERN_OK; i++)
		outputs[i] = graph->nodes[node].out[i];
	return st;
}

tern_status tern_graph_set_device(tern_graph *graph, int32_t device)
{
	if (!graph || device < TERN_DEVICE_ANY || device >= TERN_DEVICES_MAX)
		return tn_fail(TERN_E_INVALID, "device %d: use 0 to %d, or TERN_DEVICE_ANY", device,
			       TERN_DEVICES_MAX - 1);
	graph->scope = device;
	return TERN_OK;
}

tern_status tern_graph_place(tern_graph *graph, tern_value value, int32_t device)
{
	if (!graph || value >= graph->n_tensors)
		return tn_fail(TERN_E_NOT_FOUND, "the graph has no tensor number %u", value);
	if (device < TERN_DEVICE_ANY || device >= TERN_DEVICES_MAX)
		return tn_fail(TERN_E_INVALID, "device %d: use 0 to %d, or TERN_DEVICE_ANY", device,
			       TERN_DEVICES_MAX - 1);
	graph->nodes[graph->tensors[value].node].device = device;
	return TERN_OK;
}

tern_status tern_graph_control(tern_graph *graph, tern_value earlier, tern_value later)
{
	if (!graph || earlier >= graph->n_tensors || later >= graph->n_tensors)
		return tn_fail(TERN_E_INVALID, "a control edge needs two tensors of the graph");
	return tn_graph_add_control(graph, graph->tensors[earlier].node, graph->tensors[later].node);
}

static tern_status add_port(tern_graph *graph, const char *port, tern_value value, bool is_input)
{
	if (!graph || !port || !*port)
		return tn_fail(TERN_E_INVALID, "graph and port must not be NULL, nor the port's name empty");
	if (tn_graph_port(graph, port, is_input) != TN_NONE)
		return tn_fail(TERN_E_EXISTS, "there is a port '%s' already", port);
	return tn_graph_add_port(graph, port, value, is_input);
}

tern_status tern_graph_input(tern_graph *graph, const char *port, tern_value value)
{
	return add_port(graph, port, value, true);
}

tern_status tern_graph_output(tern_graph *graph, const char *port, tern_value value)
{
	return add_port(graph, port, value, false);
}

tern_status tern_graph_value(const tern_graph *graph, tern_value value, tern_value_info *info)
{
	if (!graph || value >= graph->n_tensors)
		return tn_fail(TERN_E_NOT_FOUND, "the graph has no tensor number %u", value);
	*info = (tern_value_info){.name = graph->tensors[value].name,
				  .dtype = graph->tensors[value].dtype,
				  .shape = graph->tensors[value].shape};
	return TERN_OK;
}

tern_status tern_graph_port(const tern_graph *graph, uint32_t number, const char **name, int *is_input,
			    tern_value *value)
{
	if (!graph || number >= graph->n_ports)
		return tn_fail(TERN_E_NOT_FOUND, "the graph has no port number %u", number);
	*name = graph->ports[number].name;
	*is_input = graph->ports[number].is_input;
	*value = graph->ports[number].tensor;
	return TERN_OK;
}

tern_status tern_graph_node_get(const tern_graph *graph, uint32_t number, tern_node_info *info)
{
	const tn_node *n;

	if (!graph || number >= graph->n_nodes)
		return tn_fail(TERN_E_NOT_FOUND, "the graph has no node number %u", number);
	n = &graph->nodes[number];
	*info = (tern_node_info){.op = tn_op_table[n->op].name,
				 .name = n->name,
				 .inputs = n->in,
				 .outputs = n->out,
				 .n_inputs = n->n_in,
				 .n_outputs = n->n_out};
	return TERN_OK;
}

const char *tern_graph_symbol_name(const tern_graph *graph, uint64_t dim)
{
	if (!graph || !tn_dim_symbolic(dim) || tn_dim_symbol(dim) >= graph->n_symbols)
		return NULL;
	return graph->symbols[tn_dim_symbol(dim)];
}

/* Running statistics and the like: ApplyEma writes them, not an optimiser. */
static bool is_average(const tern_graph *graph, uint32_t tensor)
{
	for (uint32_t i = graph->tensors[tensor].node + 1; i < graph->n_nodes; i++) {
		if (graph->nodes[i].op == TN_OP_APPLY_EMA && graph->nodes[i].in[0] == tensor)
			return true;
	}
	return false;
}

void tern_graph_info_get(const tern_graph *graph, tern_graph_info *info)
{
	*info = (tern_graph_info){.name = graph->name, .nodes = graph->n_nodes};
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const tn_tensor *t;
		uint64_t n = 0;

		if (graph->nodes[i].op != TN_OP_VARIABLE)
			continue;
		t = &graph->tensors[graph->nodes[i].out[0]];
		if (tn_shape_elements(&t->shape, &n) != TERN_OK)
			continue; /* cannot be: checked when it was added */
		info->variables++;
		if (is_average(graph, graph->nodes[i].out[0]))
			continue;
		info->parameters += n;
		info->parameter_bytes += n * tern_dtype_bytes(t->dtype);
	}
}
