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
		r->slot[s].peer = TN_CL_NONE;
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

static void slot_set_state(tn_repl *r, uint32_t s, tn_repl_state state)
{
	tn_repl_slot *slot = &r->slot[s];
	bool was = slot->state >= TN_RS_COPYING, is = state >= TN_RS_COPYING;

	TN_ASSERT(state <= TN_RS_WAITING || (int)state == slot->state + 1 ||
		  (slot->state == TN_RS_SYNCED && state == TN_RS_COPIED));
	TN_ASSERT(!was || slot->peer != TN_CL_NONE);
	if (was && !is)
		r->begun[slot->peer]--;
	if (!was && is)
		r->begun[slot->peer]++;
	slot->state = (uint8_t)state;
}

static void thaw(tn_repl *r, uint32_t s)
{
	atomic_fetch_and_explicit(&r->frozen[s / 64], ~(1ull << (s % 64)), memory_order_acq_rel);
}

static void freeze(tn_repl *r, uint32_t s)
{
	atomic_fetch_or_explicit(&r->frozen[s / 64], 1ull << (s % 64), memory_order_acq_rel);
}

/* The slot's pair changed. */
static void slot_renew(tn_repl *r, uint32_t s, const tn_cl_slot *now)
{
	bool paired = now->primary == r->self && now->backup != TN_CL_NONE;

	slot_set_state(r, s, TN_RS_NONE);
	thaw(r, s);
	r->slot[s].epoch = now->epoch;
	r->slot[s].peer = paired ? now->backup : TN_CL_NONE;
	r->slot[s].since = 0;
	if (!paired)
		return;
	slot_set_state(r, s, TN_RS_WAITING);
	if (now->flags & TN_CL_IN_SYNC) /* it may be promoted: nothing may be acknowledged that it has not */
		freeze(r, s);
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

		if (first || now->epoch != r->slot[s].epoch)
			slot_renew(r, s, now);
		if (self == TN_CL_NONE)
			continue;
		if (now->primary == self || now->backup == self)
			tn_ps_slots_add(&kept, s);
		if (now->primary != self)
			continue;
		tn_ps_slots_add(&r->mine, s);
		if (now->flags & TN_CL_MOVE)
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
	for (uint32_t s = 0; s < TN_CL_SLOTS && n < max; s++) {
		if (r->slot[s].state != TN_RS_WAITING || (n && r->slot[s].peer != *peer))
			continue;
		*peer = r->slot[s].peer;
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
		if (!tn_ps_slots_has(&r->move, s) || r->slot[s].state != TN_RS_SYNCED ||
		    tn_repl_frozen(r, s) || (n && r->slot[s].peer != *peer))
			continue;
		*peer = r->slot[s].peer;
		tn_ps_slots_add(slots, s);
		n++;
	}
	return n > 0;
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

/* BEGIN or SYNCED of those slots that `state` holds for. */
static bool add_slots(const tn_repl *r, tn_repl_buf *buf, tn_repl_kind kind, const tn_ps_slots *slots,
		      uint16_t peer, bool (*may)(const tn_repl *r, uint32_t slot))
{
	tn_repl_entry e = {.kind = kind, .item_bytes = 8};

	if (!tn_repl_entry_open(buf, &e))
		return false;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		uint8_t *item;

		if (!tn_ps_slots_has(slots, s) || r->slot[s].peer != peer || !may(r, s))
			continue;
		item = tn_repl_item(buf);
		if (!item)
			return false;
		tn_repl_slot_encode(item, (uint16_t)s, r->slot[s].epoch);
	}
	tn_repl_entry_close(buf);
	return true;
}

static void cut_back(tn_repl_buf *buf, uint64_t used)
{
	buf->entry = 0;
	buf->used = used;
}

static bool may_begin(const tn_repl *r, uint32_t s)
{
	return r->slot[s].state == TN_RS_WAITING;
}

