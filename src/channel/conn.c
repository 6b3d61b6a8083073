/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control connections. See conn.h.
 * Threads: see conn.h. Tests: tests/unit/channel/test_link.c.
 */
#include "channel/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/fault.h"
#include "channel/ctx_impl.h"
#include "channel/shell.h"

static tern_status status_of_socket(int err)
{
	switch (err) {
	case ECONNREFUSED:
		return TERN_E_REFUSED;
	case ENETUNREACH:
	case EHOSTUNREACH:
	case ENETDOWN:
	case EADDRNOTAVAIL:
		return TERN_E_UNREACHABLE;
	case ETIMEDOUT:
		return TERN_E_DEADLINE;
	case ECONNRESET:
	case EPIPE:
	case ECONNABORTED:
		return TERN_E_PEER_LOST;
	default:
		return tn_status_of_errno(err);
	}
}

/* Of a connect: a route that drops (EINVAL), or that is forbidden by a rule or a firewall, is one that may come back. */
static tern_status status_of_dial(int err)
{
	bool no_way = err == EINVAL || err == EACCES || err == EPERM || err == EHOSTDOWN || err == ENONET;

	return no_way ? TERN_E_UNREACHABLE : status_of_socket(err);
}

static tn_conn *conn_new(tern_ctx *ctx, int fd, const tn_addr *peer)
{
	tn_conn *conn = calloc(1, sizeof(*conn));
	int one = 1;

	if (!conn)
		return NULL;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	conn->ctx = ctx;
	conn->watch.fd = fd;
	conn->peer = *peer;
	tn_addr_format(peer, conn->peer_text, sizeof(conn->peer_text));
	return conn;
}

static void fail(tn_conn *conn, int err, const char *what)
{
	tern_status status = conn->dialing ? status_of_dial(err) : status_of_socket(err);

	if (conn->dead)
		return;
	conn->dead = true;
	tn_progress_unwatch(conn->ctx, &conn->watch);
	errno = err;
	if (err)
		tn_fail_errno(status, what, "%s", conn->peer_text);
	else
		tn_fail(status = TERN_E_PEER_LOST, "connection closed by the peer");
	conn->broken(conn, status, conn->arg);
}

static void set_events(tn_conn *conn)
{
	uint32_t events = EPOLLIN | (conn->dialing || conn->tx_bytes ? EPOLLOUT : 0u);

	if (events == conn->events)
		return;
	conn->events = events;
	tn_progress_rewatch(conn->ctx, &conn->watch, events);
}

static void tell_world(const tern_ctx *ctx)
{
	if (TN_UNLIKELY(ctx->hooks != NULL))
		ctx->hooks->wrote(ctx->hooks->arg);
}

