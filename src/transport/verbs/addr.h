/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node tells a peer about its rails: the address of a device (at hello) and of a lane (when it is made).
 * Both have one form, "vba2": for each rail its port, GIDs, MTU, reads and the memory slot of its keys; a
 * lane's also a queue pair of each rail. A lane's address says all that wiring needs, so an address that moved
 * since hello heals with the next lane.
 *
 *   bytes       7 + sum over rails of (16 + 16 x GIDs) <= TN_BLOB_MAX
 *   GIDs        at most 8 / rails for each, in order of preference
 *
 * Both sides compute the same pair of rails from the two lane addresses (pair.c).
 * Pure. Threads: any. Tests: tests/unit/transport/test_verbs_wire.c, test_verbs_pair.c; fuzz/verbs_addr.c.
 */
#ifndef TN_TRANSPORT_VERBS_ADDR_H
#define TN_TRANSPORT_VERBS_ADDR_H

#include <stdbool.h>

#include <infiniband/verbs.h>

#include "transport/transport.h"

#define TN_VB_RAILS_MAX TN_MEM_DEVICES_MAX
#define TN_VB_GIDS_MAX  8u /* in one address, all rails together */

typedef struct tn_vb_rail_addr {
	uint8_t rail;      /* its number at the owner */
	bool healthy;      /* else on probation: better than nothing */
	bool ethernet;     /* RoCE */
	uint8_t mtu;       /* enum ibv_mtu */
	uint8_t rd_atomic; /* reads that it serves at a time */
	uint8_t mem_slot;  /* which rkey of its owner's keys is this rail's */
	uint16_t lid;
	uint32_t qpn, psn; /* 24 bits; of a lane, else 0 */
	uint8_t gid_count;
	union ibv_gid gids[TN_VB_GIDS_MAX];
} tn_vb_rail_addr;

typedef struct tn_vb_addr {
	bool lane;
	bool active;  /* lanes: the side that dials */
	uint8_t turn; /* lanes, active: which of equal pairs */
	uint8_t count;
	tn_vb_rail_addr rails[TN_VB_RAILS_MAX];
} tn_vb_addr;

/* Most GIDs of one rail in an address of so many rails. */
static inline uint32_t tn_vb_gids_each(uint32_t rails)
{
	return rails ? TN_VB_GIDS_MAX / rails : 0;
}

/* ---- wire.c ---- */
void tn_vb_addr_put(const tn_vb_addr *addr, tn_blob *blob);
/* lane: which of the two is expected. False: refused, *addr is undefined. */
bool tn_vb_addr_get(const tn_blob *blob, bool lane, tn_vb_addr *addr);

#define TN_VB_HELLO_BYTES 40
/* The hello that the side with the lane address `from` sends to the one with `to`. */
tern_status tn_vb_hello_make(const uint8_t *token, const tn_blob *from, const tn_blob *to,
			     uint8_t hello[TN_VB_HELLO_BYTES]);

/* ---- pair.c ---- */

/* Indexes into rails[] and gids[] of the two addresses. */
typedef struct tn_vb_pair {
	uint8_t active, passive;
	uint8_t active_gid, passive_gid;
	uint8_t near_bits; /* that the two GIDs have in common, in steps of 8 (IPv4) or 16 */
} tn_vb_pair;
/* The pair of rails for a lane. TERN_E_UNREACHABLE with a text: no rail of one can reach one of the other. */
tern_status tn_vb_pair_choose(const tn_vb_addr *active, const tn_vb_addr *passive, tn_vb_pair *pair);

bool tn_vb_gid_is_v4(const union ibv_gid *gid);
void tn_vb_gid_text(const union ibv_gid *gid, char *text, size_t bytes);

#endif
