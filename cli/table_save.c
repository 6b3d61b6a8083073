/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern table export` and `tern table import`: all tables of running servers into a checkpoint, and back.
 * Threads: main, the library's beside it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/ps_save.h>

#include "args.h"
#include "json.h"
#include "table.h"

#define MIB 1048576.0

/* Servers open it too: absolute. NULL after a message. */
static char *absolute(const char *command, const char *dir, bool make)
{
	char *path;

	if (!dir) {
		fprintf(stderr, "tern table %s: which directory? All servers must see it under this name\n",
			command);
		return NULL;
	}
	path = realpath(dir, NULL);
	if (!path && make && dir[0] == '/')
		path = strdup(dir); /* it is made by the save */
	if (!path)
		fprintf(stderr, "tern table %s: %s: no such directory%s\n", command, dir,
			make ? " (an absolute path is made if need be)" : "");
	return path;
}

static void print_words(const tern_ps_save_result *result, const char *what)
{
	printf("checkpoint %" PRIu64 " %s", result->sequence, what);
	if (result->base != UINT64_MAX)
		printf(", a delta to %" PRIu64, result->base);
	printf(": %" PRIu64 " rows", result->rows);
	if (result->gone)
		printf(" and %" PRIu64 " erased keys", result->gone);
	printf(", %.1f MiB in %.3f s; pushes stood still for %.1f ms\n", (double)result->bytes / MIB,
	       (double)result->total_ns / 1e9, (double)result->held_ns / 1e6);
}

static void print_result(const tern_ps_save_result *result, const char *what, bool as_json)
{
	json j;

	if (!as_json) {
		print_words(result, what);
		return;
	}
	json_init(&j, stdout);
	json_object(&j, NULL);
	json_u64(&j, "sequence", result->sequence);
	if (result->base == UINT64_MAX)
		json_null(&j, "base");
	else
		json_u64(&j, "base", result->base);
	json_u64(&j, "rows", result->rows);
	json_u64(&j, "gone", result->gone);
	json_u64(&j, "bytes", result->bytes);
	json_u64(&j, "files", result->files);
	json_u64(&j, "held_ns", result->held_ns);
	json_u64(&j, "total_ns", result->total_ns);
	json_object_end(&j);
	putchar('\n');
}

static bool parse_kind(const char *text, tern_ps_save_kind *kind)
{
	static const char *const names[] = {"alone", "base", "delta", "auto"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(text, names[i]) == 0) {
			*kind = (tern_ps_save_kind)i;
			return true;
		}
	}
	fprintf(stderr, "tern table export: --kind: alone, base, delta or auto, not %s\n", text);
	return false;
}

int table_export(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern table export",
		.summary = "save all tables of running servers as a checkpoint",
		.synopsis = "tern table export DIR --server LIST [options]",
		.epilogue = "Pulls go on meanwhile, pushes stand still for a moment. The "
			    "directory must be the same for all servers.\n"
			    "A base is a checkpoint that deltas may follow; a delta has what "
			    "changed since the last one.",
		.positional_max = 1};
	reach r = {.command = "export"};
	tern_ps_save_params params = {0};
	uint64_t keep = 0, deltas = 0;
	const char *kind = "alone";
	const arg_row rows[] = {REACH_ROWS(&r),
				{"kind", ARG_STRING, &kind, "KIND",
				 "alone, base, delta or auto (default alone)", 0, 0, false, NULL},
				{"deltas-max", ARG_U64, &deltas, "N",
				 "auto: deltas before the next base (default 64)", 1, 512, false, NULL},
				{"step", ARG_U64, &params.step, "N",
				 "of the job: followers tell how many steps they are behind", 0, 0, false,
				 NULL},
				{"rate", ARG_BYTES, &params.bytes_per_second, "BYTES",
				 "that each server writes in a second at most", 0, 0, false, NULL},
				{"keep", ARG_U64, &keep, "N", "keep the last N checkpoints (default: all)", 0,
				 UINT32_MAX, false, NULL},
				{"json", ARG_FLAG, &r.as_json, NULL, "one JSON object", 0, 0, false, NULL},
				{0}};
	tern_ps_save_result result;
	const char *dir = NULL;
	char *path;
	int rc = args_parse(&usage, rows, argc, argv, &dir);

	if (rc >= 0)
		return rc;
	if (!parse_kind(kind, &params.kind))
		return 2;
	params.deltas_max = (uint32_t)deltas;
	path = absolute("export", dir, true);
	if (!path)
		return 2;
	rc = table_enter(&r);
	if (rc == 0) {
		params.dir = path;
		params.keep = (uint32_t)keep;
		rc = tern_ps_save(r.ps, &params, &result) == TERN_OK ? 0 : table_failed(&r);
		if (rc == 0)
			print_result(&result, "saved", r.as_json);
		table_leave(&r);
	}
	free(path);
	return rc;
}

int table_import(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern table import",
		.summary = "restore the tables of a checkpoint at running servers",
		.synopsis = "tern table import DIR --server LIST [options]",
		.epilogue = "However many servers saved it: each takes the rows that are its "
			    "own. Files are verified first.",
		.positional_max = 1};
	reach r = {.command = "import"};
	uint64_t sequence = UINT64_MAX;
	const arg_row rows[] = {REACH_ROWS(&r),
				{"sequence", ARG_U64, &sequence, "N",
				 "which checkpoint (default: the last one)", 0, 0, false, NULL},
				{"json", ARG_FLAG, &r.as_json, NULL, "one JSON object", 0, 0, false, NULL},
				{0}};
	tern_ps_save_result result;
	const char *dir = NULL;
	char *path;
	int rc = args_parse(&usage, rows, argc, argv, &dir);

	if (rc >= 0)
		return rc;
	path = absolute("import", dir, false);
	if (!path)
		return 2;
	rc = table_enter(&r);
	if (rc == 0) {
		rc = tern_ps_restore(r.ps, path, sequence, 0, &result) == TERN_OK ? 0 : table_failed(&r);
		if (rc == 0)
			print_result(&result, "restored", r.as_json);
		table_leave(&r);
	}
	free(path);
	return rc;
}
