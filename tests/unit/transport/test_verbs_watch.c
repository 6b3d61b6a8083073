/* SPDX-License-Identifier: Apache-2.0 */
/* What the clock and the NIC's own signs make of a lane: stuck ones, idle ones, moderation, fork. */
#include <errno.h>

#include "verbs_test.h"

/* SPDK#2429 and rnr_retry 7: a request that never ends takes the lane down, with its end reported once. */
static void stuck_lane_is_given_up(void **state)
{
	region from, to;
	side a, b;
	tn_wr wr;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.stuck=40ms", "verbs.keepalive=10s", NULL});
	from = region_make(&a, 4096, 0);
	to = region_make(&b, 4096, 3);
	wr = (tn_wr){.cookie = 7, .local = from.ptr, .bytes = 4096, .key = to.key};
	fake_hold_sends(true);
	assert_ok(tn_lane_write(a.lane, &wr));
	UNTIL(&a, &b, a.downs);
	assert_int_equal(a.down_status, TERN_E_LANE);
	assert_int_equal(counter(&a, "verbs.stuck"), 1);
	fake_hold_sends(false);
	UNTIL(&a, &b, a.dones == 1);
	assert_int_equal(a.done[0].cookie, 7);
	pair_close(&a, &b);
}

/* Silent requests that nobody asked about are done, not stuck; nor is a lane that moves, or an idle one. */
static void living_lanes_are_not(void **state)
{
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.stuck=30ms", "verbs.keepalive=10ms", NULL});
	for (int i = 0; i < 3; i++)
		assert_ok(send_bytes(&a, "few", 3, 0, &done));
	UNTIL(&a, &b, counter(&a, "verbs.keepalives") >= 8);
	for (uint64_t until = tn_now() + 100 * TN_NS_PER_MS; tn_now() < until; pump(&a, &b))
		assert_ok(send_bytes(&a, "more", 4, 0, &done));
	assert_int_equal(a.downs + b.downs, 0);
	assert_int_equal(counter(&a, "verbs.stuck") + counter(&b, "verbs.stuck"), 0);
	pair_close(&a, &b);
}

/* 0 = never: a request may take as long as it likes. */
static void the_watch_can_be_off(void **state)
{
	region from, to;
	side a, b;
	tn_wr wr;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, (const char *const[]){"verbs.stuck=0", "verbs.keepalive=10ms", NULL});
	from = region_make(&a, 4096, 0);
	to = region_make(&b, 4096, 3);
	wr = (tn_wr){.local = from.ptr, .bytes = 4096, .key = to.key};
	fake_hold_sends(true);
	assert_ok(tn_lane_write(a.lane, &wr));
	UNTIL(&a, &b, counter(&b, "verbs.keepalives") >= 1 && b.dev->ops->arm(b.dev) >= 0);
	for (int i = 0; i < 200; i++)
		pump(&a, &b);
	assert_int_equal(a.downs, 0);
	fake_hold_sends(false);
	UNTIL(&a, &b, a.dones == 1);
	assert_int_equal(a.done[0].status, TERN_OK);
	pair_close(&a, &b);
}

/* ---- what a device may or may not have ---- */

static uint16_t asked_count, asked_period;
static int modify_errno;

static int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	(void)cq;
	asked_count = attr->moderate.cq_count;
	asked_period = attr->moderate.cq_period;
	return modify_errno;
}

static void moderation(void **state)
{
	static const char *const wanted[] = {"verbs.cq_moderation=16", "verbs.cq_period=32us", NULL};
	tn_verbs_api api;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	api = *fake_api();
	for (int how = 0; how < 3; how++) {
		asked_count = asked_period = 0;
		modify_errno = how == 1 ? EOPNOTSUPP : 0;
		api.modify_cq = how == 2 ? NULL : modify_cq;
		tn_verbs_api_override(&api);
		pair_open(&a, &b, wanted); /* whether it can or not */
		assert_int_equal(asked_count, how == 2 ? 0 : 16);
		assert_int_equal(asked_period, how == 2 ? 0 : 32);
		pair_close(&a, &b);
	}
	api.modify_cq = modify_cq;
	pair_open(&a, &b, NULL); /* off by default */
	assert_int_equal(asked_count, 0);
	pair_close(&a, &b);
	fake_install();
}

static int in_order_answer;

static int in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp;
	assert_int_equal(op, IBV_WR_RDMA_WRITE);
	assert_int_equal(flags, 0);
	return in_order_answer;
}

static void tail_byte_needs_a_promise(void **state)
{
	tn_verbs_api api;
	side s;

	(void)state;
	fake_reset(NULL, 0);
	api = *fake_api();
	for (int how = 0; how < 3; how++) {
		in_order_answer = how == 1;
		api.query_qp_data_in_order = how == 2 ? NULL : in_order;
		tn_verbs_api_override(&api);
		assert_ok(side_open(&s, NULL));
		assert_int_equal((caps_of(&s).flags & TN_CAP_TAIL_BYTE) != 0, how == 1);
		assert_true(caps_of(&s).flags & TN_CAP_ORDERED_WRITES);
		side_close(&s, NULL);
	}
	fake_install();
}

/* Reads need a depth of at least one on both sides. */
static void no_reads(void **state)
{
	fake_device dev = fake_device_default();
	side s;

	(void)state;
	dev.max_rd_atomic = 0;
	fake_reset(&dev, 1);
	assert_ok(side_open(&s, NULL));
	assert_false(caps_of(&s).flags & TN_CAP_READ);
	side_close(&s, NULL);
}

static enum ibv_fork_status fork_answer;
static int fork_inits;

static enum ibv_fork_status fork_asked(void)
{
	return fork_answer;
}

static int fork_init(void)
{
	fork_inits++;
	return EINVAL; /* too late: worth a warning, not a failure */
}

static void fork_protection(void **state)
{
	static const enum ibv_fork_status answers[] = {IBV_FORK_DISABLED, IBV_FORK_ENABLED,
						       IBV_FORK_UNNEEDED};
	tn_verbs_api api;
	side s;

	(void)state;
	fake_reset(NULL, 0);
	api = *fake_api();
	api.is_fork_initialized = fork_asked;
	api.fork_init = fork_init;
	tn_verbs_api_override(&api);
	for (unsigned i = 0; i < TN_COUNT_OF(answers); i++) {
		fork_answer = answers[i];
		fork_inits = 0;
		assert_ok(side_open(&s, NULL));
		assert_int_equal(fork_inits, answers[i] == IBV_FORK_DISABLED);
		side_close(&s, NULL);
	}
	fake_install();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stuck_lane_is_given_up),    cmocka_unit_test(living_lanes_are_not),
		cmocka_unit_test(the_watch_can_be_off),      cmocka_unit_test(moderation),
		cmocka_unit_test(tail_byte_needs_a_promise), cmocka_unit_test(no_reads),
		cmocka_unit_test(fork_protection),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
