/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves and restores: what the client that leads one and the servers say to each other, and the server's side.
 *
 *   request   u8 version | u8 op | u16 path bytes | u32 server | u64 token | u64 number | u64 rate | path
 *   answer    of WRITE and RESTORE: JSON; of the others nothing
 *
 *              number                       path            does
 *   HOLD       lease in ns                                  new pushes are told to come again; those at work end
 *   CUT        id of the cut before,                        a cut of every table, and of which pushes it holds; then
 *              0: all rows                                  pushes go on. rate 1: changes are remembered from here on
 *   WRITE      as of CUT                    directory       the cuts into files; {"files": [...], "tables": [...]}
 *   KEEP                                                    the leader is there still: WRITE, RESTORE and PREPARE go on
 *   END                                                     whatever was begun is over
 *   RESTORE    sequence                     checkpoints     tables and rows; {"rows": n, "map": version}
 *   PREPARE    id of the cut before                         ready for a cut of changes since then, which is safe on disk:
 *                                                           {"tables": [{"name", "follows": its changes are known}]}
 *   ACK        id                                           that cut is safe: what it gave may be forgotten
 *
 * A cut's id is the token of its save.
 *
 *   IDLE -HOLD-> HELD -CUT-> CUT -WRITE-> WRITING -> IDLE
 *        <- END, lease over (a leader that died) -
 *
 * One save at a time; `server` numbers the files. Must not: hold anything of the leader's beyond its lease.
 * Threads: handlers and timers run from dispatch; WRITE and RESTORE in a thread of their own. Tests:
 * tests/unit/ps/saver_test.c.
 */
#ifndef TN_PS_SAVER_H
#define TN_PS_SAVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <tern/rpc.h>

#include "base/os.h"
#include "channel/ctx_slots.h"
#include "ps/facts.h"
#include "ps/pace.h"
#include "ps/table.h"

#define TN_PS_SAVE         0x70730030u /* the method */
#define TN_PS_SAVE_VERSION 1u
#define TN_PS_SAVE_HEAD    32u
#define TN_PS_PATH_MAX     4096u
#define TN_PS_SAVE_MAX     (TN_PS_SAVE_HEAD + TN_PS_PATH_MAX)

typedef enum tn_ps_save_op {
	TN_SAVE_HOLD = 1,
	TN_SAVE_CUT,
	TN_SAVE_WRITE,
	TN_SAVE_END,
	TN_SAVE_RESTORE,
	TN_SAVE_PREPARE,
	TN_SAVE_ACK,
	TN_SAVE_KEEP,
} tn_ps_save_op;

typedef struct tn_ps_save_msg {
	tn_ps_save_op op;
	uint32_t server;
	uint64_t token, number, rate;
	char path[TN_PS_PATH_MAX];
} tn_ps_save_msg;

/* Returns the bytes; the path fits: the caller checked it. */
uint64_t tn_ps_save_encode(uint8_t out[TN_PS_SAVE_MAX], const tn_ps_save_msg *msg);
bool tn_ps_save_decode(const void *data, uint64_t bytes, tn_ps_save_msg *msg);

typedef enum tn_saver_state { TN_SAVER_IDLE, TN_SAVER_HELD, TN_SAVER_CUT, TN_SAVER_WORKING } tn_saver_state;

/* A table of the cut, with a reference to its share. */
typedef struct saver_table {
	struct ps_share *share;
	tn_cut *cut;
	bool changes; /* the cut has what changed, not all rows */
	tn_ps_facts facts;
} saver_table;

typedef struct tn_ps_saver {
	struct tern_ps_server *server;
	pthread_mutex_t lock;
	tn_saver_state state;
	uint64_t token;
	tn_ctx_timer lease;
	saver_table *tables;
	uint32_t table_count;
	uint64_t version;       /* of the map, since HOLD */
	tn_ps_slots mine;       /* at CUT: what is written */
	uint64_t owners, acked; /* who had which slot at CUT, at the last CUT that is on disk (a hash) */
	uint64_t lease_ns;      /* of a leader whose files are being written or read */
	/* the thread of WRITE and RESTORE */
	tn_thread thread;
	bool joinable;
	tern_rpc_request *request;
	tn_ps_save_msg msg;
	tn_pace pace;
	bool modest, stands_back; /* there is a rate; nothing but idle cores are taken for it */
	_Atomic bool stop;
} tn_ps_saver;

tern_status tn_ps_saver_open(tn_ps_saver *saver, struct tern_ps_server *server);
/* Ends what is under way; then none of it runs any more. Harmless if it was not opened. */
void tn_ps_saver_close(tn_ps_saver *saver);

#endif
