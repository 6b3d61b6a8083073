/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: full queues. TERN_AGAIN is a status, nothing is lost behind it, progress ends it, and a sleeper
 * is woken when it ended. Main thread, and a second one in again_then_sleep.
 */
#include "conf.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

/* A receiver that gives nothing back: what was accepted arrives once it does, in order, all of it. */
static void full_ring_loses_nothing(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from;
	enum { MOST = 3000 };
	uint32_t sent = 0, got = 0, held_max;
	conf_req req = {.verb = CONF_SEND, .bytes = 4};
	tn_event event;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, MOST * 4, TERN_ACCESS_NONE);
	held_max = pair.b->caps.lane_recv_slots;
	for (; sent < MOST; sent++) {
		req.local = from.ptr + sent * 4ull;
		memcpy(req.local, &sent, 4);
		if (!conf_post_soon(&pair, &lane.a, &req))
			break;
	}
	CONF_CHECK(sent >= (held_max < MOST ? held_max : MOST), "accepted only %u of %u promised", sent,
		   held_max);
	conf_pump_n(&pair, 50);
	while (got < sent) {
		uint32_t number;

		event = conf_inbox_wait(&pair, pair.b);
		assert_int_equal(event.bytes, 4);
		memcpy(&number, event.buf, 4);
		CONF_CHECK(number == got, "message %u instead of %u", number, got);
		conf_recv_done(pair.b, &event);
		got++;
	}
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_lane_works(&pair, &lane);
	conf_region_free(&from);
	conf_pair_close(&pair);
}

static void full_ring_of_immediates(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	uint32_t sent = 0, most = 3000;
	conf_req req = {.verb = CONF_WRITE_IMM, .bytes = 8};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 8, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 8, TERN_ACCESS_WRITE);
	req.local = from.ptr;
	req.key = to.key;
	for (; sent < most; sent++) {
		req.imm = sent;
		if (!conf_post_soon(&pair, &lane.a, &req))
			break;
	}
	CONF_CHECK(sent >= (pair.b->caps.lane_recv_slots < most ? pair.b->caps.lane_recv_slots : most),
		   "accepted only %u", sent);
	for (uint32_t got = 0; got < sent; got++) {
		tn_event event = conf_inbox_wait(&pair, pair.b);

		assert_int_equal(event.type, TN_EV_IMM);
		assert_int_equal(event.imm, got);
		conf_recv_done(pair.b, &event);
	}
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_lane_works(&pair, &lane);
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* One lane whose receiver holds everything does not stop another lane of the same devices. */
static void full_ring_stalls_no_other_lane(void)
{
	static tn_event held[CONF_INBOX_MAX];
	conf_pair pair;
	conf_lane full, other;
	uint8_t byte = 1;
	conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	uint32_t sent = 0, holding = 0, got = 0;
	tn_event event;

	conf_pair_open(&pair);
	if (pair.b->caps.lane_recv_slots >= pair.b->caps.recv_slots) {
		conf_pair_close(&pair);
		conf_skip("one lane may use up all receive slots of the device");
	}
	conf_lane_up(&pair, &full);
	conf_lane_up(&pair, &other);
	/* The promised number, which the link never exceeds. */
	while (sent < pair.b->caps.lane_recv_slots && conf_post_soon(&pair, &full.a, &req))
		sent++;
	for (unsigned i = 1; i <= 500; i++) {
		conf_must(&pair, &other.a, &req);
		while (got < i) {
			event = conf_inbox_wait(&pair, pair.b);
			if (event.lane == other.b.lane) {
				conf_recv_done(pair.b, &event);
				got++;
			} else {
				held[holding++ % CONF_INBOX_MAX] = event;
			}
		}
	}
	while (holding > 0)
		conf_recv_done(pair.b, &held[--holding]);
	conf_pair_close(&pair);
}

