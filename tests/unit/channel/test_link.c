/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links: connect and its failures, closes in all orders, restarts, ends with everything in flight, no leaks
 * over many cycles. Threads: helpers; asserts in the main thread.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fault.h"
#include "chan_test.h"

/* ---- up ---- */

static void test_facts(void **state)
{
	tern_ctx_params a = {.name = "node a"}, b = {.name = "node b"};
	pair p;

	(void)state;
	side_open_params(&p.serve, &b);
	side_open_params(&p.dial, &a);
	side_connect(&p.dial, &p.serve);
	assert_comes(&p.serve, ups, 1);
	p.serve.link = p.serve.incoming;
	assert_int_equal(tern_link_get_state(p.dial.link), TERN_LINK_UP);
	assert_int_equal(tern_link_status(p.dial.link), TERN_OK);
	assert_string_equal(tern_link_peer_name(p.dial.link), "node b");
	assert_string_equal(tern_link_peer_name(p.serve.link), "node a");
	assert_string_equal(tern_link_peer_address(p.dial.link), tern_ctx_address(p.serve.ctx));
	assert_string_equal(tern_link_transport(p.dial.link), transport);
	assert_string_equal(tern_link_transport(p.serve.link), transport);
	assert_true(strlen(tern_link_transport_reason(p.dial.link)) > 0);
	assert_ptr_equal(tern_link_ctx(p.dial.link), p.dial.ctx);
	assert_int_equal(tern_ctx_counter(p.dial.ctx, "link.up"), 1);
	pair_close(&p);
}

static void test_caller_driven(void **state)
{
	static const uint32_t flags[] = {TERN_CTX_NO_HELPER, TERN_CTX_SINGLE_OWNER};

	(void)state;
	for (int i = 0; i < 2; i++) {
		pair p;
		tern_op op = {.flags = TERN_OP_REMOTE};
		tern_channel_params params;

		side_open(&p.serve, flags[i]);
		side_open(&p.dial, flags[i]);
		p.serve.echo = true;
		assert_ok(tern_link_connect(p.dial.ctx, tern_ctx_address(p.serve.ctx), NULL, &p.dial.link));
		while (tern_link_get_state(p.dial.link) == TERN_LINK_CONNECTING) {
			tern_ctx_progress(p.dial.ctx);
			tern_ctx_progress(p.serve.ctx);
		}
		assert_ok(tern_link_wait(p.dial.link, 1));
		side_params(&p.dial, &params);
		assert_ok(tern_channel_open(p.dial.link, SERVICE, &params, &p.dial.channel));
		for (int k = 0; k < 20; k++) {
			static uint8_t buf[100000];

			assert_ok(tern_send(p.dial.channel, buf, k % 2 ? 100 : 100000, &op));
			while (atomic_load(&p.dial.messages) <= k || tern_op_test(&op) == TERN_AGAIN) {
				tern_ctx_progress(p.dial.ctx);
				tern_ctx_progress(p.serve.ctx);
			}
			assert_ok(tern_op_test(&op));
		}
		tern_ctx_destroy(p.dial.ctx);
		while (atomic_load(&p.serve.downs) == 0)
			tern_ctx_wait(p.serve.ctx, 10 * TN_NS_PER_MS);
		tern_ctx_destroy(p.serve.ctx);
		free(p.dial.last);
		free(p.serve.last);
	}
}

/* ---- failures to connect ---- */

static int plain_listener(char *address, size_t size, int backlog)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &bytes), 0);
	if (backlog >= 0)
		assert_int_equal(listen(fd, backlog), 0);
	snprintf(address, size, "127.0.0.1:%d", ntohs(in.sin_port));
	return fd;
}

static tern_status try_connect(side *s, const char *address, uint64_t timeout_ns, int retry)
{
	tern_connect_params params = {.timeout_ns = timeout_ns, .retry = retry, .on_down = on_down, .arg = s};
	tern_status status;

	assert_ok(tern_link_connect(s->ctx, address, &params, &s->link));
	status = tern_link_wait(s->link, PATIENCE);
	if (status != TERN_OK) {
		assert_int_equal(tern_link_get_state(s->link), TERN_LINK_DOWN);
		assert_int_equal(tern_link_status(s->link), status);
		assert_non_null(strstr(tern_detail(), address));
		assert_comes(s, downs, 1);
		assert_int_equal(atomic_load(&s->down_status), status);
	}
	return status;
}

