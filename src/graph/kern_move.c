/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops that move elements and compute nothing: slices and their gradient, Concat, Expand, Tile, Trilu,
 * ReverseSequence. They know elements only by their size. Transposes are in kern_transpose.c, pads and
 * resizes in kern_resize.c.
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

static tern_status no_memory(const tn_kern_desc *desc)
{
	return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
}

static void move_destroy(tn_kern *kern)
{
	free(kern);
}

/* ---- one walk: Slice, SliceGrad, Expand, Tile ---- */

typedef struct walk_kern {
	tn_kern base;
	tn_walk walk; /* operand 0 is the output, 1 the input */
	uint64_t size;
	int64_t to_first, from_first; /* bytes */
	uint64_t clear;               /* bytes of the output that are zeroed first */
} walk_kern;

static tern_status run_walk(tn_kern *kern, const tn_kern_io *io)
{
	const walk_kern *k = (const walk_kern *)kern;

	if (k->clear)
		memset(io->out[0], 0, k->clear);
	tn_walk_copy(&k->walk, (char *)io->out[0] + k->to_first, (const char *)io->in[0] + k->from_first,
		     k->size);
	return TERN_OK;
}

static walk_kern *walk_new(const tn_kern_desc *desc)
{
	walk_kern *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->base = (tn_kern){.run = run_walk, .destroy = move_destroy};
	k->size = tn_operand_size(&desc->in[0]);
	return k;
}

/* A slice of symbolic dims was inferred without their sizes. */
static tern_status check_slice(const tn_kern_desc *desc, const tn_slice *s, const tern_shape *part)
{
	for (uint32_t d = 0; d < part->rank; d++) {
		if (s->len[d] != part->dims[d]) {
			return tn_fail(TERN_E_SHAPE,
				       "%s '%s': dim %u is too small for it: it has %" PRIu64 " of %" PRIu64
				       " elements",
				       tn_op_table[desc->node->op].name, desc->node->name, d, s->len[d],
				       part->dims[d]);
		}
	}
	return TERN_OK;
}

tern_status tn_kern_slice_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	bool grad = desc->node->op == TN_OP_SLICE_GRAD;
	const tern_shape *whole = grad ? &desc->out[0].shape : &desc->in[0].shape;
	const tern_shape *part = grad ? &desc->in[0].shape : &desc->out[0].shape;
	int64_t strides[2][TN_WALK_DIMS] = {{0}}, dense[TERN_RANK_MAX] = {0}, first = 0;
	walk_kern *k;
	tn_slice s;

	(void)ctx;
	TN_TRY(tn_slice_resolve(desc->node, whole, &s));
	TN_TRY(check_slice(desc, &s, part));
	k = walk_new(desc);
	if (!k)
		return no_memory(desc);
	tn_dense_strides(whole->dims, whole->rank, dense);
	tn_dense_strides(part->dims, part->rank, strides[grad ? 1 : 0]);
	for (uint32_t d = 0; d < whole->rank; d++) {
		first += s.start[d] * dense[d] * (int64_t)k->size;
		strides[grad ? 0 : 1][d] = s.step[d] * dense[d];
	}
	tn_walk_make(&k->walk, part->dims, part->rank, 2, strides);
	if (k->walk.runs > 0)
		*(grad ? &k->to_first : &k->from_first) = first;
	if (grad)
		k->clear = tn_operand_elements(&desc->out[0]) * k->size;
	*made = &k->base;
	return TERN_OK;
}

/* Tile sees each dim as (repeats, dim), over the first of which the input does not move. */
static void tile_walk(const tn_kern_desc *desc, tn_walk *walk)
{
	const tern_shape *in = &desc->in[0].shape;
	int64_t strides[2][TN_WALK_DIMS] = {{0}}, dense[TERN_RANK_MAX] = {0};
	uint64_t dims[TN_WALK_DIMS];

	tn_dense_strides(in->dims, in->rank, dense);
	for (uint32_t d = 0; d < in->rank; d++) {
		dims[2 * d] = in->dims[d] ? desc->out[0].shape.dims[d] / in->dims[d] : 0;
		dims[2 * d + 1] = in->dims[d];
		strides[1][2 * d + 1] = dense[d];
	}
	tn_dense_strides(dims, 2 * in->rank, strides[0]);
	tn_walk_make(walk, dims, 2 * in->rank, 2, strides);
}

tern_status tn_kern_expand_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tern_shape *in = &desc->in[0].shape;
	walk_kern *k = walk_new(desc);

	(void)ctx;
	if (!k)
		return no_memory(desc);
	if (desc->node->op == TN_OP_TILE)
		tile_walk(desc, &k->walk);
	else
		tn_walk_broadcast(&k->walk, &desc->out[0].shape, &in, 1);
	*made = &k->base;
	return TERN_OK;
}

/* ---- Concat ---- */

typedef struct concat_kern {
	tn_kern base;
	uint64_t outer, row; /* bytes of a row of the output */
	uint32_t n;
	uint64_t part[]; /* bytes of a row of each input */
} concat_kern;

