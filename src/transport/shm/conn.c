/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns connections: dialling, accepting, receiving, sending, closing, and the requests for extents once the
 * lane is up. What a handshake message means is in handshake.c.
 *
 * A connection keeps one unsent message at most; while it has one, nothing is received, so that a peer that
 * doesn't read its socket can't make us store anything.
 *
 * Must not block. Threads: the polling thread. Tests: tests/unit/transport/test_shm_handshake.c.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/shm/shm.h"

#define RECORDS_PER_TURN 16
#define REDIAL_NS        1000000ull

static bool inbound(const tn_shm_conn *conn)
{
	return !conn->active && conn->state != TN_SHM_CONN_READY && conn->state != TN_SHM_CONN_CLOSED;
}

void tn_shm_conn_set_state(tn_shm_conn *conn, tn_shm_conn_state state)
{
	bool before = inbound(conn);

	TN_ASSERT(conn->state != TN_SHM_CONN_CLOSED && state != conn->state);
	conn->state = state;
	if (before && !inbound(conn)) {
		TN_ASSERT(conn->dev->inbound > 0);
		conn->dev->inbound--;
	}
}

static tern_status conn_watch(tn_shm_conn *conn, int fd)
{
	tern_status status;

	conn->fd = fd;
	status = tn_shm_sock_peer(fd, &conn->pid);
	if (status == TERN_OK)
		status = tn_shm_watch(conn->dev, fd, EPOLLIN | EPOLLRDHUP, &conn->source);
	if (status != TERN_OK)
		tn_os_close(&conn->fd);
	return status;
}

static tn_shm_conn *conn_new(tn_shm_dev *dev, bool active)
{
	tn_shm_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->dev = dev;
	conn->fd = -1;
	conn->out_fd = -1;
	conn->active = active;
	conn->state = active ? TN_SHM_CONN_DIAL : TN_SHM_CONN_HELLO;
	conn->deadline_ns = TN_TIME_NEVER;
	conn->source = (tn_shm_source){.kind = TN_SHM_ON_CONN, .owner = conn};
	tn_list_push_back(&dev->conns, &conn->node);
	return conn;
}

void tn_shm_conn_close(tn_shm_conn *conn)
{
	tn_shm_dev *dev = conn->dev;

	if (conn->state == TN_SHM_CONN_CLOSED)
		return;
	tn_shm_conn_set_state(conn, TN_SHM_CONN_CLOSED);
	if (conn->fd >= 0)
		tn_shm_unwatch(dev, conn->fd);
	tn_os_close(&conn->fd);
	tn_os_close(&conn->out_fd);
	tn_list_remove(&conn->node);
	/* Events that the kernel reported in this turn may still point to it. */
	tn_list_push_back(&dev->closed_conns, &conn->node);
}

void tn_shm_conn_bury(tn_shm_dev *dev)
{
	tn_list *node;

	while ((node = tn_list_pop_front(&dev->closed_conns)) != NULL)
		free(TN_CONTAINER_OF(node, tn_shm_conn, node));
}

/* ---- sending ---- */

static void conn_block(tn_shm_conn *conn, bool blocked)
{
	struct epoll_event ev = {.events = blocked ? EPOLLOUT : EPOLLIN | EPOLLRDHUP,
				 .data.ptr = &conn->source};

	conn->blocked = blocked;
	(void)epoll_ctl(conn->dev->epoll_fd, EPOLL_CTL_MOD, conn->fd, &ev);
}

