/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The role's hand-over between waiting threads, and their wait loops. The helper's own loop: helper.c.
 *
 *               steal / try                     give: followers == 0
 *   HELPER_ASLEEP -------> TAKEN (by a waiter) ---------------------> FREE
 *        ^   woken by epoll  ^   |                                     |
 *        |                   |   | give: to the first follower         | linger over (helper)
 *        |  armed            |   v (stays TAKEN)                       v
 *        +---------------- TAKEN (by the helper) <---------------------+
 *
 * Pairs of which at least one side sees the other (sequentially consistent accesses, no fences: the thread
 * sanitizer understands those):
 *   role      / linger_armed                       the helper looks again, or the timer is set
 *   asleep    / the dispatch queue, predicates     a kick or a re-check, never neither
 *   role      / followers                          a hand-over or a steal
 *
 * Threads: any. Tests: tests/unit/channel/test_roles.c.
 */
#include "channel/roles.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>

#include "base/clock.h"
#include "base/fail.h"
#include "channel/ctx_impl.h"
#include "channel/progress.h"
#include "channel/push.h"

typedef struct follower {
	tn_list node;
	tn_wait_pred pred;
	void *arg;
	_Atomic uint32_t word; /* futex */
} follower;

enum { FOLLOWER_SLEEPS, FOLLOWER_LOOK, FOLLOWER_DRIVES };

bool tn_role_try_shared(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;
	uint32_t seen = atomic_load_explicit(&r->role, memory_order_seq_cst);

	if (seen == TN_ROLE_TAKEN ||
	    !atomic_compare_exchange_strong_explicit(&r->role, &seen, TN_ROLE_TAKEN, memory_order_seq_cst,
						     memory_order_relaxed))
		return false;
	if (seen == TN_ROLE_HELPER_ASLEEP)
		atomic_store_explicit(&r->asleep, 0, memory_order_seq_cst);
	return true;
}

/* Lock held: pass the role on if somebody waits for it. */
static bool hand_over(tn_roles *r)
{
	tn_list *node = tn_list_pop_front(&r->list);
	follower *f;

	if (!node)
		return false;
	f = TN_LIST_ENTRY(node, follower, node);
	atomic_fetch_sub_explicit(&r->followers, 1, memory_order_relaxed);
	atomic_store_explicit(&f->word, FOLLOWER_DRIVES, memory_order_release);
	tn_os_futex_wake(&f->word, 1, false);
	return true;
}

static __attribute__((noinline)) bool look_for_follower(tn_roles *r)
{
	bool done;

	tn_lock_take(&r->lock);
	done = hand_over(r);
	tn_lock_drop(&r->lock);
	return done;
}

bool tn_role_hand_over(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;

	return atomic_load_explicit(&r->followers, memory_order_seq_cst) != 0 && look_for_follower(r);
}

