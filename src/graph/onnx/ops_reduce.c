/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's ops along axes: reductions, softmax, sorting. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/unit/graph/onnx_test.c.
 */
#include "base/fail.h"
#include "graph/onnx/import.h"

tern_status tn_ox_op_reduce(tn_ox *x)
{
	tn_attr attrs[2] = {{.key = TN_ATTR_AXES},
			    tn_attr_int(TN_ATTR_KEEP_DIMS, tn_ox_int(x, "keepdims", 1) != 0)};
	uint32_t t, n, axis;

	TN_TRY(tn_ox_axes(x, "axes", x->op->op == TN_OP_REDUCE_SUM ? 13 : 18, 1, attrs[0].u.ints.v, &n));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (n == 0 && tn_ox_int(x, "noop_with_empty_axes", 0)) {
		tn_ox_out(x, 0, t);
		return TERN_OK;
	}
	for (uint32_t i = 0; i < n; i++) {
		TN_TRY(tn_ox_axis(x, attrs[0].u.ints.v[i], tn_ox_shape_of(x, t)->rank, &axis));
		attrs[0].u.ints.v[i] = axis;
	}
	attrs[0].u.ints.n = n;
	TN_TRY(tn_ox_add(x, x->op->op, &t, 1, n ? attrs : attrs + 1, n ? 2 : 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_arg(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", 0)),
			   tn_attr_int(TN_ATTR_KEEP_DIMS, tn_ox_int(x, "keepdims", 1) != 0),
			   tn_attr_int(TN_ATTR_LAST, tn_ox_int(x, "select_last_index", 0) != 0)};
	uint32_t t;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, x->op->op, &t, 1, attrs, 3, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* The dims from `axis` on as one; false if a symbolic dim is among several. */
static bool join_tail(const tern_shape *from, uint32_t axis, tern_shape *to)
{
	uint64_t n = 1, symbol = 0;
	bool has_symbol = false;

	for (uint32_t i = axis; i < from->rank; i++) {
		if (tn_dim_symbolic(from->dims[i])) {
			if (has_symbol)
				return false;
			has_symbol = true;
			symbol = from->dims[i];
		} else if (__builtin_mul_overflow(n, from->dims[i], &n)) {
			return false;
		}
	}
	if (has_symbol && n != 1)
		return false;
	*to = *from;
	to->rank = axis + 1;
	to->dims[axis] = has_symbol ? symbol : n;
	return true;
}

/* Before opset 13 all dims from the axis on count as one. */
tern_status tn_ox_op_softmax(tn_ox *x)
{
	int64_t axis = tn_ox_int(x, "axis", x->opset < 13 ? 1 : -1);
	tern_shape shape, joined;
	uint32_t t, at;
	tn_attr attr;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	shape = *tn_ox_shape_of(x, t);
	TN_TRY(tn_ox_axis(x, axis, shape.rank, &at));
	attr = tn_attr_int(TN_ATTR_AXIS, at);
	if (x->opset >= 13 || at + 1 == shape.rank) {
		TN_TRY(tn_ox_add(x, x->op->op, &t, 1, &attr, 1, &t));
		tn_ox_out(x, 0, t);
		return TERN_OK;
	}
	if (!join_tail(&shape, at, &joined))
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "a symbolic dim is among those from axis %u on", at);
	TN_TRY(tn_ox_reshape(x, t, &joined, &t));
	TN_TRY(tn_ox_add(x, x->op->op, &t, 1, &attr, 1, &t));
	TN_TRY(tn_ox_reshape(x, t, &shape, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_cum_sum(tn_ox *x)
{
	tn_attr attrs[] = {{.key = TN_ATTR_AXIS},
			   tn_attr_int(TN_ATTR_EXCLUSIVE, tn_ox_int(x, "exclusive", 0) != 0),
			   tn_attr_int(TN_ATTR_REVERSE, tn_ox_int(x, "reverse", 0) != 0)};
	uint32_t t;

	TN_TRY(tn_ox_known_int(x, 1, 0, &attrs[0].u.i));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_CUM_SUM, &t, 1, attrs, 3, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_top_k(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", -1)),
			   {.key = TN_ATTR_K},
			   tn_attr_int(TN_ATTR_LARGEST, tn_ox_int(x, "largest", 1) != 0)};
	uint32_t t, outs[TN_OUTS_MAX];

	if (x->opset < 10)
		attrs[1].u.i = tn_ox_int(x, "k", 0);
	else
		TN_TRY(tn_ox_known_int(x, 1, 0, &attrs[1].u.i));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add_outs(x, TN_OP_TOP_K, &t, 1, attrs, 3, outs));
	tn_ox_out(x, 0, outs[0]);
	tn_ox_out(x, 1, outs[1]);
	return TERN_OK;
}

/* (X - mean) / (deviation + 1e-9), as ONNX's function has it. */
tern_status tn_ox_op_mean_variance(tn_ox *x)
{
	tn_attr attrs[] = {{.key = TN_ATTR_AXES}, tn_attr_int(TN_ATTR_KEEP_DIMS, 1)};
	uint32_t t, n, mean, centred, square, eps, axis;

	TN_TRY(tn_ox_ints(x, "axes", attrs[0].u.ints.v, TERN_RANK_MAX, &n));
	if (!tn_ox_has(x, "axes")) {
		static const int64_t usual[] = {0, 2, 3};

		for (n = 0; n < 3; n++)
			attrs[0].u.ints.v[n] = usual[n];
	}
	attrs[0].u.ints.n = n;
	TN_TRY(tn_ox_tensor(x, 0, &t));
	for (uint32_t i = 0; i < n; i++) {
		TN_TRY(tn_ox_axis(x, attrs[0].u.ints.v[i], tn_ox_shape_of(x, t)->rank, &axis));
		attrs[0].u.ints.v[i] = axis;
	}
	TN_TRY(tn_ox_add(x, TN_OP_REDUCE_MEAN, &t, 1, attrs, 2, &mean));
	TN_TRY(tn_ox_binary(x, TN_OP_SUB, t, mean, &centred));
	TN_TRY(tn_ox_binary(x, TN_OP_MUL, centred, centred, &square));
	TN_TRY(tn_ox_add(x, TN_OP_REDUCE_MEAN, &square, 1, attrs, 2, &square));
	TN_TRY(tn_ox_unary(x, TN_OP_SQRT, square, &square));
	TN_TRY(tn_ox_scalar(x, tn_ox_dtype_of(x, t), 1e-9, &eps));
	TN_TRY(tn_ox_binary(x, TN_OP_ADD, square, eps, &square));
	TN_TRY(tn_ox_binary(x, TN_OP_DIV, centred, square, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}
