/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as text and as JSON. Both are pure functions of the plan and pinned by golden files, so a change of
 * a pass shows up as a diff that people can read.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/json.h"
#include "graph/plan.h"

static const char *const comm_names[] = {"zerocopy", "copy", "rpc", "grpc", "none"};
static const char *const role_names[] = {"server", "worker", "local"};

static uint64_t bytes_per_step(const tern_plan *plan)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < plan->n_edges; i++)
		bytes += plan->edges[i].bytes;
	return bytes;
}

static const char *const optimizer_names[] = {"sgd", "momentum", "adagrad", "adam", "rmsprop"};

/* What is not the default. */
static void add_partition(tn_str *text, const tern_plan_params *p)
{
	const char *comma = "partition ";

	if (p->stale) {
		tn_str_addf(text, "%sat most %u steps ahead", comma, p->stale);
		comma = ", ";
	}
	if (p->stages > 1) {
		tn_str_addf(text, "%s%u stages per worker", comma, p->stages);
		comma = ", ";
	}
	if (p->micro_batches > 1) {
		tn_str_addf(text, "%s%u micro-batches", comma, p->micro_batches);
		comma = ", ";
	}
	if (p->split_bytes) {
		tn_str_addf(text, "%ssplit above %" PRIu64 " bytes", comma, p->split_bytes);
		comma = ", ";
	}
	for (uint32_t i = 0; i < TERN_PLAN_DIMS_MAX && p->dims[i].name; i++) {
		tn_str_addf(text, "%s%s %s %" PRIu64, comma, p->dims[i].name,
			    p->dims[i].varies ? "about" : "=", p->dims[i].size);
		comma = ", ";
	}
	if (comma[0] == ',')
		tn_str_add(text, "\n");
}

static void add_head(tn_str *text, const tern_plan *plan)
{
	const tern_optimizer *o = &plan->params.optimizer;

	tn_str_addf(text, "plan %s: %u servers, %u workers, %s, comm %s\n", plan->model, plan->params.servers,
		    plan->params.workers, plan->params.sync ? "sync" : "async",
		    comm_names[plan->params.comm]);
	add_partition(text, &plan->params);
	tn_str_addf(text,
		    "optimizer %s lr=%.9g lr_end=%.9g lr_steps=%" PRIu64 " momentum=%.9g weight_decay=%.9g",
		    optimizer_names[o->kind], (double)o->lr, (double)o->lr_end, o->lr_steps,
		    (double)o->momentum, (double)o->weight_decay);
	if (o->clip_value > 0.0f)
		tn_str_addf(text, " clip_value=%.9g", (double)o->clip_value);
	if (o->clip_norm > 0.0f)
		tn_str_addf(text, " clip_norm=%.9g", (double)o->clip_norm);
	tn_str_add(text, "\n");
	tn_str_addf(text,
		    "parameters %" PRIu64 " (%" PRIu64 " bytes), %u edges, %" PRIu64 " bytes per step\n",
		    plan->parameters, plan->parameter_bytes, plan->n_edges, bytes_per_step(plan));
}

static void add_devices(tn_str *text, const tern_plan *plan)
{
	tn_str_add(text, "\ndevices\n");
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		tern_device_info d;

		if (tern_plan_device(plan, i, &d) != TERN_OK)
			continue;
		tn_str_addf(text,
			    "  %u %s: %u nodes, %u variables of %" PRIu64 " bytes, in %u edges %" PRIu64
			    " bytes, out %u edges %" PRIu64 " bytes",
			    i, d.name, d.nodes, d.variables, d.variable_bytes, d.edges_in, d.bytes_in,
			    d.edges_out, d.bytes_out);
		if (d.shared)
			tn_str_addf(text, ", %u tensors of %" PRIu64 " bytes in %u buffers of %" PRIu64,
				    d.shared, d.shared_bytes, d.buffers, d.buffer_bytes);
		tn_str_add(text, "\n");
	}
}

/* Bytes of a row as it travels: with its key. */
static uint64_t row_bytes(const tern_plan *plan, uint32_t table)
{
	return sizeof(uint64_t) + sizeof(float) * plan->tables->tensors[table].shape.dims[1];
}

