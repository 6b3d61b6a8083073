/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a lane's life: create, connect, up, down, close, drained, destroy; and the delivery of what a lane
 * owes its user. tcp.h has the diagram. Frames are rx.c's and tx.c's matter, the handshake greet.c's.
 *
 * Must not block. Threads: poll's thread and calls serialised with it; tx.lock where posts may be inside.
 * Tests: tests/unit/transport/test_tcp_lane.c.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/tcp/tcp.h"

#define CONNECT_TIMEOUT_NS (5 * TN_NS_PER_SEC)

const char *tn_tcp_state_name(tn_tcp_state state)
{
	static const char *const names[] = {"INIT", "WAITING", "DIALLING", "GREETING",
					    "UP",   "DOWN",    "CLOSED"};

	return (unsigned)state < TN_COUNT_OF(names) ? names[state] : "?";
}

static bool is_greeting(tn_tcp_state state)
{
	return state == TN_TCP_WAITING || state == TN_TCP_DIALLING || state == TN_TCP_GREETING;
}

void tn_tcp_set_state(tn_tcp_lane *lane, tn_tcp_state state)
{
	static const uint32_t from[] = {
		[TN_TCP_INIT] = 0,
		[TN_TCP_WAITING] = 1u << TN_TCP_INIT,
		[TN_TCP_DIALLING] = 1u << TN_TCP_INIT | 1u << TN_TCP_DIALLING | 1u << TN_TCP_GREETING,
		[TN_TCP_GREETING] = 1u << TN_TCP_DIALLING,
		[TN_TCP_UP] = 1u << TN_TCP_INIT | 1u << TN_TCP_WAITING | 1u << TN_TCP_GREETING,
		[TN_TCP_DOWN] = (1u << TN_TCP_DOWN) - 1,
		[TN_TCP_CLOSED] = (1u << TN_TCP_CLOSED) - 1,
	};
	tn_tcp_dev *dev = lane->dev;

	TN_ASSERT_MSG(from[state] & (1u << lane->state), "%s -> %s", tn_tcp_state_name(lane->state),
		      tn_tcp_state_name(state));
	TN_LOG(DEBUG, TCP, "lane %llx: %s -> %s", (unsigned long long)lane->id,
	       tn_tcp_state_name(lane->state), tn_tcp_state_name(state));
	dev->greeting_count += (uint32_t)is_greeting(state) - (uint32_t)is_greeting(lane->state);
	dev->up_count += (uint32_t)(state == TN_TCP_UP) - (uint32_t)(lane->state == TN_TCP_UP);
	lane->state = state;
}

/* ---- making and freeing ---- */

static void free_lane(tn_tcp_lane *lane)
{
	if (!lane)
		return;
	pthread_mutex_destroy(&lane->tx.lock);
	free(lane->tx.ring);
	free(lane->tx.done);
	free(lane->tx.resp);
	free(lane->tx.nak);
	free(lane->tx.batch);
	free(lane->rx.buf);
	tn_crypto_wipe(lane->token, sizeof(lane->token));
	free(lane);
}

static tn_tcp_lane *alloc_lane(tn_tcp_dev *dev)
{
	tn_tcp_lane *lane = TN_FAULT("tcp.lane.alloc") ? NULL : calloc(1, sizeof(*lane));
	tn_tcp_tx *tx;

	if (!lane)
		return NULL;
	tx = &lane->tx;
	pthread_mutex_init(&tx->lock, NULL);
	tx->wrs = (uint32_t)dev->opts.lane_wrs;
	tx->ring = calloc(tx->wrs, sizeof(*tx->ring));
	tx->done = calloc(tx->wrs, sizeof(*tx->done));
	tx->resp = calloc(TN_TCP_READS_MAX, sizeof(*tx->resp));
	tx->nak = calloc(TN_TCP_NAKS, sizeof(*tx->nak));
	tx->batch = malloc(TN_TCP_BATCH_ROOM); /* pages are touched when the first burst comes */
	tx->refuse = TERN_E_STATE;
	lane->rx.cap = (uint32_t)dev->opts.rx_bytes;
	lane->rx.buf = malloc(lane->rx.cap);
	lane->rx.slot = TN_TCP_SLOT_NONE;
	lane->fd = -1;
	lane->dev = dev;
	lane->src.kind = TN_TCP_SRC_LANE;
	if (!tx->ring || !tx->done || !tx->resp || !tx->nak || !tx->batch || !lane->rx.buf) {
		free_lane(lane);
		return NULL;
	}
	return lane;
}

