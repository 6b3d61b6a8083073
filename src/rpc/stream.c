/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of one class: their window, the pipe (channel) that they go over, and what happens when it ends.
 *
 *   no pipe --a link, and a call that wants to be sent--> pipe --its channel ends--> no pipe
 *
 * Threads: see client.h; channels are opened without the lock, by one thread at a time (opening).
 * Tests: tests/unit/rpc.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/time.h"
#include "rpc/client.h"

#define FLUSH_AGAIN_NS 200000u /* a call that found no room in the channel */

rpc_stream *tn_rpc_stream_get(tern_rpc *rpc, unsigned service_class)
{
	rpc_stream *stream = rpc->streams[service_class];

	if (stream)
		return stream;
	stream = TN_FAULT("rpc.stream.alloc") ? NULL : calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	stream->rpc = rpc;
	stream->service_class = (uint8_t)service_class;
	stream->flush_ns = TN_TIME_NEVER;
	for (unsigned i = 0; i < TN_RPC_WINDOW; i++)
		stream->calls[i].stream = stream;
	return rpc->streams[service_class] = stream;
}

void tn_rpc_stream_advance(rpc_stream *stream)
{
	while (stream->low_water < stream->next_seq &&
	       tn_rpc_call_idle(&stream->calls[stream->low_water % TN_RPC_WINDOW]))
		stream->low_water++;
}

/* ---- pipes ---- */

void tn_rpc_pipe_end(rpc_pipe *pipe)
{
	tern_rpc *rpc = pipe->stream->rpc;

	if (pipe->channel)
		tern_channel_close(pipe->channel);
	free(pipe);
	tn_rpc_unref(rpc);
}

/* Lock held, free meanwhile: the pipe of a session is gone; its calls want another one, or end. */
static void lose_calls(rpc_stream *stream, uint32_t session, tern_status fatal, const char *text)
{
	for (uint64_t seq = stream->low_water; seq < stream->next_seq; seq++) {
		rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

		if (c->seq != seq || c->state == CALL_FREE)
			continue;
		c->out = false;
		if (c->sending)
			continue; /* on_sent sees to it */
		if (c->state == CALL_ZOMBIE)
			tn_rpc_call_end(c, c->why, 0, text);
		else if (fatal != TERN_OK && c->first == session)
			tn_rpc_call_end(c, fatal, 0, text); /* nobody took that channel */
		else if (fatal != TERN_OK)
			tn_rpc_call_strand(c, fatal, text);
		else
			c->wants = true;
	}
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	rpc_pipe *pipe = arg;
	rpc_stream *stream = pipe->stream;
	tern_rpc *rpc = stream->rpc;
	char text[TN_DETAIL_MAX];
	bool mine, end;

	(void)channel;
	snprintf(text, sizeof(text), "%s", tern_detail());
	rpc_lock_take(&rpc->lock);
	pipe->ended = true;
	mine = stream->pipe == pipe;
	if (mine)
		stream->pipe = NULL;
	if (!tn_rpc_line_lasts(rpc) || status == TERN_E_FLUSHED) { /* closed here: with its context */
		rpc_lock_drop(&rpc->lock);
		tn_rpc_fail_all(rpc, status, text, false);
		if (mine)
			tn_rpc_pipe_unref(pipe);
		return;
	}
	rpc->refs++; /* completions may close the client */
	lose_calls(stream, pipe->session, status == TERN_E_NOT_FOUND ? status : TERN_OK, text);
	stream->flush_ns = tn_ctx_now(rpc->ctx) + tn_rpc_line_pause(rpc); /* if the link lives on */
	tn_rpc_arm(rpc, stream->flush_ns);
	end = tn_rpc_take_end(rpc);
	rpc_lock_drop(&rpc->lock);
	if (end)
		tn_rpc_end(rpc);
	if (mine)
		tn_rpc_pipe_unref(pipe);
	tn_rpc_unref(rpc);
}

/* Lock not held. */
static tern_status open_pipe(rpc_stream *stream, tern_link *link, uint32_t session, rpc_pipe **out)
{
	tern_channel_params params = {.on_message = tn_rpc_on_answer,
				      .on_notify = tn_rpc_on_landed,
				      .on_closed = on_closed,
				      .message_bytes_max = TERN_RPC_INLINE_MAX + TN_RPC_REQUEST_BYTES_MAX};
	rpc_pipe *pipe = TN_FAULT("rpc.pipe.alloc") ? NULL : calloc(1, sizeof(*pipe));
	tern_status status;

	*out = NULL;
	if (!pipe)
		return tn_fail(TERN_E_NOMEM, "no memory for a channel of RPC");
	atomic_init(&pipe->refs, 1);
	pipe->stream = stream;
	pipe->session = session;
	params.arg = pipe;
	status = tern_channel_open(link, TN_RPC_SERVICE, &params, &pipe->channel);
	if (status != TERN_OK) {
		free(pipe);
		return status;
	}
	*out = pipe;
	return TERN_OK;
}

