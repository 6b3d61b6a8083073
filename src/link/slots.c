/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive slots of lane 0 that move between the links of a device: active links get more, idle ones give back. Who gets
 * what is the pool's (share.h); this is the link's part of it, on both sides. All totals are of one epoch, modulo 2^32.
 *
 *	receiver                                      sender
 *	                               <------------  flag SHORT: it had to wait for a credit
 *	SLOTS {added, asked}           ------------>  credits += added; gives back what is asked and not used
 *	slots are free elsewhere       <------------  RELINQUISHED {given}
 *
 *   level    = first + added - given               slots that the device keeps for the peer
 *   credits  = granted + added - given - consumed  given <= asked
 *   *grant* of heads stays first + slots given back to the device: what it says of arrivals does not change
 *
 * Threads: none but for the seat's. Tests: tests/unit/link/pool_test.c, pair_test.c.
 */
#include "link/internal.h"

#define KEEP \
	(TN_CREDIT_RESERVE + 2u) /* credits that a sender gives to nobody: for a message, and to say so */

/* ---- sender ---- */

void tn_lk_slots_wait(tn_link *link, const tn_lk_lane *lane)
{
	tn_count_own(&link->counters.credit_waits, 1);
	if (link->slots.both && lane->index == 0 && tn_lk_credits(lane) <= TN_CREDIT_RESERVE)
		link->slots.waited = true;
}

/* What was asked for and can't be given now is given when it comes back. */
void tn_lk_slots_yield(tn_link *link)
{
	tn_lk_slots *s = &link->slots;
	tn_lk_lane *lane = link->by_index[0];
	uint32_t credits = tn_lk_credits(lane), n;

	if (s->asked == s->back || credits <= KEEP || link->state != TN_LINK_UP)
		return;
	n = TN_MIN(s->asked - s->back, credits - KEEP);
	s->back += n;
	lane->extra -= n;
	link->credit_due |= TN_DUE_BACK;
}

static const char *on_slots(tn_link *link, const tn_frame *frame)
{
	tn_lk_slots *s = &link->slots;
	tn_lk_lane *lane = link->by_index[0];
	uint32_t more = frame->slots.added - s->added, asked = frame->slots.asked - s->back;

	if (!s->both)
		return "SLOTS without the feature";
	if (more > TN_JOURNAL_ROWS || frame->slots.asked - s->asked > TN_JOURNAL_ROWS)
		return "SLOTS falls";
	if (lane->first + lane->extra + more > TN_JOURNAL_ROWS && more > 0)
		return "SLOTS beyond what a lane may have";
	if (asked > lane->first + lane->extra + more - TN_GRANT_MIN)
		return "SLOTS asks for more than there is";
	if (link->state != TN_LINK_UP)
		return NULL;
	s->added += more;
	s->asked = frame->slots.asked;
	lane->extra += more;
	tn_lk_slots_yield(link);
	return NULL;
}

bool tn_lk_build_back(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_BACK, NULL, NULL, 0);
	tn_frame_slots *frame = (tn_frame_slots *)wr->header;

	tn_lk_head_fill(link, lane, wr, TN_FRAME_RELINQUISHED, 0);
	frame->added = link->slots.back;
	frame->asked = 0;
	tn_lk_frame_post(link, lane, wr, sizeof(*frame), post);
	return true;
}

/* ---- receiver ---- */

/* Its peer had to wait: if what came was taken at once, more would be used. */
const char *tn_lk_slots_short(tn_link *link, const tn_lk_lane *lane)
{
	tn_lk_slots *s = &link->slots;
	uint32_t level = lane->my_first + lane->my_extra;

	if (!s->both || lane->index != 0)
		return "flag SHORT without the feature, or on a data lane";
	/* Once for each that it got. */
	if (!s->pool || lane->received - s->hungry_at < level || lane->received - lane->freed > level / 2)
		return NULL;
	s->hungry_at = lane->received;
	tn_pool_hungry(s->pool, &s->seat);
	tn_lk_slots_news(link);
	return NULL;
}

void tn_lk_slots_news(tn_link *link)
{
	if (link->slots.pool && atomic_load_explicit(&link->slots.seat.news, memory_order_acquire))
		link->credit_due |= TN_DUE_SLOTS;
}

