/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of tables that clients read: taken from the context's registered memory, each piece with a key, and told.
 *
 * Threads: pieces under their lock, which is taken inside an engine's; layouts from the driver.
 * Tests: tests/unit/ps/onesided_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/wirebuf.h"
#include "ps/onesided.h"
#include "ps/server.h"

typedef struct piece {
	uint8_t *at;
	uint64_t bytes;
	tern_key key;
} piece;

struct tn_ps_outside {
	tern_mem *mem;
	tn_ps_beacon *beacon;
	tern_key beacon_key;
	pthread_mutex_t lock;
	piece *pieces; /* by address */
	uint32_t count, room;
};

/* ---- memory ---- */

/* Lock held: the number of pieces that begin at or below `at`. */
static uint32_t below(const tn_ps_outside *o, const uint8_t *at)
{
	uint32_t low = 0, high = o->count;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (o->pieces[mid].at <= at)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Lock held. */
static bool add_piece(tn_ps_outside *o, const piece *p)
{
	uint32_t at = below(o, p->at);

	if (o->count == o->room) {
		uint32_t room = o->room ? 2 * o->room : 16;
		piece *more = TN_FAULT("ps.outside.piece") ? NULL : realloc(o->pieces, room * sizeof(*more));

		if (!more)
			return false;
		o->pieces = more;
		o->room = room;
	}
	memmove(o->pieces + at + 1, o->pieces + at, (o->count - at) * sizeof(*o->pieces));
	o->pieces[at] = *p;
	o->count++;
	return true;
}

static void *take(void *arg, uint64_t bytes, uint64_t align)
{
	tn_ps_outside *o = arg;
	piece p = {.bytes = bytes};
	bool added = false;
	void *at;

	if (tern_mem_alloc(o->mem, bytes, TN_MAX(align, 4096), TERN_ACCESS_READ, TERN_MEM_HOST, &at) !=
	    TERN_OK)
		return NULL;
	p.at = at;
	if (tern_mem_export(o->mem, at, bytes, TERN_ACCESS_READ, &p.key) == TERN_OK) {
		pthread_mutex_lock(&o->lock);
		added = add_piece(o, &p);
		pthread_mutex_unlock(&o->lock);
	}
	if (added)
		return at;
	tern_mem_free(o->mem, at);
	return NULL;
}

static void give_back(void *arg, void *ptr, uint64_t bytes)
{
	tn_ps_outside *o = arg;
	uint32_t at;

	pthread_mutex_lock(&o->lock);
	at = below(o, ptr);
	TN_ASSERT(at > 0 && o->pieces[at - 1].at == ptr && o->pieces[at - 1].bytes == bytes);
	memmove(o->pieces + at - 1, o->pieces + at, (o->count - at) * sizeof(*o->pieces));
	o->count--;
	pthread_mutex_unlock(&o->lock);
	tern_mem_free(o->mem, ptr); /* its key ends when nobody reads by it any more */
}

tn_ps_outside *tn_ps_outside_new(tern_ctx *ctx, tn_table_env *env)
{
	tn_ps_outside *o = TN_FAULT("ps.outside.alloc") ? NULL : calloc(1, sizeof(*o));
	void *at = NULL;

	if (!o)
		return NULL;
	o->mem = tern_ctx_mem(ctx);
	pthread_mutex_init(&o->lock, NULL);
	if (tern_mem_alloc(o->mem, sizeof(*o->beacon), 64, TERN_ACCESS_READ, TERN_MEM_HOST, &at) == TERN_OK) {
		memset(at, 0, sizeof(*o->beacon));
		o->beacon = at;
		atomic_init(&o->beacon->changes, 1); /* 0: a client knows none */
	}
	if (!o->beacon || tern_mem_export(o->mem, o->beacon, sizeof(*o->beacon), TERN_ACCESS_READ,
					  &o->beacon_key) != TERN_OK) {
		tn_ps_outside_free(o);
		return NULL;
	}
	*env = (tn_table_env){.memory = {take, give_back, o}, .changes = &o->beacon->changes};
	return o;
}

void tn_ps_outside_close(tn_ps_outside *o)
{
	if (o)
		atomic_store_explicit(&o->beacon->open, 0, memory_order_seq_cst);
}

void tn_ps_outside_free(tn_ps_outside *o)
{
	if (!o)
		return;
	TN_ASSERT(o->count == 0);
	if (o->beacon)
		tern_mem_free(o->mem, o->beacon);
	free(o->pieces);
	pthread_mutex_destroy(&o->lock);
	free(o);
}

void tn_ps_outside_mapped(tn_ps_outside *o, uint64_t map_version)
{
	atomic_store_explicit(&o->beacon->map_version, map_version, memory_order_release);
	atomic_store_explicit(&o->beacon->open, 1, memory_order_release);
}

/* Tables that are read by an older map have rows that are not theirs any more, or not yet. */
void tn_ps_onesided_mapped(tern_ps_server *server)
{
	unsigned in;

	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count; i++)
		if (server->shares[i]->outside) {
			tn_ps_outside_mapped(server->shares[i]->outside,
					     tn_ps_view_enter(server, &in)->map.version);
			tn_ps_view_leave(server, in);
		}
	pthread_mutex_unlock(&server->tables_lock);
}

