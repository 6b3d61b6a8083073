/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends and links of the workload, and what its actors share. See load.h.
 * Threads: none. Tests: sim-smoke.
 */
#include "sim/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "mem/mem.h"
#include "sim/alloc.h"
#include "sim/device.h"

#define ACTORS_MAX   64
#define PAUSE_MIN_NS (200 * TN_NS_PER_US)
#define PAUSE_MAX_NS (20 * TN_NS_PER_MS)
/* One class for all: each has extents of its own, and making those is most of what a run costs. */
#define ACCESS      (TERN_ACCESS_READ | TERN_ACCESS_WRITE)
#define THEIR_SLOTS (SIM_SLOTS + 3) /* for puts; two to read from; one for flag words */

static const sim_actor_ops *const ops_of[SIM_ACTOR_KINDS] = {&sim_chan_ops, &sim_rpc_ops, &sim_tensor_ops};

/* ---- links ---- */

static void on_dial(void *arg, uint64_t value);

static void dial_later(sim_end *end)
{
	sim_world *world = end->world;

	if (!end->dials || end->link || !end->node->ctx || end->dial_event)
		return;
	end->pause_ns = TN_MIN(TN_MAX(end->pause_ns * 2, PAUSE_MIN_NS), PAUSE_MAX_NS);
	end->dial_event =
		sim_at(&world->events, world->events.now + sim_between(&world->work, 1, end->pause_ns),
		       on_dial, end, 0);
}

typedef struct release {
	sim_node *node;
	uint32_t incarnation;
	tern_link *link;
} release;

static void on_release(void *arg, uint64_t value)
{
	release *r = arg;
	sim_node *node = r->node;

	(void)value;
	if (node->inside && node->incarnation == r->incarnation) { /* a call that uses it is on the stack */
		sim_at(&node->world->events, node->world->events.now + TN_NS_PER_MS, on_release, r, 0);
		return;
	}
	if (node->ctx && !node->dying && node->incarnation == r->incarnation) {
		tern_link_release(r->link);
		sim_poke(node);
	}
	free(r);
}

/* A handle goes when nobody can be using it. */
static void release_later(sim_node *node, tern_link *link)
{
	release *r = sim_alloc(1, sizeof(*r));
	sim_events *events = &node->world->events;

	*r = (release){.node = node, .incarnation = node->incarnation, .link = link};
	sim_at(events, events->now + TN_NS_PER_US, on_release, r, 0);
}

static void lose_link(sim_end *end)
{
	release_later(end->node, end->link);
	end->link = NULL;
	end->up = false;
	end->link_number++;
}

static void forget_came(sim_end *end, const tern_link *link)
{
	for (unsigned i = 0; i < end->came_count; i++) {
		if (end->came[i] == link) {
			end->came[i] = end->came[--end->came_count];
			return;
		}
	}
}

static void on_down(tern_link *link, tern_status status, const char *detail, void *arg)
{
	sim_node *node = arg;
	sim_world *world = node->world;

	SIM_TRACE(world, node->index, status, "%s: a link is down: %s (%s)", node->name,
		  tern_status_name(status), detail);
	sim_covered(world, SIM_COVER_LINK_DOWN);
	if (!sim_status_possible(world, status) && status != TERN_E_EXISTS)
		sim_violation(world, "once", "%s: a link ended with %s: %s", node->name,
			      tern_status_name(status), detail);
	for (unsigned i = 0; i < world->node_count; i++) {
		sim_end *end = &world->load->ends[node->index][i];

		forget_came(end, link);
		if (end->link != link)
			continue;
		lose_link(end);
		if (end->came_count && !end->dials)
			end->link = end->came[0];
		dial_later(end);
		return;
	}
	release_later(node, link); /* it was another one's */
}

