/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables with a cold tier: no update is lost on the way between memory and tier, whoever moves it; a tier that fails loses
 * nothing and is said in words; scans and cuts have all rows. (That a table with a tier is the oracle, bit by bit:
 * model_test.)
 */
#include "cmocka_all.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/fault.h"
#include "base/rand.h"
#include "ps/save.h"
#include "ps/table_impl.h"
#include "support/mem_tier.h"

#define DIM  4
#define KEYS 3000

static uint64_t key_of(uint64_t i)
{
	return i * 0x9e3779b97f4a7c15ull;
}

static tern_status open_tier(void *arg, const tern_table_schema *schema, uint64_t image_bytes, tn_tier **tier)
{
	(void)schema;
	return test_tier_open(arg, image_bytes, tier);
}

static tn_table *create(tier_kind *kind, uint32_t admit_after)
{
	tern_table_schema s = {.name = "t", .dim = DIM, .budget_bytes = 150000, .eviction = TERN_EVICT_LRU};
	tn_table_env env = {.open_tier = open_tier, .tier_arg = kind};
	tn_table *t;

	s.admit_after = admit_after;
	assert_ok(tn_table_create(&s, &env, &t));
	return t;
}

static void destroy(tn_table *t)
{
	tn_table_check(t);
	tn_table_destroy(t);
	test_tier_gone();
}

/* ---- many threads ---- */

typedef struct adder {
	pthread_t thread;
	tn_table *t;
	uint64_t seed;
	_Atomic uint32_t *added;
	char error[512]; /* cmocka's assertions end the process without a word in threads */
} adder;

/* What was pushed is there: in memory, in the tier, or on its way. */
static bool push_and_look(adder *a, const uint64_t *keys, float *rows, uint64_t n, const tn_push *push,
			  const tn_pull *pull)
{
	tern_status status = tn_table_push(a->t, keys, rows, n, push, NULL);
	uint8_t found[30];

	if (status == TERN_OK)
		status = tn_table_pull(a->t, keys, n, pull, rows, NULL, found, NULL);
	if (status != TERN_OK)
		snprintf(a->error, sizeof(a->error), "%s: %s", tern_status_name(status), tn_detail_get());
	for (uint64_t i = 0; i < n && status == TERN_OK; i++)
		if (!found[i] || rows[i * DIM] < 1 || rows[i * DIM] != rows[i * DIM + DIM - 1]) {
			snprintf(a->error, sizeof(a->error), "key %llx: found %d, %g ... %g",
				 (unsigned long long)keys[i], found[i], (double)rows[i * DIM],
				 (double)rows[i * DIM + DIM - 1]);
			return false;
		}
	return status == TERN_OK;
}

static void *add_ones(void *arg)
{
	adder *a = arg;
	tn_rand r = {a->seed};

	for (unsigned b = 0; b < 400; b++) {
		tn_push push = {.mode = TERN_PUSH_ADD, .step = b};
		tn_pull pull = {.unknown = (tern_unknown)tn_rand_below(&r, 3), .step = b};
		uint64_t keys[30];
		float rows[30 * DIM];

		for (unsigned i = 0; i < 30; i++) {
			uint64_t k = tn_rand_below(&r, KEYS);

			keys[i] = key_of(k);
			atomic_fetch_add(&a->added[k], 1);
			for (unsigned d = 0; d < DIM; d++)
				rows[i * DIM + d] = 1;
		}
		if (!push_and_look(a, keys, rows, 30, &push, &pull))
			break;
	}
	return NULL;
}

