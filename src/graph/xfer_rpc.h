/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of transfers by calls (xfer_rpc*.c) share: nobody else includes it. How it works: xfer_rpc.c.
 */
#ifndef TN_GRAPH_XFER_RPC_H
#define TN_GRAPH_XFER_RPC_H

#include <pthread.h>

#include <tern/rpc.h>

#include "graph/ir.h"
#include "graph/xfer_link.h"

#define METHOD_PUSH 0x7e000001u
#define METHOD_PULL 0x7e000002u
#define RPC_SLOTS   2u
#define EDGE_BYTES  8u /* arguments begin with the edge's number */
#define ROOM_BYTES  8u /* dynamic: then comes how much room a pull has */
/* Dynamic: edge, rank and dims; a multiple of 64, so that tensors behind it are aligned. */
#define HEAD_BYTES 128u
_Static_assert(EDGE_BYTES + 8 + 8 * TERN_RANK_MAX <= HEAD_BYTES, "a head has room for every shape");

typedef struct rpc_xfer rpc_xfer;

typedef struct rpc_client {
	struct rpc_client *next;
	uint32_t peer, edges;
	bool pushes;
	tern_rpc *rpc;
} rpc_client;

/* Memory for messages of a dynamic edge. */
typedef struct rpc_room {
	uint8_t *data;
	uint64_t bytes;
} rpc_room;

typedef struct rpc_end {
	tn_xfer_end base;
	struct rpc_end *next;
	rpc_xfer *xfer;
	tn_edge_desc *desc;
	uint64_t number; /* on the wire: the edge's, and above it that of the piece */
	/* an end that is several: they do the work, in turn; `turn` are done with the tensor that is sent or received */
	struct rpc_end **pieces;
	uint32_t n_pieces, turn;
	tern_link *link;
	bool sends;
	bool calls; /* this side makes the calls of the edge */
	/* a calling end */
	tern_rpc *rpc;
	bool in_call;
	tern_op op;
	uint8_t *message; /* push: edge number and tensor, serialised; pull: edge number */
	/* receiving ends: memory of the tensors, RPC_SLOTS of them `stride` apart if pushed or parts of a whole */
	uint8_t *slots;
	uint64_t stride;
	uint32_t n_slots;
	uint64_t pulled; /* pull: tensors asked for */
	/* a called end; xfer->lock */
	tern_rpc_request *request; /* pull: the caller waits; push: waits for room */
	uint64_t arrived, taken;   /* push */
	/* dynamic: the message that is sent, or those that were received, whole; their shapes */
	rpc_room shaped[RPC_SLOTS];
	tern_shape shapes[RPC_SLOTS];
	uint64_t request_room; /* of `request`; xfer->lock */
	uint64_t kept;         /* bytes of a message that did not fit an answer; xfer->lock */
	bool held;             /* a polled tensor is looked at */
} rpc_end;

struct rpc_xfer {
	tn_xfer_link link; /* first */
	pthread_mutex_t lock;
	uint64_t call_bytes;
	rpc_end *ends;
	rpc_client *clients; /* the newest first: it is the one that may have room */
};

/* xfer_rpc_call.c; TERN_AGAIN of any: later */
void tn_xfer_rpc_put_edge(uint8_t out[EDGE_BYTES], uint64_t number);
void tn_xfer_rpc_copied(rpc_xfer *xfer, uint64_t bytes); /* counts a copy */
void tn_xfer_rpc_on_push(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg);
void tn_xfer_rpc_on_pull(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg);
tern_status tn_xfer_rpc_make_call(rpc_end *end, uint32_t method, uint64_t bytes);
tern_status tn_xfer_rpc_pull(rpc_end *end);
/* TERN_OK: no call is in flight and the last one succeeded. */
tern_status tn_xfer_rpc_test_call(rpc_end *end);
tern_status tn_xfer_rpc_poll_push(rpc_end *end, const void **data);
/* TERN_OK: the tensor that was asked for has come. */
tern_status tn_xfer_rpc_pulled(rpc_end *end);
/* xfer_rpc_shaped.c */
/* Room for a message of so many bytes behind its head; what was there is lost. */
tern_status tn_xfer_rpc_make_room(const rpc_end *end, rpc_room *room, uint64_t bytes);
/* xfer->lock is held. False: not a tensor of this edge, or there is no memory for it. */
bool tn_xfer_rpc_take_shaped(rpc_end *end, const uint8_t *message, uint64_t bytes);
tern_status tn_xfer_rpc_send_shaped(tn_xfer_end *base, const void *data, uint64_t bytes,
				    const tern_shape *shape, uint64_t step);
tern_status tn_xfer_rpc_poll_shaped(tn_xfer_end *base, const void **data, tern_shape *shape);

#endif
