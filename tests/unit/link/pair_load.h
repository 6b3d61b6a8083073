/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A workload on a pair of links, and its judge. Channels open and close, messages and transfers of all kinds
 * are submitted on both sides by the fast and the ordinary path, cancelled, timed out, paused; the world may
 * break under them. Judged:
 *   - each accepted op ends exactly once; no buffer is touched after that (it is freed: ASan sees)
 *   - messages arrive whole, in order, at most once; those that ended well arrived
 *   - a transfer that ended well moved its bytes; a notification or flag is never seen before them
 *   - notifications of a channel come in order, at most once
 *   - nothing is delivered to a closed channel; CLOSED comes at most once and last
 *   - everything ends (no deadlock), with a status that fits what happened
 * Threads: none.
 */
#ifndef TERN_TESTS_LINK_PAIR_LOAD_H
#define TERN_TESTS_LINK_PAIR_LOAD_H

#include "base/map.h"
#include "unit/link/pair.h"

#define LOAD_CHANS 48
#define LOAD_OPS   600

typedef struct load load;

typedef struct load_region { /* what a key names */
	uint64_t magic;
	int side; /* owner */
	uint8_t *mem;
	uint64_t bytes;
	bool refuses;
	struct load_op *op;
} load_region;

typedef enum load_kind { LOAD_SEND, LOAD_PUT, LOAD_NOTIFY, LOAD_FLAG, LOAD_GET } load_kind;

typedef struct load_op {
	load *l;
	uint32_t index;
	load_kind kind;
	int side;
	uint32_t chan;
	uint64_t handle;
	bool accepted, pending, steady; /* steady: never cancelled or timed out */
	bool remote;
	uint8_t *buf;
	uint64_t bytes;
	uint32_t done;
	tern_status status;
	uint32_t message; /* its number in the channel's direction */
	uint32_t arrived, notified;
	load_region region, flag;
	uint64_t flag_word;
} load_op;

typedef struct load_side {
	load *l;
	uint32_t chan;
	int side;
	uint32_t handle; /* 0: not there (yet) */
	bool incoming, open, paused, closed_told, released, drained, spoilt;
	uint8_t *part;
	uint64_t part_bytes;
	uint32_t sent;      /* messages submitted from here */
	uint32_t last_seen; /* number + 1 of the last message that arrived here */
	uint32_t last_notify, last_flag;
} load_side;

struct load {
	pair_world *world;
	load_side chans[LOAD_CHANS][2];
	uint32_t chan_count;
	load_op ops[LOAD_OPS];
	uint32_t op_count, ops_out;
	/* knobs, percent or yes/no */
	unsigned fast, cancel, deadline, refuse_region, refuse_open;
	bool no_flag, no_get;
	uint64_t bytes_max;
	/* what was done to them */
	bool broke, closed[2];
	bool mended; /* lanes broke and were rebuilt: what has no record is indeterminate */
};

static inline uint8_t load_byte(const load_op *op, uint64_t at)
{
	return (uint8_t)(op->index * 131 + op->chan * 17 + (uint32_t)op->side * 5 + at * 31 + (at >> 8));
}

static inline void load_fill(const load_op *op, uint8_t *mem, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		mem[i] = load_byte(op, i);
	if (op->kind == LOAD_SEND && bytes >= 8)
		memcpy(mem, &(uint64_t){op->index}, 8);
}

static inline bool load_equal(const load_op *op, const uint8_t *mem, uint64_t bytes)
{
	uint64_t i = op->kind == LOAD_SEND && bytes >= 8 ? 8 : 0;

	for (; i < bytes; i++)
		if (mem[i] != load_byte(op, i))
			return false;
	return true;
}

#define LOAD_MAGIC 0x6c6f616472656769ull

static inline void load_region_make(load_op *op, load_region *region, uint64_t bytes)
{
	*region = (load_region){.magic = LOAD_MAGIC, .side = !op->side, .bytes = bytes, .op = op};
	region->mem = calloc(1, bytes + 1);
}

