/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations whose memory a GPU stream or event makes ready: accepted at once, submitted when it has come so far.
 *
 *   WAITING -> QUEUED   the stream came, the deadline passed, it was cancelled, or the context ends
 *   QUEUED -> WAITING   the link said TERN_AGAIN: once more a little later
 *   QUEUED -> gone      submitted, or ended; ORPHAN if the driver's call back is still to come, which frees it
 *
 * A gate holds a reference of its channel. Its deadline counts from the submission. Only the dispatcher ends
 * one. Nothing polls: the CUDA driver calls from a thread of its own.
 *
 * Threads: any. Tests: tests/unit/channel/test_gpu.c.
 */
#ifndef TN_CHANNEL_GATE_H
#define TN_CHANNEL_GATE_H

#include "channel/channel_impl.h"

/* Accept an operation with op->stream. Errors: nothing was accepted. */
tern_status tn_gate_xfer(tern_channel *channel, const tn_link_xfer *xfer, tern_op *op);
tern_status tn_gate_send(tern_channel *channel, const tern_iovec *iov, int count, tern_op *op);
/* True: the operation waits, and ends soon with TERN_E_CANCELED (or is being submitted just now). */
bool tn_gate_cancel(const tern_op *op);
/* The context ends: operations that wait end with TERN_E_FLUSHED, from dispatch. */
void tn_gates_end(tern_ctx *ctx);

/* ---- submit.c: the second half of a submission; op is in flight already and stays so on errors ---- */
tern_status tn_submit_xfer(tern_channel *channel, const tn_link_xfer *xfer, tern_op *op,
			   uint64_t deadline_ns);
tern_status tn_submit_send(tern_channel *channel, const tern_iovec *iov, int count, tern_op *op,
			   uint64_t deadline_ns);

#endif
