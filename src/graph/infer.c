/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape and type inference: for each op one function that checks its inputs and says what its outputs are.
 * Symbolic dims are equal only to themselves, so whatever is accepted here fits for every binding.
 *
 * Errors name the node, the shapes and what would fit. Thread story: pure functions.
 * Tests: tests/unit/graph/ir_test.c.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/ir.h"

typedef tern_status (*infer_fn)(tn_infer *x);

static const tn_tensor *input(const tn_infer *x, uint32_t i)
{
	return &x->graph->tensors[x->node->in[i]];
}

__attribute__((format(printf, 2, 3))) static tern_status misfit(const tn_infer *x, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return tn_fail(TERN_E_SHAPE, "%s '%s': %s", tn_op_table[x->node->op].name, x->node->name, text);
}

/* "'fc1/w' f32[784,256]" */
static const char *tensor_text(const tn_infer *x, uint32_t i, char *buf, size_t size)
{
	const tn_tensor *t = input(x, i);
	char shape[TN_SHAPE_TEXT_MAX];

	snprintf(buf, size, "'%s' %s%s", t->name, tern_dtype_name(t->dtype),
		 tn_shape_text(x->graph, &t->shape, shape, sizeof(shape)));
	return buf;
}

#define TEXT_MAX (TN_NAME_MAX + TN_SHAPE_TEXT_MAX + 16)

/* Every input is f32: what the kernels of today compute in. */
static tern_status want_f32(const tn_infer *x, uint32_t first, uint32_t n)
{
	char a[TEXT_MAX];

	for (uint32_t i = first; i < first + n; i++) {
		if (input(x, i)->dtype != TERN_F32)
			return misfit(x, "input %u must be f32, but is %s", i,
				      tensor_text(x, i, a, sizeof(a)));
	}
	return TERN_OK;
}

static tern_status same_shapes(const tn_infer *x, uint32_t i, uint32_t k)
{
	char a[TEXT_MAX], b[TEXT_MAX];

	if (tn_shape_equal(&input(x, i)->shape, &input(x, k)->shape) &&
	    input(x, i)->dtype == input(x, k)->dtype)
		return TERN_OK;
	return misfit(x, "%s and %s must have the same type and shape", tensor_text(x, i, a, sizeof(a)),
		      tensor_text(x, k, b, sizeof(b)));
}

static tern_status yields_input(tn_infer *x, uint32_t i)
{
	x->dtype[0] = input(x, i)->dtype;
	x->shape[0] = input(x, i)->shape;
	return TERN_OK;
}

/* ---- sources: the caller of tn_graph_add has filled in dtype and shape ---- */

static tern_status infer_source(tn_infer *x)
{
	const tn_node *n = x->node;
	char shape[TN_SHAPE_TEXT_MAX];
	uint64_t bytes;

	if (tern_dtype_bytes(x->dtype[0]) == 0)
		return misfit(x, "%d is no dtype", (int)x->dtype[0]);
	if (x->shape[0].rank > TERN_RANK_MAX)
		return misfit(x, "rank %u is above %u", x->shape[0].rank, TERN_RANK_MAX);
	for (uint32_t i = 0; i < x->shape[0].rank; i++) {
		if (tn_dim_symbolic(x->shape[0].dims[i]) &&
		    tn_dim_symbol(x->shape[0].dims[i]) >= x->graph->n_symbols)
			return misfit(x, "dim %u is a symbol that this graph does not have", i);
	}
	if (n->op == TN_OP_PLACEHOLDER || n->op == TN_OP_RECV || n->op == TN_OP_RDMA_RECV) {
		if (tn_shape_symbolic(&x->shape[0]))
			return TERN_OK;
	} else if (tn_shape_symbolic(&x->shape[0])) {
		return misfit(x, "its shape %s has a symbolic dim; give its size",
			      tn_shape_text(x->graph, &x->shape[0], shape, sizeof(shape)));
	}
	if (n->op == TN_OP_VARIABLE && x->dtype[0] != TERN_F32)
		return misfit(x, "variables are f32, not %s", tern_dtype_name(x->dtype[0]));
	return tn_shape_bytes(&x->shape[0], x->dtype[0], &bytes);
}

/* ---- compute ---- */

