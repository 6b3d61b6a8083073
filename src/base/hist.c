/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See hist.h for the bucket formula. Must not allocate.
 * Threads: one writer. Tests: tests/unit/base/hist_test.c.
 */
#include "base/hist.h"

#include <string.h>

#include "base/check.h"

#define SUB (1u << TN_HIST_SUB_BITS)

static unsigned bucket_of(uint64_t value)
{
	unsigned top;

	if (value < 2 * SUB)
		return (unsigned)value;
	top = 63 - (unsigned)__builtin_clzll(value);
	return (top - TN_HIST_SUB_BITS) * SUB + (unsigned)(value >> (top - TN_HIST_SUB_BITS));
}

/* The middle of a bucket's range. */
static uint64_t bucket_value(unsigned bucket)
{
	unsigned shift;
	uint64_t low;

	if (bucket < 2 * SUB)
		return bucket;
	shift = bucket / SUB - 1;
	low = (uint64_t)(bucket % SUB + SUB) << shift;
	return low + ((1ull << shift) >> 1);
}

void tn_hist_init(tn_hist *hist)
{
	memset(hist, 0, sizeof(*hist));
	hist->min = UINT64_MAX;
}

void tn_hist_add(tn_hist *hist, uint64_t value)
{
	unsigned bucket = bucket_of(value);

	TN_ASSERT(bucket < TN_HIST_BUCKETS);
	hist->buckets[bucket]++;
	hist->count++;
	hist->sum += value;
	if (value < hist->min)
		hist->min = value;
	if (value > hist->max)
		hist->max = value;
}

void tn_hist_merge(tn_hist *into, const tn_hist *from)
{
	for (unsigned i = 0; i < TN_HIST_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
	into->count += from->count;
	into->sum += from->sum;
	into->min = TN_MIN(into->min, from->min);
	into->max = TN_MAX(into->max, from->max);
}

uint64_t tn_hist_at(const tn_hist *hist, double fraction)
{
	double want = fraction * (double)hist->count;
	uint64_t rank, seen = 0;

	if (hist->count == 0)
		return 0;
	/* The rank of the value: the smallest one that at least `want` values do not exceed. */
	rank = want >= (double)hist->count ? hist->count : (uint64_t)want;
	if ((double)rank < want || rank == 0)
		rank++;
	for (unsigned i = 0; i < TN_HIST_BUCKETS; i++) {
		seen += hist->buckets[i];
		if (seen >= rank) {
			uint64_t value = bucket_value(i);

			return TN_MAX(hist->min, TN_MIN(value, hist->max));
		}
	}
	return hist->max;
}

double tn_hist_mean(const tn_hist *hist)
{
	return hist->count ? (double)hist->sum / (double)hist->count : 0;
}
