/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the device's progress: poll, arm, the clock, counters, and the table of ops.
 *
 * One epoll descriptor holds all that can wake: the completion channel, asynchronous events, a timer for
 * deadlines and keepalive, and a kick for what another thread makes due. Level-triggered; arm drains them.
 *
 * Threads: poll and arm in one thread at a time. Tests: tests/conformance,
 * tests/unit/transport/test_verbs_*.c.
 */
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

/* Polls between looks at the clock, and at asynchronous events (a system call; arm looks as well), when no
   deadline is near and when one is. */
#define CLOCK_EVERY      64u
#define ASYNC_EVERY      1024u
#define ASYNC_EVERY_BUSY 16u

static bool forked(const tn_vb_dev *dev)
{
	return dev->forks != tn_os_fork_generation();
}

void tn_vb_deadline(tn_vb_dev *dev, uint64_t at_ns)
{
	dev->next_ns = TN_MIN(dev->next_ns, at_ns);
}

void tn_vb_kick(tn_vb_dev *dev)
{
	tn_os_event_signal(dev->kick_fd);
}

/* ---- the clock ---- */

static void each_lane(tn_vb_dev *dev, void (*fn)(tn_vb_lane *lane, uint64_t now_ns), uint64_t now)
{
	TN_LIST_FOREACH(node, &dev->lanes)
		fn(TN_LIST_ENTRY(node, tn_vb_lane, all), now);
}

static void clock_run(tn_vb_dev *dev)
{
	uint64_t now = tn_now();

	if (now < dev->next_ns)
		return;
	dev->next_ns = TN_TIME_NEVER;
	for (uint32_t i = 0; i < dev->rail_count; i++)
		tn_vb_rail_tick(&dev->rails[i], now);
	each_lane(dev, tn_vb_lane_tick, now);
	if (now >= dev->watch_ns) {
		each_lane(dev, tn_vb_lane_watch, now);
		dev->watch_ns = now + dev->watch_every_ns;
	}
	if (now >= dev->keepalive_ns) {
		TN_LIST_FOREACH(node, &dev->lanes)
			tn_vb_lane_keepalive(TN_LIST_ENTRY(node, tn_vb_lane, all));
		dev->keepalive_ns = now + dev->opts.keepalive_ns;
	}
	/* Without lanes nothing needs a wake-up. */
	if (!tn_list_empty(&dev->lanes))
		tn_vb_deadline(dev, TN_MIN(dev->keepalive_ns, dev->watch_ns));
}

static void timer_set(tn_vb_dev *dev)
{
	struct itimerspec spec = {{0}, {0}};

	if (dev->timer_ns == dev->next_ns)
		return;
	dev->timer_ns = dev->next_ns;
	if (dev->next_ns != TN_TIME_NEVER) {
		spec.it_value.tv_sec = (time_t)(dev->next_ns / TN_NS_PER_SEC);
		spec.it_value.tv_nsec = (long)(dev->next_ns % TN_NS_PER_SEC);
	}
	if (timerfd_settime(dev->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL) != 0)
		TN_LOG(ERROR, VERBS, "timerfd_settime failed: deadlines depend on traffic");
}

/* ---- poll and arm ---- */

static int deliver_due(tn_vb_dev *dev, tn_event *events, int max)
{
	tn_list again;
	tn_list *node;
	int n = 0;

	tn_list_init(&again);
	tn_list_splice(&again, &dev->due);
	while (n < max && (node = tn_list_pop_front(&again)))
		n += tn_vb_lane_deliver(TN_LIST_ENTRY(node, tn_vb_lane, due), events + n, max - n);
	tn_list_splice(&dev->due, &again);
	return n;
}

static void sweep(tn_vb_rail *rail)
{
	TN_LIST_FOREACH(node, &rail->dev->lanes) {
		tn_vb_lane *lane = TN_LIST_ENTRY(node, tn_vb_lane, all);

		if (lane->rail == rail)
			tn_vb_lane_swept(lane);
	}
}

static void async_run(tn_vb_dev *dev)
{
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (dev->rails[i].cq)
			tn_vb_async(&dev->rails[i]);
	}
}

/* The clock and the events of the devices, now and then. */
static void look_around(tn_vb_dev *dev)
{
	uint32_t polls = dev->polls++;
	bool busy = dev->transient > 0;

	if (busy || polls % CLOCK_EVERY == 0)
		clock_run(dev);
	if (polls % (busy ? ASYNC_EVERY_BUSY : ASYNC_EVERY) == 0)
		async_run(dev);
}

static int poll_rails(tn_vb_dev *dev, tn_event *events, int max)
{
	uint32_t first = dev->rail_next;
	int n = 0;

	dev->rail_next = first + 1 < dev->rail_count ? first + 1 : 0;
	for (uint32_t i = 0; i < dev->rail_count && n < max; i++) {
		tn_vb_rail *rail = &dev->rails[(first + i) % dev->rail_count];
		bool empty = false;

		if (!rail->cq)
			continue;
		n += tn_vb_cq_poll(rail, events + n, max - n, &empty);
		if (empty && rail->sweeping > 0)
			sweep(rail);
	}
	return n;
}

