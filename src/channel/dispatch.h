/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatch queue of a context: completions and deferred work, pushed from any thread, run by the driver
 * under no lock. And the timers. Both run functions of users, so both mark their thread as "in dispatch".
 *
 *   an operation with a callback completes here; one without is done where it is completed
 *
 * Threads: push, set and cancel from any; run by the thread that has the role (timers: by the helper).
 * Tests: tests/unit/channel/test_roles.c, test_xfer.c.
 */
#ifndef TN_CHANNEL_DISPATCH_H
#define TN_CHANNEL_DISPATCH_H

#include <stdbool.h>

#include "base/mpsc.h"
#include "base/timer.h"
#include "channel/ctx_slots.h"
#include "channel/lock.h"

/* The thread runs a callback, a timer or deferred work at present. */
extern _Thread_local unsigned tn_dispatch_depth TN_TLS_FAST;
static inline bool tn_in_dispatch(void)
{
	return tn_dispatch_depth != 0;
}

/*
 * Operations without callback that end between hold and release are told to waiting threads together, at the
 * release: one look at the list of waiters for a batch. Nests. May be called under a link's lock.
 */
typedef struct tn_tellings {
	uint32_t depth;
	bool due;
} tn_tellings;
extern _Thread_local tn_tellings tn_told_later TN_TLS_FAST;
void tn_tell_waiters(tern_ctx *ctx);

static inline void tn_tell_hold(void)
{
	tn_told_later.depth++;
}

static inline void tn_tell_release(tern_ctx *ctx)
{
	if (--tn_told_later.depth == 0 && tn_told_later.due)
		tn_tell_waiters(ctx);
}

typedef struct tn_dispatch {
	tn_mpsc queue;               /* of tn_work */
	_Atomic uint64_t dispatched; /* callbacks, messages and events handled so far: for tern_ctx_wait */
} tn_dispatch;

/* Queue for the driver and wake it if it sleeps. */
void tn_dispatch_push(tern_ctx *ctx, tn_work *work);
/* Run what was queued. Returns the number of items. */
int tn_dispatch_run(tern_ctx *ctx);

typedef struct tn_ctx_timers {
	tn_lock lock;
	tn_timers set;
	_Atomic uint64_t next_ns;
	tn_ctx_timer *running;     /* lock */
	const void *runner;        /* lock: identity of the thread that runs it */
	uint32_t cancellers;       /* lock: threads that wait for the running one to finish */
	_Atomic uint32_t finished; /* futex: counts runs, for those who cancel meanwhile */
} tn_ctx_timers;

void tn_ctx_timers_init(tern_ctx *ctx);
/* When the earliest is due; TN_TIME_NEVER. */
uint64_t tn_ctx_timers_next(tern_ctx *ctx);
/* Run what is due. One thread at a time. Returns the number of timers that ran. */
int tn_ctx_timers_run(tern_ctx *ctx, uint64_t now_ns);

/* ---- operations ---- */

/*
 * Complete an operation of this layer from under a lock: without callback it is done at once, else its
 * callback runs from dispatch. detail: of tn_details_put, what tern_detail() says in the callback or after
 * the wait.
 */
void tn_op_finish(tern_ctx *ctx, tern_op *op, tern_status status, uint64_t length, uint64_t detail);

#endif
