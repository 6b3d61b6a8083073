/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for whom: for each node the nodes that depend on it by data or control edges, once per edge.
 *
 *   next[first[i] .. first[i + 1])   dependents of node i
 *   pending[i]                       edges that end at node i = how often it is named in next
 */
#ifndef TN_GRAPH_DEPS_H
#define TN_GRAPH_DEPS_H

#include "graph/ir.h"

typedef struct tn_deps {
	uint32_t n_nodes;
	uint32_t *first; /* n_nodes + 1 */
	uint32_t *next;
	uint32_t *pending;
} tn_deps;

tern_status tn_deps_make(const tern_graph *graph, tn_deps *deps);
void tn_deps_free(tn_deps *deps);
/* TERN_E_INVALID names a node on a cycle. */
tern_status tn_deps_acyclic(const tern_graph *graph, const tn_deps *deps);

#endif
