/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns lanes: creation, the state (drawing in shm.h), death, draining.
 *
 * Draining. A lane's peer may stand in the middle of a copy into this process's memory. On death or close
 * the lane's stop word forbids further copies, and a fence on both sides (fence.h) makes sure that from then
 * on the peer's access word tells the truth: even = it is not copying and will not again. A process that was
 * stopped inside of a copy keeps it odd until it dies; such a lane is given up after TN_SHM_DRAIN_NS and
 * counted (shm.forced_drains), and guard.c goes on to watch it.
 *
 * Must not free what a post may still read. Threads: the polling thread.
 * Tests: tests/unit/transport/test_shm_lane.c, tests/conformance.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/shm/fence.h"
#include "transport/shm/shm.h"

const char *tn_shm_lane_state_name(tn_shm_lane_state state)
{
	static const char *const names[] = {"INIT", "CONNECTING", "UP", "DYING", "DOWN", "CLOSED"};

	return state < TN_COUNT_OF(names) ? names[state] : "?";
}

static tn_shm_lane_state state_of(const tn_shm_lane *lane)
{
	return (tn_shm_lane_state)atomic_load_explicit(&lane->state, memory_order_relaxed);
}

void tn_shm_lane_set_state(tn_shm_lane *lane, tn_shm_lane_state state)
{
	/* Allowed predecessors of each state, as bits. */
	static const uint8_t from[] = {
		[TN_SHM_LANE_INIT] = 0,
		[TN_SHM_LANE_CONNECTING] = 1u << TN_SHM_LANE_INIT,
		[TN_SHM_LANE_UP] = 1u << TN_SHM_LANE_CONNECTING,
		[TN_SHM_LANE_DYING] = 1u << TN_SHM_LANE_UP,
		[TN_SHM_LANE_DOWN] =
			1u << TN_SHM_LANE_CONNECTING | 1u << TN_SHM_LANE_UP | 1u << TN_SHM_LANE_DYING,
		[TN_SHM_LANE_CLOSED] = 0x1f,
	};
	tn_shm_lane_state old = state_of(lane);
	tn_shm_dev *dev = tn_shm_dev_of(lane);

	TN_ASSERT_MSG((from[state] >> old & 1) != 0, "lane %" PRIu64 ": %s -> %s", lane->id,
		      tn_shm_lane_state_name(old), tn_shm_lane_state_name(state));
	TN_LOG(DEBUG, SHM, "lane %" PRIu64 ": %s -> %s", lane->id, tn_shm_lane_state_name(old),
	       tn_shm_lane_state_name(state));
	if (state == TN_SHM_LANE_CONNECTING)
		dev->urgent++;
	if (old == TN_SHM_LANE_CONNECTING) {
		TN_ASSERT(dev->urgent > 0);
		dev->urgent--;
	}
	atomic_store_explicit(&lane->state, state, memory_order_release);
}

tn_shm_lane *tn_shm_lane_find(tn_shm_dev *dev, uint64_t id)
{
	for (uint32_t i = 0; i < dev->lane_count; i++) {
		if (dev->lanes[i]->id == id)
			return dev->lanes[i];
	}
	return NULL;
}

/* ---- life ---- */

static tern_status lanes_grow(tn_shm_dev *dev)
{
	uint32_t cap = dev->lane_cap ? dev->lane_cap * 2 : 16;
	tn_shm_lane **lanes, **polled, **zombies;

	/* Every lane has a place among the zombies too. */
	if (dev->lane_count + dev->zombie_count < dev->lane_cap)
		return TERN_OK;
	if (dev->lane_count + dev->zombie_count >= TN_SHM_LANES_MAX)
		return tn_fail(TERN_E_LIMIT, "%d lanes on one shm device", TN_SHM_LANES_MAX);
	pthread_mutex_lock(&dev->guard_lock);
	lanes = realloc(dev->lanes, cap * sizeof(*lanes));
	if (lanes)
		dev->lanes = lanes;
	zombies = realloc(dev->zombies, cap * sizeof(*zombies));
	if (zombies)
		dev->zombies = zombies;
	pthread_mutex_unlock(&dev->guard_lock);
	polled = realloc(dev->polled, cap * sizeof(*polled));
	if (polled)
		dev->polled = polled;
	if (!lanes || !zombies || !polled)
		return tn_fail(TERN_E_NOMEM, "no memory for %u lanes", cap);
	dev->lane_cap = cap;
	return TERN_OK;
}

