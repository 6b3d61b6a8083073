/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The route of a client: maps as they come, who is asked for a newer one, and what is in flight to servers that are gone.
 *
 *   one question at a time:  a part wants a newer map -> list of those that wait -> MAP to a server -> all of them go on
 *   watch: a timer that runs while calls are in flight. One that takes long may wait for a server that died: then the
 *   servers are asked, one after the other; calls to a server that a new map calls dead are taken back, and split anew
 *
 * Threads: any; see client.h. Tests: tests/unit/ps/ps_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/time.h"
#include "ps/client.h"

#define WATCH_NS   (50 * TN_NS_PER_MS)
#define SUSPECT_NS (150 * TN_NS_PER_MS) /* a call that takes longer may wait for a server that died */
#define MAP_NS     (100 * TN_NS_PER_MS) /* for one server to tell its map; then another one is asked */

/* ---- maps ---- */

ps_route *tn_ps_route_hold(tern_ps *ps)
{
	ps_route *route;

	rpc_lock_take(&ps->lock);
	route = ps->route;
	route->refs++;
	rpc_lock_drop(&ps->lock);
	return route;
}

void tn_ps_route_put(tern_ps *ps, ps_route *route)
{
	TN_ASSERT(route->refs > 0);
	if (--route->refs == 0)
		tn_list_push_back(&ps->dead_routes,
				  &route->node); /* reaped later: this may be a host's callback */
}

void tn_ps_route_release(tern_ps *ps, ps_route *route)
{
	rpc_lock_take(&ps->lock);
	tn_ps_route_put(ps, route);
	rpc_lock_drop(&ps->lock);
}

static tern_status route_new(tern_ps *ps, const tn_cl_map *map, ps_route **out)
{
	ps_route *route = calloc(1, sizeof(*route));
	tern_status status;

	if (!route)
		return tn_fail(TERN_E_NOMEM, "no memory for a map");
	route->refs = 1;
	route->version = map->version;
	route->servers = map->servers;
	route->given = map->slot[0].primary != TN_CL_NONE;
	tn_ps_owners_set(&route->owners, map);
	for (uint32_t i = 0; i < map->servers; i++) {
		route->managed |=
			map->server[i].incarnation != 0; /* alive or not: all may be silent for a while */
		if (!tn_cl_alive(map, (uint16_t)i))
			continue;
		status = tn_ps_host_get(ps, map->server[i].address, &route->hosts[i]);
		if (status != TERN_OK) {
			tn_ps_route_release(ps, route);
			tn_detail_prefix("server %u of the map", i);
			return status;
		}
	}
	*out = route;
	return TERN_OK;
}

bool tn_ps_route_has(const ps_route *route, const ps_host *host)
{
	for (uint32_t i = 0; i < route->servers; i++)
		if (route->hosts[i] == host)
			return true;
	return false;
}

/* Calls in flight, each with a share in it. */
static uint32_t hold_calls(tern_ps *ps, ps_call **calls, uint32_t room)
{
	uint32_t n = 0;

	rpc_lock_take(&ps->lock);
	for (tn_list *node = ps->live.next; node != &ps->live && n < room; node = node->next) {
		ps_call *call = TN_CONTAINER_OF(node, ps_call, node);

		if (tn_ps_call_hold(call))
			calls[n++] = call;
	}
	rpc_lock_drop(&ps->lock);
	return n;
}

/* Parts are only added meanwhile, and those know the new map. */
static void take_back(ps_call *call, const ps_route *route)
{
	tern_ps *ps = call->ps;
	tn_list *node = &call->parts;

	for (;;) {
		ps_part *part;

		rpc_lock_take(&ps->lock);
		node = node->next;
		rpc_lock_drop(&ps->lock);
		if (node == &call->parts)
			return;
		part = TN_CONTAINER_OF(node, ps_part, node);
		if (part->host && !tn_ps_route_has(route, part->host))
			(void)tern_rpc_cancel(part->host->rpc, &part->op);
	}
}