static inline void load_key(uint8_t key[TN_LINK_KEY_BYTES], load_region *region)
{
	memset(key, 0, TN_LINK_KEY_BYTES);
	memcpy(key, &region, sizeof(region));
}

/* ---- the device's side ---- */

/* A put that ended at its post may have had no effect yet, as far as the link knows. */
static inline bool load_vague(const load *l)
{
	return !(l->world->node[0].providers[0].caps & TN_LINK_CAP_REMOTE_DONE);
}

/* It may end before it has any effect. */
static inline bool load_only_local(const load_op *op)
{
	return op->l->world->silent && !op->remote && op->kind != LOAD_SEND && op->kind != LOAD_GET;
}

/* A flag is written: its data must be there, and flags of a channel come in the order of their puts. */
static inline void load_flagged(pair_world *world, const load_op *op)
{
	load_side *to = &op->l->chans[op->chan][!op->side];

	PAIR_CHECK(world, load_equal(op, op->region.mem, op->bytes) && !op->region.refuses);
	PAIR_CHECK(world, op->index + 1 > to->last_flag);
	to->last_flag = op->index + 1;
}

static inline tern_status load_access(pair_world *world, int side, const tn_link_post *post)
{
	load_region *region;

	memcpy(&region, post->key, sizeof(region));
	PAIR_CHECK(world, region && region->magic == LOAD_MAGIC && region->side != side);
	/* Nothing of an op moves after its end, unless the device had taken a copy. */
	PAIR_CHECK(world, region->op->done == 0 ||
				  ((world->silent || (region->op->l->mended && load_vague(region->op->l))) &&
				   post->type != TN_POST_READ));
	if (region->refuses)
		return TERN_E_BOUNDS;
	PAIR_CHECK(world, post->offset <= region->bytes && post->bytes <= region->bytes - post->offset);
	if (region == &region->op->flag)
		load_flagged(world, region->op);
	if (post->type == TN_POST_READ)
		memcpy(post->local, region->mem + post->offset, post->bytes);
	else if (post->bytes)
		memcpy(region->mem + post->offset, post->local, post->bytes);
	return TERN_OK;
}

/* ---- what arrives ---- */

static inline void load_message(load *l, load_side *to)
{
	uint64_t bytes = to->part_bytes, index = 0;
	load_op *op = NULL;

	if (bytes >= 8) {
		memcpy(&index, to->part, 8);
		PAIR_CHECK(l->world, index < l->op_count);
		op = &l->ops[index];
	} else {
		/* The first short one that did not arrive yet: short ones are never cancelled. */
		for (uint32_t i = 0; i < l->op_count && !op; i++) {
			load_op *o = &l->ops[i];

			if (o->kind == LOAD_SEND && o->chan == to->chan && o->side != to->side &&
			    o->bytes < 8 && !o->arrived && o->accepted)
				op = o;
		}
		PAIR_CHECK(l->world, op != NULL);
	}
	PAIR_CHECK(l->world, op->kind == LOAD_SEND && op->chan == to->chan && op->side != to->side);
	PAIR_CHECK(l->world, op->bytes == bytes && load_equal(op, to->part, bytes));
	PAIR_CHECK(l->world, op->arrived++ == 0);
	PAIR_CHECK(l->world, op->message + 1 > to->last_seen);
	to->last_seen = op->message + 1;
	to->part_bytes = 0;
}

