/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp device and the life of its lanes where the conformance suite does not look: addresses, options,
 * failing system calls, fork, and the direct and the epoll way of polling.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "base/os.h"
#include "tcp_peer.h"

/* One message over a fresh lane. */
static void lane_works(node *a, node *b)
{
	tn_lane *la, *lb;
	tn_iov iov = {"ping", 4};
	const tn_event *event;
	bool done;

	lane_pair(a, b, &la, &lb);
	assert_ok(tn_lane_send(la, &iov, 1, 0, &done));
	UNTIL2(node_find(b, TN_EV_RECV, lb), a, b);
	event = node_find(b, TN_EV_RECV, lb);
	assert_memory_equal(event->buf, "ping", 4);
	b->dev->ops->recv_done(b->dev, event);
	lane_end(a, la);
	lane_end(b, lb);
	a->count = b->count = 0;
}

/* ---- addresses ---- */

static bool have_ipv6(void)
{
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	bool have = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;

	close(fd);
	return have;
}

static void ipv6_loopback(void **state)
{
	static const char *const hosts[] = {"::1", "[::1]"};
	static node a, b;
	tn_tcp_dev_blob dev;

	(void)state;
	if (!have_ipv6())
		skip();
	for (int i = 0; i < 2; i++) {
		assert_ok(node_try(&a, hosts[i], NULL));
		assert_ok(node_try(&b, hosts[i], NULL));
		assert_null(tn_tcp_dev_blob_decode(&a.addr, &dev));
		assert_int_equal(dev.count, 1);
		assert_int_equal(dev.addrs[0].family, 6);
		lane_works(&a, &b);
		node_close(&a);
		node_close(&b);
	}
}

/* A wildcard is told as real addresses, loopback last. */
static void wildcards_are_resolved(void **state)
{
	static const char *const hosts[] = {"0.0.0.0", "::"};
	static node a, b;
	tn_tcp_dev_blob dev;
	bool loopback = false;

	(void)state;
	for (int h = 0; h < (have_ipv6() ? 2 : 1); h++) {
		assert_ok(node_try(&a, hosts[h], NULL));
		assert_ok(node_try(&b, hosts[h], NULL));
		assert_null(tn_tcp_dev_blob_decode(&a.addr, &dev));
		loopback = false;
		for (uint32_t i = 0; i < dev.count; i++) {
			const tn_tcp_addr *addr = &dev.addrs[i];
			bool local = addr->family == 4 ? addr->ip[0] == 127 : addr->ip[0] == 0;

			assert_true(addr->port != 0);
			assert_false(addr->family == 4 && addr->ip[0] == 0);
			assert_false(addr->ip[0] == 0xfe && addr->family == 6);
			assert_true(local || !loopback);
			loopback |= local;
		}
		lane_works(&a, &b);
		node_close(&a);
		node_close(&b);
	}
}

static void a_port_in_use_is_said(void **state)
{
	static node a, b;
	tn_tcp_dev_blob dev;
	char port[32];
	const char *const pairs[] = {port, NULL};

	(void)state;
	node_open(&a, NULL);
	assert_null(tn_tcp_dev_blob_decode(&a.addr, &dev));
	snprintf(port, sizeof(port), "tcp.port=%u", dev.addrs[0].port);
	assert_status(node_try(&b, NULL, pairs), TERN_E_IN_USE);
	assert_non_null(strstr(tern_detail(), "TERN_TCP_PORT"));
	/* connections of the dead do not hold the port */
	node_open(&b, NULL);
	lane_works(&b, &a);
	node_close(&a);
	node_open(&a, pairs);
	lane_works(&b, &a);
	node_close(&a);
	node_close(&b);
}

static void hosts_that_are_none(void **state)
{
	static node n;

	(void)state;
	assert_status(node_try(&n, "300.1.2.3.4", NULL), TERN_E_NOT_FOUND);
	assert_non_null(strstr(tern_detail(), "300.1.2.3.4"));
	/* TEST-NET: nobody's address, so not this host's */
	assert_true(node_try(&n, "192.0.2.77", NULL) < 0);
}

/* ---- sizes ---- */

static void options_are_obeyed(void **state)
{
	static node a, b;
	tn_dev_caps caps;
	uint8_t message[2000] = {0};
	tn_iov iov = {message, 1088};
	tn_lane *la, *lb;
	bool done;

	(void)state;
	node_open(&a, (const char *const[]){"tcp.lane_wrs=100", "tcp.recv_slots=3", "tcp.lane_recv_slots=99",
					    NULL});
	node_open(&b, (const char *const[]){"tcp.send_bytes=1025", NULL});
	a.dev->ops->caps(a.dev, &caps);
	assert_int_equal(caps.lane_wrs_max, 128);
	assert_false(caps.incast); /* the kernel's congestion control */
	assert_int_equal(caps.lane_recv_slots, 3);
	b.dev->ops->caps(b.dev, &caps);
	assert_int_equal(caps.send_bytes_max, 1088); /* rounded up to cache lines */
	lane_pair(&a, &b, &la, &lb);
	assert_ok(tn_lane_send(la, &iov, 1, 0, &done));
	UNTIL2(node_find(&b, TN_EV_RECV, lb), &a, &b);
	assert_int_equal(node_find(&b, TN_EV_RECV, lb)->bytes, 1088);
	/* a's own slots are larger: what counts is what the receiver takes */
	iov.bytes = 1089;
	assert_status(tn_lane_send(la, &iov, 1, 0, &done), TERN_E_TOO_LARGE);
	assert_non_null(strstr(tern_detail(), "1088"));
	lane_end(&a, la);
	lane_end(&b, lb);
	node_close(&a);
	node_close(&b);
	assert_status(node_try(&a, NULL,
			       (const char *const[]){"tcp.recv_slots=1000000", "tcp.send_bytes=16MiB", NULL}),
		      TERN_E_OPTION);
}

