/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans and plays faults. See fault.h.
 * Threads: none. Tests: sim-smoke (coverage).
 */
#include "sim/fault.h"

#include <stdio.h>

#include "base/fault.h"
#include "sim/alloc.h"
#include "sim/check.h"
#include "sim/device.h"
#include "sim/load.h"

#define FAULTS_MAX 64

typedef struct fault {
	sim_fault_kind kind;
	uint64_t at, for_ns;
	unsigned node, peer, which;
	uint32_t pick;
} fault;

struct sim_faults {
	fault list[FAULTS_MAX];
	uint32_t count;
};

static const char *const words[] = {
#define WORD(name, word, text) word,
	SIM_FAULTS(WORD)
#undef WORD
};
static const char *const texts[] = {
#define TEXT(name, word, text) text,
	SIM_FAULTS(TEXT)
#undef TEXT
};

const char *sim_fault_word(unsigned kind)
{
	return words[kind];
}

const char *sim_fault_text(unsigned kind)
{
	return texts[kind];
}

static bool is_load_kind(unsigned kind)
{
	return kind >= SIM_FAULT_DEADLINES && kind <= SIM_FAULT_BAD_KEYS;
}

/* ---- playing one ---- */

static sim_lane *pick_lane(sim_world *world, uint32_t pick)
{
	uint32_t up = 0;

	for (uint32_t i = 0; i < world->lane_count; i++)
		up += world->lanes[i] && world->lanes[i]->state == SIM_LANE_UP;
	if (up == 0)
		return NULL;
	pick %= up;
	for (uint32_t i = 0;; i++) {
		sim_lane *lane = world->lanes[i];

		if (lane && lane->state == SIM_LANE_UP && pick-- == 0)
			return lane;
	}
}

static bool on_lane(sim_world *world, const fault *f)
{
	sim_lane *lane = pick_lane(world, f->pick);

	if (!lane)
		return false;
	if (f->kind == SIM_FAULT_LANE_STUCK) {
		lane->stuck_until = world->events.now + f->for_ns;
		return true;
	}
	if (f->kind == SIM_FAULT_LANE_BREAK)
		sim_at(&world->events, world->events.now + sim_wire_delay(world, 0), sim_lane_lost, world,
		       lane->peer);
	sim_lane_fail(lane, TERN_E_LANE);
	return true;
}

static void on_revive(void *arg, uint64_t value)
{
	sim_world *world = arg;
	sim_dev *dev = world->nodes[value / SIM_DEVICES].devs[value % SIM_DEVICES];

	if (dev && dev->dead)
		sim_dev_revive(dev);
}

/* Not a device that vouches for the remote level, which is software of ours at both ends. For long: it is rare. */
static bool on_lying_device(sim_dev *dev, const fault *f, uint64_t now)
{
	if (dev->caps.flags & TN_CAP_REMOTE_DONE)
		return false;
	if (f->kind == SIM_FAULT_TWICE)
		dev->faults.twice_until = now + 20 * f->for_ns;
	else
		dev->faults.left_out_until = now + 20 * f->for_ns;
	return true;
}

static bool on_device(sim_world *world, const fault *f)
{
	sim_dev *dev = world->nodes[f->node].devs[f->which];
	uint64_t until = world->events.now + f->for_ns;

	if (!dev || dev->dead)
		return false;
	switch (f->kind) {
	case SIM_FAULT_TWICE:
	case SIM_FAULT_LEFT_OUT:
		return on_lying_device(dev, f, world->events.now);
	case SIM_FAULT_DEVICE_DEATH:
		sim_dev_die(dev);
		sim_at(&world->events, until, on_revive, world, f->node * SIM_DEVICES + f->which);
		break;
	case SIM_FAULT_REFUSE_CREATE:
		dev->faults.refuse_create_until = until;
		break;
	case SIM_FAULT_REFUSE_CONNECT:
		dev->faults.refuse_connect_until = until;
		break;
	case SIM_FAULT_REFUSE_REACH:
		dev->faults.refuse_reach_until = until;
		break;
	case SIM_FAULT_REFUSE_REG:
		dev->faults.refuse_reg_until = until;
		break;
	case SIM_FAULT_AGAIN_STORM:
		dev->faults.again_until = until;
		break;
	case SIM_FAULT_REORDER:
		dev->faults.reorder_until = until;
		break;
	default:
		dev->faults.delay_until = until;
		dev->faults.delay_ns = f->for_ns / 20;
	}
	return true;
}

