/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of progress. See progress.h.
 *
 * All devices are polled each round, the control connections looked at now and then. A device that needs progress to
 * place data (tcp) asks the sockets that received last: a spinning driver pays a system call or two per round however
 * many lanes there are, and none between the arrival of a message and its bytes. What it placed without an event
 * (plain writes) it counts, so that whoever polls memory looks.
 *
 * A device is armed once and stays so until it is polled: one without lanes costs nothing. After an
 * epoll_wait only the devices that it named are polled: a blocking wait on tcp costs one epoll_wait of the
 * context and one poll of the device.
 *
 * Threads: the driver's. Tests: tests/unit/channel/test_roles.c.
 */
#include "channel/progress.h"

#include <errno.h>

#include "base/clock.h"
#include "base/fail.h"
#include "channel/ctx_impl.h"
#include "channel/events.h"
#include "channel/push.h"

tern_status tn_progress_watch(tern_ctx *ctx, tn_watch *watch, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = watch};

	if (epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, watch->fd, &ev) != 0)
		return tn_fail_errno(tn_status_of_errno(errno), "epoll_ctl", "descriptor %d", watch->fd);
	return TERN_OK;
}

void tn_progress_rewatch(tern_ctx *ctx, tn_watch *watch, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = watch};

	epoll_ctl(ctx->epoll_fd, EPOLL_CTL_MOD, watch->fd, &ev);
}

void tn_progress_unwatch(tern_ctx *ctx, tn_watch *watch)
{
	struct epoll_event ev = {0};

	epoll_ctl(ctx->epoll_fd, EPOLL_CTL_DEL, watch->fd, &ev);
}

/* A short message that came alone, without an event. Below 0: poll. */
static TN_ALWAYS_INLINE int take_one(tn_shell_dev *sdev)
{
	_Alignas(64) uint8_t room[TN_TAKE_BYTES];
	tn_lane *lane;
	int bytes = sdev->dev->ops->take(sdev->dev, room, &lane);

	if (bytes <= 0)
		return bytes;
	tn_shell_taken(sdev, lane, room, (uint64_t)bytes);
	return 1;
}

/* At most a few batches per device and round, so that one device cannot starve the others. */
static TN_ALWAYS_INLINE int poll_device_here(tn_shell_dev *sdev)
{
	tn_event events[TN_POLL_BATCH];
	int total = 0, n;

	sdev->armed = false;
	n = take_one(sdev);
	if (n >= 0)
		return n;
	do {
		n = tn_dev_poll(sdev->dev, events, TN_POLL_BATCH);
		if (n > 0) {
			tn_shell_events(sdev, events, n);
			total += n;
		}
	} while (n == TN_POLL_BATCH && total < 4 * TN_POLL_BATCH);
	if (sdev->placed != sdev->dev->placed) { /* whoever polls memory should look */
		sdev->placed = sdev->dev->placed;
		total += total == 0;
	}
	return total;
}

static __attribute__((noinline)) int poll_device(tn_shell_dev *sdev)
{
	return poll_device_here(sdev);
}

/* What devices and descriptors led to: link work of other threads, completions, callbacks. */
static TN_ALWAYS_INLINE int run_queues(tern_ctx *ctx, int handled)
{
	int n = 0;

	if (!tn_mpsc_empty(&ctx->attention))
		n += tn_shell_attend(ctx);
	if (!tn_mpsc_empty(&ctx->dispatch.queue))
		n += tn_dispatch_run(ctx);
	if (n + handled > 0) {
		ctx->worked = true;
		tn_ctx_count_event(ctx);
		if (atomic_load_explicit(&ctx->roles.followers, memory_order_seq_cst))
			tn_roles_check_waiters(ctx);
	}
	tn_push(ctx);
	if (TN_UNLIKELY(tn_shell_reapable(ctx)))
		tn_shell_reap(ctx);
	return n;
}

int tn_progress_epoll(tern_ctx *ctx, struct epoll_event events[TN_EPOLL_MAX], uint64_t until_ns)
{
	int timeout_ms = until_ns == 0               ? 0
			 : until_ns == TN_TIME_NEVER ? -1
						     : tn_poll_timeout_ms(tn_ctx_now(ctx), until_ns);

	return epoll_wait(ctx->epoll_fd, events, TN_EPOLL_MAX, timeout_ms);
}

