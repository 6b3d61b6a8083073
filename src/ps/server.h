/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a parameter server.
 *
 *   server  one per context: the map, tables, workers, buffers
 *   share   this server's part of one table: engine, and which pushes it holds (dedup.h)
 *   view    the map as of now, and the slots that are this server's; replaced whole, never changed, freed when nobody can
 *           look at it any more (base/epoch.h)
 *   bench   what one thread needs to work on a batch; the driver has one, each worker has one
 *   job     a batch that goes to a worker, with a copy of its arguments
 *   pack    registered memory from which rows are put
 *
 *   a batch:  head -> share, schema -> body -> owner of every key -> engine -> answer
 *             direct   (shm)   the engine writes into the caller's rows, or reads its gradients there
 *             packed           the engine writes into a pack, puts carry it over piece by piece, the answer overtakes them
 *
 *   share.refs = 1 while it is in the list + batches at work
 *   server.busy = jobs + packs under way: close waits for 0
 *
 * Locks: tables_lock (the list of shares), share->lock (dedup), work_lock (jobs), pack_lock. None is held while another
 * is taken, or over a call of rpc. hold: batches that write hold it shared while they apply; who wants all pushes to
 * stand still (a cut) takes it exclusively.
 * Tests: tests/unit/ps.
 */
#ifndef TN_PS_SERVER_H
#define TN_PS_SERVER_H

#include <pthread.h>

#include <tern/rpc.h>

#include "base/epoch.h"
#include "base/list.h"
#include "ps/dedup.h"
#include "ps/group.h"
#include "ps/load.h"
#include "ps/onesided.h"
#include "ps/replicas.h"
#include "ps/round.h"
#include "ps/saver.h"
#include "ps/state.h"
#include "ps/table.h"
#include "ps/wire.h"

#define TN_PS_TABLES_MAX  256u
#define TN_PS_PACKS_KEPT  16u
#define TN_PS_PACK_PIECES 16u

typedef struct ps_share {
	_Atomic uint32_t refs;
	bool alone; /* the server's */
	tn_table *engine;
	tn_ps_outside *outside; /* NULL: its memory is this process's own */
	tern_table_schema schema;
	uint64_t id, hash;
	uint64_t row_bytes; /* in the table's dtype */
	uint64_t cost;      /* bytes of a record: what working on one key touches */
	pthread_mutex_t lock;
	tn_ps_dedup *dedup;
	_Atomic uint64_t duplicates;
	tn_ps_load load;
	/* with backups alone (replicas.h) */
	pthread_mutex_t order;
	tn_commits commits; /* commit_lock */
	uint64_t *sorted;   /* order: keys by backup */
	uint64_t sorted_room;
} ps_share;

typedef struct ps_view {
	struct ps_view *older; /* view_lock: retired ones, until their stamp has passed */
	uint64_t stamp;
	tn_ps_slots mine; /* of which this server is primary */
	bool all;         /* every slot is */
	uint16_t index;   /* this server's number; TN_CL_NONE: it is not in the map */
	tn_cl_map map;
} ps_view;

typedef struct ps_bench {
	uint64_t *keys;
	uint32_t *places;
	uint8_t *found;
	uint64_t room; /* keys that fit */
	uint8_t *answer;
	uint64_t answer_room;
	float *scratch; /* produce.c */
	uint64_t scratch_bytes;
} ps_bench;

typedef struct ps_pack {
	struct ps_pack *next;
	struct tern_ps_server *server;
	uint8_t *memory;
	uint64_t bytes;
	tern_op op[TN_PS_PACK_PIECES];
	_Atomic uint32_t users; /* puts in flight + the thread that packs */
} ps_pack;

typedef struct ps_job {
	tn_list node;
	tern_rpc_request *request;
	tn_ps_method method;
	uint64_t bytes;
	_Alignas(16) uint8_t args[];
} ps_job;

