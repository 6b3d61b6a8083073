/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers of the built-in models. See models.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/models.h"

#define IGNORED (-1) /* targets of sequences: padding */

/* ---- tensors ---- */

static void join(const char *layer, const char *what, char *name, size_t size)
{
	snprintf(name, size, "%s%s%s", layer, *layer && *what ? "/" : "", what);
}

static void keep(tn_builder *b, tern_status st)
{
	if (b->st == TERN_OK)
		b->st = st;
}

tern_value tn_b_placeholder(tn_builder *b, const char *port, tern_dtype dtype, tern_shape shape)
{
	tern_value v = 0;

	if (b->st == TERN_OK)
		keep(b, tern_graph_placeholder(b->g, port, dtype, &shape, &v));
	if (b->st == TERN_OK)
		keep(b, tern_graph_input(b->g, port, v));
	return v;
}

static tern_value variable(tn_builder *b, const char *layer, const char *what, tern_shape shape,
			   const tern_init *init)
{
	char name[TN_NAME_MAX];
	tern_value v = 0;

	join(layer, what, name, sizeof(name));
	if (b->st == TERN_OK)
		keep(b, tern_graph_variable(b->g, name, TERN_F32, &shape, init, &v));
	return v;
}

tern_value tn_b_variable(tn_builder *b, const char *layer, const char *what, tern_shape shape, double bound)
{
	return variable(b, layer, what, shape,
			&(tern_init){.kind = bound > 0 ? TERN_INIT_UNIFORM : TERN_INIT_ZEROS,
				     .value = (float)bound,
				     .seed = b->seed});
}

tern_value tn_b_filled(tn_builder *b, const char *layer, const char *what, tern_shape shape, float value)
{
	return variable(b, layer, what, shape,
			&(tern_init){.kind = TERN_INIT_CONSTANT, .value = value, .seed = b->seed});
}

tern_value tn_b_constant(tn_builder *b, const char *layer, const char *what, tern_dtype dtype,
			 tern_shape shape, const void *data)
{
	char name[TN_NAME_MAX];
	tern_value v = 0;

	join(layer, what, name, sizeof(name));
	if (b->st == TERN_OK)
		keep(b, tern_graph_constant(b->g, name, dtype, &shape, data, &v));
	return v;
}

void tn_b_port(tn_builder *b, const char *port, tern_value v)
{
	if (b->st == TERN_OK)
		keep(b, tern_graph_output(b->g, port, v));
}

uint64_t tn_b_dim(const tn_builder *b, tern_value v, uint32_t i)
{
	return b->st == TERN_OK ? b->g->tensors[v].shape.dims[i] : 1;
}

static uint32_t rank_of(const tn_builder *b, tern_value v)
{
	return b->st == TERN_OK ? b->g->tensors[v].shape.rank : 1;
}

/* ---- nodes ---- */

void tn_b_nodes(tn_builder *b, tn_op op, const char *layer, const char *what, const tern_value *in,
		uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs, tern_value *outs)
{
	char name[TN_NAME_MAX];
	tn_node_spec spec = {.op = op,
			     .name = name,
			     .in = in,
			     .n_in = n_in,
			     .attrs = attrs,
			     .n_attrs = n_attrs,
			     .device = TN_DEVICE_NONE};
	uint32_t node = 0;

	join(layer, what, name, sizeof(name));
	for (uint32_t i = 0; i < tn_op_table[op].outs; i++)
		outs[i] = 0;
	if (b->st == TERN_OK)
		keep(b, tn_graph_add(b->g, &spec, &node));
	for (uint32_t i = 0; i < tn_op_table[op].outs && b->st == TERN_OK; i++)
		outs[i] = b->g->nodes[node].out[i];
}

tern_value tn_b_node(tn_builder *b, tn_op op, const char *layer, const char *what, const tern_value *in,
		     uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs)
{
	tern_value outs[TN_OUTS_MAX];

	tn_b_nodes(b, op, layer, what, in, n_in, attrs, n_attrs, outs);
	return outs[0];
}

tern_value tn_b_unary(tn_builder *b, tn_op op, const char *layer, const char *what, tern_value x)
{
	return tn_b_node(b, op, layer, what, &x, 1, NULL, 0);
}

tern_value tn_b_binary(tn_builder *b, tn_op op, const char *layer, const char *what, tern_value x,
		       tern_value y)
{
	return tn_b_node(b, op, layer, what, (tern_value[]){x, y}, 2, NULL, 0);
}

tn_attr tn_attr_list(tn_attr_key key, uint32_t n, const int64_t *v)
{
	tn_attr a = {.key = key};

	a.u.ints.n = n;
	memcpy(a.u.ints.v, v, n * sizeof(*v));
	return a;
}

tern_value tn_b_reshape(tn_builder *b, const char *layer, const char *what, tern_value x, tern_shape shape)
{
	int64_t dims[TERN_RANK_MAX];
	tn_attr a;

	for (uint32_t i = 0; i < shape.rank; i++)
		dims[i] = (int64_t)shape.dims[i];
	a = tn_attr_list(TN_ATTR_SHAPE, shape.rank, dims);
	return tn_b_node(b, TN_OP_RESHAPE, layer, what, &x, 1, &a, 1);
}

