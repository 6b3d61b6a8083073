/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots and streams of a primary. See repl.h. Pure but for the tables. Tests: tests/unit/ps/repl_sim.
 */
#include "ps/repl.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/mutant.h"
#include "ps/server.h"

void tn_repl_init(tn_repl *r)
{
	memset(r, 0, sizeof(*r));
	r->self = TN_CL_NONE;
	for (unsigned s = 0; s < TN_CL_SLOTS; s++)
		r->slot[s].copy[TN_REPL_BACKUP].peer = r->slot[s].copy[TN_REPL_NEXT].peer = TN_CL_NONE;
}

void tn_repl_fini(tn_repl *r)
{
	for (unsigned p = 0; p < TN_CL_SERVERS_MAX; p++) {
		if (r->out[p])
			tn_repl_out_fini(r->out[p]);
		free(r->out[p]);
	}
	memset(r, 0, sizeof(*r));
}

/* ---- the map ---- */

/* What this server sends of the slot to the peer; NULL: nothing. */
static tn_repl_one *copy_to(tn_repl *r, uint32_t s, uint16_t peer)
{
	for (unsigned k = 0; k < 2; k++)
		if (r->slot[s].copy[k].peer == peer)
			return &r->slot[s].copy[k];
	return NULL;
}

bool tn_repl_copies_to(const tn_repl *r, uint32_t s, uint16_t peer)
{
	return copy_to((tn_repl *)r, s, peer) != NULL;
}

static void copy_set_state(tn_repl *r, tn_repl_one *copy, tn_repl_state state)
{
	bool was = copy->state >= TN_RS_COPYING, is = state >= TN_RS_COPYING;

	TN_ASSERT(state <= TN_RS_WAITING || (int)state == copy->state + 1 ||
		  (copy->state == TN_RS_SYNCED && state == TN_RS_COPIED));
	TN_ASSERT(!was || copy->peer != TN_CL_NONE);
	if (was && !is)
		r->begun[copy->peer]--;
	if (!was && is)
		r->begun[copy->peer]++;
	copy->state = (uint8_t)state;
}

static void thaw(tn_repl *r, uint32_t s)
{
	atomic_fetch_and_explicit(&r->frozen[s / 64], ~(1ull << (s % 64)), memory_order_acq_rel);
}

static void freeze(tn_repl *r, uint32_t s)
{
	atomic_fetch_or_explicit(&r->frozen[s / 64], 1ull << (s % 64), memory_order_acq_rel);
}

static void copy_renew(tn_repl *r, tn_repl_one *copy, uint16_t peer, uint32_t epoch)
{
	copy_set_state(r, copy, TN_RS_NONE);
	copy->peer = peer;
	copy->epoch = epoch;
	copy->since = 0;
	copy->adopt = copy->refused = copy->handed = false;
	if (peer != TN_CL_NONE)
		copy_set_state(r, copy, TN_RS_WAITING);
}

/* Who was next is the backup: its copy goes on. */
static void promote_next(tn_repl *r, tn_repl_slot *slot)
{
	tn_repl_one *next = &slot->copy[TN_REPL_NEXT], *backup = &slot->copy[TN_REPL_BACKUP];

	copy_renew(r, backup, TN_CL_NONE, 0);
	backup->peer = next->peer;
	backup->epoch = next->epoch;
	backup->since = next->since;
	backup->refused = next->refused;
	atomic_store(&backup->state, atomic_load(&next->state));
	atomic_store(&next->state, TN_RS_NONE);
	next->peer = TN_CL_NONE;
}

/* The slot's pair changed. */
static void slot_renew(tn_repl *r, uint32_t s, const tn_cl_slot *now, uint16_t peer, bool first)
{
	tn_repl_slot *slot = &r->slot[s];
	tn_repl_one *backup = &slot->copy[TN_REPL_BACKUP], *next = &slot->copy[TN_REPL_NEXT];

	thaw(r, s);
	slot->epoch = now->epoch;
	if (!first && peer != TN_CL_NONE && next->peer == peer && next->epoch == now->epoch) {
		promote_next(r, slot);
		if (backup->refused)
			freeze(r, s);
		return;
	}
	copy_renew(r, backup, peer, now->epoch);
	if (peer == TN_CL_NONE || !(now->flags & TN_CL_IN_SYNC))
		return;
	backup->adopt = !TN_MUTANT(116);
	if (!TN_MUTANT(115)) /* it may be promoted: nothing may be acknowledged that it has not */
		freeze(r, s);
}

