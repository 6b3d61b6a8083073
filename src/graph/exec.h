/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: runs the graph of one device of a plan over a transfer, step by step, in the caller's
 * thread.
 *
 *   program  the graph, or what its output ports need of it, with all dims bound: TRAIN is the whole graph,
 *            EVAL the part that computes the output ports that need no Apply (other batch size, no sends)
 *   chain    nodes of a program that are joined by edges; chains know nothing of each other. A worker's
 *            graph is one chain, a server's has one per variable (sync) or per variable and worker (async)
 *   step     of a chain: each of its nodes once. run() lets chains run ahead of each other by any number of
 *            steps, so that a server applies one variable while another's gradients are still on the way
 *
 * Scheduling (exec_run.c): a crew of threads that steal ready kernels from each other; a receive whose tensor is not there, a
 * send without a slot and an op whose output buffer is still being sent wait without blocking anybody; sends and receives are
 * tried before kernels, in the order in which what they move is needed. When there is nothing to run, the transfer's wait()
 * is called. All memory is there after create(); a step allocates nothing.
 *
 * Buffers: a variable's and a sent gradient's memory come from the transfer (registered memory) where the
 * plan says RdmaSend. A received tensor is used in its slot, which goes back after its last reader. In EVAL
 * received tensors stay held, so one set of weights serves any number of evaluation steps; the next TRAIN
 * step uses the held ones and gives them back.
 *
 * Thread story: one thread at a time per executor, except cancel(), which any thread may call. Threads of its own (`threads`
 * - 1) run kernels while step() and run() last, and touch nothing of the caller's when these have returned.
 * Tests: tests/unit/graph/exec_test.c, train_test.c.
 */
#ifndef TN_GRAPH_EXEC_H
#define TN_GRAPH_EXEC_H

#include "graph/kern.h"
#include "graph/plan.h"
#include "graph/store.h"
#include "graph/xfer.h"

typedef struct tn_exec tn_exec;

typedef enum tn_prog_id { TN_PROG_TRAIN, TN_PROG_EVAL, TN_PROG_COUNT } tn_prog_id;

/* Zero it, then set what differs. */
typedef struct tn_exec_params {
	tn_backend backend;
	uint32_t kernel_threads; /* 0 = 1; part of what decides the bits of a result */
	uint32_t
		threads; /* that run kernels side by side, the caller's among them; 0 = 1; decides no bits (exec_threads.h) */
	bool spin;             /* poll instead of blocking in the transfer's wait() */
	uint64_t batch;        /* size of the symbolic dim "batch" in TRAIN; 0 if the graph has none */
	uint64_t eval_batch;   /* the same in EVAL; 0 = no EVAL program */
	uint64_t trace_events; /* the latest events that are kept for a trace; 0 = none */
	tn_store *store;       /* of plans with tables; outlives the executor */
} tn_exec_params;

/*
 * Make an executor for a device of a plan: opens an end for each edge, allocates buffers, fills variables,
 * prepares kernels. The plan must outlive it; the transfer stays the caller's and is closed after destroy().
 * TERN_E_INVALID (a symbolic dim without a size), TERN_E_UNSUPPORTED (a dynamic edge over a transfer without, op without kernel),
 * TERN_E_NOMEM, and what the transfer says.
 */
tern_status tn_exec_create(const tern_plan *plan, uint32_t device, tn_xfer *xfer,
			   const tn_exec_params *params, tn_exec **exec);
void tn_exec_destroy(tn_exec *exec);

/*
 * Connect with all peers, then send what they need before the first step (initial values of variables).
 * Blocks until both are done or deadline_ns (monotonic, TN_TIME_NEVER = none). Once.
 */
tern_status tn_exec_start(tn_exec *exec, uint64_t deadline_ns);

/*
 * Feed an input port from the next step on: data is used in place and must stay valid and unchanged during
 * steps. bytes must be what the bound shape takes. TERN_E_NOT_FOUND, TERN_E_SHAPE.
 */
tern_status tn_exec_feed(tn_exec *exec, tn_prog_id prog, const char *port, const void *data, uint64_t bytes);

