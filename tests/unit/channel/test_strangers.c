/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers at the listener: many that say nothing, a byte at a time, or garbage, while honest nodes connect.
 * 127.0.0.2 is another host's address here. Threads: helpers; asserts in the main thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "chan_test.h"
#include "link/wire.h"

#define HOME   "127.0.0.1"
#define ABROAD "127.0.0.2"

static int stranger(const side *to, const char *from)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in own = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	at.sin_port = htons((uint16_t)atoi(strrchr(tern_ctx_address(to->ctx), ':') + 1));
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static void strangers(const side *to, const char *from, int *fds, int n)
{
	for (int i = 0; i < n; i++)
		fds[i] = stranger(to, from);
}

static void leave(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

/* The listener still has the connection. */
static bool is_open(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

static bool counted(side *s, const char *name, uint64_t value)
{
	for (uint64_t end = tn_now() + PATIENCE; tern_ctx_counter(s->ctx, name) < value;) {
		if (tn_now() >= end)
			return false;
		tn_sleep_ns(TN_NS_PER_MS);
	}
	return true;
}

static void serve_with(pair *p, const char *const *options)
{
	tern_ctx_params serve = {.secret = "sesame", .options = options}, dial = {.secret = "sesame"};

	side_open_params(&p->serve, &serve);
	side_open_params(&p->dial, &dial);
}

static void talk(side *from)
{
	tern_op op = {.flags = TERN_OP_REMOTE};

	side_open_channel(from);
	assert_ok(complete(from->ctx, &op, tern_send(from->channel, "alive", 5, &op)));
	tern_link_release(from->link);
}

/* Twenty times as many as the backlog say nothing and never go. Honest nodes come in behind them. */
static void test_silent_crowd(void **state)
{
	static const char *const options[] = {"ctx.backlog=8", "ctx.hello_grace=5ms", NULL};
	int fds[160];
	pair p;

	(void)state;
	serve_with(&p, options);
	strangers(&p.serve, HOME, fds, 160);
	for (int i = 0; i < 5; i++) {
		side_connect(&p.dial, &p.serve);
		talk(&p.dial);
	}
	assert_true(tern_ctx_counter(p.serve.ctx, "channel.conns_evicted") >= 152);
	assert_int_equal(tern_ctx_counter(p.serve.ctx, "channel.conns_refused"), 0);
	leave(fds, 160);
	pair_close(&p);
}

/* Bytes one by one, of a HELLO as it should be and of nothing sensible, all the time. */
static void test_slow_bytes(void **state)
{
	static const char *const options[] = {"ctx.backlog=8", "ctx.hello_grace=5ms",
					      "link.step_timeout=300ms", NULL};
	tn_wire_hello hello = {.version = 1, .version_min = 1, .name = "sloth"};
	uint8_t buf[1024];
	int fds[32];
	tn_writer w;
	pair p;

	(void)state;
	serve_with(&p, options);
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_hello(&w, &hello);
	strangers(&p.serve, HOME, fds, 32);
	for (uint64_t i = 0; i < 60; i++) {
		for (int k = 0; k < 32; k++)
			(void)!send(fds[k], k % 4 ? buf + i : (const uint8_t *)"", 1, MSG_NOSIGNAL);
		if (i % 10 == 5) {
			side_connect(&p.dial, &p.serve);
			talk(&p.dial);
		}
	}
	leave(fds, 32);
	pair_close(&p);
}

/* Garbage and hellos that end in the middle, connection after connection; each ends that one alone. */
static void test_garbage_flood(void **state)
{
	static const char *const options[] = {"ctx.backlog=4", "ctx.hello_grace=5ms", NULL};
	uint8_t junk[4096];
	pair p;

	(void)state;
	serve_with(&p, options);
	for (int i = 0; i < 200; i++) {
		int fd = stranger(&p.serve, i % 3 ? HOME : ABROAD);

		fill(junk, sizeof(junk), (uint64_t)i);
		if (i % 5 == 0) /* a head that promises a HELLO */
			memcpy(junk, "\xff\x01\0\0\x01\0\0\0", 8);
		(void)!send(fd, junk, (size_t)(1 + i * 17 % 4096), MSG_NOSIGNAL);
		if (i % 40 == 20) {
			side_connect(&p.dial, &p.serve);
			talk(&p.dial);
		}
		close(fd);
	}
	pair_close(&p);
}

/* A slow but lone peer is not the one who makes room for a crowd of another address. */
static void test_crowd_pays_itself(void **state)
{
	static const char *const options[] = {"ctx.backlog=8", "ctx.hello_grace=5ms", NULL};
	int slow, fds[40];
	pair p;

	(void)state;
	serve_with(&p, options);
	slow = stranger(&p.serve, HOME); /* older than all */
	assert_true(is_open(slow));
	strangers(&p.serve, ABROAD, fds, 40);
	assert_true(counted(&p.serve, "channel.conns_evicted", 33));
	assert_true(is_open(slow));
	assert_false(is_open(fds[0]));
	side_connect(&p.dial, &p.serve);
	assert_true(is_open(slow));
	leave(fds, 40);
	close(slow);
	pair_close(&p);
}

/* A limit per address closes what is more, at once, and others come in. */
static void test_per_address(void **state)
{
	static const char *const options[] = {"ctx.backlog_per_address=2", NULL};
	int fds[10], open = 0;
	pair p;

	(void)state;
	serve_with(&p, options);
	strangers(&p.serve, ABROAD, fds, 10);
	assert_true(counted(&p.serve, "channel.conns_refused", 8));
	for (int i = 0; i < 10; i++)
		open += is_open(fds[i]);
	assert_int_equal(open, 2);
	side_connect(&p.dial, &p.serve);
	talk(&p.dial);
	assert_int_equal(tern_ctx_counter(p.serve.ctx, "channel.conns_refused"), 8);
	assert_int_equal(tern_ctx_counter(p.serve.ctx, "channel.conns_evicted"), 0);
	leave(fds, 10);
	pair_close(&p);
}

/* A burst of honest peers, many times the backlog: all come in, nobody had to make room. */
static void test_honest_burst(void **state)
{
	enum { PEERS = 8 };
	static const char *const options[] = {"ctx.backlog=1", "ctx.hello_grace=20s", NULL};
	tern_ctx_params params = {.secret = "sesame", .options = options};
	tern_link *links[PEERS];
	pair p;

	(void)state;
	side_open_params(&p.serve, &params);
	side_open_params(&p.dial, &params);
	for (int i = 0; i < PEERS; i++)
		assert_ok(tern_link_connect(p.dial.ctx, tern_ctx_address(p.serve.ctx), NULL, &links[i]));
	for (int i = 0; i < PEERS; i++)
		assert_ok(tern_link_wait(links[i], PATIENCE));
	assert_comes(&p.serve, ups, PEERS);
	assert_int_equal(tern_ctx_counter(p.serve.ctx, "channel.conns_evicted"), 0);
	assert_int_equal(tern_ctx_counter(p.serve.ctx, "channel.conns_refused"), 0);
	pair_close(&p);
}

static uint64_t resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long long pages = 0, all = 0;

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%llu %llu", &all, &pages), 2);
	fclose(file);
	return pages * 4096;
}

/* What a stranger costs is bounded: 256 of them, each in the middle of its HELLO. */
static void test_memory_each(void **state)
{
	enum { N = 256, EACH_MAX = 96 << 10 };
	static const char *const options[] = {"ctx.backlog=256", NULL};
	uint64_t before, after;
	int fds[N];
	pair p;

	(void)state;
	serve_with(&p, options);
	fds[0] = stranger(&p.serve, HOME);
	tn_sleep_ns(20 * TN_NS_PER_MS);
	before = resident_bytes();
	strangers(&p.serve, HOME, fds + 1, N - 1);
	for (int i = 0; i < N; i++)
		assert_int_equal(send(fds[i], "\xff\x01\0\0\x01\0\0\0TERN", 12, MSG_NOSIGNAL), 12);
	for (int i = 0; i < 100; i++)
		tn_sleep_ns(2 * TN_NS_PER_MS);
	after = resident_bytes();
	print_message("%llu bytes for each stranger\n", (unsigned long long)(after - before) / (N - 1));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	assert_true(after - before < (uint64_t)N * EACH_MAX);
#endif
	assert_true(is_open(fds[N - 1]));
	leave(fds, N);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_silent_crowd),  cmocka_unit_test(test_slow_bytes),
		cmocka_unit_test(test_garbage_flood), cmocka_unit_test(test_crowd_pays_itself),
		cmocka_unit_test(test_per_address),   cmocka_unit_test(test_honest_burst),
		cmocka_unit_test(test_memory_each),
	};

	test_transport(argc, argv);
	return RUN(tests);
}
