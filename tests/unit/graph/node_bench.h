/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph of one node on placeholders of any type, run by its kernel and by the twin in tests/ref.
 */
#ifndef TERN_TESTS_NODE_BENCH_H
#define TERN_TESTS_NODE_BENCH_H

#include "graph/kern.h"
#include "ref/ref_graph.h"

#define NODE_OPERANDS_MAX 8

typedef struct node_bench {
	tern_graph *graph;
	const tn_node *node;
	uint32_t n_in;
	uint32_t in[NODE_OPERANDS_MAX];
	void *data[NODE_OPERANDS_MAX]; /* exactly as many bytes as the tensor has, for the sanitizers */
	void *out[TN_OUTS_MAX];
	ref_rand *rand;
} node_bench;

void node_open(node_bench *b, ref_rand *rand);
void node_close(node_bench *b);
/* An input of random elements lo + i * (hi - lo) / steps; whole numbers if steps is hi - lo. */
void node_input(node_bench *b, tern_dtype dtype, const tern_shape *shape, double lo, double hi);
/* The i-th element of input k. */
double node_get(tern_dtype dtype, const void *data, uint64_t i);
void node_put(tern_dtype dtype, void *data, uint64_t i, double x);
uint64_t node_elements(const tern_shape *shape);
/* Adds the node; the status of the shape rule. */
tern_status node_add(node_bench *b, tn_op op, const tn_attr *attrs, uint32_t n_attrs);
tern_status node_run(node_bench *b);
/* Runs it and its twin; every element of every output must agree within tolerance * (1 + |value|). Closes. */
void node_check(node_bench *b, double tolerance);

/* 0 to n - 1 */
uint32_t node_below(ref_rand *rand, uint32_t n);
/* A shape of up to `rank_max` dims of up to dim_max, now and then empty. */
tern_shape node_shape(ref_rand *rand, uint32_t rank_min, uint32_t rank_max, uint32_t dim_max);

#endif
