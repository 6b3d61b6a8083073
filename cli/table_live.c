/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern table list|create|describe|drop|stats`: tables at running servers. Threads: main, the library's beside it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/ps.h>

#include "args.h"
#include "json.h"
#include "table.h"

#define SERVERS_MAX 256
#define MIB         1048576.0

int table_failed(const reach *r)
{
	fprintf(stderr, "tern %s %s: %s\n", r->name ? r->name : "table", r->command, tern_detail());
	return 1;
}

void table_leave(reach *r)
{
	tern_ps_close(r->ps);
	if (r->ctx)
		tern_ctx_destroy(r->ctx);
	free(r->text);
}

int table_enter(reach *r)
{
	char name[48];
	const char *servers[SERVERS_MAX];
	tern_ctx_params params = {.name = name, .listen = ""};
	tern_ps_params ps = {.servers = servers,
			     .timeout_ns = r->timeout_ns ? r->timeout_ns : 10000000000ull};

	snprintf(name, sizeof(name), "tern-table-%d", (int)getpid());
	if (!r->server) {
		fprintf(stderr, "tern %s %s: which servers? Say --server HOST:PORT\n",
			r->name ? r->name : "table", r->command);
		return 2;
	}
	r->text = strdup(r->server);
	for (char *part = r->text ? strtok(r->text, ",") : NULL; part && ps.count < SERVERS_MAX;
	     part = strtok(NULL, ","))
		servers[ps.count++] = part;
	if (tern_ctx_create(&params, &r->ctx) == TERN_OK && tern_ps_open(r->ctx, &ps, &r->ps) == TERN_OK)
		return 0;
	table_failed(r);
	table_leave(r);
	return 1;
}

static void json_schema(json *j, const tern_table_schema *s)
{
	json_object(j, NULL);
	json_string(j, "name", s->name);
	json_string(j, "kind", table_kind(s));
	json_string(j, "dtype", table_dtype(s));
	json_u64(j, "dim", s->dim);
	json_string(j, "optimizer", table_optimizer(s));
	json_real(j, "lr", (double)s->optimizer.lr);
	json_u64(j, "rows", s->rows);
	json_u64(j, "budget_bytes", s->budget_bytes);
	json_u64(j, "ttl_steps", s->ttl_steps);
	json_u64(j, "admit_after", s->admit_after);
	json_object_end(j);
}

static void print_schema(const tern_table_schema *s)
{
	printf("%-32s %-6s %s x %-5" PRIu32 " %-8s", s->name, table_kind(s), table_dtype(s), s->dim,
	       table_optimizer(s));
	if (s->optimizer.kind != TERN_OPT_NONE)
		printf(" lr %g", (double)s->optimizer.lr);
	if (s->budget_bytes)
		printf("  budget %.1f MiB", (double)s->budget_bytes / MIB);
	putchar('\n');
}

/* ---- list, describe ---- */

typedef struct listing {
	json j;
	bool as_json;
} listing;

static void list_one(const tern_table_schema *schema, void *arg)
{
	listing *l = arg;

	if (l->as_json)
		json_schema(&l->j, schema);
	else
		print_schema(schema);
}

int table_list(int argc, char **argv)
{
	static const arg_usage usage = {.command = "tern table list",
					.summary = "the tables of running servers",
					.synopsis = "tern table list --server LIST [--json]"};
	reach r = {.command = "list"};
	const arg_row rows[] = {REACH_ROWS(&r),
				{"json", ARG_FLAG, &r.as_json, NULL, "one JSON array", 0, 0, false, NULL},
				{0}};
	listing l;
	int rc = args_parse(&usage, rows, argc, argv, NULL);

	if (rc >= 0 || (rc = table_enter(&r)) != 0)
		return rc;
	l.as_json = r.as_json;
	json_init(&l.j, stdout);
	if (l.as_json)
		json_array(&l.j, NULL);
	rc = tern_table_list(r.ps, list_one, &l) == TERN_OK ? 0 : table_failed(&r);
	if (l.as_json) {
		json_array_end(&l.j);
		putchar('\n');
	}
	table_leave(&r);
	return rc;
}

/* A name is there, and the servers are reached: -1; else the exit status. */
static int enter_named(reach *r, const char *name)
{
	int rc;

	if (!name) {
		fprintf(stderr, "tern table %s: which table? Give its name\n", r->command);
		return 2;
	}
	rc = table_enter(r);
	return rc ? rc : -1;
}

int table_describe(int argc, char **argv)
{
	static const arg_usage usage = {.command = "tern table describe",
					.summary = "the schema of a table",
					.synopsis = "tern table describe NAME --server LIST [--json]",
					.positional_max = 1};
	reach r = {.command = "describe"};
	const arg_row rows[] = {REACH_ROWS(&r),
				{"json", ARG_FLAG, &r.as_json, NULL, "one JSON object", 0, 0, false, NULL},
				{0}};
	const char *name = NULL;
	tern_table_schema schema;
	json j;
	int rc = args_parse(&usage, rows, argc, argv, &name);

	if (rc >= 0 || (rc = enter_named(&r, name)) >= 0)
		return rc;
	rc = tern_table_describe(r.ps, name, &schema) == TERN_OK ? 0 : table_failed(&r);
	json_init(&j, stdout);
	if (rc == 0 && r.as_json) {
		json_schema(&j, &schema);
		putchar('\n');
	} else if (rc == 0) {
		print_schema(&schema);
	}
	table_leave(&r);
	return rc;
}

/* ---- create ---- */

typedef struct wanted {
	uint64_t dim, rows, budget, ttl, admit, seed;
	unsigned dtype, optimizer, init, eviction;
	double lr, init_value;
} wanted;

static tern_table_schema schema_of(const wanted *o, const char *name)
{
	static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};
	tern_table_schema s = {.kind = o->rows ? TERN_TABLE_DENSE : TERN_TABLE_SPARSE,
			       .dtype = dtypes[o->dtype],
			       .dim = o->dim > UINT32_MAX ? UINT32_MAX : (uint32_t)o->dim,
			       .rows = o->rows,
			       .budget_bytes = o->budget,
			       .ttl_steps = o->ttl,
			       .admit_after = o->admit > UINT32_MAX ? UINT32_MAX : (uint32_t)o->admit,
			       .eviction = (tern_eviction)o->eviction};

	snprintf(s.name, sizeof(s.name), "%s", name);
	if (o->optimizer)
		tern_optimizer_init(&s.optimizer, (tern_row_optimizer)o->optimizer, (float)o->lr);
	s.init = (tern_row_init){
		.kind = (tern_row_start)o->init, .value = (float)o->init_value, .seed = o->seed};
	return s;
}

static int create(reach *r, const wanted *o, const char *name)
{
	tern_table_schema schema = schema_of(o, name);
	tern_table *table;

	if (strlen(name) >= sizeof(schema.name)) {
		fprintf(stderr, "tern table create: a name has at most %zu characters\n",
			sizeof(schema.name) - 1);
		return 1;
	}
	return tern_table_create(r->ps, &schema, &table) == TERN_OK ? 0 : table_failed(r);
}

int table_create(int argc, char **argv)
{
	static const arg_usage usage = {.command = "tern table create",
					.summary = "make a table at running servers",
					.synopsis = "tern table create NAME --server LIST --dim N [options]",
					.epilogue = "A table of that name with the same schema is success.",
					.positional_max = 1};
	reach r = {.command = "create"};
	wanted o = {.lr = 0.01};
	const arg_row rows[] = {
		REACH_ROWS(&r),
		{"dim", ARG_U64, &o.dim, "N", "elements of a row", 0, 0, false, NULL},
		{"dtype", ARG_CHOICE, &o.dtype, "f32|bf16|f16", "of rows (default f32)", 0, 0, false, NULL},
		{"rows", ARG_U64, &o.rows, "N", "a dense table of so many rows; else any u64 is a key", 0, 0,
		 false, NULL},
		{"optimizer", ARG_CHOICE, &o.optimizer, "none|sgd|momentum|adagrad|adam|adamw|ftrl|rmsprop",
		 "default none: pushes add", 0, 0, false, NULL},
		{"lr", ARG_REAL, &o.lr, "RATE", "learning rate (default 0.01)", 0, 0, false, NULL},
		{"init", ARG_CHOICE, &o.init, "zeros|constant|uniform|normal", "of new rows (default zeros)",
		 0, 0, false, NULL},
		{"init-value", ARG_REAL, &o.init_value, "X", "the constant, half the width, or the deviation",
		 0, 0, false, NULL},
		{"seed", ARG_U64, &o.seed, "N", "of random rows", 0, 0, false, NULL},
		{"budget", ARG_BYTES, &o.budget, "BYTES", "of one server's share (default none)", 0, 0, false,
		 NULL},
		{"eviction", ARG_CHOICE, &o.eviction, "none|lru|lfu", "what makes room in it (default none)",
		 0, 0, false, NULL},
		{"ttl", ARG_U64, &o.ttl, "STEPS", "rows that no step used for longer may be dropped", 0, 0,
		 false, NULL},
		{"admit-after", ARG_U64, &o.admit, "N", "a key gets a row when it was asked for that often",
		 0, 0, false, NULL},
		{0},
	};
	const char *name = NULL;
	int rc = args_parse(&usage, rows, argc, argv, &name);

	if (rc >= 0 || (rc = enter_named(&r, name)) >= 0)
		return rc;
	rc = create(&r, &o, name);
	table_leave(&r);
	return rc;
}

/* ---- drop, stats ---- */

int table_drop(int argc, char **argv)
{
	static const arg_usage usage = {.command = "tern table drop",
					.summary = "drop a table at all servers: its rows are gone",
					.synopsis = "tern table drop NAME --server LIST",
					.positional_max = 1};
	reach r = {.command = "drop"};
	const arg_row rows[] = {REACH_ROWS(&r), {0}};
	const char *name = NULL;
	int rc = args_parse(&usage, rows, argc, argv, &name);

	if (rc >= 0 || (rc = enter_named(&r, name)) >= 0)
		return rc;
	rc = tern_table_drop(r.ps, name) == TERN_OK ? 0 : table_failed(&r);
	table_leave(&r);
	return rc;
}

#define STATS(X)        \
	X(rows)         \
	X(bytes)        \
	X(record_bytes) \
	X(created)      \
	X(erased)       \
	X(evicted)      \
	X(expired)      \
	X(not_admitted) X(refused) X(nonfinite) X(pulled) X(pushed) X(duplicates) X(cold_rows) X(cold_bytes)

/* The hottest slots; load is zeroed. */
static void print_hot(uint64_t *load, uint64_t slots, json *j)
{
	double all = 0;

	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		all += (double)load[s];
	for (uint64_t i = 0; i < slots; i++) {
		uint32_t hot = 0;

		for (uint32_t s = 1; s < TERN_TABLE_SLOTS; s++)
			if (load[s] > load[hot])
				hot = s;
		if (load[hot] == 0)
			return;
		if (j) {
			json_object(j, NULL);
			json_u64(j, "slot", hot);
			json_u64(j, "keys", load[hot]);
			json_real(j, "share", (double)load[hot] / all);
			json_object_end(j);
		} else {
			printf("slot %-9" PRIu32 " %" PRIu64 " keys, %.2f %%\n", hot, load[hot],
			       100 * (double)load[hot] / all);
		}
		load[hot] = 0;
	}
}

static void print_stats(const tern_table_stats *s, uint64_t *load, uint64_t slots, bool as_json)
{
	json j;

	json_init(&j, stdout);
	if (as_json) {
		json_object(&j, NULL);
#define ROW(field) json_u64(&j, #field, s->field);
		STATS(ROW)
#undef ROW
		if (load) {
			json_array(&j, "hot");
			print_hot(load, slots, &j);
			json_array_end(&j);
		}
		json_object_end(&j);
		putchar('\n');
		return;
	}
#define ROW(field) printf("%-14s %" PRIu64 "\n", #field, s->field);
	STATS(ROW)
#undef ROW
	if (load)
		print_hot(load, slots, NULL);
}

int table_stats(int argc, char **argv)
{
	static const arg_usage usage = {.command = "tern table stats",
					.summary = "rows, bytes and what happened to them, over all servers",
					.synopsis = "tern table stats NAME --server LIST [--hot N] [--json]",
					.positional_max = 1};
	reach r = {.command = "stats"};
	uint64_t slots = 0;
	const arg_row rows[] = {REACH_ROWS(&r),
				{"hot", ARG_U64, &slots, "N", "and the N slots that are asked for most", 1,
				 TERN_TABLE_SLOTS, false, NULL},
				{"json", ARG_FLAG, &r.as_json, NULL, "one JSON object", 0, 0, false, NULL},
				{0}};
	const char *name = NULL;
	static uint64_t load[TERN_TABLE_SLOTS];
	tern_table_stats stats;
	int rc = args_parse(&usage, rows, argc, argv, &name);

	if (rc >= 0 || (rc = enter_named(&r, name)) >= 0)
		return rc;
	rc = tern_table_get_stats(r.ps, name, &stats) == TERN_OK ? 0 : table_failed(&r);
	if (rc == 0 && slots && tern_table_get_load(r.ps, name, load) != TERN_OK)
		rc = table_failed(&r);
	if (rc == 0)
		print_stats(&stats, slots ? load : NULL, slots, r.as_json);
	table_leave(&r);
	return rc;
}