static void add_tables(tn_str *text, const tern_plan *plan)
{
	if (plan->tables)
		tn_str_add(text, "\ntables\n");
	for (uint32_t t = 0; t < tn_plan_tables(plan); t++) {
		const tern_shape *shape = &plan->tables->tensors[t].shape;

		tn_str_addf(text, "  %u %s: %" PRIu64 " rows of %" PRIu64 " f32, row r at server r mod %u\n",
			    t, plan->tables->nodes[t].name, shape->dims[0], shape->dims[1],
			    plan->params.servers);
		for (uint32_t d = 0; d < plan->n_devices; d++) {
			uint64_t rows = tn_plan_rows(plan, &plan->devices[d], t);

			if (rows)
				tn_str_addf(text,
					    "    %s: at most %" PRIu64 " rows pulled and pushed, %" PRIu64
					    " bytes each way per step\n",
					    plan->devices[d].name, rows, rows * row_bytes(plan, t));
		}
	}
}

static void add_edges(tn_str *text, const tern_plan *plan)
{
	char shape[TN_SHAPE_TEXT_MAX];

	tn_str_add(text, "\nedges\n");
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		const tn_edge *e = &plan->edges[i];
		const tern_graph *dst = plan->devices[e->dst].graph;

		tn_str_addf(text, "  %u %s:%s%s %s -> %s, %s, %" PRIu64 " bytes, %s: %s, memory of %s", i,
			    e->name, tern_dtype_name(e->dtype),
			    tn_shape_text(plan->devices[e->src].graph, &e->shape, shape, sizeof(shape)),
			    plan->devices[e->src].name, plan->devices[e->dst].name, tn_edge_ops(e), e->bytes,
			    e->is_static ? "static" : "dynamic", e->reason, e->site);
		if (e->whole_bytes)
			tn_str_addf(text, ", received into '%s' at %" PRIu64, dst->nodes[e->whole].name,
				    e->whole_offset);
		tn_str_addf(text, ", copies %u%s%s\n", e->copies, e->copies ? ": " : "", e->copy_reason);
	}
}

char *tern_plan_text(const tern_plan *plan)
{
	tn_str text;

	tn_str_init(&text);
	add_head(&text, plan);
	add_devices(&text, plan);
	add_tables(&text, plan);
	add_edges(&text, plan);
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		char *graph = tern_graph_text(plan->devices[i].graph);

		text.failed |= !graph;
		tn_str_addf(&text, "\n%s", graph ? graph : "");
		free(graph);
	}
	return tn_str_take(&text);
}

/* ---- JSON ---- */

static void json_u64(tn_json *j, const char *key, uint64_t value)
{
	tn_json_key(j, key);
	tn_json_u64(j, value);
}

static void json_string(tn_json *j, const char *key, const char *value)
{
	tn_json_key(j, key);
	tn_json_string(j, value);
}

static void json_device(tn_json *j, const tern_plan *plan, uint32_t i)
{
	tern_device_info d;

	if (tern_plan_device(plan, i, &d) != TERN_OK)
		return;
	tn_json_object(j);
	json_string(j, "name", d.name);
	json_string(j, "role", role_names[d.role]);
	json_u64(j, "index", d.index);
	json_u64(j, "stage", d.stage);
	json_u64(j, "nodes", d.nodes);
	json_u64(j, "variables", d.variables);
	json_u64(j, "variable_bytes", d.variable_bytes);
	json_u64(j, "edges_in", d.edges_in);
	json_u64(j, "bytes_in", d.bytes_in);
	json_u64(j, "edges_out", d.edges_out);
	json_u64(j, "bytes_out", d.bytes_out);
	json_u64(j, "shared", d.shared);
	json_u64(j, "shared_bytes", d.shared_bytes);
	json_u64(j, "buffers", d.buffers);
	json_u64(j, "buffer_bytes", d.buffer_bytes);
	tn_json_end_object(j);
}

