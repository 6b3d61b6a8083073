/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that run tasks together: each member has a queue of its own, bounded, and takes the oldest task of somebody
 * else's when it is empty (work stealing; Blumofe and Leiserson 1999). Tasks are numbers below `tasks`; what they do is
 * the owner's.
 *
 *   captain   member 0, the thread of the owner: also does what no other may (transfers)
 *   helpers   members 1 .. n - 1, threads of the crew; they sleep when there is nothing to take
 *   post      a helper's way to hand a task to the captain, who collects what was posted
 *
 *   push ---> queue of the member ---> take (own, else another's) ---> run ---> push, post ...
 *
 * Nobody sleeps while there is something for him: whoever goes to sleep says so first and looks once more; whoever has
 * made a task available looks then for sleepers (both sequentially consistent). Members wake others only for tasks beyond
 * the one that they take themselves.
 *
 * Between open() and close() helpers take tasks; after close() none of them touches anything of the owner's.
 *
 * Thread story: push and take from the thread of that member; open, close, collect, and waiting from the captain's; post
 * from helpers' (in run); wake from any, signal handlers too. With one member there is no thread and no atomic that is
 * contended. Tests: tests/unit/graph/crew_test.c.
 */
#ifndef TN_GRAPH_CREW_H
#define TN_GRAPH_CREW_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/types.h>

#define TN_CREW_NONE UINT32_MAX
#define TN_CREW_MAX  64u

typedef struct tn_crew tn_crew;

typedef struct tn_crew_params {
	uint32_t members; /* 1 .. TN_CREW_MAX */
	uint32_t tasks;
	/* Runs a task in a helper's thread. */
	void (*run)(void *arg, uint32_t member, uint32_t task);
	/* In a helper's thread, before its first task; may be NULL. */
	void (*begin)(void *arg);
	/* Ends the wait that the captain announced by tn_crew_will_wait, or the next one. Any thread. */
	void (*wake)(void *arg);
	void *arg;
} tn_crew_params;

/* TERN_E_NOMEM, TERN_E_INVALID; what threads cost. */
tern_status tn_crew_create(const tn_crew_params *params, tn_crew **crew);
/* NULL is allowed. Closed. */
void tn_crew_destroy(tn_crew *crew);

void tn_crew_open(tn_crew *crew);
void tn_crew_close(tn_crew *crew);

/* At most once at a time per task. */
void tn_crew_push(tn_crew *crew, uint32_t member, uint32_t task);
/* The member's oldest, else another's; TN_CREW_NONE: there is none. */
uint32_t tn_crew_take(tn_crew *crew, uint32_t member);

void tn_crew_post(tn_crew *crew, uint32_t task);
/* All that was posted, oldest first: the first one, and the one behind a task; TN_CREW_NONE at the end. */
uint32_t tn_crew_collect(tn_crew *crew);
uint32_t tn_crew_next(const tn_crew *crew, uint32_t task);

/*
 * The captain is going to wait for something else, from which `wake` brings him back. False: there is a task to take or
 * collect, do not. True: after the wait call tn_crew_waited.
 */
bool tn_crew_will_wait(tn_crew *crew);
void tn_crew_waited(tn_crew *crew);
/* The captain has nothing to wait for but the crew: until there may be a task, tn_crew_wake, or the deadline. */
void tn_crew_sleep(tn_crew *crew, uint64_t deadline_ns);
void tn_crew_wake(tn_crew *crew);

#endif
