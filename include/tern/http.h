/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context over HTTP, for monitors and people: libtern-http, a library of its own (it needs libmicrohttpd).
 *
 *   /metrics       Prometheus text format 0.0.4: every counter, memory, links
 *   /healthz       200 as long as the context makes progress, else 503 and why
 *   /readyz        200 if the program says that it is ready, else 503 and why
 *   /status.json   links, latencies, who waits for whom, counters, memory
 *   /waits         who waits for whom: a line each: ns, how many, whom, what, with tabs between
 *   /trace.json    the latest operations one by one for Perfetto (https://ui.perfetto.dev); ?since=N: from that
 *                  number on
 *   /state         the whole state of all links as text, for a report
 *   /              a page that shows status.json live
 *
 * It only reads, but that it has the context record how long operations take (<tern/watch.h>). It listens on loopback unless told otherwise; then it answers requests that name the host as loopback
 * alone, so that no web page reaches it by a name of its own.
 */
#ifndef TERN_HTTP_H
#define TERN_HTTP_H

#include <tern/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_HTTP_INSECURE 1u /* listen beyond loopback: anybody there can read it */

typedef struct tern_http tern_http;

/* Zero it, then set what differs. */
typedef struct tern_http_params {
	const char *listen; /* "host:port", a number for the host, port 0 = any; NULL = 127.0.0.1:0 */
	uint32_t flags;
	/* Ready to work? NULL: always. Words of why not into `why` (why_bytes of room). From a thread of the endpoint. */
	int (*ready)(char *why, uint64_t why_bytes, void *arg);
	/* Rows of the program's own: call row(name, labels, value, row_arg) for each; names as Prometheus wants them, labels
	   "" or "table=\"users\"". NULL: none. From a thread of the endpoint. */
	void (*rows)(void (*row)(const char *name, const char *labels, double value, void *row_arg),
		     void *row_arg, void *arg);
	void *arg;
} tern_http_params;

/* TERN_E_INSECURE (beyond loopback without the flag), TERN_E_IN_USE, TERN_E_INVALID, TERN_E_NOMEM. */
tern_status tern_http_start(tern_ctx *ctx, const tern_http_params *params, tern_http **http);
/* "127.0.0.1:9400": where it listens. Lives as long as it. */
const char *tern_http_address(const tern_http *http);
/* Before the context is destroyed. NULL is allowed. */
void tern_http_stop(tern_http *http);

#ifdef __cplusplus
}
#endif

#endif
