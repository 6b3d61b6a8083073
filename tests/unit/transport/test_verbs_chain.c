/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that share a doorbell: when they go out, and that each ends once whatever the NIC takes of a chain. */
#include <errno.h>

#include "base/rand.h"
#include "verbs_test.h"

#define PIECE 1000u

typedef struct bench {
	side a, b;
	region from, to;
} bench;

static void bench_open(bench *t, const char *const *pairs)
{
	fake_reset(NULL, 0);
	pair_open(&t->a, &t->b, pairs);
	t->from = region_make(&t->a, 1 << 20, 0);
	t->to = region_make(&t->b, 1 << 20, 3);
	for (uint32_t i = 0; i < 1 << 20; i++)
		t->from.ptr[i] = (uint8_t)(i * 7 + i / PIECE);
	for (int i = 0; i < 10; i++)
		pump(&t->a, &t->b);
}

static tern_status put(bench *t, uint32_t n, bool more)
{
	tn_wr wr = {.cookie = n,
		    .local = t->from.ptr + (uint64_t)n * PIECE,
		    .bytes = PIECE,
		    .key = t->to.key,
		    .offset = (uint64_t)n * PIECE,
		    .more = more};

	return tn_lane_write(t->a.lane, &wr);
}

static void assert_placed(const bench *t, uint32_t n)
{
	assert_memory_equal(t->to.ptr + (uint64_t)n * PIECE, t->from.ptr + (uint64_t)n * PIECE, PIECE);
}

static void one_doorbell(void **state)
{
	uint64_t before;
	bench t;

	(void)state;
	bench_open(&t, NULL);
	before = fake_counts_get().doorbells;
	for (uint32_t i = 0; i < 9; i++)
		assert_ok(put(&t, i, true));
	assert_int_equal(fake_counts_get().doorbells, before);
	assert_ok(put(&t, 9, false));
	assert_int_equal(fake_counts_get().doorbells, before + 1);
	UNTIL(&t.a, &t.b, t.a.dones == 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(t.a.done[i].cookie, i); /* in order */
		assert_int_equal(t.a.done[i].status, TERN_OK);
		assert_placed(&t, i);
	}
	pair_close(&t.a, &t.b);
}

/* A chain ends when it is full, at a flush, at a poll, and in front of a message. */
static void never_held_for_long(void **state)
{
	uint64_t before;
	bool done;
	bench t;

	(void)state;
	bench_open(&t, NULL);
	before = fake_counts_get().doorbells;
	for (uint32_t i = 0; i < TN_VB_HELD_MAX; i++)
		assert_ok(put(&t, i, true));
	assert_int_equal(fake_counts_get().doorbells, before + 1);
	assert_ok(put(&t, 20, true));
	t.a.dev->ops->flush(t.a.lane);
	assert_int_equal(fake_counts_get().doorbells, before + 2);
	t.a.dev->ops->flush(t.a.lane); /* nothing to do */
	assert_int_equal(fake_counts_get().doorbells, before + 2);
	assert_ok(put(&t, 21, true));
	assert_int_equal(t.a.dev->ops->arm(t.a.dev), TERN_BUSY); /* nobody sleeps on it */
	side_poll(&t.a);
	assert_int_equal(fake_counts_get().doorbells, before + 3);
	assert_ok(put(&t, 22, true));
	assert_ok(send_bytes(&t.a, "after", 5, 0, &done));
	assert_int_equal(fake_counts_get().doorbells, before + 4);
	UNTIL(&t.a, &t.b, t.a.dones == TN_VB_HELD_MAX + 3 && t.b.recvs == 1);
	assert_placed(&t, 22);
	pair_close(&t.a, &t.b);
}

/* What went inline is the caller's again at once, rung or not. */
static void inline_is_copied(void **state)
{
	uint8_t bytes[32];
	bench t;

	(void)state;
	bench_open(&t, NULL);
	for (uint32_t i = 0; i < 12; i++) {
		tn_wr wr = {.local = bytes, .bytes = 32, .key = t.to.key, .offset = i * 32u, .more = i < 11};

		memset(bytes, (int)i + 1, sizeof(bytes));
		assert_ok(tn_lane_write(t.a.lane, &wr));
		assert_true(wr.done);
		memset(bytes, 0xee, sizeof(bytes));
	}
	UNTIL(&t.a, &t.b, t.to.ptr[11 * 32 + 31] == 12);
	for (uint32_t i = 0; i < 12 * 32; i++)
		assert_int_equal(t.to.ptr[i], i / 32 + 1);
	pair_close(&t.a, &t.b);
}

