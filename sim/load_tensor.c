/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors that send a tensor again and again, and their receivers.
 *
 *   generation  of what was sent on one opening; the receiver gets them in order, each once, with its bytes, which
 *               do not change until it releases the slot
 *   opening     blocks (tern_tensor_tx_open): the world goes on inside
 *
 * Threads: none. Tests: sim-smoke.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/alloc.h"
#include "sim/device.h"
#include "sim/load.h"

#define SCRIBBLE 0x5c1b

typedef struct tensor {
	tern_tensor_tx *tx;
	tern_tensor_rx *rx;
	uint32_t rx_incarnation;
	uint64_t bytes;
	uint64_t first_id; /* generation g is made from first_id + g */
	uint64_t sent, got;
	sim_op *holder[SIM_SLOTS];
	const void *held; /* polled, not released */
	uint64_t held_id, release_at;
	bool over;
} tensor;

static tensor *tensor_of(const sim_actor *actor)
{
	return actor->state;
}

static bool rx_lives(const sim_actor *actor)
{
	const tensor *t = tensor_of(actor);
	const sim_node *peer = actor->end->peer;

	return t && t->rx && peer->ctx && !peer->dying && peer->incarnation == t->rx_incarnation;
}

/* ---- the receiver ---- */

static void release(sim_actor *actor)
{
	tensor *t = tensor_of(actor);
	sim_world *world = actor->end->world;

	SIM_CHECK(world, "content", sim_differs(t->held, t->bytes, t->held_id) == t->bytes,
		  "actor %u: tensor %llu changed before its slot was released", actor->number,
		  (unsigned long long)t->got);
	/* The same bytes may be under way once more: docs/protocol/tensor.md, "Flag mode", when lanes break. */
	SIM_CHECK(world, "buffer", !sim_dev_changes(world, actor->end->peer, t->held, t->bytes),
		  "actor %u: a device may write into the slot of tensor %llu before it is released",
		  actor->number, (unsigned long long)t->got);
	t->held = NULL;
	tern_tensor_rx_release(t->rx);
	sim_poke(actor->end->peer);
	sim_actor_wake(actor, 1000);
}

/* True: something was done. */
static bool run_rx(sim_actor *actor)
{
	tensor *t = tensor_of(actor);
	sim_world *world = actor->end->world;
	uint64_t now = world->events.now, at;

	if (t->held && t->release_at > now)
		return false;
	if (t->held) {
		release(actor);
		return true;
	}
	if (tern_tensor_rx_poll(t->rx, &t->held) != TERN_OK) {
		t->held = NULL;
		return false;
	}
	t->got++;
	t->held_id = t->first_id + t->got;
	SIM_TRACE(world, actor->number, t->got, "actor %u: tensor %llu came", actor->number,
		  (unsigned long long)t->got);
	SIM_CHECK(world, "order", t->got <= t->sent, "actor %u: tensor %llu came, %llu were sent",
		  actor->number, (unsigned long long)t->got, (unsigned long long)t->sent);
	at = sim_differs(t->held, t->bytes, t->held_id);
	SIM_CHECK(world, "content", at == t->bytes, "actor %u: tensor %llu is another one from byte %llu on",
		  actor->number, (unsigned long long)t->got, (unsigned long long)at);
	t->release_at = now + (sim_chance(&world->work, 50) ? 0 : sim_between(&world->work, 1, 200000));
	return true;
}

bool sim_tensor_run(sim_node *node)
{
	sim_load *load = node->world->load;
	bool did = false;

	for (uint32_t i = 0; i < load->actor_count; i++) {
		sim_actor *actor = &load->actors[i];

		if (actor->kind == SIM_ACTOR_TENSOR && actor->end->peer == node && rx_lives(actor))
			did |= run_rx(actor);
	}
	return did;
}

static void on_look(void *arg, uint64_t value)
{
	sim_actor *actor = arg;

	(void)value;
	if (rx_lives(actor))
		sim_poke(actor->end->peer);
}

static void end_rx(sim_actor *actor)
{
	tensor *t = tensor_of(actor);

	if (rx_lives(actor)) {
		tern_tensor_rx_destroy(t->rx);
		sim_poke(actor->end->peer);
	}
	t->rx = NULL;
	t->held = NULL;
}

void sim_tensor_node_down(sim_node *node)
{
	sim_load *load = node->world->load;

	for (uint32_t i = 0; i < load->actor_count; i++) {
		sim_actor *actor = &load->actors[i];
		tensor *t = tensor_of(actor);

		if (actor->kind != SIM_ACTOR_TENSOR || actor->end->peer != node || !t || !t->rx)
			continue;
		if (t->rx_incarnation == node->incarnation)
			tern_tensor_rx_destroy(t->rx);
		t->rx = NULL;
		t->held = NULL;
		t->over = true;
	}
}

/* ---- the sender ---- */

static bool start_rx(sim_actor *actor, const tern_tensor_params *params)
{
	tensor *t = tensor_of(actor);

	if (tern_tensor_rx_create(actor->end->peer->ctx, params, &t->rx) != TERN_OK) {
		t->rx = NULL;
		return false;
	}
	t->rx_incarnation = actor->end->peer->incarnation;
	sim_poke(actor->end->peer);
	return true;
}

