/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the GPUs of the process: detection, allocation, copies, dma-bufs. See gpu.h.
 *
 * Must not register anything (foreign.c) and never touches GPU memory by itself. Primary contexts stay retained
 * for the life of the process: their frameworks use the same ones. Threads: any; a lock around turning on and
 * around the first use of a GPU. Tests: tests/unit/mem/test_gpu.c, on a fake driver and on a GPU if there is one.
 */
#include "mem/gpu.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/options.h"

typedef struct gpu {
	cu_device device;
	cu_context context; /* NULL until first used */
	cu_stream stream;
	bool dma_buf;
	_Atomic bool used; /* context and stream are there */
} gpu;

static struct {
	pthread_mutex_t lock;
	const tn_cuda_api *api;
	int count;
	gpu gpus[TN_GPUS_MAX];
} the = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Atomic uint32_t tn_gpu_state;

static tern_status failed(cu_result result, const char *call, const char *more)
{
	const char *text = NULL;

	if (the.api->error_string(result, &text) != CU_OK || !text)
		text = "no text";
	return tn_fail(result == CU_OUT_OF_MEMORY   ? TERN_E_NOMEM
		       : result == CU_NOT_SUPPORTED ? TERN_E_UNSUPPORTED
						    : TERN_E_DEVICE,
		       "%s: %s (CUDA error %d)%s%s", call, text, result, more[0] ? "; " : "", more);
}

/* ---- on and off ---- */

static void find_gpus(const tn_cuda_api *api, int count)
{
	the.count = 0;
	for (int i = 0; i < count && the.count < TN_GPUS_MAX; i++) {
		gpu *g = &the.gpus[the.count];
		int dma_buf = 0;

		memset(g, 0, sizeof(*g));
		if (api->device_get(&g->device, i) != CU_OK)
			continue;
		if (api->device_attribute(&dma_buf, CU_ATTRIBUTE_DMA_BUF, g->device) != CU_OK)
			dma_buf = 0;
		g->dma_buf = dma_buf && api->range_handle;
		the.count++;
	}
}

/* Lock held. */
static tern_status start(bool only_loaded)
{
	uint32_t was = atomic_load(&tn_gpu_state);
	const tn_cuda_api *api;
	cu_result result;
	int count = 0;

	if (tn_gpu_on())
		return TERN_OK;
	if (was)
		return tn_fail(TERN_E_FORKED,
			       "the CUDA driver was started before fork() and does not survive "
			       "it: start it in the child alone, or call exec");
	TN_TRY(tn_cuda_api_get(only_loaded, &api));
	the.api = api;
	result = api->init(0);
	if (result == CU_OK)
		result = api->device_count(&count);
	if (result != CU_OK) {
		failed(result, "cuInit", "is there a GPU, and may this process use /dev/nvidia*?");
		return TERN_E_NO_DEVICE;
	}
	find_gpus(api, count);
	if (the.count == 0)
		return tn_fail(TERN_E_NO_DEVICE, "the CUDA driver is there and sees no GPU");
	atomic_store(&tn_gpu_state, tn_os_fork_generation() + 1);
	return TERN_OK;
}

tern_status tn_gpu_start(bool only_loaded)
{
	tern_status status;

	if (tn_gpu_on())
		return TERN_OK;
	pthread_mutex_lock(&the.lock);
	status = start(only_loaded);
	pthread_mutex_unlock(&the.lock);
	return status;
}

void tn_gpu_stop(void)
{
	pthread_mutex_lock(&the.lock);
	for (int i = 0; i < the.count && tn_gpu_on(); i++) {
		gpu *g = &the.gpus[i];

		if (!g->context)
			continue;
		the.api->stream_destroy(g->stream);
		the.api->context_release(g->device);
		g->context = NULL;
		atomic_store(&g->used, false);
	}
	atomic_store(&tn_gpu_state, 0);
	the.count = 0;
	pthread_mutex_unlock(&the.lock);
}

/* ---- a GPU and its context ---- */

/* Lock held. */
static tern_status first_use(gpu *g)
{
	cu_context context = NULL;
	cu_result result = the.api->context_retain(&context, g->device);

	if (result != CU_OK)
		return failed(result, "cuDevicePrimaryCtxRetain", "");
	result = the.api->context_push(context);
	if (result == CU_OK) {
		cu_context popped;

		result = the.api->stream_create(&g->stream, CU_STREAM_NONBLOCKING);
		the.api->context_pop(&popped);
	}
	if (result != CU_OK) {
		the.api->context_release(g->device);
		return failed(result, "cuStreamCreate", "");
	}
	g->context = context;
	atomic_store(&g->used, true);
	return TERN_OK;
}

