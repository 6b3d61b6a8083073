/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of verbs while they are used: cards as they are in the field, indexes that move, MTUs that differ,
 * ports that are down. Each test names the report of the field that it is about.
 */
#include "verbs_test.h"

/* A lane, messages and a write of 100,000 bytes go through between two devices as they are now. */
static void traffic(side *a, side *b)
{
	region from = region_make(a, 100000, 0), to = region_make(b, 100000, TERN_ACCESS_WRITE);
	tn_wr wr = {.local = from.ptr, .bytes = 100000, .key = to.key};
	uint32_t dones = a->dones, recvs = b->recvs;
	bool done;

	memset(from.ptr, 0x5a, 100000);
	assert_ok(tn_lane_write(a->lane, &wr));
	assert_ok(send_bytes(a, "hello", 5, 0, &done));
	UNTIL(a, b, (a->dones > dones && b->recvs > recvs) || a->downs || b->downs);
	assert_int_equal(a->downs + b->downs, 0);
	assert_int_equal(a->done[dones].status, TERN_OK);
	assert_memory_equal(from.ptr, to.ptr, 100000);
	tern_mem_free(a->mem, from.ptr);
	tern_mem_free(b->mem, to.ptr);
}

static struct ibv_qp_attr wiring_of(const side *s)
{
	struct ibv_qp_attr attr;

	assert_true(fake_qp_attr_get(qpn_of(s), &attr));
	return attr;
}

/* NCCL#769, #426; Mooncake PR#113; uccl PR#803: link-local or RoCEv1 chosen. Wired with the right entry. */
static void cards_are_wired_by_the_right_gid(void **state)
{
	static const struct {
		fake_device (*card)(void);
		int index; /* -1: by LID */
	} rows[] = {{fake_device_default, 3}, {fake_card_mlx5, 3}, {fake_card_irdma, 1},
		    {fake_card_bnxt, 3},      {fake_card_ib, -1},  {fake_card_tiny, 3}};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(rows); i++) {
		fake_device card = rows[i].card();
		struct ibv_qp_attr attr;
		side a, b;

		fake_reset(&card, 1);
		pair_open(&a, &b, NULL);
		attr = wiring_of(&a);
		assert_int_equal(attr.ah_attr.is_global, rows[i].index >= 0);
		if (rows[i].index >= 0)
			assert_int_equal(attr.ah_attr.grh.sgid_index, rows[i].index);
		else
			assert_int_equal(attr.ah_attr.dlid, card.lid);
		traffic(&a, &b);
		pair_close(&a, &b);
	}
}

/* NCCL#2157, #1819: after a flap the address is at another index; the old one never works again. */
static void index_moves_in_a_flap(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.keepalive=10ms", NULL});
	for (int i = 0; i < 6; i++) {
		int was = 3 + i, now = 4 + i;

		traffic(&a, &b);
		assert_int_equal(wiring_of(&a).ah_attr.grh.sgid_index, was);
		fake_port_turns(0, 1, IBV_PORT_DOWN);
		fake_set_gid(0, was, NULL, 0);
		fake_set_gid(0, now, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2);
		UNTIL(&a, &b, a.downs && b.downs);
		fake_port_turns(0, 1, IBV_PORT_ACTIVE);
		UNTIL(&a, &b, counter(&a, "verbs.async_events") == counter(&b, "verbs.async_events"));
		lane_again(&a, &b);
		assert_int_equal(wiring_of(&a).ah_attr.grh.sgid_index, now);
	}
	pair_close(&a, &b);
}

/* NCCL#2157: the events wait unread when the next lane is wired: they are read before. */
static void index_moves_unseen(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	assert_ok(side_open(&a, NULL));
	assert_ok(side_open(&b, NULL));
	fake_set_gid(0, 3, NULL, 0);
	fake_set_gid(0, 6, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2);
	lane_up(&a, &b);
	assert_int_equal(wiring_of(&a).ah_attr.grh.sgid_index, 6);
	traffic(&a, &b);
	pair_close(&a, &b);
}

/* NCCL#1819: the address itself is another one after the flap, on both sides. */
static void address_changes_in_a_flap(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.keepalive=10ms", NULL});
	traffic(&a, &b);
	fake_port_turns(0, 1, IBV_PORT_DOWN);
	fake_set_gid(0, 2, NULL, 0);
	fake_set_gid(0, 3, NULL, 0);
	fake_set_gid(0, 2, "::ffff:10.0.9.9", IBV_GID_TYPE_ROCE_V1);
	fake_set_gid(0, 4, "::ffff:10.0.9.9", IBV_GID_TYPE_ROCE_V2);
	UNTIL(&a, &b, a.downs && b.downs);
	fake_port_turns(0, 1, IBV_PORT_ACTIVE);
	UNTIL(&a, &b, counter(&a, "verbs.async_events") == counter(&b, "verbs.async_events"));
	lane_again(&a, &b);
	traffic(&a, &b);
	pair_close(&a, &b);
}

