/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in at a server: channels, requests, CANCEL and DONE.
 *
 *   request -> its record -> known: answered from there
 *                         -> new: unknown method, or lost track of: refused at once
 *                                 not served yet (rpc.serve_grace): waits in the nursery, then looked at again
 *                                 else the gate: runs, waits or is refused
 *
 * Threads: the context's driver, one message at a time. Tests: tests/unit/rpc.
 */
#include "rpc/incoming.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "rpc/server.h"

/* The gate did not take it. */
static void refuse(tern_rpc_request *req, tern_status status, const rpc_gate *gate)
{
	if (status == TERN_E_OVERLOAD) {
		TN_RPC_COUNT(&req->server->counters, overloads, 1);
		tn_rpc_request_refuse(req, status, gate->limits.retry_after_ns,
				      "too many calls wait at the peer: try again later (its options "
				      "rpc.running_*, rpc.queue_*)");
	} else {
		tn_rpc_request_refuse(req, status, 0, "the peer has no memory to let the call wait");
	}
}

/* A server that has just begun (again) is asked for methods that it is about to serve. */
static bool may_come(tn_rpc_server *server, uint32_t method)
{
	return tn_ctx_now(server->ctx) < server->grown_ns && !tn_rpc_method_known(server, method);
}

static void wait_for_method(tn_rpc_server *server, uint32_t method)
{
	TN_RPC_COUNT(&server->counters, early, 1);
	tn_ctx_timer_set(server->ctx, &server->nursery_timer, server->grown_ns);
	if (tn_rpc_method_known(server, method)) /* it came meanwhile */
		tn_rpc_gate_kick(server->nursery);
}

static TN_ALWAYS_INLINE void handle(rpc_method *method, tern_rpc_request *req, const void *args,
				    uint64_t bytes)
{
	tn_rpc_server *server = req->server;

	if (TN_LIKELY(!req->timed))
		server->fresh = req;
	method->handler(req, args, bytes, method->arg);
	if (TN_UNLIKELY(server->fresh != NULL)) { /* not answered yet */
		tn_rpc_request_time(server->fresh);
		server->fresh = NULL;
	}
}

/* A request that is new here and in its record's window. */
static TN_ALWAYS_INLINE void admit(tern_rpc_request *req, const void *args, uint64_t bytes)
{
	tn_rpc_server *server = req->server;
	rpc_method *method = tn_rpc_method_enter(server, req->method);
	rpc_gate *gate = method ? method->gate : NULL;
	uint32_t number = req->method;
	tern_status status;

	if (!method && may_come(server, number)) {
		status = tn_rpc_gate_enter(server->nursery, req, args, bytes);
		if (status == TERN_AGAIN)
			wait_for_method(server, number);
		else
			refuse(req, status, server->nursery);
		return;
	}
	if (!method) {
		TN_RPC_COUNT(&server->counters, no_method, 1);
		tn_rpc_request_refuse(req, TERN_E_NO_METHOD, 0, "the peer serves no method %u", number);
		return;
	}
	status = tn_rpc_gate_pass(gate, req, args, bytes);
	if (TN_LIKELY(status == TERN_OK))
		handle(method, req, args, bytes);
	tn_rpc_method_leave(server, method);
	if (status != TERN_OK && status != TERN_AGAIN)
		refuse(req, status, gate);
}

/* ---- the nursery ---- */

/* A method was served, or the time of grace is over: all of them are looked at again. */
static void leave_nursery(tn_work *work)
{
	rpc_gate *nursery = (rpc_gate *)work;
	tn_list calls, *node;

	tn_list_init(&calls);
	if (!tn_rpc_gate_drain(nursery, &calls))
		return;
	while ((node = tn_list_pop_front(&calls))) {
		tern_rpc_request *req = TN_LIST_ENTRY(node, tern_rpc_request, queue_node);
		void *args = req->args; /* the request may be gone when its handler returns */

		req->args = NULL;
		if (req->deadline_ns <= tn_ctx_now(req->server->ctx)) {
			TN_RPC_COUNT(&req->server->counters, expired, 1);
			tn_rpc_request_refuse(req, TERN_E_DEADLINE, 0,
					      "the deadline passed before the server served the method");
		} else {
			admit(req, args, req->args_bytes);
		}
		free(args);
	}
}

