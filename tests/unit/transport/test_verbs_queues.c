/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues and credits under verbs: who may fill what, and what happens when it is full. Each test names the
 * report of the field that it is about.
 */
#include "verbs_test.h"

/*
 * brpc#3132, #3202: the peer's answer overtakes the completion of what it answers, and the next post finds the
 * queue full. What the peer returned and what the NIC returned are two ledgers: "again", never an error.
 */
static void answers_overtake_completions(void **state)
{
	static uint8_t foreign[1000];
	uint32_t sent = 0, refused = 0, most;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	most = caps_of(&a).lane_wrs_max;
	fake_hold_sends(true);
	while (sent < 3 * most) {
		tern_status status;
		bool done;

		status = send_bytes(&a, foreign, sent % 2 ? 8 : sizeof(foreign), 0, &done);
		if (status == TERN_OK) {
			sent++;
			/* The answer is there before the completion. */
			UNTIL(&a, &b, b.recvs == sent);
			assert_ok(send_bytes(&b, "ack", 3, 0, &done));
			UNTIL(&a, &b, a.recvs == sent);
			continue;
		}
		assert_int_equal(status, TERN_AGAIN);
		assert_int_equal(sent - refused * most, most);
		refused++;
		fake_hold_sends(false);
		UNTIL(&a, &b, side_poll(&a) + side_poll(&b) == 0);
		/* Who was refused is told to try again. */
		assert_int_equal(a.dev->ops->arm(a.dev), TERN_BUSY);
		fake_hold_sends(true);
	}
	assert_true(refused >= 2);
	assert_int_equal(a.downs + b.downs, 0);
	fake_hold_sends(false);
	pair_close(&a, &b);
}

/* brpc#3431: one pool for both directions stalls all. Buffers to receive into are apart from those to send. */
static void senders_take_no_receive_buffer(void **state)
{
	static uint8_t foreign[4000];
	uint32_t sent = 0, slots;
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.bounces=8", NULL});
	slots = caps_of(&a).recv_slots;
	fake_hold_sends(true);
	while (send_bytes(&a, foreign, sizeof(foreign), 0, &done) == TERN_OK)
		sent++;
	assert_in_range(sent, 8, 8);
	fake_hold_sends(false);
	fake_hold_sends(true);
	/* a cannot send what is foreign, and gets all the same what the peer has credits for. */
	a.hold = true;
	for (uint32_t i = 0; i < slots; i++) {
		tern_status status;

		while ((status = send_bytes(&b, &i, sizeof(i), 0, &done)) == TERN_AGAIN) {
			fake_hold_sends(false);
			side_poll(&b);
			fake_hold_sends(true);
		}
		assert_ok(status);
	}
	UNTIL(&a, &b, a.recvs == slots);
	assert_int_equal(fake_counts_get().rnr, 0);
	fake_hold_sends(false);
	a.dev->ops->lane_break(a.lane);
	UNTIL(&a, &b, a.downs && b.downs);
	pair_close(&a, &b);
}

/* openlake#36: the pool is empty and the send says success with 0 bytes. "Again" is a status; all arrive whole. */
static void empty_pool_is_again(void **state)
{
	static uint8_t foreign[3000];
	uint32_t accepted = 0, again = 0;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.bounces=8", NULL});
	for (int i = 0; i < 2000; i++) {
		bool done;
		tern_status status = send_bytes(&a, foreign, sizeof(foreign), 0, &done);

		accepted += status == TERN_OK;
		again += status == TERN_AGAIN;
		assert_true(status == TERN_OK ? done : status == TERN_AGAIN && !done);
		if (i % 11 == 0)
			pump(&a, &b);
	}
	UNTIL(&a, &b, b.recvs == accepted);
	assert_true(again > 0 && accepted > 0);
	assert_int_equal(counter(&b, "verbs.rx_bytes"), (uint64_t)accepted * sizeof(foreign));
	pair_close(&a, &b);
}

#define LANES 24

/*
 * libfabric PR#4913: a queue that overruns kills all its queue pairs. Every lane is full, every receive buffer
 * is used, nobody polls, and then all is flushed at once: the fake counts an overrun as a fault.
 */
