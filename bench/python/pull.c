/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C side of pull.py: the same pulls of the same table through the same context, without Python between them. Compiled
 * by pull.py. Must not: open or close anything.
 */
#include <time.h>

#include <tern/ps.h>

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ns[i]: of pull i. TERN_OK, or what the first failure was. */
int pulls(tern_ctx *ctx, tern_table *table, const uint64_t *keys, uint64_t count, void *rows, uint64_t *ns,
	  int n);

int pulls(tern_ctx *ctx, tern_table *table, const uint64_t *keys, uint64_t count, void *rows, uint64_t *ns,
	  int n)
{
	for (int i = 0; i < n; i++) {
		uint64_t start = now();
		tern_table_pull_params params = {.keys = keys, .count = count, .rows = rows};
		tern_op op;
		tern_status status;

		tern_op_init(&op, NULL, NULL);
		status = tern_table_pull(table, &params, &op);
		if (status == TERN_OK)
			status = tern_op_wait(ctx, &op, 0);
		if (status != TERN_OK)
			return status;
		ns[i] = now() - start;
	}
	return TERN_OK;
}
