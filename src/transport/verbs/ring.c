/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a lane's ring of ops: from one ibv_send_wr to a place in the ring and the NIC's queue, and out again;
 * chains of requests that share a doorbell; and the stack of bounce buffers.
 *
 *   A request with `more` is copied and held; the next without it, a full chain, a flush or a poll posts all
 *   that is held with one call. What was held was accepted, so when the NIC takes only a part of a chain:
 *     no room        the rest stays held and goes out when something completed
 *     refused        the rest are orphans: their ends are owed to the user, and the lane is over, since what
 *                    follows must not overtake them
 *   The request that rang the bell was not accepted yet: it alone is given back to its caller.
 *
 * Threads: posts of one lane are serialised by the caller; the lane's lock covers them against poll.
 * Tests: tests/conformance, tests/unit/transport/test_verbs_errors.c, test_verbs_chain.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "transport/verbs/ring.h"

tern_status tn_vb_no_room(tn_vb_lane *lane)
{
	lane->again = true;
	tn_count(&tn_vb_lane_dev(lane)->counters.again, 1);
	return TERN_AGAIN;
}

tern_status tn_vb_not_up(const tn_vb_lane *lane)
{
	return tn_fail(lane->state < TN_VB_UP ? TERN_E_STATE : TERN_E_LANE, "the lane is %s",
		       lane->state < TN_VB_UP ? "not up yet" : "down or closed");
}

tern_status tn_vb_refused(tn_vb_lane *lane, int err)
{
	/* Full all the same: some devices count otherwise. Something is in flight, so room will come. */
	if (err == ENOMEM && tn_vb_in_flight(lane) > 0)
		return tn_vb_no_room(lane);
	if (lane->post_errno)
		return tn_fail(TERN_E_LANE, "%s refused an earlier request of the chain: %s",
			       lane->rail->name, strerror(lane->post_errno));
	errno = err > 0 ? err : errno;
	return tn_fail_errno(err == EINVAL ? TERN_E_INVALID : TERN_E_DEVICE, "ibv_post_send", "on %s",
			     lane->rail->name);
}

/* ---- bounce buffers ---- */

uint32_t tn_vb_bounce_take(tn_vb_dev *dev)
{
	uint32_t index = TN_VB_NO_BOUNCE;

	pthread_mutex_lock(&dev->bounce_lock);
	if (dev->bounce_left > 0)
		index = dev->bounce_free[--dev->bounce_left];
	pthread_mutex_unlock(&dev->bounce_lock);
	return index;
}

void tn_vb_bounce_free(tn_vb_dev *dev, uint32_t index)
{
	bool first;

	pthread_mutex_lock(&dev->bounce_lock);
	first = dev->bounce_left == 0;
	TN_ASSERT(dev->bounce_left < dev->bounce_count);
	dev->bounce_free[dev->bounce_left++] = index;
	pthread_mutex_unlock(&dev->bounce_lock);
	if (first)
		atomic_store(&dev->retry, true);
}

/* ---- in ---- */

/* poll is to look after this lane. */
static void tell_poll(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	pthread_mutex_lock(&dev->held_lock);
	if (!tn_list_linked(&lane->waiting))
		tn_list_push_back(&dev->held_lanes, &lane->waiting);
	atomic_store(&dev->held_any, true);
	pthread_mutex_unlock(&dev->held_lock);
}

/* Copy the request with all that it points to. */
static void hold(tn_vb_lane *lane, const struct ibv_send_wr *wr)
{
	tn_vb_held *held = &lane->held[lane->held_count++];

	held->wr = *wr;
	held->wr.sg_list = held->sge;
	if (wr->num_sge > 0)
		memcpy(held->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(held->sge[0]));
	if (wr->send_flags & IBV_SEND_INLINE) {
		uint32_t at = 0;

		for (int i = 0; i < wr->num_sge; i++) {
			TN_ASSERT(held->sge[i].length <= sizeof(held->bytes) - at);
			memcpy(held->bytes + at, (const void *)(uintptr_t)held->sge[i].addr,
			       held->sge[i].length);
			held->sge[i].addr = (uintptr_t)(held->bytes + at);
			at += held->sge[i].length;
		}
	}
	tn_count(&tn_vb_lane_dev(lane)->counters.held, 1);
}

