/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels in plain C: a few elementwise ops, and a simple MatMul for the plain backend.
 * Inner loops run along the last dim so that the compiler vectorises them without changing the order of any
 * sum. Reductions are in kern_reduce.c.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_test.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern.h"

typedef struct tn_plain {
	tn_kern base;
	const char *name;
	uint64_t n;                 /* elements = rows * cols */
	uint64_t rows, cols, depth; /* depth: MatMul only */
	float scale;
	bool trans_a, trans_b;
} tn_plain;

/* ---- MatMul ---- */

/* One row of op(A) times op(B), row by row of op(B): every c[j] is a sum over k in rising order. */
static void matmul_row(float *restrict c, const float *a, uint64_t a_step, const float *b, uint64_t b_row,
		       uint64_t b_col, uint64_t k, uint64_t n)
{
	memset(c, 0, n * sizeof(*c));
	for (uint64_t p = 0; p < k; p++) {
		float x = a[p * a_step];
		const float *restrict row = b + p * b_row;

		if (b_col == 1) {
			for (uint64_t j = 0; j < n; j++)
				c[j] += x * row[j];
		} else {
			for (uint64_t j = 0; j < n; j++)
				c[j] += x * row[j * b_col];
		}
	}
}

static tern_status run_matmul(tn_kern *kern, const tn_kern_io *io)
{
	const tn_plain *k = (const tn_plain *)kern;
	const float *a = io->in[0], *b = io->in[1];
	float *c = io->out[0];
	uint64_t lda = k->trans_a ? k->rows : k->depth, ldb = k->trans_b ? k->depth : k->cols;

	for (uint64_t i = 0; i < k->rows; i++) {
		matmul_row(c + i * k->cols, k->trans_a ? a + i : a + i * lda, k->trans_a ? lda : 1, b,
			   k->trans_b ? 1 : ldb, k->trans_b ? ldb : 1, k->depth, k->cols);
	}
	return TERN_OK;
}

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

	for (uint64_t i = 0; i < k->n; i++)
		dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
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
	[TN_OP_MATMUL] = run_matmul,
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

static void fill_matmul(tn_plain *k, const tn_kern_desc *desc)
{
	k->trans_a = tn_node_int(desc->node, TN_ATTR_TRANS_A, 0) != 0;
	k->trans_b = tn_node_int(desc->node, TN_ATTR_TRANS_B, 0) != 0;
	k->rows = desc->out[0].shape.dims[0];
	k->cols = desc->out[0].shape.dims[1];
	k->depth = desc->in[0].shape.dims[k->trans_a ? 0 : 1];
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
	if (node->op == TN_OP_MATMUL)
		fill_matmul(k, desc);
	*kern = &k->base;
	return TERN_OK;
}
