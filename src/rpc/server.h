/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the RPC server: who owns whom.
 *
 *   server   one per context: methods, records, requests that wait for room in a channel
 *   conn     one accepted channel; closes it when the last user lets go
 *   record   what is known of one caller's calls of one class, over any number of channels in turn; owns its window
 *   request  one call; in its record's window until the low-water mark passes it
 *   gate     admission: how many calls of some methods run and wait; one for all methods, one for each that is
 *            limited apart (tern_rpc_serve_limited)
 *   flow     the calls of one record that wait at one gate
 *
 *   nursery  a gate that lets nobody run: calls of methods that a server that has just begun does not serve yet
 *
 *   gate:    running = sum over classes of running[c] = sum over flows of running
 *            queued[c] = sum over flows of the class of queued; queued_bytes likewise
 *            a flow is in waiting[c] exactly if it has calls that wait, and in ready[c] if its client may run one more
 *   record:  kept = bytes of requests and answers in the window
 *
 * Locks: server->lock protects records and the retry list, record->lock a record and its requests, gate->lock a gate
 * and its flows, unused_lock the requests that are none now. Order: server, record, gate or unused. None is held while a channel function or a handler runs.
 */
#ifndef TN_RPC_SERVER_H
#define TN_RPC_SERVER_H

#include "base/list.h"
#include "rpc/rpc.h"

#define TN_RPC_UNUSED_MAX 1024u   /* requests that a server keeps for the next calls */
#define TN_RPC_RETRY_NS   100000u /* a reply that found no room in the channel is tried again after this */

typedef struct rpc_conn rpc_conn;
typedef struct rpc_record rpc_record;
typedef struct rpc_gate rpc_gate;
typedef struct rpc_flow rpc_flow;

typedef struct rpc_method {
	uint32_t method;
	tern_rpc_handler handler;
	void *arg;
	rpc_gate *gate;
	_Atomic uint32_t running; /* handlers of this entry, or look-ups about to check that it is current */
	struct rpc_method *older; /* replaced entries live as long as the server: a look-up may hold one */
} rpc_method;

/* What bounds a gate: 0 means without bound here. */
typedef struct rpc_limits {
	uint64_t running, running_client, running_class[TN_RPC_CLASSES];
	uint64_t queue_bytes, queue_client_bytes, queue_calls;
	uint64_t starve;
	uint64_t retry_after_ns;
} rpc_limits;

struct rpc_flow {
	rpc_flow *next; /* of the same record */
	rpc_gate *gate;
	rpc_record *record;
	tn_list ready, waiting; /* in the gate's lists of its class */
	tn_list calls;          /* tern_rpc_request.queue_node, the oldest first */
	uint64_t running, queued, queued_bytes;
};

struct rpc_gate {
	tn_work work; /* first: the pump */
	tn_rpc_server *server;
	rpc_lock lock;
	rpc_limits limits;
	uint64_t running, running_class[TN_RPC_CLASSES];
	uint64_t queued[TN_RPC_CLASSES], queued_bytes[TN_RPC_CLASSES];
	uint64_t passed_over
		[TN_RPC_CLASSES]; /* calls of higher classes since this one's last turn, while it could run */
	tn_list ready[TN_RPC_CLASSES];   /* rpc_flow.ready, in the order of their turns */
	tn_list waiting[TN_RPC_CLASSES]; /* rpc_flow.waiting */
	uint64_t swept_ns;
	bool pumping; /* work is in the context's queue */
	bool dead;    /* the server is gone: the pump frees the gate */
	bool closed;  /* the nursery: nothing runs from here */
	rpc_gate *next;
};

struct tn_rpc_server {
	tn_ctx_slot slot; /* first */
	tern_ctx *ctx;
	tn_rpc_counters counters;
	tn_spans *spans;
	tn_span_kind *serve_span;
	rpc_lock lock;
	tn_list records; /* the newest first */
	uint32_t record_count;
	uint64_t keep_ns, keep_bytes; /* of records without a channel */
	tn_ctx_timer keep_timer;
	tern_rpc_request *retry;
	tn_ctx_timer timer;
	tn_rpc_spare spare;      /* answers */
	tern_rpc_request *fresh; /* single owner: its handler runs, and nobody asked what time it has yet */
	rpc_lock unused_lock;
	tern_rpc_request *unused; /* requests for the next calls; by retry_next */
	uint32_t unused_count;
	_Atomic(rpc_method *) methods[TN_RPC_METHODS_MAX];
	rpc_method *retired;
	rpc_gate *gate;  /* of all methods without one of their own */
	rpc_gate *gates; /* all */
	rpc_gate *nursery;
	tn_ctx_timer nursery_timer; /* at grown_ns: what waits there is refused */
	uint64_t grown_ns;          /* from then on a method that is not served is refused at once */
	tn_list clients;            /* of this context, with links of their own: ended with it */
};

