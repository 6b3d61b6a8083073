/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may send bulk to a device, and how much: see share.h for the rules.
 *
 *   active = seats with granted > done or wanted > granted
 *   asking = seats with wanted > granted, but for those that have all they may have out: their next word brings
 *            them back
 *
 * Must not: know links or frames (grants.c). Threads: any, under the lock. Tests: tests/unit/link/grants_test.c.
 */
#include "link/share.h"

#include "base/check.h"
#include "base/mutant.h"

void tn_link_arbiter_init(tn_link_arbiter *arbiter, uint64_t capacity, uint64_t unit,
			  const tn_share_lock *lock)
{
	arbiter->unit = TN_MAX(unit, TN_GRANT_UNIT_MIN);
	arbiter->capacity = TN_MAX(capacity, arbiter->unit);
	arbiter->lock = lock ? *lock : (tn_share_lock){0};
	atomic_init(&arbiter->granted, 0);
	atomic_init(&arbiter->shares, 0);
	arbiter->up = arbiter->active = 0;
	arbiter->share = TN_SHARE_UNBOUNDED;
	arbiter->out = 0;
	tn_list_init(&arbiter->seats);
	tn_list_init(&arbiter->asking);
}

/* ---- under the lock ---- */

/* The caller finds its own news by itself. */
static void tell(tn_arbiter_seat *seat, const tn_arbiter_seat *caller)
{
	bool had = atomic_exchange_explicit(&seat->news, true, memory_order_release);

	if (!had && seat != caller && seat->wake)
		seat->wake(seat->arg);
}

static void update_active(tn_link_arbiter *arbiter, tn_arbiter_seat *seat, bool active)
{
	arbiter->active += active - seat->active;
	seat->active = active;
}

static void update_share(tn_link_arbiter *arbiter, const tn_arbiter_seat *caller)
{
	uint64_t share = TN_SHARE_UNBOUNDED;

	if (arbiter->up > 1) {
		share = arbiter->capacity / (2ull * arbiter->up);
		share = TN_MIN(share - share % arbiter->unit, 2 * arbiter->unit);
	}
	if (share == arbiter->share)
		return;
	arbiter->share = share;
	tn_count(&arbiter->shares, 1);
	TN_LIST_FOREACH(node, &arbiter->seats)
		tell(TN_LIST_ENTRY(node, tn_arbiter_seat, node), caller);
}

static uint64_t share_of(const tn_link_arbiter *arbiter)
{
	return arbiter->share == TN_SHARE_UNBOUNDED ? 0 : arbiter->share;
}

/* What may be out over all, and to one. */
static uint64_t pool_of(const tn_link_arbiter *arbiter)
{
	return arbiter->capacity - arbiter->up * share_of(arbiter);
}

static uint64_t bound_of(const tn_link_arbiter *arbiter)
{
	if (arbiter->active <= 1)
		return pool_of(arbiter);
	return TN_MAX(2 * arbiter->unit - share_of(arbiter), arbiter->unit);
}

static void hand_out(tn_link_arbiter *arbiter, const tn_arbiter_seat *caller)
{
	uint64_t pool = pool_of(arbiter), bound = bound_of(arbiter);
	tn_arbiter_seat *seat;

	while ((seat = TN_LIST_FIRST(&arbiter->asking, tn_arbiter_seat, ask_node))) {
		uint64_t n = TN_MIN(seat->wanted - seat->granted, arbiter->unit);
		uint64_t own = seat->granted - seat->done;

		if (arbiter->out > 0 && (arbiter->out >= pool || n > pool - arbiter->out))
			return;
		tn_list_remove(&seat->ask_node);
		if (own > 0 && (own >= bound || n > bound - own))
			continue;
		seat->granted += n;
		arbiter->out += n;
		tn_count(&arbiter->granted, n);
		tell(seat, caller);
		if (seat->wanted > seat->granted)
			tn_list_push_back(&arbiter->asking, &seat->ask_node);
	}
}

/* ---- what links call ---- */

void tn_arbiter_join(tn_link_arbiter *arbiter, tn_arbiter_seat *seat)
{
	tn_share_take(&arbiter->lock);
	TN_ASSERT(!seat->joined && !seat->active);
	seat->joined = true;
	seat->wanted = seat->granted = seat->done = 0;
	atomic_store_explicit(&seat->news, true, memory_order_relaxed); /* the first frame */
	tn_list_push_back(&arbiter->seats, &seat->node);
	arbiter->up++;
	update_share(arbiter, seat);
	tn_share_drop(&arbiter->lock);
}

void tn_arbiter_leave(tn_link_arbiter *arbiter, tn_arbiter_seat *seat)
{
	if (!seat->joined)
		return;
	tn_share_take(&arbiter->lock);
	seat->joined = false;
	arbiter->out -= TN_MUTANT(26) ? 0 : seat->granted - seat->done;
	update_active(arbiter, seat, false);
	tn_list_remove(&seat->ask_node);
	tn_list_remove(&seat->node);
	arbiter->up--;
	update_share(arbiter, seat);
	hand_out(arbiter, seat);
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
	tn_share_drop(&arbiter->lock);
}

bool tn_arbiter_demand(tn_link_arbiter *arbiter, tn_arbiter_seat *seat, uint64_t wanted, uint64_t done)
{
	bool ok;

	tn_share_take(&arbiter->lock);
	ok = wanted >= seat->wanted && done >= seat->done && done <= seat->granted;
	if (ok) {
		arbiter->out -= done - seat->done;
		seat->wanted = wanted;
		seat->done = done;
		update_active(arbiter, seat, wanted > seat->granted || seat->granted > done);
		if (wanted > seat->granted && !tn_list_linked(&seat->ask_node))
			tn_list_push_back(&arbiter->asking, &seat->ask_node);
		hand_out(arbiter, seat);
	}
	tn_share_drop(&arbiter->lock);
	return ok;
}

void tn_arbiter_read(tn_link_arbiter *arbiter, tn_arbiter_seat *seat, uint64_t *share, uint64_t *granted)
{
	tn_share_take(&arbiter->lock);
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
	*share = arbiter->share;
	*granted = seat->granted;
	tn_share_drop(&arbiter->lock);
}

void tn_link_arbiter_check(tn_link_arbiter *arbiter)
{
	uint32_t up = 0, active = 0;
	uint64_t out = 0;

	tn_share_take(&arbiter->lock);
	TN_LIST_FOREACH(node, &arbiter->seats) {
		const tn_arbiter_seat *seat = TN_LIST_ENTRY(node, tn_arbiter_seat, node);

		up++;
		active += seat->active;
		out += seat->granted - seat->done;
		TN_ASSERT(seat->done <= seat->granted && seat->granted <= seat->wanted);
		TN_ASSERT(seat->active == (seat->wanted > seat->granted || seat->granted > seat->done));
		/* Whoever waits has something out, whose end brings it back, or stands in the queue. */
		TN_ASSERT(seat->wanted == seat->granted || tn_list_linked(&seat->ask_node) ||
			  seat->granted > seat->done);
	}
	TN_ASSERT(up == arbiter->up && active == arbiter->active && out == arbiter->out);
	/* The queue waits for bytes that are out. */
	TN_ASSERT(tn_list_empty(&arbiter->asking) || out > 0);
	tn_share_drop(&arbiter->lock);
}