/* Post what is held; what was not taken moves to the front. Returns the errno. */
static int post_held(tn_vb_lane *lane)
{
	struct ibv_send_wr *bad = NULL;
	uint32_t taken = 0;
	int err;

	for (uint32_t i = 0; i < lane->held_count; i++) {
		lane->held[i].wr.sg_list = lane->held[i].sge;
		lane->held[i].wr.next = i + 1 < lane->held_count ? &lane->held[i + 1].wr : NULL;
	}
	err = tn_vb_ring_bell(lane, &lane->held[0].wr, &bad);
	if (err == 0) {
		lane->held_count = 0;
		return 0;
	}
	while (taken < lane->held_count && &lane->held[taken].wr != bad)
		taken++;
	if (taken == lane->held_count) /* bad is none of ours: nothing is known to have been taken */
		taken = 0;
	for (uint32_t i = taken; i < lane->held_count && taken > 0; i++) {
		tn_vb_held *from = &lane->held[i], *to = &lane->held[i - taken];
		int64_t moved = (int64_t)((uintptr_t)to->bytes - (uintptr_t)from->bytes);

		*to = *from;
		for (int k = 0; k < to->wr.num_sge && (to->wr.send_flags & IBV_SEND_INLINE); k++)
			to->sge[k].addr += (uint64_t)moved;
	}
	lane->held_count -= taken;
	lane->used = lane->used || taken > 0;
	return err;
}

static bool is_room(const tn_vb_lane *lane, int err)
{
	return err == ENOMEM && tn_vb_in_flight(lane) > lane->held_count;
}

void tn_vb_orphan(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	uint32_t first = lane->tail - lane->held_count;

	for (uint32_t number = first; number != lane->tail; number++) {
		tn_vb_op *op = tn_vb_op_at(lane, number);

		if (op->bounce != TN_VB_NO_BOUNCE)
			tn_vb_bounce_free(dev, op->bounce);
		if (op->kind == TN_VB_OP_USER) {
			TN_ASSERT(lane->orphan_count < TN_VB_HELD_MAX);
			lane->orphans[lane->orphan_count++] = op->cookie;
		}
	}
	while (lane->held_count > 0) {
		tn_vb_ring_unput(lane);
		lane->held_count--;
	}
	if (lane->post_errno == 0)
		lane->post_errno = EIO;
	tell_poll(lane);
}

/* The NIC refused what is held, for good. */
static void refuse_held(tn_vb_lane *lane, int err)
{
	lane->post_errno = err > 0 ? err : EIO;
	tn_vb_orphan(lane);
	tn_vb_kick(tn_vb_lane_dev(lane));
}

void tn_vb_ring_flush(tn_vb_lane *lane)
{
	int err;

	if (lane->held_count == 0 || lane->post_errno)
		return;
	err = post_held(lane);
	if (err == 0)
		return;
	if (is_room(lane, err))
		lane->again = true; /* retire wakes poll, which tries again */
	else
		refuse_held(lane, err);
}

int tn_vb_ring_post_chain(tn_vb_lane *lane, struct ibv_send_wr *wr, const tn_vb_op *op, bool more)
{
	int err;

	/* A rest that the NIC had no room for goes first. */
	if (lane->held_count == TN_VB_HELD_MAX) {
		tn_vb_ring_flush(lane);
		if (lane->post_errno || lane->held_count == TN_VB_HELD_MAX)
			return lane->post_errno ? lane->post_errno : ENOMEM;
	}
	if (lane->held_count == 0 && !more)
		return tn_vb_ring_post_one(lane, wr, op);
	tn_vb_ring_put(lane, wr, op);
	hold(lane, wr);
	if (more && lane->held_count < TN_VB_HELD_MAX) {
		if (lane->held_count == 1)
			tell_poll(lane);
		return 0;
	}
	err = post_held(lane);
	if (err == 0)
		return 0;
	/* This request was the last, so it was not taken. */
	TN_ASSERT(lane->held_count > 0);
	lane->held_count--;
	tn_vb_ring_unput(lane);
	if (lane->held_count == 0)
		return err;
	if (is_room(lane, err)) {
		lane->again = true;
		tell_poll(lane);
	} else {
		refuse_held(lane, err);
	}
	return err;
}

/* ---- the provider's own ---- */

static uint32_t control_of(tn_vb_op_kind kind)
{
	return kind == TN_VB_OP_HELLO ? TN_VB_HELLO : TN_VB_BYE;
}