/* What is in flight to servers that the map does not have any more will not be answered. */
static void take_back_all(tern_ps *ps)
{
	ps_call *calls[TN_PS_CALLS_MAX];
	uint32_t n = hold_calls(ps, calls, TN_PS_CALLS_MAX);
	ps_route *route = tn_ps_route_hold(ps);

	for (uint32_t i = 0; i < n; i++) {
		take_back(calls[i], route);
		tn_ps_call_put(calls[i]);
	}
	tn_ps_route_release(ps, route);
}

/* It is the route, if it is newer; *lost: servers of the old one are not in it. */
static void install(tern_ps *ps, ps_route *route, bool *lost)
{
	ps_route *older;

	*lost = false;
	rpc_lock_take(&ps->lock);
	older = ps->route;
	if (older && route->version <= older->version) {
		older = route;
	} else {
		ps->route = route;
		for (uint32_t i = 0; older && i < older->servers; i++)
			*lost |= older->hosts[i] && !tn_ps_route_has(route, older->hosts[i]);
	}
	if (older)
		tn_ps_route_put(ps, older);
	rpc_lock_drop(&ps->lock);
}

tern_status tn_ps_route_set(tern_ps *ps, const void *data, uint64_t bytes)
{
	tn_cl_map *map = malloc(sizeof(*map));
	ps_route *route = NULL;
	tern_status status;
	bool lost;

	if (!map)
		return tn_fail(TERN_E_NOMEM, "no memory for a map");
	if (!tn_cl_map_decode(data, bytes, map))
		status = tn_fail(TERN_E_PROTOCOL, "the map can't be read: another version?");
	else if (map->servers == 0)
		status = tn_fail(TERN_E_STATE, "the server has not joined the others yet");
	else
		status = route_new(ps, map, &route);
	free(map);
	if (status != TERN_OK)
		return status;
	install(ps, route, &lost);
	if (lost)
		take_back_all(ps);
	tn_ps_hosts_reap(ps);
	return TERN_OK;
}

/* ---- asking ---- */

static const tern_rpc_call_params question = {.method = TN_PS_MAP,
					      .flags = TERN_RPC_IDEMPOTENT,
					      .service_class = TERN_RPC_LATENCY,
					      .answer_capacity = TN_CL_MAP_BYTES_MAX};

/* Lock held. Another one each time, held: servers of the map, else any of those that are there. NULL: none. */
static ps_host *next_host(tern_ps *ps)
{
	const ps_route *route = ps->route;
	uint32_t turn = ps->map_turn++;
	tn_list *node;

	/* One that was silent last is asked when all were: it may be the one that died. */
	for (unsigned any = 0; any < 2; any++)
		for (uint32_t i = 0; route && i < route->servers; i++) {
			ps_host *host = route->hosts[(turn + i) % route->servers];

			if (host && (any || !atomic_load_explicit(&host->silent, memory_order_relaxed)))
				return tn_ps_host_hold(host);
		}
	node = tn_list_pop_front(&ps->hosts);
	if (!node)
		return NULL;
	tn_list_push_back(&ps->hosts, node);
	return tn_ps_host_hold(TN_CONTAINER_OF(node, ps_host, node));
}

static void answered(tern_ps *ps)
{
	tn_list wait;
	tn_list *node;

	tn_list_init(&wait);
	rpc_lock_take(&ps->lock);
	ps->map_asked = false;
	while ((node = tn_list_pop_front(&ps->map_waiters)))
		tn_list_push_back(&wait, node);
	rpc_lock_drop(&ps->lock);
	while ((node = tn_list_pop_front(&wait)))
		tn_ps_part_mapped(TN_CONTAINER_OF(node, ps_part, map_node));
}

static void on_map(tern_op *op, void *arg)
{
	tern_ps *ps = arg;
	ps_host *host = ps->map_host;

	atomic_store_explicit(&host->silent, op->status != TERN_OK, memory_order_relaxed);
	if (op->status == TERN_OK)
		(void)tn_ps_route_set(ps, ps->map_bytes, op->length);
	tn_ps_host_drop(ps, host); /* before: who closes the client waits for the answer alone */
	answered(ps);
}

