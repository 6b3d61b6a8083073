/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of providers and the default ops. What providers do is tested by tests/conformance.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/transport.h"

static void lists_each_provider_once(void **state)
{
	const tn_provider *const *all = tn_providers();
	unsigned n = 0;

	(void)state;
	for (; all[n]; n++) {
		assert_non_null(all[n]->name);
		assert_non_null(all[n]->probe);
		assert_non_null(all[n]->open);
		assert_ptr_equal(tn_provider_find(all[n]->name), all[n]);
	}
	assert_true(n >= 1);
#ifdef TN_HAVE_LOOP
	/* loop reaches nobody else: it must never win by itself. */
	assert_string_equal(all[n - 1]->name, "loop");
#endif
}

static void unknown_names_find_nothing(void **state)
{
	(void)state;
	assert_null(tn_provider_find("carrier-pigeon"));
	assert_null(tn_provider_find(""));
	assert_null(tn_provider_find(NULL));
}

/* Every entry of an ops table is a function; a provider that forgets one inherits the default. */
static void no_entry_is_null(void **state)
{
	const void *const *entries = (const void *const *)(const void *)&tn_dummy_ops;

	(void)state;
	for (size_t i = 0; i < sizeof(tn_dummy_ops) / sizeof(void *); i++)
		assert_non_null(entries[i]);
}

static void counter_seen(const char *name, uint64_t value, void *arg)
{
	(void)name;
	(void)value;
	++*(int *)arg;
}

static void defaults_answer_unsupported(void **state)
{
	static const tn_provider none = {.name = "none"};
	tn_dev dev = {.ops = &tn_dummy_ops, .provider = &none};
	tn_lane lane = {.dev = &dev}, *made = &lane;
	const tn_lane_params params = {0};
	tn_blob blob = {.length = 7};
	tn_dev_caps caps;
	tn_event event;
	tn_wr wr = {0};
	bool done = true;
	int counters = 0;

	(void)state;
	memset(&caps, 0xff, sizeof(caps));
	tn_dummy_ops.caps(&dev, &caps);
	assert_int_equal(caps.flags, 0);
	tn_dummy_ops.address(&dev, &blob);
	assert_int_equal(blob.length, 0);
	assert_int_equal(tn_dummy_ops.reach(&dev, &blob), TERN_E_UNSUPPORTED);
	assert_int_equal(tn_dev_poll(&dev, &event, 1), 0);
	assert_int_equal(tn_dummy_ops.arm(&dev), TERN_E_UNSUPPORTED);
	assert_int_equal(tn_dummy_ops.fd(&dev), -1);
	assert_int_equal(tn_dummy_ops.lane_create(&dev, &params, &made, &blob), TERN_E_UNSUPPORTED);
	assert_null(made);
	assert_int_equal(tn_dummy_ops.lane_connect(&lane, &blob, &blob), TERN_E_UNSUPPORTED);
	assert_true(tn_dummy_ops.lane_drained(&lane));
	assert_int_equal(tn_lane_write(&lane, &wr), TERN_E_UNSUPPORTED);
	assert_int_equal(tn_lane_write_imm(&lane, &wr), TERN_E_UNSUPPORTED);
	assert_int_equal(tn_lane_read(&lane, &wr), TERN_E_UNSUPPORTED);
	assert_int_equal(tn_lane_send(&lane, NULL, 0, 1, &done), TERN_E_UNSUPPORTED);
	assert_false(done);
	assert_non_null(strstr(tern_detail(), "none")); /* the text names the provider */
	tn_dummy_ops.lane_break(&lane);
	tn_dummy_ops.lane_close(&lane);
	tn_dummy_ops.lane_destroy(&lane);
	tn_dummy_ops.flush(&lane);
	tn_dummy_ops.recv_done(&dev, &event);
	tn_dummy_ops.counters(&dev, counter_seen, &counters);
	tn_dummy_ops.close(&dev);
	assert_int_equal(counters, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_each_provider_once),
		cmocka_unit_test(unknown_names_find_nothing),
		cmocka_unit_test(no_entry_is_null),
		cmocka_unit_test(defaults_answer_unsupported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
