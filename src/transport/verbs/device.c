/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what a poll does beside completions, the device's description for the link and for peers, and the table of ops.
 *
 * Threads: poll and arm in one thread at a time. Tests: tests/conformance,
 * tests/unit/transport/test_verbs_*.c.
 */
#include "base/fail.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

/* Polls between looks at asynchronous events (a system call; arm looks as well), when no deadline is near and
   when one is. */
#define ASYNC_EVERY      1024u
#define ASYNC_EVERY_BUSY 16u

static bool forked(const tn_vb_dev *dev)
{
	return dev->forks != tn_os_fork_generation();
}

/* ---- poll: what is not completions (those: cq.c) ---- */

static int deliver_due(tn_vb_dev *dev, tn_event *events, int max)
{
	tn_list again;
	tn_list *node;
	int n = 0;

	tn_list_init(&again);
	tn_list_splice(&again, &dev->due);
	while (n < max && (node = tn_list_pop_front(&again)))
		n += tn_vb_lane_deliver(TN_LIST_ENTRY(node, tn_vb_lane, due), events + n, max - n);
	tn_list_splice(&dev->due, &again);
	return n;
}

void tn_vb_sweep(tn_vb_rail *rail)
{
	TN_LIST_FOREACH(node, &rail->dev->lanes) {
		tn_vb_lane *lane = TN_LIST_ENTRY(node, tn_vb_lane, all);

		if (lane->rail == rail)
			tn_vb_lane_swept(lane);
	}
}

static void async_run(tn_vb_dev *dev)
{
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (dev->rails[i].cq)
			tn_vb_async(&dev->rails[i]);
	}
}

void tn_vb_look_around(tn_vb_dev *dev, uint32_t polls)
{
	bool busy = dev->transient > 0;

	tn_vb_clock(dev);
	if (polls % (busy ? ASYNC_EVERY_BUSY : ASYNC_EVERY) == 0)
		async_run(dev);
}

static int device_event(tn_vb_dev *dev, tn_event *event)
{
	*event = (tn_event){.type = TN_EV_DEVICE, .status = dev->device_status};
	if (dev->device_status == TERN_OK)
		dev->address_changed = false;
	dev->device_status = TERN_OK;
	return 1;
}

int tn_vb_poll_owed(tn_vb_dev *dev, tn_event *events, int max)
{
	int n = 0;

	if (atomic_load_explicit(&dev->held_any, memory_order_relaxed))
		tn_vb_held_run(dev);
	if (dev->device_status != TERN_OK || dev->address_changed)
		n += device_event(dev, events);
	if (!tn_list_empty(&dev->due))
		n += deliver_due(dev, events + n, max - n);
	return n;
}

static int vb_fd(tn_dev *base)
{
	return tn_vb_dev_of(base)->epoll_fd;
}

static void vb_recv_done(tn_dev *base, const tn_event *event)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	uint32_t rail = event->slot >> 24, index = event->slot & 0xffffffu;

	if (event->slot == TN_SLOT_NONE || forked(dev))
		return;
	TN_ASSERT(rail < dev->rail_count && index < dev->recv_slots + TN_VB_RECV_RESERVE);
	(void)tn_vb_recv_return(&dev->rails[rail], index);
}

/* ---- description ---- */

static uint32_t optional_caps(const tn_vb_dev *dev)
{
	uint32_t flags = TN_CAP_READ | TN_CAP_TAIL_BYTE;

	for (uint32_t i = 0; i < dev->rail_count; i++) {
		const tn_vb_rail *rail = &dev->rails[i];

		if (!rail->cq)
			continue;
		if (rail->attr.max_qp_rd_atom <= 0 || rail->attr.max_qp_init_rd_atom <= 0)
			flags &= ~(uint32_t)TN_CAP_READ;
		if (!rail->in_order)
			flags &= ~(uint32_t)TN_CAP_TAIL_BYTE;
	}
	return flags;
}

