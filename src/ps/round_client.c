/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of summed groups: gradients to the servers that have their keys, closings to all of them. See round.h. Both may
 * be repeated, so a call whose outcome is not known is made again, within the time that there is.
 *
 * Threads: one at a time per group. Tests: tests/unit/ps/round_test.c.
 */
#include "ps/round.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/time.h"
#include "channel/dispatch.h"
#include "ps/client.h"
#include "ps/group.h"
#include "ps/split.h"
#include "ps/table.h"

#define PAUSE_NS (2 * TN_NS_PER_MS)

/* What goes to one server. */
typedef struct parcel {
	ps_host *host;
	uint32_t server;
	uint8_t *args;
	uint64_t bytes;
	bool done, under_way;
	tern_op op;
} parcel;

/* May another try end better? */
static bool worth_a_try(tern_status status)
{
	return status == TERN_AGAIN || status == TERN_E_INDETERMINATE || status == TERN_E_OVERLOAD ||
	       tern_status_radius(status) == TERN_RADIUS_PATH ||
	       tern_status_radius(status) == TERN_RADIUS_PEER;
}

static tern_status start(parcel *p, uint32_t method, uint64_t left)
{
	tern_rpc_call_params call = {
		.method = method, .args = p->args, .args_bytes = p->bytes, .flags = TERN_RPC_IDEMPOTENT};

	tern_op_init(&p->op, NULL, NULL);
	p->op.timeout_ns = left;
	return tern_rpc_call(p->host->rpc, &call, &p->op);
}

static tern_status finish(tern_ctx *ctx, parcel *p)
{
	tern_status status;

	do /* it is on the caller's stack or in its memory: until its completion */
		status = tern_op_wait(ctx, &p->op, 0);
	while (tern_op_test(&p->op) == TERN_AGAIN);
	return status;
}

/* One try of all that are not done. TERN_AGAIN: some may be tried again. */
static tern_status try_all(tern_ps *ps, parcel *parcels, uint32_t n, uint32_t method, uint64_t left)
{
	tern_status result = TERN_OK;

	for (uint32_t i = 0; i < n; i++) {
		tern_status status = parcels[i].done ? TERN_OK : start(&parcels[i], method, left);

		parcels[i].under_way = !parcels[i].done && status == TERN_OK;
		if (status != TERN_OK && (result == TERN_OK || result == TERN_AGAIN))
			result = worth_a_try(status) ? TERN_AGAIN : status;
	}
	for (uint32_t i = 0; i < n; i++) {
		tern_status status = parcels[i].under_way ? finish(ps->ctx, &parcels[i]) : TERN_OK;

		parcels[i].done |= parcels[i].under_way && status == TERN_OK;
		if (status == TERN_OK || (result != TERN_OK && result != TERN_AGAIN))
			continue;
		result = worth_a_try(status) ? TERN_AGAIN : status;
		tn_detail_prefix("server %u at %s", parcels[i].server, parcels[i].host->address);
	}
	return result;
}

static tern_status send_all(tern_ps *ps, parcel *parcels, uint32_t n, uint32_t method, uint64_t timeout_ns)
{
	uint64_t end = tn_deadline(tn_ctx_now(ps->ctx), timeout_ns ? timeout_ns : ps->timeout_ns);
	tern_status status;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	for (;;) {
		uint64_t left = tn_time_left(tn_ctx_now(ps->ctx), end);

		if (!left)
			return tn_fail(TERN_E_DEADLINE, "servers did not answer in time");
		status = try_all(ps, parcels, n, method, left);
		if (status != TERN_AGAIN)
			return status;
		(void)tern_ctx_wait(ps->ctx, PAUSE_NS);
	}
}

/* ---- closings ---- */

tern_status tn_ps_round_close(tern_ps *ps, const tn_ps_close *closing)
{
	uint8_t args[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX];
	uint64_t bytes = tn_ps_close_encode(args, closing);
	ps_route *route = tn_ps_route_hold(ps);
	parcel *parcels = calloc(route->servers, sizeof(*parcels));
	tern_status status;
	uint32_t n = 0;

	for (uint32_t i = 0; parcels && i < route->servers; i++)
		if (route->hosts[i])
			parcels[n++] =
				(parcel){.host = route->hosts[i], .server = i, .args = args, .bytes = bytes};
	tn_ps_route_release(ps, route);
	status = parcels ? send_all(ps, parcels, n, TN_PS_CLOSE, 0)
			 : tn_fail(TERN_E_NOMEM, "no memory to end a step");
	free(parcels);
	return status;
}

/* ---- gradients ---- */

