/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands of `tern table`. Threads: main.
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

/* Of a checkpoint on disk; no server needed (table_disk.c). */
int table_inspect(int argc, char **argv);
int table_verify(int argc, char **argv);

/* At running servers (table_live.c). */
int table_list(int argc, char **argv);
int table_create(int argc, char **argv);
int table_describe(int argc, char **argv);
int table_drop(int argc, char **argv);
int table_stats(int argc, char **argv);

#endif
