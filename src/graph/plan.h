/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a model to one graph per device, in passes:
 *
 *   shard      which server holds which variable
 *   replicate  one big placed graph: variables and Apply nodes on servers, a copy of the model with its
 *              gradients on each worker; every node has a device, edges go wherever they go
 *   cut        a graph per device: what crosses devices becomes an edge of the plan with a Send and a Recv,
 *              one per (tensor, destination)
 *   hazards    within a device, readers of a variable come before the op that writes it
 *   analyse    static or dynamic, bytes, where the sent tensor's memory is, which copies that costs
 *   rewrite    Send/Recv become RdmaSend/RdmaRecv where the sender's memory can be registered
 *   priority   which edges' tensors are needed first
 *
 * replicate knows data parallelism, the others only placed graphs.
 *
 * The loop over steps is cut between Apply and the variable's next use: a server's step is "receive
 * gradients, apply, send the variable", and the sends run once more before step 0 with the initial values
 * (attribute prologue). So the server sends a variable as soon as it is updated, while the workers still
 * compute other gradients.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/plan_test.c, golden dumps in tests/golden/graph.
 */
#ifndef TN_GRAPH_PLAN_H
#define TN_GRAPH_PLAN_H

#include "graph/ir.h"

typedef struct tn_edge {
	char *name;                    /* the tensor's */
	uint32_t src, dst;             /* devices */
	uint32_t send_node, recv_node; /* in the graphs of src and dst */
	tern_dtype dtype;
	tern_shape shape;
	uint64_t bytes; /* of one tensor; of a dynamic edge what is expected, 0 if nothing is */
	uint32_t need;  /* priority.c: who needs it earlier has the smaller one */
	bool is_static;
	bool one_sided; /* RdmaSend/RdmaRecv, or the dynamic pair */
	/* received as a part of the tensor that the JoinRecv node `whole` of dst yields; whole_bytes 0: not */
	uint32_t whole;
	uint64_t whole_bytes, whole_offset;
	char *reason;
	char *site;           /* where the sent tensor's memory is allocated, and through what: for people */
	uint32_t site_tensor; /* that, in the graph of src: a root */
	uint32_t copies;
	const char *copy_reason;
} tn_edge;

typedef struct tn_device {
	char *name;
	tern_role role;
	uint32_t index;
	uint32_t stage; /* within the worker */
	tern_graph *graph;
	uint32_t *position; /* per node: in an order of the whole job that no edge leads back in */
	/* lifetime.c */
	uint32_t *
		buffer; /* per tensor that is a root: the buffer that it shares, or TN_NONE: memory of its own */
	uint32_t n_buffers;
	uint32_t *first_in;    /* per buffer: the first tensor that has it */
	uint32_t shared;       /* tensors in them */
	uint64_t shared_bytes; /* that they would take without, with the sizes that are expected */
	uint64_t buffer_bytes;
	uint32_t reuse_edges; /* control edges that were added for it */
} tn_device;

struct tern_plan {
	char *model;
	tern_plan_params params;
	uint64_t parameters, parameter_bytes;
	tn_device *devices; /* servers, then workers; or the local one */
	uint32_t n_devices;
	tn_edge *edges;
	uint32_t n_edges, cap_edges;
	/* Variables that are kept as rows of tables: Variable nodes, one a table, by number. NULL: none. */
	tern_graph *tables;
};

/* Rows that the device's nodes ask a table for in a step, with the sizes that are expected; as many travel at most. */
uint64_t tn_plan_rows(const tern_plan *plan, const tn_device *device, uint32_t table);

static inline uint32_t tn_plan_tables(const tern_plan *plan)
{
	return plan->tables ? plan->tables->n_nodes : 0;
}

/* What the spread over servers must know of a variable, and what it says. */
typedef struct tn_variable {
	tern_shape shape;
	uint32_t readers; /* devices that fetch it each step */
	uint64_t bytes, load;
	uint32_t first, parts; /* its parts, one at least */
} tn_variable;

typedef struct tn_part {
	uint32_t variable;
	uint32_t part, parts;
	uint32_t server; /* TN_NONE without servers */
} tn_part;

/*
 * shard.c: shape and readers of each variable -> the rest, and a new array of the parts, those of a variable
 * side by side. A pure function.
 */
tern_status tn_shard(tn_variable *vars, uint32_t n_vars, const tern_plan_params *params, tn_part **parts,
		     uint32_t *n_parts);

/*
 * stages.c: gives every node of a model its stage as its device. Nodes that have a device keep it, the others
 * are placed by a balanced minimum cut. TERN_E_INVALID names a node with a device that is no stage.
 */
tern_status tn_stages(tern_graph *model, const tern_plan_params *params, uint32_t stages);

/* replicate.c: the placed graph, and tern_plan.tables. Devices are numbered as in the plan. */
tern_status tn_replicate(const tern_graph *model, const tern_plan_params *params, tern_graph **placed,
			 tern_graph **tables);

/* optimise.c: what updates variables in a placed graph. */
typedef struct tn_update {
	tern_graph *placed;
	const tern_plan_params *params;
	uint32_t stages, micro; /* devices of a worker, micro-batches whose gradients are added */
	uint32_t n_vars;        /* variables, or parts of them */
	const uint32_t *var;    /* tensor, per variable */
	const uint32_t *device; /* per variable */
	const float *ema; /* per variable: momentum if it is a moving average, below 0 if it is trained */
	uint32_t *grad;   /* [worker][variable]: its gradient, or the value that is averaged; may change */
} tn_update;

static inline bool tn_update_ema(const tn_update *update, uint32_t v)
{
	return update->ema[v] >= 0.0f;
}

tern_status tn_optimise(tn_update *update);
tern_status tn_optimizer_check(const tern_optimizer *optimizer);

/* priority.c: the need of each edge of a plan that has graphs and positions. */
tern_status tn_priorities(tern_plan *plan);

/* lifetime.c: buffers of a device whose graph and positions are there; adds control edges. */
tern_status tn_lifetimes(const tern_plan *plan, tn_device *device);

/* cut.c: device graphs and edges into a plan whose devices have names but no graphs yet. */
tern_status tn_cut(const tern_graph *placed, tern_plan *plan);
/* Control edges from the readers of a variable's old value to the ops that write it. */
tern_status tn_hazards(tern_graph *graph);

/* analyse.c */
/* The size that the plan's params give a symbol; false: none. */
bool tn_plan_dim(const tern_plan *plan, const char *symbol, uint64_t *size, bool *varies);
tern_status tn_analyse(tern_plan *plan);
/* rewrite.c, part of analyse.c */
void tn_rewrite(tern_plan *plan);
/* "RdmaSend/RdmaRecv" ... */
const char *tn_edge_ops(const tn_edge *edge);

/*
 * The passes after replicate, for any graph whose nodes are all placed on devices 0..n_devices-1: what model
 * parallelism by annotation uses. Device names become "device0", ... with role LOCAL.
 */
tern_status tn_plan_placed(const tern_graph *placed, uint32_t n_devices, tern_comm comm, tern_plan **plan);

#endif