static void completion_queue_holds_everything(void **state)
{
	tn_lane *lanes[LANES][2];
	uint32_t expected = 0, slots;
	region from, to;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, TERN_ACCESS_WRITE);
	slots = caps_of(&b).recv_slots;
	for (int i = 0; i < LANES; i++) {
		lanes[i][0] = a.lane;
		lanes[i][1] = b.lane;
		if (i + 1 < LANES)
			lane_up(&a, &b);
	}
	for (int i = 0; i < LANES; i++) {
		tn_wr wr = {.local = from.ptr, .bytes = 10000, .key = to.key};

		while (tn_lane_write(lanes[i][0], &wr) == TERN_OK)
			expected++;
	}
	assert_int_equal(expected, LANES * caps_of(&a).lane_wrs_max);
	/* And the other way: all that credits allow, into one device. */
	for (uint32_t i = 0; i < slots; i++) {
		b.lane = lanes[i % LANES][1];
		(void)send_bytes(&b, &i, sizeof(i), 0, &(bool){false});
	}
	fake_cut(true);
	for (int i = 0; i < LANES; i++) {
		a.dev->ops->lane_break(lanes[i][0]);
		b.dev->ops->lane_break(lanes[i][1]);
	}
	UNTIL(&a, &b, a.downs == LANES && b.downs == LANES && a.dones == expected);
	assert_int_equal(fake_counts_get().faults, 0);
	for (int i = 0; i < LANES; i++) {
		a.lane = lanes[i][0];
		b.lane = lanes[i][1];
		lane_free(&a, &b);
		lane_free(&b, &a);
	}
	assert_all_home(&a);
	assert_all_home(&b);
	pair_close(&a, &b);
}

/*
 * libfabric#5907: credits that are not tied to the shared pool. What the device offers in all is there, held
 * messages of all lanes together included; the ledger itself is tests/unit/link.
 */
static void pool_covers_what_is_offered(void **state)
{
	tn_lane *lanes[8][2];
	uint32_t slots;
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	slots = caps_of(&b).recv_slots;
	assert_true(caps_of(&b).lane_recv_slots <= slots);
	for (int i = 0; i < 8; i++) {
		lanes[i][0] = a.lane;
		lanes[i][1] = b.lane;
		if (i < 7)
			lane_up(&a, &b);
	}
	b.hold = true;
	for (uint32_t i = 0; i < slots; i++) {
		a.lane = lanes[i % 8][0];
		while (send_bytes(&a, &i, sizeof(i), 0, &done) == TERN_AGAIN)
			pump(&a, &b);
	}
	UNTIL(&a, &b, b.recvs == slots);
	/* Lanes still come and go while every buffer that was offered is held. */
	for (int i = 0; i < 8; i++) {
		a.lane = lanes[i][0];
		b.lane = lanes[i][1];
		lane_again(&a, &b);
		lanes[i][0] = a.lane;
		lanes[i][1] = b.lane;
	}
	assert_int_equal(fake_counts_get().rnr, 0);
	for (int i = 0; i < 7; i++) {
		a.lane = lanes[i][0];
		b.lane = lanes[i][1];
		lane_free(&a, &b);
		lane_free(&b, &a);
	}
	a.lane = lanes[7][0];
	b.lane = lanes[7][1];
	pair_close(&a, &b);
}

/* SPDK#2429: the shared queue is empty. A peer that ignores credits waits, and no queue pair dies of it. */
static void empty_receive_queue_is_waited_for(void **state)
{
	uint32_t slots, sent = 0;
	tn_event kept[2000];
	int count = 0;
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	slots = caps_of(&b).recv_slots + TN_VB_RECV_RESERVE;
	while (sent < slots + 50) {
		tern_status status = send_bytes(&a, &sent, sizeof(sent), 0, &done);

		sent += status == TERN_OK;
		side_poll(&a);
		if (count < 1900)
			count += tn_dev_poll(b.dev, kept + count, 8);
		if (status == TERN_AGAIN && fake_counts_get().rnr)
			break;
	}
	while (fake_counts_get().rnr == 0)
		assert_int_equal(send_bytes(&a, &sent, sizeof(sent), 0, &done), TERN_OK);
	assert_int_equal(a.downs, 0);
	for (int i = 0; i < count; i++) {
		b.recvs += kept[i].type == TN_EV_RECV;
		assert_int_not_equal(kept[i].type, TN_EV_LANE_DOWN);
		if (kept[i].type == TN_EV_RECV)
			b.dev->ops->recv_done(b.dev, &kept[i]);
	}
	UNTIL(&a, &b, b.recvs >= sent);
	assert_int_equal(a.downs + b.downs, 0);
	pair_close(&a, &b);
}

/* ydb-platform/nbs#5790: min_rnr_timer 0 is the longest wait of all. 12, with as many tries as it takes. */
static void rnr_timer_is_12(void **state)
{
	struct ibv_qp_attr attr;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	for (int i = 0; i < 2; i++) {
		assert_true(fake_qp_attr_get(qpn_of(i ? &a : &b), &attr));
		assert_int_equal(attr.min_rnr_timer, 12);
		assert_int_equal(attr.rnr_retry, 7);
		assert_in_range(attr.timeout, 1, 20);
	}
	pair_close(&a, &b);
}