static tern_status infer_matmul(tn_infer *x)
{
	const tern_shape *a = &input(x, 0)->shape, *b = &input(x, 1)->shape;
	bool ta = tn_node_int(x->node, TN_ATTR_TRANS_A, 0) != 0;
	bool tb = tn_node_int(x->node, TN_ATTR_TRANS_B, 0) != 0;
	char ta_text[TEXT_MAX], tb_text[TEXT_MAX];
	tern_status st = want_f32(x, 0, 2);

	if (st != TERN_OK)
		return st;
	tensor_text(x, 0, ta_text, sizeof(ta_text));
	tensor_text(x, 1, tb_text, sizeof(tb_text));
	if (a->rank != 2 || b->rank != 2)
		return misfit(x, "needs two matrices, not %s and %s", ta_text, tb_text);
	if (a->dims[ta ? 0 : 1] != b->dims[tb ? 1 : 0]) {
		return misfit(x, "inner dims of %s%s and %s%s differ", ta_text, ta ? " (transposed)" : "",
			      tb_text, tb ? " (transposed)" : "");
	}
	x->dtype[0] = TERN_F32;
	x->shape[0] = (tern_shape){.rank = 2, .dims = {a->dims[ta ? 1 : 0], b->dims[tb ? 0 : 1]}};
	return TERN_OK;
}

static tern_status infer_bias_add(tn_infer *x)
{
	const tern_shape *a = &input(x, 0)->shape, *b = &input(x, 1)->shape;
	char ta[TEXT_MAX], tb[TEXT_MAX];
	tern_status st = want_f32(x, 0, 2);

	if (st != TERN_OK)
		return st;
	if (a->rank < 1 || b->rank != 1 || a->dims[a->rank - 1] != b->dims[0]) {
		return misfit(x, "the bias %s must be a vector as long as the last dim of %s",
			      tensor_text(x, 1, tb, sizeof(tb)), tensor_text(x, 0, ta, sizeof(ta)));
	}
	return yields_input(x, 0);
}

static tern_status infer_unary(tn_infer *x)
{
	tern_status st = want_f32(x, 0, 1);

	return st == TERN_OK ? yields_input(x, 0) : st;
}

static tern_status infer_softmax(tn_infer *x)
{
	char a[TEXT_MAX];

	if (input(x, 0)->shape.rank < 1)
		return misfit(x, "needs at least one dim, not %s", tensor_text(x, 0, a, sizeof(a)));
	return infer_unary(x);
}

/* All inputs have one type and shape: Add, AddN, Mul, ReluGrad, SoftmaxGrad. */
static tern_status infer_elementwise(tn_infer *x)
{
	tern_status st = want_f32(x, 0, x->node->n_in);

	for (uint32_t i = 1; i < x->node->n_in && st == TERN_OK; i++)
		st = same_shapes(x, 0, i);
	return st == TERN_OK ? yields_input(x, 0) : st;
}

/* (B, C) with integer labels (B): inputs number l and number y. */
static tern_status check_labels(const tn_infer *x, uint32_t l, uint32_t y)
{
	const tern_shape *a = &input(x, l)->shape, *b = &input(x, y)->shape;
	tern_dtype type = input(x, y)->dtype;
	char ta[TEXT_MAX], tb[TEXT_MAX];

	if (a->rank == 2 && b->rank == 1 && a->dims[0] == b->dims[0] && (type == TERN_I32 || type == TERN_U8))
		return want_f32(x, l, 1);
	return misfit(x, "needs rows (B,C) f32 and labels (B) i32 or u8, not %s and %s",
		      tensor_text(x, l, ta, sizeof(ta)), tensor_text(x, y, tb, sizeof(tb)));
}

static tern_status infer_softmax_xent(tn_infer *x)
{
	tern_status st = check_labels(x, 0, 1);

	x->dtype[0] = TERN_F32;
	x->shape[0] = (tern_shape){0};
	x->dtype[1] = TERN_I32;
	x->shape[1] = (tern_shape){0};
	x->dtype[2] = TERN_F32;
	x->shape[2] = input(x, 0)->shape;
	return st;
}

static tern_status infer_softmax_xent_grad(tn_infer *x)
{
	char a[TEXT_MAX];

	if (input(x, 0)->shape.rank != 0 || input(x, 0)->dtype != TERN_F32)
		return misfit(x, "dloss must be a scalar f32, not %s", tensor_text(x, 0, a, sizeof(a)));
	yields_input(x, 1);
	return check_labels(x, 1, 2);
}

