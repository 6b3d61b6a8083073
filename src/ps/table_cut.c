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
 * The walk holds nothing that a writer waits for: it may lose its core anywhere, for long if its thread has a low priority.
 * Blocks of the side store that are full are handed over by an atomic list; the open one is the writers' until the end.
 *
 * Threads: writers any, holding their record; the walk one at a time. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "mem/os_mem.h"
#include "ps/table_impl.h"

#define SIDE_BYTES (256u << 10)
#define COPY_BYTES (32u << 10) /* records copied at a time */
#define LOOKS      1024u       /* at places, at a time */

/* Images of the side store. Pages of their own: malloc's locks are shared with threads that wait for nobody. */
typedef struct side {
	struct side *next;
	uint64_t used, given, capacity;
	_Alignas(8) uint8_t bytes[];
} side;

struct tn_cut {
	tn_table *t;
	uint32_t slab_count; /* at the cut */
	uint64_t places, place;
	uint64_t rows;
	uint32_t only;        /* records with this mark; 0 = all */
	bool walked, settled; /* all records are taken; and none is being saved any more */
	uint8_t *copies;      /* the walk's, from its first step on */
	tn_tier_walk *cold;   /* what was in the tier; NULL: nothing, or it was given */
	tn_map gone;          /* TN_CUT_CHANGES: erased keys that were not given as records */

	pthread_mutex_t lock; /* of writers among each other */
	side *open;
	_Atomic(side *) full;
	side *giving; /* the walk's */
	_Atomic bool failed;