static tern_status check(const tern_ps_group *group, const tern_table *table, const tern_table_push_params *p,
			 tern_dtype dtype, uint64_t row_bytes)
{
	if (!(group->flags & TERN_PS_GROUP_SUM))
		return tn_fail(TERN_E_STATE, "group %s is not summed: use tern_table_push", group->name);
	if (table->ps != group->ps)
		return tn_fail(TERN_E_INVALID, "table \"%s\" is another client's", table->schema.name);
	if (p->mode != TERN_PUSH_GRADIENT)
		return tn_fail(TERN_E_INVALID, "gradients are summed, values are not: mode %d", (int)p->mode);
	if (dtype != TERN_F32 && dtype != TERN_BF16 && dtype != TERN_F16)
		return tn_fail(TERN_E_UNSUPPORTED, "table \"%s\": rows of %s; they are f32, bf16 or f16",
			       table->schema.name, tern_dtype_name(dtype));
	if (p->count > TN_PS_KEYS_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "%" PRIu64 " keys in one operation: split it", p->count);
	if (p->count && (!p->keys || !p->rows))
		return tn_fail(TERN_E_INVALID, "table \"%s\": %s is NULL", table->schema.name,
			       p->keys ? "rows" : "keys");
	if (p->stride && p->stride < row_bytes)
		return tn_fail(TERN_E_SHAPE,
			       "table \"%s\": a stride of %" PRIu64 " bytes; rows have %" PRIu64,
			       table->schema.name, p->stride, row_bytes);
	if (p->step < group->closed)
		return tn_fail(TERN_E_STATE, "step %" PRIu64 " is closed", p->step);
	return TERN_OK;
}

/* Keys and rows of one server behind the head. */
static bool fill(parcel *to, const tn_ps_owners *owners, const tern_table_push_params *p, uint64_t row_bytes,
		 tn_ps_stage *head)
{
	uint64_t stride = p->stride ? p->stride : row_bytes, n = 0;
	uint8_t *keys, *rows;

	to->bytes = TN_PS_STAGE_BYTES + head->count * (8 + row_bytes);
	to->args = TN_FAULT("ps.round.args") ? NULL : malloc(to->bytes);
	if (!to->args)
		return false;
	tn_ps_stage_encode(to->args, head);
	keys = to->args + TN_PS_STAGE_BYTES;
	rows = keys + head->count * 8;
	for (uint64_t i = 0; i < p->count; i++) {
		if (owners->owner[tn_table_slot(p->keys[i])] != to->server)
			continue;
		memcpy(keys + n * 8, &p->keys[i], 8);
		memcpy(rows + n++ * row_bytes, (const uint8_t *)p->rows + i * stride, row_bytes);
	}
	TN_ASSERT(n == head->count);
	return true;
}

static tern_status make(const ps_route *route, const tern_table_push_params *p, uint64_t row_bytes,
			tn_ps_stage head, parcel *parcels, uint32_t *n)
{
	uint64_t counts[TN_PS_OWNERS];

	*n = 0;
	tn_ps_split_count(&route->owners, p->keys, p->count, counts);
	if (counts[TN_PS_NOBODY])
		return tn_fail(TERN_E_UNREACHABLE,
			       "%" PRIu64 " keys are of slots that nobody serves at present",
			       counts[TN_PS_NOBODY]);
	for (uint32_t i = 0; i < route->servers; i++) {
		if (!counts[i])
			continue;
		parcels[*n] = (parcel){.host = route->hosts[i], .server = i};
		head.count = counts[i];
		if (!fill(&parcels[(*n)++], &route->owners, p, row_bytes, &head))
			return tn_fail(TERN_E_NOMEM, "no memory to send %" PRIu64 " rows", counts[i]);
	}
	return TERN_OK;
}

tern_status tern_ps_group_push(tern_ps_group *group, tern_table *table, const tern_table_push_params *p,
			       uint64_t timeout_ns)
{
	tern_dtype dtype = p->dtype ? p->dtype : TERN_F32;
	uint64_t row_bytes = table->schema.dim * tern_dtype_bytes(dtype);
	tn_ps_stage head = {.dtype = (uint8_t)dtype,
			    .lr_scale = p->lr_scale,
			    .life = group->life,
			    .member = group->id,
			    .step = p->step,
			    .seq = group->seq,
			    .table = table->id,
			    .schema = table->hash};
	parcel *parcels;
	ps_route *route;
	tern_status status;
	uint32_t n = 0;

	TN_TRY(check(group, table, p, dtype, row_bytes));
	group->seq++;
	route = tn_ps_route_hold(group->ps);
	parcels = calloc(route->servers + 1, sizeof(*parcels));
	status = parcels ? make(route, p, row_bytes, head, parcels, &n)
			 : tn_fail(TERN_E_NOMEM, "no memory to send %" PRIu64 " rows", p->count);
	tn_ps_route_release(group->ps, route);
	if (status == TERN_OK)
		status = send_all(group->ps, parcels, n, TN_PS_STAGE, timeout_ns);
	for (uint32_t i = 0; i < n; i++)
		free(parcels[i].args);
	free(parcels);
	return status;
}
