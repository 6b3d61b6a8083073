/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the entry of work requests: admission, the req in the lane's ring, and the attempt to hand the frame
 * to the kernel within the post. What the kernel does not take stays in the ring and goes out from poll.
 *
 * Must not wait, allocate or touch anything but the lane's tx, the ready list and counters.
 * Threads: any, posts of one lane serialised by the caller. Tests: tests/conformance,
 * tests/unit/transport/test_tcp_flow.c.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/os.h"
#include "transport/tcp/tcp.h"

static tern_status refused(const tn_tcp_tx *tx)
{
	if (tx->refuse == TERN_E_LANE)
		return tn_fail(TERN_E_LANE, "the lane is down: LANE_DOWN says why");
	return tn_fail(TERN_E_STATE, "the lane is not up: post between LANE_UP and lane_close");
}

/* A free req at the ring's end, or NULL with *status. */
static tn_tcp_req *admit(tn_tcp_lane *lane, tn_tcp_type type, tern_status *status)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_req *req;

	if (TN_UNLIKELY(lane->dev->forks != tn_os_fork_generation())) {
		*status = tn_fail(TERN_E_FORKED, "the lane belongs to the parent process");
		return NULL;
	}
	if (TN_UNLIKELY(tx->refuse != TERN_OK)) {
		*status = refused(tx);
		return NULL;
	}
	if (TN_UNLIKELY(tx->tail - tx->head == tx->wrs ||
			(type == TN_TCP_READ_REQ && tx->reads == TN_TCP_READS_MAX))) {
		/* what was held back for the next post has to go now, or it would never */
		if ((tx->batch_bytes || tx->sent != tx->tail) && !(tx->events & EPOLLOUT))
			tn_tcp_tx_run(lane, TN_TCP_CHUNK_BYTES);
		TN_TCP_COUNT(lane->dev, again, 1);
		*status = TERN_AGAIN;
		return NULL;
	}
	req = &tx->ring[tx->tail & (tx->wrs - 1)];
	tn_tcp_req_set_state(req, TN_TCP_REQ_QUEUED);
	req->status = TERN_OK;
	req->type = (uint8_t)type;
	req->remote = false;
	req->iov_count = 0;
	req->local = NULL;
	req->seq = tx->seq_next++;
	req->hdr = (tn_tcp_hdr){.type = type, .seq = req->seq};
	tx->tail++;
	return req;
}

/*
 * The poster has more for this lane and flushes it: parts of one message go together, and one-sided data with what
 * follows it (wr.more). Not pieces of a transfer: its receiver would begin only when the last one is there, and each
 * side wait for the other.
 */
static bool held(const tn_tcp_lane *lane, const tn_tcp_req *req, bool more)
{
	return lane->base.more && (more || req->type == TN_TCP_SEND);
}

/* The req is filled in: push it out, unless frames are ahead that wait for the socket. True: completed. */
static bool launch(tn_tcp_lane *lane, const tn_tcp_req *req, bool more)
{
	tn_tcp_tx *tx = &lane->tx;
	bool done;

	if (tx->events & EPOLLOUT)
		return false;
	tx->posting = true;
	tx->posting_done = false;
	if (lane->base.more ? !tn_tcp_tx_batch(lane) : more || !tn_tcp_tx_message(lane)) {
		if (!held(lane, req, more) && more)
			tn_tcp_ready(lane);
		else if (!held(lane, req, more))
			tn_tcp_tx_run(lane, TN_TCP_CHUNK_BYTES);
	}
	done = tx->posting_done;
	tx->posting = false;
	if (done) {
		TN_ASSERT(tx->sent == tx->tail);
		tx->tail--;
		tx->sent--;
	}
	return done;
}

/*
 * What the key itself says against the request. The target decides; but a LOCAL write that it refuses is
 * complete long before, so what can be seen here is said here.
 */
static tern_status check_wr(const tn_wr *wr, uint32_t access)
{
	const tn_key *key = &wr->key;

	if (TN_UNLIKELY(!wr->local && wr->bytes))
		return tn_fail(TERN_E_INVALID, "no local memory for %" PRIu64 " bytes", wr->bytes);
	if (TN_UNLIKELY(wr->offset > key->length || wr->bytes > key->length - wr->offset))
		return tn_fail(TERN_E_BOUNDS,
			       "%" PRIu64 " bytes at offset %" PRIu64 " of a key over %" PRIu64 " bytes",
			       wr->bytes, wr->offset, key->length);
	if (TN_UNLIKELY((key->access & access) != access))
		return tn_fail(TERN_E_ACCESS, "the key allows no %s",
			       access == TERN_ACCESS_READ ? "reading" : "writing");
	if (TN_UNLIKELY(wr->bytes > TN_TCP_BYTES_MAX || wr->offset > UINT64_MAX - TN_TCP_BYTES_MAX))
		return tn_fail(TERN_E_TOO_LARGE, "%" PRIu64 " bytes: one request moves up to %llu", wr->bytes,
			       (unsigned long long)TN_TCP_BYTES_MAX);
	return TERN_OK;
}

