/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushes and erasures at a server. A push asks dedup first and tells it afterwards; both under the share's lock, the
 * engine's work in between under none.
 *
 * Gradients are read where the client has them (shm) or in the message; the engine sums equal keys. No copy is made of
 * them here.
 *
 * Threads: the driver or a worker. Tests: tests/unit/ps/ps_test.c, exactly_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/server.h"
#include "rpc/direct.h"

/* Keys that were not applied before: the others are left out, places say where their gradients are. */
static void leave_out(ps_task *t, const tn_ps_slots *fresh, uint64_t *count)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < t->batch.count; i++) {
		uint64_t key = t->keys[i];

		if (!tn_ps_slots_has(fresh, tn_table_slot(key)))
			continue;
		t->bench->places[n] = t->places ? t->places[i] : (uint32_t)i;
		t->bench->keys[n++] = key;
	}
	t->keys = t->bench->keys;
	t->places = t->bench->places;
	*count = n;
}

/* Was the batch applied, but perhaps for rows that could not be? */
static bool was_applied(tern_status status)
{
	return status == TERN_OK || status == TERN_E_BUDGET || status == TERN_E_NOMEM ||
	       status == TERN_E_INVALID || status == TERN_E_IO /* the cold tier */;
}

static tern_status apply(ps_task *t, const uint8_t *grads, uint64_t count)
{
	tn_push how = {.mode = (tern_push_mode)t->batch.how,
		       .dtype = (tern_dtype)t->batch.dtype,
		       .lr_scale = t->batch.lr_scale,
		       .stride = t->batch.flags & TN_PS_INLINE ? t->row_bytes : t->stride,
		       .step = t->batch.step,
		       .positions = t->places};
	tn_push_result result = {0};
	tern_status status = tn_table_push(t->share->engine, t->keys, grads, count, &how, &result);

	t->answer.status = status;
	t->answer.applied = result.applied;
	t->answer.dropped = result.nonfinite;
	t->answer.refused = result.refused + result.not_admitted;
	return status;
}

/* Once per slot; then the answer. */
static void push_once(ps_task *t, const uint8_t *grads)
{
	const tn_ps_batch *b = &t->batch;
	ps_share *share = t->share;
	uint64_t count = b->count;
	tn_ps_verdict verdict;
	tern_status status, known;
	tn_ps_slots fresh;

	if (!tn_ps_write_begin(t))
		return;
	pthread_mutex_lock(&share->lock);
	verdict = tn_ps_dedup_begin(share->dedup, b->client, b->seq, b->low_water, t->slots, &fresh, &known);
	pthread_mutex_unlock(&share->lock);
	if (verdict == TN_PS_FRESH) {
		if (!tn_ps_slots_within(t->slots, &fresh)) {
			t->answer.flags |= TN_PS_DUPLICATE;
			leave_out(t, &fresh, &count);
			if (TN_UNLIKELY(t->commit != NULL))
				tn_ps_replicas_known(t); /* the others' images may be on their way still */
		}
		status = apply(t, grads, count);
		pthread_mutex_lock(&share->lock);
		tn_ps_dedup_end(share->dedup, b->client, b->seq, &fresh, was_applied(status), status);
		pthread_mutex_unlock(&share->lock);
		if (TN_UNLIKELY(t->commit != NULL) && was_applied(status))
			tn_ps_replicas_wrote(t, TN_REPL_PUSH, t->keys, count, status);
	} else if (TN_UNLIKELY(t->commit != NULL)) {
		tn_ps_replicas_known(t);
	}
	tn_ps_write_end(t);
	if (verdict == TN_PS_KNOWN)
		t->answer.flags |= TN_PS_DUPLICATE;
	/* Rows of an earlier copy that could not be are the caller's business still. */
	if (t->answer.status == TERN_OK)
		t->answer.status = known;
	if (t->answer.flags & TN_PS_DUPLICATE) {
		TN_PS_COUNT(t->server->counters, duplicates, 1);
		atomic_fetch_add_explicit(&share->duplicates, 1, memory_order_relaxed);
	}
	if (verdict == TN_PS_AT_WORK)
		t->answer.flags |= TN_PS_RUNNING;
	if (verdict == TN_PS_BEYOND)
		t->answer.status = TERN_E_LIMIT;
	if (verdict == TN_PS_NO_MEMORY)
		t->answer.status = TERN_E_NOMEM;
}