void tn_role_arm_linger(tn_roles *r, uint64_t until_ns)
{
	struct itimerspec at = {.it_value = {.tv_sec = (time_t)(until_ns / TN_NS_PER_SEC),
					     .tv_nsec = (long)(until_ns % TN_NS_PER_SEC)}};

	/* The role was given up before: the helper, which takes the mark off first, sees that if this sees the mark. */
	if (!atomic_load_explicit(&r->linger_armed, memory_order_seq_cst) &&
	    !atomic_exchange_explicit(&r->linger_armed, 1, memory_order_seq_cst))
		timerfd_settime(r->linger_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/*
 * While threads take turns the end of the linger moves ahead of the timer, which stays as it is: setting it costs more than a
 * small call over shm (a virtual machine leaves to its host for that). The helper that comes too early for that sets it anew.
 */
static void linger(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;
	uint64_t until = tn_ctx_now(ctx) + atomic_load_explicit(&r->linger_ns, memory_order_relaxed);

	atomic_store_explicit(&r->linger_until, until, memory_order_relaxed);
	tn_role_arm_linger(r, until);
	if (atomic_load_explicit(&r->in_epoll, memory_order_seq_cst))
		tn_os_event_signal(r->evict.fd); /* to where the linger timer is seen */
}

void tn_role_give_shared(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;

	TN_ASSERT(atomic_load_explicit(&r->role, memory_order_relaxed) == TN_ROLE_TAKEN);
	for (;;) {
		uint32_t free_role = TN_ROLE_FREE;

		if (tn_role_hand_over(ctx))
			return;
		atomic_store_explicit(&r->role, TN_ROLE_FREE, memory_order_seq_cst);
		if (r->has_helper)
			linger(ctx);
		/* Somebody began to follow in between? Then take it back for him, unless he did himself. */
		if (atomic_load_explicit(&r->followers, memory_order_seq_cst) == 0 ||
		    !atomic_compare_exchange_strong_explicit(&r->role, &free_role, TN_ROLE_TAKEN,
							     memory_order_seq_cst, memory_order_relaxed))
			return;
	}
}

void tn_roles_kick(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;

	if (ctx->single_owner)
		return;
	/* A read-modify-write: it comes before or after the sleeper's exchange, and either sees the other. */
	if (atomic_fetch_or_explicit(&r->asleep, 0, memory_order_seq_cst) &&
	    atomic_exchange_explicit(&r->asleep, 0, memory_order_seq_cst))
		tn_os_event_signal(r->wake.fd);
}

void tn_roles_check_waiters(tern_ctx *ctx)
{
	tn_roles *r = &ctx->roles;

	tn_roles_kick(ctx);
	if (ctx->single_owner || atomic_fetch_or_explicit(&r->followers, 0, memory_order_seq_cst) == 0)
		return;
	tn_lock_take(&r->lock);
	TN_LIST_FOREACH_SAFE(node, &r->list) {
		follower *f = TN_LIST_ENTRY(node, follower, node);

		if (!f->pred(f->arg))
			continue;
		tn_list_remove(node);
		atomic_fetch_sub_explicit(&r->followers, 1, memory_order_relaxed);
		atomic_store_explicit(&f->word, FOLLOWER_LOOK, memory_order_release);
		tn_os_futex_wake(&f->word, 1, false);
	}
	tn_lock_drop(&r->lock);
}

/* The helper must not sleep on the epoll that this thread is going to sleep on: it would eat the wake-ups. */
static void evict_helper(tn_roles *r)
{
	uint32_t in = atomic_load_explicit(&r->in_epoll, memory_order_seq_cst);

	if (TN_LIKELY(in == 0))
		return;
	tn_os_event_signal(r->evict.fd);
	while ((in = atomic_load_explicit(&r->in_epoll, memory_order_seq_cst)) != 0) {
		if (in == 1 && !atomic_compare_exchange_strong_explicit(
				       &r->in_epoll, &in, 2, memory_order_seq_cst, memory_order_relaxed))
			continue;
		tn_os_futex_wait(&r->in_epoll, 2, UINT64_MAX, false);
	}
}

/*
 * The driver found nothing to do: arm and sleep, at most until until_ns, and handle what came. TERN_BUSY:
 * there is something to do at once, or pred holds.
 */
static tern_status drive_sleep(tern_ctx *ctx, tn_wait_pred pred, void *arg, uint64_t until_ns)
{
	tn_roles *r = &ctx->roles;

	if (!tn_progress_arm(ctx, ctx->spin_ns > 0))
		return TERN_BUSY;
	evict_helper(r);
	atomic_exchange_explicit(&r->asleep, 1, memory_order_seq_cst);
	if (tn_progress_pending(ctx) || pred(arg)) {
		atomic_store_explicit(&r->asleep, 0, memory_order_relaxed);
		return TERN_BUSY;
	}
	if (!r->has_helper)
		tn_roles_set_tick(ctx, tn_ctx_timers_next(ctx));
	return tn_progress_sleep(ctx, until_ns);
}

/*
 * Has the role; returns with it. Without spinning a turn goes straight to arm, which says BUSY if there is
 * something to poll: so a blocking wait costs one epoll_wait and one poll.
 */
static tern_status drive_until(tern_ctx *ctx, tn_wait_pred pred, void *arg, uint64_t until_ns)
{
	uint64_t now = 0, began = 0, spin_until = ctx->spin_ns == UINT64_MAX ? TN_TIME_NEVER : 0;
	tern_status status = ctx->spin_ns ? TERN_BUSY : TERN_OK;
	unsigned turns = 0;

	while (!pred(arg)) {
		int n = 0;

		if (status == TERN_BUSY || ctx->spin_ns) {
			n = tn_progress_round(ctx);
			if (pred(arg)) {
				if (spin_until)
					tn_spin_caught(&ctx->spin);
				return TERN_OK;
			}
		}
		if (ctx->spin_ns && (++turns & TN_SPIN_CLOCK_MASK)) {
			if (n == 0)
				tn_cpu_relax();
			continue;
		}
		now = tn_ctx_now(ctx);
		if (now >= until_ns)
			return TERN_E_DEADLINE;
		if (!ctx->roles.has_helper)
			n += tn_ctx_timers_run(ctx, now);
		if (spin_until != TN_TIME_NEVER && (n > 0 || spin_until == 0)) {
			began = now;
			spin_until = now + tn_spin_budget(&ctx->spin, ctx->spin_ns);
		}
		if (ctx->spin_ns && now < spin_until)
			continue;
		status = drive_sleep(ctx, pred, arg, until_ns);
		if (status != TERN_OK && status != TERN_BUSY)
			return status;
		if (ctx->spin_ns && status == TERN_OK)
			tn_spin_slept(&ctx->spin, ctx->spin_ns, true, tn_ctx_now(ctx) - began);
		spin_until = spin_until == TN_TIME_NEVER ? spin_until : 0; /* something came: spin anew */
	}
	return TERN_OK;
}

/* True: this thread has the role now. False: predicate or deadline. */
static bool follow(tern_ctx *ctx, tn_wait_pred pred, void *arg, uint64_t until_ns)
{
	tn_roles *r = &ctx->roles;
	follower f = {.pred = pred, .arg = arg};
	uint64_t now;

	tn_lock_take(&r->lock);
	tn_list_push_back(&r->list, &f.node);
	atomic_fetch_add_explicit(&r->followers, 1, memory_order_seq_cst);
	tn_lock_drop(&r->lock);
	/* The driver may have looked at the list just before: look at both again. */
	while (atomic_load_explicit(&f.word, memory_order_acquire) == FOLLOWER_SLEEPS && !pred(arg)) {
		if (tn_role_try(ctx)) {
			tn_lock_take(&r->lock);
			if (atomic_load_explicit(&f.word, memory_order_relaxed) == FOLLOWER_SLEEPS) {
				tn_list_remove(&f.node);
				atomic_fetch_sub_explicit(&r->followers, 1, memory_order_relaxed);
			}
			tn_lock_drop(&r->lock);
			return true; /* nobody hands over what this thread has: the word is not DRIVES */
		}
		now = tn_ctx_now(ctx);
		if (now >= until_ns)
			break;
		tn_os_futex_wait(&f.word, FOLLOWER_SLEEPS,
				 until_ns == TN_TIME_NEVER ? UINT64_MAX : until_ns - now, false);
	}
	tn_lock_take(&r->lock);
	if (atomic_load_explicit(&f.word, memory_order_relaxed) == FOLLOWER_SLEEPS) {
		tn_list_remove(&f.node);
		atomic_fetch_sub_explicit(&r->followers, 1, memory_order_relaxed);
	}
	tn_lock_drop(&r->lock);
	return atomic_load_explicit(&f.word, memory_order_acquire) == FOLLOWER_DRIVES;
}

tern_status tn_wait_until(tern_ctx *ctx, tn_wait_pred pred, void *arg, uint64_t until_ns)
{
	tern_status status = TERN_OK;

	if (pred(arg))
		return TERN_OK;
	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	tn_push(ctx);
	while (ctx->hooks && !pred(arg) && tn_ctx_now(ctx) < until_ns)
		ctx->hooks->turn(ctx->hooks->arg, until_ns);
	if (ctx->hooks && !pred(arg))
		status = TERN_E_DEADLINE;
	while (status == TERN_OK && !pred(arg)) {
		if (tn_role_try(ctx) || follow(ctx, pred, arg, until_ns)) {
			status = drive_until(ctx, pred, arg, until_ns);
			tn_role_give(ctx);
			break;
		}
		if (!pred(arg) && tn_ctx_now(ctx) >= until_ns) {
			status = TERN_E_DEADLINE;
			break;
		}
	}
	if (status == TERN_E_DEADLINE)
		tn_fail(status, "waiting ended before the event came; what was waited for goes on");
	return status;
}
