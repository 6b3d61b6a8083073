/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a save is a base or a delta. A delta goes on from the last checkpoint of the directory, if every server
 * that has a table of it knows what changed in it since. See save_lead.h, <tern/ps_save.h>.
 * Threads: one per object. Tests: tests/unit/ps/delta_test.c.
 */
#include <inttypes.h>
#include <string.h>

#include <jansson.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "ps/save_lead.h"

#define DELTAS_MAX 64u /* when the caller says nothing */

/* ---- what servers know ---- */

enum { KNOWS = 1, DOES_NOT = 2 };

/* names: table -> who says what, as bits. */
static tern_status note(json_t *names, const json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "name"));
	json_int_t bit = json_is_true(json_object_get(row, "follows")) ? KNOWS : DOES_NOT;

	if (!name)
		return tn_fail(TERN_E_PROTOCOL, "its answer to a save can't be read");
	bit |= json_integer_value(json_object_get(names, name));
	return json_object_set_new(names, name, json_integer(bit)) == 0
		       ? TERN_OK
		       : tn_fail(TERN_E_NOMEM, "no memory for a save");
}

static tern_status note_all(tn_save_lead *l, json_t *names)
{
	for (uint32_t i = 0; i < l->servers; i++) {
		json_t *root = json_loadb(l->answers[i], l->ops[i].length, JSON_REJECT_DUPLICATES, NULL);
		const json_t *tables = json_object_get(root, "tables");
		tern_status status = json_is_array(tables)
					     ? TERN_OK
					     : tn_fail(TERN_E_PROTOCOL, "its answer to a save can't be read");

		for (size_t k = 0; k < json_array_size(tables) && status == TERN_OK; k++)
			status = note(names, json_array_get(tables, k));
		json_decref(root);
		if (status != TERN_OK)
			return tn_save_failed_at(l, i, status);
	}
	return TERN_OK;
}

/*
 * A table is a delta where all servers know its changes, and comes in full where none does: it is new, or was restored.
 * If no table of the base can be a delta, there is nothing to gain, and something is amiss.
 */
static tern_status judge(const json_t *names, const tn_ckpt_reader *base)
{
	const json_t *tables = json_object_get(base->manifest, "tables"), *said;
	const char *name;
	bool any = json_array_size(tables) == 0;
	json_t *row;
	size_t i;

	json_object_foreach(
		(json_t *)(uintptr_t)names, name,
		row) if (json_integer_value(row) ==
			 (KNOWS |
			  DOES_NOT)) return tn_fail(TERN_E_STATE,
						    "table \"%s\": some servers don't know what changed "
						    "since %s: a server was restarted or added; save "
						    "a base",
						    name, base->name);
	json_array_foreach(tables, i, row)
	{
		name = json_string_value(json_object_get(row, "name"));
		said = name ? json_object_get(names, name) : NULL;
		any = any || json_integer_value(said) == KNOWS;
	}
	if (any)
		return TERN_OK;
	return tn_fail(TERN_E_STATE,
		       "no server knows what changed since %s: they were restarted, or go on from another "
		       "checkpoint; save a base",
		       base->name);
}

static tern_status prepare(tn_save_lead *l, const tn_ckpt_reader *base)
{
	json_t *names;
	tern_status status;

	l->msg.number = base ? base->id : 0;
	TN_TRY(tn_save_step(l, TN_SAVE_PREPARE, UINT64_MAX));
	if (!base)
		return TERN_OK;
	names = json_object();
	status = names ? note_all(l, names) : tn_fail(TERN_E_NOMEM, "no memory for a save");
	if (status == TERN_OK)
		status = judge(names, base);
	json_decref(names);
	return status;
}

/* ---- the base on disk ---- */

/* Why not? TERN_E_STATE. The chain is looked at as far as manifests go. */
static tern_status usable(const char *dir, const tn_ckpt_reader *base, uint32_t most)
{
	tn_ckpt_chain chain;

	if (base->id == 0)
		return tn_fail(TERN_E_STATE, "%s stands alone: save a base first", base->name);
	if (base->deltas >= most)
		return tn_fail(TERN_E_STATE,
			       "%s is delta number %" PRIu32 " of at most %" PRIu32 ": save a base",
			       base->name, base->deltas, most);
	if (tn_ckpt_chain_open(&chain, dir, base->sequence) != TERN_OK) {
		tn_detail_prefix("no delta can go on from it");
		return TERN_E_STATE;
	}
	tn_ckpt_chain_close(&chain);
	return TERN_OK;
}

static tern_status try_delta(tn_save_lead *l, const tern_ps_save_params *p, tn_save_plan *plan)
{
	uint32_t most = p->deltas_max ? TN_MIN(p->deltas_max, TN_CKPT_DELTAS_MAX) : DELTAS_MAX;
	tern_status status = tn_ckpt_open(&plan->base, p->dir, UINT64_MAX);

	if (p->kind == TERN_PS_SAVE_DELTA)
		most = TN_CKPT_DELTAS_MAX;
	if (status == TERN_E_NOT_FOUND)
		return tn_fail(TERN_E_STATE, "%s holds no checkpoint that a delta could go on from", p->dir);
	TN_TRY(status);
	if (p->sequence && p->sequence <= plan->base.sequence)
		return tn_fail(TERN_E_INVALID, "sequence %" PRIu64 " of a delta to %s", p->sequence,
			       plan->base.name);
	TN_TRY(usable(p->dir, &plan->base, most));
	TN_TRY(prepare(l, &plan->base));
	plan->delta = true;
	return TERN_OK;
}

void tn_save_plan_end(tn_save_plan *plan)
{
	tn_ckpt_close(&plan->base);
}

tern_status tn_save_decide(tn_save_lead *l, const tern_ps_save_params *p, tn_save_plan *plan)
{
	tern_status status;

	*plan = (tn_save_plan){.track = p->kind != TERN_PS_SAVE_ALONE, .base = {.dir = -1}};
	if (p->kind == TERN_PS_SAVE_ALONE)
		return TERN_OK;
	if (p->kind == TERN_PS_SAVE_BASE)
		return prepare(l, NULL);
	status = try_delta(l, p, plan);
	if (status == TERN_OK || p->kind == TERN_PS_SAVE_DELTA)
		return status;
	if (status != TERN_E_STATE && status != TERN_E_CORRUPT)
		return status;
	TN_LOG(INFO, PS, "saving a base: %s", tn_detail_get());
	return prepare(l, NULL);
}
