/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and lanes of verbs: each call fails in turn, limits, wiring, drains, events, fork. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "verbs_test.h"

/* ---- the n-th call fails ---- */

/* A whole life in which any step may fail; loops end, whatever happens. */
static void live_once(void)
{
	side a = {0}, b = {0};
	bool done;

	if (side_open(&a, NULL) != TERN_OK || side_open(&b, NULL) != TERN_OK) {
		assert_string_not_equal(tern_detail(), "");
	} else if (lane_make(&a, true) == TERN_OK && lane_make(&b, false) == TERN_OK) {
		tern_status to_a = b.dev->ops->lane_connect(b.lane, &a.addr, &a.lane_addr);
		tern_status to_b = a.dev->ops->lane_connect(a.lane, &b.addr, &b.lane_addr);

		if (to_a == TERN_OK && to_b == TERN_OK) {
			UNTIL(&a, &b, (a.ups && b.ups) || a.downs || b.downs || a.devices || b.devices);
			if (a.ups && b.ups && send_bytes(&a, "hello", 5, 1, &done) == TERN_OK)
				UNTIL(&a, &b, b.recvs || a.downs || b.downs || a.devices || b.devices);
			(void)a.dev->ops->arm(a.dev);
		} else {
			assert_string_not_equal(tern_detail(), "");
		}
	}
	side_close(&a, b.dev ? &b : NULL);
	side_close(&b, NULL);
}

static void nth_call_fails(void **state)
{
	static const char *const calls[] = {
		"get_device_list", "open_device",         "query_device",  "query_port", "alloc_pd",
		"reg_mr",          "create_comp_channel", "create_cq",     "create_srq", "create_qp",
		"modify_qp",       "post_send",           "req_notify_cq", "resize_cq"};

	(void)state;
	for (unsigned c = 0; c < TN_COUNT_OF(calls); c++) {
		for (int n = 1; n <= 12; n++) {
			fake_reset(NULL, 0);
			fake_fail(calls[c], n, ENOMEM);
			live_once();
			nothing_left();
			if (fake_calls(calls[c]) < (uint64_t)n)
				break;
		}
	}
	/* Filling the receive queue is many calls: a few of them. */
	for (int n = 1; n < 1200; n += 171) {
		fake_reset(NULL, 0);
		fake_fail("post_srq_recv", n, EIO);
		live_once();
		nothing_left();
	}
}

/* ---- limits of devices ---- */

/* libfabric#4719: inline limits differ per device, and 0 works. */
static void inline_is_probed(void **state)
{
	static const uint32_t limits[] = {0, 32, 101, 400};
	fake_device dev = fake_device_default();
	side a, b;

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(limits); i++) {
		bool done;

		dev.max_inline = limits[i];
		fake_reset(&dev, 1);
		pair_open(&a, &b, NULL);
		assert_int_equal(vb(&a)->inline_bytes, TN_MIN(limits[i], TN_VB_INLINE_WANT));
		for (uint64_t bytes = 0; bytes < 600; bytes += 10) {
			uint8_t text[600];
			uint32_t before = b.recvs;

			memset(text, 7, sizeof(text));
			assert_ok(send_bytes(&a, text, bytes, 0,
					     &done)); /* foreign memory: inline or bounced */
			assert_true(done);
			UNTIL(&a, &b, b.recvs > before);
		}
		assert_int_equal(limits[i] == 0, tn_counter_read(&vb(&a)->counters.inlined) == 0);
		pair_close(&a, &b);
	}
}

/* gloo#474: requests are as long as the device takes, and no longer. */
static void small_devices(void **state)
{
	fake_device dev = fake_device_default();
	tn_dev_caps caps;
	side a, b;
	region from, to;
	tn_wr wr;

	(void)state;
	dev.max_qp_wr = 20;
	dev.max_srq_wr = 100;
	dev.max_msg = 8u << 20;
	dev.max_rd_atomic = 1;
	fake_reset(&dev, 1);
	pair_open(&a, &b, NULL);
	a.dev->ops->caps(a.dev, &caps);
	assert_int_equal(caps.lane_wrs_max, 16);
	assert_true(caps.incast);
	assert_int_equal(caps.recv_slots, 36);
	assert_int_equal(caps.write_bytes_max, 8u << 20);
	from = region_make(&a, 16u << 20, 0);
	to = region_make(&b, 16u << 20, 3);
	wr = (tn_wr){.local = from.ptr, .bytes = (8u << 20) + 1, .key = to.key};
	assert_int_equal(tn_lane_write(a.lane, &wr), TERN_E_TOO_LARGE);
	wr.bytes = 8u << 20;
	assert_ok(tn_lane_write(a.lane, &wr));
	UNTIL(&a, &b, a.dones == 1);
	assert_int_equal(a.done[0].status, TERN_OK);
	pair_close(&a, &b);
}

