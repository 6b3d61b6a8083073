/* SPDX-License-Identifier: Apache-2.0 */
/*
 * brpc#3416: the fall-back path itself was broken. Every call of libibverbs fails in turn, over whole lives:
 * no crash, no hang, nothing left, words for whoever asks; and a life after it, without failures, works.
 */
#include <errno.h>

#include "verbs_test.h"

static const char *const small[] = {"verbs.recv_slots=16", "verbs.bounces=8", NULL};

static bool over(const side *a, const side *b)
{
	return a->downs || b->downs || a->devices || b->devices;
}

/* Messages of both kinds, a write and a read, there and back. Whether all worked. */
static bool transfer(side *a, side *b)
{
	static const uint8_t foreign[1000];
	region from = {0}, to = {0};
	bool done, ok;
	void *ptr;

	if (tern_mem_alloc(a->mem, 5000, 0, 0, TERN_MEM_HOST, &ptr) == TERN_OK)
		from.ptr = ptr;
	if (tern_mem_alloc(b->mem, 5000, 0, 3, TERN_MEM_HOST, &ptr) == TERN_OK) {
		tern_key wire;

		to.ptr = ptr;
		assert_ok(tern_mem_export(b->mem, ptr, 5000, 3, &wire));
		assert_true(tn_key_decode(&wire, &to.key));
	}
	ok = from.ptr && to.ptr;
	for (int i = 0; i < 3 && ok; i++) {
		tn_wr wr = {.cookie = (uint64_t)i, .local = from.ptr, .bytes = 5000, .key = to.key};
		uint32_t dones = a->dones, recvs = b->recvs, back = a->recvs, imms = b->imms;

		ok = tn_lane_write(a->lane, &wr) == TERN_OK && tn_lane_read(a->lane, &wr) == TERN_OK &&
		     tn_lane_write_imm(a->lane, &wr) == TERN_OK &&
		     send_bytes(a, foreign, sizeof(foreign), 0, &done) == TERN_OK &&
		     send_bytes(b, foreign, 10, 0, &done) == TERN_OK;
		if (ok)
			UNTIL(a, b,
			      over(a, b) || (a->dones == dones + 3 && b->recvs > recvs && b->imms > imms &&
					     a->recvs > back));
		ok = ok && !over(a, b);
	}
	if (from.ptr)
		tern_mem_free(a->mem, from.ptr);
	if (to.ptr)
		tern_mem_free(b->mem, to.ptr);
	return ok;
}

/* A whole life: opens, a lane, transfers, waits, a new lane, transfers, closes. Whether all worked. */
static bool live_once(void)
{
	side a = {0}, b = {0};
	bool ok = side_open(&a, small) == TERN_OK && side_open(&b, small) == TERN_OK;

	if (!ok)
		assert_string_not_equal(tern_detail(), "");
	for (int lane = 0; lane < 2 && ok; lane++) {
		a.ups = b.ups = a.downs = b.downs = a.devices = b.devices = 0;
		ok = lane_make(&a, true) == TERN_OK && lane_make(&b, false) == TERN_OK;
		if (ok) {
			((tn_vb_lane *)a.lane)->timeout_ns = 100 * TN_NS_PER_MS;
			((tn_vb_lane *)b.lane)->timeout_ns = 100 * TN_NS_PER_MS;
			ok = b.dev->ops->lane_connect(b.lane, &a.addr, &a.lane_addr) == TERN_OK &&
			     a.dev->ops->lane_connect(a.lane, &b.addr, &b.lane_addr) == TERN_OK;
		}
		if (!ok) {
			assert_string_not_equal(tern_detail(), "");
			break;
		}
		UNTIL(&a, &b, (a.ups && b.ups) || over(&a, &b));
		ok = !over(&a, &b) && transfer(&a, &b);
		for (int i = 0; i < 3; i++) {
			(void)a.dev->ops->arm(a.dev);
			side_poll(&a);
		}
		if (lane == 0) {
			lane_free(&a, &b);
			lane_free(&b, &a);
		}
	}
	side_close(&a, b.dev ? &b : NULL);
	side_close(&b, NULL);
	return ok;
}

