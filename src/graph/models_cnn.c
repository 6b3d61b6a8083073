/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolutional classifiers: images (batch, C, H, W), labels (batch) i32. No dropout: what the models are
 * for here is their parameters and their communication.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c.
 */
#include <stdio.h>

#include "graph/models.h"

static tern_value images(tn_builder *b, uint64_t channels, uint64_t size, tern_value *labels)
{
	tern_value x = tn_b_placeholder(b, "images", TERN_F32, TN_DIMS(b->batch, channels, size, size));

	*labels = tn_b_placeholder(b, "labels", TERN_I32, TN_DIMS(b->batch));
	return x;
}

/* TF-slim's alexnet_v2 (Krizhevsky 2014, one tower). */
static void alexnet(tn_builder *b, const tn_model_size *size)
{
	tern_value labels, x = images(b, 3, 224, &labels);

	x = tn_b_conv_relu(b, "conv1", x, 64, tn_square(11, 4, false));
	x = tn_b_pool(b, TN_OP_MAX_POOL, "pool1", x, tn_square(3, 2, false));
	x = tn_b_conv_relu(b, "conv2", x, 192, tn_square(5, 1, true));
	x = tn_b_pool(b, TN_OP_MAX_POOL, "pool2", x, tn_square(3, 2, false));
	x = tn_b_conv_relu(b, "conv3", x, 384, tn_square(3, 1, true));
	x = tn_b_conv_relu(b, "conv4", x, 384, tn_square(3, 1, true));
	x = tn_b_conv_relu(b, "conv5", x, 256, tn_square(3, 1, true));
	x = tn_b_pool(b, TN_OP_MAX_POOL, "pool5", x, tn_square(3, 2, false));
	x = tn_b_flatten(b, "flat", x);
	x = tn_b_dense(b, "fc6", x, 4096, true);
	x = tn_b_dense(b, "fc7", x, 4096, true);
	tn_b_classify(b, tn_b_dense(b, "fc8", x, size->classes, false), labels);
}

/* Configuration D (Simonyan and Zisserman 2014). */
static void vgg16(tn_builder *b, const tn_model_size *size)
{
	static const struct {
		uint32_t layers;
		uint64_t channels;
	} stages[5] = {{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}};
	tern_value labels, x = images(b, 3, 224, &labels);
	char name[32];

	for (uint32_t s = 0; s < 5; s++) {
		for (uint32_t l = 0; l < stages[s].layers; l++) {
			snprintf(name, sizeof(name), "conv%u_%u", s + 1, l + 1);
			x = tn_b_conv_relu(b, name, x, stages[s].channels, tn_square(3, 1, true));
		}
		snprintf(name, sizeof(name), "pool%u", s + 1);
		x = tn_b_pool(b, TN_OP_MAX_POOL, name, x, tn_square(2, 2, false));
	}
	x = tn_b_flatten(b, "flat", x);
	x = tn_b_dense(b, "fc6", x, 4096, true);
	x = tn_b_dense(b, "fc7", x, 4096, true);
	tn_b_classify(b, tn_b_dense(b, "fc8", x, size->classes, false), labels);
}

/* Two convolutions, two pools, two fully connected layers; 28 x 28 grey. */
static void small_net(tn_builder *b, const tn_model_size *size, uint64_t channels, uint64_t hidden)
{
	tern_value labels, x = images(b, 1, 28, &labels);

	x = tn_b_conv_relu(b, "conv1", x, channels, tn_square(3, 1, true));
	x = tn_b_pool(b, TN_OP_MAX_POOL, "pool1", x, tn_square(2, 2, false));
	x = tn_b_conv_relu(b, "conv2", x, 2 * channels, tn_square(3, 1, true));
	x = tn_b_pool(b, TN_OP_MAX_POOL, "pool2", x, tn_square(2, 2, false));
	x = tn_b_flatten(b, "flat", x);
	x = tn_b_dense(b, "fc1", x, hidden, true);
	tn_b_classify(b, tn_b_dense(b, "fc2", x, size->classes, false), labels);
}

static void convnet(tn_builder *b, const tn_model_size *size)
{
	small_net(b, size, 32, 128);
}

static void convnet_small(tn_builder *b, const tn_model_size *size)
{
	small_net(b, size, 4, 16);
}

/* The same with batch normalisation: what running statistics are tried with. */
static void convnet_bn(tn_builder *b, const tn_model_size *size)
{
	static const tn_norm norm = {.scale = true, .momentum = 0.9f, .epsilon = 1e-5f};
	tern_value labels, x = images(b, 1, 28, &labels);
	char name[32];

	for (uint32_t i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "conv%u", i + 1);
		x = tn_b_conv(b, name, x, 8u << i, tn_square(3, 1, true));
		x = tn_b_batch_norm(b, name, x, &norm);
		x = tn_b_unary(b, TN_OP_RELU, name, "relu", x);
		snprintf(name, sizeof(name), "pool%u", i + 1);
		x = tn_b_pool(b, TN_OP_MAX_POOL, name, x, tn_square(2, 2, false));
	}
	x = tn_b_flatten(b, "flat", x);
	tn_b_classify(b, tn_b_dense(b, "fc", x, size->classes, false), labels);
}

const tn_model tn_models_cnn[] = {
	{"alexnet", {.inputs = 3 * 224 * 224, .classes = 10}, true, alexnet},
	{"vgg16", {.inputs = 3 * 224 * 224, .classes = 10}, true, vgg16},
	{"convnet", {.inputs = 784, .classes = 10}, true, convnet},
	{"convnet_small", {.inputs = 784, .classes = 10}, true, convnet_small},
	{"convnet_bn", {.inputs = 784, .classes = 10}, true, convnet_bn},
	{0},
};
