/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life and death of lanes: rings corrupted while they run, peers that stop or die in the middle of an
 * access, messages that were published before the end, draining.
 */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm_test.h"

/* ---- a ring that lies ---- */

static void evil_cell(evil_pair *l, uint32_t position, uint32_t what, uint64_t bytes)
{
	tn_shm_cell *cell = &l->e.out.cells[position];

	atomic_store(&cell->what, what);
	atomic_store(&cell->bytes, bytes);
	atomic_store(&cell->tag, 1);
}

static void test_bad_cell(void **state)
{
	evil_pair l;

	(void)state;
	evil_pair_open(&l);
	evil_cell(&l, 0, TN_SHM_SEND | TN_SHM_NO_BUF << 16, 10);
	evil_cell(&l, 1, TN_SHM_IMM | TN_SHM_NO_BUF << 16, 10);
	evil_cell(&l, 2, 77, 10);
	wait_down(&l.n, 1, TERN_E_PROTOCOL);
	assert_int_equal(l.n.recvs, 1); /* what came before is delivered */
	assert_int_equal(l.n.imms, 1);
	evil_pair_close(&l);
}

static uint64_t take(node *n, tn_lane *lane)
{
	_Alignas(64) uint8_t room[TN_TAKE_BYTES];
	tn_lane *from = NULL;
	uint64_t word = 0;
	int bytes = n->dev->ops->take(n->dev, room, &from);

	if (bytes <= 0)
		return (uint64_t)bytes;
	assert_int_equal(bytes, sizeof(word));
	assert_ptr_equal(from, lane);
	memcpy(&word, room, sizeof(word));
	return word;
}

static void post_words(tn_lane *lane, uint64_t first, uint64_t last)
{
	for (uint64_t word = first; word <= last; word++) {
		const tn_iov iov = {.base = &word, .bytes = sizeof(word)};
		bool done;

		assert_ok(tn_lane_send(lane, &iov, 1, 0, &done));
	}
}

/* Short messages one at a time, in turn with what poll receives; many at a time are poll's. */
static void test_take(void **state)
{
	static const uint8_t data[3000];
	const tn_iov long_one = {.base = data, .bytes = sizeof(data)};
	lane_pair lanes;
	node a, b;
	bool done;

	(void)state;
	node_open(&a);
	node_open(&b);
	lane_up(&a, &b, &lanes);
	polls(&b, 3);                           /* what it looks at after a lane came up */
	for (uint64_t i = 1; i <= 10000; i++) { /* they hold nothing: there are far fewer buffers */
		uint64_t got;

		post_words(lanes.a, i, i);
		while ((got = take(&b, lanes.b)) == UINT64_MAX && b.recvs == 0)
			(void)node_poll(&b); /* now and then it looks elsewhere */
		assert_int_equal(b.recvs ? i : got, i);
		b.recvs = 0;
		(void)take(&b, lanes.b);
	}
	polls(&b, 1);
	assert_int_equal(take(&b, lanes.b), 0);
	post_words(lanes.a, 1, 2);
	assert_int_equal(take(&b, lanes.b), 1);
	assert_ok(tn_lane_send(lanes.a, &long_one, 1, 0, &done));
	post_words(lanes.a, 3, 9);
	assert_int_equal(take(&b, lanes.b), 2);
	assert_true(take(&b, lanes.b) == UINT64_MAX); /* the long one */
	assert_int_equal(node_poll(&b), 8);
	assert_int_equal(b.last.bytes, 8);
	post_words(lanes.a, 1, 1);
	assert_true(take(&b, lanes.b) == UINT64_MAX); /* until poll finds no more than one */
	assert_int_equal(node_poll(&b), 1);
	post_words(lanes.a, 1, 9);
	for (uint64_t i = 1; i <= 4; i++)
		assert_int_equal(take(&b, lanes.b), i);
	assert_true(take(&b, lanes.b) == UINT64_MAX);
	assert_int_equal(node_poll(&b), 5);
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	node_close(&a);
	node_close(&b);
}

