/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of users: checked, given a place, split over servers, completed when all parts are done.
 *
 * Threads: any; see client.h. Tests: tests/unit/ps.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/time.h"
#include "channel/dispatch.h"
#include "channel/op.h"
#include "ps/client.h"
#include "ps/travel.h"

/* ---- ends ---- */

void tn_ps_call_fault(ps_call *call, tern_status status, const char *format, ...)
{
	tern_ps *ps = call->ps;
	va_list args;

	va_start(args, format);
	rpc_lock_take(&ps->lock);
	if (call->status == TERN_OK) {
		call->status = status;
		vsnprintf(call->detail, sizeof(call->detail), format, args);
	}
	rpc_lock_drop(&ps->lock);
	va_end(args);
}

/* Lock held: parts and the call go back to the spare ones. */
static void retire(ps_call *call)
{
	tern_ps *ps = call->ps;
	tn_list *node;

	while ((node = tn_list_pop_front(&call->parts)))
		tn_ps_part_release(ps, TN_CONTAINER_OF(node, ps_part, node));
	tn_list_remove(&call->push_node);
	tn_list_remove(&call->node);
	tn_list_push_front(&ps->spare_calls, &call->node);
	TN_ASSERT(ps->in_flight > 0);
	ps->in_flight--;
}

static void complete(ps_call *call)
{
	tern_ps *ps = call->ps;
	tern_op *user = atomic_load_explicit(&call->user, memory_order_relaxed);
	uint64_t length = atomic_load_explicit(&call->length, memory_order_relaxed);

	tn_ps_call_combine(call);
	if (TN_UNLIKELY(tn_spans_on(ps->spans)))
		tn_spans_add(ps->spans, ps->kinds[call->kind], call->start_ns, tn_ctx_now(ps->ctx),
			     call->count);
	if (call->lease)
		tn_ps_lease_put(ps, call->lease);
	atomic_store_explicit(&call->user, NULL, memory_order_relaxed);
	/* The user first: who closes the client waits until nothing is in flight, and then everything has completed. */
	if (call->here)
		tn_op_complete_here(ps->ctx, user, length);
	else
		tn_op_complete(ps->ctx, user, call->status, length,
			       call->status == TERN_OK ? NULL : call->detail);
	rpc_lock_take(&ps->lock);
	retire(call);
	rpc_lock_drop(&ps->lock);
}

static void complete_later(tn_work *work)
{
	complete(TN_CONTAINER_OF(work, ps_call, work));
}

void tn_ps_call_put(ps_call *call)
{
	if (atomic_fetch_sub_explicit(&call->pending, 1, memory_order_acq_rel) != 1)
		return;
	if (tn_in_dispatch() || !call->user->done) {
		complete(call);
		return;
	}
	call->work.run = complete_later; /* callbacks run from dispatch, not in the call that submitted */
	tn_ctx_defer(call->ps->ctx, &call->work);
}

void tn_ps_calls_free(tern_ps *ps)
{
	tn_list *node;

	while ((node = tn_list_pop_front(&ps->spare_calls))) {
		ps_call *call = TN_CONTAINER_OF(node, ps_call, node);

		free(call->bag_of);
		free(call->sum);
		free(call);
	}
}

bool tn_ps_call_hold(ps_call *call)
{
	uint32_t pending = atomic_load_explicit(&call->pending, memory_order_relaxed);

	while (pending)
		if (atomic_compare_exchange_weak_explicit(&call->pending, &pending, pending + 1,
							  memory_order_acquire, memory_order_relaxed))
			return true;
	return false;
}

/* ---- submission ---- */

/* Lock held: a call, or NULL with a status. */
static ps_call *take(tern_ps *ps, tern_status *status)
{
	tn_list *node;
	ps_call *call;

	*status = ps->closing ? TERN_E_STATE : TERN_AGAIN;
	if (ps->closing || ps->in_flight >= ps->limit)
		return NULL;
	node = tn_list_pop_front(&ps->spare_calls);
	call = node ? TN_CONTAINER_OF(node, ps_call, node)
		    : (TN_FAULT("ps.call.alloc") ? NULL : calloc(1, sizeof(*call)));
	*status = TERN_E_NOMEM;
	if (!call)
		return NULL;
	memset(&call->node, 0, sizeof(call->node));
	memset(&call->push_node, 0, sizeof(call->push_node));
	tn_list_init(&call->parts);
	tn_list_push_back(&ps->live, &call->node);
	call->start_ns = tn_ctx_now(ps->ctx);
	ps->in_flight++;
	if (!ps->watching && ps->route->managed)
		tn_ps_watch(ps);
	return call;
}

