/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything at once from many threads: no reader sees a torn row, no update is lost, a key that was there stays
 * there while the table grows, eviction and erasing meet look-ups, cuts and scans go on meanwhile.
 * TERN_TEST_ROUNDS: batches per thread.
 */
#include "cmocka_all.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "ps/table.h"

#define DIM   24
#define BATCH 64

static uint64_t rounds(uint64_t usual)
{
	const char *text = getenv("TERN_TEST_ROUNDS");

	return text ? strtoull(text, NULL, 10) : usual;
}

typedef struct world {
	tn_table *t;
	uint64_t keys, rounds;
	_Atomic uint64_t torn, failed, shown;
	_Atomic int stop;
} world;

typedef struct thread {
	pthread_t id;
	world *w;
	uint64_t seed;
} thread;

static tn_table *table_of(tern_row_optimizer kind, uint64_t budget, tern_eviction eviction, tern_dtype dtype)
{
	tern_table_schema s = {
		.name = "t", .dim = DIM, .dtype = dtype, .budget_bytes = budget, .eviction = eviction};
	tn_table *t = NULL;

	tern_optimizer_init(&s.optimizer, kind, 1);
	assert_ok(tn_table_create(&s, NULL, &t));
	return t;
}

/* The first failure is said; the count is judged by the main thread. */
static void failed(world *w)
{
	if (atomic_fetch_add(&w->failed, 1) == 0)
		fprintf(stderr, "%s\n", tern_detail());
}

static void start(thread *threads, int n, world *w, void *(*run)(void *))
{
	for (int i = 0; i < n; i++) {
		threads[i] = (thread){.w = w, .seed = (uint64_t)i + 1};
		assert_int_equal(pthread_create(&threads[i].id, NULL, run, &threads[i]), 0);
	}
}

static void join(thread *threads, int n)
{
	for (int i = 0; i < n; i++)
		pthread_join(threads[i].id, NULL);
}

/* ---- rows whose elements are equal ---- */

static int equal(const float *row)
{
	for (int d = 1; d < DIM; d++) {
		if (row[d] != row[0])
			return 0;
	}
	return 1;
}

static void draw(const world *w, tn_rand *r, uint64_t *keys)
{
	for (int i = 0; i < BATCH; i++)
		keys[i] = tn_rand_below(r, tn_rand_below(r, 2) ? w->keys : 8);
}

static void *write_equal(void *arg)
{
	thread *t = arg;
	tn_rand r = {t->seed};
	uint64_t keys[BATCH];
	float rows[BATCH][DIM];

	for (uint64_t n = 0; n < t->w->rounds; n++) {
		tn_push how = {.mode = (tern_push_mode)tn_rand_below(&r, 3), .step = n};

		draw(t->w, &r, keys);
		for (int i = 0; i < BATCH; i++) {
			float x = (float)tn_rand_below(&r, 100);

			for (int d = 0; d < DIM; d++)
				rows[i][d] = x;
		}
		if (tn_table_push(t->w->t, keys, rows, BATCH, &how, NULL) != TERN_OK)
			failed(t->w);
	}
	return NULL;
}

static void *read_equal(void *arg)
{
	thread *t = arg;
	tn_rand r = {t->seed * 77};
	uint64_t keys[BATCH];
	float rows[BATCH][DIM];

	while (!atomic_load(&t->w->stop)) {
		tn_pull how = {.unknown = (tern_unknown)tn_rand_below(&r, 3),
			       .dtype = TERN_F32,
			       .flags = TN_PULL_TOUCH};

		draw(t->w, &r, keys);
		if (tn_table_pull(t->w->t, keys, BATCH, &how, rows, NULL, NULL, NULL) != TERN_OK)
			failed(t->w);
		for (int i = 0; i < BATCH; i++)
			atomic_fetch_add(&t->w->torn, !equal(rows[i]));
	}
	return NULL;
}

static tern_status see_equal(const tn_record *rec, void *arg)
{
	thread *t = arg;

	if (tn_table_schema(t->w->t)->dtype == TERN_F32)
		atomic_fetch_add(&t->w->torn, !equal(rec->value));
	return TERN_OK;
}

