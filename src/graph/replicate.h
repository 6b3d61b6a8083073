/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between replicate.c (the job: variables, gradients, optimiser) and pipeline.c (a worker's copy of the model).
 *
 *   stage      of a worker: one device; a model that is not split has one. Nodes of the model have their
 *              stage as device
 *   forward    nodes of the model below n_forward; the others came with the gradients
 *   batched    what depends on a fed tensor: there is one copy per micro-batch, of all else one per worker
 *   unit       the batched nodes of a stage that are forward, or not, of one micro-batch
 */
#ifndef TN_GRAPH_REPLICATE_H
#define TN_GRAPH_REPLICATE_H

#include "graph/plan.h"

typedef struct tn_replica {
	const tern_plan_params *params;
	uint32_t stages, micro;
	tern_graph *model;  /* with gradients */
	tern_graph *tables; /* sparse.c: a Variable for each table; NULL: there are none */
	uint32_t n_forward;
	tern_graph *placed;
	uint32_t n_vars;
	uint32_t *var;  /* per variable: tensor in model */
	uint32_t *grad; /* per variable: tensor in model: its gradient, or what ApplyEma averages */
	float *ema;     /* per variable: momentum of its ApplyEma; below 0: it is trained */
	tn_variable *vars;
	tn_part *parts;
	uint32_t n_parts;
	uint32_t *part_var;    /* per part: tensor in placed */
	uint32_t *worker_grad; /* per (worker, variable): tensor in placed, summed over micro-batches */
} tn_replica;

static inline int32_t tn_stage_device(const tn_replica *r, uint32_t worker, uint32_t stage)
{
	return (int32_t)(r->params->servers + worker * r->stages + stage);
}

/* sparse.c: variables that are rows of tables leave var, grad and ema. */
tern_status tn_sparse(tn_replica *replica);

/* pipeline.c: the copy of the model with its ports, and worker_grad. */
tern_status tn_replicate_worker(tn_replica *r, uint32_t worker);

#endif