static void answer(ps_task *t)
{
	if (TN_FAULT("ps.answer.lost")) /* it was applied, and nobody learns of it */
		tn_ps_refuse(t, TERN_E_INDETERMINATE, "the answer was lost");
	else
		tn_ps_reply(t, 0);
}

static bool grads_in_sink(const ps_task *t)
{
	const tern_rpc_sink *sink = tern_rpc_request_sink(t->request, 0);
	uint64_t rows = t->batch.count;

	/* places are held against the sink too: the engine trusts them */
	for (uint64_t i = 0; t->places && i < t->batch.count; i++) {
		t->bench->places[i] = t->places[i];
		rows = TN_MAX(rows, (uint64_t)t->bench->places[i] + 1);
	}
	return sink && t->stride < 1ull << 31 && (rows - 1) * t->stride + t->row_bytes <= sink->bytes;
}

static void push_from_sink(ps_task *t)
{
	const tern_rpc_sink *sink = tern_rpc_request_sink(t->request, 0);
	tern_status status;
	tn_rpc_map map;

	if (!grads_in_sink(t)) {
		tn_ps_refuse(t, TERN_E_BOUNDS, "gradients past the end of the memory that has them");
		return;
	}
	if (t->places)
		t->places = t->bench->places;
	status = tn_rpc_request_map(t->request, 0, 0, sink->bytes, true, &map);
	if (status == TERN_AGAIN || status == TERN_E_UNSUPPORTED) {
		t->answer.flags |= TN_PS_NEED_PACKED | (status == TERN_AGAIN ? TN_PS_DIRECT : 0);
		tn_ps_reply(t, 0);
		return;
	}
	if (status == TERN_OK && (uintptr_t)map.at % tern_dtype_bytes((tern_dtype)t->batch.dtype) != 0) {
		tn_rpc_request_unmap(&map);
		status = tn_fail(TERN_E_INVALID, "the gradients are not aligned to their elements");
	}
	if (status != TERN_OK) {
		tn_ps_refuse(t, status, "%s", tn_detail_get());
		return;
	}
	TN_PS_COUNT(t->server->counters, in_place, 1);
	t->answer.flags |= TN_PS_DIRECT;
	push_once(t, map.at);
	tn_rpc_request_unmap(&map);
	answer(t);
}

void tn_ps_push(ps_task *t)
{
	tn_ps_batch *b = &t->batch;

	if (b->how > TERN_PUSH_ADD) {
		tn_ps_refuse(t, TERN_E_INVALID, "no kind of push has the number %u", b->how);
		return;
	}
	if (b->count == 0) {
		tn_ps_reply(t, 0);
		return;
	}
	if (!(b->flags & TN_PS_INLINE)) {
		push_from_sink(t);
		return;
	}
	if (b->flags & TN_PS_PLACES || (uintptr_t)b->grads % tern_dtype_bytes((tern_dtype)b->dtype) != 0) {
		tn_ps_refuse(t, TERN_E_PROTOCOL, "gradients inline are packed and aligned");
		return;
	}
	if (tn_direct_can(tern_rpc_request_link(t->request)))
		t->answer.flags |= TN_PS_DIRECT;
	push_once(t, b->grads);
	answer(t);
}

void tn_ps_erase(ps_task *t)
{
	tern_status status;
	uint64_t erased = 0;

	if (!tn_ps_write_begin(t)) {
		tn_ps_reply(t, 0);
		return;
	}
	status = tn_table_erase(t->share->engine, t->keys, t->batch.count, &erased);
	if (TN_UNLIKELY(t->commit != NULL) && status == TERN_OK)
		tn_ps_replicas_wrote(t, TN_REPL_ROWS, t->keys, t->batch.count, status);
	tn_ps_write_end(t);
	if (status != TERN_OK) {
		tn_ps_refuse(t, status, "%s", tn_detail_get());
		return;
	}
	t->answer.applied = erased;
	tn_ps_reply(t, 0);
}
