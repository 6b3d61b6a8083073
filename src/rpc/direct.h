/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers of the library do with sinks beyond <tern/rpc.h>.
 *
 * A sink of a call, mapped into the server for one access (channel/direct.h): over shm a handler computes its answer
 * where the caller wants it, or reads what the caller would have had to send. Counts as a put of the request: an
 * answer, and the acknowledgement of a cancel, wait for its end.
 *
 * Threads: begin and end in one thread, any. Tests: tests/unit/rpc/rpc_test.c.
 */
#ifndef TN_RPC_DIRECT_H
#define TN_RPC_DIRECT_H

#include <tern/rpc.h>

#include "channel/direct.h"
#include "channel/op.h"

typedef struct tn_rpc_map {
	uint8_t *at;
	tern_rpc_request *req;
	tn_direct direct;
} tn_rpc_map;

/*
 * Map [offset, offset + bytes) of a sink to write to it, or (read) to read it. TERN_OK: then unmap, soon. Statuses of
 * tn_direct_begin (TERN_E_UNSUPPORTED, TERN_AGAIN: put instead); TERN_E_DEADLINE: the call is cancelled.
 */
tern_status tn_rpc_request_map(tern_rpc_request *request, unsigned sink, uint64_t offset, uint64_t bytes,
			       bool read, tn_rpc_map *map);
void tn_rpc_request_unmap(tn_rpc_map *map);

/*
 * The channel over which a client's calls of a class go at present, until it is returned: for one-sided accesses to the
 * server's memory. NULL: there is none; a call makes one.
 */
tern_channel *tn_rpc_channel_lend(tern_rpc *rpc, tern_rpc_class service_class, void **loan);
void tn_rpc_channel_return(void *loan);

/*
 * As tern_rpc_request_put, but the answer may be sent before op completes: the caller counts, and sees it when all of
 * these puts are in its memory. No round trip lies between rows and answer. src stays in use until op completes; if that
 * is an error the answer becomes it. Before the answer; at most TN_RPC_PLACED_MAX, bytes > 0. The answer waits for a caller
 * that does not count (another implementation). how: APART where there is much in all, else BESIDE, and LAST for the last one
 * if the answer follows at once.
 */
tern_status tn_rpc_request_place(tern_rpc_request *request, unsigned sink, uint64_t offset, const void *src,
				 uint64_t bytes, tn_link_placed how, tern_op *op);

/* ---- calls ---- */

/* A buffer for arguments that are built where the call keeps them: no copy is made of them. NULL: no memory. */
void *tn_rpc_args_take(tern_rpc *rpc, uint64_t bytes);
/*
 * As tern_rpc_call, with params->args of tn_rpc_args_take, whose it is no more whatever this returns. Not hedged. `behind`, if not
 * NULL: more arguments behind those, which are not copied: theirs is the caller's memory until op completes, not before they
 * have left.
 */
tern_status tn_rpc_call_built(tern_rpc *rpc, const tern_rpc_call_params *params, const void *behind,
			      uint64_t behind_bytes, tern_op *op);

#endif
