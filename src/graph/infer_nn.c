/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of layers: products of matrices, convolutions, pools, norms. Recurrent layers are in
 * infer_rnn.c.
 *
 * A symbolic dim may be the batch anywhere; along it a window slides only where the output is as long as the
 * input (stride 1, padding of the kernel's reach), since a symbol stands for a size and not for a formula.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/nn_conv_test.c, nn_pool_test.c, nn_norm_test.c.
 */
#include "base/check.h"
#include "base/fail.h"
#include "graph/infer.h"
#include "graph/kern_nn.h"

/* ---- matrices ---- */

/* As NumPy has it: a vector is a row on the left and a column on the right, and is gone from the result. */
tern_status tn_infer_matmul(tn_infer *x)
{
	tern_shape a = tn_infer_in(x, 0)->shape, b = tn_infer_in(x, 1)->shape;
	bool ta = tn_node_int(x->node, TN_ATTR_TRANS_A, 0) != 0;
	bool tb = tn_node_int(x->node, TN_ATTR_TRANS_B, 0) != 0;
	bool row = a.rank == 1, column = b.rank == 1;
	char ta_text[TN_TENSOR_TEXT_MAX], tb_text[TN_TENSOR_TEXT_MAX];
	uint64_t m, n;

	TN_TRY(tn_want_f32(x, 0, 2));
	tn_tensor_text(x, 0, ta_text, sizeof(ta_text));
	tn_tensor_text(x, 1, tb_text, sizeof(tb_text));
	if (a.rank < 1 || b.rank < 1 || (row && ta) || (column && tb))
		return tn_misfit(x, "needs matrices, or vectors without a transpose, not %s and %s", ta_text,
				 tb_text);
	if (a.dims[a.rank - (ta ? 2 : 1)] != b.dims[b.rank - (tb || column ? 1 : 2)]) {
		return tn_misfit(x, "inner dims of %s%s and %s%s differ", ta_text, ta ? " (transposed)" : "",
				 tb_text, tb ? " (transposed)" : "");
	}
	m = row ? 0 : a.dims[a.rank - (ta ? 1 : 2)];
	n = column ? 0 : b.dims[b.rank - (tb ? 2 : 1)];
	a.rank -= row ? 1 : 2;
	b.rank -= column ? 1 : 2;
	x->dtype[0] = TERN_F32;
	if (!tn_shape_broadcast(&a, &b, &x->shape[0]))
		return tn_misfit(x, "the batches of %s and %s do not broadcast", ta_text, tb_text);
	if (!row)
		x->shape[0].dims[x->shape[0].rank++] = m;
	if (!column)
		x->shape[0].dims[x->shape[0].rank++] = n;
	return TERN_OK;
}

/* ---- windows ---- */

/* The attributes of a window over nd dims; weights give the kernel, or the attribute, or (global) nothing. */
typedef struct window {
	uint32_t nd;
	int64_t k[TN_WINDOW_DIMS], stride[TN_WINDOW_DIMS], dil[TN_WINDOW_DIMS];
	int64_t pad[TN_WINDOW_DIMS], pads[TN_WINDOW_DIMS]; /* before; before and behind */
} window;

/* An attribute with n values of at least `least`; dflt where it is not given. */
static tern_status window_ints(const tn_infer *x, tn_attr_key key, uint32_t n, int64_t least, int64_t dflt,
			       int64_t *v)
{
	const tn_attr *a = tn_node_attr(x->node, key);

	for (uint32_t i = 0; i < n; i++)
		v[i] = dflt;
	if (!a || a->u.ints.n == 0)
		return TERN_OK;
	if (a->u.ints.n != n)
		return tn_misfit(x, "%s has %u values, not %u", tn_attr_names[key], a->u.ints.n, n);
	for (uint32_t i = 0; i < n; i++) {
		v[i] = a->u.ints.v[i];
		if (v[i] < least || v[i] > INT32_MAX)
			return tn_misfit(x, "%s: %lld is below %lld or too large", tn_attr_names[key],
					 (long long)v[i], (long long)least);
	}
	return TERN_OK;
}

/* `in` (N,C,...) decides how many dims there are. weights: the input that they are, TN_NONE for a pool. */
static tern_status read_window(const tn_infer *x, const tern_shape *in, const tern_shape *weights, window *w)
{
	int64_t pads[2 * TN_WINDOW_DIMS];
	char text[TN_SHAPE_TEXT_MAX];

	if (in->rank < 3 || in->rank > 2 + TN_WINDOW_DIMS)
		return tn_misfit(x, "needs (N,C,...) with 1 to %u dims behind, not %s", TN_WINDOW_DIMS,
				 tn_shape_text(x->graph, in, text, sizeof(text)));
	w->nd = in->rank - 2;
	TN_TRY(window_ints(x, TN_ATTR_KERNEL_SHAPE, w->nd, 1, 1, w->k));
	TN_TRY(window_ints(x, TN_ATTR_STRIDES, w->nd, 1, 1, w->stride));
	TN_TRY(window_ints(x, TN_ATTR_DILATIONS, w->nd, 1, 1, w->dil));
	TN_TRY(window_ints(x, TN_ATTR_PADS, 2 * w->nd, 0, 0, pads));
	for (uint32_t i = 0; i < w->nd; i++) {
		w->pad[i] = pads[i];
		w->pads[i] = pads[i] + pads[w->nd + i];
		if (!weights)
			continue;
		if (weights->rank != in->rank || tn_dim_symbolic(weights->dims[2 + i]) ||
		    weights->dims[2 + i] == 0 || weights->dims[2 + i] > INT32_MAX)
			return tn_misfit(x, "the weights %s do not fit a window over %u dims",
					 tn_shape_text(x->graph, weights, text, sizeof(text)), w->nd);
		if (tn_node_attr(x->node, TN_ATTR_KERNEL_SHAPE) && w->k[i] != (int64_t)weights->dims[2 + i])
			return tn_misfit(x, "kernel_shape is not that of the weights %s",
					 tn_shape_text(x->graph, weights, text, sizeof(text)));
		w->k[i] = (int64_t)weights->dims[2 + i];
	}
	return TERN_OK;
}

/* The dims behind (N,C) of what a window makes of `in`. */
static tern_status slide(const tn_infer *x, const window *w, const tern_shape *in, bool ceil_mode,
			 tern_shape *out)
{
	out->rank = in->rank;
	for (uint32_t i = 0; i < w->nd; i++) {
		int64_t reach = (w->k[i] - 1) * w->dil[i] + 1, n;
		char text[TN_SHAPE_TEXT_MAX];

		if (tn_dim_symbolic(in->dims[2 + i])) {
			if (w->stride[i] != 1 || w->pads[i] != reach - 1)
				return tn_misfit(x,
						 "dim %u of %s is symbolic: only a window that keeps it "
						 "(stride 1, padding %lld) fits",
						 2 + i, tn_shape_text(x->graph, in, text, sizeof(text)),
						 (long long)(reach - 1));
			out->dims[2 + i] = in->dims[2 + i];
			continue;
		}
		n = tn_nn_out_dim((int64_t)in->dims[2 + i], w->k[i], w->stride[i], w->dil[i], w->pads[i],
				  ceil_mode, w->pad[i]);
		if (n < 1)
			return tn_misfit(x,
					 "a window of %lld does not fit into dim %u of %s with padding "
					 "%lld",
					 (long long)reach, 2 + i,
					 tn_shape_text(x->graph, in, text, sizeof(text)),
					 (long long)w->pads[i]);
		out->dims[2 + i] = (uint64_t)n;
	}
	return TERN_OK;
}

static tern_status want_shape(const tn_infer *x, uint32_t i, const tern_shape *want)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_SHAPE_TEXT_MAX];

	if (tn_shape_equal(&tn_infer_in(x, i)->shape, want))
		return tn_want_f32(x, i, 1);
	return tn_misfit(x, "%s should be %s", tn_tensor_text(x, i, a, sizeof(a)),
			 tn_shape_text(x->graph, want, b, sizeof(b)));
}

