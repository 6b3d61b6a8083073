/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes on a tcp lane and in its addresses. Everything is little endian; golden bytes pin it.
 *
 *   hello    104 bytes, four of them make a handshake: HELLO ->, <- PROOF, PROOF ->, <- READY
 *   frame    a 56-byte header | payload of `bytes` (WRITE, WRITE_IMM, SEND, READ_RESP) | a trailer of
 *            8 bytes after READ_RESP only, which says whether the key held until the last byte
 *   blobs    where a device listens and in which host it lives; which lane is meant
 *
 *   seq      WRITE, WRITE_IMM, READ_REQ and SEND of one direction count 0, 1, 2, ...
 *   ack      on every frame, cumulative: all frames of the other direction with seq < ack are placed
 *            (reads are answered by READ_RESP or NAK and not covered)
 *
 * Pure functions over bytes: no I/O, no clock, no allocation, any thread. Parsers are bounded and strict: a
 * field that a type does not use is zero, so that decoding and encoding are inverse to each other.
 * Tests: tests/unit/transport/test_tcp_frame.c, fuzz/tcp_frame.c.
 */
#ifndef TN_TRANSPORT_TCP_FRAME_H
#define TN_TRANSPORT_TCP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

#ifndef TN_TCP_WIRE_VERSION        /* tests/mixed plays other versions */
#define TN_TCP_WIRE_VERSION     1u /* what we speak */
#define TN_TCP_WIRE_VERSION_MIN 1u /* and what we still understand */
#endif

#define TN_TCP_BYTES_MAX        (1ull << 40) /* longest payload of one frame */
#define TN_TCP_SEND_BYTES_LIMIT (1u << 24)   /* the largest that the option tcp.send_bytes allows */
#define TN_TCP_WRS_LIMIT \
	4096u                 /* unfinished wrs per lane and direction: more NAKs than that break the rules */
#define TN_TCP_READS_MAX 128u /* unanswered reads per lane and direction; part of the protocol */

/* ---- frames ---- */

#define TN_TCP_HDR_BYTES     56u
#define TN_TCP_TRAILER_BYTES 8u
#define TN_TCP_FRAME_MAGIC   0x7eu

typedef enum tn_tcp_type {
	TN_TCP_WRITE = 1,
	TN_TCP_WRITE_IMM = 2,
	TN_TCP_READ_REQ = 3,
	TN_TCP_READ_RESP = 4,
	TN_TCP_SEND = 5,
	TN_TCP_ACK = 6,
	TN_TCP_NAK = 7,
} tn_tcp_type;

#define TN_TCP_F_ACK 1u /* WRITE, WRITE_IMM: the initiator waits for the acknowledgement */

/* As it lies on the wire; used for offsets and sizes only, never cast onto a buffer. */
struct tn_tcp_hdr_wire {
	uint8_t magic;
	uint8_t type;
	uint16_t flags;
	uint32_t imm; /* NAK: the status, two's complement */
	uint64_t seq; /* READ_RESP, NAK: of the request that is answered */
	uint64_t ack;
	uint64_t bytes; /* payload that follows; READ_REQ: wanted */
	uint64_t offset;
	uint32_t key_index;
	uint32_t key_generation;
	uint32_t key_tag;
	uint32_t zero;
};
_Static_assert(sizeof(struct tn_tcp_hdr_wire) == TN_TCP_HDR_BYTES, "wire format");
_Static_assert(offsetof(struct tn_tcp_hdr_wire, seq) == 8, "wire format");
_Static_assert(offsetof(struct tn_tcp_hdr_wire, bytes) == 24, "wire format");
_Static_assert(offsetof(struct tn_tcp_hdr_wire, key_index) == 40, "wire format");

typedef struct tn_tcp_hdr {
	tn_tcp_type type;
	uint16_t flags;
	uint32_t imm;
	tern_status status; /* NAK only */
	uint64_t seq;
	uint64_t ack;
	uint64_t bytes;
	uint64_t offset;
	uint32_t key_index;
	uint32_t key_generation;
	uint32_t key_tag;
} tn_tcp_hdr;

void tn_tcp_hdr_encode(const tn_tcp_hdr *hdr, uint8_t out[TN_TCP_HDR_BYTES]);
/* NULL if the header is good, else one line that says what is wrong with it. send_bytes_max: our slots. */
const char *tn_tcp_hdr_decode(const uint8_t in[TN_TCP_HDR_BYTES], uint64_t send_bytes_max, tn_tcp_hdr *hdr);
/* Payload bytes that follow the header on the wire. */
static inline uint64_t tn_tcp_hdr_payload(const tn_tcp_hdr *hdr)
{
	return hdr->type == TN_TCP_READ_REQ ? 0 : hdr->bytes;
}

