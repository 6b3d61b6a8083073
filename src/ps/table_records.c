/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole records: put, read, scan, erase, drop a slot.
 *
 * Callbacks run outside the epoch and without a lock, so that they may call the table: what they see is a copy.
 *
 * Threads: any. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "ps/table_impl.h"

/* ---- put ---- */

static bool overwrite(tn_table *t, uint32_t id, const tn_record *r, const void *state)
{
	tn_head *head = tn_head_of(t, id);
	uint32_t version;

	if (!tn_head_lock(head, &version))
		return false;
	tn_cut_before_write(t, id, head);
	tn_head_begin(head, version);
	tn_seq_store(tn_value_of(t, head), r->value, t->value_bytes);
	if (t->state_bytes)
		tn_seq_store(tn_state_of(t, head), state, t->state_bytes);
	if (t->meta) {
		atomic_store_explicit(&head->frequency, r->frequency, memory_order_relaxed);
		atomic_store_explicit(tn_head_last_step(head), r->last_step, memory_order_relaxed);
	}
	tn_head_unlock(head, tn_written(t, version));
	TN_COUNT(t, put, 1);
	return true;
}

tern_status tn_table_put_record(tn_table *t, const tn_record *r)
{
	tn_maker m = {.t = t, .step = r->last_step, .admit_all = true, .wanted = 1};
	tn_scratch *s = tn_scratch_take(t);
	bool done = false;

	if (!s)
		return TERN_E_NOMEM;
	m.epoch_slot = tn_epoch_enter(&t->epoch);
	for (unsigned tries = 0; tries < 8 && !done && m.status == TERN_OK; tries++) {
		uint32_t id = t->dense ? tn_index_find(t, NULL, r->key, 0)
				       : tn_make(&m, s, r->key, tn_table_hash(r->key));

		if (!id)
			break;
		if (!r->state)
			tn_optim_state_init(&t->optim, t->schema.dim, s->moments);
		done = overwrite(t, id, r, r->state ? r->state : s->moments);
	}
	tn_epoch_leave(&t->epoch, m.epoch_slot);
	m.created = 0; /* counted as put */
	tn_maker_end(&m);
	tn_scratch_give(t, s);
	if (t->dense && !done)
		return tn_fail(TERN_E_INVALID,
			       "dense table \"%s\": key %" PRIu64 " is not below its %" PRIu64 " rows",
			       t->schema.name, r->key, t->schema.rows);
	return m.status != TERN_OK || done
		       ? m.status
		       : tn_fail(TERN_E_BUDGET, "table \"%s\": the row is evicted as fast as it is put",
				 t->schema.name);
}

/* ---- read ---- */

typedef struct reader {
	tn_table *t;
	uint8_t *copy; /* of a record from its head on */
	tn_record_fn fn;
	void *arg;
} reader;

static tern_status reader_init(reader *r, tn_table *t, tn_record_fn fn, void *arg)
{
	*r = (reader){t, malloc(t->stride), fn, arg};
	return r->copy ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for the copy of a record");
}

static tern_status give(reader *r, uint64_t key, bool *there);

/* It was not in memory a moment ago. */
static tern_status give_cold(reader *r, uint64_t key, bool *there)
{
	tn_table *t = r->t;
	unsigned slot = tn_epoch_enter(&t->epoch);
	tern_status st = tn_index_cold_read(t, key, tn_table_hash(key), r->copy, there);
	bool warm = tn_index_find(t, atomic_load_explicit(&t->dir, memory_order_acquire), key,
				  tn_table_hash(key)) != 0;
	tn_record record;

	tn_epoch_leave(&t->epoch, slot);
	TN_TRY(st);
	if (*there) {
		tn_record_of_image(&record, t, r->copy);
		return r->fn(&record, r->arg);
	}
	return warm ? give(r, key, there) : TERN_OK; /* it has come back meanwhile */
}

