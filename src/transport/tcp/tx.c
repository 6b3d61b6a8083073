/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what goes out on a lane: which frame is next, how frames become system calls, what the kernel took,
 * and what acknowledgements of the peer complete.
 *
 * A run makes a *plan* of frames (the rest of the one under way, refusals, then answers and requests in
 * turns, an ACK frame if nothing else carries it), hands it to one sendmsg and accounts for what was taken.
 * One-sided payload is never copied here: iovs point into the callers' buffers and into registered memory.
 *
 * Must not allocate or wait. Threads: a poster or poll, tx.lock held throughout.
 * Tests: tests/unit/transport/test_tcp_flow.c.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"
#include "transport/tcp/tcp.h"

#define PLAN_FRAMES 32
#define PLAN_IOVS   80
#define FLAT_BYTES  (TN_TCP_HDR_BYTES + TN_TCP_BATCH_FRAME)
#define PLAN_CTLS   8 /* control frames, whose bytes live in the plan */

typedef struct plan {
	struct iovec iov[PLAN_IOVS];
	uint32_t iovs;
	uint64_t bytes, room;
	tn_tcp_out frames[PLAN_FRAMES];
	uint32_t count;
	uint8_t ctl[PLAN_CTLS][TN_TCP_HDR_BYTES];
	uint32_t ctls;
	uint32_t nak, resp, req; /* next of each queue, as if the plan were sent */
	uint64_t ack;            /* largest that a header of the plan tells */
} plan;

/* What stands for memory whose key was revoked while it was being read. */
static const uint8_t zeros[64 << 10];

static tn_tcp_req *req_at(tn_tcp_tx *tx, uint32_t index)
{
	return &tx->ring[index & (tx->wrs - 1)];
}

static tn_tcp_resp *resp_at(tn_tcp_tx *tx, uint32_t index)
{
	return &tx->resp[index % TN_TCP_READS_MAX];
}

/* ---- completions ---- */

/* tx.lock held: one more, or one less (UINT32_MAX), waits for an acknowledgement. */
static void count_awaited(tn_tcp_tx *tx, const tn_tcp_req *req, uint32_t by)
{
	if (req->state == TN_TCP_REQ_WAITING && req->type != TN_TCP_READ_REQ)
		atomic_store_explicit(&tx->awaited,
				      atomic_load_explicit(&tx->awaited, memory_order_relaxed) + by,
				      memory_order_relaxed);
}

void tn_tcp_req_complete(tn_tcp_lane *lane, uint32_t index, tern_status status)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_req *req = req_at(tx, index);

	count_awaited(tx, req, UINT32_MAX);
	if (req->type == TN_TCP_READ_REQ) {
		TN_ASSERT(tx->reads > 0);
		tx->reads--;
	}
	if (tx->posting && index == tx->tail - 1 && status == TERN_OK) {
		tn_tcp_req_set_state(req, TN_TCP_REQ_FREE);
		tx->posting_done = true;
		return;
	}
	tn_tcp_req_set_state(req, TN_TCP_REQ_FINISHED);
	req->status = status;
	tx->done[tx->done_tail++ & (tx->wrs - 1)] = index;
	TN_ASSERT(tx->done_tail - tx->done_head <= tx->wrs);
	tn_tcp_ready(lane);
}

const char *tn_tcp_tx_acked(tn_tcp_lane *lane, uint64_t ack)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_req *req;

	if (ack > tx->seq_sent)
		return "it acknowledged what was never sent";
	if (ack <= tx->ack_seen)
		return NULL;
	tx->ack_seen = ack;
	for (; tx->acked != tx->sent; tx->acked++) {
		req = req_at(tx, tx->acked);
		if (req->seq >= ack)
			break;
		if (req->state == TN_TCP_REQ_WAITING && req->type != TN_TCP_READ_REQ)
			tn_tcp_req_complete(lane, tx->acked, TERN_OK);
	}
	return NULL;
}

/* ---- planning ---- */

/* Add bytes [p, p + n) less what was sent before (*skip). False: the plan is full. */
static bool add_bytes(plan *p, const void *base, uint64_t n, uint64_t *skip)
{
	const uint8_t *from = base;
	uint64_t take;

	if (*skip >= n) {
		*skip -= n;
		return true;
	}
	from += *skip;
	n -= *skip;
	*skip = 0;
	/* A small rest would cost a system call, and a wait for one. */
	take = p->room && n <= p->room + TN_TCP_REST_BYTES ? n : TN_MIN(n, p->room);
	if (take == 0 || p->iovs == PLAN_IOVS)
		return false;
	p->iov[p->iovs++] = (struct iovec){.iov_base = (void *)from, .iov_len = take};
	p->bytes += take;
	p->room -= TN_MIN(take, p->room);
	return take == n;
}