static void yields(tn_infer *x, uint32_t k, const tern_shape *shape)
{
	x->dtype[k] = TERN_F32;
	x->shape[k] = *shape;
}

static tern_status want_vector(const tn_infer *x, uint32_t i, uint64_t n)
{
	return want_shape(x, i, &(tern_shape){.rank = 1, .dims = {n}});
}

/* ---- convolution ---- */

/* What a convolution makes of `in` with `weights` (M, C/group, ...). */
static tern_status convolve(const tn_infer *x, const tern_shape *in, const tern_shape *weights,
			    tern_shape *out)
{
	int64_t group = tn_node_int(x->node, TN_ATTR_GROUP, 1);
	char a[TN_SHAPE_TEXT_MAX], b[TN_SHAPE_TEXT_MAX];
	window w = {0};

	TN_TRY(read_window(x, in, weights, &w));
	if (group < 1 || tn_dim_symbolic(in->dims[1]) || tn_dim_symbolic(weights->dims[0]) ||
	    in->dims[1] % (uint64_t)group || in->dims[1] / (uint64_t)group != weights->dims[1] ||
	    weights->dims[0] % (uint64_t)group) {
		return tn_misfit(x, "channels of %s, weights %s and group %lld do not fit",
				 tn_shape_text(x->graph, in, a, sizeof(a)),
				 tn_shape_text(x->graph, weights, b, sizeof(b)), (long long)group);
	}
	TN_TRY(slide(x, &w, in, false, out));
	out->dims[0] = in->dims[0];
	out->dims[1] = weights->dims[0];
	return TERN_OK;
}

