/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serial evaluator: a graph with known sizes, run node by node in one thread, without devices, transfers
 * or a plan. tern_program is its public face; the importer folds constants with it.
 *
 *   live range of a root   [step of the node that makes it, last step that reads it or a view of it]
 *   arena                  one block; roots whose live ranges overlap have disjoint places in it
 *   fixed                  variables that are not written, and constants: the graph's own bytes, never copied (but for
 *                          variables that the caller wants to write: tn_eval_own)
 *
 * Must not: allocate in tn_eval_run. Thread story: an evaluator belongs to one thread at a time; the graph
 * must outlive it unchanged. Tests: tests/unit/graph/eval_test.c.
 */
#ifndef TN_GRAPH_EVAL_H
#define TN_GRAPH_EVAL_H

#include "graph/kern.h"

typedef struct tn_eval tn_eval;

typedef struct tn_eval_params {
	tn_backend backend;
	uint32_t threads;      /* of the kernels, at least 1 */
	const uint64_t *sizes; /* one per symbol of the graph; UINT64_MAX: not known */
	const uint32_t *outs;  /* tensors that are wanted: what they don't need is not run */
	uint32_t n_outs;
	bool all; /* or rather every node */
	/* BatchNormTrain normalises by the running statistics that it has, Dropout lets everything through (kern.h) */
	bool inference;
} tn_eval_params;

/*
 * Set up memory and kernels. TERN_E_INVALID names a symbol without a size, or a node that sends;
 * TERN_E_UNSUPPORTED an op without a kernel; TERN_E_TOO_LARGE, TERN_E_NOMEM.
 */
tern_status tn_eval_create(const tern_graph *graph, const tn_eval_params *params, tn_eval **eval);
void tn_eval_destroy(tn_eval *eval);
/* Run once. The status is that of the first kernel that failed. */
tern_status tn_eval_run(tn_eval *eval);
/*
 * The memory of a tensor: a placeholder's to be filled before a run, a variable's, an output's to be read
 * after it (until the next run). NULL for a tensor that has no memory of its own between runs. Constants and
 * variables that no node writes are the graph's bytes: they must not be changed.
 */
void *tn_eval_data(tn_eval *eval, uint32_t tensor);
/* A variable's memory, to be written between runs: from now on the evaluator's own. TERN_E_NOMEM. */
tern_status tn_eval_own(tn_eval *eval, uint32_t variable, void **data);
/*
 * Variables from a checkpoint: the folder of a step, or a file (eval_restore.c). TERN_E_NOT_FOUND, TERN_E_SHAPE,
 * TERN_E_CORRUPT, TERN_E_IO, TERN_E_NOMEM.
 */
tern_status tn_eval_restore(tn_eval *eval, const tern_graph *graph, const char *path);
/* With the sizes put in. */
const tern_shape *tn_eval_shape(const tn_eval *eval, uint32_t tensor);
uint64_t tn_eval_bytes(const tn_eval *eval, uint32_t tensor);
/* Bytes that the evaluator allocated, and what they would be if nothing was reused. */
void tn_eval_memory(const tn_eval *eval, uint64_t *bytes, uint64_t *without_reuse);

#endif
