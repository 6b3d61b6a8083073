/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver API that tern calls, as a table: looked up in libcuda.so.1 when it is loaded
 * at run time, or given by tests. Nothing is built against CUDA; the types and numbers below are those of the
 * driver API's binary interface (docs.nvidia.com/cuda/cuda-driver-api: data types; names with _v2 are what its
 * header maps the plain names to since CUDA 4).
 *
 * Must not call the library. Threads: any; loading happens once. Tests: tests/unit/mem/test_gpu.c.
 */
#ifndef TN_MEM_CUDA_API_H
#define TN_MEM_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/status.h>

typedef int cu_result;       /* CUresult */
typedef int cu_device;       /* CUdevice */
typedef uint64_t cu_pointer; /* CUdeviceptr, 64 bits on the hosts that tern knows */
typedef void *cu_context;
typedef void *cu_stream;
typedef void *cu_event;
typedef void (*cu_host_fn)(void *arg);

/* CUresult */
enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_NO_DEVICE = 100,
	CU_NOT_SUPPORTED = 801,
};
enum { CU_ATTRIBUTE_DMA_BUF = 124 }; /* CUdevice_attribute */
/* CUpointer_attribute */
enum {
	CU_POINTER_MEMORY_TYPE = 2,
	CU_POINTER_SYNC_MEMOPS = 6,
	CU_POINTER_IS_MANAGED = 8,
	CU_POINTER_DEVICE_ORDINAL = 9,
	CU_POINTER_RANGE_START = 11,
	CU_POINTER_RANGE_SIZE = 12,
};
enum { CU_TYPE_DEVICE = 2 };           /* CUmemorytype */
enum { CU_STREAM_NONBLOCKING = 1 };    /* CUstream_flags */
enum { CU_HANDLE_DMA_BUF = 1 };        /* CUmemRangeHandleType */
enum { CU_FLUSH_CURRENT_CONTEXT = 0 }; /* CUflushGPUDirectRDMAWritesTarget */
enum { CU_FLUSH_TO_OWNER = 100 };      /* CUflushGPUDirectRDMAWritesScope */

/* X(member, symbol, optional, parameters) */
#define TN_CUDA_SYMBOLS(X)                                                                               \
	X(init, cuInit, 0, (unsigned flags))                                                             \
	X(error_string, cuGetErrorString, 0, (cu_result result, const char **text))                      \
	X(driver_version, cuDriverGetVersion, 0, (int *version))                                         \
	X(device_count, cuDeviceGetCount, 0, (int *count))                                               \
	X(device_get, cuDeviceGet, 0, (cu_device * device, int ordinal))                                 \
	X(device_name, cuDeviceGetName, 0, (char *name, int bytes, cu_device device))                    \
	X(device_bytes, cuDeviceTotalMem_v2, 0, (size_t * bytes, cu_device device))                      \
	X(device_attribute, cuDeviceGetAttribute, 0, (int *value, int attribute, cu_device device))      \
	X(context_retain, cuDevicePrimaryCtxRetain, 0, (cu_context * context, cu_device device))         \
	X(context_release, cuDevicePrimaryCtxRelease_v2, 0, (cu_device device))                          \
	X(context_push, cuCtxPushCurrent_v2, 0, (cu_context context))                                    \
	X(context_pop, cuCtxPopCurrent_v2, 0, (cu_context * context))                                    \
	X(mem_alloc, cuMemAlloc_v2, 0, (cu_pointer * pointer, size_t bytes))                             \
	X(mem_free, cuMemFree_v2, 0, (cu_pointer pointer))                                               \
	X(pointer_get, cuPointerGetAttribute, 0, (void *value, int attribute, cu_pointer pointer))       \
	X(pointer_set, cuPointerSetAttribute, 0, (const void *value, int attribute, cu_pointer pointer)) \
	X(copy_out, cuMemcpyDtoHAsync_v2, 0,                                                             \
	  (void *host, cu_pointer device, size_t bytes, cu_stream stream))                               \
	X(copy_in, cuMemcpyHtoDAsync_v2, 0,                                                              \
	  (cu_pointer device, const void *host, size_t bytes, cu_stream stream))                         \
	X(stream_create, cuStreamCreate, 0, (cu_stream * stream, unsigned flags))                        \
	X(stream_destroy, cuStreamDestroy_v2, 0, (cu_stream stream))                                     \
	X(stream_synchronize, cuStreamSynchronize, 0, (cu_stream stream))                                \
	X(stream_wait, cuStreamWaitEvent, 0, (cu_stream stream, cu_event event, unsigned flags))         \
	X(launch_host, cuLaunchHostFunc, 0, (cu_stream stream, cu_host_fn fn, void *arg))                \
	X(range_handle, cuMemGetHandleForAddressRange, 1,                                                \
	  (void *handle, cu_pointer pointer, size_t bytes, int type, unsigned long long flags))          \
	X(flush_writes, cuFlushGPUDirectRDMAWrites, 1, (int target, int scope))

typedef struct tn_cuda_api {
#define TN_CUDA_MEMBER(member, symbol, optional, parameters) cu_result(*member) parameters;
	TN_CUDA_SYMBOLS(TN_CUDA_MEMBER)
#undef TN_CUDA_MEMBER
} tn_cuda_api;

/*
 * The table. TERN_E_NO_DEVICE with a text if the library is missing or too old. only_loaded: don't load it, but
 * take it if the process has it already.
 */
tern_status tn_cuda_api_get(bool only_loaded, const tn_cuda_api **api);
/* For tests: use this one instead (NULL: the library again). */
void tn_cuda_api_override(const tn_cuda_api *api);

#endif
