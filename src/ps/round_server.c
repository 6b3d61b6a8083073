/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Summed steps at a server. See round.h. A closing takes what is staged out of the list under the lock and works on it
 * under none; meanwhile members stage later steps.
 *
 * Threads: see round.h. Tests: tests/unit/ps/round_test.c.
 */
#include "ps/round.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "ps/server.h"

#define HELD_PAUSE_NS 200000u

typedef struct staged {
	tn_list node; /* life->staged, or a closing's */
	uint64_t member, step, seq, table, schema, count, bytes;
	uint32_t order; /* of its sender, in a closing */
	uint8_t dtype;
	float lr_scale;
	_Alignas(16) uint8_t data[]; /* keys, rows */
} staged;

typedef struct waiting {
	struct waiting *next;
	tern_rpc_request *request;
} waiting;

struct ps_life {
	uint64_t id, used;
	uint64_t next; /* steps below are closed, or being closed */
	tn_list staged;
	bool busy; /* a closing is at work */
	waiting *waits;
	tern_status status; /* of the last closing */
	char detail[TN_DETAIL_MAX];
};

static void answer(tern_rpc_request *request, tern_status status)
{
	const char *detail = tn_detail_get();

	tern_rpc_reply(request, status, status == TERN_OK ? NULL : detail,
		       status == TERN_OK ? 0 : strlen(detail));
}

/* ---- lives ---- */

static void life_free(tn_ps_rounds *rounds, ps_life *life)
{
	tn_list *node;

	while ((node = tn_list_pop_front(&life->staged))) {
		staged *s = TN_CONTAINER_OF(node, staged, node);

		rounds->staged_bytes -= s->bytes;
		free(s);
	}
	free(life);
}

/* Lock held: the place of a new life, at the expense of the one that was not used for longest. */
static ps_life **room(tn_ps_rounds *rounds)
{
	ps_life **oldest = NULL;

	if (rounds->count < TN_PS_LIVES_MAX)
		return &rounds->lives[rounds->count++];
	for (uint32_t i = 0; i < rounds->count; i++)
		if (!rounds->lives[i]->busy && (!oldest || rounds->lives[i]->used < (*oldest)->used))
			oldest = &rounds->lives[i];
	if (oldest)
		life_free(rounds, *oldest);
	return oldest;
}

/* Lock held. NULL: no memory, or too many at work. */
static ps_life *life_of(tn_ps_rounds *rounds, uint64_t id)
{
	ps_life *life = NULL, **place;

	for (uint32_t i = 0; i < rounds->count && !life; i++)
		if (rounds->lives[i]->id == id)
			life = rounds->lives[i];
	if (!life) {
		life = TN_FAULT("ps.round.alloc") ? NULL : calloc(1, sizeof(*life));
		place = life ? room(rounds) : NULL;
		if (!place) {
			free(life);
			tn_fail(TERN_E_NOMEM, "no memory for the steps of a group");
			return NULL;
		}
		life->id = id;
		tn_list_init(&life->staged);
		*place = life;
	}
	life->used = ++rounds->clock;
	return life;
}

/* ---- staging ---- */

/* Lock held: it came before. The last ones are the likely ones. */
static bool known(const ps_life *life, const tn_ps_stage *s)
{
	for (const tn_list *node = life->staged.prev; node != &life->staged; node = node->prev) {
		const staged *old = TN_CONTAINER_OF(node, staged, node);

		if (old->member == s->member && old->seq == s->seq)
			return true;
	}
	return false;
}

static staged *staged_new(const tn_ps_stage *s)
{
	uint64_t bytes = s->count * 8 + s->row_bytes;
	staged *made = TN_FAULT("ps.round.stage") ? NULL : malloc(sizeof(*made) + bytes);

	if (!made) {
		tn_fail(TERN_E_NOMEM, "no memory to keep %" PRIu64 " rows until the step closes", s->count);
		return NULL;
	}
	*made = (staged){.member = s->member,
			 .step = s->step,
			 .seq = s->seq,
			 .table = s->table,
			 .schema = s->schema,
			 .count = s->count,
			 .bytes = bytes,
			 .dtype = s->dtype,
			 .lr_scale = s->lr_scale};
	memcpy(made->data, s->keys, s->count * 8);
	memcpy(made->data + s->count * 8, s->rows, s->row_bytes);
	return made;
}

