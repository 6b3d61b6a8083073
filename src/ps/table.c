/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Birth, death and figures of a table; what a budget allows; whole-table checks.
 *
 * Threads: as table.h. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_impl.h"
#include "store/init.h"
#include "store/rows.h"

static void lay_out(tn_table *t)
{
	uint32_t pad;

	t->dense = t->schema.kind == TERN_TABLE_DENSE;
	t->keep = t->schema.flags & TERN_TABLE_ONE_SIDED;
	t->meta = !(t->schema.flags & TERN_TABLE_NO_META);
	t->value_bytes = t->schema.dim * (uint32_t)tern_dtype_bytes(t->schema.dtype);
	t->value_room = (t->value_bytes + 3) & ~3u;
	t->state_bytes = (uint32_t)tn_optim_state_bytes(&t->optim, t->schema.dim);
	t->head_bytes = t->meta ? TN_HEAD_BYTES : TN_HEAD_BYTES_NO_META;
	pad = t->meta ? 7 : 3;
	t->stride = (t->head_bytes + t->value_room + t->state_bytes + pad) & ~pad;
}

#define INDEX_BYTES_PER_ROW 20 /* just after all segments split, with spare segments; see docs of the index */
#define FIXED_BYTES         (96ull << 10) /* directory, first segments */

/* Places for records that the budget pays for; some of them are for records in limbo. */
static tern_status spend(tn_table *t)
{
	uint64_t budget = t->schema.budget_bytes, row = t->stride + INDEX_BYTES_PER_ROW, spare;
	uint64_t fixed = FIXED_BYTES + t->sketch_lines * 64;

	if (budget == 0)
		return TERN_OK;
	if (t->dense) {
		if (t->schema.rows * t->stride > budget)
			return tn_fail(TERN_E_BUDGET,
				       "dense table \"%s\": its rows take %" PRIu64
				       " bytes, budget_bytes is %" PRIu64,
				       t->schema.name, t->schema.rows * t->stride, budget);
		return TERN_OK;
	}
	t->places_max = budget > fixed ? (budget - fixed) / row : 0;
	t->places_max = TN_MIN(t->places_max, (1ull << 32) - 2);
	spare = TN_MIN(t->places_max / 16 + TN_HAND, 1024);
	if (t->places_max < 2 * spare)
		return tn_fail(TERN_E_BUDGET,
			       "table \"%s\": budget_bytes %" PRIu64 " is less than the least, %" PRIu64
			       " bytes",
			       t->schema.name, budget, fixed + (uint64_t)4 * TN_HAND * row);
	t->rows_max = t->places_max - spare;
	return TERN_OK;
}

static tern_status fill_dense(tn_table *t)
{
	tn_scratch *s = tn_scratch_take(t);
	uint64_t left = t->schema.rows + 1; /* id 0 is none */
	tern_status st = s ? TERN_OK : TERN_E_NOMEM;

	while (left && st == TERN_OK) {
		uint64_t places = TN_MIN(left, t->mask + 1ull);

		st = tn_slab_add_full(t, (uint32_t)places);
		left -= places;
	}
	for (uint64_t row = 0; st == TERN_OK && row < t->schema.rows; row++) {
		tn_head *head = tn_head_of(t, (uint32_t)row + 1);

		atomic_init(&head->version, TN_DEAD);
		tn_record_init(t, (uint32_t)row + 1, s, row, 0);
		atomic_store_explicit(&head->version, 0, memory_order_release);
	}
	if (st == TERN_OK) {
		atomic_store(&tn_head_of(t, 0)->version, TN_DEAD);
		TN_COUNT(t, rows, t->schema.rows);
	}
	if (s)
		tn_scratch_give(t, s);
	return st;
}

static tern_status fill(tn_table *t, const tn_table_env *env)
{
	pthread_mutex_init(&t->id_lock, NULL);
	pthread_mutex_init(&t->dir_lock, NULL);
	TN_TRY(tn_slab_init(t));
	TN_TRY(tn_admit_init(t));
	TN_TRY(spend(t));
	TN_TRY(tn_index_init(t));
	TN_TRY(tn_cold_init(t, env));
	return t->dense ? fill_dense(t) : TERN_OK;
}

tern_status tn_table_create(const tern_table_schema *schema, const tn_table_env *env, tn_table **table)
{
	tern_status st = tern_table_schema_check(schema);
	tn_table *t;

	if (st != TERN_OK)
		return st;
	t = TN_FAULT("ps.table.create") ? NULL : aligned_alloc(64, (sizeof(*t) + 63) & ~63ull);
	if (!t)
		return tn_fail(TERN_E_NOMEM, "no memory for table \"%s\"", schema->name);
	memset(t, 0, sizeof(*t));
	t->schema = *schema;
	if (!t->schema.dtype)
		t->schema.dtype = TERN_F32;
	if (env) {
		t->memory = env->memory;
		t->changed = env->changes;
	}
	tn_epoch_init(&t->epoch);
	tn_changes_init(t);
	pthread_rwlock_init(&t->move, NULL);
	tn_optim_prepare(&t->optim, &schema->optimizer);
	t->init_seed = tn_init_seed(schema->init.seed, schema->name);
	lay_out(t);
	st = fill(t, env);
	if (st != TERN_OK) {
		tn_table_destroy(t);
		return st;
	}
	*table = t;
	return TERN_OK;
}

void tn_table_destroy(tn_table *t)
{
	if (!t)
		return;
	TN_ASSERT(!atomic_load(&t->cut));
	tn_index_fini(t);
	tn_slab_fini(t);
	tn_admit_fini(t);
	tn_changes_fini(t);
	tn_cold_fini(t);
	pthread_mutex_destroy(&t->id_lock);
	pthread_mutex_destroy(&t->dir_lock);
	for (unsigned i = 0; i < TN_SCRATCH_MAX; i++) {
		tn_scratch *s = atomic_load(&t->scratch[i]);

		if (s)
			free(s->dedup);
		free(s);
	}
	free(t);
}

