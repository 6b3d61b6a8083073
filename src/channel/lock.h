/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock of a link, a timer set and so on: one word, uncontended in two atomic operations, a futex when
 * contended. A lock of a single-owner context is off and costs one load and branch.
 *
 *   word    HELD | WOKEN | HEIR | DUE | URGENT | takers that sleep | turners that sleep
 *   take    whoever runs may take a free lock before the one who was woken for it (WOKEN: there is one, so that whoever
 *           lets go meanwhile wakes nobody else): a busy thread does not wait for a sleeping one to get a core
 *   turn    the same for threads that take it over and over (they submit operations): who took the last turn goes on
 *           while the others wait, for some hundred microseconds (lock.c). Moving what the lock guards from one core
 *           to the other costs as much as ten small operations. HEIR: somebody has the next turn; DUE: he has waited
 *           long enough, no further turn before his own
 *   entries how often it was taken but for accesses that change nothing of what it guards (submit.c): whoever finds the
 *           number that he left finds all else as he left it
 *   URGENT  a taker looks for it to get free: no turn goes on before he had it. So the driver, with what the turns
 *           need to go on, waits for one operation and not for a turn, and never behind those who wait for one
 *   tokens  futex: wake-ups that no taker has taken yet
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
	uint64_t entries;           /* the holder's */
	_Atomic(const void *) last; /* thread of the latest turn */
	_Atomic uint32_t bell;      /* futex: rung for an heir that is due by who had the turn before it */
	_Atomic uint32_t tickets;   /* of turners that went to sleep */
	_Atomic uint32_t called;    /* futex: of those, woken so far; in order, so that each has its turn */
} tn_lock;

#define TN_LOCK_HELD   1u
#define TN_LOCK_WOKEN  2u
#define TN_LOCK_HEIR   4u
#define TN_LOCK_DUE    8u
#define TN_LOCK_URGENT 16u
#define TN_LOCK_TAKER  32u         /* 13 bits */
#define TN_LOCK_TURNER (1u << 18u) /* 14 bits */

/* Does whoever lets go have to wake somebody? */
static inline bool tn_lock_wake_due(uint32_t word)
{
	bool takers = word & (TN_LOCK_TURNER - TN_LOCK_TAKER), turners = word >= TN_LOCK_TURNER;

	return (takers && !(word & TN_LOCK_WOKEN)) || (turners && !(word & TN_LOCK_HEIR));
}

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
	atomic_init(&lock->bell, 0);
	atomic_init(&lock->tickets, 0);
	atomic_init(&lock->called, 0);
	atomic_init(&lock->turns, 0);
	atomic_init(&lock->last, NULL);
	lock->off = off;
	lock->entries = 0;
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
	if (TN_UNLIKELY(!tn_lock_quick(lock)) && !tn_lock_barge(lock))
		return false;
	lock->entries++;
	return true;
}

static inline void tn_lock_take(tn_lock *lock)
{
	if (TN_UNLIKELY(!tn_lock_quick(lock)))
		tn_lock_wait(lock);
	lock->entries++;
}

/* A free lock for a turn: nobody waits, or it goes on for the one who had the last. False: tn_lock_wait_turn. */
static inline bool tn_lock_go_on(tn_lock *lock)
{
	uint32_t word;

	if (lock->off)
		return true;
	word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	if (word & (TN_LOCK_HELD | TN_LOCK_DUE | TN_LOCK_URGENT) ||
	    (word && atomic_load_explicit(&lock->last, memory_order_relaxed) != tn_thread_identity()))
		return false;
	return atomic_compare_exchange_strong_explicit(&lock->word, &word, word | TN_LOCK_HELD,
						       memory_order_acquire, memory_order_relaxed);
}

/* Held: it is a turn of this thread's. */
static inline void tn_lock_turn_mine(tn_lock *lock)
{
	atomic_store_explicit(&lock->last, tn_thread_identity(), memory_order_relaxed);
	atomic_store_explicit(&lock->turns, atomic_load_explicit(&lock->turns, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

static inline void tn_lock_turn_begun(tn_lock *lock)
{
	lock->entries++;
	if (!lock->off)
		tn_lock_turn_mine(lock);
}

static inline void tn_lock_turn(tn_lock *lock)
{
	if (TN_UNLIKELY(!tn_lock_go_on(lock)))
		tn_lock_wait_turn(lock);
	tn_lock_turn_begun(lock);
}

static TN_ALWAYS_INLINE void tn_lock_drop(tn_lock *lock)
{
	uint32_t word;

	if (lock->off)
		return;
	word = atomic_fetch_sub_explicit(&lock->word, TN_LOCK_HELD, memory_order_release);
	TN_ASSERT(word & TN_LOCK_HELD);
	if (TN_UNLIKELY(word >= TN_LOCK_TAKER) && tn_lock_wake_due(word))
		tn_lock_wake(lock, word - TN_LOCK_HELD);
}

#endif
