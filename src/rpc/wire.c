/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and parsing of RPC messages. Pure functions over bytes; see wire.h for the layouts.
 */
#include "rpc/wire.h"

#include <endian.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"

tn_rpc_type tn_rpc_type_of(const void *msg, uint64_t bytes)
{
	const uint8_t *p = msg;

	if (bytes < TN_RPC_REPLY_BYTES || p[1] != TN_RPC_VERSION || p[0] < TN_RPC_REQUEST ||
	    p[0] > TN_RPC_DONE)
		return 0;
	return (tn_rpc_type)p[0];
}

/*
 * Each as it lies in the message, little endian. Fields are stored there and loaded from there one by one: a copy beside it
 * would be read in wider pieces than it was just written in, for which a processor waits until all of those are in its cache.
 */
#define WIRE __attribute__((packed, aligned(1), may_alias))

typedef struct WIRE wire_request {
	uint8_t type, version;
	uint16_t sink_count;
	uint32_t method;
	uint64_t seq;
	uint8_t client[16];
	uint64_t low_water, timeout_ns, args_bytes;
	uint32_t session, first;
	uint8_t service_class, flags;
	uint16_t zero16;
	uint32_t zero32;
} wire_request;
_Static_assert(sizeof(wire_request) == TN_RPC_REQUEST_BYTES && offsetof(wire_request, service_class) == 64,
	       "no padding");

typedef struct WIRE wire_reply {
	uint8_t type, version;
	uint16_t zero;
	uint32_t status;
	uint64_t seq, bytes, value;
} wire_reply;
_Static_assert(sizeof(wire_reply) == TN_RPC_REPLY_BYTES, "no padding");

TN_ALWAYS_INLINE void tn_rpc_request_encode_head(uint8_t out[TN_RPC_REQUEST_BYTES],
						 const tn_rpc_request_head *head)
{
	wire_request *wire = (wire_request *)(void *)out;

	wire->type = TN_RPC_REQUEST;
	wire->version = TN_RPC_VERSION;
	wire->sink_count = htole16(head->sink_count);
	wire->method = htole32(head->method);
	wire->seq = htole64(head->seq);
	memcpy(wire->client, head->client.bytes, sizeof(wire->client));
	wire->low_water = htole64(head->low_water);
	wire->timeout_ns = htole64(head->timeout_ns);
	wire->args_bytes = htole64(head->args_bytes);
	wire->session = htole32(head->session);
	wire->first = htole32(head->first);
	wire->service_class = head->service_class;
	wire->flags = head->flags;
	wire->zero16 = 0;
	wire->zero32 = 0;
}

uint64_t tn_rpc_request_encode(uint8_t *out, const tn_rpc_request_head *head, const tern_rpc_sink *sinks)
{
	tn_writer w;

	tn_rpc_request_encode_head(out, head);
	tn_writer_init(&w, out + TN_RPC_REQUEST_BYTES, TN_RPC_REQUEST_BYTES_MAX - TN_RPC_REQUEST_BYTES);
	for (unsigned i = 0; i < head->sink_count; i++) {
		tn_put_bytes(&w, sinks[i].key.bytes, sizeof(sinks[i].key.bytes));
		tn_put_u64(&w, sinks[i].bytes);
	}
	TN_ASSERT(!w.bad);
	return TN_RPC_REQUEST_BYTES + w.at;
}

static bool request_sane(const tn_rpc_request_head *head)
{
	return head->sink_count <= TERN_RPC_SINKS_MAX && head->low_water <= head->seq &&
	       head->seq <= TN_RPC_SEQ_MAX && head->first <= head->session &&
	       head->service_class < TN_RPC_CLASSES && !(head->flags & ~(TN_RPC_IDEMPOTENT | TN_RPC_EARLY));
}

/* False: a field that must be zero is not. */
static bool decode_head(const wire_request *wire, tn_rpc_request_head *head)
{
	head->sink_count = le16toh(wire->sink_count);
	head->method = le32toh(wire->method);
	head->seq = le64toh(wire->seq);
	memcpy(head->client.bytes, wire->client, sizeof(wire->client));
	head->low_water = le64toh(wire->low_water);
	head->timeout_ns = le64toh(wire->timeout_ns);
	head->args_bytes = le64toh(wire->args_bytes);
	head->session = le32toh(wire->session);
	head->first = le32toh(wire->first);
	head->service_class = wire->service_class;
	head->flags = wire->flags;
	return wire->zero16 == 0 && wire->zero32 == 0;
}

bool tn_rpc_request_decode(const void *msg, uint64_t bytes, tn_rpc_request_head *head, tern_rpc_sink *sinks,
			   const void **args)
{
	const uint8_t *at = (const uint8_t *)msg + sizeof(wire_request);
	uint64_t left = bytes - sizeof(wire_request);
	wire_request wire;

	if (bytes < sizeof(wire) || tn_rpc_type_of(msg, bytes) != TN_RPC_REQUEST)
		return false;
	memcpy(&wire, msg, sizeof(wire)); /* once: the peer may go on writing */
	if (!decode_head(&wire, head) || !request_sane(head) || left < head->sink_count * TN_RPC_SINK_BYTES)
		return false;
	for (unsigned i = 0; i < head->sink_count; i++, at += TN_RPC_SINK_BYTES) {
		memcpy(sinks[i].key.bytes, at, sizeof(sinks[i].key.bytes));
		memcpy(&sinks[i].bytes, at + sizeof(sinks[i].key.bytes), sizeof(sinks[i].bytes));
		sinks[i].bytes = le64toh(sinks[i].bytes);
	}
	*args = at;
	return left - head->sink_count * TN_RPC_SINK_BYTES == head->args_bytes;
}

void tn_rpc_reply_encode(uint8_t out[TN_RPC_REPLY_BYTES], const tn_rpc_reply_head *head)
{
	wire_reply *wire = (wire_reply *)(void *)out;

	wire->type = (uint8_t)head->type;
	wire->version = TN_RPC_VERSION;
	wire->zero = 0;
	wire->status = htole32((uint32_t)head->status);
	wire->seq = htole64(head->seq);
	wire->bytes = htole64(head->bytes);
	wire->value = htole64(head->value);
}

bool tn_rpc_reply_decode(const void *msg, uint64_t bytes, tn_rpc_reply_head *head, const void **data)
{
	tn_rpc_type type = tn_rpc_type_of(msg, bytes);
	const wire_reply *wire = msg;

	if (type == 0 || type == TN_RPC_REQUEST)
		return false;
	*head = (tn_rpc_reply_head){.type = type,
				    .status = (tern_status)(int32_t)le32toh(wire->status),
				    .seq = le64toh(wire->seq),
				    .bytes = le64toh(wire->bytes),
				    .value = le64toh(wire->value)};
	*data = (const uint8_t *)msg + sizeof(*wire);
	return wire->zero == 0 && bytes - sizeof(*wire) == head->bytes && head->seq <= TN_RPC_SEQ_MAX &&
	       (type != TN_RPC_RESPONSE || head->status != TERN_OK || head->value <= TN_RPC_PLACED_MAX) &&
	       (type != TN_RPC_DONE || head->value <= TN_RPC_SEQ_MAX);
}
