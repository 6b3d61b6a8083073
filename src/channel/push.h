/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bursts over a device that gathers small posts (caps.batches: tcp): a post that follows another at once, or that a
 * callback makes while more events wait, leaves together with what comes next, in one system call. What is alone leaves
 * at once; so does the first of a burst, unless there was one a moment ago.
 *
 * What is held back leaves with the next post that is no burst, when enough has gathered, with anything that its lane
 * receives, before anybody waits, arms or makes progress, at the end of a batch of events or callbacks, and, if nobody
 * does any of that, when the push timer goes off: PUSH_NS, up to PUSH_MAX_NS while it always comes for nothing. The helper
 * sees it go off; without one the context's descriptor becomes readable.
 *
 *   link->push_queued   the link is in ctx->pushes, with a reference: one of its lanes may hold something
 *   lane->more          it may hold something: set by the post, under the link's lock
 *
 * Threads: any. Tests: tests/unit/channel/test_push.c.
 */
#ifndef TN_CHANNEL_PUSH_H
#define TN_CHANNEL_PUSH_H

#include "channel/shell.h"

#define TN_PUSH_GAP_NS  2000u  /* posts that follow each other within it are a burst */
#define TN_PUSH_NEXT_NS 20000u /* and the first one after a burst of TN_PUSH_BURST is the next burst's */
#define TN_PUSH_BURST   4u
#define TN_PUSH_BYTES   4096u /* a post of more is none */

/* Lock held, before a post of so many bytes on the lane: may it be held back? tn_push_posted follows, with the answer. */
bool tn_push_may_hold(tern_link *link, const tn_shell_lane *slane, uint64_t bytes);
void tn_push_posted(tern_link *link, bool held);
void tn_push_all(tern_ctx *ctx);

/* Whoever is about to wait, or has made callbacks. No lock of a link may be held. */
static inline void tn_push(tern_ctx *ctx)
{
	if (TN_UNLIKELY(!tn_mpsc_empty(&ctx->pushes)))
		tn_push_all(ctx);
}

/* The timer: in the context's epoll, and in the helper's poll while it is parked. init: fd is -1 before. */
tern_status tn_push_init(tern_ctx *ctx);
void tn_push_fini(tern_ctx *ctx);
void tn_push_timer(tern_ctx *ctx);

#endif
