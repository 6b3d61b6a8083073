/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape and type inference: the dispatch over the op table, what all rules share, and the rules of sources,
 * sends and updates. The other rules are in infer_elem.c, infer_reduce.c, infer_move.c, infer_index.c and
 * infer_nn.c.
 *
 * Errors name the node, the shapes and what would fit. Thread story: pure functions.
 * Tests: tests/unit/graph/ir_test.c, ops_test.c.
 */
#include "graph/infer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

tern_status tn_misfit(const tn_infer *x, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return tn_fail(TERN_E_SHAPE, "%s '%s': %s", tn_op_table[x->node->op].name, x->node->name, text);
}

const char *tn_tensor_text(const tn_infer *x, uint32_t i, char *buf, size_t size)
{
	const tn_tensor *t = tn_infer_in(x, i);
	char shape[TN_SHAPE_TEXT_MAX];

	snprintf(buf, size, "'%s' %s%s", t->name, tern_dtype_name(t->dtype),
		 tn_shape_text(x->graph, &t->shape, shape, sizeof(shape)));
	return buf;
}

/* "f32", "f32, f64 or i32" */
static const char *set_text(uint32_t dtypes, char *buf, size_t size)
{
	size_t at = 0;

	buf[0] = 0;
	for (uint32_t d = 0; d < 32 && at < size; d++) {
		uint32_t above = d < 31 ? dtypes >> (d + 1) : 0;

		if (!(dtypes >> d & 1))
			continue;
		at += (size_t)snprintf(buf + at, size - at, "%s%s",
				       at == 0 ? ""
				       : above ? ", "
					       : " or ",
				       tern_dtype_name((tern_dtype)d));
	}
	return buf;
}

tern_status tn_want(const tn_infer *x, uint32_t first, uint32_t n, uint32_t dtypes)
{
	char a[TN_TENSOR_TEXT_MAX], set[96];

	for (uint32_t i = first; i < first + n; i++) {
		if (!(dtypes >> tn_infer_in(x, i)->dtype & 1)) {
			return tn_misfit(x, "input %u must be %s, but is %s", i,
					 set_text(dtypes, set, sizeof(set)),
					 tn_tensor_text(x, i, a, sizeof(a)));
		}
	}
	return TERN_OK;
}

tern_status tn_want_one_type(const tn_infer *x, uint32_t i, uint32_t k)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];

	if (tn_infer_in(x, i)->dtype == tn_infer_in(x, k)->dtype)
		return TERN_OK;
	return tn_misfit(x, "%s and %s must have the same type", tn_tensor_text(x, i, a, sizeof(a)),
			 tn_tensor_text(x, k, b, sizeof(b)));
}

tern_status tn_want_same(const tn_infer *x, uint32_t i, uint32_t k)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];

	if (tn_shape_equal(&tn_infer_in(x, i)->shape, &tn_infer_in(x, k)->shape) &&
	    tn_infer_in(x, i)->dtype == tn_infer_in(x, k)->dtype)
		return TERN_OK;
	return tn_misfit(x, "%s and %s must have the same type and shape", tn_tensor_text(x, i, a, sizeof(a)),
			 tn_tensor_text(x, k, b, sizeof(b)));
}

tern_status tn_yields(tn_infer *x, uint32_t i)
{
	x->dtype[0] = tn_infer_in(x, i)->dtype;
	x->shape[0] = tn_infer_in(x, i)->shape;
	return TERN_OK;
}

tern_status tn_infer_shape_attr(const tn_infer *x, tern_shape *shape)
{
	const tn_attr *a = tn_node_attr(x->node, TN_ATTR_SHAPE);

	TN_ASSERT(a != NULL); /* required by the op table */
	if (a->u.ints.n > TERN_RANK_MAX)
		return tn_misfit(x, "a shape of rank %u is above %u", a->u.ints.n, TERN_RANK_MAX);
	*shape = (tern_shape){.rank = a->u.ints.n};
	for (uint32_t i = 0; i < shape->rank; i++) {
		uint64_t d = (uint64_t)a->u.ints.v[i];

		if (tn_dim_symbolic(d) ? tn_dim_symbol(d) >= x->graph->n_symbols : d >> 48 != 0)
			return tn_misfit(x, "dim %u of the shape is no size: %lld", i, (long long)d);
		shape->dims[i] = d;
	}
	return TERN_OK;
}

tern_status tn_infer_axis(const tn_infer *x, int64_t dflt, uint32_t rank, uint32_t *axis)
{
	int64_t given = tn_node_int(x->node, TN_ATTR_AXIS, dflt);

	if (given < -(int64_t)rank || given >= (int64_t)rank) {
		return tn_fail(TERN_E_INVALID, "%s '%s': axis %lld is out of range for rank %u",
			       tn_op_table[x->node->op].name, x->node->name, (long long)given, rank);
	}
	*axis = (uint32_t)(given < 0 ? given + rank : given);
	return TERN_OK;
}

uint32_t tn_node_axis(const tn_node *node, int64_t dflt, uint32_t rank)
{
	int64_t given = tn_node_int(node, TN_ATTR_AXIS, dflt);

	given = given < 0 ? given + rank : given;
	TN_ASSERT(given >= 0 && given < (int64_t)rank);
	return (uint32_t)given;
}