static bool add_zeros(plan *p, uint64_t n, uint64_t *skip)
{
	uint64_t piece;

	if (*skip >= n) {
		*skip -= n;
		return true;
	}
	n -= *skip;
	*skip = 0;
	for (; n; n -= piece) {
		piece = TN_MIN(n, sizeof(zeros));
		if (!add_bytes(p, zeros, piece, skip))
			return false;
	}
	return true;
}

static bool add_req(tn_tcp_lane *lane, plan *p, tn_tcp_out *out)
{
	tn_tcp_req *req = req_at(&lane->tx, out->index);
	uint64_t skip = out->sent;

	TN_ASSERT(req->state == TN_TCP_REQ_QUEUED);
	if (out->sent == 0) {
		req->hdr.ack = out->ack;
		tn_tcp_hdr_encode(&req->hdr, req->head);
	}
	if (!add_bytes(p, req->head, TN_TCP_HDR_BYTES, &skip))
		return false;
	for (uint8_t i = 0; i < req->iov_count; i++) {
		if (req->iov[i].bytes && !add_bytes(p, req->iov[i].base, req->iov[i].bytes, &skip))
			return false;
	}
	return true;
}

/* Does the key of an answer still hold for what is left of it? Else the rest is not read any more. */
static void recheck(tn_tcp_lane *lane, tn_tcp_resp *resp, uint64_t sent)
{
	tern_mem *mem = lane->dev->base.mem;
	uint64_t done = sent > TN_TCP_HDR_BYTES ? sent - TN_TCP_HDR_BYTES : 0;
	uint32_t extent;
	uint64_t offset;

	if (!resp->source || done >= resp->bytes)
		return;
	resp->status = tn_key_check(tn_mem_keys(mem), &resp->key, resp->offset, resp->bytes, TERN_ACCESS_READ,
				    &extent, &offset);
	if (resp->status != TERN_OK)
		resp->source = NULL;
}

static bool add_resp(tn_tcp_lane *lane, plan *p, tn_tcp_out *out)
{
	tn_tcp_resp *resp = resp_at(&lane->tx, out->index);
	uint64_t skip = out->sent;
	tn_tcp_hdr hdr = {.type = TN_TCP_READ_RESP, .seq = resp->seq, .ack = out->ack, .bytes = resp->bytes};

	recheck(lane, resp, out->sent);
	if (out->sent == 0)
		tn_tcp_hdr_encode(&hdr, resp->head);
	if (out->sent < TN_TCP_HDR_BYTES + resp->bytes)
		tn_tcp_trailer_encode(resp->status, resp->trailer);
	if (!add_bytes(p, resp->head, TN_TCP_HDR_BYTES, &skip))
		return false;
	if (resp->source ? !add_bytes(p, resp->source, resp->bytes, &skip)
			 : !add_zeros(p, resp->bytes, &skip))
		return false;
	return add_bytes(p, resp->trailer, TN_TCP_TRAILER_BYTES, &skip);
}

static bool add_ctl(tn_tcp_lane *lane, plan *p, tn_tcp_out *out)
{
	tn_tcp_tx *tx = &lane->tx;
	const tn_tcp_nak *nak = &tx->nak[out->index % TN_TCP_NAKS];
	tn_tcp_hdr hdr = {.type = TN_TCP_ACK, .ack = out->ack};
	uint64_t skip = out->sent;

	if (out->sent)
		return add_bytes(p, tx->ctl, TN_TCP_HDR_BYTES, &skip);
	if (p->ctls == PLAN_CTLS)
		return false;
	if (out->nak) {
		hdr.type = TN_TCP_NAK;
		hdr.seq = nak->seq;
		hdr.status = nak->status;
	}
	tn_tcp_hdr_encode(&hdr, p->ctl[p->ctls]);
	return add_bytes(p, p->ctl[p->ctls++], TN_TCP_HDR_BYTES, &skip);
}

static bool add_batch(tn_tcp_lane *lane, plan *p, tn_tcp_out *out)
{
	uint64_t skip = out->sent;

	return add_bytes(p, lane->tx.batch, out->total, &skip);
}

