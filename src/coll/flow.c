/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of an operation: a flow to one rank and a flow from another, at once. Pieces that came are reduced or stored
 * while the next ones travel; what does not fit into the receiver's slots waits for their release.
 *
 * Threads: the communicator's. Tests: tests/unit/coll/coll_test.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/limits.h"
#include "channel/ctx_slots.h"
#include "coll/comm.h"
#include "tensor/part.h"

#define LOOK_NS 100000000ull

typedef struct tn_flow {
	const tn_coll_leg *leg;
	tn_coll_pipe *pipe;
	bool head; /* it is on its way, or was seen */
	uint64_t done;
} tn_flow;

tern_status tn_coll_fail(tern_communicator *comm, uint32_t rank, tern_status status, const char *what)
{
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	snprintf(comm->why, sizeof(comm->why), "%s %" PRIu64 " of '%s', rank %u: %s rank %u at %s: %.120s",
		 tn_coll_operation_name(comm->call.operation), comm->call.number, comm->name, comm->rank,
		 what, rank, comm->addresses[rank], detail[0] ? detail : tern_status_text(status));
	comm->failed = status;
	return tn_fail(status, "%s", comm->why);
}

/* ---- sending ---- */

static uint64_t write_head(tern_communicator *comm, tn_flow *f, uint8_t *to)
{
	const tn_coll_call *call = &comm->call;
	uint64_t small = f->leg->bytes <= TN_COLL_SMALL ? f->leg->bytes : 0;
	tn_coll_head head = {.operation = call->operation,
			     .dtype = call->dtype,
			     .reduce = call->reduce,
			     .rank = comm->rank,
			     .number = call->number,
			     .flow = f->pipe->flows,
			     .total = call->bytes,
			     .bytes = f->leg->bytes,
			     .step = call->step,
			     .chunk = (uint32_t)comm->state->chunk};

	tn_coll_head_write(to, &head);
	if (small)
		memcpy(to + TN_COLL_HEAD, f->leg->ptr, small);
	return small;
}

/* Send what there is room for. TERN_AGAIN: more is left. */
static tern_status push(tern_communicator *comm, tn_flow *f, bool *moved)
{
	tn_coll_pipe *p = f->pipe;
	const tn_coll_leg *leg = f->leg;

	while (!f->head || f->done < leg->bytes) {
		uint64_t slot = p->posted % comm->state->slots, piece;
		tern_op *op = &p->ops[slot];
		const uint8_t *from;
		tern_status status;

		TN_TRY(tern_tensor_tx_ready(p->tx));
		TN_TRY(tern_op_test(op)); /* the piece before in this slot: TERN_AGAIN, or it failed */
		if (!f->head) {
			from = p->staging + slot * (TN_COLL_HEAD + TN_COLL_SMALL);
			f->done = write_head(comm, f, (uint8_t *)from);
			piece = TN_COLL_HEAD + f->done;
		} else {
			from = leg->ptr + f->done;
			piece = TN_MIN(comm->state->chunk, leg->bytes - f->done);
		}
		*op = (tern_op){0};
		status = tn_tensor_send_part(p->tx, from, piece, op);
		if (status != TERN_OK) {
			*op = (tern_op){0}; /* refused: no piece is in this slot */
			return status;
		}
		f->done += f->head ? piece : 0;
		f->head = true;
		p->posted++;
		*moved = true;
	}
	p->flows++;
	atomic_fetch_add_explicit(&comm->state->bytes_sent, leg->bytes, memory_order_relaxed);
	return TERN_OK;
}

/* ---- receiving ---- */

static tern_status check_head(tern_communicator *comm, const tn_flow *f, const uint8_t *bytes)
{
	const tn_coll_call *c = &comm->call;
	tn_coll_head h;

	if (!tn_coll_head_read(bytes, &h) || h.rank != f->leg->rank || h.flow != f->pipe->flows)
		return tn_fail(TERN_E_PROTOCOL, "what it sent is no head of a flow");
	if (h.operation == c->operation && h.number == c->number && h.total == c->bytes &&
	    h.dtype == c->dtype && h.reduce == c->reduce && h.step == c->step && h.bytes == f->leg->bytes)
		return h.chunk == comm->state->chunk
			       ? TERN_OK
			       : tn_fail(TERN_E_PROTOCOL, "its coll.chunk is %u, here %" PRIu64, h.chunk,
					 comm->state->chunk);
	return tn_fail(TERN_E_PROTOCOL,
		       "ranks disagree: it does %s %" PRIu64 " (%" PRIu64
		       " bytes, dtype %u, reduction %u, step %u), "
		       "here %s %" PRIu64 " (%" PRIu64 " bytes, dtype %u, reduction %u, step %u)",
		       tn_coll_operation_name(h.operation), h.number, h.total, h.dtype, h.reduce, h.step,
		       tn_coll_operation_name(c->operation), c->number, c->bytes, c->dtype, c->reduce,
		       c->step);
}

static void take(tern_communicator *comm, tn_flow *f, const uint8_t *from, uint64_t bytes)
{
	uint8_t *to = f->leg->ptr + f->done;

	if (f->leg->reduce)
		tn_coll_reduce(to, from, bytes / tern_dtype_bytes(comm->call.dtype), comm->call.dtype,
			       comm->call.reduce);
	else if (bytes)
		memcpy(to, from, bytes);
	f->done += bytes;
}

