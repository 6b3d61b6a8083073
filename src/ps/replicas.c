/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes and reads of a server whose slots have backups, its maps, and its life. See replicas.h.
 * Threads: any. Tests: tests/unit/ps/replicas_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/time.h"
#include "ps/server.h"

#define BACKLOG    (64ull << 20)  /* bytes that wait for a backup; above, writes are told to come again */
#define IMAGES_MAX (128ull << 20) /* of one batch: a frame is one message */

/* ---- commits ---- */

/* NULL: no memory. */
static ps_commit *commit_take(ps_replicas *r)
{
	ps_commit *c;

	pthread_mutex_lock(&r->commit_lock);
	c = r->spare;
	if (c)
		r->spare = c->next;
	pthread_mutex_unlock(&r->commit_lock);
	if (!c)
		c = TN_FAULT("ps.repl.alloc") ? NULL : calloc(1, sizeof(*c));
	return c;
}

/* In a queue, pending once. share: whose queue it is, or NULL. */
static ps_commit *commit_begin_in(ps_replicas *r, tn_commits *queue, ps_share *share,
				  tern_rpc_request *request, const tn_ps_slots *slots, bool reader)
{
	ps_commit *c = commit_take(r);

	if (!c)
		return NULL;
	c->share = share;
	if (share)
		atomic_fetch_add_explicit(&share->refs, 1, memory_order_relaxed);
	c->request = request;
	c->status = TERN_OK;
	c->batch = false;
	c->bytes = 0;
	c->commit.slots = *slots;
	atomic_fetch_add_explicit(&r->waiting, 1, memory_order_relaxed);
	pthread_mutex_lock(&r->commit_lock);
	tn_commit_begin(queue, &c->commit, reader);
	pthread_mutex_unlock(&r->commit_lock);
	return c;
}

static ps_commit *commit_begin(ps_replicas *r, ps_share *share, tern_rpc_request *request,
			       const tn_ps_slots *slots, bool reader)
{
	return commit_begin_in(r, &share->commits, share, request, slots, reader);
}

static bool commit_answer(ps_commit *c, const void *answer, uint64_t bytes)
{
	if (bytes > c->room) {
		uint8_t *more = TN_FAULT("ps.repl.alloc") ? NULL : realloc(c->answer, bytes);

		if (!more)
			return false;
		c->answer = more;
		c->room = bytes;
	}
	if (bytes)
		memcpy(c->answer, answer, bytes);
	c->bytes = bytes;
	return true;
}

void tn_ps_commits_judge(ps_replicas *r, tn_list *over)
{
	bool lease = !tn_list_empty(over) && r->env.lease(r->env.arg);

	TN_LIST_FOREACH(node, over) {
		ps_commit *c = TN_CONTAINER_OF(node, ps_commit, commit.node);

		c->end = tn_commit_judge(&c->commit, &r->repl, lease);
		c->map_version = r->repl.version;
	}
}

/* "Come again", or "it is another server's": nothing of the answer is told. */
static void say_end(const ps_commit *c)
{
	tn_ps_answer a = {.flags = c->end == TN_COMMIT_WRONG ? TN_PS_WRONG_SERVER : TN_PS_RUNNING,
			  .map_version = c->map_version};
	uint8_t out[TN_PS_ANSWER_BYTES];

	tn_ps_answer_encode(out, &a);
	tern_rpc_reply(c->request, TERN_OK, out, sizeof(out));
}

void tn_ps_commits_answer(ps_replicas *r, tn_list *over)
{
	tn_list *node;

	while ((node = tn_list_pop_front(over))) {
		ps_commit *c = TN_CONTAINER_OF(node, ps_commit, commit.node);

		if (c->request && c->batch && c->end != TN_COMMIT_OK)
			say_end(c);
		else if (c->request)
			tern_rpc_reply(c->request, c->status, c->answer, c->bytes);
		if (c->share)
			tn_ps_share_put(c->share);
		pthread_mutex_lock(&r->commit_lock);
		c->next = r->spare;
		r->spare = c;
		pthread_mutex_unlock(&r->commit_lock);
		atomic_fetch_sub_explicit(&r->waiting, 1, memory_order_release);
	}
}

