/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends and new beginnings under verbs: drains that are bounded, queue pairs that come again, what arrives
 * late. Each test names the report of the field that it is about.
 */
#include <errno.h>

#include "verbs_test.h"

/* Writes, reads and messages of every kind, until the lane takes no more. Returns how many events will come. */
static uint32_t fill(side *a, region from, region to, uint64_t *cookie)
{
	uint8_t foreign[1000] = {0};
	uint32_t expected = 0;

	for (;;) {
		tn_wr wr = {.cookie = ++*cookie, .local = from.ptr, .bytes = 5000, .key = to.key};
		tern_status status;
		bool done = false;

		switch (*cookie % 4) {
		case 0:
			status = tn_lane_read(a->lane, &wr);
			break;
		case 1:
			status = send_bytes(a, foreign, sizeof(foreign), wr.cookie, &done);
			break;
		case 2:
			status = send_bytes(a, from.ptr, 1000, wr.cookie, &done);
			break;
		default:
			status = tn_lane_write(a->lane, &wr);
			break;
		}
		if (status != TERN_OK)
			return expected;
		expected += !done;
	}
}

static void assert_once_each(const side *s)
{
	for (uint32_t i = 0; i < s->dones; i++) {
		for (uint32_t k = i + 1; k < s->dones; k++)
			assert_int_not_equal(s->done[i].cookie, s->done[k].cookie);
	}
}

/*
 * Mooncake#3299: a local length error began an endless reconnect storm. It is the caller's fault by class,
 * the lane goes down once, and the device makes no queue pair by itself.
 */
static void own_mistakes_start_no_storm(void **state)
{
	region from, to;
	uint64_t made;
	side a, b;
	tn_wr wr;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, TERN_ACCESS_WRITE);
	wr = (tn_wr){.local = from.ptr, .bytes = 10000, .key = to.key};
	made = fake_calls("create_qp");
	fake_fail_request(qpn_of(&a), IBV_WC_LOC_LEN_ERR);
	assert_ok(tn_lane_write(a.lane, &wr));
	UNTIL(&a, &b, a.downs && a.dones);
	assert_int_equal(a.done[0].status, TERN_E_INVALID);
	assert_int_equal(tern_status_radius(a.done[0].status), TERN_RADIUS_CALLER);
	for (int i = 0; i < 200; i++)
		pump(&a, &b);
	assert_int_equal(a.downs, 1);
	assert_int_equal(fake_calls("create_qp"), made);
	pair_close(&a, &b);
}

