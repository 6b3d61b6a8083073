/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What servers, and those who look after them, say to the coordinator, as arguments and answers of calls. Little endian;
 * docs/protocol/cluster.md draws it.
 *
 * Parsers are bounded and trust nothing. Pure: no locks, no allocation. Tests: tests/unit/cluster/wire_test.c,
 * fuzz/cluster_wire.c.
 */
#ifndef TN_CLUSTER_WIRE_H
#define TN_CLUSTER_WIRE_H

#include <tern/status.h>

#include "cluster/coord.h"

#define TN_CL_METHOD      0x70730060u
#define TN_CL_MSG_VERSION 1u

typedef enum tn_cl_op {
	TN_CL_JOIN = 1,  /* address */
	TN_CL_RENEW = 2, /* facts, loads */
	TN_CL_WATCH = 3, /* answered when the map is newer than `version`, or after wait_ns */
	TN_CL_DRAIN = 4, /* server */
	TN_CL_UNDRAIN = 5,
	TN_CL_LEAVE = 6,
	TN_CL_GIVE_UP = 7,
	TN_CL_BALANCE = 8,
	TN_CL_PAUSE = 9,
	TN_CL_RESUME = 10,
	TN_CL_STATUS = 11, /* the map, and loads of servers */
	TN_CL_OPS
} tn_cl_op;

typedef struct tn_cl_load {
	uint16_t slot;
	uint32_t keys; /* a second */
} tn_cl_load;

/* u8 version | u8 op | u16 server | u32 maps | u64 incarnation | u64 seen | u64 map version | u64 wait ns | by op */
typedef struct tn_cl_msg {
	tn_cl_op op;
	uint16_t server;
	uint32_t
		maps; /* the newest version of maps that the sender reads; 0: 2. Who reads 2 alone refuses others */
	uint64_t incarnation;
	uint64_t seen;    /* the coordinator's time in the newest answer */
	uint64_t version; /* of the newest map */
	uint64_t wait_ns;
	char address[TN_ADDRESS_MAX];    /* JOIN: string */
	uint32_t fact_count, load_count; /* RENEW: u32 | u32 | facts | loads */
	const uint8_t *facts;            /* decoded: u16 slot | u8 what | u32 epoch */
	const uint8_t *loads;            /* decoded: u16 slot | u32 keys */
} tn_cl_msg;

/* What of the versions that this side writes somebody reads. */
static inline unsigned tn_cl_map_version(uint32_t maps)
{
	return maps >= TN_CL_VERSION ? TN_CL_VERSION : TN_CL_VERSION_OLD;
}

#define TN_CL_HEAD    40u
#define TN_CL_FACT    7u
#define TN_CL_LOAD    6u
#define TN_CL_MSG_MAX (TN_CL_HEAD + 8u + TN_CL_SLOTS * (TN_CL_FACT + TN_CL_LOAD) + TN_ADDRESS_MAX)

/* facts and loads are the caller's arrays here. Returns the bytes; 0: they do not fit. */
uint64_t tn_cl_msg_encode(uint8_t *out, uint64_t bytes, const tn_cl_msg *msg, const tn_coord_fact *facts,
			  const tn_cl_load *loads);
bool tn_cl_msg_decode(const void *data, uint64_t bytes, tn_cl_msg *msg);
tn_coord_fact tn_cl_msg_fact(const tn_cl_msg *msg, uint32_t i);
tn_cl_load tn_cl_msg_load(const tn_cl_msg *msg, uint32_t i);

/* u8 version | u8 zero | u16 server | i32 status | u64 now | u64 map version | u32 map bytes | u32 loads | map | u64 loads */
typedef struct tn_cl_answer {
	tern_status status; /* what the coordinator says; a text is in the call's detail if the call fails */
	uint16_t server;    /* number of who asked */
	uint64_t now;       /* the coordinator's time */
	uint64_t version;
	const uint8_t *map; /* NULL: no newer one */
	uint32_t map_bytes;
	const uint8_t *loads; /* STATUS: u64 keys a second of each server of the map */
	uint32_t load_count;
} tn_cl_answer;

#define TN_CL_ANSWER_HEAD 32u
#define TN_CL_ANSWER_MAX  (TN_CL_ANSWER_HEAD + TN_CL_MAP_BYTES_MAX + TN_CL_SERVERS_MAX * 8u)

/* The head; map and loads are put behind it by whoever has them. */
void tn_cl_answer_encode(uint8_t out[TN_CL_ANSWER_HEAD], const tn_cl_answer *answer);
bool tn_cl_answer_decode(const void *data, uint64_t bytes, tn_cl_answer *answer);

#endif
