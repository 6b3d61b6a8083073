/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server side of RPC on a context: served methods, channels, clients by id, and the window that
 * makes each call run at most once: a request stays there, with its answer, until its client's low-water
 * mark passes it, so that a duplicate finds the answer instead of the handler.
 *
 * Methods are looked up without a lock (entries are only added, or replaced and retired). See server.h
 * for who owns whom and the locks. Tests: tests/unit/rpc/rpc_test.c, close_test.c.
 */
#include "rpc/server.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/time.h"

const tn_option_row tn_rpc_options[] = {
	{.layer = "rpc",
	 .name = "timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "30s",
	 .min = 1000000,
	 .help = "deadline of a call that names none"},
	{0},
};
TN_OPTION_TABLE(rpc, tn_rpc_options)

/* ---- clients and channels ---- */

void tn_rpc_client_unref(rpc_client *client)
{
	if (atomic_fetch_sub_explicit(&client->refs, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_destroy(&client->lock);
	free(client);
}

void tn_rpc_conn_unref(rpc_conn *conn)
{
	if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) != 1)
		return;
	tern_channel_close(conn->channel);
	free(conn);
}

/* server->lock held: out of the list, all requests forgotten. Returns the references to drop. */
static uint32_t client_unlink(tn_rpc_server *server, rpc_client *client)
{
	uint32_t refs;

	*client->prev = client->next;
	if (client->next)
		client->next->prev = client->prev;
	server->client_count--;
	pthread_mutex_lock(&client->lock);
	refs = tn_rpc_client_advance(client, client->low_water + TN_RPC_WINDOW);
	pthread_mutex_unlock(&client->lock);
	return refs + 1;
}

static void client_drop(rpc_client *client, uint32_t refs)
{
	while (refs--)
		tn_rpc_client_unref(client);
}

/* server->lock held: the longest-known client without a channel, or NULL. */
static rpc_client *client_to_evict(tn_rpc_server *server)
{
	rpc_client *victim = NULL;

	for (rpc_client *c = server->clients; c; c = c->next) {
		pthread_mutex_lock(&c->lock);
		if (!c->conn)
			victim = c;
		pthread_mutex_unlock(&c->lock);
	}
	return victim;
}

static rpc_client *client_new(tn_rpc_server *server, const tn_rpc_client_id *id)
{
	rpc_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	client->server = server;
	client->id = *id;
	client->refs = 1;
	pthread_mutex_init(&client->lock, NULL);
	client->next = server->clients;
	client->prev = &server->clients;
	if (client->next)
		client->next->prev = &client->next;
	server->clients = client;
	server->client_count++;
	return client;
}

/* Find or make the client and bind it to conn. NULL: out of memory. Takes a reference for conn. */
static rpc_client *client_bind(rpc_conn *conn, const tn_rpc_client_id *id)
{
	tn_rpc_server *server = conn->server;
	rpc_client *client, *victim = NULL;
	uint32_t drop = 0;

	pthread_mutex_lock(&server->lock);
	for (client = server->clients; client; client = client->next)
		if (memcmp(&client->id, id, sizeof(*id)) == 0)
			break;
	if (!client) {
		if (server->client_count >= TN_RPC_CLIENTS_MAX && (victim = client_to_evict(server)))
			drop = client_unlink(server, victim);
		client = client_new(server, id);
	}
	if (client) {
		atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
		pthread_mutex_lock(&client->lock);
		client->conn = conn;
		pthread_mutex_unlock(&client->lock);
	}
	pthread_mutex_unlock(&server->lock);
	if (victim)
		client_drop(victim, drop);
	return client;
}

static void client_unbind(rpc_conn *conn)
{
	rpc_client *client = conn->client;

	if (!client)
		return;
	conn->client = NULL;
	pthread_mutex_lock(&client->lock);
	if (client->conn == conn)
		client->conn = NULL;
	pthread_mutex_unlock(&client->lock);
	tn_rpc_client_unref(client);
}

/* ---- methods ---- */

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
 * Look up and enter: the entry stays usable until method_leave. Counting first and checking afterwards
 * that the entry is current (both seq_cst) lets tern_rpc_unserve wait for exactly those that got in.
 */
static rpc_method *method_enter(tn_rpc_server *server, uint32_t method)
{
	_Atomic(rpc_method *) *place = method_place(server, method);
	rpc_method *m = place ? atomic_load(place) : NULL;

	if (!m || !m->handler)
		return NULL;
	atomic_fetch_add(&m->running, 1);
	if (atomic_load(place) == m)
		return m;
	atomic_fetch_sub(&m->running, 1);
	return NULL;
}