tern_status tn_rpc_stream_connect(rpc_stream *stream)
{
	tern_rpc *rpc = stream->rpc;
	rpc_pipe *pipe = NULL, *keeper;
	tern_link *link;
	uint32_t session;
	tern_status status;

	if (stream->pipe || stream->opening || rpc->closing || rpc->ended != TERN_OK)
		return TERN_OK;
	link = tn_rpc_line_get(rpc, &keeper);
	if (!link)
		return TERN_OK;
	stream->opening = true;
	session = stream->sessions++;
	rpc->refs++; /* the pipe's */
	rpc_lock_drop(&rpc->lock);
	status = open_pipe(stream, link, session, &pipe);
	tn_rpc_line_put(rpc, keeper);
	rpc_lock_take(&rpc->lock);
	stream->opening = false;
	if (status != TERN_OK) {
		TN_ASSERT(rpc->refs > 1);
		rpc->refs--;
		stream->flush_ns = tn_ctx_now(rpc->ctx) + tn_rpc_line_pause(rpc);
		tn_rpc_arm(rpc, stream->flush_ns);
		return status;
	}
	if (!pipe->ended && !rpc->over) {
		stream->pipe = pipe;
		return TERN_OK;
	}
	rpc_lock_drop(&rpc->lock);
	tn_rpc_pipe_unref(pipe);
	rpc_lock_take(&rpc->lock);
	return TERN_OK;
}

/* ---- calls that wait for a pipe, or for room in it ---- */

/* Lock held, free meanwhile. False: no more can be sent now. */
static bool flush_one(rpc_stream *stream, rpc_call *c)
{
	tern_rpc *rpc = stream->rpc;
	char text[TN_DETAIL_MAX] = "";
	tern_status status;

	if (c->tries >= rpc->tries_max) {
		c->wants = false;
		tn_rpc_call_strand(c, TERN_E_PEER_LOST, "it was sent over as many links as rpc.tries allows");
		return true;
	}
	status = tn_rpc_call_post(c);
	if (status != TERN_OK)
		snprintf(text, sizeof(text), "%s", tern_detail());
	rpc_lock_take(&rpc->lock);
	if (status == TERN_OK)
		return true;
	tn_rpc_call_unpost(c);
	if (c->state == CALL_ACTIVE && status == TERN_AGAIN) {
		c->wants = true;
		tn_rpc_stream_flush_soon(stream);
		return false;
	}
	tn_rpc_call_unsent(c, status, text);
	return true;
}

void tn_rpc_stream_flush_soon(rpc_stream *stream)
{
	stream->flush_ns = tn_ctx_now(stream->rpc->ctx) + FLUSH_AGAIN_NS;
	tn_rpc_arm(stream->rpc, stream->flush_ns);
}

void tn_rpc_stream_flush(rpc_stream *stream)
{
	for (uint64_t seq = stream->low_water; stream->pipe && seq < stream->next_seq; seq++) {
		rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

		if (c->seq == seq && c->wants && !c->sending && c->state == CALL_ACTIVE &&
		    !flush_one(stream, c))
			return;
	}
}

bool tn_rpc_stream_wants(const rpc_stream *stream)
{
	for (uint64_t seq = stream->low_water; seq < stream->next_seq; seq++)
		if (stream->calls[seq % TN_RPC_WINDOW].wants)
			return true;
	return false;
}

/* Lock held, free meanwhile. */
static void expire(rpc_call *c)
{
	if (c->state == CALL_ACTIVE)
		TN_RPC_COUNT(c->stream->rpc->counters, deadlines, 1);
	tn_rpc_call_give_up(c, TERN_E_DEADLINE, "the call's deadline passed without an answer");
}

uint64_t tn_rpc_stream_tick(rpc_stream *stream, uint64_t now_ns)
{
	uint64_t next = TN_TIME_NEVER;

	for (uint64_t seq = stream->low_water; seq < stream->next_seq; seq++) {
		rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

		if (c->seq != seq || c->state == CALL_FREE)
			continue;
		if (c->wake_ns <= now_ns)
			expire(c);
		/* the lock was free meanwhile: is it still that call? */
		if (c->seq == seq && c->state != CALL_FREE && c->wake_ns < next)
			next = c->wake_ns;
	}
	if (stream->flush_ns <= now_ns) {
		stream->flush_ns = TN_TIME_NEVER;
		if (tn_rpc_stream_wants(stream)) {
			tn_rpc_stream_connect(stream);
			tn_rpc_stream_flush(stream);
		}
	}
	return TN_MIN(next, stream->flush_ns);
}
