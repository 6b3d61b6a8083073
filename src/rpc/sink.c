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
	if (answer)
		req->held = false; /* sending was set with it and keeps the request */
	if (ack)
		req->acking = true;
	if (!answer && !ack) {
		tn_rpc_request_settle(req);
		return;
	}
	pthread_mutex_unlock(&req->record->lock);
	if (answer)
		tn_rpc_send_answer(req);
	if (ack)
		tn_rpc_send_ack(req);
}

/* A put of the request ended: the wrapper counts it, then the handler's op completes. */
typedef struct sink_put {
	tern_op op; /* first */
	tern_rpc_request *req;
	tern_op *user;
} sink_put;

static void on_sink_put(tern_op *op, void *arg)
{
	sink_put *put = arg;
	tern_rpc_request *req = put->req;
	tern_op *user = put->user;
	tern_status status = op->status;
	uint64_t length = op->length;
	tern_ctx *ctx = req->server->ctx;
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", status == TERN_OK ? "" : tern_detail());
	pthread_mutex_lock(&req->record->lock);
	put_ended(req);
	free(put);
	tn_op_complete(ctx, user, status, length, detail);
}

/* Count a put. *conn: the channel to go over; the count keeps it. */
static tern_status put_begin(tern_rpc_request *req, rpc_conn **conn)
{
	tern_status status = TERN_OK;

	pthread_mutex_lock(&req->record->lock);
	if (req->canceled || req->answered)
		status = req->canceled ? TERN_E_DEADLINE : TERN_E_STATE;
	else
		req->puts++;
	*conn = req->origin;
	pthread_mutex_unlock(&req->record->lock);
	return status;
}

tern_status tern_rpc_request_put(tern_rpc_request *req, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tern_op *op)
{
	tern_status status = tn_op_begin(op);
	rpc_conn *conn;
	sink_put *put;

	if (status != TERN_OK)
		return status;
	put = malloc(sizeof(*put)); /* set-up cost of a sink transfer, beside its bytes */
	if (!put || sink >= req->sink_count) {
		free(put);
		tn_op_abort(op);
		return sink < req->sink_count ? tn_fail(TERN_E_NOMEM, "no memory for a put into a sink")
					      : tn_fail(TERN_E_INVALID, "the call has %u sinks, not %u",
							req->sink_count, sink + 1);
	}
	put->req = req;
	put->user = op;
	tern_op_init(&put->op, on_sink_put, put);
	status = put_begin(req, &conn);
	if (status == TERN_OK) {
		status = tern_put(conn->channel, src, bytes, &req->sinks[sink].key, offset, &put->op);
		if (status == TERN_OK)
			return TERN_OK;
		pthread_mutex_lock(&req->record->lock);
		put_ended(req); /* a cancel or an answer may have come in between and waits for us */
	}
	free(put);
	tn_op_abort(op);
	return status;
}

tern_status tn_rpc_request_map(tern_rpc_request *req, unsigned sink, uint64_t offset, uint64_t bytes,
			       bool read, tn_rpc_map *map)
{
	tern_status status;
	rpc_conn *conn;

	if (sink >= req->sink_count)
		return tn_fail(TERN_E_INVALID, "the call has %u sinks, not %u", req->sink_count, sink + 1);
	status = put_begin(req, &conn);
	if (status != TERN_OK)
		return status;
	status = tn_direct_begin(conn->channel, &req->sinks[sink].key, offset, bytes, read, &map->direct);
	if (status == TERN_OK) {
		map->at = map->direct.at;
		map->req = req;
		return TERN_OK;
	}
	pthread_mutex_lock(&req->record->lock);
	put_ended(req); /* a cancel may have come in between and waits for us */
	return status;
}

void tn_rpc_request_unmap(tn_rpc_map *map)
{
	tn_direct_end(&map->direct);
	pthread_mutex_lock(&map->req->record->lock);
	put_ended(map->req);
}
