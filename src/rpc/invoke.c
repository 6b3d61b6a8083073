/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making calls: checked, copied into a slot, posted or left waiting for a link; cancelled; waited for.
 * Threads: see client.h. Tests: tests/unit/rpc/rpc_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/time.h"
#include "channel/dispatch.h"
#include "rpc/client.h"
#include "rpc/direct.h"

/* more: bytes of arguments beside those. */
static TN_ALWAYS_INLINE tern_status check_params(const tern_rpc_call_params *params, uint64_t more)
{
	if (params->method == 0 || params->sink_count > TERN_RPC_SINKS_MAX ||
	    (params->sink_count && !params->sinks) || (params->args_bytes && !params->args))
		return tn_fail(TERN_E_INVALID,
			       "rpc call: method must not be 0, at most %d sinks, args not NULL",
			       TERN_RPC_SINKS_MAX);
	if ((unsigned)params->service_class >= TN_RPC_CLASSES || (params->flags & ~TERN_RPC_IDEMPOTENT))
		return tn_fail(TERN_E_INVALID, "rpc call: no such class, or an unknown flag");
	if (params->hedge_ns &&
	    (!(params->flags & TERN_RPC_IDEMPOTENT) || (params->sink_count && !params->hedge_sinks)))
		return tn_fail(TERN_E_INVALID, "rpc call: only an idempotent call is hedged, and with sinks "
					       "the second copy has its own");
	if (params->args_bytes > TERN_RPC_INLINE_MAX || more > TERN_RPC_INLINE_MAX - params->args_bytes)
		return tn_fail(
			TERN_E_TOO_LARGE,
			"arguments of %llu bytes: at most %u go inline, put bulk through sinks or tern_put",
			(unsigned long long)(params->args_bytes + more), TERN_RPC_INLINE_MAX);
	return TERN_OK;
}

static TN_ALWAYS_INLINE tern_status copy_args(tern_rpc *rpc, const tern_rpc_call_params *params,
					      uint8_t **copy)
{
	*copy = NULL;
	if (params->args_bytes <= TN_RPC_INLINE_BYTES)
		return TERN_OK;
	*copy = tn_rpc_spare_take(&rpc->spare, params->args_bytes);
	if (!*copy)
		return tn_fail(TERN_E_NOMEM, "no memory for %llu bytes of arguments",
			       (unsigned long long)params->args_bytes);
	memcpy(*copy, params->args, params->args_bytes);
	TN_RPC_COUNT(rpc->counters, copies, 1);
	TN_RPC_COUNT(rpc->counters, copy_bytes, params->args_bytes);
	return TERN_OK;
}

/* Lock held: may another call be made, and where? */
static TN_ALWAYS_INLINE tern_status take_slot(tern_rpc *rpc, unsigned service_class, rpc_call **out)
{
	rpc_stream *stream;

	if (rpc->status != TERN_OK)
		return tn_fail(rpc->status, "the RPC client has ended: %s", tern_status_text(rpc->status));
	if (rpc->line.state == LINE_BROKEN)
		return tn_fail(rpc->line.status,
			       "%s does not answer: no new try before rpc.breaker_time is over",
			       rpc->line.address);
	stream = tn_rpc_stream_get(rpc, service_class);
	if (!stream)
		return tn_fail(TERN_E_NOMEM, "no memory for a class of an RPC client");
	tn_rpc_stream_advance(stream);
	if (stream->next_seq - stream->low_water >= TN_RPC_WINDOW)
		return TERN_AGAIN;
	*out = &stream->calls[stream->next_seq % TN_RPC_WINDOW];
	return TERN_OK;
}

