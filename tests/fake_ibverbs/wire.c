/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric between the fake's queue pairs. A request of an RC queue pair is executed in order,
 * when the other side is wired back to it; it is checked like hardware checks it: lkey and rkey by region,
 * bounds and access, a receive buffer for what notifies (else it waits: RNR). An error puts the queue pair
 * into ERR and flushes what is behind; a refused access takes the responder's side along.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake_ibverbs/fake_impl.h"

fake_qp *fake_qp_find(const fake_nic *nic, uint32_t qpn)
{
	TN_LIST_FOREACH(node, &fake.qps) {
		fake_qp *qp = TN_LIST_ENTRY(node, fake_qp, all);

		if (qp->ctx->nic == nic && qp->ibv.qp_num == qpn)
			return qp;
	}
	return NULL;
}

/* ---- regions ---- */

/* Keys are the device's. */
static fake_mr *mr_find(const fake_qp *qp, uint32_t key, bool remote)
{
	TN_LIST_FOREACH(node, &fake.mrs) {
		fake_mr *mr = TN_LIST_ENTRY(node, fake_mr, all);

		if (fake_ctx_of(mr->ibv.context)->nic == qp->ctx->nic &&
		    (remote ? mr->ibv.rkey : mr->ibv.lkey) == key)
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
	const fake_mr *mr = sge->length ? mr_find(qp, sge->lkey, false) : NULL;

	return sge->length == 0 || (mr && covers(mr, qp->ibv.pd, sge->addr, sge->length, access));
}

static bool remote_ok(const fake_qp *peer, const fake_wqe *wqe, int access)
{
	const fake_mr *mr;

	int flag = access == IBV_ACCESS_REMOTE_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;

	if (!(peer->attr.qp_access_flags & (unsigned)flag))
		return false;
	if (wqe->bytes == 0)
		return true;
	mr = mr_find(peer, wqe->rkey, true);
	return mr && covers(mr, peer->ibv.pd, wqe->remote_addr, wqe->bytes, access);
}

/* ---- completions ---- */

void fake_wqe_free(fake_wqe *wqe)
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
		fake_cq_push((fake_cq *)qp->ibv.send_cq, &wc, false, qp->life);
	} else {
		qp->silent++;
	}
	qp->reads_begun -= wqe->begun;
	tn_list_remove(&wqe->link);
	fake_wqe_free(wqe);
}

void fake_flush(fake_qp *qp)
{
	if (fake.never_flush || qp->ctx->nic->dead)
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
	fake_flush(qp);
	if (qp->ibv.srq && !fake.no_last_wqe)
		fake_async_push(qp->ctx, &event);
	fake.again = true; /* who talks to it has to notice */
}

/* ---- one request ---- */

void fake_copy_out(const fake_wqe *wqe, uint8_t *to)
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
	fake_cq_push((fake_cq *)peer->ibv.recv_cq, &wc, true, peer->life);
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
	fake_copy_out(wqe, (uint8_t *)(uintptr_t)recv->sge.addr);
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
		fake_copy_out(wqe, (uint8_t *)(uintptr_t)wqe->remote_addr);
	if (read)
		fake.counts.reads++;
	else
		fake.counts.writes++;
	return DONE;
}

/* ---- paths ---- */

static bool has_address(const fake_nic *nic, const struct ibv_ah_attr *path)
{
	union ibv_gid gid;

	if (!path->is_global)
		return nic->is.infiniband && nic->is.lid == path->dlid;
	for (int i = 0; i < FAKE_GIDS_MAX; i++) {
		if (fake_gid_of(nic, i, &gid) && memcmp(&gid, &path->grh.dgid, sizeof(gid)) == 0)
			return true;
	}
	return false;
}

/* Does the queue pair's own end of the path still stand? */
static bool can_send(const fake_qp *qp)
{
	const fake_nic *nic = qp->ctx->nic;
	union ibv_gid now;

	if (fake.cut || nic->cut || nic->dead || !fake_port_active(nic, qp->attr.port_num))
		return false;
	return !qp->attr.ah_attr.is_global || (fake_gid_of(nic, qp->attr.ah_attr.grh.sgid_index, &now) &&
					       memcmp(&now, &qp->sgid, sizeof(now)) == 0);
}

static bool wired_to(const fake_qp *peer, const fake_qp *qp)
{
	return (peer->ibv.state == IBV_QPS_RTR || peer->ibv.state == IBV_QPS_RTS) &&
	       peer->attr.dest_qp_num == qp->ibv.qp_num && peer->attr.rq_psn == qp->attr.sq_psn;
}