struct tern_ps_server {
	tern_ctx *ctx;
	tn_ps_state *state;
	tn_ps_counters *counters;
	uint64_t budget_bytes, inline_bytes, lease_ns;
	bool alone;     /* its context has a single owner: no threads, and no locks for them */
	char *tier_dir; /* NULL: no table has a tier (tier.c) */
	int tier_lock;
	uint32_t tier_index;
	_Atomic uint64_t tier_serial;
	_Atomic(ps_view *) view;
	tn_epoch *view_epoch;      /* who looks at a view is inside */
	pthread_mutex_t view_lock; /* a new view; retired ones */
	ps_view *retired;
	pthread_rwlock_t hold;
	_Atomic bool held;     /* pushes are told to come again (saver.h); looked at under hold */
	ps_replicas *replicas; /* NULL: the list of servers is fixed */
	struct tn_cluster *cluster;
	tn_ps_saver saver;
	tn_ps_groups groups;
	_Atomic(struct tn_ps_follow *) follow; /* not NULL: this server is read only (follow.h) */
	tn_ps_rounds rounds;
	pthread_mutex_t tables_lock;
	ps_share *shares[TN_PS_TABLES_MAX];
	uint32_t share_count;
	ps_bench bench; /* the driver's */
	pthread_mutex_t pack_lock;
	ps_pack *packs;
	uint32_t packs_kept;
	pthread_mutex_t work_lock;
	pthread_cond_t work_ready;
	tn_list jobs;
	bool stopping;
	pthread_t *workers;
	uint32_t worker_count;
	_Atomic uint64_t busy;
};

/* The view as of now, until tn_ps_view_leave. A single owner sets no other meanwhile. */
static inline const ps_view *tn_ps_view_enter(tern_ps_server *server, unsigned *in)
{
	*in = server->alone ? 0 : tn_epoch_enter(server->view_epoch);
	return atomic_load_explicit(&server->view, memory_order_acquire);
}

static inline void tn_ps_view_leave(tern_ps_server *server, unsigned in)
{
	if (!server->alone)
		tn_epoch_leave(server->view_epoch, in);
}

/* ---- view.c ---- */

/* A view of the map, this server being number self in it; NULL: no memory. */
ps_view *tn_ps_view_new(const tn_cl_map *map, uint16_t self);
/* It is the view from now on, if its version is higher; else it is freed: false. Not from inside. */
bool tn_ps_view_set(tern_ps_server *server, ps_view *view);
void tn_ps_views_free(tern_ps_server *server);
/* The list of the parameters as a map. TERN_E_INVALID in words. */
tern_status tn_ps_view_list(tern_ctx *ctx, const tern_ps_server_params *params, ps_view **view);
void tn_ps_on_map(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);

/* ---- membership.c: servers that join others ---- */

/* Slots may have backups. The server serves nothing yet. */
tern_status tn_ps_membership_prepare(tern_ps_server *server);
/* Join. The server serves. */
tern_status tn_ps_membership_open(tern_ps_server *server, const tern_ps_server_params *params);
/* Nothing is acknowledged any more, no map comes. Harmless without a membership. */
void tn_ps_membership_leave(tern_ps_server *server);
void tn_ps_membership_close(tern_ps_server *server);

/* ---- shares.c ---- */

/* With a reference, or NULL. */
ps_share *tn_ps_share_get(tern_ps_server *server, uint64_t id);
void tn_ps_share_put(ps_share *share);
void tn_ps_shares_free(tern_ps_server *server);
/* A share that nobody sees yet, with one reference. server NULL: its rows are in memory alone. TERN_E_NOMEM and what the engine refuses. */
tern_status tn_ps_share_new(tern_ps_server *server, const tern_table_schema *schema, ps_share **share);
/* Into the list, with its reference. TERN_E_EXISTS, _LIMIT, _BUDGET. */
tern_status tn_ps_share_add(tern_ps_server *server, ps_share *share);
/* Made, in the list; TERN_OK too if it is there as wanted. *made: with a reference, if it was made and made is not
   NULL. */
