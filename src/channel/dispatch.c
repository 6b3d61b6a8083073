/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatch queue and the timers of a context. See dispatch.h.
 * Threads: see dispatch.h. Tests: tests/unit/channel/test_roles.c.
 */
#include "channel/dispatch.h"

#include "base/clock.h"
#include "base/os.h"
#include "channel/ctx_impl.h"
#include "channel/roles.h"

_Thread_local unsigned tn_dispatch_depth TN_TLS_FAST;

_Thread_local tn_tellings tn_told_later TN_TLS_FAST;

void tn_tell_waiters(tern_ctx *ctx)
{
	if (tn_told_later.depth > 0) {
		tn_told_later.due = true;
		return;
	}
	tn_told_later.due = false;
	tn_ctx_count_event(ctx); /* whoever waits for anything to happen looks again */
	tn_roles_check_waiters(ctx);
}

/* Rounds of one run: callbacks that submit keep a queue filled; devices want to be polled in between. */
#define DISPATCH_ROUNDS 4

_Static_assert(offsetof(tn_work, next) == offsetof(tn_mpsc_node, next), "tn_work is a node of the queue");

void tn_dispatch_push(tern_ctx *ctx, tn_work *work)
{
	tn_mpsc *queue = &ctx->dispatch.queue;
	tn_mpsc_node *node = (tn_mpsc_node *)work;

	if (ctx->single_owner) {
		node->next = atomic_load_explicit(&queue->top, memory_order_relaxed);
		atomic_store_explicit(&queue->top, node, memory_order_relaxed);
	} else if (tn_mpsc_push(queue, node)) {
		tn_roles_kick(ctx);
	}
}

void tn_ctx_defer(tern_ctx *ctx, tn_work *work)
{
	tn_dispatch_push(ctx, work);
}

int tn_dispatch_run(tern_ctx *ctx)
{
	int n = 0;

	if (tn_mpsc_empty(&ctx->dispatch.queue))
		return 0;
	tn_dispatch_depth++;
	for (int round = 0; round < DISPATCH_ROUNDS; round++) {
		tn_mpsc_node *node = tn_mpsc_take(&ctx->dispatch.queue);

		if (!node)
			break;
		while (node) {
			tn_work *work = (tn_work *)node;

			node = node->next; /* the work may be gone after its run */
			work->run(work);
			n++;
		}
	}
	tn_dispatch_depth--;
	return n;
}

/* ---- timers ---- */

static _Thread_local char thread_identity;

void tn_ctx_timers_init(tern_ctx *ctx)
{
	tn_lock_init(&ctx->timers.lock, ctx->single_owner);
	atomic_init(&ctx->timers.next_ns, TN_TIME_NEVER);
}

uint64_t tn_ctx_timers_next(tern_ctx *ctx)
{
	return atomic_load_explicit(&ctx->timers.next_ns, memory_order_seq_cst);
}

/* Lock held. */
static void publish_next(tn_ctx_timers *t)
{
	atomic_store_explicit(&t->next_ns, tn_timer_next(&t->set), memory_order_seq_cst);
}

void tn_ctx_timer_set(tern_ctx *ctx, tn_ctx_timer *timer, uint64_t at_ns)
{
	tn_ctx_timers *t = &ctx->timers;
	uint64_t before;
	bool earlier;

	tn_lock_take(&t->lock);
	before = tn_timer_next(&t->set);
	tn_timer_set(&t->set, &timer->node, at_ns);
	publish_next(t);
	earlier = tn_timer_next(&t->set) < before;
	tn_lock_drop(&t->lock);
	if (earlier)
		tn_roles_timer_set(ctx, at_ns);
}

void tn_ctx_timer_cancel(tern_ctx *ctx, tn_ctx_timer *timer)
{
	tn_ctx_timers *t = &ctx->timers;

	tn_lock_take(&t->lock);
	for (;;) {
		uint32_t finished = atomic_load_explicit(&t->finished, memory_order_acquire);

		if (timer->node.armed)
			tn_timer_cancel(&t->set, &timer->node);
		if (t->running != timer || t->runner == &thread_identity)
			break;
		t->cancellers++;
		tn_lock_drop(&t->lock);
		tn_os_futex_wait(&t->finished, finished, UINT64_MAX, false);
		tn_lock_take(&t->lock);
		t->cancellers--;
	}
	publish_next(t);
	tn_lock_drop(&t->lock);
}

int tn_ctx_timers_run(tern_ctx *ctx, uint64_t now_ns)
{
	tn_ctx_timers *t = &ctx->timers;
	tn_timer *node;
	int n = 0;

	if (now_ns < tn_ctx_timers_next(ctx))
		return 0;
	tn_dispatch_depth++;
	tn_lock_take(&t->lock);
	while ((node = tn_timer_expire(&t->set, now_ns))) {
		tn_ctx_timer *timer = TN_CONTAINER_OF(node, tn_ctx_timer, node);

		t->running = timer;
		t->runner = &thread_identity;
		tn_lock_drop(&t->lock);
		timer->run(timer); /* may free, set or cancel it */
		n++;
		tn_lock_take(&t->lock);
		t->running = NULL;
		atomic_fetch_add_explicit(&t->finished, 1, memory_order_release);
		if (t->cancellers)
			tn_os_futex_wake(&t->finished, INT32_MAX, false);
	}
	publish_next(t);
	tn_lock_drop(&t->lock);
	tn_dispatch_depth--;
	return n;
}