static void on_restart(void *arg, uint64_t value)
{
	sim_node *node = arg;

	(void)value;
	if (!node->ctx && !node->world->result->failed && !node->world->over)
		sim_node_start(node);
}

static bool on_process(sim_world *world, const fault *f)
{
	sim_node *node = &world->nodes[f->node];
	uint64_t until = world->events.now + f->for_ns;

	if (!node->ctx || node->inside)
		return false;
	switch (f->kind) {
	case SIM_FAULT_RESTART:
	case SIM_FAULT_VANISH:
		if (f->kind == SIM_FAULT_VANISH)
			sim_streams_cut(node, true);
		sim_node_kill(node);
		sim_at(&world->events, world->events.now + f->for_ns, on_restart, node, 0);
		break;
	case SIM_FAULT_END:
		sim_node_end(node);
		sim_at(&world->events, world->events.now + f->for_ns, on_restart, node, 0);
		break;
	case SIM_FAULT_SILENT:
		node->frozen_until = TN_MAX(node->frozen_until, until);
		break;
	case SIM_FAULT_CLOCK_JUMP:
		node->skew += f->for_ns;
		sim_poke(node);
		break;
	default:
		break;
	}
	return true;
}

static void on_slow_over(void *arg, uint64_t value)
{
	(void)value;
	((sim_node *)arg)->slow_ns = 0;
}

static void on_memory_over(void *arg, uint64_t value)
{
	(void)arg;
	(void)value;
	tn_fault_clear();
}

static bool on_memory(sim_world *world, const fault *f)
{
	static const char *const points[] = {
		"rpc.request.alloc",  "rpc.ack.alloc",       "tensor.waiter.alloc", "channel.lane.create",
		"channel.stage.tags", "channel.stage.chunk", "mem.cache.make",      "mem.extent.meta"};

	tn_fault_set_random(points[f->pick % TN_COUNT_OF(points)], 0.3, f->pick);
	sim_at(&world->events, world->events.now + f->for_ns, on_memory_over, world, 0);
	return true;
}

static bool on_net(sim_world *world, const fault *f)
{
	uint64_t until = world->events.now + f->for_ns;
	sim_node *node = &world->nodes[f->node];

	switch (f->kind) {
	case SIM_FAULT_CTRL_CUT:
	case SIM_FAULT_CTRL_HALF:
		return sim_stream_break(world, f->node, f->peer, f->kind == SIM_FAULT_CTRL_HALF);
	case SIM_FAULT_CTRL_STALL:
		world->ctrl_stall_until[f->node] = TN_MAX(world->ctrl_stall_until[f->node], until);
		return true;
	case SIM_FAULT_UNPLUG:
		world->unplugged_until[f->node] = TN_MAX(world->unplugged_until[f->node], until);
		return true;
	case SIM_FAULT_SLOW:
		node->slow_ns = f->for_ns / 50;
		sim_at(&world->events, until, on_slow_over, node, 0);
		return true;
	default:
		return on_memory(world, f);
	}
}

static void on_fault(void *arg, uint64_t index)
{
	sim_world *world = arg;
	const fault *f = &world->faults->list[index];
	bool took = false;

	switch (f->kind) {
	case SIM_FAULT_LANE_BREAK:
	case SIM_FAULT_LANE_HALF:
	case SIM_FAULT_LANE_STUCK:
		took = on_lane(world, f);
		break;
	case SIM_FAULT_RESTART:
	case SIM_FAULT_VANISH:
	case SIM_FAULT_END:
	case SIM_FAULT_SILENT:
	case SIM_FAULT_CLOCK_JUMP:
		took = on_process(world, f);
		break;
	case SIM_FAULT_CTRL_CUT:
	case SIM_FAULT_CTRL_HALF:
	case SIM_FAULT_CTRL_STALL:
	case SIM_FAULT_UNPLUG:
	case SIM_FAULT_SLOW:
	case SIM_FAULT_MEMORY:
		took = on_net(world, f);
		break;
	default:
		took = on_device(world, f);
	}
	SIM_TRACE(world, 1000 + index, f->kind, "fault %u: %s of n%u for %.3f ms%s", (unsigned)index,
		  words[f->kind], f->node, (double)f->for_ns / 1e6, took ? "" : " (nothing to hit)");
	if (took)
		sim_covered(world, f->kind);
}

