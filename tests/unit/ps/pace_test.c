/* SPDX-License-Identifier: Apache-2.0 */
/* ps/pace.h: when a saver rests, and for how long. A thread of its own is played: time and CPU time are numbers. */
#include "ps/pace.h"

#include "cmocka_all.h"

#define MIB (1ull << 20)

/* Pieces of so many bytes that take so much CPU time each; naps: of how long a rest at most. Says when it was done. */
typedef struct played {
	uint64_t now, cpu, turn_max, rest_min, rested;
} played;

static played play(uint64_t rate, uint64_t piece, uint64_t pieces, uint64_t work_ns, uint64_t nap_ns)
{
	played p = {.now = 1000 * TN_NS_PER_SEC, .cpu = 77, .rest_min = UINT64_MAX};
	tn_pace pace = tn_pace_begin(rate, p.now, p.cpu);
	uint64_t rest, turn = 0;

	for (uint64_t i = 0; i < pieces; i++) {
		p.now += work_ns;
		p.cpu += work_ns;
		turn += work_ns;
		p.turn_max = TN_MAX(p.turn_max, turn);
		pace.bytes += piece;
		while ((rest = tn_pace_rest(&pace, p.now, p.cpu)) > 0) {
			p.rest_min = TN_MIN(p.rest_min, rest);
			rest = TN_MIN(rest, nap_ns);
			p.now += rest;
			p.rested += rest;
			tn_pace_rested(&pace, p.cpu);
			turn = 0;
		}
	}
	p.now -= 1000 * TN_NS_PER_SEC;
	return p;
}

static void the_rate_is_kept_within_a_moment(void **state)
{
	/* 64 MiB in pieces of 32 KiB, at 50 MiB/s: 1.28 s; naps that end before it is time change nothing. */
	for (uint64_t nap = TN_NS_PER_MS / 10; nap <= 1000 * TN_NS_PER_MS; nap *= 10) {
		played p = play(50 * MIB, 32768, 2048, 20 * TN_NS_PER_US, nap);

		assert_true(p.now <= 1280 * TN_NS_PER_MS + TN_PACE_EARLY_NS);
		assert_true(p.now >= 1280 * TN_NS_PER_MS - TN_PACE_EARLY_NS);
		assert_true(p.rest_min >= TN_PACE_REST_NS);
	}
	(void)state;
}

static void a_turn_ends_in_a_rest(void **state)
{
	static const uint64_t rates[] = {MIB, 50 * MIB, 1000 * MIB, 1ull << 40, UINT64_MAX};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(rates); i++) {
		played p = play(rates[i], 32768, 1000, 30 * TN_NS_PER_US, TN_NS_PER_SEC);

		assert_true(p.turn_max < TN_PACE_TURN_NS + 30 * TN_NS_PER_US);
	}
	/* A piece alone may be longer than a turn. */
	assert_int_equal(play(UINT64_MAX, 32768, 100, TN_NS_PER_MS, TN_NS_PER_SEC).turn_max, TN_NS_PER_MS);
}

/* Behind its rate it catches up: rests are a third of the time, not more. */
static void who_is_behind_rests_little(void **state)
{
	played p = play(1ull << 50, 32768, 10000, TN_PACE_TURN_NS / 4, TN_NS_PER_SEC);

	(void)state;
	assert_true(p.rested > 0 && p.rested <= p.now / 3 + TN_PACE_REST_NS);
	assert_int_equal(p.rest_min, TN_PACE_REST_NS);
}

/* It was kept from its core for a second: the CPU time that it had, not the time that went by, is a turn. */
static void waiting_for_a_core_is_no_work(void **state)
{
	tn_pace pace = tn_pace_begin(50 * MIB, 0, 0);

	(void)state;
	pace.bytes = MIB;
	assert_int_equal(tn_pace_rest(&pace, TN_NS_PER_SEC, TN_PACE_TURN_NS - 1), 0);
	assert_int_equal(tn_pace_rest(&pace, TN_NS_PER_SEC, TN_PACE_TURN_NS), TN_PACE_REST_NS);
	tn_pace_rested(&pace, TN_PACE_TURN_NS);
	assert_int_equal(tn_pace_rest(&pace, TN_NS_PER_SEC, TN_PACE_TURN_NS), 0);
}

static void without_a_rate_it_never_rests(void **state)
{
	played p = play(0, MIB, 1000, TN_NS_PER_MS, TN_NS_PER_SEC);

	(void)state;
	assert_int_equal(p.rested, 0);
}

/* Idle cores alone, until that is too little; then like others, until it has caught up. */
static void it_stands_back_while_that_is_enough(void **state)
{
	tn_pace pace = tn_pace_begin(MIB, 0, 0);

	(void)state;
	pace.bytes = MIB; /* due after a second */
	assert_true(tn_pace_back(&pace, true, 0));
	assert_true(tn_pace_back(&pace, true, TN_NS_PER_SEC + TN_PACE_BEHIND_NS - 1));
	assert_false(tn_pace_back(&pace, true, TN_NS_PER_SEC + TN_PACE_BEHIND_NS));
	assert_false(tn_pace_back(&pace, false, TN_NS_PER_SEC + TN_PACE_BEHIND_NS));
	assert_false(tn_pace_back(&pace, false, TN_NS_PER_SEC + 1));
	assert_true(tn_pace_back(&pace, false, TN_NS_PER_SEC));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_rate_is_kept_within_a_moment),
		cmocka_unit_test(a_turn_ends_in_a_rest),
		cmocka_unit_test(who_is_behind_rests_little),
		cmocka_unit_test(waiting_for_a_core_is_no_work),
		cmocka_unit_test(without_a_rate_it_never_rests),
		cmocka_unit_test(it_stands_back_while_that_is_enough),
	};

	return RUN(tests);
}