static void *erase_some(void *arg)
{
	thread *t = arg;
	tn_rand r = {t->seed * 99};

	while (!atomic_load(&t->w->stop)) {
		uint64_t key = tn_rand_below(&r, t->w->keys), cursor = 0;

		tn_table_erase(t->w->t, &key, 1, NULL);
		if (tn_rand_below(&r, 64) == 0)
			tn_table_drop_slot(t->w->t, tn_table_slot(key), NULL);
		if (tn_rand_below(&r, 64) == 0)
			tn_table_scan(t->w->t, 0, TERN_TABLE_SLOTS - 1, &cursor, 500, see_equal, t);
	}
	return NULL;
}

static void *cut_again_and_again(void *arg)
{
	thread *t = arg;

	while (!atomic_load(&t->w->stop)) {
		bool more = true;
		tn_cut *cut;

		if (tn_table_cut(t->w->t, &cut) != TERN_OK) {
			failed(t->w);
			continue;
		}
		while (more && tn_cut_next(cut, 200, see_equal, t, &more) == TERN_OK)
			;
		tn_cut_end(cut);
	}
	return NULL;
}

static void run_equal(tn_table *table, uint64_t keys, uint64_t n)
{
	world w = {.t = table, .keys = keys, .rounds = rounds(n)};
	thread writers[2], readers[2], erasers[1], cutters[1];

	start(writers, 2, &w, write_equal);
	start(readers, 2, &w, read_equal);
	start(erasers, 1, &w, erase_some);
	start(cutters, 1, &w, cut_again_and_again);
	join(writers, 2);
	atomic_store(&w.stop, 1);
	join(readers, 2);
	join(erasers, 1);
	join(cutters, 1);
	assert_int_equal(w.torn, 0);
	assert_int_equal(w.failed, 0);
	tn_table_check(table);
	tn_table_destroy(table);
}

static void readers_never_see_a_torn_row(void **state)
{
	(void)state;
	run_equal(table_of(TERN_OPT_MOMENTUM, 0, TERN_EVICT_NONE, TERN_F32), 2000, 1500);
}

static void nor_one_of_half_width(void **state)
{
	(void)state;
	run_equal(table_of(TERN_OPT_SGD, 0, TERN_EVICT_NONE, TERN_BF16), 300, 800);
}

/* DeepRec PR#740, PR#808: eviction raced with look-up. */
static void eviction_races_look_ups(void **state)
{
	(void)state;
	run_equal(table_of(TERN_OPT_SGD, 300000, TERN_EVICT_LRU, TERN_F32), 5000, 1500);
	run_equal(table_of(TERN_OPT_SGD, 300000, TERN_EVICT_LFU, TERN_F32), 5000, 1500);
}

/* ---- counting ---- */

static void *add_ones(void *arg)
{
	thread *t = arg;
	tn_rand r = {t->seed};
	uint64_t keys[BATCH];
	float rows[BATCH][DIM];
	tn_push how = {0};

	for (int i = 0; i < BATCH; i++)
		for (int d = 0; d < DIM; d++)
			rows[i][d] = 1;
	for (uint64_t n = 0; n < t->w->rounds; n++) {
		draw(t->w, &r, keys);
		if (tn_table_push(t->w->t, keys, rows, BATCH, &how, NULL) != TERN_OK)
			failed(t->w);
	}
	return NULL;
}

static tern_status sum_up(const tn_record *rec, void *arg)
{
	float x;

	memcpy(&x, rec->value, sizeof(x));
	*(double *)arg += (double)x;
	return TERN_OK;
}

static void no_update_is_lost(void **state)
{
	world w = {.t = table_of(TERN_OPT_NONE, 0, TERN_EVICT_NONE, TERN_F32),
		   .keys = 20000,
		   .rounds = rounds(1500)};
	thread adders[4];
	uint64_t cursor = 0;
	double sum = 0;

	(void)state;
	start(adders, 4, &w, add_ones);
	join(adders, 4);
	assert_int_equal(w.failed, 0);
	while (cursor != TN_SCAN_END)
		assert_ok(tn_table_scan(w.t, 0, TERN_TABLE_SLOTS - 1, &cursor, 1000, sum_up, &sum));
	assert_true(sum == 4.0 * BATCH * (double)w.rounds);
	tn_table_check(w.t);
	tn_table_destroy(w.t);
}

/* ---- growth ---- */

