/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the list of providers of this build: the only file that knows providers by name. A provider is
 * a folder src/transport/NAME that defines `const tn_provider tn_provider_NAME`; the build sets
 * TN_HAVE_NAME for each folder it finds.
 *
 * Must not include a provider's header or keep state. Threads: everything here is constant.
 * Tests: tests/unit/transport/test_registry.c.
 */
#include <string.h>

#include "transport/transport.h"

#ifdef TN_HAVE_SHM
extern const tn_provider tn_provider_shm;
#endif
#ifdef TN_HAVE_TCP
extern const tn_provider tn_provider_tcp;
#endif
#ifdef TN_HAVE_VERBS
extern const tn_provider tn_provider_verbs;
#endif
#ifdef TN_HAVE_LOOP
extern const tn_provider tn_provider_loop;
#endif

/*
 * In order of preference. shm before all: nothing beats memcpy inside a host. tcp is what verbs falls back to.
 * loop never wins by itself: it reaches only its own process.
 */
static const tn_provider *const providers[] = {
#ifdef TN_HAVE_SHM
	&tn_provider_shm,
#endif
#ifdef TN_HAVE_VERBS
	&tn_provider_verbs,
#endif
#ifdef TN_HAVE_TCP
	&tn_provider_tcp,
#endif
#ifdef TN_HAVE_LOOP
	&tn_provider_loop,
#endif
	NULL,
};

const tn_provider *const *tn_providers(void)
{
	return providers;
}

const tn_provider *tn_provider_find(const char *name)
{
	if (!name)
		return NULL;
	for (size_t i = 0; providers[i]; i++) {
		if (strcmp(providers[i]->name, name) == 0)
			return providers[i];
	}
	return NULL;
}
