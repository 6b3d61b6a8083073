/* SPDX-License-Identifier: Apache-2.0 */
/* Several NICs in one device: where lanes go, what happens to them when a port or a NIC is lost. */
#include <errno.h>

#include "verbs_test.h"

#define LANES 8

static const char *const all[] = {"verbs.device=all", "verbs.probation=200ms", "verbs.keepalive=20ms", NULL};

/* Two NICs, in one fabric or each in its own. */
static void two_nics(bool apart)
{
	fake_device nic[2] = {fake_card_mlx5(), fake_card_mlx5()};

	nic[0].name = "left";
	nic[1].name = "right";
	nic[1].fabric = apart;
	memset(nic[0].gids, 0, sizeof(nic[0].gids));
	memset(nic[1].gids, 0, sizeof(nic[1].gids));
	nic[0].gids[1] = (fake_gid){"::ffff:10.0.1.1", IBV_GID_TYPE_ROCE_V2};
	nic[1].gids[2] = (fake_gid){apart ? "::ffff:10.0.2.1" : "::ffff:10.0.1.2", IBV_GID_TYPE_ROCE_V2};
	fake_reset(nic, 2);
}

static uint32_t rail_of(const tn_lane *lane)
{
	return ((const tn_vb_lane *)lane)->rail->index;
}

/* A lane moves bytes both ways. */
static void works(side *a, side *b)
{
	region from = region_make(a, 70000, 0), to = region_make(b, 70000, 2);
	uint32_t dones = a->dones, recvs = b->recvs;
	tn_wr wr = {.local = from.ptr, .bytes = 70000, .key = to.key};
	bool done;

	memset(from.ptr, 0x5a, 70000);
	assert_ok(tn_lane_write(a->lane, &wr));
	assert_ok(send_bytes(a, from.ptr, 3000, 0, &done));
	UNTIL(a, b, a->dones >= dones + 1 + !done && b->recvs > recvs);
	assert_int_equal(a->done[dones % DONE_MAX].status, TERN_OK);
	assert_int_equal(to.ptr[69999], 0x5a);
	tern_mem_free(a->mem, from.ptr);
	tern_mem_free(b->mem, to.ptr);
}

static void spread(bool apart)
{
	tn_lane *lanes[2][LANES];
	uint32_t used[2] = {0};
	side a, b;

	two_nics(apart);
	assert_ok(side_open(&a, all));
	assert_ok(side_open(&b, all));
	assert_string_equal(vb(&a)->name, "left+right");
	for (int i = 0; i < LANES; i++) {
		lane_up(&a, &b);
		lanes[0][i] = a.lane;
		lanes[1][i] = b.lane;
		if (apart)
			assert_int_equal(rail_of(a.lane), rail_of(b.lane));
		used[rail_of(a.lane)]++;
		works(&a, &b);
	}
	assert_int_equal(used[0], LANES / 2);
	assert_int_equal(fake_counts_get().qps, 2 * LANES); /* the other seats are given back */
	for (int i = 0; i < LANES; i++) {
		a.lane = lanes[0][i];
		b.lane = lanes[1][i];
		lane_free(&a, &b);
		lane_free(&b, &a);
	}
	pair_close(&a, &b);
}

static void lanes_spread(void **state)
{
	(void)state;
	spread(false);
}

static void each_in_its_fabric(void **state)
{
	(void)state;
	spread(true);
}

/* Mooncake#2960, PR#2438: one NIC down: its lanes end at once, new ones take the other; it is not readmitted
   before it has proven itself, but is better than nothing. */
static void a_port_goes_and_comes(void **state)
{
	side a, b;

	(void)state;
	two_nics(true);
	assert_ok(side_open(&a, all));
	assert_ok(side_open(&b, all));
	lane_up(&a, &b);
	assert_int_equal(rail_of(a.lane), 0);
	fake_port_turns(0, 1, IBV_PORT_DOWN);
	UNTIL(&a, &b, a.downs && b.downs && a.devices && b.devices);
	assert_int_equal(a.down_status, TERN_E_LANE);
	for (int i = 0; i < 3; i++) {
		lane_free(&a, &b);
		lane_free(&b, &a);
		lane_up(&a, &b);
		assert_int_equal(rail_of(a.lane), 1);
		works(&a, &b);
	}
	fake_port_turns(0, 1, IBV_PORT_ACTIVE);
	UNTIL(&a, &b,
	      vb(&a)->rails[0].health != TN_VB_RAIL_DOWN && vb(&b)->rails[0].health != TN_VB_RAIL_DOWN);
	/* On probation (unless this took longer than that), or else the only one. */
	fake_port_turns(1, 1, IBV_PORT_DOWN);
	UNTIL(&a, &b, a.downs && b.downs);
	lane_free(&a, &b);
	lane_free(&b, &a);
	lane_up(&a, &b);
	assert_int_equal(rail_of(a.lane), 0);
	UNTIL(&a, &b, vb(&a)->rails[0].health == TN_VB_RAIL_UP);
	pair_close(&a, &b);
}