/* Its own turn is over. */
static void commit_let_go(ps_replicas *r, ps_commit *c)
{
	tn_list over;

	tn_list_init(&over);
	pthread_mutex_lock(&r->commit_lock);
	tn_commit_release(&c->commit, &over);
	pthread_mutex_unlock(&r->commit_lock);
	if (tn_list_empty(&over))
		return;
	pthread_rwlock_rdlock(&r->server->hold);
	tn_ps_commits_judge(r, &over);
	pthread_rwlock_unlock(&r->server->hold);
	tn_ps_commits_answer(r, &over);
}

void tn_ps_replicas_end(ps_replicas *r, ps_commit *c, tern_status status, const void *answer, uint64_t bytes,
			bool batch)
{
	c->status = status;
	c->batch = batch;
	if (!commit_answer(c, answer, bytes)) {
		c->bytes = 0;
		c->batch = false;
		c->status = TERN_E_OVERLOAD; /* asked for again, it is known */
	}
	commit_let_go(r, c);
}

void tn_ps_replicas_reply(ps_task *t, tern_status status, const void *answer, uint64_t bytes, bool batch)
{
	ps_commit *c = t->commit;

	t->commit = NULL;
	tn_ps_replicas_end(t->server->replicas, c, status, answer, bytes, batch);
}

/* ---- writes ---- */

bool tn_ps_replicas_room(const ps_replicas *r, uint64_t images)
{
	for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++) {
		const tn_repl_out *out = r->repl.begun[p] ? r->repl.out[p] : NULL;
		uint64_t used = out ? atomic_load_explicit(&out->backlog, memory_order_relaxed) : 0;

		if (used > TN_REPL_HEAD && used + images > BACKLOG)
			return false;
	}
	return true;
}

/* Is there room in the streams that the keys may go to? */
static bool room_for(ps_task *t)
{
	return tn_ps_replicas_room(t->server->replicas,
				   t->batch.count * tn_repl_record_bytes(t->share->engine));
}

bool tn_ps_replicas_enter(ps_task *t)
{
	ps_replicas *r = t->server->replicas;

	if (t->batch.count > IMAGES_MAX / tn_repl_record_bytes(t->share->engine)) {
		t->answer.status = TERN_E_TOO_LARGE;
		return false;
	}
	if (!tn_repl_serves(&r->repl, t->slots, r->env.lease(r->env.arg)) || !room_for(t)) {
		t->answer.flags |= TN_PS_RUNNING;
		return false;
	}
	pthread_mutex_lock(&t->share->order);
	if (atomic_load_explicit(&r->streaming, memory_order_acquire) == 0 || t->commit)
		return true;
	t->commit = commit_begin(r, t->share, t->request, t->slots, false);
	if (t->commit)
		return true;
	pthread_mutex_unlock(&t->share->order);
	t->answer.flags |= TN_PS_RUNNING; /* no memory: it may be there in a moment */
	return false;
}

void tn_ps_replicas_leave(ps_task *t)
{
	pthread_mutex_unlock(&t->share->order);
}

void tn_ps_replicas_waits(ps_replicas *r, ps_commit *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&r->commit_lock);
	tn_commit_reads(&c->commit);
	pthread_mutex_unlock(&r->commit_lock);
}

void tn_ps_replicas_known(ps_task *t)
{
	tn_ps_replicas_waits(t->server->replicas, t->commit);
}

/* Order held. NULL: no memory. */
static uint64_t *scratch(ps_share *share, uint64_t n)
{
	if (n > share->sorted_room) {
		uint64_t room = TN_MAX(n, 2 * share->sorted_room);
		uint64_t *more =
			TN_FAULT("ps.repl.alloc") ? NULL : realloc(share->sorted, room * sizeof(*more));

		if (!more)
			return NULL;
		share->sorted = more;
		share->sorted_room = room;
	}
	return share->sorted;
}

