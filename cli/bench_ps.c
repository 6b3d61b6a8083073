/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern bench ps`: clients that pull and push at parameter servers, as many and as skewed as asked for. This file:
 * options, the run, its figures. The clients: bench_ps_client.c; processes: crew.c.
 *
 * With --check every push adds one to each element of the rows of its keys; at the end the rows must say how many
 * keys were pushed, each element the same: what was acknowledged was applied, once.
 *
 * Threads: main, the library's beside it. Tests: tests/e2e/bench_test.py.
 */
#include "bench_ps.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "json.h"
#include "progress.h"
#include "zipf.h"

#define CHECK_KEYS 8192u

static const char *const consistency_names[] = {"async", "bsp", "ssp"};
static const char *const optimizer_names[] = {"none", "sgd",   "momentum", "adagrad",
					      "adam", "adamw", "ftrl",     "rmsprop"};
static const char *const dtype_names[] = {"f32", "bf16", "f16"};

typedef struct bench_run {
	const bench_ps_options *o;
	crew crew;
	bench_ps_shared *shared;
	tern_ctx *ctx;
	tern_ps *ps;
	tern_table *table;
	progress bar;
	double seconds, client_cpu, server_cpu; /* of the measured phase */
	tern_table_stats stats;
	histogram pull, push;
	uint64_t measured_keys, pulled, pushed;
} bench_run;

static uint64_t lanes(const bench_ps_options *o)
{
	return o->clients * o->threads;
}

/* ---- the run ---- */

static bool make_table(bench_run *b)
{
	static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};
	const bench_ps_options *o = b->o;
	tern_table_schema schema = {.dtype = dtypes[o->dtype], .dim = (uint32_t)o->dim};
	char name[32];

	if (!crew_meet(&b->crew))
		return false;
	snprintf(name, sizeof(name), "bench-%d", (int)getpid());
	if (!crew_join(&b->crew, name, &b->ctx, &b->ps))
		return false;
	snprintf(b->shared->table, sizeof(b->shared->table), "bench-ps-%d", (int)getpid());
	snprintf(schema.name, sizeof(schema.name), "%s", b->shared->table);
	if (o->optimizer)
		tern_optimizer_init(&schema.optimizer, (tern_row_optimizer)o->optimizer, 0.01f);
	if (!o->check)
		schema.init = (tern_row_init){.kind = TERN_ROW_UNIFORM, .value = 0.01f, .seed = o->seed};
	if (tern_table_create(b->ps, &schema, &b->table) != TERN_OK) {
		crew_fail(&b->crew, "cannot create the table: %s", tern_detail());
		return false;
	}
	atomic_store(&b->shared->table_ready, 1);
	return true;
}

static bool wait_for_rows(bench_run *b)
{
	progress_init(&b->bar, "bench ps: rows", b->o->keys, b->o->quiet);
	while (atomic_load(&b->shared->lanes_ready) < lanes(b->o)) {
		if (!crew_watch(&b->crew, 10))
			return false;
		progress_draw(&b->bar, atomic_load(&b->shared->rows_made), false, "");
	}
	progress_clear(&b->bar);
	return true;
}

static uint64_t keys_so_far(const bench_run *b)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < lanes(b->o); i++)
		sum += atomic_load_explicit(&b->shared->lanes[i].keys, memory_order_relaxed);
	return sum;
}

/* Let the phase last. False: it is over. */
static bool last(bench_run *b, uint32_t phase, uint64_t ns)
{
	uint64_t start = progress_now_ns(), now = start, keys = keys_so_far(b);
	char words[64] = "warming up";

	atomic_store(&b->shared->phase, phase);
	for (; now - start < ns; now = progress_now_ns()) {
		uint64_t left = (ns - (now - start)) / 1000000 + 1;
		double seconds = (double)(now - start) * 1e-9;

		if (phase == BENCH_MEASURED && seconds > 0.1)
			snprintf(words, sizeof(words), "%.2f M keys/s",
				 (double)(keys_so_far(b) - keys) / seconds * 1e-6);
		progress_draw(&b->bar, (now - start) / 1000000, false, words);
		if (!crew_watch(&b->crew, left < 100 ? (unsigned)left : 100))
			return false;
	}
	return true;
}

static bool measure(bench_run *b)
{
	uint64_t start;

	progress_init(&b->bar, "bench ps: ms", b->o->duration_ns / 1000000, b->o->quiet);
	if (!last(b, BENCH_WARM, b->o->warmup_ns))
		return false;
	start = progress_now_ns();
	b->client_cpu = crew_cpu_seconds(&b->crew, true);
	b->server_cpu = crew_cpu_seconds(&b->crew, false);
	if (!last(b, BENCH_MEASURED, b->o->duration_ns))
		return false;
	b->client_cpu = crew_cpu_seconds(&b->crew, true) - b->client_cpu;
	b->server_cpu = crew_cpu_seconds(&b->crew, false) - b->server_cpu;
	b->seconds = (double)(progress_now_ns() - start) * 1e-9;
	atomic_store(&b->shared->phase, BENCH_OVER);
	while (crew_running(&b->crew))
		if (!crew_watch(&b->crew, 2))
			return false;
	return true;
}

static void collect(bench_run *b)
{
	for (uint64_t i = 0; i < lanes(b->o); i++) {
		const bench_ps_lane *l = &b->shared->lanes[i];

		histogram_merge(&b->pull, &l->pull);
		histogram_merge(&b->push, &l->push);
		b->measured_keys += l->measured_keys;
		b->pulled += l->pulled;
		b->pushed += l->pushed;
	}
}

/* ---- what the rows say ---- */

static bool check_rows(bench_run *b)
{
	const bench_ps_options *o = b->o;
	uint64_t keys[CHECK_KEYS], at = 0;
	float *rows = malloc(CHECK_KEYS * o->dim * sizeof(float));
	double sum = 0;

	while (rows && at < o->keys) {
		tern_table_pull_params pull = {
			.keys = keys, .rows = rows, .dtype = TERN_F32, .unknown = TERN_UNKNOWN_ERROR};

		for (; pull.count < CHECK_KEYS && at < o->keys; pull.count++)
			keys[pull.count] = zipf_key(at++);
		if (tern_table_pull_wait(b->table, &pull, 0) != TERN_OK) {
			crew_fail(&b->crew, "reading the rows: %s", tern_detail());
			break;
		}
		for (uint64_t i = 0; i < pull.count * o->dim; i++) {
			if (rows[i] != rows[i / o->dim * o->dim])
				crew_fail(&b->crew,
					  "elements of the row of key %" PRIu64 " differ: a push was "
					  "applied to a part of it",
					  keys[i / o->dim]);
			sum += i % o->dim ? 0 : (double)rows[i];
		}
	}
	free(rows);
	if (sum != (double)b->pushed)
		crew_fail(&b->crew, "%" PRIu64 " keys were pushed, the rows say %.0f", b->pushed, sum);
	return !atomic_load(&b->crew.board->failed);
}

static void add_backups(const tern_ps_server_info *info, void *arg)
{
	*(uint64_t *)arg += info->backups;
}

/* While slots move, two servers may count the same rows, or may have counted rows of a release that counts backups too. */
static bool rows_are_right(bench_run *b)
{
	uint64_t backups = 0, keys = b->o->keys, rows = b->stats.rows;
	bool joined = tern_ps_server_list(b->ps, add_backups, &backups, NULL) == TERN_OK;

	return rows == keys || (joined && backups && rows > keys && rows <= 2 * keys);
}

/* What servers counted against what clients did; the rows of the table. */
static bool check_counts(bench_run *b)
{
	const tern_table_stats *s = &b->stats;

	if (tern_table_get_stats(b->ps, b->shared->table, &b->stats) != TERN_OK) {
		crew_fail(&b->crew, "statistics of the table: %s", tern_detail());
		return false;
	}
	if (!rows_are_right(b))
		crew_fail(&b->crew, "the table has %" PRIu64 " rows of %" PRIu64 " keys", s->rows,
			  b->o->keys);
	/* fewer: equal keys of a batch may travel once */
	else if (s->pushed > b->pushed)
		crew_fail(&b->crew, "%" PRIu64 " keys were pushed, servers applied %" PRIu64, b->pushed,
			  s->pushed);
	else if (!b->o->check || check_rows(b))
		return true;
	return false;
}

/* ---- figures ---- */

static void json_times(json *j, const char *name, const histogram *h)
{
	json_object(j, name);
	json_u64(j, "count", h->count);
	json_real(j, "mean_us", h->count ? (double)h->sum / (double)h->count * 1e-3 : NAN);
	json_real(j, "p50_us", histogram_quantile(h, 0.5) * 1e-3);
	json_real(j, "p99_us", histogram_quantile(h, 0.99) * 1e-3);
	json_real(j, "p999_us", histogram_quantile(h, 0.999) * 1e-3);
	json_real(j, "max_us", h->count ? (double)h->max * 1e-3 : NAN);
	json_object_end(j);
}

static double per_million(const bench_run *b, double seconds)
{
	return b->measured_keys ? seconds * 1e6 / (double)b->measured_keys : NAN;
}

static void json_options(json *j, const bench_run *b)
{
	const bench_ps_options *o = b->o;

	json_object(j, "options");
	json_u64(j, "servers", b->crew.servers);
	json_bool(j, "local", b->crew.local);
	json_u64(j, "clients", o->clients);
	json_u64(j, "threads", o->threads);
	json_u64(j, "keys", o->keys);
	json_real(j, "skew", o->skew);
	json_u64(j, "dim", o->dim);
	json_string(j, "dtype", dtype_names[o->dtype]);
	json_string(j, "optimizer", optimizer_names[o->optimizer]);
	json_u64(j, "batch", o->batch);
	json_real(j, "reads", o->reads);
	json_string(j, "consistency", consistency_names[o->consistency]);
	json_u64(j, "staleness", o->consistency == BENCH_SSP ? o->staleness : 0);
	json_string(j, "transport", o->transport ? o->transport : "auto");
	json_bool(j, "spin", o->spin);
	json_u64(j, "seed", o->seed);
	json_object_end(j);
}

static void print_json(const bench_run *b)
{
	json j;

	json_init(&j, stdout);
	json_object(&j, NULL);
	json_real(&j, "seconds", b->seconds);
	json_u64(&j, "keys", b->measured_keys);
	json_real(&j, "keys_per_s", (double)b->measured_keys / b->seconds);
	json_times(&j, "pull", &b->pull);
	json_times(&j, "push", &b->push);
	json_real(&j, "client_cpu_s_per_mkeys", per_million(b, b->client_cpu));
	json_real(&j, "server_cpu_s_per_mkeys", b->crew.local ? per_million(b, b->server_cpu) : NAN);
	json_u64(&j, "pulled", b->pulled);
	json_u64(&j, "pushed", b->pushed);
	json_u64(&j, "rows", b->stats.rows);
	json_u64(&j, "bytes", b->stats.bytes);
	json_u64(&j, "duplicates", b->stats.duplicates);
	json_bool(&j, "checked", b->o->check);
	json_options(&j, b);
	json_object_end(&j);
	putchar('\n');
}

static void print_times(const char *name, const histogram *h)
{
	if (h->count)
		printf("%-5s %10" PRIu64 " %9.1f %9.1f %9.1f %9.1f %9.1f\n", name, h->count,
		       (double)h->sum / (double)h->count * 1e-3, histogram_quantile(h, 0.5) * 1e-3,
		       histogram_quantile(h, 0.99) * 1e-3, histogram_quantile(h, 0.999) * 1e-3,
		       (double)h->max * 1e-3);
}

static void print_text(const bench_run *b)
{
	const bench_ps_options *o = b->o;

	printf("%u servers, %" PRIu64 " clients of %" PRIu64 " threads, %" PRIu64 " keys x %" PRIu64
	       " %s, batch %" PRIu64 ", skew %g, %g %% pulls, %s\n\n",
	       b->crew.servers, o->clients, o->threads, o->keys, o->dim, dtype_names[o->dtype], o->batch,
	       o->skew, o->reads, consistency_names[o->consistency]);
	printf("%-5s %10s %9s %9s %9s %9s %9s\n", "", "batches", "mean us", "p50", "p99", "p99.9", "max");
	print_times("pull", &b->pull);
	print_times("push", &b->push);
	printf("\n%.2f M keys/s; CPU seconds per million keys: clients %.3f",
	       (double)b->measured_keys / b->seconds * 1e-6, per_million(b, b->client_cpu));
	if (b->crew.local)
		printf(", servers %.3f", per_million(b, b->server_cpu));
	printf("\n%" PRIu64 " rows, %.1f bytes each%s\n", b->stats.rows,
	       b->stats.rows ? (double)b->stats.bytes / (double)b->stats.rows : 0.0,
	       o->check ? "; the rows say what was pushed" : "");
}

static int run(const bench_ps_options *o, bench_run *b)
{
	crew_params params = {.command = "tern bench ps",
			      .servers = o->servers,
			      .transport = o->transport,
			      .spin = o->spin,
			      .shared_bytes = sizeof(bench_ps_shared) + lanes(o) * sizeof(bench_ps_lane)};
	bool done;
	int rc = crew_open(&b->crew, &params);

	if (rc)
		return rc;
	b->o = o;
	b->shared = b->crew.shared;
	done = crew_add(&b->crew, (uint32_t)o->clients, bench_ps_client, (void *)(uintptr_t)o) &&
	       make_table(b) && wait_for_rows(b) && measure(b);
	progress_clear(&b->bar);
	if (done) {
		collect(b);
		done = check_counts(b);
	}
	tern_table_close(b->table);
	if (b->table && !b->crew.local)
		(void)tern_table_drop(b->ps, b->shared->table);
	tern_ps_close(b->ps);
	if (b->ctx)
		tern_ctx_destroy(b->ctx);
	if (done)
		(o->json ? print_json : print_text)(b);
	return crew_close(&b->crew);
}

static int check_options(const bench_ps_options *options)
{
	if (strcmp(options->servers, "0") == 0) {
		fprintf(stderr, "tern bench ps: --servers 0: there must be one\n");
		return 2;
	}
	if (options->skew < 0 || options->skew > 10 || options->reads < 0 || options->reads > 100) {
		fprintf(stderr, "tern bench ps: --skew is from 0 to 10, --reads from 0 to 100 percent\n");
		return 2;
	}
	if (lanes(options) > 4096) {
		fprintf(stderr,
			"tern bench ps: %" PRIu64 " clients of %" PRIu64
			" threads are more than 4096 threads\n",
			options->clients, options->threads);
		return 2;
	}
	if (options->check && (options->optimizer || options->dtype)) {
		fprintf(stderr, "tern bench ps: --check counts in rows of f32, with --optimizer none\n");
		return 2;
	}
	return -1;
}

/* One command line per process: its options and their table. */
static bench_ps_options o = {.servers = "1",
			     .clients = 1,
			     .threads = 1,
			     .keys = 1000000,
			     .dim = 64,
			     .batch = 256,
			     .staleness = 2,
			     .seed = 1,
			     .skew = 0.99,
			     .reads = 90,
			     .optimizer = TERN_OPT_ADAGRAD,
			     .duration_ns = 5000000000ull,
			     .warmup_ns = 500000000ull};
static bool optimizer_given;
static const arg_row rows[] = {
	{"servers", ARG_STRING, &o.servers, "N|LIST",
	 "servers to start here (1), or addresses of running ones, \"host:port,...\"", 0, 0, false, NULL},
	{"clients", ARG_U64, &o.clients, "N", "processes (1)", 1, CREW_MEMBERS_MAX, false, NULL},
	{"threads", ARG_U64, &o.threads, "N", "of each client, one operation each (1)", 1,
	 BENCH_PS_THREADS_MAX, false, NULL},
	{"keys", ARG_U64, &o.keys, "N", "rows of the table (1000000)", 1, 1ull << 40, false, NULL},
	{"skew", ARG_REAL, &o.skew, "S", "Zipf's exponent of the keys asked for; 0 = uniform (0.99)", 0, 0,
	 false, NULL},
	{"dim", ARG_U64, &o.dim, "N", "elements of a row (64)", 1, TERN_TABLE_DIM_MAX, false, NULL},
	{"dtype", ARG_CHOICE, &o.dtype, "f32|bf16|f16", "of rows in the table (f32)", 0, 0, false, NULL},
	{"optimizer", ARG_CHOICE, &o.optimizer, "none|sgd|momentum|adagrad|adam|adamw|ftrl|rmsprop",
	 "what pushes do (adagrad)", 0, 0, false, &optimizer_given},
	{"batch", ARG_U64, &o.batch, "N", "keys of an operation (256)", 1, 1u << 20, false, NULL},
	{"reads", ARG_REAL, &o.reads, "PERCENT", "of operations that are pulls (90)", 0, 0, false, NULL},
	{"consistency", ARG_CHOICE, &o.consistency, "async|bsp|ssp",
	 "who waits for whom; a step is one operation (async)", 0, 0, false, NULL},
	{"staleness", ARG_U64, &o.staleness, "N", "steps that ssp allows to be ahead (2)", 0, 1u << 30, false,
	 NULL},
	{"duration", ARG_SECONDS, &o.duration_ns, "TIME", "measured (5s)", 1000000, 0, false, NULL},
	{"warmup", ARG_SECONDS, &o.warmup_ns, "TIME", "before it (500ms)", 0, 0, false, NULL},
	{"transport", ARG_STRING, &o.transport, "LIST", "shm, tcp, verbs or several (auto)", 0, 0, false,
	 NULL},
	{"spin", ARG_FLAG, &o.spin, NULL, "clients poll instead of sleeping", 0, 0, false, NULL},
	{"seed", ARG_U64, &o.seed, "N", "of keys and operations (1)", 0, 0, false, NULL},
	{"check", ARG_FLAG, &o.check, NULL, "pushes count, and at the end the rows must say how many", 0, 0,
	 false, NULL},
	{"json", ARG_FLAG, &o.json, NULL, "print one JSON object at the end", 0, 0, false, NULL},
	{"quiet", ARG_FLAG, &o.quiet, NULL, "no progress", 0, 0, false, NULL},
	{0},
};

int bench_ps(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern bench ps",
		.summary = "pulls and pushes at parameter servers: latency, keys per second, CPU time",
		.synopsis = "tern bench ps [--servers N|LIST] [--clients N] [--threads N] [options]",
		.epilogue = "examples:\n"
			    "  tern bench ps --keys 1000000 --dim 64 --batch 1024 --reads 90\n"
			    "  tern bench ps --servers 4 --clients 8 --skew 0 --consistency bsp --json\n"
			    "  tern bench ps --servers 10.0.0.1:7000,10.0.0.2:7000 --clients 16\n",
	};
	int rc = args_parse(&usage, rows, argc, argv, NULL);
	bench_run *b;

	if (o.check && !optimizer_given)
		o.optimizer = TERN_OPT_NONE;
	if (rc < 0)
		rc = check_options(&o);
	if (rc >= 0)
		return rc;
	b = calloc(1, sizeof(*b));
	if (!b)
		return 1;
	rc = run(&o, b);
	free(b);
	return rc;
}
