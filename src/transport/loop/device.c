/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of loop: the process's table, polling, sleeping, and the ops table. Entry points take
 * tn_loop_lock; the rest of the provider runs under it.
 * Tests: tests/conformance, tests/unit/transport/test_loop.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/options.h"
#include "base/os.h"
#include "transport/loop/loop.h"

pthread_mutex_t tn_loop_lock = PTHREAD_MUTEX_INITIALIZER;

static const tn_option_row option_rows[] = {
	{.layer = "loop",
	 .name = "seed",
	 .type = TN_OPT_U64,
	 .dflt = "0",
	 .help = "adversarial loop: its seed, unless the device is opened with one; 0 = well-behaved"},
	{.layer = "loop",
	 .name = "break_ppm",
	 .type = TN_OPT_U64,
	 .dflt = "0",
	 .max = 1000000,
	 .help = "adversarial loop: chance in a million per step that a busy lane breaks"},
	{0},
};
TN_OPTION_TABLE(loop, option_rows)
TN_COUNTERS_NAMES(counter_names, TN_LOOP_COUNTERS)

static tn_loop_dev *devices;
static uint64_t next_dev_id = 1;

tn_loop_dev *tn_loop_dev_find(uint64_t id)
{
	tn_loop_dev *dev = devices;

	while (dev && dev->id != id)
		dev = dev->next;
	return dev;
}

void tn_loop_signal(tn_loop_dev *dev)
{
	if (!dev->armed)
		return;
	dev->armed = false;
	tn_os_event_signal(dev->event_fd);
}

/* ---- open and close ---- */

static tern_status loop_probe(char *reason, size_t reason_bytes)
{
	if (reason && reason_bytes > 0)
		(void)snprintf(reason, reason_bytes, "usable inside this process only");
	return TERN_OK;
}

static void dev_free(tn_loop_dev *dev)
{
	tn_os_close(&dev->epoll_fd);
	tn_os_close(&dev->timer_fd);
	tn_os_close(&dev->event_fd);
	free(dev->slots[0].buf);
	free(dev);
}

static tern_status dev_descriptors(tn_loop_dev *dev)
{
	struct epoll_event ev = {.events = EPOLLIN};

	TN_TRY(tn_os_event_create(&dev->event_fd));
	dev->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	dev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (dev->timer_fd < 0 || dev->epoll_fd < 0 ||
	    epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, dev->event_fd, &ev) ||
	    epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, dev->timer_fd, &ev))
		return tn_fail_errno(TERN_E_OS, "loop: descriptors of a device", "raise RLIMIT_NOFILE");
	return TERN_OK;
}

static const tn_dev_ops loop_ops;
extern const tn_provider tn_provider_loop;

static tern_status loop_open(const tn_dev_params *params, tn_dev **out)
{
	tn_loop_dev *dev = calloc(1, sizeof(*dev));
	uint8_t *bufs = calloc(TN_LOOP_RECV_SLOTS, TN_LOOP_SEND_BYTES);
	tern_status status;

	*out = NULL;
	if (!dev || !bufs) {
		free(dev);
		free(bufs);
		return tn_fail(TERN_E_NOMEM, "loop: no memory for a device");
	}
	for (uint32_t i = 0; i < TN_LOOP_RECV_SLOTS; i++) {
		dev->slots[i].buf = bufs + (size_t)i * TN_LOOP_SEND_BYTES;
		dev->free_slots[i] = TN_LOOP_RECV_SLOTS - 1 - i;
	}
	dev->free_count = TN_LOOP_RECV_SLOTS;
	dev->event_fd = dev->timer_fd = dev->epoll_fd = -1;
	status = dev_descriptors(dev);
	if (status) {
		dev_free(dev);
		return status;
	}
	dev->base.ops = &loop_ops;
	dev->base.provider = &tn_provider_loop;
	dev->base.mem = params->mem;
	dev->rand.state = params->seed ? params->seed : tn_opt_u64(params->options, option_rows, "seed");
	dev->adversary = dev->rand.state != 0;
	dev->break_ppm = tn_opt_u64(params->options, option_rows, "break_ppm");
	pthread_mutex_lock(&tn_loop_lock);
	dev->id = next_dev_id++;
	dev->next = devices;
	devices = dev;
	pthread_mutex_unlock(&tn_loop_lock);
	*out = &dev->base;
	return TERN_OK;
}

