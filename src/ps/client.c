/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a client. Threads: any; see client.h. Tests: tests/unit/ps.
 */
#include "ps/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/os.h"
#include "base/time.h"
#include "channel/dispatch.h"

#define BYE_NS \
	100000000u /* a server that does not answer by then keeps what it remembers for a while longer */

/* ---- the first map ---- */

/* Ask one server of those that were named for the map; what it says goes behind `text` if it does not tell. */
static tern_status ask_one(tern_ps *ps, const char *address, uint64_t timeout_ns, char *text, size_t room)
{
	ps_host *host;
	size_t n = strlen(text);
	tern_status status = tn_ps_host_get(ps, address, &host);

	/* Held for the client's life: it was named, and is asked when those of the map are gone. */
	if (status == TERN_OK)
		status = tn_ps_map_fetch(ps, host, timeout_ns);

	if (status != TERN_OK)
		snprintf(text + n, room - n, "%s%s: %s", n ? "; " : "", address,
			 tern_detail()[0] ? tern_detail() : tern_status_text(status));
	return status;
}

/* Ask the servers that were named, one after the other, until one tells the map; again if one is about to join others. */
static tern_status find_route(tern_ps *ps, const tern_ps_params *p)
{
	uint64_t end = tn_deadline(tn_ctx_now(ps->ctx), ps->timeout_ns), now = tn_ctx_now(ps->ctx);
	char text[TN_DETAIL_MAX] = "";
	tern_status status;
	bool joining;

	do {
		status = TERN_E_NOMEM;
		joining = false;
		text[0] = '\0';
		for (uint32_t i = 0; i < p->count && status != TERN_OK && now < end; i++) {
			status = ask_one(ps, p->servers[i], (end - now) / (p->count - i) + 1, text,
					 sizeof(text));
			now = tn_ctx_now(ps->ctx);
			joining |= status == TERN_E_STATE;
		}
		if (status != TERN_OK && joining && now < end)
			tern_ctx_wait(ps->ctx, 20 * TN_NS_PER_MS);
		now = tn_ctx_now(ps->ctx);
	} while (status != TERN_OK && joining && now < end);
	return status == TERN_OK ? TERN_OK : tn_fail(status, "no parameter server told its map: %s", text);
}

uint32_t tern_ps_servers(tern_ps *ps, uint64_t *version)
{
	ps_route *route = tn_ps_route_hold(ps);
	uint32_t alive = 0;

	for (uint32_t i = 0; i < route->servers; i++)
		alive += route->hosts[i] != NULL;
	if (version)
		*version = route->version;
	tn_ps_route_release(ps, route);
	return alive;
}

/* ---- life ---- */

static tern_status check_params(const tern_ps_params *p)
{
	if (!p || !p->servers || p->count == 0 || p->count > TN_PS_SERVERS_MAX)
		return tn_fail(TERN_E_INVALID, "name 1 to %u parameter servers", TN_PS_SERVERS_MAX);
	for (uint32_t i = 0; i < p->count; i++)
		if (!p->servers[i] || strlen(p->servers[i]) >= TN_ADDRESS_MAX)
			return tn_fail(TERN_E_INVALID, "the address of server %u is missing or too long", i);
	if (p->transports && strlen(p->transports) >= sizeof(((tern_ps *)0)->transports))
		return tn_fail(TERN_E_INVALID, "the list of transports is too long");
	return TERN_OK;
}

static tern_ps *ps_new(tern_ctx *ctx, const tern_ps_params *p)
{
	const tn_options *options = tn_ctx_options(ctx);
	tn_ps_state *state = tn_ps_state_get(ctx);
	tern_ps *ps = state ? calloc(1, sizeof(*ps)) : NULL;

	if (!ps || !(ps->map_bytes = malloc(TN_CL_MAP_BYTES_MAX))) {
		free(ps);
		return NULL;
	}
	ps->ctx = ctx;
	ps->mem = tern_ctx_mem(ctx);
	ps->counters = &state->counters;
	ps->spans = tn_ctx_spans(ctx);
	ps->kinds[PS_PULL] = tn_spans_kind(ps->spans, "ps.pull");
	ps->kinds[PS_PUSH] = tn_spans_kind(ps->spans, "ps.push");
	ps->kinds[PS_ERASE] = tn_spans_kind(ps->spans, "ps.erase");
	ps->timeout_ns = p->timeout_ns ? p->timeout_ns : 30000000000ull;
	ps->retry_ns = tn_opt_u64(options, tn_ps_options, "retry");
	ps->limit = tn_opt_u64(options, tn_ps_options, "in_flight");
	snprintf(ps->transports, sizeof(ps->transports), "%s", p->transports ? p->transports : "");
	rpc_lock_init(&ps->lock, tn_ctx_single_owner(ctx));
	rpc_lock_init(&ps->lease_lock, tn_ctx_single_owner(ctx));
	tn_list_init(&ps->live);
	tn_list_init(&ps->spare_calls);
	tn_list_init(&ps->spare_parts);
	tn_list_init(&ps->pushes);
	tn_list_init(&ps->tables);
	tn_list_init(&ps->map_waiters);
	tn_list_init(&ps->hosts);
	tn_list_init(&ps->dead_routes);
	return ps;
}

