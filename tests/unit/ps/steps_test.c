/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what a server keeps of steps that are summed (ps/steps.h): one copy of each slot of a push, in whatever pieces it comes;
 * what is closed is refused; a closing in shares, and one that could not go on, sums once; slots that go take theirs along.
 */
#include "ps/steps.h"

#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "ps/server.h"

#define LIFE 7u
#define KEYS 40u

static tn_steps steps;
static ps_share *share;

static int begin(void **state)
{
	tern_table_schema schema = {.name = "t", .dim = 1};

	(void)state;
	tn_steps_init(&steps);
	return tn_ps_share_new(NULL, &schema, &share) != TERN_OK;
}

static int end(void **state)
{
	(void)state;
	tn_ps_share_put(share);
	tn_steps_fini(&steps);
	return 0;
}

/* Keys first .. first + n - 1, each with this value. */
static tern_status stage(uint64_t member, uint64_t seq, uint64_t step, uint64_t first, uint64_t n,
			 float value, tn_ps_slots *fresh)
{
	uint64_t keys[KEYS];
	float rows[KEYS];
	tn_ps_stage s = {.dtype = TERN_F32,
			 .life = LIFE,
			 .member = member,
			 .step = step,
			 .seq = seq,
			 .table = share->id,
			 .schema = share->hash,
			 .count = n,
			 .keys = (const uint8_t *)keys,
			 .rows = (const uint8_t *)rows,
			 .row_bytes = n * sizeof(rows[0])};
	tn_ps_slots slots;

	for (uint64_t i = 0; i < n; i++) {
		keys[i] = first + i;
		rows[i] = value;
	}
	tn_steps_slots_of(s.keys, n, &slots);
	return tn_steps_stage(&steps, &s, &slots, 1 << 20, fresh);
}

static tn_ps_slots slots_of(uint64_t first, uint64_t n)
{
	tn_ps_slots slots = {{0}};

	for (uint64_t i = first; i < first + n; i++)
		tn_ps_slots_add(&slots, tn_table_slot(i));
	return slots;
}

static tn_ps_close closing(uint64_t step)
{
	return (tn_ps_close){.life = LIFE, .step = step, .senders = 2, .sender = {1, 2}};
}

/* One share of it; false: there was nothing to do. */
static bool close_some(uint64_t step, const tn_ps_slots *may, uint64_t bytes, bool undo)
{
	tn_ps_close c = closing(step);
	tern_status told = TERN_OK;
	tn_steps_work w;

	assert_int_equal(tn_steps_take(&steps, &c, may, bytes, &w), TERN_OK);
	if (tn_ps_slots_none(&w.slots))
		return false;
	for (uint32_t at = 0, n; tn_steps_table(&w, &at, &n); at += n) {
		uint64_t *keys, count;

		assert_int_equal(tn_steps_sum(share, &w, w.items + at, n, &keys, &count, &told), TERN_OK);
		assert_int_equal(told, TERN_OK);
		free(keys);
	}
	if (undo)
		tn_steps_undo(&steps, &w);
	else
		tn_steps_done(&steps, &w, told);
	return true;
}

static float value_of(uint64_t key)
{
	tn_pull how = {.unknown = TERN_UNKNOWN_ZERO};
	tn_pull_result result;
	float value = -77;

	assert_int_equal(tn_table_pull(share->engine, &key, 1, &how, &value, NULL, NULL, &result), TERN_OK);
	return value;
}

static void a_push_is_kept_once_slot_by_slot(void **state)
{
	tn_ps_slots fresh, all;

	(void)state;
	memset(&all, 0xff, sizeof(all));
	assert_int_equal(stage(1, 0, 0, 0, 10, 1, &fresh), TERN_OK);
	assert_false(tn_ps_slots_none(&fresh));
	assert_int_equal(stage(1, 0, 0, 0, 10, 1, &fresh), TERN_OK); /* again */
	assert_true(tn_ps_slots_none(&fresh));
	assert_int_equal(stage(1, 0, 0, 5, 15, 1, &fresh), TERN_OK); /* in other pieces */
	assert_true(tn_ps_slots_has(&fresh, tn_table_slot(19)));
	assert_false(tn_ps_slots_has(&fresh, tn_table_slot(5)));
	assert_int_equal(stage(2, 0, 0, 0, 20, 10, &fresh), TERN_OK);  /* somebody else's */
	assert_int_equal(stage(3, 0, 0, 0, 20, 100, &fresh), TERN_OK); /* who is no sender */
	while (close_some(0, &all, 0, false))
		;
	for (uint64_t key = 0; key < 20; key++)
		assert_true(value_of(key) == 11);
	assert_int_equal(steps.bytes, 0);
}

