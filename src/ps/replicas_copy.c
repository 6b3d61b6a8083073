/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier: slots to new backups, slots that move, rows that are not kept here any more. See replicas.h.
 *
 *   some slots of one backup:  hold exclusively: BEGIN, facts  -> each slot, each table: rows, a chunk at a time, through
 *   the stream that writes go through meanwhile -> those that move: frozen, writes at work let end -> SYNCED
 *
 * Threads: one of its own. Tests: tests/unit/ps/replicas_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/time.h"
#include "ps/server.h"

#define GROUP      256u         /* slots that begin together */
#define CHUNK_ROWS 128u         /* at least, of a table's order held */
#define AHEAD      (2ull << 20) /* bytes in the stream above which the copier waits */
#define NAP_NS     (50 * TN_NS_PER_MS)

typedef struct group {
	ps_replicas *r;
	ps_stream *s;
	uint16_t peer;
	tn_ps_slots slots;
	ps_share *shares[TN_PS_TABLES_MAX];
	uint32_t count;
	uint64_t staged; /* number of the last piece (steps.h) when it began */
} group;

static bool stopping(ps_replicas *r)
{
	bool stop;

	pthread_mutex_lock(&r->copy_lock);
	stop = r->stop;
	pthread_mutex_unlock(&r->copy_lock);
	return stop;
}

static struct timespec in(uint64_t ns)
{
	uint64_t at = tn_now() + ns;

	return (struct timespec){.tv_sec = (time_t)(at / TN_NS_PER_SEC),
				 .tv_nsec = (long)(at % TN_NS_PER_SEC)};
}

/* Memory is short, or a backup can't be dialed: a while, unless there is something new. */
static void nap(ps_replicas *r)
{
	struct timespec until = in(NAP_NS);

	pthread_mutex_lock(&r->copy_lock);
	if (!r->stop)
		(void)pthread_cond_timedwait(&r->copy_work, &r->copy_lock, &until);
	pthread_mutex_unlock(&r->copy_lock);
}

/* ---- copying ---- */

/* Hold exclusively. */
static void take_shares(group *g)
{
	tern_ps_server *server = g->r->server;

	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count; i++) {
		g->shares[i] = server->shares[i];
		atomic_fetch_add_explicit(&g->shares[i]->refs, 1, memory_order_relaxed);
	}
	g->count = server->share_count;
	pthread_mutex_unlock(&server->tables_lock);
}

/* False: nothing waits. */
static bool begin(group *g, bool *failed)
{
	ps_replicas *r = g->r;
	bool any, ok = false;

	pthread_rwlock_wrlock(&r->server->hold);
	any = tn_repl_next(&r->repl, GROUP, &g->slots, &g->peer);
	if (any) {
		g->s = tn_ps_stream_get(r, g->peer);
		take_shares(g);
		if (g->s) {
			tn_steps *steps = &r->server->rounds.steps;

			pthread_mutex_lock(&steps->lock);
			g->staged = steps->numbers;
			pthread_mutex_lock(&g->s->lock);
			ok = tn_repl_begin(&r->repl, g->peer, &g->slots, g->shares, g->count, steps);
			if (ok)
				tn_ps_stream_kick(g->s);
			pthread_mutex_unlock(&g->s->lock);
			pthread_mutex_unlock(&steps->lock);
		}
		if (ok && r->repl.begun[g->peer] <= GROUP) {
			uint32_t streaming = 0;

			for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++)
				streaming += r->repl.begun[p] > 0;
			atomic_store_explicit(&r->streaming, streaming, memory_order_release);
		}
	}
	pthread_rwlock_unlock(&r->server->hold);
	*failed = any && !ok;
	return any;
}

static void wait_for_room(group *g)
{
	ps_stream *s = g->s;

	pthread_mutex_lock(&s->lock);
	while (g->r->repl.out[g->peer]->open.used > AHEAD && s->busy && !s->broken) {
		struct timespec until = in(TN_NS_PER_SEC); /* to see that it is to stop */

		if (pthread_cond_timedwait(&s->room, &s->lock, &until) != 0)
			break;
	}
	pthread_mutex_unlock(&s->lock);
}