static void probation_keeps_lanes_away(void **state)
{
	static const char *const wary[] = {"verbs.device=all", "verbs.probation=1000s", NULL};
	side a, b;

	(void)state;
	two_nics(false);
	assert_ok(side_open(&a, wary));
	assert_ok(side_open(&b, wary));
	fake_port_turns(0, 1, IBV_PORT_DOWN);
	UNTIL(&a, &b,
	      vb(&a)->rails[0].health == TN_VB_RAIL_DOWN && vb(&b)->rails[0].health == TN_VB_RAIL_DOWN);
	fake_port_turns(0, 1, IBV_PORT_ACTIVE);
	for (int i = 0; i < 4; i++) {
		lane_up(&a, &b);
		assert_int_equal(vb(&a)->rails[0].health, TN_VB_RAIL_PROBATION);
		assert_int_equal(rail_of(a.lane), 1);
		lane_free(&a, &b);
		lane_free(&b, &a);
	}
	pair_close(&a, &b);
}

/* A NIC that falls off the bus takes its lanes along and nothing else. */
static void a_nic_dies(void **state)
{
	side a, b;

	(void)state;
	two_nics(true);
	assert_ok(side_open(&a, all));
	assert_ok(side_open(&b, all));
	lane_up(&a, &b);
	fake_dies(0);
	UNTIL(&a, &b, a.downs && b.downs);
	for (int i = 0; i < 3; i++) {
		lane_free(&a, &b);
		lane_free(&b, &a);
		lane_up(&a, &b);
		assert_int_equal(rail_of(a.lane), 1);
		works(&a, &b);
	}
	assert_int_equal(vb(&a)->rails[0].health, TN_VB_RAIL_LOST);
	pair_close(&a, &b);
}

/* byteps#377, Mooncake#1754: refused, down or not permitted: left out with a reason, the other works. */
static void unusable_ones_are_left_out(void **state)
{
	static const char *const list[] = {"verbs.device=left,right:1,gone,left:x", NULL};

	(void)state;
	for (int how = 0; how < 5; how++) {
		fake_device nic[2] = {fake_card_mlx5(), fake_card_mlx5()};
		side a, b;

		nic[0].name = "left";
		nic[1].name = "right";
		if (how == 0)
			nic[0].open_errno = EACCES;
		if (how == 1)
			nic[0].state[0] = IBV_PORT_DOWN;
		if (how == 2)
			nic[0].reg_refused_from = 1;
		if (how == 3)
			nic[0].reg_refused_bytes = 4096;
		if (how == 4)
			nic[0].max_srq = 0;
		fake_reset(nic, 2);
		assert_ok(side_open(&a, how % 2 ? all : list));
		assert_ok(side_open(&b, how % 2 ? all : list));
		assert_string_equal(vb(&a)->name, "right");
		lane_up(&a, &b);
		works(&a, &b);
		pair_close(&a, &b);
	}
}

/* "auto" takes one; a list goes by its order. */
static void what_is_taken(void **state)
{
	static const char *const list[] = {"verbs.device=right,left", NULL};
	side s;

	(void)state;
	two_nics(false);
	assert_ok(side_open(&s, NULL));
	assert_int_equal(vb(&s)->rail_count, 1);
	side_close(&s, NULL);
	assert_ok(side_open(&s, list));
	assert_string_equal(vb(&s)->name, "right+left");
	side_close(&s, NULL);
	nothing_left();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lanes_spread),
		cmocka_unit_test(each_in_its_fabric),
		cmocka_unit_test(a_port_goes_and_comes),
		cmocka_unit_test(probation_keeps_lanes_away),
		cmocka_unit_test(a_nic_dies),
		cmocka_unit_test(unusable_ones_are_left_out),
		cmocka_unit_test(what_is_taken),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
