/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What works along one axis: ArgMax and ArgMin, CumSum, TopK, and the softmax family with its gradients. A
 * tensor is seen as (outer, n, inner), n being the axis.
 *
 * A softmax over the last axis goes row by row; over another one, all `inner` columns of a slab go side by
 * side, with their maxima and sums in the kernel's scratch.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/half.h"
#include "graph/infer.h"
#include "graph/kern_math.h"
#include "graph/kern_walk.h"

typedef struct axis_kern {
	tn_kern base;
	uint64_t outer, n, inner;
	tn_op op;
	tern_dtype dtype;
	uint64_t k; /* TopK */
	bool last, exclusive, reverse, largest;
} axis_kern;

static void axis_destroy(tn_kern *kern)
{
	free(kern);
}

static axis_kern *axis_new(const tn_kern_desc *desc, int64_t dflt)
{
	const tern_shape *s = &desc->in[0].shape;
	uint32_t axis = tn_node_axis(desc->node, dflt, s->rank);
	axis_kern *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->base.destroy = axis_destroy;
	k->outer = tn_dims_product(s->dims, axis);
	k->n = s->dims[axis];
	k->inner = tn_dims_product(s->dims + axis + 1, s->rank - axis - 1);
	k->op = desc->node->op;
	k->dtype = desc->in[0].dtype;
	return k;
}

static tern_status no_memory(const tn_kern_desc *desc)
{
	return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
}

/* ---- for every type: instances of kern_axis_type.h ---- */

#define T       float
#define NAME(f) f##_f32
#include "graph/kern_axis_type.h"
#define T       double
#define NAME(f) f##_f64
#include "graph/kern_axis_type.h"
#define T       int8_t
#define NAME(f) f##_i8
#include "graph/kern_axis_type.h"
#define T       uint8_t
#define NAME(f) f##_u8
#include "graph/kern_axis_type.h"
#define T       int32_t
#define NAME(f) f##_i32
#include "graph/kern_axis_type.h"
#define T       int64_t
#define NAME(f) f##_i64
#include "graph/kern_axis_type.h"
#define T       uint64_t
#define NAME(f) f##_u64
#include "graph/kern_axis_type.h"

typedef tern_status (*run_fn)(tn_kern *kern, const tn_kern_io *io);
typedef struct runs {
	run_fn arg, cumsum, top_k;
} runs;

static const runs table[] = {
#define ROW(t, s) [TERN_##t] = {run_arg_##s, run_cumsum_##s, run_top_k_##s}
	ROW(F32, f32), ROW(F64, f64), ROW(I8, i8), ROW(U8, u8), ROW(I32, i32), ROW(I64, i64), ROW(U64, u64),
};

static tern_status make(const tn_kern_desc *desc, int64_t dflt, axis_kern **made)
{
	tern_dtype t = desc->in[0].dtype;

	if (t >= sizeof(table) / sizeof(table[0]) || !table[t].arg)
		return tn_kern_unsupported(desc);
	*made = axis_new(desc, dflt);
	if (!*made)
		return no_memory(desc);
	if (tn_operand_elements(&desc->in[0]) == 0 && tn_operand_elements(&desc->out[0]) > 0) {
		free(*made); /* a symbolic dim that turned out to be 0 */
		return tn_fail(TERN_E_SHAPE, "%s '%s': there is nothing along its axis",
			       tn_op_table[desc->node->op].name, desc->node->name);
	}
	return TERN_OK;
}

tern_status tn_kern_arg_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	axis_kern *k;
	tern_status st = make(desc, 0, &k);

	(void)ctx;
	if (st != TERN_OK)
		return st;
	k->base.run = table[k->dtype].arg;
	k->last = tn_node_int(desc->node, TN_ATTR_LAST, 0) != 0;
	k->largest = k->op == TN_OP_ARG_MAX;
	*made = &k->base;
	return TERN_OK;
}

tern_status tn_kern_cumsum_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	axis_kern *k;
	tern_status st = make(desc, 0, &k);

	(void)ctx;
	if (st != TERN_OK)
		return st;
	k->base.run = table[k->dtype].cumsum;
	k->exclusive = tn_node_int(desc->node, TN_ATTR_EXCLUSIVE, 0) != 0;
	k->reverse = tn_node_int(desc->node, TN_ATTR_REVERSE, 0) != 0;
	*made = &k->base;
	return TERN_OK;
}

tern_status tn_kern_top_k_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	axis_kern *k;
	tern_status st = make(desc, -1, &k);

	(void)ctx;
	if (st != TERN_OK)
		return st;
	k->base.run = table[k->dtype].top_k;
	k->k = (uint64_t)tn_node_int(desc->node, TN_ATTR_K, 0);
	k->largest = tn_node_int(desc->node, TN_ATTR_LARGEST, 1) != 0;
	*made = &k->base;
	return TERN_OK;
}

