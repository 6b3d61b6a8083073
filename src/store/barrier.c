/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named barriers. See barrier.h.
 * Must not: do IO, read a clock, lock. Threads: one at a time. Tests: tests/unit/store/barrier_test.c.
 */
#include "store/barrier.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "store/names.h"

void tn_barriers_init(tn_barriers *barriers, tn_clocks *clocks)
{
	memset(barriers, 0, sizeof(*barriers));
	barriers->clocks = clocks;
	tn_list_init(&barriers->ready);
}

void tn_barriers_fini(tn_barriers *barriers)
{
	TN_ASSERT(tn_list_empty(&barriers->ready));
	for (uint32_t i = 0; i < barriers->count; i++) {
		TN_ASSERT(tn_list_empty(&barriers->rows[i].waiting));
		tn_map_fini(&barriers->rows[i].arrivals);
	}
}

static tn_barrier *find(const tn_barriers *barriers, const char *name)
{
	for (uint32_t i = 0; i < barriers->count; i++)
		if (strcmp(barriers->rows[i].name, name) == 0)
			return (tn_barrier *)&barriers->rows[i];
	return NULL;
}

static tern_status find_or_add(tn_barriers *barriers, const char *name, tn_barrier **barrier)
{
	size_t length = strlen(name);
	tn_barrier *row = find(barriers, name);

	if (!row) {
		if (length == 0 || length >= TN_BARRIER_NAME_MAX)
			return tn_fail(TERN_E_INVALID, "a barrier's name has 1 to %d bytes, this has %zu",
				       TN_BARRIER_NAME_MAX - 1, length);
		if (barriers->count == TN_BARRIERS_MAX)
			return tn_fail(TERN_E_LIMIT,
				       "%d barriers have names already: use one name in several rounds",
				       TN_BARRIERS_MAX);
		row = &barriers->rows[barriers->count];
		TN_TRY(tn_map_init(&row->arrivals, 16, false, barriers->clocks->by_id.seed));
		barriers->count++;
		memcpy(row->name, name, length + 1);
		tn_list_init(&row->waiting);
	}
	*barrier = row;
	return TERN_OK;
}

uint64_t tn_barrier_round(const tn_barriers *barriers, const char *name)
{
	const tn_barrier *barrier = find(barriers, name);

	return barrier ? barrier->round : 0;
}

static bool has_arrived(const tn_barrier *barrier, uint64_t id)
{
	const uint64_t *next = tn_map_find(&barrier->arrivals, id);

	return next && *next == barrier->round + 1;
}

static bool awaited(const tn_barrier *barrier, const tn_clock_member *member)
{
	return barrier->here > 0 && member->joined < barrier->joins_known &&
	       !has_arrived(barrier, member->id);
}

static bool complete(const tn_barrier *barrier)
{
	return barrier->here > 0 && barrier->awaited == 0;
}

static void finish(tn_barriers *barriers, tn_barrier_waiter *waiter, tern_status status)
{
	tn_list_remove(&waiter->node);
	waiter->status = status;
	tn_list_push_back(&barriers->ready, &waiter->node);
}

static void close_round(tn_barriers *barriers, tn_barrier *barrier)
{
	tn_barrier_waiter *waiter;

	barrier->round++;
	barrier->here = 0;
	while ((waiter = TN_LIST_FIRST(&barrier->waiting, tn_barrier_waiter, node)) != NULL)
		finish(barriers, waiter, TERN_OK);
}

static tern_status note_arrival(tn_barriers *barriers, tn_barrier *barrier, const tn_clock_member *member)
{
	if (has_arrived(barrier, member->id))
		return TERN_OK;
	if (tn_map_put(&barrier->arrivals, member->id, barrier->round + 1) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu32 " workers at barrier %s",
			       barrier->here + 1, barrier->name);
	if (barrier->here++ == 0) {
		barrier->joins_known = barriers->clocks->joins;
		barrier->awaited = barriers->clocks->count;
	}
	barrier->awaited -= member->joined < barrier->joins_known;
	return TERN_OK;
}

tern_status tn_barrier_arrive(tn_barriers *barriers, tn_barrier_waiter *waiter, const char *name, uint64_t id,
			      uint64_t round)
{
	const tn_clock_member *member = tn_clocks_member(barriers->clocks, id);
	tn_barrier *barrier = NULL;

	if (!member)
		return tn_fail(TERN_E_NOT_FOUND,
			       "worker %" PRIx64 " is not in the group: it left, or never joined", id);
	TN_TRY(find_or_add(barriers, name, &barrier));
	if (round < barrier->round)
		return TERN_OK;
	if (round > barrier->round)
		return tn_fail(TERN_E_INVALID, "round %" PRIu64 " of barrier %s: round %" PRIu64 " is open",
			       round, name, barrier->round);
	TN_TRY(note_arrival(barriers, barrier, member));
	if (complete(barrier)) {
		close_round(barriers, barrier);
		return TERN_OK;
	}
	waiter->id = id;
	tn_list_push_back(&barrier->waiting, &waiter->node);
	return TERN_BUSY;
}

void tn_barrier_forget(tn_barriers *barriers, tn_barrier_waiter *waiter)
{
	(void)barriers;
	tn_list_remove(&waiter->node);
}

static void leave(tn_barriers *barriers, tn_barrier *barrier, const tn_clock_member *member)
{
	TN_LIST_FOREACH_SAFE(node, &barrier->waiting) {
		tn_barrier_waiter *waiter = TN_CONTAINER_OF(node, tn_barrier_waiter, node);

		if (waiter->id == member->id)
			finish(barriers, waiter, TERN_E_CANCELED);
	}
	if (awaited(barrier, member))
		barrier->awaited--;
	else if (has_arrived(barrier, member->id))
		barrier->here--;
	tn_map_remove(&barrier->arrivals, member->id, NULL);
	if (complete(barrier))
		close_round(barriers, barrier);
}

void tn_barriers_leave(tn_barriers *barriers, uint64_t id)
{
	const tn_clock_member *member = tn_clocks_member(barriers->clocks, id);

	for (uint32_t i = 0; member && i < barriers->count; i++)
		leave(barriers, &barriers->rows[i], member);
}

tn_barrier_waiter *tn_barriers_ready(tn_barriers *barriers)
{
	tn_list *node = tn_list_pop_front(&barriers->ready);

	return node ? TN_CONTAINER_OF(node, tn_barrier_waiter, node) : NULL;
}

uint32_t tn_barrier_missing(const tn_barriers *barriers, const char *name, char *text, unsigned size)
{
	const tn_barrier *barrier = find(barriers, name);
	const tn_clocks *clocks = barriers->clocks;
	tn_names names;

	tn_names_start(&names, text, size);
	for (uint32_t i = 0; barrier && i < clocks->count; i++)
		if (awaited(barrier, &clocks->members[i]))
			tn_names_add(&names, "%s", clocks->members[i].name);
	return tn_names_end(&names, "workers");
}
