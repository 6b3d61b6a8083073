/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between tables.c (operations and life) and tables_open.c (what comes before the first one). See tables.h.
 */
#ifndef TN_RUNTIME_TABLES_IMPL_H
#define TN_RUNTIME_TABLES_IMPL_H

#include <pthread.h>

#include <tern/ps_group.h>

#include "graph/ir.h"
#include "graph/xfer.h"
#include "runtime/tables.h"

#define TN_TABLES_CALL_NS UINT64_C(5000000000)  /* calls of servers */
#define TN_TABLES_PUSH_NS UINT64_C(20000000000) /* a push that has not been taken by then is lost */

typedef struct tn_tables {
	tn_store base;
	tern_ctx *ctx;
	const tern_plan *plan;
	uint32_t device, servers, n_tables;
	uint64_t deadline_ns;
	const atomic_bool *canceled;
	tern_ps **ps;          /* [servers] */
	tern_ps_group **group; /* [servers]; NULL: asynchronous */
	tern_table **table;    /* [table][server] */
	tern_op *ops;          /* [servers] */
	bool sums;
	uint64_t begun; /* step + 1 */
	uint64_t *keys; /* room for the largest operation so far */
	uint64_t keys_room;
	tn_xfer *xfer;
	pthread_t thread;
	bool running;
	pthread_mutex_t lock;
	pthread_cond_t more;
	tn_store_op *first, **end; /* lock: what is to be done */
	atomic_bool stop;
	atomic_uint_fast64_t pulled, pushed, sent, received;
} tn_tables;

static inline uint64_t tn_tables_dim(const tn_tables *t, uint32_t table)
{
	return t->plan->tables->tensors[table].shape.dims[1];
}

static inline uint64_t tn_tables_rows(const tn_tables *t, uint32_t table)
{
	return t->plan->tables->tensors[table].shape.dims[0];
}

/* tables_open.c: servers, groups, tables with their initial values; returns when all users have come. */
tern_status tn_tables_set_up(tn_tables *tables, const char *const *addresses);

#endif
