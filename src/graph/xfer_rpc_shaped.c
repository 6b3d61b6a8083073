/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dynamic edges by calls: a message begins with the shape (HEAD_BYTES), and buffers grow with the largest tensor there
 * was. A pull says how much room it has; a tensor that is larger is answered by its shape alone, and asked for again.
 * Threads: the executor's; tn_xfer_rpc_take_shaped runs in a handler with xfer->lock held.
 * Tests: tests/unit/graph/exec_bind_test.c.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/wirebuf.h"
#include "graph/xfer_rpc.h"

/* ---- messages of dynamic edges ---- */

/* Room for a message of so many bytes behind its head; what was there is lost. */
tern_status tn_xfer_rpc_make_room(const rpc_end *end, rpc_room *room, uint64_t bytes)
{
	if (bytes > TERN_RPC_INLINE_MAX - HEAD_BYTES)
		return tn_fail(TERN_E_TOO_LARGE,
			       "edge '%s': %llu bytes do not fit a call (at most %u): use zerocopy",
			       end->desc->name, (unsigned long long)bytes, TERN_RPC_INLINE_MAX - HEAD_BYTES);
	if (room->bytes >= HEAD_BYTES + bytes)
		return TERN_OK;
	free(room->data);
	room->bytes = (HEAD_BYTES + bytes + 63) / 64 * 64;
	room->data = aligned_alloc(64, room->bytes);
	if (room->data)
		return TERN_OK;
	room->bytes = 0;
	return tn_fail(TERN_E_NOMEM, "no memory for edge '%s' (%llu bytes)", end->desc->name,
		       (unsigned long long)bytes);
}

static void put_head(const rpc_end *end, const tern_shape *shape, uint8_t *message)
{
	tn_writer w;

	memset(message, 0, HEAD_BYTES);
	tn_writer_init(&w, message, HEAD_BYTES);
	tn_put_u64(&w, end->number);
	tn_put_u64(&w, shape->rank);
	for (uint32_t i = 0; i < shape->rank; i++)
		tn_put_u64(&w, shape->dims[i]);
	TN_ASSERT(!w.bad);
}

/* bytes: what a tensor of that shape has. False: it is none of this edge. */
static bool read_head(const rpc_end *end, const uint8_t *message, uint64_t bytes, tern_shape *shape,
		      uint64_t *tensor_bytes)
{
	tn_reader r;

	tn_reader_init(&r, message, bytes < HEAD_BYTES ? 0 : HEAD_BYTES);
	tn_get_u64(&r);
	*shape = (tern_shape){.rank = end->desc->shape.rank};
	if (tn_get_u64(&r) != shape->rank)
		return false;
	for (uint32_t i = 0; i < shape->rank; i++)
		shape->dims[i] = tn_get_u64(&r);
	return !r.bad && tn_shape_bytes(shape, end->desc->dtype, tensor_bytes) == TERN_OK;
}

/* xfer->lock is held. False: not a tensor of this edge, or there is no memory for it. */
bool tn_xfer_rpc_take_shaped(rpc_end *end, const uint8_t *message, uint64_t bytes)
{
	rpc_room *room = &end->shaped[end->arrived % RPC_SLOTS];
	uint64_t tensor_bytes;

	if (!read_head(end, message, bytes, &end->shapes[end->arrived % RPC_SLOTS], &tensor_bytes) ||
	    bytes - HEAD_BYTES != tensor_bytes || tn_xfer_rpc_make_room(end, room, tensor_bytes) != TERN_OK)
		return false;
	memcpy(room->data, message, bytes);
	tn_xfer_rpc_copied(end->xfer, tensor_bytes);
	return true;
}

/* How a message of a dynamic edge goes: with the call, or as the answer to one. */
static tern_status answer_shaped(rpc_end *end, uint64_t bytes)
{
	rpc_xfer *xfer = end->xfer;
	tern_rpc_request *request;
	bool fits;

	pthread_mutex_lock(&xfer->lock);
	request = end->request;
	end->request = NULL;
	fits = bytes <= end->request_room;
	end->kept = fits ? 0 : bytes;
	pthread_mutex_unlock(&xfer->lock);
	tern_rpc_reply(request, TERN_OK, end->shaped[0].data, fits ? bytes : HEAD_BYTES);
	if (fits)
		tn_xfer_rpc_copied(xfer, bytes - HEAD_BYTES);
	return TERN_OK;
}

