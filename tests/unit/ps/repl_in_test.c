/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backup takes and what it refuses, frame by frame: two servers, of which 0 is the primary of slot 7 and this one, 1, is
 * its backup since epoch 9. The rest of what it does is seen under tests/unit/ps/repl_sim.
 */
#include <string.h>

#include "cmocka_all.h"
#include "ps/repl_in.h"
#include "ps/steps.h"

#define SLOT  7u
#define EPOCH 9u

static tn_cl_map map;
static tn_repl_in in;
static uint64_t seq;

static void each(void *arg, void (*fn)(struct ps_share *share, void *fn_arg), void *fn_arg)
{
	(void)arg, (void)fn, (void)fn_arg; /* there are no tables */
}

static int begin(void **state)
{
	(void)state;
	tn_repl_in_init(&in);
	seq = 0;
	tn_cl_map_spread(&map, 5, 2, 2);
	map.slot[SLOT] = (tn_cl_slot){.primary = 0, .backup = 1, .next = TN_CL_NONE, .epoch = EPOCH};
	return 0;
}

static int end(void **state)
{
	(void)state;
	tn_repl_in_fini(&in);
	return 0;
}

typedef struct said {
	tn_repl_kind kind;
	uint32_t epoch;
} said;

/* A frame of server 0 that says these things of the slot. */
static tn_repl_answer tell(const said *what, unsigned n)
{
	static tn_steps steps = {.lock = PTHREAD_MUTEX_INITIALIZER};
	static const tn_repl_store store = {.each = each, .steps = &steps};
	const tn_repl_head head = {.from = 0, .stream = 3, .seq = ++seq, .map_version = 5};
	tn_repl_answer answer;
	tn_repl_buf b = {0};

	assert_true(tn_repl_buf_start(&b));
	tn_repl_head_encode(b.at, &head);
	for (unsigned i = 0; i < n; i++) {
		const tn_repl_entry e = {.kind = what[i].kind, .item_bytes = 8};

		assert_true(tn_repl_entry_open(&b, &e));
		tn_repl_slot_encode(tn_repl_item(&b), SLOT, what[i].epoch);
		tn_repl_entry_close(&b);
	}
	assert_true(tn_repl_in_apply(&in, &store, &map, 1, b.at, b.used, &answer));
	tn_repl_buf_free(&b);
	return answer;
}

static void a_copy_is_taken(void **state)
{
	static const said what[] = {{TN_REPL_BEGIN, EPOCH}, {TN_REPL_SYNCED, EPOCH}};

	(void)state;
	assert_int_equal(tell(what, 2).verdict, TN_REPL_DONE);
	assert_int_equal(in.from[SLOT], 0);
	assert_int_equal(in.epoch[SLOT], EPOCH);
}

static void an_older_copy_is_refused(void **state)
{
	static const said begin_old[] = {{TN_REPL_BEGIN, EPOCH - 1}},
			  end_old[] = {{TN_REPL_SYNCED, EPOCH - 1}};
	tn_repl_answer answer = tell(begin_old, 1);

	(void)state;
	assert_int_equal(answer.verdict, TN_REPL_PARTIAL);
	assert_true(tn_ps_slots_has(&answer.refused, SLOT));
	answer = tell(end_old, 1);
	assert_true(tn_ps_slots_has(&answer.refused, SLOT));
}

/* The primary takes what is refused for a sign that it is the primary no more: the slot would be frozen for good. */
static void the_end_of_an_older_copy_does_not_harm_the_next_one(void **state)
{
	static const said what[] = {{TN_REPL_SYNCED, EPOCH - 1}, {TN_REPL_BEGIN, EPOCH}};
	tn_repl_answer answer = tell(what, 2);

	(void)state;
	assert_false(tn_ps_slots_has(&answer.refused, SLOT));
	assert_int_equal(in.epoch[SLOT], EPOCH);
}

static void one_that_has_all_is_not_asked_for_more(void **state)
{
	static const said what[] = {{TN_REPL_SYNCED, EPOCH - 1}, {TN_REPL_ADOPT, EPOCH}};
	tn_repl_answer answer = tell(what, 2);

	(void)state;
	assert_true(tn_ps_slots_has(&answer.refused, SLOT)); /* the map does not call it in sync */
	map.slot[SLOT].flags |= TN_CL_IN_SYNC;
	answer = tell(what, 2);
	assert_false(tn_ps_slots_has(&answer.refused, SLOT));
}

/* What is refused behind the beginning is of this copy. */
static void what_is_refused_of_this_copy_stays_refused(void **state)
{
	static const said what[] = {{TN_REPL_BEGIN, EPOCH}, {TN_REPL_SYNCED, EPOCH - 1}};
	tn_repl_answer answer = tell(what, 2);

	(void)state;
	assert_int_equal(answer.verdict, TN_REPL_PARTIAL);
	assert_true(tn_ps_slots_has(&answer.refused, SLOT));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_copy_is_taken, begin, end),
		cmocka_unit_test_setup_teardown(an_older_copy_is_refused, begin, end),
		cmocka_unit_test_setup_teardown(the_end_of_an_older_copy_does_not_harm_the_next_one, begin,
						end),
		cmocka_unit_test_setup_teardown(one_that_has_all_is_not_asked_for_more, begin, end),
		cmocka_unit_test_setup_teardown(what_is_refused_of_this_copy_stays_refused, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