/* ---- softmax family, f32 ---- */

#define LANES 8u

static float row_max(const float *x, uint64_t n)
{
	float lane[LANES], m;
	uint64_t j = 0;

	for (uint32_t l = 0; l < LANES; l++)
		lane[l] = x[0];
	for (; j + LANES <= n; j += LANES) {
		for (uint32_t l = 0; l < LANES; l++)
			lane[l] = x[j + l] > lane[l] ? x[j + l] : lane[l];
	}
	m = lane[0];
	for (uint32_t l = 1; l < LANES; l++)
		m = lane[l] > m ? lane[l] : m;
	for (; j < n; j++)
		m = x[j] > m ? x[j] : m;
	return m;
}

/* Adds in LANES partial sums. */
static float row_sum(const float *x, uint64_t n)
{
	float lane[LANES] = {0}, sum = 0.0f;
	uint64_t j = 0;

	for (; j + LANES <= n; j += LANES) {
		for (uint32_t l = 0; l < LANES; l++)
			lane[l] += x[j + l];
	}
	for (uint32_t l = 0; l < LANES; l++)
		sum += lane[l];
	for (; j < n; j++)
		sum += x[j];
	return sum;
}

static float row_dot(const float *x, const float *y, uint64_t n)
{
	float lane[LANES] = {0}, sum = 0.0f;
	uint64_t j = 0;

	for (; j + LANES <= n; j += LANES) {
		for (uint32_t l = 0; l < LANES; l++)
			lane[l] += x[j + l] * y[j + l];
	}
	for (uint32_t l = 0; l < LANES; l++)
		sum += lane[l];
	for (; j < n; j++)
		sum += x[j] * y[j];
	return sum;
}

static void softmax_row(const float *x, float *y, uint64_t n, bool log)
{
	float m = row_max(x, n), s;

	TN_IVDEP
	for (uint64_t j = 0; j < n; j++)
		y[j] = tn_expf(x[j] - m);
	s = row_sum(y, n);
	if (log) {
		s = logf(s);
		TN_IVDEP
		for (uint64_t j = 0; j < n; j++)
			y[j] = x[j] - m - s;
		return;
	}
	s = 1.0f / s;
	TN_IVDEP
	for (uint64_t j = 0; j < n; j++)
		y[j] *= s;
}

/* One slab (n, inner): max and sum hold `inner` numbers each. */
static void softmax_slab(const float *x, float *y, const axis_kern *k, float *max, float *sum, bool log)
{
	uint64_t w = k->inner;

	memcpy(max, x, w * sizeof(*max));
	for (uint64_t i = 1; i < k->n; i++) {
		TN_IVDEP
		for (uint64_t j = 0; j < w; j++)
			max[j] = x[i * w + j] > max[j] ? x[i * w + j] : max[j];
	}
	memset(sum, 0, w * sizeof(*sum));
	for (uint64_t i = 0; i < k->n; i++) {
		TN_IVDEP
		for (uint64_t j = 0; j < w; j++) {
			float e = tn_expf(x[i * w + j] - max[j]);

			y[i * w + j] = e;
			sum[j] += e;
		}
	}
	for (uint64_t j = 0; j < w; j++)
		sum[j] = log ? logf(sum[j]) : 1.0f / sum[j];
	for (uint64_t i = 0; i < k->n; i++) {
		TN_IVDEP
		for (uint64_t j = 0; j < w; j++)
			y[i * w + j] = log ? x[i * w + j] - max[j] - sum[j] : y[i * w + j] * sum[j];
	}
}

static tern_status run_softmax(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	bool log = k->op == TN_OP_LOG_SOFTMAX;
	uint64_t slab = k->n * k->inner;

	for (uint64_t o = 0; o < k->outer && slab > 0; o++) {
		const float *x = (const float *)io->in[0] + o * slab;
		float *y = (float *)io->out[0] + o * slab;

		if (k->inner == 1)
			softmax_row(x, y, k->n, log);
		else
			softmax_slab(x, y, k, io->scratch, (float *)io->scratch + k->inner, log);
	}
	return TERN_OK;
}

/* dx = y (dy - sum(dy y)), or for the logarithm dx = dy - exp(y) sum(dy) */
static void grad_row(const float *dy, const float *y, float *dx, uint64_t n, bool log)
{
	float s = log ? row_sum(dy, n) : row_dot(dy, y, n);

	TN_IVDEP
	for (uint64_t j = 0; j < n; j++)
		dx[j] = log ? dy[j] - tn_expf(y[j]) * s : y[j] * (dy[j] - s);
}