static void vb_caps(tn_dev *base, tn_dev_caps *caps)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);

	*caps = (tn_dev_caps){
		/* Not REMOTE_DONE: a completion says that the peer's NIC has the data, not that it is
		   visible. ORDERED_WRITES: no registration asks for relaxed ordering (mr.c). */
		.flags = TN_CAP_WRITE | TN_CAP_WRITE_IMM | TN_CAP_SEND | TN_CAP_ORDERED_WRITES |
			 TN_CAP_PASSIVE_TARGET | optional_caps(dev),
		.write_bytes_max = dev->max_msg,
		.send_bytes_max = dev->send_bytes,
		/* Each rail has as many, so whichever rails the lanes take, what was granted is there. */
		.recv_slots = dev->recv_slots,
		.lane_recv_slots = dev->recv_slots,
		.lane_wrs_max = dev->ops_max,
		.inline_bytes = dev->inline_bytes,
		.needs_registered = true,
		.incast = true,
	};
}

static void own_address(const tn_vb_dev *dev, tn_vb_addr *addr)
{
	uint32_t present = 0;

	*addr = (tn_vb_addr){0};
	for (uint32_t i = 0; i < dev->rail_count; i++)
		present += dev->rails[i].cq != NULL;
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (dev->rails[i].cq)
			tn_vb_rail_describe(&dev->rails[i], tn_vb_gids_each(present),
					    &addr->rails[addr->count++]);
	}
}

static void vb_address(tn_dev *base, tn_blob *blob)
{
	tn_vb_addr addr;

	own_address(tn_vb_dev_of(base), &addr);
	tn_vb_addr_put(&addr, blob);
}

static tern_status vb_reach(tn_dev *base, const tn_blob *blob)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);
	tn_vb_addr own, peer;
	uint32_t usable = 0;
	tn_vb_pair pair;

	if (!tn_vb_addr_get(blob, false, &peer))
		return tn_fail(TERN_E_INVALID, "the peer's verbs address is malformed");
	for (uint32_t i = 0; i < dev->rail_count; i++)
		usable += tn_vb_usable(&dev->rails[i]);
	/* One that is only down may be up again when the lane is made. */
	if (usable == 0 && dev->rails[0].health == TN_VB_RAIL_LOST)
		return tn_fail(TERN_E_UNREACHABLE, "%s is lost: %s", dev->name, dev->rails[0].port.reason);
	own_address(dev, &own);
	return tn_vb_pair_choose(&own, &peer, &pair);
}

static void vb_close(tn_dev *base)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);

	TN_ASSERT(forked(dev) || tn_list_empty(&dev->lanes));
	tn_vb_free(dev);
}

static void vb_flush(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);

	if (forked(tn_vb_lane_dev(lane)))
		return;
	pthread_mutex_lock(&lane->lock);
	if (lane->state == TN_VB_UP)
		tn_vb_ring_flush(lane);
	pthread_mutex_unlock(&lane->lock);
}

const tn_dev_ops tn_vb_ops = {
	.caps = vb_caps,
	.address = vb_address,
	.reach = vb_reach,
	.poll = tn_vb_poll,
	.take = tn_dummy_take,
	.arm = tn_vb_arm,
	.fd = vb_fd,
	.recv_done = vb_recv_done,
	.close = vb_close,
	.lane_create = tn_vb_lane_create,
	.lane_connect = tn_vb_lane_connect,
	.lane_break = tn_vb_lane_break,
	.lane_close = tn_vb_lane_close,
	.lane_drained = tn_vb_lane_drained,
	.lane_destroy = tn_vb_lane_destroy,
	.write = tn_vb_write,
	.write_imm = tn_vb_write_imm,
	.read = tn_vb_read,
	.access = tn_dummy_access,
	.send = tn_vb_send,
	.flush = vb_flush,
	.copy_begin = tn_dummy_copy_begin,
	.copy = tn_dummy_copy,
	.copy_end = tn_dummy_copy,
	.counters = tn_vb_counters_each,
};

const tn_provider tn_provider_verbs = {.name = "verbs",
				       .probe = tn_vb_probe,
				       .open = tn_vb_open,
				       .want = tn_vb_want,
				       .present = tn_vb_present,
				       .describe = tn_vb_describe};