tern_status tn_infer_conv(tn_infer *x)
{
	tern_shape out;

	TN_TRY(tn_want_f32(x, 0, 2));
	TN_TRY(convolve(x, &tn_infer_in(x, 0)->shape, &tn_infer_in(x, 1)->shape, &out));
	if (x->node->n_in > 2)
		TN_TRY(want_vector(x, 2, out.dims[1]));
	yields(x, 0, &out);
	return TERN_OK;
}

/* (dY, W) -> dX, whose shape is an attribute */
tern_status tn_infer_conv_grad_data(tn_infer *x)
{
	tern_shape in, out;

	TN_TRY(tn_want_f32(x, 0, 2));
	TN_TRY(tn_infer_shape_attr(x, &in));
	TN_TRY(convolve(x, &in, &tn_infer_in(x, 1)->shape, &out));
	TN_TRY(want_shape(x, 0, &out));
	yields(x, 0, &in);
	return TERN_OK;
}

/* (dY, X) -> dW, whose shape is an attribute */
tern_status tn_infer_conv_grad_weight(tn_infer *x)
{
	tern_shape weights, out;

	TN_TRY(tn_want_f32(x, 0, 2));
	TN_TRY(tn_infer_shape_attr(x, &weights));
	TN_TRY(convolve(x, &tn_infer_in(x, 1)->shape, &weights, &out));
	TN_TRY(want_shape(x, 0, &out));
	yields(x, 0, &weights);
	return TERN_OK;
}

tern_status tn_infer_conv_grad_bias(tn_infer *x)
{
	const tern_shape *dy = &tn_infer_in(x, 0)->shape;
	char a[TN_TENSOR_TEXT_MAX];

	TN_TRY(tn_want_f32(x, 0, 1));
	if (dy->rank < 2)
		return tn_misfit(x, "needs (N,C,...), not %s", tn_tensor_text(x, 0, a, sizeof(a)));
	yields(x, 0, &(tern_shape){.rank = 1, .dims = {dy->dims[1]}});
	return TERN_OK;
}

/* Of one dim of a transposed convolution: 0 for none, -1 for a symbolic dim that is kept. */
static int64_t stretch(uint64_t in, const window *w, uint32_t i, int64_t more)
{
	int64_t rest = (w->k[i] - 1) * w->dil[i] + 1 + more - w->pads[i], n;

	if (tn_dim_symbolic(in))
		return rest == 1 && w->stride[i] == 1 ? -1 : 0;
	if (__builtin_mul_overflow((int64_t)in - 1, w->stride[i], &n) || __builtin_add_overflow(n, rest, &n))
		return 0;
	return n > 0 && n >> 48 == 0 ? n : 0;
}

