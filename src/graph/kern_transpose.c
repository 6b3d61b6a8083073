/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transpose, DepthToSpace, SpaceToDepth: permutations of dims. Where the last dim stays last, runs are copied;
 * otherwise the two dims that are contiguous in the output and in the input form matrices that are
 * transposed by tiles, so that both sides are touched in whole cache lines.
 *
 * Compiled with -O3. Thread story: see kern.h. Tests: tests/unit/graph/kern_moves_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/kern_walk.h"

typedef struct transpose_kern {
	tn_kern base;
	tn_walk walk; /* operand 0: output, 1: input */
	uint64_t size;
	/* tiles: rows of the walk's dim `across`, in which the input is contiguous, times its inner dim */
	bool tiles;
	uint64_t rows;
	int64_t out_row; /* stride of a row in the output */
} transpose_kern;

#define TILE 16u

/* to[r * to_row + c] = from[r + c * from_col] for all r < rows, c < cols. */
#define TRANSPOSE(T)                                                                                    \
	static void tile_##T(T *to, const T *from, int64_t to_row, int64_t from_col)                    \
	{                                                                                               \
		T block[TILE][TILE];                                                                    \
                                                                                                        \
		for (uint32_t c = 0; c < TILE; c++) {                                                   \
			for (uint32_t r = 0; r < TILE; r++)                                             \
				block[r][c] = from[(int64_t)c * from_col + (int64_t)r];                 \
		}                                                                                       \
		for (uint32_t r = 0; r < TILE; r++)                                                     \
			memcpy(to + (int64_t)r * to_row, block[r], sizeof(block[r]));                   \
	}                                                                                               \
	static void matrix_##T(void *out, const void *in, uint64_t rows, uint64_t cols, int64_t to_row, \
			       int64_t from_col)                                                        \
	{                                                                                               \
		T *to = out;                                                                            \
		const T *from = in;                                                                     \
		uint64_t r = 0, c;                                                                      \
                                                                                                        \
		for (; r + TILE <= rows; r += TILE) {                                                   \
			for (c = 0; c + TILE <= cols; c += TILE)                                        \
				tile_##T(to + (int64_t)r * to_row + (int64_t)c,                         \
					 from + (int64_t)c * from_col + (int64_t)r, to_row, from_col);  \
			for (; c < cols; c++) {                                                         \
				for (uint64_t i = r; i < r + TILE; i++)                                 \
					to[(int64_t)i * to_row + (int64_t)c] =                          \
						from[(int64_t)c * from_col + (int64_t)i];               \
			}                                                                               \
		}                                                                                       \
		for (; r < rows; r++) {                                                                 \
			for (c = 0; c < cols; c++)                                                      \
				to[(int64_t)r * to_row + (int64_t)c] =                                  \
					from[(int64_t)c * from_col + (int64_t)r];                       \
		}                                                                                       \
	}
TRANSPOSE(uint8_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint32_t)
TRANSPOSE(uint64_t)

static void matrix(const transpose_kern *k, void *to, const void *from)
{
	uint64_t rows = k->rows, cols = k->walk.n;
	int64_t row = k->out_row, col = k->walk.inner[1];

	if (k->size == 4)
		matrix_uint32_t(to, from, rows, cols, row, col);
	else if (k->size == 8)
		matrix_uint64_t(to, from, rows, cols, row, col);
	else if (k->size == 2)
		matrix_uint16_t(to, from, rows, cols, row, col);
	else
		matrix_uint8_t(to, from, rows, cols, row, col);
}

static tern_status run_transpose(tn_kern *kern, const tn_kern_io *io)
{
	const transpose_kern *k = (const transpose_kern *)kern;
	int64_t size = (int64_t)k->size;
	tn_walk_at p = {{0}, {0}};

	if (!k->tiles) {
		tn_walk_copy(&k->walk, io->out[0], io->in[0], k->size);
		return TERN_OK;
	}
	for (uint64_t r = 0; r < k->walk.runs; r++) {
		if (r > 0)
			tn_walk_next(&k->walk, &p);
		matrix(k, (char *)io->out[0] + p.at[0] * size, (const char *)io->in[0] + p.at[1] * size);
	}
	return TERN_OK;
}

