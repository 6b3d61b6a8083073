/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Summed steps at a server. See round.h; what is kept, and the order of a closing, is in steps.h. Meanwhile members stage later
 * steps.
 *
 *   a share of a closing:  hold shared -> slots are taken -> each table: its order -> sum, images into the streams
 *                          -> CLOSED into the streams, done -> hold let go
 *
 * Threads: see round.h. Tests: tests/unit/ps/round_test.c.
 */
#include "ps/round.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "ps/server.h"

#define PAUSE_NS 200000u

/* A closing of a life that is at work. */
typedef struct ps_wait {
	struct ps_wait *next;
	tern_rpc_request *request;
	uint64_t step;
} ps_wait;

#define CLOSED_BYTES (TN_PS_ANSWER_BYTES + sizeof(tn_ps_slots))

static void fails(tern_rpc_request *request, tern_status status)
{
	const char *detail = tn_detail_get();

	tern_rpc_reply(request, status, detail, strlen(detail));
}

/* When those have it who have to. */
static void reply(tern_ps_server *server, tern_rpc_request *request, ps_commit *commit, tern_status status,
		  const void *answer, uint64_t bytes)
{
	const char *detail = tn_detail_get();

	if (status != TERN_OK) {
		answer = detail;
		bytes = strlen(detail);
	}
	if (commit)
		tn_ps_replicas_end(server->replicas, commit, status, answer, bytes, status == TERN_OK);
	else
		tern_rpc_reply(request, status, answer, bytes);
}

/* Slots of this server of which something may be done now. Hold is shared. */
static const ps_view *serves(tern_ps_server *server, tn_ps_slots *slots)
{
	const ps_view *view = atomic_load_explicit(&server->view, memory_order_acquire);
	ps_replicas *r = server->replicas;

	*slots = view->mine;
	if (!r)
		return view;
	if (!r->env.lease(r->env.arg))
		memset(slots, 0, sizeof(*slots));
	for (unsigned w = 0; w < 64; w++)
		slots->bits[w] &= ~atomic_load_explicit(&r->repl.frozen[w], memory_order_acquire);
	return view;
}

/* ---- staging ---- */

/* Is it for a table that is here, as it is now, and of keys that are this server's? */
static tern_status check_table(tn_ps_rounds *rounds, const tn_ps_stage *s)
{
	ps_share *share = tn_ps_share_get(rounds->server, s->table);
	bool dtype = s->dtype == TERN_F32 || s->dtype == TERN_BF16 || s->dtype == TERN_F16;
	tern_status status = TERN_OK;

	if (!share)
		return tn_fail(TERN_E_NOT_FOUND, "there is no such table (any more)");
	if (share->hash != s->schema)
		status = tn_fail(TERN_E_SHAPE, "table \"%s\" has another schema now: open it again",
				 share->schema.name);
	else if (!dtype ||
		 s->row_bytes != s->count * share->schema.dim * tern_dtype_bytes((tern_dtype)s->dtype))
		status = tn_fail(TERN_E_PROTOCOL, "%" PRIu64 " rows are not what the message brings",
				 s->count);
	tn_ps_share_put(share);
	return status;
}

/* Hold is shared. What to do instead, or 0. */
static uint8_t refusal(tern_ps_server *server, const tn_ps_slots *slots, uint64_t bytes,
		       uint64_t *map_version)
{
	tn_ps_slots now;
	const ps_view *view = serves(server, &now);

	*map_version = view->map.version;
	if (!tn_ps_slots_within(slots, &view->mine))
		return TN_PS_WRONG_SERVER;
	if (!tn_ps_slots_within(slots, &now) ||
	    (server->replicas && !tn_ps_replicas_room(server->replicas, bytes)))
		return TN_PS_RUNNING;
	return 0;
}

/* Hold is shared. */
static tern_status keep(tn_ps_rounds *rounds, const tn_ps_stage *s, const tn_ps_slots *slots,
			ps_commit *commit)
{
	ps_replicas *r = rounds->server->replicas;
	tn_ps_slots fresh;
	tern_status status;

	pthread_mutex_lock(&rounds->steps.lock);
	status = rounds->closing ? tn_fail(TERN_E_FLUSHED, "the parameter server closes")
				 : tn_steps_stage(&rounds->steps, s, slots, rounds->staged_max, &fresh);
	if (status == TERN_OK && commit) {
		if (!tn_ps_slots_within(slots, &fresh))
			tn_ps_replicas_waits(r, commit);
		tn_ps_replicas_staged(r, commit, s, &fresh);
	}
	pthread_mutex_unlock(&rounds->steps.lock);
	return status;
}

