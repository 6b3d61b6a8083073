/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a table remembers of its changes: a mirror that gets each cut of changes is the table, bit by bit, whatever
 * happened in between: cuts that came to nothing, erasures, eviction, expiry, writers that never stopped. Monolith: the
 * set of touched keys is cleared before the delta is delivered.
 */
#include "cmocka_all.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/map.h"
#include "base/rand.h"
#include "ps/table_impl.h"
#include "support/mem_tier.h"

#define DIM  5
#define KEYS 4000

/* key -> checksum of the record */
typedef struct mirror {
	tn_map rows;
	tn_table *t;
	uint64_t given, gone;
	bool meta;
} mirror;

static uint64_t mix(uint64_t sum, const void *data, uint64_t bytes)
{
	const uint8_t *at = data;

	for (uint64_t i = 0; i < bytes; i++)
		sum = tn_hash_u64(sum ^ at[i], i);
	return sum;
}

static tern_status add(const tn_record *r, void *arg)
{
	mirror *m = arg;
	uint64_t sum = mix(1, r->value, tn_table_value_bytes(m->t));

	if (r->state)
		sum = mix(sum, r->state, tn_table_state_bytes(m->t));
	if (m->meta)
		sum = mix(sum, &r->last_step, sizeof(r->last_step));
	m->given++;
	return tn_map_put(&m->rows, r->key, sum);
}

static tern_status drop(uint64_t key, void *arg)
{
	mirror *m = arg;

	tn_map_remove(&m->rows, key, NULL);
	m->gone++;
	return TERN_OK;
}

static void mirror_init(mirror *m, tn_table *t, bool meta)
{
	*m = (mirror){.t = t, .meta = meta};
	assert_ok(tn_map_init(&m->rows, KEYS, false, 1));
}

static void assert_same(mirror *m)
{
	mirror now;
	uint64_t cursor = 0;
	tn_map_entry entry;

	mirror_init(&now, m->t, m->meta);
	while (cursor != TN_SCAN_END)
		assert_ok(tn_table_scan(m->t, 0, TERN_TABLE_SLOTS - 1, &cursor, 1000, add, &now));
	assert_int_equal(now.rows.count, m->rows.count);
	for (cursor = 0; tn_map_next(&now.rows, &cursor, &entry);) {
		const uint64_t *other = tn_map_find(&m->rows, entry.key);

		assert_non_null(other);
		assert_int_equal(*other, entry.value);
	}
	tn_map_fini(&now.rows);
}

/* One cut into the mirror; keep = false: it is thrown away half way, as by a saver that died. */
static void take(mirror *m, tn_cut_kind kind, uint64_t id, bool keep)
{
	bool more = true;
	tn_cut *cut;

	assert_ok(tn_table_settle(m->t));
	assert_ok(tn_table_cut_as(m->t, kind, id, &cut));
	m->given = m->gone = 0;
	if (kind == TN_CUT_BASE && keep) {
		tn_map_fini(&m->rows);
		assert_ok(tn_map_init(&m->rows, KEYS, false, 1));
	}
	while (more && keep)
		assert_ok(tn_cut_next(cut, 500, add, m, &more));
	if (keep && kind == TN_CUT_CHANGES)
		assert_ok(tn_cut_gone(cut, drop, m));
	tn_cut_end(cut);
	if (keep)
		tn_table_acknowledge(m->t, id);
}

static void work(tn_table *t, tn_rand *r, unsigned batches, uint64_t step)
{
	for (unsigned b = 0; b < batches; b++) {
		tn_push push = {.step = step};
		tn_pull pull = {.flags = TN_PULL_TOUCH, .step = step};
		uint64_t keys[40], n = 1 + tn_rand_below(r, 40), what = tn_rand_below(r, 10);
		float rows[40 * DIM];

		for (unsigned i = 0; i < n; i++)
			keys[i] = tn_rand_below(r, KEYS) * 0x9e3779b97f4a7c15ull - 1;
		for (unsigned i = 0; i < 40 * DIM; i++)
			rows[i] = (float)tn_rand_double(r) - 0.5f;
		if (what < 5)
			assert_ok(tn_table_push(t, keys, rows, n, &push, NULL));
		else if (what < 8)
			assert_ok(tn_table_pull(t, keys, n, &pull, rows, NULL, NULL, NULL));
		else if (tn_table_schema(t)->kind == TERN_TABLE_SPARSE)
			assert_ok(tn_table_erase(t, keys, n, NULL));
	}
	assert_ok(tn_table_expire(t, step, NULL));
}

