/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: progress -> arm -> wait. A waiter that follows it never sleeps through an event, and sleeping
 * costs nothing. Litmus tests: thousands of rounds in which the sender hits every moment between the
 * waiter's last poll, its arm and its sleep; a lost wake-up hangs and the watchdog says so. No time is
 * asserted; the one measured quantity is CPU time of a process that has nothing to do.
 */
#include "conf.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"

static void wait_for(conf_node *node, int timeout_ms)
{
	struct pollfd fd = {.fd = node->dev->ops->fd(node->dev), .events = POLLIN};
	tern_status status = node->dev->ops->arm(node->dev);

	CONF_CHECK(status == TERN_OK || status == TERN_BUSY, "arm: %s", tern_status_name(status));
	if (status == TERN_OK)
		(void)poll(&fd, 1, timeout_ms);
}

typedef struct waiter {
	conf_node *node;
	conf_end *reply; /* not NULL: answer each message on it */
	_Atomic uint32_t got;
	uint32_t want;
	uint64_t polls;
} waiter;

static void *waiter_run(void *arg)
{
	waiter *w = arg;
	uint8_t byte = 9;
	const conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	tn_event event;

	while (atomic_load(&w->got) < w->want) {
		w->polls++;
		if (conf_node_poll(w->node) == 0) {
			wait_for(w->node, -1);
			continue;
		}
		while (conf_inbox_take(w->node, &event)) {
			conf_recv_done(w->node, &event);
			if (w->reply) {
				uint32_t op;

				while (conf_try(w->reply, &req, &op) == TERN_AGAIN)
					(void)conf_node_poll(w->node);
			}
			atomic_fetch_add(&w->got, 1);
		}
	}
	while (!conf_ledger_done(w->node))
		(void)conf_node_poll(w->node);
	return NULL;
}

/* A short and random while, so that the sender comes at another moment each time. */
static void dawdle(tn_rand *rand)
{
	uint64_t turns = tn_rand_below(rand, 8) ? tn_rand_below(rand, 2000) : 0;

	for (volatile uint64_t i = 0; i < turns; i++)
		tn_cpu_relax();
	if (tn_rand_below(rand, 16) == 0)
		(void)sched_yield();
}

