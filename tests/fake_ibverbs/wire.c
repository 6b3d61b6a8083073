/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's queue pairs and the fabric between them. A request of an RC queue pair is executed in order,
 * when the other side is wired back to it; it is checked like hardware checks it: lkey and rkey by region,
 * bounds and access, a receive buffer for what notifies (else it waits: RNR). An error puts the queue pair
 * into ERR and flushes what is behind; a refused access takes the responder's side along.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake_ibverbs/fake_impl.h"

fake_qp *fake_qp_find(uint32_t qpn)
{
	TN_LIST_FOREACH(node, &fake.qps) {
		fake_qp *qp = TN_LIST_ENTRY(node, fake_qp, all);

		if (qp->ibv.qp_num == qpn)
			return qp;
	}
	return NULL;
}

/* ---- regions ---- */

static fake_mr *mr_find(uint32_t key, bool remote)
{
	TN_LIST_FOREACH(node, &fake.mrs) {
		fake_mr *mr = TN_LIST_ENTRY(node, fake_mr, all);

		if ((remote ? mr->ibv.rkey : mr->ibv.lkey) == key)
			return mr;
	}
	return NULL;
}

static bool covers(const fake_mr *mr, const struct ibv_pd *pd, uint64_t addr, uint64_t bytes, int access)
{
	uint64_t base = (uintptr_t)mr->ibv.addr;

	return mr->ibv.pd == pd && (mr->access & access) == access && addr >= base &&
	       bytes <= mr->ibv.length && addr - base <= mr->ibv.length - bytes;
}

static bool local_ok(const fake_qp *qp, const struct ibv_sge *sge, int access)
{
	const fake_mr *mr = sge->length ? mr_find(sge->lkey, false) : NULL;

	return sge->length == 0 || (mr && covers(mr, qp->ibv.pd, sge->addr, sge->length, access));
}

static bool remote_ok(const fake_qp *peer, const fake_wqe *wqe, int access)
{
	const fake_mr *mr;

	if (wqe->bytes == 0)
		return true;
	mr = mr_find(wqe->rkey, true);
	return mr && covers(mr, peer->ibv.pd, wqe->remote_addr, wqe->bytes, access);
}

/* ---- completions ---- */

static void wqe_free(fake_wqe *wqe)
{
	free(wqe->inlined);
	free(wqe);
}

static void complete(fake_qp *qp, fake_wqe *wqe, enum ibv_wc_status status)
{
	struct ibv_wc wc = {.wr_id = wqe->wr_id, .status = status, .qp_num = qp->ibv.qp_num};

	if (status != IBV_WC_SUCCESS || (wqe->flags & IBV_SEND_SIGNALED) || qp->sig_all) {
		wc.opcode = wqe->opcode == IBV_WR_RDMA_READ             ? IBV_WC_RDMA_READ
			    : wqe->opcode <= IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RDMA_WRITE
									: IBV_WC_SEND;
		wc.byte_len = (uint32_t)wqe->bytes;
		/* What was silent before it is known to be over only now. */
		qp->in_queue -= qp->silent;
		qp->silent = 0;
		fake_cq_push((fake_cq *)qp->ibv.send_cq, &wc, false);
	} else {
		qp->silent++;
	}
	tn_list_remove(&wqe->link);
	wqe_free(wqe);
}

static void flush(fake_qp *qp)
{
	if (fake.never_flush)
		return;
	while (!tn_list_empty(&qp->wqes))
		complete(qp, TN_LIST_FIRST(&qp->wqes, fake_wqe, link), IBV_WC_WR_FLUSH_ERR);
}

void fake_qp_error(fake_qp *qp)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_QP_LAST_WQE_REACHED, .element.qp = &qp->ibv};

	if (qp->ibv.state == IBV_QPS_ERR)
		return;
	qp->ibv.state = IBV_QPS_ERR;
	flush(qp);
	if (qp->ibv.srq && !fake.no_last_wqe)
		fake_async_push(qp->ctx, &event);
	fake.again = true; /* who talks to it has to notice */
}

