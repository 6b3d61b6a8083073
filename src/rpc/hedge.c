/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hedged calls: a second copy of an idempotent call after a delay; the first answer is the call's.
 *
 *   copy 0 in flight --delay, a token of the budget--> both in flight --an answer--> decided: the other is cancelled
 *          \--an answer, or a failure: decided                    \--one fails: the other decides
 *
 *   in_flight   copies whose operation has not completed
 *   holds       in_flight + the timer while it is set + functions that are at work on the hedge: freed at 0
 *   completed when ready, and with sinks not before in_flight == 0: a server may write until it lets go
 *
 * The second copy's answer goes into memory of the hedge and is copied when it wins, after copy 0 can no longer write
 * into the caller's (answers come in one thread). Threads: the client's lock guards it. Tests:
 * tests/unit/rpc/hedge_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/time.h"
#include "rpc/client.h"

typedef struct rpc_hedge rpc_hedge;

typedef struct rpc_copy {
	tern_op op;
	rpc_hedge *hedge;
	tern_rpc *rpc;
	bool flying;
} rpc_copy;

struct rpc_hedge {
	tn_list node; /* in rpc->hedges until it is decided */
	tern_rpc *rpc;
	tern_op *user; /* NULL once completed */
	rpc_copy copies[2];
	tn_ctx_timer timer;
	bool timer_set;
	bool decided; /* nothing that comes later counts */
	bool ready;   /* decided, and what belongs to it is in the caller's memory */
	uint32_t in_flight, holds;
	uint64_t deadline_ns;
	tern_status status;
	uint64_t length;
	char text[TN_DETAIL_MAX];
	tern_rpc_call_params params; /* args and sinks are those below */
	tern_rpc_sink sinks[2][TERN_RPC_SINKS_MAX];
	void *second_answer;
	uint8_t args[];
};

/* Lock held, released: complete and free what is ripe. Takes one hold. */
static void settle(rpc_hedge *h)
{
	tern_rpc *rpc = h->rpc;
	tern_ctx *ctx = rpc->ctx;
	tern_op *user = NULL;
	bool over;

	TN_ASSERT(h->holds > 0);
	if (h->ready && (h->params.sink_count == 0 || h->in_flight == 0)) {
		user = h->user;
		h->user = NULL;
	}
	if (user) {
		rpc_lock_drop(&rpc->lock);
		tn_op_complete(ctx, user, h->status, h->length, h->text[0] ? h->text : NULL);
		rpc_lock_take(&rpc->lock);
	}
	over = --h->holds == 0;
	rpc_lock_drop(&rpc->lock);
	if (!over)
		return;
	TN_ASSERT(!h->user && h->in_flight == 0 && !h->timer_set);
	free(h->second_answer);
	free(h);
	tn_rpc_unref(rpc);
}

/* Lock held, free meanwhile: the call has its outcome. */
static void decide(rpc_hedge *h, tern_status status, uint64_t length, const char *text, int winner)
{
	tern_rpc *rpc = h->rpc;
	bool timer = h->timer_set;

	h->decided = true;
	h->status = status;
	h->length = length;
	snprintf(h->text, sizeof(h->text), "%s", text);
	tn_list_remove(&h->node);
	h->timer_set = false;
	rpc_lock_drop(&rpc->lock);
	if (timer)
		tn_ctx_timer_cancel(rpc->ctx, &h->timer);
	for (unsigned i = 0; i < 2; i++) /* one that has completed is not found */
		if ((int)i != winner && h->copies[i].rpc)
			tern_rpc_cancel(h->copies[i].rpc, &h->copies[i].op);
	if (winner == 1) {
		if (status == TERN_OK && length)
			memcpy(h->params.answer, h->second_answer, length);
		TN_RPC_COUNT(rpc->counters, hedge_wins, 1);
	}
	if (h->params.hedge_won)
		*h->params.hedge_won = winner == 1;
	rpc_lock_take(&rpc->lock);
	h->holds -= timer;
	h->ready = true;
}