tern_status tn_shm_conn_send(tn_shm_conn *conn, tn_shm_type type, tn_shm_any *msg, const int *fds,
			     uint32_t fd_count)
{
	tern_status status;

	TN_ASSERT(!conn->blocked);
	msg->head = (tn_shm_head_msg){
		.magic = TN_SHM_WIRE_MAGIC, .version = TN_SHM_WIRE_VERSION, .type = (uint16_t)type};
	TN_ASSERT(tn_shm_type_fds(msg) == fd_count);
	status = tn_shm_sock_send(conn->fd, msg, tn_shm_type_bytes(type), fds, fd_count);
	if (status != TERN_AGAIN)
		return status;
	if (fd_count > 1) /* a fresh socket: only a host that is out of everything refuses */
		return tn_fail(TERN_E_LIMIT, "a handshake message finds no room in its socket");
	conn->out = *msg;
	if (fd_count == 1) {
		conn->out_fd = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
		if (conn->out_fd < 0)
			return tn_fail_errno(TERN_E_LIMIT, "F_DUPFD_CLOEXEC", "a descriptor for a peer");
	}
	conn_block(conn, true);
	return TERN_OK;
}

static tern_status conn_flush(tn_shm_conn *conn)
{
	tern_status status = tn_shm_sock_send(conn->fd, &conn->out, tn_shm_type_bytes(conn->out.head.type),
					      &conn->out_fd, conn->out_fd >= 0 ? 1 : 0);

	if (status == TERN_AGAIN)
		return TERN_OK;
	tn_os_close(&conn->out_fd);
	if (status != TERN_OK)
		return status;
	conn_block(conn, false);
	tn_shm_attention(conn->dev); /* lanes may have waited with their requests */
	return TERN_OK;
}

tern_status tn_shm_conn_ask(tn_shm_conn *conn, uint32_t index)
{
	tn_shm_any msg = {.ask = {.index = index}};

	if (conn->blocked)
		return TERN_AGAIN;
	return tn_shm_conn_send(conn, TN_SHM_EXTENT_ASK, &msg, NULL, 0);
}

/*
 * A descriptor of the extent for the peer, read-only where the class allows no writing. Looked up again after
 * it was made: an extent that nobody has a key to may be on its way out, and its number be used for another
 * file already.
 */
static tern_status extent_fd(tern_mem *mem, uint32_t index, tn_shm_extent *answer, int *fd)
{
	const tn_extent *ext = tn_mem_extent(mem, index);
	bool write;

	if (!ext || (index & TN_MEM_REGION))
		return TERN_E_NOT_FOUND;
	if (ext->access == TERN_ACCESS_NONE)
		return TERN_E_ACCESS;
	answer->access = ext->access;
	answer->bytes = ext->bytes;
	write = (ext->access & TERN_ACCESS_WRITE) != 0;
	if (write)
		*fd = fcntl(ext->fd, F_DUPFD_CLOEXEC, 0);
	else if (tn_shm_seg_read_only(ext->fd, fd) != TERN_OK)
		*fd = -1;
	if (*fd < 0)
		return TERN_E_LIMIT;
	if (tn_mem_extent(mem, index) == ext)
		return TERN_OK;
	tn_os_close(fd);
	return TERN_E_NOT_FOUND;
}

/* The peer wants to map one of our extents. */
static tern_status answer_extent(tn_shm_conn *conn, const tn_shm_extent_ask *ask)
{
	tn_shm_any msg = {.extent = {.index = ask->index}};
	tern_status status;
	int fd = -1;

	msg.extent.status = extent_fd(conn->dev->base.mem, ask->index, &msg.extent, &fd);
	status = tn_shm_conn_send(conn, TN_SHM_EXTENT, &msg, &fd, fd >= 0 ? 1 : 0);
	tn_os_close(&fd);
	return status;
}

/* ---- receiving ---- */

/* The connection is of no use any more. If it carries a lane, the lane goes with it. */
static void conn_fail(tn_shm_conn *conn, tern_status status)
{
	tn_shm_lane *lane = tn_shm_lane_find(conn->dev, conn->lane_id);

	if (lane && lane->conn == conn) {
		tn_shm_lane_down(lane, status);
		return;
	}
	TN_LOG_LIMITED(DEBUG, SHM, 10, "connection refused: %s", tn_detail_get());
	if (!conn->active && status != TERN_E_LANE && conn->fd >= 0 && !conn->blocked) {
		tn_shm_any msg = {.refuse = {.status = status}};

		(void)tn_shm_conn_send(conn, TN_SHM_REFUSE, &msg, NULL, 0);
	}
	tn_shm_conn_close(conn);
}

