/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pushes a share holds, to a file and back. See facts.h.
 * Must not: know rpc. Threads: one per object. Tests: tests/unit/ps/saver_test.c.
 */
#include "ps/facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "ps/save.h"
#include "store/safetensors.h"

#define COLUMNS 5

void tn_ps_facts_free(tn_ps_facts *facts)
{
	free(facts->slot);
	free(facts->client);
	free(facts->low);
	free(facts->seq);
	free(facts->status);
	memset(facts, 0, sizeof(*facts));
}

static bool grow_column(void **column, uint64_t capacity, uint64_t bytes)
{
	void *more = realloc(*column, capacity * bytes);

	if (!more)
		return false;
	*column = more;
	return true;
}

static bool reserve(tn_ps_facts *f, uint64_t count)
{
	uint64_t capacity = TN_MAX(count, f->capacity * 2);

	if (count <= f->capacity)
		return true;
	if (!grow_column((void **)&f->slot, capacity, sizeof(*f->slot)) ||
	    !grow_column((void **)&f->client, capacity, sizeof(*f->client)) ||
	    !grow_column((void **)&f->low, capacity, sizeof(*f->low)) ||
	    !grow_column((void **)&f->seq, capacity, sizeof(*f->seq)) ||
	    !grow_column((void **)&f->status, capacity, sizeof(*f->status)))
		return false;
	f->capacity = capacity;
	return true;
}

typedef struct taker {
	tn_ps_facts *facts;
	int32_t slot;
} taker;

/* Marks are the same in every slot: kept once, with slot -1. */
static void take_fact(uint64_t client, uint64_t low, uint64_t seq, tern_status status, void *arg)
{
	taker *t = arg;
	tn_ps_facts *f = t->facts;
	bool mark = seq == TN_PS_NO_SEQ;

	if (mark && t->slot > 0)
		return;
	if (f->failed || !reserve(f, f->count + 1)) {
		f->failed = true;
		return;
	}
	f->slot[f->count] = mark ? -1 : t->slot;
	f->client[f->count] = client;
	f->low[f->count] = low;
	f->seq[f->count] = seq;
	f->status[f->count++] = status;
}

tern_status tn_ps_facts_take(tn_ps_facts *facts, const tn_ps_dedup *d)
{
	taker t = {.facts = facts};

	memset(facts, 0, sizeof(*facts));
	for (; t.slot < (int32_t)TERN_TABLE_SLOTS; t.slot++)
		tn_ps_dedup_export(d, (uint32_t)t.slot, take_fact, &t);
	if (!facts->failed)
		return TERN_OK;
	tn_ps_facts_free(facts);
	return tn_fail(TERN_E_NOMEM, "no memory for what is known of pushes");
}

static void describe(tn_st_tensor tensors[COLUMNS], uint64_t count)
{
	static const char *const names[COLUMNS] = {"slot", "client", "low", "seq", "status"};

	for (unsigned i = 0; i < COLUMNS; i++) {
		tensors[i] = (tn_st_tensor){.dtype = i == 0 || i == COLUMNS - 1 ? TERN_I32 : TERN_U64};
		snprintf(tensors[i].name, sizeof(tensors[i].name), "%s", names[i]);
		tensors[i].shape.rank = 1;
		tensors[i].shape.dims[0] = count;
	}
}

static tern_status write_columns(const tn_ps_facts *facts, tn_file *file, const char *table)
{
	const void *const data[COLUMNS] = {facts->slot, facts->client, facts->low, facts->seq, facts->status};
	const tn_st_note notes[] = {{"format", TN_CKPT_FORMAT}, {"pushes_of", table}};
	tn_st_tensor tensors[COLUMNS];

	describe(tensors, facts->count);
	return tn_st_write(file, tensors, data, COLUMNS, notes, 2);
}

void tn_ps_facts_only(tn_ps_facts *f, const tn_ps_slots *mine)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < f->count; i++) {
		if (f->slot[i] >= 0 && !tn_ps_slots_has(mine, (uint32_t)f->slot[i]))
			continue;
		f->slot[n] = f->slot[i];
		f->client[n] = f->client[i];
		f->low[n] = f->low[i];
		f->seq[n] = f->seq[i];
		f->status[n++] = f->status[i];
	}
	f->count = n;
}

