/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated device: capabilities, completion queue, receive slots, registration. See device.h.
 * Threads: none. Tests: sim-smoke.
 */
#include "sim/device.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fail.h"
#include "sim/alloc.h"
#include "sim/check.h"

#define SLOTS_PER_LINK 64u /* on average when as many as fit have come (channel/lanes.c) */

static sim_node *opening;

/* ---- capabilities ---- */

typedef struct sim_dev_plan {
	tn_dev_caps caps;
	bool refuses_late, keeps_arrivals, nak_breaks;
} sim_dev_plan;
static sim_dev_plan plans[SIM_DEVICES];

static uint32_t draw_flags(tn_rand *r)
{
	uint32_t flags = TN_CAP_WRITE | TN_CAP_SEND;

	flags |= sim_chance(r, 70) ? TN_CAP_WRITE_IMM : 0;
	flags |= sim_chance(r, 75) ? TN_CAP_READ : 0;
	flags |= sim_chance(r, 40) ? TN_CAP_REMOTE_DONE : 0;
	flags |= sim_chance(r, 60) ? TN_CAP_ORDERED_WRITES : 0;
	flags |= sim_chance(r, 60) ? TN_CAP_PASSIVE_TARGET : 0;
	return flags;
}

void sim_devices_plan(sim_world *world)
{
	tn_rand *r = &world->plan;

	for (unsigned i = 0; i < SIM_DEVICES; i++) {
		sim_dev_plan *plan = &plans[i];

		plan->caps = (tn_dev_caps){
			.flags = draw_flags(r),
			.write_bytes_max = 1ull << sim_between(r, 12, 20),
			.send_bytes_max = 1ull << sim_between(r, 9, 13),
			.recv_slots = (uint32_t)sim_between(r, 96, 512),
			.lane_wrs_max = (uint32_t)sim_between(r, 16, 64),
			.inline_bytes = sim_chance(r, 50) ? 0 : (uint32_t)sim_between(r, 16, 256),
			.needs_registered = sim_chance(r, 50),
			.incast = (world->options.seed + i) % 8 !=
				  0, /* without a draw: seeds stay as they are */
		};
		plan->caps.send_done_bytes = plan->caps.inline_bytes;
		/* Few: what one link gets, others have to give back. */
		if ((world->options.seed / 8 + i) % 3 == 0)
			plan->caps.recv_slots = plan->caps.recv_slots / 4 + 16;
		plan->caps.lane_recv_slots = sim_chance(r, 50) ? plan->caps.recv_slots : 32;
		plan->refuses_late = sim_chance(r, 50);
		plan->keeps_arrivals = sim_chance(r, 50);
		/* What was done at its post, and what a message behind it tells of, can't fail otherwise. */
		plan->nak_breaks = sim_chance(r, 50) || plan->caps.inline_bytes ||
				   !(plan->caps.flags & TN_CAP_REMOTE_DONE);
	}
}

void sim_devices_fit(uint32_t links)
{
	tn_dev_caps *caps = &plans[SIM_DEVICES - 1].caps;
	uint32_t slots = TN_MAX(caps->recv_slots, links * SLOTS_PER_LINK);

	if (caps->lane_recv_slots == caps->recv_slots)
		caps->lane_recv_slots = slots;
	caps->recv_slots = slots;
}

static void dev_caps(tn_dev *base, tn_dev_caps *caps)
{
	*caps = ((sim_dev *)base)->caps;
}

static void dev_address(tn_dev *base, tn_blob *blob)
{
	sim_dev *dev = (sim_dev *)base;

	blob->length = sizeof(dev->id);
	memcpy(blob->bytes, &dev->id, sizeof(dev->id));
}

static tern_status dev_reach(tn_dev *base, const tn_blob *peer)
{
	sim_dev *dev = (sim_dev *)base;

	if (peer->length != sizeof(dev->id))
		return tn_fail(TERN_E_UNREACHABLE, "sim: an address of %u bytes", peer->length);
	if (dev->dead)
		return tn_fail(TERN_E_UNREACHABLE, "sim: the device is dead");
	if (dev->faults.refuse_reach_until > dev->node->world->events.now)
		return tn_fail(TERN_E_UNREACHABLE, "sim: no route at present");
	return TERN_OK;
}

/* ---- registration ---- */

static tern_status reg(void *arg, const tn_extent *ext, void **out, uint32_t *lkey, uint32_t *rkey)
{
	sim_dev *dev = arg;

	if (dev->faults.refuse_reg_until > dev->node->world->events.now)
		return tn_fail(TERN_E_NOMEM, "sim: no room for a registration");
	*out = dev;
	*lkey = *rkey = ext->index + 1;
	dev->node->world->open_regs++;
	return TERN_OK;
}

