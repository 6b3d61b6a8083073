/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the clock and the waiting: deadlines of lanes and rails, keepalive, the watch over stuck lanes, arm.
 *
 * One epoll descriptor holds all that can wake: the completion channels and asynchronous events of the rails, a
 * timer for deadlines and keepalive, and a kick for what another thread makes due. Level-triggered; arm drains
 * them.
 *
 * Threads: in poll's; tn_vb_kick in any. Tests: tests/conformance, tests/unit/transport/test_verbs_watch.c.
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

/* ---- the clock ---- */

void tn_vb_deadline(tn_vb_dev *dev, uint64_t at_ns)
{
	dev->next_ns = TN_MIN(dev->next_ns, at_ns);
}

void tn_vb_kick(tn_vb_dev *dev)
{
	tn_os_event_signal(dev->kick_fd);
}

static void each_lane(tn_vb_dev *dev, void (*fn)(tn_vb_lane *lane, uint64_t now_ns), uint64_t now)
{
	TN_LIST_FOREACH(node, &dev->lanes)
		fn(TN_LIST_ENTRY(node, tn_vb_lane, all), now);
}

void tn_vb_clock(tn_vb_dev *dev)
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

/* ---- arm ---- */

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
	if (tn_verbs_req_notify_cq(rail->dev->api, rail->cq, 0) != 0 && rail->health != TN_VB_RAIL_LOST) {
		if (tn_vb_is_last_usable(rail))
			return tn_fail(TERN_E_DEVICE, "ibv_req_notify_cq failed on %s", rail->name);
		tn_vb_rail_set_health(rail, TN_VB_RAIL_LOST);
	}
	/* What came before the request makes no event: look once more. */
	return tn_vb_cq_peek(rail) || rail->sweeping > 0 ? TERN_BUSY : TERN_OK;
}

tern_status tn_vb_arm(tn_dev *base)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);

	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the device belongs to the parent process");
	drain_wakes(dev);
	tn_vb_clock(dev);
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
