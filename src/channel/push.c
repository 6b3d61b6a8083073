/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bursts of small posts: see push.h. A post that costs a system call takes microseconds, so the time between the end of
 * one and the next tells a burst from operations that wait for each other.
 *
 * Must not run callbacks. Threads: any; link->lock where push.h says so, ctx->pushes without. Tests:
 * tests/unit/channel/test_push.c.
 */
#include "channel/push.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "channel/dispatch.h"
#include "channel/progress.h"

#define PUSH_NS     100000u
#define PUSH_MAX_NS 1000000u

#define BURST_BEFORE \
	(1u << 31) /* in link->burst, above the number held back since the last push: that one was a burst */

bool tn_push_may_hold(tern_link *link, const tn_shell_lane *slane, uint64_t bytes)
{
	if (!slane->sdev->caps.batches || bytes > TN_PUSH_BYTES)
		return false;
	/* Events of this context wait, if it is in one of its callbacks: their number is read by chance elsewhere. */
	if (tn_in_dispatch() && atomic_load_explicit(&link->ctx->events_left, memory_order_relaxed))
		return true;
	return tn_ctx_now(link->ctx) - link->posted_ns <
	       (link->burst >= TN_PUSH_BURST ? TN_PUSH_NEXT_NS : TN_PUSH_GAP_NS);
}

/* One timer for many posts: it is not taken back when they leave, and comes less often when that was for nothing. */
static void arm_timer(tern_ctx *ctx)
{
	uint64_t ns = atomic_load_explicit(&ctx->push_ns, memory_order_relaxed);
	struct itimerspec at = {.it_value = {.tv_nsec = (long)ns}};

	/* An exchange on both sides: this one sees the timer go off, or the timer's thread what was queued here. */
	if (atomic_exchange_explicit(&ctx->push_armed, true, memory_order_seq_cst))
		return;
	timerfd_settime(ctx->push_watch.fd, 0, &at, NULL);
}

void tn_push_posted(tern_link *link, bool held)
{
	tern_ctx *ctx = link->ctx;

	link->posted_ns = tn_ctx_now(ctx);
	link->burst = held ? link->burst + 1 : 0;
	if (!held || link->push_queued)
		return;
	link->push_queued = true;
	tn_shell_ref(link);
	tn_mpsc_push(&ctx->pushes, &link->push);
	arm_timer(ctx);
}

/* Lock held. */
static void push_link(tern_link *link)
{
	link->push_queued = false;
	link->burst = (link->burst & ~BURST_BEFORE) >= TN_PUSH_BURST ? BURST_BEFORE : 0;
	TN_LIST_FOREACH(node, &link->lanes) {
		tn_shell_lane *slane = TN_LIST_ENTRY(node, tn_shell_lane, node);

		if (slane->lane->more)
			slane->lane->dev->ops->flush(slane->lane);
	}
}

void tn_push_all(tern_ctx *ctx)
{
	tn_mpsc_node *node = tn_mpsc_take(&ctx->pushes);

	while (node) {
		tern_link *link = TN_CONTAINER_OF(node, tern_link, push);

		node = node->next; /* it may be queued again as soon as the lock is dropped */
		tn_lock_take(&link->lock);
		push_link(link);
		tn_lock_drop(&link->lock);
		tn_shell_unref(link);
	}
}

void tn_push_timer(tern_ctx *ctx)
{
	bool late = !tn_mpsc_empty(&ctx->pushes);
	uint64_t ticks, ns = atomic_load_explicit(&ctx->push_ns, memory_order_relaxed);

	if (read(ctx->push_watch.fd, &ticks, sizeof(ticks)) != sizeof(ticks))
		return;
	atomic_store_explicit(&ctx->push_ns, late ? PUSH_NS : TN_MIN(2 * ns, PUSH_MAX_NS),
			      memory_order_relaxed);
	/* Before the look: what is held from here on arms it again. */
	(void)atomic_exchange_explicit(&ctx->push_armed, false, memory_order_seq_cst);
	tn_push(ctx);
}

static int timer_ready(tn_watch *watch, uint32_t events)
{
	(void)events;
	tn_push_timer(TN_CONTAINER_OF(watch, tern_ctx, push_watch));
	return 0;
}

tern_status tn_push_init(tern_ctx *ctx)
{
	ctx->push_watch.ready = timer_ready;
	atomic_init(&ctx->push_ns, PUSH_NS);
	ctx->push_watch.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (ctx->push_watch.fd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "timerfd_create", "push");
	return tn_progress_watch(ctx, &ctx->push_watch, EPOLLIN);
}

void tn_push_fini(tern_ctx *ctx)
{
	tn_os_close(&ctx->push_watch.fd);
}
