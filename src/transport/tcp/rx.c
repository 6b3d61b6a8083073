/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what comes in on a lane: bytes to frames, payload to its place, events.
 *
 *   HEAD --write--> PLACE ----+            the key is checked at the header and again before each recv into
 *    | \--refused-> DISCARD --+--> HEAD    memory: once revoked, at most one system call still writes
 *    | \--message-> MESSAGE --+
 *    \ \--answer--> FETCH --> TRAILER --> HEAD
 *     \-- request, ack, nak: no payload, stays in HEAD
 *
 * Small frames are parsed from the rx buffer, many per recv, and their payload copied (counted). Of a large
 * payload only what happened to lie behind its header is copied; the rest is received into its place, with
 * the rx buffer as second part of the iov for what follows.
 *
 * The peer is not trusted: headers are checked by frame.c, sequence numbers, keys, sizes and turns here. What
 * is wrong ends the lane with TERN_E_PROTOCOL; a bad key only refuses that request.
 *
 * Must not block or allocate. Threads: poll's thread. Tests: tests/unit/transport/test_tcp_flow.c,
 * test_tcp_bad.c, fuzz/tcp_lane.c.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "transport/tcp/tcp.h"

void tn_tcp_rx_set_state(tn_tcp_rx *rx, tn_tcp_rx_state state)
{
	static const uint32_t from[] = {
		/* from all: when the lane ends */
		[TN_TCP_RX_HEAD] = (1u << (TN_TCP_RX_TRAILER + 1)) - 1,
		[TN_TCP_RX_PLACE] = 1u << TN_TCP_RX_HEAD,
		[TN_TCP_RX_FETCH] = 1u << TN_TCP_RX_HEAD,
		[TN_TCP_RX_MESSAGE] = 1u << TN_TCP_RX_HEAD,
		[TN_TCP_RX_DISCARD] = 1u << TN_TCP_RX_HEAD | 1u << TN_TCP_RX_PLACE,
		[TN_TCP_RX_TRAILER] = 1u << TN_TCP_RX_FETCH,
	};

	TN_ASSERT_MSG(from[state] & (1u << rx->state), "rx %d -> %d", (int)rx->state, (int)state);
	rx->state = state;
}

static uint32_t buffered(const tn_tcp_rx *rx)
{
	return rx->end - rx->start;
}

static void protocol_error(tn_tcp_lane *lane, const char *wrong)
{
	tn_tcp_lane_fail(lane, TERN_E_PROTOCOL, "the peer broke the protocol: %s", wrong);
}

/* ---- keys ---- */

/* Where [offset, offset + bytes) of a key lies in this process, or why not. */
static tern_status resolve(tn_tcp_lane *lane, const tn_key *key, uint64_t offset, uint64_t bytes,
			   uint32_t access, uint8_t **place)
{
	tern_mem *mem = lane->dev->base.mem;
	const tn_extent *ext;
	uint32_t extent = 0;
	uint64_t at = 0;
	tern_status status;

	if (!mem)
		return TERN_E_ACCESS;
	status = tn_key_check(tn_mem_keys(mem), key, offset, bytes, access, &extent, &at);
	if (status != TERN_OK)
		return status;
	ext = tn_mem_extent(mem, extent);
	if (!ext) /* a region that was unregistered between these two looks */
		return TERN_E_STALE_KEY;
	if (ext->gpu) /* no CPU reaches it */
		return TERN_E_UNSUPPORTED;
	TN_ASSERT(at <= ext->bytes && bytes <= ext->bytes - at);
	*place = (uint8_t *)ext->base + at;
	return TERN_OK;
}

static tn_key key_of(const tn_tcp_hdr *hdr)
{
	return (tn_key){.index = hdr->key_index, .generation = hdr->key_generation, .node_tag = hdr->key_tag};
}

/* ---- slots and pausing ---- */

