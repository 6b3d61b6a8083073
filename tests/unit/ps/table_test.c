/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables at their edges: memory per key, budgets, admission, allocation that fails, keys that collide, what users of
 * other systems ran into.
 */
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/rand.h"
#include "ps/table.h"

static tern_table_schema schema_of(tern_row_optimizer kind, uint32_t dim)
{
	tern_table_schema s = {.name = "edge", .dim = dim};

	tern_optimizer_init(&s.optimizer, kind, 0.1f);
	return s;
}

static tn_table *table_of(const tern_table_schema *s)
{
	tn_table *t = NULL;

	assert_ok(tn_table_create(s, NULL, &t));
	return t;
}

static void make_keys(tn_table *t, uint64_t first, uint64_t n)
{
	uint32_t dim = tn_table_schema(t)->dim;
	uint64_t keys[512];
	float *rows = malloc(512ull * dim * 4);
	tn_pull how = {.unknown = TERN_UNKNOWN_CREATE, .dtype = TERN_F32};

	for (uint64_t i = 0; i < n; i += 512) {
		uint64_t count = n - i < 512 ? n - i : 512;

		for (uint64_t k = 0; k < count; k++)
			keys[k] = first + i + k;
		assert_ok(tn_table_pull(t, keys, count, &how, rows, NULL, NULL, NULL));
	}
	free(rows);
}

/* ---- memory ---- */

#ifdef TN_SANITIZED /* they have memory of their own */
#define RESIDENT false
#else
#define RESIDENT true
#endif

static uint64_t resident(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long long pages = 0;

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%*u %llu", &pages), 1);
	fclose(file);
	return pages * 4096;
}

/* HugeCTR#412: ten times the data in memory. Wherever growth stops; and what is counted is what the process has. */
static void overhead_per_key_is_bounded(void **state)
{
	(void)state;
	for (int no_meta = 0; no_meta < 2; no_meta++) {
		tern_table_schema s = schema_of(TERN_OPT_ADAGRAD, 16);
		uint64_t before = resident(), n = 0;
		tn_table_stats st;
		tn_table *t;

		s.flags = no_meta ? TERN_TABLE_NO_META : 0;
		t = table_of(&s);
		for (uint64_t step = 100000; n < (RESIDENT ? 900000 : 200000); step = n / 64) {
			double over;

			make_keys(t, n + 1, step);
			n += step;
			tn_table_stats_get(t, &st);
			over = (double)st.bytes / (double)n -
			       (double)(tn_table_value_bytes(t) + tn_table_state_bytes(t));
			if (over > (no_meta ? 24 : 36))
				fail_msg("%.1f bytes a key beyond row and state at %llu keys", over,
					 (unsigned long long)n);
			if (RESIDENT && resident() > before + st.bytes + (4u << 20))
				fail_msg("%llu bytes resident, %llu counted at %llu keys",
					 (unsigned long long)(resident() - before),
					 (unsigned long long)st.bytes, (unsigned long long)n);
		}
		assert_int_equal(st.record_bytes, 128 + (no_meta ? 12 : 24));
		tn_table_check(t);
		tn_table_destroy(t);
	}
}

static void a_small_table_is_small(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_SGD, 8);
	tn_table *t = table_of(&s);
	tn_table_stats st;

	(void)state;
	make_keys(t, 0, 100);
	tn_table_stats_get(t, &st);
	assert_true(st.bytes <= 100 << 10);
	tn_table_destroy(t);
}

static void a_budget_holds_whatever_comes(void **state)
{
	(void)state;
	for (int eviction = 0; eviction < 3; eviction++) {
		for (uint64_t budget = 150000; budget < 3000000; budget = budget * 3 / 2) {
			tern_table_schema s = schema_of(TERN_OPT_ADAGRAD, 8);
			tn_table_stats st;
			tn_table *t;
			uint64_t key = 0;
			float row[8];
			tn_pull how = {.unknown = TERN_UNKNOWN_CREATE};

			s.budget_bytes = budget;
			s.eviction = (tern_eviction)eviction;
			t = table_of(&s);
			tn_table_stats_get(t, &st);
			for (key = 0; key < st.rows_max * 3 / 2; key++) {
				tern_status got = tn_table_pull(t, &key, 1, &how, row, NULL, NULL, NULL);

				assert_true(got == TERN_OK ||
					    (got == TERN_E_BUDGET && key >= st.rows_max && !eviction));
			}
			tn_table_stats_get(t, &st);
			assert_true(st.bytes <= budget);
			assert_int_equal(st.rows, st.rows_max);
			assert_int_equal(st.evicted, eviction ? key - st.rows_max : 0);
			assert_int_equal(st.refused, eviction ? 0 : key - st.rows_max);
			/* Most of the budget is rows, not fear. */
			assert_true(budget < 1000000 ||
				    (double)(st.rows * st.record_bytes) > 0.6 * (double)budget);
			tn_table_check(t);
			tn_table_destroy(t);
		}
	}
}

