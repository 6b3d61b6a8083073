/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor messages: round trips, golden bytes of the smallest, everything malformed refused. */
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "tensor/wire.h"

static void round_trip(void **state)
{
	tn_tensor_msg in = {.type = TN_TENSOR_OPEN,
			    .tx_id = 5,
			    .dtype = TERN_F32,
			    .notify = TERN_NOTIFY_FLAG,
			    .shape = {.rank = 2, .dims = {3, 1ull << 40}},
			    .text = "edge 7"};
	uint8_t buf[TN_TENSOR_MSG_MAX];
	tn_tensor_msg out;
	uint64_t n;

	(void)state;
	memset(in.flag_key.bytes, 0xcd, 64);
	n = tn_tensor_encode(buf, &in);
	assert_true(tn_tensor_decode(buf, n, &out));
	assert_int_equal(out.shape.dims[1], 1ull << 40);
	assert_string_equal(out.text, "edge 7");
	assert_int_equal(out.notify, TERN_NOTIFY_FLAG);
	assert_memory_equal(out.flag_key.bytes, in.flag_key.bytes, 64);
	for (uint64_t cut = 0; cut < n; cut++)
		assert_false(tn_tensor_decode(buf, cut, &out));
	assert_false(tn_tensor_decode(buf, n + 1, &out));
}

static void golden_release(void **state)
{
	static const uint8_t want[24] = {3, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x39, 0x30};
	tn_tensor_msg msg = {.type = TN_TENSOR_RELEASE, .tx_id = 9, .count = 12345};
	uint8_t buf[TN_TENSOR_MSG_MAX];

	(void)state;
	assert_int_equal(tn_tensor_encode(buf, &msg), 24);
	assert_memory_equal(buf, want, 24);
}

static void golden_withdraw(void **state)
{
	static const uint8_t want[16] = {6, 1, 0, 0, 0x34, 0x12};
	tn_tensor_msg msg = {.type = TN_TENSOR_WITHDRAW, .tx_id = 0x1234}, out;
	uint8_t buf[TN_TENSOR_MSG_MAX];

	(void)state;
	assert_int_equal(tn_tensor_encode(buf, &msg), 16);
	assert_memory_equal(buf, want, 16);
	assert_true(tn_tensor_decode(buf, 16, &out));
	assert_int_equal(out.type, TN_TENSOR_WITHDRAW);
	assert_int_equal(out.tx_id, 0x1234);
	buf[0] = 7;
	assert_false(tn_tensor_decode(buf, 16, &out));
}

static void random_bytes(void **state)
{
	uint8_t buf[TN_TENSOR_MSG_MAX];
	tn_tensor_msg msg;
	tn_rand rng = {.state = 3};

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		uint64_t n = tn_rand_below(&rng, sizeof(buf));

		for (uint64_t k = 0; k < n; k++)
			buf[k] = (uint8_t)tn_rand_next(&rng);
		if (n > 1) {
			buf[0] = (uint8_t)(i % 8);
			buf[1] = 1;
		}
		if (tn_tensor_decode(buf, n, &msg)) {
			assert_true(msg.shape.rank <= TERN_RANK_MAX);
			assert_true(msg.slots <= TERN_TENSOR_SLOTS_MAX);
			assert_true(strnlen(msg.text, sizeof(msg.text)) < sizeof(msg.text));
		}
	}
}

static void notification_value(void **state)
{
	(void)state;
	assert_int_equal(tn_tensor_value(65535, 0x1234), 0xffff34);
	assert_true(tn_tensor_value(TN_TENSOR_RX_MAX - 1, 255) < 1u << TERN_NOTIFY_BITS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),         cmocka_unit_test(golden_release),
		cmocka_unit_test(golden_withdraw),    cmocka_unit_test(random_bytes),
		cmocka_unit_test(notification_value),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
