/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows read where they lie: a client's windows into tables of servers. onesided.h draws their life.
 *
 * A window is asked for when a pull first wants it, and again before its lease ends and when its layout is old; until it
 * is there, and where it can't be (no shm, another map, a server that refuses), pulls go to the server as ever. What a
 * server told is held against the lengths of its keys before anything is read by it.
 *
 * Threads: any; a window's lock, held while it is read: who finds it taken asks the server. Never held over a completion
 * or while a call is sent. Tests: tests/unit/ps/onesided_test.c.
 */
#include "ps/onesided.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "ps/client.h"
#include "rpc/direct.h"

#define ANSWER_MIN (64u << 10)
#define ANSWER_MAX (64u << 20)
#define CHUNK      16384u      /* keys for which the server's memory stays mapped at most */
#define ASK_AGAIN  20000000u   /* ns between questions, while layouts change all the time */
#define ASK_LATER  1000000000u /* ns, where it can't be done */
#define ASK_TIME   1000000000u /* ns for an answer */

typedef enum window_state { NONE, MAPPING, READY } window_state;

struct tn_ps_window {
	tn_ps_window *next; /* of the table */
	ps_host *host;
	tn_ps_counters *counters;
	_Atomic uint32_t refs; /* the table's + the question's */
	pthread_mutex_t lock;
	window_state state;
	/* the question */
	bool asked, old; /* old: the layout changed */
	uint64_t asked_at, ask_after;
	tern_op op;
	uint8_t args[TN_PS_LAYOUT_ARGS_BYTES];
	uint8_t *answer;
	uint64_t answer_room;
	/* what was told */
	uint64_t lease_end, lease_ns, map_version, changes;
	tern_key beacon_key;
	tern_table_schema schema;
	/* MAPPING: what of it was mapped */
	uint8_t *told;
	tn_ps_layout layout;
	const uint8_t **mapped;
	uint32_t mapped_count;
	/* READY */
	uint64_t peer; /* tn_copy.peer: as long as it is the same, all stays mapped where it is */
	const tn_ps_beacon *beacon;
	tn_mirror *mirror;
	uint32_t left[CHUNK];
};

static void window_set_state(tn_ps_window *w, window_state state)
{
	TN_ASSERT(state != READY || (w->state == MAPPING && w->mirror && w->beacon));
	w->state = state;
}

