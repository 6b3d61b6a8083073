/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A million allocations from several threads, and what others met in the field: registrations, descriptors and
 * mappings stay in proportion to extents; lengths of maps and registrations agree; statistics add up.
 */
#include <pthread.h>
#include <sys/stat.h>

#include "base/os.h"
#include "base/rand.h"
#include "mem_test.h"

#define MILLION 1000000
#define WORKERS 4
#define HELD    256

static int count_maps(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	int c, n = 0;

	assert_non_null(file);
	while ((c = fgetc(file)) != EOF)
		n += c == '\n';
	fclose(file);
	return n;
}

typedef struct worker {
	tern_mem *mem;
	uint64_t seed, failures;
} worker;

static void *soak(void *arg)
{
	worker *w = arg;
	tn_rand rand = {.state = w->seed};
	void *held[HELD] = {0};

	for (int i = 0; i < MILLION / WORKERS; i++) {
		void **p = &held[tn_rand_below(&rand, HELD)];
		uint64_t bytes = tn_rand_below(&rand, 1ull << (3 + tn_rand_below(&rand, 15)));
		uint32_t access = (uint32_t)tn_rand_below(&rand, 4);
		tern_key key;

		tern_mem_free(w->mem, *p);
		if (tern_mem_alloc(w->mem, bytes, 0, access, TERN_MEM_HOST, p) != TERN_OK)
			w->failures++;
		else if (access && i % 50 == 0 && tern_mem_export(w->mem, *p, bytes, access, &key) != TERN_OK)
			w->failures++;
	}
	for (int i = 0; i < HELD; i++)
		tern_mem_free(w->mem, held[i]);
	return NULL;
}

/* Mooncake#3639 (fork protection plus churn exhausts vm.max_map_count), and registrations O(extents). */
static void mooncake_3639_a_million_allocations(void **state)
{
	fake_device dev = {0};
	tern_mem *mem = make_pool(0);
	worker w[WORKERS];
	pthread_t thread[WORKERS];
	int maps = count_maps();
	tern_mem_stats stats;
	uint32_t slot;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	for (int i = 0; i < WORKERS; i++) {
		w[i] = (worker){.mem = mem, .seed = (uint64_t)i + 1};
		assert_int_equal(pthread_create(&thread[i], NULL, soak, &w[i]), 0);
	}
	for (int i = 0; i < WORKERS; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(w[i].failures, 0);
	}
	stats = stats_of(mem);
	assert_int_equal(stats.blocks, 0);
	assert_int_equal(stats.keys, 0);
	assert_int_equal(dev.live, (int)stats.extents);
	assert_true(dev.total <= 60); /* live blocks are under 20 MiB at any time */
#ifndef TN_SANITIZED                  /* which map by themselves */
	/* Beside the extents: stacks and heaps of the threads. */
	assert_true(count_maps() - maps <= 2 * (int)stats.extents + 8 * WORKERS);
#endif
	(void)maps;
	assert_int_equal(stats.mappings, 2 + 2 * stats.extents);
	assert_true(stats.cache_hits + stats.cache_misses <= MILLION);
	assert_true(stats.cache_hits > MILLION / 2);
	tn_mem_check(mem);
	tn_mem_detach(mem, slot);
	tn_mem_destroy(mem);
}

/* byteps#282 (4,224 small registrations per connection): buffers of 64 peers make a few registrations. */
static void byteps_282_few_registrations_for_64_peers(void **state)
{
	fake_device dev = {0};
	tern_mem *mem = make_pool(0);
	uint32_t slot;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	for (int peer = 0; peer < 64; peer++) {
		for (int i = 0; i < 66; i++)
			get(mem, i % 2 ? 4096 : 256, 0, i % 3 ? 3 : 0);
	}
	assert_true(dev.total <= 12);
	assert_int_equal(dev.live, (int)stats_of(mem).extents);
	tn_mem_detach(mem, slot);
	tn_mem_destroy(mem);
}

/* Mooncake PR#3845 (huge-page length not a multiple of 2 MiB): file, map and registration have one length. */
typedef struct lengths {
	uint64_t registered;
	int bad;
} lengths;