static void dereg(void *arg, const tn_extent *ext, void *out)
{
	sim_dev *dev = arg;

	(void)ext;
	TN_ASSERT(out == dev);
	dev->node->world->open_regs--;
}

static const tn_registrar registrar = {.reg = reg, .dereg = dereg};

/* ---- life ---- */

static const tn_dev_ops sim_ops;

static tern_status open_which(const tn_dev_params *params, unsigned which, tn_dev **out)
{
	sim_dev *dev = sim_alloc(1, sizeof(*dev));
	sim_world *world = opening->world;
	const sim_dev_plan *plan = &plans[which];

	*out = NULL;
	dev->base = (tn_dev){.ops = &sim_ops, .provider = sim_providers[which], .mem = params->mem};
	dev->node = opening;
	dev->which = which;
	dev->id = opening->index * SIM_DEVICES + which + 1;
	dev->caps = plan->caps;
	dev->refuses_late = plan->refuses_late;
	dev->keeps_arrivals = plan->keeps_arrivals;
	dev->nak_breaks = plan->nak_breaks;
	tn_list_init(&dev->lanes);
	tn_list_init(&dev->inbox);
	dev->cq_tail = &dev->cq;
	dev->slots = sim_alloc(dev->caps.recv_slots + 1, sizeof(*dev->slots));
	dev->free_slots = sim_alloc(dev->caps.recv_slots, sizeof(*dev->free_slots));
	for (uint32_t i = 0; i < dev->caps.recv_slots; i++)
		dev->free_slots[i] = dev->caps.recv_slots - 1 - i;
	dev->free_count = dev->free_least = dev->caps.recv_slots;
	dev->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	world->open_devs++;
	if (dev->caps.needs_registered) {
		tern_status status = tn_mem_attach(params->mem, &registrar, dev, &dev->mem_slot);

		if (status != TERN_OK) {
			sim_ops.close(&dev->base);
			return status;
		}
		dev->attached = true;
	}
	opening->devs[which] = dev;
	*out = &dev->base;
	return TERN_OK;
}

static void dev_close(tn_dev *base)
{
	sim_dev *dev = (sim_dev *)base;
	sim_world *world = dev->node->world;

	SIM_CHECK(world, "device", tn_list_empty(&dev->lanes), "%s is closed with lanes", dev->node->name);
	if (dev->attached)
		tn_mem_detach(dev->base.mem, dev->mem_slot);
	while (dev->cq) {
		sim_cqe *e = dev->cq;

		dev->cq = e->next;
		free(e);
	}
	for (tn_list *node; (node = tn_list_pop_front(&dev->inbox));)
		sim_item_free(TN_LIST_ENTRY(node, sim_item, node));
	for (uint32_t i = 0; i <= dev->caps.recv_slots; i++)
		free(dev->slots[i].buf);
	free(dev->slots);
	free(dev->free_slots);
	close(dev->fd);
	if (dev->node->devs[dev->which] == dev)
		dev->node->devs[dev->which] = NULL;
	world->open_devs--;
	free(dev);
}

static void device_event(sim_dev *dev, tern_status status)
{
	tn_event ev = {.type = TN_EV_DEVICE, .status = status};

	sim_cq_push(dev, NULL, &ev, 0, 0);
}

void sim_dev_die(sim_dev *dev)
{
	bool fatal = sim_chance(&dev->node->world->device, 50);

	dev->dead = true;
	device_event(dev, TERN_E_DEVICE);
	TN_LIST_FOREACH(node, &dev->lanes)
		sim_lane_fail(TN_LIST_ENTRY(node, sim_lane, node), fatal ? TERN_E_DEVICE : TERN_E_LANE);
}

void sim_dev_revive(sim_dev *dev)
{
	dev->dead = false;
	device_event(dev, TERN_OK);
}

void sim_dev_cut(sim_dev *dev)
{
	for (tn_list *node; (node = tn_list_pop_front(&dev->inbox));)
		sim_item_free(TN_LIST_ENTRY(node, sim_item, node));
	TN_LIST_FOREACH(node, &dev->lanes) {
		sim_lane *lane = TN_LIST_ENTRY(node, sim_lane, node);

		lane->unreachable = true;
		sim_lane_fail(lane, TERN_E_LANE);
	}
}

/* ---- the completion queue ---- */

static uint64_t cq_delay(sim_dev *dev, sim_lane *lane)
{
	sim_world *world = dev->node->world;
	uint64_t now = world->events.now, delay = sim_between(&world->device, 50, 400);

	if (dev->node->dying)
		return 0;
	if (dev->faults.delay_until > now)
		delay += dev->faults.delay_ns;
	if (dev->faults.reorder_until > now)
		return delay + sim_between(&world->device, 0, 20 * TN_NS_PER_US);
	/* A queue pair's completions come in order. */
	lane->cq_ns = TN_MAX(lane->cq_ns, now + delay);
	return lane->cq_ns - now;
}