/* autoscriptlabs/nccl-mesh-plugin PR#12: MTU hard-coded. It is the smaller of both sides, on both. */
static void mtu_is_the_smaller(void **state)
{
	static const char *const one[] = {"verbs.device=one", NULL}, *const two[] = {"verbs.device=two",
										     NULL};

	(void)state;
	for (int x = IBV_MTU_256; x <= IBV_MTU_4096; x++) {
		for (int y = IBV_MTU_256; y <= IBV_MTU_4096; y++) {
			fake_device dev[2] = {fake_card_mlx5(), fake_card_mlx5()};
			side a, b;

			dev[0].name = "one";
			dev[1].name = "two";
			dev[1].gids[3].address = "::ffff:192.168.1.6";
			dev[0].mtu = (enum ibv_mtu)x;
			dev[1].mtu = (enum ibv_mtu)y;
			fake_reset(dev, 2);
			assert_ok(side_open(&a, one));
			assert_ok(side_open(&b, two));
			lane_up(&a, &b);
			/* Both have the same number on their own devices. */
			assert_int_equal(wiring_of(&a).path_mtu, TN_MIN(x, y));
			traffic(&a, &b);
			traffic(&b, &a);
			pair_close(&a, &b);
		}
	}
}

/* nccl-mesh-plugin PR#12: the MTU is lowered while the device is open. The next lane keeps to it. */
static void mtu_is_lowered_in_use(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	assert_int_equal(wiring_of(&a).path_mtu, IBV_MTU_4096);
	fake_set_mtu(0, IBV_MTU_1024);
	fake_port_turns(0, 1, IBV_PORT_ACTIVE);
	UNTIL(&a, &b, counter(&a, "verbs.async_events") && counter(&b, "verbs.async_events"));
	lane_again(&a, &b);
	assert_int_equal(wiring_of(&a).path_mtu, IBV_MTU_1024);
	traffic(&a, &b);
	pair_close(&a, &b);
}

/* byteps#377, tensorpipe#413: a down port was chosen, and the process aborted. Skipped, said, gone on. */
static void down_ports_are_skipped(void **state)
{
	fake_device dev[3] = {fake_card_mlx5(), fake_card_mlx5(), fake_card_irdma()};
	char reason[240];
	side a, b;

	(void)state;
	dev[0].state[0] = IBV_PORT_DOWN;
	dev[1].name = "mlx5_1";
	dev[1].state[0] = IBV_PORT_INIT;
	fake_reset(dev, 3);
	assert_ok(tn_provider_verbs.probe(reason, sizeof(reason)));
	assert_non_null(strstr(reason, "irdma0"));
	pair_open(&a, &b, NULL);
	traffic(&a, &b);
	pair_close(&a, &b);
	dev[2].state[0] = IBV_PORT_ARMED;
	fake_reset(dev, 3);
	assert_int_equal(side_open(&a, NULL), TERN_E_NO_DEVICE);
	assert_non_null(strstr(tern_detail(), "is not ACTIVE"));
	nothing_left();
}

/* byteps#377: the path is there at the choice and gone at the connect: the lane is down in bounded time. */
static void port_goes_down_while_connecting(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	assert_ok(side_open(&a, NULL));
	assert_ok(side_open(&b, NULL));
	assert_ok(lane_make(&a, true));
	assert_ok(lane_make(&b, false));
	((tn_vb_lane *)a.lane)->timeout_ns = ((tn_vb_lane *)b.lane)->timeout_ns = 200 * TN_NS_PER_MS;
	fake_port_turns(0, 1, IBV_PORT_DOWN);
	assert_ok(b.dev->ops->lane_connect(b.lane, &a.addr, &a.lane_addr));
	assert_ok(a.dev->ops->lane_connect(a.lane, &b.addr, &b.lane_addr));
	UNTIL(&a, &b, a.downs && b.downs);
	assert_int_equal(a.down_status, TERN_E_DEADLINE);
	assert_int_equal(a.ups + b.ups, 0);
	fake_port_turns(0, 1, IBV_PORT_ACTIVE);
	lane_again(&a, &b);
	traffic(&a, &b);
	pair_close(&a, &b);
}

/* Events in bursts, between completions. All are taken and acknowledged, and nothing suffers. */
static void bursts_of_events(void **state)
{
	static const enum ibv_event_type types[] = {IBV_EVENT_PORT_ACTIVE,       IBV_EVENT_GID_CHANGE,
						    IBV_EVENT_PKEY_CHANGE,       IBV_EVENT_LID_CHANGE,
						    IBV_EVENT_SM_CHANGE,         IBV_EVENT_CLIENT_REREGISTER,
						    IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_SQ_DRAINED};
	uint64_t raised = 0;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	fake_scramble(17);
	pair_open(&a, &b, NULL);
	for (int round = 0; round < 100; round++) {
		fake_async_burst(0, types[round % TN_COUNT_OF(types)], 1, 30);
		raised += 30;
		traffic(round % 2 ? &a : &b, round % 2 ? &b : &a);
	}
	UNTIL(&a, &b,
	      counter(&a, "verbs.async_events") >= raised && counter(&b, "verbs.async_events") >= raised);
	assert_int_equal(fake_counts_get().unacked, 0);
	assert_int_equal(a.downs + b.downs, 0);
	fake_scramble(0);
	pair_close(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cards_are_wired_by_the_right_gid),
		cmocka_unit_test(index_moves_in_a_flap),
		cmocka_unit_test(index_moves_unseen),
		cmocka_unit_test(address_changes_in_a_flap),
		cmocka_unit_test(mtu_is_the_smaller),
		cmocka_unit_test(mtu_is_lowered_in_use),
		cmocka_unit_test(down_ports_are_skipped),
		cmocka_unit_test(port_goes_down_while_connecting),
		cmocka_unit_test(bursts_of_events),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
