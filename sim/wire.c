/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posts, and what becomes of them: taken from the send queue, in the air, placed at the target, answered.
 *
 *   post -> (tx: source read) -> item -> (arrival: keys checked, bytes placed) -> answer -> cqe at the sender
 *
 * An item that meets no living lane is lost; its sender finds out after the retry time and fails. A pulled cable
 * that comes back before that only delays. Threads: none. Tests: sim-smoke.
 */
#include <string.h>

#include "base/fail.h"
#include "sim/alloc.h"
#include "sim/check.h"
#include "sim/device.h"

#define RETRY_NS (8 * TN_NS_PER_MS) /* until a queue pair gives a peer up */

uint64_t sim_wire_delay(sim_world *world, uint64_t bytes)
{
	return world->delay_ns + bytes * world->ps_per_byte / 1000 +
	       (world->jitter_ns ? tn_rand_below(&world->net, world->jitter_ns) : 0);
}

/* ---- items ---- */

static sim_item *item_new(sim_world *world, uint64_t data_bytes)
{
	sim_item *item = sim_alloc(1, sizeof(*item) + data_bytes);

	item->world = world;
	item->next = world->items;
	if (item->next)
		item->next->link = &item->next;
	item->link = &world->items;
	world->items = item;
	return item;
}

void sim_item_free(sim_item *item)
{
	tn_list_remove(&item->node);
	*item->link = item->next;
	if (item->next)
		item->next->link = item->link;
	free(item);
}

static void gather(uint8_t *to, const sim_wr *wr)
{
	for (int i = 0; i < wr->pieces; i++) {
		if (wr->iov[i].bytes)
			memcpy(to, wr->iov[i].base, wr->iov[i].bytes);
		to += wr->iov[i].bytes;
	}
}

static sim_wr *wr_of(sim_lane *lane, uint64_t number)
{
	for (uint32_t i = 0; lane && i < lane->dev->caps.lane_wrs_max; i++) {
		sim_wr *wr = &lane->wrs[i];

		if (wr->live && !wr->over && wr->number == number)
			return wr;
	}
	return NULL;
}

/* ---- answers ---- */

static void on_answer(void *arg, uint64_t value)
{
	sim_item *item = arg;
	sim_world *world = item->world;
	sim_lane *lane = sim_lane_get(world, item->to);
	sim_wr *wr = lane && lane->state == SIM_LANE_UP ? wr_of(lane, item->number) : NULL;
	tern_status status = item->status;

	(void)value;
	if (wr && wr->kind == SIM_READ && status == TERN_OK && item->bytes)
		memcpy((void *)(uintptr_t)wr->iov[0].base, item->data, item->bytes);
	if (wr)
		sim_wr_end(lane, wr, status);
	if (wr && status != TERN_OK) {
		sim_covered(world, SIM_COVER_NAKED);
		if (lane->dev->nak_breaks)
			sim_lane_fail(lane, TERN_E_LANE);
	}
	sim_item_free(item);
}

static void answer(const sim_item *to, tern_status status, const void *data, uint64_t bytes)
{
	sim_world *world = to->world;
	sim_item *item = item_new(world, bytes);

	item->kind = SIM_ANSWER;
	item->from = to->to;
	item->to = to->from;
	item->number = to->number;
	item->status = status;
	item->bytes = bytes;
	if (bytes)
		memcpy(item->data, data, bytes);
	sim_at(&world->events, world->events.now + sim_wire_delay(world, bytes), on_answer, item, 0);
}

/* ---- at the target ---- */

static tern_status resolve(const sim_lane *lane, const sim_item *item, uint32_t access, void **at)
{
	uint32_t index;
	uint64_t offset;
	tern_mem *mem = lane->dev->base.mem;

	TN_TRY(tn_key_check(tn_mem_keys(mem), &item->key, item->offset, item->bytes, access, &index,
			    &offset));
	*at = (uint8_t *)tn_mem_extent(mem, index)->base + offset;
	return TERN_OK;
}

/* What was acknowledged is placed though its key may be revoked by now only if that still holds. */
static void place(const sim_lane *lane, const sim_item *item)
{
	void *at;

	if (resolve(lane, item, TERN_ACCESS_WRITE, &at) == TERN_OK && item->bytes)
		memcpy(at, item->data, item->bytes);
}

void sim_wire_place(sim_lane *lane)
{
	for (tn_list *node; (node = tn_list_pop_front(&lane->unplaced));) {
		sim_item *item = TN_LIST_ENTRY(node, sim_item, node);

		place(lane, item);
		sim_item_free(item);
	}
}

