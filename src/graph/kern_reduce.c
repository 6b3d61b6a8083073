/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums and means over axes, and the reverse, which copies a small tensor over the reduced axes of a large
 * one. Every sum runs over the large tensor in memory order, whatever the axes.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "graph/kern_plain.h"

void tn_reduce_fill(tn_plain *k, const tn_kern_desc *desc, const tern_shape *large, bool mean)
{
	uint64_t reduced = 1;
	uint32_t mask = 0;
	tern_status st = tn_reduce_mask(desc->node, large->rank, &mask);

	TN_ASSERT(st == TERN_OK); /* inferred with the same axes */
	(void)st;
	k->n_groups = 0;
	k->n_large = tn_dims_product(large->dims, large->rank);
	for (uint32_t i = 0; i < large->rank; i++) {
		bool r = (mask >> i & 1) != 0;

		if (r)
			reduced *= large->dims[i];
		if (k->n_groups && k->reduced[k->n_groups - 1] == r) {
			k->group[k->n_groups - 1] *= large->dims[i];
		} else {
			k->reduced[k->n_groups] = r;
			k->group[k->n_groups++] = large->dims[i];
		}
	}
	k->n_small = 1;
	for (uint32_t i = 0; i < k->n_groups; i++)
		k->n_small *= k->reduced[i] ? 1 : k->group[i];
	k->factor = mean && reduced ? 1.0f / (float)reduced : 1.0f;
}

/*
 * Walks the large operand in memory order, one run of its last group at a time: run r starts at element
 * r * last of the large one and at small_at(r) of the small one.
 */
static uint64_t small_at(const tn_plain *k, uint64_t run)
{
	uint64_t at = 0, stride = k->reduced[k->n_groups - 1] ? 1 : k->group[k->n_groups - 1];

	for (uint32_t g = k->n_groups - 1; g-- > 0;) {
		if (!k->reduced[g]) {
			at += run % k->group[g] * stride;
			stride *= k->group[g];
		}
		run /= k->group[g];
	}
	return at;
}

static void add_run(float *restrict small, const float *restrict large, uint64_t n, bool reduced)
{
	if (reduced) {
		float sum = *small;

		for (uint64_t j = 0; j < n; j++)
			sum += large[j];
		*small = sum;
	} else {
		for (uint64_t j = 0; j < n; j++)
			small[j] += large[j];
	}
}

tern_status tn_run_reduce(tn_kern *kern, const tn_kern_io *io)
{
	const tn_plain *k = (const tn_plain *)kern;
	const float *large = io->in[0];
	float *small = io->out[0];
	uint64_t last = k->n_groups ? k->group[k->n_groups - 1] : 1;

	if (k->n_groups == 0) {
		*small = *large * k->factor;
		return TERN_OK;
	}
	memset(small, 0, k->n_small * sizeof(*small));
	for (uint64_t r = 0; r * last < k->n_large; r++)
		add_run(small + small_at(k, r), large + r * last, last, k->reduced[k->n_groups - 1]);
	for (uint64_t i = 0; i < k->n_small && k->factor != 1.0f; i++)
		small[i] *= k->factor;
	return TERN_OK;
}

tern_status tn_run_expand(tn_kern *kern, const tn_kern_io *io)
{
	const tn_plain *k = (const tn_plain *)kern;
	const float *small = io->in[0];
	float *large = io->out[0];
	uint64_t last = k->n_groups ? k->group[k->n_groups - 1] : 1;

	if (k->n_groups == 0) {
		*large = *small * k->factor;
		return TERN_OK;
	}
	for (uint64_t r = 0; r * last < k->n_large; r++) {
		const float *s = small + small_at(k, r);
		float *to = large + r * last;

		for (uint64_t j = 0; j < last; j++)
			to[j] = s[k->reduced[k->n_groups - 1] ? 0 : j] * k->factor;
	}
	return TERN_OK;
}
