/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back to the better provider, step by step: what starts it, what gives it up, and that lanes that break
 * take the spare ones. Random schedules of the same: pair_test.c.
 */
#include "cmocka_all.h"
#include "unit/link/pair.h"

static pair_world world;

static tn_link *link_of(int side)
{
	return world.node[side].link;
}

static uint32_t provider_of(int side)
{
	return tn_link_provider_index(link_of(side));
}

static const tn_link_counters *counters(int side)
{
	return tn_link_get_counters(link_of(side));
}

static bool both_in(tn_link_state state)
{
	return tn_link_get_state(link_of(0)) == state && tn_link_get_state(link_of(1)) == state;
}

static bool both_on(uint32_t provider)
{
	return both_in(TN_LINK_UP) && provider_of(0) == provider && provider_of(1) == provider;
}

/* Two providers on both sides; the first can't be reached for now. */
static void set_up(uint64_t probe_ns)
{
	pair_init(&world, 7);
	for (int i = 0; i < 2; i++) {
		world.node[i].config.provider_count = 2;
		world.node[i].config.probe_ns = probe_ns;
		world.node[i].config.keepalive_ns = 0;
	}
	world.reach_fails[0] = true;
}

static void up(void)
{
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 10000));
}

static void heal(void)
{
	world.reach_fails[0] = world.create_fails = world.connect_fails = false;
}

static bool stands(const pair_path *path)
{
	bool ok = path->used && !path->broken;

	for (int s = 0; s < 2; s++)
		ok = ok && path->end[s].up && !path->end[s].gone && !path->end[s].closed;
	return ok;
}

/* A path that is up at both ends: of the oldest lanes, which are in use, or of the newest. */
static pair_path *path_of(bool in_use)
{
	pair_path *found = NULL;

	for (uint32_t i = 0; i < world.path_count; i++)
		if (stands(&world.paths[i]) && (!found || !in_use))
			found = &world.paths[i];
	return found;
}

static void returns(void **state)
{
	(void)state;
	set_up(TN_NS_PER_SEC);
	up();
	assert_true(both_on(1));
	/* While it does not work, it is looked for ever more seldom: about 1 + 2 + 4 + ... seconds. */
	PAIR_UNTIL(&world, world.now > 40 * TN_NS_PER_SEC, 100000);
	assert_true(both_on(1));
	assert_in_range(counters(0)->probes, 4, 7);
	assert_int_equal(counters(1)->probes, 0);
	heal();
	assert_true(PAIR_UNTIL(&world, both_on(0), 100000));
	assert_int_equal(counters(0)->returns, 1);
	assert_int_equal(counters(1)->returns, 1);
	assert_int_equal(counters(0)->recoveries + counters(1)->recoveries, 0);
	/* At its best it does not look around any more. */
	assert_int_equal(tn_link_next_wake(link_of(0)), UINT64_MAX);
	pair_fini(&world);
}

/* The better provider has room for one lane only: the link goes back to that one. */
static void returns_with_one_lane(void **state)
{
	(void)state;
	for (int side = 0; side < 2; side++) {
		for (int known = 0; known < 2; known++) {
			set_up(TN_NS_PER_SEC);
			up();
			world.room[side] = 1;
			world.room_known = known;
			heal();
			assert_true(PAIR_UNTIL(&world, both_on(0), 100000));
			assert_int_equal(counters(0)->returns, 1);
			/* Its lanes may be seen to go before its words come: then at the next look. */
			assert_in_range(counters(0)->probes, 1, 2);
			pair_fini(&world);
		}
	}
}

static void never(void **state)
{
	(void)state;
	for (int off = 0; off < 2; off++) {
		set_up(TN_NS_PER_SEC);
		world.node[off].config.probe_ns = 0; /* or a peer that does not know of it */
		up();
		heal();
		PAIR_UNTIL(&world, false, 2000);
		assert_true(both_on(1));
		assert_int_equal(counters(0)->probes, 0);
		assert_int_equal(tn_link_next_wake(link_of(0)), UINT64_MAX);
		pair_fini(&world);
	}
}

static bool spare_stands(void)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < world.path_count; i++)
		n += stands(&world.paths[i]);
	return n >= 6;
}

/* A lane of the new set breaks: the old one goes on as if nothing had been. */
static void spare_breaks(void **state)
{
	(void)state;
	set_up(TN_NS_PER_SEC);
	up();
	heal();
	assert_true(PAIR_UNTIL(&world, spare_stands(), 10000));
	assert_true(both_on(1));
	pair_break(&world, path_of(false));
	PAIR_UNTIL(&world, !spare_stands() && world.now > 3 * TN_NS_PER_SEC, 200);
	assert_int_equal(counters(0)->recoveries, 0);
	assert_int_equal(counters(0)->probes_failed, 1);
	assert_true(PAIR_UNTIL(&world, both_on(0), 10000));
	pair_fini(&world);
}

/* The lanes in use break while the better ones stand ready: they are taken at once. */
static void fast_failover(void **state)
{
	uint32_t paths;

	(void)state;
	set_up(TN_NS_PER_SEC);
	up();
	heal();
	assert_true(PAIR_UNTIL(&world, spare_stands(), 10000));
	PAIR_UNTIL(&world, world.node[0].ctrl_bytes + world.node[1].ctrl_bytes == 0, 100);
	world.frozen = true;
	PAIR_UNTIL(&world, false, 500);
	assert_true(both_on(1));
	paths = world.path_count;
	pair_break(&world, path_of(true));
	assert_true(PAIR_UNTIL(&world, both_on(0), 10000));
	assert_int_equal(world.path_count, paths); /* no lane was made */
	assert_int_equal(counters(0)->recoveries, 1);
	pair_fini(&world);
}

/* UCX and NIC firmware alike: a port that flaps must not take the job with it each time. */
static void breaker(void **state)
{
	(void)state;
	set_up(TN_NS_PER_SEC);
	heal();
	up();
	assert_true(both_on(0));
	for (int i = 0; i < 3; i++) {
		assert_true(both_on(0));
		pair_break(&world, path_of(true));
		assert_true(PAIR_UNTIL(&world, !both_in(TN_LINK_UP), 1000));
		assert_true(PAIR_UNTIL(&world, both_in(TN_LINK_UP), 10000));
	}
	assert_true(both_on(1));
	assert_int_equal(counters(0)->held_back, 1);
	assert_int_equal(counters(0)->fallbacks, 1);
	assert_true(PAIR_UNTIL(&world, both_on(0), 100000));
	assert_int_equal(counters(0)->returns, 1);
	pair_fini(&world);
}

/* A close in any moment of a move is an orderly one. */
static void closes(void **state)
{
	(void)state;
	for (unsigned steps = 0; steps < 120; steps++) {
		for (int side = 0; side < 2; side++) {
			set_up(TN_NS_PER_SEC);
			up();
			heal();
			assert_true(PAIR_UNTIL(&world, world.path_count >= 12, 10000));
			for (unsigned i = 0; i < steps; i++)
				pair_step(&world);
			tn_link_close(link_of(side), world.now);
			pair_pump(&world, side);
			assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 100000));
			assert_int_equal(world.node[side].status, TERN_OK);
			assert_int_equal(world.node[!side].status, TERN_E_PEER_CLOSED);
			pair_fini(&world);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(returns),       cmocka_unit_test(returns_with_one_lane),
		cmocka_unit_test(never),         cmocka_unit_test(spare_breaks),
		cmocka_unit_test(fast_failover), cmocka_unit_test(breaker),
		cmocka_unit_test(closes),
	};

	return RUN(tests);
}
