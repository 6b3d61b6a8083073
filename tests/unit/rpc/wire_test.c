/* SPDX-License-Identifier: Apache-2.0 */
/* RPC messages: golden bytes, round trips, and everything malformed refused. */
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "rpc/wire.h"

static const uint8_t golden_request_bytes[TN_RPC_REQUEST_BYTES] = {
	1,    2,    0,    0,    0x44, 0x33, 0x22, 0x11, /* type, version, sinks; method */
	7,    0,    0,    0,    0,    0,    0,    0,    /* seq */
	0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab,
	0xac, 0xad, 0xae, 0xaf, 5,    0,    0,    0,    0,    0,    0,    0, /* mark */
	0x40, 0x42, 0x0f, 0,    0,    0,    0,    0,                         /* timeout */
	3,    0,    0,    0,    0,    0,    0,    0,                         /* bytes of arguments */
	9,    1,    0,    0,    8,    1,    0,    0,                         /* session, first */
	2,    1,    0,    0,    0,    0,    0,    0,                         /* class, flags, zero */
};

static void golden_request(void **state)
{
	tn_rpc_request_head head = {.method = 0x11223344,
				    .seq = 7,
				    .low_water = 5,
				    .timeout_ns = 1000000,
				    .args_bytes = 3,
				    .session = 0x109,
				    .first = 0x108,
				    .service_class = TERN_RPC_BULK,
				    .flags = TN_RPC_IDEMPOTENT};
	uint8_t out[TN_RPC_REQUEST_BYTES_MAX];

	(void)state;
	for (unsigned i = 0; i < 16; i++)
		head.client.bytes[i] = (uint8_t)(0xa0 + i);
	assert_int_equal(tn_rpc_request_encode(out, &head, NULL), TN_RPC_REQUEST_BYTES);
	assert_memory_equal(out, golden_request_bytes, TN_RPC_REQUEST_BYTES);
	memset(out, 0x55, sizeof(out));
	tn_rpc_request_encode_head(out, &head);
	assert_memory_equal(out, golden_request_bytes, TN_RPC_REQUEST_BYTES);
}

static void golden_replies(void **state)
{
	static const uint8_t response[32] = {2, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 9, 0, 0, 0, 0, 0, 0, 0, 4};
	static const uint8_t overload[32] = {2, 2, 0, 0,    0xf0, 0xff, 0xff, 0xff, 9, 0, 0,
					     0, 0, 0, 0,    0,    0,    0,    0,    0, 0, 0,
					     0, 0, 0, 0x2d, 0x31, 1,    0,    0,    0, 0};
	static const uint8_t cancel[32] = {3, 2, 0, 0, 0, 0, 0, 0, 0x11, 1};
	static const uint8_t ack[32] = {4, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x11, 1};
	static const uint8_t done[32] = {5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
					 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 2};
	static const struct {
		const uint8_t *want;
		tn_rpc_reply_head head;
	} rows[] = {
		{response, {TN_RPC_RESPONSE, TERN_E_DEADLINE, 9, 4, 0}},
		{overload, {TN_RPC_RESPONSE, TERN_E_OVERLOAD, 9, 0, 20000000}},
		{cancel, {TN_RPC_CANCEL, TERN_OK, 0x111, 0, 0}},
		{ack, {TN_RPC_CANCEL_ACK, TERN_E_DEADLINE, 0x111, 0, 0}},
		{done, {TN_RPC_DONE, TERN_OK, 0, 0, 0x207}},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t out[TN_RPC_REPLY_BYTES];
		tn_rpc_reply_head got;
		const void *data;

		tn_rpc_reply_encode(out, &rows[i].head);
		assert_memory_equal(out, rows[i].want, TN_RPC_REPLY_BYTES);
		if (rows[i].head.bytes)
			continue;
		assert_true(tn_rpc_reply_decode(out, sizeof(out), &got, &data));
		assert_int_equal(got.value, rows[i].head.value);
	}
}

