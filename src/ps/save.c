/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing the rows of a cut. See save.h.
 * Must not: know rpc. Threads: any, one per checkpoint. Tests: tests/unit/ps/save_test.c.
 */
#include "ps/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "ps/columns.h"

#define PART_BYTES (32ull << 20)
#define STEP_BYTES (32ull << 10) /* of rows gathered at a time */

void tn_save_file_name(char *buf, unsigned size, const char *table, uint32_t server, const char *what)
{
	int n = snprintf(buf, size, "%s", table);

	for (char *c = buf; *c; c++)
		if (*c == '/')
			*c = '+';
	snprintf(buf + n, size - (unsigned)n, ".s%04" PRIu32 ".%s.safetensors", server, what);
}

static tern_status write_columns(const char *table, tn_columns *columns, tn_file *file)
{
	const tn_st_note notes[] = {{"format", TN_CKPT_FORMAT}, {"table", table}};

	tn_columns_shape(columns);
	return tn_st_write(file, columns->tensors, (const void *const *)columns->data, columns->count, notes,
			   2);
}

/* Bytes are gathered, and then written: half of the pace each, so that neither is a burst. */
static tern_status pace_half(uint64_t bytes, void *arg)
{
	const tn_save *save = arg;

	return save->pace ? save->pace(bytes / 2, save->pace_arg) : TERN_OK;
}

static tern_status write_part(const tn_save *save, const char *table, tn_columns *columns, uint32_t part)
{
	char name[TERN_TABLE_NAME_MAX + 40], what[16];
	tern_status status;
	json_t *extra;
	tn_file file;

	snprintf(what, sizeof(what), "p%06" PRIu32, part);
	tn_save_file_name(name, sizeof(name), table, save->server, what);
	TN_TRY(tn_file_create(&file, save->ckpt->dir, name, save->pace ? pace_half : NULL,
			      (void *)(uintptr_t)save));
	status = write_columns(table, columns, &file);
	if (status != TERN_OK) {
		tn_file_give_up(&file);
		return status;
	}
	TN_TRY(tn_file_finish(&file));
	extra = json_pack("{s:s, s:I}", "table", table, "rows", (json_int_t)columns->rows);
	if (!extra)
		return tn_fail(TERN_E_NOMEM, "no memory for a checkpoint's manifest");
	return tn_ckpt_add(save->ckpt, &file, extra);
}

static bool is_mine(const tn_save *save, uint64_t key)
{
	return !save->mine || tn_ps_slots_has(save->mine, tn_table_slot(key));
}

typedef struct collector {
	const tn_save *save;
	tn_columns *columns;
} collector;

static tern_status collect(const tn_record *record, void *arg)
{
	const collector *c = arg;

	return is_mine(c->save, record->key) ? tn_columns_add(c->columns, record) : TERN_OK;
}

/* Rows up to a part, or all that are left. */
static tern_status gather(collector *c, tn_cut *cut, uint64_t row_bytes, bool *more)
{
	tn_columns *columns = c->columns;
	uint64_t step = TN_MIN(TN_MAX(STEP_BYTES / row_bytes, 1), columns->capacity);

	columns->rows = 0;
	do {
		uint64_t before = columns->rows;

		TN_TRY(tn_cut_next(cut, step, collect, c, more));
		TN_TRY(pace_half((columns->rows - before) * row_bytes, (void *)(uintptr_t)c->save));
	} while (*more && columns->rows + step <= columns->capacity);
	return TERN_OK;
}

static tern_status write_parts(const tn_save *save, const char *table, tn_cut *cut, tn_columns *columns,
			       uint64_t *rows)
{
	collector c = {save, columns};
	uint64_t row_bytes = 0;
	bool more = true;

	for (unsigned i = 0; i < columns->count; i++)
		row_bytes += columns->row_bytes[i];
	for (uint32_t part = 0; more; part++) {
		TN_TRY(gather(&c, cut, row_bytes, &more));
		if (columns->rows == 0)
			continue;
		TN_TRY(write_part(save, table, columns, part));
		*rows += columns->rows;
	}
	return TERN_OK;
}

tern_status tn_save_table(const tn_save *save, tn_table *table, tn_cut *cut, uint64_t *rows)
{
	const tern_table_schema *schema = tn_table_schema(table);
	tern_status status;
	tn_columns columns;

	*rows = 0;
	TN_TRY(tn_columns_init(&columns, schema, save->part_bytes ? save->part_bytes : PART_BYTES));
	status = write_parts(save, schema->name, cut, &columns, rows);
	tn_columns_fini(&columns);
	return status;
}

/* ---- keys that are gone ---- */

typedef struct key_list {
	const tn_save *save;
	uint64_t *keys;
	uint64_t n, room;
} key_list;

static tern_status list_key(uint64_t key, void *arg)
{
	key_list *list = arg;

	if (!is_mine(list->save, key))
		return TERN_OK;
	if (list->n == list->room) {
		uint64_t room = list->room ? list->room * 2 : 1024;
		uint64_t *more = realloc(list->keys, room * sizeof(*more));

		if (!more)
			return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " erased keys", room);
		list->keys = more;
		list->room = room;
	}
	list->keys[list->n++] = key;
	return TERN_OK;
}

static tern_status write_gone(const tn_save *save, const char *table, const key_list *list)
{
	const tn_st_note notes[] = {{"format", TN_CKPT_FORMAT}, {"gone_of", table}};
	tn_st_tensor tensor = {.name = "keys", .dtype = TERN_U64, .shape = {.rank = 1, .dims = {list->n}}};
	const void *data = list->keys;
	char name[TERN_TABLE_NAME_MAX + 40];
	tern_status status;
	json_t *extra;
	tn_file file;

	tn_save_file_name(name, sizeof(name), table, save->server, "gone");
	TN_TRY(tn_file_create(&file, save->ckpt->dir, name, save->pace, save->pace_arg));
	status = tn_st_write(&file, &tensor, &data, 1, notes, 2);
	if (status != TERN_OK) {
		tn_file_give_up(&file);
		return status;
	}
	TN_TRY(tn_file_finish(&file));
	extra = json_pack("{s:s, s:I}", "gone_of", table, "rows", (json_int_t)list->n);
	return extra ? tn_ckpt_add(save->ckpt, &file, extra)
		     : tn_fail(TERN_E_NOMEM, "no memory for a checkpoint's manifest");
}

tern_status tn_save_gone(const tn_save *save, tn_table *table, tn_cut *cut, uint64_t *gone)
{
	key_list list = {.save = save};
	tern_status status = tn_cut_gone(cut, list_key, &list);

	if (status == TERN_OK && list.n)
		status = write_gone(save, tn_table_schema(table)->name, &list);
	*gone = list.n;
	free(list.keys);
	return status;
}

json_t *tn_save_row(const tern_table_schema *schema, uint64_t rows)
{
	json_t *json = tn_schema_json(schema);

	if (!json)
		return NULL;
	return json_pack("{s:s, s:I, s:o}", "name", schema->name, "rows", (json_int_t)rows, "schema", json);
}
