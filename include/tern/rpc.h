/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote calls with deadlines and bulk sinks. Arguments and answers are small and travel inline in a
 * message; bulk goes one-sided: the caller names registered destination memory (sinks) and the server
 * writes straight into it before it answers.
 *
 * A call is executed at most once: the server keeps a sliding window per client of (sequence -> answer), also
 * after the client's link died, so that a call that is asked for again gets the old answer. One that a server
 * may have executed, and of which it has no record left, ends with TERN_E_INDETERMINATE. Calls marked
 * idempotent are executed again instead, and may be sent twice from the start (hedged). One deadline covers
 * connecting, queueing, wire and execution.
 *
 * A server that has too much to do says so at once (TERN_E_OVERLOAD) instead of letting its clients wait.
 */
#ifndef TERN_RPC_H
#define TERN_RPC_H

#include <tern/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_RPC_SINKS_MAX  8
#define TERN_RPC_INLINE_MAX (256u << 20) /* bytes of arguments or of an answer: refused above */

typedef struct tern_rpc tern_rpc;                 /* client of one server */
typedef struct tern_rpc_request tern_rpc_request; /* one call at the server, until it is answered */

/* Destination memory of a call: a key of the caller's with TERN_ACCESS_WRITE. */
typedef struct tern_rpc_sink {
	tern_key key;
	uint64_t bytes;
} tern_rpc_sink;

/*
 * Service classes. Calls of one class never wait behind those of another in a channel, and a server that has
 * to queue takes LATENCY first, then NORMAL, then BULK (a lower class gets one turn after `rpc.starve` of higher
 * ones). Each class has limits of its own there (options rpc.running_* and rpc.queue_*).
 */
typedef enum tern_rpc_class {
	TERN_RPC_NORMAL = 0,
	TERN_RPC_LATENCY = 1, /* short, somebody waits: an inference pull */
	TERN_RPC_BULK = 2,    /* much, nobody waits for one: training pushes */
} tern_rpc_class;

/* ---- servers ---- */

/*
 * A handler: args are valid until it returns. It answers now or later, from any thread, exactly once
 * (tern_rpc_reply). It must not block: hand long work to a thread of your own. Handlers run from dispatch, one
 * at a time per context.
 */
typedef void (*tern_rpc_handler)(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg);

/* Serve a method on all links of ctx. method: any number but 0; TERN_E_EXISTS if it is served already. Calls of methods
   that were never served wait for them while ctx is younger than rpc.serve_grace. */
tern_status tern_rpc_serve(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg);

/* Zero it, then set what differs. 0 means the option's value. */
typedef struct tern_rpc_limits {
	uint32_t running_max;            /* calls that were handed to handlers and are not answered */
	uint32_t running_client_max;     /* of those, of one client */
	uint64_t queue_bytes_max;        /* arguments that wait, in each class */
	uint64_t queue_client_bytes_max; /* of those, of one client */
	uint32_t queue_calls_max;        /* calls that wait, in each class */
} tern_rpc_limits;
/*
 * The same for a method that is limited apart: it neither uses the room of the others, which share the limits of
 * the options, nor do they use its. What exceeds the running calls waits, clients taking turns; what exceeds
 * the queue is answered with TERN_E_OVERLOAD.
 */
tern_status tern_rpc_serve_limited(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg,
				   const tern_rpc_limits *limits);
/* Stop serving: later calls get TERN_E_NO_METHOD. Waits for handlers that run (so not from one of this
   method's); requests in hand must still be answered. */
void tern_rpc_unserve(tern_ctx *ctx, uint32_t method);

/* The link that brought it; another one after the caller asked again over a new link. */
tern_link *tern_rpc_request_link(const tern_rpc_request *request);
tern_rpc_class tern_rpc_request_class(const tern_rpc_request *request);
/* Sink i of the call, NULL past the last. */
const tern_rpc_sink *tern_rpc_request_sink(const tern_rpc_request *request, unsigned i);
/* Nanoseconds left until the caller's deadline; UINT64_MAX if it has none, 0 if it passed. */
uint64_t tern_rpc_request_time_left(const tern_rpc_request *request);
/* 1: nobody waits for the answer any more (deadline, tern_rpc_cancel or tern_rpc_close at the caller). The handler
   still has to answer, with anything. */
int tern_rpc_request_canceled(const tern_rpc_request *request);
/*
 * Have fn called once from dispatch when the request is cancelled. TERN_E_CANCELED: it is already, fn is not
 * called. fn is not called and does not run any more when tern_rpc_reply() returns, unless that was called from it:
 * so hold no lock that fn takes around tern_rpc_reply().
 */
tern_status tern_rpc_request_on_cancel(tern_rpc_request *request,
				       void (*fn)(tern_rpc_request *request, void *arg), void *arg);
