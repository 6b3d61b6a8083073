/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times in buckets, so that millions of them need little memory and percentiles are off by 1/64 at most. May lie in
 * memory that another process reads when the writer is done.
 *
 *   bucket of t = t for t < 64, else 64 per power of two
 *
 * Threads: one writer. Tests: tests/unit/cli/zipf_test.c.
 */
#ifndef CLI_HISTOGRAM_H
#define CLI_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_FINE    6u
#define HISTOGRAM_BUCKETS ((42u - HISTOGRAM_FINE + 1) << HISTOGRAM_FINE) /* to 2^42 ns, more than an hour */

typedef struct histogram {
	uint64_t count, sum, max;
	uint64_t buckets[HISTOGRAM_BUCKETS];
} histogram;

static inline unsigned histogram_bucket(uint64_t t)
{
	unsigned top = t < (1u << HISTOGRAM_FINE) ? HISTOGRAM_FINE - 1 : 63u - (unsigned)__builtin_clzll(t);
	unsigned octave = top - (HISTOGRAM_FINE - 1);
	uint64_t b = octave == 0 ? t
				 : ((uint64_t)octave << HISTOGRAM_FINE) + (t >> (octave - 1)) -
					   (1u << HISTOGRAM_FINE);

	return b < HISTOGRAM_BUCKETS ? (unsigned)b : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add(histogram *h, uint64_t t)
{
	h->buckets[histogram_bucket(t)]++;
	h->count++;
	h->sum += t;
	if (t > h->max)
		h->max = t;
}

void histogram_merge(histogram *into, const histogram *from);
/* The least time that a share q of all does not exceed, [0, 1]; NaN when there are none. */
double histogram_quantile(const histogram *h, double q);

#endif
