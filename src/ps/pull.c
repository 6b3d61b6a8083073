/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulls at a server. Rows go from the table to the caller in one copy where its memory can be reached (shm), else in
 * two: into a pack, and over the wire from there, while the next ones are gathered.
 *
 * Threads: the driver or a worker; the put's completion in dispatch. Tests: tests/unit/ps/ps_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "channel/dispatch.h"
#include "ps/server.h"
#include "rpc/direct.h"

/*
 * Of a pack, and so many rows travel before their answer on its own lane, as gradients do with their message: in one piece
 * with it, by one system call. Two pieces cost both sides more, for the second post, wake-up and acknowledgement, than
 * half of the rows that travel meanwhile save.
 */
#define PIECE_BYTES (256ull << 10)
#define CHUNK       16384u /* keys for which the caller's memory stays mapped at most */

static void add(ps_task *t, tern_status status, const tn_pull_result *r)
{
	if (t->answer.status == TERN_OK)
		t->answer.status = status;
	t->answer.found += r->found;
	t->answer.refused += r->refused;
}

/* found bytes -> bits behind the head of the answer; returns their bytes. */
static uint64_t pack_found(const ps_task *t)
{
	uint64_t n = t->batch.count, bytes = (n + 7) / 8;
	uint8_t *bits = t->bench->answer + TN_PS_ANSWER_BYTES;

	if (!(t->batch.flags & TN_PS_FOUND))
		return 0;
	memset(bits, 0, bytes);
	for (uint64_t i = 0; i < n; i++)
		bits[i / 8] |= (uint8_t)((t->bench->found[i] != 0) << (i % 8));
	return bytes;
}

/* ---- into the caller's memory ---- */

/* The rows of sink 0 that keys first .. first + n - 1 go to: [*from, *to). False: outside of the sink. */
static bool reach_of(const ps_task *t, uint64_t first, uint64_t n, uint64_t *from, uint64_t *to)
{
	const tern_rpc_sink *sink = tern_rpc_request_sink(t->request, 0);
	uint64_t low = first, high = first + n - 1;

	if (t->places) {
		low = high = t->places[first];
		for (uint64_t i = first; i < first + n; i++) {
			low = TN_MIN(low, (uint64_t)t->places[i]);
			high = TN_MAX(high, (uint64_t)t->places[i]);
		}
	}
	/* high < 2^32: no product wraps with a stride below 2^31 */
	if (!sink || t->stride >= 1ull << 31)
		return false;
	*from = low * t->stride;
	*to = high * t->stride + t->row_bytes;
	return *to <= sink->bytes;
}

static tern_status direct_chunk(ps_task *t, uint64_t first, uint64_t n)
{
	uint32_t *moved = NULL;
	tn_pull_result result;
	uint64_t from, to;
	tern_status status;
	tn_rpc_map map;

	if (!reach_of(t, first, n, &from, &to))
		return tn_fail(TERN_E_BOUNDS, "rows past the end of the sink that takes them");
	TN_TRY(tn_rpc_request_map(t->request, 0, from, to - from, false, &map));
	if ((uintptr_t)map.at % tern_dtype_bytes((tern_dtype)t->batch.dtype) != 0) {
		tn_rpc_request_unmap(&map);
		return tn_fail(TERN_E_INVALID, "the sink is not aligned to its elements");
	}
	if (t->places) { /* counted from the first row that is mapped; a copy, because the peer may change them */
		moved = t->bench->places;
		for (uint64_t i = 0; i < n; i++) {
			uint32_t place = t->places[first + i];

			moved[first + i] = place - (uint32_t)(from / t->stride);
			if (moved[first + i] > (to - from) / t->stride)
				moved[first + i] = 0;
		}
		moved += first;
	}
	memset(&result, 0, sizeof(result));
	status = tn_ps_produce(t, first, n, map.at, t->stride, moved, &result);
	tn_rpc_request_unmap(&map);
	if (!tn_ps_rows_written(status))
		return status;
	add(t, status, &result);
	return TERN_OK;
}

/* TERN_AGAIN, TERN_E_UNSUPPORTED: nothing was done, or only what may be done again. */
static tern_status direct(ps_task *t)
{
	for (uint64_t first = 0; first < t->rows; first += CHUNK)
		TN_TRY(direct_chunk(t, first, TN_MIN(CHUNK, t->rows - first)));
	TN_PS_COUNT(t->server->counters, in_place, 1);
	t->answer.flags |= TN_PS_DIRECT;
	return TERN_OK;
}

/* ---- packed ---- */

static void on_put(tern_op *op, void *arg)
{
	(void)op; /* the answer becomes its error */
	tn_ps_pack_put(arg);
}

/* The channel has no room for one more put: in a worker wait for it, in the driver say so. */
static tern_status put_rows(ps_task *t, ps_pack *pack, uint32_t piece, uint64_t at, uint64_t bytes,
			    tn_link_placed how)
{
	tern_op *op = &pack->op[piece];
	tern_status status;

	tern_op_init(op, on_put, pack);
	atomic_fetch_add_explicit(&pack->users, 1, memory_order_relaxed);
	do {
		status = tn_rpc_request_place(t->request, 0, at, pack->memory + at, bytes, how, op);
		if (status == TERN_AGAIN && !tn_in_dispatch())
			tern_ctx_wait(t->server->ctx, 1000000);
	} while (status == TERN_AGAIN && !tn_in_dispatch());
	if (status != TERN_OK)
		tn_ps_pack_put(pack);
	return status == TERN_AGAIN ? tn_fail(TERN_E_OVERLOAD, "too many rows are on their way: try again")
				    : status;
}

