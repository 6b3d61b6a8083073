/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copies of a one-sided transfer: every way over sizes and alignments against plain bytes, with guards
 * on both sides; words are never torn; what follows a non-temporal copy is never seen before it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "transport/shm/copy.h"

#define ROOM  (3u << 20)
#define GUARD 256u

static void check_copy(const tn_shm_copier *copier, uint8_t *to_room, const uint8_t *from_room,
		       uint64_t to_at, uint64_t from_at, uint64_t bytes, uint64_t run)
{
	uint8_t *to = to_room + GUARD + to_at;
	const uint8_t *from = from_room + from_at;

	memset(to - GUARD, 0xee, bytes + 2 * GUARD);
	tn_shm_copy(copier, to, from, bytes, run);
	if (memcmp(to, from, bytes) != 0)
		fail_msg("%llu bytes, to +%llu from +%llu: not equal", (unsigned long long)bytes,
			 (unsigned long long)to_at, (unsigned long long)from_at);
	for (uint64_t i = 0; i < GUARD; i++) {
		if (to[-1 - (int64_t)i] != 0xee || to[bytes + i] != 0xee)
			fail_msg("%llu bytes, to +%llu from +%llu: wrote outside", (unsigned long long)bytes,
				 (unsigned long long)to_at, (unsigned long long)from_at);
	}
}

static void sweep(const tn_shm_copier *copier, uint64_t run)
{
	static const uint64_t sizes[] = {0,    1,    2,    3,    4,    5,     7,     8,      9,
					 15,   16,   17,   31,   32,   33,    63,    64,     65,
					 127,  128,  129,  255,  256,  257,   511,   512,    4095,
					 4096, 4097, 8191, 8192, 8193, 65536, 65537, 1000003};
	static const uint64_t at[] = {0, 1, 2, 4, 8, 31, 32, 63};
	uint8_t *to = aligned_alloc(4096, ROOM);
	uint8_t *from = aligned_alloc(4096, ROOM);
	tn_rand rand = {1};

	assert_true(to && from);
	for (uint64_t i = 0; i < ROOM; i++)
		from[i] = (uint8_t)tn_rand_next(&rand);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (size_t a = 0; a < sizeof(at) / sizeof(at[0]); a++) {
			for (size_t b = 0; b < sizeof(at) / sizeof(at[0]); b++) {
				if (sizes[s] > 100000 && (a > 2 || b > 2))
					continue;
				check_copy(copier, to, from, at[a], at[b], sizes[s], run);
			}
		}
	}
	for (int i = 0; i < 300; i++)
		check_copy(copier, to, from, tn_rand_below(&rand, 200), tn_rand_below(&rand, 200),
			   tn_rand_below(&rand, 20000), run);
	free(to);
	free(from);
}

static void test_default(void **state)
{
	tn_shm_copier copier;

	(void)state;
	tn_shm_copier_init(&copier, 0);
	assert_true(copier.nt_bytes >= 1 << 20);
	sweep(&copier, 0);
}

static void test_all_large(void **state)
{
	tn_shm_copier copier;

	(void)state;
	tn_shm_copier_init(&copier, 1);
	copier.rep_bytes = TN_SHM_LOOP_MIN;
	sweep(&copier, 0);
}

static void test_all_middle(void **state)
{
	tn_shm_copier copier;

	(void)state;
	tn_shm_copier_init(&copier, UINT64_MAX);
	copier.rep_bytes = TN_SHM_LOOP_MIN;
	sweep(&copier, UINT64_MAX / 8);
}

/* The loop alone: from the least that it takes on, whatever this processor would choose for what is larger. */
static void test_all_loop(void **state)
{
	tn_shm_copier copier;

	(void)state;
	tn_shm_copier_init(&copier, UINT64_MAX);
	copier.loop_bytes = TN_SHM_LOOP_MIN;
	copier.rep_bytes = UINT64_MAX;
	sweep(&copier, 0);
}

static uint64_t large_calls;

static void count_large(void *to, const void *from, uint64_t bytes)
{
	large_calls++;
	memcpy(to, from, bytes);
}