/* False: memory is short. */
static bool copy_chunk(group *g, ps_share *share, uint32_t slot, uint64_t *cursor)
{
	ps_replicas *r = g->r;
	tern_status status;

	wait_for_room(g);
	pthread_rwlock_rdlock(&r->server->hold);
	pthread_mutex_lock(&share->order);
	pthread_mutex_lock(&g->s->lock);
	status = tn_repl_copy(&r->repl, g->peer, share, slot, cursor, CHUNK_ROWS);
	tn_ps_stream_kick(g->s);
	pthread_mutex_unlock(&g->s->lock);
	pthread_mutex_unlock(&share->order);
	pthread_rwlock_unlock(&r->server->hold);
	return status == TERN_OK;
}

static void copy_slot(group *g, uint32_t slot)
{
	for (uint32_t i = 0; i < g->count; i++) {
		uint64_t cursor = 0;

		while (cursor != TN_SCAN_END && !stopping(g->r))
			if (!copy_chunk(g, g->shares[i], slot, &cursor))
				nap(g->r);
	}
}

/* Gradients of steps that have not closed; those that come from now on go into the stream by themselves. */
static void copy_steps(group *g)
{
	ps_replicas *r = g->r;
	tn_steps *steps = &r->server->rounds.steps;
	uint64_t cursor = 0;

	while (cursor != TN_SCAN_END && !stopping(r)) {
		bool ok;

		wait_for_room(g);
		pthread_rwlock_rdlock(&r->server->hold);
		pthread_mutex_lock(&steps->lock);
		pthread_mutex_lock(&g->s->lock);
		ok = tn_repl_copy_steps(&r->repl, g->peer, steps, &g->slots, &cursor);
		tn_ps_stream_kick(g->s);
		pthread_mutex_unlock(&g->s->lock);
		if (cursor > g->staged)
			cursor = TN_SCAN_END;
		pthread_mutex_unlock(&steps->lock);
		pthread_rwlock_unlock(&r->server->hold);
		if (!ok)
			nap(r);
	}
}

/* No write that began before is at work any more. */
static void writes_end(ps_replicas *r)
{
	pthread_rwlock_wrlock(&r->server->hold);
	pthread_rwlock_unlock(&r->server->hold);
}

static bool finish(ps_replicas *r, ps_stream *s, uint16_t peer, const tn_ps_slots *slots,
		   const tn_ps_slots *handed)
{
	bool ok;

	pthread_rwlock_rdlock(&r->server->hold);
	pthread_mutex_lock(&s->lock);
	ok = tn_repl_finish(&r->repl, peer, slots, handed);
	tn_ps_stream_kick(s);
	pthread_mutex_unlock(&s->lock);
	pthread_rwlock_unlock(&r->server->hold);
	return ok;
}

/* Those that are to be handed over are not served from now on. */
static void let_go(group *g, tn_ps_slots *move)
{
	ps_replicas *r = g->r;
	uint64_t any = 0;

	pthread_rwlock_rdlock(&r->server->hold);
	tn_repl_to_hand(&r->repl, g->peer, &g->slots, move);
	for (unsigned w = 0; w < 64; w++)
		any |= move->bits[w];
	tn_repl_freeze(&r->repl, move);
	pthread_rwlock_unlock(&r->server->hold);
	if (any)
		writes_end(r);
}

/* A group. False: there was none. */
static bool copy_some(ps_replicas *r)
{
	group *g = calloc(1, sizeof(*g));
	bool any = false, failed = true;
	tn_ps_slots handed;

	if (g) {
		g->r = r;
		any = begin(g, &failed);
	}
	if (any && !failed) {
		for (uint32_t slot = 0; slot < TN_CL_SLOTS && !stopping(r); slot++)
			if (tn_ps_slots_has(&g->slots, slot))
				copy_slot(g, slot);
		copy_steps(g);
		let_go(g, &handed);
		while (!stopping(r) && !finish(r, g->s, g->peer, &g->slots, &handed))
			nap(r);
	}
	for (uint32_t i = 0; g && i < g->count; i++)
		tn_ps_share_put(g->shares[i]);
	if (!g || failed)
		nap(r);
	free(g);
	return any;
}

