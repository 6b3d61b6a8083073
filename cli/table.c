/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern table`: finds the subcommand. Threads: main.
 */
#include "table.h"

#include <stdio.h>
#include <string.h>

#include "args.h"
#include "commands.h"

static const subcommand subcommands[] = {
	{"list", table_list, "the tables of running servers"},
	{"create", table_create, "make a table"},
	{"describe", table_describe, "the schema of a table"},
	{"drop", table_drop, "drop a table"},
	{"stats", table_stats, "rows, bytes and what happened to them"},
	{"version", table_version, "which checkpoint followers serve, and how old it is; another one"},
	{"export", table_export, "save all tables of running servers as a checkpoint"},
	{"import", table_import, "restore the tables of a checkpoint at running servers"},
	{"inspect", table_inspect, "what is in a checkpoint: tables, schemas, rows, files"},
	{"verify", table_verify, "read a checkpoint through and compare it with its checksums"},
};
#define SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

const char *table_kind(const tern_table_schema *schema)
{
	return schema->kind == TERN_TABLE_DENSE ? "dense" : "sparse";
}

const char *table_dtype(const tern_table_schema *schema)
{
	return tern_dtype_name(schema->dtype ? schema->dtype : TERN_F32);
}

const char *table_optimizer(const tern_table_schema *schema)
{
	static const char *const names[] = {"none", "sgd",   "momentum", "adagrad",
					    "adam", "adamw", "ftrl",     "rmsprop"};
	unsigned kind = (unsigned)schema->optimizer.kind;

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

int cmd_table(int argc, char **argv)
{
	const arg_usage usage = {.command = "tern table",
				 .summary = "tables of the parameter server",
				 .synopsis = "tern table SUBCOMMAND [options]"};

	return args_subcommand(&usage, subcommands, SUBCOMMANDS, argc, argv);
}
