/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the loading of libibverbs. The library stays loaded for the life of the process: drivers register
 * handlers that must not vanish.
 *
 * Must not call anything of it. Threads: any. Tests: tests/unit/transport/test_verbs_probe.c.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"
#include "transport/verbs/api.h"

#define LIBRARY "libibverbs.so.1"

static tn_verbs_api loaded;
static char load_error[256]; /* "" = loaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tn_verbs_api *_Atomic override;

static int call_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	return ibv_modify_cq(cq, attr);
}

static void load(void)
{
	void *library = TN_FAULT("verbs.dlopen") ? NULL : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	const char *missing = NULL;
	void *symbol;

	if (!library) {
		const char *why = dlerror();

		snprintf(load_error, sizeof(load_error), "%s: install libibverbs1 (rdma-core)",
			 why ? why : LIBRARY " cannot be loaded");
		return;
	}
	/* The object's address is copied bytewise: ISO C has no conversion from void * to a function. */
#define LOOK_UP(member, name, optional, result, parameters) \
	symbol = dlsym(library, #name);                     \
	memcpy(&loaded.member, &symbol, sizeof(symbol));    \
	if (!symbol && !(optional))                         \
		missing = #name;
	TN_VERBS_SYMBOLS(LOOK_UP)
#undef LOOK_UP
	loaded.modify_cq = call_modify_cq;
	if (missing)
		snprintf(load_error, sizeof(load_error), "%s has no %s: it is too old, update rdma-core",
			 LIBRARY, missing);
}

tern_status tn_verbs_api_get(const tn_verbs_api **api)
{
	*api = atomic_load(&override);
	if (*api)
		return TERN_OK;
	pthread_once(&once, load);
	if (load_error[0])
		return tn_fail(TERN_E_NO_DEVICE, "%s", load_error);
	*api = &loaded;
	return TERN_OK;
}

void tn_verbs_api_override(const tn_verbs_api *api)
{
	atomic_store(&override, api);
}

bool tn_verbs_api_is_overridden(void)
{
	return atomic_load(&override) != NULL;
}
