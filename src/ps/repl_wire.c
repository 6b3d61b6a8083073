/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames from primary to backup: see repl_wire.h. Pure. Threads: one per buffer. Tests: tests/unit/ps/repl_wire_test.c.
 */
#include "ps/repl_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/wirebuf.h"
#include "ps/round_wire.h"

#define PAD(n) (((n) + 7) & ~7ull)

/* Little endian at places whose bounds are known; read by tn_load_u*. */
#define SCALAR(bits)                                                       \
	static inline void put##bits(uint8_t *place, uint##bits##_t value) \
	{                                                                  \
		for (unsigned i = 0; i < bits / 8; i++)                    \
			place[i] = (uint8_t)((uint64_t)value >> (8 * i));  \
	}
SCALAR(16)
SCALAR(32)
SCALAR(64)
#undef SCALAR

/* ---- buffers ---- */

void tn_repl_buf_free(tn_repl_buf *b)
{
	free(b->at);
	*b = (tn_repl_buf){0};
}

bool tn_repl_buf_reserve(tn_repl_buf *b, uint64_t bytes)
{
	uint64_t room = b->room ? b->room : 65536;
	uint8_t *more;

	if (bytes <= b->room - b->used)
		return true;
	while (room - b->used < bytes)
		room *= 2;
	more = TN_FAULT("ps.repl.alloc") ? NULL : realloc(b->at, room);
	if (!more)
		return false;
	b->at = more;
	b->room = room;
	return true;
}

bool tn_repl_buf_start(tn_repl_buf *b)
{
	b->used = b->entry = 0;
	if (!tn_repl_buf_reserve(b, TN_REPL_HEAD))
		return false;
	memset(b->at, 0, TN_REPL_HEAD);
	b->used = TN_REPL_HEAD;
	return true;
}

void tn_repl_head_encode(uint8_t out[TN_REPL_HEAD], const tn_repl_head *h)
{
	memset(out, 0, 8);
	out[0] = TN_REPL_VERSION;
	put16(out + 2, h->from);
	put64(out + 8, h->stream);
	put64(out + 16, h->seq);
	put64(out + 24, h->map_version);
}

bool tn_repl_entry_open(tn_repl_buf *b, const tn_repl_entry *e)
{
	uint8_t *out;

	TN_ASSERT(b->used >= TN_REPL_HEAD && b->used % 8 == 0 && b->entry == 0);
	if (!tn_repl_buf_reserve(b, TN_REPL_ENTRY))
		return false;
	out = b->at + b->used;
	memset(out, 0, 8);
	out[0] = (uint8_t)e->kind;
	put64(out + 8, e->table);
	put64(out + 16, e->schema);
	put64(out + 24, e->client);
	put64(out + 32, e->seq);
	put64(out + 40, e->low);
	put32(out + 48, (uint32_t)e->status);
	put32(out + 52, e->item_bytes);
	b->entry = b->used;
	b->used += TN_REPL_ENTRY;
	return true;
}

uint8_t *tn_repl_item(tn_repl_buf *b)
{
	uint8_t *head = b->at + b->entry, *item;
	uint32_t bytes = tn_load_u32(head + 52), count = tn_load_u32(head + 4);

	TN_ASSERT(b->entry && count < UINT32_MAX);
	if (!tn_repl_buf_reserve(b, bytes + 8ull))
		return NULL;
	head = b->at + b->entry;
	put32(head + 4, count + 1);
	item = b->at + b->used;
	b->used += bytes;
	return item;
}

void tn_repl_entry_close(tn_repl_buf *b)
{
	uint64_t end = PAD(b->used);

	TN_ASSERT(b->entry);
	if (end != b->used) { /* the room was reserved with the last item */
		memset(b->at + b->used, 0, end - b->used);
		b->used = end;
	}
	b->entry = 0;
}

void tn_repl_entry_give_up(tn_repl_buf *b)
{
	if (b->entry)
		b->used = b->entry;
	b->entry = 0;
}

/* ---- records ---- */

static uint64_t value_room(const tn_table *t)
{
	return (tn_table_value_bytes(t) + 3) & ~3ull;
}

uint32_t tn_repl_record_bytes(const tn_table *t)
{
	uint64_t bytes = PAD(TN_REPL_RECORD + value_room(t) + tn_table_state_bytes(t));

	TN_ASSERT(bytes <= TN_REPL_RECORD_MAX);
	return (uint32_t)bytes;
}

void tn_repl_record_encode(uint8_t *out, const tn_table *t, const tn_record *r)
{
	uint64_t value = tn_table_value_bytes(t), room = value_room(t), state = tn_table_state_bytes(t);
	uint64_t end = TN_REPL_RECORD + room + state;

	put64(out, r->key);
	put64(out + 8, r->last_step);
	put32(out + 16, r->frequency);
	put32(out + 20, r->value != NULL);
	if (!r->value) {
		memset(out + TN_REPL_RECORD, 0, PAD(end) - TN_REPL_RECORD);
		return;
	}
	memcpy(out + TN_REPL_RECORD, r->value, value);
	memset(out + TN_REPL_RECORD + value, 0, room - value);
	if (state)
		memcpy(out + TN_REPL_RECORD + room, r->state, state);
	memset(out + end, 0, PAD(end) - end);
}

void tn_repl_record_decode(const uint8_t *in, const tn_table *t, tn_record *r, bool *there)
{
	const uint8_t *value = in + TN_REPL_RECORD;

	*r = (tn_record){tn_load_u64(in), tn_load_u64(in + 8), tn_load_u32(in + 16), value,
			 tn_table_state_bytes(t) ? value + value_room(t) : NULL};
	*there = tn_load_u32(in + 20) != 0;
}

