/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors on a channel: messages (received by callback or by tern_recv), puts of all kinds, gets.
 *
 *   face     what the other side knows of one opening of the channel: its handle and how far it has come
 *   number   of a message or notification within its opening; the next to come is found among the ops that were
 *            sent: its length and its bytes say which it is
 *
 *   numbers of a face only grow; an op that was passed over did not end with TERN_OK
 *   after a put ended with TERN_OK its slot at the peer holds its bytes until the next put into that slot
 *   a source is scribbled over at its completion, a destination filled with other bytes that must stay
 *
 * Threads: none. Tests: sim-smoke.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "mem/mem.h"
#include "sim/alloc.h"
#include "sim/device.h"
#include "sim/load.h"

enum { MSG, PUT, NOTIFY, FLAG, GET };

#define READ_SLOT  SIM_SLOTS       /* two slots to read from */
#define FLAG_SLOT  (SIM_SLOTS + 2) /* words */
#define CANARY     0xca9a
#define SCRIBBLE   0x5c1b
#define READ_BYTES 0x4ead

typedef struct face {
	struct face *next;
	sim_actor *actor;
	uint32_t opening;
	uint32_t incarnation;
	tern_channel *channel;   /* NULL: not open, or over */
	int64_t message, notify; /* last numbers that came */
	bool by_recv, recv_posted, over;
	uint32_t lazy;
	uint8_t *buf;
	tern_op recv;
} face;

typedef struct chan {
	tern_channel *channel;
	bool over; /* on_closed ran */
	tern_key bad_key;
	bool has_bad_key;
	int64_t messages, notifies; /* numbers given */
	sim_op *holder[SIM_SLOTS];  /* in flight */
	struct {
		bool known, canary;
		uint64_t id, bytes;
	} left[SIM_SLOTS]; /* what a finished op left: in the peer's slot, and in ours */
	face *faces;       /* latest first */
	uint32_t flags_in_flight;
} chan;

static chan *chan_of(const sim_actor *actor)
{
	return actor->state;
}

/* ---- the peer's side ---- */

/* The first op after `last` with these bytes that is not known to have failed. NULL: none. */
static sim_op *find_next(const face *f, unsigned kind, int64_t last, const void *bytes, uint64_t n)
{
	const sim_load *load = f->actor->end->world->load;

	for (uint32_t i = 0; i < load->op_count; i++) {
		sim_op *op = load->ops[i];

		if (op->actor == f->actor && op->opening == f->opening && op->kind == kind &&
		    (int64_t)op->number > last && !op->seen && op->bytes == n &&
		    sim_differs(bytes, n, op->id) == n)
			return op;
	}
	return NULL;
}

/* Ops up to number were passed over: those that ended well should have come. */
static void pass_over(const face *f, unsigned kind, int64_t last, uint64_t number)
{
	sim_world *world = f->actor->end->world;

	for (uint32_t i = 0; i < world->load->op_count; i++) {
		sim_op *op = world->load->ops[i];

		if (op->actor != f->actor || op->opening != f->opening || op->kind != kind ||
		    (int64_t)op->number <= last || op->number >= number || op->seen)
			continue;
		op->skipped = true;
		SIM_CHECK(world, "order", op->in_flight || op->op.status != TERN_OK,
			  "actor %u: number %llu came, but %llu did not", f->actor->number,
			  (unsigned long long)number, (unsigned long long)op->number);
	}
}

