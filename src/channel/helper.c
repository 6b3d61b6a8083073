/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helper thread: drives progress when nobody waits, runs timers and liveness always.
 *
 *   drive  has the role: rounds, behind two short sleeps a spin, then arm and sleep in epoll (HELPER_ASLEEP: a waiter may
 *          steal the role)
 *   park   has it not: sleeps on the linger timer, a kick, the push timer and the next timer
 *
 * Threads: this one. Tests: tests/unit/channel/test_roles.c.
 */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "channel/ctx_impl.h"
#include "channel/progress.h"
#include "channel/push.h"
#include "channel/roles.h"
#include "channel/shell.h"

static bool stopping(const tn_roles *r)
{
	return atomic_load_explicit(&r->stop, memory_order_acquire) != 0;
}

static void leave_epoll(tn_roles *r)
{
	if (atomic_exchange_explicit(&r->in_epoll, 0, memory_order_seq_cst) == 2)
		tn_os_futex_wake(&r->in_epoll, INT32_MAX, false);
}

/* When to wake for timers. Published, so that whoever sets an earlier timer wakes this thread. */
static uint64_t sleep_until(tern_ctx *ctx)
{
	uint64_t at = tn_ctx_timers_next(ctx), again;

	for (;;) {
		atomic_store_explicit(&ctx->roles.helper_until, at, memory_order_seq_cst);
		again = tn_ctx_timers_next(ctx);
		if (again >= at)
			return at;
		at = again;
	}
}

typedef enum sleep_end { SLEPT_BUSY, SLEPT_WOKEN, SLEPT_STOLEN } sleep_end;

static sleep_end drive_sleep(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;
	uint32_t role = TN_ROLE_HELPER_ASLEEP;
	struct epoll_event events[TN_EPOLL_MAX];
	uint64_t until_ns;
	int n = 0;

	if (!tn_progress_arm(ctx, false))
		return SLEPT_BUSY;
	/* in_epoll before sleep_until: who sets an earlier timer sees one or the other. */
	atomic_store_explicit(&r->in_epoll, 1, memory_order_seq_cst);
	until_ns = sleep_until(ctx);
	tn_roles_set_tick(ctx, TN_MIN(until_ns, tn_shell_reap_wake(ctx, tn_ctx_now(ctx))));
	atomic_exchange_explicit(&r->asleep, 1, memory_order_seq_cst);
	atomic_store_explicit(&r->role, TN_ROLE_HELPER_ASLEEP, memory_order_seq_cst);
	if (!tn_progress_pending(ctx) && atomic_load_explicit(&r->followers, memory_order_seq_cst) == 0 &&
	    !stopping(r))
		n = tn_progress_epoll(ctx, events, TN_TIME_NEVER);
	for (int i = 0; i < n; i++) {
		if (events[i].data.ptr == &r->evict)
			tn_os_event_drain(r->evict.fd); /* before whoever waits for us sleeps on it */
	}
	leave_epoll(r);
	if (!atomic_compare_exchange_strong_explicit(&r->role, &role, TN_ROLE_TAKEN, memory_order_seq_cst,
						     memory_order_relaxed))
		return SLEPT_STOLEN;
	atomic_store_explicit(&r->asleep, 0, memory_order_relaxed);
	if (n <= 0)
		return SLEPT_BUSY;
	tn_progress_ready(ctx, events, n);
	return SLEPT_WOKEN;
}

/*
 * The next linger is shorter if there was something for the helper to do, which has waited for the end of this one; longer if
 * there was not, because who came for nothing costs a waiter the way back.
 */
static void learn(tn_roles *r, bool needed)
{
	uint64_t ns = atomic_load_explicit(&r->linger_ns, memory_order_relaxed);

	ns = needed ? TN_MAX(ns / 2, TN_ROLE_LINGER_NS) : TN_MIN(2 * ns, TN_ROLE_LINGER_MAX_NS);
	atomic_store_explicit(&r->linger_ns, ns, memory_order_relaxed);
}

