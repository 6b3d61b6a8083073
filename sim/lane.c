/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated lanes: how two of them find each other, how they break, how they drain. See device.h.
 *
 *   the active side's request goes to the passive one, which waits in DIALING with the same token; the answer
 *   goes back. Whoever gets none is DOWN after its time-out
 *
 * A lane that fails tells its peer nothing: that finds out when it sends something, after the world's retry time.
 * Threads: none. Tests: sim-smoke.
 */
#include <string.h>

#include "base/fail.h"
#include "sim/alloc.h"
#include "sim/check.h"
#include "sim/device.h"

#define CONNECT_TIMEOUT_NS (5 * TN_NS_PER_SEC)
#define DIAL_AGAIN_NS      (5 * TN_NS_PER_US)

sim_lane *sim_lane_get(sim_world *world, uint32_t number)
{
	return number && number <= world->lane_count ? world->lanes[number - 1] : NULL;
}

static void set_state(sim_lane *lane, sim_lane_state state)
{
	TN_ASSERT(state > lane->state);
	SIM_TRACE(lane->dev->node->world, lane->number, state, "%s %s lane %u: state %d -> %d",
		  lane->dev->node->name, lane->dev->base.provider->name, lane->number, (int)lane->state,
		  (int)state);
	lane->state = state;
}

tern_status sim_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *addr)
{
	sim_dev *dev = (sim_dev *)base;
	sim_world *world = dev->node->world;
	sim_lane *lane;

	*out = NULL;
	if (dev->dead || dev->node->dying)
		return tn_fail(TERN_E_DEVICE, "sim: the device is dead");
	if (dev->faults.refuse_create_until > world->events.now)
		return tn_fail(TERN_E_NOMEM, "sim: no room for a lane");
	lane = sim_alloc(1, sizeof(*lane));
	lane->base = (tn_lane){.dev = base, .arg = params->arg};
	lane->dev = dev;
	lane->active = params->active;
	memcpy(lane->token, params->token, sizeof(lane->token));
	lane->wrs = sim_alloc(dev->caps.lane_wrs_max, sizeof(*lane->wrs));
	tn_list_init(&lane->unplaced);
	lane->drain_at = params->connect_timeout_ns ? params->connect_timeout_ns : CONNECT_TIMEOUT_NS;
	world->lanes = sim_grow(world->lanes, world->lane_count, &world->lane_room, sizeof(*world->lanes));
	world->lanes[world->lane_count++] = lane;
	lane->number = world->lane_count;
	world->open_lanes++;
	tn_list_push_back(&dev->lanes, &lane->node);
	addr->length = sizeof(lane->number);
	memcpy(addr->bytes, &lane->number, sizeof(lane->number));
	*out = &lane->base;
	return TERN_OK;
}

/* ---- connecting ---- */

static void up(sim_lane *lane, uint32_t peer)
{
	tn_event ev = {.type = TN_EV_LANE_UP};

	lane->peer = peer;
	set_state(lane, SIM_LANE_UP);
	lane->tx_free_ns = lane->arrive_ns = lane->dev->node->world->events.now;
	sim_cq_push(lane->dev, lane, &ev, 100, 0);
}

static bool plugged(const sim_lane *lane)
{
	const sim_world *world = lane->dev->node->world;

	return !lane->unreachable && !lane->dev->dead &&
	       world->unplugged_until[lane->dev->node->index] <= world->events.now;
}

static void on_dial_answer(void *arg, uint64_t number)
{
	sim_lane *lane = sim_lane_get(arg, (uint32_t)number), *peer;

	if (!lane || lane->state != SIM_LANE_DIALING || !plugged(lane))
		return;
	peer = sim_lane_get(arg, lane->want);
	if (peer && peer->state == SIM_LANE_UP && peer->peer == lane->number)
		up(lane, lane->want);
	else
		sim_lane_fail(lane, TERN_E_REFUSED);
}

static void on_dial(void *arg, uint64_t number)
{
	sim_world *world = arg;
	sim_lane *lane = sim_lane_get(world, (uint32_t)number), *peer;
	uint64_t back = world->events.now + sim_wire_delay(world, 64);

	if (!lane || lane->state != SIM_LANE_DIALING || !plugged(lane))
		return;
	peer = sim_lane_get(world, lane->want);
	if (!peer || !plugged(peer) || peer->state > SIM_LANE_UP || peer->active) {
		if (peer && peer->dev->refuses_late)
			return; /* nobody answers */
		sim_at(&world->events, back, on_dial_answer, world, number);
	} else if (peer->state == SIM_LANE_INIT) {
		sim_at(&world->events, world->events.now + DIAL_AGAIN_NS, on_dial, world, number);
	} else if (peer->state == SIM_LANE_DIALING) {
		if (peer->want == lane->number && memcmp(peer->token, lane->token, sizeof(lane->token)) == 0)
			up(peer, lane->number);
		sim_at(&world->events, back, on_dial_answer, world, number);
	}
}

static void on_timeout(void *arg, uint64_t number)
{
	sim_lane *lane = sim_lane_get(arg, (uint32_t)number);

	if (lane && lane->state == SIM_LANE_DIALING)
		sim_lane_fail(lane, TERN_E_DEADLINE);
}

