/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules of ops on two tensors whose shapes broadcast, and of products of matrices. Where an input
 * was broadcast its gradient is summed back to its shape. See grad.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c.
 */
#include "base/fail.h"
#include "graph/grad.h"

tern_status tn_grad_rule_sum(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	TN_TRY(tn_grad_give_sum(cx, n, 0, dout[0]));
	return tn_grad_give_sum(cx, n, 1, dout[0]);
}

tern_status tn_grad_rule_sub(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	TN_TRY(tn_grad_give_sum(cx, n, 0, dout[0]));
	return tn_grad_emit_sum(cx, n, 1, TN_OP_NEG, dout, 1, NULL, 0);
}

tern_status tn_grad_rule_mul(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	TN_TRY(tn_grad_emit_sum(cx, n, 0, TN_OP_MUL, (uint32_t[]){dout[0], n->in[1]}, 2, NULL, 0));
	return tn_grad_emit_sum(cx, n, 1, TN_OP_MUL, (uint32_t[]){dout[0], n->in[0]}, 2, NULL, 0);
}

/* dA = dY / B;  dB = -dY Y / B */
tern_status tn_grad_rule_div(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t t;

	TN_TRY(tn_grad_emit_sum(cx, n, 0, TN_OP_DIV, (uint32_t[]){dout[0], n->in[1]}, 2, NULL, 0));
	if (!tn_grad_wanted(cx, n, 1))
		return TERN_OK;
	TN_TRY(tn_grad_node(cx, n, TN_OP_MUL, (uint32_t[]){dout[0], n->out[0]}, 2, NULL, 0, &t));
	TN_TRY(tn_grad_node(cx, n, TN_OP_DIV, (uint32_t[]){t, n->in[1]}, 2, NULL, 0, &t));
	return tn_grad_emit_sum(cx, n, 1, TN_OP_NEG, &t, 1, NULL, 0);
}

/* dA = dY B A^(B-1) */
static tern_status pow_base(tn_grad *cx, const tn_node *n, uint32_t dy)
{
	uint32_t one, t;

	if (!tn_grad_wanted(cx, n, 0))
		return TERN_OK;
	TN_TRY(tn_grad_constant(cx, n, 1.0f, &one));
	TN_TRY(tn_grad_node(cx, n, TN_OP_SUB, (uint32_t[]){n->in[1], one}, 2, NULL, 0, &t));
	TN_TRY(tn_grad_node(cx, n, TN_OP_POW, (uint32_t[]){n->in[0], t}, 2, NULL, 0, &t));
	TN_TRY(tn_grad_node(cx, n, TN_OP_MUL, (uint32_t[]){t, n->in[1]}, 2, NULL, 0, &t));
	return tn_grad_emit_sum(cx, n, 0, TN_OP_MUL, (uint32_t[]){dy, t}, 2, NULL, 0);
}

/* dB = dY Y log(A), and 0 where A is 0: there Y log(A) tends to 0 from above for every B > 0 */
static tern_status pow_exponent(tn_grad *cx, const tn_node *n, uint32_t dy)
{
	uint32_t zero, is_zero, t;

	if (!tn_grad_wanted(cx, n, 1))
		return TERN_OK;
	TN_TRY(tn_grad_constant(cx, n, 0.0f, &zero));
	TN_TRY(tn_grad_node(cx, n, TN_OP_EQUAL, (uint32_t[]){n->in[0], zero}, 2, NULL, 0, &is_zero));
	TN_TRY(tn_grad_node(cx, n, TN_OP_LOG, &n->in[0], 1, NULL, 0, &t));
	TN_TRY(tn_grad_node(cx, n, TN_OP_WHERE, (uint32_t[]){is_zero, zero, t}, 3, NULL, 0, &t));
	TN_TRY(tn_grad_node(cx, n, TN_OP_MUL, (uint32_t[]){t, n->out[0]}, 2, NULL, 0, &t));
	return tn_grad_emit_sum(cx, n, 1, TN_OP_MUL, (uint32_t[]){dy, t}, 2, NULL, 0);
}