/* Stream's lock held: the commit waits for what was written into it. */
static void wait_for(ps_replicas *r, ps_stream *s, ps_commit *c)
{
	tn_repl_out_wait(r->repl.out[s->peer], &c->commit);
	pthread_mutex_lock(&r->commit_lock);
	tn_commit_hold(&c->commit);
	pthread_mutex_unlock(&r->commit_lock);
	tn_ps_stream_kick(s);
}

/* The same: what was done is not told to the backup, so it must not be told to anybody. */
static void not_told(ps_stream *s, ps_commit *c)
{
	c->commit.refused = true;
	if (!s->broken)
		tn_ps_stream_break(s);
}

/* Around what is told to a backup; the stream's lock is held between them. False: it is broken, or there is no memory. */
static bool tell_begin(ps_replicas *r, uint32_t p)
{
	ps_stream *s = r->streams[p];

	pthread_mutex_lock(&s->lock);
	return !s->broken && tn_repl_out_reserve_wait(r->repl.out[p]);
}

/* any: something of it is the backup's, and in its stream now. */
static void tell_end(ps_replicas *r, uint32_t p, ps_commit *c, bool told, bool any)
{
	ps_stream *s = r->streams[p];

	if (!told)
		not_told(s, c);
	else if (any)
		wait_for(r, s, c);
	pthread_mutex_unlock(&s->lock);
}

static void put(ps_replicas *r, ps_share *share, ps_commit *c, uint32_t p, const tn_repl_entry *e,
		const uint64_t *keys, uint64_t n)
{
	bool told = tell_begin(r, p) && tn_repl_append(&r->repl, (uint16_t)p, share, e, keys, n);

	tell_end(r, p, c, told, true);
}

/* Order held. */
static void images(ps_replicas *r, ps_share *share, ps_commit *c, tn_repl_entry *e, const uint64_t *keys,
		   uint64_t n)
{
	uint32_t first[TN_CL_SERVERS_MAX + 1];
	uint64_t *sorted = scratch(share, 2 * n);

	e->table = share->id;
	e->schema = share->hash;
	e->item_bytes = tn_repl_record_bytes(share->engine);
	if (!sorted) {
		c->commit.refused = true;
		for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++)
			if (r->repl.begun[p]) {
				pthread_mutex_lock(&r->streams[p]->lock);
				tn_ps_stream_break(r->streams[p]);
				pthread_mutex_unlock(&r->streams[p]->lock);
			}
		return;
	}
	if (tn_repl_sort(&r->repl, keys, n, sorted, first) == 0)
		return;
	for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++)
		if (first[p] < first[p + 1])
			put(r, share, c, p, e, sorted + first[p], first[p + 1] - first[p]);
}

void tn_ps_replicas_wrote(ps_task *t, tn_repl_kind kind, const uint64_t *keys, uint64_t n, tern_status status)
{
	tn_repl_entry e = {.kind = kind,
			   .client = t->batch.client,
			   .seq = t->batch.seq,
			   .low = t->batch.low_water,
			   .status = status};

	if (t->commit)
		images(t->server->replicas, t->share, t->commit, &e, keys, n);
}

/* ---- steps that are summed ---- */

bool tn_ps_replicas_step(ps_replicas *r, tn_commits *queue, ps_share *share, tern_rpc_request *request,
			 const tn_ps_slots *slots, bool reader, ps_commit **commit)
{
	*commit = NULL;
	if (atomic_load_explicit(&r->streaming, memory_order_acquire) == 0)
		return true;
	*commit = commit_begin_in(r, queue, share, request, slots, reader);
	return *commit != NULL;
}

void tn_ps_replicas_summed(ps_replicas *r, ps_share *share, ps_commit *c, const tn_steps_work *work,
			   const uint64_t *keys, uint64_t n, tern_status status)
{
	tn_repl_entry e = {.kind = TN_REPL_PUSH,
			   .client = work->life,
			   .seq = work->step,
			   .low = tn_steps_low(work->step),
			   .status = status};

	if (c && n)
		images(r, share, c, &e, keys, n);
}

