/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how a lane ends: the bye, the queue pair in ERR, the bounded wait for its flush, its destruction, and
 * the events that are owed after that. Exactly one end for each accepted request, whatever the NIC does.
 *
 * Threads: serialised with poll; the lane's lock where posts of other threads look.
 * Tests: tests/conformance, tests/unit/transport/test_verbs_life.c, test_verbs_errors.c.
 */
#include <errno.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

/* ---- the end of a queue pair ---- */

/* Nothing of the queue pair can come any more. */
static void quiet(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (lane->sweep)
		lane->rail->sweeping--;
	lane->sweep = false;
	if (lane->rail)
		tn_vb_rail_forget(lane->rail, lane->own.qpn);
	tn_vb_seats_free(lane);
	pthread_mutex_lock(&lane->lock);
	tn_vb_set_state(lane, TN_VB_QUIET);
	if (lane->qp && dev->api->destroy_qp(lane->qp) != 0)
		TN_LOG(ERROR, VERBS, "ibv_destroy_qp of queue pair %u failed: it leaks", lane->own.qpn);
	lane->qp = NULL;
	pthread_mutex_unlock(&lane->lock);
	lane->deadline_ns = TN_TIME_NEVER;
	if (lane->head != lane->tail)
		tn_vb_lane_make_due(lane);
	/* Who waits for lane_drained gets no event: look again. */
	atomic_store(&dev->retry, true);
}

static void quiet_check(tn_vb_lane *lane)
{
	if (lane->state != TN_VB_DRAINING || !lane->flushed || !lane->last_wqe || lane->sweep)
		return;
	lane->sweep = true;
	lane->rail->sweeping++;
}

void tn_vb_lane_drain(tn_vb_lane *lane)
{
	uint64_t now = tn_now();

	pthread_mutex_lock(&lane->lock);
	tn_vb_set_state(lane, TN_VB_DRAINING);
	if (lane->wired) {
		tn_vb_qp_error(lane);
		/* What is held ends like what was posted; what cannot even be posted now, never will. */
		tn_vb_ring_flush(lane);
		if (lane->held_count > 0)
			tn_vb_orphan(lane);
		/* Behind everything: its flush says that all before it was flushed. If it cannot be posted the
		   bound ends the wait. */
		(void)tn_vb_post_own(lane, TN_VB_OP_MARKER, NULL, 0);
	}
	pthread_mutex_unlock(&lane->lock);
	if (lane->orphan_count > 0)
		tn_vb_lane_make_due(lane);
	if (!lane->wired) { /* it can neither send nor receive: there is nothing to wait for */
		quiet(lane);
		return;
	}
	lane->grace_ns = now + TN_VB_LAST_WQE_NS;
	tn_vb_deadline(tn_vb_lane_dev(lane), lane->grace_ns);
	tn_vb_lane_set_deadline(lane, now + TN_VB_DRAIN_NS);
}

void tn_vb_lane_flushed(tn_vb_lane *lane)
{
	lane->flushed = true;
	quiet_check(lane);
}

void tn_vb_lane_last_wqe(tn_vb_lane *lane)
{
	lane->last_wqe = true;
	quiet_check(lane);
}

void tn_vb_lane_swept(tn_vb_lane *lane)
{
	if (lane->sweep)
		quiet(lane);
}

void tn_vb_lane_draining_tick(tn_vb_lane *lane, uint64_t now_ns)
{
	if (now_ns >= lane->grace_ns && !lane->last_wqe)
		tn_vb_lane_last_wqe(lane);
	if (now_ns < lane->deadline_ns || lane->sweep)
		return;
	TN_LOG(WARN, VERBS, "lane %u: queue pair %u of %s did not flush within %u ms: destroyed", lane->index,
	       lane->own.qpn, lane->rail->name, (unsigned)(TN_VB_DRAIN_NS / TN_NS_PER_MS));
	tn_count(&tn_vb_lane_dev(lane)->counters.forced_drains, 1);
	quiet(lane);
}

