/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What takes how long: spans of time by kind ("rpc.call"), as histograms since recording began and as the latest ones in
 * a ring. Nothing is recorded before tn_spans_start(); until then a place that could record costs one load and a branch.
 *
 *	tn_span_kind *calls = tn_spans_kind(spans, "rpc.call");            once
 *	if (tn_spans_on(spans))
 *		tn_spans_add(spans, calls, began_ns, now_ns, method);
 *
 *   histogram: 8 buckets to a power of two from 64 ns on, so that a percentile is off by at most 1/16 of its value
 *   ring:      a slot's number is odd while it is written and tells which span it holds after that; who reads a slot
 *              that was written meanwhile passes over it
 *
 * Threads: any; adding takes no lock. Tests: tests/unit/base/span_test.c.
 */
#ifndef TN_BASE_SPAN_H
#define TN_BASE_SPAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

#include "base/counters.h"

#define TN_SPAN_KINDS    32u
#define TN_SPAN_SUB      3u /* bits of buckets to a power of two */
#define TN_SPAN_FIRST    6u /* 2^6 ns: what is below is in bucket 0 */
#define TN_SPAN_BUCKETS  ((40u - TN_SPAN_FIRST) << TN_SPAN_SUB)
#define TN_SPANS_DEFAULT 4096u
#define TN_SPANS_MAX     (1u << 20)

typedef struct tn_span_kind {
	_Atomic(const char *) name; /* NULL: free */
	tn_counter sum_ns, max_ns;
	tn_counter buckets[TN_SPAN_BUCKETS];
} tn_span_kind;

typedef struct tn_span_slot {
	_Atomic uint64_t number; /* 2 * n + 2 holds span n; odd: being written */
	_Atomic uint64_t start_ns, duration_ns, key;
	_Atomic uint32_t kind, thread;
} tn_span_slot;

typedef struct tn_spans {
	_Atomic bool on;
	_Atomic uint64_t next; /* number of the next span */
	uint64_t mask;
	tn_span_slot *ring;
	tn_span_kind kinds[TN_SPAN_KINDS];
} tn_spans;

/* Zeroed memory is a tn_spans that does not record. */
void tn_spans_fini(tn_spans *spans);
/* Record from now on, and keep the latest `count` (0: TN_SPANS_DEFAULT; up to a power of two). Later calls change nothing.
   One thread at a time. TERN_E_NOMEM, TERN_E_INVALID (more than TN_SPANS_MAX). */
tern_status tn_spans_start(tn_spans *spans, uint64_t count);

static inline bool tn_spans_on(const tn_spans *spans)
{
	return atomic_load_explicit(&spans->on, memory_order_acquire);
}

/* The kind of a name, which must live as long as the program. The last one if there are too many. */
tn_span_kind *tn_spans_kind(tn_spans *spans, const char *name);
/* Only when tn_spans_on(). key: what tells it from others of its kind, like the number of a method. */
void tn_spans_add(tn_spans *spans, tn_span_kind *kind, uint64_t start_ns, uint64_t end_ns, uint64_t key);

/* ---- reading ---- */

/* Longest duration that bucket i counts, exclusive; UINT64_MAX for the last one. */
uint64_t tn_span_bucket_end(unsigned i);
/* The upper end of the bucket that holds the given fraction (0..1) of `buckets`; 0 if they are empty. */
uint64_t tn_span_at(const uint64_t buckets[TN_SPAN_BUCKETS], double fraction);

typedef struct tn_span {
	const char *name;
	uint64_t number, start_ns, duration_ns, key;
	uint32_t thread; /* of the OS, who recorded it */
} tn_span;
/* Span n into *out; false: it was overwritten, or is not there yet. */
bool tn_spans_get(const tn_spans *spans, uint64_t n, tn_span *out);
/* Numbers of the oldest one that may be there and of the next one. */
void tn_spans_range(const tn_spans *spans, uint64_t *first, uint64_t *next);

#endif