static inline void load_rx(pair_world *world, int side, const tn_link_rx *rx)
{
	load *l = world->arg;
	load_side *to = rx->user;
	load_op *op;

	PAIR_CHECK(world, to && to->side == side && to->handle == rx->channel);
	PAIR_CHECK(world, !to->released && !to->closed_told && !l->closed[side]);
	switch (rx->type) {
	case TN_RX_MESSAGE:
		PAIR_CHECK(world, rx->offset == to->part_bytes && rx->first == (rx->offset == 0));
		to->part = realloc(to->part, to->part_bytes + rx->bytes + 1);
		if (rx->bytes)
			memcpy(to->part + to->part_bytes, rx->data, rx->bytes);
		to->part_bytes += rx->bytes;
		PAIR_CHECK(world, rx->last == (to->part_bytes == rx->total));
		if (rx->last)
			load_message(l, to);
		break;
	case TN_RX_ABORT:
		PAIR_CHECK(world, to->part_bytes > 0);
		to->part_bytes = 0;
		break;
	case TN_RX_NOTIFY:
		PAIR_CHECK(world, rx->value < l->op_count);
		op = &l->ops[rx->value];
		PAIR_CHECK(world, op->kind == LOAD_NOTIFY && op->chan == to->chan && op->side != side);
		PAIR_CHECK(world, !op->region.refuses && rx->bytes == op->bytes);
		PAIR_CHECK(world, load_equal(op, op->region.mem, op->bytes));
		PAIR_CHECK(world, op->notified++ == 0 && op->index + 1 > to->last_notify);
		to->last_notify = op->index + 1;
		break;
	default:
		PAIR_CHECK(world, false);
	}
}

/* ---- what the link tells ---- */

static inline void load_incoming(load *l, int side, const tn_link_action *act)
{
	unsigned id;
	load_side *to;

	PAIR_CHECK(l->world, sscanf(act->channel.service, "svc-%u", &id) == 1 && id < l->chan_count);
	to = &l->chans[id][side];
	PAIR_CHECK(l->world, to->handle == 0 && l->chans[id][!side].handle != 0);
	to->handle = act->channel.channel;
	to->incoming = true;
}

static inline void load_done(load *l, const tn_link_action *act)
{
	load_op *op = act->done.user;

	PAIR_CHECK(l->world, op->l == l && op->pending && op->handle == act->done.op);
	PAIR_CHECK(l->world, op->done++ == 0);
	op->pending = false;
	op->status = act->done.status;
	l->ops_out--;
	if (op->status == TERN_OK) {
		PAIR_CHECK(l->world, act->done.length == op->bytes);
		PAIR_CHECK(l->world, op->kind != LOAD_GET || load_equal(op, op->buf, op->bytes));
		PAIR_CHECK(l->world, op->kind == LOAD_SEND || op->kind == LOAD_GET || load_only_local(op) ||
					     load_equal(op, op->region.mem, op->bytes));
		PAIR_CHECK(l->world, op->kind != LOAD_FLAG || load_only_local(op) ||
					     !memcmp(op->flag.mem, &op->flag_word, 8));
	}
	free(op->buf);
	op->buf = NULL;
}

static inline void load_action(pair_world *world, int side, const tn_link_action *act)
{
	load *l = world->arg;
	load_side *at = NULL;

	switch (act->type) {
	case TN_ACT_OP_DONE:
		load_done(l, act);
		break;
	case TN_ACT_CHANNEL_INCOMING:
		load_incoming(l, side, act);
		break;
	case TN_ACT_CHANNEL_OPENED:
		at = act->channel.user;
		PAIR_CHECK(world, at->handle == act->channel.channel && !at->released && !at->closed_told);
		at->open = true;
		break;
	case TN_ACT_CHANNEL_CLOSED:
		at = act->channel.user;
		if (!at) { /* it came in and was never answered */
			for (uint32_t i = 0; i < l->chan_count && !at; i++)
				if (l->chans[i][side].handle == act->channel.channel &&
				    l->chans[i][side].incoming)
					at = &l->chans[i][side];
		}
		PAIR_CHECK(world,
			   at && at->handle == act->channel.channel && !at->released && !at->closed_told);
		PAIR_CHECK(world, act->channel.status != TERN_OK);
		at->closed_told = true;
		at->spoilt = act->channel.status == TERN_E_INDETERMINATE;
		PAIR_CHECK(world, !at->spoilt || (l->mended && load_vague(l)));
		at->incoming = false;
		for (uint32_t i = 0; i < l->op_count; i++)
			PAIR_CHECK(world, !(l->ops[i].pending && l->ops[i].chan == at->chan &&
					    l->ops[i].side == side));
		break;
	case TN_ACT_LINK_DOWN:
		for (uint32_t i = 0; i < l->op_count; i++)
			PAIR_CHECK(world, !(l->ops[i].pending && l->ops[i].side == side));
		for (uint32_t i = 0; i < l->chan_count; i++)
			PAIR_CHECK(world, l->chans[i][side].handle == 0 || l->chans[i][side].released ||
						  l->chans[i][side].closed_told);
		break;
	default:
		break;
	}
}

