/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns completions: from ibv_wc to events. Of a failed completion only wr_id, status, qp_num and vendor_err
 * mean anything; which op it was is in wr_id. One path retires ops and frees what they hold, for success,
 * error and flush alike.
 *
 * Threads: in poll's; the lane's lock where its ring is touched. Tests: tests/conformance,
 * tests/unit/transport/test_verbs_errors.c.
 */
#include <arpa/inet.h>
#include <stdio.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/ring.h"

#define POLL_FAILURES_MAX 1000u

/*
 * ACCESS and INVALID say that the request had no effect, and is to blame itself. Where a NIC lost its place in the stream,
 * as rdma_rxe does after packets were lost (REM_INV_REQ), or can't send (LOC_QP_OP), it may have arrived all the same, and
 * goes through on the next lane.
 */
static tern_status status_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return TERN_OK;
	case IBV_WC_WR_FLUSH_ERR:
		return TERN_E_FLUSHED;
	case IBV_WC_REM_ACCESS_ERR:
		return TERN_E_ACCESS;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_PROT_ERR:
		return TERN_E_INVALID; /* a bug of this side: retrying would repeat it */
	default:
		return TERN_E_LANE;
	}
}

static const char *text_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_REM_ACCESS_ERR:
		return "the peer's NIC refused the access";
	case IBV_WC_RETRY_EXC_ERR:
		return "the peer's NIC does not answer";
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return "the peer has no receive buffer";
	case IBV_WC_REM_INV_REQ_ERR:
		return "the peer's NIC takes the request for an invalid one";
	case IBV_WC_REM_OP_ERR:
		return "the peer's NIC could not do it";
	case IBV_WC_LOC_QP_OP_ERR:
		return "this NIC could not do it";
	case IBV_WC_LOC_PROT_ERR:
		return "local memory is not registered";
	case IBV_WC_LOC_LEN_ERR:
		return "a length is out of range";
	default:
		return "see <infiniband/verbs.h>, ibv_wc_status";
	}
}

static tn_counter *counter_of(tn_vb_counters *c, enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_REM_ACCESS_ERR:
		return &c->failed_access;
	case IBV_WC_RETRY_EXC_ERR:
		return &c->failed_retry;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return &c->failed_rnr;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return &c->failed_local;
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
	case IBV_WC_REM_ABORT_ERR:
		return &c->failed_remote;
	default:
		return &c->failed_other;
	}
}

/* The first failure of a lane; what follows it is flushed. */
static void report(tn_vb_lane *lane, const struct ibv_wc *wc)
{
	tn_vb_counters *counters = &tn_vb_lane_dev(lane)->counters;

	tn_count(&counters->failed, 1);
	tn_count(counter_of(counters, wc->status), 1);
	TN_LOG(INFO, VERBS, "%s: lane %u, queue pair %u to %u: completion status %d (%s), vendor error 0x%x",
	       lane->rail->name, lane->index, wc->qp_num, lane->peer.qpn, (int)wc->status,
	       text_of(wc->status), wc->vendor_err);
}

/* ---- sends ---- */

/*
 * The op with this number ended, and with it all silent ones before it: a queue pair completes in order, and
 * in an error every request has a completion of its own.
 */
static int send_done(tn_vb_lane *lane, const struct ibv_wc *wc, tn_event *event)
{
	tn_vb_op_kind kind = TN_VB_OP_SILENT;
	uint32_t number = (uint32_t)wc->wr_id;
	bool has_event = false;

	tn_vb_lane_lock(lane);
	if ((uint32_t)(number - lane->head) >= lane->tail - lane->head) {
		tn_vb_lane_unlock(lane);
		tn_count(&tn_vb_lane_dev(lane)->counters.late, 1);
		return 0;
	}
	if (TN_LIKELY(wc->status == IBV_WC_SUCCESS) && tn_vb_ring_pass(lane, number)) {
		tn_vb_lane_unlock(lane);
		return 0;
	}
	for (;;) {
		bool last = lane->head == number;

		has_event = tn_vb_ring_retire(lane, last ? status_of(wc->status) : TERN_OK, event, &kind);
		TN_ASSERT_MSG(last || kind == TN_VB_OP_SILENT, "a completion overtook op kind %d", (int)kind);
		if (last)
			break;
	}
	tn_vb_lane_unlock(lane);
	if (kind > TN_VB_OP_SILENT)
		tn_vb_lane_op_done(lane, kind, wc->status);
	if (wc->status == IBV_WC_SUCCESS || kind == TN_VB_OP_HELLO)
		return has_event;
	if (wc->status != IBV_WC_WR_FLUSH_ERR)
		report(lane, wc);
	tn_vb_lane_fail(lane, TERN_E_LANE);
	return has_event;
}

