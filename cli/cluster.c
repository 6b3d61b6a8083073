/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern cluster`: parameter servers that joined one another: who has what, who is to go. Threads: main, the library's
 * beside it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/ps.h>

#include "args.h"
#include "commands.h"
#include "json.h"
#include "table.h"

typedef struct verb {
	const char *name;
	tern_ps_op op; /* 0: status */
	bool address;  /* takes the address of a server */
	const char *help;
} verb;

static const verb verbs[] = {
	{"status", 0, false, "servers, their slots and loads"},
	{"drain", TERN_PS_DRAIN, true, "give the slots of a server to others, while it serves"},
	{"undrain", TERN_PS_UNDRAIN, true, "give it slots again"},
	{"give-up", TERN_PS_GIVE_UP, true,
	 "a dead server will not come back: what only it had begins anew, empty"},
	{"balance", TERN_PS_BALANCE, false, "even loads out now"},
	{"pause", TERN_PS_PAUSE, false, "move no slots"},
	{"resume", TERN_PS_RESUME, false, "move slots again"},
};
#define VERBS (sizeof(verbs) / sizeof(verbs[0]))

typedef struct cluster_options {
	reach reach;
	bool wait;
} cluster_options;

/* ---- status ---- */

typedef struct listing {
	json j;
	bool as_json;
	uint32_t alone, moving, served, servers;
} listing;

static void one_server(const tern_ps_server_info *s, void *arg)
{
	listing *l = arg;

	l->servers++;
	l->alone += s->alone;
	l->moving += s->leaving;
	l->served += s->alive ? s->primaries : 0;
	if (!l->as_json) {
		printf("%-4u %-24s %-9s %9u %8u %6u %8u %8u %14" PRIu64 "\n", s->number, s->address, s->state,
		       s->primaries, s->backups, s->alone, s->leaving, s->arriving, s->keys_per_second);
		return;
	}
	json_object(&l->j, NULL);
	json_u64(&l->j, "number", s->number);
	json_string(&l->j, "address", s->address);
	json_string(&l->j, "state", s->state);
	json_u64(&l->j, "primaries", s->primaries);
	json_u64(&l->j, "backups", s->backups);
	json_u64(&l->j, "alone", s->alone);
	json_u64(&l->j, "leaving", s->leaving);
	json_u64(&l->j, "arriving", s->arriving);
	json_u64(&l->j, "keys_per_second", s->keys_per_second);
	json_object_end(&l->j);
}

static int status(const reach *r)
{
	listing l = {.as_json = r->as_json};
	uint64_t version = 0;

	json_init(&l.j, stdout);
	if (l.as_json) {
		json_object(&l.j, NULL);
		json_array(&l.j, "servers");
	} else {
		printf("%-4s %-24s %-9s %9s %8s %6s %8s %8s %14s\n", "no", "address", "state", "primaries",
		       "backups", "alone", "leaving", "arriving", "keys/s");
	}
	if (tern_ps_server_list(r->ps, one_server, &l, &version) != TERN_OK)
		return table_failed(r);
	if (l.as_json) {
		json_array_end(&l.j);
		json_u64(&l.j, "version", version);
		json_u64(&l.j, "slots", TERN_TABLE_SLOTS);
		json_u64(&l.j, "served", l.served);
		json_object_end(&l.j);
		putchar('\n');
		return 0;
	}
	printf("map %" PRIu64 ": %u of %d slots are served, %u by one server alone; %u move\n", version,
	       l.served, TERN_TABLE_SLOTS, l.alone, l.moving);
	return 0;
}

/* ---- drain --wait ---- */

typedef struct looking {
	const char *address;
	uint32_t slots;
} looking;

static void look(const tern_ps_server_info *s, void *arg)
{
	looking *l = arg;

	if (strcmp(s->address, l->address) == 0)
		l->slots = s->primaries + s->backups;
}

static int wait_empty(const reach *r, const char *address)
{
	looking l = {.address = address};

	do {
		tern_ctx_wait(r->ctx, 100000000);
		l.slots = 0;
		if (tern_ps_server_list(r->ps, look, &l, NULL) != TERN_OK)
			return table_failed(r);
	} while (l.slots);
	return 0;
}

/* ---- the command ---- */

static const verb *find_verb(const char *name)
{
	const char *names[VERBS + 1] = {0}, *near;

	for (unsigned i = 0; i < VERBS; i++) {
		if (name && strcmp(verbs[i].name, name) == 0)
			return &verbs[i];
		names[i] = verbs[i].name;
	}
	near = name ? nearest_name(name, names) : NULL;
	fprintf(stderr, "tern cluster: %s%s%s%s%s%s; see tern cluster --help\n",
		name ? "unknown subcommand '" : "say what to do", name ? name : "", name ? "'" : "",
		near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
	return NULL;
}

static int change(const cluster_options *o, const verb *v, const char *address)
{
	const reach *r = &o->reach;

	if (!v->op)
		return status(r);
	if (tern_ps_change(r->ps, v->op, address) != TERN_OK)
		return table_failed(r);
	return o->wait && v->op == TERN_PS_DRAIN ? wait_empty(r, address) : 0;
}

int cmd_cluster(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern cluster",
		.summary = "parameter servers that joined one another: who has what, who is to go",
		.synopsis = "tern cluster status|balance|pause|resume --server LIST\n"
			    "       tern cluster drain|undrain|give-up ADDRESS --server LIST",
		.epilogue =
			"  status    servers, their slots and loads\n"
			"  drain     give the slots of a server to others, while it serves\n"
			"  undrain   give it slots again\n"
			"  give-up   a dead server will not come back: what only it had begins anew, empty\n"
			"  balance   even loads out now\n"
			"  pause     move no slots\n"
			"  resume    move slots again",
		.positional_max = 2,
	};
	cluster_options o = {.reach = {.command = "", .name = "cluster"}};
	const arg_row rows[] = {
		REACH_ROWS(&o.reach),
		{"wait", ARG_FLAG, &o.wait, NULL, "with drain: until the server has no slot", 0, 0, false,
		 NULL},
		{"json", ARG_FLAG, &o.reach.as_json, NULL, "with status: one JSON object", 0, 0, false, NULL},
		{0}};
	const char *words[2] = {0};
	const verb *v;
	int rc = args_parse(&usage, rows, argc, argv, words);

	if (rc >= 0)
		return rc;
	v = find_verb(words[0]);
	if (!v)
		return 2;
	if (v->address != (words[1] != NULL)) {
		fprintf(stderr, "tern cluster %s: %s\n", v->name,
			v->address ? "which server? Say its address" : "takes no address");
		return 2;
	}
	o.reach.command = v->name;
	rc = table_enter(&o.reach);
	if (rc)
		return rc;
	rc = change(&o, v, words[1]);
	table_leave(&o.reach);
	return rc;
}