/* The consumer's words, as seen by a producer in a post: the post fails, the poller ends the lane. */
/* Sockets are looked at after so many empty polls; after more of them while messages come, but always at last. */
static void test_looks_at_sockets(void **state)
{
	const tn_shm_dev *dev;
	node a, b;
	lane_pair lanes;
	uint32_t most;

	(void)state;
	node_open(&a);
	node_open(&b);
	lane_up(&a, &b, &lanes);
	dev = (const tn_shm_dev *)b.dev;
	most = dev->config.idle_polls;
	do
		polls(&b, 1);
	while (dev->idle != 0); /* it has just looked */
	post_words(lanes.a, 1, 1);
	assert_int_equal(take(&b, lanes.b), 1);
	for (uint32_t i = 1; i < 16 * most; i++) {
		assert_int_equal(take(&b, lanes.b), 0);
		assert_int_equal(dev->idle, i);
	}
	assert_int_equal(take(&b, lanes.b), -1);
	polls(&b, 1);
	assert_true(dev->idle == 0 && !dev->lively);
	for (uint32_t i = 1; i < most; i++)
		assert_int_equal(take(&b, lanes.b), 0);
	assert_int_equal(take(&b, lanes.b), -1);
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	node_close(&a);
	node_close(&b);
}

static void test_bad_words(void **state)
{
	static const uint8_t data[3000];
	const tn_iov small = {.base = data, .bytes = 8};
	const tn_iov big = {.base = data, .bytes = sizeof(data)};

	(void)state;
	for (int round = 0; round < 2; round++) {
		evil_pair l;
		tern_status status = TERN_OK;
		bool done;

		evil_pair_open(&l);
		if (round == 0)
			atomic_store(&l.e.in.ctl->consumed, 1ull << 40);
		else
			atomic_store(&l.e.in.ctl->returned, 99);
		for (int i = 0; i < 1000 && status == TERN_OK; i++)
			status = tn_lane_send(l.lane, round == 0 ? &small : &big, 1, 0, &done);
		assert_int_equal(status, TERN_E_LANE);
		wait_down(&l.n, 1, TERN_E_PROTOCOL);
		assert_status(tn_lane_send(l.lane, &small, 1, 0, &done), TERN_E_LANE);
		evil_pair_close(&l);
	}
}

/* The poller sleeps while a post finds the fault: it is woken. */
static void test_fault_wakes(void **state)
{
	static const uint8_t data[8];
	const tn_iov iov = {.base = data, .bytes = 8};
	evil_pair l;
	tern_status status = TERN_OK;
	bool done;

	(void)state;
	evil_pair_open(&l);
	atomic_store(&l.e.in.ctl->consumed, 1ull << 40);
	while (l.n.dev->ops->arm(l.n.dev) == TERN_BUSY)
		(void)node_poll(&l.n);
	for (int i = 0; i < 1000 && status == TERN_OK; i++)
		status = tn_lane_send(l.lane, &iov, 1, 0, &done);
	assert_int_equal(status, TERN_E_LANE);
	(void)node_poll(&l.n);
	assert_int_equal(l.n.downs, 1);
	evil_pair_close(&l);
}

/* ---- draining ---- */

static void test_drain_waits_for_an_access(void **state)
{
	evil_pair l;

	(void)state;
	evil_pair_open(&l);
	atomic_store(&l.e.out.ctl->access, 5); /* the peer stands in a copy */
	l.n.dev->ops->lane_close(l.lane);
	assert_int_equal(atomic_load(&l.e.out.ctl->stop), 1);
	for (int i = 0; i < 1000; i++) {
		assert_false(l.n.dev->ops->lane_drained(l.lane));
		(void)node_poll(&l.n);
	}
	atomic_store(&l.e.out.ctl->access, 6); /* and comes out of it */
	assert_true(l.n.dev->ops->lane_drained(l.lane));
	l.n.dev->ops->lane_destroy(l.lane);
	assert_int_equal(counter(&l.n, "shm.forced_drains"), 0);
	evil_free(&l.e);
	node_close(&l.n);
}

static void test_drain_is_bounded(void **state)
{
	evil_pair l;

	(void)state;
	evil_pair_open(&l);
	atomic_store(&l.e.out.ctl->access, 5);
	l.n.dev->ops->lane_close(l.lane);
	while (!l.n.dev->ops->lane_drained(l.lane))
		tn_sleep_ns(10 * TN_NS_PER_MS);
	l.n.dev->ops->lane_destroy(l.lane);
	assert_int_equal(counter(&l.n, "shm.forced_drains"), 1);
	evil_free(&l.e);
	node_close(&l.n);
}

