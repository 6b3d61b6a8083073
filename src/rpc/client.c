/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client end of RPC on one link: a window of call slots, one channel, one deadline timer.
 *
 * A slot's life (written by the function named):
 *
 *   FREE -> ACTIVE (tern_rpc_call) -> FREE     answered before the deadline
 *                                  -> ZOMBIE   given up: its deadline passed, or the client was closed and
 *                                              it has sinks. CANCEL is sent, now and then again, until
 *                                              CANCEL_ACK or the late answer comes; a call with sinks keeps
 *                                              its op until then. Not before the request has left: one that
 *                                              overtakes it would be acknowledged as that of no call
 *
 *   open -> refusing (tern_rpc_close began) -> closing (no sink-less call is left) -> over
 *
 * A closed client lingers while calls with sinks are ZOMBIE; the last of them, or the channel's end, ends it.
 * A slot is reused only when its request message has left too (sending == false), because the message
 * is built inside the slot. Lock: rpc->lock, never held across tern_sendv or a completion.
 * Tests: tests/unit/rpc/rpc_test.c, close_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/os.h"
#include "base/time.h"
#include "channel/dispatch.h"
#include "channel/op.h"
#include "rpc/rpc.h"

#define CANCEL_RETRY_NS 1000000u   /* a CANCEL that found no room */
#define CANCEL_AGAIN_NS 100000000u /* one that nobody answered */

typedef enum call_state { CALL_FREE, CALL_ACTIVE, CALL_ZOMBIE } call_state;

typedef struct call {
	tern_rpc *rpc;
	call_state state;
	bool sending; /* send_op in flight: head and args are read by the channel */
	bool cancel_sending;
	bool has_sinks;
	tern_status why; /* ZOMBIE: the result */
	uint64_t seq;
	uint64_t deadline_ns; /* UINT64_MAX = none; ZOMBIE: when CANCEL goes (again) */
	tern_op *op;          /* NULL once completed */
	void *answer;
	uint64_t answer_capacity;
	tern_op send_op;
	tern_op cancel_op;
	uint8_t *args_copy; /* arguments that don't fit inline */
	uint8_t cancel[TN_RPC_REPLY_BYTES];
	uint8_t head[TN_RPC_REQUEST_BYTES_MAX];
	uint8_t args[TN_RPC_INLINE_BYTES];
} call;

struct tern_rpc {
	tern_ctx *ctx;
	tern_channel *channel;
	tn_rpc_counters *counters;
	pthread_mutex_t lock;
	tn_rpc_client_id id;
	uint64_t next_seq;
	uint64_t low_water; /* every slot below is FREE */
	uint64_t default_timeout_ns;
	tern_status status;  /* why no call is accepted any more */
	tern_status ended;   /* of the channel: nothing can be sent any more */
	bool closing;        /* the handle is gone; ends with the last call that has sinks */
	bool over;           /* by end_client, or about to be */
	uint32_t sink_calls; /* calls with sinks that are not FREE */
	uint32_t refs;       /* 1 for the owner + messages in flight */
	bool done_sending;
	tern_op done_op;
	uint8_t done_msg[TN_RPC_REPLY_BYTES];
	tn_ctx_timer timer;
	uint64_t timer_at; /* UINT64_MAX = not set */
	call calls[TN_RPC_WINDOW];
};

static void rpc_unref(tern_rpc *rpc, uint32_t n)
{
	bool last;

	pthread_mutex_lock(&rpc->lock);
	TN_ASSERT(rpc->refs >= n);
	rpc->refs -= n;
	last = rpc->refs == 0;
	pthread_mutex_unlock(&rpc->lock);
	if (!last)
		return;
	for (unsigned i = 0; i < TN_RPC_WINDOW; i++)
		free(rpc->calls[i].args_copy);
	pthread_mutex_destroy(&rpc->lock);
	free(rpc);
}

/* Lock held: the slot is FREE in the window's eyes once nothing of it is in use any more. */
static bool call_idle(const call *c)
{
	return c->state == CALL_FREE && !c->sending && !c->cancel_sending;
}

