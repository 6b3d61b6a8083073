/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records between memory and the tier. An image in the tier is the record from its head on, by the key's hash, which
 * names it: so the tier is in the order of slots. Of its version the marks alone mean anything.
 *
 * A record moves holding its segment, and t->move shared. So it is in one place for who holds the segment, and for a
 * cut, which takes t->move exclusively: what was in the tier then is a walk over it, what was in memory is the cut's.
 * Reading is done together and ahead (expect), so that what is done under a segment's lock finds it in memory.
 *
 * Threads: as table.h. Tests: tests/unit/ps/model_test.c, changes_test.c, cold_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_impl.h"

tern_status tn_cold_init(tn_table *t, const tn_table_env *env)
{
	bool wanted =
		env && env->open_tier && !t->dense && t->rows_max && t->schema.eviction != TERN_EVICT_NONE;

	return wanted ? env->open_tier(env->tier_arg, &t->schema, t->stride, &t->tier) : TERN_OK;
}

void tn_cold_fini(tn_table *t)
{
	if (t->tier)
		t->tier->ops->close(t->tier);
	pthread_rwlock_destroy(&t->move);
}

/* Counts failures, with the table in front of the words. */
static tern_status told(tn_table *t, tern_status status)
{
	if (status == TERN_OK)
		return TERN_OK;
	TN_COUNT(t, tier_errors, 1);
	tn_detail_prefix("table \"%s\"", t->schema.name);
	return status;
}

static tern_status new_image(tn_table *t, uint8_t **image)
{
	*image = TN_FAULT("ps.table.image") ? NULL : malloc(t->stride);
	return *image ? TERN_OK
		      : told(t,
			     tn_fail(TERN_E_NOMEM, "no memory for a record on its way to or from the tier"));
}

static uint32_t marks_of(const uint8_t *image)
{
	tn_head head;

	memcpy(&head, image, TN_HEAD_BYTES_NO_META);
	return head.version & TN_MARKS;
}

static void set_marks(uint8_t *image, uint32_t marks)
{
	memcpy(image + offsetof(tn_head, version), &marks, sizeof(marks));
}

static uint64_t key_of(const uint8_t *image)
{
	tn_head head;

	memcpy(&head, image, TN_HEAD_BYTES_NO_META);
	return tn_head_key(&head);
}

static uint64_t last_step_of(const tn_table *t, const uint8_t *image)
{
	tn_record r;

	tn_record_of_image(&r, t, image);
	return r.last_step;
}

tern_status tn_cold_has(tn_table *t, uint64_t hash, bool *there)
{
	return told(t, t->tier->ops->get(t->tier, hash, NULL, there));
}

tern_status tn_cold_get(tn_table *t, uint64_t hash, void *image, bool *there)
{
	return told(t, t->tier->ops->get(t->tier, hash, image, there));
}

/* ---- moves ---- */

tern_status tn_cold_out(tn_table *t, uint32_t id, tn_head *head, uint64_t hash, uint32_t version)
{
	tern_status st;
	uint8_t *image;

	st = new_image(t, &image);
	if (st != TERN_OK) {
		tn_head_unlock(head, version);
		return st;
	}
	pthread_rwlock_rdlock(&t->move);
	tn_cut_before_write(t, id, head);
	tn_seq_load(image, head, t->stride);
	set_marks(image, tn_settled(t, version));
	st = told(t, t->tier->ops->put(t->tier, hash, image));
	if (st == TERN_OK) {
		atomic_fetch_add(&t->count.cold_rows, 1); /* before it is not in the index any more */
		tn_slot_count(t->slot_cold, hash, 1);
		TN_COUNT(t, cooled, 1);
	}
	tn_head_unlock(head, st == TERN_OK ? (version + TN_VERSION_STEP) | TN_DEAD : version);
	pthread_rwlock_unlock(&t->move);
	free(image);
	return st;
}

/* Into a dead record. */
static void revive(tn_table *t, uint32_t id, const uint8_t *image)
{
	tn_head *head = tn_head_of(t, id);
	uint32_t version = atomic_load_explicit(&head->version, memory_order_relaxed);
	tn_cut *cut = atomic_load_explicit(&t->cut, memory_order_acquire);
	tn_head old;

	if (cut)
		tn_cut_born(cut, t, id); /* its walk over the tier has it */
	memcpy(&old, image, t->head_bytes);
	if (t->meta) {
		uint64_t step;

		memcpy(&step, old.last_step, sizeof(step));
		atomic_store_explicit(&head->frequency, old.frequency, memory_order_relaxed);
		atomic_store_explicit(tn_head_last_step(head), step, memory_order_relaxed);
	}
	memcpy((uint8_t *)head + t->head_bytes, image + t->head_bytes, t->stride - t->head_bytes);
	version = (version + TN_VERSION_STEP) & ~(TN_DEAD | TN_LOCKED | TN_WRITING | TN_MARKS);
	atomic_store_explicit(&head->version, version | tn_settled(t, marks_of(image)), memory_order_release);
}

tern_status tn_cold_in(tn_table *t, uint64_t hash, uint32_t id, bool *there)
{
	tern_status st;
	uint8_t *image;

	*there = false;
	TN_TRY(new_image(t, &image));
	st = tn_cold_get(t, hash, image, there);
	if (st == TERN_OK && *there) {
		pthread_rwlock_rdlock(&t->move);
		atomic_fetch_add(&t->warmed_begun, 1);
		st = told(t, t->tier->ops->remove(t->tier, hash));
		if (st != TERN_OK)
			atomic_fetch_add(&t->warmed_over, 1);
		if (st == TERN_OK) {
			revive(t, id, image);
			atomic_fetch_sub(&t->count.cold_rows, 1);
			tn_slot_count(t->slot_cold, hash, -1u);
			TN_COUNT(t, warmed, 1);
		}
		pthread_rwlock_unlock(&t->move);
	}
	free(image);
	return st;
}