bool tn_vb_post_own(tn_vb_lane *lane, tn_vb_op_kind kind, const void *data, uint32_t bytes)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	struct ibv_sge sge = {.addr = (uintptr_t)data, .length = bytes};
	struct ibv_send_wr out = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(control_of(kind))};
	tn_vb_op op = {.bounce = TN_VB_NO_BOUNCE, .kind = (uint8_t)kind};
	bool used = lane->used;

	if (tn_vb_in_flight(lane) >= dev->ops_max + TN_VB_OPS_RESERVED)
		return false;
	/* Keepalive and marker carry nothing: an empty write needs no buffer and no key at the peer. */
	if (kind == TN_VB_OP_KEEPALIVE || kind == TN_VB_OP_MARKER)
		out.opcode = IBV_WR_RDMA_WRITE;
	if (bytes > 0) {
		out.sg_list = &sge;
		out.num_sge = 1;
		if (bytes <= dev->inline_bytes) {
			out.send_flags = IBV_SEND_INLINE;
		} else {
			op.bounce = tn_vb_bounce_take(dev);
			if (op.bounce == TN_VB_NO_BOUNCE)
				return false;
			sge.addr = (uintptr_t)(dev->bounce_memory + (uint64_t)op.bounce * dev->send_bytes);
			sge.lkey = lane->rail->bounce_lkey;
			memcpy((void *)(uintptr_t)sge.addr, data, bytes);
		}
	}
	if (tn_vb_ring_post(lane, &out, &op, false) != 0) {
		if (op.bounce != TN_VB_NO_BOUNCE)
			tn_vb_bounce_free(dev, op.bounce);
		return false;
	}
	lane->used = used;
	return true;
}

/* ---- out ---- */

static void room_came(tn_vb_lane *lane)
{
	lane->again = false;
	atomic_store(&tn_vb_lane_dev(lane)->retry, true);
	if (lane->held_count > 0)
		tell_poll(lane);
}

bool tn_vb_ring_pass(tn_vb_lane *lane, uint32_t number)
{
	if (lane->special > 0)
		return false;
	TN_ASSERT(tn_vb_op_at(lane, number)->signaled && lane->asked > 0);
	lane->asked--;
	lane->head = number + 1;
	if (TN_UNLIKELY(lane->again))
		room_came(lane);
	return true;
}

bool tn_vb_ring_retire(tn_vb_lane *lane, tern_status status, tn_event *event, tn_vb_op_kind *kind)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	tn_vb_op *op = tn_vb_op_at(lane, lane->head);

	TN_ASSERT(lane->head != lane->tail);
	*kind = (tn_vb_op_kind)op->kind;
	if (op->bounce != TN_VB_NO_BOUNCE)
		tn_vb_bounce_free(dev, op->bounce);
	lane->asked -= op->signaled;
	lane->special -= tn_vb_is_special(op);
	lane->head++;
	if (TN_UNLIKELY(lane->again))
		room_came(lane);
	if (op->kind != TN_VB_OP_USER)
		return false;
	if (op->read_bytes > 0 && status == TERN_OK)
		tn_vb_count(dev, &dev->counters.rx_bytes, op->read_bytes);
	*event = (tn_event){.type = TN_EV_DONE,
			    .status = status,
			    .lane = &lane->base,
			    .lane_arg = lane->base.arg,
			    .cookie = op->cookie};
	return true;
}

void tn_vb_held_run(tn_vb_dev *dev)
{
	tn_list lanes, *node;

	tn_list_init(&lanes);
	pthread_mutex_lock(&dev->held_lock);
	atomic_store(&dev->held_any, false);
	tn_list_splice(&lanes, &dev->held_lanes);
	pthread_mutex_unlock(&dev->held_lock);
	for (;;) {
		tn_vb_lane *lane;
		bool over;

		/* A post may look at the node's links meanwhile: under its lock. */
		pthread_mutex_lock(&dev->held_lock);
		node = tn_list_pop_front(&lanes);
		pthread_mutex_unlock(&dev->held_lock);
		if (!node)
			return;
		lane = TN_LIST_ENTRY(node, tn_vb_lane, waiting);
		pthread_mutex_lock(&lane->lock);
		if (lane->state == TN_VB_UP)
			tn_vb_ring_flush(lane);
		over = lane->post_errno != 0;
		pthread_mutex_unlock(&lane->lock);
		if (!over)
			continue;
		if (lane->state < TN_VB_DRAINING)
			TN_LOG(WARN, VERBS, "lane %u: the NIC %s refused a chain of requests: %s",
			       lane->index, lane->rail->name, strerror(lane->post_errno));
		tn_vb_lane_make_due(lane);
		tn_vb_lane_fail(lane, TERN_E_LANE);
	}
}