tern_status tn_tcp_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *addr)
{
	tn_tcp_dev *dev = tn_tcp_dev_of(base);
	tn_tcp_lane *lane;
	uint32_t salt = 0;

	*out = NULL;
	TN_TRY(tn_os_random(&salt, sizeof(salt)));
	lane = alloc_lane(dev);
	if (!lane)
		return tn_fail(TERN_E_NOMEM, "a tcp lane of %u requests: lower TERN_TCP_LANE_WRS",
			       (unsigned)dev->opts.lane_wrs);
	lane->base.dev = base;
	lane->base.arg = params->arg;
	lane->active = params->active;
	lane->timeout_ns = params->connect_timeout_ns ? params->connect_timeout_ns : CONNECT_TIMEOUT_NS;
	memcpy(lane->token, params->token, sizeof(lane->token));
	/* never 0, never reused by this device, not to be guessed from the one before */
	lane->id = (uint64_t)salt << 32 | ++dev->lane_serial;
	tn_list_push_back(&dev->lanes, &lane->node);
	dev->lane_count++;
	TN_TCP_COUNT(dev, lanes, 1);
	tn_tcp_lane_blob_encode(lane->id, addr);
	*out = &lane->base;
	return TERN_OK;
}

void tn_tcp_lane_destroy(tn_lane *base)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);
	tn_tcp_dev *dev = lane->dev;

	TN_ASSERT(lane->fd < 0 && lane->state != TN_TCP_UP);
	tn_tcp_slots_orphan(lane);
	pthread_mutex_lock(&dev->ready_lock);
	if (tn_list_linked(&lane->ready)) {
		tn_list_remove(&lane->ready);
		atomic_fetch_sub(&dev->ready_count, 1);
	}
	pthread_mutex_unlock(&dev->ready_lock);
	tn_list_remove(&lane->node);
	tn_tcp_cold(lane);
	dev->lane_count--;
	free_lane(lane);
}

/* ---- connecting ---- */

/* Addresses that cannot be meant for us go: another host's loopback. */
static void choose_addrs(tn_tcp_lane *lane, const tn_tcp_dev_blob *peer)
{
	const tn_tcp_dev_blob *self = &lane->dev->self;
	bool same = self->host == peer->host && self->netns == peer->netns;

	lane->peer = *peer;
	lane->peer.count = 0;
	for (uint32_t i = 0; i < peer->count; i++) {
		if (same || !tn_tcp_addr_is_loopback(&peer->addrs[i]))
			lane->peer.addrs[lane->peer.count++] = peer->addrs[i];
	}
}

static tern_status connect_passive(tn_tcp_lane *lane, uint64_t peer_id)
{
	bool parked = lane->fd >= 0;

	if (parked && lane->peer_id == peer_id && tn_tcp_greet_ready(lane)) {
		tn_tcp_lane_up(lane);
		return TERN_OK;
	}
	tn_os_close(&lane->fd);
	lane->peer_id = peer_id;
	tn_tcp_set_state(lane, TN_TCP_WAITING);
	return TERN_OK;
}

tern_status tn_tcp_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);
	tn_tcp_dev_blob peer;
	uint64_t peer_id;
	const char *wrong;

	if (lane->state != TN_TCP_INIT)
		return tn_fail(TERN_E_STATE, "lane_connect on a lane that is %s",
			       tn_tcp_state_name(lane->state));
	wrong = tn_tcp_dev_blob_decode(peer_dev, &peer);
	if (!wrong)
		wrong = tn_tcp_lane_blob_decode(peer_lane, &peer_id);
	if (wrong)
		return tn_fail(TERN_E_PROTOCOL, "the peer's tcp address: %s", wrong);
	lane->send_bytes = peer.send_bytes;
	lane->deadline = tn_deadline(tn_now(), lane->timeout_ns);
	tn_tcp_deadline(lane->dev, lane->deadline);
	if (!lane->active)
		return connect_passive(lane, peer_id);
	lane->peer_id = peer_id;
	choose_addrs(lane, &peer);
	lane->down_status = TERN_E_UNREACHABLE;
	snprintf(lane->down_detail, sizeof(lane->down_detail),
		 "the peer listens on its loopback only: let it listen on an address of its network");
	tn_tcp_dial_next(lane);
	return TERN_OK;
}

