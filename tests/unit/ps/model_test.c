/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table engine against a plain oracle: random batches of everything that a table can do, bit by bit, in many
 * configurations. TERN_TEST_ROUNDS: keys that are named per configuration (1000000 for a long run).
 */
#include "cmocka_all.h"

#include <stdio.h>

#include "oracle.h"
#include "ps/table.h"
#include "support/mem_tier.h"

#define BATCH 160

typedef struct config {
	const char *name;
	tern_table_schema schema;
	float lr, decay;
	uint32_t universe;
} config;

static const config configs[] = {
	{"sgd",
	 {.name = "sgd", .dim = 4, .init = {TERN_ROW_UNIFORM, 0.1f, 7}, .optimizer.kind = TERN_OPT_SGD},
	 0.1f,
	 0,
	 6000},
	{"none",
	 {.name = "none", .dim = 1, .optimizer.kind = TERN_OPT_NONE, .flags = TERN_TABLE_NO_META},
	 0,
	 0,
	 9000},
	{"momentum",
	 {.name = "m", .dim = 3, .optimizer.kind = TERN_OPT_MOMENTUM, .nonfinite = TERN_NONFINITE_CLIP},
	 0.1f,
	 0.01f,
	 500},
	{"adagrad bf16",
	 {.name = "a",
	  .dim = 7,
	  .dtype = TERN_BF16,
	  .init = {TERN_ROW_NORMAL, 1, 3},
	  .optimizer.kind = TERN_OPT_ADAGRAD,
	  .flags = TERN_TABLE_NO_META},
	 0.5f,
	 0,
	 3000},
	{"adam",
	 {.name = "adam",
	  .dim = 17,
	  .init = {TERN_ROW_CONSTANT, 0.5f, 0},
	  .optimizer.kind = TERN_OPT_ADAM,
	  .nonfinite = TERN_NONFINITE_FAIL},
	 0.01f,
	 0,
	 4000},
	{"adamw f16",
	 {.name = "adamw",
	  .dim = 5,
	  .dtype = TERN_F16,
	  .optimizer.kind = TERN_OPT_ADAMW,
	  .nonfinite = TERN_NONFINITE_CLIP},
	 0.01f,
	 0.1f,
	 800},
	{"ftrl",
	 {.name = "f", .dim = 8, .optimizer.kind = TERN_OPT_FTRL, .init = {TERN_ROW_UNIFORM, 1, 1}},
	 0.1f,
	 0,
	 2000},
	{"rmsprop", {.name = "r", .dim = 6, .optimizer.kind = TERN_OPT_RMSPROP}, 0.1f, 0, 2000},
	{"dense",
	 {.name = "d",
	  .kind = TERN_TABLE_DENSE,
	  .rows = 700,
	  .dim = 9,
	  .dtype = TERN_F16,
	  .optimizer.kind = TERN_OPT_ADAM,
	  .init = {TERN_ROW_UNIFORM, 1, 1}},
	 0.1f,
	 0,
	 700},
	{"full",
	 {.name = "full", .dim = 4, .optimizer.kind = TERN_OPT_SGD, .budget_bytes = 200000},
	 0.1f,
	 0,
	 6000},
	{"lru",
	 {.name = "lru",
	  .dim = 4,
	  .optimizer.kind = TERN_OPT_ADAGRAD,
	  .budget_bytes = 250000,
	  .eviction = TERN_EVICT_LRU},
	 0.1f,
	 0,
	 6000},
	{"lfu",
	 {.name = "lfu",
	  .dim = 4,
	  .optimizer.kind = TERN_OPT_ADAM,
	  .budget_bytes = 250000,
	  .eviction = TERN_EVICT_LFU,
	  .ttl_steps = 40},
	 0.1f,
	 0,
	 6000},
	{"lru, a plain tier",
	 {.name = "cold",
	  .dim = 4,
	  .optimizer.kind = TERN_OPT_ADAGRAD,
	  .budget_bytes = 250000,
	  .eviction = TERN_EVICT_LRU},
	 0.1f,
	 0,
	 6000},
	{"lfu, ttl, RocksDB",
	 {.name = "rocks",
	  .dim = 4,
	  .optimizer.kind = TERN_OPT_ADAM,
	  .budget_bytes = 250000,
	  .eviction = TERN_EVICT_LFU,
	  .ttl_steps = 60},
	 0.1f,
	 0,
	 6000},
	{"lru, bf16, RocksDB",
	 {.name = "rocks16",
	  .dim = 7,
	  .dtype = TERN_BF16,
	  .init = {TERN_ROW_NORMAL, 1, 3},
	  .optimizer.kind = TERN_OPT_SGD,
	  .budget_bytes = 160000,
	  .eviction = TERN_EVICT_LRU},
	 0.1f,
	 0,
	 5000},
	{"ttl",
	 {.name = "ttl", .dim = 2, .optimizer.kind = TERN_OPT_MOMENTUM, .ttl_steps = 15},
	 0.1f,
	 0,
	 3000},
	{"admit",
	 {.name = "admit", .dim = 2, .optimizer.kind = TERN_OPT_SGD, .admit_after = 3},
	 0.1f,
	 0,
	 2000}, /* so few that no key's counters in the sketch are all shared with others */
};

