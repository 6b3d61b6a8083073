/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of a device: to the machine of their link, and on to the channel. Inline, for progress.c alone: between the
 * completion of a small message and its callback lies one round without a call.
 *
 * Must not keep an event: its buffer goes back to the device here. Threads: the driver's. Tests: tests/unit/channel.
 */
#ifndef TN_CHANNEL_EVENTS_H
#define TN_CHANNEL_EVENTS_H

#include "base/fault.h"
#include "channel/channel_impl.h"
#include "channel/push.h"
#include "channel/shell.h"

/* The clock, read for the first event of a batch that needs it: *now is 0 before that. */
static inline uint64_t tn_event_time(tern_link *link, uint64_t *now)
{
	if (*now == 0)
		*now = tn_ctx_now(link->ctx);
	return *now;
}

/* Lock held. True: the machine may have more to say. */
static TN_ALWAYS_INLINE bool tn_event_receive(tern_link *link, tn_shell_dev *sdev, const tn_event *ev,
					      uint64_t *now)
{
	tn_shell_lane *slane = ev->lane_arg;
	bool more = true, fast;
	tn_link_rx rx;

	if (TN_MUTANT(19))
		sdev->dev->ops->recv_done(sdev->dev, ev);
	if (ev->type == TN_EV_RECV) {
		fast = tn_link_fast_frame(link->m, slane->handle, ev->buf, ev->bytes, &rx, &more);
		if (TN_LIKELY(fast))
			more |= !tn_channel_message(link, &rx);
		else
			tn_link_on_frame(link->m, slane->handle, ev->buf, ev->bytes, tn_event_time(link, now),
					 &rx);
	} else {
		more = !(fast = tn_link_fast_imm(link->m, slane->handle, ev->imm, ev->bytes, &rx));
		if (TN_LIKELY(fast))
			tn_channel_notified(link, &rx);
		else
			tn_link_on_imm(link->m, slane->handle, ev->imm, ev->bytes, tn_event_time(link, now),
				       &rx);
	}
	if (!fast && rx.type != TN_RX_NONE)
		tn_channel_deliver(link, &rx);
	if (ev->slot != TN_SLOT_NONE)
		sdev->dev->ops->recv_done(sdev->dev, ev);
	return tn_link_on_slot_free(link->m, slane->handle, 1) || more;
}

/* Lock held. True: the machine may have more to say. */
static TN_ALWAYS_INLINE bool tn_event_handle(tern_link *link, tn_shell_dev *sdev, const tn_event *ev,
					     uint64_t *now)
{
	tn_shell_lane *slane = ev->lane_arg;
	tern_status status;

	if (TN_FAULT("channel.lane.break") && !slane->down)
		sdev->dev->ops->lane_break(slane->lane); /* as if its path died: LANE_DOWN follows */
	switch (ev->type) {
	case TN_EV_DONE:
		status = ev->status;
		if (TN_UNLIKELY(link->staged.map.count > 0))
			status = tn_stage_done(link, ev->cookie, status);
		tn_link_on_wr_done(link->m, ev->cookie, status, tn_event_time(link, now));
		break;
	case TN_EV_RECV:
	case TN_EV_IMM:
		return tn_event_receive(link, sdev, ev, now);
	case TN_EV_LANE_UP:
		tn_link_on_lane_up(link->m, slane->handle, tn_event_time(link, now));
		break;
	case TN_EV_LANE_DOWN:
		if (!slane->down)
			tn_link_on_lane_down(link->m, slane->handle, ev->status, tern_status_text(ev->status),
					     tn_event_time(link, now));
		slane->down = true;
		break;
	default:
		break;
	}
	return true;
}

static inline void tn_event_leave(tern_link *link, bool more, uint64_t *now)
{
	if (more && tn_shell_unsettled(link))
		tn_shell_run(link, tn_event_time(link, now));
	tn_lock_drop(&link->lock);
}

/* One that its device keeps nothing of. */
static TN_ALWAYS_INLINE void tn_shell_taken(tn_shell_dev *sdev, tn_lane *lane, const void *room,
					    uint64_t bytes)
{
	const tn_event ev = {.type = TN_EV_RECV,
			     .lane = lane,
			     .lane_arg = lane->arg,
			     .buf = room,
			     .bytes = bytes,
			     .slot = TN_SLOT_NONE};
	tern_link *link = ((tn_shell_lane *)lane->arg)->link;
	uint64_t now = 0;

	tn_dispatch_depth++;
	atomic_store_explicit(&sdev->ctx->events_left, 0, memory_order_relaxed);
	tn_lock_take(&link->lock);
	tn_event_leave(link, tn_event_handle(link, sdev, &ev, &now), &now);
	tn_dispatch_depth--;
}

static TN_ALWAYS_INLINE void tn_shell_events(tn_shell_dev *sdev, const tn_event *events, int n)
{
	tern_link *link = NULL; /* whose lock is held: neighbours usually belong to one link */
	bool more = false;      /* its machine may have something to say */
	uint64_t now = 0;

	tn_dispatch_depth++;
	for (int i = 0; i < n; i++) {
		const tn_event *ev = &events[i];
		tn_shell_lane *slane = ev->lane_arg;

		atomic_store_explicit(&sdev->ctx->events_left, (uint32_t)(n - 1 - i), memory_order_relaxed);
		if (!ev->lane || !slane) {
			tn_shell_device_event(sdev, ev);
			continue;
		}
		if (link != slane->link) {
			if (link)
				tn_event_leave(link, more, &now);
			link = slane->link;
			more = false;
			tn_lock_take(&link->lock);
		}
		more |= tn_event_handle(link, sdev, ev, &now);
	}
	if (link)
		tn_event_leave(link, more, &now);
	tn_dispatch_depth--;
}

#endif