static void on_dial(void *arg, uint64_t value)
{
	sim_end *end = arg;
	tern_connect_params params = {.retry = 1, .on_down = on_down, .arg = end->node};

	(void)value;
	end->dial_event = 0;
	if (end->link || !end->node->ctx || end->node->dying || end->node->ending)
		return;
	if (tern_link_connect(end->node->ctx, end->peer->address, &params, &end->link) != TERN_OK) {
		end->link = NULL;
		dial_later(end);
	}
	sim_poke(end->node);
}

static void on_link(tern_link *link, void *arg)
{
	sim_node *node = arg;
	sim_world *world = node->world;
	const char *name = tern_link_peer_name(link);
	unsigned peer = (unsigned)(name[1] - '0');
	sim_end *end;

	if (name[0] != 'n' || peer >= world->node_count) {
		sim_violation(world, "content", "%s: a link from '%s'", node->name, name);
		return;
	}
	end = &world->load->ends[node->index][peer];
	if (end->dials)
		return;
	if (end->came_count < SIM_CAME_MAX)
		end->came[end->came_count++] = link;
	if (end->link && end->up)
		return;
	end->link_number += end->link != NULL;
	end->link = link;
	end->up = false;
}

static void watch_links(sim_node *node)
{
	sim_world *world = node->world;

	for (unsigned i = 0; i < world->node_count; i++) {
		sim_end *end = &world->load->ends[node->index][i];

		if (!end->link || end->up || tern_link_get_state(end->link) != TERN_LINK_UP)
			continue;
		end->up = true;
		end->pause_ns = 0;
		SIM_TRACE(world, node->index * 8 + i, 77, "%s: link to n%u is up over %s", node->name, i,
			  tern_link_transport(end->link));
		if (strcmp(tern_link_transport(end->link), "simip") == 0)
			sim_covered(world, SIM_COVER_FALLBACK);
		for (uint32_t k = 0; k < world->load->actor_count; k++)
			if (world->load->actors[k].end == end)
				sim_actor_wake(&world->load->actors[k], 1000);
	}
}

/* ---- actors ---- */

static void on_step(void *arg, uint64_t value);

void sim_actor_wake(sim_actor *actor, uint64_t delay_ns)
{
	sim_events *events = &actor->end->world->events;
	uint64_t at = events->now + delay_ns;

	if (actor->done || (actor->step_event && actor->step_at <= at))
		return;
	sim_cancel(events, actor->step_event);
	actor->step_at = at;
	actor->step_event = sim_at(events, at, on_step, actor, 0);
}

static void close_actor(sim_actor *actor)
{
	if (!actor->open)
		return;
	actor->open = actor->outlives = false;
	ops_of[actor->kind]->close(actor);
	sim_poke(actor->end->node);
	if (actor->end->peer->ctx)
		sim_poke(actor->end->peer);
}

/* Open on the link that is there now; what was of another is closed first. False: not now. */
static bool ready(sim_actor *actor)
{
	sim_end *end = actor->end;
	bool same = actor->outlives || (end->link && end->up && actor->link_number == end->link_number);

	if (actor->open && !same)
		close_actor(actor);
	if (actor->open)
		return true;
	if (actor->in_flight || !end->link || !end->up || !end->peer->ctx || end->peer->dying ||
	    end->peer->ending)
		return false;
	sim_actor_memory_free(actor);
	actor->link_number = end->link_number;
	actor->gave_up = false;
	actor->opening++;
	if (!ops_of[actor->kind]->open(actor)) {
		sim_actor_memory_free(actor);
		return false;
	}
	actor->open = true;
	return true;
}

static void finish_actor(sim_actor *actor)
{
	sim_world *world = actor->end->world;

	actor->done = true;
	world->load->actors_left--;
	SIM_TRACE(world, actor->number, 99, "actor %u is done", actor->number);
	if (sim_chance(&world->work, 30))
		close_actor(actor);
}

