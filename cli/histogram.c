/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times in buckets. See histogram.h.
 */
#include "histogram.h"

#include <math.h>

void histogram_merge(histogram *into, const histogram *from)
{
	into->count += from->count;
	into->sum += from->sum;
	into->max = from->max > into->max ? from->max : into->max;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
}

/* The last time that falls into a bucket. */
static double last_of(unsigned bucket)
{
	unsigned octave = bucket >> HISTOGRAM_FINE;
	uint64_t within = bucket & ((1u << HISTOGRAM_FINE) - 1);

	if (octave == 0)
		return (double)within;
	return (double)((((1ull << HISTOGRAM_FINE) + within + 1) << (octave - 1)) - 1);
}

double histogram_quantile(const histogram *h, double q)
{
	double rank = q * (double)h->count;
	uint64_t seen = 0;

	if (h->count == 0)
		return NAN;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += h->buckets[i];
		if (seen && (double)seen >= rank)
			return last_of(i) < (double)h->max ? last_of(i) : (double)h->max;
	}
	return (double)h->max;
}
