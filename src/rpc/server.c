/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RPC layer's state on a context: options, counters, and the life of the server side. See server.h for who owns
 * whom. Threads: any. Tests: tests/unit/rpc.
 */
#include "rpc/server.h"

#include <stdlib.h>

#include "base/fail.h"
#include "base/time.h"
#include "rpc/client.h"
#include "rpc/incoming.h"

#define ROW(row_name, row_type, row_dflt, row_min, row_max, row_help)                                 \
	{                                                                                             \
		.layer = "rpc", .name = row_name, .type = row_type, .dflt = row_dflt, .min = row_min, \
		.max = row_max, .help = row_help                                                      \
	}

const tn_option_row tn_rpc_options[] = {
	ROW("timeout", TN_OPT_DURATION, "30s", 1000000, 0, "deadline of a call that names none"),
	ROW("keep", TN_OPT_DURATION, "2m", 1000000, 0,
	    "how long a server keeps the answers of a client whose link died"),
	ROW("keep_bytes", TN_OPT_BYTES, "64MiB", 0, 0, "bytes of those that it keeps at most"),
	ROW("running", TN_OPT_U64, "4096", 1, 0, "calls that a server has in hand at once; others wait"),
	ROW("running_client", TN_OPT_U64, "256", 1, 0, "of those, of one client in one class"),
	ROW("running_latency", TN_OPT_U64, "0", 0, 0, "of those, of class LATENCY; 0: no limit of its own"),
	ROW("running_normal", TN_OPT_U64, "0", 0, 0, "of those, of class NORMAL; 0: no limit of its own"),
	ROW("running_bulk", TN_OPT_U64, "3072", 0, 0,
	    "of those, of class BULK: what is left is for the others; 0: no limit of its own"),
	ROW("queue_bytes", TN_OPT_BYTES, "256MiB", 0, 0,
	    "arguments of calls that wait at a server, in each class; what exceeds it is refused"),
	ROW("queue_client_bytes", TN_OPT_BYTES, "64MiB", 0, 0, "of those, of one client"),
	ROW("queue_calls", TN_OPT_U64, "16384", 1, 0, "calls that wait at a server, in each class"),
	ROW("starve", TN_OPT_U64, "64", 0, 0,
	    "calls of higher classes after which one of a lower class that waits has its turn; 0: never"),
	ROW("serve_grace", TN_OPT_DURATION, "1s", 0, 0,
	    "how long a new context lets calls wait for methods that it does not serve yet"),
	ROW("retry_after", TN_OPT_DURATION, "10ms", 0, 0, "what a refused caller is told to wait"),
	ROW("redial", TN_OPT_DURATION, "5ms", 100000, 0,
	    "pause before a lost link is dialed again; doubled each time, with jitter"),
	ROW("redial_max", TN_OPT_DURATION, "1s", 100000, 0, "longest such pause"),
	ROW("breaker", TN_OPT_U64, "16", 0, 0,
	    "links that fail in a row before calls fail at once; 0: never"),
	ROW("breaker_time", TN_OPT_DURATION, "2s", 1000000, 0, "how long they do, before another try"),
	ROW("retry_budget", TN_OPT_U64, "256", 0, 0,
	    "copies that may be executed a second time; ten answers earn one more"),
	ROW("tries", TN_OPT_U64, "16", 1, 0, "links that one call is sent over at most"),
	{0},
};
#undef ROW
TN_OPTION_TABLE(rpc, tn_rpc_options)

static void server_counters(tn_ctx_slot *slot, tern_counter_fn fn, void *arg)
{
	tn_rpc_counters *c = &((tn_rpc_server *)slot)->counters;

#define ROW(name) fn("rpc." #name, atomic_load_explicit(&c->name, memory_order_relaxed), arg);
	TN_RPC_COUNTERS(ROW)
#undef ROW
}

static void server_free(tn_rpc_server *server)
{
	tn_rpc_methods_free(server);
	tn_rpc_gates_free(server);
	tn_rpc_requests_end(server);
	tn_rpc_spare_end(&server->spare);
	rpc_lock_fini(&server->unused_lock);
	rpc_lock_fini(&server->lock);
	free(server);
}

static void server_destroy(tn_ctx_slot *slot)
{
	tn_rpc_server *server = (tn_rpc_server *)slot;

	tn_rpc_clients_end(server);
	tn_ctx_timer_cancel(server->ctx, &server->timer);
	tn_ctx_timer_cancel(server->ctx, &server->keep_timer);
	tn_ctx_timer_cancel(server->ctx, &server->nursery_timer);
	tn_rpc_records_free(server);
	server_free(server);
}

static tn_rpc_server *server_new(tern_ctx *ctx)
{
	tn_rpc_server *server = calloc(1, sizeof(*server));

	if (!server)
		return NULL;
	server->slot.destroy = server_destroy;
	server->slot.counters = server_counters;
	server->slot.waits = tn_rpc_clients_waits;
	server->ctx = ctx;
	server->spans = tn_ctx_spans(ctx);
	server->serve_span = tn_spans_kind(server->spans, "rpc.serve");
	server->timer.run = tn_rpc_retry;
	server->keep_timer.run = tn_rpc_keep_timer;
	server->keep_ns = tn_opt_u64(tn_ctx_options(ctx), tn_rpc_options, "keep");
	server->keep_bytes = tn_opt_u64(tn_ctx_options(ctx), tn_rpc_options, "keep_bytes");
	server->counters.own = tn_ctx_single_owner(ctx);
	rpc_lock_init(&server->lock, server->counters.own);
	rpc_lock_init(&server->unused_lock, server->counters.own);
	tn_list_init(&server->records);
	tn_list_init(&server->clients);
	server->grown_ns =
		tn_deadline(tn_ctx_now(ctx), tn_opt_u64(tn_ctx_options(ctx), tn_rpc_options, "serve_grace"));
	server->gate = tn_rpc_gate_new(server, NULL);
	server->nursery = tn_rpc_gate_new(server, NULL);
	if (server->gate && server->nursery) {
		tn_rpc_nursery_init(server);
		return server;
	}
	server_free(server);
	return NULL;
}

tn_rpc_server *tn_rpc_server_get(tern_ctx *ctx)
{
	tn_rpc_server *server = (tn_rpc_server *)tn_ctx_slot_get(ctx, TN_SLOT_RPC);
	tn_rpc_server *winner;

	if (server)
		return server;
	server = server_new(ctx);
	if (!server)
		return NULL;
	winner = (tn_rpc_server *)tn_ctx_slot_set(ctx, TN_SLOT_RPC, &server->slot);
	if (winner != server) {
		server_free(server);
		return winner;
	}
	if (tern_ctx_listen(ctx, TN_RPC_SERVICE, tn_rpc_on_open, server) != TERN_OK)
		return NULL; /* cannot happen: the name is ours */
	return server;
}

tn_rpc_counters *tn_rpc_counters_of(tn_rpc_server *server)
{
	return &server->counters;
}