/* A slot for the frame at the head of the buffer. None: stop reading this lane until one comes free. */
static bool want_slot(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	bool paused;

	rx->slot = tn_tcp_slot_take(lane);
	paused = rx->slot == TN_TCP_SLOT_NONE;
	if (paused == rx->paused)
		return !paused;
	pthread_mutex_lock(&lane->tx.lock);
	rx->paused = paused;
	tn_tcp_tx_interest(lane);
	pthread_mutex_unlock(&lane->tx.lock);
	lane->dev->slots_paused += paused ? 1 : UINT32_MAX;
	rx->gone = 0;
	if (paused) {
		TN_TCP_COUNT(lane->dev, pauses, 1);
		tn_tcp_deadline(lane->dev, tn_now() + TN_TCP_STALL_NS);
	}
	return !paused;
}

/*
 * The end of a connection stands behind the data that nobody reads: a dead peer would go unnoticed. So it
 * is sent something: the kernel of a process that is gone answers with a reset. Found ended twice, the lane
 * goes down; the time in between is for a user that is about to give slots back.
 */
void tn_tcp_rx_stalled(tn_tcp_lane *lane)
{
	struct pollfd fd = {.fd = lane->fd, .events = POLLRDHUP};

	if (poll(&fd, 1, 0) == 1) {
		if (++lane->rx.gone == 2)
			tn_tcp_lane_fail(lane, TERN_E_LANE,
					 "the peer is gone; messages that found no receive slot are lost");
		return;
	}
	pthread_mutex_lock(&lane->tx.lock);
	if (!tn_tcp_tx_pending(&lane->tx)) {
		lane->tx.probe = true;
		tn_tcp_tx_run(lane, TN_TCP_HDR_BYTES);
	}
	pthread_mutex_unlock(&lane->tx.lock);
}

/* ---- the peer's requests ---- */

static void push_nak(tn_tcp_lane *lane, uint64_t seq, tern_status status, bool wanted)
{
	tn_tcp_tx *tx = &lane->tx;
	uint32_t waiting;
	bool overflow;

	TN_TCP_COUNT(lane->dev, naks, 1);
	TN_LOG_LIMITED(DEBUG, TCP, 4, "lane %llx: refused a request of the peer: %s",
		       (unsigned long long)lane->id, tern_status_name(status));
	pthread_mutex_lock(&tx->lock);
	waiting = tx->nak_tail - tx->nak_head;
	overflow = waiting == TN_TCP_NAKS;
	/* nobody waits for the refusal of a LOCAL write: it is told as long as there is plenty of room */
	if (!overflow && (wanted || waiting < TN_TCP_NAKS / 4))
		tx->nak[tx->nak_tail++ % TN_TCP_NAKS] = (tn_tcp_nak){.seq = seq, .status = status};
	pthread_mutex_unlock(&tx->lock);
	if (overflow)
		protocol_error(lane, "more requests under bad keys than a lane may have in flight");
}

static bool begin_write(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	tern_status status;

	rx->key = key_of(&rx->hdr);
	status = resolve(lane, &rx->key, rx->hdr.offset, rx->hdr.bytes, TERN_ACCESS_WRITE, &rx->dst);
	/* an immediate takes a receive slot like a message: the user gives it back with recv_done */
	if (status == TERN_OK && rx->hdr.type == TN_TCP_WRITE_IMM && !want_slot(lane))
		return false;
	rx->refused = status;
	tn_tcp_rx_set_state(rx, status == TERN_OK ? TN_TCP_RX_PLACE : TN_TCP_RX_DISCARD);
	return true;
}

static bool begin_read(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_tx *tx = &lane->tx;
	tn_key key = key_of(&rx->hdr);
	uint8_t *source = NULL;
	tern_status status;
	bool full;

	status = resolve(lane, &key, rx->hdr.offset, rx->hdr.bytes, TERN_ACCESS_READ, &source);
	if (status != TERN_OK) {
		push_nak(lane, rx->hdr.seq, status, true);
		return true;
	}
	pthread_mutex_lock(&tx->lock);
	full = tx->resp_tail - tx->resp_head == TN_TCP_READS_MAX;
	if (!full)
		tx->resp[tx->resp_tail++ % TN_TCP_READS_MAX] = (tn_tcp_resp){.seq = rx->hdr.seq,
									     .bytes = rx->hdr.bytes,
									     .offset = rx->hdr.offset,
									     .key = key,
									     .source = source};
	pthread_mutex_unlock(&tx->lock);
	if (full)
		protocol_error(lane, "more unanswered reads than a lane may have");
	return true;
}