static tern_status call_new(tern_table *table, ps_kind kind, tern_op *op, ps_call **out)
{
	tern_ps *ps = table->ps;
	tern_status status;
	ps_call *call;

	TN_TRY(tn_op_begin(op));
	rpc_lock_take(&ps->lock);
	call = take(ps, &status);
	if (call && kind == PS_PUSH) {
		call->seq = ps->next_seq++;
		tn_list_push_back(&ps->pushes, &call->push_node);
	}
	rpc_lock_drop(&ps->lock);
	if (!call) {
		tn_op_abort(op);
		return status == TERN_AGAIN     ? status
		       : status == TERN_E_STATE ? tn_fail(status, "the client is being closed")
						: tn_fail(status, "no memory for an operation");
	}
	call->ps = ps;
	call->table = table;
	call->kind = kind;
	atomic_store_explicit(&call->user, op, memory_order_relaxed);
	call->deadline_ns = tn_deadline(call->start_ns, op->timeout_ns ? op->timeout_ns : ps->timeout_ns);
	call->rows = NULL;
	call->found = NULL;
	call->stride = call->row_bytes = 0;
	call->dtype = call->travel = TERN_F32;
	call->travel_bytes = 0;
	call->pool = TERN_POOL_NONE;
	call->whole = false;
	call->how = 0;
	call->lr_scale = 0;
	call->step = 0;
	call->lease = NULL;
	call->one_sided = call->here = false;
	call->status = TERN_OK;
	atomic_store_explicit(&call->pending, 1, memory_order_relaxed);
	atomic_store_explicit(&call->canceled, false, memory_order_relaxed);
	atomic_store_explicit(&call->length, 0, memory_order_relaxed);
	*out = call;
	return TERN_OK;
}

/* Nothing of it was sent: as if it had never been. */
static void call_drop(ps_call *call)
{
	tern_ps *ps = call->ps;
	tern_op *user = call->user;

	if (call->lease)
		tn_ps_lease_put(ps, call->lease);
	tn_op_abort(user);
	rpc_lock_take(&ps->lock);
	retire(call);
	rpc_lock_drop(&ps->lock);
}

/* Servers get a key to the caller's rows. */
static void lease_rows(ps_call *call)
{
	uint32_t access = call->kind == PS_PULL ? TERN_ACCESS_WRITE : TERN_ACCESS_READ;
	uint64_t rows = call->pool ? call->bags : call->count;

	if (rows == 0 || call->kind == PS_ERASE)
		return;
	call->lease_bytes = (rows - 1) * call->stride + call->row_bytes;
	call->lease = tn_ps_lease_get(call->ps, call->rows, call->lease_bytes, access);
}

/* What can be read without servers is; the parts that are left. */
static uint32_t read_parts(ps_part **made, uint32_t n)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (tn_ps_onesided_pull(made[i]))
			tn_ps_call_put(made[i]->call);
		else
			made[left++] = made[i];
	}
	return left;
}

static tern_status submit(ps_call *call)
{
	ps_part *made[TN_PS_OWNERS];
	uint32_t n = call->count ? tn_ps_parts_split(call, NULL, made) : 0;
	tern_status status = TERN_OK;

	if (n == 0 && call->count) {
		call_drop(call);
		return tn_fail(TERN_E_NOMEM, "no memory for an operation with %llu keys",
			       (unsigned long long)call->count);
	}
	if (call->one_sided)
		n = read_parts(made, n);
	call->here = call->one_sided && n == 0 && !call->user->done;
	if (n)
		lease_rows(call);
	for (uint32_t i = 0; i < n && status == TERN_OK; i++)
		status = tn_ps_part_send(made[i], i == 0 && !call->one_sided);
	if (status != TERN_OK) {
		call_drop(call);
		return status;
	}
	tn_ps_call_put(call);
	return TERN_OK;
}

/* ---- what users call ---- */

