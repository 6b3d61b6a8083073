/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leading a save or a restore. See <tern/ps_save.h>, ps/saver.h. Each step is one call to every server at once:
 *
 *   HOLD at all -> CUT at all -> WRITE at all -> the manifest, here        or END at all
 *
 * Threads: any; one object per save. Tests: tests/unit/ps/saver_test.c.
 */
#include <tern/ps_save.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"
#include "ps/client.h"
#include "ps/save.h"
#include "ps/saver.h"

#define HOLD_NS      (10 * TN_NS_PER_SEC)
#define HOUR_NS      (3600 * TN_NS_PER_SEC)
#define ANSWER_BYTES (4u << 20)

/* One call to every server. */
typedef struct leader {
	tern_ps *ps;
	ps_host **hosts; /* servers that are alive at the begin, numbered from 0 */
	uint32_t servers;
	uint64_t deadline_ns;
	tn_ps_save_msg msg;
	uint8_t args[TN_PS_SAVE_MAX];
	tern_op *ops;   /* per server */
	uint32_t sent;  /* servers that the last step was sent to */
	char **answers; /* per server, ANSWER_BYTES */
} leader;

static void leader_free(leader *l)
{
	for (uint32_t i = 0; l->answers && i < l->servers; i++)
		free(l->answers[i]);
	free(l->answers);
	free(l->hosts);
	free(l->ops);
	free(l);
}

/* False: no memory. */
static bool find_servers(leader *l)
{
	ps_route *route = tn_ps_route_hold(l->ps);

	l->hosts = calloc(TN_PS_SERVERS_MAX, sizeof(l->hosts[0]));
	for (uint32_t i = 0; l->hosts && i < route->servers; i++)
		if (route->hosts[i])
			l->hosts[l->servers++] = route->hosts[i];
	tn_ps_route_release(l->ps, route);
	l->ops = calloc(l->servers + 1, sizeof(*l->ops));
	l->answers = calloc(l->servers + 1, sizeof(*l->answers));
	if (!l->hosts || !l->ops || !l->answers)
		return false;
	for (uint32_t i = 0; i < l->servers; i++)
		if (!(l->answers[i] = malloc(ANSWER_BYTES)))
			return false;
	return true;
}

static leader *leader_new(tern_ps *ps, uint64_t timeout_ns)
{
	leader *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->ps = ps;
	l->deadline_ns = tn_deadline(tn_ctx_now(ps->ctx), timeout_ns ? timeout_ns : HOUR_NS);
	if (!find_servers(l) || tn_os_random(&l->msg.token, sizeof(l->msg.token)) != TERN_OK) {
		leader_free(l);
		return NULL;
	}
	return l;
}

/* limit_ns: of this step. */
static tern_status send_to(leader *l, uint32_t i, uint64_t limit_ns)
{
	uint64_t left = tn_time_left(tn_ctx_now(l->ps->ctx), l->deadline_ns);
	tern_rpc_call_params call = {
		.method = TN_PS_SAVE,
		.args = l->args,
		.answer = l->answers[i],
		.answer_capacity = ANSWER_BYTES,
	};

	l->msg.server = i;
	call.args_bytes = tn_ps_save_encode(l->args, &l->msg);
	tern_op_init(&l->ops[i], NULL, NULL);
	l->ops[i].timeout_ns = TN_MAX(TN_MIN(left, limit_ns), 1);
	return tern_rpc_call(l->hosts[i]->rpc, &call, &l->ops[i]);
}

static tern_status failed_at(const leader *l, uint32_t i, tern_status status)
{
	char text[TN_DETAIL_MAX / 2];

	snprintf(text, sizeof(text), "%s", tn_detail_get()[0] ? tn_detail_get() : tern_status_text(status));
	return tn_fail(status, "server %" PRIu32 " (%s): %s", i, l->hosts[i]->address, text);
}