/* Lanes without messages have marks of their own, so that switches can queue bulk apart; or the same. */
static void bulk_has_its_own_marks(void **state)
{
	static const char *const same[] = {"verbs.traffic_class=32", "verbs.service_level=3", NULL};
	static const char *const apart[] = {"verbs.traffic_class=32", "verbs.service_level=3",
					    "verbs.bulk_traffic_class=96", "verbs.bulk_service_level=1",
					    NULL};

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct ibv_qp_attr attr;
		bool bulk = i % 2;
		side a, b;

		fake_reset(NULL, 0);
		assert_ok(side_open(&a, i < 2 ? same : apart));
		assert_ok(side_open(&b, i < 2 ? same : apart));
		a.bulk = b.bulk = bulk;
		lane_up(&a, &b);
		assert_true(fake_qp_attr_get(qpn_of(&a), &attr));
		assert_int_equal(attr.ah_attr.grh.traffic_class, bulk && i >= 2 ? 96 : 32);
		assert_int_equal(attr.ah_attr.sl, bulk && i >= 2 ? 1 : 3);
		pair_close(&a, &b);
	}
}

/* TensorPipe (source): error completions leak slots and receives. Thousands of them, one release path. */
static void errors_leak_nothing_2000(void **state)
{
	static uint8_t foreign[1500];
	uint32_t errors = 0, expected = 0;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	while (errors < 2000) {
		region from = region_make(&a, 5000, 0);
		region to = region_make(&b, 5000, TERN_ACCESS_WRITE | TERN_ACCESS_READ);
		uint32_t before = a.dones;

		fake_hold_sends(true);
		fake_fail_request(qpn_of(&a), errors % 2 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_OP_ERR);
		for (unsigned i = 0;; i++) {
			tn_wr wr = {.local = from.ptr, .bytes = 5000, .key = to.key};
			bool done = false;
			tern_status status = i % 3 == 0   ? tn_lane_write(a.lane, &wr)
					     : i % 3 == 1 ? send_bytes(&a, foreign, sizeof(foreign), 0, &done)
							  : tn_lane_read(a.lane, &wr);

			if (status != TERN_OK)
				break;
			expected += !done;
		}
		fake_hold_sends(false);
		UNTIL(&a, &b, a.downs);
		lane_free(&a, &b);
		lane_free(&b, &a);
		for (uint32_t i = before; i < a.dones; i++)
			errors += a.done[i % DONE_MAX].status != TERN_OK;
		assert_int_equal(a.dones, expected);
		assert_all_home(&a);
		assert_all_home(&b);
		tern_mem_free(a.mem, from.ptr);
		tern_mem_free(b.mem, to.ptr);
		lane_up(&a, &b);
	}
	assert_int_equal(fake_counts_get().rnr, 0);
	pair_close(&a, &b);
}

/* rdma_van (source): the completion thread waits for a queue that it alone refills. Both sides full, both go on. */
static void both_directions_full_go_on(void **state)
{
	enum { EACH = 20000 };
	uint32_t sent[2] = {0}, slots;
	side s[2];

	(void)state;
	fake_reset(NULL, 0);
	fake_scramble(11);
	pair_open(&s[0], &s[1], (const char *const[]){"verbs.recv_slots=16", "verbs.lane_wrs=8", NULL});
	slots = caps_of(&s[0]).recv_slots;
	while (s[0].recvs < EACH || s[1].recvs < EACH) {
		for (int i = 0; i < 2; i++) {
			bool done;

			while (sent[i] < EACH && sent[i] - s[!i].recvs < slots &&
			       send_bytes(&s[i], &sent[i], sizeof(sent[i]), 0, &done) == TERN_OK)
				sent[i]++;
			side_poll(&s[i]);
		}
	}
	assert_int_equal(s[0].downs + s[1].downs, 0);
	fake_scramble(0);
	pair_close(&s[0], &s[1]);
}