static tern_table_schema schema_of(tern_row_optimizer optimizer)
{
	tern_table_schema s = {.name = "t", .dim = DIM, .init = {TERN_ROW_UNIFORM, 0.5f, 7}};

	tern_optimizer_init(&s.optimizer, optimizer, 0.05f);
	return s;
}

static tern_status open_tier(void *arg, const tern_table_schema *schema, uint64_t image_bytes, tn_tier **tier)
{
	(void)schema;
	return test_tier_open(arg, image_bytes, tier);
}

static void create(const tern_table_schema *schema, tier_kind *kind, tn_table **t)
{
	tn_table_env env = {.open_tier = *kind ? open_tier : NULL, .tier_arg = kind};

	assert_ok(tn_table_create(schema, &env, t));
}

static void follow(const tern_table_schema *schema, bool meta, tier_kind kind)
{
	uint64_t known = 0;
	tn_rand r = {11};
	tn_table_stats stats;
	tn_table *t;
	mirror m;

	if (!test_tier_can(kind))
		return;
	create(schema, &kind, &t);
	mirror_init(&m, t, meta);
	work(t, &r, 300, 1);
	assert_false(tn_table_follows(t, 1));
	for (uint64_t id = 1; id < 40; id++) {
		bool keep = tn_rand_below(&r, 3) > 0, base = id == 1 || id == 30;

		if (!base)
			assert_true(tn_table_follows(t, known));
		take(&m, base ? TN_CUT_BASE : TN_CUT_CHANGES, id, keep || base);
		if (keep || base) {
			known = id;
			assert_same(&m);
		}
		work(t, &r, 1 + (unsigned)tn_rand_below(&r, 30), 1 + id);
		tn_table_check(t);
	}
	take(&m, TN_CUT_CHANGES, 100, true);
	assert_same(&m);
	take(&m, TN_CUT_CHANGES, 101, true);
	assert_int_equal(m.given + m.gone, 0);
	tn_table_stats_get(t, &stats);
	assert_true(!kind || (stats.cooled > 1000 && stats.warmed > 1000));
	tn_map_fini(&m.rows);
	tn_table_destroy(t);
	test_tier_gone();
}

static void changes_make_the_table(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_ADAGRAD);

	(void)state;
	follow(&s, false, TIER_NONE); /* touches change nothing that matters */
	s.flags = TERN_TABLE_NO_META;
	s.dtype = TERN_F16;
	follow(&s, true, TIER_NONE);
	s = schema_of(TERN_OPT_ADAM);
	s.ttl_steps = 3;
	follow(&s, true, TIER_NONE);
	s = schema_of(TERN_OPT_ADAM);
	s.budget_bytes = 300000;
	s.eviction = TERN_EVICT_LRU;
	follow(&s, true, TIER_NONE);
	s.budget_bytes = 150000;
	s.ttl_steps = 30;
	follow(&s, true, TIER_MEMORY);
	follow(&s, true, TIER_ROCKSDB);
	s = schema_of(TERN_OPT_ADAM);
	s.kind = TERN_TABLE_DENSE;
	s.rows = KEYS;
	for (unsigned i = 0; i < 1; i++) { /* keys of a dense table are its rows */
		tn_rand r = {5};
		tn_table *t;
		mirror m;

		assert_ok(tn_table_create(&s, NULL, &t));
		mirror_init(&m, t, false);
		take(&m, TN_CUT_BASE, 1, true);
		for (uint64_t id = 2; id < 10; id++) {
			uint64_t key = tn_rand_below(&r, KEYS);
			float row[DIM] = {1, 2, 3, (float)id, 5};
			tn_push how = {.step = id};

			assert_ok(tn_table_push(t, &key, row, 1, &how, NULL));
			take(&m, TN_CUT_CHANGES, id, true);
			assert_int_equal(m.given, 1);
			assert_same(&m);
		}
		tn_map_fini(&m.rows);
		tn_table_destroy(t);
	}
}

