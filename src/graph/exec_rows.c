/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PullRows and PushRows: rows of tables that a store keeps. A worker asks for each row once, whatever often the batch
 * names it, and pushes one gradient per row, summed in the order of the batch. A node that waits for the store goes to
 * the tail of the queue, as a receive does.
 *
 *   order[]   the batch's indices by (shard, key, place); keys[] and data[] the distinct ones of them
 *
 * Indices are checked before they are used; negative ones count from the end. No allocation in a step.
 *
 * Threads: the executor's. Tests: tests/unit/graph/sparse_test.c, tests/e2e/train_sparse_test.py.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec_int.h"

typedef struct place {
	uint64_t key;
	uint32_t shard, at; /* in the indices */
} place;

struct exec_rows {
	tn_store *store;
	uint64_t n, rows, dim, unique;
	place *order;
	uint64_t *keys;
	float *data;
	tn_store_op op;
	bool posted;
};

void tn_exec_rows_free(exec_rows *x)
{
	if (!x)
		return;
	if (x->data)
		x->store->ops->free(x->store, x->data);
	free(x->order);
	free(x->keys);
	free(x);
}

tern_status tn_exec_rows_make(const tn_exec *e, exec_prog *p, uint32_t node)
{
	const tn_node *n = &e->graph->nodes[node];
	bool is_push = n->op == TN_OP_PUSH_ROWS;
	const exec_tensor *indices = &p->tensors[n->in[is_push]];
	exec_rows *x;
	void *data = NULL;

	if (!e->params.store)
		return tn_fail(TERN_E_INVALID, "%s: '%s' needs a store for the rows of its table",
			       e->graph->name, n->name);
	x = p->nodes[node].rows = calloc(1, sizeof(*x));
	if (!x)
		return tn_fail(TERN_E_NOMEM, "no memory for the rows of '%s'", n->name);
	x->store = e->params.store;
	TN_TRY(tn_shape_elements(&indices->shape, &x->n));
	x->rows = (uint64_t)tn_node_int(n, TN_ATTR_ROWS, 0);
	x->dim = e->plan->tables->tensors[tn_node_int(n, TN_ATTR_TABLE, 0)].shape.dims[1];
	if (x->n > UINT32_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "'%s': %" PRIu64 " indices", n->name, x->n);
	x->order = calloc(x->n + 1, sizeof(*x->order));
	x->keys = calloc(x->n + 1, sizeof(*x->keys));
	if (!x->order || !x->keys)
		return tn_fail(TERN_E_NOMEM, "no memory for the keys of '%s'", n->name);
	TN_TRY(x->store->ops->alloc(x->store, TN_MAX(TN_MIN(x->n, x->rows) * x->dim * sizeof(float), 64),
				    &data));
	x->data = data;
	return TERN_OK;
}

static int by_key(const void *a, const void *b)
{
	const place *x = a, *y = b;

	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->at < y->at ? -1 : 1;
}

/* The distinct keys of a batch, in the order that stores want. */
static tern_status collect(const tn_node *n, exec_rows *x, const void *indices, tern_dtype dtype)
{
	for (uint64_t i = 0; i < x->n; i++) {
		int64_t raw =
			dtype == TERN_I64 ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
		uint64_t key = (uint64_t)(raw < 0 ? raw + (int64_t)x->rows : raw);

		if (key >= x->rows)
			return tn_fail(TERN_E_INVALID,
				       "'%s': index %" PRId64 " is out of range for a table of %" PRIu64
				       " rows",
				       n->name, raw, x->rows);
		x->order[i] = (place){key, (uint32_t)(key % x->store->shards), (uint32_t)i};
	}
	qsort(x->order, x->n, sizeof(*x->order), by_key);
	x->unique = 0;
	for (uint64_t i = 0; i < x->n; i++) {
		if (i == 0 || x->order[i].key != x->order[i - 1].key)
			x->keys[x->unique++] = x->order[i].key;
	}
	return TERN_OK;
}

