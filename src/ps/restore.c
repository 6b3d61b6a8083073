/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a table out of a checkpoint. See save.h.
 * Must not: know rpc. Threads: any, one per checkpoint. Tests: tests/unit/ps/save_test.c.
 */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "ps/columns.h"
#include "ps/save.h"

#define CHUNK_BYTES (8ull << 20)

typedef struct restore {
	tn_table *table;
	tn_restore_owns owns;
	void *arg;
	tn_columns columns; /* room for a chunk of rows */
	uint64_t seen, put;
} restore;

static const char *text_of(const json_t *row, const char *member)
{
	const char *text = json_string_value(json_object_get(row, member));

	return text ? text : "";
}

static const json_t *find_table(const tn_ckpt_reader *from, const char *name)
{
	const json_t *tables = json_object_get(from->manifest, "tables");
	json_t *row;
	size_t i;

	json_array_foreach(tables, i, row) if (strcmp(text_of(row, "name"), name) == 0) return row;
	return NULL;
}

tern_status tn_restore_schema(const tn_ckpt_reader *from, const char *name, tern_table_schema *schema)
{
	const json_t *row = find_table(from, name);

	if (!row)
		return tn_fail(TERN_E_NOT_FOUND, "%s has no table \"%s\"", from->name, name);
	TN_TRY(tn_schema_parse(json_object_get(row, "schema"), schema));
	if (strcmp(schema->name, name) != 0)
		return tn_fail(TERN_E_CORRUPT, "%s: the schema of table \"%s\" is called \"%s\"", from->name,
			       name, schema->name);
	return TERN_OK;
}

static tern_status put_rows(restore *r)
{
	tn_record record;

	for (uint64_t i = 0; i < r->columns.rows; i++) {
		tn_columns_get(&r->columns, i, &record);
		if (r->owns && !r->owns(record.key, r->arg))
			continue;
		TN_TRY(tn_table_put_record(r->table, &record));
		r->put++;
	}
	r->seen += r->columns.rows;
	return TERN_OK;
}

static tern_status read_open_file(restore *r, const tn_st_file *file, uint64_t wanted)
{
	const tn_st_tensor *found[TN_COLUMNS_MAX];
	uint64_t rows;

	TN_TRY(tn_columns_find(&r->columns, file, found, &rows));
	if (rows != wanted)
		return tn_fail(TERN_E_CORRUPT, "%s has %" PRIu64 " rows, the manifest says %" PRIu64,
			       file->name, rows, wanted);
	for (uint64_t at = 0; at < rows; at += r->columns.rows) {
		r->columns.rows = TN_MIN(r->columns.capacity, rows - at);
		for (unsigned i = 0; i < r->columns.count; i++)
			TN_TRY(tn_st_read_rows(file, found[i], at, r->columns.rows, r->columns.data[i]));
		TN_TRY(put_rows(r));
	}
	return TERN_OK;
}

static tern_status read_file(restore *r, const tn_ckpt_reader *from, const json_t *row)
{
	tern_status status;
	tn_st_file file;

	TN_TRY(tn_st_open(&file, from->dir, text_of(row, "name")));
	status = read_open_file(r, &file, (uint64_t)json_integer_value(json_object_get(row, "rows")));
	tn_st_close(&file);
	return status;
}

static tern_status read_files(restore *r, const tn_ckpt_reader *from, const char *name, uint64_t wanted)
{
	for (unsigned i = 0; i < tn_ckpt_files(from); i++) {
		const json_t *row = tn_ckpt_file(from, i);

		if (strcmp(text_of(row, "table"), name) == 0)
			TN_TRY(read_file(r, from, row));
	}
	if (r->seen != wanted)
		return tn_fail(TERN_E_CORRUPT,
			       "%s: the files of table \"%s\" have %" PRIu64
			       " rows, the manifest says %" PRIu64,
			       from->name, name, r->seen, wanted);
	return TERN_OK;
}

static tern_status check_schema(const tn_ckpt_reader *from, const tern_table_schema *ours)
{
	tern_table_schema theirs;

	TN_TRY(tn_restore_schema(from, ours->name, &theirs));
	if (theirs.kind != ours->kind || theirs.dim != ours->dim ||
	    theirs.optimizer.kind != ours->optimizer.kind ||
	    (theirs.dtype ? theirs.dtype : TERN_F32) != (ours->dtype ? ours->dtype : TERN_F32))
		return tn_fail(TERN_E_SHAPE,
			       "%s: table \"%s\" has another kind, dtype, dim (%" PRIu32 ", here %" PRIu32
			       ") or optimiser there",
			       from->name, ours->name, theirs.dim, ours->dim);
	return TERN_OK;
}

tern_status tn_restore_table(const tn_ckpt_reader *from, tn_table *table, tn_restore_owns owns, void *arg,
			     uint64_t *rows)
{
	const tern_table_schema *schema = tn_table_schema(table);
	restore r = {.table = table, .owns = owns, .arg = arg};
	tern_status status;
	uint64_t wanted;

	TN_TRY(check_schema(from, schema));
	wanted = (uint64_t)json_integer_value(json_object_get(find_table(from, schema->name), "rows"));
	TN_TRY(tn_columns_init(&r.columns, schema, CHUNK_BYTES));
	status = read_files(&r, from, schema->name, wanted);
	tn_columns_fini(&r.columns);
	if (rows)
		*rows = r.put;
	return status;
}
