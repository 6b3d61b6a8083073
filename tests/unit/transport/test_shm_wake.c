/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping and waking between two devices in two threads: no wake-up is ever lost, whoever sleeps and for
 * whatever reason. A lost one shows as a poll() that times out.
 */
#include <poll.h>
#include <pthread.h>

#include "shm_test.h"

#define LOST_MS 20000

#ifdef TN_SANITIZED
#define MANY(n) ((n) / 10)
#else
#define MANY(n) (n)
#endif

typedef struct side {
	node n;
	tn_lane *lane;
	_Atomic bool *end;
	uint64_t sends, got;
	unsigned lost, wakes;
	tn_rand rand;
	bool held_back; /* pauses before it polls: fills the ring */
} side;

/* The event loop that the contract asks for; returns after each wait so that posts are tried again. */
static void turn(side *s)
{
	tn_event events[16];
	uint64_t before = s->got;
	int count;

	while ((count = tn_dev_poll(s->n.dev, events, 16)) > 0) {
		for (int i = 0; i < count; i++) {
			if (events[i].type == TN_EV_RECV || events[i].type == TN_EV_IMM) {
				s->got++;
				s->n.dev->ops->recv_done(s->n.dev, &events[i]);
			}
		}
	}
	if (s->got == before && s->n.dev->ops->arm(s->n.dev) == TERN_OK) {
		struct pollfd pfd = {.fd = s->n.dev->ops->fd(s->n.dev), .events = POLLIN};

		if (poll(&pfd, 1, LOST_MS) == 0)
			s->lost++;
		s->wakes++;
	}
}

static void *receive_all(void *arg)
{
	side *s = arg;

	while (s->got < s->sends && s->lost == 0) {
		if (s->held_back && tn_rand_below(&s->rand, 8) == 0)
			tn_sleep_ns(tn_rand_below(&s->rand, 1000) * 1000);
		turn(s);
	}
	return NULL;
}

static void *send_all(void *arg)
{
	side *s = arg;
	static const uint8_t data[1000];

	for (uint64_t i = 0; i < s->sends && s->lost == 0;) {
		const tn_iov iov = {.base = data, .bytes = i % 2 ? 1000 : 8};
		tern_status status;
		bool done;

		status = tn_lane_send(s->lane, &iov, 1, 0, &done);
		if (status == TERN_OK)
			i++;
		else if (status == TERN_AGAIN)
			turn(s); /* no credits here: only the wake-up for room says when to go on */
		else
			s->lost = 1000;
		if (i % 64 == 0)
			for (uint64_t k = tn_rand_below(&s->rand, 3000); k > 0; k--)
				tn_cpu_relax();
	}
	return NULL;
}

/* A short ring: full when the other side pauses. */
static void pair_open(side *a, side *b)
{
	static const char *const pairs[] = {"shm.slots=64", NULL};
	tn_options *options;
	lane_pair lanes;

	memset(a, 0, sizeof(*a));
	memset(b, 0, sizeof(*b));
	a->rand.state = 1;
	b->rand.state = 2;
	assert_ok(tn_options_load(pairs, &options));
	node_open_with(&a->n, options);
	node_open_with(&b->n, options);
	tn_options_free(options);
	lane_up(&a->n, &b->n, &lanes);
	a->lane = lanes.a;
	b->lane = lanes.b;
}

static void pair_close(side *a, side *b)
{
	lane_free(&a->n, a->lane);
	lane_free(&b->n, b->lane);
	node_close(&a->n);
	node_close(&b->n);
}

/* One sends without credits into a ring that is often full; both sleep whenever there is nothing to do. */
static void test_full_ring(void **state)
{
	static side a, b;
	pthread_t ta, tb;

	(void)state;
	pair_open(&a, &b);
	a.sends = b.sends = MANY(200000u);
	b.held_back = true;
	assert_int_equal(pthread_create(&ta, NULL, send_all, &a), 0);
	assert_int_equal(pthread_create(&tb, NULL, receive_all, &b), 0);
	pthread_join(ta, NULL);
	pthread_join(tb, NULL);
	assert_int_equal(a.lost + b.lost, 0);
	assert_int_equal(b.got, b.sends);
	assert_true(counter(&a.n, "shm.again") > 0);
	pair_close(&a, &b);
}

static void *bounce(void *arg)
{
	side *s = arg;
	static const uint8_t data[8];
	const tn_iov iov = {.base = data, .bytes = 8};
	bool done;

	for (uint64_t i = 0; i < s->sends && s->lost == 0; i++) {
		if (s->held_back && tn_lane_send(s->lane, &iov, 1, 0, &done) != TERN_OK)
			s->lost = 1000;
		while (s->got <= i && s->lost == 0)
			turn(s);
		/* Now and then stay awake a little, so that the other finds every moment of ours. */
		for (uint64_t k = tn_rand_below(&s->rand, 40); k > 0; k--)
			tn_cpu_relax();
		if (!s->held_back && tn_lane_send(s->lane, &iov, 1, 0, &done) != TERN_OK)
			s->lost = 1000;
	}
	return NULL;
}

