/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows in plain arrays: what parameter servers do, done in the simplest way, as their oracle. See rows.h.
 * Keys are found in an open hash table that doubles. Threads: one. Tests: tests/e2e/models_test.py.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../zipf.h"
#include "rows.h"

/* As tern_optimizer_init(TERN_OPT_ADAGRAD) has it. */
#define EPSILON     1e-10f
#define ACCUMULATOR 0.1f

typedef struct table {
	uint64_t size, used; /* of index: a power of two */
	uint64_t *keys;      /* [room] */
	uint32_t *index;     /* [size]: row + 1 */
	uint64_t room;
	float *value, *state; /* (room, dim) */
	/* of a step that is summed: for each row a sum, and which rows have one */
	float *sum;
	uint8_t *touched;
} table;

typedef struct local {
	rows r;
	bool sum;
	uint64_t seed;
	table t[ROWS_TABLES_MAX];
	float **memory;
	unsigned memories;
} local;

static bool out_of_memory(local *l)
{
	snprintf(l->r.error, sizeof(l->r.error), "no memory for rows");
	return false;
}

static uint64_t find(const table *t, uint64_t key)
{
	uint64_t i = rng_mix(key) & (t->size - 1);

	while (t->index[i] && t->keys[t->index[i] - 1] != key)
		i = (i + 1) & (t->size - 1);
	return i;
}

static bool resize(void *array, uint64_t bytes)
{
	void **place = array, *more = realloc(*place, bytes);

	if (more)
		*place = more;
	return more != NULL;
}

static bool grow(table *t, uint32_t dim)
{
	uint64_t room = t->room ? 2 * t->room : 512, floats = room * dim;
	uint32_t *index = calloc(2 * room, sizeof(*index));

	if (!index || !resize(&t->keys, room * sizeof(*t->keys)) ||
	    !resize(&t->value, floats * sizeof(float)) || !resize(&t->state, floats * sizeof(float)) ||
	    !resize(&t->sum, floats * sizeof(float)) || !resize(&t->touched, room)) {
		free(index);
		return false;
	}
	free(t->index);
	t->index = index;
	t->size = 2 * room;
	t->room = room;
	for (uint64_t row = 0; row < t->used; row++)
		t->index[find(t, t->keys[row])] = (uint32_t)row + 1;
	return true;
}

/* A pure function of seed, table, key and column, as at servers, though another one. */
static void start_row(const local *l, unsigned n, uint64_t key, float *row)
{
	rng r = rng_make(l->seed ^ key, n);

	for (uint32_t i = 0; i < l->r.spec[n].dim; i++)
		row[i] = l->r.spec[n].range * (float)(2 * rng_real(&r) - 1);
}

/* The row of a key; UINT64_MAX: it has none and is to have none, or there is no memory. */
static uint64_t row_of(local *l, unsigned n, uint64_t key, bool create)
{
	table *t = &l->t[n];
	uint32_t dim = l->r.spec[n].dim;
	uint64_t at = t->size ? find(t, key) : 0;

	if (t->size && t->index[at])
		return t->index[at] - 1;
	if (!create || (t->used == t->room && !grow(t, dim)))
		return UINT64_MAX;
	t->keys[t->used] = key;
	start_row(l, n, key, t->value + t->used * dim);
	for (uint32_t i = 0; i < dim; i++)
		t->state[t->used * dim + i] = ACCUMULATOR;
	memset(t->sum + t->used * dim, 0, dim * sizeof(float));
	t->touched[t->used] = 0;
	t->index[find(t, key)] = (uint32_t)++t->used;
	return t->used - 1;
}

static float *memory(rows *r, uint64_t floats)
{
	local *l = (local *)r;
	float *p = malloc(floats * sizeof(float)), **more;

	more = p ? realloc(l->memory, (l->memories + 1) * sizeof(*more)) : NULL;
	if (!more) {
		free(p);
		out_of_memory(l);
		return NULL;
	}
	l->memory = more;
	return l->memory[l->memories++] = p;
}

static bool pull(rows *r, const rows_part *parts, unsigned n, bool create)
{
	local *l = (local *)r;

	for (unsigned p = 0; p < n; p++) {
		uint32_t dim = r->spec[parts[p].table].dim;

		for (uint64_t i = 0; i < parts[p].count; i++) {
			uint64_t row = row_of(l, parts[p].table, parts[p].keys[i], create);
			float *to = parts[p].rows + i * dim;

			if (row != UINT64_MAX)
				memcpy(to, l->t[parts[p].table].value + row * dim, dim * sizeof(float));
			else if (create)
				return out_of_memory(l);
			else
				start_row(l, parts[p].table, parts[p].keys[i], to);
		}
	}
	return true;
}

/* Adagrad, of the sums; they are zero again. */
static void apply(local *l, unsigned n, uint64_t row)
{
	uint32_t dim = l->r.spec[n].dim;
	table *t = &l->t[n];
	float *w = t->value + row * dim, *a = t->state + row * dim, *g = t->sum + row * dim;

	for (uint32_t i = 0; i < dim; i++) {
		a[i] += g[i] * g[i];
		w[i] -= l->r.spec[n].lr * g[i] / (sqrtf(a[i]) + EPSILON);
		g[i] = 0;
	}
	t->touched[row] = 0;
}

static bool push(rows *r, const rows_part *parts, unsigned n, uint64_t step)
{
	local *l = (local *)r;

	(void)step;
	for (unsigned p = 0; p < n; p++) {
		unsigned number = parts[p].table;
		uint32_t dim = r->spec[number].dim;

		for (uint64_t i = 0; i < parts[p].count; i++) {
			uint64_t row = row_of(l, number, parts[p].keys[i], true);

			if (row == UINT64_MAX)
				return out_of_memory(l);
			for (uint32_t c = 0; c < dim; c++)
				l->t[number].sum[row * dim + c] += parts[p].rows[i * dim + c];
			l->t[number].touched[row] = 1;
		}
		for (uint64_t i = 0; i < parts[p].count && !l->sum; i++) {
			uint64_t row = row_of(l, number, parts[p].keys[i], false);

			if (l->t[number].touched[row])
				apply(l, number, row);
		}
	}
	return true;
}

static bool begin(rows *r, uint64_t step)
{
	(void)r, (void)step;
	return true;
}

static bool end(rows *r, uint64_t step)
{
	local *l = (local *)r;

	(void)step;
	for (unsigned n = 0; n < r->count && l->sum; n++)
		for (uint64_t row = 0; row < l->t[n].used; row++)
			if (l->t[n].touched[row])
				apply(l, n, row);
	return true;
}

static void close_local(rows *r)
{
	local *l = (local *)r;

	for (unsigned n = 0; n < r->count; n++) {
		table *t = &l->t[n];

		free(t->keys);
		free(t->index);
		free(t->value);
		free(t->state);
		free(t->sum);
		free(t->touched);
	}
	while (l->memories)
		free(l->memory[--l->memories]);
	free(l->memory);
	free(l);
}

rows *rows_local(const rows_spec *specs, unsigned count, bool sum, uint64_t seed)
{
	static const rows_ops ops = {memory, begin, pull, push, end, close_local};
	local *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->r.ops = &ops;
	l->r.count = count;
	memcpy(l->r.spec, specs, count * sizeof(*specs));
	l->sum = sum;
	l->seed = seed;
	return &l->r;
}
