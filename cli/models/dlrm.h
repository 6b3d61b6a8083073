/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a click-through model: numbers through a small network, categories as vectors, their products, and
 * another network on top (Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation
 * Systems"). Alone, so that its gradients can be held against finite differences.
 *
 *   z = relu(W2 relu(W1 x + b1) + b2)                          (dim): the numbers as one more vector
 *   p = products of all pairs of z, e_1 .. e_F                  (pairs)
 *   logit = w4 relu(W3 [z p] + b3) + b4
 *   loss = log(1 + exp(logit)) - label logit
 *
 * Parameters of the networks lie in one array, in the order W1 b1 W2 b2 W3 b3 w4 b4, matrices by rows.
 * Threads: one per object. Tests: tests/unit/cli/dlrm_test.c.
 */
#ifndef CLI_MODELS_DLRM_H
#define CLI_MODELS_DLRM_H

#include <stdbool.h>
#include <stdint.h>

#include "clicks.h"

#define DLRM_HIDDEN  32
#define DLRM_VECTORS (CLICKS_FIELDS + 1)
#define DLRM_PAIRS   (DLRM_VECTORS * (DLRM_VECTORS - 1) / 2)
#define DLRM_DIM_MAX 256

typedef struct dlrm_net {
	uint32_t dim;
	uint64_t w1, b1, w2, b2, w3, b3, w4, b4, parameters; /* offsets, and how many there are */
} dlrm_net;

dlrm_net dlrm_shape(uint32_t dim);
/*
 * One sample: rows of its categories (fields, dim). Returns the logit. loss is added to, gradients (of dense and rows;
 * NULL: none) too.
 */
float dlrm_sample(const dlrm_net *net, const float *dense, const float *rows, const click *sample,
		  double *loss, float *dense_grad, float *row_grads);

#endif
