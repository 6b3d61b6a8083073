/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call at the server: its life, its answer, its cancellation.
 *
 *   life:  (waiting at a gate ->) RUNNING -> ANSWERED (tern_rpc_reply) -> freed when out of the window and idle
 *   idle:  no message of it is in flight (sending, acking) and no put into its sinks (puts == 0)
 *
 * A cancel is acknowledged when no put is in flight; later puts are refused, so that after the
 * acknowledgement nothing of this call can write into the sinks.
 * Threads: handlers reply from any thread; record->lock guards the flags. Tests: tests/unit/rpc.
 */
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/os.h"
#include "base/time.h"
#include "rpc/server.h"

/* ---- memory: what ended is kept for the next ones ---- */

static tern_rpc_request *take_unused(tn_rpc_server *server)
{
	tern_rpc_request *req;

	rpc_lock_take(&server->unused_lock);
	req = server->unused;
	if (req) {
		server->unused = req->retry_next;
		server->unused_count--;
	}
	rpc_lock_drop(&server->unused_lock);
	return req;
}

static bool keep_unused(tern_rpc_request *req)
{
	tn_rpc_server *server = req->server;
	bool keep;

	rpc_lock_take(&server->unused_lock);
	keep = TN_RPC_KEEP_SPARES && server->unused_count < TN_RPC_UNUSED_MAX;
	if (keep) {
		req->retry_next = server->unused;
		server->unused = req;
		server->unused_count++;
	}
	rpc_lock_drop(&server->unused_lock);
	return keep;
}

void tn_rpc_requests_end(tn_rpc_server *server)
{
	tern_rpc_request *req;

	while ((req = take_unused(server)))
		free(req);
}

/* By lines: what is as long as this is cleared by an instruction that takes as long to begin as ten calls of functions. */
static TN_ALWAYS_INLINE void clear(tern_rpc_request *req)
{
	_Static_assert(offsetof(tern_rpc_request, sinks) + 64 <= sizeof(*req), "room for the last line");
	for (size_t at = 0; at < offsetof(tern_rpc_request, sinks); at += 64)
		memset((uint8_t *)req + at, 0, 64);
}

void tn_rpc_request_time(tern_rpc_request *req)
{
	uint64_t timeout_ns = req->timeout_ns ? req->timeout_ns : UINT64_MAX;

	req->timed = true;
	req->came_ns = tn_ctx_soon(req->server->ctx, timeout_ns, &req->exact);
	req->deadline_ns = tn_deadline(req->came_ns, req->timeout_ns);
}

TN_ALWAYS_INLINE tern_rpc_request *tn_rpc_request_new(rpc_conn *conn, const tn_rpc_request_head *head,
						      const tern_rpc_sink *sinks)
{
	tern_rpc_request *req = NULL;

	if (!TN_FAULT("rpc.request.alloc") && !(req = take_unused(conn->server)))
		req = malloc(sizeof(*req));
	if (!req)
		return NULL;
	clear(req);
	req->server = conn->server;
	req->record = conn->record;
	req->origin = conn;
	rpc_refs_add(&conn->refs, conn->server->counters.own);
	req->method = head->method;
	req->seq = head->seq;
	req->exact = tn_spans_on(conn->server->spans);
	req->timeout_ns = head->timeout_ns;
	if (!conn->server->counters.own || req->exact || head->timeout_ns - 1 < TN_SOON_FROM_NS)
		tn_rpc_request_time(req);
	req->sink_count = head->sink_count;
	req->early = head->flags & TN_RPC_EARLY;
	if (head->sink_count)
		memcpy(req->sinks, sinks, head->sink_count * sizeof(*sinks));
	return req;
}

void tn_rpc_request_free(tern_rpc_request *req)
{
	tn_rpc_conn_unref(req->origin);
	tn_rpc_spare_give(&req->server->spare, req->answer_copy);
	free(req->args);
	if (!keep_unused(req))
		free(req);
}

bool tn_rpc_request_try_free(tern_rpc_request *req)
{
	if (!req->forgotten || !req->answered || req->sending || req->acking || req->puts || req->cancel_runs)
		return false;
	TN_ASSERT(req->retry_bits == 0 && !req->flow && !tn_list_linked(&req->queue_node));
	tn_rpc_request_free(req);
	return true;
}

void tn_rpc_request_settle(tern_rpc_request *req)
{
	rpc_record *record = req->record;
	bool over = tn_rpc_request_try_free(req);

	rpc_lock_drop(&record->lock);
	if (over)
		tn_rpc_record_unref(record, 1);
}