/* Who was next is not any more, or another one is: what it refused is no reason to wait. */
static void next_renew(tn_repl *r, uint32_t s, uint16_t peer, uint32_t epoch)
{
	tn_repl_one *next = &r->slot[s].copy[TN_REPL_NEXT];
	const tn_repl_one *backup = &r->slot[s].copy[TN_REPL_BACKUP];
	bool refused = next->refused;

	copy_renew(r, next, peer, epoch);
	if (refused && !backup->refused && !backup->handed &&
	    !(backup->adopt && backup->state == TN_RS_WAITING) && !TN_MUTANT(117))
		thaw(r, s);
}

static void slot_map(tn_repl *r, uint32_t s, const tn_cl_slot *now, bool first)
{
	tn_repl_one *next = &r->slot[s].copy[TN_REPL_NEXT];
	bool mine = now->primary == r->self;
	uint16_t peer = mine ? now->next : TN_CL_NONE;

	if (first || now->epoch != r->slot[s].epoch)
		slot_renew(r, s, now, mine ? now->backup : TN_CL_NONE, first);
	if (first || next->peer != peer || (peer != TN_CL_NONE && next->epoch != now->next_epoch))
		next_renew(r, s, peer, now->next_epoch);
}

void tn_repl_map(tn_repl *r, const tn_cl_map *map, uint16_t self, tn_ps_slots *gone, tn_ps_slots *fresh)
{
	tn_ps_slots kept = {{0}}, mine = r->mine;
	bool first = r->self != self;

	TN_ASSERT(map->version > r->version || r->version == 0);
	r->self = self;
	r->version = map->version;
	memset(fresh, 0, sizeof(*fresh));
	memset(&r->mine, 0, sizeof(r->mine));
	memset(&r->move, 0, sizeof(r->move));
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		const tn_cl_slot *now = &map->slot[s];

		slot_map(r, s, now, first);
		if (self == TN_CL_NONE)
			continue;
		if (now->primary == self || tn_cl_copy_epoch(now, self))
			tn_ps_slots_add(&kept, s);
		if (now->primary != self)
			continue;
		tn_ps_slots_add(&r->mine, s);
		if (now->flags & TN_CL_MOVE && now->next == TN_CL_NONE)
			tn_ps_slots_add(&r->move, s);
		if (now->flags & TN_CL_FRESH && !tn_ps_slots_has(&mine, s))
			tn_ps_slots_add(fresh, s);
	}
	for (unsigned w = 0; w < 64; w++)
		gone->bits[w] = r->kept.bits[w] & ~kept.bits[w];
	r->kept = kept;
}

bool tn_repl_any_frozen(const tn_repl *r, const tn_ps_slots *slots)
{
	uint64_t any = 0;

	for (unsigned w = 0; w < 64; w++)
		any |= slots->bits[w] & atomic_load_explicit(&r->frozen[w], memory_order_acquire);
	return any != 0;
}

bool tn_repl_serves(const tn_repl *r, const tn_ps_slots *slots, bool lease)
{
	return (lease || TN_MUTANT(103)) && (!tn_repl_any_frozen(r, slots) || TN_MUTANT(105));
}

void tn_repl_freeze(tn_repl *r, const tn_ps_slots *slots)
{
	for (unsigned w = 0; w < 64; w++)
		atomic_fetch_or_explicit(&r->frozen[w], slots->bits[w], memory_order_acq_rel);
}

/* ---- copying ---- */

