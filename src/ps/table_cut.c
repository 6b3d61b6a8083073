/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts: copy on write by one bit per place for records ("taken"). Whoever sets the bit of a record that was live at
 * the cut has the duty to give its old image: a writer, before its first write, to the side store; the walk over the
 * places, from a copy that it made before. What is born after the cut has its bit set at birth; ids of slabs that came
 * after the cut are none of its business.
 *
 *   records given = records live at the cut, or of them those with the mark of the changes that are wanted: a record's
 *   image carries its marks as they were at the cut, since writers add only the other one now
 *
 * Frequencies and last steps are as of the moment of giving: touching a row is no write.
 *
 * Threads: savers any, holding their record; the walk one at a time. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_impl.h"

#define SIDE_BYTES (256u << 10)

/* Images of the side store. */
typedef struct side {
	struct side *next;
	uint64_t used, capacity;
	_Alignas(8) uint8_t bytes[];
} side;

struct tn_cut {
	tn_table *t;
	uint32_t slab_count; /* at the cut */
	uint64_t places, place;
	uint64_t rows;
	uint32_t only; /* records with this mark; 0 = all */
	bool walked;
	tn_tier_walk *cold; /* what was in the tier; NULL: nothing, or it was given */
	tn_map gone;        /* TN_CUT_CHANGES: erased keys that were not given as records */

	pthread_mutex_t lock; /* of the side store */
	side *first, *last;
	_Atomic bool failed;

	_Atomic uint64_t *taken[]; /* of each slab: bits */
};

static bool mine(tn_cut *cut, const tn_table *t, uint32_t id)
{
	uint32_t slab = id >> t->shift, i = id & t->mask;
	uint64_t bit = 1ull << (i & 63);

	if (slab >= cut->slab_count)
		return false;
	return !(atomic_fetch_or(&cut->taken[slab][i / 64], bit) & bit);
}

static bool is_taken(const tn_cut *cut, const tn_table *t, uint32_t id)
{
	uint32_t i = id & t->mask;

	return atomic_load(&cut->taken[id >> t->shift][i / 64]) >> (i & 63) & 1;
}

void tn_cut_born(tn_cut *cut, tn_table *t, uint32_t id)
{
	(void)mine(cut, t, id);
}

static side *new_side(tn_cut *cut)
{
	uint64_t capacity = TN_MAX(SIDE_BYTES / cut->t->stride, 1) * cut->t->stride;
	side *s = TN_FAULT("ps.table.side") ? NULL : malloc(sizeof(*s) + capacity);

	if (!s)
		return NULL;
	*s = (side){.capacity = capacity};
	if (cut->last)
		cut->last->next = s;
	else
		cut->first = s;
	cut->last = s;
	TN_COUNT(cut->t, cut_bytes, sizeof(*s) + capacity);
	return s;
}

void tn_cut_save(tn_cut *cut, tn_table *t, uint32_t id, tn_head *head)
{
	side *s;

	if (cut->only && !(atomic_load_explicit(&head->version, memory_order_relaxed) & cut->only))
		return;
	if (!mine(cut, t, id))
		return;
	pthread_mutex_lock(&cut->lock);
	s = cut->last;
	if (!s || s->used == s->capacity)
		s = new_side(cut);
	if (s) {
		tn_seq_load(s->bytes + s->used, head, t->stride); /* touches go on meanwhile */
		s->used += t->stride;
	} else {
		atomic_store(&cut->failed, true);
	}
	pthread_mutex_unlock(&cut->lock);
}

static void free_sides(tn_cut *cut, side *s)
{
	while (s) {
		side *next = s->next;

		TN_COUNT(cut->t, cut_bytes, -(sizeof(*s) + s->capacity));
		free(s);
		s = next;
	}
}

static uint64_t bit_words(const tn_table *t, uint32_t slab)
{
	return (t->slabs[slab].places + 63ull) / 64;
}

static void destroy(tn_cut *cut)
{
	for (uint32_t i = 0; i < cut->slab_count; i++) {
		if (cut->taken[i])
			TN_COUNT(cut->t, cut_bytes, -8 * bit_words(cut->t, i));
		free((void *)cut->taken[i]);
	}
	free_sides(cut, cut->first);
	tn_map_fini(&cut->gone);
	if (cut->cold)
		cut->t->tier->ops->walk_end(cut->cold);
	pthread_mutex_destroy(&cut->lock);
	free(cut);
}

