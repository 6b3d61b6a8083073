/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leading a save. See <tern/ps_save.h>, ps/saver.h. Each step is one call to every server at once:
 *
 *   PREPARE at all (chains) -> HOLD at all -> CUT at all -> WRITE at all -> the manifest, here -> ACK at all (chains)
 *   or END at all
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
#include "base/fault.h"
#include "base/log.h"
#include "base/os.h"
#include "ps/save.h"
#include "ps/save_lead.h"

#define HOLD_NS (10 * TN_NS_PER_SEC)
#define HOUR_NS (3600 * TN_NS_PER_SEC)
#define KEEP_NS (TN_NS_PER_SEC / 2)
#define MAP_NS  TN_NS_PER_SEC

void tn_save_lead_free(tn_save_lead *l)
{
	for (uint32_t i = 0; l->answers && i < l->servers; i++)
		free(l->answers[i]);
	free(l->answers);
	if (l->route)
		tn_ps_route_release(l->ps, l->route);
	free(l->hosts);
	free(l->ops);
	free(l);
}

/* By the newest map: one that lacks a server would save and restore without its slots. False: no memory. */
static bool find_servers(tn_save_lead *l)
{
	const ps_route *route;

	(void)tn_ps_map_fetch(l->ps, NULL,
			      MAP_NS); /* what is older than the servers' is seen by its version */
	route = l->route = tn_ps_route_hold(l->ps);
	l->map = route->version;
	l->hosts = calloc(TN_PS_SERVERS_MAX, sizeof(l->hosts[0]));
	for (uint32_t i = 0; l->hosts && i < route->servers; i++)
		if (route->hosts[i])
			l->hosts[l->servers++] = route->hosts[i];
	l->ops = calloc(l->servers + 1, sizeof(*l->ops));
	l->answers = calloc(l->servers + 1, sizeof(*l->answers));
	if (!l->hosts || !l->ops || !l->answers)
		return false;
	for (uint32_t i = 0; i < l->servers; i++)
		if (!(l->answers[i] = malloc(TN_SAVE_ANSWER)))
			return false;
	return true;
}

tn_save_lead *tn_save_lead_new(tern_ps *ps, uint64_t timeout_ns)
{
	tn_save_lead *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->ps = ps;
	l->deadline_ns = tn_deadline(tn_ctx_now(ps->ctx), timeout_ns ? timeout_ns : HOUR_NS);
	if (!find_servers(l) || tn_os_random(&l->msg.token, sizeof(l->msg.token)) != TERN_OK) {
		tn_save_lead_free(l);
		return NULL;
	}
	return l;
}

/* limit_ns: of this step. */
static tern_status send_to(tn_save_lead *l, uint32_t i, uint64_t limit_ns)
{
	uint64_t left = tn_time_left(tn_ctx_now(l->ps->ctx), l->deadline_ns);
	tern_rpc_call_params call = {
		.method = TN_PS_SAVE,
		.args = l->args,
		.answer = l->answers[i],
		.answer_capacity = TN_SAVE_ANSWER,
	};

	l->msg.server = i;
	call.args_bytes = tn_ps_save_encode(l->args, &l->msg);
	tern_op_init(&l->ops[i], NULL, NULL);
	l->ops[i].timeout_ns = TN_MAX(TN_MIN(left, limit_ns), 1);
	return tern_rpc_call(l->hosts[i]->rpc, &call, &l->ops[i]);
}

tern_status tn_save_failed_at(const tn_save_lead *l, uint32_t i, tern_status status)
{
	char text[TN_DETAIL_MAX / 2];

	snprintf(text, sizeof(text), "%s", tn_detail_get()[0] ? tn_detail_get() : tern_status_text(status));
	return tn_fail(status, "server %" PRIu32 " (%s): %s", i, l->hosts[i]->address, text);
}

/* Servers give up what they do for a leader that is silent. */
static void keep(const tn_save_lead *l)
{
	tn_ps_save_msg *msg = malloc(sizeof(*msg));
	uint8_t *args = malloc(TN_PS_SAVE_MAX);
	tern_rpc_call_params call = {.method = TN_PS_SAVE, .args = args, .flags = TERN_RPC_IDEMPOTENT};

	for (uint32_t i = 0; msg && args && i < l->sent; i++) {
		if (tern_op_test(&l->ops[i]) != TERN_AGAIN)
			continue;
		*msg = l->msg;
		msg->op = TN_SAVE_KEEP;
		msg->path[0] = '\0';
		call.args_bytes = tn_ps_save_encode(args, msg);
		(void)tern_rpc_call_wait(l->hosts[i]->rpc, &call, KEEP_NS, NULL);
	}
	free(msg);
	free(args);
}

