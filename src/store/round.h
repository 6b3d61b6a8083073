/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose gradients a step has: the set of members that ended it, in the order of their names, fixed when the step closes.
 *
 *   a step closes     when the frontier of the clocks passes it: every member has ended it, or left
 *   senders           members at that moment, and those who had ended the step before they left: a set of members,
 *                     however often each of them says so. Who left in the middle of the step is not among them
 *
 * One frontier may pass several steps: they close together and have the same senders.
 *
 *   gone: left, had ended the step at the frontier; until the next closing
 *   senders fit: room is made when a member joins
 *
 * Must not: do IO, read a clock, lock. Threads: one at a time. Tests: tests/unit/store/round_test.c.
 */
#ifndef TN_STORE_ROUND_H
#define TN_STORE_ROUND_H

#include "store/clock.h"

typedef struct tn_round_sender {
	uint64_t id;
	char name[TN_CLOCK_NAME_MAX];
} tn_round_sender;

typedef struct tn_round {
	const tn_clocks *clocks;
	uint64_t closed; /* steps below are closed */
	tn_round_sender *senders, *gone;
	uint32_t sender_count; /* of the last closing */
	uint32_t gone_count, capacity;
} tn_round;

void tn_round_init(tn_round *round, const tn_clocks *clocks);
void tn_round_fini(tn_round *round);
/* Before tn_clocks_join(): room for one more. TERN_E_NOMEM. */
tern_status tn_round_join(tn_round *round);
/* Before tn_clocks_leave(). */
void tn_round_leave(tn_round *round, uint64_t id);
/* After every change of the clocks. True: steps have closed, and senders are theirs. */
bool tn_round_close(tn_round *round);

#endif
