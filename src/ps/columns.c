/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as columns. See columns.h.
 * Must not: do IO. Threads: one per object. Tests: tests/unit/ps/save_test.c.
 */
#include "ps/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "store/optim.h"

enum { KEYS, VALUES, STATE };

static void add_column(tn_columns *columns, const char *name, tern_dtype dtype, uint32_t dim)
{
	tn_st_tensor *tensor = &columns->tensors[columns->count];

	TN_ASSERT(columns->count < TN_COLUMNS_MAX);
	snprintf(tensor->name, sizeof(tensor->name), "%s", name);
	tensor->dtype = dtype;
	tensor->shape.rank = dim ? 2 : 1;
	tensor->shape.dims[1] = dim;
	columns->row_bytes[columns->count++] = tern_dtype_bytes(dtype) * (dim ? dim : 1);
}

static void describe(tn_columns *columns, const tern_table_schema *schema)
{
	char name[TN_ST_NAME_MAX];
	const char *slot;
	tn_optim optim;

	tn_optim_prepare(&optim, &schema->optimizer);
	add_column(columns, "keys", TERN_U64, 0);
	add_column(columns, "values", schema->dtype ? schema->dtype : TERN_F32, schema->dim);
	for (; (slot = tn_optim_slot_name(&optim, columns->slots)) != NULL; columns->slots++) {
		snprintf(name, sizeof(name), "state.%s", slot);
		add_column(columns, name, TERN_F32, schema->dim);
	}
	columns->slot_bytes = schema->dim * sizeof(float);
	columns->counts = optim.counts;
	columns->meta = !(schema->flags & TERN_TABLE_NO_META);
	if (columns->counts)
		add_column(columns, "updates", TERN_I32, 0);
	if (columns->meta) {
		add_column(columns, "last_step", TERN_U64, 0);
		add_column(columns, "frequency", TERN_I32, 0);
	}
}

tern_status tn_columns_init(tn_columns *columns, const tern_table_schema *schema, uint64_t bytes)
{
	uint64_t row = 0;

	memset(columns, 0, sizeof(*columns));
	describe(columns, schema);
	for (unsigned i = 0; i < columns->count; i++)
		row += columns->row_bytes[i];
	columns->capacity = TN_MAX(bytes / row, 1);
	columns->state = malloc(columns->slots * columns->slot_bytes + sizeof(uint32_t));
	for (unsigned i = 0; i < columns->count; i++)
		columns->data[i] = malloc(columns->capacity * columns->row_bytes[i]);
	for (unsigned i = 0; i < columns->count; i++) {
		if (!columns->data[i] || !columns->state) {
			tn_columns_fini(columns);
			return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " rows of table \"%s\"",
				       columns->capacity, schema->name);
		}
	}
	return TERN_OK;
}

void tn_columns_fini(tn_columns *columns)
{
	for (unsigned i = 0; i < columns->count; i++)
		free(columns->data[i]);
	free(columns->state);
	memset(columns, 0, sizeof(*columns));
}

static void *cell(const tn_columns *columns, unsigned column, uint64_t row)
{
	return (uint8_t *)columns->data[column] + row * columns->row_bytes[column];
}

static tern_status grow(tn_columns *columns)
{
	uint64_t capacity = columns->capacity + columns->capacity / 2 + 1;

	for (unsigned i = 0; i < columns->count; i++) {
		void *data = realloc(columns->data[i], capacity * columns->row_bytes[i]);

		if (!data)
			return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " rows", capacity);
		columns->data[i] = data;
	}
	columns->capacity = capacity;
	return TERN_OK;
}

tern_status tn_columns_add(tn_columns *columns, const tn_record *record)
{
	const uint8_t *state = record->state;
	unsigned column = STATE;
	uint64_t at;

	if (columns->rows == columns->capacity)
		TN_TRY(grow(columns));
	at = columns->rows++;
	memcpy(cell(columns, KEYS, at), &record->key, sizeof(record->key));
	memcpy(cell(columns, VALUES, at), record->value, columns->row_bytes[VALUES]);
	for (unsigned i = 0; i < columns->slots; i++, state += columns->slot_bytes)
		memcpy(cell(columns, column++, at), state, columns->slot_bytes);
	if (columns->counts)
		memcpy(cell(columns, column++, at), state, sizeof(uint32_t));
	if (columns->meta) {
		memcpy(cell(columns, column++, at), &record->last_step, sizeof(record->last_step));
		memcpy(cell(columns, column, at), &record->frequency, sizeof(record->frequency));
	}
	return TERN_OK;
}

static void record_init(tn_record *record, const void *value, const void *state)
{
	*record = (tn_record){.value = value, .state = state};
}

void tn_columns_get(tn_columns *columns, uint64_t i, tn_record *record)
{
	uint8_t *state = columns->state;
	unsigned column = STATE;

	TN_ASSERT(i < columns->rows);
	record_init(record, cell(columns, VALUES, i),
		    columns->slots || columns->counts ? columns->state : NULL);
	memcpy(&record->key, cell(columns, KEYS, i), sizeof(record->key));
	for (unsigned k = 0; k < columns->slots; k++, state += columns->slot_bytes)
		memcpy(state, cell(columns, column++, i), columns->slot_bytes);
	if (columns->counts)
		memcpy(state, cell(columns, column++, i), sizeof(uint32_t));
	if (columns->meta) {
		memcpy(&record->last_step, cell(columns, column++, i), sizeof(record->last_step));
		memcpy(&record->frequency, cell(columns, column, i), sizeof(record->frequency));
	}
}

void tn_columns_shape(tn_columns *columns)
{
	for (unsigned i = 0; i < columns->count; i++)
		columns->tensors[i].shape.dims[0] = columns->rows;
}

static bool same_row(const tn_st_tensor *a, const tn_st_tensor *b)
{
	return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
	       (a->shape.rank < 2 || a->shape.dims[1] == b->shape.dims[1]);
}

tern_status tn_columns_find(const tn_columns *columns, const tn_st_file *file,
			    const tn_st_tensor *found[TN_COLUMNS_MAX], uint64_t *rows)
{
	for (unsigned i = 0; i < columns->count; i++) {
		const tn_st_tensor *ours = &columns->tensors[i];

		found[i] = tn_st_find(file, ours->name);
		if (!found[i])
			return tn_fail(TERN_E_CORRUPT, "%s has no column %s", file->name, ours->name);
		if (!same_row(found[i], ours))
			return tn_fail(TERN_E_SHAPE,
				       "%s: column %s is %s of %" PRIu64 ", the table has %s of %" PRIu64,
				       file->name, ours->name, tern_dtype_name(found[i]->dtype),
				       found[i]->shape.rank > 1 ? found[i]->shape.dims[1] : 1,
				       tern_dtype_name(ours->dtype),
				       ours->shape.rank > 1 ? ours->shape.dims[1] : 1);
		if (found[i]->shape.dims[0] != found[0]->shape.dims[0])
			return tn_fail(TERN_E_CORRUPT, "%s: column %s has %" PRIu64 " rows, keys %" PRIu64,
				       file->name, ours->name, found[i]->shape.dims[0],
				       found[0]->shape.dims[0]);
	}
	*rows = found[KEYS]->shape.dims[0];
	return TERN_OK;
}
