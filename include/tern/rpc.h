/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote calls with deadlines and bulk sinks. Arguments and answers are small and travel inline in a
 * message; bulk goes one-sided: the caller names registered destination memory (sinks) and the server
 * writes straight into it before it answers.
 *
 * A call is executed at most once: the server keeps a sliding window per client of (sequence -> answer),
 * so a retried call gets the old answer. One deadline covers queueing, wire and execution.
 */
#ifndef TERN_RPC_H
#define TERN_RPC_H

#include <tern/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_RPC_SINKS_MAX  8
#define TERN_RPC_INLINE_MAX (256u << 20) /* bytes of arguments or of an answer: refused above */

typedef struct tern_rpc tern_rpc;                 /* client end on one link */
typedef struct tern_rpc_request tern_rpc_request; /* one call at the server, until it is answered */

/* Destination memory of a call: a key of the caller's with TERN_ACCESS_WRITE. */
typedef struct tern_rpc_sink {
	tern_key key;
	uint64_t bytes;
} tern_rpc_sink;

/*
 * A handler: args are valid until it returns. It answers now or later, from any thread, exactly once
 * (tern_rpc_reply). It must not block: hand long work to a thread of your own.
 */
typedef void (*tern_rpc_handler)(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg);

/* Serve a method on all links of ctx. method: any number but 0; TERN_E_EXISTS if it is served already. */
tern_status tern_rpc_serve(tern_ctx *ctx, uint32_t method, tern_rpc_handler handler, void *arg);
/* Stop serving: later calls get TERN_E_NO_METHOD. Waits for handlers that run (so not from one of this
   method's); requests in hand must still be answered. */
void tern_rpc_unserve(tern_ctx *ctx, uint32_t method);

tern_link *tern_rpc_request_link(const tern_rpc_request *request);
/* Sink i of the call, NULL past the last. */
const tern_rpc_sink *tern_rpc_request_sink(const tern_rpc_request *request, unsigned i);
/* Nanoseconds left until the caller's deadline; UINT64_MAX if it has none, 0 if it passed. */
uint64_t tern_rpc_request_time_left(const tern_rpc_request *request);
/* Write into sink i at offset, one-sided. An answer waits for the puts that were accepted before it: when the
   caller has it, its sinks are quiet. */
tern_status tern_rpc_request_put(tern_rpc_request *request, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tern_op *op);
/*
 * Answer: status (TERN_OK or any error: it becomes the caller's status; TERN_E_REMOTE for errors of your
 * own) and bytes of data, copied; for an error the data is a text for the caller's tern_detail(). Always takes the request; never blocks.
 */
void tern_rpc_reply(tern_rpc_request *request, tern_status status, const void *data, uint64_t bytes);

/*
 * A client on a link; cheap to share between threads. Closing does not wait, and the handle is gone at once:
 * calls end in TERN_E_FLUSHED, those without sinks before it returns. Calls with sinks are cancelled and end
 * once the server can write no more into them (as at a deadline; if the link ends before, with that): their
 * operations and sinks stay in use until then.
 */
tern_status tern_rpc_open(tern_link *link, tern_rpc **rpc);
void tern_rpc_close(tern_rpc *rpc);

typedef struct tern_rpc_call_params {
	uint32_t method;
	const void *args;
	uint64_t args_bytes; /* copied before tern_rpc_call returns */
	const tern_rpc_sink *sinks;
	unsigned sink_count;
	void *answer; /* where the inline answer goes; may be NULL if none is expected */
	uint64_t answer_capacity;
} tern_rpc_call_params;

/*
 * Call. op->timeout_ns is the deadline (0 = option rpc.timeout). op->length: bytes of the inline answer
 * (TERN_E_TRUNCATED if longer than the capacity). TERN_AGAIN: too many calls in flight or no window.
 * Sinks are the caller's: the operation completes with TERN_E_DEADLINE only once the server can write
 * no more into them (it acknowledged the cancel, or the link is quiesced). A call without sinks
 * completes at its deadline.
 */
tern_status tern_rpc_call(tern_rpc *rpc, const tern_rpc_call_params *params, tern_op *op);
/* Call and wait: returns the call's status. *answer_bytes may be NULL. Not from a callback. */
tern_status tern_rpc_call_wait(tern_rpc *rpc, const tern_rpc_call_params *params, uint64_t timeout_ns,
			       uint64_t *answer_bytes);

#ifdef __cplusplus
}
#endif

#endif