static void arrived(face *f, const void *msg, uint64_t bytes)
{
	sim_world *world = f->actor->end->world;
	sim_op *op = find_next(f, MSG, f->message, msg, bytes);

	SIM_TRACE(world, f->actor->number, bytes, "actor %u: message %lld of %llu bytes came",
		  f->actor->number, op ? (long long)op->number : -1ll, (unsigned long long)bytes);
	if (!op) {
		sim_violation(world, "order",
			      "actor %u: a message of %llu bytes came that is not one of those after %lld",
			      f->actor->number, (unsigned long long)bytes, (long long)f->message);
		return;
	}
	pass_over(f, MSG, f->message, op->number);
	f->message = (int64_t)op->number;
	op->seen = true;
	sim_actor_wake(f->actor, 1000);
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	(void)channel;
	arrived(arg, msg, bytes);
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	face *f = arg;
	sim_actor *actor = f->actor;
	sim_world *world = actor->end->world;
	sim_op *op = value < world->load->op_count ? world->load->ops[value] : NULL;

	(void)channel;
	SIM_TRACE(world, actor->number, value, "actor %u: notification of op %u came", actor->number, value);
	if (!op || op->actor != actor || op->kind != NOTIFY || op->opening != f->opening) {
		sim_violation(world, "order", "actor %u: notified of op %u, which it never sent",
			      actor->number, value);
		return;
	}
	SIM_CHECK(world, "order", !op->seen && (int64_t)op->number > f->notify,
		  "actor %u: notification %llu came after %lld", actor->number,
		  (unsigned long long)op->number, (long long)f->notify);
	SIM_CHECK(world, "content", bytes == op->bytes, "actor %u: notified of %llu bytes, %llu were sent",
		  actor->number, (unsigned long long)bytes, (unsigned long long)op->bytes);
	pass_over(f, NOTIFY, f->notify, op->number);
	f->notify = (int64_t)op->number;
	op->seen = true;
	/* In flight: its slot has not been given to another. */
	if (op->in_flight && actor->opening == op->opening && sim_actor_theirs_live(actor))
		SIM_CHECK(world, "content",
			  sim_differs(sim_actor_theirs(actor, op->slot), op->bytes, op->id) == op->bytes,
			  "actor %u: notified of op %u before its bytes are there", actor->number, value);
	sim_actor_wake(actor, 1000);
}

static void on_face_closed(tern_channel *channel, tern_status status, void *arg)
{
	face *f = arg;

	(void)status;
	f->over = true;
	f->channel = channel;
}

static void on_recv(tern_op *op, void *arg)
{
	face *f = arg;

	f->recv_posted = false;
	if (op->status == TERN_OK)
		arrived(f, f->buf, op->length);
	memset(f->buf, 0xdd, TN_MIN(op->length, f->actor->slot_bytes));
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	face *f = arg;

	if (f->channel || f->over)
		return TERN_E_EXISTS;
	f->channel = channel;
	*params = (tern_channel_params){.on_message = f->by_recv ? NULL : on_message,
					.on_notify = on_notify,
					.on_closed = on_face_closed,
					.arg = f,
					.message_bytes_max = f->actor->slot_bytes};
	return TERN_OK;
}

static face *face_new(sim_actor *actor, const char *service)
{
	sim_world *world = actor->end->world;
	face *f = sim_alloc(1, sizeof(*f));
	chan *c = chan_of(actor);

	f->actor = actor;
	f->opening = actor->opening;
	f->incarnation = actor->end->peer->incarnation;
	f->message = f->notify = -1;
	f->by_recv = sim_chance(&world->work, 30);
	f->lazy = sim_chance(&world->work, 20) ? 80 : 0;
	if (actor->flood) {
		f->by_recv = true;
		f->lazy = 80;
	}
	f->buf = sim_alloc(1, actor->slot_bytes);
	tern_op_init(&f->recv, on_recv, f);
	f->next = c->faces;
	c->faces = f;
	if (tern_ctx_listen(actor->end->peer->ctx, service, on_open, f) != TERN_OK)
		f->over = true;
	return f;
}

/* The peer's process of this face is the one that runs now. */
static bool face_lives(const face *f)
{
	const sim_node *node = f->actor->end->peer;

	return f->channel && node->ctx && !node->dying && node->incarnation == f->incarnation;
}

static void run_face(face *f)
{
	sim_world *world = f->actor->end->world;

	if (!face_lives(f))
		return;
	if (f->over) {
		tern_channel_close(f->channel);
		f->channel = NULL;
		return;
	}
	if (!f->by_recv || f->recv_posted || (f->actor->budget > 0 && sim_chance(&world->work, f->lazy)))
		return;
	f->recv_posted = true;
	if (tern_recv(f->channel, f->buf, f->actor->slot_bytes, &f->recv) != TERN_OK)
		f->recv_posted = false;
}