struct rpc_conn {
	_Atomic uint32_t refs;
	tn_rpc_server *server;
	tern_channel *channel;
	rpc_record *record; /* of whoever spoke last; owns a reference and is counted in record->bound */
};

struct rpc_record {
	_Atomic uint32_t refs; /* server's list + conns + requests */
	tn_rpc_server *server;
	tn_rpc_client_id id;
	uint8_t service_class;
	uint32_t created; /* session of the request that made it: what was sent before is not known here */
	tn_list node;
	/* server->lock */
	uint32_t bound;     /* conns */
	uint64_t orphan_ns; /* since when none */
	/* lock */
	rpc_lock lock;
	rpc_conn *conn; /* where answers go; NULL while it has no channel */
	uint64_t low_water;
	uint64_t kept;
	_Atomic(rpc_flow *) flows; /* added by the driver; they live as long as the record */
	tern_rpc_request *window[TN_RPC_WINDOW];
};

#define TN_RPC_RETRY_ANSWER 1u
#define TN_RPC_RETRY_ACK    2u

/* A put of a handler: counted here, then its own operation completes. */
typedef struct rpc_sink_put {
	bool placed; /* the answer becomes its error, and overtakes it if the caller counts */
	tern_op op;
	tern_rpc_request *req;
	tern_op *user;
} rpc_sink_put;

struct tern_rpc_request {
	tn_rpc_server *server;
	rpc_record *record;
	uint64_t seq;
	bool timed; /* the clock was read for it: */
	bool exact; /* came_ns is, for it is recorded; else as tn_ctx_soon */
	uint64_t came_ns, timeout_ns;
	uint64_t deadline_ns;
	uint32_t method;
	unsigned sink_count;
	/* gate->lock */
	rpc_flow *flow; /* NULL: neither waits nor runs at a gate */
	tn_list queue_node;
	void *args; /* of one that waits */
	uint64_t args_bytes;
	/* record->lock */
	rpc_conn *origin; /* the channel that brought it: sinks are reached through it */
	bool answered;
	bool forgotten; /* out of the window */
	bool sending;   /* op in use */
	bool acking;    /* ack_op in use */
	bool canceled;
	bool held;     /* answered, but the answer waits for puts: sinks are the caller's once it has it */
	bool put_busy; /* `put` is one of them */
	uint32_t puts; /* into sinks, in flight */
	bool early;    /* the caller counts notifications */
	bool told_early; /* the answer in `message` speaks of puts that were in flight: not for whoever asks again */
	bool resend;              /* it goes again when they are over */
	uint32_t placed, placing; /* puts with notification: all, and of those in puts */
	tern_status failed;       /* one of them; the answer becomes this */
	uint64_t cancel_runs;     /* thread in which on_cancel runs, 0 */
	void (*on_cancel)(tern_rpc_request *request, void *arg);
	void *on_cancel_arg;
	/* server->lock */
	uint32_t retry_bits;
	tern_rpc_request *retry_next;
	/* the answer, kept for duplicates */
	uint8_t *answer_copy;
	uint64_t answer_bytes;
	/* what is above is zero at first, what is below is not read before it was written */
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	tern_op op, ack_op; /* initialised for each message */
	rpc_sink_put put;
	uint8_t ack[TN_RPC_REPLY_BYTES];
	/* header, and behind it an answer that fits: one piece */
	uint8_t message[TN_RPC_REPLY_BYTES + TN_RPC_INLINE_BYTES];
};

/* ---- record.c ---- */

/* Nobody has a reference any more. */
void tn_rpc_record_end(rpc_record *record);
void tn_rpc_conn_end(rpc_conn *conn);

static inline void tn_rpc_record_unref(rpc_record *record, uint32_t n)
{
	if (TN_UNLIKELY(n > 0 && rpc_refs_drop(&record->refs, n, record->server->counters.own)))
		tn_rpc_record_end(record);
}

static inline void tn_rpc_conn_unref(rpc_conn *conn)
{
	if (TN_UNLIKELY(rpc_refs_drop(&conn->refs, 1, conn->server->counters.own)))
		tn_rpc_conn_end(conn);
}

/* Find or make the record that a request belongs to and bind it to conn. NULL: out of memory. */
rpc_record *tn_rpc_record_bind(rpc_conn *conn, const tn_rpc_request_head *head);
void tn_rpc_record_unbind(rpc_conn *conn);
/* record->lock held: forget all requests below low_water. Returns how many were freed: drop so many
   references of the record after unlocking. */
uint32_t tn_rpc_record_advance(rpc_record *record, uint64_t low_water);
/* Put a new request into the window, which is moved only if need be: the caller moves it when the handler has run, while
   the answer is on its way. TERN_E_EXISTS: *old is the one that is there; TERN_E_LIMIT: outside;
   TERN_E_INDETERMINATE: in, but it must not run: it may have run before there was this record. */
