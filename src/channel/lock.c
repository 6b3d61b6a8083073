/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow halves of the lock: look a few times, for the holder is usually about to let go, then sleep.
 *
 *   sleep  word += TAKER (-= WOKEN for one who was woken in vain), then take a token or wait for one
 *   wake   by whoever let go, if a taker sleeps and none is woken: word -= TAKER, += WOKEN, a token more. If a turner
 *          sleeps and there is no heir: word -= TURNER, += HEIR, and who sleeps longest is called
 *
 * A turn. Others are at work if turns were taken since the last look: then a newcomer does not take a free lock, but
 * becomes the heir if nobody waits, or sleeps. The heir naps and looks; it takes the lock when nobody took a turn
 * since its last look, or says at the end of its patience that it is due. So the lock changes hands some thousand
 * times a second however many threads want it, each has its turn, and at most one of them looks. An heir that was
 * woken naps first: it runs on the core of who woke it, whose turn has just begun, and would find that nobody takes
 * turns there.
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
#define ASIDE_PAUSE 16u
#define ASIDE_LOOKS 64u
#define DUE_PAUSE   16u
#define DUE_LOOKS   16u
#define DUE_NAPS    8u
#define DUE_NAP_NS  200000u

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

/* Sleep until all who came before were called, and then this one. */
static void await_call(tn_lock *lock)
{
	uint32_t ticket = atomic_fetch_add_explicit(&lock->tickets, 1, memory_order_relaxed), called;

	while ((int32_t)((called = atomic_load_explicit(&lock->called, memory_order_acquire)) - ticket) <= 0)
		tn_os_futex_wait_for(&lock->called, called, 1u << (ticket & 31u));
}

static void wake_taker(tn_lock *lock)
{
	atomic_fetch_add_explicit(&lock->tokens, 1, memory_order_release);
	tn_os_futex_wake(&lock->tokens, 1, false);
}

static void call_next(tn_lock *lock)
{
	uint32_t ticket = atomic_fetch_add_explicit(&lock->called, 1, memory_order_release);

	tn_os_futex_wake_for(&lock->called, 1u << (ticket & 31u));
}

/* word: as last seen. False: it changed. */
static bool change(tn_lock *lock, uint32_t *word, uint32_t to)
{
	return atomic_compare_exchange_strong_explicit(&lock->word, word, to, memory_order_acquire,
						       memory_order_relaxed);
}

/* Held: until it is free, or for some microseconds. From the second look on no turn goes on before this thread. */
static uint32_t look_out(tn_lock *lock, uint32_t word)
{
	for (uint32_t pause = PAUSE_FIRST; word & TN_LOCK_HELD && pause <= PAUSE_LAST; pause *= 2) {
		if (pause > PAUSE_FIRST && !(word & TN_LOCK_URGENT))
			atomic_fetch_or_explicit(&lock->word, TN_LOCK_URGENT, memory_order_relaxed);
		pause_for(pause);
		word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	}
	return word;
}

void tn_lock_wait(tn_lock *lock)
{
	uint32_t mine = 0;

	for (;;) {
		uint32_t word = look_out(lock, atomic_load_explicit(&lock->word, memory_order_relaxed));
		bool held = word & TN_LOCK_HELD;
		uint32_t to = (word & ~TN_LOCK_URGENT) - mine;

		/* Another taker that looks says again that it is urgent. */
		if (!change(lock, &word, held ? to + TN_LOCK_TAKER : to | TN_LOCK_HELD))
			continue;
		if (!held)
			return;
		take_token(lock);
		mine = TN_LOCK_WOKEN;
	}
}