/* Lock held. Every change of a call's state goes through here. */
static void call_set_state(call *c, call_state state)
{
	TN_ASSERT(state != CALL_ZOMBIE || c->state == CALL_ACTIVE);
	TN_ASSERT(state != CALL_ACTIVE || c->state == CALL_FREE);
	if (c->has_sinks && state == CALL_ACTIVE)
		c->rpc->sink_calls++;
	if (c->has_sinks && state == CALL_FREE && c->state != CALL_FREE) {
		TN_ASSERT(c->rpc->sink_calls > 0);
		c->rpc->sink_calls--;
	}
	c->state = state;
}

/* Lock held: is this the moment to end a closed client? True once: then end_client after unlocking. */
static bool take_end(tern_rpc *rpc)
{
	if (!rpc->closing || rpc->over || rpc->sink_calls)
		return false;
	rpc->over = true;
	return true;
}

/* The timer first: its run sends through the channel. Drops the owner's reference. */
static void end_client(tern_rpc *rpc)
{
	tn_ctx_timer_cancel(rpc->ctx, &rpc->timer);
	tern_channel_close(rpc->channel);
	rpc_unref(rpc, 1);
}

/* Lock held. */
static void arm_timer(tern_rpc *rpc, uint64_t at_ns)
{
	if (at_ns >= rpc->timer_at || rpc->over)
		return;
	rpc->timer_at = at_ns;
	tn_ctx_timer_set(rpc->ctx, &rpc->timer, at_ns);
}

static void advance_low_water(tern_rpc *rpc)
{
	while (rpc->low_water < rpc->next_seq && call_idle(&rpc->calls[rpc->low_water % TN_RPC_WINDOW]))
		rpc->low_water++;
}

/* Lock held: give the call's op up for completion by the caller (outside of the lock). */
static tern_op *call_take_op(call *c)
{
	tern_op *op = c->op;

	c->op = NULL;
	return op;
}

static void on_sent(tern_op *op, void *arg)
{
	call *c = arg;
	tern_rpc *rpc = c->rpc;
	tern_status status = op->status; /* the slot, op included, may be another call's after the unlock */
	tern_op *user = NULL;
	bool end;

	pthread_mutex_lock(&rpc->lock);
	c->sending = false;
	free(c->args_copy);
	c->args_copy = NULL;
	if (status != TERN_OK && c->state != CALL_FREE) {
		/* Not accepted by the server, or the channel is gone: nothing can touch the sinks through it. */
		call_set_state(c, CALL_FREE);
		user = call_take_op(c);
	} else if (c->state == CALL_ZOMBIE) { /* its CANCEL waited for this */
		c->deadline_ns = tn_ctx_now(rpc->ctx);
		arm_timer(rpc, c->deadline_ns);
	}
	advance_low_water(rpc);
	end = take_end(rpc);
	pthread_mutex_unlock(&rpc->lock);
	if (user)
		tn_op_complete(rpc->ctx, user, status, 0, tern_detail());
	if (end)
		end_client(rpc);
	rpc_unref(rpc, 1);
}

static void on_cancel_sent(tern_op *op, void *arg)
{
	call *c = arg;
	tern_rpc *rpc = c->rpc;

	(void)op;
	pthread_mutex_lock(&rpc->lock);
	c->cancel_sending = false;
	advance_low_water(rpc);
	pthread_mutex_unlock(&rpc->lock);
	rpc_unref(rpc, 1);
}

static void on_done_sent(tern_op *op, void *arg)
{
	tern_rpc *rpc = arg;

	(void)op;
	pthread_mutex_lock(&rpc->lock);
	rpc->done_sending = false;
	pthread_mutex_unlock(&rpc->lock);
	rpc_unref(rpc, 1);
}

/* Tell the server to forget large answers. Best effort: the next request carries the mark as well. */
static void send_done(tern_rpc *rpc)
{
	tn_rpc_reply_head head = {.type = TN_RPC_DONE};

	pthread_mutex_lock(&rpc->lock);
	if (rpc->done_sending || rpc->ended != TERN_OK || rpc->over) {
		pthread_mutex_unlock(&rpc->lock);
		return;
	}
	rpc->done_sending = true;
	rpc->refs++;
	head.low_water = rpc->low_water;
	tn_rpc_reply_encode(rpc->done_msg, &head);
	pthread_mutex_unlock(&rpc->lock);
	tern_op_init(&rpc->done_op, on_done_sent, rpc);
	if (tern_send(rpc->channel, rpc->done_msg, sizeof(rpc->done_msg), &rpc->done_op) != TERN_OK)
		on_done_sent(&rpc->done_op, rpc);
}

