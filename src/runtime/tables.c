/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See tables.h. Blocks in its own thread and in open; the executor's calls only queue.
 */
#include "runtime/tables.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/mem.h>
#include <tern/ps_group.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/ir.h"
#include "graph/xfer.h"

#define LOOK_NS UINT64_C(1000000000)  /* how long a step's begin waits before the end is looked for */
#define CALL_NS UINT64_C(5000000000)  /* other calls */
#define PUSH_NS UINT64_C(20000000000) /* a push that has not been taken by then is lost */
#define POLL_NS UINT64_C(2000000)
#define CHUNK   (UINT64_C(1) << 20) /* bytes of initial values at a time */
#define READY   "graph/ready"
#define GROUP   "graph"

typedef struct tables {
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
	tn_xfer *xfer;
	pthread_t thread;
	bool running;
	pthread_mutex_t lock;
	pthread_cond_t more;
	tn_store_op *first, **end; /* lock: what is to be done */
	atomic_bool stop;
	atomic_uint_fast64_t pulled, pushed, sent, received;
} tables;

static uint64_t dim_of(const tables *t, uint32_t table)
{
	return t->plan->tables->tensors[table].shape.dims[1];
}

static uint64_t rows_of(const tables *t, uint32_t table)
{
	return t->plan->tables->tensors[table].shape.dims[0];
}

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
static tern_status wait_all(tables *t, uint64_t started, tern_status status)
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
static uint64_t range_end(const tables *t, const tn_store_op *op, uint32_t server, uint64_t from)
{
	while (from < op->n && op->keys[from] % t->servers == server)
		from++;
	return from;
}

/* In the caller's memory, so that no copy is made: keys at the servers are counted from 0. */
static tern_status transfer_rows(tables *t, tn_store_op *op, uint64_t *keys)
{
	uint64_t at = 0, started = 0, dim = dim_of(t, op->table);
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
			status = tern_ps_group_push(t->group[s], table, &push, PUSH_NS);
			continue;
		}
		tern_op_init(&t->ops[s], NULL, NULL);
		t->ops[s].timeout_ns = op->is_push ? PUSH_NS : 0;
		status = op->is_push ? tern_table_push(table, &push, &t->ops[s])
				     : tern_table_pull(table, &pull, &t->ops[s]);
		started |= status == TERN_OK ? UINT64_C(1) << s : 0;
	}
	return wait_all(t, started, status);
}

/* Calls that wait for other workers, in pieces. */
static tern_status for_group(tables *t, tern_status (*fn)(tern_ps_group *group, uint64_t step), uint64_t step)
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

static tern_status work(tables *t, tn_store_op *op)
{
	uint64_t *keys = malloc((op->n + 1) * sizeof(*keys)), bytes;
	tern_status status =
		keys ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for %llu keys", (unsigned long long)op->n);

	if (status == TERN_OK && op->trains && t->begun != op->step + 1) {
		status = for_group(t, begin_group, op->step);
		t->begun = op->step + 1;
	}
	while (status == TERN_OK) {
		status = transfer_rows(t, op, keys);
		/* Pulls may be repeated. */
		if (status != TERN_E_DEADLINE || op->is_push || atomic_load(&t->stop))
			break;
		status = TERN_OK;
	}
	free(keys);
	if (status == TERN_OK && op->last)
		status = for_group(t, tern_ps_group_end, op->step);
	bytes = op->n * dim_of(t, op->table) * sizeof(float);
	atomic_fetch_add(op->is_push ? &t->pushed : &t->pulled, op->n);
	atomic_fetch_add(&t->sent, op->n * sizeof(uint64_t) + (op->is_push ? bytes : 0));
	atomic_fetch_add(&t->received, op->is_push ? 0 : bytes);
	return status;
}

static tn_store_op *next(tables *t)
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
	tables *t = arg;

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
	tables *t = (tables *)store;

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
	return tern_mem_alloc(tern_ctx_mem(((tables *)store)->ctx), bytes, 64,
			      TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, ptr);
}

static void free_rows(tn_store *store, void *ptr)
{
	tern_mem_free(tern_ctx_mem(((tables *)store)->ctx), ptr);
}

static void counters(tn_store *store, tn_store_counters *c)
{
	tables *t = (tables *)store;

	*c = (tn_store_counters){.pulled = atomic_load(&t->pulled),
				 .pushed = atomic_load(&t->pushed),
				 .bytes_sent = atomic_load(&t->sent),
				 .bytes_received = atomic_load(&t->received)};
}

/* ---- opening ---- */

