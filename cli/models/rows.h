/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of rows as a model sees them: in parameter servers, or in plain arrays of this process. A model does not know
 * which, so that the second is the oracle of the first.
 *
 *   begin(step)   as <tern/ps_group.h>: waits, unless the job is asynchronous
 *   pull, push    several tables at once; gradients of equal keys are summed
 *   end(step)     summed jobs: what all workers pushed in the step is applied now, once
 *
 * Rows are Adagrad's, with an initial value in [-range, range).
 * Threads: one. Tests: tests/e2e/models_test.py.
 */
#ifndef CLI_MODELS_ROWS_H
#define CLI_MODELS_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/ps_group.h>

#define ROWS_TABLES_MAX 4

enum { JOB_ASYNC, JOB_BSP, JOB_SSP };

typedef struct rows_spec {
	char name[TERN_TABLE_NAME_MAX];
	uint32_t dim;
	uint64_t dense_rows; /* 0: sparse */
	float range, lr;
} rows_spec;

/* Of one table. */
typedef struct rows_part {
	unsigned table;
	uint64_t count;
	const uint64_t *keys;
	float *rows; /* (count, dim), memory of rows_memory(): values after a pull, gradients for a push */
} rows_part;

typedef struct rows rows;
typedef struct rows_ops {
	float *(*memory)(rows *r, uint64_t floats); /* NULL: there is none. Lives as long as the tables */
	bool (*begin)(rows *r, uint64_t step);
	bool (*pull)(rows *r, const rows_part *parts, unsigned n, bool create);
	bool (*push)(rows *r, const rows_part *parts, unsigned n, uint64_t step);
	bool (*end)(rows *r, uint64_t step);
	void (*close)(rows *r);
} rows_ops;

struct rows {
	const rows_ops *ops;
	unsigned count;
	rows_spec spec[ROWS_TABLES_MAX];
	char error[512]; /* of what returned false */
};

/* In this process. sum: pushes of a step are kept and applied at its end. NULL: no memory. */
rows *rows_local(const rows_spec *specs, unsigned count, bool sum, uint64_t seed);

typedef struct rows_ps_params {
	tern_ctx *ctx;
	tern_ps *ps;
	const char *group, *member;
	unsigned consistency;
	uint64_t staleness, seed;
} rows_ps_params;
/* At servers; makes tables that are not there, and joins the group. *step (may be NULL): where it is. On failure NULL and
   the text. member NULL: only to look. */
rows *rows_ps(const rows_spec *specs, unsigned count, const rows_ps_params *params, char *error,
	      uint64_t error_bytes);

#endif