static tern_status push_shaped(rpc_end *end, uint64_t bytes)
{
	uint8_t *edge = end->message;
	tern_status status;

	end->message = end->shaped[0].data;
	status = tn_xfer_rpc_make_call(end, METHOD_PUSH, bytes);
	end->message = edge;
	if (status == TERN_OK)
		tn_xfer_rpc_copied(end->xfer, bytes - HEAD_BYTES); /* the call took a copy of its arguments */
	return status == TERN_OK || status == TERN_AGAIN ? status
							 : tn_xfer_link_fail(end->desc, end->link, status);
}

/* TERN_OK: the next message may be made. */
static tern_status may_send_shaped(rpc_end *end)
{
	bool asked;

	if (end->calls)
		return tn_xfer_rpc_test_call(end);
	pthread_mutex_lock(&end->xfer->lock);
	asked = end->request && !end->kept;
	pthread_mutex_unlock(&end->xfer->lock);
	return asked ? TERN_OK : tn_xfer_link_check(end->desc, end->link);
}

tern_status tn_xfer_rpc_send_shaped(tn_xfer_end *base, const void *data, uint64_t bytes,
				    const tern_shape *shape, uint64_t step)
{
	rpc_end *end = (rpc_end *)base;
	tern_status status = may_send_shaped(end);

	(void)step;
	if (status != TERN_OK)
		return status;
	TN_TRY(tn_xfer_rpc_make_room(end, &end->shaped[0], bytes));
	put_head(end, shape, end->shaped[0].data);
	if (bytes)
		memcpy(end->shaped[0].data + HEAD_BYTES, data, bytes); /* serialise */
	tn_xfer_rpc_copied(end->xfer, bytes);
	status = end->calls ? push_shaped(end, HEAD_BYTES + bytes) : answer_shaped(end, HEAD_BYTES + bytes);
	if (status != TERN_OK)
		return status;
	end->xfer->link.counters.sends++;
	end->xfer->link.counters.bytes_sent += bytes;
	return TERN_OK;
}

/* A tensor that had no room is asked for again. */
static tern_status poll_pull_shaped(rpc_end *end, const void **data, tern_shape *shape, uint64_t *bytes)
{
	tern_status status = tn_xfer_rpc_pulled(end);

	if (status != TERN_OK)
		return status;
	if (!read_head(end, end->shaped[0].data, end->op.length, shape, bytes) ||
	    (end->op.length != HEAD_BYTES + *bytes && end->op.length != HEAD_BYTES))
		return tn_xfer_link_fail(end->desc, end->link,
					 tn_fail(TERN_E_CORRUPT, "a tensor of another rank or size"));
	if (end->op.length != HEAD_BYTES + *bytes) {
		TN_TRY(tn_xfer_rpc_make_room(end, &end->shaped[0], *bytes));
		status = tn_xfer_rpc_pull(end);
		return status == TERN_OK || status == TERN_AGAIN
			       ? TERN_AGAIN
			       : tn_xfer_link_fail(end->desc, end->link, status);
	}
	tn_xfer_rpc_copied(end->xfer, *bytes); /* out of the message */
	*data = end->shaped[0].data + HEAD_BYTES;
	return TERN_OK;
}

tern_status tn_xfer_rpc_poll_shaped(tn_xfer_end *base, const void **data, tern_shape *shape)
{
	rpc_end *end = (rpc_end *)base;
	uint64_t bytes;

	if (end->calls) {
		TN_TRY(poll_pull_shaped(end, data, shape, &bytes));
	} else {
		TN_TRY(tn_xfer_rpc_poll_push(end, data));
		*shape = end->shapes[end->taken % RPC_SLOTS];
		TN_TRY(tn_shape_bytes(shape, end->desc->dtype, &bytes));
	}
	end->held = true;
	end->xfer->link.counters.recvs++;
	end->xfer->link.counters.bytes_received += bytes;
	return TERN_OK;
}