static void ps_free(tern_ps *ps)
{
	tn_list *node;

	tn_ps_leases_free(ps);
	tn_ps_parts_free(ps);
	tn_ps_calls_free(ps);
	tn_ps_hosts_free(ps);
	free(ps->map_bytes);
	while ((node = tn_list_pop_front(&ps->tables))) {
		tern_table *table = TN_CONTAINER_OF(node, tern_table, node);

		tn_ps_windows_free(table->windows);
		free(table);
	}
	rpc_lock_fini(&ps->lock);
	rpc_lock_fini(&ps->lease_lock);
	free(ps);
}

tern_status tern_ps_open(tern_ctx *ctx, const tern_ps_params *params, tern_ps **out)
{
	tern_status status;
	tern_ps *ps;

	*out = NULL;
	TN_TRY(check_params(params));
	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	ps = ps_new(ctx, params);
	if (!ps)
		return tn_fail(TERN_E_NOMEM, "no memory for a client of parameter servers");
	status = tn_os_random(&ps->id, sizeof(ps->id));
	if (status == TERN_OK)
		status = find_route(ps, params);
	if (status != TERN_OK) {
		ps_free(ps);
		return status;
	}
	*out = ps;
	return TERN_OK;
}

static void cancel_all(tern_ps *ps)
{
	tern_op *op;

	for (;;) {
		tern_table *table = NULL;

		op = NULL;
		rpc_lock_take(&ps->lock);
		for (tn_list *node = ps->live.next; node != &ps->live && !op; node = node->next) {
			ps_call *call = TN_CONTAINER_OF(node, ps_call, node);

			if (!atomic_load_explicit(&call->canceled, memory_order_relaxed)) {
				op = call->user;
				table = call->table;
			}
		}
		rpc_lock_drop(&ps->lock);
		if (!op)
			return;
		if (tern_table_cancel(table, op) != TERN_OK)
			tern_ctx_wait(ps->ctx, 100000); /* it is about to complete */
	}
}

static bool in_flight(tern_ps *ps)
{
	bool any;

	rpc_lock_take(&ps->lock);
	any = ps->in_flight > 0;
	rpc_lock_drop(&ps->lock);
	return any;
}

/* Nothing will be repeated: servers need not remember this client. Those that are gone would not hear of it in time. */
static void say_bye(tern_ps *ps)
{
	ps_route *route = tn_ps_route_hold(ps);

	for (uint32_t i = 0; i < route->servers; i++) {
		ps_host *host = route->hosts[i];
		tern_rpc_call_params call = {.method = TN_PS_BYE,
					     .args = &ps->id,
					     .args_bytes = sizeof(ps->id),
					     .flags = TERN_RPC_IDEMPOTENT};

		if (host && atomic_load_explicit(&host->pushed, memory_order_relaxed))
			(void)tern_rpc_call_wait(host->rpc, &call, BYE_NS, NULL);
	}
	tn_ps_route_release(ps, route);
}

void tern_ps_close(tern_ps *ps)
{
	if (!ps)
		return;
	TN_ASSERT(!tn_in_dispatch());
	rpc_lock_take(&ps->lock);
	ps->closing = true;
	rpc_lock_drop(&ps->lock);
	cancel_all(ps);
	while (in_flight(ps))
		tern_ctx_wait(ps->ctx, 1000000);
	tn_ps_map_end(ps);
	say_bye(ps);
	ps_free(ps);
}
