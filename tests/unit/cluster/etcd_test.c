/* SPDX-License-Identifier: Apache-2.0 */
/*
 * etcd, a real one: base64, leases that end, compare-and-swap with two that want to, deaths that are none. Skipped where
 * there is no etcd; ./dev installs it.
 */
#include "etcd_world.h"

#include "base/rand.h"

static void base64(void **state)
{
	tn_rand rand = {3};
	uint8_t data[64], *back;
	uint64_t n;
	char *text;

	(void)state;
	for (unsigned i = 0; i < 2000; i++) {
		uint64_t bytes = tn_rand_below(&rand, sizeof(data));

		for (unsigned k = 0; k < sizeof(data); k++)
			data[k] = (uint8_t)tn_rand_next(&rand);
		text = tn_base64(data, bytes);
		assert_int_equal(strlen(text), (bytes + 2) / 3 * 4);
		back = tn_unbase64(text, &n);
		assert_int_equal(n, bytes);
		assert_memory_equal(back, data, bytes);
		free(back);
		if (bytes) {
			text[tn_rand_below(&rand, strlen(text))] = '!';
			assert_null(tn_unbase64(text, &n));
		}
		free(text);
	}
	text = tn_base64("Man", 3);
	assert_string_equal(text, "TWFu");
	free(text);
	assert_null(tn_unbase64("abc", &n));
	assert_null(tn_unbase64("ab==abcd", &n));
}

static void addresses(void **state)
{
	static const char *const bad[] = {"http://a:1", "etcd:", "etcd:ftp://a", "etcd:a:1",
					  "etcd:http://a:1,b:2"};
	tn_etcd kv;

	(void)state;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_status(tn_etcd_open(&kv, bad[i], 1), TERN_E_INVALID);
	assert_ok(tn_etcd_open(&kv, "etcd:http://a:1,http://b:2/job/7", 1));
	assert_int_equal(kv.urls, 2);
	assert_string_equal(kv.url[1], "http://b:2");
	assert_string_equal(kv.prefix, "/job/7");
	tn_etcd_close(&kv);
}

static void swaps_and_leases(void **state)
{
	uint64_t lease, ttl, other = 99;
	char address[160];
	tn_etcd_state s;
	tn_etcd kv;

	(void)state;
	/* the first does not answer: the second is asked */
	snprintf(address, sizeof(address), "etcd:http://127.0.0.1:1,%s/swaps", etcd_address + 5);
	assert_ok(tn_etcd_open(&kv, address, 5000000000));
	assert_ok(tn_etcd_read(&kv, &s));
	assert_int_equal(s.revision, 0);
	assert_int_equal(s.member_count, 0);
	tn_etcd_state_free(&s);
	assert_ok(tn_etcd_swap(&kv, 0, NULL, 0, "one", 3));
	assert_status(tn_etcd_swap(&kv, 0, NULL, 0, "two", 3), TERN_AGAIN); /* somebody was first */
	assert_ok(tn_etcd_grant(&kv, 1, &lease, &ttl));
	assert_true(ttl >= 1);
	assert_ok(tn_etcd_member(&kv, 0xabcdef0123456789ull, lease, 3));
	assert_ok(tn_etcd_member(&kv, 7, lease, 2));
	assert_ok(tn_etcd_read(&kv, &s));
	assert_int_equal(s.blob_bytes, 3);
	assert_memory_equal(s.blob, "one", 3);
	assert_int_equal(s.member_count, 2);
	assert_true(s.members[0] == 7 && s.members[1] == 0xabcdef0123456789ull);
	assert_status(tn_etcd_swap(&kv, s.revision, s.members, 1, "three", 5),
		      TERN_AGAIN); /* it is not dead */
	assert_ok(tn_etcd_swap(&kv, s.revision, &other, 1, "three", 5));
	tn_etcd_state_free(&s);
	assert_ok(tn_etcd_keep(&kv, lease, &ttl));
	assert_true(ttl > 0);
	assert_ok(tn_etcd_revoke(&kv, lease));
	assert_ok(tn_etcd_keep(&kv, lease, &ttl));
	assert_int_equal(ttl, 0);
	assert_ok(tn_etcd_read(&kv, &s));
	assert_int_equal(s.member_count, 0);
	assert_memory_equal(s.blob, "three", 5);
	tn_etcd_state_free(&s);
	tn_etcd_close(&kv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(base64), cmocka_unit_test(addresses),
					   cmocka_unit_test(swaps_and_leases)};
	int failed;

	if (!etcd_there()) {
		printf("skipped: /usr/bin/etcd is missing (apt-get install etcd-server)\n");
		return 77;
	}
	etcd_start();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	etcd_stop();
	return failed;
}
