/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers, scatters, the gradient of Gather, OneHot. Indices come from data, so each is checked in every run
 * before it is used; one out of range fails the run (TERN_E_INVALID). Negative ones count from the end.
 *
 * GatherGrad and scatters add in the order of the indices.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_moves_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/infer.h"
#include "graph/kern_walk.h"

/* to = to op from, n elements */
typedef void (*combine_fn)(void *to, const void *from, uint64_t n);

typedef struct index_kern {
	tn_kern base;
	const char *name;
	bool wide;                /* indices are i64 */
	uint64_t outer, n, inner; /* the axis; inner in bytes where whole rows move */
	uint64_t count;           /* indices, or tuples of them */
	uint64_t size;            /* of an element */
	uint64_t bytes;           /* of the output or data */
	combine_fn combine;       /* NULL: set */
	/* tuples (GatherND, ScatterND) */
	uint32_t k;
	uint64_t per_batch; /* tuples in each of `outer` batches */
	uint64_t dims[TERN_RANK_MAX];
	/* elements (GatherElements, ScatterElements) */
	uint32_t rank, axis;
	uint64_t index_dims[TERN_RANK_MAX];
	int64_t stride[TERN_RANK_MAX]; /* of data */
} index_kern;

static void index_destroy(tn_kern *kern)
{
	free(kern);
}

static tern_status bad_index(const index_kern *k, int64_t v, uint64_t n)
{
	return tn_fail(TERN_E_INVALID, "'%s': index %" PRId64 " is out of range for a dim of %" PRIu64,
		       k->name, v, n);
}

static inline int64_t raw_index(const index_kern *k, const void *indices, uint64_t i)
{
	return k->wide ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
}

/* false if it is out of range */
static inline bool index_at(const index_kern *k, const void *indices, uint64_t i, uint64_t n, uint64_t *at)
{
	int64_t v = raw_index(k, indices, i);

	v = v < 0 ? v + (int64_t)n : v;
	*at = (uint64_t)v;
	return v >= 0 && (uint64_t)v < n;
}

/* ---- Gather and its gradient: rows of `inner` bytes ---- */

static tern_status run_gather(tn_kern *kern, const tn_kern_io *io)
{
	const index_kern *k = (const index_kern *)kern;
	const char *data = io->in[0];
	char *out = io->out[0];
	uint64_t at;

	for (uint64_t i = 0; i < k->count; i++) {
		if (!index_at(k, io->in[1], i, k->n, &at))
			return bad_index(k, raw_index(k, io->in[1], i), k->n);
		for (uint64_t o = 0; o < k->outer; o++)
			memcpy(out + (o * k->count + i) * k->inner, data + (o * k->n + at) * k->inner,
			       k->inner);
	}
	return TERN_OK;
}

static tern_status run_gather_grad(tn_kern *kern, const tn_kern_io *io)
{
	const index_kern *k = (const index_kern *)kern;
	const char *dy = io->in[0];
	char *dx = io->out[0];
	uint64_t at;

	memset(dx, 0, k->bytes);
	for (uint64_t i = 0; i < k->count; i++) {
		if (!index_at(k, io->in[1], i, k->n, &at))
			return bad_index(k, raw_index(k, io->in[1], i), k->n);
		for (uint64_t o = 0; o < k->outer; o++)
			k->combine(dx + (o * k->n + at) * k->inner, dy + (o * k->count + i) * k->inner,
				   k->inner / sizeof(float));
	}
	return TERN_OK;
}

/* ---- GatherElements, ScatterElements ---- */

/*
 * Walks the indices in memory order. *base is where in data the index tuple with the axis' part 0 lies.
 */
static void next_element(const index_kern *k, uint64_t *count, int64_t *base)
{
	for (uint32_t d = k->rank; d-- > 0;) {
		int64_t step = d == k->axis ? 0 : k->stride[d];

		if (++count[d] < k->index_dims[d]) {
			*base += step;
			return;
		}
		count[d] = 0;
		*base -= step * (int64_t)(k->index_dims[d] - 1);
	}
}