/* ---- one request ---- */

static void copy_out(const fake_wqe *wqe, uint8_t *to)
{
	if (wqe->inlined) {
		memcpy(to, wqe->inlined, wqe->bytes);
		return;
	}
	for (int i = 0; i < wqe->pieces; i++) {
		memcpy(to, (const void *)(uintptr_t)wqe->sge[i].addr, wqe->sge[i].length);
		to += wqe->sge[i].length;
	}
}

static void copy_in(const fake_wqe *wqe, const uint8_t *from)
{
	for (int i = 0; i < wqe->pieces; i++) {
		memcpy((void *)(uintptr_t)wqe->sge[i].addr, from, wqe->sge[i].length);
		from += wqe->sge[i].length;
	}
}

static void notify_peer(fake_qp *peer, const fake_wqe *wqe, fake_recv *recv)
{
	struct ibv_wc wc = {.wr_id = recv->wr_id,
			    .status = IBV_WC_SUCCESS,
			    .qp_num = peer->ibv.qp_num,
			    .byte_len = (uint32_t)wqe->bytes,
			    .imm_data = wqe->imm,
			    .src_qp = peer->attr.dest_qp_num};

	wc.opcode = wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	if (wqe->opcode != IBV_WR_SEND)
		wc.wc_flags = IBV_WC_WITH_IMM;
	fake_cq_push((fake_cq *)peer->ibv.recv_cq, &wc, true);
}

typedef enum verdict { WAIT, DONE } verdict;

static verdict fail(fake_qp *qp, fake_wqe *wqe, enum ibv_wc_status status)
{
	complete(qp, wqe, status);
	fake_qp_error(qp);
	return DONE;
}

/* The responder found something wrong with what was asked. */
static verdict refuse(fake_qp *qp, fake_qp *peer, fake_wqe *wqe, enum ibv_wc_status status)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_QP_ACCESS_ERR, .element.qp = &peer->ibv};

	fake_async_push(peer->ctx, &event);
	fake_qp_error(peer);
	return fail(qp, wqe, status);
}