/* Bits for the slabs there are. Holding id_lock. */
static tn_cut *create(tn_table *t)
{
	tn_cut *cut = TN_FAULT("ps.table.cut") ? NULL
					       : malloc(sizeof(*cut) + t->slab_count * sizeof(cut->taken[0]));

	if (!cut)
		return NULL;
	*cut = (tn_cut){.t = t, .slab_count = t->slab_count};
	memset(cut->taken, 0, t->slab_count * sizeof(cut->taken[0]));
	pthread_mutex_init(&cut->lock, NULL);
	for (uint32_t i = 0; i < cut->slab_count; i++) {
		cut->taken[i] = calloc(bit_words(t, i), 8);
		if (!cut->taken[i]) {
			destroy(cut);
			return NULL;
		}
		TN_COUNT(t, cut_bytes, 8 * bit_words(t, i));
	}
	if (t->slab_count)
		cut->places = t->slabs[t->slab_count - 1].first + t->slabs[t->slab_count - 1].places;
	return cut;
}

/* Keys that were erased, less those that have a row again, which are given. Pushes may go on meanwhile. */
static tern_status list_gone(tn_cut *cut)
{
	const tn_gone *given = &cut->t->changes.given;

	TN_TRY(tn_map_init(&cut->gone, TN_MAX(given->n, 8), false, cut->t->init_seed));
	for (uint64_t i = 0; i < given->n; i++)
		TN_TRY(tn_map_put(&cut->gone, given->keys[i], 0));
	return TERN_OK;
}

/* Holding id_lock: slabs that come later are not in the cut. */
static tern_status begin(tn_table *t, tn_cut_kind kind, uint64_t id, tn_cut **cut)
{
	tern_status st = TERN_OK;

	if (atomic_load(&t->cut))
		return tn_fail(TERN_E_STATE, "table \"%s\" has a cut already: end it first", t->schema.name);
	TN_TRY(tn_changes_may_cut(t, kind));
	*cut = create(t);
	if (!*cut)
		return tn_fail(TERN_E_NOMEM, "no memory for a cut of table \"%s\"", t->schema.name);
	/* No record is between memory and tier now. */
	pthread_rwlock_wrlock(&t->move);
	if (t->tier)
		st = t->tier->ops->walk(t->tier, 0, UINT64_MAX, &(*cut)->cold);
	(*cut)->rows = TN_GET(t, rows) + TN_GET(t, cold_rows);
	if (st == TERN_OK)
		tn_changes_flip(t, kind, id, *cut);
	pthread_rwlock_unlock(&t->move);
	if (st != TERN_OK)
		destroy(*cut);
	return st;
}

tern_status tn_table_cut_as(tn_table *t, tn_cut_kind kind, uint64_t id, tn_cut **cut)
{
	tern_status st;

	pthread_mutex_lock(&t->id_lock);
	st = begin(t, kind, id, cut);
	pthread_mutex_unlock(&t->id_lock);
	TN_TRY(st);
	/* Writers that did not see it have finished: their writes came before the cut. */
	tn_epoch_wait(&t->epoch);
	if (kind == TN_CUT_CHANGES && list_gone(*cut) != TERN_OK) {
		tn_cut_end(*cut);
		return tn_fail(TERN_E_NOMEM, "no memory for the erased keys of table \"%s\"", t->schema.name);
	}
	return TERN_OK;
}

tern_status tn_table_cut(tn_table *t, tn_cut **cut)
{
	return tn_table_cut_as(t, TN_CUT_ALONE, 0, cut);
}

void tn_cut_only(tn_cut *cut, uint32_t mark)
{
	cut->only = mark;
}

uint64_t tn_cut_rows(const tn_cut *cut)
{
	return cut->rows;
}

void tn_record_of_image(tn_record *r, const tn_table *t, const uint8_t *image)
{
	tn_head head;

	memcpy(&head, image, t->head_bytes);
	tn_record_view_init(r, t, tn_head_key(&head), image + t->head_bytes);
	if (t->meta) {
		r->frequency = head.frequency;
		memcpy(&r->last_step, head.last_step, sizeof(r->last_step));
	}
}

/* A copied record to the callback. */
static tern_status give(tn_cut *cut, const uint8_t *copy, tn_record_fn fn, void *arg)
{
	tn_record r;

	tn_record_of_image(&r, cut->t, copy);
	if (cut->gone.count)
		tn_map_remove(&cut->gone, r.key, NULL);
	return fn(&r, arg);
}