/* ---- things to do ---- */

static inline tn_link *load_link(load *l, int side)
{
	return l->world->node[side].link;
}

static inline bool load_usable(load *l, int side)
{
	return l->world->node[side].up && !l->world->node[side].down;
}

static inline void load_open(load *l, int side)
{
	char service[32];
	load_side *s;
	uint32_t id = l->chan_count;

	if (id == LOAD_CHANS)
		return;
	snprintf(service, sizeof(service), "svc-%u", id);
	for (int i = 0; i < 2; i++)
		l->chans[id][i] = (load_side){.l = l, .chan = id, .side = i};
	s = &l->chans[id][side];
	if (tn_link_channel_open(load_link(l, side), service, s, 0, &s->handle) == TERN_OK)
		l->chan_count++;
}

/* Answer channels that came in. */
static inline void load_answer(load *l, load_side *s)
{
	s->incoming = false;
	if (pair_chance(l->world, l->refuse_open)) {
		s->released = true;
		tn_link_channel_refuse(load_link(l, s->side), s->handle, TERN_E_NOT_FOUND, "no such service");
	} else if (tn_link_channel_accept(load_link(l, s->side), s->handle, s, 0) == TERN_OK) {
		s->open = true;
	}
}

static inline void load_close(load *l, load_side *s, bool drain)
{
	if (!s->handle || s->released)
		return;
	s->released = true;
	s->drained = drain;
	s->incoming = false;
	tn_link_channel_close(load_link(l, s->side), s->handle, drain);
}

static inline uint64_t load_size(load *l)
{
	switch (pair_pick(l->world, 6)) {
	case 0:
		return pair_pick(l->world, 9);
	case 1:
		return 8 + pair_pick(l->world, 100);
	case 2:
	case 3:
		return pair_pick(l->world, 255) * l->bytes_max / 1024;
	default:
		return pair_pick(l->world, 255) * l->bytes_max / 256;
	}
}

typedef struct load_call {
	tn_link_iov iov[3];
	uint32_t iov_count;
	tn_link_xfer xfer;
	uint8_t key[TN_LINK_KEY_BYTES], flag_key[TN_LINK_KEY_BYTES];
	tn_link_op_params params;
} load_call;

static inline void load_prepare(load *l, load_op *op, load_call *call)
{
	uint64_t cut = op->bytes ? pair_pick(l->world, 255) % (op->bytes + 1) : 0;
	static const tn_link_xfer_type types[] = {
		[LOAD_PUT] = TN_XFER_PUT,
		[LOAD_NOTIFY] = TN_XFER_PUT_NOTIFY,
		[LOAD_FLAG] = TN_XFER_PUT_FLAG,
		[LOAD_GET] = TN_XFER_GET,
	};

	memset(call, 0, sizeof(*call));
	call->params.user = op;
	call->params.deadline_ns = UINT64_MAX;
	call->params.level = op->remote ? TN_LINK_REMOTE : TN_LINK_LOCAL;
	if (!op->steady && pair_chance(l->world, l->deadline))
		call->params.deadline_ns = l->world->now + pair_pick(l->world, 200) * 1000;
	if (op->kind == LOAD_SEND) {
		call->iov[0] = (tn_link_iov){op->buf, cut};
		call->iov[1] = (tn_link_iov){op->buf + cut, op->bytes - cut};
		call->iov_count = 2;
		load_fill(op, op->buf, op->bytes);
		return;
	}
	load_region_make(op, &op->region, op->bytes);
	load_region_make(op, &op->flag, 8);
	op->region.refuses = pair_chance(l->world, l->refuse_region) && op->bytes > 0;
	load_fill(op, op->kind == LOAD_GET ? op->region.mem : op->buf, op->bytes);
	load_key(call->key, &op->region);
	load_key(call->flag_key, &op->flag);
	op->flag_word = 0xfeed0000u + op->index;
	call->xfer = (tn_link_xfer){
		.type = types[op->kind],
		.local = op->buf,
		.bytes = op->bytes,
		.key = call->key,
		.value = op->index,
		.flag = op->flag_word,
		.flag_key = call->flag_key,
	};
}