static tern_status copy_answer(call *c, const tn_rpc_reply_head *head, const void *data, uint64_t *length)
{
	*length = 0;
	if (head->status != TERN_OK)
		return head->status == TERN_AGAIN || head->status == TERN_BUSY ? TERN_E_LIMIT : head->status;
	*length = head->bytes;
	if (head->bytes > c->answer_capacity) {
		tn_fail(TERN_E_TRUNCATED,
			"the answer has %llu bytes, the caller's buffer %llu: pass a larger one",
			(unsigned long long)head->bytes, (unsigned long long)c->answer_capacity);
		return TERN_E_TRUNCATED;
	}
	if (head->bytes)
		memcpy(c->answer, data, head->bytes);
	return TERN_OK;
}

/* Lock held: the result of a call that is answered or acknowledged; text is for tern_detail(). */
static tern_status call_result(call *c, const tn_rpc_reply_head *head, const void *data, uint64_t *length,
			       char *text, size_t text_bytes)
{
	tern_status status;

	*length = 0;
	if (c->state == CALL_ZOMBIE || head->type == TN_RPC_CANCEL_ACK) {
		status = c->state == CALL_ZOMBIE ? c->why : TERN_E_DEADLINE;
		snprintf(text, text_bytes, "%s; the server let go of its sinks",
			 status == TERN_E_FLUSHED ? "the RPC client was closed"
						  : "the call's deadline passed");
		return status;
	}
	status = copy_answer(c, head, data, length);
	if (head->status != TERN_OK)
		snprintf(text, text_bytes, "%.*s", (int)TN_MIN(head->bytes, text_bytes - 1),
			 (const char *)data);
	else if (status != TERN_OK)
		snprintf(text, text_bytes, "%s", tern_detail());
	return status;
}

static void on_answer(tern_rpc *rpc, const tn_rpc_reply_head *head, const void *data)
{
	call *c = &rpc->calls[head->seq % TN_RPC_WINDOW];
	tern_ctx *ctx = rpc->ctx;
	char detail[256] = "";
	tern_status status;
	uint64_t length;
	tern_op *user;
	bool end;

	pthread_mutex_lock(&rpc->lock);
	if (c->state == CALL_FREE || c->seq != head->seq) {
		pthread_mutex_unlock(&rpc->lock); /* a duplicate: its call is over */
		return;
	}
	status = call_result(c, head, data, &length, detail, sizeof(detail));
	call_set_state(c, CALL_FREE);
	user = call_take_op(c);
	advance_low_water(rpc);
	end = take_end(rpc);
	pthread_mutex_unlock(&rpc->lock);
	atomic_fetch_add_explicit(&rpc->counters->answers, 1, memory_order_relaxed);
	if (head->bytes >= TN_RPC_LARGE_BYTES && !end)
		send_done(rpc);
	if (end)
		end_client(rpc);
	if (user)
		tn_op_complete(ctx, user, status, length, detail[0] ? detail : NULL);
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	tern_rpc *rpc = arg;
	tn_rpc_reply_head head;
	const void *data;

	(void)channel;
	if (!tn_rpc_reply_decode(msg, bytes, &head, &data))
		return; /* the server's bug or malice: the deadline ends the call */
	if (head.type == TN_RPC_RESPONSE || head.type == TN_RPC_CANCEL_ACK)
		on_answer(rpc, &head, data);
}

static void give_up(tern_rpc *rpc, call *c, tern_status why, const char *text);

/*
 * Complete every call with status; no more are accepted. At a close (the channel lives) calls with sinks
 * are only given up: they complete once the server has let go.
 */
