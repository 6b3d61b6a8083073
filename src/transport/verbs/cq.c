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

#include "base/fail.h"
#include "base/log.h"
#include "transport/verbs/verbs.h"

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
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return TERN_E_INVALID; /* a bug of this side: retrying would repeat it */
	case IBV_WC_REM_OP_ERR:
		return TERN_E_REMOTE;
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
	case IBV_WC_LOC_PROT_ERR:
		return "local memory is not registered";
	case IBV_WC_LOC_LEN_ERR:
		return "a length is out of range";
	default:
		return "see <infiniband/verbs.h>, ibv_wc_status";
	}
}

/* ---- sends ---- */

/* Take the oldest op out of the ring; true if it has an event. Lock held. */
static bool retire(tn_vb_lane *lane, tern_status status, tn_event *event, tn_vb_op_kind *kind)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	tn_vb_op *op = &lane->ops[lane->head & (dev->ring - 1)];

	TN_ASSERT(lane->head != lane->tail);
	*kind = (tn_vb_op_kind)op->kind;
	if (op->bounce != TN_VB_NO_BOUNCE)
		tn_vb_bounce_free(dev, op->bounce);
	lane->head++;
	if (lane->again) {
		lane->again = false;
		atomic_store(&dev->retry, true);
	}
	if (op->kind != TN_VB_OP_USER)
		return false;
	if (status == TERN_OK)
		tn_count(&dev->counters.rx_bytes, op->read_bytes);
	*event = (tn_event){.type = TN_EV_DONE,
			    .status = status,
			    .lane = &lane->base,
			    .lane_arg = lane->base.arg,
			    .cookie = op->cookie};
	return true;
}

/*
 * The op with this number ended, and with it all silent ones before it: a queue pair completes in order, and
 * in an error every request has a completion of its own.
 */
static int send_done(tn_vb_lane *lane, const struct ibv_wc *wc, tn_event *event)
{
	tn_vb_op_kind kind = TN_VB_OP_SILENT;
	uint32_t number = (uint32_t)wc->wr_id;
	bool has_event = false;

	pthread_mutex_lock(&lane->lock);
	if ((uint32_t)(number - lane->head) >= lane->tail - lane->head) {
		pthread_mutex_unlock(&lane->lock);
		tn_count(&tn_vb_lane_dev(lane)->counters.late, 1);
		return 0;
	}
	for (;;) {
		bool last = lane->head == number;

		has_event = retire(lane, last ? status_of(wc->status) : TERN_OK, event, &kind);
		TN_ASSERT_MSG(last || kind == TN_VB_OP_SILENT, "a completion overtook op kind %d", (int)kind);
		if (last)
			break;
	}
	pthread_mutex_unlock(&lane->lock);
	if (kind > TN_VB_OP_SILENT)
		tn_vb_lane_op_done(lane, kind, wc->status);
	if (wc->status == IBV_WC_SUCCESS || kind == TN_VB_OP_HELLO)
		return has_event;
	if (wc->status != IBV_WC_WR_FLUSH_ERR) {
		tn_count(&tn_vb_lane_dev(lane)->counters.failed, 1);
		TN_LOG(INFO, VERBS, "%s: queue pair %u: completion status %d (%s), vendor error 0x%x",
		       tn_vb_lane_dev(lane)->name, wc->qp_num, (int)wc->status, text_of(wc->status),
		       wc->vendor_err);
	}
	tn_vb_lane_fail(lane, TERN_E_LANE);
	return has_event;
}

static int on_send(tn_vb_dev *dev, const struct ibv_wc *wc, tn_event *event)
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
		n += retire(lane, TERN_E_FLUSHED, &events[n], &kind);
	pthread_mutex_unlock(&lane->lock);
	return n;
}

/* ---- receives ---- */

/* Nobody may see it: back into its turn. */
static int drop(tn_vb_dev *dev, uint32_t index)
{
	tn_vb_recv_post(dev, index);
	return 0;
}

static int deliver(tn_vb_lane *lane, const struct ibv_wc *wc, uint32_t index, tn_event *event)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	bool imm = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM;

	*event = (tn_event){.type = imm ? TN_EV_IMM : TN_EV_RECV,
			    .lane = &lane->base,
			    .lane_arg = lane->base.arg,
			    .buf = imm ? NULL : dev->recv_memory + (uint64_t)index * dev->send_bytes,
			    .bytes = wc->byte_len,
			    .imm = imm ? ntohl(wc->imm_data) : 0,
			    .slot = index};
	tn_count(&dev->counters.recvs, !imm);
	tn_count(&dev->counters.rx_bytes, wc->byte_len);
	return 1;
}

static int on_recv(tn_vb_dev *dev, const struct ibv_wc *wc, tn_event *event)
{
	uint32_t index = (uint32_t)wc->wr_id;
	uint32_t generation = (uint32_t)(wc->wr_id >> 32) & 0x7fffffffu;
	tn_vb_lane *lane;

	if (index >= dev->recv_slots + TN_VB_RECV_RESERVE || !dev->bufs[index].posted ||
	    (dev->bufs[index].generation & 0x7fffffffu) != generation) {
		tn_count(&dev->counters.late, 1);
		return 0;
	}
	dev->bufs[index].posted = false;
	lane = tn_map_ptr(&dev->by_qpn, wc->qp_num);
	if (wc->status != IBV_WC_SUCCESS) {
		if (lane && wc->status != IBV_WC_WR_FLUSH_ERR)
			tn_vb_lane_fail(lane, TERN_E_LANE);
		return drop(dev, index);
	}
	if (!lane)
		return drop(dev, index);
	if (wc->opcode == IBV_WC_RECV && (wc->wc_flags & IBV_WC_WITH_IMM)) {
		bool up = tn_vb_lane_control(lane, ntohl(wc->imm_data),
					     dev->recv_memory + (uint64_t)index * dev->send_bytes,
					     wc->byte_len);

		drop(dev, index);
		if (up)
			*event = (tn_event){
				.type = TN_EV_LANE_UP, .lane = &lane->base, .lane_arg = lane->base.arg};
		return up;
	}
	/* A peer that talks before its hello was taken breaks the protocol; after the end nobody listens. */
	if (lane->state == TN_VB_WIRING)
		tn_vb_lane_fail(lane, TERN_E_PROTOCOL);
	if (lane->state != TN_VB_UP)
		return drop(dev, index);
	return deliver(lane, wc, index, event);
}

/* ---- the queue ---- */

static bool refill(tn_vb_dev *dev)
{
	int n;

	if (dev->stash_at < dev->stash_count)
		return true;
	n = dev->api->poll_cq(dev->cq, TN_VB_WC_BATCH, dev->stash);
	dev->stash_at = 0;
	dev->stash_count = n > 0 ? (uint32_t)n : 0;
	if (n < 0)
		TN_LOG_LIMITED(ERROR, VERBS, 1, "%s: ibv_poll_cq failed", dev->name);
	return dev->stash_count > 0;
}

bool tn_vb_cq_peek(tn_vb_dev *dev)
{
	return refill(dev);
}

int tn_vb_cq_poll(tn_vb_dev *dev, tn_event *events, int max, bool *empty)
{
	int n = 0;

	*empty = false;
	while (n < max) {
		const struct ibv_wc *wc;

		if (!refill(dev)) {
			*empty = true;
			break;
		}
		/* Each completion gives one event at most. */
		wc = &dev->stash[dev->stash_at++];
		n += wc->wr_id >> 63 ? on_recv(dev, wc, &events[n]) : on_send(dev, wc, &events[n]);
	}
	return n;
}