/*
 * uccl#632, #988: who waits for room in the window never polls, and stands still. Without a helper nothing but the
 * waiting itself makes progress.
 */
static void test_waiting_makes_room(void **state)
{
	enum { OPS = 400, BYTES = 20000 };
	tern_op *ops = calloc(OPS, sizeof(*ops));
	uint8_t *src = calloc(1, BYTES);
	pair p;

	(void)state;
	side_open(&p.serve, 0);
	side_open(&p.dial, TERN_CTX_NO_HELPER);
	side_connect(&p.dial, &p.serve);
	side_open_channel(&p.dial);
	for (int i = 0; i < OPS; i++)
		assert_ok(submit(p.dial.ctx, tern_send(p.dial.channel, src, BYTES, &ops[i])));
	for (int i = 0; i < OPS; i++)
		assert_ok(tern_op_wait(p.dial.ctx, &ops[i], PATIENCE));
	assert_comes(&p.serve, messages, OPS);
	free(src);
	free(ops);
	pair_close(&p);
}

static void test_refused(void **state)
{
	char address[64];
	int fd = plain_listener(address, sizeof(address), -1); /* bound, not listening */
	tern_channel *channel;
	side s;

	(void)state;
	side_open(&s, 0);
	assert_status(try_connect(&s, address, PATIENCE, 0), TERN_E_REFUSED);
	assert_int_not_equal(tern_channel_open(s.link, SERVICE, NULL, &channel), TERN_OK);
	tern_link_release(s.link);
	atomic_store(&s.downs, 0);
	assert_status(try_connect(&s, address, 50 * TN_NS_PER_MS, 1), TERN_E_REFUSED);
	tern_link_release(s.link);
	side_close(&s);
	close(fd);
}

/* perftest PR#381, TF#14489: the peer accepts and says nothing: the deadline covers hello too. */
static void test_silent_peer(void **state)
{
	char address[64];
	int fd = plain_listener(address, sizeof(address), 5);
	side s;

	(void)state;
	side_open(&s, 0);
	assert_status(try_connect(&s, address, 50 * TN_NS_PER_MS, 0), TERN_E_DEADLINE);
	tern_link_release(s.link);
	side_close(&s);
	close(fd);
}

/* The peer starts later: retry waits for it. */
static void test_retry(void **state)
{
	tern_connect_params params = {.retry = 1, .timeout_ns = PATIENCE};
	char address[64];
	int fd = plain_listener(address, sizeof(address), -1);
	tern_ctx_params late = {.listen = address};
	pair p;

	(void)state;
	side_open(&p.dial, 0);
	assert_ok(tern_link_connect(p.dial.ctx, address, &params, &p.dial.link));
	assert_status(tern_link_wait(p.dial.link, 30 * TN_NS_PER_MS), TERN_E_DEADLINE);
	assert_int_equal(tern_link_get_state(p.dial.link), TERN_LINK_CONNECTING);
	close(fd);
	side_open_params(&p.serve, &late);
	assert_ok(tern_link_wait(p.dial.link, PATIENCE));
	pair_close(&p);
}

static void test_bad_addresses(void **state)
{
	tern_link *link;
	side s;

	(void)state;
	side_open(&s, 0);
	assert_status(tern_link_connect(s.ctx, "nonsense", NULL, &link), TERN_E_INVALID);
	assert_status(tern_link_connect(s.ctx, "", NULL, &link), TERN_E_INVALID);
	assert_status(tern_link_connect(s.ctx, "127.0.0.1:1:2", NULL, &link), TERN_E_INVALID);
	side_close(&s);
}

static void mismatch(const tern_ctx_params *a, const tern_ctx_params *b, tern_status expected)
{
	pair p;

	side_open_params(&p.serve, b);
	side_open_params(&p.dial, a);
	assert_status(try_connect(&p.dial, tern_ctx_address(p.serve.ctx), PATIENCE, 0), expected);
	assert_int_equal(atomic_load(&p.serve.ups), 0);
	pair_close(&p);
}

