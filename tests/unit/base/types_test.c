/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/types.c: what the public header says about element types and the version.
 */
#include <tern/types.h>

#include <stdio.h>

#include "cmocka_all.h"

static void element_types(void **state)
{
	(void)state;
	assert_int_equal(tern_dtype_bytes(TERN_F32), 4);
	assert_int_equal(tern_dtype_bytes(TERN_BF16), 2);
	assert_int_equal(tern_dtype_bytes(TERN_U64), 8);
	assert_int_equal(tern_dtype_bytes(TERN_BOOL), 1);
	assert_string_equal(tern_dtype_name(TERN_BF16), "bf16");
	for (int junk = -1; junk < 1000; junk += junk == 0 ? TERN_BOOL + 1 : 1) {
		assert_int_equal(tern_dtype_bytes((tern_dtype)junk), 0);
		assert_string_equal(tern_dtype_name((tern_dtype)junk), "?");
	}
}

static void version(void **state)
{
	char text[32];

	(void)state;
	snprintf(text, sizeof(text), "%d.%d.%d", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
	assert_string_equal(tern_version(), text);
	assert_string_equal(TERN_VERSION_STRING, text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(element_types),
		cmocka_unit_test(version),
	};

	return RUN(tests);
}
