/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes before the first rows: clients of the plan's servers, groups, tables and their initial values. All of it
 * blocks, in the thread that starts the session. See tables.h.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "runtime/tables_impl.h"

#define POLL_NS UINT64_C(2000000)
#define CHUNK   (UINT64_C(1) << 20) /* bytes of initial values at a time */
#define READY   "graph/ready"
#define GROUP   "graph"

static void make_schema(const tn_tables *t, uint32_t table, uint32_t server, tern_table_schema *schema)
{
	const tern_optimizer *o = &t->plan->params.optimizer;
	static const tern_row_optimizer kinds[] = {[TERN_OPTIMIZER_SGD] = TERN_OPT_SGD,
						   [TERN_OPTIMIZER_MOMENTUM] = TERN_OPT_MOMENTUM,
						   [TERN_OPTIMIZER_ADAGRAD] = TERN_OPT_ADAGRAD,
						   [TERN_OPTIMIZER_ADAM] = TERN_OPT_ADAM,
						   [TERN_OPTIMIZER_RMSPROP] = TERN_OPT_RMSPROP};
	tern_optimizer_params *p = &schema->optimizer;
	uint64_t rows = tn_tables_rows(t, table);

	*schema = (tern_table_schema){.kind = TERN_TABLE_DENSE, .dim = (uint32_t)tn_tables_dim(t, table)};
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

static bool may_go_on(const tn_tables *t)
{
	return tn_now() < t->deadline_ns && !(t->canceled && atomic_load(t->canceled));
}

/* Who is second finds what the first one made. */
static tern_status create(tn_tables *t, uint32_t server, const tern_table_schema *schema, tern_table **table)
{
	tern_status status;

	do
		status = tern_table_create(t->ps[server], schema, table);
	while (status == TERN_E_DEADLINE && may_go_on(t));
	return status;
}

static tern_status open_servers(tn_tables *t, const char *const *addresses)
{
	for (uint32_t s = 0; s < t->servers; s++) {
		tern_ps_params params = {
			.servers = &addresses[s], .count = 1, .timeout_ns = TN_TABLES_CALL_NS};
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
static tern_status assign(tn_tables *t, uint32_t table, uint64_t first, uint64_t n, float *rows,
			  uint64_t *keys)
{
	uint64_t dim = tn_tables_dim(t, table);

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
			TN_TRY(tern_table_push_wait(t->table[table * t->servers + s], &push,
						    TN_TABLES_PUSH_NS));
	}
	return TERN_OK;
}

static tern_status fill(tn_tables *t, uint32_t table)
{
	uint64_t dim = tn_tables_dim(t, table), rows = tn_tables_rows(t, table);
	uint64_t most = TN_MIN(rows, TN_MAX(CHUNK / (dim * sizeof(float)), 1));
	uint64_t *keys = malloc(most * sizeof(*keys));
	void *values = NULL;
	tern_status status =
		keys ? t->base.ops->alloc(&t->base, most * dim * sizeof(float), &values)
		     : tn_fail(TERN_E_NOMEM, "no memory for %llu keys", (unsigned long long)most);

	for (uint64_t at = 0; at < rows && status == TERN_OK; at += most)
		status = assign(t, table, at, TN_MIN(most, rows - at), values, keys);
	if (values)
		t->base.ops->free(&t->base, values);
	free(keys);
	return status;
}

/* The first device that uses a table has its initial values written. */
static tern_status fill_own(tn_tables *t)
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

static tern_status join(tn_tables *t)
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
static tern_status find_missing(tn_tables *t, tern_table *ready, uint32_t *missing)
{
	*missing = TN_NONE;
	for (uint32_t d = 0; d < t->plan->n_devices && *missing == TN_NONE; d++) {
		uint64_t key = d;
		float come = 0;
		tern_table_pull_params pull = {
			.keys = &key, .count = 1, .rows = &come, .unknown = TERN_UNKNOWN_ZERO};

		if (!tn_tables_used(t->plan, d, t->n_tables))
			continue;
		TN_TRY(tern_table_pull_wait(ready, &pull, TN_TABLES_PUSH_NS));
		*missing = come == 0.0f ? d : TN_NONE;
	}
	return TERN_OK;
}

/* Say that this device is ready, and wait for the others. */
static tern_status meet(tn_tables *t)
{
	tern_table_schema schema = {.name = READY, .dim = 1};
	uint64_t key = t->device;
	float one = 1;
	tern_table_push_params push = {.keys = &key, .count = 1, .rows = &one, .mode = TERN_PUSH_ASSIGN};
	tern_table *ready = NULL;
	uint32_t missing = TN_NONE;
	tern_status status = create(t, 0, &schema, &ready);

	if (status == TERN_OK)
		status = tern_table_push_wait(ready, &push, TN_TABLES_PUSH_NS);
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

tern_status tn_tables_set_up(tn_tables *t, const char *const *addresses)
{
	TN_TRY(open_servers(t, addresses));
	TN_TRY(join(t));
	TN_TRY(fill_own(t));
	return meet(t);
}
