/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmocka with the headers that it wants before it, and what most tests need.
 * Threads: cmocka's asserts work in the main thread only; other threads report through variables.
 */
#ifndef TERN_TESTS_CMOCKA_ALL_H
#define TERN_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* TERN_TEST_ONLY=pattern: those whose name it matches. */
#define RUN(tests)                                                                              \
	(getenv("TERN_TEST_ONLY") ? cmocka_set_test_filter(getenv("TERN_TEST_ONLY")) : (void)0, \
	 cmocka_run_group_tests(tests, NULL, NULL))
#undef cmocka_run_group_tests_name
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                               \
	(getenv("TERN_TEST_ONLY") ? cmocka_set_test_filter(getenv("TERN_TEST_ONLY")) : (void)0, \
	 _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown))

/* Both operands and the detail text when a status is not the one expected. */
#define assert_status(expr, expected)                                                          \
	do {                                                                                   \
		tern_status status_ = (expr);                                                  \
		if (status_ != (expected))                                                     \
			fail_msg("%s: %s, expected %s (%s)", #expr, tern_status_name(status_), \
				 tern_status_name(expected), tern_detail());                   \
	} while (0)
#define assert_ok(expr) assert_status(expr, TERN_OK)

#endif
