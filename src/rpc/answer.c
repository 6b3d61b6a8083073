/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in at a client: answers and acknowledgements of CANCEL; and DONE, which lets the server forget large
 * answers. Threads: the context's driver. Tests: tests/unit/rpc.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/time.h"
#include "rpc/client.h"

static void on_done_sent(tern_op *op, void *arg)
{
	rpc_stream *stream = arg;
	tern_rpc *rpc = stream->rpc;

	(void)op;
	rpc_lock_take(&rpc->lock);
	stream->done_sending = false;
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
}

/* Best effort: the next request carries the mark as well. */
static void send_done(rpc_stream *stream)
{
	tern_rpc *rpc = stream->rpc;
	tn_rpc_reply_head head = {.type = TN_RPC_DONE};
	rpc_pipe *pipe;

	rpc_lock_take(&rpc->lock);
	pipe = stream->pipe;
	if (stream->done_sending || !pipe || rpc->over) {
		rpc_lock_drop(&rpc->lock);
		return;
	}
	stream->done_sending = true;
	rpc->refs++;
	rpc_refs_add(&pipe->refs, pipe->stream->rpc->counters->own);
	head.value = stream->low_water;
	tn_rpc_reply_encode(stream->done_msg, &head);
	rpc_lock_drop(&rpc->lock);
	tern_op_init(&stream->done_op, on_done_sent, stream);
	if (tern_send(pipe->channel, stream->done_msg, sizeof(stream->done_msg), &stream->done_op) != TERN_OK)
		on_done_sent(&stream->done_op, stream);
	tn_rpc_pipe_unref(pipe);
}

static tern_status copy_answer(rpc_call *c, const tn_rpc_reply_head *head, const void *data, uint64_t *length)
{
	*length = head->status == TERN_E_OVERLOAD ? head->value : 0;
	if (head->status != TERN_OK)
		return head->status == TERN_AGAIN || head->status == TERN_BUSY ? TERN_E_LIMIT : head->status;
	*length = head->bytes;
	if (head->bytes > c->answer_capacity) {
		tn_fail(TERN_E_TRUNCATED,
			"the answer has %llu bytes, the caller's buffer %llu: pass a larger one",
			(unsigned long long)head->bytes, (unsigned long long)c->answer_capacity);
		return TERN_E_TRUNCATED;
	}
	if (head->bytes)
		memcpy(c->answer, data, head->bytes);
	return TERN_OK;
}

const char *tn_rpc_why_text(tern_status why)
{
	return why == TERN_E_FLUSHED    ? "the RPC client was closed"
	       : why == TERN_E_CANCELED ? "the call was cancelled"
					: "the call's deadline passed";
}

/* Lock held: the result of a call that is answered or acknowledged; text is for tern_detail(). */
static tern_status call_result(rpc_call *c, const tn_rpc_reply_head *head, const void *data, uint64_t *length,
			       char *text, size_t text_bytes)
{
	tern_status status;

	*length = 0;
	if (c->state == CALL_ZOMBIE || head->type == TN_RPC_CANCEL_ACK) {
		status = c->state == CALL_ZOMBIE ? c->why : TERN_E_DEADLINE;
		snprintf(text, text_bytes, "%s; the server let go of its sinks", tn_rpc_why_text(status));
		return status;
	}
	status = copy_answer(c, head, data, length);
	if (head->status != TERN_OK)
		snprintf(text, text_bytes, "%.*s", (int)TN_MIN(head->bytes, text_bytes - 1),
			 (const char *)data);
	else if (status != TERN_OK)
		snprintf(text, text_bytes, "%s", tern_detail());
	return status;
}

/* Lock held: a server that answers is alive and earns trust. */
static void note_answer(rpc_call *c, const tn_rpc_reply_head *head)
{
	rpc_stream *stream = c->stream;
	tern_rpc *rpc = stream->rpc;
	uint64_t took;

	if (rpc->line.failures)
		tn_rpc_line_answered(rpc);
	if (rpc->budget < rpc->budget_max)
		rpc->budget++;
	if (!c->exact || head->type != TN_RPC_RESPONSE || head->status != TERN_OK)
		return;
	/* An estimate that goes up 19 times as far as it goes down settles where 1 of 20 calls takes longer. */
	took = tn_ctx_now(rpc->ctx) - c->started_ns;
	if (stream->p95_ns == 0)
		stream->p95_ns = took + 1;
	else if (took > stream->p95_ns)
		stream->p95_ns += 19 * (stream->p95_ns / 256 + 1);
	else
		stream->p95_ns -= stream->p95_ns / 256;
}

