/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels in plain C of a few elementwise ops. Inner loops run along the last dim so that the compiler
 * vectorises them without changing the order of any sum. Reductions are in kern_reduce.c.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_test.c.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern.h"

typedef struct tn_plain {
	tn_kern base;
	const char *name;
	uint64_t n; /* elements = rows * cols */
	uint64_t rows, cols;
	float scale;
} tn_plain;

/* ---- elementwise ---- */

static tern_status run_bias_add(tn_kern *kern, const tn_kern_io *io)
{
	const tn_plain *k = (const tn_plain *)kern;
	const float *restrict bias = io->in[1];

	for (uint64_t i = 0; i < k->rows; i++) {
		const float *restrict x = (const float *)io->in[0] + i * k->cols;
		float *restrict y = (float *)io->out[0] + i * k->cols;

		for (uint64_t j = 0; j < k->cols; j++)
			y[j] = x[j] + bias[j];
	}
	return TERN_OK;
}

static tern_status run_relu_grad(tn_kern *kern, const tn_kern_io *io)
{
	const tn_plain *k = (const tn_plain *)kern;
	const float *restrict dy = io->in[0], *restrict y = io->in[1];
	float *restrict dx = io->out[0];

	for (uint64_t i = 0; i < k->n; i++) {
		float d = dy[i]; /* read always, or it is no vector loop */

		dx[i] = y[i] > 0.0f ? d : 0.0f;
	}
	return TERN_OK;
}

static tern_status run_scale(tn_kern *kern, const tn_kern_io *io)
{
	const tn_plain *k = (const tn_plain *)kern;
	const float *restrict x = io->in[0];
	float *restrict y = io->out[0], s = k->scale;

	for (uint64_t i = 0; i < k->n; i++)
		y[i] = x[i] * s;
	return TERN_OK;
}

/* ---- making ---- */

typedef tern_status (*run_fn)(tn_kern *kern, const tn_kern_io *io);

static const run_fn run_table[TN_OP_COUNT] = {
	[TN_OP_BIAS_ADD] = run_bias_add,
	[TN_OP_RELU_GRAD] = run_relu_grad,
	[TN_OP_SCALE] = run_scale,
};

static void plain_destroy(tn_kern *kern)
{
	free(kern);
}

/* rows x cols: input 0 up to its last dim. */
static void fill_matrix(tn_plain *k, const tn_kern_desc *desc)
{
	const tern_shape *s = &desc->in[0].shape;

	k->n = tn_dims_product(s->dims, s->rank);
	k->cols = s->rank ? s->dims[s->rank - 1] : 1;
	k->rows = s->rank ? tn_dims_product(s->dims, s->rank - 1) : 1;
}

tern_status tn_kern_plain_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **kern)
{
	const tn_node *node = desc->node;
	tn_plain *k;

	(void)ctx;
	if (!run_table[node->op]) {
		return tn_fail(TERN_E_UNSUPPORTED, "%s '%s': this op has no kernel",
			       tn_op_table[node->op].name, node->name);
	}
	k = calloc(1, sizeof(*k));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", node->name);
	k->base = (tn_kern){.run = run_table[node->op], .destroy = plain_destroy};
	k->name = node->name;
	k->scale = (float)tn_node_float(node, TN_ATTR_SCALE, 1.0);
	fill_matrix(k, desc);
	*kern = &k->base;
	return TERN_OK;
}