bool tn_cold_erase(tn_table *t, uint64_t key, uint64_t hash, uint64_t unless_after)
{
	uint8_t *image;
	bool there;

	if (new_image(t, &image) != TERN_OK)
		return false;
	if (tn_cold_get(t, hash, image, &there) != TERN_OK)
		there = false;
	if (there && unless_after != TN_ERASE_ALWAYS && last_step_of(t, image) > unless_after)
		there = false;
	free(image);
	if (!there)
		return false;
	pthread_rwlock_rdlock(&t->move);
	there = told(t, t->tier->ops->remove(t->tier, hash)) == TERN_OK;
	if (there) {
		tn_changes_erased_cold(t, key);
		atomic_fetch_sub(&t->count.cold_rows, 1);
		tn_slot_count(t->slot_cold, hash, -1u);
	}
	pthread_rwlock_unlock(&t->move);
	return there;
}

/* ---- all of them ---- */

static tern_status list_one(tn_cold_keys *cold, uint64_t key)
{
	if (cold->n == cold->room) {
		uint64_t room = cold->room ? 2 * cold->room : 256;
		uint64_t *more = realloc(cold->keys, room * sizeof(*more));

		if (!more)
			return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " keys of a tier", room);
		cold->keys = more;
		cold->room = room;
	}
	cold->keys[cold->n++] = key;
	return TERN_OK;
}

typedef tern_status (*image_fn)(tn_table *t, uint64_t hash, const uint8_t *image, void *arg);

static tern_status walk(tn_table *t, uint64_t first, uint64_t last, image_fn fn, void *arg)
{
	const tn_tier_ops *ops = t->tier->ops;
	tern_status st;
	tn_tier_walk *w;
	const void *image;
	uint64_t hash;

	TN_TRY(told(t, ops->walk(t->tier, first, last, &w)));
	do {
		st = told(t, ops->next(w, &hash, &image));
		if (st == TERN_OK && image)
			st = fn(t, hash, image, arg);
	} while (st == TERN_OK && image);
	ops->walk_end(w);
	return st;
}

static tern_status list_image(tn_table *t, uint64_t hash, const uint8_t *image, void *arg)
{
	(void)t, (void)hash;
	return list_one(arg, key_of(image));
}

void tn_cold_list(tn_table *t, uint64_t first, uint64_t last, tn_cold_keys *cold)
{
	tern_status st = walk(t, first, last, list_image, cold);

	if (cold->status == TERN_OK)
		cold->status = st;
}

typedef struct expiry {
	uint64_t last, gone;
} expiry;

static tern_status expire_image(tn_table *t, uint64_t hash, const uint8_t *image, void *arg)
{
	expiry *e = arg;
	unsigned slot;

	if (last_step_of(t, image) > e->last)
		return TERN_OK;
	slot = tn_epoch_enter(&t->epoch);
	e->gone += tn_index_erase(t, key_of(image), hash, e->last);
	tn_epoch_leave(&t->epoch, slot);
	return TERN_OK;
}

tern_status tn_cold_expire(tn_table *t, uint64_t last, uint64_t *gone)
{
	expiry e = {.last = last};
	tern_status st = walk(t, 0, UINT64_MAX, expire_image, &e);

	*gone += e.gone;
	return st;
}

tern_status tn_cold_remark(tn_table *t, uint64_t hash, uint32_t marks)
{
	tern_status st;
	uint8_t *image;
	bool there;

	TN_TRY(new_image(t, &image));
	st = tn_cold_get(t, hash, image, &there);
	if (st == TERN_OK && there) {
		set_marks(image, tn_settled(t, marks_of(image)) | marks);
		pthread_rwlock_rdlock(&t->move);
		st = told(t, t->tier->ops->put(t->tier, hash, image));
		pthread_rwlock_unlock(&t->move);
	}
	free(image);
	return st;
}

static tern_status settle_image(tn_table *t, uint64_t hash, const uint8_t *image, void *arg)
{
	unsigned slot;
	tern_status st;

	if (!(marks_of(image) & *(const uint32_t *)arg))
		return TERN_OK;
	slot = tn_epoch_enter(&t->epoch);
	st = tn_index_remark(t, key_of(image), hash, 0);
	tn_epoch_leave(&t->epoch, slot);
	return st;
}

tern_status tn_cold_settle(tn_table *t, uint32_t clear)
{
	return walk(t, 0, UINT64_MAX, settle_image, &clear);
}

/* ---- for who must not wait ---- */

bool tn_table_warm(tn_table *t, const void *keys, uint64_t n)
{
	bool warm = true;

	if (!tn_cold_any(t))
		return true;
	for (uint64_t from = 0; from < n && warm; from += TN_CHUNK_KEYS) {
		unsigned slot = tn_epoch_enter(&t->epoch);
		const tn_dir *dir = atomic_load_explicit(&t->dir, memory_order_acquire);

		for (uint64_t i = from; i < TN_MIN(n, from + TN_CHUNK_KEYS) && warm; i++) {
			uint64_t key;

			memcpy(&key, (const uint8_t *)keys + i * sizeof(key), sizeof(key));
			warm = tn_index_find(t, dir, key, tn_table_hash(key)) != 0;
		}
		tn_epoch_leave(&t->epoch, slot);
	}
	return warm;
}