/* The queue pair that requests of this one reach; of several with one address the one that is wired back. */
static fake_qp *other_end(const fake_qp *qp)
{
	fake_qp *found = NULL;

	for (int i = 0; i < fake.device_count && can_send(qp); i++) {
		const fake_nic *nic = &fake.nics[i];
		fake_qp *peer;

		if (nic->is.fabric != qp->ctx->nic->is.fabric || nic->cut || nic->dead ||
		    !has_address(nic, &qp->attr.ah_attr))
			continue;
		peer = fake_qp_find(nic, qp->attr.dest_qp_num);
		if (peer && fake_port_active(nic, peer->attr.port_num) && (!found || wired_to(peer, qp)))
			found = peer;
	}
	return found;
}

/* Does the other side answer to this queue pair? NULL and *wait: not now, perhaps later. */
static fake_qp *responder(const fake_qp *qp, bool *wait)
{
	fake_qp *peer = other_end(qp);

	*wait = false;
	if (!peer)
		return NULL;
	if (peer->ibv.state == IBV_QPS_INIT || peer->ibv.state == IBV_QPS_RESET) {
		*wait = !fake.impatient;
		return NULL;
	}
	return wired_to(peer, qp) ? peer : NULL;
}

/* Packets that are longer than a port takes are lost. */
static bool fits_mtu(const fake_qp *qp, const fake_qp *peer, uint64_t bytes)
{
	enum ibv_mtu least = TN_MIN(qp->ctx->nic->is.mtu, peer->ctx->nic->is.mtu);

	return bytes <= 128ull << least || qp->attr.path_mtu <= least;
}

/* ---- reads ---- */

/* Begin the reads at the head that the depth allows; true if they keep the queue from going on. */
static bool reads_wait(fake_qp *qp)
{
	if (!fake.hold_reads)
		return false;
	TN_LIST_FOREACH(node, &qp->wqes) {
		fake_wqe *wqe = TN_LIST_ENTRY(node, fake_wqe, link);

		if (wqe->opcode != IBV_WR_RDMA_READ)
			break;
		if (wqe->begun)
			continue;
		if (qp->reads_begun < qp->attr.max_rd_atomic) {
			wqe->begun = true;
			qp->reads_begun++;
			fake.counts.reads_at_once = TN_MAX(fake.counts.reads_at_once, qp->reads_begun);
		} else if (!wqe->waited) {
			wqe->waited = true;
			fake.counts.reads_waited++;
		}
	}
	return TN_LIST_FIRST(&qp->wqes, fake_wqe, link)->begun;
}

static void check_read(const fake_qp *qp, const fake_qp *peer)
{
	if (qp->attr.max_rd_atomic == 0)
		fake_fault("a read on a queue pair of max_rd_atomic 0");
	else if (qp->attr.max_rd_atomic > peer->attr.max_dest_rd_atomic)
		fake_fault("%u reads at once to a peer that serves %u", qp->attr.max_rd_atomic,
			   peer->attr.max_dest_rd_atomic);
}

/* ---- execution ---- */

static verdict execute(fake_qp *qp, fake_wqe *wqe)
{
	enum ibv_wc_status script = qp->script;
	fake_recv *recv = NULL;
	fake_srq *srq;
	fake_qp *peer;
	bool wait;

	if (script != IBV_WC_SUCCESS && !qp->script_arrives) {
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
	if (!fits_mtu(qp, peer, wqe->bytes))
		return fail(qp, wqe, IBV_WC_RETRY_EXC_ERR);
	if (qp->attr.path_mtu != peer->attr.path_mtu &&
	    wqe->bytes > 128ull << TN_MIN(qp->attr.path_mtu, peer->attr.path_mtu))
		return refuse(qp, peer, wqe, IBV_WC_REM_INV_REQ_ERR);
	if (wqe->opcode == IBV_WR_RDMA_READ)
		check_read(qp, peer);
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
	if (script != IBV_WC_SUCCESS) {
		qp->script = IBV_WC_SUCCESS;
		return fail(qp, wqe, script);
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
				if (reads_wait(qp))
					break;
				if (execute(qp, TN_LIST_FIRST(&qp->wqes, fake_wqe, link)) == WAIT)
					break;
			}
		}
	} while (fake.again);
	fake.progressing = false;
}