static void poke(void *arg, uint64_t value)
{
	(void)value;
	sim_poke(arg);
}

void sim_cq_push(sim_dev *dev, sim_lane *lane, const tn_event *ev, uint64_t delay, uint32_t wr)
{
	sim_cqe *e = sim_alloc(1, sizeof(*e));
	sim_world *world = dev->node->world;

	e->at = world->events.now + delay;
	e->lane = lane;
	e->wr = wr;
	e->ev = *ev;
	if (lane) {
		e->ev.lane = &lane->base;
		e->ev.lane_arg = lane->base.arg;
		lane->cqes++;
	}
	*dev->cq_tail = e;
	dev->cq_tail = &e->next;
	if (delay == 0)
		sim_poke(dev->node);
	else
		sim_at(&world->events, e->at, poke, dev->node, 0);
}

void sim_wr_end(sim_lane *lane, sim_wr *wr, tern_status status)
{
	tn_event ev = {.type = TN_EV_DONE, .status = status, .cookie = wr->cookie};

	TN_ASSERT(wr->live && !wr->over);
	if (wr->silent) {
		wr->live = false;
		lane->live--;
		free(wr->copy);
		wr->copy = NULL;
		return;
	}
	wr->over = true;
	if (status != TERN_OK) { /* nothing else is valid then */
		ev.buf = (void *)(uintptr_t)0xdeadbeefu;
		ev.bytes = UINT64_MAX;
		ev.imm = ev.slot = 0xdeadbeefu;
		sim_covered(lane->dev->node->world, SIM_COVER_FLUSHED);
	}
	sim_cq_push(lane->dev, lane, &ev, cq_delay(lane->dev, lane), (uint32_t)(wr - lane->wrs) + 1);
}

void sim_check_slots(const sim_dev *dev)
{
	const tn_shell_dev *sdev = NULL;
	uint32_t granted = 0;

	TN_LIST_FOREACH(it, &dev->lanes) {
		const tn_shell_lane *slane = TN_LIST_ENTRY(it, sim_lane, node)->base.arg;

		granted += tn_link_lane_slots(slane->link->m, slane->handle);
		sdev = slane->sdev;
	}
	if (!sdev)
		return;
	SIM_CHECK(dev->node->world, "slots", granted <= sdev->pool.taken && granted <= dev->caps.recv_slots,
		  "%s: lanes of a device were granted %u slots; %u count as taken, there are %u",
		  dev->node->name, granted, sdev->pool.taken, dev->caps.recv_slots);
}

uint32_t sim_slot_take(sim_lane *lane)
{
	sim_dev *dev = lane->dev;
	sim_world *world = dev->node->world;
	const tn_shell_lane *slane = lane->base.arg;
	uint32_t index;

	if (dev->free_count == 0) {
		sim_violation(world, "slots", "%s: a message found no receive slot (RNR)", dev->node->name);
		return UINT32_MAX;
	}
	lane->held++;
	SIM_CHECK(world, "slots", lane->held <= tn_link_lane_slots(slane->link->m, slane->handle),
		  "%s: lane %u holds %u arrivals, %u were granted", dev->node->name, lane->number, lane->held,
		  slane->grant);
	sim_check_slots(dev);
	index = dev->free_slots[--dev->free_count];
	dev->free_least = TN_MIN(dev->free_least, dev->free_count);
	dev->slots[index].lane = lane;
	dev->slots[index].used = true;
	if (!dev->slots[index].buf)
		dev->slots[index].buf = sim_alloc(1, dev->caps.send_bytes_max);
	return index;
}

uint32_t sim_slot_beyond(sim_dev *dev)
{
	sim_slot *slot = &dev->slots[dev->caps.recv_slots];

	if (slot->used)
		return UINT32_MAX;
	slot->used = true;
	if (!slot->buf)
		slot->buf = sim_alloc(1, dev->caps.send_bytes_max);
	return dev->caps.recv_slots;
}

void sim_slot_return(sim_dev *dev, uint32_t index)
{
	sim_slot *slot = &dev->slots[index];

	if (slot->lane)
		slot->lane->held--;
	slot->lane = NULL;
	slot->used = false;
	memset(slot->buf, 0xee, TN_MIN(dev->caps.send_bytes_max, 64));
	if (index < dev->caps.recv_slots)
		dev->free_slots[dev->free_count++] = index;
}

