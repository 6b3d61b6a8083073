/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of a store's operations, and the store that keeps nothing. Threads: see store.h.
 * Tests: tests/unit/graph/sparse_test.c.
 */
#include "graph/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

tern_status tn_store_test(tn_store_op *op)
{
	tern_status status = (tern_status)atomic_load_explicit(&op->status, memory_order_acquire);

	if (status == TERN_OK || status == TERN_AGAIN)
		return status;
	return tn_fail(status, "%s", op->detail[0] ? op->detail : tern_status_text(status));
}

static tern_status none_alloc(tn_store *store, uint64_t bytes, void **ptr)
{
	(void)store;
	*ptr = calloc(TN_MAX(bytes, 1), 1);
	return *ptr ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for rows");
}

static void none_free(tn_store *store, void *ptr)
{
	(void)store;
	free(ptr);
}

static void none_start(tn_store *store, tn_store_op *op)
{
	(void)store;
	atomic_store(&op->status, TERN_OK);
}

static void none_counters(tn_store *store, tn_store_counters *counters)
{
	(void)store;
	*counters = (tn_store_counters){0};
}

static void none_close(tn_store *store)
{
	free(store);
}

tern_status tn_store_none(tn_store **store)
{
	static const tn_store_ops ops = {"none",     none_alloc,    none_free,
					 none_start, none_counters, none_close};

	*store = calloc(1, sizeof(**store));
	if (!*store)
		return tn_fail(TERN_E_NOMEM, "no memory for a store");
	(*store)->ops = &ops;
	(*store)->shards = 1;
	return TERN_OK;
}