static bool begin_message(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;

	if (!want_slot(lane))
		return false;
	rx->dst = tn_tcp_slot_buf(lane->dev, rx->slot);
	tn_tcp_rx_set_state(rx, TN_TCP_RX_MESSAGE);
	return true;
}

/* ---- answers to our requests ---- */

/* The req that waits under a sequence number; tx.lock held. NULL if none does. */
static tn_tcp_req *waiting_req(tn_tcp_tx *tx, uint64_t seq, uint32_t *index)
{
	for (uint32_t i = tx->head; i != tx->sent; i++) {
		tn_tcp_req *req = &tx->ring[i & (tx->wrs - 1)];

		if (req->state == TN_TCP_REQ_WAITING && req->seq == seq) {
			*index = i;
			return req;
		}
	}
	return NULL;
}

static bool begin_answer(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_req *req;

	pthread_mutex_lock(&lane->tx.lock);
	req = waiting_req(&lane->tx, rx->hdr.seq, &rx->req);
	if (req && (req->type != TN_TCP_READ_REQ || req->bytes != rx->hdr.bytes))
		req = NULL;
	pthread_mutex_unlock(&lane->tx.lock);
	if (!req) {
		protocol_error(lane, "an answer that nobody asked for");
		return true;
	}
	rx->dst = req->local;
	tn_tcp_rx_set_state(rx, TN_TCP_RX_FETCH);
	return true;
}

static void take_nak(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_tx *tx = &lane->tx;
	const char *wrong;
	uint32_t index;

	pthread_mutex_lock(&tx->lock);
	/* first what was placed before the refused request: the frame's ack goes no further */
	wrong = tn_tcp_tx_acked(lane, rx->hdr.ack);
	if (!wrong && rx->hdr.seq >= tx->seq_sent)
		wrong = "it refused what was never sent";
	if (!wrong && waiting_req(tx, rx->hdr.seq, &index))
		tn_tcp_req_complete(lane, index, rx->hdr.status);
	else if (!wrong)
		TN_TCP_COUNT(lane->dev, naks_late, 1);
	pthread_mutex_unlock(&tx->lock);
	if (wrong)
		protocol_error(lane, wrong);
	else
		TN_LOG_LIMITED(INFO, TCP, 4, "lane %llx: the peer refused a request: %s",
			       (unsigned long long)lane->id, tern_status_name(rx->hdr.status));
}

/* ---- frames ---- */

/* A complete header: begin its frame. False: it has to wait for a receive slot. */
static bool begin_frame(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_type type = rx->hdr.type;
	bool request = type == TN_TCP_WRITE || type == TN_TCP_WRITE_IMM || type == TN_TCP_READ_REQ ||
		       type == TN_TCP_SEND;
	bool begun = true;

	if (request && rx->hdr.seq != rx->seq) {
		protocol_error(lane, "a request out of sequence");
		return true;
	}
	rx->left = tn_tcp_hdr_payload(&rx->hdr);
	switch (type) {
	case TN_TCP_WRITE:
	case TN_TCP_WRITE_IMM:
		begun = begin_write(lane);
		break;
	case TN_TCP_SEND:
		begun = begin_message(lane);
		break;
	case TN_TCP_READ_RESP:
		begun = begin_answer(lane);
		break;
	case TN_TCP_READ_REQ:
		begun = begin_read(lane);
		rx->seq++;
		break;
	case TN_TCP_NAK:
		take_nak(lane);
		break;
	case TN_TCP_ACK:
		break;
	}
	if (begun && lane->state == TN_TCP_UP) {
		rx->start += TN_TCP_HDR_BYTES;
		rx->ack = TN_MAX(rx->ack, rx->hdr.ack);
		rx->dirty = true;
	}
	return begun;
}

static bool parse_head(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	const char *wrong;
	uint64_t whole;

	if (buffered(rx) < TN_TCP_HDR_BYTES)
		return false;
	wrong = tn_tcp_hdr_decode(rx->buf + rx->start, lane->dev->opts.send_bytes, &rx->hdr);
	if (wrong) {
		protocol_error(lane, wrong);
		return false;
	}
	/* small frames wait until they are whole: their payload becomes visible at once */
	whole = TN_TCP_HDR_BYTES + tn_tcp_hdr_payload(&rx->hdr);
	if (whole <= TN_TCP_HDR_BYTES + TN_TCP_SMALL_BYTES && buffered(rx) < whole)
		return false;
	return begin_frame(lane);
}

