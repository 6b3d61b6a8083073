/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp provider against plain sockets, in one run and interleaved, on two pinned cores of one host:
 *
 *   call block   8 B there and back: raw blocking send/recv        | send, poll-arm-wait, send back
 *   call spin    8 B there and back: raw non-blocking recv, spun   | send, poll, send back
 *   stream       16 MiB blocks one after another, end to end       | writes, REMOTE, two in flight
 *   block        16 MiB, each acknowledged by a byte               | write, REMOTE, one in flight
 *
 * Medians over rounds, and the ratio provider / raw (latency: below 1.3 wanted; bandwidth: above 0.9).
 * Both receive into one hot buffer that nobody reads.
 *
 *   bench-tcp [rounds] [raw|tern|both]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os.h"
#include "transport/transport.h"

#define CALLS       20000
#define CALL_BYTES  8
#define BLOCK_BYTES (16ull << 20)
#define BLOCKS      64
#define ROUNDS_MAX  64

typedef enum job { CALL_BLOCK, CALL_SPIN, STREAM, BLOCK, JOBS } job;

static void die(const char *what)
{
	fprintf(stderr, "tcp_bench: %s: %s (%s)\n", what, strerror(errno), tern_detail());
	exit(1);
}

static void must(ssize_t got, size_t want, const char *what)
{
	if (got != (ssize_t)want)
		die(what);
}

/* ---- raw sockets ---- */

static void recv_all(int fd, void *buf, size_t bytes, bool spin)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = recv(fd, (char *)buf + at, bytes - at, spin ? MSG_DONTWAIT : 0);

		if (n > 0)
			at += (size_t)n;
		else if (n == 0 || errno != EAGAIN)
			die("recv");
	}
}

static void send_all(int fd, const void *buf, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = send(fd, (const char *)buf + at, bytes - at, MSG_NOSIGNAL);

		if (n <= 0)
			die("send");
		at += (size_t)n;
	}
}

static void raw_peer(int fd, job what, char *buf)
{
	char byte = 0;

	if (what <= CALL_SPIN) {
		for (int i = 0; i < CALLS; i++) {
			recv_all(fd, buf, CALL_BYTES, what == CALL_SPIN);
			send_all(fd, buf, CALL_BYTES);
		}
		return;
	}
	for (int i = 0; i < BLOCKS; i++) {
		recv_all(fd, buf, BLOCK_BYTES, false);
		if (what == BLOCK || i == BLOCKS - 1)
			send_all(fd, &byte, 1);
	}
}

static double raw_drive(int fd, job what, char *buf)
{
	uint64_t start = tn_now();

	if (what <= CALL_SPIN) {
		for (int i = 0; i < CALLS; i++) {
			send_all(fd, buf, CALL_BYTES);
			recv_all(fd, buf, CALL_BYTES, what == CALL_SPIN);
		}
		return (double)(tn_now() - start) / CALLS / 1000;
	}
	for (int i = 0; i < BLOCKS; i++) {
		send_all(fd, buf, BLOCK_BYTES);
		if (what == BLOCK || i == BLOCKS - 1)
			recv_all(fd, buf, 1, false);
	}
	return (double)BLOCKS * BLOCK_BYTES / (double)(tn_now() - start);
}