static void on_place(void *arg, uint64_t number)
{
	sim_lane *lane = sim_lane_get(arg, (uint32_t)number);

	if (lane)
		sim_wire_place(lane);
}

static void arrival_event(sim_lane *lane, const sim_item *item, uint32_t slot)
{
	sim_dev *dev = lane->dev;
	tn_event ev = {.type = item->kind == SIM_SEND ? TN_EV_RECV : TN_EV_IMM,
		       .slot = slot,
		       .bytes = item->bytes,
		       .imm = item->imm};
	uint64_t now = dev->node->world->events.now, at;

	SIM_TRACE(dev->node->world, lane->number, item->number, "%s lane %u: item %llu arrives",
		  dev->node->name, lane->number, (unsigned long long)item->number);
	if (item->kind == SIM_SEND) {
		if (item->bytes)
			memcpy(dev->slots[slot].buf, item->data, item->bytes);
		ev.buf = dev->slots[slot].buf;
	}
	/* Arrivals of a lane keep their order. */
	at = now + sim_between(&dev->node->world->device, 20, 200);
	lane->cq_ns = TN_MAX(lane->cq_ns, at);
	sim_cq_push(dev, lane, &ev, lane->cq_ns - now, 0);
}

/* A write: now, or later than its acknowledgement. True: the item is kept. */
static bool take_write(sim_lane *lane, sim_item *item)
{
	sim_world *world = item->world;
	bool later = !(lane->dev->caps.flags & TN_CAP_REMOTE_DONE) && sim_chance(&world->device, 30);

	if (item->kind == SIM_WRITE_IMM || !later) {
		sim_wire_place(lane);
		place(lane, item);
		return false;
	}
	tn_list_push_back(&lane->unplaced, &item->node);
	sim_at(&world->events, world->events.now + sim_between(&world->device, 0, 3000), on_place, world,
	       lane->number);
	return true;
}

/*
 * In a row. Three and four are what docs/protocol/link.md, "Numbers", does not cover: an immediate's number has two bits, so
 * the one behind them looks like one that came before, or like the next.
 */
#define LEFT_OUT_MAX 2u

/* Once; or, if the lane's device lies, twice or not at all, though it was answered. */
static void arrive_or_not(sim_lane *lane, const sim_item *item, uint32_t slot)
{
	sim_world *world = item->world;

	if (lane->dev->faults.left_out_until > world->events.now && sim_chance(&world->device, 20) &&
	    lane->missing < LEFT_OUT_MAX) {
		lane->missing++;
		SIM_TRACE(world, lane->number, item->number, "%s lane %u: item %llu is left out",
			  lane->dev->node->name, lane->number, (unsigned long long)item->number);
		sim_slot_return(lane->dev, slot);
		sim_covered(world, SIM_COVER_LEFT_OUT);
		return;
	}
	lane->missing = 0;
	arrival_event(lane, item, slot);
	if (lane->dev->faults.twice_until <= world->events.now || !sim_chance(&world->device, 20))
		return;
	slot = sim_slot_beyond(lane->dev);
	if (slot == UINT32_MAX)
		return;
	SIM_TRACE(world, lane->number, item->number, "%s lane %u: the same again", lane->dev->node->name,
		  lane->number);
	arrival_event(lane, item, slot);
	sim_covered(world, SIM_COVER_TWICE);
}

/* True: it is done with. */
static bool take_item(sim_lane *lane, sim_item *item)
{
	uint32_t slot = UINT32_MAX;
	tern_status status;
	void *at = NULL;

	if (item->kind != SIM_SEND) {
		status = resolve(lane, item, item->kind == SIM_READ ? TERN_ACCESS_READ : TERN_ACCESS_WRITE,
				 &at);
		if (status != TERN_OK) {
			answer(item, status, NULL, 0);
			if (lane->dev->nak_breaks) /* what is behind it must not be taken */
				sim_lane_fail(lane, TERN_E_LANE);
			return true;
		}
	}
	if (item->kind == SIM_READ) {
		sim_wire_place(lane); /* a read pushes what lies in the NIC */
		answer(item, TERN_OK, at, item->bytes);
		return true;
	}
	if (item->kind == SIM_SEND || item->kind == SIM_WRITE_IMM) {
		slot = sim_slot_take(lane);
		if (slot == UINT32_MAX)
			return true;
	}
	answer(item, TERN_OK, NULL, 0);
	if (item->kind != SIM_SEND && take_write(lane, item))
		return false;
	if (slot != UINT32_MAX)
		arrive_or_not(lane, item, slot);
	return true;
}

