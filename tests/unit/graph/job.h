/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole training job in one process, for tests: a small classifier on made-up data, each device of the
 * plan a thread, joined by the local transfer.
 *
 * Threads: job_run starts and joins one per device. Asserts happen in the caller's thread only.
 */
#ifndef TERN_TESTS_GRAPH_JOB_H
#define TERN_TESTS_GRAPH_JOB_H

#include "graph/exec.h"

#define JOB_INPUTS      12
#define JOB_CLASSES     4
#define JOB_ROWS        240 /* a multiple of all batches that tests use */
#define JOB_WORKERS_MAX 8

typedef struct job_params {
	tern_plan_params plan; /* workers >= 1; servers 0 = one process alone */
	uint64_t batch;        /* of all workers together */
	uint64_t steps;
	uint64_t eval_every; /* 0 = only after the last step */
	uint64_t lazy_seed;
	uint32_t slots;
	tn_backend backend;
	bool spin;
	uint32_t threads; /* of each device's executor */
	bool skewed;      /* worker w sleeps a little before each of its steps */
	/* stages: the device of a node of the model, or NULL: the plan's choice; evaluation is left out */
	int32_t (*place)(const tn_node *node);
} job_params;

typedef struct job_result {
	float *loss[JOB_WORKERS_MAX];      /* per step */
	int32_t *correct[JOB_WORKERS_MAX]; /* per step */
	float eval_loss[JOB_WORKERS_MAX];
	int32_t eval_correct[JOB_WORKERS_MAX];
	float *weights; /* all variables, in the order of the model */
	uint64_t n_weights;
	tn_exec_stats *stats; /* per device */
	uint32_t n_devices, n_edges;
} job_result;

void job_run(const job_params *params, job_result *result);
void job_free(job_result *result);
/* The model that jobs train. */
tern_graph *job_model(void);

#endif