/* libfabric PR#4913: the completion queue grows with lanes, and says so when it cannot. */
static void completion_queue_room(void **state)
{
	fake_device dev = fake_device_default();
	tn_lane *lanes[40];
	tn_blob addr;
	side a;
	unsigned n = 0;

	(void)state;
	dev.max_cqe = 4000;
	fake_reset(&dev, 1);
	assert_ok(side_open(&a, NULL));
	for (; n < TN_COUNT_OF(lanes); n++) {
		tn_lane_params params = {.arg = &a, .active = true};
		tern_status status = a.dev->ops->lane_create(a.dev, &params, &lanes[n], &addr);

		if (status != TERN_OK) {
			assert_int_equal(status, TERN_E_LIMIT);
			assert_non_null(strstr(tern_detail(), "TERN_VERBS_LANE_WRS"));
			break;
		}
	}
	assert_int_equal(n, (4000 - 512 - 64) / 132);
	assert_true(fake_calls("resize_cq") > 0);
	while (n-- > 0) {
		a.lane = lanes[n];
		lane_free(&a, NULL);
	}
	side_close(&a, NULL);
	nothing_left();
}

/* Mooncake#1382 */
static void registration_is_all_or_nothing(void **state)
{
	fake_device dev = fake_device_default();
	void *ptr;
	side a;

	(void)state;
	dev.max_mr = 2;
	fake_reset(&dev, 1);
	assert_ok(side_open(&a, NULL)); /* one extent or two for the buffers */
	(void)tern_mem_alloc(a.mem, 100, 0, 1, TERN_MEM_HOST, &ptr);
	assert_int_equal(tern_mem_alloc(a.mem, 100, 0, 2, TERN_MEM_HOST, &ptr), TERN_E_NOMEM);
	assert_non_null(strstr(tern_detail(), "ibv_reg_mr"));
	assert_true(strstr(tern_detail(), "RLIMIT_MEMLOCK is") ||
		    strstr(tern_detail(), "memlock is unlimited"));
	side_close(&a, NULL);
	nothing_left();
}

/* ---- wiring ---- */

/* The dialer comes long before the other side: its hellos find nobody, again and again. */
static void hello_is_repeated(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	fake_impatient(true);
	assert_ok(side_open(&a, NULL));
	assert_ok(side_open(&b, NULL));
	assert_ok(lane_make(&a, true));
	assert_ok(lane_make(&b, false));
	assert_ok(a.dev->ops->lane_connect(a.lane, &b.addr, &b.lane_addr));
	UNTIL(&a, &b, tn_counter_read(&vb(&a)->counters.hellos) >= 4);
	assert_int_equal(a.downs, 0);
	assert_ok(b.dev->ops->lane_connect(b.lane, &a.addr, &a.lane_addr));
	UNTIL(&a, &b, (a.ups && b.ups) || a.downs || b.downs);
	assert_int_equal(a.downs + b.downs, 0);
	pair_close(&a, &b);
}

static void misfits_are_refused(void **state)
{
	side a, b;
	tn_vb_addr addr;
	tn_blob blob;

	(void)state;
	fake_reset(NULL, 0);
	assert_ok(side_open(&a, NULL));
	assert_ok(side_open(&b, NULL));
	assert_ok(lane_make(&a, true));
	assert_ok(lane_make(&b, true));
	assert_int_equal(a.dev->ops->lane_connect(a.lane, &b.addr, &b.lane_addr), TERN_E_INVALID);
	assert_true(tn_vb_addr_get(&b.addr, false, &addr));
	addr.rails[0].ethernet = false;
	tn_vb_addr_put(&addr, &blob);
	assert_int_equal(a.dev->ops->reach(a.dev, &blob), TERN_E_UNREACHABLE);
	assert_true(tn_vb_addr_get(&b.lane_addr, true, &addr));
	addr.active = false;
	addr.turn = 0;
	addr.rails[0].ethernet = false;
	tn_vb_addr_put(&addr, &blob);
	assert_int_equal(a.dev->ops->lane_connect(a.lane, &b.addr, &blob), TERN_E_UNREACHABLE);
	pair_close(&a, &b);
}

/* ---- ends ---- */