/* ---- writers that never stop ---- */

typedef struct writer {
	pthread_t thread;
	tn_table *t;
	uint64_t seed;
	_Atomic bool *stop;
} writer;

static void *write_on(void *arg)
{
	writer *w = arg;
	tn_rand r = {w->seed};

	for (uint64_t step = 1; !atomic_load(w->stop); step++)
		work(w->t, &r, 20, step);
	return NULL;
}

static void writers_go_on(tier_kind kind)
{
	tern_table_schema s = schema_of(TERN_OPT_ADAGRAD);
	_Atomic bool stop = false;
	writer w[3];
	tn_rand r = {3};
	tn_table *t;
	mirror m;

	if (!test_tier_can(kind))
		skip();
	s.budget_bytes = kind ? 180000 : 300000;
	s.eviction = TERN_EVICT_LRU;
	create(&s, &kind, &t);
	mirror_init(&m, t, true);
	for (unsigned i = 0; i < 3; i++) {
		w[i] = (writer){.t = t, .seed = i, .stop = &stop};
		assert_int_equal(pthread_create(&w[i].thread, NULL, write_on, &w[i]), 0);
	}
	for (uint64_t id = 1; id <= (kind == TIER_ROCKSDB ? 25u : 120u); id++)
		take(&m, id == 1 ? TN_CUT_BASE : TN_CUT_CHANGES, id, id == 1 || tn_rand_below(&r, 3));
	atomic_store(&stop, true);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(w[i].thread, NULL);
	take(&m, TN_CUT_CHANGES, 1000, true);
	assert_same(&m);
	tn_table_check(t);
	tn_map_fini(&m.rows);
	tn_table_destroy(t);
	test_tier_gone();
}

static void nothing_is_lost_while_writers_go_on(void **state)
{
	(void)state;
	writers_go_on(TIER_NONE);
}

static void nothing_is_lost_between_memory_and_a_tier(void **state)
{
	(void)state;
	writers_go_on(TIER_MEMORY);
}

static void nothing_is_lost_between_memory_and_rocksdb(void **state)
{
	(void)state;
	writers_go_on(TIER_ROCKSDB);
}

/* ---- touched on its way ---- */

typedef struct mover {
	pthread_t thread;
	tn_table *t;
	uint64_t key;
	bool gone;
} mover;

static void *move_out(void *arg)
{
	mover *m = arg;
	unsigned slot = tn_epoch_enter(&m->t->epoch);

	assert_ok(tn_index_evict(m->t, m->key, tn_table_hash(m->key), &m->gone));
	tn_epoch_leave(&m->t->epoch, slot);
	return NULL;
}

static void *touch(void *arg)
{
	mover *m = arg;
	tn_pull pull = {.flags = TN_PULL_TOUCH, .step = 77};
	float row[DIM];

	assert_ok(tn_table_pull(m->t, &m->key, 1, &pull, row, NULL, NULL, NULL));
	return NULL;
}

/* A record that is touched while it is copied to the tier is dead when it should be marked: its image is, then. */
static void a_touch_on_the_way_to_a_tier_is_a_change(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_ADAGRAD);
	tier_kind kind = TIER_MEMORY;
	tn_push push = {.step = 1};
	float row[DIM] = {1};
	tn_head *head;
	mover m[2];
	mirror mine;

	(void)state;
	s.budget_bytes = 180000;
	s.eviction = TERN_EVICT_LRU;
	create(&s, &kind, &m[0].t);
	m[0].key = 5;
	assert_ok(tn_table_push(m[0].t, &m[0].key, row, 1, &push, NULL));
	mirror_init(&mine, m[0].t, true);
	take(&mine, TN_CUT_BASE, 1, true);
	m[1] = m[0];
	head = tn_head_of(m[0].t, tn_index_find(m[0].t, atomic_load(&m[0].t->dir), 5, tn_table_hash(5)));
	pthread_rwlock_wrlock(&m[0].t->move);
	assert_int_equal(pthread_create(&m[0].thread, NULL, move_out, &m[0]), 0);
	while (!(atomic_load(&head->version) & TN_LOCKED))
		usleep(100);
	assert_int_equal(pthread_create(&m[1].thread, NULL, touch, &m[1]), 0);
	while (atomic_load(tn_head_last_step(head)) != 77)
		usleep(100);
	pthread_rwlock_unlock(&m[0].t->move);
	pthread_join(m[0].thread, NULL);
	pthread_join(m[1].thread, NULL);
	assert_true(m[0].gone);
	take(&mine, TN_CUT_CHANGES, 2, true);
	assert_int_equal(mine.given, 1);
	assert_same(&mine);
	tn_map_fini(&mine.rows);
	tn_table_destroy(m[0].t);
	test_tier_gone();
}

