/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's queue pairs: creation, the ladder of states with what each step must say, destruction, posts.
 * What happens to a posted request is in wire.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake_ibverbs/fake_impl.h"

/* With fake_keep_stale the lowest that is free, so that numbers come again soon. */
static uint32_t next_qpn(fake_nic *nic)
{
	uint32_t qpn = 0x11;

	if (!fake.keep_stale)
		return nic->next_qpn++ & 0xffffff;
	while (fake_qp_find(nic, qpn))
		qpn++;
	return qpn;
}

struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	fake_ctx *ctx = fake_ctx_of(pd->context);
	fake_qp *qp = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_call(pd->context, "create_qp")) {
		if ((int)attr->cap.max_send_wr > ctx->nic->is.max_qp_wr ||
		    attr->cap.max_inline_data > ctx->nic->is.max_inline ||
		    attr->cap.max_send_sge > FAKE_SGE_MAX || attr->qp_type != IBV_QPT_RC) {
			errno = EINVAL;
		} else {
			qp = calloc(1, sizeof(*qp));
			qp->ibv = (struct ibv_qp){.context = pd->context,
						  .pd = pd,
						  .send_cq = attr->send_cq,
						  .recv_cq = attr->recv_cq,
						  .srq = attr->srq,
						  .qp_num = next_qpn(ctx->nic),
						  .state = IBV_QPS_RESET,
						  .qp_type = IBV_QPT_RC};
			qp->life = ++fake.lives;
			qp->ctx = ctx;
			qp->max_wr = attr->cap.max_send_wr;
			/* Devices give more than was asked for. */
			attr->cap.max_inline_data = ctx->nic->is.max_inline;
			qp->max_inline = ctx->nic->is.max_inline;
			qp->sig_all = attr->sq_sig_all;
			tn_list_init(&qp->wqes);
			tn_list_push_back(&fake.qps, &qp->all);
			((fake_pd *)pd)->children++;
			((fake_cq *)attr->send_cq)->children++;
			((fake_srq *)attr->srq)->children++;
			fake.counts.qps++;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return qp ? &qp->ibv : NULL;
}

static void drop_wqes(fake_qp *qp)
{
	tn_list *node;

	while ((node = tn_list_pop_front(&qp->wqes)))
		fake_wqe_free(TN_LIST_ENTRY(node, fake_wqe, link));
}

static bool legal(enum ibv_qp_state from, enum ibv_qp_state to)
{
	return to == IBV_QPS_ERR || to == IBV_QPS_RESET || (to == IBV_QPS_INIT && from == IBV_QPS_RESET) ||
	       (to == IBV_QPS_RTR && from == IBV_QPS_INIT) || (to == IBV_QPS_RTS && from == IBV_QPS_RTR);
}

static void to_reset(fake_qp *qp)
{
	drop_wqes(qp);
	fake_cq_forget((fake_cq *)qp->ibv.send_cq, qp);
	qp->in_queue = qp->silent = qp->reads_begun = 0;
	qp->life = ++fake.lives;
	memset(&qp->attr, 0, sizeof(qp->attr));
}

static int to_init(fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	static const int must = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

	if ((mask & must) != must || attr->port_num < 1 || attr->port_num > qp->ctx->nic->is.ports)
		return EINVAL;
	qp->attr.port_num = attr->port_num;
	qp->attr.qp_access_flags = attr->qp_access_flags;
	return 0;
}

static int to_rtr(fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	static const int must = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const fake_nic *nic = qp->ctx->nic;

	if ((mask & must) != must || attr->path_mtu > nic->is.mtu || attr->path_mtu < IBV_MTU_256 ||
	    attr->max_dest_rd_atomic > nic->is.max_rd_atomic)
		return EINVAL;
	if (nic->is.infiniband ? !attr->ah_attr.is_global && attr->ah_attr.dlid == 0
			       : !attr->ah_attr.is_global)
		return EINVAL;
	/* The entry may have moved away since it was looked up. */
	if (attr->ah_attr.is_global && !fake_gid_of(nic, attr->ah_attr.grh.sgid_index, &qp->sgid))
		return EINVAL;
	if (attr->min_rnr_timer == 0)
		fake_fault("min_rnr_timer 0 is 655 ms");
	if (((fake_srq *)qp->ibv.srq)->count == 0)
		fake.counts.early_rts++;
	qp->attr.ah_attr = attr->ah_attr;
	qp->attr.path_mtu = attr->path_mtu;
	qp->attr.dest_qp_num = attr->dest_qp_num;
	qp->attr.rq_psn = attr->rq_psn;
	qp->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
	qp->attr.min_rnr_timer = attr->min_rnr_timer;
	return 0;
}

static int to_rts(fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	static const int must = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				IBV_QP_MAX_QP_RD_ATOMIC;

	if ((mask & must) != must || attr->max_rd_atomic > qp->ctx->nic->is.max_rd_atomic)
		return EINVAL;
	if (attr->timeout == 0)
		fake_fault("timeout 0 waits for ever");
	qp->attr.sq_psn = attr->sq_psn;
	qp->attr.timeout = attr->timeout;
	qp->attr.retry_cnt = attr->retry_cnt;
	qp->attr.rnr_retry = attr->rnr_retry;
	qp->attr.max_rd_atomic = attr->max_rd_atomic;
	return 0;
}

static int modify(fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	int err = 0;

	if (!(mask & IBV_QP_STATE) || !legal(qp->ibv.state, attr->qp_state))
		return EINVAL;
	switch (attr->qp_state) {
	case IBV_QPS_RESET:
		to_reset(qp);
		break;
	case IBV_QPS_INIT:
		err = to_init(qp, attr, mask);
		break;
	case IBV_QPS_RTR:
		err = to_rtr(qp, attr, mask);
		break;
	case IBV_QPS_RTS:
		err = to_rts(qp, attr, mask);
		break;
	default:
		fake_qp_error(qp);
		return 0;
	}
	if (!err)
		qp->ibv.state = attr->qp_state;
	return err;
}

int fake_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_call(base->context, "modify_qp");
	if (!err)
		err = modify((fake_qp *)base, attr, mask);
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
	return err;
}

