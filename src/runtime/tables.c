/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See tables.h. Blocks in its own thread and in open; the executor's calls only queue.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/mem.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "runtime/tables_impl.h"

#define LOOK_NS UINT64_C(1000000000) /* how long a step's begin waits before the end is looked for */

bool tn_tables_used(const tern_plan *plan, uint32_t device, uint32_t table)
{
	const tern_graph *g = plan->devices[device].graph;

	for (uint32_t i = 0; i < g->n_nodes; i++) {
		if (g->nodes[i].op == TN_OP_PUSH_ROWS &&
		    (table == tn_plan_tables(plan) ||
		     (uint32_t)tn_node_int(&g->nodes[i], TN_ATTR_TABLE, 0) == table))
			return true;
	}
	return false;
}

/* ---- operations ---- */

static tern_status stopped(void)
{
	return tn_fail(TERN_E_CANCELED, "the session ends");
}

/* All started operations end before this returns, whatever one says. */
static tern_status wait_all(tn_tables *t, uint64_t started, tern_status status)
{
	for (uint32_t s = 0; s < t->servers; s++) {
		tern_status one = TERN_OK;

		if (!(started >> s & 1))
			continue;
		do
			one = tern_op_wait(t->ctx, &t->ops[s], 0);
		while (tern_op_test(&t->ops[s]) == TERN_AGAIN);
		status = status == TERN_OK ? one : status;
	}
	return status;
}

/* Rows of one server: from .. to in the operation's keys. They come by server. */
static uint64_t range_end(const tn_tables *t, const tn_store_op *op, uint32_t server, uint64_t from)
{
	while (from < op->n && op->keys[from] % t->servers == server)
		from++;
	return from;
}

/* In the caller's memory, so that no copy is made: keys at the servers are counted from 0. */
static tern_status transfer_rows(tn_tables *t, tn_store_op *op)
{
	uint64_t *keys = t->keys;
	uint64_t at = 0, started = 0, dim = tn_tables_dim(t, op->table);
	tern_status status = TERN_OK;

	for (uint64_t i = 0; i < op->n; i++)
		keys[i] = op->keys[i] / t->servers;
	for (uint32_t s = 0; s < t->servers && status == TERN_OK; s++) {
		tern_table *table = t->table[op->table * t->servers + s];
		uint64_t end = range_end(t, op, s, at);
		tern_table_pull_params pull = {
			.keys = keys + at, .count = end - at, .rows = op->rows + at * dim};
		tern_table_push_params push = {.keys = keys + at,
					       .count = end - at,
					       .rows = op->rows + at * dim,
					       .lr_scale = op->lr_scale,
					       .step = op->step};

		at = end;
		if (pull.count == 0)
			continue;
		if (op->is_push && t->sums) {
			status = tern_ps_group_push(t->group[s], table, &push, TN_TABLES_PUSH_NS);
			continue;
		}
		tern_op_init(&t->ops[s], NULL, NULL);
		t->ops[s].timeout_ns = op->is_push ? TN_TABLES_PUSH_NS : 0;
		status = op->is_push ? tern_table_push(table, &push, &t->ops[s])
				     : tern_table_pull(table, &pull, &t->ops[s]);
		started |= status == TERN_OK ? UINT64_C(1) << s : 0;
	}
	return wait_all(t, started, status);
}

/* Calls that wait for other workers, in pieces. */
static tern_status for_group(tn_tables *t, tern_status (*fn)(tern_ps_group *group, uint64_t step),
			     uint64_t step)
{
	for (uint32_t s = 0; s < t->servers && t->group; s++) {
		tern_status status;

		while ((status = fn(t->group[s], step)) == TERN_E_DEADLINE) {
			if (atomic_load(&t->stop))
				return stopped();
		}
		TN_TRY(status);
	}
	return TERN_OK;
}

static tern_status begin_group(tern_ps_group *group, uint64_t step)
{
	return tern_ps_group_begin(group, step, LOOK_NS);
}

static tern_status make_room(tn_tables *t, uint64_t n)
{
	uint64_t *keys;

	if (n <= t->keys_room)
		return TERN_OK;
	keys = realloc(t->keys, n * sizeof(*keys));
	if (!keys)
		return tn_fail(TERN_E_NOMEM, "no memory for %llu keys", (unsigned long long)n);
	t->keys = keys;
	t->keys_room = n;
	return TERN_OK;
}

static tern_status work(tn_tables *t, tn_store_op *op)
{
	uint64_t bytes = op->n * tn_tables_dim(t, op->table) * sizeof(float);
	tern_status status = make_room(t, op->n);

	if (status == TERN_OK && op->trains && t->begun != op->step + 1) {
		status = for_group(t, begin_group, op->step);
		t->begun = op->step + 1;
	}
	while (status == TERN_OK) {
		status = transfer_rows(t, op);
		/* Pulls may be repeated. */
		if (status != TERN_E_DEADLINE || op->is_push || atomic_load(&t->stop))
			break;
		status = TERN_OK;
	}
	if (status == TERN_OK && op->last)
		status = for_group(t, tern_ps_group_end, op->step);
	atomic_fetch_add(op->is_push ? &t->pushed : &t->pulled, op->n);
	atomic_fetch_add(&t->sent, op->n * sizeof(uint64_t) + (op->is_push ? bytes : 0));
	atomic_fetch_add(&t->received, op->is_push ? 0 : bytes);
	return status;
}

