/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: made, called, closed.
 *
 *   open -> refusing (tern_rpc_close began) -> closing (no sink-less call is left) -> over
 *
 * A closed client lingers while calls with sinks are ZOMBIE; the last of them, or the channel's end, ends it.
 * Threads: see client.h. Tests: tests/unit/rpc/rpc_test.c, close_test.c, relink_test.c, relink_storm_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/os.h"
#include "base/time.h"
#include "rpc/client.h"

void tn_rpc_unref(tern_rpc *rpc)
{
	bool last;

	rpc_lock_take(&rpc->lock);
	TN_ASSERT(rpc->refs >= 1);
	last = --rpc->refs == 0;
	rpc_lock_drop(&rpc->lock);
	if (!last)
		return;
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		for (unsigned i = 0; rpc->streams[k] && i < TN_RPC_WINDOW; i++)
			tn_rpc_spare_give(&rpc->spare, rpc->streams[k]->calls[i].args_copy);
		free(rpc->streams[k]);
	}
	tn_rpc_spare_end(&rpc->spare);
	rpc_lock_fini(&rpc->lock);
	free(rpc);
}

/* ---- the timer ---- */

void tn_rpc_arm(tern_rpc *rpc, uint64_t at_ns)
{
	if (at_ns >= rpc->timer_at || rpc->over)
		return;
	rpc->timer_at = at_ns;
	tn_ctx_timer_set(rpc->ctx, &rpc->timer, at_ns);
}

static void on_timer(tn_ctx_timer *timer)
{
	tern_rpc *rpc = TN_CONTAINER_OF(timer, tern_rpc, timer);
	uint64_t now = tn_ctx_now(rpc->ctx), next;

	rpc_lock_take(&rpc->lock);
	rpc->timer_at = TN_TIME_NEVER;
	rpc->refs++; /* completions may close the client */
	next = tn_rpc_line_tick(rpc, now);
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		uint64_t at = rpc->streams[k] ? tn_rpc_stream_tick(rpc->streams[k], now) : TN_TIME_NEVER;

		next = TN_MIN(next, at);
	}
	if (next != TN_TIME_NEVER && rpc->ended == TERN_OK)
		tn_rpc_arm(rpc, next);
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
}

/* ---- ends ---- */

bool tn_rpc_take_end(tern_rpc *rpc)
{
	if (!rpc->closing || rpc->over || rpc->sink_calls)
		return false;
	rpc->over = true;
	return true;
}

/* The timer first: its run sends through the channels. */
static void stop_client(tern_rpc *rpc)
{
	rpc_pipe *pipes[TN_RPC_CLASSES] = {NULL};

	tn_ctx_timer_cancel(rpc->ctx, &rpc->timer);
	rpc_lock_take(&rpc->lock);
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++) {
		if (!rpc->streams[k])
			continue;
		pipes[k] = rpc->streams[k]->pipe;
		rpc->streams[k]->pipe = NULL;
	}
	rpc_lock_drop(&rpc->lock);
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++)
		if (pipes[k])
			tn_rpc_pipe_unref(pipes[k]);
}

void tn_rpc_end(tern_rpc *rpc)
{
	stop_client(rpc);
	tn_rpc_line_end(rpc);
}

/* Lock held, free meanwhile. */
static void fail_stream(rpc_stream *stream, tern_status status, const char *text)
{
	tern_rpc *rpc = stream->rpc;

	for (uint64_t seq = stream->low_water; seq < stream->next_seq; seq++) {
		rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

		if (c->state == CALL_FREE || c->seq != seq)
			continue;
		if ((c->has_sinks || tn_rpc_call_reads(c)) && rpc->ended == TERN_OK) {
			if (c->state == CALL_ACTIVE)
				tn_rpc_call_give_up(c, status, text);
			continue;
		}
		tn_rpc_call_end(c, c->state == CALL_ZOMBIE ? c->why : status, 0, text);
	}
	tn_rpc_stream_advance(stream);
}

void tn_rpc_fail_all(tern_rpc *rpc, tern_status status, const char *detail, bool close)
{
	char text[TN_DETAIL_MAX]; /* the callbacks may fail at something and so change tern_detail() */
	bool end;

	snprintf(text, sizeof(text), "%s", detail);
	rpc_lock_take(&rpc->lock);
	rpc->refs++; /* a completion may close the client */
	if (rpc->status == TERN_OK)
		rpc->status = status;
	if (!close)
		rpc->ended = status;
	for (unsigned k = 0; k < TN_RPC_CLASSES; k++)
		if (rpc->streams[k])
			fail_stream(rpc->streams[k], status, text);
	if (close)
		rpc->closing = true;
	end = tn_rpc_take_end(rpc);
	rpc_lock_drop(&rpc->lock);
	if (end)
		tn_rpc_end(rpc);
	tn_rpc_unref(rpc);
}

/* No thread but this one is in the context any more, and its links are down. */
static void end_with_context(tern_rpc *rpc)
{
	tern_link *link;

	rpc_lock_take(&rpc->lock);
	rpc->refs++;
	rpc_lock_drop(&rpc->lock);
	tn_rpc_fail_all(rpc, TERN_E_FLUSHED, "the context was destroyed", false);
	stop_client(rpc);
	rpc_lock_take(&rpc->lock);
	rpc->orphan = true;
	link = rpc->line.link;
	rpc->line.link = NULL;
	rpc_lock_drop(&rpc->lock);
	if (link) {
		tern_link_release(link);
		tn_rpc_unref(rpc); /* the link's */
	}
	tn_rpc_unref(rpc);
}