/* 0: not taken; 2: complete. */
static inline int load_submit_brief(load *l, load_op *op, uint32_t handle, const load_call *call)
{
	tn_link *link = load_link(l, op->side);
	bool pending = tn_link_pending(link);
	tn_link_brief brief;

	if (op->remote || !tn_link_brief_send(link, handle, op->bytes, &brief) ||
	    !pair_post_brief(l->world, op->side, &brief, call->iov, call->iov_count))
		return 0;
	tn_link_brief_sent(link, handle, &brief, call->iov, call->iov_count, op->bytes);
	PAIR_CHECK(l->world, pending || !tn_link_pending(link));
	return 2;
}

/* 1: accepted and pending; 0: not accepted, *status says why; 2: complete. */
static inline int load_submit_fast(load *l, load_op *op, uint32_t handle, load_call *call,
				   tern_status *status)
{
	tn_link *link = load_link(l, op->side);
	tn_link_fast fast;
	tn_link_fast_result result;
	bool pending = tn_link_pending(link), ready, done;

	*status = TERN_AGAIN;
	ready = op->kind == LOAD_SEND
			? tn_link_fast_send(link, handle, call->iov, call->iov_count, &call->params, &fast)
			: tn_link_fast_xfer(link, handle, &call->xfer, &call->params, &fast);
	if (!ready)
		return 0;
	do {
		*status = pair_post(l->world, op->side, &fast.post, &done);
		result = op->kind == LOAD_SEND ? tn_link_fast_sent(link, &fast, *status, done, &op->handle)
					       : tn_link_fast_posted(link, &fast, *status, done, &op->handle);
	} while (result == TN_FAST_MORE);
	if (result == TN_FAST_COMPLETE) {
		PAIR_CHECK(l->world, pending || !tn_link_pending(link));
		PAIR_CHECK(l->world, op->kind == LOAD_SEND || op->kind == LOAD_GET || load_only_local(op) ||
					     load_equal(op, op->region.mem, op->bytes));
		PAIR_CHECK(l->world, op->kind != LOAD_FLAG || load_only_local(op) ||
					     !memcmp(op->flag.mem, &op->flag_word, 8));
		return 2;
	}
	return result == TN_FAST_PENDING;
}

static inline void load_drop(load_op *op)
{
	free(op->buf);
	free(op->region.mem);
	free(op->flag.mem);
	op->buf = op->region.mem = op->flag.mem = NULL;
}

