/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between exec.c (life, feeds, fetches), exec_prog.c (set-up of a program) and exec_run.c (the scheduler).
 *
 *   chain.left  = nodes of the chain that are not done in this step
 *   node.pending = edges from nodes of the program that are not done in this step
 *   tensor.left = readers of a received or joined tensor that are not done; at 0 its slots go back
 *   root.posted = sends that read the root's memory now; an op that writes it waits for 0
 *   a node is in the queue at most once, so the queue never holds more than all nodes
 */
#ifndef TN_GRAPH_EXEC_INT_H
#define TN_GRAPH_EXEC_INT_H

#include <stdatomic.h>

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
	bool pinned;      /* received and an output port: kept until the next step */
	tern_shape shape; /* bound */
	uint64_t bytes;
} exec_tensor;

typedef struct exec_rows exec_rows; /* exec_rows.c */

typedef struct exec_node {
	tn_kern *kern;
	exec_rows *rows;  /* of PullRows and PushRows */
	void **in, **out; /* arrays for the kernel, filled before each run */
	uint32_t pending, pending_init;
	uint32_t chain;
	bool active;          /* executed in this program: not a source, not pruned */
	bool posted;          /* a send that must see its source free before it is done has been posted */
	uint64_t runs;        /* TRAIN: of an op that writes a variable: steps in which it has run */
	uint32_t next_writer; /* of such an op: another one of the same variable, in a ring */
} exec_node;

typedef struct exec_chain {
	uint32_t first, n; /* in chain_nodes, in node order */
	uint32_t left;
	uint64_t step, target;
} exec_chain;

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
	uint32_t *queue; /* ring of ready nodes, capacity a power of two */
	uint32_t queue_mask, queue_head, queue_len;
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
	void *scratch;
	uint64_t scratch_bytes, scratch_room;
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

/* exec_run.c: until no chain is open. */
tern_status tn_exec_run_prog(tn_exec *exec, exec_prog *prog, uint64_t deadline_ns);
/* n more steps of every chain; only when none is open. */
void tn_exec_open_steps(tn_exec *exec, exec_prog *prog, uint64_t n);
/* The sends that run before step 0. */
tern_status tn_exec_prologue(tn_exec *exec, uint64_t deadline_ns);
tern_status tn_exec_wait_posted(tn_exec *exec, uint64_t deadline_ns);
/* Wait until an end holds its next tensor. */
tern_status tn_exec_hold(tn_exec *exec, exec_end *end, uint64_t deadline_ns);

#endif
