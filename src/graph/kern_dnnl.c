/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oneDNN's engine, its threads, and kernels made of its primitives (kern_dnnl.h). The C API of 2.x (Debian 12:
 * 2.6) and of 3.x (Debian 13: 3.7) differ only in kern_dnnl_v2.c and kern_dnnl_v3.c.
 *
 * A primitive is created once per node for fixed shapes, with a scratchpad that the caller owns; a run only
 * sets data handles and executes.
 *
 * Thread story: see kern.h. The number of OpenMP threads is a setting of the calling thread.
 * Tests: tests/unit/graph/kern_test.c, nn_matmul_test.c.
 */
#include "graph/kern_dnnl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"

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

tern_status tn_dnnl_failed(dnnl_status_t st, const char *what, const char *node)
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
	if (st != dnnl_success) {
		tn_dnnl_destroy(d);
		return tn_dnnl_failed(st, "engine", "cpu");
	}
	*dnnl = d;
	return TERN_OK;
}

void tn_dnnl_destroy(tn_dnnl *dnnl)
{
	if (!dnnl)
		return;
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

/* ---- kernels of primitives ---- */

static void add_bias(const tn_dk *k, const tn_kern_io *io)
{
	const float *bias = io->in[k->bias];
	float *y = io->out[0];

	for (int64_t i = 0; i < k->bias_n * k->bias_c; i++) {
		for (int64_t p = 0; p < k->bias_plane; p++)
			y[i * k->bias_plane + p] += bias[i % k->bias_c];
	}
}

static void *address(const tn_dk *k, const tn_kern_io *io, const dk_place *p)
{
	switch (p->where) {
	case DK_IN:
		return io->in[p->at];
	case DK_OUT:
		return io->out[p->at];
	default:
		return (char *)io->scratch + (p->where == DK_PAD ? k->pieces : p->at);
	}
}

static dnnl_status_t run_step(tn_dk *k, dk_step *s, const tn_kern_io *io)
{
	for (uint32_t i = 0; i < s->n; i++) {
		void *data = address(k, io, &s->places[i]);

		if (data == s->last[i])
			continue;
		DK_TRY(dnnl_memory_set_data_handle(s->args[i].memory, data));
		s->last[i] = data;
	}
	return dnnl_primitive_execute(s->primitive, k->stream, (int)s->n, s->args);
}

static tern_status dk_run(tn_kern *kern, const tn_kern_io *io)
{
	tn_dk *k = (tn_dk *)kern;
	dnnl_status_t st = dnnl_success;

	for (uint32_t i = 0; i < k->n_steps && st == dnnl_success; i++)
		st = run_step(k, &k->steps[i], io);
	if (st == dnnl_success)
		st = dnnl_stream_wait(k->stream);
	if (st != dnnl_success)
		return tn_dnnl_failed(st, "execution", k->name);
	if (k->bias)
		add_bias(k, io);
	return TERN_OK;
}

tn_dk *tn_dk_new(tn_dnnl *dnnl, const char *name)
{
	tn_dk *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	if (dnnl_stream_create(&k->stream, dnnl->engine, dnnl_stream_default_flags) != dnnl_success) {
		free(k);
		return NULL;
	}
	k->base = (tn_kern){.run = dk_run, .destroy = tn_dk_destroy};
	k->dnnl = dnnl;
	k->name = name;
	return k;
}

void tn_dk_destroy(tn_kern *kern)
{
	tn_dk *k = (tn_dk *)kern;

	for (uint32_t i = 0; i < k->n_steps; i++) {
		for (uint32_t a = 0; a < k->steps[i].n; a++)
			dnnl_memory_destroy(k->steps[i].args[a].memory);
		dnnl_primitive_destroy(k->steps[i].primitive);
	}
	dnnl_stream_destroy(k->stream);
	free(k);
}

void tn_dk_finish(tn_dk *k)
{
	k->base.scratch_bytes = k->pieces + k->pad;
}

dk_place tn_dk_piece(tn_dk *k, uint64_t bytes)
{
	dk_place p = {DK_PIECE, k->pieces};

	k->pieces += (bytes + 63) / 64 * 64;
	return p;
}

static dnnl_status_t add_arg(tn_dk *k, dk_step *s, const dk_arg *arg)
{
	dnnl_memory_t memory;

	TN_ASSERT(s->n < DK_ARGS);
	DK_TRY(dnnl_memory_create(&memory, arg->md, k->dnnl->engine, DNNL_MEMORY_NONE));
	s->args[s->n] = (dnnl_exec_arg_t){arg->arg, memory};
	s->places[s->n++] = arg->place;
	return dnnl_success;
}

dnnl_status_t tn_dk_step(tn_dk *k, dnnl_primitive_desc_t pd, const dk_arg *args, uint32_t n)
{
	dk_arg pad = {DNNL_ARG_SCRATCHPAD, {DK_PAD, 0}, tn_dk_wants(pd, dnnl_query_scratchpad_md)};
	uint64_t bytes = pad.md ? dnnl_memory_desc_get_size(pad.md) : 0;
	dk_step *s = &k->steps[k->n_steps];

	TN_ASSERT(k->n_steps < DK_STEPS);
	DK_TRY(dnnl_primitive_create(&s->primitive, pd));
	k->n_steps++;
	for (uint32_t i = 0; i < n; i++)
		DK_TRY(add_arg(k, s, &args[i]));
	k->pad = bytes > k->pad ? bytes : k->pad;
	return bytes ? add_arg(k, s, &pad) : dnnl_success;
}

dnnl_status_t tn_dk_reorder(tn_dk *k, dk_place from, tn_md_ref has, dk_place to, tn_md_ref want)
{
	dk_arg args[2] = {{DNNL_ARG_FROM, from, has}, {DNNL_ARG_TO, to, want}};
	dnnl_primitive_attr_t attr;
	dnnl_primitive_desc_t pd;
	dnnl_status_t st;

	DK_TRY(tn_pd_attr(&attr, false));
	st = dnnl_reorder_primitive_desc_create(&pd, has, k->dnnl->engine, want, k->dnnl->engine, attr);
	dnnl_primitive_attr_destroy(attr);
	DK_TRY(st);
	st = tn_dk_step(k, pd, args, 2);
	dnnl_primitive_desc_destroy(pd);
	return st;
}

dnnl_status_t tn_dk_bring(tn_dk *k, dk_place from, const tn_md *plain, tn_md_ref want, dk_place *used)
{
	*used = tn_dk_aside(k, from, plain, want);
	if (used->where == from.where)
		return dnnl_success;
	return tn_dk_reorder(k, from, tn_md_look(plain), *used, want);
}

dk_place tn_dk_aside(tn_dk *k, dk_place to, const tn_md *plain, tn_md_ref has)
{
	if (dnnl_memory_desc_equal(tn_md_look(plain), has))
		return to;
	return tn_dk_piece(k, dnnl_memory_desc_get_size(has));
}

dnnl_status_t tn_dk_deliver(tn_dk *k, dk_place from, tn_md_ref has, dk_place to, const tn_md *plain)
{
	return from.where == to.where ? dnnl_success : tn_dk_reorder(k, from, has, to, tn_md_look(plain));
}

tn_md_ref tn_dk_wants(dnnl_primitive_desc_t pd, dnnl_query_t what)
{
	return dnnl_primitive_desc_query_md(pd, what, 0);
}

tern_status tn_dk_result(tn_dk *k, dnnl_status_t st, tn_kern **kern)
{
	const char *name = k->name;

	*kern = NULL;
	if (st == dnnl_success) {
		tn_dk_finish(k);
		*kern = &k->base;
		return TERN_OK;
	}
	tn_dk_destroy(&k->base);
	return st == dnnl_unimplemented ? TERN_OK : tn_dnnl_failed(st, "primitive", name);
}
