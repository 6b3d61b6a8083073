/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and strict parsing of frames, handshake messages and address blobs; frame.h has the layouts.
 * Pure. Tests: tests/unit/transport/test_tcp_frame.c, fuzz/tcp_frame.c.
 */
#include "transport/tcp/frame.h"

#include <string.h>

#include "base/wirebuf.h"

#define HELLO_AT(field) offsetof(struct tn_tcp_hello_wire, field)
#define HDR_AT(field)   offsetof(struct tn_tcp_hdr_wire, field)

#define BLOB_VERSION    1u
#define DEV_BLOB_FIXED  24u
#define ADDR_BYTES      24u
#define LANE_BLOB_BYTES 16u
_Static_assert(DEV_BLOB_FIXED + TN_TCP_ADDRS_MAX * ADDR_BYTES <= TN_BLOB_MAX, "addresses fit in a blob");

/* Compilers turn these into single loads and stores on little-endian machines. */
static inline void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

static inline void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static inline void put64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static bool all_zero(const uint8_t *p, size_t n)
{
	uint8_t any = 0;

	for (size_t i = 0; i < n; i++)
		any |= p[i];
	return any == 0;
}

/* ---- frames ---- */

/* What a target may answer a one-sided request with. */
static bool is_key_error(int32_t status)
{
	return status == TERN_E_ACCESS || status == TERN_E_BOUNDS || status == TERN_E_STALE_KEY ||
	       status == TERN_E_UNSUPPORTED;
}

void tn_tcp_hdr_encode(const tn_tcp_hdr *hdr, uint8_t out[TN_TCP_HDR_BYTES])
{
	out[HDR_AT(magic)] = TN_TCP_FRAME_MAGIC;
	out[HDR_AT(type)] = (uint8_t)hdr->type;
	put16(out + HDR_AT(flags), hdr->flags);
	put32(out + HDR_AT(imm), hdr->type == TN_TCP_NAK ? (uint32_t)hdr->status : hdr->imm);
	put64(out + HDR_AT(seq), hdr->seq);
	put64(out + HDR_AT(ack), hdr->ack);
	put64(out + HDR_AT(bytes), hdr->bytes);
	put64(out + HDR_AT(offset), hdr->offset);
	put32(out + HDR_AT(key_index), hdr->key_index);
	put32(out + HDR_AT(key_generation), hdr->key_generation);
	put32(out + HDR_AT(key_tag), hdr->key_tag);
	put32(out + HDR_AT(zero), 0);
}

/* The fields that a frame without a key leaves zero. */
static bool no_key(const tn_tcp_hdr *hdr)
{
	return hdr->offset == 0 && (hdr->key_index | hdr->key_generation | hdr->key_tag) == 0;
}

static const char *check_type(tn_tcp_hdr *hdr, uint64_t send_bytes_max)
{
	bool write = hdr->type == TN_TCP_WRITE || hdr->type == TN_TCP_WRITE_IMM;

	if (hdr->flags & ~(write ? TN_TCP_F_ACK : 0u))
		return "unknown flags";
	if (hdr->imm && hdr->type != TN_TCP_WRITE_IMM && hdr->type != TN_TCP_NAK)
		return "an immediate where none belongs";
	switch (hdr->type) {
	case TN_TCP_WRITE:
	case TN_TCP_WRITE_IMM:
	case TN_TCP_READ_REQ:
		return NULL;
	case TN_TCP_READ_RESP:
		return no_key(hdr) ? NULL : "a key in an answer";
	case TN_TCP_SEND:
		if (hdr->bytes > send_bytes_max)
			return "a message longer than the receive buffers";
		return no_key(hdr) ? NULL : "a key in a message";
	case TN_TCP_ACK:
		return no_key(hdr) && !hdr->bytes && !hdr->seq ? NULL : "junk in an acknowledgement";
	case TN_TCP_NAK:
		hdr->status = (tern_status)(int32_t)hdr->imm;
		hdr->imm = 0;
		if (!is_key_error(hdr->status))
			return "an unknown status in a NAK";
		return no_key(hdr) && !hdr->bytes ? NULL : "junk in a NAK";
	}
	return "unknown frame type";
}

