/* SPDX-License-Identifier: Apache-2.0 */
/* Threads allocate, hand blocks to each other, free, export and revoke; a reader checks keys meanwhile. */
#include <pthread.h>

#include "base/rand.h"
#include "mem_test.h"

#define THREADS 4
#define STEPS   6000
#define SHELF   128

typedef struct item {
	uint8_t *ptr;
	uint64_t bytes;
	uint8_t stamp;
} item;

/* Blocks that wait for any thread to free them. */
static struct {
	pthread_mutex_t lock;
	item items[SHELF];
} shelf = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
	tern_mem *mem;
	_Atomic int running;
	_Atomic uint64_t failures;
	/* One key that is made and revoked over and over; `published` gates the reader. */
	pthread_mutex_t lock;
	tn_key key;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static item swap_shelf(tn_rand *rand, item mine)
{
	uint64_t at = tn_rand_below(rand, SHELF);
	item other;

	pthread_mutex_lock(&shelf.lock);
	other = shelf.items[at];
	shelf.items[at] = mine;
	pthread_mutex_unlock(&shelf.lock);
	return other;
}

static void drop(item it)
{
	if (!it.ptr)
		return;
	for (uint64_t i = 0; i < it.bytes; i += 61) {
		if (it.ptr[i] != it.stamp)
			atomic_fetch_add(&shared.failures, 1);
	}
	tern_mem_free(shared.mem, it.ptr);
}

static void *worker(void *arg)
{
	tn_rand rand = {.state = (uintptr_t)arg};

	for (int step = 0; step < STEPS; step++) {
		item it = {.bytes = tn_rand_below(&rand, 1ull << (3 + tn_rand_below(&rand, 15))),
			   .stamp = (uint8_t)tn_rand_next(&rand)};
		uint32_t access = (uint32_t)tn_rand_below(&rand, 4);
		tern_key key;
		void *ptr;

		if (tern_mem_alloc(shared.mem, it.bytes, 0, access, TERN_MEM_HOST, &ptr) != TERN_OK) {
			atomic_fetch_add(&shared.failures, 1);
			continue;
		}
		it.ptr = ptr;
		memset(ptr, it.stamp, it.bytes);
		if (access && step % 3 == 0) {
			if (tern_mem_export(shared.mem, ptr, it.bytes, access, &key) != TERN_OK)
				atomic_fetch_add(&shared.failures, 1);
			pthread_mutex_lock(&shared.lock);
			tn_key_decode(&key, &shared.key);
			pthread_mutex_unlock(&shared.lock);
			if (step % 2 && tern_mem_revoke(shared.mem, &key) != TERN_OK)
				atomic_fetch_add(&shared.failures, 1);
		}
		drop(swap_shelf(&rand, it));
	}
	atomic_fetch_sub(&shared.running, 1);
	return NULL;
}

/* A key that passes says exactly what it said when it was made: never a mixture of two rows' lives. */
static void *reader(void *arg)
{
	(void)arg;
	while (atomic_load(&shared.running) > 0) {
		uint32_t extent;
		uint64_t at;
		tn_key key;

		pthread_mutex_lock(&shared.lock);
		key = shared.key;
		pthread_mutex_unlock(&shared.lock);
		for (int i = 0; i < 100; i++) {
			tern_status status = tn_key_check(tn_mem_keys(shared.mem), &key, 0, key.length,
							  key.access, &extent, &at);

			if (status == TERN_OK && (extent != key.extent || at != key.extent_offset))
				atomic_fetch_add(&shared.failures, 1);
			if (status != TERN_OK && status != TERN_E_STALE_KEY)
				atomic_fetch_add(&shared.failures, 1);
		}
	}
	return NULL;
}

static void hammer(uint64_t limit)
{
	pthread_t threads[THREADS], check;

	shared.mem = make_pool(limit);
	shared.running = THREADS;
	shared.failures = 0;
	memset(&shared.key, 0, sizeof(shared.key));
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, worker, (void *)(i + 1)), 0);
	assert_int_equal(pthread_create(&check, NULL, reader, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_join(check, NULL);
	for (int i = 0; i < SHELF; i++) {
		drop(shelf.items[i]);
		shelf.items[i] = (item){0};
	}
	assert_int_equal(shared.failures, 0);
	assert_int_equal(stats_of(shared.mem).blocks, 0);
	assert_int_equal(stats_of(shared.mem).keys, 0);
	assert_int_equal(tn_counter_read(&shared.mem->refused_frees), 0);
	tn_mem_check(shared.mem);
	tn_mem_destroy(shared.mem);
}

static void many_threads(void **state)
{
	(void)state;
	hammer(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_threads),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
