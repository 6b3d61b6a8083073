/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns gates: see gate.h. One lock over all of them, taken for a few instructions: the driver's thread may call
 * while a context ends, and must then find out without touching it.
 *
 * Must not call CUDA from the driver's call back. Allocates one gate per operation with a stream.
 * Threads: any. Tests: tests/unit/channel/test_gpu.c.
 */
#include "channel/gate.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "channel/op.h"
#include "mem/gpu.h"

#define RETRY_NS (50 * TN_NS_PER_US)

typedef enum gate_state { PENDING, QUEUED, RETRY, ORPHAN } gate_state;

typedef struct gate {
	tn_list node; /* gates */
	tn_work work;
	tn_ctx_timer timer;
	gate_state state;
	tern_ctx *ctx;
	tern_channel *channel;
	tern_op *op;
	uint64_t deadline_ns;
	bool is_send;
	int count;
	tern_iovec iov[TN_LINK_IOV_MAX];
	tn_link_xfer xfer;
	tern_key key, flag_key;
} gate;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tn_list gates = {&gates, &gates};

/* Lock held. */
static void gate_set_state(gate *g, gate_state state)
{
	TN_ASSERT(g->state != ORPHAN && (state != RETRY || g->state == QUEUED) &&
		  (state != QUEUED || g->state != QUEUED));
	g->state = state;
}

/* ---- the end of a gate ---- */

static void channel_let_go(tern_channel *channel)
{
	tern_link *link = channel->link;

	tn_shell_ref(link);
	tn_lock_take(&link->lock);
	tn_channel_unref(channel);
	tn_lock_drop(&link->lock);
	tn_shell_unref(link);
}

static void gate_free(gate *g)
{
	pthread_mutex_lock(&lock);
	tn_list_remove(&g->node);
	pthread_mutex_unlock(&lock);
	channel_let_go(g->channel);
	free(g);
}

/* ---- when the stream has come ---- */

static tern_status submit(gate *g)
{
	if (g->deadline_ns != TN_TIME_NEVER && tn_ctx_now(g->ctx) >= g->deadline_ns)
		return tn_fail(TERN_E_DEADLINE, "the deadline passed before op->stream had come so far");
	return g->is_send ? tn_submit_send(g->channel, g->iov, g->count, g->op, g->deadline_ns)
			  : tn_submit_xfer(g->channel, &g->xfer, g->op, g->deadline_ns);
}

/* From dispatch. */
static void gate_run(tn_work *work)
{
	gate *g = TN_CONTAINER_OF(work, gate, work);
	tern_ctx *ctx = g->ctx;
	tern_op *op = g->op;
	tern_status status = submit(g);

	if (status == TERN_AGAIN && !ctx->ending) {
		pthread_mutex_lock(&lock);
		gate_set_state(g, RETRY);
		pthread_mutex_unlock(&lock);
		tn_ctx_timer_set(ctx, &g->timer, tn_ctx_now(ctx) + RETRY_NS);
		return;
	}
	if (status == TERN_AGAIN)
		status = tn_fail(TERN_E_FLUSHED, "the context ended");
	gate_free(g);
	if (status != TERN_OK)
		tn_op_complete(ctx, op, status, 0, tn_detail_get());
}

static void gate_timer(tn_ctx_timer *timer)
{
	gate *g = TN_CONTAINER_OF(timer, gate, timer);

	pthread_mutex_lock(&lock);
	if (g->state == RETRY) {
		gate_set_state(g, QUEUED);
		tn_ctx_defer(g->ctx, &g->work);
	}
	pthread_mutex_unlock(&lock);
}

/* In a thread of the CUDA driver. */
static void stream_came(void *arg)
{
	gate *g = arg;
	bool orphan;

	pthread_mutex_lock(&lock);
	orphan = g->state == ORPHAN;
	if (!orphan) {
		gate_set_state(g, QUEUED);
		tn_ctx_defer(g->ctx, &g->work);
	}
	pthread_mutex_unlock(&lock);
	if (orphan)
		free(g);
}