const char *tn_tcp_hdr_decode(const uint8_t in[TN_TCP_HDR_BYTES], uint64_t send_bytes_max, tn_tcp_hdr *hdr)
{
	if (in[HDR_AT(magic)] != TN_TCP_FRAME_MAGIC)
		return "no frame where one should start";
	hdr->type = (tn_tcp_type)in[HDR_AT(type)];
	hdr->flags = tn_load_u16(in + HDR_AT(flags));
	hdr->imm = tn_load_u32(in + HDR_AT(imm));
	hdr->status = TERN_OK;
	hdr->seq = tn_load_u64(in + HDR_AT(seq));
	hdr->ack = tn_load_u64(in + HDR_AT(ack));
	hdr->bytes = tn_load_u64(in + HDR_AT(bytes));
	hdr->offset = tn_load_u64(in + HDR_AT(offset));
	hdr->key_index = tn_load_u32(in + HDR_AT(key_index));
	hdr->key_generation = tn_load_u32(in + HDR_AT(key_generation));
	hdr->key_tag = tn_load_u32(in + HDR_AT(key_tag));
	if (tn_load_u32(in + HDR_AT(zero)))
		return "junk at the end of the header";
	if (hdr->bytes > TN_TCP_BYTES_MAX)
		return "a payload beyond the limit";
	if (hdr->offset > UINT64_MAX - TN_TCP_BYTES_MAX)
		return "an offset beyond the limit";
	return check_type(hdr, send_bytes_max);
}

void tn_tcp_trailer_encode(tern_status status, uint8_t out[TN_TCP_TRAILER_BYTES])
{
	put32(out, (uint32_t)status);
	put32(out + 4, 0);
}

const char *tn_tcp_trailer_decode(const uint8_t in[TN_TCP_TRAILER_BYTES], tern_status *status)
{
	int32_t value = (int32_t)tn_load_u32(in);

	if (tn_load_u32(in + 4) || (value != TERN_OK && !is_key_error(value)))
		return "junk after the data of a read";
	*status = (tern_status)value;
	return NULL;
}

/* ---- handshake ---- */

void tn_tcp_hello_encode(const tn_tcp_hello *hello, uint8_t out[TN_TCP_HELLO_BYTES])
{
	memset(out, 0, TN_TCP_HELLO_BYTES);
	put64(out + HELLO_AT(magic), TN_TCP_HELLO_MAGIC);
	put16(out + HELLO_AT(version), hello->version);
	put16(out + HELLO_AT(version_min), hello->version_min);
	out[HELLO_AT(type)] = (uint8_t)hello->type;
	put32(out + HELLO_AT(status), (uint32_t)hello->status);
	put64(out + HELLO_AT(lane_to), hello->lane_to);
	put64(out + HELLO_AT(lane_from), hello->lane_from);
	memcpy(out + HELLO_AT(nonce), hello->nonce, TN_TCP_NONCE_BYTES);
	memcpy(out + HELLO_AT(proof), hello->proof, TN_TCP_PROOF_BYTES);
}

const char *tn_tcp_hello_decode(const uint8_t in[TN_TCP_HELLO_BYTES], tn_tcp_hello *hello)
{
	int32_t status = (int32_t)tn_load_u32(in + HELLO_AT(status));
	uint8_t type = in[HELLO_AT(type)];

	if (tn_load_u64(in + HELLO_AT(magic)) != TN_TCP_HELLO_MAGIC)
		return "it does not speak tern";
	if (type < TN_TCP_HELLO || type > TN_TCP_READY)
		return "unknown handshake message";
	if (status != TERN_OK && status != TERN_E_VERSION)
		return "unknown handshake status";
	if (!all_zero(in + HELLO_AT(zero), 3) || tn_load_u32(in + HELLO_AT(zero2)))
		return "junk in a handshake message";
	hello->type = (tn_tcp_hello_type)type;
	hello->status = (tern_status)status;
	hello->version = tn_load_u16(in + HELLO_AT(version));
	hello->version_min = tn_load_u16(in + HELLO_AT(version_min));
	if (hello->version_min == 0 || hello->version_min > hello->version)
		return "an impossible range of versions";
	hello->lane_to = tn_load_u64(in + HELLO_AT(lane_to));
	hello->lane_from = tn_load_u64(in + HELLO_AT(lane_from));
	memcpy(hello->nonce, in + HELLO_AT(nonce), TN_TCP_NONCE_BYTES);
	memcpy(hello->proof, in + HELLO_AT(proof), TN_TCP_PROOF_BYTES);
	return NULL;
}

