/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server knows of the slot map. Threads: any; see server.h. Tests: tests/unit/ps/ps_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "ps/server.h"

/* ---- made ---- */

static tern_status check_list(const tern_ps_server_params *p)
{
	if (p->join && p->servers)
		return tn_fail(TERN_E_INVALID,
			       "a server has a list of servers or joins one of them, not both");
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

/* Which slots are its own. */
static void own(ps_view *view, uint16_t self)
{
	view->index = self;
	view->all = true;
	for (uint32_t i = 0; i < TN_PS_SLOTS; i++)
		if (self != TN_CL_NONE && view->map.slot[i].primary == self)
			tn_ps_slots_add(&view->mine, i);
		else
			view->all = false;
}

ps_view *tn_ps_view_new(const tn_cl_map *map, uint16_t self)
{
	ps_view *view = calloc(1, sizeof(*view));

	if (!view)
		return NULL;
	view->map = *map;
	own(view, self);
	return view;
}

tern_status tn_ps_view_list(tern_ctx *ctx, const tern_ps_server_params *p, ps_view **out)
{
	uint32_t n = p->servers ? p->count : 1;
	ps_view *view;

	TN_TRY(check_list(p));
	view = calloc(1, sizeof(*view));
	if (!view)
		return tn_fail(TERN_E_NOMEM, "no memory for a map");
	if (p->join) { /* version 0: nobody has anything */
		for (uint32_t i = 0; i < TN_PS_SLOTS; i++)
			view->map.slot[i] = TN_CL_SLOT_NONE;
		own(view, TN_CL_NONE);
		*out = view;
		return TERN_OK;
	}
	tn_cl_map_spread(&view->map, p->map_version ? p->map_version : 1, n, 1);
	for (uint32_t i = 0; i < n; i++)
		snprintf(view->map.server[i].address, TN_ADDRESS_MAX, "%s",
			 p->servers ? p->servers[i] : tern_ctx_address(ctx));
	own(view, (uint16_t)p->index);
	*out = view;
	return TERN_OK;
}

/* ---- replaced ---- */

/* view_lock held: those that nobody can look at any more. */
static void reclaim(tern_ps_server *server)
{
	ps_view **at = &server->retired;

	while (*at) {
		ps_view *view = *at;

		if (tn_epoch_passed(server->view_epoch, view->stamp)) {
			*at = view->older;
			free(view);
		} else {
			at = &view->older;
		}
	}
}

bool tn_ps_view_set(tern_ps_server *server, ps_view *view)
{
	ps_view *old;
	bool newer;

	pthread_mutex_lock(&server->view_lock);
	old = atomic_load_explicit(&server->view, memory_order_relaxed);
	newer = view->map.version > old->map.version;
	if (newer) {
		atomic_store_explicit(&server->view, view, memory_order_release);
		old->stamp = tn_epoch_stamp(server->view_epoch);
		old->older = server->retired;
		server->retired = old;
	}
	reclaim(server);
	pthread_mutex_unlock(&server->view_lock);
	if (newer)
		tn_ps_onesided_mapped(server);
	else
		free(view);
	return newer;
}

void tn_ps_views_free(tern_ps_server *server)
{
	while (server->retired) {
		ps_view *view = server->retired;

		server->retired = view->older;
		free(view);
	}
	free(atomic_load_explicit(&server->view, memory_order_relaxed));
	free(server->view_epoch);
}

/* ---- told ---- */

void tn_ps_on_map(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	uint8_t *out = malloc(TN_CL_MAP_BYTES_MAX);
	const ps_view *view;
	unsigned in;

	(void)args, (void)bytes;
	if (!out) {
		tern_rpc_reply(request, TERN_E_NOMEM, NULL, 0);
		return;
	}
	view = tn_ps_view_enter(server, &in);
	bytes = tn_cl_map_encode(out, TN_CL_MAP_BYTES_MAX, &view->map,
				 TN_CL_VERSION_OLD); /* what clients need of it, old ones too */
	tn_ps_view_leave(server, in);
	tern_rpc_reply(request, TERN_OK, out, bytes);
	free(out);
}
