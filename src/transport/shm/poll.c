/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns progress: poll, arm, recv_done.
 *
 * Poll reads the rings and nothing else most of the time: one cache line per lane that is up, no call of the
 * kernel. The sockets are looked at after a wake-up, while something is expected there, and each so many
 * polls. Arm publishes that this side sleeps, then looks at all rings again (ring.c: the other half).
 *
 * Must not block. Threads: one at a time per device. Tests: tests/unit/transport/test_shm_wake.c, conformance.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/shm/shm.h"

#define EVENTS_PER_LOOK 32
#define EVENTS_PER_LANE 32 /* then the next lane has its turn */
/* Messages in a row that were there when the one before them had been dealt with: poll takes many at a time. */
#define BURST 4u

static tn_shm_lane_state state_of(const tn_shm_lane *lane)
{
	return (tn_shm_lane_state)atomic_load_explicit(&lane->state, memory_order_relaxed);
}

/* ---- sockets and deadlines ---- */

static void timer_set(tn_shm_dev *dev, uint64_t at_ns)
{
	struct itimerspec spec = {0};

	if (dev->timer_ns == at_ns)
		return;
	dev->timer_ns = at_ns;
	if (at_ns != TN_TIME_NEVER) {
		at_ns = TN_MAX(at_ns, 1); /* zero would disarm it */
		spec.it_value.tv_sec = (time_t)(at_ns / TN_NS_PER_SEC);
		spec.it_value.tv_nsec = (long)(at_ns % TN_NS_PER_SEC);
	}
	(void)timerfd_settime(dev->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

/* End what took too long; returns the next deadline. */
static uint64_t expire(tn_shm_dev *dev)
{
	uint64_t now = tn_now();
	uint64_t next = tn_shm_conn_tick(dev, now);

	for (uint32_t i = 0; i < dev->lane_count; i++) {
		tn_shm_lane *lane = dev->lanes[i];

		if (state_of(lane) != TN_SHM_LANE_CONNECTING)
			continue;
		if (lane->deadline_ns <= now)
			tn_shm_lane_down(lane,
					 tn_fail(TERN_E_DEADLINE,
						 "the peer on this host did not connect within %llu ms",
						 (unsigned long long)(lane->timeout_ns / TN_NS_PER_MS)));
		else
			next = TN_MIN(next, lane->deadline_ns);
	}
	return next;
}

static bool deadlines(const tn_shm_dev *dev)
{
	return dev->urgent > 0 || dev->inbound > 0;
}

static void timer_fired(tn_shm_dev *dev)
{
	uint64_t count;

	while (read(dev->timer_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	dev->timer_ns = TN_TIME_NEVER;
}

static __attribute__((noinline)) void look(tn_shm_dev *dev)
{
	struct epoll_event evs[EVENTS_PER_LOOK];
	int n;

	dev->look = false;
	dev->idle = 0;
	dev->busy = 0;
	dev->lively = false;
	n = epoll_wait(dev->epoll_fd, evs, EVENTS_PER_LOOK, 0);
	for (int i = 0; i < n; i++) {
		tn_shm_source *source = evs[i].data.ptr;

		switch (source->kind) {
		case TN_SHM_ON_LISTENER:
			tn_shm_conn_accept(dev);
			break;
		case TN_SHM_ON_TIMER:
			timer_fired(dev);
			break;
		case TN_SHM_ON_SELF:
			(void)tn_os_event_drain(dev->self_fd);
			break;
		case TN_SHM_ON_WAKE: /* edge-triggered: seen is enough */
			break;
		case TN_SHM_ON_CONN:
			tn_shm_conn_ready(source->owner, evs[i].events);
			break;
		case TN_SHM_ON_PIDFD:
			tn_shm_peer_died(source->owner);
			break;
		}
	}
	if (n == EVENTS_PER_LOOK)
		dev->look = true;
	if (deadlines(dev))
		(void)expire(dev);
	tn_shm_conn_bury(dev);
	if (TN_UNLIKELY(dev->zombie_count > 0))
		tn_shm_guard_reap(dev, false);
}

/* ---- notes of posts ---- */

static void take_want(tn_shm_lane *lane)
{
	uint64_t want = atomic_exchange_explicit(&lane->want, 0, memory_order_acq_rel);
	uint32_t index = (uint32_t)(want - 1);
	tn_shm_map *map;
	uint32_t state;
	tern_status status;

	if (want == 0 || !lane->conn || state_of(lane) != TN_SHM_LANE_UP)
		return;
	map = &lane->peer->maps[index % TN_MEM_EXTENTS_MAX];
	state = atomic_load_explicit(&map->state, memory_order_relaxed);
	if (state != TN_SHM_MAP_NONE && state != TN_SHM_MAP_REFUSED)
		return;
	status = tn_shm_conn_ask(lane->conn, index);
	if (status == TERN_AGAIN) {
		/* conn_flush calls again. A newer note of a post may stand there already. */
		uint64_t none = 0;

		(void)atomic_compare_exchange_strong(&lane->want, &none, want);
		return;
	}
	if (status != TERN_OK) {
		tn_shm_lane_down(lane, status);
		return;
	}
	map->asked_by = lane->id;
	map->index = index;
	atomic_store_explicit(&map->state, TN_SHM_MAP_ASKED, memory_order_release);
	tn_shm_dev_of(lane)->urgent++;
}

static void attend(tn_shm_dev *dev)
{
	if (atomic_exchange_explicit(&dev->attention, 0, memory_order_acq_rel) == 0)
		return;
	for (uint32_t i = 0; i < dev->lane_count; i++) {
		tn_shm_lane *lane = dev->lanes[i];
		tern_status fault =
			(tern_status)atomic_exchange_explicit(&lane->fault, 0, memory_order_acq_rel);

		if (fault != TERN_OK)
			tn_shm_lane_down(lane, tn_fail(fault, "the peer wrote nonsense to its ring"));
		else if (atomic_load_explicit(&lane->want, memory_order_relaxed) != 0)
			take_want(lane);
	}
}

/* ---- events ---- */

static void fill(tn_event *event, tn_event_type type, tn_shm_lane *lane)
{
	*event = (tn_event){.type = type, .lane = &lane->base, .lane_arg = lane->base.arg};
}

/* LANE_UP and LANE_DOWN. */
static int pending(tn_shm_dev *dev, tn_event *events, int max)
{
	int n = 0;

	for (uint32_t i = 0; i < dev->lane_count && n < max && dev->pending > 0; i++) {
		tn_shm_lane *lane = dev->lanes[i];

		if (lane->up_pending) {
			lane->up_pending = false;
			lane->polled = true;
			dev->polled[dev->polled_count++] = lane;
			fill(&events[n++], TN_EV_LANE_UP, lane);
			dev->pending--;
		} else if (lane->down_pending) {
			lane->down_pending = false;
			fill(&events[n], TN_EV_LANE_DOWN, lane);
			events[n++].status = lane->why_status;
			tn_detail_set("%s", lane->why);
			dev->pending--;
		}
	}
	return n;
}

static void publish(tn_shm_lane *lane)
{
	if (tn_shm_rx_publish(&lane->rx) && state_of(lane) == TN_SHM_LANE_UP) {
		/* The peer wanted room and may sleep. Not tn_shm_lane_kick: `kicked` belongs to the poster. */
		if (atomic_load_explicit(&lane->peer->page->sleep, memory_order_seq_cst) != 0)
			tn_os_event_signal(lane->wake_fd);
	}
}

/* The ring of one lane. Returns the number of events. */
static TN_ALWAYS_INLINE int drain(tn_shm_lane *lane, tn_event *events, int max)
{
	tern_status status = TERN_OK;
	int n = 0;

	while (n < max) {
		tn_shm_msg msg;

		status = tn_shm_rx_next(&lane->rx, &msg);
		if (status != TERN_OK)
			break;
		events[n++] = (tn_event){.type = msg.kind == TN_SHM_IMM ? TN_EV_IMM : TN_EV_RECV,
					 .lane = &lane->base,
					 .lane_arg = lane->base.arg,
					 .buf = msg.data,
					 .bytes = msg.bytes,
					 .imm = msg.imm,
					 .slot = msg.slot};
		tn_count_own(&lane->poll_counters.rx_bytes, msg.bytes);
		tn_count_own(&lane->poll_counters.recvs, 1);
	}
	if (status == TERN_OK)
		return n;
	if (n == 0) {
		tn_shm_rx_expect(&lane->rx);
		if (TN_UNLIKELY(tn_shm_rx_unpublished(&lane->rx)))
			publish(lane);
	}
	if (TN_UNLIKELY(status == TERN_E_PROTOCOL))
		tn_shm_lane_down(lane, tn_fail(TERN_E_PROTOCOL,
					       "the peer put something into its ring that is no message"));
	if (TN_UNLIKELY(state_of(lane) == TN_SHM_LANE_DYING))
		tn_shm_lane_dead(lane);
	return n;
}

static TN_ALWAYS_INLINE int rings(tn_shm_dev *dev, tn_event *events, int max)
{
	uint32_t count = dev->polled_count;
	int n = 0;

	for (uint32_t k = 0; k < count && n < max && dev->polled_count > 0; k++) {
		if (dev->polled_next >= dev->polled_count)
			dev->polled_next = 0;
		n += drain(dev->polled[dev->polled_next++], events + n, TN_MIN(max - n, EVENTS_PER_LANE));
	}
	return n;
}

static TN_ALWAYS_INLINE int gather(tn_shm_dev *dev, tn_event *events, int max)
{
	int n = 0;

	if (TN_UNLIKELY(dev->pending > 0))
		n = pending(dev, events, max);
	n += rings(dev, events + n, max - n);
	return n;
}

/* Nothing came: sockets and deadlines, then once more. */
static __attribute__((noinline)) int look_and_gather(tn_shm_dev *dev, tn_event *events, int max)
{
	look(dev);
	return gather(dev, events, max);
}

/* Between two messages of a peer that is there for certain: a look at the sockets takes half as long as an answer. */
static TN_ALWAYS_INLINE uint32_t idle_most(const tn_shm_dev *dev)
{
	return dev->config.idle_polls << (dev->lively ? 4 : 0);
}

int tn_shm_poll(tn_dev *base, tn_event *events, int max)
{
	tn_shm_dev *dev = (tn_shm_dev *)base;
	int n;

	if (max <= 0)
		return 0;
	if (TN_UNLIKELY(dev->armed)) {
		atomic_store_explicit(&dev->page->sleep, 0, memory_order_relaxed);
		dev->armed = false;
		dev->look = true;
	}
	if (TN_UNLIKELY(atomic_load_explicit(&dev->attention, memory_order_relaxed) != 0))
		attend(dev);
	if (TN_UNLIKELY(dev->look))
		look(dev);
	n = gather(dev, events, max);
	dev->streak = n > 1 ? BURST : 0;
	if (n > 0) {
		if (TN_UNLIKELY(++dev->busy >= TN_SHM_POLL_BUSY))
			dev->look = true;
		return n;
	}
	if (TN_LIKELY(++dev->idle < idle_most(dev) && dev->urgent == 0 && dev->pending == 0))
		return 0;
	return look_and_gather(dev, events, max);
}

/*
 * Looks at one cell in a row. Who waits for a message spends most of its time between two polls: a few looks that cost
 * next to nothing see it sooner.
 */
#define LOOKS 8u

static TN_ALWAYS_INLINE int took_nothing(tn_shm_dev *dev, tn_shm_lane *lane)
{
	dev->streak = 0;
	if (TN_UNLIKELY(++dev->idle >= idle_most(dev) || dev->urgent > 0 || state_of(lane) != TN_SHM_LANE_UP))
		return -1;
	tn_shm_rx_expect(&lane->rx);
	if (TN_UNLIKELY(tn_shm_rx_unpublished(&lane->rx)))
		publish(lane);
	return 0;
}

/*
 * Looks at one cell: behind a message the next one, whose line is the peer's to write, is left alone until this one is dealt
 * with.
 */
int tn_shm_take(tn_dev *base, void *room, tn_lane **from)
{
	tn_shm_dev *dev = (tn_shm_dev *)base;
	tn_shm_lane *lane;
	int bytes = 0;

	if (TN_UNLIKELY(dev->armed || dev->look || dev->pending > 0 || dev->polled_count != 1 ||
			dev->streak >= BURST ||
			atomic_load_explicit(&dev->attention, memory_order_relaxed) != 0))
		return -1;
	lane = dev->polled[0];
	for (unsigned i = 0; i < LOOKS; i++) {
		bytes = tn_shm_rx_take(&lane->rx, room);
		if (bytes != 0)
			break;
	}
	if (bytes == 0)
		return took_nothing(dev, lane);
	if (TN_UNLIKELY(bytes < 0))
		return -1;
	if (TN_UNLIKELY(++dev->busy >= TN_SHM_POLL_BUSY))
		dev->look = true;
	dev->streak++;
	dev->lively = true;
	*from = &lane->base;
	tn_count_own(&lane->poll_counters.rx_bytes, (uint64_t)bytes);
	tn_count_own(&lane->poll_counters.recvs, 1);
	return bytes;
}

/* ---- sleeping ---- */

static bool something_there(tn_shm_dev *dev)
{
	bool retry = dev->retry;

	dev->retry = false; /* said once */
	if (retry || dev->pending > 0 || dev->look ||
	    atomic_load_explicit(&dev->attention, memory_order_seq_cst) != 0)
		return true;
	for (uint32_t i = 0; i < dev->polled_count; i++) {
		tn_shm_lane *lane = dev->polled[i];

		if (tn_shm_rx_unpublished(&lane->rx))
			publish(lane);
		if (state_of(lane) == TN_SHM_LANE_DYING)
			return true;
		/* A message that waits for a free slot is not news: recv_done comes first. */
		if (tn_shm_rx_ready(&lane->rx) && !(lane->rx.stalled && lane->rx.free_slot_count == 0))
			return true;
		if (tn_shm_tx_may_retry(&lane->tx))
			return true;
	}
	return false;
}

tern_status tn_shm_arm(tn_dev *base)
{
	tn_shm_dev *dev = (tn_shm_dev *)base;

	if (++dev->sleeps == 0)
		dev->sleeps = 1;
	atomic_store_explicit(&dev->page->keen, base->keen, memory_order_relaxed);
	atomic_store_explicit(&dev->page->sleep, dev->sleeps, memory_order_seq_cst);
	if (something_there(dev)) {
		atomic_store_explicit(&dev->page->sleep, 0, memory_order_relaxed);
		return TERN_BUSY;
	}
	timer_set(dev, deadlines(dev) ? expire(dev) : TN_TIME_NEVER);
	if (dev->pending > 0) {
		atomic_store_explicit(&dev->page->sleep, 0, memory_order_relaxed);
		return TERN_BUSY;
	}
	dev->armed = true;
	return TERN_OK;
}

void tn_shm_recv_done(tn_dev *base, const tn_event *event)
{
	tn_shm_lane *lane = (tn_shm_lane *)event->lane;
	bool held = tn_shm_rx_done(&lane->rx, event->slot);

	(void)base;
	(void)held;
	TN_ASSERT_MSG(held, "slot %u was not held", event->slot);
}