	void *bits; /* pages of their own as well */
	uint64_t words;
	_Atomic uint64_t *taken[]; /* of each slab, in bits */
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

static uint64_t side_bytes(const tn_table *t)
{
	uint64_t images = TN_MAX((SIDE_BYTES - sizeof(side)) / t->stride, 1);

	return sizeof(side) + images * t->stride;
}

/* Lock held. The open block with room for one more; NULL: no memory. */
static side *open_side(tn_cut *cut)
{
	uint64_t bytes = side_bytes(cut->t);
	side *s = cut->open;

	if (s && s->used < s->capacity)
		return s;
	if (s) {
		s->next = atomic_load_explicit(&cut->full, memory_order_relaxed);
		while (!atomic_compare_exchange_weak_explicit(&cut->full, &s->next, s, memory_order_release,
							      memory_order_relaxed))
			;
	}
	cut->open = s = TN_FAULT("ps.table.side") ? NULL : tn_os_mem_private(bytes, 4096);
	if (!s)
		return NULL;
	*s = (side){.capacity = bytes - sizeof(*s)};
	TN_COUNT(cut->t, cut_bytes, bytes);
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
	s = open_side(cut);
	if (s) {
		tn_seq_load(s->bytes + s->used, head, t->stride); /* touches go on meanwhile */
		s->used += t->stride;
	} else {
		atomic_store(&cut->failed, true);
	}
	pthread_mutex_unlock(&cut->lock);
}

/* Free it; returns the one behind it. */
static side *drop_side(tn_cut *cut, side *s)
{
	side *next = s->next;

	TN_COUNT(cut->t, cut_bytes, -side_bytes(cut->t));
	tn_os_mem_private_free(s, side_bytes(cut->t));
	return next;
}

static void drop_sides(tn_cut *cut, side *s)
{
	while (s)
		s = drop_side(cut, s);
}

static uint64_t bit_words(const tn_table *t, uint32_t slab)
{
	return (t->slabs[slab].places + 63ull) / 64;
}

static void destroy(tn_cut *cut)
{
	if (cut->bits) {
		TN_COUNT(cut->t, cut_bytes, -8 * cut->words);
		tn_os_mem_private_free(cut->bits, 8 * cut->words);
	}
	drop_sides(cut, cut->open);
	drop_sides(cut, atomic_load(&cut->full));
	drop_sides(cut, cut->giving);
	free(cut->copies);
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
	_Atomic uint64_t *bits;

	if (!cut)
		return NULL;
	*cut = (tn_cut){.t = t, .slab_count = t->slab_count, .words = 1};
	pthread_mutex_init(&cut->lock, NULL);
	for (uint32_t i = 0; i < cut->slab_count; i++)
		cut->words += bit_words(t, i);
	cut->bits = bits = tn_os_mem_private(8 * cut->words, 4096);
	if (!cut->bits) {
		destroy(cut);
		return NULL;
	}
	TN_COUNT(t, cut_bytes, 8 * cut->words);
	for (uint32_t i = 0; i < cut->slab_count; bits += bit_words(t, i), i++)
		cut->taken[i] = bits;
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

/* Up to n records of the walk into the copies. Inside the epoch. */
static uint64_t walk(tn_cut *cut, uint64_t n)
{
	tn_table *t = cut->t;
	uint64_t got = 0, used = TN_MIN(tn_slab_places(t), cut->places);

	for (unsigned looked = 0; cut->place < used && got < n && looked < LOOKS; cut->place++, looked++) {
		tn_head *head;
		uint8_t *copy = cut->copies + got * t->stride;
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

/* What writers saved. Returns how many records it gave, up to n. */
static tern_status give_saved(tn_cut *cut, uint64_t n, uint64_t *given, tn_record_fn fn, void *arg)
{
	while (*given < n) {
		side *s = cut->giving;

		if (!s) {
			s = cut->giving = atomic_exchange_explicit(&cut->full, NULL, memory_order_acquire);
			if (!s)
				return TERN_OK;
		}
		for (; *given < n && s->given < s->used; s->given += cut->t->stride, ++*given)
			TN_TRY(give(cut, s->bytes + s->given, fn, arg));
		if (s->given == s->used)
			cut->giving = drop_side(cut, s);
	}
	return TERN_OK;
}

static tern_status give_walked(tn_cut *cut, uint64_t n, tn_record_fn fn, void *arg)
{
	unsigned slot = tn_epoch_enter(&cut->t->epoch);
	uint64_t got = walk(cut, n);

	tn_epoch_leave(&cut->t->epoch, slot);
	for (uint64_t i = 0; i < got; i++)
		TN_TRY(give(cut, cut->copies + i * cut->t->stride, fn, arg));
	return TERN_OK;
}

/* Up to n records of what was in the tier. */
static tern_status give_cold(tn_cut *cut, uint64_t n, tn_record_fn fn, void *arg)
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
		memcpy(cut->copies, image, cut->t->stride);
		memcpy(&head, cut->copies, TN_HEAD_BYTES_NO_META);
		if (cut->only && !(head.version & cut->only))
			continue;
		TN_TRY(give(cut, cut->copies, fn, arg));
	}
	return TERN_OK;
}

/* All records are taken; those who save one just now are let finish. Then nobody has the open block. */
static void settle(tn_cut *cut)
{
	tn_epoch_wait(&cut->t->epoch);
	if (cut->open) {
		cut->open->next = cut->giving;
		cut->giving = cut->open;
		cut->open = NULL;
	}
	cut->settled = true;
}

static bool is_over(const tn_cut *cut)
{
	return cut->settled && !cut->giving && !atomic_load_explicit(&cut->full, memory_order_relaxed);
}

/* What writers saved comes first, so that it is no more than they save in a while. */
static tern_status give_some(tn_cut *cut, uint64_t n, tn_record_fn fn, void *arg)
{
	uint64_t given = 0;

	TN_TRY(give_saved(cut, n, &given, fn, arg));
	if (given == n)
		return TERN_OK;
	if (!cut->walked)
		return give_walked(cut, n - given, fn, arg);
	if (cut->cold)
		return give_cold(cut, n - given, fn, arg);
	if (!cut->settled)
		settle(cut);
	return TERN_OK;
}

tern_status tn_cut_next(tn_cut *cut, uint64_t max, tn_record_fn fn, void *arg, bool *more)
{
	uint64_t room = TN_MAX(COPY_BYTES / cut->t->stride, 1);

	*more = true;
	if (!cut->copies && !(cut->copies = malloc(room * cut->t->stride)))
		return tn_fail(TERN_E_NOMEM, "no memory for records of a cut");
	TN_TRY(give_some(cut, TN_MIN(TN_MAX(max, 1), room), fn, arg));
	*more = !is_over(cut);
	if (atomic_load(&cut->failed))
		return tn_fail(TERN_E_NOMEM, "table \"%s\": no memory to keep an old row for the cut",
			       cut->t->schema.name);
	return TERN_OK;
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