static void stage(tn_ps_rounds *rounds, const tn_ps_stage *s, uint64_t bytes, tern_rpc_request *request)
{
	tern_ps_server *server = rounds->server;
	uint8_t out[TN_PS_ANSWER_BYTES];
	tern_status status = TERN_OK;
	ps_commit *commit = NULL;
	tn_ps_answer a = {0};
	tn_ps_slots slots;

	tn_steps_slots_of(s->keys, s->count, &slots);
	pthread_rwlock_rdlock(&server->hold);
	a.flags = refusal(server, &slots, bytes, &a.map_version);
	if (!a.flags && server->replicas &&
	    !tn_ps_replicas_step(server->replicas, &rounds->commits, NULL, request, &slots, false, &commit))
		a.flags = TN_PS_RUNNING; /* no memory: it may be there in a moment */
	if (!a.flags)
		status = keep(rounds, s, &slots, commit);
	pthread_rwlock_unlock(&server->hold);
	tn_ps_answer_encode(out, &a);
	reply(server, request, commit, status, out, sizeof(out));
}

static void on_stage(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_rounds *rounds = arg;
	tern_status status;
	tn_ps_stage s;

	if (!tn_ps_stage_decode(args, bytes, &s))
		status = tn_fail(TERN_E_PROTOCOL, "gradients of a step can't be read: another version?");
	else
		status = check_table(rounds, &s);
	if (status == TERN_OK)
		stage(rounds, &s, bytes, request);
	else
		fails(request, status);
}

/* ---- closing ---- */

/* Pushes stand still while a save marks its tables: after that. */
static void hold_cuts_off(tern_ps_server *server)
{
	for (;;) {
		pthread_rwlock_rdlock(&server->hold);
		if (!atomic_load(&server->held))
			return;
		pthread_rwlock_unlock(&server->hold);
		(void)tern_ctx_wait(server->ctx, PAUSE_NS);
	}
}

/* What was written, and is not answered to anybody by itself. */
typedef struct written {
	ps_commit *first;
} written;

static void add(written *all, ps_commit *commit)
{
	if (!commit)
		return;
	commit->next = all->first;
	all->first = commit;
}

/* Hold let go. */
static void let_go(tern_ps_server *server, written *all)
{
	while (all->first) {
		ps_commit *commit = all->first;

		all->first = commit->next;
		tn_ps_replicas_end(server->replicas, commit, TERN_OK, NULL, 0, false);
	}
}

/* A table that is there still: with a reference, and with backups its order. */
static ps_share *share_begin(tern_ps_server *server, const tn_piece *piece)
{
	ps_share *share = tn_ps_share_get(server, piece->table);

	if (share && share->hash != piece->schema) {
		tn_ps_share_put(share);
		share = NULL;
	}
	if (share && server->replicas)
		pthread_mutex_lock(&share->order);
	return share;
}

static void share_end(tern_ps_server *server, ps_share *share)
{
	if (server->replicas)
		pthread_mutex_unlock(&share->order);
	tn_ps_share_put(share);
}

/* *told: how the push ended. */
static tern_status sum_table(tern_ps_server *server, const tn_steps_work *w, uint32_t at, uint32_t n,
			     written *all, tern_status *told)
{
	ps_share *share = share_begin(server, w->items[at].piece);
	tern_status status = TERN_OK;
	ps_commit *commit = NULL;
	uint64_t *keys = NULL, count;

	*told = TERN_OK;
	if (!share) /* dropped meanwhile, with the rows it had */
		return TERN_OK;
	if (server->replicas &&
	    !tn_ps_replicas_step(server->replicas, &share->commits, share, NULL, &w->slots, false, &commit))
		status = tn_fail(TERN_E_NOMEM, "no memory to tell backups of a step");
	add(all, commit);
	if (status == TERN_OK)
		status = tn_steps_sum(share, w, w->items + at, n, &keys, &count, told);
	if (status == TERN_OK && commit)
		tn_ps_replicas_summed(server->replicas, share, commit, w, keys, count, *told);
	free(keys);
	share_end(server, share);
	return status;
}

