/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inception-v3 (Szegedy et al. 2015) as TF-slim has it: every convolution without bias, with batch
 * normalisation without scale, and a Relu; an auxiliary classifier at 17 x 17 whose loss counts 0.4. No
 * dropout. images (batch, 3, 299, 299), labels (batch) i32.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c.
 */
#include <stdio.h>

#include "graph/models.h"

/* One convolution of a block; names count up within it. */
typedef struct block {
	tn_builder *b;
	const char *name;
	uint32_t convs;
} block;

static tern_value conv(block *k, tern_value x, uint64_t out, tn_window w)
{
	static const tn_norm norm = {.momentum = 0.9997f, .epsilon = 0.001f};
	char name[48];

	snprintf(name, sizeof(name), "%s/c%u", k->name, k->convs++);
	x = tn_b_conv(k->b, name, x, out, w);
	x = tn_b_batch_norm(k->b, name, x, &norm);
	return tn_b_unary(k->b, TN_OP_RELU, name, "relu", x);
}

static tern_value same(block *k, tern_value x, uint64_t out, uint32_t kh, uint32_t kw)
{
	return conv(k, x, out, (tn_window){kh, kw, 1, kh / 2, kw / 2});
}

static tern_value reduce(block *k, tern_value x, uint64_t out)
{
	return conv(k, x, out, tn_square(3, 2, false));
}

static tern_value pooled(block *k, tern_value x, uint64_t out)
{
	char name[48];

	snprintf(name, sizeof(name), "%s/pool", k->name);
	x = tn_b_pool(k->b, TN_OP_AVERAGE_POOL, name, x, tn_square(3, 1, true));
	return same(k, x, out, 1, 1);
}

static tern_value halved(block *k, tern_value x)
{
	char name[48];

	snprintf(name, sizeof(name), "%s/pool", k->name);
	return tn_b_pool(k->b, TN_OP_MAX_POOL, name, x, tn_square(3, 2, false));
}

static tern_value joined(block *k, const tern_value *in, uint32_t n, const char *what)
{
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, 1);

	return tn_b_node(k->b, TN_OP_CONCAT, k->name, what, in, n, &axis, 1);
}

/* 35 x 35 */
static tern_value block_a(tn_builder *b, const char *name, tern_value x, uint64_t pool)
{
	block k = {b, name, 0};
	tern_value y[4];

	y[0] = same(&k, x, 64, 1, 1);
	y[1] = same(&k, same(&k, x, 48, 1, 1), 64, 5, 5);
	y[2] = same(&k, same(&k, same(&k, x, 64, 1, 1), 96, 3, 3), 96, 3, 3);
	y[3] = pooled(&k, x, pool);
	return joined(&k, y, 4, "concat");
}

/* 35 x 35 -> 17 x 17 */
static tern_value reduce_a(tn_builder *b, const char *name, tern_value x)
{
	block k = {b, name, 0};
	tern_value y[3];

	y[0] = reduce(&k, x, 384);
	y[1] = reduce(&k, same(&k, same(&k, x, 64, 1, 1), 96, 3, 3), 96);
	y[2] = halved(&k, x);
	return joined(&k, y, 3, "concat");
}

/* 17 x 17 */
static tern_value block_b(tn_builder *b, const char *name, tern_value x, uint64_t mid)
{
	block k = {b, name, 0};
	tern_value y[4], t;

	y[0] = same(&k, x, 192, 1, 1);
	y[1] = same(&k, same(&k, same(&k, x, mid, 1, 1), mid, 1, 7), 192, 7, 1);
	t = same(&k, same(&k, same(&k, x, mid, 1, 1), mid, 7, 1), mid, 1, 7);
	y[2] = same(&k, same(&k, t, mid, 7, 1), 192, 1, 7);
	y[3] = pooled(&k, x, 192);
	return joined(&k, y, 4, "concat");
}

/* 17 x 17 -> 8 x 8 */
static tern_value reduce_b(tn_builder *b, const char *name, tern_value x)
{
	block k = {b, name, 0};
	tern_value y[3], t;

	y[0] = reduce(&k, same(&k, x, 192, 1, 1), 320);
	t = same(&k, same(&k, same(&k, x, 192, 1, 1), 192, 1, 7), 192, 7, 1);
	y[1] = reduce(&k, t, 192);
	y[2] = halved(&k, x);
	return joined(&k, y, 3, "concat");
}