static void unref(tn_ps_window *w)
{
	if (atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1)
		return;
	tn_mirror_free(w->mirror);
	free(w->told);
	free(w->mapped);
	free(w->answer);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

void tn_ps_windows_free(tn_ps_window *w)
{
	while (w) {
		tn_ps_window *next = w->next;

		unref(w);
		w = next;
	}
}

void tn_ps_windows_forget(tn_ps_window **list, const ps_host *host)
{
	while (*list) {
		tn_ps_window *w = *list;

		if (w->host != host) {
			list = &w->next;
			continue;
		}
		*list = w->next;
		unref(w);
	}
}

/* The table's window into a host. NULL: no memory. */
static tn_ps_window *window_get(tern_table *table, ps_host *host)
{
	tern_ps *ps = table->ps;
	tn_ps_window *w;

	rpc_lock_take(&ps->lock);
	for (w = table->windows; w && w->host != host;)
		w = w->next;
	if (!w && (w = TN_FAULT("ps.window.alloc") ? NULL : calloc(1, sizeof(*w)))) {
		w->host = host;
		w->counters = ps->counters;
		w->schema = table->schema;
		atomic_init(&w->refs, 1);
		pthread_mutex_init(&w->lock, NULL);
		w->next = table->windows;
		table->windows = w;
	}
	rpc_lock_drop(&ps->lock);
	return w;
}

/* ---- asked for ---- */

/* Lock held. The old mirror goes with what it was made from. */
static void forget(tn_ps_window *w)
{
	tn_mirror_free(w->mirror);
	w->mirror = NULL;
	w->beacon = NULL;
	w->changes = 0;
	free(w->told);
	w->told = NULL;
	window_set_state(w, NONE);
}

/* Lock held. It can't be done; but servers change. */
static void give_up(tn_ps_window *w)
{
	forget(w);
	w->ask_after = w->asked_at + ASK_LATER;
}

/* Lock held. A layout came: it is to be mapped, or the one that is there is still good. */
static void told(tn_ps_window *w, uint64_t bytes)
{
	tn_ps_layout layout;
	bool same;

	if (!tn_ps_layout_decode(w->answer, bytes, &layout)) {
		forget(w);
		return;
	}
	same = w->state == READY && memcmp(&layout.beacon, &w->beacon_key, sizeof(layout.beacon)) == 0;
	w->lease_ns = layout.lease_ns;
	w->lease_end = w->asked_at + layout.lease_ns; /* it began there after the question left here */
	w->map_version = layout.map_version;
	if (!layout.whole) {
		if (!same || layout.changes != w->changes)
			forget(w);
		return;
	}
	forget(w);
	w->mapped = realloc(w->mapped, ((uint64_t)layout.pieces + 1) * sizeof(*w->mapped));
	if (!w->mapped)
		return;
	w->told = w->answer;
	w->answer = NULL;
	w->answer_room = 0;
	w->layout = layout;
	w->mapped_count = 0;
	w->beacon_key = layout.beacon;
	w->changes = layout.changes;
	window_set_state(w, MAPPING);
}

static void on_told(tern_op *op, void *arg)
{
	tn_ps_window *w = arg;

	pthread_mutex_lock(&w->lock);
	w->asked = false;
	if (op->status == TERN_OK)
		told(w, op->length);
	else if (op->status == TERN_E_TRUNCATED && w->answer_room < ANSWER_MAX)
		w->answer_room *= 4; /* the next time */
	else if (op->status != TERN_E_OVERLOAD && op->status != TERN_E_DEADLINE)
		give_up(w);
	pthread_mutex_unlock(&w->lock);
	unref(w);
}

/* Lock held, free meanwhile: ask, unless that was done just now. */
static void ask(tn_ps_window *w, const tern_table *table)
{
	tn_ps_layout_ask ask = {
		.table = table->id, .schema = table->hash, .known = w->state == READY ? w->changes : 0};
	tern_ctx *ctx = table->ps->ctx;
	uint64_t now = tn_ctx_now(ctx), room = TN_MAX(w->answer_room, ANSWER_MIN);
	tern_rpc_call_params call = {.method = TN_PS_LAYOUT,
				     .args = w->args,
				     .args_bytes = sizeof(w->args),
				     .service_class = TERN_RPC_LATENCY,
				     .flags = TERN_RPC_IDEMPOTENT};
	uint8_t *answer;

	if (w->asked || now < w->ask_after)
		return;
	answer = realloc(w->answer, room);
	if (!answer)
		return;
	w->answer = answer;
	w->answer_room = room;
	w->asked = true;
	w->old = false;
	w->asked_at = now;
	w->ask_after = now + ASK_AGAIN;
	call.answer = answer;
	call.answer_capacity = room;
	tn_ps_layout_ask_encode(w->args, &ask);
	tern_op_init(&w->op, on_told, w);
	w->op.timeout_ns = ASK_TIME;
	atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&w->lock);
	TN_PS_COUNT(w->counters, layouts, 1);
	if (tern_rpc_call(w->host->rpc, &call, &w->op) == TERN_OK) {
		pthread_mutex_lock(&w->lock);
		return;
	}
	pthread_mutex_lock(&w->lock);
	w->asked = false;
	atomic_fetch_sub_explicit(&w->refs, 1, memory_order_relaxed); /* not the last: the table has one */
}

/* ---- mapped ---- */

/* Where a piece of the table is here. NULL: not yet, or not at all (*never). All of one peer's mappings, or none. */
static const uint8_t *map_piece(tn_ps_window *w, tern_channel *channel, const tern_key *key, uint64_t bytes,
				bool *never)
{
	tern_status status;
	tn_direct d;

	*never = bytes == 0 || tern_key_length(key) != bytes;
	if (*never)
		return NULL;
	status = tn_direct_begin(channel, key, 0, bytes, true, &d);
	if (status != TERN_OK) {
		*never = status != TERN_AGAIN;
		return NULL;
	}
	if (w->mapped_count == 0)
		w->peer = d.copy.peer;
	*never = w->peer != d.copy.peer;
	tn_direct_end(&d);
	return *never ? NULL : d.at;
}