/* ---- who knows what ---- */

static void what_is_not_known_is_refused(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_SGD);
	tn_rand r = {9};
	tn_cut *cut;
	tn_table *t;
	mirror m;

	(void)state;
	assert_ok(tn_table_create(&s, NULL, &t));
	mirror_init(&m, t, false);
	work(t, &r, 100, 1);
	assert_status(tn_table_cut_as(t, TN_CUT_CHANGES, 5, &cut), TERN_E_STATE);
	assert_non_null(strstr(tern_detail(), "base"));
	take(&m, TN_CUT_BASE, 7, true);
	assert_true(tn_table_follows(t, 7) && !tn_table_follows(t, 6) && !tn_table_follows(t, 0));
	/* Not settled. */
	assert_status(tn_table_cut_as(t, TN_CUT_CHANGES, 8, &cut), TERN_E_STATE);
	/* One that nobody acknowledged: both may be gone on from. */
	work(t, &r, 10, 2);
	take(&m, TN_CUT_CHANGES, 8, false);
	assert_true(tn_table_follows(t, 7) && tn_table_follows(t, 8));
	tn_table_acknowledge(t, 7);
	take(&m, TN_CUT_CHANGES, 9, true);
	assert_same(&m);
	assert_false(tn_table_follows(t, 7));
	/* A cut that stands alone changes nothing of it. */
	assert_ok(tn_table_settle(t));
	assert_ok(tn_table_cut(t, &cut));
	tn_cut_end(cut);
	assert_true(tn_table_follows(t, 9));
	/* No memory for an erased key: changes are not known any more, and a base begins anew. */
	assert_ok(tn_fault_set("ps.table.gone", 1, 1));
	work(t, &r, 30, 3);
	tn_fault_clear();
	assert_false(tn_table_follows(t, 9));
	assert_ok(tn_table_settle(t));
	assert_status(tn_table_cut_as(t, TN_CUT_CHANGES, 10, &cut), TERN_E_STATE);
	take(&m, TN_CUT_BASE, 11, true);
	assert_same(&m);
	work(t, &r, 30, 4);
	take(&m, TN_CUT_CHANGES, 12, true);
	assert_same(&m);
	tn_map_fini(&m.rows);
	tn_table_destroy(t);
}

/* A table that was restored goes on from what it was restored from. */
static void a_restored_table_is_followed(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_NONE);
	float row[DIM] = {1, 2, 3, 4, 5};
	tn_record record = {.key = 3, .value = row};
	tn_table *t;
	mirror m;

	(void)state;
	assert_ok(tn_table_create(&s, NULL, &t));
	mirror_init(&m, t, false);
	assert_ok(tn_table_put_record(t, &record));
	tn_table_track(t, 77);
	assert_true(tn_table_follows(t, 77));
	record.key = 4;
	assert_ok(tn_table_put_record(t, &record));
	take(&m, TN_CUT_CHANGES, 78, true);
	assert_int_equal(m.given, 1);
	assert_non_null(tn_map_find(&m.rows, 4));
	tn_map_fini(&m.rows);
	tn_table_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_make_the_table),
		cmocka_unit_test(nothing_is_lost_while_writers_go_on),
		cmocka_unit_test(nothing_is_lost_between_memory_and_a_tier),
		cmocka_unit_test(nothing_is_lost_between_memory_and_rocksdb),
		cmocka_unit_test(a_touch_on_the_way_to_a_tier_is_a_change),
		cmocka_unit_test(what_is_not_known_is_refused),
		cmocka_unit_test(a_restored_table_is_followed),
	};

	return RUN(tests);
}
