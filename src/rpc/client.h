/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the RPC client.
 *
 *   client  tern_rpc: up to one stream per class, the link that they go over, one timer
 *   stream  the calls of one class: a window of slots, and the pipe that they go over at present
 *   pipe    one channel of a stream; pipes of a stream are numbered: the number is the session on the wire
 *   line    the link of a client that dials its own: lost, it is dialed again (line.c)
 *   call    a slot of a stream; its life is drawn in call.c
 *
 *   low_water <= seq of every live call < low_water + TN_RPC_WINDOW
 *   call.out      a copy is at the server, or on its way, over the stream's present pipe: sinks may be written
 *   call.wants    it waits to be sent over the next pipe; never with out or sending
 *   sink_calls    calls with sinks that are not FREE
 *
 * Threads: any. One lock per client, never held across a function of channels and links, or a completion. What
 * says "free meanwhile" drops it and takes it again; its caller has a reference of the client, because a completion
 * may close it. Tests: tests/unit/rpc.
 */
#ifndef TN_RPC_CLIENT_H
#define TN_RPC_CLIENT_H

#include "base/limits.h"
#include "base/list.h"
#include "base/rand.h"
#include "base/time.h"
#include "channel/op.h"
#include "rpc/server.h"

#define TN_RPC_NEVER_SENT UINT32_MAX

typedef struct rpc_stream rpc_stream;

typedef struct rpc_pipe {
	_Atomic uint32_t refs; /* the stream's + threads that send */
	rpc_stream *stream;
	tern_channel *channel;
	uint32_t session;
	bool ended; /* client's lock */
} rpc_pipe;

typedef enum rpc_call_state { CALL_FREE, CALL_ACTIVE, CALL_ZOMBIE } rpc_call_state;

typedef struct rpc_call {
	rpc_stream *stream;
	rpc_call_state state;
	bool sending; /* send_op in flight: message and args_copy are read by the channel */
	bool cancel_sending;
	bool has_sinks;
	bool idempotent;
	bool out;
	bool wants;
	bool answered;   /* but notifications are missing, or `behind` is read still: */
	uint32_t landed; /* that came over the present pipe */
	uint32_t placed; /* that the answer waits for */
	uint64_t length; /* of that answer */
	tern_status result;
	tern_status why;         /* ZOMBIE: the result */
	uint32_t first, session; /* sent in: TN_RPC_NEVER_SENT, and latest */
	uint32_t tries;
	uint64_t seq;
	bool exact;           /* started_ns is: it may be hedged, or is recorded */
	bool timed;           /* the clock was read for it: what follows holds */
	uint64_t started_ns;  /* if exact, else as tn_ctx_soon */
	uint64_t deadline_ns; /* TN_TIME_NEVER = none */
	uint64_t wake_ns;     /* of the timer: ACTIVE: the deadline; ZOMBIE: when CANCEL goes (again) */
	tern_op *op;          /* NULL once completed */
	void *answer;
	uint64_t answer_capacity;
	uint32_t method, sink_count;
	uint64_t args_bytes, timeout_ns;
	uint8_t *args_copy; /* arguments that don't fit inline */
	/* the last arguments, in the caller's memory: while they leave op does not complete */
	const void *behind;
	uint64_t behind_bytes;
	/* header, sinks, and behind them arguments that fit: one piece */
	uint8_t message[TN_RPC_REQUEST_BYTES_MAX + TN_RPC_INLINE_BYTES];
	/* what a call that leaves and is answered at once does not touch */
	tern_op send_op;
	tern_op cancel_op;
	uint8_t cancel[TN_RPC_REPLY_BYTES];
} rpc_call;

struct rpc_stream {
	tern_rpc *rpc;
	uint8_t service_class;
	rpc_pipe *pipe; /* NULL: none at present */
	bool opening;   /* a thread opens one */
	uint32_t sessions;
	uint64_t flush_ns; /* when calls that want to be sent are tried again, TN_TIME_NEVER */
	uint64_t next_seq;
	uint64_t low_water; /* every slot below is FREE */
	uint64_t p95_ns;    /* of idempotent calls that were answered; 0: none was */
	bool done_sending;
	tern_op done_op;
	uint8_t done_msg[TN_RPC_REPLY_BYTES];
	rpc_call calls[TN_RPC_WINDOW];
};

typedef enum rpc_line_state {
	LINE_BORROWED, /* the user's link: its end is the client's */
	LINE_IDLE,     /* no link, and no call that wants one */
	LINE_DIALING,
	LINE_UP,
	LINE_WAIT,   /* until wake_ns: then dialed again */
	LINE_BROKEN, /* until wake_ns: calls fail at once */
} rpc_line_state;