/* Weights are (C, M/group, ...): out = (in - 1) stride + reach + output_padding - pads */
tern_status tn_infer_conv_transpose(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape, *weights = &tn_infer_in(x, 1)->shape;
	int64_t group = tn_node_int(x->node, TN_ATTR_GROUP, 1), more[TN_WINDOW_DIMS];
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	tern_shape out = {.rank = in->rank, .dims = {in->dims[0]}};
	window w = {0};

	TN_TRY(tn_want_f32(x, 0, 2));
	TN_TRY(read_window(x, in, weights, &w));
	TN_TRY(window_ints(x, TN_ATTR_OUTPUT_PADDING, w.nd, 0, 0, more));
	if (group < 1 || tn_dim_symbolic(in->dims[1]) || tn_dim_symbolic(weights->dims[1]) ||
	    in->dims[1] != weights->dims[0] || in->dims[1] % (uint64_t)group) {
		return tn_misfit(x, "channels of %s, weights %s and group %lld do not fit",
				 tn_tensor_text(x, 0, a, sizeof(a)), tn_tensor_text(x, 1, b, sizeof(b)),
				 (long long)group);
	}
	if (__builtin_mul_overflow(weights->dims[1], (uint64_t)group, &out.dims[1]))
		return tn_misfit(x, "group %lld is too large", (long long)group);
	for (uint32_t i = 0; i < w.nd; i++) {
		int64_t n = stretch(in->dims[2 + i], &w, i, more[i]);

		if (n == 0)
			return tn_misfit(x, "dim %u of %s has no output with this window", 2 + i,
					 tn_tensor_text(x, 0, a, sizeof(a)));
		out.dims[2 + i] = n < 0 ? in->dims[2 + i] : (uint64_t)n;
	}
	if (x->node->n_in > 2)
		TN_TRY(want_vector(x, 2, out.dims[1]));
	yields(x, 0, &out);
	return TERN_OK;
}

/* ---- pools ---- */

static tern_status pool(const tn_infer *x, const tern_shape *in, tern_shape *out)
{
	window w = {0};

	TN_TRY(read_window(x, in, NULL, &w));
	TN_TRY(slide(x, &w, in, tn_node_int(x->node, TN_ATTR_CEIL_MODE, 0) != 0, out));
	out->dims[0] = in->dims[0];
	out->dims[1] = in->dims[1];
	return TERN_OK;
}

static tern_status infer_pool(tn_infer *x)
{
	tern_shape out;

	TN_TRY(tn_want_f32(x, 0, 1));
	TN_TRY(pool(x, &tn_infer_in(x, 0)->shape, &out));
	yields(x, 0, &out);
	return TERN_OK;
}

tern_status tn_infer_max_pool(tn_infer *x)
{
	return infer_pool(x);
}

tern_status tn_infer_max_pool_indices(tn_infer *x)
{
	TN_TRY(infer_pool(x));
	x->dtype[1] = TERN_I64;
	x->shape[1] = x->shape[0];
	return TERN_OK;
}

tern_status tn_infer_average_pool(tn_infer *x)
{
	int64_t p = tn_node_int(x->node, TN_ATTR_P, 2);

	if (p < 1)
		return tn_misfit(x, "p is %lld, which is no norm", (long long)p);
	return infer_pool(x);
}

static void global_shape(const tern_shape *in, tern_shape *out)
{
	*out = *in;
	for (uint32_t i = 2; i < in->rank; i++)
		out->dims[i] = 1;
}

tern_status tn_infer_global_pool(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	tern_shape out;
	window w = {0};

	TN_TRY(tn_want_f32(x, 0, 1));
	TN_TRY(read_window(x, in, NULL, &w));
	global_shape(in, &out);
	yields(x, 0, &out);
	return TERN_OK;
}

/* (dY, X); without kernel_shape of a global pool */
tern_status tn_infer_max_pool_grad(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 1)->shape;
	tern_shape out;

	TN_TRY(tn_want_f32(x, 0, 2));
	if (tn_node_attr(x->node, TN_ATTR_KERNEL_SHAPE))
		TN_TRY(pool(x, in, &out));
	else
		global_shape(in, &out);
	TN_TRY(want_shape(x, 0, &out));
	return tn_yields(x, 1);
}

tern_status tn_infer_average_pool_grad(tn_infer *x)
{
	tern_shape in, out;

	TN_TRY(tn_want_f32(x, 0, 1));
	TN_TRY(tn_infer_shape_attr(x, &in));
	TN_TRY(pool(x, &in, &out));
	TN_TRY(want_shape(x, 0, &out));
	yields(x, 0, &in);
	return TERN_OK;
}

/* ---- norms ---- */

