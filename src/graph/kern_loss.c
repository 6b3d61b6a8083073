/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Losses and their gradients: each is a mean, over rows with a label or over elements. Sums are in double and
 * in the order of the elements. Labels come from files, so they are checked in every run; a row whose label
 * is ignore_index (padding of a sequence) counts nothing, and a loss without any row is 0.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_test.c, tests/unit/graph/grad_test.c.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/fail.h"
#include "graph/kern.h"

typedef struct loss_kern {
	tn_kern base;
	const char *name;
	uint64_t rows, cols; /* with labels */
	uint64_t n;          /* elements */
	tern_dtype labels;
	bool ignores;
	int64_t ignore;
} loss_kern;

/* ---- labels ---- */

static int64_t label_of(const loss_kern *k, const void *labels, uint64_t row)
{
	switch (k->labels) {
	case TERN_U8:
		return ((const uint8_t *)labels)[row];
	case TERN_I64:
		return ((const int64_t *)labels)[row];
	default:
		return ((const int32_t *)labels)[row];
	}
}

/* counted: whether the row has a label at all. */
static tern_status label_at(const loss_kern *k, const void *labels, uint64_t row, uint64_t *label,
			    bool *counted)
{
	int64_t v = label_of(k, labels, row);

	*counted = !(k->ignores && v == k->ignore);
	*label = 0;
	if (!*counted)
		return TERN_OK;
	if (v < 0 || (uint64_t)v >= k->cols) {
		return tn_fail(TERN_E_INVALID,
			       "'%s': label %" PRId64 " of row %" PRIu64 " is not in 0..%" PRIu64, k->name, v,
			       row, k->cols - 1);
	}
	*label = (uint64_t)v;
	return TERN_OK;
}

static uint64_t rows_counted(const loss_kern *k, const void *labels)
{
	uint64_t n = k->rows;

	for (uint64_t i = 0; i < k->rows && k->ignores; i++)
		n -= label_of(k, labels, i) == k->ignore;
	return n;
}

static float mean(double sum, uint64_t n)
{
	return n ? (float)(sum / (double)n) : 0.0f;
}

/* dloss over what the loss is a mean of. */
static float share(const tn_kern_io *io, uint64_t n)
{
	return n ? *(const float *)io->in[0] / (float)n : 0.0f;
}

/* ---- softmax and cross-entropy ---- */

/* y = softmax(x); returns log(sum(exp(x))), the row's log-partition. */
static float softmax_row(const float *x, float *y, uint64_t n)
{
	float m = n ? x[0] : 0.0f, sum = 0.0f, inv;

	for (uint64_t j = 1; j < n; j++)
		m = x[j] > m ? x[j] : m;
	for (uint64_t j = 0; j < n; j++) {
		y[j] = expf(x[j] - m);
		sum += y[j];
	}
	inv = 1.0f / sum;
	for (uint64_t j = 0; j < n; j++)
		y[j] *= inv;
	return logf(sum) + m;
}

static tern_status run_softmax_xent(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	double loss = 0.0;
	int32_t correct = 0;

	for (uint64_t i = 0; i < k->rows; i++) {
		const float *x = (const float *)io->in[0] + i * k->cols;
		float partition = softmax_row(x, (float *)io->out[2] + i * k->cols, k->cols);
		uint64_t label, best = 0;
		bool counted;

		TN_TRY(label_at(k, io->in[1], i, &label, &counted));
		if (!counted)
			continue;
		for (uint64_t j = 1; j < k->cols; j++)
			best = x[j] > x[best] ? j : best;
		correct += best == label;
		loss += (double)partition - (double)x[label];
	}
	*(float *)io->out[0] = mean(loss, rows_counted(k, io->in[1]));
	*(int32_t *)io->out[1] = correct;
	return TERN_OK;
}

/* dlogits = (probs - onehot(label)) * dloss / rows */
static tern_status run_softmax_xent_grad(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	float scale = share(io, rows_counted(k, io->in[2]));

	for (uint64_t i = 0; i < k->rows; i++) {
		const float *p = (const float *)io->in[1] + i * k->cols;
		float *d = (float *)io->out[0] + i * k->cols;
		uint64_t label;
		bool counted;

		TN_TRY(label_at(k, io->in[2], i, &label, &counted));
		for (uint64_t j = 0; j < k->cols; j++)
			d[j] = counted ? (p[j] - (j == label ? 1.0f : 0.0f)) * scale : 0.0f;
	}
	return TERN_OK;
}

