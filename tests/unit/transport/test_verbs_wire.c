/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and hellos of verbs: golden bytes, strict parsing, what a MAC binds. */
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "transport/verbs/verbs.h"

static const tn_vb_dev_addr dev_addr = {.gid.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1},
					.lid = 0x1234,
					.ethernet = 1,
					.mtu = IBV_MTU_4096,
					.rd_atomic = 16,
					.mem_slot = 2};
static const tn_vb_lane_addr lane_addr = {.qpn = 0x010203, .psn = 0xa0b0c0, .active = true};

static void golden(void **state)
{
	static const uint8_t dev[] = {'v', 'b',  'd',  '1', 0, 0, 0, 0,    0,    0, 0, 0,  0,
				      0,   0xff, 0xff, 10,  0, 0, 1, 0x34, 0x12, 1, 5, 16, 2};
	static const uint8_t lane[] = {'v', 'b', 'l', '1', 3, 2, 1, 0, 0xc0, 0xb0, 0xa0, 0, 1};
	tn_blob blob;

	(void)state;
	tn_vb_dev_addr_put(&dev_addr, &blob);
	assert_int_equal(blob.length, sizeof(dev));
	assert_memory_equal(blob.bytes, dev, sizeof(dev));
	tn_vb_lane_addr_put(&lane_addr, &blob);
	assert_int_equal(blob.length, sizeof(lane));
	assert_memory_equal(blob.bytes, lane, sizeof(lane));
}

static void round_trip(void **state)
{
	tn_vb_lane_addr lane;
	tn_vb_dev_addr dev;
	tn_blob blob;

	(void)state;
	tn_vb_dev_addr_put(&dev_addr, &blob);
	assert_true(tn_vb_dev_addr_get(&blob, &dev));
	assert_memory_equal(dev.gid.raw, dev_addr.gid.raw, 16);
	assert_int_equal(dev.lid, dev_addr.lid);
	assert_int_equal(dev.mtu, dev_addr.mtu);
	assert_int_equal(dev.mem_slot, 2);
	tn_vb_lane_addr_put(&lane_addr, &blob);
	assert_true(tn_vb_lane_addr_get(&blob, &lane));
	assert_int_equal(lane.qpn, lane_addr.qpn);
	assert_int_equal(lane.psn, lane_addr.psn);
	assert_true(lane.active);
}

static void cut_and_long_are_refused(void **state)
{
	tn_vb_lane_addr lane;
	tn_vb_dev_addr dev;
	tn_blob whole, blob;

	(void)state;
	tn_vb_dev_addr_put(&dev_addr, &whole);
	for (unsigned n = 0; n < 70000; n++) {
		blob = whole;
		blob.length = (uint16_t)n;
		if (n != whole.length && n <= UINT16_MAX)
			assert_false(tn_vb_dev_addr_get(&blob, &dev));
	}
	tn_vb_lane_addr_put(&lane_addr, &whole);
	for (unsigned n = 0; n <= UINT16_MAX; n++) {
		blob = whole;
		blob.length = (uint16_t)n;
		if (n != whole.length)
			assert_false(tn_vb_lane_addr_get(&blob, &lane));
	}
}

/* Whatever parses is in range: it indexes arrays and goes to the NIC. */
static void junk(void **state)
{
	tn_rand rand = {.state = 3};
	tn_vb_lane_addr lane;
	tn_vb_dev_addr dev;
	tn_blob blob;

	(void)state;
	for (int i = 0; i < 200000; i++) {
		if (i % 2)
			tn_vb_dev_addr_put(&dev_addr, &blob);
		else
			tn_vb_lane_addr_put(&lane_addr, &blob);
		for (uint64_t n = 1 + tn_rand_below(&rand, 3); n; n--)
			blob.bytes[tn_rand_below(&rand, blob.length)] = (uint8_t)tn_rand_next(&rand);
		if (tn_vb_dev_addr_get(&blob, &dev)) {
			assert_true(dev.mtu >= IBV_MTU_256 && dev.mtu <= IBV_MTU_4096);
			assert_true(dev.mem_slot < TN_MEM_DEVICES_MAX);
		}
		if (tn_vb_lane_addr_get(&blob, &lane))
			assert_true(lane.qpn <= 0xffffff && lane.psn <= 0xffffff);
	}
}

static void hello_binds(void **state)
{
	tn_vb_lane_addr from = {1, 2, true}, to = {3, 4, false}, other;
	uint8_t token[TN_LANE_TOKEN_BYTES] = {9};
	uint8_t hello[TN_VB_HELLO_BYTES], again[TN_VB_HELLO_BYTES];

	(void)state;
	assert_int_equal(tn_vb_hello_make(token, &from, &to, hello), TERN_OK);
	assert_int_equal(tn_vb_hello_make(token, &from, &to, again), TERN_OK);
	assert_memory_equal(hello, again, sizeof(hello));
	/* An echo is not an answer. */
	assert_int_equal(tn_vb_hello_make(token, &to, &from, again), TERN_OK);
	assert_memory_not_equal(hello, again, sizeof(hello));
	for (int field = 0; field < 3; field++) {
		other = from;
		other.qpn += field == 0;
		other.psn += field == 1;
		other.active = field == 2 ? false : other.active;
		assert_int_equal(tn_vb_hello_make(token, &other, &to, again), TERN_OK);
		assert_memory_not_equal(hello, again, sizeof(hello));
	}
	token[TN_LANE_TOKEN_BYTES - 1] = 1;
	assert_int_equal(tn_vb_hello_make(token, &from, &to, again), TERN_OK);
	assert_memory_not_equal(hello, again, sizeof(hello));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden),
		cmocka_unit_test(round_trip),
		cmocka_unit_test(cut_and_long_are_refused),
		cmocka_unit_test(junk),
		cmocka_unit_test(hello_binds),
	};

	return RUN(tests);
}
