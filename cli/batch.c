/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: the data order of an epoch is a permutation that depends on seed and epoch alone, so that any
 * number of workers sees the same rows per step: step n of W workers with batch B is rows [n W B, (n+1) W B)
 * of the order, and worker w has the w-th B of them.
 *
 * Sentences differ in length: within stretches of 16 steps they are ordered by length, and the steps of a stretch are put in
 * an order by lot again. All workers use as many places as the longest sentence of the step needs, in fours: what one worker
 * pads the others do too. Threads: one per batcher.
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

#define STRETCH 16u /* steps */
#define BUCKET  4u  /* lengths are multiples of it */

static int by_length(const void *a, const void *c, void *length)
{
	const uint16_t *of = length;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)c;

	if (of[x] != of[y])
		return of[x] < of[y] ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* Swap steps i and j of an order. */
static void swap_steps(uint32_t *order, uint64_t rows, uint64_t i, uint64_t j)
{
	for (uint64_t k = 0; k < rows && i != j; k++) {
		uint32_t t = order[i * rows + k];

		order[i * rows + k] = order[j * rows + k];
		order[j * rows + k] = t;
	}
}

static void order_by_length(batcher *b, uint64_t *state)
{
	uint64_t rows = b->batch * b->workers, steps = b->set->count / rows, n;

	for (uint64_t at = 0; at < steps; at += n) {
		uint32_t *order = b->order + at * rows;

		n = steps - at < STRETCH ? steps - at : STRETCH;
		qsort_r(order, n * rows, sizeof(*order), by_length, b->set->length);
		for (uint64_t i = n - 1; i > 0; i--)
			swap_steps(order, rows, i, next_random(state) % (i + 1));
	}
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
	if (b->set->length)
		order_by_length(b, &state);
	b->epoch = epoch;
}

void batcher_scale(batcher *b, const dataset *train)
{
	uint64_t n = train->count * train->features, sum = 0, squares = 0;
	double mean, variance;

	if (train->steps)
		return;
	for (uint64_t i = 0; i < n; i++) {
		sum += train->images[i];
		squares += (uint64_t)train->images[i] * train->images[i];
	}
	mean = (double)sum / (double)n;
	variance = (double)squares / (double)n - mean * mean;
	b->mean = (float)mean;
	b->scale = (float)(1.0 / sqrt(variance > 1 ? variance : 1));
}

static bool make_buffers(batcher *b)
{
	const dataset *set = b->set;
	bool ok = true;

	for (unsigned i = 0; i < set->ports && ok; i++) {
		b->tokens[i] = calloc(b->batch * set->steps, sizeof(int32_t));
		ok = b->tokens[i] != NULL;
	}
	if (set->steps)
		return ok;
	b->images = calloc(b->batch * set->features, sizeof(*b->images));
	b->labels = calloc(b->batch, sizeof(*b->labels));
	return b->images && b->labels;
}

bool batcher_init(batcher *b, const dataset *set, const train_options *o)
{
	*b = (batcher){.set = set,
		       .batch = o->batch,
		       .workers = o->workers,
		       .worker = o->index,
		       .seed = o->seed,
		       .steps = set->steps,
		       .stages = o->stages > 1};
	b->order = calloc(set->count, sizeof(*b->order));
	if (!b->order || !make_buffers(b))
		return false;
	shuffle(b, 0);
	return true;
}

/* ---- rows ---- */

static void fill_image(batcher *b, uint64_t i, uint64_t row)
{
	const uint8_t *src = b->set->images + row * b->set->features;
	float *dst = b->images + i * b->set->features;

	for (uint64_t k = 0; k < b->set->features; k++)
		dst[k] = ((float)src[k] - b->mean) * b->scale;
	b->labels[i] = b->set->labels[row];
}

static void fill_sequence(batcher *b, uint64_t i, uint64_t row)
{
	const dataset *set = b->set;

	for (unsigned p = 0; p < set->ports; p++) {
		uint64_t skip = set->port[p].at_end ? set->steps - b->steps : 0;

		memcpy(b->tokens[p] + i * b->steps, set->port[p].rows + row * set->steps + skip,
		       b->steps * sizeof(int32_t));
	}
}