typedef struct rpc_line {
	rpc_line_state state;
	tern_link *link;
	tern_link *gone; /* it is down, and waits for its last user */
	bool connecting; /* tern_link_connect has not returned */
	bool died_early; /* the link went down before it had */
	uint32_t users;  /* threads that use `link` without the lock */
	uint32_t failures;
	bool missed; /* it was said that nobody answers */
	uint64_t wake_ns;
	tern_status status; /* of the latest failure */
	uint64_t redial_ns, redial_max_ns, breaker, breaker_ns;
	uint64_t timeout_ns;
	char address[TN_ADDRESS_MAX];
	char transports[64];
	tn_work end; /* lets go of the link in the driver's thread */
} rpc_line;

struct tern_rpc {
	tern_ctx *ctx;
	tn_rpc_server *server;
	tn_rpc_counters *counters;
	tn_spans *spans;
	tn_span_kind *call_span;
	rpc_lock lock;
	tn_rpc_client_id id;
	uint64_t default_timeout_ns;
	uint64_t tries_max;
	uint64_t budget, budget_max; /* tenths of a copy */
	tn_rand rng;                 /* jitter */
	tern_status status;          /* why no call is accepted any more */
	tern_status ended;           /* nothing can be sent any more */
	bool closing;                /* the handle is gone; ends with the last call that has sinks */
	bool over;                   /* by tn_rpc_end, or about to be */
	bool orphan;                 /* its context is gone: nothing is left but the handle */
	uint32_t sink_calls;
	uint32_t refs; /* 1 for the owner + messages in flight + pipes + a link of its own + hedges */
	tn_ctx_timer timer;
	uint64_t timer_at;  /* TN_TIME_NEVER = not set */
	tn_rpc_spare spare; /* arguments */
	rpc_stream *streams[TN_RPC_CLASSES];
	rpc_line line;
	tn_list hedges; /* rpc_hedge.node */
	tn_list node;   /* in server->clients */
};

/* ---- client.c ---- */

void tn_rpc_unref(tern_rpc *rpc);
/* Lock held. */
void tn_rpc_arm(tern_rpc *rpc, uint64_t at_ns);
/* Lock held: is this the moment to end a closed client? True once: then tn_rpc_end after unlocking. */
bool tn_rpc_take_end(tern_rpc *rpc);
void tn_rpc_end(tern_rpc *rpc);
/*
 * Complete every call with status; no more are accepted. At a close (the channels live) calls with sinks
 * are only given up: they complete once the server has let go.
 */
void tn_rpc_fail_all(tern_rpc *rpc, tern_status status, const char *detail, bool close);
/* The context ends: end the calls of clients that have no link to tell them. */
void tn_rpc_clients_end(tn_rpc_server *server);
/* tern_rpc_call() without hedging. */
tern_status tn_rpc_call_one(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op);

/* ---- call.c: lock held ---- */

void tn_rpc_call_set_state(rpc_call *c, rpc_call_state state);
/* Nothing of it is in use any more. */
bool tn_rpc_call_idle(const rpc_call *c);
/* Free the slot and complete the operation, if there is one. Free meanwhile. */
void tn_rpc_call_end(rpc_call *c, tern_status status, uint64_t length, const char *text);
/* There will be no link for it: as tn_rpc_call_end, but TERN_E_INDETERMINATE for one that may have been executed. */
void tn_rpc_call_strand(rpc_call *c, tern_status status, const char *text);
/*
 * Nobody waits for the result of an ACTIVE call any more (without sinks it ends now, with `why`), or a ZOMBIE's
 * CANCEL was not answered: send it (again). Free meanwhile.
 */
void tn_rpc_call_give_up(rpc_call *c, tern_status why, const char *text);
/* Send it over the stream's pipe. The lock is released; not TERN_OK: the channel did not take it, and the caller calls
   unpost with the lock held. */
tern_status tn_rpc_call_post(rpc_call *c);
void tn_rpc_call_unpost(rpc_call *c);
/* It was not sent, or may not have been. Free meanwhile. */
void tn_rpc_call_unsent(rpc_call *c, tern_status status, const char *text);

/* Lock held: when it began and when it ends; sets the timer. Once. */
static inline void tn_rpc_call_time(rpc_call *c)
{
	tern_rpc *rpc = c->stream->rpc;

	c->timed = true;
	c->started_ns = tn_ctx_soon(rpc->ctx, c->timeout_ns, &c->exact);
	c->wake_ns = c->deadline_ns = tn_deadline(c->started_ns, c->timeout_ns);
	if (c->deadline_ns != TN_TIME_NEVER)
		tn_rpc_arm(rpc, c->deadline_ns);
}

