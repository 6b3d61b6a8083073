/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The naive way to registered memory: malloc and ibv_reg_mr for each buffer. libibverbs is loaded if it is there;
 * its functions are called through opaque pointers, so that no header is needed.
 *
 * Threads: the main thread.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "mem_bench.h"

#define ACCESS_ALL 7 /* local write, remote write, remote read */

typedef struct verbs {
	void **(*get_device_list)(int *);
	void *(*open_device)(void *);
	void *(*alloc_pd)(void *);
	void *(*reg_mr)(void *, void *, size_t, int);
	int (*dereg_mr)(void *);
	int (*dealloc_pd)(void *);
	int (*close_device)(void *);
} verbs;

static bool load(verbs *v, const char **why)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);

	*why = "no libibverbs";
	if (!lib)
		return false;
	*(void **)&v->get_device_list = dlsym(lib, "ibv_get_device_list");
	*(void **)&v->open_device = dlsym(lib, "ibv_open_device");
	*(void **)&v->alloc_pd = dlsym(lib, "ibv_alloc_pd");
	*(void **)&v->reg_mr = dlsym(lib, "ibv_reg_mr");
	*(void **)&v->dereg_mr = dlsym(lib, "ibv_dereg_mr");
	*(void **)&v->dealloc_pd = dlsym(lib, "ibv_dealloc_pd");
	*(void **)&v->close_device = dlsym(lib, "ibv_close_device");
	return v->get_device_list && v->open_device && v->alloc_pd && v->reg_mr && v->dereg_mr &&
	       v->dealloc_pd && v->close_device;
}

static bool each_registered(const verbs *v, void *pd, uint64_t bytes, int count, double *ns)
{
	uint64_t from = bench_now();

	for (int i = 0; i < count; i++) {
		void *ptr = malloc(bytes);
		void *mr = ptr ? v->reg_mr(pd, ptr, bytes, ACCESS_ALL) : NULL;

		if (!mr) {
			free(ptr);
			return false;
		}
		*(volatile uint64_t *)ptr = 1;
		v->dereg_mr(mr);
		free(ptr);
	}
	*ns = (double)(bench_now() - from) / count;
	return true;
}

bool bench_verbs_naive(uint64_t bytes, int count, double *ns, const char **why)
{
	verbs v = {0};
	void **list, *device = NULL, *pd = NULL;
	bool done = false;
	int n = 0;

	if (!load(&v, why))
		return false;
	*why = "no RDMA device";
	list = v.get_device_list(&n);
	if (list && n > 0)
		device = v.open_device(list[0]);
	if (device)
		pd = v.alloc_pd(device);
	if (pd) {
		*why = "ibv_reg_mr failed";
		done = each_registered(&v, pd, bytes, count, ns);
		v.dealloc_pd(pd);
	}
	if (device)
		v.close_device(device);
	return done;
}
