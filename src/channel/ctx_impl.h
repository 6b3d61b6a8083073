/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a context. Files of this layer only.
 *
 *   ctx       options, memory, devices, listener, links, services, roles, timers, dispatch queue
 *   sdev      a device with its watch (devices.h)
 *   conn      a control connection (conn.h), pending until hello tells whose it is
 *   link      the shell around a link machine (shell.h)
 *
 * Lock order: link->lock, then one of: ctx->table_lock, roles.lock, timers.lock, op waiters. No two links
 * at once. Callbacks run under none.
 */
#ifndef TN_CHANNEL_CTX_IMPL_H
#define TN_CHANNEL_CTX_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <tern/channel.h>

#include "base/clock.h"
#include "base/counters.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/mutant.h"
#include "base/os.h"
#include "channel/ctx.h"
#include "channel/ctx_slots.h"
#include "channel/devices.h"
#include "channel/dispatch.h"
#include "channel/lock.h"
#include "channel/progress.h"
#include "channel/roles.h"
#include "channel/spin.h"
#include "channel/secret.h"
#include "channel/stage.h"
#include "link/link.h"

extern const tn_option_row tn_ctx_option_rows[];
extern const tn_option_row tn_link_option_rows[];
extern const tn_option_row tn_channel_option_rows[];

#define TN_CHANNEL_COUNTERS(X) \
	X(messages_tx)         \
	X(messages_rx)         \
	X(message_bytes_tx)    \
	X(message_bytes_rx)    \
	X(puts)                \
	X(put_bytes)           \
	X(gets)                \
	X(get_bytes)           \
	X(notifies_rx)         \
	X(notifies_dropped)    \
	X(reassembly_bytes)    \
	X(inbox_copies)        \
	X(fast)                \
	X(again)               \
	X(queued)              \
	X(staged)              \
	X(staged_bytes)        \
	X(stage_waits)         \
	X(links_up)            \
	X(links_down)          \
	X(conns_refused)       \
	X(conns_evicted)       \
	X(links_next_secret)   \
	X(live) /* channels that are not closed; a gauge of the context */
TN_COUNTERS_STRUCT(tn_channel_counters, TN_CHANNEL_COUNTERS)

#define TN_DETAILS      64
#define TN_DETAIL_BYTES 384

typedef struct tn_details {
	tn_lock lock;
	uint64_t last; /* number of the latest text; 0 = none yet */
	char text[TN_DETAILS][TN_DETAIL_BYTES];
} tn_details;

typedef struct tn_service {
	tn_list node;
	char name[TN_NAME_MAX];
	tern_status (*on_open)(tern_channel *channel, tern_channel_params *params, void *arg);
	void *arg;
} tn_service;

struct tern_ctx {
	/* ---- constant after set-up ---- */
	uint32_t fork_generation;
	bool single_owner, no_helper, insecure;
	const void *owner; /* single owner: identity of its thread */
	const tn_clock *clock;
	const tn_ctx_hooks *hooks; /* NULL: the OS */
	uint64_t spin_ns;
	tn_options *options;
	tern_mem *mem;
	tn_stage stage;
	tn_shell_dev devs[TN_CTX_DEVICES_MAX];
	unsigned dev_count;
	tn_lock store_lock;
	tn_link_store store; /* of memory that links borrow */
	int epoll_fd;
	char name[TN_NAME_MAX], job[TN_NAME_MAX], transports[TN_NAME_MAX], address[TN_ADDRESS_MAX];
	tn_secrets secrets;
	uint8_t incarnation[16], node_id[16];
	/* ---- the driver's ---- */
	tn_list draining; /* lanes that were closed */
	tn_list buried;   /* connections to be freed at the end of the round */
	uint64_t drain_pause_ns;
	tn_spin spin; /* of threads that wait; the helper has its own */
	uint32_t rounds;
	bool look_at_control;
	bool worked; /* there was something to do since control_ns, when descriptors were looked at */
	uint64_t control_ns;
	/* ---- shared ---- */
	tn_roles roles;
	tn_dispatch dispatch;
	tn_mpsc attention; /* links with work for the driver */
	tn_mpsc pushes;    /* links that hold posts back: push.h, with what follows */
	tn_watch push_watch;
	_Atomic bool push_armed;
	_Atomic uint64_t push_ns;
	_Atomic uint32_t events_left; /* of the batch that the driver handles */
	tn_ctx_timers timers;
	_Atomic(tn_ctx_slot *) slots[TN_SLOT_COUNT];
	tn_details details;
	tn_spans spans;
	struct tn_listener *listener;
	tn_lock table_lock; /* what follows */
	tn_list links;
	tn_list services;
	uint64_t link_number;
	uint32_t link_count, hello_count;
	bool ending;
	bool closed; /* tern_ctx_close has run: nothing but memory is left */
	void (*on_link)(tern_link *link, void *arg);
	tern_link_fn on_link_down;
	tn_work report_work;
	_Atomic bool report_queued;
	void *on_link_arg;
	_Atomic uint64_t on_link_thread;    /* that runs on_up now; 0 = none. Set under table_lock */
	_Atomic uint64_t wakes, wakes_seen; /* tern_ctx_wake calls, and those that ended a wait */
	tn_channel_counters counters;       /* of links that are gone, and the context's own */
	tn_counter link_sums[sizeof(tn_link_counters) / sizeof(tn_counter)];
};

/* Every public function begins here: fork and owner are checked. */
tern_status tn_ctx_enter_slow(const tern_ctx *ctx);
static inline tern_status tn_ctx_enter(const tern_ctx *ctx)
{
	if (TN_LIKELY(ctx->fork_generation == tn_os_fork_generation() &&
		      (!ctx->single_owner || ctx->owner == tn_thread_identity())))
		return TERN_OK;
	return tn_ctx_enter_slow(ctx);
}

static inline void tn_ctx_count_event(tern_ctx *ctx)
{
	if (ctx->single_owner)
		atomic_store_explicit(&ctx->dispatch.dispatched,
				      atomic_load_explicit(&ctx->dispatch.dispatched, memory_order_relaxed) +
					      1,
				      memory_order_relaxed);
	else
		atomic_fetch_add_explicit(&ctx->dispatch.dispatched, 1, memory_order_seq_cst);
}

/* Take the role if nobody runs with it. Never blocks. A single owner shares it with nobody. */
static inline bool tn_role_try(tern_ctx *ctx)
{
	if (ctx->single_owner) {
		uint32_t seen = atomic_load_explicit(&ctx->roles.role, memory_order_relaxed);

		atomic_store_explicit(&ctx->roles.role, TN_ROLE_TAKEN, memory_order_relaxed);
		return seen == TN_ROLE_FREE;
	}
	return tn_role_try_shared(ctx);
}

/* Hand it to a follower or back to the helper. */
static inline void tn_role_give(tern_ctx *ctx)
{
	if (ctx->single_owner)
		atomic_store_explicit(&ctx->roles.role, TN_ROLE_FREE, memory_order_relaxed);
	else
		tn_role_give_shared(ctx);
}

/* ---- states of a tern_op; only these functions touch op->state ---- */
enum { TN_OP_IDLE, TN_OP_INFLIGHT, TN_OP_DONE };

static inline uint32_t tn_op_state(const tern_op *op)
{
	return __atomic_load_n(&op->state, __ATOMIC_ACQUIRE);
}

static inline void tn_op_set_state(tern_op *op, uint32_t state)
{
	__atomic_store_n(&op->state, state, __ATOMIC_RELEASE);
}

#endif