tern_status tn_rpc_record_add(rpc_record *record, const tn_rpc_request_head *head, tern_rpc_request *req,
			      tern_rpc_request **old);
/* Answers were kept for a record without a channel: there is a bound. */
void tn_rpc_records_trim(tn_rpc_server *server);
void tn_rpc_records_free(tn_rpc_server *server);
void tn_rpc_keep_timer(tn_ctx_timer *timer);

/* ---- method.c ---- */

/* Look up and enter: the entry stays usable until leave. NULL: not served. */
rpc_method *tn_rpc_method_enter(tn_rpc_server *server, uint32_t method);
void tn_rpc_method_leave(tn_rpc_server *server, rpc_method *m);
void tn_rpc_methods_free(tn_rpc_server *server);
/* It was served, or withdrawn: not one that may yet come. */
bool tn_rpc_method_known(tn_rpc_server *server, uint32_t method);

/* ---- gate.c ---- */

rpc_gate *tn_rpc_gate_new(tn_rpc_server *server, const tern_rpc_limits *limits);
void tn_rpc_gates_free(tn_rpc_server *server);
/* A method came, or the time of grace is over: have work.run called from dispatch, if calls wait at this gate. */
void tn_rpc_gate_kick(rpc_gate *gate);
/* In work.run: take all that wait; they belong to no gate then. False: the server is gone, and the gate. */
bool tn_rpc_gate_drain(rpc_gate *gate, tn_list *calls);
/*
 * TERN_OK: run it now. TERN_AGAIN: it waits, with a copy of args; the pump runs it. TERN_E_OVERLOAD, TERN_E_NOMEM:
 * answer with that.
 */
tern_status tn_rpc_gate_enter(rpc_gate *gate, tern_rpc_request *req, const void *args, uint64_t bytes);
/* The same, in line: on the way of every call. */
tern_status tn_rpc_gate_pass(rpc_gate *gate, tern_rpc_request *req, const void *args, uint64_t bytes);
/* It was answered: what waits may run. */
void tn_rpc_gate_leave(tern_rpc_request *req);
/* record->lock held. Nobody wants it any more. True: it waited and will not run; the caller ends it. */
bool tn_rpc_gate_drop(tern_rpc_request *req);

/* ---- request.c ---- */

tern_rpc_request *tn_rpc_request_new(rpc_conn *conn, const tn_rpc_request_head *head,
				     const tern_rpc_sink *sinks);
/*
 * Reads the clock for it. In a context of a single owner one with a long time-out that is answered by its handler
 * needs none: the clock is read when the handler asks for it or returned without an answer.
 */
void tn_rpc_request_time(tern_rpc_request *req);
/* One that never got into a window. */
void tn_rpc_request_free(tern_rpc_request *req);
void tn_rpc_requests_end(tn_rpc_server *server);
/* record->lock held: free the request if nothing needs it. The caller then drops one reference of the record. */
bool tn_rpc_request_try_free(tern_rpc_request *req);
/* record->lock held on entry, released: the request may be gone afterwards. */
void tn_rpc_request_settle(tern_rpc_request *req);
/* A duplicate came over conn: send the stored answer again (nothing if it is on its way), or reach the sinks of one
   that runs through conn from now on. */
void tn_rpc_request_again(tern_rpc_request *req, rpc_conn *conn);
/* Nobody waits for it any more: refuse further puts, acknowledge when none is in flight. From dispatch. */
void tn_rpc_request_cancel(tern_rpc_request *req);
/* Run the handler of an admitted request; it may be gone afterwards. */
void tn_rpc_request_run(tern_rpc_request *req, const void *args, uint64_t bytes);
/* tern_rpc_reply() with a value for the head (TERN_E_OVERLOAD), or in words of one's own. */
void tn_rpc_request_refuse(tern_rpc_request *req, tern_status status, uint64_t value, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- reply.c ---- */

void tn_rpc_send_answer(tern_rpc_request *req); /* `sending` was set by the caller */
/* record->lock held, and `sending` set: the same without an operation. True: the answer has left, the lock is released and the
   request may be gone. False: nothing happened. */
bool tn_rpc_answer_now(tern_rpc_request *req);
/* record->lock held: the puts that an answer waited for are over. */
void tn_rpc_answer_held(tern_rpc_request *req);
/* record->lock held on entry, released: no placed put of an answered request is in flight any more. */
void tn_rpc_answer_placed(tern_rpc_request *req);
void tn_rpc_send_ack(tern_rpc_request *req); /* `acking` was set by the caller */
/* Acknowledge the CANCEL of a call that is not here. */
void tn_rpc_send_stray_ack(rpc_conn *conn, uint64_t seq);
/* Timer: replies that found no room. */
void tn_rpc_retry(tn_ctx_timer *timer);

#endif
