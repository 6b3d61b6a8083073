/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slow obvious twin of the kernels and the executor: evaluates a graph node by node in double precision
 * with plain index arithmetic. Knows no memory planning, no fusion, no order. An oracle for tests alone.
 *
 * Threads: one.
 */
#ifndef TERN_TESTS_REF_GRAPH_H
#define TERN_TESTS_REF_GRAPH_H

#include "graph/ir.h"

typedef struct ref_value {
	double *data; /* row-major; labels and counts as doubles too */
	uint64_t n;
	tern_shape shape; /* bound */
} ref_value;

typedef struct ref_graph {
	const tern_graph *graph;
	ref_value *values; /* per tensor */
	uint64_t batch;
	uint64_t step; /* for learning rates */
} ref_graph;

/* Allocates every tensor with the symbolic dim "batch" bound, fills variables and constants. */
void ref_open(ref_graph *ref, const tern_graph *graph, uint64_t batch);
void ref_close(ref_graph *ref);
/* Set a tensor from memory of its dtype. */
void ref_set(ref_graph *ref, uint32_t tensor, const void *data);
/* Evaluate all nodes below n_nodes that are no sources. Apply ops write their variables. */
void ref_run(ref_graph *ref, uint32_t n_nodes);

/* ref_nn.c: evaluates the node if it is one of the neural-network ops. */
bool ref_nn_node(const ref_graph *r, const tn_node *n);

/* max |a - b| / (1 + |b|) of f32 data a against the reference b. */
double ref_distance(const ref_value *b, const float *a);

/* Reproducible numbers in [-1, 1). */
typedef struct ref_rand {
	uint64_t s;
} ref_rand;
double ref_uniform(ref_rand *rand);
void ref_fill(ref_rand *rand, float *data, uint64_t n);

#endif
