/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table the slow, obvious way: a list of keys that the test uses, each with its row, state and history.
 * Threads: one.
 */
#ifndef TERN_TESTS_PS_ORACLE_H
#define TERN_TESTS_PS_ORACLE_H

#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "ref/optim_ref.h"
#include "store/init.h"
#include "store/rows.h"

#define DIM_MAX 24

typedef struct row {
	int present;
	float w[DIM_MAX]; /* as the table's dtype holds it */
	ref_state s[DIM_MAX];
	uint32_t updates, frequency, asks;
	uint64_t last_step;
} row;

typedef struct oracle {
	tern_table_schema schema;
	uint64_t *keys;
	row *rows;
	uint32_t n;
	uint64_t present;
} oracle;

static inline float ref_narrow(const oracle *o, float x)
{
	if (o->schema.dtype == TERN_BF16)
		return tn_bf16_to_f32(tn_bf16_from_f32(x));
	if (o->schema.dtype == TERN_F16)
		return tn_f16_to_f32(tn_f16_from_f32(x));
	return x;
}

static inline void oracle_default(const oracle *o, uint64_t key, float *w)
{
	tn_init_row(w, o->schema.dim, &o->schema.init, tn_init_seed(o->schema.init.seed, o->schema.name),
		    key);
	for (uint32_t d = 0; d < o->schema.dim; d++)
		w[d] = ref_narrow(o, w[d]);
}

static inline void oracle_make(oracle *o, uint32_t u, uint64_t step)
{
	row *r = &o->rows[u];

	*r = (row){.present = 1, .asks = r->asks, .last_step = step};
	oracle_default(o, o->keys[u], r->w);
	for (uint32_t d = 0; d < o->schema.dim; d++)
		r->s[d] = ref_start(&o->schema.optimizer);
	o->present++;
}

static inline void oracle_drop(oracle *o, uint32_t u)
{
	o->present -= (uint64_t)o->rows[u].present;
	o->rows[u].present = 0;
}

/* Keys 0 and 2^64-1, neighbours, and random ones. */
static inline void oracle_init(oracle *o, const tern_table_schema *schema, uint32_t n, uint64_t seed)
{
	tn_rand r = {seed};

	*o = (oracle){.schema = *schema, .n = n};
	if (!o->schema.dtype)
		o->schema.dtype = TERN_F32;
	o->keys = calloc(n, sizeof(*o->keys));
	o->rows = calloc(n, sizeof(*o->rows));
	for (uint32_t u = 0; u < n; u++) {
		o->keys[u] = u < n / 2 || schema->kind == TERN_TABLE_DENSE ? u : tn_rand_next(&r);
		if (u == n - 1 && schema->kind == TERN_TABLE_SPARSE)
			o->keys[u] = UINT64_MAX;
		if (schema->kind == TERN_TABLE_DENSE)
			oracle_make(o, u, 0);
	}
}

static inline void oracle_fini(oracle *o)
{
	free(o->keys);
	free(o->rows);
}

/* One push of one key with gradient (sum) g. 1: the gate stopped it; 2: clipped it. */
static inline int oracle_apply(oracle *o, uint32_t u, tern_push_mode mode, float lr_scale, const float *g)
{
	row *r = &o->rows[u], next = *r;
	float clipped[DIM_MAX];

	memcpy(clipped, g, o->schema.dim * sizeof(float));
	for (int attempt = 0; attempt < 2; attempt++) {
		int finite = 1;

		next = *r;
		next.updates += mode == TERN_PUSH_GRADIENT;
		for (uint32_t d = 0; d < o->schema.dim; d++) {
			float w = mode == TERN_PUSH_ASSIGN ? clipped[d]
				  : mode == TERN_PUSH_ADD  ? r->w[d] + clipped[d]
							   : ref_step(&o->schema.optimizer, lr_scale, r->w[d],
								      &next.s[d], clipped[d], next.updates);

			next.w[d] = ref_narrow(o, w);
			finite &= isfinite(w) && isfinite(next.w[d]) && isfinite(next.s[d].a) &&
				  isfinite(next.s[d].b);
		}
		if (finite) {
			*r = next;
			return attempt ? 2 : 0;
		}
		if (o->schema.nonfinite != TERN_NONFINITE_CLIP)
			return 1;
		for (uint32_t d = 0; d < o->schema.dim; d++) {
			if (isnan(clipped[d]))
				clipped[d] = 0;
			else if (isinf(clipped[d]))
				clipped[d] = copysignf(0x1p63f, clipped[d]);
		}
	}
	return 1;
}

#endif