tern_status tn_reduce_mask(const tn_node *node, uint32_t rank, uint32_t *mask)
{
	const tn_attr *a = tn_node_attr(node, TN_ATTR_AXES);

	*mask = 0;
	if (!a || a->u.ints.n == 0) {
		*mask = (1u << rank) - 1;
		return TERN_OK;
	}
	for (uint32_t i = 0; i < a->u.ints.n; i++) {
		int64_t axis = a->u.ints.v[i] < 0 ? a->u.ints.v[i] + rank : a->u.ints.v[i];

		if (axis < 0 || axis >= (int64_t)rank || (*mask >> axis & 1)) {
			return tn_fail(TERN_E_INVALID,
				       "%s '%s': axis %lld is out of range or given twice for rank %u",
				       tn_op_table[node->op].name, node->name, (long long)a->u.ints.v[i],
				       rank);
		}
		*mask |= 1u << axis;
	}
	return TERN_OK;
}

static void reduced_shape(const tern_shape *in, uint32_t mask, bool keep, tern_shape *out)
{
	*out = (tern_shape){0};
	for (uint32_t i = 0; i < in->rank; i++) {
		if (!(mask >> i & 1))
			out->dims[out->rank++] = in->dims[i];
		else if (keep)
			out->dims[out->rank++] = 1;
	}
}

static tern_status infer_reduce(tn_infer *x)
{
	const tern_shape *in = &input(x, 0)->shape;
	uint32_t mask;
	tern_status st = want_f32(x, 0, 1);

	if (st == TERN_OK)
		st = tn_reduce_mask(x->node, in->rank, &mask);
	if (st != TERN_OK)
		return st;
	x->dtype[0] = TERN_F32;
	reduced_shape(in, mask, tn_node_int(x->node, TN_ATTR_KEEP_DIMS, 0) != 0, &x->shape[0]);
	return TERN_OK;
}

/* (small, like): the reverse of a reduction of `like`. */
static tern_status infer_expand_like(tn_infer *x)
{
	char a[TEXT_MAX], b[TEXT_MAX];
	tern_shape want;
	uint32_t mask;
	tern_status st = want_f32(x, 0, 2);

	if (st == TERN_OK)
		st = tn_reduce_mask(x->node, input(x, 1)->shape.rank, &mask);
	if (st != TERN_OK)
		return st;
	reduced_shape(&input(x, 1)->shape, mask, tn_node_int(x->node, TN_ATTR_KEEP_DIMS, 0) != 0, &want);
	if (!tn_shape_equal(&want, &input(x, 0)->shape)) {
		return misfit(x, "%s is not a reduction of %s", tensor_text(x, 0, a, sizeof(a)),
			      tensor_text(x, 1, b, sizeof(b)));
	}
	return yields_input(x, 1);
}

static tern_status infer_identity(tn_infer *x)
{
	return yields_input(x, 0);
}

/* The product of the known dims and, for each symbol, how often it occurs: equal for views of the same data. */
static bool same_elements(const tern_shape *a, const tern_shape *b)
{
	uint64_t n[2] = {1, 1};
	uint32_t count[2][TN_SYMBOLS_MAX] = {{0}};
	const tern_shape *s[2] = {a, b};

	for (uint32_t k = 0; k < 2; k++) {
		for (uint32_t i = 0; i < s[k]->rank; i++) {
			if (tn_dim_symbolic(s[k]->dims[i]))
				count[k][tn_dim_symbol(s[k]->dims[i])]++;
			else if (__builtin_mul_overflow(n[k], s[k]->dims[i], &n[k]))
				return false;
		}
	}
	return n[0] == n[1] && memcmp(count[0], count[1], sizeof(count[0])) == 0;
}

static tern_status infer_reshape(tn_infer *x)
{
	const tn_attr *a = tn_node_attr(x->node, TN_ATTR_SHAPE);
	char from[TEXT_MAX], to[TN_SHAPE_TEXT_MAX];
	tern_shape want = {.rank = a->u.ints.n};

	for (uint32_t i = 0; i < want.rank; i++)
		want.dims[i] = (uint64_t)a->u.ints.v[i];
	if (!same_elements(&input(x, 0)->shape, &want)) {
		return misfit(x, "%s cannot become %s: the number of elements differs",
			      tensor_text(x, 0, from, sizeof(from)),
			      tn_shape_text(x->graph, &want, to, sizeof(to)));
	}
	x->dtype[0] = input(x, 0)->dtype;
	x->shape[0] = want;
	return TERN_OK;
}

