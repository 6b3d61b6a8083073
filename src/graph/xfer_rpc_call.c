/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of an edge at either side: handlers of the ends that are called, calls of those that call. What the
 * messages of dynamic edges hold is xfer_rpc_shaped.c's.
 * Threads: handlers run from dispatch and take xfer->lock; the rest is the executor's.
 * Tests: tests/unit/graph/xfer_link_test.c.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/wirebuf.h"
#include "graph/xfer_rpc.h"

void tn_xfer_rpc_put_edge(uint8_t out[EDGE_BYTES], uint64_t number)
{
	tn_writer w;

	tn_writer_init(&w, out, EDGE_BYTES);
	tn_put_u64(&w, number);
}

static rpc_end *find_end(rpc_xfer *xfer, const void *args, uint64_t bytes, bool sends)
{
	rpc_end *end = xfer->ends;
	tn_reader r;
	uint64_t number;

	tn_reader_init(&r, args, bytes);
	number = tn_get_u64(&r);
	while (end && (end->number != number || end->sends != sends || end->calls || end->n_pieces))
		end = end->next;
	return r.bad ? NULL : end;
}

static void refuse(tern_rpc_request *request)
{
	static const char text[] = "no such edge, or a call for it is waiting already";

	tern_rpc_reply(request, TERN_E_NOT_FOUND, text, sizeof(text) - 1);
}

void tn_xfer_rpc_copied(rpc_xfer *xfer, uint64_t bytes)
{
	__atomic_fetch_add(&xfer->link.counters.copies, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&xfer->link.counters.copy_bytes, bytes, __ATOMIC_RELAXED);
}

/* ---- called ends: handlers ---- */

static bool take_static(rpc_end *end, const uint8_t *message, uint64_t bytes)
{
	if (bytes != EDGE_BYTES + end->desc->bytes)
		return false;
	memcpy(end->slots + end->arrived % RPC_SLOTS * end->stride, message + EDGE_BYTES, end->desc->bytes);
	tn_xfer_rpc_copied(end->xfer, end->desc->bytes);
	return true;
}

void tn_xfer_rpc_on_push(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	rpc_xfer *xfer = arg;
	rpc_end *end;
	bool answer;

	pthread_mutex_lock(&xfer->lock);
	end = find_end(xfer, args, bytes, false);
	if (!end || end->request || tern_rpc_request_link(request) != end->link ||
	    end->arrived - end->taken >= RPC_SLOTS ||
	    !(end->desc->dynamic ? tn_xfer_rpc_take_shaped : take_static)(end, args, bytes)) {
		pthread_mutex_unlock(&xfer->lock);
		refuse(request);
		return;
	}
	end->arrived++;
	answer = end->arrived - end->taken < RPC_SLOTS; /* else when there is room for the next one */
	if (!answer)
		end->request = request;
	pthread_mutex_unlock(&xfer->lock);
	if (answer)
		tern_rpc_reply(request, TERN_OK, NULL, 0);
}

static uint64_t room_of(const void *args, uint64_t bytes)
{
	tn_reader r;

	tn_reader_init(&r, args, bytes);
	tn_get_u64(&r);
	return tn_get_u64(&r); /* 0 if there is none */
}

void tn_xfer_rpc_on_pull(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	uint64_t room = room_of(args, bytes), kept = 0;
	rpc_xfer *xfer = arg;
	bool taken = false;
	rpc_end *end;

	pthread_mutex_lock(&xfer->lock);
	end = find_end(xfer, args, bytes, true);
	if (end && !end->request && tern_rpc_request_link(request) == end->link) {
		kept = end->kept;
		if (!kept) {
			end->request = request;
			end->request_room = room;
		}
		taken = !kept || kept <= room;
	}
	pthread_mutex_unlock(&xfer->lock);
	if (!taken) {
		refuse(request);
	} else if (kept) {
		tern_rpc_reply(request, TERN_OK, end->shaped[0].data, kept);
		tn_xfer_rpc_copied(xfer, kept - HEAD_BYTES);
		pthread_mutex_lock(&xfer->lock);
		end->kept = 0;
		pthread_mutex_unlock(&xfer->lock);
	}
}

/* ---- calling ends ---- */

tern_status tn_xfer_rpc_make_call(rpc_end *end, uint32_t method, uint64_t bytes)
{
	tern_rpc_call_params params = {.method = method, .args = end->message, .args_bytes = bytes};
	tern_status status;

	if (method == METHOD_PULL && end->desc->dynamic) {
		params.answer = end->shaped[0].data;
		params.answer_capacity = end->shaped[0].bytes;
	} else if (method == METHOD_PULL) {
		params.answer = end->slots + end->pulled % end->n_slots * end->stride;
		params.answer_capacity = end->desc->bytes;
	}
	tern_op_init(&end->op, NULL, NULL);
	end->op.timeout_ns = 3600ull * 1000000000ull; /* peers' deaths end it; a slow step must not */
	status = tern_rpc_call(end->rpc, &params, &end->op);
	if (status != TERN_OK)
		return status;
	end->in_call = true;
	end->pulled += method == METHOD_PULL;
	return TERN_OK;
}

tern_status tn_xfer_rpc_pull(rpc_end *end)
{
	tn_writer w;

	if (!end->desc->dynamic)
		return tn_xfer_rpc_make_call(end, METHOD_PULL, EDGE_BYTES);
	tn_writer_init(&w, end->message + EDGE_BYTES, ROOM_BYTES);
	tn_put_u64(&w, end->shaped[0].bytes);
	return tn_xfer_rpc_make_call(end, METHOD_PULL, EDGE_BYTES + ROOM_BYTES);
}

/* TERN_OK: no call is in flight and the last one succeeded. */
tern_status tn_xfer_rpc_test_call(rpc_end *end)
{
	tern_status status;

	if (!end->in_call)
		return TERN_OK;
	status = tn_xfer_link_test(end->desc, end->link, &end->op);
	if (status != TERN_AGAIN)
		end->in_call = false;
	return status;
}

/* ---- what came ---- */

static bool next_pushed(rpc_end *end, const void **data)
{
	bool there;

	pthread_mutex_lock(&end->xfer->lock);
	there = end->arrived != end->taken;
	if (there)
		*data = end->desc->dynamic ? end->shaped[end->taken % RPC_SLOTS].data + HEAD_BYTES
					   : end->slots + end->taken % RPC_SLOTS * end->stride;
	pthread_mutex_unlock(&end->xfer->lock);
	return there;
}

tern_status tn_xfer_rpc_poll_push(rpc_end *end, const void **data)
{
	tern_status status;

	if (next_pushed(end, data))
		return TERN_OK;
	status = tn_xfer_link_check(end->desc, end->link);
	/* The last tensor may have come just before the end. */
	return status != TERN_AGAIN && next_pushed(end, data) ? TERN_OK : status;
}

/* TERN_OK: the tensor that was asked for has come. */
tern_status tn_xfer_rpc_pulled(rpc_end *end)
{
	tern_status status = end->held ? TERN_AGAIN : end->in_call ? tn_xfer_rpc_test_call(end) : TERN_AGAIN;

	if (status == TERN_AGAIN && !end->in_call && !end->held) {
		/* the channel had no room for the request at the last release */
		status = tn_xfer_rpc_pull(end);
		return status == TERN_OK || status == TERN_AGAIN
			       ? TERN_AGAIN
			       : tn_xfer_link_fail(end->desc, end->link, status);
	}
	return status;
}
