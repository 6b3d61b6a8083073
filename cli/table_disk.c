/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern table inspect` and `tern table verify`: checkpoints on disk, without a server. Threads: main.
 */
#include <inttypes.h>
#include <stdio.h>

#include <tern/checkpoint.h>

#include "args.h"
#include "json.h"
#include "progress.h"
#include "table.h"

#define MIB 1048576.0

static int failed(const char *command)
{
	fprintf(stderr, "tern table %s: %s\n", command, tern_detail());
	return 1;
}

static int open_checkpoint(const char *command, const char *dir, uint64_t sequence, tern_checkpoint **c)
{
	if (!dir) {
		fprintf(stderr,
			"tern table %s: which directory? Give the one that holds ckpt-... directories\n",
			command);
		return 2;
	}
	return tern_checkpoint_open(dir, sequence, c) == TERN_OK ? 0 : failed(command);
}

static void print_table(const tern_checkpoint_table_info *t, bool delta)
{
	char changed[64] = "";

	if (delta)
		snprintf(changed, sizeof(changed), t->full ? "  new" : "  %" PRIu64 " gone", t->gone);
	printf("  %-24s %-6s %12" PRIu64 " rows  %s x %" PRIu32 "  %-8s  %.1f MiB in %" PRIu32 " files%s\n",
	       t->schema.name, table_kind(&t->schema), t->rows, table_dtype(&t->schema), t->schema.dim,
	       table_optimizer(&t->schema), (double)t->bytes / MIB, t->files, changed);
}

static void json_table(json *j, const tern_checkpoint_table_info *t)
{
	json_object(j, NULL);
	json_string(j, "name", t->schema.name);
	json_string(j, "kind", table_kind(&t->schema));
	json_string(j, "dtype", table_dtype(&t->schema));
	json_u64(j, "dim", t->schema.dim);
	json_string(j, "optimizer", table_optimizer(&t->schema));
	json_u64(j, "rows", t->rows);
	json_u64(j, "bytes", t->bytes);
	json_u64(j, "files", t->files);
	json_u64(j, "gone", t->gone);
	json_bool(j, "full", t->full);
	json_object_end(j);
}

static void json_head(json *j, const tern_checkpoint_info *info)
{
	json_object(j, NULL);
	json_u64(j, "sequence", info->sequence);
	if (info->base == TERN_CHECKPOINT_LAST)
		json_null(j, "base");
	else
		json_u64(j, "base", info->base);
	json_u64(j, "deltas", info->deltas);
	json_u64(j, "step", info->step);
	json_u64(j, "saved_ns", info->saved_ns);
	json_u64(j, "bytes", info->bytes);
	json_u64(j, "files", info->files);
	json_array(j, "tables");
}

static void print_head(const tern_checkpoint_info *info)
{
	char delta[96] = "";

	if (info->deltas)
		snprintf(delta, sizeof(delta), " (a delta to %" PRIu64 ", number %" PRIu32 " of its chain)",
			 info->base, info->deltas);
	printf("checkpoint %" PRIu64 "%s, %.1f MiB in %" PRIu32 " files\n", info->sequence, delta,
	       (double)info->bytes / MIB, info->files);
}

static int print_follower(const tern_checkpoint_follower *f, void *arg)
{
	(void)arg;
	printf("  follower %s has %" PRIu64 "\n", f->name, f->sequence);
	return 0;
}

static int json_follower(const tern_checkpoint_follower *f, void *arg)
{
	json_object(arg, NULL);
	json_string(arg, "name", f->name);
	json_u64(arg, "sequence", f->sequence);
	json_object_end(arg);
	return 0;
}

static int inspect(const tern_checkpoint *c, const char *dir, bool as_json)
{
	tern_checkpoint_table_info table;
	tern_checkpoint_info info;
	json j;

	tern_checkpoint_get(c, &info);
	json_init(&j, stdout);
	if (as_json)
		json_head(&j, &info);
	else
		print_head(&info);
	for (uint32_t i = 0; i < info.tables; i++) {
		if (tern_checkpoint_table(c, i, &table) != TERN_OK)
			return failed("inspect");
		if (as_json)
			json_table(&j, &table);
		else
			print_table(&table, info.deltas > 0);
	}
	if (as_json) {
		json_array_end(&j);
		json_array(&j, "followers");
	}
	if (tern_checkpoint_followers(dir, as_json ? json_follower : print_follower, &j) != TERN_OK)
		return failed("inspect");
	if (as_json) {
		json_array_end(&j);
		json_object_end(&j);
		putchar('\n');
	}
	return 0;
}

int table_inspect(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern table inspect",
		.summary = "what is in a checkpoint: tables, schemas, rows, files",
		.synopsis = "tern table inspect DIR [--sequence N] [--json]",
		.positional_max = 1,
	};
	uint64_t sequence = TERN_CHECKPOINT_LAST;
	const char *dir = NULL;
	bool as_json = false;
	const arg_row rows[] = {
		{"sequence", ARG_U64, &sequence, "N", "which checkpoint (default: the last one)", 0, 0, false,
		 NULL},
		{"json", ARG_FLAG, &as_json, NULL, "one JSON object", 0, 0, false, NULL},
		{0},
	};
	tern_checkpoint *c;
	int rc = args_parse(&usage, rows, argc, argv, &dir);

	if (rc >= 0 || (rc = open_checkpoint("inspect", dir, sequence, &c)) != 0)
		return rc;
	rc = inspect(c, dir, as_json);
	tern_checkpoint_close(c);
	return rc;
}

static int draw(uint64_t bytes, uint64_t total, void *arg)
{
	((progress *)arg)->total = total;
	progress_draw(arg, bytes, false, "bytes");
	return 0;
}

static int verify(const tern_checkpoint *c, bool quiet)
{
	tern_checkpoint_info info;
	tern_status status;
	progress bar;

	tern_checkpoint_get(c, &info);
	progress_init(&bar, "verify", info.bytes, quiet);
	status = tern_checkpoint_verify(c, draw, &bar);
	progress_clear(&bar);
	if (status != TERN_OK)
		return failed("verify");
	if (!quiet)
		printf("checkpoint %" PRIu64 " is whole%s: %" PRIu32 " files, %.1f MiB\n", info.sequence,
		       info.deltas ? ", and so is all that it goes on from" : "", info.files,
		       (double)info.bytes / MIB);
	return 0;
}

int table_verify(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern table verify",
		.summary = "read a checkpoint through and compare it with its checksums",
		.synopsis = "tern table verify DIR [--sequence N] [--quiet]",
		.epilogue = "Of a delta all that it goes on from is read too. Exit status 1 if anything "
			    "differs;\n"
			    "the first file that does is named.",
		.positional_max = 1,
	};
	uint64_t sequence = TERN_CHECKPOINT_LAST;
	const char *dir = NULL;
	bool quiet = false;
	const arg_row rows[] = {
		{"sequence", ARG_U64, &sequence, "N", "which checkpoint (default: the last one)", 0, 0, false,
		 NULL},
		{"quiet", ARG_FLAG, &quiet, NULL, "no output but errors", 0, 0, false, NULL},
		{0},
	};
	tern_checkpoint *c;
	int rc = args_parse(&usage, rows, argc, argv, &dir);

	if (rc >= 0 || (rc = open_checkpoint("verify", dir, sequence, &c)) != 0)
		return rc;
	rc = verify(c, quiet);
	tern_checkpoint_close(c);
	return rc;
}
