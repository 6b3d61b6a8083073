/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: one with any strides as recurrent kernels use it, and MatMul over batch dims. oneDNN's
 * (kern_dnnl_mm.c) where it has them, else plain C.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_test.c, nn_matmul_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/kern_nn.h"

/* Row by row of op(B): every c[j] is a sum over k in rising order. */
void tn_mm_plain(const tn_mm_desc *d, const float *a, const float *b, float *c)
{
	for (int64_t i = 0; i < d->m; i++, a += d->a_row, c += d->c_row) {
		if (!d->add)
			memset(c, 0, (size_t)d->n * sizeof(*c));
		for (int64_t p = 0; p < d->k; p++) {
			const float *row = b + p * d->b_row;
			float x = a[p * d->a_col];

			if (d->b_col == 1) {
				for (int64_t j = 0; j < d->n; j++)
					c[j] += x * row[j];
			} else {
				for (int64_t j = 0; j < d->n; j++)
					c[j] += x * row[j * d->b_col];
			}
		}
	}
}

static tern_status run_plain_mm(tn_mm *mm, const float *a, const float *b, float *c, void *scratch)
{
	(void)scratch;
	tn_mm_plain(&mm->d, a, b, c);
	return TERN_OK;
}

static void destroy_plain_mm(tn_mm *mm)
{
	free(mm);
}

tern_status tn_mm_create(tn_dnnl *dnnl, const tn_mm_desc *desc, const char *name, tn_mm **made)
{
	tern_status st = TERN_OK;

	*made = NULL;
	if (dnnl && desc->m && desc->n && desc->k)
		st = tn_dnnl_mm_create(dnnl, desc, name, made);
	if (st != TERN_OK || *made)
		return st;
	*made = calloc(1, sizeof(**made));
	if (!*made)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", name);
	**made = (tn_mm){.d = *desc, .run = run_plain_mm, .destroy = destroy_plain_mm};
	return TERN_OK;
}

void tn_mm_destroy(tn_mm *mm)
{
	if (mm)
		mm->destroy(mm);
}

/* ---- MatMul ---- */

typedef struct matmul_kern {
	tn_kern base;
	tn_nn_matmul m;
} matmul_kern;

static tern_status run_matmul(tn_kern *kern, const tn_kern_io *io)
{
	const tn_nn_matmul *m = &((const matmul_kern *)kern)->m;
	int64_t n = 1, size = m->one.m * m->one.n;

	for (uint32_t d = 0; d < m->rank; d++)
		n *= m->dims[d];
	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i, a = 0, b = 0;

		for (uint32_t d = m->rank; d-- > 0; rest /= m->dims[d]) {
			a += rest % m->dims[d] * m->a_step[d];
			b += rest % m->dims[d] * m->b_step[d];
		}
		tn_mm_plain(&m->one, (const float *)io->in[0] + a, (const float *)io->in[1] + b,
			    (float *)io->out[0] + i * size);
	}
	return TERN_OK;
}

static void destroy_matmul(tn_kern *kern)
{
	free(kern);
}

tern_status tn_nn_matmul_create(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **made)
{
	tn_nn_matmul m;
	matmul_kern *k;
	tern_status st = TERN_OK;
	bool empty;

	tn_nn_matmul_of(desc, &m);
	empty = m.one.m == 0 || m.one.n == 0 || m.one.k == 0;
	for (uint32_t d = 0; d < m.rank; d++)
		empty |= m.dims[d] == 0;
	*made = NULL;
	if (dnnl && !empty)
		st = tn_dnnl_matmul_create(dnnl, &m, desc->node->name, made);
	if (st != TERN_OK || *made)
		return st;
	k = calloc(1, sizeof(*k));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_matmul, .destroy = destroy_matmul};
	k->m = m;
	*made = &k->base;
	return TERN_OK;
}