/* Make GPU `index`'s context this thread's; leave() undoes it. */
static tern_status enter(int index, gpu **out)
{
	tern_status status = TERN_OK;
	cu_result result;
	gpu *g;

	if (!tn_gpu_on())
		return tn_fail(atomic_load(&tn_gpu_state) ? TERN_E_FORKED : TERN_E_NO_DEVICE,
			       "no GPU is in use in this process");
	if (index < 0 || index >= the.count)
		return tn_fail(TERN_E_NO_DEVICE, "no GPU %d: there are %d", index, the.count);
	g = &the.gpus[index];
	if (TN_UNLIKELY(!atomic_load(&g->used))) {
		pthread_mutex_lock(&the.lock);
		if (!g->context)
			status = first_use(g);
		pthread_mutex_unlock(&the.lock);
	}
	if (status != TERN_OK)
		return status;
	result = the.api->context_push(g->context);
	if (result != CU_OK)
		return failed(result, "cuCtxPushCurrent", "");
	*out = g;
	return TERN_OK;
}

static void leave(void)
{
	cu_context popped;

	the.api->context_pop(&popped);
}

/* The GPU whose memory it is; the first one if that can't be told. */
static int gpu_of(const void *ptr)
{
	int ordinal = 0;

	if (the.api->pointer_get(&ordinal, CU_POINTER_DEVICE_ORDINAL, (uintptr_t)ptr) != CU_OK)
		return 0;
	for (int i = 0; i < the.count; i++) {
		if (the.gpus[i].device == ordinal)
			return i;
	}
	return 0;
}

bool tn_gpu_owns_asked(const void *ptr)
{
	unsigned type = 0, managed = 0;

	if (the.api->pointer_get(&type, CU_POINTER_MEMORY_TYPE, (uintptr_t)ptr) != CU_OK ||
	    type != CU_TYPE_DEVICE)
		return false;
	if (the.api->pointer_get(&managed, CU_POINTER_IS_MANAGED, (uintptr_t)ptr) != CU_OK)
		managed = 0;
	return !managed;
}

/* ---- memory ---- */

tern_status tn_gpu_alloc(uint64_t bytes, void **ptr)
{
	cu_pointer pointer = 0;
	char text[32], more[64];
	cu_result result;
	gpu *g;

	TN_TRY(enter(0, &g));
	result = the.api->mem_alloc(&pointer, bytes);
	leave();
	if (result != CU_OK) {
		snprintf(more, sizeof(more), "%s of GPU 0", tn_format_bytes(bytes, text, sizeof(text)));
		return failed(result, "cuMemAlloc", more);
	}
	*ptr = (void *)(uintptr_t)pointer;
	return TERN_OK;
}

void tn_gpu_free(void *ptr)
{
	cu_result result;
	gpu *g;

	if (!tn_gpu_on() || enter(gpu_of(ptr), &g) != TERN_OK)
		return;
	result = the.api->mem_free((uintptr_t)ptr);
	leave();
	if (result != CU_OK) {
		failed(result, "cuMemFree", "");
		TN_LOG(ERROR, MEM, "%s", tn_detail_get());
	}
}

tern_status tn_gpu_copy_out(void *host, const void *from, uint64_t bytes)
{
	cu_result result;
	gpu *g;

	TN_TRY(enter(gpu_of(from), &g));
	result = the.api->copy_out(host, (uintptr_t)from, bytes, g->stream);
	if (result == CU_OK)
		result = the.api->stream_synchronize(g->stream);
	leave();
	return result == CU_OK ? TERN_OK : failed(result, "cuMemcpyDtoHAsync", "a staged copy from a GPU");
}

tern_status tn_gpu_copy_in(void *to, const void *host, uint64_t bytes)
{
	cu_result result;
	gpu *g;

	TN_TRY(enter(gpu_of(to), &g));
	result = the.api->copy_in((uintptr_t)to, host, bytes, g->stream);
	if (result == CU_OK)
		result = the.api->stream_synchronize(g->stream);
	leave();
	return result == CU_OK ? TERN_OK : failed(result, "cuMemcpyHtoDAsync", "a staged copy to a GPU");
}

tern_status tern_gpu_flush(const void *ptr)
{
	cu_result result;
	gpu *g;

	TN_TRY(enter(gpu_of(ptr), &g));
	result = the.api->flush_writes ? the.api->flush_writes(CU_FLUSH_CURRENT_CONTEXT, CU_FLUSH_TO_OWNER)
				       : CU_NOT_SUPPORTED;
	leave();
	return result == CU_OK ? TERN_OK : failed(result, "cuFlushGPUDirectRDMAWrites", "");
}

