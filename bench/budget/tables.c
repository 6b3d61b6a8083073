/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter server at the server's end, a client at the other, one table of some thousand rows of 64 f32. See budget.h.
 */
#include <stdlib.h>
#include <string.h>

#include "budget.h"

#define DIM  64u
#define ROWS 8192u

void tables_begin(pair *p)
{
	tern_table_schema schema = {.name = "budget", .dim = DIM};
	const char *servers[] = {tern_ctx_address(p->server)};
	tern_ps_params params = {.servers = servers, .count = 1};
	void *rows;

	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAGRAD, 0.01f);
	must(tern_ps_server_open(p->server, NULL, &p->ps_server), "server");
	must(tern_mem_alloc(tern_ctx_mem(p->client), BUDGET_KEYS * DIM * sizeof(float), 4096,
			    TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &rows),
	     "memory");
	p->rows = rows;
	p->keys = calloc(ROWS, sizeof(*p->keys));
	if (p->keys == NULL)
		must(TERN_E_NOMEM, "keys");
	for (uint64_t i = 0; i < ROWS; i++)
		p->keys[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
	pair_pump_begin(p);
	must(tern_ps_open(p->client, &params, &p->ps), "client");
	must(tern_table_create(p->ps, &schema, &p->table), "table");
	for (uint64_t i = 0; i < ROWS; i += BUDGET_KEYS) {
		tern_table_pull_params pull = {.keys = p->keys + i, .count = BUDGET_KEYS, .rows = rows};

		must(tern_table_pull_wait(p->table, &pull, 0), "pull");
	}
	pair_pump_end();
	memset(rows, 0, BUDGET_KEYS * DIM * sizeof(float));
}

static const uint64_t *next_keys(pair *p, uint64_t keys)
{
	uint64_t at = p->turn;

	p->turn = at + 2 * keys > ROWS ? 0 : at + keys;
	return p->keys + at;
}

void pull_once(pair *p, uint64_t keys)
{
	tern_table_pull_params pull = {.keys = next_keys(p, keys), .count = keys, .rows = p->rows};

	tern_op_init(&p->op, NULL, NULL);
	must(tern_table_pull(p->table, &pull, &p->op), "pull");
	pair_finish(p, &p->op);
}

void push_once(pair *p, uint64_t keys)
{
	tern_table_push_params push = {.keys = next_keys(p, keys), .count = keys, .rows = p->rows};

	tern_op_init(&p->op, NULL, NULL);
	must(tern_table_push(p->table, &push, &p->op), "push");
	pair_finish(p, &p->op);
}