void sim_wire_take(sim_dev *dev)
{
	for (tn_list *node; (node = tn_list_pop_front(&dev->inbox));) {
		sim_item *item = TN_LIST_ENTRY(node, sim_item, node);
		sim_lane *lane = sim_lane_get(item->world, item->to);

		if (!lane || lane->state != SIM_LANE_UP || take_item(lane, item))
			sim_item_free(item);
	}
}

/* ---- in the air ---- */

static void lose(sim_item *item)
{
	sim_world *world = item->world;

	sim_at(&world->events, world->events.now + RETRY_NS, sim_lane_lost, world, item->from);
	sim_item_free(item);
}

/* The bytes came in a retransmission: they are read only now. False: nobody would send it again. */
static bool read_late(sim_lane *from, sim_item *item)
{
	const sim_wr *wr = wr_of(from, item->number);

	if (!wr)
		return false;
	gather(item->data, wr);
	return true;
}

static void on_arrive(void *arg, uint64_t value)
{
	sim_item *item = arg;
	sim_world *world = item->world;
	sim_lane *lane = sim_lane_get(world, item->to), *from = sim_lane_get(world, item->from);
	bool alive = from && from->state == SIM_LANE_UP;
	uint64_t now = world->events.now, again = 0;

	(void)value;
	if (!lane || lane->state != SIM_LANE_UP || lane->unreachable || lane->dev->dead) {
		lose(item);
		return;
	}
	again = world->unplugged_until[lane->dev->node->index];
	if (from)
		again = TN_MAX(again, world->unplugged_until[from->dev->node->index]);
	if (again > now) {
		if (again - now > RETRY_NS) {
			lose(item);
			return;
		}
	} else if (item->number != lane->received) {
		again = now + TN_NS_PER_US; /* what is before it has yet to come */
		if (!alive || item->number < lane->received) {
			lose(item);
			return;
		}
	}
	if (again > now) {
		sim_at(&world->events, again, on_arrive, item, 0);
		return;
	}
	if (item->late && !read_late(from, item)) {
		sim_item_free(item);
		return;
	}
	lane->received++;
	if (!(lane->dev->caps.flags & TN_CAP_PASSIVE_TARGET)) {
		tn_list_push_back(&lane->dev->inbox, &item->node);
		sim_poke(lane->dev->node);
	} else if (take_item(lane, item)) {
		sim_item_free(item);
	}
}

static void on_tx(void *arg, uint64_t number);

static void schedule_tx(sim_lane *lane)
{
	sim_world *world = lane->dev->node->world;
	const sim_wr *wr;

	if (lane->tx_event || lane->state != SIM_LANE_UP || lane->taken == lane->posted)
		return;
	wr = wr_of(lane, lane->taken);
	TN_ASSERT(wr);
	lane->tx_free_ns = TN_MAX(lane->tx_free_ns, world->events.now) + 30 +
			   (wr->kind == SIM_READ ? 0 : wr->bytes) * world->ps_per_byte / 1000;
	lane->tx_event = sim_at(&world->events, TN_MAX(lane->tx_free_ns, lane->stuck_until), on_tx, world,
				lane->number);
}

static void on_tx(void *arg, uint64_t number)
{
	sim_world *world = arg;
	sim_lane *lane = sim_lane_get(world, (uint32_t)number);
	sim_wr *wr = wr_of(lane, lane->taken);
	bool carries = wr->kind != SIM_READ;
	sim_item *item;
	uint64_t at;

	lane->tx_event = 0;
	if (lane->stuck_until > world->events.now) {
		schedule_tx(lane);
		return;
	}
	lane->taken++;
	wr->sent = true;
	item = item_new(world, carries ? wr->bytes : 0);
	item->from = lane->number;
	item->to = lane->peer;
	item->kind = wr->kind;
	item->number = wr->number;
	item->late = wr->late;
	item->bytes = wr->bytes;
	item->key = wr->key;
	item->offset = wr->offset;
	item->imm = wr->imm;
	if (carries && wr->copy && wr->bytes)
		memcpy(item->data, wr->copy, wr->bytes);
	else if (carries)
		gather(item->data, wr);
	at = world->events.now + sim_wire_delay(world, 0);
	lane->arrive_ns = TN_MAX(lane->arrive_ns, at);
	sim_at(&world->events, lane->arrive_ns + (wr->late ? 5000 : 0), on_arrive, item, 0);
	schedule_tx(lane);
}

/* ---- posts ---- */