static tn_event new_event(tn_tcp_lane *lane, tn_event_type type)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_event event = {.type = type,
			  .lane = &lane->base,
			  .lane_arg = lane->base.arg,
			  .bytes = rx->hdr.bytes,
			  .imm = rx->hdr.imm,
			  .slot = rx->slot};

	if (type == TN_EV_RECV)
		event.buf = tn_tcp_slot_buf(lane->dev, rx->slot);
	rx->slot = TN_TCP_SLOT_NONE;
	return event;
}

/* The payload is complete. Returns the number of events (0 or 1). */
static int finish_payload(tn_tcp_lane *lane, tn_event *event)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_rx_state state = rx->state;
	bool wants_ack = rx->hdr.flags & TN_TCP_F_ACK;

	if (rx->hdr.bytes > TN_TCP_LOOK_BYTES)
		rx->after_large = TN_TCP_LARGE_FRAMES;
	else if (rx->after_large)
		rx->after_large--;
	if (state == TN_TCP_RX_FETCH) {
		tn_tcp_rx_set_state(rx, TN_TCP_RX_TRAILER);
		return 0;
	}
	tn_tcp_rx_set_state(rx, TN_TCP_RX_HEAD);
	rx->seq++;
	rx->dirty = true;
	rx->ack_due |= wants_ack;
	rx->unacked += wants_ack ? rx->hdr.bytes : 0;
	switch (state) {
	case TN_TCP_RX_DISCARD:
		push_nak(lane, rx->hdr.seq, rx->refused, wants_ack);
		return 0;
	case TN_TCP_RX_PLACE:
		if (rx->hdr.type == TN_TCP_WRITE)
			return 0;
		*event = new_event(lane, TN_EV_IMM);
		return 1;
	case TN_TCP_RX_MESSAGE:
		TN_TCP_COUNT(lane->dev, recvs, 1);
		*event = new_event(lane, TN_EV_RECV);
		return 1;
	default:
		TN_UNREACHABLE();
	}
	return 0;
}

/*
 * Place payload from the rx buffer. An aligned flag word becomes visible as a whole, and after all that was
 * placed before it.
 */
static void place(uint8_t *dst, const uint8_t *src, uint64_t n)
{
	void *at = dst;
	uint64_t word = 0;

	if ((n != 1 && n != 2 && n != 4 && n != 8) || (uintptr_t)dst % n) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(&word, src, n); /* little endian: base/limits.h */
	if (n == 8)
		atomic_store_explicit((_Atomic uint64_t *)at, word, memory_order_release);
	else if (n == 4)
		atomic_store_explicit((_Atomic uint32_t *)at, (uint32_t)word, memory_order_release);
	else if (n == 2)
		atomic_store_explicit((_Atomic uint16_t *)at, (uint16_t)word, memory_order_release);
	else
		atomic_store_explicit((_Atomic uint8_t *)at, (uint8_t)word, memory_order_release);
}

/* Payload that came with its header. True: the payload is complete. */
static bool take_buffered(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	uint64_t n = TN_MIN(rx->left, buffered(rx));

	if (n && rx->state != TN_TCP_RX_DISCARD) {
		place(rx->dst, rx->buf + rx->start, n);
		rx->dst += n;
		if (rx->state != TN_TCP_RX_MESSAGE) {
			TN_TCP_COUNT(lane->dev, copies, 1);
			TN_TCP_COUNT(lane->dev, copy_bytes, n);
		}
	}
	rx->start += (uint32_t)n;
	rx->left -= n;
	TN_TCP_COUNT(lane->dev, rx_bytes, n);
	return rx->left == 0;
}

static bool parse_trailer(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	tern_status status = TERN_OK;
	const char *wrong;

	if (buffered(rx) < TN_TCP_TRAILER_BYTES)
		return false;
	wrong = tn_tcp_trailer_decode(rx->buf + rx->start, &status);
	if (wrong) {
		protocol_error(lane, wrong);
		return false;
	}
	rx->start += TN_TCP_TRAILER_BYTES;
	tn_tcp_rx_set_state(rx, TN_TCP_RX_HEAD);
	pthread_mutex_lock(&lane->tx.lock);
	tn_tcp_req_complete(lane, rx->req, status);
	pthread_mutex_unlock(&lane->tx.lock);
	return true;
}