/* Hold is shared. Not TERN_OK: slots stay open. */
static tern_status sum_all(tn_ps_rounds *rounds, tn_steps_work *w, written *all)
{
	tern_ps_server *server = rounds->server;
	tern_status told = TERN_OK, status = TERN_OK;
	ps_commit *commit = NULL;

	for (uint32_t at = 0, n; status == TERN_OK && tn_steps_table(w, &at, &n); at += n) {
		tern_status one;

		status = sum_table(server, w, at, n, all, &one);
		told = told == TERN_OK ? one : told;
	}
	if (status == TERN_OK && server->replicas &&
	    !tn_ps_replicas_step(server->replicas, &rounds->commits, NULL, NULL, &w->slots, false, &commit))
		status = tn_fail(TERN_E_NOMEM, "no memory to tell backups of a step");
	pthread_mutex_lock(&rounds->steps.lock);
	if (status == TERN_OK) {
		tn_ps_replicas_closed(server->replicas, commit, w, told);
		tn_steps_done(&rounds->steps, w, told);
	} else {
		tn_steps_undo(&rounds->steps, w);
	}
	pthread_mutex_unlock(&rounds->steps.lock);
	add(all, commit);
	return status;
}

/* A share of it. False: nothing is left, or *status says why it can't go on. */
static bool close_some(tn_ps_rounds *rounds, const tn_ps_close *c, tern_status *status)
{
	tern_ps_server *server = rounds->server;
	written all = {0};
	tn_steps_work w;
	tn_ps_slots may;
	bool more;

	hold_cuts_off(server);
	(void)serves(server, &may);
	pthread_mutex_lock(&rounds->steps.lock);
	*status = tn_steps_take(&rounds->steps, c, &may, server->replicas ? TN_STEPS_SHARE : 0, &w);
	pthread_mutex_unlock(&rounds->steps.lock);
	more = *status == TERN_OK && !tn_ps_slots_none(&w.slots);
	if (more)
		*status = sum_all(rounds, &w, &all);
	pthread_rwlock_unlock(&server->hold);
	let_go(server, &all);
	return more && *status == TERN_OK;
}

/* Backups have taken some of what was written before. */
static void wait_for_room(tern_ps_server *server)
{
	bool room = !server->replicas;

	while (!room) {
		pthread_rwlock_rdlock(&server->hold);
		room = tn_ps_replicas_room(server->replicas, TN_STEPS_SHARE);
		pthread_rwlock_unlock(&server->hold);
		if (!room)
			(void)tern_ctx_wait(server->ctx, PAUSE_NS);
	}
}

/* In which slots it is closed, or how it ended. */
static void answer_closed(tn_ps_rounds *rounds, uint64_t life_id, uint64_t step, tern_rpc_request *request)
{
	tern_ps_server *server = rounds->server;
	uint8_t out[CLOSED_BYTES];
	tern_status status = TERN_OK;
	ps_commit *commit = NULL;
	tn_ps_slots may, closed;
	tn_ps_answer a = {0};
	const tn_life *life;

	pthread_rwlock_rdlock(&server->hold);
	a.map_version = serves(server, &may)->map.version;
	pthread_mutex_lock(&rounds->steps.lock);
	tn_steps_closed(&rounds->steps, life_id, step, &may, &closed);
	life = tn_steps_find(&rounds->steps, life_id);
	if (life && life->newest == step + 1 && (status = life->status) != TERN_OK)
		tn_detail_set("%s", life->detail);
	pthread_mutex_unlock(&rounds->steps.lock);
	if (server->replicas &&
	    !tn_ps_replicas_step(server->replicas, &rounds->commits, NULL, request, &closed, true, &commit)) {
		a.flags = TN_PS_RUNNING;
		memset(&closed, 0, sizeof(closed));
	}
	pthread_rwlock_unlock(&server->hold);
	tn_ps_answer_encode(out, &a);
	tn_ps_slots_encode(out + TN_PS_ANSWER_BYTES, &closed);
	reply(server, request, commit, status, out, sizeof(out));
}

/* The life is this closing's from now on; false: it waits for another one, or *status. */
static bool begin(tn_ps_rounds *rounds, const tn_ps_close *c, tern_rpc_request *request, tn_life **life,
		  tern_status *status)
{
	ps_wait *wait = malloc(sizeof(*wait));
	bool mine = false;

	*status = TERN_OK;
	pthread_mutex_lock(&rounds->steps.lock);
	*life = wait ? tn_steps_life(&rounds->steps, c->life) : NULL;
	if (!*life) {
		*status = tn_fail(TERN_E_NOMEM, "no memory to close a step");
	} else if ((*life)->busy) {
		*wait = (ps_wait){.next = (*life)->waits, .request = request, .step = c->step};
		(*life)->waits = wait;
		wait = NULL;
	} else {
		(*life)->busy = mine = true;
	}
	pthread_mutex_unlock(&rounds->steps.lock);
	free(wait);
	return mine;
}

