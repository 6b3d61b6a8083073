/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the RPC layer: the structures of client and server, with their invariants.
 *
 *   call     one slot of a client: seq, op, where the answer goes
 *   request  one call at the server, kept until the client's low-water mark passes it (at most once)
 *   window   slots of a client / requests of a client at the server, indexed by seq % TN_RPC_WINDOW
 *
 *   low_water <= seq of every live call < low_water + TN_RPC_WINDOW
 *   a call's op completes exactly once: by response, cancel ack, deadline or close (no sinks) or channel end
 *
 * Threads: one lock per client (either side), held for bookkeeping only, never across a callback or a
 * channel call that could run one. Tests: tests/unit/rpc.
 */
#ifndef TN_RPC_RPC_H
#define TN_RPC_RPC_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/options.h"
#include "channel/ctx_slots.h"
#include "rpc/wire.h"

#define TN_RPC_SERVICE      "tern.rpc"
#define TN_RPC_WINDOW       256u   /* calls in flight per client: a power of two */
#define TN_RPC_METHODS_MAX  512u   /* served methods per context: a power of two */
#define TN_RPC_INLINE_BYTES 192u   /* arguments and answers up to this need no allocation */
#define TN_RPC_LARGE_BYTES  65536u /* answers from this size on are acknowledged, so that the server forgets */
#define TN_RPC_CLIENTS_MAX  1024u  /* clients remembered after their channel ended */

extern const tn_option_row tn_rpc_options[];

typedef struct tn_rpc_counters {
	_Atomic uint64_t calls, answers, deadlines, requests, duplicates, no_method, retries, copies,
		copy_bytes;
} tn_rpc_counters;

typedef struct tn_rpc_server tn_rpc_server;

/* The layer's state on a context: server side and counters; made at first use. NULL: out of memory. */
tn_rpc_server *tn_rpc_server_get(tern_ctx *ctx);
tn_rpc_counters *tn_rpc_counters_of(tn_rpc_server *server);

#endif
