/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of summed steps: encode and parse. See round_wire.h. Pure. Threads: any. Tests: tests/unit/ps/round_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"
#include "ps/round_wire.h"

void tn_ps_stage_encode(uint8_t out[TN_PS_STAGE_BYTES], const tn_ps_stage *s)
{
	uint32_t lr_scale;
	tn_writer w;

	memcpy(&lr_scale, &s->lr_scale, sizeof(lr_scale));
	tn_writer_init(&w, out, TN_PS_STAGE_BYTES);
	tn_put_u8(&w, TN_PS_ROUND_VERSION);
	tn_put_u8(&w, s->dtype);
	tn_put_u16(&w, 0);
	tn_put_u32(&w, lr_scale);
	tn_put_u64(&w, s->life);
	tn_put_u64(&w, s->member);
	tn_put_u64(&w, s->step);
	tn_put_u64(&w, s->seq);
	tn_put_u64(&w, s->table);
	tn_put_u64(&w, s->schema);
	tn_put_u64(&w, s->count);
	TN_ASSERT(!w.bad && w.at == TN_PS_STAGE_BYTES);
}

bool tn_ps_stage_decode(const void *data, uint64_t bytes, tn_ps_stage *s)
{
	uint8_t version;
	uint16_t zero;
	uint32_t lr_scale;
	tn_reader r;

	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	s->dtype = tn_get_u8(&r);
	zero = tn_get_u16(&r);
	lr_scale = tn_get_u32(&r);
	memcpy(&s->lr_scale, &lr_scale, sizeof(lr_scale));
	s->life = tn_get_u64(&r);
	s->member = tn_get_u64(&r);
	s->step = tn_get_u64(&r);
	s->seq = tn_get_u64(&r);
	s->table = tn_get_u64(&r);
	s->schema = tn_get_u64(&r);
	s->count = tn_get_u64(&r);
	if (r.bad || version != TN_PS_ROUND_VERSION || zero || s->count > tn_reader_left(&r) / 8)
		return false;
	s->keys = tn_get_view(&r, s->count * 8);
	s->row_bytes = tn_reader_left(&r);
	s->rows = tn_get_view(&r, s->row_bytes);
	return tn_reader_done(&r);
}

uint64_t tn_ps_close_encode(uint8_t out[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX], const tn_ps_close *c)
{
	tn_writer w;

	TN_ASSERT(c->senders <= TN_PS_SENDERS_MAX);
	tn_writer_init(&w, out, TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX);
	tn_put_u8(&w, TN_PS_ROUND_VERSION);
	tn_put_u8(&w, 0);
	tn_put_u16(&w, 0);
	tn_put_u32(&w, c->senders);
	tn_put_u64(&w, c->life);
	tn_put_u64(&w, c->step);
	for (uint32_t i = 0; i < c->senders; i++)
		tn_put_u64(&w, c->sender[i]);
	return w.at;
}

bool tn_ps_close_decode(const void *data, uint64_t bytes, tn_ps_close *c)
{
	uint8_t version, zero;
	uint16_t zeros;
	tn_reader r;

	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	zero = tn_get_u8(&r);
	zeros = tn_get_u16(&r);
	c->senders = tn_get_u32(&r);
	c->life = tn_get_u64(&r);
	c->step = tn_get_u64(&r);
	if (version != TN_PS_ROUND_VERSION || zero || zeros || c->senders > TN_PS_SENDERS_MAX)
		return false;
	for (uint32_t i = 0; i < c->senders; i++)
		c->sender[i] = tn_get_u64(&r);
	return tn_reader_done(&r);
}

void tn_ps_slots_encode(uint8_t out[TN_PS_SLOT_BYTES], const tn_ps_slots *slots)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_SLOT_BYTES);
	for (unsigned i = 0; i < 64; i++)
		tn_put_u64(&w, slots->bits[i]);
	TN_ASSERT(!w.bad && w.at == TN_PS_SLOT_BYTES);
}

void tn_ps_slots_decode(const uint8_t in[TN_PS_SLOT_BYTES], tn_ps_slots *slots)
{
	tn_reader r;

	tn_reader_init(&r, in, TN_PS_SLOT_BYTES);
	for (unsigned i = 0; i < 64; i++)
		slots->bits[i] = tn_get_u64(&r);
}