/* Whoever polls memory for a flag finds the bytes before it. */
static void look_at_flags(sim_actor *actor)
{
	chan *c = chan_of(actor);
	sim_world *world = actor->end->world;

	if (!actor->open || !sim_actor_theirs_live(actor))
		return;
	for (unsigned slot = 0; slot < SIM_SLOTS; slot++) {
		const sim_op *op = c->holder[slot];
		uint64_t word;

		if (!op || op->kind != FLAG)
			continue;
		memcpy(&word, sim_actor_theirs(actor, FLAG_SLOT) + 8 * slot, 8);
		if (word == op->id + 1)
			SIM_CHECK(world, "content",
				  sim_differs(sim_actor_theirs(actor, slot), op->bytes, op->id) == op->bytes,
				  "actor %u: the flag of op %llu came before its bytes", actor->number,
				  (unsigned long long)op->id);
	}
}

void sim_chan_run(sim_node *node)
{
	sim_load *load = node->world->load;

	for (uint32_t i = 0; i < load->actor_count; i++) {
		sim_actor *actor = &load->actors[i];

		if (actor->kind != SIM_ACTOR_CHAN || actor->end->peer != node || !actor->state)
			continue;
		for (face *f = chan_of(actor)->faces; f; f = f->next)
			run_face(f);
		if (chan_of(actor)->flags_in_flight)
			look_at_flags(actor);
	}
}

/* ---- this side ---- */

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	sim_actor *actor = arg;

	(void)channel;
	SIM_TRACE(actor->end->world, actor->number, status, "actor %u: its channel ended: %s", actor->number,
		  tern_status_name(status));
	chan_of(actor)->over = true;
}

static void make_bad_key(sim_actor *actor)
{
	chan *c = chan_of(actor);
	tern_mem *mem = tern_ctx_mem(actor->end->peer->ctx);

	c->has_bad_key = tern_mem_export(mem, actor->theirs, actor->slot_bytes, TERN_ACCESS_WRITE,
					 &c->bad_key) == TERN_OK &&
			 tern_mem_revoke(mem, &c->bad_key) == TERN_OK;
}

static bool chan_open(sim_actor *actor)
{
	tern_channel_params params = {.on_closed = on_closed, .arg = actor};
	chan *c = chan_of(actor);
	char service[32];

	if (!c)
		c = actor->state = sim_alloc(1, sizeof(*c));
	if (!sim_actor_memory(actor, false))
		return false;
	for (unsigned i = 0; i < 2; i++)
		sim_fill(sim_actor_theirs(actor, READ_SLOT + i), actor->slot_bytes,
			 READ_BYTES + actor->number);
	make_bad_key(actor);
	c->over = false;
	c->messages = c->notifies = 0;
	c->flags_in_flight = 0;
	memset(c->left, 0, sizeof(c->left));
	snprintf(service, sizeof(service), "c%u.%u", actor->number, actor->opening);
	face_new(actor, service);
	return tern_channel_open(actor->end->link, service, &params, &c->channel) == TERN_OK;
}

static void chan_close(sim_actor *actor)
{
	chan *c = chan_of(actor);

	if (c->channel)
		tern_channel_close(c->channel);
	c->channel = NULL;
}

/* What finished ops left in the slot is still there. */
static void check_slot(sim_actor *actor, unsigned slot)
{
	chan *c = chan_of(actor);
	sim_world *world = actor->end->world;
	uint64_t id = c->left[slot].id, n = c->left[slot].bytes, at;

	if (c->left[slot].known && sim_actor_theirs_live(actor)) {
		at = sim_differs(sim_actor_theirs(actor, slot), n, id);
		SIM_CHECK(world, "content", at == n,
			  "actor %u: byte %llu of slot %u changed after op %llu had ended", actor->number,
			  (unsigned long long)at, slot, (unsigned long long)id);
	}
	if (c->left[slot].canary) {
		at = sim_differs(sim_actor_mine(actor, slot), n, CANARY);
		SIM_CHECK(world, "content", at == n,
			  "actor %u: byte %llu of the destination in slot %u changed after its get had ended",
			  actor->number, (unsigned long long)at, slot);
	}
	c->left[slot].known = c->left[slot].canary = false;
}

