/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's life: configuration, wiring over the providers, keepalive, orderly close, and its end at each moment.
 * Who may talk: hello_test.c. Virtual time; two links over pair.h.
 */
#include "unit/link/life.h"

/* ---- configuration ---- */

static void config_errors(void **state)
{
	_Alignas(64) static uint8_t memory[4 << 20];
	tn_link_config good, bad;
	tn_link *link;

	(void)state;
	fresh();
	good = world.node[0].config;
	assert_ok(tn_link_init(memory, sizeof(memory), &good, 0, &link));
	tn_link_fini(link);
	assert_true(tn_link_memory_bytes(&good) < sizeof(memory));
#define BAD(field, value)                                                                    \
	bad = good;                                                                          \
	bad.field = value;                                                                   \
	assert_status(tn_link_init(memory, sizeof(memory), &bad, 0, &link), TERN_E_INVALID); \
	assert_null(link)
	BAD(channels_max, 0);
	BAD(channels_max, 70000);
	BAD(ops_max, 0);
	BAD(wrs_max, 3);
	BAD(data_lanes, TN_LINK_LANES_MAX);
	BAD(window_bytes, 0);
	BAD(channel_window_bytes, 100);
	BAD(keepalive_misses, 0);
	BAD(provider_count, 0);
	BAD(provider_count, 9);
	BAD(secret_next_bytes, 1); /* without a first */
#undef BAD
	bad = good;
	memset(bad.incarnation, 0, sizeof(bad.incarnation));
	assert_status(tn_link_init(memory, sizeof(memory), &bad, 0, &link), TERN_E_INVALID);
	assert_status(tn_link_init(memory, 1000, &good, 0, &link), TERN_E_INVALID);
	assert_status(tn_link_init(memory + 8, sizeof(memory) - 8, &good, 0, &link), TERN_E_INVALID);
	world.node[0].providers[0].send_bytes_max = 100;
	assert_status(tn_link_init(memory, sizeof(memory), &good, 0, &link), TERN_E_INVALID);
}

/* ---- up and close ---- */

static void up_and_close(void **state)
{
	char text[4096];
	size_t n;

	(void)state;
	for (int closer = 0; closer < 2; closer++) {
		fresh();
		pair_start(&world);
		until_up();
		assert_int_equal(tn_link_get_state(world.node[0].link), TN_LINK_UP);
		assert_string_equal(tn_link_get_peer(world.node[0].link)->name, "bob");
		assert_string_equal(tn_link_get_peer(world.node[1].link)->name, "alice");
		assert_int_equal(tn_link_caps(world.node[0].link), PAIR_CAPS);
		assert_int_equal(tn_link_provider_index(world.node[1].link), 0);
		n = tn_link_print(world.node[0].link, text, sizeof(text));
		assert_int_equal(n, strlen(text));
		assert_non_null(strstr(text, "lane 2"));
		assert_true(tn_link_print(world.node[0].link, text, 20) == n && strlen(text) == 19);
		tn_link_close(world.node[closer].link, world.now);
		tn_link_close(world.node[closer].link, world.now);
		pair_pump(&world, closer);
		until_down();
		assert_ends(closer, TERN_OK, "");
		assert_ends(!closer, TERN_E_PEER_CLOSED, "the peer closed the link");
		assert_int_equal(tn_link_next_wake(world.node[0].link), UINT64_MAX);
		pair_fini(&world);
	}
}

static void close_both_at_once(void **state)
{
	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	tn_link_close(world.node[0].link, world.now);
	tn_link_close(world.node[1].link, world.now);
	pair_pump(&world, 0);
	pair_pump(&world, 1);
	until_down();
	assert_ends(0, TERN_OK, "");
	assert_ends(1, TERN_OK, "");
	pair_fini(&world);
}

/* A peer that stands still can't stop a close. */
static void close_is_bounded(void **state)
{
	uint64_t began;

	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	world.mute = true;
	began = world.now;
	tn_link_close(world.node[0].link, world.now);
	pair_pump(&world, 0);
	assert_true(PAIR_UNTIL(&world, world.node[0].down, 1000));
	assert_true(world.now - began <= 2 * world.node[0].config.close_timeout_ns);
	assert_ends(0, TERN_OK, "too long");
	pair_fini(&world);
}

static void close_before_up(void **state)
{
	(void)state;
	for (unsigned steps = 0; steps < 40; steps++) {
		fresh();
		world.rand.state = steps;
		pair_start(&world);
		for (unsigned i = 0; i < steps && !pair_both_up(&world); i++)
			pair_step(&world);
		tn_link_close(world.node[1].link, world.now);
		pair_pump(&world, 1);
		until_down();
		assert_int_equal(world.node[1].status, TERN_OK);
		/* Its lanes may be seen to go before its words come. */
		assert_true(world.node[0].status == TERN_E_PEER_CLOSED ||
			    world.node[0].status == TERN_E_UNREACHABLE);
		pair_fini(&world);
	}
}

