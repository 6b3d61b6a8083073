/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches and pushes of bench-peer-tern: a parameter server with one table in the server's process, a client in the
 * other, both in contexts of their own that are made when they are first asked for.
 *
 * Threads: main, the contexts' helpers, the server's workers.
 */
#include <stdlib.h>
#include <string.h>

#include "tern.h"

static void server_begin(h_env *e, t_state *t)
{
	tern_ctx_params params = {.name = "bench tables",
				  .transports = e->transport,
				  .flags = e->spin ? TERN_CTX_NO_HELPER : 0,
				  .options = t_options(e)};

	t_must(e, tern_ctx_create(&params, &t->table_ctx), "context");
	t_must(e, tern_ps_server_open(t->table_ctx, NULL, &t->ps_server), "server");
	h_give(e, tern_ctx_address(t->table_ctx), strlen(tern_ctx_address(t->table_ctx)) + 1);
}

void t_table_serve(h_env *e)
{
	t_state *t = e->state;

	if (t->table_ctx == NULL)
		server_begin(e, t);
	while (e->spin && !h_done(e))
		(void)tern_ctx_progress(t->table_ctx);
}

/* A million rows. */
static void fill(h_env *e, t_state *t)
{
	uint64_t *keys = malloc(H_KEYS_MAX * sizeof(*keys));
	void *rows;

	if (keys == NULL)
		h_die(e, "no memory");
	t_must(e,
	       tern_mem_alloc(tern_ctx_mem(t->table_ctx), (uint64_t)H_KEYS_MAX * H_DIM * sizeof(float), 4096,
			      TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &rows),
	       "memory");
	t->rows = rows;
	for (uint64_t i = 0, n; i < H_ROWS; i += n) {
		tern_table_pull_params pull = {.keys = keys, .rows = t->rows};

		n = H_ROWS - i < H_KEYS_MAX ? H_ROWS - i : H_KEYS_MAX;
		for (uint64_t j = 0; j < n; j++)
			keys[j] = h_key(i + j);
		pull.count = n;
		t_must(e, tern_table_pull_wait(t->table, &pull, 0), "filling the table");
	}
	memset(t->rows, 0, (size_t)H_KEYS_MAX * H_DIM * sizeof(float));
	free(keys);
}

static void client_begin(h_env *e, t_state *t)
{
	static const char *const spin[] = {"ctx.spin_ns=1000000000", "link.keepalive=0", NULL};
	tern_ctx_params params = {.name = "bench table client",
				  .listen = "",
				  .transports = e->transport,
				  .options = e->spin ? spin : t_options(e)};
	tern_table_schema schema = {.name = "bench", .dim = H_DIM};
	char address[128] = "";
	const char *servers[] = {address};
	tern_ps_params ps = {.servers = servers, .count = 1};

	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAGRAD, 0.01f);
	schema.init = (tern_row_init){.kind = TERN_ROW_UNIFORM, .value = 0.1f, .seed = 1};
	(void)h_take(e, address, sizeof(address));
	t_must(e, tern_ctx_create(&params, &t->table_ctx), "context");
	t_must(e, tern_ps_open(t->table_ctx, &ps, &t->ps), "client");
	t_must(e, tern_table_create(t->ps, &schema, &t->table), "table");
	fill(e, t);
}

void t_table_run(h_env *e, const h_work *w)
{
	t_state *t = e->state;

	if (t->table_ctx == NULL)
		client_begin(e, t);
	for (uint64_t i = 0; i < w->count; i++) {
		const uint64_t *keys = h_keys(e, w->size);
		tern_table_pull_params pull = {.keys = keys, .count = w->size, .rows = t->rows};
		tern_table_push_params push = {.keys = keys, .count = w->size, .rows = t->rows};

		t_must(e,
		       w->op == H_PUSH ? tern_table_push_wait(t->table, &push, 0)
				       : tern_table_pull_wait(t->table, &pull, 0),
		       "table");
		h_tick(e);
	}
}
