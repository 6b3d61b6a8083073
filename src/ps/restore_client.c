/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leading a restore. See <tern/ps_save.h>, ps/saver.h:
 *
 *   KEEP at all (do they restore?) -> DESCRIBE each table at all (nowhere) -> RESTORE at all -> did all go by the map that they were found by?
 *   or DROP each table at all
 *
 * Every server takes the rows of the slots that are its own by its map. Slots may be on their way to others meanwhile, and
 * tables with them: by two maps a slot could be nobody's, or somebody's who was not asked. Then nothing is left, and the caller
 * tries again.
 *
 * Threads: any; one object per restore. Tests: tests/unit/ps/saver_test.c, whole_model_test.c.
 */
#include <tern/ps_save.h>

#include <inttypes.h>
#include <string.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/fail.h"
#include "ps/save.h"
#include "ps/save_lead.h"

#define KEEP_NS     (10 * TN_NS_PER_SEC)
#define UNDO_ROUNDS 4

static tern_status moved(void)
{
	return tn_fail(TERN_E_STATE, "slots were given to other servers during the restore: try again");
}

/* A question about a table to a server. */
static tern_status ask(const tn_save_lead *l, uint32_t i, uint32_t method, const char *name)
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8], schema[TN_PS_SCHEMA_BYTES];
	tern_rpc_call_params call = {
		.method = method, .args = args, .answer = schema, .answer_capacity = sizeof(schema)};

	call.args_bytes = tn_ps_name_encode(args, sizeof(args), name);
	if (!call.args_bytes)
		return tn_fail(TERN_E_CORRUPT, "a checkpoint's table has no name, or one that is too long");
	return tern_rpc_call_wait(l->hosts[i]->rpc, &call, l->ps->timeout_ns, NULL);
}

/* So that what is there later came by this restore. */
static tern_status none_is_there(const tn_save_lead *l, const json_t *tables)
{
	json_t *row;
	size_t k;

	json_array_foreach(tables, k, row)
	{
		const char *name = json_string_value(json_object_get(row, "name"));

		for (uint32_t i = 0; i < l->servers; i++) {
			tern_status status = ask(l, i, TN_PS_DESCRIBE, name ? name : "");

			if (status == TERN_OK)
				status = tn_fail(TERN_E_EXISTS,
						 "there is a table \"%s\": drop it before it is restored",
						 name);
			if (status != TERN_E_NOT_FOUND)
				return tn_save_failed_at(l, i, status);
		}
	}
	return TERN_OK;
}

/* Rows of all, if they went by the map that they were found by. Servers of before don't say which. */
static tern_status count_rows(const tn_save_lead *l, uint64_t *rows)
{
	bool same = true;

	for (uint32_t i = 0; i < l->servers; i++) {
		json_t *root = json_loadb(l->answers[i], l->ops[i].length, 0, NULL);
		const json_t *map = json_object_get(root, "map");

		*rows += (uint64_t)json_integer_value(json_object_get(root, "rows"));
		same &= !map || (uint64_t)json_integer_value(map) == l->map;
		json_decref(root);
	}
	return same ? TERN_OK : moved();
}

/* Drops the tables at whoever has them; true: somebody had one. */
static bool drop_round(const tn_save_lead *l, const json_t *tables)
{
	bool any = false;
	json_t *row;
	size_t k;

	json_array_foreach(tables, k, row)
	{
		const char *name = json_string_value(json_object_get(row, "name"));

		for (uint32_t i = 0; i < l->servers; i++)
			any |= ask(l, i, TN_PS_DROP, name ? name : "") == TERN_OK;
	}
	return any;
}

/* All servers or none. A table may come to one that was asked already, with a slot of another one that still had it. */
static void undo(const tn_save_lead *l, const json_t *tables)
{
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	for (unsigned round = 0; round < UNDO_ROUNDS && drop_round(l, tables); round++)
		;
	tn_detail_set("%s", detail);
}

static tern_status restore(tn_save_lead *l, const json_t *tables, uint64_t *rows)
{
	tern_status status;

	TN_TRY(tn_save_step(l, TN_SAVE_KEEP, KEEP_NS)); /* a follower says no */
	TN_TRY(none_is_there(l, tables));
	status = tn_save_step(l, TN_SAVE_RESTORE, UINT64_MAX);
	if (status == TERN_E_EXISTS)
		status = moved(); /* it came with a slot of another one that was done already */
	if (status == TERN_OK)
		status = count_rows(l, rows);
	if (status != TERN_OK)
		undo(l, tables);
	return status;
}

tern_status tern_ps_restore(tern_ps *ps, const char *dir, uint64_t sequence, uint64_t timeout_ns,
			    tern_ps_save_result *out)
{
	tern_ps_save_result result = {0};
	uint64_t start = tn_ctx_now(ps->ctx);
	tn_ckpt_reader reader;
	tern_status status;
	tn_save_lead *l;

	if (!dir || dir[0] != '/' || strlen(dir) >= TN_PS_PATH_MAX)
		return tn_fail(TERN_E_INVALID, "dir must be an absolute path: servers open it too");
	TN_TRY(tn_ckpt_open(&reader, dir, sequence));
	l = tn_save_lead_new(ps, timeout_ns);
	status = l ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a restore");
	if (l) {
		strcpy(l->msg.path, dir);
		l->msg.number = result.sequence = reader.sequence;
		result.base = reader.deltas ? reader.base : UINT64_MAX;
		status = restore(l, json_object_get(reader.manifest, "tables"), &result.rows);
		tn_save_lead_free(l);
	}
	tn_ckpt_close(&reader);
	result.total_ns = tn_ctx_now(ps->ctx) - start;
	if (out)
		*out = result;
	return status;
}
