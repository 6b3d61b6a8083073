/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts of a client: one for each address of a server, dialed when a map names it first.
 *
 *   got -> held by routes, and by who uses it -> held by nobody -> got again, or reaped: its RPC client is closed
 *
 * Parts and leads hold the route that they found the host by, so a host outlives what is in flight to it, and the path of
 * a pull counts nothing of its own. Servers that come back at other addresses, for months, leave nothing behind here.
 *
 * Threads: any; see client.h. Tests: tests/unit/ps/host_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "ps/client.h"

/* Lock held. */
static ps_host *find(tern_ps *ps, const char *address)
{
	for (tn_list *node = ps->hosts.next; node != &ps->hosts; node = node->next) {
		ps_host *host = TN_CONTAINER_OF(node, ps_host, node);

		if (strcmp(host->address, address) == 0)
			return host;
	}
	return NULL;
}

/* Lock held. */
static tern_status dial(tern_ps *ps, const char *address, ps_host **out)
{
	tern_connect_params params = {.transports = ps->transports[0] ? ps->transports : NULL};
	ps_host *host = TN_FAULT("ps.host.alloc") ? NULL : calloc(1, sizeof(*host));
	tern_status status;

	if (!host)
		return tn_fail(TERN_E_NOMEM, "no memory for a server's address");
	snprintf(host->address, sizeof(host->address), "%s", address);
	status = tern_rpc_connect(ps->ctx, address, &params, &host->rpc);
	if (status != TERN_OK) {
		free(host);
		return status;
	}
	tn_list_push_back(&ps->hosts, &host->node);
	*out = host;
	return TERN_OK;
}

tern_status tn_ps_host_get(tern_ps *ps, const char *address, ps_host **out)
{
	tern_status status = TERN_OK;

	rpc_lock_take(&ps->lock);
	*out = find(ps, address);
	if (!*out)
		status = dial(ps, address, out);
	if (status == TERN_OK)
		(*out)->refs++;
	rpc_lock_drop(&ps->lock);
	return status;
}

ps_host *tn_ps_host_at(tern_ps *ps, uint32_t server)
{
	ps_host *host;

	rpc_lock_take(&ps->lock);
	host = server < ps->route->servers ? ps->route->hosts[server] : NULL;
	if (host)
		host->refs++;
	rpc_lock_drop(&ps->lock);
	return host;
}

ps_host *tn_ps_host_hold(ps_host *host)
{
	host->refs++;
	return host;
}

void tn_ps_host_drop(tern_ps *ps, ps_host *host)
{
	if (!host)
		return;
	rpc_lock_take(&ps->lock);
	TN_ASSERT(host->refs > 0);
	host->refs--;
	rpc_lock_drop(&ps->lock);
}

/* ---- reaped ---- */

/* Lock held. */
static void free_route(ps_route *route)
{
	for (uint32_t i = 0; i < route->servers; i++)
		if (route->hosts[i])
			route->hosts[i]->refs--;
	free(route);
}

/* Its questions end with its client; then nobody reads by its windows any more. */
static void free_host(tern_ps *ps, ps_host *host)
{
	tern_rpc_close(host->rpc);
	rpc_lock_take(&ps->lock);
	for (tn_list *node = ps->tables.next; node != &ps->tables; node = node->next)
		tn_ps_windows_forget(&TN_CONTAINER_OF(node, tern_table, node)->windows, host);
	rpc_lock_drop(&ps->lock);
	free(host);
}

void tn_ps_hosts_reap(tern_ps *ps)
{
	tn_list gone, *node, *next;

	tn_list_init(&gone);
	rpc_lock_take(&ps->lock);
	while ((node = tn_list_pop_front(&ps->dead_routes)))
		free_route(TN_CONTAINER_OF(node, ps_route, node));
	for (node = ps->hosts.next; node != &ps->hosts; node = next) {
		next = node->next;
		if (TN_CONTAINER_OF(node, ps_host, node)->refs)
			continue;
		tn_list_remove(node);
		tn_list_push_back(&gone, node);
	}
	rpc_lock_drop(&ps->lock);
	while ((node = tn_list_pop_front(&gone)))
		free_host(ps, TN_CONTAINER_OF(node, ps_host, node));
}

void tn_ps_hosts_free(tern_ps *ps)
{
	tn_list *node;

	if (ps->route) /* nobody holds it any more */
		tn_ps_route_release(ps, ps->route);
	ps->route = NULL;
	tn_ps_hosts_reap(ps);
	while ((node = tn_list_pop_front(&ps->hosts))) /* those that were named */
		free_host(ps, TN_CONTAINER_OF(node, ps_host, node));
}