/* Did a server say something about the call itself? */
static bool is_answer(tern_status status)
{
	switch (status) {
	case TERN_E_DEADLINE:
	case TERN_E_CANCELED:
	case TERN_E_FLUSHED:
	case TERN_E_INDETERMINATE:
	case TERN_E_OVERLOAD:
		return false;
	default:
		return tern_status_radius(status) != TERN_RADIUS_PATH &&
		       tern_status_radius(status) != TERN_RADIUS_PEER;
	}
}

/* Its hold is the copy's: settle takes it. */
static void on_copy(tern_op *op, void *arg)
{
	rpc_copy *copy = arg;
	rpc_hedge *h = copy->hedge;
	int index = copy == &h->copies[1];
	char text[TN_DETAIL_MAX];

	snprintf(text, sizeof(text), "%s", op->status == TERN_OK ? "" : tern_detail());
	rpc_lock_take(&h->rpc->lock);
	TN_ASSERT(h->in_flight > 0);
	h->in_flight--;
	copy->flying = false;
	if (!h->decided &&
	    (is_answer(op->status) || h->in_flight == 0 || (index == 0 && op->status == TERN_E_FLUSHED)))
		decide(h, op->status, op->length, text, is_answer(op->status) ? index : 0);
	settle(h);
}

static void take_off(rpc_hedge *h, unsigned i, tern_rpc *rpc, uint64_t timeout_ns)
{
	rpc_copy *copy = &h->copies[i];

	copy->hedge = h;
	copy->rpc = rpc;
	copy->flying = true;
	tern_op_init(&copy->op, on_copy, copy);
	copy->op.timeout_ns = timeout_ns;
	h->in_flight++;
	h->holds++;
}

/* Lock held: the copy was not accepted after all. */
static void ground(rpc_hedge *h, unsigned i)
{
	h->copies[i].flying = false;
	h->in_flight--;
	h->holds--;
}

/* Lock held. */
static bool may_hedge(rpc_hedge *h)
{
	tern_rpc *rpc = h->rpc;

	if (h->decided || rpc->status != TERN_OK || rpc->budget < 10)
		return false;
	if (h->params.answer_capacity && !h->second_answer)
		h->second_answer = malloc(h->params.answer_capacity);
	if (h->params.answer_capacity && !h->second_answer)
		return false;
	rpc->budget -= 10;
	return true;
}

static void on_timer(tn_ctx_timer *timer)
{
	rpc_hedge *h = TN_CONTAINER_OF(timer, rpc_hedge, timer);
	tern_rpc *rpc = h->rpc;
	tern_rpc *to = h->params.hedge_to ? h->params.hedge_to : rpc;
	tern_rpc_call_params params = h->params;
	tern_status status;
	bool send;

	rpc_lock_take(&rpc->lock);
	if (!h->timer_set) { /* decided meanwhile, and whoever did it waits for us */
		rpc_lock_drop(&rpc->lock);
		return;
	}
	h->timer_set = false; /* its hold is ours now */
	send = may_hedge(h);
	if (send)
		take_off(h, 1, to, tn_time_left(tn_ctx_now(rpc->ctx), h->deadline_ns) + 1);
	rpc_lock_drop(&rpc->lock);
	if (send) {
		params.sinks = h->sinks[1];
		params.answer = h->second_answer;
		TN_RPC_COUNT(rpc->counters, hedges, 1);
		status = tn_rpc_call_one(to, &params, &h->copies[1].op);
		rpc_lock_take(&rpc->lock);
		if (status != TERN_OK)
			ground(h, 1);
		/* decided while it was on its way out: then nobody has cancelled it */
		if (status == TERN_OK && h->decided && h->copies[1].flying) {
			rpc_lock_drop(&rpc->lock);
			tern_rpc_cancel(to, &h->copies[1].op);
			rpc_lock_take(&rpc->lock);
		}
	} else {
		rpc_lock_take(&rpc->lock);
	}
	if (!h->decided && h->in_flight == 0) /* copy 0 failed while this one was not accepted */
		decide(h, h->copies[0].op.status, 0, "the call failed, and its second copy could not be sent",
		       0);
	settle(h);
}