static void close_all(tn_ps_rounds *rounds, const tn_ps_close *c, tern_rpc_request *request)
{
	tern_status status;
	ps_wait *waits;
	tn_life *life;

	if (!begin(rounds, c, request, &life, &status)) {
		if (status != TERN_OK)
			fails(request, status);
		return;
	}
	while (close_some(rounds, c, &status))
		wait_for_room(rounds->server);
	pthread_mutex_lock(&rounds->steps.lock);
	waits = life->waits;
	life->waits = NULL;
	life->busy = false;
	pthread_mutex_unlock(&rounds->steps.lock);
	if (status == TERN_OK)
		answer_closed(rounds, c->life, c->step, request);
	else
		fails(request, status);
	while (waits) {
		ps_wait *next = waits->next;

		answer_closed(rounds, c->life, waits->step, waits->request);
		free(waits);
		waits = next;
	}
}

void tn_ps_round_work(tn_ps_rounds *rounds, tern_rpc_request *request, const void *args, uint64_t bytes)
{
	tn_ps_close c;
	bool good = tn_ps_close_decode(args, bytes, &c);

	TN_ASSERT(good);
	close_all(rounds, &c, request);
}

/* Is there anything to do, or to wait for? */
static bool is_open(tn_ps_rounds *rounds, const tn_ps_close *c)
{
	tern_ps_server *server = rounds->server;
	const tn_life *life;
	tn_ps_slots may;
	bool open;

	pthread_rwlock_rdlock(&server->hold);
	(void)serves(server, &may);
	pthread_mutex_lock(&rounds->steps.lock);
	life = tn_steps_find(&rounds->steps, c->life);
	open = (life && life->busy) || tn_steps_open(&rounds->steps, c, &may);
	pthread_mutex_unlock(&rounds->steps.lock);
	pthread_rwlock_unlock(&server->hold);
	return open;
}

static void on_close(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_rounds *rounds = arg;
	tn_ps_close c;

	if (!tn_ps_close_decode(args, bytes, &c) || c.step == UINT64_MAX) {
		fails(request, tn_fail(TERN_E_PROTOCOL, "the end of a step can't be read: another version?"));
		return;
	}
	if (!is_open(rounds, &c))
		answer_closed(rounds, c.life, c.step, request);
	else if (!tn_ps_work_hand(rounds->server, request, (tn_ps_method)TN_PS_CLOSE, args, bytes))
		close_all(rounds, &c, request);
}

/* ---- life ---- */

void tn_ps_rounds_init(tn_ps_rounds *rounds, tern_ps_server *server)
{
	memset(rounds, 0, sizeof(*rounds));
	rounds->server = server;
	rounds->staged_max = tn_opt_u64(tn_ctx_options(server->ctx), tn_ps_options, "staged_bytes");
	tn_steps_init(&rounds->steps);
	tn_commits_init(&rounds->commits);
}

tern_status tn_ps_rounds_open(tn_ps_rounds *rounds)
{
	tern_status status = tern_rpc_serve(rounds->server->ctx, TN_PS_STAGE, on_stage, rounds);

	if (status != TERN_OK)
		return status;
	status = tern_rpc_serve(rounds->server->ctx, TN_PS_CLOSE, on_close, rounds);
	if (status != TERN_OK)
		tern_rpc_unserve(rounds->server->ctx, TN_PS_STAGE);
	else
		rounds->open = true;
	return status;
}

void tn_ps_rounds_close(tn_ps_rounds *rounds)
{
	if (!rounds->open)
		return;
	rounds->open = false;
	pthread_mutex_lock(&rounds->steps.lock);
	rounds->closing = true;
	pthread_mutex_unlock(&rounds->steps.lock);
	tern_rpc_unserve(rounds->server->ctx, TN_PS_STAGE);
	tern_rpc_unserve(rounds->server->ctx, TN_PS_CLOSE);
}

void tn_ps_rounds_free(tn_ps_rounds *rounds)
{
	tn_steps_fini(&rounds->steps);
}