void tn_rpc_clients_end(tn_rpc_server *server)
{
	rpc_lock_take(&server->lock);
	while (!tn_list_empty(&server->clients)) {
		tern_rpc *rpc = TN_LIST_FIRST(&server->clients, tern_rpc, node);

		tn_list_remove(&rpc->node);
		rpc_lock_drop(&server->lock);
		end_with_context(rpc);
		rpc_lock_take(&server->lock);
	}
	rpc_lock_drop(&server->lock);
}

void tern_rpc_close(tern_rpc *rpc)
{
	if (!rpc)
		return;
	TN_ASSERT(!rpc->closing);
	if (rpc->orphan) {
		tn_rpc_unref(rpc);
		return;
	}
	tn_rpc_fail_all(rpc, TERN_E_FLUSHED, "the RPC client was closed", true);
}

/* ---- beginnings ---- */

static void fill_options(tern_rpc *rpc)
{
	const tn_options *o = tn_ctx_options(rpc->ctx);

	rpc->default_timeout_ns = tn_opt_u64(o, tn_rpc_options, "timeout");
	rpc->tries_max = tn_opt_u64(o, tn_rpc_options, "tries");
	rpc->budget = rpc->budget_max = 10 * tn_opt_u64(o, tn_rpc_options, "retry_budget");
	rpc->line.redial_ns = tn_opt_u64(o, tn_rpc_options, "redial");
	rpc->line.redial_max_ns = tn_opt_u64(o, tn_rpc_options, "redial_max");
	rpc->line.breaker = tn_opt_u64(o, tn_rpc_options, "breaker");
	rpc->line.breaker_ns = tn_opt_u64(o, tn_rpc_options, "breaker_time");
}

static tern_rpc *client_new(tern_ctx *ctx)
{
	tn_rpc_server *server = tn_rpc_server_get(ctx);
	tern_rpc *rpc = server ? calloc(1, sizeof(*rpc)) : NULL;

	if (!rpc)
		return NULL;
	rpc->ctx = ctx;
	rpc->server = server;
	rpc->counters = tn_rpc_counters_of(server);
	rpc->spans = tn_ctx_spans(ctx);
	rpc->call_span = tn_spans_kind(rpc->spans, "rpc.call");
	rpc_lock_init(&rpc->lock, rpc->counters->own);
	rpc->refs = 1;
	rpc->timer_at = TN_TIME_NEVER;
	rpc->timer.run = on_timer;
	tn_list_init(&rpc->hedges);
	fill_options(rpc);
	tn_os_random(rpc->id.bytes, sizeof(rpc->id.bytes));
	memcpy(&rpc->rng.state, rpc->id.bytes, sizeof(rpc->rng.state));
	if (tn_rpc_stream_get(rpc, TERN_RPC_NORMAL))
		return rpc;
	tn_rpc_unref(rpc);
	return NULL;
}

tern_status tern_rpc_open(tern_link *link, tern_rpc **out)
{
	tern_rpc *rpc = client_new(tern_link_ctx(link));
	tern_status status;

	*out = NULL;
	if (!rpc)
		return tn_fail(TERN_E_NOMEM, "no memory for an RPC client (%zu bytes)", sizeof(rpc_stream));
	rpc->line.link = link; /* for the first channel alone: later that keeps it */
	rpc_lock_take(&rpc->lock);
	rpc->refs++;
	status = tn_rpc_stream_connect(rpc->streams[TERN_RPC_NORMAL]);
	rpc->line.link = NULL;
	rpc_lock_drop(&rpc->lock);
	if (status != TERN_OK) {
		tn_rpc_unref(rpc);
		tern_rpc_close(rpc);
		return status;
	}
	tn_rpc_unref(rpc);
	*out = rpc;
	return TERN_OK;
}

tern_status tern_rpc_connect(tern_ctx *ctx, const char *address, const tern_connect_params *params,
			     tern_rpc **out)
{
	tern_rpc *rpc = client_new(ctx);
	tern_status status;

	*out = NULL;
	if (!rpc)
		return tn_fail(TERN_E_NOMEM, "no memory for an RPC client (%zu bytes)", sizeof(rpc_stream));
	tn_rpc_line_begin(rpc);
	rpc->line.timeout_ns = params ? params->timeout_ns : 0;
	if (snprintf(rpc->line.address, sizeof(rpc->line.address), "%s", address ? address : "") >=
		    (int)sizeof(rpc->line.address) ||
	    snprintf(rpc->line.transports, sizeof(rpc->line.transports), "%s",
		     params && params->transports ? params->transports : "") >=
		    (int)sizeof(rpc->line.transports)) {
		tn_rpc_unref(rpc);
		return tn_fail(TERN_E_INVALID, "an address, or a list of transports, that is too long");
	}
	rpc_lock_take(&rpc->server->lock);
	tn_list_push_back(&rpc->server->clients, &rpc->node);
	rpc_lock_drop(&rpc->server->lock);
	rpc_lock_take(&rpc->lock);
	rpc->refs++;
	tn_rpc_line_kick(rpc);
	status = rpc->line.state == LINE_WAIT ? rpc->line.status : TERN_OK;
	rpc_lock_drop(&rpc->lock);
	tn_rpc_unref(rpc);
	if (status == TERN_E_INVALID || status == TERN_E_NO_DEVICE || status == TERN_E_OPTION) {
		tern_rpc_close(rpc); /* it can never work: say so at once */
		return status;
	}
	*out = rpc;
	return TERN_OK;
}
