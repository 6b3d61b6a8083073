/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans in the Trace Event Format, which Perfetto and chrome://tracing read: one event to a line, so that `tern trace` joins
 * those of several processes by lines. Times are of the wall clock in microseconds, because that is what hosts share.
 *
 * Threads: the daemon's. Tests: tests/e2e/watch_test.py.
 */
#include <unistd.h>

#include "base/clock.h"
#include "http/http.h"

typedef struct writer {
	tn_str *out;
	uint64_t wall_ns; /* wall clock minus monotonic clock */
	unsigned process;
} writer;

static void on_span(const tern_span *s, void *arg)
{
	const writer *w = arg;

	tn_str_addf(w->out,
		    ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
		    "\"args\":{\"key\":%llu,\"number\":%llu}}",
		    s->kind, w->process, s->thread, (double)(s->start_ns + w->wall_ns) * 1e-3,
		    (double)s->duration_ns * 1e-3, (unsigned long long)s->key, (unsigned long long)s->number);
}

static void string(tn_str *out, const char *key, const char *value)
{
	tn_json j;

	tn_str_addf(out, "\"%s\":", key);
	tn_json_init(&j, out, 0);
	tn_json_string(&j, value);
}

void tn_http_trace(tern_http *http, uint64_t since, tn_str *out)
{
	writer w = {.out = out, .wall_ns = tn_wall() - tn_now(), .process = (unsigned)getpid()};
	uint64_t next;

	tn_str_addf(out, "{\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{",
		    w.process);
	string(out, "name", tern_ctx_name(http->ctx));
	tn_str_add(out, "}}");
	next = tern_ctx_spans(http->ctx, since, on_span, &w);
	tn_str_addf(out, "\n],\n\"otherData\":{");
	string(out, "version", tern_version());
	tn_str_add(out, ",");
	string(out, "address", tern_ctx_address(http->ctx));
	tn_str_addf(out, ",\"next\":%llu}}\n", (unsigned long long)next);
}