static tn_store_op *next(tn_tables *t)
{
	tn_store_op *op;

	pthread_mutex_lock(&t->lock);
	while (!t->first && !atomic_load(&t->stop))
		pthread_cond_wait(&t->more, &t->lock);
	op = t->first;
	if (op) {
		t->first = op->next;
		if (!t->first)
			t->end = &t->first;
	}
	pthread_mutex_unlock(&t->lock);
	return op;
}

static void *run(void *arg)
{
	tn_tables *t = arg;

	for (tn_store_op *op = next(t); op; op = next(t)) {
		tern_status status = atomic_load(&t->stop) ? stopped() : work(t, op);

		if (status == TERN_AGAIN)
			status = tn_fail(TERN_E_LIMIT, "too many operations of tables are under way");
		if (status != TERN_OK)
			snprintf(op->detail, sizeof(op->detail), "%s", tn_detail_get());
		atomic_store_explicit(&op->status, (int)status, memory_order_release);
		t->xfer->ops->wake(t->xfer);
	}
	return NULL;
}

static void start(tn_store *store, tn_store_op *op)
{
	tn_tables *t = (tn_tables *)store;

	op->next = NULL;
	pthread_mutex_lock(&t->lock);
	*t->end = op;
	t->end = &op->next;
	pthread_cond_signal(&t->more);
	pthread_mutex_unlock(&t->lock);
}

/* ---- memory ---- */

static tern_status alloc(tn_store *store, uint64_t bytes, void **ptr)
{
	return tern_mem_alloc(tern_ctx_mem(((tn_tables *)store)->ctx), bytes, 64,
			      TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, ptr);
}

static void free_rows(tn_store *store, void *ptr)
{
	tern_mem_free(tern_ctx_mem(((tn_tables *)store)->ctx), ptr);
}

static void counters(tn_store *store, tn_store_counters *c)
{
	tn_tables *t = (tn_tables *)store;

	*c = (tn_store_counters){.pulled = atomic_load(&t->pulled),
				 .pushed = atomic_load(&t->pushed),
				 .bytes_sent = atomic_load(&t->sent),
				 .bytes_received = atomic_load(&t->received)};
}

/* ---- life ---- */

static tern_status open_all(tn_tables *t, const tn_tables_params *params)
{
	t->ps = calloc(t->servers, sizeof(tern_ps *));
	t->ops = calloc(t->servers, sizeof(*t->ops));
	t->table = calloc((size_t)t->servers * t->n_tables, sizeof(tern_table *));
	if (!t->ps || !t->ops || !t->table)
		return tn_fail(TERN_E_NOMEM, "no memory for tables");
	TN_TRY(tn_tables_set_up(t, params->servers));
	if (pthread_create(&t->thread, NULL, run, t) != 0)
		return tn_fail(TERN_E_NOMEM, "no thread for the tables");
	t->running = true;
	return TERN_OK;
}

void tn_tables_stop(tn_store *store)
{
	tn_tables *t = (tn_tables *)store;

	if (!t)
		return;
	pthread_mutex_lock(&t->lock);
	atomic_store(&t->stop, true);
	pthread_cond_signal(&t->more);
	pthread_mutex_unlock(&t->lock);
	if (t->running)
		pthread_join(t->thread, NULL);
	t->running = false;
	for (uint32_t s = 0; t->ps && s < t->servers; s++) {
		if (t->group)
			tern_ps_group_leave(t->group[s]);
		for (uint32_t i = 0; t->table && i < t->n_tables; i++)
			tern_table_close(t->table[i * t->servers + s]);
		if (t->ps[s])
			tern_ps_close(t->ps[s]);
	}
	free(t->group);
	free(t->table);
	free(t->ops);
	free(t->ps);
	free(t->keys);
	t->group = NULL;
	t->table = NULL;
	t->ops = NULL;
	t->ps = NULL;
	t->keys = NULL;
	t->keys_room = 0;
}

static void close_tables(tn_store *store)
{
	tn_tables *t = (tn_tables *)store;

	if (!t)
		return;
	tn_tables_stop(store);
	pthread_cond_destroy(&t->more);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void tn_tables_wake(tn_store *store, tn_xfer *xfer)
{
	((tn_tables *)store)->xfer = xfer;
}

tern_status tn_tables_open(const tn_tables_params *params, tn_store **store)
{
	static const tn_store_ops ops = {"tables", alloc, free_rows, start, counters, close_tables};
	tn_tables *t = calloc(1, sizeof(*t));
	tern_status status;

	*store = NULL;
	if (!t)
		return tn_fail(TERN_E_NOMEM, "no memory for tables");
	t->base = (tn_store){.ops = &ops, .shards = params->plan->params.servers};
	t->ctx = params->ctx;
	t->plan = params->plan;
	t->device = params->device;
	t->servers = params->plan->params.servers;
	t->n_tables = tn_plan_tables(params->plan);
	t->deadline_ns = tn_now() + params->timeout_ns;
	t->canceled = params->canceled;
	t->end = &t->first;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->more, NULL);
	status = t->servers <= 64
			 ? open_all(t, params)
			 : tn_fail(TERN_E_LIMIT, "tables of graphs are kept by 64 servers at most, not %u",
				   t->servers);
	if (status != TERN_OK) {
		close_tables(&t->base);
		return status;
	}
	*store = &t->base;
	return TERN_OK;
}