static void sleeper_is_woken(conf_verb verb)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	pthread_t thread;
	waiter w = {0};
	conf_req req = {.verb = verb, .bytes = 1};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 8, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 8, TERN_ACCESS_WRITE);
	req.local = from.ptr;
	req.key = to.key;
	w.node = pair.b;
	w.want = conf_rounds(20000);
	assert_int_equal(pthread_create(&thread, NULL, waiter_run, &w), 0);
	for (uint32_t i = 0; i < w.want; i++) {
		uint32_t op;

		while (conf_try(&lane.a, &req, &op) == TERN_AGAIN) {
			CONF_HERE();
			(void)conf_node_poll(pair.a);
		}
		while (atomic_load(&w.got) <= i) {
			CONF_HERE();
			(void)conf_node_poll(pair.a);
		}
		dawdle(&pair.rand);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	conf_threads_ok();
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

static void message_wakes(void)
{
	sleeper_is_woken(CONF_SEND);
}

static void immediate_wakes(void)
{
	sleeper_is_woken(CONF_WRITE_IMM);
}

/* Both sides sleep: every wake-up of a ping-pong counts. */
static void ping_pong_of_sleepers(void)
{
	conf_pair pair;
	conf_lane lane;
	pthread_t thread;
	waiter w = {0};
	uint8_t byte = 1;
	conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	tn_event event;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	w = (waiter){.node = pair.b, .reply = &lane.b, .want = conf_rounds(20000)};
	assert_int_equal(pthread_create(&thread, NULL, waiter_run, &w), 0);
	for (uint32_t i = 0; i < w.want; i++) {
		uint32_t op;

		while (conf_try(&lane.a, &req, &op) == TERN_AGAIN)
			(void)conf_node_poll(pair.a);
		while (!conf_inbox_take(pair.a, &event)) {
			CONF_HERE();
			if (conf_node_poll(pair.a) == 0)
				wait_for(pair.a, -1);
		}
		conf_recv_done(pair.a, &event);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	conf_threads_ok();
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_pair_close(&pair);
}

/* A completion wakes who sleeps for it, with a target that sleeps as well. */
static void completion_wakes(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	pthread_t thread;
	waiter w = {0};
	uint8_t byte = 1;
	conf_req write = {.verb = CONF_WRITE}, end = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	unsigned rounds = conf_rounds(5000);
	uint32_t op;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 100000, TERN_ACCESS_READ);
	conf_region_make(&to, pair.b, 100000, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	w = (waiter){.node = pair.b, .want = 1};
	assert_int_equal(pthread_create(&thread, NULL, waiter_run, &w), 0);
	for (unsigned i = 0; i < rounds; i++) {
		write.verb = i % 4 == 3 && pair.a->caps.flags & TN_CAP_READ ? CONF_READ : CONF_WRITE;
		write.local = from.ptr;
		write.key = to.key;
		write.bytes = tn_rand_below(&pair.rand, i % 8 ? 100 : 100000);
		write.level = conf_best_level(pair.a);
		while (conf_try(&lane.a, &write, &op) == TERN_AGAIN)
			(void)conf_node_poll(pair.a);
		while (!conf_op_done(pair.a, op)) {
			CONF_HERE();
			if (conf_node_poll(pair.a) == 0)
				wait_for(pair.a, -1);
		}
		CONF_OK(conf_op_status(pair.a, op));
	}
	while (conf_try(&lane.a, &end, &op) == TERN_AGAIN)
		(void)conf_node_poll(pair.a);
	while (!conf_ledger_done(pair.a) || atomic_load(&w.got) == 0) {
		CONF_HERE();
		(void)conf_node_poll(pair.a);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	conf_threads_ok();
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

typedef struct helper {
	conf_node *node;
	atomic_bool stop;
} helper;

static void *helper_run(void *arg)
{
	helper *h = arg;
	tn_event event;

	while (!atomic_load(&h->stop)) {
		if (conf_node_poll(h->node) == 0)
			wait_for(h->node, -1);
		while (conf_inbox_take(h->node, &event))
			conf_recv_done(h->node, &event);
	}
	return NULL;
}

static void receive_all(conf_node *node)
{
	tn_event event;

	(void)conf_node_poll(node);
	while (conf_inbox_take(node, &event))
		conf_recv_done(node, &event);
}

/*
 * The device's only poller sleeps in another thread while this one posts: its completions get through, though
 * nobody but the post itself can wake that thread.
 */
static void post_wakes_the_helper(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	pthread_t thread;
	helper h = {0};
	uint8_t byte = 1;
	const conf_req stop = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	uint32_t op = 0;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 400000, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 400000, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	h.node = pair.a;
	assert_int_equal(pthread_create(&thread, NULL, helper_run, &h), 0);
	for (unsigned i = 0; i < conf_rounds(5000); i++) {
		conf_req req = {
			.verb = (conf_verb)tn_rand_below(&pair.rand, 4), .local = from.ptr, .key = to.key};
		static const uint32_t cap_of[] = {TN_CAP_WRITE, TN_CAP_WRITE_IMM, TN_CAP_READ, TN_CAP_SEND};

		if (!(pair.a->caps.flags & cap_of[req.verb]))
			continue;
		req.bytes = tn_rand_below(&pair.rand, i % 32 && req.verb != CONF_SEND ? 400000 : 1000);
		if (i % 4)
			req.bytes %= 100;
		req.level = conf_best_level(pair.a);
		/* Refused attempts use up rows of the ledger; 5,000 rounds leave enough. */
		while (conf_try(&lane.a, &req, &op) == TERN_AGAIN)
			receive_all(pair.b);
		do {
			CONF_HERE();
			receive_all(pair.b);
		} while (!conf_op_done(pair.a, op));
		CONF_OK(conf_op_status(pair.a, op));
		dawdle(&pair.rand);
	}
	atomic_store(&h.stop, true);
	while (conf_try(&lane.b, &stop, &op) == TERN_AGAIN)
		(void)conf_node_poll(pair.b);
	while (pthread_tryjoin_np(thread, NULL) != 0) {
		CONF_HERE();
		(void)conf_node_poll(pair.b);
	}
	conf_threads_ok();
	CONF_UNTIL(&pair, conf_ledger_done(pair.b));
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

typedef struct down_waiter {
	conf_node *node;
	conf_end *end;
} down_waiter;

static void *down_waiter_run(void *arg)
{
	down_waiter *w = arg;

	while (!w->end->down) {
		if (conf_node_poll(w->node) == 0)
			wait_for(w->node, -1);
	}
	return NULL;
}

/* The end of a lane wakes a sleeper, whichever side ended it. */
static void lane_down_wakes(void)
{
	conf_pair pair;
	conf_lane lane;
	pthread_t thread;
	down_waiter w;

	conf_pair_open(&pair);
	for (unsigned i = 0; i < conf_rounds(100); i++) {
		conf_lane_up(&pair, &lane);
		w = (down_waiter){.node = pair.b, .end = &lane.b};
		assert_int_equal(pthread_create(&thread, NULL, down_waiter_run, &w), 0);
		dawdle(&pair.rand);
		if (i % 2)
			pair.a->dev->ops->lane_break(lane.a.lane);
		else
			conf_end_close(&lane.a);
		while (pair.a && pthread_tryjoin_np(thread, NULL) != 0) {
			CONF_HERE();
			(void)conf_node_poll(pair.a);
		}
		conf_threads_ok();
		conf_lane_free(&pair, &lane);
	}
	conf_pair_close(&pair);
}

/* An armed descriptor without events stays quiet, and arming again and again is fine. */
static void arm_is_repeatable(void)
{
	conf_pair pair;
	conf_lane lane;
	struct pollfd fd;
	unsigned quiet = 0;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_pump_n(&pair, 300);
	fd = (struct pollfd){.fd = pair.a->dev->ops->fd(pair.a->dev), .events = POLLIN};
	assert_true(fd.fd >= 0);
	for (unsigned i = 0; i < 1000; i++) {
		assert_int_equal(pair.a->dev->ops->fd(pair.a->dev), fd.fd);
		if (pair.a->dev->ops->arm(pair.a->dev) == TERN_OK && poll(&fd, 1, 0) == 0)
			quiet++;
		if (i % 3)
			(void)conf_node_poll(pair.a);
	}
	/* Spurious wake-ups are allowed, not as a rule. */
	CONF_CHECK(quiet > 900, "the descriptor of an idle device was quiet only %u times of 1000", quiet);
	conf_lane_works(&pair, &lane);
	conf_pair_close(&pair);
}

/* ---- idle costs nothing ---- */

typedef struct idler {
	conf_node *node;
	uint64_t until_ns;
	uint64_t wakes;
} idler;

static void *idler_run(void *arg)
{
	idler *idle = arg;

	while (tn_now() < idle->until_ns) {
		if (conf_node_poll(idle->node) > 0)
			continue;
		wait_for(idle->node, tn_poll_timeout_ms(tn_now(), idle->until_ns));
		idle->wakes++;
	}
	return NULL;
}

static void idle_costs_nothing(void)
{
	conf_pair pair;
	conf_lane lanes[4];
	idler idlers[2];
	pthread_t thread;
	const uint64_t span = 10 * TN_NS_PER_SEC;
	uint64_t cpu;

	conf_pair_open(&pair);
	for (unsigned i = 0; i < TN_COUNT_OF(lanes); i++) {
		conf_lane_up(&pair, &lanes[i]);
		conf_lane_works(&pair, &lanes[i]);
	}
	conf_pump_n(&pair, 300);
	idlers[0] = (idler){.node = pair.a, .until_ns = tn_now() + span};
	idlers[1] = (idler){.node = pair.b, .until_ns = idlers[0].until_ns};
	cpu = tn_cpu_process_ns();
	assert_int_equal(pthread_create(&thread, NULL, idler_run, &idlers[1]), 0);
	(void)idler_run(&idlers[0]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	cpu = tn_cpu_process_ns() - cpu;
	conf_threads_ok();
	print_message("%s: %.3f %% of a core in wait, %llu and %llu wake-ups\n", conf->name,
		      100.0 * (double)cpu / (double)span, (unsigned long long)idlers[0].wakes,
		      (unsigned long long)idlers[1].wakes);
	CONF_CHECK(cpu < span / 100, "idle took %llu us of CPU in %llu ms",
		   (unsigned long long)(cpu / TN_NS_PER_US), (unsigned long long)(span / TN_NS_PER_MS));
	for (unsigned i = 0; i < TN_COUNT_OF(lanes); i++)
		conf_lane_works(&pair, &lanes[i]);
	conf_pair_close(&pair);
}

const conf_case conf_cases_wait[] = {
	{.name = "message_wakes", .run = message_wakes, .needs = TN_CAP_SEND},
	{.name = "immediate_wakes", .run = immediate_wakes, .needs = TN_CAP_WRITE_IMM},
	{.name = "ping_pong_of_sleepers", .run = ping_pong_of_sleepers, .needs = TN_CAP_SEND},
	{.name = "completion_wakes", .run = completion_wakes, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "post_wakes_the_helper", .run = post_wakes_the_helper, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "lane_down_wakes", .run = lane_down_wakes, .needs = TN_CAP_SEND},
	{.name = "arm_is_repeatable", .run = arm_is_repeatable, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "idle_costs_nothing",
	 .run = idle_costs_nothing,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND,
	 .slow = true},
	{0},
};