static tern_status run_concat(tn_kern *kern, const tn_kern_io *io)
{
	const concat_kern *k = (const concat_kern *)kern;
	uint64_t first = 0;

	for (uint32_t i = 0; i < k->n; i++) {
		const char *from = io->in[i];
		char *to = (char *)io->out[0] + first;

		for (uint64_t o = 0; o < k->outer && k->part[i]; o++)
			memcpy(to + o * k->row, from + o * k->part[i], k->part[i]);
		first += k->part[i];
	}
	return TERN_OK;
}

tern_status tn_kern_concat_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	uint32_t n = desc->node->n_in, rank = desc->out[0].shape.rank;
	uint32_t axis = tn_node_axis(desc->node, 0, rank);
	concat_kern *k = calloc(1, sizeof(*k) + n * sizeof(k->part[0]));

	(void)ctx;
	if (!k)
		return no_memory(desc);
	k->base = (tn_kern){.run = run_concat, .destroy = move_destroy};
	k->outer = tn_dims_product(desc->out[0].shape.dims, axis);
	k->n = n;
	for (uint32_t i = 0; i < n; i++) {
		k->part[i] = tn_dims_product(desc->in[i].shape.dims + axis, rank - axis) *
			     tn_operand_size(&desc->in[i]);
		k->row += k->part[i];
	}
	*made = &k->base;
	return TERN_OK;
}

/* ---- Trilu ---- */

typedef struct trilu_kern {
	tn_kern base;
	uint64_t matrices, rows, cols, size;
	int64_t k;
	bool upper;
} trilu_kern;

static uint64_t limit(int64_t v, uint64_t most)
{
	return v < 0 ? 0 : (uint64_t)v > most ? most : (uint64_t)v;
}

/* Row i keeps columns from i + k on (upper), or up to i + k. */
static tern_status run_trilu(tn_kern *kern, const tn_kern_io *io)
{
	const trilu_kern *k = (const trilu_kern *)kern;
	uint64_t row = k->cols * k->size;

	for (uint64_t i = 0; i < k->matrices * k->rows; i++) {
		int64_t cut = (int64_t)(i % k->rows) + k->k + (k->upper ? 0 : 1);
		uint64_t at = limit(cut, k->cols) * k->size;
		const char *from = (const char *)io->in[0] + i * row;
		char *to = (char *)io->out[0] + i * row;

		if (k->upper) {
			memset(to, 0, at);
			memcpy(to + at, from + at, row - at);
		} else {
			memcpy(to, from, at);
			memset(to + at, 0, row - at);
		}
	}
	return TERN_OK;
}

tern_status tn_kern_trilu_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tern_shape *s = &desc->in[0].shape;
	int64_t diagonal = tn_node_int(desc->node, TN_ATTR_K, 0), far = INT64_C(1) << 50;
	trilu_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return no_memory(desc);
	k->base = (tn_kern){.run = run_trilu, .destroy = move_destroy};
	k->matrices = tn_dims_product(s->dims, s->rank - 2);
	k->rows = s->dims[s->rank - 2];
	k->cols = s->dims[s->rank - 1];
	k->size = tn_operand_size(&desc->in[0]);
	k->k = diagonal > far ? far : diagonal < -far ? -far : diagonal;
	k->upper = tn_node_int(desc->node, TN_ATTR_UPPER, 1) != 0;
	*made = &k->base;
	return TERN_OK;
}

/* ---- ReverseSequence ---- */

typedef struct reverse_kern {
	tn_kern base;
	const char *name;
	uint64_t batch, time, row; /* bytes of a row */
	bool time_first, wide;     /* lengths are i64 */
} reverse_kern;

static tern_status run_reverse(tn_kern *kern, const tn_kern_io *io)
{
	const reverse_kern *k = (const reverse_kern *)kern;
	uint64_t bs = k->row * (k->time_first ? 1 : k->time), ts = k->row * (k->time_first ? k->batch : 1);

	for (uint64_t b = 0; b < k->batch; b++) {
		int64_t len = k->wide ? ((const int64_t *)io->in[1])[b] : ((const int32_t *)io->in[1])[b];
		const char *from = (const char *)io->in[0] + b * bs;
		char *to = (char *)io->out[0] + b * bs;

		if (len < 0 || (uint64_t)len > k->time) {
			return tn_fail(TERN_E_INVALID,
				       "'%s': length %" PRId64 " of sequence %" PRIu64
				       " is not in 0 to %" PRIu64,
				       k->name, len, b, k->time);
		}
		for (uint64_t t = 0; t < k->time; t++) {
			uint64_t other = t < (uint64_t)len ? (uint64_t)len - 1 - t : t;

			memcpy(to + t * ts, from + other * ts, k->row);
		}
	}
	return TERN_OK;
}

tern_status tn_kern_reverse_sequence_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tern_shape *s = &desc->in[0].shape;
	reverse_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return no_memory(desc);
	k->base = (tn_kern){.run = run_reverse, .destroy = move_destroy};
	k->name = desc->node->name;
	k->time_first = tn_node_int(desc->node, TN_ATTR_TIME_AXIS, 0) == 0;
	k->time = s->dims[k->time_first ? 0 : 1];
	k->batch = s->dims[k->time_first ? 1 : 0];
	k->row = tn_dims_product(s->dims + 2, s->rank - 2) * tn_operand_size(&desc->in[0]);
	k->wide = desc->in[1].dtype == TERN_I64;
	*made = &k->base;
	return TERN_OK;
}
