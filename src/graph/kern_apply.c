/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers and AddN: sums of n tensors in a fixed order (the order of the inputs, which is that of the
 * workers), and updates of variables in place. Everything goes by blocks that stay in the L1 cache, so that
 * each tensor crosses memory once, and every element is computed by the same operations in the same order
 * whether sum, scale and update are one fused node or three. Norms of gradients, for clipping, are here too.
 *
 * The formulas are those of tern_optimizer in <tern/graph.h>. Compiled with -O3 and without contraction of
 * a*b+c, so that all builds give the same bits.
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_test.c, tests/unit/graph/optimise_test.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern.h"

#define BLOCK 1024u /* floats: 4 KiB of each operand at a time */

/* Of one run. */
typedef struct coef {
	float lr, momentum, decay, rho, rho_rest, beta1, beta1_rest, beta2, beta2_rest, epsilon;
	float unbias2; /* sqrt(1 - beta2^n) */
} coef;

/* w and its slots s, which are NULL where the op has none; g is the gradient after scale and clipping. */
typedef void (*update_fn)(float *restrict w, float *restrict s1, float *restrict s2, const float *restrict g,
			  uint32_t n, const coef *c);

typedef struct apply_kern {
	tn_kern base;
	update_fn update;
	uint64_t n; /* elements */
	uint32_t slots, n_terms;
	bool clipped, counts;
	float grad_scale, clip_value;
	coef c;
	double lr, lr_end, beta1, beta2, clip_norm;
	uint64_t lr_steps;
	uint64_t *sizes; /* GradNorm: elements of each input */
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

/* ---- updates ---- */

static void sgd(float *restrict w, float *restrict s1, float *restrict s2, const float *restrict g,
		uint32_t n, const coef *c)
{
	float lr = c->lr, decay = c->decay;

	(void)s1;
	(void)s2;
	for (uint32_t i = 0; i < n; i++)
		w[i] -= lr * (g[i] + decay * w[i]);
}

static void momentum(float *restrict w, float *restrict v, float *restrict s2, const float *restrict g,
		     uint32_t n, const coef *c)
{
	float lr = c->lr, mu = c->momentum, decay = c->decay;

	(void)s2;
	for (uint32_t i = 0; i < n; i++) {
		v[i] = mu * v[i] + (g[i] + decay * w[i]);
		w[i] -= lr * v[i];
	}
}

static void adagrad(float *restrict w, float *restrict a, float *restrict s2, const float *restrict g,
		    uint32_t n, const coef *c)
{
	float lr = c->lr, decay = c->decay, epsilon = c->epsilon;

	(void)s2;
	for (uint32_t i = 0; i < n; i++) {
		float d = g[i] + decay * w[i];

		a[i] += d * d;
		w[i] -= lr * (d / (sqrtf(a[i]) + epsilon));
	}
}

/* lr is lr_t / (1 - beta1^n) here. */
static void adam(float *restrict w, float *restrict m, float *restrict v, const float *restrict g, uint32_t n,
		 const coef *c)
{
	float lr = c->lr, decay = c->decay, epsilon = c->epsilon, b1 = c->beta1, b2 = c->beta2;
	float rest1 = c->beta1_rest, rest2 = c->beta2_rest, unbias2 = c->unbias2;

	for (uint32_t i = 0; i < n; i++) {
		float d = g[i] + decay * w[i];

		m[i] = b1 * m[i] + rest1 * d;
		v[i] = b2 * v[i] + rest2 * (d * d);
		w[i] -= lr * (m[i] / (sqrtf(v[i]) / unbias2 + epsilon));
	}
}

static void rmsprop(float *restrict w, float *restrict a, float *restrict s2, const float *restrict g,
		    uint32_t n, const coef *c)
{
	float lr = c->lr, decay = c->decay, epsilon = c->epsilon, rho = c->rho, rest = c->rho_rest;

	(void)s2;
	for (uint32_t i = 0; i < n; i++) {
		float d = g[i] + decay * w[i];

		a[i] = rho * a[i] + rest * (d * d);
		w[i] -= lr * (d / (sqrtf(a[i]) + epsilon));
	}
}

static void rmsprop_momentum(float *restrict w, float *restrict a, float *restrict v, const float *restrict g,
			     uint32_t n, const coef *c)
{
	float lr = c->lr, decay = c->decay, epsilon = c->epsilon, rho = c->rho, rest = c->rho_rest;
	float mu = c->momentum;

	for (uint32_t i = 0; i < n; i++) {
		float d = g[i] + decay * w[i];

		a[i] = rho * a[i] + rest * (d * d);
		v[i] = mu * v[i] + d / (sqrtf(a[i]) + epsilon);
		w[i] -= lr * v[i];
	}
}

/* g is the mean of the values. */
static void ema(float *restrict w, float *restrict s1, float *restrict s2, const float *restrict g,
		uint32_t n, const coef *c)
{
	float mu = c->momentum, rest = 1.0f - c->momentum;

	(void)s1;
	(void)s2;
	for (uint32_t i = 0; i < n; i++)
		w[i] = mu * w[i] + rest * g[i];
}

/* ---- the run ---- */

static void prepare_gradient(float *g, uint32_t n, float scale, float clip_value)
{
	for (uint32_t i = 0; i < n; i++)
		g[i] *= scale;
	if (clip_value <= 0.0f)
		return;
	for (uint32_t i = 0; i < n; i++) {
		/* a NaN stays one */
		g[i] = g[i] > clip_value ? clip_value : g[i];
		g[i] = g[i] < -clip_value ? -clip_value : g[i];
	}
}

/* By squaring: the same bits with every libm. */
static double power(double x, uint64_t n)
{
	double y = 1.0;

	for (; n; n >>= 1, x *= x)
		y = n & 1 ? y * x : y;
	return y;
}

/* Adam's counter is exact up to 2^24; from there on both corrections are 1 anyhow. */
static void count_update(const apply_kern *k, float *updates, coef *c)
{
	uint64_t n;

	*updates += 1.0f;
	n = (uint64_t)*updates;
	c->lr = (float)((double)c->lr / (1.0 - power(k->beta1, n)));
	c->unbias2 = (float)sqrt(1.0 - power(k->beta2, n));
}

static tern_status apply_run(tn_kern *kern, const tn_kern_io *io)
{
	const apply_kern *k = (const apply_kern *)kern;
	void *const *terms = io->in + k->slots + k->clipped;
	float *s1 = k->slots > 1 ? io->in[1] : NULL, *s2 = k->slots > 2 ? io->in[2] : NULL;
	float *w = io->in[0], scale = k->grad_scale;
	coef c = k->c;
	_Alignas(64) float acc[BLOCK];

	c.lr = lr_at(k, io->step);
	if (k->counts)
		count_update(k, io->in[3], &c);
	if (k->clipped)
		scale *= *(const float *)io->in[k->slots];
	for (uint64_t at = 0; at < k->n; at += BLOCK) {
		uint32_t n = block_at(k, at);

		sum_block(acc, terms, k->n_terms, at, n);
		prepare_gradient(acc, n, scale, k->clip_value);
		k->update(w + at, s1 ? s1 + at : NULL, s2 ? s2 + at : NULL, acc, n, &c);
	}
	return TERN_OK;
}

/* ---- norms ---- */

/* In double, eight partial sums side by side: order and so bits are fixed. */
static double sum_of_squares(const float *x, uint64_t n)
{
	double part[8] = {0}, sum = 0.0;
	uint64_t i = 0;

	for (; i + 8 <= n; i += 8) {
		for (uint32_t j = 0; j < 8; j++)
			part[j] += (double)x[i + j] * (double)x[i + j];
	}
	for (; i < n; i++)
		part[0] += (double)x[i] * (double)x[i];
	for (uint32_t j = 0; j < 8; j++)
		sum += part[j];
	return sum;
}

static tern_status grad_norm_run(tn_kern *kern, const tn_kern_io *io)
{
	const apply_kern *k = (const apply_kern *)kern;
	double sum = 0.0;

	for (uint32_t i = 0; i < k->n_terms; i++)
		sum += sum_of_squares(io->in[i], k->sizes[i]);
	*(float *)io->out[0] = (float)(sqrt(sum) * (double)k->grad_scale);
	return TERN_OK;
}

static tern_status clip_scale_run(tn_kern *kern, const tn_kern_io *io)
{
	const apply_kern *k = (const apply_kern *)kern;
	double sum = 0.0, scale;

	for (uint32_t i = 0; i < k->n_terms; i++) {
		double norm = (double)*(const float *)io->in[i];

		sum += norm * norm;
	}
	scale = k->clip_norm / (sqrt(sum) + 1e-6);
	*(float *)io->out[0] = scale > 1.0 ? 1.0f : (float)scale; /* a NaN stays one */
	return TERN_OK;
}

/* ---- making ---- */

static void apply_destroy(tn_kern *kern)
{
	free(((apply_kern *)kern)->sizes);
	free(kern);
}

static update_fn update_of(const tn_node *node)
{
	switch (node->op) {
	case TN_OP_APPLY_SGD:
		return sgd;
	case TN_OP_APPLY_MOMENTUM:
		return momentum;
	case TN_OP_APPLY_ADAGRAD:
		return adagrad;
	case TN_OP_APPLY_ADAM:
		return adam;
	case TN_OP_APPLY_RMSPROP:
		return tn_node_attr(node, TN_ATTR_MOMENTUM) ? rmsprop_momentum : rmsprop;
	case TN_OP_APPLY_EMA:
		return ema;
	default:
		return NULL;
	}
}

static float real(const tn_node *node, tn_attr_key key, double dflt)
{
	return (float)tn_node_float(node, key, dflt);
}

static void read_attrs(apply_kern *k, const tn_node *node)
{
	bool norm = node->op == TN_OP_GRAD_NORM;

	k->grad_scale = real(node, norm ? TN_ATTR_SCALE : TN_ATTR_GRAD_SCALE, 1.0);
	k->clip_value = real(node, TN_ATTR_CLIP_VALUE, 0.0);
	k->clip_norm = tn_node_float(node, TN_ATTR_CLIP_NORM, 0.0);
	k->beta1 = tn_node_float(node, TN_ATTR_BETA1, 0.0);
	k->beta2 = tn_node_float(node, TN_ATTR_BETA2, 0.0);
	k->lr = tn_node_float(node, TN_ATTR_LR, 0.0);
	k->lr_end = tn_node_float(node, TN_ATTR_LR_END, k->lr);
	k->lr_steps = (uint64_t)tn_node_int(node, TN_ATTR_LR_STEPS, 0);
	k->c = (coef){.momentum = real(node, TN_ATTR_MOMENTUM, 0.0),
		      .decay = real(node, TN_ATTR_WEIGHT_DECAY, 0.0),
		      .rho = real(node, TN_ATTR_RHO, 0.0),
		      .rho_rest = (float)(1.0 - tn_node_float(node, TN_ATTR_RHO, 0.0)),
		      .beta1 = (float)k->beta1,
		      .beta1_rest = (float)(1.0 - k->beta1),
		      .beta2 = (float)k->beta2,
		      .beta2_rest = (float)(1.0 - k->beta2),
		      .epsilon = real(node, TN_ATTR_EPSILON, 0.0)};
}

tern_status tn_kern_apply_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **kern)
{
	const tn_node *node = desc->node;
	apply_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (k)
		k->sizes = calloc(node->n_in, sizeof(*k->sizes));
	if (!k || !k->sizes) {
		free(k);
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", node->name);
	}
	k->update = update_of(node);
	k->base.run = k->update                      ? apply_run
		      : node->op == TN_OP_GRAD_NORM  ? grad_norm_run
		      : node->op == TN_OP_CLIP_SCALE ? clip_scale_run
						     : add_n_run;
	k->base.destroy = apply_destroy;
	k->n = tn_dims_product(desc->in[0].shape.dims, desc->in[0].shape.rank);
	k->slots = tn_apply_slots(node);
	k->clipped = tn_node_int(node, TN_ATTR_CLIPPED, 0) != 0;
	k->counts = node->op == TN_OP_APPLY_ADAM;
	TN_ASSERT(node->n_in > k->slots + k->clipped);
	k->n_terms = node->n_in - k->slots - k->clipped;
	for (uint32_t i = 0; i < node->n_in; i++)
		k->sizes[i] = tn_dims_product(desc->in[i].shape.dims, desc->in[i].shape.rank);
	read_attrs(k, node);
	*kern = &k->base;
	return TERN_OK;
}
