/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clocks of a group of workers, and who may go on: asynchronous, bulk synchronous and stale synchronous
 * training in one rule (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
 * Server").
 *
 *   clock of a member = c     it has completed the steps 0 .. c-1. Said by the member, never counted from its calls.
 *   begin(t) is allowed       t <= frontier + staleness, frontier = the least clock of the members
 *   staleness                 0: bulk synchronous; s: stale synchronous; TN_CLOCK_ASYNC: nobody waits
 *
 * Members are a set, by id: saying the same thing twice (a retry) changes nothing, and one that pushes twice does
 * not stand in for another. Who leaves holds nobody up any more; who joins starts at the frontier, so it neither
 * waits for nor holds up steps that it never saw. The frontier never goes back.
 *
 *   sum over members of [clock == frontier] = behind, behind > 0 while there are members
 *   a waiter is queued only while its step > frontier + staleness
 *
 * Must not: do IO, read a clock, lock. Time limits are the caller's: it takes a waiter back and asks who is missing.
 * Threads: one at a time. Tests: tests/unit/store/clock_test.c.
 */
#ifndef TN_STORE_CLOCK_H
#define TN_STORE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

#include "base/list.h"
#include "base/map.h"

#define TN_CLOCK_ASYNC    UINT64_MAX
#define TN_CLOCK_NAME_MAX 48

typedef struct tn_clock_member {
	uint64_t id; /* any number: a client's own, not that of its connection */
	uint64_t clock;
	uint64_t joined; /* serial number of joining, for barriers */
	char name[TN_CLOCK_NAME_MAX];
} tn_clock_member;

/* Somebody who wants to begin a step. The caller's, zeroed before the first use. */
typedef struct tn_clock_waiter {
	tn_list node;
	uint64_t id;
	uint64_t step;
	tern_status status; /* TERN_OK, or TERN_E_CANCELED if its member left */
} tn_clock_waiter;

typedef struct tn_clocks {
	tn_clock_member *members; /* in the order of joining */
	uint32_t count, capacity;
	uint32_t behind; /* members at the frontier */
	uint64_t frontier;
	uint64_t staleness;
	uint64_t joins; /* serial number of the next to join */
	tn_map by_id;
	tn_list waiting; /* by step, the least first */
	tn_list ready;   /* to be taken by tn_clocks_ready() */
} tn_clocks;

/* frontier: 0, or that of a checkpoint. seed: random, ids come from peers. TERN_E_NOMEM. */
tern_status tn_clocks_init(tn_clocks *clocks, uint64_t staleness, uint64_t frontier, uint64_t seed);
/* Waiters must have been taken back. */
void tn_clocks_fini(tn_clocks *clocks);

/*
 * Become a member, with the clock at the frontier. An id that is one already (it connected again) keeps its clock.
 * *clock: the step to begin with; may be NULL. name: for people, cut to TN_CLOCK_NAME_MAX. TERN_E_NOMEM.
 */
tern_status tn_clocks_join(tn_clocks *clocks, uint64_t id, const char *name, uint64_t *clock);
/* False: it was no member. Its waiters become ready with TERN_E_CANCELED. */
bool tn_clocks_leave(tn_clocks *clocks, uint64_t id);
/* The member has completed the steps below `clock`; less than it said before changes nothing. TERN_E_NOT_FOUND. */
tern_status tn_clocks_advance(tn_clocks *clocks, uint64_t id, uint64_t clock);
/* The member, or NULL; good until the next join or leave. */
const tn_clock_member *tn_clocks_member(const tn_clocks *clocks, uint64_t id);

/*
 * May member `id` begin `step`? TERN_OK: now. TERN_BUSY: the waiter is queued and comes out of tn_clocks_ready()
 * when it may. TERN_E_NOT_FOUND: no member.
 */
tern_status tn_clocks_begin(tn_clocks *clocks, tn_clock_waiter *waiter, uint64_t id, uint64_t step);
/* Take a waiter back (deadline, cancel); harmless if it is not queued. */
void tn_clocks_forget(tn_clocks *clocks, tn_clock_waiter *waiter);
/* The next waiter whose wait is over, the longest behind first; NULL if none. After join, leave, advance. */
tn_clock_waiter *tn_clocks_ready(tn_clocks *clocks);

/*
 * Whom those wait for who want to begin `step`: "worker 3 (step 17), worker 5 (step 16) and 2 more" into text
 * (size at least 40). Returns how many they are; 0 and "" if nobody has to wait.
 */
uint32_t tn_clocks_missing(const tn_clocks *clocks, uint64_t step, char *text, unsigned size);

/* Assert the invariants: O(members + waiters). */
void tn_clocks_check(const tn_clocks *clocks);

#endif