/* Lock held, released: the call is over. */
static TN_ALWAYS_INLINE void finish(rpc_call *c, tern_status status, uint64_t length, const char *detail,
				    bool large)
{
	rpc_stream *stream = c->stream;
	tern_rpc *rpc = stream->rpc;
	tern_ctx *ctx = rpc->ctx;
	tern_op *user = c->op;
	bool end;

	c->op = NULL;
	if (user)
		tn_rpc_call_timed(c);
	tn_rpc_call_set_state(c, CALL_FREE);
	tn_rpc_stream_advance(stream);
	if (status == TERN_E_INDETERMINATE)
		TN_RPC_COUNT(rpc->counters, indeterminate, 1);
	end = tn_rpc_take_end(rpc);
	rpc_lock_drop(&rpc->lock);
	TN_RPC_COUNT(rpc->counters, answers, 1);
	if (large && !end)
		send_done(stream);
	if (end)
		tn_rpc_end(rpc);
	if (user)
		tn_op_complete(ctx, user, status, length, detail[0] ? detail : NULL);
}

/* Lock held: must it wait for puts that it overtook? */
static bool overtook(const rpc_call *c, const tn_rpc_reply_head *head)
{
	return head->type == TN_RPC_RESPONSE && head->status == TERN_OK && head->value > c->landed &&
	       c->sink_count > 0;
}

static void on_answer(rpc_stream *stream, const tn_rpc_reply_head *head, const void *data)
{
	rpc_call *c = &stream->calls[head->seq % TN_RPC_WINDOW];
	tern_rpc *rpc = stream->rpc;
	char detail[256];
	tern_status status;
	uint64_t length;

	detail[0] = 0;
	rpc_lock_take(&rpc->lock);
	if (c->state == CALL_FREE || c->seq != head->seq) {
		rpc_lock_drop(&rpc->lock); /* a duplicate: its call is over */
		return;
	}
	note_answer(c, head);
	status = call_result(c, head, data, &length, detail, sizeof(detail));
	if (overtook(c, head) || TN_UNLIKELY(tn_rpc_call_reads(c))) {
		c->answered = true;
		c->placed = overtook(c, head) ? (uint32_t)head->value : 0;
		c->result = status;
		c->length = length;
		rpc_lock_drop(&rpc->lock);
		return;
	}
	finish(c, status, length, detail, head->bytes >= TN_RPC_LARGE_BYTES);
}

void tn_rpc_call_answered(rpc_call *c)
{
	if (c->state == CALL_ZOMBIE)
		c->result = c->why;
	finish(c, c->result, c->result == TERN_OK ? c->length : 0,
	       c->result == TERN_OK ? "" : tern_status_text(c->result), false);
}

void tn_rpc_on_landed(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	rpc_pipe *pipe = arg;
	rpc_stream *stream = pipe->stream;
	tern_rpc *rpc = stream->rpc;
	uint64_t seq;
	rpc_call *c;

	(void)channel;
	(void)bytes;
	rpc_lock_take(&rpc->lock);
	seq = stream->low_water + ((value - stream->low_water) & TN_RPC_PLACED_MASK);
	c = &stream->calls[seq % TN_RPC_WINDOW];
	if (c->state == CALL_FREE || c->seq != seq || c->session != pipe->session) {
		rpc_lock_drop(&rpc->lock); /* its call is over */
		return;
	}
	c->landed++;
	if (!c->answered || c->landed < c->placed || tn_rpc_call_reads(c)) {
		rpc_lock_drop(&rpc->lock);
		return;
	}
	tn_rpc_call_answered(c);
}

void tn_rpc_on_answer(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	rpc_pipe *pipe = arg;
	tn_rpc_reply_head head;
	const void *data;

	(void)channel;
	if (!tn_rpc_reply_decode(msg, bytes, &head, &data))
		return; /* the server's bug or malice: the deadline ends the call */
	if (head.type == TN_RPC_RESPONSE || head.type == TN_RPC_CANCEL_ACK)
		on_answer(pipe->stream, &head, data);
}
