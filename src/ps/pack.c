/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory from which rows are put, and the puts' operations until they are over. Kept for the next
 * batch: in steady state nothing is allocated.
 *
 * Threads: any; pack_lock. Tests: tests/unit/ps/ps_test.c.
 */
#include <stdlib.h>

#include "base/fault.h"
#include "ps/server.h"

#define PACK_BYTES_MIN 65536u

static void pack_free(ps_pack *pack)
{
	tern_mem_free(tern_ctx_mem(pack->server->ctx), pack->memory);
	free(pack);
}

static bool pack_reserve(ps_pack *pack, uint64_t bytes)
{
	tern_mem *mem = tern_ctx_mem(pack->server->ctx);
	uint64_t room = PACK_BYTES_MIN;
	void *p;

	if (pack->bytes >= bytes)
		return true;
	while (room < bytes)
		room *= 2;
	if (TN_FAULT("ps.pack.alloc") ||
	    tern_mem_alloc(mem, room, 4096, TERN_ACCESS_NONE, TERN_MEM_HOST, &p) != TERN_OK)
		return false;
	tern_mem_free(mem, pack->memory);
	pack->memory = p;
	pack->bytes = room;
	return true;
}

ps_pack *tn_ps_pack_get(tern_ps_server *server, uint64_t bytes)
{
	ps_pack *pack;

	pthread_mutex_lock(&server->pack_lock);
	pack = server->packs;
	if (pack) {
		server->packs = pack->next;
		server->packs_kept--;
	}
	pthread_mutex_unlock(&server->pack_lock);
	if (!pack)
		pack = calloc(1, sizeof(*pack));
	if (!pack)
		return NULL;
	pack->server = server;
	if (pack_reserve(pack, bytes)) {
		atomic_store_explicit(&pack->users, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&server->busy, 1, memory_order_relaxed);
		return pack;
	}
	pack_free(pack);
	return NULL;
}

void tn_ps_pack_put(ps_pack *pack)
{
	tern_ps_server *server = pack->server;

	if (atomic_fetch_sub_explicit(&pack->users, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_lock(&server->pack_lock);
	if (server->packs_kept < TN_PS_PACKS_KEPT) {
		pack->next = server->packs;
		server->packs = pack;
		server->packs_kept++;
		pack = NULL;
	}
	pthread_mutex_unlock(&server->pack_lock);
	if (pack)
		pack_free(pack);
	atomic_fetch_sub_explicit(&server->busy, 1, memory_order_release);
}

void tn_ps_packs_free(tern_ps_server *server)
{
	while (server->packs) {
		ps_pack *pack = server->packs;

		server->packs = pack->next;
		pack_free(pack);
	}
}