/* Write into sink i at offset, one-sided. An answer waits for the puts that were accepted before it: when the
   caller has it, its sinks are quiet. TERN_E_DEADLINE: the call is cancelled. */
tern_status tern_rpc_request_put(tern_rpc_request *request, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tern_op *op);
/*
 * Answer: status (TERN_OK or any error: it becomes the caller's status; TERN_E_REMOTE for errors of your
 * own) and bytes of data, copied; for an error the data is a text for the caller's tern_detail(). Always takes the
 * request; never blocks but for a cancel callback that runs.
 */
void tern_rpc_reply(tern_rpc_request *request, tern_status status, const void *data, uint64_t bytes);

/* ---- clients ---- */

/*
 * A client on a link; cheap to share between threads. When the link ends, its calls end with the link's status.
 * Closing does not wait, and the handle is gone at once: calls end in TERN_E_FLUSHED, those without sinks before it
 * returns. Calls with sinks are cancelled and end once the server can write no more into them (as at a deadline; if
 * the link ends before, with that): their operations and sinks stay in use until then.
 */
tern_status tern_rpc_open(tern_link *link, tern_rpc **rpc);
void tern_rpc_close(tern_rpc *rpc);

/*
 * A client with links of its own to "host:port": it dials, and dials again when the link is lost (backoff with
 * jitter: options rpc.redial, rpc.redial_max). Returns before it is connected; calls wait for the link within their
 * deadlines. Calls in flight when a link is lost are asked for again over the next one:
 *
 *   the server has a record of the call    its answer, once it is there; the call is not executed again
 *   it has none, and can tell that the     the call is executed: for the first time
 *   call never reached it
 *   it has none (it restarted, or it was   TERN_E_INDETERMINATE; calls marked idempotent are executed,
 *   too long ago: rpc.keep)                at the expense of rpc.retry_budget
 *
 * A server that has just begun, again perhaps, serves its methods one after the other: calls of those that were never
 * served wait for them until its context is as old as rpc.serve_grace, then end in TERN_E_NO_METHOD.
 *
 * After rpc.breaker failures in a row calls end at once for rpc.breaker_time; then the next call tries again. When the
 * context is destroyed its calls end in TERN_E_FLUSHED; tern_rpc_close() is then all that may be done with it.
 */
tern_status tern_rpc_connect(tern_ctx *ctx, const char *address, const tern_connect_params *params,
			     tern_rpc **rpc);

#define TERN_RPC_IDEMPOTENT 1u /* flags: executing it again does no harm */
#define TERN_RPC_HEDGE_AUTO UINT64_MAX

/* Zero it, then set what differs. */
typedef struct tern_rpc_call_params {
	uint32_t method;
	const void *args;
	uint64_t args_bytes; /* copied before tern_rpc_call returns */
	const tern_rpc_sink *sinks;
	unsigned sink_count;
	void *answer; /* where the inline answer goes; may be NULL if none is expected */
	uint64_t answer_capacity;
	tern_rpc_class service_class;
	uint32_t flags; /* TERN_RPC_IDEMPOTENT */
	/*
	 * Idempotent calls: send a second copy if there is no answer after hedge_ns (0 = never; TERN_RPC_HEDGE_AUTO:
	 * what 95 % of the calls of this class took so far). The first answer is the call's, the other copy is
	 * cancelled. With sinks the second copy has its own, as many of the same sizes, and the operation completes
	 * when neither server can write any more: *hedge_won says whose data counts.
	 */
	uint64_t hedge_ns;
	tern_rpc *hedge_to; /* a client of another server; open until the call ended. NULL = this one */
	const tern_rpc_sink *hedge_sinks;
	int *hedge_won; /* 1: the second copy's answer; may be NULL */
} tern_rpc_call_params;

/*
 * Call. op->timeout_ns is the deadline (0 = option rpc.timeout). op->length: bytes of the inline answer
 * (TERN_E_TRUNCATED if longer than the capacity). TERN_AGAIN: too many calls in flight or no window.
 * TERN_E_OVERLOAD: the server did not execute it; op->length is the number of ns after which to try again.
 * Sinks are the caller's: the operation completes with TERN_E_DEADLINE only once the server can write
 * no more into them (it acknowledged the cancel, or the link is quiesced). A call without sinks
 * completes at its deadline.
 */
tern_status tern_rpc_call(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op);
/* Call and wait: returns the call's status. *answer_bytes (op->length) may be NULL. Not from a callback. */
tern_status tern_rpc_call_wait(tern_rpc *rpc, const tern_rpc_call_params *params, uint64_t timeout_ns,
			       uint64_t *answer_bytes);
/* Give a call up: it ends with TERN_E_CANCELED, with sinks as at a deadline; its handler can see it. TERN_E_NOT_FOUND:
   it is not in flight. */
tern_status tern_rpc_cancel(tern_rpc *rpc, tern_op *op);

#ifdef __cplusplus
}
#endif

#endif