/* Lock held. */
static tern_status keep(tn_ps_rounds *rounds, const tn_ps_stage *s)
{
	ps_life *life = life_of(rounds, s->life);
	staged *made;

	if (!life)
		return TERN_E_NOMEM;
	if (s->step < life->next)
		return tn_fail(TERN_E_STATE, "step %" PRIu64 " is closed: this worker is no sender of it",
			       s->step);
	if (known(life, s))
		return TERN_OK;
	if (s->count * 8 + s->row_bytes > rounds->staged_max - rounds->staged_bytes)
		return tn_fail(TERN_E_LIMIT,
			       "gradients of steps that are not closed have %" PRIu64 " of %" PRIu64
			       " bytes (ps.staged_bytes), and there is no room for %" PRIu64 " rows",
			       rounds->staged_bytes, rounds->staged_max, s->count);
	made = staged_new(s);
	if (!made)
		return TERN_E_NOMEM;
	rounds->staged_bytes += made->bytes;
	tn_list_push_back(&life->staged, &made->node);
	return TERN_OK;
}

static bool owned(tern_ps_server *server, const tn_ps_stage *s)
{
	unsigned in;
	const ps_view *view = tn_ps_view_enter(server, &in);
	bool mine = true;

	for (uint64_t i = 0; i < s->count && mine && !view->all; i++) {
		uint64_t key;

		memcpy(&key, s->keys + i * 8, sizeof(key));
		mine = tn_ps_slots_has(&view->mine, tn_table_slot(key));
	}
	tn_ps_view_leave(server, in);
	return mine;
}

/* Is it for a table that is here, as it is now, and of keys that are this server's? */
static tern_status check_table(tn_ps_rounds *rounds, const tn_ps_stage *s)
{
	ps_share *share = tn_ps_share_get(rounds->server, s->table);
	bool dtype = s->dtype == TERN_F32 || s->dtype == TERN_BF16 || s->dtype == TERN_F16;
	tern_status status = TERN_OK;

	if (!share)
		return tn_fail(TERN_E_NOT_FOUND, "there is no such table (any more)");
	if (share->hash != s->schema)
		status = tn_fail(TERN_E_SHAPE, "table \"%s\" has another schema now: open it again",
				 share->schema.name);
	else if (!dtype ||
		 s->row_bytes != s->count * share->schema.dim * tern_dtype_bytes((tern_dtype)s->dtype))
		status = tn_fail(TERN_E_PROTOCOL, "%" PRIu64 " rows are not what the message brings",
				 s->count);
	tn_ps_share_put(share);
	if (status == TERN_OK && !owned(rounds->server, s))
		status = tn_fail(TERN_E_STATE,
				 "slots have moved in the middle of a step: add and drain servers "
				 "between steps of summed groups");
	return status;
}

static void on_stage(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_rounds *rounds = arg;
	tern_status status;
	tn_ps_stage s;

	if (rounds->server->replicas)
		status = tn_fail(TERN_E_UNSUPPORTED,
				 "these servers have backups, which are not told of summed "
				 "steps: servers with a fixed list can sum");
	else if (!tn_ps_stage_decode(args, bytes, &s))
		status = tn_fail(TERN_E_PROTOCOL, "gradients of a step can't be read: another version?");
	else
		status = check_table(rounds, &s);
	if (status == TERN_OK) {
		pthread_mutex_lock(&rounds->lock);
		status = keep(rounds, &s);
		pthread_mutex_unlock(&rounds->lock);
	}
	answer(request, status);
}

/* ---- closing ---- */

/* In the order of tables, then of learning rates and types, then of senders and their pushes. */
static int by_place(const void *a, const void *b)
{
	const staged *x = *(const staged *const *)a, *y = *(const staged *const *)b;

	if (x->table != y->table)
		return x->table < y->table ? -1 : 1;
	if (x->lr_scale != y->lr_scale)
		return x->lr_scale < y->lr_scale ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	if (x->order != y->order)
		return x->order < y->order ? -1 : 1;
	return (x->seq > y->seq) - (x->seq < y->seq);
}

static bool together(const staged *a, const staged *b)
{
	return a->table == b->table && a->dtype == b->dtype && a->lr_scale == b->lr_scale;
}