/* Directory and slabs with this side's addresses. False: the server told nonsense, or there is no memory. */
static bool translate(const tn_ps_window *w, tn_layout *out)
{
	const tn_ps_layout *l = &w->layout;
	uint64_t entries = l->has_dir ? 1ull << l->depth : 0, offset;
	uint32_t pair[2], pages;

	*out = (tn_layout){.head_bytes = l->head_bytes,
			   .stride = l->stride,
			   .shift = l->shift,
			   .depth = l->depth,
			   .slabs = l->slabs};
	out->dir = entries ? malloc(entries * sizeof(*out->dir)) : NULL;
	out->slab = malloc((l->slabs + 1ull) * sizeof(*out->slab));
	if ((entries && !out->dir) || !out->slab)
		return false;
	for (uint64_t i = 0; i < entries; i++) {
		tn_ps_layout_pair(l->dir_bytes, i, pair);
		offset = (uint64_t)(pair[1] >> 3) * 4096;
		pages = pair[1] & 7;
		if (pair[0] >= l->pieces || pages < 4 || (uintptr_t)w->mapped[pair[0]] % 4096 != 0 ||
		    offset + pages * 4096ull > tn_ps_layout_piece(l, pair[0]).bytes)
			return false;
		out->dir[i] = ((uintptr_t)w->mapped[pair[0]] + offset) | pages;
	}
	for (uint32_t i = 0; i < l->slabs; i++) {
		tn_ps_layout_pair(l->slab_bytes, i, pair);
		if (pair[0] >= l->pieces || (uintptr_t)w->mapped[pair[0]] % 8 != 0 ||
		    (uint64_t)pair[1] * l->stride > tn_ps_layout_piece(l, pair[0]).bytes)
			return false;
		out->slab[i] = (tn_layout_slab){w->mapped[pair[0]], pair[1]};
	}
	return true;
}

/* Does a record of that layout have room for its row, and an atomic version where the engine has it? */
static bool layout_fits(const tn_ps_window *w)
{
	const tn_ps_layout *l = &w->layout;
	uint64_t row = w->schema.dim * tern_dtype_bytes(w->schema.dtype);
	bool dense = w->schema.kind == TERN_TABLE_DENSE;

	return l->head_bytes + row <= l->stride && l->stride % 4 == 0 && l->head_bytes % 4 == 0 &&
	       l->has_dir == !dense && (!dense || (uint64_t)l->slabs << l->shift > w->schema.rows);
}

/* Lock held. All mapped? Then it is READY. What is not mapped yet comes with the next pull. */
static void map(tn_ps_window *w, tern_channel *channel)
{
	const tn_ps_layout *l = &w->layout;
	tn_layout layout = {.dir = NULL};
	bool never = !layout_fits(w);

	while (!never && w->mapped_count <= l->pieces) { /* the beacon last */
		bool last = w->mapped_count == l->pieces;
		tn_ps_piece p = last ? (tn_ps_piece){w->beacon_key, sizeof(tn_ps_beacon)}
				     : tn_ps_layout_piece(l, w->mapped_count);
		const uint8_t *at = map_piece(w, channel, &p.key, p.bytes, &never);

		if (!at && !never)
			return;
		w->mapped[w->mapped_count] = at;
		w->mapped_count += at != NULL;
	}
	if (!never && translate(w, &layout))
		w->mirror = tn_mirror_new(&w->schema, &layout);
	tn_layout_free(&layout);
	if (!w->mirror) {
		give_up(w);
		return;
	}
	w->beacon = (const tn_ps_beacon *)(const void *)w->mapped[l->pieces];
	free(w->told);
	w->told = NULL;
	window_set_state(w, READY);
}

/* ---- read ---- */