static void loop_close(tn_dev *base)
{
	tn_loop_dev *dev = (tn_loop_dev *)base;
	tn_loop_dev **link = &devices;

	pthread_mutex_lock(&tn_loop_lock);
	while (dev->lanes) {
		tn_loop_close(dev->lanes);
		tn_loop_lane_free(dev->lanes);
	}
	while (*link != dev)
		link = &(*link)->next;
	*link = dev->next;
	pthread_mutex_unlock(&tn_loop_lock);
	dev_free(dev);
}

static void loop_caps(tn_dev *base, tn_dev_caps *caps)
{
	tn_loop_dev *dev = (tn_loop_dev *)base;

	*caps = (tn_dev_caps){
		.flags = TN_CAP_WRITE | TN_CAP_WRITE_IMM | TN_CAP_READ | TN_CAP_SEND | TN_CAP_REMOTE_DONE |
			 TN_CAP_PASSIVE_TARGET | TN_CAP_SAME_HOST,
		.write_bytes_max = TN_LOOP_WRITE_BYTES_MAX,
		.send_bytes_max = TN_LOOP_SEND_BYTES,
		.recv_slots = TN_LOOP_RECV_SLOTS,
		.lane_recv_slots = TN_LOOP_LANE_SLOTS,
		.lane_wrs_max = TN_LOOP_LANE_WRS,
		.inline_bytes = 0,
	};
	if (!dev->adversary)
		caps->flags |= TN_CAP_ORDERED_WRITES;
}

static void loop_address(tn_dev *base, tn_blob *blob)
{
	pthread_mutex_lock(&tn_loop_lock);
	tn_loop_blob_make(blob, ((tn_loop_dev *)base)->id, 0);
	pthread_mutex_unlock(&tn_loop_lock);
}

static tern_status loop_reach(tn_dev *base, const tn_blob *peer)
{
	uint64_t dev_id, lane_id;
	bool here;

	(void)base;
	pthread_mutex_lock(&tn_loop_lock);
	here = tn_loop_blob_read(peer, &dev_id, &lane_id) && tn_loop_dev_find(dev_id);
	pthread_mutex_unlock(&tn_loop_lock);
	if (!here)
		return tn_fail(TERN_E_UNREACHABLE, "loop: the peer is no device of this process");
	return TERN_OK;
}

/* ---- polling ---- */

static void fill(tn_event *ev, tn_event_type type, tn_loop_lane *lane)
{
	*ev = (tn_event){.type = type, .lane = &lane->base, .lane_arg = lane->base.arg};
}

static void fill_arrived(tn_event *ev, tn_loop_lane *lane)
{
	uint32_t index = lane->arrived[lane->arrived_head++ & (TN_LOOP_LANE_SLOTS - 1)];
	const tn_loop_slot *slot = &((tn_loop_dev *)lane->base.dev)->slots[index];

	fill(ev, slot->is_imm ? TN_EV_IMM : TN_EV_RECV, lane);
	ev->buf = slot->is_imm ? NULL : slot->buf;
	ev->imm = slot->imm;
	ev->bytes = slot->bytes;
	ev->slot = index;
}

/* The next event of one lane. Messages that arrived before the lane went down come before that news. */
static bool lane_event(tn_loop_lane *lane, tn_event *ev)
{
	if (lane->up_due) {
		lane->up_due = false;
		fill(ev, TN_EV_LANE_UP, lane);
		return true;
	}
	while (lane->head != lane->notified) {
		const tn_loop_op *op = &lane->ops[lane->head & (TN_LOOP_LANE_WRS - 1)];

		if (op->delay > 0)
			break;
		lane->head++;
		if (op->silent)
			continue;
		fill(ev, TN_EV_DONE, lane);
		ev->cookie = op->cookie;
		ev->status = op->status;
		return true;
	}
	if (lane->arrived_head != lane->arrived_tail) {
		fill_arrived(ev, lane);
		return true;
	}
	if (lane->down_due) {
		lane->down_due = false;
		fill(ev, TN_EV_LANE_DOWN, lane);
		ev->status = lane->down_status;
		return true;
	}
	return false;
}

