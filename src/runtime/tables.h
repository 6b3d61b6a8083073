/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of a session: rows of a plan's sparse variables in tables of the parameter servers that the plan's servers
 * open beside their part of the graph.
 *
 *   row r of a table    key r / S of the table at server r mod S; each server's tables stand alone
 *   initial values      the variable's own, written by the first device of the plan that uses the table
 *   synchronous jobs    a group at each server (tern/ps_group.h) whose pushes are summed: worker order, one update a step
 *   stale ones          a group with the plan's bound; asynchronous ones have none
 *
 * A thread of its own does the operations, in the order in which they came, since groups wait. Nobody begins before all
 * users of tables have come. Tests: tests/e2e/train_sparse_test.py.
 */
#ifndef TN_RUNTIME_TABLES_H
#define TN_RUNTIME_TABLES_H

#include <tern/ctx.h>

#include "graph/plan.h"
#include "graph/store.h"

struct tn_xfer;

typedef struct tn_tables_params {
	tern_ctx *ctx; /* of its own: servers tell its links from those of the session by its name */
	const tern_plan *plan;
	uint32_t device;
	const char *const *servers; /* addresses */
	uint64_t timeout_ns;        /* for all users to come */
	const atomic_bool *canceled;
} tn_tables_params;

/* Blocks. TERN_E_DEADLINE names a user that did not come. */
tern_status tn_tables_open(const tn_tables_params *params, tn_store **store);
/* Whose wait() is ended when an operation ends. Before the first one. */
void tn_tables_wake(tn_store *store, struct tn_xfer *xfer);
/* Leaves groups and servers; operations under way end. close() frees the rest. */
void tn_tables_stop(tn_store *store);
/* Whether a device of the plan asks for rows of a table; tn_plan_tables(): of any. */
bool tn_tables_used(const tern_plan *plan, uint32_t device, uint32_t table);

#endif
