/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/options.h: sources and their order, units, ranges, slips.
 */
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/fault.h"
#include "base/log.h"
#include "cmocka_all.h"

static const tn_option_row rows[] = {
	{.layer = "unit",
	 .name = "window_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "16MiB",
	 .min = 4096,
	 .max = 1ull << 40,
	 .help = "h"},
	{.layer = "unit", .name = "spin", .type = TN_OPT_DURATION, .dflt = "20us", .max = 1000000000},
	{.layer = "unit", .name = "count", .type = TN_OPT_U64, .dflt = "3", .min = 1},
	{.layer = "unit", .name = "on", .type = TN_OPT_BOOL},
	{.layer = "unit", .name = "mode", .type = TN_OPT_ENUM, .choices = "auto|fast|slow"},
	{.layer = "unit", .name = "text", .type = TN_OPT_STRING, .dflt = "d"},
	{.layer = "unit", .name = "secret", .type = TN_OPT_STRING, .secret = true, .env = "TERN_UNIT_HIDDEN"},
	{0},
};
TN_OPTION_TABLE(unit, rows)

static char logged[4096];

static void sink(tn_log_level level, const char *line, size_t bytes, void *arg)
{
	(void)level, (void)arg;
	strncat(logged, line, TN_MIN(bytes, sizeof(logged) - strlen(logged) - 1));
}

static int setup(void **state)
{
	static const char *const names[] = {
		"TERN_UNIT_WINDOW_BYTES", "TERN_UNIT_COUNT", "TERN_UNIT_MODE", "TERN_UNIT_HIDDEN",
		"TERN_UNIT_ON",           "TERN_LOG_LEVEL",  "TERN_CHECK",     "TERN_BASE_FAULT"};

	(void)state;
	for (size_t i = 0; i < TN_COUNT_OF(names); i++)
		unsetenv(names[i]);
	return 0;
}

static tn_options *load(const char *const *pairs)
{
	tn_options *options;

	assert_ok(tn_options_load(pairs, &options));
	return options;
}

static void defaults_hold_without_a_snapshot_too(void **state)
{
	tn_options *both[2] = {NULL, load(NULL)};

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tn_opt_u64(both[i], rows, "window_bytes"), 16 << 20);
		assert_int_equal(tn_opt_u64(both[i], rows, "spin"), 20000);
		assert_int_equal(tn_opt_u64(both[i], rows, "count"), 3);
		assert_false(tn_opt_bool(both[i], rows, "on"));
		assert_int_equal(tn_opt_enum(both[i], rows, "mode"), 0);
		assert_string_equal(tn_opt_string(both[i], rows, "text"), "d");
		assert_string_equal(tn_opt_string(both[i], rows, "secret"), "");
		assert_int_equal(tn_opt_source_of(both[i], rows, "count"), TN_OPT_DEFAULT);
	}
	tn_options_free(both[1]);
}

static void pairs_win_over_the_environment(void **state)
{
	const char *const pairs[] = {"unit.count=9", "unit.text=a=b", NULL};
	tn_options *options;

	(void)state;
	setenv("TERN_UNIT_COUNT", "7", 1);
	setenv("TERN_UNIT_MODE", "slow", 1);
	setenv("TERN_UNIT_ON", "yes", 1);
	setenv("TERN_UNIT_WINDOW_BYTES", "1.5 MiB", 1);
	options = load(pairs);
	assert_int_equal(tn_opt_u64(options, rows, "count"), 9);
	assert_int_equal(tn_opt_source_of(options, rows, "count"), TN_OPT_SET);
	assert_int_equal(tn_opt_enum(options, rows, "mode"), 2);
	assert_int_equal(tn_opt_source_of(options, rows, "mode"), TN_OPT_ENV);
	assert_true(tn_opt_bool(options, rows, "on"));
	assert_int_equal(tn_opt_u64(options, rows, "window_bytes"), 3 << 19);
	assert_string_equal(tn_opt_string(options, rows, "text"), "a=b");
	tn_options_free(options);
}

static void expect_error(const char *pair, const char *words)
{
	const char *const pairs[] = {pair, NULL};
	tn_options *options;

	assert_status(tn_options_load(pairs, &options), TERN_E_OPTION);
	assert_null(options);
	if (!strstr(tern_detail(), words))
		fail_msg("'%s' does not contain '%s'", tern_detail(), words);
}

static void mistakes_name_the_remedy(void **state)
{
	char pair[400];

	(void)state;
	expect_error("unit.window_bytes=1KiB", "4 KiB to 1 TiB");
	expect_error("unit.spin=5", "with its unit");
	expect_error("unit.spin=2s", "0 ns to 1 s");
	expect_error("unit.count=0", "1 or more");
	expect_error("unit.count=x", "whole number");
	expect_error("unit.count=18446744073709551616", "whole number");
	expect_error("unit.on=maybe", "true or false");
	expect_error("unit.mode=quick", "auto|fast|slow");
	expect_error("unit.windw_bytes=1", "did you mean unit.window_bytes?");
	expect_error("quite.another=1", "none of that name");
	expect_error("unit.count", "layer.name=value");
	snprintf(pair, sizeof(pair), "unit.text=%0*d", 300, 0);
	expect_error(pair, "longer than 255");
	setenv("TERN_UNIT_COUNT", "many", 1);
	expect_error("unit.on=1", "TERN_UNIT_COUNT=many");
}

