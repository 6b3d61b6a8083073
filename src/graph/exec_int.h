/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between exec.c (life, feeds, fetches), exec_prog.c (set-up of a program), exec_run.c (the scheduler) and exec_comm.c (what
 * goes through the transfer).
 *
 *   chain.left  = nodes of the chain that are not done in this step
 *   node.pending = edges from nodes of the program that are not done in this step
 *   tensor.left = readers of a received or joined tensor that are not done; at 0 its slots go back
 *   root.posted = sends that read the root's memory now; an op that writes it waits for 0
 *   root.busy   = an op that writes the root's memory was given out and is not finished; no send may read it
 *
 * A node that waits is in exactly one place: in `fresh` or `waiting` (the captain's: sends, receives, joins, and ops that
 * write memory which is sent or has several writers), in a member's queue, or posted to the captain. Everything but
 * `pending`, the kernel and its in/out arrays is the captain's alone.
 */
#ifndef TN_GRAPH_EXEC_INT_H
#define TN_GRAPH_EXEC_INT_H

#include <stdatomic.h>

#include "graph/crew.h"
#include "graph/deps.h"
#include "graph/exec.h"
#include "graph/exec_trace.h"

typedef struct exec_tensor {
	void *data; /* roots only; NULL until fed or received */
	uint32_t root;
	uint64_t offset;  /* where it begins in the memory of its root */
	uint32_t readers; /* of a root: inputs of active nodes that are this memory */
	uint32_t left;
	uint32_t posted;  /* of a root */
	bool busy;        /* of a root */
	bool pinned;      /* received and an output port: kept until the next step */
	tern_shape shape; /* bound */
	uint64_t bytes;
} exec_tensor;

typedef struct exec_rows exec_rows; /* exec_rows.c */

/* Why a node was posted to the captain. */
typedef enum exec_post { EXEC_READY, EXEC_DONE, EXEC_FAILED } exec_post;

typedef struct exec_node {
	tn_kern *kern;
	exec_rows *rows;  /* of PullRows and PushRows */
	void **in, **out; /* arrays for the kernel, filled before each run */
	_Atomic uint32_t pending;
	uint32_t pending_init;
	exec_post post;
	uint32_t member;           /* who ran it, ... */
	uint64_t start_ns, end_ns; /* ... and when */
	uint32_t chain;
	bool comm;     /* Send, Recv, JoinRecv, rows of tables: the captain's */
	bool guarded;  /* writes memory that others may be reading or writing: the captain gives it out */
	bool active;   /* executed in this program: not a source, not pruned */
	bool posted;   /* a send that must see its source free before it is done has been posted */
	uint64_t runs; /* TRAIN: of an op that writes a variable: steps in which it has run */
	uint32_t next_writer; /* of such an op: another one of the same variable, in a ring */
} exec_node;

typedef struct exec_chain {
	uint32_t first, n; /* in chain_nodes, in node order */
	uint32_t left;
	uint32_t rank; /* the first need of what it sends: lower ones go first */
	uint64_t step, target;
} exec_chain;

/* A node that waits for the captain, in the order in which they are tried: sends and receives by need, ops by their chain's. */
typedef struct exec_wait {
	uint64_t key;
	uint32_t node;
} exec_wait;

#define TN_EXEC_DIMS     16
#define TN_EXEC_VARIANTS 64   /* programs of other sizes that are kept */
#define TN_EXEC_PARTS    1024 /* micro-batches, at most, of a symbol that a received shape has a share of */

/* Memory of a root in all programs of a kind. */
typedef struct exec_room {
	uint32_t owned; /* index in owned */
	uint64_t bytes; /* 0: none yet */
} exec_room;

typedef struct exec_prog {
	bool exists;
	tn_prog_id id;
	uint64_t sizes[TN_EXEC_DIMS]; /* of dims; 0 = unknown */
	exec_tensor *tensors;
	exec_node *nodes;
	exec_chain *chains;
	uint32_t n_chains, open_chains; /* open: target not reached */
	uint32_t *chain_nodes;
	uint32_t n_active;
	exec_wait *waiting; /* by key; all have capacity for all nodes */
	uint32_t *fresh;    /* ready since `waiting` was last looked at */
	uint32_t *laid;     /* given out, but not run before an interruption */
	uint32_t n_waiting, n_fresh, n_laid;
	uint32_t out;    /* guarded ops that are given out */
	uint32_t ready;  /* counts ops that became ready: the order among those of one rank */
	void **pointers; /* all in/out arrays */
} exec_prog;

/* An end of an edge, found by the node that uses it. */
typedef struct exec_end {
	tn_xfer_end *end;
	const tn_edge *edge;
	uint32_t node; /* Send or Recv */
	bool is_send;
	bool posted; /* send: a tensor is out, its source is root */
	uint64_t posted_ns, posted_step;
	uint32_t root;
	const void *held; /* recv: the polled tensor */
	tern_shape shape; /* dynamic: of the held one */
	bool consumed;    /* recv: a TRAIN step has used it, it is kept for a port only */
} exec_end;

