/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams to backups over RPC. See replicas.h.
 *
 *   a frame is sent until it is answered; one that is not for ps.replica_patience says that the backup is lost: the
 *   coordinator is told, and the frame is sent on until a map says that its slots have no such backup any more
 *
 * Threads: any; completions and timers from dispatch. Tests: tests/unit/ps/replicas_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "ps/server.h"

static void on_sent(tern_op *op, void *arg);
static void on_timer(tn_ctx_timer *timer);

static tn_repl_out *out_of(const ps_stream *s)
{
	return s->replicas->repl.out[s->peer];
}

static uint64_t stream_id(void)
{
	uint64_t id = 0;

	while (id == 0)
		if (tn_os_random(&id, sizeof(id)) != TERN_OK)
			id = 0;
	return id;
}

/* ---- sending ---- */

/* Lock held. */
static void again_later(ps_stream *s, uint64_t ns)
{
	tern_ctx *ctx = s->replicas->server->ctx;

	tn_ctx_timer_set(ctx, &s->timer, tn_deadline(tn_ctx_now(ctx), ns));
}

/* Lock held, busy: the frame under way. */
static void send_frame(ps_stream *s)
{
	const tn_repl_out *out = out_of(s);
	tern_rpc_call_params call = {.method = TN_PS_REPLICATE,
				     .args = out->sent.at,
				     .args_bytes = out->sent.used,
				     .answer = s->answer,
				     .answer_capacity = sizeof(s->answer),
				     .flags = TERN_RPC_IDEMPOTENT};

	TN_ASSERT(s->busy && out->flying);
	tern_op_init(&s->op, on_sent, s);
	s->op.timeout_ns = s->replicas->patience_ns;
	if (tern_rpc_call(s->rpc, &call, &s->op) != TERN_OK)
		again_later(s, s->replicas->retry_ns);
}

void tn_ps_stream_kick(ps_stream *s)
{
	ps_replicas *r = s->replicas;
	const uint8_t *frame;
	uint64_t bytes;

	if (s->busy || s->broken || !tn_repl_out_take(out_of(s), r->repl.version, &frame, &bytes))
		return;
	atomic_fetch_add_explicit(&r->frames, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->bytes, bytes, memory_order_relaxed);
	pthread_cond_broadcast(&s->room);
	s->busy = true;
	send_frame(s);
}

/* Hold shared: the coordinator is told that the backup does not answer. */
static void tell_lost(ps_stream *s)
{
	ps_replicas *r = s->replicas;
	tn_repl_told *told = malloc(sizeof(*told));

	if (!told)
		return; /* it is told again */
	tn_repl_of_peer(&r->repl, s->peer, told);
	TN_LOG(WARN, PS, "backup %u at %s does not take what it is sent: %u slots are to go on without it",
	       s->peer, s->address, told->count);
	if (told->count)
		r->env.lost(r->env.arg, told->slot, told->epoch, told->count);
	free(told);
}

void tn_ps_stream_break(ps_stream *s)
{
	ps_replicas *r = s->replicas;
	tn_ps_slots slots = {{0}};

	s->broken = true;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (tn_repl_copies_to(&r->repl, i, s->peer))
			tn_ps_slots_add(&slots, i);
	tn_repl_freeze(&r->repl, &slots);
	tell_lost(s);
	if (!s->busy) {
		s->busy = true; /* the timer tells it again */
		again_later(s, r->patience_ns);
	}
}

/* ---- answered ---- */

/* Lock held: commits of the frame. */
static void release_waits(ps_replicas *r, tn_repl_waits *waits, const tn_ps_slots *refused, tn_list *over)
{
	pthread_mutex_lock(&r->commit_lock);
	for (uint32_t i = 0; i < waits->count; i++) {
		tn_commit *c = waits->who[i];

		for (unsigned w = 0; refused && w < 64; w++)
			if (c->slots.bits[w] & refused->bits[w])
				c->refused = true;
		tn_commit_release(c, over);
	}
	waits->count = 0;
	pthread_mutex_unlock(&r->commit_lock);
}

/* Lock held, hold shared. False: the frame is to be sent again. */
static bool take_answer(ps_stream *s, tern_status status, uint64_t bytes, tn_list *over)
{
	ps_replicas *r = s->replicas;
	tn_repl_out *out = out_of(s);
	uint64_t now = tn_ctx_now(r->server->ctx);
	tn_repl_answer a = {.verdict = TN_REPL_LOST};

	if (status == TERN_OK && tn_repl_answer_decode(s->answer, bytes, &a) &&
	    a.verdict <= TN_REPL_PARTIAL) {
		s->failing_ns = 0;
		tn_repl_answered(&r->repl, s->peer, &a.refused, &s->synced, &s->released);
		release_waits(r, &out->sent_waits, &a.refused, over);
		tn_repl_out_answered(out);
		return true;
	}
	if (status == TERN_OK && a.verdict == TN_REPL_LATER) {
		again_later(s, r->retry_ns);
		return false;
	}
	if (s->failing_ns == 0)
		s->failing_ns = now;
	if (status == TERN_OK ||
	    now - s->failing_ns >= r->patience_ns) { /* OK: it said that it is of no use */
		s->failing_ns = now;
		tell_lost(s);
	}
	again_later(s, status == TERN_OK ? r->patience_ns : r->retry_ns);
	return false;
}

