/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device with more data lanes than its quota: whose are asked for, the longest unused first; what a link does that is
 * asked, on either side of it; that lanes in use stay. Random schedules of the same: pair_test.c.
 */
#include "link/wire.h"
#include "unit/link/record.h"

#define REST (50 * TN_NS_PER_MS)

static uint8_t memory[4 << 20];
static record_op op;
static uint32_t far_channel;

/* ---- seats alone ---- */

static uint32_t woken;

static void wake(void *arg)
{
	(void)arg;
	woken++;
}

/* The one that was used longest ago is asked, as many as are too many, and nobody twice. */
static void the_longest_unused_first(void **state)
{
	static tn_quota_seat seat[5];
	tn_link_quota quota;

	(void)state;
	memset(seat, 0, sizeof(seat));
	woken = 0;
	tn_link_quota_init(&quota, 6, REST, NULL);
	for (uint64_t i = 0; i < 4; i++) {
		seat[i].wake = wake;
		tn_quota_join(&quota, &seat[i], 2, 1000 + i);
	}
	assert_int_equal(quota.taken, 8); /* nobody is refused, and none has rested */
	assert_int_equal(quota.leaving, 0);
	seat[0].used_ns = 3 * REST;
	tn_quota_look(&quota, 3 * REST + 1);
	assert_true(seat[1].asked && seat[1].news);
	assert_int_equal(quota.leaving, 2);
	tn_quota_look(&quota, 3 * REST + 2);
	assert_int_equal(woken, 1);
	/* It keeps them: the next one, and for a while not it again. */
	tn_quota_keep(&quota, &seat[1], 3 * REST + 2);
	assert_true(!seat[1].asked && !seat[1].news && seat[2].asked);
	tn_quota_leave(&quota, &seat[2]);
	assert_int_equal(quota.taken, 6);
	assert_int_equal(quota.leaving, 0);
	assert_true(tn_quota_sums_hold(&quota));
	/* Two more come; seats 1 (asked in vain a moment ago) and 0 (used) have not rested. */
	tn_quota_join(&quota, &seat[4], 3, 3 * REST + 3);
	assert_true(seat[3].asked && !seat[1].asked && !seat[0].asked && !seat[4].asked);
	assert_int_equal(woken, 3);
	tn_quota_look(&quota, 10 * REST);
	assert_true(seat[0].asked && !seat[1].asked); /* one lane is missing still */
	for (int i = 0; i < 5; i++)
		if (seat[i].joined)
			tn_quota_leave(&quota, &seat[i]);
	assert_int_equal(quota.taken + quota.leaving, 0);
}

/* ---- a link that is asked ---- */

static tn_quota_seat other; /* another link of the device */

static const tn_link_counters *counters(int side)
{
	return tn_link_get_counters(link_of(side));
}

static bool narrow(void)
{
	return tn_link_get_state(link_of(0)) == TN_LINK_UP && tn_link_get_state(link_of(1)) == TN_LINK_UP &&
	       counters(0)->lanes_given_up > counters(0)->lanes_made_again &&
	       counters(1)->lanes_given_up > counters(1)->lanes_made_again;
}

static bool wide(void)
{
	return pair_both_up(&world) && tn_link_get_state(link_of(0)) == TN_LINK_UP &&
	       tn_link_get_state(link_of(1)) == TN_LINK_UP && !narrow();
}

/* No look of the links' own comes within a test. */
static void init(int side)
{
	record_init();
	memset(&other, 0, sizeof(other));
	for (int i = 0; i < 2; i++) {
		world.node[i].config.lane_idle_ns = 1000 * TN_NS_PER_SEC;
		world.node[i].config.lane_rest_ns = REST;
		world.node[i].config.recover_ns = TN_NS_PER_SEC;
		world.node[i].config.keepalive_ns = 0;
	}
	tn_link_quota_init(&world.quota[side], 3, REST, NULL);
}

static uint32_t start(void)
{
	record_start();
	return open_channel("c", &far_channel);
}

