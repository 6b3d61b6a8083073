/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers of the RPC layer's messages over arbitrary bytes. Whatever is accepted lies inside of the message and
 * encodes back to the same bytes; neither a byte less nor a byte more is accepted in its place. Whatever can
 * be encoded decodes to the same fields.
 *
 * Pure: no channel, no server. Seeds: fuzz/corpus/rpc_wire. Unit tests: tests/unit/rpc/wire_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"
#include "rpc/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Is [part, part + bytes) within the message and at its end? */
static void is_tail(const uint8_t *msg, uint64_t size, const void *part, uint64_t bytes)
{
	TN_ASSERT(bytes <= size);
	TN_ASSERT((const uint8_t *)part == msg + (size - bytes));
}

static bool decodes(const uint8_t *msg, uint64_t size)
{
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head request;
	tn_rpc_reply_head reply;
	const void *part;
	bool a = tn_rpc_request_decode(msg, size, &request, sinks, &part);
	bool b = tn_rpc_reply_decode(msg, size, &reply, &part);

	TN_ASSERT(!(a && b)); /* one type, one meaning */
	return a || b;
}

static void request(const uint8_t *msg, uint64_t size)
{
	uint8_t out[TN_RPC_REQUEST_BYTES_MAX];
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head head;
	const void *args;
	uint64_t n;

	if (!tn_rpc_request_decode(msg, size, &head, sinks, &args))
		return;
	TN_ASSERT(tn_rpc_type_of(msg, size) == TN_RPC_REQUEST);
	TN_ASSERT(head.sink_count <= TERN_RPC_SINKS_MAX && head.low_water <= head.seq);
	is_tail(msg, size, args, head.args_bytes);
	n = tn_rpc_request_encode(out, &head, sinks);
	TN_ASSERT(n == size - head.args_bytes);
	TN_ASSERT(memcmp(out, msg, n) == 0);
}

static void reply(const uint8_t *msg, uint64_t size)
{
	uint8_t out[TN_RPC_REPLY_BYTES];
	tn_rpc_reply_head head;
	const void *body;

	if (!tn_rpc_reply_decode(msg, size, &head, &body))
		return;
	TN_ASSERT(head.type > TN_RPC_REQUEST && head.type <= TN_RPC_DONE);
	is_tail(msg, size, body, head.bytes);
	tn_rpc_reply_encode(out, &head);
	TN_ASSERT(size - head.bytes == sizeof(out));
	TN_ASSERT(memcmp(out, msg, sizeof(out)) == 0);
}

/* A byte more or less than an accepted message is none: the lengths inside are exact. */
static void neighbours(const uint8_t *msg, uint64_t size)
{
	uint8_t *longer;

	if (!decodes(msg, size))
		return;
	TN_ASSERT(!decodes(msg, size - 1));
	longer = malloc(size + 1);
	if (!longer)
		return;
	memcpy(longer, msg, size);
	longer[size] = 0;
	TN_ASSERT(!decodes(longer, size + 1));
	free(longer);
}

/* Fields from the input, encoded and decoded. */
static void round_trip(const uint8_t *data, uint64_t size)
{
	uint8_t out[TN_RPC_REQUEST_BYTES_MAX];
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX], got_sinks[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head head = {0}, got;
	const void *args;
	tn_reader r;
	uint64_t n;

	tn_reader_init(&r, data, size);
	head.sink_count = tn_get_u8(&r) % (TERN_RPC_SINKS_MAX + 1);
	head.method = tn_get_u32(&r);
	head.low_water = tn_get_u64(&r) >> 2; /* far from the largest number that is allowed */
	head.seq = head.low_water + tn_get_u8(&r);
	head.timeout_ns = tn_get_u64(&r);
	head.first = tn_get_u32(&r) >> 1;
	head.session = head.first + tn_get_u8(&r);
	head.service_class = tn_get_u8(&r) % TN_RPC_CLASSES;
	head.flags = tn_get_u8(&r) & TN_RPC_IDEMPOTENT;
	tn_get_bytes(&r, head.client.bytes, sizeof(head.client.bytes));
	memset(sinks, 0, sizeof(sinks));
	for (unsigned i = 0; i < head.sink_count; i++) {
		tn_get_bytes(&r, sinks[i].key.bytes, sizeof(sinks[i].key.bytes));
		sinks[i].bytes = tn_get_u64(&r);
	}
	n = tn_rpc_request_encode(out, &head, sinks);
	TN_ASSERT(n == TN_RPC_REQUEST_BYTES + (uint64_t)head.sink_count * TN_RPC_SINK_BYTES);
	TN_ASSERT(tn_rpc_request_decode(out, n, &got, got_sinks, &args));
	TN_ASSERT(got.method == head.method && got.sink_count == head.sink_count && got.seq == head.seq);
	TN_ASSERT(got.low_water == head.low_water && got.timeout_ns == head.timeout_ns &&
		  got.args_bytes == 0);
	TN_ASSERT(got.first == head.first && got.session == head.session &&
		  got.service_class == head.service_class && got.flags == head.flags);
	TN_ASSERT(memcmp(&got.client, &head.client, sizeof(head.client)) == 0);
	TN_ASSERT(memcmp(got_sinks, sinks, head.sink_count * sizeof(sinks[0])) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	request(data, size);
	reply(data, size);
	neighbours(data, size);
	round_trip(data, size);
	return 0;
}
