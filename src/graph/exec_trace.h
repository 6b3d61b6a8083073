/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an executor did when: a ring of the latest events, sums per node, and for whom it waited how long. Recording costs
 * two looks at the clock per node; memory comes at creation.
 *
 * Thread story: the executor's thread. Tests: tests/e2e/train_trace_test.py.
 */
#ifndef TN_GRAPH_EXEC_TRACE_H
#define TN_GRAPH_EXEC_TRACE_H

#include <stdio.h>

#include "graph/plan.h"

typedef enum tn_event_kind {
	TN_EVENT_COMPUTE, /* a kernel */
	TN_EVENT_COMM,    /* a call of the transfer that got something done */
	TN_EVENT_FLIGHT,  /* a tensor from post to the source being free */
	TN_EVENT_WAIT,    /* nothing could go on; node: the first that waited */
	TN_EVENT_KINDS
} tn_event_kind;

typedef struct tn_event {
	uint64_t start_ns, end_ns, step;
	uint32_t node;
	tn_event_kind kind;
	uint32_t member; /* COMPUTE: of the executor's threads; 0: the caller's */
} tn_event;

typedef struct tn_node_cost {
	uint64_t runs; /* times that it was done */
	uint64_t ns;   /* kernels: computing; sends and receives: in the transfer */
} tn_node_cost;

typedef struct tn_exec_trace {
	tn_event *ring; /* NULL: no events */
	uint64_t mask, count;
	tn_node_cost *nodes;
	uint64_t *waited_ns; /* per device of the plan: it was waited for, alone or with others */
} tn_exec_trace;

/* events 0: sums alone. */
tern_status tn_exec_trace_init(tn_exec_trace *trace, uint64_t events, uint32_t nodes, uint32_t devices);
void tn_exec_trace_fini(tn_exec_trace *trace);

static inline void tn_exec_trace_add(tn_exec_trace *trace, tn_event_kind kind, uint32_t node, uint64_t step,
				     uint64_t start_ns, uint64_t end_ns)
{
	if (kind == TN_EVENT_COMPUTE || kind == TN_EVENT_COMM)
		trace->nodes[node].ns += end_ns - start_ns;
	if (trace->ring)
		trace->ring[trace->count++ & trace->mask] = (tn_event){start_ns, end_ns, step, node, kind, 0};
}

/* A kernel, when it was over, that a member of the crew has run. */
static inline void tn_exec_trace_kernel(tn_exec_trace *trace, uint32_t node, uint64_t step, uint64_t start_ns,
					uint64_t end_ns, uint32_t member)
{
	trace->nodes[node].ns += end_ns - start_ns;
	if (trace->ring)
		trace->ring[trace->count++ & trace->mask] =
			(tn_event){start_ns, end_ns, step, node, TN_EVENT_COMPUTE, member};
}

/*
 * The events as lines of a Chrome trace (one JSON object each, with a comma behind all but the last): process pid, named
 * after the graph, with a row for computing, transfers and waiting, one for each further thread, and one for tensors under way.
 */
void tn_exec_trace_write(const tn_exec_trace *trace, const tern_graph *graph, uint32_t pid, FILE *file);

#endif