/* After the owner stopped the lane a post goes nowhere, even before the poster has heard of it. */
static void test_stop_is_obeyed(void **state)
{
	node a, b;
	lane_pair lanes;
	tn_key key;
	uint64_t word = 1, *target;

	(void)state;
	node_open(&a);
	node_open(&b);
	lane_up(&a, &b, &lanes);
	target = (uint64_t *)(void *)block(&b, 4096, RW, &key);
	assert_ok(access_by(&a, &b, lanes.a, true, &key, 0, &word, 8));
	b.dev->ops->lane_break(lanes.b);
	*target = 99;
	word = 2; /* a has not polled since */
	assert_status(access_by(&a, NULL, lanes.a, true, &key, 0, &word, 8), TERN_E_LANE);
	assert_int_equal(*target, 99);
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	node_close(&a);
	node_close(&b);
}

/* What was published before the end is delivered, then LANE_DOWN. */
static void test_last_words(void **state)
{
	node a, b;
	lane_pair lanes;
	uint8_t data[1000] = {0};
	const tn_iov iov = {.base = data, .bytes = sizeof(data)};
	bool done;

	(void)state;
	node_open(&a);
	node_open(&b);
	lane_up(&a, &b, &lanes);
	for (int i = 0; i < 200; i++)
		assert_ok(tn_lane_send(lanes.a, &iov, 1, 0, &done));
	a.dev->ops->lane_close(lanes.a);
	wait_down(&b, 1, TERN_E_LANE);
	assert_int_equal(b.recvs, 200);
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	node_close(&a);
	node_close(&b);
}

/* ---- processes ---- */

typedef struct child {
	pid_t pid;
	int sock;
} child;

/*
 * A child that connects to the node's passive lane and then puts and sends as fast as it can, for ever.
 * IN_ACCESS: it stands in the middle of a one-sided access meanwhile. PARENT: it has a child of its own,
 * which inherits all sockets and waits for ever; its pid goes back through the socket.
 */
typedef enum child_mode { RUNS, IN_ACCESS, PARENT } child_mode;

static void child_traffic(node *n, tn_lane *lane, const tn_key *key, bool puts)
{
	uint8_t data[600] = {0};

	for (unsigned i = 0;; i++) {
		tn_wr wr = {.local = data, .bytes = sizeof(data), .key = *key};
		const tn_iov iov = {.base = data, .bytes = i % sizeof(data)};
		bool done;

		if (puts)
			(void)tn_lane_write(lane, &wr);
		(void)tn_lane_send(lane, &iov, 1, 0, &done);
		(void)node_poll(n);
	}
}

static void child_run(int sock, child_mode mode)
{
	node n;
	tn_blob theirs, lane_mine, lane_theirs;
	tn_lane *lane;
	tn_key key;

	node_open(&n);
	lane = lane_make(&n, true, &lane_mine);
	if (write(sock, &n.addr, sizeof(n.addr)) < 0 || write(sock, &lane_mine, sizeof(lane_mine)) < 0 ||
	    read(sock, &theirs, sizeof(theirs)) < 0 || read(sock, &lane_theirs, sizeof(lane_theirs)) < 0 ||
	    read(sock, &key, sizeof(key)) < 0)
		_exit(1);
	if (n.dev->ops->lane_connect(lane, &theirs, &lane_theirs) != TERN_OK)
		_exit(2);
	while (n.ups == 0)
		(void)node_poll(&n);
	if (mode == IN_ACCESS)
		atomic_store(&((tn_shm_lane *)lane)->ctl_out->access, 1);
	if (mode == PARENT) {
		pid_t grandchild = fork();

		while (grandchild == 0)
			pause();
		if (write(sock, &grandchild, sizeof(grandchild)) < 0)
			_exit(3);
	}
	child_traffic(&n, lane, &key, mode != IN_ACCESS);
}

static child child_start(node *n, tn_lane **lane, const tn_key *key, child_mode mode)
{
	int socks[2];
	child c;
	tn_blob addr, lane_addr, own;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, socks), 0);
	c.pid = fork();
	assert_true(c.pid >= 0);
	if (c.pid == 0) {
		close(socks[0]);
		child_run(socks[1], mode);
	}
	close(socks[1]);
	c.sock = socks[0];
	*lane = lane_make(n, false, &own);
	assert_int_equal(read(c.sock, &addr, sizeof(addr)), sizeof(addr));
	assert_int_equal(read(c.sock, &lane_addr, sizeof(lane_addr)), sizeof(lane_addr));
	assert_ok(n->dev->ops->lane_connect(*lane, &addr, &lane_addr));
	assert_int_equal(write(c.sock, &n->addr, sizeof(n->addr)), sizeof(n->addr));
	assert_int_equal(write(c.sock, &own, sizeof(own)), sizeof(own));
	assert_int_equal(write(c.sock, key, sizeof(*key)), sizeof(*key));
	return c;
}

