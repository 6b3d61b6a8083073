/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers and AddN: sums of n tensors in a fixed order (the order of the inputs, which is that of the
 * workers), and updates of variables in place. Everything goes by blocks that stay in the L1 cache, so that
 * each tensor crosses memory once, and every element is computed by the same operations in the same order
 * whether sum, scale and update are one fused node or three.
 *
 * Compiled with -O3 and without contraction of a*b+c, so that all builds give the same bits.
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern.h"

#define BLOCK 1024u /* floats: 4 KiB of each operand at a time */

typedef struct apply_kern {
	tn_kern base;
	uint64_t n; /* elements */
	uint32_t n_terms;
	float grad_scale, momentum, weight_decay;
	double lr, lr_end;
	uint64_t lr_steps;
} apply_kern;

/* acc = t[0] + t[1] + ..., elements at .. at + n. */
static void sum_block(float *restrict acc, void *const *terms, uint32_t n_terms, uint64_t at, uint32_t n)
{
	memcpy(acc, (const float *)terms[0] + at, n * sizeof(*acc));
	for (uint32_t k = 1; k < n_terms; k++) {
		const float *restrict t = (const float *)terms[k] + at;

		for (uint32_t i = 0; i < n; i++)
			acc[i] += t[i];
	}
}

static uint32_t block_at(const apply_kern *k, uint64_t at)
{
	return k->n - at < BLOCK ? (uint32_t)(k->n - at) : BLOCK;
}

/* Linear from lr at step 0 to lr_end at lr_steps, then constant. */
static float lr_at(const apply_kern *k, uint64_t step)
{
	if (k->lr_steps == 0)
		return (float)k->lr;
	if (step >= k->lr_steps)
		return (float)k->lr_end;
	return (float)(k->lr + (k->lr_end - k->lr) * ((double)step / (double)k->lr_steps));
}

static tern_status add_n_run(tn_kern *kern, const tn_kern_io *io)
{
	const apply_kern *k = (const apply_kern *)kern;
	float *out = io->out[0];

	for (uint64_t at = 0; at < k->n; at += BLOCK)
		sum_block(out + at, io->in, k->n_terms, at, block_at(k, at));
	return TERN_OK;
}

static void sgd_block(float *restrict w, const float *restrict g, uint32_t n, float scale, float decay,
		      float lr)
{
	for (uint32_t i = 0; i < n; i++) {
		float d = g[i] * scale;

		w[i] -= lr * (d + decay * w[i]);
	}
}

static tern_status sgd_run(tn_kern *kern, const tn_kern_io *io)
{
	const apply_kern *k = (const apply_kern *)kern;
	float *w = io->in[0], lr = lr_at(k, io->step);
	_Alignas(64) float acc[BLOCK];

	for (uint64_t at = 0; at < k->n; at += BLOCK) {
		uint32_t n = block_at(k, at);

		sum_block(acc, io->in + 1, k->n_terms, at, n);
		sgd_block(w + at, acc, n, k->grad_scale, k->weight_decay, lr);
	}
	return TERN_OK;
}

static void momentum_block(float *restrict w, float *restrict v, const float *restrict g, uint32_t n,
			   const apply_kern *k, float lr)
{
	float scale = k->grad_scale, mu = k->momentum, decay = k->weight_decay;

	for (uint32_t i = 0; i < n; i++) {
		float d = g[i] * scale;

		v[i] = mu * v[i] + (d + decay * w[i]);
		w[i] -= lr * v[i];
	}
}

static tern_status momentum_run(tn_kern *kern, const tn_kern_io *io)
{
	const apply_kern *k = (const apply_kern *)kern;
	float *w = io->in[0], *v = io->in[1], lr = lr_at(k, io->step);
	_Alignas(64) float acc[BLOCK];

	for (uint64_t at = 0; at < k->n; at += BLOCK) {
		uint32_t n = block_at(k, at);

		sum_block(acc, io->in + 2, k->n_terms, at, n);
		momentum_block(w + at, v + at, acc, n, k, lr);
	}
	return TERN_OK;
}

static void apply_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_apply_create(const tn_kern_desc *desc, tn_kern **kern)
{
	const tn_node *node = desc->node;
	apply_kern *k = calloc(1, sizeof(*k));
	uint32_t slots = node->op == TN_OP_ADD_N ? 0 : node->op == TN_OP_APPLY_SGD ? 1 : 2;

	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", node->name);
	TN_ASSERT(node->n_in > slots);
	k->base.run = slots == 0 ? add_n_run : slots == 1 ? sgd_run : momentum_run;
	k->base.destroy = apply_destroy;
	k->n = tn_dims_product(desc->in[0].shape.dims, desc->in[0].shape.rank);
	k->n_terms = node->n_in - slots;
	k->grad_scale = (float)tn_node_float(node, TN_ATTR_GRAD_SCALE, 1.0);
	k->momentum = (float)tn_node_float(node, TN_ATTR_MOMENTUM, 0.0);
	k->weight_decay = (float)tn_node_float(node, TN_ATTR_WEIGHT_DECAY, 0.0);
	k->lr = tn_node_float(node, TN_ATTR_LR, 0.0);
	k->lr_end = tn_node_float(node, TN_ATTR_LR_END, k->lr);
	k->lr_steps = (uint64_t)tn_node_int(node, TN_ATTR_LR_STEPS, 0);
	*kern = &k->base;
	return TERN_OK;
}
