/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of a table as columns, as they lie in files:
 *
 *   keys              U64 [n]
 *   values            the table's dtype [n, dim]
 *   state.NAME        F32 [n, dim], one per slot of the optimiser (store/optim.h)
 *   updates           I32 [n], optimisers that count
 *   last_step         U64 [n], tables with metadata
 *   frequency         I32 [n], likewise
 *
 * Must not: do IO. Threads: one per object. Tests: tests/unit/ps/save_test.c.
 */
#ifndef TN_PS_COLUMNS_H
#define TN_PS_COLUMNS_H

#include "ps/table.h"
#include "store/safetensors.h"

#define TN_COLUMNS_MAX 8

typedef struct tn_columns {
	unsigned count;
	unsigned slots; /* of the optimiser */
	bool counts, meta;
	uint64_t slot_bytes; /* of one row */
	uint64_t rows, capacity;
	tn_st_tensor tensors[TN_COLUMNS_MAX]; /* shape.dims[0] is set by tn_columns_shape() */
	uint64_t row_bytes[TN_COLUMNS_MAX];
	void *data[TN_COLUMNS_MAX];
	void *state; /* of one record, to put it together */
} tn_columns;

/* Room for as many rows as fit into `bytes`, at least one. TERN_E_NOMEM. */
tern_status tn_columns_init(tn_columns *columns, const tern_table_schema *schema, uint64_t bytes);
void tn_columns_fini(tn_columns *columns);

/* Append a record; more than there was room for costs a copy of all of them. TERN_E_NOMEM. */
tern_status tn_columns_add(tn_columns *columns, const tn_record *record);
/* The record in row i; its pointers are good until the next call. */
void tn_columns_get(tn_columns *columns, uint64_t i, tn_record *record);
/* Say in the tensors how many rows there are. */
void tn_columns_shape(tn_columns *columns);

/* The columns of a file, in our order. TERN_E_CORRUPT (one is missing), TERN_E_SHAPE (it is of another table). */
tern_status tn_columns_find(const tn_columns *columns, const tn_st_file *file,
			    const tn_st_tensor *found[TN_COLUMNS_MAX], uint64_t *rows);

#endif
