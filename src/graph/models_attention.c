/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models with attention.
 *
 *   seq2seq      an encoder and a decoder (GRU) with attention over the encoder's states (Luong et al. 2015):
 *                source (batch, steps) i32, padded with 0 at its start; tokens (batch, steps) i32, the
 *                translation so far; targets (batch, steps) i32, below 0 where nothing is to be predicted.
 *                `inputs` tokens of the source language, `classes` of the target language
 *   transformer  a language model of bytes (Vaswani et al. 2017; norms before each part, as in GPT-2):
 *                tokens and targets (batch, steps) i32
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "graph/models.h"

#define FAR_BELOW (-1e9f) /* what is masked, before a softmax */

static const uint32_t swap[2] = {1, 0};
static const uint32_t batch_first[3] = {1, 0, 2};

/* op(x) op(y) of matrices */
static tern_value product(tn_builder *b, const char *layer, const char *what, tern_value x, tern_value y,
			  bool transpose_y)
{
	tn_attr t = tn_attr_int(TN_ATTR_TRANS_B, 1);

	return tn_b_node(b, TN_OP_MATMUL, layer, what, (tern_value[]){x, y}, 2, &t, transpose_y);
}

static tern_value softmax(tn_builder *b, const char *layer, tern_value x)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, -1);

	return tn_b_node(b, TN_OP_SOFTMAX, layer, "weights", &x, 1, &axis, 1);
}

/* ---- seq2seq ---- */

/* (batch, T, S): scores, far below where the source is padding. */
static tern_value masked(tn_builder *b, tern_value scores, tern_value source, uint64_t steps)
{
	static const int32_t zero = 0;
	static const float below = FAR_BELOW;
	tern_value pad = tn_b_constant(b, "attention", "pad", TERN_I32, (tern_shape){0}, &zero);
	tern_value low = tn_b_constant(b, "attention", "low", TERN_F32, (tern_shape){0}, &below);
	tern_value is_pad = tn_b_binary(b, TN_OP_EQUAL, "attention", "is_pad", source, pad);

	is_pad = tn_b_reshape(b, "attention", "mask", is_pad, TN_DIMS(b->batch, 1, steps));
	return tn_b_node(b, TN_OP_WHERE, "attention", "masked", (tern_value[]){is_pad, low, scores}, 3, NULL,
			 0);
}

static tern_value attend(tn_builder *b, tern_value states, tern_value memory, tern_value source,
			 uint64_t hidden, uint64_t steps)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, 2);
	tern_value w, x;

	x = product(b, "attention", "scores", states, memory, true);
	w = softmax(b, "attention", masked(b, x, source, steps));
	x = product(b, "attention", "context", w, memory, false);
	x = tn_b_node(b, TN_OP_CONCAT, "attention", "concat", (tern_value[]){x, states}, 2, &axis, 1);
	return tn_b_unary(b, TN_OP_TANH, "attention", "tanh", tn_b_dense(b, "attention", x, hidden, false));
}

static void seq2seq(tn_builder *b, const tn_model_size *size)
{
	tern_shape shape = TN_DIMS(b->batch, size->steps);
	tern_value source = tn_b_placeholder(b, "source", TERN_I32, shape);
	tern_value tokens = tn_b_placeholder(b, "tokens", TERN_I32, shape);
	tern_value targets = tn_b_placeholder(b, "targets", TERN_I32, shape);
	tern_value state = TERN_VALUE_NONE, memory, x;

	x = tn_b_transpose(b, "source/steps", "", source, 2, swap);
	x = tn_b_embedding(b, "encoder/embedding", x, size->inputs, size->hidden / 2);
	memory = tn_b_recurrent(b, TN_OP_GRU, "encoder", x, size->hidden, &state);
	memory = tn_b_transpose(b, "encoder/memory", "", memory, 3, batch_first);
	x = tn_b_transpose(b, "tokens/steps", "", tokens, 2, swap);
	x = tn_b_embedding(b, "decoder/embedding", x, size->classes, size->hidden / 2);
	x = tn_b_recurrent(b, TN_OP_GRU, "decoder", x, size->hidden, &state);
	x = tn_b_transpose(b, "decoder/batch", "", x, 3, batch_first);
	x = attend(b, x, memory, source, size->hidden, size->steps);
	tn_b_predict(b, tn_b_dense(b, "fc", x, size->classes, false), targets);
}

/* ---- transformer ---- */

enum { LAYERS = 2, HEADS = 4 };