/* Put one frame into the plan, as far as it fits. False: no frame may follow it. */
static bool add_frame(tn_tcp_lane *lane, plan *p, tn_tcp_out out)
{
	uint64_t before = p->bytes;
	bool whole;

	if (p->count == PLAN_FRAMES)
		return false;
	if (out.kind == TN_TCP_OUT_REQ)
		whole = add_req(lane, p, &out);
	else if (out.kind == TN_TCP_OUT_RESP)
		whole = add_resp(lane, p, &out);
	else if (out.kind == TN_TCP_OUT_BATCH)
		whole = add_batch(lane, p, &out);
	else
		whole = add_ctl(lane, p, &out);
	if (p->bytes == before)
		return false;
	p->frames[p->count++] = out;
	p->ack = TN_MAX(p->ack, out.ack);
	return whole;
}

/* The next frame that nothing was sent of; NONE when all queues are in the plan. */
static tn_tcp_out next_frame(tn_tcp_lane *lane, plan *p)
{
	tn_tcp_tx *tx = &lane->tx;
	bool resp = p->resp != tx->resp_tail, req = p->req != tx->tail;
	tn_tcp_out out = {.kind = TN_TCP_OUT_NONE};

	if (p->nak != tx->nak_tail) {
		out = (tn_tcp_out){
			.kind = TN_TCP_OUT_CTL, .nak = true, .index = p->nak, .total = TN_TCP_HDR_BYTES};
		out.ack = tx->nak[p->nak % TN_TCP_NAKS].seq;
		p->nak++;
		return out;
	}
	/* all refusals are ahead of this frame: no acknowledgement overtakes one */
	out.ack = tx->ack_value;
	if (resp && (!req || tx->resp_turn)) {
		out.kind = TN_TCP_OUT_RESP;
		out.index = p->resp++;
		out.total = TN_TCP_HDR_BYTES + resp_at(tx, out.index)->bytes + TN_TCP_TRAILER_BYTES;
	} else if (req) {
		out.kind = TN_TCP_OUT_REQ;
		out.index = p->req++;
		out.total = TN_TCP_HDR_BYTES + tn_tcp_hdr_payload(&req_at(tx, out.index)->hdr);
	} else if ((tx->ack_due && tx->ack_value > TN_MAX(tx->ack_told, p->ack)) ||
		   (tx->probe && !p->count)) {
		out.kind = TN_TCP_OUT_CTL;
		out.total = TN_TCP_HDR_BYTES;
	}
	tx->resp_turn = out.kind == TN_TCP_OUT_REQ;
	return out;
}

/* Bytes of the requests that wait behind the frame under way, or more than limit. */
static uint64_t waiting_bytes(tn_tcp_tx *tx, uint64_t limit)
{
	uint64_t bytes = 0;

	for (uint32_t i = tx->sent; i != tx->tail && bytes <= limit; i++)
		bytes += TN_TCP_HDR_BYTES + tn_tcp_hdr_payload(&req_at(tx, i)->hdr);
	return bytes;
}

/* What a chunk leaves of all that waits goes with it if it is little: alone it would cost two changes of the interest in
   the socket and a system call, and its receiver a wait. */
static uint64_t chunk(tn_tcp_tx *tx, uint64_t budget)
{
	uint64_t room = TN_MIN(budget, TN_TCP_CHUNK_BYTES), limit = room + TN_TCP_REST_BYTES, all;

	if (room < TN_TCP_CHUNK_BYTES || tx->cur.kind != TN_TCP_OUT_NONE)
		return room;
	all = waiting_bytes(tx, limit);
	return all > room && all <= limit ? all : room;
}

static void make_plan(tn_tcp_lane *lane, plan *p, uint64_t budget)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_out out = tx->cur;

	p->iovs = p->count = p->ctls = 0;
	p->bytes = 0;
	p->room = chunk(tx, budget);
	p->ack = 0;
	p->nak = tx->nak_head + (out.kind == TN_TCP_OUT_CTL && out.nak);
	p->resp = tx->resp_head + (out.kind == TN_TCP_OUT_RESP);
	p->req = tx->sent + (out.kind == TN_TCP_OUT_REQ);
	if (out.kind == TN_TCP_OUT_NONE && tx->batch_bytes)
		out = (tn_tcp_out){.kind = TN_TCP_OUT_BATCH, .total = tx->batch_bytes};
	else if (out.kind == TN_TCP_OUT_NONE)
		out = next_frame(lane, p);
	while (out.kind != TN_TCP_OUT_NONE && add_frame(lane, p, out))
		out = next_frame(lane, p);
}

/* ---- accounting ---- */

