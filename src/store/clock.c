/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks of workers. See clock.h. The frontier is kept by a count of the members that stand on it: only when that
 * count reaches zero are all clocks looked at.
 * Must not: do IO, read a clock, lock. Threads: one at a time. Tests: tests/unit/store/clock_test.c.
 */
#include "store/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "store/names.h"

#define FIRST_MEMBERS 16u

tern_status tn_clocks_init(tn_clocks *clocks, uint64_t staleness, uint64_t frontier, uint64_t seed)
{
	memset(clocks, 0, sizeof(*clocks));
	clocks->staleness = staleness;
	clocks->frontier = frontier;
	tn_list_init(&clocks->waiting);
	tn_list_init(&clocks->ready);
	return tn_map_init(&clocks->by_id, FIRST_MEMBERS, false, seed);
}

void tn_clocks_fini(tn_clocks *clocks)
{
	TN_ASSERT(tn_list_empty(&clocks->waiting) && tn_list_empty(&clocks->ready));
	tn_map_fini(&clocks->by_id);
	free(clocks->members);
}

static tn_clock_member *member_of(const tn_clocks *clocks, uint64_t id)
{
	uint64_t *index = tn_map_find(&clocks->by_id, id);

	return index ? &clocks->members[*index] : NULL;
}

const tn_clock_member *tn_clocks_member(const tn_clocks *clocks, uint64_t id)
{
	return member_of(clocks, id);
}

/* Whether `step` may begin; the sum does not wrap. */
static bool allowed(const tn_clocks *clocks, uint64_t step)
{
	return step <= clocks->frontier || step - clocks->frontier <= clocks->staleness;
}

static void release(tn_clocks *clocks, tn_clock_waiter *waiter, tern_status status)
{
	tn_list_remove(&waiter->node);
	waiter->status = status;
	tn_list_push_back(&clocks->ready, &waiter->node);
}

static void release_allowed(tn_clocks *clocks)
{
	tn_clock_waiter *waiter;

	while ((waiter = TN_LIST_FIRST(&clocks->waiting, tn_clock_waiter, node)) != NULL &&
	       allowed(clocks, waiter->step))
		release(clocks, waiter, TERN_OK);
}

/* Nobody stands on the frontier any more: find the new one. Without members it stays, for those who come. */
static void move_frontier(tn_clocks *clocks)
{
	uint64_t least = UINT64_MAX;

	if (clocks->count == 0 || clocks->behind > 0)
		return;
	for (uint32_t i = 0; i < clocks->count; i++) {
		uint64_t clock = clocks->members[i].clock;

		if (clock < least) {
			least = clock;
			clocks->behind = 0;
		}
		clocks->behind += clock == least;
	}
	TN_ASSERT(least > clocks->frontier);
	clocks->frontier = least;
	release_allowed(clocks);
}

static tern_status make_room(tn_clocks *clocks)
{
	uint32_t capacity = clocks->capacity ? clocks->capacity * 2 : FIRST_MEMBERS;
	tn_clock_member *members;

	if (clocks->count < clocks->capacity)
		return TERN_OK;
	members = realloc(clocks->members, capacity * sizeof(*members));
	if (!members)
		return tn_fail(TERN_E_NOMEM, "no memory for the clocks of %" PRIu32 " workers", capacity);
	clocks->members = members;
	clocks->capacity = capacity;
	return TERN_OK;
}

tern_status tn_clocks_join(tn_clocks *clocks, uint64_t id, const char *name, uint64_t *clock)
{
	tn_clock_member *member = member_of(clocks, id);

	if (!member) {
		TN_TRY(make_room(clocks));
		if (tn_map_put(&clocks->by_id, id, clocks->count) != TERN_OK)
			return tn_fail(TERN_E_NOMEM, "no memory for one more worker beside %" PRIu32,
				       clocks->count);
		member = &clocks->members[clocks->count++];
		*member = (tn_clock_member){.id = id, .clock = clocks->frontier, .joined = clocks->joins++};
		snprintf(member->name, sizeof(member->name), "%s", name);
		clocks->behind++;
	}
	if (clock)
		*clock = member->clock;
	return TERN_OK;
}