static rpc_hedge *hedge_new(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op)
{
	rpc_hedge *h = calloc(1, sizeof(*h) + params->args_bytes);

	if (!h)
		return NULL;
	h->rpc = rpc;
	h->user = op;
	h->timer.run = on_timer;
	h->params = *params;
	h->params.answer_capacity = params->answer ? params->answer_capacity : 0;
	if (params->args_bytes)
		memcpy(h->args, params->args, params->args_bytes);
	h->params.args = h->args;
	for (unsigned i = 0; i < params->sink_count; i++) {
		h->sinks[0][i] = params->sinks[i];
		h->sinks[1][i] = params->hedge_sinks[i];
	}
	h->params.sinks = h->sinks[0];
	return h;
}

/* When to send the second copy; 0: never. */
static uint64_t delay_of(tern_rpc *rpc, const tern_rpc_call_params *params)
{
	uint64_t delay = params->hedge_ns;

	if (delay != TERN_RPC_HEDGE_AUTO)
		return delay;
	rpc_lock_take(&rpc->lock);
	delay = rpc->streams[params->service_class] ? rpc->streams[params->service_class]->p95_ns : 0;
	rpc_lock_drop(&rpc->lock);
	return delay;
}

static tern_status first_copy(rpc_hedge *h, uint64_t timeout_ns, uint64_t delay_ns)
{
	tern_rpc *rpc = h->rpc;
	tern_status status;

	h->deadline_ns = tn_deadline(tn_ctx_now(rpc->ctx), timeout_ns);
	rpc_lock_take(&rpc->lock);
	rpc->refs++; /* the hedge's */
	tn_list_push_back(&rpc->hedges, &h->node);
	h->holds = 1; /* ours */
	take_off(h, 0, rpc, timeout_ns);
	rpc_lock_drop(&rpc->lock);
	status = tn_rpc_call_one(rpc, &h->params, &h->copies[0].op);
	rpc_lock_take(&rpc->lock);
	if (status != TERN_OK) {
		ground(h, 0);
		tn_list_remove(&h->node);
		h->user = NULL; /* not accepted */
	} else if (!h->decided) {
		h->timer_set = true;
		h->holds++;
		tn_ctx_timer_set(rpc->ctx, &h->timer, tn_deadline(tn_ctx_now(rpc->ctx), delay_ns));
	}
	settle(h);
	return status;
}

tern_status tn_rpc_call_hedged(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op)
{
	uint64_t timeout_ns = op->timeout_ns ? op->timeout_ns : rpc->default_timeout_ns;
	uint64_t delay_ns = delay_of(rpc, params);
	tern_status status;
	rpc_hedge *h;

	if (params->hedge_to && params->hedge_to->ctx != rpc->ctx)
		return tn_fail(TERN_E_INVALID, "a hedged call's clients are of one context");
	if (params->hedge_won)
		*params->hedge_won = 0;
	if (delay_ns == 0 || delay_ns >= timeout_ns)
		return tn_rpc_call_one(rpc, params, op);
	TN_TRY(tn_op_begin(op));
	h = hedge_new(rpc, params, op);
	status = h ? first_copy(h, timeout_ns, delay_ns)
		   : tn_fail(TERN_E_NOMEM, "no memory for a hedged call");
	if (status != TERN_OK)
		tn_op_abort(op);
	return status;
}

tern_status tn_rpc_hedge_cancel(tern_rpc *rpc, tern_op *op)
{
	rpc_hedge *found = NULL;

	rpc_lock_take(&rpc->lock);
	TN_LIST_FOREACH(node, &rpc->hedges) {
		rpc_hedge *h = TN_LIST_ENTRY(node, rpc_hedge, node);

		if (h->user == op)
			found = h;
	}
	if (!found) {
		rpc_lock_drop(&rpc->lock);
		return TERN_E_NOT_FOUND;
	}
	found->holds++;
	decide(found, TERN_E_CANCELED, 0, "the call was cancelled", -1);
	settle(found);
	return TERN_OK;
}