void tn_lock_wake(tn_lock *lock, uint32_t word)
{
	while (!(word & TN_LOCK_HELD) && tn_lock_wake_due(word)) {
		bool taker = word & (TN_LOCK_TURNER - TN_LOCK_TAKER) && !(word & TN_LOCK_WOKEN);
		uint32_t to =
			taker ? word - TN_LOCK_TAKER + TN_LOCK_WOKEN : word - TN_LOCK_TURNER + TN_LOCK_HEIR;

		if (!change(lock, &word, to))
			continue;
		if (taker)
			wake_taker(lock);
		else
			call_next(lock);
		word = atomic_load_explicit(&lock->word, memory_order_relaxed);
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

/*
 * The heir said that it is due. It sleeps while the lock is held in one piece, perhaps by a thread whose core it has;
 * that one rings when it comes for a further turn. False: it didn't for long.
 */
static bool await_due(tn_lock *lock)
{
	uint32_t bell, word;

	for (uint32_t naps = 0; naps < DUE_NAPS; naps++) {
		bell = atomic_load_explicit(&lock->bell, memory_order_acquire);
		for (uint32_t looks = 0; looks < DUE_LOOKS; looks++) {
			word = atomic_load_explicit(&lock->word, memory_order_relaxed);
			if (!(word & TN_LOCK_HELD) &&
			    change(lock, &word, (word | TN_LOCK_HELD) - TN_LOCK_HEIR - TN_LOCK_DUE))
				return true;
			pause_for(DUE_PAUSE);
		}
		tn_os_futex_wait(&lock->bell, bell, DUE_NAP_NS, false);
	}
	return false;
}

/* The heir. False: it sleeps again, without a token: the lock is held for long, in one piece. */
static bool inherit(tn_lock *lock, bool woken)
{
	uint32_t turns = atomic_load_explicit(&lock->turns, memory_order_relaxed), word;
	uint32_t naps = 0, looks = woken ? HEIR_LOOKS : 0;

	while (naps < HEIR_NAPS) {
		bool busy;

		if (looks++ >= HEIR_LOOKS) {
			nap();
			naps++;
		}
		busy = look(lock, naps ? 0 : HEIR_PAUSE, &turns, &word);
		if (!busy && !(word & TN_LOCK_HELD) &&
		    change(lock, &word, (word | TN_LOCK_HELD) - TN_LOCK_HEIR))
			return true;
	}
	atomic_fetch_or_explicit(&lock->word, TN_LOCK_DUE, memory_order_relaxed);
	if (await_due(lock))
		return true;
	do
		word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	while (word & TN_LOCK_HELD
		       ? !change(lock, &word, word + TN_LOCK_TURNER - TN_LOCK_HEIR - TN_LOCK_DUE)
		       : !change(lock, &word, (word | TN_LOCK_HELD) - TN_LOCK_HEIR - TN_LOCK_DUE));
	return !(word & TN_LOCK_HELD);
}

/* A newcomer. TAKEN; APPOINTED: it is the heir; QUEUED: it sleeps. */
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
		} else if (busy && word < TN_LOCK_TURNER && !(word & TN_LOCK_HEIR)) {
			if (change(lock, &word, word | TN_LOCK_HEIR))
				return APPOINTED;
		} else if ((busy || last) && word & (TN_LOCK_HELD | TN_LOCK_HEIR)) {
			if (change(lock, &word, word + TN_LOCK_TURNER))
				return QUEUED;
		}
	}
}

/* This thread's turn goes on once a taker, who does not take long, had the lock. */
static bool step_aside(tn_lock *lock)
{
	uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);

	if (word & TN_LOCK_DUE) {
		atomic_fetch_add_explicit(&lock->bell, 1, memory_order_release);
		tn_os_futex_wake(&lock->bell, 1, false);
		return false;
	}
	for (uint32_t looks = 0;
	     looks < ASIDE_LOOKS && !(word & TN_LOCK_DUE) &&
	     atomic_load_explicit(&lock->last, memory_order_relaxed) == tn_thread_identity();
	     looks++) {
		if (tn_lock_go_on(lock))
			return true;
		pause_for(ASIDE_PAUSE);
		word = atomic_load_explicit(&lock->word, memory_order_relaxed);
	}
	return false;
}

void tn_lock_wait_turn(tn_lock *lock)
{
	arrival how = step_aside(lock) ? TAKEN : arrive(lock);

	while (how != TAKEN) {
		bool woken = how == QUEUED;

		if (woken)
			await_call(lock);
		how = inherit(lock, woken) ? TAKEN : QUEUED;
	}
}
