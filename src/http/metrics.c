/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Prometheus text format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4. A counter
 * "shm.copy_bytes" of the library is tern_shm_copy_bytes. All rows of a name stand together.
 *
 * Threads: the daemon's. Tests: tests/e2e/http_test.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "http/http.h"

typedef struct link_row {
	char labels[600];
	tern_link_info info;
} link_row;

typedef struct link_rows {
	link_row *rows;
	uint64_t n, room;
} link_rows;

static void add_name(tn_str *out, const char *name)
{
	tn_str_add(out, "tern_");
	for (const char *p = name; *p; p++) {
		bool fine = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');

		tn_str_addn(out, fine ? p : "_", 1);
	}
}

static void on_counter(const char *name, uint64_t value, void *arg)
{
	tn_str *out = arg;

	add_name(out, name);
	tn_str_addf(out, " %" PRIu64 "\n", value);
}

static void add_memory(tern_http *http, tn_str *out)
{
	tern_mem_stats s;

	tern_mem_stats_get(tern_ctx_mem(http->ctx), &s);
	tn_str_addf(out, "# HELP tern_memory_bytes Registered memory of the context.\n# TYPE "
			 "tern_memory_bytes gauge\n");
	tn_str_addf(out, "tern_memory_bytes{kind=\"committed\"} %" PRIu64 "\n", s.committed_bytes);
	tn_str_addf(out, "tern_memory_bytes{kind=\"used\"} %" PRIu64 "\n", s.used_bytes);
	tn_str_addf(out, "tern_memory_bytes{kind=\"limit\"} %" PRIu64 "\n", s.limit_bytes);
	tn_str_addf(out, "# TYPE tern_memory_blocks gauge\ntern_memory_blocks %" PRIu64 "\n", s.blocks);
	tn_str_addf(out, "# TYPE tern_memory_extents gauge\ntern_memory_extents %" PRIu64 "\n", s.extents);
	tn_str_addf(out, "# TYPE tern_memory_registrations gauge\ntern_memory_registrations %" PRIu64 "\n",
		    s.registrations);
	tn_str_addf(out, "# TYPE tern_memory_keys gauge\ntern_memory_keys %" PRIu64 "\n", s.keys);
}

/* A label's value: backslash, quote and line feed are written out. */
static void label(char *out, size_t bytes, const char *name, const char *value)
{
	size_t at = (size_t)snprintf(out, bytes, "%s=\"", name);

	for (const char *p = value; *p && at + 4 < bytes; p++) {
		if (*p == '\\' || *p == '"' || *p == '\n')
			out[at++] = '\\';
		out[at++] = *p == '\n' ? 'n' : *p;
	}
	out[at++] = '"';
	out[at] = '\0';
}

static void on_link(const tern_link_info *info, void *arg)
{
	link_rows *l = arg;
	char peer[280], address[200], transport[60];
	link_row *row;

	if (l->n == l->room) {
		uint64_t room = l->room ? 2 * l->room : 32;
		link_row *more = realloc(l->rows, room * sizeof(*more));

		if (!more)
			return;
		l->rows = more;
		l->room = room;
	}
	row = &l->rows[l->n++];
	row->info = *info;
	label(peer, sizeof(peer), "peer", info->peer_name);
	label(address, sizeof(address), "address", info->peer_address);
	label(transport, sizeof(transport), "transport", info->transport);
	snprintf(row->labels, sizeof(row->labels), "link=\"%" PRIu64 "\",%s,%s,%s", l->n, peer, address,
		 transport);
}

#define LINK_ROWS(X)                                                    \
	X("up", "gauge", info.state == TERN_LINK_UP)                    \
	X("channels", "gauge", info.channels)                           \
	X("lanes", "gauge", info.lanes)                                 \
	X("in_flight_bytes", "gauge", info.in_flight)                   \
	X("operations_total", "counter", info.operations)               \
	X("operations_failed_total", "counter", info.operations_failed) \
	X("messages_sent_total", "counter", info.messages_sent)         \
	X("messages_received_total", "counter", info.messages_received) \
	X("credit_waits_total", "counter", info.credit_waits)           \
	X("window_waits_total", "counter", info.window_waits)           \
	X("recoveries_total", "counter", info.recoveries)               \
	X("fallbacks_total", "counter", info.fallbacks)

