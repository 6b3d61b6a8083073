/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: a peer in another process, which works, stops, or is killed at any moment. Every accepted
 * request is completed and LANE_DOWN comes; the device lives on and leaks nothing. Main thread only.
 */
#include "proc.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"

static void open_alone(conf_pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	pair->rand.state = 17;
	pair->a = conf_node_open("parent");
}

static void end_free(conf_pair *pair, child *c)
{
	tn_event event;

	while (conf_inbox_take(pair->a, &event))
		conf_recv_done(pair->a, &event);
	conf_end_close(&c->end);
	conf_end_destroy(pair, &c->end);
}

/* A message goes there and comes back. */
static void echo(conf_pair *pair, child *c, uint32_t number)
{
	conf_req req = {.verb = CONF_SEND, .local = &number, .bytes = 4};
	tn_event event;

	CONF_OK(conf_do(pair, &c->end, &req));
	do {
		event = conf_inbox_wait(pair, pair->a);
		if (event.lane != c->end.lane)
			conf_recv_done(pair->a, &event);
	} while (event.lane != c->end.lane);
	assert_int_equal(event.type, TN_EV_RECV);
	assert_int_equal(event.bytes, 4);
	assert_memory_equal(event.buf, &number, 4);
	conf_recv_done(pair->a, &event);
}

static void other_process_works(void)
{
	conf_pair pair;
	child c;
	conf_region here;
	conf_req req = {.level = TN_LEVEL_LOCAL};

	for (unsigned active = 0; active < 2; active++) {
		open_alone(&pair);
		child_start(&c, pair.a, CHILD_SERVE, active, 0);
		child_up(&pair, &c);
		for (uint32_t i = 0; i < 100; i++)
			echo(&pair, &c, i);
		conf_region_make(&here, pair.a, CHILD_REGION_BYTES, TERN_ACCESS_NONE);
		req.local = here.ptr;
		req.key = c.key;
		req.level = conf_best_level(pair.a);
		for (uint64_t seed = 2; seed < 12; seed++) {
			conf_fill(here.ptr, CHILD_REGION_BYTES, seed);
			req.bytes = CHILD_REGION_BYTES;
			req.verb = CONF_WRITE;
			CONF_OK(conf_do(&pair, &c.end, &req));
			memset(here.ptr, 0, CHILD_REGION_BYTES);
			if (!(pair.a->caps.flags & TN_CAP_READ) || req.level != TN_LEVEL_REMOTE)
				continue;
			req.verb = CONF_READ;
			CONF_OK(conf_do(&pair, &c.end, &req));
			conf_expect(here.ptr, CHILD_REGION_BYTES, seed, "written and read back");
		}
		req.verb = CONF_WRITE;
		req.offset = CHILD_REGION_BYTES - 3;
		req.bytes = 4;
		assert_int_equal(conf_do(&pair, &c.end, &req), TERN_E_BOUNDS);
		req.offset = 0;
		echo(&pair, &c, 1000);
		child_stop(&pair, &c);
		end_free(&pair, &c);
		conf_region_free(&here);
		conf_pair_close(&pair);
	}
}

/* ---- kill -9 ---- */

typedef enum kill_point {
	KILL_BEFORE_CONNECT,
	KILL_CONNECTING,
	KILL_AFTER_UP,
	KILL_UNDER_WRITES,
	KILL_UNDER_READS,
	KILL_UNDER_MESSAGES,
	KILL_WHILE_IT_HOLDS,
	KILL_WHILE_IT_FLOODS,
	KILL_WHILE_IT_SLEEPS,
	KILL_POINTS,
} kill_point;

static child_mode mode_at(kill_point point)
{
	switch (point) {
	case KILL_BEFORE_CONNECT:
		return CHILD_SILENT;
	case KILL_WHILE_IT_HOLDS:
		return CHILD_HOLD;
	case KILL_WHILE_IT_FLOODS:
		return CHILD_FLOOD;
	case KILL_WHILE_IT_SLEEPS:
		return CHILD_SLEEP;
	default:
		return CHILD_SERVE;
	}
}