static void too_small_a_budget_is_said_at_creation(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_ADAGRAD, 64);
	tn_table *t;

	(void)state;
	s.budget_bytes = 100000;
	assert_status(tn_table_create(&s, NULL, &t), TERN_E_BUDGET);
	assert_non_null(strstr(tern_detail(), "least"));
}

/* Rows that are used stay, rows that are not go. */
static void eviction_takes_the_right_ones(void **state)
{
	(void)state;
	for (int eviction = 1; eviction < 3; eviction++) {
		tern_table_schema s = schema_of(TERN_OPT_NONE, 4);
		tn_table_stats st;
		tn_table *t;
		uint64_t hot[64], kept = 0;
		float rows[64 * 4] = {0};
		uint8_t found[64];
		tn_push push = {0};
		tn_pull pull = {.unknown = TERN_UNKNOWN_ZERO};

		s.budget_bytes = 400000;
		s.eviction = (tern_eviction)eviction;
		t = table_of(&s);
		tn_table_stats_get(t, &st);
		for (uint64_t i = 0; i < 64; i++)
			hot[i] = i;
		for (uint64_t i = 0; i < 40; i++) {
			push.step = i;
			assert_ok(tn_table_push(t, hot, rows, 64, &push, NULL));
			make_keys(t, 1000 + i * st.rows_max / 10, st.rows_max / 10);
		}
		assert_ok(tn_table_pull(t, hot, 64, &pull, rows, NULL, found, NULL));
		for (int i = 0; i < 64; i++)
			kept += found[i];
		assert_true(kept >= 60);
		tn_table_destroy(t);
	}
}

static void admission_waits_for_the_nth_request(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_NONE, 2);
	tn_pull pull = {.unknown = TERN_UNKNOWN_CREATE};
	tn_push push = {0};
	tn_pull_result pulled;
	tn_push_result pushed;
	uint64_t key = 5, rare = 0;
	float row[2] = {1, 1};
	tn_table_stats st;
	tn_table *t;

	(void)state;
	s.admit_after = 4;
	t = table_of(&s);
	assert_ok(tn_table_pull(t, &key, 1, &pull, row, NULL, NULL, &pulled));
	assert_int_equal(pulled.not_admitted, 1);
	assert_true(row[0] == 0);
	row[0] = 1;
	assert_ok(tn_table_push(t, &key, row, 1, &push, &pushed));
	assert_int_equal(pushed.not_admitted, 1);
	assert_ok(tn_table_push(t, &key, row, 1, &push, &pushed));
	assert_ok(tn_table_push(t, &key, row, 1, &push, &pushed));
	assert_int_equal(pushed.created, 1);
	/* A flood of keys that come once gets next to no rows. */
	for (rare = 1000; rare < 101000; rare++)
		assert_ok(tn_table_push(t, &rare, row, 1, &push, NULL));
	tn_table_stats_get(t, &st);
	assert_true(st.rows < 2000);
	tn_table_destroy(t);
}

/* ---- failure ---- */

