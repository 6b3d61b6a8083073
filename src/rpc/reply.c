/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from the server to a caller: answers and acknowledgements, and another try for those that found no room
 * in the channel. They go over the channel that the record has at that moment; without one they are dropped, because
 * the caller asks again.
 *
 * Threads: any; no lock is held across a send. Tests: tests/unit/rpc.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fault.h"
#include "channel/op.h"
#include "rpc/server.h"

/* The record's present channel with a reference that keeps it open, or NULL. */
static rpc_conn *record_conn(rpc_record *record)
{
	rpc_conn *conn;

	rpc_lock_take(&record->lock);
	conn = record->conn;
	if (conn)
		rpc_refs_add(&conn->refs, conn->server->counters.own);
	rpc_lock_drop(&record->lock);
	return conn;
}

/* No room in the channel: queue for another try. `sending` or `acking` stays set and keeps it alive. */
static void retry_later(tern_rpc_request *req, uint32_t bit)
{
	tn_rpc_server *server = req->server;
	bool first;

	TN_RPC_COUNT(&server->counters, retries, 1);
	rpc_lock_take(&server->lock);
	first = !server->retry;
	if (req->retry_bits == 0) {
		req->retry_next = server->retry;
		server->retry = req;
	}
	req->retry_bits |= bit;
	rpc_lock_drop(&server->lock);
	if (first) /* later ones must not put the first ones off */
		tn_ctx_timer_set(server->ctx, &server->timer, tn_ctx_now(server->ctx) + TN_RPC_RETRY_NS);
}

/* record->lock held on entry, released. */
static TN_ALWAYS_INLINE void answer_left(tern_rpc_request *req)
{
	req->sending = false;
	if (req->told_early && req->placing == 0)
		tn_rpc_answer_placed(req);
	else
		tn_rpc_request_settle(req);
}

static void on_answer_sent(tern_op *op, void *arg)
{
	tern_rpc_request *req = arg;

	(void)op; /* a failure means that the channel is gone: a retried call asks again */
	rpc_lock_take(&req->record->lock);
	answer_left(req);
}

static __attribute__((noinline)) bool long_answer_now(tern_rpc_request *req, tern_channel *channel)
{
	tern_iovec iov[2] = {{req->message, TN_RPC_REPLY_BYTES}, {req->answer_copy, req->answer_bytes}};

	return req->answer_bytes <= TN_RPC_NOW_BYTES && tn_sendv_now(channel, iov, 2);
}

TN_ALWAYS_INLINE bool tn_rpc_answer_now(tern_rpc_request *req)
{
	rpc_conn *conn = req->record->conn;
	bool left;

	if (TN_UNLIKELY(!conn))
		return false;
	if (TN_UNLIKELY(req->answer_copy && req->answer_bytes > 0))
		left = long_answer_now(req, conn->channel);
	else
		left = tn_send_now(conn->channel, req->message, TN_RPC_REPLY_BYTES + req->answer_bytes);
	if (TN_LIKELY(left))
		answer_left(req);
	return left;
}

/* Once the channel took the answer the request may go at any time. */
void tn_rpc_send_answer(tern_rpc_request *req)
{
	rpc_conn *conn = record_conn(req->record);
	tern_status status = TERN_E_STATE;
	bool inside = !req->answer_copy || req->answer_bytes == 0;
	tern_iovec iov[2] = {{req->message, TN_RPC_REPLY_BYTES + (inside ? req->answer_bytes : 0)},
			     {req->answer_copy, req->answer_bytes}};

	tern_op_init(&req->op, on_answer_sent, req);
	req->op.flags = TN_OP_INLINE; /* no lock of ours is held */
	if (conn)
		status = tern_sendv(conn->channel, iov, inside ? 1 : 2, &req->op);
	if (status == TERN_AGAIN)
		retry_later(req, TN_RPC_RETRY_ANSWER);
	else if (status != TERN_OK)
		on_answer_sent(&req->op, req);
	if (conn)
		tn_rpc_conn_unref(conn);
}

static void on_ack_sent(tern_op *op, void *arg)
{
	tern_rpc_request *req = arg;

	(void)op;
	rpc_lock_take(&req->record->lock);
	req->acking = false;
	tn_rpc_request_settle(req);
}

void tn_rpc_send_ack(tern_rpc_request *req)
{
	rpc_conn *conn = record_conn(req->record);
	tn_rpc_reply_head head = {.type = TN_RPC_CANCEL_ACK, .status = TERN_E_DEADLINE, .seq = req->seq};
	tern_status status = TERN_E_STATE;

	tn_rpc_reply_encode(req->ack, &head);
	tern_op_init(&req->ack_op, on_ack_sent, req);
	if (conn)
		status = tern_send(conn->channel, req->ack, sizeof(req->ack), &req->ack_op);
	if (status == TERN_AGAIN)
		retry_later(req, TN_RPC_RETRY_ACK);
	else if (status != TERN_OK)
		on_ack_sent(&req->ack_op, req);
	if (conn)
		tn_rpc_conn_unref(conn);
}

void tn_rpc_retry(tn_ctx_timer *timer)
{
	tn_rpc_server *server = TN_CONTAINER_OF(timer, tn_rpc_server, timer);
	tern_rpc_request *list;

	rpc_lock_take(&server->lock);
	list = server->retry;
	server->retry = NULL;
	rpc_lock_drop(&server->lock);
	while (list) {
		tern_rpc_request *req = list;
		uint32_t bits;

		rpc_lock_take(&server->lock); /* bits != 0 so far: nobody relinked it */
		list = req->retry_next;
		bits = req->retry_bits;
		req->retry_bits = 0;
		rpc_lock_drop(&server->lock);
		/* with both, the second flag keeps the request alive through the first */
		if (bits & TN_RPC_RETRY_ANSWER)
			tn_rpc_send_answer(req);
		if (bits & TN_RPC_RETRY_ACK)
			tn_rpc_send_ack(req);
	}
}

/* ---- acknowledgements that belong to no request ---- */

typedef struct stray_ack {
	tern_op op;
	rpc_conn *conn;
	uint8_t msg[TN_RPC_REPLY_BYTES];
} stray_ack;

static void on_stray_ack_sent(tern_op *op, void *arg)
{
	stray_ack *ack = arg;

	(void)op;
	tn_rpc_conn_unref(ack->conn);
	free(ack);
}

/*
 * It came behind its request, which was dropped (no memory, malformed, out of the window), so nothing writes into
 * its sinks. Without memory or room the client asks again.
 */
void tn_rpc_send_stray_ack(rpc_conn *conn, uint64_t seq)
{
	tn_rpc_reply_head head = {.type = TN_RPC_CANCEL_ACK, .status = TERN_E_DEADLINE, .seq = seq};
	stray_ack *ack = TN_FAULT("rpc.ack.alloc") ? NULL : malloc(sizeof(*ack));

	if (!ack)
		return;
	ack->conn = conn;
	rpc_refs_add(&conn->refs, conn->server->counters.own);
	tn_rpc_reply_encode(ack->msg, &head);
	tern_op_init(&ack->op, on_stray_ack_sent, ack);
	if (tern_send(conn->channel, ack->msg, sizeof(ack->msg), &ack->op) != TERN_OK)
		on_stray_ack_sent(&ack->op, ack);
}