/* Lock held: fill slot c. The message is built in the slot; args are copied. */
static TN_ALWAYS_INLINE void fill_call(rpc_call *c, const tern_rpc_call_params *params, uint64_t timeout_ns,
				       uint8_t *copy, tern_op *op)
{
	rpc_stream *stream = c->stream;
	tern_rpc *rpc = stream->rpc;

	TN_ASSERT(tn_rpc_call_idle(c));
	c->has_sinks = params->sink_count > 0; /* counted by the state */
	tn_rpc_call_set_state(c, CALL_ACTIVE);
	c->idempotent = params->flags & TERN_RPC_IDEMPOTENT;
	c->out = c->wants = false;
	c->first = TN_RPC_NEVER_SENT;
	c->tries = 0;
	c->seq = stream->next_seq++;
	c->exact = c->idempotent || tn_spans_on(rpc->spans);
	c->timeout_ns = timeout_ns;
	c->timed = false;
	if (TN_UNLIKELY(c->exact || !stream->pipe))
		tn_rpc_call_time(c);
	c->op = op;
	c->answer = params->answer;
	c->answer_capacity = params->answer ? params->answer_capacity : 0;
	c->method = params->method;
	c->sink_count = params->sink_count;
	c->args_bytes = params->args_bytes;
	c->args_copy = copy;
	c->behind = NULL;
	c->behind_bytes = 0;
	if (params->sink_count) {
		tn_rpc_request_head head = {.sink_count = (uint16_t)params->sink_count};

		tn_rpc_request_encode(c->message, &head, params->sinks);
	}
	if (!copy && params->args_bytes)
		memcpy(c->message + tn_rpc_call_head_bytes(c), params->args, params->args_bytes);
}

/* Lock not held: the channel did not take the request of a call that was just made. */
static __attribute__((noinline)) tern_status not_posted(rpc_call *c, tern_status status)
{
	tern_rpc *rpc = c->stream->rpc;
	char text[TN_DETAIL_MAX];
	bool ours;

	snprintf(text, sizeof(text), "%s", status == TERN_AGAIN ? "" : tern_detail());
	rpc_lock_take(&rpc->lock);
	rpc->refs++; /* a completion may close the client */
	tn_rpc_call_unpost(c);
	if (status != TERN_AGAIN && c->state == CALL_ACTIVE && tn_rpc_line_lasts(rpc)) {
		tn_rpc_call_unsent(c, status, text); /* accepted: it waits for the next link, or ends now */
		ours = false;
	} else {
		ours = c->op != NULL; /* else the end of the client or the deadline completed it already */
		c->op = NULL;
		tn_rpc_call_set_state(c, CALL_FREE);
		tn_rpc_stream_advance(c->stream);
	}
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
	return ours ? status : TERN_OK;
}

/* Lock held, released: the first call of a class, or one without a link. */
static __attribute__((noinline)) tern_status send_slowly(rpc_call *c)
{
	rpc_stream *stream = c->stream;
	tern_rpc *rpc = stream->rpc;
	bool lasts = tn_rpc_line_lasts(rpc);
	tern_status status;

	c->wants = lasts;
	rpc->refs++;
	status = tn_rpc_stream_connect(stream);
	if (lasts) {
		tn_rpc_stream_flush(stream);
		tn_rpc_line_kick(rpc);
		status = TERN_OK;
	} else if (c->state == CALL_ACTIVE && stream->pipe) {
		status = tn_rpc_call_post(c);
		if (status != TERN_OK)
			status = not_posted(c, status);
		tn_rpc_unref(rpc);
		return status;
	} else if (c->op) { /* borrowed, and no channel */
		c->op = NULL;
		tn_rpc_call_set_state(c, CALL_FREE);
		tn_rpc_stream_advance(stream);
		status = status != TERN_OK ? status : TERN_AGAIN;
	} else {
		status = TERN_OK;
	}
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
	return status;
}

/* copy: of arguments that don't fit inline; the call's, whatever comes of it. */
static TN_ALWAYS_INLINE tern_status call_with(tern_rpc *rpc, const tern_rpc_call_params *params,
					      uint8_t *copy, tern_iovec behind, tern_op *op)
{
	uint64_t timeout_ns = op->timeout_ns ? op->timeout_ns : rpc->default_timeout_ns;
	tern_status status = tn_op_begin(op);
	rpc_call *c = NULL;

	if (status != TERN_OK) {
		tn_rpc_spare_give(&rpc->spare, copy);
		return status;
	}
	rpc_lock_take(&rpc->lock);
	status = take_slot(rpc, params->service_class, &c);
	if (status != TERN_OK) {
		rpc_lock_drop(&rpc->lock);
		tn_rpc_spare_give(&rpc->spare, copy);
		tn_op_abort(op);
		return status;
	}
	fill_call(c, params, timeout_ns, copy, op);
	if (behind.base) {
		c->args_bytes += behind.bytes;
		c->behind = behind.base;
		c->behind_bytes = behind.bytes;
	}
	TN_RPC_COUNT(rpc->counters, calls, 1);
	if (TN_UNLIKELY(!c->stream->pipe)) {
		status = send_slowly(c);
	} else {
		status = tn_rpc_call_post(c);
		if (status != TERN_OK)
			status = not_posted(c, status);
	}
	if (status != TERN_OK)
		tn_op_abort(op);
	return status;
}