/* ---- handing over ---- */

static bool move_some(ps_replicas *r)
{
	ps_stream *s = NULL;
	tn_ps_slots slots;
	uint16_t peer;
	bool any;

	pthread_rwlock_rdlock(&r->server->hold);
	any = tn_repl_next_move(&r->repl, &slots, &peer);
	if (any) {
		s = r->streams[peer];
		tn_repl_freeze(&r->repl, &slots);
	}
	pthread_rwlock_unlock(&r->server->hold);
	if (!any)
		return false;
	TN_ASSERT(s);
	writes_end(r);
	while (!stopping(r) && !finish(r, s, peer, &slots, &slots))
		nap(r);
	return true;
}

/* ---- dropping ---- */

/* A slot that is not kept here: under in_lock, so that it does not come back meanwhile, as a backup, and under hold: as
   primary. */
static void drop_slot(ps_replicas *r, uint32_t slot)
{
	tern_ps_server *server = r->server;
	tn_ps_slots one = {{0}};

	tn_ps_slots_add(&one, slot);
	pthread_mutex_lock(&r->in_lock);
	pthread_rwlock_rdlock(&server->hold);
	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count && !tn_ps_slots_has(&r->repl.kept, slot); i++)
		tn_ps_share_drop_slots(server->shares[i], &one);
	pthread_mutex_unlock(&server->tables_lock);
	pthread_mutex_lock(&server->rounds.steps.lock);
	if (!tn_ps_slots_has(&r->repl.kept, slot))
		tn_steps_drop_slots(&server->rounds.steps, &one);
	pthread_mutex_unlock(&server->rounds.steps.lock);
	pthread_rwlock_unlock(&server->hold);
	pthread_mutex_unlock(&r->in_lock);
}

/* ---- the thread ---- */

static bool wait_for_work(ps_replicas *r, tn_ps_slots *gone, bool *any_gone)
{
	uint64_t any = 0;

	pthread_mutex_lock(&r->copy_lock);
	while (!r->stop && !r->work)
		pthread_cond_wait(&r->copy_work, &r->copy_lock);
	r->work = false;
	*gone = r->gone;
	memset(&r->gone, 0, sizeof(r->gone));
	for (unsigned w = 0; w < 64; w++)
		any |= gone->bits[w];
	*any_gone = any != 0;
	any = !r->stop;
	pthread_mutex_unlock(&r->copy_lock);
	return any != 0;
}

static void *copier(void *arg)
{
	ps_replicas *r = arg;
	tn_ps_slots gone;
	bool any;

	while (wait_for_work(r, &gone, &any)) {
		for (uint32_t s = 0; any && s < TN_CL_SLOTS; s++)
			if (tn_ps_slots_has(&gone, s))
				drop_slot(r, s);
		while (!stopping(r) && (move_some(r) || copy_some(r)))
			;
	}
	return NULL;
}

tern_status tn_ps_copier_start(ps_replicas *r)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&r->copy_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->copy_work, &attr);
	pthread_condattr_destroy(&attr);
	if (pthread_create(&r->copier, NULL, copier, r) != 0)
		return tn_fail_errno(TERN_E_LIMIT, "pthread_create",
				     "the thread that copies slots to backups: RLIMIT_NPROC or pids.max");
	r->copier_runs = true;
	return TERN_OK;
}

void tn_ps_copier_stop(ps_replicas *r)
{
	pthread_mutex_lock(&r->copy_lock);
	r->stop = true;
	pthread_cond_broadcast(&r->copy_work);
	pthread_mutex_unlock(&r->copy_lock);
	if (r->copier_runs)
		pthread_join(r->copier, NULL);
	r->copier_runs = false;
	pthread_mutex_destroy(&r->copy_lock);
	pthread_cond_destroy(&r->copy_work);
}

void tn_ps_copier_wake(ps_replicas *r, const tn_ps_slots *gone)
{
	pthread_mutex_lock(&r->copy_lock);
	for (unsigned w = 0; gone && w < 64; w++)
		r->gone.bits[w] |= gone->bits[w];
	r->work = true;
	pthread_cond_broadcast(&r->copy_work);
	pthread_mutex_unlock(&r->copy_lock);
}