static void on_step(void *arg, uint64_t value)
{
	sim_actor *actor = arg;
	sim_world *world = actor->end->world;
	sim_node *node = actor->end->node;
	bool went = false, quiet;

	(void)value;
	actor->step_event = 0;
	if (actor->done || !node->ctx || node->dying || node->ending)
		return;
	if (node->inside) { /* one of its threads waits: this is the only one */
		sim_actor_wake(actor, 500 * TN_NS_PER_US);
		return;
	}
	if (ready(actor)) {
		unsigned burst = (unsigned)sim_between(&world->work, 1, 4);

		while (burst-- > 0 && actor->budget > 0 && actor->open && ops_of[actor->kind]->step(actor))
			went = true;
		sim_poke(node);
	}
	if (!node->ctx) /* it died while this waited */
		return;
	quiet = actor->budget == 0 && actor->in_flight == 0 && ops_of[actor->kind]->quiet(actor);
	if (quiet) {
		finish_actor(actor);
		return;
	}
	actor->pause_ns = went ? 0 : TN_MIN(TN_MAX(2 * actor->pause_ns, 20 * TN_NS_PER_US), PAUSE_MAX_NS);
	sim_actor_wake(actor, went ? sim_between(&world->work, 500, actor->pace_ns) : actor->pause_ns);
}

/* ---- memory ---- */

bool sim_actor_memory(sim_actor *actor, bool exported)
{
	sim_end *end = actor->end;
	sim_world *world = end->world;
	uint64_t mine = SIM_SLOTS * actor->slot_bytes, theirs = THEIR_SLOTS * actor->slot_bytes;
	void *p;

	actor->mine_foreign = !exported && sim_chance(&world->work, world->load->foreign);
	if (actor->mine_foreign)
		actor->mine = sim_alloc(1, mine);
	else if (tern_mem_alloc(tern_ctx_mem(end->node->ctx), mine, 64, ACCESS, TERN_MEM_HOST, &p) == TERN_OK)
		actor->mine = p;
	else
		return false;
	actor->my_incarnation = end->node->incarnation;
	if (actor->kind != SIM_ACTOR_CHAN)
		return true;
	if (tern_mem_alloc(tern_ctx_mem(end->peer->ctx), theirs, 64, ACCESS, TERN_MEM_HOST, &p) != TERN_OK)
		return false;
	actor->theirs = p;
	actor->their_incarnation = end->peer->incarnation;
	memset(p, 0, theirs);
	return tern_mem_export(tern_ctx_mem(end->peer->ctx), p, theirs, ACCESS, &actor->key) == TERN_OK;
}

bool sim_actor_theirs_live(const sim_actor *actor)
{
	const sim_node *peer = actor->end->peer;

	return actor->theirs && peer->ctx && peer->incarnation == actor->their_incarnation;
}

static bool mine_live(const sim_actor *actor)
{
	const sim_node *node = actor->end->node;

	return actor->mine &&
	       (actor->mine_foreign || (node->ctx && node->incarnation == actor->my_incarnation));
}

void sim_actor_memory_free(sim_actor *actor)
{
	if (actor->mine_foreign)
		free(actor->mine);
	else if (mine_live(actor))
		tern_mem_free(tern_ctx_mem(actor->end->node->ctx), actor->mine);
	if (sim_actor_theirs_live(actor))
		tern_mem_free(tern_ctx_mem(actor->end->peer->ctx), actor->theirs);
	actor->mine = actor->theirs = NULL;
	actor->mine_foreign = false;
}

uint8_t *sim_actor_mine(const sim_actor *actor, unsigned slot)
{
	return actor->mine + slot * actor->slot_bytes;
}

uint8_t *sim_actor_theirs(const sim_actor *actor, unsigned slot)
{
	return actor->theirs + slot * actor->slot_bytes;
}

/* ---- operations ---- */

sim_op *sim_op_new(sim_actor *actor, unsigned kind, uint64_t bytes, tern_done_fn done)
{
	sim_world *world = actor->end->world;
	sim_load *load = world->load;
	sim_op *op = sim_alloc(1, sizeof(*op));

	load->ops = sim_grow(load->ops, load->op_count, &load->op_room, sizeof(*load->ops));
	load->ops[load->op_count] = op;
	op->id = load->op_count++;
	op->actor = actor;
	op->kind = kind;
	op->bytes = bytes;
	op->opening = actor->opening;
	tern_op_init(&op->op, done, op);
	if (sim_chance(&world->work, load->deadlines))
		op->op.timeout_ns = sim_between(&world->work, 1, 3000) * TN_NS_PER_US;
	return op;
}

