/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context as JSON for the page and for scripts, and as text for reports.
 *
 * Threads: the daemon's. Tests: tests/e2e/http_test.py.
 */
#include "http/http.h"

const char *tn_http_link_state(tern_link_state state)
{
	static const char *const names[] = {"connecting", "up", "closing", "down"};

	return (unsigned)state < 4 ? names[state] : "?";
}

static void on_counter(const char *name, uint64_t value, void *arg)
{
	tn_json_key(arg, name);
	tn_json_u64(arg, value);
}

static void number(tn_json *j, const char *key, uint64_t value)
{
	tn_json_key(j, key);
	tn_json_u64(j, value);
}

static void words(tn_json *j, const char *key, const char *value)
{
	tn_json_key(j, key);
	tn_json_string(j, value);
}

static void on_link(const tern_link_info *info, void *arg)
{
	tn_json *j = arg;

	tn_json_object(j);
	words(j, "peer", info->peer_name);
	words(j, "address", info->peer_address);
	words(j, "transport", info->transport);
	words(j, "state", tn_http_link_state(info->state));
	number(j, "channels", info->channels);
	number(j, "lanes", info->lanes);
	number(j, "in_flight_bytes", info->in_flight);
	number(j, "operations", info->operations);
	number(j, "operations_failed", info->operations_failed);
	number(j, "messages_sent", info->messages_sent);
	number(j, "messages_received", info->messages_received);
	number(j, "credit_waits", info->credit_waits);
	number(j, "window_waits", info->window_waits);
	number(j, "recoveries", info->recoveries);
	number(j, "fallbacks", info->fallbacks);
	number(j, "returns", info->returns);
	tn_json_end_object(j);
}

static void on_row(const char *name, const char *labels, double value, void *arg)
{
	tn_json *j = arg;

	tn_json_object(j);
	words(j, "name", name);
	words(j, "labels", labels);
	tn_json_key(j, "value");
	tn_json_double(j, value);
	tn_json_end_object(j);
}

static void on_latency(const tern_latency *l, void *arg)
{
	tn_json *j = arg;

	tn_json_object(j);
	words(j, "operation", l->kind);
	number(j, "count", l->count);
	number(j, "sum_ns", l->sum_ns);
	number(j, "p50_ns", l->p50_ns);
	number(j, "p99_ns", l->p99_ns);
	number(j, "p999_ns", l->p999_ns);
	number(j, "max_ns", l->max_ns);
	tn_json_key(j, "buckets");
	tn_json_array(j);
	for (unsigned i = 0; i < TERN_LATENCY_BUCKETS; i++)
		tn_json_u64(j, l->buckets[i]);
	tn_json_end_array(j);
	tn_json_end_object(j);
}

static void on_wait(const tern_wait *wait, void *arg)
{
	tn_json *j = arg;

	tn_json_object(j);
	words(j, "what", wait->what);
	words(j, "whom", wait->whom);
	number(j, "since_ns", wait->since_ns);
	number(j, "count", wait->count);
	tn_json_end_object(j);
}

static void add_memory(tern_http *http, tn_json *j)
{
	tern_mem_stats s;

	tern_mem_stats_get(tern_ctx_mem(http->ctx), &s);
	tn_json_key(j, "memory");
	tn_json_object(j);
	number(j, "limit_bytes", s.limit_bytes);
	number(j, "committed_bytes", s.committed_bytes);
	number(j, "used_bytes", s.used_bytes);
	number(j, "blocks", s.blocks);
	number(j, "extents", s.extents);
	number(j, "registrations", s.registrations);
	number(j, "keys", s.keys);
	tn_json_end_object(j);
}

void tn_http_status(tern_http *http, tn_str *out)
{
	tn_json j;

	tn_json_init(&j, out, 0);
	tn_json_object(&j);
	words(&j, "version", tern_version());
	words(&j, "name", tern_ctx_name(http->ctx));
	words(&j, "address", tern_ctx_address(http->ctx));
	add_memory(http, &j);
	tn_json_key(&j, "links");
	tn_json_array(&j);
	tern_ctx_links(http->ctx, 0, on_link, &j);
	tn_json_end_array(&j);
	tn_json_key(&j, "latencies");
	tn_json_array(&j);
	tern_ctx_latencies(http->ctx, on_latency, &j);
	tn_json_end_array(&j);
	tn_json_key(&j, "waits");
	tn_json_array(&j);
	tern_ctx_waits(http->ctx, on_wait, &j);
	tn_json_end_array(&j);
	tn_json_key(&j, "rows");
	tn_json_array(&j);
	if (http->params.rows)
		http->params.rows(on_row, &j, http->params.arg);
	tn_json_end_array(&j);
	tn_json_key(&j, "counters");
	tn_json_object(&j);
	tern_ctx_counters(http->ctx, on_counter, &j);
	tn_json_end_object(&j);
	tn_json_end_object(&j);
	tn_str_add(out, "\n");
}

/* ---- lines for other programs ---- */

static void wait_line(const tern_wait *wait, void *arg)
{
	tn_str_addf(arg, "%llu\t%llu\t%s\t%s\n", (unsigned long long)wait->since_ns,
		    (unsigned long long)wait->count, wait->whom, wait->what);
}

void tn_http_waits(tern_http *http, tn_str *out)
{
	tern_ctx_waits(http->ctx, wait_line, out);
}

static void on_line(const char *text, void *arg)
{
	tn_str_add(arg, text);
	tn_str_add(arg, "\n");
}

void tn_http_state(tern_http *http, tn_str *out)
{
	tern_ctx_report(http->ctx, on_line, out);
}