static tern_status conn_handle(tn_shm_conn *conn, const tn_shm_any *msg, int *fds)
{
	tn_shm_lane *lane;

	if (conn->state != TN_SHM_CONN_READY)
		return tn_shm_handshake(conn, msg, fds);
	lane = tn_shm_lane_find(conn->dev, conn->lane_id);
	TN_ASSERT(lane && lane->conn == conn && lane->peer);
	switch (msg->head.type) {
	case TN_SHM_EXTENT_ASK:
		return answer_extent(conn, &msg->ask);
	case TN_SHM_EXTENT: {
		const tn_shm_map *map = &lane->peer->maps[msg->extent.index % TN_MEM_EXTENTS_MAX];

		if (atomic_load_explicit(&map->state, memory_order_relaxed) != TN_SHM_MAP_ASKED ||
		    map->asked_by != lane->id || map->index != msg->extent.index)
			return tn_fail(TERN_E_PROTOCOL, "the peer sent extent %u, which nobody asked for",
				       msg->extent.index);
		return tn_shm_peer_extent(lane->peer, &msg->extent, fds[0]);
	}
	default:
		return tn_fail(TERN_E_PROTOCOL, "the peer sent %s on a lane that is up",
			       tn_shm_type_name(msg->head.type));
	}
}

void tn_shm_conn_ready(tn_shm_conn *conn, uint32_t events)
{
	tern_status status = TERN_OK;

	if (conn->state == TN_SHM_CONN_CLOSED)
		return;
	if (conn->blocked) {
		status = (events & (EPOLLHUP | EPOLLERR))
				 ? tn_fail(TERN_E_LANE, "the peer on this host ended")
				 : conn_flush(conn);
	}
	for (int i = 0; status == TERN_OK && i < RECORDS_PER_TURN && !conn->blocked; i++) {
		tn_shm_any msg;
		int fds[TN_SHM_FDS_MAX] = {-1, -1, -1, -1};
		uint32_t fd_count;

		status = tn_shm_sock_recv(conn->fd, &msg, fds, &fd_count);
		if (status == TERN_AGAIN)
			return;
		if (status == TERN_OK)
			status = conn_handle(conn, &msg, fds);
		for (uint32_t k = 0; k < TN_SHM_FDS_MAX; k++)
			tn_os_close(&fds[k]);
		if (conn->state == TN_SHM_CONN_CLOSED)
			return;
	}
	if (status != TERN_OK)
		conn_fail(conn, status);
}

/* ---- dialling and accepting ---- */

static void conn_greet(tn_shm_conn *conn, tn_shm_lane *lane, int fd)
{
	tern_status status = conn_watch(conn, fd);

	if (status == TERN_OK)
		status = tn_shm_handshake_hello(conn, lane);
	if (status != TERN_OK)
		conn_fail(conn, status);
}

tern_status tn_shm_conn_dial(tn_shm_lane *lane)
{
	tn_shm_dev *dev = tn_shm_dev_of(lane);
	tn_shm_conn *conn = lane->conn;
	tern_status status;
	int fd;

	if (!conn) {
		conn = conn_new(dev, true);
		if (!conn)
			return tn_fail(TERN_E_NOMEM, "no memory for a connection");
		conn->lane_id = lane->id;
		lane->conn = conn;
	}
	status = tn_shm_sock_dial(&lane->peer_id, &fd);
	if (status == TERN_AGAIN) {
		conn->deadline_ns = tn_now() + REDIAL_NS;
		return TERN_OK;
	}
	conn->deadline_ns = TN_TIME_NEVER; /* the lane has one */
	if (status != TERN_OK)
		conn_fail(conn, status);
	else
		conn_greet(conn, lane, fd);
	return TERN_OK; /* the lane says LANE_DOWN if it failed */
}

