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

#define LOOK_EVERY 64u /* polls between looks at the clock and at asynchronous events in quiet times */

TN_COUNTERS_NAMES(counter_names, TN_VB_COUNTERS)

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

static void clock_run(tn_vb_dev *dev)
{
	uint64_t now = tn_now();

	if (now < dev->next_ns)
		return;
	dev->next_ns = TN_TIME_NEVER;
	TN_LIST_FOREACH(node, &dev->lanes)
		tn_vb_lane_tick(TN_LIST_ENTRY(node, tn_vb_lane, all), now);
	if (now >= dev->keepalive_ns) {
		TN_LIST_FOREACH(node, &dev->lanes)
			tn_vb_lane_keepalive(TN_LIST_ENTRY(node, tn_vb_lane, all));
		dev->keepalive_ns = now + dev->opts.keepalive_ns;
	}
	/* Without lanes nothing needs a wake-up. */
	if (!tn_list_empty(&dev->lanes))
		tn_vb_deadline(dev, dev->keepalive_ns);
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

static void sweep(tn_vb_dev *dev)
{
	TN_LIST_FOREACH(node, &dev->lanes)
		tn_vb_lane_swept(TN_LIST_ENTRY(node, tn_vb_lane, all));
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
	bool look = dev->transient > 0 || dev->turn++ % LOOK_EVERY == 0;
	bool empty = false;
	int n = 0;

	if (forked(dev) || max <= 0)
		return 0;
	if (look) {
		clock_run(dev);
		tn_vb_async(dev);
	}
	if (TN_UNLIKELY(dev->device_status != TERN_OK || dev->address_changed))
		n += device_event(dev, events);
	if (!tn_list_empty(&dev->due))
		n += deliver_due(dev, events + n, max - n);
	n += tn_vb_cq_poll(dev, events + n, max - n, &empty);
	if (empty && dev->sweeping > 0)
		sweep(dev);
	if (TN_CHECK_ENABLED(2)) {
		TN_LIST_FOREACH(node, &dev->lanes)
			tn_vb_lane_check(TN_LIST_ENTRY(node, tn_vb_lane, all));
	}
	return n;
}

/* Take what made the descriptor readable. */
static void drain_wakes(tn_vb_dev *dev)
{
	struct epoll_event ready[4];
	int n = epoll_wait(dev->epoll_fd, ready, (int)TN_COUNT_OF(ready), 0);
	struct ibv_cq *cq;
	void *context;
	uint64_t count;

	for (int i = 0; i < n; i++) {
		int fd = ready[i].data.fd;

		if (fd == dev->kick_fd) {
			tn_os_event_drain(fd);
		} else if (fd == dev->timer_fd) {
			if (read(fd, &count, sizeof(count)) == (ssize_t)sizeof(count))
				dev->timer_ns = TN_TIME_NEVER; /* it fired: to be set again */
		} else if (fd == dev->channel->fd) {
			while (dev->api->get_cq_event(dev->channel, &cq, &context) == 0)
				dev->api->ack_cq_events(cq, 1);
		} else {
			tn_vb_async(dev);
		}
	}
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
	if (dev->api->req_notify_cq(dev->cq, 0) != 0)
		return tn_fail(TERN_E_DEVICE, "ibv_req_notify_cq failed on %s", dev->name);
	/* What came before the request makes no event: look once more. */
	if (tn_vb_cq_peek(dev) || !tn_list_empty(&dev->due) || dev->sweeping > 0 ||
	    dev->device_status != TERN_OK || dev->address_changed)
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

	if (forked(dev))
		return;
	TN_ASSERT(event->slot < dev->recv_slots + TN_VB_RECV_RESERVE && !dev->bufs[event->slot].posted);
	tn_vb_recv_post(dev, event->slot);
}

/* ---- description ---- */

static void vb_caps(tn_dev *base, tn_dev_caps *caps)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);

	*caps = (tn_dev_caps){
		/* Not REMOTE_DONE: a completion says that the peer's NIC has the data, not that it is
		   visible. */
		.flags = TN_CAP_WRITE | TN_CAP_WRITE_IMM | TN_CAP_READ | TN_CAP_SEND | TN_CAP_ORDERED_WRITES |
			 TN_CAP_PASSIVE_TARGET,
		.write_bytes_max = dev->port.max_msg,
		.send_bytes_max = dev->send_bytes,
		.recv_slots = dev->recv_slots,
		.lane_recv_slots = dev->recv_slots,
		.lane_wrs_max = dev->ops_max,
		.inline_bytes = dev->inline_bytes,
		.needs_registered = true,
	};
}

static void vb_address(tn_dev *base, tn_blob *blob)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);
	const tn_vb_dev_addr addr = {
		.gid = dev->port.gid,
		.lid = dev->port.lid,
		.ethernet = dev->port.ethernet,
		.mtu = (uint8_t)dev->port.mtu,
		.rd_atomic = (uint8_t)TN_MIN(TN_MAX(dev->attr.max_qp_rd_atom, 0), 255),
		.mem_slot = (uint8_t)dev->mem_slot,
	};

	tn_vb_dev_addr_put(&addr, blob);
}

static tern_status vb_reach(tn_dev *base, const tn_blob *peer)
{
	const tn_vb_dev *dev = tn_vb_dev_of(base);
	tn_vb_dev_addr addr;

	if (!tn_vb_dev_addr_get(peer, &addr))
		return tn_fail(TERN_E_INVALID, "the peer's verbs address is malformed");
	if (addr.ethernet != dev->port.ethernet)
		return tn_fail(TERN_E_UNREACHABLE, "%s is %s, the peer's device is not", dev->name,
			       dev->port.ethernet ? "RoCE" : "InfiniBand");
	/* A RoCE route needs one address family; InfiniBand one subnet, unless a router is configured. */
	if (memcmp(addr.gid.raw, dev->port.gid.raw, dev->port.ethernet ? 1 : 8) != 0 && !dev->port.ethernet)
		return tn_fail(TERN_E_UNREACHABLE, "the peer's InfiniBand subnet is another one");
	return TERN_OK;
}

static void vb_counters(tn_dev *base, tern_counter_fn fn, void *arg)
{
	tn_counters_each(counter_names, &tn_vb_dev_of(base)->counters, "verbs", fn, arg);
}

static void vb_close(tn_dev *base)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);

	TN_ASSERT(forked(dev) || tn_list_empty(&dev->lanes));
	tn_vb_free(dev);
}

static void vb_flush(tn_lane *lane)
{
	(void)lane; /* each post rings the doorbell */
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
	.counters = vb_counters,
};

const tn_provider tn_provider_verbs = {
	.name = "verbs", .probe = tn_vb_probe, .open = tn_vb_open, .describe = tn_vb_describe};
