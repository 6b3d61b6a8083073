/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for answers, and from whom: of clients that dial their own links (those of a parameter server's client are).
 * Threads: any. Tests: tests/unit/rpc/rpc_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "rpc/client.h"

#define ROWS_MAX 256u

typedef struct row {
	char address[TN_ADDRESS_MAX];
	uint32_t method;
	uint64_t oldest_ns, count;
} row;

typedef struct rows {
	row row[ROWS_MAX];
	uint32_t n;
} rows;

static void add(rows *r, const char *address, const rpc_call *c)
{
	uint64_t started_ns = tn_ctx_then(c->started_ns, c->exact);
	row *at = NULL;

	for (uint32_t i = 0; i < r->n && !at; i++)
		if (r->row[i].method == c->method && strcmp(r->row[i].address, address) == 0)
			at = &r->row[i];
	if (!at) {
		if (r->n == ROWS_MAX)
			return;
		at = &r->row[r->n++];
		*at = (row){.method = c->method, .oldest_ns = started_ns};
		snprintf(at->address, sizeof(at->address), "%s", address);
	}
	at->count++;
	at->oldest_ns = TN_MIN(at->oldest_ns, started_ns);
}

/* The client's lock is held. */
static void add_stream(rows *r, const rpc_stream *stream)
{
	for (uint64_t seq = stream->low_water; seq < stream->next_seq; seq++) {
		const rpc_call *c = &stream->calls[seq % TN_RPC_WINDOW];

		if (c->state == CALL_ACTIVE && c->seq == seq)
			add(r, stream->rpc->line.address, c);
	}
}

void tn_rpc_clients_waits(tn_ctx_slot *slot, void (*fn)(const tern_wait *wait, void *arg), void *arg)
{
	tn_rpc_server *server = (tn_rpc_server *)slot;
	rows *r = calloc(1, sizeof(*r));
	uint64_t now;
	char what[64];

	if (!r)
		return;
	rpc_lock_take(&server->lock);
	TN_LIST_FOREACH(node, &server->clients) {
		tern_rpc *rpc = TN_LIST_ENTRY(node, tern_rpc, node);

		rpc_lock_take(&rpc->lock);
		for (unsigned k = 0; k < TN_RPC_CLASSES; k++)
			if (rpc->streams[k])
				add_stream(r, rpc->streams[k]);
		rpc_lock_drop(&rpc->lock);
	}
	rpc_lock_drop(&server->lock);
	now = tn_ctx_now(server->ctx);
	for (uint32_t i = 0; i < r->n; i++) {
		snprintf(what, sizeof(what), "%s of method %#x", r->row[i].count > 1 ? "calls" : "a call",
			 r->row[i].method);
		fn(&(tern_wait){.what = what,
				.whom = r->row[i].address,
				.since_ns = now > r->row[i].oldest_ns ? now - r->row[i].oldest_ns : 0,
				.count = r->row[i].count},
		   arg);
	}
	free(r);
}