/* Takes the dim in which the input is contiguous out of the walk and makes it the rows of matrices. */
static void make_tiles(transpose_kern *k)
{
	tn_walk *w = &k->walk;
	uint32_t d = 0;

	while (d < w->rank && w->stride[1][d] != 1)
		d++;
	if (d == w->rank || w->inner[1] == 1)
		return;
	k->tiles = true;
	k->rows = w->dims[d];
	k->out_row = w->stride[0][d];
	w->runs = w->runs ? w->runs / k->rows : 0;
	w->rank--;
	for (; d < w->rank; d++) {
		w->dims[d] = w->dims[d + 1];
		w->stride[0][d] = w->stride[0][d + 1];
		w->stride[1][d] = w->stride[1][d + 1];
	}
}

/* The output's dim i is the input's dim perm[i]. */
static void make_walk(transpose_kern *k, const uint64_t *in, uint32_t rank, const uint32_t *perm)
{
	int64_t strides[2][TN_WALK_DIMS] = {{0}}, dense[TERN_RANK_MAX] = {0};
	uint64_t dims[TERN_RANK_MAX];

	tn_dense_strides(in, rank, dense);
	for (uint32_t i = 0; i < rank; i++) {
		dims[i] = in[perm[i]];
		strides[1][i] = dense[perm[i]];
	}
	tn_dense_strides(dims, rank, strides[0]);
	tn_walk_make(&k->walk, dims, rank, 2, strides);
	make_tiles(k);
}

static void make_perm(transpose_kern *k, const tn_kern_desc *desc)
{
	const tn_attr *a = tn_node_attr(desc->node, TN_ATTR_PERM);
	const tern_shape *s = &desc->in[0].shape;
	uint32_t perm[TERN_RANK_MAX];

	for (uint32_t i = 0; i < s->rank; i++)
		perm[i] = a ? (uint32_t)a->u.ints.v[i] : s->rank - 1 - i;
	make_walk(k, s->dims, s->rank, perm);
}

/* The blocks of the depth become squares of the image: (N, b, b, C', H, W) or, CRD, (N, C', b, b, H, W). */
static void make_depth_to_space(transpose_kern *k, const tn_kern_desc *desc)
{
	static const uint32_t dcr[6] = {0, 3, 4, 1, 5, 2}, crd[6] = {0, 1, 4, 2, 5, 3};
	uint64_t b = (uint64_t)tn_node_int(desc->node, TN_ATTR_BLOCK_SIZE, 1);
	const uint64_t *s = desc->in[0].shape.dims;
	uint64_t c = s[1] / (b * b);

	if (tn_node_int(desc->node, TN_ATTR_MODE, TN_DEPTH_DCR) == TN_DEPTH_CRD)
		make_walk(k, (uint64_t[]){s[0], c, b, b, s[2], s[3]}, 6, crd);
	else
		make_walk(k, (uint64_t[]){s[0], b, b, c, s[2], s[3]}, 6, dcr);
}

/* (N, C, H', b, W', b) -> (N, b, b, C, H', W') */
static void make_space_to_depth(transpose_kern *k, const tn_kern_desc *desc)
{
	static const uint32_t perm[6] = {0, 3, 5, 1, 2, 4};
	uint64_t b = (uint64_t)tn_node_int(desc->node, TN_ATTR_BLOCK_SIZE, 1);
	const uint64_t *s = desc->in[0].shape.dims;

	make_walk(k, (uint64_t[]){s[0], s[1], s[2] / b, b, s[3] / b, b}, 6, perm);
}

static void transpose_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_transpose_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	transpose_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_transpose, .destroy = transpose_destroy};
	k->size = tn_operand_size(&desc->in[0]);
	if (desc->node->op == TN_OP_DEPTH_TO_SPACE)
		make_depth_to_space(k, desc);
	else if (desc->node->op == TN_OP_SPACE_TO_DEPTH)
		make_space_to_depth(k, desc);
	else
		make_perm(k, desc);
	*made = &k->base;
	return TERN_OK;
}