bool tn_repl_next(const tn_repl *r, uint32_t max, tn_ps_slots *slots, uint16_t *peer)
{
	uint32_t n = 0;

	memset(slots, 0, sizeof(*slots));
	*peer = TN_CL_NONE;
	for (uint32_t s = 0; s < TN_CL_SLOTS && n < max; s++)
		for (unsigned k = 0; k < 2; k++) {
			const tn_repl_one *copy = &r->slot[s].copy[k];

			if (copy->state != TN_RS_WAITING || (n && copy->peer != *peer))
				continue;
			*peer = copy->peer;
			tn_ps_slots_add(slots, s);
			n++;
		}
	return n > 0;
}

bool tn_repl_next_move(const tn_repl *r, tn_ps_slots *slots, uint16_t *peer)
{
	uint32_t n = 0;

	memset(slots, 0, sizeof(*slots));
	*peer = TN_CL_NONE;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		const tn_repl_one *copy = &r->slot[s].copy[TN_REPL_BACKUP];

		if (!tn_ps_slots_has(&r->move, s) || copy->state != TN_RS_SYNCED || tn_repl_frozen(r, s) ||
		    (n && copy->peer != *peer))
			continue;
		*peer = copy->peer;
		tn_ps_slots_add(slots, s);
		n++;
	}
	return n > 0;
}

void tn_repl_to_hand(const tn_repl *r, uint16_t peer, const tn_ps_slots *group, tn_ps_slots *slots)
{
	memset(slots, 0, sizeof(*slots));
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		const tn_repl_one *copy = &r->slot[s].copy[TN_REPL_BACKUP];

		if (tn_ps_slots_has(group, s) && tn_ps_slots_has(&r->move, s) && copy->peer == peer &&
		    copy->state == TN_RS_COPYING)
			tn_ps_slots_add(slots, s);
	}
}

tn_repl_out *tn_repl_stream(tn_repl *r, uint16_t peer, uint64_t id)
{
	tn_repl_out *out = r->out[peer];

	if (out)
		return out;
	out = calloc(1, sizeof(*out));
	if (!out || !tn_repl_out_begin(out, r->self, id)) {
		free(out);
		return NULL;
	}
	r->out[peer] = out;
	return out;
}

typedef struct facts {
	tn_repl_buf *buf;
	const ps_share *share;
	bool failed;
} facts;

static void add_fact(uint64_t client, uint64_t low, uint64_t seq, tern_status status,
		     const tn_ps_slots *slots, void *arg)
{
	facts *f = arg;
	tn_repl_entry e = {.kind = TN_REPL_FACT,
			   .table = f->share->id,
			   .schema = f->share->hash,
			   .client = client,
			   .seq = seq,
			   .low = low,
			   .status = status,
			   .item_bytes = 2};

	if (f->failed || !tn_repl_entry_open(f->buf, &e)) {
		f->failed = true;
		return;
	}
	for (uint32_t s = 0; slots && s < TN_CL_SLOTS; s++) {
		uint8_t *item;

		if (!tn_ps_slots_has(slots, s))
			continue;
		item = tn_repl_item(f->buf);
		if (!item) {
			f->failed = true;
			return;
		}
		item[0] = (uint8_t)s;
		item[1] = (uint8_t)(s >> 8);
	}
	tn_repl_entry_close(f->buf);
}

static bool add_facts(tn_repl_buf *buf, ps_share *share, const tn_ps_slots *slots)
{
	facts f = {.buf = buf, .share = share};

	pthread_mutex_lock(&share->lock);
	tn_ps_dedup_export_slots(share->dedup, slots, add_fact, &f);
	pthread_mutex_unlock(&share->lock);
	return !f.failed;
}

static bool add_table(tn_repl_buf *buf, const ps_share *share)
{
	uint8_t schema[TN_PS_SCHEMA_BYTES];
	uint64_t n = tn_ps_schema_encode(schema, sizeof(schema), &share->schema);
	tn_repl_entry e = {.kind = TN_REPL_TABLE, .table = share->id, .schema = share->hash, .item_bytes = 1};

	if (!tn_repl_entry_open(buf, &e))
		return false;
	for (uint64_t i = 0; i < n; i++) {
		uint8_t *item = tn_repl_item(buf);

		if (!item)
			return false;
		*item = schema[i];
	}
	tn_repl_entry_close(buf);
	return true;
}

