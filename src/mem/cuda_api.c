/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the loading of the CUDA driver library. It stays loaded for the life of the process.
 *
 * Must not call anything of it. Threads: any. Tests: tests/unit/mem/test_gpu.c.
 */
#include "mem/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"

#define LIBRARY "libcuda.so.1"

static tn_cuda_api loaded;
static bool is_loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const tn_cuda_api *_Atomic override;

static tern_status load(bool only_loaded)
{
	void *library = TN_FAULT("gpu.dlopen")
				? NULL
				: dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | (only_loaded ? RTLD_NOLOAD : 0));
	const char *missing = NULL;
	void *symbol;

	if (!library) {
		const char *why = only_loaded ? NULL : dlerror();

		return tn_fail(TERN_E_NO_DEVICE,
			       "%s: install the NVIDIA driver's libcuda1, if there is a GPU",
			       why ? why : LIBRARY " is not loaded");
	}
	/* The object's address is copied bytewise: ISO C has no conversion from void * to a function. */
#define LOOK_UP(member, name, optional, parameters)      \
	symbol = dlsym(library, #name);                  \
	memcpy(&loaded.member, &symbol, sizeof(symbol)); \
	if (!symbol && !(optional))                      \
		missing = #name;
	TN_CUDA_SYMBOLS(LOOK_UP)
#undef LOOK_UP
	if (missing)
		return tn_fail(TERN_E_NO_DEVICE, "%s has no %s: the NVIDIA driver is too old", LIBRARY,
			       missing);
	is_loaded = true;
	return TERN_OK;
}

tern_status tn_cuda_api_get(bool only_loaded, const tn_cuda_api **api)
{
	tern_status status = TERN_OK;

	*api = atomic_load(&override);
	if (*api)
		return TERN_OK;
	pthread_mutex_lock(&lock);
	if (!is_loaded)
		status = load(only_loaded);
	pthread_mutex_unlock(&lock);
	if (status == TERN_OK)
		*api = &loaded;
	return status;
}

void tn_cuda_api_override(const tn_cuda_api *api)
{
	atomic_store(&override, api);
}
