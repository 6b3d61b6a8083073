/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of primaries at their backup. See repl_in.h. Threads: one at a time. Tests: tests/unit/ps/repl_sim.
 */
#include "ps/repl_in.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/mutant.h"
#include "ps/server.h"

typedef struct work {
	tn_repl_in *in;
	const tn_repl_store *store;
	const tn_cl_map *map;
	uint16_t self, from;
	tn_repl_answer *answer;
	tern_status status; /* of the first thing that could not be done */
} work;

void tn_repl_in_init(tn_repl_in *in)
{
	memset(in, 0, sizeof(*in));
	for (unsigned s = 0; s < TN_CL_SLOTS; s++)
		in->from[s] = TN_CL_NONE;
}

void tn_repl_in_fini(tn_repl_in *in)
{
	for (unsigned i = 0; i < TN_CL_SERVERS_MAX; i++)
		free(in->peers[i]);
	memset(in, 0, sizeof(*in));
}

/* ---- streams ---- */

static tn_repl_peer *peer_get(tn_repl_in *in, uint16_t from)
{
	if (!in->peers[from])
		in->peers[from] = calloc(1, sizeof(tn_repl_peer));
	return in->peers[from];
}

static bool is_retired(const tn_repl_peer *p, uint64_t stream)
{
	for (unsigned i = 0; i < TN_REPL_RETIRED; i++)
		if (p->retired[i] == stream)
			return true;
	return false;
}

/* What was sent on the stream before is not complete: slots begin anew. */
static void stream_begin(tn_repl_in *in, tn_repl_peer *p, const tn_repl_head *head)
{
	memmove(p->retired + 1, p->retired, sizeof(p->retired) - sizeof(p->retired[0]));
	p->retired[0] = p->stream;
	p->stream = head->stream;
	p->seq = 0;
	for (unsigned s = 0; s < TN_CL_SLOTS; s++)
		if (in->from[s] == head->from)
			in->from[s] = TN_CL_NONE;
}

/* Is the frame the next one? False: *answer says what it is. */
static bool in_order(tn_repl_in *in, tn_repl_peer *p, const tn_repl_head *head, tn_repl_answer *answer)
{
	answer->verdict = TN_REPL_LOST;
	if (!p || (is_retired(p, head->stream) && !TN_MUTANT(110)))
		return false;
	if (head->stream != p->stream) {
		if (head->seq != 1)
			return false;
		stream_begin(in, p, head);
	}
	if (head->seq == p->seq) {
		*answer = p->last;
		return false;
	}
	return head->seq == p->seq + 1 || (TN_MUTANT(106) && head->seq < p->seq);
}

/* ---- slots ---- */

static bool taken_from(const work *w, uint32_t slot)
{
	return w->in->from[slot] == w->from &&
	       (w->in->epoch[slot] == tn_cl_copy_epoch(&w->map->slot[slot], w->self) || TN_MUTANT(107));
}

static bool pair_is(const work *w, uint32_t slot, uint32_t epoch)
{
	const tn_cl_slot *s = &w->map->slot[slot];

	return epoch && s->primary == w->from && tn_cl_copy_epoch(s, w->self) == epoch;
}

static void refuse(work *w, uint32_t slot)
{
	w->in->refused++;
	w->answer->verdict = TN_REPL_PARTIAL;
	tn_ps_slots_add(&w->answer->refused, slot);
}

/* Its copy begins anew. What the frame said before of an earlier one, and was refused, is nothing that this one lacks. */
static void takes_from(work *w, uint32_t slot, uint32_t epoch)
{
	w->in->from[slot] = w->from;
	w->in->epoch[slot] = epoch;
	w->answer->refused.bits[slot / 64] &= ~(1ull << (slot % 64));
}

static void fail(work *w, tern_status status)
{
	if (w->status == TERN_OK)
		w->status = status;
}

/* ---- is everything there that the frame speaks of? ---- */

