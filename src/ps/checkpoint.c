/* SPDX-License-Identifier: Apache-2.0 */
/*
 * <tern/checkpoint.h>: looking at checkpoints without a server.
 * Must not: change anything. Threads: one at a time per handle. Tests: tests/unit/ps/save_test.c.
 */
#include <tern/checkpoint.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "ps/columns.h"
#include "ps/save.h"

struct tern_checkpoint {
	tn_ckpt_reader reader;
	char *dir; /* of checkpoints */
};

tern_status tern_checkpoint_list(const char *dir, int (*fn)(uint64_t sequence, void *arg), void *arg)
{
	uint64_t *sequences;
	unsigned count;

	TN_TRY(tn_ckpt_list(dir, &sequences, &count));
	for (unsigned i = 0; i < count; i++)
		if (fn(sequences[i], arg))
			break;
	free(sequences);
	return TERN_OK;
}

tern_status tern_checkpoint_open(const char *dir, uint64_t sequence, tern_checkpoint **checkpoint)
{
	tern_checkpoint *made = calloc(1, sizeof(*made));
	tern_status status;

	*checkpoint = NULL;
	if (!made)
		return tn_fail(TERN_E_NOMEM, "no memory to open a checkpoint");
	status = tn_ckpt_open(&made->reader, dir, sequence);
	made->dir = status == TERN_OK ? strdup(dir) : NULL;
	if (status == TERN_OK && !made->dir) {
		tn_ckpt_close(&made->reader);
		status = tn_fail(TERN_E_NOMEM, "no memory to open a checkpoint");
	}
	if (status != TERN_OK) {
		free(made);
		return status;
	}
	*checkpoint = made;
	return TERN_OK;
}

void tern_checkpoint_close(tern_checkpoint *checkpoint)
{
	if (!checkpoint)
		return;
	tn_ckpt_close(&checkpoint->reader);
	free(checkpoint->dir);
	free(checkpoint);
}

static uint64_t number_of(const json_t *object, const char *member)
{
	return (uint64_t)json_integer_value(json_object_get(object, member));
}

static const json_t *tables_of(const tn_ckpt_reader *reader)
{
	return json_object_get(reader->manifest, "tables");
}

static uint64_t bytes_of(const tn_ckpt_reader *reader)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < tn_ckpt_files(reader); i++)
		bytes += number_of(tn_ckpt_file(reader, i), "bytes");
	return bytes;
}

void tern_checkpoint_get(const tern_checkpoint *checkpoint, tern_checkpoint_info *info)
{
	const tn_ckpt_reader *reader = &checkpoint->reader;

	*info = (tern_checkpoint_info){
		.sequence = reader->sequence,
		.base = reader->deltas ? reader->base : TERN_CHECKPOINT_LAST,
		.saved_ns = reader->saved_ns,
		.step = reader->step,
		.id = reader->id,
		.deltas = reader->deltas,
		.files = tn_ckpt_files(reader),
		.tables = (uint32_t)json_array_size(tables_of(reader)),
	};
	info->bytes = bytes_of(reader);
}

static bool says(const json_t *file, const char *member, const char *table)
{
	const char *name = json_string_value(json_object_get(file, member));

	return name && strcmp(name, table) == 0;
}

static tern_status table_info(const tn_ckpt_reader *reader, uint32_t i, tern_checkpoint_table_info *info)
{
	const json_t *row = json_array_get(tables_of(reader), i);

	memset(info, 0, sizeof(*info));
	if (!row)
		return tn_fail(TERN_E_NOT_FOUND, "%s has %zu tables", reader->name,
			       json_array_size(tables_of(reader)));
	TN_TRY(tn_schema_parse(json_object_get(row, "schema"), &info->schema));
	info->rows = number_of(row, "rows");
	info->gone = number_of(row, "gone");
	info->full = reader->deltas == 0 || json_is_true(json_object_get(row, "full"));
	for (unsigned k = 0; k < tn_ckpt_files(reader); k++) {
		const json_t *file = tn_ckpt_file(reader, k);

		if (!says(file, "table", info->schema.name) && !says(file, "gone_of", info->schema.name))
			continue;
		info->files++;
		info->bytes += number_of(file, "bytes");
	}
	return TERN_OK;
}

tern_status tern_checkpoint_table(const tern_checkpoint *checkpoint, uint32_t i,
				  tern_checkpoint_table_info *info)
{
	return table_info(&checkpoint->reader, i, info);
}

/* ---- followers ---- */

typedef struct follower_walk {
	int (*fn)(const tern_checkpoint_follower *follower, void *arg);
	void *arg;
} follower_walk;

