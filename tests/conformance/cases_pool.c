/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: receive buffers and events. Pools that lanes and devices share lose nothing, buffers come back
 * in any order, a held one stays as it is; polling in small bites works. Main thread only.
 */
#include "conf.h"

#include <string.h>

enum { POOL_LANES = 24, POOL_MOST = 256 };

/*
 * How many messages a lane sends: together a little more than there are buffers, and no more, since NICs whose
 * messages find no buffer try again and again, which costs an emulated machine all it has.
 */
static uint32_t pool_share(const conf_node *node)
{
	uint32_t most = CONF_INBOX_MAX / 2, total = node->caps.recv_slots + 8 * POOL_LANES;

	return (total < most ? total : most) / POOL_LANES;
}

/* The next message; fails if a lane ended meanwhile, as then it may never come. */
static tn_event pool_next(conf_pair *pair, const conf_lane *lanes)
{
	tn_event event;

	while (!conf_inbox_take(pair->b, &event)) {
		CONF_HERE();
		(void)conf_pump(pair);
		for (unsigned i = 0; i < POOL_LANES; i++)
			CONF_CHECK(!lanes[i].a.down && !lanes[i].b.down, "lane %u ended", i);
	}
	return event;
}

/*
 * Lanes that together may hold more than the device has slots: nothing is lost, each lane keeps its order.
 */
static void shared_pool_loses_nothing(void)
{
	static tn_event held[CONF_INBOX_MAX];
	conf_pair pair;
	static conf_lane lanes[POOL_LANES];
	static uint32_t numbers[POOL_MOST];
	uint32_t got[POOL_LANES] = {0}, total = 0, seen = 0, holding = 0, share;

	conf_pair_open(&pair);
	share = pool_share(pair.b);
	assert_true(share <= POOL_MOST);
	for (uint32_t i = 0; i < POOL_MOST; i++)
		numbers[i] = i;
	for (unsigned i = 0; i < POOL_LANES; i++)
		conf_lane_up(&pair, &lanes[i]);
	for (unsigned i = 0; i < POOL_LANES; i++) {
		conf_req req = {.verb = CONF_SEND, .bytes = 4};

		for (uint32_t sent = 0; sent < share; sent++, total++) {
			req.local = &numbers[sent];
			if (!conf_post_soon(&pair, &lanes[i].a, &req))
				break;
			while (holding < CONF_INBOX_MAX && conf_inbox_take(pair.b, &held[holding]))
				holding++;
		}
	}
	CONF_CHECK(total >= pair.b->caps.lane_recv_slots, "only %u messages in all", total);
	for (; seen < total; seen++) {
		tn_event event = seen < holding ? held[seen] : pool_next(&pair, lanes);
		uint32_t number;
		unsigned which = 0;

		while (which < POOL_LANES && event.lane != lanes[which].b.lane)
			which++;
		assert_true(which < POOL_LANES);
		memcpy(&number, event.buf, 4);
		CONF_CHECK(number == got[which], "lane %u: message %u instead of %u", which, number,
			   got[which]);
		got[which]++;
		conf_recv_done(pair.b, &event);
	}
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	for (unsigned i = 0; i < POOL_LANES; i++)
		conf_lane_works(&pair, &lanes[i]);
	conf_pair_close(&pair);
}

/* Many devices to one, each on a lane of its own. */
static void many_devices_to_one(void)
{
	conf_pair pair;
	enum { SENDERS = 8, ROUNDS = 200 };
	conf_node *senders[SENDERS];
	static conf_lane lanes[SENDERS];
	static uint32_t numbers[ROUNDS];
	uint32_t sent[SENDERS] = {0}, got[SENDERS] = {0}, seen = 0;
	conf_node *first;

	conf_pair_open(&pair);
	first = pair.a;
	for (uint32_t i = 0; i < ROUNDS; i++)
		numbers[i] = i;
	for (unsigned i = 0; i < SENDERS; i++) {
		senders[i] = pair.a = conf_node_open("sender");
		conf_lane_up(&pair, &lanes[i]);
	}
	while (seen < SENDERS * ROUNDS) {
		tn_event event;

		for (unsigned i = 0; i < SENDERS; i++) {
			conf_req req = {.verb = CONF_SEND, .local = &numbers[sent[i]], .bytes = 4};
			uint32_t op;

			pair.a = senders[i];
			if (sent[i] < ROUNDS && conf_try(&lanes[i].a, &req, &op) == TERN_OK)
				sent[i]++;
			CONF_HERE();
			(void)conf_pump(&pair);
		}
		while (conf_inbox_take(pair.b, &event)) {
			unsigned which = 0;
			uint32_t number;

			while (which < SENDERS && event.lane != lanes[which].b.lane)
				which++;
			assert_true(which < SENDERS);
			memcpy(&number, event.buf, 4);
			CONF_CHECK(number == got[which], "sender %u: message %u instead of %u", which, number,
				   got[which]);
			got[which]++;
			seen++;
			conf_recv_done(pair.b, &event);
		}
	}
	for (unsigned i = 0; i < SENDERS; i++) {
		pair.a = senders[i];
		conf_lane_free(&pair, &lanes[i]);
		conf_node_close(senders[i]);
	}
	pair.a = first;
	conf_pair_close(&pair);
}