/* Reads beyond what both sides can at a time wait in the NIC; what was negotiated is the smaller. */
static void read_depth_is_the_smaller(void **state)
{
	static const char *const one[] = {"verbs.device=one", NULL}, *const two[] = {"verbs.device=two",
										     NULL};
	static const int depths[][2] = {{1, 16}, {16, 1}, {4, 4}, {16, 8}};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(depths); i++) {
		fake_device dev[2] = {fake_card_mlx5(), fake_card_mlx5()};
		uint64_t least = (uint64_t)TN_MIN(depths[i][0], depths[i][1]);
		region into, from;
		side a, b;

		dev[0].name = "one";
		dev[1].name = "two";
		dev[1].gids[3].address = "::ffff:192.168.1.6";
		dev[0].max_rd_atomic = depths[i][0];
		dev[1].max_rd_atomic = depths[i][1];
		fake_reset(dev, 2);
		assert_ok(side_open(&a, one));
		assert_ok(side_open(&b, two));
		lane_up(&a, &b);
		into = region_make(&a, 10000, 0);
		from = region_make(&b, 10000, TERN_ACCESS_READ);
		memset(from.ptr, 3, 10000);
		fake_hold_reads(true);
		for (int k = 0; k < 40; k++) {
			tn_wr wr = {.local = into.ptr, .bytes = 10000, .key = from.key};

			assert_ok(tn_lane_read(a.lane, &wr));
		}
		assert_int_equal(fake_counts_get().reads_at_once, least);
		fake_hold_reads(false);
		UNTIL(&a, &b, a.dones == 40);
		assert_int_equal(a.done[39].status, TERN_OK);
		assert_memory_equal(into.ptr, from.ptr, 10000);
		pair_close(&a, &b);
	}
}

/* libfabric PR#9093, UCX#5318: nothing is a length too: it completes, and what notifies does. */
static void zero_bytes_complete_and_notify(void **state)
{
	region from, to;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 100, 0);
	to = region_make(&b, 100, TERN_ACCESS_WRITE | TERN_ACCESS_READ);
	for (uint32_t i = 1; i <= 300; i++) {
		tn_wr wr = {.local = from.ptr, .key = to.key, .imm = i};
		uint32_t dones = a.dones;
		bool done;

		assert_ok(tn_lane_write(a.lane, &wr));
		assert_true(wr.done);
		assert_ok(tn_lane_write_imm(a.lane, &wr));
		assert_true(wr.done);
		assert_ok(send_bytes(&a, NULL, 0, 0, &done));
		assert_true(done);
		assert_ok(tn_lane_read(a.lane, &wr));
		UNTIL(&a, &b, b.imms == i && b.recvs == i && (wr.done || a.dones > dones));
	}
	pair_close(&a, &b);
}

/* One notification after the other, each looked for until it is there, and a few looks that find nothing. */
static void notify_slowly(side *a, side *b, const region *from, const region *to, uint32_t times)
{
	for (uint32_t i = 0, had = b->imms; i < times; i++) {
		tn_wr wr = {.local = from->ptr, .bytes = 8, .key = to->key, .imm = i};

		assert_ok(tn_lane_write_imm(a->lane, &wr));
		UNTIL(a, b, b->imms == had + i + 1);
		for (int looks = 0; looks < 5; looks++)
			side_poll(b);
	}
}

/* Buffers go back many at a time, when there is nothing else to do; a NIC that refuses isn't asked at each look. */
static void buffers_go_back_when_idle(void **state)
{
	region from, to;
	uint64_t calls;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 8, 0);
	to = region_make(&b, 8, TERN_ACCESS_WRITE);
	notify_slowly(&a, &b, &from, &to, 1);
	calls = fake_calls("post_srq_recv"); /* it counts buffers */
	notify_slowly(&a, &b, &from, &to, 16);
	assert_int_equal(fake_calls("post_srq_recv"), calls + 16);

	fake_fail("post_srq_recv", 1, EIO);
	while (fake_calls("post_srq_recv") == calls + 16)
		notify_slowly(&a, &b, &from, &to, 1);
	for (int looks = 0; looks < 100; looks++)
		side_poll(&b);
	assert_int_equal(fake_calls("post_srq_recv"), calls + 17);
	assert_int_equal(b.devices, 1);
	/* The next one that comes back asks again. */
	notify_slowly(&a, &b, &from, &to, 1);
	assert_int_equal(fake_calls("post_srq_recv"), calls + 33);
	notify_slowly(&a, &b, &from, &to, 2 * caps_of(&b).recv_slots);
	assert_int_equal(fake_counts_get().rnr, 0);
	pair_close(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_overtake_completions),
		cmocka_unit_test(senders_take_no_receive_buffer),
		cmocka_unit_test(empty_pool_is_again),
		cmocka_unit_test(completion_queue_holds_everything),
		cmocka_unit_test(pool_covers_what_is_offered),
		cmocka_unit_test(empty_receive_queue_is_waited_for),
		cmocka_unit_test(rnr_timer_is_12),
		cmocka_unit_test(bulk_has_its_own_marks),
		cmocka_unit_test(errors_leak_nothing_2000),
		cmocka_unit_test(both_directions_full_go_on),
		cmocka_unit_test(read_depth_is_the_smaller),
		cmocka_unit_test(zero_bytes_complete_and_notify),
		cmocka_unit_test(buffers_go_back_when_idle),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
