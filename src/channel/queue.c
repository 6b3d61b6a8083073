/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages submitted while another thread holds the link's lock. Their thread does not wait for it: it leaves them in
 * a queue and goes on, and whoever holds the lock or takes it next hands them to the machine, in order. So many
 * threads that send keep one of them busy with what the lock guards, in its core's cache, instead of moving it from
 * core to core.
 *
 *   queued    many push (mpsc.h), the holder of the lock takes all
 *   backlog   taken, but the machine had no row for the first of them: before anything else that is submitted
 *
 * Who pushes onto an empty queue sees to it that somebody comes: it takes the lock if it got free meanwhile, or else
 * the link queues for the driver. A thread's own order holds: who gets the lock empties the queue before it submits.
 *
 * An error that the machine finds is the operation's result then, not the submission's. There is no back-pressure in
 * the queue: while there is a backlog nobody pushes, and who gets the lock is told TERN_AGAIN.
 *
 * Must not be used without a helper: nobody would come. Threads: push any; the rest with the lock held.
 * Tests: tests/unit/channel/test_queue.c.
 */
#include "channel/queue.h"

#include "base/fail.h"
#include "channel/channel_impl.h"
#include "channel/gate.h"

/* What a queued message keeps in op->priv. */
typedef struct queued {
	tn_mpsc_node node;
	uint32_t count;
	tern_channel *channel;
	uint64_t detail; /* of tn_op_priv, */
	uint64_t handle; /* and this too: tern_cancel may look */
	tern_iovec iov[TN_QUEUE_IOV];
	uint64_t deadline_ns;
} __attribute__((may_alias)) queued;

_Static_assert(sizeof(queued) <= sizeof(((tern_op *)0)->priv), "a queued message waits inside its operation");
_Static_assert(offsetof(queued, handle) == offsetof(tn_op_priv, handle) &&
		       offsetof(queued, detail) == offsetof(tn_op_priv, detail),
	       "what others read lies where they look");

bool tn_queue_send(tern_channel *channel, const tern_iovec *iov, int count, uint64_t bytes, tern_op *op,
		   uint64_t deadline_ns)
{
	tern_link *link = channel->link;
	queued *q = (void *)op->priv;

	if (!link->ctx->roles.has_helper || count > TN_QUEUE_IOV ||
	    bytes > atomic_load_explicit(&channel->sent_bytes, memory_order_relaxed) ||
	    atomic_load_explicit(&link->sends.stuck, memory_order_relaxed) ||
	    atomic_load_explicit(&link->status, memory_order_relaxed) != TERN_OK)
		return false;
	q->count = (uint32_t)count;
	q->channel = channel;
	for (int i = 0; i < count; i++)
		q->iov[i] = iov[i];
	q->deadline_ns = deadline_ns;
	if (!tn_mpsc_push(&link->sends.queued, &q->node))
		return true;
	if (!tn_lock_try(&link->lock)) {
		tn_shell_attention(link);
		return true;
	}
	tn_shell_run(link, tn_ctx_now(link->ctx));
	tn_lock_drop(&link->lock);
	return true;
}

/* False: the machine has no room, nothing happened. */
static bool submit(tern_link *link, queued *q)
{
	tern_op *op = TN_CONTAINER_OF((uint64_t(*)[10])(void *)q, tern_op, priv);
	tn_link_op_params params = {.user = op,
				    .deadline_ns = q->deadline_ns,
				    .level = op->flags & TERN_OP_REMOTE ? TN_LINK_REMOTE : TN_LINK_LOCAL,
				    .over = true};
	tern_iovec iov[TN_QUEUE_IOV];
	uint64_t bytes = 0;
	tern_status status;

	for (uint32_t i = 0; i < q->count; i++) {
		iov[i] = q->iov[i];
		bytes += iov[i].bytes;
	}
	status = tn_channel_usable(q->channel);
	if (status == TERN_OK)
		status = tn_link_send(link->m, q->channel->handle, (const tn_link_iov *)(const void *)iov,
				      q->count, &params, &q->handle);
	if (status == TERN_AGAIN)
		return false;
	if (status == TERN_OK) {
		tn_count_own(&link->counters.messages_tx, 1);
		tn_count_own(&link->counters.message_bytes_tx, bytes);
		tn_count_own(&link->counters.queued, 1);
	} else {
		tn_op_finish(link->ctx, op, status, 0, tn_details_put(link->ctx, tn_detail_get()));
	}
	return true;
}

bool tn_queue_empty_into(tern_link *link)
{
	tn_sends *s = &link->sends;
	bool some = false;

	for (;;) {
		tn_mpsc_node *node = s->backlog, *next;

		if (!node)
			node = tn_mpsc_take(&s->queued);
		if (!node)
			break;
		next = node->next; /* the operation may be over, and gone, after its submission */
		s->backlog = node;
		if (!submit(link, (queued *)(void *)node)) {
			atomic_store_explicit(&s->stuck, true, memory_order_relaxed);
			return some;
		}
		s->backlog = next;
		some = true;
		if (next)
			__builtin_prefetch(next->next);
	}
	atomic_store_explicit(&s->stuck, false, memory_order_relaxed);
	return some;
}