static void test_secret_and_job(void **state)
{
	tern_ctx_params with = {.secret = "sesame"}, without = {0}, other = {.secret = "open"};
	tern_ctx_params job1 = {.job = "job 1"}, job2 = {.job = "job 2"};
	pair p;

	(void)state;
	mismatch(&with, &other, TERN_E_AUTH);
	mismatch(&with, &without, TERN_E_AUTH);
	mismatch(&without, &with, TERN_E_AUTH);
	mismatch(&job1, &job2, TERN_E_COOKIE);
	side_open_params(&p.serve, &with);
	side_open_params(&p.dial, &with);
	side_connect(&p.dial, &p.serve);
	pair_close(&p);
}

/* Bytes that are not ours end that connection only. */
static void test_garbage(void **state)
{
	uint8_t junk[4096];
	pair p;
	tern_op op = {.flags = TERN_OP_REMOTE};

	(void)state;
	pair_open(&p);
	for (int i = 0; i < 20; i++) {
		struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		const char *colon = strrchr(tern_ctx_address(p.serve.ctx), ':');

		in.sin_port = htons((uint16_t)atoi(colon + 1));
		fill(junk, sizeof(junk), (uint64_t)i);
		assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
		if (i % 4)
			(void)!send(fd, junk, (size_t)(i * 200), MSG_NOSIGNAL);
		if (i % 2)
			(void)!recv(fd, junk, sizeof(junk), MSG_DONTWAIT);
		close(fd);
	}
	assert_ok(complete(p.dial.ctx, &op, tern_send(p.dial.channel, "alive", 5, &op)));
	pair_close(&p);
}

/* ---- ends ---- */

static void test_close_orders(void **state)
{
	(void)state;
	for (int order = 0; order < 8; order++) {
		pair p;

		pair_open(&p);
		if (order & 1)
			tern_link_close(p.dial.link);
		if (order & 2)
			tern_link_close(p.serve.link);
		if (order & 4)
			tern_channel_close(p.serve.channel);
		if (order & 3) {
			side *passive = order & 1 ? &p.serve : &p.dial;

			if ((order & 3) != 3) {
				assert_comes(passive, downs, 1);
				assert_int_equal(atomic_load(&passive->down_status), TERN_E_PEER_CLOSED);
			}
			while (tern_link_get_state(p.dial.link) != TERN_LINK_DOWN ||
			       tern_link_get_state(p.serve.link) != TERN_LINK_DOWN)
				tn_sleep_ns(TN_NS_PER_MS);
			tern_link_close(p.dial.link); /* idempotent */
		}
		if (order & 1)
			assert_int_equal(atomic_load(&p.dial.downs), 0); /* not for one's own close */
		if (order % 2)
			tern_channel_close(p.dial.channel);
		tern_link_release(p.serve.link);
		if (order % 3)
			tern_link_release(p.dial.link);
		pair_close(&p);
	}
}

/* Both contexts end while messages and puts of all sizes are in flight. */
static void test_destroy_in_flight(void **state)
{
	enum { OPS = 100 };
	uint8_t *src = calloc(1, 1 << 20);

	(void)state;
	for (int round = 0; round < 10; round++) {
		tern_op *ops = calloc(OPS, sizeof(*ops));
		tern_key key;
		void *dst;
		int n = 0;
		pair p;

		pair_open(&p);
		p.serve.echo = true;
		assert_ok(tern_mem_alloc(tern_ctx_mem(p.serve.ctx), 1 << 20, 0, TERN_ACCESS_WRITE,
					 TERN_MEM_HOST, &dst));
		assert_ok(tern_mem_export(tern_ctx_mem(p.serve.ctx), dst, 1 << 20, TERN_ACCESS_WRITE, &key));
		for (; n < OPS; n++) {
			tern_status status =
				n % 2 ? tern_put(p.dial.channel, src, 1 << (n % 20), &key, 0, &ops[n])
				      : tern_send(p.dial.channel, src, 1 << (n % 19), &ops[n]);
			if (status != TERN_OK)
				break;
		}
		if (round % 2)
			side_close(&p.serve);
		side_close(&p.dial);
		for (int i = 0; i < n; i++) /* every accepted one has ended */
			assert_int_not_equal(tern_op_test(&ops[i]), TERN_AGAIN);
		if (!(round % 2))
			side_close(&p.serve);
		free(ops);
	}
	free(src);
}

