/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constant folding: a node whose inputs are all known is built into a graph of its own, run once by the
 * serial evaluator, and stands for its results from then on. See import.h.
 *
 * Thread story: see import.h. Tests: tests/unit/graph/onnx_test.c, tests/onnx/node_test.py.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/onnx/import.h"

#define HEAVY_MAX (UINT64_C(256) << 10) /* bytes of operands */

bool tn_ox_foldable(const tn_ox *x)
{
	bool some = false;

	for (uint32_t i = 0; i < x->node->n_input; i++) {
		const tn_ox_value *v = tn_ox_in(x, i);

		if (!v)
			continue;
		if (v->kind != TN_OX_CONST || (v->symbols && !x->op->moves))
			return false;
		some = true;
	}
	return some;
}

static bool any_symbols(const tn_ox *x)
{
	for (uint32_t i = 0; i < x->node->n_input; i++) {
		if (tn_ox_in(x, i) && tn_ox_in(x, i)->symbols)
			return true;
	}
	return false;
}

static bool holds_symbol(const void *data, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / sizeof(int64_t); i++) {
		if (tn_ox_is_symbol(((const int64_t *)data)[i]))
			return true;
	}
	return false;
}

/* Ops whose work grows faster than their operands: folded only while they are small. */
static bool heavy(tn_op op)
{
	return op == TN_OP_MATMUL || op == TN_OP_CONV || op == TN_OP_CONV_TRANSPOSE || op == TN_OP_MAX_POOL ||
	       op == TN_OP_AVERAGE_POOL || op == TN_OP_LP_POOL || op == TN_OP_LRN || op == TN_OP_LSTM ||
	       op == TN_OP_GRU || op == TN_OP_RNN || op == TN_OP_RESIZE;
}

/* The tensor of an evaluated scratch graph becomes known bytes. */
static tern_status take(tn_ox *x, tn_eval *e, uint32_t i)
{
	uint32_t tensor = x->results[i].tensor;
	uint64_t bytes = tn_eval_bytes(e, tensor);
	void *data = tn_values_new(tn_eval_data(e, tensor), bytes);
	tern_dtype dtype = tn_ox_dtype_of(x, tensor);
	bool symbols = data && any_symbols(x) && dtype == TERN_I64 && holds_symbol(data, bytes);
	tern_shape shape = *tn_ox_shape_of(x, tensor);

	return tn_ox_out_known(x, i, dtype, &shape, data, symbols);
}

tern_status tn_ox_charge(tn_ox *x, uint64_t bytes)
{
	if (bytes > TN_OX_FOLD_MAX - x->folded)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "constants would take more than %" PRIu64 " MiB",
				  TN_OX_FOLD_MAX >> 20);
	x->folded += bytes;
	return TERN_OK;
}

/* Work and memory of folding are bounded over the whole import, whatever the file asks for. */
static tern_status within_bounds(tn_ox *x)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < x->graph->n_tensors; i++) {
		uint64_t bytes;

		TN_TRY(tn_shape_bytes(&x->graph->tensors[i].shape, x->graph->tensors[i].dtype, &bytes));
		TN_TRY(tn_ox_charge(x, bytes));
		sum += bytes;
	}
	if (heavy(x->op->op) && sum > HEAVY_MAX)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it is not folded: too much work");
	return TERN_OK;
}

static tern_status evaluate(tn_ox *x)
{
	tn_eval_params params = {.backend = TN_BACKEND_PLAIN, .threads = 1};
	uint32_t *outs = calloc(x->node->n_output + 1, sizeof(*outs));
	tn_eval *e = NULL;
	tern_status st = outs ? within_bounds(x) : tn_fail(TERN_E_NOMEM, "no memory to fold a node");

	for (uint32_t i = 0; i < x->node->n_output && st == TERN_OK; i++) {
		if (x->results[i].tensor != TN_NONE)
			outs[params.n_outs++] = x->results[i].tensor;
	}
	params.outs = outs;
	if (st == TERN_OK && params.n_outs > 0) {
		st = tn_eval_create(x->graph, &params, &e);
		if (st == TERN_OK)
			st = tn_eval_run(e);
		for (uint32_t i = 0; i < x->node->n_output && st == TERN_OK; i++) {
			if (x->results[i].tensor != TN_NONE)
				st = take(x, e, i);
		}
	}
	tn_eval_destroy(e);
	free(outs);
	return st;
}

tern_status tn_ox_fold(tn_ox *x)
{
	tern_graph *scratch = NULL;
	tern_status st = tern_graph_create("fold", &scratch);

	if (st != TERN_OK)
		return st;
	x->graph = scratch;
	x->folding = true;
	x->made = 0;
	st = x->op->handler(x);
	if (st == TERN_OK)
		st = evaluate(x);
	x->graph = x->model;
	x->folding = false;
	x->made = 0;
	for (uint32_t i = 0; i < x->node->n_input; i++) {
		if (x->in[i] != TN_NONE)
			x->values[x->in[i]].scratch = TN_NONE;
	}
	for (uint32_t i = 0; i < x->node->n_output && st != TERN_OK; i++)
		x->results[i].tensor = TN_NONE;
	tern_graph_destroy(scratch);
	return st;
}