static tern_status check_rows(const tern_table *table, const uint64_t *keys, uint64_t count, const void *rows,
			      uint64_t stride, tern_dtype dtype, uint64_t *row_bytes)
{
	uint64_t element = tern_dtype_bytes(dtype);

	if (count > TN_PS_KEYS_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "%llu keys in one operation; at most %llu: split it",
			       (unsigned long long)count, (unsigned long long)TN_PS_KEYS_MAX);
	if (count && (!keys || !rows))
		return tn_fail(TERN_E_INVALID, "table \"%s\": %s is NULL", table->schema.name,
			       keys ? "rows" : "keys");
	if (dtype != TERN_F32 && dtype != TERN_BF16 && dtype != TERN_F16)
		return tn_fail(TERN_E_UNSUPPORTED, "table \"%s\": rows of %s; they are f32, bf16 or f16",
			       table->schema.name, tern_dtype_name(dtype));
	*row_bytes = table->schema.dim * element;
	if (stride && (stride < *row_bytes || stride % element || stride >= 1ull << 31))
		return tn_fail(TERN_E_SHAPE,
			       "table \"%s\": a stride of %llu bytes; rows have %llu, in whole elements, "
			       "below 2 GiB",
			       table->schema.name, (unsigned long long)stride,
			       (unsigned long long)*row_bytes);
	if ((uintptr_t)rows % element)
		return tn_fail(TERN_E_INVALID, "table \"%s\": rows are not aligned to their elements",
			       table->schema.name);
	return TERN_OK;
}

static tern_status check_bags(const tern_table *table, const tern_table_pull_params *p)
{
	const char *name = table->schema.name;

	if ((int)p->pool < 0 || p->pool > TERN_POOL_MEAN)
		return tn_fail(TERN_E_INVALID, "no kind of pooling has the number %d", (int)p->pool);
	if (p->bags > TN_PS_KEYS_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "%llu bags in one operation; at most %llu: split it",
			       (unsigned long long)p->bags, (unsigned long long)TN_PS_KEYS_MAX);
	if (p->found)
		return tn_fail(TERN_E_INVALID, "table \"%s\": a pooled pull does not say which keys it found",
			       name);
	if (!p->offsets || p->offsets[0] != 0 || p->offsets[p->bags] != p->count || (p->bags && !p->rows))
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": bags have offsets from 0 up to the number of keys, and rows",
			       name);
	for (uint64_t b = 0; b < p->bags; b++)
		if (p->offsets[b] > p->offsets[b + 1])
			return tn_fail(TERN_E_INVALID, "table \"%s\": bag %llu begins behind its end", name,
				       (unsigned long long)b);
	return TERN_OK;
}

tern_status tern_table_pull(tern_table *table, const tern_table_pull_params *p, tern_op *op)
{
	tern_dtype dtype = p->dtype ? p->dtype : table->schema.dtype ? table->schema.dtype : TERN_F32;
	uint64_t row_bytes = 0;
	ps_call *call;

	TN_TRY(check_rows(table, p->keys, p->count, p->rows, p->stride, dtype, &row_bytes));
	if ((int)p->unknown < 0 || p->unknown > TERN_UNKNOWN_ERROR)
		return tn_fail(TERN_E_INVALID, "no policy for unknown keys has the number %d",
			       (int)p->unknown);
	if (p->travel && !tn_ps_travels(p->travel))
		return tn_fail(TERN_E_UNSUPPORTED, "rows do not travel as %s: as f32, bf16, f16 or i8",
			       tern_dtype_name(p->travel));
	if (p->pool)
		TN_TRY(check_bags(table, p));
	if (p->flags & ~TERN_PULL_ONE_SIDED)
		return tn_fail(TERN_E_INVALID, "unknown flags of a pull: 0x%x: zero the parameters first",
			       p->flags);
	TN_TRY(call_new(table, PS_PULL, op, &call));
	call->keys = p->keys;
	call->count = p->count;
	call->rows = p->rows;
	call->row_bytes = row_bytes;
	call->stride = p->stride ? p->stride : row_bytes;
	call->dtype = dtype;
	call->how = (uint8_t)p->unknown;
	call->found = p->found;
	call->step = p->step;
	call->travel = p->travel ? p->travel : dtype;
	call->travel_bytes = tn_ps_travel_bytes(call->travel, table->schema.dim);
	call->pool = p->pool;
	call->offsets = p->offsets;
	call->bags = p->bags;
	call->one_sided = (p->flags & TERN_PULL_ONE_SIDED) && !p->pool;
	TN_PS_COUNT(table->ps->counters, pulls, 1);
	return submit(call);
}

tern_status tern_table_push(tern_table *table, const tern_table_push_params *p, tern_op *op)
{
	tern_dtype dtype = p->dtype ? p->dtype : TERN_F32;
	uint64_t row_bytes = 0;
	ps_call *call;

	TN_TRY(check_rows(table, p->keys, p->count, p->rows, p->stride, dtype, &row_bytes));
	if ((int)p->mode < 0 || p->mode > TERN_PUSH_ADD)
		return tn_fail(TERN_E_INVALID, "no kind of push has the number %d", (int)p->mode);
	TN_TRY(call_new(table, PS_PUSH, op, &call));
	call->keys = p->keys;
	call->count = p->count;
	call->rows = (uint8_t *)(uintptr_t)p->rows; /* read only */
	call->row_bytes = row_bytes;
	call->stride = p->stride ? p->stride : row_bytes;
	call->dtype = call->travel = dtype;
	call->travel_bytes = row_bytes;
	call->how = (uint8_t)p->mode;
	call->lr_scale = p->lr_scale;
	call->step = p->step;
	TN_PS_COUNT(table->ps->counters, pushes, 1);
	return submit(call);
}

