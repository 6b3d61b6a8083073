/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a context in words, to be pasted into a report.
 * Threads: any. Tests: tests/unit/channel/test_watch.c.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include <tern/mem.h>
#include <tern/watch.h>

#include "channel/ctx_impl.h"

typedef struct report {
	void (*line)(const char *text, void *arg);
	void *arg;
} report;

static void say(const report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(const report *r, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	r->line(text, r->arg);
}

/* A dump has many lines. */
static void say_lines(const report *r, const char *text)
{
	while (*text) {
		const char *end = strchrnul(text, '\n');

		say(r, "%.*s", (int)(end - text), text);
		text = *end ? end + 1 : end;
	}
}

static void on_link(const tern_link_info *info, void *arg)
{
	static const char *const states[] = {"connecting", "up", "closing", "down"};

	say(arg, "link to %s at %s over %s: %s", info->peer_name[0] ? info->peer_name : "?",
	    info->peer_address, info->transport, (unsigned)info->state < 4 ? states[info->state] : "?");
	say_lines(arg, info->dump);
	say(arg, "%s", "");
}

static void on_wait(const tern_wait *wait, void *arg)
{
	say(arg, "  %s%s%s, for %.3f s (%" PRIu64 ")", wait->what, wait->whom[0] ? " at " : "", wait->whom,
	    (double)wait->since_ns * 1e-9, wait->count);
}

static void on_latency(const tern_latency *l, void *arg)
{
	say(arg, "  %s: %" PRIu64 ", p50 %.1f us, p99 %.1f us, p99.9 %.1f us, longest %.1f us", l->kind,
	    l->count, (double)l->p50_ns * 1e-3, (double)l->p99_ns * 1e-3, (double)l->p999_ns * 1e-3,
	    (double)l->max_ns * 1e-3);
}

static void on_counter(const char *name, uint64_t value, void *arg)
{
	if (value)
		say(arg, "  %s %" PRIu64, name, value);
}

void tern_ctx_report(tern_ctx *ctx, void (*line)(const char *text, void *arg), void *arg)
{
	report r = {line, arg};
	tern_mem_stats m;

	if (tn_ctx_enter(ctx) != TERN_OK)
		return;
	tern_mem_stats_get(tern_ctx_mem(ctx), &m);
	say(&r, "tern %s, %s at %s", tern_version(), tern_ctx_name(ctx), tern_ctx_address(ctx));
	say(&r,
	    "memory: %" PRIu64 " of %" PRIu64 " bytes in use, %" PRIu64 " blocks, %" PRIu64 " extents, "
	    "%" PRIu64 " registrations",
	    m.used_bytes, m.committed_bytes, m.blocks, m.extents, m.registrations);
	say(&r, "%s", "");
	tern_ctx_links(ctx, TERN_LINKS_DUMP, on_link, &r);
	say(&r, "what waits");
	tern_ctx_waits(ctx, on_wait, &r);
	say(&r, "latencies");
	tern_ctx_latencies(ctx, on_latency, &r);
	say(&r, "counters that are not 0");
	tern_ctx_counters(ctx, on_counter, &r);
}