/* All rows of a table, as one push. */
static tern_status push_sum(tern_ps_server *server, staged *const *rows, uint64_t n)
{
	ps_share *share = tn_ps_share_get(server, rows[0]->table);
	tn_push how = {.dtype = (tern_dtype)rows[0]->dtype, .lr_scale = rows[0]->lr_scale};
	uint64_t count = 0, at = 0, row_bytes;
	uint8_t *memory = NULL;
	tern_status status;

	if (!share || share->hash != rows[0]->schema) { /* dropped meanwhile, with the rows it had */
		if (share)
			tn_ps_share_put(share);
		return TERN_OK;
	}
	row_bytes = share->schema.dim * tern_dtype_bytes(how.dtype);
	for (uint64_t i = 0; i < n; i++) {
		count += rows[i]->count;
		how.step = TN_MAX(how.step, rows[i]->step);
	}
	if (!TN_FAULT("ps.round.sum"))
		memory = malloc(count * (8 + row_bytes) + 1);
	if (!memory) {
		tn_ps_share_put(share);
		return tn_fail(TERN_E_NOMEM, "no memory to sum %" PRIu64 " rows of a step", count);
	}
	for (uint64_t i = 0; i < n; at += rows[i++]->count) {
		memcpy(memory + at * 8, rows[i]->data, rows[i]->count * 8);
		memcpy(memory + count * 8 + at * row_bytes, rows[i]->data + rows[i]->count * 8,
		       rows[i]->count * row_bytes);
	}
	status = tn_table_push(share->engine, (const uint64_t *)(const void *)memory, memory + count * 8,
			       count, &how, NULL);
	free(memory);
	tn_ps_share_put(share);
	return status;
}

/* Pushes stand still while a save marks its tables: after that. */
static void hold_cuts_off(tern_ps_server *server)
{
	for (;;) {
		pthread_rwlock_rdlock(&server->hold);
		if (!atomic_load(&server->held))
			return;
		pthread_rwlock_unlock(&server->hold);
		(void)tern_ctx_wait(server->ctx, HELD_PAUSE_NS);
	}
}

static tern_status apply(tern_ps_server *server, tn_list *list, uint64_t count)
{
	staged **rows = count ? malloc(count * sizeof(*rows)) : NULL;
	tern_status status = TERN_OK;
	uint64_t n = 0;

	if (count && !rows)
		return tn_fail(TERN_E_NOMEM, "no memory to sum %" PRIu64 " pushes of a step", count);
	TN_LIST_FOREACH(node, list) {
		rows[n++] = TN_CONTAINER_OF(node, staged, node);
	}
	if (n)
		qsort(rows, n, sizeof(*rows), by_place);
	hold_cuts_off(server);
	for (uint64_t i = 0, j; i < n; i = j) {
		tern_status one;

		for (j = i + 1; j < n && together(rows[i], rows[j]);)
			j++;
		one = push_sum(server, rows + i, j - i);
		status = status == TERN_OK ? one : status;
	}
	pthread_rwlock_unlock(&server->hold);
	free(rows);
	return status;
}

/* Lock held: what the closing is about, into `list`; what is no sender's goes. */
static uint64_t take(tn_ps_rounds *rounds, ps_life *life, const tn_ps_close *c, tn_list *list)
{
	uint64_t n = 0;

	TN_LIST_FOREACH_SAFE(node, &life->staged) {
		staged *s = TN_CONTAINER_OF(node, staged, node);
		uint32_t i = 0;

		if (s->step > c->step)
			continue;
		while (i < c->senders && c->sender[i] != s->member)
			i++;
		tn_list_remove(&s->node);
		if (i == c->senders) {
			rounds->staged_bytes -= s->bytes;
			free(s);
			continue;
		}
		s->order = i;
		tn_list_push_back(list, &s->node);
		n++;
	}
	return n;
}

static void drop(tn_ps_rounds *rounds, tn_list *list)
{
	uint64_t bytes = 0;
	tn_list *node;

	while ((node = tn_list_pop_front(list))) {
		staged *s = TN_CONTAINER_OF(node, staged, node);

		bytes += s->bytes;
		free(s);
	}
	pthread_mutex_lock(&rounds->lock);
	rounds->staged_bytes -= bytes;
	pthread_mutex_unlock(&rounds->lock);
}

