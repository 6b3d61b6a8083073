/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the handshake that binds a connection to a lane, on both sides:
 *
 *   dialler                                     acceptor (a pending connection)
 *   HELLO versions, lanes, nonce_d     -->      lane known, passive, not connected?
 *                                      <--      CHALLENGE version, nonce_a, HMAC(token, accepts | ...)
 *   PROOF HMAC(token, dialler | ...)   -->      right? then the connection is the lane's
 *                                      <--      READY, once lane_connect was called
 *
 * Until the proof a connection is a stranger: one of at most pending_max, one message of 104 bytes at a
 * time, dropped at its deadline; when all places are taken the oldest makes room. A wrong or late proof
 * costs its connection and nothing else: the lane goes on waiting for the right one.
 *
 * Must not block. Threads: poll's thread. Tests: tests/unit/transport/test_tcp_greet.c.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
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

#define ACCEPTS_PER_POLL 16

_Static_assert(TN_TCP_PROOF_BYTES == TN_HMAC_BYTES, "a proof is one HMAC");

/* ---- both sides ---- */

static bool make_proof(const tn_tcp_lane *lane, const tn_tcp_greet *g, bool dialler,
		       uint8_t proof[TN_TCP_PROOF_BYTES])
{
	uint8_t text[TN_TCP_TRANSCRIPT_BYTES];

	tn_tcp_transcript(dialler, g->version, g->lane_dialler, g->lane_acceptor, g->nonce_dialler,
			  g->nonce_acceptor, text);
	return tn_hmac_sha256(lane->token, sizeof(lane->token), text, sizeof(text), proof) == TERN_OK;
}

static bool proof_holds(const tn_tcp_lane *lane, const tn_tcp_greet *g, bool dialler, const uint8_t *proof)
{
	uint8_t right[TN_TCP_PROOF_BYTES];

	return make_proof(lane, g, dialler, right) && tn_crypto_equal(right, proof, sizeof(right));
}

/* A handshake message always fits into the buffer of a fresh connection: anything else is a failure. */
static bool send_hello(int fd, const tn_tcp_hello *hello)
{
	uint8_t bytes[TN_TCP_HELLO_BYTES];

	tn_tcp_hello_encode(hello, bytes);
	return send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(bytes);
}