/* Those slots of the stream of which `may` holds, each with the epoch of its copy. */
static bool add_slots(tn_repl *r, tn_repl_buf *buf, tn_repl_kind kind, const tn_ps_slots *slots,
		      uint16_t peer, bool (*may)(const tn_repl *r, uint32_t slot, const tn_repl_one *copy))
{
	tn_repl_entry e = {.kind = kind, .item_bytes = 8};

	if (!tn_repl_entry_open(buf, &e))
		return false;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		const tn_repl_one *copy = tn_ps_slots_has(slots, s) ? copy_to(r, s, peer) : NULL;
		uint8_t *item;

		if (!copy || !may(r, s, copy))
			continue;
		item = tn_repl_item(buf);
		if (!item)
			return false;
		tn_repl_slot_encode(item, (uint16_t)s, copy->epoch);
	}
	if (buf->used == buf->entry + TN_REPL_ENTRY && kind != TN_REPL_SYNCED)
		tn_repl_entry_give_up(buf); /* none */
	else
		tn_repl_entry_close(buf);
	return true;
}

static bool may_begin(const tn_repl *r, uint32_t s, const tn_repl_one *copy)
{
	(void)r, (void)s;
	return copy->state == TN_RS_WAITING && !copy->adopt;
}

static bool may_adopt(const tn_repl *r, uint32_t s, const tn_repl_one *copy)
{
	(void)r, (void)s;
	return copy->state == TN_RS_WAITING && copy->adopt;
}

static void slots_begin(tn_repl *r, uint16_t peer, const tn_ps_slots *slots)
{
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		tn_repl_one *copy = tn_ps_slots_has(slots, s) ? copy_to(r, s, peer) : NULL;

		if (!copy || copy->state != TN_RS_WAITING)
			continue;
		copy_set_state(r, copy, TN_RS_COPYING);
		copy->since = r->out[peer]->seq + 1;
		if (copy->adopt)
			thaw(r, s);
	}
}

bool tn_repl_begin(tn_repl *r, uint16_t peer, const tn_ps_slots *slots, ps_share *const *shares,
		   uint32_t count, const tn_steps *steps)
{
	tn_repl_out *out = r->out[peer];
	uint64_t used = out->open.used;
	tn_ps_slots fresh = {{0}};
	bool ok = true;

	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		const tn_repl_one *copy = tn_ps_slots_has(slots, s) ? copy_to(r, s, peer) : NULL;

		if (copy && may_begin(r, s, copy))
			tn_ps_slots_add(&fresh, s);
	}
	for (uint32_t i = 0; i < count && ok; i++)
		ok = add_table(&out->open, shares[i]);
	ok = ok && add_slots(r, &out->open, TN_REPL_BEGIN, slots, peer, may_begin) &&
	     add_slots(r, &out->open, TN_REPL_ADOPT, slots, peer, may_adopt);
	for (uint32_t i = 0; i < count && ok && !TN_MUTANT(111); i++)
		ok = add_facts(&out->open, shares[i], &fresh);
	ok = ok && tn_repl_begin_steps(&out->open, steps, &fresh);
	if (!ok) {
		tn_repl_entry_cut(&out->open, used);
		return false;
	}
	slots_begin(r, peer, slots);
	return true;
}

typedef struct writer {
	tn_repl_buf *buf;
	ps_share *share;
	const uint64_t
		*keys; /* those that have no row are passed over, and said to be absent; NULL: a scan */
	uint64_t n, at;
} writer;

static tern_status add_record(writer *rows, const tn_record *record)
{
	uint8_t *item = tn_repl_item(rows->buf);

	if (!item)
		return TERN_E_NOMEM;
	tn_repl_record_encode(item, rows->share->engine, record);
	return TERN_OK;
}

static tern_status add_absent(writer *rows, uint64_t key)
{
	tn_record none = {.key = key};

	return add_record(rows, &none);
}

static tern_status on_row(const tn_record *record, void *arg)
{
	writer *r = arg;

	while (r->keys && r->at < r->n) {
		uint64_t key = r->keys[r->at++];

		if (key == record->key)
			break;
		TN_TRY(add_absent(r, key));
	}
	return add_record(r, record);
}