/* The step at every server; the first failure is the step's. All have answered when it returns. */
static tern_status step(leader *l, tn_ps_save_op op, uint64_t limit_ns)
{
	tern_status status = TERN_OK, one;
	char detail[TN_DETAIL_MAX] = "";

	l->msg.op = op;
	for (l->sent = 0; l->sent < l->servers; l->sent++)
		if ((status = send_to(l, l->sent, limit_ns)) != TERN_OK)
			break;
	if (status != TERN_OK)
		status = failed_at(l, l->sent, status == TERN_AGAIN ? TERN_E_OVERLOAD : status);
	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	for (uint32_t i = 0; i < l->sent; i++) {
		one = tern_op_wait(l->ps->ctx, &l->ops[i], 0);
		if (one == TERN_OK || status != TERN_OK)
			continue;
		status = failed_at(l, i, one);
		snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	}
	if (status != TERN_OK)
		tn_detail_set("%s", detail);
	return status;
}

/* Tell everybody that it is over; what comes of it does not matter: leases end too. */
static void call_off(leader *l)
{
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	l->deadline_ns = tn_deadline(tn_ctx_now(l->ps->ctx), 2 * TN_NS_PER_SEC);
	(void)step(l, TN_SAVE_END, 2 * TN_NS_PER_SEC);
	tn_detail_set("%s", detail);
}

/* ---- the manifest ---- */

/* Rows of tables of that name are added up over the servers. */
static tern_status add_tables(json_t *all, const json_t *more)
{
	json_t *row, *have;
	size_t i, k;

	json_array_foreach(more, i, row)
	{
		const char *name = json_string_value(json_object_get(row, "name"));
		bool found = false;

		json_array_foreach(all, k, have)
		{
			const char *other = json_string_value(json_object_get(have, "name"));

			if (!name || !other || strcmp(name, other) != 0)
				continue;
			found = true;
			json_object_set_new(have, "rows",
					    json_integer(json_integer_value(json_object_get(have, "rows")) +
							 json_integer_value(json_object_get(row, "rows"))));
		}
		if (!found && json_array_append(all, row) != 0)
			return tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	}
	return TERN_OK;
}

static void count_files(const json_t *files, tern_ps_save_result *result)
{
	const json_t *row;
	size_t i;

	json_array_foreach(files, i, row)
	{
		result->files++;
		result->bytes += (uint64_t)json_integer_value(json_object_get(row, "bytes"));
		if (json_object_get(row, "table"))
			result->rows += (uint64_t)json_integer_value(json_object_get(row, "rows"));
	}
}

static tern_status gather(leader *l, tn_ckpt *ckpt, json_t *tables, tern_ps_save_result *result)
{
	for (uint32_t i = 0; i < l->servers; i++) {
		json_t *root = json_loadb(l->answers[i], l->ops[i].length, JSON_REJECT_DUPLICATES, NULL);
		json_t *files = json_object_get(root, "files");
		tern_status status = TERN_OK;

		if (!json_is_array(files) || !json_is_array(json_object_get(root, "tables")))
			status = failed_at(l, i,
					   tn_fail(TERN_E_PROTOCOL, "its answer to a save can't be read"));
		if (status == TERN_OK) {
			count_files(files, result);
			status = json_array_extend(ckpt->files, files) == 0
					 ? add_tables(tables, json_object_get(root, "tables"))
					 : tn_fail(TERN_E_NOMEM, "no memory for a manifest");
		}
		json_decref(root);
		if (status != TERN_OK)
			return status;
	}
	return TERN_OK;
}

static tern_status save_cut(leader *l, tn_ckpt *ckpt, const char *dir, uint64_t rate,
			    tern_ps_save_result *result)
{
	uint64_t start = tn_ctx_now(l->ps->ctx);
	json_t *tables;
	tern_status status;

	l->msg.number = HOLD_NS;
	l->msg.rate = rate;
	TN_TRY(step(l, TN_SAVE_HOLD, HOLD_NS));
	TN_TRY(step(l, TN_SAVE_CUT, HOLD_NS));
	result->held_ns = tn_ctx_now(l->ps->ctx) - start;
	if (snprintf(l->msg.path, sizeof(l->msg.path), "%s/%s", dir, ckpt->temp) >= (int)sizeof(l->msg.path))
		return tn_fail(TERN_E_INVALID, "the path of the checkpoints is too long");
	TN_TRY(step(l, TN_SAVE_WRITE, UINT64_MAX));
	tables = json_array();
	status = tables ? gather(l, ckpt, tables, result) : tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	if (status == TERN_OK && json_object_set(ckpt->extra, "tables", tables) != 0)
		status = tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	json_decref(tables);
	return status;
}

