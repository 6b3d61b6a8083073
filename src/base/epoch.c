/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs. All orders are seq_cst: entering must be seen before anything that the reader loads afterwards.
 *
 * A reader with at = n may hold what was unlinked while now was n or n + 1; what was stamped s is free when now is
 * s + 2.
 *
 * Threads: any. Tests: tests/unit/base/epoch_test.c.
 */
#include "base/epoch.h"

#include <sched.h>

#include "base/check.h"
#include "base/clock.h"

/* Where this thread found a place last time. */
static _Thread_local unsigned hint TN_TLS_FAST;
static _Atomic unsigned next_hint = 1;

void tn_epoch_init(tn_epoch *epoch)
{
	atomic_init(&epoch->now, 1);
	for (unsigned i = 0; i < TN_EPOCH_SLOTS; i++)
		atomic_init(&epoch->slots[i].at, 0);
}

unsigned tn_epoch_enter(tn_epoch *epoch)
{
	unsigned i = hint ? hint - 1 : atomic_fetch_add(&next_hint, 1) % TN_EPOCH_SLOTS;

	for (unsigned tries = 1;; tries++, i = (i + 1) % TN_EPOCH_SLOTS) {
		uint64_t none = 0, now = atomic_load(&epoch->now);

		if (atomic_compare_exchange_strong(&epoch->slots[i].at, &none, now)) {
			/* It may have advanced before it saw this reader: enter at what it is now. */
			for (uint64_t again; (again = atomic_load(&epoch->now)) != now; now = again)
				atomic_store(&epoch->slots[i].at, again);
			hint = i + 1;
			return i;
		}
		if (tries % TN_EPOCH_SLOTS == 0)
			sched_yield();
	}
}

void tn_epoch_leave(tn_epoch *epoch, unsigned slot)
{
	TN_ASSERT(atomic_load_explicit(&epoch->slots[slot].at, memory_order_relaxed) != 0);
	atomic_store_explicit(&epoch->slots[slot].at, 0, memory_order_release);
}

uint64_t tn_epoch_stamp(tn_epoch *epoch)
{
	return atomic_load(&epoch->now);
}

bool tn_epoch_passed(tn_epoch *epoch, uint64_t stamp)
{
	for (uint64_t now = atomic_load(&epoch->now); now < stamp + 2;) {
		for (unsigned i = 0; i < TN_EPOCH_SLOTS; i++) {
			uint64_t at = atomic_load(&epoch->slots[i].at);

			if (at && at != now)
				return false;
		}
		if (atomic_compare_exchange_strong(&epoch->now, &now, now + 1))
			now++;
	}
	return true;
}

void tn_epoch_wait(tn_epoch *epoch)
{
	uint64_t stamp = tn_epoch_stamp(epoch);

	for (unsigned tries = 0; !tn_epoch_passed(epoch, stamp); tries++) {
		if (tries < 64)
			tn_cpu_relax();
		else
			sched_yield();
	}
}
