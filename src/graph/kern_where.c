/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where: of two tensors, the element that a third one says. Knows elements only by their size.
 *
 * Compiled with -O3. Thread story: see kern.h. Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "graph/kern_walk.h"

typedef void (*where_fn)(void *out, const uint8_t *c, const void *x, const void *y, uint64_t n,
			 const int64_t *steps);

typedef struct where_kern {
	tn_kern base;
	tn_walk walk;
	where_fn fn;
	int64_t size;
} where_kern;

#define WHERE(T)                                                                                     \
	static void where_##T(void *out, const uint8_t *c, const void *x, const void *y, uint64_t n, \
			      const int64_t *s)                                                      \
	{                                                                                            \
		T *r = out;                                                                          \
		const T *p = x, *q = y;                                                              \
                                                                                                     \
		if (s[1] == 1 && s[2] == 1 && s[3] == 1) {                                           \
			TN_IVDEP                                                                     \
			for (uint64_t i = 0; i < n; i++) {                                           \
				T u = p[i], v = q[i];                                                \
				r[i] = c[i] ? u : v;                                                 \
			}                                                                            \
			return;                                                                      \
		}                                                                                    \
		for (int64_t i = 0; i < (int64_t)n; i++) {                                           \
			T u = p[i * s[2]], v = q[i * s[3]];                                          \
			r[i] = c[i * s[1]] ? u : v;                                                  \
		}                                                                                    \
	}
WHERE(uint8_t)
WHERE(uint16_t)
WHERE(uint32_t)
WHERE(uint64_t)

static tern_status run_where(tn_kern *kern, const tn_kern_io *io)
{
	const where_kern *k = (const where_kern *)kern;
	tn_walk_at p = {{0}, {0}};

	for (uint64_t r = 0; r < k->walk.runs; r++) {
		if (r > 0)
			tn_walk_next(&k->walk, &p);
		k->fn((char *)io->out[0] + p.at[0] * k->size, (const uint8_t *)io->in[0] + p.at[1],
		      (const char *)io->in[1] + p.at[2] * k->size,
		      (const char *)io->in[2] + p.at[3] * k->size, k->walk.n, k->walk.inner);
	}
	return TERN_OK;
}

static void where_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_where_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tern_shape *in[3] = {&desc->in[0].shape, &desc->in[1].shape, &desc->in[2].shape};
	where_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_where, .destroy = where_destroy};
	k->size = (int64_t)tn_operand_size(&desc->out[0]);
	k->fn = k->size == 1   ? where_uint8_t
		: k->size == 2 ? where_uint16_t
		: k->size == 4 ? where_uint32_t
			       : where_uint64_t;
	tn_walk_broadcast(&k->walk, &desc->out[0].shape, in, 3);
	*made = &k->base;
	return TERN_OK;
}