static void failing_allocations_leave_a_table_that_works(void **state)
{
	static const char *const points[] = {"ps.table.create", "ps.table.slab",    "ps.table.segment",
					     "ps.table.dir",    "ps.table.scratch", "ps.table.dedup"};

	(void)state;
	for (size_t p = 0; p < sizeof(points) / sizeof(points[0]); p++) {
		for (uint32_t nth = 1; nth <= 6; nth++) {
			tern_table_schema s = schema_of(TERN_OPT_ADAM, 8);
			float rows[256 * 8] = {0};
			uint64_t keys[256], refused = 0;
			tn_push how = {0};
			tn_table *t = NULL;
			tern_status st;

			assert_ok(tn_fault_set(points[p], nth, 1));
			st = tn_table_create(&s, NULL, &t);
			for (uint64_t i = 0; st == TERN_OK && i < 16000; i += 256) {
				tern_status got;

				for (uint64_t k = 0; k < 256; k++)
					keys[k] = i + k;
				got = tn_table_push(t, keys, rows, 256, &how, NULL);
				assert_true(got == TERN_OK || got == TERN_E_NOMEM || got == TERN_E_TOO_LARGE);
				refused += got != TERN_OK;
				if (got != TERN_OK)
					assert_ok(tn_table_push(t, keys, rows, 256, &how, NULL));
			}
			tn_fault_clear();
			assert_true(st == TERN_OK || st == TERN_E_NOMEM);
			assert_true(refused <= 1);
			if (st == TERN_OK) {
				tn_table_stats stats;

				tn_table_stats_get(t, &stats);
				assert_int_equal(stats.rows, 16128);
				tn_table_check(t);
			}
			tn_table_destroy(t);
		}
	}
}

static void a_cut_without_memory_says_so(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_SGD, 8);
	tn_table *t = table_of(&s);
	uint64_t key = 3, n = 0;
	float row[8] = {1};
	tn_push how = {0};
	bool more = true;
	tern_status st = TERN_OK;
	tn_cut *cut;

	(void)state;
	(void)n;
	assert_ok(tn_table_push(t, &key, row, 1, &how, NULL));
	assert_ok(tn_table_cut(t, &cut));
	assert_status(tn_table_cut(t, &cut), TERN_E_STATE);
	assert_ok(tn_fault_set("ps.table.side", 1, 1));
	assert_ok(tn_table_push(t, &key, row, 1, &how, NULL));
	tn_fault_clear();
	while (more && st == TERN_OK)
		st = tn_cut_next(cut, 10, NULL, NULL, &more);
	assert_status(st, TERN_E_NOMEM);
	tn_cut_end(cut);
	tn_table_destroy(t);
}

#define CUT_ROWS 5000u

static tern_status count_row(const tn_record *record, void *arg)
{
	(void)record;
	++*(uint64_t *)arg;
	return TERN_OK;
}

/* Steps until it is over; each gives at most so many, all of them together *rows. */
static unsigned walk_cut(tn_cut *cut, uint64_t most, uint64_t *rows)
{
	unsigned steps = 0;

	*rows = 0;
	for (bool more = true; more; steps++) {
		uint64_t n = 0;

		assert_ok(tn_cut_next(cut, most, count_row, &n, &more));
		assert_true(n <= most);
		*rows += n;
	}
	tn_cut_end(cut);
	return steps;
}

/*
 * Who walks through a cut shares a core with those who pull: also where all rows were written since, and wait in the side store, and
 * where none of them is wanted.
 */
static void steps_of_a_cut_are_short(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_SGD, 8);
	tn_table *t = table_of(&s);
	static uint64_t keys[CUT_ROWS];
	static float rows[CUT_ROWS * 8];
	tn_push how = {0};
	uint64_t given;
	tn_cut *cut;

	(void)state;
	for (uint64_t i = 0; i < CUT_ROWS; i++)
		keys[i] = i + 1;
	assert_ok(tn_table_push(t, keys, rows, CUT_ROWS, &how, NULL));
	assert_ok(tn_table_cut_as(t, TN_CUT_BASE, 1, &cut));
	assert_ok(tn_table_push(t, keys, rows, CUT_ROWS, &how, NULL));
	assert_true(walk_cut(cut, 100, &given) >= CUT_ROWS / 100);
	assert_int_equal(given, CUT_ROWS);
	tn_table_acknowledge(t, 1);
	assert_ok(tn_table_settle(t));
	assert_ok(tn_table_cut_as(t, TN_CUT_CHANGES, 2, &cut)); /* all: they were pushed after the base */
	(void)walk_cut(cut, CUT_ROWS, &given);
	assert_int_equal(given, CUT_ROWS);
	tn_table_acknowledge(t, 2);
	assert_ok(tn_table_settle(t));
	assert_ok(tn_table_cut_as(t, TN_CUT_CHANGES, 3, &cut));
	assert_true(walk_cut(cut, CUT_ROWS, &given) >= CUT_ROWS / 1024);
	assert_int_equal(given, 0);
	tn_table_destroy(t);
}

