/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only file that knows oneDNN. It speaks the C API of 2.x (Debian 12: 2.6) and of 3.x (Debian 13: 3.7),
 * which differ in how descriptors are made.
 *
 * A primitive is created once per node for fixed shapes, with a scratchpad that the caller owns; a run only
 * sets data handles and executes. Weights and results are plain row-major memory, transposes are strides, so
 * nothing is reordered and nothing copied.
 *
 * Thread story: see kern.h. The number of OpenMP threads is a setting of the calling thread.
 * Tests: tests/unit/graph/kern_test.c.
 */
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern.h"

struct tn_dnnl {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
};

/*
 * The OpenMP runtime that this oneDNN was built on, whichever it is: looked up, not linked, so that there is
 * never a second one in the process. Without one, oneDNN runs in the calling thread alone.
 */
static struct {
	pthread_once_t once;
	void (*set)(int threads);
	int (*get)(void);
} omp = {.once = PTHREAD_ONCE_INIT};

static void find_omp(void)
{
	*(void **)&omp.set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
	*(void **)&omp.get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
}

typedef struct matmul_kern {
	tn_kern base;
	const char *name;
	dnnl_stream_t stream;
	dnnl_primitive_t primitive;
	dnnl_exec_arg_t args[4]; /* src, weights, dst, scratchpad */
} matmul_kern;

static tern_status failed(dnnl_status_t st, const char *what, const char *node)
{
	if (st == dnnl_out_of_memory)
		return tn_fail(TERN_E_NOMEM, "oneDNN: no memory for %s of '%s'", what, node);
	return tn_fail(TERN_E_UNSUPPORTED, "oneDNN %s: %s of '%s' failed with status %d", tn_dnnl_version(),
		       what, node, (int)st);
}

const char *tn_dnnl_version(void)
{
	static _Thread_local char text[32];
	const dnnl_version_t *v = dnnl_version();

	snprintf(text, sizeof(text), "%d.%d.%d", v->major, v->minor, v->patch);
	return text;
}

tern_status tn_dnnl_create(tn_dnnl **dnnl)
{
	tn_dnnl *d = calloc(1, sizeof(*d));
	dnnl_status_t st;

	if (!d)
		return tn_fail(TERN_E_NOMEM, "no memory for oneDNN");
	st = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
	if (st == dnnl_success)
		st = dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags);
	if (st != dnnl_success) {
		tn_dnnl_destroy(d);
		return failed(st, "engine", "cpu");
	}
	*dnnl = d;
	return TERN_OK;
}

void tn_dnnl_destroy(tn_dnnl *dnnl)
{
	if (!dnnl)
		return;
	if (dnnl->stream)
		dnnl_stream_destroy(dnnl->stream);
	if (dnnl->engine)
		dnnl_engine_destroy(dnnl->engine);
	free(dnnl);
}

int tn_dnnl_set_threads(int threads)
{
	int before;

	pthread_once(&omp.once, find_omp);
	if (!omp.set || !omp.get)
		return threads;
	before = omp.get();
	if (before != threads)
		omp.set(threads);
	return before;
}

/* ---- descriptors: the two APIs ---- */

typedef struct mat {
	dnnl_dims_t dims, strides;
} mat;

/* op(X) of a row-major matrix; a transpose is a swap of dims and strides. */
static mat view_of(const tern_shape *shape, bool trans)
{
	int64_t rows = (int64_t)shape->dims[0], cols = (int64_t)shape->dims[1];

	if (trans)
		return (mat){.dims = {cols, rows}, .strides = {1, cols}};
	return (mat){.dims = {rows, cols}, .strides = {cols, 1}};
}

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md;
typedef const_dnnl_memory_desc_t const_md;

static dnnl_status_t make_md(md *d, mat *m)
{
	return dnnl_memory_desc_create_with_strides(d, 2, m->dims, dnnl_f32, m->strides);
}

static void free_md(md *d)
{
	if (*d)
		dnnl_memory_desc_destroy(*d);
}

static const_md ref_md(md *d)
{
	return *d;
}

static dnnl_status_t make_pd(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, md *a, md *b, md *c,
			     dnnl_primitive_attr_t attr)
{
	return dnnl_matmul_primitive_desc_create(pd, engine, *a, *b, NULL, *c, attr);
}
#else
typedef dnnl_memory_desc_t md;
typedef const dnnl_memory_desc_t *const_md;

