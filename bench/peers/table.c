/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of tern's tables in the servers of the others, so that a fetch differs by its transport alone. A million
 * rows of 64 f32, adagrad. Threads: one.
 */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "ps/table.h"

static void must(tern_status status)
{
	if (status == TERN_OK)
		return;
	fprintf(stderr, "bench/peers: the table: %s\n", tern_status_name(status));
	_Exit(1);
}

void *h_table_make(void)
{
	tern_table_schema s = {.name = "bench", .dim = H_DIM};
	float *rows = malloc(sizeof(float) * H_KEYS_MAX * H_DIM);
	uint64_t *keys = malloc(sizeof(uint64_t) * H_KEYS_MAX);
	tn_table *table;

	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.01f);
	s.init = (tern_row_init){.kind = TERN_ROW_UNIFORM, .value = 0.1f, .seed = 1};
	must(rows && keys ? tn_table_create(&s, NULL, &table) : TERN_E_NOMEM);
	for (uint64_t i = 0, n; i < H_ROWS; i += n) {
		n = H_ROWS - i < H_KEYS_MAX ? H_ROWS - i : H_KEYS_MAX;
		for (uint64_t j = 0; j < n; j++)
			keys[j] = h_key(i + j);
		h_table_pull(table, keys, n, rows);
	}
	free(rows);
	free(keys);
	return table;
}

void h_table_pull(void *table, const uint64_t *keys, uint64_t count, float *rows)
{
	tn_pull how = {.unknown = TERN_UNKNOWN_CREATE, .flags = TN_PULL_TOUCH};

	must(tn_table_pull(table, keys, count, &how, rows, NULL, NULL, NULL));
}

void h_table_push(void *table, const uint64_t *keys, uint64_t count, const float *rows)
{
	tn_push how = {.mode = TERN_PUSH_GRADIENT};

	must(tn_table_push(table, keys, rows, count, &how, NULL));
}