tern_value tn_b_transpose(tn_builder *b, const char *layer, const char *what, tern_value x, uint32_t rank,
			  const uint32_t *perm)
{
	int64_t order[TERN_RANK_MAX];
	tn_attr a;

	for (uint32_t i = 0; i < rank; i++)
		order[i] = perm[i];
	a = tn_attr_list(TN_ATTR_PERM, rank, order);
	return tn_b_node(b, TN_OP_TRANSPOSE, layer, what, &x, 1, &a, 1);
}

/* ---- layers ---- */

tern_value tn_b_dense(tn_builder *b, const char *layer, tern_value x, uint64_t out, bool relu)
{
	uint64_t in = tn_b_dim(b, x, rank_of(b, x) - 1);
	double bound = sqrt(6.0 / (relu ? (double)in : (double)in + (double)out));
	tern_value w = tn_b_variable(b, layer, "w", TN_DIMS(in, out), bound);
	tern_value bias = tn_b_variable(b, layer, "b", TN_DIMS(out), 0);

	x = tn_b_binary(b, TN_OP_MATMUL, layer, "matmul", x, w);
	x = tn_b_binary(b, TN_OP_BIAS_ADD, layer, "bias", x, bias);
	return relu ? tn_b_unary(b, TN_OP_RELU, layer, "relu", x) : x;
}

/* kernel_shape, strides, pads */
static void window_attrs(tn_window w, tn_attr *attrs)
{
	attrs[0] = tn_attr_list(TN_ATTR_KERNEL_SHAPE, 2, (int64_t[]){w.kh, w.kw});
	attrs[1] = tn_attr_list(TN_ATTR_STRIDES, 2, (int64_t[]){w.stride, w.stride});
	attrs[2] = tn_attr_list(TN_ATTR_PADS, 4, (int64_t[]){w.ph, w.pw, w.ph, w.pw});
}

static tern_value conv_weights(tn_builder *b, const char *layer, tern_value x, uint64_t out, tn_window w)
{
	uint64_t in = tn_b_dim(b, x, 1);
	double fan_in = (double)in * w.kh * w.kw;

	return tn_b_variable(b, layer, "w", TN_DIMS(out, in, w.kh, w.kw), sqrt(6.0 / fan_in));
}

tern_value tn_b_conv(tn_builder *b, const char *layer, tern_value x, uint64_t out, tn_window w)
{
	tern_value in[2] = {x, conv_weights(b, layer, x, out, w)};
	tn_attr attrs[3];

	window_attrs(w, attrs);
	return tn_b_node(b, TN_OP_CONV, layer, "conv", in, 2, attrs, 3);
}

tern_value tn_b_conv_relu(tn_builder *b, const char *layer, tern_value x, uint64_t out, tn_window w)
{
	tern_value in[3] = {x, conv_weights(b, layer, x, out, w)};
	tn_attr attrs[3];

	in[2] = tn_b_variable(b, layer, "b", TN_DIMS(out), 0);
	window_attrs(w, attrs);
	return tn_b_unary(b, TN_OP_RELU, layer, "relu",
			  tn_b_node(b, TN_OP_CONV, layer, "conv", in, 3, attrs, 3));
}

tern_value tn_b_pool(tn_builder *b, tn_op op, const char *layer, tern_value x, tn_window w)
{
	tn_attr attrs[3];

	window_attrs(w, attrs);
	return tn_b_node(b, op, layer, "", &x, 1, attrs, 3);
}

tern_value tn_b_flatten(tn_builder *b, const char *layer, tern_value x)
{
	uint64_t n = 1;

	for (uint32_t i = 1; i < rank_of(b, x); i++)
		n *= tn_b_dim(b, x, i);
	return tn_b_reshape(b, layer, "", x, TN_DIMS(b->batch, n));
}

static tern_value ones(tn_builder *b, const char *layer, uint64_t n)
{
	float *data = malloc(n * sizeof(*data));
	tern_value v = 0;

	if (!data) {
		keep(b, tn_fail(TERN_E_NOMEM, "no memory for the model"));
		return v;
	}
	for (uint64_t i = 0; i < n; i++)
		data[i] = 1.0f;
	v = tn_b_constant(b, layer, "ones", TERN_F32, TN_DIMS(n), data);
	free(data);
	return v;
}

static void average(tn_builder *b, const char *layer, const char *what, tern_value var, tern_value value,
		    float momentum)
{
	tn_attr m = tn_attr_float(TN_ATTR_MOMENTUM, (double)momentum);

	tn_b_node(b, TN_OP_APPLY_EMA, layer, what, (tern_value[]){var, value}, 2, &m, 1);
}

