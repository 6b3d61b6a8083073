/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of losses, of their gradients, and of products that only gradients need.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c, tests/unit/graph/grad_test.c.
 */
#include "base/fail.h"
#include "graph/infer.h"

/* Rows (..., C) f32 with integer labels (...): inputs number l and l + 1. */
static tern_status check_labels(const tn_infer *x, uint32_t l)
{
	const tern_shape *b = &tn_infer_in(x, l + 1)->shape;
	tern_shape a = tn_infer_in(x, l)->shape;
	tern_dtype type = tn_infer_in(x, l + 1)->dtype;
	char ta[TN_TENSOR_TEXT_MAX], tb[TN_TENSOR_TEXT_MAX];

	if (a.rank >= 2 && (type == TERN_I32 || type == TERN_I64 || type == TERN_U8)) {
		a.rank--;
		if (tn_shape_equal(&a, b))
			return tn_want_f32(x, l, 1);
	}
	return tn_misfit(x, "needs rows (B,C) f32 and labels (B) i32, i64 or u8, not %s and %s",
			 tn_tensor_text(x, l, ta, sizeof(ta)), tn_tensor_text(x, l + 1, tb, sizeof(tb)));
}

static tern_status check_dloss(const tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX];

	if (tn_infer_in(x, 0)->shape.rank == 0 && tn_infer_in(x, 0)->dtype == TERN_F32)
		return TERN_OK;
	return tn_misfit(x, "dloss must be a scalar f32, not %s", tn_tensor_text(x, 0, a, sizeof(a)));
}

static void yields_scalar(tn_infer *x, uint32_t output, tern_dtype dtype)
{
	x->dtype[output] = dtype;
	x->shape[output] = (tern_shape){0};
}

tern_status tn_infer_softmax_xent(tn_infer *x)
{
	yields_scalar(x, 0, TERN_F32);
	yields_scalar(x, 1, TERN_I32);
	x->dtype[2] = TERN_F32;
	x->shape[2] = tn_infer_in(x, 0)->shape;
	return check_labels(x, 0);
}

tern_status tn_infer_softmax_xent_grad(tn_infer *x)
{
	tern_status st = check_dloss(x);

	tn_yields(x, 1);
	return st == TERN_OK ? check_labels(x, 1) : st;
}

tern_status tn_infer_nll(tn_infer *x)
{
	yields_scalar(x, 0, TERN_F32);
	return check_labels(x, 0);
}

tern_status tn_infer_nll_grad(tn_infer *x)
{
	return tn_infer_softmax_xent_grad(x);
}

static tern_status check_pair(const tn_infer *x, uint32_t i)
{
	tern_status st = tn_want_f32(x, i, 2);

	return st == TERN_OK ? tn_want_same(x, i, i + 1) : st;
}

tern_status tn_infer_pair_loss(tn_infer *x)
{
	yields_scalar(x, 0, TERN_F32);
	return check_pair(x, 0);
}

tern_status tn_infer_pair_loss_grad(tn_infer *x)
{
	tern_status st = check_dloss(x);

	tn_yields(x, 1);
	return st == TERN_OK ? check_pair(x, 1) : st;
}

/* (..., M) and (..., N) with equal dims before the last -> (M, N) */
tern_status tn_infer_matmul_rows(tn_infer *x)
{
	tern_shape a = tn_infer_in(x, 0)->shape, b = tn_infer_in(x, 1)->shape;
	char ta[TN_TENSOR_TEXT_MAX], tb[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want_f32(x, 0, 2);

	if (st != TERN_OK)
		return st;
	x->dtype[0] = TERN_F32;
	if (a.rank >= 2 && a.rank == b.rank) {
		x->shape[0] = (tern_shape){.rank = 2, .dims = {a.dims[a.rank - 1], b.dims[b.rank - 1]}};
		a.rank--;
		b.rank--;
		if (tn_shape_equal(&a, &b))
			return TERN_OK;
	}
	return tn_misfit(x, "%s and %s must have the same dims but the last",
			 tn_tensor_text(x, 0, ta, sizeof(ta)), tn_tensor_text(x, 1, tb, sizeof(tb)));
}