/* ---- who ends it ---- */

void tn_vb_lane_fail(tn_vb_lane *lane, tern_status status)
{
	if (lane->state >= TN_VB_DRAINING)
		return;
	if (lane->state == TN_VB_WIRING || lane->state == TN_VB_UP) {
		lane->down_status = status;
		lane->down_due = !lane->closed;
		tn_vb_lane_make_due(lane);
	}
	tn_vb_lane_drain(lane);
}

/* Say bye, if there is somebody to hear it, and drain then. */
static void leave(tn_vb_lane *lane)
{
	bool said = false;

	if (lane->wired && lane->heard) {
		pthread_mutex_lock(&lane->lock);
		tn_vb_set_state(lane, TN_VB_LEAVING);
		said = tn_vb_post_own(lane, TN_VB_OP_BYE, NULL, 0);
		pthread_mutex_unlock(&lane->lock);
	}
	if (said)
		tn_vb_lane_set_deadline(lane, tn_now() + TN_VB_LEAVE_NS);
	else
		tn_vb_lane_drain(lane);
}

void tn_vb_lane_break(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation() || (lane->state != TN_VB_WIRING && lane->state != TN_VB_UP))
		return;
	lane->down_status = TERN_E_LANE;
	lane->down_due = true;
	tn_vb_lane_make_due(lane);
	leave(lane);
	tn_vb_kick(dev);
}

void tn_vb_lane_close(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation() || lane->closed)
		return;
	lane->closed = true;
	lane->down_due = false;
	if (lane->state <= TN_VB_UP)
		leave(lane);
	tn_vb_kick(dev);
}

bool tn_vb_lane_drained(tn_lane *base)
{
	const tn_vb_lane *lane = tn_vb_lane_of(base);

	if (tn_vb_lane_dev(lane)->forks != tn_os_fork_generation())
		return true;
	return lane->state == TN_VB_QUIET && lane->head == lane->tail && lane->orphan_count == 0 &&
	       !lane->down_due;
}

/* ---- what is owed ---- */

/* The first orphan has the NIC's own reason, those behind it were never looked at. */
static int deliver_orphans(tn_vb_lane *lane, tn_event *events, int max)
{
	int n = 0;

	pthread_mutex_lock(&lane->lock);
	for (uint32_t i = 0; i < lane->orphan_count && n < max; i++, n++)
		events[n] = (tn_event){.type = TN_EV_DONE,
				       .status = lane->post_errno == EINVAL ? TERN_E_INVALID : TERN_E_FLUSHED,
				       .lane = &lane->base,
				       .lane_arg = lane->base.arg,
				       .cookie = lane->orphans[i]};
	lane->orphan_count -= (uint32_t)n;
	for (uint32_t i = 0; i < lane->orphan_count; i++)
		lane->orphans[i] = lane->orphans[i + (uint32_t)n];
	if (n > 0 && lane->post_errno == EINVAL)
		lane->post_errno = EIO;
	pthread_mutex_unlock(&lane->lock);
	return n;
}

int tn_vb_lane_deliver(tn_vb_lane *lane, tn_event *events, int max)
{
	int n = 0;

	if (lane->down_due && n < max) {
		lane->down_due = false;
		events[n++] = (tn_event){.type = TN_EV_LANE_DOWN,
					 .status = lane->down_status,
					 .lane = &lane->base,
					 .lane_arg = lane->base.arg};
	}
	if (lane->orphan_count > 0 && n < max)
		n += deliver_orphans(lane, events + n, max - n);
	if (lane->state == TN_VB_QUIET && n < max)
		n += tn_vb_ops_flush(lane, events + n, max - n);
	if (lane->down_due || lane->orphan_count > 0 ||
	    (lane->state == TN_VB_QUIET && lane->head != lane->tail))
		tn_vb_lane_make_due(lane);
	return n;
}
