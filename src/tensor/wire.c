/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and parsing of the tensor layer's messages. Pure; layouts are written by the functions in order
 * of the fields, behind a header of u8 type | u8 version | u16 slots | u32 tx_id | u32 rx_id | i32 status.
 */
#include "tensor/wire.h"

#include "base/check.h"
#include "base/wirebuf.h"

static void put_open(tn_writer *w, const tn_tensor_msg *msg)
{
	tn_put_u32(w, msg->dtype);
	tn_put_u32(w, msg->notify);
	tn_put_u32(w, msg->shape.rank);
	for (unsigned i = 0; i < TERN_RANK_MAX; i++)
		tn_put_u64(w, i < msg->shape.rank ? msg->shape.dims[i] : 0);
	tn_put_bytes(w, msg->flag_key.bytes, sizeof(msg->flag_key.bytes));
	tn_put_str(w, msg->text);
}

static void put_opened(tn_writer *w, const tn_tensor_msg *msg)
{
	tn_put_u64(w, msg->stride_bytes);
	tn_put_bytes(w, msg->slot_key.bytes, sizeof(msg->slot_key.bytes));
	tn_put_bytes(w, msg->flag_key.bytes, sizeof(msg->flag_key.bytes));
	tn_put_str(w, msg->text);
}

uint64_t tn_tensor_encode(uint8_t out[TN_TENSOR_MSG_MAX], const tn_tensor_msg *msg)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_TENSOR_MSG_MAX);
	tn_put_u8(&w, (uint8_t)msg->type);
	tn_put_u8(&w, TN_TENSOR_VERSION);
	tn_put_u16(&w, (uint16_t)msg->slots);
	tn_put_u32(&w, msg->tx_id);
	tn_put_u32(&w, msg->rx_id);
	tn_put_u32(&w, (uint32_t)msg->status);
	if (msg->type == TN_TENSOR_OPEN)
		put_open(&w, msg);
	else if (msg->type == TN_TENSOR_OPENED)
		put_opened(&w, msg);
	else if (msg->type == TN_TENSOR_RELEASE)
		tn_put_u64(&w, msg->count);
	TN_ASSERT(!w.bad);
	return w.at;
}

static void get_open(tn_reader *r, tn_tensor_msg *msg)
{
	msg->dtype = tn_get_u32(r);
	msg->notify = tn_get_u32(r);
	msg->shape.rank = tn_get_u32(r);
	for (unsigned i = 0; i < TERN_RANK_MAX; i++)
		msg->shape.dims[i] = tn_get_u64(r);
	tn_get_bytes(r, msg->flag_key.bytes, sizeof(msg->flag_key.bytes));
	tn_get_str(r, msg->text, sizeof(msg->text));
}

static void get_opened(tn_reader *r, tn_tensor_msg *msg)
{
	msg->stride_bytes = tn_get_u64(r);
	tn_get_bytes(r, msg->slot_key.bytes, sizeof(msg->slot_key.bytes));
	tn_get_bytes(r, msg->flag_key.bytes, sizeof(msg->flag_key.bytes));
	tn_get_str(r, msg->text, sizeof(msg->text));
}

bool tn_tensor_decode(const void *bytes, uint64_t length, tn_tensor_msg *msg)
{
	uint8_t version;
	tn_reader r;

	*msg = (tn_tensor_msg){0};
	tn_reader_init(&r, bytes, length);
	msg->type = (tn_tensor_type)tn_get_u8(&r);
	version = tn_get_u8(&r);
	msg->slots = tn_get_u16(&r);
	msg->tx_id = tn_get_u32(&r);
	msg->rx_id = tn_get_u32(&r);
	msg->status = (tern_status)(int32_t)tn_get_u32(&r);
	if (r.bad || version != TN_TENSOR_VERSION)
		return false;
	switch (msg->type) {
	case TN_TENSOR_OPEN:
		get_open(&r, msg);
		break;
	case TN_TENSOR_OPENED:
		get_opened(&r, msg);
		break;
	case TN_TENSOR_RELEASE:
		msg->count = tn_get_u64(&r);
		break;
	case TN_TENSOR_CLOSE:
	case TN_TENSOR_CLOSED:
	case TN_TENSOR_WITHDRAW:
		break;
	default:
		return false;
	}
	return tn_reader_done(&r) && msg->shape.rank <= TERN_RANK_MAX && msg->slots <= TERN_TENSOR_SLOTS_MAX;
}
