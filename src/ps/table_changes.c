/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which records changed since a cut. See table.h for the states, table_impl.h for the marks.
 *
 * A write sets the mark with the version that it stores anyway: it costs a load and an or, whether changes are
 * remembered or not. Who writes reads t->cut before t->mark, and a cut stores them the other way round: a write that
 * is not in the cut has the new mark. Erasures take a lock for the pair, because a key that is neither in the cut nor
 * in its list would be lost.
 *
 * Threads: as table.h; settle, cut and acknowledge one at a time. Tests: tests/unit/ps/changes_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_impl.h"

void tn_changes_init(tn_table *t)
{
	pthread_mutex_init(&t->changes.lock, NULL);
}

void tn_changes_fini(tn_table *t)
{
	free(t->changes.now.keys);
	free(t->changes.given.keys);
	pthread_mutex_destroy(&t->changes.lock);
}

static void changes_set_state(tn_changes *c, tn_changes_state state)
{
	TN_ASSERT(state == TN_CHANGES_OFF || (state == TN_CHANGES_READY && c->state != TN_CHANGES_READY) ||
		  (state == TN_CHANGES_PENDING && c->state <= TN_CHANGES_READY) ||
		  (state == TN_CHANGES_STALE && c->state == TN_CHANGES_PENDING));
	c->state = state;
}

static void forget(tn_gone *gone)
{
	free(gone->keys);
	*gone = (tn_gone){0};
}

static bool reserve(tn_gone *gone, uint64_t n)
{
	uint64_t room = TN_MAX(n, gone->room * 2 + 64), *more;

	if (n <= gone->room)
		return true;
	more = TN_FAULT("ps.table.gone") ? NULL : realloc(gone->keys, room * sizeof(*more));
	if (!more)
		return false;
	gone->keys = more;
	gone->room = room;
	return true;
}

/* Holding the lock: changes are not known from here on. What an open cut gives stays. */
static void lapse(tn_table *t)
{
	tn_changes *c = &t->changes;

	atomic_store(&t->touch_mark, 0);
	atomic_store(&t->mark, 0);
	changes_set_state(c, TN_CHANGES_OFF);
	c->unclean = true;
	c->since = c->last = 0;
	forget(&c->now);
}

/* Holding the lock. */
static void set_mark(tn_table *t, uint32_t mark)
{
	bool matters = t->schema.ttl_steps || t->schema.eviction != TERN_EVICT_NONE;

	atomic_store(&t->mark, mark);
	atomic_store(&t->touch_mark, t->meta && matters ? mark : 0);
	t->changes.other = TN_MARKS & ~mark;
}

/* ---- writes ---- */

/* Holding the lock. */
static void log_gone(tn_table *t, uint64_t key)
{
	tn_gone *now = &t->changes.now;

	if (!atomic_load_explicit(&t->mark, memory_order_relaxed))
		return;
	if (now->n < TN_CHANGES_GONE_MAX && reserve(now, now->n + 1))
		now->keys[now->n++] = key;
	else
		lapse(t);
}

void tn_changes_erased(tn_table *t, uint32_t id, tn_head *head)
{
	tn_changes *c = &t->changes;
	tn_cut *cut = atomic_load_explicit(&t->cut, memory_order_acquire);

	if (!atomic_load_explicit(&t->mark, memory_order_acquire)) {
		if (cut)
			tn_cut_save(cut, t, id, head);
		return;
	}
	pthread_mutex_lock(&c->lock);
	tn_cut_before_write(t, id, head);
	log_gone(t, tn_head_key(head));
	pthread_mutex_unlock(&c->lock);
}

void tn_changes_erased_cold(tn_table *t, uint64_t key)
{
	tn_changes *c = &t->changes;

	pthread_mutex_lock(&c->lock);
	log_gone(t, key);
	pthread_mutex_unlock(&c->lock);
}

void tn_changes_touched(tn_table *t, tn_head *head)
{
	uint32_t version, mark = atomic_load_explicit(&t->touch_mark, memory_order_acquire);
	uint64_t key = tn_head_key(head);

	if (tn_head_lock(head, &version)) {
		tn_head_unlock(head, version | mark);
	} else if (t->tier && tn_index_remark(t, key, tn_table_hash(key), mark) != TERN_OK) {
		/* It went to the tier as it was touched, and there is no mark. */
		pthread_mutex_lock(&t->changes.lock);
		lapse(t);
		pthread_mutex_unlock(&t->changes.lock);
	}
}

/* ---- cuts ---- */

tern_status tn_changes_may_cut(tn_table *t, tn_cut_kind kind)
{
	tn_changes *c = &t->changes;
	tern_status status = TERN_OK;

	pthread_mutex_lock(&c->lock);
	if (kind == TN_CUT_CHANGES && c->state == TN_CHANGES_OFF)
		status = tn_fail(TERN_E_STATE,
				 "table \"%s\": what changed is not known; a base has to be saved first",
				 t->schema.name);
	else if (kind != TN_CUT_ALONE &&
		 (c->unclean || c->state == TN_CHANGES_PENDING || c->state == TN_CHANGES_STALE))
		status = tn_fail(TERN_E_STATE, "table \"%s\": its record of changes was not settled",
				 t->schema.name);
	pthread_mutex_unlock(&c->lock);
	return status;
}

