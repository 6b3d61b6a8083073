/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot map: which servers there are, and which of them has which slot of keys.
 *
 *   server   a process by address and incarnation; its number is its place in the list and stays its own while a slot
 *            names it. A process that started anew is another incarnation, so another server: it has no rows
 *   slot     1/4096 of all keys: a primary that serves it, at most one backup that gets what the primary writes, and while
 *            it is moved, or its backup replaced, a next one that is copied to beside the backup
 *   epoch    of a slot: grows by each change of its primary or backup, so whoever speaks of an older one is late
 *   next     has an epoch of its own from the same numbers; when it has everything it is the backup, and the slot's epoch is
 *            the one that it had: for the two of them nothing changes. So a slot with two copies has two all the time
 *   version  of the map: grows by each change of anything
 *
 *   primary = NONE  =>  backup = NONE, flags = 0          nobody has the slot yet
 *   backup != primary;  IN_SYNC, MOVE  =>  backup != NONE
 *   next != NONE  =>  IN_SYNC, next is neither of the two, next_epoch > epoch
 *   a server finds that it has become primary: with FRESH it drops what it may have of the slot, else that is the slot
 *   a server that a slot names is not FREE
 *
 *                  .-- backup chosen --> SYNCING -- synced --> IN_SYNC --.  primary dead, or MOVE and handed over:
 *   primary alone -|                        |                     |      |-----> the backup is primary, alone; handed over:
 *                  '<----- dead, or lost ---'<--------------------'              with who was primary as backup, IN_SYNC
 *
 *   IN_SYNC -- next chosen --> IN_SYNC, next -- next synced --> IN_SYNC, next is the backup
 *                                 |- next dead, or lost --> IN_SYNC
 *                                 '- backup dead, or lost --> next is the backup, SYNCING; primary dead --> the backup, alone
 *
 * Only a backup that is IN_SYNC is ever made primary. Pure: no locks, no allocation, no clock.
 * Tests: tests/unit/cluster/map_test.c, fuzz/cluster_wire.c.
 */
#ifndef TN_CLUSTER_MAP_H
#define TN_CLUSTER_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

#define TN_CL_VERSION     3 /* of the map's encoding: with next ones */
#define TN_CL_VERSION_OLD 2 /* without; clients are given this one: they have no use for more */
#define TN_CL_SLOTS       4096u
#define TN_CL_SERVERS_MAX 256u
#define TN_CL_NONE        UINT16_MAX /* no server */

typedef enum tn_cl_state {
	TN_CL_FREE = 0,     /* the number is nobody's */
	TN_CL_UP = 1,       /* alive: its lease runs */
	TN_CL_DRAINING = 2, /* alive, and gives its slots away */
	TN_CL_DOWN = 3,     /* its lease ran out; the same incarnation may come back, with its rows */
	TN_CL_GONE = 4,     /* it will not come back: it said so, or its address has another incarnation */
	TN_CL_STATES
} tn_cl_state;

typedef struct tn_cl_server {
	uint64_t incarnation;
	uint8_t state; /* tn_cl_state */
	char address[TN_ADDRESS_MAX];
} tn_cl_server;

#define TN_CL_IN_SYNC 1u /* the backup has all that was acknowledged: it may be made primary */
#define TN_CL_MOVE \
	2u /* the backup is to be made primary as soon as it is in sync and the primary has let go */

#define TN_CL_FRESH 4u /* this primary has, or had, to begin with nothing: nobody is left who knew the slot */

typedef struct tn_cl_slot {
	uint16_t primary, backup, next; /* number of a server, or TN_CL_NONE */
	uint32_t epoch, next_epoch;     /* next_epoch: the last one that a next had; stays when it goes */
	uint8_t flags;
} tn_cl_slot;

#define TN_CL_SLOT_NONE \
	((tn_cl_slot){.primary = TN_CL_NONE, .backup = TN_CL_NONE, .next = TN_CL_NONE}) /* nobody's */

/* The epoch by which a server gets what the slot's primary writes; 0: it does not. */
static inline uint32_t tn_cl_copy_epoch(const tn_cl_slot *slot, uint16_t server)
{
	return server == TN_CL_NONE     ? 0
	       : slot->backup == server ? slot->epoch
	       : slot->next == server   ? slot->next_epoch
					: 0;
}
/* Who is to be primary when all that is under way is over. */
static inline uint16_t tn_cl_target(const tn_cl_slot *slot)
{
	if (!(slot->flags & TN_CL_MOVE))
		return slot->primary;
	return slot->next != TN_CL_NONE ? slot->next : slot->backup;
}

typedef struct tn_cl_map {
	uint64_t version;
	uint32_t servers; /* numbers in use are below */
	tn_cl_server server[TN_CL_SERVERS_MAX];
	tn_cl_slot slot[TN_CL_SLOTS];
} tn_cl_map;

static inline bool tn_cl_alive(const tn_cl_map *map, uint16_t server)
{
	return server != TN_CL_NONE &&
	       (map->server[server].state == TN_CL_UP || map->server[server].state == TN_CL_DRAINING);
}

/* The only writer of a state; who may go where says coord.c. */
static inline void tn_cl_server_set_state(tn_cl_server *server, uint8_t state)
{
	server->state = state;
}

/*
 * A list that nobody manages: n servers (1 to TN_CL_SERVERS_MAX), all up, slots in equal runs; with replicas 2 and n > 1
 * the next one is the backup, in sync. Addresses and incarnations are the caller's to set.
 */
void tn_cl_map_spread(tn_cl_map *map, uint64_t version, uint32_t n, uint32_t replicas);
/* Number of the server with this address and incarnation, FREE and GONE ones apart; TN_CL_NONE. */
uint16_t tn_cl_map_find(const tn_cl_map *map, const char *address, uint64_t incarnation);
/* The equations above. */
bool tn_cl_map_valid(const tn_cl_map *map);

/* Bytes of the largest map: a head, servers, a run for each slot. */
#define TN_CL_MAP_BYTES_MAX (16u + TN_CL_SERVERS_MAX * (11u + TN_ADDRESS_MAX) + TN_CL_SLOTS * 17u)

/*
 * u8 2 | u8 0 | u16 servers | u32 runs | u64 map version | servers x (address string | u64 incarnation | u8 state) |
 * runs x (u16 slots - 1 | u16 primary | u16 backup | u32 epoch | u8 flags)      equal slots that follow each other
 *
 * 3: runs x (u16 slots - 1 | u16 primary | u16 backup | u16 next | u32 epoch | u32 next epoch | u8 flags)
 *
 * version: TN_CL_VERSION, or _OLD, which leaves out what is next. Returns the bytes written; 0: they do not fit.
 */
uint64_t tn_cl_map_encode(uint8_t *out, uint64_t bytes, const tn_cl_map *map, unsigned version);
/* Of either version. False: not such a map, or not valid. *map is then of no use. */
bool tn_cl_map_decode(const void *data, uint64_t bytes, tn_cl_map *map);

#endif
