/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a row comes into being: admission, an id, room by eviction if need be, its initial value, its place in the
 * index. Creating on pull and on push are the same.
 *
 * Threads: a maker belongs to one call. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "ps/table_impl.h"
#include "store/init.h"
#include "store/rows.h"

void tn_record_init(tn_table *t, uint32_t id, tn_scratch *s, uint64_t key, uint64_t step)
{
	tn_head *head = tn_head_of(t, id);

	TN_ASSERT(atomic_load_explicit(&head->version, memory_order_relaxed) & TN_DEAD);
	head->key[0] = (uint32_t)key;
	head->key[1] = (uint32_t)(key >> 32);
	if (t->meta) {
		atomic_store_explicit(&head->frequency, 0, memory_order_relaxed);
		atomic_store_explicit(tn_head_last_step(head), step, memory_order_relaxed);
	}
	tn_row_default(t, s, key, tn_value_of(t, head), t->schema.dtype);
	tn_optim_state_init(&t->optim, t->schema.dim, tn_state_of(t, head));
}

void tn_row_default(tn_table *t, tn_scratch *s, uint64_t key, void *dst, tern_dtype dtype)
{
	uint32_t dim = t->schema.dim;

	tn_init_row(s->w, dim, &t->schema.init, t->init_seed, key);
	if (t->schema.dtype != TERN_F32 && dtype != t->schema.dtype) {
		/* What the row would hold, not what it would have held. */
		tn_rows_from_f32(s->row, t->schema.dtype, s->w, dim);
		tn_rows_to_f32(s->w, s->row, t->schema.dtype, dim);
	}
	tn_rows_from_f32(dst, dtype, s->w, dim);
}

static uint32_t refuse(tn_maker *m, tern_status status)
{
	tn_table *t = m->t;

	m->refused++;
	if (m->status != TERN_OK)
		return 0;
	m->status = status;
	if (status == TERN_E_BUDGET)
		tn_fail(status,
			"table \"%s\": its budget of %" PRIu64 " bytes holds %" PRIu64
			" rows and all are taken: raise budget_bytes, or set eviction, ttl_steps or "
			"admit_after",
			t->schema.name, t->schema.budget_bytes, t->rows_max);
	return 0;
}

#define EVICT_TRIES 1000 /* all rows were gone, or in the hands of other batches, when we looked */

/* An id into the hand. */
static tern_status take_id(tn_maker *m)
{
	tn_table *t = m->t;

	for (unsigned tries = 0;; tries++) {
		tern_status st = tn_hand_fill(t, &m->hand, TN_MAX(m->wanted, 1));
		bool evict = st == TERN_E_BUDGET && t->schema.eviction != TERN_EVICT_NONE, made = false;

		if (evict)
			TN_TRY(tn_evict_one(t, &made));
		if (made)
			continue;
		if (st != TERN_AGAIN && !(evict && tries < EVICT_TRIES))
			return st;
		/* Nothing of this call points into the table now. */
		tn_epoch_leave(&t->epoch, m->epoch_slot);
		tn_epoch_wait(&t->epoch);
		m->epoch_slot = tn_epoch_enter(&t->epoch);
	}
}

/*
 * There was no record in memory after `over` was read. One in the tier needs no admission; if any was on its way out of it
 * meanwhile, it was in neither: then the index decides, which holds the segment. (One on its way to the tier is there before
 * it is not in memory.) TERN_AGAIN: there is none, and none is made.
 */
static tern_status may_make(tn_maker *m, uint64_t hash, uint64_t over, tn_insert *how)
{
	tn_table *t = m->t;
	bool cold = false, maybe;

	how->existing = m->existing;
	if (t->tier && (m->existing || (!m->admit_all && t->schema.admit_after > 1)))
		TN_TRY(tn_cold_has(t, hash, &cold));
	maybe = cold || atomic_load(&t->warmed_begun) != over;
	if (m->existing)
		return maybe ? TERN_OK : TERN_AGAIN;
	if (m->admit_all || cold || tn_admit(t, hash))
		return TERN_OK;
	how->existing = true;
	if (maybe)
		return TERN_OK;
	m->not_admitted++;
	return TERN_AGAIN;
}

void tn_maker_expect(tn_maker *m, const uint64_t *keys, uint32_t n)
{
	tn_table *t = m->t;
	uint64_t places[128];

	if (n < 2 || !tn_cold_any(t))
		return;
	tn_epoch_leave(&t->epoch, m->epoch_slot);
	for (uint32_t at = 0; at < n; at += TN_COUNT_OF(places)) {
		uint32_t some = TN_MIN(n - at, (uint32_t)TN_COUNT_OF(places));

		for (uint32_t i = 0; i < some; i++)
			places[i] = tn_table_hash(keys[at + i]);
		t->tier->ops->expect(t->tier, places, some);
	}
	m->epoch_slot = tn_epoch_enter(&t->epoch);
}

uint32_t tn_make(tn_maker *m, tn_scratch *s, uint64_t key, uint64_t hash)
{
	tn_table *t = m->t;
	uint64_t over = atomic_load(&t->warmed_over);
	tn_dir *dir = atomic_load_explicit(&t->dir, memory_order_acquire);
	uint32_t id = tn_index_find(t, dir, key, hash), now = 0;
	tn_insert how;
	tern_status st;

	if (id)
		return id;
	st = may_make(m, hash, over, &how);
	if (st != TERN_OK)
		return st == TERN_AGAIN ? 0 : refuse(m, st);
	if (m->hand.count == 0) {
		st = take_id(m);
		if (st != TERN_OK)
			return refuse(m, st);
	}
	id = m->hand.ids[--m->hand.count];
	tn_record_init(t, id, s, key, m->step);
	st = tn_index_insert(t, key, hash, id, &how, &now);
	if (st != TERN_OK || now != id)
		m->hand.ids[m->hand.count++] = id;
	if (st == TERN_OK && now == 0)
		m->not_admitted += !m->existing;
	if (st == TERN_OK && now == id && now != 0)
		how.warm ? m->warmed++ : m->created++;
	return st == TERN_OK ? now : refuse(m, st);
}

void tn_maker_end(tn_maker *m)
{
	tn_hand_return(m->t, &m->hand);
	if (m->created) {
		TN_COUNT(m->t, created, m->created);
		tn_segments_settle(m->t);
	}
	if (m->not_admitted)
		TN_COUNT(m->t, not_admitted, m->not_admitted);
	if (m->refused)
		TN_COUNT(m->t, refused, m->refused);
}
