/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call at the server: its answer, its puts into the caller's sinks, its cancellation.
 *
 *   life:  RUNNING -> ANSWERED (tern_rpc_reply) -> freed when out of the window and idle
 *   idle:  no message of it is in flight (sending, acking) and no put into its sinks (puts == 0)
 *
 * A cancel is acknowledged when no put is in flight; later puts are refused, so that after the
 * acknowledgement nothing of this call can write into the sinks.
 * Threads: handlers reply from any thread; client->lock guards the flags. Tests: tests/unit/rpc.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "channel/op.h"
#include "rpc/server.h"

/* client->lock held: free the request if nothing needs it. The caller then drops one client reference. */
static bool request_try_free(tern_rpc_request *req)
{
	if (!req->forgotten || !req->answered || req->sending || req->acking || req->puts)
		return false;
	TN_ASSERT(req->retry_bits == 0);
	free(req->answer_copy);
	return true;
}

/* client->lock held on entry, released here. The request may be gone afterwards. */
static void request_settle(tern_rpc_request *req)
{
	rpc_client *client = req->client;
	bool over = request_try_free(req);

	pthread_mutex_unlock(&client->lock);
	if (!over)
		return;
	tn_rpc_conn_unref(req->origin);
	free(req);
	tn_rpc_client_unref(client);
}

uint32_t tn_rpc_client_advance(rpc_client *client, uint64_t low_water)
{
	uint32_t freed = 0;
	/* A peer may claim any mark: more than a window ahead there is nothing to look at. */
	uint64_t steps = low_water > client->low_water ? low_water - client->low_water : 0;

	if (steps > TN_RPC_WINDOW)
		steps = TN_RPC_WINDOW;
	for (uint64_t i = 0; i < steps; i++) {
		tern_rpc_request **slot = &client->window[(client->low_water + i) % TN_RPC_WINDOW];
		tern_rpc_request *req = *slot;

		if (!req || req->seq >= low_water)
			continue;
		*slot = NULL;
		req->forgotten = true;
		if (request_try_free(req)) {
			tn_rpc_conn_unref(req->origin);
			free(req);
			freed++;
		}
	}
	if (low_water > client->low_water)
		client->low_water = low_water;
	return freed;
}

/* ---- messages to the caller ---- */

/* The client's present channel with a reference that keeps it open, or NULL. */
static rpc_conn *client_conn(rpc_client *client)
{
	rpc_conn *conn;

	pthread_mutex_lock(&client->lock);
	conn = client->conn;
	if (conn)
		atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&client->lock);
	return conn;
}

/* No room in the channel: queue for another try. `sending` or `acking` stays set and keeps it alive. */
static void retry_later(tern_rpc_request *req, uint32_t bit)
{
	tn_rpc_server *server = req->server;
	bool first;

	atomic_fetch_add_explicit(&server->counters.retries, 1, memory_order_relaxed);
	pthread_mutex_lock(&server->lock);
	first = !server->retry;
	if (req->retry_bits == 0) {
		req->retry_next = server->retry;
		server->retry = req;
	}
	req->retry_bits |= bit;
	pthread_mutex_unlock(&server->lock);
	if (first) /* later ones must not put the first ones off */
		tn_ctx_timer_set(server->ctx, &server->timer, tn_ctx_now(server->ctx) + TN_RPC_RETRY_NS);
}

static void on_answer_sent(tern_op *op, void *arg)
{
	tern_rpc_request *req = arg;

	(void)op; /* a failure means that the channel is gone: a retried call asks again */
	pthread_mutex_lock(&req->client->lock);
	req->sending = false;
	request_settle(req);
}

/* `sending` was set by the caller. Once the channel took the answer the request may go at any time. */
static void send_answer(tern_rpc_request *req)
{
	rpc_conn *conn = client_conn(req->client);
	tern_status status = TERN_E_STATE;
	tern_iovec iov[2] = {{req->head, sizeof(req->head)},
			     {req->answer_copy ? req->answer_copy : req->answer, req->answer_bytes}};

	tern_op_init(&req->op, on_answer_sent, req);
	req->op.flags = TN_OP_INLINE; /* no lock of ours is held */
	if (conn)
		status = tern_sendv(conn->channel, iov, req->answer_bytes ? 2 : 1, &req->op);
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
	pthread_mutex_lock(&req->client->lock);
	req->acking = false;
	request_settle(req);
}

