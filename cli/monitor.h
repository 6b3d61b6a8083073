/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --http of commands that run for long: libtern-http, loaded when it is asked for.
 *
 * Threads: main. Tests: tests/e2e/http_test.py.
 */
#ifndef CLI_MONITOR_H
#define CLI_MONITOR_H

#include <stdbool.h>

#include <tern/http.h>

typedef struct monitor {
	void *library;
	tern_http *http;
} monitor;

/* where NULL: nothing. False: printed. */
typedef void (*monitor_rows)(void (*row)(const char *name, const char *labels, double value, void *row_arg),
			     void *row_arg, void *arg);
/* rows: <tern/http.h>, may be NULL. */
bool monitor_start(monitor *m, const char *command, tern_ctx *ctx, const char *where, bool insecure,
		   monitor_rows rows, void *arg);
/* "" if it does not run. */
const char *monitor_address(const monitor *m);
void monitor_stop(monitor *m);

#endif