/* The peer gives that link up, which was a client's own. */
static bool closes(const face *f)
{
	const tern_link *link = tern_channel_link(f->channel);

	return link->gone || tn_link_get_state(link->m) >= TN_LINK_CLOSING;
}

static void judge_ok(sim_op *op)
{
	sim_actor *actor = op->actor;
	chan *c = chan_of(actor);
	sim_world *world = actor->end->world;
	unsigned slot = op->slot;

	if (op->kind == GET) {
		SIM_CHECK(world, "content",
			  sim_differs(sim_actor_mine(actor, slot), op->bytes, READ_BYTES + actor->number) ==
				  op->bytes,
			  "op %llu: a get brought other bytes", (unsigned long long)op->id);
		return;
	}
	SIM_CHECK(world, "order", !op->skipped, "op %llu ended well, but others came in its place",
		  (unsigned long long)op->id);
	if (op->kind == MSG) {
		/* One that closes by itself takes what comes and drops it. */
		SIM_CHECK(world, "order",
			  !op->remote || op->seen || c->faces->by_recv || c->faces->over ||
				  !face_lives(c->faces) || actor->end->peer->ending || closes(c->faces),
			  "op %llu ended at the REMOTE level, but the peer has not got it",
			  (unsigned long long)op->id);
		return;
	}
	SIM_CHECK(world, "content", !op->bad_key, "op %llu with a revoked key ended well",
		  (unsigned long long)op->id);
	if (op->op.flags & TERN_OP_LOCAL || !sim_actor_theirs_live(actor) || op->bad_key)
		return;
	SIM_CHECK(world, "content",
		  sim_differs(sim_actor_theirs(actor, slot), op->bytes, op->id) == op->bytes,
		  "op %llu (kind %u) ended well, but its bytes are not there", (unsigned long long)op->id,
		  op->kind);
	SIM_CHECK(world, "buffer",
		  !sim_dev_reaches(world, actor->end->peer, sim_actor_theirs(actor, slot), op->bytes),
		  "op %llu (kind %u) ended well, but a device may still write its target",
		  (unsigned long long)op->id, op->kind);
	c->left[slot].known = true;
}

static void on_done(tern_op *base, void *arg)
{
	sim_op *op = arg;
	sim_actor *actor = op->actor;
	chan *c = chan_of(actor);
	uint8_t *mine = sim_actor_mine(actor, op->slot);

	(void)base;
	sim_op_judge(op, mine, op->bytes);
	c->holder[op->slot] = NULL;
	if (op->kind == FLAG)
		c->flags_in_flight--;
	c->left[op->slot].id = op->id;
	c->left[op->slot].bytes = op->bytes;
	if (op->op.status == TERN_OK && op->opening == actor->opening)
		judge_ok(op);
	sim_fill(mine, op->bytes, op->kind == GET ? CANARY : SCRIBBLE + op->id);
	c->left[op->slot].canary = op->kind == GET;
}

static unsigned draw_kind(sim_actor *actor)
{
	unsigned dice = (unsigned)tn_rand_below(&actor->end->world->work, 100);
	bool flags = tern_link_caps(actor->end->link) & TERN_LINK_CAN_FLAG;

	return dice < 45 ? MSG : dice < 60 ? PUT : dice < 78 ? NOTIFY : dice < 86 && flags ? FLAG : GET;
}

static tern_status submit(sim_actor *actor, sim_op *op)
{
	chan *c = chan_of(actor);
	uint8_t *mine = sim_actor_mine(actor, op->slot);
	const tern_key *key = op->bad_key ? &c->bad_key : &actor->key;
	uint64_t at = op->bad_key ? 0 : op->slot * actor->slot_bytes;

	switch (op->kind) {
	case MSG:
		return tern_send(c->channel, mine, op->bytes, &op->op);
	case PUT:
		return tern_put(c->channel, mine, op->bytes, key, at, &op->op);
	case NOTIFY:
		return tern_put_notify(c->channel, mine, op->bytes, key, at, (uint32_t)op->id, &op->op);
	case FLAG:
		return tern_put_flag(c->channel, mine, op->bytes, key, at, op->id + 1, &actor->key,
				     FLAG_SLOT * actor->slot_bytes + 8 * op->slot, &op->op);
	default:
		return tern_get(c->channel, mine, op->bytes, key,
				(READ_SLOT + op->id % 2) * actor->slot_bytes, &op->op);
	}
}

