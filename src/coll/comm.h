/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the collectives.
 *
 *   state    one per context: its communicators by name, and links that other ranks dialled (arrivals)
 *   comm     ranks, and what there is of the way to each
 *   pipe     one direction between two ranks and of one kind (collectives; messages of the program): a tensor channel of
 *            bytes, coll.slots chunks of coll.chunk bytes at the receiver
 *   flow     what one rank sends another in one step of an operation: a head (wire.h), then its bytes. Up to
 *            TN_COLL_SMALL bytes travel in the chunk of the head, more in chunks of their own
 *   group    some ranks in order, as an algorithm sees them: all, those of this host, or one of each host
 *
 *   of a flow, both sides know:  sent, received <= bytes;  chunks are cut alike, because bytes and coll.chunk are in the head
 *
 * Making pipes can't deadlock: a receiver publishes its end, and dials a rank above its own, before it waits for
 * anything; a sender then waits for the receiver's end. Of two ranks the lower one dials.
 *
 * Locks: state->lock for lists; a communicator itself belongs to its thread. Tests: tests/unit/coll.
 */
#ifndef TN_COLL_COMM_H
#define TN_COLL_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/coll.h>
#include <tern/tensor.h>

#include "base/list.h"
#include "channel/ctx_slots.h"
#include "coll/wire.h"

#define TN_COLL_SERVICE      "tern.coll"
#define TN_COLL_SMALL        8192u
#define TN_COLL_ARRIVALS_MAX 8192u

typedef enum tn_coll_kind { TN_PIPE_COLL, TN_PIPE_MESSAGE, TN_PIPE_KINDS } tn_coll_kind;

typedef struct tn_coll_state {
	tn_ctx_slot slot; /* first */
	tern_ctx *ctx;
	uint64_t chunk, slots, timeout_ns, ring_bytes;
	bool levels;
	pthread_mutex_t lock;
	tn_list comms, arrivals;
	uint32_t arrival_count;
	_Atomic uint64_t operations, bytes_sent, bytes_received;
} tn_coll_state;

/* A channel of TN_COLL_SERVICE that a lower rank opened. It keeps its link up. */
typedef struct tn_coll_arrival {
	tn_list node;
	tern_channel *channel;
	char name[TERN_COMM_NAME_MAX]; /* "" until its HELLO came */
	uint32_t rank, size;
	bool ended;
} tn_coll_arrival;

typedef struct tn_coll_pipe {
	tern_tensor_tx *tx;
	uint8_t *staging; /* registered: a head and TN_COLL_SMALL bytes for each slot */
	tern_op ops[TERN_TENSOR_SLOTS_MAX];
	uint64_t posted;
	uint64_t flows; /* sent, or received, so far: the number in heads */
	tern_tensor_rx *rx;
} tn_coll_pipe;

typedef struct tn_coll_peer {
	tern_link *link;
	bool dialled; /* the link is ours to release; else it is the arrival's */
	tern_channel *hello;
	tn_coll_arrival *arrival;
	tn_coll_pipe out[TN_PIPE_KINDS], in[TN_PIPE_KINDS];
} tn_coll_peer;

typedef struct tn_coll_group {
	uint32_t n, me; /* me: place of this rank; UINT32_MAX: it is not one of them */
	uint32_t *ranks;
} tn_coll_group;

/* What an operation is, for heads and for texts. */
typedef struct tn_coll_call {
	uint8_t operation; /* TN_COLL_* of wire.h */
	uint8_t dtype, reduce;
	uint64_t number, bytes;
	uint64_t began_ns, deadline_ns;
	tn_coll_kind kind;
	uint32_t step;
} tn_coll_call;

struct tern_communicator {
	tn_list node;
	tn_coll_state *state;
	tern_ctx *ctx;
	char name[TERN_COMM_NAME_MAX];
	uint32_t rank, size;
	uint64_t timeout_ns;
	char **addresses;
	tn_coll_peer *peers;
	tn_coll_group all, near,
		far;      /* near: of this host; far: of the same place in each host, or n = 0: one level */
	uint8_t *scratch; /* registered */
	uint64_t scratch_bytes;
	tn_coll_call call; /* the one at work */
	uint64_t numbers;  /* of calls so far */
	tern_status failed;
	char why[256];
};

/* One side of a step: rank, memory, bytes. */
typedef struct tn_coll_leg {
	uint32_t rank;
	uint8_t *ptr;
	uint64_t bytes;
	bool reduce; /* received bytes are reduced into ptr, else stored */
} tn_coll_leg;

/* ---- state.c ---- */
tn_coll_state *tn_coll_state_get(tern_ctx *ctx);
/* With state->lock: the arrival of a rank, or NULL. */
tn_coll_arrival *tn_coll_arrival_find(tn_coll_state *state, const tern_communicator *comm, uint32_t rank);

/* ---- pipe.c: both wait up to the call's deadline ---- */
tern_status tn_coll_open_in(tern_communicator *comm, uint32_t rank, tn_coll_pipe **pipe);
tern_status tn_coll_open_out(tern_communicator *comm, uint32_t rank, tn_coll_pipe **pipe);
void tn_coll_close_peers(tern_communicator *comm);

/* ---- flow.c ---- */

/* Send one flow and receive one (either may be NULL) at once. Memory that is sent is not the caller's before
   tn_coll_settle, but flows of up to TN_COLL_SMALL bytes are copied, and may lie where the other is received. */
tern_status tn_coll_exchange(tern_communicator *comm, const tn_coll_leg *send, const tn_coll_leg *recv);
/* Wait until nothing that was sent is in use any more. */
tern_status tn_coll_settle(tern_communicator *comm);
/* The call fails, and with it the communicator, now and from now on. */
tern_status tn_coll_fail(tern_communicator *comm, uint32_t rank, tern_status status, const char *what);

/* ---- reduce.c ---- */

/* dst[i] = dst[i] (reduce) src[i]; AVG is a sum here. Any alignment of the elements. */
void tn_coll_reduce(void *dst, const void *src, uint64_t count, tern_dtype dtype, tern_reduce reduce);
/* AVG: divide by n. */
void tn_coll_divide(void *dst, uint64_t count, tern_dtype dtype, uint32_t n);
bool tn_coll_can_reduce(tern_dtype dtype, tern_reduce reduce);

/* ---- ring.c, halving.c: over a group; buf holds this rank's input and gets the result ---- */

/* Element where block i of n begins; tn_coll_block(count, n, n) = count. */
uint64_t tn_coll_block(uint64_t count, uint32_t n, uint32_t i);
tern_status tn_coll_ring_scatter(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf,
				 uint64_t count, uint64_t each);
tern_status tn_coll_ring_gather(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf, uint64_t count,
				uint64_t each);
tern_status tn_coll_all_reduce(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf, uint64_t count,
			       uint64_t each);

/* ---- group.c ---- */
tern_status tn_coll_groups_make(tern_communicator *comm, const tern_comm_params *params);
void tn_coll_groups_free(tern_communicator *comm);

#endif
