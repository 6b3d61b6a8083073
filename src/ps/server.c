/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a server. Threads: any; see server.h. Tests: tests/unit/ps/ps_test.c.
 */
#include "ps/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "ps/follow.h"

tern_status tern_ps_server_remap(tern_ps_server *server, const tern_ps_server_params *params)
{
	ps_view *view;

	TN_TRY(tn_ps_view_list(server->ctx, params, &view));
	if (tn_ps_view_set(server, view))
		return TERN_OK;
	return tn_fail(TERN_E_INVALID,
		       "a map of that version is there already: a later list has a higher one");
}

/* ---- methods ---- */

static void on_pull(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_serve(arg, request, TN_PS_PULL, args, bytes);
}

static void on_push(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_serve(arg, request, TN_PS_PUSH, args, bytes);
}

static void on_erase(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_serve(arg, request, TN_PS_ERASE, args, bytes);
}

static const struct {
	uint32_t method;
	tern_rpc_handler handler;
} methods[] = {
	{TN_PS_MAP, tn_ps_on_map},   {TN_PS_CREATE, tn_ps_on_create}, {TN_PS_DESCRIBE, tn_ps_on_describe},
	{TN_PS_DROP, tn_ps_on_drop}, {TN_PS_LIST, tn_ps_on_list},     {TN_PS_STATS, tn_ps_on_stats},
	{TN_PS_PULL, on_pull},       {TN_PS_PUSH, on_push},           {TN_PS_ERASE, on_erase},
	{TN_PS_BYE, tn_ps_on_bye},   {TN_PS_LAYOUT, tn_ps_on_layout}, {TN_PS_LOAD, tn_ps_on_load},
};

static tern_status serve(tern_ps_server *server)
{
	TN_TRY(tn_ps_saver_open(&server->saver, server));
	TN_TRY(tn_ps_groups_open(&server->groups, server->ctx));
	TN_TRY(tn_ps_rounds_open(&server->rounds));
	for (unsigned i = 0; i < TN_COUNT_OF(methods); i++) {
		tern_status status =
			tern_rpc_serve(server->ctx, methods[i].method, methods[i].handler, server);

		if (status == TERN_OK)
			continue;
		while (i--)
			tern_rpc_unserve(server->ctx, methods[i].method);
		return status;
	}
	return TERN_OK;
}

/* ---- life ---- */

static void server_free(tern_ps_server *server)
{
	tn_ps_work_stop(server);
	tn_ps_rounds_free(&server->rounds);
	tn_ps_shares_free(server);
	tn_ps_tier_close(server);
	tn_ps_packs_free(server);
	tn_ps_bench_free(&server->bench);
	tn_ps_views_free(server);
	pthread_mutex_destroy(&server->view_lock);
	pthread_mutex_destroy(&server->tables_lock);
	pthread_mutex_destroy(&server->pack_lock);
	pthread_mutex_destroy(&server->work_lock);
	pthread_cond_destroy(&server->work_ready);
	pthread_rwlock_destroy(&server->hold);
	free(server);
}

/* Who wants it exclusively, for a map or a cut, gets it however many batches come: nobody takes it shared twice. */
static void hold_init(tern_ps_server *server)
{
	pthread_rwlockattr_t attr;

	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&server->hold, &attr);
	pthread_rwlockattr_destroy(&attr);
}

/* Takes the view, whatever comes of it. */
static tern_ps_server *server_new(tern_ctx *ctx, tn_ps_state *state, const tern_ps_server_params *params,
				  ps_view *view)
{
	tern_ps_server *server = calloc(1, sizeof(*server));
	tn_epoch *epoch = server ? aligned_alloc(_Alignof(tn_epoch), sizeof(*epoch)) : NULL;

	if (!epoch) {
		free(server);
		free(view);
		return NULL;
	}
	tn_epoch_init(epoch);
	server->view_epoch = epoch;
	server->ctx = ctx;
	server->state = state;
	server->counters = &state->counters;
	server->alone = tn_ctx_single_owner(ctx);
	server->tier_lock = -1;
	server->budget_bytes = params->budget_bytes;
	server->lease_ns = tn_opt_u64(tn_ctx_options(ctx), tn_ps_options, "lease");
	server->inline_bytes = tn_opt_u64(tn_ctx_options(ctx), tn_ps_options, "inline_bytes");
	atomic_init(&server->view, view);
	pthread_mutex_init(&server->view_lock, NULL);
	pthread_mutex_init(&server->tables_lock, NULL);
	pthread_mutex_init(&server->pack_lock, NULL);
	pthread_mutex_init(&server->work_lock, NULL);
	pthread_cond_init(&server->work_ready, NULL);
	hold_init(server);
	tn_ps_rounds_init(&server->rounds, server);
	tn_list_init(&server->jobs);
	return server;
}