void tn_ps_replicas_staged(ps_replicas *r, ps_commit *c, const tn_ps_stage *stage, const tn_ps_slots *slots)
{
	for (uint32_t p = 0; c && p < TN_CL_SERVERS_MAX; p++) {
		bool any = false, told;

		if (!r->repl.begun[p])
			continue;
		told = tell_begin(r, p) && tn_repl_stage(&r->repl, (uint16_t)p, stage, slots, &any);
		tell_end(r, p, c, told, any);
	}
}

void tn_ps_replicas_closed(ps_replicas *r, ps_commit *c, const tn_steps_work *work, tern_status status)
{
	for (uint32_t p = 0; c && p < TN_CL_SERVERS_MAX; p++) {
		bool any = false, told;

		if (!r->repl.begun[p])
			continue;
		told = tell_begin(r, p) && tn_repl_closed(&r->repl, (uint16_t)p, work->life, work->step + 1,
							  status, &work->slots, &any);
		tell_end(r, p, c, told, any);
	}
}

/* ---- reads ---- */

/* Order held: those that had no row. NULL: no memory. */
static uint64_t *missing_keys(const uint64_t *keys, const uint8_t *had, uint64_t n, uint64_t missing)
{
	uint64_t *out = TN_FAULT("ps.repl.alloc") ? NULL : malloc(missing * sizeof(*out)), m = 0;

	for (uint64_t i = 0; out && i < n && m < missing; i++)
		if (!had[i])
			out[m++] = keys[i];
	return out;
}

tern_status tn_ps_replicas_pull(ps_task *t, const uint64_t *keys, uint64_t n, const tn_pull *how, void *rows,
				const uint32_t *places, uint8_t *found, tn_pull_result *result)
{
	uint8_t *had = found ? found : t->bench->found + (keys - t->keys);
	tn_pull peek = *how, make = *how;
	uint64_t *missing, count;
	tern_status status;

	peek.unknown = TERN_UNKNOWN_DEFAULT;
	make.flags = 0; /* touched once */
	status = tn_table_pull(t->share->engine, keys, n, &peek, rows, places, had, result);
	if (status != TERN_OK || result->found == n || !tn_ps_write_begin(t))
		return status;
	count = n - result->found;
	missing = missing_keys(keys, had, n, count);
	if (missing)
		status = tn_table_pull(t->share->engine, keys, n, &make, rows, places, found, result);
	else
		t->answer.flags |= TN_PS_RUNNING;
	if (missing && result->created)
		tn_ps_replicas_wrote(t, TN_REPL_ROWS, missing, count, TERN_OK);
	tn_ps_write_end(t);
	free(missing);
	return status;
}

#define COME_AGAIN (TN_PS_RUNNING | TN_PS_WRONG_SERVER)

/*
 * Rows that it made are a write, which nobody is told of; it is a reader behind that. Not one commit for both: a pull
 * reads some rows at a time, and what it saw of the last ones may have been written after the first one was made.
 */
static void made_rows(ps_task *t)
{
	ps_commit *made = t->commit;

	t->commit = NULL;
	made->request = NULL;
	commit_let_go(t->server->replicas, made);
}

bool tn_ps_replicas_read(ps_task *t)
{
	ps_replicas *r = t->server->replicas;

	if (t->answer.flags & (COME_AGAIN | TN_PS_NEED_PACKED)) {
		t->answer = (tn_ps_answer){.flags = t->answer.flags & (uint8_t)~TN_PS_ROWS};
		return false;
	}
	if (t->commit && r->linear)
		made_rows(t);
	if (t->commit) /* it waits for the rows that it made alone */
		return true;
	if (!tn_ps_still_owned(t)) {
		t->answer = (tn_ps_answer){.flags = TN_PS_WRONG_SERVER};
		return false;
	}
	if (!tn_repl_serves(&r->repl, t->slots, r->env.lease(r->env.arg))) {
		t->answer = (tn_ps_answer){.flags = TN_PS_RUNNING};
		return false;
	}
	if (!r->linear || atomic_load_explicit(&t->share->commits.count, memory_order_acquire) == 0)
		return true;
	t->commit = commit_begin(r, t->share, t->request, t->slots, true);
	if (t->commit)
		return true;
	t->answer = (tn_ps_answer){.flags = TN_PS_RUNNING};
	return false;
}

