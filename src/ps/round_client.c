/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of summed groups: gradients to the servers that have their keys, closings to all of them. See round.h.
 *
 *   errand   something that has to be done in slots, wherever they are. Whatever may be repeated is: a call whose outcome
 *            is not known, or of which a server says that it is another's, or later, is made again by the newest map, for the
 *            slots that are left, within the time that there is
 *   parcel   what one server gets of it
 *
 * A call to a server that a newer map calls dead is taken back. Threads: one at a time per group.
 * Tests: tests/unit/ps/round_test.c, tests/unit/ps/replicas_test.c, tests/e2e/failover.c.
 */
#include "ps/round.h"

#include <inttypes.h>
#include <stdio.h>
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
#define LOOK_NS  (100 * TN_NS_PER_MS) /* a call that takes longer may wait for a server that died */
#define ANSWER   (TN_PS_ANSWER_BYTES + TN_PS_SLOT_BYTES)

typedef struct parcel {
	ps_host *host;
	uint32_t server;
	uint8_t *args;
	uint64_t bytes;
	tn_ps_slots slots;
	bool under_way, taken_back;
	uint8_t answer[ANSWER];
	tern_op op;
} parcel;

typedef struct errand {
	tern_ps *ps;
	uint32_t method;
	tn_ps_slots left;
	/* gradients */
	const tern_table_push_params *push;
	const tn_ps_stage *head;
	uint64_t row_bytes;
	/* a closing */
	uint8_t *args;
	uint64_t bytes;
} errand;

/* May another try end better? */
static bool worth_a_try(tern_status status)
{
	return status == TERN_AGAIN || status == TERN_E_INDETERMINATE || status == TERN_E_OVERLOAD ||
	       tern_status_radius(status) == TERN_RADIUS_PATH ||
	       tern_status_radius(status) == TERN_RADIUS_PEER;
}

/* ---- parcels ---- */

/* Keys and rows of one server, of those that are left, behind the head. */
static bool fill(const errand *e, const tn_ps_owners *owners, parcel *to, uint64_t count)
{
	const tern_table_push_params *p = e->push;
	uint64_t stride = p->stride ? p->stride : e->row_bytes, n = 0;
	tn_ps_stage head = *e->head;
	uint8_t *keys, *rows;

	head.count = count;
	to->bytes = TN_PS_STAGE_BYTES + count * (8 + e->row_bytes);
	to->args = TN_FAULT("ps.round.args") ? NULL : malloc(to->bytes);
	if (!to->args)
		return false;
	tn_ps_stage_encode(to->args, &head);
	keys = to->args + TN_PS_STAGE_BYTES;
	rows = keys + count * 8;
	for (uint64_t i = 0; i < p->count; i++) {
		uint32_t slot = tn_table_slot(p->keys[i]);

		if (owners->owner[slot] != to->server || !tn_ps_slots_has(&e->left, slot))
			continue;
		tn_ps_slots_add(&to->slots, slot);
		memcpy(keys + n * 8, &p->keys[i], 8);
		memcpy(rows + n++ * e->row_bytes, (const uint8_t *)p->rows + i * stride, e->row_bytes);
	}
	TN_ASSERT(n == count);
	return true;
}

static void count_keys(const errand *e, const tn_ps_owners *owners, uint64_t counts[TN_PS_OWNERS])
{
	memset(counts, 0, TN_PS_OWNERS * sizeof(*counts));
	for (uint64_t i = 0; i < e->push->count; i++) {
		uint32_t slot = tn_table_slot(e->push->keys[i]);

		counts[owners->owner[slot]] += tn_ps_slots_has(&e->left, slot);
	}
}

static void count_slots(const errand *e, const tn_ps_owners *owners, uint64_t counts[TN_PS_OWNERS])
{
	memset(counts, 0, TN_PS_OWNERS * sizeof(*counts));
	for (uint32_t slot = 0; slot < TN_PS_SLOTS; slot++)
		counts[owners->owner[slot]] += tn_ps_slots_has(&e->left, slot);
}

/* What is left, to whoever has it; what nobody serves waits. */
static tern_status make(const errand *e, const ps_route *route, parcel *parcels, uint32_t *n)
{
	uint64_t counts[TN_PS_OWNERS];

	*n = 0;
	if (e->push)
		count_keys(e, &route->owners, counts);
	else
		count_slots(e, &route->owners, counts);
	if (counts[TN_PS_NOBODY] && !route->managed)
		return tn_fail(TERN_E_UNREACHABLE, "some slots are served by nobody");
	for (uint32_t i = 0; i < route->servers; i++) {
		parcel *p = &parcels[*n];

		if (!counts[i] || !route->hosts[i])
			continue;
		*p = (parcel){.host = route->hosts[i], .server = i, .args = e->args, .bytes = e->bytes};
		++*n;
		if (e->push && !fill(e, &route->owners, p, counts[i]))
			return tn_fail(TERN_E_NOMEM, "no memory to send %" PRIu64 " rows", counts[i]);
	}
	return TERN_OK;
}

/* ---- calls ---- */

static tern_status start(const errand *e, parcel *p, uint64_t left)
{
	tern_rpc_call_params call = {.method = e->method,
				     .args = p->args,
				     .args_bytes = p->bytes,
				     .answer = p->answer,
				     .answer_capacity = sizeof(p->answer),
				     .flags = TERN_RPC_IDEMPOTENT};

	tern_op_init(&p->op, NULL, NULL);
	p->op.timeout_ns = left;
	return tern_rpc_call(p->host->rpc, &call, &p->op);
}

