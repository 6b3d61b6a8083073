/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a handler does with its caller's sinks: puts, and direct accesses (direct.h). The request counts them: an answer and the acknowledgement of a
 * cancel wait until none is in flight, and none begins afterwards.
 *
 * Threads: handlers put from any thread; record->lock guards the count. Tests: tests/unit/rpc.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "channel/op.h"
#include "rpc/direct.h"
#include "rpc/server.h"

/*
 * record->lock held on entry, released here: a put ended. If it was the last one, what waited for it goes
 * out: the answer, or the acknowledgement of a cancel. The request may be gone afterwards.
 */
static void put_ended(tern_rpc_request *req)
{
	bool answer, ack;

	TN_ASSERT(req->puts > 0);
	req->puts--;
	answer = req->held && req->puts == 0;
	ack = req->canceled && req->puts == 0 && !req->acking;
	if (answer) {
		req->held = false; /* sending was set with it and keeps the request */
		tn_rpc_answer_held(req);
	}
	if (ack)
		req->acking = true;
	if (!answer && !ack && req->told_early && req->placing == 0 && !req->sending) {
		tn_rpc_answer_placed(req);
		return;
	}
	if (!answer && !ack) {
		tn_rpc_request_settle(req);
		return;
	}
	rpc_lock_drop(&req->record->lock);
	if (answer)
		tn_rpc_send_answer(req);
	if (ack)
		tn_rpc_send_ack(req);
}

/* record->lock held, released here: as put_ended, and the put's memory is free. */
static void put_over(tern_rpc_request *req, rpc_sink_put *put)
{
	bool own = put == &req->put; /* it goes with the request */

	if (own)
		req->put_busy = false;
	put_ended(req);
	if (!own)
		free(put);
}

/* The put is counted, and keeps the request. */
static rpc_sink_put *put_new(tern_rpc_request *req)
{
	bool own;

	rpc_lock_take(&req->record->lock);
	own = !req->put_busy;
	req->put_busy = true;
	rpc_lock_drop(&req->record->lock);
	return own ? &req->put : malloc(sizeof(rpc_sink_put)); /* the first one at a time needs no memory */
}

/* record->lock held */
static void placed_over(tern_rpc_request *req, tern_status status)
{
	TN_ASSERT(!req->early || req->placing > 0);
	req->placing -= req->early;
	if (req->failed == TERN_OK)
		req->failed = status;
}

static void on_sink_put(tern_op *op, void *arg)
{
	rpc_sink_put *put = arg;
	tern_rpc_request *req = put->req;
	tern_op *user = put->user;
	tern_status status = op->status;
	uint64_t length = op->length;
	tern_ctx *ctx = req->server->ctx;
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", status == TERN_OK ? "" : tern_detail());
	rpc_lock_take(&req->record->lock);
	if (put->placed)
		placed_over(req, status);
	put_over(req, put);
	tn_op_complete(ctx, user, status, length, detail);
}

/* Count a put. *conn: the channel to go over; the count keeps it. placed: one that the answer may overtake. */
static tern_status put_begin(tern_rpc_request *req, bool placed, rpc_conn **conn)
{
	tern_status status = TERN_OK;

	rpc_lock_take(&req->record->lock);
	if (req->canceled || req->answered)
		status = req->canceled ? TERN_E_DEADLINE : TERN_E_STATE;
	else if (placed && req->placed == TN_RPC_PLACED_MAX)
		status = TERN_E_LIMIT;
	else
		req->puts++;
	if (placed && status == TERN_OK) {
		req->placed++;
		req->placing += req->early;
	}
	*conn = req->origin;
	rpc_lock_drop(&req->record->lock);
	return status;
}

static tern_status put_counted(tern_rpc_request *req, tn_link_placed placed, rpc_conn *conn, unsigned sink,
			       uint64_t offset, const void *src, uint64_t bytes, tern_op *op)
{
	const tern_key *key = &req->sinks[sink].key;
	rpc_sink_put *put = put_new(req);
	tern_status status = TERN_E_NOMEM;

	if (put) {
		put->req = req;
		put->user = op;
		put->placed = placed != TN_PLACED_NO;
		tern_op_init(&put->op, on_sink_put, put);
		put->op.flags = (uint32_t)placed << TN_OP_PLACED_SHIFT; /* the answer follows */
		status = placed && req->early ? tern_put_notify(conn->channel, src, bytes, key, offset,
								req->seq & TN_RPC_PLACED_MASK, &put->op)
					      : tern_put(conn->channel, src, bytes, key, offset, &put->op);
	} else {
		tn_fail(status, "no memory for a put into a sink");
	}
	if (status == TERN_OK)
		return TERN_OK;
	rpc_lock_take(&req->record->lock);
	if (placed) { /* it never was */
		req->placed--;
		req->placing -= req->early;
	}
	put_over(req, put); /* a cancel or an answer may have come in between and waits for us */
	return status;
}

static tern_status put(tern_rpc_request *req, tn_link_placed placed, unsigned sink, uint64_t offset,
		       const void *src, uint64_t bytes, tern_op *op)
{
	tern_status status = tn_op_begin(op);
	rpc_conn *conn = NULL;

	if (status != TERN_OK)
		return status;
	if (sink >= req->sink_count)
		status = tn_fail(TERN_E_INVALID, "the call has %u sinks, not %u", req->sink_count, sink + 1);
	else
		status = put_begin(req, placed, &conn);
	if (status == TERN_OK)
		status = put_counted(req, placed, conn, sink, offset, src, bytes, op);
	if (status != TERN_OK)
		tn_op_abort(op);
	return status;
}

tern_status tern_rpc_request_put(tern_rpc_request *req, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tern_op *op)
{
	return put(req, TN_PLACED_NO, sink, offset, src, bytes, op);
}

tern_status tn_rpc_request_place(tern_rpc_request *req, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tn_link_placed how, tern_op *op)
{
	TN_ASSERT(how != TN_PLACED_NO);
	return put(req, how, sink, offset, src, bytes, op);
}

tern_status tn_rpc_request_map(tern_rpc_request *req, unsigned sink, uint64_t offset, uint64_t bytes,
			       bool read, tn_rpc_map *map)
{
	tern_status status;
	rpc_conn *conn = NULL;

	if (sink >= req->sink_count)
		return tn_fail(TERN_E_INVALID, "the call has %u sinks, not %u", req->sink_count, sink + 1);
	status = put_begin(req, false, &conn);
	if (status != TERN_OK)
		return status;
	status = tn_direct_begin(conn->channel, &req->sinks[sink].key, offset, bytes, read, &map->direct);
	if (status == TERN_OK) {
		map->at = map->direct.at;
		map->req = req;
		return TERN_OK;
	}
	rpc_lock_take(&req->record->lock);
	put_ended(req); /* a cancel may have come in between and waits for us */
	return status;
}

void tn_rpc_request_unmap(tn_rpc_map *map)
{
	tn_direct_end(&map->direct);
	rpc_lock_take(&map->req->record->lock);
	put_ended(map->req);
}
