/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's side of saves and restores. See saver.h.
 *
 * Pushes are held by a flag that they look at under server->hold (shared): after the flag is set, taking it once
 * exclusively waits for those at work, and nobody ever waits for a leader under it.
 *
 * Threads: handlers and timers run from dispatch; saver->lock for the state. Tests: tests/unit/ps/saver_test.c.
 */
#include "ps/saver.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/time.h"
#include "channel/dispatch.h"
#include "ps/follow.h"
#include "ps/saver_work.h"
#include "ps/server.h"

#define CUT_LEASE_NS (60 * TN_NS_PER_SEC)
#define LEASE_MAX_NS (60 * TN_NS_PER_SEC)

static void reply(tern_rpc_request *request, tern_status status)
{
	const char *text = tn_detail_get();

	if (status == TERN_OK)
		tern_rpc_reply(request, TERN_OK, NULL, 0);
	else
		tern_rpc_reply(request, status, text, strlen(text));
}

/* ---- holding pushes ---- */

static void hold_pushes(tern_ps_server *server)
{
	atomic_store(&server->held, true);
	pthread_rwlock_wrlock(&server->hold); /* those at work end: memory at work, no waiting */
	pthread_rwlock_unlock(&server->hold);
}

static void let_pushes_go(tern_ps_server *server)
{
	atomic_store(&server->held, false);
}

/* ---- the cut ---- */

/* Lock held, or WORKING and in the thread. */
static void drop_tables(tn_ps_saver *saver)
{
	for (uint32_t i = 0; i < saver->table_count; i++) {
		saver_table *t = &saver->tables[i];

		if (t->cut)
			tn_cut_end(t->cut);
		tn_ps_facts_free(&t->facts);
		tn_ps_share_put(t->share);
	}
	free(saver->tables);
	saver->tables = NULL;
	saver->table_count = 0;
}

tern_status tn_ps_saver_list(tn_ps_saver *saver)
{
	tern_ps_server *server = saver->server;
	tern_status status = TERN_OK;

	pthread_mutex_lock(&server->tables_lock);
	saver->tables = calloc(server->share_count + 1, sizeof(*saver->tables));
	if (!saver->tables)
		status = tn_fail(TERN_E_NOMEM, "no memory for a save");
	for (uint32_t i = 0; status == TERN_OK && i < server->share_count; i++) {
		atomic_fetch_add_explicit(&server->shares[i]->refs, 1, memory_order_relaxed);
		saver->tables[saver->table_count++].share = server->shares[i];
	}
	pthread_mutex_unlock(&server->tables_lock);
	return status;
}

/* Who has which slot, by incarnation; 0: the list is fixed. */
static uint64_t owners_of(const ps_view *view)
{
	uint64_t hash = 0;

	for (uint32_t i = 0; view->map.server[0].incarnation && i < TN_PS_SLOTS; i++) {
		uint16_t p = view->map.slot[i].primary;

		hash = tn_hash_u64(hash ^ i, p == TN_CL_NONE ? 0 : view->map.server[p].incarnation);
	}
	return hash;
}

bool tn_ps_saver_follows(tn_ps_saver *saver, tn_table *engine, uint64_t number)
{
	tern_ps_server *server = saver->server;
	unsigned in;
	bool same;

	same = owners_of(tn_ps_view_enter(server, &in)) == saver->acked || !server->replicas;
	tn_ps_view_leave(server, in);
	return same && tn_table_follows(engine, number);
}

/* The view that pushes stand still by. TERN_E_STATE: another one came since HOLD, here or elsewhere. */
static tern_status cut_view(tn_ps_saver *saver)
{
	const ps_view *view;
	tern_status status = TERN_OK;
	unsigned in;

	view = tn_ps_view_enter(saver->server, &in);
	if (view->map.version != saver->version)
		status =
			tn_fail(TERN_E_STATE, "slots were given to other servers during the save: try again");
	saver->mine = view->mine;
	saver->owners = owners_of(view);
	tn_ps_view_leave(saver->server, in);
	return status;
}

static tern_status cut_table(tn_ps_saver *saver, saver_table *t, const tn_ps_save_msg *msg)
{
	tn_cut_kind kind = msg->rate ? TN_CUT_BASE : TN_CUT_ALONE;
	tern_status status;

	t->changes = msg->number && tn_ps_saver_follows(saver, t->share->engine, msg->number);
	if (t->changes)
		kind = TN_CUT_CHANGES;

	pthread_mutex_lock(&t->share->lock);
	status = tn_ps_facts_take(&t->facts, t->share->dedup);
	pthread_mutex_unlock(&t->share->lock);
	return status == TERN_OK ? tn_table_cut_as(t->share->engine, kind, msg->token, &t->cut) : status;
}