/* Read on in one message. 1: complete; 0: not yet; -1: the connection is gone (errno, 0 = closed by peer). */
static int read_hello(int fd, tn_tcp_greet *g)
{
	ssize_t n = recv(fd, g->in + g->have, sizeof(g->in) - g->have, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return 0;
	if (n <= 0) {
		errno = n == 0 ? 0 : errno;
		return -1;
	}
	g->have += (uint32_t)n;
	if (g->have < sizeof(g->in))
		return 0;
	g->have = 0;
	return 1;
}

static tn_tcp_hello new_hello(tn_tcp_hello_type type, const tn_tcp_greet *g, uint64_t to, uint64_t from)
{
	return (tn_tcp_hello){.type = type,
			      .version = g->version,
			      .version_min = TN_TCP_WIRE_VERSION_MIN,
			      .lane_to = to,
			      .lane_from = from};
}

/* ---- dialler ---- */

/* This address led nowhere: remember why, try the next. What a peer said weighs more than silence. */
static void next_address(tn_tcp_lane *lane, tern_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void next_address(tn_tcp_lane *lane, tern_status status, const char *fmt, ...)
{
	char addr[80] = "?", what[120];
	va_list ap;

	if (lane->dial_next)
		tn_tcp_addr_print(&lane->peer.addrs[lane->dial_next - 1], addr, sizeof(addr));
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (tern_status_radius(status) >= tern_status_radius(lane->down_status)) {
		lane->down_status = status;
		snprintf(lane->down_detail, sizeof(lane->down_detail), "%s: %s", addr, what);
	}
	TN_LOG(DEBUG, TCP, "lane %llx: %s: %s", (unsigned long long)lane->id, addr, what);
	tn_tcp_watch(lane->dev, lane->fd, lane->tx.events, 0, &lane->src);
	lane->tx.events = 0;
	tn_os_close(&lane->fd);
	tn_tcp_dial_next(lane);
}

static tern_status dial_status(int err)
{
	switch (err) {
	case ECONNREFUSED:
		return TERN_E_REFUSED;
	case EMFILE:
	case ENFILE:
	case ENOSPC:
		return TERN_E_LIMIT;
	case ENOMEM:
	case ENOBUFS:
		return TERN_E_NOMEM;
	default:
		return TERN_E_UNREACHABLE;
	}
}

void tn_tcp_dial_next(tn_tcp_lane *lane)
{
	tn_tcp_dev *dev = lane->dev;
	uint64_t now = tn_now(), left = tn_time_left(now, lane->deadline);
	char addr[80], why[TN_TCP_DETAIL_BYTES];
	int err;

	while (lane->dial_next < lane->peer.count) {
		uint32_t rest = lane->peer.count - lane->dial_next;
		const tn_tcp_addr *to = &lane->peer.addrs[lane->dial_next++];

		err = tn_tcp_dial(to, &dev->opts, &lane->fd);
		if (err == 0 && (err = tn_tcp_watch(dev, lane->fd, 0, EPOLLOUT, &lane->src)) != 0)
			tn_os_close(&lane->fd);
		if (err == 0) {
			/* each address gets its share of the time that is left */
			lane->dial_deadline = now + left / rest;
			tn_tcp_deadline(dev, lane->dial_deadline);
			tn_tcp_set_state(lane, TN_TCP_DIALLING);
			memset(&lane->greet, 0, sizeof(lane->greet));
			lane->tx.events = EPOLLOUT;
			return;
		}
		tn_tcp_addr_print(to, addr, sizeof(addr));
		lane->down_status = dial_status(err);
		snprintf(lane->down_detail, sizeof(lane->down_detail), "%s: %s", addr, strerror(err));
	}
	memcpy(why, lane->down_detail, sizeof(why));
	tn_tcp_lane_fail(lane, lane->down_status, "%s", why);
}

static void dialled(tn_tcp_lane *lane)
{
	tn_tcp_greet *g = &lane->greet;
	tn_tcp_hello hello;
	int err = 0;
	socklen_t bytes = sizeof(err);

	if (getsockopt(lane->fd, SOL_SOCKET, SO_ERROR, &err, &bytes) != 0)
		err = errno;
	if (TN_FAULT("tcp.dial.connect"))
		err = ECONNREFUSED;
	if (err) {
		next_address(lane, dial_status(err), "connect: %s", strerror(err));
		return;
	}
	g->version = TN_TCP_WIRE_VERSION;
	g->lane_dialler = lane->id;
	g->lane_acceptor = lane->peer_id;
	if (tn_os_random(g->nonce_dialler, sizeof(g->nonce_dialler)) != TERN_OK) {
		next_address(lane, TERN_E_OS, "no randomness");
		return;
	}
	hello = new_hello(TN_TCP_HELLO, g, lane->peer_id, lane->id);
	memcpy(hello.nonce, g->nonce_dialler, sizeof(hello.nonce));
	if (!send_hello(lane->fd, &hello)) {
		/* an event of an earlier address in the same batch: this one is not connected yet */
		if (errno == EAGAIN || errno == ENOTCONN)
			return;
		next_address(lane, TERN_E_UNREACHABLE, "hello: %s", strerror(errno));
		return;
	}
	tn_tcp_set_state(lane, TN_TCP_GREETING);
	tn_tcp_watch(lane->dev, lane->fd, lane->tx.events, EPOLLIN, &lane->src);
	lane->tx.events = EPOLLIN;
}

/* The acceptor's CHALLENGE: does it hold the token? Then prove the same. */
static void challenged(tn_tcp_lane *lane, const tn_tcp_hello *in)
{
	tn_tcp_greet *g = &lane->greet;
	tn_tcp_hello out;

	if (in->status == TERN_E_VERSION) {
		next_address(lane, TERN_E_VERSION,
			     "the peer speaks wire versions %u to %u, this side %u to %u", in->version_min,
			     in->version, TN_TCP_WIRE_VERSION_MIN, TN_TCP_WIRE_VERSION);
		return;
	}
	g->version = in->version;
	memcpy(g->nonce_acceptor, in->nonce, sizeof(g->nonce_acceptor));
	if (in->version < TN_TCP_WIRE_VERSION_MIN || in->version > TN_TCP_WIRE_VERSION ||
	    in->lane_from != lane->peer_id || !proof_holds(lane, g, false, in->proof)) {
		next_address(lane, TERN_E_AUTH, "who answered does not know the lane's token");
		return;
	}
	out = new_hello(TN_TCP_PROOF, g, lane->peer_id, lane->id);
	if (!make_proof(lane, g, true, out.proof) || !send_hello(lane->fd, &out)) {
		next_address(lane, TERN_E_LANE, "proof: %s", strerror(errno));
		return;
	}
	g->challenged = true;
}

void tn_tcp_greet_event(tn_tcp_lane *lane)
{
	tn_tcp_hello in;
	const char *wrong;
	int rc;

	if (lane->state == TN_TCP_DIALLING) {
		dialled(lane);
		return;
	}
	rc = read_hello(lane->fd, &lane->greet);
	if (rc < 0) {
		next_address(lane, TERN_E_REFUSED, "%s during the handshake",
			     errno ? strerror(errno) : "the peer closed the connection");
		return;
	}
	if (rc == 0)
		return;
	wrong = tn_tcp_hello_decode(lane->greet.in, &in);
	if (!wrong &&
	    (in.type != (lane->greet.challenged ? TN_TCP_READY : TN_TCP_CHALLENGE) || in.lane_to != lane->id))
		wrong = "a handshake message out of turn";
	if (wrong)
		next_address(lane, TERN_E_PROTOCOL, "%s", wrong);
	else if (in.type == TN_TCP_CHALLENGE)
		challenged(lane, &in);
	else
		tn_tcp_lane_up(lane);
}

/* ---- acceptor ---- */

static tn_tcp_lane *find_lane(tn_tcp_dev *dev, uint64_t id)
{
	TN_LIST_FOREACH(node, &dev->lanes) {
		tn_tcp_lane *lane = TN_LIST_ENTRY(node, tn_tcp_lane, node);

		if (lane->id == id)
			return lane;
	}
	return NULL;
}

/* May this stranger still become that lane's connection? */
static tn_tcp_lane *wanted_lane(tn_tcp_dev *dev, uint64_t id, uint64_t dialler)
{
	tn_tcp_lane *lane = find_lane(dev, id);

	if (!lane || lane->active || lane->fd >= 0)
		return NULL;
	if (lane->state == TN_TCP_WAITING)
		return lane->peer_id == dialler ? lane : NULL;
	return lane->state == TN_TCP_INIT ? lane : NULL;
}

static void free_pending(tn_tcp_dev *dev, tn_tcp_pending *pending)
{
	TN_ASSERT(pending->fd >= 0 && dev->pending_count > 0);
	tn_tcp_watch(dev, pending->fd, EPOLLIN, 0, &pending->src);
	pending->fd = -1;
	dev->pending_count--;
}

void tn_tcp_pending_drop(tn_tcp_dev *dev, tn_tcp_pending *pending)
{
	int fd = pending->fd;

	free_pending(dev, pending);
	tn_os_close(&fd);
}

static void reject(tn_tcp_dev *dev, tn_tcp_pending *pending, const char *why)
{
	TN_TCP_COUNT(dev, rejected, 1);
	TN_LOG_LIMITED(INFO, TCP, 4, "connection refused: %s", why);
	tn_tcp_pending_drop(dev, pending);
}

static tn_tcp_pending *free_place(tn_tcp_dev *dev)
{
	tn_tcp_pending *oldest = NULL;

	for (uint64_t i = 0; i < dev->opts.pending_max; i++) {
		tn_tcp_pending *p = &dev->pending[i];

		if (p->fd < 0)
			return p;
		if (!oldest || p->deadline < oldest->deadline)
			oldest = p;
	}
	reject(dev, oldest, "too many strangers at once: the oldest goes");
	return oldest;
}

static void accept_one(tn_tcp_dev *dev, int fd)
{
	tn_tcp_pending *p = free_place(dev);

	memset(&p->greet, 0, sizeof(p->greet));
	p->fd = fd;
	p->deadline = tn_deadline(tn_now(), dev->opts.handshake_ns);
	dev->pending_count++;
	tn_tcp_tune(fd, &dev->opts);
	TN_TCP_COUNT(dev, accepted, 1);
	if (tn_tcp_watch(dev, fd, 0, EPOLLIN, &p->src) != 0) {
		reject(dev, p, "no room in the epoll set");
		return;
	}
	tn_tcp_deadline(dev, p->deadline);
}

void tn_tcp_accept(tn_tcp_dev *dev)
{
	int fd;

	for (int i = 0; i < ACCEPTS_PER_POLL; i++) {
		fd = TN_FAULT("tcp.accept")
			     ? (errno = EMFILE, -1)
			     : accept4(dev->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			accept_one(dev, fd);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			/* the listener stays readable: look again later instead of at once and for ever */
			TN_LOG_LIMITED(WARN, TCP, 1, "accept: %s: raise the limit of open files (ulimit -n)",
				       strerror(errno));
			tn_tcp_watch(dev, dev->listener, EPOLLIN, 0, &dev->src_listener);
			dev->listener_again = tn_now() + 100 * TN_NS_PER_MS;
			tn_tcp_deadline(dev, dev->listener_again);
		}
		return;
	}
}

static void pending_hello(tn_tcp_dev *dev, tn_tcp_pending *p, const tn_tcp_hello *in)
{
	tn_tcp_greet *g = &p->greet;
	tn_tcp_lane *lane = wanted_lane(dev, in->lane_to, in->lane_from);
	tn_tcp_hello out;

	if (!lane) {
		reject(dev, p, "no lane of that number waits here");
		return;
	}
	g->version = tn_tcp_version_choose(in->version, in->version_min);
	g->lane_dialler = in->lane_from;
	g->lane_acceptor = in->lane_to;
	memcpy(g->nonce_dialler, in->nonce, sizeof(g->nonce_dialler));
	out = new_hello(TN_TCP_CHALLENGE, g, in->lane_from, in->lane_to);
	if (g->version == 0) {
		out.version = TN_TCP_WIRE_VERSION;
		out.status = TERN_E_VERSION;
		send_hello(p->fd, &out);
		reject(dev, p, "it speaks other wire versions only");
		return;
	}
	if (tn_os_random(g->nonce_acceptor, sizeof(g->nonce_acceptor)) != TERN_OK) {
		reject(dev, p, "no randomness");
		return;
	}
	memcpy(out.nonce, g->nonce_acceptor, sizeof(out.nonce));
	if (!make_proof(lane, g, false, out.proof) || !send_hello(p->fd, &out)) {
		reject(dev, p, "it went away");
		return;
	}
	g->challenged = true;
}

static void pending_proof(tn_tcp_dev *dev, tn_tcp_pending *p, const tn_tcp_hello *in)
{
	const tn_tcp_greet *g = &p->greet;
	/* looked up again: it may have been closed or taken since the hello */
	tn_tcp_lane *lane = wanted_lane(dev, g->lane_acceptor, g->lane_dialler);
	int fd = p->fd;

	if (!lane || in->lane_to != g->lane_acceptor || in->lane_from != g->lane_dialler ||
	    in->version != g->version) {
		reject(dev, p, "no lane of that number waits here any more");
		return;
	}
	if (!proof_holds(lane, g, true, in->proof)) {
		reject(dev, p, "wrong proof of the lane's token");
		return;
	}
	lane->peer_id = g->lane_dialler;
	lane->greet = *g;
	free_pending(dev, p);
	lane->fd = fd;
	/* in INIT the connection is parked: lane_connect takes it from there */
	if (lane->state == TN_TCP_WAITING) {
		if (tn_tcp_greet_ready(lane))
			tn_tcp_lane_up(lane);
		else
			tn_os_close(&lane->fd);
	}
}

bool tn_tcp_greet_ready(tn_tcp_lane *lane)
{
	tn_tcp_hello out = new_hello(TN_TCP_READY, &lane->greet, lane->peer_id, lane->id);

	return send_hello(lane->fd, &out);
}

void tn_tcp_pending_event(tn_tcp_dev *dev, tn_tcp_pending *p)
{
	tn_tcp_hello in;
	const char *wrong;
	int rc;

	if (p->fd < 0)
		return; /* dropped earlier in this batch of events */
	rc = read_hello(p->fd, &p->greet);
	if (rc == 0)
		return;
	wrong = rc < 0 ? "it went away" : tn_tcp_hello_decode(p->greet.in, &in);
	if (!wrong && in.type != (p->greet.challenged ? TN_TCP_PROOF : TN_TCP_HELLO))
		wrong = "a handshake message out of turn";
	if (wrong)
		reject(dev, p, wrong);
	else if (in.type == TN_TCP_HELLO)
		pending_hello(dev, p, &in);
	else
		pending_proof(dev, p, &in);
}

/* ---- deadlines ---- */

uint64_t tn_tcp_lane_deadline(tn_tcp_lane *lane, uint64_t now)
{
	char addr[80];

	if (lane->state == TN_TCP_WAITING && now >= lane->deadline)
		tn_tcp_lane_fail(lane, TERN_E_DEADLINE, "the peer did not connect within %llu ms",
				 (unsigned long long)(lane->timeout_ns / TN_NS_PER_MS));
	if (lane->state == TN_TCP_WAITING)
		return lane->deadline;
	if (lane->state != TN_TCP_DIALLING && lane->state != TN_TCP_GREETING)
		return UINT64_MAX;
	if (now >= lane->deadline) {
		tn_tcp_addr_print(&lane->peer.addrs[lane->dial_next - 1], addr, sizeof(addr));
		tn_tcp_lane_fail(lane, TERN_E_DEADLINE, "%s: no %s within %llu ms", addr,
				 lane->state == TN_TCP_DIALLING ? "connection" : "end of the handshake",
				 (unsigned long long)(lane->timeout_ns / TN_NS_PER_MS));
		return UINT64_MAX;
	}
	if (now >= lane->dial_deadline)
		next_address(lane, TERN_E_UNREACHABLE, "no answer in time");
	return lane->state < TN_TCP_DOWN ? TN_MIN(lane->deadline, lane->dial_deadline) : UINT64_MAX;
}

uint64_t tn_tcp_pending_deadlines(tn_tcp_dev *dev, uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (uint64_t i = 0; i < dev->opts.pending_max && dev->pending_count; i++) {
		tn_tcp_pending *p = &dev->pending[i];

		if (p->fd >= 0 && p->deadline <= now)
			reject(dev, p, "it did not prove itself in time");
		if (p->fd >= 0)
			next = TN_MIN(next, p->deadline);
	}
	if (dev->listener_again && dev->listener_again <= now) {
		dev->listener_again = 0;
		tn_tcp_watch(dev, dev->listener, 0, EPOLLIN, &dev->src_listener);
	}
	return dev->listener_again ? TN_MIN(next, dev->listener_again) : next;
}
