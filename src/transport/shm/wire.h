/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes over the Unix socket of a lane (SOCK_SEQPACKET: one record = one message), and the two blobs.
 * Both ends are processes of one kernel and one byte order; the structs are fixed in size and layout.
 *
 *    active                                              passive
 *      | HELLO  device, lanes, nonce_a                      |
 *      |--------------------------------------------------->|  waits for lane_connect if need be
 *      |                 CHALLENGE  nonce_p, mac_p          |
 *      |<---------------------------------------------------|
 *      | PROOF  mac_a, facts, [segment, wake, keys, page]   |  probe[0] is in the segment
 *      |--------------------------------------------------->|  maps, reads probe[0], writes probe[1]
 *      |      ACCEPT  probe[0] as read, facts, [wake, keys, page]
 *      |<---------------------------------------------------|
 *      | CONFIRM  probe[1] as read                          |
 *      |--------------------------------------------------->|
 *      UP                                                   UP
 *      | EXTENT_ASK index  /  EXTENT index, status, access, bytes, [memfd]      either way, at any time
 *
 *   mac_x = HMAC-SHA256(token, label_x | both devices | both lanes | both nonces): the token itself is never
 *   sent, and no descriptor leaves before the other side has proved it. [..] = SCM_RIGHTS.
 *   Instead of CHALLENGE or ACCEPT the passive side may send REFUSE and close.
 *
 * Must not: be trusted. Every message is checked for type and size before a field is read.
 * Tests: tests/unit/transport/test_shm_handshake.c.
 */
#ifndef TN_TRANSPORT_SHM_WIRE_H
#define TN_TRANSPORT_SHM_WIRE_H

#include <stdint.h>

#include "transport/transport.h"

#define TN_SHM_WIRE_MAGIC 0x316d6873u /* "shm1" */
#ifndef TN_SHM_WIRE_VERSION           /* tests/mixed plays another one */
#define TN_SHM_WIRE_VERSION 1u
#endif
#define TN_SHM_FDS_MAX     4
#define TN_SHM_NONCE_BYTES 32
#define TN_SHM_MAC_BYTES   32
#define TN_SHM_ID_BYTES    16

typedef enum tn_shm_type {
	TN_SHM_HELLO = 1,
	TN_SHM_CHALLENGE,
	TN_SHM_PROOF,
	TN_SHM_ACCEPT,
	TN_SHM_CONFIRM,
	TN_SHM_REFUSE,
	TN_SHM_EXTENT_ASK,
	TN_SHM_EXTENT,
	TN_SHM_TYPES,
} tn_shm_type;

/* A device is the random name of its listener: nothing else on the host has it, restarts get another. */
typedef struct tn_shm_id {
	uint8_t bytes[TN_SHM_ID_BYTES];
} tn_shm_id;

/* The address of a device: tn_blob.bytes. */
typedef struct tn_shm_address {
	uint32_t magic;
	uint32_t version;
	tn_shm_id id;
	uint8_t boot_id[40]; /* text: the same running kernel */
	uint64_t netns_dev;  /* abstract names live in a network namespace */
	uint64_t netns_ino;
	uint32_t uid;
	uint32_t zero;
} tn_shm_address;
_Static_assert(sizeof(tn_shm_address) == 88 && sizeof(tn_shm_address) <= TN_BLOB_MAX, "layout is shared");

/* The address of a lane. */
typedef struct tn_shm_lane_address {
	uint32_t magic;
	uint32_t zero;
	uint64_t lane;
} tn_shm_lane_address;
_Static_assert(sizeof(tn_shm_lane_address) == 16, "layout is shared");

typedef struct tn_shm_head_msg {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
} tn_shm_head_msg;

/* Facts of one side that the other needs. */
typedef struct tn_shm_facts {
	uint32_t key_rows;
	uint32_t node_tag;
	uint32_t light; /* membarrier is registered: light fences do if both have it */
	uint32_t zero;
} tn_shm_facts;

typedef struct tn_shm_hello {
	tn_shm_head_msg head;
	tn_shm_id from, to;
	uint64_t lane_from, lane_to;
	uint8_t nonce[TN_SHM_NONCE_BYTES];
} tn_shm_hello;

typedef struct tn_shm_challenge {
	tn_shm_head_msg head;
	uint8_t nonce[TN_SHM_NONCE_BYTES];
	uint8_t mac[TN_SHM_MAC_BYTES];
} tn_shm_challenge;

typedef struct tn_shm_proof {
	tn_shm_head_msg head;
	uint8_t mac[TN_SHM_MAC_BYTES];
	uint32_t slots; /* of the segment */
	uint32_t buf_bytes;
	tn_shm_facts facts;
} tn_shm_proof;

typedef struct tn_shm_accept {
	tn_shm_head_msg head;
	uint64_t probe;
	tn_shm_facts facts;
} tn_shm_accept;

typedef struct tn_shm_confirm {
	tn_shm_head_msg head;
	uint64_t probe;
} tn_shm_confirm;

typedef struct tn_shm_refuse {
	tn_shm_head_msg head;
	int32_t status;
	uint32_t zero;
} tn_shm_refuse;

typedef struct tn_shm_extent_ask {
	tn_shm_head_msg head;
	uint32_t index;
	uint32_t zero;
} tn_shm_extent_ask;

typedef struct tn_shm_extent {
	tn_shm_head_msg head;
	uint32_t index;
	int32_t status; /* TERN_OK comes with the memfd */
	uint32_t access;
	uint32_t zero;
	uint64_t bytes;
} tn_shm_extent;

typedef union tn_shm_any {
	tn_shm_head_msg head;
	tn_shm_hello hello;
	tn_shm_challenge challenge;
	tn_shm_proof proof;
	tn_shm_accept accept;
	tn_shm_confirm confirm;
	tn_shm_refuse refuse;
	tn_shm_extent_ask ask;
	tn_shm_extent extent;
} tn_shm_any;

_Static_assert(sizeof(tn_shm_hello) == 88 && sizeof(tn_shm_challenge) == 72 && sizeof(tn_shm_proof) == 64 &&
		       sizeof(tn_shm_accept) == 32 && sizeof(tn_shm_confirm) == 16 &&
		       sizeof(tn_shm_refuse) == 16 && sizeof(tn_shm_extent_ask) == 16 &&
		       sizeof(tn_shm_extent) == 32,
	       "layout is shared");

/* Exact size and number of descriptors of a message type; 0 for a type that is none. */
uint32_t tn_shm_type_bytes(uint32_t type);
uint32_t tn_shm_type_fds(const tn_shm_any *msg);
const char *tn_shm_type_name(uint32_t type);

#endif
