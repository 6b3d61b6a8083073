/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock of a link, a timer set and so on: one word, uncontended in two atomic operations, a futex when
 * contended. A lock of a single-owner context is off and costs one load and branch.
 *
 *   word    HELD | WOKEN | waiters * 4. WOKEN: a waiter was woken and has not come to the lock yet, so that whoever
 *           lets go meanwhile wakes nobody else: without that thirty waiters cost a wake-up per release
 *   tokens  futex: wake-ups that no waiter has taken yet
 *
 * Whoever runs may take a free lock before the one who was woken for it: a busy thread does not wait for a sleeping
 * one to get a core. Must not be held across a callback or a blocking call. Threads: any; not recursive.
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
	_Atomic uint32_t tokens;
	bool off;
} tn_lock;

#define TN_LOCK_HELD   1u
#define TN_LOCK_WOKEN  2u
#define TN_LOCK_WAITER 4u

/* The contended halves: lock.c. */
bool tn_lock_barge(tn_lock *lock);
void tn_lock_wait(tn_lock *lock);
void tn_lock_wake(tn_lock *lock, uint32_t word);

static inline void tn_lock_init(tn_lock *lock, bool off)
{
	atomic_init(&lock->word, 0);
	atomic_init(&lock->tokens, 0);
	lock->off = off;
}

static inline bool tn_lock_quick(tn_lock *lock)
{
	uint32_t free_word = 0;

	return lock->off ||
	       atomic_compare_exchange_strong_explicit(&lock->word, &free_word, TN_LOCK_HELD,
						       memory_order_acquire, memory_order_relaxed);
}

static inline bool tn_lock_try(tn_lock *lock)
{
	return TN_LIKELY(tn_lock_quick(lock)) || tn_lock_barge(lock);
}

static inline void tn_lock_take(tn_lock *lock)
{
	if (TN_UNLIKELY(!tn_lock_quick(lock)))
		tn_lock_wait(lock);
}

static inline void tn_lock_drop(tn_lock *lock)
{
	uint32_t word;

	if (lock->off)
		return;
	word = atomic_fetch_sub_explicit(&lock->word, TN_LOCK_HELD, memory_order_release);
	TN_ASSERT(word & TN_LOCK_HELD);
	if (TN_UNLIKELY(word != TN_LOCK_HELD))
		tn_lock_wake(lock, word - TN_LOCK_HELD);
}

#endif