tern_status tn_grad_rule_pow(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	TN_TRY(pow_base(cx, n, dout[0]));
	return pow_exponent(cx, n, dout[0]);
}

/* where(cond, dY, 0) or where(cond, 0, dY) */
static tern_status give_where(tn_grad *cx, const tn_node *n, uint32_t input, uint32_t cond, uint32_t dy,
			      bool if_true)
{
	uint32_t zero;

	if (!tn_grad_wanted(cx, n, input))
		return TERN_OK;
	TN_TRY(tn_grad_constant(cx, n, 0.0f, &zero));
	return tn_grad_emit_sum(cx, n, input, TN_OP_WHERE,
				(uint32_t[]){cond, if_true ? dy : zero, if_true ? zero : dy}, 3, NULL, 0);
}

/* Min, Max: to the operand that was taken, the first among equals. */
tern_status tn_grad_rule_extreme(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_op better = n->op == TN_OP_MINIMUM ? TN_OP_LESS_OR_EQUAL : TN_OP_GREATER_OR_EQUAL;
	uint32_t first;

	TN_TRY(tn_grad_node(cx, n, better, n->in, 2, NULL, 0, &first));
	TN_TRY(give_where(cx, n, 0, first, dout[0], true));
	return give_where(cx, n, 1, first, dout[0], false);
}

/* Y = X < 0 ? slope X : X */
tern_status tn_grad_rule_prelu(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t zero, below, t;

	TN_TRY(tn_grad_constant(cx, n, 0.0f, &zero));
	TN_TRY(tn_grad_node(cx, n, TN_OP_LESS, (uint32_t[]){n->in[0], zero}, 2, NULL, 0, &below));
	TN_TRY(tn_grad_node(cx, n, TN_OP_MUL, (uint32_t[]){dout[0], n->in[1]}, 2, NULL, 0, &t));
	TN_TRY(tn_grad_emit(cx, n, 0, TN_OP_WHERE, (uint32_t[]){below, t, dout[0]}, 3, NULL, 0));
	TN_TRY(tn_grad_node(cx, n, TN_OP_MUL, (uint32_t[]){dout[0], n->in[0]}, 2, NULL, 0, &t));
	return give_where(cx, n, 1, below, t, true);
}

tern_status tn_grad_rule_where(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	TN_TRY(give_where(cx, n, 1, n->in[0], dout[0], true));
	return give_where(cx, n, 2, n->in[0], dout[0], false);
}

/* ---- MatMul ---- */

/* A vector as the matrix that MatMul makes of it: a row on the left, a column on the right. */
static tern_status as_matrix(tn_grad *cx, const tn_node *n, uint32_t tensor, bool row, uint32_t *matrix)
{
	tern_shape s = cx->g->tensors[tensor].shape;
	tn_attr a;

	*matrix = tensor;
	if (s.rank != 1)
		return TERN_OK;
	s = row ? (tern_shape){.rank = 2, .dims = {1, s.dims[0]}}
		: (tern_shape){.rank = 2, .dims = {s.dims[0], 1}};
	a = tn_attr_shape(TN_ATTR_SHAPE, &s);
	return tn_grad_node(cx, n, TN_OP_RESHAPE, &tensor, 1, &a, 1, matrix);
}

/* dC with the dims that it lost to vectors. */
static tern_status as_product(tn_grad *cx, const tn_node *n, uint32_t dy, uint32_t *d)
{
	tern_shape s = cx->g->tensors[dy].shape;
	bool row = tn_grad_input(cx, n, 0)->shape.rank == 1,
	     column = tn_grad_input(cx, n, 1)->shape.rank == 1;
	tn_attr a;

	*d = dy;
	if (!row && !column)
		return TERN_OK;
	if (row) {
		if (!column) { /* (..., N) -> (..., 1, N) */
			s.dims[s.rank] = s.dims[s.rank - 1];
			s.dims[s.rank - 1] = 1;
		} else {
			s.dims[s.rank] = 1;
		}
		s.rank++;
	}
	if (column)
		s.dims[s.rank++] = 1;
	a = tn_attr_shape(TN_ATTR_SHAPE, &s);
	return tn_grad_node(cx, n, TN_OP_RESHAPE, &dy, 1, &a, 1, d);
}