/* Looks on for a while. 0: nothing came, and nobody waits for the role. */
static int spin(tern_ctx *ctx)
{
	const tn_roles *r = &ctx->roles;
	uint64_t end = tn_ctx_now(ctx) + tn_spin_times(ctx->spin_ns, TN_SPIN_TIMES);
	int n = 0;

	for (unsigned turns = 1; n == 0; turns++) {
		if (atomic_load_explicit(&r->followers, memory_order_seq_cst) != 0)
			return 1;
		if (!(turns & TN_SPIN_CLOCK_MASK) && (tn_ctx_now(ctx) >= end || stopping(r)))
			break;
		tn_cpu_relax();
		n = tn_progress_round(ctx);
	}
	return n;
}

/*
 * Has the role. Returns without it. Requests that come one after the other are spun for as by a thread that waits: a server
 * that slept after each would cost its client the wake-up each time.
 */
static void drive(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;
	sleep_end slept = SLEPT_BUSY;
	tn_spin keenness = {0};
	uint64_t idle = 0;
	bool needed = false;

	while (slept != SLEPT_STOLEN) {
		int n = slept == SLEPT_BUSY ? tn_progress_round(ctx) : 0;
		uint64_t now = tn_ctx_now(ctx);

		needed |= n > 0 || slept == SLEPT_WOKEN;
		if (slept == SLEPT_WOKEN && ctx->spin_ns)
			tn_spin_slept(&keenness, ctx->spin_ns, tn_spin_keen(&keenness), now - idle);
		n += tn_ctx_timers_run(ctx, now);
		if (stopping(r)) {
			tn_role_give(ctx);
			return;
		}
		if (tn_role_hand_over(ctx))
			return;
		idle = now;
		if (n == 0 && tn_spin_keen(&keenness) && (n = spin(ctx)) > 0)
			tn_spin_caught(&keenness);
		slept = n > 0 ? SLEPT_BUSY : drive_sleep(ctx);
	}
	learn(r, needed);
}

/* The linger timer went off. True: nobody takes turns any more, drive again. */
static bool linger_over(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;
	uint64_t ticks, until;

	if (read(r->linger_fd, &ticks, sizeof(ticks)) != sizeof(ticks))
		return false;
	atomic_store_explicit(&r->linger_armed, 0, memory_order_seq_cst);
	if (atomic_load_explicit(&r->role, memory_order_seq_cst) == TN_ROLE_FREE) {
		until = atomic_load_explicit(&r->linger_until, memory_order_relaxed);
		if (tn_ctx_now(ctx) >= until)
			return tn_role_try(ctx);
		tn_role_arm_linger(r, until);
	}
	learn(r, false);
	return false;
}

/* Has not the role. True: it has it now. */
static bool park(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;
	struct pollfd fds[3] = {{.fd = r->helper_fd, .events = POLLIN},
				{.fd = r->linger_fd, .events = POLLIN},
				{.fd = ctx->push_watch.fd, .events = POLLIN}};
	uint64_t until_ns;

	tn_ctx_timers_run(ctx, tn_ctx_now(ctx));
	until_ns = sleep_until(ctx);
	if (stopping(r))
		return false;
	if (poll(fds, TN_COUNT_OF(fds), tn_poll_timeout_ms(tn_ctx_now(ctx), until_ns)) <= 0)
		return false;
	if (fds[0].revents)
		tn_os_event_drain(r->helper_fd);
	if (fds[2].revents)
		tn_push_timer(ctx);
	return fds[1].revents && linger_over(ctx);
}

static void *helper_main(void *arg)
{
	tern_ctx *ctx = arg;
	tn_roles *r = &ctx->roles;
	bool mine = tn_role_try(ctx);

	tn_log_set_thread_name(ctx->name);
	tn_os_thread_brisk();
	while (!stopping(r)) {
		if (mine)
			drive(ctx);
		mine = park(ctx);
	}
	if (mine)
		tn_role_give(ctx);
	return NULL;
}

void tn_roles_timer_set(tern_ctx *ctx, uint64_t at_ns)
{
	tn_roles *r = &ctx->roles;

	if (!r->has_helper) {
		/* A driver that sleeps has computed its time-out: let it do that again. */
		tn_roles_kick(ctx);
		return;
	}
	if (at_ns >= atomic_load_explicit(&r->helper_until, memory_order_seq_cst))
		return;
	tn_os_event_signal(r->helper_fd);
	if (atomic_load_explicit(&r->in_epoll, memory_order_seq_cst))
		tn_os_event_signal(r->evict.fd);
}