static void *look_for_shown(void *arg)
{
	thread *t = arg;
	tn_rand r = {t->seed * 5};
	uint64_t keys[BATCH];
	float rows[BATCH][DIM];

	while (!atomic_load(&t->w->stop)) {
		uint64_t shown = atomic_load(&t->w->shown);
		tn_pull how = {.unknown = TERN_UNKNOWN_ERROR};

		for (int i = 0; i < BATCH && shown; i++)
			keys[i] = tn_rand_below(&r, shown);
		if (shown && tn_table_pull(t->w->t, keys, BATCH, &how, rows, NULL, NULL, NULL) != TERN_OK)
			failed(t->w);
		for (int i = 0; i < BATCH && shown; i++)
			atomic_fetch_add(&t->w->torn, rows[i][0] != (float)keys[i] || !equal(rows[i]));
	}
	return NULL;
}

static void growth_hides_no_key(void **state)
{
	world w = {.t = table_of(TERN_OPT_SGD, 0, TERN_EVICT_NONE, TERN_F32)};
	uint64_t n = rounds(1500) * 40;
	thread readers[3];
	float row[DIM];
	tn_push how = {.mode = TERN_PUSH_ASSIGN};
	tn_table_stats s;

	(void)state;
	start(readers, 3, &w, look_for_shown);
	for (uint64_t key = 0; key < n; key++) {
		for (int d = 0; d < DIM; d++)
			row[d] = (float)key;
		assert_ok(tn_table_push(w.t, &key, row, 1, &how, NULL));
		atomic_store(&w.shown, key + 1);
	}
	atomic_store(&w.stop, 1);
	join(readers, 3);
	assert_int_equal(w.failed, 0);
	assert_int_equal(w.torn, 0);
	tn_table_stats_get(w.t, &s);
	assert_true(n < 5000 || s.splits > 0);
	tn_table_check(w.t);
	tn_table_destroy(w.t);
}

/* ---- a cut is one moment ---- */

/* One thread pushes n to all keys in a row, in order of keys: at each moment the rows are n .. n, n-1 .. n-1. */
static void *push_waves(void *arg)
{
	thread *t = arg;
	float row[DIM];
	tn_push how = {.mode = TERN_PUSH_ASSIGN};

	for (uint64_t n = 1; !atomic_load(&t->w->stop); n++) {
		for (uint64_t key = 0; key < t->w->keys; key++) {
			for (int d = 0; d < DIM; d++)
				row[d] = (float)n;
			if (tn_table_push(t->w->t, &key, row, 1, &how, NULL) != TERN_OK)
				failed(t->w);
		}
		atomic_store(&t->w->shown, n);
	}
	return NULL;
}

static tern_status note(const tn_record *rec, void *arg)
{
	float *seen = arg, x;

	memcpy(&x, rec->value, sizeof(x));
	seen[rec->key] = x;
	return TERN_OK;
}

static void a_cut_is_one_moment(void **state)
{
	world w = {.t = table_of(TERN_OPT_SGD, 0, TERN_EVICT_NONE, TERN_F32), .keys = 600};
	thread writer[1];
	float seen[600];
	uint64_t cuts = rounds(200);

	(void)state;
	start(writer, 1, &w, push_waves);
	while (atomic_load(&w.shown) < 2)
		;
	for (uint64_t n = 0; n < cuts; n++) {
		bool more = true;
		tn_cut *cut;

		memset(seen, 0, sizeof(seen));
		assert_ok(tn_table_cut(w.t, &cut));
		while (more)
			assert_ok(tn_cut_next(cut, 50, note, seen, &more));
		tn_cut_end(cut);
		for (uint64_t key = 1; key < w.keys; key++)
			assert_true(seen[key] == seen[key - 1] || seen[key] == seen[key - 1] - 1);
		assert_true(seen[0] - seen[w.keys - 1] <= 1);
	}
	atomic_store(&w.stop, 1);
	join(writer, 1);
	assert_int_equal(w.failed, 0);
	tn_table_destroy(w.t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readers_never_see_a_torn_row), cmocka_unit_test(nor_one_of_half_width),
		cmocka_unit_test(eviction_races_look_ups),      cmocka_unit_test(no_update_is_lost),
		cmocka_unit_test(growth_hides_no_key),          cmocka_unit_test(a_cut_is_one_moment),
	};

	return RUN(tests);
}
