/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session runs one device of a plan (one parameter server or one worker of a training job) over the links
 * of a context. Every process of the job makes the same plan and opens its own session.
 *
 *   open     memory and kernels; a server is ready for its workers from here on
 *   start    connect (workers dial servers, a stage of a worker those below it; who is dialed waits for the others by
 *            their context's name), then move the initial values
 *   step     workers: one training or evaluation step; run: servers
 *   finish   orderly end: who dialed closes its links, who was dialed waits for that
 *
 * Thread rules: one thread at a time per session, but for tern_session_cancel. A call that fails because a
 * peer died names it in tern_detail(), and the session is only good for tern_session_close then.
 */
#ifndef TERN_SESSION_H
#define TERN_SESSION_H

#include <tern/ctx.h>
#include <tern/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_session tern_session;

/* Zero it, then set what differs. */
typedef struct tern_session_params {
	const tern_plan *plan; /* must outlive the session */
	tern_role role;
	uint32_t index;             /* in the role */
	uint64_t batch;             /* rows per worker and training step: symbolic dim "batch" */
	uint64_t eval_batch;        /* rows per evaluation step; 0 = no evaluation */
	uint32_t kernel_threads;    /* 0 = 1; part of what decides the bits of a result */
	int spin;                   /* poll without sleeping */
	int stub;                   /* move nothing (what a step costs without communication): ctx NULL */
	const char *const *servers; /* workers: "host:port" of each server of the plan */
	uint64_t steps_done;        /* training steps before this session, of a job that is resumed */
	const char *
		restore; /* with them: this device's file of tern_session_save. Devices without variables: any */
	uint64_t trace_events; /* the latest events to keep for tern_session_trace; 0 = none */
	/* A worker whose model is split over devices: which of them, and "host:port" of each one below it. No evaluation. */
	uint32_t stage;
	const char *const *stages;
	/*
	 * Workers, of plans with sparse variables: a context of its own for their rows, which outlives the session. Its name is
	 * the device's name and "/tables"; nobody dials it. Their servers keep the tables beside their part of the graph.
	 */
	tern_ctx *tables;
} tern_session_params;

/* The context's name must be the device's name in the plan ("server0", "worker3", "worker3/stage1"): peers go by it. */
tern_status tern_session_open(tern_ctx *ctx, const tern_session_params *params, tern_session **session);
/* Blocks until all peers are there and the first tensors are exchanged. TERN_E_DEADLINE names who is missing. */
tern_status tern_session_start(tern_session *session, uint64_t timeout_ns);

/*
 * Feed an input port of the training (eval 0) or evaluation (1) graph: data is used in place by the following
 * steps and must not change during one. bytes must be exactly those of the port's shape.
 */
tern_status tern_session_feed(tern_session *session, int eval, const char *port, const void *data,
			      uint64_t bytes);
/*
 * The size of a symbolic dim from the next step on, for inputs whose lengths differ from batch to batch: one of the plan's
 * dims, or "batch" where no transfer depends on it. What was fed with other sizes is forgotten: feed again. Sizes that come with received tensors need
 * no call. Sizes that were bound before cost no allocation. TERN_E_NOT_FOUND, TERN_E_STATE, TERN_E_NOMEM.
 */
tern_status tern_session_bind(tern_session *session, int eval, const char *symbol, uint64_t size);
/* One step. Evaluation steps use the newest weights that were received and send nothing. */
tern_status tern_session_step(tern_session *session, int eval);
/* Servers: n further steps of every variable. */
tern_status tern_session_run(tern_session *session, uint64_t n);
/* Copy what an output port holds after a step. bytes must be exactly those of the port's shape. */
tern_status tern_session_fetch(tern_session *session, int eval, const char *port, void *data, uint64_t bytes);
/* Copy a variable that this device owns (servers; local sessions). TERN_E_NOT_FOUND. */
tern_status tern_session_variable(tern_session *session, const char *name, void *data, uint64_t bytes);

/*
 * Variables and optimiser state of this device into a safetensors file: whole on disk, or not there. Between steps; for
 * servers between two calls of tern_session_run. A job that is resumed from the files of all its servers goes on bit by
 * bit as it would have. TERN_E_STATE, TERN_E_IO.
 */
tern_status tern_session_save(tern_session *session, const char *path);

typedef struct tern_session_stats {
	uint64_t steps;
	uint64_t run_ns;                     /* in step and run */
	uint64_t compute_ns;                 /* in kernels */
	uint64_t comm_ns;                    /* calling the transfer: posts, polls, copies, serialising */
	uint64_t wait_ns;                    /* with nothing to do but wait for tensors */
	uint64_t bytes_sent, bytes_received; /* rows of tables and their keys too */
	uint64_t tensors_sent, tensors_received;
	uint64_t writes; /* one-sided writes of whole tensors by this side */
	uint64_t copies; /* passes over tensors in memory beyond those writes */
	uint64_t copy_bytes;
	uint64_t rows_pulled, rows_pushed; /* of tables */
} tern_session_stats;
/* What the session did since it was opened, or since tern_session_stats_reset(). */
void tern_session_stats_get(tern_session *session, tern_session_stats *stats);
/* Start counting from here on (bytes, copies and times). */
void tern_session_stats_reset(tern_session *session);

/*
 * What this device did, as a Chrome trace (a JSON array; Perfetto and chrome://tracing show it): kernels, transfers, tensors
 * under way, waits. Times are those of the monotonic clock, so traces of one host fit together. Needs trace_events.
 * TERN_E_STATE, TERN_E_IO.
 */
tern_status tern_session_trace(tern_session *session, const char *path);
/* For how long nothing could go on here because of a device's tensors or slots, its alone or others' too. */
tern_status tern_session_waited(tern_session *session, uint32_t device, uint64_t *ns);

/* One node of the device's training graph. Strings live as long as the plan. */
typedef struct tern_node_cost {
	const char *name, *op;
	uint64_t runs;
	uint64_t ns; /* in the kernel; of sends and receives in calls of the transfer */
} tern_node_cost;
/* Every node that ran, in the order of the graph. */
void tern_session_profile(tern_session *session, void (*fn)(const tern_node_cost *cost, void *arg),
			  void *arg);

/* "shm", "tcp", or "shm,tcp" if peers are reached in different ways; "none" without peers. */
const char *tern_session_transport(const tern_session *session);

/*
 * Orderly end. Servers wait until every worker closed, and stages for those above them: TERN_E_DEADLINE names who did
 * not. Servers send their variables after the last step too: workers take them here, if no evaluation step did.
 */
tern_status tern_session_finish(tern_session *session, uint64_t timeout_ns);
/* Interrupt a step, run or start in another thread: it returns TERN_E_CANCELED. Signal handlers too. */
void tern_session_cancel(tern_session *session);
/* Frees everything; links that are up are closed. NULL is allowed. */
void tern_session_close(tern_session *session);

#ifdef __cplusplus
}
#endif

#endif