/* What may fail without anybody's loss. */
static bool harmless(const char *call)
{
	static const char *const calls[] = {
		"",           "close_device", "dealloc_pd",           "dereg_mr", "destroy_cq",
		"destroy_qp", "destroy_srq",  "destroy_comp_channel", "poll_cq",  "req_notify_cq"};

	for (unsigned i = 0; i < TN_COUNT_OF(calls); i++) {
		if (strcmp(call, calls[i]) == 0)
			return true;
	}
	return false;
}

/* The n-th call of all fails, n = 1, 1 + stride, ... until a life has fewer calls. */
static void each_call_in_turn(int err, int stride)
{
	int failures = 0, n = 1;

	for (;; n += stride) {
		bool ok;

		fake_reset(NULL, 0);
		fake_fail("*", n, err);
		ok = live_once();
		nothing_left();
		if (harmless(fake_failed_call()) && !ok)
			print_error("call %d, %s: a life ended\n", n, fake_failed_call());
		assert_true(ok || !harmless(fake_failed_call()));
		failures += !ok;
		if (!fake_failed_call()[0])
			break;
	}
	print_message("%d calls, %d lives ended early\n", n - 1, failures);
	assert_true(n > 200 && failures > 50 / stride);
	fake_reset(NULL, 0);
	assert_true(live_once());
	nothing_left();
}

static void each_call_fails_with_enomem(void **state)
{
	(void)state;
	each_call_in_turn(ENOMEM, 4);
}

static void each_call_fails_with_einval(void **state)
{
	(void)state;
	each_call_in_turn(EINVAL, 5);
}

static void each_call_fails_with_eio(void **state)
{
	(void)state;
	each_call_in_turn(EIO, 1);
}

/* Two failures in one life: the second may hit what undoes the first. */
static void two_calls_fail(void **state)
{
	(void)state;
	for (int n = 1; n < 250; n += 7) {
		fake_reset(NULL, 0);
		fake_fail("*", n, EIO);
		fake_fail("*", n + 1 + n % 5, ENOMEM);
		(void)live_once();
		nothing_left();
	}
}

/* A device that takes no more calls at any moment. */
static void device_dies_at_any_moment(void **state)
{
	(void)state;
	for (int when = 0; when < 6; when++) {
		side a, b;

		fake_reset(NULL, 0);
		assert_ok(side_open(&a, small));
		if (when == 0)
			fake_dies(0);
		if (side_open(&b, small) != TERN_OK) {
			side_close(&a, NULL);
			nothing_left();
			continue;
		}
		if (when == 1)
			fake_dies(0);
		a.ups = b.ups = 0;
		if (lane_make(&a, true) == TERN_OK && lane_make(&b, false) == TERN_OK) {
			if (when == 2)
				fake_dies(0);
			if (b.dev->ops->lane_connect(b.lane, &a.addr, &a.lane_addr) == TERN_OK) {
				if (when == 3)
					fake_dies(0);
				if (a.dev->ops->lane_connect(a.lane, &b.addr, &b.lane_addr) == TERN_OK)
					UNTIL(&a, &b, (a.ups && b.ups) || a.downs || b.downs);
			}
		}
		if (when == 4)
			fake_dies(0);
		if (a.lane && b.lane && a.ups && b.ups)
			(void)transfer(&a, &b);
		if (when == 5) {
			a.dev->ops->lane_close(a.lane);
			fake_dies(0);
		}
		side_close(&a, &b);
		side_close(&b, NULL);
		nothing_left();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_fails_with_enomem), cmocka_unit_test(each_call_fails_with_einval),
		cmocka_unit_test(each_call_fails_with_eio),    cmocka_unit_test(two_calls_fail),
		cmocka_unit_test(device_dies_at_any_moment),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
