/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data lanes that nobody uses are given up, and made again when there is bulk. Each lane costs the device a queue pair,
 * receive slots and a share of its completion queue, so a node with many idle links keeps one lane for each.
 *
 *	dialer                                        acceptor
 *	no use of data lanes at two looks
 *	WIRE {epoch + 1, provider in use, 1 lane}  ->  used here since? UNWIRE
 *	as in spare.c: READY, MOVE, RESUME         <>  narrow: bulk goes over lane 0
 *	                                           <-  WIDEN {epoch}: bulk went over lane 0 here
 *	bulk went over lane 0: WIRE {all lanes}    ->
 *
 * A look comes every lane_idle_ns while there are data lanes: they are given up after one to two of them. Who finds no
 * room for more lanes tries again after as long.
 *
 * A device that has more data lanes than its quota (share.h) asks its links for them before that time, and either side of
 * a link may be the one that is asked:
 *
 *	dialer                                        acceptor
 *	it was asked: NARROW {epoch}, WIRE {1 lane} ->  used here within lane_rest_ns? UNWIRE
 *	used here within lane_rest_ns? KEEP {epoch} <-  it was asked: NARROW {epoch}
 *	else WIRE {1 lane}                          ->
 *
 * Threads: none. Tests: tests/unit/link/reshape_test.c, quota_test.c, move_test.c, pair_test.c.
 */
#include "link/internal.h"

static uint64_t used(const tn_link *link)
{
	uint64_t n = 0;

	for (uint32_t i = 1; i < link->lane_count; i++)
		n += (uint64_t)link->by_index[i]->tx_serial + link->by_index[i]->received;
	return n;
}

/* Nothing of this side goes over data lanes now, nor did it lately. */
static bool rested(tn_link *link, uint64_t now_ns)
{
	if (link->bulk_since)
		tn_lk_lanes_used(link, now_ns);
	link->bulk_since = false;
	return link->in_flight == 0 && link->bulk_ready == 0 &&
	       now_ns - link->bulk_ns >= link->config->lane_rest_ns;
}

bool tn_lk_reshape_busy(tn_link *link, uint64_t now_ns)
{
	if (link->spare.reclaimed)
		return !rested(link, now_ns);
	return !link->lanes_idle || used(link) != link->lanes_used || link->in_flight > 0 ||
	       link->bulk_ready > 0;
}

void tn_lk_reshape_up(tn_link *link, uint64_t now_ns)
{
	link->lanes_idle = false;
	link->lanes_used = used(link);
	link->pressed = link->bulk_since = false;
	link->bulk_ns = now_ns;
	if (link->lane_count > 1 && link->shared->providers[link->provider].quota) {
		link->quota = link->shared->providers[link->provider].quota;
		tn_quota_join(link->quota, &link->quota_seat, link->lane_count - 1, now_ns);
	}
	if (link->reshapes && link->lane_count > 1)
		tn_lk_arm(link, TN_TIMER_LANES, tn_deadline(now_ns, link->config->lane_idle_ns));
}

void tn_lk_reshape_down(tn_link *link)
{
	if (link->quota)
		tn_quota_leave(link->quota, &link->quota_seat);
	link->quota = NULL;
}

void tn_lk_reshape_adopt(tn_link *link)
{
	bool was = link->narrow;

	link->narrow = link->spare.narrows;
	link->widen = link->widen_sent = false;
	if (link->narrow && !was)
		tn_count_own(&link->counters.lanes_given_up, 1);
	if (link->narrow && !was && link->spare.reclaimed)
		tn_count_own(&link->counters.lanes_reclaimed, 1);
	if (was && !link->narrow && link->spare.reshape)
		tn_count_own(&link->counters.lanes_made_again, 1);
}

static bool may_ask(const tn_link *link)
{
	return link->active && !link->spare.active && !link->hold && !link->torn && !link->close_local &&
	       !tn_lk_ctrl_gone(link);
}

static void look_narrow(tn_link *link, uint64_t now_ns)
{
	if (!link->widen)
		return;
	if (may_ask(link))
		tn_lk_spare_reshape(link, tn_lk_lanes_wanted(link, link->provider), false);
	if (link->active || tn_lk_ctrl_gone(link)) {
		tn_lk_arm(link, TN_TIMER_LANES, tn_deadline(now_ns, link->config->lane_idle_ns));
	} else if (!link->widen_sent) {
		tn_lk_say_epoch(link, TN_CTRL_WIDEN, link->epoch, now_ns);
		link->widen_sent = true;
	}
}

