/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control connection comes back, and what keeps it from that. Cuts at random moments: pair_test.c.
 */
#include "cmocka_all.h"
#include "unit/link/pair.h"

static pair_world world;

static tn_link *link_of(int side)
{
	return world.node[side].link;
}

static const tn_link_counters *counters(int side)
{
	return tn_link_get_counters(link_of(side));
}

static bool both_in(tn_link_state state)
{
	return tn_link_get_state(link_of(0)) == state && tn_link_get_state(link_of(1)) == state;
}

static bool back(uint64_t times)
{
	return counters(0)->rejoins == times && counters(1)->rejoins == times;
}

static void up(void)
{
	pair_init(&world, 5);
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 10000));
	PAIR_UNTIL(&world, world.node[0].ctrl_bytes + world.node[1].ctrl_bytes == 0, 100);
}

static void must_end(int side, tern_status status, const char *words)
{
	assert_true(PAIR_UNTIL(&world, world.node[side].down, 20000));
	assert_int_equal(world.node[side].status, status);
	if (!strstr(world.node[side].detail, words))
		fail_msg("'%s' lacks '%s'", world.node[side].detail, words);
}

static void comes_back(void **state)
{
	(void)state;
	up();
	for (unsigned i = 1; i <= 50; i++) {
		pair_ctrl_cut(&world);
		assert_true(PAIR_UNTIL(&world, back(i), 10000));
		assert_true(both_in(TN_LINK_UP));
	}
	/* And it works: a close needs it. */
	tn_link_close(link_of(0), world.now);
	pair_pump(&world, 0);
	must_end(0, TERN_OK, "");
	must_end(1, TERN_E_PEER_CLOSED, "");
	pair_fini(&world);
}

/* What was said while nobody could hear it is said again: lanes break at once when it is back. */
static void nothing_is_missing(void **state)
{
	(void)state;
	for (unsigned steps = 0; steps < 40; steps++) {
		up();
		pair_ctrl_cut(&world);
		for (unsigned i = 0; i < steps; i++)
			pair_step(&world);
		assert_true(PAIR_UNTIL(&world, back(1), 10000));
		for (uint32_t i = 0; i < world.path_count; i++)
			if (world.paths[i].used && world.paths[i].end[0].up)
				pair_break(&world, &world.paths[i]);
		assert_true(PAIR_UNTIL(&world, !both_in(TN_LINK_UP), 1000));
		assert_true(PAIR_UNTIL(&world, both_in(TN_LINK_UP), 10000));
		pair_fini(&world);
	}
}

static void without_it(void **state)
{
	(void)state;
	/* Nobody listens there any more. */
	up();
	world.node[0].cut = world.node[1].cut = true;
	tn_link_on_ctrl_down(link_of(0), TERN_E_PEER_LOST, "reset", world.now);
	assert_true(both_in(TN_LINK_UP));
	tn_link_on_ctrl_down(link_of(0), TERN_E_REFUSED, "refused", world.now);
	pair_pump(&world, 0);
	must_end(0, TERN_E_PEER_LOST, "control connection lost: reset");
	pair_fini(&world);
	/* The acceptor waits its time, and no longer. */
	up();
	world.node[1].cut = true;
	tn_link_on_ctrl_down(link_of(1), TERN_E_PEER_LOST, "reset", world.now);
	must_end(1, TERN_E_PEER_LOST, "not back within 1000 ms (link.redial)");
	pair_fini(&world);
	/* A lane breaks as well: the peer is gone. */
	up();
	world.frozen = true;
	tn_link_on_ctrl_down(link_of(1), TERN_E_PEER_LOST, "reset", world.now);
	world.node[1].cut = true;
	for (uint32_t i = 0; i < world.path_count; i++)
		if (world.paths[i].used && world.paths[i].end[0].up)
			pair_break(&world, &world.paths[i]);
	must_end(1, TERN_E_PEER_LOST, "reset; then lane");
	pair_fini(&world);
	/* It is not wanted. */
	up();
	pair_fini(&world);
	pair_init(&world, 5);
	world.node[1].config.redial_ns = 0;
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 10000));
	tn_link_on_ctrl_down(link_of(0), TERN_E_PEER_LOST, "reset", world.now);
	pair_pump(&world, 0);
	must_end(0, TERN_E_PEER_LOST, "control connection lost: reset");
	pair_fini(&world);
}

/* REJOIN of the dialer, as it goes out. */
static const uint8_t *rejoin_of(void)
{
	world.node[0].cut = world.node[1].cut = true;
	tn_link_on_ctrl_down(link_of(0), TERN_E_PEER_LOST, "reset", world.now);
	pair_pump(&world, 0);
	world.node[0].cut = false;
	tn_link_on_ctrl_up(link_of(0), world.now);
	pair_pump(&world, 0);
	assert_int_equal(world.node[1].ctrl_bytes, TN_CTRL_HEAD_BYTES + TN_CTRL_REJOIN_BYTES);
	return world.node[1].ctrl + TN_CTRL_HEAD_BYTES;
}

static void forged(void **state)
{
	uint8_t bytes[TN_CTRL_REJOIN_BYTES];

	(void)state;
	/* Any bit of it is another: it is not of this link. */
	up();
	memcpy(bytes, rejoin_of(), sizeof(bytes));
	for (unsigned bit = 0; bit < 8 * sizeof(bytes); bit++) {
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_false(tn_link_rejoin(link_of(1), bytes, sizeof(bytes), world.now));
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	for (unsigned n = 0; n < sizeof(bytes); n++)
		assert_false(tn_link_rejoin(link_of(1), bytes, n, world.now));
	/* It is good once; the dialer takes none. */
	assert_false(tn_link_rejoin(link_of(0), bytes, sizeof(bytes), world.now));
	assert_true(tn_link_rejoin(link_of(1), bytes, sizeof(bytes), world.now));
	assert_false(tn_link_rejoin(link_of(1), bytes, sizeof(bytes), world.now));
	assert_int_equal(tn_link_get_state(link_of(1)), TN_LINK_UP);
	pair_fini(&world);
}

/* What answers is not the peer. */
static void wrong_answer(void **state)
{
	static const struct {
		bool refuse;
		tern_status status;
		const char *words;
	} answers[] = {{true, TERN_E_PEER_RESTARTED, "restarted"}, {false, TERN_E_PROTOCOL, "without proof"}};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(answers); i++) {
		tn_wire_rejoin said = {.number = 1};
		uint8_t buf[256];
		tn_writer w;

		up();
		rejoin_of();
		world.node[1].fresh = false; /* it never comes there */
		world.node[1].ctrl_bytes = 0;
		tn_writer_init(&w, buf, sizeof(buf));
		if (answers[i].refuse)
			tn_wire_put_refuse(&w, TERN_E_PEER_RESTARTED, "it was restarted");
		else
			tn_wire_put_rejoin(&w, TN_CTRL_REJOINED, &said);
		for (uint64_t at = 0; at < w.at; at++)
			tn_link_on_ctrl_bytes(link_of(0), buf + at, 1, world.now);
		pair_pump(&world, 0);
		must_end(0, answers[i].status, answers[i].words);
		pair_fini(&world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(comes_back),   cmocka_unit_test(nothing_is_missing),
		cmocka_unit_test(without_it),   cmocka_unit_test(forged),
		cmocka_unit_test(wrong_answer),
	};

	return RUN(tests);
}
