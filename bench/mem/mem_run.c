/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the loops that are timed, in CPU time of their threads: what else runs on the machine disturbs caches, not
 * the clock, and a thread that waits for a lock asleep is not charged for it. The random numbers are drawn before, each block is touched once (its first
 * word), and both sides run the same code through two pointers.
 *
 * Threads: n workers per run, started by a barrier.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "mem_bench.h"

#define DRAWS 65536 /* a power of two: sizes and places, used round and round */
#define LIVE  1024  /* blocks of a thread in BENCH_CHURN */
#define BATCH 256
#define RING  4 /* batches */

typedef struct draws {
	uint32_t bytes[DRAWS];
	uint16_t place[DRAWS];
} draws;

/* Batches on their way from the thread that allocates to the one that frees. */
typedef struct ring {
	_Alignas(128) _Atomic uint64_t tail;
	_Alignas(128) _Atomic uint64_t head;
	_Alignas(128) void *slot[RING][BATCH];
} ring;

typedef struct worker {
	const bench_case *c;
	const bench_allocator *with;
	const draws *d;
	ring *ring; /* BENCH_CROSS */
	bool frees; /* its far end */
	uint64_t blocks, spent;
	pthread_barrier_t *start;
} worker;

uint64_t bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* Log-uniform in [min, max]. */
static draws *draw(const bench_case *c, uint64_t seed)
{
	draws *d = malloc(sizeof(*d));
	unsigned octaves = 0;

	while (c->bytes_min << octaves < c->bytes_max)
		octaves++;
	for (int i = 0; d && i < DRAWS; i++) {
		uint64_t low = c->bytes_min << (octaves ? next(&seed) % octaves : 0);
		uint64_t bytes = octaves ? low + next(&seed) % low : low;

		d->bytes[i] = (uint32_t)(bytes > c->bytes_max ? c->bytes_max : bytes);
		d->place[i] = (uint16_t)(next(&seed) % LIVE);
	}
	return d;
}

/*
 * Each API in its own form. `with` is a copy of the loop: what it holds lies in registers and on the stack, as in a
 * program that calls by name.
 */
static inline void take(const bench_allocator *with, const uint32_t *bytes, uint64_t i, void **block)
{
	if (with->fill)
		with->fill(with->arg, bytes[i % DRAWS], block);
	else
		*block = with->alloc(with->arg, bytes[i % DRAWS]);
	*(volatile uint64_t *)*block = i;
}

static void churn(const worker *w)
{
	const bench_allocator with = *w->with;
	const uint32_t *bytes = w->d->bytes;
	const uint16_t *place = w->d->place;
	void *live[LIVE] = {0};

	for (uint64_t i = 0, blocks = w->blocks; i < blocks; i++) {
		void **at = &live[place[i % DRAWS]];

		if (*at)
			with.release(with.arg, *at);
		take(&with, bytes, i, at);
	}
	for (int i = 0; i < LIVE; i++) {
		if (live[i])
			with.release(with.arg, live[i]);
	}
}

static void batch(const worker *w)
{
	const bench_allocator with = *w->with;
	const uint32_t *bytes = w->d->bytes;
	void *live[BATCH];

	for (uint64_t i = 0, blocks = w->blocks; i < blocks; i += BATCH) {
		for (uint64_t k = 0; k < BATCH; k++)
			take(&with, bytes, i + k, &live[k]);
		for (uint64_t k = 0; k < BATCH; k++)
			with.release(with.arg, live[k]);
	}
}

static void wait_past(const _Atomic uint64_t *word, uint64_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) <= value)
		sched_yield();
}

/* The time in between the batches, waiting, does not count. */
static void cross_alloc(worker *w)
{
	const bench_allocator with = *w->with;
	const uint32_t *bytes = w->d->bytes;
	ring *r = w->ring;

	for (uint64_t i = 0; i < w->blocks / BATCH; i++) {
		void **slot = r->slot[i % RING];
		uint64_t from;

		if (i >= RING)
			wait_past(&r->tail, i - RING);
		from = cpu_now();
		for (uint64_t k = 0; k < BATCH; k++)
			take(&with, bytes, i * BATCH + k, &slot[k]);
		w->spent += cpu_now() - from;
		atomic_store_explicit(&r->head, i + 1, memory_order_release);
	}
}

static void cross_free(worker *w)
{
	const bench_allocator with = *w->with;
	ring *r = w->ring;

	for (uint64_t i = 0; i < w->blocks / BATCH; i++) {
		void **slot = r->slot[i % RING];
		uint64_t from;

		wait_past(&r->head, i);
		from = cpu_now();
		for (uint64_t k = 0; k < BATCH; k++)
			with.release(with.arg, slot[k]);
		w->spent += cpu_now() - from;
		atomic_store_explicit(&r->tail, i + 1, memory_order_release);
	}
}

static void *work(void *arg)
{
	worker *w = arg;
	uint64_t from;

	pthread_barrier_wait(w->start);
	from = cpu_now();
	switch (w->c->pattern) {
	case BENCH_CHURN:
		churn(w);
		break;
	case BENCH_BATCH:
		batch(w);
		break;
	case BENCH_CROSS:
		w->frees ? cross_free(w) : cross_alloc(w);
		return NULL;
	}
	w->spent = cpu_now() - from;
	return NULL;
}

double bench_run(const bench_case *c, const bench_allocator *with, int threads, uint64_t blocks)
{
	worker *w = calloc((size_t)threads, sizeof(*w));
	pthread_t *thread = calloc((size_t)threads, sizeof(*thread));
	pthread_barrier_t start;
	ring *r = NULL;
	double ns = 0;

	pthread_barrier_init(&start, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++) {
		bool second = c->pattern == BENCH_CROSS && i % 2;

		if (c->pattern == BENCH_CROSS && !second)
			r = calloc(1, sizeof(*r));
		w[i] = (worker){.c = c,
				.with = with,
				.d = draw(c, 88172645463325252u + (uint64_t)i),
				.ring = r,
				.frees = second,
				.blocks = blocks,
				.start = &start};
		pthread_create(&thread[i], NULL, work, &w[i]);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < threads; i++) {
		ns += (double)w[i].spent / (double)blocks;
		free((void *)(uintptr_t)w[i].d);
		if (!w[i].frees)
			free(w[i].ring);
	}
	pthread_barrier_destroy(&start);
	free(thread);
	free(w);
	/* Who allocates and who frees share one block. */
	return ns / (c->pattern == BENCH_CROSS ? threads / 2 : threads);
}