void tn_lk_reshape_look(tn_link *link, uint64_t now_ns)
{
	uint64_t now_used = used(link);

	if (link->state != TN_LINK_UP || !link->reshapes)
		return;
	if (link->narrow) {
		look_narrow(link, now_ns);
		return;
	}
	link->lanes_idle = now_used == link->lanes_used && link->in_flight == 0 && link->bulk_ready == 0;
	link->lanes_used = now_used;
	tn_lk_arm(link, TN_TIMER_LANES, tn_deadline(now_ns, link->config->lane_idle_ns));
	if (link->lanes_idle && may_ask(link))
		tn_lk_spare_reshape(link, 1, false);
	if (link->quota)
		tn_quota_look(link->quota, now_ns);
}

void tn_lk_reshape_demand(tn_link *link, uint64_t now_ns)
{
	if (link->widen || link->state != TN_LINK_UP)
		return;
	link->widen = true;
	tn_lk_arm(link, TN_TIMER_LANES, now_ns);
}

const char *tn_lk_widen_message(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	uint32_t epoch;
	const char *wrong = tn_wire_get_epoch(payload, bytes, &epoch);

	if (wrong)
		return wrong;
	if (!link->reshapes || !link->active)
		return "WIDEN without the feature, or by the dialer";
	if (epoch > link->epoch_last)
		return "WIDEN of an epoch to come";
	if (epoch != link->epoch)
		return NULL;
	if (!link->narrow)
		return "WIDEN of lanes that were not given up";
	tn_lk_reshape_demand(link, now_ns);
	return NULL;
}

/* ---- lanes that others need ---- */

static void keep(tn_link *link, uint64_t now_ns)
{
	if (link->quota)
		tn_quota_keep(link->quota, &link->quota_seat, now_ns);
}

static bool has_data_lanes(const tn_link *link)
{
	return link->state == TN_LINK_UP && link->reshapes && !link->narrow && link->lane_count > 1;
}

void tn_lk_reshape_asked(tn_link *link, uint64_t now_ns)
{
	atomic_store_explicit(&link->quota_seat.news, false, memory_order_relaxed);
	if (!has_data_lanes(link) || !rested(link, now_ns)) {
		keep(link, now_ns);
	} else if (may_ask(link)) {
		if (link->yields)
			tn_lk_say_epoch(link, TN_CTRL_NARROW, link->epoch, now_ns);
		tn_lk_spare_reshape(link, 1, link->yields);
	} else if (!link->active && link->yields && !tn_lk_ctrl_gone(link)) {
		tn_lk_say_epoch(link, TN_CTRL_NARROW, link->epoch, now_ns);
	} else {
		keep(link, now_ns);
	}
}

void tn_lk_reshape_failed(tn_link *link, uint64_t now_ns)
{
	/* Who was asked here does not know yet, if the attempt ended before its WIRE. */
	if (link->active && link->spare.reclaimed && link->state == TN_LINK_UP && !tn_lk_ctrl_gone(link))
		tn_lk_say_epoch(link, TN_CTRL_KEEP, link->epoch, now_ns);
	keep(link, now_ns);
}

const char *tn_lk_narrow_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				 uint64_t now_ns)
{
	uint32_t epoch;
	const char *wrong = tn_wire_get_epoch(payload, bytes, &epoch);

	if (wrong)
		return wrong;
	if (!link->yields || (type == TN_CTRL_KEEP && link->active))
		return "NARROW or KEEP without the feature, or KEEP by the acceptor";
	if (epoch > link->epoch_last)
		return "NARROW or KEEP of an epoch to come";
	if (epoch != link->epoch || !has_data_lanes(link))
		return NULL;
	if (!link->active)
		link->pressed = type == TN_CTRL_NARROW;
	if (type == TN_CTRL_KEEP)
		keep(link, now_ns);
	else if (!link->active)
		return NULL;
	else if (link->spare.active && link->spare.narrows)
		link->spare.reclaimed = true; /* they are being given up already */
	else if (may_ask(link) && rested(link, now_ns))
		tn_lk_spare_reshape(link, 1, true);
	else
		tn_lk_say_epoch(link, TN_CTRL_KEEP, epoch, now_ns);
	return NULL;
}
