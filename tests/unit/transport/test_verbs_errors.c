/* SPDX-License-Identifier: Apache-2.0 */
/* Completions and posts of verbs that go wrong: what they are called, what they take down, what they leak. */
#include <errno.h>

#include "base/rand.h"
#include "verbs_test.h"

/* tensorpipe#436: the fake makes junk of all but four fields of each failed completion. */
static void statuses(void **state)
{
	static const struct {
		enum ibv_wc_status wc;
		tern_status status;
	} rows[] = {
		{IBV_WC_REM_ACCESS_ERR, TERN_E_ACCESS},  {IBV_WC_RETRY_EXC_ERR, TERN_E_LANE},
		{IBV_WC_RNR_RETRY_EXC_ERR, TERN_E_LANE}, {IBV_WC_LOC_LEN_ERR, TERN_E_INVALID},
		{IBV_WC_LOC_PROT_ERR, TERN_E_INVALID},   {IBV_WC_LOC_QP_OP_ERR, TERN_E_LANE},
		{IBV_WC_REM_INV_REQ_ERR, TERN_E_LANE},   {IBV_WC_REM_OP_ERR, TERN_E_LANE},
		{IBV_WC_FATAL_ERR, TERN_E_LANE},         {IBV_WC_GENERAL_ERR, TERN_E_LANE},
	};
	side a, b;
	region from, to;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, 2);
	for (unsigned i = 0; i < TN_COUNT_OF(rows); i++) {
		tn_wr wr = {.cookie = i, .local = from.ptr, .bytes = 10000, .key = to.key};
		uint32_t before = a.dones;

		fake_fail_request(((tn_vb_lane *)a.lane)->own.qpn, rows[i].wc);
		assert_ok(tn_lane_write(a.lane, &wr));
		UNTIL(&a, &b, a.downs && a.dones > before);
		assert_int_equal(a.done[before].status, rows[i].status);
		assert_int_equal(a.done[before].cookie, i);
		assert_int_equal(a.down_status, TERN_E_LANE);
		lane_free(&a, &b);
		lane_free(&b, &a);
		lane_up(&a, &b);
	}
	pair_close(&a, &b);
}

/* tensorpipe#436, TensorPipe (source): thousands of errors, of every kind of request, leak neither op, bounce nor receive buffer. */
static void errors_leak_nothing(void **state)
{
	tn_rand rand = {.state = 99};
	uint8_t foreign[2000] = {0};
	uint32_t accepted = 0;
	side a, b;
	region from, to;

	(void)state;
	fake_reset(NULL, 0);
	fake_scramble(5);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, 3);
	for (unsigned round = 0; round < 100; round++) {
		unsigned bad = (unsigned)tn_rand_below(&rand, 20);

		for (unsigned i = 0; i < 40; i++) {
			tn_wr wr = {.local = from.ptr, .bytes = tn_rand_below(&rand, 10000), .key = to.key};
			bool done = false;
			tern_status status;

			if (i == bad)
				fake_fail_request(((tn_vb_lane *)a.lane)->own.qpn, IBV_WC_RETRY_EXC_ERR);
			switch (tn_rand_below(&rand, 4)) {
			case 0:
				status = tn_lane_write(a.lane, &wr);
				done = wr.done;
				break;
			case 1:
				status = tn_lane_read(a.lane, &wr);
				break;
			case 2:
				status = send_bytes(&a, foreign, tn_rand_below(&rand, 2000), 0, &done);
				break;
			default:
				status = send_bytes(&a, from.ptr, tn_rand_below(&rand, 2000), 0, &done);
				break;
			}
			accepted += status == TERN_OK && !done;
			if (tn_rand_below(&rand, 4) == 0)
				pump(&a, &b);
		}
		UNTIL(&a, &b, a.downs);
		lane_free(&a, &b);
		lane_free(&b, &a);
		assert_int_equal(a.dones, accepted);
		assert_int_equal(vb(&a)->bounce_left, vb(&a)->bounce_count);
		for (uint32_t i = 0; i < vb(&b)->recv_slots + TN_VB_RECV_RESERVE; i++)
			assert_true(vb(&b)->rails[0].bufs[i].posted);
		lane_up(&a, &b);
	}
	assert_int_equal(fake_counts_get().rnr, 0);
	fake_scramble(0);
	pair_close(&a, &b);
}

