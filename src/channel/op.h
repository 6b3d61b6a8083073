/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How layers above the channel complete operations of their own (a call, a tensor's send) with the same
 * tern_op, so that tern_op_test and tern_op_wait work for all of them. Implemented by channel/op.c.
 *
 * Threads: begin in the submitting thread; complete from dispatch or from any thread, outside of locks.
 */
#ifndef TN_CHANNEL_OP_H
#define TN_CHANNEL_OP_H

#include <stdbool.h>

#include <tern/channel.h>

#include "link/placed.h"

/*
 * In op->flags, for layers above: the callback may run inside the submitting call when the operation is
 * done there (the submitter holds no lock that it takes). Saves the way through dispatch.
 */
#define TN_OP_INLINE 0x40000000u

/* Of a put with notification, in op->flags, shifted so: tn_link_placed. */
#define TN_OP_PLACED_SHIFT 28
#define TN_OP_PLACED_MASK  3u

/*
 * Send a message of at most TN_LINK_IOV_MAX pieces without an operation. True: it has left, and its bytes are the
 * caller's again. False: nothing happened (the link's device doesn't take it at the post, it must wait, somebody has the
 * link's lock, the channel has ended, ...): tern_sendv sends it or says why not. Never waits and calls nobody: a lock of
 * the caller's may be held.
 */
bool tn_send_now(tern_channel *channel, const void *msg, uint64_t bytes);
bool tn_sendv_now(tern_channel *channel, const tern_iovec *iov, int count);

/* Mark an operation as in flight. TERN_E_STATE if it is already. */
tern_status tn_op_begin(tern_op *op);
/* Take tn_op_begin back: the submission was not accepted after all. Its status is TERN_E_STATE then. */
void tn_op_abort(tern_op *op);
/*
 * Complete: set status and length, detail (may be NULL) for tern_detail() in the callback, run op->done
 * in this thread, wake whoever waits for it. Exactly once per tn_op_begin. The op may be gone afterwards.
 */
void tn_op_complete(tern_ctx *ctx, tern_op *op, tern_status status, uint64_t length, const char *detail);
/* The same, with TERN_OK, for one without a callback whose submission has not returned: nobody waits for it, and nobody
   is woken, which may be a call of the kernel. */
void tn_op_complete_here(tern_ctx *ctx, tern_op *op, uint64_t length);

#endif