static void add_all(tier_kind kind)
{
	_Atomic uint32_t *added = calloc(KEYS, sizeof(*added));
	uint64_t present = 0;
	tn_table_stats stats;
	adder a[4];
	tn_table *t;

	if (!test_tier_can(kind)) {
		free((void *)added);
		skip();
	}
	t = create(&kind, 0);
	for (unsigned i = 0; i < 4; i++) {
		a[i] = (adder){.t = t, .seed = i, .added = added};
		assert_int_equal(pthread_create(&a[i].thread, NULL, add_ones, &a[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(a[i].thread, NULL);
	for (unsigned i = 0; i < 4; i++)
		if (a[i].error[0])
			fail_msg("%s", a[i].error);
	tn_table_stats_get(t, &stats);
	assert_true(stats.cooled > 1000 && stats.warmed > 1000 && stats.tier_errors == 0);
	for (uint64_t k = 0; k < KEYS; k++) {
		tn_pull how = {.unknown = TERN_UNKNOWN_ZERO};
		uint64_t key = key_of(k);
		uint8_t found;
		float row[DIM];

		assert_ok(tn_table_pull(t, &key, 1, &how, row, NULL, &found, NULL));
		assert_true(row[0] == (float)added[k] && row[DIM - 1] == row[0]);
		assert_int_equal(found, added[k] > 0);
		present += found;
	}
	assert_int_equal(stats.rows, present);
	destroy(t);
	free((void *)added);
}

static void no_update_is_lost_between_memory_and_tier(void **state)
{
	(void)state;
	add_all(TIER_MEMORY);
}

static void no_update_is_lost_between_memory_and_rocksdb(void **state)
{
	(void)state;
	add_all(TIER_ROCKSDB);
}

/* ---- between two places ---- */

typedef struct visitor { /* of one row, in a thread: adds to it, or reads it */
	pthread_t thread;
	tn_table *t;
	uint64_t key;
	bool push;
	tern_status status;
	tn_push_result pushed;
	float row[DIM];
	uint8_t found;
} visitor;

static void *visit(void *arg)
{
	visitor *v = arg;
	tn_push push = {.mode = TERN_PUSH_ADD};
	tn_pull pull = {.unknown = TERN_UNKNOWN_ZERO};

	for (unsigned d = 0; v->push && d < DIM; d++)
		v->row[d] = 1;
	v->status = v->push ? tn_table_push(v->t, &v->key, v->row, 1, &push, &v->pushed)
			    : tn_table_pull(v->t, &v->key, 1, &pull, v->row, NULL, &v->found, NULL);
	return NULL;
}

static void visit_begin(visitor *v, tn_table *t, uint64_t key, bool push)
{
	*v = (visitor){.t = t, .key = key, .push = push};
	assert_int_equal(pthread_create(&v->thread, NULL, visit, v), 0);
}

/* A table with rows of 1, of which some are in the tier; whether the key is one of those. */
static tn_table *half_cold(bool in_tier, uint64_t *key)
{
	tier_kind kind = TIER_MEMORY;
	tn_table *t = create(&kind, 0);
	tn_table_stats stats;
	uint64_t n = 0;

	do {
		tn_push how = {.mode = TERN_PUSH_ADD};
		float row[DIM] = {1, 1, 1, 1};

		*key = key_of(n++);
		assert_ok(tn_table_push(t, key, row, 1, &how, NULL));
		tn_table_stats_get(t, &stats);
	} while (stats.cold_rows < 100);
	for (uint64_t i = 0; i < n; i++) {
		*key = key_of(i);
		if (tn_table_warm(t, key, 1) != in_tier)
			return t;
	}
	fail();
	return NULL;
}

/*
 * Who moves a record to the tier is held up before it is out of the index: those that find it dead wait for that. They tried
 * a few times, and said that there was no row, or counted a gradient as refused.
 */
static void a_dying_record_is_waited_for(void **state)
{
	uint64_t key, hash;
	uint32_t id, version;
	visitor v[2];
	tn_segment *seg;
	tn_head *head;
	tn_table *t = half_cold(false, &key);

	(void)state;
	hash = tn_table_hash(key);
	id = tn_index_find(t, atomic_load(&t->dir), key, hash);
	assert_true(id != 0);
	head = tn_head_of(t, id);
	seg = tn_entry_segment(tn_dir_entry(atomic_load(&t->dir), hash));
	pthread_mutex_lock(&seg->lock);
	assert_true(tn_head_lock(head, &version));
	tn_head_unlock(head, (version + TN_VERSION_STEP) | TN_DEAD);
	visit_begin(&v[0], t, key, false);
	visit_begin(&v[1], t, key, true);
	usleep(20000);                                               /* those that don't wait are through */
	atomic_store(&head->version, version + 2 * TN_VERSION_STEP); /* here it goes back to where it was */
	pthread_mutex_unlock(&seg->lock);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(v[i].thread, NULL);
		assert_ok(v[i].status);
	}
	assert_true(v[0].found && v[0].row[0] >= 1);
	assert_int_equal(v[1].pushed.applied, 1);
	assert_int_equal(v[1].pushed.refused, 0);
	destroy(t);
}

static const tn_tier_ops *real;
static visitor late;

/* The record has left the tier; before it is in the index somebody else looks for it. */
static tern_status remove_and_wait(tn_tier *tier, uint64_t place)
{
	tern_status status = real->remove(tier, place);

	visit_begin(&late, late.t, late.key, false);
	usleep(20000);
	return status;
}

static void a_record_on_its_way_out_of_the_tier_is_there(void **state)
{
	tn_tier_ops ops;
	visitor first;
	uint64_t key;
	tn_table *t = half_cold(true, &key);

	(void)state;
	real = t->tier->ops;
	ops = *real;
	ops.remove = remove_and_wait;
	t->tier->ops = &ops;
	late = (visitor){.t = t, .key = key};
	visit_begin(&first, t, key, false);
	pthread_join(first.thread, NULL);
	pthread_join(late.thread, NULL);
	t->tier->ops = real;
	assert_true(first.found && first.row[0] == 1);
	assert_true(late.found && late.row[0] == 1);
	destroy(t);
}

/* ---- a tier that fails ---- */

static tern_status push_one(tn_table *t, uint64_t k)
{
	tn_push how = {.mode = TERN_PUSH_ADD};
	float row[DIM] = {1, 1, 1, 1};
	uint64_t key = key_of(k);

	return tn_table_push(t, &key, row, 1, &how, NULL);
}

static float value(tn_table *t, uint64_t k, tern_status wanted)
{
	tn_pull how = {.unknown = TERN_UNKNOWN_ZERO};
	uint64_t key = key_of(k);
	float row[DIM];

	assert_status(tn_table_pull(t, &key, 1, &how, row, NULL, NULL, NULL), wanted);
	return row[0];
}

static void a_tier_that_fails_loses_nothing(void **state)
{
	tier_kind kind = test_tier_can(TIER_ROCKSDB) ? TIER_ROCKSDB : TIER_MEMORY;
	tn_table_stats stats;
	uint64_t n = 0, cold, gone, key;
	tn_table *t = create(&kind, 0);

	(void)state;
	do {
		assert_ok(push_one(t, n++));
		tn_table_stats_get(t, &stats);
	} while (stats.cold_rows < 100);
	/* No room: the disk is full. What is in memory stays there. */
	assert_ok(tn_fault_set("tier.put", 1, 1000000));
	for (unsigned i = 0; i < 40 && stats.tier_errors == 0; i++) {
		tern_status status = push_one(t, n + i);

		tn_table_stats_get(t, &stats);
		assert_true(status == TERN_OK || status == TERN_E_IO);
	}
	assert_true(stats.tier_errors > 0);
	assert_status(push_one(t, n + 1000), TERN_E_IO);
	assert_non_null(strstr(tn_detail_get(), "table \"t\""));
	tn_fault_clear();
	assert_ok(push_one(t, n + 1000));
	for (uint64_t k = 0; k < n; k++)
		assert_true(value(t, k, TERN_OK) == 1);
	/* It can't be read: a row that is there is not taken for one that is not. */
	for (cold = 0; cold < n; cold++) {
		key = key_of(cold);
		if (!tn_table_warm(t, &key, 1))
			break;
	}
	assert_true(cold < n);
	assert_ok(tn_fault_set("tier.get", 1, 1000000));
	(void)value(t, cold, TERN_E_IO);
	assert_status(push_one(t, cold), TERN_E_IO);
	assert_status(tn_table_erase(t, &key, 1, &gone), TERN_E_IO);
	assert_int_equal(gone, 0);
	tn_fault_clear();
	assert_true(value(t, cold, TERN_OK) == 1);
	assert_true(tn_table_warm(t, &key, 1));
	assert_ok(tn_table_erase(t, &key, 1, &gone));
	assert_int_equal(gone, 1);
	destroy(t);
}

/* ---- admission: a row that is in the tier was admitted ---- */

static void cold_rows_need_no_admission(void **state)
{
	tier_kind kind = TIER_MEMORY;
	tn_table *t = create(&kind, 3);
	tn_table_stats stats;
	uint64_t n = 0;

	(void)state;
	do {
		for (unsigned i = 0; i < 3; i++)
			assert_ok(push_one(t, n));
		n++;
		tn_table_stats_get(t, &stats);
	} while (stats.cold_rows < 50);
	for (uint64_t k = 0; k < n; k++)
		assert_ok(push_one(t, k));
	for (uint64_t k = 0; k < n; k++)
		assert_true(value(t, k, TERN_OK) >=
			    2); /* the third ask made it; sketches may count too much */
	destroy(t);
}

/* ---- a cut has them all, while they move ---- */

static tern_status sum_up(const tn_record *r, void *arg)
{
	double *sum = arg;

	sum[0] += (double)((const float *)r->value)[0];
	sum[1] += 1;
	return TERN_OK;
}

static void a_cut_has_what_is_in_memory_and_in_the_tier(void **state)
{
	tier_kind kind = test_tier_can(TIER_ROCKSDB) ? TIER_ROCKSDB : TIER_MEMORY;
	double cut_sum[2] = {0, 0}, scan_sum[2] = {0, 0};
	tn_table *t = create(&kind, 0);
	uint64_t cursor = 0;
	tn_rand r = {1};
	bool more = true;
	tn_cut *cut;

	(void)state;
	for (uint64_t k = 0; k < KEYS; k++)
		assert_ok(push_one(t, k));
	while (cursor != TN_SCAN_END)
		assert_ok(tn_table_scan(t, 0, TERN_TABLE_SLOTS - 1, &cursor, 100, sum_up, scan_sum));
	assert_true(scan_sum[0] == KEYS && scan_sum[1] == KEYS);
	assert_ok(tn_table_cut(t, &cut));
	assert_int_equal(tn_cut_rows(cut), KEYS);
	while (more) {
		for (unsigned i = 0; i < 50; i++) /* they move, and change */
			assert_ok(push_one(t, tn_rand_below(&r, KEYS + 100)));
		assert_ok(tn_cut_next(cut, 20, sum_up, cut_sum, &more));
	}
	tn_cut_end(cut);
	assert_true(cut_sum[0] == KEYS && cut_sum[1] == KEYS);
	destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_update_is_lost_between_memory_and_tier),
		cmocka_unit_test(no_update_is_lost_between_memory_and_rocksdb),
		cmocka_unit_test(a_dying_record_is_waited_for),
		cmocka_unit_test(a_record_on_its_way_out_of_the_tier_is_there),
		cmocka_unit_test(a_tier_that_fails_loses_nothing),
		cmocka_unit_test(cold_rows_need_no_admission),
		cmocka_unit_test(a_cut_has_what_is_in_memory_and_in_the_tier),
	};

	return RUN(tests);
}
