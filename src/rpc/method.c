/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Served methods. Looked up without a lock: entries are only added, or replaced and retired.
 * Threads: any. Tests: tests/unit/rpc/rpc_test.c.
 */
#include <sched.h>
#include <stdlib.h>

#include "base/fail.h"
#include "rpc/server.h"

static uint32_t method_hash(uint32_t method)
{
	return method * 2654435761u;
}

/* The place of a method, or where it would go; NULL if the table is full. */
static _Atomic(rpc_method *) *method_place(tn_rpc_server *server, uint32_t method)
{
	for (uint32_t i = 0, h = method_hash(method); i < TN_RPC_METHODS_MAX; i++, h++) {
		_Atomic(rpc_method *) *place = &server->methods[h % TN_RPC_METHODS_MAX];
		rpc_method *m = atomic_load_explicit(place, memory_order_acquire);

		if (!m || m->method == method)
			return place;
	}
	return NULL;
}

/*
 * Counting first and checking afterwards that the entry is current (both seq_cst) lets tern_rpc_unserve wait for
 * exactly those that got in.
 */
TN_ALWAYS_INLINE rpc_method *tn_rpc_method_enter(tn_rpc_server *server, uint32_t method)
{
	_Atomic(rpc_method *) *place = method_place(server, method);
	rpc_method *m = place ? atomic_load(place) : NULL;

	if (!m || !m->handler)
		return NULL;
	if (server->counters.own) { /* and so nobody unserves it meanwhile but its handler */
		rpc_refs_add(&m->running, true);
		return m;
	}
	atomic_fetch_add(&m->running, 1);
	if (atomic_load(place) == m)
		return m;
	atomic_fetch_sub(&m->running, 1);
	return NULL;
}

bool tn_rpc_method_known(tn_rpc_server *server, uint32_t method)
{
	_Atomic(rpc_method *) *place = method_place(server, method);

	return !place || atomic_load(place) != NULL;
}

TN_ALWAYS_INLINE void tn_rpc_method_leave(tn_rpc_server *server, rpc_method *m)
{
	if (server->counters.own)
		(void)rpc_refs_drop(&m->running, 1, true);
	else
		atomic_fetch_sub_explicit(&m->running, 1, memory_order_release);
}

/* Put an entry (handler NULL = not served) in its place; the old one is retired. Lock held. */
static tern_status method_store(tn_rpc_server *server, rpc_method *entry, rpc_method **old)
{
	_Atomic(rpc_method *) *place = method_place(server, entry->method);

	if (!place)
		return tn_fail(TERN_E_LIMIT, "more than %u methods", TN_RPC_METHODS_MAX);
	*old = atomic_load(place);
	if (*old && (*old)->handler && entry->handler)
		return tn_fail(TERN_E_EXISTS, "method %u is served already", entry->method);
	if (*old) {
		(*old)->older = server->retired;
		server->retired = *old;
	}
	atomic_store(place, entry);
	return TERN_OK;
}

/* limits NULL: with the other methods of the context. */
static tern_status method_set(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg,
			      const tern_rpc_limits *limits)
{
	tn_rpc_server *server = tn_rpc_server_get(ctx);
	rpc_method *entry = server ? calloc(1, sizeof(*entry)) : NULL;
	rpc_method *old = NULL;
	tern_status status;

	if (entry)
		entry->gate = limits ? tn_rpc_gate_new(server, limits) : server->gate;
	if (!entry || !entry->gate) {
		free(entry);
		return tn_fail(TERN_E_NOMEM, "no memory to serve method %u", method);
	}
	entry->method = method;
	entry->handler = handler;
	entry->arg = arg;
	rpc_lock_take(&server->lock);
	status = method_store(server, entry, &old);
	rpc_lock_drop(&server->lock);
	if (status != TERN_OK)
		free(entry);
	else
		tn_rpc_gate_kick(server->nursery);
	while (status == TERN_OK && old && atomic_load_explicit(&old->running, memory_order_acquire))
		sched_yield(); /* a handler does not block: this is short */
	return status;
}

tern_status tern_rpc_serve(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg)
{
	if (method == 0 || !handler)
		return tn_fail(TERN_E_INVALID, "rpc serve: method must not be 0, handler not NULL");
	return method_set(ctx, method, handler, arg, NULL);
}

tern_status tern_rpc_serve_limited(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg,
				   const tern_rpc_limits *limits)
{
	if (method == 0 || !handler || !limits)
		return tn_fail(TERN_E_INVALID,
			       "rpc serve: method must not be 0, handler and limits not NULL");
	return method_set(ctx, method, handler, arg, limits);
}

void tern_rpc_unserve(tern_ctx *ctx, uint32_t method)
{
	method_set(ctx, method, NULL, NULL, NULL);
}

void tn_rpc_methods_free(tn_rpc_server *server)
{
	for (unsigned i = 0; i < TN_RPC_METHODS_MAX; i++)
		free(atomic_load_explicit(&server->methods[i], memory_order_relaxed));
	while (server->retired) {
		rpc_method *m = server->retired;

		server->retired = m->older;
		free(m);
	}
}
