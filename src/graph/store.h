/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the executor needs from whatever keeps rows of sparse variables outside of the graph: the interface that the
 * runtime binds to the parameter server's tables. The graph knows tables by number (tern_plan.tables).
 *
 *   pull   rows of distinct keys into memory of alloc()
 *   push   gradients, one row for each of distinct keys, out of such memory. The table's optimiser applies them: at once,
 *          or, where the job is synchronous, once for the sum of all workers when each has said `last` for the step
 *
 * Operations of one store are done in the order in which they were started, so a pull that follows the last push of a
 * step sees the step's result. At most one operation per tn_store_op; keys and rows stay the store's until test() says
 * something else than TERN_AGAIN.
 *
 * Threads: the executor's calls all of it; nothing blocks but close(). When an operation ends the store wakes the
 * transfer's wait(), so that the executor looks again. Implementations: store.c (none), runtime/tables.c.
 */
#ifndef TN_GRAPH_STORE_H
#define TN_GRAPH_STORE_H

#include <stdatomic.h>
#include <stdbool.h>

#include <tern/graph.h>

#define TN_STORE_TEXT 320
#define TN_STORE_DIM  8192u /* longest row */

/* Written by the store. */
typedef struct tn_store_op {
	atomic_int status; /* TERN_AGAIN while it is under way */
	char detail[TN_STORE_TEXT];
	struct tn_store_op *next;
	/* what it is */
	bool is_push, trains, last;
	uint32_t table;
	const uint64_t *keys;
	uint64_t n, step;
	float *rows;
	float lr_scale;
} tn_store_op;

/* Since creation; keys and rows as they travel. */
typedef struct tn_store_counters {
	uint64_t pulled, pushed; /* rows */
	uint64_t bytes_sent, bytes_received;
} tn_store_counters;

typedef struct tn_store tn_store;
typedef struct tn_store_ops {
	const char *name;
	tern_status (*alloc)(tn_store *store, uint64_t bytes, void **ptr);
	void (*free)(tn_store *store, void *ptr);
	/* op says what; it is under way, or done already. */
	void (*start)(tn_store *store, tn_store_op *op);
	void (*counters)(tn_store *store, tn_store_counters *counters);
	/* Ends what is under way and frees the store. NULL is allowed. */
	void (*close)(tn_store *store);
} tn_store_ops;

/* The first member of every implementation's struct. */
struct tn_store {
	const tn_store_ops *ops;
	/* Row r of a table is kept by shard r % shards. Keys of an operation come by shard, then by number. */
	uint32_t shards;
};

/* TERN_AGAIN: under way. Else how it ended, with the text. */
tern_status tn_store_test(tn_store_op *op);

/* Nothing is kept and nothing travels: pulls leave rows as they are. For steps without communication. */
tern_status tn_store_none(tn_store **store);

#endif