static void on_cancel(void *arg, uint64_t value)
{
	sim_op *op = arg;
	sim_node *node = op->actor->end->node;

	(void)value;
	if (!op->in_flight || !op->actor->open || op->opening != op->actor->opening || !node->ctx ||
	    node->dying)
		return;
	op->cancelled = true;
	ops_of[op->actor->kind]->cancel(op->actor, op);
	sim_poke(node);
}

bool sim_op_submitted(sim_op *op, tern_status status)
{
	sim_world *world = op->actor->end->world;

	SIM_TRACE(world, op->id, status, "actor %u op %llu: kind %u, %llu bytes, slot %u, number %llu: %s",
		  op->actor->number, (unsigned long long)op->id, op->kind, (unsigned long long)op->bytes,
		  op->slot, (unsigned long long)op->number, tern_status_name(status));
	if (status != TERN_OK) {
		bool known = status == TERN_AGAIN || status == TERN_E_UNSUPPORTED;

		SIM_CHECK(world, "once", known || sim_status_possible(world, status),
			  "op %llu was refused with %s: %s", (unsigned long long)op->id,
			  tern_status_name(status), tern_detail());
		TN_ASSERT(op->id + 1 == world->load->op_count);
		world->load->op_count--;
		free(op);
		return false;
	}
	op->in_flight = true;
	op->actor->in_flight++;
	op->actor->budget--;
	world->result->ops++;
	if (ops_of[op->actor->kind]->cancel && sim_chance(&world->work, world->load->cancels))
		sim_at(&world->events, world->events.now + sim_between(&world->work, 0, 200000), on_cancel,
		       op, 0);
	return true;
}

bool sim_status_possible(sim_world *world, tern_status status)
{
	switch (status) {
	case TERN_OK:
		return true;
	case TERN_E_PROTOCOL:
	case TERN_E_INTERNAL:
	case TERN_E_CORRUPT:
	case TERN_E_AUTH:
	case TERN_E_COOKIE:
	case TERN_E_VERSION:
	case TERN_E_INVALID:
	case TERN_E_BOUNDS:
	case TERN_E_ACCESS:
		return false;
	default:
		return !world->calm;
	}
}

static void cover(sim_world *world, tern_status status)
{
	if (status == TERN_E_INDETERMINATE)
		sim_covered(world, SIM_COVER_INDETERMINATE);
	if (status == TERN_E_DEADLINE)
		sim_covered(world, SIM_COVER_DEADLINE);
	if (status == TERN_E_CANCELED)
		sim_covered(world, SIM_COVER_CANCELED);
}

void sim_op_judge(sim_op *op, const void *buf, uint64_t bytes)
{
	sim_world *world = op->actor->end->world;
	tern_status status = op->op.status;
	bool possible = sim_status_possible(world, status);

	SIM_TRACE(world, op->id, status + 1000, "actor %u op %llu ends: %s", op->actor->number,
		  (unsigned long long)op->id, tern_status_name(status));
	SIM_CHECK(world, "once", op->in_flight, "op %llu completes though it is not in flight",
		  (unsigned long long)op->id);
	if (!op->in_flight)
		return;
	op->in_flight = false;
	op->actor->in_flight--;
	if (status == TERN_E_CANCELED)
		possible = op->cancelled;
	else if (status == TERN_E_FLUSHED)
		possible = possible || !op->actor->open || op->actor->gave_up;
	else if (status == TERN_E_DEADLINE)
		possible = possible || op->op.timeout_ns;
	else if (status == TERN_E_STALE_KEY)
		possible = possible || op->bad_key;
	SIM_CHECK(world, "once", possible, "op %llu (kind %u) ended with %s: %s", (unsigned long long)op->id,
		  op->kind, tern_status_name(status), tern_detail());
	cover(world, status);
	SIM_CHECK(world, "buffer", !sim_dev_uses(world, buf, bytes),
		  "op %llu (kind %u) ended with %s while a device uses its buffer",
		  (unsigned long long)op->id, op->kind, tern_status_name(status));
	sim_actor_wake(op->actor, sim_between(&world->work, 100, 5000));
}