/* map_asked is set, by this thread; host is held, and given back. */
static void ask(tern_ps *ps, ps_host *host)
{
	tern_rpc_call_params call = question;

	call.answer = ps->map_bytes;
	ps->map_host = host;
	tern_op_init(&ps->map_op, on_map, ps);
	ps->map_op.timeout_ns = MAP_NS;
	if (host && tern_rpc_call(host->rpc, &call, &ps->map_op) == TERN_OK)
		return;
	tn_ps_host_drop(ps, host);
	answered(ps);
}

void tn_ps_map_want(tern_ps *ps, ps_part *part, ps_host *who)
{
	ps_host *host = NULL;
	bool mine;

	rpc_lock_take(&ps->lock);
	if (part) {
		memset(&part->map_node, 0, sizeof(part->map_node));
		tn_list_push_back(&ps->map_waiters, &part->map_node);
	}
	mine = !ps->map_asked;
	ps->map_asked = true;
	if (mine)
		host = who ? tn_ps_host_hold(who) : next_host(ps);
	rpc_lock_drop(&ps->lock);
	if (mine)
		ask(ps, host);
}

void tn_ps_map_end(tern_ps *ps)
{
	bool asked = true;

	tn_ctx_timer_cancel(ps->ctx, &ps->watch);
	while (asked) {
		rpc_lock_take(&ps->lock);
		asked = ps->map_asked;
		rpc_lock_drop(&ps->lock);
		if (asked)
			tern_ctx_wait(ps->ctx, 1000000);
	}
}

tern_status tn_ps_map_fetch(tern_ps *ps, ps_host *host, uint64_t timeout_ns)
{
	uint8_t *bytes = malloc(TN_CL_MAP_BYTES_MAX);
	tern_rpc_call_params call = question;
	tern_status status;
	uint64_t got;

	rpc_lock_take(&ps->lock);
	host = host ? tn_ps_host_hold(host) : next_host(ps);
	rpc_lock_drop(&ps->lock);
	call.answer = bytes;
	status = bytes ? tern_rpc_call_wait(host->rpc, &call, timeout_ns, &got)
		       : tn_fail(TERN_E_NOMEM, "no memory for a map");
	if (bytes) /* the next one is asked of another: numbers of servers that are gone lie between those that are there */
		atomic_store_explicit(&host->silent, status != TERN_OK, memory_order_relaxed);
	if (status == TERN_OK)
		status = tn_ps_route_set(ps, bytes, got);
	tn_ps_host_drop(ps, host);
	free(bytes);
	return status;
}

/* ---- watching ---- */

static void on_watch(tn_ctx_timer *timer)
{
	tern_ps *ps = TN_CONTAINER_OF(timer, tern_ps, watch);
	uint64_t now = tn_ctx_now(ps->ctx);
	bool suspect = false;

	rpc_lock_take(&ps->lock);
	ps->watching = ps->in_flight > 0 && !ps->closing;
	/* In the order of their beginning; the first is the oldest. */
	if (ps->watching && !tn_list_empty(&ps->live))
		suspect = TN_CONTAINER_OF(ps->live.next, ps_call, node)->start_ns + SUSPECT_NS < now;
	if (ps->watching)
		tn_ctx_timer_set(ps->ctx, &ps->watch, now + WATCH_NS);
	suspect = suspect && ps->route->managed && !ps->map_asked;
	rpc_lock_drop(&ps->lock);
	tn_ps_hosts_reap(ps);
	if (suspect)
		tn_ps_map_want(ps, NULL, NULL);
}

void tn_ps_watch(tern_ps *ps)
{
	ps->watching = true;
	ps->watch.run = on_watch;
	tn_ctx_timer_set(ps->ctx, &ps->watch, tn_ctx_now(ps->ctx) + WATCH_NS);
}
