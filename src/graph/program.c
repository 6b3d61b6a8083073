/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern_program: the serial evaluator for callers, by the names of ports. Owns a copy of the graph (which
 * shares the values of constants and variables) and the evaluator.
 *
 * Thread story: see <tern/graph.h>. Tests: tests/unit/graph/eval_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/eval.h"

struct tern_program {
	tern_graph *graph;
	tn_eval *eval;
	uint64_t sizes[TN_SYMBOLS_MAX];
};

static tern_status take_sizes(tern_program *p, const tern_program_params *params)
{
	for (uint32_t i = 0; i < TN_SYMBOLS_MAX; i++)
		p->sizes[i] = UINT64_MAX;
	for (uint32_t i = 0; i < params->n_sizes; i++) {
		const tern_size *s = &params->sizes[i];
		uint32_t symbol = s->name ? tn_graph_symbol_find(p->graph, s->name) : TN_NONE;

		if (symbol == TN_NONE)
			return tn_fail(TERN_E_NOT_FOUND, "the graph '%s' has no symbolic dim '%s'",
				       p->graph->name, s->name ? s->name : "");
		if (s->size > (UINT64_C(1) << 48))
			return tn_fail(TERN_E_TOO_LARGE, "size %" PRIu64 " of '%s' is above 2^48", s->size,
				       s->name);
		p->sizes[symbol] = s->size;
	}
	return TERN_OK;
}

static tern_status port_of(const tern_graph *g, const char *port, bool is_input, uint32_t *tensor)
{
	*tensor = port ? tn_graph_port(g, port, is_input) : TN_NONE;
	if (*tensor == TN_NONE)
		return tn_fail(TERN_E_NOT_FOUND, "the graph '%s' has no %s port '%s'", g->name,
			       is_input ? "input" : "output", port ? port : "");
	return TERN_OK;
}

/* The tensors of the asked output ports, or of all. outs has room for all ports and all asked ones. */
static tern_status take_outputs(const tern_program *p, const tern_program_params *params, uint32_t *outs,
				uint32_t *n_outs)
{
	const tern_graph *g = p->graph;

	*n_outs = 0;
	for (uint32_t i = 0; i < params->n_outputs; i++)
		TN_TRY(port_of(g, params->outputs[i], false, &outs[(*n_outs)++]));
	for (uint32_t i = 0; i < g->n_ports && params->n_outputs == 0; i++) {
		if (!g->ports[i].is_input)
			outs[(*n_outs)++] = g->ports[i].tensor;
	}
	return TERN_OK;
}

static tern_status set_up(tern_program *p, const tern_graph *graph, const tern_program_params *params)
{
	tn_eval_params eval = {.backend = TN_BACKEND_DNNL, .threads = params->threads ? params->threads : 1};
	uint32_t *outs;
	tern_status st;

	TN_TRY(tn_graph_clone(graph, &p->graph));
	TN_TRY(take_sizes(p, params));
	outs = calloc((size_t)p->graph->n_ports + params->n_outputs + 1, sizeof(*outs));
	if (!outs)
		return tn_fail(TERN_E_NOMEM, "no memory for a program");
	st = take_outputs(p, params, outs, &eval.n_outs);
	eval.outs = outs;
	eval.sizes = p->sizes;
	eval.all = eval.n_outs == 0;
	eval.inference = !params->training;
	if (st == TERN_OK)
		st = tn_eval_create(p->graph, &eval, &p->eval);
	free(outs);
	return st;
}

tern_status tern_program_create(const tern_graph *graph, const tern_program_params *params,
				tern_program **program)
{
	static const tern_program_params none;
	tern_program *p;
	tern_status st;

	if (!graph || !program)
		return tn_fail(TERN_E_INVALID, "graph and program must not be NULL");
	if (params && ((params->n_sizes && !params->sizes) || (params->n_outputs && !params->outputs)))
		return tn_fail(TERN_E_INVALID, "sizes and outputs must not be NULL if there are any");
	p = calloc(1, sizeof(*p));
	if (!p)
		return tn_fail(TERN_E_NOMEM, "no memory for a program");
	st = set_up(p, graph, params ? params : &none);
	if (st != TERN_OK) {
		tern_program_destroy(p);
		return st;
	}
	*program = p;
	return TERN_OK;
}