/* `acking` was set by the caller. */
static void send_ack(tern_rpc_request *req)
{
	rpc_conn *conn = client_conn(req->client);
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
	tn_rpc_server *server = (tn_rpc_server *)((char *)timer - offsetof(tn_rpc_server, timer));
	tern_rpc_request *list;

	pthread_mutex_lock(&server->lock);
	list = server->retry;
	server->retry = NULL;
	pthread_mutex_unlock(&server->lock);
	while (list) {
		tern_rpc_request *req = list;
		uint32_t bits;

		pthread_mutex_lock(&server->lock); /* bits != 0 so far: nobody relinked it */
		list = req->retry_next;
		bits = req->retry_bits;
		req->retry_bits = 0;
		pthread_mutex_unlock(&server->lock);
		if ((bits & TN_RPC_RETRY_ANSWER) && (bits & TN_RPC_RETRY_ACK)) {
			/* the second flag keeps it alive through the first */
			send_answer(req);
			send_ack(req);
		} else if (bits & TN_RPC_RETRY_ANSWER) {
			send_answer(req);
		} else if (bits & TN_RPC_RETRY_ACK) {
			send_ack(req);
		}
	}
}

void tn_rpc_request_resend(tern_rpc_request *req)
{
	bool send;

	pthread_mutex_lock(&req->client->lock);
	send = req->answered && !req->sending;
	if (send)
		req->sending = true;
	pthread_mutex_unlock(&req->client->lock);
	if (send)
		send_answer(req);
}

void tn_rpc_request_cancel(tern_rpc_request *req)
{
	bool ack;

	pthread_mutex_lock(&req->client->lock);
	req->canceled = true;
	ack = req->puts == 0 && !req->acking;
	if (ack)
		req->acking = true;
	pthread_mutex_unlock(&req->client->lock);
	if (ack)
		send_ack(req);
}

/* ---- what handlers call ---- */

tern_link *tern_rpc_request_link(const tern_rpc_request *req)
{
	return tern_channel_link(req->origin->channel);
}

const tern_rpc_sink *tern_rpc_request_sink(const tern_rpc_request *req, unsigned i)
{
	return i < req->sink_count ? &req->sinks[i] : NULL;
}

uint64_t tern_rpc_request_time_left(const tern_rpc_request *req)
{
	uint64_t now = tn_ctx_now(req->server->ctx);

	if (req->deadline_ns == UINT64_MAX)
		return UINT64_MAX;
	return now < req->deadline_ns ? req->deadline_ns - now : 0;
}

/*
 * client->lock held on entry, released here: a put ended. If it was the last one, what waited for it goes
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
		request_settle(req);
		return;
	}
	pthread_mutex_unlock(&req->client->lock);
	if (answer)
		send_answer(req);
	if (ack)
		send_ack(req);
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
	pthread_mutex_lock(&req->client->lock);
	put_ended(req);
	free(put);
	tn_op_complete(ctx, user, status, length, detail);
}

tern_status tern_rpc_request_put(tern_rpc_request *req, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tern_op *op)
{
	tern_status status = tn_op_begin(op);
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
	pthread_mutex_lock(&req->client->lock);
	if (req->canceled || req->answered)
		status = req->canceled ? TERN_E_DEADLINE : TERN_E_STATE;
	else
		req->puts++;
	pthread_mutex_unlock(&req->client->lock);
	if (status == TERN_OK) {
		status = tern_put(req->origin->channel, src, bytes, &req->sinks[sink].key, offset, &put->op);
		if (status == TERN_OK)
			return TERN_OK;
		pthread_mutex_lock(&req->client->lock);
		put_ended(req); /* a cancel or an answer may have come in between and waits for us */
	}
	free(put);
	tn_op_abort(op);
	return status;
}

void tern_rpc_reply(tern_rpc_request *req, tern_status status, const void *data, uint64_t bytes)
{
	tn_rpc_reply_head head = {.type = TN_RPC_RESPONSE, .status = status, .seq = req->seq, .bytes = bytes};
	uint8_t *copy = NULL;
	bool held;

	if (bytes > TN_RPC_INLINE_BYTES) {
		copy = bytes <= TERN_RPC_INLINE_MAX ? malloc(bytes) : NULL;
		if (!copy) {
			head.status = bytes <= TERN_RPC_INLINE_MAX ? TERN_E_NOMEM : TERN_E_TOO_LARGE;
			head.bytes = 0;
		}
		atomic_fetch_add_explicit(&req->server->counters.copies, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&req->server->counters.copy_bytes, bytes, memory_order_relaxed);
	}
	if (head.bytes)
		memcpy(copy ? copy : req->answer, data, head.bytes);
	tn_rpc_reply_encode(req->head, &head);
	pthread_mutex_lock(&req->client->lock);
	TN_ASSERT(!req->answered);
	req->answer_copy = copy;
	req->answer_bytes = head.bytes;
	req->answered = true;
	req->sending = true;
	held = req->held = req->puts > 0;
	pthread_mutex_unlock(&req->client->lock);
	if (!held)
		send_answer(req);
}