/* Only whole messages, and only what the caller asked about. */
int fake_query_qp_data_in_order(struct ibv_qp *base, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)op;
	return flags == 0 && ((fake_qp *)base)->ctx->nic->is.in_order;
}

/* Events that were not taken must not point to it. */
static void forget_events(fake_qp *qp)
{
	for (uint32_t i = qp->ctx->async_head; i != qp->ctx->async_tail; i++) {
		struct ibv_async_event *event = &qp->ctx->async[i % FAKE_ASYNC_MAX];

		if (event->element.qp == &qp->ibv)
			event->element.qp = NULL;
	}
}

int fake_destroy_qp(struct ibv_qp *base)
{
	fake_qp *qp = (fake_qp *)base;
	uint64_t stale;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("destroy_qp");
	if (qp->unacked)
		fake_fault("a queue pair is destroyed with %u events not acknowledged: that hangs",
			   qp->unacked);
	forget_events(qp);
	drop_wqes(qp);
	stale = fake.counts.stale;
	fake_cq_forget((fake_cq *)base->send_cq, qp);
	fake.counts.destroyed_busy += fake.counts.stale != stale;
	tn_list_remove(&qp->all);
	((fake_pd *)base->pd)->children--;
	((fake_cq *)base->send_cq)->children--;
	((fake_srq *)base->srq)->children--;
	fake.counts.qps--;
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
	free(qp);
	return err;
}

static int post(fake_qp *qp, const struct ibv_send_wr *wr)
{
	fake_wqe *wqe;
	int err = fake_call(qp->ibv.context, "post_send");

	if (err)
		return err;
	if (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR)
		return EINVAL;
	if (qp->in_queue >= qp->max_wr)
		return ENOMEM;
	if (wr->num_sge > FAKE_SGE_MAX ||
	    (wr->opcode == IBV_WR_RDMA_READ && (wr->send_flags & IBV_SEND_INLINE)))
		return EINVAL;
	wqe = calloc(1, sizeof(*wqe));
	*wqe = (fake_wqe){.wr_id = wr->wr_id,
			  .opcode = wr->opcode,
			  .flags = wr->send_flags,
			  .imm = wr->imm_data,
			  .remote_addr = wr->wr.rdma.remote_addr,
			  .rkey = wr->wr.rdma.rkey,
			  .pieces = wr->num_sge};
	for (int i = 0; i < wr->num_sge; i++) {
		wqe->sge[i] = wr->sg_list[i];
		wqe->bytes += wr->sg_list[i].length;
	}
	if (wqe->bytes > qp->ctx->nic->is.max_msg ||
	    ((wr->send_flags & IBV_SEND_INLINE) && wqe->bytes > qp->max_inline)) {
		free(wqe);
		return EINVAL;
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		uint8_t *bytes = malloc(wqe->bytes + 1);

		fake_copy_out(wqe, bytes);
		wqe->inlined = bytes;
		fake.counts.inlined++;
	}
	fake.counts.signaled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
	qp->in_queue++;
	tn_list_push_back(&qp->wqes, &wqe->link);
	if (qp->ibv.state == IBV_QPS_ERR)
		fake_flush(qp);
	return 0;
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int err = 0;

	pthread_mutex_lock(&fake_lock);
	fake.counts.doorbells++;
	for (; wr; wr = wr->next) {
		err = post((fake_qp *)base, wr);
		if (err) {
			*bad = wr;
			break;
		}
	}
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
	return err;
}