static uint32_t lane_count(const tn_loop_dev *dev)
{
	uint32_t n = 0;

	for (const tn_loop_lane *lane = dev->lanes; lane; lane = lane->next)
		n++;
	return n;
}

static int loop_poll(tn_dev *base, tn_event *events, int max)
{
	tn_loop_dev *dev = (tn_loop_dev *)base;
	tn_loop_lane *lane;
	uint32_t lanes;
	int n = 0;

	pthread_mutex_lock(&tn_loop_lock);
	if (dev->dialing > 0)
		tn_loop_expire(dev, tn_now());
	for (lane = dev->lanes; lane; lane = lane->next) {
		if (lane->peer)
			tn_loop_step(lane->peer);
		tn_loop_step(lane);
	}
	/* One event of each lane in turn, so that a busy lane starves no other. */
	lanes = lane_count(dev);
	for (uint32_t idle = 0; n < max && idle < lanes; dev->turn++) {
		lane = dev->lanes;
		for (uint32_t skip = dev->turn % lanes; skip > 0; skip--)
			lane = lane->next;
		if (lane_event(lane, &events[n])) {
			n++;
			idle = 0;
		} else {
			idle++;
		}
	}
	pthread_mutex_unlock(&tn_loop_lock);
	return n;
}

/* Is there an event, or something that only polling moves on? */
static bool lane_busy(const tn_loop_lane *lane)
{
	return lane->up_due || lane->down_due || lane->head != lane->tail ||
	       lane->arrived_head != lane->arrived_tail ||
	       (lane->peer && lane->peer->notified != lane->peer->tail);
}

static void set_timer(tn_loop_dev *dev, uint64_t now)
{
	struct itimerspec when = {0};
	uint64_t first = UINT64_MAX, ns;

	for (tn_loop_lane *lane = dev->lanes; lane; lane = lane->next) {
		if (lane->state == TN_LOOP_DIALING && lane->deadline_ns < first)
			first = lane->deadline_ns;
	}
	if (first != UINT64_MAX) {
		ns = first > now ? first - now : 1;
		when.it_value.tv_sec = (time_t)(ns / 1000000000);
		when.it_value.tv_nsec = (long)(ns % 1000000000);
	}
	(void)timerfd_settime(dev->timer_fd, 0, &when, NULL);
}

static tern_status loop_arm(tn_dev *base)
{
	tn_loop_dev *dev = (tn_loop_dev *)base;
	bool busy;

	pthread_mutex_lock(&tn_loop_lock);
	busy = dev->retry;
	dev->retry = false;
	for (tn_loop_lane *lane = dev->lanes; lane && !busy; lane = lane->next)
		busy = lane_busy(lane);
	if (!busy) {
		(void)tn_os_event_drain(dev->event_fd);
		set_timer(dev, tn_now());
		dev->armed = true;
	}
	pthread_mutex_unlock(&tn_loop_lock);
	return busy ? TERN_BUSY : TERN_OK;
}

static int loop_fd(tn_dev *base)
{
	return ((tn_loop_dev *)base)->epoll_fd;
}

static void loop_recv_done(tn_dev *base, const tn_event *event)
{
	tn_loop_dev *dev = (tn_loop_dev *)base;

	pthread_mutex_lock(&tn_loop_lock);
	TN_ASSERT(event->slot < TN_LOOP_RECV_SLOTS);
	tn_loop_slot_free(dev, event->slot);
	pthread_mutex_unlock(&tn_loop_lock);
}

/* ---- lanes and posts: lock, call, unlock ---- */

