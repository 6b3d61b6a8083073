/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's losses, put together from the graph's ops, and quantisation. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py.
 */
#include "base/fail.h"
#include "graph/onnx/import.h"

/* What the formulas below pass on. Shapes: (N,C,d...) of scores, (N,d...) of the others. */
typedef struct loss {
	uint32_t scores, labels;
	uint32_t weights; /* per element; TN_NONE: all 1 */
	uint32_t each;    /* loss per element */
} loss;

static tern_status where(tn_ox *x, uint32_t condition, uint32_t a, uint32_t b, uint32_t *out)
{
	return tn_ox_add(x, TN_OP_WHERE, (uint32_t[]){condition, a, b}, 3, NULL, 0, out);
}

/* Labels that count for nothing become class 0 with weight 0. */
static tern_status take_labels(tn_ox *x, loss *l)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, 0);
	uint32_t ignored = TN_NONE, zero, one, t;
	tern_dtype dtype;

	TN_TRY(tn_ox_tensor(x, 1, &l->labels));
	dtype = tn_ox_dtype_of(x, l->labels);
	if (tn_ox_has(x, "ignore_index")) {
		TN_TRY(tn_ox_scalar(x, dtype, (double)tn_ox_int(x, "ignore_index", 0), &t));
		TN_TRY(tn_ox_binary(x, TN_OP_EQUAL, l->labels, t, &ignored));
		TN_TRY(tn_ox_scalar(x, dtype, 0, &zero));
		TN_TRY(where(x, ignored, zero, l->labels, &l->labels));
	}
	l->weights = TN_NONE;
	if (tn_ox_in(x, 2)) {
		TN_TRY(tn_ox_tensor(x, 2, &t));
		TN_TRY(tn_ox_add(x, TN_OP_GATHER, (uint32_t[]){t, l->labels}, 2, &axis, 1, &l->weights));
	}
	if (ignored == TN_NONE)
		return TERN_OK;
	TN_TRY(tn_ox_scalar(x, TERN_F32, 0, &zero));
	TN_TRY(tn_ox_scalar(x, TERN_F32, 1, &one));
	return where(x, ignored, zero, l->weights == TN_NONE ? one : l->weights, &l->weights);
}

/* -weights * scores[label] */
static tern_status each_element(tn_ox *x, loss *l)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, 1);
	tern_shape flat = *tn_ox_shape_of(x, l->labels), with_class;
	uint32_t index, picked;

	if (tn_ox_shape_of(x, l->scores)->rank != flat.rank + 1 || flat.rank < 1)
		return tn_ox_fail(x, TERN_E_SHAPE, "its labels have rank %u, its scores %u", flat.rank,
				  tn_ox_shape_of(x, l->scores)->rank);
	with_class = (tern_shape){.rank = flat.rank + 1, .dims = {flat.dims[0], 1}};
	for (uint32_t i = 1; i < flat.rank; i++)
		with_class.dims[i + 1] = flat.dims[i];
	TN_TRY(tn_ox_reshape(x, l->labels, &with_class, &index));
	TN_TRY(tn_ox_add(x, TN_OP_GATHER_ELEMENTS, (uint32_t[]){l->scores, index}, 2, &axis, 1, &picked));
	TN_TRY(tn_ox_unary(x, TN_OP_NEG, picked, &picked));
	TN_TRY(tn_ox_reshape(x, picked, &flat, &l->each));
	return l->weights == TN_NONE ? TERN_OK : tn_ox_binary(x, TN_OP_MUL, l->each, l->weights, &l->each);
}

static tern_status reduce(tn_ox *x, const loss *l, uint32_t *out)
{
	uint32_t sum;

	if (tn_ox_is(x, "reduction", "mean", "none")) {
		*out = l->each;
		return TERN_OK;
	}
	if (tn_ox_is(x, "reduction", "mean", "sum"))
		return tn_ox_unary(x, TN_OP_REDUCE_SUM, l->each, out);
	if (!tn_ox_is(x, "reduction", "mean", "mean"))
		return tn_ox_fail(x, TERN_E_CORRUPT, "its reduction is none of ONNX's");
	if (l->weights == TN_NONE)
		return tn_ox_unary(x, TN_OP_REDUCE_MEAN, l->each, out);
	TN_TRY(tn_ox_unary(x, TN_OP_REDUCE_SUM, l->each, out));
	TN_TRY(tn_ox_unary(x, TN_OP_REDUCE_SUM, l->weights, &sum));
	return tn_ox_binary(x, TN_OP_DIV, *out, sum, out);
}

