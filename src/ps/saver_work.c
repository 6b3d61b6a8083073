/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a save or restore: cuts into files, files into tables. See saver.h.
 * Must not: answer. Threads: the saver's own. Tests: tests/unit/ps/saver_test.c.
 */
#include "ps/saver_work.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "ps/save.h"
#include "ps/server.h"

#define NAP_NS (20 * TN_NS_PER_MS) /* before it looks whether it is to stop */

static tern_status stopped(void)
{
	return tn_fail(TERN_E_CANCELED, "the save or restore was given up");
}

static void stand_back(tn_ps_saver *saver, uint64_t now)
{
	bool back = tn_pace_back(&saver->pace, saver->stands_back, now);

	if (!saver->modest || back == saver->stands_back)
		return;
	saver->modest = tn_os_thread_idle(back); /* without the right to come back: not again */
	saver->stands_back = back && saver->modest;
}

/* So many bytes may be written or read now. */
static tern_status pace(uint64_t bytes, void *arg)
{
	tn_ps_saver *saver = arg;
	tn_pace *p = &saver->pace;
	uint64_t rest, now;

	p->bytes += bytes;
	for (;;) {
		if (atomic_load(&saver->stop))
			return stopped();
		if (p->rate == 0)
			return TERN_OK;
		now = tn_now();
		stand_back(saver, now);
		rest = tn_pace_rest(p, now, tn_cpu_thread_ns());
		if (rest == 0)
			return TERN_OK;
		tn_sleep_ns(TN_MIN(rest, NAP_NS));
		tn_pace_rested(p, tn_cpu_thread_ns());
	}
}

/* ---- writing ---- */

static tern_status add_row(json_t *tables, const saver_table *t, uint64_t rows, uint64_t gone, bool delta)
{
	json_t *row = tn_save_row(tn_table_schema(t->share->engine), rows);
	int failed = !row;

	if (row && delta)
		failed = json_object_set_new(row, "gone", json_integer((json_int_t)gone)) |
			 json_object_set_new(row, "full", json_boolean(!t->changes));
	if (failed)
		json_decref(row);
	if (failed || json_array_append_new(tables, row) != 0)
		return tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	return TERN_OK;
}

static tern_status write_table(tn_ps_saver *saver, saver_table *t, tn_ckpt *ckpt, json_t *tables)
{
	const tn_save save = {.ckpt = ckpt,
			      .server = saver->msg.server,
			      .pace = pace,
			      .pace_arg = saver,
			      .mine = &saver->mine};
	tn_table *engine = t->share->engine;
	uint64_t rows, gone = 0;

	TN_TRY(tn_save_table(&save, engine, t->cut, &rows));
	if (t->changes)
		TN_TRY(tn_save_gone(&save, engine, t->cut, &gone));
	tn_cut_end(t->cut); /* its memory is free before the next table is written */
	t->cut = NULL;
	tn_ps_facts_only(&t->facts, &saver->mine);
	TN_TRY(tn_ps_facts_write(&t->facts, ckpt, tn_table_schema(engine)->name, saver->msg.server));
	return add_row(tables, t, rows, gone, saver->msg.number != 0);
}

tern_status tn_ps_saver_write(tn_ps_saver *saver, char **answer)
{
	tn_ckpt ckpt = {.root = -1, .files = json_array()};
	json_t *tables = json_array(), *root = NULL;
	tern_status status = TERN_OK;

	saver->modest =
		saver->msg.rate != 0; /* others go first; a thread of its own, which ends with the save */
	saver->stands_back = false;
	saver->pace = tn_pace_begin(saver->msg.rate, tn_now(), tn_cpu_thread_ns());
	if (saver->modest) {
		tn_os_thread_modest();
		stand_back(saver, saver->pace.start_ns);
	}
	ckpt.dir = open(saver->msg.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ckpt.dir < 0)
		status =
			tn_fail_errno(TERN_E_IO, "open",
				      "%s: the directory of checkpoints must be the same for all servers and "
				      "whoever saves",
				      saver->msg.path);
	for (uint32_t i = 0; i < saver->table_count && status == TERN_OK; i++)
		status = write_table(saver, &saver->tables[i], &ckpt, tables);
	if (status == TERN_OK) {
		root = json_pack("{s:O, s:O}", "files", ckpt.files, "tables", tables);
		*answer = root ? json_dumps(root, JSON_COMPACT) : NULL;
		if (!*answer)
			status = tn_fail(TERN_E_NOMEM, "no memory for the answer to a save");
	}
	json_decref(root);
	json_decref(tables);
	json_decref(ckpt.files);
	tn_os_close(&ckpt.dir);
	return status;
}

