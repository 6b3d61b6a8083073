/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the device: open and close, poll and arm, the ready list, and the table of ops. Nothing here knows a
 * frame's bytes.
 *
 * Readiness comes from two places. The epoll set (level-triggered, its descriptor is the device's fd) knows
 * sockets, the timer and the kick. The ready list knows lanes that owe something without their socket being
 * readable: completions, LANE_UP and LANE_DOWN, frames left in the rx buffer, frames held back.
 *
 * With few lanes poll asks the sockets first (with more of them those that received last) and epoll only when it has to: when they had nothing after an
 * arm, while something waits for room or a handshake, and now and then. A recv that got less than it asked
 * for has emptied the socket; the next poll does not ask again. Neither can lose an event: the epoll set is
 * level-triggered, so whoever waits on it is woken by whatever was passed over, and then it is looked at.
 *
 * Threads: as tcp.h says; tn_tcp_ready from any. Tests: tests/conformance, tests/unit/transport/test_tcp_*.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/tcp/tcp.h"

#define EPOLL_BATCH 64

TN_COUNTERS_NAMES(counter_names, TN_TCP_COUNTERS)

/* ---- readiness ---- */

int tn_tcp_watch(tn_tcp_dev *dev, int fd, uint32_t before, uint32_t events, tn_tcp_source *src)
{
	struct epoll_event ev = {.events = events, .data.ptr = src};
	int op = !events ? EPOLL_CTL_DEL : before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	/* a forked child shares the set with its parent: it must not change it */
	if (before == events || fd < 0 || dev->forks != tn_os_fork_generation())
		return 0;
	if (events && TN_FAULT("tcp.watch"))
		errno = ENOSPC;
	else if (epoll_ctl(dev->epfd, op, fd, &ev) == 0)
		return 0;
	TN_LOG_LIMITED(ERROR, TCP, 1, "epoll_ctl: %s: see fs.epoll.max_user_watches", strerror(errno));
	return errno;
}

void tn_tcp_ready(tn_tcp_lane *lane)
{
	tn_tcp_dev *dev = lane->dev;

	pthread_mutex_lock(&dev->ready_lock);
	if (!tn_list_linked(&lane->ready)) {
		tn_list_push_back(&dev->ready, &lane->ready);
		atomic_fetch_add(&dev->ready_count, 1);
	}
	pthread_mutex_unlock(&dev->ready_lock);
	/* pairs with arm: it sets armed, then looks at ready_count; one of the two sees the other */
	if (atomic_load(&dev->armed) && atomic_exchange(&dev->armed, false))
		tn_os_event_signal(dev->kick);
}

static tn_tcp_lane *pop_ready(tn_tcp_dev *dev)
{
	tn_list *node;

	pthread_mutex_lock(&dev->ready_lock);
	node = tn_list_pop_front(&dev->ready);
	if (node)
		atomic_fetch_sub(&dev->ready_count, 1);
	pthread_mutex_unlock(&dev->ready_lock);
	return node ? TN_LIST_ENTRY(node, tn_tcp_lane, ready) : NULL;
}

void tn_tcp_deadline(tn_tcp_dev *dev, uint64_t deadline)
{
	if (deadline >= dev->next_deadline)
		return;
	dev->next_deadline = deadline;
	tn_tcp_timer_set(dev->timer, tn_time_left(tn_now(), deadline) + 1);
}

/* ---- poll ---- */

/* The lane's sending failed or may go on. An acknowledgement that waits is none of that: send_acks. */
static void lane_tx(tn_tcp_lane *lane)
{
	pthread_mutex_lock(&lane->tx.lock);
	/* A whole chunk went, so there is likely more to do: the driver is not to sleep over it. */
	if ((!lane->rx.ack_waits || tn_tcp_tx_frames(&lane->tx) || lane->tx.events & EPOLLOUT) &&
	    tn_tcp_tx_run(lane, TN_TCP_CHUNK_BYTES) >= TN_TCP_CHUNK_BYTES)
		lane->dev->base.placed++;
	pthread_mutex_unlock(&lane->tx.lock);
}

static int tx_error(tn_tcp_lane *lane)
{
	int error;

	pthread_mutex_lock(&lane->tx.lock);
	error = lane->tx.error;
	pthread_mutex_unlock(&lane->tx.lock);
	return error;
}

/* It received: likely it will again. */
static void note_hot(tn_tcp_dev *dev, tn_tcp_lane *lane)
{
	if (dev->hot[0] == lane) {
		dev->streak = lane->rx.after_large ? 0 : dev->streak + 1;
		return;
	}
	dev->streak = 0;
	dev->hot[1] = dev->hot[0];
	dev->hot[0] = lane;
}

void tn_tcp_cold(tn_tcp_lane *lane)
{
	tn_tcp_dev *dev = lane->dev;

	dev->acks_waiting -= lane->rx.ack_waits;

	if (dev->hot[0] == lane)
		dev->hot[0] = dev->hot[1];
	if (dev->hot[1] == lane || dev->hot[1] == dev->hot[0])
		dev->hot[1] = NULL;
}

static int lane_rx(tn_tcp_lane *lane, tn_event *events, int max)
{
	int n = 0;

	/* LANE_UP goes before all that came over the lane */
	if (lane->up_due)
		n = tn_tcp_lane_deliver(lane, events, max);
	if (n < max && lane->state == TN_TCP_UP)
		n += tn_tcp_rx_run(lane, events + n, max - n);
	if (lane->rx.moved)
		note_hot(lane->dev, lane);
	if (lane->rx.more)
		lane->dev->direct = TN_TCP_DIRECT_POLLS;
	if (TN_CHECK_ENABLED(2))
		tn_tcp_lane_check(lane);
	return n;
}

/* Lanes that owe something. Each is looked at once; what remains puts it on the list again. */
static int run_ready(tn_tcp_dev *dev, tn_event *events, int max)
{
	uint32_t count = atomic_load(&dev->ready_count);
	tn_tcp_lane *lane;
	int n = 0, error;

	while (count-- && n < max && (lane = pop_ready(dev))) {
		n += tn_tcp_lane_deliver(lane, events + n, max - n);
		if (lane->state != TN_TCP_UP)
			continue;
		lane_tx(lane);
		if (n == max) {
			tn_tcp_ready(lane);
			break;
		}
		error = tx_error(lane);
		/* what lies in its buffer no epoll knows of; of what lies in its socket it does */
		if (error || lane->rx.paused || lane->rx.end != lane->rx.start)
			n += lane_rx(lane, events + n, max - n);
		error = lane->state == TN_TCP_UP ? tx_error(lane) : 0;
		/* what had arrived before the error is delivered first, unless nobody takes it */
		if (error && (n < max || lane->rx.paused))
			tn_tcp_lane_fail(lane, TERN_E_LANE, "sending: %s", strerror(error));
		else if (error)
			tn_tcp_ready(lane);
	}
	return n;
}

static int lane_event(tn_tcp_lane *lane, uint32_t what, tn_event *events, int max)
{
	if (lane->state == TN_TCP_DIALLING || lane->state == TN_TCP_GREETING) {
		tn_tcp_greet_event(lane);
		return 0;
	}
	if (lane->state != TN_TCP_UP)
		return 0;
	if (what & (EPOLLOUT | EPOLLERR | EPOLLHUP))
		lane_tx(lane);
	return lane->rx.paused ? 0 : lane_rx(lane, events, max);
}

static void run_deadlines(tn_tcp_dev *dev)
{
	uint64_t now = tn_now(), next;

	/* disarmed first: a deadline that comes into being below arms it anew */
	tn_tcp_timer_set(dev->timer, 0);
	dev->next_deadline = UINT64_MAX;
	next = tn_tcp_pending_deadlines(dev, now);
	TN_LIST_FOREACH_SAFE(node, &dev->lanes) {
		tn_tcp_lane *lane = TN_LIST_ENTRY(node, tn_tcp_lane, node);

		next = TN_MIN(next, tn_tcp_lane_deadline(lane, now));
		if (lane->rx.paused)
			tn_tcp_rx_stalled(lane);
		if (lane->rx.paused)
			next = TN_MIN(next, now + TN_TCP_STALL_NS);
	}
	tn_tcp_deadline(dev, next);
}

/* What lies in its socket is bulk, as far as one can tell. */
static bool has_bulk(const tn_tcp_source *src)
{
	const tn_tcp_rx *rx;

	if (src->kind != TN_TCP_SRC_LANE)
		return false;
	rx = &TN_CONTAINER_OF(src, tn_tcp_lane, src)->rx;
	return rx->left > 0 || rx->after_large;
}

/* Messages first: they wait for the piece of bulk that was under way, not for one of each lane. */
static void bulk_last(struct epoll_event *ready, int count)
{
	int small = 0;

	for (int i = 0; i < count; i++) {
		struct epoll_event event = ready[i];

		if (has_bulk(event.data.ptr))
			continue;
		ready[i] = ready[small];
		ready[small++] = event;
	}
}

static int run_epoll(tn_tcp_dev *dev, tn_event *events, int max)
{
	struct epoll_event ready[EPOLL_BATCH];
	int count = epoll_wait(dev->epfd, ready, EPOLL_BATCH, 0), n = 0;

	dev->direct = 0;
	bulk_last(ready, count);
	for (int i = 0; i < count && n < max; i++) {
		tn_tcp_source *src = ready[i].data.ptr;

		switch (src->kind) {
		case TN_TCP_SRC_LANE:
			n += lane_event(TN_CONTAINER_OF(src, tn_tcp_lane, src), ready[i].events, events + n,
					max - n);
			break;
		case TN_TCP_SRC_PENDING:
			tn_tcp_pending_event(dev, TN_CONTAINER_OF(src, tn_tcp_pending, src));
			break;
		case TN_TCP_SRC_LISTENER:
			tn_tcp_accept(dev);
			break;
		case TN_TCP_SRC_KICK:
			tn_os_event_drain(dev->kick);
			break;
		case TN_TCP_SRC_TIMER:
			run_deadlines(dev);
			break;
		}
	}
	return n;
}

/* Ask the few sockets there are, without epoll; after a wake-up also those that were empty a moment ago. */
static int run_direct(tn_tcp_dev *dev, bool woken, tn_event *events, int max)
{
	int n = 0;

	TN_LIST_FOREACH_SAFE(node, &dev->lanes) {
		tn_tcp_lane *lane = TN_LIST_ENTRY(node, tn_tcp_lane, node);

		if (lane->state != TN_TCP_UP || lane->rx.paused || n == max)
			continue;
		if (lane->rx.drained && !woken)
			lane->rx.drained = false;
		else
			n += lane_rx(lane, events + n, max - n);
	}
	return n;
}

/*
 * One in so many polls looks elsewhere. An empty look costs what half an empty recv does, and what came is found later by as
 * much: rarer while one lane takes turns with its peer. Bulk is no such talk, its polls are long.
 */
static uint32_t polls_between(const tn_tcp_dev *dev, uint32_t polls)
{
	return dev->streak >= TN_TCP_STREAK ? polls * TN_TCP_STREAK_RARER : polls;
}

/* Ask the sockets that had something lately. True: one of them had. */
static bool run_hot(tn_tcp_dev *dev, bool woken, tn_event *events, int max, int *n)
{
	tn_tcp_lane *hot[TN_TCP_HOT_LANES];
	bool moved = false;

	memcpy(hot, dev->hot, sizeof(hot));
	for (uint32_t i = 0; i < TN_TCP_HOT_LANES && hot[i] && *n < max; i++) {
		tn_tcp_lane *lane = hot[i];

		if (lane->state != TN_TCP_UP || lane->rx.paused)
			continue;
		/* the one before it received last, and is what a spinning poll mostly looks for */
		if (i > 0 && !woken && dev->direct % polls_between(dev, TN_TCP_SECOND_POLLS))
			break;
		if (lane->rx.drained && !woken) {
			lane->rx.drained = false;
			continue;
		}
		*n += lane_rx(lane, events + *n, max - *n);
		moved |= lane->rx.moved;
		if ((woken && moved) || lane->rx.more)
			break; /* that was it, likely; or others are first asked whether they have something */
	}
	return moved;
}

static bool must_look(const tn_tcp_dev *dev, uint32_t polls)
{
	return dev->direct >= polls || dev->pending_count || dev->greeting_count ||
	       atomic_load_explicit(&dev->tx_waiting, memory_order_relaxed);
}

/* Acknowledgements that nothing else has carried. */
static void send_acks(tn_tcp_dev *dev)
{
	TN_LIST_FOREACH_SAFE(node, &dev->lanes) {
		tn_tcp_lane *lane = TN_LIST_ENTRY(node, tn_tcp_lane, node);

		if (!lane->rx.ack_waits)
			continue;
		lane->rx.ack_waits = false;
		lane->rx.unacked = 0;
		dev->acks_waiting--;
		if (lane->state == TN_TCP_UP)
			lane_tx(lane);
	}
}

static int tcp_poll(tn_dev *base, tn_event *events, int max)
{
	tn_tcp_dev *dev = tn_tcp_dev_of(base);
	bool woken = atomic_load_explicit(&dev->armed, memory_order_relaxed);
	uint64_t placed = base->placed;
	int n = 0;

	if (TN_UNLIKELY(dev->forks != tn_os_fork_generation()))
		return 0;
	if (woken)
		atomic_store_explicit(&dev->armed, false, memory_order_relaxed);
	if (atomic_load(&dev->ready_count))
		n = run_ready(dev, events, max);
	if (dev->up_count && dev->lane_count <= TN_TCP_DIRECT_LANES && n < max) {
		n += run_direct(dev, woken, events + n, max - n);
		dev->direct++;
		if (n < max && ((woken && n == 0) || must_look(dev, TN_TCP_DIRECT_POLLS)))
			n += run_epoll(dev, events + n, max - n);
	} else if (n < max) {
		bool moved = run_hot(dev, woken, events, max, &n);

		dev->direct++;
		if (n < max && (!dev->hot[0] || (woken && !moved) ||
				must_look(dev, polls_between(dev, TN_TCP_HOT_POLLS))))
			n += run_epoll(dev, events + n, max - n);
	}
	if (n < max && atomic_load(&dev->ready_count))
		n += run_ready(dev, events + n, max - n);
	if (dev->acks_waiting && n == 0 && base->placed == placed)
		send_acks(dev);
	return n;
}

static tern_status tcp_arm(tn_dev *base)
{
	tn_tcp_dev *dev = tn_tcp_dev_of(base);

	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the device belongs to the parent process");
	if (dev->acks_waiting)
		send_acks(dev);
	atomic_store(&dev->armed, true);
	if (atomic_load(&dev->ready_count) == 0)
		return TERN_OK;
	atomic_store(&dev->armed, false);
	dev->direct = TN_TCP_DIRECT_POLLS; /* a kick may have come in between: look for it */
	return TERN_BUSY;
}

static int tcp_fd(tn_dev *base)
{
	return tn_tcp_dev_of(base)->epfd;
}

/* ---- facts ---- */

static void tcp_caps(tn_dev *base, tn_dev_caps *caps)
{
	const tn_tcp_opts *opts = &tn_tcp_dev_of(base)->opts;

	*caps = (tn_dev_caps){
		/* no TAIL_BYTE: the kernel copies upwards but promises no order within one copy */
		.flags = TN_CAP_WRITE | TN_CAP_WRITE_IMM | TN_CAP_READ | TN_CAP_SEND | TN_CAP_REMOTE_DONE |
			 TN_CAP_ORDERED_WRITES,
		.write_bytes_max = TN_TCP_BYTES_MAX,
		.send_bytes_max = opts->send_bytes,
		.recv_slots = (uint32_t)opts->recv_slots,
		.lane_recv_slots = (uint32_t)opts->lane_recv_slots,
		.lane_wrs_max = (uint32_t)opts->lane_wrs,
		.inline_bytes = 0,
		.streams = true,
		.batches = true,
	};
}

static void tcp_address(tn_dev *base, tn_blob *blob)
{
	tn_tcp_dev_blob_encode(&tn_tcp_dev_of(base)->self, blob);
}

static bool beyond_loopback(const tn_tcp_dev_blob *blob)
{
	for (uint32_t i = 0; i < blob->count; i++)
		if (!tn_tcp_addr_is_loopback(&blob->addrs[i]))
			return true;
	return false;
}

static tern_status tcp_reach(tn_dev *base, const tn_blob *peer)
{
	const tn_tcp_dev_blob *self = &tn_tcp_dev_of(base)->self;
	tn_tcp_dev_blob there;
	const char *wrong = tn_tcp_dev_blob_decode(peer, &there);
	char addr[80];

	if (wrong)
		return tn_fail(TERN_E_PROTOCOL, "the peer's tcp address: %s", wrong);
	if (self->host == there.host && self->netns == there.netns)
		return TERN_OK;
	/* One side dials each lane: that the other listens is enough. Which one it is says the link later. */
	if (beyond_loopback(&there) || beyond_loopback(self))
		return TERN_OK;
	tn_tcp_addr_print(&there.addrs[0], addr, sizeof(addr));
	return tn_fail(TERN_E_UNREACHABLE,
		       "this node listens on its loopback only, and the peer, on another host or in another "
		       "container, on %s: let the one that is dialled listen on an address of its network",
		       addr);
}

static void tcp_recv_done(tn_dev *base, const tn_event *event)
{
	tn_tcp_slot_give(tn_tcp_dev_of(base), event->slot);
}

static void tcp_counters(tn_dev *base, tern_counter_fn fn, void *arg)
{
	tn_counters_each(counter_names, &tn_tcp_dev_of(base)->counters, "tcp", fn, arg);
}

/* ---- open and close ---- */

static void tcp_close(tn_dev *base)
{
	tn_tcp_dev *dev = tn_tcp_dev_of(base);

	while (!tn_list_empty(&dev->lanes)) {
		tn_tcp_lane *lane = TN_LIST_FIRST(&dev->lanes, tn_tcp_lane, node);

		tn_tcp_lane_close(&lane->base);
		tn_tcp_lane_destroy(&lane->base);
	}
	for (uint64_t i = 0; dev->pending && i < dev->opts.pending_max; i++) {
		if (dev->pending[i].fd >= 0)
			tn_tcp_pending_drop(dev, &dev->pending[i]);
	}
	if (dev->guarded && dev->forks == tn_os_fork_generation())
		tn_mem_guard_remove(dev->base.mem, dev);
	tn_os_close(&dev->listener);
	tn_os_close(&dev->kick);
	tn_os_close(&dev->timer);
	tn_os_close(&dev->epfd);
	tn_tcp_slots_fini(dev);
	free(dev->pending);
	pthread_mutex_destroy(&dev->ready_lock);
	free(dev);
}

static tern_status init_pending(tn_tcp_dev *dev)
{
	dev->pending = calloc(dev->opts.pending_max, sizeof(*dev->pending));
	if (!dev->pending)
		return tn_fail(TERN_E_NOMEM, "pending connections");
	for (uint64_t i = 0; i < dev->opts.pending_max; i++) {
		dev->pending[i].fd = -1;
		dev->pending[i].src.kind = TN_TCP_SRC_PENDING;
	}
	return TERN_OK;
}

static tern_status init_descriptors(tn_tcp_dev *dev, const char *host)
{
	struct sockaddr_storage bound;

	dev->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (dev->epfd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "epoll_create1", "%s", "");
	dev->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (dev->timer < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "timerfd_create", "%s", "");
	TN_TRY(tn_os_event_create(&dev->kick));
	TN_TRY(tn_tcp_listen(host, &dev->opts, &dev->listener, &bound));
	TN_TRY(tn_tcp_self(&bound, &dev->self));
	dev->self.send_bytes = (uint32_t)dev->opts.send_bytes;
	if (tn_tcp_watch(dev, dev->timer, 0, EPOLLIN, &dev->src_timer) ||
	    tn_tcp_watch(dev, dev->kick, 0, EPOLLIN, &dev->src_kick) ||
	    tn_tcp_watch(dev, dev->listener, 0, EPOLLIN, &dev->src_listener))
		return tn_fail(TERN_E_LIMIT, "the epoll set is full: see fs.epoll.max_user_watches");
	return TERN_OK;
}

static tern_status tcp_open(const tn_dev_params *params, tn_dev **out)
{
	const char *host = params->bind_host && params->bind_host[0] ? params->bind_host : "127.0.0.1";
	tn_tcp_dev *dev = calloc(1, sizeof(*dev));
	tern_status status;
	char addr[80];

	*out = NULL;
	if (!dev)
		return tn_fail(TERN_E_NOMEM, "a tcp device");
	dev->base.ops = &tn_tcp_dev_ops;
	dev->base.provider = &tn_provider_tcp;
	dev->base.mem = params->mem;
	dev->epfd = dev->listener = dev->kick = dev->timer = -1;
	dev->src_listener.kind = TN_TCP_SRC_LISTENER;
	dev->src_kick.kind = TN_TCP_SRC_KICK;
	dev->src_timer.kind = TN_TCP_SRC_TIMER;
	dev->forks = tn_os_fork_generation();
	dev->next_deadline = UINT64_MAX;
	tn_list_init(&dev->lanes);
	tn_list_init(&dev->ready);
	pthread_mutex_init(&dev->ready_lock, NULL);
	status = tn_tcp_opts_load(params->options, &dev->opts);
	if (status == TERN_OK)
		status = init_pending(dev);
	if (status == TERN_OK)
		status = tn_tcp_slots_init(dev);
	if (status == TERN_OK)
		status = init_descriptors(dev, host);
	if (status == TERN_OK && dev->base.mem)
		status = tn_mem_guard_add(dev->base.mem, &tn_tcp_guard, dev);
	dev->guarded = status == TERN_OK && dev->base.mem;
	if (status != TERN_OK) {
		tcp_close(&dev->base);
		return status;
	}
	tn_tcp_addr_print(&dev->self.addrs[0], addr, sizeof(addr));
	TN_LOG(INFO, TCP, "listening on %s (first of %u addresses for peers)", addr, dev->self.count);
	*out = &dev->base;
	return TERN_OK;
}

static tern_status tcp_probe(char *reason, size_t reason_bytes)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool v4 = fd >= 0, v6;
	int err = errno;

	tn_os_close(&fd);
	fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	v6 = fd >= 0;
	tn_os_close(&fd);
	if (!v4 && !v6) {
		if (reason)
			snprintf(reason, reason_bytes, "no TCP sockets here: %s", strerror(err));
		return tn_fail(TERN_E_NO_DEVICE, "no TCP sockets here: %s", strerror(err));
	}
	if (reason)
		snprintf(reason, reason_bytes, "kernel TCP, %s%s%s", v4 ? "IPv4" : "",
			 v4 && v6 ? " and " : "", v6 ? "IPv6" : "");
	return TERN_OK;
}