/* Is the server dead by a newer map? Then nobody answers. */
static void look(tern_ps *ps, parcel *p)
{
	ps_route *route;

	(void)tn_ps_map_fetch(ps, NULL, LOOK_NS);
	route = tn_ps_route_hold(ps);
	if (!tn_ps_route_has(route, p->host)) {
		p->taken_back = true;
		(void)tern_rpc_cancel(p->host->rpc, &p->op);
	}
	tn_ps_route_release(ps, route);
}

/* It is in the caller's memory: until its completion. */
static tern_status finish(tern_ps *ps, const ps_route *route, parcel *p)
{
	for (;;) {
		(void)tern_op_wait(ps->ctx, &p->op, LOOK_NS);
		if (tern_op_test(&p->op) != TERN_AGAIN)
			return tern_op_test(&p->op);
		if (route->managed)
			look(ps, p);
	}
}

/* What it says to have done is left no more. False: it can't be read. */
static bool take(errand *e, const parcel *p)
{
	uint64_t bytes = p->op.length, more = e->push ? 0 : TN_PS_SLOT_BYTES;
	tn_ps_slots closed;
	tn_ps_answer a;

	if (bytes == TN_PS_ANSWER_BYTES)
		more = 0; /* nothing was done */
	if (bytes < more || !tn_ps_answer_decode(p->answer, bytes - more, 0, false, 0, &a))
		return false;
	if (a.flags & (TN_PS_WRONG_SERVER | TN_PS_RUNNING))
		return true;
	if (e->push) {
		tn_ps_slots_without(&e->left, &p->slots);
	} else if (more) {
		tn_ps_slots_decode(p->answer + TN_PS_ANSWER_BYTES, &closed);
		tn_ps_slots_without(&e->left, &closed);
	}
	return true;
}

static tern_status outcome(errand *e, parcel *p, tern_status status)
{
	if (status == TERN_OK && take(e, p))
		return TERN_OK;
	if (status == TERN_OK)
		status = tn_fail(TERN_E_PROTOCOL, "the answer can't be read: another version?");
	if (p->taken_back || worth_a_try(status))
		return TERN_AGAIN;
	tn_detail_prefix("server %u at %s", p->server, p->host->address);
	return status;
}

/* The first thing that is final is the result. */
static tern_status try_all(errand *e, const ps_route *route, parcel *parcels, uint32_t n, uint64_t left)
{
	tern_status result = TERN_OK;
	char detail[TN_DETAIL_MAX] = "";

	for (uint32_t i = 0; i < n; i++) {
		tern_status status = start(e, &parcels[i], left);

		parcels[i].under_way = status == TERN_OK;
		if (status != TERN_OK && result == TERN_OK && !worth_a_try(status)) {
			result = status;
			snprintf(detail, sizeof(detail), "%s", tn_detail_get());
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		tern_status status;

		if (!parcels[i].under_way)
			continue;
		status = outcome(e, &parcels[i], finish(e->ps, route, &parcels[i]));
		if (status == TERN_OK || status == TERN_AGAIN || result != TERN_OK)
			continue;
		result = status;
		snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	}
	if (result != TERN_OK)
		tn_detail_set("%s", detail);
	return result;
}

/* ---- errands ---- */

static tern_status once(errand *e, uint64_t left)
{
	ps_route *route = tn_ps_route_hold(e->ps);
	parcel *parcels = calloc(route->servers + 1, sizeof(*parcels));
	tern_status status;
	uint32_t n = 0;

	status = parcels ? make(e, route, parcels, &n)
			 : tn_fail(TERN_E_NOMEM, "no memory to send what belongs to a step");
	if (status == TERN_OK)
		status = try_all(e, route, parcels, n, left);
	for (uint32_t i = 0; e->push && i < n; i++)
		free(parcels[i].args);
	free(parcels);
	tn_ps_route_release(e->ps, route);
	return status;
}

static tern_status say_late(const errand *e)
{
	uint32_t slots = 0;

	for (uint32_t s = 0; s < TN_PS_SLOTS; s++)
		slots += tn_ps_slots_has(&e->left, s);
	return tn_fail(TERN_E_DEADLINE, "servers did not answer in time: %" PRIu32 " slots are left", slots);
}

static tern_status run(errand *e, uint64_t timeout_ns)
{
	tern_ps *ps = e->ps;
	uint64_t end = tn_deadline(tn_ctx_now(ps->ctx), timeout_ns ? timeout_ns : ps->timeout_ns);

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	while (!tn_ps_slots_none(&e->left)) {
		uint64_t left = tn_time_left(tn_ctx_now(ps->ctx), end);

		if (!left)
			return say_late(e);
		TN_TRY(once(e, left));
		if (tn_ps_slots_none(&e->left))
			break;
		(void)tern_ctx_wait(ps->ctx, PAUSE_NS);
		(void)tn_ps_map_fetch(ps, NULL, TN_MIN(left, LOOK_NS));
	}
	return TERN_OK;
}

tern_status tn_ps_round_close(tern_ps *ps, const tn_ps_close *closing)
{
	uint8_t args[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX];
	errand e = {.ps = ps, .method = TN_PS_CLOSE, .args = args};

	e.bytes = tn_ps_close_encode(args, closing);
	memset(&e.left, 0xff, sizeof(e.left));
	return run(&e, 0);
}

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
	errand e = {.ps = group->ps, .method = TN_PS_STAGE, .push = p, .head = &head, .row_bytes = row_bytes};

	TN_TRY(check(group, table, p, dtype, row_bytes));
	group->seq++;
	for (uint64_t i = 0; i < p->count; i++)
		tn_ps_slots_add(&e.left, tn_table_slot(p->keys[i]));
	return run(&e, timeout_ns);
}
