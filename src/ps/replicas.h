/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server whose slots have backups: what repl.h knows, with threads, calls and requests around it.
 *
 *   replicas   one per server that has a map from a coordinator; servers with a fixed list have none, and pay a branch
 *   stream     to one backup: an RPC client, one frame under way
 *   commit     an answer that waits until backups have what it speaks of
 *   copier     a thread that copies slots to new backups, lets go of slots that move, and drops what is not kept here
 *
 *   a write:   hold shared -> may it? -> order of the table -> commit begun -> engine, dedup -> images into streams
 *              -> order and hold let go -> the answer goes into the commit -> all streams answered -> judged, answered
 *   a read:    engine -> still ours, lease valid? -> if writes of the table are not over: a commit behind them
 *
 * Locks, in order: hold, a share's order, the steps' lock (steps.h), a stream's lock, commit_lock. No call of rpc but tern_rpc_call under any.
 * Threads: any. Tests: tests/unit/ps/replicas_test.c, tests/e2e/failover.c.
 */
#ifndef TN_PS_REPLICAS_H
#define TN_PS_REPLICAS_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/rpc.h>

#include "channel/ctx_slots.h"
#include "ps/repl_commit.h"

struct tern_ps_server;
struct ps_task;

/* What a server finds out and asks: the cluster's functions (cluster/cluster.h), or a test's. From any thread. */
typedef struct tn_replicas_env {
	bool (*lease)(void *arg);
	void (*synced)(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n);
	void (*released)(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n);
	void (*lost)(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n);
	void *arg;
} tn_replicas_env;

typedef struct ps_commit {
	tn_commit commit; /* first */
	struct ps_commit *next;
	struct ps_share *share;    /* with a reference, or NULL */
	tern_rpc_request *request; /* NULL: nobody asks */
	tern_status status;
	bool batch;        /* the answer is a tn_ps_answer, which may say: again, elsewhere */
	tn_commit_end end; /* with map_version: judged under the server's hold */
	uint64_t map_version;
	uint8_t *answer;
	uint64_t bytes, room;
} ps_commit;

typedef struct ps_stream {
	struct ps_replicas *replicas;
	struct ps_stream *older; /* of the same number, with another address */
	uint16_t peer;
	char address[TN_ADDRESS_MAX];
	tern_rpc *rpc;
	tern_op op;
	tn_ctx_timer timer;
	uint8_t answer[TN_REPL_ANSWER_MAX];
	pthread_mutex_t lock; /* the stream's: repl.out[peer] */
	pthread_cond_t room;  /* a frame was taken */
	bool busy;            /* a call, or the timer, is under way */
	bool stale;           /* it belongs to a stream that is over */
	bool broken;          /* something could not be put into it: its backup is of no use */
	uint64_t failing_ns;  /* since when; 0: it is not */
	tn_repl_told synced,
		released; /* by the last answer; dispatch's, which runs one completion at a time */
} ps_stream;

#define TN_PS_DROPPED 64u

typedef struct ps_replicas {
	struct tern_ps_server *server;
	tn_replicas_env env;
	bool linear;
	uint64_t patience_ns, retry_ns;
	tn_repl repl;
	_Atomic uint32_t streaming; /* streams with slots: none, and nothing waits for anybody */
	ps_stream *streams[TN_CL_SERVERS_MAX];
	pthread_mutex_t in_lock;
	tn_repl_in in;
	uint64_t dropped[TN_PS_DROPPED]; /* in_lock: tables */
	uint32_t dropped_next;
	pthread_mutex_t commit_lock;
	ps_commit *spare;
	_Atomic uint64_t waiting; /* commits that are not answered */
	pthread_mutex_t copy_lock;
	pthread_cond_t copy_work;
	pthread_t copier;
	bool copier_runs, stop, work;
	tn_ps_slots gone; /* to be dropped */
	_Atomic uint64_t frames, bytes;
	uint64_t load_ns;
	_Atomic uint32_t load[TN_CL_SLOTS]; /* keys since then, about: threads may overwrite each other's */
} ps_replicas;

/* TERN_E_NOMEM, TERN_E_LIMIT. The server serves nothing yet. */
tern_status tn_ps_replicas_open(struct tern_ps_server *server, const tn_replicas_env *env);
/* Stop: waits for what is under way to be answered, as far as that can be. */
void tn_ps_replicas_close(struct tern_ps_server *server);
/* A map from the coordinator, this server being number self; higher versions only, others are passed over. */
tern_status tn_ps_replicas_map(struct tern_ps_server *server, const tn_cl_map *map, uint16_t self);

/* Keys per second of each slot since the last call (cluster/cluster.h). One caller at a time. */
void tn_ps_replicas_load(struct tern_ps_server *server, uint32_t load[TN_CL_SLOTS]);

/* ---- for batches; replicas != NULL ---- */

/* Hold is shared. May it write now? Takes the table's order, begins t->commit. False: the answer says why, nothing is
   held. */