/* By the table's name; nothing is lost to eviction then. */
static tier_kind tier_of(const config *c)
{
	return strcmp(c->schema.name, "cold") == 0        ? TIER_MEMORY
	       : strncmp(c->schema.name, "rocks", 5) == 0 ? TIER_ROCKSDB
							  : TIER_NONE;
}

typedef struct world {
	tn_table *t;
	oracle o;
	tn_rand r;
	uint64_t step, named;
	uint64_t early; /* rows that were admitted before their turn */
	tier_kind tier;
	/* the batch */
	uint64_t keys[BATCH];
	uint32_t u[BATCH], n;
	tern_dtype dtype;
	float f32[BATCH * DIM_MAX];
	uint8_t raw[BATCH * DIM_MAX * 4 * 2];
	/* the cut */
	tn_cut *cut;
	row *then;
	uint8_t *given;
	uint64_t then_rows;
} world;

static uint64_t below(world *w, uint64_t n)
{
	return tn_rand_below(&w->r, n);
}

static int evicts(const world *w)
{
	return w->o.schema.eviction != TERN_EVICT_NONE && w->tier == TIER_NONE;
}

/* Rows past the budget are refused. */
static int bounded(const world *w, const tn_table_stats *s)
{
	return s->rows_max && !evicts(w) && w->tier == TIER_NONE;
}

/* Half of the batches go to a few hot keys, so that keys repeat within and between them. */
static void draw(world *w)
{
	uint32_t span = below(w, 2) ? w->o.n : 40;

	w->n = 1 + (uint32_t)below(w, BATCH);
	for (uint32_t i = 0; i < w->n; i++) {
		w->u[i] = (uint32_t)below(w, span);
		if (below(w, 20) == 0)
			w->u[i] = w->o.n - 1;
		w->keys[i] = w->o.keys[w->u[i]];
	}
	w->named += w->n;
	w->step += below(w, 2);
	w->dtype = (tern_dtype[]){TERN_F32, TERN_BF16, TERN_F16}[below(w, 3)];
}

/* Which rows eviction took: the oracle can't know. */
static void resync(world *w, uint32_t u)
{
	uint8_t found;
	float out[DIM_MAX];
	tn_pull how = {.unknown = TERN_UNKNOWN_ZERO, .dtype = TERN_F32};

	if (!evicts(w))
		return;
	assert_ok(tn_table_pull(w->t, &w->o.keys[u], 1, &how, out, NULL, &found, NULL));
	assert_true(!found || w->o.rows[u].present);
	if (!found)
		oracle_drop(&w->o, u);
}