static void put(const index_kern *k, char *to, const char *from, uint64_t bytes)
{
	if (k->combine)
		k->combine(to, from, bytes / k->size);
	else
		memcpy(to, from, bytes);
}

static tern_status run_elements(const index_kern *k, const tn_kern_io *io, bool scatter)
{
	uint64_t count[TERN_RANK_MAX] = {0}, at;
	int64_t base = 0;

	for (uint64_t i = 0; i < k->count; i++) {
		int64_t place;

		if (i > 0)
			next_element(k, count, &base);
		if (!index_at(k, io->in[1], i, k->n, &at))
			return bad_index(k, raw_index(k, io->in[1], i), k->n);
		place = (base + (int64_t)at * k->stride[k->axis]) * (int64_t)k->size;
		if (scatter)
			put(k, (char *)io->out[0] + place, (const char *)io->in[2] + i * k->size, k->size);
		else
			memcpy((char *)io->out[0] + i * k->size, (const char *)io->in[0] + place, k->size);
	}
	return TERN_OK;
}

static tern_status run_gather_elements(tn_kern *kern, const tn_kern_io *io)
{
	return run_elements((const index_kern *)kern, io, false);
}

static tern_status run_scatter_elements(tn_kern *kern, const tn_kern_io *io)
{
	const index_kern *k = (const index_kern *)kern;

	memmove(io->out[0], io->in[0], k->bytes);
	return run_elements(k, io, true);
}

/* ---- GatherND, ScatterND: rows of `inner` bytes, each named by k indices ---- */

static tern_status tuple_at(const index_kern *k, const void *indices, uint64_t tuple, uint64_t *row)
{
	uint64_t at = 0, one;

	for (uint32_t d = 0; d < k->k; d++) {
		if (!index_at(k, indices, tuple * k->k + d, k->dims[d], &one))
			return bad_index(k, raw_index(k, indices, tuple * k->k + d), k->dims[d]);
		at = at * k->dims[d] + one;
	}
	*row = at;
	return TERN_OK;
}

static tern_status run_gather_nd(tn_kern *kern, const tn_kern_io *io)
{
	const index_kern *k = (const index_kern *)kern;
	uint64_t row = 0;

	for (uint64_t i = 0; i < k->count; i++) {
		uint64_t batch = i / k->per_batch;
		tern_status st = tuple_at(k, io->in[1], i, &row);

		if (st != TERN_OK)
			return st;
		memcpy((char *)io->out[0] + i * k->inner,
		       (const char *)io->in[0] + (batch * k->n + row) * k->inner, k->inner);
	}
	return TERN_OK;
}

static tern_status run_scatter_nd(tn_kern *kern, const tn_kern_io *io)
{
	const index_kern *k = (const index_kern *)kern;
	uint64_t row = 0;

	memmove(io->out[0], io->in[0], k->bytes);
	for (uint64_t i = 0; i < k->count; i++) {
		tern_status st = tuple_at(k, io->in[1], i, &row);

		if (st != TERN_OK)
			return st;
		put(k, (char *)io->out[0] + row * k->inner, (const char *)io->in[2] + i * k->inner, k->inner);
	}
	return TERN_OK;
}

/* ---- combining ---- */

#define COMBINE(name, T, expr)                                   \
	static void name(void *to, const void *from, uint64_t n) \
	{                                                        \
		T *t = to;                                       \
		const T *f = from;                               \
                                                                 \
		TN_IVDEP                                         \
		for (uint64_t i = 0; i < n; i++) {               \
			T a = t[i], b = f[i];                    \
			t[i] = (T)(expr);                        \
		}                                                \
	}