tern_status tn_repl_copy(tn_repl *r, uint16_t peer, ps_share *share, uint32_t slot, uint64_t *cursor,
			 uint64_t max)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	const tn_repl_one *copy = copy_to(r, slot, peer);
	writer rows = {.buf = buf, .share = share};
	tn_repl_entry e = {.kind = TN_REPL_ROWS,
			   .table = share->id,
			   .schema = share->hash,
			   .item_bytes = tn_repl_record_bytes(share->engine)};
	uint64_t used = buf->used;
	tern_status status;

	if (!copy || copy->state != TN_RS_COPYING || copy->adopt || (TN_MUTANT(114) && slot % 8 == 0)) {
		*cursor = TN_SCAN_END;
		return TERN_OK;
	}
	if (!tn_repl_entry_open(buf, &e))
		return TERN_E_NOMEM;
	status = tn_table_scan(share->engine, slot, slot, cursor, max, on_row, &rows);
	if (status != TERN_OK) {
		tn_repl_entry_cut(buf, used);
		return status;
	}
	if (buf->used == used + TN_REPL_ENTRY)
		tn_repl_entry_give_up(buf); /* no rows */
	else
		tn_repl_entry_close(buf);
	return TERN_OK;
}

static bool may_finish(const tn_repl *r, uint32_t s, const tn_repl_one *copy)
{
	return copy->state == TN_RS_COPYING || (copy->state == TN_RS_SYNCED && tn_repl_frozen(r, s));
}

bool tn_repl_finish(tn_repl *r, uint16_t peer, const tn_ps_slots *slots, const tn_ps_slots *handed)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	uint64_t used = buf->used;

	if (!add_slots(r, buf, TN_REPL_SYNCED, slots, peer, may_finish)) {
		tn_repl_entry_cut(buf, used);
		return false;
	}
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		tn_repl_one *copy = tn_ps_slots_has(slots, s) ? copy_to(r, s, peer) : NULL;

		if (!copy || !may_finish(r, s, copy))
			continue;
		copy->handed = tn_ps_slots_has(handed, s) && tn_repl_frozen(r, s);
		copy_set_state(r, copy, TN_RS_COPIED);
	}
	return true;
}

/* ---- writes ---- */

/* Where images of the key go: one of two. */
static uint16_t stream_of(const tn_repl *r, uint64_t key, unsigned k)
{
	const tn_repl_one *copy = &r->slot[tn_table_slot(key)].copy[k];

	if (TN_MUTANT(104) && k == TN_REPL_NEXT && copy->state >= TN_RS_COPIED)
		return TN_CL_NONE;
	return copy->state >= (TN_MUTANT(112) ? TN_RS_COPIED : TN_RS_COPYING) ? copy->peer : TN_CL_NONE;
}

static uint16_t stream_at(const tn_repl *r, const uint64_t *keys, uint64_t i, uint64_t *key)
{
	*key = keys[i / 2]; /* a peer may change it meanwhile: bounds hold whatever it is now */
	return stream_of(r, *key, (unsigned)(i & 1));
}

uint32_t tn_repl_sort(const tn_repl *r, const uint64_t *keys, uint64_t n, uint64_t *sorted, uint32_t *first)
{
	uint32_t next[TN_CL_SERVERS_MAX], streams = 0, at = 0;
	uint64_t key;

	memset(next, 0, sizeof(next));
	for (uint64_t i = 0; i < 2 * n; i++) {
		uint16_t peer = stream_at(r, keys, i, &key);

		if (peer != TN_CL_NONE)
			next[peer]++;
	}
	for (unsigned p = 0; p < TN_CL_SERVERS_MAX; p++) {
		uint32_t count = next[p];

		streams += count > 0;
		first[p] = next[p] = at;
		at += count;
	}
	first[TN_CL_SERVERS_MAX] = at;
	for (uint64_t i = 0; i < 2 * n; i++) {
		uint16_t peer = stream_at(r, keys, i, &key);

		if (peer != TN_CL_NONE && next[peer] < first[peer + 1])
			sorted[next[peer]++] = key;
	}
	for (unsigned p = 0; p < TN_CL_SERVERS_MAX; p++)
		for (; next[p] < first[p + 1]; next[p]++)
			sorted[next[p]] = 0; /* only then */
	return streams;
}