tern_status sim_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	sim_lane *lane = (sim_lane *)base;
	sim_dev *dev = lane->dev;
	sim_world *world = dev->node->world;

	if (peer_dev->length != sizeof(dev->id) || peer_lane->length != sizeof(lane->want))
		return tn_fail(TERN_E_UNREACHABLE, "sim: not an address");
	if (dev->dead || dev->node->dying)
		return tn_fail(TERN_E_DEVICE, "sim: the device is dead");
	if (dev->faults.refuse_connect_until > world->events.now)
		return tn_fail(TERN_E_UNREACHABLE, "sim: no path at present");
	SIM_CHECK(world, "device", lane->state == SIM_LANE_INIT, "lane %u connects twice", lane->number);
	memcpy(&lane->want, peer_lane->bytes, sizeof(lane->want));
	set_state(lane, SIM_LANE_DIALING);
	sim_at(&world->events, world->events.now + lane->drain_at, on_timeout, world, lane->number);
	if (lane->active)
		sim_at(&world->events, world->events.now + sim_wire_delay(world, 64), on_dial, world,
		       lane->number);
	return TERN_OK;
}

/* ---- the end ---- */

/* Everything that was accepted ends, whatever of it arrived. */
static void flush(sim_lane *lane, tern_status first)
{
	uint64_t least = 0;

	sim_cancel(&lane->dev->node->world->events, lane->tx_event);
	lane->tx_event = 0;
	/* In the order of their posts. */
	for (uint32_t n = lane->live; n > 0; n--) {
		sim_wr *next = NULL;

		for (uint32_t i = 0; i < lane->dev->caps.lane_wrs_max; i++) {
			sim_wr *wr = &lane->wrs[i];

			if (wr->live && !wr->over && wr->number >= least &&
			    (!next || wr->number < next->number))
				next = wr;
		}
		if (!next)
			break;
		least = next->number + 1;
		sim_wr_end(lane, next, first);
		first = TERN_E_FLUSHED;
	}
}

void sim_lane_fail(sim_lane *lane, tern_status status)
{
	tn_event ev = {.type = TN_EV_LANE_DOWN, .status = status};
	sim_world *world = lane->dev->node->world;
	bool news_first = sim_chance(&world->device, 50);

	if (lane->state >= SIM_LANE_DOWN || lane->state == SIM_LANE_INIT)
		return;
	set_state(lane, SIM_LANE_DOWN);
	sim_wire_place(lane);
	lane->drain_at = world->events.now + sim_between(&world->device, 0, 50 * TN_NS_PER_US);
	if (!news_first)
		flush(lane, TERN_E_LANE);
	sim_cq_push(lane->dev, lane, &ev, sim_between(&world->device, 0, 2000), 0);
	if (news_first)
		flush(lane, TERN_E_LANE);
}

void sim_lane_break(tn_lane *base)
{
	sim_lane_fail((sim_lane *)base, TERN_E_LANE);
}

void sim_lane_lost(void *arg, uint64_t number)
{
	sim_lane *lane = sim_lane_get(arg, (uint32_t)number);

	if (lane && lane->state == SIM_LANE_UP)
		sim_lane_fail(lane, TERN_E_LANE);
}

void sim_lane_close(tn_lane *base)
{
	sim_lane *lane = (sim_lane *)base, *peer;
	sim_world *world = lane->dev->node->world;
	bool was_up = lane->state == SIM_LANE_UP;

	SIM_CHECK(world, "device", lane->state != SIM_LANE_CLOSED, "lane %u is closed twice", lane->number);
	if (lane->state == SIM_LANE_CLOSED)
		return;
	if (!lane->dev->keeps_arrivals)
		sim_cq_drop_arrivals(lane);
	sim_wire_place(lane);
	set_state(lane, SIM_LANE_CLOSED);
	flush(lane, TERN_E_FLUSHED);
	lane->drain_at = world->events.now;
	if (!lane->dev->node->dying)
		lane->drain_at += sim_between(&world->device, 0, 300 * TN_NS_PER_US);
	/* Some NICs tell the peer, others let it find out. */
	peer = sim_lane_get(world, lane->peer);
	if (was_up && peer && sim_chance(&world->device, 50))
		sim_at(&world->events, world->events.now + 2 * sim_wire_delay(world, 0), sim_lane_lost, world,
		       peer->number);
}

bool sim_lane_drained(tn_lane *base)
{
	sim_lane *lane = (sim_lane *)base;
	const sim_node *node = lane->dev->node;
	uint32_t silent = 0;

	if (lane->state < SIM_LANE_DOWN || lane->cqes > 0)
		return false;
	for (uint32_t i = 0; i < lane->dev->caps.lane_wrs_max; i++)
		silent += lane->wrs[i].live && lane->wrs[i].silent;
	return lane->live == silent && (node->dying || node->world->events.now >= lane->drain_at);
}

void sim_lane_destroy(tn_lane *base)
{
	sim_lane *lane = (sim_lane *)base;
	sim_dev *dev = lane->dev;
	sim_world *world = dev->node->world;

	SIM_CHECK(world, "device", sim_lane_drained(base), "lane %u is destroyed before it is drained",
		  lane->number);
	sim_cancel(&world->events, lane->tx_event);
	sim_wire_place(lane);
	for (tn_list *it = dev->inbox.next, *next; it != &dev->inbox; it = next) {
		sim_item *item = TN_LIST_ENTRY(it, sim_item, node);

		next = it->next;
		if (item->to == lane->number)
			sim_item_free(item);
	}
	for (uint32_t i = 0; i < dev->caps.recv_slots; i++)
		if (dev->slots[i].lane == lane)
			dev->slots[i].lane = NULL;
	for (uint32_t i = 0; i < dev->caps.lane_wrs_max; i++)
		free(lane->wrs[i].copy);
	world->lanes[lane->number - 1] = NULL;
	world->open_lanes--;
	tn_list_remove(&lane->node);
	free(lane->wrs);
	free(lane);
}