static inline void load_submit(load *l, load_side *s)
{
	load_op *op = &l->ops[l->op_count];
	load_call call;
	tern_status status;
	int how = 0;

	if (l->op_count == LOAD_OPS || !s->handle || s->incoming)
		return;
	memset(op, 0, sizeof(*op));
	op->l = l;
	op->index = l->op_count;
	op->kind = (load_kind)pair_pick(l->world, 5);
	if ((op->kind == LOAD_FLAG && l->no_flag) || (op->kind == LOAD_GET && l->no_get) ||
	    pair_chance(l->world, 30))
		op->kind = LOAD_SEND;
	op->side = s->side;
	op->chan = s->chan;
	op->remote = pair_chance(l->world, 40);
	op->bytes = load_size(l);
	op->steady = op->kind == LOAD_SEND && op->bytes < 8;
	op->buf = malloc(op->bytes + 1);
	op->message = s->sent;
	load_prepare(l, op, &call);
	/* It may arrive, notify and end before the call returns. */
	l->op_count++;
	op->accepted = op->pending = true;
	l->ops_out++;
	if (op->kind == LOAD_SEND && pair_chance(l->world, l->fast))
		how = load_submit_brief(l, op, s->handle, &call);
	if (how == 0 && pair_chance(l->world, l->fast))
		how = load_submit_fast(l, op, s->handle, &call, &status);
	if (how == 0) {
		status = op->kind == LOAD_SEND ? tn_link_send(load_link(l, s->side), s->handle, call.iov,
							      call.iov_count, &call.params, &op->handle)
					       : tn_link_transfer(load_link(l, s->side), s->handle,
								  &call.xfer, &call.params, &op->handle);
		how = status == TERN_OK;
	}
	if (how != 0 && op->kind == LOAD_SEND)
		s->sent++;
	if (how == 0) {
		PAIR_CHECK(l->world, op->arrived == 0 && op->notified == 0 && op->done == 0);
		PAIR_CHECK(l->world, status == TERN_AGAIN || status == TERN_E_LIMIT || s->released ||
					     (status == TERN_E_INDETERMINATE && l->mended && load_vague(l)) ||
					     s->closed_told || !load_usable(l, s->side) || l->broke ||
					     l->closed[0] || l->closed[1] ||
					     l->chans[s->chan][!s->side].released ||
					     l->chans[s->chan][!s->side].spoilt);
		op->accepted = op->pending = false;
		l->ops_out--;
		l->op_count--;
		load_drop(op);
	} else if (how == 2) {
		op->done = 1;
		op->pending = false;
		l->ops_out--;
		free(op->buf);
		op->buf = NULL;
	}
}

static inline void load_cancel(load *l)
{
	load_op *op;

	if (l->op_count == 0)
		return;
	op = &l->ops[l->op_count - 1 - pair_pick(l->world, TN_MIN(l->op_count, 40u))];
	if (op->steady || op->handle == 0)
		return;
	PAIR_CHECK(l->world, (tn_link_cancel(load_link(l, op->side), op->handle, l->world->now) == TERN_OK) <=
				     op->pending);
}

static inline void load_pause(load *l, load_side *s)
{
	if (!s->handle || s->released || s->incoming)
		return;
	s->paused = !s->paused;
	if (s->paused)
		tn_link_channel_pause(load_link(l, s->side), s->handle);
	else
		tn_link_channel_resume(load_link(l, s->side), s->handle);
}

/* One thing that a program might do. */
static inline void load_step(load *l)
{
	int side = (int)pair_pick(l->world, 2);
	load_side *s;

	if (!load_usable(l, side))
		return;
	if (l->chan_count == 0 || pair_chance(l->world, 6)) {
		load_open(l, side);
		pair_kick(l->world, side);
		return;
	}
	s = &l->chans[pair_pick(l->world, l->chan_count)][side];
	if (s->incoming && pair_chance(l->world, 60))
		load_answer(l, s);
	else if (s->closed_told && !s->released)
		load_close(l, s, false);
	else if (pair_chance(l->world, l->cancel))
		load_cancel(l);
	else if (pair_chance(l->world, 3))
		load_pause(l, s);
	else if (pair_chance(l->world, 3))
		load_close(l, s, pair_chance(l->world, 50));
	else
		load_submit(l, s);
	pair_kick(l->world, side);
	pair_kick(l->world, !side);
}

/* ---- the end ---- */