#define COMBINES(s, T, U)                            \
	COMBINE(add_##s, T, (U)a + (U)b)             \
	COMBINE(mul_##s, T, (U)((U)a * (U)b))        \
	COMBINE(max_##s, T, b > a || b != b ? b : a) \
	COMBINE(min_##s, T, b < a || b != b ? b : a)
COMBINES(f32, float, float)
COMBINES(f64, double, double)
COMBINES(i8, int8_t, uint32_t)
COMBINES(u8, uint8_t, uint32_t)
COMBINES(i32, int32_t, uint32_t)
COMBINES(i64, int64_t, uint64_t)
COMBINES(u64, uint64_t, uint64_t)

#define ROW(t, s) [TERN_##t] = {add_##s, mul_##s, max_##s, min_##s}
static const combine_fn combines[TERN_BOOL + 1][4] = {
	ROW(F32, f32), ROW(F64, f64), ROW(I8, i8), ROW(U8, u8), ROW(I32, i32), ROW(I64, i64), ROW(U64, u64),
};

/* ---- making ---- */

static index_kern *index_new(const tn_kern_desc *desc)
{
	index_kern *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->base.destroy = index_destroy;
	k->name = desc->node->name;
	k->wide = desc->in[1].dtype == TERN_I64;
	k->size = tn_operand_size(&desc->in[0]);
	return k;
}

/* Gather: `whole` is what is gathered from. */
static void fill_rows(index_kern *k, const tn_kern_desc *desc, const tern_shape *whole)
{
	uint32_t axis = tn_node_axis(desc->node, 0, whole->rank);

	k->outer = tn_dims_product(whole->dims, axis);
	k->n = whole->dims[axis];
	k->inner = tn_dims_product(whole->dims + axis + 1, whole->rank - axis - 1) * k->size;
	k->count = tn_operand_elements(&desc->in[1]);
	k->bytes = k->outer * k->n * k->inner;
}

static void fill_elements(index_kern *k, const tn_kern_desc *desc)
{
	const tern_shape *data = &desc->in[0].shape, *index = &desc->in[1].shape;

	k->rank = data->rank;
	k->axis = tn_node_axis(desc->node, 0, data->rank);
	k->n = data->dims[k->axis];
	k->count = tn_operand_elements(&desc->in[1]);
	k->bytes = tn_operand_elements(&desc->in[0]) * k->size;
	tn_dense_strides(data->dims, data->rank, k->stride);
	memcpy(k->index_dims, index->dims, sizeof(k->index_dims));
}

static void fill_tuples(index_kern *k, const tn_kern_desc *desc)
{
	const tern_shape *data = &desc->in[0].shape, *index = &desc->in[1].shape;
	uint32_t batch = (uint32_t)tn_node_int(desc->node, TN_ATTR_BATCH_DIMS, 0);

	k->k = (uint32_t)index->dims[index->rank - 1];
	memcpy(k->dims, data->dims + batch, k->k * sizeof(k->dims[0]));
	k->outer = tn_dims_product(data->dims, batch);
	k->n = tn_dims_product(k->dims, k->k);
	k->inner = tn_dims_product(data->dims + batch + k->k, data->rank - batch - k->k) * k->size;
	k->count = tn_dims_product(index->dims, index->rank - 1);
	k->per_batch = k->outer && k->count ? k->count / k->outer : 1;
	k->bytes = tn_operand_elements(&desc->in[0]) * k->size;
}

tern_status tn_kern_gather_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	index_kern *k = index_new(desc);

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	switch (desc->node->op) {
	case TN_OP_GATHER_GRAD:
		k->base.run = run_gather_grad;
		k->combine = add_f32;
		fill_rows(k, desc, &desc->out[0].shape);
		break;
	case TN_OP_GATHER_ELEMENTS:
		k->base.run = run_gather_elements;
		fill_elements(k, desc);
		break;
	case TN_OP_GATHER_ND:
		k->base.run = run_gather_nd;
		fill_tuples(k, desc);
		break;
	default:
		k->base.run = run_gather;
		fill_rows(k, desc, &desc->in[0].shape);
		break;
	}
	*made = &k->base;
	return TERN_OK;
}

tern_status tn_kern_scatter_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	int64_t how = tn_node_int(desc->node, TN_ATTR_REDUCTION, TN_SCATTER_NONE);
	combine_fn combine = how == TN_SCATTER_NONE ? NULL : combines[desc->in[0].dtype][how - 1];
	index_kern *k;

	(void)ctx;
	if (how != TN_SCATTER_NONE && !combine)
		return tn_kern_unsupported(desc);
	k = index_new(desc);
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->combine = combine;
	if (desc->node->op == TN_OP_SCATTER_ND) {
		k->base.run = run_scatter_nd;
		fill_tuples(k, desc);
	} else {
		k->base.run = run_scatter_elements;
		fill_elements(k, desc);
	}
	*made = &k->base;
	return TERN_OK;
}

/* ---- OneHot ---- */

typedef struct hot_kern {
	tn_kern base;
	uint64_t outer, depth, inner, size;
	tern_dtype in;
	uint8_t on[8], off[8]; /* elements of the output */
} hot_kern;

/* The index as a whole number; one with a fraction or beyond is nowhere. */
static bool hot_at(const hot_kern *k, const void *indices, uint64_t i, uint64_t *at)
{
	double real = -0.5;
	int64_t v = 0;

	switch (k->in) {
	case TERN_I32:
		v = ((const int32_t *)indices)[i];
		break;
	case TERN_I64:
		v = ((const int64_t *)indices)[i];
		break;
	case TERN_I8:
		v = ((const int8_t *)indices)[i];
		break;
	case TERN_U8:
		v = ((const uint8_t *)indices)[i];
		break;
	case TERN_U64:
		v = ((const uint64_t *)indices)[i] < k->depth ? (int64_t)((const uint64_t *)indices)[i]
							      : INT64_MIN;
		break;
	case TERN_F64:
	case TERN_F32:
		real = k->in == TERN_F32 ? (double)((const float *)indices)[i] : ((const double *)indices)[i];
		if (!(real > -0x1p53 && real < 0x1p53) || (double)(int64_t)real != real)
			return false;
		v = (int64_t)real;
		break;
	default:
		return false;
	}
	v = v < 0 ? v + (int64_t)k->depth : v;
	*at = (uint64_t)v;
	return v >= 0 && (uint64_t)v < k->depth;
}

static tern_status run_one_hot(tn_kern *kern, const tn_kern_io *io)
{
	const hot_kern *k = (const hot_kern *)kern;
	char *out = io->out[0];
	uint64_t at;

	for (uint64_t i = 0; i < k->outer * k->depth * k->inner; i++)
		memcpy(out + i * k->size, k->off, k->size);
	for (uint64_t i = 0; i < k->outer * k->inner; i++) {
		if (hot_at(k, io->in[0], i, &at))
			memcpy(out + ((i / k->inner * k->depth + at) * k->inner + i % k->inner) * k->size,
			       k->on, k->size);
	}
	return TERN_OK;
}

tern_status tn_kern_one_hot_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tern_shape *s = &desc->out[0].shape;
	uint32_t axis = tn_node_axis(desc->node, -1, s->rank);
	hot_kern *k;

	(void)ctx;
	if (desc->in[0].dtype == TERN_F16 || desc->in[0].dtype == TERN_BF16)
		return tn_kern_unsupported(desc);
	k = calloc(1, sizeof(*k));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_one_hot, .destroy = index_destroy};
	k->outer = tn_dims_product(s->dims, axis);
	k->depth = s->dims[axis];
	k->inner = tn_dims_product(s->dims + axis + 1, s->rank - axis - 1);
	k->in = desc->in[0].dtype;
	k->size = tn_operand_size(&desc->out[0]);
	tn_element_of(desc->out[0].dtype, tn_node_float(desc->node, TN_ATTR_ON_VALUE, 1.0), k->on);
	tn_element_of(desc->out[0].dtype, tn_node_float(desc->node, TN_ATTR_OFF_VALUE, 0.0), k->off);
	*made = &k->base;
	return TERN_OK;
}
