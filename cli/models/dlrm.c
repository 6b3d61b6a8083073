/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A click-through model on generated logs: embeddings of categories in a sparse table, the two networks in a dense one,
 * as rows of DENSE_DIM. A category that comes twice in a block is asked for twice: servers sum what is pushed for it.
 *
 * Threads: see model.h. Tests: tests/e2e/models_test.py; arithmetic: tests/unit/cli/dlrm_test.c.
 */
#include "dlrm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define EMBEDDINGS 0
#define NETWORKS   1
#define DENSE_DIM  64
#define TEST       20000 /* samples that are never trained on */

typedef struct click_result {
	double auc, best; /* best: of the law itself */
} click_result;

typedef struct clicker {
	model m;
	model_options o;
	clicks logs;
	dlrm_net net;
	uint64_t dense_rows;
	click *block;         /* [block] */
	uint64_t *keys;       /* [block][fields] */
	uint64_t *dense_keys; /* [dense_rows] */
	rows *memory_of;
	float *rows, *row_grads, *dense, *dense_grad;
	float *score, *label, *law; /* [TEST] */
} clicker;

static bool room(clicker *k, rows *r)
{
	uint64_t floats = k->o.block * CLICKS_FIELDS * k->net.dim, dense = k->dense_rows * DENSE_DIM;

	if (k->memory_of == r)
		return true;
	k->rows = r->ops->memory(r, floats);
	k->row_grads = r->ops->memory(r, floats);
	k->dense = r->ops->memory(r, dense);
	k->dense_grad = r->ops->memory(r, dense);
	if (!k->rows || !k->row_grads || !k->dense || !k->dense_grad)
		return false;
	k->memory_of = r;
	return true;
}

/* Samples first, first + 1, ... and the rows that they need. */
static bool fetch(clicker *k, rows *r, uint64_t first, uint64_t n, bool create)
{
	rows_part parts[2] = {{EMBEDDINGS, n * CLICKS_FIELDS, k->keys, k->rows},
			      {NETWORKS, k->dense_rows, k->dense_keys, k->dense}};

	for (uint64_t i = 0; i < n; i++) {
		clicks_sample(&k->logs, first + i, &k->block[i]);
		memcpy(k->keys + i * CLICKS_FIELDS, k->block[i].category, sizeof(k->block[i].category));
	}
	return r->ops->pull(r, parts, 2, create);
}

static bool work(model *m, rows *r, uint64_t epoch, uint64_t block, uint64_t step, model_loss *loss)
{
	clicker *k = (clicker *)m;
	uint64_t n = k->o.block, first = block * n, row = (uint64_t)CLICKS_FIELDS * k->net.dim;
	rows_part parts[2] = {{EMBEDDINGS, 0, k->keys, NULL}, {NETWORKS, k->dense_rows, k->dense_keys, NULL}};

	(void)epoch; /* the same logs each time */
	n = first + n > k->o.samples ? k->o.samples - first : n;
	if (!room(k, r) || !fetch(k, r, first, n, true))
		return false;
	memset(k->row_grads, 0, n * row * sizeof(float));
	memset(k->dense_grad, 0, k->dense_rows * DENSE_DIM * sizeof(float));
	for (uint64_t i = 0; i < n; i++)
		(void)dlrm_sample(&k->net, k->dense, k->rows + i * row, &k->block[i], &loss->sum,
				  k->dense_grad, k->row_grads + i * row);
	loss->items += n;
	parts[EMBEDDINGS].count = n * CLICKS_FIELDS;
	parts[EMBEDDINGS].rows = k->row_grads;
	parts[NETWORKS].rows = k->dense_grad;
	return r->ops->push(r, parts, 2, step);
}

static bool evaluate(model *m, rows *r, model_loss *loss)
{
	clicker *k = (clicker *)m;
	click_result *result = m->result;
	uint64_t row = (uint64_t)CLICKS_FIELDS * k->net.dim;

	if (!room(k, r))
		return false;
	for (uint64_t at = 0, n; at < TEST; at += n) {
		n = TEST - at < k->o.block ? TEST - at : k->o.block;
		if (!fetch(k, r, UINT64_MAX / 2 + at, n, false))
			return false;
		for (uint64_t i = 0; i < n; i++) {
			k->score[at + i] = dlrm_sample(&k->net, k->dense, k->rows + i * row, &k->block[i],
						       &loss->sum, NULL, NULL);
			k->label[at + i] = k->block[i].label;
			k->law[at + i] = k->block[i].probability;
		}
	}
	loss->items += TEST;
	result->auc = clicks_auc(k->score, k->label, TEST);
	result->best = clicks_auc(k->law, k->label, TEST);
	return true;
}

static void say(const model *m, const void *result, json *j)
{
	const click_result *c = result;

	(void)m;
	if (!j) {
		printf("AUC %.4f of samples that it never saw; the law of the logs has %.4f\n", c->auc,
		       c->best);
		return;
	}
	json_real(j, "auc", c->auc);
	json_real(j, "best_auc", c->best);
}

static void clicker_free(model *m)
{
	clicker *k = (clicker *)m;

	free(k->block);
	free(k->keys);
	free(k->dense_keys);
	free(k->score);
	free(k->label);
	free(k->law);
	free(k);
}

static void describe(clicker *k)
{
	static const model_ops ops = {"samples", work, evaluate, sizeof(click_result), say, clicker_free};
	const model_options *o = &k->o;

	k->m = (model){
		.ops = &ops,
		.name = "dlrm",
		.tables = 2,
		.blocks = (o->samples + o->block - 1) / o->block,
		.spec = {{.name = "dlrm/embeddings", .dim = k->net.dim, .range = 0.1f, .lr = (float)o->lr},
			 {.name = "dlrm/networks",
			  .dim = DENSE_DIM,
			  .dense_rows = k->dense_rows,
			  .range = 0.2f,
			  .lr = (float)o->lr}}};
}

bool dlrm_new(const model_options *o, model **m, char *error, size_t error_bytes)
{
	clicker *k = calloc(1, sizeof(*k));

	*m = NULL;
	if (o->dim > DLRM_DIM_MAX) {
		snprintf(error, error_bytes, "--dim %llu: at most %d for dlrm", (unsigned long long)o->dim,
			 DLRM_DIM_MAX);
		free(k);
		return false;
	}
	if (k) {
		k->o = *o;
		clicks_init(&k->logs, o->seed, o->vocabulary, o->skew);
		k->net = dlrm_shape((uint32_t)o->dim);
		k->dense_rows = (k->net.parameters + DENSE_DIM - 1) / DENSE_DIM;
		describe(k);
		k->block = malloc(o->block * sizeof(*k->block));
		k->keys = malloc(o->block * CLICKS_FIELDS * sizeof(*k->keys));
		k->dense_keys = malloc(k->dense_rows * sizeof(*k->dense_keys));
		k->score = malloc(TEST * sizeof(float));
		k->label = malloc(TEST * sizeof(float));
		k->law = malloc(TEST * sizeof(float));
	}
	if (!k || !k->block || !k->keys || !k->dense_keys || !k->score || !k->label || !k->law) {
		snprintf(error, error_bytes, "no memory for blocks of %llu samples",
			 (unsigned long long)o->block);
		if (k)
			clicker_free(&k->m);
		return false;
	}
	for (uint64_t i = 0; i < k->dense_rows; i++)
		k->dense_keys[i] = i;
	*m = &k->m;
	return true;
}
