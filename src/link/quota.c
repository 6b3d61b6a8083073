/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which links of a device give up their data lanes when there are too many: see share.h for the rules.
 *
 *   taken     sum over seats of their lanes
 *   leaving   sum over seats that were asked and have not answered: by leaving, or by keeping their lanes
 *
 * A look goes over all seats, and only while there are too many: when lanes came, when a link kept its own, and now and
 * then (reshape.c).
 *
 * Must not: know links or frames (reshape.c). Threads: any, under the lock. Tests: tests/unit/link/quota_test.c.
 */
#include "base/check.h"
#include "base/mutant.h"
#include "link/share.h"

void tn_link_quota_init(tn_link_quota *quota, uint32_t cap, uint64_t rest_ns, const tn_share_lock *lock)
{
	*quota = (tn_link_quota){.cap = cap, .rest_ns = rest_ns};
	quota->lock = lock ? *lock : (tn_share_lock){0};
	tn_list_init(&quota->seats);
}

/* ---- under the lock ---- */

static uint64_t last_use(const tn_quota_seat *seat)
{
	return TN_MAX(atomic_load_explicit(&seat->used_ns, memory_order_relaxed), seat->kept_ns);
}

/* Of those that have rested, the one that was used longest ago. */
static tn_quota_seat *oldest(tn_link_quota *quota, uint64_t now_ns)
{
	tn_quota_seat *best = NULL;
	uint64_t best_ns = 0;

	TN_LIST_FOREACH(node, &quota->seats) {
		tn_quota_seat *seat = TN_LIST_ENTRY(node, tn_quota_seat, node);
		uint64_t ns = last_use(seat);

		if (seat->asked || now_ns < ns || now_ns - ns < quota->rest_ns || (best && best_ns <= ns))
			continue;
		best = seat;
		best_ns = ns;
	}
	return best;
}

static void look(tn_link_quota *quota, uint64_t now_ns)
{
	tn_quota_seat *seat;

	while (quota->taken - quota->leaving > quota->cap && (seat = oldest(quota, now_ns))) {
		seat->asked = true;
		quota->leaving += seat->lanes;
		if (!atomic_exchange_explicit(&seat->news, true, memory_order_release) && seat->wake)
			seat->wake(seat->arg);
	}
}

static void answered(tn_link_quota *quota, tn_quota_seat *seat)
{
	if (!seat->asked)
		return;
	seat->asked = false;
	quota->leaving -= seat->lanes;
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
}

/* ---- what links call ---- */

void tn_quota_join(tn_link_quota *quota, tn_quota_seat *seat, uint32_t lanes, uint64_t now_ns)
{
	tn_share_take(&quota->lock);
	TN_ASSERT(!seat->joined && lanes > 0);
	seat->joined = true;
	seat->asked = false;
	seat->lanes = lanes;
	seat->kept_ns = 0;
	atomic_store_explicit(&seat->used_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
	quota->taken += lanes;
	tn_list_push_back(&quota->seats, &seat->node);
	look(quota, now_ns);
	tn_share_drop(&quota->lock);
}

void tn_quota_leave(tn_link_quota *quota, tn_quota_seat *seat)
{
	tn_share_take(&quota->lock);
	TN_ASSERT(seat->joined);
	answered(quota, seat);
	seat->joined = false;
	quota->taken -= TN_MUTANT(32) ? 0 : seat->lanes;
	tn_list_remove(&seat->node);
	tn_share_drop(&quota->lock);
}

void tn_quota_keep(tn_link_quota *quota, tn_quota_seat *seat, uint64_t now_ns)
{
	tn_share_take(&quota->lock);
	if (seat->asked) {
		answered(quota, seat);
		seat->kept_ns = now_ns;
		look(quota, now_ns);
	}
	tn_share_drop(&quota->lock);
}

void tn_quota_look(tn_link_quota *quota, uint64_t now_ns)
{
	tn_share_take(&quota->lock);
	look(quota, now_ns);
	tn_share_drop(&quota->lock);
}

bool tn_quota_sums_hold(tn_link_quota *quota)
{
	uint32_t taken = 0, leaving = 0;
	bool hold;

	tn_share_take(&quota->lock);
	TN_LIST_FOREACH(node, &quota->seats) {
		const tn_quota_seat *seat = TN_LIST_ENTRY(node, tn_quota_seat, node);

		taken += seat->lanes;
		leaving += seat->asked ? seat->lanes : 0;
	}
	hold = taken == quota->taken && leaving == quota->leaving;
	tn_share_drop(&quota->lock);
	return hold;
}