/* Events are delivered one at a time as well, and none when none is asked for. */
static void poll_one_at_a_time(void)
{
	conf_pair pair;
	conf_lane lane;
	tn_event none;

	conf_pair_open(&pair);
	pair.a->poll_max = pair.b->poll_max = 1;
	conf_lane_up(&pair, &lane);
	for (unsigned i = 0; i < 50; i++) {
		conf_lane_works(&pair, &lane);
		assert_int_equal(tn_dev_poll(pair.a->dev, &none, 0), 0);
		assert_int_equal(tn_dev_poll(pair.b->dev, &none, 0), 0);
	}
	conf_lane_free(&pair, &lane);
	conf_pair_close(&pair);
}

/* What `more` holds back goes out with the next post without it, with flush, or with a poll. */
static void more_is_pushed_out(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	conf_req req = {.verb = CONF_WRITE, .bytes = 64, .more = true};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 64, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 64, TERN_ACCESS_WRITE);
	req.local = from.ptr;
	req.key = to.key;
	req.level = conf_best_level(pair.a);
	for (unsigned i = 0; i < 60; i++) {
		uint32_t op = conf_post(&pair, &lane.a, &req);

		if (i % 3 == 0)
			lane.a.lane->dev->ops->flush(lane.a.lane);
		if (i % 3 == 1)
			conf_must(&pair, &lane.a,
				  &(conf_req){
					  .verb = CONF_WRITE, .local = from.ptr, .bytes = 1, .key = to.key});
		CONF_UNTIL(&pair, conf_op_done(pair.a, op));
		CONF_OK(conf_op_status(pair.a, op));
	}
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* Buffers come back in any order while new messages arrive. */
static void recv_done_in_any_order(void)
{
	conf_pair pair;
	conf_lane lane;
	enum { HOLD = 32 };
	tn_event held[HOLD];
	unsigned holding = 0, hold_max = HOLD, rounds = conf_rounds(5000);
	uint32_t sent = 0, got = 0;
	conf_region from;
	conf_req req = {.verb = CONF_SEND, .bytes = 100};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	if (hold_max > pair.b->caps.lane_recv_slots / 2 + 1)
		hold_max = pair.b->caps.lane_recv_slots / 2 + 1;
	conf_region_make(&from, pair.a, 100 * 128, TERN_ACCESS_NONE);
	while (got < rounds) {
		uint32_t op;

		if (sent < rounds && sent - got < 16 && (sent % 64 || conf_ledger_done(pair.a))) {
			req.local = from.ptr + sent % 128 * 100ull;
			conf_fill(req.local, 100, sent);
			if (conf_try(&lane.a, &req, &op) == TERN_OK)
				sent++;
		}
		CONF_HERE();
		(void)conf_pump(&pair);
		while (holding < hold_max && conf_inbox_take(pair.b, &held[holding])) {
			conf_expect(held[holding].buf, 100, got, "message");
			got++;
			holding++;
		}
		if (holding == hold_max || (holding > 0 && tn_rand_below(&pair.rand, 3) == 0)) {
			unsigned i = (unsigned)tn_rand_below(&pair.rand, holding);

			conf_recv_done(pair.b, &held[i]);
			held[i] = held[--holding];
		}
	}
	while (holding > 0)
		conf_recv_done(pair.b, &held[--holding]);
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_lane_works(&pair, &lane);
	conf_region_free(&from);
	conf_pair_close(&pair);
}

/*
 * What a held buffer says does not change while others come and go, and one that is held for long costs the
 * lane one slot, not its life: each recv_done of another is a credit that works.
 */
static void held_buffers_stay(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from;
	conf_req req = {.verb = CONF_SEND, .bytes = 500};
	tn_event first, event;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	if (pair.b->caps.lane_recv_slots < 2)
		conf_skip("a lane has only one slot");
	conf_region_make(&from, pair.a, 500, TERN_ACCESS_NONE);
	req.local = from.ptr;
	conf_fill(from.ptr, 500, 1000000);
	CONF_OK(conf_do(&pair, &lane.a, &req));
	first = conf_inbox_wait(&pair, pair.b);
	for (unsigned i = 0; i < pair.b->caps.lane_recv_slots * 3 && i < 3000; i++) {
		conf_fill(from.ptr, 500, i);
		CONF_OK(conf_do(&pair, &lane.a, &req));
		event = conf_inbox_wait(&pair, pair.b);
		conf_expect(event.buf, 500, i, "message");
		conf_recv_done(pair.b, &event);
		conf_expect(first.buf, 500, 1000000, "a held message");
	}
	conf_recv_done(pair.b, &first);
	conf_region_free(&from);
	conf_pair_close(&pair);
}

const conf_case conf_cases_pool[] = {
	{.name = "shared_pool_loses_nothing",
	 .run = shared_pool_loses_nothing,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "many_devices_to_one", .run = many_devices_to_one, .needs = TN_CAP_SEND},
	{.name = "poll_one_at_a_time", .run = poll_one_at_a_time, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "more_is_pushed_out", .run = more_is_pushed_out, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "recv_done_in_any_order", .run = recv_done_in_any_order, .needs = TN_CAP_SEND},
	{.name = "held_buffers_stay", .run = held_buffers_stay, .needs = TN_CAP_SEND},
	{0},
};
