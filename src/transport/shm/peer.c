/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns peers: the key table and sleep page of another device, its extents as far as they were mapped, and
 * the news of its death. All lanes to one device share one peer, so that an extent is mapped once.
 *
 * Must not unmap anything while a lane refers to the peer: posts read the maps without a lock.
 * Threads: the polling thread; posts read keys, page and maps (state first, with acquire).
 * Tests: tests/unit/transport/test_shm_access.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/shm/shm.h"

static tern_status peer_map_tables(tn_shm_peer *peer, const tn_shm_facts *facts, int keys_fd, int page_fd)
{
	tn_shm_seg_id id;
	uint64_t bytes;
	void *base;

	/* 2^24 rows are 512 MiB: far above any pool, low enough not to overflow. */
	if (facts->key_rows == 0 || facts->key_rows > 1u << 24)
		return tn_fail(TERN_E_PROTOCOL, "a key table of %u rows", facts->key_rows);
	peer->keys_bytes = (uint64_t)facts->key_rows * sizeof(tn_key_row);
	TN_TRY(tn_shm_seg_check(keys_fd, peer->keys_bytes, &bytes, &id));
	TN_TRY(tn_shm_seg_map(keys_fd, peer->keys_bytes, TN_SHM_RO, &base));
	peer->keys =
		(tn_key_table){.rows = base, .count = facts->key_rows, .node_tag = facts->node_tag, .fd = -1};
	peer->page_bytes = sizeof(tn_shm_page);
	TN_TRY(tn_shm_seg_check(page_fd, peer->page_bytes, &bytes, &id));
	TN_TRY(tn_shm_seg_map(page_fd, peer->page_bytes, TN_SHM_RO, &base));
	peer->page = base;
	return TERN_OK;
}

static void peer_free(tn_shm_peer *peer)
{
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++)
		tn_shm_seg_unmap(peer->maps[i].base, peer->maps[i].bytes);
	tn_shm_seg_unmap((void *)(uintptr_t)peer->keys.rows, peer->keys_bytes);
	tn_shm_seg_unmap((void *)(uintptr_t)peer->page, peer->page_bytes);
	if (peer->pidfd >= 0)
		tn_shm_unwatch(peer->dev, peer->pidfd);
	tn_os_close(&peer->pidfd);
	tn_list_remove(&peer->node);
	free(peer);
}

static tn_shm_peer *peer_find(tn_shm_dev *dev, const tn_shm_id *id, pid_t pid, const tn_shm_seg_id *keys_id)
{
	tn_list *node;

	for (node = dev->peers.next; node != &dev->peers; node = node->next) {
		tn_shm_peer *peer = TN_CONTAINER_OF(node, tn_shm_peer, node);

		if (memcmp(&peer->id, id, sizeof(*id)) == 0 && peer->pid == pid &&
		    peer->keys_id.dev == keys_id->dev && peer->keys_id.ino == keys_id->ino && !peer->dead)
			return peer;
	}
	return NULL;
}

tern_status tn_shm_peer_get(tn_shm_conn *conn, const tn_shm_id *id, const tn_shm_facts *facts, int keys_fd,
			    int page_fd, tn_shm_peer **out)
{
	tn_shm_dev *dev = conn->dev;
	static _Atomic uint64_t peers;
	tn_shm_seg_id keys_id;
	tn_shm_peer *peer;
	tern_status status;
	uint64_t bytes;

	TN_ASSERT(*out == NULL);
	TN_TRY(tn_shm_seg_check(keys_fd, sizeof(tn_key_row), &bytes, &keys_id));
	peer = peer_find(dev, id, conn->pid, &keys_id);
	if (peer) {
		if (peer->keys.count != facts->key_rows || peer->keys.node_tag != facts->node_tag)
			return tn_fail(TERN_E_PROTOCOL,
				       "the peer says something else about its keys than before");
		peer->refs++;
		*out = peer;
		return TERN_OK;
	}
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return tn_fail(TERN_E_NOMEM, "no memory for a peer");
	peer->dev = dev;
	peer->id = *id;
	peer->number = atomic_fetch_add_explicit(&peers, 1, memory_order_relaxed) + 1;
	peer->pid = conn->pid;
	peer->keys_id = keys_id;
	peer->pidfd = -1;
	peer->source = (tn_shm_source){.kind = TN_SHM_ON_PIDFD, .owner = peer};
	tn_list_push_back(&dev->peers, &peer->node);
	status = peer_map_tables(peer, facts, keys_fd, page_fd);
	if (status != TERN_OK) {
		peer_free(peer);
		return status;
	}
	/* A forked child of the peer keeps its sockets open after its death; the pidfd tells all the same. */
	peer->pidfd = tn_shm_sock_pidfd(conn->fd, conn->pid);
	if (peer->pidfd >= 0 && tn_shm_watch(dev, peer->pidfd, EPOLLIN, &peer->source) != TERN_OK)
		tn_os_close(&peer->pidfd);
	peer->refs = 1;
	*out = peer;
	return TERN_OK;
}

