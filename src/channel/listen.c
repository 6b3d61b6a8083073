/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listener of control connections. Bound early, accepting from tn_ctx_start on.
 *
 * A peer that has not come up yet costs memory: at most ctx.backlog of them at a time. strangers.c decides who
 * makes room; while nobody does, the rest waits in the kernel's queue. When descriptors run out the listener
 * pauses instead of spinning on a readable socket.
 *
 * Threads: the driver; the pause ends in a timer. Tests: tests/unit/channel/test_ctx.c, test_link.c.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "channel/shell.h"
#include "channel/strangers.h"

#define ACCEPT_BATCH    16
#define ACCEPT_PAUSE_NS (200 * TN_NS_PER_MS)

typedef struct tn_listener {
	tn_watch watch;
	tern_ctx *ctx;
	tn_ctx_timer resume;
	_Atomic bool crowded; /* it pauses until a hello is over */
	tn_strangers_limits limits;
} tn_listener;

static void on_resume(tn_ctx_timer *timer)
{
	tn_listener *listener = TN_CONTAINER_OF(timer, tn_listener, resume);

	atomic_store_explicit(&listener->crowded, false, memory_order_relaxed);
	tn_progress_rewatch(listener->ctx, &listener->watch, EPOLLIN);
}

static void pause_until(tn_listener *listener, uint64_t at_ns)
{
	tn_progress_rewatch(listener->ctx, &listener->watch, 0);
	tn_ctx_timer_set(listener->ctx, &listener->resume, at_ns);
}

void tn_listener_room(tern_ctx *ctx)
{
	tn_listener *listener = ctx->listener;

	if (listener && atomic_exchange_explicit(&listener->crowded, false, memory_order_relaxed))
		tn_progress_rewatch(ctx, &listener->watch, EPOLLIN);
}

void tn_shell_welcome(tern_ctx *ctx, int fd, const tn_addr *peer)
{
	uint64_t now = tn_ctx_now(ctx);
	tern_status status;
	tern_link *link;
	tn_conn *conn;

	if (tn_conn_accepted(ctx, fd, peer, &conn) != TERN_OK)
		return;
	status = tn_shell_link_new(ctx, true, NULL, &link);
	if (status != TERN_OK) {
		if (status != TERN_E_STATE) /* a context that ends is no fault */
			TN_LOG_LIMITED(WARN, CHANNEL, 5, "a connection from %s was closed: %s",
				       conn->peer_text, tn_detail_get());
		tn_conn_close(conn);
		return;
	}
	memcpy(link->names.peer_address, conn->peer_text, sizeof(conn->peer_text));
	tn_strangers_note(link, peer, now);
	link->timeout_ns = tn_opt_u64(ctx->options, tn_link_option_rows, "connect_timeout");
	tn_lock_take(&link->lock);
	tn_shell_adopt(link, conn);
	link->connect_deadline_ns = tn_deadline(now, link->timeout_ns);
	if (tn_conn_start(conn) == TERN_OK) {
		tn_link_on_ctrl_up(link->m, now);
	} else {
		tn_link_on_ctrl_up(link->m, now);
		tn_link_on_ctrl_down(link->m, TERN_E_LIMIT, tn_detail_get(), now);
	}
	tn_shell_run(link, now);
	tn_lock_drop(&link->lock);
}

/* False: not now. waits: somebody waits in the kernel's queue, so that it may be at another's cost. */
static bool make_room(tn_listener *listener, bool waits)
{
	uint64_t again_ns;

	if (tn_strangers_room(listener->ctx, &listener->limits, waits, &again_ns))
		return true;
	if (waits) {
		atomic_store_explicit(&listener->crowded, true, memory_order_relaxed);
		pause_until(listener, again_ns);
	}
	return false;
}