/* ---- wiring ---- */

static void two_providers(void)
{
	fresh();
	for (int i = 0; i < 2; i++)
		world.node[i].config.provider_count = 2;
}

static void falls_back(void **state)
{
	static const char *const words[] = {"not from here", "limit", "the wire was cut"};

	(void)state;
	for (unsigned how = 0; how < 3; how++) {
		two_providers();
		world.reach_fails[0] = how == 0;
		world.create_fails = how == 1;
		world.connect_fails = how == 2;
		pair_start(&world);
		until_up();
		for (int i = 0; i < 2; i++) {
			assert_int_equal(tn_link_provider_index(world.node[i].link), 1);
			if (!strstr(tn_link_provider_reason(world.node[i].link), words[how]))
				fail_msg("node %d: '%s' lacks '%s'", i,
					 tn_link_provider_reason(world.node[i].link), words[how]);
		}
		pair_fini(&world);
	}
}

static uint32_t lanes_up(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < world.path_count; i++)
		n += world.paths[i].used && world.paths[i].end[0].up && world.paths[i].end[1].up &&
		     !world.paths[i].end[0].closed && !world.paths[i].end[1].closed;
	return n;
}

/* A device without room for three lanes may have it for one. After a break all are tried again. */
static void one_lane_where_more_find_no_room(void **state)
{
	(void)state;
	for (unsigned how = 0; how < 12; how++) {
		int side = how & 1;

		two_providers();
		world.room[side] = 1 + (how >> 1) % 3;
		/* Else its lanes may be seen to go before its words come. */
		world.room_known = how >= 6 || side == 1;
		pair_start(&world);
		until_up();
		assert_int_equal(lanes_up(), world.room[side] < 3 ? 1 : 3);
		for (int i = 0; i < 2; i++)
			assert_int_equal(tn_link_provider_index(world.node[i].link), 0);
		if (how >> 1 == 1) { /* not even for one after a while: to the other provider */
			world.room[side] = 0;
			world.create_fails = true;
		}
		for (uint32_t i = 0; i < world.path_count; i++)
			if (world.paths[i].used)
				pair_break(&world, &world.paths[i]);
		assert_true(PAIR_UNTIL(&world, lanes_up() == 0, 5000));
		if (how >> 1 != 1)
			world.room[side] = 0;
		assert_true(PAIR_UNTIL(&world, lanes_up() == 3, 5000));
		for (int i = 0; i < 2; i++)
			assert_int_equal(tn_link_provider_index(world.node[i].link), how >> 1 == 1);
		pair_fini(&world);
	}
}

static void no_way(void **state)
{
	(void)state;
	two_providers();
	world.reach_fails[0] = world.reach_fails[1] = true;
	pair_start(&world);
	until_down();
	assert_ends(0, TERN_E_UNREACHABLE,
		    "mem: the peer says: not from here; alt: the peer says: not from here");
	assert_ends(1, TERN_E_UNREACHABLE, "no transport");
	pair_fini(&world);
	fresh();
	snprintf(world.node[1].providers[0].name, TN_LINK_PROVIDER_NAME, "else");
	pair_start(&world);
	until_down();
	assert_ends(0, TERN_E_UNREACHABLE, "mem: the peer does not have it");
	pair_fini(&world);
}

/* perftest PR#381, TF#14489, #45088: the peer falls silent while lanes are wired: bounded. */
static void wiring_is_bounded(void **state)
{
	(void)state;
	two_providers();
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, tn_link_get_state(world.node[0].link) == TN_LINK_WIRING, 100));
	world.mute = true;
	assert_true(PAIR_UNTIL(&world, world.node[0].down && world.node[1].down, 5000));
	assert_true(world.now < 1000000 + 5 * world.node[0].config.lane_timeout_ns);
	pair_fini(&world);
}

/*
 * Each lane, epoch and session has a secret of its own, the same on both sides (pair.h holds them equal).
 * Mooncake PR#3584: a late reply of the handshake bound the wrong queue pair; here it would not know the secret.
 */
static void tokens(void **state)
{
	(void)state;
	hello_with("k", "k");
	until_up();
	for (uint32_t i = 0; i < world.path_count; i++)
		for (uint32_t k = 0; k < i; k++)
			if (world.paths[i].used && world.paths[k].used)
				assert_memory_not_equal(world.paths[i].end[0].token,
							world.paths[k].end[0].token, TN_LINK_TOKEN_BYTES);
	pair_fini(&world);
}

/* ---- the end ---- */

