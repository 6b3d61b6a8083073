/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory over the CUDA driver API.
 *
 *   off    no GPU was asked for: everything here costs one load of a word, and no pointer is a GPU's
 *   on     the driver is loaded and answers: pointers that are not of the pool are asked about
 *   gpu    a device, with its primary context retained and a stream of its own, made when first used
 *
 * Turned on by tern_gpu_probe, by the first TERN_MEM_DEVICE allocation, and by the making of a context in a
 * process that has loaded libcuda by itself. In a forked child it is off and cannot be turned on: the CUDA driver
 * does not survive fork.
 *
 * Copies wait for their end, as memcpy does. Threads: any. Tests: tests/unit/mem/test_gpu.c.
 */
#ifndef TN_MEM_GPU_H
#define TN_MEM_GPU_H

#include "base/check.h"
#include "base/os.h"
#include "mem/cuda_api.h"
#include "mem/mem.h"

#define TN_GPUS_MAX    16
#define TN_GPU_GRANULE (2ull << 20) /* tern's own blocks: whole, as devices map it */
#define TN_GPU_PAGE    4096ull

/* fork generation + 1 of the process that turned it on; 0 = off. */
extern _Atomic uint32_t tn_gpu_state;
static TN_ALWAYS_INLINE bool tn_gpu_on(void)
{
	uint32_t state = atomic_load_explicit(&tn_gpu_state, memory_order_relaxed);

	return TN_UNLIKELY(state != 0) && state == tn_os_fork_generation() + 1;
}

/* Load the driver and look for GPUs. only_loaded: not if the process has not loaded it. TERN_E_NO_DEVICE,
   TERN_E_FORKED. */
tern_status tn_gpu_start(bool only_loaded);
/* For tests: back to off; contexts and streams are given back. */
void tn_gpu_stop(void);

/* Is it GPU memory that no CPU may touch? (Managed memory is not.) false when off. */
bool tn_gpu_owns_asked(const void *ptr);
static inline bool tn_gpu_owns(const void *ptr)
{
	return TN_UNLIKELY(tn_gpu_on()) && tn_gpu_owns_asked(ptr);
}

/* Of GPU 0. TERN_E_NO_DEVICE, TERN_E_NOMEM, TERN_E_DEVICE. */
tern_status tn_gpu_alloc(uint64_t bytes, void **ptr);
void tn_gpu_free(void *ptr);
tern_status tn_gpu_copy_out(void *host, const void *gpu, uint64_t bytes);
tern_status tn_gpu_copy_in(void *gpu, const void *host, uint64_t bytes);
/* tern_gpu_flush for each GPU in use; one that can't needs none. */
void tn_gpu_flush_all(void);

/* Call fn(arg) in a thread of the driver's when the stream (or the event) has come so far. fn may not call
   CUDA. */
tern_status tn_gpu_when(void *stream, bool is_event, cu_host_fn fn, void *arg);

/* A region of GPU memory begins: make a dma-buf of it for NICs, if it can be had (ext->fd, ext->fd_offset). */
void tn_gpu_region_begin(tn_extent *ext);
/* It ends; owned: free the memory too. */
void tn_gpu_region_end(tn_extent *ext, bool owned);

#endif
