/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a table out of a checkpoint. See save.h.
 * Must not: know rpc. Threads: any, one per checkpoint. Tests: tests/unit/ps/save_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
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

/* A table without an optimiser takes the values alone: for serving. */
static tern_status check_schema(const tn_ckpt_reader *from, const tern_table_schema *ours)
{
	tern_table_schema theirs;

	TN_TRY(tn_restore_schema(from, ours->name, &theirs));
	if (theirs.kind != ours->kind || theirs.dim != ours->dim ||
	    (ours->optimizer.kind != TERN_OPT_NONE && theirs.optimizer.kind != ours->optimizer.kind) ||
	    (theirs.dtype ? theirs.dtype : TERN_F32) != (ours->dtype ? ours->dtype : TERN_F32))
		return tn_fail(TERN_E_SHAPE,
			       "%s: table \"%s\" has another kind, dtype, dim (%" PRIu32 ", here %" PRIu32
			       ") or optimiser there",
			       from->name, ours->name, theirs.dim, ours->dim);
	return TERN_OK;
}

/* ---- keys that are gone ---- */

/* Of a dense table nothing is ever gone, and tn_table_erase says so. */
static tern_status erase_keys(restore *r, const uint64_t *keys, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (!r->owns || r->owns(keys[i], r->arg))
			TN_TRY(tn_table_erase(r->table, &keys[i], 1, NULL));
	return TERN_OK;
}

#define GONE_KEYS 65536u

static tern_status read_gone(restore *r, const tn_st_file *file, uint64_t wanted, uint64_t *keys)
{
	const tn_st_tensor *column = tn_st_find(file, "keys");
	uint64_t n;

	if (!column || column->dtype != TERN_U64 || column->shape.rank != 1 ||
	    column->shape.dims[0] != wanted)
		return tn_fail(TERN_E_CORRUPT, "%s: column keys is missing or wrong", file->name);
	for (uint64_t at = 0; at < wanted; at += n) {
		n = TN_MIN(wanted - at, GONE_KEYS);
		TN_TRY(tn_st_read_rows(file, column, at, n, keys));
		TN_TRY(erase_keys(r, keys, n));
	}
	return TERN_OK;
}

static tern_status read_gone_file(restore *r, const tn_ckpt_reader *from, const json_t *row, uint64_t *keys)
{
	tern_status status;
	tn_st_file file;

	TN_TRY(tn_st_open(&file, from->dir, text_of(row, "name")));
	status = read_gone(r, &file, (uint64_t)json_integer_value(json_object_get(row, "rows")), keys);
	tn_st_close(&file);
	return status;
}

static tern_status read_gone_files(restore *r, const tn_ckpt_reader *from, const char *name)
{
	uint64_t *keys = malloc(GONE_KEYS * sizeof(*keys));
	tern_status status = keys ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for the keys of a delta");

	for (unsigned i = 0; i < tn_ckpt_files(from) && status == TERN_OK; i++) {
		const json_t *row = tn_ckpt_file(from, i);

		if (strcmp(text_of(row, "gone_of"), name) == 0)
			status = read_gone_file(r, from, row, keys);
	}
	free(keys);
	return status;
}

/* ---- links and chains ---- */

tern_status tn_restore_link(const tn_ckpt_reader *from, tn_table *table, tn_restore_owns owns, void *arg,
			    uint64_t *rows)
{
	const tern_table_schema *schema = tn_table_schema(table);
	restore r = {.table = table, .owns = owns, .arg = arg};
	tern_status status;
	uint64_t wanted;

	TN_TRY(check_schema(from, schema));
	wanted = (uint64_t)json_integer_value(json_object_get(find_table(from, schema->name), "rows"));
	TN_TRY(tn_columns_init(&r.columns, schema, CHUNK_BYTES));
	status = read_gone_files(&r, from, schema->name);
	if (status == TERN_OK)
		status = read_files(&r, from, schema->name, wanted);
	tn_columns_fini(&r.columns);
	*rows += r.put;
	return status;
}

tern_status tn_restore_table(const tn_ckpt_reader *from, tn_table *table, tn_restore_owns owns, void *arg,
			     uint64_t *rows)
{
	uint64_t put = 0;
	tern_status status = tn_restore_link(from, table, owns, arg, &put);

	if (rows)
		*rows = put;
	return status;
}

unsigned tn_restore_link_of(const tn_ckpt_chain *chain, uint64_t sequence, uint32_t crc)
{
	for (unsigned i = 0; i < chain->count; i++)
		if (chain->links[i].sequence == sequence && chain->links[i].crc == crc)
			return i;
	return chain->count;
}

static bool is_full(const tn_ckpt_reader *link, const json_t *row)
{
	return link->deltas == 0 || json_is_true(json_object_get(row, "full"));
}

tern_status tn_restore_first(const tn_ckpt_chain *chain, const char *table, unsigned *first)
{
	for (unsigned i = chain->count; i-- > 0;) {
		const json_t *row = find_table(&chain->links[i], table);

		if (!row && i + 1 == chain->count)
			return tn_fail(TERN_E_NOT_FOUND, "%s has no table \"%s\"", chain->links[i].name,
				       table);
		if (!row)
			return tn_fail(TERN_E_CORRUPT,
				       "%s has changes of table \"%s\", but %s, to which it is a delta, has "
				       "no such table",
				       chain->links[i + 1].name, table, chain->links[i].name);
		*first = i;
		if (is_full(&chain->links[i], row))
			return TERN_OK;
	}
	return tn_fail(TERN_E_CORRUPT, "table \"%s\" is nowhere in full", table);
}

tern_status tn_restore_chain(const tn_ckpt_chain *chain, tn_table *table, tn_restore_owns owns, void *arg,
			     uint64_t *rows)
{
	uint64_t put = 0;
	tn_table_stats stats;
	unsigned first;

	TN_TRY(tn_restore_first(chain, tn_table_schema(table)->name, &first));
	for (unsigned i = first; i < chain->count; i++)
		TN_TRY(tn_restore_link(&chain->links[i], table, owns, arg, &put));
	tn_table_stats_get(table, &stats);
	if (rows) /* rows that were put again by a delta count once */
		*rows = tn_table_schema(table)->kind == TERN_TABLE_SPARSE ? stats.rows : put;
	return TERN_OK;
}
