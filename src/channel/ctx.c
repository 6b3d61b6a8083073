/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: made, started, driven by its public functions, ended.
 *
 *   new -> start -> ... -> destroy:  helper ended, links closed (a second at most), services of layers above
 *                                    gone, what users forgot freed, devices, memory
 *
 * Threads: new, start and destroy in one; the rest any. Tests: tests/unit/channel/test_ctx.c.
 */
#include "channel/ctx.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/log.h"
#include "channel/channel_impl.h"
#include "channel/gate.h"
#include "channel/push.h"
#include "channel/shell.h"
#include "mem/gpu.h"

#define CLOSE_NS (1 * TN_NS_PER_SEC)  /* for orderly closes */
#define ABORT_NS (500 * TN_NS_PER_MS) /* then for hard ones and for lanes to drain */

_Thread_local char tn_thread_mark TN_TLS_FAST;

tern_status tn_ctx_enter_slow(const tern_ctx *ctx)
{
	if (ctx->fork_generation != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED,
			       "this context belongs to the parent process: make one of your own");
	if (ctx->single_owner && ctx->owner != tn_thread_identity())
		return tn_fail(TERN_E_STATE,
			       "a single-owner context is used by the thread that made it alone");
	return TERN_OK;
}

/* ---- making ---- */

static const char *given(const tern_ctx *ctx, const char *param, const char *option)
{
	return param ? param : tn_opt_string(ctx->options, tn_ctx_option_rows, option);
}

static tern_status copy_text(char *dst, size_t size, const char *src, const char *what)
{
	if (strlen(src) >= size)
		return tn_fail(TERN_E_INVALID, "%s has %zu bytes, at most %zu are allowed", what, strlen(src),
			       size - 1);
	memcpy(dst, src, strlen(src) + 1);
	return TERN_OK;
}

/* A named node keeps its id over restarts, so that peers retire its old incarnation. */
static tern_status make_ids(tern_ctx *ctx)
{
	char text[2 * TN_NAME_MAX];
	uint8_t digest[TN_SHA256_BYTES];

	TN_TRY(tn_os_random(ctx->incarnation, sizeof(ctx->incarnation)));
	ctx->incarnation[0] |= 1; /* never all zero */
	if (!ctx->name[0])
		return TERN_OK;
	snprintf(text, sizeof(text), "%s/%s", ctx->job, ctx->name);
	TN_TRY(tn_sha256(text, strlen(text), digest));
	memcpy(ctx->node_id, digest, sizeof(ctx->node_id));
	return TERN_OK;
}

static tern_status read_params(tern_ctx *ctx, const tern_ctx_params *params)
{
	TN_TRY(tn_options_load(params->options, &ctx->options));
	TN_TRY(tn_base_apply(ctx->options));
	ctx->single_owner = (params->flags & TERN_CTX_SINGLE_OWNER) != 0;
	ctx->no_helper = ctx->single_owner || (params->flags & TERN_CTX_NO_HELPER) != 0;
	ctx->insecure = (params->flags & TERN_CTX_INSECURE) != 0;
	ctx->owner = tn_thread_identity();
	ctx->spin_ns = tn_opt_u64(ctx->options, tn_ctx_option_rows, "spin_ns");
	TN_TRY(copy_text(ctx->name, sizeof(ctx->name), given(ctx, params->name, "name"), "the node's name"));
	TN_TRY(copy_text(ctx->job, sizeof(ctx->job), given(ctx, params->job, "job"), "the job cookie"));
	TN_TRY(tn_secrets_load(&ctx->secrets, params->secret, ctx->options, ctx->single_owner));
	TN_TRY(copy_text(ctx->transports, sizeof(ctx->transports),
			 given(ctx, params->transports, "transports"), "the list of transports"));
	return make_ids(ctx);
}

static tern_status open_parts(tern_ctx *ctx, const tern_ctx_params *params)
{
	const char *address = given(ctx, params->listen, "listen");
	tn_mem_params mem_params = {0};
	char host[TN_ADDRESS_MAX] = "127.0.0.1";
	bool listens = address[0] && strcmp(address, "none") != 0;

	if (listens)
		TN_TRY(tn_listener_check(ctx, address, host, sizeof(host)));
	tn_mem_params_load(&mem_params, ctx->options);
	if (params->mem_limit_bytes)
		mem_params.limit_bytes = params->mem_limit_bytes;
	TN_TRY(tn_mem_create(&mem_params, &ctx->mem));
	(void)tn_gpu_start(true); /* if this process uses CUDA, pointers may be a GPU's */
	tn_stage_init(&ctx->stage, ctx->mem, tn_opt_u64(ctx->options, tn_channel_option_rows, "stage_bytes"),
		      tn_opt_u64(ctx->options, tn_link_option_rows, "chunk_bytes"), ctx->single_owner);
	ctx->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (ctx->epoll_fd < 0)
		return tn_fail_errno(TERN_E_OS, "epoll_create1", "raise the descriptor limit (ulimit -n)");
	TN_TRY(tn_roles_init(ctx));
	TN_TRY(tn_push_init(ctx));
	if (listens)
		TN_TRY(tn_listener_open(ctx, address));
	return tn_devices_open(ctx, ctx->transports, host);
}