static void resync_batch(world *w)
{
	for (uint32_t i = 0; i < w->n; i++)
		resync(w, w->u[i]);
}

static int has_row(world *w, uint32_t u)
{
	tn_pull how = {.unknown = TERN_UNKNOWN_ZERO, .dtype = TERN_F32};
	float out[DIM_MAX];
	uint8_t found;

	if (w->o.schema.admit_after <= 1)
		return 1; /* nobody asks; and looking may warm a row */
	assert_ok(tn_table_pull(w->t, &w->o.keys[u], 1, &how, out, NULL, &found, NULL));
	return found;
}

/*
 * A request for a key without a row: does it get one? Admission counts in a sketch, whose counters keys share: a key may
 * have its turn early (few do: finish()), and never late. has: it has a row now.
 */
static int made(world *w, uint32_t u, tn_table_stats *before, int has)
{
	row *r = &w->o.rows[u];

	r->asks += r->asks < 255;
	if (w->o.schema.admit_after > 1 && r->asks < w->o.schema.admit_after) {
		if (!has)
			return 0;
		w->early++;
	}
	if (bounded(w, before) && w->o.present >= before->rows_max)
		return 0;
	oracle_make(&w->o, u, w->step);
	return 1;
}

static float as(tern_dtype dtype, float x)
{
	return dtype == TERN_BF16  ? tn_bf16_to_f32(tn_bf16_from_f32(x))
	       : dtype == TERN_F16 ? tn_f16_to_f32(tn_f16_from_f32(x))
				   : x;
}

static void expect_row(world *w, const float *want, const void *got, tern_dtype dtype)
{
	float got_row[DIM_MAX];

	tn_rows_to_f32(got_row, got, dtype, w->o.schema.dim);
	for (uint32_t d = 0; d < w->o.schema.dim; d++) {
		float x = as(dtype, want[d]);

		if (memcmp(&got_row[d], &x, 4) != 0)
			fail_msg("%s: column %u is %a, expected %a (%s)", w->o.schema.name, d, got_row[d], x,
				 tern_dtype_name(dtype));
	}
}

static void do_pull(world *w)
{
	static const float zeros[DIM_MAX];
	tn_pull how = {.unknown = (tern_unknown)below(w, 4), .dtype = w->dtype, .step = w->step};
	uint64_t bytes = w->o.schema.dim * tern_dtype_bytes(w->dtype), want_created = 0, unknown = 0;
	uint32_t positions[BATCH];
	uint8_t found[BATCH];
	int scatter = (int)below(w, 2), refused = 0;
	tn_table_stats before;
	tn_pull_result res;
	tern_status st;

	resync_batch(w);
	how.flags = below(w, 2) ? TN_PULL_TOUCH : 0;
	how.stride = below(w, 2) ? bytes + 2 * tern_dtype_bytes(w->dtype) : 0;
	for (uint32_t i = 0; i < w->n; i++)
		positions[i] = w->n - 1 - i;
	memset(w->raw, 0xaa, sizeof(w->raw));
	tn_table_stats_get(w->t, &before);
	st = tn_table_pull(w->t, w->keys, w->n, &how, w->raw, scatter ? positions : NULL, found, &res);
	/* Rows that are there are read before any is made. */
	int there[BATCH];
	for (uint32_t i = 0; i < w->n; i++)
		there[i] = w->o.rows[w->u[i]].present;
	for (uint32_t i = 0; i < w->n; i++) {
		row *r = &w->o.rows[w->u[i]];
		const uint8_t *got =
			w->raw + (scatter ? positions[i] : i) * (how.stride ? how.stride : bytes);
		float initial[DIM_MAX];

		if (!there[i] && how.unknown == TERN_UNKNOWN_CREATE && !r->present) {
			int new = made(w, w->u[i], &before, found[i]);

			want_created += (uint64_t) new;
			refused |= !new &&bounded(w, &before);
		}
		oracle_default(&w->o, w->keys[i], initial);
		if (!evicts(w))
			assert_int_equal(found[i],
					 there[i] || (how.unknown == TERN_UNKNOWN_CREATE && r->present));
		if (there[i] || (how.unknown == TERN_UNKNOWN_CREATE && r->present))
			expect_row(w, r->w, got, w->dtype);
		else
			expect_row(w,
				   how.unknown == TERN_UNKNOWN_CREATE || how.unknown == TERN_UNKNOWN_DEFAULT
					   ? initial
					   : zeros,
				   got, w->dtype);
		unknown += !there[i];
		if (how.flags && r->present && (there[i] || how.unknown == TERN_UNKNOWN_CREATE)) {
			r->frequency++;
			r->last_step = w->step > r->last_step ? w->step : r->last_step;
		}
	}
	if (!evicts(w))
		assert_int_equal(res.created, want_created);
	assert_status(st, how.unknown == TERN_UNKNOWN_ERROR && unknown ? TERN_E_NOT_FOUND
			  : refused                                    ? TERN_E_BUDGET
								       : TERN_OK);
}