static int give_follower(const tn_ckpt_ack *ack, void *arg)
{
	tern_checkpoint_follower follower = {.sequence = ack->sequence, .heard_ns = ack->at_ns};
	const follower_walk *walk = arg;

	snprintf(follower.name, sizeof(follower.name), "%s", ack->name);
	return walk->fn(&follower, walk->arg);
}

tern_status tern_checkpoint_followers(const char *dir,
				      int (*fn)(const tern_checkpoint_follower *follower, void *arg),
				      void *arg)
{
	follower_walk walk = {fn, arg};

	return tn_ckpt_acks(dir, give_follower, &walk);
}

/* ---- verifying ---- */

typedef struct meter {
	int (*progress)(uint64_t bytes, uint64_t total, void *arg);
	void *arg;
	uint64_t bytes, total;
} meter;

static tern_status count_bytes(uint64_t bytes, void *arg)
{
	meter *m = arg;

	m->bytes += bytes;
	if (m->progress && m->progress(m->bytes, m->total, m->arg))
		return tn_fail(TERN_E_CANCELED, "stopped after %" PRIu64 " of %" PRIu64 " bytes", m->bytes,
			       m->total);
	return TERN_OK;
}

/* A file's columns are those of its table, as long as the manifest says. */
static tern_status verify_columns(const tn_ckpt_reader *reader, const json_t *row, const tn_columns *columns)
{
	const tn_st_tensor *found[TN_COLUMNS_MAX];
	tern_status status;
	tn_st_file file;
	uint64_t rows;

	TN_TRY(tn_st_open(&file, reader->dir, json_string_value(json_object_get(row, "name"))));
	status = tn_columns_find(columns, &file, found, &rows);
	if (status == TERN_OK && rows != number_of(row, "rows"))
		status = tn_fail(TERN_E_CORRUPT, "%s has %" PRIu64 " rows, the manifest says %" PRIu64,
				 file.name, rows, number_of(row, "rows"));
	tn_st_close(&file);
	return status;
}

static tern_status compare_counts(const tn_ckpt_reader *reader, const char *table, const char *what,
				  uint64_t files, uint64_t manifest)
{
	if (files == manifest)
		return TERN_OK;
	return tn_fail(TERN_E_CORRUPT,
		       "%s: the files of table \"%s\" have %" PRIu64 " %s, the manifest says %" PRIu64,
		       reader->name, table, files, what, manifest);
}

static tern_status verify_table(const tn_ckpt_reader *reader, uint32_t i)
{
	tern_checkpoint_table_info info;
	tern_status status = TERN_OK;
	uint64_t rows = 0, gone = 0;
	tn_columns columns;

	TN_TRY(table_info(reader, i, &info));
	TN_TRY(tn_columns_init(&columns, &info.schema, 1));
	for (unsigned k = 0; k < tn_ckpt_files(reader) && status == TERN_OK; k++) {
		const json_t *file = tn_ckpt_file(reader, k);

		if (says(file, "gone_of", info.schema.name))
			gone += number_of(file, "rows");
		if (!says(file, "table", info.schema.name))
			continue;
		status = verify_columns(reader, file, &columns);
		rows += number_of(file, "rows");
	}
	tn_columns_fini(&columns);
	TN_TRY(status);
	TN_TRY(compare_counts(reader, info.schema.name, "rows", rows, info.rows));
	return compare_counts(reader, info.schema.name, "erased keys", gone, info.gone);
}

static tern_status verify_link(const tn_ckpt_reader *reader, meter *m)
{
	TN_TRY(tn_ckpt_verify(reader, count_bytes, m));
	for (uint32_t i = 0; i < json_array_size(tables_of(reader)); i++)
		TN_TRY(verify_table(reader, i));
	return TERN_OK;
}

tern_status tern_checkpoint_verify(const tern_checkpoint *checkpoint,
				   int (*progress)(uint64_t bytes, uint64_t total, void *arg), void *arg)
{
	meter m = {.progress = progress, .arg = arg};
	tern_status status = TERN_OK;
	tn_ckpt_chain chain;

	TN_TRY(tn_ckpt_chain_open(&chain, checkpoint->dir, checkpoint->reader.sequence));
	for (unsigned i = 0; i < chain.count; i++)
		m.total += bytes_of(&chain.links[i]);
	for (unsigned i = 0; i < chain.count && status == TERN_OK; i++)
		status = verify_link(&chain.links[i], &m);
	tn_ckpt_chain_close(&chain);
	return status;
}
