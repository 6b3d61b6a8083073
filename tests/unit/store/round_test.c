/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of store/round.h. BytePS: a round counted pushes, not senders.
 */
#include "store/round.h"

#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"

static void join(tn_round *round, tn_clocks *clocks, uint64_t id, const char *name)
{
	assert_ok(tn_round_join(round));
	assert_ok(tn_clocks_join(clocks, id, name, NULL));
	assert_false(tn_round_close(round));
}

static bool leave(tn_round *round, tn_clocks *clocks, uint64_t id)
{
	tn_round_leave(round, id);
	tn_clocks_leave(clocks, id);
	return tn_round_close(round);
}

static bool ends(tn_round *round, tn_clocks *clocks, uint64_t id, uint64_t clock)
{
	assert_ok(tn_clocks_advance(clocks, id, clock));
	return tn_round_close(round);
}

static void a_sender_that_repeats_itself_is_one(void **state)
{
	tn_clocks clocks;
	tn_round round;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, 0, 0, 1));
	tn_round_init(&round, &clocks);
	join(&round, &clocks, 7, "worker 1");
	join(&round, &clocks, 3, "worker 0");
	assert_false(ends(&round, &clocks, 7, 1));
	assert_false(ends(&round, &clocks, 7, 1));
	assert_true(ends(&round, &clocks, 3, 1));
	assert_int_equal(round.closed, 1);
	assert_int_equal(round.sender_count, 2);
	/* the order of names, whoever came first */
	assert_int_equal(round.senders[0].id, 3);
	assert_int_equal(round.senders[1].id, 7);
	tn_round_fini(&round);
	tn_clocks_fini(&clocks);
}

static void who_leaves_counts_for_what_it_ended(void **state)
{
	tn_clocks clocks;
	tn_round round;

	(void)state;
	assert_ok(tn_clocks_init(&clocks, 0, 0, 1));
	tn_round_init(&round, &clocks);
	join(&round, &clocks, 1, "a");
	join(&round, &clocks, 2, "b");
	join(&round, &clocks, 3, "c");
	/* b ended the step and left, c dies in the middle of it: a closes it */
	assert_false(ends(&round, &clocks, 2, 1));
	assert_false(leave(&round, &clocks, 2));
	assert_false(ends(&round, &clocks, 1, 1));
	assert_true(leave(&round, &clocks, 3));
	assert_int_equal(round.sender_count, 2);
	assert_int_equal(round.senders[0].id, 1);
	assert_int_equal(round.senders[1].id, 2);
	/* and b is of that step alone */
	assert_true(ends(&round, &clocks, 1, 2));
	assert_int_equal(round.sender_count, 1);
	assert_int_equal(round.closed, 2);
	/* the last one goes: nothing closes, and who comes later begins there */
	assert_false(leave(&round, &clocks, 1));
	join(&round, &clocks, 4, "d");
	assert_true(ends(&round, &clocks, 4, 3));
	assert_int_equal(round.senders[0].id, 4);
	tn_round_fini(&round);
	tn_clocks_fini(&clocks);
}

/* ---- against a list of everything that happened ---- */

#define PEOPLE 9

typedef struct person {
	bool here;
	uint64_t clock;
	uint64_t ended_and_left; /* its clock when it left; 0: it did not, or it was counted */
} person;

static uint64_t least(const person *p)
{
	uint64_t clock = UINT64_MAX;

	for (int i = 0; i < PEOPLE; i++)
		if (p[i].here && p[i].clock < clock)
			clock = p[i].clock;
	return clock;
}

static void check_closing(const tn_round *round, person *p, uint64_t before, uint64_t frontier, bool closed)
{
	uint32_t n = 0;

	assert_int_equal(closed, frontier > before);
	for (int i = 0; closed && i < PEOPLE; i++) {
		if (!p[i].here && !(p[i].ended_and_left > before))
			continue;
		assert_int_equal(round->senders[n++].id, i);
		p[i].ended_and_left = 0;
	}
	if (closed)
		assert_int_equal(n, round->sender_count);
}

static void random_lives_match_the_oracle(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++) {
		person p[PEOPLE] = {{0}};
		tn_rand rand = {seed};
		uint64_t frontier = 0;
		tn_clocks clocks;
		tn_round round;

		assert_ok(tn_clocks_init(&clocks, 0, 0, seed));
		tn_round_init(&round, &clocks);
		for (int n = 0; n < 400; n++) {
			uint64_t id = tn_rand_below(&rand, PEOPLE), before = frontier;
			char name[8];

			snprintf(name, sizeof(name), "%d", (int)id);
			if (!p[id].here && !p[id].ended_and_left) {
				join(&round, &clocks, id, name);
				p[id] = (person){.here = true, .clock = frontier};
				continue;
			}
			if (!p[id].here)
				continue;
			if (tn_rand_below(&rand, 6) == 0) {
				p[id].here = false;
				p[id].ended_and_left = p[id].clock > frontier ? p[id].clock : 0;
				frontier = least(p) == UINT64_MAX ? frontier : least(p);
				check_closing(&round, p, before, frontier, leave(&round, &clocks, id));
			} else {
				p[id].clock += tn_rand_below(&rand, 2);
				frontier = least(p);
				check_closing(&round, p, before, frontier,
					      ends(&round, &clocks, id, p[id].clock));
			}
		}
		tn_round_fini(&round);
		tn_clocks_fini(&clocks);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sender_that_repeats_itself_is_one),
		cmocka_unit_test(who_leaves_counts_for_what_it_ended),
		cmocka_unit_test(random_lives_match_the_oracle),
	};

	return RUN(tests);
}