static int handle_ready(struct epoll_event *events, int n)
{
	int handled = 0;

	for (int i = 0; i < n; i++) {
		tn_watch *watch = events[i].data.ptr;

		handled += watch->ready(watch, events[i].events);
	}
	return handled;
}

/* Is it time for the control connections of a context that spins? */
static bool control_due(tern_ctx *ctx)
{
	uint64_t now = tn_ctx_now(ctx);

	if (now - ctx->control_ns < (ctx->worked ? TN_CONTROL_BUSY_NS : TN_CONTROL_EVERY_NS))
		return false;
	ctx->control_ns = now;
	ctx->worked = false;
	return true;
}

static __attribute__((noinline)) int look_at_control(tern_ctx *ctx)
{
	struct epoll_event events[TN_EPOLL_MAX];

	ctx->look_at_control = false;
	return handle_ready(events, tn_progress_epoll(ctx, events, 0));
}

static TN_ALWAYS_INLINE int round_here(tern_ctx *ctx)
{
	bool look = ctx->look_at_control;
	int n = 0;

	for (unsigned i = 0; i < ctx->dev_count; i++)
		if (ctx->devs[i].lanes)
			n += poll_device_here(&ctx->devs[i]);
	if (TN_UNLIKELY((++ctx->rounds & 31u) == 0) && !look)
		look = control_due(ctx);
	if (look)
		n += look_at_control(ctx);
	return n + run_queues(ctx, n);
}

int tn_progress_round(tern_ctx *ctx)
{
	return round_here(ctx);
}

/* For a thread that has not the role yet, and timers now and then. */
int tern_ctx_progress(tern_ctx *ctx)
{
	int n;

	if (TN_UNLIKELY(tn_ctx_enter(ctx) != TERN_OK || tn_in_dispatch()))
		return 0;
	tn_push(ctx);
	if (TN_UNLIKELY(!tn_role_try(ctx)))
		return 0;
	n = round_here(ctx);
	if (TN_UNLIKELY((ctx->rounds & 31u) == 0) && !ctx->roles.has_helper)
		n += tn_ctx_timers_run(ctx, tn_ctx_now(ctx));
	tn_role_give(ctx);
	return n;
}

bool tn_progress_arm(tern_ctx *ctx, bool keen)
{
	tn_push(ctx);
	for (unsigned i = 0; i < ctx->dev_count; i++) {
		tn_shell_dev *sdev = &ctx->devs[i];
		tern_status status;

		if (sdev->armed)
			continue;
		sdev->dev->keen = keen;
		status = sdev->dev->ops->arm(sdev->dev);
		if (status == TERN_BUSY) {
			run_queues(ctx, poll_device(sdev));
			return false;
		}
		sdev->armed = true;
	}
	return !tn_progress_pending(ctx);
}

bool tn_progress_pending(tern_ctx *ctx)
{
	return !tn_mpsc_empty(&ctx->dispatch.queue) || !tn_mpsc_empty(&ctx->attention);
}

void tn_progress_ready(tern_ctx *ctx, struct epoll_event *events, int n)
{
	ctx->control_ns = 0;
	run_queues(ctx, handle_ready(events, n));
}

tern_status tn_progress_sleep(tern_ctx *ctx, uint64_t until_ns)
{
	struct epoll_event events[TN_EPOLL_MAX];
	int n;

	until_ns = TN_MIN(until_ns, tn_shell_reap_wake(ctx, tn_ctx_now(ctx)));
	n = tn_progress_epoll(ctx, events, until_ns);
	atomic_store_explicit(&ctx->roles.asleep, 0, memory_order_relaxed);
	if (n < 0 && errno != EINTR)
		return tn_fail_errno(TERN_E_OS, "epoll_wait", "descriptor %d", ctx->epoll_fd);
	if (n > 0)
		tn_progress_ready(ctx, events, n);
	else
		tn_shell_reap(ctx);
	return TERN_OK;
}

int tn_progress_device_ready(tn_watch *watch, uint32_t events)
{
	tn_shell_dev *sdev = TN_CONTAINER_OF(watch, tn_shell_dev, watch);
	int n;

	(void)events;
	n = poll_device(sdev);
	return n > 0 ? n
		     : 1; /* plain writes of a peer were placed, perhaps: whoever polls memory should look */
}