tern_status tn_shm_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *addr)
{
	tn_shm_dev *dev = (tn_shm_dev *)base;
	tn_shm_lane_address la = {.magic = TN_SHM_WIRE_MAGIC};
	tn_shm_lane *lane;

	*out = NULL;
	TN_TRY(lanes_grow(dev));
	lane = aligned_alloc(64, (sizeof(*lane) + 63) & ~63ull);
	if (!lane)
		return tn_fail(TERN_E_NOMEM, "no memory for a lane");
	memset(lane, 0, sizeof(*lane));
	lane->base.dev = base;
	lane->base.arg = params->arg;
	lane->id = ++dev->lane_ids;
	lane->active = params->active;
	lane->timeout_ns = params->connect_timeout_ns ? params->connect_timeout_ns : TN_SHM_CONNECT_NS;
	lane->deadline_ns = TN_TIME_NEVER;
	lane->wake_fd = -1;
	lane->own_wake_fd = -1;
	lane->wake_source = (tn_shm_source){.kind = TN_SHM_ON_WAKE, .owner = lane};
	memcpy(lane->token, params->token, sizeof(lane->token));
	pthread_mutex_lock(&dev->guard_lock);
	dev->lanes[dev->lane_count++] = lane;
	pthread_mutex_unlock(&dev->guard_lock);
	la.lane = lane->id;
	addr->length = sizeof(la);
	memcpy(addr->bytes, &la, sizeof(la));
	*out = &lane->base;
	return TERN_OK;
}

tern_status tn_shm_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tn_shm_dev *dev = tn_shm_dev_of(lane);
	tn_shm_address address;
	tn_shm_lane_address la;

	if (state_of(lane) != TN_SHM_LANE_INIT)
		return tn_fail(TERN_E_STATE, "the lane is %s already",
			       tn_shm_lane_state_name(state_of(lane)));
	TN_TRY(dev->base.ops->reach(&dev->base, peer_dev));
	memcpy(&address, peer_dev->bytes, sizeof(address));
	if (peer_lane->length != sizeof(la))
		return tn_fail(TERN_E_INVALID, "not the address of a shm lane (%u bytes)", peer_lane->length);
	memcpy(&la, peer_lane->bytes, sizeof(la));
	if (la.magic != TN_SHM_WIRE_MAGIC || la.zero != 0)
		return tn_fail(TERN_E_INVALID, "not the address of a shm lane");
	lane->peer_id = address.id;
	lane->peer_lane = la.lane;
	lane->deadline_ns = tn_deadline(tn_now(), lane->timeout_ns);
	tn_shm_lane_set_state(lane, TN_SHM_LANE_CONNECTING);
	dev->look = true;
	if (lane->active)
		return tn_shm_conn_dial(lane);
	tn_shm_conn_unpark(lane);
	return TERN_OK;
}

