/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of timers: an intrusive pairing heap. No allocation at all and no bound but the owner's objects;
 * set is O(1), cancel and expiry O(log n) amortised. Timers of one instant fire in no particular order.
 *
 *   a node's at_ns <= that of each of its children; root->prev == NULL
 *
 * Pure (time is an argument). Threads: one at a time. Tests: tests/unit/base/timer_test.c.
 */
#ifndef TN_BASE_TIMER_H
#define TN_BASE_TIMER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tn_timer {
	uint64_t at_ns;
	struct tn_timer *child, *next, *prev; /* prev: left sibling, or the parent for a first child */
	bool armed;
} tn_timer;

typedef struct tn_timers {
	tn_timer *root;
	uint64_t count;
} tn_timers;

/* Timers and sets are zeroed before the first use. */
/* Start it, or move it if it runs. */
void tn_timer_set(tn_timers *timers, tn_timer *timer, uint64_t at_ns);
/* Harmless if it does not run. */
void tn_timer_cancel(tn_timers *timers, tn_timer *timer);
/* Take out one timer with at_ns <= now_ns, the earliest first; NULL if there is none. */
tn_timer *tn_timer_expire(tn_timers *timers, uint64_t now_ns);

/* When the earliest fires; UINT64_MAX if none runs. */
static inline uint64_t tn_timer_next(const tn_timers *timers)
{
	return timers->root ? timers->root->at_ns : UINT64_MAX;
}

/* Assert heap order, links and count: O(n). */
void tn_timers_check(const tn_timers *timers);

#endif