static tern_status post(tn_lane *base, tn_wr *wr, tn_tcp_type type)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);
	tn_tcp_tx *tx = &lane->tx;
	tern_status status = check_wr(wr, type == TN_TCP_READ_REQ ? TERN_ACCESS_READ : TERN_ACCESS_WRITE);
	tn_tcp_req *req;

	wr->done = false;
	if (TN_UNLIKELY(status != TERN_OK))
		return status;
	pthread_mutex_lock(&tx->lock);
	req = admit(lane, type, &status);
	if (req) {
		req->cookie = wr->cookie;
		req->bytes = wr->bytes;
		req->remote = type != TN_TCP_READ_REQ && wr->level == TN_LEVEL_REMOTE;
		if (type == TN_TCP_READ_REQ) {
			req->local = wr->local;
			tx->reads++;
		} else {
			req->iov[0] = (tn_iov){.base = wr->local, .bytes = wr->bytes};
			req->iov_count = 1;
		}
		req->hdr.flags = req->remote ? TN_TCP_F_ACK : 0;
		req->hdr.imm = type == TN_TCP_WRITE_IMM ? wr->imm : 0;
		req->hdr.bytes = wr->bytes;
		req->hdr.offset = wr->offset;
		req->hdr.key_index = wr->key.index;
		req->hdr.key_generation = wr->key.generation;
		req->hdr.key_tag = wr->key.node_tag;
		wr->done = launch(lane, req, wr->more);
	}
	pthread_mutex_unlock(&tx->lock);
	return status;
}

tern_status tn_tcp_write(tn_lane *lane, tn_wr *wr)
{
	tern_status status = post(lane, wr, TN_TCP_WRITE);

	if (TN_LIKELY(status == TERN_OK))
		TN_TCP_COUNT(tn_tcp_lane_of(lane)->dev, writes, 1);
	return status;
}

tern_status tn_tcp_write_imm(tn_lane *lane, tn_wr *wr)
{
	tern_status status = post(lane, wr, TN_TCP_WRITE_IMM);

	if (TN_LIKELY(status == TERN_OK))
		TN_TCP_COUNT(tn_tcp_lane_of(lane)->dev, write_imms, 1);
	return status;
}

tern_status tn_tcp_read(tn_lane *lane, tn_wr *wr)
{
	tern_status status = post(lane, wr, TN_TCP_READ_REQ);

	if (TN_LIKELY(status == TERN_OK))
		TN_TCP_COUNT(tn_tcp_lane_of(lane)->dev, reads, 1);
	return status;
}

tern_status tn_tcp_send(tn_lane *base, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);
	tn_tcp_tx *tx = &lane->tx;
	tern_status status = TERN_OK;
	uint64_t bytes = 0;
	tn_tcp_req *req;

	*done = false;
	if (TN_UNLIKELY(n < 0 || n > TN_IOV_MAX))
		return tn_fail(TERN_E_INVALID, "%d pieces in a message: 0 to %d", n, TN_IOV_MAX);
	for (int i = 0; i < n; i++) {
		if (TN_UNLIKELY(iov[i].bytes > lane->send_bytes - bytes || (!iov[i].base && iov[i].bytes)))
			return tn_fail(iov[i].base ? TERN_E_TOO_LARGE : TERN_E_INVALID,
				       "piece %d of %llu bytes: the peer takes messages up to %llu bytes", i,
				       (unsigned long long)iov[i].bytes,
				       (unsigned long long)lane->send_bytes);
		bytes += iov[i].bytes;
	}
	pthread_mutex_lock(&tx->lock);
	req = admit(lane, TN_TCP_SEND, &status);
	if (req) {
		req->cookie = cookie;
		req->bytes = req->hdr.bytes = bytes;
		req->iov_count = (uint8_t)n;
		if (n)
			memcpy(req->iov, iov, (size_t)n * sizeof(*iov));
		*done = launch(lane, req, false);
	}
	pthread_mutex_unlock(&tx->lock);
	if (TN_LIKELY(status == TERN_OK))
		TN_TCP_COUNT(lane->dev, sends, 1);
	return status;
}

void tn_tcp_flush(tn_lane *base)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);

	pthread_mutex_lock(&lane->tx.lock);
	base->more = false;
	if (lane->tx.refuse == TERN_OK && !(lane->tx.events & EPOLLOUT) &&
	    (lane->tx.batch_bytes || lane->tx.sent != lane->tx.tail))
		tn_tcp_tx_run(lane, TN_TCP_CHUNK_BYTES);
	pthread_mutex_unlock(&lane->tx.lock);
}