static void make_schema(const tables *t, uint32_t table, uint32_t server, tern_table_schema *schema)
{
	const tern_optimizer *o = &t->plan->params.optimizer;
	static const tern_row_optimizer kinds[] = {[TERN_OPTIMIZER_SGD] = TERN_OPT_SGD,
						   [TERN_OPTIMIZER_MOMENTUM] = TERN_OPT_MOMENTUM,
						   [TERN_OPTIMIZER_ADAGRAD] = TERN_OPT_ADAGRAD,
						   [TERN_OPTIMIZER_ADAM] = TERN_OPT_ADAM,
						   [TERN_OPTIMIZER_RMSPROP] = TERN_OPT_RMSPROP};
	tern_optimizer_params *p = &schema->optimizer;
	uint64_t rows = rows_of(t, table);

	*schema = (tern_table_schema){.kind = TERN_TABLE_DENSE, .dim = (uint32_t)dim_of(t, table)};
	schema->rows = rows > server ? (rows - server + t->servers - 1) / t->servers : 1;
	snprintf(schema->name, sizeof(schema->name), "graph/%u/%.40s", table,
		 t->plan->tables->nodes[table].name);
	for (char *c = schema->name; *c; c++)
		*c = isalnum((unsigned char)*c) || strchr("._-/", *c) ? *c : '_';
	tern_optimizer_init(p, kinds[o->kind], o->lr);
	p->momentum = o->momentum;
	p->weight_decay = o->weight_decay;
	p->beta1 = o->beta1 > 0 ? o->beta1 : p->beta1;
	p->beta2 = o->beta2 > 0 ? o->beta2 : p->beta2;
	p->rho = o->rho > 0 ? o->rho : p->rho;
	p->epsilon = o->epsilon > 0 ? o->epsilon : p->epsilon;
	p->initial_accumulator = 0;
}

static bool may_go_on(const tables *t)
{
	return tn_now() < t->deadline_ns && !(t->canceled && atomic_load(t->canceled));
}

/* Who is second finds what the first one made. */
static tern_status create(tables *t, uint32_t server, const tern_table_schema *schema, tern_table **table)
{
	tern_status status;

	do
		status = tern_table_create(t->ps[server], schema, table);
	while (status == TERN_E_DEADLINE && may_go_on(t));
	return status;
}

static tern_status open_servers(tables *t, const char *const *addresses)
{
	for (uint32_t s = 0; s < t->servers; s++) {
		tern_ps_params params = {.servers = &addresses[s], .count = 1, .timeout_ns = CALL_NS};
		tern_status status;

		if (!addresses[s])
			return tn_fail(TERN_E_INVALID, "no address was given for server%u", s);
		do
			status = tern_ps_open(t->ctx, &params, &t->ps[s]);
		while (status != TERN_OK && may_go_on(t));
		if (status != TERN_OK) {
			tn_detail_prefix("server%u at %s", s, addresses[s]);
			return status;
		}
		for (uint32_t i = 0; i < t->n_tables; i++) {
			tern_table_schema schema;

			make_schema(t, i, s, &schema);
			TN_TRY(create(t, s, &schema, &t->table[i * t->servers + s]));
		}
	}
	return TERN_OK;
}

/* Rows first .. first + n - 1 of a table, with their initial values, to the servers that keep them. */
static tern_status assign(tables *t, uint32_t table, uint64_t first, uint64_t n, float *rows, uint64_t *keys)
{
	uint64_t dim = dim_of(t, table);

	tn_variable_rows(&t->plan->tables->nodes[table], &t->plan->tables->tensors[table].shape, first, n,
			 rows);
	for (uint32_t s = 0; s < t->servers; s++) {
		uint64_t skip = (s + t->servers - first % t->servers) % t->servers, count = 0;
		tern_table_push_params push = {.keys = keys,
					       .rows = rows + skip * dim,
					       .stride = t->servers * dim * sizeof(float),
					       .mode = TERN_PUSH_ASSIGN};

		for (uint64_t r = first + skip; r < first + n; r += t->servers)
			keys[count++] = r / t->servers;
		push.count = count;
		if (count)
			TN_TRY(tern_table_push_wait(t->table[table * t->servers + s], &push, PUSH_NS));
	}
	return TERN_OK;
}

static tern_status fill(tables *t, uint32_t table)
{
	uint64_t dim = dim_of(t, table), rows = rows_of(t, table);
	uint64_t most = TN_MIN(rows, TN_MAX(CHUNK / (dim * sizeof(float)), 1));
	uint64_t *keys = malloc(most * sizeof(*keys));
	void *values = NULL;
	tern_status status =
		keys ? alloc(&t->base, most * dim * sizeof(float), &values)
		     : tn_fail(TERN_E_NOMEM, "no memory for %llu keys", (unsigned long long)most);

	for (uint64_t at = 0; at < rows && status == TERN_OK; at += most)
		status = assign(t, table, at, TN_MIN(most, rows - at), values, keys);
	if (values)
		free_rows(&t->base, values);
	free(keys);
	return status;
}

