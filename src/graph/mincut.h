/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a directed acyclic graph into parts of about the same weight that no edge leads back from, so that they
 * can be the stages of a pipeline, and that few bytes cross.
 *
 * Thread story: pure. Tests: tests/unit/graph/stage_test.c.
 */
#ifndef TN_GRAPH_MINCUT_H
#define TN_GRAPH_MINCUT_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

typedef struct tn_cut_edge {
	uint32_t from, to; /* from < to: vertices are numbered in a topological order */
	uint64_t bytes;
} tn_cut_edge;

typedef struct tn_cut_problem {
	uint32_t parts;
	uint32_t n;
	const uint64_t *weight;
	const int32_t *fixed; /* the part that a vertex must be in, -1: free */
	uint32_t n_edges;
	const tn_cut_edge *edges;
} tn_cut_problem;

/* part[i] for each vertex. A pure function. TERN_E_NOMEM. */
tern_status tn_mincut(const tn_cut_problem *problem, uint32_t *part);
/* Bytes of the edges whose ends are in different parts. */
uint64_t tn_cut_bytes(const tn_cut_problem *problem, const uint32_t *part);

#endif