static void cut_path_takes_the_lane_down(void **state)
{
	side a, b;
	region from, to;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.keepalive=10ms", NULL});
	from = region_make(&a, 100000, 0);
	to = region_make(&b, 100000, 2);
	for (int round = 0; round < 3; round++) {
		uint32_t before = a.dones;

		fake_cut(true);
		for (uint64_t i = 0; i < 10; i++) {
			tn_wr wr = {.cookie = i, .local = from.ptr, .bytes = 100000, .key = to.key};

			if (tn_lane_write(a.lane, &wr) != TERN_OK)
				break;
		}
		/* a learns by its requests, b by its keepalive */
		UNTIL(&a, &b, a.downs && b.downs);
		UNTIL(&a, &b, a.dones == before + 10);
		assert_int_equal(a.done[before].status, TERN_E_LANE);
		for (uint32_t i = 1; i < 10; i++)
			assert_int_equal(a.done[before + i].status, TERN_E_FLUSHED);
		assert_int_equal(a.down_status, TERN_E_LANE);
		fake_cut(false);
		lane_free(&a, &b);
		lane_free(&b, &a);
		lane_up(&a, &b);
	}
	pair_close(&a, &b);
}

/* Mooncake PR#2427: a queue pair that never flushes, or never says that it is done: bounded, complete, once. */
static void drains_are_bounded(void **state)
{
	(void)state;
	for (int mode = 0; mode < 2; mode++) {
		side a, b;
		region from, to;

		fake_reset(NULL, 0);
		pair_open(&a, &b, NULL);
		from = region_make(&a, 100000, 0);
		to = region_make(&b, 100000, 2);
		b.hold = true;
		fake_never_flush(mode == 0);
		fake_no_last_wqe(mode == 1);
		/* Messages that wait for a receive buffer, and writes behind them. */
		for (uint64_t i = 0; i < 600 + 64; i++) {
			bool done;

			while (send_bytes(&a, from.ptr, 1000, i, &done) == TERN_AGAIN && i < 576)
				pump(&a, &b);
		}
		for (uint64_t i = 0; i < 5; i++) {
			tn_wr wr = {.cookie = 1000 + i, .local = from.ptr, .bytes = 5000, .key = to.key};

			(void)tn_lane_write(a.lane, &wr);
		}
		a.dev->ops->lane_break(a.lane);
		UNTIL(&a, &b, a.downs && a.dev->ops->lane_drained(a.lane));
		for (uint32_t i = 0; i < a.dones; i++) {
			for (uint32_t k = i + 1; k < a.dones; k++)
				assert_int_not_equal(a.done[i].cookie, a.done[k].cookie);
		}
		assert_int_equal(tn_counter_read(&vb(&a)->counters.forced_drains) > 0, mode == 0);
		assert_int_equal(vb(&a)->bounce_left, vb(&a)->bounce_count);
		fake_never_flush(false);
		pair_close(&a, &b);
	}
}

/* A peer that is idle and gone is noticed. */
static void keepalive_notices(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.keepalive=10ms", NULL});
	UNTIL(&a, &b, tn_counter_read(&vb(&a)->counters.keepalives) >= 3);
	assert_int_equal(a.downs, 0);
	assert_int_equal(b.recvs + b.imms, 0);
	fake_cut(true);
	UNTIL(&a, &b, a.downs && b.downs);
	fake_cut(false);
	pair_close(&a, &b);
}

/* ---- asynchronous events ---- */

static void port_events(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	for (int i = 0; i < 1000; i++)
		fake_async_port(i % 2 ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
	fake_async_port(IBV_EVENT_PORT_ERR, 2); /* another port: none of this device's */
	UNTIL(&a, &b,
	      tn_counter_read(&vb(&a)->counters.async_events) == 1001 &&
		      tn_counter_read(&vb(&b)->counters.async_events) == 1001);
	UNTIL(&a, &b, a.devices > 0);
	assert_int_equal(a.device_status, TERN_E_DEVICE);
	assert_int_equal(a.downs, 0);
	assert_int_equal(fake_counts_get().unacked, 0);
	pair_close(&a, &b);
}

static void device_is_lost(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	fake_async_port(IBV_EVENT_DEVICE_FATAL, 0);
	UNTIL(&a, &b, a.downs && b.downs && a.devices);
	assert_int_equal(a.down_status, TERN_E_DEVICE);
	pair_close(&a, &b);
}

/* ---- waiting ---- */

static void send_now(void *arg)
{
	bool done;

	assert_ok(send_bytes(arg, "now", 3, 0, &done));
}

/* UCX PR#1102, PR#1561: a message that comes in just before or just after the request for notification is not slept over. */
static void arm_sees_what_came_between(void **state)
{
	static const char *const quiet[] = {"verbs.keepalive=1000s", NULL};
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, quiet);
	for (uint32_t i = 0; i < 20; i++) {
		struct pollfd fd = {.fd = b.dev->ops->fd(b.dev), .events = POLLIN};
		tern_status status;

		while (side_poll(&b) || b.dev->ops->arm(b.dev) == TERN_BUSY)
			;
		assert_int_equal(poll(&fd, 1, 0), 0);
		fake_on_notify(send_now, &a, i % 2);
		status = b.dev->ops->arm(b.dev);
		assert_true(status == TERN_BUSY || (i % 2 && status == TERN_OK && poll(&fd, 1, 0) == 1));
		assert_int_equal(b.recvs, i);
		assert_int_equal(side_poll(&b), 1);
	}
	pair_close(&a, &b);
}

