/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock of a link, a timer set and so on: one word, uncontended in two atomic operations, a futex when
 * contended. A lock of a single-owner context is off and costs one load and branch.
 *
 *   word: 0 free, 1 held, 2 held and somebody may sleep
 *
 * Must not be held across a callback or a blocking call. Threads: any; not recursive.
 * Tests: tests/unit/channel/test_roles.c.
 */
#ifndef TN_CHANNEL_LOCK_H
#define TN_CHANNEL_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

typedef struct tn_lock {
	_Atomic uint32_t word;
	bool off;
} tn_lock;

/* The contended halves: lock.c. */
void tn_lock_wait(tn_lock *lock);
void tn_lock_wake(tn_lock *lock);

static inline void tn_lock_init(tn_lock *lock, bool off)
{
	atomic_init(&lock->word, 0);
	lock->off = off;
}

static inline bool tn_lock_try(tn_lock *lock)
{
	uint32_t free_word = 0;

	return lock->off || atomic_compare_exchange_strong_explicit(
				    &lock->word, &free_word, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void tn_lock_take(tn_lock *lock)
{
	if (TN_UNLIKELY(!tn_lock_try(lock)))
		tn_lock_wait(lock);
}

static inline void tn_lock_drop(tn_lock *lock)
{
	if (lock->off)
		return;
	TN_ASSERT(atomic_load_explicit(&lock->word, memory_order_relaxed) != 0);
	if (TN_UNLIKELY(atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2))
		tn_lock_wake(lock);
}

#endif