static void fail_all(tern_rpc *rpc, tern_status status, const char *detail, bool close)
{
	char text[TN_DETAIL_MAX]; /* the callbacks may fail at something and so change tern_detail() */
	bool end;

	snprintf(text, sizeof(text), "%s", detail);
	pthread_mutex_lock(&rpc->lock);
	rpc->refs++; /* a completion may close the client */
	if (rpc->status == TERN_OK)
		rpc->status = status;
	if (!close)
		rpc->ended = status;
	for (uint64_t seq = rpc->low_water; seq < rpc->next_seq; seq++) {
		call *c = &rpc->calls[seq % TN_RPC_WINDOW];
		tern_status why = c->state == CALL_ZOMBIE ? c->why : status;
		tern_op *user;

		if (c->state == CALL_FREE || c->seq != seq)
			continue;
		if (c->has_sinks && rpc->ended == TERN_OK) {
			if (c->state == CALL_ACTIVE)
				give_up(rpc, c, status, text);
			continue;
		}
		call_set_state(c, CALL_FREE);
		user = call_take_op(c);
		if (!user)
			continue;
		pthread_mutex_unlock(&rpc->lock);
		tn_op_complete(rpc->ctx, user, why, 0, text);
		pthread_mutex_lock(&rpc->lock);
	}
	advance_low_water(rpc);
	if (close)
		rpc->closing = true;
	end = take_end(rpc);
	pthread_mutex_unlock(&rpc->lock);
	if (end)
		end_client(rpc);
	rpc_unref(rpc, 1);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	(void)channel;
	fail_all(arg, status, tern_detail(), false);
}

static void send_cancel(call *c)
{
	tn_rpc_reply_head head = {.type = TN_RPC_CANCEL, .seq = c->seq};

	tn_rpc_reply_encode(c->cancel, &head);
	tern_op_init(&c->cancel_op, on_cancel_sent, c);
	if (tern_send(c->rpc->channel, c->cancel, sizeof(c->cancel), &c->cancel_op) != TERN_OK) {
		pthread_mutex_lock(&c->rpc->lock);
		c->deadline_ns =
			tn_ctx_now(c->rpc->ctx) + CANCEL_RETRY_NS; /* the slot is ours: cancel_sending */
		arm_timer(c->rpc, c->deadline_ns);
		pthread_mutex_unlock(&c->rpc->lock);
		on_cancel_sent(&c->cancel_op, c);
	}
}

/*
 * Lock held, free meanwhile: nobody waits for the result of an ACTIVE call any more (without sinks it ends
 * now, with `why`), or a ZOMBIE's CANCEL was not answered: send it (again).
 */
static void give_up(tern_rpc *rpc, call *c, tern_status why, const char *text)
{
	tern_op *user = NULL;
	bool cancel = false;

	if (c->state == CALL_ACTIVE) {
		call_set_state(c, CALL_ZOMBIE);
		c->why = why;
		if (!c->has_sinks)
			user = call_take_op(c);
	}
	/* One that is still being sent is woken by on_sent. */
	c->deadline_ns = c->sending ? UINT64_MAX : tn_ctx_now(rpc->ctx) + CANCEL_AGAIN_NS;
	arm_timer(rpc, c->deadline_ns);
	if (!c->sending && !c->cancel_sending && rpc->ended == TERN_OK) {
		c->cancel_sending = cancel = true;
		rpc->refs++;
	}
	pthread_mutex_unlock(&rpc->lock);
	if (cancel)
		send_cancel(c);
	if (user)
		tn_op_complete(rpc->ctx, user, why, 0, text);
	pthread_mutex_lock(&rpc->lock);
}

/* Lock held, free meanwhile. */
static void expire(tern_rpc *rpc, call *c)
{
	if (c->state == CALL_ACTIVE)
		atomic_fetch_add_explicit(&rpc->counters->deadlines, 1, memory_order_relaxed);
	give_up(rpc, c, TERN_E_DEADLINE, "the call's deadline passed without an answer");
}

static void on_timer(tn_ctx_timer *timer)
{
	tern_rpc *rpc = (tern_rpc *)((char *)timer - offsetof(tern_rpc, timer));
	uint64_t now = tn_ctx_now(rpc->ctx);
	uint64_t next = UINT64_MAX;

	pthread_mutex_lock(&rpc->lock);
	rpc->timer_at = UINT64_MAX;
	rpc->refs++; /* completions may close the client */
	for (uint64_t seq = rpc->low_water; seq < rpc->next_seq; seq++) {
		call *c = &rpc->calls[seq % TN_RPC_WINDOW];

		if (c->seq != seq || c->state == CALL_FREE)
			continue;
		if (c->deadline_ns <= now)
			expire(rpc, c);
		/* the lock was free meanwhile: is it still that call? */
		if (c->seq == seq && c->state != CALL_FREE && c->deadline_ns < next)
			next = c->deadline_ns;
	}
	if (next != UINT64_MAX && rpc->ended == TERN_OK)
		arm_timer(rpc, next);
	pthread_mutex_unlock(&rpc->lock);
	rpc_unref(rpc, 1);
}

