/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recurrent models. Classifiers read a row as a sequence: images (batch, steps, inputs), labels (batch) i32;
 * the last state is classified. The language model reads bytes: tokens (batch, steps) i32, targets (batch,
 * steps) i32, below 0 where nothing is to be predicted; probs are (steps, batch, 256). Inside time comes
 * first, as recurrent kernels want it.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c.
 */
#include "graph/models.h"

static const uint32_t swap[2] = {1, 0};

static void classifier(tn_builder *b, const tn_model_size *size, tn_op cell)
{
	uint64_t inputs = tn_dim_symbolic(size->steps) ? size->inputs : size->inputs / size->steps;
	tern_value x = tn_b_placeholder(b, "images", TERN_F32, TN_DIMS(b->batch, size->steps, inputs));
	tern_value labels = tn_b_placeholder(b, "labels", TERN_I32, TN_DIMS(b->batch));
	tern_value state = TERN_VALUE_NONE;

	x = tn_b_transpose(b, "steps", "", x, 3, (uint32_t[]){1, 0, 2});
	tn_b_recurrent(b, cell, "rnn", x, size->hidden, &state);
	x = tn_b_reshape(b, "last", "", state, TN_DIMS(b->batch, size->hidden));
	tn_b_classify(b, tn_b_dense(b, "fc", x, size->classes, false), labels);
}

static void lstm(tn_builder *b, const tn_model_size *size)
{
	classifier(b, size, TN_OP_LSTM);
}

static void gru(tn_builder *b, const tn_model_size *size)
{
	classifier(b, size, TN_OP_GRU);
}

static void charlm(tn_builder *b, const tn_model_size *size)
{
	tern_value tokens = tn_b_placeholder(b, "tokens", TERN_I32, TN_DIMS(b->batch, size->steps));
	tern_value targets = tn_b_placeholder(b, "targets", TERN_I32, TN_DIMS(b->batch, size->steps)), x;

	tokens = tn_b_transpose(b, "tokens/steps", "", tokens, 2, swap);
	targets = tn_b_transpose(b, "targets/steps", "", targets, 2, swap);
	x = tn_b_embedding(b, "embedding", tokens, size->classes, 64);
	x = tn_b_recurrent(b, TN_OP_LSTM, "rnn", x, size->hidden, NULL);
	tn_b_predict(b, tn_b_dense(b, "fc", x, size->classes, false), targets);
}

const tn_model tn_models_seq[] = {
	{"lstm", {.inputs = 80 * 1024, .classes = 1000, .steps = 80, .hidden = 1024}, true, lstm},
	{"gru", {.inputs = 80 * 1024, .classes = 1000, .steps = 80, .hidden = 1024}, true, gru},
	{"lstm_small", {.inputs = 784, .classes = 10, .steps = 28, .hidden = 32}, true, lstm},
	{"gru_small", {.inputs = 784, .classes = 10, .steps = 28, .hidden = 32}, true, gru},
	{"charlm", {.inputs = 1, .classes = 256, .steps = 64, .hidden = 256}, true, charlm},
	{0},
};
