/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread caches: hits without the lock, frees by other threads, threads that end, pools that go first, caps, and
 * both ways of the barrier.
 */
#include <pthread.h>
#include <stdlib.h>

#include "mem/cache.h"
#include "mem_test.h"

#define MANY 4000

typedef struct job {
	tern_mem *mem;
	void **ptr;
	int n;
	uint64_t bytes;
	pthread_barrier_t *first, *second;
	uint32_t refused;
} job;

static void *alloc_many(void *arg)
{
	job *j = arg;

	for (int i = 0; i < j->n; i++) {
		if (tern_mem_alloc(j->mem, j->bytes, 0, 3, TERN_MEM_HOST, &j->ptr[i]) != TERN_OK)
			j->refused++;
	}
	if (j->first) {
		pthread_barrier_wait(j->first);
		pthread_barrier_wait(j->second);
	}
	return NULL;
}

static void *free_many(void *arg)
{
	job *j = arg;

	for (int i = 0; i < j->n; i++)
		tern_mem_free(j->mem, j->ptr[i]);
	return NULL;
}

static void in_thread(void *(*run)(void *), job *j)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, run, j), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* The common path takes no lock: it works while somebody holds the arena's. */
static void common_path_takes_no_lock(void **state)
{
	tern_mem *mem = make_pool(0);
	uint64_t misses;
	void *ptr;

	(void)state;
	tern_mem_free(mem, get(mem, 100, 0, 3));
	misses = stats_of(mem).cache_misses;
	pthread_mutex_lock(&mem->grow);
	for (int i = 0; i < TN_ARENAS; i++)
		pthread_mutex_lock(&mem->arenas[i].lock);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(tern_mem_alloc(mem, 100, 0, 3, TERN_MEM_HOST, &ptr), TERN_OK);
		assert_int_equal(tern_mem_usable(mem, ptr), 128);
		tern_mem_free(mem, ptr);
	}
	for (int i = 0; i < TN_ARENAS; i++)
		pthread_mutex_unlock(&mem->arenas[i].lock);
	pthread_mutex_unlock(&mem->grow);
	assert_int_equal(stats_of(mem).cache_misses, misses);
	assert_true(stats_of(mem).cache_hits >= 1000);
	tn_mem_destroy(mem);
}

/* Blocks that others freed come back to the thread that owns their slabs, and are counted at once. */
static void others_free(void **state)
{
	static void *ptr[MANY];
	tern_mem *mem = make_pool(0);
	job j = {.mem = mem, .ptr = ptr, .n = MANY, .bytes = 200};
	uint64_t committed;

	(void)state;
	alloc_many(&j);
	committed = stats_of(mem).committed_bytes;
	assert_int_equal(stats_of(mem).blocks, MANY);
	for (int round = 0; round < 20; round++) {
		in_thread(free_many, &j);
		assert_int_equal(stats_of(mem).blocks, 0);
		assert_int_equal(stats_of(mem).used_bytes, 0);
		tn_mem_check(mem);
		alloc_many(&j);
		tn_mem_check(mem);
	}
	assert_int_equal(stats_of(mem).committed_bytes, committed);
	assert_int_equal(stats_of(mem).remote_frees, 20 * MANY);
	assert_int_equal(tn_counter_read(&mem->refused_frees), 0);
	tn_mem_destroy(mem);
}