/* The i-th call, as long as it takes. */
static void wait_for(tn_save_lead *l, uint32_t i)
{
	tern_ctx *ctx = l->ps->ctx;
	uint64_t pause = tn_opt_u64(tn_ctx_options(ctx), tn_ps_options, "save_lease") / 4;
	uint64_t next = tn_ctx_now(ctx) + pause;

	while (tern_op_test(&l->ops[i]) == TERN_AGAIN) {
		tern_ctx_wait(ctx, TN_MIN(pause, KEEP_NS));
		if (tn_ctx_now(ctx) < next)
			continue;
		keep(l);
		next = tn_ctx_now(ctx) + pause;
	}
}

tern_status tn_save_step(tn_save_lead *l, tn_ps_save_op op, uint64_t limit_ns)
{
	tern_status status = TERN_OK, one;
	char detail[TN_DETAIL_MAX] = "";

	l->msg.op = op;
	for (l->sent = 0; l->sent < l->servers; l->sent++)
		if ((status = send_to(l, l->sent, limit_ns)) != TERN_OK)
			break;
	if (status != TERN_OK)
		status = tn_save_failed_at(l, l->sent, status == TERN_AGAIN ? TERN_E_OVERLOAD : status);
	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	for (uint32_t i = 0; i < l->sent; i++) {
		wait_for(l, i);
		one = tern_op_wait(l->ps->ctx, &l->ops[i], 0);
		if (one == TERN_OK || status != TERN_OK)
			continue;
		status = tn_save_failed_at(l, i, one);
		snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	}
	if (status != TERN_OK)
		tn_detail_set("%s", detail);
	return status;
}

/* Tell everybody that it is over; what comes of it does not matter: leases end too. */
static void call_off(tn_save_lead *l)
{
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	l->deadline_ns = tn_deadline(tn_ctx_now(l->ps->ctx), 2 * TN_NS_PER_SEC);
	(void)tn_save_step(l, TN_SAVE_END, 2 * TN_NS_PER_SEC);
	tn_detail_set("%s", detail);
}

/* Do all servers that hold their pushes know the map by which they were found? Each slot is written once then. */
static tern_status same_map(const tn_save_lead *l)
{
	uint64_t version;

	for (uint32_t i = 0; i < l->servers; i++) {
		if (l->ops[i].length != sizeof(version))
			return tn_fail(TERN_E_PROTOCOL,
				       "server %" PRIu32 ": its answer to a save can't be read", i);
		memcpy(&version, l->answers[i], sizeof(version));
		if (version != l->map)
			return tn_fail(TERN_E_STATE, "slots are being given to other servers: try again");
	}
	return TERN_OK;
}

/* ---- the manifest ---- */

static void add_number(json_t *have, const json_t *row, const char *member)
{
	json_int_t sum = json_integer_value(json_object_get(have, member)) +
			 json_integer_value(json_object_get(row, member));

	if (json_object_get(row, member))
		json_object_set_new(have, member, json_integer(sum));
}

/* Rows of tables of that name are added up over the servers. */
static tern_status add_table(json_t *all, json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "name"));
	json_t *have;
	size_t k;

	json_array_foreach(all, k, have)
	{
		const char *other = json_string_value(json_object_get(have, "name"));

		if (!name || !other || strcmp(name, other) != 0)
			continue;
		if (json_is_true(json_object_get(have, "full")) != json_is_true(json_object_get(row, "full")))
			return tn_fail(TERN_E_STATE, "table \"%s\" was made anew during the save: try again",
				       name);
		add_number(have, row, "rows");
		add_number(have, row, "gone");
		return TERN_OK;
	}
	return json_array_append(all, row) == 0 ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a manifest");
}

static tern_status add_tables(json_t *all, const json_t *more)
{
	json_t *row;
	size_t i;

	json_array_foreach(more, i, row) TN_TRY(add_table(all, row));
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
		if (json_object_get(row, "gone_of"))
			result->gone += (uint64_t)json_integer_value(json_object_get(row, "rows"));
	}
}