tern_status tern_table_erase(tern_table *table, const uint64_t *keys, uint64_t count, tern_op *op)
{
	ps_call *call;

	if (count > TN_PS_KEYS_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "%llu keys in one operation; at most %llu: split it",
			       (unsigned long long)count, (unsigned long long)TN_PS_KEYS_MAX);
	if (count && !keys)
		return tn_fail(TERN_E_INVALID, "table \"%s\": keys is NULL", table->schema.name);
	TN_TRY(call_new(table, PS_ERASE, op, &call));
	call->keys = keys;
	call->count = count;
	return submit(call);
}

/* Parts are only added meanwhile, and those that are see that the call is given up. */
static void cancel_parts(ps_call *call)
{
	tern_ps *ps = call->ps;
	tn_list *node = &call->parts;

	for (;;) {
		rpc_lock_take(&ps->lock);
		node = node->next;
		rpc_lock_drop(&ps->lock);
		if (node == &call->parts)
			return;
		tn_ps_part_cancel(TN_CONTAINER_OF(node, ps_part, node));
	}
}

tern_status tern_table_cancel(tern_table *table, tern_op *op)
{
	tern_ps *ps = table->ps;
	ps_call *call = NULL;

	rpc_lock_take(&ps->lock);
	for (tn_list *node = ps->live.next; node != &ps->live && !call; node = node->next) {
		ps_call *c = TN_CONTAINER_OF(node, ps_call, node);

		if (c->user != op)
			continue;
		if (tn_ps_call_hold(c))
			call = c;
		break;
	}
	rpc_lock_drop(&ps->lock);
	if (!call)
		return tn_fail(TERN_E_NOT_FOUND, "the operation is not in flight");
	atomic_store_explicit(&call->canceled, true, memory_order_seq_cst);
	cancel_parts(call);
	tn_ps_call_put(call);
	return TERN_OK;
}

/* ---- waiting ---- */

static tern_status wait_for(tern_table *table, tern_status (*start)(tern_table *, const void *, tern_op *),
			    const void *params, uint64_t timeout_ns)
{
	tern_ctx *ctx = table->ps->ctx;
	uint64_t now = tn_ctx_now(ctx), end;
	tern_status status;
	tern_op op;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	tern_op_init(&op, NULL, NULL);
	end = tn_deadline(now, timeout_ns ? timeout_ns : table->ps->timeout_ns);
	for (;;) {
		op.timeout_ns = end - now;
		status = start(table, params, &op);
		if (status != TERN_AGAIN)
			break;
		tern_ctx_wait(ctx, 1000000);
		now = tn_ctx_now(ctx);
		if (now >= end)
			return tn_fail(TERN_E_DEADLINE,
				       "too many operations were in flight until the deadline");
	}
	if (status != TERN_OK)
		return status;
	do /* op is on the stack: whatever waiting says, it stays until its completion */
		status = tern_op_wait(ctx, &op, 0);
	while (tern_op_test(&op) == TERN_AGAIN);
	return status;
}

static tern_status start_pull(tern_table *table, const void *params, tern_op *op)
{
	return tern_table_pull(table, params, op);
}

static tern_status start_push(tern_table *table, const void *params, tern_op *op)
{
	return tern_table_push(table, params, op);
}

typedef struct erasure {
	const uint64_t *keys;
	uint64_t count;
} erasure;

static tern_status start_erase(tern_table *table, const void *params, tern_op *op)
{
	const erasure *e = params;

	return tern_table_erase(table, e->keys, e->count, op);
}

tern_status tern_table_pull_wait(tern_table *table, const tern_table_pull_params *params, uint64_t timeout_ns)
{
	return wait_for(table, start_pull, params, timeout_ns);
}

tern_status tern_table_push_wait(tern_table *table, const tern_table_push_params *params, uint64_t timeout_ns)
{
	return wait_for(table, start_push, params, timeout_ns);
}

tern_status tern_table_erase_wait(tern_table *table, const uint64_t *keys, uint64_t count,
				  uint64_t timeout_ns)
{
	erasure e = {keys, count};

	return wait_for(table, start_erase, &e, timeout_ns);
}
