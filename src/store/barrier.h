/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named barriers over the members of a tn_clocks group. A round of a barrier opens when the first member arrives and
 * closes when every member that had joined by then has arrived or left; who joins later may come, but is not waited
 * for. Arriving is said with the number of the round, so that saying it twice (a retry) counts once and a late
 * retry of a round that closed is answered at once.
 *
 *   those who arrived are a set of members; a round closes once; rounds of a name are 0, 1, 2, ...
 *   awaited = members that joined before joins_known and have not arrived
 *
 * Must not: do IO, read a clock, lock. Time limits are the caller's: it takes its waiter back (which does not undo the
 * arrival) and asks who is missing.
 * Threads: one at a time. Tests: tests/unit/store/barrier_test.c.
 */
#ifndef TN_STORE_BARRIER_H
#define TN_STORE_BARRIER_H

#include "store/clock.h"

#define TN_BARRIERS_MAX     64 /* names of a group */
#define TN_BARRIER_NAME_MAX 48

/* Somebody who waits for a round to close. The caller's, zeroed before the first use. */
typedef struct tn_barrier_waiter {
	tn_list node;
	uint64_t id;
	tern_status status; /* TERN_OK, or TERN_E_CANCELED if its member left */
} tn_barrier_waiter;

typedef struct tn_barrier {
	char name[TN_BARRIER_NAME_MAX];
	uint64_t round;       /* the one that is open or opens next */
	uint64_t joins_known; /* members that joined before this serial number are waited for */
	uint32_t awaited;     /* of those, who have neither arrived nor left */
	uint32_t here;        /* arrived in this round: it is open if there are any */
	tn_map arrivals;      /* id -> the round after the last one it arrived at */
	tn_list waiting;
} tn_barrier;

typedef struct tn_barriers {
	tn_clocks *clocks;
	tn_barrier rows[TN_BARRIERS_MAX];
	uint32_t count;
	tn_list ready; /* to be taken by tn_barriers_ready() */
} tn_barriers;

void tn_barriers_init(tn_barriers *barriers, tn_clocks *clocks);
/* Waiters must have been taken back. */
void tn_barriers_fini(tn_barriers *barriers);

/* The round that a member who never arrived at this barrier should name: the open one. */
uint64_t tn_barrier_round(const tn_barriers *barriers, const char *name);
/*
 * Member `id` is at round `round`. TERN_OK: the round has closed (by this, or before). TERN_BUSY: the waiter is
 * queued and comes out of tn_barriers_ready(). TERN_E_NOT_FOUND: no member. TERN_E_INVALID: a round that can't be
 * open yet, or a name that is empty or too long. TERN_E_LIMIT: too many names. TERN_E_NOMEM.
 */
tern_status tn_barrier_arrive(tn_barriers *barriers, tn_barrier_waiter *waiter, const char *name, uint64_t id,
			      uint64_t round);
/* Take a waiter back; harmless if it is not queued. */
void tn_barrier_forget(tn_barriers *barriers, tn_barrier_waiter *waiter);
/* Call before tn_clocks_leave(): rounds may close, waiters of the member end. */
void tn_barriers_leave(tn_barriers *barriers, uint64_t id);
/* The next waiter whose round closed; NULL if none. */
tn_barrier_waiter *tn_barriers_ready(tn_barriers *barriers);

/* Who has not arrived at the open round: "worker 3, worker 5 and 2 more". Returns how many they are; text as tn_clocks_missing. */
uint32_t tn_barrier_missing(const tn_barriers *barriers, const char *name, char *text, unsigned size);

#endif
