/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of tern: a server process, a client with a context of its own in this one. Blocking: the server's helper
 * sleeps, the client sleeps in its wait, both as they do unasked (a spin first) or at once; --spin: both poll.
 *
 * Threads: the caller's and the library's helpers.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <tern/mem.h>

#include "bench.h"

typedef struct tern_state {
	tern_ctx *ctx;
	tern_ps *ps;
	tern_table *table;
	bool one_sided;
} tern_state;

/* Servers stand still while others are measured: that is no reason to take them for dead. */
#define PATIENT "link.keepalive=0"

static const char *const as_is[] = {PATIENT, NULL}, *const no_spin[] = {"ctx.spin_ns=0", PATIENT, NULL},
			 *const spinning[] = {"ctx.spin_ns=1000000000", PATIENT, NULL};

static void serve(const char *name, const char *transport, bool asleep, int out)
{
	tern_ctx_params params = {.transports = transport, .options = asleep ? no_spin : as_is};
	tern_ps_server *server;
	tern_ctx *ctx;
	char unique[64];

	snprintf(unique, sizeof(unique), "server of %s",
		 name); /* contexts of one name are one that restarted */
	params.name = unique;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	bench_pin(1);
	params.flags = opt.spin ? TERN_CTX_SINGLE_OWNER : 0; /* one thread, as the kernel's line has */
	if (tern_ctx_create(&params, &ctx) != TERN_OK || tern_ps_server_open(ctx, NULL, &server) != TERN_OK)
		bench_die(transport, tern_detail());
	if (write(out, tern_ctx_address(ctx), strlen(tern_ctx_address(ctx)) + 1) < 0)
		exit(1);
	for (;;) {
		if (opt.spin)
			(void)tern_ctx_progress(ctx);
		else
			pause();
	}
}

static float *rows(line *l, uint64_t bytes)
{
	tern_state *t = l->state;
	void *p;

	if (tern_mem_alloc(tern_ctx_mem(t->ctx), bytes, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			   TERN_MEM_HOST, &p) != TERN_OK)
		bench_die(l->name, tern_detail());
	memset(p, 0, bytes);
	return p;
}

static void run(line *l, const request *r)
{
	tern_state *t = l->state;
	tern_table_pull_params pull = {.keys = r->keys,
				       .count = r->count,
				       .rows = r->rows,
				       .flags = t->one_sided ? TERN_PULL_ONE_SIDED : 0};
	tern_table_push_params push = {.keys = r->keys, .count = r->count, .rows = r->rows};
	tern_status status = opt.push ? tern_table_push_wait(t->table, &push, 0)
				      : tern_table_pull_wait(t->table, &pull, 0);

	if (status != TERN_OK)
		bench_die(l->name, tern_detail());
}

static void fill(line *l)
{
	tern_state *t = l->state;
	float *all = rows(l, (uint64_t)KEYS_MAX * opt.dim * sizeof(float));
	uint64_t *keys = malloc(KEYS_MAX * sizeof(uint64_t));

	for (uint64_t i = 0, n; i < opt.rows; i += n) {
		tern_table_pull_params pull = {.keys = keys, .rows = all};

		n = opt.rows - i < KEYS_MAX ? opt.rows - i : KEYS_MAX;
		for (uint64_t j = 0; j < n; j++)
			keys[j] = bench_key(i + j);
		pull.count = n;
		if (tern_table_pull_wait(t->table, &pull, 0) != TERN_OK)
			bench_die(l->name, tern_detail());
	}
	free(keys);
	tern_mem_free(tern_ctx_mem(t->ctx), all);
}

/* While the server is there: a link that loses its peer says so. */
static void leave(line *l)
{
	tern_state *t = l->state;

	tern_table_close(t->table);
	tern_ps_close(t->ps);
	tern_ctx_destroy(t->ctx);
}

void line_tern(line *l, const char *name, const char *transport, bool one_sided, bool asleep)
{
	tern_ctx_params params = {.name = name,
				  .listen = "",
				  .transports = transport,
				  .flags = opt.spin ? TERN_CTX_SINGLE_OWNER : 0,
				  .options = opt.spin ? spinning
					     : asleep ? no_spin
						      : as_is};
	tern_state *t = calloc(1, sizeof(*t));
	tern_table_schema schema = bench_schema();
	char address[128] = "";
	const char *servers[] = {address};
	tern_ps_params ps = {.servers = servers, .count = 1};
	int fds[2];

	*l = (line){.name = name, .rows = rows, .run = run, .leave = leave, .state = t};
	t->one_sided = one_sided;
	schema.flags |= one_sided ? TERN_TABLE_ONE_SIDED : 0;
	if (pipe(fds) != 0)
		bench_die(name, "pipe");
	l->server = fork();
	if (l->server == 0)
		serve(name, transport, asleep, fds[1]);
	if (read(fds[0], address, sizeof(address)) <= 0)
		bench_die(name, "its server did not start");
	close(fds[0]);
	close(fds[1]);
	if (tern_ctx_create(&params, &t->ctx) != TERN_OK || tern_ps_open(t->ctx, &ps, &t->ps) != TERN_OK ||
	    tern_table_create(t->ps, &schema, &t->table) != TERN_OK)
		bench_die(name, tern_detail());
	fill(l);
	kill(l->server, SIGSTOP);
}