static void keepalive(void **state)
{
	uint64_t silent;

	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	/* Idle for a long time: pings keep it up. */
	for (int i = 0; i < 2000; i++)
		pair_step(&world);
	assert_true(world.now > 100 * world.node[0].config.keepalive_ns);
	assert_false(world.node[0].down || world.node[1].down);
	assert_true(tn_counter_read(&tn_link_get_counters(world.node[0].link)->pings) > 50);
	world.mute = true;
	silent = world.now;
	assert_true(PAIR_UNTIL(&world, world.node[0].down && world.node[1].down, 1000));
	assert_ends(0, TERN_E_PEER_LOST, "keepalive");
	assert_ends(1, TERN_E_PEER_LOST, "keepalive");
	assert_true(world.now - silent <=
		    (world.node[0].config.keepalive_misses + 1) * world.node[0].config.keepalive_ns);
	pair_fini(&world);
}

static void no_recovery(void)
{
	for (int i = 0; i < 2; i++)
		world.node[i].config.recover_ns = 0;
}

static void lane_dies(void **state)
{
	(void)state;
	/* The peer lives: its words or the time decide for LANE. */
	fresh();
	no_recovery();
	pair_start(&world);
	until_up();
	pair_break(&world, &world.paths[TN_LINK_LANES_MAX + 1]);
	until_down();
	assert_ends(0, TERN_E_LANE, "");
	assert_ends(1, TERN_E_LANE, "");
	pair_fini(&world);
	/* The peer died with it: the control connection tells a moment later. */
	fresh();
	no_recovery();
	pair_start(&world);
	until_up();
	pair_break(&world, &world.paths[TN_LINK_LANES_MAX]);
	tn_link_on_lane_down(world.node[0].link, world.paths[TN_LINK_LANES_MAX].end[0].handle, TERN_E_LANE,
			     "gone", world.now);
	pair_pump(&world, 0);
	assert_int_equal(tn_link_get_state(world.node[0].link), TN_LINK_DRAINING);
	tn_link_on_ctrl_down(world.node[0].link, TERN_E_PEER_LOST, "reset by peer", world.now);
	world.node[0].ctrl_closed = true;
	pair_pump(&world, 0);
	assert_true(PAIR_UNTIL(&world, world.node[0].down, 1000));
	assert_ends(0, TERN_E_PEER_LOST, "reset by peer");
	pair_fini(&world);
}

/* The control connection ends at each moment from the first byte on. */
static void ctrl_dies_anywhere(void **state)
{
	(void)state;
	for (unsigned steps = 0; steps < 60; steps++) {
		two_providers();
		world.node[0].config.redial_ns = 0; /* else it may come back: rejoin_test.c */
		world.rand.state = steps * 7 + 1;
		world.connect_fails = steps % 2;
		pair_start(&world);
		for (unsigned i = 0; i < steps; i++)
			pair_step(&world);
		for (int i = 0; i < 2; i++) {
			world.node[i].ctrl_bytes = 0;
			tn_link_on_ctrl_down(world.node[i].link, TERN_E_PEER_LOST, NULL, world.now);
			tn_link_on_ctrl_down(world.node[i].link, TERN_E_PEER_LOST, NULL, world.now);
			pair_pump(&world, i);
		}
		until_down();
		assert_int_equal(world.node[0].status, TERN_E_PEER_LOST);
		pair_fini(&world);
	}
}

static void dial_fails(void **state)
{
	tn_link_action act;
	tn_link_config c;

	(void)state;
	fresh();
	c = world.node[0].config;
	world.node[0].memory = aligned_alloc(64, tn_link_memory_bytes(&c));
	assert_ok(tn_link_init(world.node[0].memory, tn_link_memory_bytes(&c), &c, 0, &world.node[0].link));
	assert_int_equal(tn_link_get_state(world.node[0].link), TN_LINK_DIAL);
	assert_false(tn_link_pending(world.node[0].link));
	tn_link_on_ctrl_down(world.node[0].link, TERN_E_REFUSED, "connect: refused", 5);
	assert_true(tn_link_next_action(world.node[0].link, 5, &act));
	assert_int_equal(act.type, TN_ACT_LINK_DOWN);
	assert_int_equal(act.link.status, TERN_E_REFUSED);
	assert_string_equal(act.link.detail, "connect: refused");
	assert_false(tn_link_next_action(world.node[0].link, 5, &act));
	pair_fini(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(config_errors),
		cmocka_unit_test(up_and_close),
		cmocka_unit_test(close_both_at_once),
		cmocka_unit_test(close_is_bounded),
		cmocka_unit_test(close_before_up),
		cmocka_unit_test(falls_back),
		cmocka_unit_test(one_lane_where_more_find_no_room),
		cmocka_unit_test(no_way),
		cmocka_unit_test(wiring_is_bounded),
		cmocka_unit_test(tokens),
		cmocka_unit_test(keepalive),
		cmocka_unit_test(lane_dies),
		cmocka_unit_test(ctrl_dies_anywhere),
		cmocka_unit_test(dial_fails),
	};

	return RUN(tests);
}