static void req_sent(tn_tcp_lane *lane, uint32_t index)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_req *req = req_at(tx, index);

	TN_ASSERT(index == tx->sent && req->seq >= tx->seq_sent);
	tx->sent++;
	tx->seq_sent = req->seq + 1;
	TN_TCP_COUNT(lane->dev, tx_bytes, tn_tcp_hdr_payload(&req->hdr));
	if (req->remote || req->type == TN_TCP_READ_REQ)
		tn_tcp_req_set_state(req, TN_TCP_REQ_WAITING);
	else
		tn_tcp_req_complete(lane, index, TERN_OK);
	count_awaited(tx, req, req->state == TN_TCP_REQ_WAITING);
}

static void frame_sent(tn_tcp_lane *lane, const tn_tcp_out *out)
{
	tn_tcp_tx *tx = &lane->tx;

	switch (out->kind) {
	case TN_TCP_OUT_REQ:
		req_sent(lane, out->index);
		break;
	case TN_TCP_OUT_BATCH:
		tx->batch_bytes = 0;
		break;
	case TN_TCP_OUT_RESP:
		TN_ASSERT(out->index == tx->resp_head);
		TN_TCP_COUNT(lane->dev, tx_bytes, resp_at(tx, out->index)->bytes);
		tx->resp_head++;
		break;
	case TN_TCP_OUT_CTL:
		if (out->nak)
			tx->nak_head++;
		else
			TN_TCP_COUNT(lane->dev, acks, 1);
		break;
	case TN_TCP_OUT_NONE:
		break;
	}
}

/* The kernel took n bytes of the plan. */
static void account(tn_tcp_lane *lane, plan *p, uint64_t n)
{
	tn_tcp_tx *tx = &lane->tx;
	uint32_t ctl = 0;
	uint64_t take;
	bool fresh;

	tx->cur.kind = TN_TCP_OUT_NONE;
	for (uint32_t i = 0; i < p->count && n; i++) {
		tn_tcp_out *out = &p->frames[i];

		fresh = out->sent == 0;
		take = TN_MIN(n, out->total - out->sent);
		out->sent += take;
		n -= take;
		if (fresh)
			tx->ack_told = TN_MAX(tx->ack_told, out->ack);
		if (out->sent == out->total) {
			frame_sent(lane, out);
		} else {
			if (out->kind == TN_TCP_OUT_CTL && fresh)
				memcpy(tx->ctl, p->ctl[ctl], TN_TCP_HDR_BYTES);
			tx->cur = *out;
		}
		ctl += out->kind == TN_TCP_OUT_CTL && fresh;
	}
	TN_ASSERT(n == 0);
	if (tx->ack_told >= tx->ack_value)
		tx->ack_due = false;
	tx->probe = false;
}

/* Nothing goes out any more: poll takes the lane down. */
static void fail_tx(tn_tcp_lane *lane, int error)
{
	lane->tx.error = error;
	lane->tx.refuse = TERN_E_LANE;
	tn_tcp_ready(lane);
}

/*
 * What nearly all calls and answers are, and requests of a read: no plan is made for one frame. It goes flat, a copy of
 * payload up to FLAT_BYTES: the kernel takes one piece faster, by more than that. What it leaves is the frame under way.
 */
bool tn_tcp_tx_message(tn_tcp_lane *lane)
{
	tn_tcp_tx *tx = &lane->tx;
	uint32_t index = tx->tail - 1;
	tn_tcp_req *req = req_at(tx, index);
	uint64_t total = TN_TCP_HDR_BYTES + tn_tcp_hdr_payload(&req->hdr);
	uint8_t flat[FLAT_BYTES], *at = flat + TN_TCP_HDR_BYTES;
	ssize_t n;

	if ((req->type != TN_TCP_SEND && req->type != TN_TCP_READ_REQ) || total > sizeof(flat) ||
	    tx->sent != index || tx->cur.kind || tx->batch_bytes || tx->error ||
	    tx->nak_head != tx->nak_tail || tx->resp_head != tx->resp_tail)
		return false;
	if (TN_FAULT("tcp.lane.send")) {
		fail_tx(lane, EPIPE);
		return true;
	}
	req->hdr.ack = tx->ack_value;
	tn_tcp_hdr_encode(&req->hdr, req->head);
	memcpy(flat, req->head, TN_TCP_HDR_BYTES);
	for (uint8_t i = 0; i < req->iov_count; at += req->iov[i++].bytes)
		if (req->iov[i].bytes)
			memcpy(at, req->iov[i].base, req->iov[i].bytes);
	n = send(lane->fd, flat, total, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n <= 0)
		return false;
	TN_TCP_COUNT(lane->dev, tx_calls, 1);
	tx->ack_told = tx->ack_value;
	tx->ack_due = tx->probe = false;
	if ((uint64_t)n < total) {
		tx->cur = (tn_tcp_out){.kind = TN_TCP_OUT_REQ,
				       .index = index,
				       .total = total,
				       .sent = (uint64_t)n,
				       .ack = tx->ack_value};
		return false;
	}
	req_sent(lane, index);
	return true;
}

