/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See span.h. Threads: any. Tests: tests/unit/base/span_test.c.
 */
#include "base/span.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/os.h"

void tn_spans_fini(tn_spans *spans)
{
	atomic_store(&spans->on, false);
	free(spans->ring);
	spans->ring = NULL;
}

tern_status tn_spans_start(tn_spans *spans, uint64_t count)
{
	uint64_t room = 16;

	if (tn_spans_on(spans))
		return TERN_OK;
	if (count > TN_SPANS_MAX)
		return tn_fail(TERN_E_INVALID, "%llu spans: at most %u can be kept",
			       (unsigned long long)count, TN_SPANS_MAX);
	while (room < (count ? count : TN_SPANS_DEFAULT))
		room *= 2;
	spans->ring = calloc(room, sizeof(*spans->ring));
	if (!spans->ring)
		return tn_fail(TERN_E_NOMEM, "no memory to keep %llu spans", (unsigned long long)room);
	spans->mask = room - 1;
	atomic_store_explicit(&spans->on, true, memory_order_release);
	return TERN_OK;
}

tn_span_kind *tn_spans_kind(tn_spans *spans, const char *name)
{
	for (unsigned i = 0; i < TN_SPAN_KINDS - 1; i++) {
		const char *there = NULL;

		if (atomic_compare_exchange_strong(&spans->kinds[i].name, &there, name) ||
		    strcmp(there, name) == 0)
			return &spans->kinds[i];
	}
	atomic_store(&spans->kinds[TN_SPAN_KINDS - 1].name, "other");
	return &spans->kinds[TN_SPAN_KINDS - 1];
}

/* ---- histograms ---- */

static unsigned bucket_of(uint64_t ns)
{
	unsigned top, i;

	if (ns < 1u << TN_SPAN_FIRST)
		return 0;
	top = 63u - (unsigned)__builtin_clzll(ns);
	i = ((top - TN_SPAN_FIRST) << TN_SPAN_SUB) +
	    (unsigned)(ns >> (top - TN_SPAN_SUB) & ((1u << TN_SPAN_SUB) - 1));
	return TN_MIN(i, TN_SPAN_BUCKETS - 1);
}

uint64_t tn_span_bucket_end(unsigned i)
{
	uint64_t power = UINT64_C(1) << (TN_SPAN_FIRST + (i >> TN_SPAN_SUB));

	if (i >= TN_SPAN_BUCKETS - 1)
		return UINT64_MAX;
	return power + (power >> TN_SPAN_SUB) * ((i & ((1u << TN_SPAN_SUB) - 1)) + 1);
}

uint64_t tn_span_at(const uint64_t buckets[TN_SPAN_BUCKETS], double fraction)
{
	uint64_t all = 0, seen = 0;

	for (unsigned i = 0; i < TN_SPAN_BUCKETS; i++)
		all += buckets[i];
	for (unsigned i = 0; i < TN_SPAN_BUCKETS; i++) {
		seen += buckets[i];
		if (seen && (double)seen >= fraction * (double)all)
			return tn_span_bucket_end(i);
	}
	return 0;
}

/* ---- the ring ---- */

static uint32_t own_id(void)
{
	static _Thread_local uint32_t id;

	if (id == 0)
		id = (uint32_t)tn_os_thread_id();
	return id;
}

void tn_spans_add(tn_spans *spans, tn_span_kind *kind, uint64_t start_ns, uint64_t end_ns, uint64_t key)
{
	uint64_t duration = end_ns > start_ns ? end_ns - start_ns : 0;
	uint64_t n = atomic_fetch_add_explicit(&spans->next, 1, memory_order_relaxed);
	tn_span_slot *slot = &spans->ring[n & spans->mask];
	uint64_t before = atomic_load_explicit(&slot->number, memory_order_relaxed);

	tn_count(&kind->sum_ns, duration);
	tn_count(&kind->buckets[bucket_of(duration)], 1);
	tn_count_max(&kind->max_ns, duration);
	/* A thread that was overtaken by a whole round, or meets one that is still at it, leaves its span out of the ring. */
	if (before & 1 || before > 2 * n ||
	    !atomic_compare_exchange_strong_explicit(&slot->number, &before, 2 * n + 1, memory_order_acq_rel,
						     memory_order_relaxed))
		return;
	atomic_store_explicit(&slot->start_ns, start_ns, memory_order_release);
	atomic_store_explicit(&slot->duration_ns, duration, memory_order_release);
	atomic_store_explicit(&slot->key, key, memory_order_release);
	atomic_store_explicit(&slot->kind, (uint32_t)(kind - spans->kinds), memory_order_release);
	atomic_store_explicit(&slot->thread, own_id(), memory_order_release);
	atomic_store_explicit(&slot->number, 2 * n + 2, memory_order_release);
}

bool tn_spans_get(const tn_spans *spans, uint64_t n, tn_span *out)
{
	const tn_span_slot *slot = &spans->ring[n & spans->mask];
	uint32_t kind;

	if (atomic_load_explicit(&slot->number, memory_order_acquire) != 2 * n + 2)
		return false;
	/* Acquire each: none of them moves behind the second look at the number. */
	out->number = n;
	out->start_ns = atomic_load_explicit(&slot->start_ns, memory_order_acquire);
	out->duration_ns = atomic_load_explicit(&slot->duration_ns, memory_order_acquire);
	out->key = atomic_load_explicit(&slot->key, memory_order_acquire);
	kind = atomic_load_explicit(&slot->kind, memory_order_acquire);
	out->thread = atomic_load_explicit(&slot->thread, memory_order_acquire);
	if (atomic_load_explicit(&slot->number, memory_order_acquire) != 2 * n + 2)
		return false;
	out->name = atomic_load_explicit(&spans->kinds[kind].name, memory_order_acquire);
	return true;
}

void tn_spans_range(const tn_spans *spans, uint64_t *first, uint64_t *next)
{
	uint64_t room = spans->ring ? spans->mask + 1 : 0;

	*next = atomic_load_explicit(&spans->next, memory_order_acquire);
	*first = *next > room ? *next - room : 0;
}