/* ---- tables ---- */

ps_commit *tn_ps_replicas_note(tern_ps_server *server, const tn_repl_entry *e, ps_share *share,
			       tern_rpc_request *request)
{
	ps_replicas *r = server->replicas;
	const tn_ps_slots none = {{0}};
	ps_commit *c = share ? commit_begin(r, share, request, &none, false) : NULL;

	for (uint32_t p = 0; p < TN_CL_SERVERS_MAX; p++) {
		ps_stream *s = r->repl.begun[p] ? r->streams[p] : NULL;
		tn_repl_out *out = r->repl.out[p];

		if (!s)
			continue;
		pthread_mutex_lock(&s->lock);
		if (!s->broken && tn_repl_out_reserve_wait(out) && tn_repl_note(&r->repl, s->peer, e)) {
			if (c) {
				tn_repl_out_wait(out, &c->commit);
				pthread_mutex_lock(&r->commit_lock);
				tn_commit_hold(&c->commit);
				pthread_mutex_unlock(&r->commit_lock);
			}
			tn_ps_stream_kick(s);
		} else if (!s->broken && e->kind != TN_REPL_BYE) {
			tn_ps_stream_break(s);
		}
		pthread_mutex_unlock(&s->lock);
	}
	return c;
}

void tn_ps_replicas_noted(tern_ps_server *server, ps_commit *commit, tern_rpc_request *request)
{
	if (commit)
		commit_let_go(server->replicas, commit);
	else
		tern_rpc_reply(request, TERN_OK, NULL, 0);
}

ps_commit *tn_ps_replicas_table(tern_ps_server *server, ps_share *share, tern_rpc_request *request)
{
	uint8_t schema[TN_PS_SCHEMA_BYTES];
	tn_repl_entry e = {.kind = TN_REPL_TABLE,
			   .table = share->id,
			   .schema = share->hash,
			   .count = (uint32_t)tn_ps_schema_encode(schema, sizeof(schema), &share->schema),
			   .item_bytes = 1,
			   .items = schema};

	return tn_ps_replicas_note(server, &e, share, request);
}

/* ---- the backup's side ---- */

static struct ps_share *store_get(void *arg, uint64_t id)
{
	return tn_ps_share_get(arg, id);
}

static bool store_dropped(void *arg, uint64_t id)
{
	const ps_replicas *r = ((tern_ps_server *)arg)->replicas;

	for (uint32_t i = 0; i < TN_PS_DROPPED; i++)
		if (r->dropped[i] == id)
			return true;
	return false;
}

static void note_dropped(ps_replicas *r, uint64_t id, bool dropped)
{
	for (uint32_t i = 0; i < TN_PS_DROPPED; i++)
		if (r->dropped[i] == id)
			r->dropped[i] = 0;
	if (dropped)
		r->dropped[r->dropped_next++ % TN_PS_DROPPED] = id;
}

void tn_ps_replicas_dropped(tern_ps_server *server, uint64_t id, bool dropped)
{
	pthread_mutex_lock(&server->replicas->in_lock);
	note_dropped(server->replicas, id, dropped);
	pthread_mutex_unlock(&server->replicas->in_lock);
}

static tern_status store_create(void *arg, const tern_table_schema *schema)
{
	tern_ps_server *server = arg;

	note_dropped(server->replicas, tn_ps_table_id(schema->name), false);
	return tn_ps_share_create(server, schema, NULL);
}