void tn_changes_flip(tn_table *t, tn_cut_kind kind, uint64_t id, tn_cut *cut)
{
	tn_changes *c = &t->changes;

	pthread_mutex_lock(&c->lock);
	if (kind != TN_CUT_ALONE) {
		TN_ASSERT(id && !c->given.n);
		c->given = c->now;
		c->now = (tn_gone){0};
		changes_set_state(c, TN_CHANGES_PENDING);
		c->last = id;
		set_mark(t, atomic_load(&t->mark) == TN_MARK_A ? TN_MARK_B : TN_MARK_A);
		if (kind == TN_CUT_CHANGES)
			tn_cut_only(cut, c->other);
	}
	atomic_store(&t->cut, cut);
	pthread_mutex_unlock(&c->lock);
}

bool tn_table_follows(tn_table *t, uint64_t id)
{
	tn_changes *c = &t->changes;
	bool follows;

	pthread_mutex_lock(&c->lock);
	follows = id && c->state != TN_CHANGES_OFF && (id == c->since || id == c->last);
	pthread_mutex_unlock(&c->lock);
	return follows;
}

void tn_table_acknowledge(tn_table *t, uint64_t id)
{
	tn_changes *c = &t->changes;

	pthread_mutex_lock(&c->lock);
	if (id && c->last == id && c->since != id) {
		c->since = id;
		if (c->state == TN_CHANGES_PENDING) {
			changes_set_state(c, TN_CHANGES_STALE);
			forget(&c->given);
		}
	}
	pthread_mutex_unlock(&c->lock);
}

void tn_table_track(tn_table *t, uint64_t id)
{
	tn_changes *c = &t->changes;

	pthread_mutex_lock(&c->lock);
	TN_ASSERT(c->state == TN_CHANGES_OFF && !c->unclean);
	changes_set_state(c, TN_CHANGES_READY);
	c->since = c->last = id;
	set_mark(t, TN_MARK_A);
	pthread_mutex_unlock(&c->lock);
}

/* ---- settling ---- */

/* Records of places from *place on: marks `clear` off, and `set` on where one was. */
static void remark(tn_table *t, uint64_t *place, uint64_t end, uint32_t clear, uint32_t set)
{
	unsigned slot = tn_epoch_enter(&t->epoch);

	for (unsigned looked = 0; *place < end && looked < 4096; looked++, (*place)++) {
		uint32_t id, version;
		tn_head *head;

		if (!tn_slab_walk(t, *place, &id))
			continue;
		head = tn_head_of(t, id);
		if (!(atomic_load_explicit(&head->version, memory_order_relaxed) & clear) ||
		    !tn_head_lock(head, &version))
			continue;
		tn_head_unlock(head, version & clear ? (version & ~clear) | set : version);
	}
	tn_epoch_leave(&t->epoch, slot);
}

/* Holding the lock: the keys that a cut gave in vain go before those that came since. */
static tern_status take_back(tn_changes *c)
{
	if (!reserve(&c->given, c->given.n + c->now.n))
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " erased keys", c->given.n + c->now.n);
	if (c->now.n)
		memcpy(c->given.keys + c->given.n, c->now.keys, c->now.n * sizeof(*c->now.keys));
	c->given.n += c->now.n;
	free(c->now.keys);
	c->now = c->given;
	c->given = (tn_gone){0};
	return TERN_OK;
}

tern_status tn_table_settle(tn_table *t)
{
	tn_changes *c = &t->changes;
	uint64_t place = 0, end;
	uint32_t clear = 0, set = 0;
	tern_status status = TERN_OK;

	if (atomic_load(&t->cut))
		return tn_fail(TERN_E_STATE, "table \"%s\" has a cut: end it first", t->schema.name);
	pthread_mutex_lock(&c->lock);
	if (c->state == TN_CHANGES_PENDING) {
		status = take_back(c);
		set = TN_MARKS & ~c->other;
	}
	if (c->state == TN_CHANGES_PENDING || c->state == TN_CHANGES_STALE)
		clear = c->other;
	else if (c->state == TN_CHANGES_OFF && c->unclean)
		clear = TN_MARKS;
	pthread_mutex_unlock(&c->lock);
	TN_TRY(status);
	if (!clear)
		return TERN_OK;
	atomic_store(&t->settle_set, set);
	atomic_store(&t->settle_clear, clear); /* records that move meanwhile settle on their way */
	tn_epoch_wait(&t->epoch);              /* writes with the mark of before have ended */
	for (end = tn_slab_places(t); place < end;)
		remark(t, &place, end, clear, set);
	if (tn_cold_any(t))
		status = tn_cold_settle(t, clear);
	atomic_store(&t->settle_clear, 0);
	TN_TRY(status);
	pthread_mutex_lock(&c->lock);
	if (c->state == TN_CHANGES_OFF) {
		/* It lapsed meanwhile: not all are clear. */
		c->unclean = clear != TN_MARKS;
		forget(&c->given);
	} else {
		changes_set_state(c, TN_CHANGES_READY);
	}
	pthread_mutex_unlock(&c->lock);
	return TERN_OK;
}