static void test_ping_pong(void **state)
{
	static side a, b;
	pthread_t ta, tb;

	(void)state;
	pair_open(&a, &b);
	a.sends = b.sends = MANY(20000u);
	a.held_back = true; /* it sends first */
	assert_int_equal(pthread_create(&ta, NULL, bounce, &a), 0);
	assert_int_equal(pthread_create(&tb, NULL, bounce, &b), 0);
	pthread_join(ta, NULL);
	pthread_join(tb, NULL);
	assert_int_equal(a.lost + b.lost, 0);
	assert_true(counter(&a.n, "shm.wakes") > 0);
	pair_close(&a, &b);
}

/* A post that waits for an extent is woken by the answer; the owner, asleep, by the question. */
typedef struct asker {
	side *s;
	tn_key key;
	tern_status status;
} asker;

static void *put_once(void *arg)
{
	asker *k = arg;
	uint64_t word = 6;
	tn_wr wr = {.local = &word, .bytes = 8, .key = k->key};

	while ((k->status = tn_lane_write(k->s->lane, &wr)) == TERN_AGAIN && k->s->lost == 0)
		turn(k->s);
	return NULL;
}

static void test_extent_wakes(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		static side a, b;
		asker k = {.s = &a};
		pthread_t ta;
		uint64_t *target;

		pair_open(&a, &b);
		target = (uint64_t *)(void *)block(&b.n, 4096, RW, &k.key);
		*target = 0;
		assert_int_equal(pthread_create(&ta, NULL, put_once, &k), 0);
		while (__atomic_load_n(target, __ATOMIC_ACQUIRE) != 6 && b.lost == 0) {
			struct pollfd pfd = {.fd = b.n.dev->ops->fd(b.n.dev), .events = POLLIN};

			polls(&b.n, 1);
			if (__atomic_load_n(target, __ATOMIC_ACQUIRE) != 6 &&
			    b.n.dev->ops->arm(b.n.dev) == TERN_OK)
				(void)poll(&pfd, 1, 10);
		}
		pthread_join(ta, NULL);
		assert_int_equal(k.status, TERN_OK);
		assert_int_equal(a.lost, 0);
		pair_close(&a, &b);
	}
}

/* The time-out of a connect wakes a device that sleeps. */
static void test_deadline_wakes(void **state)
{
	node n;
	evil e;
	tn_blob peer_dev, peer_lane, own;
	tn_lane_params params = {.connect_timeout_ns = 20 * TN_NS_PER_MS};
	tn_lane *lane;

	(void)state;
	node_open(&n);
	evil_make(&e);
	evil_blobs(&e, &n, &peer_dev, &peer_lane);
	assert_ok(n.dev->ops->lane_create(n.dev, &params, &lane, &own));
	assert_ok(n.dev->ops->lane_connect(lane, &peer_dev, &peer_lane));
	while (n.downs == 0) {
		struct pollfd pfd = {.fd = n.dev->ops->fd(n.dev), .events = POLLIN};

		if (n.dev->ops->arm(n.dev) == TERN_OK)
			assert_int_equal(poll(&pfd, 1, LOST_MS), 1);
		(void)node_poll(&n);
	}
	assert_int_equal(n.last_down.status, TERN_E_DEADLINE);
	lane_free(&n, lane);
	evil_free(&e);
	node_close(&n);
}

/* Asleep for good reason: no wake-up without a cause. */
static void test_no_spurious_wakes(void **state)
{
	static side a, b;
	static const uint8_t data[8];
	const tn_iov iov = {.base = data, .bytes = 8};
	struct pollfd pfd;
	bool done;

	(void)state;
	pair_open(&a, &b);
	while (b.n.dev->ops->arm(b.n.dev) == TERN_BUSY)
		polls(&b.n, 1);
	pfd = (struct pollfd){.fd = b.n.dev->ops->fd(b.n.dev), .events = POLLIN};
	assert_int_equal(poll(&pfd, 1, 30), 0);
	/* Many messages to one sleeper are one wake-up. */
	for (int i = 0; i < 100; i++)
		assert_ok(tn_lane_send(a.lane, &iov, 1, 0, &done));
	assert_int_equal(counter(&a.n, "shm.wakes"), 1);
	assert_int_equal(poll(&pfd, 1, LOST_MS), 1);
	polls(&b.n, 100);
	assert_int_equal(b.n.recvs, 100);
	/* Awake: none at all. */
	assert_ok(tn_lane_send(a.lane, &iov, 1, 0, &done));
	assert_int_equal(counter(&a.n, "shm.wakes"), 1);
	pair_close(&a, &b);
}

/* A copy of `bytes` beside posts from a to b; `last`: what tells b of it follows. */
static void copy_to(side *a, side *b, const tn_key *key, void *local, uint64_t bytes, bool read, bool last)
{
	const tn_dev_ops *ops = a->n.dev->ops;
	tn_wr wr = {.local = local, .bytes = bytes, .key = *key, .last = last};
	tn_copy copy;
	tern_status status;

	while ((status = ops->copy_begin(a->lane, &wr, read, &copy)) == TERN_AGAIN) {
		polls(&a->n, 1);
		polls(&b->n, 1);
	}
	assert_ok(status);
	ops->copy(a->lane, &copy);
	ops->copy_end(a->lane, &copy);
}