static tern_status run_nll(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	double loss = 0.0;

	for (uint64_t i = 0; i < k->rows; i++) {
		uint64_t label;
		bool counted;

		TN_TRY(label_at(k, io->in[1], i, &label, &counted));
		if (counted)
			loss -= (double)((const float *)io->in[0])[i * k->cols + label];
	}
	*(float *)io->out[0] = mean(loss, rows_counted(k, io->in[1]));
	return TERN_OK;
}

static tern_status run_nll_grad(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	float scale = share(io, rows_counted(k, io->in[2]));

	for (uint64_t i = 0; i < k->rows; i++) {
		float *d = (float *)io->out[0] + i * k->cols;
		uint64_t label;
		bool counted;

		TN_TRY(label_at(k, io->in[2], i, &label, &counted));
		for (uint64_t j = 0; j < k->cols; j++)
			d[j] = counted && j == label ? -scale : 0.0f;
	}
	return TERN_OK;
}

/* ---- element by element ---- */

static tern_status run_mse(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	const float *x = io->in[0], *t = io->in[1];
	double sum = 0.0;

	for (uint64_t i = 0; i < k->n; i++) {
		double d = (double)x[i] - (double)t[i];

		sum += d * d;
	}
	*(float *)io->out[0] = mean(sum, k->n);
	return TERN_OK;
}

static tern_status run_mse_grad(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	const float *restrict x = io->in[1], *restrict t = io->in[2];
	float *restrict d = io->out[0], scale = 2.0f * share(io, k->n);

	for (uint64_t i = 0; i < k->n; i++)
		d[i] = (x[i] - t[i]) * scale;
	return TERN_OK;
}

/* -t log s(x) - (1 - t) log(1 - s(x)) = max(x, 0) - x t + log(1 + exp(-|x|)) */
static tern_status run_sigmoid_xent(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	const float *x = io->in[0], *t = io->in[1];
	double sum = 0.0;

	for (uint64_t i = 0; i < k->n; i++)
		sum += (double)((x[i] > 0.0f ? x[i] : 0.0f) - x[i] * t[i] + log1pf(expf(-fabsf(x[i]))));
	*(float *)io->out[0] = mean(sum, k->n);
	return TERN_OK;
}

static tern_status run_sigmoid_xent_grad(tn_kern *kern, const tn_kern_io *io)
{
	const loss_kern *k = (const loss_kern *)kern;
	const float *x = io->in[1], *t = io->in[2];
	float *restrict d = io->out[0], scale = share(io, k->n);

	for (uint64_t i = 0; i < k->n; i++)
		d[i] = (1.0f / (1.0f + expf(-x[i])) - t[i]) * scale;
	return TERN_OK;
}

/* ---- making ---- */

typedef struct loss_row {
	tn_op op;
	tern_status (*run)(tn_kern *kern, const tn_kern_io *io);
	uint32_t values; /* the input that has the rows or elements; labels or targets follow it */
} loss_row;

static const loss_row rows[] = {
	{TN_OP_SOFTMAX_XENT, run_softmax_xent, 0},
	{TN_OP_SOFTMAX_XENT_GRAD, run_softmax_xent_grad, 1},
	{TN_OP_NLL, run_nll, 0},
	{TN_OP_NLL_GRAD, run_nll_grad, 1},
	{TN_OP_MSE, run_mse, 0},
	{TN_OP_MSE_GRAD, run_mse_grad, 1},
	{TN_OP_SIGMOID_XENT, run_sigmoid_xent, 0},
	{TN_OP_SIGMOID_XENT_GRAD, run_sigmoid_xent_grad, 1},
};

static void loss_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_loss_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tn_node *node = desc->node;
	const loss_row *row = rows;
	const tern_shape *s;
	loss_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", node->name);
	while (row->op != node->op)
		row++;
	s = &desc->in[row->values].shape;
	*k = (loss_kern){.base = {.run = row->run, .destroy = loss_destroy},
			 .name = node->name,
			 .n = tn_dims_product(s->dims, s->rank),
			 .rows = s->rank ? tn_dims_product(s->dims, s->rank - 1) : 1,
			 .cols = s->rank ? s->dims[s->rank - 1] : 1,
			 .labels = desc->in[row->values + 1].dtype,
			 .ignores = tn_node_attr(node, TN_ATTR_IGNORE_INDEX) != NULL,
			 .ignore = tn_node_int(node, TN_ATTR_IGNORE_INDEX, 0)};
	*made = &k->base;
	return TERN_OK;
}
