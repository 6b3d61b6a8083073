/* SPDX-License-Identifier: Apache-2.0 */
/* Which rail of one side to which of the other: reach, preference, spreading, and that both sides agree. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "transport/verbs/addr.h"

static tn_vb_rail_addr rail(uint8_t index, bool ethernet, const char *one, const char *two)
{
	tn_vb_rail_addr r = {.rail = index,
			     .healthy = true,
			     .ethernet = ethernet,
			     .mtu = IBV_MTU_4096,
			     .gid_count = two ? 2 : 1};

	assert_int_equal(inet_pton(AF_INET6, one, r.gids[0].raw), 1);
	if (two)
		assert_int_equal(inet_pton(AF_INET6, two, r.gids[1].raw), 1);
	return r;
}

static tn_vb_addr addr_of(uint8_t turn, uint8_t count, const tn_vb_rail_addr *rails)
{
	tn_vb_addr addr = {.lane = true, .turn = turn, .count = count};

	memcpy(addr.rails, rails, count * sizeof(*rails));
	return addr;
}

/* Rails of different fabrics are joined by address, whatever their order is. */
static void each_to_its_subnet(void **state)
{
	const tn_vb_rail_addr a[] = {rail(0, true, "::ffff:10.0.1.1", NULL),
				     rail(1, true, "::ffff:10.0.2.1", NULL)};
	const tn_vb_rail_addr p[] = {rail(0, true, "::ffff:10.0.2.7", NULL),
				     rail(1, true, "::ffff:10.0.1.7", NULL)};
	uint32_t used[2] = {0};

	(void)state;
	for (uint8_t turn = 0; turn < 8; turn++) {
		tn_vb_addr active = addr_of(turn, 2, a), passive = addr_of(0, 2, p);
		tn_vb_pair pair;

		assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
		assert_int_equal(pair.active + pair.passive, 1);
		assert_int_equal(pair.near_bits, 24);
		used[pair.active]++;
	}
	assert_int_equal(used[0], 4);
	assert_int_equal(used[1], 4);
}

/* Hosts of one subnet are equally near, so lanes spread; also where one side has fewer rails. */
static void equals_take_turns(void **state)
{
	const tn_vb_rail_addr a[] = {rail(0, true, "::ffff:10.0.0.1", NULL),
				     rail(1, true, "::ffff:10.0.0.200", NULL)};
	const tn_vb_rail_addr p[] = {rail(0, true, "::ffff:10.0.0.2", NULL),
				     rail(1, true, "::ffff:10.0.0.3", NULL),
				     rail(2, true, "::ffff:10.0.0.77", NULL)};

	(void)state;
	for (uint8_t many = 1; many <= 3; many++) {
		uint32_t own[2] = {0}, peer[3] = {0};

		for (uint8_t turn = 0; turn < 12; turn++) {
			tn_vb_addr active = addr_of(turn, 2, a), passive = addr_of(0, many, p);
			tn_vb_pair pair;

			assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
			own[pair.active]++;
			peer[pair.passive]++;
		}
		assert_int_equal(own[0], 6);
		for (uint8_t i = 0; i < many; i++)
			assert_int_equal(peer[i], 12 / many);
	}
}

static void health_goes_first(void **state)
{
	tn_vb_rail_addr a[] = {rail(0, true, "::ffff:10.0.0.1", NULL),
			       rail(1, true, "::ffff:10.9.0.1", NULL)};
	const tn_vb_rail_addr p[] = {rail(0, true, "::ffff:10.0.0.2", NULL)};
	tn_vb_addr active, passive = addr_of(0, 1, p);
	tn_vb_pair pair;

	(void)state;
	active = addr_of(0, 2, a);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
	assert_int_equal(pair.active, 0);
	a[0].healthy = false;
	active = addr_of(0, 2, a);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
	assert_int_equal(pair.active, 1);
	a[1].healthy = false; /* better than none */
	active = addr_of(0, 2, a);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
	assert_int_equal(pair.active, 0);
}