static bool tensor_open(sim_actor *actor)
{
	sim_world *world = actor->end->world;
	sim_node *node = actor->end->node;
	tensor *t = tensor_of(actor);
	tern_tensor_params params = {.dtype = TERN_U8, .shape = {.rank = 1}};
	uint32_t opening = actor->opening, incarnation = node->incarnation;
	char name[32];
	tern_status status;

	if (world->depth || node->inside)
		return false;
	if (!t)
		t = actor->state = sim_alloc(1, sizeof(*t));
	if (!sim_actor_memory(actor, false))
		return false;
	end_rx(actor);
	*t = (tensor){.bytes = sim_load_size(world, actor->slot_bytes),
		      .first_id = ((uint64_t)actor->number << 32 | actor->opening << 16) + (1ull << 60)};
	snprintf(name, sizeof(name), "t%u.%u", actor->number, actor->opening);
	params.name = name;
	params.shape.dims[0] = t->bytes;
	params.slots = (unsigned)sim_between(&world->work, 1, 4);
	/* A credit may be on its way to a sender that closes: where refused access ends a lane, that is no calm. */
	if (!world->calm && tern_link_caps(actor->end->link) & TERN_LINK_CAN_FLAG &&
	    sim_chance(&world->work, 30))
		params.notify = TERN_NOTIFY_FLAG;
	if (!start_rx(actor, &params))
		return false;
	if (actor->opening > 1)
		sim_covered(world, SIM_COVER_TENSOR_REOPEN);
	world->depth++;
	node->inside++;
	status = tern_tensor_tx_open(actor->end->link, &params, 300 * TN_NS_PER_MS, &t->tx);
	node->inside--;
	world->depth--;
	TN_ASSERT(opening == actor->opening && incarnation == node->incarnation);
	SIM_TRACE(world, actor->number, status, "actor %u: tensor opened: %s", actor->number,
		  tern_status_name(status));
	SIM_CHECK(world, "once", sim_status_possible(world, status),
		  "actor %u: a tensor is not opened: %s: %s", actor->number, tern_status_name(status),
		  tern_detail());
	if (status != TERN_OK) {
		t->tx = NULL;
		end_rx(actor);
	}
	return status == TERN_OK;
}

static void tensor_close(sim_actor *actor)
{
	tensor *t = tensor_of(actor);
	bool rx_first = sim_chance(&actor->end->world->work, 50);

	if (rx_first)
		end_rx(actor);
	if (t->tx)
		tern_tensor_tx_close(t->tx);
	t->tx = NULL;
	end_rx(actor);
}

static void on_done(tern_op *base, void *arg)
{
	sim_op *op = arg;
	tensor *t = tensor_of(op->actor);
	uint8_t *mine = sim_actor_mine(op->actor, op->slot);

	(void)base;
	sim_op_judge(op, mine, op->bytes);
	t->holder[op->slot] = NULL;
	sim_fill(mine, op->bytes, SCRIBBLE + op->id);
	if (op->op.status != TERN_OK && op->opening == op->actor->opening)
		t->over = true;
}

static bool tensor_step(sim_actor *actor)
{
	sim_world *world = actor->end->world;
	tensor *t = tensor_of(actor);
	unsigned slot = (unsigned)tn_rand_below(&world->work, SIM_SLOTS);
	tern_status status;
	sim_op *op;

	if (rx_lives(actor))
		sim_at(&world->events, world->events.now + 10 * TN_NS_PER_US, on_look, actor, 0);
	if (t->over || !rx_lives(actor)) {
		actor->link_number--;
		return false;
	}
	status = tern_tensor_tx_ready(t->tx);
	if (status != TERN_OK && status != TERN_AGAIN)
		t->over = true;
	if (status != TERN_OK || t->holder[slot])
		return false;
	op = sim_op_new(actor, 0, t->bytes, on_done);
	op->op.timeout_ns = 0;
	op->slot = slot;
	op->number = t->sent + 1;
	sim_fill(sim_actor_mine(actor, slot), t->bytes, t->first_id + op->number);
	t->holder[slot] = op;
	t->sent++;
	status = tern_tensor_send(t->tx, sim_actor_mine(actor, slot), &op->op);
	if (!sim_op_submitted(op, status)) {
		t->sent--;
		t->holder[slot] = NULL;
		return false;
	}
	return true;
}

/* All that was sent came, or its path is gone. */
static bool tensor_quiet(sim_actor *actor)
{
	tensor *t = tensor_of(actor);
	tern_status status;

	if (!t || !actor->open || t->over || !rx_lives(actor))
		return true;
	status = tern_tensor_tx_ready(t->tx);
	if (status != TERN_OK && status != TERN_AGAIN)
		return true;
	sim_poke(actor->end->peer);
	return t->got == t->sent && !t->held;
}

static void tensor_free(sim_actor *actor)
{
	free(actor->state);
}

const sim_actor_ops sim_tensor_ops = {.open = tensor_open,
				      .step = tensor_step,
				      .close = tensor_close,
				      .quiet = tensor_quiet,
				      .free = tensor_free};
