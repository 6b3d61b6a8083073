/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's convolutions, pools and normalisations. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/onnx/torchvision_test.py.
 */
#include <inttypes.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/onnx/import.h"

#define WINDOW_DIMS (TERN_RANK_MAX - 2u)

/* A window that slides over the dims behind (N,C). */
typedef struct window {
	uint32_t dims;
	const uint64_t *in; /* spatial dims of the input */
	int64_t kernel[WINDOW_DIMS], strides[WINDOW_DIMS], dilations[WINDOW_DIMS], pads[2 * WINDOW_DIMS];
} window;

static tern_status window_ints(tn_ox *x, const char *name, uint32_t n, int64_t dflt, int64_t *v)
{
	uint32_t has;

	TN_TRY(tn_ox_ints(x, name, v, n, &has));
	if (has != n && has != 0)
		return tn_ox_fail(x, TERN_E_CORRUPT, "its %s has %u numbers, not %u", name, has, n);
	for (uint32_t i = has; i < n; i++)
		v[i] = dflt;
	for (uint32_t i = 0; i < n; i++) {
		if (v[i] < (dflt ? 1 : 0) || v[i] > INT32_MAX)
			return tn_ox_fail(x, TERN_E_UNSUPPORTED, "number %u of its %s is %" PRIi64, i, name,
					  v[i]);
	}
	return TERN_OK;
}

/* Padding so that the output has ceil(in / stride) elements, the odd one at the end or at the beginning. */
static tern_status same_pads(tn_ox *x, window *w, bool upper)
{
	for (uint32_t i = 0; i < w->dims; i++) {
		int64_t reach = (w->kernel[i] - 1) * w->dilations[i] + 1, out, total;

		if (tn_dim_symbolic(w->in[i]))
			return tn_ox_fail(x, TERN_E_UNSUPPORTED,
					  "auto_pad over a symbolic dim: give its size");
		out = (int64_t)((w->in[i] + (uint64_t)w->strides[i] - 1) / (uint64_t)w->strides[i]);
		total = TN_MAX((out - 1) * w->strides[i] + reach - (int64_t)w->in[i], 0);
		w->pads[i] = upper ? total / 2 : total - total / 2;
		w->pads[i + w->dims] = total - w->pads[i];
	}
	return TERN_OK;
}

static tern_status read_pads(tn_ox *x, window *w)
{
	if (tn_ox_is(x, "auto_pad", "NOTSET", "SAME_UPPER"))
		return same_pads(x, w, true);
	if (tn_ox_is(x, "auto_pad", "NOTSET", "SAME_LOWER"))
		return same_pads(x, w, false);
	if (tn_ox_is(x, "auto_pad", "NOTSET", "NOTSET"))
		return window_ints(x, "pads", 2 * w->dims, 0, w->pads);
	if (!tn_ox_is(x, "auto_pad", "NOTSET", "VALID"))
		return tn_ox_fail(x, TERN_E_CORRUPT, "its auto_pad is none of ONNX's");
	for (uint32_t i = 0; i < 2 * w->dims; i++)
		w->pads[i] = 0;
	return TERN_OK;
}

/* weights: the kernel's shape is theirs if no attribute says it. */
static tern_status read_window(tn_ox *x, const tern_shape *weights, window *w)
{
	const tern_shape *in = &tn_ox_in(x, 0)->shape;

	if (in->rank < 3)
		return tn_ox_fail(x, TERN_E_SHAPE, "its input has rank %u, at least 3 is needed", in->rank);
	*w = (window){.dims = in->rank - 2, .in = in->dims + 2};
	if (weights && weights->rank != in->rank)
		return tn_ox_fail(x, TERN_E_SHAPE, "its input has rank %u, its weights %u", in->rank,
				  weights->rank);
	if (!weights && !tn_ox_has(x, "kernel_shape"))
		return tn_ox_fail(x, TERN_E_CORRUPT, "it has no kernel_shape");
	TN_TRY(window_ints(x, "kernel_shape", w->dims, 1, w->kernel));
	for (uint32_t i = 0; i < w->dims && weights; i++) {
		uint64_t dim = weights->dims[2 + i];

		if (tn_dim_symbolic(dim) || dim > INT32_MAX ||
		    (tn_ox_has(x, "kernel_shape") && (int64_t)dim != w->kernel[i]))
			return tn_ox_fail(x, TERN_E_SHAPE, "its kernel_shape is not that of its weights");
		w->kernel[i] = (int64_t)dim;
	}
	TN_TRY(window_ints(x, "strides", w->dims, 1, w->strides));
	return window_ints(x, "dilations", w->dims, 1, w->dilations);
}

