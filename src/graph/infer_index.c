/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of ops that read or write where indices say. Indices are checked when the kernel runs; the
 * rules here check only shapes.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "graph/infer.h"

static void append(tern_shape *s, const uint64_t *dims, uint32_t n)
{
	for (uint32_t i = 0; i < n && s->rank < TERN_RANK_MAX; i++)
		s->dims[s->rank++] = dims[i];
}

static tern_status check_rank(const tn_infer *x, uint32_t rank)
{
	if (rank <= TERN_RANK_MAX)
		return TERN_OK;
	return tn_misfit(x, "the result would have rank %u, which is above %u", rank, TERN_RANK_MAX);
}

/* What gathering `data` by `index` along the axis gives. */
static tern_status gathered(const tn_infer *x, const tern_shape *data, const tern_shape *index,
			    tern_shape *out)
{
	uint32_t axis;
	tern_status st = tn_infer_axis(x, 0, data->rank, &axis);

	if (st == TERN_OK)
		st = check_rank(x, data->rank - 1 + index->rank);
	if (st != TERN_OK)
		return st;
	*out = (tern_shape){0};
	append(out, data->dims, axis);
	append(out, index->dims, index->rank);
	append(out, data->dims + axis + 1, data->rank - axis - 1);
	return TERN_OK;
}

tern_status tn_infer_gather(tn_infer *x)
{
	tern_status st = tn_want(x, 1, 1, TN_T_INDEX);

	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	if (st != TERN_OK)
		return st;
	return gathered(x, &tn_infer_in(x, 0)->shape, &tn_infer_in(x, 1)->shape, &x->shape[0]);
}

/* A row of `size` numbers for each index. */
tern_status tn_infer_pull_rows(tn_infer *x)
{
	const tern_shape *index = &tn_infer_in(x, 0)->shape;
	uint64_t size = (uint64_t)tn_node_int(x->node, TN_ATTR_SIZE, 0);

	TN_TRY(tn_want(x, 0, 1, TN_T_INDEX));
	TN_TRY(check_rank(x, index->rank + 1));
	x->dtype[0] = TERN_F32;
	x->shape[0] = (tern_shape){0};
	append(&x->shape[0], index->dims, index->rank);
	append(&x->shape[0], &size, 1);
	return TERN_OK;
}

tern_status tn_infer_push_rows(tn_infer *x)
{
	TN_TRY(tn_want_f32(x, 0, 1));
	return tn_want(x, 1, 1, TN_T_INDEX);
}

/* (dY, indices): the gradient of `shape` gathered by the indices. */
tern_status tn_infer_gather_grad(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], to[TN_SHAPE_TEXT_MAX];
	tern_shape want, out;
	tern_status st = tn_want_f32(x, 0, 1);

	if (st == TERN_OK)
		st = tn_want(x, 1, 1, TN_T_INDEX);
	if (st == TERN_OK)
		st = tn_infer_shape_attr(x, &want);
	if (st == TERN_OK)
		st = gathered(x, &want, &tn_infer_in(x, 1)->shape, &out);
	if (st != TERN_OK)
		return st;
	if (!tn_shape_equal(&out, &tn_infer_in(x, 0)->shape)) {
		return tn_misfit(x, "%s is not what was gathered, which is %s",
				 tn_tensor_text(x, 0, a, sizeof(a)),
				 tn_shape_text(x->graph, &out, to, sizeof(to)));
	}
	x->dtype[0] = TERN_F32;
	x->shape[0] = want;
	return TERN_OK;
}

/* Indices have data's rank and, but along the axis, no larger dims. */
static tern_status check_elements(const tn_infer *x, uint32_t *axis)
{
	const tern_shape *data = &tn_infer_in(x, 0)->shape, *index = &tn_infer_in(x, 1)->shape;
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want(x, 1, 1, TN_T_INDEX);
	bool fits = index->rank == data->rank;

	if (st == TERN_OK)
		st = tn_infer_axis(x, 0, data->rank, axis);
	if (st != TERN_OK)
		return st;
	for (uint32_t d = 0; d < data->rank && fits; d++) {
		uint64_t have = data->dims[d], asked = index->dims[d];

		fits = d == *axis || have == asked ||
		       (!tn_dim_symbolic(have) && !tn_dim_symbolic(asked) && asked <= have);
	}
	if (fits)
		return TERN_OK;
	return tn_misfit(x, "the indices %s do not fit %s along axis %u", tn_tensor_text(x, 1, b, sizeof(b)),
			 tn_tensor_text(x, 0, a, sizeof(a)), *axis);
}