static void on_grown(tn_ctx_timer *timer)
{
	tn_rpc_gate_kick(TN_CONTAINER_OF(timer, tn_rpc_server, nursery_timer)->nursery);
}

void tn_rpc_nursery_init(tn_rpc_server *server)
{
	server->nursery->closed = true;
	server->nursery->work.run = leave_nursery;
	server->nursery_timer.run = on_grown;
}

/* Its record has it already, or it is outside of the window. */
static void known(rpc_conn *conn, tern_rpc_request *req, tern_rpc_request *old)
{
	TN_RPC_COUNT(&conn->server->counters, duplicates, 1);
	tn_rpc_request_free(req);
	if (old)
		tn_rpc_request_again(old, conn);
}

static TN_ALWAYS_INLINE void advance(rpc_record *record, uint64_t low_water)
{
	uint32_t freed;

	rpc_lock_take(&record->lock);
	freed = tn_rpc_record_advance(record, low_water);
	rpc_lock_drop(&record->lock);
	tn_rpc_record_unref(record, freed);
}

static TN_ALWAYS_INLINE void on_request(rpc_conn *conn, const void *msg, uint64_t bytes)
{
	tn_rpc_server *server = conn->server;
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head head;
	tern_rpc_request *req, *old;
	rpc_record *record;
	tern_status status;
	const void *args;

	if (!tn_rpc_request_decode(msg, bytes, &head, sinks, &args))
		return; /* malformed: the caller's deadline ends its call */
	if (!conn->record || conn->record->service_class != head.service_class ||
	    memcmp(&conn->record->id, &head.client, sizeof(head.client)) != 0) {
		tn_rpc_record_unbind(conn);
		tn_rpc_record_bind(conn, &head);
	}
	record = conn->record;
	req = record ? tn_rpc_request_new(conn, &head, sinks) : NULL;
	if (!req)
		return; /* no memory: as if lost */
	TN_RPC_COUNT(&server->counters, requests, 1);
	status = tn_rpc_record_add(record, &head, req, &old);
	if (status == TERN_OK) {
		admit(req, args, head.args_bytes);
	} else if (status == TERN_E_INDETERMINATE) {
		TN_RPC_COUNT(&server->counters, unknown, 1);
		tn_rpc_request_refuse(req, status, 0,
				      "the peer restarted, or forgot the call: it may have been executed");
	} else {
		known(conn, req, old);
	}
	/* It lives, and this thread alone moves its window. */
	if (conn->record == record && head.low_water > record->low_water)
		advance(record, head.low_water);
}

static tern_rpc_request *find_request(rpc_record *record, uint64_t seq)
{
	tern_rpc_request *req;

	rpc_lock_take(&record->lock);
	req = record->window[seq % TN_RPC_WINDOW];
	if (req && req->seq != seq)
		req = NULL;
	rpc_lock_drop(&record->lock);
	return req;
}

static void on_control(rpc_conn *conn, const tn_rpc_reply_head *head)
{
	tern_rpc_request *req;

	if (head->type == TN_RPC_CANCEL) {
		/* Only this thread moves the window of a record with a channel: req stays. */
		req = conn->record ? find_request(conn->record, head->seq) : NULL;
		if (req)
			tn_rpc_request_cancel(req);
		else
			tn_rpc_send_stray_ack(conn, head->seq);
	} else if (head->type == TN_RPC_DONE && conn->record) {
		advance(conn->record, head->value);
	}
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	rpc_conn *conn = arg;
	tn_rpc_reply_head head;
	const void *data;

	(void)channel;
	if (bytes > 0 && *(const uint8_t *)msg == TN_RPC_REQUEST) /* its parser looks at the rest of it */
		on_request(conn, msg, bytes);
	else if (tn_rpc_reply_decode(msg, bytes, &head, &data))
		on_control(conn, &head);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	rpc_conn *conn = arg;

	(void)channel;
	(void)status;
	tn_rpc_record_unbind(conn);
	tn_rpc_conn_unref(conn);
}

tern_status tn_rpc_on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	rpc_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return tn_fail(TERN_E_NOMEM, "no memory for an RPC connection");
	conn->refs = 1;
	conn->server = arg;
	conn->channel = channel;
	*params = (tern_channel_params){.on_message = on_message,
					.on_closed = on_closed,
					.arg = conn,
					.message_bytes_max = TERN_RPC_INLINE_MAX + TN_RPC_REQUEST_BYTES_MAX};
	return TERN_OK;
}
