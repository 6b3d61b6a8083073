/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who drives progress. At any time at most one thread has the role of a context: it polls devices, serves
 * control connections and runs callbacks. The helper has it when nobody waits; a thread that waits takes it
 * over, so that an event costs one wake-up, that of the thread it is for.
 *
 *   role     FREE          nobody; a helper comes back after a linger, or the caller drives (no helper)
 *            HELPER_ASLEEP the helper sleeps in epoll: anybody may steal the role
 *            TAKEN         one running or sleeping thread
 *   driver   the thread that has the role
 *   follower a thread that waits while another drives: sleeps on its own futex word until its predicate
 *            holds or the role is handed to it
 *   linger   after a hand-back the helper stays parked for a short while, because whoever waited will
 *            likely wait again soon; a timer descriptor wakes it. Every hand-back moves the end on. How long
 *            it is follows from whether the helper was needed (helper.c)
 *
 *   followers > 0  =>  whoever gives the role up hands it to the first of them
 *   role == FREE and there is a helper  =>  the linger timer is armed or about to be
 *
 * The helper alone runs timers and liveness, parked or not. Threads: any. Tests: tests/unit/channel/test_roles.c.
 */
#ifndef TN_CHANNEL_ROLES_H
#define TN_CHANNEL_ROLES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tern/ctx.h>

#include "base/list.h"
#include "base/os.h"
#include "channel/lock.h"
#include "channel/progress.h"

#define TN_ROLE_LINGER_NS     200000ull
#define TN_ROLE_LINGER_MAX_NS 5000000ull

enum { TN_ROLE_FREE, TN_ROLE_HELPER_ASLEEP, TN_ROLE_TAKEN };

/* What a thread waits for: read under no lock, from any thread, while its owner waits. */
typedef bool (*tn_wait_pred)(void *arg);

typedef struct tn_roles {
	_Atomic uint32_t role;
	_Atomic uint32_t asleep; /* the driver sleeps in epoll or is about to: an event for it needs a kick */
	_Atomic uint32_t
		in_epoll; /* 1: the helper sleeps on the context's epoll; 2: and somebody waits for it to leave */
	_Atomic uint32_t followers;    /* nodes in list */
	_Atomic uint64_t linger_until; /* the helper does not come back before */
	_Atomic uint32_t
		linger_armed; /* the timer goes off at linger_until or earlier, or has and was not read */
	_Atomic uint64_t linger_ns; /* how long it is now: helper.c */
	_Atomic uint32_t stop;
	_Atomic uint64_t helper_until; /* the helper sleeps until then: an earlier timer must wake it */
	tn_lock lock;                  /* list */
	tn_list list;
	tn_watch wake;  /* eventfd in the context's epoll: kicks the driver */
	tn_watch evict; /* eventfd in the context's epoll: gets the helper out of it */
	int helper_fd;  /* eventfd in the helper's parking poll */
	int linger_fd;  /* timerfd in the helper's parking poll */
	tn_watch
		tick; /* timerfd in the context's epoll: the next timer, or earlier. A timer of its own, because
			   a time-out of each epoll_wait costs more than the wait */
	uint64_t tick_at;
	tn_thread helper;
	bool has_helper;
} tn_roles;

tern_status tn_roles_init(tern_ctx *ctx);
void tn_roles_fini(tern_ctx *ctx);
tern_status tn_roles_start_helper(tern_ctx *ctx);
/* Ends the helper and joins it; the role is free afterwards. */
void tn_roles_stop_helper(tern_ctx *ctx);

/* tn_role_try and tn_role_give (ctx_impl.h) of a context that threads share. */
bool tn_role_try_shared(tern_ctx *ctx);
void tn_role_give_shared(tern_ctx *ctx);
/* Hand it to a follower if there is one; true: it is his now. */
bool tn_role_hand_over(tern_ctx *ctx);
/* Set the linger timer unless it is. */
void tn_role_arm_linger(tn_roles *r, uint64_t until_ns);

/*
 * Wait until pred holds, driving progress or following whoever does. until_ns: TN_TIME_NEVER = without end.
 * TERN_OK, TERN_E_DEADLINE; TERN_E_STATE from a callback.
 */
tern_status tn_wait_until(tern_ctx *ctx, tn_wait_pred pred, void *arg, uint64_t until_ns);

/* Something for the driver came up (a queue was empty before): wake it if it sleeps. Any thread. */
void tn_roles_kick(tern_ctx *ctx);
/* A predicate may have come true: wake followers whose does, and a sleeping driver. Any thread. */
void tn_roles_check_waiters(tern_ctx *ctx);
/* The context's descriptor becomes readable at at_ns or earlier. The driver's. */
void tn_roles_set_tick(tern_ctx *ctx, uint64_t at_ns);
/* A timer was set for at_ns: wake the helper if that is earlier than what it sleeps for. */
void tn_roles_timer_set(tern_ctx *ctx, uint64_t at_ns);

#endif