/* ---- failing system calls ---- */

static unsigned descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Open, connect, send, close with the n-th fault point failing, n = 1, 2, ... until none does. */
static void any_call_may_fail(void **state)
{
	static const char *const points[] = {"tcp.listener.socket", "tcp.watch",        "tcp.lane.alloc",
					     "tcp.dial.socket",     "tcp.dial.connect", "tcp.lane.send",
					     "tcp.lane.recv"};
	static node a, b;
	tn_iov iov = {"ping", 4};
	unsigned before = descriptors();

	(void)state;
	for (size_t p = 0; p < sizeof(points) / sizeof(points[0]); p++) {
		for (uint64_t nth = 1;; nth++) {
			tn_lane_params params = {.active = true, .connect_timeout_ns = 300 * TN_NS_PER_MS};
			tn_lane *la = NULL, *lb = NULL;
			tn_blob aa, ab;
			bool done, both = false, fired;

			tn_fault_clear();
			assert_ok(tn_fault_set(points[p], nth, 1));
			if (node_try(&a, NULL, NULL) != TERN_OK)
				goto next;
			if (node_try(&b, NULL, NULL) == TERN_OK) {
				if (a.dev->ops->lane_create(a.dev, &params, &la, &aa) == TERN_OK) {
					params.active = false;
					both = b.dev->ops->lane_create(b.dev, &params, &lb, &ab) == TERN_OK;
				}
				if (both && a.dev->ops->lane_connect(la, &b.addr, &ab) == TERN_OK &&
				    b.dev->ops->lane_connect(lb, &a.addr, &aa) == TERN_OK) {
					UNTIL2((node_find(&a, TN_EV_LANE_UP, la) ||
						node_find(&a, TN_EV_LANE_DOWN, la)) &&
						       (node_find(&b, TN_EV_LANE_UP, lb) ||
							node_find(&b, TN_EV_LANE_DOWN, lb)),
					       &a, &b);
					if (tn_lane_send(la, &iov, 1, 9, &done) == TERN_OK)
						UNTIL2(node_find(&b, TN_EV_RECV, lb) ||
							       node_find(&b, TN_EV_LANE_DOWN, lb),
						       &a, &b);
				}
				if (la)
					lane_end(&a, la);
				if (lb)
					lane_end(&b, lb);
				node_close(&b);
			}
			node_close(&a);
next:
			fired = tn_fault_fired(points[p]) > 0;
			tn_fault_clear();
			if (!fired)
				break;
			assert_true(nth < 100);
		}
	}
	assert_int_equal(descriptors(), before);
}

/* Out of descriptors: connections wait in the backlog and get in when there are some again. */
static void accept_without_descriptors(void **state)
{
	static node a, b;

	(void)state;
	node_open(&a, NULL);
	node_open(&b, NULL);
	assert_ok(tn_fault_set("tcp.accept", 1, 3));
	lane_works(&a, &b);
	assert_int_equal(tn_fault_fired("tcp.accept"), 3);
	tn_fault_clear();
	node_close(&a);
	node_close(&b);
}

/* ---- fork ---- */

/* The child's handles are inert; whatever it does, the parent's lane lives. */
static int child_of_fork(node *a, tn_lane *lane)
{
	tn_event events[4];
	tn_iov iov = {"child", 5};
	tn_wr wr = {.key = {.access = TERN_ACCESS_WRITE}};
	bool done;

	if (tn_dev_poll(a->dev, events, 4) != 0)
		return 1;
	if (a->dev->ops->arm(a->dev) != TERN_E_FORKED)
		return 2;
	if (tn_lane_send(lane, &iov, 1, 0, &done) != TERN_E_FORKED ||
	    tn_lane_write(lane, &wr) != TERN_E_FORKED)
		return 3;
	a->dev->ops->lane_break(lane);
	a->dev->ops->lane_close(lane);
	a->dev->ops->close(a->dev);
	return 0;
}