static bool made_before(const void *frame, uint64_t end, uint64_t table)
{
	uint64_t at = TN_REPL_HEAD, used;
	tern_table_schema schema;
	tn_repl_entry e;

	while (at < end && tn_repl_entry_next(frame, end, &at, &e))
		if (e.kind == TN_REPL_TABLE && tn_ps_schema_decode(e.items, e.count, &schema, &used) &&
		    tn_ps_table_id(schema.name) == table)
			return true;
	return false;
}

static bool table_known(const work *w, const void *frame, uint64_t end, uint64_t table)
{
	struct ps_share *share = w->store->get(w->store->arg, table);

	if (share)
		tn_ps_share_put(share);
	return share || w->store->dropped(w->store->arg, table) || made_before(frame, end, table);
}

/* TERN_AGAIN: this server's map is too old, or a table is on its way here. TERN_E_PROTOCOL. */
static tern_status look_through(const work *w, const void *frame, uint64_t bytes)
{
	uint64_t at = TN_REPL_HEAD, known = 0;
	bool any = false;
	tn_repl_entry e;

	while (at < bytes) {
		uint64_t start = at;

		if (!tn_repl_entry_next(frame, bytes, &at, &e))
			return TERN_E_PROTOCOL;
		if (e.kind == TN_REPL_BEGIN || e.kind == TN_REPL_ADOPT)
			for (uint32_t i = 0; i < e.count; i++) {
				uint16_t slot;
				uint32_t epoch;

				tn_repl_slot_decode(e.items + 8ull * i, &slot, &epoch);
				if (epoch > TN_MAX(w->map->slot[slot].epoch, w->map->slot[slot].next_epoch))
					return TERN_AGAIN;
			}
		if (e.kind != TN_REPL_ROWS && e.kind != TN_REPL_PUSH && e.kind != TN_REPL_FACT)
			continue;
		if ((!any || known != e.table) && !table_known(w, frame, start, e.table))
			return TERN_AGAIN;
		any = true;
		known = e.table;
	}
	return TERN_OK;
}

/* ---- entries ---- */

static void drop_slots(ps_share *share, void *arg)
{
	tn_ps_share_drop_slots(share, arg);
}

static void on_begin(work *w, const tn_repl_entry *e)
{
	tn_ps_slots begun = {{0}};

	for (uint32_t i = 0; i < e->count; i++) {
		uint16_t slot;
		uint32_t epoch;

		tn_repl_slot_decode(e->items + 8ull * i, &slot, &epoch);
		if (!pair_is(w, slot, epoch)) {
			refuse(w, slot);
			continue;
		}
		takes_from(w, slot, epoch);
		tn_ps_slots_add(&begun, slot);
	}
	if (TN_MUTANT(109))
		return;
	w->store->each(w->store->arg, drop_slots, &begun);
	pthread_mutex_lock(&w->store->steps->lock);
	tn_steps_drop_slots(w->store->steps, &begun);
	pthread_mutex_unlock(&w->store->steps->lock);
}

/* Who was its primary, or got the same from another: the map says that nothing is missing. */
static void on_adopt(work *w, const tn_repl_entry *e)
{
	for (uint32_t i = 0; i < e->count; i++) {
		uint16_t slot;
		uint32_t epoch;

		tn_repl_slot_decode(e->items + 8ull * i, &slot, &epoch);
		if (!pair_is(w, slot, epoch) || w->map->slot[slot].backup != w->self ||
		    !(w->map->slot[slot].flags & TN_CL_IN_SYNC)) {
			refuse(w, slot);
			continue;
		}
		takes_from(w, slot, epoch);
	}
}

static void on_synced(work *w, const tn_repl_entry *e)
{
	for (uint32_t i = 0; i < e->count; i++) {
		uint16_t slot;
		uint32_t epoch;

		tn_repl_slot_decode(e->items + 8ull * i, &slot, &epoch);
		if (!taken_from(w, slot) || epoch != w->in->epoch[slot])
			refuse(w, slot);
	}
}