static void put(int side, uint32_t channel)
{
	assert_ok(xfer_at(side, channel, TN_XFER_PUT_NOTIFY, memory, sizeof(memory), 5, &op));
	pump(side);
	assert_true(PAIR_UNTIL(&world, op.done, 100000));
	assert_int_equal(op.status, TERN_OK);
}

static void others_come(int side)
{
	tn_quota_join(&world.quota[side], &other, 2, world.now);
	pump(0);
	pump(1);
}

static void others_go(int side)
{
	tn_quota_leave(&world.quota[side], &other);
}

/* At once, whichever side's device has too many; and they come again with the next bulk. */
static void given_up_at_once(void **state)
{
	(void)state;
	for (int side = 0; side < 2; side++) {
		uint32_t channel;

		init(side);
		channel = start();
		for (uint64_t round = 1; round <= 3; round++) {
			uint64_t then;

			put(0, channel);
			put(1, far_channel);
			assert_true(PAIR_UNTIL(&world, wide(), 100000));
			world.now += 2 * REST;
			then = world.now;
			others_come(side);
			assert_true(PAIR_UNTIL(&world, narrow(), 100000));
			assert_true(world.now - then < REST);
			assert_int_equal(counters(0)->lanes_reclaimed, round);
			assert_int_equal(counters(1)->lanes_reclaimed, round);
			assert_int_equal(world.quota[side].taken, 2);
			others_go(side);
		}
		assert_int_equal(counters(0)->recoveries + counters(1)->recoveries, 0);
		assert_int_equal(counters(0)->ops_failed + counters(1)->ops_failed, 0);
		pair_fini(&world);
	}
}

/* One side used them a moment ago, and the other one's device asks. */
static void not_while_in_use(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++) {
		int side = how & 1, user = how >> 1;
		uint32_t channel;

		init(side);
		channel = start();
		world.now += 2 * REST;
		put(user, user ? far_channel : channel);
		others_come(side);
		run();
		assert_int_equal(counters(0)->lanes_given_up, 0);
		assert_int_equal(world.quota[side].taken, 4);
		/* Nor is anybody left waiting for an answer: it is asked again when it has rested. */
		assert_int_equal(world.quota[side].leaving, 0);
		world.now += 2 * REST;
		tn_quota_look(&world.quota[side], world.now);
		pump(0);
		pump(1);
		assert_true(PAIR_UNTIL(&world, narrow(), 100000));
		assert_int_equal(world.quota[side].taken, 2);
		others_go(side);
		pair_fini(&world);
	}
}

/* A peer that does not know of it is not told. A dialer asks as it always could; its acceptor counts looks, not rest. */
static void not_towards_old_peers(void **state)
{
	(void)state;
	for (int side = 0; side < 2; side++) {
		init(side);
		world.node[!side].config.features_off = TN_FEATURE_NARROW;
		start();
		world.now += 2 * REST;
		others_come(side);
		run();
		assert_int_equal(tn_link_status(link_of(0)), TERN_OK);
		assert_int_equal(tn_link_get_state(link_of(1)), TN_LINK_UP);
		assert_int_equal(counters(0)->lanes_given_up, 0);
		assert_int_equal(world.quota[side].leaving, 0);
		others_go(side);
		pair_fini(&world);
	}
}

static void wrong_words(void **state)
{
	static const char *const words[] = {"by the acceptor", "to come", "without the feature"};

	(void)state;
	for (int how = 0; how < 3; how++) {
		init(0);
		if (how == 2)
			world.node[0].config.features_off = TN_FEATURE_NARROW;
		start();
		wrong_epoch(how ? TN_CTRL_NARROW : TN_CTRL_KEEP, how == 1 ? 9 : 1, words[how]);
		pair_fini(&world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_longest_unused_first),
		cmocka_unit_test(given_up_at_once),
		cmocka_unit_test(not_while_in_use),
		cmocka_unit_test(not_towards_old_peers),
		cmocka_unit_test(wrong_words),
	};

	return RUN(tests);
}
