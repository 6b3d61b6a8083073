/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/fail.h: texts, their bounds, and the table of status codes.
 */
#include "base/fail.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cmocka_all.h"

static void the_text_stays_until_the_next(void **state)
{
	(void)state;
	tn_detail_clear();
	assert_string_equal(tern_detail(), "");
	assert_int_equal(tn_fail(TERN_E_BUDGET, "%d bytes wanted, %d left", 7, 3), TERN_E_BUDGET);
	assert_string_equal(tern_detail(), "7 bytes wanted, 3 left");
	tn_detail_prefix("link to %s", "b");
	assert_string_equal(tern_detail(), "link to b: 7 bytes wanted, 3 left");
	tn_detail_clear();
	tn_detail_prefix("nothing to add to");
	assert_string_equal(tn_detail_get(), "");
}

static void errno_is_named_and_kept(void **state)
{
	(void)state;
	errno = EADDRINUSE;
	assert_int_equal(tn_fail_errno(TERN_E_IN_USE, "bind", "port %d", 80), TERN_E_IN_USE);
	assert_int_equal(errno, EADDRINUSE);
	assert_string_equal(tern_detail(), "bind: Address already in use (EADDRINUSE): port 80");
	errno = 99999;
	tn_fail_errno(TERN_E_OS, "call", "%s", "");
	assert_non_null(strstr(tern_detail(), "call: unknown error (?)"));
	errno = EPERM;
	tn_fail(TERN_E_OS, "x");
	assert_int_equal(errno, EPERM);
}

static void a_long_text_is_cut_and_says_so(void **state)
{
	char text[2 * TN_DETAIL_MAX];

	(void)state;
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = 0;
	tn_fail(TERN_E_OS, "%s", text);
	assert_int_equal(strlen(tern_detail()), TN_DETAIL_MAX - 1);
	assert_string_equal(tern_detail() + TN_DETAIL_MAX - 4, "...");
	tn_detail_prefix("a");
	assert_int_equal(strlen(tern_detail()), TN_DETAIL_MAX - 1);
	tn_detail_prefix("%s", text);
	assert_int_equal(strlen(tern_detail()), TN_DETAIL_MAX - 1);
	errno = EIO;
	tn_fail_errno(TERN_E_OS, "read", "%s", text);
	assert_int_equal(strlen(tern_detail()), TN_DETAIL_MAX - 1);
}

static void *other_thread(void *arg)
{
	tn_fail(TERN_E_OS, "theirs");
	strcpy(arg, tern_detail());
	return NULL;
}

static void each_thread_has_its_own(void **state)
{
	char theirs[TN_DETAIL_MAX] = "";
	pthread_t thread;

	(void)state;
	tn_fail(TERN_E_OS, "mine");
	assert_int_equal(pthread_create(&thread, NULL, other_thread, theirs), 0);
	pthread_join(thread, NULL);
	assert_string_equal(theirs, "theirs");
	assert_string_equal(tern_detail(), "mine");
}

static void codes_have_names_texts_and_a_radius(void **state)
{
	(void)state;
	assert_string_equal(tern_status_name(TERN_E_BOUNDS), "TERN_E_BOUNDS");
	assert_string_equal(tern_status_text(TERN_OK), "success");
	assert_int_equal(tern_status_radius(TERN_E_LANE), TERN_RADIUS_PATH);
	assert_int_equal(tern_status_radius(TERN_E_PEER_LOST), TERN_RADIUS_PEER);
	assert_int_equal(tern_status_radius(TERN_AGAIN), TERN_RADIUS_NONE);
	assert_string_equal(tern_status_name((tern_status)-999), "TERN_E_?");
	assert_int_equal(tern_status_radius((tern_status)-999), TERN_RADIUS_CALLER);
}

/* Numbers are ABI and go over the wire: no two codes share one, and groups keep to their range. */
static void numbers_are_unique(void **state)
{
	static const int numbers[] = {
#define NUMBER(name, number, radius, text) number,
		TERN_STATUS_MAP(NUMBER)
#undef NUMBER
	};

	(void)state;
	for (size_t i = 0; i < TN_COUNT_OF(numbers); i++)
		for (size_t j = i + 1; j < TN_COUNT_OF(numbers); j++)
			assert_int_not_equal(numbers[i], numbers[j]);
}

static void errnos_map(void **state)
{
	(void)state;
	assert_int_equal(tn_status_of_errno(0), TERN_OK);
	assert_int_equal(tn_status_of_errno(ECONNREFUSED), TERN_E_REFUSED);
	assert_int_equal(tn_status_of_errno(ENOMEM), TERN_E_NOMEM);
	assert_int_equal(tn_status_of_errno(EBADF), TERN_E_OS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_text_stays_until_the_next),
		cmocka_unit_test(errno_is_named_and_kept),
		cmocka_unit_test(a_long_text_is_cut_and_says_so),
		cmocka_unit_test(each_thread_has_its_own),
		cmocka_unit_test(codes_have_names_texts_and_a_radius),
		cmocka_unit_test(numbers_are_unique),
		cmocka_unit_test(errnos_map),
	};

	return RUN(tests);
}