/* 8 x 8 */
static tern_value block_c(tn_builder *b, const char *name, tern_value x)
{
	block k = {b, name, 0};
	tern_value y[4], t, fork[2];

	y[0] = same(&k, x, 320, 1, 1);
	t = same(&k, x, 384, 1, 1);
	fork[0] = same(&k, t, 384, 1, 3);
	fork[1] = same(&k, t, 384, 3, 1);
	y[1] = joined(&k, fork, 2, "fork1");
	t = same(&k, same(&k, x, 448, 1, 1), 384, 3, 3);
	fork[0] = same(&k, t, 384, 1, 3);
	fork[1] = same(&k, t, 384, 3, 1);
	y[2] = joined(&k, fork, 2, "fork2");
	y[3] = pooled(&k, x, 192);
	return joined(&k, y, 4, "concat");
}

static tern_value stem(tn_builder *b, tern_value x)
{
	block k = {b, "stem", 0};

	x = reduce(&k, x, 32);
	x = conv(&k, x, 32, tn_square(3, 1, false));
	x = same(&k, x, 64, 3, 3);
	x = tn_b_pool(b, TN_OP_MAX_POOL, "stem/pool1", x, tn_square(3, 2, false));
	x = same(&k, x, 80, 1, 1);
	x = conv(&k, x, 192, tn_square(3, 1, false));
	return tn_b_pool(b, TN_OP_MAX_POOL, "stem/pool2", x, tn_square(3, 2, false));
}

/* The loss of the auxiliary classifier. */
static tern_value auxiliary(tn_builder *b, tern_value x, tern_value labels, uint64_t classes)
{
	block k = {b, "aux", 0};
	tern_value outs[TN_OUTS_MAX];

	x = tn_b_pool(b, TN_OP_AVERAGE_POOL, "aux/pool", x, tn_square(5, 3, false));
	x = same(&k, x, 128, 1, 1);
	x = conv(&k, x, 768, tn_square(5, 1, false));
	x = tn_b_dense(b, "aux/fc", tn_b_flatten(b, "aux/flat", x), classes, false);
	tn_b_nodes(b, TN_OP_SOFTMAX_XENT, "aux/loss", "", (tern_value[]){x, labels}, 2, NULL, 0, outs);
	return outs[0];
}

static void inception_v3(tn_builder *b, const tn_model_size *size)
{
	tern_value x = tn_b_placeholder(b, "images", TERN_F32, TN_DIMS(b->batch, 3, 299, 299));
	tern_value labels = tn_b_placeholder(b, "labels", TERN_I32, TN_DIMS(b->batch)), aux;
	tern_value outs[TN_OUTS_MAX];
	tn_attr share = tn_attr_float(TN_ATTR_SCALE, 0.4);

	x = stem(b, x);
	x = block_a(b, "mixed5b", x, 32);
	x = block_a(b, "mixed5c", x, 64);
	x = block_a(b, "mixed5d", x, 64);
	x = reduce_a(b, "mixed6a", x);
	x = block_b(b, "mixed6b", x, 128);
	x = block_b(b, "mixed6c", x, 160);
	x = block_b(b, "mixed6d", x, 160);
	x = block_b(b, "mixed6e", x, 192);
	aux = auxiliary(b, x, labels, size->classes);
	x = reduce_b(b, "mixed7a", x);
	x = block_c(b, "mixed7b", x);
	x = block_c(b, "mixed7c", x);
	x = tn_b_unary(b, TN_OP_GLOBAL_AVERAGE_POOL, "pool", "", x);
	x = tn_b_dense(b, "fc", tn_b_flatten(b, "flat", x), size->classes, false);
	tn_b_nodes(b, TN_OP_SOFTMAX_XENT, "main", "", (tern_value[]){x, labels}, 2, NULL, 0, outs);
	aux = tn_b_node(b, TN_OP_SCALE, "aux/share", "", &aux, 1, &share, 1);
	tn_b_port(b, "loss", tn_b_binary(b, TN_OP_ADD, "loss", "", outs[0], aux));
	tn_b_port(b, "correct", outs[1]);
	tn_b_port(b, "probs", outs[2]);
}

const tn_model tn_models_inception[] = {
	{"inception_v3", {.inputs = 3 * 299 * 299, .classes = 10}, true, inception_v3},
	{0},
};
