/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns queue pairs: creation with inline probed down to 0, and the ladder INIT, RTR, RTS, ERR.
 *
 *   rnr_retry 7 (for ever) with min_rnr_timer 12 is a net only: credits keep buffers ahead of messages, and a
 *   watch over stuck lanes bounds it
 *   path MTU = the smaller of both ports; reads in flight = the smaller of what both sides can
 *
 * Must not decide when: lane.c does. Threads: serialised with poll.
 * Tests: tests/unit/transport/test_verbs_life.c.
 */
#include <errno.h>

#include "base/fail.h"
#include "base/log.h"
#include "transport/verbs/verbs.h"

#define RNR_RETRIES 7 /* for ever */
#define HOP_LIMIT   64

tern_status tn_vb_qp_create(tn_vb_rail *rail, uint32_t max_inline, struct ibv_qp **qp, uint32_t *inline_bytes)
{
	const tn_vb_dev *dev = rail->dev;
	struct ibv_qp_init_attr attr;

	for (;;) {
		attr = (struct ibv_qp_init_attr){
			.send_cq = rail->cq,
			.recv_cq = rail->cq,
			.srq = rail->srq,
			.qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = dev->ops_max + TN_VB_OPS_RESERVED,
				.max_send_sge = TN_IOV_MAX,
				.max_inline_data = max_inline},
		};
		*qp = dev->api->create_qp(rail->pd, &attr);
		if (*qp)
			break;
		/* How much fits inline differs between devices and nobody says it beforehand. */
		if (max_inline == 0 || (errno != EINVAL && errno != ENOMEM))
			return tn_vb_fail_errno(
				"ibv_create_qp",
				"%u requests of %d pieces on %s (it has at most %d queue pairs)",
				dev->ops_max + TN_VB_OPS_RESERVED, TN_IOV_MAX, rail->name, rail->attr.max_qp);
		max_inline = max_inline > 32 ? max_inline / 2 : 0;
	}
	if (inline_bytes)
		*inline_bytes = TN_MIN(attr.cap.max_inline_data, TN_VB_INLINE_WANT);
	return TERN_OK;
}

static tern_status modify(const tn_vb_rail *rail, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			  const char *what)
{
	int err = rail->dev->api->modify_qp(qp, attr, mask);

	if (err == 0)
		return TERN_OK;
	/* The function returns the errno and may not set it. */
	errno = err > 0 ? err : errno;
	return tn_fail_errno(TERN_E_DEVICE, "ibv_modify_qp", "%s on %s", what, rail->name);
}

/* To RTR: here the kernel looks for the route and the neighbour of the peer's address (RoCE). */
static tern_status to_peer(tn_vb_lane *lane, struct ibv_qp_attr *attr, int mask)
{
	char own[48], peer[48];
	tern_status status = modify(lane->rail, lane->qp, attr, mask, "RTR");

	if (status == TERN_OK ||
	    (errno != ENETUNREACH && errno != EHOSTUNREACH && errno != ETIMEDOUT && errno != EADDRNOTAVAIL))
		return status;
	tn_vb_gid_text(&lane->own_gid, own, sizeof(own));
	tn_vb_gid_text(&lane->peer_gid, peer, sizeof(peer));
	return tn_fail_errno(TERN_E_UNREACHABLE, "ibv_modify_qp",
			     "no way from %s (%s) to %s: see 'ip route get' and 'ip neigh' for that address",
			     own, lane->rail->name, peer);
}

tern_status tn_vb_qp_init(tn_vb_rail *rail, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = 0,
		.port_num = rail->port.number,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};

	return modify(rail, qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		      "INIT");
}

static struct ibv_ah_attr path_of(const tn_vb_lane *lane)
{
	const tn_vb_rail *rail = lane->rail;
	const tn_vb_opts *opts = &rail->dev->opts;
	struct ibv_ah_attr path = {.dlid = lane->peer.lid,
				   .sl = lane->bulk ? opts->bulk_service_level : opts->service_level,
				   .port_num = rail->port.number};

	if (rail->port.ethernet) {
		path.is_global = 1;
		path.grh.dgid = lane->peer_gid;
		path.grh.sgid_index = lane->sgid_index;
		path.grh.hop_limit = HOP_LIMIT;
		path.grh.traffic_class = lane->bulk ? opts->bulk_traffic_class : opts->traffic_class;
	}
	return path;
}

static uint8_t to_u8(int value)
{
	return (uint8_t)TN_MIN(TN_MAX(value, 0), 255);
}

tern_status tn_vb_qp_wire(tn_vb_lane *lane)
{
	const tn_vb_rail *rail = lane->rail;
	const tn_vb_opts *opts = &rail->dev->opts;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)TN_MIN(lane->mine.mtu, lane->peer.mtu),
		.dest_qp_num = lane->peer.qpn,
		.rq_psn = lane->peer.psn,
		.max_dest_rd_atomic = to_u8(rail->attr.max_qp_rd_atom),
		.min_rnr_timer = opts->min_rnr_timer,
		.ah_attr = path_of(lane),
	};

	TN_TRY(to_peer(lane, &attr,
		       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	lane->wired = true;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = opts->timeout,
		.retry_cnt = opts->retry_count,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = lane->own.psn,
		.max_rd_atomic = TN_MIN(to_u8(rail->attr.max_qp_init_rd_atom), lane->peer.rd_atomic),
	};
	return modify(rail, lane->qp, &attr,
		      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			      IBV_QP_MAX_QP_RD_ATOMIC,
		      "RTS");
}

void tn_vb_qp_error(tn_vb_lane *lane)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (modify(lane->rail, lane->qp, &attr, IBV_QP_STATE, "ERR") != TERN_OK)
		TN_LOG(WARN, VERBS, "%s: the lane ends by destruction instead", tn_detail_get());
}

bool tn_vb_qp_reset(tn_vb_lane *lane)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	return modify(lane->rail, lane->qp, &attr, IBV_QP_STATE, "RESET") == TERN_OK &&
	       tn_vb_qp_init(lane->rail, lane->qp) == TERN_OK && tn_vb_qp_wire(lane) == TERN_OK;
}
