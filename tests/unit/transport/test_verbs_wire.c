/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and hellos of verbs: golden bytes, strict parsing, what a MAC binds. */
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "transport/verbs/addr.h"

static tn_vb_addr lane_of(uint8_t rails, uint8_t gids)
{
	tn_vb_addr addr = {.lane = true, .active = true, .turn = 9, .count = rails};

	for (uint8_t i = 0; i < rails; i++) {
		addr.rails[i] = (tn_vb_rail_addr){.rail = i,
						  .healthy = true,
						  .ethernet = true,
						  .mtu = IBV_MTU_4096,
						  .rd_atomic = 16,
						  .mem_slot = i,
						  .lid = 0x1234,
						  .qpn = 0x010203u + i,
						  .psn = 0xa0b0c0u + i,
						  .gid_count = gids};
		for (uint8_t k = 0; k < gids; k++)
			addr.rails[i].gids[k] = (union ibv_gid){
				.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [14] = i, [15] = k}};
	}
	return addr;
}

static tn_vb_addr device_of(uint8_t rails, uint8_t gids)
{
	tn_vb_addr addr = lane_of(rails, gids);

	addr.lane = addr.active = false;
	addr.turn = 0;
	for (uint8_t i = 0; i < rails; i++)
		addr.rails[i].qpn = addr.rails[i].psn = 0;
	return addr;
}

static void golden(void **state)
{
	static const uint8_t lane[] = {'v', 'b', 'a',  '2',  3,    9,    1,       /* header */
				       0,   3,   5,    16,   0,    0x34, 0x12,    /* rail */
				       3,   2,   1,    0,    0xc0, 0xb0, 0xa0, 0, /* queue pair, PSN */
				       1,   0,   0,    0,    0,    0,    0,    0, 0,
				       0,   0,   0xff, 0xff, 10,   0,    0,    0};
	tn_vb_addr addr = lane_of(1, 1);
	tn_blob blob;

	(void)state;
	tn_vb_addr_put(&addr, &blob);
	assert_int_equal(blob.length, sizeof(lane));
	assert_memory_equal(blob.bytes, lane, sizeof(lane));
}

static void round_trip(void **state)
{
	tn_vb_addr addr, got;
	tn_blob blob;

	(void)state;
	for (uint8_t rails = 1; rails <= TN_VB_RAILS_MAX; rails++) {
		for (uint8_t gids = 1; gids <= tn_vb_gids_each(rails); gids++) {
			addr = lane_of(rails, gids);
			tn_vb_addr_put(&addr, &blob);
			assert_true(tn_vb_addr_get(&blob, true, &got));
			assert_memory_equal(&got, &addr, sizeof(addr));
			assert_false(tn_vb_addr_get(&blob, false, &got));
			addr = device_of(rails, gids);
			tn_vb_addr_put(&addr, &blob);
			assert_true(tn_vb_addr_get(&blob, false, &got));
			assert_memory_equal(&got, &addr, sizeof(addr));
			assert_false(tn_vb_addr_get(&blob, true, &got));
		}
	}
}

static void cut_and_long_are_refused(void **state)
{
	tn_vb_addr addr = lane_of(2, 3), got;
	tn_blob whole, blob;

	(void)state;
	tn_vb_addr_put(&addr, &whole);
	for (unsigned n = 0; n <= UINT16_MAX; n++) {
		blob = whole;
		blob.length = (uint16_t)n;
		if (n != whole.length)
			assert_false(tn_vb_addr_get(&blob, true, &got));
	}
}

/* Whatever parses is in range: it indexes arrays and goes to the NIC. */
static void junk(void **state)
{
	tn_rand rand = {.state = 3};
	tn_vb_addr addr = lane_of(3, 2), got;
	int parsed = 0;
	tn_blob blob;

	(void)state;
	for (int i = 0; i < 300000; i++) {
		uint32_t seen = 0;

		tn_vb_addr_put(&addr, &blob);
		for (uint64_t n = 1 + tn_rand_below(&rand, 3); n; n--)
			blob.bytes[tn_rand_below(&rand, blob.length)] = (uint8_t)tn_rand_next(&rand);
		if (!tn_vb_addr_get(&blob, true, &got))
			continue;
		parsed++;
		assert_true(got.count >= 1 && got.count <= TN_VB_RAILS_MAX);
		for (uint32_t k = 0; k < got.count; k++) {
			const tn_vb_rail_addr *rail = &got.rails[k];

			assert_true(rail->mtu >= IBV_MTU_256 && rail->mtu <= IBV_MTU_4096);
			assert_true(rail->mem_slot < TN_MEM_DEVICES_MAX && rail->rail < TN_VB_RAILS_MAX);
			assert_true(rail->qpn <= 0xffffff && rail->psn <= 0xffffff);
			assert_true(rail->gid_count >= 1 && rail->gid_count <= tn_vb_gids_each(got.count));
			assert_false(seen & 1u << rail->rail);
			seen |= 1u << rail->rail;
		}
	}
	assert_true(parsed > 1000);
}

static void hello_binds(void **state)
{
	tn_vb_addr from_addr = lane_of(2, 2), to_addr = lane_of(1, 2);
	uint8_t token[TN_LANE_TOKEN_BYTES] = {9};
	uint8_t hello[TN_VB_HELLO_BYTES], again[TN_VB_HELLO_BYTES];
	tn_blob from, to, other;

	(void)state;
	tn_vb_addr_put(&from_addr, &from);
	tn_vb_addr_put(&to_addr, &to);
	assert_int_equal(tn_vb_hello_make(token, &from, &to, hello), TERN_OK);
	assert_int_equal(tn_vb_hello_make(token, &from, &to, again), TERN_OK);
	assert_memory_equal(hello, again, sizeof(hello));
	/* An echo is not an answer. */
	assert_int_equal(tn_vb_hello_make(token, &to, &from, again), TERN_OK);
	assert_memory_not_equal(hello, again, sizeof(hello));
	for (uint32_t at = 0; at < from.length; at++) {
		other = from;
		other.bytes[at] ^= 1;
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
