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

typedef enum gate_state { WAITING, QUEUED, ORPHAN } gate_state;

typedef struct gate {
	tn_list node; /* gates */
	tn_work work;
	tn_ctx_timer timer; /* the deadline, then the next try */
	gate_state state;
	bool came;           /* the stream did */
	tern_status verdict; /* not TERN_OK: it is not submitted, but ends with this */
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
	TN_ASSERT(g->state != ORPHAN && g->state != state);
	g->state = state;
}

/* Lock held: the dispatcher has something to do with it. */
static void gate_queue(gate *g)
{
	if (g->state != WAITING)
		return;
	gate_set_state(g, QUEUED);
	tn_ctx_defer(g->ctx, &g->work);
}

/* ---- from dispatch ---- */

static void channel_let_go(tern_channel *channel)
{
	tern_link *link = channel->link;

	tn_shell_ref(link);
	tn_lock_take(&link->lock);
	tn_channel_unref(channel);
	tn_lock_drop(&link->lock);
	tn_shell_unref(link);
}

/* The gate goes: at once, or when the driver's call back, which is still to come, has seen that it is over. */
static void gate_end(gate *g)
{
	tern_channel *channel = g->channel;
	bool came;

	tn_ctx_timer_cancel(g->ctx, &g->timer);
	pthread_mutex_lock(&lock);
	tn_list_remove(&g->node);
	came = g->came;
	if (!came)
		gate_set_state(g, ORPHAN);
	pthread_mutex_unlock(&lock);
	channel_let_go(channel);
	if (came)
		free(g);
}

static tern_status submit(gate *g)
{
	return g->is_send ? tn_submit_send(g->channel, g->iov, g->count, g->op, g->deadline_ns)
			  : tn_submit_xfer(g->channel, &g->xfer, g->op, g->deadline_ns);
}

/* It was refused for now: wait a little. False: the context ends, or somebody gave it up meanwhile. */
static bool try_later(gate *g)
{
	tern_ctx *ctx = g->ctx;
	bool ending, later;

	tn_lock_take(&ctx->table_lock);
	ending = ctx->ending;
	tn_lock_drop(&ctx->table_lock);
	pthread_mutex_lock(&lock);
	later = !ending && g->verdict == TERN_OK;
	if (later)
		gate_set_state(g, WAITING);
	pthread_mutex_unlock(&lock);
	if (later) /* g lives: only the dispatcher, which is here, ends it */
		tn_ctx_timer_set(ctx, &g->timer, tn_ctx_now(ctx) + RETRY_NS);
	return later;
}

static void gate_run(tn_work *work)
{
	gate *g = TN_CONTAINER_OF(work, gate, work);
	tern_ctx *ctx = g->ctx;
	tern_op *op = g->op;
	tern_status status;

	pthread_mutex_lock(&lock);
	status = g->verdict;
	pthread_mutex_unlock(&lock);
	if (status != TERN_OK) {
		tn_fail(status, "it waited for op->stream: %s", tern_status_text(status));
	} else {
		status = submit(g);
		if (status == TERN_AGAIN && try_later(g))
			return;
		if (status == TERN_AGAIN)
			status = tn_fail(TERN_E_FLUSHED, "given up before the link took it");
	}
	gate_end(g);
	if (status != TERN_OK)
		tn_op_complete(ctx, op, status, 0, tn_detail_get());
}

/* ---- what moves a gate on ---- */

static void gate_timer(tn_ctx_timer *timer)
{
	gate *g = TN_CONTAINER_OF(timer, gate, timer);

	pthread_mutex_lock(&lock);
	if (g->state == WAITING && !g->came)
		g->verdict = TERN_E_DEADLINE;
	gate_queue(g);
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
		g->came = true;
		gate_queue(g);
	}
	pthread_mutex_unlock(&lock);
	if (orphan)
		free(g);
}

/* Lock held. */
static void give_up(gate *g, tern_status verdict)
{
	if (g->verdict == TERN_OK)
		g->verdict = verdict;
	gate_queue(g);
}

bool tn_gate_cancel(const tern_op *op)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	TN_LIST_FOREACH(node, &gates) {
		gate *g = TN_LIST_ENTRY(node, gate, node);

		if (g->op != op)
			continue;
		give_up(g, TERN_E_CANCELED);
		found = true;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void tn_gates_end(tern_ctx *ctx)
{
	pthread_mutex_lock(&lock);
	TN_LIST_FOREACH(node, &gates) {
		gate *g = TN_LIST_ENTRY(node, gate, node);

		if (g->ctx == ctx)
			give_up(g, TERN_E_FLUSHED);
	}
	pthread_mutex_unlock(&lock);
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
	return g;
}

/* The driver will not call. True: the caller ends it; false: it was given up before and ends from dispatch. */
static bool take_back(gate *g)
{
	bool mine;

	pthread_mutex_lock(&lock);
	mine = g->state == WAITING;
	g->came = true;
	if (mine)
		gate_set_state(g, QUEUED);
	pthread_mutex_unlock(&lock);
	return mine;
}

static tern_status gate_start(gate *g)
{
	tern_op *op = g->op;
	bool is_event = (op->flags & TERN_OP_EVENT) != 0;
	tern_status status = tn_op_begin(op);

	if (status != TERN_OK) {
		channel_let_go(g->channel);
		free(g);
		return status;
	}
	tn_op_priv_of(op)->handle = 0;
	(void)tn_gpu_start(true); /* its text is not the answer */
	pthread_mutex_lock(&lock);
	tn_list_push_back(&gates, &g->node);
	pthread_mutex_unlock(&lock);
	if (g->deadline_ns != TN_TIME_NEVER)
		tn_ctx_timer_set(g->ctx, &g->timer, g->deadline_ns);
	status = tn_gpu_when(op->stream, is_event, stream_came, g);
	if (status == TERN_OK || !take_back(g))
		return TERN_OK; /* g and op may be gone */
	tn_op_abort(op);
	gate_end(g);
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