static bool notifies(const fake_wqe *wqe)
{
	return wqe->opcode == IBV_WR_SEND || wqe->opcode == IBV_WR_SEND_WITH_IMM ||
	       wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static verdict deliver_message(fake_qp *qp, fake_qp *peer, fake_wqe *wqe, fake_recv *recv)
{
	if (wqe->bytes > (recv->has_sge ? recv->sge.length : 0))
		return refuse(qp, peer, wqe, IBV_WC_REM_INV_REQ_ERR);
	if (!local_ok(peer, &recv->sge, IBV_ACCESS_LOCAL_WRITE)) {
		fake_fault("a receive buffer lies in no region");
		return refuse(qp, peer, wqe, IBV_WC_REM_OP_ERR);
	}
	copy_out(wqe, (uint8_t *)(uintptr_t)recv->sge.addr);
	fake.counts.sends++;
	return DONE;
}

static verdict one_sided(fake_qp *qp, fake_qp *peer, fake_wqe *wqe)
{
	bool read = wqe->opcode == IBV_WR_RDMA_READ;
	int access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;

	if (!remote_ok(peer, wqe, access))
		return refuse(qp, peer, wqe, IBV_WC_REM_ACCESS_ERR);
	if (read)
		copy_in(wqe, (const uint8_t *)(uintptr_t)wqe->remote_addr);
	else if (wqe->bytes)
		copy_out(wqe, (uint8_t *)(uintptr_t)wqe->remote_addr);
	if (read)
		fake.counts.reads++;
	else
		fake.counts.writes++;
	return DONE;
}

/* Does the other side answer to this queue pair? NULL and *wait: not now, perhaps later. */
static fake_qp *responder(const fake_qp *qp, bool *wait)
{
	fake_qp *peer = fake_qp_find(qp->attr.dest_qp_num);

	*wait = false;
	if (fake.cut || !peer)
		return NULL;
	if (peer->ibv.state == IBV_QPS_INIT || peer->ibv.state == IBV_QPS_RESET) {
		*wait = !fake.impatient;
		return NULL;
	}
	if (peer->ibv.state != IBV_QPS_RTR && peer->ibv.state != IBV_QPS_RTS)
		return NULL;
	if (peer->attr.dest_qp_num != qp->ibv.qp_num || peer->attr.rq_psn != qp->attr.sq_psn)
		return NULL;
	return peer;
}

static verdict execute(fake_qp *qp, fake_wqe *wqe)
{
	enum ibv_wc_status script = qp->script;
	fake_recv *recv = NULL;
	fake_srq *srq;
	fake_qp *peer;
	bool wait;

	if (script != IBV_WC_SUCCESS) {
		qp->script = IBV_WC_SUCCESS;
		return fail(qp, wqe, script);
	}
	for (int i = 0; i < wqe->pieces && !wqe->inlined; i++) {
		int access = wqe->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;

		if (!local_ok(qp, &wqe->sge[i], access))
			return fail(qp, wqe, IBV_WC_LOC_PROT_ERR);
	}
	peer = responder(qp, &wait);
	if (!peer)
		return wait ? WAIT : fail(qp, wqe, IBV_WC_RETRY_EXC_ERR);
	if (notifies(wqe)) {
		srq = (fake_srq *)peer->ibv.srq;
		recv = TN_LIST_FIRST(&srq->recvs, fake_recv, link);
		if (!recv) {
			fake.counts.rnr += !wqe->waited;
			wqe->waited = true;
			return qp->attr.rnr_retry == 7 ? WAIT : fail(qp, wqe, IBV_WC_RNR_RETRY_EXC_ERR);
		}
	}
	if (wqe->opcode == IBV_WR_SEND || wqe->opcode == IBV_WR_SEND_WITH_IMM)
		deliver_message(qp, peer, wqe, recv);
	else
		one_sided(qp, peer, wqe);
	if (qp->ibv.state == IBV_QPS_ERR)
		return DONE;
	if (recv) {
		tn_list_remove(&recv->link);
		((fake_srq *)peer->ibv.srq)->count--;
		notify_peer(peer, wqe, recv);
		free(recv);
	}
	complete(qp, wqe, IBV_WC_SUCCESS);
	return DONE;
}

void fake_progress(void)
{
	if (fake.progressing)
		return;
	fake.progressing = true;
	do {
		fake.again = false;
		TN_LIST_FOREACH(node, &fake.qps) {
			fake_qp *qp = TN_LIST_ENTRY(node, fake_qp, all);

			while (qp->ibv.state == IBV_QPS_RTS && !tn_list_empty(&qp->wqes)) {
				if (execute(qp, TN_LIST_FIRST(&qp->wqes, fake_wqe, link)) == WAIT)
					break;
			}
		}
	} while (fake.again);
	fake.progressing = false;
}

/* ---- the table's functions ---- */

struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	fake_ctx *ctx = (fake_ctx *)pd->context;
	fake_qp *qp = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_scripted("create_qp")) {
		if ((int)attr->cap.max_send_wr > ctx->device->max_qp_wr ||
		    attr->cap.max_inline_data > ctx->device->max_inline ||
		    attr->cap.max_send_sge > FAKE_SGE_MAX || attr->qp_type != IBV_QPT_RC) {
			errno = EINVAL;
		} else {
			qp = calloc(1, sizeof(*qp));
			qp->ibv = (struct ibv_qp){.context = pd->context,
						  .pd = pd,
						  .send_cq = attr->send_cq,
						  .recv_cq = attr->recv_cq,
						  .srq = attr->srq,
						  .qp_num = fake.next_qpn,
						  .state = IBV_QPS_RESET,
						  .qp_type = IBV_QPT_RC};
			fake.next_qpn = (fake.next_qpn + 1) & 0xffffff;
			qp->ctx = ctx;
			qp->max_wr = attr->cap.max_send_wr;
			/* Devices give more than was asked for. */
			attr->cap.max_inline_data = ctx->device->max_inline;
			qp->max_inline = ctx->device->max_inline;
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
		wqe_free(TN_LIST_ENTRY(node, fake_wqe, link));
}

static bool legal(enum ibv_qp_state from, enum ibv_qp_state to)
{
	return to == IBV_QPS_ERR || to == IBV_QPS_RESET || (to == IBV_QPS_INIT && from == IBV_QPS_RESET) ||
	       (to == IBV_QPS_RTR && from == IBV_QPS_INIT) || (to == IBV_QPS_RTS && from == IBV_QPS_RTR);
}

static int modify(fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	static const int rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	static const int rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			       IBV_QP_MAX_QP_RD_ATOMIC;

	if (!(mask & IBV_QP_STATE) || !legal(qp->ibv.state, attr->qp_state))
		return EINVAL;
	switch (attr->qp_state) {
	case IBV_QPS_RESET:
		drop_wqes(qp);
		fake_cq_forget((fake_cq *)qp->ibv.send_cq, qp);
		qp->in_queue = qp->silent = 0;
		break;
	case IBV_QPS_RTR:
		if ((mask & rtr) != rtr || attr->path_mtu > qp->ctx->device->mtu ||
		    attr->path_mtu < IBV_MTU_256)
			return EINVAL;
		if (!qp->ctx->device->infiniband && !attr->ah_attr.is_global)
			return EINVAL;
		qp->attr.dest_qp_num = attr->dest_qp_num;
		qp->attr.rq_psn = attr->rq_psn;
		break;
	case IBV_QPS_RTS:
		if ((mask & rts) != rts || attr->max_rd_atomic > qp->ctx->device->max_rd_atomic)
			return EINVAL;
		qp->attr.sq_psn = attr->sq_psn;
		qp->attr.rnr_retry = attr->rnr_retry;
		break;
	case IBV_QPS_ERR:
		fake_qp_error(qp);
		return 0;
	default:
		break;
	}
	qp->ibv.state = attr->qp_state;
	return 0;
}

int fake_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("modify_qp");
	if (!err)
		err = modify((fake_qp *)base, attr, mask);
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
	return err;
}

