/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/log.h: levels per component, the form of a line, and the rate limit.
 */
#include "base/log.h"

#include <string.h>

#include "base/fail.h"
#include "cmocka_all.h"

static char line[2048];
static int lines;

static void sink(tn_log_level level, const char *text, size_t bytes, void *arg)
{
	(void)level, (void)arg;
	lines++;
	memcpy(line, text, bytes);
	line[bytes] = 0;
}

static int setup(void **state)
{
	(void)state;
	lines = 0;
	line[0] = 0;
	tn_log_set_sink(sink, NULL);
	tn_log_set_thread_name("");
	assert_ok(tn_log_apply("warn"));
	return 0;
}

static void levels_are_per_component(void **state)
{
	(void)state;
	TN_LOG(INFO, LINK, "off");
	assert_int_equal(lines, 0);
	assert_ok(tn_log_apply("error,link=debug"));
	TN_LOG(DEBUG, LINK, "on %d", 1);
	TN_LOG(WARN, SHM, "off");
	assert_int_equal(lines, 1);
	assert_true(TN_LOG_ON(ERROR, SHM));
	assert_false(TN_LOG_ON(TRACE, LINK));
	assert_ok(tn_log_apply("none"));
	TN_LOG(ERROR, LINK, "off");
	assert_int_equal(lines, 1);
}

static void a_line_names_level_component_and_thread(void **state)
{
	(void)state;
	TN_LOG(WARN, TCP, "text %s", "here");
	assert_non_null(strstr(line, " W tcp: text here\n"));
	tn_log_set_thread_name("worker 3");
	TN_LOG(ERROR, TCP, "x");
	assert_non_null(strstr(line, " E tcp worker 3: x\n"));
}

static void a_long_line_is_cut(void **state)
{
	char text[4000];

	(void)state;
	memset(text, 'y', sizeof(text));
	text[sizeof(text) - 1] = 0;
	TN_LOG(WARN, BASE, "%s", text);
	assert_int_equal(lines, 1);
	assert_true(strlen(line) < 1024);
	assert_int_equal(line[strlen(line) - 1], '\n');
}

static void mistakes_are_explained_and_change_nothing(void **state)
{
	(void)state;
	assert_status(tn_log_apply("debug,link=loud"), TERN_E_OPTION);
	assert_non_null(strstr(tern_detail(), "loud"));
	assert_status(tn_log_apply("lnk=debug"), TERN_E_OPTION);
	assert_false(TN_LOG_ON(INFO, LINK));
	assert_ok(tn_log_apply(""));
}

static void the_rate_is_limited(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++)
		TN_LOG_LIMITED(WARN, SHM, 2, "again");
	/* the loop may cross into a second window, on a slow machine into a third */
	assert_in_range(lines, 2, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(levels_are_per_component, setup),
		cmocka_unit_test_setup(a_line_names_level_component_and_thread, setup),
		cmocka_unit_test_setup(a_long_line_is_cut, setup),
		cmocka_unit_test_setup(mistakes_are_explained_and_change_nothing, setup),
		cmocka_unit_test_setup(the_rate_is_limited, setup),
	};

	return RUN(tests);
}
