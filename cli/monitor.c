/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command works without libmicrohttpd: the library that needs it is loaded here.
 *
 * Threads: main. Tests: tests/e2e/http_test.py.
 */
#include "monitor.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libtern-http.so." TERN_SOVERSION

typedef tern_status (*start_fn)(tern_ctx *, const tern_http_params *, tern_http **);
typedef const char *(*address_fn)(const tern_http *);
typedef void (*stop_fn)(tern_http *);

bool monitor_start(monitor *m, const char *command, tern_ctx *ctx, const char *where, bool insecure,
		   monitor_rows rows, void *arg)
{
	const tern_http_params params = {
		.listen = where, .flags = insecure ? TERN_HTTP_INSECURE : 0, .rows = rows, .arg = arg};
	start_fn start;

	*m = (monitor){0};
	if (!where)
		return true;
	m->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	start = m->library ? (start_fn)dlsym(m->library, "tern_http_start") : NULL;
	if (!start) {
		fprintf(stderr, "%s: --http needs %s: %s\n", command, LIBRARY, dlerror());
		return false;
	}
	if (start(ctx, &params, &m->http) == TERN_OK)
		return true;
	fprintf(stderr, "%s: --http: %s\n", command, tern_detail());
	return false;
}

const char *monitor_address(const monitor *m)
{
	address_fn address = m->http ? (address_fn)dlsym(m->library, "tern_http_address") : NULL;

	return address ? address(m->http) : "";
}

void monitor_stop(monitor *m)
{
	stop_fn stop = m->http ? (stop_fn)dlsym(m->library, "tern_http_stop") : NULL;

	if (stop)
		stop(m->http);
	*m = (monitor){0}; /* the library stays: its threads may still be on their way out */
}