static void load(conf_pair *pair, child *c, conf_region *here, kill_point point, unsigned n)
{
	conf_req req = {.local = here->ptr, .key = c->key, .level = conf_best_level(pair->a)};
	uint32_t op;

	for (unsigned i = 0; i < n; i++) {
		tn_event event;

		req.verb = point == KILL_UNDER_READS && pair->a->caps.flags & TN_CAP_READ ? CONF_READ
											  : CONF_WRITE;
		req.bytes = i % 3 ? 100 : CHILD_REGION_BYTES;
		if (point == KILL_UNDER_MESSAGES || point == KILL_WHILE_IT_HOLDS) {
			req.verb = CONF_SEND;
			req.bytes = 100;
		}
		if (conf_try(&c->end, &req, &op) != TERN_OK)
			(void)conf_pump(pair);
		if (i % 4 == 0)
			(void)conf_pump(pair);
		if (point == KILL_WHILE_IT_FLOODS && i % 2 == 0 && conf_inbox_take(pair->a, &event))
			conf_recv_done(pair->a, &event);
	}
}

static void kill_at(conf_pair *pair, conf_region *here, kill_point point, unsigned round)
{
	bool odd = (round + point) % 2;
	child c;

	child_start(&c, pair->a, mode_at(point), odd, point <= KILL_CONNECTING ? TN_NS_PER_SEC : 0);
	if (point <= KILL_CONNECTING) {
		child_connect(&c);
		conf_pump_n(pair, point == KILL_BEFORE_CONNECT ? 20 : round * 5);
	} else {
		child_up(pair, &c);
		if (point > KILL_AFTER_UP)
			load(pair, &c, here, point, 10 + round * 37);
	}
	child_kill(&c);
	if (point > KILL_AFTER_UP && odd)
		load(pair, &c, here, point, 10); /* nobody has told us yet: these complete or are refused */
	CONF_UNTIL(pair, c.end.down);
	CONF_UNTIL(pair, conf_ledger_done(pair->a));
	end_free(pair, &c);
	conf_ledger_settle(pair->a);
}

static void peer_is_killed(void)
{
	conf_pair pair;
	conf_region here;
	child c;
	unsigned before, some = conf_rounds(100), rounds = some == 100 ? 4 : some > 15 ? 2 : 1;

	open_alone(&pair);
	conf_region_make(&here, pair.a, CHILD_REGION_BYTES, TERN_ACCESS_NONE);
	kill_at(&pair, &here, KILL_AFTER_UP, 0);
	before = conf_descriptors();
	for (unsigned round = 0; round < rounds; round++) {
		for (int point = 0; point < KILL_POINTS; point++)
			kill_at(&pair, &here, (kill_point)point, round);
	}
	CONF_CHECK(conf_descriptors() == before, "dead peers leave descriptors: %u before, %u after", before,
		   conf_descriptors());
	/* The device is as good as new. */
	child_start(&c, pair.a, CHILD_SERVE, true, 0);
	child_up(&pair, &c);
	echo(&pair, &c, 1);
	child_stop(&pair, &c);
	end_free(&pair, &c);
	conf_region_free(&here);
	conf_pair_close(&pair);
}

/* Death wakes who sleeps without anything in flight. */
static void death_wakes(void)
{
	conf_pair pair;
	child c;

	open_alone(&pair);
	for (unsigned i = 0; i < 6; i++) {
		child_start(&c, pair.a, i % 3 ? CHILD_SERVE : CHILD_SLEEP, i % 2, 0);
		child_up(&pair, &c);
		conf_pump_n(&pair, 20);
		child_kill(&c);
		while (!c.end.down) {
			struct pollfd fd = {.fd = pair.a->dev->ops->fd(pair.a->dev), .events = POLLIN};

			CONF_HERE();
			if (conf_node_poll(pair.a) == 0 && pair.a->dev->ops->arm(pair.a->dev) == TERN_OK)
				(void)poll(&fd, 1, -1);
		}
		end_free(&pair, &c);
	}
	conf_pair_close(&pair);
}