void tn_repl_slot_encode(uint8_t out[8], uint16_t slot, uint32_t epoch)
{
	put16(out, slot);
	put16(out + 2, 0);
	put32(out + 4, epoch);
}

void tn_repl_slot_decode(const uint8_t in[8], uint16_t *slot, uint32_t *epoch)
{
	*slot = tn_load_u16(in);
	*epoch = tn_load_u32(in + 4);
}

/* ---- reading ---- */

bool tn_repl_head_decode(const void *data, uint64_t bytes, tn_repl_head *h)
{
	const uint8_t *in = data;

	if (bytes < TN_REPL_HEAD || in[0] != TN_REPL_VERSION || in[1] != 0 || tn_load_u32(in + 4) != 0)
		return false;
	*h = (tn_repl_head){.from = tn_load_u16(in + 2),
			    .stream = tn_load_u64(in + 8),
			    .seq = tn_load_u64(in + 16),
			    .map_version = tn_load_u64(in + 24)};
	return h->from < 256 && h->seq != 0 && h->stream != 0;
}

static bool slots_valid(const tn_repl_entry *e, uint64_t bytes)
{
	for (uint32_t i = 0; i < e->count; i++) {
		const uint8_t *item = e->items + (uint64_t)i * e->item_bytes;

		if (tn_load_u16(item) >= TERN_TABLE_SLOTS || (bytes == 8 && tn_load_u16(item + 2) != 0))
			return false;
	}
	return true;
}

/* What the kind demands. */
static bool entry_valid(const tn_repl_entry *e)
{
	switch (e->kind) {
	case TN_REPL_TABLE:
		return e->item_bytes == 1;
	case TN_REPL_DROP:
	case TN_REPL_BYE:
		return e->item_bytes == 0 && e->count == 0;
	case TN_REPL_BEGIN:
	case TN_REPL_ADOPT:
	case TN_REPL_SYNCED:
		return e->item_bytes == 8 && slots_valid(e, 8);
	case TN_REPL_FACT:
		return e->item_bytes == 2 && slots_valid(e, 2) &&
		       (e->seq == TN_PS_NO_SEQ ? e->count == 0 : e->low <= e->seq);
	case TN_REPL_STAGE:
		return e->count == 1 && e->item_bytes >= TN_PS_STAGE_BYTES &&
		       e->item_bytes <= TN_REPL_STAGE_MAX;
	case TN_REPL_CLOSED:
		return e->item_bytes == 2 && slots_valid(e, 2) && e->seq > 0;
	case TN_REPL_PUSH:
		if (e->low > e->seq)
			return false;
		return e->item_bytes >= TN_REPL_RECORD && e->item_bytes <= TN_REPL_RECORD_MAX &&
		       e->item_bytes % 8 == 0;
	case TN_REPL_ROWS:
		return e->item_bytes >= TN_REPL_RECORD && e->item_bytes <= TN_REPL_RECORD_MAX &&
		       e->item_bytes % 8 == 0;
	default:
		return false;
	}
}

bool tn_repl_entry_next(const void *data, uint64_t bytes, uint64_t *at, tn_repl_entry *e)
{
	const uint8_t *in = (const uint8_t *)data + *at;
	uint64_t left = bytes - *at, items;

	if (*at >= bytes || left < TN_REPL_ENTRY || in[1] != 0 || tn_load_u16(in + 2) != 0)
		return false;
	*e = (tn_repl_entry){.kind = (tn_repl_kind)in[0],
			     .count = tn_load_u32(in + 4),
			     .table = tn_load_u64(in + 8),
			     .schema = tn_load_u64(in + 16),
			     .client = tn_load_u64(in + 24),
			     .seq = tn_load_u64(in + 32),
			     .low = tn_load_u64(in + 40),
			     .status = (tern_status)(int32_t)tn_load_u32(in + 48),
			     .item_bytes = tn_load_u32(in + 52),
			     .items = in + TN_REPL_ENTRY};
	items = (uint64_t)e->count * e->item_bytes; /* below 2^64: both have 32 bits */
	if (items > left - TN_REPL_ENTRY || PAD(items) > left - TN_REPL_ENTRY || !entry_valid(e))
		return false;
	*at += TN_REPL_ENTRY + PAD(items);
	return true;
}

/* ---- answers ---- */

uint64_t tn_repl_answer_encode(uint8_t out[TN_REPL_ANSWER_MAX], const tn_repl_answer *a)
{
	memset(out, 0, 8);
	out[0] = TN_REPL_VERSION;
	out[1] = (uint8_t)a->verdict;
	put64(out + 8, a->map_version);
	if (a->verdict != TN_REPL_PARTIAL)
		return TN_REPL_ANSWER;
	for (unsigned i = 0; i < 64; i++)
		put64(out + TN_REPL_ANSWER + 8 * i, a->refused.bits[i]);
	return TN_REPL_ANSWER_MAX;
}

bool tn_repl_answer_decode(const void *data, uint64_t bytes, tn_repl_answer *a)
{
	const uint8_t *in = data;

	memset(a, 0, sizeof(*a));
	if (bytes < TN_REPL_ANSWER || in[0] != TN_REPL_VERSION || in[1] > TN_REPL_FAILED ||
	    tn_load_u16(in + 2) != 0 || tn_load_u32(in + 4) != 0)
		return false;
	a->verdict = (tn_repl_verdict)in[1];
	a->map_version = tn_load_u64(in + 8);
	if (a->verdict != TN_REPL_PARTIAL)
		return bytes == TN_REPL_ANSWER;
	if (bytes != TN_REPL_ANSWER_MAX)
		return false;
	for (unsigned i = 0; i < 64; i++)
		a->refused.bits[i] = tn_load_u64(in + TN_REPL_ANSWER + 8 * i);
	return true;
}
