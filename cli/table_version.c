/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern table version`: what servers that follow checkpoints serve, and sending them to another version.
 * Threads: main, the library's beside it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/ps_follow.h>

#include "args.h"
#include "json.h"
#include "table.h"

static void json_version(json *j, uint32_t server, const tern_ps_follow_stats *s)
{
	json_object(j, NULL);
	json_u64(j, "server", server);
	json_u64(j, "version", s->sequence);
	json_u64(j, "newest", s->newest);
	if (s->pinned == TERN_PS_FOLLOW_LAST)
		json_null(j, "pinned");
	else
		json_u64(j, "pinned", s->pinned);
	json_u64(j, "behind", s->behind);
	json_u64(j, "behind_steps", s->behind_steps);
	json_real(j, "behind_seconds", (double)s->behind_ns / 1e9);
	json_real(j, "age_seconds", (double)s->age_ns / 1e9);
	json_u64(j, "applied", s->applied);
	json_u64(j, "failed", s->failed);
	json_string(j, "error", s->error);
	json_object_end(j);
}

static void print_version(uint32_t server, const tern_ps_follow_stats *s)
{
	if (s->saved_ns == 0) {
		printf("server %" PRIu32 ": no version yet", server);
	} else {
		printf("server %" PRIu32 ": version %" PRIu64 ", %.1f s old", server, s->sequence,
		       (double)s->age_ns / 1e9);
		if (s->behind)
			printf("; %" PRIu64 " behind the newest, %" PRIu64 ": %.1f s, %" PRIu64 " steps",
			       s->behind, s->newest, (double)s->behind_ns / 1e9, s->behind_steps);
	}
	if (s->pinned != TERN_PS_FOLLOW_LAST)
		printf("; told to stay at %" PRIu64, s->pinned);
	if (s->error[0])
		printf("; the last attempt failed: %s", s->error);
	putchar('\n');
}

static int print_all(reach *r)
{
	uint32_t servers = tern_ps_servers(r->ps, NULL);
	tern_ps_follow_stats stats;
	json j;

	json_init(&j, stdout);
	if (r->as_json)
		json_array(&j, NULL);
	for (uint32_t i = 0; i < servers; i++) {
		if (tern_ps_followed(r->ps, i, &stats) != TERN_OK)
			return table_failed(r);
		if (r->as_json)
			json_version(&j, i, &stats);
		else
			print_version(i, &stats);
	}
	if (r->as_json) {
		json_array_end(&j);
		putchar('\n');
	}
	return 0;
}

/* "last" or a number from 1 on; 0: neither. */
static uint64_t parse_to(const char *text)
{
	char *end;
	uint64_t to;

	if (strcmp(text, "last") == 0)
		return TERN_PS_FOLLOW_LAST;
	errno = 0;
	to = strtoull(text, &end, 10);
	return errno || *end || text[0] < '0' || text[0] > '9' ? 0 : to;
}

int table_version(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern table version",
		.summary = "which checkpoint followers serve, and how old it is; another one",
		.synopsis = "tern table version --server LIST [--to N|last] [--json]",
		.epilogue =
			"With --to all of them go to that checkpoint, back as well, and stay there; with\n"
			"--to last they follow again."};
	reach r = {.command = "version"};
	const char *to = NULL;
	const arg_row rows[] = {
		REACH_ROWS(&r),
		{"to", ARG_STRING, &to, "N", "serve checkpoint N from now on, or `last`", 0, 0, false, NULL},
		{"json", ARG_FLAG, &r.as_json, NULL, "one JSON array", 0, 0, false, NULL},
		{0}};
	int rc = args_parse(&usage, rows, argc, argv, NULL);

	if (rc >= 0)
		return rc;
	if (to && !parse_to(to)) {
		fprintf(stderr, "tern table version: --to: the number of a checkpoint, or last, not %s\n",
			to);
		return 2;
	}
	rc = table_enter(&r);
	if (rc != 0)
		return rc;
	if (to && tern_ps_follow_to(r.ps, parse_to(to), 0) != TERN_OK)
		rc = table_failed(&r);
	if (rc == 0)
		rc = print_all(&r);
	table_leave(&r);
	return rc;
}