/* Lock held. Pushes stand still. */
static tern_status cut_tables(tn_ps_saver *saver, const tn_ps_save_msg *msg)
{
	tern_status status = cut_view(saver);

	if (status == TERN_OK)
		status = tn_ps_saver_list(saver);
	for (uint32_t i = 0; i < saver->table_count && status == TERN_OK; i++)
		status = cut_table(saver, &saver->tables[i], msg);
	if (status != TERN_OK)
		drop_tables(saver);
	return status;
}

/* ---- states ---- */

/* Lock held. */
static void saver_set_state(tn_ps_saver *saver, tn_saver_state state)
{
	TN_ASSERT(state == TN_SAVER_IDLE || (state == TN_SAVER_HELD && saver->state == TN_SAVER_IDLE) ||
		  (state == TN_SAVER_CUT && saver->state == TN_SAVER_HELD) ||
		  (state == TN_SAVER_WORKING && saver->state != TN_SAVER_HELD));
	saver->state = state;
}

/* Lock held. */
static void to_idle(tn_ps_saver *saver)
{
	let_pushes_go(saver->server);
	drop_tables(saver);
	saver_set_state(saver, TN_SAVER_IDLE);
}

/* Lock held. */
static tern_status expect(const tn_ps_saver *saver, const tn_ps_save_msg *msg, tn_saver_state state)
{
	if (saver->state == state && (state == TN_SAVER_IDLE || saver->token == msg->token))
		return TERN_OK;
	if (saver->state == TN_SAVER_IDLE)
		return tn_fail(TERN_E_STATE, "this save is over: its leader was silent for too long");
	return tn_fail(TERN_E_STATE, "another save or restore is under way");
}

/* Lock held. */
static void lease(tn_ps_saver *saver, uint64_t ns)
{
	tern_ctx *ctx = saver->server->ctx;

	tn_ctx_timer_set(ctx, &saver->lease, tn_deadline(tn_ctx_now(ctx), ns));
}

static void on_lease(tn_ctx_timer *timer)
{
	tn_ps_saver *saver = TN_CONTAINER_OF(timer, tn_ps_saver, lease);

	pthread_mutex_lock(&saver->lock);
	if (saver->state == TN_SAVER_HELD || saver->state == TN_SAVER_CUT) {
		TN_LOG(WARN, PS, "a save is given up: its leader was silent for too long");
		to_idle(saver);
	} else if (saver->state == TN_SAVER_WORKING) {
		TN_LOG(WARN, PS, "a save or restore is given up: its leader was silent for too long");
		atomic_store(&saver->stop, true);
	}
	pthread_mutex_unlock(&saver->lock);
}

/* Lock held. TERN_OK for what is done already: a request may come twice. */
static tern_status on_hold(tn_ps_saver *saver, const tn_ps_save_msg *msg)
{
	unsigned in;

	if (saver->state == TN_SAVER_HELD && saver->token == msg->token)
		return TERN_OK;
	TN_TRY(expect(saver, msg, TN_SAVER_IDLE));
	saver_set_state(saver, TN_SAVER_HELD);
	saver->token = msg->token;
	lease(saver, TN_MIN(msg->number, LEASE_MAX_NS));
	hold_pushes(saver->server);
	saver->version = tn_ps_view_enter(saver->server, &in)->map.version;
	tn_ps_view_leave(saver->server, in);
	return TERN_OK;
}

static tern_status on_keep(tn_ps_saver *saver, const tn_ps_save_msg *msg)
{
	if (saver->state == TN_SAVER_WORKING && saver->token == msg->token)
		lease(saver, saver->lease_ns);
	return TERN_OK;
}

static tern_status on_cut(tn_ps_saver *saver, const tn_ps_save_msg *msg)
{
	tern_status status;

	if (saver->state == TN_SAVER_CUT && saver->token == msg->token)
		return TERN_OK;
	TN_TRY(expect(saver, msg, TN_SAVER_HELD));
	status = cut_tables(saver, msg);
	if (status != TERN_OK) {
		to_idle(saver);
		return status;
	}
	let_pushes_go(saver->server);
	saver_set_state(saver, TN_SAVER_CUT);
	lease(saver, CUT_LEASE_NS);
	return TERN_OK;
}

static tern_status on_end(tn_ps_saver *saver, const tn_ps_save_msg *msg)
{
	if (saver->token != msg->token)
		return TERN_OK;
	if (saver->state == TN_SAVER_WORKING)
		atomic_store(&saver->stop, true);
	else if (saver->state != TN_SAVER_IDLE)
		to_idle(saver);
	return TERN_OK;
}

/* Whatever the state: the checkpoint is on disk. */
static tern_status on_ack(tn_ps_saver *saver, const tn_ps_save_msg *msg)
{
	tern_ps_server *server = saver->server;

	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count; i++)
		tn_table_acknowledge(server->shares[i]->engine, msg->number);
	pthread_mutex_unlock(&server->tables_lock);
	saver->acked = saver->owners;
	return TERN_OK;
}

/* ---- the thread ---- */