static void add_links(tern_http *http, tn_str *out)
{
	link_rows l = {0};

	tern_ctx_links(http->ctx, 0, on_link, &l);
#define ROWS(name, type, value)                                                            \
	tn_str_addf(out, "# TYPE tern_peer_%s %s\n", name, type);                          \
	for (uint64_t i = 0; i < l.n; i++)                                                 \
		tn_str_addf(out, "tern_peer_%s{%s} %" PRIu64 "\n", name, l.rows[i].labels, \
			    (uint64_t)(l.rows[i].value));
	LINK_ROWS(ROWS)
#undef ROWS
	free(l.rows);
}

static void own_row(const char *name, const char *labels, double value, void *arg)
{
	tn_str_addf(arg, labels[0] ? "%s{%s} %.17g\n" : "%s%s %.17g\n", name, labels, value);
}

/* A bucket of Prometheus has all that are shorter as well. */
static void on_latency(const tern_latency *l, void *arg)
{
	uint64_t below = 0;
	tn_str *out = arg;

	for (unsigned i = 0; i + 1 < TERN_LATENCY_BUCKETS; i++) {
		below += l->buckets[i];
		tn_str_addf(out, "tern_latency_seconds_bucket{operation=\"%s\",le=\"%.9g\"} %" PRIu64 "\n",
			    l->kind, (double)(UINT64_C(1) << (i + 7)) * 1e-9, below);
	}
	tn_str_addf(out, "tern_latency_seconds_bucket{operation=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", l->kind,
		    l->count);
	tn_str_addf(out, "tern_latency_seconds_sum{operation=\"%s\"} %.9f\n", l->kind,
		    (double)l->sum_ns * 1e-9);
	tn_str_addf(out, "tern_latency_seconds_count{operation=\"%s\"} %" PRIu64 "\n", l->kind, l->count);
}

static void on_quantiles(const tern_latency *l, void *arg)
{
	const struct {
		const char *quantile;
		uint64_t ns;
	} rows[] = {{"0.5", l->p50_ns}, {"0.99", l->p99_ns}, {"0.999", l->p999_ns}, {"1", l->max_ns}};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		tn_str_addf(arg, "tern_latency_quantile_seconds{operation=\"%s\",quantile=\"%s\"} %.9f\n",
			    l->kind, rows[i].quantile, (double)rows[i].ns * 1e-9);
}

typedef struct waiting {
	uint64_t count, oldest_ns;
} waiting;

static void on_wait(const tern_wait *wait, void *arg)
{
	waiting *w = arg;

	w->count += wait->count;
	w->oldest_ns = TN_MAX(w->oldest_ns, wait->since_ns);
}

static void add_waits(tern_http *http, tn_str *out)
{
	waiting w = {0};

	tern_ctx_waits(http->ctx, on_wait, &w);
	tn_str_addf(out, "# TYPE tern_waits gauge\ntern_waits %" PRIu64 "\n", w.count);
	tn_str_addf(out, "# TYPE tern_longest_wait_seconds gauge\ntern_longest_wait_seconds %.9f\n",
		    (double)w.oldest_ns * 1e-9);
}

void tn_http_metrics(tern_http *http, tn_str *out)
{
	char name[280], address[200];

	label(name, sizeof(name), "name", tern_ctx_name(http->ctx));
	label(address, sizeof(address), "address", tern_ctx_address(http->ctx));
	tn_str_addf(out, "# TYPE tern_build_info gauge\ntern_build_info{version=\"%s\",%s,%s} 1\n",
		    tern_version(), name, address);
	tern_ctx_counters(http->ctx, on_counter, out);
	add_memory(http, out);
	add_links(http, out);
	add_waits(http, out);
	tn_str_add(out, "# HELP tern_latency_seconds How long operations took.\n# TYPE tern_latency_seconds "
			"histogram\n");
	tern_ctx_latencies(http->ctx, on_latency, out);
	tn_str_add(out, "# HELP tern_latency_quantile_seconds Since recording began.\n# TYPE "
			"tern_latency_quantile_seconds gauge\n");
	tern_ctx_latencies(http->ctx, on_quantiles, out);
	if (http->params.rows)
		http->params.rows(own_row, out, http->params.arg);
}
