/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's elementwise ops, and Gemm. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/unit/graph/onnx_test.c.
 */
#include "base/fail.h"
#include "graph/onnx/import.h"

tern_status tn_ox_op_unary(tn_ox *x)
{
	uint32_t t;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_unary(x, x->op->op, t, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* Activations with parameters, whose defaults are those of ONNX. */
tern_status tn_ox_op_alpha(tn_ox *x)
{
	static const struct {
		tn_op op;
		double alpha;
		tn_attr_key second;
		const char *second_name;
		double second_default;
	} rows[] = {
		{TN_OP_ELU, 1.0, 0, NULL, 0},
		{TN_OP_CELU, 1.0, 0, NULL, 0},
		{TN_OP_LEAKY_RELU, 0.01, 0, NULL, 0},
		{TN_OP_THRESHOLDED_RELU, 1.0, 0, NULL, 0},
		{TN_OP_HARD_SIGMOID, 0.2, TN_ATTR_BETA, "beta", 0.5},
		{TN_OP_SELU, 1.67326319217681884765625, TN_ATTR_GAMMA, "gamma", 1.05070102214813232421875},
	};
	uint32_t t, row = 0;
	tn_attr attrs[2];

	while (rows[row].op != x->op->op)
		row++;
	attrs[0] = tn_attr_float(TN_ATTR_ALPHA, tn_ox_real(x, "alpha", rows[row].alpha));
	if (rows[row].second_name)
		attrs[1] = tn_attr_float(rows[row].second,
					 tn_ox_real(x, rows[row].second_name, rows[row].second_default));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, x->op->op, &t, 1, attrs, rows[row].second_name ? 2 : 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_shrink(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_float(TN_ATTR_ALPHA, tn_ox_real(x, "lambd", 0.5)),
			   tn_attr_float(TN_ATTR_BIAS, tn_ox_real(x, "bias", 0.0))};
	uint32_t t;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_SHRINK, &t, 1, attrs, 2, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_binary(tn_ox *x)
{
	uint32_t a, b;

	TN_TRY(tn_ox_tensor(x, 0, &a));
	TN_TRY(tn_ox_tensor(x, 1, &b));
	TN_TRY(tn_ox_binary(x, x->op->op, a, b, &a));
	tn_ox_out(x, 0, a);
	return TERN_OK;
}

/* Any number of inputs, from left to right. */
static tern_status fold_inputs(tn_ox *x, tn_op op, uint32_t *sum)
{
	uint32_t t;

	TN_TRY(tn_ox_tensor(x, 0, sum));
	for (uint32_t i = 1; i < tn_ox_inputs(x); i++) {
		TN_TRY(tn_ox_tensor(x, i, &t));
		TN_TRY(tn_ox_binary(x, op, *sum, t, sum));
	}
	return TERN_OK;
}

tern_status tn_ox_op_fold_binary(tn_ox *x)
{
	uint32_t t;

	TN_TRY(fold_inputs(x, x->op->op, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_mean(tn_ox *x)
{
	uint32_t t, n;

	TN_TRY(fold_inputs(x, TN_OP_ADD, &t));
	if (tn_ox_inputs(x) > 1) {
		TN_TRY(tn_ox_scalar(x, tn_ox_dtype_of(x, t), (double)tn_ox_inputs(x), &n));
		TN_TRY(tn_ox_binary(x, TN_OP_DIV, t, n, &t));
	}
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* One bound: an attribute where it is known, else a Min or Max. */
static tern_status clip_bound(tn_ox *x, uint32_t i, tn_attr_key key, tn_op op, tn_attr *attrs, uint32_t *n,
			      uint32_t *t)
{
	uint32_t bound;
	double v;

	if (!tn_ox_in(x, i))
		return TERN_OK;
	if (!tn_ox_is_known(x, i)) {
		TN_TRY(tn_ox_tensor(x, i, &bound));
		return tn_ox_binary(x, op, *t, bound, t);
	}
	TN_TRY(tn_ox_known_real(x, i, 0, &v));
	attrs[(*n)++] = tn_attr_float(key, v);
	return TERN_OK;
}

tern_status tn_ox_op_clip(tn_ox *x)
{
	tn_attr attrs[2];
	uint32_t t, n = 0;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (x->opset < 11) {
		if (tn_ox_has(x, "min"))
			attrs[n++] = tn_attr_float(TN_ATTR_MIN, tn_ox_real(x, "min", 0));
		if (tn_ox_has(x, "max"))
			attrs[n++] = tn_attr_float(TN_ATTR_MAX, tn_ox_real(x, "max", 0));
	} else {
		TN_TRY(clip_bound(x, 1, TN_ATTR_MIN, TN_OP_MAXIMUM, attrs, &n, &t));
		TN_TRY(clip_bound(x, 2, TN_ATTR_MAX, TN_OP_MINIMUM, attrs, &n, &t));
	}
	if (n > 0)
		TN_TRY(tn_ox_add(x, TN_OP_CLIP_VALUES, &t, 1, attrs, n, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

static tern_status cast_to(tn_ox *x, tern_dtype dtype)
{
	const tn_ox_value *v = tn_ox_in(x, 0);
	uint32_t t;

	/* dims stay dims */
	if (v->kind == TN_OX_CONST && v->symbols && dtype == TERN_I64)
		return tn_ox_out_known(x, 0, v->dtype, &v->shape, tn_values_ref(v->data), true);
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_cast(x, t, dtype, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_cast(tn_ox *x)
{
	int64_t to = tn_ox_int(x, "to", 0);
	tern_dtype dtype = to >= 0 && to <= INT32_MAX ? tn_ox_dtype((int32_t)to) : 0;

	if (!dtype)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern has no type %s",
				  to >= 0 && to <= INT32_MAX ? tn_ox_dtype_name((int32_t)to) : "?");
	return cast_to(x, dtype);
}

tern_status tn_ox_op_cast_like(tn_ox *x)
{
	return cast_to(x, tn_ox_in(x, 1)->dtype);
}

tern_status tn_ox_op_is_inf(tn_ox *x)
{
	int64_t detect =
		(tn_ox_int(x, "detect_positive", 1) ? 1 : 0) | (tn_ox_int(x, "detect_negative", 1) ? 2 : 0);
	tn_attr attr = tn_attr_int(TN_ATTR_DETECT, detect);
	uint32_t t;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_IS_INF, &t, 1, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

static tern_status binary_with(tn_ox *x, tn_op op, tn_attr attr)
{
	uint32_t in[2], t;

	TN_TRY(tn_ox_tensor(x, 0, &in[0]));
	TN_TRY(tn_ox_tensor(x, 1, &in[1]));
	TN_TRY(tn_ox_add(x, op, in, 2, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_mod(tn_ox *x)
{
	return binary_with(x, TN_OP_MOD, tn_attr_int(TN_ATTR_FMOD, tn_ox_int(x, "fmod", 0) != 0));
}

tern_status tn_ox_op_bit_shift(tn_ox *x)
{
	bool right = tn_ox_is(x, "direction", "", "RIGHT");

	if (!right && !tn_ox_is(x, "direction", "", "LEFT"))
		return tn_ox_fail(x, TERN_E_CORRUPT, "its direction is neither LEFT nor RIGHT");
	return binary_with(x, TN_OP_BIT_SHIFT, tn_attr_int(TN_ATTR_DIRECTION, right));
}

tern_status tn_ox_op_where(tn_ox *x)
{
	uint32_t in[3], t;

	for (uint32_t i = 0; i < 3; i++)
		TN_TRY(tn_ox_tensor(x, i, &in[i]));
	TN_TRY(tn_ox_add(x, TN_OP_WHERE, in, 3, NULL, 0, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* At inference nothing is dropped. Models that were exported in training mode are not for import. */
tern_status tn_ox_op_dropout(tn_ox *x)
{
	int64_t training = 0;
	double ratio = 0.5;
	uint32_t t, one;

	if (x->opset >= 12)
		TN_TRY(tn_ox_known_int(x, 2, 0, &training));
	if (training)
		TN_TRY(tn_ox_known_real(x, 1, 0.5, &ratio));
	if (training && ratio > 0)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "it is in training mode: export the model for inference");
	TN_TRY(tn_ox_tensor(x, 0, &t));
	tn_ox_out(x, 0, t);
	if (!tn_ox_wants(x, 1))
		return TERN_OK;
	TN_TRY(tn_ox_scalar(x, x->opset < 10 ? tn_ox_dtype_of(x, t) : TERN_BOOL, 1, &one));
	if (tn_ox_shape_of(x, t)->rank > 0) {
		tn_attr shape = {.key = TN_ATTR_SHAPE, .u.ints = {.n = tn_ox_shape_of(x, t)->rank}};

		for (uint32_t i = 0; i < shape.u.ints.n; i++)
			shape.u.ints.v[i] = (int64_t)tn_ox_shape_of(x, t)->dims[i];
		TN_TRY(tn_ox_add(x, TN_OP_EXPAND, &one, 1, &shape, 1, &one));
	}
	tn_ox_out(x, 1, one);
	return TERN_OK;
}

static tern_status scaled(tn_ox *x, uint32_t t, double factor, uint32_t *out)
{
	tn_attr scale = tn_attr_float(TN_ATTR_SCALE, factor);
	uint32_t f;

	*out = t;
	if (factor == 1.0)
		return TERN_OK;
	if (tn_ox_dtype_of(x, t) == TERN_F32)
		return tn_ox_add(x, TN_OP_SCALE, &t, 1, &scale, 1, out);
	TN_TRY(tn_ox_scalar(x, tn_ox_dtype_of(x, t), factor, &f));
	return tn_ox_binary(x, TN_OP_MUL, t, f, out);
}

/* alpha * op(A) op(B) + beta * C */
tern_status tn_ox_op_gemm(tn_ox *x)
{
	tn_attr trans[] = {tn_attr_int(TN_ATTR_TRANS_A, tn_ox_int(x, "transA", 0) != 0),
			   tn_attr_int(TN_ATTR_TRANS_B, tn_ox_int(x, "transB", 0) != 0)};
	uint32_t in[2], t, c;

	TN_TRY(tn_ox_tensor(x, 0, &in[0]));
	TN_TRY(tn_ox_tensor(x, 1, &in[1]));
	TN_TRY(tn_ox_add(x, TN_OP_MATMUL, in, 2, trans, 2, &t));
	TN_TRY(scaled(x, t, tn_ox_real(x, "alpha", 1.0), &t));
	if (tn_ox_in(x, 2)) {
		const tern_shape *y, *s;

		TN_TRY(tn_ox_tensor(x, 2, &c));
		TN_TRY(scaled(x, c, tn_ox_real(x, "beta", 1.0), &c));
		y = tn_ox_shape_of(x, t); /* tensors move when the graph grows */
		s = tn_ox_shape_of(x, c);
		TN_TRY(tn_ox_binary(x, s->rank == 1 && s->dims[0] == y->dims[1] ? TN_OP_BIAS_ADD : TN_OP_ADD,
				    t, c, &t));
	}
	tn_ox_out(x, 0, t);
	return TERN_OK;
}