static tern_status claim(tern_ctx *ctx, tn_ps_state **state)
{
	tern_ps_server *none = NULL;

	*state = tn_ps_state_get(ctx);
	if (!*state)
		return tn_fail(TERN_E_NOMEM, "no memory for a parameter server");
	if (tern_ctx_address(ctx)[0] == '\0')
		return tn_fail(TERN_E_STATE, "the context does not listen: nobody could reach its tables");
	if (atomic_compare_exchange_strong(&(*state)->server, &none, (tern_ps_server *)-1))
		return TERN_OK;
	return tn_fail(TERN_E_EXISTS, "the context has a parameter server already");
}

static void unserve(tern_ps_server *server)
{
	for (unsigned i = 0; i < TN_COUNT_OF(methods); i++)
		tern_rpc_unserve(server->ctx, methods[i].method);
}

/* Nobody calls it any more. */
static void server_end(tern_ps_server *server)
{
	tn_ps_state_watch(server->state, NULL);
	tn_ps_saver_close(&server->saver);
	tn_ps_groups_close(&server->groups);
	tn_ps_follow_close(server);
	tn_ps_rounds_close(&server->rounds);
	tn_ps_replicas_close(server);
	tn_ps_membership_close(server);
	/* Puts under way end from dispatch, which this thread may have to drive. */
	while (atomic_load_explicit(&server->busy, memory_order_acquire))
		tern_ctx_wait(server->ctx, 1000000);
	server_free(server);
}

tern_status tern_ps_server_open(tern_ctx *ctx, const tern_ps_server_params *params, tern_ps_server **out)
{
	tern_ps_server_params none = {0};
	tern_ps_server *server = NULL;
	tn_ps_state *state = NULL;
	ps_view *view;
	uint32_t workers;
	tern_status status;

	*out = NULL;
	params = params ? params : &none;
	if (params->join && tn_ctx_single_owner(ctx))
		return tn_fail(TERN_E_UNSUPPORTED,
			       "servers that join others need threads; this context has a single owner");
	TN_TRY(tn_ps_view_list(ctx, params, &view));
	status = claim(ctx, &state);
	if (status != TERN_OK) {
		free(view);
		return status;
	}
	server = server_new(ctx, state, params, view);
	status = server ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a parameter server");
	workers = params->workers ? params->workers
				  : (uint32_t)tn_opt_u64(tn_ctx_options(ctx), tn_ps_options, "workers");
	if (status == TERN_OK)
		status = tn_ps_tier_open(server, params->tier_dir, params->index);
	if (status == TERN_OK)
		status = tn_ps_work_start(server, workers);
	if (status == TERN_OK && params->join)
		status = tn_ps_membership_prepare(server);
	if (status == TERN_OK)
		status = serve(server);
	if (status == TERN_OK && params->join && (status = tn_ps_membership_open(server, params)) != TERN_OK)
		unserve(server);
	if (status != TERN_OK) {
		if (server)
			server_end(server);
		atomic_store_explicit(&state->server, NULL, memory_order_release);
		return status;
	}
	atomic_store_explicit(&state->server, server, memory_order_release);
	tn_ps_state_watch(state, &server->groups);
	if (params->join)
		TN_LOG(INFO, PS, "server at %s, of those that joined %s", tern_ctx_address(ctx),
		       params->join[0] ? params->join : "it");
	else
		TN_LOG(INFO, PS, "server %u of %u at %s", params->index, params->servers ? params->count : 1,
		       tern_ctx_address(ctx));
	*out = server;
	return TERN_OK;
}

void tern_ps_server_close(tern_ps_server *server)
{
	tn_ps_state *state;

	if (!server)
		return;
	state = server->state;
	tn_ps_membership_leave(server);
	unserve(server);
	server_end(server);
	atomic_store_explicit(&state->server, NULL, memory_order_release);
}
