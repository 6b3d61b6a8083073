/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of what the passes add: Join, where parts have to be copied into one tensor, and Accumulate, the
 * sum of the micro-batches' gradients in the memory of the first.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/part_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern.h"

typedef struct part_kern {
	tn_kern base;
	uint32_t n;
	uint64_t bytes[]; /* per input */
} part_kern;

static tern_status join_run(tn_kern *kern, const tn_kern_io *io)
{
	const part_kern *k = (const part_kern *)kern;
	unsigned char *out = io->out[0];

	for (uint32_t i = 0; i < k->n; i++) {
		if (k->bytes[i])
			memcpy(out, io->in[i], k->bytes[i]);
		out += k->bytes[i];
	}
	return TERN_OK;
}

static tern_status accumulate_run(tn_kern *kern, const tn_kern_io *io)
{
	const part_kern *k = (const part_kern *)kern;
	float *restrict sum = io->in[0];
	const float *restrict term = io->in[1];

	TN_ASSERT(io->in[0] != io->in[1] || k->bytes[0] == 0);
	for (uint64_t i = 0; i < k->bytes[0] / sizeof(*sum); i++)
		sum[i] += term[i];
	return TERN_OK;
}

static tern_status accumulate_i32_run(tn_kern *kern, const tn_kern_io *io)
{
	const part_kern *k = (const part_kern *)kern;
	uint32_t *sum = io->in[0]; /* wraps */
	const uint32_t *term = io->in[1];

	for (uint64_t i = 0; i < k->bytes[0] / sizeof(*sum); i++)
		sum[i] += term[i];
	return TERN_OK;
}

static void part_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_part_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **kern)
{
	uint32_t n = desc->node->n_in;
	part_kern *k = calloc(1, sizeof(*k) + n * sizeof(k->bytes[0]));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	TN_ASSERT(desc->node->op == TN_OP_JOIN || desc->node->op == TN_OP_ACCUMULATE);
	if (desc->node->op == TN_OP_JOIN)
		k->base.run = join_run;
	else
		k->base.run = desc->in[0].dtype == TERN_I32 ? accumulate_i32_run : accumulate_run;
	k->base.destroy = part_destroy;
	k->n = n;
	for (uint32_t i = 0; i < n; i++)
		k->bytes[i] = tn_dims_product(desc->in[i].shape.dims, desc->in[i].shape.rank) *
			      tern_dtype_bytes(desc->in[i].dtype);
	*kern = &k->base;
	return TERN_OK;
}
