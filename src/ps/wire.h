/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients and servers of parameter tables say to each other, as arguments and answers of calls. Little endian;
 * docs/protocol/ps.md draws it, golden bytes pin it.
 *
 *   batch   one pull, push or erase at one server: a head, keys, perhaps places of rows, perhaps gradients
 *   map     who has which slot: cluster/map.h
 *   name    a table's name, where the schema is not sent
 *
 * Parsers are bounded and trust nothing: a count is held against the bytes that are there before it is used. Pure: no
 * locks, no allocation. Tests: tests/unit/ps/wire_test.c, fuzz/ps_wire.c.
 */
#ifndef TN_PS_WIRE_H
#define TN_PS_WIRE_H

#include <stdbool.h>

#include <tern/ps.h>

#include "base/limits.h"
#include "cluster/map.h"

#define TN_PS_VERSION     1
#define TN_PS_SLOTS       TN_CL_SLOTS
#define TN_PS_SERVERS_MAX TN_CL_SERVERS_MAX

/* Methods of calls ("ps" in ASCII in front). */
typedef enum tn_ps_method {
	TN_PS_MAP = 0x70730001,      /* nothing -> map */
	TN_PS_CREATE = 0x70730002,   /* schema -> nothing */
	TN_PS_DESCRIBE = 0x70730003, /* name -> schema */
	TN_PS_DROP = 0x70730004,     /* name -> nothing */
	TN_PS_LIST = 0x70730005,     /* name after which to go on, "" at first -> schemas, as many as fit */
	TN_PS_STATS = 0x70730006,    /* name -> statistics */
	TN_PS_PULL = 0x70730007,     /* batch -> answer; sink: where rows go */
	TN_PS_PUSH = 0x70730008,     /* batch -> answer; sink: gradients, to be read */
	TN_PS_ERASE = 0x70730009,    /* batch -> answer */
	TN_PS_BYE = 0x7073000a,      /* client id -> nothing: it will repeat nothing any more */
	TN_PS_LOAD = 0x7073000b,     /* name -> 4096 x u64: keys that each slot was asked for, about */
} tn_ps_method;

/* ---- batches ---- */

#define TN_PS_BATCH_BYTES  80u
#define TN_PS_ANSWER_BYTES 48u

#define TN_PS_PLACES 1u /* u32 per key: which row of the sink it is; else key i is row i */
#define TN_PS_FOUND  2u /* pull: say of each key whether it had a row */
#define TN_PS_INLINE 4u /* push: gradients follow the keys, packed; else they lie in sink 0 */
/* pull: rows come in the answer, packed, where they can't be reached row by row; there is room for them */
#define TN_PS_ANSWER_ROWS 8u
/* pull: keys lie in bags, and rows are one per bag; without PLACES and FOUND */
#define TN_PS_POOLED 16u

/*
 * u8 version | u8 how | u8 flags | u8 dtype | u32 lr scale (f32) | u64 table | u64 schema | u64 map version |
 * u64 count | u64 step | u64 client | u64 seq | u64 low water | u64 stride
 */
typedef struct tn_ps_batch {
	uint8_t how; /* pull: tern_unknown; push: tern_push_mode */
	uint8_t flags;
	uint8_t dtype; /* of rows or gradients outside of the table */
	float lr_scale;
	uint64_t table;       /* tn_ps_table_id */
	uint64_t schema;      /* tn_ps_schema_hash */
	uint64_t map_version; /* by which the client split its keys; 0: these are what was split again */
	uint64_t count;
	uint64_t step;
	uint64_t client, seq, low_water; /* push: exactly once (dedup.h) */
	uint64_t stride;                 /* bytes from row to row in sink 0 */
	/* decoded: they point into the message */
	const uint8_t *keys;   /* count x u64, of any alignment */
	const uint8_t *places; /* count x u32, NULL without TN_PS_PLACES */
	const uint8_t *grads;  /* NULL without TN_PS_INLINE */
	uint64_t grad_bytes;
	uint32_t pool, bags;     /* with TN_PS_POOLED: tern_pool, but not NONE */
	const uint8_t *bag_keys; /* bags x u32: keys of each, count in all */
} tn_ps_batch;

/* The head alone; keys, places and gradients are put behind it by whoever has them. */
void tn_ps_batch_encode(uint8_t out[TN_PS_BATCH_BYTES], const tn_ps_batch *batch);
/* What stands in front of the keys of bags: u32 pool | u32 bags. */
#define TN_PS_BAGS_BYTES 8u
/* row_bytes: of one gradient row, for TN_PS_INLINE; the caller looks the table up with tn_ps_batch_head first. */
bool tn_ps_batch_head(const void *args, uint64_t bytes, tn_ps_batch *batch);
bool tn_ps_batch_body(const void *args, uint64_t bytes, uint64_t row_bytes, tn_ps_batch *batch);

#define TN_PS_DIRECT 1u /* this server works in the client's memory: any places, gradients in a sink */
#define TN_PS_NEED_PACKED \
	2u /* nothing was done: sinks are not reached row by row here. Pull: no places, rows close;
				  push: gradients inline */
#define TN_PS_WRONG_SERVER 4u /* nothing was done: some key is not of this server; fetch the map */
#define TN_PS_DUPLICATE    8u /* push: all or a part of it had been applied */
#define TN_PS_RUNNING      16u /* nothing was done: another copy of the push is at work, or a save: ask again */
#define TN_PS_ROWS         32u /* pull: rows are in this answer, behind the found bits */

/* u8 version | u8 flags | u16 zero | i32 status | u64 map version | u64 found | u64 applied | u64 dropped | u64 refused |
   found bits | rows */
typedef struct tn_ps_answer {
	uint8_t flags;
	tern_status status; /* of the batch at the table: rows that were refused and the like */
	uint64_t map_version;
	uint64_t found, applied, dropped, refused;
	const uint8_t *found_bits; /* decoded: (count + 7) / 8 bytes, NULL if there are none */
	const uint8_t *rows;       /* decoded: count rows, NULL without TN_PS_ROWS */
} tn_ps_answer;

void tn_ps_answer_encode(uint8_t out[TN_PS_ANSWER_BYTES], const tn_ps_answer *answer);
/* count: keys that were asked for; found: with bits that say which have rows; row_bytes: of TN_PS_ROWS. */
bool tn_ps_answer_decode(const void *data, uint64_t bytes, uint64_t count, bool found, uint64_t row_bytes,
			 tn_ps_answer *answer);

/* ---- schemas, names, statistics ---- */

#define TN_PS_SCHEMA_BYTES 256u /* more than an encoded schema has, name included */

uint64_t tn_ps_schema_encode(uint8_t *out, uint64_t bytes, const tern_table_schema *schema);
/* The schema is well-formed bytes, no more: tern_table_schema_check judges it. *used: bytes that it had. */
bool tn_ps_schema_decode(const void *data, uint64_t bytes, tern_table_schema *schema, uint64_t *used);
/* Equal schemas have equal hashes: FNV-1a of the encoding. */
uint64_t tn_ps_schema_hash(const tern_table_schema *schema);
/* FNV-1a of the name. */
uint64_t tn_ps_table_id(const char *name);

uint64_t tn_ps_name_encode(uint8_t *out, uint64_t bytes, const char *name);
bool tn_ps_name_decode(const void *data, uint64_t bytes, char *name, uint64_t name_bytes);

#define TN_PS_STATS_BYTES 128u
void tn_ps_stats_encode(uint8_t out[TN_PS_STATS_BYTES], const tern_table_stats *stats);
bool tn_ps_stats_decode(const void *data, uint64_t bytes, tern_table_stats *stats);

#endif