/* Take what came. TERN_AGAIN: more is to come. */
static tern_status pull(tern_communicator *comm, tn_flow *f, bool *moved)
{
	const tn_coll_leg *leg = f->leg;

	while (!f->head || f->done < leg->bytes) {
		uint64_t small = leg->bytes <= TN_COLL_SMALL ? leg->bytes : 0;
		uint64_t piece =
			f->head ? TN_MIN(comm->state->chunk, leg->bytes - f->done) : TN_COLL_HEAD + small;
		const void *data;

		TN_TRY(tern_tensor_rx_poll(f->pipe->rx, &data));
		if (!f->head && tn_tensor_rx_length(f->pipe->rx) >= TN_COLL_HEAD)
			TN_TRY(check_head(comm, f, data));
		if (tn_tensor_rx_length(f->pipe->rx) != piece)
			return tn_fail(TERN_E_PROTOCOL,
				       "a piece of %" PRIu64 " bytes came, %" PRIu64 " were to come",
				       tn_tensor_rx_length(f->pipe->rx), piece);
		if (f->head)
			take(comm, f, data, piece);
		else
			take(comm, f, (const uint8_t *)data + TN_COLL_HEAD, small);
		f->head = true;
		TN_TRY(tern_tensor_rx_release(f->pipe->rx));
		*moved = true;
	}
	f->pipe->flows++;
	atomic_fetch_add_explicit(&comm->state->bytes_received, leg->bytes, memory_order_relaxed);
	return TERN_OK;
}

/* ---- both ---- */

static tern_status open_flows(tern_communicator *comm, tn_flow *out, tn_flow *in)
{
	tern_status status = TERN_OK;

	if (in->leg)
		status = tn_coll_open_in(comm, in->leg->rank, &in->pipe);
	if (status != TERN_OK)
		return tn_coll_fail(comm, in->leg->rank, status, "no way from");
	if (out->leg)
		status = tn_coll_open_out(comm, out->leg->rank, &out->pipe);
	return status == TERN_OK ? TERN_OK : tn_coll_fail(comm, out->leg->rank, status, "no way to");
}

static tern_status late(tern_communicator *comm, const tn_flow *in, const tn_flow *out, tern_status received)
{
	bool missing = received == TERN_AGAIN;
	uint32_t rank = missing ? in->leg->rank : out->leg->rank;

	tn_fail(TERN_E_DEADLINE, "nothing for %" PRIu64 " ms", comm->timeout_ns / 1000000);
	return tn_coll_fail(comm, rank, TERN_E_DEADLINE, missing ? "waits for" : "can't send to");
}

tern_status tn_coll_exchange(tern_communicator *comm, const tn_coll_leg *send, const tn_coll_leg *recv)
{
	tn_flow out = {.leg = send}, in = {.leg = recv};
	tern_status sent = send ? TERN_AGAIN : TERN_OK, received = recv ? TERN_AGAIN : TERN_OK;

	bool same = send && recv && send->ptr == recv->ptr;

	TN_ASSERT(!same || send->bytes <= TN_COLL_SMALL);
	TN_TRY(open_flows(comm, &out, &in));
	for (;;) {
		uint64_t seen = tern_ctx_events(comm->ctx), now;
		bool moved = false;

		if (sent == TERN_AGAIN)
			sent = push(comm, &out, &moved);
		if (sent != TERN_OK && sent != TERN_AGAIN)
			return tn_coll_fail(comm, send->rank, sent, "can't send to");
		if (received == TERN_AGAIN && (!same || sent == TERN_OK))
			received = pull(comm, &in, &moved);
		if (received != TERN_OK && received != TERN_AGAIN)
			return tn_coll_fail(comm, recv->rank, received, "can't receive from");
		if (sent == TERN_OK && received == TERN_OK)
			break;
		if (moved)
			continue;
		now = tn_ctx_now(comm->ctx);
		if (now >= comm->call.deadline_ns)
			return late(comm, &in, &out, received);
		tern_ctx_wait_past(comm->ctx, seen, TN_MIN(comm->call.deadline_ns - now, LOOK_NS));
	}
	comm->call.step++;
	return TERN_OK;
}

tern_status tn_coll_settle(tern_communicator *comm)
{
	for (uint32_t rank = 0; rank < comm->size; rank++) {
		tn_coll_pipe *p = &comm->peers[rank].out[comm->call.kind];

		for (uint64_t i = 0; p->tx && i < comm->state->slots; i++) {
			tern_status status = TERN_E_DEADLINE;

			while (status == TERN_E_DEADLINE && tern_op_test(&p->ops[i]) == TERN_AGAIN) {
				status = tern_op_wait(comm->ctx, &p->ops[i], LOOK_NS);
				if (tn_ctx_now(comm->ctx) >= comm->call.deadline_ns)
					break;
			}
			status = tern_op_test(&p->ops[i]);
			if (status != TERN_OK)
				return tn_coll_fail(comm, rank,
						    status == TERN_AGAIN ? TERN_E_DEADLINE : status,
						    "can't send to");
		}
	}
	return TERN_OK;
}
