/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by oneDNN: operands are dense memory, transposes and rows that are wider than the matrix are
 * strides, so nothing is copied. Where one B serves many products of a run (the recurrent weights), it is
 * brought into the layout that oneDNN likes best once.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_test.c, nn_matmul_test.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "graph/kern_dnnl.h"

typedef struct dnnl_mm {
	tn_mm base;
	tn_dk *product, *pack; /* pack: B into its own layout, or NULL */
} dnnl_mm;

static tern_status run_mm(tn_mm *mm, const float *a, const float *b, float *c, void *scratch)
{
	dnnl_mm *m = (dnnl_mm *)mm;
	void *in[2] = {(void *)a, (void *)b}, *out[1] = {c};

	return m->product->base.run(&m->product->base,
				    &(tn_kern_io){.in = in, .out = out, .scratch = scratch});
}

static tern_status run_pack(tn_mm *mm, const float *b, float *packed, void *scratch)
{
	dnnl_mm *m = (dnnl_mm *)mm;
	void *in[1] = {(void *)b}, *out[1] = {packed};

	return m->pack->base.run(&m->pack->base, &(tn_kern_io){.in = in, .out = out, .scratch = scratch});
}

static void destroy_mm(tn_mm *mm)
{
	dnnl_mm *m = (dnnl_mm *)mm;

	if (m->product)
		tn_dk_destroy(&m->product->base);
	if (m->pack)
		tn_dk_destroy(&m->pack->base);
	free(m);
}

typedef struct mm_mds {
	tn_md a, b, c, any;
} mm_mds;

static dnnl_status_t make_mds(const tn_mm_desc *d, mm_mds *m)
{
	DK_TRY(tn_md_make(&m->a, 2, (int64_t[]){d->m, d->k}, (int64_t[]){d->a_row, d->a_col}));
	DK_TRY(tn_md_make(&m->b, 2, (int64_t[]){d->k, d->n}, (int64_t[]){d->b_row, d->b_col}));
	DK_TRY(tn_md_make(&m->any, 2, (int64_t[]){d->k, d->n}, NULL));
	return tn_md_make(&m->c, 2, (int64_t[]){d->m, d->n}, (int64_t[]){d->c_row, 1});
}

static void free_mds(mm_mds *m)
{
	tn_md_free(&m->a);
	tn_md_free(&m->b);
	tn_md_free(&m->c);
	tn_md_free(&m->any);
}

static dnnl_status_t make_pd(dnnl_primitive_desc_t *pd, tn_dnnl *dnnl, const tn_md *a, const tn_md *b,
			     const tn_md *c, bool add)
{
	dnnl_primitive_attr_t attr;
	dnnl_status_t st;

	DK_TRY(tn_pd_attr(&attr, add));
	st = tn_pd_matmul(pd, dnnl->engine, a, b, c, attr);
	dnnl_primitive_attr_destroy(attr);
	return st;
}

static dnnl_status_t add_product(tn_dk *k, dnnl_primitive_desc_t pd)
{
	dk_arg args[3] = {{DNNL_ARG_SRC, {DK_IN, 0}, tn_dk_wants(pd, dnnl_query_src_md)},
			  {DNNL_ARG_WEIGHTS, {DK_IN, 1}, tn_dk_wants(pd, dnnl_query_weights_md)},
			  {DNNL_ARG_DST, {DK_OUT, 0}, tn_dk_wants(pd, dnnl_query_dst_md)}};

	return tn_dk_step(k, pd, args, 3);
}