static __attribute__((noinline)) int on_send(tn_vb_dev *dev, const struct ibv_wc *wc, tn_event *event)
{
	uint32_t index = (uint32_t)(wc->wr_id >> 51) & 0xfffu;
	uint32_t generation = (uint32_t)(wc->wr_id >> 32) & 0x7ffffu;
	tn_vb_lane *lane = index < TN_VB_LANES_MAX ? dev->table[index] : NULL;

	if (!lane || (lane->generation & 0x7ffffu) != generation) {
		tn_count(&dev->counters.late, 1);
		return 0;
	}
	return send_done(lane, wc, event);
}

int tn_vb_ops_flush(tn_vb_lane *lane, tn_event *events, int max)
{
	tn_vb_op_kind kind;
	int n = 0;

	pthread_mutex_lock(&lane->lock);
	while (n < max && lane->head != lane->tail)
		n += tn_vb_ring_retire(lane, TERN_E_FLUSHED, &events[n], &kind);
	pthread_mutex_unlock(&lane->lock);
	return n;
}

/* ---- receives ---- */

/* Nobody may see it: back into its turn. */
static int drop(tn_vb_rail *rail, uint32_t index)
{
	(void)tn_vb_recv_return(rail, index);
	return 0;
}

static const uint8_t *bytes_of(const tn_vb_rail *rail, uint32_t index)
{
	return rail->recv_memory + (uint64_t)index * rail->dev->send_bytes;
}

/* A message of the provider's own. */
static inline bool is_control(const struct ibv_wc *wc)
{
	return wc->opcode == IBV_WC_RECV && (wc->wc_flags & IBV_WC_WITH_IMM);
}

/* The buffer of an immediate holds nothing: it goes back at once. */
static TN_ALWAYS_INLINE int deliver(tn_vb_lane *lane, const struct ibv_wc *wc, uint32_t index,
				    tn_event *event)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	*event = (tn_event){.type = TN_EV_IMM,
			    .lane = &lane->base,
			    .lane_arg = lane->base.arg,
			    .bytes = wc->byte_len,
			    .slot = TN_SLOT_NONE};
	if (TN_LIKELY(wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)) {
		event->imm = ntohl(wc->imm_data);
		(void)tn_vb_recv_return(lane->rail, index);
	} else {
		event->type = TN_EV_RECV;
		event->buf = bytes_of(lane->rail, index);
		event->slot = tn_vb_slot(lane->rail, index);
		tn_vb_count(dev, &dev->counters.recvs, 1);
	}
	tn_vb_count(dev, &dev->counters.rx_bytes, wc->byte_len);
	return 1;
}

/* Neighbours usually belong to one lane. */
static tn_vb_lane *receiver(tn_vb_rail *rail, uint32_t qpn)
{
	if (TN_LIKELY(rail->last && rail->last_qpn == qpn))
		return rail->last;
	rail->last_qpn = qpn;
	rail->last = tn_map_ptr(&rail->by_qpn, qpn);
	return rail->last;
}

/* What is no message or notification of a lane that is up. */
static __attribute__((noinline)) int on_odd_recv(tn_vb_rail *rail, tn_vb_lane *lane, const struct ibv_wc *wc,
						 uint32_t index, tn_event *event)
{
	if (wc->status != IBV_WC_SUCCESS) {
		if (lane && wc->status != IBV_WC_WR_FLUSH_ERR) {
			report(lane, wc);
			tn_vb_lane_fail(lane, TERN_E_LANE);
		}
		return drop(rail, index);
	}
	if (!lane)
		return drop(rail, index);
	if (is_control(wc)) {
		bool up = tn_vb_lane_control(lane, ntohl(wc->imm_data), bytes_of(rail, index), wc->byte_len);

		drop(rail, index);
		if (up)
			*event = (tn_event){
				.type = TN_EV_LANE_UP, .lane = &lane->base, .lane_arg = lane->base.arg};
		return up;
	}
	/* A peer that talks before its hello was taken breaks the protocol; after the end nobody listens. */
	if (lane->state == TN_VB_WIRING)
		tn_vb_lane_fail(lane, TERN_E_PROTOCOL);
	return drop(rail, index);
}

