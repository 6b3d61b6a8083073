/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts as messages. Pure. Threads: any. Tests: tests/unit/ps/onesided_test.c, tests/unit/ps/wire_test.c.
 */
#include <string.h>

#include "base/wirebuf.h"
#include "ps/onesided.h"

#define VERSION     1
#define HEAD_BYTES  90u
#define WHOLE_BYTES 24u
#define DEPTH_MAX   30u

void tn_ps_layout_ask_encode(uint8_t out[TN_PS_LAYOUT_ARGS_BYTES], const tn_ps_layout_ask *ask)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_LAYOUT_ARGS_BYTES);
	tn_put_u8(&w, VERSION);
	tn_put_u64(&w, ask->table);
	tn_put_u64(&w, ask->schema);
	tn_put_u64(&w, ask->known);
}

bool tn_ps_layout_ask_decode(const void *args, uint64_t bytes, tn_ps_layout_ask *ask)
{
	tn_reader r;
	bool known;

	tn_reader_init(&r, args, bytes);
	known = tn_get_u8(&r) == VERSION;
	ask->table = tn_get_u64(&r);
	ask->schema = tn_get_u64(&r);
	ask->known = tn_get_u64(&r);
	return known && tn_reader_done(&r);
}

uint64_t tn_ps_layout_bytes(const tn_ps_layout *l)
{
	if (!l->whole)
		return HEAD_BYTES;
	return HEAD_BYTES + WHOLE_BYTES + (uint64_t)l->pieces * TN_PS_PIECE_BYTES +
	       (l->has_dir ? 8ull << l->depth : 0) + 8ull * l->slabs;
}

uint64_t tn_ps_layout_encode(uint8_t *out, uint64_t bytes, const tn_ps_layout *l)
{
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	tn_put_u8(&w, VERSION);
	tn_put_u8(&w, l->whole);
	tn_put_u64(&w, l->lease_ns);
	tn_put_u64(&w, l->map_version);
	tn_put_u64(&w, l->changes);
	tn_put_bytes(&w, l->beacon.bytes, sizeof(l->beacon.bytes));
	if (l->whole) {
		tn_put_u32(&w, l->head_bytes);
		tn_put_u32(&w, l->stride);
		tn_put_u32(&w, l->shift);
		tn_put_u32(&w, l->has_dir ? l->depth + 1 : 0);
		tn_put_u32(&w, l->pieces);
		tn_put_u32(&w, l->slabs);
	}
	return w.bad ? 0 : w.at;
}

bool tn_ps_layout_decode(const void *data, uint64_t bytes, tn_ps_layout *l)
{
	uint32_t depth;
	tn_reader r;
	bool known;

	memset(l, 0, sizeof(*l));
	tn_reader_init(&r, data, bytes);
	known = tn_get_u8(&r) == VERSION;
	l->whole = tn_get_u8(&r) == 1;
	l->lease_ns = tn_get_u64(&r);
	l->map_version = tn_get_u64(&r);
	l->changes = tn_get_u64(&r);
	tn_get_bytes(&r, l->beacon.bytes, sizeof(l->beacon.bytes));
	if (!known || !l->whole)
		return known && tn_reader_done(&r);
	l->head_bytes = tn_get_u32(&r);
	l->stride = tn_get_u32(&r);
	l->shift = tn_get_u32(&r);
	depth = tn_get_u32(&r);
	l->pieces = tn_get_u32(&r);
	l->slabs = tn_get_u32(&r);
	l->has_dir = depth > 0;
	l->depth = depth ? depth - 1 : 0;
	if (r.bad || l->depth > DEPTH_MAX || l->shift > 31 || l->head_bytes < 12 || l->stride < l->head_bytes)
		return false;
	l->piece_bytes = tn_get_view(&r, (uint64_t)l->pieces * TN_PS_PIECE_BYTES);
	l->dir_bytes = tn_get_view(&r, l->has_dir ? 8ull << l->depth : 0);
	l->slab_bytes = tn_get_view(&r, 8ull * l->slabs);
	return tn_reader_done(&r);
}

tn_ps_piece tn_ps_layout_piece(const tn_ps_layout *l, uint32_t i)
{
	tn_ps_piece piece;
	tn_reader r;

	tn_reader_init(&r, l->piece_bytes + (uint64_t)i * TN_PS_PIECE_BYTES, TN_PS_PIECE_BYTES);
	tn_get_bytes(&r, piece.key.bytes, sizeof(piece.key.bytes));
	piece.bytes = tn_get_u64(&r);
	return piece;
}

void tn_ps_layout_pair(const uint8_t *at, uint64_t i, uint32_t pair[2])
{
	tn_reader r;

	tn_reader_init(&r, at + 8 * i, 8);
	pair[0] = tn_get_u32(&r);
	pair[1] = tn_get_u32(&r);
}
