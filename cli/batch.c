/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: the data order of an epoch is a permutation that depends on seed and epoch alone, so that any
 * number of workers sees the same rows per step: step n of W workers with batch B is rows [n W B, (n+1) W B)
 * of the order, and worker w has the w-th B of them. Threads: one per batcher.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* splitmix64: a small generator with a 64-bit state; the same numbers on every machine. */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static void shuffle(batcher *b, uint64_t epoch)
{
	uint64_t state = b->seed * 0x2545f4914f6cdd1dull + epoch;

	for (uint64_t i = 0; i < b->set->count; i++)
		b->order[i] = (uint32_t)i;
	for (uint64_t i = b->set->count - 1; i > 0; i--) {
		uint64_t j = next_random(&state) % (i + 1);
		uint32_t t = b->order[i];

		b->order[i] = b->order[j];
		b->order[j] = t;
	}
	b->epoch = epoch;
}

void batcher_scale(batcher *b, const dataset *train)
{
	uint64_t n = train->count * train->features, sum = 0, squares = 0;
	double mean, variance;

	for (uint64_t i = 0; i < n; i++) {
		sum += train->images[i];
		squares += (uint64_t)train->images[i] * train->images[i];
	}
	mean = (double)sum / (double)n;
	variance = (double)squares / (double)n - mean * mean;
	b->mean = (float)mean;
	b->scale = (float)(1.0 / sqrt(variance > 1 ? variance : 1));
}

bool batcher_init(batcher *b, const dataset *set, const train_options *o)
{
	*b = (batcher){
		.set = set, .batch = o->batch, .workers = o->workers, .worker = o->index, .seed = o->seed};
	b->order = calloc(set->count, sizeof(*b->order));
	b->images = calloc(b->batch * set->features, sizeof(*b->images));
	b->labels = calloc(b->batch, sizeof(*b->labels));
	if (!b->order || !b->images || !b->labels)
		return false;
	shuffle(b, 0);
	return true;
}

static void fill_row(batcher *b, uint64_t i, uint64_t row)
{
	const uint8_t *src = b->set->images + row * b->set->features;
	float *dst = b->images + i * b->set->features;

	for (uint64_t k = 0; k < b->set->features; k++)
		dst[k] = ((float)src[k] - b->mean) * b->scale;
	b->labels[i] = b->set->labels[row];
}

void batcher_fill(batcher *b, uint64_t step)
{
	uint64_t per_step = b->batch * b->workers;
	uint64_t steps = b->set->count / per_step; /* of an epoch */
	uint64_t first = step % steps * per_step + b->worker * b->batch;

	if (step / steps != b->epoch)
		shuffle(b, step / steps);
	for (uint64_t i = 0; i < b->batch; i++)
		fill_row(b, i, b->order[first + i]);
}

void batcher_rows(batcher *b, uint64_t first)
{
	for (uint64_t i = 0; i < b->batch; i++)
		fill_row(b, i, first + i < b->set->count ? first + i : b->set->count - 1);
}

void batcher_fini(batcher *b)
{
	free(b->order);
	free(b->images);
	free(b->labels);
	memset(b, 0, sizeof(*b));
}