/*
 * The size of a symbolic dim of the plan (tern_plan_params.dims, or "batch") from the next step on. What was fed with other
 * sizes is forgotten. Sizes that come with received tensors (dynamic edges) need no call. A size that was bound before costs
 * no allocation; one larger than all before waits for what is still on its way, until deadline_ns. TERN_E_NOT_FOUND,
 * TERN_E_STATE (within a step), TERN_E_NOMEM.
 */
tern_status tn_exec_bind(tn_exec *exec, tn_prog_id prog, const char *symbol, uint64_t size,
			 uint64_t deadline_ns);

/*
 * One step of every chain. TERN_E_DEADLINE (names what is waited for) and TERN_E_CANCELED leave the step
 * where it is: call again to go on with it. Errors of the transfer or a kernel are final: the detail names
 * device, step and node, later calls return TERN_E_STATE.
 */
tern_status tn_exec_step(tn_exec *exec, tn_prog_id prog, uint64_t deadline_ns);
/* n further steps of every chain of TRAIN, as a server does. Same returns; called again with the same
 * meaning: after an interruption the steps that are left are done, n is ignored then. */
tern_status tn_exec_run(tn_exec *exec, uint64_t n, uint64_t deadline_ns);
/*
 * After the last step: wait for the variables that their owners send after it too, unless a step of EVAL took them.
 * Owners would take a peer that ends without them for dead.
 */
tern_status tn_exec_take_last(tn_exec *exec, uint64_t deadline_ns);
/* Wait until everything that was sent has left its buffer. */
tern_status tn_exec_drain(tn_exec *exec, uint64_t deadline_ns);
/* Interrupt the step that runs, or the next one. Any thread; async-signal-safe if the transfer's wake is. */
void tn_exec_cancel(tn_exec *exec);

/* What an output port holds after a step; valid until the next step. */
typedef struct tn_fetched {
	const void *data;
	tern_dtype dtype;
	tern_shape shape; /* bound */
	uint64_t bytes;
} tn_fetched;
tern_status tn_exec_fetch(tn_exec *exec, tn_prog_id prog, const char *port, tn_fetched *fetched);
/* A variable's memory on this device, to read between steps. TERN_E_NOT_FOUND. */
tern_status tn_exec_variable(tn_exec *exec, const char *name, tn_fetched *fetched);

/*
 * Variables and optimiser state of this device to a safetensors file, between steps: whole on disk, or not there.
 * TERN_E_STATE, TERN_E_IO.
 */
tern_status tn_exec_save(tn_exec *exec, const char *path);
/* The same back, between create() and start(); the training goes on as if `steps` steps had been done. A device without
   variables reads nothing. TERN_E_NOT_FOUND, TERN_E_SHAPE, TERN_E_CORRUPT name what does not fit. */
tern_status tn_exec_load(tn_exec *exec, const char *path, uint64_t steps);

/* Since create(), or since the last call with reset. Bytes and copies are the transfer's. */
typedef struct tn_exec_stats {
	uint64_t steps;      /* finished steps of chain 0 of TRAIN */
	uint64_t run_ns;     /* inside step(), run() and drain(), and sending the initial values */
	uint64_t compute_ns; /* in kernels, of all threads */
	uint64_t comm_ns;    /* in post, test, poll and release of the transfer */
	uint64_t wait_ns;    /* in its wait(), or polling with nothing to do */
	uint64_t waits;
	tn_xfer_counters xfer; /* never reset */
} tn_exec_stats;
void tn_exec_stats_get(tn_exec *exec, tn_exec_stats *stats, bool reset);

/* Sums per node and waits per device since create(), and the events that were kept. Between steps. */
const struct tn_exec_trace *tn_exec_trace_get(const tn_exec *exec);
/* The device's graph, whose nodes the trace names. */
const tern_graph *tn_exec_graph(const tn_exec *exec);

/* Bytes of buffers that the executor allocated, and of those from the transfer. For reports and tests. */
void tn_exec_memory(const tn_exec *exec, uint64_t *plain_bytes, uint64_t *registered_bytes);
/* Bytes of the buffers that tensors of TRAIN share, part of the plain ones, and of those tensors without sharing. */
void tn_exec_sharing(const tn_exec *exec, uint64_t *shared_bytes, uint64_t *unshared_bytes);

#endif
