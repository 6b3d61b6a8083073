/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small reproducible generator (splitmix64) for tests, simulation, fault schedules and initial values.
 * Not for secrets: those come from tn_os_random. Pure. Threads: one per object.
 * Tests: tests/unit/base/hist_test.c uses it.
 */
#ifndef TN_BASE_RAND_H
#define TN_BASE_RAND_H

#include <stdint.h>

typedef struct tn_rand {
	uint64_t state;
} tn_rand;

static inline uint64_t tn_rand_next(tn_rand *rand)
{
	uint64_t x = (rand->state += 0x9e3779b97f4a7c15ull);

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* 0 .. bound-1 (bound > 0), by multiplication: unbiased enough for bounds far below 2^64. */
static inline uint64_t tn_rand_below(tn_rand *rand, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)tn_rand_next(rand) * bound) >> 64);
}

/* [0, 1) */
static inline double tn_rand_double(tn_rand *rand)
{
	return (double)(tn_rand_next(rand) >> 11) * 0x1.0p-53;
}

#endif
