/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that clients read where they lie in a server's memory (TERN_PULL_ONE_SIDED).
 *
 *   outside   at a server: the registered memory of a table that clients may read, as pieces with a key each
 *   beacon    a line of that memory which says whether it may be read: open, by which map, and whether a layout is old
 *   window    at a client: one table at one server. NONE -> ASKED -> MAPPING -> READY; again ASKED when the layout is old
 *
 *   a read:   lease not over -> an access begins (channel/direct.h: revocations wait for its end) -> the beacon is open, of
 *             the map by which the keys were split, mapped where it was -> rows -> the access ends -> lease not over
 *
 * The server's side of the bargain: the beacon is closed before any memory goes, keys end with the memory, and a
 * table's memory stays until the table goes. The lease is for a server that has been stopped: its beacon says what was.
 * Servers whose slots have backups grant none: their reads may have to wait for a backup (replicas.h).
 *
 * Must not be on the way of other operations. Threads: any. Tests: tests/unit/ps/onesided_test.c.
 */
#ifndef TN_PS_ONESIDED_H
#define TN_PS_ONESIDED_H

#include <stdatomic.h>
#include <stdbool.h>

#include <tern/mem.h>

#include "ps/table.h"

#define TN_PS_LAYOUT 0x70730070u /* the method: table, what is known -> layout */

typedef struct tn_ps_beacon {
	_Alignas(64) _Atomic uint64_t changes; /* of the layout */
	_Atomic uint64_t map_version;
	_Atomic uint64_t open;
} tn_ps_beacon;

/* ---- wire: onesided_wire.c. Pure ---- */

/* u8 version | u64 table id | u64 schema hash | u64 changes that are known, 0: none */
#define TN_PS_LAYOUT_ARGS_BYTES 25u
typedef struct tn_ps_layout_ask {
	uint64_t table, schema, known;
} tn_ps_layout_ask;
void tn_ps_layout_ask_encode(uint8_t out[TN_PS_LAYOUT_ARGS_BYTES], const tn_ps_layout_ask *ask);
bool tn_ps_layout_ask_decode(const void *args, uint64_t bytes, tn_ps_layout_ask *ask);

/*
 * u8 version | u8 whole | u64 lease ns | u64 map version | u64 changes | key of the beacon (64) |
 * whole: u32 head bytes | u32 stride | u32 shift | u32 depth + 1, 0: no directory | u32 pieces | u32 slabs |
 *        pieces x (key (64) | u64 bytes) | directory: 2^depth x (u32 piece | u32 page << 3 | pages) |
 *        slabs x (u32 piece | u32 places)
 *
 * A slab begins where its piece does.
 */
typedef struct tn_ps_piece {
	tern_key key;
	uint64_t bytes;
} tn_ps_piece;

typedef struct tn_ps_layout {
	uint64_t lease_ns, map_version, changes;
	tern_key beacon;
	bool whole; /* else nothing changed */
	bool has_dir;
	uint32_t head_bytes, stride, shift, depth, pieces, slabs;
	/* decoded: they point into the message */
	const uint8_t *piece_bytes, *dir_bytes, *slab_bytes;
} tn_ps_layout;

uint64_t tn_ps_layout_bytes(const tn_ps_layout *layout);
/* The head alone; pieces, directory and slabs are put behind it. Returns how many bytes. */
uint64_t tn_ps_layout_encode(uint8_t *out, uint64_t bytes, const tn_ps_layout *layout);
bool tn_ps_layout_decode(const void *data, uint64_t bytes, tn_ps_layout *layout);
#define TN_PS_PIECE_BYTES 72u
tn_ps_piece tn_ps_layout_piece(const tn_ps_layout *layout, uint32_t i);
/* Entries of directory (i < 2^depth) and slabs: two words each. */
void tn_ps_layout_pair(const uint8_t *at, uint64_t i, uint32_t pair[2]);

/* ---- servers: onesided_server.c ---- */

struct tern_ps_server;
struct tern_rpc_request;
typedef struct tn_ps_outside tn_ps_outside;

/* Memory for a table with TERN_TABLE_ONE_SIDED, and what its engine is given. NULL: no memory. */
tn_ps_outside *tn_ps_outside_new(tern_ctx *ctx, tn_table_env *env);
/* Nobody reads it any more; while the engine is still there. NULL is allowed. */
void tn_ps_outside_close(tn_ps_outside *outside);
/* After the engine. NULL is allowed. */
void tn_ps_outside_free(tn_ps_outside *outside);
/* It may be read by the map of that version. */
void tn_ps_outside_mapped(tn_ps_outside *outside, uint64_t map_version);
/* The server's map is another one, or it has a table more. */
void tn_ps_onesided_mapped(struct tern_ps_server *server);
void tn_ps_on_layout(struct tern_rpc_request *request, const void *args, uint64_t bytes, void *server);

/* ---- clients: onesided.c ---- */

struct ps_host;
struct ps_part;
typedef struct tn_ps_window tn_ps_window;

/* Read what can be read of a pull's part; true: that was all. Else its keys are those that are left. */
bool tn_ps_onesided_pull(struct ps_part *part);
/* A table's handle goes. */
void tn_ps_windows_free(tn_ps_window *windows);
/* As far as they look at this host, which goes; ps->lock held. */
void tn_ps_windows_forget(tn_ps_window **windows, const struct ps_host *host);

#endif