static void on_table(work *w, const tn_repl_entry *e)
{
	tern_table_schema schema;
	uint64_t used;
	tern_status status;

	if (!tn_ps_schema_decode(e->items, e->count, &schema, &used) || used != e->count) {
		fail(w, TERN_E_PROTOCOL);
		return;
	}
	status = tern_table_schema_check(&schema);
	if (status == TERN_OK)
		status = w->store->create(w->store->arg, &schema);
	if (status != TERN_OK)
		fail(w, status);
}

static void on_record(work *w, ps_share *share, const tn_record *r, bool there)
{
	tern_status status;

	w->in->records++;
	if (there)
		status = tn_table_put_record(share->engine, r);
	else
		status = tn_table_schema(share->engine)->kind == TERN_TABLE_DENSE
				 ? TERN_OK /* a key past its last row */
				 : tn_table_erase(share->engine, &r->key, 1, NULL);
	if (status != TERN_OK)
		fail(w, status);
}

static void on_rows(work *w, ps_share *share, const tn_repl_entry *e)
{
	tn_ps_slots slots = {{0}};
	tern_status status;

	if (e->item_bytes != tn_repl_record_bytes(share->engine)) {
		fail(w, TERN_E_PROTOCOL);
		return;
	}
	for (uint32_t i = 0; i < e->count; i++) {
		uint32_t slot;
		tn_record r;
		bool there;

		tn_repl_record_decode(e->items + (uint64_t)i * e->item_bytes, share->engine, &r, &there);
		slot = tn_table_slot(r.key);
		if (taken_from(w, slot)) {
			tn_ps_slots_add(&slots, slot);
			on_record(w, share, &r, there);
		} else {
			refuse(w, slot);
		}
	}
	if (e->kind != TN_REPL_PUSH || TN_MUTANT(108))
		return;
	pthread_mutex_lock(&share->lock);
	status = tn_ps_dedup_applied(share->dedup, e->client, e->low, e->seq, &slots, e->status);
	pthread_mutex_unlock(&share->lock);
	if (status != TERN_OK)
		fail(w, status);
}

static void on_fact(work *w, ps_share *share, const tn_repl_entry *e)
{
	tn_ps_slots slots = {{0}};
	tern_status status;

	for (uint32_t i = 0; i < e->count; i++) {
		uint32_t slot = e->items[2 * i] | (uint32_t)e->items[2 * i + 1] << 8;

		if (taken_from(w, slot))
			tn_ps_slots_add(&slots, slot);
	}
	pthread_mutex_lock(&share->lock);
	status = tn_ps_dedup_applied(share->dedup, e->client, e->low, e->seq, &slots, e->status);
	pthread_mutex_unlock(&share->lock);
	if (status != TERN_OK)
		fail(w, status);
}

/* Those of the slots that are taken from this primary; the others it is told of. */
static void taken_of(work *w, const tn_ps_slots *slots, tn_ps_slots *taken)
{
	memset(taken, 0, sizeof(*taken));
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		if (!tn_ps_slots_has(slots, s))
			continue;
		if (taken_from(w, s))
			tn_ps_slots_add(taken, s);
		else
			refuse(w, s);
	}
}

/* Gradients of a step. What is staged here as a backup is not held against ps.staged_bytes: the primary did that. */
static void on_stage(work *w, const tn_repl_entry *e)
{
	tn_ps_slots slots, taken, closed, fresh;
	tern_status status = TERN_OK;
	tn_ps_stage s;

	if (!tn_ps_stage_decode(e->items, e->item_bytes, &s) || s.life != e->client || s.step != e->seq ||
	    s.count == 0 || s.row_bytes % s.count != 0) {
		fail(w, TERN_E_PROTOCOL);
		return;
	}
	tn_steps_slots_of(s.keys, s.count, &slots);
	taken_of(w, &slots, &taken);
	if (tn_ps_slots_none(&taken) || TN_MUTANT(118))
		return;
	pthread_mutex_lock(&w->store->steps->lock);
	tn_steps_closed(w->store->steps, s.life, s.step, &taken, &closed);
	tn_ps_slots_without(&taken, &closed);
	if (!tn_ps_slots_none(&taken))
		status = tn_steps_stage(w->store->steps, &s, &taken, UINT64_MAX, &fresh);
	pthread_mutex_unlock(&w->store->steps->lock);
	if (status != TERN_OK)
		fail(w, status);
}

