/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern server`: one parameter server, until a signal ends it. Prints its address once it serves, so that a script can
 * read it. Threads: main, the library's beside it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/ps.h>
#include <tern/ps_follow.h>
#include <tern/watch.h>

#include "args.h"
#include "commands.h"
#include "json.h"
#include "monitor.h"

#define SERVERS_MAX 256

typedef struct server_options {
	const char *listen, *name, *servers, *transport;
	uint64_t index, map_version, budget, workers;
	const char *follow, *tier, *join, *http;
	uint64_t replicas, first, drain_ns;
	uint64_t version;
	bool in_place, insecure, json;
} server_options;

static int failed(const char *what)
{
	fprintf(stderr, "tern server: %s: %s\n", what, tern_detail());
	return 1;
}

/* "a:1,b:2" into places of list; the text is cut. 0: too many. */
static uint32_t split_list(char *text, const char **list)
{
	uint32_t n = 0;

	for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
		if (n == SERVERS_MAX)
			return 0;
		list[n++] = part;
	}
	return n;
}

static void say(const server_options *o, const char *address, uint32_t count, const char *http)
{
	json j;

	if (!o->json) {
		printf("%s\n", address);
	} else {
		json_init(&j, stdout);
		json_object(&j, NULL);
		json_string(&j, "address", address);
		json_string(&j, "name", o->name);
		json_u64(&j, "index", o->index);
		json_u64(&j, "servers", count);
		if (http[0])
			json_string(&j, "http", http);
		json_object_end(&j);
		putchar('\n');
	}
	fflush(stdout);
	if (http[0] && !o->json)
		fprintf(stderr, "tern server: http://%s/\n", http);
}

static tern_status follow(const server_options *o, tern_ps_server *server)
{
	const tern_ps_follow_params params = {.dir = o->follow,
					      .name = o->name,
					      .sequence = o->version,
					      .flags = o->in_place ? TERN_PS_FOLLOW_IN_PLACE : 0};

	return o->follow ? tern_ps_server_follow(server, &params) : TERN_OK;
}

/* ---- what the endpoint shows of the tables ---- */

typedef struct table_stats {
	char labels[2 * TERN_TABLE_NAME_MAX];
	tern_table_stats stats;
} table_stats;

typedef struct all_tables {
	table_stats *tables;
	size_t n;
} all_tables;

static void keep_table(const tern_table_schema *schema, const tern_table_stats *stats, void *arg)
{
	all_tables *all = arg;
	table_stats *more = realloc(all->tables, (all->n + 1) * sizeof(*more));

	if (!more)
		return;
	all->tables = more;
	snprintf(more[all->n].labels, sizeof(more->labels), "table=\"%s\"", schema->name);
	more[all->n++].stats = *stats;
}

/* Rows of a name stand together: Prometheus wants that. */
static void server_rows(void (*row)(const char *name, const char *labels, double value, void *row_arg),
			void *row_arg, void *server)
{
	all_tables all = {0};

	tern_ps_server_tables(server, keep_table, &all);
#define ROWS(field)                        \
	for (size_t i = 0; i < all.n; i++) \
		row("tern_table_" #field, all.tables[i].labels, (double)all.tables[i].stats.field, row_arg);
	ROWS(rows)
	ROWS(bytes)
	ROWS(record_bytes)
	ROWS(pulled)
	ROWS(pushed)
	ROWS(created)
	ROWS(erased)
	ROWS(evicted)
	ROWS(expired)
	ROWS(not_admitted)
	ROWS(nonfinite)
	ROWS(duplicates)
	ROWS(cold_rows)
	ROWS(cold_bytes)
#undef ROWS
	free(all.tables);
}

static void own_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGUSR2);
}

static void print_line(const char *text, void *arg)
{
	(void)arg;
	fprintf(stderr, "%s\n", text);
}

/* Serve until SIGINT or SIGTERM, which are blocked in every thread; SIGUSR2 prints the state. */
static int serve(const server_options *o, tern_ctx *ctx, const tern_ps_server_params *params)
{
	tern_ps_server *server;
	monitor watch;
	sigset_t ends;
	int sig;

	if (tern_ps_server_open(ctx, params, &server) != TERN_OK)
		return failed("cannot serve");
	if (follow(o, server) != TERN_OK) {
		int rc = failed("cannot follow");

		tern_ps_server_close(server);
		return rc;
	}
	if (!monitor_start(&watch, "tern server", ctx, o->http, o->insecure, server_rows, server)) {
		tern_ps_server_close(server);
		return 1;
	}
	say(o, tern_ctx_address(ctx), params->count ? params->count : 1, monitor_address(&watch));
	own_signals(&ends);
	while (sigwait(&ends, &sig) != 0 || sig == SIGUSR2)
		if (sig == SIGUSR2)
			tern_ctx_report(ctx, print_line, NULL);
	fprintf(stderr, "tern server: %s: ending\n", strsignal(sig));
	/* Stays blocked: who asks for the state must not end a server that drains. */
	sigdelset(&ends, SIGUSR2);
	sigprocmask(SIG_UNBLOCK, &ends, NULL); /* a second one ends it at once */
	if (o->join && o->drain_ns && tern_ps_server_drain(server, o->drain_ns) != TERN_OK)
		fprintf(stderr, "tern server: not drained: %s\n", tern_detail());
	monitor_stop(&watch);
	tern_ps_server_close(server);
	return 0;
}

static int run(const server_options *o, char *list_text)
{
	tern_ctx_params params = {.name = o->name,
				  .listen = o->listen,
				  .transports = o->transport,
				  .flags = o->insecure ? TERN_CTX_INSECURE : 0};
	const char *list[SERVERS_MAX];
	tern_ps_server_params ps = {.index = (uint32_t)o->index,
				    .map_version = o->map_version,
				    .budget_bytes = o->budget,
				    .workers = (uint32_t)o->workers,
				    .join = o->join && strcmp(o->join, "self") == 0 ? "" : o->join,
				    .replicas = (uint32_t)o->replicas,
				    .first = (uint32_t)o->first,
				    .tier_dir = o->tier};
	sigset_t ends;
	tern_ctx *ctx;
	int rc;

	if (list_text) {
		ps.servers = list;
		ps.count = split_list(list_text, list);
		if (ps.count == 0) {
			fprintf(stderr, "tern server: --servers: 1 to %d addresses with commas between\n",
				SERVERS_MAX);
			return 2;
		}
	}
	own_signals(&ends);
	sigprocmask(SIG_BLOCK, &ends, NULL); /* before there are threads */
	if (tern_ctx_create(&params, &ctx) != TERN_OK)
		return failed("cannot start");
	rc = serve(o, ctx, &ps);
	tern_ctx_destroy(ctx);
	return rc;
}

static const arg_usage usage = {
	.command = "tern server",
	.summary = "a parameter server: tables in memory, until Ctrl-C or SIGTERM",
	.synopsis = "tern server [--listen HOST:PORT] [--servers LIST --index N | --join self|HOST:PORT] "
		    "[options]",
	.epilogue = "Prints its address when it serves. Tables are made by clients, or with\n"
		    "`tern table create --server ADDRESS NAME`. SIGUSR2 prints the state, for a report. With "
		    "--follow it serves what\n"
		    "training saved with `tern table export --kind auto` or tern_ps_save.",
};

int cmd_server(int argc, char **argv)
{
	server_options o = {.listen = "127.0.0.1:0"};
	const arg_row rows[] = {
		{"listen", ARG_STRING, &o.listen, "HOST:PORT",
		 "where to listen (default 127.0.0.1:0: any port)", 0, 0, false, NULL},
		{"name", ARG_STRING, &o.name, "NAME",
		 "of this node; different ones in a job (default: server and its number; with --join the "
		 "process's)",
		 0, 0, false, NULL},
		{"servers", ARG_STRING, &o.servers, "LIST",
		 "all servers of the job, \"host:port,...\", the same for each", 0, 0, false, NULL},
		{"index", ARG_U64, &o.index, "N", "which of them this one is", 0, SERVERS_MAX - 1, false,
		 NULL},
		{"map-version", ARG_U64, &o.map_version, "N",
		 "of the list: a later list has a higher one (default 1)", 0, 0, false, NULL},
		{"budget", ARG_BYTES, &o.budget, "BYTES",
		 "memory of all tables; tables then say how much of it is theirs", 0, 0, false, NULL},
		{"ps-workers", ARG_U64, &o.workers, "N", "threads for batches that take long", 0, 64, false,
		 NULL},
		{"tier", ARG_STRING, &o.tier, "DIR",
		 "rows that budgets have no room for go to DIR and come back (RocksDB)", 0, 0, false, NULL},
		{"join", ARG_STRING, &o.join, "self|HOST:PORT|etcd:URL",
		 "instead of a list, servers that join one another; self: this one decides who has what", 0,
		 0, false, NULL},
		{"replicas", ARG_U64, &o.replicas, "N",
		 "with --join self: servers that have each slot (default 1)", 1, 2, false, NULL},
		{"first", ARG_U64, &o.first, "N",
		 "with --join self: slots are given out when so many have joined (default 1)", 1, SERVERS_MAX,
		 false, NULL},
		{"drain", ARG_SECONDS, &o.drain_ns, "TIME",
		 "with --join: at SIGTERM give slots and rows to the others first, for so long at most", 0, 0,
		 false, NULL},
		{"follow", ARG_STRING, &o.follow, "DIR",
		 "serve the checkpoints of DIR, read only, and each that comes", 0, 0, false, NULL},
		{"version", ARG_U64, &o.version, "N", "with --follow: stay at checkpoint N", 1, 0, false,
		 NULL},
		{"http", ARG_STRING, &o.http, "HOST:PORT",
		 "metrics, health and a live page there (off; 127.0.0.1:9400 is usual)", 0, 0, false, NULL},
		{"in-place", ARG_FLAG, &o.in_place, NULL,
		 "with --follow: one copy of the tables; a pull then sees one version of each row alone", 0,
		 0, false, NULL},
		{"transport", ARG_STRING, &o.transport, "LIST", "shm, tcp, verbs or several (default auto)",
		 0, 0, false, NULL},
		{"insecure", ARG_FLAG, &o.insecure, NULL, "listen beyond this host without a shared secret",
		 0, 0, false, NULL},
		{"json", ARG_FLAG, &o.json, NULL, "say the address as one JSON object", 0, 0, false, NULL},
		{0},
	};
	char *text = NULL, name[32];
	int rc = args_parse(&usage, rows, argc, argv, NULL);

	if (rc >= 0)
		return rc;
	snprintf(name, sizeof(name), "server%u", o.join ? (unsigned)getpid() : (unsigned)o.index);
	if (!o.name)
		o.name = name;
	if (o.servers && !(text = strdup(o.servers)))
		return 1;
	rc = run(&o, text);
	free(text);
	return rc;
}
