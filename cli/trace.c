/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern trace`: what processes did for some seconds, as one file for Perfetto. A process keeps the latest operations only,
 * so it is asked several times a second; what was overwritten before that is counted.
 *
 * Threads: main. Tests: tests/e2e/watch_test.py.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"
#include "commands.h"
#include "peek.h"
#include "progress.h"

#define POLL_NS UINT64_C(100000000)

typedef struct traced {
	const char *http;
	uint64_t next, events, made; /* made: while it was recorded, whether fetched in time or not */
	bool began;
} traced;

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

static uint64_t number_in(const char *line, const char *key)
{
	const char *at = strstr(line, key);

	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Write the events of one answer; each is a line. */
static void copy_events(traced *t, char *text, bool keep, FILE *out, bool *first)
{
	uint64_t before = t->next;
	char *rest = text;

	for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
		size_t n = strlen(line);
		bool span = strncmp(line, "{\"ph\":\"X\"", 9) == 0,
		     head = strncmp(line, "{\"ph\":\"M\"", 9) == 0;

		if (strncmp(line, "\"otherData\"", 11) == 0)
			t->next = number_in(line, "\"next\":");
		if (!keep || !(span || (head && !t->began)))
			continue;
		if (n && line[n - 1] == ',')
			line[--n] = '\0';
		fprintf(out, "%s%s", *first ? "\n" : ",\n", line);
		*first = false;
		t->events += span;
		t->began = true;
	}
	if (keep && t->next > before)
		t->made += t->next - before;
}

static bool poll_one(traced *t, bool keep, FILE *out, bool *first)
{
	char path[64], why[320];
	char *text;

	snprintf(path, sizeof(path), "/trace.json?since=%" PRIu64, t->next);
	text = peek(t->http, path, why, sizeof(why));
	if (!text) {
		fprintf(stderr, "tern trace: %s\n", why);
		return false;
	}
	copy_events(t, text, keep, out, first);
	free(text);
	return true;
}

static void nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)},
		  NULL);
}

/* false: one did not answer */
static bool record(traced *t, size_t n, uint64_t ns, bool quiet, FILE *out)
{
	uint64_t began = progress_now_ns(), now = began;
	bool first = true, fine = true;
	progress bar;

	progress_init(&bar, "recording", ns / 1000000, quiet);
	for (size_t i = 0; i < n; i++)
		fine &= poll_one(&t[i], false, out, &first); /* what was before is not asked for */
	while (fine && !stopped && now - began < ns) {
		nap(ns - (now - began) < POLL_NS ? ns - (now - began) : POLL_NS);
		for (size_t i = 0; i < n; i++)
			fine &= poll_one(&t[i], true, out, &first);
		now = progress_now_ns();
		progress_draw(&bar, (now - began < ns ? now - began : ns) / 1000000, false, "");
	}
	progress_clear(&bar);
	return fine;
}

static int trace(traced *t, size_t n, uint64_t ns, const char *file, bool quiet)
{
	FILE *out = fopen(file, "w");
	uint64_t events = 0, made = 0;
	bool fine;

	if (!out) {
		perror(file);
		return 1;
	}
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	fprintf(out, "{\"traceEvents\":[");
	fine = record(t, n, ns, quiet, out);
	fprintf(out, "\n]}\n");
	if (ferror(out) || fclose(out) != 0) {
		fprintf(stderr, "tern trace: cannot write %s\n", file);
		return 1;
	}
	for (size_t i = 0; i < n; i++) {
		events += t[i].events;
		made += t[i].made;
	}
	if (!quiet)
		fprintf(stderr,
			"%s: %" PRIu64 " operations of %zu processes; open it at https://ui.perfetto.dev\n",
			file, events, n);
	if (made > events && !quiet)
		fprintf(stderr, "%" PRIu64 " more went by unseen: they came faster than they were fetched\n",
			made - events);
	return fine ? 0 : 1;
}

static const arg_usage usage = {
	.command = "tern trace",
	.summary = "what processes do for some seconds, as a file for Perfetto",
	.synopsis = "tern trace [--seconds N] [--output FILE] [HOST:PORT...]",
	.epilogue = "HOST:PORT is what a process listens on by --http (default 127.0.0.1:" PEEK_PORT ").\n"
		    "Ctrl-C ends it early; what was recorded is kept.",
	.positional_max = PEEK_MAX,
};

int cmd_trace(int argc, char **argv)
{
	const char *addresses[PEEK_MAX] = {0}, *file = "trace.json";
	static traced all[PEEK_MAX];
	uint64_t ns = UINT64_C(3000000000);
	bool quiet = false;
	const arg_row rows[] = {
		{"seconds", ARG_SECONDS, &ns, "TIME", "how long (default 3)", 1000000,
		 UINT64_C(3600000000000), false, NULL},
		{"output", ARG_STRING, &file, "FILE", "where to (default trace.json)", 0, 0, false, NULL},
		{"quiet", ARG_FLAG, &quiet, NULL, "no progress, no summary", 0, 0, false, NULL},
		{0},
	};
	int rc = args_parse(&usage, rows, argc, argv, addresses);
	size_t n;

	if (rc >= 0)
		return rc;
	n = peek_addresses(addresses);
	for (size_t i = 0; i < n; i++)
		all[i].http = addresses[i];
	return trace(all, n, ns, file, quiet);
}
