/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows that a pull sends: those of the table as they are, or made from them: pooled over bags, packed as int8.
 *
 *   keys   k0 k1 | k2 | | k3 k4 k5      a bag is a run of keys; pooled rows are one per bag, zeros for an empty one
 *   scratch   [sum of the bag at work | rows of the next keys, gathered together whatever bags they are of]
 *
 * Sums are of f32, in the order of the keys.
 *
 * Threads: those of the bench. Tests: tests/unit/ps/pool_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "ps/follow.h"
#include "ps/server.h"
#include "ps/travel.h"

#define GATHER_BYTES (64u << 10) /* rows of f32 at a time: they stay in a cache until they are added up */

tn_pull tn_ps_pull_how(const ps_task *t)
{
	bool make = t->batch.how == TERN_UNKNOWN_CREATE && tn_ps_follows(t->server);

	return (tn_pull){.unknown = make ? TERN_UNKNOWN_DEFAULT : (tern_unknown)t->batch.how,
			 .dtype = (tern_dtype)t->batch.dtype,
			 .flags = TN_PULL_TOUCH,
			 .stride = t->stride,
			 .step = t->batch.step};
}

/* Rows of n keys from keys on, which are the batch's. */
static tern_status read_rows(ps_task *t, const uint64_t *keys, uint64_t n, const tn_pull *how, void *rows,
			     const uint32_t *places, uint8_t *found, tn_pull_result *result)
{
	if (TN_LIKELY(!t->server->replicas) || how->unknown != TERN_UNKNOWN_CREATE)
		return tn_table_pull(t->share->engine, keys, n, how, rows, places, found, result);
	return tn_ps_replicas_pull(t, keys, n, how, rows, places, found, result);
}

/* Rows of f32 that are gathered at a time. */
static uint64_t rows_at_once(const ps_task *t)
{
	return TN_MAX(GATHER_BYTES / (t->share->schema.dim * sizeof(float)), 1u);
}

static bool is_made(const ps_task *t)
{
	return t->batch.flags & TN_PS_POOLED || t->batch.dtype == TERN_I8;
}

bool tn_ps_produce_begin(ps_task *t)
{
	uint64_t bytes = (rows_at_once(t) + 1) * t->share->schema.dim * sizeof(float);
	ps_bench *b = t->bench;
	float *more;

	if (!is_made(t) || bytes <= b->scratch_bytes)
		return true;
	more = TN_FAULT("ps.bench.alloc") ? NULL : realloc(b->scratch, bytes);
	if (!more)
		return false;
	b->scratch = more;
	b->scratch_bytes = bytes;
	return true;
}

/* The next keys, as rows of f32 in scratch. */
typedef struct gather {
	ps_task *t;
	tn_pull how;
	float *rows;
	uint64_t room, key, end; /* rows that fit; next key to gather, the last one is before end */
	uint64_t have, at;
	tern_status status;
	tn_pull_result *result;
} gather;

/* The next row, or NULL: the engine did nothing. */
static const float *next_row(gather *g)
{
	uint32_t dim = g->t->share->schema.dim;
	tn_pull_result result = {0};
	tern_status status;

	if (g->at < g->have)
		return g->rows + g->at++ * dim;
	TN_ASSERT(g->key < g->end);
	g->have = TN_MIN(g->room, g->end - g->key);
	g->at = 1;
	status = read_rows(g->t, g->t->keys + g->key, g->have, &g->how, g->rows, NULL,
			   g->t->batch.flags & TN_PS_FOUND ? g->t->bench->found + g->key : NULL, &result);
	if (!tn_ps_rows_written(status)) {
		g->status = status;
		return NULL;
	}
	if (g->status == TERN_OK)
		g->status = status;
	g->key += g->have;
	g->result->found += result.found;
	g->result->refused += result.refused;
	return g->rows;
}

static bool add_rows(gather *g, float *sum, uint64_t n)
{
	uint32_t dim = g->t->share->schema.dim;

	for (uint64_t k = 0; k < n; k++) {
		const float *row = next_row(g);

		if (!row)
			return false;
		for (uint32_t i = 0; i < dim; i++)
			sum[i] += row[i];
	}
	return true;
}

/* One bag into sum. */
static bool pool(gather *g, float *sum, uint64_t bag)
{
	const ps_task *t = g->t;
	uint32_t dim = t->share->schema.dim, n;

	memcpy(&n, t->batch.bag_keys + bag * sizeof(n), sizeof(n));
	memset(sum, 0, dim * sizeof(*sum));
	if (!add_rows(g, sum, n))
		return false;
	for (uint32_t i = 0; t->batch.pool == TERN_POOL_MEAN && n > 0 && i < dim; i++)
		sum[i] /= (float)n;
	return true;
}

static uint64_t keys_of_bags(const tn_ps_batch *b, uint64_t first, uint64_t n)
{
	uint64_t sum = 0;
	uint32_t keys;

	for (uint64_t i = first; i < first + n; i++) {
		memcpy(&keys, b->bag_keys + i * sizeof(keys), sizeof(keys));
		sum += keys;
	}
	return sum;
}

/* Row by row through f32. */
static tern_status make_rows(ps_task *t, uint64_t first, uint64_t n, uint8_t *to, uint64_t stride,
			     tn_pull_result *result)
{
	bool pooled = t->batch.flags & TN_PS_POOLED;
	uint32_t dim = t->share->schema.dim;
	gather g = {.t = t, .how = tn_ps_pull_how(t), .room = rows_at_once(t)};
	float *sum;

	sum = t->bench->scratch;
	g.rows = sum + dim;
	g.how.dtype = TERN_F32;
	g.how.stride = dim * sizeof(float);
	g.result = result;
	if (first == 0)
		t->next_key = 0;
	g.key = pooled ? t->next_key : first;
	g.end = g.key + (pooled ? keys_of_bags(&t->batch, first, n) : n);
	for (uint64_t i = 0; i < n; i++) {
		const float *row = sum;

		if (pooled ? !pool(&g, sum, first + i) : !(row = next_row(&g)))
			return g.status;
		tn_ps_travel_pack(to + i * stride, (tern_dtype)t->batch.dtype, row, dim);
	}
	t->next_key = g.end;
	return g.status;
}

tern_status tn_ps_produce(ps_task *t, uint64_t first, uint64_t n, uint8_t *to, uint64_t stride,
			  const uint32_t *positions, tn_pull_result *result)
{
	tn_pull how = tn_ps_pull_how(t);

	if (is_made(t)) {
		TN_ASSERT(!positions);
		return make_rows(t, first, n, to, stride, result);
	}
	how.stride = stride;
	return read_rows(t, t->keys + first, n, &how, to, positions,
			 t->batch.flags & TN_PS_FOUND ? t->bench->found + first : NULL, result);
}
