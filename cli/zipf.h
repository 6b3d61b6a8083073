/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers of the benches and generated data sets: a small generator, and ranks by Zipf's law.
 *
 *   P(rank k) ~ 1 / k^s for k in 1 .. n; s = 0 is uniform. Drawn by rejection and inversion (Hoermann and Derflinger
 *   1996, "Rejection-inversion to generate variates from monotone discrete distributions"): no table, any n.
 *
 * Threads: one per generator. Tests: tests/unit/cli/zipf_test.c.
 */
#ifndef CLI_ZIPF_H
#define CLI_ZIPF_H

#include <stdint.h>

typedef struct rng {
	uint64_t state;
} rng;

/* splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t rng_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static inline uint64_t rng_u64(rng *r)
{
	return rng_mix(r->state += 0x9e3779b97f4a7c15ull);
}

/* Streams of different (seed, stream) have nothing to do with each other. */
static inline rng rng_make(uint64_t seed, uint64_t stream)
{
	return (rng){rng_mix(rng_mix(seed + 0x9e3779b97f4a7c15ull) + stream)};
}

/* [0, 1) */
static inline double rng_real(rng *r)
{
	return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

/* [0, n), n > 0 */
static inline uint64_t rng_below(rng *r, uint64_t n)
{
	return (uint64_t)(((unsigned __int128)rng_u64(r) * n) >> 64);
}

/* Mean 0, deviation 1. */
double rng_normal(rng *r);

typedef struct zipf {
	uint64_t n;
	double s, first, last, squeeze;
} zipf;

/* n >= 1, s >= 0 */
void zipf_init(zipf *z, uint64_t n, double s);
/* A rank, 0 .. n-1: 0 is the most frequent. */
uint64_t zipf_draw(const zipf *z, rng *r);
/* The key of a rank: different ones for different ranks, scattered over all of u64. */
static inline uint64_t zipf_key(uint64_t rank)
{
	return rng_mix(rank + 0x7465726e5a697066ull);
}

#endif