bool tn_repl_begin(tn_repl *r, uint16_t peer, const tn_ps_slots *slots, ps_share *const *shares,
		   uint32_t count)
{
	tn_repl_out *out = r->out[peer];
	uint64_t used = out->open.used;
	bool ok = true;

	for (uint32_t i = 0; i < count && ok; i++)
		ok = add_table(&out->open, shares[i]);
	ok = ok && add_slots(r, &out->open, TN_REPL_BEGIN, slots, peer, may_begin);
	for (uint32_t i = 0; i < count && ok && !TN_MUTANT(111); i++)
		ok = add_facts(&out->open, shares[i], slots);
	if (!ok) {
		cut_back(&out->open, used);
		return false;
	}
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		if (!tn_ps_slots_has(slots, s) || r->slot[s].peer != peer || !may_begin(r, s))
			continue;
		slot_set_state(r, s, TN_RS_COPYING);
		r->slot[s].since = out->seq + 1;
		thaw(r, s);
	}
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
	writer rows = {.buf = buf, .share = share};
	tn_repl_entry e = {.kind = TN_REPL_ROWS,
			   .table = share->id,
			   .schema = share->hash,
			   .item_bytes = tn_repl_record_bytes(share->engine)};
	uint64_t used = buf->used;
	tern_status status;

	if (r->slot[slot].state != TN_RS_COPYING || r->slot[slot].peer != peer ||
	    (TN_MUTANT(114) && slot % 8 == 0)) {
		*cursor = TN_SCAN_END;
		return TERN_OK;
	}
	if (!tn_repl_entry_open(buf, &e))
		return TERN_E_NOMEM;
	status = tn_table_scan(share->engine, slot, slot, cursor, max, on_row, &rows);
	if (status != TERN_OK) {
		cut_back(buf, used);
		return status;
	}
	if (buf->used == used + TN_REPL_ENTRY)
		tn_repl_entry_give_up(buf); /* no rows */
	else
		tn_repl_entry_close(buf);
	return TERN_OK;
}

static bool may_finish(const tn_repl *r, uint32_t s)
{
	return r->slot[s].state == TN_RS_COPYING ||
	       (r->slot[s].state == TN_RS_SYNCED && tn_repl_frozen(r, s));
}

bool tn_repl_finish(tn_repl *r, uint16_t peer, const tn_ps_slots *slots)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	uint64_t used = buf->used;

	if (!add_slots(r, buf, TN_REPL_SYNCED, slots, peer, may_finish)) {
		cut_back(buf, used);
		return false;
	}
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++)
		if (tn_ps_slots_has(slots, s) && r->slot[s].peer == peer && may_finish(r, s))
			slot_set_state(r, s, TN_RS_COPIED);
	return true;
}

/* ---- writes ---- */

static uint16_t stream_of(const tn_repl *r, uint64_t key)
{
	const tn_repl_slot *slot = &r->slot[tn_table_slot(key)];

	return slot->state >= (TN_MUTANT(112) ? TN_RS_COPIED : TN_RS_COPYING) ? slot->peer : TN_CL_NONE;
}

uint32_t tn_repl_sort(const tn_repl *r, const uint64_t *keys, uint64_t n, uint64_t *sorted, uint32_t *first)
{
	uint32_t next[TN_CL_SERVERS_MAX], streams = 0, at = 0;

	memset(next, 0, sizeof(next));
	for (uint64_t i = 0; i < n; i++) {
		uint16_t peer = stream_of(r, keys[i]);

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
	for (uint64_t i = 0; i < n; i++) {
		uint64_t key = keys[i]; /* a peer may change it meanwhile: bounds hold whatever it is now */
		uint16_t peer = stream_of(r, key);

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
		cut_back(buf, used);
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
			cut_back(buf, used);
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
		uint16_t s;
		uint32_t epoch;

		tn_repl_slot_decode(e->items + 8ull * i, &s, &epoch);
		if (r->slot[s].state != TN_RS_COPIED || r->slot[s].epoch != epoch ||
		    r->slot[s].peer != peer || tn_ps_slots_has(refused, s))
			continue;
		slot_set_state(r, s, TN_RS_SYNCED);
		tell(synced, s, epoch);
		if (tn_ps_slots_has(&r->move, s) && (tn_repl_frozen(r, s) || TN_MUTANT(113)))
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
		if (!tn_ps_slots_has(refused, s))
			continue;
		if (r->slot[s].peer == peer && r->slot[s].state >= TN_RS_COPYING &&
		    r->slot[s].since <= out->seq)
			freeze(r, s);
		else
			refused->bits[s / 64] &= ~(1ull << (s % 64));
	}
	while (at < out->sent.used && tn_repl_entry_next(out->sent.at, out->sent.used, &at, &e))
		if (e.kind == TN_REPL_SYNCED)
			synced_in(r, peer, refused, &e, synced, released);
}

void tn_repl_of_peer(const tn_repl *r, uint16_t peer, tn_repl_told *told)
{
	told->count = 0;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++)
		if (r->slot[s].peer == peer)
			tell(told, s, r->slot[s].epoch);
}
