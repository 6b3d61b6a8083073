/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twins of ops that move elements: for each element of the output, where it comes from. See ref_graph.h.
 */
#include <math.h>
#include <string.h>

#include "graph/infer.h"
#include "ref/ref_ops.h"

static const ref_value *in(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->in[i]];
}

static ref_value *out(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->out[i]];
}

static int64_t entry(const tn_node *n, tn_attr_key key, uint32_t i, int64_t dflt)
{
	const tn_attr *a = tn_node_attr(n, key);

	return a && i < a->u.ints.n ? a->u.ints.v[i] : dflt;
}

/*
 * Which elements of a dim Python's range(dim)[start:end:step] has, by counting; but a start before the first
 * element is the first element whichever way it goes, as ONNX says.
 */
static bool slice_has(const tn_node *n, const tern_shape *whole, uint32_t d, uint64_t i, uint64_t *place)
{
	const tn_attr *starts = tn_node_attr(n, TN_ATTR_STARTS);
	int64_t dim = (int64_t)whole->dims[d], start = 0, end = dim, step = 1;

	for (uint32_t k = 0; k < starts->u.ints.n; k++) {
		int64_t axis = entry(n, TN_ATTR_AXES, k, (int64_t)k);

		if ((axis < 0 ? axis + whole->rank : axis) != d)
			continue;
		step = entry(n, TN_ATTR_STEPS, k, 1);
		start = entry(n, TN_ATTR_STARTS, k, 0);
		end = entry(n, TN_ATTR_ENDS, k, 0);
		start = start < 0 ? start + dim : start;
		end = end < 0 ? end + dim : end;
		if (step < 0 && start >= dim)
			start = dim - 1;
	}
	if (start < 0)
		start = 0;
	*place = 0;
	for (int64_t at = start; at >= 0 && at < dim && (step > 0 ? at < end : at > end); at += step) {
		if (at == (int64_t)i)
			return true;
		++*place;
	}
	return false;
}

/* Each element of the whole that the slice has <-> its place in the part. */
static void slice(const ref_graph *r, const tn_node *n, bool grad)
{
	ref_value *whole = grad ? out(r, n, 0) : &r->values[n->in[0]];
	ref_value *part = grad ? &r->values[n->in[0]] : out(r, n, 0);

	for (uint64_t i = 0; i < whole->n; i++) {
		uint64_t at[TERN_RANK_MAX] = {0}, place[TERN_RANK_MAX] = {0};
		bool has = true;

		ref_unravel(&whole->shape, i, at);
		for (uint32_t d = 0; d < whole->shape.rank; d++)
			has &= slice_has(n, &whole->shape, d, at[d], &place[d]);
		if (has && !grad)
			part->data[ref_ravel(&part->shape, place)] = whole->data[i];
		if (grad)
			whole->data[i] = has ? part->data[ref_ravel(&part->shape, place)] : 0;
	}
}

static void concat(const ref_graph *r, const tn_node *n)
{
	ref_value *y = out(r, n, 0);
	uint32_t axis = tn_node_axis(n, 0, y->shape.rank);

	for (uint64_t i = 0; i < y->n; i++) {
		uint64_t at[TERN_RANK_MAX];
		uint32_t k = 0;

		ref_unravel(&y->shape, i, at);
		while (at[axis] >= in(r, n, k)->shape.dims[axis])
			at[axis] -= in(r, n, k++)->shape.dims[axis];
		y->data[i] = in(r, n, k)->data[ref_ravel(&in(r, n, k)->shape, at)];
	}
}

/* Where along dim d of the input the output's index i lies; -1 = the pad. */
static int64_t pad_source(const tn_node *n, const tern_shape *s, uint32_t d, uint64_t i)
{
	int64_t mode = tn_node_int(n, TN_ATTR_MODE, 0), dim = (int64_t)s->dims[d];
	int64_t at = (int64_t)i - entry(n, TN_ATTR_PADS, d, 0);

	if (at >= 0 && at < dim)
		return at;
	if (mode == TN_PAD_CONSTANT)
		return -1;
	if (mode == TN_PAD_EDGE)
		return at < 0 ? 0 : dim - 1;
	return at < 0 ? -at : dim - 1 - (at - (dim - 1));
}