/* Parts of one long transfer go the way of the whole once that is known to be long. */
static void test_runs(void **state)
{
	tn_shm_copier copier;
	uint8_t *a = calloc(1, 1 << 20), *b = calloc(1, 1 << 20);

	(void)state;
	assert_true(a && b);
	tn_shm_copier_init(&copier, 8 << 20);
	copier.large = count_large;
	tn_shm_copy(&copier, a, b, 1 << 20, 1 << 20);
	assert_int_equal(large_calls, 0);
	tn_shm_copy(&copier, a, b, 1 << 20, 8 << 20);
	assert_int_equal(large_calls, 1);
	tn_shm_copy(&copier, a, b, 1024, 8 << 20); /* small ones never */
	assert_int_equal(large_calls, 1);
	free(a);
	free(b);
}

/* ---- between threads ---- */

#ifdef TN_SANITIZED
#define ROUNDS 20000u
#else
#define ROUNDS 300000u
#endif

typedef struct shared {
	_Alignas(64) uint64_t word;
	_Alignas(64) _Atomic uint64_t flag;
	_Alignas(64) _Atomic uint64_t seen;
	uint8_t *data;
	uint64_t bytes;
	uint64_t bad;
	tn_shm_copier copier;
} shared;

static void *read_words(void *arg)
{
	shared *s = arg;

	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t v = __atomic_load_n(&s->word, __ATOMIC_ACQUIRE);

		if ((uint32_t)v != (uint32_t)(v >> 32))
			s->bad++;
	}
	return NULL;
}

static void test_words_are_whole(void **state)
{
	shared *s = aligned_alloc(64, (sizeof(*s) + 63) & ~63ull);
	pthread_t thread;

	(void)state;
	assert_non_null(s);
	memset(s, 0, sizeof(*s));
	tn_shm_copier_init(&s->copier, 0);
	assert_int_equal(pthread_create(&thread, NULL, read_words, s), 0);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		uint64_t v = (uint32_t)i * 0x100000001ull;

		tn_shm_copy(&s->copier, &s->word, &v, 8, 0);
	}
	pthread_join(thread, NULL);
	assert_int_equal(s->bad, 0);
	free(s);
}

#ifndef TN_SANITIZED
/* Data by the large way, then a flag by a word: whoever sees the flag sees all data. */
static void *check_data(void *arg)
{
	shared *s = arg;
	uint64_t seen = 0;

	while (seen < 2000) {
		uint64_t flag = atomic_load_explicit(&s->flag, memory_order_acquire);

		if (flag == seen) {
			sched_yield();
			continue;
		}
		seen = flag;
		for (uint64_t i = 0; i < s->bytes; i += 61) {
			if (s->data[i] != (uint8_t)flag)
				s->bad++;
		}
		atomic_store(&s->seen, seen);
	}
	return NULL;
}

static void test_large_before_flag(void **state)
{
	shared *s = aligned_alloc(64, (sizeof(*s) + 63) & ~63ull);
	uint8_t *source;
	pthread_t thread;

	(void)state;
	assert_non_null(s);
	memset(s, 0, sizeof(*s));
	s->bytes = 65536;
	s->data = aligned_alloc(64, s->bytes);
	source = aligned_alloc(64, s->bytes);
	assert_true(s->data && source);
	tn_shm_copier_init(&s->copier, 1);
	s->copier.rep_bytes = TN_SHM_LOOP_MIN;
	assert_int_equal(pthread_create(&thread, NULL, check_data, s), 0);
	for (uint64_t i = 1; i <= 2000; i++) {
		memset(source, (int)i, s->bytes);
		tn_shm_copy(&s->copier, s->data, source, s->bytes, 0);
		tn_shm_copy(&s->copier, (void *)(uintptr_t)&s->flag, &i, 8, 0);
		while (atomic_load(&s->seen) != i)
			sched_yield();
	}
	pthread_join(thread, NULL);
	assert_int_equal(s->bad, 0);
	free(s->data);
	free(source);
	free(s);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_default),
		cmocka_unit_test(test_all_large),
		cmocka_unit_test(test_all_middle),
		cmocka_unit_test(test_all_loop),
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_words_are_whole),
#ifndef TN_SANITIZED
		cmocka_unit_test(test_large_before_flag),
#endif
	};

	return RUN(tests);
}