static tern_status refuse(sim_lane *lane, sim_kind kind, uint64_t bytes)
{
	sim_dev *dev = lane->dev;
	sim_world *world = dev->node->world;
	uint32_t need = kind == SIM_SEND    ? TN_CAP_SEND
			: kind == SIM_WRITE ? TN_CAP_WRITE
			: kind == SIM_READ  ? TN_CAP_READ
					    : TN_CAP_WRITE_IMM;
	uint64_t most = kind == SIM_SEND ? dev->caps.send_bytes_max : dev->caps.write_bytes_max;

	SIM_CHECK(world, "device", dev->caps.flags & need, "lane %u: the device cannot do post kind %d",
		  lane->number, (int)kind);
	SIM_CHECK(world, "device", bytes <= most, "lane %u: %llu bytes, at most %llu", lane->number,
		  (unsigned long long)bytes, (unsigned long long)most);
	SIM_CHECK(world, "device", lane->state != SIM_LANE_CLOSED && lane->state > SIM_LANE_DIALING,
		  "lane %u: a post in state %d", lane->number, (int)lane->state);
	if (lane->state != SIM_LANE_UP || world->result->failed)
		return tn_fail(TERN_E_LANE, "sim: the lane is down");
	if (lane->live == dev->caps.lane_wrs_max ||
	    (dev->faults.again_until > world->events.now && sim_chance(&world->device, 60))) {
		sim_covered(world, SIM_COVER_POSTED_AGAIN);
		return TERN_AGAIN;
	}
	return TERN_OK;
}

/* As if inline: from a copy, done at the post. */
static void make_silent(sim_wr *wr, bool *done)
{
	wr->silent = true;
	wr->copy = sim_alloc(1, wr->bytes);
	gather(wr->copy, wr);
	*done = true;
}

static void accept_wr(sim_lane *lane, const sim_wr *from, bool *done)
{
	sim_world *world = lane->dev->node->world;
	sim_wr *wr = lane->wrs;

	while (wr->live)
		wr++;
	*wr = *from;
	wr->live = true;
	wr->number = lane->posted++;
	lane->live++;
	*done = false;
	if (wr->kind != SIM_READ && wr->level == TN_LEVEL_LOCAL && !wr->signal &&
	    wr->bytes <= lane->dev->caps.inline_bytes)
		make_silent(wr, done);
	else
		wr->late = wr->kind != SIM_READ && sim_chance(&world->device, 5);
	SIM_TRACE(world, lane->number * 8 + wr->kind, wr->bytes,
		  "%s lane %u: post %llu kind %d, %llu bytes%s", lane->dev->node->name, lane->number,
		  (unsigned long long)wr->number, (int)wr->kind, (unsigned long long)wr->bytes,
		  *done ? ", done" : "");
	schedule_tx(lane);
}

static tern_status post_one_sided(tn_lane *base, tn_wr *wr, sim_kind kind)
{
	sim_lane *lane = (sim_lane *)base;
	const tn_dev_caps *caps = &lane->dev->caps;
	sim_wr mine = {.kind = kind,
		       .level = wr->level,
		       .cookie = wr->cookie,
		       .pieces = 1,
		       .iov = {{wr->local, wr->bytes}},
		       .bytes = wr->bytes,
		       .key = wr->key,
		       .offset = wr->offset,
		       .imm = wr->imm,
		       .signal = wr->signal};

	wr->done = false;
	TN_TRY(refuse(lane, kind, wr->bytes));
	if (caps->needs_registered && wr->bytes > (kind == SIM_READ ? 0 : caps->inline_bytes) &&
	    !tn_mem_local_of(lane->dev->base.mem, wr->local, wr->bytes))
		return tn_fail(TERN_E_INVALID, "sim: %p is not registered", wr->local);
	accept_wr(lane, &mine, &wr->done);
	return TERN_OK;
}

tern_status sim_post_write(tn_lane *lane, tn_wr *wr)
{
	return post_one_sided(lane, wr, SIM_WRITE);
}

tern_status sim_post_write_imm(tn_lane *lane, tn_wr *wr)
{
	return post_one_sided(lane, wr, SIM_WRITE_IMM);
}

tern_status sim_post_read(tn_lane *lane, tn_wr *wr)
{
	return post_one_sided(lane, wr, SIM_READ);
}

tern_status sim_post_send(tn_lane *base, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	sim_lane *lane = (sim_lane *)base;
	sim_wr mine = {.kind = SIM_SEND, .level = TN_LEVEL_LOCAL, .cookie = cookie, .pieces = n};

	*done = false;
	for (int i = 0; i < n; i++) {
		mine.iov[i] = iov[i];
		mine.bytes += iov[i].bytes;
	}
	TN_TRY(refuse(lane, SIM_SEND, mine.bytes));
	accept_wr(lane, &mine, done);
	return TERN_OK;
}
