/* SPDX-License-Identifier: Apache-2.0 */
/*
 * <tern/watch.h>: what was recorded, and what waits. Layers above add to both by their slots.
 * Threads: any. Tests: tests/unit/channel/test_watch.c.
 */
#include <tern/watch.h>

#include "base/fail.h"
#include "channel/ctx_impl.h"

#define PER_POWER (1u << TN_SPAN_SUB)

_Static_assert(TERN_LATENCY_BUCKETS == TN_SPAN_BUCKETS / PER_POWER, "one public bucket to a power of two");

tn_spans *tn_ctx_spans(tern_ctx *ctx)
{
	return &ctx->spans;
}

tern_status tern_ctx_record(tern_ctx *ctx, uint64_t spans)
{
	tern_status status;

	TN_TRY(tn_ctx_enter(ctx));
	tn_lock_take(&ctx->table_lock);
	status = tn_spans_start(&ctx->spans, spans);
	tn_lock_drop(&ctx->table_lock);
	return status;
}

static void latency_of(const tn_span_kind *kind, const char *name, tern_latency *out)
{
	uint64_t buckets[TN_SPAN_BUCKETS];

	*out = (tern_latency){.kind = name};
	for (unsigned i = 0; i < TN_SPAN_BUCKETS; i++) {
		buckets[i] = tn_counter_read(&kind->buckets[i]);
		out->buckets[i / PER_POWER] += buckets[i];
		out->count += buckets[i];
	}
	out->sum_ns = tn_counter_read(&kind->sum_ns);
	out->max_ns = tn_counter_read(&kind->max_ns);
	/* Ends of buckets lie above the longest one. */
	out->p50_ns = TN_MIN(tn_span_at(buckets, 0.5), out->max_ns);
	out->p99_ns = TN_MIN(tn_span_at(buckets, 0.99), out->max_ns);
	out->p999_ns = TN_MIN(tn_span_at(buckets, 0.999), out->max_ns);
}

void tern_ctx_latencies(tern_ctx *ctx, void (*fn)(const tern_latency *latency, void *arg), void *arg)
{
	tern_latency latency;

	if (tn_ctx_enter(ctx) != TERN_OK || !tn_spans_on(&ctx->spans))
		return;
	for (unsigned i = 0; i < TN_SPAN_KINDS; i++) {
		const char *name = atomic_load(&ctx->spans.kinds[i].name);

		if (!name)
			continue;
		latency_of(&ctx->spans.kinds[i], name, &latency);
		if (latency.count)
			fn(&latency, arg);
	}
}

uint64_t tern_ctx_spans(tern_ctx *ctx, uint64_t since, void (*fn)(const tern_span *span, void *arg),
			void *arg)
{
	uint64_t first, next;
	tn_span s;

	if (tn_ctx_enter(ctx) != TERN_OK || !tn_spans_on(&ctx->spans))
		return since;
	tn_spans_range(&ctx->spans, &first, &next);
	for (uint64_t n = TN_MAX(first, since); n < next; n++) {
		if (!tn_spans_get(&ctx->spans, n, &s))
			continue;
		fn(&(tern_span){.kind = s.name,
				.number = s.number,
				.start_ns = s.start_ns,
				.duration_ns = s.duration_ns,
				.key = s.key,
				.thread = s.thread},
		   arg);
	}
	return TN_MAX(next, since);
}

void tern_ctx_waits(tern_ctx *ctx, void (*fn)(const tern_wait *wait, void *arg), void *arg)
{
	if (tn_ctx_enter(ctx) != TERN_OK)
		return;
	for (int i = 0; i < TN_SLOT_COUNT; i++) {
		tn_ctx_slot *slot = tn_ctx_slot_get(ctx, (tn_ctx_slot_id)i);

		if (slot && slot->waits)
			slot->waits(slot, fn, arg);
	}
}
