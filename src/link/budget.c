/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of bytes in flight of a device. See share.h.
 * Must not: know links. Threads: any. Tests: tests/unit/link/window_test.c.
 */
#include "link/share.h"

#include "base/check.h"

void tn_link_budget_init(tn_link_budget *budget, uint64_t cap, const tn_share_lock *lock)
{
	budget->cap = cap;
	budget->lock = lock ? *lock : (tn_share_lock){0};
	atomic_init(&budget->taken, 0);
	atomic_init(&budget->waiting, 0);
	atomic_init(&budget->waits, 0);
	tn_list_init(&budget->queue);
}

static bool fits(const tn_link_budget *budget, uint64_t n)
{
	uint64_t taken = atomic_load(&budget->taken);

	return taken == 0 || (taken < budget->cap && n <= budget->cap - taken);
}

/* Lock held. The first may go now: tell it, unless it is the caller. */
static void wake_first(tn_link_budget *budget, const tn_budget_seat *caller)
{
	tn_budget_seat *first = TN_LIST_FIRST(&budget->queue, tn_budget_seat, node);

	if (first && first != caller && first->wake && fits(budget, first->want))
		first->wake(first->arg);
}

/* Lock held. */
static void unqueue(tn_link_budget *budget, tn_budget_seat *seat)
{
	seat->queued = false;
	tn_list_remove(&seat->node);
	atomic_fetch_sub(&budget->waiting, 1);
}

bool tn_budget_open(tn_link_budget *budget, tn_budget_seat *seat, uint64_t n)
{
	bool open;

	if (atomic_load(&budget->waiting) == 0 && fits(budget, n))
		return true;
	tn_share_take(&budget->lock);
	if (!seat->queued) {
		seat->queued = true;
		tn_list_push_back(&budget->queue, &seat->node);
		/* Before the look at `taken`, as who gives back looks at `waiting` after it. */
		atomic_fetch_add(&budget->waiting, 1);
		tn_count(&budget->waits, 1);
	}
	seat->want = n;
	open = tn_list_first(&budget->queue) == &seat->node && fits(budget, n);
	tn_share_drop(&budget->lock);
	return open;
}

void tn_budget_take(tn_link_budget *budget, tn_budget_seat *seat, uint64_t n)
{
	atomic_fetch_add(&budget->taken, n);
	tn_budget_leave(budget, seat);
}

void tn_budget_give(tn_link_budget *budget, const tn_budget_seat *seat, uint64_t n)
{
	uint64_t before = atomic_fetch_sub(&budget->taken, n);

	TN_ASSERT(before >= n);
	if (atomic_load(&budget->waiting) == 0)
		return;
	tn_share_take(&budget->lock);
	wake_first(budget, seat);
	tn_share_drop(&budget->lock);
}

void tn_budget_leave(tn_link_budget *budget, tn_budget_seat *seat)
{
	if (!seat->queued)
		return;
	tn_share_take(&budget->lock);
	unqueue(budget, seat);
	wake_first(budget, seat);
	tn_share_drop(&budget->lock);
}
