/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See kern_map.h. Dims at the end whose map is the identity are one unit that is copied whole; the last dim
 * before them is copied by stretches that are contiguous in the input.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_moves_test.c.
 */
#include "graph/kern_map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/ops.h"

typedef struct map_kern {
	tn_kern base;
	uint32_t rank; /* mapped dims */
	uint64_t rows; /* product of the mapped dims but the last */
	uint64_t dims[TERN_RANK_MAX];
	int64_t stride[TERN_RANK_MAX]; /* bytes in the input */
	uint64_t unit, size;           /* bytes that move together; of an element */
	uint8_t value[8];
	int64_t *maps[TERN_RANK_MAX]; /* into `data` */
	int64_t data[];
} map_kern;

static void fill(const map_kern *k, char *to, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += k->size)
		memcpy(to + i, k->value, k->size);
}

/* The last mapped dim: as few copies as there are stretches. */
static void map_row(const map_kern *k, char *to, const char *from)
{
	const int64_t *map = k->maps[k->rank - 1];
	uint64_t n = k->dims[k->rank - 1], i = 0;

	while (i < n) {
		uint64_t e = i + 1;

		if (map[i] == TN_MAP_NONE) {
			while (e < n && map[e] == TN_MAP_NONE)
				e++;
			fill(k, to + i * k->unit, (e - i) * k->unit);
		} else {
			while (e < n && map[e] == map[e - 1] + 1)
				e++;
			memcpy(to + i * k->unit, from + map[i] * k->stride[k->rank - 1], (e - i) * k->unit);
		}
		i = e;
	}
}

/* false if a map says that the row is not there */
static bool row_offset(const map_kern *k, uint64_t row, int64_t *at)
{
	*at = 0;
	for (uint32_t d = k->rank - 1; d-- > 0;) {
		int64_t m = k->maps[d][row % k->dims[d]];

		if (m == TN_MAP_NONE)
			return false;
		*at += m * k->stride[d];
		row /= k->dims[d];
	}
	return true;
}

static tern_status run_map(tn_kern *kern, const tn_kern_io *io)
{
	const map_kern *k = (const map_kern *)kern;
	uint64_t bytes = k->rank ? k->dims[k->rank - 1] * k->unit : k->unit;
	int64_t at;

	if (k->rank == 0) {
		memmove(io->out[0], io->in[0], bytes);
		return TERN_OK;
	}
	for (uint64_t r = 0; r < k->rows; r++) {
		char *to = (char *)io->out[0] + r * bytes;

		if (row_offset(k, r, &at))
			map_row(k, to, (const char *)io->in[0] + at);
		else
			fill(k, to, bytes);
	}
	return TERN_OK;
}

static void map_destroy(tn_kern *kern)
{
	free(kern);
}

static bool is_identity(const map_kern *k, uint32_t d, uint64_t in_dim)
{
	if (k->dims[d] != in_dim)
		return false;
	for (uint64_t i = 0; i < in_dim; i++) {
		if (k->maps[d][i] != (int64_t)i)
			return false;
	}
	return true;
}

tern_status tn_map_kern_create(const tn_kern_desc *desc, tn_map_fill fill_map, const void *arg, double value,
			       tn_kern **made)
{
	const tern_shape *in = &desc->in[0].shape, *out = &desc->out[0].shape;
	int64_t dense[TERN_RANK_MAX] = {0}, *next;
	uint64_t entries = 0;
	map_kern *k;

	for (uint32_t d = 0; d < out->rank; d++)
		entries += out->dims[d];
	k = calloc(1, sizeof(*k) + entries * sizeof(*k->data));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_map, .destroy = map_destroy};
	k->size = tn_operand_size(&desc->in[0]);
	k->unit = k->size;
	k->rank = out->rank;
	tn_element_of(desc->out[0].dtype, value, k->value);
	tn_dense_strides(in->dims, in->rank, dense);
	next = k->data;
	for (uint32_t d = 0; d < out->rank; d++) {
		k->dims[d] = out->dims[d];
		k->stride[d] = dense[d] * (int64_t)k->size;
		k->maps[d] = next;
		next += out->dims[d];
		fill_map(arg, d, k->maps[d]);
	}
	while (k->rank > 0 && is_identity(k, k->rank - 1, in->dims[k->rank - 1]))
		k->unit *= k->dims[--k->rank];
	k->rows = k->rank ? tn_dims_product(k->dims, k->rank - 1) : 1;
	*made = &k->base;
	return TERN_OK;
}

/* ---- Pad ---- */

static void pad_map(const void *arg, uint32_t d, int64_t *map)
{
	const tn_kern_desc *desc = arg;
	int64_t mode = tn_node_int(desc->node, TN_ATTR_MODE, TN_PAD_CONSTANT);
	int64_t before = tn_node_attr(desc->node, TN_ATTR_PADS)->u.ints.v[d];
	int64_t n = (int64_t)desc->in[0].shape.dims[d];

	for (int64_t i = 0; i < (int64_t)desc->out[0].shape.dims[d]; i++) {
		int64_t j = i - before;

		if (j < 0)
			j = mode == TN_PAD_REFLECT ? -j : mode == TN_PAD_EDGE ? 0 : TN_MAP_NONE;
		else if (j >= n)
			j = mode == TN_PAD_REFLECT ? 2 * (n - 1) - j
			    : mode == TN_PAD_EDGE  ? n - 1
						   : TN_MAP_NONE;
		map[i] = j;
	}
}

tern_status tn_kern_pad_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	(void)ctx;
	return tn_map_kern_create(desc, pad_map, desc, tn_node_float(desc->node, TN_ATTR_VALUE, 0.0), made);
}