static void on_sent(tern_op *op, void *arg)
{
	ps_stream *s = arg;
	ps_replicas *r = s->replicas;
	tn_list over;

	tn_list_init(&over);
	pthread_rwlock_rdlock(&r->server->hold);
	pthread_mutex_lock(&s->lock);
	s->synced.count = s->released.count = 0;
	if (s->stale) {
		s->stale = s->busy = false;
		tn_ps_stream_kick(s);
	} else if (take_answer(s, op->status, op->length, &over)) {
		s->busy = false;
		tn_ps_stream_kick(s);
	}
	pthread_mutex_unlock(&s->lock);
	tn_ps_commits_judge(r, &over);
	pthread_rwlock_unlock(&r->server->hold);
	if (s->synced.count)
		r->env.synced(r->env.arg, s->synced.slot, s->synced.epoch, s->synced.count);
	if (s->released.count)
		r->env.released(r->env.arg, s->released.slot, s->released.epoch, s->released.count);
	tn_ps_commits_answer(r, &over);
}

static void on_timer(tn_ctx_timer *timer)
{
	ps_stream *s = TN_CONTAINER_OF(timer, ps_stream, timer);
	ps_replicas *r = s->replicas;

	pthread_rwlock_rdlock(&r->server->hold);
	pthread_mutex_lock(&s->lock);
	if (s->stale) {
		s->stale = s->busy = false;
		tn_ps_stream_kick(s);
	} else if (s->broken) {
		tell_lost(s);
		again_later(s, r->patience_ns);
	} else if (out_of(s)->flying) {
		send_frame(s);
	} else {
		s->busy = false;
		tn_ps_stream_kick(s);
	}
	pthread_mutex_unlock(&s->lock);
	pthread_rwlock_unlock(&r->server->hold);
}

/* ---- streams ---- */

static ps_stream *stream_new(ps_replicas *r, uint16_t peer, const char *address)
{
	ps_stream *s = calloc(1, sizeof(*s));
	pthread_condattr_t attr;

	if (!s)
		return NULL;
	s->replicas = r;
	s->peer = peer;
	snprintf(s->address, sizeof(s->address), "%s", address);
	s->timer.run = on_timer;
	if (tern_rpc_connect(r->server->ctx, address, NULL, &s->rpc) != TERN_OK) {
		free(s);
		return NULL;
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->room, &attr);
	pthread_condattr_destroy(&attr);
	return s;
}

ps_stream *tn_ps_stream_get(ps_replicas *r, uint16_t peer)
{
	const ps_view *view = atomic_load_explicit(&r->server->view, memory_order_acquire);
	const char *address = view->map.server[peer].address;
	ps_stream *s = r->streams[peer];

	if (s && strcmp(s->address, address) == 0)
		return s;
	if (!tn_repl_stream(&r->repl, peer, stream_id()))
		return NULL;
	s = stream_new(r, peer, address);
	if (!s)
		return NULL;
	s->older = r->streams[peer];
	r->streams[peer] = s;
	return s;
}

void tn_ps_streams_renew(ps_replicas *r, const tn_cl_map *map, tn_list *over)
{
	uint32_t streaming = 0;

	for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++) {
		ps_stream *s = r->streams[p];
		tn_repl_out *out = r->repl.out[p];

		streaming += r->repl.begun[p] > 0;
		if (!s || r->repl.begun[p] > 0)
			continue;
		pthread_mutex_lock(&s->lock);
		release_waits(r, &out->sent_waits, NULL, over);
		release_waits(r, &out->open_waits, NULL, over);
		if (s->busy)
			s->stale = true;
		s->broken = false;
		s->failing_ns = 0;
		(void)tn_repl_out_begin(out, r->repl.self, stream_id()); /* its buffer is there */
		pthread_cond_broadcast(&s->room);
		pthread_mutex_unlock(&s->lock);
	}
	(void)map;
	atomic_store_explicit(&r->streaming, streaming, memory_order_release);
}

void tn_ps_streams_free(ps_replicas *r)
{
	for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++) {
		ps_stream *s = r->streams[p];

		while (s) {
			ps_stream *older = s->older;

			tern_rpc_close(s->rpc); /* a call under way ends here, and may set the timer */
			tn_ctx_timer_cancel(r->server->ctx, &s->timer);
			pthread_mutex_destroy(&s->lock);
			pthread_cond_destroy(&s->room);
			free(s);
			s = older;
		}
		r->streams[p] = NULL;
	}
}