int fake_destroy_qp(struct ibv_qp *base)
{
	fake_qp *qp = (fake_qp *)base;

	pthread_mutex_lock(&fake_lock);
	/* Events that were not taken must not point to it. */
	for (uint32_t i = qp->ctx->async_head; i != qp->ctx->async_tail; i++) {
		struct ibv_async_event *event = &qp->ctx->async[i % FAKE_ASYNC_MAX];

		if (event->element.qp == base)
			event->element.qp = NULL;
	}
	drop_wqes(qp);
	fake_cq_forget((fake_cq *)base->send_cq, qp);
	tn_list_remove(&qp->all);
	((fake_pd *)base->pd)->children--;
	((fake_cq *)base->send_cq)->children--;
	((fake_srq *)base->srq)->children--;
	fake.counts.qps--;
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
	free(qp);
	return 0;
}

static int post(fake_qp *qp, const struct ibv_send_wr *wr)
{
	fake_wqe *wqe;
	int err = fake_scripted("post_send");

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
	if (wqe->bytes > qp->ctx->device->max_msg ||
	    ((wr->send_flags & IBV_SEND_INLINE) && wqe->bytes > qp->max_inline)) {
		free(wqe);
		return EINVAL;
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		uint8_t *bytes = malloc(wqe->bytes + 1);

		copy_out(wqe, bytes);
		wqe->inlined = bytes;
		fake.counts.inlined++;
	}
	fake.counts.signaled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
	qp->in_queue++;
	tn_list_push_back(&qp->wqes, &wqe->link);
	if (qp->ibv.state == IBV_QPS_ERR)
		flush(qp);
	return 0;
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int err = 0;

	pthread_mutex_lock(&fake_lock);
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