const tern_table_schema *tn_table_schema(const tn_table *t)
{
	return &t->schema;
}

uint64_t tn_table_value_bytes(const tn_table *t)
{
	return t->value_bytes;
}

uint64_t tn_table_state_bytes(const tn_table *t)
{
	return t->state_bytes;
}

uint64_t tn_table_slot_rows(const tn_table *t, uint32_t slot, uint64_t *cold)
{
	*cold = atomic_load_explicit(&t->slot_cold[slot], memory_order_relaxed);
	return *cold + atomic_load_explicit(&t->slot_rows[slot], memory_order_relaxed);
}

void tn_table_stats_get(tn_table *t, tn_table_stats *stats)
{
	uint64_t segments;

	pthread_mutex_lock(&t->dir_lock);
	segments = t->segments;
	pthread_mutex_unlock(&t->dir_lock);
	*stats = (tn_table_stats){
		.rows = TN_GET(t, rows) + TN_GET(t, cold_rows),
		.cold_rows = TN_GET(t, cold_rows),
		.cold_bytes = t->tier ? t->tier->ops->bytes(t->tier) : 0,
		.cooled = TN_GET(t, cooled),
		.warmed = TN_GET(t, warmed),
		.tier_errors = TN_GET(t, tier_errors),
		.rows_max = t->rows_max,
		.slab_bytes = TN_GET(t, slab_bytes),
		.index_bytes = TN_GET(t, index_bytes),
		.sketch_bytes = t->sketch_lines * 64,
		.cut_bytes = TN_GET(t, cut_bytes),
		.record_bytes = t->stride,
		.created = TN_GET(t, created),
		.put = TN_GET(t, put),
		.erased = TN_GET(t, erased),
		.evicted = TN_GET(t, evicted),
		.expired = TN_GET(t, expired),
		.not_admitted = TN_GET(t, not_admitted),
		.refused = TN_GET(t, refused),
		.nonfinite = TN_GET(t, nonfinite),
		.pulled = TN_GET(t, pulled),
		.pushed = TN_GET(t, pushed),
		.splits = TN_GET(t, splits),
		.segments = segments,
		.retries = TN_GET(t, retries),
	};
	pthread_mutex_lock(&t->changes.lock);
	stats->gone = t->changes.now.n;
	pthread_mutex_unlock(&t->changes.lock);
	stats->bytes = stats->slab_bytes + stats->index_bytes + stats->sketch_bytes;
}

/* ---- checks ---- */

/* Each record of a segment is live, found by its key, and counted where it passed. */
static uint64_t check_segment(tn_table *t, const tn_segment *seg)
{
	uint32_t past[TN_SEGMENT_BUCKETS] = {0}, n = 0, buckets = tn_segment_buckets(seg);

	TN_ASSERT(!seg->retired);
	for (uint32_t b = 0; b < buckets; b++) {
		const tn_bucket *at = &seg->buckets[b];

		for (unsigned i = 0; i < TN_BUCKET_PLACES; i++) {
			uint64_t word = i < 8 ? at->tags : at->tags_past, hash;
			tn_head *head;

			if (!(uint8_t)(word >> 8 * (i & 7)))
				continue;
			head = tn_head_of(t, at->ids[i]);
			hash = tn_table_hash(tn_head_key(head));
			TN_ASSERT(!(atomic_load(&head->version) & (TN_DEAD | TN_LOCKED | TN_WRITING)));
			TN_ASSERT(seg->depth == 0 || (hash ^ seg->first) >> (64 - seg->depth) == 0);
			TN_ASSERT(tn_tag(hash) == (uint8_t)(word >> 8 * (i & 7)));
			TN_ASSERT(tn_index_find(t, atomic_load(&t->dir), tn_head_key(head), hash) ==
				  at->ids[i]);
			for (uint32_t p = tn_home(hash, buckets); p != b; p = p + 1 == buckets ? 0 : p + 1)
				past[p]++;
			n++;
		}
	}
	TN_ASSERT(n == seg->count);
	for (uint32_t b = 0; b < buckets; b++)
		TN_ASSERT((uint16_t)(seg->buckets[b].tags_past >> 32) == past[b]);
	return n;
}

void tn_table_check(tn_table *t)
{
	tn_dir *dir = atomic_load(&t->dir);
	uint64_t rows = 0, live = 0, of_slots = 0, places = tn_slab_places(t);

	for (uint64_t i = 0; !t->dense && i < 1ull << dir->depth;) {
		uintptr_t entry = atomic_load(&dir->at[i]);
		tn_segment *seg = tn_entry_segment(entry);
		uint64_t n = 1ull << (dir->depth - seg->depth);

		for (uint64_t k = 0; k < n; k++)
			TN_ASSERT(atomic_load(&dir->at[i + k]) == entry);
		rows += check_segment(t, seg);
		i += n;
	}
	for (uint64_t p = 0; p < places; p++) {
		uint32_t id;

		if (tn_slab_walk(t, p, &id))
			live += !(atomic_load(&tn_head_of(t, id)->version) & TN_DEAD);
	}
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		of_slots += t->slot_rows[s];
	TN_ASSERT(t->dense || of_slots == rows);
	TN_ASSERT(t->dense || live == rows);
	TN_ASSERT(live == TN_GET(t, rows));
	TN_ASSERT(t->dense || live == t->handed);
	TN_ASSERT(t->rows_max == 0 || live <= t->rows_max);
}
