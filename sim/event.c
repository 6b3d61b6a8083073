/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of events. See event.h.
 * Threads: none. Tests: tests/unit/sim/event_test.c.
 */
#include "sim/event.h"

#include "base/check.h"
#include "sim/alloc.h"

/* Below this a heap is not worth cleaning. */
#define DEAD_MIN 64u

static inline bool before(const sim_heap_entry *a, const sim_heap_entry *b)
{
	return a->at < b->at || (a->at == b->at && a->number < b->number);
}

void sim_events_init(sim_events *events)
{
	*events = (sim_events){0};
}

void sim_events_fini(sim_events *events)
{
	free(events->heap);
	free(events->rows);
	*events = (sim_events){0};
}

static void sift_up(sim_heap_entry *heap, uint32_t at, sim_heap_entry entry)
{
	while (at > 0) {
		uint32_t parent = (at - 1) / 4;

		if (!before(&entry, &heap[parent]))
			break;
		heap[at] = heap[parent];
		at = parent;
	}
	heap[at] = entry;
}

static void sift_down(sim_heap_entry *heap, uint32_t count, uint32_t at, sim_heap_entry entry)
{
	for (;;) {
		uint32_t first = 4 * at + 1, end = TN_MIN(first + 4, count), least = first;

		if (first >= count)
			break;
		for (uint32_t i = first + 1; i < end; i++)
			if (before(&heap[i], &heap[least]))
				least = i;
		if (!before(&heap[least], &entry))
			break;
		heap[at] = heap[least];
		at = least;
	}
	heap[at] = entry;
}

static uint32_t row_take(sim_events *events)
{
	uint32_t row;

	if (events->row_free) {
		row = events->row_free - 1;
		events->row_free = events->rows[row].next_free;
		return row;
	}
	events->rows = sim_grow(events->rows, events->row_count, &events->row_room, sizeof(*events->rows));
	return events->row_count++;
}

static void row_give(sim_events *events, uint32_t row)
{
	events->rows[row].generation++;
	events->rows[row].fn = NULL;
	events->rows[row].next_free = events->row_free;
	events->row_free = row + 1;
}

sim_event_id sim_at(sim_events *events, uint64_t at, sim_event_fn fn, void *arg, uint64_t value)
{
	uint32_t row = row_take(events);
	sim_event_row *r = &events->rows[row];

	TN_ASSERT(fn);
	r->fn = fn;
	r->arg = arg;
	r->value = value;
	events->heap = sim_grow(events->heap, events->count, &events->heap_room, sizeof(*events->heap));
	sift_up(events->heap, events->count++,
		(sim_heap_entry){.at = TN_MAX(at, events->now), .number = events->number++, .row = row});
	return (uint64_t)r->generation << 32 | (row + 1);
}

/* Drop the dead entries and make it a heap again. Order does not depend on the heap's shape. */
static void sweep(sim_events *events)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < events->count; i++) {
		if (events->rows[events->heap[i].row].fn)
			events->heap[n++] = events->heap[i];
		else
			row_give(events, events->heap[i].row);
	}
	events->count = n;
	events->dead = 0;
	for (uint32_t i = n; i-- > 0;)
		sift_down(events->heap, n, i, events->heap[i]);
}

bool sim_cancel(sim_events *events, sim_event_id id)
{
	uint32_t row = (uint32_t)id - 1;

	if (id == 0 || row >= events->row_count || events->rows[row].generation != id >> 32 ||
	    !events->rows[row].fn)
		return false;
	events->rows[row].fn = NULL;
	if (++events->dead > DEAD_MIN && events->dead > events->count / 2)
		sweep(events);
	return true;
}

static sim_heap_entry pop(sim_events *events)
{
	sim_heap_entry top = events->heap[0];

	if (--events->count > 0)
		sift_down(events->heap, events->count, 0, events->heap[events->count]);
	return top;
}

uint64_t sim_next(sim_events *events)
{
	while (events->count > 0 && !events->rows[events->heap[0].row].fn) {
		row_give(events, pop(events).row);
		events->dead--;
	}
	return events->count ? events->heap[0].at : UINT64_MAX;
}

bool sim_step(sim_events *events, uint64_t until)
{
	uint64_t at = sim_next(events);
	sim_event_row row;
	uint32_t index;

	if (at > until || events->count == 0) {
		if (until != UINT64_MAX)
			events->now = TN_MAX(events->now, until);
		return false;
	}
	index = pop(events).row;
	row = events->rows[index];
	row_give(events, index);
	TN_ASSERT(at >= events->now);
	events->now = at;
	events->taken++;
	row.fn(row.arg, row.value);
	return true;
}

void sim_events_check(const sim_events *events)
{
	uint32_t dead = 0, unused = 0;

	for (uint32_t i = 0; i < events->count; i++) {
		TN_ASSERT(i == 0 || !before(&events->heap[i], &events->heap[(i - 1) / 4]));
		TN_ASSERT(events->heap[i].row < events->row_count);
		TN_ASSERT(events->heap[i].at >= events->now);
		dead += !events->rows[events->heap[i].row].fn;
	}
	for (uint32_t row = events->row_free; row; row = events->rows[row - 1].next_free)
		unused++;
	TN_ASSERT(dead == events->dead);
	TN_ASSERT(unused + events->count == events->row_count);
}