static TN_ALWAYS_INLINE tern_status call_one(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op)
{
	uint8_t *copy = NULL;

	TN_TRY(copy_args(rpc, params, &copy));
	return call_with(rpc, params, copy, (tern_iovec){0}, op);
}

tern_status tn_rpc_call_one(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op)
{
	return call_one(rpc, params, op);
}

void *tn_rpc_args_take(tern_rpc *rpc, uint64_t bytes)
{
	return tn_rpc_spare_take(&rpc->spare, bytes);
}

tern_status tn_rpc_call_built(tern_rpc *rpc, const tern_rpc_call_params *params, const void *behind,
			      uint64_t behind_bytes, tern_op *op)
{
	uint8_t *args = (uint8_t *)(uintptr_t)params->args; /* of tn_rpc_args_take */
	tern_status status = check_params(params, behind_bytes);

	TN_ASSERT(!params->hedge_ns && (behind || behind_bytes == 0));
	if (status == TERN_OK && (behind || params->args_bytes > TN_RPC_INLINE_BYTES))
		return call_with(rpc, params, args, (tern_iovec){behind, behind_bytes}, op);
	if (status == TERN_OK)
		status = call_with(rpc, params, NULL, (tern_iovec){0}, op);
	tn_rpc_spare_give(&rpc->spare, args);
	return status;
}

tern_status tern_rpc_call(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op)
{
	TN_TRY(tn_ctx_usable(rpc->ctx));
	TN_TRY(check_params(params, 0));
	return TN_UNLIKELY(params->hedge_ns) ? tn_rpc_call_hedged(rpc, params, op)
					     : call_one(rpc, params, op);
}

/* Lock held. */
static rpc_call *find_call(tern_rpc *rpc, const tern_op *op)
{
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		rpc_stream *stream = rpc->streams[k];

		for (uint64_t seq = stream ? stream->low_water : 0; stream && seq < stream->next_seq; seq++) {
			rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

			if (c->op == op && c->state == CALL_ACTIVE && c->seq == seq)
				return c;
		}
	}
	return NULL;
}

tern_status tern_rpc_cancel(tern_rpc *rpc, tern_op *op)
{
	rpc_call *c;

	if (tn_rpc_hedge_cancel(rpc, op) == TERN_OK)
		return TERN_OK;
	rpc_lock_take(&rpc->lock);
	rpc->refs++; /* the completion may close the client */
	c = find_call(rpc, op);
	if (c)
		tn_rpc_call_give_up(c, TERN_E_CANCELED, "the call was cancelled");
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
	return c ? TERN_OK : TERN_E_NOT_FOUND;
}

tern_status tern_rpc_call_wait(tern_rpc *rpc, const tern_rpc_call_params *params, uint64_t timeout_ns,
			       uint64_t *answer_bytes)
{
	tern_ctx *ctx = rpc->ctx;
	uint64_t end, now = tn_ctx_now(ctx);
	tern_status status;
	tern_op op;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	tern_op_init(&op, NULL, NULL);
	if (!timeout_ns)
		timeout_ns = rpc->default_timeout_ns;
	end = tn_deadline(now, timeout_ns);
	for (;;) { /* the deadline covers waiting for a place in the window too */
		op.timeout_ns = end - now;
		status = tern_rpc_call(rpc, params, &op);
		if (status != TERN_AGAIN)
			break;
		tern_ctx_wait(ctx, 1000000);
		now = tn_ctx_now(ctx);
		if (now >= end)
			return tn_fail(TERN_E_DEADLINE, "too many calls were in flight until the deadline");
	}
	if (status != TERN_OK)
		return status;
	do /* op is on the stack: whatever waiting says, it stays until its completion */
		status = tern_op_wait(ctx, &op, 0);
	while (tern_op_test(&op) == TERN_AGAIN);
	if (answer_bytes)
		*answer_bytes = op.length;
	return status;
}
