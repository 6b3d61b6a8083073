/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table's memory read from outside while it changes: no row is ever another key's, or torn. Every row is filled with
 * one number, a function of its key and of how often it was written, so that any mixture shows.
 *
 * Threads: one writes, one reads.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/table.h"

#define DIM  37
#define KEYS 60000u

/* The table's memory is mapped twice, as by two processes: the reader's addresses are others. */
#define MEMORY (128u << 20)
#define ALIGN  (2u << 20)

static uint8_t *ours, *theirs;
static uint64_t lent;

static uint8_t *map(int fd)
{
	uint8_t *at = mmap(NULL, MEMORY + ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	at += -(uintptr_t)at & (ALIGN - 1);
	at = mmap(at, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	assert_true(at != MAP_FAILED);
	return at;
}

static void map_twice(void)
{
	int fd = memfd_create("table", 0);

	assert_true(fd >= 0 && ftruncate(fd, MEMORY) == 0);
	ours = map(fd);
	theirs = map(fd);
	close(fd);
}

static void *lend(void *arg, uint64_t bytes, uint64_t align)
{
	uint64_t at = (__atomic_load_n(&lent, __ATOMIC_RELAXED) + align - 1) & ~(align - 1);

	(void)arg;
	if (at + bytes > MEMORY)
		return NULL;
	__atomic_store_n(&lent, at + bytes, __ATOMIC_RELAXED); /* one thread makes rows */
	return ours + at;
}

static void take_back(void *arg, void *ptr, uint64_t bytes)
{
	(void)arg, (void)ptr, (void)bytes;
}

typedef struct world {
	tn_table *t;
	_Atomic uint64_t changes;
	atomic_bool stop;
} world;

/* Values of a key are its number plus a multiple of 2^20: exact in f32 up to 2^24. */
#define STEP 65536.0f

static uint64_t key_of(uint64_t i)
{
	return i * 0x9e3779b97f4a7c15ull;
}

static void table_start(world *w, uint32_t flags, uint64_t budget)
{
	tern_table_schema s = {.name = "t", .dim = DIM, .flags = flags | TERN_TABLE_ONE_SIDED};
	tn_table_env env = {.memory = {lend, take_back, NULL}, .changes = &w->changes};

	lent = 0;
	if (budget) {
		s.budget_bytes = budget;
		s.eviction = TERN_EVICT_LRU;
	}
	atomic_store(&w->changes, 1);
	atomic_store(&w->stop, false);
	assert_ok(tn_table_create(&s, &env, &w->t));
}

/* Each round: assign rows, erase some, make some. */
static void *writer(void *arg)
{
	world *w = arg;
	tn_rand r = {3};
	static float rows[64][DIM];
	uint64_t keys[64], step = 1;

	while (!atomic_load(&w->stop)) {
		tn_push how = {.mode = TERN_PUSH_ASSIGN, .step = step++};
		uint64_t erased;

		for (unsigned i = 0; i < 64; i++) {
			uint64_t number = tn_rand_below(&r, KEYS);
			float value = (float)number + STEP * (float)tn_rand_below(&r, 128);

			keys[i] = key_of(number);
			for (unsigned d = 0; d < DIM; d++)
				rows[i][d] = value;
		}
		assert_ok(tn_table_push(w->t, keys, rows, 64, &how, NULL));
		if (step % 3 == 0)
			assert_ok(tn_table_erase(w->t, keys, 16, &erased));
		if (step % 4000 == 0)
			for (uint64_t i = 0; i < KEYS; i += 2) {
				uint64_t key = key_of(i);

				assert_ok(tn_table_erase(w->t, &key, 1, &erased));
			}
	}
	return NULL;
}

static tn_mirror *mirror_of(world *w, uint64_t *changes)
{
	tn_layout layout;
	tn_mirror *m;

	assert_ok(tn_table_layout(w->t, &layout));
	*changes = layout.changes;
	for (uint64_t i = 0; i < 1ull << layout.depth; i++)
		layout.dir[i] += (uintptr_t)theirs - (uintptr_t)ours;
	for (uint32_t i = 0; i < layout.slabs; i++)
		layout.slab[i].base = (const uint8_t *)layout.slab[i].base - ours + theirs;
	m = tn_mirror_new(&(tern_table_schema){.dim = DIM}, &layout);
	assert_non_null(m);
	return m;
}

static void read_while_it_changes(uint32_t flags, uint64_t budget)
{
	static float rows[512][DIM];
	uint32_t left[512], places[512];
	uint64_t keys[512], numbers[512], changes, hits = 0, renewed = 0;
	uint8_t found[512];
	tn_rand r = {17};
	tn_mirror *m;
	pthread_t thread;
	world w;

	table_start(&w, flags, budget);
	assert_int_equal(pthread_create(&thread, NULL, writer, &w), 0);
	m = mirror_of(&w, &changes);
	/* longer where the writer has no core of its own */
	for (unsigned round = 0; round < 3000 || ((hits < 1000 || !renewed) && round < 300000); round++) {
		uint64_t n = 1 + tn_rand_below(&r, 512), misses, at = 0;

		for (uint64_t i = 0; i < n; i++) {
			numbers[i] = tn_rand_below(&r, KEYS);
			keys[i] = key_of(numbers[i]);
			places[i] = (uint32_t)(n - 1 - i);
			found[i] = 0;
		}
		misses = tn_mirror_pull(m, keys, n, rows, sizeof(rows[0]), places, found, left);
		for (uint64_t i = 0; i < n; i++) {
			const float *row = rows[places[i]];
			float times;

			if (at < misses && left[at] == i) {
				at++;
				assert_int_equal(found[places[i]], 0);
				continue;
			}
			assert_int_equal(found[places[i]], 1);
			times = (row[0] - (float)numbers[i]) / STEP;
			/* a row is made of zeros, then assigned: both are whole states */
			assert_true(row[0] == 0 || (times == (float)(int)times && times >= 0 && times < 128));
			for (unsigned d = 1; d < DIM; d++)
				assert_true(row[d] == row[0]);
			hits++;
		}
		assert_int_equal(at, misses);
		if (round % 16 == 0 && atomic_load(&w.changes) != changes) {
			tn_mirror_free(m);
			m = mirror_of(&w, &changes);
			renewed++;
		}
	}
	atomic_store(&w.stop, true);
	pthread_join(thread, NULL);
	assert_true(hits >= 1000 && renewed > 0);
	tn_mirror_free(m);
	tn_table_check(w.t);
	tn_table_destroy(w.t);
}

static void no_row_is_torn(void **state)
{
	(void)state;
	read_while_it_changes(0, 0);
	read_while_it_changes(TERN_TABLE_NO_META, 0);
}

static void no_row_is_torn_under_eviction(void **state)
{
	(void)state;
	read_while_it_changes(0, 4u << 20);
}

/* What stands still is found, all of it, by the newest layout. */
static void all_rows_are_found(void **state)
{
	static float rows[1000][DIM];
	uint64_t keys[1000], changes;
	uint32_t left[1000];
	tn_pull how = {.unknown = TERN_UNKNOWN_CREATE};
	tn_mirror *m;
	world w;

	(void)state;
	table_start(&w, 0, 0);
	for (uint64_t first = 0; first < 100000; first += 1000) {
		for (uint64_t i = 0; i < 1000; i++)
			keys[i] = key_of(first + i);
		assert_ok(tn_table_pull(w.t, keys, 1000, &how, rows, NULL, NULL, NULL));
	}
	m = mirror_of(&w, &changes);
	assert_int_equal(changes, atomic_load(&w.changes));
	for (uint64_t first = 0; first < 100000; first += 1000) {
		for (uint64_t i = 0; i < 1000; i++)
			keys[i] = key_of(first + i);
		assert_int_equal(tn_mirror_pull(m, keys, 1000, rows, sizeof(rows[0]), NULL, NULL, left), 0);
	}
	for (uint64_t i = 0; i < 1000; i++)
		keys[i] = key_of(200000 + i);
	assert_int_equal(tn_mirror_pull(m, keys, 1000, rows, sizeof(rows[0]), NULL, NULL, left), 1000);
	tn_mirror_free(m);
	tn_table_destroy(w.t);
}

static void dense_tables_too(void **state)
{
	tern_table_schema s = {
		.name = "d", .kind = TERN_TABLE_DENSE, .dim = 3, .rows = 5000, .flags = TERN_TABLE_ONE_SIDED};
	uint64_t keys[3] = {0, 4999, 5000};
	float values[6] = {1, 1, 1, 2, 2, 2}, rows[9];
	tn_push how = {.mode = TERN_PUSH_ASSIGN};
	tn_layout layout;
	uint32_t left[3];
	tn_mirror *m;
	tn_table *t;

	(void)state;
	assert_ok(tn_table_create(&s, NULL, &t));
	assert_ok(tn_table_push(t, keys, values, 2, &how, NULL));
	assert_ok(tn_table_layout(t, &layout));
	m = tn_mirror_new(&s, &layout);
	assert_int_equal(tn_mirror_pull(m, keys, 3, rows, 12, NULL, NULL, left), 1);
	assert_int_equal(left[0], 2);
	assert_memory_equal(rows, values, sizeof(values));
	tn_mirror_free(m);
	tn_table_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_rows_are_found),
		cmocka_unit_test(dense_tables_too),
		cmocka_unit_test(no_row_is_torn),
		cmocka_unit_test(no_row_is_torn_under_eviction),
	};

	map_twice();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
