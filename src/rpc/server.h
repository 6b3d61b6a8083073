/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the RPC server: who owns whom.
 *
 *   server   one per context: methods, clients, requests that wait for room in a channel
 *   conn     one accepted channel; closes it when the last user lets go
 *   client   one caller by its 128-bit id, over any number of channels in turn; owns its window
 *   request  one call; in its client's window until the low-water mark passes it
 *
 * Locks: server->lock protects clients and the retry list, client->lock a client and its requests;
 * neither is held while a channel function or a handler runs, nor both at once.
 */
#ifndef TN_RPC_SERVER_H
#define TN_RPC_SERVER_H

#include "rpc/rpc.h"

#define TN_RPC_RETRY_NS 100000u /* a reply that found no room in the channel is tried again after this */

typedef struct rpc_conn rpc_conn;
typedef struct rpc_client rpc_client;

typedef struct rpc_method {
	uint32_t method;
	tern_rpc_handler handler;
	void *arg;
	_Atomic uint32_t running; /* handlers of this entry, or look-ups about to check that it is current */
	struct rpc_method *older; /* replaced entries live as long as the server: a look-up may hold one */
} rpc_method;

struct tn_rpc_server {
	tn_ctx_slot slot; /* first */
	tern_ctx *ctx;
	tn_rpc_counters counters;
	pthread_mutex_t lock;
	rpc_client *clients;
	uint32_t client_count;
	tern_rpc_request *retry;
	tn_ctx_timer timer;
	_Atomic(rpc_method *) methods[TN_RPC_METHODS_MAX];
	rpc_method *retired;
};

struct rpc_conn {
	_Atomic uint32_t refs;
	tn_rpc_server *server;
	tern_channel *channel;
	rpc_client *client; /* the one that spoke last; owns a reference */
};

struct rpc_client {
	_Atomic uint32_t refs; /* server's list + conns + requests */
	tn_rpc_server *server;
	tn_rpc_client_id id;
	rpc_client *next, **prev;
	pthread_mutex_t lock;
	rpc_conn *conn; /* where answers go; NULL while it has no channel */
	uint64_t low_water;
	tern_rpc_request *window[TN_RPC_WINDOW];
};

#define TN_RPC_RETRY_ANSWER 1u
#define TN_RPC_RETRY_ACK    2u

struct tern_rpc_request {
	tn_rpc_server *server;
	rpc_client *client;
	rpc_conn *origin; /* the channel that brought it: sinks are reached through it */
	uint64_t seq;
	uint64_t deadline_ns;
	unsigned sink_count;
	tern_rpc_sink sinks[TERN_RPC_SINKS_MAX];
	/* client->lock */
	bool answered;
	bool forgotten; /* out of the window */
	bool sending;   /* op in use */
	bool acking;    /* ack_op in use */
	bool canceled;
	bool held;     /* answered, but the answer waits for puts: sinks are the caller's once it has it */
	uint32_t puts; /* into sinks, in flight */
	/* server->lock */
	uint32_t retry_bits;
	tern_rpc_request *retry_next;
	/* the answer, kept for duplicates */
	tern_op op, ack_op;
	uint8_t *answer_copy;
	uint64_t answer_bytes;
	uint8_t head[TN_RPC_REPLY_BYTES];
	uint8_t ack[TN_RPC_REPLY_BYTES];
	uint8_t answer[TN_RPC_INLINE_BYTES];
};

void tn_rpc_client_unref(rpc_client *client);
void tn_rpc_conn_unref(rpc_conn *conn);

/* client->lock held: forget all requests below low_water. Returns how many were freed: drop so many
   references of the client after unlocking. */
uint32_t tn_rpc_client_advance(rpc_client *client, uint64_t low_water);
/* Send the stored answer again (a duplicate asked); nothing if it is on its way. Lock not held. */
void tn_rpc_request_resend(tern_rpc_request *request);
/* The caller's deadline passed: refuse further puts, acknowledge when none is in flight. */
void tn_rpc_request_cancel(tern_rpc_request *request);
/* Timer: replies that found no room. */
void tn_rpc_retry(tn_ctx_timer *timer);

#endif
