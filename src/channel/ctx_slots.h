/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What upper layers hang on a context without being known to it: one pointer each with a destructor.
 * Also what they need from the shell: time, timers and work that runs later from dispatch.
 *
 * Threads: slots are set once (first use, compare-and-swap inside); timers and work from any thread. Timers
 * run in the helper, or in the driving thread of a context without one; work runs in the driving thread.
 * Tests: tests/unit/channel/test_roles.c.
 */
#ifndef TN_CHANNEL_CTX_SLOTS_H
#define TN_CHANNEL_CTX_SLOTS_H

#include <tern/ctx.h>
#include <tern/watch.h>

#include "base/options.h"
#include "base/span.h"
#include "base/timer.h"

typedef enum tn_ctx_slot_id {
	TN_SLOT_RPC,
	TN_SLOT_TENSOR,
	TN_SLOT_COLL,
	TN_SLOT_PS,
	TN_SLOT_COUNT
} tn_ctx_slot_id;

typedef struct tn_ctx_slot {
	/* Runs in tern_ctx_destroy after all links are down and dispatch has ended, highest slot first. */
	void (*destroy)(struct tn_ctx_slot *slot);
	/* May be NULL: adds the layer's counters to tern_ctx_counters. */
	void (*counters)(struct tn_ctx_slot *slot, tern_counter_fn fn, void *arg);
	/* May be NULL: adds who waits for whom to tern_ctx_waits. */
	void (*waits)(struct tn_ctx_slot *slot, void (*fn)(const tern_wait *wait, void *arg), void *arg);
} tn_ctx_slot;

/* NULL if not set. The layer's struct starts with tn_ctx_slot. */
tn_ctx_slot *tn_ctx_slot_get(tern_ctx *ctx, tn_ctx_slot_id id);
/* Set if empty; returns the winner, which is another thread's if that came first (then free yours). */
tn_ctx_slot *tn_ctx_slot_set(tern_ctx *ctx, tn_ctx_slot_id id, tn_ctx_slot *slot);

const tn_options *tn_ctx_options(tern_ctx *ctx);
uint64_t tn_ctx_now(tern_ctx *ctx);
/*
 * The present, as the begin of a time-out: not before it, and where the time-out is TN_SOON_FROM_NS or more up to TN_SOON_NS
 * after it, for a tenth of the price. Deadlines never come early.
 */
#define TN_SOON_NS      40000000u
#define TN_SOON_FROM_NS 1000000000u
/* *exact: in, it has to be the present whatever that costs; out, it is. */
uint64_t tn_ctx_soon(tern_ctx *ctx, uint64_t timeout_ns, bool *exact);
/* When tn_ctx_soon was asked, to some milliseconds. */
static inline uint64_t tn_ctx_then(uint64_t soon_ns, bool exact)
{
	return exact || soon_ns < TN_SOON_NS ? soon_ns : soon_ns - TN_SOON_NS;
}
/* May only one thread use the context? */
bool tn_ctx_single_owner(const tern_ctx *ctx);
/* TERN_OK, or why this thread may not use it. */
tern_status tn_ctx_usable(const tern_ctx *ctx);
/* Where what takes how long is recorded, if tn_spans_on(). */
tn_spans *tn_ctx_spans(tern_ctx *ctx);

/* Deferred work: runs once from the next dispatch. The node belongs to the shell until it runs. */
typedef struct tn_work {
	struct tn_work *next; /* private */
	void (*run)(struct tn_work *work);
} tn_work;
void tn_ctx_defer(tern_ctx *ctx, tn_work *work);

/* A timer: runs from dispatch at or after `at_ns` (helper included). The node stays the owner's. */
typedef struct tn_ctx_timer {
	void (*run)(struct tn_ctx_timer *timer);
	tn_timer node; /* private; zero it before the first use */
} tn_ctx_timer;
/* Start or move it. */
void tn_ctx_timer_set(tern_ctx *ctx, tn_ctx_timer *timer, uint64_t at_ns);
/* Stop it. After the return it does not run and is not running in another thread (from its own run: fine). */
void tn_ctx_timer_cancel(tern_ctx *ctx, tn_ctx_timer *timer);

#endif
