/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time and what will happen in it.
 *
 *   now      ns; moves only when an event is taken
 *   event    a call at a time. Events of one time are taken in the order in which they were made, so that a
 *            run depends on nothing but its inputs
 *   heap     4-ary, by (time, number); rows[] hold the calls. A canceled event stays in the heap as a dead
 *            entry until its time comes or half of the heap is dead
 *
 *   live + dead = heap entries = rows in use
 *
 * Threads: none. Tests: tests/unit/sim/event_test.c.
 */
#ifndef TERN_SIM_EVENT_H
#define TERN_SIM_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* value is free for the caller's use. */
typedef void (*sim_event_fn)(void *arg, uint64_t value);

/* generation << 32 | row + 1; 0 = none. */
typedef uint64_t sim_event_id;

typedef struct sim_heap_entry {
	uint64_t at, number;
	uint32_t row;
} sim_heap_entry;

typedef struct sim_event_row {
	sim_event_fn fn; /* NULL = canceled */
	void *arg;
	uint64_t value;
	uint32_t generation, next_free; /* row + 1 */
} sim_event_row;

typedef struct sim_events {
	uint64_t now;
	uint64_t number; /* of the next event */
	uint64_t taken;
	sim_heap_entry *heap;
	uint32_t count, heap_room, dead;
	sim_event_row *rows;
	uint32_t row_room, row_count, row_free;
} sim_events;

void sim_events_init(sim_events *events);
/* What has not happened never will. */
void sim_events_fini(sim_events *events);

/* Call fn(arg, value) at `at`, or now if that has passed. */
sim_event_id sim_at(sim_events *events, uint64_t at, sim_event_fn fn, void *arg, uint64_t value);
/* False: it was taken or canceled before, or id is 0. An event may cancel others of its own time. */
bool sim_cancel(sim_events *events, sim_event_id id);
/* Time of the next event; UINT64_MAX = none. */
uint64_t sim_next(sim_events *events);
/* Take the next event, but none later than `until`. False: there is none; then now = max(now, until), unless
   until is UINT64_MAX. */
bool sim_step(sim_events *events, uint64_t until);

static inline uint32_t sim_live(const sim_events *events)
{
	return events->count - events->dead;
}

/* Assert the invariants. O(n). */
void sim_events_check(const sim_events *events);

#endif