/* ---- preparing ---- */

static tern_status prepare_table(tn_ps_saver *saver, const saver_table *t, json_t *tables)
{
	tn_table *engine = t->share->engine;
	json_t *row;

	tn_table_acknowledge(engine, saver->msg.number);
	TN_TRY(tn_table_settle(engine));
	row = json_pack("{s:s, s:b}", "name", t->share->schema.name, "follows",
			tn_ps_saver_follows(saver, engine, saver->msg.number));
	if (!row || json_array_append_new(tables, row) != 0)
		return tn_fail(TERN_E_NOMEM, "no memory for the answer to a save");
	return TERN_OK;
}

tern_status tn_ps_saver_prepare(tn_ps_saver *saver, char **answer)
{
	json_t *tables = json_array(), *root;
	tern_status status = tables ? tn_ps_saver_list(saver) : TERN_E_NOMEM;

	for (uint32_t i = 0; i < saver->table_count && status == TERN_OK; i++)
		status = atomic_load(&saver->stop) ? stopped()
						   : prepare_table(saver, &saver->tables[i], tables);
	root = json_pack("{s:o}", "tables", tables);
	*answer = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (status == TERN_OK && !*answer)
		status = tn_fail(TERN_E_NOMEM, "no memory for the answer to a save");
	return status;
}

/* ---- restoring ---- */

static bool is_mine(uint64_t key, void *arg)
{
	return tn_ps_slots_has(arg, tn_table_slot(key));
}

/* Slots whose rows belong here, as primary or as backup; returns the version of the map that says so. */
static uint64_t kept(tn_ps_saver *saver, tn_ps_slots *slots)
{
	const ps_view *view;
	uint64_t version;
	unsigned in;

	view = tn_ps_view_enter(saver->server, &in);
	*slots = view->mine;
	for (uint32_t i = 0; view->index != TN_CL_NONE && i < TN_PS_SLOTS; i++)
		if (tn_cl_copy_epoch(&view->map.slot[i], view->index))
			tn_ps_slots_add(slots, i);
	version = view->map.version;
	tn_ps_view_leave(saver->server, in);
	return version;
}

/* No slot is being copied to a server: a copy that began before the tables were here ends without them. */
static bool settled(tn_ps_saver *saver)
{
	bool all = true;
	const ps_view *view;
	unsigned in;

	if (!saver->server->replicas)
		return true;
	view = tn_ps_view_enter(saver->server, &in);
	for (uint32_t i = 0; i < TN_PS_SLOTS; i++) {
		const tn_cl_slot *slot = &view->map.slot[i];

		all &= slot->next == TN_CL_NONE && !(slot->flags & TN_CL_MOVE) &&
		       (slot->backup == TN_CL_NONE || (slot->flags & TN_CL_IN_SYNC));
	}
	tn_ps_view_leave(saver->server, in);
	return all;
}

static tern_status moved(void)
{
	return tn_fail(TERN_E_STATE, "slots were given to other servers during the restore: try again");
}

