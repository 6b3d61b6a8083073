/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules of ops that move elements: what went there comes back; what went nowhere gets zero, what
 * went to several places gets the sum. See grad.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/grad_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "graph/grad.h"

static tern_status no_gradient(const tn_node *n, const char *what)
{
	return tn_fail(TERN_E_INVALID, "%s '%s': has no gradient with %s", tn_op_table[n->op].name, n->name,
		       what);
}

static tn_attr shape_of(const tn_grad *cx, const tn_node *n, uint32_t input)
{
	return tn_attr_shape(TN_ATTR_SHAPE, &tn_grad_input(cx, n, input)->shape);
}

tern_status tn_grad_rule_reshape(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr a = shape_of(cx, n, 0);

	return tn_grad_emit(cx, n, 0, TN_OP_RESHAPE, dout, 1, &a, 1);
}

tern_status tn_grad_rule_transpose(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	const tn_attr *perm = tn_node_attr(n, TN_ATTR_PERM);
	tn_attr inverse = {.key = TN_ATTR_PERM};

	if (!perm)
		return tn_grad_emit(cx, n, 0, TN_OP_TRANSPOSE, dout, 1, NULL, 0);
	inverse.u.ints.n = perm->u.ints.n;
	for (uint32_t i = 0; i < perm->u.ints.n; i++)
		inverse.u.ints.v[perm->u.ints.v[i]] = i;
	return tn_grad_emit(cx, n, 0, TN_OP_TRANSPOSE, dout, 1, &inverse, 1);
}

tern_status tn_grad_rule_slice(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[5] = {shape_of(cx, n, 0)};

	for (uint32_t i = 0; i < n->n_attrs; i++)
		attrs[1 + i] = n->attrs[i];
	return tn_grad_emit(cx, n, 0, TN_OP_SLICE_GRAD, dout, 1, attrs, 1 + n->n_attrs);
}

tern_status tn_grad_rule_slice_grad(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[4];
	uint32_t count = 0;

	for (uint32_t i = 0; i < n->n_attrs; i++) {
		if (n->attrs[i].key != TN_ATTR_SHAPE)
			attrs[count++] = n->attrs[i];
	}
	return tn_grad_emit(cx, n, 0, TN_OP_SLICE, dout, 1, attrs, count);
}

static tn_attr one_int(tn_attr_key key, int64_t v)
{
	tn_attr a = {.key = key};

	a.u.ints.n = 1;
	a.u.ints.v[0] = v;
	return a;
}

tern_status tn_grad_rule_concat(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	uint32_t rank = tn_grad_input(cx, n, 0)->shape.rank;
	int64_t axis = tn_node_int(n, TN_ATTR_AXIS, 0), at = 0;

	axis += axis < 0 ? rank : 0;
	for (uint32_t i = 0; i < n->n_in; i++) {
		uint64_t dim = tn_grad_input(cx, n, i)->shape.dims[axis];
		tn_attr attrs[3] = {one_int(TN_ATTR_STARTS, at), one_int(TN_ATTR_ENDS, at + (int64_t)dim),
				    one_int(TN_ATTR_AXES, axis)};

		if (n->n_in == 1) /* the dim may be symbolic then */
			return tn_grad_give(cx, n, 0, dout[0]);
		TN_TRY(tn_grad_emit(cx, n, i, TN_OP_SLICE, dout, 1, attrs, 3));
		at += (int64_t)dim;
	}
	return TERN_OK;
}

tern_status tn_grad_rule_expand(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_give_sum(cx, n, 0, dout[0]);
}

tern_status tn_grad_rule_pad(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr pads = *tn_node_attr(n, TN_ATTR_PADS);

	if (tn_node_int(n, TN_ATTR_MODE, TN_PAD_CONSTANT) != TN_PAD_CONSTANT)
		return no_gradient(n, "a mode other than constant");
	for (uint32_t i = 0; i < pads.u.ints.n; i++)
		pads.u.ints.v[i] = -pads.u.ints.v[i];
	return tn_grad_emit(cx, n, 0, TN_OP_PAD, dout, 1, &pads, 1);
}

/* A dim repeated r times is r copies of it: sum over them. */
tern_status tn_grad_rule_tile(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	const tern_shape *in = &tn_grad_input(cx, n, 0)->shape;
	const tn_attr *repeats = tn_node_attr(n, TN_ATTR_REPEATS);
	tern_shape apart = {.rank = 0};
	tn_attr axes = {.key = TN_ATTR_AXES}, shape;
	uint32_t t;

	for (uint32_t d = 0; d < in->rank; d++) {
		int64_t r = repeats->u.ints.v[d];

		if (apart.rank + 2 > TERN_RANK_MAX)
			return no_gradient(n, "that many repeated dims");
		if (r != 1) {
			axes.u.ints.v[axes.u.ints.n++] = apart.rank;
			apart.dims[apart.rank++] = (uint64_t)r;
		}
		apart.dims[apart.rank++] = in->dims[d];
	}
	if (axes.u.ints.n == 0)
		return tn_grad_give(cx, n, 0, dout[0]);
	shape = tn_attr_shape(TN_ATTR_SHAPE, &apart);
	TN_TRY(tn_grad_node(cx, n, TN_OP_RESHAPE, dout, 1, &shape, 1, &t));
	return tn_grad_emit(cx, n, 0, TN_OP_REDUCE_SUM, &t, 1, &axes, 1);
}