/* The GID goes by the peer: its family, then the nearest. */
static void gid_by_the_peer(void **state)
{
	const tn_vb_rail_addr both = rail(0, true, "::ffff:10.0.0.1", "2001:db8::1");
	const tn_vb_rail_addr two = rail(0, true, "::ffff:10.0.0.1", "::ffff:172.16.5.1");
	const tn_vb_rail_addr six = rail(0, true, "2001:db8::2", NULL),
			      far = rail(0, true, "::ffff:172.16.5.9", NULL);
	tn_vb_addr active = addr_of(0, 1, &both), passive = addr_of(0, 1, &six);
	tn_vb_pair pair;

	(void)state;
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
	assert_int_equal(pair.active_gid, 1);
	assert_int_equal(pair.near_bits, 64);
	active = addr_of(0, 1, &two);
	passive = addr_of(0, 1, &far);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
	assert_int_equal(pair.active_gid, 1);
	passive = addr_of(0, 1, &both);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_OK);
	assert_int_equal(pair.active_gid, 0);
	assert_int_equal(pair.passive_gid, 0);
}

static void no_way(void **state)
{
	const tn_vb_rail_addr four = rail(0, true, "::ffff:10.0.0.1", NULL),
			      six = rail(0, true, "2001:db8::2", NULL);
	const tn_vb_rail_addr ib = rail(0, false, "fe80::1", NULL), other = rail(0, false, "fec0::2", NULL);
	tn_vb_addr active = addr_of(0, 1, &four), passive = addr_of(0, 1, &six);
	tn_vb_pair pair;

	(void)state;
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_E_UNREACHABLE);
	assert_non_null(strstr(tn_detail_get(), "address families"));
	passive = addr_of(0, 1, &ib);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_E_UNREACHABLE);
	assert_non_null(strstr(tn_detail_get(), "InfiniBand"));
	active = addr_of(0, 1, &other);
	assert_int_equal(tn_vb_pair_choose(&active, &passive, &pair), TERN_E_UNREACHABLE);
	assert_non_null(strstr(tn_detail_get(), "subnets"));
}

/* Any two addresses: the choice is in range, reachable, and no pair is better in health. */
static void any_two(void **state)
{
	tn_rand rand = {.state = 5};

	(void)state;
	for (int round = 0; round < 20000; round++) {
		tn_vb_addr side[2];
		bool any = false;
		tn_vb_pair pair;

		for (int s = 0; s < 2; s++) {
			side[s] = (tn_vb_addr){.lane = true, .turn = (uint8_t)tn_rand_next(&rand)};
			side[s].count = (uint8_t)(1 + tn_rand_below(&rand, TN_VB_RAILS_MAX));
			for (uint8_t i = 0; i < side[s].count; i++) {
				char text[48];

				bool v4 = tn_rand_below(&rand, 3) != 0;
				unsigned net = (unsigned)tn_rand_below(&rand, 3),
					 host = (unsigned)tn_rand_below(&rand, 9);

				if (v4)
					snprintf(text, sizeof(text), "::ffff:10.0.%u.%u", net, host);
				else
					snprintf(text, sizeof(text), "2001:%u::%u", net, host);
				side[s].rails[i] = rail(i, tn_rand_below(&rand, 5) != 0, text, NULL);
				side[s].rails[i].healthy = tn_rand_below(&rand, 2);
			}
		}
		for (int i = 0; i < side[0].count; i++)
			for (int j = 0; j < side[1].count; j++)
				any = any || (side[0].rails[i].ethernet && side[1].rails[j].ethernet &&
					      tn_vb_gid_is_v4(&side[0].rails[i].gids[0]) ==
						      tn_vb_gid_is_v4(&side[1].rails[j].gids[0]));
		if (tn_vb_pair_choose(&side[0], &side[1], &pair) != TERN_OK) {
			assert_false(any);
			continue;
		}
		assert_true(pair.active < side[0].count && pair.passive < side[1].count);
		assert_int_equal(side[0].rails[pair.active].ethernet, side[1].rails[pair.passive].ethernet);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_to_its_subnet),
		cmocka_unit_test(equals_take_turns),
		cmocka_unit_test(health_goes_first),
		cmocka_unit_test(gid_by_the_peer),
		cmocka_unit_test(no_way),
		cmocka_unit_test(any_two),
	};

	return RUN(tests);
}
