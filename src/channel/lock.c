/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow halves of the lock: spin a little, for the holder is usually about to let go, then sleep.
 * Threads: any. Tests: tests/unit/channel/test_roles.c.
 */
#include "channel/lock.h"

#include "base/clock.h"
#include "base/os.h"

#define SPINS 100 /* about a microsecond: longer than a submission holds a link */

void tn_lock_wait(tn_lock *lock)
{
	for (int i = 0; i < SPINS; i++) {
		uint32_t free_word = 0;

		if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 &&
		    atomic_compare_exchange_strong_explicit(&lock->word, &free_word, 1, memory_order_acquire,
							    memory_order_relaxed))
			return;
		tn_cpu_relax();
	}
	while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
		tn_os_futex_wait(&lock->word, 2, UINT64_MAX, false);
}

void tn_lock_wake(tn_lock *lock)
{
	tn_os_futex_wake(&lock->word, 1, false);
}