/* ---- submission ---- */

static gate *gate_new(tern_channel *channel, tern_op *op)
{
	gate *g = TN_FAULT("channel.gate.alloc") ? NULL : calloc(1, sizeof(*g));
	tern_ctx *ctx = channel->link->ctx;

	if (!g)
		return NULL;
	g->work.run = gate_run;
	g->timer.run = gate_timer;
	g->ctx = ctx;
	g->channel = channel;
	g->op = op;
	g->deadline_ns = op->timeout_ns ? tn_deadline(tn_ctx_now(ctx), op->timeout_ns) : TN_TIME_NEVER;
	tn_lock_take(&channel->link->lock);
	channel->refs++;
	tn_lock_drop(&channel->link->lock);
	pthread_mutex_lock(&lock);
	tn_list_push_back(&gates, &g->node);
	pthread_mutex_unlock(&lock);
	return g;
}

static tern_status gate_start(gate *g)
{
	tern_op *op = g->op;
	bool is_event = (op->flags & TERN_OP_EVENT) != 0;
	tern_status status = tn_op_begin(op);

	if (status == TERN_OK) {
		tn_op_priv_of(op)->handle = 0;
		(void)tn_gpu_start(true);
		status = tn_gpu_when(op->stream, is_event, stream_came, g);
		if (status == TERN_OK)
			return TERN_OK; /* g and op may be gone */
		tn_op_abort(op);
	}
	gate_free(g);
	return status;
}

tern_status tn_gate_xfer(tern_channel *channel, const tn_link_xfer *xfer, tern_op *op)
{
	gate *g = gate_new(channel, op);

	if (!g)
		return tn_fail(TERN_E_NOMEM, "no memory for an operation with a stream");
	g->xfer = *xfer;
	memcpy(&g->key, xfer->key, sizeof(g->key));
	g->xfer.key = &g->key;
	if (xfer->flag_key) {
		memcpy(&g->flag_key, xfer->flag_key, sizeof(g->flag_key));
		g->xfer.flag_key = &g->flag_key;
	}
	return gate_start(g);
}

tern_status tn_gate_send(tern_channel *channel, const tern_iovec *iov, int count, tern_op *op)
{
	gate *g = gate_new(channel, op);

	if (!g)
		return tn_fail(TERN_E_NOMEM, "no memory for an operation with a stream");
	TN_ASSERT(count >= 0 && count <= TN_LINK_IOV_MAX);
	g->is_send = true;
	g->count = count;
	for (int i = 0; i < count; i++)
		g->iov[i] = iov[i];
	return gate_start(g);
}

/* ---- the context's end ---- */

/* Lock held. A gate of the context that nobody else works on, off the list. */
static gate *take_waiting(tern_ctx *ctx, gate_state *was)
{
	TN_LIST_FOREACH(node, &gates) {
		gate *g = TN_LIST_ENTRY(node, gate, node);

		if (g->ctx != ctx || g->state == QUEUED)
			continue;
		tn_list_remove(node);
		*was = g->state;
		gate_set_state(g, ORPHAN);
		return g;
	}
	return NULL;
}

void tn_gates_end(tern_ctx *ctx)
{
	gate_state was = PENDING;
	gate *g;

	for (;;) {
		tern_channel *channel;
		tern_op *op;

		pthread_mutex_lock(&lock);
		g = take_waiting(ctx, &was);
		if (g) {
			/* Once the lock is dropped the call back may free a pending one. */
			channel = g->channel;
			op = g->op;
		}
		pthread_mutex_unlock(&lock);
		if (!g)
			return;
		if (was == RETRY) {
			tn_ctx_timer_cancel(ctx, &g->timer);
			free(g);
		}
		channel_let_go(channel);
		tn_op_finish(ctx, op, TERN_E_FLUSHED, 0, tn_details_put(ctx, "the context ended"));
	}
}
