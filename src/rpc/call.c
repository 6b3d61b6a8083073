/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call at the client.
 *
 *   FREE -> ACTIVE (tern_rpc_call) -> FREE     answered before the deadline
 *                                  -> ZOMBIE   given up (deadline, cancel, close) while a copy is at the server.
 *                                              CANCEL is sent, now and then again, until CANCEL_ACK, the late
 *                                              answer or the channel's end comes; a call with sinks keeps its op
 *                                              until then. Not before the request has left: one that overtakes it
 *                                              would be acknowledged as that of no call
 *
 *   ACTIVE, over links of one's own:  wants -> sending, out -> out -> (the pipe ends) -> wants
 *
 * A slot is reused only when its request message has left too (sending == false), because the message
 * is built inside the slot. Threads: see client.h. Tests: tests/unit/rpc.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/time.h"
#include "rpc/client.h"

#define CANCEL_RETRY_NS 1000000u   /* a CANCEL that found no room */
#define CANCEL_AGAIN_NS 100000000u /* one that nobody answered */

bool tn_rpc_call_idle(const rpc_call *c)
{
	return c->state == CALL_FREE && !c->sending && !c->cancel_sending;
}

/* Every change of a call's state goes through here. */
void tn_rpc_call_set_state(rpc_call *c, rpc_call_state state)
{
	tern_rpc *rpc = c->stream->rpc;

	TN_ASSERT(state != CALL_ZOMBIE || c->state == CALL_ACTIVE);
	TN_ASSERT(state != CALL_ACTIVE || c->state == CALL_FREE);
	if (c->has_sinks && state == CALL_ACTIVE)
		rpc->sink_calls++;
	if (c->has_sinks && state == CALL_FREE && c->state != CALL_FREE) {
		TN_ASSERT(rpc->sink_calls > 0);
		rpc->sink_calls--;
	}
	c->state = state;
	if (state != CALL_FREE)
		return;
	c->out = c->wants = false;
	if (c->sending)
		return;
	tn_rpc_spare_give(&rpc->spare, c->args_copy);
	c->args_copy = NULL;
}

/* ---- ends ---- */

void tn_rpc_call_end(rpc_call *c, tern_status status, uint64_t length, const char *text)
{
	tern_rpc *rpc = c->stream->rpc;
	tern_op *op = c->op;

	c->op = NULL;
	tn_rpc_call_set_state(c, CALL_FREE);
	tn_rpc_stream_advance(c->stream);
	if (!op)
		return;
	tn_rpc_call_timed(c);
	if (status == TERN_E_INDETERMINATE)
		TN_RPC_COUNT(rpc->counters, indeterminate, 1);
	rpc_lock_drop(&rpc->lock);
	tn_op_complete(rpc->ctx, op, status, length, text);
	rpc_lock_take(&rpc->lock);
}

void tn_rpc_call_strand(rpc_call *c, tern_status status, const char *text)
{
	char words[TN_DETAIL_MAX];

	if (c->first == TN_RPC_NEVER_SENT || c->idempotent) {
		tn_rpc_call_end(c, status, 0, text);
		return;
	}
	snprintf(words, sizeof(words), "the call may have been executed: %s", text);
	tn_rpc_call_end(c, TERN_E_INDETERMINATE, 0, words);
}

static void on_cancel_sent(tern_op *op, void *arg)
{
	rpc_call *c = arg;
	tern_rpc *rpc = c->stream->rpc;

	(void)op;
	rpc_lock_take(&rpc->lock);
	c->cancel_sending = false;
	tn_rpc_stream_advance(c->stream);
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
}

/* Lock held, free meanwhile. */
static void send_cancel(rpc_call *c)
{
	tern_rpc *rpc = c->stream->rpc;
	tn_rpc_reply_head head = {.type = TN_RPC_CANCEL, .seq = c->seq};
	rpc_pipe *pipe = c->stream->pipe;
	tern_status status;

	if (c->sending || c->cancel_sending || !pipe)
		return;
	c->cancel_sending = true;
	rpc->refs++;
	rpc_refs_add(&pipe->refs, pipe->stream->rpc->counters->own);
	tn_rpc_reply_encode(c->cancel, &head);
	tern_op_init(&c->cancel_op, on_cancel_sent, c);
	rpc_lock_drop(&rpc->lock);
	status = tern_send(pipe->channel, c->cancel, sizeof(c->cancel), &c->cancel_op);
	if (status != TERN_OK) {
		rpc_lock_take(&rpc->lock);
		c->wake_ns = tn_ctx_now(rpc->ctx) + CANCEL_RETRY_NS; /* the slot is ours: cancel_sending */
		tn_rpc_arm(rpc, c->wake_ns);
		rpc_lock_drop(&rpc->lock);
		on_cancel_sent(&c->cancel_op, c);
	}
	tn_rpc_pipe_unref(pipe);
	rpc_lock_take(&rpc->lock);
}