tern_status tn_ps_facts_write(const tn_ps_facts *facts, tn_ckpt *ckpt, const char *table, uint32_t server)
{
	char name[TERN_TABLE_NAME_MAX + 40];
	tern_status status;
	json_t *extra;
	tn_file file;

	if (facts->count == 0)
		return TERN_OK;
	tn_save_file_name(name, sizeof(name), table, server, "pushes");
	TN_TRY(tn_file_create(&file, ckpt->dir, name, NULL, NULL));
	status = write_columns(facts, &file, table);
	if (status != TERN_OK) {
		tn_file_give_up(&file);
		return status;
	}
	TN_TRY(tn_file_finish(&file));
	extra = json_pack("{s:s, s:I}", "pushes_of", table, "rows", (json_int_t)facts->count);
	return extra ? tn_ckpt_add(ckpt, &file, extra) : tn_fail(TERN_E_NOMEM, "no memory for a manifest");
}

/* ---- and back ---- */

static tern_status read_columns(const tn_st_file *file, tn_ps_facts *f)
{
	const tn_st_tensor *found[COLUMNS];
	tn_st_tensor wanted[COLUMNS];

	describe(wanted, 0);
	for (unsigned i = 0; i < COLUMNS; i++) {
		found[i] = tn_st_find(file, wanted[i].name);
		if (!found[i] || found[i]->dtype != wanted[i].dtype || found[i]->shape.rank != 1 ||
		    found[i]->shape.dims[0] != found[0]->shape.dims[0])
			return tn_fail(TERN_E_CORRUPT, "%s: column %s is missing or wrong", file->name,
				       wanted[i].name);
	}
	f->count = found[0]->shape.dims[0];
	if (!reserve(f, f->count))
		return tn_fail(TERN_E_NOMEM, "no memory for what is known of pushes");
	TN_TRY(tn_st_read_rows(file, found[0], 0, f->count, f->slot));
	TN_TRY(tn_st_read_rows(file, found[1], 0, f->count, f->client));
	TN_TRY(tn_st_read_rows(file, found[2], 0, f->count, f->low));
	TN_TRY(tn_st_read_rows(file, found[3], 0, f->count, f->seq));
	return tn_st_read_rows(file, found[4], 0, f->count, f->status);
}

static tern_status put_facts(const tn_ps_facts *f, const char *file, const tn_ps_slots *mine, tn_ps_dedup *d)
{
	for (uint64_t i = 0; i < f->count; i++) {
		bool mark = f->slot[i] == -1;

		if (!mark && (f->slot[i] < 0 || f->slot[i] >= (int32_t)TERN_TABLE_SLOTS))
			return tn_fail(TERN_E_CORRUPT, "%s: there is no slot %" PRId32, file, f->slot[i]);
		if (!mark && !tn_ps_slots_has(mine, (uint32_t)f->slot[i]))
			continue;
		TN_TRY(tn_ps_dedup_import(d, mark ? 0 : (uint32_t)f->slot[i], f->client[i], f->low[i],
					  mark ? TN_PS_NO_SEQ : f->seq[i], (tern_status)f->status[i]));
	}
	return TERN_OK;
}

static tern_status restore_file(const tn_ckpt_reader *from, const char *name, const tn_ps_slots *mine,
				tn_ps_dedup *d)
{
	tn_ps_facts facts = {0};
	tern_status status;
	tn_st_file file;

	TN_TRY(tn_st_open(&file, from->dir, name));
	status = read_columns(&file, &facts);
	if (status == TERN_OK)
		status = put_facts(&facts, file.name, mine, d);
	tn_ps_facts_free(&facts);
	tn_st_close(&file);
	return status;
}

tern_status tn_ps_facts_restore(const tn_ckpt_reader *from, const char *table, const tn_ps_slots *mine,
				tn_ps_dedup *d)
{
	for (unsigned i = 0; i < tn_ckpt_files(from); i++) {
		const json_t *row = tn_ckpt_file(from, i);
		const char *of = json_string_value(json_object_get(row, "pushes_of"));

		if (of && strcmp(of, table) == 0)
			TN_TRY(restore_file(from, json_string_value(json_object_get(row, "name")), mine, d));
	}
	return TERN_OK;
}