static tern_status finish(tn_ox *x, loss *l)
{
	uint32_t t;

	TN_TRY(take_labels(x, l));
	TN_TRY(each_element(x, l));
	TN_TRY(reduce(x, l, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_nll_loss(tn_ox *x)
{
	loss l;

	TN_TRY(tn_ox_tensor(x, 0, &l.scores));
	return finish(x, &l);
}

tern_status tn_ox_op_cross_entropy(tn_ox *x)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, 1);
	loss l;

	TN_TRY(tn_ox_tensor(x, 0, &l.scores));
	TN_TRY(tn_ox_add(x, TN_OP_LOG_SOFTMAX, &l.scores, 1, &axis, 1, &l.scores));
	tn_ox_out(x, 1, l.scores);
	return finish(x, &l);
}

/* ---- quantisation ---- */

/* Scale or zero point as f32: one number, or a vector along the axis. */
static tern_status along_axis(tn_ox *x, uint32_t i, uint32_t rank, uint32_t *t)
{
	tern_shape shape = {.rank = rank};
	uint32_t axis;

	TN_TRY(tn_ox_tensor(x, i, t));
	TN_TRY(tn_ox_cast(x, *t, TERN_F32, t));
	if (tn_ox_shape_of(x, *t)->rank == 0)
		return TERN_OK;
	TN_TRY(tn_ox_axis(x, tn_ox_int(x, "axis", 1), rank, &axis));
	for (uint32_t k = 0; k < rank; k++)
		shape.dims[k] = k == axis ? tn_ox_shape_of(x, *t)->dims[0] : 1;
	return tn_ox_reshape(x, *t, &shape, t);
}

/* saturate(round(X / scale) + zero) */
tern_status tn_ox_op_quantize(tn_ox *x)
{
	tern_dtype to = tn_ox_in(x, 2) ? tn_ox_in(x, 2)->dtype : TERN_U8;
	tn_attr bounds[] = {tn_attr_float(TN_ATTR_MIN, to == TERN_I8 ? -128 : 0),
			    tn_attr_float(TN_ATTR_MAX, to == TERN_I8 ? 127 : 255)};
	uint32_t t, scale, zero, rank;

	if (to != TERN_I8 && to != TERN_U8)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern does not quantise to %s", tern_dtype_name(to));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_cast(x, t, TERN_F32, &t));
	rank = tn_ox_shape_of(x, t)->rank;
	TN_TRY(along_axis(x, 1, rank, &scale));
	TN_TRY(tn_ox_binary(x, TN_OP_DIV, t, scale, &t));
	TN_TRY(tn_ox_unary(x, TN_OP_ROUND, t, &t));
	if (tn_ox_in(x, 2)) {
		TN_TRY(along_axis(x, 2, rank, &zero));
		TN_TRY(tn_ox_binary(x, TN_OP_ADD, t, zero, &t));
	}
	TN_TRY(tn_ox_add(x, TN_OP_CLIP_VALUES, &t, 1, bounds, 2, &t));
	TN_TRY(tn_ox_cast(x, t, to, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* (X - zero) * scale */
tern_status tn_ox_op_dequantize(tn_ox *x)
{
	uint32_t t, scale, zero, rank;

	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_cast(x, t, TERN_F32, &t));
	rank = tn_ox_shape_of(x, t)->rank;
	if (tn_ox_in(x, 2)) {
		TN_TRY(along_axis(x, 2, rank, &zero));
		TN_TRY(tn_ox_binary(x, TN_OP_SUB, t, zero, &t));
	}
	TN_TRY(along_axis(x, 1, rank, &scale));
	TN_TRY(tn_ox_binary(x, TN_OP_MUL, t, scale, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}