void tn_gpu_flush_all(void)
{
	gpu *g;

	for (int i = 0; tn_gpu_on() && the.api->flush_writes && i < the.count; i++) {
		if (!the.gpus[i].used || enter(i, &g) != TERN_OK)
			continue;
		(void)the.api->flush_writes(CU_FLUSH_CURRENT_CONTEXT, CU_FLUSH_TO_OWNER);
		leave();
	}
}

tern_status tn_gpu_when(void *stream, bool is_event, cu_host_fn fn, void *arg)
{
	cu_stream own = NULL;
	cu_result result = CU_OK;
	gpu *g;

	TN_TRY(enter(0, &g));
	/* An event has no queue: one of its own waits for it, so that nothing else waits behind it. */
	if (is_event)
		result = the.api->stream_create(&own, CU_STREAM_NONBLOCKING);
	if (own)
		result = the.api->stream_wait(own, stream, 0);
	if (result == CU_OK)
		result = the.api->launch_host(own ? own : stream, fn, arg);
	if (own)
		(void)the.api->stream_destroy(own); /* goes when it has run dry */
	leave();
	return result == CU_OK ? TERN_OK
			       : failed(result, "cuLaunchHostFunc", "op->stream is no stream or event?");
}

/* ---- for NICs ---- */

/* The allocation around the range, whole pages: what the driver makes dma-bufs of. */
static void allocation_of(const tn_extent *ext, cu_pointer *base, size_t *bytes)
{
	cu_pointer from = (uintptr_t)ext->base, end = from + ext->bytes, start = 0;
	size_t size = 0;

	if (the.api->pointer_get(&start, CU_POINTER_RANGE_START, from) != CU_OK ||
	    the.api->pointer_get(&size, CU_POINTER_RANGE_SIZE, from) != CU_OK || start > from ||
	    start + size < end || start % TN_GPU_PAGE || size % TN_GPU_PAGE) {
		/* Memory of several pieces, or a slice: the range itself, widened to pages. */
		start = from / TN_GPU_PAGE * TN_GPU_PAGE;
		size = (end - start + TN_GPU_PAGE - 1) / TN_GPU_PAGE * TN_GPU_PAGE;
	}
	*base = start;
	*bytes = size;
}

void tn_gpu_region_begin(tn_extent *ext)
{
	unsigned on = 1;
	cu_pointer base;
	size_t bytes;
	int fd = -1;
	gpu *g;

	ext->fd = -1;
	if (enter(gpu_of(ext->base), &g) != TERN_OK)
		return;
	if (g->dma_buf) {
		allocation_of(ext, &base, &bytes);
		if (the.api->range_handle(&fd, base, bytes, CU_HANDLE_DMA_BUF, 0) == CU_OK) {
			ext->fd = fd;
			ext->fd_offset = (uintptr_t)ext->base - base;
			/* Copies within the GPU that count as done are done, before a NIC looks. */
			(void)the.api->pointer_set(&on, CU_POINTER_SYNC_MEMOPS, (uintptr_t)ext->base);
		}
	}
	leave();
}

void tn_gpu_region_end(tn_extent *ext, bool owned)
{
	if (ext->fd >= 0)
		tn_os_close(&ext->fd);
	if (owned)
		tn_gpu_free(ext->base);
}

/* ---- for people ---- */

tern_status tern_gpu_probe(unsigned i, tern_gpu_info *info)
{
	tern_status status = tn_gpu_start(false);
	const gpu *g;
	size_t bytes = 0;
	int version = 0;

	if (!info)
		return tn_fail(TERN_E_INVALID, "info is NULL");
	*info = (tern_gpu_info){.name = "cuda"};
	if (status != TERN_OK) {
		snprintf(info->reason, sizeof(info->reason), "%s", tn_detail_get());
		return i == 0 ? TERN_OK : TERN_E_NOT_FOUND;
	}
	if (i >= (unsigned)the.count)
		return TERN_E_NOT_FOUND;
	g = &the.gpus[i];
	if (the.api->device_name(info->name, sizeof(info->name), g->device) != CU_OK)
		snprintf(info->name, sizeof(info->name), "cuda");
	info->name[sizeof(info->name) - 1] = '\0';
	if (the.api->device_bytes(&bytes, g->device) == CU_OK)
		info->bytes = bytes;
	(void)the.api->driver_version(&version);
	info->usable = 1;
	info->dma_buf = g->dma_buf;
	snprintf(info->reason, sizeof(info->reason), "CUDA driver %d.%d; %s", version / 1000,
		 version % 1000 / 10,
		 g->dma_buf ? "NICs reach its memory (dma-buf)" : "no dma-buf: staged through host memory");
	return TERN_OK;
}