/* Up to n records of the walk into copies. Inside the epoch. */
static uint64_t walk(tn_cut *cut, uint8_t *copies, uint64_t n)
{
	tn_table *t = cut->t;
	uint64_t got = 0, used = TN_MIN(tn_slab_places(t), cut->places);

	for (unsigned looked = 0; cut->place < used && got < n && looked < 65536; cut->place++, looked++) {
		tn_head *head;
		uint8_t *copy = copies + got * t->stride;
		uint32_t id;

		if (!tn_slab_walk(t, cut->place, &id) || is_taken(cut, t, id))
			continue;
		head = tn_head_of(t, id);
		if (cut->only && !(atomic_load_explicit(&head->version, memory_order_relaxed) & cut->only))
			continue;
		if (tn_head_read(t, head, 0, copy, t->stride) && mine(cut, t, id))
			got++;
	}
	if (cut->place >= used)
		cut->walked = true;
	return got;
}

static tern_status give_all(tn_cut *cut, const uint8_t *copies, uint64_t n, uint64_t *given, tn_record_fn fn,
			    void *arg)
{
	for (uint64_t i = 0; i < n; i++) {
		TN_TRY(give(cut, copies + i * cut->t->stride, fn, arg));
		++*given;
	}
	return TERN_OK;
}

/* What the side store has by now. */
static tern_status drain(tn_cut *cut, uint64_t *given, tn_record_fn fn, void *arg)
{
	tern_status st = TERN_OK;
	side *first;

	pthread_mutex_lock(&cut->lock);
	first = cut->first;
	cut->first = cut->last = NULL;
	pthread_mutex_unlock(&cut->lock);
	for (side *s = first; s && st == TERN_OK; s = s->next)
		st = give_all(cut, s->bytes, s->used / cut->t->stride, given, fn, arg);
	free_sides(cut, first);
	return st;
}

/* Up to n records of what was in the tier. */
static tern_status give_cold(tn_cut *cut, uint8_t *copy, uint64_t n, uint64_t *given, tn_record_fn fn,
			     void *arg)
{
	const tn_tier_ops *ops = cut->t->tier->ops;
	const void *image;
	uint64_t place;
	tn_head head;

	for (uint64_t i = 0; i < n; i++) {
		TN_TRY(ops->next(cut->cold, &place, &image));
		if (!image) {
			ops->walk_end(cut->cold);
			cut->cold = NULL;
			return TERN_OK;
		}
		memcpy(copy, image, cut->t->stride);
		memcpy(&head, copy, TN_HEAD_BYTES_NO_META);
		if (cut->only && !(head.version & cut->only))
			continue;
		TN_TRY(give(cut, copy, fn, arg));
		++*given;
	}
	return TERN_OK;
}

#define COPY_BYTES (256ull << 10)

tern_status tn_cut_next(tn_cut *cut, uint64_t max, tn_record_fn fn, void *arg, bool *more)
{
	tn_table *t = cut->t;
	uint64_t given = 0, room = TN_MAX(COPY_BYTES / t->stride, 1);
	uint8_t *copies = malloc(room * t->stride);
	tern_status st = copies ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for records of a cut");

	*more = true;
	while (st == TERN_OK && *more && given < TN_MAX(max, 1)) {
		if (!cut->walked) {
			unsigned slot = tn_epoch_enter(&t->epoch);
			uint64_t n = walk(cut, copies, room);

			tn_epoch_leave(&t->epoch, slot);
			st = give_all(cut, copies, n, &given, fn, arg);
		} else if (cut->cold) {
			st = give_cold(cut, copies, room, &given, fn, arg);
		} else {
			/* All records are taken; those who save one just now are let finish. */
			tn_epoch_wait(&t->epoch);
			*more = false;
		}
		if (st == TERN_OK)
			st = drain(cut, &given, fn, arg);
	}
	free(copies);
	if (st == TERN_OK && atomic_load(&cut->failed))
		st = tn_fail(TERN_E_NOMEM, "table \"%s\": no memory to keep an old row for the cut",
			     t->schema.name);
	return st;
}

tern_status tn_cut_gone(tn_cut *cut, tern_status (*fn)(uint64_t key, void *arg), void *arg)
{
	uint64_t cursor = 0;
	tn_map_entry entry;

	TN_ASSERT(cut->walked && !cut->cold);
	while (cut->gone.count && tn_map_next(&cut->gone, &cursor, &entry))
		TN_TRY(fn(entry.key, arg));
	return TERN_OK;
}

void tn_cut_end(tn_cut *cut)
{
	tn_table *t = cut->t;

	TN_ASSERT(atomic_load(&t->cut) == cut);
	atomic_store(&t->cut, NULL);
	tn_epoch_wait(&t->epoch);
	destroy(cut);
}