static TN_ALWAYS_INLINE int on_recv(tn_vb_rail *rail, const struct ibv_wc *wc, tn_event *event)
{
	uint32_t index = (uint32_t)wc->wr_id;
	uint32_t generation = (uint32_t)(wc->wr_id >> 32) & 0x7fffffffu;
	tn_vb_dev *dev = rail->dev;
	tn_vb_lane *lane;

	if (TN_UNLIKELY(index >= dev->recv_slots + TN_VB_RECV_RESERVE || !rail->bufs[index].posted ||
			(rail->bufs[index].generation & 0x7fffffffu) != generation)) {
		tn_count(&dev->counters.late, 1);
		return 0;
	}
	rail->bufs[index].posted = false;
	lane = receiver(rail, wc->qp_num);
	if (TN_LIKELY(wc->status == IBV_WC_SUCCESS && lane && lane->state == TN_VB_UP && !is_control(wc)))
		return deliver(lane, wc, index, event);
	return on_odd_recv(rail, lane, wc, index, event);
}

/* ---- the queue ---- */

/* Once may be chance; a device that never answers again and raises no event is lost all the same. */
static TN_COLD void poll_failed(tn_vb_rail *rail)
{
	TN_LOG_LIMITED(ERROR, VERBS, 1, "%s: ibv_poll_cq failed", rail->name);
	if (++rail->poll_failures < POLL_FAILURES_MAX)
		return;
	snprintf(rail->port.reason, sizeof(rail->port.reason), "ibv_poll_cq failed %u times",
		 rail->poll_failures);
	tn_vb_rail_set_health(rail, TN_VB_RAIL_LOST);
}

static TN_ALWAYS_INLINE bool take_batch(tn_vb_rail *rail)
{
	int n = tn_verbs_poll_cq(rail->dev->api, rail->cq, TN_VB_WC_BATCH, rail->stash);

	rail->stash_at = 0;
	rail->stash_count = n > 0 ? (uint32_t)n : 0;
	rail->short_poll = n < TN_VB_WC_BATCH;
	if (TN_UNLIKELY(n < 0))
		poll_failed(rail);
	return n > 0;
}

bool tn_vb_cq_peek(tn_vb_rail *rail)
{
	return rail->stash_at < rail->stash_count || take_batch(rail);
}

/* Handle completions until there are max events or none is left. Returns the number of events. */
static TN_ALWAYS_INLINE int poll_rail(tn_vb_rail *rail, tn_event *events, int max)
{
	tn_event *event = events, *end = events + max;

	if (!rail->cq)
		return 0;
	while (event < end) {
		const struct ibv_wc *wc;

		if (rail->stash_at == rail->stash_count && !take_batch(rail)) {
			if (TN_UNLIKELY(rail->refill_due))
				(void)tn_vb_refill(rail, TN_VB_REFILL);
			if (TN_UNLIKELY(rail->sweeping > 0))
				tn_vb_sweep(rail);
			break;
		}
		/* Each completion gives one event at most. */
		wc = &rail->stash[rail->stash_at++];
		event += wc->wr_id >> 63 ? on_recv(rail, wc, event) : on_send(rail->dev, wc, event);
		/* What came since the last look waits for the next poll: a look costs as much as a completion.
		   Who sweeps has to know that nothing came after he began. */
		if (rail->stash_at == rail->stash_count && rail->short_poll && rail->sweeping == 0)
			break;
	}
	return (int)(event - events);
}

/* Another rail is the first each time. */
static __attribute__((noinline)) int poll_rails(tn_vb_dev *dev, tn_event *events, int max)
{
	uint32_t at = dev->rail_next;
	int n = 0;

	dev->rail_next = at + 1 < dev->rail_count ? at + 1 : 0;
	for (uint32_t i = 0; i < dev->rail_count && n < max; i++) {
		n += poll_rail(&dev->rails[at], events + n, max - n);
		at = at + 1 < dev->rail_count ? at + 1 : 0;
	}
	return n;
}

int tn_vb_poll(tn_dev *base, tn_event *events, int max)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	uint32_t polls = dev->polls;
	int n = 0;

	if (TN_UNLIKELY(dev->forks != tn_os_fork_generation() || max <= 0))
		return 0;
	dev->polls = polls + 1;
	if (TN_UNLIKELY(dev->transient > 0 || polls % TN_VB_LOOK_EVERY == 0))
		tn_vb_look_around(dev, polls);
	if (TN_UNLIKELY(atomic_load_explicit(&dev->held_any, memory_order_relaxed) ||
			dev->device_status != TERN_OK || dev->address_changed || !tn_list_empty(&dev->due)))
		n = tn_vb_poll_owed(dev, events, max);
	if (TN_LIKELY(dev->rail_count == 1))
		n += poll_rail(&dev->rails[0], events + n, max - n);
	else
		n += poll_rails(dev, events + n, max - n);
	if (TN_CHECK_ENABLED(2)) {
		TN_LIST_FOREACH(node, &dev->lanes)
			tn_vb_lane_check(TN_LIST_ENTRY(node, tn_vb_lane, all));
	}
	return n;
}