static uint64_t some_request(uint8_t *msg, unsigned sinks, uint64_t args)
{
	tn_rpc_request_head head = {
		.method = 1, .sink_count = (uint16_t)sinks, .seq = 10, .low_water = 10, .args_bytes = args};
	tern_rpc_sink s[TERN_RPC_SINKS_MAX];
	uint64_t n;

	memset(s, 0x5a, sizeof(s));
	n = tn_rpc_request_encode(msg, &head, s);
	memset(msg + n, 0x77, args);
	return n + args;
}

static void round_trip(void **state)
{
	uint8_t msg[TN_RPC_REQUEST_BYTES_MAX + 100];

	(void)state;
	for (unsigned sinks = 0; sinks <= TERN_RPC_SINKS_MAX; sinks++) {
		uint64_t n = some_request(msg, sinks, 100);
		tern_rpc_sink s[TERN_RPC_SINKS_MAX];
		tn_rpc_request_head head;
		const void *args;

		assert_true(tn_rpc_request_decode(msg, n, &head, s, &args));
		assert_int_equal(head.sink_count, sinks);
		assert_int_equal(head.args_bytes, 100);
		assert_ptr_equal(args, msg + n - 100);
		if (sinks)
			assert_int_equal(s[sinks - 1].key.bytes[63], 0x5a);
	}
}

static void malformed(void **state)
{
	uint8_t msg[TN_RPC_REQUEST_BYTES_MAX + 100], bad[sizeof(msg)];
	uint64_t n = some_request(msg, 2, 10);
	tern_rpc_sink s[TERN_RPC_SINKS_MAX];
	tn_rpc_request_head head;
	tn_rpc_reply_head reply;
	const void *p;

	(void)state;
	for (uint64_t cut = 0; cut < n; cut++)
		assert_false(tn_rpc_request_decode(msg, cut, &head, s, &p));
	assert_false(tn_rpc_request_decode(msg, n + 1, &head, s, &p));
	memcpy(bad, msg, n);
	bad[1] = 1; /* version */
	assert_false(tn_rpc_request_decode(bad, n, &head, s, &p));
	memcpy(bad, msg, n);
	bad[2] = TERN_RPC_SINKS_MAX + 1;
	assert_false(tn_rpc_request_decode(bad, n, &head, s, &p));
	memcpy(bad, msg, n);
	bad[32] = 11; /* low-water mark above the sequence */
	assert_false(tn_rpc_request_decode(bad, n, &head, s, &p));
	memcpy(bad, msg, n);
	memset(bad + 48, 0xff, 8); /* length that overflows */
	assert_false(tn_rpc_request_decode(bad, n, &head, s, &p));
	for (unsigned at = 60; at < 72; at++) { /* first above session, class, flags, zeros */
		memcpy(bad, msg, n);
		bad[at] |= 4;
		assert_false(tn_rpc_request_decode(bad, n, &head, s, &p));
	}
	assert_false(tn_rpc_reply_decode(msg, n, &reply, &p)); /* a request is no reply */
}

static void random_bytes(void **state)
{
	tn_rand rng = {.state = 3};
	uint8_t msg[256];

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		uint64_t n = tn_rand_below(&rng, sizeof(msg));
		tern_rpc_sink s[TERN_RPC_SINKS_MAX];
		tn_rpc_request_head head;
		tn_rpc_reply_head reply;
		const void *p;

		for (uint64_t k = 0; k < n; k++)
			msg[k] = (uint8_t)tn_rand_next(&rng);
		if (n > 1) {
			msg[0] = (uint8_t)(i % 7);
			msg[1] = TN_RPC_VERSION;
		}
		if (tn_rpc_request_decode(msg, n, &head, s, &p))
			assert_int_equal((const uint8_t *)p + head.args_bytes - msg, n);
		if (tn_rpc_reply_decode(msg, n, &reply, &p))
			assert_int_equal((const uint8_t *)p + reply.bytes - msg, n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_request), cmocka_unit_test(golden_replies),
		cmocka_unit_test(round_trip),     cmocka_unit_test(malformed),
		cmocka_unit_test(random_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