/* A second free is refused whether the first one was the owner's or another's, and taken over or not. */
static void double_frees_across_threads(void **state)
{
	tern_mem *mem = make_pool(0);
	void *ptr[2] = {get(mem, 100, 0, 3), get(mem, 100, 0, 3)};
	job j = {.mem = mem, .ptr = ptr, .n = 2};

	(void)state;
	tern_mem_free(mem, ptr[0]);
	in_thread(free_many, &j); /* the first twice */
	assert_int_equal(tn_counter_read(&mem->refused_frees), 1);
	in_thread(free_many, &j);
	assert_int_equal(tn_counter_read(&mem->refused_frees), 3);
	tern_mem_free(mem, ptr[1]);
	assert_int_equal(tn_counter_read(&mem->refused_frees), 4);
	assert_int_equal(tern_mem_usable(mem, ptr[1]), 0);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* What a thread kept is the arena's when it ends, and what it left behind can be freed by anybody. */
static void thread_exit_returns_everything(void **state)
{
	static void *ptr[MANY];
	tern_mem *mem = make_pool(0);
	job j = {.mem = mem, .ptr = ptr, .n = MANY, .bytes = 1000};
	tn_arena *arena = &mem->arenas[3];

	(void)state;
	tern_mem_free(mem, get(mem, 1000, 0, 3)); /* this thread has a cache of its own */
	for (int round = 0; round < 10; round++) {
		uint64_t mine = stats_of(mem).cached_bytes;

		in_thread(alloc_many, &j);
		assert_int_equal(stats_of(mem).blocks, MANY);
		/* Less if the thread needed what this one keeps. */
		assert_true(stats_of(mem).cached_bytes <= mine);
		tn_mem_check(mem);
		if (round % 2)
			in_thread(free_many, &j);
		else
			free_many(&j);
		assert_int_equal(stats_of(mem).blocks, 0);
		if (round % 2)
			assert_true(stats_of(mem).cached_bytes <= mine);
		assert_true(stats_of(mem).cached_bytes <= mem->cache_bytes);
		tn_mem_check(mem);
	}
	assert_int_equal(mem->cache_count, 2);
	pthread_mutex_lock(&arena->lock);
	tn_caches_reclaim(arena, false);
	assert_int_equal(arena->pages_used, 0);
	pthread_mutex_unlock(&arena->lock);
	assert_int_equal(stats_of(mem).cached_bytes, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* Many threads one after the other need few caches, and the blocks that one left are used by the next. */
static void caches_are_adopted(void **state)
{
	tern_mem *mem = make_pool(0);
	void *ptr[10];
	uint64_t committed = 0;
	job j = {.mem = mem, .ptr = ptr, .n = 10, .bytes = 64};

	(void)state;
	for (int i = 0; i < 200; i++) {
		in_thread(alloc_many, &j); /* stays allocated */
		if (i == 100)
			committed = stats_of(mem).committed_bytes;
	}
	assert_int_equal(mem->cache_count, 1);
	assert_int_equal(stats_of(mem).blocks, 2000);
	assert_int_equal(stats_of(mem).committed_bytes, committed);
	assert_true(mem->arenas[3].pages_used <= 2000 / 64 + 2);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* The pool goes while a thread that has a cache of it lives on, and goes on with another pool. */
static void *outlive(void *arg)
{
	job *j = arg;
	job next = {.ptr = j->ptr, .n = j->n, .bytes = j->bytes};

	alloc_many(j);
	next.mem = make_pool(0);
	alloc_many(&next);
	free_many(&next);
	j->refused += stats_of(next.mem).blocks != 0;
	tn_mem_destroy(next.mem);
	return NULL;
}

static void pool_goes_before_its_threads(void **state)
{
	static void *ptr[100];
	pthread_barrier_t first, second;
	job j = {.ptr = ptr, .n = 100, .bytes = 300, .first = &first, .second = &second};
	pthread_t thread;

	(void)state;
	for (int round = 0; round < 20; round++) {
		j.mem = make_pool(0);
		pthread_barrier_init(&first, NULL, 2);
		pthread_barrier_init(&second, NULL, 2);
		assert_int_equal(pthread_create(&thread, NULL, outlive, &j), 0);
		pthread_barrier_wait(&first);
		tn_mem_destroy(j.mem);
		pthread_barrier_wait(&second);
		pthread_join(thread, NULL);
		pthread_barrier_destroy(&first);
		pthread_barrier_destroy(&second);
		assert_int_equal(j.refused, 0);
	}
}

/* The next pool may lie where the last one did: the thread's old cache is not taken for one of it. */
static void *follow(void *arg)
{
	job *j = arg;

	alloc_many(j); /* of the first pool, until it is gone */
	alloc_many(&(job){.mem = j->mem, .ptr = j->ptr, .n = j->n, .bytes = j->bytes});
	free_many(j);
	return NULL;
}

static void a_pool_at_the_place_of_another(void **state)
{
	static void *ptr[100];
	pthread_barrier_t first, second;
	job j = {.ptr = ptr, .n = 100, .bytes = 300, .first = &first, .second = &second};
	pthread_t thread;

	(void)state;
	pthread_barrier_init(&first, NULL, 2);
	pthread_barrier_init(&second, NULL, 2);
	for (int round = 0; round < 20; round++) {
		j.mem = make_pool(0);
		assert_int_equal(pthread_create(&thread, NULL, follow, &j), 0);
		pthread_barrier_wait(&first);
		tn_mem_destroy(j.mem);
		j.mem = make_pool(0);
		pthread_barrier_wait(&second);
		pthread_join(thread, NULL);
		assert_int_equal(j.refused, 0);
		assert_int_equal(j.mem->cache_count, 1);
		assert_int_equal(stats_of(j.mem).blocks, 0);
		assert_int_equal(stats_of(j.mem).refused_frees, 0);
		tn_mem_check(j.mem);
		tn_mem_destroy(j.mem);
	}
	pthread_barrier_destroy(&first);
	pthread_barrier_destroy(&second);
}

/* Two threads free one block at the same instant, and both passed the mark: the slab refuses the second. */
static void two_frees_at_one_instant(void **state)
{
	tern_mem *mem = make_pool(0);
	tn_arena *arena = &mem->arenas[3];
	void *ptr = get(mem, 100, 0, 3), *other = get(mem, 100, 0, 3);
	tn_mark *mark = tn_ext_mark(tn_mem_ext_of(mem, ptr), ptr);
	uint8_t was = *mark;

	(void)state;
	tern_mem_free(mem, ptr);
	*mark = was;
	tern_mem_free(mem, ptr);
	assert_int_equal(stats_of(mem).refused_frees, 0);
	pthread_mutex_lock(&arena->lock);
	tn_caches_reclaim(arena, false);
	pthread_mutex_unlock(&arena->lock);
	assert_int_equal(stats_of(mem).refused_frees, 1);
	assert_int_equal(stats_of(mem).blocks, 1);
	tn_mem_check(mem);
	tern_mem_free(mem, other);
	tn_mem_destroy(mem);
}

/* All classes together keep no more than the cap, and what is beyond goes to slabs. */
static void classes_share_the_cap(void **state)
{
	static void *ptr[TN_CLASSES * 40];
	tn_mem_params params;
	tern_mem *mem;

	(void)state;
	tn_mem_params_load(&params, NULL);
	params.cache_bytes = 100000;
	params.reserve_bytes = GiB;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < TN_COUNT_OF(ptr); i++)
			ptr[i] = get(mem, tn_classes[i % TN_CLASSES].bytes, 0, 3);
		tn_mem_check(mem);
		for (unsigned i = 0; i < TN_COUNT_OF(ptr); i++)
			tern_mem_free(mem, ptr[i]);
		assert_in_range(stats_of(mem).cached_bytes, 1, 100000);
		assert_int_equal(stats_of(mem).blocks, 0);
		tn_mem_check(mem);
	}
	tn_mem_destroy(mem);
}

/* UCX#6264: every cache has a cap in bytes and in count, whoever frees into it. */
static void ucx_6264_caches_are_capped(void **state)
{
	static void *ptr[64 * MANY];
	pthread_barrier_t first, second;
	tern_mem *mem = make_pool(0);
	job j = {.mem = mem, .ptr = ptr, .n = 64 * MANY, .bytes = 64, .first = &first, .second = &second};
	pthread_t thread;

	(void)state;
	alloc_many(&(job){.mem = mem, .ptr = ptr, .n = 64 * MANY, .bytes = 64});
	free_many(&j);
	assert_true(stats_of(mem).cached_bytes <= mem->cache_bytes + (64 << 10));
	tn_mem_check(mem);
	/* A thread that sleeps, while another frees all that it allocated. */
	pthread_barrier_init(&first, NULL, 2);
	pthread_barrier_init(&second, NULL, 2);
	assert_int_equal(pthread_create(&thread, NULL, alloc_many, &j), 0);
	pthread_barrier_wait(&first);
	free_many(&j);
	assert_int_equal(stats_of(mem).blocks, 0);
	assert_true(stats_of(mem).cached_bytes <= 4 * mem->cache_bytes);
	tn_mem_check(mem);
	pthread_barrier_wait(&second);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&first);
	pthread_barrier_destroy(&second);
	tn_mem_destroy(mem);
}

/* Memory that a sleeping thread keeps is found before anybody is told that there is none. */
static void *sleeper(void *arg)
{
	job *j = arg;

	alloc_many(&(job){.mem = j->mem, .ptr = j->ptr, .n = j->n, .bytes = j->bytes});
	free_many(j);
	pthread_barrier_wait(j->first);
	pthread_barrier_wait(j->second);
	return NULL;
}

static void kept_memory_is_found_under_pressure(void **state)
{
	static void *ptr[500];
	pthread_barrier_t first, second;
	tern_mem *mem = make_pool(2 * MiB);
	job j = {.mem = mem, .ptr = ptr, .n = 500, .bytes = 2000, .first = &first, .second = &second};
	pthread_t thread;

	(void)state;
	pthread_barrier_init(&first, NULL, 2);
	pthread_barrier_init(&second, NULL, 2);
	assert_int_equal(pthread_create(&thread, NULL, sleeper, &j), 0);
	pthread_barrier_wait(&first);
	assert_true(stats_of(mem).cached_bytes > 0);
	tern_mem_free(mem, get(mem, 2 * MiB, 0, 3)); /* the same class: the pages */
	tern_mem_free(mem, get(mem, 2 * MiB, 0, 1)); /* another: the extent */
	tn_mem_check(mem);
	pthread_barrier_wait(&second);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&first);
	pthread_barrier_destroy(&second);
	tn_mem_destroy(mem);
}