/* A peer that stands still, with its queues full, holds up no other, and may be given up at any time. */
static void stopped_peer_stalls_nobody(void)
{
	conf_pair pair;
	conf_region here;
	child stopped, other;
	conf_req req = {.verb = CONF_SEND, .bytes = 1000};
	uint32_t op;

	open_alone(&pair);
	conf_region_make(&here, pair.a, CHILD_REGION_BYTES, TERN_ACCESS_NONE);
	child_start(&stopped, pair.a, CHILD_SERVE, true, 0);
	child_up(&pair, &stopped);
	child_start(&other, pair.a, CHILD_SERVE, true, 0);
	child_up(&pair, &other);
	child_signal(&stopped, SIGSTOP);
	req.local = here.ptr;
	for (unsigned i = 0; i < 2000; i++) {
		if (conf_try(&stopped.end, &req, &op) != TERN_OK)
			break;
	}
	req = (conf_req){
		.verb = CONF_WRITE, .local = here.ptr, .bytes = CHILD_REGION_BYTES, .key = stopped.key};
	for (unsigned i = 0; i < 8; i++)
		(void)conf_try(&stopped.end, &req, &op);
	for (uint32_t i = 0; i < 500; i++)
		echo(&pair, &other, i);
	CONF_CHECK(!stopped.end.down, "a stopped peer was given up within moments");
	/* Given up while it stands still: drained in bounded time, buffers quiet. */
	conf_end_close(&stopped.end);
	CONF_UNTIL(&pair, conf_op_done(pair.a, op));
	end_free(&pair, &stopped);
	for (uint32_t i = 0; i < 100; i++)
		echo(&pair, &other, i);
	child_signal(&stopped, SIGCONT);
	for (uint32_t i = 0; i < 100; i++)
		echo(&pair, &other, i);
	child_kill(&stopped);
	child_stop(&pair, &other);
	end_free(&pair, &other);
	conf_region_free(&here);
	conf_pair_close(&pair);
}

/* A stopped peer that goes on is served as before: nothing was lost. */
static void stopped_peer_goes_on(void)
{
	conf_pair pair;
	conf_region here;
	child c;
	uint32_t sent = 0, got = 0;

	open_alone(&pair);
	conf_region_make(&here, pair.a, 4096 * 4, TERN_ACCESS_NONE);
	child_start(&c, pair.a, CHILD_SERVE, false, 0);
	child_up(&pair, &c);
	child_signal(&c, SIGSTOP);
	for (uint32_t limit = c.end.node->caps.lane_recv_slots; sent < limit && sent < 4096; sent++) {
		conf_req req = {.verb = CONF_SEND, .local = here.ptr + sent * 4ull, .bytes = 4};

		memcpy(req.local, &sent, 4);
		conf_must(&pair, &c.end, &req);
	}
	conf_pump_n(&pair, 100);
	child_signal(&c, SIGCONT);
	while (got < sent) {
		tn_event event = conf_inbox_wait(&pair, pair.a);
		uint32_t number;

		memcpy(&number, event.buf, 4);
		CONF_CHECK(number == got, "answer %u instead of %u", number, got);
		got++;
		conf_recv_done(pair.a, &event);
	}
	child_stop(&pair, &c);
	end_free(&pair, &c);
	conf_region_free(&here);
	conf_pair_close(&pair);
}

#define ALL (TN_CAP_WRITE | TN_CAP_SEND)

const conf_case conf_cases_process[] = {
	{.name = "other_process_works", .run = other_process_works, .needs = ALL, .processes = true},
	{.name = "peer_is_killed", .run = peer_is_killed, .needs = ALL, .processes = true},
	{.name = "death_wakes", .run = death_wakes, .needs = ALL, .processes = true},
	{.name = "stopped_peer_stalls_nobody",
	 .run = stopped_peer_stalls_nobody,
	 .needs = ALL,
	 .processes = true},
	{.name = "stopped_peer_goes_on", .run = stopped_peer_goes_on, .needs = ALL, .processes = true},
	{0},
};