static void child_reap(child *c)
{
	assert_int_equal(waitpid(c->pid, NULL, 0), c->pid);
	close(c->sock);
}

#ifdef TN_SANITIZED
#define KILLS 30
#else
#define KILLS 200
#endif

/* At any moment, handshake included: LANE_DOWN or nothing yet, and nothing is left in this process. */
static void test_kills(void **state)
{
	node n;
	tn_key key;
	tn_rand rand = {2024};
	unsigned fds, maps, early = 0;

	(void)state;
	node_open(&n);
	(void)block(&n, 4096, RW, &key);
	fds = descriptors();
	maps = mappings("memfd:tern", "s");
	for (int i = 0; i < KILLS; i++) {
		tn_lane *lane;
		unsigned ups = n.ups, downs = n.downs;
		child c = child_start(&n, &lane, &key, RUNS);
		uint64_t until;

		/* In traffic, or before and in the handshake. */
		while (i % 2 && n.ups == ups)
			(void)node_poll(&n);
		until = tn_now() + tn_rand_below(&rand, 2000) * 1000;
		while (tn_now() < until)
			(void)node_poll(&n);
		kill(c.pid, SIGKILL);
		child_reap(&c);
		if (n.ups == ups) {
			polls(&n, 300);
			early++;
		}
		if (n.ups > ups) {
			while (n.downs == downs)
				(void)node_poll(&n);
			assert_int_equal(n.last_down.status, TERN_E_LANE);
		}
		lane_free(&n, lane);
		polls(&n, 100);
		assert_int_equal(descriptors(), fds);
		assert_int_equal(mappings("memfd:tern", "s"), maps);
	}
	assert_true(early <= KILLS / 2);
	assert_int_equal(counter(&n, "shm.forced_drains"), 0);
	node_close(&n);
}

/* Stopped inside of an access: not drained; killed: drained at once, because the pidfd says so. */
static void test_death_ends_an_access(void **state)
{
	node n;
	tn_key key;
	tn_lane *lane;
	child c;

	(void)state;
	node_open(&n);
	(void)block(&n, 4096, RW, &key);
	c = child_start(&n, &lane, &key, IN_ACCESS);
	while (n.recvs < 10)
		(void)node_poll(&n);
	kill(c.pid, SIGSTOP);
	n.dev->ops->lane_break(lane);
	while (n.downs == 0)
		(void)node_poll(&n);
	for (int i = 0; i < 100; i++)
		assert_false(n.dev->ops->lane_drained(lane));
	kill(c.pid, SIGKILL);
	child_reap(&c);
	while (!n.dev->ops->lane_drained(lane))
		(void)node_poll(&n);
	assert_int_equal(counter(&n, "shm.forced_drains"), 0);
	n.dev->ops->lane_destroy(lane);
	node_close(&n);
}

/* A forked child of the peer keeps its sockets open: the death is seen all the same. */
static void test_grandchild_holds_the_socket(void **state)
{
	node n;
	tn_key key;
	tn_lane *lane;
	child c;
	pid_t grandchild;

	(void)state;
	node_open(&n);
	(void)block(&n, 4096, RW, &key);
	c = child_start(&n, &lane, &key, PARENT);
	while (n.recvs < 10)
		(void)node_poll(&n);
	assert_int_equal(read(c.sock, &grandchild, sizeof(grandchild)), sizeof(grandchild));
	assert_true(grandchild > 0);
	kill(c.pid, SIGKILL);
	child_reap(&c);
	wait_down(&n, 1, TERN_E_LANE);
	kill(grandchild, SIGKILL);
	lane_free(&n, lane);
	node_close(&n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_cell),
		cmocka_unit_test(test_bad_words),
		cmocka_unit_test(test_take),
		cmocka_unit_test(test_looks_at_sockets),
		cmocka_unit_test(test_fault_wakes),
		cmocka_unit_test(test_drain_waits_for_an_access),
		cmocka_unit_test(test_drain_is_bounded),
		cmocka_unit_test(test_stop_is_obeyed),
		cmocka_unit_test(test_last_words),
		cmocka_unit_test(test_kills),
		cmocka_unit_test(test_death_ends_an_access),
		cmocka_unit_test(test_grandchild_holds_the_socket),
	};

	return RUN(tests);
}