tern_value tn_b_batch_norm(tn_builder *b, const char *layer, tern_value x, const tn_norm *norm)
{
	uint64_t n = tn_b_dim(b, x, 1);
	tn_attr epsilon = tn_attr_float(TN_ATTR_EPSILON, (double)norm->epsilon);
	tern_value in[5] = {x}, outs[TN_OUTS_MAX];

	in[1] = norm->scale ? tn_b_filled(b, layer, "gamma", TN_DIMS(n), 1.0f) : ones(b, layer, n);
	in[2] = tn_b_variable(b, layer, "beta", TN_DIMS(n), 0);
	in[3] = tn_b_variable(b, layer, "mean", TN_DIMS(n), 0);
	in[4] = tn_b_filled(b, layer, "variance", TN_DIMS(n), 1.0f);
	tn_b_nodes(b, TN_OP_BATCH_NORM_TRAIN, layer, "norm", in, 5, &epsilon, 1, outs);
	average(b, layer, "mean/average", in[3], outs[1], norm->momentum);
	average(b, layer, "variance/average", in[4], outs[2], norm->momentum);
	return outs[0];
}

tern_value tn_b_layer_norm(tn_builder *b, const char *layer, tern_value x)
{
	uint64_t n = tn_b_dim(b, x, rank_of(b, x) - 1);
	tern_value in[3] = {x};

	in[1] = tn_b_filled(b, layer, "gamma", TN_DIMS(n), 1.0f);
	in[2] = tn_b_variable(b, layer, "beta", TN_DIMS(n), 0);
	return tn_b_node(b, TN_OP_LAYER_NORM, layer, "norm", in, 3, NULL, 0);
}

tern_value tn_b_recurrent(tn_builder *b, tn_op op, const char *layer, tern_value x, uint64_t hidden,
			  tern_value *state)
{
	uint64_t gates = op == TN_OP_LSTM ? 4 : 3, in_dim = tn_b_dim(b, x, 2);
	double bound = 1.0 / sqrt((double)hidden);
	/* of GRU: the reset gate works on R h + its bias, as in cuDNN and PyTorch, so that one product serves */
	tn_attr attrs[2] = {tn_attr_int(TN_ATTR_HIDDEN_SIZE, (int64_t)hidden),
			    tn_attr_int(TN_ATTR_LINEAR_BEFORE_RESET, 1)};
	tern_value in[5] = {x}, outs[TN_OUTS_MAX], w, r, bias;
	uint32_t n_in = 4;

	TN_ASSERT(op == TN_OP_GRU || !state || *state == TERN_VALUE_NONE);
	/* matrices, so that they can be split over servers by rows; the dim of directions is a view */
	w = tn_b_variable(b, layer, "w", TN_DIMS(gates * hidden, in_dim), bound);
	r = tn_b_variable(b, layer, "r", TN_DIMS(gates * hidden, hidden), bound);
	bias = tn_b_variable(b, layer, "b", TN_DIMS(gates * hidden), 0);
	in[1] = tn_b_reshape(b, layer, "w/one", w, TN_DIMS(1, gates * hidden, in_dim));
	in[2] = tn_b_reshape(b, layer, "r/one", r, TN_DIMS(1, gates * hidden, hidden));
	in[3] = tn_b_reshape(b, layer, "b/one", bias, TN_DIMS(1, gates * hidden));
	if (state && *state != TERN_VALUE_NONE)
		in[n_in++] = *state;
	tn_b_nodes(b, op, layer, op == TN_OP_LSTM ? "lstm" : "gru", in, n_in, attrs, op == TN_OP_LSTM ? 1 : 2,
		   outs);
	if (state)
		*state = outs[1];
	return tn_b_reshape(b, layer, "states", outs[0],
			    TN_DIMS(tn_b_dim(b, x, 0), tn_b_dim(b, x, 1), hidden));
}

tern_value tn_b_embedding(tn_builder *b, const char *layer, tern_value tokens, uint64_t rows, uint64_t dim)
{
	tern_value table = tn_b_variable(b, layer, "table", TN_DIMS(rows, dim), sqrt(3.0 / (double)dim));

	return tn_b_binary(b, TN_OP_GATHER, layer, "rows", table, tokens);
}

/* ---- ports ---- */

void tn_b_classify(tn_builder *b, tern_value logits, tern_value labels)
{
	tern_value outs[TN_OUTS_MAX];
	bool whole = tn_graph_port(b->g, "loss", false) == TN_NONE;

	tn_b_nodes(b, TN_OP_SOFTMAX_XENT, "loss", "", (tern_value[]){logits, labels}, 2, NULL, 0, outs);
	if (whole)
		tn_b_port(b, "loss", outs[0]);
	tn_b_port(b, "correct", outs[1]);
	tn_b_port(b, "probs", outs[2]);
}

void tn_b_predict(tn_builder *b, tern_value logits, tern_value targets)
{
	tn_attr ignore = tn_attr_int(TN_ATTR_IGNORE_INDEX, IGNORED);
	tern_value outs[TN_OUTS_MAX];

	tn_b_nodes(b, TN_OP_SOFTMAX_XENT, "loss", "", (tern_value[]){logits, targets}, 2, &ignore, 1, outs);
	tn_b_port(b, "loss", outs[0]);
	tn_b_port(b, "correct", outs[1]);
	tn_b_port(b, "probs", outs[2]);
}