static void exported_blocks_take_the_slow_path(void **state)
{
	tern_mem *mem = make_pool(0);
	void *ptr = get(mem, 100, 0, 3);
	tern_key wire;
	tn_key key;
	uint32_t extent;
	uint64_t at;

	(void)state;
	assert_int_equal(tern_mem_export(mem, ptr, 100, 1, &wire), TERN_OK);
	assert_true(tn_key_decode(&wire, &key));
	assert_false(tn_cache_free(tn_cache_get(mem), ptr));
	tern_mem_free(mem, ptr);
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 0, 8, 1, &extent, &at), TERN_E_STALE_KEY);
	ptr = get(mem, 100, 0, 3);
	assert_true(tn_cache_free(tn_cache_get(mem), ptr));
	/* A key that was revoked before counts too: a guard may still wait for its last access. */
	ptr = get(mem, 100, 0, 3);
	assert_int_equal(tern_mem_export(mem, ptr, 100, 1, &wire), TERN_OK);
	assert_int_equal(tern_mem_revoke(mem, &wire), TERN_OK);
	assert_false(tn_cache_free(tn_cache_get(mem), ptr));
	tern_mem_free(mem, ptr);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* Two pools in turn: each has its cache in the thread. */
static void pools_do_not_mix(void **state)
{
	tern_mem *a = make_pool(0), *b = make_pool(0);
	void *p, *q;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		p = get(a, 100, 0, 3);
		q = get(b, 100, 0, 3);
		assert_ptr_equal(tn_mem_ext_of(a, p)->arena, &a->arenas[3]);
		assert_ptr_equal(tn_mem_ext_of(b, q)->arena, &b->arenas[3]);
		tern_mem_free(a, q); /* refused */
		tern_mem_free(a, p);
		tern_mem_free(b, q);
	}
	assert_int_equal(tn_counter_read(&a->refused_frees), 1000);
	assert_int_equal(tn_counter_read(&b->refused_frees), 0);
	assert_int_equal(a->cache_count, 1);
	assert_int_equal(stats_of(a).blocks + stats_of(b).blocks, 0);
	tn_mem_destroy(a);
	tn_mem_destroy(b);
}