void tn_rpc_request_again(tern_rpc_request *req, rpc_conn *conn)
{
	rpc_conn *old = NULL;
	bool send;

	rpc_lock_take(&req->record->lock);
	if (req->answered && req->told_early) { /* where it comes from now nobody counted the puts */
		req->resend = true;
		if (req->sending || req->placing > 0)
			rpc_lock_drop(&req->record->lock);
		else
			tn_rpc_answer_placed(req);
		return;
	}
	send = req->answered && !req->sending;
	if (send)
		req->sending = true;
	if (!req->answered && req->origin != conn && req->puts == 0) {
		old = req->origin;
		req->origin = conn;
		rpc_refs_add(&conn->refs, conn->server->counters.own);
	}
	rpc_lock_drop(&req->record->lock);
	if (send)
		tn_rpc_send_answer(req);
	if (old)
		tn_rpc_conn_unref(old);
}

void tn_rpc_request_run(tern_rpc_request *req, const void *args, uint64_t bytes)
{
	tn_rpc_server *server = req->server;
	rpc_method *method = tn_rpc_method_enter(server, req->method);

	if (!method) {
		TN_RPC_COUNT(&req->server->counters, no_method, 1);
		tn_rpc_request_refuse(req, TERN_E_NO_METHOD, 0, "the peer serves no method %u", req->method);
		return;
	}
	method->handler(req, args, bytes, method->arg);
	tn_rpc_method_leave(server, method);
}

/* ---- cancel ---- */

/* record->lock held, free meanwhile: tell the handler. cancel_runs keeps the request. */
static void run_on_cancel(tern_rpc_request *req)
{
	void (*fn)(tern_rpc_request *, void *) = req->on_cancel;

	if (!fn || req->answered)
		return;
	req->on_cancel = NULL;
	req->cancel_runs = tn_os_thread_id();
	rpc_lock_drop(&req->record->lock);
	fn(req, req->on_cancel_arg);
	rpc_lock_take(&req->record->lock);
	req->cancel_runs = 0;
}

void tn_rpc_request_cancel(tern_rpc_request *req)
{
	bool ack;

	rpc_lock_take(&req->record->lock);
	if (!req->canceled && !req->answered) {
		TN_RPC_COUNT(&req->server->counters, cancels, 1);
		req->canceled = true;
		if (tn_rpc_gate_drop(req)) { /* it will not run: an answer that nobody gets */
			tn_rpc_reply_head head = {
				.type = TN_RPC_RESPONSE, .status = TERN_E_CANCELED, .seq = req->seq};

			tn_rpc_reply_encode(req->message, &head);
			req->answered = true;
		}
	}
	req->canceled = true;
	ack = (req->puts == 0 || TN_MUTANT(10)) && !req->acking;
	if (ack)
		req->acking = true;
	run_on_cancel(req);
	if (!ack) {
		tn_rpc_request_settle(req);
		return;
	}
	rpc_lock_drop(&req->record->lock);
	tn_rpc_send_ack(req);
}

int tern_rpc_request_canceled(const tern_rpc_request *req)
{
	bool canceled;

	rpc_lock_take(&req->record->lock);
	canceled = req->canceled;
	rpc_lock_drop(&req->record->lock);
	return canceled;
}

tern_status tern_rpc_request_on_cancel(tern_rpc_request *req,
				       void (*fn)(tern_rpc_request *request, void *arg), void *arg)
{
	tern_status status = TERN_OK;

	rpc_lock_take(&req->record->lock);
	if (req->canceled)
		status = TERN_E_CANCELED;
	req->on_cancel = req->canceled ? NULL : fn;
	req->on_cancel_arg = arg;
	rpc_lock_drop(&req->record->lock);
	return status;
}

/* ---- what handlers ask ---- */

tern_link *tern_rpc_request_link(const tern_rpc_request *req)
{
	tern_link *link;

	rpc_lock_take(&req->record->lock);
	link = tern_channel_link(req->origin->channel);
	rpc_lock_drop(&req->record->lock);
	return link;
}

tern_rpc_class tern_rpc_request_class(const tern_rpc_request *req)
{
	return (tern_rpc_class)req->record->service_class;
}

const tern_rpc_sink *tern_rpc_request_sink(const tern_rpc_request *req, unsigned i)
{
	return i < req->sink_count ? &req->sinks[i] : NULL;
}

uint64_t tern_rpc_request_time_left(const tern_rpc_request *req)
{
	uint64_t now = tn_ctx_now(req->server->ctx);

	if (!req->timed) /* of a single owner, in its handler */
		tn_rpc_request_time((tern_rpc_request *)(uintptr_t)req);
	if (req->deadline_ns == UINT64_MAX)
		return UINT64_MAX;
	return now < req->deadline_ns ? req->deadline_ns - now : 0;
}

/* ---- answers ---- */