uint64_t sim_load_size(sim_world *world, uint64_t most)
{
	tn_rand *r = &world->work;
	unsigned dice = (unsigned)tn_rand_below(r, 100);

	if (dice < 6)
		return 0;
	if (dice < 45)
		return sim_between(r, 1, 64);
	if (dice < 75)
		return sim_between(r, 65, TN_MIN(most, 2048));
	return sim_between(r, 1, most);
}

/* ---- the whole ---- */

static void plan_actor(sim_world *world, sim_end *end, sim_actor_kind kind)
{
	sim_load *load = world->load;
	sim_actor *actor;

	if (load->actor_count == ACTORS_MAX)
		return;
	actor = &load->actors[load->actor_count];
	actor->number = load->actor_count++;
	actor->end = end;
	actor->kind = kind;
	actor->budget = (uint32_t)sim_between(&world->work, 4, kind == SIM_ACTOR_CHAN ? 50 : 20);
	actor->slot_bytes = load->slot_bytes;
	/* About as long as faults happen; sometimes as fast as can be. */
	actor->pace_ns = 20 * TN_NS_PER_US;
	if (sim_chance(&world->work, 75))
		actor->pace_ns += 4 * (world->quiet_ns - SIM_START_NS) / actor->budget;
	load->actors_left++;
	/* More than a channel's window to a receiver that hardly takes any. */
	if (kind == SIM_ACTOR_CHAN && load->slot_bytes >= 32768 && sim_chance(&world->work, 20)) {
		actor->flood = true;
		actor->budget = 48;
	}
	actor->connects = kind == SIM_ACTOR_RPC && sim_chance(&world->work, 40);
	load->rivals |= actor->connects;
}

static void plan_pair(sim_world *world, unsigned i, unsigned k)
{
	tn_rand *r = &world->work;
	unsigned dice = (unsigned)tn_rand_below(r, 100);

	world->load->ends[i][k].dials = dice < 55;
	world->load->ends[k][i].dials = dice >= 45; /* now and then both */
	world->load->rivals |= dice >= 45 && dice < 55;
	for (unsigned side = 0; side < 2; side++) {
		sim_end *end = &world->load->ends[side ? k : i][side ? i : k];

		for (unsigned n = (unsigned)tn_rand_below(r, 3); n > 0; n--)
			plan_actor(world, end, SIM_ACTOR_CHAN);
		if (sim_chance(r, 50))
			plan_actor(world, end, SIM_ACTOR_RPC);
		if (sim_chance(r, 50))
			plan_actor(world, end, SIM_ACTOR_TENSOR);
	}
}

void sim_load_init(sim_world *world)
{
	sim_load *load = world->load = sim_alloc(1, sizeof(*load));
	tn_rand *r = &world->work;

	load->actors = sim_alloc(ACTORS_MAX, sizeof(*load->actors));
	load->remote = (unsigned)sim_between(r, 0, 100);
	load->local = sim_chance(r, 50) ? 15 : 0;
	load->foreign = sim_chance(r, 30) ? 50 : 0;
	load->slot_bytes = 4096ull << tn_rand_below(r, 4);
	for (unsigned i = 0; i < world->node_count; i++) {
		for (unsigned k = 0; k < world->node_count; k++)
			load->ends[i][k] =
				(sim_end){.world = world, .node = &world->nodes[i], .peer = &world->nodes[k]};
	}
	for (unsigned i = 0; i < world->node_count; i++) {
		for (unsigned k = i + 1; k < world->node_count; k++)
			plan_pair(world, i, k);
	}
	sim_rpc_init(world);
}