static void fill_grads(world *w, int *bad)
{
	*bad = 0;
	for (uint32_t i = 0; i < w->n; i++) {
		for (uint32_t d = 0; d < w->o.schema.dim; d++)
			w->f32[i * w->o.schema.dim + d] =
				as(w->dtype, (float)(tn_rand_double(&w->r) - 0.5) * 4);
		if (below(w, 300) == 0) {
			w->f32[i * w->o.schema.dim + below(w, w->o.schema.dim)] =
				below(w, 2) ? NAN : -INFINITY;
			*bad = 1;
		}
	}
	tn_rows_from_f32(w->raw, w->dtype, w->f32, w->n * w->o.schema.dim);
}

static void do_push(world *w)
{
	tn_push how = {
		.mode = (tern_push_mode)(below(w, 3) ? 0 : below(w, 3)), .dtype = w->dtype, .step = w->step};
	uint32_t dim = w->o.schema.dim;
	uint8_t done[BATCH] = {0}, there[BATCH];
	uint64_t created = 0, keys = 0, stopped = 0;
	int refused = 0, bad, gate;
	tn_table_stats before;
	tn_push_result res;
	tern_status st;

	resync_batch(w);
	fill_grads(w, &bad);
	how.lr_scale = below(w, 2) ? 0.5f : 0;
	how.flags = below(w, 4) ? 0 : TN_PUSH_EXISTING;
	tn_table_stats_get(w->t, &before);
	st = tn_table_push(w->t, w->keys, w->raw, w->n, &how, &res);
	if (bad && w->o.schema.nonfinite == TERN_NONFINITE_FAIL) {
		assert_status(st, TERN_E_CORRUPT);
		return;
	}
	for (uint32_t i = 0; i < w->n; i++)
		there[i] = (uint8_t)w->o.rows[w->u[i]].present;
	for (uint32_t i = 0; i < w->n; i++) {
		row *r = &w->o.rows[w->u[i]];
		float g[DIM_MAX];

		if (done[i])
			continue;
		memcpy(g, &w->f32[i * dim], dim * sizeof(float));
		for (uint32_t k = i + 1; k < w->n; k++) {
			if (w->u[k] != w->u[i])
				continue;
			done[k] = 1;
			for (uint32_t d = 0; d < dim; d++)
				g[d] = how.mode == TERN_PUSH_ASSIGN ? w->f32[k * dim + d]
								    : g[d] + w->f32[k * dim + d];
		}
		keys++;
		if (!there[i]) {
			if (how.flags)
				continue;
			if (!made(w, w->u[i], &before, has_row(w, w->u[i]))) {
				refused |= bounded(w, &before);
				continue;
			}
			created++;
		}
		gate = oracle_apply(&w->o, w->u[i], how.mode, how.lr_scale ? how.lr_scale : 1, g);
		stopped += gate != 0;
		if (gate == 1)
			continue;
		r->frequency++;
		r->last_step = w->step > r->last_step ? w->step : r->last_step;
	}
	assert_int_equal(res.keys, keys);
	assert_int_equal(res.created, created);
	assert_int_equal(res.nonfinite, stopped);
	assert_status(st, refused                                                   ? TERN_E_BUDGET
			  : stopped && w->o.schema.nonfinite == TERN_NONFINITE_FAIL ? TERN_E_CORRUPT
										    : TERN_OK);
}