/*
 * (variable, slots..., [clip scale,] gradient...): the variable and its slots are variables, all of one shape
 * but for Adam's counter and the scale, which are scalars.
 */
static tern_status infer_apply(tn_infer *x)
{
	uint32_t slots = tn_apply_slots(x->node);
	bool clipped = tn_node_int(x->node, TN_ATTR_CLIPPED, 0) != 0;
	char a[TEXT_MAX];
	tern_status st = want_f32(x, 0, x->node->n_in);

	if (st == TERN_OK && x->node->n_in < slots + clipped + 1)
		return misfit(x, "needs a gradient after its first %u inputs", slots + clipped);
	for (uint32_t i = 0; i < x->node->n_in && st == TERN_OK; i++) {
		uint32_t root = tn_graph_root(x->graph, x->node->in[i]);
		bool scalar = (clipped && i == slots) || (x->node->op == TN_OP_APPLY_ADAM && i == 3);

		if (i < slots && x->graph->nodes[x->graph->tensors[root].node].op != TN_OP_VARIABLE)
			return misfit(x, "input %u must be a Variable, not %s", i,
				      tensor_text(x, i, a, sizeof(a)));
		if (scalar && input(x, i)->shape.rank != 0)
			return misfit(x, "input %u must be a scalar, not %s", i,
				      tensor_text(x, i, a, sizeof(a)));
		if (!scalar)
			st = same_shapes(x, 0, i);
	}
	return st == TERN_OK ? yields_input(x, 0) : st;
}

/* Any tensors or scalars of f32 -> scalar. */
static tern_status infer_norm(tn_infer *x)
{
	x->dtype[0] = TERN_F32;
	x->shape[0] = (tern_shape){0};
	return want_f32(x, 0, x->node->n_in);
}

static tern_status infer_send(tn_infer *x)
{
	(void)x;
	return TERN_OK;
}

static const infer_fn infer_table[TN_OP_COUNT] = {
	[TN_OP_PLACEHOLDER] = infer_source,
	[TN_OP_VARIABLE] = infer_source,
	[TN_OP_CONSTANT] = infer_source,
	[TN_OP_MATMUL] = infer_matmul,
	[TN_OP_BIAS_ADD] = infer_bias_add,
	[TN_OP_RELU] = infer_unary,
	[TN_OP_RELU_GRAD] = infer_elementwise,
	[TN_OP_SOFTMAX] = infer_softmax,
	[TN_OP_SOFTMAX_GRAD] = infer_elementwise,
	[TN_OP_SOFTMAX_XENT] = infer_softmax_xent,
	[TN_OP_SOFTMAX_XENT_GRAD] = infer_softmax_xent_grad,
	[TN_OP_REDUCE_SUM] = infer_reduce,
	[TN_OP_REDUCE_MEAN] = infer_reduce,
	[TN_OP_EXPAND_LIKE] = infer_expand_like,
	[TN_OP_ADD] = infer_elementwise,
	[TN_OP_ADD_N] = infer_elementwise,
	[TN_OP_MUL] = infer_elementwise,
	[TN_OP_SCALE] = infer_unary,
	[TN_OP_IDENTITY] = infer_identity,
	[TN_OP_RESHAPE] = infer_reshape,
	[TN_OP_APPLY_SGD] = infer_apply,
	[TN_OP_APPLY_MOMENTUM] = infer_apply,
	[TN_OP_APPLY_ADAGRAD] = infer_apply,
	[TN_OP_APPLY_ADAM] = infer_apply,
	[TN_OP_APPLY_RMSPROP] = infer_apply,
	[TN_OP_APPLY_EMA] = infer_apply,
	[TN_OP_GRAD_NORM] = infer_norm,
	[TN_OP_CLIP_SCALE] = infer_norm,
	[TN_OP_SEND] = infer_send,
	[TN_OP_RECV] = infer_source,
	[TN_OP_RDMA_SEND] = infer_send,
	[TN_OP_RDMA_RECV] = infer_source,
};

tern_status tn_infer_node(tn_infer *x)
{
	TN_ASSERT(x->node->op < TN_OP_COUNT);
	TN_ASSERT(infer_table[x->node->op] != NULL);
	return infer_table[x->node->op](x);
}