/* Every op is given: nothing of the contract is missing, so no entry comes from the default ops. */
const tn_dev_ops tn_tcp_dev_ops = {
	.caps = tcp_caps,
	.address = tcp_address,
	.reach = tcp_reach,
	.poll = tcp_poll,
	.take = tn_dummy_take,
	.arm = tcp_arm,
	.fd = tcp_fd,
	.recv_done = tcp_recv_done,
	.close = tcp_close,
	.lane_create = tn_tcp_lane_create,
	.lane_connect = tn_tcp_lane_connect,
	.lane_break = tn_tcp_lane_break,
	.lane_close = tn_tcp_lane_close,
	.lane_drained = tn_tcp_lane_drained,
	.lane_destroy = tn_tcp_lane_destroy,
	.write = tn_tcp_write,
	.write_imm = tn_tcp_write_imm,
	.read = tn_tcp_read,
	.access = tn_dummy_access,
	.send = tn_tcp_send,
	.flush = tn_tcp_flush,
	.copy_begin = tn_dummy_copy_begin,
	.copy = tn_dummy_copy,
	.copy_end = tn_dummy_copy,
	.counters = tcp_counters,
};

const tn_provider tn_provider_tcp = {.name = "tcp", .probe = tcp_probe, .open = tcp_open};
