/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern status`: the links of processes, and who waits for whom. A process that others wait for, and that waits for nobody
 * itself, is who holds the job up: it is named last.
 *
 * Threads: main. Tests: tests/e2e/watch_test.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "commands.h"
#include "json.h"
#include "peek.h"

#define LONG_NS UINT64_C(1000000000) /* a wait that is worth a word at the end */

typedef struct wait_row {
	uint64_t since_ns, count;
	const char *whom, *what;
} wait_row;

typedef struct process {
	const char *http;
	char why[320]; /* it does not answer */
	char name[128], address[128];
	samples now;
	char *text; /* of its waits */
	wait_row *wait;
	size_t waits;
	unsigned waited_for; /* processes that wait for it, for long */
} process;

typedef struct status_options {
	bool json, state;
} status_options;

/* ---- what a process says ---- */

static void parse_waits(process *p)
{
	size_t lines = 0;
	char *rest = p->text;

	for (const char *c = p->text; *c; c++)
		lines += *c == '\n';
	p->wait = calloc(lines + 1, sizeof(*p->wait));
	for (char *line = strsep(&rest, "\n"); p->wait && line && rest; line = strsep(&rest, "\n")) {
		wait_row *w = &p->wait[p->waits];
		char *since = strsep(&line, "\t"), *count = strsep(&line, "\t");

		w->whom = strsep(&line, "\t");
		w->what = line;
		if (!w->what)
			continue;
		w->since_ns = strtoull(since, NULL, 10);
		w->count = strtoull(count, NULL, 10);
		p->waits++;
	}
}

static bool ask(process *p)
{
	if (!samples_get(&p->now, p->http, p->why, sizeof(p->why)))
		return false;
	for (size_t i = 0; i < p->now.n; i++) {
		if (strcmp(p->now.row[i].name, "tern_build_info") != 0)
			continue;
		sample_label(&p->now.row[i], "name", p->name, sizeof(p->name));
		sample_label(&p->now.row[i], "address", p->address, sizeof(p->address));
	}
	p->text = peek(p->http, "/waits", p->why, sizeof(p->why));
	if (!p->text)
		return false;
	parse_waits(p);
	return true;
}

static process *by_address(process *all, size_t n, const char *address)
{
	for (size_t i = 0; i < n; i++)
		if (address[0] && strcmp(all[i].address, address) == 0)
			return &all[i];
	return NULL;
}

/* ---- for people ---- */

static const char *name_of(const process *p)
{
	return p->name[0] ? p->name : p->http;
}

static void print_links(const process *p)
{
	for (size_t i = 0; i < p->now.n; i++) {
		const sample *s = &p->now.row[i];
		char peer[128], address[128], transport[32], part[40], number[32];

		if (strcmp(s->name, "tern_peer_up") != 0)
			continue;
		snprintf(part, sizeof(part), "link=\"%s\"", sample_label(s, "link", number, sizeof(number)));
		printf("  link to %s at %s over %s: %s, %.0f in flight, waited %.0f times for credits and "
		       "%.0f "
		       "for the window, %.0f recoveries\n",
		       sample_label(s, "peer", peer, sizeof(peer)),
		       sample_label(s, "address", address, sizeof(address)),
		       sample_label(s, "transport", transport, sizeof(transport)),
		       s->value > 0 ? "up" : "down",
		       samples_value(&p->now, "tern_peer_in_flight_bytes", part, 0),
		       samples_value(&p->now, "tern_peer_credit_waits_total", part, 0),
		       samples_value(&p->now, "tern_peer_window_waits_total", part, 0),
		       samples_value(&p->now, "tern_peer_recoveries_total", part, 0));
	}
}

static void print_waits(process *p, process *all, size_t n)
{
	for (size_t i = 0; i < p->waits; i++) {
		const wait_row *w = &p->wait[i];
		process *other = by_address(all, n, w->whom);

		printf("  waits %.3f s: %s", (double)w->since_ns * 1e-9, w->what);
		if (w->count > 1)
			printf(" (%" PRIu64 ")", w->count);
		if (w->whom[0])
			printf(", at %s%s%s%s", w->whom, other ? " (" : "", other ? name_of(other) : "",
			       other ? ")" : "");
		printf("\n");
	}
	if (!p->waits)
		printf("  waits for nobody\n");
}

static bool waits_long(const process *p)
{
	for (size_t i = 0; i < p->waits; i++)
		if (p->wait[i].since_ns >= LONG_NS)
			return true;
	return false;
}

static void print_culprits(process *all, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < all[i].waits; k++) {
			process *other = by_address(all, n, all[i].wait[k].whom);

			if (other && all[i].wait[k].since_ns >= LONG_NS)
				other->waited_for++;
		}
	for (size_t i = 0; i < n; i++)
		if (all[i].waited_for && !waits_long(&all[i]))
			printf("%s is waited for and waits for nobody: look there first\n", name_of(&all[i]));
	for (size_t i = 0; i < n; i++)
		if (all[i].why[0])
			printf("%s does not answer: look there first\n", all[i].http);
}

static void print_all(process *all, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		process *p = &all[i];

		if (p->why[0]) {
			printf("%s: %s\n", p->http, p->why);
			continue;
		}
		printf("%s at %s, http %s: %.1f MiB of registered memory in use\n", name_of(p), p->address,
		       p->http, samples_value(&p->now, "tern_memory_bytes", "kind=\"used\"", 0) / 1048576);
		print_links(p);
		print_waits(p, all, n);
	}
	print_culprits(all, n);
}

/* ---- for programs ---- */

static void write_json(const process *all, size_t n)
{
	json j;

	json_init(&j, stdout);
	json_array(&j, NULL);
	for (size_t i = 0; i < n; i++) {
		const process *p = &all[i];

		json_object(&j, NULL);
		json_string(&j, "http", p->http);
		if (p->why[0]) {
			json_string(&j, "error", p->why);
			json_object_end(&j);
			continue;
		}
		json_string(&j, "name", p->name);
		json_string(&j, "address", p->address);
		json_real(&j, "links_up", samples_sum(&p->now, "tern_peer_up"));
		json_array(&j, "waits");
		for (size_t k = 0; k < p->waits; k++) {
			json_object(&j, NULL);
			json_string(&j, "what", p->wait[k].what);
			json_string(&j, "whom", p->wait[k].whom);
			json_u64(&j, "since_ns", p->wait[k].since_ns);
			json_u64(&j, "count", p->wait[k].count);
			json_object_end(&j);
		}
		json_array_end(&j);
		json_object_end(&j);
	}
	json_array_end(&j);
	putchar('\n');
}

static int print_states(const char *const *addresses, size_t n)
{
	char why[320];
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		char *text = peek(addresses[i], "/state", why, sizeof(why));

		if (!text) {
			fprintf(stderr, "tern status: %s\n", why);
			rc = 1;
			continue;
		}
		fputs(text, stdout);
		free(text);
	}
	return rc;
}

static const arg_usage usage = {
	.command = "tern status",
	.summary = "links of processes, and who waits for whom",
	.synopsis = "tern status [--json | --state] [HOST:PORT...]",
	.epilogue = "HOST:PORT is what a process listens on by --http (default 127.0.0.1:" PEEK_PORT ").\n"
		    "Ends with 1 if one of them does not answer.",
	.positional_max = PEEK_MAX,
};

int cmd_status(int argc, char **argv)
{
	const char *addresses[PEEK_MAX] = {0};
	static process all[PEEK_MAX];
	status_options o = {0};
	const arg_row rows[] = {
		{"json", ARG_FLAG, &o.json, NULL, "as one JSON array", 0, 0, false, NULL},
		{"state", ARG_FLAG, &o.state, NULL, "the whole state as text, to be pasted into a report", 0,
		 0, false, NULL},
		{0},
	};
	int rc = args_parse(&usage, rows, argc, argv, addresses);
	size_t n;

	if (rc >= 0)
		return rc;
	n = peek_addresses(addresses);
	if (o.state)
		return print_states(addresses, n);
	rc = 0;
	for (size_t i = 0; i < n; i++) {
		all[i].http = addresses[i];
		rc |= !ask(&all[i]);
	}
	if (o.json)
		write_json(all, n);
	else
		print_all(all, n);
	for (size_t i = 0; i < n; i++) {
		samples_free(&all[i].now);
		free(all[i].text);
		free(all[i].wait);
	}
	return rc;
}