/* Rows to the places that named them. */
static void spread(const exec_rows *x, float *out)
{
	const float *row = x->data;

	for (uint64_t i = 0; i < x->n; i++) {
		if (i > 0 && x->order[i].key != x->order[i - 1].key)
			row += x->dim;
		memcpy(out + x->order[i].at * x->dim, row, x->dim * sizeof(*row));
	}
}

/* Gradients of equal keys, added in the order of the batch, then scaled. */
static void sum_up(exec_rows *x, const float *dy, float scale)
{
	float *row = x->data - x->dim;

	for (uint64_t i = 0; i < x->n; i++) {
		const float *from = dy + x->order[i].at * x->dim;
		bool first = i == 0 || x->order[i].key != x->order[i - 1].key;

		row += first ? x->dim : 0;
		for (uint64_t k = 0; k < x->dim; k++)
			row[k] = first ? from[k] : row[k] + from[k];
	}
	for (uint64_t k = 0; k < x->unique * x->dim && scale != 1.0f; k++)
		x->data[k] *= scale;
}

/* As kern_apply.c: linear from lr at step 0 to lr_end at lr_steps; here as a share of lr. */
static float lr_share(const tn_node *n, uint64_t step)
{
	double lr = tn_node_float(n, TN_ATTR_LR, 1.0), end = tn_node_float(n, TN_ATTR_LR_END, 1.0);
	uint64_t steps = (uint64_t)tn_node_int(n, TN_ATTR_LR_STEPS, 0);

	if (steps == 0)
		return 1.0f;
	return (float)((step >= steps ? end : lr + (end - lr) * ((double)step / (double)steps)) / lr);
}

static tern_status start(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	const tn_node *n = &e->graph->nodes[node];
	exec_rows *x = p->nodes[node].rows;
	bool is_push = n->op == TN_OP_PUSH_ROWS;

	TN_TRY(collect(n, x, tn_exec_data(p, n->in[is_push]), e->graph->tensors[n->in[is_push]].dtype));
	if (is_push)
		sum_up(x, tn_exec_data(p, n->in[0]), (float)tn_node_float(n, TN_ATTR_GRAD_SCALE, 1.0));
	x->op.is_push = is_push;
	x->op.trains = p->id == TN_PROG_TRAIN;
	x->op.last = is_push && ++e->pushes % e->pushes_per_step == 0;
	x->op.table = (uint32_t)tn_node_int(n, TN_ATTR_TABLE, 0);
	x->op.keys = x->keys;
	x->op.n = x->unique;
	x->op.rows = x->data;
	x->op.step = step;
	x->op.lr_scale = is_push ? lr_share(n, step) : 1.0f;
	x->op.detail[0] = '\0';
	atomic_store(&x->op.status, TERN_AGAIN);
	x->posted = true;
	x->store->ops->start(x->store, &x->op);
	return TERN_OK;
}

tern_status tn_exec_rows_run(tn_exec *e, exec_prog *p, uint32_t node, uint64_t step)
{
	exec_rows *x = p->nodes[node].rows;
	uint64_t t0 = tn_now();
	tern_status st = TERN_OK;

	if (!x->posted)
		st = start(e, p, node, step);
	if (st == TERN_OK)
		st = tn_store_test(&x->op);
	if (st != TERN_AGAIN && x->posted) {
		x->posted = false;
		if (st == TERN_OK && !x->op.is_push)
			spread(x, tn_exec_data(p, e->graph->nodes[node].out[0]));
		if (st != TERN_OK)
			tn_detail_prefix("%s: rows of '%s'", e->graph->name,
					 e->plan->tables->nodes[x->op.table].name);
	}
	e->stats.comm_ns += tn_now() - t0;
	return st;
}

uint32_t tn_exec_rows_pushes(const tn_exec *e)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->graph->n_nodes; i++)
		n += e->graph->nodes[i].op == TN_OP_PUSH_ROWS;
	return n;
}
