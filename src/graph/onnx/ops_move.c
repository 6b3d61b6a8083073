/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's ops that move elements or give them another shape. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/unit/graph/onnx_test.c.
 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "graph/onnx/import.h"

tern_status tn_ox_op_identity(tn_ox *x)
{
	const tn_ox_value *v = tn_ox_in(x, 0);
	uint32_t t;

	/* PyTorch's way to write parameters that start alike: the values are shared, the variables are not. */
	if (v->kind == TN_OX_WEIGHT && tn_ox_wants(x, 0)) {
		TN_TRY(tn_ox_out_known(x, 0, v->dtype, &v->shape, tn_values_ref(v->data), false));
		x->results[0].weight = true;
		return TERN_OK;
	}
	TN_TRY(tn_ox_tensor(x, 0, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* ---- other shapes of the same elements ---- */

static tern_status out_reshaped(tn_ox *x, uint32_t t, const tern_shape *shape)
{
	TN_TRY(tn_ox_reshape(x, t, shape, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* What -1 stands for: the known dims divided out, each symbol struck out once. */
static tern_status solve_minus_one(tn_ox *x, const tern_shape *from, const tern_shape *to, uint32_t at,
				   uint64_t *dim)
{
	uint64_t have = 1, want = 1, symbol = 0;
	bool used[TERN_RANK_MAX] = {false}, has_symbol = false;

	for (uint32_t i = 0; i < to->rank; i++) {
		bool found = false;

		if (i == at)
			continue;
		if (!tn_dim_symbolic(to->dims[i])) {
			if (__builtin_mul_overflow(want, to->dims[i], &want))
				return tn_ox_fail(x, TERN_E_TOO_LARGE, "its shape is too large");
			continue;
		}
		for (uint32_t k = 0; k < from->rank && !found; k++) {
			found = !used[k] && from->dims[k] == to->dims[i];
			used[k] |= found;
		}
		if (!found)
			return tn_ox_fail(x, TERN_E_UNSUPPORTED,
					  "dim %u is symbolic and not one of the input's: give "
					  "its size",
					  i);
	}
	for (uint32_t k = 0; k < from->rank; k++) {
		if (used[k])
			continue;
		if (!tn_dim_symbolic(from->dims[k])) {
			if (__builtin_mul_overflow(have, from->dims[k], &have))
				return tn_ox_fail(x, TERN_E_TOO_LARGE, "its shape is too large");
		} else if (has_symbol) {
			return tn_ox_fail(x, TERN_E_UNSUPPORTED,
					  "-1 stands for a product of symbolic dims: give "
					  "their sizes");
		} else {
			has_symbol = true;
			symbol = from->dims[k];
		}
	}
	if (want == 0 || have % want != 0 || (has_symbol && have != want))
		return tn_ox_fail(x, has_symbol ? TERN_E_UNSUPPORTED : TERN_E_SHAPE,
				  "dim %u of its shape cannot be computed from %" PRIu64 " and %" PRIu64
				  " elements%s",
				  at, have, want, has_symbol ? " times a symbolic dim: give its size" : "");
	*dim = has_symbol ? symbol : have / want;
	return TERN_OK;
}

tern_status tn_ox_op_reshape(tn_ox *x)
{
	const tern_shape *from = &tn_ox_in(x, 0)->shape;
	bool allow_zero = tn_ox_int(x, "allowzero", 0) != 0;
	int64_t dims[TERN_RANK_MAX];
	tern_shape to = {.rank = 0};
	uint32_t t, unknown = TN_NONE;

	TN_TRY(tn_ox_known_dims(x, 1, dims, TERN_RANK_MAX, &to.rank));
	for (uint32_t i = 0; i < to.rank; i++) {
		to.dims[i] = tn_ox_to_dim(dims[i]);
		if (dims[i] == 0 && !allow_zero) {
			if (i >= from->rank)
				return tn_ox_fail(x, TERN_E_SHAPE,
						  "dim %u of its shape is 0, but its input has rank %u", i,
						  from->rank);
			to.dims[i] = from->dims[i];
		} else if (dims[i] == -1 && unknown == TN_NONE) {
			unknown = i;
		} else if (dims[i] < 0 && !tn_ox_is_symbol(dims[i])) {
			return tn_ox_fail(x, TERN_E_INVALID, "dim %u of its shape is %" PRIi64, i, dims[i]);
		}
	}
	if (unknown != TN_NONE)
		TN_TRY(solve_minus_one(x, from, &to, unknown, &to.dims[unknown]));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	return out_reshaped(x, t, &to);
}

/* The product of dims, a symbolic one only by itself. */
static tern_status product(tn_ox *x, const uint64_t *dims, uint32_t n, uint64_t *p)
{
	uint64_t symbol = 0;
	bool has_symbol = false;

	*p = 1;
	for (uint32_t i = 0; i < n; i++) {
		if (tn_dim_symbolic(dims[i])) {
			if (has_symbol)
				return tn_ox_fail(
					x, TERN_E_UNSUPPORTED,
					"its output has a product of symbolic dims: give their sizes");
			has_symbol = true;
			symbol = dims[i];
		} else if (__builtin_mul_overflow(*p, dims[i], p)) {
			return tn_ox_fail(x, TERN_E_TOO_LARGE, "its shape is too large");
		}
	}
	if (has_symbol && *p != 1)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "its output has a symbolic dim times %" PRIu64 ": give its size", *p);
	if (has_symbol)
		*p = symbol;
	return TERN_OK;
}

tern_status tn_ox_op_flatten(tn_ox *x)
{
	const tern_shape *from = &tn_ox_in(x, 0)->shape;
	int64_t axis = tn_ox_int(x, "axis", 1);
	tern_shape to = {.rank = 2};
	uint32_t t, at = from->rank;

	if (axis != (int64_t)from->rank)
		TN_TRY(tn_ox_axis(x, axis, from->rank, &at));
	TN_TRY(product(x, from->dims, at, &to.dims[0]));
	TN_TRY(product(x, from->dims + at, from->rank - at, &to.dims[1]));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	return out_reshaped(x, t, &to);
}

/* A set of axes as bits; twice the same is an error. */
static tern_status axes_mask(tn_ox *x, const int64_t *axes, uint32_t n, uint32_t rank, uint32_t *mask)
{
	uint32_t axis;

	*mask = 0;
	for (uint32_t i = 0; i < n; i++) {
		TN_TRY(tn_ox_axis(x, axes[i], rank, &axis));
		if (*mask >> axis & 1)
			return tn_ox_fail(x, TERN_E_INVALID, "axis %" PRIi64 " is there twice", axes[i]);
		*mask |= 1u << axis;
	}
	return TERN_OK;
}

tern_status tn_ox_op_squeeze(tn_ox *x)
{
	const tern_shape *from = &tn_ox_in(x, 0)->shape;
	int64_t axes[TERN_RANK_MAX];
	tern_shape to = {.rank = 0};
	uint32_t t, n, mask;

	TN_TRY(tn_ox_axes(x, "axes", 13, 1, axes, &n));
	TN_TRY(axes_mask(x, axes, n, from->rank, &mask));
	for (uint32_t i = 0; i < from->rank; i++) {
		bool out = n ? mask >> i & 1 : from->dims[i] == 1;

		if (out && from->dims[i] != 1)
			return tn_ox_fail(x, TERN_E_SHAPE, "dim %u is not 1", i);
		if (!out)
			to.dims[to.rank++] = from->dims[i];
	}
	TN_TRY(tn_ox_tensor(x, 0, &t));
	return out_reshaped(x, t, &to);
}

tern_status tn_ox_op_unsqueeze(tn_ox *x)
{
	const tern_shape *from = &tn_ox_in(x, 0)->shape;
	int64_t axes[TERN_RANK_MAX];
	tern_shape to = {.rank = 0};
	uint32_t t, n, mask;

	TN_TRY(tn_ox_axes(x, "axes", 13, 1, axes, &n));
	if (from->rank + n > TERN_RANK_MAX)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "its output has rank %u, above %d", from->rank + n,
				  TERN_RANK_MAX);
	TN_TRY(axes_mask(x, axes, n, from->rank + n, &mask));
	for (uint32_t i = 0, k = 0; i < from->rank + n; i++)
		to.dims[to.rank++] = mask >> i & 1 ? 1 : from->dims[k++];
	TN_TRY(tn_ox_tensor(x, 0, &t));
	return out_reshaped(x, t, &to);
}

/* ---- movement ---- */

tern_status tn_ox_op_transpose(tn_ox *x)
{
	tn_attr attr = {.key = TN_ATTR_PERM};
	uint32_t t, n;

	TN_TRY(tn_ox_ints(x, "perm", attr.u.ints.v, TERN_RANK_MAX, &n));
	attr.u.ints.n = n;
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_TRANSPOSE, &t, 1, &attr, n ? 1 : 0, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* Attributes before opset 10, inputs from then on. */
static tern_status slice_numbers(tn_ox *x, tn_attr attrs[4], uint32_t n[4])
{
	static const char *const names[] = {"starts", "ends", "axes", "steps"};
	static const tn_attr_key keys[] = {TN_ATTR_STARTS, TN_ATTR_ENDS, TN_ATTR_AXES, TN_ATTR_STEPS};

	for (uint32_t i = 0; i < 4; i++) {
		attrs[i] = (tn_attr){.key = keys[i]};
		n[i] = 0;
		if (x->opset < 10 && i < 3)
			TN_TRY(tn_ox_ints(x, names[i], attrs[i].u.ints.v, TERN_RANK_MAX, &n[i]));
		else if (x->opset >= 10 && tn_ox_in(x, i + 1))
			TN_TRY(tn_ox_known_ints(x, i + 1, attrs[i].u.ints.v, TERN_RANK_MAX, &n[i]));
		attrs[i].u.ints.n = n[i];
		if (n[i] != n[0] && (i < 2 || n[i] != 0))
			return tn_ox_fail(x, TERN_E_CORRUPT, "it has %u starts and %u %s", n[0], n[i],
					  names[i]);
	}
	return TERN_OK;
}

tern_status tn_ox_op_slice(tn_ox *x)
{
	tn_attr attrs[4], given[4];
	uint32_t t, n[4], n_given = 0;

	TN_TRY(slice_numbers(x, attrs, n));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (n[0] > 0) {
		for (uint32_t i = 0; i < 4; i++) {
			if (n[i] > 0)
				given[n_given++] = attrs[i];
		}
		TN_TRY(tn_ox_add(x, TN_OP_SLICE, &t, 1, given, n_given, &t));
	}
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

#define SPLIT_MAX 1024u

/* Sizes of the parts: given, or equal. */
static tern_status split_sizes(tn_ox *x, uint64_t dim, int64_t *sizes)
{
	uint32_t parts = (uint32_t)x->node->n_output, n = 0;
	uint64_t sum = 0;

	if (parts > SPLIT_MAX)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it has %u outputs, at most %u are made", parts,
				  SPLIT_MAX);
	if (x->opset < 13)
		TN_TRY(tn_ox_ints(x, "split", sizes, SPLIT_MAX, &n));
	else if (tn_ox_in(x, 1))
		TN_TRY(tn_ox_known_ints(x, 1, sizes, SPLIT_MAX, &n));
	if (n == 0) {
		if (tn_dim_symbolic(dim))
			return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it splits a symbolic dim: give its size");
		for (; n < parts; n++)
			sizes[n] = (int64_t)(dim / parts);
		if (dim % parts)
			return tn_ox_fail(x, TERN_E_SHAPE, "%" PRIu64 " is no multiple of %u", dim, parts);
	}
	if (n != parts)
		return tn_ox_fail(x, TERN_E_CORRUPT, "it has %u outputs and %u sizes", parts, n);
	for (uint32_t i = 0; i < n; i++) {
		if (sizes[i] < 0 || __builtin_add_overflow(sum, (uint64_t)sizes[i], &sum) || sum > INT64_MAX)
			return tn_ox_fail(x, TERN_E_INVALID, "size %u is %" PRIi64, i, sizes[i]);
	}
	if (sum != dim)
		return tn_ox_fail(x, TERN_E_SHAPE,
				  "its parts have %" PRIu64 " elements in all, not those of its input", sum);
	return TERN_OK;
}

tern_status tn_ox_op_split(tn_ox *x)
{
	const tern_shape *from = &tn_ox_in(x, 0)->shape;
	int64_t sizes[SPLIT_MAX], at = 0;
	uint32_t t, axis, part;

	TN_TRY(tn_ox_axis(x, tn_ox_int(x, "axis", 0), from->rank, &axis));
	TN_TRY(split_sizes(x, from->dims[axis], sizes));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	for (uint32_t i = 0; i < x->node->n_output; i++) {
		if (tn_ox_wants(x, i)) {
			TN_TRY(tn_ox_slice(x, t, axis, at, at + sizes[i], &part));
			tn_ox_out(x, i, part);
		}
		at += sizes[i];
	}
	return TERN_OK;
}

tern_status tn_ox_op_concat(tn_ox *x)
{
	tn_attr attr = tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", 0));
	uint32_t n = tn_ox_inputs(x), t, in[TN_OX_IN_MAX];

	for (uint32_t i = 0; i < n; i++)
		TN_TRY(tn_ox_tensor(x, i, &in[i]));
	TN_TRY(tn_ox_add(x, TN_OP_CONCAT, in, n, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* Both shapes broadcast: a 1 in the wanted one leaves the input's dim. */
tern_status tn_ox_op_expand(tn_ox *x)
{
	const tern_shape *from = &tn_ox_in(x, 0)->shape;
	tn_attr attr = {.key = TN_ATTR_SHAPE};
	int64_t dims[TERN_RANK_MAX];
	uint32_t t, n, rank;

	TN_TRY(tn_ox_known_dims(x, 1, dims, TERN_RANK_MAX, &n));
	rank = n > from->rank ? n : from->rank;
	attr.u.ints.n = rank;
	for (uint32_t i = 0; i < rank; i++) {
		int64_t want = i + n >= rank ? dims[i + n - rank] : 1;
		uint64_t have = i + from->rank >= rank ? from->dims[i + from->rank - rank] : 1;

		if (want < 0 && !tn_ox_is_symbol(want))
			return tn_ox_fail(x, TERN_E_INVALID, "dim %u of its shape is %" PRIi64, i, want);
		attr.u.ints.v[i] = (int64_t)(want == 1 ? have : tn_ox_to_dim(want));
	}
	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (rank > 0)
		TN_TRY(tn_ox_add(x, TN_OP_EXPAND, &t, 1, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_tile(tn_ox *x)
{
	tn_attr attr = {.key = TN_ATTR_REPEATS};
	uint32_t t, n;

	TN_TRY(tn_ox_known_ints(x, 1, attr.u.ints.v, TERN_RANK_MAX, &n));
	attr.u.ints.n = n;
	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (n > 0)
		TN_TRY(tn_ox_add(x, TN_OP_TILE, &t, 1, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_pad(tn_ox *x)
{
	tn_attr attrs[3] = {{.key = TN_ATTR_PADS}, {.key = TN_ATTR_MODE}, {.key = TN_ATTR_VALUE}};
	uint32_t t, n;

	if (tn_ox_is(x, "mode", "constant", "constant"))
		attrs[1].u.i = TN_PAD_CONSTANT;
	else if (tn_ox_is(x, "mode", "constant", "reflect"))
		attrs[1].u.i = TN_PAD_REFLECT;
	else if (tn_ox_is(x, "mode", "constant", "edge"))
		attrs[1].u.i = TN_PAD_EDGE;
	else
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern does not pad in this mode");
	if (x->opset < 11) {
		TN_TRY(tn_ox_ints(x, "pads", attrs[0].u.ints.v, 2 * TERN_RANK_MAX, &n));
		attrs[2].u.f = tn_ox_real(x, "value", 0);
	} else {
		TN_TRY(tn_ox_known_ints(x, 1, attrs[0].u.ints.v, 2 * TERN_RANK_MAX, &n));
		TN_TRY(tn_ox_known_real(x, 2, 0, &attrs[2].u.f));
	}
	attrs[0].u.ints.n = n;
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_PAD, &t, 1, attrs, 3, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_depth_to_space(tn_ox *x)
{
	bool crd = tn_ox_is(x, "mode", "DCR", "CRD");
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_BLOCK_SIZE, tn_ox_int(x, "blocksize", 0)),
			   tn_attr_int(TN_ATTR_MODE, crd ? TN_DEPTH_CRD : TN_DEPTH_DCR)};
	uint32_t t;

	if (!crd && !tn_ox_is(x, "mode", "DCR", "DCR"))
		return tn_ox_fail(x, TERN_E_CORRUPT, "its mode is neither DCR nor CRD");
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_DEPTH_TO_SPACE, &t, 1, attrs, 2, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_space_to_depth(tn_ox *x)
{
	tn_attr attr = tn_attr_int(TN_ATTR_BLOCK_SIZE, tn_ox_int(x, "blocksize", 0));
	uint32_t t;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_SPACE_TO_DEPTH, &t, 1, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_trilu(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_UPPER, tn_ox_int(x, "upper", 1) != 0), {.key = TN_ATTR_K}};
	uint32_t t;

	TN_TRY(tn_ox_known_int(x, 1, 0, &attrs[1].u.i));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_TRILU, &t, 1, attrs, 2, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_reverse_sequence(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_BATCH_AXIS, tn_ox_int(x, "batch_axis", 1)),
			   tn_attr_int(TN_ATTR_TIME_AXIS, tn_ox_int(x, "time_axis", 0))};
	uint32_t in[2], t;

	TN_TRY(tn_ox_tensor(x, 0, &in[0]));
	TN_TRY(tn_ox_tensor(x, 1, &in[1]));
	TN_TRY(tn_ox_add(x, TN_OP_REVERSE_SEQUENCE, in, 2, attrs, 2, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}
