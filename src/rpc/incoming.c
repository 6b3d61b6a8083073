/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in at a server: channels, requests, CANCEL and DONE.
 *
 *   request -> its record -> known: answered from there
 *                         -> new: unknown method, or lost track of: refused at once
 *                                 else the gate: runs, waits or is refused
 *
 * Threads: the context's driver, one message at a time. Tests: tests/unit/rpc.
 */
#include "rpc/incoming.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "rpc/server.h"

/* A request that is new here and in its record's window. */
static void admit(tern_rpc_request *req, const void *args, uint64_t bytes)
{
	tn_rpc_server *server = req->server;
	rpc_method *method = tn_rpc_method_enter(server, req->method);
	rpc_gate *gate = method ? method->gate : NULL;
	uint32_t number = req->method;
	tern_status status;

	if (!method) {
		TN_RPC_COUNT(&server->counters, no_method, 1);
		tn_rpc_request_refuse(req, TERN_E_NO_METHOD, 0, "the peer serves no method %u", number);
		return;
	}
	status = tn_rpc_gate_enter(gate, req, args, bytes);
	if (status == TERN_OK)
		method->handler(req, args, bytes, method->arg);
	tn_rpc_method_leave(method);
	if (status == TERN_E_OVERLOAD) {
		TN_RPC_COUNT(&server->counters, overloads, 1);
		tn_rpc_request_refuse(req, status, gate->limits.retry_after_ns,
				      "too many calls wait at the peer: try again later (its options "
				      "rpc.running_*, rpc.queue_*)");
	} else if (status == TERN_E_NOMEM) {
		tn_rpc_request_refuse(req, status, 0, "the peer has no memory to let the call wait");
	}
}

/* Its record has it already, or it is outside of the window. */
static void known(rpc_conn *conn, tern_rpc_request *req, tern_rpc_request *old)
{
	TN_RPC_COUNT(&conn->server->counters, duplicates, 1);
	tn_rpc_request_free(req);
	if (old)
		tn_rpc_request_again(old, conn);
}

static void on_request(rpc_conn *conn, const void *msg, uint64_t bytes)
{
	tn_rpc_server *server = conn->server;
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head head;
	tern_rpc_request *req, *old;
	tern_status status;
	const void *args;

	if (!tn_rpc_request_decode(msg, bytes, &head, sinks, &args))
		return; /* malformed: the caller's deadline ends its call */
	if (!conn->record || conn->record->service_class != head.service_class ||
	    memcmp(&conn->record->id, &head.client, sizeof(head.client)) != 0) {
		tn_rpc_record_unbind(conn);
		tn_rpc_record_bind(conn, &head);
	}
	req = conn->record ? tn_rpc_request_new(conn, &head, sinks) : NULL;
	if (!req)
		return; /* no memory: as if lost */
	TN_RPC_COUNT(&server->counters, requests, 1);
	status = tn_rpc_record_add(conn->record, &head, req, &old);
	if (status == TERN_OK) {
		admit(req, args, head.args_bytes);
	} else if (status == TERN_E_INDETERMINATE) {
		TN_RPC_COUNT(&server->counters, unknown, 1);
		tn_rpc_request_refuse(req, status, 0,
				      "the peer restarted, or forgot the call: it may have been executed");
	} else {
		known(conn, req, old);
	}
}

static tern_rpc_request *find_request(rpc_record *record, uint64_t seq)
{
	tern_rpc_request *req;

	pthread_mutex_lock(&record->lock);
	req = record->window[seq % TN_RPC_WINDOW];
	if (req && req->seq != seq)
		req = NULL;
	pthread_mutex_unlock(&record->lock);
	return req;
}

static void on_control(rpc_conn *conn, const tn_rpc_reply_head *head)
{
	tern_rpc_request *req;
	uint32_t freed;

	if (head->type == TN_RPC_CANCEL) {
		/* Only this thread moves the window of a record with a channel: req stays. */
		req = conn->record ? find_request(conn->record, head->seq) : NULL;
		if (req)
			tn_rpc_request_cancel(req);
		else
			tn_rpc_send_stray_ack(conn, head->seq);
	} else if (head->type == TN_RPC_DONE && conn->record) {
		pthread_mutex_lock(&conn->record->lock);
		freed = tn_rpc_record_advance(conn->record, head->value);
		pthread_mutex_unlock(&conn->record->lock);
		tn_rpc_record_unref(conn->record, freed);
	}
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	rpc_conn *conn = arg;
	tn_rpc_reply_head head;
	const void *data;

	(void)channel;
	if (tn_rpc_type_of(msg, bytes) == TN_RPC_REQUEST)
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