/*
 * Before a message or an immediate its sender's acknowledgements: what they complete makes room for what the user does
 * about it. Returns the number of events.
 */
static int acked_first(tn_tcp_lane *lane, tn_event *events, int max)
{
	tn_tcp_rx *rx = &lane->rx;
	const char *wrong;

	if (rx->ack <= rx->ack_settled || rx->state == TN_TCP_RX_FETCH ||
	    atomic_load_explicit(&lane->tx.awaited, memory_order_relaxed) == 0)
		return 0;
	pthread_mutex_lock(&lane->tx.lock);
	wrong = tn_tcp_tx_acked(lane, rx->ack);
	pthread_mutex_unlock(&lane->tx.lock);
	rx->ack_settled = rx->ack;
	if (wrong) {
		protocol_error(lane, wrong);
		return 0;
	}
	return max > 0 ? tn_tcp_lane_deliver(lane, events, max) : 0;
}

/* Parse what is buffered until it runs out, max events are made, or the lane stops. */
static int parse(tn_tcp_lane *lane, tn_event *events, int max)
{
	tn_tcp_rx *rx = &lane->rx;
	int n = 0;

	while (n < max && lane->state == TN_TCP_UP) {
		if (rx->state == TN_TCP_RX_HEAD) {
			if (!parse_head(lane))
				break;
		} else if (rx->state == TN_TCP_RX_TRAILER) {
			if (!parse_trailer(lane))
				break;
		} else if (take_buffered(lane)) {
			n += acked_first(lane, &events[n], max - n - 1);
			if (lane->state == TN_TCP_UP)
				n += finish_payload(lane, &events[n]);
		} else {
			break;
		}
	}
	return n;
}

/* ---- system calls ---- */

/* Before bytes go to memory again: is the key still good for the rest? Else discard it. */
static void recheck(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	uint64_t done = rx->hdr.bytes - rx->left;
	tern_status status =
		resolve(lane, &rx->key, rx->hdr.offset + done, rx->left, TERN_ACCESS_WRITE, &rx->dst);

	if (status == TERN_OK)
		return;
	rx->refused = status;
	tn_tcp_rx_set_state(rx, TN_TCP_RX_DISCARD);
	if (rx->slot != TN_TCP_SLOT_NONE)
		tn_tcp_slot_give(lane->dev, rx->slot);
	rx->slot = TN_TCP_SLOT_NONE;
}

static ssize_t recv_head(tn_tcp_lane *lane, uint64_t *asked)
{
	tn_tcp_rx *rx = &lane->rx;
	uint32_t room;

	if (rx->start) {
		memmove(rx->buf, rx->buf + rx->start, buffered(rx));
		rx->end -= rx->start;
		rx->start = 0;
	}
	room = rx->cap - rx->end;
	/* a small frame that is not complete always leaves room below this bound */
	if (rx->after_large)
		room = TN_MIN(room, TN_TCP_RX_HEAD_BYTES - TN_MIN(rx->end, TN_TCP_RX_HEAD_BYTES / 2));
	TN_ASSERT(room > 0);
	*asked = room;
	return recv(lane->fd, rx->buf + rx->end, room, MSG_DONTWAIT);
}

/* Payload straight to its place, and the head of what follows behind it. */
static ssize_t recv_payload(tn_tcp_lane *lane, uint64_t *asked)
{
	tn_tcp_rx *rx = &lane->rx;
	uint64_t n = TN_MIN(rx->left, (uint64_t)TN_TCP_CHUNK_BYTES);
	struct iovec iov[2] = {{.iov_base = rx->dst, .iov_len = n},
			       {.iov_base = rx->buf, .iov_len = TN_TCP_RX_HEAD_BYTES}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n == rx->left ? 2 : 1};

	TN_ASSERT(buffered(rx) == 0);
	rx->start = rx->end = 0;
	*asked = n + (msg.msg_iovlen == 2 ? TN_TCP_RX_HEAD_BYTES : 0);
	if (rx->state == TN_TCP_RX_DISCARD) {
		*asked = n;
		return tn_tcp_discard(lane->fd, n);
	}
	return recvmsg(lane->fd, &msg, MSG_DONTWAIT);
}

