/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the bytes that go to a peer: addresses and hello. Strict: anything that does not parse whole is
 * refused, since it comes from elsewhere.
 *
 * Pure. Threads: any. Tests: tests/unit/transport/test_verbs_wire.c.
 */
#include <string.h>

#include "base/crypto.h"
#include "base/fail.h"
#include "base/wirebuf.h"
#include "transport/verbs/addr.h"

#define ADDR_MAGIC  0x32616276u /* "vba2" */
#define HELLO_MAGIC 0x32686276u /* "vbh2" */
#define BITS_24     0xffffffu

enum { ADDR_LANE = 1, ADDR_ACTIVE = 2 };
enum { RAIL_HEALTHY = 1, RAIL_ETHERNET = 2 };

static void rail_put(tn_writer *w, const tn_vb_rail_addr *rail)
{
	tn_put_u8(w, rail->rail);
	tn_put_u8(w, (uint8_t)((rail->healthy ? RAIL_HEALTHY : 0) | (rail->ethernet ? RAIL_ETHERNET : 0)));
	tn_put_u8(w, rail->mtu);
	tn_put_u8(w, rail->rd_atomic);
	tn_put_u8(w, rail->mem_slot);
	tn_put_u16(w, rail->lid);
	tn_put_u32(w, rail->qpn);
	tn_put_u32(w, rail->psn);
	tn_put_u8(w, rail->gid_count);
	for (uint32_t i = 0; i < rail->gid_count; i++)
		tn_put_bytes(w, rail->gids[i].raw, sizeof(rail->gids[i].raw));
}

void tn_vb_addr_put(const tn_vb_addr *addr, tn_blob *blob)
{
	tn_writer w;

	TN_ASSERT(addr->count >= 1 && addr->count <= TN_VB_RAILS_MAX);
	memset(blob, 0, sizeof(*blob));
	tn_writer_init(&w, blob->bytes, sizeof(blob->bytes));
	tn_put_u32(&w, ADDR_MAGIC);
	tn_put_u8(&w, (uint8_t)((addr->lane ? ADDR_LANE : 0) | (addr->active ? ADDR_ACTIVE : 0)));
	tn_put_u8(&w, addr->turn);
	tn_put_u8(&w, addr->count);
	for (uint32_t i = 0; i < addr->count; i++) {
		TN_ASSERT(addr->rails[i].gid_count <= tn_vb_gids_each(addr->count));
		rail_put(&w, &addr->rails[i]);
	}
	TN_ASSERT(!w.bad);
	blob->length = (uint16_t)w.at;
}

static bool rail_get(tn_reader *r, uint32_t gids_max, bool lane, tn_vb_rail_addr *rail)
{
	uint8_t flags;

	rail->rail = tn_get_u8(r);
	flags = tn_get_u8(r);
	rail->healthy = (flags & RAIL_HEALTHY) != 0;
	rail->ethernet = (flags & RAIL_ETHERNET) != 0;
	rail->mtu = tn_get_u8(r);
	rail->rd_atomic = tn_get_u8(r);
	rail->mem_slot = tn_get_u8(r);
	rail->lid = tn_get_u16(r);
	rail->qpn = tn_get_u32(r);
	rail->psn = tn_get_u32(r);
	rail->gid_count = tn_get_u8(r);
	if (r->bad || (flags & ~(RAIL_HEALTHY | RAIL_ETHERNET)) || rail->rail >= TN_VB_RAILS_MAX ||
	    rail->mtu < IBV_MTU_256 || rail->mtu > IBV_MTU_4096 || rail->mem_slot >= TN_MEM_DEVICES_MAX ||
	    rail->qpn > BITS_24 || rail->psn > BITS_24 || rail->gid_count < 1 || rail->gid_count > gids_max ||
	    (!lane && (rail->qpn || rail->psn)))
		return false;
	for (uint32_t i = 0; i < rail->gid_count; i++)
		tn_get_bytes(r, rail->gids[i].raw, sizeof(rail->gids[i].raw));
	return !r->bad;
}

bool tn_vb_addr_get(const tn_blob *blob, bool lane, tn_vb_addr *addr)
{
	uint32_t seen = 0;
	uint8_t flags;
	tn_reader r;

	memset(addr, 0, sizeof(*addr));
	if (blob->length > TN_BLOB_MAX)
		return false;
	tn_reader_init(&r, blob->bytes, blob->length);
	if (tn_get_u32(&r) != ADDR_MAGIC)
		return false;
	flags = tn_get_u8(&r);
	addr->lane = (flags & ADDR_LANE) != 0;
	addr->active = (flags & ADDR_ACTIVE) != 0;
	addr->turn = tn_get_u8(&r);
	addr->count = tn_get_u8(&r);
	if (r.bad || (flags & ~(ADDR_LANE | ADDR_ACTIVE)) || addr->lane != lane || (addr->active && !lane) ||
	    (addr->turn && !addr->active) || addr->count < 1 || addr->count > TN_VB_RAILS_MAX)
		return false;
	for (uint32_t i = 0; i < addr->count; i++) {
		if (!rail_get(&r, tn_vb_gids_each(addr->count), lane, &addr->rails[i]) ||
		    (seen & 1u << addr->rails[i].rail))
			return false;
		seen |= 1u << addr->rails[i].rail;
	}
	return tn_reader_done(&r);
}

tern_status tn_vb_hello_make(const uint8_t *token, const tn_blob *from, const tn_blob *to,
			     uint8_t hello[TN_VB_HELLO_BYTES])
{
	uint8_t text[8 + 2 * TN_BLOB_MAX];
	tn_writer w;
	uint64_t bytes;

	tn_writer_init(&w, text, sizeof(text));
	tn_put_u32(&w, HELLO_MAGIC);
	tn_put_u16(&w, from->length);
	tn_put_bytes(&w, from->bytes, from->length);
	tn_put_u16(&w, to->length);
	tn_put_bytes(&w, to->bytes, to->length);
	TN_ASSERT(!w.bad);
	bytes = w.at;
	tn_writer_init(&w, hello, TN_VB_HELLO_BYTES);
	tn_put_u32(&w, HELLO_MAGIC);
	tn_put_u32(&w, 0);
	_Static_assert(TN_VB_HELLO_BYTES == 8 + TN_HMAC_BYTES, "the MAC fills it");
	return tn_hmac_sha256(token, TN_LANE_TOKEN_BYTES, text, bytes, hello + 8);
}