void tn_tcp_trailer_encode(tern_status status, uint8_t out[TN_TCP_TRAILER_BYTES]);
const char *tn_tcp_trailer_decode(const uint8_t in[TN_TCP_TRAILER_BYTES], tern_status *status);

/* ---- handshake ---- */

#define TN_TCP_HELLO_BYTES 104u
#define TN_TCP_HELLO_MAGIC 0x314e4c5054435431ull
#define TN_TCP_NONCE_BYTES 32u
#define TN_TCP_PROOF_BYTES 32u

typedef enum tn_tcp_hello_type {
	TN_TCP_HELLO = 1,     /* dialler: versions, lanes, its nonce */
	TN_TCP_CHALLENGE = 2, /* acceptor: version chosen, its nonce, its proof; or a refusal */
	TN_TCP_PROOF = 3,     /* dialler: its proof */
	TN_TCP_READY = 4,     /* acceptor: the lane is up */
} tn_tcp_hello_type;

typedef struct tn_tcp_hello {
	tn_tcp_hello_type type;
	uint16_t version;     /* HELLO: the newest the dialler speaks; CHALLENGE: the one to be used */
	uint16_t version_min; /* the oldest that the sender of this message speaks */
	tern_status status;   /* CHALLENGE: TERN_OK, or TERN_E_VERSION as a refusal */
	uint64_t lane_to;     /* lane id at the receiver of this message */
	uint64_t lane_from;
	uint8_t nonce[TN_TCP_NONCE_BYTES];
	uint8_t proof[TN_TCP_PROOF_BYTES];
} tn_tcp_hello;

struct tn_tcp_hello_wire {
	uint64_t magic;
	uint16_t version;
	uint16_t version_min;
	uint8_t type;
	uint8_t zero[3];
	uint32_t status;
	uint32_t zero2;
	uint64_t lane_to;
	uint64_t lane_from;
	uint8_t nonce[TN_TCP_NONCE_BYTES];
	uint8_t proof[TN_TCP_PROOF_BYTES];
};
_Static_assert(sizeof(struct tn_tcp_hello_wire) == TN_TCP_HELLO_BYTES, "wire format");
_Static_assert(offsetof(struct tn_tcp_hello_wire, lane_to) == 24, "wire format");
_Static_assert(offsetof(struct tn_tcp_hello_wire, proof) == 72, "wire format");

void tn_tcp_hello_encode(const tn_tcp_hello *hello, uint8_t out[TN_TCP_HELLO_BYTES]);
/* NULL if it is a hello message, of whatever version; else what is wrong. */
const char *tn_tcp_hello_decode(const uint8_t in[TN_TCP_HELLO_BYTES], tn_tcp_hello *hello);
/* The version that both ranges share, 0 if there is none. */
uint16_t tn_tcp_version_choose(uint16_t newest, uint16_t oldest);

/*
 * What a proof signs (HMAC-SHA-256 under the lane's token): role, version, both lanes, both nonces. The
 * roles differ so that a proof cannot be reflected.
 */
#define TN_TCP_TRANSCRIPT_BYTES (16u + 2u + 16u + 2u * TN_TCP_NONCE_BYTES)
void tn_tcp_transcript(bool dialler, uint16_t version, uint64_t lane_dialler, uint64_t lane_acceptor,
		       const uint8_t nonce_dialler[TN_TCP_NONCE_BYTES],
		       const uint8_t nonce_acceptor[TN_TCP_NONCE_BYTES],
		       uint8_t out[TN_TCP_TRANSCRIPT_BYTES]);

/* ---- address blobs ---- */

#define TN_TCP_ADDRS_MAX 8u

typedef struct tn_tcp_addr {
	uint8_t family; /* 4 or 6 */
	uint16_t port;
	uint32_t scope; /* IPv6 link-local only: interface index at the owner */
	uint8_t ip[16]; /* network order; IPv4 in the first four */
} tn_tcp_addr;

/* u8 version | u8 count | u16 zero | u32 send bytes | u64 host | u64 netns | count x 24 bytes */
typedef struct tn_tcp_dev_blob {
	uint32_t send_bytes; /* longest message that the device takes */
	uint64_t host;       /* tag of the running kernel: equal on one host */
	uint64_t netns;      /* tag of its network namespace: loopback reaches only the same one */
	uint32_t count;
	tn_tcp_addr addrs[TN_TCP_ADDRS_MAX];
} tn_tcp_dev_blob;

void tn_tcp_dev_blob_encode(const tn_tcp_dev_blob *dev, tn_blob *out);
const char *tn_tcp_dev_blob_decode(const tn_blob *in, tn_tcp_dev_blob *dev);

/* u8 version | u8 zero[7] | u64 lane id */
void tn_tcp_lane_blob_encode(uint64_t lane_id, tn_blob *out);
const char *tn_tcp_lane_blob_decode(const tn_blob *in, uint64_t *lane_id);

#endif