static tern_status want_channels(const tn_infer *x, uint32_t i)
{
	char a[TN_TENSOR_TEXT_MAX];

	TN_TRY(tn_want_f32(x, i, 1));
	if (tn_infer_in(x, i)->shape.rank < 2)
		return tn_misfit(x, "needs (N,C,...), not %s", tn_tensor_text(x, i, a, sizeof(a)));
	return TERN_OK;
}

/* Inputs from..to - 1 are vectors, one element per channel of input 0. */
static tern_status want_per_channel(const tn_infer *x, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		TN_TRY(want_vector(x, i, tn_infer_in(x, 0)->shape.dims[1]));
	return TERN_OK;
}

tern_status tn_infer_batch_norm(tn_infer *x)
{
	TN_TRY(want_channels(x, 0));
	TN_TRY(want_per_channel(x, 1, 5));
	return tn_yields(x, 0);
}

tern_status tn_infer_batch_norm_train(tn_infer *x)
{
	TN_TRY(want_channels(x, 0));
	TN_TRY(want_per_channel(x, 1, x->node->n_in));
	if (x->node->n_in == 4)
		return tn_misfit(x, "the running mean and variance are given together or not at all");
	yields(x, 1, &tn_infer_in(x, 1)->shape);
	yields(x, 2, &tn_infer_in(x, 1)->shape);
	return tn_yields(x, 0);
}

/* (dY, X, scale, ...) -> dX, dscale, dB */
static tern_status norm_grad(tn_infer *x)
{
	TN_TRY(tn_want_same(x, 0, 1));
	yields(x, 1, &tn_infer_in(x, 2)->shape);
	yields(x, 2, &tn_infer_in(x, 2)->shape);
	return tn_yields(x, 1);
}

tern_status tn_infer_batch_norm_grad(tn_infer *x)
{
	TN_TRY(want_channels(x, 0));
	TN_TRY(want_per_channel(x, 2, 5));
	return norm_grad(x);
}

tern_status tn_infer_instance_norm(tn_infer *x)
{
	TN_TRY(want_channels(x, 0));
	TN_TRY(want_per_channel(x, 1, 3));
	return tn_yields(x, 0);
}

tern_status tn_infer_instance_norm_grad(tn_infer *x)
{
	TN_TRY(want_channels(x, 0));
	TN_TRY(want_per_channel(x, 2, 3));
	return norm_grad(x);
}

/* Of input i: the dims from `axis` on, which are normalised; and the others, then ones. */
static tern_status layer_shapes(const tn_infer *x, uint32_t i, tern_shape *inner, tern_shape *outer)
{
	const tern_shape *in = &tn_infer_in(x, i)->shape;
	uint32_t axis;

	TN_TRY(tn_want_f32(x, i, 1));
	TN_TRY(tn_infer_axis(x, -1, in->rank, &axis));
	*inner = (tern_shape){.rank = in->rank - axis};
	*outer = *in;
	for (uint32_t d = axis; d < in->rank; d++) {
		inner->dims[d - axis] = in->dims[d];
		outer->dims[d] = 1;
	}
	return TERN_OK;
}

tern_status tn_infer_layer_norm(tn_infer *x)
{
	tern_shape inner, outer;

	TN_TRY(layer_shapes(x, 0, &inner, &outer));
	TN_TRY(want_shape(x, 1, &inner));
	TN_TRY(want_shape(x, 2, &inner));
	yields(x, 1, &outer);
	yields(x, 2, &outer);
	return tn_yields(x, 0);
}

tern_status tn_infer_layer_norm_grad(tn_infer *x)
{
	tern_shape inner, outer;

	TN_TRY(layer_shapes(x, 1, &inner, &outer));
	TN_TRY(want_shape(x, 2, &inner));
	TN_TRY(want_shape(x, 3, &outer));
	TN_TRY(want_shape(x, 4, &outer));
	return norm_grad(x);
}

tern_status tn_infer_lrn(tn_infer *x)
{
	int64_t size = tn_node_int(x->node, TN_ATTR_SIZE, 1);

	if (size < 1)
		return tn_misfit(x, "size is %lld: a sum over channels has at least 1", (long long)size);
	TN_TRY(want_channels(x, 0));
	return tn_yields(x, 0);
}

/* (dY, X) */
tern_status tn_infer_lrn_grad(tn_infer *x)
{
	TN_TRY(tn_want_same(x, 0, 1));
	return tn_infer_lrn(x);
}