bool tn_tcp_tx_batch(tn_tcp_lane *lane)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_req *req = req_at(tx, tx->tail - 1);
	uint64_t payload = tn_tcp_hdr_payload(&req->hdr);
	uint8_t *at = tx->batch + tx->batch_bytes;

	/* Frames of the batch are ahead of all others, and told acknowledgements behind no refusal. */
	if (payload > TN_TCP_BATCH_FRAME || tx->sent != tx->tail - 1 || tx->cur.kind || tx->error ||
	    tx->nak_head != tx->nak_tail || tx->resp_head != tx->resp_tail)
		return false;
	req->hdr.ack = tx->ack_value;
	tn_tcp_hdr_encode(&req->hdr, at);
	at += TN_TCP_HDR_BYTES;
	for (uint8_t i = 0; i < req->iov_count; at += req->iov[i++].bytes)
		if (req->iov[i].bytes)
			memcpy(at, req->iov[i].base, req->iov[i].bytes);
	tx->batch_bytes += TN_TCP_HDR_BYTES + (uint32_t)payload;
	TN_ASSERT(at == tx->batch + tx->batch_bytes && tx->batch_bytes <= TN_TCP_BATCH_ROOM);
	if (req->type != TN_TCP_SEND && payload) {
		TN_TCP_COUNT(lane->dev, copies, 1);
		TN_TCP_COUNT(lane->dev, copy_bytes, payload);
	}
	tx->ack_told = tx->ack_value;
	tx->ack_due = false;
	req_sent(lane, tx->tail - 1);
	if (tx->batch_bytes >= TN_TCP_BATCH_BYTES)
		tn_tcp_tx_run(lane, TN_TCP_CHUNK_BYTES);
	return true;
}

void tn_tcp_tx_interest(tn_tcp_lane *lane)
{
	tn_tcp_tx *tx = &lane->tx;
	bool out = tn_tcp_tx_pending(tx) && !tx->error;
	uint32_t want = (lane->rx.paused ? 0 : (uint32_t)EPOLLIN) | (out ? (uint32_t)EPOLLOUT : 0);

	if (want == tx->events || lane->fd < 0)
		return;
	if ((want ^ tx->events) & EPOLLOUT) {
		if (want & EPOLLOUT)
			atomic_fetch_add(&lane->dev->tx_waiting, 1);
		else
			atomic_fetch_sub(&lane->dev->tx_waiting, 1);
	}
	/* without any interest epoll would still report a hang-up, for ever: watch takes it out */
	if (tn_tcp_watch(lane->dev, lane->fd, tx->events, want, &lane->src) != 0)
		fail_tx(lane, ENOSPC);
	tx->events = want;
}

static ssize_t send_plan(tn_tcp_lane *lane, plan *p)
{
	struct msghdr msg = {.msg_iov = p->iov, .msg_iovlen = p->iovs};

	if (TN_FAULT("tcp.lane.send"))
		return errno = EPIPE, -1;
	if (p->iovs == 1)
		return send(lane->fd, p->iov[0].iov_base, p->iov[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
	return sendmsg(lane->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

uint64_t tn_tcp_tx_run(tn_tcp_lane *lane, uint64_t budget)
{
	tn_tcp_tx *tx = &lane->tx;
	uint64_t before = budget;
	plan p;
	ssize_t n;

	while (budget && !tx->error && tn_tcp_tx_pending(tx)) {
		tn_tcp_tx_access_begin(lane->dev);
		make_plan(lane, &p, budget);
		n = p.count ? send_plan(lane, &p) : 0;
		tn_tcp_tx_access_end(lane->dev);
		if (p.count == 0)
			break;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
			break;
		if (n <= 0) {
			fail_tx(lane, n < 0 ? errno : EPIPE);
			break;
		}
		TN_TCP_COUNT(lane->dev, tx_calls, 1);
		account(lane, &p, (uint64_t)n);
		budget -= TN_MIN(budget, (uint64_t)n);
		if ((uint64_t)n < p.bytes)
			break; /* the socket is full */
	}
	tn_tcp_tx_interest(lane);
	return before - budget;
}