static dnnl_status_t build_mm(dnnl_mm *m, tn_dnnl *dnnl, const mm_mds *mds)
{
	dnnl_primitive_desc_t pd;
	tn_md_ref want;
	dnnl_status_t st;

	DK_TRY(make_pd(&pd, dnnl, &mds->a, m->base.d.reuse ? &mds->any : &mds->b, &mds->c, m->base.d.add));
	want = tn_dk_wants(pd, dnnl_query_weights_md);
	st = add_product(m->product, pd);
	if (st == dnnl_success && !dnnl_memory_desc_equal(want, tn_md_look(&mds->b))) {
		m->base.packed_bytes = dnnl_memory_desc_get_size(want);
		st = tn_dk_reorder(m->pack, (dk_place){DK_IN, 0}, tn_md_look(&mds->b), (dk_place){DK_OUT, 0},
				   want);
	}
	dnnl_primitive_desc_destroy(pd);
	return st;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

tern_status tn_dnnl_mm_create(tn_dnnl *dnnl, const tn_mm_desc *desc, const char *name, tn_mm **mm)
{
	dnnl_mm *m = calloc(1, sizeof(*m));
	mm_mds mds = {0};
	dnnl_status_t st;

	*mm = NULL;
	if (m) {
		m->base = (tn_mm){.d = *desc, .run = run_mm, .pack = run_pack, .destroy = destroy_mm};
		m->product = tn_dk_new(dnnl, name);
		m->pack = tn_dk_new(dnnl, name);
	}
	if (!m || !m->product || !m->pack) {
		if (m)
			destroy_mm(&m->base);
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", name);
	}
	st = make_mds(desc, &mds);
	if (st == dnnl_success)
		st = build_mm(m, dnnl, &mds);
	free_mds(&mds);
	if (st != dnnl_success) {
		destroy_mm(&m->base);
		return st == dnnl_unimplemented ? TERN_OK : tn_dnnl_failed(st, "primitive", name);
	}
	tn_dk_finish(m->product);
	tn_dk_finish(m->pack);
	m->base.scratch_bytes = larger(m->product->base.scratch_bytes, m->pack->base.scratch_bytes);
	*mm = &m->base;
	return TERN_OK;
}

/* ---- MatMul ---- */

/* An operand with the batch dims in front; a dim that it is broadcast over is 1. */
static dnnl_status_t batched_md(tn_md *md, const tn_nn_matmul *m, const int64_t *step, int64_t rows,
				int64_t cols, int64_t row, int64_t col)
{
	int64_t dims[TERN_RANK_MAX], strides[TERN_RANK_MAX];

	for (uint32_t i = 0; i < m->rank; i++) {
		dims[i] = step[i] ? m->dims[i] : 1;
		strides[i] = step[i] ? step[i] : rows * cols;
	}
	dims[m->rank] = rows;
	dims[m->rank + 1] = cols;
	strides[m->rank] = row;
	strides[m->rank + 1] = col;
	return tn_md_make(md, m->rank + 2, dims, strides);
}

static dnnl_status_t build_matmul(tn_dk *k, tn_dnnl *dnnl, const tn_nn_matmul *m, mm_mds *mds)
{
	const tn_mm_desc *o = &m->one;
	int64_t c_step[TERN_RANK_MAX], size = o->m * o->n;
	dnnl_primitive_desc_t pd;
	dnnl_status_t st;

	for (uint32_t i = m->rank; i-- > 0; size *= m->dims[i])
		c_step[i] = size;
	DK_TRY(batched_md(&mds->a, m, m->a_step, o->m, o->k, o->a_row, o->a_col));
	DK_TRY(batched_md(&mds->b, m, m->b_step, o->k, o->n, o->b_row, o->b_col));
	DK_TRY(batched_md(&mds->c, m, c_step, o->m, o->n, o->c_row, 1));
	DK_TRY(make_pd(&pd, dnnl, &mds->a, &mds->b, &mds->c, false));
	st = add_product(k, pd);
	dnnl_primitive_desc_destroy(pd);
	return st;
}

tern_status tn_dnnl_matmul_create(tn_dnnl *dnnl, const tn_nn_matmul *m, const char *name, tn_kern **kern)
{
	tn_dk *k = tn_dk_new(dnnl, name);
	mm_mds mds = {0};
	dnnl_status_t st;

	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", name);
	st = build_matmul(k, dnnl, m, &mds);
	free_mds(&mds);
	return tn_dk_result(k, st, kern);
}