static void json_edge(tn_json *j, const tern_plan *plan, uint32_t i)
{
	const tn_edge *e = &plan->edges[i];
	const tern_graph *g = plan->devices[e->src].graph;

	tn_json_object(j);
	json_u64(j, "id", i);
	json_string(j, "name", e->name);
	json_string(j, "src", plan->devices[e->src].name);
	json_string(j, "dst", plan->devices[e->dst].name);
	json_string(j, "dtype", tern_dtype_name(e->dtype));
	tn_json_key(j, "shape");
	tn_json_array(j);
	for (uint32_t k = 0; k < e->shape.rank; k++) {
		if (tn_dim_symbolic(e->shape.dims[k]))
			tn_json_string(j, g->symbols[tn_dim_symbol(e->shape.dims[k])]);
		else
			tn_json_u64(j, e->shape.dims[k]);
	}
	tn_json_end_array(j);
	json_u64(j, "bytes", e->bytes);
	tn_json_key(j, "static");
	tn_json_bool(j, e->is_static);
	json_string(j, "reason", e->reason);
	json_string(j, "op", tn_edge_ops(e));
	json_string(j, "site", e->site);
	if (e->whole_bytes) {
		json_string(j, "into", plan->devices[e->dst].graph->nodes[e->whole].name);
		json_u64(j, "into_offset", e->whole_offset);
	}
	json_u64(j, "copies", e->copies);
	json_string(j, "copy_reason", e->copy_reason);
	tn_json_end_object(j);
}

static void json_table(tn_json *j, const tern_plan *plan, uint32_t t)
{
	tn_json_object(j);
	json_string(j, "name", plan->tables->nodes[t].name);
	json_u64(j, "rows", plan->tables->tensors[t].shape.dims[0]);
	json_u64(j, "dim", plan->tables->tensors[t].shape.dims[1]);
	json_u64(j, "servers", plan->params.servers);
	tn_json_key(j, "users");
	tn_json_array(j);
	for (uint32_t d = 0; d < plan->n_devices; d++) {
		uint64_t rows = tn_plan_rows(plan, &plan->devices[d], t);

		if (!rows)
			continue;
		tn_json_object(j);
		json_string(j, "device", plan->devices[d].name);
		json_u64(j, "rows_at_most", rows);
		json_u64(j, "bytes_pulled", rows * row_bytes(plan, t));
		json_u64(j, "bytes_pushed", rows * row_bytes(plan, t));
		tn_json_end_object(j);
	}
	tn_json_end_array(j);
	tn_json_end_object(j);
}

char *tern_plan_json(const tern_plan *plan)
{
	tn_str text;
	tn_json j;

	tn_str_init(&text);
	tn_json_init(&j, &text, 2);
	tn_json_object(&j);
	json_string(&j, "model", plan->model);
	json_u64(&j, "servers", plan->params.servers);
	json_u64(&j, "workers", plan->params.workers);
	tn_json_key(&j, "sync");
	tn_json_bool(&j, plan->params.sync != 0);
	json_u64(&j, "stale", plan->params.stale);
	json_u64(&j, "stages", plan->params.stages);
	json_u64(&j, "micro_batches", plan->params.micro_batches);
	json_string(&j, "comm", comm_names[plan->params.comm]);
	json_u64(&j, "parameters", plan->parameters);
	json_u64(&j, "parameter_bytes", plan->parameter_bytes);
	json_u64(&j, "bytes_per_step", bytes_per_step(plan));
	tn_json_key(&j, "devices");
	tn_json_array(&j);
	for (uint32_t i = 0; i < plan->n_devices; i++)
		json_device(&j, plan, i);
	tn_json_end_array(&j);
	tn_json_key(&j, "edges");
	tn_json_array(&j);
	for (uint32_t i = 0; i < plan->n_edges; i++)
		json_edge(&j, plan, i);
	tn_json_end_array(&j);
	if (plan->tables) {
		tn_json_key(&j, "tables");
		tn_json_array(&j);
	}
	for (uint32_t t = 0; t < tn_plan_tables(plan); t++)
		json_table(&j, plan, t);
	if (plan->tables)
		tn_json_end_array(&j);
	tn_json_end_object(&j);
	return tn_str_take(&text);
}
