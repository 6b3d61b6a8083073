/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables into checkpoints and back. A table's rows lie in files of any number, each row once; who wrote which, and how
 * many they were, does not matter to who reads.
 *
 * The manifest (store/ckpt.h) gets
 *
 *   files[i]   beside name, bytes and crc32c: table, rows; or gone_of (a table), rows: keys that have no row any more
 *   tables[i]  name, rows, schema (tn_schema_json); of a delta: gone (keys), full (the rows are all there are, whatever
 *              the checkpoint before had: a table that was made since)
 *
 * Must not: know rpc. Threads: any, one per checkpoint. Blocks. Tests: tests/unit/ps/save_test.c.
 */
#ifndef TN_PS_SAVE_H
#define TN_PS_SAVE_H

#include "ps/dedup.h"
#include "ps/table.h"
#include "store/ckpt.h"

/* Zero it, then set what differs. */
typedef struct tn_save {
	tn_ckpt *ckpt;
	uint32_t server;         /* goes into names of files, so that several may write into one directory */
	uint64_t part_bytes;     /* of memory and of a file, roughly; 0 = 32 MiB */
	const tn_ps_slots *mine; /* rows of other slots are passed over; NULL: all are written */
	tn_file_pace pace;
	void *pace_arg;
} tn_save;

/* "TABLE.sSERVER.WHAT.safetensors"; '/' is no letter of a file's name: '+' instead, which is none of a table's. */
void tn_save_file_name(char *buf, unsigned size, const char *table, uint32_t server, const char *what);
/* The rows of a cut of `table` into files. The cut is the caller's to end. *rows: how many. */
tern_status tn_save_table(const tn_save *save, tn_table *table, tn_cut *cut, uint64_t *rows);
/* The keys that are gone in a cut of changes, after its rows, into a file; none: no file. */
tern_status tn_save_gone(const tn_save *save, tn_table *table, tn_cut *cut, uint64_t *gone);
/* A row of the manifest's "tables"; NULL if there is no memory. */
json_t *tn_save_row(const tern_table_schema *schema, uint64_t rows);

/* The schema of a table of a checkpoint. TERN_E_NOT_FOUND, TERN_E_CORRUPT. */
tern_status tn_restore_schema(const tn_ckpt_reader *from, const char *name, tern_table_schema *schema);
/* Whether a key belongs here. */
typedef bool (*tn_restore_owns)(uint64_t key, void *arg);
/*
 * Put the rows of the table of that name which belong here (owns NULL: all) into `table`, which should be empty, and
 * look whether as many rows were read as the manifest says. Files are not verified here: tn_ckpt_verify().
 * *rows (may be NULL): how many were put. TERN_E_NOT_FOUND, TERN_E_CORRUPT, TERN_E_SHAPE, TERN_E_BUDGET, TERN_E_NOMEM:
 * some rows may have been put.
 */
tern_status tn_restore_table(const tn_ckpt_reader *from, tn_table *table, tn_restore_owns owns, void *arg,
			     uint64_t *rows);

/*
 * The same out of a chain: from the last link that has the table in full, through the deltas after it; of each, keys that
 * are gone first, since with several servers one may have given a row away to another.
 */
tern_status tn_restore_chain(const tn_ckpt_chain *chain, tn_table *table, tn_restore_owns owns, void *arg,
			     uint64_t *rows);
/* One link of it: what it changes. *rows += records put. */
tern_status tn_restore_link(const tn_ckpt_reader *link, tn_table *table, tn_restore_owns owns, void *arg,
			    uint64_t *rows);
/* The number of the link to begin with. TERN_E_NOT_FOUND, TERN_E_CORRUPT. */
tern_status tn_restore_first(const tn_ckpt_chain *chain, const char *table, unsigned *first);

/* Number of the link that is checkpoint `sequence` with that manifest; chain->count: none. */
unsigned tn_restore_link_of(const tn_ckpt_chain *chain, uint64_t sequence, uint32_t crc);

/* A schema as JSON and back. From JSON it is checked: TERN_E_CORRUPT. */
json_t *tn_schema_json(const tern_table_schema *schema);
tern_status tn_schema_parse(const json_t *json, tern_table_schema *schema);

#endif