tern_status tn_ps_share_create(tern_ps_server *server, const tern_table_schema *schema, ps_share **made);
/* Rows of these slots, and what is known of pushes in them, are no more. */
void tn_ps_share_drop_slots(ps_share *share, const tn_ps_slots *slots);
/* Out of it. False: there is none of that name. */
bool tn_ps_share_drop(tern_ps_server *server, const char *name);
void tn_ps_on_create(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_on_describe(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_on_drop(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_on_list(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_on_load(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_on_stats(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_on_bye(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);

/* ---- batch.c ---- */

/* Work on a batch in this thread, or hand it to a worker, and answer. */
void tn_ps_serve(tern_ps_server *server, tern_rpc_request *request, tn_ps_method method, const void *args,
		 uint64_t bytes);
/* In this thread whatever it takes. */
void tn_ps_work_on(tern_ps_server *server, ps_bench *bench, tern_rpc_request *request, tn_ps_method method,
		   const void *args, uint64_t bytes);

/* What a batch is about: filled step by step. */
typedef struct ps_task {
	tern_ps_server *server;
	ps_bench *bench;
	tern_rpc_request *request;
	ps_share *share;
	const ps_view *view;
	tn_ps_batch batch;
	const uint64_t *keys;   /* aligned */
	const uint32_t *places; /* aligned, or NULL */
	uint64_t rows;          /* that a pull sends: one per key, or per bag */
	uint64_t next_key;      /* produce.c: of the next bag */
	uint64_t row_bytes;     /* outside of the table */
	uint64_t stride;
	const tn_ps_slots *slots; /* that keys are in: some, or all of the view */
	tn_ps_answer answer;
	ps_commit *commit; /* the answer waits for backups */
	bool read;         /* a pull: what it read is told if this is still the server to tell it */
	tn_ps_slots some;  /* the last: not cleared for those who don't need it */
} ps_task;

void tn_ps_reply(ps_task *t, uint64_t more_bytes);
void tn_ps_refuse(ps_task *t, tern_status status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Are the keys this server's, by the newest map? Inside of the view's epoch. */
bool tn_ps_still_owned(ps_task *t);
/* A batch that writes: may it, now? True: hold is shared, and with backups the order of the table is taken. False: the
   answer says why not. */
bool tn_ps_write_begin(ps_task *t);
void tn_ps_write_end(ps_task *t);
bool tn_ps_bench_reserve(ps_bench *bench, uint64_t keys);
/* Room for an answer of so many bytes. */
bool tn_ps_bench_answer(ps_bench *bench, uint64_t bytes);
void tn_ps_bench_free(ps_bench *bench);

/* ---- produce.c ---- */

/* Before the first rows of a pull. False: no memory. */
bool tn_ps_produce_begin(ps_task *t);

/*
 * Rows first .. first + n - 1 of a pull into `to`, in the order of first. TERN_E_SHAPE, TERN_E_UNSUPPORTED: nothing was
 * done. positions: not with pooled or int8 rows.
 */
tern_status tn_ps_produce(ps_task *t, uint64_t first, uint64_t n, uint8_t *to, uint64_t stride,
			  const uint32_t *positions, tn_pull_result *result);

/* How the engine is asked for the rows of a pull. */
tn_pull tn_ps_pull_how(const ps_task *t);

/* Did the engine do what it could? Then the rows are there, and the status is for the caller. */
static inline bool tn_ps_rows_written(tern_status status)
{
	return status != TERN_E_SHAPE && status != TERN_E_UNSUPPORTED;
}

/* ---- pull.c, push.c: decoded, its keys owned; they answer ---- */

void tn_ps_pull(ps_task *t);
void tn_ps_push(ps_task *t);
void tn_ps_erase(ps_task *t);

/* ---- pack.c ---- */

/* NULL: no memory. */
ps_pack *tn_ps_pack_get(tern_ps_server *server, uint64_t bytes);
/* A user less; the last one lets go of it. */
void tn_ps_pack_put(ps_pack *pack);
void tn_ps_packs_free(tern_ps_server *server);

/* ---- tier.c ---- */

/* path NULL: none. TERN_E_IN_USE, TERN_E_IO. */
tern_status tn_ps_tier_open(tern_ps_server *server, const char *path, uint32_t index);
/* No table is open any more. Harmless if there is none. */
void tn_ps_tier_close(tern_ps_server *server);
/* tn_table_env.open_tier; arg is the server. */
tern_status tn_ps_tier_of_table(void *arg, const tern_table_schema *schema, uint64_t image_bytes,
				tn_tier **tier);

/* ---- work.c ---- */

tern_status tn_ps_work_start(tern_ps_server *server, uint32_t workers);
/* Ends when all jobs are done. */
void tn_ps_work_stop(tern_ps_server *server);
/* A copy of the arguments waits for a worker. False: no memory. */
bool tn_ps_work_hand(tern_ps_server *server, tern_rpc_request *request, tn_ps_method method, const void *args,
		     uint64_t bytes);

#endif
