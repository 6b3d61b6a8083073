/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of u64 values (latencies in ns) in fixed memory: exact below 64, then 32 buckets per power of
 * two, so a percentile is off by at most 1/64 of its value. min, max, sum and count are exact.
 *
 *   index(v) = v                              v < 64
 *            = (e - 5) * 32 + (v >> (e - 5))  e = index of v's top bit
 *
 * Threads: one writer; merge per-thread histograms. Tests: tests/unit/base/hist_test.c.
 */
#ifndef TN_BASE_HIST_H
#define TN_BASE_HIST_H

#include <stdint.h>

#define TN_HIST_SUB_BITS 5
#define TN_HIST_BUCKETS  ((64 - TN_HIST_SUB_BITS + 1) << TN_HIST_SUB_BITS)

typedef struct tn_hist {
	uint64_t count;
	uint64_t sum; /* wraps only past 2^64 ns in all */
	uint64_t min; /* UINT64_MAX while empty */
	uint64_t max;
	uint64_t buckets[TN_HIST_BUCKETS];
} tn_hist;

void tn_hist_init(tn_hist *hist);
void tn_hist_add(tn_hist *hist, uint64_t value);
void tn_hist_merge(tn_hist *into, const tn_hist *from);
/* The value that `fraction` (0..1) of the values do not exceed; 0 if empty. tn_hist_at(h, 0.99) is p99. */
uint64_t tn_hist_at(const tn_hist *hist, double fraction);
double tn_hist_mean(const tn_hist *hist);

#endif