void tn_tcp_lane_up(tn_tcp_lane *lane)
{
	tn_tcp_set_state(lane, TN_TCP_UP);
	lane->deadline = lane->dial_deadline = 0;
	pthread_mutex_lock(&lane->tx.lock);
	lane->tx.refuse = TERN_OK;
	tn_tcp_tx_interest(lane);
	pthread_mutex_unlock(&lane->tx.lock);
	lane->up_due = true;
	tn_tcp_ready(lane);
}

/* ---- ending ---- */

/* Close the connection and complete whatever was accepted. */
static void stop(tn_tcp_lane *lane, tern_status refuse, tern_status status)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_rx *rx = &lane->rx;
	tn_tcp_req *req;

	pthread_mutex_lock(&tx->lock);
	if (lane->fd >= 0) {
		tn_tcp_watch(lane->dev, lane->fd, tx->events, 0, &lane->src);
		if (tx->events & EPOLLOUT && lane->state == TN_TCP_UP)
			atomic_fetch_sub(&lane->dev->tx_waiting, 1);
		tx->events = 0;
		tn_os_close(&lane->fd);
	}
	tx->refuse = refuse;
	tx->cur.kind = TN_TCP_OUT_NONE;
	tx->batch_bytes = 0;
	tx->resp_head = tx->resp_tail;
	tx->nak_head = tx->nak_tail;
	tx->ack_due = false;
	for (uint32_t i = tx->head; i != tx->tail; i++) {
		req = &tx->ring[i & (tx->wrs - 1)];
		if (req->state == TN_TCP_REQ_QUEUED || req->state == TN_TCP_REQ_WAITING)
			tn_tcp_req_complete(lane, i, status);
	}
	tx->sent = tx->acked = tx->tail;
	if (rx->paused)
		lane->dev->slots_paused--;
	rx->paused = false;
	pthread_mutex_unlock(&tx->lock);
	if (rx->slot != TN_TCP_SLOT_NONE)
		tn_tcp_slot_give(lane->dev, rx->slot);
	rx->slot = TN_TCP_SLOT_NONE;
	rx->start = rx->end = 0;
	tn_tcp_rx_set_state(rx, TN_TCP_RX_HEAD);
}

void tn_tcp_lane_fail(tn_tcp_lane *lane, tern_status status, const char *fmt, ...)
{
	va_list ap;

	if (lane->state >= TN_TCP_DOWN)
		return;
	va_start(ap, fmt);
	vsnprintf(lane->down_detail, sizeof(lane->down_detail), fmt, ap);
	va_end(ap);
	lane->down_status = status;
	stop(lane, TERN_E_LANE, status);
	tn_tcp_set_state(lane, TN_TCP_DOWN);
	TN_TCP_COUNT(lane->dev, lanes_down, 1);
	TN_LOG(INFO, TCP, "lane %llx down: %s: %s", (unsigned long long)lane->id, tern_status_name(status),
	       lane->down_detail);
	lane->up_due = false;
	lane->down_due = true;
	tn_tcp_ready(lane);
}

void tn_tcp_lane_break(tn_lane *base)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);
	struct linger reset = {.l_onoff = 1, .l_linger = 0};

	/* as a dead path would: what the kernel still has is not delivered */
	if (lane->fd >= 0 && lane->dev->forks == tn_os_fork_generation())
		setsockopt(lane->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	tn_tcp_lane_fail(lane, TERN_E_LANE, "broken on purpose");
}

void tn_tcp_lane_close(tn_lane *base)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);

	if (lane->state == TN_TCP_CLOSED)
		return;
	/* Unread bytes would turn the close into a reset, which could overtake our last messages. */
	if (lane->state == TN_TCP_UP && lane->dev->forks == tn_os_fork_generation()) {
		tn_tcp_flush(base);
		shutdown(lane->fd, SHUT_WR);
		for (int i = 0; i < 8 && tn_tcp_discard(lane->fd, TN_TCP_CHUNK_BYTES) > 0; i++)
			;
	}
	if (lane->state != TN_TCP_DOWN)
		stop(lane, TERN_E_STATE, TERN_E_FLUSHED);
	lane->tx.refuse = TERN_E_STATE;
	tn_tcp_set_state(lane, TN_TCP_CLOSED);
	lane->up_due = lane->down_due = false;
}