/* Kernels without membarrier: the same with fences on both sides. */
static void without_membarrier(void **state)
{
	bool was = tn_os_mem_asymmetric;

	tn_os_mem_asymmetric = false;
	others_free(state);
	kept_memory_is_found_under_pressure(state);
	tn_os_mem_asymmetric = was;
}

static void without_caches(void **state)
{
	static void *ptr[MANY];
	tn_mem_params params = {.reserve_bytes = GiB};
	tern_mem *mem;
	job j = {.ptr = ptr, .n = MANY, .bytes = 500};

	(void)state;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	j.mem = mem;
	alloc_many(&j);
	tn_mem_check(mem);
	in_thread(free_many, &j);
	assert_int_equal(mem->cache_count, 0);
	assert_int_equal(stats_of(mem).blocks, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(common_path_takes_no_lock),
		cmocka_unit_test(others_free),
		cmocka_unit_test(double_frees_across_threads),
		cmocka_unit_test(thread_exit_returns_everything),
		cmocka_unit_test(caches_are_adopted),
		cmocka_unit_test(pool_goes_before_its_threads),
		cmocka_unit_test(a_pool_at_the_place_of_another),
		cmocka_unit_test(two_frees_at_one_instant),
		cmocka_unit_test(classes_share_the_cap),
		cmocka_unit_test(ucx_6264_caches_are_capped),
		cmocka_unit_test(kept_memory_is_found_under_pressure),
		cmocka_unit_test(exported_blocks_take_the_slow_path),
		cmocka_unit_test(pools_do_not_mix),
		cmocka_unit_test(without_membarrier),
		cmocka_unit_test(without_caches),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