void tn_rpc_call_give_up(rpc_call *c, tern_status why, const char *text)
{
	tern_rpc *rpc = c->stream->rpc;
	tern_op *user = NULL;

	if (!c->out && !c->sending) { /* no server has it: its sinks are quiet */
		tn_rpc_call_end(c, c->state == CALL_ZOMBIE ? c->why : why, 0, text);
		return;
	}
	if (c->state == CALL_ACTIVE) {
		tn_rpc_call_set_state(c, CALL_ZOMBIE);
		c->why = why;
		if ((!c->has_sinks && !tn_rpc_call_reads(c)) || TN_MUTANT(9)) {
			user = c->op;
			c->op = NULL;
		}
	}
	/* One that is still being sent is woken by on_sent. */
	c->wake_ns = c->sending ? TN_TIME_NEVER : tn_ctx_now(rpc->ctx) + CANCEL_AGAIN_NS;
	tn_rpc_arm(rpc, c->wake_ns);
	send_cancel(c);
	if (user) {
		rpc_lock_drop(&rpc->lock);
		tn_op_complete(rpc->ctx, user, why, 0, text);
		rpc_lock_take(&rpc->lock);
	}
}

/* ---- sending ---- */

/* Is it on the pipe that the stream has now? */
static bool on_present_pipe(const rpc_call *c)
{
	return c->stream->pipe && c->stream->pipe->session == c->session;
}

static bool path_failed(tern_status status)
{
	tern_radius radius = tern_status_radius(status);

	return radius == TERN_RADIUS_PATH || radius == TERN_RADIUS_PEER || status == TERN_E_FLUSHED ||
	       status == TERN_E_INDETERMINATE;
}

void tn_rpc_call_unsent(rpc_call *c, tern_status status, const char *text)
{
	tern_rpc *rpc = c->stream->rpc;

	c->out =
		false; /* not accepted by the server, or the channel is gone: nothing touches the sinks through it */
	if (c->state == CALL_FREE)
		return;
	if (c->state == CALL_ZOMBIE) {
		tn_rpc_call_end(c, c->why, 0, text);
	} else if (!path_failed(status) || !tn_rpc_line_lasts(rpc)) {
		tn_rpc_call_end(c, status, 0, text);
	} else {
		c->wants = true;
		tn_rpc_stream_flush_soon(c->stream);
	}
}

/* Lock held: nobody reads the arguments any more, unless the call is sent again. */
static void args_left(rpc_call *c)
{
	tern_rpc *rpc = c->stream->rpc;

	if (c->state != CALL_FREE && tn_rpc_line_lasts(rpc))
		return;
	tn_rpc_spare_give(&rpc->spare, c->args_copy);
	c->args_copy = NULL;
}

static void on_sent(tern_op *op, void *arg)
{
	rpc_call *c = arg;
	tern_rpc *rpc = c->stream->rpc;
	tern_status status = op->status; /* the slot, op included, may be another call's later */
	tern_status why = TERN_OK;
	tern_op *given_up = NULL;
	bool end;

	rpc_lock_take(&rpc->lock);
	c->sending = false;
	args_left(c);
	if (TN_UNLIKELY(c->behind && c->state != CALL_FREE && c->answered && c->landed >= c->placed)) {
		tn_rpc_call_answered(
			c); /* by a server that was faster than the word that its request had left */
		tn_rpc_unref(rpc);
		return;
	}
	if (c->behind && c->state == CALL_ZOMBIE && !c->has_sinks) {
		given_up = c->op;
		c->op = NULL;
		why = c->why;
	}
	if (status != TERN_OK || (c->state != CALL_FREE && !on_present_pipe(c) && rpc->ended == TERN_OK)) {
		char text[TN_DETAIL_MAX];

		snprintf(text, sizeof(text), "%s", status == TERN_OK ? "the link is lost" : tern_detail());
		tn_rpc_call_unsent(c, status == TERN_OK ? TERN_E_PEER_LOST : status, text);
	} else if (c->state == CALL_ZOMBIE) { /* its CANCEL waited for this */
		c->wake_ns = tn_ctx_now(rpc->ctx);
		tn_rpc_arm(rpc, c->wake_ns);
	}
	tn_rpc_stream_advance(c->stream);
	end = tn_rpc_take_end(rpc);
	rpc_lock_drop(&rpc->lock);
	if (end)
		tn_rpc_end(rpc);
	if (given_up)
		tn_op_complete(rpc->ctx, given_up, why, 0, tn_rpc_why_text(why));
	tn_rpc_unref(rpc);
}