/* Keys first .. first + n - 1 of the part; what is left, behind what was left so far. False: nothing was read. */
static bool read_chunk(tn_ps_window *w, tern_channel *channel, ps_part *part, uint64_t first, uint64_t n,
		       uint64_t *left)
{
	ps_call *call = part->call;
	uint64_t count;
	tn_direct d;

	if (tn_direct_begin(channel, &w->beacon_key, 0, sizeof(*w->beacon), true, &d) != TERN_OK)
		return false;
	if (d.copy.peer != w->peer || d.at != (const uint8_t *)w->beacon ||
	    !atomic_load_explicit(&w->beacon->open, memory_order_acquire) ||
	    atomic_load_explicit(&w->beacon->map_version, memory_order_acquire) != part->version) {
		tn_direct_end(&d);
		forget(w);
		return false;
	}
	w->old = atomic_load_explicit(&w->beacon->changes, memory_order_acquire) != w->changes;
	count = tn_mirror_pull(w->mirror, part->keys + first, n,
			       part->places ? call->rows : call->rows + first * call->stride, call->stride,
			       part->places ? part->places + first : NULL,
			       !call->found || part->places ? call->found : call->found + first, w->left);
	tn_direct_end(&d);
	if (tn_ctx_now(call->ps->ctx) >= w->lease_end)
		return false;
	for (uint64_t i = 0; i < count; i++) { /* in place: what is left never overtakes what is read */
		uint64_t at = first + w->left[i];
		uint32_t place = part->places ? part->places[at] : (uint32_t)at;

		part->keys_buf[*left] = part->keys[at];
		part->places_buf[(*left)++] = place;
	}
	return true;
}

/* Lock held. True: something was read, and what is left is in the part's buffers. */
static bool read_all(tn_ps_window *w, tern_channel *channel, ps_part *part, uint64_t *left)
{
	tern_ctx *ctx = part->call->ps->ctx;
	uint64_t count = part->count;

	*left = 0;
	for (uint64_t first = 0; first < count; first += CHUNK) {
		uint64_t n = TN_MIN(CHUNK, count - first);

		if (w->state == READY && tn_ctx_now(ctx) < w->lease_end &&
		    read_chunk(w, channel, part, first, n, left))
			continue;
		if (first == 0)
			return false;
		for (uint64_t i = first; i < count; i++) {
			part->keys_buf[*left] = part->keys[i];
			part->places_buf[(*left)++] = part->places ? part->places[i] : (uint32_t)i;
		}
		return true;
	}
	return true;
}

/* The part is for what is left. */
static bool settle(ps_part *part, uint64_t left)
{
	ps_call *call = part->call;

	TN_PS_COUNT(call->ps->counters, one_sided, part->count - left);
	TN_PS_COUNT(call->ps->counters, one_sided_left, left);
	atomic_fetch_add_explicit(&call->length, part->count - left, memory_order_relaxed);
	part->keys = part->keys_buf;
	part->places = part->places_buf;
	part->count = left;
	return left == 0;
}

static bool want_news(const tn_ps_window *w, uint64_t now)
{
	return w->state == NONE || (w->state == READY && (w->old || now + w->lease_ns / 2 > w->lease_end));
}

bool tn_ps_onesided_pull(ps_part *part)
{
	ps_call *call = part->call;
	tern_table *table = call->table;
	tn_ps_window *w;
	tern_channel *channel;
	bool done = false;
	uint64_t left;
	void *loan;

	if (!(table->schema.flags & TERN_TABLE_ONE_SIDED) || call->dtype != table->schema.dtype ||
	    !part->host || !(w = window_get(table, part->host)) || pthread_mutex_trylock(&w->lock) != 0) {
		TN_PS_COUNT(call->ps->counters, one_sided_left, part->count);
		return false;
	}
	channel = tn_rpc_channel_lend(part->host->rpc, TERN_RPC_LATENCY, &loan);
	if (channel && w->state == MAPPING)
		map(w, channel);
	if (channel && w->state == READY && tn_ps_part_reserve(part, part->count) &&
	    read_all(w, channel, part, &left))
		done = settle(part, left);
	else
		TN_PS_COUNT(call->ps->counters, one_sided_left, part->count);
	if (channel && tn_direct_can(tern_channel_link(channel)) && want_news(w, tn_ctx_now(call->ps->ctx)))
		ask(w, table);
	pthread_mutex_unlock(&w->lock);
	if (channel)
		tn_rpc_channel_return(loan);
	return done;
}