/* record->lock held, free meanwhile: after the answer no cancel callback runs. */
static void await_on_cancel(tern_rpc_request *req)
{
	req->on_cancel = NULL;
	while (req->cancel_runs && req->cancel_runs != tn_os_thread_id()) {
		rpc_lock_drop(&req->record->lock);
		sched_yield(); /* it does not block: this is short */
		rpc_lock_take(&req->record->lock);
	}
}

/* record->lock held. The window may have forgotten the request: then its answer is not kept. */
static void keep_answer(tern_rpc_request *req, uint8_t *copy, uint64_t bytes)
{
	TN_ASSERT(!req->answered);
	req->answer_copy = copy;
	req->answer_bytes = bytes;
	if (copy && !req->forgotten)
		req->record->kept += bytes;
	req->answered = true;
	req->sending = true;
	req->held = req->puts > req->placing;
}

/* record->lock held: what the answer says. A put that failed has left rows out of a sink. */
static void answer_head(tern_rpc_request *req, tn_rpc_reply_head *head)
{
	if (head->status == TERN_OK && req->placing > 0) {
		head->value = req->placed;
		req->told_early = true;
	} else if (head->status == TERN_OK && req->failed != TERN_OK) {
		head->status = req->failed;
		head->bytes = req->answer_bytes = 0;
	}
	req->held |= head->status != TERN_OK && req->puts > 0; /* an error says that its sinks are quiet */
	tn_rpc_reply_encode(req->message, head);
}

void tn_rpc_answer_held(tern_rpc_request *req)
{
	tn_rpc_reply_head head = {.type = TN_RPC_RESPONSE, .status = TERN_OK, .seq = req->seq};

	if (req->failed != TERN_OK)
		answer_head(req, &head);
}

void tn_rpc_answer_placed(tern_rpc_request *req)
{
	tn_rpc_reply_head head = {
		.type = TN_RPC_RESPONSE, .status = TERN_OK, .seq = req->seq, .bytes = req->answer_bytes};

	TN_ASSERT(req->answered && req->told_early && !req->sending && req->placing == 0);
	req->told_early = false;
	req->resend |= req->failed != TERN_OK;
	answer_head(req, &head);
	if (!req->resend) {
		tn_rpc_request_settle(req);
		return;
	}
	req->resend = false;
	req->sending = true;
	rpc_lock_drop(&req->record->lock);
	tn_rpc_send_answer(req);
}

static void answer(tern_rpc_request *req, tern_status status, uint64_t value, const void *data,
		   uint64_t bytes)
{
	tn_rpc_reply_head head = {
		.type = TN_RPC_RESPONSE, .status = status, .seq = req->seq, .bytes = bytes, .value = value};
	tn_rpc_server *server = req->server;
	uint8_t *copy = NULL;
	bool held, orphan;

	if (server->fresh == req)
		server->fresh = NULL;
	if (TN_UNLIKELY(tn_spans_on(server->spans) && req->timed))
		tn_spans_add(server->spans, server->serve_span, tn_ctx_then(req->came_ns, req->exact),
			     tn_ctx_now(server->ctx), req->method);
	if (bytes > TN_RPC_INLINE_BYTES) {
		copy = bytes <= TERN_RPC_INLINE_MAX ? tn_rpc_spare_take(&server->spare, bytes) : NULL;
		if (!copy) {
			head.status = bytes <= TERN_RPC_INLINE_MAX ? TERN_E_NOMEM : TERN_E_TOO_LARGE;
			head.bytes = 0;
		}
		TN_RPC_COUNT(&server->counters, copies, 1);
		TN_RPC_COUNT(&server->counters, copy_bytes, bytes);
	}
	if (head.bytes)
		memcpy(copy ? copy : req->message + TN_RPC_REPLY_BYTES, data, head.bytes);
	tn_rpc_gate_leave(req);
	rpc_lock_take(&req->record->lock);
	await_on_cancel(req);
	keep_answer(req, copy, head.bytes);
	answer_head(req, &head);
	held = req->held && !TN_MUTANT(11);
	orphan = copy && !req->record->conn;
	if (TN_UNLIKELY(held || !tn_rpc_answer_now(req))) {
		rpc_lock_drop(&req->record->lock);
		if (!held)
			tn_rpc_send_answer(req);
	}
	if (orphan)
		tn_rpc_records_trim(server);
}

void tern_rpc_reply(tern_rpc_request *req, tern_status status, const void *data, uint64_t bytes)
{
	answer(req, status, 0, data, bytes);
}

void tn_rpc_request_refuse(tern_rpc_request *req, tern_status status, uint64_t value, const char *format, ...)
{
	char text[128];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	answer(req, status, value, text, n < 0 ? 0 : TN_MIN((uint64_t)n, sizeof(text) - 1));
}