/* (batch, T, E) -> (batch, heads, T, E / heads) */
static tern_value heads(tn_builder *b, const char *layer, const char *what, tern_value x, uint64_t t,
			uint64_t e)
{
	char name[64];

	snprintf(name, sizeof(name), "%s/%s", layer, what);
	x = tn_b_dense(b, name, x, e, false);
	x = tn_b_reshape(b, name, "split", x, TN_DIMS(b->batch, t, HEADS, e / HEADS));
	return tn_b_transpose(b, name, "heads", x, 4, (uint32_t[]){0, 2, 1, 3});
}

/* (T, T): what lies ahead is far below. */
static tern_value causal(tn_builder *b, uint64_t t)
{
	float *m = calloc(t * t, sizeof(*m));
	tern_value v;

	if (!m) {
		b->st = tn_fail(TERN_E_NOMEM, "no memory for the model");
		return 0;
	}
	for (uint64_t i = 0; i < t; i++) {
		for (uint64_t k = i + 1; k < t; k++)
			m[i * t + k] = FAR_BELOW;
	}
	v = tn_b_constant(b, "causal", "", TERN_F32, TN_DIMS(t, t), m);
	free(m);
	return v;
}

static tern_value self_attention(tn_builder *b, const char *layer, tern_value x, tern_value mask, uint64_t t,
				 uint64_t e)
{
	tern_value q = heads(b, layer, "q", x, t, e), k = heads(b, layer, "k", x, t, e);
	tern_value v = heads(b, layer, "v", x, t, e);
	tn_attr scale = tn_attr_float(TN_ATTR_SCALE, 1.0 / sqrt((double)e / (double)HEADS));
	char name[64];

	x = product(b, layer, "scores", q, k, true);
	x = tn_b_node(b, TN_OP_SCALE, layer, "scaled", &x, 1, &scale, 1);
	x = softmax(b, layer, tn_b_binary(b, TN_OP_ADD, layer, "masked", x, mask));
	x = product(b, layer, "mixed", x, v, false);
	x = tn_b_transpose(b, layer, "tokens", x, 4, (uint32_t[]){0, 2, 1, 3});
	x = tn_b_reshape(b, layer, "joined", x, TN_DIMS(b->batch, t, e));
	snprintf(name, sizeof(name), "%s/o", layer);
	return tn_b_dense(b, name, x, e, false);
}

static tern_value mlp(tn_builder *b, const char *layer, tern_value x, uint64_t e)
{
	char up[64], down[64];

	snprintf(up, sizeof(up), "%s/up", layer);
	snprintf(down, sizeof(down), "%s/down", layer);
	x = tn_b_dense(b, up, x, 4 * e, false);
	return tn_b_dense(b, down, tn_b_unary(b, TN_OP_GELU, layer, "gelu", x), e, false);
}

static void transformer(tn_builder *b, const tn_model_size *size)
{
	uint64_t t = size->steps, e = size->hidden;
	tern_value tokens = tn_b_placeholder(b, "tokens", TERN_I32, TN_DIMS(b->batch, t));
	tern_value targets = tn_b_placeholder(b, "targets", TERN_I32, TN_DIMS(b->batch, t));
	tern_value x = tn_b_embedding(b, "embedding", tokens, size->classes, e), y, mask;

	if (tn_dim_symbolic(t)) {
		b->st = tn_fail(TERN_E_INVALID, "model 'transformer': needs a number of steps: it has a "
						"position for each");
		return;
	}
	y = tn_b_variable(b, "position", "table", TN_DIMS(t, e), sqrt(3.0 / (double)e));
	x = tn_b_binary(b, TN_OP_ADD, "position", "add", x, y);
	mask = causal(b, t);
	for (uint32_t i = 0; i < LAYERS; i++) {
		char name[48], norm[64];

		snprintf(name, sizeof(name), "block%u/attention", i);
		snprintf(norm, sizeof(norm), "%s/norm", name);
		y = self_attention(b, name, tn_b_layer_norm(b, norm, x), mask, t, e);
		x = tn_b_binary(b, TN_OP_ADD, name, "add", x, y);
		snprintf(name, sizeof(name), "block%u/mlp", i);
		snprintf(norm, sizeof(norm), "%s/norm", name);
		y = mlp(b, name, tn_b_layer_norm(b, norm, x), e);
		x = tn_b_binary(b, TN_OP_ADD, name, "add", x, y);
	}
	x = tn_b_layer_norm(b, "norm", x);
	tn_b_predict(b, tn_b_dense(b, "fc", x, size->classes, false), targets);
}

const tn_model tn_models_attention[] = {
	{"seq2seq", {.inputs = 4096, .classes = 4096, .steps = 32, .hidden = 256}, false, seq2seq},
	{"transformer", {.inputs = 1, .classes = 256, .steps = 64, .hidden = 128}, true, transformer},
	{0},
};