/* ---- keys ---- */

/* The inverse of the hash, so that a test can choose where keys go. */
static uint64_t key_of_hash(uint64_t h)
{
	h = h ^ (h >> 31) ^ (h >> 62);
	h *= 0x319642b2d24d8ec3ull;
	h = h ^ (h >> 27) ^ (h >> 54);
	h *= 0x96de1b173f119089ull;
	h = h ^ (h >> 30) ^ (h >> 60);
	return h ^ TN_SLOT_SEED;
}

static void keys_that_collide_cost_no_more_than_a_segment(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_NONE, 1);
	tn_push how = {0};
	tn_pull pull = {.unknown = TERN_UNKNOWN_ERROR};
	uint64_t made = 0;
	float one = 1, got;
	tn_table_stats st;
	tn_table *t = table_of(&s);

	(void)state;
	assert_int_equal(tn_table_hash(key_of_hash(12345)), 12345);
	/* All in one bucket, spread over the segments. */
	for (uint64_t i = 0; i < 2000; i++) {
		uint64_t key = key_of_hash(i << 50 | 7);

		assert_ok(tn_table_push(t, &key, &one, 1, &how, NULL));
	}
	tn_table_check(t);
	/* All in one segment for ever: refused in the end, with a text, and not with a directory of gigabytes. */
	for (uint64_t i = 0; i < 8000; i++) {
		uint64_t key = key_of_hash(0xabcdefull << 40 | i << 3);
		tern_status got_status = tn_table_push(t, &key, &one, 1, &how, NULL);

		assert_true(got_status == TERN_OK || got_status == TERN_E_LIMIT);
		made += got_status == TERN_OK;
		if (got_status == TERN_OK)
			assert_ok(tn_table_pull(t, &key, 1, &pull, &got, NULL, NULL, NULL));
	}
	assert_true(made >= 2000 && made < 8000);
	tn_table_stats_get(t, &st);
	assert_true(st.index_bytes < 4 << 20);
	tn_table_check(t);
	tn_table_destroy(t);
}

/* ps-lite#185: the top keys belonged to no server. */
static void all_keys_have_a_slot_and_a_row(void **state)
{
	static const uint64_t keys[] = {
		0, 1, UINT64_MAX, UINT64_MAX - 1, 1ull << 63, (1ull << 63) - 1, UINT32_MAX};
	tern_table_schema s = schema_of(TERN_OPT_NONE, 1);
	tn_table *t = table_of(&s);
	float rows[7] = {1, 2, 3, 4, 5, 6, 7}, out[7];
	uint8_t found[7], slots[TERN_TABLE_SLOTS] = {0};
	uint64_t gone, with = 0;
	tn_push push = {0};
	tn_pull pull = {.unknown = TERN_UNKNOWN_ERROR};

	(void)state;
	assert_ok(tn_table_push(t, keys, rows, 7, &push, NULL));
	assert_ok(tn_table_pull(t, keys, 7, &pull, out, NULL, found, NULL));
	assert_memory_equal(rows, out, sizeof(rows));
	assert_ok(tn_table_erase(t, keys, 7, &gone));
	assert_int_equal(gone, 7);
	for (uint64_t i = 0; i < 100000; i++)
		slots[tn_table_slot(i)] = 1;
	for (int i = 0; i < TERN_TABLE_SLOTS; i++)
		with += slots[i];
	assert_int_equal(with, TERN_TABLE_SLOTS);
	tn_table_destroy(t);
}

