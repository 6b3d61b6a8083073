/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows at parameter servers. See rows.h. Tables of one pull or push travel at the same time.
 *
 * Threads: one, the library's beside it. Tests: tests/e2e/models_test.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/mem.h>

#include "rows.h"

typedef struct remote {
	rows r;
	tern_ctx *ctx;
	tern_ps *ps;
	tern_ps_group *group;
	bool sum; /* the group is */
	tern_table *table[ROWS_TABLES_MAX];
	void **memory;
	unsigned memories;
} remote;

static bool failed(remote *m, const char *what)
{
	snprintf(m->r.error, sizeof(m->r.error), "%s: %s", what, tern_detail());
	return false;
}

static float *memory(rows *r, uint64_t floats)
{
	remote *m = (remote *)r;
	void **more = realloc(m->memory, (m->memories + 1) * sizeof(*more)), *p;

	if (more)
		m->memory = more;
	if (!more || tern_mem_alloc(tern_ctx_mem(m->ctx), floats * sizeof(float), 0,
				    TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &p) != TERN_OK) {
		failed(m, "no memory for rows");
		return NULL;
	}
	return m->memory[m->memories++] = p;
}

static bool begin(rows *r, uint64_t step)
{
	remote *m = (remote *)r;

	return !m->group || tern_ps_group_begin(m->group, step, 0) == TERN_OK ||
	       failed(m, "waiting for a step");
}

static bool end(rows *r, uint64_t step)
{
	remote *m = (remote *)r;

	return !m->group || tern_ps_group_end(m->group, step) == TERN_OK || failed(m, "ending a step");
}

/* All operations end before this returns, whatever one says: they are on the stack. */
static bool wait_all(remote *m, tern_op *ops, unsigned started, tern_status status, const char *what)
{
	if (status != TERN_OK)
		failed(m, what);
	for (unsigned i = 0; i < started; i++) {
		tern_status one;

		do
			one = tern_op_wait(m->ctx, &ops[i], 0);
		while (tern_op_test(&ops[i]) == TERN_AGAIN);
		if (one != TERN_OK && status == TERN_OK) {
			status = one;
			failed(m, what);
		}
	}
	return status == TERN_OK;
}

static bool pull(rows *r, const rows_part *parts, unsigned n, bool create)
{
	remote *m = (remote *)r;
	tern_op ops[ROWS_TABLES_MAX];
	tern_status status = TERN_OK;
	unsigned started = 0;

	for (; started < n && status == TERN_OK; started += status == TERN_OK) {
		tern_table_pull_params p = {.keys = parts[started].keys,
					    .count = parts[started].count,
					    .rows = parts[started].rows,
					    .unknown = create ? TERN_UNKNOWN_CREATE : TERN_UNKNOWN_DEFAULT};

		tern_op_init(&ops[started], NULL, NULL);
		status = tern_table_pull(m->table[parts[started].table], &p, &ops[started]);
	}
	return wait_all(m, ops, started, status, "pull");
}

/* One table after the other: servers only keep them. */
static bool push_to_sum(remote *m, const rows_part *parts, unsigned n, uint64_t step)
{
	for (unsigned i = 0; i < n; i++) {
		tern_table_push_params p = {
			.keys = parts[i].keys, .count = parts[i].count, .rows = parts[i].rows, .step = step};

		if (tern_ps_group_push(m->group, m->table[parts[i].table], &p, 0) != TERN_OK)
			return failed(m, "push");
	}
	return true;
}

static bool push(rows *r, const rows_part *parts, unsigned n, uint64_t step)
{
	remote *m = (remote *)r;
	tern_op ops[ROWS_TABLES_MAX];
	tern_status status = TERN_OK;
	unsigned started = 0;

	if (m->sum)
		return push_to_sum(m, parts, n, step);
	for (; started < n && status == TERN_OK; started += status == TERN_OK) {
		tern_table_push_params p = {.keys = parts[started].keys,
					    .count = parts[started].count,
					    .rows = parts[started].rows,
					    .step = step};

		tern_op_init(&ops[started], NULL, NULL);
		status = tern_table_push(m->table[parts[started].table], &p, &ops[started]);
	}
	return wait_all(m, ops, started, status, "push");
}

static void close_remote(rows *r)
{
	remote *m = (remote *)r;

	tern_ps_group_leave(m->group);
	while (m->memories)
		tern_mem_free(tern_ctx_mem(m->ctx), m->memory[--m->memories]);
	free(m->memory);
	for (unsigned i = 0; i < r->count; i++)
		tern_table_close(m->table[i]);
	free(m);
}

static tern_status make_tables(remote *m, uint64_t seed)
{
	tern_status status = TERN_OK;

	for (unsigned i = 0; i < m->r.count && status == TERN_OK; i++) {
		const rows_spec *s = &m->r.spec[i];
		tern_table_schema schema = {
			.kind = s->dense_rows ? TERN_TABLE_DENSE : TERN_TABLE_SPARSE,
			.dim = s->dim,
			.rows = s->dense_rows,
			.init = {.kind = TERN_ROW_UNIFORM, .value = s->range, .seed = seed}};

		if (s->range == 0)
			schema.init = (tern_row_init){0};
		memcpy(schema.name, s->name, sizeof(schema.name));
		tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAGRAD, s->lr);
		status = tern_table_create(m->ps, &schema, &m->table[i]);
	}
	return status;
}

rows *rows_ps(const rows_spec *specs, unsigned count, const rows_ps_params *params, char *error,
	      uint64_t error_bytes)
{
	static const rows_ops ops = {memory, begin, pull, push, end, close_remote};
	static const uint64_t none = TERN_PS_ASYNCHRONOUS;
	remote *m = calloc(1, sizeof(*m));
	tern_ps_group_params group = {.name = params->group, .member = params->member};
	tern_status status;

	if (!m) {
		snprintf(error, error_bytes, "no memory for tables");
		return NULL;
	}
	m->r.ops = &ops;
	m->r.count = count;
	memcpy(m->r.spec, specs, count * sizeof(*specs));
	m->ctx = params->ctx;
	m->ps = params->ps;
	group.staleness = params->consistency == JOB_ASYNC ? none
			  : params->consistency == JOB_BSP ? 0
							   : params->staleness;
	m->sum = params->member && params->consistency == JOB_BSP;
	group.flags = m->sum ? TERN_PS_GROUP_SUM : 0;
	status = make_tables(m, params->seed);
	if (status == TERN_OK && params->member)
		status = tern_ps_group_join(m->ps, &group, NULL, &m->group);
	if (status == TERN_OK)
		return &m->r;
	snprintf(error, error_bytes, "%s", tern_detail());
	close_remote(&m->r);
	return NULL;
}
