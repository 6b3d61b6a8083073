/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: rule 5. Posts on different lanes from different threads run beside the thread that polls. To
 * be run under the thread sanitizer. Data that threads share with a device is read only after its
 * notification.
 */
#include "conf.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { POSTERS = 2, AREA = 64, SLOTS = 16 };

typedef struct poster {
	conf_end *end;
	conf_region *from, *to;
	uint32_t number;
	uint32_t rounds;
	_Atomic uint32_t seen; /* by the receiver */
} poster;

/* Each round: fill an area at the target, then notify with its number. At most SLOTS unseen rounds. */
static void *poster_run(void *arg)
{
	poster *p = arg;

	for (uint32_t i = 0; i < p->rounds; i++) {
		uint64_t at = (p->number * SLOTS + i % SLOTS) * (uint64_t)AREA;
		uint32_t op[2] = {0, 0};
		conf_req req = {.verb = CONF_WRITE,
				.local = p->from->ptr + at,
				.bytes = AREA - 4,
				.key = p->to->key,
				.offset = at};

		while (i - atomic_load(&p->seen) >= SLOTS)
			(void)sched_yield();
		conf_fill(req.local, AREA - 4, i * 8ull + p->number);
		op[0] = conf_post(NULL, p->end, &req);
		memcpy(p->from->ptr + at + AREA - 4, &i, 4);
		req = (conf_req){.verb = CONF_SEND, .local = p->from->ptr + at + AREA - 4, .bytes = 4};
		op[1] = conf_post(NULL, p->end, &req);
		/* The source is written again after SLOTS rounds: it has to be free by then. */
		while (!conf_op_done(p->end->node, op[0]) || !conf_op_done(p->end->node, op[1]))
			(void)sched_yield();
	}
	return NULL;
}

typedef struct poll_thread {
	conf_node *node;
	atomic_bool stop;
} poll_thread;

static void *poll_run(void *arg)
{
	poll_thread *p = arg;

	while (!atomic_load(&p->stop)) {
		if (conf_node_poll(p->node) == 0)
			(void)sched_yield();
	}
	return NULL;
}

static void take_one(conf_pair *pair, conf_lane *lanes, poster *posters, conf_region *to)
{
	tn_event event;
	unsigned which = 0;
	uint32_t number, seen;

	if (!conf_inbox_take(pair->b, &event))
		return;
	while (which < POSTERS && event.lane != lanes[which].b.lane)
		which++;
	assert_true(which < POSTERS);
	memcpy(&number, event.buf, 4);
	seen = atomic_load(&posters[which].seen);
	CONF_CHECK(number == seen, "lane %u: %u instead of %u", which, number, seen);
	conf_expect(to->ptr + (which * SLOTS + seen % SLOTS) * (uint64_t)AREA, AREA - 4, seen * 8ull + which,
		    "written by another thread");
	conf_recv_done(pair->b, &event);
	atomic_store(&posters[which].seen, seen + 1);
}

static void posts_beside_polls(void)
{
	conf_pair pair;
	conf_lane lanes[POSTERS];
	poster posters[POSTERS];
	conf_region from, to;
	pthread_t threads[POSTERS], poller;
	poll_thread polls = {0};
	uint32_t rounds = conf_rounds(10000);

	conf_pair_open(&pair);
	for (unsigned i = 0; i < POSTERS; i++)
		conf_lane_up(&pair, &lanes[i]);
	conf_region_make(&from, pair.a, POSTERS * SLOTS * AREA, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, POSTERS * SLOTS * AREA, TERN_ACCESS_WRITE);
	polls.node = pair.a;
	assert_int_equal(pthread_create(&poller, NULL, poll_run, &polls), 0);
	for (unsigned i = 0; i < POSTERS; i++) {
		posters[i] =
			(poster){.end = &lanes[i].a, .from = &from, .to = &to, .number = i, .rounds = rounds};
		assert_int_equal(pthread_create(&threads[i], NULL, poster_run, &posters[i]), 0);
	}
	while (atomic_load(&posters[0].seen) < rounds || atomic_load(&posters[1].seen) < rounds) {
		CONF_HERE();
		if (conf_node_poll(pair.b) == 0)
			(void)sched_yield();
		take_one(&pair, lanes, posters, &to);
	}
	for (unsigned i = 0; i < POSTERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	atomic_store(&polls.stop, true);
	assert_int_equal(pthread_join(poller, NULL), 0);
	conf_threads_ok();
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* Devices of different threads of one process have nothing to do with each other. */
static void *own_pair_run(void *arg)
{
	conf_node *const *nodes = arg;
	conf_node *node = nodes[0];

	/* Polling an idle device while others work is all that a foreign thread does here. */
	for (unsigned i = 0; i < 2000; i++) {
		(void)conf_node_poll(node);
		if (i % 100 == 0)
			(void)sched_yield();
	}
	return NULL;
}

static void devices_are_independent(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_node *other = conf_node_open("other");
	pthread_t thread;

	conf_pair_open(&pair);
	assert_int_equal(pthread_create(&thread, NULL, own_pair_run, &other), 0);
	for (unsigned i = 0; i < 20; i++) {
		conf_lane_up(&pair, &lane);
		conf_lane_works(&pair, &lane);
		conf_lane_free(&pair, &lane);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	conf_threads_ok();
	conf_node_close(other);
	conf_pair_close(&pair);
}

const conf_case conf_cases_threads[] = {
	{.name = "posts_beside_polls", .run = posts_beside_polls, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "devices_are_independent",
	 .run = devices_are_independent,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{0},
};