uint16_t tn_tcp_version_choose(uint16_t newest, uint16_t oldest)
{
	if (newest < TN_TCP_WIRE_VERSION_MIN || oldest > TN_TCP_WIRE_VERSION || oldest > newest)
		return 0;
	return newest < TN_TCP_WIRE_VERSION ? newest : TN_TCP_WIRE_VERSION;
}

void tn_tcp_transcript(bool dialler, uint16_t version, uint64_t lane_dialler, uint64_t lane_acceptor,
		       const uint8_t nonce_dialler[TN_TCP_NONCE_BYTES],
		       const uint8_t nonce_acceptor[TN_TCP_NONCE_BYTES], uint8_t out[TN_TCP_TRANSCRIPT_BYTES])
{
	memcpy(out, dialler ? "tern tcp dialler" : "tern tcp accepts", 16);
	put16(out + 16, version);
	put64(out + 18, lane_dialler);
	put64(out + 26, lane_acceptor);
	memcpy(out + 34, nonce_dialler, TN_TCP_NONCE_BYTES);
	memcpy(out + 34 + TN_TCP_NONCE_BYTES, nonce_acceptor, TN_TCP_NONCE_BYTES);
}

/* ---- address blobs ---- */

void tn_tcp_dev_blob_encode(const tn_tcp_dev_blob *dev, tn_blob *out)
{
	uint8_t *p = out->bytes;

	memset(p, 0, DEV_BLOB_FIXED + dev->count * ADDR_BYTES);
	p[0] = BLOB_VERSION;
	p[1] = (uint8_t)dev->count;
	put32(p + 4, dev->send_bytes);
	put64(p + 8, dev->host);
	put64(p + 16, dev->netns);
	p += DEV_BLOB_FIXED;
	for (uint32_t i = 0; i < dev->count; i++, p += ADDR_BYTES) {
		p[0] = dev->addrs[i].family;
		put16(p + 2, dev->addrs[i].port);
		put32(p + 4, dev->addrs[i].scope);
		memcpy(p + 8, dev->addrs[i].ip, 16);
	}
	out->length = (uint16_t)(p - out->bytes);
}

static const char *decode_addr(const uint8_t *p, tn_tcp_addr *addr)
{
	if ((p[0] != 4 && p[0] != 6) || p[1])
		return "an address of an unknown family";
	addr->family = p[0];
	addr->port = tn_load_u16(p + 2);
	addr->scope = tn_load_u32(p + 4);
	memcpy(addr->ip, p + 8, 16);
	if (addr->port == 0)
		return "an address without port";
	if (addr->family == 4 && (addr->scope || !all_zero(p + 12, 12)))
		return "junk in an IPv4 address";
	return NULL;
}

const char *tn_tcp_dev_blob_decode(const tn_blob *in, tn_tcp_dev_blob *dev)
{
	const uint8_t *p = in->bytes;
	const char *wrong = NULL;

	if (in->length < DEV_BLOB_FIXED || in->length > TN_BLOB_MAX)
		return "a device address of impossible length";
	if (p[0] != BLOB_VERSION || tn_load_u16(p + 2))
		return "a device address of another version";
	dev->send_bytes = tn_load_u32(p + 4);
	if (dev->send_bytes > TN_TCP_SEND_BYTES_LIMIT)
		return "a device address with impossible sizes";
	dev->count = p[1];
	if (dev->count == 0 || dev->count > TN_TCP_ADDRS_MAX ||
	    in->length != DEV_BLOB_FIXED + dev->count * ADDR_BYTES)
		return "a device address with a wrong count";
	dev->host = tn_load_u64(p + 8);
	dev->netns = tn_load_u64(p + 16);
	for (uint32_t i = 0; i < dev->count && !wrong; i++)
		wrong = decode_addr(p + DEV_BLOB_FIXED + i * ADDR_BYTES, &dev->addrs[i]);
	return wrong;
}

void tn_tcp_lane_blob_encode(uint64_t lane_id, tn_blob *out)
{
	memset(out->bytes, 0, LANE_BLOB_BYTES);
	out->bytes[0] = BLOB_VERSION;
	put64(out->bytes + 8, lane_id);
	out->length = LANE_BLOB_BYTES;
}

const char *tn_tcp_lane_blob_decode(const tn_blob *in, uint64_t *lane_id)
{
	if (in->length != LANE_BLOB_BYTES || in->bytes[0] != BLOB_VERSION || !all_zero(in->bytes + 1, 7))
		return "a lane address of another version or length";
	*lane_id = tn_load_u64(in->bytes + 8);
	return *lane_id ? NULL : "a lane address without lane";
}
