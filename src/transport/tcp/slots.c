/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the receive slots: one pool for all lanes of a device, each lane bounded on its own, so that a peer
 * that sends without credit stops itself and nobody else.
 *
 *   free + held = recv_slots;  lane->slots_held <= lane_recv_slots
 *
 * Threads: poll's thread and calls serialised with it. Tests: tests/unit/transport/test_tcp_flow.c.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "transport/tcp/tcp.h"

tern_status tn_tcp_slots_init(tn_tcp_dev *dev)
{
	uint64_t n = dev->opts.recv_slots, bytes = n * dev->opts.send_bytes;

	dev->slots = calloc(n, sizeof(*dev->slots));
	/* not zeroed: pages are touched when the first message lies in them */
	dev->slot_bytes = aligned_alloc(64, bytes);
	if (!dev->slots || !dev->slot_bytes)
		return tn_fail(TERN_E_NOMEM, "%llu bytes for receive slots: lower TERN_TCP_RECV_SLOTS",
			       (unsigned long long)bytes);
	dev->slot_free = 0;
	for (uint64_t i = 0; i < n; i++)
		dev->slots[i].next = i + 1 < n ? (uint32_t)(i + 1) : TN_TCP_SLOT_NONE;
	return TERN_OK;
}

void tn_tcp_slots_fini(tn_tcp_dev *dev)
{
	free(dev->slots);
	free(dev->slot_bytes);
	dev->slots = NULL;
	dev->slot_bytes = NULL;
}

uint32_t tn_tcp_slot_take(tn_tcp_lane *lane)
{
	tn_tcp_dev *dev = lane->dev;
	uint32_t slot = dev->slot_free;

	if (slot == TN_TCP_SLOT_NONE || lane->slots_held >= dev->opts.lane_recv_slots)
		return TN_TCP_SLOT_NONE;
	TN_ASSERT(!dev->slots[slot].held);
	dev->slot_free = dev->slots[slot].next;
	dev->slots[slot].held = true;
	dev->slots[slot].lane = lane;
	lane->slots_held++;
	return slot;
}

/* One slot came free: one lane that waits for one may go on, in turn. */
static void wake_one(tn_tcp_dev *dev)
{
	tn_tcp_lane *lane;

	TN_LIST_FOREACH_SAFE(node, &dev->lanes) {
		lane = TN_LIST_ENTRY(node, tn_tcp_lane, node);
		if (!lane->rx.paused || lane->slots_held >= dev->opts.lane_recv_slots)
			continue;
		tn_list_remove(node);
		tn_list_push_back(&dev->lanes, node);
		tn_tcp_ready(lane);
		return;
	}
}

void tn_tcp_slot_give(tn_tcp_dev *dev, uint32_t slot)
{
	tn_tcp_lane *lane;

	TN_ASSERT(slot < dev->opts.recv_slots && dev->slots[slot].held);
	if (slot >= dev->opts.recv_slots || !dev->slots[slot].held)
		return;
	lane = dev->slots[slot].lane;
	dev->slots[slot] = (tn_tcp_slot){.next = dev->slot_free};
	dev->slot_free = slot;
	if (lane) {
		TN_ASSERT(lane->slots_held > 0);
		lane->slots_held--;
	}
	if (dev->slots_paused)
		wake_one(dev);
}

void tn_tcp_slots_orphan(tn_tcp_lane *lane)
{
	tn_tcp_dev *dev = lane->dev;

	for (uint64_t i = 0; i < dev->opts.recv_slots && lane->slots_held; i++) {
		if (dev->slots[i].lane != lane)
			continue;
		dev->slots[i].lane = NULL;
		lane->slots_held--;
	}
}