static void store_drop(void *arg, uint64_t id)
{
	tern_ps_server *server = arg;
	ps_share *share = tn_ps_share_get(server, id);

	if (!share)
		return;
	note_dropped(server->replicas, id, true);
	tn_ps_share_drop(server, share->schema.name);
	tn_ps_share_put(share);
}

static void store_each(void *arg, void (*fn)(struct ps_share *share, void *fn_arg), void *fn_arg)
{
	tern_ps_server *server = arg;

	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count; i++)
		fn(server->shares[i], fn_arg);
	pthread_mutex_unlock(&server->tables_lock);
}

/* in_lock held. */
static void apply(tern_ps_server *server, tern_rpc_request *request, const void *frame, uint64_t bytes)
{
	const tn_repl_store store = {.get = store_get,
				     .dropped = store_dropped,
				     .create = store_create,
				     .drop = store_drop,
				     .each = store_each,
				     .steps = &server->rounds.steps,
				     .arg = server};
	uint8_t out[TN_REPL_ANSWER_MAX];
	tn_repl_answer answer;
	const ps_view *view;
	unsigned in;
	bool ok;

	pthread_rwlock_rdlock(&server->hold);
	view = tn_ps_view_enter(server, &in);
	ok = tn_repl_in_apply(&server->replicas->in, &store, &view->map, view->index, frame, bytes, &answer);
	tn_ps_view_leave(server, in);
	pthread_rwlock_unlock(&server->hold);
	if (ok && answer.verdict == TN_REPL_FAILED)
		TN_LOG(WARN, PS,
		       "rows of a primary could not be kept here (%s): a server's memory and the tables' "
		       "budgets must "
		       "hold the rows that it backs up too",
		       tn_detail_get());
	if (ok)
		tern_rpc_reply(request, TERN_OK, out, tn_repl_answer_encode(out, &answer));
	else
		tern_rpc_reply(request, TERN_E_PROTOCOL, NULL, 0);
}

void tn_ps_replicate(tern_ps_server *server, tern_rpc_request *request, const void *args, uint64_t bytes)
{
	pthread_mutex_lock(&server->replicas->in_lock);
	apply(server, request, args, bytes);
	pthread_mutex_unlock(&server->replicas->in_lock);
}

#define INLINE_BYTES (64u << 10)

void tn_ps_on_replicate(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	ps_replicas *r = server->replicas;
	bool here = bytes <= INLINE_BYTES && (uintptr_t)args % 8 == 0;

	if (here && pthread_mutex_trylock(&r->in_lock) == 0) {
		apply(server, request, args, bytes);
		pthread_mutex_unlock(&r->in_lock);
		return;
	}
	if (!tn_ps_work_hand(server, request, (tn_ps_method)TN_PS_REPLICATE, args, bytes))
		tern_rpc_reply(request, TERN_E_OVERLOAD, NULL, 0);
}

/* ---- maps ---- */

tern_status tn_ps_replicas_map(tern_ps_server *server, const tn_cl_map *map, uint16_t self)
{
	ps_replicas *r = server->replicas;
	ps_view *view = tn_ps_view_new(map, self);
	tn_ps_slots gone, fresh;
	tn_list over;

	if (!view)
		return tn_fail(TERN_E_NOMEM, "no memory for a map");
	tn_list_init(&over);
	pthread_rwlock_wrlock(&server->hold);
	if (!tn_ps_view_set(server, view)) {
		pthread_rwlock_unlock(&server->hold);
		return TERN_OK; /* an old one */
	}
	tn_repl_map(&r->repl, map, self, &gone, &fresh);
	for (uint32_t i = 0; i < server->share_count; i++) /* tables come and go under hold */
		tn_ps_share_drop_slots(server->shares[i], &fresh);
	pthread_mutex_lock(&server->rounds.steps.lock);
	tn_steps_drop_slots(&server->rounds.steps, &fresh);
	pthread_mutex_unlock(&server->rounds.steps.lock);
	tn_ps_streams_renew(r, map, &over);
	tn_ps_commits_judge(r, &over);
	pthread_rwlock_unlock(&server->hold);
	tn_ps_commits_answer(r, &over);
	tn_ps_copier_wake(r, &gone);
	return TERN_OK;
}