/* More requests than a lane may have in flight: refused, not lost, and accepted after progress. */
static void wrs_in_flight_are_bounded(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	conf_req req = {.verb = CONF_WRITE, .bytes = 64};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 64, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 64, TERN_ACCESS_WRITE);
	req.local = from.ptr;
	req.key = to.key;
	req.level = conf_best_level(pair.a);
	for (unsigned round = 0; round < 5; round++) {
		uint32_t flying = 0, op;

		for (unsigned i = 0; i < 3 * pair.a->caps.lane_wrs_max && i < 20000; i++) {
			tern_status status = conf_try(&lane.a, &req, &op);

			if (status == TERN_AGAIN && flying >= pair.a->caps.lane_wrs_max)
				break;
			CONF_CHECK(status == TERN_OK || status == TERN_AGAIN, "%s", tern_status_name(status));
			if (status == TERN_OK && !conf_op_done(pair.a, op))
				flying++;
		}
		CONF_CHECK(flying <= pair.a->caps.lane_wrs_max, "%u in flight, the limit is %u", flying,
			   pair.a->caps.lane_wrs_max);
		CONF_UNTIL(&pair, conf_ledger_done(pair.a));
		conf_ledger_settle(pair.a);
		CONF_OK(conf_do(&pair, &lane.a, &req));
	}
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* Lots of data behind each other, both ways at once: no deadlock of two full pipes. */
static void both_ways_at_once(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from[2], to[2];
	const uint64_t bytes = 1 << 20;
	unsigned posted[2] = {0}, rounds = conf_rounds(100);

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	for (unsigned side = 0; side < 2; side++) {
		conf_node *here = side ? pair.b : pair.a, *there = side ? pair.a : pair.b;

		conf_region_make(&from[side], here, bytes, TERN_ACCESS_NONE);
		conf_region_make(&to[side], there, bytes, TERN_ACCESS_WRITE);
		conf_fill(from[side].ptr, bytes, side);
	}
	while (posted[0] < rounds || posted[1] < rounds) {
		for (unsigned side = 0; side < 2; side++) {
			conf_req req = {.verb = CONF_WRITE,
					.local = from[side].ptr,
					.bytes = bytes,
					.key = to[side].key};
			uint32_t op;

			req.level = conf_best_level(pair.a);
			while (posted[side] < rounds &&
			       conf_try(side ? &lane.b : &lane.a, &req, &op) == TERN_OK)
				posted[side]++;
		}
		CONF_HERE();
		(void)conf_pump(&pair);
	}
	CONF_UNTIL(&pair, conf_ledger_done(pair.a) && conf_ledger_done(pair.b));
	conf_lane_works(&pair, &lane);
	for (unsigned side = 0; side < 2; side++) {
		if (side == 0 || conf_best_level(pair.a) == TN_LEVEL_REMOTE)
			conf_expect(to[side].ptr, bytes, side, "data");
	}
	conf_pair_close(&pair);
}

/* ---- a sender that sleeps after TERN_AGAIN ---- */

typedef struct drain {
	conf_node *node;
	uint32_t want, got;
} drain;

static void *drain_run(void *arg)
{
	drain *d = arg;
	tn_event event;

	while (d->got < d->want) {
		if (conf_node_poll(d->node) == 0) {
			struct pollfd fd = {.fd = d->node->dev->ops->fd(d->node->dev), .events = POLLIN};

			if (d->node->dev->ops->arm(d->node->dev) == TERN_OK)
				(void)poll(&fd, 1, -1);
		}
		while (conf_inbox_take(d->node, &event)) {
			conf_recv_done(d->node, &event);
			d->got++;
		}
	}
	return NULL;
}

static void again_then_sleep(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from;
	pthread_t thread;
	drain d;
	conf_req req = {.verb = CONF_SEND, .bytes = 1024};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 1024, TERN_ACCESS_NONE);
	req.local = from.ptr;
	d = (drain){.node = pair.b, .want = conf_rounds(20000)};
	assert_int_equal(pthread_create(&thread, NULL, drain_run, &d), 0);
	for (uint32_t sent = 0; sent < d.want;) {
		struct pollfd fd = {.fd = pair.a->dev->ops->fd(pair.a->dev), .events = POLLIN};
		uint32_t op;

		if (conf_try(&lane.a, &req, &op) == TERN_OK) {
			sent++;
		} else if (conf_node_poll(pair.a) == 0 && pair.a->dev->ops->arm(pair.a->dev) == TERN_OK) {
			/* Nothing of its own may be in flight: only the end of the TERN_AGAIN wakes it. */
			CONF_HERE();
			(void)poll(&fd, 1, -1);
		}
		if (atomic_load(&pair.a->ops_used) > CONF_OPS_MAX / 2) {
			while (!conf_ledger_done(pair.a))
				(void)conf_node_poll(pair.a);
			conf_ledger_settle(pair.a);
		}
	}
	while (!conf_ledger_done(pair.a))
		(void)conf_node_poll(pair.a);
	/* Whatever the sender still has buffered must be pushed out while the receiver sleeps. */
	while (pthread_tryjoin_np(thread, NULL) != 0) {
		CONF_HERE();
		if (conf_node_poll(pair.a) == 0) {
			struct pollfd fd = {.fd = pair.a->dev->ops->fd(pair.a->dev), .events = POLLIN};

			(void)poll(&fd, 1, 1);
		}
	}
	conf_threads_ok();
	conf_region_free(&from);
	conf_pair_close(&pair);
}

const conf_case conf_cases_flow[] = {
	{.name = "full_ring_loses_nothing", .run = full_ring_loses_nothing, .needs = TN_CAP_SEND},
	{.name = "full_ring_of_immediates",
	 .run = full_ring_of_immediates,
	 .needs = TN_CAP_WRITE_IMM | TN_CAP_SEND},
	{.name = "full_ring_stalls_no_other_lane",
	 .run = full_ring_stalls_no_other_lane,
	 .needs = TN_CAP_SEND},
	{.name = "wrs_in_flight_are_bounded", .run = wrs_in_flight_are_bounded, .needs = TN_CAP_WRITE},
	{.name = "both_ways_at_once", .run = both_ways_at_once, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "again_then_sleep", .run = again_then_sleep, .needs = TN_CAP_SEND},
	{0},
};