static void do_erase(world *w)
{
	uint64_t gone, want = 0;

	resync_batch(w);
	w->n = 1 + w->n / 8;
	if (w->o.schema.kind == TERN_TABLE_DENSE) {
		assert_status(tn_table_erase(w->t, w->keys, w->n, &gone), TERN_E_STATE);
		return;
	}
	assert_ok(tn_table_erase(w->t, w->keys, w->n, &gone));
	for (uint32_t i = 0; i < w->n; i++) {
		want += (uint64_t)w->o.rows[w->u[i]].present;
		oracle_drop(&w->o, w->u[i]);
	}
	assert_int_equal(gone, want);
}

static void do_expire(world *w)
{
	uint64_t gone, want = 0, ttl = w->o.schema.ttl_steps;

	if (evicts(w))
		for (uint32_t u = 0; u < w->o.n; u++)
			resync(w, u);
	assert_ok(tn_table_expire(w->t, w->step, &gone));
	for (uint32_t u = 0; ttl && w->step >= ttl && u < w->o.n; u++) {
		if (w->o.rows[u].present && w->o.rows[u].last_step <= w->step - ttl) {
			oracle_drop(&w->o, u);
			want++;
		}
	}
	assert_int_equal(gone, want);
}

/* ---- records ---- */

static void pack(const world *w, const row *r, uint8_t *value, float *state)
{
	uint32_t dim = w->o.schema.dim;
	int slots = ref_slots(&w->o.schema.optimizer);

	tn_rows_from_f32(value, w->o.schema.dtype, r->w, dim);
	for (uint32_t d = 0; d < dim; d++) {
		if (slots > 0)
			state[d] = r->s[d].a;
		if (slots > 1)
			state[dim + d] = r->s[d].b;
	}
	memcpy(&state[(uint32_t)slots * dim], &r->updates, 4);
}

static void expect_record(const world *w, const row *r, const tn_record *rec, int meta)
{
	uint8_t value[DIM_MAX * 4];
	float state[DIM_MAX * 2 + 1];

	pack(w, r, value, state);
	assert_memory_equal(rec->value, value, tn_table_value_bytes(w->t));
	if (tn_table_state_bytes(w->t))
		assert_memory_equal(rec->state, state, tn_table_state_bytes(w->t));
	else
		assert_null(rec->state);
	if (meta && !(w->o.schema.flags & TERN_TABLE_NO_META))
		assert_int_equal(rec->last_step, r->last_step);
}

static uint32_t number_of(const world *w, uint64_t key)
{
	for (uint32_t u = 0; u < w->o.n / 2; u++) {
		if (key < w->o.n / 2)
			return (uint32_t)key;
	}
	for (uint32_t u = w->o.n / 2; u < w->o.n; u++) {
		if (w->o.keys[u] == key)
			return u;
	}
	fail_msg("a key that was never used: %llu", (unsigned long long)key);
	return 0;
}

