/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch at a server, up to the engine: what it is about, whether it may, whether its keys are this server's, and who
 * works on it. What would keep the driver for longer than a few other calls goes to a worker.
 *
 * Threads: the driver; workers for what they were handed. Tests: tests/unit/ps/ps_test.c, fuzz/ps_wire.c.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/follow.h"
#include "ps/server.h"
#include "ps/travel.h"

#define KEYS_MAX (UINT32_MAX - 1ull)

/* ---- answers ---- */

/* more_bytes: they lie in bench->answer behind the head. */
void tn_ps_reply(ps_task *t, uint64_t more_bytes)
{
	if (TN_UNLIKELY(t->server->replicas != NULL) && t->read && !tn_ps_replicas_read(t))
		more_bytes = 0;
	t->answer.map_version = t->view->map.version;
	tn_ps_answer_encode(t->bench->answer, &t->answer);
	if (TN_UNLIKELY(t->commit != NULL)) {
		tn_ps_replicas_reply(t, TERN_OK, t->bench->answer, TN_PS_ANSWER_BYTES + more_bytes, true);
		return;
	}
	tern_rpc_reply(t->request, TERN_OK, t->bench->answer, TN_PS_ANSWER_BYTES + more_bytes);
}

void tn_ps_refuse(ps_task *t, tern_status status, const char *format, ...)
{
	char text[TN_DETAIL_MAX];
	uint64_t bytes;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	bytes = n < 0 ? 0 : TN_MIN((uint64_t)n, sizeof(text) - 1);
	if (TN_UNLIKELY(t->commit != NULL))
		tn_ps_replicas_reply(t, status, text, bytes, false);
	else
		tern_rpc_reply(t->request, status, text, bytes);
}

/* ---- benches ---- */

bool tn_ps_bench_reserve(ps_bench *b, uint64_t keys)
{
	uint64_t room = b->room ? b->room : 1024;

	if (keys <= b->room)
		return true;
	while (room < keys)
		room *= 2;
	tn_ps_bench_free(b);
	b->keys = TN_FAULT("ps.bench.alloc") ? NULL : malloc(room * sizeof(*b->keys));
	b->places = malloc(room * sizeof(*b->places));
	b->found = malloc(room);
	b->answer_room = TN_PS_ANSWER_BYTES + (room + 7) / 8;
	b->answer = malloc(b->answer_room);
	b->room = room;
	if (b->keys && b->places && b->found && b->answer)
		return true;
	tn_ps_bench_free(b);
	return false;
}

bool tn_ps_bench_answer(ps_bench *b, uint64_t bytes)
{
	uint64_t room = b->answer_room;
	uint8_t *more;

	if (bytes <= room)
		return true;
	while (room < bytes)
		room *= 2;
	more = TN_FAULT("ps.bench.alloc") ? NULL : realloc(b->answer, room);
	if (!more)
		return false;
	b->answer = more;
	b->answer_room = room;
	return true;
}

void tn_ps_bench_free(ps_bench *b)
{
	free(b->keys);
	free(b->places);
	free(b->found);
	free(b->answer);
	free(b->scratch);
	*b = (ps_bench){0};
}

/* ---- steps ---- */

static bool writable(ps_task *t, tn_ps_method method)
{
	if (method == TN_PS_PULL || !tn_ps_follows(t->server))
		return true;
	tn_ps_refuse_follower(t->request);
	return false;
}

static bool find_share(ps_task *t, const void *args, uint64_t bytes)
{
	if (!tn_ps_batch_head(args, bytes, &t->batch)) {
		TN_PS_COUNT(t->server->counters, malformed, 1);
		tn_ps_refuse(t, TERN_E_PROTOCOL, "the head of a batch can't be read: another version?");
		return false;
	}
	t->share = tn_ps_share_get(t->server, t->batch.table);
	if (!t->share) {
		tn_ps_refuse(t, TERN_E_NOT_FOUND, "there is no such table (any more)");
		return false;
	}
	if (t->share->hash == t->batch.schema)
		return true;
	tn_ps_refuse(t, TERN_E_SHAPE,
		     "table \"%s\" has another schema now: it was dropped and created anew; open it again",
		     t->share->schema.name);
	return false;
}

