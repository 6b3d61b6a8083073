/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the RPC layer: what client and server share.
 *
 *   call     one slot of a client: seq, op, where the answer goes (client.h)
 *   request  one call at the server, kept until the client's low-water mark passes it (server.h)
 *   window   calls of a client / requests of a record at the server in one class, indexed by seq % TN_RPC_WINDOW
 *
 *   low_water <= seq of every live call < low_water + TN_RPC_WINDOW
 *   a call's op completes exactly once
 *
 * Threads: one lock per client (either side), held for bookkeeping only, never across a callback or a
 * channel call that could run one. Tests: tests/unit/rpc.
 */
#ifndef TN_RPC_RPC_H
#define TN_RPC_RPC_H

#include <stdatomic.h>

#include "base/counters.h"
#include "base/mutant.h"
#include "base/options.h"
#include "channel/ctx_slots.h"
#include "rpc/lock.h"
#include "rpc/spare.h"
#include "rpc/wire.h"

#define TN_RPC_SERVICE      "tern.rpc/2" /* with the version: a peer of another one refuses the channel */
#define TN_RPC_WINDOW       256u         /* calls in flight per client and class: a power of two */
#define TN_RPC_METHODS_MAX  512u         /* served methods per context: a power of two */
#define TN_RPC_INLINE_BYTES 192u         /* arguments and answers up to this need no allocation */
#define TN_RPC_NOW_BYTES    4096u  /* copied into a device and its log under a lock of this layer, at most */
#define TN_RPC_LARGE_BYTES  65536u /* answers from this size on are acknowledged, so that the server forgets */
#define TN_RPC_RECORDS_MAX  1024u  /* records kept after their channel ended */

extern const tn_option_row tn_rpc_options[];

/* X(name): counters "rpc.<name>" of a context. */
#define TN_RPC_COUNTERS(X)                                                                     \
	X(calls)         /* client: accepted */                                                \
	X(answers)       /* client: answered */                                                \
	X(deadlines)     /* client: given up at their deadline */                              \
	X(replays)       /* client: requests sent again over another channel */                \
	X(indeterminate) /* client: calls that ended so */                                     \
	X(dials)         /* client: links dialed by clients with their own */                  \
	X(breaks)        /* client: times that the breaker opened */                           \
	X(hedges)        /* client: second copies sent */                                      \
	X(hedge_wins)    /* client: of those, that were answered first */                      \
	X(requests)      /* server: came in */                                                 \
	X(duplicates)    /* server: of those, that were known or out of the window */          \
	X(no_method)     /* server: not served */                                              \
	X(early)         /* server: waited for their method to be served */                    \
	X(queued)        /* server: had to wait for their turn */                              \
	X(overloads)     /* server: refused because too many wait */                           \
	X(expired)       /* server: not run because their deadline passed while they waited */ \
	X(cancels)       /* server: cancelled before they were answered */                     \
	X(unknown)       /* server: asked for again, and no record of them was left */         \
	X(evicted)       /* server: records dropped (age, bytes, number) */                    \
	X(retries)       /* server: replies that found no room */                              \
	X(copies)                                                                              \
	X(copy_bytes)

typedef struct tn_rpc_counters {
#define TN_RPC_COUNTER_FIELD(name) _Atomic uint64_t name;
	TN_RPC_COUNTERS(TN_RPC_COUNTER_FIELD)
#undef TN_RPC_COUNTER_FIELD
	bool own; /* one thread counts */
} tn_rpc_counters;

#define TN_RPC_COUNT(counters, name, n)                       \
	do {                                                  \
		if ((counters)->own)                          \
			tn_count_own(&(counters)->name, (n)); \
		else                                          \
			tn_count(&(counters)->name, (n));     \
	} while (0)

typedef struct tn_rpc_server tn_rpc_server;

/* The layer's state on a context: server side and counters; made at first use. NULL: out of memory. */
tn_rpc_server *tn_rpc_server_get(tern_ctx *ctx);
tn_rpc_counters *tn_rpc_counters_of(tn_rpc_server *server);

#endif