static void do_put(world *w)
{
	uint8_t value[DIM_MAX * 4];
	float state[DIM_MAX * 2 + 1];
	row made_up = {
		.present = 1, .last_step = w->step, .frequency = 5, .updates = (uint32_t)below(w, 100)};
	tn_record rec = {
		.key = w->keys[0], .last_step = w->step, .frequency = 5, .value = value, .state = state};
	row *r = &w->o.rows[w->u[0]];
	tn_table_stats stats;
	tern_status st;

	resync(w, w->u[0]);
	for (uint32_t d = 0; d < w->o.schema.dim; d++) {
		made_up.w[d] = ref_narrow(&w->o, (float)tn_rand_double(&w->r));
		made_up.s[d] = (ref_state){(float)tn_rand_double(&w->r), (float)tn_rand_double(&w->r)};
	}
	pack(w, &made_up, value, state);
	tn_table_stats_get(w->t, &stats);
	st = tn_table_put_record(w->t, &rec);
	if (!r->present && bounded(w, &stats) && w->o.present >= stats.rows_max) {
		assert_status(st, TERN_E_BUDGET);
		return;
	}
	assert_ok(st);
	if (!r->present)
		oracle_make(&w->o, w->u[0], w->step);
	made_up.asks = r->asks;
	*r = made_up;
}

typedef struct seen {
	world *w;
	uint8_t *given;
	uint64_t n;
	uint32_t first, last;
} seen;

static tern_status see(const tn_record *rec, void *arg)
{
	seen *s = arg;
	uint32_t u = number_of(s->w, rec->key);

	assert_int_equal(s->given[u], 0);
	assert_true(tn_table_slot(rec->key) >= s->first && tn_table_slot(rec->key) <= s->last);
	assert_true(s->w->o.rows[u].present);
	expect_record(s->w, &s->w->o.rows[u], rec, 1);
	s->given[u] = 1;
	s->n++;
	return TERN_OK;
}

static void do_scan(world *w)
{
	uint32_t a = (uint32_t)below(w, 4096), b = (uint32_t)below(w, 4096);
	seen s = {.w = w, .given = calloc(w->o.n, 1), .first = a < b ? a : b, .last = a < b ? b : a};
	uint64_t cursor = 0, want = 0;

	if (below(w, 3) == 0) {
		s.first = 0;
		s.last = 4095;
	}
	for (uint32_t u = 0; u < w->o.n; u++) {
		uint32_t slot = tn_table_slot(w->o.keys[u]);

		resync(w, u);
		want += w->o.rows[u].present && slot >= s.first && slot <= s.last;
	}
	while (cursor != TN_SCAN_END)
		assert_ok(tn_table_scan(w->t, s.first, s.last, &cursor, 50, see, &s));
	assert_int_equal(s.n, want);
	free(s.given);
}

static void do_drop_slot(world *w)
{
	uint32_t slot = tn_table_slot(w->keys[0]);
	uint64_t gone, want = 0;

	for (uint32_t u = 0; u < w->o.n; u++) {
		if (tn_table_slot(w->o.keys[u]) != slot)
			continue;
		resync(w, u);
		want += (uint64_t)w->o.rows[u].present;
		oracle_drop(&w->o, u);
		if (w->o.schema.kind == TERN_TABLE_DENSE)
			oracle_make(&w->o, u, 0);
	}
	assert_ok(tn_table_drop_slot(w->t, slot, &gone));
	assert_int_equal(gone, want);
}

/* ---- the cut ---- */

static void begin_cut(world *w)
{
	for (uint32_t u = 0; u < w->o.n; u++)
		resync(w, u);
	assert_ok(tn_table_cut(w->t, &w->cut));
	w->then = malloc(w->o.n * sizeof(row));
	memcpy(w->then, w->o.rows, w->o.n * sizeof(row));
	w->given = calloc(w->o.n, 1);
	w->then_rows = w->o.present;
	assert_int_equal(tn_cut_rows(w->cut), w->then_rows);
}

static tern_status see_cut(const tn_record *rec, void *arg)
{
	world *w = arg;
	uint32_t u = number_of(w, rec->key);

	assert_int_equal(w->given[u], 0);
	assert_true(w->then[u].present);
	expect_record(w, &w->then[u], rec, 0);
	w->given[u] = 1;
	w->then_rows--;
	return TERN_OK;
}

