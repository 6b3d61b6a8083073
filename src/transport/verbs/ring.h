/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of one request into a lane's ring and the NIC's queue, inline: it is most of what a small put costs
 * above the library. Chains, flushes, ends: ring.c, which has the invariants.
 *
 * Threads: the lane's lock is held. Tests: tests/conformance, tests/unit/transport/test_verbs_chain.c.
 */
#ifndef TN_TRANSPORT_VERBS_RING_H
#define TN_TRANSPORT_VERBS_RING_H

#include "transport/verbs/verbs.h"

static inline uint32_t tn_vb_in_flight(const tn_vb_lane *lane)
{
	return lane->tail - lane->head;
}

static inline tn_vb_op *tn_vb_op_at(const tn_vb_lane *lane, uint32_t number)
{
	return &lane->ops[number & (tn_vb_lane_dev(lane)->ring - 1)];
}

/* Does it do more at its end than go? */
static inline bool tn_vb_is_special(const tn_vb_op *op)
{
	return op->kind != TN_VB_OP_SILENT || op->bounce != TN_VB_NO_BOUNCE;
}

/* May a user's request be posted? */
static inline tern_status tn_vb_may_post(tn_vb_lane *lane)
{
	if (TN_UNLIKELY(lane->state != TN_VB_UP || lane->post_errno))
		return tn_vb_not_up(lane);
	if (TN_UNLIKELY(tn_vb_in_flight(lane) >= tn_vb_lane_dev(lane)->ops_max))
		return tn_vb_no_room(lane);
	return TERN_OK;
}

/* A place for the op; the request gets its number and asks for a completion if it must. */
static inline void tn_vb_ring_put(tn_vb_lane *lane, struct ibv_send_wr *wr, const tn_vb_op *op)
{
	tn_vb_op *at = tn_vb_op_at(lane, lane->tail);

	TN_ASSERT(tn_vb_in_flight(lane) < tn_vb_lane_dev(lane)->ops_max + TN_VB_OPS_RESERVED);
	*at = *op;
	/* A silent request asks as well now and then: only completions make room in the ring. */
	at->signaled = tn_vb_is_special(op) || (lane->tail & tn_vb_lane_dev(lane)->signal_mask) == 0;
	if (at->signaled)
		wr->send_flags |= IBV_SEND_SIGNALED;
	lane->asked += at->signaled;
	lane->special += tn_vb_is_special(op);
	wr->wr_id = lane->wr_id | lane->tail;
	wr->next = NULL;
	lane->tail++;
}

/* The newest op did not happen. Its bounce buffer is its caller's affair. */
static inline void tn_vb_ring_unput(tn_vb_lane *lane)
{
	TN_ASSERT(lane->tail != lane->head);
	lane->tail--;
	lane->asked -= tn_vb_op_at(lane, lane->tail)->signaled;
	lane->special -= tn_vb_is_special(tn_vb_op_at(lane, lane->tail));
}

static inline int tn_vb_ring_bell(tn_vb_lane *lane, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	int err;

	tn_vb_count(dev, &dev->counters.doorbells, 1);
	err = tn_verbs_post_send(dev->api, lane->qp, first, bad);
	if (err == 0)
		lane->used = true;
	return err;
}

/* Nothing is held, and nothing follows. */
static inline int tn_vb_ring_post_one(tn_vb_lane *lane, struct ibv_send_wr *wr, const tn_vb_op *op)
{
	struct ibv_send_wr *bad = NULL;
	int err;

	tn_vb_ring_put(lane, wr, op);
	err = tn_vb_ring_bell(lane, wr, &bad);
	if (TN_UNLIKELY(err))
		tn_vb_ring_unput(lane);
	return err;
}

/* One request into the ring; the doorbell rings unless more. 0, or the errno: then it was not accepted. */
static inline int tn_vb_ring_post(tn_vb_lane *lane, struct ibv_send_wr *wr, const tn_vb_op *op, bool more)
{
	if (TN_LIKELY(lane->held_count == 0 && !more))
		return tn_vb_ring_post_one(lane, wr, op);
	return tn_vb_ring_post_chain(lane, wr, op, more);
}

#endif