tern_status tn_shm_lane_attach(tn_shm_lane *lane, void *segment, uint64_t bytes, uint32_t slots,
			       uint32_t buf_bytes)
{
	tn_shm_ring out, in;
	int side = lane->active ? 0 : 1;

	TN_ASSERT(!lane->segment);
	lane->segment = segment;
	lane->segment_bytes = bytes;
	tn_shm_lane_ring(segment, slots, buf_bytes, side, &out);
	tn_shm_lane_ring(segment, slots, buf_bytes, !side, &in);
	/* All but the buffers: their pages come one by one, in the order of use. */
	if (lane->active)
		tn_shm_seg_populate(segment,
				    (uint64_t)(TN_MIN(out.buf_base, in.buf_base) - (uint8_t *)segment), true);
	if (tn_shm_tx_init(&lane->tx, &out, &tn_shm_dev_of(lane)->copier) != TERN_OK ||
	    tn_shm_rx_init(&lane->rx, &in) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for the rings of a lane of %u slots", slots);
	TN_TRY(tn_os_event_create(&lane->own_wake_fd));
	/* Edge-triggered and never read: nobody who shares it can make us block. */
	TN_TRY(tn_shm_watch(tn_shm_dev_of(lane), lane->own_wake_fd, EPOLLIN | EPOLLET, &lane->wake_source));
	lane->ctl_in = in.ctl;
	lane->ctl_out = out.ctl;
	return TERN_OK;
}

void tn_shm_lane_destroy(tn_lane *base)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tn_shm_dev *dev = tn_shm_dev_of(lane);

	TN_ASSERT(!lane->conn && !lane->polled && !lane->up_pending && !lane->down_pending);
	if (lane->own_wake_fd >= 0)
		tn_shm_unwatch(dev, lane->own_wake_fd);
	tn_os_close(&lane->own_wake_fd);
	tn_os_close(&lane->wake_fd);
	tn_shm_tx_fini(&lane->tx);
	tn_shm_rx_fini(&lane->rx);
	tn_crypto_wipe(lane->token, sizeof(lane->token));
	if (!tn_shm_guard_bury(lane))
		tn_shm_lane_free(lane);
}

/* An access counts as a write or read and as a copy. */
void tn_shm_lane_counters(const tn_shm_lane *lane, tn_shm_counters *sum)
{
	const tn_counter *post = (const tn_counter *)&lane->post_counters;
	const tn_counter *poll = (const tn_counter *)&lane->poll_counters;
	uint64_t writes = tn_counter_read(&lane->accessed[0].count);
	uint64_t reads = tn_counter_read(&lane->accessed[1].count);
	uint64_t written = tn_counter_read(&lane->accessed[0].bytes);
	uint64_t read = tn_counter_read(&lane->accessed[1].bytes);

	for (size_t i = 0; i < sizeof(*sum) / sizeof(tn_counter); i++)
		tn_count(&((tn_counter *)sum)[i], tn_counter_read(&post[i]) + tn_counter_read(&poll[i]));
	tn_count(&sum->writes, writes);
	tn_count(&sum->reads, reads);
	tn_count(&sum->tx_bytes, written);
	tn_count(&sum->rx_bytes, read);
	tn_count(&sum->copies, writes + reads);
	tn_count(&sum->copy_bytes, written + read);
}

void tn_shm_lane_free(tn_shm_lane *lane)
{
	tn_shm_seg_unmap(lane->segment, lane->segment_bytes);
	if (lane->peer)
		tn_shm_peer_put(lane->peer);
	free(lane);
}

/* ---- events ---- */

static void pend(tn_shm_lane *lane, bool *flag, bool value)
{
	tn_shm_dev *dev = tn_shm_dev_of(lane);

	if (*flag == value)
		return;
	*flag = value;
	TN_ASSERT(value || dev->pending > 0);
	dev->pending += value ? 1 : UINT32_MAX;
}

void tn_shm_lane_up(tn_shm_lane *lane)
{
	tn_shm_lane_set_state(lane, TN_SHM_LANE_UP);
	pend(lane, &lane->up_pending, true);
	tn_count_own(&lane->poll_counters.lanes, 1);
	TN_LOG(DEBUG, SHM, "lane %" PRIu64 " to pid %d, %u slots of %u bytes, %s fences", lane->id,
	       (int)lane->peer->pid, lane->rx.ring.buf_count, lane->rx.ring.buf_bytes,
	       lane->light ? "light" : "full");
}

static void unpoll(tn_shm_lane *lane)
{
	tn_shm_dev *dev = tn_shm_dev_of(lane);

	if (!lane->polled)
		return;
	lane->polled = false;
	for (uint32_t i = 0; i < dev->polled_count; i++) {
		if (dev->polled[i] == lane) {
			dev->polled[i] = dev->polled[--dev->polled_count];
			return;
		}
	}
	TN_UNREACHABLE();
}