static dnnl_status_t make_md(md *d, mat *m)
{
	return dnnl_memory_desc_init_by_strides(d, 2, m->dims, dnnl_f32, m->strides);
}

static void free_md(md *d)
{
	(void)d;
}

static const_md ref_md(md *d)
{
	return d;
}

static dnnl_status_t make_pd(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, md *a, md *b, md *c,
			     dnnl_primitive_attr_t attr)
{
	dnnl_matmul_desc_t desc;
	dnnl_status_t st = dnnl_matmul_desc_init(&desc, a, b, NULL, c);

	return st == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : st;
}
#endif

/* ---- MatMul ---- */

static tern_status matmul_run(tn_kern *kern, const tn_kern_io *io)
{
	matmul_kern *k = (matmul_kern *)kern;
	void *data[4] = {io->in[0], io->in[1], io->out[0], io->scratch};
	dnnl_status_t st = dnnl_success;

	for (uint32_t i = 0; i < 4 && st == dnnl_success; i++)
		st = dnnl_memory_set_data_handle(k->args[i].memory, data[i]);
	if (st == dnnl_success)
		st = dnnl_primitive_execute(k->primitive, k->stream, 4, k->args);
	if (st == dnnl_success)
		st = dnnl_stream_wait(k->stream);
	return st == dnnl_success ? TERN_OK : failed(st, "execution", k->name);
}

static void matmul_destroy(tn_kern *kern)
{
	matmul_kern *k = (matmul_kern *)kern;

	for (uint32_t i = 0; i < 4; i++) {
		if (k->args[i].memory)
			dnnl_memory_destroy(k->args[i].memory);
	}
	if (k->primitive)
		dnnl_primitive_destroy(k->primitive);
	free(k);
}

static dnnl_status_t make_primitive(matmul_kern *k, dnnl_engine_t engine, md d[3])
{
	static const int what[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
	dnnl_primitive_attr_t attr = NULL;
	dnnl_primitive_desc_t pd = NULL;
	const_md scratch = NULL;
	dnnl_status_t st = dnnl_primitive_attr_create(&attr);

	if (st == dnnl_success)
		st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
	if (st == dnnl_success)
		st = make_pd(&pd, engine, &d[0], &d[1], &d[2], attr);
	if (st == dnnl_success)
		st = dnnl_primitive_create(&k->primitive, pd);
	if (st == dnnl_success) {
		scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
		k->base.scratch_bytes = dnnl_memory_desc_get_size(scratch);
	}
	for (int i = 0; i < 4 && st == dnnl_success; i++) {
		k->args[i].arg = what[i];
		st = dnnl_memory_create(&k->args[i].memory, i < 3 ? ref_md(&d[i]) : scratch, engine,
					DNNL_MEMORY_NONE);
	}
	if (pd)
		dnnl_primitive_desc_destroy(pd);
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	return st;
}

tern_status tn_dnnl_matmul(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **kern)
{
	mat m[3] = {view_of(&desc->in[0].shape, tn_node_int(desc->node, TN_ATTR_TRANS_A, 0) != 0),
		    view_of(&desc->in[1].shape, tn_node_int(desc->node, TN_ATTR_TRANS_B, 0) != 0),
		    view_of(&desc->out[0].shape, false)};
	md d[3] = {0};
	dnnl_status_t st = dnnl_success;
	matmul_kern *k = calloc(1, sizeof(*k));

	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	TN_ASSERT(m[0].dims[1] == m[1].dims[0]);
	k->base = (tn_kern){.run = matmul_run, .destroy = matmul_destroy};
	k->name = desc->node->name;
	k->stream = dnnl->stream;
	for (uint32_t i = 0; i < 3 && st == dnnl_success; i++)
		st = make_md(&d[i], &m[i]);
	if (st == dnnl_success)
		st = make_primitive(k, dnnl->engine, d);
	for (uint32_t i = 0; i < 3; i++)
		free_md(&d[i]);
	if (st != dnnl_success) {
		matmul_destroy(&k->base);
		return failed(st, "primitive", desc->node->name);
	}
	*kern = &k->base;
	return TERN_OK;
}
