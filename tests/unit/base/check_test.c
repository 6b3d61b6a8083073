/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/check.h: a broken invariant is reported once, dumps run, and the panic handler decides.
 */
#include "base/check.h"

#include <string.h>

#include "base/log.h"
#include "cmocka_all.h"

static char last[512];
static int panics, dumps;

static void remember(const char *report)
{
	panics++;
	strncpy(last, report, sizeof(last) - 1);
}

static void swallow(tn_log_level level, const char *line, size_t bytes, void *arg)
{
	(void)level, (void)line, (void)bytes, (void)arg;
}

static void dump(void *arg)
{
	dumps++;
	/* A dump that breaks an invariant itself must not start over. */
	if (arg)
		TN_ASSERT(dumps < 0);
}

static int setup(void **state)
{
	(void)state;
	panics = dumps = 0;
	last[0] = 0;
	tn_check_set_panic(remember);
	tn_log_set_sink(swallow, NULL);
	return 0;
}

static void a_true_expression_is_silent(void **state)
{
	(void)state;
	TN_ASSERT(1 + 1 == 2);
	TN_CHECK(1, true);
	assert_int_equal(panics, 0);
}

__attribute__((unused)) static void a_false_one_names_itself_and_its_operands(void **state)
{
	int a = 3, b = 2;

	(void)state;
	TN_ASSERT_MSG(a <= b, "a=%d b=%d", a, b);
	assert_int_equal(panics, 1);
	assert_non_null(strstr(last, "a <= b: a=3 b=2"));
	assert_non_null(strstr(last, "check_test.c:"));
}

static int evaluated(int *count)
{
	return ++*count;
}

__attribute__((unused)) static void levels_decide_what_is_evaluated(void **state)
{
	int count = 0;

	(void)state;
	tn_check_level = 1;
	TN_CHECK(1, evaluated(&count));
	TN_CHECK(2, evaluated(&count));
	assert_int_equal(count, 1);
	assert_false(TN_CHECK_ENABLED(2));
	tn_check_level = 3;
	TN_CHECK(2, evaluated(&count) < 0);
	assert_int_equal(count, 2);
	assert_int_equal(panics, 1);
	tn_check_level = 1;
}

__attribute__((unused)) static void hooks_dump_while_they_are_pushed(void **state)
{
	tn_dump_hook outer, inner;

	(void)state;
	tn_dump_push(&outer, dump, NULL);
	tn_dump_push(&inner, dump, NULL);
	TN_ASSERT(panics > 0);
	assert_int_equal(dumps, 2);
	tn_dump_pop(&inner);
	TN_ASSERT(panics > 5);
	assert_int_equal(dumps, 3);
	tn_dump_pop(&outer);
	TN_ASSERT(panics > 5);
	assert_int_equal(dumps, 3);
}

__attribute__((unused)) static void a_failing_dump_does_not_recurse(void **state)
{
	tn_dump_hook hook;

	(void)state;
	tn_dump_push(&hook, dump, &hook);
	TN_ASSERT(dumps > 100);
	assert_int_equal(dumps, 1);
	assert_int_equal(panics, 2);
	tn_dump_pop(&hook);
}

static void count_of_counts(void **state)
{
	int three[3];

	(void)state, (void)three;
	assert_int_equal(TN_COUNT_OF(three), 3);
}

/* Release builds neither evaluate nor report; the expression must still compile. */
static void release_builds_leave_checks_out(void **state)
{
	int count = 0;

	(void)state;
#if !TN_DEV_CHECKS
	TN_ASSERT(evaluated(&count) > 100);
	TN_CHECK(0, evaluated(&count) > 100);
	assert_int_equal(count, 0);
	assert_int_equal(panics, 0);
#else
	TN_ASSERT(evaluated(&count) == 1);
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(release_builds_leave_checks_out, setup),
		cmocka_unit_test_setup(a_true_expression_is_silent, setup),
#if TN_DEV_CHECKS
		cmocka_unit_test_setup(a_false_one_names_itself_and_its_operands, setup),
		cmocka_unit_test_setup(levels_decide_what_is_evaluated, setup),
		cmocka_unit_test_setup(hooks_dump_while_they_are_pushed, setup),
		cmocka_unit_test_setup(a_failing_dump_does_not_recurse, setup),
#endif
		cmocka_unit_test(count_of_counts),
	};

	return RUN(tests);
}
