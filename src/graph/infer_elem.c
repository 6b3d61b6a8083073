/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of ops that go element by element, alone or broadcast, and of the loss.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c.
 */
#include "graph/infer.h"

/* ---- one input ---- */

static tern_status one_of(tn_infer *x, uint32_t dtypes)
{
	tern_status st = tn_want(x, 0, 1, dtypes);

	return st == TERN_OK ? tn_yields(x, 0) : st;
}

tern_status tn_infer_f32(tn_infer *x)
{
	return one_of(x, TN_T(F32));
}

tern_status tn_infer_real(tn_infer *x)
{
	return one_of(x, TN_T_REAL);
}

tern_status tn_infer_number(tn_infer *x)
{
	return one_of(x, TN_T_NUM);
}

tern_status tn_infer_truth(tn_infer *x)
{
	return one_of(x, TN_T(BOOL));
}

tern_status tn_infer_test(tn_infer *x)
{
	tern_status st = one_of(x, TN_T_REAL);

	x->dtype[0] = TERN_BOOL;
	return st;
}

tern_status tn_infer_cast(tn_infer *x)
{
	tern_dtype to = (tern_dtype)tn_node_int(x->node, TN_ATTR_TO, 0);
	tern_status st = one_of(x, TN_T_ANY);

	if (tern_dtype_bytes(to) == 0)
		return tn_misfit(x, "'to' is %d, which is no dtype", (int)to);
	x->dtype[0] = to;
	return st;
}

tern_status tn_infer_dropout(tn_infer *x)
{
	double ratio = tn_node_float(x->node, TN_ATTR_RATIO, 0.5);

	if (!(ratio >= 0.0 && ratio < 1.0))
		return tn_misfit(x, "ratio %g is not in [0, 1)", ratio);
	x->dtype[1] = TERN_BOOL;
	x->shape[1] = tn_infer_in(x, 0)->shape;
	return tn_infer_f32(x);
}

tern_status tn_infer_dropout_grad(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want_f32(x, 0, 1);

	if (st == TERN_OK)
		st = tn_want(x, 1, 1, TN_T(BOOL));
	if (st != TERN_OK)
		return st;
	if (!tn_shape_equal(&tn_infer_in(x, 0)->shape, &tn_infer_in(x, 1)->shape)) {
		return tn_misfit(x, "%s and the mask %s must have the same shape",
				 tn_tensor_text(x, 0, a, sizeof(a)), tn_tensor_text(x, 1, b, sizeof(b)));
	}
	return tn_yields(x, 0);
}

/* ---- several inputs of one shape ---- */

tern_status tn_infer_same_f32(tn_infer *x)
{
	tern_status st = tn_want_f32(x, 0, x->node->n_in);

	for (uint32_t i = 1; i < x->node->n_in && st == TERN_OK; i++)
		st = tn_want_same(x, 0, i);
	return st == TERN_OK ? tn_yields(x, 0) : st;
}

tern_status tn_infer_bias_add(tn_infer *x)
{
	const tern_shape *a = &tn_infer_in(x, 0)->shape, *b = &tn_infer_in(x, 1)->shape;
	char ta[TN_TENSOR_TEXT_MAX], tb[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want_f32(x, 0, 2);

	if (st != TERN_OK)
		return st;
	if (a->rank < 1 || b->rank != 1 || a->dims[a->rank - 1] != b->dims[0]) {
		return tn_misfit(x, "the bias %s must be a vector as long as the last dim of %s",
				 tn_tensor_text(x, 1, tb, sizeof(tb)), tn_tensor_text(x, 0, ta, sizeof(ta)));
	}
	return tn_yields(x, 0);
}

/* ---- several inputs that broadcast ---- */

/* Output 0 has input i's dtype and the broadcast shape of inputs i and k. */
static tern_status broadcast(tn_infer *x, uint32_t i, uint32_t k)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];

	x->dtype[0] = tn_infer_in(x, i)->dtype;
	if (tn_shape_broadcast(&tn_infer_in(x, i)->shape, &tn_infer_in(x, k)->shape, &x->shape[0]))
		return TERN_OK;
	return tn_misfit(x, "%s and %s do not broadcast: each dim, from the last, must be equal or 1",
			 tn_tensor_text(x, i, a, sizeof(a)), tn_tensor_text(x, k, b, sizeof(b)));
}

static tern_status two_of(tn_infer *x, uint32_t dtypes)
{
	tern_status st = tn_want(x, 0, 2, dtypes);

	if (st == TERN_OK)
		st = tn_want_one_type(x, 0, 1);
	return st == TERN_OK ? broadcast(x, 0, 1) : st;
}

tern_status tn_infer_arithmetic(tn_infer *x)
{
	return two_of(x, TN_T_NUM);
}

tern_status tn_infer_logic(tn_infer *x)
{
	return two_of(x, TN_T(BOOL));
}

tern_status tn_infer_bit_shift(tn_infer *x)
{
	return two_of(x, TN_T(U8) | TN_T(U64));
}

tern_status tn_infer_equal(tn_infer *x)
{
	tern_status st = two_of(x, TN_T_ANY);

	x->dtype[0] = TERN_BOOL;
	return st;
}

tern_status tn_infer_compare(tn_infer *x)
{
	tern_status st = two_of(x, TN_T_NUM);

	x->dtype[0] = TERN_BOOL;
	return st;
}

/* The exponent may be of another type; the result is of the base's. */
tern_status tn_infer_pow(tn_infer *x)
{
	tern_status st = tn_want(x, 0, 2, TN_T_NUM);

	return st == TERN_OK ? broadcast(x, 0, 1) : st;
}

/* The slope broadcasts to X, never X to the slope. */
tern_status tn_infer_prelu(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	tern_status st = two_of(x, TN_T_NUM);

	if (st == TERN_OK && !tn_shape_equal(&x->shape[0], &tn_infer_in(x, 0)->shape)) {
		return tn_misfit(x, "the slope %s does not broadcast to %s",
				 tn_tensor_text(x, 1, b, sizeof(b)), tn_tensor_text(x, 0, a, sizeof(a)));
	}
	return st;
}

/* (condition, X, Y) */
tern_status tn_infer_where(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want(x, 0, 1, TN_T(BOOL));
	tern_shape values;

	if (st == TERN_OK)
		st = tn_want(x, 1, 2, TN_T_ANY);
	if (st == TERN_OK)
		st = tn_want_one_type(x, 1, 2);
	if (st == TERN_OK)
		st = broadcast(x, 1, 2);
	if (st != TERN_OK)
		return st;
	values = x->shape[0];
	if (!tn_shape_broadcast(&tn_infer_in(x, 0)->shape, &values, &x->shape[0])) {
		return tn_misfit(x, "the condition %s does not broadcast with the values",
				 tn_tensor_text(x, 0, a, sizeof(a)));
	}
	return TERN_OK;
}