void tern_program_destroy(tern_program *program)
{
	if (!program)
		return;
	tn_eval_destroy(program->eval);
	tern_graph_destroy(program->graph);
	free(program);
}

static tern_status port_data(tern_program *p, const char *port, bool is_input, uint64_t bytes, void **data)
{
	uint32_t tensor;
	uint64_t has;

	TN_TRY(port_of(p->graph, port, is_input, &tensor));
	*data = tn_eval_data(p->eval, tensor);
	has = tn_eval_bytes(p->eval, tensor);
	if (*data && has != bytes)
		return tn_fail(TERN_E_SHAPE, "port '%s' has %" PRIu64 " bytes, not %" PRIu64, port, has,
			       bytes);
	return TERN_OK;
}

tern_status tern_program_feed(tern_program *program, const char *port, const void *data, uint64_t bytes)
{
	void *to;

	if (!program || (bytes && !data))
		return tn_fail(TERN_E_INVALID, "program and data must not be NULL");
	TN_TRY(port_data(program, port, true, bytes, &to));
	if (to && bytes) /* without memory: none of the outputs depends on it */
		memcpy(to, data, bytes);
	return TERN_OK;
}

tern_status tern_program_set(tern_program *program, const char *variable, const void *data, uint64_t bytes)
{
	uint32_t node, tensor = TN_NONE;
	void *to;

	if (!program || !variable || (bytes && !data))
		return tn_fail(TERN_E_INVALID, "program, variable and data must not be NULL");
	node = tn_graph_find(program->graph, variable);
	if (node != TN_NONE && program->graph->nodes[node].op == TN_OP_VARIABLE)
		tensor = program->graph->nodes[node].out[0];
	if (tensor == TN_NONE || !tn_eval_data(program->eval, tensor))
		return tn_fail(TERN_E_NOT_FOUND, "no output of '%s' depends on a variable '%s'",
			       program->graph->name, variable);
	if (tn_eval_bytes(program->eval, tensor) != bytes)
		return tn_fail(TERN_E_SHAPE, "variable '%s' has %" PRIu64 " bytes, not %" PRIu64, variable,
			       tn_eval_bytes(program->eval, tensor), bytes);
	TN_TRY(tn_eval_own(program->eval, tensor, &to));
	if (bytes)
		memcpy(to, data, bytes);
	return TERN_OK;
}

tern_status tern_program_restore(tern_program *program, const char *path)
{
	if (!program || !path)
		return tn_fail(TERN_E_INVALID, "program and path must not be NULL");
	return tn_eval_restore(program->eval, program->graph, path);
}

tern_status tern_program_run(tern_program *program)
{
	return program ? tn_eval_run(program->eval) : tn_fail(TERN_E_INVALID, "program must not be NULL");
}

tern_status tern_program_fetch(tern_program *program, const char *port, void *data, uint64_t bytes)
{
	void *from;

	if (!program || (bytes && !data))
		return tn_fail(TERN_E_INVALID, "program and data must not be NULL");
	TN_TRY(port_data(program, port, false, bytes, &from));
	if (!from)
		return tn_fail(TERN_E_NOT_FOUND,
			       "output port '%s' was not asked for when the program was made", port);
	if (bytes)
		memcpy(data, from, bytes);
	return TERN_OK;
}

tern_status tern_program_port(const tern_program *program, const char *port, int is_input,
			      tern_value_info *info)
{
	uint32_t tensor;

	if (!program || !info)
		return tn_fail(TERN_E_INVALID, "program and info must not be NULL");
	TN_TRY(port_of(program->graph, port, is_input != 0, &tensor));
	TN_TRY(tern_graph_value(program->graph, tensor, info));
	/* what no output depends on has no size here */
	if (tn_eval_shape(program->eval, tensor)->rank == info->shape.rank && info->shape.rank)
		info->shape = *tn_eval_shape(program->eval, tensor);
	return TERN_OK;
}

void tern_program_memory(const tern_program *program, uint64_t *bytes, uint64_t *without_reuse)
{
	tn_eval_memory(program->eval, bytes, without_reuse);
}
