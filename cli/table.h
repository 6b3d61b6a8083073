/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands of `tern table`. Threads: main.
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/ps.h>

/* Of a checkpoint on disk; no server needed (table_disk.c). */
int table_inspect(int argc, char **argv);
int table_verify(int argc, char **argv);

/* At running servers (table_live.c). */
int table_list(int argc, char **argv);
int table_create(int argc, char **argv);
int table_describe(int argc, char **argv);
int table_drop(int argc, char **argv);
int table_stats(int argc, char **argv);

/* At followers (table_version.c). */
int table_version(int argc, char **argv);

/* Between the two (table_save.c). */
int table_export(int argc, char **argv);
int table_import(int argc, char **argv);

/* What all of them take. */
typedef struct reach {
	const char *command, *server;
	const char *name; /* of the command above; NULL = "table" */
	uint64_t timeout_ns;
	bool as_json;
	char *text;
	tern_ctx *ctx;
	tern_ps *ps;
} reach;

#define REACH_ROWS(r)                                                                                        \
	{"server", ARG_STRING, &(r)->server, "LIST", "servers, \"host:port,...\"; one of the job is enough", \
	 0,        0,          false,        NULL},                                                          \
	{                                                                                                    \
		"timeout", ARG_SECONDS, &(r)->timeout_ns, "TIME", "for each server (default 10s)", 0, 0,     \
			false, NULL                                                                          \
	}

/* Names of what a schema says. */
const char *table_kind(const tern_table_schema *schema);
const char *table_dtype(const tern_table_schema *schema);
const char *table_optimizer(const tern_table_schema *schema);

/* 0, or the exit status after a message. */
int table_enter(reach *r);
void table_leave(reach *r);
/* Says why, and returns 1. */
int table_failed(const reach *r);

#endif
