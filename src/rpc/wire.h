/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the RPC layer on a channel of service "tern.rpc". Little endian; golden bytes pin them.
 *
 *   request   72-byte header | sinks (72 bytes each) | arguments
 *   response  32-byte header | answer, or for an error status a text for people
 *   cancel, cancel ack, done   32-byte header
 *
 * Parsers are bounded and trust nothing. Pure: no locks, no allocation. Tests: tests/unit/rpc/wire_test.c.
 */
#ifndef TN_RPC_WIRE_H
#define TN_RPC_WIRE_H

#include <stdbool.h>

#include <tern/rpc.h>

#define TN_RPC_VERSION           2
#define TN_RPC_SEQ_MAX           (UINT64_MAX >> 1) /* larger ones are refused: sums with a window do not wrap */
#define TN_RPC_REQUEST_BYTES     72
#define TN_RPC_SINK_BYTES        72
#define TN_RPC_REPLY_BYTES       32
#define TN_RPC_CLASSES           3
#define TN_RPC_IDEMPOTENT        1u /* flags of a request: it may run again where no record of it is left */
#define TN_RPC_EARLY             2u /* of a request: the caller counts notifications (see value of a response) */
#define TN_RPC_PLACED_MAX        64u
#define TN_RPC_PLACED_MASK       0xffffffu /* of seq: the value of their notifications */
#define TN_RPC_REQUEST_BYTES_MAX (TN_RPC_REQUEST_BYTES + TERN_RPC_SINKS_MAX * TN_RPC_SINK_BYTES)

typedef enum tn_rpc_type {
	TN_RPC_REQUEST = 1,
	TN_RPC_RESPONSE = 2,
	TN_RPC_CANCEL = 3,     /* client: the deadline passed; answer with CANCEL_ACK once sinks are quiet */
	TN_RPC_CANCEL_ACK = 4, /* server: no write into the sinks of this call happens any more */
	TN_RPC_DONE = 5,       /* client: low_water moved past large answers: forget them */
} tn_rpc_type;

typedef struct tn_rpc_client_id {
	uint8_t bytes[16];
} tn_rpc_client_id;

/* u8 type | u8 version | u16 sinks | u32 method | u64 seq | id[16] | u64 low_water | u64 timeout |
   u64 args bytes | u32 session | u32 first | u8 class | u8 flags | u16 zero | u32 zero */
typedef struct tn_rpc_request_head {
	uint32_t method;
	uint16_t sink_count;
	uint64_t seq;
	tn_rpc_client_id client;
	uint64_t low_water;  /* all calls below it are finished at the client */
	uint64_t timeout_ns; /* left when sent; 0 = none */
	uint64_t args_bytes;
	uint32_t session; /* number of the channel, counted by the client in each class */
	uint32_t first;   /* session in which the request was first sent: below session, it is sent again */
	uint8_t service_class;
	uint8_t flags; /* TN_RPC_IDEMPOTENT, TN_RPC_EARLY */
} tn_rpc_request_head;

/* u8 type | u8 version | u16 zero | i32 status | u64 seq | u64 bytes | u64 value */
typedef struct tn_rpc_reply_head {
	tn_rpc_type type; /* anything but REQUEST */
	tern_status status;
	uint64_t seq;
	uint64_t bytes;
	/*
	 * DONE: low-water mark. RESPONSE with TERN_E_OVERLOAD: ns after which to try again; with TERN_OK, to a request
	 * with TN_RPC_EARLY: puts into its sinks that this answer may overtake. Each ends with a notification of the
	 * low 24 bits of seq, and the call is answered when that many have come over the channel.
	 */
	uint64_t value;
} tn_rpc_reply_head;

/* 0 for a message too short to have a type or of another version. */
tn_rpc_type tn_rpc_type_of(const void *msg, uint64_t bytes);
/* Header and sinks into out (TN_RPC_REQUEST_BYTES_MAX); returns the bytes written. */
uint64_t tn_rpc_request_encode(uint8_t *out, const tn_rpc_request_head *head, const tern_rpc_sink *sinks);
/* The header alone, of a request that is encoded already and sent again. */
void tn_rpc_request_encode_head(uint8_t out[TN_RPC_REQUEST_BYTES], const tn_rpc_request_head *head);
/* *args points into msg. false: malformed. sinks has room for TERN_RPC_SINKS_MAX. */
bool tn_rpc_request_decode(const void *msg, uint64_t bytes, tn_rpc_request_head *head, tern_rpc_sink *sinks,
			   const void **args);
void tn_rpc_reply_encode(uint8_t out[TN_RPC_REPLY_BYTES], const tn_rpc_reply_head *head);
/* *data points into msg. */
bool tn_rpc_reply_decode(const void *msg, uint64_t bytes, tn_rpc_reply_head *head, const void **data);

#endif
