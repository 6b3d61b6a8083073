/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: operations in which all ranks of a communicator take part, with the same arguments but for their
 * buffers, in the same order. They move data over tensor channels between the ranks' contexts.
 *
 *   all-reduce      ring (Patarasuk and Yuan 2009) for much data, recursive halving and doubling (Rabenseifner 2004)
 *                   for less, recursive doubling for little; over several hosts in two levels, so that each byte of a
 *                   host's share crosses the network once
 *   broadcast       binomial tree; for much data scatter and all-gather
 *   all-to-all      pairwise exchange
 *   barrier         dissemination
 *
 * Results are the same bits on all ranks, and from run to run: the order of additions depends on the ranks alone.
 *
 * Each transfer says which operation it belongs to. Ranks that disagree (another operation, size or type) get
 * TERN_E_PROTOCOL and words instead of each other's data. After any failure a communicator is of no more use: all its
 * operations return the same status, and its peers learn of it when it is destroyed, or by their deadline.
 *
 * Threads: one thread at a time per communicator; communicators are independent. Everything here blocks and drives
 * progress meanwhile; not from callbacks. Memory of tern_mem_alloc moves without a copy on the way out.
 */
#ifndef TERN_COLL_H
#define TERN_COLL_H

#include <tern/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_COMM_NAME_MAX 64   /* with NUL */
#define TERN_COMM_SIZE_MAX 4096 /* ranks */

typedef struct tern_communicator tern_communicator;

typedef enum tern_reduce {
	TERN_SUM = 0,
	TERN_PROD = 1,
	TERN_MIN = 2, /* NaN wins */
	TERN_MAX = 3,
	TERN_AVG = 4, /* the sum divided by the number of ranks; floating point alone */
} tern_reduce;

/* Zero it, then set what differs. */
typedef struct tern_comm_params {
	const char *name; /* the same at all ranks, used once in the life of a context */
	uint32_t rank, size;
	const char *const *addresses; /* "host:port" of each rank's context; one's own is not looked at */
	/* The host of each rank, any words: ranks of the same are near each other. NULL: the host part of addresses */
	const char *const *hosts;
	uint64_t timeout_ns; /* of each operation; 0 = option coll.timeout */
} tern_comm_params;

/*
 * Returns at once: links are made when operations need them, and wait for ranks that are not there yet. The context must
 * listen. TERN_E_INVALID, TERN_E_EXISTS (the name), TERN_E_NOMEM.
 */
tern_status tern_comm_create(tern_ctx *ctx, const tern_comm_params *params, tern_communicator **comm);
/* Peers that wait for this rank get TERN_E_PEER_CLOSED. Before the context is destroyed. NULL is allowed. */
void tern_comm_destroy(tern_communicator *comm);
uint32_t tern_comm_rank(const tern_communicator *comm);
uint32_t tern_comm_size(const tern_communicator *comm);

/*
 * All operations: TERN_E_DEADLINE and the status of a lost peer name the rank; TERN_E_PROTOCOL: ranks disagree;
 * TERN_E_INVALID: bad arguments, TERN_E_UNSUPPORTED: AVG of integers; nothing was sent then. Counts are in elements, bytes
 * in bytes, 0 is legal. Buffers must not overlap unless said.
 */

/* recv[i] = reduction of all send[i]. send may be recv. */
tern_status tern_all_reduce(tern_communicator *comm, const void *send, void *recv, uint64_t count,
			    tern_dtype dtype, tern_reduce reduce);
/* send has size x count elements; rank r gets the reduction of block r. send may not be changed meanwhile. */
tern_status tern_reduce_scatter(tern_communicator *comm, const void *send, void *recv, uint64_t count,
				tern_dtype dtype, tern_reduce reduce);
/* As all-reduce, at the root alone: recv is not looked at elsewhere. send may be recv. */
tern_status tern_reduce_to(tern_communicator *comm, const void *send, void *recv, uint64_t count,
			   tern_dtype dtype, tern_reduce reduce, uint32_t root);
/* recv has size x bytes: block r is rank r's send. send may be block `rank` of recv. */
tern_status tern_all_gather(tern_communicator *comm, const void *send, void *recv, uint64_t bytes);
/* Both have size x bytes: block r of send goes to block `rank` of rank r's recv. */
tern_status tern_all_to_all(tern_communicator *comm, const void *send, void *recv, uint64_t bytes);
/* buf of the root to all others'. */
tern_status tern_broadcast(tern_communicator *comm, void *buf, uint64_t bytes, uint32_t root);
/* Returns when all ranks have called it. */
tern_status tern_barrier(tern_communicator *comm);

/*
 * Messages between two ranks of the communicator, in order per pair; send waits until buf may be reused, which may be
 * before the peer called recv if bytes are few. bytes must be the same at both.
 */
tern_status tern_comm_send(tern_communicator *comm, uint32_t peer, const void *buf, uint64_t bytes);
tern_status tern_comm_recv(tern_communicator *comm, uint32_t peer, void *buf, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