bool tn_shape_broadcast(const tern_shape *a, const tern_shape *b, tern_shape *out)
{
	tern_shape s = {.rank = a->rank > b->rank ? a->rank : b->rank};

	for (uint32_t i = 0; i < s.rank; i++) { /* from the last dim */
		uint64_t p = i < a->rank ? a->dims[a->rank - 1 - i] : 1;
		uint64_t q = i < b->rank ? b->dims[b->rank - 1 - i] : 1;

		if (p != q && p != 1 && q != 1)
			return false;
		s.dims[s.rank - 1 - i] = p == 1 ? q : p;
	}
	*out = s;
	return true;
}

/* ---- sources: the caller of tn_graph_add has filled in dtype and shape ---- */

tern_status tn_infer_source(tn_infer *x)
{
	const tn_node *n = x->node;
	char shape[TN_SHAPE_TEXT_MAX];
	uint64_t bytes;

	if (tern_dtype_bytes(x->dtype[0]) == 0)
		return tn_misfit(x, "%d is no dtype", (int)x->dtype[0]);
	if (x->shape[0].rank > TERN_RANK_MAX)
		return tn_misfit(x, "rank %u is above %u", x->shape[0].rank, TERN_RANK_MAX);
	for (uint32_t i = 0; i < x->shape[0].rank; i++) {
		if (tn_dim_symbolic(x->shape[0].dims[i]) &&
		    tn_dim_symbol(x->shape[0].dims[i]) >= x->graph->n_symbols)
			return tn_misfit(x, "dim %u is a symbol that this graph does not have", i);
	}
	if (n->op == TN_OP_PLACEHOLDER || tn_op_flags(n->op) & TN_OPF_RECV) {
		if (tn_shape_symbolic(&x->shape[0]))
			return TERN_OK;
	} else if (tn_shape_symbolic(&x->shape[0])) {
		return tn_misfit(x, "its shape %s has a symbolic dim; give its size",
				 tn_shape_text(x->graph, &x->shape[0], shape, sizeof(shape)));
	}
	if (n->op == TN_OP_VARIABLE && x->dtype[0] != TERN_F32)
		return tn_misfit(x, "variables are f32, not %s", tern_dtype_name(x->dtype[0]));
	return tn_shape_bytes(&x->shape[0], x->dtype[0], &bytes);
}

tern_status tn_infer_send(tn_infer *x)
{
	(void)x;
	return TERN_OK;
}

/*
 * (variable, slots..., [clip scale,] gradient...): the variable and its slots are variables, all of one shape
 * but for Adam's counter and the scale, which are scalars.
 */
tern_status tn_infer_apply(tn_infer *x)
{
	uint32_t slots = tn_apply_slots(x->node);
	bool clipped = tn_node_int(x->node, TN_ATTR_CLIPPED, 0) != 0;
	char a[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want_f32(x, 0, x->node->n_in);

	if (st == TERN_OK && x->node->n_in < slots + clipped + 1)
		return tn_misfit(x, "needs a gradient after its first %u inputs", slots + clipped);
	for (uint32_t i = 0; i < x->node->n_in && st == TERN_OK; i++) {
		uint32_t root = tn_graph_root(x->graph, x->node->in[i]);
		bool scalar = (clipped && i == slots) || (x->node->op == TN_OP_APPLY_ADAM && i == 3);

		if (i < slots && x->graph->nodes[x->graph->tensors[root].node].op != TN_OP_VARIABLE)
			return tn_misfit(x, "input %u must be a Variable, not %s", i,
					 tn_tensor_text(x, i, a, sizeof(a)));
		if (scalar && tn_infer_in(x, i)->shape.rank != 0)
			return tn_misfit(x, "input %u must be a scalar, not %s", i,
					 tn_tensor_text(x, i, a, sizeof(a)));
		if (!scalar)
			st = tn_want_same(x, 0, i);
	}
	return st == TERN_OK ? tn_yields(x, 0) : st;
}

/* Any tensors or scalars of f32 -> scalar. */
tern_status tn_infer_norm(tn_infer *x)
{
	x->dtype[0] = TERN_F32;
	x->shape[0] = (tern_shape){0};
	return tn_want_f32(x, 0, x->node->n_in);
}

/* ---- the table ---- */

typedef tern_status (*infer_fn)(tn_infer *x);

static const infer_fn infer_table[TN_OP_COUNT] = {
#define INFER_ENTRY(op, name, lo, hi, outs, flags, attrs, required, rule, kern) \
	[TN_OP_##op] = tn_infer_##rule,
	TN_OP_MAP(INFER_ENTRY)
#undef INFER_ENTRY
};

/* No rule has to think of sizes: what is too large is refused here. */
static tern_status check_sizes(const tn_infer *x)
{
	uint64_t bytes;
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < tn_op_table[x->node->op].outs && st == TERN_OK; i++) {
		TN_ASSERT(x->shape[i].rank <= TERN_RANK_MAX);
		if (!tn_shape_symbolic(&x->shape[i]))
			st = tn_shape_bytes(&x->shape[i], x->dtype[i], &bytes);
	}
	return st;
}

tern_status tn_infer_node(tn_infer *x)
{
	tern_status st;

	TN_ASSERT(x->node->op < TN_OP_COUNT);
	st = infer_table[x->node->op](x);
	return st == TERN_OK ? check_sizes(x) : st;
}
