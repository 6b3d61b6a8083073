/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns queue pairs: creation with inline probed down to 0, and the ladder INIT, RTR, RTS, ERR.
 *
 *   rnr_retry 7 (for ever) with min_rnr_timer 12 is a net only: credits keep buffers ahead of messages
 *   path MTU = the smaller of both ports; reads in flight = the smaller of what both sides can
 *
 * Must not decide when: lane.c does. Threads: serialised with poll.
 * Tests: tests/unit/transport/test_verbs_life.c.
 */
#include <errno.h>

#include "base/fail.h"
#include "base/log.h"
#include "transport/verbs/verbs.h"

#define TIMEOUT_EXPONENT 14 /* 4.096 us * 2^14 = 67 ms until a packet is sent again */
#define RETRIES          6  /* 7 would mean for ever to Soft-RoCE, which then never tells of a dead peer */
#define RNR_RETRIES      7  /* for ever */
#define MIN_RNR_TIMER    12 /* 0.64 ms; 0 would mean 655 ms */
#define HOP_LIMIT        64

tern_status tn_vb_qp_create(tn_vb_dev *dev, uint32_t max_inline, struct ibv_qp **qp, uint32_t *inline_bytes)
{
	struct ibv_qp_init_attr attr;

	for (;;) {
		attr = (struct ibv_qp_init_attr){
			.send_cq = dev->cq,
			.recv_cq = dev->cq,
			.srq = dev->srq,
			.qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = dev->ops_max + TN_VB_OPS_RESERVED,
				.max_send_sge = TN_IOV_MAX,
				.max_inline_data = max_inline},
		};
		*qp = dev->api->create_qp(dev->pd, &attr);
		if (*qp)
			break;
		/* How much fits inline differs between devices and nobody says it beforehand. */
		if (max_inline == 0 || (errno != EINVAL && errno != ENOMEM))
			return tn_fail_errno(errno == ENOMEM ? TERN_E_LIMIT : TERN_E_DEVICE, "ibv_create_qp",
					     "%u requests of %d pieces on %s (it has at most %d queue pairs)",
					     dev->ops_max + TN_VB_OPS_RESERVED, TN_IOV_MAX, dev->name,
					     dev->attr.max_qp);
		max_inline = max_inline > 32 ? max_inline / 2 : 0;
	}
	if (inline_bytes)
		*inline_bytes = TN_MIN(attr.cap.max_inline_data, TN_VB_INLINE_WANT);
	return TERN_OK;
}

static tern_status modify(tn_vb_lane *lane, struct ibv_qp_attr *attr, int mask, const char *what)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	int err = dev->api->modify_qp(lane->qp, attr, mask);

	if (err == 0)
		return TERN_OK;
	/* The function returns the errno and may not set it. */
	errno = err > 0 ? err : errno;
	return tn_fail_errno(TERN_E_DEVICE, "ibv_modify_qp", "%s on %s", what, dev->name);
}

tern_status tn_vb_qp_init(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = 0,
		.port_num = dev->port.number,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};

	return modify(lane, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		      "INIT");
}

static struct ibv_ah_attr path_to(const tn_vb_dev *dev, const tn_vb_dev_addr *peer)
{
	struct ibv_ah_attr path = {
		.dlid = peer->lid, .sl = (uint8_t)dev->opts.service_level, .port_num = dev->port.number};

	if (dev->port.ethernet) {
		path.is_global = 1;
		path.grh.dgid = peer->gid;
		path.grh.sgid_index = (uint8_t)dev->port.gid_index;
		path.grh.hop_limit = HOP_LIMIT;
		path.grh.traffic_class = (uint8_t)dev->opts.traffic_class;
	}
	return path;
}

tern_status tn_vb_qp_wire(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	uint8_t own_served = (uint8_t)TN_MIN(TN_MAX(dev->attr.max_qp_rd_atom, 0), 255);
	uint8_t own_asked = (uint8_t)TN_MIN(TN_MAX(dev->attr.max_qp_init_rd_atom, 0), 255);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = TN_MIN(dev->port.mtu, (enum ibv_mtu)lane->peer_dev.mtu),
		.dest_qp_num = lane->peer.qpn,
		.rq_psn = lane->peer.psn,
		.max_dest_rd_atomic = own_served,
		.min_rnr_timer = MIN_RNR_TIMER,
		.ah_attr = path_to(dev, &lane->peer_dev),
	};

	TN_TRY(modify(lane, &attr,
		      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		      "RTR"));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = TIMEOUT_EXPONENT,
		.retry_cnt = RETRIES,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = lane->own.psn,
		.max_rd_atomic = TN_MIN(own_asked, lane->peer_dev.rd_atomic),
	};
	return modify(lane, &attr,
		      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			      IBV_QP_MAX_QP_RD_ATOMIC,
		      "RTS");
}

void tn_vb_qp_error(tn_vb_lane *lane)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (modify(lane, &attr, IBV_QP_STATE, "ERR") != TERN_OK)
		TN_LOG(WARN, VERBS, "%s: the lane ends by destruction instead", tn_detail_get());
}

bool tn_vb_qp_reset(tn_vb_lane *lane)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	return modify(lane, &attr, IBV_QP_STATE, "RESET") == TERN_OK && tn_vb_qp_init(lane) == TERN_OK &&
	       tn_vb_qp_wire(lane) == TERN_OK;
}