/* Lock held: is memory of its caller's read? */
static inline bool tn_rpc_call_reads(const rpc_call *c)
{
	return c->behind && c->sending;
}

/* Of its message, before the arguments. */
static inline uint64_t tn_rpc_call_head_bytes(const rpc_call *c)
{
	return TN_RPC_REQUEST_BYTES + c->sink_count * TN_RPC_SINK_BYTES;
}

/* Lock held: the user's operation of a call is over. */
static inline void tn_rpc_call_timed(const rpc_call *c)
{
	const tern_rpc *rpc = c->stream->rpc;

	if (TN_UNLIKELY(tn_spans_on(rpc->spans)))
		tn_spans_add(rpc->spans, rpc->call_span, tn_ctx_then(c->started_ns, c->exact),
			     tn_ctx_now(rpc->ctx), c->method);
}

/* ---- stream.c: lock held ---- */

/* The client's stream of a class; made at first use. NULL: out of memory. */
rpc_stream *tn_rpc_stream_get(tern_rpc *rpc, unsigned service_class);
void tn_rpc_stream_advance(rpc_stream *stream);
/* Make sure of a pipe, if there is a link. Free meanwhile. */
tern_status tn_rpc_stream_connect(rpc_stream *stream);
bool tn_rpc_stream_wants(const rpc_stream *stream);
/* Send what wants to be sent, now or from the timer. Free meanwhile. */
void tn_rpc_stream_flush(rpc_stream *stream);
void tn_rpc_stream_flush_soon(rpc_stream *stream);
/* Calls that are due; returns when the next one is. Free meanwhile. */
uint64_t tn_rpc_stream_tick(rpc_stream *stream, uint64_t now_ns);
/* Nobody has a reference any more. */
void tn_rpc_pipe_end(rpc_pipe *pipe);
/* Lock not held: forget a pipe that the stream has let go. */
static inline void tn_rpc_pipe_unref(rpc_pipe *pipe)
{
	if (TN_UNLIKELY(rpc_refs_drop(&pipe->refs, 1, pipe->stream->rpc->counters->own)))
		tn_rpc_pipe_end(pipe);
}

/* ---- answer.c ---- */

void tn_rpc_on_answer(tern_channel *channel, const void *msg, uint64_t bytes, void *pipe);
/* Why a call was given up, in words. */
const char *tn_rpc_why_text(tern_status why);
/* Lock held, released: an answered call whose arguments have left is over. */
void tn_rpc_call_answered(rpc_call *c);
/* Rows that an answer speaks of are in a sink. */
void tn_rpc_on_landed(tern_channel *channel, uint32_t value, uint64_t bytes, void *pipe);

/* ---- line.c: lock held ---- */

/* The client dials links of its own. */
void tn_rpc_line_begin(tern_rpc *rpc);
/* A link that may be used until put, or NULL. *pipe: what keeps it. */
tern_link *tn_rpc_line_get(tern_rpc *rpc, rpc_pipe **pipe);
/* Lock not held. */
void tn_rpc_line_put(tern_rpc *rpc, rpc_pipe *pipe);
/* A call wants a link: dial unless somebody does. Free meanwhile. */
void tn_rpc_line_kick(tern_rpc *rpc);
/* Timer; returns when it wants to be called again. Free meanwhile. */
uint64_t tn_rpc_line_tick(tern_rpc *rpc, uint64_t now_ns);
/* Lock held: the server answered after failures. */
void tn_rpc_line_answered(tern_rpc *rpc);
/* The pause before try number `failures`, with jitter. */
uint64_t tn_rpc_line_pause(tern_rpc *rpc);
/* Can a lost call wait for another link? */
bool tn_rpc_line_lasts(const tern_rpc *rpc);
/* The client is over: let go of the link and of the owner's reference. Lock not held. */
void tn_rpc_line_end(tern_rpc *rpc);

/* ---- watch.c: of a server's slot, whose lock comes before a client's ---- */
void tn_rpc_clients_waits(tn_ctx_slot *slot, void (*fn)(const tern_wait *wait, void *arg), void *arg);

/* ---- hedge.c ---- */

tern_status tn_rpc_call_hedged(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op);
/* Cancel a hedged call; TERN_E_NOT_FOUND. */
tern_status tn_rpc_hedge_cancel(tern_rpc *rpc, tern_op *op);

#endif