static void on_closed(work *w, const tn_repl_entry *e)
{
	tn_ps_slots slots = {{0}}, taken;
	tern_status status;

	for (uint32_t i = 0; i < e->count; i++)
		tn_ps_slots_add(&slots, e->items[2 * i] | (uint32_t)e->items[2 * i + 1] << 8);
	taken_of(w, &slots, &taken);
	if (TN_MUTANT(120))
		return;
	pthread_mutex_lock(&w->store->steps->lock);
	status = tn_steps_close(w->store->steps, e->client, e->seq, &taken, e->status);
	pthread_mutex_unlock(&w->store->steps->lock);
	if (status != TERN_OK)
		fail(w, status);
}

static void bye(ps_share *share, void *arg)
{
	const tn_repl_entry *e = arg;

	pthread_mutex_lock(&share->lock);
	tn_ps_dedup_forget(share->dedup, e->client);
	pthread_mutex_unlock(&share->lock);
}

static void on_entry(work *w, tn_repl_entry *e)
{
	struct ps_share *share;

	switch (e->kind) {
	case TN_REPL_TABLE:
		on_table(w, e);
		return;
	case TN_REPL_DROP:
		w->store->drop(w->store->arg, e->table);
		return;
	case TN_REPL_BEGIN:
		on_begin(w, e);
		return;
	case TN_REPL_ADOPT:
		on_adopt(w, e);
		return;
	case TN_REPL_SYNCED:
		on_synced(w, e);
		return;
	case TN_REPL_STAGE:
		on_stage(w, e);
		return;
	case TN_REPL_CLOSED:
		on_closed(w, e);
		return;
	case TN_REPL_BYE:
		w->store->each(w->store->arg, bye, e);
		return;
	default:
		break;
	}
	share = w->store->get(w->store->arg, e->table);
	if (share && share->hash == e->schema) {
		if (e->kind == TN_REPL_FACT)
			on_fact(w, share, e);
		else
			on_rows(w, share, e);
	} /* else: it was dropped here, and the primary will hear of it too */
	if (share)
		tn_ps_share_put(share);
}

bool tn_repl_in_apply(tn_repl_in *in, const tn_repl_store *store, const tn_cl_map *map, uint16_t self,
		      const void *frame, uint64_t bytes, tn_repl_answer *answer)
{
	work w = {.in = in, .store = store, .map = map, .self = self, .answer = answer};
	uint64_t at = TN_REPL_HEAD;
	tn_repl_head head;
	tn_repl_entry e;
	tn_repl_peer *peer;
	tern_status status;

	memset(answer, 0, sizeof(*answer));
	if (!tn_repl_head_decode(frame, bytes, &head))
		return false;
	w.from = head.from;
	status = look_through(&w, frame, bytes);
	if (status == TERN_E_PROTOCOL)
		return false;
	peer = peer_get(in, head.from);
	if (in_order(in, peer, &head, answer)) {
		answer->verdict = status == TERN_AGAIN ? TN_REPL_LATER : TN_REPL_DONE;
		while (status == TERN_OK && at < bytes && tn_repl_entry_next(frame, bytes, &at, &e))
			on_entry(&w, &e);
		if (w.status != TERN_OK)
			answer->verdict = TN_REPL_FAILED;
		if (status == TERN_OK) {
			TN_ASSERT(at == bytes);
			in->frames++;
			peer->seq = head.seq;
			peer->last = *answer;
		}
	}
	answer->map_version = map->version;
	return true;
}
