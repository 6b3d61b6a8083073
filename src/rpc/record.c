/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of clients at the server: found by (client id, class), bound to the channels that speak for them, kept
 * for a while without any, and the window that makes each call run at most once: a request stays there, with its
 * answer, until its client's low-water mark passes it, so that a duplicate finds the answer instead of the handler.
 *
 *   bound (some channel) -> orphan (none, since orphan_ns) -> bound | evicted: rpc.keep passed, orphans keep more
 *                                                                     than rpc.keep_bytes, or there are too many
 *
 * A record knows all requests of its client's sessions from `created` on, because it is not evicted while a channel
 * is bound. A request of an earlier session that is not in the window may have run: it must not run again.
 *
 * Threads: see server.h. Tests: tests/unit/rpc/rpc_test.c, relink_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/time.h"
#include "rpc/server.h"

void tn_rpc_record_end(rpc_record *record)
{
	for (rpc_flow *flow = atomic_load(&record->flows), *next; flow; flow = next) {
		TN_ASSERT(flow->queued == 0 && flow->running == 0);
		next = flow->next;
		free(flow);
	}
	rpc_lock_fini(&record->lock);
	free(record);
}

void tn_rpc_conn_end(rpc_conn *conn)
{
	tern_channel_close(conn->channel);
	free(conn);
}

/* ---- the window ---- */

/* record->lock held: out of the window. True: freed, a reference of the record is to be dropped. */
static bool forget(rpc_record *record, tern_rpc_request *req)
{
	uint64_t kept = sizeof(*req) + (req->answer_copy ? req->answer_bytes : 0);

	record->window[req->seq % TN_RPC_WINDOW] = NULL;
	TN_ASSERT(record->kept >= kept);
	record->kept -= kept;
	req->forgotten = true;
	if (!req->answered && tn_rpc_gate_drop(req))
		req->answered = true; /* it waited for its turn: nobody wants it any more */
	return tn_rpc_request_try_free(req);
}

uint32_t tn_rpc_record_advance(rpc_record *record, uint64_t low_water)
{
	uint32_t freed = 0;
	/* A peer may claim any mark: more than a window ahead there is nothing to look at. */
	uint64_t steps = low_water > record->low_water ? low_water - record->low_water : 0;

	if (steps > TN_RPC_WINDOW)
		steps = TN_RPC_WINDOW;
	for (uint64_t i = 0; i < steps; i++) {
		tern_rpc_request *req = record->window[(record->low_water + i) % TN_RPC_WINDOW];

		if (req && req->seq < low_water && forget(record, req))
			freed++;
	}
	if (low_water > record->low_water)
		record->low_water = low_water;
	return freed;
}

TN_ALWAYS_INLINE tern_status tn_rpc_record_add(rpc_record *record, const tn_rpc_request_head *head,
					       tern_rpc_request *req, tern_rpc_request **old)
{
	tern_rpc_request **place = &record->window[head->seq % TN_RPC_WINDOW];
	tern_status status = TERN_OK;
	uint32_t freed = 0;

	rpc_lock_take(&record->lock);
	if (!record->server->counters.own || head->seq - record->low_water >= TN_RPC_WINDOW || *place)
		freed = tn_rpc_record_advance(record, head->low_water);
	*old = NULL;
	if (head->seq < record->low_water || head->seq - record->low_water >= TN_RPC_WINDOW)
		status = TERN_E_LIMIT;
	else if (*place && !TN_MUTANT(13))
		status = TERN_E_EXISTS;
	if (status == TERN_E_EXISTS && (*place)->seq == head->seq)
		*old = *place;
	if (status == TERN_OK) {
		*place = req;
		record->kept += sizeof(*req);
		rpc_refs_add(&record->refs, record->server->counters.own);
		if (head->first < record->created && !(head->flags & TN_RPC_IDEMPOTENT))
			status = TERN_E_INDETERMINATE;
	}
	rpc_lock_drop(&record->lock);
	tn_rpc_record_unref(record, freed);
	return status;
}

/* ---- eviction ---- */

/* server->lock held: out of the list, all requests forgotten. Returns the references to drop. */
static uint32_t unlink_record(tn_rpc_server *server, rpc_record *record)
{
	uint32_t refs;

	tn_list_remove(&record->node);
	server->record_count--;
	rpc_lock_take(&record->lock);
	refs = tn_rpc_record_advance(record, record->low_water + TN_RPC_WINDOW);
	rpc_lock_drop(&record->lock);
	return refs + 1;
}

/* server->lock held, free meanwhile. */
static void evict(tn_rpc_server *server, rpc_record *record)
{
	uint32_t refs = unlink_record(server, record);

	TN_RPC_COUNT(&server->counters, evicted, 1);
	rpc_lock_drop(&server->lock);
	tn_rpc_record_unref(record, refs);
	rpc_lock_take(&server->lock);
}