static int wake_ready(tn_watch *watch, uint32_t events)
{
	(void)events;
	tn_os_event_drain(watch->fd);
	/* tern_ctx_wake counts as an event for everybody who waits, not for the driver alone. */
	tn_roles_check_waiters(TN_CONTAINER_OF(watch, tern_ctx, roles.wake));
	return 0;
}

static int drain_watch(tn_watch *watch, uint32_t events)
{
	(void)events;
	tn_os_event_drain(watch->fd);
	return 0;
}

static int tick_ready(tn_watch *watch, uint32_t events)
{
	tern_ctx *ctx = TN_CONTAINER_OF(watch, tern_ctx, roles.tick);
	uint64_t ticks;

	(void)events;
	if (read(watch->fd, &ticks, sizeof(ticks)) < 0)
		return 0;
	ctx->roles.tick_at = TN_TIME_NEVER;
	if (ctx->roles.has_helper)
		return 0; /* the helper runs them: in its loop, or parked */
	return tn_ctx_timers_run(ctx, tn_ctx_now(ctx));
}

void tn_roles_set_tick(tern_ctx *ctx, uint64_t at_ns)
{
	struct itimerspec at = {.it_value = {.tv_sec = (time_t)(at_ns / TN_NS_PER_SEC),
					     .tv_nsec = (long)(at_ns % TN_NS_PER_SEC)}};

	if (at_ns >= ctx->roles.tick_at)
		return; /* it goes off early and is set anew then */
	ctx->roles.tick_at = at_ns;
	timerfd_settime(ctx->roles.tick.fd, TFD_TIMER_ABSTIME, &at, NULL);
}

tern_status tn_roles_init(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;

	tn_list_init(&r->list);
	tn_lock_init(&r->lock, ctx->single_owner);
	r->wake.ready = wake_ready;
	r->evict.ready = drain_watch;
	r->wake.fd = r->evict.fd = r->tick.fd = r->helper_fd = r->linger_fd = -1;
	r->tick_at = TN_TIME_NEVER;
	atomic_init(&r->helper_until, TN_TIME_NEVER);
	atomic_init(&r->linger_ns, TN_ROLE_LINGER_NS);
	TN_TRY(tn_os_event_create(&r->wake.fd));
	TN_TRY(tn_progress_watch(ctx, &r->wake, EPOLLIN));
	r->tick.ready = tick_ready;
	r->tick.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (r->tick.fd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "timerfd_create", "tick");
	TN_TRY(tn_progress_watch(ctx, &r->tick, EPOLLIN));
	if (ctx->no_helper)
		return TERN_OK;
	TN_TRY(tn_os_event_create(&r->evict.fd));
	TN_TRY(tn_os_event_create(&r->helper_fd));
	r->linger_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (r->linger_fd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "timerfd_create", "helper");
	return tn_progress_watch(ctx, &r->evict, EPOLLIN);
}

tern_status tn_roles_start_helper(tern_ctx *ctx)
{
	tern_status status;

	if (ctx->no_helper)
		return TERN_OK;
	ctx->roles.has_helper = true;
	status = tn_os_thread_start(&ctx->roles.helper, "tern-helper", helper_main, ctx);
	if (status != TERN_OK)
		ctx->roles.has_helper = false;
	return status;
}

void tn_roles_stop_helper(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;

	if (!r->helper.started)
		return;
	atomic_store_explicit(&r->stop, 1, memory_order_seq_cst);
	tn_os_event_signal(r->helper_fd);
	tn_os_event_signal(r->evict.fd);
	tn_os_thread_join(&r->helper);
	r->has_helper = false;
}

void tn_roles_fini(tern_ctx *ctx)
{
	tn_os_close(&ctx->roles.wake.fd);
	tn_os_close(&ctx->roles.evict.fd);
	tn_os_close(&ctx->roles.tick.fd);
	tn_os_close(&ctx->roles.helper_fd);
	tn_os_close(&ctx->roles.linger_fd);
}
