/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and parsing of RPC messages. Pure functions over bytes; see wire.h for the layouts.
 */
#include "rpc/wire.h"

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

void tn_rpc_request_encode_head(uint8_t out[TN_RPC_REQUEST_BYTES], const tn_rpc_request_head *head)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_RPC_REQUEST_BYTES);
	tn_put_u8(&w, TN_RPC_REQUEST);
	tn_put_u8(&w, TN_RPC_VERSION);
	tn_put_u16(&w, head->sink_count);
	tn_put_u32(&w, head->method);
	tn_put_u64(&w, head->seq);
	tn_put_bytes(&w, head->client.bytes, sizeof(head->client.bytes));
	tn_put_u64(&w, head->low_water);
	tn_put_u64(&w, head->timeout_ns);
	tn_put_u64(&w, head->args_bytes);
	tn_put_u32(&w, head->session);
	tn_put_u32(&w, head->first);
	tn_put_u8(&w, head->service_class);
	tn_put_u8(&w, head->flags);
	tn_put_u16(&w, 0);
	tn_put_u32(&w, 0);
	TN_ASSERT(!w.bad && w.at == TN_RPC_REQUEST_BYTES);
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

bool tn_rpc_request_decode(const void *msg, uint64_t bytes, tn_rpc_request_head *head, tern_rpc_sink *sinks,
			   const void **args)
{
	tn_reader r;

	if (tn_rpc_type_of(msg, bytes) != TN_RPC_REQUEST)
		return false;
	tn_reader_init(&r, msg, bytes);
	tn_get_u16(&r);
	head->sink_count = tn_get_u16(&r);
	head->method = tn_get_u32(&r);
	head->seq = tn_get_u64(&r);
	tn_get_bytes(&r, head->client.bytes, sizeof(head->client.bytes));
	head->low_water = tn_get_u64(&r);
	head->timeout_ns = tn_get_u64(&r);
	head->args_bytes = tn_get_u64(&r);
	head->session = tn_get_u32(&r);
	head->first = tn_get_u32(&r);
	head->service_class = tn_get_u8(&r);
	head->flags = tn_get_u8(&r);
	if (tn_get_u16(&r) != 0 || tn_get_u32(&r) != 0 || !request_sane(head))
		return false;
	for (unsigned i = 0; i < head->sink_count; i++) {
		tn_get_bytes(&r, sinks[i].key.bytes, sizeof(sinks[i].key.bytes));
		sinks[i].bytes = tn_get_u64(&r);
	}
	*args = tn_get_view(&r, head->args_bytes);
	return tn_reader_done(&r);
}

void tn_rpc_reply_encode(uint8_t out[TN_RPC_REPLY_BYTES], const tn_rpc_reply_head *head)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_RPC_REPLY_BYTES);
	tn_put_u8(&w, (uint8_t)head->type);
	tn_put_u8(&w, TN_RPC_VERSION);
	tn_put_u16(&w, 0);
	tn_put_u32(&w, (uint32_t)head->status);
	tn_put_u64(&w, head->seq);
	tn_put_u64(&w, head->bytes);
	tn_put_u64(&w, head->value);
}

bool tn_rpc_reply_decode(const void *msg, uint64_t bytes, tn_rpc_reply_head *head, const void **data)
{
	tn_rpc_type type = tn_rpc_type_of(msg, bytes);
	tn_reader r;

	if (type == 0 || type == TN_RPC_REQUEST)
		return false;
	tn_reader_init(&r, msg, bytes);
	tn_get_u16(&r);
	if (tn_get_u16(&r) != 0)
		return false;
	head->type = type;
	head->status = (tern_status)(int32_t)tn_get_u32(&r);
	head->seq = tn_get_u64(&r);
	head->bytes = tn_get_u64(&r);
	head->value = tn_get_u64(&r);
	*data = tn_get_view(&r, head->bytes);
	return tn_reader_done(&r) && head->seq <= TN_RPC_SEQ_MAX &&
	       (type != TN_RPC_RESPONSE || head->status != TERN_OK || head->value <= TN_RPC_PLACED_MAX) &&
	       (type != TN_RPC_DONE || head->value <= TN_RPC_SEQ_MAX);
}