static int device_event(tn_vb_dev *dev, tn_event *event)
{
	*event = (tn_event){.type = TN_EV_DEVICE, .status = dev->device_status};
	if (dev->device_status == TERN_OK)
		dev->address_changed = false;
	dev->device_status = TERN_OK;
	return 1;
}

static int vb_poll(tn_dev *base, tn_event *events, int max)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	int n = 0;

	if (forked(dev) || max <= 0)
		return 0;
	look_around(dev);
	if (TN_UNLIKELY(atomic_load_explicit(&dev->held_any, memory_order_relaxed)))
		tn_vb_held_run(dev);
	if (TN_UNLIKELY(dev->device_status != TERN_OK || dev->address_changed))
		n += device_event(dev, events);
	if (!tn_list_empty(&dev->due))
		n += deliver_due(dev, events + n, max - n);
	n += poll_rails(dev, events + n, max - n);
	if (TN_CHECK_ENABLED(2)) {
		TN_LIST_FOREACH(node, &dev->lanes)
			tn_vb_lane_check(TN_LIST_ENTRY(node, tn_vb_lane, all));
	}
	return n;
}

/* Acknowledging takes a lock in the library: many at once. */
static void take_cq_events(tn_vb_rail *rail)
{
	const tn_verbs_api *api = rail->dev->api;
	struct ibv_cq *cq;
	void *context;

	while (api->get_cq_event(rail->channel, &cq, &context) == 0) {
		TN_ASSERT(cq == rail->cq);
		if (++rail->cq_unacked < TN_VB_ACK_BATCH)
			continue;
		api->ack_cq_events(rail->cq, rail->cq_unacked);
		rail->cq_unacked = 0;
	}
}

static void drain_rail_wake(tn_vb_dev *dev, int fd)
{
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tn_vb_rail *rail = &dev->rails[i];

		if (!rail->cq)
			continue;
		if (fd == rail->channel->fd)
			take_cq_events(rail);
		else if (fd == rail->context->async_fd)
			tn_vb_async(rail);
	}
}

/* Take what made the descriptor readable. */
static void drain_wakes(tn_vb_dev *dev)
{
	struct epoll_event ready[2 + 2 * TN_VB_RAILS_MAX];
	int n = epoll_wait(dev->epoll_fd, ready, (int)TN_COUNT_OF(ready), 0);
	uint64_t count;

	for (int i = 0; i < n; i++) {
		int fd = ready[i].data.fd;

		if (fd == dev->kick_fd) {
			tn_os_event_drain(fd);
		} else if (fd == dev->timer_fd) {
			if (read(fd, &count, sizeof(count)) == (ssize_t)sizeof(count))
				dev->timer_ns = TN_TIME_NEVER; /* it fired: to be set again */
		} else {
			drain_rail_wake(dev, fd);
		}
	}
}

/* TERN_BUSY: there is something already. */
static tern_status arm_rail(tn_vb_rail *rail)
{
	if (!rail->cq)
		return TERN_OK;
	/* A device that is lost wakes nobody: the bounds of drains do. */
	if (rail->dev->api->req_notify_cq(rail->cq, 0) != 0 && rail->health != TN_VB_RAIL_LOST) {
		if (tn_vb_is_last_usable(rail))
			return tn_fail(TERN_E_DEVICE, "ibv_req_notify_cq failed on %s", rail->name);
		tn_vb_rail_set_health(rail, TN_VB_RAIL_LOST);
	}
	/* What came before the request makes no event: look once more. */
	return tn_vb_cq_peek(rail) || rail->sweeping > 0 ? TERN_BUSY : TERN_OK;
}

static tern_status vb_arm(tn_dev *base)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);

	if (forked(dev))
		return tn_fail(TERN_E_FORKED, "the device belongs to the parent process");
	drain_wakes(dev);
	clock_run(dev);
	if (atomic_exchange(&dev->retry, false))
		return TERN_BUSY;
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tern_status status = arm_rail(&dev->rails[i]);

		if (status != TERN_OK)
			return status;
	}
	if (!tn_list_empty(&dev->due) || dev->device_status != TERN_OK || dev->address_changed ||
	    atomic_load(&dev->held_any))
		return TERN_BUSY;
	timer_set(dev);
	return TERN_OK;
}

static int vb_fd(tn_dev *base)
{
	return tn_vb_dev_of(base)->epoll_fd;
}

static void vb_recv_done(tn_dev *base, const tn_event *event)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	uint32_t rail = event->slot >> 24, index = event->slot & 0xffffffu;

	if (forked(dev))
		return;
	TN_ASSERT(rail < dev->rail_count && index < dev->recv_slots + TN_VB_RECV_RESERVE);
	(void)tn_vb_recv_return(&dev->rails[rail], index);
}