/* The NIC takes `at` of 8 and has no room for the rest: what was accepted goes out later, once. */
static void no_room_in_the_middle(void **state)
{
	(void)state;
	for (int at = 1; at <= 8; at++) {
		uint32_t accepted = 8;
		tern_status status;
		bench t;

		bench_open(&t, NULL);
		fake_hold_sends(true);
		assert_ok(put(&t, 0, false)); /* something is in flight */
		for (uint32_t i = 1; i < 8; i++)
			assert_ok(put(&t, i, true));
		fake_fail("post_send", at, ENOMEM);
		status = put(&t, 8, false);
		assert_int_equal(status, TERN_AGAIN);
		fake_hold_sends(false);
		UNTIL(&t.a, &t.b, t.a.dones == accepted);
		for (int i = 0; i < 20; i++)
			pump(&t.a, &t.b);
		assert_int_equal(t.a.dones, accepted);
		for (uint32_t i = 0; i < accepted; i++) {
			assert_int_equal(t.a.done[i].cookie, i);
			assert_int_equal(t.a.done[i].status, TERN_OK);
			assert_placed(&t, i);
		}
		assert_ok(put(&t, 8, false));
		UNTIL(&t.a, &t.b, t.a.dones == accepted + 1);
		assert_int_equal(t.a.downs, 0);
		pair_close(&t.a, &t.b);
	}
}

/* It refuses for good: those before it succeed, those from it on end once with an error, the lane is over; the
   one that rang is given back. */
static void refused_in_the_middle(void **state)
{
	(void)state;
	for (int at = 1; at <= 8; at++) {
		uint32_t good = 0, bad = 0;
		tern_status status;
		bench t;

		bench_open(&t, NULL);
		for (uint32_t i = 0; i < 7; i++)
			assert_ok(put(&t, i, true));
		fake_fail("post_send", at, EINVAL);
		status = put(&t, 7, false);
		assert_true(status != TERN_OK && status != TERN_AGAIN);
		if (at == 8) { /* only its own fault */
			UNTIL(&t.a, &t.b, t.a.dones == 7);
			assert_ok(put(&t, 7, false));
			UNTIL(&t.a, &t.b, t.a.dones == 8);
			assert_int_equal(t.a.downs, 0);
			pair_close(&t.a, &t.b);
			continue;
		}
		UNTIL(&t.a, &t.b, t.a.downs && t.a.dones == 7);
		lane_free(&t.a, &t.b);
		assert_int_equal(t.a.dones, 7);
		for (uint32_t i = 0; i < 7; i++) {
			good += t.a.done[i].status == TERN_OK;
			bad += t.a.done[i].status != TERN_OK;
		}
		/* What the NIC took may also have been flushed. */
		assert_true(good <= (uint32_t)at - 1 && bad >= 8u - (uint32_t)at);
		assert_int_equal(vb(&t.a)->bounce_left, vb(&t.a)->bounce_count);
		lane_free(&t.b, NULL);
		lane_up(&t.a, &t.b);
		pair_close(&t.a, &t.b);
	}
}

/* Breaks and closes with a chain held: it ends like all the rest. */
static void held_at_the_end(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++) {
		bench t;

		bench_open(&t, NULL);
		for (uint32_t i = 0; i < 5; i++)
			assert_ok(put(&t, i, true));
		if (how == 0)
			t.a.dev->ops->lane_close(t.a.lane);
		if (how == 1)
			t.a.dev->ops->lane_break(t.a.lane);
		if (how == 2)
			fake_dies(0);
		if (how == 3)
			fake_cut(true);
		UNTIL(&t.a, &t.b, t.a.dones == 5);
		pair_close(&t.a, &t.b);
	}
}

/* Random posts with random refusals: each accepted request ends once. */
static void each_ends_once(void **state)
{
	static const int errs[] = {ENOMEM, ENOMEM, ENOMEM, EINVAL, EIO};
	tn_rand rand = {.state = 11};

	(void)state;
	for (int life = 0; life < 30; life++) {
		static uint8_t seen[1000];
		uint32_t accepted = 0;
		bench t;

		memset(seen, 0, sizeof(seen));
		bench_open(&t, (const char *const[]){"verbs.lane_wrs=24", NULL});
		for (int step = 0; step < 400 && !t.a.downs; step++) {
			if (tn_rand_below(&rand, 40) == 0)
				fake_fail("post_send", 1 + (int)tn_rand_below(&rand, 12),
					  errs[tn_rand_below(&rand, 5)]);
			if (tn_rand_below(&rand, 4) == 0)
				side_poll(&t.a);
			if (put(&t, accepted, tn_rand_below(&rand, 5) != 0) == TERN_OK)
				accepted++;
		}
		t.a.dev->ops->flush(t.a.lane);
		UNTIL(&t.a, &t.b, t.a.dones == accepted);
		lane_free(&t.a, &t.b);
		assert_int_equal(t.a.dones, accepted);
		for (uint32_t i = 0; i < accepted; i++) {
			assert_true(t.a.done[i].cookie < accepted);
			assert_int_equal(seen[t.a.done[i].cookie]++, 0);
		}
		pair_close(&t.a, &t.b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_doorbell),          cmocka_unit_test(never_held_for_long),
		cmocka_unit_test(inline_is_copied),      cmocka_unit_test(no_room_in_the_middle),
		cmocka_unit_test(refused_in_the_middle), cmocka_unit_test(held_at_the_end),
		cmocka_unit_test(each_ends_once),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