/* DCR is what SpaceToDepth undoes; CRD is undone by hand: (N, C, H, b, W, b) -> (N, C, b, b, H, W). */
tern_status tn_grad_rule_depth_to_space(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	const tern_shape in = tn_grad_input(cx, n, 0)->shape;
	int64_t b = tn_node_int(n, TN_ATTR_BLOCK_SIZE, 1);
	tn_attr block = tn_attr_int(TN_ATTR_BLOCK_SIZE, b), perm = {.key = TN_ATTR_PERM}, split, join;
	tern_shape apart = {.rank = 6};
	static const int64_t order[6] = {0, 1, 3, 5, 2, 4};
	uint32_t t;

	if (tn_node_int(n, TN_ATTR_MODE, TN_DEPTH_DCR) == TN_DEPTH_DCR)
		return tn_grad_emit(cx, n, 0, TN_OP_SPACE_TO_DEPTH, dout, 1, &block, 1);
	apart = (tern_shape){.rank = 6,
			     .dims = {in.dims[0], in.dims[1] / (uint64_t)(b * b), in.dims[2], (uint64_t)b,
				      in.dims[3], (uint64_t)b}};
	split = tn_attr_shape(TN_ATTR_SHAPE, &apart);
	join = tn_attr_shape(TN_ATTR_SHAPE, &in);
	perm.u.ints.n = 6;
	memcpy(perm.u.ints.v, order, sizeof(order));
	TN_TRY(tn_grad_node(cx, n, TN_OP_RESHAPE, dout, 1, &split, 1, &t));
	TN_TRY(tn_grad_node(cx, n, TN_OP_TRANSPOSE, (uint32_t[]){t}, 1, &perm, 1, &t));
	return tn_grad_emit(cx, n, 0, TN_OP_RESHAPE, &t, 1, &join, 1);
}

tern_status tn_grad_rule_space_to_depth(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_DEPTH_TO_SPACE, dout, 1, n->attrs, n->n_attrs);
}

tern_status tn_grad_rule_trilu(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_TRILU, dout, 1, n->attrs, n->n_attrs);
}

/* Its own inverse. */
tern_status tn_grad_rule_reverse_sequence(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	return tn_grad_emit(cx, n, 0, TN_OP_REVERSE_SEQUENCE, (uint32_t[]){dout[0], n->in[1]}, 2, n->attrs,
			    n->n_attrs);
}

/* ---- by indices ---- */

static uint32_t axis_attr(const tn_node *n, tn_attr *attr)
{
	*attr = tn_attr_int(TN_ATTR_AXIS, tn_node_int(n, TN_ATTR_AXIS, 0));
	return 1;
}

tern_status tn_grad_rule_gather(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr attrs[2] = {shape_of(cx, n, 0)};

	axis_attr(n, &attrs[1]);
	return tn_grad_emit(cx, n, 0, TN_OP_GATHER_GRAD, (uint32_t[]){dout[0], n->in[1]}, 2, attrs, 2);
}

tern_status tn_grad_rule_gather_grad(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr axis;

	axis_attr(n, &axis);
	return tn_grad_emit(cx, n, 0, TN_OP_GATHER, (uint32_t[]){dout[0], n->in[1]}, 2, &axis, 1);
}

static tern_status scatter_into_zeros(tn_grad *cx, const tn_node *n, tn_op op, uint32_t dy,
				      const tn_attr *axis)
{
	tern_shape shape = tn_grad_input(cx, n, 0)->shape;
	tn_attr attrs[2] = {tn_attr_int(TN_ATTR_REDUCTION, TN_SCATTER_ADD)};
	uint32_t zeros;

	if (axis)
		attrs[1] = *axis;
	TN_TRY(tn_grad_zeros(cx, n, &shape, &zeros));
	return tn_grad_emit(cx, n, 0, op, (uint32_t[]){zeros, n->in[1], dy}, 3, attrs, axis ? 2 : 1);
}

tern_status tn_grad_rule_gather_elements(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	tn_attr axis;

	axis_attr(n, &axis);
	return scatter_into_zeros(cx, n, TN_OP_SCATTER_ELEMENTS, dout[0], &axis);
}

tern_status tn_grad_rule_gather_nd(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	if (tn_node_int(n, TN_ATTR_BATCH_DIMS, 0) != 0)
		return no_gradient(n, "batch_dims");
	return scatter_into_zeros(cx, n, TN_OP_SCATTER_ND, dout[0], NULL);
}

/* (data, indices, updates): what was overwritten gets nothing, what was written gets what is there. */
tern_status tn_grad_rule_scatter(tn_grad *cx, const tn_node *n, const uint32_t *dout)
{
	bool nd = n->op == TN_OP_SCATTER_ND;
	int64_t reduction = tn_node_int(n, TN_ATTR_REDUCTION, TN_SCATTER_NONE);
	tern_shape updates = tn_grad_input(cx, n, 2)->shape;
	tn_attr axis;
	uint32_t n_axis = nd ? 0 : axis_attr(n, &axis), zeros;

	if (reduction != TN_SCATTER_NONE && reduction != TN_SCATTER_ADD)
		return no_gradient(n, "that reduction");
	TN_TRY(tn_grad_emit(cx, n, 2, nd ? TN_OP_GATHER_ND : TN_OP_GATHER_ELEMENTS,
			    (uint32_t[]){dout[0], n->in[1]}, 2, &axis, n_axis));
	if (reduction == TN_SCATTER_ADD)
		return tn_grad_give(cx, n, 0, dout[0]);
	if (!tn_grad_wanted(cx, n, 0))
		return TERN_OK;
	TN_TRY(tn_grad_zeros(cx, n, &updates, &zeros));
	return tn_grad_emit(cx, n, 0, n->op, (uint32_t[]){dout[0], n->in[1], zeros}, 3, &axis, n_axis);
}