static inline void load_judge_op(load *l, load_op *op)
{
	load_side *to = &l->chans[op->chan][!op->side];
	bool heard = !to->released && !to->spoilt && !l->broke && !l->closed[!op->side];

	PAIR_CHECK(l->world, op->done == 1 && !op->pending);
	if (op->status != TERN_OK)
		return;
	/* LOCAL says that the buffer is free; it arrives unless the path broke. REMOTE says that it arrived. */
	if (op->kind == LOAD_SEND &&
	    (heard || (op->remote && !to->released && !to->spoilt && !l->closed[!op->side])))
		PAIR_CHECK(l->world, op->arrived == 1);
	if (op->kind == LOAD_NOTIFY && heard && !l->chans[op->chan][op->side].spoilt)
		PAIR_CHECK(l->world, op->notified == 1);
}

static inline bool load_status_fits(const load *l, const load_op *op)
{
	switch (op->status) {
	case TERN_OK:
	case TERN_E_CANCELED:
	case TERN_E_DEADLINE:
		return true;
	case TERN_E_LIMIT: /* the channel was refused: no row was free there */
		return true;
	case TERN_E_INDETERMINATE:
		return l->broke ||
		       (l->mended && (load_vague(l) || op->kind == LOAD_PUT || op->kind == LOAD_FLAG));
	case TERN_E_BOUNDS:
		return op->region.refuses;
	case TERN_E_ACCESS:
		return l->world->refuse_piece > 0;
	case TERN_E_FLUSHED:
		return l->chans[op->chan][op->side].released || l->closed[op->side];
	case TERN_E_PEER_CLOSED:
	case TERN_E_NOT_FOUND:
		return l->chans[op->chan][!op->side].released || l->chans[op->chan][!op->side].spoilt ||
		       l->closed[!op->side] || l->broke;
	default:
		return l->broke;
	}
}

static inline void load_init(load *l, pair_world *world)
{
	memset(l, 0, sizeof(*l));
	l->world = world;
	l->fast = 50;
	l->bytes_max = 40000;
	world->arg = l;
	world->on_rx = load_rx;
	world->on_action = load_action;
	world->on_access = load_access;
}

static inline void load_judge(load *l)
{
	for (uint32_t i = 0; i < l->op_count; i++) {
		load_judge_op(l, &l->ops[i]);
		if (!load_status_fits(l, &l->ops[i]))
			fprintf(stderr, "op %u kind %d side %d channel %u: %s\n", i, l->ops[i].kind,
				l->ops[i].side, l->ops[i].chan, tern_status_name(l->ops[i].status));
		PAIR_CHECK(l->world, load_status_fits(l, &l->ops[i]));
	}
}

static inline void load_fini(load *l)
{
	for (uint32_t i = 0; i < l->op_count; i++)
		load_drop(&l->ops[i]);
	for (uint32_t i = 0; i < l->chan_count; i++)
		for (int s = 0; s < 2; s++)
			free(l->chans[i][s].part);
}

/* Let everything that is under way come to its end: no knob is turned any more. */
static inline void load_settle(load *l)
{
	for (uint32_t i = 0; i < l->chan_count; i++) {
		for (int s = 0; s < 2; s++) {
			load_side *at = &l->chans[i][s];

			if (at->incoming && load_usable(l, s))
				load_answer(l, at);
			if (at->paused && !at->released && load_usable(l, s))
				load_pause(l, at);
		}
	}
	pair_pump(l->world, 0);
	pair_pump(l->world, 1);
}

/* All that counts as sent is there: where devices leave units out, that takes ticks of keepalive. */
static inline bool load_came(const load *l)
{
	for (uint32_t i = 0; i < l->op_count && l->world->left_out; i++) {
		const load_op *op = &l->ops[i];
		const load_side *to = &l->chans[op->chan][!op->side];

		if (op->status != TERN_OK || to->released || to->spoilt ||
		    l->chans[op->chan][op->side].spoilt)
			continue;
		if ((op->kind == LOAD_SEND && !op->arrived) || (op->kind == LOAD_NOTIFY && !op->notified))
			return false;
	}
	return true;
}

static inline bool load_idle(const load *l)
{
	for (uint32_t i = 0; i < l->chan_count; i++)
		if (l->chans[i][0].incoming || l->chans[i][1].incoming)
			return false;
	return l->ops_out == 0 && load_came(l);
}

#endif
