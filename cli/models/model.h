/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model whose parameters are rows of tables: what it does with a block of its data, and how good it is. The loop
 * around it, with processes and servers, is train_tables.c; it knows nothing of words or clicks.
 *
 *   a step    each worker takes a block: pull its rows, gradients, push
 *   blocks    0 .. blocks-1 of an epoch, each a pure function of (seed, epoch, block): whoever takes it
 *
 * Threads: one per instance; instances of one process may not run at once. Tests: tests/e2e/models_test.py.
 */
#ifndef CLI_MODELS_MODEL_H
#define CLI_MODELS_MODEL_H

#include "../json.h"
#include "rows.h"

typedef struct model_options {
	const char *text;
	uint64_t dim, window, negative, min_count, block, seed, epochs;
	double lr, sample;
	uint64_t samples, vocabulary;
	double skew;
	const char *pairs; /* "a~b,c~d" */
} model_options;

typedef struct model_loss {
	double sum;
	uint64_t items;
} model_loss;

typedef struct model model;
typedef struct model_ops {
	const char *item; /* "pairs": what losses are means of */
	/* One block: pull, gradients, push. Adds to loss. False: rows->error. */
	bool (*work)(model *m, rows *r, uint64_t epoch, uint64_t block, uint64_t step, model_loss *loss);
	/* How good it is now; what `say` will print. False: rows->error. */
	bool (*evaluate)(model *m, rows *r, model_loss *loss);
	/* Bytes that evaluate() leaves for say() in another process; at result. */
	uint64_t result_bytes;
	void (*say)(const model *m, const void *result, json *j); /* j NULL: as text */
	void (*free)(model *m);
} model_ops;

struct model {
	const model_ops *ops;
	const char *name;
	unsigned tables;
	rows_spec spec[ROWS_TABLES_MAX];
	uint64_t blocks;
	void *result; /* shared memory, set by the loop */
};

/* False: error says why. Loads or makes the data. */
bool word2vec_new(const model_options *o, model **m, char *error, size_t error_bytes);

bool dlrm_new(const model_options *o, model **m, char *error, size_t error_bytes);

#endif