/* Mooncake PR#3188, PR#3755: a node that comes again under its name retires its former self. */
static void test_restart(void **state)
{
	tern_ctx_params server = {.name = "server"}, client = {.name = "client"};
	side serve, old, new;

	(void)state;
	side_open_params(&serve, &server);
	side_open_params(&old, &client);
	side_connect(&old, &serve);
	assert_comes(&serve, ups, 1);
	side_open_params(&new, &client);
	side_connect(&new, &serve);
	assert_comes(&serve, ups, 2);
	assert_comes(&serve, downs, 1);
	assert_int_equal(atomic_load(&serve.down_status), TERN_E_PEER_RESTARTED);
	assert_non_null(strstr(serve.down_text, "peer 'client' at "));
	assert_comes(&old, downs, 1);
	assert_int_equal(tern_link_get_state(new.link), TERN_LINK_UP);
	side_close(&old);
	side_close(&new);
	side_close(&serve);
}

/*
 * libfabric#7396 (10,000 rounds of the verdict itself: tests/unit/link/hello_test.c). Both dial each other:
 * never neither link stays. Two are fine when the first was up before the second was
 * dialed, which then counts as on purpose.
 */
static void test_simultaneous(void **state)
{
	int singles = 0;

	(void)state;
	for (int round = 0; round < 60; round++) {
		tern_ctx_params a = {.name = "node a", .secret = round % 2 ? "s" : NULL};
		tern_ctx_params b = {.name = "node b", .secret = a.secret};
		tern_link *back;
		int alive;
		pair p;

		side_open_params(&p.serve, &b);
		side_open_params(&p.dial, &a);
		assert_ok(tern_link_connect(p.dial.ctx, tern_ctx_address(p.serve.ctx), NULL, &p.dial.link));
		assert_ok(tern_link_connect(p.serve.ctx, tern_ctx_address(p.dial.ctx), NULL, &back));
		tern_link_wait(p.dial.link, PATIENCE);
		tern_link_wait(back, PATIENCE);
		tn_sleep_ns(2 * TN_NS_PER_MS); /* what is going to be retired goes */
		alive = (tern_link_get_state(p.dial.link) == TERN_LINK_UP) +
			(tern_link_get_state(back) == TERN_LINK_UP);
		assert_true(alive >= 1);
		if (alive == 1) {
			tern_link *gone = tern_link_get_state(back) == TERN_LINK_UP ? p.dial.link : back;

			/* EXISTS, or how the other side's end of it looked from here */
			assert_int_not_equal(tern_link_status(gone), TERN_OK);
			singles++;
		}
		pair_close(&p);
	}
	print_message("one link stayed in %d of 60 rounds\n", singles);
	assert_true(singles > 0);
}

static int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void test_no_leaks(void **state)
{
	int cycles = strcmp(transport, "loop") == 0 ? 1000 : 300, before;
	pair p;

	(void)state;
	side_open(&p.serve, 0);
	side_open(&p.dial, 0);
	tern_ctx_on_link(p.serve.ctx, NULL, NULL, NULL); /* incoming links are held by the context */
	side_connect(&p.dial, &p.serve);
	tern_link_release(p.dial.link);
	tn_sleep_ns(50 * TN_NS_PER_MS);
	before = open_descriptors();
	for (int i = 0; i < cycles; i++) {
		tern_op op = {.flags = TERN_OP_REMOTE};

		side_connect(&p.dial, &p.serve);
		if (i % 3 == 0) {
			side_open_channel(&p.dial);
			assert_ok(complete(p.dial.ctx, &op, tern_send(p.dial.channel, "x", 1, &op)));
			tern_channel_close(p.dial.channel);
		}
		tern_link_release(p.dial.link);
	}
	for (int i = 0; i < 1000 && open_descriptors() > before + 2; i++)
		tn_sleep_ns(5 * TN_NS_PER_MS);
	assert_true(open_descriptors() <= before + 2);
	assert_int_equal(atomic_load(&p.dial.downs), 0);
	pair_close(&p);
}