static tern_status fill_share(tn_ps_saver *saver, const tn_ckpt_chain *chain, ps_share *share,
			      tn_ps_slots *mine, uint64_t *put)
{
	const tn_ckpt_reader *from = tn_ckpt_chain_last(chain);
	tern_status status = tn_restore_chain(chain, share->engine, is_mine, mine, put);

	if (status == TERN_OK)
		status = tn_ps_facts_restore(from, share->schema.name, mine, share->dedup);
	if (status == TERN_OK && atomic_load(&saver->stop))
		status = stopped();
	if (status == TERN_OK && from->id)
		tn_table_track(share->engine, from->id); /* deltas go on from it */
	return status;
}

/* version: of the map since the beginning. */
static tern_status restore_table(tn_ps_saver *saver, const tn_ckpt_chain *chain, const char *name,
				 uint64_t *rows, uint64_t version)
{
	tern_table_schema schema;
	tn_ps_slots mine;
	tern_status status;
	ps_share *share;
	uint64_t put;

	TN_TRY(tn_restore_schema(tn_ckpt_chain_last(chain), name, &schema));
	TN_TRY(tn_ps_share_new(saver->server, &schema, &share));
	(void)kept(saver, &mine);
	status = fill_share(saver, chain, share, &mine, &put);
	if (status == TERN_OK)
		status = tn_ps_share_add(saver->server, share);
	if (status != TERN_OK) {
		tn_ps_share_put(share);
		return status;
	}
	/* The table is there: slots that are given away from now on take it along. */
	if (kept(saver, &mine) != version) {
		tn_ps_share_drop(saver->server, name);
		return moved();
	}
	*rows += put;
	TN_LOG(INFO, PS, "table \"%s\": restored, %" PRIu64 " rows", name, put);
	return TERN_OK;
}

/* What primaries that are done already send of these tables waits until they are here, although they were dropped once. */
static void expect_tables(tn_ps_saver *saver, const json_t *tables)
{
	for (size_t i = 0; saver->server->replicas && i < json_array_size(tables); i++) {
		const char *name = json_string_value(json_object_get(json_array_get(tables, i), "name"));

		if (name)
			tn_ps_replicas_dropped(saver->server, tn_ps_table_id(name), false);
	}
}

static tern_status restore_tables(tn_ps_saver *saver, const tn_ckpt_chain *chain, uint64_t *rows,
				  uint64_t version)
{
	const tn_ckpt_reader *from = tn_ckpt_chain_last(chain);
	const json_t *tables = json_object_get(from->manifest, "tables");
	tern_status status = TERN_OK;
	size_t done = 0;
	const char *name;

	expect_tables(saver, tables);
	TN_TRY(tn_ckpt_chain_verify(chain, pace, saver));
	for (; done < json_array_size(tables) && status == TERN_OK; done++) {
		name = json_string_value(json_object_get(json_array_get(tables, done), "name"));
		status = name ? restore_table(saver, chain, name, rows, version)
			      : tn_fail(TERN_E_CORRUPT, "%s: a table has no name", from->name);
	}
	if (status == TERN_OK)
		return TERN_OK;
	for (size_t i = 0; i + 1 < done; i++) /* all or none */
		tn_ps_share_drop(saver->server,
				 json_string_value(json_object_get(json_array_get(tables, i), "name")));
	return status;
}

tern_status tn_ps_saver_restore(tn_ps_saver *saver, char **answer)
{
	tn_ckpt_chain chain;
	uint64_t rows = 0, version;
	tn_ps_slots mine;
	tern_status status;
	json_t *root;

	saver->modest = saver->stands_back = false;
	saver->pace = tn_pace_begin(saver->msg.rate, tn_now(), tn_cpu_thread_ns());
	version = kept(saver, &mine);
	if (!settled(saver))
		return moved();
	TN_TRY(tn_ckpt_chain_open(&chain, saver->msg.path, saver->msg.number));
	status = restore_tables(saver, &chain, &rows, version);
	tn_ckpt_chain_close(&chain);
	if (status != TERN_OK)
		return status;
	root = json_pack("{s:I,s:I}", "rows", (json_int_t)rows, "map", (json_int_t)version);
	*answer = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return *answer ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for the answer to a restore");
}