static tern_status gather(tn_save_lead *l, tn_ckpt *ckpt, json_t *tables, tern_ps_save_result *result)
{
	for (uint32_t i = 0; i < l->servers; i++) {
		json_t *root = json_loadb(l->answers[i], l->ops[i].length, JSON_REJECT_DUPLICATES, NULL);
		json_t *files = json_object_get(root, "files");
		tern_status status = TERN_OK;

		if (!json_is_array(files) || !json_is_array(json_object_get(root, "tables")))
			status = tn_save_failed_at(
				l, i, tn_fail(TERN_E_PROTOCOL, "its answer to a save can't be read"));
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

/* HOLD, CUT: then pushes go on. */
static tern_status cut_all(tn_save_lead *l, const tn_save_plan *plan, tern_ps_save_result *result)
{
	uint64_t start = tn_ctx_now(l->ps->ctx);

	l->msg.number = HOLD_NS;
	TN_TRY(tn_save_step(l, TN_SAVE_HOLD, HOLD_NS));
	TN_TRY(same_map(l));
	l->msg.number = plan->delta ? plan->base.id : 0;
	l->msg.rate = plan->track;
	TN_TRY(tn_save_step(l, TN_SAVE_CUT, HOLD_NS));
	result->held_ns = tn_ctx_now(l->ps->ctx) - start;
	return TERN_OK;
}

static tern_status save_cut(tn_save_lead *l, const tn_save_plan *plan, tn_ckpt *ckpt,
			    const tern_ps_save_params *p, tern_ps_save_result *result)
{
	json_t *tables;
	tern_status status;

	TN_TRY(cut_all(l, plan, result));
	l->msg.rate = p->bytes_per_second;
	if (snprintf(l->msg.path, sizeof(l->msg.path), "%s/%s", p->dir, ckpt->temp) >=
	    (int)sizeof(l->msg.path))
		return tn_fail(TERN_E_INVALID, "the path of the checkpoints is too long");
	TN_TRY(tn_save_step(l, TN_SAVE_WRITE, UINT64_MAX));
	tables = json_array();
	status = tables ? gather(l, ckpt, tables, result) : tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	if (status == TERN_OK && json_object_set(ckpt->extra, "tables", tables) != 0)
		status = tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	json_decref(tables);
	if (status == TERN_OK && p->step &&
	    json_object_set_new(ckpt->extra, "step", json_integer((json_int_t)p->step)) != 0)
		status = tn_fail(TERN_E_NOMEM, "no memory for a manifest");
	if (status == TERN_OK)
		status = tn_ckpt_name_base(ckpt, l->msg.token, plan->delta ? &plan->base : NULL);
	return status;
}

/* It is on disk: servers may forget what it has. Whom this does not reach learns of it with the next delta. */
static void acknowledge(tn_save_lead *l)
{
	l->msg.number = l->msg.token;
	l->msg.path[0] = '\0';
	if (TN_FAULT("ps.save.ack"))
		return; /* the leader died */
	if (tn_save_step(l, TN_SAVE_ACK, HOLD_NS) != TERN_OK)
		TN_LOG(INFO, PS, "a save was not acknowledged everywhere: %s", tn_detail_get());
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

static tern_status check_params(const tern_ps_save_params *p)
{
	if (!p->dir || p->dir[0] != '/')
		return tn_fail(TERN_E_INVALID, "dir must be an absolute path: servers open it too");
	if ((int)p->kind < 0 || p->kind > TERN_PS_SAVE_AUTO)
		return tn_fail(TERN_E_INVALID, "no kind of save has the number %d", (int)p->kind);
	return TERN_OK;
}

/* A leader was made: all that can fail. */
static tern_status save(tn_save_lead *l, const tern_ps_save_params *p, tern_ps_save_result *result)
{
	tn_save_plan plan;
	tern_status status;
	tn_ckpt ckpt;

	TN_TRY(next_sequence(p->dir, &result->sequence));
	status = tn_save_decide(l, p, &plan);
	if (status == TERN_OK)
		status = tn_ckpt_begin(&ckpt, p->dir, result->sequence);
	if (status == TERN_OK) {
		status = save_cut(l, &plan, &ckpt, p, result);
		if (status == TERN_OK)
			status = tn_ckpt_commit(&ckpt);
		else
			call_off(l);
		tn_ckpt_abort(&ckpt);
	}
	if (status == TERN_OK && plan.track)
		acknowledge(l);
	if (plan.delta)
		result->base = plan.base.sequence;
	tn_save_plan_end(&plan);
	return status;
}

tern_status tern_ps_save(tern_ps *ps, const tern_ps_save_params *p, tern_ps_save_result *out)
{
	tern_ps_save_result result = {.sequence = p->sequence, .base = UINT64_MAX};
	uint64_t start = tn_ctx_now(ps->ctx);
	tern_status status;
	tn_save_lead *l;

	TN_TRY(check_params(p));
	l = tn_save_lead_new(ps, p->timeout_ns);
	status = l ? save(l, p, &result) : tn_fail(TERN_E_NOMEM, "no memory for a save");
	if (l)
		tn_save_lead_free(l);
	if (status == TERN_OK && p->keep)
		status = tn_ckpt_prune(p->dir, p->keep);
	result.total_ns = tn_ctx_now(ps->ctx) - start;
	if (out)
		*out = result;
	return status;
}