bool tn_lk_build_slots(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_slots *s = &link->slots;
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_SLOTS, NULL, NULL, 0);
	tn_frame_slots *frame = (tn_frame_slots *)wr->header;

	tn_lk_head_fill(link, lane, wr, TN_FRAME_SLOTS, 0);
	tn_pool_read(s->pool, &s->seat, &frame->added, &frame->asked);
	/* From here on the peer may know of it. */
	lane->my_extra += frame->added - s->told;
	s->told = frame->added;
	tn_lk_frame_post(link, lane, wr, sizeof(*frame), post);
	return true;
}

static const char *on_relinquished(tn_link *link, const tn_frame *frame)
{
	tn_lk_slots *s = &link->slots;
	tn_lk_lane *lane = link->by_index[0];
	uint32_t n = frame->slots.added - s->seat.given;

	if (!s->both)
		return "RELINQUISHED without the feature";
	if (!s->pool)
		return link->state == TN_LINK_UP ? "RELINQUISHED of what was not asked for" : NULL;
	if (n > lane->my_granted + lane->my_extra - lane->received)
		return "RELINQUISHED of what was used";
	if (!tn_pool_given(s->pool, &s->seat, frame->slots.added))
		return "RELINQUISHED falls, or is more than was asked for";
	lane->my_extra -= n;
	if (lane->my_granted - lane->my_told >= (lane->my_first + lane->my_extra) / 2)
		link->credit_due |= 1u << lane->index;
	tn_lk_slots_news(link);
	return NULL;
}

uint32_t tn_link_lane_slots(const tn_link *link, uint32_t handle)
{
	const tn_lk_lane *lane = link->lanes[handle % TN_LANE_SLOTS];

	TN_ASSERT(lane->handle == handle);
	return lane->my_first + lane->my_extra;
}

/* ---- both ---- */

const char *tn_lk_slots_frame(tn_link *link, const tn_frame *frame)
{
	return frame->head.type == TN_FRAME_SLOTS ? on_slots(link, frame) : on_relinquished(link, frame);
}

void tn_lk_slots_sent(tn_link *link, const tn_lk_wr *wr)
{
	if (wr->kind == TN_WR_SLOTS) {
		link->credit_due &= ~TN_DUE_SLOTS;
		tn_count_own(&link->counters.slots_frames, 1);
	} else {
		link->credit_due &= ~TN_DUE_BACK;
		tn_count_own(&link->counters.relinquished_frames, 1);
	}
}

void tn_lk_slots_up(tn_link *link)
{
	tn_lk_slots *s = &link->slots;
	tn_pool_seat seat = {.wake = link->config->wake, .arg = link->budget_seat.arg};

	TN_ASSERT(!s->seat.joined);
	*s = (tn_lk_slots){.both = link->peer.features & TN_FEATURE_SLOTS, .seat = seat};
	if (!s->both || !link->shared->providers[link->provider].pool)
		return;
	s->pool = link->shared->providers[link->provider].pool;
	tn_pool_join(s->pool, &s->seat, link->by_index[0]->my_first);
}

void tn_lk_slots_down(tn_link *link)
{
	tn_lk_slots *s = &link->slots;

	/* All of them are the lane's until it is gone: what is under way may still need them. */
	if (s->pool)
		link->by_index[0]->my_extra = tn_pool_leave(s->pool, &s->seat) - link->by_index[0]->my_first;
	s->pool = NULL;
}

void tn_lk_slots_check(const tn_link *link)
{
	const tn_lk_slots *s = &link->slots;
	const tn_lk_lane *lane = link->by_index[0];

	TN_ASSERT(s->asked - s->back <= TN_JOURNAL_ROWS);
	TN_ASSERT(!s->seat.joined || (s->pool && s->both && link->state == TN_LINK_UP));
	TN_ASSERT(!(link->credit_due & TN_DUE_SLOTS) || s->seat.joined);
	if (link->state != TN_LINK_UP)
		return;
	TN_ASSERT(lane->extra == s->added - s->back);
	TN_ASSERT(!s->pool || lane->my_extra == s->told - s->seat.given);
	TN_ASSERT(s->asked == s->back || tn_lk_credits(lane) <= KEEP);
}