/* May it be executed again where no record of it is left? */
static bool may_repeat(rpc_call *c)
{
	tern_rpc *rpc = c->stream->rpc;

	if (!c->idempotent)
		return false;
	if (c->first == c->session)
		return true;
	if (rpc->budget < 10)
		return false;
	rpc->budget -= 10;
	return true;
}

static TN_ALWAYS_INLINE void fill_head(rpc_call *c, bool waited)
{
	tern_rpc *rpc = c->stream->rpc;
	tn_rpc_request_head head = {.method = c->method,
				    .sink_count = (uint16_t)c->sink_count,
				    .seq = c->seq,
				    .client = rpc->id,
				    .low_water = c->stream->low_water,
				    .timeout_ns = c->timeout_ns,
				    .args_bytes = c->args_bytes,
				    .session = c->session,
				    .first = c->first,
				    .service_class = c->stream->service_class,
				    .flags = (uint8_t)((may_repeat(c) ? TN_RPC_IDEMPOTENT : 0) |
						       (c->sink_count ? TN_RPC_EARLY : 0))};

	if (TN_UNLIKELY(waited && c->timeout_ns)) { /* 0 would mean none */
		uint64_t left = tn_time_left(tn_ctx_now(rpc->ctx), c->deadline_ns);

		head.timeout_ns = left ? left : 1;
	}
	tn_rpc_request_encode_head(c->message, &head);
}

TN_ALWAYS_INLINE tern_status tn_rpc_call_post(rpc_call *c)
{
	tern_rpc *rpc = c->stream->rpc;
	rpc_pipe *pipe = c->stream->pipe;
	uint64_t head_bytes = tn_rpc_call_head_bytes(c);
	bool inside = !c->args_copy; /* once it is sent the slot may be another call's */
	tern_iovec iov[3] = {{c->message, head_bytes + (inside ? c->args_bytes : 0)},
			     {c->args_copy, c->args_bytes - c->behind_bytes},
			     {c->behind, c->behind_bytes}};
	int pieces = inside ? 1 : c->behind ? 3 : 2;
	bool waited = c->wants, sent;
	tern_status status;

	TN_ASSERT(pipe && !c->sending && !c->out && c->state == CALL_ACTIVE);
	c->session = pipe->session;
	if (c->first == TN_RPC_NEVER_SENT)
		c->first = c->session;
	else
		TN_RPC_COUNT(rpc->counters, replays, 1);
	c->tries++;
	c->wants = false;
	c->out = true;
	c->answered = false;
	c->landed = c->placed = 0;
	fill_head(c, waited);
	if (TN_LIKELY(inside))
		sent = tn_send_now(pipe->channel, c->message, iov[0].bytes);
	else
		sent = c->args_bytes <= TN_RPC_NOW_BYTES && tn_sendv_now(pipe->channel, iov, pieces);
	if (TN_LIKELY(!c->timed)) /* while it is on its way: nobody ends it before the lock is dropped */
		tn_rpc_call_time(c);
	if (TN_LIKELY(sent)) {
		if (!inside)
			args_left(c);
		rpc_lock_drop(&rpc->lock);
		return TERN_OK;
	}
	c->sending = true;
	rpc->refs++;
	rpc_refs_add(&pipe->refs, pipe->stream->rpc->counters->own);
	tern_op_init(&c->send_op, on_sent, c);
	c->send_op.flags = TN_OP_INLINE; /* no lock of ours is held */
	rpc_lock_drop(&rpc->lock);
	status = tern_sendv(pipe->channel, iov, pieces, &c->send_op);
	tn_rpc_pipe_unref(pipe);
	return status;
}

void tn_rpc_call_unpost(rpc_call *c)
{
	tern_rpc *rpc = c->stream->rpc;

	TN_ASSERT(c->sending && rpc->refs > 1);
	c->sending = c->out = false;
	rpc->refs--;
	c->tries--;
	if (c->first == c->session)
		c->first = TN_RPC_NEVER_SENT; /* it did not leave */
	if (c->state == CALL_FREE) {
		tn_rpc_spare_give(&rpc->spare, c->args_copy);
		c->args_copy = NULL;
	}
}