tern_status tn_ctx_new(const tern_ctx_params *params, tern_ctx **out)
{
	return tn_ctx_new_with(params, NULL, out);
}

tern_status tn_ctx_new_with(const tern_ctx_params *params, const tn_ctx_hooks *hooks, tern_ctx **out)
{
	static const tern_ctx_params none = {0};
	tern_ctx *ctx = calloc(1, sizeof(*ctx));
	tern_status status;

	*out = NULL;
	if (!ctx)
		return tn_fail(TERN_E_NOMEM, "no memory for a context");
	if (!params)
		params = &none;
	ctx->fork_generation = tn_os_fork_generation();
	ctx->hooks = hooks;
	ctx->clock = hooks ? hooks->clock : &tn_clock_monotonic;
	ctx->epoll_fd = -1;
	ctx->roles.wake.fd = ctx->roles.evict.fd = ctx->roles.tick.fd = -1;
	ctx->push_watch.fd = -1;
	ctx->roles.helper_fd = ctx->roles.linger_fd = -1;
	ctx->report_work.run = tn_shell_report_all;
	tn_list_init(&ctx->links);
	tn_list_init(&ctx->services);
	tn_list_init(&ctx->draining);
	tn_list_init(&ctx->buried);
	status = read_params(ctx, params);
	tn_ctx_timers_init(ctx);
	tn_lock_init(&ctx->table_lock, ctx->single_owner);
	tn_lock_init(&ctx->details.lock, ctx->single_owner);
	tn_shell_store_init(ctx);
	if (status == TERN_OK)
		status = open_parts(ctx, params);
	if (status != TERN_OK) {
		tern_ctx_destroy(ctx);
		return status;
	}
	*out = ctx;
	return TERN_OK;
}

tern_status tn_ctx_start(tern_ctx *ctx)
{
	TN_TRY(tn_listener_start(ctx));
	return tn_roles_start_helper(ctx);
}

/* ---- ending ---- */

static void end_links(tern_ctx *ctx, bool hard)
{
	uint64_t number = 0;

	for (;;) {
		tern_link *link = NULL;

		tn_lock_take(&ctx->table_lock);
		TN_LIST_FOREACH(node, &ctx->links) {
			tern_link *l = TN_LIST_ENTRY(node, tern_link, node);

			if (l->number > number && !l->gone) {
				link = l;
				break;
			}
		}
		tn_lock_drop(&ctx->table_lock);
		if (!link)
			return;
		number = link->number;
		tn_shell_ref(link);
		tern_link_close(link);
		tn_lock_take(&link->lock);
		if (hard && !link->gone) {
			tn_link_abort(link->m, TERN_E_FLUSHED, "its context was destroyed", tn_ctx_now(ctx));
			tn_shell_run(link, tn_ctx_now(ctx));
		}
		tn_lock_drop(&link->lock);
		tn_shell_unref(link);
	}
}

static bool links_gone(void *arg)
{
	tern_ctx *ctx = arg;

	return ctx->link_count == 0 && tn_list_empty(&ctx->draining) && tn_mpsc_empty(&ctx->dispatch.queue) &&
	       tn_mpsc_empty(&ctx->attention);
}

/* Handles that users did not give back. Nobody is inside any more. */
static void free_forgotten(tern_ctx *ctx)
{
	while (!tn_list_empty(&ctx->links)) {
		tern_link *link = TN_LIST_FIRST(&ctx->links, tern_link, node);

		tn_shell_ref(link);
		while (!tn_list_empty(&link->channels))
			tern_channel_close(TN_LIST_FIRST(&link->channels, tern_channel, node));
		atomic_store_explicit(&link->refs, 1, memory_order_relaxed);
		tn_shell_unref(link);
	}
	while (!tn_list_empty(&ctx->services))
		free(TN_LIST_ENTRY(tn_list_pop_front(&ctx->services), tn_service, node));
}

static void destroy_slots(tern_ctx *ctx)
{
	for (int i = TN_SLOT_COUNT - 1; i >= 0; i--) {
		tn_ctx_slot *slot = tn_ctx_slot_get(ctx, (tn_ctx_slot_id)i);

		atomic_store_explicit(&ctx->slots[i], NULL, memory_order_relaxed);
		if (slot && slot->destroy)
			slot->destroy(slot);
	}
}

static void free_parts(tern_ctx *ctx)
{
	tn_listener_close(ctx);
	tn_stage_fini(&ctx->stage);
	tn_devices_close(ctx);
	tn_link_store_fini(&ctx->store);
	tn_push_fini(ctx);
	tn_roles_fini(ctx);
	tn_os_close(&ctx->epoll_fd);
	if (ctx->mem)
		tn_mem_destroy(ctx->mem);
	tn_options_free(ctx->options);
	tn_secrets_wipe(&ctx->secrets);
	tn_spans_fini(&ctx->spans);
	free(ctx);
}