bool tn_tcp_lane_drained(tn_lane *base)
{
	tn_tcp_lane *lane = tn_tcp_lane_of(base);
	bool drained;

	if (lane->state < TN_TCP_DOWN || lane->down_due)
		return false;
	pthread_mutex_lock(&lane->tx.lock);
	drained = lane->tx.done_head == lane->tx.done_tail;
	TN_ASSERT(!drained || lane->tx.head == lane->tx.tail);
	pthread_mutex_unlock(&lane->tx.lock);
	return drained;
}

/* ---- delivery ---- */

static int deliver_done(tn_tcp_lane *lane, tn_event *events, int max)
{
	tn_tcp_tx *tx = &lane->tx;
	tn_tcp_req *req;
	int n = 0;

	pthread_mutex_lock(&tx->lock);
	while (n < max && tx->done_head != tx->done_tail) {
		req = &tx->ring[tx->done[tx->done_head++ & (tx->wrs - 1)] & (tx->wrs - 1)];
		TN_ASSERT(req->state == TN_TCP_REQ_FINISHED);
		events[n++] = (tn_event){.type = TN_EV_DONE,
					 .status = req->status,
					 .lane = &lane->base,
					 .lane_arg = lane->base.arg,
					 .cookie = req->cookie,
					 .bytes = req->status == TERN_OK ? req->bytes : 0};
		tn_tcp_req_set_state(req, TN_TCP_REQ_FREE);
	}
	while (tx->head != tx->tail && tx->ring[tx->head & (tx->wrs - 1)].state == TN_TCP_REQ_FREE)
		tx->head++;
	if ((int32_t)(tx->acked - tx->head) < 0)
		tx->acked = tx->head;
	if (tx->done_head != tx->done_tail)
		tn_tcp_ready(lane);
	pthread_mutex_unlock(&tx->lock);
	return n;
}

int tn_tcp_lane_deliver(tn_tcp_lane *lane, tn_event *events, int max)
{
	int n = 0;

	if (lane->up_due && n < max) {
		lane->up_due = false;
		events[n++] =
			(tn_event){.type = TN_EV_LANE_UP, .lane = &lane->base, .lane_arg = lane->base.arg};
	}
	n += deliver_done(lane, events + n, max - n);
	if (lane->down_due && n < max) {
		lane->down_due = false;
		tn_fail(lane->down_status, "tcp lane: %s", lane->down_detail);
		events[n++] = (tn_event){.type = TN_EV_LANE_DOWN,
					 .status = lane->down_status,
					 .lane = &lane->base,
					 .lane_arg = lane->base.arg};
	}
	if (lane->up_due || lane->down_due)
		tn_tcp_ready(lane);
	return n;
}

void tn_tcp_lane_check(tn_tcp_lane *lane)
{
	tn_tcp_tx *tx = &lane->tx;
	const tn_tcp_rx *rx = &lane->rx;

	pthread_mutex_lock(&tx->lock);
	TN_ASSERT(tx->tail - tx->head <= tx->wrs);
	TN_ASSERT(tx->sent - tx->head <= tx->tail - tx->head && tx->acked - tx->head <= tx->sent - tx->head);
	TN_ASSERT(tx->ack_seen <= tx->seq_sent && tx->seq_sent <= tx->seq_next);
	TN_ASSERT(tx->ack_told <= tx->ack_value);
	TN_ASSERT(tx->reads <= TN_TCP_READS_MAX && tx->resp_tail - tx->resp_head <= TN_TCP_READS_MAX);
	TN_ASSERT(tx->nak_tail - tx->nak_head <= TN_TCP_NAKS && tx->batch_bytes <= TN_TCP_BATCH_ROOM);
	for (uint32_t i = tx->head; i != tx->tail; i++) {
		tn_tcp_req_state state = tx->ring[i & (tx->wrs - 1)].state;

		if (lane->state == TN_TCP_UP)
			TN_ASSERT((state == TN_TCP_REQ_QUEUED) == (i - tx->head >= tx->sent - tx->head));
		else
			TN_ASSERT(state == TN_TCP_REQ_FREE || state == TN_TCP_REQ_FINISHED);
	}
	pthread_mutex_unlock(&tx->lock);
	TN_ASSERT(rx->start <= rx->end && rx->end <= rx->cap);
	TN_ASSERT(lane->slots_held <= lane->dev->opts.lane_recv_slots);
	TN_ASSERT((lane->fd >= 0) || lane->state != TN_TCP_UP);
}