/* Mooncake PR#2427: reset with work pending, nothing completed for a minute. Bounded, complete, once each. */
static void drain_is_bounded_and_complete(void **state)
{
	(void)state;
	for (int mode = 0; mode < 4; mode++) {
		uint64_t cookie = 0;
		uint32_t expected;
		region from, to;
		side a, b;

		fake_reset(NULL, 0);
		pair_open(&a, &b, NULL);
		from = region_make(&a, 10000, 0);
		to = region_make(&b, 10000, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		fake_hold_sends(true);
		fake_never_flush(mode == 1);
		expected = fill(&a, from, to, &cookie);
		if (mode == 2)
			fake_cut(true);
		if (mode == 3)
			fake_dies(0);
		else
			a.dev->ops->lane_break(a.lane);
		/* In mode 1 nothing ever comes of it. */
		fake_hold_sends(mode == 1);
		UNTIL(&a, &b, a.downs && a.dev->ops->lane_drained(a.lane));
		assert_int_equal(a.dones, expected);
		assert_once_each(&a);
		fake_never_flush(false);
		fake_hold_sends(false);
		fake_cut(false);
		pair_close(&a, &b);
	}
}

/* Mooncake PR#1567: receives that were not posted again. They are there before a queue pair can be reached. */
static void receives_are_there_before_the_lane(void **state)
{
	uint32_t sent = 0;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	for (int round = 0; round < 30; round++) {
		/* At once what credits allow, and the end in the middle of it. */
		for (uint32_t i = 0; i < 100; i++) {
			bool done;

			sent += send_bytes(&a, &i, sizeof(i), 0, &done) == TERN_OK;
			if (i % 7 == 0)
				side_poll(&b);
		}
		if (round % 2)
			a.dev->ops->lane_break(a.lane);
		else
			b.dev->ops->lane_break(b.lane);
		UNTIL(&a, &b, a.downs && b.downs);
		lane_again(&a, &b);
	}
	assert_true(sent >= 1000);
	assert_int_equal(fake_counts_get().early_rts, 0);
	assert_int_equal(fake_counts_get().rnr, 0);
	lane_free(&a, &b);
	lane_free(&b, &a);
	assert_all_home(&b);
	pair_close(&a, &b);
}

/*
 * brpc (source, 2026): a queue pair was recycled while its completion queue still held old completions. Numbers
 * come again at once here: none is destroyed before the last of its completions was taken.
 */
static void drained_before_the_number_comes_again(void **state)
{
	uint32_t first;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	fake_keep_stale(true);
	pair_open(&a, &b, NULL);
	first = qpn_of(&a);
	for (int round = 0; round < 50; round++) {
		region from = region_make(&a, 10000, 0);
		region to = region_make(&b, 10000, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		uint64_t cookie = (uint64_t)round << 32;
		uint32_t before = a.dones, expected = fill(&a, from, to, &cookie);

		for (int i = 0; i < round; i++)
			pump(&a, &b);
		(round % 2 ? a.dev : b.dev)->ops->lane_break(round % 2 ? a.lane : b.lane);
		UNTIL(&a, &b, a.downs && b.downs);
		lane_free(&a, &b);
		lane_free(&b, &a);
		assert_int_equal(a.dones - before, expected);
		for (uint32_t i = before; i < a.dones; i++)
			assert_int_equal(a.done[i % DONE_MAX].cookie >> 32, round);
		tern_mem_free(a.mem, from.ptr);
		tern_mem_free(b.mem, to.ptr);
		lane_up(&a, &b);
	}
	assert_in_range(qpn_of(&a), first, first + 3);
	assert_int_equal(fake_counts_get().destroyed_busy, 0);
	assert_int_equal(counter(&a, "verbs.late") + counter(&b, "verbs.late"), 0);
	pair_close(&a, &b);
}

/*
 * brpc (source, 2026), the hard way: the drain's bound passed, the number was given to another lane, and only
 * then the completions of the former come. They change nothing.
 */
static void late_completions_change_nothing(void **state)
{
	uint64_t cookie = 0;
	uint32_t expected, before;
	region from, to;
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	fake_keep_stale(true);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	fake_hold_sends(true);
	expected = fill(&a, from, to, &cookie);
	a.dev->ops->lane_break(a.lane);
	UNTIL(&a, &b, a.downs && a.dev->ops->lane_drained(a.lane));
	assert_int_equal(a.dones, expected);
	assert_int_equal(counter(&a, "verbs.forced_drains"), 1);
	a.dev->ops->lane_destroy(a.lane);
	a.lane = NULL;
	b.dev->ops->lane_close(b.lane);
	fake_hold_sends(false);
	lane_free(&b, &a);
	before = a.dones;
	lane_up(&a, &b);
	assert_ok(send_bytes(&a, "new", 3, 0, &done));
	UNTIL(&a, &b, b.recvs > 0 && side_poll(&a) == 0);
	assert_true(counter(&a, "verbs.late") >= expected);
	assert_int_equal(a.dones, before);
	assert_int_equal(a.downs + b.downs, 0);
	lane_free(&a, &b);
	lane_free(&b, &a);
	assert_all_home(&a);
	pair_close(&a, &b);
}

/*
 * pegaflow#403, ydb-platform/nbs#5729: a read was given up, its buffer used again, and the late data went into
 * it. Once the lane is drained nothing is written any more.
 */
static void nothing_is_written_after_the_drain(void **state)
{
	region into, from;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	into = region_make(&a, 10000, 0);
	from = region_make(&b, 10000, TERN_ACCESS_READ);
	memset(from.ptr, 0xee, 10000);
	fake_hold_reads(true);
	for (int i = 0; i < 20; i++) {
		tn_wr wr = {.local = into.ptr, .bytes = 10000, .key = from.key};

		assert_ok(tn_lane_read(a.lane, &wr));
	}
	a.dev->ops->lane_break(a.lane);
	UNTIL(&a, &b, a.downs && a.dev->ops->lane_drained(a.lane));
	assert_int_equal(a.dones, 20);
	for (int i = 0; i < 20; i++)
		assert_int_equal(a.done[i].status, TERN_E_FLUSHED);
	memset(into.ptr, 0x11, 10000);
	fake_hold_reads(false);
	for (int i = 0; i < 100; i++)
		pump(&a, &b);
	for (int i = 0; i < 10000; i++)
		assert_int_equal(into.ptr[i], 0x11);
	pair_close(&a, &b);
}

/* libfabric#5864, Mooncake#1845: a leak per dead client. Peers that die without a word leave nothing behind. */
static void dead_peers_leave_nothing(void **state)
{
	uint64_t qps;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	assert_ok(side_open(&b, (const char *const[]){"verbs.keepalive=10ms", NULL}));
	qps = fake_counts_get().qps;
	for (int i = 0; i < 100; i++) {
		assert_ok(side_open(&a, NULL));
		lane_up(&a, &b);
		/* As a kill does: the kernel ends the queue pair, nobody says goodbye. */
		tn_vb_qp_error((tn_vb_lane *)a.lane);
		UNTIL(&b, NULL, b.downs);
		lane_free(&b, NULL);
		side_close(&a, &b);
		assert_int_equal(fake_counts_get().qps, qps);
	}
	assert_int_equal(counter(&b, "verbs.lanes"), 0);
	assert_all_home(&b);
	side_close(&b, NULL);
	nothing_left();
}

/* Mooncake#2960: one device dies; lanes of the other, in the same process and memory, know nothing of it. */
static void one_device_dies_the_other_lives(void **state)
{
	static const char *const first[] = {"verbs.device=rail0", NULL}, *const second[] = {
										 "verbs.device=rail1", NULL};
	fake_device dev[2] = {fake_card_mlx5(), fake_card_mlx5()};
	side a0, b0, a1, b1;
	uint32_t sent = 0;
	bool done;

	(void)state;
	dev[0].name = "rail0";
	dev[1].name = "rail1";
	dev[1].fabric = 1;
	fake_reset(dev, 2);
	assert_ok(side_open(&a0, first));
	assert_ok(side_open_with(&a1, a0.mem, second));
	assert_ok(side_open(&b0, first));
	assert_ok(side_open_with(&b1, b0.mem, second));
	lane_up(&a0, &b0);
	lane_up(&a1, &b1);
	fake_dies(0);
	UNTIL(&a0, &b0, a0.downs && b0.downs && a0.devices && b0.devices);
	assert_int_equal(a0.down_status, TERN_E_DEVICE);
	assert_int_equal(send_bytes(&a0, "x", 1, 0, &done), TERN_E_LANE);
	for (; sent < 1000; sent++) {
		assert_ok(send_bytes(&a1, &sent, sizeof(sent), 0, &done));
		UNTIL(&a1, &b1, b1.recvs > sent);
	}
	assert_int_equal(a1.downs + b1.downs + a1.devices + b1.devices, 0);
	a1.dev->ops->lane_close(a1.lane);
	b1.dev->ops->lane_close(b1.lane);
	lane_free(&a1, &b1);
	side_close(&b1, NULL);
	side_close(&a1, NULL);
	lane_free(&a0, &b0);
	side_close(&b0, NULL);
	side_close(&a0, NULL);
	nothing_left();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_mistakes_start_no_storm),
		cmocka_unit_test(drain_is_bounded_and_complete),
		cmocka_unit_test(receives_are_there_before_the_lane),
		cmocka_unit_test(drained_before_the_number_comes_again),
		cmocka_unit_test(late_completions_change_nothing),
		cmocka_unit_test(nothing_is_written_after_the_drain),
		cmocka_unit_test(dead_peers_leave_nothing),
		cmocka_unit_test(one_device_dies_the_other_lives),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