static void forked_children_are_inert(void **state)
{
	static node a, b;
	tn_iov iov = {"still", 5};
	tn_lane *la, *lb;
	int status = -1;
	bool done;
	pid_t pid;

	(void)state;
	node_open(&a, NULL);
	node_open(&b, NULL);
	lane_pair(&a, &b, &la, &lb);
	pid = fork();
	if (pid == 0)
		_exit(child_of_fork(&a, la));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(tn_lane_send(la, &iov, 1, 0, &done));
	UNTIL2(node_find(&b, TN_EV_RECV, lb), &a, &b);
	assert_ok(tn_lane_send(lb, &iov, 1, 0, &done));
	UNTIL2(node_find(&a, TN_EV_RECV, la), &a, &b);
	assert_null(node_find(&a, TN_EV_LANE_DOWN, la));
	lane_end(&a, la);
	lane_end(&b, lb);
	node_close(&a);
	node_close(&b);
}

/* ---- polling ---- */

static void wait_for(node *n)
{
	struct pollfd fd = {.fd = n->dev->ops->fd(n->dev), .events = POLLIN};
	uint32_t before = n->count;

	while (n->count == before) {
		int got = tn_dev_poll(n->dev, n->events + n->count, 8);

		n->count += (uint32_t)got;
		if (got == 0 && n->dev->ops->arm(n->dev) == TERN_OK)
			assert_true(poll(&fd, 1, 10000) == 1);
	}
}

/*
 * Sleepers on both sides of the bound between the direct and the epoll way: whatever lane carries the
 * message, and while strangers knock, it wakes.
 */
static void no_wake_is_lost(void **state)
{
	static node a, b;
	tn_lane *la[5], *lb[5];
	tn_iov iov = {"x", 1};
	bool done;
	int fd;

	(void)state;
	for (unsigned lanes = 1; lanes <= 5; lanes += lanes == 3 ? 2 : 1) {
		node_open(&a, NULL);
		node_open(&b, NULL);
		for (unsigned i = 0; i < lanes; i++)
			lane_pair(&a, &b, &la[i], &lb[i]);
		for (unsigned round = 0; round < 300; round++) {
			unsigned i = round % lanes;

			a.count = b.count = 0;
			fd = round % 7 == 0 ? stranger(&b, 0) : -1;
			assert_ok(tn_lane_send(la[i], &iov, 1, 0, &done));
			while (!node_find(&b, TN_EV_RECV, lb[i]))
				wait_for(&b);
			b.dev->ops->recv_done(b.dev, node_find(&b, TN_EV_RECV, lb[i]));
			assert_ok(tn_lane_send(lb[i], &iov, 1, 0, &done));
			while (!node_find(&a, TN_EV_RECV, la[i]))
				wait_for(&a);
			a.dev->ops->recv_done(a.dev, node_find(&a, TN_EV_RECV, la[i]));
			if (fd >= 0)
				close(fd);
		}
		for (unsigned i = 0; i < lanes; i++) {
			lane_end(&a, la[i]);
			lane_end(&b, lb[i]);
		}
		node_close(&a);
		node_close(&b);
	}
}

/* What poll owes and no socket knows of: arm says so, and a sleeper is woken for it. */
static void arm_knows_what_is_owed(void **state)
{
	static node a, b;
	struct pollfd fd;
	tern_key wire;
	tn_key key;
	tn_lane *la, *lb;
	tn_wr wr = {.local = &wire, .bytes = 8, .more = true};

	(void)state;
	node_open(&a, NULL);
	node_open(&b, NULL);
	lane_pair(&a, &b, &la, &lb);
	(void)region(&b, 64, TERN_ACCESS_WRITE, &wire, &key);
	wr.key = key;
	for (int i = 0; i < 4; i++)
		node_poll(&a);
	assert_ok(a.dev->ops->arm(a.dev));
	fd = (struct pollfd){.fd = a.dev->ops->fd(a.dev), .events = POLLIN};
	assert_int_equal(poll(&fd, 1, 0), 0);
	assert_ok(tn_lane_write(la, &wr)); /* while "another thread" sleeps */
	assert_int_equal(poll(&fd, 1, 0), 1);
	assert_status(a.dev->ops->arm(a.dev), TERN_BUSY);
	UNTIL(node_find(&a, TN_EV_DONE, la), &a);
	for (int i = 0; i < 4; i++)
		node_poll(&a);
	assert_ok(a.dev->ops->arm(a.dev));
	assert_int_equal(poll(&fd, 1, 0), 0);
	lane_end(&a, la);
	lane_end(&b, lb);
	node_close(&a);
	node_close(&b);
}

static void probe_gives_a_reason(void **state)
{
	char reason[200] = "";

	(void)state;
	assert_ok(tn_provider_find("tcp")->probe(reason, sizeof(reason)));
	assert_non_null(strstr(reason, "IPv4"));
	assert_ok(tn_provider_find("tcp")->probe(NULL, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ipv6_loopback),
		cmocka_unit_test(wildcards_are_resolved),
		cmocka_unit_test(a_port_in_use_is_said),
		cmocka_unit_test(hosts_that_are_none),
		cmocka_unit_test(options_are_obeyed),
		cmocka_unit_test(any_call_may_fail),
		cmocka_unit_test(accept_without_descriptors),
		cmocka_unit_test(forked_children_are_inert),
		cmocka_unit_test(no_wake_is_lost),
		cmocka_unit_test(probe_gives_a_reason),
		cmocka_unit_test(arm_knows_what_is_owed),
	};

	return RUN(tests);
}