static void a_secret_is_not_shown(void **state)
{
	tn_option_view view;
	tn_options *options;
	bool found = false;

	(void)state;
	setenv("TERN_UNIT_HIDDEN", "s3cret", 1);
	options = load(NULL);
	assert_string_equal(tn_opt_string(options, rows, "secret"), "s3cret");
	for (unsigned i = 0; tn_options_view(options, i, &view); i++) {
		assert_null(strstr(view.value, "s3cret"));
		found |= strcmp(view.name, "unit.secret") == 0 && strcmp(view.env, "TERN_UNIT_HIDDEN") == 0 &&
			 strcmp(view.value, "(set)") == 0 && view.source == TN_OPT_ENV;
	}
	assert_true(found);
	tn_options_free(options);
}

static void rows_are_listed_in_order(void **state)
{
	tn_option_view view;
	tn_options *options = load(NULL);
	char before[64] = "";
	unsigned n = 0;

	(void)state;
	for (; tn_options_view(options, n, &view); n++) {
		assert_true(strcmp(before, view.name) < 0);
		strcpy(before, view.name);
		if (strcmp(view.name, "unit.mode") == 0) {
			assert_string_equal(view.env, "TERN_UNIT_MODE");
			assert_string_equal(view.dflt, "auto");
			assert_string_equal(view.value, "auto");
			assert_string_equal(tn_opt_type_name(view.row->type), "enum");
			assert_string_equal(tn_opt_source_name(view.source), "default");
		}
	}
	assert_int_equal(n, TN_COUNT_OF(rows) - 1 + 3);
	tn_options_free(options);
}

static void unknown_variables_warn_once(void **state)
{
	(void)state;
	tn_log_set_sink(sink, NULL);
	setenv("TERN_UNIT_COUMT", "1", 1);
	tn_options_free(load(NULL));
	assert_non_null(strstr(logged, "TERN_UNIT_COUMT"));
	assert_non_null(strstr(logged, "did you mean TERN_UNIT_COUNT?"));
	logged[0] = 0;
	tn_options_free(load(NULL));
	assert_string_equal(logged, "");
	unsetenv("TERN_UNIT_COUMT");
	tn_log_set_sink(NULL, NULL);
}

static void base_options_are_applied(void **state)
{
	(void)state;
	setenv("TERN_LOG_LEVEL", "error,link=trace", 1);
	setenv("TERN_CHECK", "2", 1);
	setenv("TERN_BASE_FAULT", "unit.x:1", 1);
	assert_ok(tn_base_apply(NULL));
	assert_true(TN_LOG_ON(TRACE, LINK));
	assert_int_equal(tn_check_level, 2);
	assert_true(TN_FAULT("unit.x"));
	tn_fault_clear();
	setenv("TERN_BASE_FAULT", "unit.x", 1);
	assert_status(tn_base_apply(NULL), TERN_E_OPTION);
	setup(NULL);
	assert_ok(tn_base_apply(NULL));
	assert_false(TN_LOG_ON(INFO, LINK));
}

static void values_are_parsed(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} bytes[] = {{"0", 0},
		     {"12", 12},
		     {"64k", 65536},
		     {"64 KiB", 65536},
		     {"1.5MiB", 3 << 19},
		     {"2GB", 2000000000},
		     {"1tib", 1ull << 40}},
	  times[] = {{"0", 0},           {"1ns", 1},           {"2.5us", 2500},
		     {"10ms", 10000000}, {"1.5s", 1500000000}, {"2m", 120000000000}};
	static const char *const bad[] = {
		"", "-1", "1x", "1.MiB", ".5k", "0x10", "1 2", "99999999999TiB", "1.1234567891k"};
	uint64_t value;
	char buf[32];

	(void)state;
	for (size_t i = 0; i < TN_COUNT_OF(bytes); i++) {
		assert_true(tn_parse_bytes(bytes[i].text, &value));
		assert_int_equal(value, bytes[i].value);
	}
	for (size_t i = 0; i < TN_COUNT_OF(times); i++) {
		assert_true(tn_parse_duration(times[i].text, &value));
		assert_int_equal(value, times[i].value);
	}
	for (size_t i = 0; i < TN_COUNT_OF(bad); i++) {
		assert_false(tn_parse_bytes(bad[i], &value));
		assert_false(tn_parse_duration(bad[i], &value));
	}
	assert_string_equal(tn_format_bytes(0, buf, sizeof(buf)), "0 B");
	assert_string_equal(tn_format_bytes(1536, buf, sizeof(buf)), "1.5 KiB");
	assert_string_equal(tn_format_bytes(UINT64_MAX, buf, sizeof(buf)), "16 EiB");
	assert_string_equal(tn_format_duration(1500000, buf, sizeof(buf)), "1.5 ms");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(unknown_variables_warn_once, setup),
		cmocka_unit_test_setup(defaults_hold_without_a_snapshot_too, setup),
		cmocka_unit_test_setup(pairs_win_over_the_environment, setup),
		cmocka_unit_test_setup(mistakes_name_the_remedy, setup),
		cmocka_unit_test_setup(a_secret_is_not_shown, setup),
		cmocka_unit_test_setup(rows_are_listed_in_order, setup),
		cmocka_unit_test_setup(base_options_are_applied, setup),
		cmocka_unit_test_setup(values_are_parsed, setup),
	};

	return RUN(tests);
}