/* ---- told ---- */

/* The lock is held. Where an address of the engine is: piece and offset. */
static bool place_of(const tn_ps_outside *o, const void *address, uint64_t bytes, uint32_t *number,
		     uint64_t *offset)
{
	uint32_t n = below(o, address);

	if (n == 0)
		return false;
	*number = n - 1;
	*offset = (uint64_t)((const uint8_t *)address - o->pieces[n - 1].at);
	return *offset + bytes <= o->pieces[n - 1].bytes;
}

/* Lock held: all of a layout into `out`, which has room. */
static bool fill(const tn_ps_outside *o, const tn_layout *layout, const tn_ps_layout *head, uint8_t *out,
		 uint64_t bytes)
{
	uint64_t offset;
	uint32_t number;
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	w.at = tn_ps_layout_encode(out, bytes, head);
	for (uint32_t i = 0; i < o->count; i++) {
		tn_put_bytes(&w, o->pieces[i].key.bytes, sizeof(o->pieces[i].key.bytes));
		tn_put_u64(&w, o->pieces[i].bytes);
	}
	for (uint64_t i = 0; head->has_dir && i < 1ull << head->depth; i++) {
		uintptr_t pages = layout->dir[i] & 7, at = layout->dir[i] & ~(uintptr_t)4095;

		if (!place_of(o, (const void *)at, pages * 4096, &number, &offset))
			return false;
		tn_put_u32(&w, number);
		tn_put_u32(&w, (uint32_t)(offset / 4096 << 3 | pages));
	}
	for (uint32_t i = 0; i < head->slabs; i++) {
		if (!place_of(o, layout->slab[i].base, 0, &number, &offset) || offset != 0)
			return false;
		tn_put_u32(&w, number);
		tn_put_u32(&w, layout->slab[i].places);
	}
	return !w.bad && w.at == bytes;
}

static void refuse(tern_rpc_request *request, tern_status status)
{
	const char *text = tn_detail_get();

	tern_rpc_reply(request, status, text, strlen(text));
}

/* Answers. */
static void tell(ps_share *share, tern_rpc_request *request, uint64_t known, uint64_t lease_ns)
{
	tn_ps_outside *o = share->outside;
	tn_ps_layout head = {.lease_ns = lease_ns,
			     .map_version = atomic_load(&o->beacon->map_version),
			     .changes = atomic_load(&o->beacon->changes),
			     .beacon = o->beacon_key};
	tn_layout layout = {.changes = 0};
	uint8_t *out = NULL;
	uint64_t bytes;
	bool good = true;

	head.whole = head.changes != known;
	if (head.whole) {
		if (tn_table_layout(share->engine, &layout) != TERN_OK) {
			refuse(request, TERN_E_NOMEM);
			return;
		}
		head.changes = layout.changes;
		head.head_bytes = layout.head_bytes;
		head.stride = layout.stride;
		head.shift = layout.shift;
		head.has_dir = layout.dir != NULL;
		head.depth = layout.depth;
		head.slabs = layout.slabs;
	}
	pthread_mutex_lock(&o->lock);
	head.pieces = o->count; /* every piece of the layout is there: they came before it */
	bytes = tn_ps_layout_bytes(&head);
	out = malloc(bytes);
	if (out && head.whole)
		good = fill(o, &layout, &head, out, bytes);
	else if (out)
		good = tn_ps_layout_encode(out, bytes, &head) == bytes;
	pthread_mutex_unlock(&o->lock);
	TN_ASSERT(good);
	tn_layout_free(&layout);
	if (out)
		tern_rpc_reply(request, TERN_OK, out, bytes);
	else
		refuse(request, tn_fail(TERN_E_NOMEM, "no memory for the layout of a table"));
	free(out);
}

void tn_ps_on_layout(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	tn_ps_layout_ask ask;
	ps_share *share;

	if (!tn_ps_layout_ask_decode(args, bytes, &ask)) {
		refuse(request,
		       tn_fail(TERN_E_INVALID, "a question for a layout can't be read: another version?"));
		return;
	}
	share = tn_ps_share_get(server, ask.table);
	if (!share || share->hash != ask.schema || !share->outside || server->replicas) {
		refuse(request, tn_fail(TERN_E_UNSUPPORTED,
					"the table is not one that this server lets clients read"));
	} else {
		tell(share, request, ask.known, server->lease_ns);
	}
	if (share)
		tn_ps_share_put(share);
}
