/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that are summed in the streams to backups: gradients that are staged, slots in which a step closed. See repl.h,
 * steps.h. Pure. Tests: tests/unit/ps/repl_sim.
 */
#include <string.h>

#include "base/check.h"
#include "base/mutant.h"
#include "ps/repl.h"

/* Those of the slots of which the peer gets what is written; copying: and has not got everything yet. */
static void slots_to(const tn_repl *r, uint16_t peer, const tn_ps_slots *slots, bool copying,
		     tn_ps_slots *out)
{
	memset(out, 0, sizeof(*out));
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++)
		for (unsigned k = 0; k < 2 && tn_ps_slots_has(slots, s); k++) {
			const tn_repl_one *copy = &r->slot[s].copy[k];

			if (copy->peer == peer && copy->state >= TN_RS_COPYING &&
			    (!copying || (copy->state == TN_RS_COPYING && !copy->adopt)))
				tn_ps_slots_add(out, s);
		}
}

/* Keys and rows in these slots, as a message of their own. */
static bool add_stage(tn_repl_buf *buf, const tn_ps_stage *s, const tn_ps_slots *slots)
{
	uint64_t row_bytes = s->count ? s->row_bytes / s->count : 0, bytes;
	tn_ps_stage head = *s;
	uint8_t *item, *rows;
	tn_repl_entry e = {.kind = TN_REPL_STAGE,
			   .table = s->table,
			   .schema = s->schema,
			   .client = s->life,
			   .seq = s->step,
			   .low = 0};

	head.count = 0;
	for (uint64_t i = 0; i < s->count; i++)
		head.count += tn_ps_slots_has(slots, tn_ps_stage_slot(s, i));
	bytes = TN_PS_STAGE_BYTES + head.count * (8 + row_bytes);
	if (bytes > TN_REPL_STAGE_MAX)
		return false;
	e.item_bytes = (uint32_t)bytes;
	if (!tn_repl_entry_open(buf, &e))
		return false;
	item = tn_repl_item(buf);
	if (!item)
		return false;
	tn_ps_stage_encode(item, &head);
	item += TN_PS_STAGE_BYTES;
	rows = item + head.count * 8;
	for (uint64_t i = 0; i < s->count; i++) {
		if (!tn_ps_slots_has(slots, tn_ps_stage_slot(s, i)))
			continue;
		memcpy(item, s->keys + i * 8, 8);
		memcpy(rows, s->rows + i * row_bytes, row_bytes);
		item += 8;
		rows += row_bytes;
	}
	tn_repl_entry_close(buf);
	return true;
}

bool tn_repl_stage(tn_repl *r, uint16_t peer, const tn_ps_stage *stage, const tn_ps_slots *slots, bool *any)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	uint64_t used = buf->used;
	tn_ps_slots to;

	slots_to(r, peer, slots, false, &to);
	*any = !tn_ps_slots_none(&to);
	if (!*any || add_stage(buf, stage, &to))
		return true;
	tn_repl_entry_cut(buf, used);
	return false;
}

static bool add_closed(tn_repl_buf *buf, uint64_t life, uint64_t closed, tern_status status,
		       const tn_ps_slots *slots)
{
	tn_repl_entry e = {
		.kind = TN_REPL_CLOSED, .client = life, .seq = closed, .status = status, .item_bytes = 2};

	if (!tn_repl_entry_open(buf, &e))
		return false;
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		uint8_t *item;

		if (!tn_ps_slots_has(slots, s))
			continue;
		item = tn_repl_item(buf);
		if (!item)
			return false;
		item[0] = (uint8_t)s;
		item[1] = (uint8_t)(s >> 8);
	}
	tn_repl_entry_close(buf);
	return true;
}

bool tn_repl_closed(tn_repl *r, uint16_t peer, uint64_t life, uint64_t closed, tern_status status,
		    const tn_ps_slots *slots, bool *any)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	uint64_t used = buf->used;
	tn_ps_slots to;

	slots_to(r, peer, slots, false, &to);
	*any = !tn_ps_slots_none(&to);
	if (!*any || add_closed(buf, life, closed, status, &to))
		return true;
	tn_repl_entry_cut(buf, used);
	return false;
}

static bool on_closed(uint64_t life, uint64_t closed, tern_status status, const tn_ps_slots *slots, void *arg)
{
	return add_closed(arg, life, closed, status, slots);
}

bool tn_repl_begin_steps(tn_repl_buf *buf, const tn_steps *steps, const tn_ps_slots *fresh)
{
	return TN_MUTANT(121) || tn_steps_each_closed(steps, fresh, on_closed, buf);
}

bool tn_repl_copy_steps(tn_repl *r, uint16_t peer, const tn_steps *steps, const tn_ps_slots *slots,
			uint64_t *cursor)
{
	tn_repl_buf *buf = &r->out[peer]->open;
	uint64_t used = buf->used, life = 0;
	const tn_piece *piece;
	tn_ps_slots to;
	tn_ps_stage s;

	slots_to(r, peer, slots, true, &to);
	piece = TN_MUTANT(119) ? NULL : tn_steps_next(steps, *cursor, &to, &life);
	if (!piece) {
		*cursor = TN_SCAN_END;
		return true;
	}
	s = tn_piece_stage(piece, life);
	tn_ps_slots_and(&to, &piece->slots);
	if (!add_stage(buf, &s, &to)) {
		tn_repl_entry_cut(buf, used);
		return false;
	}
	*cursor = piece->number;
	return true;
}