static bool dtype_known(const ps_task *t, tn_ps_method method)
{
	return tn_ps_travels(t->batch.dtype) && (t->batch.dtype != TERN_I8 || method == TN_PS_PULL);
}

static bool read_body(ps_task *t, tn_ps_method method, const void *args, uint64_t bytes)
{
	uint64_t element = dtype_known(t, method) ? tern_dtype_bytes((tern_dtype)t->batch.dtype) : 0;

	t->row_bytes = element ? tn_ps_travel_bytes((tern_dtype)t->batch.dtype, t->share->schema.dim) : 0;
	if (method != TN_PS_ERASE && !element) {
		tn_ps_refuse(t, TERN_E_UNSUPPORTED,
			     "rows of dtype %u: they travel as f32, bf16, f16 or (pulls) int8",
			     t->batch.dtype);
		return false;
	}
	if (!tn_ps_batch_body(args, bytes, t->row_bytes, &t->batch)) {
		TN_PS_COUNT(t->server->counters, malformed, 1);
		tn_ps_refuse(t, TERN_E_PROTOCOL, "a batch says %llu keys, which is not what it brings",
			     (unsigned long long)t->batch.count);
		return false;
	}
	if (t->batch.count > KEYS_MAX) {
		tn_ps_refuse(t, TERN_E_TOO_LARGE, "%llu keys in one batch; at most %llu: split it",
			     (unsigned long long)t->batch.count, (unsigned long long)KEYS_MAX);
		return false;
	}
	t->stride = t->batch.stride ? t->batch.stride : t->row_bytes;
	if (method != TN_PS_ERASE && (t->stride < t->row_bytes || t->stride % element != 0)) {
		tn_ps_refuse(t, TERN_E_SHAPE, "a stride of %llu bytes for rows of %llu in elements of %llu",
			     (unsigned long long)t->stride, (unsigned long long)t->row_bytes,
			     (unsigned long long)element);
		return false;
	}
	return true;
}

/* Keys and places where the engine can read them. */
static bool align(ps_task *t)
{
	const tn_ps_batch *b = &t->batch;
	ps_bench *bench = t->bench;

	if (!tn_ps_bench_reserve(bench, b->count)) {
		tn_ps_refuse(t, TERN_E_NOMEM, "the server has no memory for a batch of %llu keys",
			     (unsigned long long)b->count);
		return false;
	}
	t->keys = (const uint64_t *)(const void *)b->keys;
	/* with backups, keys that are written are the keys whose images are taken, whatever the peer does */
	if ((uintptr_t)b->keys % sizeof(uint64_t) != 0 || t->server->replicas) {
		memcpy(bench->keys, b->keys, b->count * sizeof(uint64_t));
		t->keys = bench->keys;
	}
	t->places = (const uint32_t *)(const void *)b->places;
	if ((uintptr_t)b->places % sizeof(uint32_t) != 0) {
		memcpy(bench->places, b->places, b->count * sizeof(uint32_t));
		t->places = bench->places;
	}
	return true;
}

/*
 * Are all keys this server's? Where everything is, and the client says so too, nobody has to look: the batch has all
 * keys of its push then, and all slots are meant.
 */
static bool are_mine(ps_task *t, const ps_view *view)
{
	t->slots = &view->mine;
	if (view->all && t->batch.map_version == view->map.version && !t->server->replicas)
		return true;
	t->slots = &t->some;
	memset(&t->some, 0, sizeof(t->some));
	for (uint64_t i = 0; i < t->batch.count; i++)
		tn_ps_slots_add(&t->some, tn_table_slot(t->keys[i]));
	return tn_ps_slots_within(&t->some, &view->mine);
}

/* How often slots are asked for: who has too hot ones gives some away. */
static void count_load(const ps_task *t)
{
	_Atomic uint32_t *load = t->server->replicas->load;

	for (uint64_t i = 0; i < t->batch.count; i++) {
		_Atomic uint32_t *at = &load[tn_table_slot(t->keys[i])];

		atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + 1,
				      memory_order_relaxed);
	}
}

