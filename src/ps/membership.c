/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that joins others: the membership of cluster/cluster.h on one side, slots with backups (replicas.h) on the other.
 *
 * Threads: open and close of the server; maps come in a thread of the membership's. Tests: tests/unit/ps/cluster_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/time.h"
#include "cluster/cluster.h"
#include "ps/server.h"

/* ---- what the server finds out ---- */

static bool has_lease(void *arg)
{
	return tn_cluster_lease_valid(((tern_ps_server *)arg)->cluster);
}

static void synced(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	tn_cluster_synced(((tern_ps_server *)arg)->cluster, slots, epochs, n);
}

static void released(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	tn_cluster_released(((tern_ps_server *)arg)->cluster, slots, epochs, n);
}

static void lost(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	tn_cluster_lost(((tern_ps_server *)arg)->cluster, slots, epochs, n);
}

/* ---- what it is told ---- */

static void on_map(void *arg, const tn_cl_map *map, uint16_t self)
{
	tern_ps_server *server = arg;

	while (tn_ps_replicas_map(server, map, self) !=
	       TERN_OK) { /* memory: without a map nothing can go on */
		TN_LOG(ERROR, PS, "a map can't be taken over: %s", tn_detail_get());
		tern_ctx_wait(server->ctx, 10 * TN_NS_PER_MS);
	}
}

static void on_load(void *arg, uint32_t load[TN_CL_SLOTS])
{
	tn_ps_replicas_load(arg, load);
}

/* ---- life ---- */

tern_status tn_ps_membership_prepare(tern_ps_server *server)
{
	tn_replicas_env env = {
		.lease = has_lease, .synced = synced, .released = released, .lost = lost, .arg = server};

	return tn_ps_replicas_open(server, &env);
}

tern_status tn_ps_membership_open(tern_ps_server *server, const tern_ps_server_params *params)
{
	tn_cluster_params cluster = {.join = params->join,
				     .replicas = params->replicas,
				     .first = params->first,
				     .on_map = on_map,
				     .load = on_load,
				     .arg = server};

	return tn_cluster_open(server->ctx, &cluster, &server->cluster);
}

void tn_ps_membership_leave(tern_ps_server *server)
{
	if (server->cluster)
		tn_cluster_leave(server->cluster);
}

void tn_ps_membership_close(tern_ps_server *server)
{
	tn_cluster_close(server->cluster);
	server->cluster = NULL;
}

/* ---- drained ---- */

static bool has_slots(tern_ps_server *server)
{
	const ps_view *view;
	bool any = false;
	unsigned in;

	view = tn_ps_view_enter(server, &in);
	for (uint32_t i = 0; i < TN_PS_SLOTS && view->index != TN_CL_NONE; i++)
		any |= view->map.slot[i].primary == view->index || view->map.slot[i].backup == view->index;
	tn_ps_view_leave(server, in);
	return any;
}

/* Is there a server that can take them? One that drains itself can't. */
static bool has_takers(tern_ps_server *server)
{
	const ps_view *view;
	bool any = false;
	unsigned in;

	view = tn_ps_view_enter(server, &in);
	for (uint32_t i = 0; i < view->map.servers; i++)
		any |= i != view->index && view->map.server[i].state == TN_CL_UP;
	tn_ps_view_leave(server, in);
	return any;
}

tern_status tern_ps_server_drain(tern_ps_server *server, uint64_t timeout_ns)
{
	uint64_t end = tn_deadline(tn_ctx_now(server->ctx), timeout_ns);

	if (!server->cluster)
		return tn_fail(TERN_E_STATE, "a server of a fixed list can't give its slots away");
	tn_cluster_drain(server->cluster);
	while (has_slots(server)) {
		if (!has_takers(server))
			return tn_fail(TERN_E_STATE, "no other server is there to take the slots");
		if (tn_ctx_now(server->ctx) >= end)
			return tn_fail(TERN_E_DEADLINE,
				       "slots are still to be moved: is there another server?");
		tern_ctx_wait(server->ctx, 10 * TN_NS_PER_MS);
	}
	return TERN_OK;
}