bool tn_ps_replicas_enter(struct ps_task *t);
/* Keys were written, as `kind` says: images go into the streams. status: of the push. */
void tn_ps_replicas_wrote(struct ps_task *t, tn_repl_kind kind, const uint64_t *keys, uint64_t n,
			  tern_status status);
/* What was known, all of it or a part, is told: t->commit waits as a read does, and for what it writes. */
void tn_ps_replicas_known(struct ps_task *t);
/* Lets go of the table's order. */
void tn_ps_replicas_leave(struct ps_task *t);
/* tn_table_pull, where rows that come into being go to the backups. */
tern_status tn_ps_replicas_pull(struct ps_task *t, const uint64_t *keys, uint64_t n, const tn_pull *how,
				void *rows, const uint32_t *places, uint8_t *found, tn_pull_result *result);
/* Rows were read. False: they must not be told, the answer says why. t->commit: the answer has to wait. */
bool tn_ps_replicas_read(struct ps_task *t);
/* The answer of t->commit. more_bytes: as tn_ps_reply. */
void tn_ps_replicas_reply(struct ps_task *t, tern_status status, const void *answer, uint64_t bytes,
			  bool batch);

/* ---- for steps that are summed (round.h); hold is shared ---- */

/*
 * *commit (NULL, here and below: nobody has to be told) of what is done now, in that queue; share: whose it is, or NULL.
 * request may be NULL. reader: it waits for all that began before it. False: no memory.
 */
bool tn_ps_replicas_step(ps_replicas *r, tn_commits *queue, struct ps_share *share, tern_rpc_request *request,
			 const tn_ps_slots *slots, bool reader, ps_commit **commit);
/* Some of what it tells was done before: it waits for that, and for its own. */
void tn_ps_replicas_waits(ps_replicas *r, ps_commit *commit);
/* Keys that got the sum of a step: images, and that it was done in their slots. Order held. */
void tn_ps_replicas_summed(ps_replicas *r, struct ps_share *share, ps_commit *commit,
			   const tn_steps_work *work, const uint64_t *keys, uint64_t n, tern_status status);
/* Gradients were staged; slots were closed. The steps' lock is held. */
void tn_ps_replicas_staged(ps_replicas *r, ps_commit *commit, const tn_ps_stage *stage,
			   const tn_ps_slots *slots);
void tn_ps_replicas_closed(ps_replicas *r, ps_commit *commit, const tn_steps_work *work, tern_status status);
/* Hold let go: what it is about has been written, this is its answer. */
void tn_ps_replicas_end(ps_replicas *r, ps_commit *commit, tern_status status, const void *answer,
			uint64_t bytes, bool batch);
/* Is there room for so many bytes in the streams? Looked at without their locks: about. */
bool tn_ps_replicas_room(const ps_replicas *r, uint64_t bytes);

/* ---- for tables ---- */

/*
 * What happened to a table, or a client, is told to all backups (hold is shared). share: the table; the request is to be
 * answered when they have it, by tn_ps_replicas_noted (hold let go). NULL: it need not wait, or there is no memory.
 */
ps_commit *tn_ps_replicas_note(struct tern_ps_server *server, const tn_repl_entry *e, struct ps_share *share,
			       tern_rpc_request *request);
/* A table was created. */
ps_commit *tn_ps_replicas_table(struct tern_ps_server *server, struct ps_share *share,
				tern_rpc_request *request);
void tn_ps_replicas_noted(struct tern_ps_server *server, ps_commit *commit, tern_rpc_request *request);
/* A table is to be dropped here, or created. Hold is not held. */
void tn_ps_replicas_dropped(struct tern_ps_server *server, uint64_t id, bool dropped);

/* ---- the other side ---- */

void tn_ps_on_replicate(tern_rpc_request *request, const void *args, uint64_t bytes, void *server);
void tn_ps_replicate(struct tern_ps_server *server, tern_rpc_request *request, const void *args,
		     uint64_t bytes);

/* ---- replicas_send.c, replicas_copy.c ---- */

/* The stream to a peer, made at need. Hold shared, the copier alone. NULL: no memory. */
ps_stream *tn_ps_stream_get(ps_replicas *r, uint16_t peer);
/* Lock held: send what is in it, if nothing is under way. */
void tn_ps_stream_kick(ps_stream *s);
/* Lock held: it can't be told everything: its slots are frozen until the map says that they have no backup. */
void tn_ps_stream_break(ps_stream *s);
/* Streams that have no slots by the new map: hold exclusively. What waited for them goes to the end of `over`. */
void tn_ps_streams_renew(ps_replicas *r, const tn_cl_map *map, tn_list *over);
void tn_ps_streams_free(ps_replicas *r);
/* Hold shared: what is to be said of each. Then, hold let go, it is said. */
void tn_ps_commits_judge(ps_replicas *r, tn_list *over);
void tn_ps_commits_answer(ps_replicas *r, tn_list *over);

tern_status tn_ps_copier_start(ps_replicas *r);
void tn_ps_copier_stop(ps_replicas *r);
void tn_ps_copier_wake(ps_replicas *r, const tn_ps_slots *gone);

#endif
