/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine itself can do: a cache line one way between the two cores, and the best of memcpy, string instructions
 * and non-temporal stores between two mapped segments (registered memory of tern, like those that its puts go between).
 *
 * call: a bare ring. Cells of 256 bytes whose first line has the word that is looked at, as many bytes in them as tern's
 * request and answer take with their headers, copied in and out; further lines are asked for while there is nothing.
 *
 * Threads: one on each side, and tern's helper, which sleeps.
 */
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <tern/ctx.h>
#include <tern/mem.h>

#include "harness.h"

static void server(h_env *e)
{
	(void)e;
}

static void *segment(h_env *e, tern_ctx *ctx)
{
	void *p;

	if (tern_mem_alloc(tern_ctx_mem(ctx), e->bytes_max, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			   TERN_MEM_HOST, &p) != TERN_OK)
		h_die(e, "%s", tern_detail());
	memset(p, 1, e->bytes_max);
	return p;
}

static void client(h_env *e)
{
	tern_ctx_params params = {.name = "limit", .listen = ""};
	tern_ctx *ctx;

	if (tern_ctx_create(&params, &ctx) != TERN_OK)
		h_die(e, "%s", tern_detail());
	e->in = segment(e, ctx);
	e->out = segment(e, ctx);
}

#define RING_REQUEST 104u /* bytes of headers */
#define RING_ANSWER  64u
#define RING_BYTES   128u /* of arguments, at most */

static void ring_put(h_env *e, unsigned way, uint64_t i, uint64_t bytes)
{
	static const uint8_t from[RING_REQUEST + RING_BYTES];
	uint8_t *cell = e->shared->cells[way][i % H_CELLS];

	memcpy(cell + 16, from, bytes);
	__atomic_store_n((uint64_t *)(void *)cell, i, __ATOMIC_SEQ_CST);
}

static void ring_take(h_env *e, unsigned way, uint64_t i, uint64_t bytes)
{
	static uint8_t out[RING_REQUEST + RING_BYTES];
	const uint8_t *cell = e->shared->cells[way][i % H_CELLS];

	while (__atomic_load_n((const uint64_t *)(const void *)cell, __ATOMIC_ACQUIRE) != i) {
		__builtin_prefetch(cell + 64);
		__builtin_prefetch(cell + 128);
	}
	memcpy(out, cell + 16, bytes);
	__asm__ volatile("" ::"r"(out) : "memory");
}

/* i: from 1 on, over all pieces of work. */
static uint64_t ring_at;

static void ring_serve(h_env *e, const h_work *w)
{
	for (uint64_t i = 0; i < w->count; i++) {
		ring_take(e, 0, ++ring_at, RING_REQUEST + w->size);
		ring_put(e, 1, ring_at, RING_ANSWER + w->size);
	}
}

static void ring_call(h_env *e, const h_work *w)
{
	ring_put(e, 0, ++ring_at, RING_REQUEST + w->size);
	ring_take(e, 1, ring_at, RING_ANSWER + w->size);
}

static void serve(h_env *e, const h_work *w)
{
	static uint64_t value;

	if (w->op == H_CALL)
		ring_serve(e, w);

	for (uint64_t i = 0; w->op == H_LINE && i < w->count; i++) {
		value++;
		while (__atomic_load_n(&e->shared->ping, __ATOMIC_ACQUIRE) != value)
			;
		__atomic_store_n(&e->shared->pong, value, __ATOMIC_RELEASE);
	}
}

static void bounce(h_env *e)
{
	static uint64_t value;

	__atomic_store_n(&e->shared->ping, ++value, __ATOMIC_RELEASE);
	while (__atomic_load_n(&e->shared->pong, __ATOMIC_ACQUIRE) != value)
		;
}

#ifdef __SSE2__
static void copy_non_temporal(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t i = 0;

	for (; i + 64 <= bytes; i += 64)
		for (unsigned k = 0; k < 64; k += 16)
			_mm_stream_si128((__m128i *)(void *)(to + i + k),
					 _mm_loadu_si128((const __m128i *)(const void *)(from + i + k)));
	_mm_sfence();
	memcpy(to + i, from + i, bytes - i);
}
#else
#define copy_non_temporal copy_memcpy
#endif

static void copy_memcpy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

#ifdef __x86_64__
static void copy_string(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t words = bytes / 8;

	__asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words)::"memory");
	memcpy(to, from, bytes % 8);
}
#else
#define copy_string copy_memcpy
#endif

typedef void (*copy_fn)(uint8_t *to, const uint8_t *from, uint64_t bytes);

/* Which one is best for a size is found out once. */
static copy_fn best_copy(h_env *e, uint64_t bytes)
{
	static const copy_fn all[] = {copy_memcpy, copy_string, copy_non_temporal};
	copy_fn best = copy_memcpy;
	uint64_t least = UINT64_MAX;

	for (unsigned k = 0; k < 3 && bytes >= 65536; k++) {
		uint64_t begin = h_now();

		all[k](e->in, e->out, bytes);
		all[k](e->in, e->out, bytes);
		if (h_now() - begin < least) {
			least = h_now() - begin;
			best = all[k];
		}
	}
	return best;
}

static void run(h_env *e, const h_work *w)
{
	copy_fn copy = w->op == H_COPY ? best_copy(e, w->size) : NULL;

	for (uint64_t i = 0; i < w->count; i++) {
		if (w->op == H_LINE)
			bounce(e);
		else if (w->op == H_CALL)
			ring_call(e, w);
		else
			copy(e->in, e->out, w->size);
		__asm__ volatile("" ::: "memory");
		h_tick(e);
	}
}

static const char *cannot(const h_env *e, const h_work *w)
{
	(void)e;
	if (w->op == H_CALL && w->depth == 1 && w->size <= RING_BYTES)
		return NULL;
	return w->op < H_LINE ? "line, copy and small calls alone" : NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "limit",
				    .cannot = cannot,
				    .server = server,
				    .client = client,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