/* Every fault point of this layer, hit by hit: an error or success, never a hang, and the next try works. */
static void test_faults(void **state)
{
	static const char *const points[] = {"channel.conn.socket", "channel.conn.dial",
					     "channel.lane.create"};

	(void)state;
	for (size_t i = 0; i < TN_COUNT_OF(points); i++) {
		for (uint64_t nth = 1; nth < 4; nth++) {
			tern_status status;
			pair p;

			side_open(&p.serve, 0);
			side_open(&p.dial, 0);
			assert_ok(tn_fault_set(points[i], nth, 1));
			assert_ok(tern_link_connect(p.dial.ctx, tern_ctx_address(p.serve.ctx), NULL,
						    &p.dial.link));
			status = tern_link_wait(p.dial.link, PATIENCE);
			tn_fault_clear();
			if (status != TERN_OK)
				assert_true(strlen(tern_detail()) > 0);
			tern_link_release(p.dial.link);
			side_connect(&p.dial, &p.serve);
			pair_close(&p);
		}
	}
}

/* A lane breaks at a random event with everything in flight: each operation ends, both sides learn why. */
static void test_lane_breaks(void **state)
{
	enum { OPS = 100 };
	uint8_t *src = calloc(1, 1 << 20);

	(void)state;
	for (uint64_t nth = 1; nth < 40; nth += 3) {
		tern_op *ops = calloc(OPS, sizeof(*ops));
		tern_key key;
		void *dst;
		int n = 0;
		pair p;

		pair_open(&p);
		p.serve.echo = true;
		assert_ok(tern_mem_alloc(tern_ctx_mem(p.serve.ctx), 1 << 20, 0, TERN_ACCESS_WRITE,
					 TERN_MEM_HOST, &dst));
		assert_ok(tern_mem_export(tern_ctx_mem(p.serve.ctx), dst, 1 << 20, TERN_ACCESS_WRITE, &key));
		assert_ok(tn_fault_set("channel.lane.break", nth, 1));
		for (; n < OPS; n++) {
			uint64_t bytes = 1ull << (n % 20);
			tern_status status = n % 2 ? tern_put(p.dial.channel, src, bytes, &key, 0, &ops[n])
						   : tern_send(p.dial.channel, src, bytes, &ops[n]);

			if (status != TERN_OK)
				break;
		}
		for (int i = 0; i < n; i++)
			assert_int_not_equal(tern_op_wait(p.dial.ctx, &ops[i], PATIENCE), TERN_E_DEADLINE);
		tn_fault_clear();
		if (tern_link_get_state(p.dial.link) != TERN_LINK_UP) {
			assert_comes(&p.dial, downs, 1);
			assert_comes(&p.serve, downs, 1);
			assert_int_equal(
				tern_status_radius(atomic_load(&p.dial.down_status)) >= TERN_RADIUS_PATH, 1);
		}
		pair_close(&p);
		free(ops);
	}
	free(src);
}

typedef struct slow_up {
	atomic_int began, over;
} slow_up;

static void on_up_slowly(tern_link *link, void *arg)
{
	slow_up *s = arg;

	atomic_store(&s->began, 1);
	tn_sleep_ns(30 * TN_NS_PER_MS);
	atomic_store(&s->over, 1);
	tern_link_release(link);
}

/* When tern_ctx_on_link has returned the old on_up is not running: its arg may be freed. */
static void test_on_link_waits(void **state)
{
	slow_up *s = calloc(1, sizeof(*s));
	pair p;

	(void)state;
	side_open(&p.serve, 0);
	side_open(&p.dial, 0);
	tern_ctx_on_link(p.serve.ctx, on_up_slowly, NULL, s);
	side_connect(&p.dial, &p.serve);
	while (!atomic_load(&s->began))
		tn_sleep_ns(100000);
	tern_ctx_on_link(p.serve.ctx, NULL, NULL, NULL);
	assert_int_equal(atomic_load(&s->over), 1);
	free(s);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_facts),
		cmocka_unit_test(test_caller_driven),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_silent_peer),
		cmocka_unit_test(test_retry),
		cmocka_unit_test(test_bad_addresses),
		cmocka_unit_test(test_secret_and_job),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_close_orders),
		cmocka_unit_test(test_destroy_in_flight),
		cmocka_unit_test(test_restart),
		cmocka_unit_test(test_simultaneous),
		cmocka_unit_test(test_no_leaks),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_lane_breaks),
		cmocka_unit_test(test_on_link_waits),
		cmocka_unit_test(test_waiting_makes_room),
	};

	test_transport(argc, argv);
	return RUN(tests);
}