void tn_shm_peer_put(tn_shm_peer *peer)
{
	TN_ASSERT(peer->refs > 0);
	if (--peer->refs == 0)
		peer_free(peer);
}

void tn_shm_peer_died(tn_shm_peer *peer)
{
	tn_shm_dev *dev = peer->dev;

	peer->dead = true;
	tn_shm_unwatch(dev, peer->pidfd);
	tn_os_close(&peer->pidfd);
	for (uint32_t i = 0; i < dev->lane_count; i++) {
		if (dev->lanes[i]->peer == peer)
			tn_shm_lane_down(
				dev->lanes[i],
				tn_fail(TERN_E_LANE, "the peer's process (pid %d) ended", (int)peer->pid));
	}
}

/* ---- extents ---- */

static void map_set(tn_shm_map *map, tn_shm_map_state state)
{
	atomic_store_explicit(&map->state, state, memory_order_release);
}

/* Check and map what came; the states are the caller's. TERN_E_PROTOCOL: the peer lies. */
static tern_status extent_map(tn_shm_map *map, const tn_shm_extent *msg, int fd)
{
	tn_shm_prot prot = (msg->access & TERN_ACCESS_WRITE) ? TN_SHM_RW : TN_SHM_RO;
	tn_shm_seg_id id;
	uint64_t size;
	void *base;

	/* No errors of the peer's device here: to the initiator they are all refused accesses. */
	if (msg->status != TERN_OK)
		return tn_fail(msg->status == TERN_E_NOT_FOUND ? TERN_E_STALE_KEY : TERN_E_ACCESS,
			       "the peer refused extent %u", msg->index);
	if (msg->bytes == 0 || msg->bytes > TN_MEM_EXTENT_BYTES_MAX || msg->access == TERN_ACCESS_NONE ||
	    (msg->access & ~(TERN_ACCESS_READ | TERN_ACCESS_WRITE)) != 0)
		return tn_fail(TERN_E_PROTOCOL, "the peer passed an extent of %" PRIu64 " bytes, access %u",
			       msg->bytes, msg->access);
	TN_TRY(tn_shm_seg_check(fd, msg->bytes, &size, &id));
	TN_TRY(tn_shm_seg_map(fd, msg->bytes, prot, &base));
	map->base = base;
	map->bytes = msg->bytes;
	map->access = msg->access;
	return TERN_OK;
}

tern_status tn_shm_peer_extent(tn_shm_peer *peer, const tn_shm_extent *msg, int fd)
{
	tn_shm_map *map = &peer->maps[msg->index % TN_MEM_EXTENTS_MAX];
	tern_status status;

	TN_ASSERT(map->index == msg->index);
	TN_ASSERT(atomic_load_explicit(&map->state, memory_order_relaxed) == TN_SHM_MAP_ASKED);
	TN_ASSERT(peer->dev->urgent > 0);
	peer->dev->urgent--;
	peer->dev->retry = true;
	map->asked_by = 0;
	status = extent_map(map, msg, fd);
	if (status == TERN_OK) {
		map_set(map, TN_SHM_MAP_READY);
		tn_count(&peer->dev->counters.extents_mapped, 1);
		TN_LOG(DEBUG, SHM, "mapped extent %u of pid %d: %" PRIu64 " bytes, access %u", msg->index,
		       (int)peer->pid, msg->bytes, msg->access);
		return TERN_OK;
	}
	TN_LOG(DEBUG, SHM, "extent %u of pid %d: %s", msg->index, (int)peer->pid, tn_detail_get());
	atomic_store_explicit(&map->status, status, memory_order_relaxed);
	map_set(map, TN_SHM_MAP_REFUSED);
	return status == TERN_E_PROTOCOL ? status : TERN_OK;
}

void tn_shm_peer_forget(tn_shm_peer *peer, uint64_t lane_id)
{
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		tn_shm_map *map = &peer->maps[i];

		if (atomic_load_explicit(&map->state, memory_order_relaxed) != TN_SHM_MAP_ASKED ||
		    map->asked_by != lane_id)
			continue;
		TN_ASSERT(peer->dev->urgent > 0);
		peer->dev->urgent--;
		peer->dev->retry = true;
		map->asked_by = 0;
		map_set(map, TN_SHM_MAP_NONE);
	}
}