static double moved(const ref_graph *r, const tn_node *n, const uint64_t *at)
{
	const ref_value *x = in(r, n, 0);
	const tern_shape *s = &x->shape;
	uint64_t from[TERN_RANK_MAX] = {0}, b = (uint64_t)tn_node_int(n, TN_ATTR_BLOCK_SIZE, 1);
	int64_t diagonal = tn_node_int(n, TN_ATTR_K, 0), p;
	uint32_t lead = out(r, n, 0)->shape.rank - s->rank;

	for (uint32_t d = 0; d < s->rank; d++) {
		if (n->op == TN_OP_TRANSPOSE)
			from[entry(n, TN_ATTR_PERM, d, s->rank - 1 - d)] = at[d];
		else if (n->op == TN_OP_TILE)
			from[d] = at[d] % s->dims[d];
		else if (n->op == TN_OP_EXPAND)
			from[d] = s->dims[d] == 1 ? 0 : at[lead + d];
		else
			from[d] = at[d];
		if (n->op == TN_OP_PAD) {
			p = pad_source(n, s, d, at[d]);
			if (p < 0)
				return tn_node_float(n, TN_ATTR_VALUE, 0);
			from[d] = (uint64_t)p;
		}
	}
	if (n->op == TN_OP_TRILU) {
		int64_t over = (int64_t)at[s->rank - 1] - (int64_t)at[s->rank - 2];

		if (tn_node_int(n, TN_ATTR_UPPER, 1) ? over < diagonal : over > diagonal)
			return 0;
	}
	if (n->op == TN_OP_DEPTH_TO_SPACE) {
		uint64_t c = s->dims[1] / (b * b), block = at[2] % b * b + at[3] % b;

		from[1] = tn_node_int(n, TN_ATTR_MODE, 0) ? at[1] * b * b + block : block * c + at[1];
		from[2] = at[2] / b;
		from[3] = at[3] / b;
	}
	if (n->op == TN_OP_SPACE_TO_DEPTH) {
		uint64_t block = at[1] / s->dims[1];

		from[1] = at[1] % s->dims[1];
		from[2] = at[2] * b + block / b;
		from[3] = at[3] * b + block % b;
	}
	return x->data[ref_ravel(s, from)];
}

static void each_moved(const ref_graph *r, const tn_node *n)
{
	ref_value *y = out(r, n, 0);

	for (uint64_t i = 0; i < y->n; i++) {
		uint64_t at[TERN_RANK_MAX];

		ref_unravel(&y->shape, i, at);
		y->data[i] = moved(r, n, at);
	}
}

/* ---- by indices ---- */

static uint64_t index_of(double v, uint64_t dim)
{
	return (uint64_t)(v < 0 ? v + (double)dim : v);
}

/* Where in data (outer.., axis, inner..) the result's element `at` of Gather lies. */
static uint64_t gather_place(const tn_node *n, const tern_shape *data, const ref_value *index,
			     const uint64_t *at)
{
	uint32_t axis = tn_node_axis(n, 0, data->rank);
	uint64_t from[TERN_RANK_MAX], i = ref_ravel(&index->shape, at + axis);

	for (uint32_t d = 0; d < data->rank; d++)
		from[d] = d < axis ? at[d] : d > axis ? at[d + index->shape.rank - 1] : 0;
	from[axis] = index_of(index->data[i], data->dims[axis]);
	return ref_ravel(data, from);
}

static void gather(const ref_graph *r, const tn_node *n, bool grad)
{
	ref_value *data = grad ? out(r, n, 0) : &r->values[n->in[0]];
	ref_value *part = grad ? &r->values[n->in[0]] : out(r, n, 0);

	for (uint64_t i = 0; i < data->n && grad; i++)
		data->data[i] = 0;
	for (uint64_t i = 0; i < part->n; i++) {
		uint64_t at[TERN_RANK_MAX] = {0}, place;

		ref_unravel(&part->shape, i, at);
		place = gather_place(n, &data->shape, in(r, n, 1), at);
		if (grad)
			data->data[place] += part->data[i];
		else
			part->data[i] = data->data[place];
	}
}

static double combined(const tn_node *n, double have, double update)
{
	switch (tn_node_int(n, TN_ATTR_REDUCTION, 0)) {
	case TN_SCATTER_ADD:
		return have + update;
	case TN_SCATTER_MUL:
		return have * update;
	case TN_SCATTER_MAX:
		return fmax(have, update);
	case TN_SCATTER_MIN:
		return fmin(have, update);
	default:
		return update;
	}
}

static void elements(const ref_graph *r, const tn_node *n, bool scatter)
{
	const ref_value *data = in(r, n, 0), *index = in(r, n, 1);
	ref_value *y = out(r, n, 0);
	uint32_t axis = tn_node_axis(n, 0, data->shape.rank);

	if (scatter)
		memcpy(y->data, data->data, data->n * sizeof(double));
	for (uint64_t i = 0; i < index->n; i++) {
		uint64_t at[TERN_RANK_MAX], place;

		ref_unravel(&index->shape, i, at);
		at[axis] = index_of(index->data[i], data->shape.dims[axis]);
		place = ref_ravel(&data->shape, at);
		if (scatter)
			y->data[place] = combined(n, y->data[place], in(r, n, 2)->data[i]);
		else
			y->data[i] = data->data[place];
	}
}