void tern_ctx_close(tern_ctx *ctx)
{
	if (!ctx || ctx->closed || ctx->fork_generation != tn_os_fork_generation())
		return; /* in a forked child the parent's context is inert */
	if (tn_in_dispatch() || tn_ctx_enter(ctx) != TERN_OK) {
		TN_LOG(ERROR, CTX, "ending a context from a callback or a stranger's thread: ignored");
		return;
	}
	tn_roles_stop_helper(ctx);
	tn_lock_take(&ctx->table_lock);
	ctx->ending = true;
	ctx->on_link = NULL;
	tn_lock_drop(&ctx->table_lock);
	ctx->spin_ns = 0;
	tn_gates_end(ctx);
	if (ctx->epoll_fd >= 0 && ctx->roles.wake.fd >= 0) {
		end_links(ctx, false);
		if (tn_wait_until(ctx, links_gone, ctx, tn_ctx_now(ctx) + CLOSE_NS) != TERN_OK) {
			end_links(ctx, true);
			tn_wait_until(ctx, links_gone, ctx, tn_ctx_now(ctx) + ABORT_NS);
		}
	}
	destroy_slots(ctx);
	if (ctx->epoll_fd >= 0)
		tn_dispatch_run(ctx);
	tn_listener_close(ctx);
	ctx->closed = true;
}

void tern_ctx_destroy(tern_ctx *ctx)
{
	tern_ctx_close(ctx);
	if (!ctx || !ctx->closed || ctx->fork_generation != tn_os_fork_generation())
		return;
	if (ctx->link_count > 0 || !tn_list_empty(&ctx->draining)) {
		/* A device still uses buffers of ours: leaking them is the only safe thing. */
		TN_LOG(ERROR, CTX, "%u links did not end in time: their memory is given up", ctx->link_count);
		return;
	}
	free_forgotten(ctx);
	free_parts(ctx);
}

/* ---- driving ---- */

tern_mem *tern_ctx_mem(tern_ctx *ctx)
{
	return ctx->mem;
}

const char *tern_ctx_address(const tern_ctx *ctx)
{
	return ctx->address;
}

const char *tern_ctx_name(const tern_ctx *ctx)
{
	return ctx->name;
}

void tern_thread_brisk(void)
{
	tn_os_thread_brisk();
}

int tern_ctx_fd(const tern_ctx *ctx)
{
	return ctx->epoll_fd;
}

/* A caller that waits for the descriptor alone must be woken by timers too. False: one is due. */
static bool arm_tick(tern_ctx *ctx)
{
	uint64_t now = tn_ctx_now(ctx);

	if (tn_ctx_timers_run(ctx, now) > 0)
		return false;
	tn_roles_set_tick(ctx, TN_MIN(tn_ctx_timers_next(ctx), tn_shell_reap_wake(ctx, now)));
	return true;
}

tern_status tern_ctx_arm(tern_ctx *ctx)
{
	bool armed;

	TN_TRY(tn_ctx_enter(ctx));
	if (tn_in_dispatch() || !tn_role_try(ctx))
		return TERN_BUSY;
	armed = tn_progress_arm(ctx, false);
	ctx->look_at_control = true;
	if (armed && !ctx->roles.has_helper)
		armed = arm_tick(ctx);
	tn_role_give(ctx);
	return armed ? TERN_OK : TERN_BUSY;
}

typedef struct past {
	tern_ctx *ctx;
	uint64_t seen;
} past;

static bool is_past(void *arg)
{
	past *p = arg;

	return tern_ctx_events(p->ctx) != p->seen;
}

uint64_t tern_ctx_events(const tern_ctx *ctx)
{
	return atomic_load_explicit(&ctx->dispatch.dispatched, memory_order_seq_cst);
}

tern_status tern_ctx_wait_past(tern_ctx *ctx, uint64_t seen, uint64_t timeout_ns)
{
	past p = {ctx, seen};

	TN_TRY(tn_ctx_enter(ctx));
	return tn_wait_until(ctx, is_past, &p, tn_deadline(timeout_ns ? tn_ctx_now(ctx) : 0, timeout_ns));
}

tern_status tern_ctx_wait(tern_ctx *ctx, uint64_t timeout_ns)
{
	uint64_t woken, seen;
	tern_status status;

	TN_TRY(tn_ctx_enter(ctx));
	/* A wake that came before this call ends it: the next wait is its own. */
	seen = tern_ctx_events(ctx);
	woken = atomic_load_explicit(&ctx->wakes, memory_order_acquire);
	if (atomic_exchange_explicit(&ctx->wakes_seen, woken, memory_order_relaxed) != woken)
		return TERN_OK;
	status = tern_ctx_wait_past(ctx, seen, timeout_ns);
	woken = atomic_load_explicit(&ctx->wakes, memory_order_acquire);
	atomic_store_explicit(&ctx->wakes_seen, woken, memory_order_relaxed);
	return status;
}

void tern_ctx_wake(tern_ctx *ctx)
{
	if (ctx->fork_generation != tn_os_fork_generation())
		return;
	atomic_fetch_add_explicit(&ctx->wakes, 1, memory_order_release);
	tn_ctx_count_event(ctx);
	tn_os_event_signal(ctx->roles.wake.fd);
}
