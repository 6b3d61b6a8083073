/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain sockets, TCP (TCP_NODELAY) and Unix: what a good engineer writes without a library. Blocking in send and
 * receive, or polling them (--spin). Data is received where it belongs.
 *
 * Threads: one on each side.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness.h"

typedef struct raw {
	int fd;
} raw;

static int fd_of(h_env *e)
{
	return ((raw *)e->state)->fd;
}

/* Off what was moved. */
static void advance(struct iovec **iov, int *n, size_t moved)
{
	while (*n && moved >= (*iov)->iov_len) {
		moved -= (*iov)->iov_len;
		++*iov;
		--*n;
	}
	if (*n) {
		(*iov)->iov_base = (char *)(*iov)->iov_base + moved;
		(*iov)->iov_len -= moved;
	}
}

static void send_all(h_env *e, const struct iovec *pieces, int n)
{
	struct iovec copy[3], *iov = copy;

	memcpy(copy, pieces, (size_t)n * sizeof(copy[0]));
	while (n) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
		ssize_t moved = sendmsg(fd_of(e), &msg, MSG_NOSIGNAL | (e->spin ? MSG_DONTWAIT : 0));

		if (moved < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (moved < 0)
			h_die(e, "send: %s", strerror(errno));
		advance(&iov, &n, (size_t)moved);
	}
}

static void recv_all(h_env *e, uint8_t *buf, uint64_t bytes)
{
	while (bytes) {
		ssize_t moved = recv(fd_of(e), buf, bytes, e->spin ? MSG_DONTWAIT : MSG_WAITALL);

		if (moved < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (moved <= 0)
			h_die(e, "recv: %s", moved ? strerror(errno) : "closed");
		buf += moved;
		bytes -= (uint64_t)moved;
	}
}

static bool is_tcp(const h_env *e)
{
	return !strcmp(e->transport, "tcp");
}

static void set_up(h_env *e, int fd)
{
	int on = 1;

	if (is_tcp(e))
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	e->state = calloc(1, sizeof(raw));
	if (e->state == NULL)
		h_die(e, "no memory");
	((raw *)e->state)->fd = fd;
	e->in = h_alloc(e, e->bytes_max);
	e->out = h_alloc(e, e->bytes_max);
}

static void server(h_env *e)
{
	struct sockaddr_storage at = {.ss_family = is_tcp(e) ? AF_INET : AF_UNIX};
	/* Unix: an abstract name of the kernel's choice, nothing in the file system. */
	socklen_t n = is_tcp(e) ? sizeof(struct sockaddr_in) : sizeof(sa_family_t);
	int listener = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	if (is_tcp(e))
		((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, n) != 0 || listen(listener, 1) != 0)
		h_die(e, "listen: %s", strerror(errno));
	n = sizeof(at);
	if (getsockname(listener, (struct sockaddr *)&at, &n) != 0)
		h_die(e, "getsockname: %s", strerror(errno));
	h_give(e, &at, n);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		h_die(e, "accept: %s", strerror(errno));
	close(listener);
	set_up(e, fd);
}

static void client(h_env *e)
{
	struct sockaddr_storage at;
	socklen_t n = (socklen_t)h_take(e, &at, sizeof(at));
	int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&at, n) != 0)
		h_die(e, "connect: %s", strerror(errno));
	set_up(e, fd);
}

static const h_two messages = {.send = send_all, .recv = recv_all};

static void serve(h_env *e, const h_work *w)
{
	h_two_serve(e, &messages, w);
}

static void run(h_env *e, const h_work *w)
{
	h_two_run(e, &messages, w);
}

static const char *cannot(const h_env *e, const h_work *w)
{
	if (!is_tcp(e) && strcmp(e->transport, "unix") != 0)
		return "transports are tcp and unix";
	if (w->op >= H_LINE)
		return "no such work";
	/* Both sides would wait for room in the other's socket buffer. */
	if (w->op == H_CALL && w->depth * w->size > 65536)
		return "more in flight than a socket holds";
	return NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "raw",
				    .cannot = cannot,
				    .server = server,
				    .client = client,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