bool tn_clocks_leave(tn_clocks *clocks, uint64_t id)
{
	tn_clock_member *member = member_of(clocks, id);
	uint32_t index;

	if (!member)
		return false;
	index = (uint32_t)(member - clocks->members);
	clocks->behind -= member->clock == clocks->frontier;
	tn_map_remove(&clocks->by_id, id, NULL);
	clocks->count--;
	memmove(member, member + 1, (clocks->count - index) * sizeof(*member));
	for (uint32_t i = index; i < clocks->count; i++)
		*tn_map_find(&clocks->by_id, clocks->members[i].id) = i;
	TN_LIST_FOREACH_SAFE(node, &clocks->waiting) {
		tn_clock_waiter *waiter = TN_CONTAINER_OF(node, tn_clock_waiter, node);

		if (waiter->id == id)
			release(clocks, waiter, TERN_E_CANCELED);
	}
	move_frontier(clocks);
	return true;
}

tern_status tn_clocks_advance(tn_clocks *clocks, uint64_t id, uint64_t clock)
{
	tn_clock_member *member = member_of(clocks, id);

	if (!member)
		return tn_fail(TERN_E_NOT_FOUND,
			       "worker %" PRIx64 " is not in the group: it left, or never joined", id);
	if (clock <= member->clock)
		return TERN_OK;
	clocks->behind -= member->clock == clocks->frontier;
	member->clock = clock;
	move_frontier(clocks);
	return TERN_OK;
}

tern_status tn_clocks_begin(tn_clocks *clocks, tn_clock_waiter *waiter, uint64_t id, uint64_t step)
{
	tn_list *before = &clocks->waiting;

	if (!member_of(clocks, id))
		return tn_fail(TERN_E_NOT_FOUND,
			       "worker %" PRIx64 " is not in the group: it left, or never joined", id);
	if (allowed(clocks, step))
		return TERN_OK;
	waiter->id = id;
	waiter->step = step;
	/* Most ask for the newest step: look from the end. */
	while (before->prev != &clocks->waiting &&
	       TN_CONTAINER_OF(before->prev, tn_clock_waiter, node)->step > step)
		before = before->prev;
	tn_list_insert_before(before, &waiter->node);
	return TERN_BUSY;
}

void tn_clocks_forget(tn_clocks *clocks, tn_clock_waiter *waiter)
{
	(void)clocks;
	tn_list_remove(&waiter->node);
}

tn_clock_waiter *tn_clocks_ready(tn_clocks *clocks)
{
	tn_list *node = tn_list_pop_front(&clocks->ready);

	return node ? TN_CONTAINER_OF(node, tn_clock_waiter, node) : NULL;
}

uint32_t tn_clocks_missing(const tn_clocks *clocks, uint64_t step, char *text, unsigned size)
{
	tn_names names;

	tn_names_start(&names, text, size);
	for (uint32_t i = 0; i < clocks->count; i++) {
		const tn_clock_member *member = &clocks->members[i];

		if (step > member->clock && step - member->clock > clocks->staleness)
			tn_names_add(&names, "%s (step %" PRIu64 ")", member->name, member->clock);
	}
	return tn_names_end(&names, "workers");
}

void tn_clocks_check(const tn_clocks *clocks)
{
	uint32_t behind = 0;
	uint64_t last = 0;

	for (uint32_t i = 0; i < clocks->count; i++) {
		TN_ASSERT(clocks->members[i].clock >= clocks->frontier);
		TN_ASSERT(member_of(clocks, clocks->members[i].id) == &clocks->members[i]);
		behind += clocks->members[i].clock == clocks->frontier;
	}
	TN_ASSERT(behind == clocks->behind);
	TN_ASSERT((clocks->behind > 0) == (clocks->count > 0));
	TN_ASSERT(clocks->by_id.count == clocks->count);
	TN_LIST_FOREACH(node, &clocks->waiting) {
		const tn_clock_waiter *waiter = TN_CONTAINER_OF(node, tn_clock_waiter, node);

		TN_ASSERT(!allowed(clocks, waiter->step));
		TN_ASSERT(waiter->step >= last);
		TN_ASSERT(member_of(clocks, waiter->id));
		last = waiter->step;
	}
}