tern_status tn_infer_gather_elements(tn_infer *x)
{
	uint32_t axis;
	tern_status st = check_elements(x, &axis);

	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	x->shape[0] = tn_infer_in(x, 1)->shape;
	return st;
}

/* (data, indices, updates) */
static tern_status check_updates(tn_infer *x, const tern_shape *want)
{
	int64_t how = tn_node_int(x->node, TN_ATTR_REDUCTION, TN_SCATTER_NONE);
	char a[TN_TENSOR_TEXT_MAX], to[TN_SHAPE_TEXT_MAX];

	if (how < TN_SCATTER_NONE || how > TN_SCATTER_MIN)
		return tn_misfit(x, "reduction %lld is none", (long long)how);
	if (how != TN_SCATTER_NONE && tn_infer_in(x, 0)->dtype == TERN_BOOL)
		return tn_misfit(x, "bool cannot be reduced");
	if (!tn_shape_equal(&tn_infer_in(x, 2)->shape, want)) {
		return tn_misfit(x, "the updates must have the shape %s, but are %s",
				 tn_shape_text(x->graph, want, to, sizeof(to)),
				 tn_tensor_text(x, 2, a, sizeof(a)));
	}
	return tn_yields(x, 0);
}

tern_status tn_infer_scatter_elements(tn_infer *x)
{
	uint32_t axis;
	tern_status st = check_elements(x, &axis);

	if (st == TERN_OK)
		st = tn_want_one_type(x, 0, 2);
	return st == TERN_OK ? check_updates(x, &tn_infer_in(x, 1)->shape) : st;
}

/*
 * data (b..., d1..dk, rest...), indices (b..., p..., k) -> (b..., p..., rest...), with `batch` dims b that both
 * share.
 */
static tern_status nd_shape(const tn_infer *x, uint32_t batch, tern_shape *out)
{
	const tern_shape *data = &tn_infer_in(x, 0)->shape, *index = &tn_infer_in(x, 1)->shape;
	uint64_t k = index->rank ? index->dims[index->rank - 1] : 0;
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want(x, 1, 1, TN_T_INDEX);

	if (st != TERN_OK)
		return st;
	if (index->rank <= batch || data->rank <= batch || tn_dim_symbolic(k) || k < 1 ||
	    k > data->rank - batch || memcmp(data->dims, index->dims, batch * sizeof(*data->dims)) != 0) {
		return tn_misfit(x, "the indices %s do not fit %s", tn_tensor_text(x, 1, b, sizeof(b)),
				 tn_tensor_text(x, 0, a, sizeof(a)));
	}
	st = check_rank(x, index->rank - 1 + data->rank - batch - (uint32_t)k);
	*out = (tern_shape){0};
	append(out, index->dims, index->rank - 1);
	append(out, data->dims + batch + k, data->rank - batch - (uint32_t)k);
	return st;
}

tern_status tn_infer_gather_nd(tn_infer *x)
{
	int64_t batch = tn_node_int(x->node, TN_ATTR_BATCH_DIMS, 0);

	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	if (batch < 0 || batch > TERN_RANK_MAX)
		return tn_misfit(x, "batch_dims %lld is no number of dims", (long long)batch);
	return nd_shape(x, (uint32_t)batch, &x->shape[0]);
}

tern_status tn_infer_scatter_nd(tn_infer *x)
{
	tern_shape want;
	tern_status st = nd_shape(x, 0, &want);

	if (st == TERN_OK)
		st = tn_want_one_type(x, 0, 2);
	return st == TERN_OK ? check_updates(x, &want) : st;
}

tern_status tn_infer_one_hot(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	int64_t depth = tn_node_int(x->node, TN_ATTR_DEPTH, 0);
	uint32_t axis;
	tern_status st = tn_want(x, 0, 1, TN_T_NUM);

	if (st == TERN_OK)
		st = check_rank(x, in->rank + 1);
	if (st == TERN_OK)
		st = tn_infer_axis(x, -1, in->rank + 1, &axis);
	if (st != TERN_OK)
		return st;
	if (depth < 1 || depth >> 48)
		return tn_misfit(x, "depth %lld is no size", (long long)depth);
	x->dtype[0] = (tern_dtype)tn_node_int(x->node, TN_ATTR_TO, TERN_F32);
	if (tern_dtype_bytes(x->dtype[0]) == 0)
		return tn_misfit(x, "'to' is %d, which is no dtype", (int)x->dtype[0]);
	x->shape[0] = (tern_shape){0};
	append(&x->shape[0], in->dims, axis);
	append(&x->shape[0], &(uint64_t){(uint64_t)depth}, 1);
	append(&x->shape[0], in->dims + axis, in->rank - axis);
	return TERN_OK;
}
