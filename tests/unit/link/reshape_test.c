/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data lanes that are given up while nobody uses them, and made again when there is bulk: from either side, not while
 * one of them is in use, and never towards a peer that does not know of it. Random schedules of the same: pair_test.c.
 */
#include "link/wire.h"
#include "unit/link/record.h"

#define IDLE (100 * TN_NS_PER_MS)

static uint8_t memory[4 << 20];
static record_op op;
static uint32_t far_channel;

static const tn_link_counters *counters(int side)
{
	return tn_link_get_counters(link_of(side));
}

static void init(void)
{
	record_init();
	world.check_level = 2;
	for (int i = 0; i < 2; i++) {
		world.node[i].config.lane_idle_ns = IDLE;
		world.node[i].config.recover_ns = TN_NS_PER_SEC;
		world.node[i].config.keepalive_ns = 0;
	}
}

/* Lanes that stand at both ends. */
static uint32_t lanes(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < world.path_count; i++) {
		const pair_path *path = &world.paths[i];

		n += path->used && !path->broken && path->end[0].up && path->end[1].up &&
		     !path->end[0].closed && !path->end[1].closed;
	}
	return n;
}

static bool stands(uint32_t n)
{
	return tn_link_get_state(link_of(0)) == TN_LINK_UP && tn_link_get_state(link_of(1)) == TN_LINK_UP &&
	       lanes() == n;
}

static bool all_gone(void)
{
	for (uint32_t i = 0; i < world.path_count; i++)
		for (int s = 0; s < 2; s++)
			if (world.paths[i].end[s].closed && !world.paths[i].end[s].gone)
				return false;
	return true;
}

static uint32_t start(void)
{
	uint32_t channel;

	record_start();
	channel = open_channel("c", &far_channel);
	assert_int_equal(lanes(), 3);
	return channel;
}

static void until(uint32_t n)
{
	assert_true(PAIR_UNTIL(&world, stands(n) && all_gone(), 200000));
}

/* A put with a notification arrives whole and once, whatever lanes there are. */
static void put(int side, uint32_t channel, uint64_t bytes)
{
	uint32_t before = rec.side[!side].notifies;

	assert_ok(xfer_at(side, channel, TN_XFER_PUT_NOTIFY, memory, bytes, 5, &op));
	pump(side);
	assert_true(PAIR_UNTIL(&world, op.done && rec.side[!side].notifies == before + 1, 100000));
	assert_int_equal(op.status, TERN_OK);
}

static void given_up_and_made_again(void **state)
{
	(void)state;
	for (int side = 0; side < 2; side++) {
		uint32_t channel;

		init();
		channel = start();
		for (uint64_t round = 1; round <= 3; round++) {
			until(1);
			assert_int_equal(counters(0)->lanes_given_up, round);
			assert_int_equal(counters(1)->lanes_given_up, round);
			/* Small ones want no more lanes: there is nothing to wake for. */
			put(side, side ? far_channel : channel, 8);
			assert_int_equal(tn_link_next_wake(link_of(0)), UINT64_MAX);
			put(side, side ? far_channel : channel, sizeof(memory));
			assert_true(PAIR_UNTIL(&world,
					       counters(0)->lanes_made_again == round &&
						       counters(1)->lanes_made_again == round,
					       200000));
			until(3);
			put(side, side ? far_channel : channel, sizeof(memory));
		}
		assert_int_equal(counters(0)->recoveries + counters(1)->recoveries, 0);
		assert_int_equal(counters(0)->probes + counters(0)->probes_failed, 0);
		pair_fini(&world);
	}
}

/* The acceptor alone uses its data lanes, which the dialer does not see: puts without notification. */
static void not_while_in_use(void **state)
{
	uint64_t end;

	(void)state;
	init();
	start();
	for (end = world.now + 20 * IDLE; world.now < end;) {
		uint64_t then = world.now + IDLE / 2;

		assert_ok(xfer_at(1, far_channel, TN_XFER_PUT, memory, 1 << 20, 0, &op));
		pump(1);
		assert_true(PAIR_UNTIL(&world, op.done, 100000));
		assert_int_equal(op.status, TERN_OK);
		PAIR_UNTIL(&world, world.now >= then, 1000);
	}
	assert_int_equal(counters(0)->lanes_given_up, 0);
	until(1);
	pair_fini(&world);
}

/* One side does not know of it, or does not want it. */
static void never(void **state)
{
	(void)state;
	for (int side = 0; side < 2; side++) {
		for (int how = 0; how < 2; how++) {
			init();
			if (how)
				world.node[side].config.features_off = TN_FEATURE_LANES;
			else
				world.node[side].config.lane_idle_ns = 0;
			start();
			assert_int_equal(tn_link_next_wake(link_of(0)), UINT64_MAX);
			assert_int_equal(tn_link_next_wake(link_of(1)), UINT64_MAX);
			pair_fini(&world);
		}
	}
}

/* No room for more lanes: bulk goes over the one, and they come when there is room. */
static void no_room(void **state)
{
	uint32_t channel;

	(void)state;
	init();
	channel = start();
	until(1);
	world.room[1] = 1;
	put(0, channel, sizeof(memory));
	PAIR_UNTIL(&world, false, 2000);
	assert_true(stands(1));
	assert_int_equal(counters(0)->lanes_made_again, 0);
	world.room[1] = 0;
	until(3);
	pair_fini(&world);
}

/* While the control connection is away nothing is tried: what would be said piles up until it is too much. */
static void not_without_control(void **state)
{
	uint32_t paths;

	(void)state;
	init();
	for (int i = 0; i < 2; i++)
		world.node[i].config.redial_ns = 1000 * IDLE;
	start();
	world.frozen = true;
	pair_ctrl_cut(&world);
	world.node[0].dial_due = false;
	for (int i = 0; i < 2; i++) {
		world.node[i].ctrl_down_due = false;
		tn_link_on_ctrl_down(link_of(i), TERN_E_PEER_LOST, "cut", world.now);
	}
	paths = world.path_count;
	for (int i = 0; i < 400; i++) {
		world.now += IDLE;
		for (int side = 0; side < 2; side++) {
			tn_link_on_time(link_of(side), world.now);
			pump(side);
		}
	}
	assert_int_equal(world.path_count, paths);
	assert_int_equal(tn_link_get_state(link_of(0)), TN_LINK_UP);
	assert_int_equal(counters(0)->lanes_given_up, 0);
	/* It comes back, and then it is time. */
	world.frozen = false;
	until(1);
	pair_fini(&world);
}

static void wrong_words(void **state)
{
	static const char *const words[] = {"not given up", "to come", "without the feature"};

	(void)state;
	for (int how = 0; how < 3; how++) {
		init();
		if (how == 2)
			world.node[0].config.lane_idle_ns = 0;
		start();
		wrong_epoch(TN_CTRL_WIDEN, how == 1 ? 9 : 1, words[how]);
		pair_fini(&world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(given_up_and_made_again),
		cmocka_unit_test(not_while_in_use),
		cmocka_unit_test(never),
		cmocka_unit_test(no_room),
		cmocka_unit_test(wrong_words),
		cmocka_unit_test(not_without_control),
	};

	return RUN(tests);
}
