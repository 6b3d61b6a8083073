/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow halves of the lock: look a few times, for the holder is usually about to let go, then sleep.
 *
 *   sleep  word += WAITER (-= WOKEN for one who was woken in vain), then take a token or wait for one
 *   wake   by whoever let go, if there are waiters and none is on its way: word -= WAITER, += WOKEN, a token more
 *
 * WOKEN goes with the one it was set for: it takes the lock, and wakes the next when it lets go, or sleeps again
 * while somebody holds it, who then finds a waiter and nobody on its way.
 *
 * Threads: any. Tests: tests/unit/channel/test_roles.c.
 */
#include "channel/lock.h"

#include "base/clock.h"
#include "base/os.h"

/*
 * Looks further and further apart, some microseconds in all: a thread on another core that submits one operation
 * after the other does more of them in between, with the link's lines in its own cache, than if each look took them
 * away.
 */
#define PAUSE_FIRST 32u
#define PAUSE_LAST  256u

bool tn_lock_barge(tn_lock *lock)
{
	uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);

	while (!(word & TN_LOCK_HELD)) {
		if (atomic_compare_exchange_weak_explicit(&lock->word, &word, word | TN_LOCK_HELD,
							  memory_order_acquire, memory_order_relaxed))
			return true;
	}
	return false;
}

static void take_token(tn_lock *lock)
{
	for (;;) {
		uint32_t tokens = atomic_load_explicit(&lock->tokens, memory_order_relaxed);

		if (tokens == 0)
			tn_os_futex_wait(&lock->tokens, 0, UINT64_MAX, false);
		else if (atomic_compare_exchange_weak_explicit(&lock->tokens, &tokens, tokens - 1,
							       memory_order_acquire, memory_order_relaxed))
			return;
	}
}

void tn_lock_wait(tn_lock *lock)
{
	uint32_t mine = 0, word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	uint32_t pause = PAUSE_FIRST;

	for (;;) {
		bool held = word & TN_LOCK_HELD;

		if (held && pause <= PAUSE_LAST) {
			for (uint32_t i = 0; i < pause; i++)
				tn_cpu_relax();
			pause *= 2;
			word = atomic_load_explicit(&lock->word, memory_order_relaxed);
			continue;
		}
		if (!atomic_compare_exchange_weak_explicit(
			    &lock->word, &word, (held ? word + TN_LOCK_WAITER : word | TN_LOCK_HELD) - mine,
			    memory_order_acquire, memory_order_relaxed))
			continue;
		if (!held)
			return;
		take_token(lock);
		mine = TN_LOCK_WOKEN;
		pause = PAUSE_FIRST;
		word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	}
}

void tn_lock_wake(tn_lock *lock, uint32_t word)
{
	while (word >= TN_LOCK_WAITER && !(word & (TN_LOCK_HELD | TN_LOCK_WOKEN))) {
		if (!atomic_compare_exchange_weak_explicit(&lock->word, &word,
							   word - TN_LOCK_WAITER + TN_LOCK_WOKEN,
							   memory_order_relaxed, memory_order_relaxed))
			continue;
		atomic_fetch_add_explicit(&lock->tokens, 1, memory_order_release);
		tn_os_futex_wake(&lock->tokens, 1, false);
		return;
	}
}