static void loop_lane_break(tn_lane *lane)
{
	pthread_mutex_lock(&tn_loop_lock);
	tn_loop_break((tn_loop_lane *)lane, TERN_E_LANE);
	pthread_mutex_unlock(&tn_loop_lock);
}

static void loop_lane_close(tn_lane *lane)
{
	pthread_mutex_lock(&tn_loop_lock);
	tn_loop_close((tn_loop_lane *)lane);
	pthread_mutex_unlock(&tn_loop_lock);
}

static bool loop_lane_drained(tn_lane *lane)
{
	bool drained;

	pthread_mutex_lock(&tn_loop_lock);
	drained = tn_loop_drained((tn_loop_lane *)lane);
	pthread_mutex_unlock(&tn_loop_lock);
	return drained;
}

static void loop_lane_destroy(tn_lane *lane)
{
	pthread_mutex_lock(&tn_loop_lock);
	tn_loop_lane_free((tn_loop_lane *)lane);
	pthread_mutex_unlock(&tn_loop_lock);
}

static tern_status post(tn_lane *lane, tn_loop_kind kind, tn_wr *wr, const tn_iov *iov, int n)
{
	tern_status status;

	pthread_mutex_lock(&tn_loop_lock);
	status = tn_loop_post((tn_loop_lane *)lane, kind, wr, iov, n);
	pthread_mutex_unlock(&tn_loop_lock);
	return status;
}

static tern_status loop_write(tn_lane *lane, tn_wr *wr)
{
	return post(lane, TN_LOOP_WRITE, wr, NULL, 0);
}

static tern_status loop_write_imm(tn_lane *lane, tn_wr *wr)
{
	return post(lane, TN_LOOP_WRITE_IMM, wr, NULL, 0);
}

static tern_status loop_read(tn_lane *lane, tn_wr *wr)
{
	return post(lane, TN_LOOP_READ, wr, NULL, 0);
}

static tern_status loop_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	tn_wr wr = {.cookie = cookie, .level = TN_LEVEL_LOCAL};
	tern_status status;

	*done = false;
	if (n < 0 || n > TN_IOV_MAX)
		return tn_fail(TERN_E_INVALID, "loop: a message of %d pieces; the limit is %d", n,
			       TN_IOV_MAX);
	for (int i = 0; i < n; i++) {
		if ((iov[i].bytes > 0 && !iov[i].base) || iov[i].bytes > UINT64_MAX - wr.bytes)
			return tn_fail(TERN_E_INVALID, "loop: piece %d of the message is no memory", i);
		wr.bytes += iov[i].bytes;
	}
	status = post(lane, TN_LOOP_SEND, &wr, iov, n);
	*done = wr.done;
	return status;
}

static void loop_flush(tn_lane *lane)
{
	(void)lane; /* nothing is held back */
}

static void loop_counters_each(tn_dev *base, tern_counter_fn fn, void *arg)
{
	tn_counters_each(counter_names, &((tn_loop_dev *)base)->counters, "loop", fn, arg);
}

static const tn_dev_ops loop_ops = {
	.caps = loop_caps,
	.address = loop_address,
	.reach = loop_reach,
	.poll = loop_poll,
	.take = tn_dummy_take,
	.arm = loop_arm,
	.fd = loop_fd,
	.recv_done = loop_recv_done,
	.close = loop_close,
	.lane_create = tn_loop_lane_create,
	.lane_connect = tn_loop_lane_connect,
	.lane_break = loop_lane_break,
	.lane_close = loop_lane_close,
	.lane_drained = loop_lane_drained,
	.lane_destroy = loop_lane_destroy,
	.write = loop_write,
	.write_imm = loop_write_imm,
	.read = loop_read,
	.access = tn_dummy_access,
	.send = loop_send,
	.flush = loop_flush,
	.copy_begin = tn_dummy_copy_begin,
	.copy = tn_dummy_copy,
	.copy_end = tn_dummy_copy,
	.counters = loop_counters_each,
};

const tn_provider tn_provider_loop = {.name = "loop", .probe = loop_probe, .open = loop_open};