static int raw_connect(bool child, int pipe)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1, conn;

	if (child) {
		if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 1) ||
		    getsockname(fd, (struct sockaddr *)&addr, &bytes))
			die("listen");
		must(write(pipe, &addr, sizeof(addr)), sizeof(addr), "pipe");
		conn = accept(fd, NULL, NULL);
		close(fd);
		fd = conn;
	} else {
		must(read(pipe, &addr, sizeof(addr)), sizeof(addr), "pipe");
		if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
			die("connect");
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static double raw(job what, bool child, int pipe)
{
	static char *buf;
	int fd = raw_connect(child, pipe);
	double result = 0;

	buf = buf ? buf : aligned_alloc(4096, BLOCK_BYTES);
	memset(buf, 1, BLOCK_BYTES);
	if (child)
		raw_peer(fd, what, buf);
	else
		result = raw_drive(fd, what, buf);
	close(fd);
	return result;
}

/* ---- the provider ---- */

typedef struct node {
	tern_mem *mem;
	tn_dev *dev;
	tn_lane *lane;
	void *buf;
	tn_key there;
	bool up, spin;
	uint32_t done, received;
} node;

typedef struct meet {
	tn_blob dev, lane;
	tern_key key;
} meet;

static void handle(node *n, const tn_event *e)
{
	if (e->type == TN_EV_LANE_UP) {
		n->up = true;
	} else if (e->type == TN_EV_DONE && e->status == TERN_OK) {
		n->done++;
	} else if (e->type == TN_EV_RECV) {
		n->received++;
		n->dev->ops->recv_done(n->dev, e);
	} else {
		die("event");
	}
}

/* Progress until something came. */
static void step(node *n)
{
	tn_event events[16];
	struct pollfd fd = {.fd = n->dev->ops->fd(n->dev), .events = POLLIN};
	int count;

	while ((count = tn_dev_poll(n->dev, events, 16)) == 0) {
		if (!n->spin && n->dev->ops->arm(n->dev) == TERN_OK)
			poll(&fd, 1, -1);
	}
	for (int i = 0; i < count; i++)
		handle(n, &events[i]);
}

static void tern_open(node *n, bool child, int pipe)
{
	const tn_provider *provider = tn_provider_find("tcp");
	tn_mem_params mem = {0};
	tn_dev_params params = {0};
	tn_lane_params lane = {.active = !child, .token = {42}};
	meet mine, theirs;

	memset(n, 0, sizeof(*n));
	if (!provider || tn_mem_create(&mem, &n->mem))
		die("mem");
	params.mem = n->mem;
	if (provider->open(&params, &n->dev) ||
	    n->dev->ops->lane_create(n->dev, &lane, &n->lane, &mine.lane) ||
	    tern_mem_alloc(n->mem, BLOCK_BYTES, 4096, TERN_ACCESS_WRITE, TERN_MEM_HOST, &n->buf) ||
	    tern_mem_export(n->mem, n->buf, BLOCK_BYTES, TERN_ACCESS_WRITE, &mine.key))
		die("open");
	memset(n->buf, 1, BLOCK_BYTES);
	n->dev->ops->address(n->dev, &mine.dev);
	must(write(pipe, &mine, sizeof(mine)), sizeof(mine), "pipe");
	must(read(pipe, &theirs, sizeof(theirs)), sizeof(theirs), "pipe");
	tn_key_decode(&theirs.key, &n->there);
	if (n->dev->ops->lane_connect(n->lane, &theirs.dev, &theirs.lane))
		die("lane_connect");
	while (!n->up)
		step(n);
}

static void tern_close(node *n)
{
	tn_event events[16];

	n->dev->ops->lane_close(n->lane);
	while (!n->dev->ops->lane_drained(n->lane))
		tn_dev_poll(n->dev, events, 16);
	n->dev->ops->lane_destroy(n->lane);
	n->dev->ops->close(n->dev);
	tn_mem_destroy(n->mem);
}

static void tern_send(node *n)
{
	uint64_t word = 7;
	tn_iov iov = {.base = &word, .bytes = CALL_BYTES};
	bool done = false;
	uint32_t before = n->done;

	if (tn_lane_send(n->lane, &iov, 1, 0, &done))
		die("send");
	while (!done && n->done == before)
		step(n);
}

static void tern_peer(node *n, job what)
{
	if (what <= CALL_SPIN) {
		for (uint32_t i = 0; i < CALLS; i++) {
			while (n->received == i)
				step(n);
			tern_send(n);
		}
		return;
	}
	while (n->received == 0)
		step(n);
}

static double tern_drive(node *n, job what)
{
	uint64_t start = tn_now();
	uint32_t posted = 0, depth = what == STREAM ? 2 : 1;
	tn_wr wr = {.level = TN_LEVEL_REMOTE, .local = n->buf, .bytes = BLOCK_BYTES, .key = n->there};

	if (what <= CALL_SPIN) {
		for (uint32_t i = 0; i < CALLS; i++) {
			tern_send(n);
			while (n->received == i)
				step(n);
		}
		return (double)(tn_now() - start) / CALLS / 1000;
	}
	while (n->done < BLOCKS) {
		if (posted < BLOCKS && posted - n->done < depth) {
			if (tn_lane_write(n->lane, &wr))
				die("write");
			posted++;
		} else {
			step(n);
		}
	}
	return (double)BLOCKS * BLOCK_BYTES / (double)(tn_now() - start);
}

static double tern(job what, bool child, int pipe)
{
	node n;
	double result = 0;
	char byte = 0;

	tern_open(&n, child, pipe);
	n.spin = what == CALL_SPIN;
	if (child) {
		tern_peer(&n, what);
		must(read(pipe, &byte, 1), 1, "pipe");
	} else {
		result = tern_drive(&n, what);
		n.spin = false;
		if (what >= STREAM)
			tern_send(&n);
		must(write(pipe, &byte, 1), 1, "pipe");
	}
	tern_close(&n);
	return result;
}

/* ---- runs ---- */

static double run(job what, bool provider)
{
	int pair[2], status = 0;
	double result;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("socketpair");
	pid = fork();
	if (pid == 0) {
		close(pair[0]);
		(void)tn_os_thread_bind(1);
		(void)(provider ? tern(what, true, pair[1]) : raw(what, true, pair[1]));
		_exit(0);
	}
	close(pair[1]);
	(void)tn_os_thread_bind(0);
	result = provider ? tern(what, false, pair[0]) : raw(what, false, pair[0]);
	if (waitpid(pid, &status, 0) != pid || status != 0)
		die("peer");
	close(pair[0]);
	return result;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static const char *const names[JOBS] = {"call block us", "call spin us", "stream GB/s", "block GB/s"};
	static double results[2][ROUNDS_MAX];
	int rounds = argc > 1 ? atoi(argv[1]) : 5;
	const char *only = argc > 2 ? argv[2] : "both";

	rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
	printf("%-14s %10s %10s %8s   medians of %d, same run\n", "", "raw", "tern", "ratio", rounds);
	for (job what = 0; what < JOBS; what++) {
		memset(results, 0, sizeof(results));
		for (int i = 0; i < rounds; i++) {
			for (int side = 0; side < 2; side++) {
				if (strcmp(only, side ? "raw" : "tern") != 0)
					results[side][i] = run(what, side);
			}
		}
		for (int side = 0; side < 2; side++)
			qsort(results[side], (size_t)rounds, sizeof(double), by_value);
		printf("%-14s %10.2f %10.2f %8.3f\n", names[what], results[0][rounds / 2],
		       results[1][rounds / 2], results[1][rounds / 2] / results[0][rounds / 2]);
		fflush(stdout);
	}
	return 0;
}