/* ibv_post_send refuses: nothing was accepted, nothing follows; a full queue is TERN_AGAIN. */
static void refused_posts(void **state)
{
	side a, b;
	region from, to;
	tn_wr wr;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, 2);
	wr = (tn_wr){.local = from.ptr, .bytes = 10000, .key = to.key};
	fake_fail("post_send", 1, EINVAL);
	assert_int_equal(tn_lane_write(a.lane, &wr), TERN_E_INVALID);
	fake_fail("post_send", 1, EIO);
	assert_int_equal(tn_lane_write(a.lane, &wr), TERN_E_DEVICE);
	assert_non_null(strstr(tern_detail(), "ibv_post_send"));
	fake_fail("post_send", 1, EIO);
	assert_int_equal(send_bytes(&a, &done, 1, 0, &done), TERN_E_DEVICE);
	assert_ok(tn_lane_write(a.lane, &wr));
	fake_fail("post_send", 1, ENOMEM);
	assert_int_equal(tn_lane_write(a.lane, &wr), TERN_AGAIN);
	UNTIL(&a, &b, a.dones == 1);
	assert_int_equal(a.dev->ops->arm(a.dev), TERN_BUSY); /* the refused one may be tried again */
	assert_ok(tn_lane_write(a.lane, &wr));
	UNTIL(&a, &b, a.dones == 2);
	for (int i = 0; i < 50; i++)
		pump(&a, &b);
	assert_int_equal(a.dones, 2);
	pair_close(&a, &b);
}

/* What an honest initiator can see costs no lane. */
static void mistakes_cost_no_lane(void **state)
{
	side a, b;
	region from, to;
	uint8_t foreign[5000];
	tn_wr wr, bad;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	from = region_make(&a, 10000, 0);
	to = region_make(&b, 10000, 2);
	wr = (tn_wr){.local = from.ptr, .bytes = 10000, .key = to.key};
	bad = wr;
	bad.offset = 1;
	assert_int_equal(tn_lane_write(a.lane, &bad), TERN_E_BOUNDS);
	assert_int_equal(tn_lane_read(a.lane, &wr), TERN_E_ACCESS);
	bad = wr;
	bad.local = foreign;
	bad.bytes = sizeof(foreign);
	assert_int_equal(tn_lane_write(a.lane, &bad), TERN_E_INVALID);
	bad.local = from.ptr + (2u << 20); /* starts inside an extent, or not; never ends in it */
	bad.bytes = 10000;
	bad.local = (uint8_t *)tn_mem_extent_of(a.mem, from.ptr)->base +
		    tn_mem_extent_of(a.mem, from.ptr)->bytes - 5000;
	assert_int_equal(tn_lane_write(a.lane, &bad), TERN_E_INVALID);
	bad = wr;
	bad.level = TN_LEVEL_REMOTE;
	assert_int_equal(tn_lane_write(a.lane, &bad), TERN_E_UNSUPPORTED);
	assert_ok(tn_lane_write(a.lane, &wr));
	UNTIL(&a, &b, a.dones == 1);
	assert_int_equal(a.done[0].status, TERN_OK);
	assert_int_equal(a.downs + b.downs, 0);
	pair_close(&a, &b);
}

/* Credits that are kept keep the NIC from ever waiting for a buffer. */
static void no_rnr_within_credits(void **state)
{
	uint32_t sent = 0, most;
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	most = vb(&b)->recv_slots;
	while (sent < 5 * most) {
		if (sent - b.recvs < most && send_bytes(&a, &sent, sizeof(sent), 0, &done) == TERN_OK)
			sent++;
		else
			pump(&a, &b);
	}
	UNTIL(&a, &b, b.recvs == sent);
	assert_int_equal(fake_counts_get().rnr, 0);
	/* Inline requests ask for few completions. */
	assert_true(fake_counts_get().signaled < sent / 8);
	pair_close(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(statuses),
		cmocka_unit_test(errors_leak_nothing),
		cmocka_unit_test(refused_posts),
		cmocka_unit_test(mistakes_cost_no_lane),
		cmocka_unit_test(no_rnr_within_credits),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