uint32_t sim_load_links_max(const sim_world *world)
{
	const sim_load *load = world->load;
	uint32_t links[SIM_NODES_MAX] = {0}, most = 0;

	for (unsigned i = 0; i < world->node_count; i++)
		for (unsigned k = 0; k < world->node_count; k++)
			links[i] += (uint32_t)load->ends[i][k].dials + (uint32_t)load->ends[k][i].dials;
	for (uint32_t i = 0; i < load->actor_count; i++) {
		const sim_actor *actor = &load->actors[i];

		links[actor->end->node->index] += actor->connects;
		links[actor->end->peer->index] += actor->connects;
	}
	for (unsigned i = 0; i < world->node_count; i++)
		most = TN_MAX(most, links[i]);
	return 2 * most;
}

void sim_load_fini(sim_world *world)
{
	sim_load *load = world->load;

	for (uint32_t i = 0; i < load->actor_count; i++) {
		ops_of[load->actors[i].kind]->free(&load->actors[i]);
		sim_actor_memory_free(&load->actors[i]);
	}
	sim_rpc_fini(world);
	for (uint32_t i = 0; i < load->op_count; i++)
		free(load->ops[i]);
	free(load->ops);
	free(load->actors);
	free(load);
}

void sim_load_serve(sim_node *node)
{
	tern_ctx_on_link(node->ctx, on_link, on_down, node);
	sim_rpc_serve(node);
}

void sim_load_node_up(sim_node *node)
{
	sim_load *load = node->world->load;

	for (unsigned i = 0; i < node->world->node_count; i++)
		dial_later(&load->ends[node->index][i]);
	for (uint32_t i = 0; i < load->actor_count; i++) {
		if (load->actors[i].end->node == node)
			sim_actor_wake(&load->actors[i], sim_between(&node->world->work, 1000, 300000));
	}
}

void sim_load_node_down(sim_node *node)
{
	sim_load *load = node->world->load;

	for (uint32_t i = 0; i < load->actor_count; i++)
		if (load->actors[i].end->node == node)
			close_actor(&load->actors[i]);
	sim_rpc_node_down(node);
	sim_tensor_node_down(node);
	for (unsigned i = 0; i < node->world->node_count; i++) {
		sim_end *end = &load->ends[node->index][i];

		if (end->link)
			tern_link_release(end->link);
		end->link = NULL;
		end->came_count = 0;
		end->up = false;
		end->link_number++;
		end->pause_ns = 0;
		sim_cancel(&node->world->events, end->dial_event);
		end->dial_event = 0;
	}
}

void sim_load_node_gone(sim_node *node)
{
	sim_load *load = node->world->load;

	for (uint32_t i = 0; i < load->actor_count; i++) {
		sim_actor *actor = &load->actors[i];

		if (actor->end->node != node)
			continue;
		SIM_CHECK(node->world, "once", actor->in_flight == 0,
			  "actor %u: %u operations were not completed when %s ended", actor->number,
			  actor->in_flight, node->name);
		if (!actor->mine_foreign)
			actor->mine = NULL;
		sim_actor_memory_free(actor);
	}
}

bool sim_load_run(sim_node *node)
{
	watch_links(node);
	sim_chan_run(node);
	return sim_tensor_run(node);
}

bool sim_load_done(sim_world *world)
{
	return world->load->actors_left == 0;
}

void sim_load_unfinished(sim_world *world, char *buf, size_t bytes)
{
	size_t at = 0;

	buf[0] = 0;
	for (uint32_t i = 0; i < world->load->actor_count && at < bytes; i++) {
		const sim_actor *a = &world->load->actors[i];

		if (!a->done)
			at += (size_t)snprintf(
				buf + at, bytes - at,
				"actor %u (kind %d of n%u to n%u: %u to go, %u in flight%s%s) ", a->number,
				(int)a->kind, a->end->node->index, a->end->peer->index, a->budget,
				a->in_flight, a->open ? ", open" : "", a->end->up ? ", link up" : "");
	}
}