static tern_status next_sequence(const char *dir, uint64_t *sequence)
{
	uint64_t *sequences;
	unsigned count;
	tern_status status;

	if (*sequence)
		return TERN_OK;
	status = tn_ckpt_list(dir, &sequences, &count);
	*sequence = 1;
	if (status == TERN_E_NOT_FOUND)
		return TERN_OK;
	if (status == TERN_OK && count)
		*sequence = sequences[count - 1] + 1;
	if (status == TERN_OK)
		free(sequences);
	return status;
}

tern_status tern_ps_save(tern_ps *ps, const tern_ps_save_params *p, tern_ps_save_result *out)
{
	tern_ps_save_result result = {.sequence = p->sequence};
	uint64_t start = tn_ctx_now(ps->ctx);
	tern_status status;
	tn_ckpt ckpt;
	leader *l;

	if (!p->dir || p->dir[0] != '/')
		return tn_fail(TERN_E_INVALID, "dir must be an absolute path: servers open it too");
	TN_TRY(next_sequence(p->dir, &result.sequence));
	TN_TRY(tn_ckpt_begin(&ckpt, p->dir, result.sequence));
	l = leader_new(ps, p->timeout_ns);
	status = l ? save_cut(l, &ckpt, p->dir, p->bytes_per_second, &result)
		   : tn_fail(TERN_E_NOMEM, "no memory for a save");
	if (status == TERN_OK)
		status = tn_ckpt_commit(&ckpt);
	else if (l)
		call_off(l);
	tn_ckpt_abort(&ckpt);
	if (l)
		leader_free(l);
	if (status == TERN_OK && p->keep)
		status = tn_ckpt_prune(p->dir, p->keep);
	result.total_ns = tn_ctx_now(ps->ctx) - start;
	if (out)
		*out = result;
	return status;
}

/* ---- restoring ---- */

/* All servers or none: drop the tables at those that made them. */
static void undo_restore(leader *l, const tn_ckpt_reader *reader)
{
	const json_t *tables = json_object_get(reader->manifest, "tables");
	char detail[TN_DETAIL_MAX];
	uint8_t args[TERN_TABLE_NAME_MAX + 8];
	json_t *row;
	size_t k;

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	for (uint32_t i = 0; i < l->sent; i++) {
		tern_rpc_call_params call = {.method = TN_PS_DROP, .args = args};

		if (l->ops[i].status != TERN_OK)
			continue;
		json_array_foreach(tables, k, row)
		{
			const char *name = json_string_value(json_object_get(row, "name"));

			call.args_bytes = tn_ps_name_encode(args, sizeof(args), name ? name : "");
			(void)tern_rpc_call_wait(l->hosts[i]->rpc, &call, l->ps->timeout_ns, NULL);
		}
	}
	tn_detail_set("%s", detail);
}

tern_status tern_ps_restore(tern_ps *ps, const char *dir, uint64_t sequence, uint64_t timeout_ns,
			    tern_ps_save_result *out)
{
	tern_ps_save_result result = {0};
	uint64_t start = tn_ctx_now(ps->ctx);
	tn_ckpt_reader reader;
	tern_status status;
	leader *l;

	if (!dir || dir[0] != '/' || strlen(dir) >= TN_PS_PATH_MAX)
		return tn_fail(TERN_E_INVALID, "dir must be an absolute path: servers open it too");
	TN_TRY(tn_ckpt_open(&reader, dir, sequence));
	l = leader_new(ps, timeout_ns);
	status = l ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a restore");
	if (l) {
		strcpy(l->msg.path, dir);
		l->msg.number = result.sequence = reader.sequence;
		status = step(l, TN_SAVE_RESTORE, UINT64_MAX);
		if (status != TERN_OK)
			undo_restore(l, &reader);
		for (uint32_t i = 0; i < l->servers && status == TERN_OK; i++) {
			json_t *root = json_loadb(l->answers[i], l->ops[i].length, 0, NULL);

			result.rows += (uint64_t)json_integer_value(json_object_get(root, "rows"));
			json_decref(root);
		}
		leader_free(l);
	}
	tn_ckpt_close(&reader);
	result.total_ns = tn_ctx_now(ps->ctx) - start;
	if (out)
		*out = result;
	return status;
}