/* The key's record to the callback. *there = false: it has none. */
static tern_status give(reader *r, uint64_t key, bool *there)
{
	tn_table *t = r->t;
	unsigned slot = tn_epoch_enter(&t->epoch);
	uint32_t id = tn_index_find(t, atomic_load_explicit(&t->dir, memory_order_acquire), key,
				    tn_table_hash(key));
	tn_head *head = id ? tn_head_of(t, id) : NULL;
	tn_record record;

	tn_record_view_init(&record, t, key, r->copy);
	*there = head && tn_head_read(t, head, t->head_bytes, r->copy, t->value_room + t->state_bytes);
	if (*there && t->meta) {
		record.frequency = atomic_load_explicit(&head->frequency, memory_order_relaxed);
		record.last_step = atomic_load_explicit(tn_head_last_step(head), memory_order_relaxed);
	}
	tn_epoch_leave(&t->epoch, slot);
	if (!*there && t->tier)
		return give_cold(r, key, there);
	if (!*there)
		return TERN_OK;
	return r->fn(&record, r->arg);
}

tern_status tn_table_read_records(tn_table *t, const uint64_t *keys, uint64_t n, tn_record_fn fn, void *arg)
{
	reader r;
	tern_status st = reader_init(&r, t, fn, arg);

	for (uint64_t i = 0; i < n && st == TERN_OK; i++) {
		bool there;

		st = give(&r, keys[i], &there);
	}
	free(r.copy);
	return st;
}

/* ---- scan ---- */

/* Dense: the cursor is the next row. */
static tern_status scan_dense(reader *r, uint32_t first, uint32_t last, uint64_t *cursor, uint64_t max)
{
	uint64_t rows = r->t->schema.rows, given = 0;
	tern_status st = TERN_OK;

	for (; *cursor < rows && given < max && st == TERN_OK; (*cursor)++) {
		uint32_t slot = tn_table_slot(*cursor);
		bool there = false;

		if (slot >= first && slot <= last)
			st = give(r, *cursor, &there);
		given += there;
	}
	if (*cursor >= rows)
		*cursor = TN_SCAN_END;
	return st;
}

static tern_status give_keys(reader *r, const uint64_t *keys, uint64_t n, uint64_t *given)
{
	for (uint64_t i = 0; i < n; i++) {
		bool there;

		TN_TRY(give(r, keys[i], &there));
		*given += there;
	}
	return TERN_OK;
}

/* Sparse: the cursor is a hash; whole segments are given, keys first, since ids die outside of the epoch. */
static tern_status scan_sparse(reader *r, uint64_t last, uint64_t *cursor, uint64_t max, uint64_t *keys)
{
	tn_cold_keys cold = {0};
	uint64_t given = 0;
	tern_status st = TERN_OK;

	while (*cursor != TN_SCAN_END && given < max && st == TERN_OK) {
		unsigned slot = tn_epoch_enter(&r->t->epoch);
		uint64_t end;
		uint32_t n;

		cold.n = 0;
		n = tn_index_keys(r->t, *cursor, last, keys, &end, &cold);
		tn_epoch_leave(&r->t->epoch, slot);
		st = cold.status;
		if (st == TERN_OK)
			st = give_keys(r, keys, n, &given);
		if (st == TERN_OK)
			st = give_keys(r, cold.keys, cold.n, &given);
		*cursor = end == 0 || end > last ? TN_SCAN_END : end;
	}
	free(cold.keys);
	return st;
}

tern_status tn_table_scan(tn_table *t, uint32_t slot_first, uint32_t slot_last, uint64_t *cursor,
			  uint64_t max, tn_record_fn fn, void *arg)
{
	uint64_t first = (uint64_t)slot_first << 52, last = ((uint64_t)slot_last << 52) + ((1ull << 52) - 1);
	uint64_t *keys;
	reader r;
	tern_status st;

	if (slot_first > slot_last || slot_last >= TERN_TABLE_SLOTS)
		return tn_fail(TERN_E_INVALID, "slots %" PRIu32 " to %" PRIu32 "; there are 0 to %d",
			       slot_first, slot_last, TERN_TABLE_SLOTS - 1);
	if (*cursor == TN_SCAN_END)
		return TERN_OK;
	TN_TRY(reader_init(&r, t, fn, arg));
	if (t->dense) {
		st = scan_dense(&r, slot_first, slot_last, cursor, TN_MAX(max, 1));
	} else {
		*cursor = TN_MAX(*cursor, first);
		keys = malloc(TN_SEGMENT_PLACES * sizeof(*keys));
		st = keys ? scan_sparse(&r, last, cursor, TN_MAX(max, 1), keys)
			  : tn_fail(TERN_E_NOMEM, "no memory for the keys of a scan");
		free(keys);
	}
	free(r.copy);
	return st;
}

/* ---- erase ---- */