/* ---- description ---- */

static uint32_t optional_caps(const tn_vb_dev *dev)
{
	uint32_t flags = TN_CAP_READ | TN_CAP_TAIL_BYTE;

	for (uint32_t i = 0; i < dev->rail_count; i++) {
		const tn_vb_rail *rail = &dev->rails[i];

		if (!rail->cq)
			continue;
		if (rail->attr.max_qp_rd_atom <= 0 || rail->attr.max_qp_init_rd_atom <= 0)
			flags &= ~(uint32_t)TN_CAP_READ;
		if (!rail->in_order)
			flags &= ~(uint32_t)TN_CAP_TAIL_BYTE;
	}
	return flags;
}

static void vb_caps(tn_dev *base, tn_dev_caps *caps)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);

	*caps = (tn_dev_caps){
		/* Not REMOTE_DONE: a completion says that the peer's NIC has the data, not that it is
		   visible. ORDERED_WRITES: no registration asks for relaxed ordering (mr.c). */
		.flags = TN_CAP_WRITE | TN_CAP_WRITE_IMM | TN_CAP_SEND | TN_CAP_ORDERED_WRITES |
			 TN_CAP_PASSIVE_TARGET | optional_caps(dev),
		.write_bytes_max = dev->max_msg,
		.send_bytes_max = dev->send_bytes,
		/* Each rail has as many, so whichever rails the lanes take, what was granted is there. */
		.recv_slots = dev->recv_slots,
		.lane_recv_slots = dev->recv_slots,
		.lane_wrs_max = dev->ops_max,
		.inline_bytes = dev->inline_bytes,
		.needs_registered = true,
	};
}

static void own_address(const tn_vb_dev *dev, tn_vb_addr *addr)
{
	uint32_t present = 0;

	*addr = (tn_vb_addr){0};
	for (uint32_t i = 0; i < dev->rail_count; i++)
		present += dev->rails[i].cq != NULL;
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (dev->rails[i].cq)
			tn_vb_rail_describe(&dev->rails[i], tn_vb_gids_each(present),
					    &addr->rails[addr->count++]);
	}
}

static void vb_address(tn_dev *base, tn_blob *blob)
{
	tn_vb_addr addr;

	own_address(tn_vb_dev_of(base), &addr);
	tn_vb_addr_put(&addr, blob);
}

static tern_status vb_reach(tn_dev *base, const tn_blob *blob)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);
	tn_vb_addr own, peer;
	uint32_t usable = 0;
	tn_vb_pair pair;

	if (!tn_vb_addr_get(blob, false, &peer))
		return tn_fail(TERN_E_INVALID, "the peer's verbs address is malformed");
	for (uint32_t i = 0; i < dev->rail_count; i++)
		usable += tn_vb_usable(&dev->rails[i]);
	/* One that is only down may be up again when the lane is made. */
	if (usable == 0 && dev->rails[0].health == TN_VB_RAIL_LOST)
		return tn_fail(TERN_E_UNREACHABLE, "%s is lost: %s", dev->name, dev->rails[0].port.reason);
	own_address(dev, &own);
	return tn_vb_pair_choose(&own, &peer, &pair);
}

static void vb_close(tn_dev *base)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);

	TN_ASSERT(forked(dev) || tn_list_empty(&dev->lanes));
	tn_vb_free(dev);
}

static void vb_flush(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);

	if (forked(tn_vb_lane_dev(lane)))
		return;
	pthread_mutex_lock(&lane->lock);
	if (lane->state == TN_VB_UP)
		tn_vb_ring_flush(lane);
	pthread_mutex_unlock(&lane->lock);
}

const tn_dev_ops tn_vb_ops = {
	.caps = vb_caps,
	.address = vb_address,
	.reach = vb_reach,
	.poll = vb_poll,
	.arm = vb_arm,
	.fd = vb_fd,
	.recv_done = vb_recv_done,
	.close = vb_close,
	.lane_create = tn_vb_lane_create,
	.lane_connect = tn_vb_lane_connect,
	.lane_break = tn_vb_lane_break,
	.lane_close = tn_vb_lane_close,
	.lane_drained = tn_vb_lane_drained,
	.lane_destroy = tn_vb_lane_destroy,
	.write = tn_vb_write,
	.write_imm = tn_vb_write_imm,
	.read = tn_vb_read,
	.send = tn_vb_send,
	.flush = vb_flush,
	.counters = tn_vb_counters_each,
};

const tn_provider tn_provider_verbs = {.name = "verbs",
				       .probe = tn_vb_probe,
				       .open = tn_vb_open,
				       .want = tn_vb_want,
				       .present = tn_vb_present,
				       .describe = tn_vb_describe};
