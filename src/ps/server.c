/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a server, and its map. Threads: any; see server.h. Tests: tests/unit/ps/ps_test.c.
 */
#include "ps/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"

/* ---- the map ---- */

static tern_status check_list(const tern_ps_server_params *p)
{
	if (!p->servers && (p->count || p->index))
		return tn_fail(TERN_E_INVALID, "a parameter server without a list is number 0 of 0");
	if (p->servers && (p->count == 0 || p->count > TN_PS_SERVERS_MAX || p->index >= p->count))
		return tn_fail(TERN_E_INVALID, "server %u of %u: at most %u, numbered from 0", p->index,
			       p->count, TN_PS_SERVERS_MAX);
	for (uint32_t i = 0; i < p->count; i++)
		if (!p->servers[i] || strlen(p->servers[i]) >= TN_ADDRESS_MAX)
			return tn_fail(TERN_E_INVALID, "the address of server %u is missing or too long", i);
	return TERN_OK;
}

static ps_view *view_new(tern_ctx *ctx, const tern_ps_server_params *p)
{
	ps_view *view = calloc(1, sizeof(*view));
	uint32_t n = p->servers ? p->count : 1;

	if (!view)
		return NULL;
	tn_ps_map_spread(&view->map, p->map_version ? p->map_version : 1, n);
	for (uint32_t i = 0; i < n; i++)
		snprintf(view->map.address[i], TN_ADDRESS_MAX, "%s",
			 p->servers ? p->servers[i] : tern_ctx_address(ctx));
	view->index = p->index;
	view->all = n == 1;
	for (uint32_t i = 0; i < TN_PS_SLOTS; i++)
		if (view->map.owner[i] == p->index)
			tn_ps_slots_add(&view->mine, i);
	return view;
}

tern_status tern_ps_server_remap(tern_ps_server *server, const tern_ps_server_params *params)
{
	tern_status status = check_list(params);
	ps_view *view = status == TERN_OK ? view_new(server->ctx, params) : NULL;

	if (status == TERN_OK && !view)
		status = tn_fail(TERN_E_NOMEM, "no memory for a map");
	if (status != TERN_OK)
		return status;
	pthread_mutex_lock(&server->view_lock);
	view->older = atomic_load_explicit(&server->view, memory_order_relaxed);
	if (view->map.version > view->older->map.version)
		atomic_store_explicit(&server->view, view, memory_order_release);
	else
		status = tn_fail(TERN_E_INVALID,
				 "map version %llu is there already: a later list has a higher one",
				 (unsigned long long)view->older->map.version);
	pthread_mutex_unlock(&server->view_lock);
	if (status != TERN_OK)
		free(view);
	return status;
}

static void on_map(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	const ps_view *view = tn_ps_view(arg);
	uint8_t *out = malloc(TN_PS_MAP_BYTES_MAX);

	(void)args, (void)bytes;
	if (!out) {
		tern_rpc_reply(request, TERN_E_NOMEM, NULL, 0);
		return;
	}
	tern_rpc_reply(request, TERN_OK, out, tn_ps_map_encode(out, TN_PS_MAP_BYTES_MAX, &view->map));
	free(out);
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
	{TN_PS_MAP, on_map},         {TN_PS_CREATE, tn_ps_on_create}, {TN_PS_DESCRIBE, tn_ps_on_describe},
	{TN_PS_DROP, tn_ps_on_drop}, {TN_PS_LIST, tn_ps_on_list},     {TN_PS_STATS, tn_ps_on_stats},
	{TN_PS_PULL, on_pull},       {TN_PS_PUSH, on_push},           {TN_PS_ERASE, on_erase},
	{TN_PS_BYE, tn_ps_on_bye},
};

static tern_status serve(tern_ps_server *server)
{
	TN_TRY(tn_ps_saver_open(&server->saver, server));
	TN_TRY(tn_ps_groups_open(&server->groups, server->ctx));
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
	ps_view *view = atomic_load_explicit(&server->view, memory_order_relaxed);

	tn_ps_work_stop(server);
	tn_ps_shares_free(server);
	tn_ps_packs_free(server);
	tn_ps_bench_free(&server->bench);
	while (view) {
		ps_view *older = view->older;

		free(view);
		view = older;
	}
	pthread_mutex_destroy(&server->view_lock);
	pthread_mutex_destroy(&server->tables_lock);
	pthread_mutex_destroy(&server->pack_lock);
	pthread_mutex_destroy(&server->work_lock);
	pthread_cond_destroy(&server->work_ready);
	pthread_rwlock_destroy(&server->hold);
	free(server);
}

static tern_ps_server *server_new(tern_ctx *ctx, tn_ps_state *state, const tern_ps_server_params *params)
{
	tern_ps_server *server = calloc(1, sizeof(*server));
	ps_view *view = server ? view_new(ctx, params) : NULL;

	if (!view) {
		free(server);
		return NULL;
	}
	server->ctx = ctx;
	server->state = state;
	server->counters = &state->counters;
	server->budget_bytes = params->budget_bytes;
	server->inline_bytes = tn_opt_u64(tn_ctx_options(ctx), tn_ps_options, "inline_bytes");
	atomic_init(&server->view, view);
	pthread_mutex_init(&server->view_lock, NULL);
	pthread_mutex_init(&server->tables_lock, NULL);
	pthread_mutex_init(&server->pack_lock, NULL);
	pthread_mutex_init(&server->work_lock, NULL);
	pthread_cond_init(&server->work_ready, NULL);
	pthread_rwlock_init(&server->hold, NULL);
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

tern_status tern_ps_server_open(tern_ctx *ctx, const tern_ps_server_params *params, tern_ps_server **out)
{
	tern_ps_server_params none = {0};
	tern_ps_server *server = NULL;
	tn_ps_state *state = NULL;
	uint32_t workers;
	tern_status status;

	*out = NULL;
	params = params ? params : &none;
	TN_TRY(check_list(params));
	TN_TRY(claim(ctx, &state));
	server = server_new(ctx, state, params);
	status = server ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a parameter server");
	workers = params->workers ? params->workers
				  : (uint32_t)tn_opt_u64(tn_ctx_options(ctx), tn_ps_options, "workers");
	if (status == TERN_OK)
		status = tn_ps_work_start(server, workers);
	if (status == TERN_OK)
		status = serve(server);
	if (status != TERN_OK) {
		if (server) {
			tn_ps_saver_close(&server->saver);
			tn_ps_groups_close(&server->groups);
			server_free(server);
		}
		atomic_store_explicit(&state->server, NULL, memory_order_release);
		return status;
	}
	atomic_store_explicit(&state->server, server, memory_order_release);
	TN_LOG(INFO, PS, "server %u of %u at %s", params->index, params->servers ? params->count : 1,
	       tern_ctx_address(ctx));
	*out = server;
	return TERN_OK;
}

void tern_ps_server_close(tern_ps_server *server)
{
	if (!server)
		return;
	for (unsigned i = 0; i < TN_COUNT_OF(methods); i++)
		tern_rpc_unserve(server->ctx, methods[i].method);
	tn_ps_saver_close(&server->saver);
	tn_ps_groups_close(&server->groups);
	/* Puts under way end from dispatch, which this thread may have to drive. */
	while (atomic_load_explicit(&server->busy, memory_order_acquire))
		tern_ctx_wait(server->ctx, 1000000);
	atomic_store_explicit(&server->state->server, NULL, memory_order_release);
	server_free(server);
}
