/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/json.h: the text that comes out, escapes, and running out of memory.
 */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "cmocka_all.h"

static char *document(int indent)
{
	tn_str out;
	tn_json json;

	tn_str_init(&out);
	tn_json_init(&json, &out, indent);
	tn_json_object(&json);
	tn_json_key(&json, "a");
	tn_json_u64(&json, UINT64_MAX);
	tn_json_key(&json, "b");
	tn_json_array(&json);
	tn_json_i64(&json, -3);
	tn_json_double(&json, 0.25);
	tn_json_double(&json, NAN);
	tn_json_bool(&json, true);
	tn_json_end_array(&json);
	tn_json_key(&json, "c");
	tn_json_object(&json);
	tn_json_end_object(&json);
	tn_json_key(&json, "d");
	tn_json_string(&json, NULL);
	tn_json_end_object(&json);
	return tn_str_take(&out);
}

static void one_line_and_indented(void **state)
{
	char *text = document(0);

	(void)state;
	assert_string_equal(text, "{\"a\": 18446744073709551615, \"b\": [-3, 0.25, null, true], \"c\": {}, "
				  "\"d\": null}");
	free(text);
	text = document(2);
	assert_string_equal(text,
			    "{\n  \"a\": 18446744073709551615,\n  \"b\": [\n    -3,\n    0.25,\n    null,\n"
			    "    true\n  ],\n  \"c\": {},\n  \"d\": null\n}");
	free(text);
}

static void expect_json(const char *in, const char *expected)
{
	tn_str out;
	tn_json json;
	char *text;

	tn_str_init(&out);
	tn_json_init(&json, &out, 0);
	tn_json_string(&json, in);
	text = tn_str_take(&out);
	assert_string_equal(text, expected);
	free(text);
}

static void strings_are_escaped(void **state)
{
	(void)state;
	expect_json("", "\"\"");
	expect_json("a\"b\\c\n\t\x01", "\"a\\\"b\\\\c\\n\\t\\u0001\"");
	expect_json("h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xa6", "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xa6\"");
	/* a stray continuation byte, a cut sequence, an overlong one, a surrogate */
	expect_json("\x80", "\"\xef\xbf\xbd\"");
	expect_json("\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"");
	expect_json("\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\"");
	expect_json("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void long_strings_grow(void **state)
{
	tn_str str;
	char *text;

	(void)state;
	tn_str_init(&str);
	for (int i = 0; i < 5000; i++)
		tn_str_addf(&str, "%04d ", i);
	assert_int_equal(str.length, 25000);
	text = tn_str_take(&str);
	assert_memory_equal(text + 24995, "4999 ", 6);
	free(text);
	text = tn_str_take(&str);
	assert_string_equal(text, "");
	free(text);
}

static void no_memory_is_sticky(void **state)
{
	(void)state;
	for (uint64_t n = 1; n < 4; n++) {
		tn_str str;
		char *text;

		tn_fault_clear();
		assert_ok(tn_fault_set("base.str.alloc", n, 1));
		tn_str_init(&str);
		for (int i = 0; i < 100; i++)
			tn_str_add(&str, "0123456789");
		text = tn_str_take(&str);
		assert_null(text);
	}
	tn_fault_clear();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_line_and_indented),
		cmocka_unit_test(strings_are_escaped),
		cmocka_unit_test(long_strings_grow),
		cmocka_unit_test(no_memory_is_sticky),
	};

	return RUN(tests);
}