/* server->lock held: the record that has been without a channel for longest, or NULL; *kept: of all of those. */
static rpc_record *oldest_orphan(tn_rpc_server *server, uint64_t *kept)
{
	rpc_record *oldest = NULL;

	*kept = 0;
	TN_LIST_FOREACH(node, &server->records) {
		rpc_record *record = TN_LIST_ENTRY(node, rpc_record, node);

		if (record->bound)
			continue;
		rpc_lock_take(&record->lock);
		*kept += record->kept;
		rpc_lock_drop(&record->lock);
		if (!oldest || record->orphan_ns < oldest->orphan_ns)
			oldest = record;
	}
	return oldest;
}

void tn_rpc_records_trim(tn_rpc_server *server)
{
	rpc_record *oldest;
	uint64_t kept;

	rpc_lock_take(&server->lock);
	while ((oldest = oldest_orphan(server, &kept)) && kept > server->keep_bytes)
		evict(server, oldest);
	rpc_lock_drop(&server->lock);
}

/* Evict what is too old; set the timer for the next one. */
void tn_rpc_keep_timer(tn_ctx_timer *timer)
{
	tn_rpc_server *server = TN_CONTAINER_OF(timer, tn_rpc_server, keep_timer);
	uint64_t now = tn_ctx_now(server->ctx), kept;
	rpc_record *oldest;

	rpc_lock_take(&server->lock);
	while ((oldest = oldest_orphan(server, &kept)) && now - oldest->orphan_ns >= server->keep_ns)
		evict(server, oldest);
	if (oldest)
		tn_ctx_timer_set(server->ctx, timer, tn_deadline(oldest->orphan_ns, server->keep_ns));
	rpc_lock_drop(&server->lock);
}

void tn_rpc_records_free(tn_rpc_server *server)
{
	rpc_lock_take(&server->lock);
	while (!tn_list_empty(&server->records)) {
		rpc_record *record = TN_LIST_FIRST(&server->records, rpc_record, node);
		uint32_t refs = unlink_record(server, record);

		rpc_lock_drop(&server->lock);
		tn_rpc_record_unref(record, refs);
		rpc_lock_take(&server->lock);
	}
	rpc_lock_drop(&server->lock);
}

/* ---- binding ---- */

/* server->lock held. */
static rpc_record *record_new(tn_rpc_server *server, const tn_rpc_request_head *head)
{
	rpc_record *record = TN_FAULT("rpc.record.alloc") ? NULL : calloc(1, sizeof(*record));

	if (!record)
		return NULL;
	record->server = server;
	record->id = head->client;
	record->service_class = head->service_class;
	record->created = head->session;
	record->refs = 1;
	rpc_lock_init(&record->lock, server->counters.own);
	tn_list_push_front(&server->records, &record->node);
	server->record_count++;
	return record;
}

/* server->lock held. */
static rpc_record *find_record(tn_rpc_server *server, const tn_rpc_request_head *head)
{
	TN_LIST_FOREACH(node, &server->records) {
		rpc_record *record = TN_LIST_ENTRY(node, rpc_record, node);

		if (record->service_class == head->service_class &&
		    memcmp(&record->id, &head->client, sizeof(head->client)) == 0)
			return record;
	}
	return NULL;
}

rpc_record *tn_rpc_record_bind(rpc_conn *conn, const tn_rpc_request_head *head)
{
	tn_rpc_server *server = conn->server;
	rpc_record *record, *victim;
	uint64_t kept;

	rpc_lock_take(&server->lock);
	record = find_record(server, head);
	if (!record) {
		if (server->record_count >= TN_RPC_RECORDS_MAX && (victim = oldest_orphan(server, &kept)))
			evict(server,
			      victim); /* requests come in one thread: nobody makes the record meanwhile */
		record = record_new(server, head);
	}
	if (record) {
		rpc_refs_add(&record->refs, record->server->counters.own);
		record->bound++;
		rpc_lock_take(&record->lock);
		record->conn = conn;
		rpc_lock_drop(&record->lock);
	}
	conn->record = record;
	rpc_lock_drop(&server->lock);
	return record;
}

void tn_rpc_record_unbind(rpc_conn *conn)
{
	tn_rpc_server *server = conn->server;
	rpc_record *record = conn->record;
	uint64_t now = tn_ctx_now(server->ctx);
	bool orphan;

	if (!record)
		return;
	conn->record = NULL;
	rpc_lock_take(&server->lock);
	TN_ASSERT(record->bound > 0);
	orphan = --record->bound == 0;
	if (orphan) {
		record->orphan_ns = now;
		tn_ctx_timer_set(server->ctx, &server->keep_timer, tn_deadline(now, server->keep_ns));
	}
	rpc_lock_take(&record->lock);
	if (record->conn == conn)
		record->conn = NULL;
	rpc_lock_drop(&record->lock);
	rpc_lock_drop(&server->lock);
	tn_rpc_record_unref(record, 1);
	if (orphan)
		tn_rpc_records_trim(server);
}