/* HKV PR#141, mxnet PR#9887: duplicate keys deadlocked or mixed rows. */
static void duplicate_keys_are_summed_and_fanned_out(void **state)
{
	enum { N = 5000 };
	tern_table_schema s = schema_of(TERN_OPT_SGD, 2);
	tn_table *t = table_of(&s);
	static uint64_t keys[N];
	static float rows[N][2], out[N][2];
	tn_push push = {0};
	tn_pull pull = {.unknown = TERN_UNKNOWN_ERROR};
	tn_push_result r;

	(void)state;
	for (int i = 0; i < N; i++) {
		keys[i] = (uint64_t)i % 3;
		rows[i][0] = 1;
		rows[i][1] = (float)keys[i];
	}
	assert_ok(tn_table_push(t, keys, rows, N, &push, &r));
	assert_int_equal(r.keys, 3);
	assert_int_equal(r.applied, 3);
	assert_ok(tn_table_pull(t, keys, N, &pull, out, NULL, NULL, NULL));
	for (int i = 0; i < N; i++) {
		float n = (float)((N + 2 - (int)keys[i]) / 3);

		assert_true(out[i][0] == -0.1f * n && out[i][1] == -0.1f * (n * (float)keys[i]));
	}
	tn_table_destroy(t);
}

/* HugeCTR#76: an unknown key was an assertion. */
static void unknown_keys_are_a_policy_of_each_call(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_NONE, 1);
	tn_table *t;
	uint64_t key = 9;
	float x;
	uint8_t found;
	tn_pull how = {0};

	(void)state;
	s.init = (tern_row_init){TERN_ROW_CONSTANT, 3, 0};
	t = table_of(&s);
	how.unknown = TERN_UNKNOWN_ERROR;
	assert_status(tn_table_pull(t, &key, 1, &how, &x, NULL, &found, NULL), TERN_E_NOT_FOUND);
	assert_true(x == 0 && !found);
	how.unknown = TERN_UNKNOWN_ZERO;
	assert_ok(tn_table_pull(t, &key, 1, &how, &x, NULL, &found, NULL));
	assert_true(x == 0 && !found);
	how.unknown = TERN_UNKNOWN_DEFAULT;
	assert_ok(tn_table_pull(t, &key, 1, &how, &x, NULL, &found, NULL));
	assert_true(x == 3 && !found);
	how.unknown = TERN_UNKNOWN_CREATE;
	assert_ok(tn_table_pull(t, &key, 1, &how, &x, NULL, &found, NULL));
	assert_true(x == 3 && found);
	tn_table_destroy(t);
}

/* TFRA#429: a NaN spread. */
static void a_nan_stops_at_its_row(void **state)
{
	(void)state;
	for (int policy = 0; policy < 3; policy++) {
		tern_table_schema s = schema_of(TERN_OPT_ADAM, 2);
		uint64_t keys[3] = {1, 2, 3};
		float rows[3][2] = {{1, 1}, {NAN, 1}, {1, INFINITY}}, good[3][2] = {{1, 1}, {1, 1}, {1, 1}},
		      out[3][2];
		tn_push push = {0};
		tn_pull pull = {.unknown = TERN_UNKNOWN_ERROR};
		tn_push_result r;
		tn_table_stats st;
		tn_table *t;

		s.nonfinite = (tern_nonfinite)policy;
		t = table_of(&s);
		assert_ok(tn_table_push(t, keys, good, 3, &push, NULL));
		assert_status(tn_table_push(t, keys, rows, 3, &push, &r),
			      policy == TERN_NONFINITE_FAIL ? TERN_E_CORRUPT : TERN_OK);
		assert_int_equal(r.nonfinite, policy == TERN_NONFINITE_FAIL ? 1 : 2);
		assert_int_equal(r.applied, policy == TERN_NONFINITE_FAIL   ? 0
					    : policy == TERN_NONFINITE_CLIP ? 3
									    : 1);
		assert_ok(tn_table_pull(t, keys, 3, &pull, out, NULL, NULL, NULL));
		for (int i = 0; i < 6; i++)
			assert_true(isfinite(out[i / 2][i % 2]));
		tn_table_stats_get(t, &st);
		assert_int_equal(st.nonfinite, r.nonfinite);
		tn_table_destroy(t);
	}
}