static void a_closed_step_is_refused_where_it_is_closed(void **state)
{
	tn_ps_slots first = slots_of(0, 5), fresh, closed, all;

	(void)state;
	memset(&all, 0xff, sizeof(all));
	assert_int_equal(stage(1, 0, 3, 0, 10, 1, &fresh), TERN_OK);
	assert_true(close_some(3, &first, 0, false));
	assert_true(value_of(0) == 1 && value_of(9) == 0);
	assert_int_equal(stage(2, 0, 3, 0, 1, 1, &fresh), TERN_E_STATE);
	assert_int_equal(stage(2, 1, 3, 9, 1, 2, &fresh), TERN_OK);
	tn_steps_closed(&steps, LIFE, 3, &all, &closed);
	assert_memory_equal(&closed, &first, sizeof(first));
	assert_true(close_some(3, &all, 0, false));
	assert_true(value_of(0) == 1 && value_of(9) == 3);
	assert_false(close_some(3, &all, 0, false));
	assert_false(close_some(2, &all, 0, false));
	/* what comes while slots are being closed is too late for them */
	assert_int_equal(stage(1, 2, 4, 0, 1, 5, &fresh), TERN_OK);
	{
		tn_ps_close c = closing(4);
		tn_steps_work w;

		assert_int_equal(tn_steps_take(&steps, &c, &all, 0, &w), TERN_OK);
		assert_int_equal(stage(2, 2, 4, 1, 1, 7, &fresh), TERN_E_STATE);
		assert_int_equal(stage(2, 2, 5, 1, 1, 7, &fresh), TERN_OK);
		tn_steps_undo(&steps, &w);
	}
	assert_true(close_some(4, &all, 0, false));
	assert_true(value_of(0) == 6 && value_of(1) == 1);
}

static void shares_and_what_was_given_up_sum_once(void **state)
{
	tn_ps_slots all, fresh;
	unsigned shares = 0;

	(void)state;
	memset(&all, 0xff, sizeof(all));
	for (uint64_t step = 0; step < 20; step++) {
		assert_int_equal(stage(1, step, step, 0, KEYS, 1, &fresh), TERN_OK);
		assert_int_equal(stage(2, step, step, 0, KEYS, 2, &fresh), TERN_OK);
		assert_true(close_some(step, &all, 60, true)); /* it was summed, and has to be closed again */
		while (close_some(step, &all, 60, shares++ % 3 == 0))
			;
		for (uint64_t key = 0; key < KEYS; key++)
			assert_true(value_of(key) == 3.0f * (float)(step + 1));
	}
	assert_true(shares > 60);
	assert_int_equal(steps.bytes, 0);
}

/* A closing that is late: what it left, the next one has closed, or will. */
static void an_older_closing_closes_nothing(void **state)
{
	tn_ps_slots one = slots_of(0, 1), two = slots_of(1, 1), all, fresh;

	(void)state;
	memset(&all, 0xff, sizeof(all));
	assert_int_equal(stage(1, 0, 0, 0, 2, 1, &fresh), TERN_OK);
	assert_int_equal(stage(1, 1, 1, 0, 2, 10, &fresh), TERN_OK);
	assert_true(close_some(1, &one, 0, false));
	assert_true(value_of(0) == 11);
	assert_false(close_some(0, &two, 0, false));
	assert_true(value_of(1) == 0);
	assert_true(close_some(1, &two, 0, false));
	assert_true(value_of(1) == 11);
}

static bool count_closed(uint64_t life, uint64_t closed, tern_status status, const tn_ps_slots *slots,
			 void *arg)
{
	uint32_t *n = arg;

	assert_int_equal(life, LIFE);
	assert_int_equal(closed, 4);
	assert_int_equal(status, TERN_OK);
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		*n += tn_ps_slots_has(slots, s);
	return true;
}

static void slots_that_go_take_theirs_along(void **state)
{
	tn_ps_slots some = slots_of(0, 5), one = slots_of(0, 1), fresh;
	uint64_t life = 0, after = 0;
	const tn_piece *piece;
	uint32_t closed = 0, n = 0;

	(void)state;
	assert_int_equal(tn_steps_close(&steps, LIFE, 4, &some, TERN_OK), TERN_OK);
	assert_int_equal(stage(1, 0, 4, 0, 10, 1, &fresh), TERN_OK);
	assert_int_equal(stage(1, 1, 4, 5, 5, 1, &fresh), TERN_OK);
	assert_true(tn_steps_each_closed(&steps, &some, count_closed, &closed));
	assert_int_equal(closed, 5);
	while ((piece = tn_steps_next(&steps, after, &one, &life))) {
		after = piece->number;
		n++;
	}
	assert_int_equal(n, 1);
	tn_steps_drop_slots(&steps, &one);
	assert_null(tn_steps_next(&steps, 0, &one, &life));
	closed = 0;
	assert_true(tn_steps_each_closed(&steps, &some, count_closed, &closed));
	assert_int_equal(closed, 4);
	assert_int_equal(stage(1, 0, 0, 0, 1, 1, &fresh),
			 TERN_OK); /* it knows nothing of that slot any more */
	assert_false(tn_ps_slots_none(&fresh));
}

static void there_is_a_limit(void **state)
{
	tn_ps_slots all, fresh;
	uint64_t n = 0;

	(void)state;
	memset(&all, 0xff, sizeof(all));
	while (stage(1, n, 0, 0, KEYS, 1, &fresh) == TERN_OK)
		n++;
	assert_int_equal(stage(1, n, 0, 0, KEYS, 1, &fresh), TERN_E_LIMIT);
	assert_int_equal(n, (1u << 20) / (KEYS * 12));
	assert_true(close_some(0, &all, 0, false));
	assert_true(value_of(3) == (float)n);
	assert_int_equal(stage(1, n, 1, 0, KEYS, 1, &fresh), TERN_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_push_is_kept_once_slot_by_slot, begin, end),
		cmocka_unit_test_setup_teardown(a_closed_step_is_refused_where_it_is_closed, begin, end),
		cmocka_unit_test_setup_teardown(shares_and_what_was_given_up_sum_once, begin, end),
		cmocka_unit_test_setup_teardown(an_older_closing_closes_nothing, begin, end),
		cmocka_unit_test_setup_teardown(slots_that_go_take_theirs_along, begin, end),
		cmocka_unit_test_setup_teardown(there_is_a_limit, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