static void dev_recv_done(tn_dev *base, const tn_event *event)
{
	sim_dev *dev = (sim_dev *)base;

	if (event->slot > dev->caps.recv_slots || !dev->slots[event->slot].used)
		sim_violation(dev->node->world, "device", "%s: a slot is given back twice", dev->node->name);
	else
		sim_slot_return(dev, event->slot);
}

static bool is_arrival(const sim_cqe *e)
{
	return e->ev.type == TN_EV_RECV || e->ev.type == TN_EV_IMM;
}

static void unlink_cqe(sim_dev *dev, sim_cqe **at)
{
	sim_cqe *e = *at;

	*at = e->next;
	if (dev->cq_tail == &e->next)
		dev->cq_tail = at;
	if (e->lane)
		e->lane->cqes--;
}

void sim_cq_drop_arrivals(sim_lane *lane)
{
	sim_dev *dev = lane->dev;

	for (sim_cqe **at = &dev->cq; *at;) {
		sim_cqe *e = *at;

		if (e->lane != lane || !is_arrival(e)) {
			at = &e->next;
			continue;
		}
		unlink_cqe(dev, at);
		sim_slot_return(dev, e->ev.slot);
		free(e);
	}
}

/* The user sees this event now. */
static void deliver(sim_dev *dev, sim_cqe *e)
{
	sim_world *world = dev->node->world;

	SIM_TRACE(world, e->ev.type * 100 + (e->lane ? e->lane->number : 0), e->ev.status,
		  "%s %s lane %u: event %d at %llu (%llu bytes) %s", dev->node->name,
		  dev->base.provider->name, e->lane ? e->lane->number : 0, e->ev.type,
		  (unsigned long long)e->at, (unsigned long long)e->ev.bytes, tern_status_name(e->ev.status));
	if (e->wr) {
		e->lane->wrs[e->wr - 1].live = false;
		e->lane->live--;
		if (e->lane->state == SIM_LANE_CLOSED)
			sim_covered(world, SIM_COVER_LATE);
	}
	if (is_arrival(e))
		sim_wire_place(e->lane);
}

static int dev_poll(tn_dev *base, tn_event *events, int max)
{
	sim_dev *dev = (sim_dev *)base;
	uint64_t now = dev->node->world->events.now;
	int n = 0;

	if (!tn_list_empty(&dev->inbox))
		sim_wire_take(dev);
	for (sim_cqe **at = &dev->cq; *at && n < max;) {
		sim_cqe *e = *at;

		if (e->at > now && !dev->node->dying) {
			at = &e->next;
			continue;
		}
		unlink_cqe(dev, at);
		deliver(dev, e);
		events[n++] = e->ev;
		free(e);
	}
	return n;
}

/* Looked at in each run of the node. */
static tern_status dev_arm(tn_dev *base)
{
	(void)base;
	return TERN_BUSY;
}

static int dev_fd(tn_dev *base)
{
	return ((sim_dev *)base)->fd;
}

static void dev_flush(tn_lane *lane)
{
	(void)lane;
}

static void dev_counters(tn_dev *base, tern_counter_fn fn, void *arg)
{
	(void)base;
	(void)fn;
	(void)arg;
}

/* ---- the providers ---- */

static const tn_dev_ops sim_ops = {
	.caps = dev_caps,
	.address = dev_address,
	.reach = dev_reach,
	.poll = dev_poll,
	.take = tn_dummy_take,
	.arm = dev_arm,
	.fd = dev_fd,
	.recv_done = dev_recv_done,
	.close = dev_close,
	.lane_create = sim_lane_create,
	.lane_connect = sim_lane_connect,
	.lane_break = sim_lane_break,
	.lane_close = sim_lane_close,
	.lane_drained = sim_lane_drained,
	.lane_destroy = sim_lane_destroy,
	.write = sim_post_write,
	.write_imm = sim_post_write_imm,
	.read = sim_post_read,
	.send = sim_post_send,
	.flush = dev_flush,
	.counters = dev_counters,
};

static tern_status probe(char *reason, size_t reason_bytes)
{
	if (reason)
		snprintf(reason, reason_bytes, "simulated");
	return TERN_OK;
}

static tern_status open_first(const tn_dev_params *params, tn_dev **dev)
{
	return open_which(params, 0, dev);
}

static tern_status open_second(const tn_dev_params *params, tn_dev **dev)
{
	return open_which(params, 1, dev);
}

static const tn_provider first = {.name = "simrc", .probe = probe, .open = open_first};
static const tn_provider second = {.name = "simip", .probe = probe, .open = open_second};
const tn_provider *const sim_providers[SIM_DEVICES + 1] = {&first, &second, NULL};

void sim_devices_open_for(sim_node *node)
{
	opening = node;
}