static void shapes_are_checked(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_NONE, 4);
	tn_table *t = table_of(&s);
	uint64_t key = 1;
	float row[4] = {0};
	tn_pull pull = {.dtype = TERN_I8};
	tn_push push = {.stride = 8};

	(void)state;
	assert_status(tn_table_pull(t, &key, 1, &pull, row, NULL, NULL, NULL), TERN_E_SHAPE);
	pull = (tn_pull){.stride = 15};
	assert_status(tn_table_pull(t, &key, 1, &pull, row, NULL, NULL, NULL), TERN_E_SHAPE);
	assert_status(tn_table_push(t, &key, row, 1, &push, NULL), TERN_E_SHAPE);
	push = (tn_push){0};
	assert_status(tn_table_push(t, &key, row, UINT32_MAX, &push, NULL), TERN_E_TOO_LARGE);
	/* Nothing is legal. */
	assert_ok(tn_table_push(t, NULL, NULL, 0, &push, NULL));
	pull = (tn_pull){0};
	assert_ok(tn_table_pull(t, NULL, 0, &pull, NULL, NULL, NULL, NULL));
	tn_table_destroy(t);
}

/* ---- memory of others ---- */

static uint64_t lent;

static void *lend(void *arg, uint64_t bytes, uint64_t align)
{
	void *ptr = aligned_alloc(align, (bytes + align - 1) / align * align);

	(void)arg;
	memset(ptr, 0xee, bytes);
	lent += bytes;
	return ptr;
}

static void take_back(void *arg, void *ptr, uint64_t bytes)
{
	(void)arg;
	lent -= bytes;
	free(ptr);
}

static void slabs_come_from_the_given_memory(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_FTRL, 300);
	tn_table_env env = {.memory = {lend, take_back, NULL}};
	tn_table_stats st;
	tn_table *t;

	(void)state;
	assert_ok(tn_table_create(&s, &env, &t));
	make_keys(t, 0, 5000);
	tn_table_stats_get(t, &st);
	assert_true(lent > st.slab_bytes && lent <= st.bytes); /* segments as well, not the directory */
	tn_table_check(t);
	tn_table_destroy(t);
	assert_int_equal(lent, 0);
}

/* Rows that go take the index with them; what comes later finds room again. */
static void an_empty_table_has_a_small_index(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_SGD, 1);
	tn_table *t = table_of(&s);
	tn_table_stats full, empty;

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		uint64_t gone;

		make_keys(t, 0, 100000);
		tn_table_stats_get(t, &full);
		for (uint64_t key = 0; key < 100000; key++) {
			assert_ok(tn_table_erase(t, &key, 1, &gone));
			assert_int_equal(gone, 1);
			if (key % 20000 == 0)
				tn_table_check(t);
		}
		make_keys(t, 7, 1);
		tn_table_stats_get(t, &empty);
		assert_true(full.index_bytes > 600000 && empty.index_bytes < full.index_bytes / 4);
		assert_true(empty.segments < full.segments / 8);
		tn_table_check(t);
	}
	tn_table_destroy(t);
}

static void the_widest_rows(void **state)
{
	tern_table_schema s = schema_of(TERN_OPT_ADAM, TERN_TABLE_DIM_MAX);
	tn_table *t = table_of(&s);

	(void)state;
	make_keys(t, 0, 600);
	tn_table_check(t);
	tn_table_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(overhead_per_key_is_bounded),
		cmocka_unit_test(a_small_table_is_small),
		cmocka_unit_test(a_budget_holds_whatever_comes),
		cmocka_unit_test(too_small_a_budget_is_said_at_creation),
		cmocka_unit_test(eviction_takes_the_right_ones),
		cmocka_unit_test(admission_waits_for_the_nth_request),
		cmocka_unit_test(failing_allocations_leave_a_table_that_works),
		cmocka_unit_test(a_cut_without_memory_says_so),
		cmocka_unit_test(steps_of_a_cut_are_short),
		cmocka_unit_test(keys_that_collide_cost_no_more_than_a_segment),
		cmocka_unit_test(all_keys_have_a_slot_and_a_row),
		cmocka_unit_test(duplicate_keys_are_summed_and_fanned_out),
		cmocka_unit_test(unknown_keys_are_a_policy_of_each_call),
		cmocka_unit_test(a_nan_stops_at_its_row),
		cmocka_unit_test(shapes_are_checked),
		cmocka_unit_test(slabs_come_from_the_given_memory),
		cmocka_unit_test(an_empty_table_has_a_small_index),
		cmocka_unit_test(the_widest_rows),
	};

	return RUN(tests);
}