static void grad_slab(const float *dy, const float *y, float *dx, const axis_kern *k, float *sum, bool log)
{
	uint64_t w = k->inner;

	memset(sum, 0, w * sizeof(*sum));
	for (uint64_t i = 0; i < k->n; i++) {
		TN_IVDEP
		for (uint64_t j = 0; j < w; j++)
			sum[j] += log ? dy[i * w + j] : dy[i * w + j] * y[i * w + j];
	}
	for (uint64_t i = 0; i < k->n; i++) {
		TN_IVDEP
		for (uint64_t j = 0; j < w; j++) {
			float d = dy[i * w + j], v = y[i * w + j];

			dx[i * w + j] = log ? d - tn_expf(v) * sum[j] : v * (d - sum[j]);
		}
	}
}

static tern_status run_softmax_grad(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	bool log = k->op == TN_OP_LOG_SOFTMAX_GRAD;
	uint64_t slab = k->n * k->inner;

	for (uint64_t o = 0; o < k->outer && slab > 0; o++) {
		const float *dy = (const float *)io->in[0] + o * slab,
			    *y = (const float *)io->in[1] + o * slab;
		float *dx = (float *)io->out[0] + o * slab;

		if (k->inner == 1)
			grad_row(dy, y, dx, k->n, log);
		else
			grad_slab(dy, y, dx, k, io->scratch, log);
	}
	return TERN_OK;
}

/* 1 where the (first) maximum is, else 0. */
static tern_status run_hardmax(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	uint64_t slab = k->n * k->inner;

	memset(io->out[0], 0, k->outer * slab * sizeof(float));
	for (uint64_t o = 0; o < k->outer && slab > 0; o++) {
		for (uint64_t j = 0; j < k->inner; j++) {
			const float *x = (const float *)io->in[0] + o * slab + j;
			uint64_t best = 0;

			for (uint64_t i = 1; i < k->n; i++)
				best = x[i * k->inner] > x[best * k->inner] ? i : best;
			((float *)io->out[0])[o * slab + best * k->inner + j] = 1.0f;
		}
	}
	return TERN_OK;
}

/* f64: not fast, for checks. */
static tern_status run_softmax_f64(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	uint64_t slab = k->n * k->inner;

	for (uint64_t c = 0; c < k->outer * k->inner && slab > 0; c++) {
		uint64_t at = c / k->inner * slab + c % k->inner;
		const double *x = (const double *)io->in[0] + at;
		double *y = (double *)io->out[0] + at, m = x[0], s = 0.0;

		for (uint64_t i = 1; i < k->n; i++)
			m = x[i * k->inner] > m ? x[i * k->inner] : m;
		for (uint64_t i = 0; i < k->n; i++)
			s += exp(x[i * k->inner] - m);
		for (uint64_t i = 0; i < k->n; i++) {
			double d = x[i * k->inner] - m;

			y[i * k->inner] = k->op == TN_OP_LOG_SOFTMAX ? d - log(s) : exp(d) / s;
		}
	}
	return TERN_OK;
}

static tern_status run_hardmax_f64(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	uint64_t slab = k->n * k->inner;

	memset(io->out[0], 0, k->outer * slab * sizeof(double));
	for (uint64_t c = 0; c < k->outer * k->inner && slab > 0; c++) {
		uint64_t at = c / k->inner * slab + c % k->inner, best = 0;
		const double *x = (const double *)io->in[0] + at;

		for (uint64_t i = 1; i < k->n; i++)
			best = x[i * k->inner] > x[best * k->inner] ? i : best;
		((double *)io->out[0])[at + best * k->inner] = 1.0;
	}
	return TERN_OK;
}

static run_fn softmax_run_of(tn_op op, tern_dtype t)
{
	if (t == TERN_F64)
		return op == TN_OP_HARDMAX ? run_hardmax_f64 : run_softmax_f64;
	if (op == TN_OP_HARDMAX)
		return run_hardmax;
	return op == TN_OP_SOFTMAX || op == TN_OP_LOG_SOFTMAX ? run_softmax : run_softmax_grad;
}

tern_status tn_kern_softmax_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	tern_dtype t = desc->in[0].dtype;
	axis_kern *k;

	(void)ctx;
	if (t != TERN_F32 && t != TERN_F64)
		return tn_kern_unsupported(desc);
	k = axis_new(desc, -1);
	if (!k)
		return no_memory(desc);
	k->base.run = softmax_run_of(k->op, t);
	if (k->inner > 1)
		k->base.scratch_bytes = 2 * k->inner * sizeof(float);
	*made = &k->base;
	return TERN_OK;
}