/* ---- the plan ---- */

static void draw(sim_world *world, sim_fault_kind kind)
{
	tn_rand *r = &world->fault;
	uint64_t span = world->quiet_ns - SIM_START_NS;
	fault *f = &world->faults->list[world->faults->count++];
	unsigned n = world->node_count;
	bool early = sim_chance(r, 25); /* while links come up */

	f->kind = kind;
	f->at = SIM_START_NS + sim_between(r, 0, early ? 400 * TN_NS_PER_US : span);
	/* Mostly short; sometimes long enough for time-outs. */
	f->for_ns = sim_between(r, 10, 2000) * TN_NS_PER_US;
	if (sim_chance(r, early ? 40 : 20))
		f->for_ns = sim_between(r, 2, 400) * TN_NS_PER_MS;
	f->node = (unsigned)tn_rand_below(r, n);
	f->peer = (f->node + 1 + (unsigned)tn_rand_below(r, n - 1)) % n;
	f->which = sim_chance(r, 75) ? 0 : 1;
	f->pick = (uint32_t)tn_rand_next(r);
}

static bool allowed(const sim_world *world, uint32_t index)
{
	const sim_options *o = &world->options;

	if (!(o->kinds >> world->faults->list[index].kind & 1))
		return false;
	return !o->only || (index < o->only_count && o->only[index]);
}

static void set_load(sim_world *world, uint32_t index)
{
	sim_load *load = world->load;
	unsigned percent = 5 + world->faults->list[index].pick % 20;

	switch (world->faults->list[index].kind) {
	case SIM_FAULT_DEADLINES:
		load->deadlines = percent;
		break;
	case SIM_FAULT_CANCELS:
		load->cancels = percent;
		break;
	default:
		load->bad_keys = 3;
	}
}

void sim_faults_plan(sim_world *world)
{
	sim_faults *faults = world->faults = sim_alloc(1, sizeof(*faults));
	tn_rand *r = &world->fault;
	/* A few kinds at a time find more than all of them always. */
	unsigned percent = sim_chance(r, 8) ? 0 : sim_chance(r, 20) ? 35 : 12;

	for (unsigned kind = 0; kind < SIM_FAULT_COUNT; kind++) {
		unsigned times = sim_chance(r, percent) ? (unsigned)sim_between(r, 1, 3) : 0;

		if (is_load_kind(kind))
			times = TN_MIN(times, 1);
		while (times-- > 0 && faults->count < FAULTS_MAX)
			draw(world, (sim_fault_kind)kind);
	}
	world->calm = !world->load->rivals;
	world->result->faults_planned = faults->count;
	for (uint32_t i = 0; i < faults->count; i++) {
		const fault *f = &faults->list[i];

		if (!allowed(world, i))
			continue;
		if (is_load_kind(f->kind)) {
			set_load(world, i);
			sim_covered(world, f->kind);
			world->calm = world->calm && f->kind != SIM_FAULT_BAD_KEYS;
			continue;
		}
		world->calm = false;
		sim_at(&world->events, f->at, on_fault, world, i);
	}
}

void sim_faults_fini(sim_world *world)
{
	free(world->faults);
}

void sim_fault_describe(const sim_world *world, uint32_t index, char *buf, size_t bytes)
{
	const fault *f = &world->faults->list[index];

	snprintf(buf, bytes, "%u: %s of n%u at %.3f ms for %.3f ms", index, words[f->kind], f->node,
		 (double)(f->at - SIM_START_NS) / 1e6, (double)f->for_ns / 1e6);
}