struct tn_exec {
	const tern_plan *plan;
	const tern_graph *graph;
	uint32_t device;
	tn_xfer *xfer;
	tn_exec_params params;
	tn_kern_ctx *kern;
	tn_deps deps;
	exec_end *ends; /* of all edges of this device */
	uint32_t n_ends;
	uint32_t *end_of; /* per node: index in ends, or TN_NONE */
	void **fixed;     /* per tensor: memory of variables and constants, shared by the programs */
	bool *registered; /* per tensor: root whose memory comes from the transfer */
	void **owned;     /* allocations: plain first, then those of the transfer */
	uint32_t n_owned;
	bool *owned_by_xfer;
	void *scratch;                        /* of all members, scratch_room each */
	uint64_t scratch_bytes, scratch_room; /* what kernels want, what there is */
	uint32_t scratch_owned;
	const char *dims[TN_EXEC_DIMS]; /* symbols with sizes; names live as long as the plan */
	uint32_t n_dims;
	exec_room *room[TN_PROG_COUNT]; /* [tensors] */
	exec_prog *variants[TN_PROG_COUNT];
	uint32_t n_variants[TN_PROG_COUNT];
	uint32_t pushes, pushes_per_step; /* PushRows: started so far; the last of a step ends it */
	bool learns;                      /* sizes come with received tensors: one step at a time */
	uint64_t plain_bytes, registered_bytes;
	exec_prog progs[TN_PROG_COUNT];
	bool started;
	bool broken;
	atomic_bool cancel;
	tn_crew *crew;
	exec_prog *running; /* the program whose nodes the crew runs */
	atomic_bool failed; /* whoever sets it leaves status and text */
	tern_status failure;
	char failure_text[512];
	tn_exec_stats stats;
	tn_exec_trace trace;
};

/* Where a tensor is; NULL until it is fed or received. */
static inline void *tn_exec_data(const exec_prog *p, uint32_t tensor)
{
	const exec_tensor *t = &p->tensors[tensor];
	char *root = p->tensors[t->root].data;

	return root ? root + t->offset : NULL;
}

/* exec.c */
tern_status tn_exec_alloc(tn_exec *exec, uint64_t bytes, bool registered, void **ptr);

/* Memory that is owned[index] becomes longer, elsewhere, and zeroed. Nothing reads it. */
tern_status tn_exec_grow(tn_exec *exec, uint32_t index, uint64_t old_bytes, uint64_t bytes);

/* exec_bind.c */
/* The symbols with sizes, from plan and params, into progs' sizes. */
tern_status tn_exec_dims(tn_exec *exec);
tern_status tn_exec_bind_shape(const tn_exec *exec, const uint64_t *sizes, const tn_tensor *tensor,
			       tern_shape *bound);
/* Memory for a root, which may be that of others too; then where it is, in a program whose rooms are all there. */
tern_status tn_exec_room(tn_exec *exec, tn_prog_id id, uint32_t tensor, uint64_t bytes);
void tn_exec_refresh(const tn_exec *exec, exec_prog *prog);
/* Before a step: sizes that a received tensor brings. */
tern_status tn_exec_bind_received(tn_exec *exec, tn_prog_id id, uint64_t deadline_ns);
void tn_exec_variants_free(tn_exec *exec);

/* exec_prog.c: of prog->id with prog->sizes. */
tern_status tn_exec_prog_make(tn_exec *exec, exec_prog *prog);
/* Memory that shares its buffer with other tensors inside a step, as the plan says. */
static inline bool tn_exec_shared(const tn_exec *exec, uint32_t tensor)
{
	const tn_device *d = &exec->plan->devices[exec->device];

	return d->buffer && d->buffer[tensor] != TN_NONE;
}
void tn_exec_prog_free(exec_prog *prog, uint32_t n_nodes);

/* exec_rows.c: PullRows and PushRows of a program; TERN_AGAIN while the store is at work. */
tern_status tn_exec_rows_make(const tn_exec *exec, exec_prog *prog, uint32_t node);
tern_status tn_exec_rows_run(tn_exec *exec, exec_prog *prog, uint32_t node, uint64_t step);
void tn_exec_rows_free(exec_rows *rows);
uint32_t tn_exec_rows_pushes(const tn_exec *exec);

/* exec_comm.c: TERN_OK: done. TERN_AGAIN: later. */
tern_status tn_exec_send(tn_exec *exec, exec_prog *prog, uint32_t node, uint64_t step);
tern_status tn_exec_recv(tn_exec *exec, exec_prog *prog, uint32_t node, uint64_t step);
void tn_exec_join(tn_exec *exec, exec_prog *prog, uint32_t node);
/* May the op write its memory now? Asks for sends of it that are on their way. */
tern_status tn_exec_writable(tn_exec *exec, exec_prog *prog, uint32_t node);
/* An op that is given out writes it, or does not any more. */
void tn_exec_mark_busy(tn_exec *exec, exec_prog *prog, uint32_t node, bool busy);
/* The node is done with its inputs: slots that nobody reads any more go back. */
tern_status tn_exec_was_read(tn_exec *exec, exec_prog *prog, uint32_t node);
tern_status tn_exec_test_send(tn_exec *exec, exec_end *end);
tern_status tn_exec_test_posted(tn_exec *exec, bool *some);
tern_status tn_exec_release(tn_exec *exec, exec_end *end);
tern_status tn_exec_poll(tn_exec *exec, exec_end *end, uint64_t step);
/* Stale synchronous: other workers are too far behind for this send. */
bool tn_exec_too_far_ahead(const tn_exec *exec, const exec_prog *prog, uint32_t node, uint64_t step);

/* exec_run.c: until no chain is open. */
tern_status tn_exec_run_prog(tn_exec *exec, exec_prog *prog, uint64_t deadline_ns);
/* For the crew. */
void tn_exec_run_task(void *exec, uint32_t member, uint32_t node);
/* n more steps of every chain; only when none is open. */
void tn_exec_open_steps(tn_exec *exec, exec_prog *prog, uint64_t n);
/* The sends that run before step 0. */
tern_status tn_exec_prologue(tn_exec *exec, uint64_t deadline_ns);
tern_status tn_exec_wait_posted(tn_exec *exec, uint64_t deadline_ns);
/* Wait until an end holds its next tensor. */
tern_status tn_exec_hold(tn_exec *exec, exec_end *end, uint64_t deadline_ns);

#endif