static void go_on_with_cut(world *w)
{
	bool more = true, give_up = below(w, 30) == 0;

	if (!give_up)
		assert_ok(tn_cut_next(w->cut, 1 + below(w, 100), see_cut, w, &more));
	if (more && !give_up)
		return;
	if (!give_up)
		assert_int_equal(w->then_rows, 0);
	tn_cut_end(w->cut);
	w->cut = NULL;
	free(w->then);
	free(w->given);
}

static void do_cut(world *w)
{
	if (w->cut)
		go_on_with_cut(w);
	else
		begin_cut(w);
}

/* ---- */

static void one_step(world *w)
{
	uint64_t dice = below(w, 100);

	draw(w);
	if (dice < 40)
		do_push(w);
	else if (dice < 75)
		do_pull(w);
	else if (dice < 83)
		do_erase(w);
	else if (dice < 90)
		do_put(w);
	else if (dice < 92)
		do_drop_slot(w);
	else if (dice < 99)
		do_cut(w);
	else if (below(w, 4) == 0)
		do_scan(w);
	else if (below(w, 3) == 0)
		do_expire(w);
	else
		tn_table_check(w->t);
}

static void finish(world *w)
{
	tn_table_stats s;

	while (w->cut)
		go_on_with_cut(w);
	do_scan(w);
	tn_table_check(w->t);
	tn_table_stats_get(w->t, &s);
	for (uint32_t u = 0; u < w->o.n; u++)
		resync(w, u);
	assert_int_equal(s.rows, w->o.present);
	assert_int_equal(s.cut_bytes, 0);
	if (w->o.schema.budget_bytes)
		assert_true(s.bytes <= w->o.schema.budget_bytes && s.rows - s.cold_rows <= s.rows_max);
	if (w->tier)
		assert_true(s.cooled > 0 && s.warmed > 0 && s.evicted == 0 && s.tier_errors == 0);
	if (evicts(w))
		assert_true(s.evicted > 0);
	assert_true(w->early * 200 <= s.created + 200);
}

static uint64_t rounds(void)
{
	const char *text = getenv("TERN_TEST_ROUNDS");

	return text ? strtoull(text, NULL, 10) : 40000;
}

static tern_status open_tier(void *arg, const tern_table_schema *schema, uint64_t image_bytes, tn_tier **tier)
{
	(void)schema;
	return test_tier_open(arg, image_bytes, tier);
}

static void run_config(const config *c, uint64_t seed)
{
	world *w = calloc(1, sizeof(*w));
	tern_table_schema s = c->schema;
	float decay = c->decay;
	tn_table_env env;

	tern_optimizer_init(&s.optimizer, c->schema.optimizer.kind, c->lr);
	s.optimizer.weight_decay = decay;
	if (s.optimizer.kind == TERN_OPT_RMSPROP)
		s.optimizer.momentum = 0.5f;
	if (s.optimizer.kind == TERN_OPT_FTRL)
		s.optimizer.l1 = s.optimizer.l2 = 0.05f;
	w->r.state = seed;
	w->step = 1;
	w->tier = tier_of(c);
	env = (tn_table_env){.open_tier = w->tier ? open_tier : NULL, .tier_arg = &w->tier};
	assert_ok(tn_table_create(&s, &env, &w->t));
	oracle_init(&w->o, &s, c->universe, seed);
	while (w->named < rounds())
		one_step(w);
	finish(w);
	tn_table_destroy(w->t);
	test_tier_gone();
	oracle_fini(&w->o);
	free(w);
}

static void tables_are_as_the_oracle(void **state)
{
	const char *seed = getenv("TERN_TEST_SEED");

	(void)state;
	for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		printf("  %s\n", configs[i].name);
		fflush(stdout);
		if (!test_tier_can(tier_of(&configs[i])))
			continue;
		run_config(&configs[i], (seed ? strtoull(seed, NULL, 10) : 1) + i);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables_are_as_the_oracle),
	};

	return RUN(tests);
}