static void *work(void *arg)
{
	tn_ps_saver *saver = arg;
	tern_rpc_request *request = saver->request;
	char *answer = NULL;
	tern_status status;

	if (saver->msg.op == TN_SAVE_WRITE)
		status = tn_ps_saver_write(saver, &answer);
	else if (saver->msg.op == TN_SAVE_PREPARE)
		status = tn_ps_saver_prepare(saver, &answer);
	else
		status = tn_ps_saver_restore(saver, &answer);
	drop_tables(saver); /* this thread's while it works: handlers don't wait for that */
	pthread_mutex_lock(&saver->lock);
	to_idle(saver);
	pthread_mutex_unlock(&saver->lock);
	if (status == TERN_OK)
		tern_rpc_reply(request, TERN_OK, answer, strlen(answer));
	else
		reply(request, status);
	free(answer);
	return NULL;
}

static void on_cancel(tern_rpc_request *request, void *arg)
{
	tn_ps_saver *saver = arg;

	(void)request;
	atomic_store(&saver->stop, true);
}

/* Lock held. TERN_BUSY: a thread answers. */
static tern_status start(tn_ps_saver *saver, tern_rpc_request *request, const tn_ps_save_msg *msg)
{
	tern_status status;

	TN_TRY(expect(saver, msg, msg->op == TN_SAVE_WRITE ? TN_SAVER_CUT : TN_SAVER_IDLE));
	if (saver->joinable)
		tn_os_thread_join(&saver->thread); /* it has answered, and waits for nothing */
	saver->joinable = false;
	saver_set_state(saver, TN_SAVER_WORKING);
	saver->token = msg->token;
	saver->request = request;
	saver->msg = *msg;
	atomic_store(&saver->stop, false);
	lease(saver, saver->lease_ns);
	if (tern_rpc_request_on_cancel(request, on_cancel, saver) == TERN_E_CANCELED)
		atomic_store(&saver->stop, true);
	status = tn_os_thread_start(&saver->thread, "tern-save", work, saver);
	if (status != TERN_OK) {
		to_idle(saver);
		return status;
	}
	saver->joinable = true;
	return TERN_BUSY;
}

static tern_status act(tn_ps_saver *saver, tern_rpc_request *request, const tn_ps_save_msg *msg)
{
	switch (msg->op) {
	case TN_SAVE_HOLD:
		return on_hold(saver, msg);
	case TN_SAVE_CUT:
		return on_cut(saver, msg);
	case TN_SAVE_END:
		return on_end(saver, msg);
	case TN_SAVE_ACK:
		return on_ack(saver, msg);
	case TN_SAVE_KEEP:
		return on_keep(saver, msg);
	default:
		return start(saver, request, msg);
	}
}

static void on_save(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_saver *saver = arg;
	tn_ps_save_msg msg;
	tern_status status;
	uint64_t version;

	if (saver->server->alone) {
		static const char words[] =
			"a server whose context has a single owner saves and restores nothing: "
			"that needs a thread";

		tern_rpc_reply(request, TERN_E_UNSUPPORTED, words, sizeof(words) - 1);
		return;
	}
	if (tn_ps_follows(saver->server)) {
		tn_ps_refuse_follower(request);
		return;
	}
	if (!tn_ps_save_decode(args, bytes, &msg)) {
		reply(request,
		      tn_fail(TERN_E_PROTOCOL, "a request of a save can't be read: another version?"));
		return;
	}
	pthread_mutex_lock(&saver->lock);
	status = act(saver, request, &msg);
	version = saver->version;
	pthread_mutex_unlock(&saver->lock);
	if (status == TERN_OK && msg.op == TN_SAVE_HOLD)
		tern_rpc_reply(request, TERN_OK, &version, sizeof(version));
	else if (status != TERN_BUSY)
		reply(request, status);
}

/* ---- life ---- */

tern_status tn_ps_saver_open(tn_ps_saver *saver, struct tern_ps_server *server)
{
	memset(saver, 0, sizeof(*saver));
	saver->server = server;
	saver->lease.run = on_lease;
	saver->lease_ns = tn_opt_u64(tn_ctx_options(server->ctx), tn_ps_options, "save_lease");
	pthread_mutex_init(&saver->lock, NULL);
	return tern_rpc_serve(server->ctx, TN_PS_SAVE, on_save, saver);
}

void tn_ps_saver_close(tn_ps_saver *saver)
{
	if (!saver->server)
		return;
	tern_rpc_unserve(saver->server->ctx, TN_PS_SAVE);
	atomic_store(&saver->stop, true);
	if (saver->joinable)
		tn_os_thread_join(&saver->thread);
	tn_ctx_timer_cancel(saver->server->ctx, &saver->lease);
	pthread_mutex_lock(&saver->lock);
	to_idle(saver);
	pthread_mutex_unlock(&saver->lock);
	pthread_mutex_destroy(&saver->lock);
	saver->server = NULL;
}