bool tn_repl_append(tn_repl *r, uint16_t peer, ps_share *share, const tn_repl_entry *e, const uint64_t *keys,
		    uint64_t n)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	writer rows = {.buf = buf, .share = share, .keys = keys, .n = n};
	uint64_t used = buf->used;
	tern_status status;

	if (!tn_repl_entry_open(buf, e))
		return false;
	status = tn_table_read_records(share->engine, keys, n, on_row, &rows);
	while (status == TERN_OK && rows.at < n)
		status = add_absent(&rows, keys[rows.at++]);
	if (status != TERN_OK) {
		tn_repl_entry_cut(buf, used);
		return false;
	}
	tn_repl_entry_close(buf);
	return true;
}

bool tn_repl_note(tn_repl *r, uint16_t peer, const tn_repl_entry *e)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	uint64_t used = buf->used;

	if (!tn_repl_entry_open(buf, e))
		return false;
	for (uint32_t i = 0; i < e->count; i++) {
		uint8_t *item = tn_repl_item(buf);

		if (!item) {
			tn_repl_entry_cut(buf, used);
			return false;
		}
		memcpy(item, e->items + (uint64_t)i * e->item_bytes, e->item_bytes);
	}
	tn_repl_entry_close(buf);
	return true;
}

/* ---- answers ---- */

static void tell(tn_repl_told *told, uint32_t slot, uint32_t epoch)
{
	TN_ASSERT(told->count < TN_CL_SLOTS);
	told->slot[told->count] = (uint16_t)slot;
	told->epoch[told->count++] = epoch;
}

/* Slots whose SYNCED was in the frame. */
static void synced_in(tn_repl *r, uint16_t peer, const tn_ps_slots *refused, const tn_repl_entry *e,
		      tn_repl_told *synced, tn_repl_told *released)
{
	for (uint32_t i = 0; i < e->count; i++) {
		tn_repl_one *copy;
		uint16_t s;
		uint32_t epoch;

		tn_repl_slot_decode(e->items + 8ull * i, &s, &epoch);
		copy = copy_to(r, s, peer);
		if (!copy || copy->state != TN_RS_COPIED || copy->epoch != epoch ||
		    tn_ps_slots_has(refused, s))
			continue;
		copy_set_state(r, copy, TN_RS_SYNCED);
		tell(synced, s, epoch);
		if (copy == &r->slot[s].copy[TN_REPL_BACKUP] && tn_ps_slots_has(&r->move, s) &&
		    (copy->handed || TN_MUTANT(113)))
			tell(released, s, epoch);
	}
}

void tn_repl_answered(tn_repl *r, uint16_t peer, tn_ps_slots *refused, tn_repl_told *synced,
		      tn_repl_told *released)
{
	const tn_repl_out *out = r->out[peer];
	uint64_t at = TN_REPL_HEAD;
	tn_repl_entry e;

	TN_ASSERT(out->flying);
	synced->count = released->count = 0;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		tn_repl_one *copy = tn_ps_slots_has(refused, s) ? copy_to(r, s, peer) : NULL;

		if (copy && copy->state >= TN_RS_COPYING && copy->since <= out->seq) {
			copy->refused = true;
			freeze(r, s);
		} else {
			refused->bits[s / 64] &= ~(1ull << (s % 64));
		}
	}
	while (at < out->sent.used && tn_repl_entry_next(out->sent.at, out->sent.used, &at, &e))
		if (e.kind == TN_REPL_SYNCED)
			synced_in(r, peer, refused, &e, synced, released);
}

void tn_repl_of_peer(const tn_repl *r, uint16_t peer, tn_repl_told *told)
{
	told->count = 0;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		const tn_repl_one *copy = copy_to((tn_repl *)r, s, peer);

		if (copy)
			tell(told, s, copy->epoch);
	}
}