tern_status tern_rpc_open(tern_link *link, tern_rpc **out)
{
	tern_channel_params params = {.on_message = on_message,
				      .on_closed = on_closed,
				      .message_bytes_max = TERN_RPC_INLINE_MAX + TN_RPC_REQUEST_BYTES_MAX};
	tn_rpc_server *server;
	tern_status status;
	tern_rpc *rpc;

	*out = NULL;
	server = tn_rpc_server_get(tern_link_ctx(link));
	rpc = calloc(1, sizeof(*rpc));
	if (!rpc || !server) {
		free(rpc);
		return tn_fail(TERN_E_NOMEM, "no memory for an RPC client (%zu bytes)", sizeof(*rpc));
	}
	rpc->ctx = tern_link_ctx(link);
	rpc->counters = tn_rpc_counters_of(server);
	pthread_mutex_init(&rpc->lock, NULL);
	rpc->refs = 1;
	rpc->timer_at = UINT64_MAX;
	rpc->timer.run = on_timer;
	rpc->default_timeout_ns = tn_opt_u64(tn_ctx_options(rpc->ctx), tn_rpc_options, "timeout");
	tn_os_random(rpc->id.bytes, sizeof(rpc->id.bytes));
	for (unsigned i = 0; i < TN_RPC_WINDOW; i++)
		rpc->calls[i].rpc = rpc;
	params.arg = rpc;
	status = tern_channel_open(link, TN_RPC_SERVICE, &params, &rpc->channel);
	if (status != TERN_OK) {
		rpc_unref(rpc, 1);
		return status;
	}
	*out = rpc;
	return TERN_OK;
}

void tern_rpc_close(tern_rpc *rpc)
{
	if (!rpc)
		return;
	TN_ASSERT(!rpc->closing);
	fail_all(rpc, TERN_E_FLUSHED, "the RPC client was closed", true);
}

static tern_status check_params(const tern_rpc_call_params *params)
{
	if (params->method == 0 || params->sink_count > TERN_RPC_SINKS_MAX ||
	    (params->sink_count && !params->sinks) || (params->args_bytes && !params->args))
		return tn_fail(TERN_E_INVALID,
			       "rpc call: method must not be 0, at most %d sinks, args not NULL",
			       TERN_RPC_SINKS_MAX);
	if (params->args_bytes > TERN_RPC_INLINE_MAX)
		return tn_fail(
			TERN_E_TOO_LARGE,
			"arguments of %llu bytes: at most %u go inline, put bulk through sinks or tern_put",
			(unsigned long long)params->args_bytes, TERN_RPC_INLINE_MAX);
	return TERN_OK;
}

/* Lock held: fill slot c as call seq. The message is built in the slot; args are copied. */
static void call_fill(tern_rpc *rpc, call *c, const tern_rpc_call_params *params, uint64_t timeout_ns,
		      uint8_t *copy, tern_op *op)
{
	tn_rpc_request_head head = {.method = params->method,
				    .sink_count = (uint16_t)params->sink_count,
				    .seq = rpc->next_seq++,
				    .client = rpc->id,
				    .low_water = rpc->low_water,
				    .timeout_ns = timeout_ns,
				    .args_bytes = params->args_bytes};

	c->has_sinks = params->sink_count > 0; /* counted by the state */
	call_set_state(c, CALL_ACTIVE);
	c->sending = true;
	c->seq = head.seq;
	c->deadline_ns = tn_deadline(tn_ctx_now(rpc->ctx), timeout_ns);
	c->op = op;
	c->answer = params->answer;
	c->answer_capacity = params->answer ? params->answer_capacity : 0;
	c->args_copy = copy;
	if (!copy && params->args_bytes)
		memcpy(c->args, params->args, params->args_bytes);
	tn_rpc_request_encode(c->head, &head, params->sinks);
	rpc->refs++;
	if (c->deadline_ns != UINT64_MAX)
		arm_timer(rpc, c->deadline_ns);
}