/* Link's lock held (or the driver alone knows the connection). */
static void push_tx(tn_conn *conn)
{
	if (conn->tx_bytes)
		tell_world(conn->ctx);
	while (conn->tx_bytes) {
		ssize_t n = send(conn->watch.fd, conn->tx + conn->tx_head, conn->tx_bytes,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return; /* full, or broken: reading finds that out */
		conn->tx_head += (uint32_t)n;
		conn->tx_bytes -= (uint32_t)n;
	}
	conn->tx_head = 0;
}

tern_status tn_conn_send(tn_conn *conn, const void *bytes, uint64_t n)
{
	if (conn->dead)
		return TERN_OK;
	if (n > TN_CONN_TX_MAX - conn->tx_bytes)
		return tn_fail(TERN_E_LIMIT, "the peer has not read %u bytes of control messages",
			       conn->tx_bytes);
	if (conn->tx_head + conn->tx_bytes + n > conn->tx_capacity) {
		uint64_t want = conn->tx_bytes + n;

		if (conn->tx_bytes && conn->tx_head)
			memmove(conn->tx, conn->tx + conn->tx_head, conn->tx_bytes);
		conn->tx_head = 0;
		if (want > conn->tx_capacity) {
			uint32_t capacity = want < 4096 ? 4096 : (uint32_t)want * 2;
			uint8_t *tx = realloc(conn->tx, capacity);

			if (!tx)
				return tn_fail(TERN_E_NOMEM, "no memory for %u bytes of control messages",
					       capacity);
			conn->tx = tx;
			conn->tx_capacity = capacity;
		}
	}
	memcpy(conn->tx + conn->tx_head + conn->tx_bytes, bytes, n);
	conn->tx_bytes += (uint32_t)n;
	if (!conn->dialing)
		push_tx(conn);
	set_events(conn);
	return TERN_OK;
}

bool tn_conn_flushed(const tn_conn *conn)
{
	return conn->dead || conn->tx_bytes == 0;
}

static bool finish_dial(tn_conn *conn)
{
	int err = 0;
	socklen_t size = sizeof(err);

	getsockopt(conn->watch.fd, SOL_SOCKET, SO_ERROR, &err, &size);
	if (err == 0 && TN_FAULT("channel.conn.dial"))
		err = ECONNREFUSED;
	if (err) {
		fail(conn, err, "connect");
		return false;
	}
	conn->opened(conn, conn->arg);
	return !conn->dead;
}

void tn_conn_opened(tn_conn *conn)
{
	conn->dialing = false;
	push_tx(conn);
	set_events(conn);
}

static int ready(tn_watch *watch, uint32_t events)
{
	tn_conn *conn = TN_CONTAINER_OF(watch, tn_conn, watch);
	uint8_t buf[TN_CONN_RX_BYTES];
	ssize_t n;

	if (conn->dead)
		return 0;
	if (conn->dialing && !finish_dial(conn))
		return 1;
	if (events & EPOLLOUT)
		conn->writable(conn, conn->arg);
	if (conn->dead || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return 1;
	n = recv(watch->fd, buf, sizeof(buf), MSG_DONTWAIT);
	if (n > 0)
		conn->bytes(conn, buf, (uint64_t)n, conn->arg);
	else if (n == 0)
		fail(conn, 0, "recv");
	else if (errno != EAGAIN && errno != EINTR)
		fail(conn, errno, "recv");
	return 1;
}

void tn_conn_writable(tn_conn *conn)
{
	push_tx(conn);
	set_events(conn);
}

tern_status tn_conn_start(tn_conn *conn)
{
	conn->watch.ready = ready;
	conn->events = EPOLLIN | (conn->dialing || conn->tx_bytes ? EPOLLOUT : 0u);
	return tn_progress_watch(conn->ctx, &conn->watch, conn->events);
}

/* A connection of a world that is not the OS's is there at once, or never. */
static tern_status dial_hook(tern_ctx *ctx, const tn_addr *peer, tn_conn **out)
{
	char text[64];
	int fd = ctx->hooks->dial(ctx->hooks->arg, tn_addr_format(peer, text, sizeof(text)));

	if (fd < 0)
		return tn_fail_errno(status_of_socket(errno), "connect", "%s", text);
	TN_TRY(tn_conn_accepted(ctx, fd, peer, out));
	(*out)->dialing = true;
	return TERN_OK;
}

tern_status tn_conn_dial(tern_ctx *ctx, const tn_addr *peer, tn_conn **out)
{
	tn_conn *conn;
	int fd;

	*out = NULL;
	if (ctx->hooks)
		return dial_hook(ctx, peer, out);
	fd = TN_FAULT("channel.conn.socket")
		     ? (errno = EMFILE, -1)
		     : socket(peer->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return tn_fail_errno(errno == EMFILE || errno == ENFILE ? TERN_E_LIMIT : TERN_E_OS, "socket",
				     "raise the descriptor limit (ulimit -n) if it is that");
	conn = conn_new(ctx, fd, peer);
	if (!conn) {
		close(fd);
		return tn_fail(TERN_E_NOMEM, "no memory for a connection");
	}
	conn->dialing = true;
	if (connect(fd, (const struct sockaddr *)&peer->sa, peer->bytes) != 0 && errno != EINPROGRESS) {
		tern_status status = tn_fail_errno(status_of_dial(errno), "connect", "%s", conn->peer_text);

		close(fd);
		free(conn);
		return status;
	}
	*out = conn;
	return TERN_OK;
}

tern_status tn_conn_accepted(tern_ctx *ctx, int fd, const tn_addr *peer, tn_conn **conn)
{
	*conn = conn_new(ctx, fd, peer);
	if (!*conn) {
		close(fd);
		tell_world(ctx);
		return tn_fail(TERN_E_NOMEM, "no memory for a connection");
	}
	return TERN_OK;
}

void tn_conn_close(tn_conn *conn)
{
	if (!conn->dead) {
		push_tx(conn);
		conn->dead = true;
		tn_progress_unwatch(conn->ctx, &conn->watch);
	}
	tn_os_close(&conn->watch.fd);
	tell_world(conn->ctx);
	tn_shell_bury(conn->ctx, conn);
}