/* One system call. Returns the bytes received, 0 when there are none now, -1 when the lane went down. */
static int64_t receive(tn_tcp_lane *lane)
{
	tn_tcp_rx *rx = &lane->rx;
	bool head = rx->state == TN_TCP_RX_HEAD || rx->state == TN_TCP_RX_TRAILER;
	uint64_t asked = 0, direct;
	ssize_t n;

	if (rx->state == TN_TCP_RX_PLACE)
		recheck(lane);
	do {
		n = head ? recv_head(lane, &asked) : recv_payload(lane, &asked);
	} while (n < 0 && errno == EINTR);
	if (n > 0 && TN_FAULT("tcp.lane.recv"))
		n = -1, errno = ECONNRESET;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
		rx->drained = true;
		return 0;
	}
	if (n <= 0) {
		tn_tcp_lane_fail(lane, TERN_E_LANE, "%s",
				 n < 0 ? strerror(errno) : "the peer closed the connection");
		return -1;
	}
	TN_TCP_COUNT(lane->dev, rx_calls, 1);
	rx->drained = (uint64_t)n < asked;
	if (head) {
		rx->end += (uint32_t)n;
		return n;
	}
	direct = TN_MIN((uint64_t)n, rx->left);
	if (rx->state != TN_TCP_RX_DISCARD)
		rx->dst += direct;
	rx->left -= direct;
	rx->end = (uint32_t)((uint64_t)n - direct);
	TN_TCP_COUNT(lane->dev, rx_bytes, direct);
	return n;
}

/*
 * The batch is parsed: complete what the peer acknowledged, acknowledge and answer what it wants. An acknowledgement
 * alone waits until a poll finds nothing or the device is armed: whoever gets what came, or looks at memory for it,
 * should not wait for a system call, often sends something that carries it, and more may come that it covers.
 */
static void settle(tn_tcp_lane *lane, bool events)
{
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_tx *tx = &lane->tx;
	const char *wrong;
	bool later;

	if (lane->state != TN_TCP_UP || !rx->dirty)
		return;
	rx->dirty = false;
	pthread_mutex_lock(&tx->lock);
	wrong = tn_tcp_tx_acked(lane, rx->ack);
	tx->ack_value = rx->seq;
	tx->ack_due |= rx->ack_due;
	rx->ack_due = false;
	later = (events || rx->unacked < TN_TCP_ACK_BYTES) && !tn_tcp_tx_frames(tx) && tn_tcp_tx_pending(tx);
	rx->unacked = later ? rx->unacked : 0;
	if (!wrong && !later && tn_tcp_tx_pending(tx) && !(tx->events & EPOLLOUT))
		tn_tcp_tx_run(lane, TN_TCP_CHUNK_BYTES);
	pthread_mutex_unlock(&tx->lock);
	if (later && !rx->ack_waits) {
		rx->ack_waits = true;
		lane->dev->acks_waiting++;
	}
	if (wrong)
		protocol_error(lane, wrong);
}

int tn_tcp_rx_run(tn_tcp_lane *lane, tn_event *events, int max)
{
	tn_tcp_rx *rx = &lane->rx;
	int64_t budget = TN_TCP_CHUNK_BYTES, got;
	int n = 0;

	rx->moved = rx->more = false;
	tn_tcp_rx_access(lane->dev); /* odd: keys are looked at and their memory written */
	for (;;) {
		n += parse(lane, events + n, max - n);
		if (lane->state != TN_TCP_UP || rx->paused)
			break;
		if (n == max) {
			/* frames may lie in the buffer that no epoll knows of */
			tn_tcp_ready(lane);
			break;
		}
		rx->more = budget <= 0 && !rx->drained;
		/* that emptied the socket: it was parsed, and is not asked again for nothing */
		if (budget <= 0 || (rx->moved && rx->drained))
			break;
		got = receive(lane);
		if (got <= 0)
			break;
		budget -= got;
		rx->moved = true;
		lane->dev->base.placed++;
	}
	tn_tcp_rx_access(lane->dev);
	settle(lane, n > 0);
	return n;
}