/* b goes to sleep; number of wake-ups that a copy to it, and then a message, cost. */
static void wakes_of(side *a, side *b, const tn_key *key, void *local, uint64_t bytes, bool keen, bool read,
		     bool last, unsigned by_copy, unsigned in_all)
{
	static const uint8_t data[8];
	const tn_iov iov = {.base = data, .bytes = 8};
	uint64_t before = counter(&a->n, "shm.wakes");
	struct pollfd pfd = {.fd = b->n.dev->ops->fd(b->n.dev), .events = POLLIN};
	unsigned recvs = b->n.recvs;
	bool done;

	b->n.dev->keen = keen;
	while (b->n.dev->ops->arm(b->n.dev) == TERN_BUSY)
		polls(&b->n, 1);
	copy_to(a, b, key, local, bytes, read, last);
	assert_int_equal(counter(&a->n, "shm.wakes") - before, by_copy);
	assert_int_equal(poll(&pfd, 1, by_copy ? LOST_MS : 0), by_copy);
	assert_ok(tn_lane_send(a->lane, &iov, 1, 0, &done));
	assert_int_equal(counter(&a->n, "shm.wakes") - before, in_all);
	assert_int_equal(poll(&pfd, 1, LOST_MS), 1);
	polls(&b->n, 100);
	assert_int_equal(b->n.recvs, recvs + 1);
}

/*
 * Who sleeps and polls after a wake-up is woken before the end of a long transfer, and the message behind it costs no
 * second wake-up; anybody else is woken by the message alone.
 */
static void test_woken_ahead(void **state)
{
	static side a, b;
	uint64_t bytes = 3u << 20;
	uint8_t *from, *to;
	tn_key key;

	(void)state;
	pair_open(&a, &b);
	from = block(&a.n, bytes, TERN_ACCESS_NONE, NULL);
	to = block(&b.n, bytes, RW, &key);
	for (uint64_t i = 0; i < bytes; i++)
		from[i] = (uint8_t)(i * 7 >> 3);
	memset(to, 0, bytes);
	copy_to(&a, &b, &key, from, bytes, false, false); /* maps the extent */
	assert_memory_equal(to, from, bytes);
	memset(to, 0, bytes);
	wakes_of(&a, &b, &key, from, bytes, true, false, true, 1, 1);
	assert_memory_equal(to, from, bytes); /* the copy is in two parts */
	wakes_of(&a, &b, &key, from, 100000, true, false, true, 1, 1);
	wakes_of(&a, &b, &key, from, bytes, true, false, false, 0, 1);
	wakes_of(&a, &b, &key, from, bytes, true, true, true, 0, 1);
	wakes_of(&a, &b, &key, from, bytes, false, false, true, 0, 1);
	pair_close(&a, &b);
}

/* Woken ahead, asleep again before the end: the message wakes again. */
static void test_too_far_ahead(void **state)
{
	static side a, b;
	static const uint8_t data[8];
	static uint8_t from[1 << 20];
	const tn_iov iov = {.base = data, .bytes = 8};
	struct pollfd pfd;
	tn_key key;
	bool done;

	(void)state;
	pair_open(&a, &b);
	block(&b.n, sizeof(from), RW, &key);
	copy_to(&a, &b, &key, from, sizeof(from), false, false);
	pfd = (struct pollfd){.fd = b.n.dev->ops->fd(b.n.dev), .events = POLLIN};
	b.n.dev->keen = true;
	for (int i = 0; i < 3; i++) {
		uint64_t before = counter(&a.n, "shm.wakes");

		while (b.n.dev->ops->arm(b.n.dev) == TERN_BUSY)
			polls(&b.n, 1);
		copy_to(&a, &b, &key, from, sizeof(from), false, true);
		assert_int_equal(poll(&pfd, 1, LOST_MS), 1);
		polls(&b.n, 1);
		while (b.n.dev->ops->arm(b.n.dev) == TERN_BUSY)
			polls(&b.n, 1);
		assert_int_equal(poll(&pfd, 1, 0), 0);
		assert_ok(tn_lane_send(a.lane, &iov, 1, 0, &done));
		assert_int_equal(counter(&a.n, "shm.wakes") - before, 2);
		assert_int_equal(poll(&pfd, 1, LOST_MS), 1);
		polls(&b.n, 100);
	}
	assert_int_equal(b.n.recvs, 3);
	pair_close(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_spurious_wakes), cmocka_unit_test(test_deadline_wakes),
		cmocka_unit_test(test_extent_wakes),      cmocka_unit_test(test_ping_pong),
		cmocka_unit_test(test_full_ring),         cmocka_unit_test(test_woken_ahead),
		cmocka_unit_test(test_too_far_ahead),
	};

	return RUN(tests);
}