static tern_status lengths_reg(void *arg, const tn_extent *ext, void **reg, uint32_t *lkey, uint32_t *rkey)
{
	lengths *l = arg;
	struct stat st;

	l->bad += fstat(ext->fd, &st) != 0 || (uint64_t)st.st_size != ext->bytes;
	l->bad += ext->bytes % TN_MEM_EXTENT_BYTES_MIN != 0 || (uintptr_t)ext->base % TN_MEM_EXTENT_BYTES_MIN;
	((uint8_t *)ext->base)[ext->bytes - 1] = 1; /* there to the last byte */
	l->registered += ext->bytes;
	*reg = l;
	*lkey = *rkey = 1;
	return TERN_OK;
}

static void lengths_dereg(void *arg, const tn_extent *ext, void *reg)
{
	(void)reg;
	((lengths *)arg)->registered -= ext->bytes;
}

static void mooncake_3845_lengths_agree(void **state)
{
	static const tn_registrar ops = {.reg = lengths_reg, .dereg = lengths_dereg};
	tn_rand rand = {.state = 11};
	lengths l = {0};
	tern_mem *mem = make_pool(512 * MiB);
	uint32_t slot;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &ops, &l, &slot), TERN_OK);
	for (int i = 0; i < 100; i++) {
		uint64_t bytes = tn_rand_below(&rand, 24 * MiB) + (i % 3 ? 0 : 2 * MiB - 1);
		uint32_t access = (uint32_t)tn_rand_below(&rand, 4);
		void *ptr;

		if (tern_mem_alloc(mem, bytes, 0, access, TERN_MEM_HOST, &ptr) != TERN_OK)
			continue;
		assert_int_equal(l.registered, stats_of(mem).committed_bytes);
		if (i % 2)
			tern_mem_free(mem, ptr);
	}
	assert_int_equal(l.bad, 0);
	tn_mem_detach(mem, slot);
	assert_int_equal(l.registered, 0);
	tn_mem_destroy(mem);
}

/* libfabric#5857 (huge pages short, SIGBUS on first touch): what is there is there, and says what it is. */
static void libfabric_5857_short_huge_pages_fall_back(void **state)
{
	tn_mem_params params;
	tn_os_limits limits;
	tern_mem_stats stats;
	tern_mem *mem;
	uint8_t *ptr;
	uint64_t bytes;

	(void)state;
	tn_os_limits_get(&limits);
	tn_mem_params_load(&params, NULL);
	params.huge_pages = true;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	/* One huge page more than there are, within reason. */
	bytes = TN_MIN((limits.huge_pages_free + 1) * 2 * MiB, 256 * MiB);
	ptr = get(mem, bytes, 0, 3);
	memset(ptr, 1, bytes);
	stats = stats_of(mem);
	if (limits.huge_pages_free * 2 * MiB < bytes)
		assert_int_equal(stats.extents_huge, 0);
	assert_int_equal(stats.extents_huge + stats.extents_thp + stats.extents_4k, stats.extents);
	tn_mem_destroy(mem);
}

static void statistics_add_up(void **state)
{
	tern_mem *mem = make_pool(0);
	tern_mem_stats stats;
	void *ptr[100];

	(void)state;
	for (int i = 0; i < 100; i++)
		ptr[i] = get(mem, 100, 0, 3); /* of 128 */
	stats = stats_of(mem);
	assert_int_equal(stats.used_bytes, 12800);
	assert_int_equal(stats.waste_bytes, 2800);
	assert_int_equal(stats.free_bytes, stats.committed_bytes - 12800);
	assert_int_equal(stats.cache_hits + stats.cache_misses, 100);
	assert_true(stats.free_run_bytes_max > MiB && stats.free_run_bytes_max < 2 * MiB);
	for (int i = 0; i < 100; i++)
		tern_mem_free(mem, ptr[i]);
	stats = stats_of(mem);
	assert_int_equal(stats.used_bytes, 0);
	assert_int_equal(stats.waste_bytes, 0);
	assert_true(stats.cached_bytes >= 12800);
	assert_int_equal(stats.free_bytes, stats.committed_bytes);
	assert_int_equal(stats.grows_waited, 1);
	get(mem, 5 * MiB + 1, 0, 3);
	assert_int_equal(stats_of(mem).waste_bytes, 4095);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mooncake_3639_a_million_allocations),
		cmocka_unit_test(byteps_282_few_registrations_for_64_peers),
		cmocka_unit_test(mooncake_3845_lengths_agree),
		cmocka_unit_test(libfabric_5857_short_huge_pages_fall_back),
		cmocka_unit_test(statistics_add_up),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