/* Room for one more: the oldest that has said nothing goes, so that silence can't keep others out. */
static void make_room(tn_shm_dev *dev)
{
	tn_list *node;

	for (node = dev->conns.next; node != &dev->conns; node = node->next) {
		tn_shm_conn *conn = TN_CONTAINER_OF(node, tn_shm_conn, node);

		if (conn->state == TN_SHM_CONN_HELLO) {
			TN_LOG_LIMITED(WARN, SHM, 1, "more than %d silent connections: the oldest is closed",
				       TN_SHM_CONNS_MAX);
			tn_shm_conn_close(conn);
			return;
		}
	}
}

/* Out of descriptors: without the spare one the backlog would stay, and wake us for ever. */
static void turn_away(tn_shm_dev *dev)
{
	int fd;

	TN_LOG_LIMITED(WARN, SHM, 1, "%s", tn_detail_get());
	tn_os_close(&dev->spare_fd);
	if (tn_shm_sock_accept(dev->listen_fd, &fd) == TERN_OK)
		tn_os_close(&fd);
	dev->spare_fd = fcntl(dev->page_fd, F_DUPFD_CLOEXEC, 0);
}

void tn_shm_conn_accept(tn_shm_dev *dev)
{
	for (int i = 0; i < RECORDS_PER_TURN; i++) {
		tn_shm_conn *conn;
		tern_status status;
		int fd;

		status = tn_shm_sock_accept(dev->listen_fd, &fd);
		if (status != TERN_OK) {
			if (status != TERN_AGAIN)
				turn_away(dev);
			return;
		}
		if (dev->inbound >= TN_SHM_CONNS_MAX)
			make_room(dev);
		conn = dev->inbound < TN_SHM_CONNS_MAX ? conn_new(dev, false) : NULL;
		if (!conn) {
			tn_os_close(&fd);
			continue;
		}
		dev->inbound++;
		conn->deadline_ns = tn_now() + TN_SHM_CONNECT_NS;
		status = conn_watch(conn, fd);
		if (status != TERN_OK)
			conn_fail(conn, status);
	}
}

void tn_shm_conn_unpark(tn_shm_lane *lane)
{
	tn_shm_dev *dev = tn_shm_dev_of(lane);
	tn_list *node = dev->conns.next;

	while (node != &dev->conns) {
		tn_shm_conn *conn = TN_CONTAINER_OF(node, tn_shm_conn, node);

		node = node->next;
		if (conn->state == TN_SHM_CONN_PARKED && conn->lane_id == lane->id) {
			tern_status status = tn_shm_handshake_challenge(conn, lane);

			conn->deadline_ns = tn_now() + TN_SHM_CONNECT_NS;
			if (status != TERN_OK)
				conn_fail(conn, status);
		}
	}
}

uint64_t tn_shm_conn_tick(tn_shm_dev *dev, uint64_t now)
{
	uint64_t next = TN_TIME_NEVER;
	tn_list *node = dev->conns.next;

	while (node != &dev->conns) {
		tn_shm_conn *conn = TN_CONTAINER_OF(node, tn_shm_conn, node);

		node = node->next;
		if (conn->deadline_ns <= now) {
			tn_shm_lane *lane = tn_shm_lane_find(dev, conn->lane_id);

			if (conn->state == TN_SHM_CONN_DIAL && lane)
				(void)tn_shm_conn_dial(lane);
			else
				conn_fail(conn, tn_fail(TERN_E_DEADLINE,
							"a connection did not prove itself in time"));
		}
		if (conn->state != TN_SHM_CONN_CLOSED)
			next = TN_MIN(next, conn->deadline_ns);
	}
	return next;
}