/* The channel did not accept the request: undo call_fill. */
static tern_status call_undo(tern_rpc *rpc, call *c, tern_status status)
{
	bool ours;

	pthread_mutex_lock(&rpc->lock);
	ours = c->op != NULL; /* else a channel end or the deadline completed it already */
	c->op = NULL;
	call_set_state(c, CALL_FREE);
	c->sending = false;
	free(c->args_copy);
	c->args_copy = NULL;
	advance_low_water(rpc);
	pthread_mutex_unlock(&rpc->lock);
	rpc_unref(rpc, 1);
	return ours ? status : TERN_OK;
}

tern_status tern_rpc_call(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op)
{
	uint64_t timeout_ns = op->timeout_ns ? op->timeout_ns : rpc->default_timeout_ns;
	tern_status status = check_params(params);
	uint8_t *copy = NULL;
	tern_iovec iov[2];
	call *c;

	if (status != TERN_OK)
		return status;
	if (params->args_bytes > TN_RPC_INLINE_BYTES) {
		copy = malloc(params->args_bytes);
		if (!copy)
			return tn_fail(TERN_E_NOMEM, "no memory for %llu bytes of arguments",
				       (unsigned long long)params->args_bytes);
		memcpy(copy, params->args, params->args_bytes);
		atomic_fetch_add_explicit(&rpc->counters->copies, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&rpc->counters->copy_bytes, params->args_bytes,
					  memory_order_relaxed);
	}
	status = tn_op_begin(op);
	if (status != TERN_OK) {
		free(copy);
		return status;
	}
	pthread_mutex_lock(&rpc->lock);
	advance_low_water(rpc);
	c = &rpc->calls[rpc->next_seq % TN_RPC_WINDOW];
	status = rpc->status != TERN_OK                            ? rpc->status
		 : rpc->next_seq - rpc->low_water >= TN_RPC_WINDOW ? TERN_AGAIN
								   : TERN_OK;
	if (status != TERN_OK) {
		pthread_mutex_unlock(&rpc->lock);
		free(copy);
		tn_op_abort(op);
		return status == TERN_AGAIN
			       ? status
			       : tn_fail(status, "the RPC client has ended: %s", tern_status_text(status));
	}
	TN_ASSERT(call_idle(c));
	call_fill(rpc, c, params, timeout_ns, copy, op);
	pthread_mutex_unlock(&rpc->lock);
	atomic_fetch_add_explicit(&rpc->counters->calls, 1, memory_order_relaxed);

	iov[0] = (tern_iovec){c->head, TN_RPC_REQUEST_BYTES + params->sink_count * TN_RPC_SINK_BYTES};
	iov[1] = (tern_iovec){copy ? copy : c->args, params->args_bytes};
	tern_op_init(&c->send_op, on_sent, c);
	c->send_op.flags = TN_OP_INLINE; /* no lock of ours is held */
	status = tern_sendv(rpc->channel, iov, params->args_bytes ? 2 : 1, &c->send_op);
	if (status == TERN_OK)
		return TERN_OK;
	status = call_undo(rpc, c, status);
	if (status != TERN_OK)
		tn_op_abort(op);
	return status;
}

tern_status tern_rpc_call_wait(tern_rpc *rpc, const tern_rpc_call_params *params, uint64_t timeout_ns,
			       uint64_t *answer_bytes)
{
	tern_ctx *ctx = rpc->ctx;
	uint64_t end, now = tn_ctx_now(ctx);
	tern_status status;
	tern_op op;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	tern_op_init(&op, NULL, NULL);
	if (!timeout_ns)
		timeout_ns = rpc->default_timeout_ns;
	end = tn_deadline(now, timeout_ns);
	for (;;) { /* the deadline covers waiting for a place in the window too */
		op.timeout_ns = end - now;
		status = tern_rpc_call(rpc, params, &op);
		if (status != TERN_AGAIN)
			break;
		tern_ctx_wait(ctx, 1000000);
		now = tn_ctx_now(ctx);
		if (now >= end)
			return tn_fail(TERN_E_DEADLINE, "too many calls were in flight until the deadline");
	}
	if (status != TERN_OK)
		return status;
	do /* op is on the stack: whatever waiting says, it stays until its completion */
		status = tern_op_wait(ctx, &op, 0);
	while (tern_op_test(&op) == TERN_AGAIN);
	if (answer_bytes)
		*answer_bytes = op.length;
	return status;
}