static bool owned(ps_task *t)
{
	if (are_mine(t, t->view)) {
		tn_ps_load_count(&t->share->load, t->keys, t->batch.count);
		if (TN_UNLIKELY(t->server->replicas != NULL))
			count_load(t);
		return true;
	}
	TN_PS_COUNT(t->server->counters, wrong_server, 1);
	t->answer.flags = TN_PS_WRONG_SERVER;
	tn_ps_reply(t, 0);
	return false;
}

bool tn_ps_still_owned(ps_task *t)
{
	const ps_view *now = atomic_load_explicit(&t->server->view, memory_order_acquire);

	if (TN_LIKELY(now == t->view))
		return true;
	t->view = now; /* it stays as long as the older one: both are of this visit */
	return are_mine(t, now);
}

bool tn_ps_write_begin(ps_task *t)
{
	tern_ps_server *server = t->server;

	pthread_rwlock_rdlock(&server->hold);
	if (TN_UNLIKELY(atomic_load(&server->held))) {
		t->answer.flags |= TN_PS_RUNNING; /* a save marks its tables: ask again */
	} else if (TN_UNLIKELY(!tn_ps_still_owned(t))) {
		TN_PS_COUNT(server->counters, wrong_server, 1);
		t->answer.flags |= TN_PS_WRONG_SERVER;
	} else if (TN_LIKELY(!server->replicas) || tn_ps_replicas_enter(t)) {
		return true;
	}
	pthread_rwlock_unlock(&server->hold);
	return false;
}

void tn_ps_write_end(ps_task *t)
{
	if (TN_UNLIKELY(t->server->replicas != NULL))
		tn_ps_replicas_leave(t);
	pthread_rwlock_unlock(&t->server->hold);
}

void tn_ps_work_on(tern_ps_server *server, ps_bench *bench, tern_rpc_request *request, tn_ps_method method,
		   const void *args, uint64_t bytes)
{
	ps_task t;
	unsigned in;

	memset(&t, 0, offsetof(ps_task, some));
	t.server = server;
	t.bench = bench;
	t.request = request;
	t.view = tn_ps_view_enter(server, &in);
	if (writable(&t, method) && find_share(&t, args, bytes) && read_body(&t, method, args, bytes) &&
	    align(&t) && owned(&t)) {
		if (method == TN_PS_PULL)
			tn_ps_pull(&t);
		else if (method == TN_PS_PUSH)
			tn_ps_push(&t);
		else
			tn_ps_erase(&t);
	}
	tn_ps_view_leave(server, in);
	if (t.share)
		tn_ps_share_put(t.share);
}

/* Does it touch many bytes, or wait for rows that are in a tier? Malformed ones are short. */
static bool takes_long(tern_ps_server *server, const void *args, uint64_t bytes)
{
	tn_ps_batch batch;
	ps_share *share;
	bool lasts;

	if (bytes < server->inline_bytes / 1024 && !server->tier_dir)
		return false; /* too few keys, whatever rows they have */
	if (!tn_ps_batch_head(args, bytes, &batch) ||
	    batch.count > (bytes - TN_PS_BATCH_BYTES) / sizeof(uint64_t))
		return false;
	share = tn_ps_share_get(server, batch.table);
	if (!share)
		return false;
	lasts = batch.count * share->cost > server->inline_bytes ||
		(server->tier_dir &&
		 !tn_table_warm(share->engine, (const uint8_t *)args + TN_PS_BATCH_BYTES, batch.count));
	tn_ps_share_put(share);
	return lasts;
}

void tn_ps_serve(tern_ps_server *server, tern_rpc_request *request, tn_ps_method method, const void *args,
		 uint64_t bytes)
{
	TN_PS_COUNT(server->counters, batches, 1);
	if (takes_long(server, args, bytes) && tn_ps_work_hand(server, request, method, args, bytes))
		return;
	tn_ps_work_on(server, &server->bench, request, method, args, bytes);
}