/* The life is busy with this closing. */
static void work_on(tn_ps_rounds *rounds, ps_life *life, const tn_ps_close *c, tern_rpc_request *request)
{
	tern_status status;
	waiting *waits;
	uint64_t n;
	tn_list list;

	tn_list_init(&list);
	pthread_mutex_lock(&rounds->lock);
	n = take(rounds, life, c, &list);
	pthread_mutex_unlock(&rounds->lock);
	status = apply(rounds->server, &list, n);
	drop(rounds, &list);
	pthread_mutex_lock(&rounds->lock);
	life->status = status;
	snprintf(life->detail, sizeof(life->detail), "%s", status == TERN_OK ? "" : tn_detail_get());
	waits = life->waits;
	life->waits = NULL;
	life->busy = false;
	pthread_mutex_unlock(&rounds->lock);
	answer(request, status);
	while (waits) {
		waiting *next = waits->next;

		answer(waits->request, status);
		free(waits);
		waits = next;
	}
}

void tn_ps_round_work(tn_ps_rounds *rounds, tern_rpc_request *request, const void *args, uint64_t bytes)
{
	ps_life *life;
	tn_ps_close c;
	bool good = tn_ps_close_decode(args, bytes, &c);

	TN_ASSERT(good);
	pthread_mutex_lock(&rounds->lock);
	life = life_of(rounds, c.life); /* busy: it is there */
	pthread_mutex_unlock(&rounds->lock);
	work_on(rounds, life, &c, request);
}

/* Lock held. TERN_BUSY: this request is to work on it; TERN_AGAIN: it waits; else it is its answer. */
static tern_status begin(tn_ps_rounds *rounds, const tn_ps_close *c, tern_rpc_request *request)
{
	ps_life *life = life_of(rounds, c->life);
	waiting *wait;

	if (!life)
		return TERN_E_NOMEM;
	if (rounds->closing)
		return tn_fail(TERN_E_FLUSHED, "the parameter server closes");
	if (life->busy) {
		wait = malloc(sizeof(*wait));
		if (!wait)
			return tn_fail(TERN_E_NOMEM, "no memory for a worker that waits");
		*wait = (waiting){.next = life->waits, .request = request};
		life->waits = wait;
		return TERN_AGAIN;
	}
	if (c->step < life->next) {
		if (life->status != TERN_OK && c->step == life->next - 1)
			tn_detail_set("%s", life->detail);
		return c->step == life->next - 1 ? life->status : TERN_OK;
	}
	life->busy = true;
	life->next = c->step + 1;
	return TERN_BUSY;
}

static void on_close(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_rounds *rounds = arg;
	tern_status status;
	tn_ps_close c;

	if (!tn_ps_close_decode(args, bytes, &c) || c.step == UINT64_MAX) {
		status = tn_fail(TERN_E_PROTOCOL, "the end of a step can't be read: another version?");
		answer(request, status);
		return;
	}
	pthread_mutex_lock(&rounds->lock);
	status = begin(rounds, &c, request);
	pthread_mutex_unlock(&rounds->lock);
	if (status == TERN_BUSY) {
		if (!tn_ps_work_hand(rounds->server, request, (tn_ps_method)TN_PS_CLOSE, args, bytes))
			tn_ps_round_work(rounds, request, args, bytes);
	} else if (status != TERN_AGAIN) {
		answer(request, status);
	}
}

/* ---- life ---- */

tern_status tn_ps_rounds_open(tn_ps_rounds *rounds, tern_ps_server *server)
{
	tern_status status;

	memset(rounds, 0, sizeof(*rounds));
	rounds->server = server;
	rounds->staged_max = tn_opt_u64(tn_ctx_options(server->ctx), tn_ps_options, "staged_bytes");
	pthread_mutex_init(&rounds->lock, NULL);
	status = tern_rpc_serve(server->ctx, TN_PS_STAGE, on_stage, rounds);
	if (status != TERN_OK)
		return status;
	status = tern_rpc_serve(server->ctx, TN_PS_CLOSE, on_close, rounds);
	if (status != TERN_OK)
		tern_rpc_unserve(server->ctx, TN_PS_STAGE);
	return status;
}

void tn_ps_rounds_close(tn_ps_rounds *rounds)
{
	if (!rounds->server || rounds->closing)
		return;
	pthread_mutex_lock(&rounds->lock);
	rounds->closing = true;
	pthread_mutex_unlock(&rounds->lock);
	tern_rpc_unserve(rounds->server->ctx, TN_PS_STAGE);
	tern_rpc_unserve(rounds->server->ctx, TN_PS_CLOSE);
}

void tn_ps_rounds_free(tn_ps_rounds *rounds)
{
	if (!rounds->server)
		return;
	while (rounds->count)
		life_free(rounds, rounds->lives[--rounds->count]);
	pthread_mutex_destroy(&rounds->lock);
	rounds->server = NULL;
}
