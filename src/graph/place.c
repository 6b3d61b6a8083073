/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of tensors by rows: what Part and Join yield, and where a tensor lies in the memory of its root. A
 * part is a view; a Join is a view too where its inputs were received one behind the other (JoinRecv).
 *
 * A micro-batch's dim is the symbol "batch/4": a fourth of "batch".
 *
 * Thread story: pure functions. Tests: tests/unit/graph/part_test.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/infer.h"

/* ---- symbols of micro-batches ---- */

bool tn_symbol_size(const char *symbol, const char *name, uint64_t size, uint64_t *bound)
{
	size_t n = strlen(name);
	uint64_t parts;
	char *end;

	if (strncmp(symbol, name, n) != 0)
		return false;
	*bound = size;
	if (symbol[n] == 0)
		return true;
	if (symbol[n] != '/')
		return false;
	parts = strtoull(symbol + n + 1, &end, 10);
	if (*end || parts == 0 || size % parts)
		return false;
	*bound = size / parts;
	return true;
}

/* The symbol of a fraction of a dim, which must be there. */
static tern_status fraction(const tn_infer *x, uint64_t dim, uint64_t parts, uint64_t *out)
{
	char name[TN_NAME_MAX + 32];
	uint32_t symbol;

	snprintf(name, sizeof(name), "%s/%" PRIu64, x->graph->symbols[tn_dim_symbol(dim)], parts);
	symbol = tn_graph_symbol_find(x->graph, name);
	if (symbol == TN_NONE)
		return tn_fail(TERN_E_SHAPE, "%s '%s': the graph has no symbol '%s'",
			       tn_op_table[x->node->op].name, x->node->name, name);
	*out = UINT64_MAX - symbol;
	return TERN_OK;
}

/* The dim of which `dim` is the n-th part. */
static tern_status whole(const tn_infer *x, uint64_t dim, uint32_t n, uint64_t *out)
{
	for (uint32_t i = 0; i < x->graph->n_symbols; i++) {
		uint64_t bound;

		if (tn_symbol_size(x->graph->symbols[tn_dim_symbol(dim)], x->graph->symbols[i], n, &bound) &&
		    bound == 1 && i != tn_dim_symbol(dim)) {
			*out = UINT64_MAX - i;
			return TERN_OK;
		}
	}
	return tn_fail(TERN_E_SHAPE, "%s '%s': %u parts of '%s' are no dim of the graph",
		       tn_op_table[x->node->op].name, x->node->name, n,
		       x->graph->symbols[tn_dim_symbol(dim)]);
}

/* ---- shapes ---- */

tern_status tn_infer_part(tn_infer *x)
{
	const tn_tensor *in = &x->graph->tensors[x->node->in[0]];
	int64_t part = tn_node_int(x->node, TN_ATTR_PART, 0), parts = tn_node_int(x->node, TN_ATTR_PARTS, 0);
	uint32_t axis = tn_part_axis(&in->shape);
	uint64_t rows = in->shape.rank ? in->shape.dims[axis] : 0;

	if (in->shape.rank == 0 || parts < 1 || part < 0 || part >= parts)
		return tn_fail(TERN_E_SHAPE, "Part '%s': part %" PRId64 " of %" PRId64 " of '%s'",
			       x->node->name, part, parts, in->name);
	x->dtype[0] = in->dtype;
	x->shape[0] = in->shape;
	if (tn_dim_symbolic(rows))
		return fraction(x, rows, (uint64_t)parts, &x->shape[0].dims[axis]);
	x->shape[0].dims[axis] = tn_part_begin(rows, (uint64_t)part + 1, (uint64_t)parts) -
				 tn_part_begin(rows, (uint64_t)part, (uint64_t)parts);
	return TERN_OK;
}

tern_status tn_infer_join(tn_infer *x)
{
	const tn_tensor *first = &x->graph->tensors[x->node->in[0]];
	uint32_t axis = (uint32_t)tn_node_int(x->node, TN_ATTR_AXIS, 0);
	uint64_t rows = 0;

	for (uint32_t i = 0; i < x->node->n_in; i++) {
		const tn_tensor *in = &x->graph->tensors[x->node->in[i]];
		bool fits = in->dtype == first->dtype && in->shape.rank == first->shape.rank &&
			    axis < in->shape.rank &&
			    tn_dim_symbolic(in->shape.dims[axis]) == tn_dim_symbolic(first->shape.dims[axis]);

		/* before the axis there are only 1s: the parts lie one behind the other */
		for (uint32_t k = 0; k < in->shape.rank && fits; k++)
			fits = k < axis ? in->shape.dims[k] == 1
					: k == axis || in->shape.dims[k] == first->shape.dims[k];
		if (fits && tn_dim_symbolic(in->shape.dims[axis]))
			fits = in->shape.dims[axis] == first->shape.dims[axis];
		if (!fits)
			return tn_fail(TERN_E_SHAPE, "%s '%s': '%s' and '%s' are no rows of one tensor",
				       tn_op_table[x->node->op].name, x->node->name, first->name, in->name);
		rows += in->shape.dims[axis];
	}
	x->dtype[0] = first->dtype;
	x->shape[0] = first->shape;
	if (tn_dim_symbolic(first->shape.dims[axis]))
		return whole(x, first->shape.dims[axis], x->node->n_in, &x->shape[0].dims[axis]);
	x->shape[0].dims[axis] = rows;
	return TERN_OK;
}

tern_status tn_infer_accumulate(tn_infer *x)
{
	TN_TRY(tn_want(x, 0, 2, TN_T(F32) | TN_T(I32)));
	TN_TRY(tn_want_same(x, 0, 1));
	return tn_yields(x, 0);
}

/* ---- memory ---- */

uint64_t tn_part_offset(const tn_node *part, const tern_shape *in, tern_dtype dtype)
{
	uint32_t axis = tn_part_axis(in);
	uint64_t at = tn_part_begin(in->dims[axis], (uint64_t)tn_node_int(part, TN_ATTR_PART, 0),
				    (uint64_t)tn_node_int(part, TN_ATTR_PARTS, 1));

	TN_ASSERT(part->op == TN_OP_PART && !tn_shape_symbolic(in));
	for (uint32_t i = axis + 1; i < in->rank; i++)
		at *= in->dims[i];
	return at * tern_dtype_bytes(dtype);
}