static int on_ready(tn_watch *watch, uint32_t events)
{
	tn_listener *listener = TN_CONTAINER_OF(watch, tn_listener, watch);
	tern_ctx *ctx = listener->ctx;
	int n = 0;

	(void)events;
	for (; n < ACCEPT_BATCH; n++) {
		tn_addr peer = {.bytes = sizeof(peer.sa)};
		int fd;

		if (!make_room(listener, n == 0))
			break;
		fd = TN_FAULT("channel.listen.accept") ? (errno = EMFILE, -1)
						       : accept4(watch->fd, (struct sockaddr *)&peer.sa,
								 &peer.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			if (errno != EAGAIN) {
				TN_LOG_LIMITED(WARN, CHANNEL, 1,
					       "accept: %s: the listener pauses; raise ulimit -n "
					       "if descriptors ran out",
					       strerror(errno));
				pause_until(listener, tn_ctx_now(ctx) + ACCEPT_PAUSE_NS);
			}
			break;
		}
		if (!tn_strangers_welcome(ctx, &listener->limits, &peer)) {
			close(fd);
			continue;
		}
		tn_shell_welcome(ctx, fd, &peer);
	}
	return n;
}

tern_status tn_listener_check(tern_ctx *ctx, const char *listen_address, char *host, size_t host_bytes)
{
	tn_addr addr;

	TN_TRY(tn_addr_resolve(listen_address, true, &addr));
	tn_addr_host(&addr, host, host_bytes);
	if (tn_addr_is_loopback(&addr) || ctx->secrets.any || ctx->insecure)
		return TERN_OK;
	return tn_fail(
		TERN_E_INSECURE,
		"listening on %s lets anybody who reaches it read and write this job's memory: set the same "
		"TERN_CTX_SECRET on all nodes, listen on 127.0.0.1, or say insecure on purpose",
		listen_address);
}

static tern_status bind_to(tn_listener *listener, const char *text, const tn_addr *addr)
{
	int fd = socket(addr->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		return tn_fail_errno(TERN_E_OS, "socket", "for the listener on %s", text);
	listener->watch.fd = fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)&addr->sa, addr->bytes) != 0)
		return tn_fail_errno(errno == EADDRINUSE ? TERN_E_IN_USE : TERN_E_OS, "bind",
				     "listener on %s: choose another port, or 0 for any", text);
	if (listen(fd, 1024) != 0)
		return tn_fail_errno(errno == EADDRINUSE ? TERN_E_IN_USE : TERN_E_OS, "listen", "on %s",
				     text);
	return TERN_OK;
}

tern_status tn_listener_open(tern_ctx *ctx, const char *listen_address)
{
	tn_listener *listener = calloc(1, sizeof(*listener));
	tern_status status;
	tn_addr addr;

	if (!listener)
		return tn_fail(TERN_E_NOMEM, "no memory for a listener");
	ctx->listener = listener;
	listener->ctx = ctx;
	listener->watch.fd = -1;
	listener->watch.ready = on_ready;
	listener->resume.run = on_resume;
	tn_strangers_load(ctx, &listener->limits);
	status = tn_addr_resolve(listen_address, true, &addr);
	if (status == TERN_OK)
		status = bind_to(listener, listen_address, &addr);
	if (status != TERN_OK)
		return status;
	addr.bytes = sizeof(addr.sa);
	getsockname(listener->watch.fd, (struct sockaddr *)&addr.sa, &addr.bytes);
	tn_addr_format(&addr, ctx->address, sizeof(ctx->address));
	return TERN_OK;
}

tern_status tn_listener_start(tern_ctx *ctx)
{
	return ctx->listener ? tn_progress_watch(ctx, &ctx->listener->watch, EPOLLIN) : TERN_OK;
}

void tn_listener_close(tern_ctx *ctx)
{
	tn_listener *listener = ctx->listener;

	if (!listener)
		return;
	tn_ctx_timer_cancel(ctx, &listener->resume);
	if (listener->watch.fd >= 0)
		tn_progress_unwatch(ctx, &listener->watch);
	tn_os_close(&listener->watch.fd);
	free(listener);
	ctx->listener = NULL;
}
