/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link of a client that dials its own: dialed, lost, dialed again after a pause, given up for a while.
 *
 *   IDLE --a call--> DIALING --up--> UP --down--> WAIT --pause--> DIALING     with calls that wait
 *                       |                |          \--pause--> IDLE          without
 *                       +-----down-------+--> BROKEN   after `breaker` failures in a row; then IDLE or DIALING
 *
 * A failure is a link that was lost, or never came up, since a server last answered: one that comes up and breaks
 * before it does anything counts too, so that neither a dead server nor one that dies at each call gets a storm.
 * Pauses double and have jitter, so that the clients of a server that restarts do not come all at once.
 *
 * Threads: links tell from the driver; dialed in any. A link is let go of where no callback of it can run any more.
 * Tests: tests/unit/rpc/relink_test.c.
 */
#include <stdio.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/time.h"
#include "rpc/client.h"

static const char *const state_names[] = {"BORROWED", "IDLE", "DIALING", "UP", "WAIT", "BROKEN"};

static void set_state(tern_rpc *rpc, rpc_line_state state)
{
	rpc_line *line = &rpc->line;

	TN_ASSERT(line->state != LINE_BORROWED || state == LINE_IDLE);
	TN_ASSERT(state != LINE_UP || line->state == LINE_DIALING);
	TN_LOG(DEBUG, RPC, "link to %s: %s -> %s", line->address, state_names[line->state],
	       state_names[state]);
	line->state = state;
	line->wake_ns = TN_TIME_NEVER;
}

void tn_rpc_line_begin(tern_rpc *rpc)
{
	set_state(rpc, LINE_IDLE);
}

bool tn_rpc_line_lasts(const tern_rpc *rpc)
{
	return rpc->line.state != LINE_BORROWED && !rpc->closing && rpc->status == TERN_OK;
}

/* ---- using the link ---- */

tern_link *tn_rpc_line_get(tern_rpc *rpc, rpc_pipe **pipe)
{
	rpc_line *line = &rpc->line;

	*pipe = NULL;
	if (line->state == LINE_BORROWED && !line->link) {
		*pipe = rpc->streams[TERN_RPC_NORMAL]->pipe;
		if (!*pipe)
			return NULL;
		rpc_refs_add(&(*pipe)->refs, (*pipe)->stream->rpc->counters->own);
		return tern_channel_link((*pipe)->channel);
	}
	if (line->state != LINE_BORROWED && line->state != LINE_UP)
		return NULL;
	line->users++;
	return line->link;
}

void tn_rpc_line_put(tern_rpc *rpc, rpc_pipe *pipe)
{
	tern_link *gone = NULL;

	if (pipe) {
		tn_rpc_pipe_unref(pipe);
		return;
	}
	rpc_lock_take(&rpc->lock);
	TN_ASSERT(rpc->line.users > 0);
	if (--rpc->line.users == 0) {
		gone = rpc->line.gone;
		rpc->line.gone = NULL;
	}
	rpc_lock_drop(&rpc->lock);
	tern_link_release(gone);
}

/* ---- calls that wait ---- */

static bool has_active(const tern_rpc *rpc)
{
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		const rpc_stream *stream = rpc->streams[k];

		for (uint64_t seq = stream ? stream->low_water : 0; stream && seq < stream->next_seq; seq++)
			if (stream->calls[seq % TN_RPC_WINDOW].state == CALL_ACTIVE)
				return true;
	}
	return false;
}

/* Lock held, free meanwhile: there will be no link for a while. */
static void strand_all(tern_rpc *rpc, tern_status status)
{
	char text[TN_DETAIL_MAX];

	snprintf(text, sizeof(text), "%s does not answer after %u tries: %s", rpc->line.address,
		 rpc->line.failures, tern_status_text(status));
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		rpc_stream *stream = rpc->streams[k];

		for (uint64_t seq = stream ? stream->low_water : 0; stream && seq < stream->next_seq; seq++) {
			rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

			if (c->seq == seq && c->state == CALL_ACTIVE && !c->sending && !c->out)
				tn_rpc_call_strand(c, status, text);
		}
	}
}

static void flush_all(tern_rpc *rpc)
{
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		rpc_stream *stream = rpc->streams[k];

		if (!stream || !tn_rpc_stream_wants(stream))
			continue;
		tn_rpc_stream_connect(stream);
		tn_rpc_stream_flush(stream);
	}
}

/* ---- failures ---- */

uint64_t tn_rpc_line_pause(tern_rpc *rpc)
{
	const rpc_line *line = &rpc->line;
	uint64_t doublings = TN_MIN(line->failures ? line->failures - 1 : 0, 20);
	uint64_t pause = TN_MIN(line->redial_ns << doublings, line->redial_max_ns);

	return pause / 2 + tn_rand_below(&rpc->rng, pause / 2 + 1);
}

void tn_rpc_line_answered(tern_rpc *rpc)
{
	rpc_line *line = &rpc->line;

	if (line->missed)
		TN_LOG(WARN, RPC, "%s answers again, after %u tries", line->address, line->failures);
	line->missed = false;
	line->failures = 0;
}

