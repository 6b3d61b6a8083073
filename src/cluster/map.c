/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slot maps: made, checked, encoded. Pure. Threads: any. Tests: tests/unit/cluster/map_test.c, fuzz/cluster_wire.c.
 */
#include "cluster/map.h"

#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"

#define SLOT_FLAGS (TN_CL_IN_SYNC | TN_CL_MOVE | TN_CL_FRESH)

void tn_cl_map_spread(tn_cl_map *map, uint64_t version, uint32_t n, uint32_t replicas)
{
	TN_ASSERT(n > 0 && n <= TN_CL_SERVERS_MAX);
	memset(map, 0, sizeof(*map));
	map->version = version;
	map->servers = n;
	for (uint32_t i = 0; i < n; i++)
		tn_cl_server_set_state(&map->server[i], TN_CL_UP);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		uint32_t owner = (uint32_t)((uint64_t)i * n / TN_CL_SLOTS);
		bool two = replicas > 1 && n > 1;

		map->slot[i] = (tn_cl_slot){.primary = (uint16_t)owner,
					    .backup = (uint16_t)(two ? (owner + 1) % n : TN_CL_NONE),
					    .next = TN_CL_NONE,
					    .epoch = 1,
					    .flags = two ? TN_CL_IN_SYNC : 0};
	}
}

uint16_t tn_cl_map_find(const tn_cl_map *map, const char *address, uint64_t incarnation)
{
	for (uint32_t i = 0; i < map->servers; i++) {
		const tn_cl_server *s = &map->server[i];

		if (s->state != TN_CL_FREE && s->state != TN_CL_GONE && s->incarnation == incarnation &&
		    strcmp(s->address, address) == 0)
			return (uint16_t)i;
	}
	return TN_CL_NONE;
}

static bool names(const tn_cl_map *map, uint16_t server)
{
	return server == TN_CL_NONE || (server < map->servers && map->server[server].state != TN_CL_FREE);
}

static bool slot_valid(const tn_cl_map *map, const tn_cl_slot *slot)
{
	if (!names(map, slot->primary) || !names(map, slot->backup) || !names(map, slot->next) ||
	    (slot->flags & ~SLOT_FLAGS))
		return false;
	if (slot->next != TN_CL_NONE && (!(slot->flags & TN_CL_IN_SYNC) || slot->next == slot->primary ||
					 slot->next == slot->backup || slot->next_epoch <= slot->epoch))
		return false;
	if (slot->backup == TN_CL_NONE)
		return (slot->flags & ~TN_CL_FRESH) == 0 && (slot->flags == 0 || slot->primary != TN_CL_NONE);
	return slot->primary != TN_CL_NONE && slot->primary != slot->backup;
}

bool tn_cl_map_valid(const tn_cl_map *map)
{
	if (map->servers > TN_CL_SERVERS_MAX)
		return false;
	for (uint32_t i = 0; i < map->servers; i++)
		if (map->server[i].state >= TN_CL_STATES)
			return false;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (!slot_valid(map, &map->slot[i]))
			return false;
	return true;
}

/* ---- bytes ---- */

static bool slot_equal(const tn_cl_slot *a, const tn_cl_slot *b)
{
	return a->primary == b->primary && a->backup == b->backup && a->epoch == b->epoch &&
	       a->flags == b->flags && a->next == b->next && a->next_epoch == b->next_epoch;
}

static uint32_t put_runs(tn_writer *w, const tn_cl_map *map, bool next)
{
	uint32_t runs = 0;

	for (uint32_t i = 0, end; i < TN_CL_SLOTS; i = end, runs++) {
		const tn_cl_slot *slot = &map->slot[i];

		for (end = i + 1; end < TN_CL_SLOTS && slot_equal(slot, &map->slot[end]);)
			end++;
		tn_put_u16(w, (uint16_t)(end - i - 1));
		tn_put_u16(w, slot->primary);
		tn_put_u16(w, slot->backup);
		if (next)
			tn_put_u16(w, slot->next);
		tn_put_u32(w, slot->epoch);
		if (next)
			tn_put_u32(w, slot->next_epoch);
		tn_put_u8(w, slot->flags);
	}
	return runs;
}

uint64_t tn_cl_map_encode(uint8_t *out, uint64_t bytes, const tn_cl_map *map, unsigned version)
{
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	TN_ASSERT(version == TN_CL_VERSION || version == TN_CL_VERSION_OLD);
	tn_put_u8(&w, (uint8_t)version);
	tn_put_u8(&w, 0);
	tn_put_u16(&w, (uint16_t)map->servers);
	tn_put_u32(&w, 0);
	tn_put_u64(&w, map->version);
	for (uint32_t i = 0; i < map->servers; i++) {
		tn_put_str(&w, map->server[i].address);
		tn_put_u64(&w, map->server[i].incarnation);
		tn_put_u8(&w, map->server[i].state);
	}
	tn_patch_u32(&w, 4, put_runs(&w, map, version == TN_CL_VERSION));
	return w.bad ? 0 : w.at;
}

static bool get_runs(tn_reader *r, uint32_t runs, tn_cl_map *map, bool next)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < runs; i++) {
		uint32_t n = tn_get_u16(r) + 1u;
		tn_cl_slot slot = {.primary = tn_get_u16(r)};

		slot.backup = tn_get_u16(r);
		slot.next = next ? tn_get_u16(r) : TN_CL_NONE;
		slot.epoch = tn_get_u32(r);
		slot.next_epoch = next ? tn_get_u32(r) : 0;
		slot.flags = tn_get_u8(r);
		if (r->bad || n > TN_CL_SLOTS - at)
			return false;
		while (n--)
			map->slot[at++] = slot;
	}
	return at == TN_CL_SLOTS;
}

bool tn_cl_map_decode(const void *data, uint64_t bytes, tn_cl_map *map)
{
	uint8_t version, zero;
	uint32_t runs;
	tn_reader r;

	memset(map, 0, sizeof(*map));
	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	zero = tn_get_u8(&r);
	map->servers = tn_get_u16(&r);
	runs = tn_get_u32(&r);
	map->version = tn_get_u64(&r);
	if (r.bad || (version != TN_CL_VERSION && version != TN_CL_VERSION_OLD) || zero ||
	    map->servers > TN_CL_SERVERS_MAX || runs > TN_CL_SLOTS)
		return false;
	for (uint32_t i = 0; i < map->servers; i++) {
		tn_get_str(&r, map->server[i].address, sizeof(map->server[i].address));
		map->server[i].incarnation = tn_get_u64(&r);
		tn_cl_server_set_state(&map->server[i], tn_get_u8(&r));
	}
	return get_runs(&r, runs, map, version == TN_CL_VERSION) && tn_reader_done(&r) &&
	       tn_cl_map_valid(map);
}