void tn_ps_replicas_load(tern_ps_server *server, uint32_t load[TN_CL_SLOTS])
{
	ps_replicas *r = server->replicas;
	uint64_t now = tn_ctx_now(server->ctx), ns = now - r->load_ns;

	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		uint64_t keys = atomic_exchange_explicit(&r->load[s], 0, memory_order_relaxed);

		load[s] = r->load_ns && ns ? (uint32_t)TN_MIN((double)keys * 1e9 / (double)ns, 4e9) : 0;
	}
	r->load_ns = now;
}

/* ---- life ---- */

static const tern_rpc_limits limits = {.running_max = 64,
				       .running_client_max = 4,
				       .queue_bytes_max = 1ull << 30,
				       .queue_client_bytes_max = 1ull << 29,
				       .queue_calls_max = 256};

tern_status tn_ps_replicas_open(tern_ps_server *server, const tn_replicas_env *env)
{
	const tn_options *options = tn_ctx_options(server->ctx);
	ps_replicas *r = calloc(1, sizeof(*r));
	tern_status status;

	if (!r)
		return tn_fail(TERN_E_NOMEM, "no memory for a server with backups");
	r->server = server;
	r->env = *env;
	r->linear = tn_opt_bool(options, tn_ps_options, "linear");
	r->patience_ns = tn_opt_u64(options, tn_ps_options, "replica_patience");
	r->retry_ns = tn_opt_u64(options, tn_ps_options, "retry");
	tn_repl_init(&r->repl);
	tn_repl_in_init(&r->in);
	pthread_mutex_init(&r->in_lock, NULL);
	pthread_mutex_init(&r->commit_lock, NULL);
	server->replicas = r;
	status = tn_ps_copier_start(r);
	if (status == TERN_OK)
		status = tern_rpc_serve_limited(server->ctx, TN_PS_REPLICATE, tn_ps_on_replicate, server,
						&limits);
	if (status != TERN_OK)
		tn_ps_replicas_close(server);
	return status;
}

/* All that wait for a backup are told to come again, to whoever has the slots then. */
static void give_up_waits(ps_replicas *r)
{
	tn_cl_map *none = calloc(1, sizeof(*none));
	tn_ps_slots gone, fresh;
	tn_list over;

	if (!none)
		return;
	tn_list_init(&over);
	for (uint32_t s = 0; s < TN_CL_SLOTS; s++) {
		none->slot[s] = TN_CL_SLOT_NONE;
		none->slot[s].epoch = UINT32_MAX;
	}
	pthread_rwlock_wrlock(&r->server->hold);
	none->version = r->repl.version + 1;
	tn_repl_map(&r->repl, none, TN_CL_NONE, &gone, &fresh);
	tn_ps_streams_renew(r, none, &over);
	tn_ps_commits_judge(r, &over);
	pthread_rwlock_unlock(&r->server->hold);
	tn_ps_commits_answer(r, &over);
	free(none);
}

void tn_ps_replicas_close(tern_ps_server *server)
{
	ps_replicas *r = server->replicas;

	if (!r)
		return;
	tern_rpc_unserve(server->ctx, TN_PS_REPLICATE);
	tn_ps_copier_stop(r);
	give_up_waits(r);
	while (atomic_load_explicit(&server->busy, memory_order_acquire) ||
	       atomic_load_explicit(&r->waiting, memory_order_acquire))
		tern_ctx_wait(server->ctx, 1000000);
	tn_ps_streams_free(r);
	tn_repl_fini(&r->repl);
	tn_repl_in_fini(&r->in);
	while (r->spare) {
		ps_commit *c = r->spare;

		r->spare = c->next;
		free(c->answer);
		free(c);
	}
	pthread_mutex_destroy(&r->in_lock);
	pthread_mutex_destroy(&r->commit_lock);
	server->replicas = NULL;
	free(r);
}