/* The gradient of an operand as a matrix: summed over what was broadcast, then a vector again if it was one. */
static tern_status give_matrix(tn_grad *cx, const tn_node *n, uint32_t input, uint32_t grad, uint32_t matrix)
{
	const tern_shape *want = &tn_grad_input(cx, n, input)->shape;
	tern_shape s = cx->g->tensors[matrix].shape;
	tn_attr a = tn_attr_shape(TN_ATTR_SHAPE, want), to = tn_attr_shape(TN_ATTR_SHAPE, &s);

	if (want->rank > 1)
		return tn_grad_give_sum(cx, n, input, grad);
	if (!tn_shape_equal(&s, &cx->g->tensors[grad].shape))
		TN_TRY(tn_grad_node(cx, n, TN_OP_SUM_TO, (uint32_t[]){grad}, 1, &to, 1, &grad));
	return tn_grad_emit(cx, n, input, TN_OP_RESHAPE, &grad, 1, &a, 1);
}

static tern_status product(tn_grad *cx, const tn_node *n, uint32_t input, uint32_t x, uint32_t y, int64_t tx,
			   int64_t ty, uint32_t matrix)
{
	tn_attr attrs[2] = {tn_attr_int(TN_ATTR_TRANS_A, tx), tn_attr_int(TN_ATTR_TRANS_B, ty)};
	uint32_t grad;

	if (tn_grad_input(cx, n, input)->shape.rank == 2 && cx->g->tensors[x].shape.rank == 2 &&
	    cx->g->tensors[y].shape.rank == 2)
		return tn_grad_emit(cx, n, input, TN_OP_MATMUL, (uint32_t[]){x, y}, 2, attrs, 2);
	if (!tn_grad_wanted(cx, n, input))
		return TERN_OK;
	TN_TRY(tn_grad_node(cx, n, TN_OP_MATMUL, (uint32_t[]){x, y}, 2, attrs, 2, &grad));
	return give_matrix(cx, n, input, grad, matrix);
}

/*
 * C = op(A) op(B). dA = dC op(B)^T, or its transpose op(B) dC^T; dB = op(A)^T dC, or its transpose dC^T op(A).
 * The four cases keep the operands in place and move the transposes into attributes. B first: it is the
 * weights as a rule, whose gradient has a way to go. One B for all matrices of A: its gradient is a product
 * over all rows at once, not one for each matrix that is summed afterwards.
 */
tern_status tn_grad_rule_matmul(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	int64_t ta = tn_node_int(n, TN_ATTR_TRANS_A, 0), tb = tn_node_int(n, TN_ATTR_TRANS_B, 0);
	uint32_t a, b, d;

	TN_TRY(as_matrix(cx, n, n->in[0], true, &a));
	TN_TRY(as_matrix(cx, n, n->in[1], false, &b));
	TN_TRY(as_product(cx, n, dout[0], &d));
	if (!ta && cx->g->tensors[a].shape.rank > 2 && tn_grad_input(cx, n, 1)->shape.rank == 2) {
		TN_TRY(tn_grad_emit(cx, n, 1, TN_OP_MATMUL_ROWS, tb ? (uint32_t[]){d, a} : (uint32_t[]){a, d},
				    2, NULL, 0));
	} else {
		TN_TRY(product(cx, n, 1, tb ? d : a, tb ? a : d, tb ? 1 : !ta, tb ? ta : 0, b));
	}
	return product(cx, n, 0, ta ? b : d, ta ? d : b, ta ? tb : 0, ta ? 1 : !tb, a);
}