static void method_leave(rpc_method *m)
{
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

static tern_status method_set(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg)
{
	tn_rpc_server *server = tn_rpc_server_get(ctx);
	rpc_method *entry = server ? calloc(1, sizeof(*entry)) : NULL;
	rpc_method *old = NULL;
	tern_status status;

	if (!entry)
		return tn_fail(TERN_E_NOMEM, "no memory to serve method %u", method);
	entry->method = method;
	entry->handler = handler;
	entry->arg = arg;
	pthread_mutex_lock(&server->lock);
	status = method_store(server, entry, &old);
	pthread_mutex_unlock(&server->lock);
	if (status != TERN_OK)
		free(entry);
	while (status == TERN_OK && old && atomic_load_explicit(&old->running, memory_order_acquire))
		sched_yield(); /* a handler does not block: this is short */
	return status;
}

tern_status tern_rpc_serve(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg)
{
	if (method == 0 || !handler)
		return tn_fail(TERN_E_INVALID, "rpc serve: method must not be 0, handler not NULL");
	return method_set(ctx, method, handler, arg);
}

void tern_rpc_unserve(tern_ctx *ctx, uint32_t method)
{
	method_set(ctx, method, NULL, NULL);
}

/* ---- requests come in ---- */

/* Put a new request into the window. TERN_E_EXISTS: *old is the one that is there; TERN_E_LIMIT. */
static tern_status window_add(rpc_conn *conn, const tn_rpc_request_head *head, tern_rpc_request *req,
			      tern_rpc_request **old)
{
	rpc_client *client = conn->client;
	tern_rpc_request **place = &client->window[head->seq % TN_RPC_WINDOW];
	tern_status status = TERN_OK;
	uint32_t freed;

	pthread_mutex_lock(&client->lock);
	freed = tn_rpc_client_advance(client, head->low_water);
	*old = NULL;
	if (head->seq < client->low_water || head->seq - client->low_water >= TN_RPC_WINDOW)
		status = TERN_E_LIMIT;
	else if (*place)
		status = TERN_E_EXISTS;
	if (status == TERN_E_EXISTS && (*place)->seq == head->seq)
		*old = *place;
	if (status == TERN_OK) {
		*place = req;
		atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&client->lock);
	client_drop(client, freed);
	return status;
}

static tern_rpc_request *request_new(rpc_conn *conn, const tn_rpc_request_head *head,
				     const tern_rpc_sink *sinks)
{
	tern_rpc_request *req = TN_FAULT("rpc.request.alloc") ? NULL : calloc(1, sizeof(*req));

	if (!req)
		return NULL;
	req->server = conn->server;
	req->client = conn->client;
	req->origin = conn;
	req->seq = head->seq;
	req->deadline_ns = tn_deadline(tn_ctx_now(conn->server->ctx), head->timeout_ns);
	req->sink_count = head->sink_count;
	memcpy(req->sinks, sinks, head->sink_count * sizeof(*sinks));
	return req;
}

static void on_request(rpc_conn *conn, const void *msg, uint64_t bytes)
{
	tn_rpc_server *server = conn->server;
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head head;
	tern_rpc_request *req, *old;
	rpc_method *method;
	const void *args;

	if (!tn_rpc_request_decode(msg, bytes, &head, sinks, &args))
		return; /* malformed: the caller's deadline ends its call */
	if (!conn->client || memcmp(&conn->client->id, &head.client, sizeof(head.client)) != 0) {
		client_unbind(conn);
		conn->client = client_bind(conn, &head.client);
	}
	req = conn->client ? request_new(conn, &head, sinks) : NULL;
	if (!req)
		return; /* no memory: as if lost */
	atomic_fetch_add_explicit(&server->counters.requests, 1, memory_order_relaxed);
	if (window_add(conn, &head, req, &old) != TERN_OK) {
		atomic_fetch_add_explicit(&server->counters.duplicates, 1, memory_order_relaxed);
		free(req);
		if (old)
			tn_rpc_request_resend(old);
		return;
	}
	atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
	method = method_enter(server, head.method);
	if (!method) {
		char text[64];
		int n = snprintf(text, sizeof(text), "the peer serves no method %u", head.method);

		atomic_fetch_add_explicit(&server->counters.no_method, 1, memory_order_relaxed);
		tern_rpc_reply(req, TERN_E_NO_METHOD, text, (uint64_t)n);
		return;
	}
	method->handler(req, args, head.args_bytes, method->arg);
	method_leave(method);
}

static tern_rpc_request *find_request(rpc_client *client, uint64_t seq)
{
	tern_rpc_request *req;

	pthread_mutex_lock(&client->lock);
	req = client->window[seq % TN_RPC_WINDOW];
	if (req && req->seq != seq)
		req = NULL;
	pthread_mutex_unlock(&client->lock);
	return req;
}

/* An acknowledgement that belongs to no request. */
typedef struct stray_ack {
	tern_op op;
	rpc_conn *conn;
	uint8_t msg[TN_RPC_REPLY_BYTES];
} stray_ack;

static void on_stray_ack_sent(tern_op *op, void *arg)
{
	stray_ack *ack = arg;

	(void)op;
	tn_rpc_conn_unref(ack->conn);
	free(ack);
}

/*
 * CANCEL of a call that is not here: it came behind its request, which was dropped (no memory, malformed, out
 * of the window), so nothing writes into its sinks. Without memory or room the client asks again.
 */
static void ack_stray(rpc_conn *conn, uint64_t seq)
{
	tn_rpc_reply_head head = {.type = TN_RPC_CANCEL_ACK, .status = TERN_E_DEADLINE, .seq = seq};
	stray_ack *ack = TN_FAULT("rpc.ack.alloc") ? NULL : malloc(sizeof(*ack));

	if (!ack)
		return;
	ack->conn = conn;
	atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
	tn_rpc_reply_encode(ack->msg, &head);
	tern_op_init(&ack->op, on_stray_ack_sent, ack);
	if (tern_send(conn->channel, ack->msg, sizeof(ack->msg), &ack->op) != TERN_OK)
		on_stray_ack_sent(&ack->op, ack);
}

static void on_control(rpc_conn *conn, const tn_rpc_reply_head *head)
{
	tern_rpc_request *req;
	uint32_t freed;

	if (head->type == TN_RPC_CANCEL) {
		/* Only this channel moves the window while we are in its callback: req stays. */
		req = conn->client ? find_request(conn->client, head->seq) : NULL;
		if (req)
			tn_rpc_request_cancel(req);
		else
			ack_stray(conn, head->seq);
	} else if (head->type == TN_RPC_DONE && conn->client) {
		pthread_mutex_lock(&conn->client->lock);
		freed = tn_rpc_client_advance(conn->client, head->low_water);
		pthread_mutex_unlock(&conn->client->lock);
		client_drop(conn->client, freed);
	}
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	rpc_conn *conn = arg;
	tn_rpc_reply_head head;
	const void *data;

	(void)channel;
	if (tn_rpc_type_of(msg, bytes) == TN_RPC_REQUEST)
		on_request(conn, msg, bytes);
	else if (tn_rpc_reply_decode(msg, bytes, &head, &data))
		on_control(conn, &head);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	rpc_conn *conn = arg;

	(void)channel;
	(void)status;
	client_unbind(conn);
	tn_rpc_conn_unref(conn);
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	rpc_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return tn_fail(TERN_E_NOMEM, "no memory for an RPC connection");
	conn->refs = 1;
	conn->server = arg;
	conn->channel = channel;
	*params = (tern_channel_params){.on_message = on_message,
					.on_closed = on_closed,
					.arg = conn,
					.message_bytes_max = TERN_RPC_INLINE_MAX + TN_RPC_REQUEST_BYTES_MAX};
	return TERN_OK;
}

/* ---- the layer's state ---- */

static void server_counters(tn_ctx_slot *slot, tern_counter_fn fn, void *arg)
{
	tn_rpc_counters *c = &((tn_rpc_server *)slot)->counters;

#define ROW(name) fn("rpc." #name, atomic_load_explicit(&c->name, memory_order_relaxed), arg)
	ROW(calls);
	ROW(answers);
	ROW(deadlines);
	ROW(requests);
	ROW(duplicates);
	ROW(no_method);
	ROW(retries);
	ROW(copies);
	ROW(copy_bytes);
#undef ROW
}

static void server_destroy(tn_ctx_slot *slot)
{
	tn_rpc_server *server = (tn_rpc_server *)slot;

	tn_ctx_timer_cancel(server->ctx, &server->timer);
	while (server->clients) {
		rpc_client *client = server->clients;

		client_drop(client, client_unlink(server, client));
	}
	for (unsigned i = 0; i < TN_RPC_METHODS_MAX; i++)
		free(atomic_load_explicit(&server->methods[i], memory_order_relaxed));
	while (server->retired) {
		rpc_method *m = server->retired;

		server->retired = m->older;
		free(m);
	}
	pthread_mutex_destroy(&server->lock);
	free(server);
}

tn_rpc_server *tn_rpc_server_get(tern_ctx *ctx)
{
	tn_rpc_server *server = (tn_rpc_server *)tn_ctx_slot_get(ctx, TN_SLOT_RPC);
	tn_rpc_server *winner;

	if (server)
		return server;
	server = calloc(1, sizeof(*server));
	if (!server)
		return NULL;
	server->slot.destroy = server_destroy;
	server->slot.counters = server_counters;
	server->ctx = ctx;
	server->timer.run = tn_rpc_retry;
	pthread_mutex_init(&server->lock, NULL);
	winner = (tn_rpc_server *)tn_ctx_slot_set(ctx, TN_SLOT_RPC, &server->slot);
	if (winner != server) {
		pthread_mutex_destroy(&server->lock);
		free(server);
		return winner;
	}
	if (tern_ctx_listen(ctx, TN_RPC_SERVICE, on_open, server) != TERN_OK)
		return NULL; /* cannot happen: the name is ours */
	return server;
}

tn_rpc_counters *tn_rpc_counters_of(tn_rpc_server *server)
{
	return &server->counters;
}
