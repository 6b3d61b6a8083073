/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Senders of steps. See round.h. Must not: do IO, read a clock, lock. Threads: one at a time.
 * Tests: tests/unit/store/round_test.c.
 */
#include "store/round.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

void tn_round_init(tn_round *round, const tn_clocks *clocks)
{
	*round = (tn_round){.clocks = clocks, .closed = clocks->frontier};
}

void tn_round_fini(tn_round *round)
{
	free(round->senders);
	free(round->gone);
}

/* Members and those gone are never more than joined since the last closing: both arrays have room for all of them. */
tern_status tn_round_join(tn_round *round)
{
	uint32_t need = round->clocks->count + round->gone_count + 1, capacity = round->capacity;
	tn_round_sender *more;

	if (need <= capacity)
		return TERN_OK;
	capacity = capacity ? 2 * capacity : 16;
	more = realloc(round->senders, capacity * sizeof(*more));
	if (more) {
		round->senders = more;
		more = realloc(round->gone, capacity * sizeof(*more));
	}
	if (!more)
		return tn_fail(TERN_E_NOMEM, "no memory for the senders of a step");
	round->gone = more;
	round->capacity = capacity;
	return TERN_OK;
}

static tn_round_sender sender(const tn_clock_member *member)
{
	tn_round_sender s = {.id = member->id};

	memcpy(s.name, member->name, sizeof(s.name));
	return s;
}

void tn_round_leave(tn_round *round, uint64_t id)
{
	const tn_clock_member *member = tn_clocks_member(round->clocks, id);

	if (!member || member->clock <= round->clocks->frontier)
		return;
	TN_ASSERT(round->gone_count < round->capacity);
	round->gone[round->gone_count++] = sender(member);
}

static int by_name(const void *a, const void *b)
{
	const tn_round_sender *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order ? order : (x->id > y->id) - (x->id < y->id);
}

bool tn_round_close(tn_round *round)
{
	const tn_clocks *clocks = round->clocks;

	TN_ASSERT(clocks->frontier >= round->closed);
	if (clocks->frontier == round->closed)
		return false;
	TN_ASSERT(clocks->count + round->gone_count <= round->capacity);
	memcpy(round->senders, round->gone, round->gone_count * sizeof(*round->gone));
	round->sender_count = round->gone_count;
	for (uint32_t i = 0; i < clocks->count; i++)
		round->senders[round->sender_count++] = sender(&clocks->members[i]);
	qsort(round->senders, round->sender_count, sizeof(*round->senders), by_name);
	round->gone_count = 0;
	round->closed = clocks->frontier;
	return true;
}