/* No more one-sided accesses by the peer, and none by us; the connection goes. */
static void lane_stop(tn_shm_lane *lane)
{
	tn_shm_conn *conn = lane->conn;

	if (lane->ctl_in && lane->peer) {
		atomic_store_explicit(&lane->ctl_in->stop, 1, memory_order_seq_cst);
		if (lane->light)
			tn_shm_fence_heavy();
		lane->stopped_at = atomic_load_explicit(&lane->ctl_in->access, memory_order_seq_cst);
		lane->quiet = lane->stopped_at % 2 == 0;
	} else {
		lane->quiet = true;
	}
	if (lane->peer)
		tn_shm_peer_forget(lane->peer, lane->id);
	lane->conn = NULL;
	if (conn)
		tn_shm_conn_close(conn);
}

void tn_shm_lane_down(tn_shm_lane *lane, tern_status status)
{
	tn_shm_lane_state state = state_of(lane);

	if (state != TN_SHM_LANE_CONNECTING && state != TN_SHM_LANE_UP)
		return;
	lane->why_status = status;
	snprintf(lane->why, sizeof(lane->why), "%s", tn_detail_get());
	/* Nothing was delivered yet, nothing will be: the peer can't have sent anything that counts. */
	if (lane->polled) {
		tn_shm_lane_set_state(lane, TN_SHM_LANE_DYING);
	} else {
		pend(lane, &lane->up_pending, false);
		tn_shm_lane_set_state(lane, TN_SHM_LANE_DOWN);
		pend(lane, &lane->down_pending, true);
	}
	lane_stop(lane);
}

void tn_shm_lane_dead(tn_shm_lane *lane)
{
	TN_ASSERT(state_of(lane) == TN_SHM_LANE_DYING);
	unpoll(lane);
	tn_shm_lane_set_state(lane, TN_SHM_LANE_DOWN);
	pend(lane, &lane->down_pending, true);
}

void tn_shm_lane_break(tn_lane *base)
{
	tn_shm_lane_down((tn_shm_lane *)base, tn_fail(TERN_E_LANE, "the lane was broken on purpose"));
}

void tn_shm_lane_close(tn_lane *base)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tn_shm_lane_state state = state_of(lane);

	if (state == TN_SHM_LANE_CLOSED)
		return;
	tn_shm_lane_set_state(lane, TN_SHM_LANE_CLOSED);
	unpoll(lane);
	pend(lane, &lane->up_pending, false);
	pend(lane, &lane->down_pending, false);
	if (state != TN_SHM_LANE_DYING && state != TN_SHM_LANE_DOWN)
		lane_stop(lane);
}

bool tn_shm_lane_drained(tn_lane *base)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tn_shm_lane_state state = state_of(lane);
	uint64_t now;

	if (state != TN_SHM_LANE_CLOSED && (state != TN_SHM_LANE_DOWN || lane->down_pending))
		return false;
	/* Another thread of ours in the middle of a post. */
	if (atomic_load_explicit(&lane->accesses, memory_order_acquire) % 2 != 0)
		return false;
	if (lane->quiet || lane->peer->dead)
		return true;
	if (atomic_load_explicit(&lane->ctl_in->access, memory_order_acquire) != lane->stopped_at) {
		lane->quiet = true;
		return true;
	}
	now = tn_now();
	if (lane->drain_deadline_ns == 0)
		lane->drain_deadline_ns = now + TN_SHM_DRAIN_NS;
	if (now < lane->drain_deadline_ns)
		return false;
	tn_count(&tn_shm_dev_of(lane)->counters.forced_drains, 1);
	TN_LOG(WARN, SHM, "pid %d stands still in the middle of a one-sided access; its lane is given up",
	       (int)lane->peer->pid);
	lane->quiet = true;
	return true;
}
