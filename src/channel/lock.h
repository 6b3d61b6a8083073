/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock of a link, a timer set and so on: one word, uncontended in two atomic operations, a futex when
 * contended. A lock of a single-owner context is off and costs one load and branch.
 *
 *   word    HELD | WOKEN | DUE | waiters * 8. WOKEN: there is an heir, a thread that was woken or appointed itself and
 *           has not taken the lock yet, so that whoever lets go meanwhile wakes nobody else: without that thirty
 *           waiters cost a wake-up per release
 *   tokens  futex: wake-ups that no waiter has taken yet
 *   take    whoever runs may take a free lock before the one who was woken for it: a busy thread does not wait for a
 *           sleeping one to get a core
 *   turn    the same for threads that take it over and over (they submit operations): who took the last turn goes on
 *           while the others wait, for some hundred microseconds (lock.c). Moving what the lock guards from one core
 *           to the other costs as much as ten small operations
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
	_Atomic uint32_t tokens;
	_Atomic uint32_t turns; /* taken so far; written by the holder, as is `last` */
	bool off;
	_Atomic(const void *) last; /* thread of the latest turn */
} tn_lock;

#define TN_LOCK_HELD   1u
#define TN_LOCK_WOKEN  2u
#define TN_LOCK_DUE    4u /* the heir has waited long enough: no further turn before its own */
#define TN_LOCK_WAITER 8u

/* Identity of the calling thread: an address that no other living thread has. */
extern _Thread_local char tn_thread_mark TN_TLS_FAST;
static inline const void *tn_thread_identity(void)
{
	return &tn_thread_mark;
}

/* The contended halves: lock.c. */
bool tn_lock_barge(tn_lock *lock);
void tn_lock_wait(tn_lock *lock);
void tn_lock_wait_turn(tn_lock *lock);
void tn_lock_wake(tn_lock *lock, uint32_t word);

static inline void tn_lock_init(tn_lock *lock, bool off)
{
	atomic_init(&lock->word, 0);
	atomic_init(&lock->tokens, 0);
	atomic_init(&lock->turns, 0);
	atomic_init(&lock->last, NULL);
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

/* The one who had the last turn takes a free lock in front of those who wait. */
static inline bool tn_lock_go_on(tn_lock *lock)
{
	uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);

	return atomic_load_explicit(&lock->last, memory_order_relaxed) == tn_thread_identity() &&
	       !(word & (TN_LOCK_HELD | TN_LOCK_DUE)) &&
	       atomic_compare_exchange_strong_explicit(&lock->word, &word, word | TN_LOCK_HELD,
						       memory_order_acquire, memory_order_relaxed);
}

static inline void tn_lock_turn(tn_lock *lock)
{
	if (lock->off)
		return;
	if (TN_UNLIKELY(!tn_lock_quick(lock)) && !tn_lock_go_on(lock))
		tn_lock_wait_turn(lock);
	atomic_store_explicit(&lock->last, tn_thread_identity(), memory_order_relaxed);
	atomic_store_explicit(&lock->turns, atomic_load_explicit(&lock->turns, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

static inline void tn_lock_drop(tn_lock *lock)
{
	uint32_t word;

	if (lock->off)
		return;
	word = atomic_fetch_sub_explicit(&lock->word, TN_LOCK_HELD, memory_order_release);
	TN_ASSERT(word & TN_LOCK_HELD);
	if (TN_UNLIKELY(word >= TN_LOCK_WAITER && !(word & TN_LOCK_WOKEN)))
		tn_lock_wake(lock, word - TN_LOCK_HELD);
}

#endif
