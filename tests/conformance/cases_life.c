/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: how lanes end. Whatever way, each accepted request is completed, the other side learns of it,
 * the lane drains, and a new one works. Main thread only.
 */
#include "conf.h"

#include <string.h>

#define ROOM 200000u

typedef struct life_fixture {
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
} life_fixture;

static void setup(life_fixture *f)
{
	memset(f, 0, sizeof(*f));
	conf_pair_open(&f->pair);
	conf_lane_up(&f->pair, &f->lane);
	conf_region_make(&f->from, f->pair.a, ROOM, TERN_ACCESS_READ);
	conf_region_make(&f->to, f->pair.b, ROOM, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
}

static void teardown(life_fixture *f)
{
	conf_region_free(&f->from);
	conf_region_free(&f->to);
	conf_pair_close(&f->pair);
}

/* Some requests of all kinds from a, a few messages from b; whatever is refused is refused. */
static void traffic(life_fixture *f, unsigned n)
{
	tn_rand *rand = &f->pair.rand;
	uint32_t op;

	for (unsigned i = 0; i < n; i++) {
		conf_req req = {
			.verb = (conf_verb)tn_rand_below(rand, 4), .local = f->from.ptr, .key = f->to.key};

		if (req.verb == CONF_READ && !(f->pair.a->caps.flags & TN_CAP_READ))
			req.verb = CONF_WRITE;
		if (req.verb == CONF_WRITE_IMM && !(f->pair.a->caps.flags & TN_CAP_WRITE_IMM))
			req.verb = CONF_WRITE;
		req.bytes = tn_rand_below(rand, req.verb == CONF_SEND ? 1000 : ROOM + 1);
		req.level = tn_rand_below(rand, 2) ? conf_best_level(f->pair.a) : TN_LEVEL_LOCAL;
		(void)conf_try(&f->lane.a, &req, &op);
		req = (conf_req){.verb = CONF_SEND, .local = f->to.ptr, .bytes = 10};
		if (i % 3 == 0)
			(void)conf_try(&f->lane.b, &req, &op);
	}
}

/* Give back what arrived; an order of events was checked when they were filed. */
static void drop_inbox(conf_node *node)
{
	tn_event event;

	while (conf_inbox_take(node, &event))
		conf_recv_done(node, &event);
}

static void both_down(life_fixture *f)
{
	CONF_UNTIL(&f->pair, f->lane.a.down && f->lane.b.down);
	CONF_UNTIL(&f->pair, conf_ledger_done(f->pair.a) && conf_ledger_done(f->pair.b));
}

static void posts_are_refused(conf_end *end)
{
	uint8_t byte = 0;
	conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	uint32_t op;
	tern_status status = conf_try(end, &req, &op);

	CONF_CHECK(status < 0, "a post on an ended lane: %s", tern_status_name(status));
}

static void rebuild(life_fixture *f)
{
	drop_inbox(f->pair.a);
	drop_inbox(f->pair.b);
	conf_lane_free(&f->pair, &f->lane);
	conf_ledger_settle(f->pair.a);
	conf_ledger_settle(f->pair.b);
	conf_lane_up(&f->pair, &f->lane);
	conf_lane_works(&f->pair, &f->lane);
}

static void break_an_idle_lane(void)
{
	life_fixture f;

	setup(&f);
	f.pair.a->dev->ops->lane_break(f.lane.a.lane);
	both_down(&f);
	assert_int_equal(f.lane.a.down_status, TERN_E_LANE);
	posts_are_refused(&f.lane.a);
	posts_are_refused(&f.lane.b);
	rebuild(&f);
	f.pair.b->dev->ops->lane_break(f.lane.b.lane);
	both_down(&f);
	assert_int_equal(f.lane.b.down_status, TERN_E_LANE);
	rebuild(&f);
	teardown(&f);
}

/* In full flight, by either side, again and again; each time a new lane works. */
static void break_under_load(void)
{
	life_fixture f;
	unsigned before;

	setup(&f);
	rebuild(&f); /* memory of every class has its extent now */
	before = conf_descriptors();
	for (unsigned i = 0; i < conf_rounds(60); i++) {
		conf_end *end = i % 2 ? &f.lane.a : &f.lane.b;

		traffic(&f, 30);
		conf_pump_n(&f.pair, i % 7);
		traffic(&f, i % 20);
		end->node->dev->ops->lane_break(end->lane);
		if (i % 3 == 0) {
			posts_are_refused(end);
			end->node->dev->ops->lane_break(end->lane); /* harmless the second time */
		}
		both_down(&f);
		rebuild(&f);
	}
	CONF_CHECK(conf_descriptors() == before, "lanes leak descriptors: %u before, %u after", before,
		   conf_descriptors());
	teardown(&f);
}

/* After lane_drained nobody writes into buffers of the lane any more. */
static void drained_buffers_are_quiet(void)
{
	life_fixture f;

	setup(&f);
	for (unsigned i = 0; i < conf_rounds(40); i++) {
		conf_req req = {.verb = CONF_WRITE, .local = f.from.ptr, .bytes = ROOM, .key = f.to.key};
		uint32_t op;

		conf_fill(f.from.ptr, ROOM, i);
		for (unsigned n = 0; n < 5; n++) {
			req.verb = n == 4 && f.pair.a->caps.flags & TN_CAP_READ ? CONF_READ : CONF_WRITE;
			if (req.verb == CONF_READ)
				req.bytes = 1000; /* both read and written: only quietness counts here */
			(void)conf_try(&f.lane.a, &req, &op);
		}
		conf_pump_n(&f.pair, i % 5);
		f.pair.a->dev->ops->lane_break(f.lane.a.lane);
		both_down(&f);
		drop_inbox(f.pair.a);
		drop_inbox(f.pair.b);
		conf_lane_free(&f.pair, &f.lane);
		memset(f.to.ptr, 0x3c, ROOM);
		memset(f.from.ptr, 0x4d, ROOM);
		conf_pump_n(&f.pair, 300);
		CONF_CHECK(conf_all(f.to.ptr, ROOM, 0x3c), "written after drained");
		CONF_CHECK(conf_all(f.from.ptr, ROOM, 0x4d), "read into after drained");
		conf_lane_up(&f.pair, &f.lane);
	}
	teardown(&f);
}

/*
 * A completion, whatever its status, gives the buffers back: they get other contents at once, and keep them.
 */
static void completion_returns_the_buffers(void)
{
	enum { N = 24, BYTES = 60000 };
	life_fixture f;

	setup(&f);
	for (unsigned round = 0; round < conf_rounds(40); round++) {
		conf_region bufs[N];
		uint32_t ops[N];
		bool mine[N] = {false};
		unsigned left = N;

		for (unsigned i = 0; i < N; i++) {
			conf_req req = {.verb = CONF_WRITE, .bytes = BYTES - i, .key = f.to.key};

			conf_region_make(&bufs[i], f.pair.a, BYTES, TERN_ACCESS_NONE);
			conf_fill(bufs[i].ptr, BYTES, i);
			req.local = bufs[i].ptr;
			req.level = i % 2 ? conf_best_level(f.pair.a) : TN_LEVEL_LOCAL;
			if (i % 3 == 0 && f.pair.a->caps.flags & TN_CAP_READ)
				req.verb = CONF_READ;
			if (i % 3 == 1)
				req = (conf_req){.verb = CONF_SEND, .local = bufs[i].ptr, .bytes = 1000};
			while (conf_try(&f.lane.a, &req, &ops[i]) == TERN_AGAIN && i % 2)
				(void)conf_pump(&f.pair);
		}
		conf_pump_n(&f.pair, round % 5);
		if (round % 4 == 3)
			conf_end_close(&f.lane.a);
		else if (round % 4)
			f.pair.a->dev->ops->lane_break(f.lane.a.lane);
		while (left > 0) {
			CONF_HERE();
			(void)conf_pump(&f.pair);
			for (unsigned i = 0; i < N; i++) {
				if (mine[i] || !conf_op_done(f.pair.a, ops[i]))
					continue;
				mine[i] = true;
				left--;
				memset(bufs[i].ptr, 0x66, BYTES);
			}
		}
		conf_pump_n(&f.pair, 50);
		for (unsigned i = 0; i < N; i++) {
			CONF_CHECK(conf_all(bufs[i].ptr, BYTES, 0x66),
				   "buffer %u changed after its completion", i);
			conf_region_free(&bufs[i]);
		}
		rebuild(&f);
	}
	teardown(&f);
}

/*
 * After a revocation nothing more arrives, not even the rest of what is under way. A target that checks extents
 * only goes on: there the lane lives and the ledger holds.
 */
static void revoke_in_the_middle(void)
{
	life_fixture f;
	enum { BYTES = 8 << 20 };
	conf_region big;
	conf_req req = {.verb = CONF_WRITE, .bytes = BYTES};
	unsigned cut = 0;

	setup(&f);
	conf_region_make(&big, f.pair.a, BYTES, TERN_ACCESS_NONE);
	conf_fill(big.ptr, BYTES, 1);
	req.local = big.ptr;
	req.level = conf_best_level(f.pair.a);
	if (f.pair.a->caps.write_bytes_max < BYTES)
		req.bytes = f.pair.a->caps.write_bytes_max;
	for (unsigned i = 0; i < 12; i++) {
		conf_region target;
		uint32_t op;

		conf_region_make(&target, f.pair.b, BYTES, TERN_ACCESS_WRITE);
		req.key = target.key;
		op = conf_post(&f.pair, &f.lane.a, &req);
		conf_pump_n(&f.pair, i);
		CONF_OK(tern_mem_revoke(f.pair.b->mem, &target.wire));
		memset(target.ptr, 0x99, BYTES);
		CONF_UNTIL(&f.pair, conf_op_done(f.pair.a, op));
		CONF_CHECK(conf_op_status(f.pair.a, op) == TERN_OK ||
				   conf_op_status(f.pair.a, op) == TERN_E_STALE_KEY,
			   "%s", tern_status_name(conf_op_status(f.pair.a, op)));
		cut += conf_op_status(f.pair.a, op) != TERN_OK;
		if (!conf->key_error_breaks || conf_op_status(f.pair.a, op) == TERN_OK)
			conf_lane_works(&f.pair, &f.lane);
		else
			rebuild(&f);
		CONF_CHECK(conf->extent_keys || conf_all(target.ptr, BYTES, 0x99),
			   "written after the key was revoked");
		conf_region_free(&target);
	}
	print_message("%s: %u of 12 writes were cut off by the revocation\n", conf->name, cut);
	conf_region_free(&big);
	teardown(&f);
}

/* The closing side gets completions only; the other learns of it. */
static void close_under_load(void)
{
	life_fixture f;

	setup(&f);
	for (unsigned i = 0; i < conf_rounds(60); i++) {
		conf_end *end = i % 2 ? &f.lane.a : &f.lane.b, *other = i % 2 ? &f.lane.b : &f.lane.a;

		traffic(&f, 30);
		conf_pump_n(&f.pair, i % 7);
		traffic(&f, i % 10);
		/* What was polled before belongs to the receiver still. */
		conf_end_close(end);
		posts_are_refused(end);
		CONF_UNTIL(&f.pair, other->down);
		CONF_UNTIL(&f.pair, conf_ledger_done(f.pair.a) && conf_ledger_done(f.pair.b));
		CONF_CHECK(!end->down, "LANE_DOWN at the side that closed");
		rebuild(&f);
	}
	teardown(&f);
}

static void close_of_both_sides(void)
{
	life_fixture f;

	setup(&f);
	for (unsigned i = 0; i < 20; i++) {
		traffic(&f, 20);
		conf_pump_n(&f.pair, i % 3);
		rebuild(&f);
	}
	teardown(&f);
}

static void close_of_a_broken_lane(void)
{
	life_fixture f;

	setup(&f);
	for (unsigned i = 0; i < 20; i++) {
		traffic(&f, 20);
		f.pair.a->dev->ops->lane_break(f.lane.a.lane);
		conf_pump_n(&f.pair, i % 4);
		conf_end_close(&f.lane.a); /* before or after LANE_DOWN was polled */
		conf_end_close(&f.lane.b);
		CONF_UNTIL(&f.pair, conf_ledger_done(f.pair.a) && conf_ledger_done(f.pair.b));
		rebuild(&f);
	}
	teardown(&f);
}

/* What a sender saw as REMOTE before it closed was seen by the target. */
static void close_keeps_what_was_done(void)
{
	life_fixture f;
	conf_req req;

	setup(&f);
	for (uint32_t i = 0; i < 20; i++) {
		req = (conf_req){
			.verb = CONF_WRITE, .level = TN_LEVEL_REMOTE, .local = f.from.ptr, .key = f.to.key};
		req.bytes = 1 + tn_rand_below(&f.pair.rand, ROOM - 1);
		conf_fill(f.from.ptr, req.bytes, i);
		CONF_OK(conf_do(&f.pair, &f.lane.a, &req));
		conf_end_close(&f.lane.a);
		conf_expect(f.to.ptr, req.bytes, i, "REMOTE before close");
		rebuild(&f);
	}
	teardown(&f);
}

/* A device that closes takes its lanes along; the peer's end goes down and its requests complete. */
static void device_close_with_lanes(void)
{
	life_fixture f;
	conf_node *b;

	for (unsigned i = 0; i < 5; i++) {
		setup(&f);
		traffic(&f, 20);
		b = f.pair.b;
		drop_inbox(b);
		conf_node_close(b); /* and f.to with its memory */
		f.pair.b = NULL;
		CONF_UNTIL(&f.pair, f.lane.a.down);
		CONF_UNTIL(&f.pair, conf_ledger_done(f.pair.a));
		conf_region_free(&f.from);
		conf_pair_close(&f.pair);
	}
}

/* One lane's end is none of its neighbours'. */
static void neighbours_live_on(void)
{
	life_fixture f;
	conf_lane other;
	conf_req req = {.verb = CONF_WRITE};
	uint32_t ops[20];

	setup(&f);
	conf_lane_up(&f.pair, &other);
	for (unsigned i = 0; i < 20; i++) {
		traffic(&f, 20);
		req.local = f.from.ptr;
		req.key = f.to.key;
		req.bytes = ROOM;
		req.level = conf_best_level(f.pair.a);
		ops[i] = conf_post(&f.pair, &other.a, &req);
		f.pair.a->dev->ops->lane_break(f.lane.a.lane);
		CONF_UNTIL(&f.pair, conf_op_done(f.pair.a, ops[i]));
		CONF_OK(conf_op_status(f.pair.a, ops[i]));
		both_down(&f);
		drop_inbox(f.pair.a);
		drop_inbox(f.pair.b);
		conf_lane_works(&f.pair, &other);
		rebuild(&f);
	}
	CONF_CHECK(!other.a.down && !other.b.down, "the neighbour went down");
	teardown(&f);
}

#define ALL (TN_CAP_WRITE | TN_CAP_SEND)

const conf_case conf_cases_life[] = {
	{.name = "break_an_idle_lane", .run = break_an_idle_lane, .needs = ALL},
	{.name = "break_under_load", .run = break_under_load, .needs = ALL},
	{.name = "drained_buffers_are_quiet", .run = drained_buffers_are_quiet, .needs = ALL},
	{.name = "completion_returns_the_buffers", .run = completion_returns_the_buffers, .needs = ALL},
	{.name = "revoke_in_the_middle", .run = revoke_in_the_middle, .needs = ALL},
	{.name = "close_under_load", .run = close_under_load, .needs = ALL},
	{.name = "close_of_both_sides", .run = close_of_both_sides, .needs = ALL},
	{.name = "close_of_a_broken_lane", .run = close_of_a_broken_lane, .needs = ALL},
	{.name = "close_keeps_what_was_done",
	 .run = close_keeps_what_was_done,
	 .needs = ALL | TN_CAP_REMOTE_DONE},
	{.name = "device_close_with_lanes", .run = device_close_with_lanes, .needs = ALL},
	{.name = "neighbours_live_on", .run = neighbours_live_on, .needs = ALL},
	{0},
};