/* Elements of (tuples..., rest...): the tuple of each says the first dims, behind `batch` that are shared. */
static void tuples(const ref_graph *r, const tn_node *n, bool scatter)
{
	const ref_value *data = in(r, n, 0), *index = in(r, n, 1);
	ref_value *y = out(r, n, 0);
	const ref_value *part = scatter ? in(r, n, 2) : y;
	uint32_t batch = (uint32_t)tn_node_int(n, TN_ATTR_BATCH_DIMS, 0), lead = index->shape.rank - 1;
	uint64_t k = index->shape.dims[lead];

	if (scatter)
		memcpy(y->data, data->data, data->n * sizeof(double));
	for (uint64_t i = 0; i < part->n; i++) {
		uint64_t at[TERN_RANK_MAX] = {0}, from[TERN_RANK_MAX] = {0}, tuple = 0, place;

		ref_unravel(&part->shape, i, at);
		for (uint32_t d = 0; d < lead; d++)
			tuple = tuple * index->shape.dims[d] + at[d];
		for (uint32_t d = 0; d < data->shape.rank; d++) {
			if (d < batch)
				from[d] = at[d];
			else if (d < batch + k)
				from[d] = index_of(index->data[tuple * k + d - batch], data->shape.dims[d]);
			else
				from[d] = at[lead + d - batch - k];
		}
		place = ref_ravel(&data->shape, from);
		if (scatter)
			y->data[place] = combined(n, y->data[place], part->data[i]);
		else
			y->data[i] = data->data[place];
	}
}

static void one_hot(const ref_graph *r, const tn_node *n)
{
	const ref_value *index = in(r, n, 0);
	ref_value *y = out(r, n, 0);
	uint32_t axis = tn_node_axis(n, -1, y->shape.rank);
	double depth = (double)tn_node_int(n, TN_ATTR_DEPTH, 0);

	for (uint64_t i = 0; i < y->n; i++) {
		uint64_t at[TERN_RANK_MAX], own[TERN_RANK_MAX] = {0};
		double v, here;

		ref_unravel(&y->shape, i, at);
		for (uint32_t d = 0; d < index->shape.rank; d++)
			own[d] = at[d < axis ? d : d + 1];
		v = index->data[ref_ravel(&index->shape, own)];
		here = (double)at[axis];
		y->data[i] = v == here || v + depth == here ? tn_node_float(n, TN_ATTR_ON_VALUE, 1)
							    : tn_node_float(n, TN_ATTR_OFF_VALUE, 0);
	}
}

static void reverse_sequence(const ref_graph *r, const tn_node *n)
{
	const ref_value *x = in(r, n, 0);
	ref_value *y = out(r, n, 0);
	uint64_t b = (uint64_t)tn_node_int(n, TN_ATTR_BATCH_AXIS, 1), t = 1 - b;

	for (uint64_t i = 0; i < y->n; i++) {
		uint64_t at[TERN_RANK_MAX], len;

		ref_unravel(&y->shape, i, at);
		len = (uint64_t)in(r, n, 1)->data[at[b]];
		at[t] = at[t] < len ? len - 1 - at[t] : at[t];
		y->data[i] = x->data[ref_ravel(&x->shape, at)];
	}
}

bool ref_moves(const ref_graph *r, const tn_node *n)
{
	switch (n->op) {
	case TN_OP_TRANSPOSE:
	case TN_OP_EXPAND:
	case TN_OP_TILE:
	case TN_OP_PAD:
	case TN_OP_TRILU:
	case TN_OP_DEPTH_TO_SPACE:
	case TN_OP_SPACE_TO_DEPTH:
		each_moved(r, n);
		return true;
	case TN_OP_SLICE:
	case TN_OP_SLICE_GRAD:
		slice(r, n, n->op == TN_OP_SLICE_GRAD);
		return true;
	case TN_OP_CONCAT:
		concat(r, n);
		return true;
	case TN_OP_GATHER:
	case TN_OP_GATHER_GRAD:
		gather(r, n, n->op == TN_OP_GATHER_GRAD);
		return true;
	case TN_OP_GATHER_ELEMENTS:
	case TN_OP_SCATTER_ELEMENTS:
		elements(r, n, n->op == TN_OP_SCATTER_ELEMENTS);
		return true;
	case TN_OP_GATHER_ND:
	case TN_OP_SCATTER_ND:
		tuples(r, n, n->op == TN_OP_SCATTER_ND);
		return true;
	case TN_OP_ONE_HOT:
		one_hot(r, n);
		return true;
	case TN_OP_REVERSE_SEQUENCE:
		reverse_sequence(r, n);
		return true;
	default:
		return false;
	}
}
