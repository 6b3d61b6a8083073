/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward of one sample. See dlrm.h. Threads: any. Tests: tests/unit/cli/dlrm_test.c.
 */
#include <math.h>
#include <string.h>

#include "dlrm.h"

#define H DLRM_HIDDEN

typedef struct pass {
	float h1[H], z[DLRM_DIM_MAX], top[DLRM_DIM_MAX + DLRM_PAIRS], h3[H];
} pass;

dlrm_net dlrm_shape(uint32_t dim)
{
	dlrm_net n = {.dim = dim};

	n.b1 = n.w1 + H * CLICKS_NUMBERS;
	n.w2 = n.b1 + H;
	n.b2 = n.w2 + (uint64_t)dim * H;
	n.w3 = n.b2 + dim;
	n.b3 = n.w3 + (uint64_t)H * (dim + DLRM_PAIRS);
	n.w4 = n.b3 + H;
	n.b4 = n.w4 + H;
	n.parameters = n.b4 + 1;
	return n;
}

/* y = relu(W x + b), W (rows, columns) */
static void layer(const float *w, const float *b, const float *x, uint32_t rows, uint32_t columns, float *y)
{
	for (uint32_t r = 0; r < rows; r++) {
		float sum = b[r];

		for (uint32_t c = 0; c < columns; c++)
			sum += w[r * columns + c] * x[c];
		y[r] = sum > 0 ? sum : 0;
	}
}

/* dy of a layer's output y: gradients of W and b are added to, dx (may be NULL) too. */
static void layer_back(const float *w, const float *x, const float *y, const float *dy, uint32_t rows,
		       uint32_t columns, float *dw, float *db, float *dx)
{
	for (uint32_t r = 0; r < rows; r++) {
		if (y[r] <= 0 || dy[r] == 0)
			continue;
		db[r] += dy[r];
		for (uint32_t c = 0; c < columns; c++)
			dw[r * columns + c] += dy[r] * x[c];
		for (uint32_t c = 0; dx && c < columns; c++)
			dx[c] += dy[r] * w[r * columns + c];
	}
}

static const float *vector(const pass *p, const float *rows, uint32_t dim, uint32_t i)
{
	return i == 0 ? p->z : rows + (i - 1) * dim;
}

static float forward(const dlrm_net *n, const float *d, const float *rows, const click *s, pass *p)
{
	uint32_t dim = n->dim, at = dim;
	float logit = d[n->b4];

	layer(d + n->w1, d + n->b1, s->number, H, CLICKS_NUMBERS, p->h1);
	layer(d + n->w2, d + n->b2, p->h1, dim, H, p->z);
	memcpy(p->top, p->z, dim * sizeof(float));
	for (uint32_t i = 1; i < DLRM_VECTORS; i++) {
		for (uint32_t j = 0; j < i; j++) {
			const float *a = vector(p, rows, dim, i), *b = vector(p, rows, dim, j);
			float sum = 0;

			for (uint32_t c = 0; c < dim; c++)
				sum += a[c] * b[c];
			p->top[at++] = sum;
		}
	}
	layer(d + n->w3, d + n->b3, p->top, H, dim + DLRM_PAIRS, p->h3);
	for (uint32_t i = 0; i < H; i++)
		logit += d[n->w4 + i] * p->h3[i];
	return logit;
}

/* Gradients of the products go to both vectors. */
static void pairs_back(const dlrm_net *n, const float *rows, const pass *p, const float *dtop, float *dz,
		       float *row_grads)
{
	uint32_t dim = n->dim, at = dim;

	for (uint32_t i = 1; i < DLRM_VECTORS; i++) {
		for (uint32_t j = 0; j < i; j++) {
			const float *a = vector(p, rows, dim, i), *b = vector(p, rows, dim, j);
			float *da = row_grads + (i - 1) * dim, *db = j ? row_grads + (j - 1) * dim : dz;
			float g = dtop[at++];

			for (uint32_t c = 0; c < dim; c++) {
				da[c] += g * b[c];
				db[c] += g * a[c];
			}
		}
	}
}

static void backward(const dlrm_net *n, const float *d, const float *rows, const click *s, const pass *p,
		     float g, float *dd, float *row_grads)
{
	float dh3[H], dtop[DLRM_DIM_MAX + DLRM_PAIRS] = {0}, dz[DLRM_DIM_MAX], dh1[H] = {0};
	uint32_t dim = n->dim;

	dd[n->b4] += g;
	for (uint32_t i = 0; i < H; i++) {
		dd[n->w4 + i] += g * p->h3[i];
		dh3[i] = g * d[n->w4 + i];
	}
	layer_back(d + n->w3, p->top, p->h3, dh3, H, dim + DLRM_PAIRS, dd + n->w3, dd + n->b3, dtop);
	memcpy(dz, dtop, dim * sizeof(float));
	pairs_back(n, rows, p, dtop, dz, row_grads);
	layer_back(d + n->w2, p->h1, p->z, dz, dim, H, dd + n->w2, dd + n->b2, dh1);
	layer_back(d + n->w1, s->number, p->h1, dh1, H, CLICKS_NUMBERS, dd + n->w1, dd + n->b1, NULL);
}

float dlrm_sample(const dlrm_net *n, const float *dense, const float *rows, const click *s, double *loss,
		  float *dense_grad, float *row_grads)
{
	pass p;
	float logit = forward(n, dense, rows, s, &p);
	double x = (double)logit;

	*loss += (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x))) - (double)s->label * x;
	if (dense_grad)
		backward(n, dense, rows, s, &p, 1 / (1 + expf(-logit)) - s->label, dense_grad, row_grads);
	return logit;
}