tern_status tn_table_erase(tn_table *t, const uint64_t *keys, uint64_t n, uint64_t *erased)
{
	uint64_t gone = 0, errors = TN_GET(t, tier_errors);

	if (erased)
		*erased = 0;
	if (t->dense)
		return tn_fail(TERN_E_STATE, "dense table \"%s\": its rows stay; assign to them",
			       t->schema.name);
	for (uint64_t from = 0; from < n; from += TN_CHUNK_KEYS) {
		unsigned slot = tn_epoch_enter(&t->epoch);

		for (uint64_t i = from; i < TN_MIN(n, from + TN_CHUNK_KEYS); i++) {
			uint64_t key = *(const volatile uint64_t *)&keys[i];

			gone += tn_index_erase(t, key, tn_table_hash(key), TN_ERASE_ALWAYS);
		}
		tn_epoch_leave(&t->epoch, slot);
	}
	TN_COUNT(t, erased, gone);
	if (erased)
		*erased = gone;
	return TN_GET(t, tier_errors) == errors
		       ? TERN_OK
		       : tn_fail(TERN_E_IO,
				 "table \"%s\": its cold tier failed; some rows may still be there",
				 t->schema.name);
}

static tern_status drop_dense(tn_table *t, uint32_t slot, uint64_t *erased)
{
	tn_scratch *s = tn_scratch_take(t);
	uint64_t n = 0;

	if (!s)
		return TERN_E_NOMEM;
	for (uint64_t row = 0; row < t->schema.rows; row++) {
		tn_record r = {.key = row, .value = s->sum};
		unsigned in;

		if (tn_table_slot(row) != slot)
			continue;
		tn_row_default(t, s, row, s->sum, t->schema.dtype);
		tn_optim_state_init(&t->optim, t->schema.dim, s->moments);
		in = tn_epoch_enter(&t->epoch);
		n += overwrite(t, (uint32_t)row + 1, &r, s->moments);
		tn_epoch_leave(&t->epoch, in);
	}
	tn_scratch_give(t, s);
	if (erased)
		*erased = n;
	return TERN_OK;
}

static tern_status drop_dense_slots(tn_table *t, uint32_t first, uint32_t last, uint64_t *erased)
{
	uint64_t one = 0, sum = 0;

	for (uint32_t slot = first; slot <= last; slot++) {
		TN_TRY(drop_dense(t, slot, &one));
		sum += one;
	}
	if (erased)
		*erased = sum;
	return TERN_OK;
}

tern_status tn_table_drop_slots(tn_table *t, uint32_t first, uint32_t last_slot, uint64_t *erased)
{
	uint64_t cursor = (uint64_t)first << 52, last = ((uint64_t)last_slot << 52) + ((1ull << 52) - 1);
	uint64_t gone = 0, end;
	tn_cold_keys cold = {0};
	uint64_t *keys;

	if (first > last_slot || last_slot >= TERN_TABLE_SLOTS)
		return tn_fail(TERN_E_INVALID, "slots %" PRIu32 " to %" PRIu32 "; there are 0 to %d", first,
			       last_slot, TERN_TABLE_SLOTS - 1);
	if (t->dense)
		return drop_dense_slots(t, first, last_slot, erased);
	keys = malloc(TN_SEGMENT_PLACES * sizeof(*keys));
	if (!keys)
		return tn_fail(TERN_E_NOMEM, "no memory for the keys of a slot");
	do {
		unsigned in = tn_epoch_enter(&t->epoch);
		uint32_t n;

		cold.n = 0;
		n = tn_index_keys(t, cursor, last, keys, &end, &cold);
		for (uint32_t i = 0; i < n; i++)
			gone += tn_index_erase(t, keys[i], tn_table_hash(keys[i]), TN_ERASE_ALWAYS);
		for (uint64_t i = 0; i < cold.n; i++)
			gone += tn_index_erase(t, cold.keys[i], tn_table_hash(cold.keys[i]), TN_ERASE_ALWAYS);
		tn_epoch_leave(&t->epoch, in);
		cursor = end;
	} while (end != 0 && end <= last);
	free(keys);
	free(cold.keys);
	TN_COUNT(t, erased, gone);
	if (erased)
		*erased = gone;
	return cold.status;
}

tern_status tn_table_drop_slot(tn_table *t, uint32_t slot, uint64_t *erased)
{
	return tn_table_drop_slots(t, slot, slot, erased);
}