static void set_flags(sim_actor *actor, sim_op *op)
{
	sim_world *world = actor->end->world;
	const sim_load *load = world->load;

	if (op->kind == MSG && sim_chance(&world->work, load->remote)) {
		op->remote = true;
		op->op.flags |= TERN_OP_REMOTE;
	}
	if ((op->kind == PUT || op->kind == NOTIFY) && sim_chance(&world->work, load->local))
		op->op.flags |= TERN_OP_LOCAL;
	op->bad_key = (op->kind == PUT || op->kind == NOTIFY) && chan_of(actor)->has_bad_key && op->bytes &&
		      !(op->op.flags & TERN_OP_LOCAL) && sim_chance(&world->work, load->bad_keys);
}

static bool chan_step(sim_actor *actor)
{
	sim_world *world = actor->end->world;
	chan *c = chan_of(actor);
	unsigned slot = (unsigned)tn_rand_below(&world->work, SIM_SLOTS), kind;
	tern_status status;
	uint64_t bytes;
	sim_op *op;

	if (actor->flood)
		sim_poke(actor->end->peer);
	if (c->over) { /* begin anew on the same link, or on the next */
		actor->link_number--;
		return false;
	}
	if (c->holder[slot])
		return false;
	check_slot(actor, slot);
	kind = actor->flood ? MSG : draw_kind(actor);
	bytes = actor->flood ? actor->slot_bytes : sim_load_size(world, actor->slot_bytes);
	if (kind == MSG && bytes < 8) /* an empty one that failed can't be told from the next */
		bytes = world->load->deadlines || world->load->cancels ? 8 : 0;
	op = sim_op_new(actor, kind, bytes, on_done);
	op->slot = slot;
	op->channel = c->channel;
	op->number = (uint64_t)(kind == MSG ? c->messages : kind == NOTIFY ? c->notifies : 0);
	set_flags(actor, op);
	sim_fill(sim_actor_mine(actor, slot), op->bytes, kind == GET ? CANARY + 1 : op->id);
	if (kind == FLAG && sim_actor_theirs_live(actor))
		memset(sim_actor_theirs(actor, FLAG_SLOT) + 8 * slot, 0, 8);
	c->holder[slot] = op;
	c->flags_in_flight += kind == FLAG;
	/* It may be seen, even completed, inside the call. */
	op->in_flight = true;
	status = submit(actor, op);
	if (!sim_op_submitted(op, status)) {
		c->holder[slot] = NULL;
		c->flags_in_flight -= kind == FLAG;
		return false;
	}
	c->messages += kind == MSG;
	c->notifies += kind == NOTIFY;
	return true;
}

/* What ended well has come, if there was still somebody for it to come to. */
static bool chan_quiet(sim_actor *actor)
{
	const chan *c = chan_of(actor);
	const sim_load *load = actor->end->world->load;

	sim_poke(actor->end->peer);
	if (!c || !actor->open || c->over || !c->faces || !face_lives(c->faces) || c->faces->over)
		return true;
	for (uint32_t i = 0; i < load->op_count; i++) {
		const sim_op *op = load->ops[i];

		if (op->actor == actor && op->opening == actor->opening && !op->seen &&
		    (op->kind == MSG || op->kind == NOTIFY) && op->op.status == TERN_OK)
			return false;
	}
	for (unsigned slot = 0; slot < SIM_SLOTS; slot++)
		check_slot(actor, slot);
	return true;
}

static void chan_free(sim_actor *actor)
{
	chan *c = chan_of(actor);

	while (c && c->faces) {
		face *f = c->faces;

		c->faces = f->next;
		free(f->buf);
		free(f);
	}
	free(c);
}

static void chan_cancel(sim_actor *actor, sim_op *op)
{
	(void)actor;
	tern_cancel(op->channel, &op->op);
}

const sim_actor_ops sim_chan_ops = {.cancel = chan_cancel,
				    .open = chan_open,
				    .step = chan_step,
				    .close = chan_close,
				    .quiet = chan_quiet,
				    .free = chan_free};
