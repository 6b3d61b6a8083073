/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow halves of the lock: look a few times, for the holder is usually about to let go, then sleep.
 *
 *   sleep  word += WAITER (-= WOKEN for one who was woken in vain), then take a token or wait for one
 *   wake   by whoever let go, if there are waiters and no heir: word -= WAITER, += WOKEN, a token more
 *   heir   WOKEN is its: it takes the lock and wakes the next when it lets go, or sleeps again while somebody holds
 *          the lock, who then finds a waiter and no heir
 *
 * A turn. Others are at work if turns were taken since the last look: then a newcomer does not take a free lock, but
 * becomes the heir if nobody waits, or sleeps. The heir looks, naps, looks; it takes the lock when nobody took a turn
 * since its last look, or says at the end of its patience that it is due. So the lock changes hands some thousand
 * times a second however many threads want it, each has its turn, and at most one of them looks.
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

/* Of an heir that waits for its turn. */
#define HEIR_PAUSE  128u
#define HEIR_LOOKS  4u
#define HEIR_NAPS   6u
#define HEIR_NAP_NS 50000u
#define DUE_PAUSE   4u
#define DUE_LOOKS   256u

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

static void pause_for(uint32_t pauses)
{
	for (uint32_t i = 0; i < pauses; i++)
		tn_cpu_relax();
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

/* word: as last seen. False: it changed. */
static bool change(tn_lock *lock, uint32_t *word, uint32_t to)
{
	return atomic_compare_exchange_strong_explicit(&lock->word, word, to, memory_order_acquire,
						       memory_order_relaxed);
}

void tn_lock_wait(tn_lock *lock)
{
	uint32_t mine = 0, word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	uint32_t pause = PAUSE_FIRST;

	for (;;) {
		bool held = word & TN_LOCK_HELD;

		if (held && pause <= PAUSE_LAST) {
			pause_for(pause);
			pause *= 2;
			word = atomic_load_explicit(&lock->word, memory_order_relaxed);
			continue;
		}
		if (!change(lock, &word, (held ? word + TN_LOCK_WAITER : word | TN_LOCK_HELD) - mine))
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
		if (!change(lock, &word, word - TN_LOCK_WAITER + TN_LOCK_WOKEN))
			continue;
		atomic_fetch_add_explicit(&lock->tokens, 1, memory_order_release);
		tn_os_futex_wake(&lock->tokens, 1, false);
		return;
	}
}

/* ---- turns ---- */

/* True: others took turns meanwhile. */
static bool look(tn_lock *lock, uint32_t pause, uint32_t *turns, uint32_t *word)
{
	uint32_t before = *turns;

	pause_for(pause);
	*turns = atomic_load_explicit(&lock->turns, memory_order_relaxed);
	*word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	return *turns != before;
}

static void nap(void)
{
	_Atomic uint32_t nobody = 0;

	tn_os_futex_wait(&nobody, 0, HEIR_NAP_NS, false);
}

/* The heir. False: it is a waiter again, without a token. */
static bool inherit(tn_lock *lock)
{
	uint32_t turns = atomic_load_explicit(&lock->turns, memory_order_relaxed), word;
	uint32_t due = 0;

	for (uint32_t looks = 0;; looks++) {
		bool busy = look(lock, due ? DUE_PAUSE : HEIR_PAUSE, &turns, &word);

		if (!(word & TN_LOCK_HELD) && (due || !busy)) {
			if (change(lock, &word, (word | TN_LOCK_HELD) - TN_LOCK_WOKEN - due))
				return true;
		} else if (looks >= HEIR_LOOKS + HEIR_NAPS + DUE_LOOKS && (word & TN_LOCK_HELD)) {
			/* Held for long, in one piece. */
			if (change(lock, &word, word + TN_LOCK_WAITER - TN_LOCK_WOKEN - due))
				return false;
		} else if (looks >= HEIR_LOOKS + HEIR_NAPS && !due) {
			atomic_fetch_or_explicit(&lock->word, TN_LOCK_DUE, memory_order_relaxed);
			due = TN_LOCK_DUE;
		} else if (looks >= HEIR_LOOKS && !due && busy) {
			nap();
		}
	}
}

/* A newcomer. TAKEN; APPOINTED: it is the heir; QUEUED: it is a waiter. */
typedef enum arrival { TAKEN, APPOINTED, QUEUED } arrival;

static arrival arrive(tn_lock *lock)
{
	uint32_t turns = atomic_load_explicit(&lock->turns, memory_order_relaxed), word;
	uint32_t pause = PAUSE_FIRST;

	for (;;) {
		bool busy = look(lock, pause, &turns, &word), last = pause > PAUSE_LAST;
		bool held = word & TN_LOCK_HELD;

		pause = last ? pause : pause * 2;
		/* Who took over may be waking the next just now: this one, whose turn is over, is not to step in. */
		if (!held && !busy && (last || word == 0)) {
			if (change(lock, &word, word | TN_LOCK_HELD))
				return TAKEN;
		} else if (busy && word < TN_LOCK_WAITER && !(word & TN_LOCK_WOKEN)) {
			if (change(lock, &word, word | TN_LOCK_WOKEN))
				return APPOINTED;
		} else if ((busy || last) && word & (TN_LOCK_HELD | TN_LOCK_WOKEN)) {
			if (change(lock, &word, word + TN_LOCK_WAITER))
				return QUEUED;
		}
	}
}

void tn_lock_wait_turn(tn_lock *lock)
{
	arrival how = arrive(lock);

	while (how != TAKEN) {
		if (how == QUEUED)
			take_token(lock);
		how = inherit(lock) ? TAKEN : QUEUED;
	}
}
