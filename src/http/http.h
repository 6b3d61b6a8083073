/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the HTTP endpoint.
 *
 *   http    one per context that is looked at: the daemon of libmicrohttpd (one thread of its own), what the program said
 *   page    an answer: status, type, text
 *
 * Threads: answers are made in the daemon's thread. Tests: tests/e2e/http_test.py.
 */
#ifndef TN_HTTP_HTTP_H
#define TN_HTTP_HTTP_H

#include <tern/channel.h>
#include <tern/http.h>
#include <tern/mem.h>
#include <tern/watch.h>

#include "base/json.h"

struct MHD_Daemon;

struct tern_http {
	tern_ctx *ctx;
	tern_http_params params;
	struct MHD_Daemon *daemon;
	char address[64];
	bool loopback;
};

/* ---- what pages say: metrics.c, status.c ---- */
void tn_http_metrics(tern_http *http, tn_str *out);
void tn_http_status(tern_http *http, tn_str *out);
void tn_http_state(tern_http *http, tn_str *out);
void tn_http_waits(tern_http *http, tn_str *out);
/* trace.c: spans from number `since` on. */
void tn_http_trace(tern_http *http, uint64_t since, tn_str *out);
const char *tn_http_link_state(tern_link_state state);

/* The page at /, with its length (made of page.html when tern is built). */
extern const unsigned char tn_http_page[];
extern const unsigned long tn_http_page_bytes;

#endif