/* Lock held, free meanwhile. */
static void failed(tern_rpc *rpc, tern_status status)
{
	rpc_line *line = &rpc->line;
	uint64_t now = tn_ctx_now(rpc->ctx);

	line->status = status;
	line->failures++;
	if (line->failures > 1 && !line->missed) { /* once, however often it is dialed from here on */
		line->missed = true;
		TN_LOG(WARN, RPC,
		       "%s does not answer (%s): calls to it wait, and it is dialed again and again",
		       line->address, tern_status_text(status));
	}
	if (line->breaker && line->failures >= line->breaker) {
		set_state(rpc, LINE_BROKEN);
		line->wake_ns = tn_deadline(now, line->breaker_ns);
		TN_RPC_COUNT(rpc->counters, breaks, 1);
		tn_rpc_arm(rpc, line->wake_ns);
		strand_all(rpc, status);
	} else {
		set_state(rpc, LINE_WAIT);
		line->wake_ns = now + tn_rpc_line_pause(rpc);
		tn_rpc_arm(rpc, line->wake_ns);
	}
}

static void on_up(tern_link *link, void *arg)
{
	tern_rpc *rpc = arg;

	rpc_lock_take(&rpc->lock);
	rpc->refs++;
	rpc->line.link = link;
	set_state(rpc, LINE_UP);
	if (!rpc->closing && rpc->ended == TERN_OK)
		flush_all(rpc);
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
}

static void on_down(tern_link *link, tern_status status, const char *detail, void *arg)
{
	tern_rpc *rpc = arg;
	rpc_line *line = &rpc->line;

	(void)detail;
	rpc_lock_take(&rpc->lock);
	line->link = NULL;
	if (line->connecting) {
		line->died_early = true; /* who dials lets go of it */
		link = NULL;
	} else if (line->users > 0) {
		line->gone = link; /* the last of them does */
		link = NULL;
	}
	if (tn_rpc_line_lasts(rpc))
		failed(rpc, status);
	else
		set_state(rpc, LINE_IDLE);
	rpc_lock_drop(&rpc->lock);
	tern_link_release(link);
	tn_rpc_unref(rpc); /* the link's */
}

/* ---- dialing ---- */

/* Lock held, free meanwhile. */
static void dial(tern_rpc *rpc)
{
	rpc_line *line = &rpc->line;
	tern_connect_params params = {.timeout_ns = line->timeout_ns,
				      .transports = line->transports[0] ? line->transports : NULL,
				      .on_up = on_up,
				      .on_down = on_down,
				      .arg = rpc};
	tern_link *link = NULL, *dead = NULL;
	tern_status status;

	set_state(rpc, LINE_DIALING);
	line->connecting = true;
	line->died_early = false;
	rpc->refs++; /* the link's */
	TN_RPC_COUNT(rpc->counters, dials, 1);
	rpc_lock_drop(&rpc->lock);
	status = tern_link_connect(rpc->ctx, line->address, &params, &link);
	rpc_lock_take(&rpc->lock);
	line->connecting = false;
	if (status != TERN_OK) {
		TN_ASSERT(rpc->refs > 1);
		rpc->refs--;
		if (tn_rpc_line_lasts(rpc))
			failed(rpc, status);
		else
			set_state(rpc, LINE_IDLE);
		return;
	}
	if (line->died_early) {
		dead = link;
	} else {
		line->link = link;
		/* numbers: a name is not looked up again, from a thread that must not wait */
		snprintf(line->address, sizeof(line->address), "%s", tern_link_peer_address(link));
	}
	if (!dead)
		return;
	rpc_lock_drop(&rpc->lock);
	tern_link_release(dead);
	rpc_lock_take(&rpc->lock);
}

void tn_rpc_line_kick(tern_rpc *rpc)
{
	if (rpc->line.state == LINE_IDLE && tn_rpc_line_lasts(rpc))
		dial(rpc);
}

uint64_t tn_rpc_line_tick(tern_rpc *rpc, uint64_t now_ns)
{
	rpc_line *line = &rpc->line;

	if ((line->state != LINE_WAIT && line->state != LINE_BROKEN) || !tn_rpc_line_lasts(rpc))
		return TN_TIME_NEVER;
	if (line->wake_ns > now_ns)
		return line->wake_ns;
	if (line->state == LINE_BROKEN)
		line->failures = (uint32_t)line->breaker - 1; /* one more and it is open again */
	set_state(rpc, LINE_IDLE);
	if (has_active(rpc))
		dial(rpc);
	return line->state == LINE_WAIT || line->state == LINE_BROKEN ? line->wake_ns : TN_TIME_NEVER;
}

/* ---- the end ---- */

/* In the driver's thread no callback of the link runs meanwhile, and none comes after it is let go. */
static void let_go(tn_work *work)
{
	rpc_line *line = TN_CONTAINER_OF(work, rpc_line, end);
	tern_rpc *rpc = TN_CONTAINER_OF(line, tern_rpc, line);
	tern_link *link;

	rpc_lock_take(&rpc->lock);
	if (line->connecting || line->users > 0) { /* in another thread, and soon over */
		rpc_lock_drop(&rpc->lock);
		tn_ctx_defer(rpc->ctx, work);
		return;
	}
	link = line->link;
	line->link = NULL;
	rpc_lock_drop(&rpc->lock);
	if (link) {
		tern_link_release(link);
		tn_rpc_unref(rpc); /* the link's */
	}
	tn_rpc_unref(rpc);
}

void tn_rpc_line_end(tern_rpc *rpc)
{
	if (rpc->line.state == LINE_BORROWED) {
		tn_rpc_unref(rpc);
		return;
	}
	rpc_lock_take(&rpc->server->lock);
	tn_list_remove(&rpc->node);
	rpc_lock_drop(&rpc->server->lock);
	rpc->line.end.run = let_go;
	tn_ctx_defer(rpc->ctx, &rpc->line.end);
}
