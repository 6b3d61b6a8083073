/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the links of one device share: a budget of bytes in flight. The shell makes one for each device, names it
 * in the provider of each of its links, and ends it after them.
 *
 *   taken = sum over links of their bulk in flight <= cap, unless one piece alone exceeds it
 *           (links of several threads may exceed it by a piece each)
 *   A link that finds no room stands in the queue; who gives bytes back wakes the first, and nobody passes it.
 *
 * Threads: links run under locks of their own, any number at once. Totals are atomic; the queue is under `lock`, which
 * the shell supplies (no functions: one thread). It is taken under a link's lock, and nothing is taken under it but
 * what wake needs. wake(arg) of another link may be called with both held: it may only tell its shell to run it.
 * Tests: tests/unit/link/window_test.c, pair_test.c.
 */
#ifndef TN_LINK_SHARE_H
#define TN_LINK_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/counters.h"
#include "base/list.h"

typedef struct tn_share_lock {
	void (*take)(void *arg); /* NULL: all links run in one thread */
	void (*drop)(void *arg);
	void *arg;
} tn_share_lock;

static inline void tn_share_take(const tn_share_lock *lock)
{
	if (lock->take)
		lock->take(lock->arg);
}

static inline void tn_share_drop(const tn_share_lock *lock)
{
	if (lock->drop)
		lock->drop(lock->arg);
}

/* ---- bytes in flight ---- */

typedef struct tn_link_budget {
	uint64_t cap;
	tn_share_lock lock;
	_Atomic uint64_t taken;
	_Atomic uint32_t waiting; /* seats in the queue */
	tn_counter waits;         /* times that one had to wait */
	tn_list queue;            /* under the lock */
} tn_link_budget;

/* A link's place. Zeroed, then wake and arg are set. */
typedef struct tn_budget_seat {
	tn_list node;
	uint64_t want;
	bool queued; /* the link's own view */
	void (*wake)(void *arg);
	void *arg;
} tn_budget_seat;

/* lock may be NULL. */
void tn_link_budget_init(tn_link_budget *budget, uint64_t cap, const tn_share_lock *lock);

/* May a piece of n bytes go? If not, the seat is in the queue and is woken. Takes nothing. */
bool tn_budget_open(tn_link_budget *budget, tn_budget_seat *seat, uint64_t n);
/* It was posted: out of the queue, if it was there. */
void tn_budget_take(tn_link_budget *budget, tn_budget_seat *seat, uint64_t n);
/* It completed, well or not. The caller looks for its own next piece by itself. */
void tn_budget_give(tn_link_budget *budget, const tn_budget_seat *seat, uint64_t n);
/* It waits no longer. */
void tn_budget_leave(tn_link_budget *budget, tn_budget_seat *seat);

#endif
