/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel TCP line: what a good engineer writes without a library. TCP_NODELAY, one connection, requests and answers
 * in one system call each where the kernel lets it: the server blocks in recv (or polls it, --spin), gathers into one
 * buffer and sends with one writev; the client sends with one writev and receives straight into the rows.
 *
 *   request   u64 count | keys | push: gradients
 *   answer    u64 count | fetch: rows
 *
 * Threads: one on each side.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <signal.h>
#include <unistd.h>

#include "bench.h"

typedef struct kernel {
	int fd;
} kernel;

static void set_up(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* All of it. With --spin the call never sleeps. */
static void send_all(int fd, struct iovec *iov, int n)
{
	while (n) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
		ssize_t got = sendmsg(fd, &msg, MSG_NOSIGNAL | (opt.spin ? MSG_DONTWAIT : 0));

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (got <= 0)
			exit(0); /* the other side ended */
		while (n && (size_t)got >= iov->iov_len) {
			got -= (ssize_t)iov->iov_len;
			iov++;
			n--;
		}
		if (n) {
			iov->iov_base = (char *)iov->iov_base + got;
			iov->iov_len -= (size_t)got;
		}
	}
}

static void receive_all(int fd, struct iovec *iov, int n)
{
	while (n) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
		ssize_t got = recvmsg(fd, &msg, opt.spin ? MSG_DONTWAIT : MSG_WAITALL);

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (got <= 0)
			exit(0);
		while (n && (size_t)got >= iov->iov_len) {
			got -= (ssize_t)iov->iov_len;
			iov++;
			n--;
		}
		if (n) {
			iov->iov_base = (char *)iov->iov_base + got;
			iov->iov_len -= (size_t)got;
		}
	}
}

static void serve(int fd)
{
	uint64_t row = opt.dim * sizeof(float), count;
	uint64_t *keys = malloc(KEYS_MAX * sizeof(*keys));
	float *rows = aligned_alloc(4096, KEYS_MAX * row);
	struct tn_table *table = bench_table(false);

	memset(rows, 0, KEYS_MAX * row);
	memset(keys, 0, KEYS_MAX * sizeof(*keys));
	for (;;) {
		struct iovec head[1] = {{&count, sizeof(count)}};
		struct iovec out[2] = {{&count, sizeof(count)}, {rows, 0}};
		request r = {.keys = keys, .rows = rows};

		receive_all(fd, head, 1);
		{
			struct iovec in[2] = {{keys, count * sizeof(*keys)}, {rows, count * row}};

			receive_all(fd, in, opt.push ? 2 : 1);
		}
		r.count = (uint32_t)count;
		bench_apply(table, &r);
		out[1].iov_len = count * row;
		send_all(fd, out, opt.push ? 1 : 2);
	}
}

static float *rows(line *l, uint64_t bytes)
{
	float *p = aligned_alloc(4096, (bytes + 4095) & ~4095ull);

	(void)l;
	memset(p, 0, bytes);
	return p;
}

static void run(line *l, const request *r)
{
	kernel *k = l->state;
	uint64_t count = r->count, answered, bytes = count * opt.dim * sizeof(float);
	struct iovec out[3] = {{&count, sizeof(count)},
			       {(void *)(uintptr_t)r->keys, count * sizeof(uint64_t)},
			       {r->rows, bytes}};
	struct iovec in[2] = {{&answered, sizeof(answered)}, {r->rows, bytes}};

	send_all(k->fd, out, opt.push ? 3 : 2);
	receive_all(k->fd, in, opt.push ? 1 : 2);
}

void line_kernel(line *l)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	kernel *k = calloc(1, sizeof(*k));

	*l = (line){.name = "kernel tcp", .rows = rows, .run = run, .state = k};
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &n))
		bench_die("kernel tcp", strerror(errno));
	l->server = fork();
	if (l->server == 0) {
		int fd;

		prctl(PR_SET_PDEATHSIG, SIGTERM);
		bench_pin(1);
		fd = accept(listener, NULL, NULL);
		set_up(fd);
		serve(fd);
	}
	k->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(k->fd, (struct sockaddr *)&at, sizeof(at)))
		bench_die("kernel tcp", strerror(errno));
	set_up(k->fd);
	close(listener);
	{ /* until its table is filled */
		uint64_t key = bench_key(0);
		float *row = rows(l, opt.dim * sizeof(float));
		request r = {.keys = &key, .count = 1, .rows = row};

		run(l, &r);
		free(row);
	}
	kill(l->server, SIGSTOP);
}