/* The attributes that convolutions and pools share. */
static uint32_t window_attrs(const window *w, tn_attr *attrs)
{
	attrs[0] = tn_ox_attr_ints(TN_ATTR_KERNEL_SHAPE, w->kernel, w->dims);
	attrs[1] = tn_ox_attr_ints(TN_ATTR_STRIDES, w->strides, w->dims);
	attrs[2] = tn_ox_attr_ints(TN_ATTR_DILATIONS, w->dilations, w->dims);
	attrs[3] = tn_ox_attr_ints(TN_ATTR_PADS, w->pads, 2 * w->dims);
	return 4;
}

static tern_status build(tn_ox *x, tn_op op, uint32_t inputs, const tn_attr *attrs, uint32_t n_attrs)
{
	uint32_t in[3], t, n = 0;

	for (uint32_t i = 0; i < inputs && i < 3; i++) {
		if (tn_ox_in(x, i))
			TN_TRY(tn_ox_tensor(x, i, &in[n++]));
	}
	TN_TRY(tn_ox_add(x, op, in, n, attrs, n_attrs, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_conv(tn_ox *x)
{
	tn_attr attrs[5];
	window w;
	uint32_t n;

	TN_TRY(read_window(x, &tn_ox_in(x, 1)->shape, &w));
	TN_TRY(read_pads(x, &w));
	n = window_attrs(&w, attrs);
	attrs[n++] = tn_attr_int(TN_ATTR_GROUP, tn_ox_int(x, "group", 1));
	return build(x, TN_OP_CONV, 3, attrs, n);
}

/* Padding of a transposed convolution whose output's size is given. */
static tern_status pads_for_output(tn_ox *x, window *w, int64_t *more, const int64_t *size)
{
	bool upper = tn_ox_is(x, "auto_pad", "NOTSET", "SAME_UPPER");

	for (uint32_t i = 0; i < w->dims; i++) {
		int64_t total, reach = (w->kernel[i] - 1) * w->dilations[i] + 1;

		if (tn_dim_symbolic(w->in[i]) || w->in[i] > INT32_MAX)
			return tn_ox_fail(x, TERN_E_UNSUPPORTED,
					  "its output's size over a symbolic dim: give its size");
		total = w->strides[i] * ((int64_t)w->in[i] - 1) + more[i] + reach - size[i];
		if (total < 0) { /* larger than the window gives */
			more[i] -= total;
			total = 0;
		}
		w->pads[i] = upper ? total / 2 : total - total / 2;
		w->pads[i + w->dims] = total - w->pads[i];
	}
	return TERN_OK;
}

static tern_status transpose_pads(tn_ox *x, window *w, int64_t *more)
{
	bool same = tn_ox_is(x, "auto_pad", "NOTSET", "SAME_UPPER") ||
		    tn_ox_is(x, "auto_pad", "NOTSET", "SAME_LOWER");
	int64_t size[WINDOW_DIMS];

	if (tn_ox_has(x, "output_shape")) {
		TN_TRY(window_ints(x, "output_shape", w->dims, 1, size));
		return pads_for_output(x, w, more, size);
	}
	if (!same)
		return read_pads(x, w);
	for (uint32_t i = 0; i < w->dims; i++)
		size[i] = tn_dim_symbolic(w->in[i]) || w->in[i] > INT32_MAX
				  ? 0
				  : (int64_t)w->in[i] * w->strides[i];
	return pads_for_output(x, w, more, size);
}

tern_status tn_ox_op_conv_transpose(tn_ox *x)
{
	int64_t more[WINDOW_DIMS];
	tn_attr attrs[6];
	window w;
	uint32_t n;

	TN_TRY(read_window(x, &tn_ox_in(x, 1)->shape, &w));
	TN_TRY(window_ints(x, "output_padding", w.dims, 0, more));
	TN_TRY(transpose_pads(x, &w, more));
	n = window_attrs(&w, attrs);
	attrs[n++] = tn_attr_int(TN_ATTR_GROUP, tn_ox_int(x, "group", 1));
	attrs[n++] = tn_ox_attr_ints(TN_ATTR_OUTPUT_PADDING, more, w.dims);
	return build(x, TN_OP_CONV_TRANSPOSE, 3, attrs, n);
}

/* ---- pools ---- */

static tern_status read_pool(tn_ox *x, tn_attr *attrs, uint32_t *n)
{
	window w;

	TN_TRY(read_window(x, NULL, &w));
	TN_TRY(read_pads(x, &w));
	*n = window_attrs(&w, attrs);
	attrs[(*n)++] = tn_attr_int(TN_ATTR_CEIL_MODE, tn_ox_int(x, "ceil_mode", 0) != 0);
	return TERN_OK;
}

/* Maxima of small types are exact in f32. */
tern_status tn_ox_op_max_pool(tn_ox *x)
{
	tern_dtype dtype = tn_ox_in(x, 0)->dtype;
	bool small = dtype == TERN_U8 || dtype == TERN_I8 || dtype == TERN_F16 || dtype == TERN_BF16;
	tn_attr attrs[6];
	uint32_t t, n, outs[TN_OUTS_MAX];

	TN_TRY(read_pool(x, attrs, &n));
	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (!tn_ox_wants(x, 1)) {
		TN_TRY(tn_ox_cast(x, t, small ? TERN_F32 : dtype, &t));
		TN_TRY(tn_ox_add(x, TN_OP_MAX_POOL, &t, 1, attrs, n, &t));
		TN_TRY(tn_ox_cast(x, t, dtype, &t));
		tn_ox_out(x, 0, t);
		return TERN_OK;
	}
	attrs[n++] = tn_attr_int(TN_ATTR_STORAGE_ORDER, tn_ox_int(x, "storage_order", 0) != 0);
	TN_TRY(tn_ox_add_outs(x, TN_OP_MAX_POOL_INDICES, &t, 1, attrs, n, outs));
	tn_ox_out(x, 0, outs[0]);
	tn_ox_out(x, 1, outs[1]);
	return TERN_OK;
}

tern_status tn_ox_op_average_pool(tn_ox *x)
{
	tn_attr attrs[6];
	uint32_t n;

	TN_TRY(read_pool(x, attrs, &n));
	attrs[n++] = tn_attr_int(TN_ATTR_COUNT_INCLUDE_PAD, tn_ox_int(x, "count_include_pad", 0) != 0);
	return build(x, TN_OP_AVERAGE_POOL, 1, attrs, n);
}

tern_status tn_ox_op_lp_pool(tn_ox *x)
{
	tn_attr attrs[6];
	uint32_t n;

	TN_TRY(read_pool(x, attrs, &n));
	attrs[n++] = tn_attr_int(TN_ATTR_P, tn_ox_int(x, "p", 2));
	return build(x, TN_OP_LP_POOL, 1, attrs, n);
}

tern_status tn_ox_op_global_pool(tn_ox *x)
{
	return build(x, x->op->op, 1, NULL, 0);
}

/* ---- normalisations ---- */

/* (C) as (1,C,1,...): lies along the channels of a tensor of this rank. */
static tern_status along_channels(tn_ox *x, uint32_t t, uint32_t rank, uint32_t *out)
{
	tern_shape shape = {.rank = rank};

	for (uint32_t i = 0; i < rank; i++)
		shape.dims[i] = i == 1 ? tn_ox_shape_of(x, t)->dims[0] : 1;
	return tn_ox_reshape(x, t, &shape, out);
}

/* old * momentum + now * (1 - momentum) */
static tern_status running(tn_ox *x, uint32_t input, uint32_t output, uint32_t now, double momentum)
{
	uint32_t old, a, b;

	if (!tn_ox_wants(x, output))
		return TERN_OK;
	TN_TRY(tn_ox_tensor(x, input, &old));
	TN_TRY(tn_ox_scalar(x, TERN_F32, momentum, &a));
	TN_TRY(tn_ox_scalar(x, TERN_F32, 1 - momentum, &b));
	TN_TRY(tn_ox_binary(x, TN_OP_MUL, old, a, &a));
	TN_TRY(tn_ox_binary(x, TN_OP_MUL, now, b, &b));
	TN_TRY(tn_ox_binary(x, TN_OP_ADD, a, b, &a));
	tn_ox_out(x, output, a);
	return TERN_OK;
}

/* Statistics of the batch itself; the running ones are the outputs 1 and 2. */
static tern_status batch_norm_train(tn_ox *x, const uint32_t *in, const tn_attr *epsilon)
{
	double momentum = tn_ox_real(x, "momentum", 0.9);
	tn_attr attrs[] = {{.key = TN_ATTR_AXES}, tn_attr_int(TN_ATTR_KEEP_DIMS, 0)};
	uint32_t outs[TN_OUTS_MAX], mean, centred, rank = tn_ox_shape_of(x, in[0])->rank;

	TN_TRY(tn_ox_add_outs(x, TN_OP_BATCH_NORM_TRAIN, in, 3, epsilon, 1, outs));
	tn_ox_out(x, 0, outs[0]);
	if (!tn_ox_wants(x, 1) && !tn_ox_wants(x, 2))
		return TERN_OK;
	for (uint32_t i = 0; i < rank; i++) {
		if (i != 1)
			attrs[0].u.ints.v[attrs[0].u.ints.n++] = i;
	}
	TN_TRY(running(x, 3, 1, outs[1], momentum));
	TN_TRY(along_channels(x, outs[1], rank, &mean));
	TN_TRY(tn_ox_binary(x, TN_OP_SUB, in[0], mean, &centred));
	TN_TRY(tn_ox_binary(x, TN_OP_MUL, centred, centred, &centred));
	TN_TRY(tn_ox_add(x, TN_OP_REDUCE_MEAN, &centred, 1, attrs, 2, &centred));
	return running(x, 4, 2, centred, momentum);
}

tern_status tn_ox_op_batch_norm(tn_ox *x)
{
	tn_attr epsilon = tn_attr_float(TN_ATTR_EPSILON, tn_ox_real(x, "epsilon", 1e-5));
	uint32_t in[5], t;

	for (uint32_t i = 0; i < 5; i++)
		TN_TRY(i < 3 ? tn_ox_tensor(x, i, &in[i]) : tn_ox_frozen_tensor(x, i, &in[i]));
	if (tn_ox_shape_of(x, in[0])->rank < 2)
		return tn_ox_fail(x, TERN_E_SHAPE, "its input has no channels");
	if (x->opset >= 14 && tn_ox_int(x, "training_mode", 0))
		return batch_norm_train(x, in, &epsilon);
	TN_TRY(tn_ox_add(x, TN_OP_BATCH_NORM, in, 5, &epsilon, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_lrn(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_SIZE, tn_ox_int(x, "size", 0)),
			   tn_attr_float(TN_ATTR_ALPHA, tn_ox_real(x, "alpha", 1e-4)),
			   tn_attr_float(TN_ATTR_BETA, tn_ox_real(x, "beta", 0.75)),
			   tn_attr_float(TN_ATTR_BIAS, tn_ox_real(x, "bias", 1.0))};

	return build(x, TN_OP_LRN, 1, attrs, 4);
}

tern_status tn_ox_op_instance_norm(tn_ox *x)
{
	tn_attr attr = tn_attr_float(TN_ATTR_EPSILON, tn_ox_real(x, "epsilon", 1e-5));

	return build(x, TN_OP_INSTANCE_NORM, 3, &attr, 1);
}

/* Scale and shift as long as the rows, whatever they are broadcast from. */
static tern_status row_vector(tn_ox *x, uint32_t i, const tern_shape *rows, double dflt, uint32_t *t)
{
	tn_attr shape = {.key = TN_ATTR_SHAPE, .u.ints = {.n = rows->rank}};

	if (tn_ox_in(x, i))
		TN_TRY(tn_ox_tensor(x, i, t));
	else
		TN_TRY(tn_ox_scalar(x, TERN_F32, dflt, t));
	if (tn_shape_equal(tn_ox_shape_of(x, *t), rows))
		return TERN_OK;
	for (uint32_t k = 0; k < rows->rank; k++)
		shape.u.ints.v[k] = (int64_t)rows->dims[k];
	return tn_ox_add(x, TN_OP_EXPAND, t, 1, &shape, 1, t);
}

tern_status tn_ox_op_layer_norm(tn_ox *x)
{
	const tern_shape *s = &tn_ox_in(x, 0)->shape;
	tn_attr attrs[] = {tn_attr_float(TN_ATTR_EPSILON, tn_ox_real(x, "epsilon", 1e-5)),
			   {.key = TN_ATTR_AXIS}};
	tern_shape rows = {.rank = 0}, groups = *s;
	uint32_t in[3], outs[TN_OUTS_MAX], axis;

	TN_TRY(tn_ox_axis(x, tn_ox_int(x, "axis", -1), s->rank, &axis));
	attrs[1].u.i = axis;
	for (uint32_t i = axis; i < s->rank; i++) {
		rows.dims[rows.rank++] = s->dims[i];
		groups.dims[i] = 1;
	}
	TN_TRY(tn_ox_tensor(x, 0, &in[0]));
	TN_TRY(row_vector(x, 1, &rows, 1, &in[1]));
	TN_TRY(row_vector(x, 2, &rows, 0, &in[2]));
	TN_TRY(tn_ox_add_outs(x, TN_OP_LAYER_NORM, in, 3, attrs, 2, outs));
	tn_ox_out(x, 0, outs[0]);
	for (uint32_t i = 1; i < 3; i++) {
		if (!tn_ox_wants(x, i))
			continue;
		TN_TRY(tn_ox_reshape(x, outs[i], &groups, &outs[i]));
		tn_ox_out(x, i, outs[i]);
	}
	return TERN_OK;
}
