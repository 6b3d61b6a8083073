/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the bytes that go to a peer: device address, lane address, hello. Strict: anything that does not parse
 * whole is refused, since it comes from elsewhere.
 *
 * Pure. Threads: any. Tests: tests/unit/transport/test_verbs_wire.c.
 */
#include <string.h>

#include "base/crypto.h"
#include "base/fail.h"
#include "base/wirebuf.h"
#include "transport/verbs/verbs.h"

#define DEV_MAGIC   0x31646276u /* "vbd1" */
#define LANE_MAGIC  0x316c6276u /* "vbl1" */
#define HELLO_MAGIC 0x31686276u /* "vbh1" */
#define BITS_24     0xffffffu

void tn_vb_dev_addr_put(const tn_vb_dev_addr *addr, tn_blob *blob)
{
	tn_writer w;

	memset(blob, 0, sizeof(*blob));
	tn_writer_init(&w, blob->bytes, sizeof(blob->bytes));
	tn_put_u32(&w, DEV_MAGIC);
	tn_put_bytes(&w, addr->gid.raw, sizeof(addr->gid.raw));
	tn_put_u16(&w, addr->lid);
	tn_put_u8(&w, addr->ethernet);
	tn_put_u8(&w, addr->mtu);
	tn_put_u8(&w, addr->rd_atomic);
	tn_put_u8(&w, addr->mem_slot);
	blob->length = (uint16_t)w.at;
}

bool tn_vb_dev_addr_get(const tn_blob *blob, tn_vb_dev_addr *addr)
{
	tn_reader r;

	if (blob->length > TN_BLOB_MAX)
		return false;
	tn_reader_init(&r, blob->bytes, blob->length);
	if (tn_get_u32(&r) != DEV_MAGIC)
		return false;
	tn_get_bytes(&r, addr->gid.raw, sizeof(addr->gid.raw));
	addr->lid = tn_get_u16(&r);
	addr->ethernet = tn_get_u8(&r);
	addr->mtu = tn_get_u8(&r);
	addr->rd_atomic = tn_get_u8(&r);
	addr->mem_slot = tn_get_u8(&r);
	return tn_reader_done(&r) && addr->ethernet <= 1 && addr->mtu >= IBV_MTU_256 &&
	       addr->mtu <= IBV_MTU_4096 && addr->mem_slot < TN_MEM_DEVICES_MAX;
}

void tn_vb_lane_addr_put(const tn_vb_lane_addr *addr, tn_blob *blob)
{
	tn_writer w;

	memset(blob, 0, sizeof(*blob));
	tn_writer_init(&w, blob->bytes, sizeof(blob->bytes));
	tn_put_u32(&w, LANE_MAGIC);
	tn_put_u32(&w, addr->qpn);
	tn_put_u32(&w, addr->psn);
	tn_put_u8(&w, addr->active);
	blob->length = (uint16_t)w.at;
}

bool tn_vb_lane_addr_get(const tn_blob *blob, tn_vb_lane_addr *addr)
{
	uint8_t active;
	tn_reader r;

	if (blob->length > TN_BLOB_MAX)
		return false;
	tn_reader_init(&r, blob->bytes, blob->length);
	if (tn_get_u32(&r) != LANE_MAGIC)
		return false;
	addr->qpn = tn_get_u32(&r);
	addr->psn = tn_get_u32(&r);
	active = tn_get_u8(&r);
	addr->active = active != 0;
	return tn_reader_done(&r) && addr->qpn <= BITS_24 && addr->psn <= BITS_24 && active <= 1;
}

tern_status tn_vb_hello_make(const uint8_t *token, const tn_vb_lane_addr *from, const tn_vb_lane_addr *to,
			     uint8_t hello[TN_VB_HELLO_BYTES])
{
	uint8_t text[32];
	tn_writer w;

	tn_writer_init(&w, text, sizeof(text));
	tn_put_u32(&w, HELLO_MAGIC);
	tn_put_u32(&w, from->qpn);
	tn_put_u32(&w, from->psn);
	tn_put_u32(&w, from->active);
	tn_put_u32(&w, to->qpn);
	tn_put_u32(&w, to->psn);
	tn_put_u32(&w, to->active);
	TN_ASSERT(!w.bad);
	tn_writer_init(&w, hello, TN_VB_HELLO_BYTES);
	tn_put_u32(&w, HELLO_MAGIC);
	tn_put_u32(&w, 0);
	_Static_assert(TN_VB_HELLO_BYTES == 8 + TN_HMAC_BYTES, "the MAC fills it");
	return tn_hmac_sha256(token, TN_LANE_TOKEN_BYTES, text, 28, hello + 8);
}