#define LITMUS_ROUNDS 5000u

static _Atomic uint32_t litmus_seen; /* by the sleeper */

/* Follows progress, arm, wait, with nothing else that would wake it: a lost wake-up hangs. */
static void *sleeper(void *arg)
{
	side *s = arg;

	while (s->recvs < LITMUS_ROUNDS) {
		struct pollfd fd = {.fd = s->dev->ops->fd(s->dev), .events = POLLIN};
		uint32_t before = s->recvs;

		if (side_poll(s) == 0 && s->dev->ops->arm(s->dev) == TERN_OK)
			(void)poll(&fd, 1, -1);
		if (s->recvs != before)
			atomic_store(&litmus_seen, s->recvs);
	}
	return NULL;
}

/* UCX PR#1102, PR#1561: progress against arm, round by round. */
static void no_wake_up_is_lost(void **state)
{
	static const char *const quiet[] = {"verbs.keepalive=1000s", NULL};
	pthread_t thread;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, quiet);
	atomic_store(&litmus_seen, 0);
	assert_int_equal(pthread_create(&thread, NULL, sleeper, &b), 0);
	for (uint32_t i = 0; i < LITMUS_ROUNDS; i++) {
		bool done;

		while (send_bytes(&a, &i, 4, 0, &done) == TERN_AGAIN)
			side_poll(&a);
		while (atomic_load(&litmus_seen) <= i)
			side_poll(&a);
		/* Another moment of the sleeper's way to sleep each time. */
		for (volatile uint32_t n = i * 37 % 1500; n; n--)
			tn_cpu_relax();
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	pair_close(&a, &b);
}

/* ---- fork ---- */

static int child(side *a)
{
	tn_lane_params params = {.active = true};
	tn_event event;
	tn_lane *lane;
	tn_blob addr;
	tn_wr wr = {0};
	bool done;

	if (send_bytes(a, "x", 1, 0, &done) != TERN_E_FORKED || tn_lane_write(a->lane, &wr) != TERN_E_FORKED)
		return 1;
	if (a->dev->ops->lane_create(a->dev, &params, &lane, &addr) != TERN_E_FORKED)
		return 2;
	if (tn_dev_poll(a->dev, &event, 1) != 0 || a->dev->ops->arm(a->dev) != TERN_E_FORKED)
		return 3;
	a->dev->ops->lane_close(a->lane);
	a->dev->ops->lane_break(a->lane);
	if (!a->dev->ops->lane_drained(a->lane))
		return 4;
	a->dev->ops->close(a->dev);
	return 0;
}

/* rdma-core PR#1222, byteps#54, gloo#340: fork after registration; the child has no part in the device. */
static void child_is_inert(void **state)
{
	side a, b;
	bool done;
	int status;
	pid_t pid;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(child(&a));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(send_bytes(&a, "x", 1, 0, &done));
	UNTIL(&a, &b, b.recvs == 1);
	pair_close(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nth_call_fails),
		cmocka_unit_test(inline_is_probed),
		cmocka_unit_test(small_devices),
		cmocka_unit_test(completion_queue_room),
		cmocka_unit_test(registration_is_all_or_nothing),
		cmocka_unit_test(hello_is_repeated),
		cmocka_unit_test(misfits_are_refused),
		cmocka_unit_test(cut_path_takes_the_lane_down),
		cmocka_unit_test(drains_are_bounded),
		cmocka_unit_test(keepalive_notices),
		cmocka_unit_test(port_events),
		cmocka_unit_test(device_is_lost),
		cmocka_unit_test(arm_sees_what_came_between),
		cmocka_unit_test(no_wake_up_is_lost),
		cmocka_unit_test(child_is_inert),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