/* The first device that uses a table has its initial values written. */
static tern_status fill_own(tables *t)
{
	for (uint32_t i = 0; i < t->n_tables; i++) {
		uint32_t first = 0;

		while (first < t->plan->n_devices && !tn_tables_used(t->plan, first, i))
			first++;
		if (first == t->device)
			TN_TRY(fill(t, i));
	}
	return TERN_OK;
}

static tern_status join(tables *t)
{
	tern_ps_group_params params = {.name = GROUP, .staleness = t->plan->params.stale};
	char member[TERN_PS_NAME_MAX];

	if (!t->plan->params.sync && !t->plan->params.stale)
		return TERN_OK;
	t->group = calloc(t->servers, sizeof(tern_ps_group *));
	if (!t->group)
		return tn_fail(TERN_E_NOMEM, "no memory for groups");
	t->sums = t->plan->params.sync != 0;
	params.flags = t->sums ? TERN_PS_GROUP_SUM : 0;
	/* Sums are made in the order of names. */
	snprintf(member, sizeof(member), "%06u %.32s", t->device, t->plan->devices[t->device].name);
	params.member = member;
	for (uint32_t s = 0; s < t->servers; s++)
		TN_TRY(tern_ps_group_join(t->ps[s], &params, NULL, &t->group[s]));
	return TERN_OK;
}

/* A user that has not come; TN_NONE: all have. */
static tern_status find_missing(tables *t, tern_table *ready, uint32_t *missing)
{
	*missing = TN_NONE;
	for (uint32_t d = 0; d < t->plan->n_devices && *missing == TN_NONE; d++) {
		uint64_t key = d;
		float come = 0;
		tern_table_pull_params pull = {
			.keys = &key, .count = 1, .rows = &come, .unknown = TERN_UNKNOWN_ZERO};

		if (!tn_tables_used(t->plan, d, t->n_tables))
			continue;
		TN_TRY(tern_table_pull_wait(ready, &pull, PUSH_NS));
		*missing = come == 0.0f ? d : TN_NONE;
	}
	return TERN_OK;
}

/* Say that this device is ready, and wait for the others. */
static tern_status meet(tables *t)
{
	tern_table_schema schema = {.name = READY, .dim = 1};
	uint64_t key = t->device;
	float one = 1;
	tern_table_push_params push = {.keys = &key, .count = 1, .rows = &one, .mode = TERN_PUSH_ASSIGN};
	tern_table *ready = NULL;
	uint32_t missing = TN_NONE;
	tern_status status = create(t, 0, &schema, &ready);

	if (status == TERN_OK)
		status = tern_table_push_wait(ready, &push, PUSH_NS);
	while (status == TERN_OK && (status = find_missing(t, ready, &missing)) == TERN_OK &&
	       missing != TN_NONE) {
		if (t->canceled && atomic_load(t->canceled))
			status = tn_fail(TERN_E_CANCELED, "cancelled while waiting for %s",
					 t->plan->devices[missing].name);
		else if (tn_now() >= t->deadline_ns)
			status = tn_fail(TERN_E_DEADLINE,
					 "%s did not come to the tables in time: is it running?",
					 t->plan->devices[missing].name);
		tn_sleep_ns(POLL_NS);
	}
	tern_table_close(ready);
	return status;
}

static tern_status open_all(tables *t, const tn_tables_params *params)
{
	t->ps = calloc(t->servers, sizeof(tern_ps *));
	t->ops = calloc(t->servers, sizeof(*t->ops));
	t->table = calloc((size_t)t->servers * t->n_tables, sizeof(tern_table *));
	if (!t->ps || !t->ops || !t->table)
		return tn_fail(TERN_E_NOMEM, "no memory for tables");
	TN_TRY(open_servers(t, params->servers));
	TN_TRY(join(t));
	TN_TRY(fill_own(t));
	TN_TRY(meet(t));
	if (pthread_create(&t->thread, NULL, run, t) != 0)
		return tn_fail(TERN_E_NOMEM, "no thread for the tables");
	t->running = true;
	return TERN_OK;
}

void tn_tables_stop(tn_store *store)
{
	tables *t = (tables *)store;

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
	t->group = NULL;
	t->table = NULL;
	t->ops = NULL;
	t->ps = NULL;
}

static void close_tables(tn_store *store)
{
	tables *t = (tables *)store;

	if (!t)
		return;
	tn_tables_stop(store);
	pthread_cond_destroy(&t->more);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void tn_tables_wake(tn_store *store, tn_xfer *xfer)
{
	((tables *)store)->xfer = xfer;
}

tern_status tn_tables_open(const tn_tables_params *params, tn_store **store)
{
	static const tn_store_ops ops = {"tables", alloc, free_rows, start, counters, close_tables};
	tables *t = calloc(1, sizeof(*t));
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
