/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of what works along axes: reductions and their reverse, ArgMax, CumSum, TopK, the softmax family.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c.
 */
#include "base/fail.h"
#include "graph/infer.h"

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

tern_status tn_infer_reduce(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	uint32_t mask;
	tern_status st = tn_want(x, 0, 1, TN_T_NUM);

	if (st == TERN_OK)
		st = tn_reduce_mask(x->node, in->rank, &mask);
	if (st != TERN_OK)
		return st;
	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	reduced_shape(in, mask, tn_node_int(x->node, TN_ATTR_KEEP_DIMS, 0) != 0, &x->shape[0]);
	return TERN_OK;
}

/* (small, like): the reverse of a reduction of `like`. */
tern_status tn_infer_expand_like(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	tern_shape want;
	uint32_t mask;
	tern_status st = tn_want_f32(x, 0, 2);

	if (st == TERN_OK)
		st = tn_reduce_mask(x->node, tn_infer_in(x, 1)->shape.rank, &mask);
	if (st != TERN_OK)
		return st;
	reduced_shape(&tn_infer_in(x, 1)->shape, mask, tn_node_int(x->node, TN_ATTR_KEEP_DIMS, 0) != 0,
		      &want);
	if (!tn_shape_equal(&want, &tn_infer_in(x, 0)->shape)) {
		return tn_misfit(x, "%s is not a reduction of %s", tn_tensor_text(x, 0, a, sizeof(a)),
				 tn_tensor_text(x, 1, b, sizeof(b)));
	}
	return tn_yields(x, 1);
}

/* dY, the gradient of what `shape` was broadcast to. */
tern_status tn_infer_sum_to(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], to[TN_SHAPE_TEXT_MAX];
	tern_shape want, both;
	tern_status st = tn_want(x, 0, 1, TN_T_NUM);

	if (st == TERN_OK)
		st = tn_infer_shape_attr(x, &want);
	if (st != TERN_OK)
		return st;
	if (!tn_shape_broadcast(&tn_infer_in(x, 0)->shape, &want, &both) ||
	    !tn_shape_equal(&both, &tn_infer_in(x, 0)->shape)) {
		return tn_misfit(x, "%s does not broadcast to %s",
				 tn_shape_text(x->graph, &want, to, sizeof(to)),
				 tn_tensor_text(x, 0, a, sizeof(a)));
	}
	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	x->shape[0] = want;
	return TERN_OK;
}

tern_status tn_infer_arg(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	uint32_t axis;
	tern_status st = tn_want(x, 0, 1, TN_T_NUM);

	if (st == TERN_OK)
		st = tn_infer_axis(x, 0, in->rank, &axis);
	if (st != TERN_OK)
		return st;
	if (in->dims[axis] == 0)
		return tn_misfit(x, "there is nothing along axis %u", axis);
	x->dtype[0] = TERN_I64;
	reduced_shape(in, 1u << axis, tn_node_int(x->node, TN_ATTR_KEEP_DIMS, 1) != 0, &x->shape[0]);
	return TERN_OK;
}

tern_status tn_infer_along_axis(tn_infer *x)
{
	uint32_t axis;
	tern_status st = tn_want(x, 0, 1, TN_T_NUM);

	if (st == TERN_OK)
		st = tn_infer_axis(x, 0, tn_infer_in(x, 0)->shape.rank, &axis);
	return st == TERN_OK ? tn_yields(x, 0) : st;
}

tern_status tn_infer_top_k(tn_infer *x)
{
	int64_t k = tn_node_int(x->node, TN_ATTR_K, 0);
	char a[TN_TENSOR_TEXT_MAX];
	uint32_t axis;
	uint64_t dim;
	tern_status st = tn_want(x, 0, 1, TN_T_NUM);

	if (st == TERN_OK)
		st = tn_infer_axis(x, -1, tn_infer_in(x, 0)->shape.rank, &axis);
	if (st != TERN_OK)
		return st;
	tn_yields(x, 0);
	dim = x->shape[0].dims[axis];
	if (k < 0 || tn_dim_symbolic(dim) || (uint64_t)k > dim) {
		return tn_misfit(x, "k %lld is not in 0 to dim %u of %s", (long long)k, axis,
				 tn_tensor_text(x, 0, a, sizeof(a)));
	}
	x->shape[0].dims[axis] = (uint64_t)k;
	x->shape[1] = x->shape[0];
	x->dtype[1] = TERN_I64;
	return TERN_OK;
}

static tern_status check_softmax(tn_infer *x, uint32_t dtypes)
{
	char a[TN_TENSOR_TEXT_MAX];
	uint32_t axis;
	tern_status st;

	if (tn_infer_in(x, 0)->shape.rank < 1)
		return tn_misfit(x, "needs at least one dim, not %s", tn_tensor_text(x, 0, a, sizeof(a)));
	st = tn_want(x, 0, x->node->n_in, dtypes);
	if (st == TERN_OK)
		st = tn_infer_axis(x, -1, tn_infer_in(x, 0)->shape.rank, &axis);
	return st == TERN_OK ? tn_yields(x, 0) : st;
}

tern_status tn_infer_softmax(tn_infer *x)
{
	return check_softmax(x, TN_T_REAL);
}

tern_status tn_infer_softmax_grad(tn_infer *x)
{
	tern_status st = check_softmax(x, TN_T(F32));

	return st == TERN_OK ? tn_want_same(x, 0, 1) : st;
}