/* Gather some rows and send them off: they travel while the next ones are gathered. */
static tern_status pack_piece(ps_task *t, ps_pack *pack, uint32_t piece, uint64_t first, uint64_t n)
{
	uint64_t at = first * t->row_bytes, bytes = n * t->row_bytes;
	tn_pull_result result = {0};
	tern_status status = tn_ps_produce(t, first, n, pack->memory + at, t->row_bytes, NULL, &result);
	tn_link_placed how = t->rows * t->row_bytes > PIECE_BYTES ? TN_PLACED_APART : TN_PLACED_LAST;

	if (!tn_ps_rows_written(status))
		return status;
	TN_PS_COUNT(t->server->counters, packed, 1);
	TN_PS_COUNT(t->server->counters, packed_bytes, bytes);
	add(t, status, &result);
	return put_rows(t, pack, piece, at, bytes, how);
}

static void packed(ps_task *t)
{
	uint64_t count = t->rows, bytes = count * t->row_bytes;
	uint64_t rows =
		TN_MAX(PIECE_BYTES / t->row_bytes, (count + TN_PS_PACK_PIECES - 1) / TN_PS_PACK_PIECES);
	ps_pack *pack = tn_ps_pack_get(t->server, bytes);
	tern_status status = TERN_OK;
	uint32_t piece = 0;

	if (!pack) {
		tn_ps_refuse(t, TERN_E_NOMEM, "the server has no memory to pack %llu bytes of rows",
			     (unsigned long long)bytes);
		return;
	}
	for (uint64_t first = 0; first < count && status == TERN_OK; first += rows)
		status = pack_piece(t, pack, piece++, first, TN_MIN(rows, count - first));
	if (status == TERN_OK)
		tn_ps_reply(t, pack_found(t));
	else
		tn_ps_refuse(t, status, "%s", tn_detail_get());
	tn_ps_pack_put(pack);
}

/* Rows behind the head and the found bits of the answer. */
static void in_answer(ps_task *t)
{
	uint64_t bits = t->batch.flags & TN_PS_FOUND ? (t->batch.count + 7) / 8 : 0;
	uint64_t rows = t->rows * t->row_bytes, at = TN_PS_ANSWER_BYTES + bits;
	uint64_t place = (at + 15) & ~15ull; /* gathered aligned, then moved down to the bits */
	tn_pull_result result = {0};
	tern_status status;

	if (!tn_ps_bench_answer(t->bench, place + rows)) {
		tn_ps_refuse(t, TERN_E_NOMEM, "the server has no memory for %llu bytes of rows",
			     (unsigned long long)rows);
		return;
	}
	status = tn_ps_produce(t, 0, t->rows, t->bench->answer + place, t->row_bytes, NULL, &result);
	if (!tn_ps_rows_written(status)) {
		tn_ps_refuse(t, status, "%s", tn_detail_get());
		return;
	}
	if (place != at)
		memmove(t->bench->answer + at, t->bench->answer + place, rows);
	TN_PS_COUNT(t->server->counters, packed, 1);
	TN_PS_COUNT(t->server->counters, packed_bytes, rows);
	add(t, status, &result);
	t->answer.flags |= TN_PS_ROWS;
	(void)pack_found(t);
	tn_ps_reply(t, bits + rows);
}

void tn_ps_pull(ps_task *t)
{
	tern_status status;

	t->read = true;
	if (t->batch.how > TERN_UNKNOWN_ERROR) {
		tn_ps_refuse(t, TERN_E_INVALID, "no policy for unknown keys has the number %u", t->batch.how);
		return;
	}
	t->rows = t->batch.flags & TN_PS_POOLED ? t->batch.bags : t->batch.count;
	if (t->rows == 0) {
		tn_ps_reply(t, 0);
		return;
	}
	if (t->batch.dtype == TERN_I8 && t->batch.flags & TN_PS_PLACES) {
		tn_ps_refuse(t, TERN_E_PROTOCOL, "rows of int8 go close");
		return;
	}
	if (!tn_ps_produce_begin(t)) {
		tn_ps_refuse(t, TERN_E_NOMEM, "the server has no memory to work on rows of %u",
			     t->share->schema.dim);
		return;
	}
	if (t->batch.flags & TN_PS_ANSWER_ROWS) {
		if (tn_direct_can(tern_rpc_request_link(t->request)))
			t->answer.flags |= TN_PS_DIRECT; /* the next one with a sink, please */
		in_answer(t);
		return;
	}
	status = direct(t);
	if (status == TERN_OK) {
		tn_ps_reply(t, pack_found(t));
		return;
	}
	if (status != TERN_E_UNSUPPORTED && status != TERN_AGAIN) {
		tn_ps_refuse(t, status, "%s", tn_detail_get());
		return;
	}
	t->answer = (tn_ps_answer){.flags = status == TERN_AGAIN ? TN_PS_DIRECT : 0};
	if (!t->places && t->stride == t->row_bytes) {
		packed(t);
	} else {
		t->answer.flags |= TN_PS_NEED_PACKED;
		tn_ps_reply(t, 0);
	}
}