static void fill_row(batcher *b, uint64_t i, uint64_t row)
{
	if (b->set->steps)
		fill_sequence(b, i, row);
	else
		fill_image(b, i, row);
}

static void make_room(uint64_t *steps, const dataset *set, uint64_t row)
{
	uint64_t needs = (set->length[row] + BUCKET - 1) / BUCKET * BUCKET;

	*steps = needs > *steps ? needs : *steps;
	*steps = *steps > set->steps ? set->steps : *steps;
}

void batcher_fill(batcher *b, uint64_t step)
{
	uint64_t per_step = b->batch * b->workers;
	uint64_t steps = b->set->count / per_step; /* of an epoch */
	uint64_t first = step % steps * per_step;

	if (step / steps != b->epoch)
		shuffle(b, step / steps);
	if (b->set->length) {
		b->steps = 0;
		for (uint64_t i = 0; i < per_step; i++)
			make_room(&b->steps, b->set, b->order[first + i]);
	}
	first += b->worker * b->batch;
	for (uint64_t i = 0; i < b->batch; i++)
		fill_row(b, i, b->order[first + i]);
}

/* Row i counts nothing. */
static void drop_targets(batcher *b, uint64_t i)
{
	int32_t *targets = b->tokens[b->set->ports - 1] + i * b->steps;

	for (uint64_t k = 0; k < b->steps; k++)
		targets[k] = DATASET_NOTHING;
}

void batcher_rows(batcher *b, uint64_t first, uint64_t end, uint64_t stride)
{
	uint64_t last = (end - 1) * stride;

	if (b->set->length) {
		b->steps = 0;
		for (uint64_t i = first; i < end && i < first + b->batch; i++)
			make_room(&b->steps, b->set, i * stride);
	}
	for (uint64_t i = 0; i < b->batch; i++) {
		fill_row(b, i, first + i < end ? (first + i) * stride : last);
		if (b->set->steps && first + i >= end)
			drop_targets(b, i);
	}
}

uint64_t batcher_targets(const batcher *b)
{
	const int32_t *targets = b->tokens[b->set->ports - 1];
	uint64_t n = 0;

	for (uint64_t i = 0; i < b->batch * b->steps; i++)
		n += targets[i] != DATASET_NOTHING;
	return n;
}

/* ---- into a session ---- */

/* A stage has only some of the ports: what is missing everywhere is noticed by the step. */
static tern_status here(const batcher *b, tern_status status)
{
	return status == TERN_E_NOT_FOUND && b->stages ? TERN_OK : status;
}

static tern_status feed_images(const batcher *b, tern_session *session, int eval)
{
	tern_status status = tern_session_feed(session, eval, "images", b->images,
					       b->batch * b->set->features * sizeof(*b->images));

	status = here(b, status);
	if (status == TERN_OK)
		status = tern_session_feed(session, eval, "labels", b->labels, b->batch * sizeof(*b->labels));
	return here(b, status);
}

static tern_status feed_sequences(const batcher *b, tern_session *session, int eval)
{
	tern_status status = TERN_OK;

	if (b->set->length)
		status = here(b, tern_session_bind(session, eval, "steps", b->steps));
	for (unsigned i = 0; i < b->set->ports && status == TERN_OK; i++)
		status = here(b, tern_session_feed(session, eval, b->set->port[i].name, b->tokens[i],
						   b->batch * b->steps * sizeof(int32_t)));
	return status;
}

tern_status batcher_feed(batcher *b, tern_session *session, int eval)
{
	tern_status status;

	if (b->fed && b->fed_eval == eval && b->fed_steps == b->steps)
		return TERN_OK;
	status = b->set->steps ? feed_sequences(b, session, eval) : feed_images(b, session, eval);
	b->fed = status == TERN_OK;
	b->fed_eval = eval;
	b->fed_steps = b->steps;
	return status;
}

void batcher_fini(batcher *b)
{
	free(b->order);
	free(b->images);
	free(b->labels);
	for (unsigned i = 0; i < DATASET_PORTS; i++)
		free(b->tokens[i]);
	memset(b, 0, sizeof(*b));
}
